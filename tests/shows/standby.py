#!/usr/bin/env python3
"""Show: two heads and a witness on loopback, under load. The acting head is killed, stopped, or cut
off, and the other one takes over.

    tests/shows/standby.py BIN [--runs 20] [--seed N] [--size QUEENS] [--keep DIR]

BIN is the springtide program. The members talk through a relay of this show, which loses what is
cut. A run draws one of four faults:

    kill   the process of the acting head is killed, and starts again later
    stop   it is stopped (SIGSTOP), and continues after the other one acts
    alone  it is cut off from the other head and from the witness
    apart  the heads are cut apart, and both reach the witness: the acting head stays

In each run one client waits for its job, and another job has no client. Both heads are asked 20
times a second whether they answer at the address for nodes and clients: only an acting head does.
A line states the seconds until a head answers again, whether both answers are right, and whether
one head has answered after the other one had begun. It exits with 1 if a run fails.
"""

import argparse
import json
import os
import random
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

QUEENS = {8: 92, 9: 352, 10: 724, 11: 2680, 12: 14200, 13: 73712, 14: 365596, 15: 2279184}
# A first packet of QUIC of a reserved version. An endpoint answers it with its versions.
PROBE = bytes([0xC0, 0x1A, 0x2A, 0x3A, 0x4A, 8]) + bytes(8) + bytes([8]) + bytes(1185)
PROBE_INTERVAL = 0.05
TAKEOVER_MAX = 10.0
HEADS = ("head-1", "head-2")


def free_ports(count):
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Relay(threading.Thread):
    """Forwards datagrams among members by name, and loses those between members that are cut."""

    def __init__(self, fronts, backs):
        super().__init__(daemon=True)
        self.names = {port: name for name, port in backs.items()}
        self.backs, self.cut = backs, set()
        self.select = selectors.DefaultSelector()
        # The socket by which a sender's datagrams reach a target.
        self.ways = {}
        for name, port in fronts.items():
            front = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            front.bind(("127.0.0.1", port))
            # An error of a send may be what made a socket readable.
            front.setblocking(False)
            self.select.register(front, selectors.EVENT_READ, (front, name, None))

    def is_cut(self, a, b):
        return frozenset((a, b)) in self.cut

    def run(self):
        while True:
            for key, _ in self.select.select():
                try:
                    self.forward(key.fileobj, *key.data)
                except OSError:
                    # The process at an end is gone.
                    pass

    def forward(self, arrived, front, name, sender):
        data, source = arrived.recvfrom(65536)
        if sender is not None:
            if not self.is_cut(name, self.names.get(sender[1])):
                front.sendto(data, sender)
            return
        way = self.ways.get((name, source))
        if way is None:
            way = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            way.connect(("127.0.0.1", self.backs[name]))
            way.setblocking(False)
            self.ways[name, source] = way
            self.select.register(way, selectors.EVENT_READ, (front, name, source))
        if not self.is_cut(name, self.names.get(source[1])):
            way.send(data)


class Observer(threading.Thread):
    """Asks both heads whether they answer, and notes each answer with its time."""

    def __init__(self, ports):
        super().__init__(daemon=True)
        self.ports, self.answers, self.lock = ports, [], threading.Lock()

    def run(self):
        sockets = []
        for head, port in enumerate(self.ports):
            one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            # At another address than the heads': a socket at a free port of theirs would ask itself.
            one.bind(("127.0.0.2", 0))
            one.connect(("127.0.0.1", port))
            one.setblocking(False)
            sockets.append((head, one))
        while True:
            for head, one in sockets:
                try:
                    one.send(PROBE)
                except OSError:
                    pass
            time.sleep(PROBE_INTERVAL)
            for head, one in sockets:
                while True:
                    try:
                        one.recv(2048)
                    except OSError:
                        break
                    with self.lock:
                        if not self.answers or self.answers[-1][1] != head:
                            self.answers.append([time.monotonic(), head, 0.0])
                        self.answers[-1][2] = time.monotonic()

    def acting(self):
        """The head that has answered in the last half second."""
        with self.lock:
            if self.answers and time.monotonic() - self.answers[-1][2] < 0.5:
                return self.answers[-1][1]
        return None

    def changes_since(self, moment):
        """The heads that have answered since a moment, without repetitions."""
        with self.lock:
            return [head for _, head, last in self.answers if last >= moment]


class Grid:
    def __init__(self, program, root):
        self.program, self.root = program, root
        ports = free_ports(8)
        self.acts = ports[0:2]
        backs = dict(zip((*HEADS, "witness"), ports[2:5]))
        fronts = dict(zip((*HEADS, "witness"), ports[5:8]))
        self.backs, self.processes, self.logs = backs, {}, 0
        self.relay, self.observer = Relay(fronts, backs), Observer(self.acts)
        self.relay.start()
        self.config = root / "a" / "grid.toml"
        for name in "abw":
            (root / name).mkdir()
        self.config.write_text(
            f"""grid = "pair"
[head]
bind = "127.0.0.1:{self.acts[0]}"
advertise = ["127.0.0.1:{self.acts[0]}", "127.0.0.1:{self.acts[1]}"]
[standby]
heads = ["127.0.0.1:{fronts["head-1"]}", "127.0.0.1:{fronts["head-2"]}"]
witness = "del"
bind = "127.0.0.1:{backs["head-1"]}"
[dashboard]
on = false
[[cluster]]
name = "del"
nodes = 2
site = "own"
site_bind = "127.0.0.1:{backs["witness"]}"
site_advertise = "127.0.0.1:{fronts["witness"]}"
"""
        )

    def start(self, name, *words, **env):
        log = self.root / f"{name}.log"
        with open(log, "ab") as out:
            self.processes[name] = subprocess.Popen(
                [self.program, *map(str, words)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, "NO_COLOR": "1", **env},
            )
        return self.processes[name]

    def start_head(self, place):
        if place == 0:
            return self.start(HEADS[0], "-vv", "up", self.config)
        return self.start(
            HEADS[1],
            "-vv",
            "up",
            "--standby",
            self.root / "b" / "grid.toml",
            SPRINGTIDE_HEAD__BIND=f"127.0.0.1:{self.acts[1]}",
            SPRINGTIDE_STANDBY__BIND=f"127.0.0.1:{self.backs['head-2']}",
        )

    def start_all(self):
        self.start_head(0)
        state = self.root / "a" / ".springtide" / "pair"
        until(lambda: (state / "standby" / "grid.toml").exists(), 60, "the first head begins")
        shutil.copytree(state / "standby", self.root / "b", dirs_exist_ok=True)
        shutil.copytree(state / "site" / "del", self.root / "w", dirs_exist_ok=True)
        self.start("witness", "site", "run", "--config", self.root / "w" / "site.toml")
        self.start_head(1)
        self.observer.start()

    def call(self, *words, timeout=120):
        line = [self.program, *map(str, words), "--config", self.config]
        return subprocess.run(line, capture_output=True, text=True, timeout=timeout)

    def is_whole(self):
        try:
            members = json.loads(self.call("status", "--json").stdout)["members"]
        except (ValueError, KeyError):
            return False
        waits = [one for one in members if one["role"] == "waits"]
        return len(members) == 3 and all(one["answers"] for one in members) and \
            [one["behind"] for one in waits] == [0]

    def end(self):
        for name in (*HEADS, "witness"):
            process = self.processes.get(name)
            if process and process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def until(holds, limit, what):
    deadline = time.monotonic() + limit
    while not holds():
        if time.monotonic() > deadline:
            raise RuntimeError(f"after {limit} s not: {what}")
        time.sleep(0.02)


def solutions(text):
    try:
        return json.loads(text)["result"]["solutions"]
    except (ValueError, KeyError, TypeError):
        return None


def run(grid, number, fault, size):
    until(lambda: grid.observer.acting() is not None, 60, "a head acts")
    # The loss of two members at once is no fault that the grid survives.
    until(grid.is_whole, 60, "all members are there, with all records")
    before = grid.observer.acting()
    submitted = grid.call("job", "submit", "queens", "--size", size, "--kind", "rigid", "--min", 1)
    if submitted.returncode != 0:
        raise RuntimeError(f"submission: {submitted.stderr}")
    job = submitted.stdout.strip().removeprefix("job-")
    line = [grid.program, "run", "queens", "--size", size, "--json", "--config", grid.config]
    line = [str(word) for word in line]
    client = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(random.uniform(0.5, 2.5))
    is_under_load = client.poll() is None
    other, process = 1 - before, grid.processes[HEADS[before]]
    began = time.monotonic()
    if fault == "kill":
        process.kill()
        process.wait()
    elif fault == "stop":
        process.send_signal(signal.SIGSTOP)
    elif fault == "alone":
        grid.relay.cut = {frozenset((HEADS[before], one)) for one in (HEADS[other], "witness")}
    else:
        grid.relay.cut = {frozenset(HEADS)}
    if fault == "apart":
        time.sleep(12)
        seconds, expected = 0.0, [before]
    else:
        until(lambda: grid.observer.acting() == other, 60, "the other head acts")
        seconds, expected = time.monotonic() - began, [before, other]
    if fault == "kill":
        grid.start_head(before)
    if fault == "stop":
        process.send_signal(signal.SIGCONT)
    if fault == "alone":
        time.sleep(3)
    grid.relay.cut = set()
    out, err = client.communicate(timeout=300)
    result = grid.call("job", "result", job, "--wait", "--timeout", "3m", "--json", timeout=300)
    answers = [solutions(out), solutions(result.stdout)]
    # Time in which a head without the right would answer.
    time.sleep(3)
    changes = grid.observer.changes_since(began)
    is_one = changes == expected or changes == expected[1:]
    are_right = answers == [QUEENS[size]] * 2
    is_in_time = seconds <= TAKEOVER_MAX
    print(
        f"run {number:2}  {fault:5}  acting {HEADS[before]}  take-over {seconds:5.1f} s  answers "
        f"{'right' if are_right else answers}  {'one acts' if is_one else changes}"
        f"{'' if is_under_load else '  (the job had ended before)'}",
        flush=True,
    )
    if not are_right:
        print(f"  client: {err.strip()[-600:]}\n  job: {result.stderr.strip()[-600:]}")
    return are_right and is_one and is_in_time, seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("bin", type=Path)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--size", type=int, default=14, choices=QUEENS)
    parser.add_argument("--keep", type=Path, help="directory for the files, which remain there")
    parser.add_argument("--fault", choices=("kill", "stop", "alone", "apart"))
    args = parser.parse_args()
    random.seed(args.seed)
    root = args.keep or Path(tempfile.mkdtemp(prefix="standby-"))
    root.mkdir(parents=True, exist_ok=True)
    grid = Grid(args.bin.resolve(), root)
    failed, times = 0, []
    try:
        grid.start_all()
        for number in range(1, args.runs + 1):
            fault = args.fault or random.choice(("kill", "stop", "alone", "apart"))
            try:
                is_right, seconds = run(grid, number, fault, args.size)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                print(f"run {number:2}  {fault:5}  {error}", flush=True)
                failed += 1
                break
            failed += not is_right
            times += [seconds] if fault != "apart" else []
    finally:
        grid.end()
        if not args.keep:
            shutil.rmtree(root, ignore_errors=True)
    if times:
        print(f"{len(times)} take-overs within {max(times):.1f} s, median "
              f"{sorted(times)[len(times) // 2]:.1f} s; {failed} runs failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
