#!/usr/bin/env python3
"""Workflows on a grid of this host: throughput, reservations, kills, and other systems beside it.

usage: workflows.py [--nodes N] [--kills N] [--seed N] BIN DIR [CASE...]

BIN is a built springtide, DIR an empty directory for grids and runs. Cases: many (10,000 tasks of
`true`), second (100 tasks of 1 s, best effort and reserved), kills (the run's process and the head
are killed at random moments, and the run is continued), late (tasks that take several times their
runtimes, both ways), make (1,000 short tasks beside make -j, and beside Makeflow and Parsl where
this host has them; $PARSL_PYTHON names the Python of Parsl), public (placeholders of Montage and
1000genome, both ways, interrupted and continued), slurm (the same on three real Slurm clusters;
needs root, slurm-wlm and munge). Without cases, all but slurm run.
It prints a table, and exits with 1 if a result is wrong.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

CASES = ["many", "second", "kills", "late", "make", "public"]
LAB = Path(__file__).resolve().parent.parent / "slurm" / "lab.sh"
DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "workflows"
# The workflows with the scale of their runtimes and sizes.
PUBLIC = [("montage", "wf1.5_montage-chameleon-2mass-005d-001.json", 0.3),
          ("1000genome", "wf1.5_1000genome-chameleon-2ch-100k-001.json", 0.05)]


class Grid:
    """A grid on this host."""

    def __init__(self, binary, directory, sizes, lab=None):
        self.binary, self.dir = binary, directory
        directory.mkdir(parents=True, exist_ok=True)
        self.config = directory / "grid.toml"
        clusters = ""
        for name, count in sizes.items():
            clusters += f'[[cluster]]\nname = "{name}"\nnodes = {count}\nfiles = "{name}-files"\n'
            if lab:
                conf = lab / name / "slurm.conf"
                clusters += f"provider = 'slurm'\n[cluster.slurm]\nconf = '{conf}'\npoll = '1s'\nkeep = '2s'\n[cluster.slots]\nadvertise = true\n"
        self.config.write_text(f'grid = "workflows"\n{clusters}')
        self.head = None
        self.start()

    def start(self):
        log = open(self.dir / "up.log", "w")
        command = [self.binary, "up", str(self.config)]
        self.head = subprocess.Popen(command, cwd=self.dir, stdout=log, stderr=log)
        until = time.time() + 60
        while "run jobs with" not in (self.dir / "up.log").read_text():
            if time.time() > until or self.head.poll() is not None:
                sys.exit(f"the grid does not start: see {self.dir}/up.log")
            time.sleep(0.05)

    def kill_head(self):
        self.head.kill()
        self.head.wait()

    def stop(self):
        self.head.send_signal(signal.SIGINT)
        try:
            self.head.wait(30)
        except subprocess.TimeoutExpired:
            self.head.kill()

    def command(self, workflow, *options):
        line = [self.binary, "workflow", "run", str(workflow), "--config", str(self.config)]
        return line + list(options)

    def run(self, workflow, *options):
        """Runs a workflow. Returns its result and the seconds of the whole command."""
        begun = time.time()
        line = self.command(workflow, "--json", "--fresh", *options)
        ended = subprocess.run(line, cwd=self.dir, capture_output=True, text=True)
        took = time.time() - begun
        if ended.returncode != 0:
            sys.exit(f"{' '.join(line)}: exit {ended.returncode}\n{ended.stderr}")
        return json.loads(ended.stdout), took

    def run_interrupted(self, workflow, share, *options):
        """Runs a workflow, interrupts it when a share of its tasks is completed, and continues it.

        Returns the result, and the number of tasks that the continued run found completed."""
        directory = self.dir / "interrupted"
        shutil.rmtree(directory, ignore_errors=True)
        line = self.command(workflow, "--json", "--dir", str(directory), *options)
        with open(self.dir / "interrupted.log", "w") as log:
            run = subprocess.Popen(line, cwd=self.dir, stdout=log, stderr=log)
            journal, until = directory / "journal.jsonl", time.time() + 300
            while time.time() < until and run.poll() is None:
                text = journal.read_text() if journal.exists() else ""
                if text.count('"completed"') >= share:
                    break
                time.sleep(0.02)
            run.send_signal(signal.SIGINT)
            run.wait(60)
        ended = subprocess.run(line, cwd=self.dir, capture_output=True, text=True)
        if ended.returncode != 0:
            sys.exit(f"{' '.join(line)}: exit {ended.returncode}\n{ended.stderr}")
        begun = [e for e in map(json.loads, journal.read_text().splitlines()) if e["event"] == "begun"]
        return json.loads(ended.stdout), begun[-1]["restored"]

    def left(self):
        return [p.name for d in self.dir.glob("*-files") for p in d.iterdir()]


def write(path, name, tasks):
    text = f'name = "{name}"\n'
    files = []
    for task in tasks:
        files += task.get("outputs", [])
        text += "[[task]]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in task.items())
    text += "".join(f'[[file]]\nname = "{file}"\nsize = 1000\n' for file in files)
    path.write_text(text)
    return path


def many(grid, _):
    tasks = [{"id": f"t{i}", "runtime": 0.01, "command": ["true"]} for i in range(10_000)]
    result, took = grid.run(write(grid.dir / "many.toml", "many", tasks), "--best-effort")
    done = sum(task["state"] == "completed" for task in result["tasks"])
    rate = 10_000 / took
    return [("10,000 tasks of true, best effort", f"{took:.1f} s, {rate:.0f} tasks/s", done == 10_000)]


def second(grid, args):
    tasks = [{"id": f"t{i}", "runtime": 1.0, "command": ["sleep", "1"]} for i in range(100)]
    file = write(grid.dir / "second.toml", "second", tasks)
    bound = -(-100 // args.nodes)
    rows = []
    for how, options in [("best effort", ["--best-effort"]), ("reserved", [])]:
        result, took = grid.run(file, *options)
        above = 100 * (result["makespan_s"] / bound - 1)
        text = f"{result['makespan_s']:.1f} s, {above:.0f} % above {bound} s ({took:.1f} s in all)"
        rows.append((f"100 tasks of 1 s, {how}", text, True))
    return rows


def diamonds(grid, count):
    tasks = []
    for n in range(count):
        def add(kind, inputs, output, script):
            script = f"sleep 0.$(( 2 + $$ % 5 )); {script}"
            tasks.append({"id": f"{kind}-{n}", "runtime": 0.3, "inputs": inputs,
                          "outputs": [output], "command": ["sh", "-c", script]})
        add("split", [], f"text-{n}", f"seq {n} 1000 > text-{n}")
        add("left", [f"text-{n}"], f"left-{n}", f"sort -n text-{n} > left-{n}")
        add("right", [f"text-{n}"], f"right-{n}", f"sort -rn text-{n} > right-{n}")
        add("join", [f"left-{n}", f"right-{n}"], f"out-{n}", f"cat left-{n} right-{n} > out-{n}")
    return write(grid.dir / "diamonds.toml", "diamonds", tasks)


def kills(grid, args):
    count = 100
    draw = random.Random(args.seed)
    file, results = diamonds(grid, count), grid.dir / "results"
    shutil.rmtree(results, ignore_errors=True)
    line = grid.command(file, "-q", "--best-effort", "--fetch", str(results))
    killed = {"process": 0, "head": 0, "both": 0}
    log = open(grid.dir / "kills.log", "w")
    run = None
    for _ in range(args.kills):
        if run is None:
            run = subprocess.Popen(line, cwd=grid.dir, stdout=log, stderr=log)
        time.sleep(draw.uniform(0.2, 2.0))
        if run.poll() is not None:
            break
        which = draw.choice(["process", "head", "both"])
        killed[which] += 1
        if which != "process":
            grid.kill_head()
        if which != "head":
            run.kill()
            run.wait()
            run = None
        if which != "process":
            grid.start()
    if run is None:
        run = subprocess.Popen(line, cwd=grid.dir, stdout=log, stderr=log)
    try:
        run.wait(300)
    except subprocess.TimeoutExpired:
        run.kill()
    ended = run
    is_right = ended.returncode == 0
    for n in range(count):
        numbers = list(range(n, 1001))
        text = "".join(f"{i}\n" for i in numbers + numbers[::-1])
        path = results / f"out-{n}"
        is_right &= path.exists() and path.read_text() == text
    directory = grid.dir / ".springtide/workflows/workflows/diamonds"
    completed, twice, processes = set(), set(), 0
    for entry in map(json.loads, (directory / "journal.jsonl").read_text().splitlines()):
        if entry["event"] == "begun":
            processes += 1
        if entry["event"] == "started" and entry["task"] in completed:
            twice.add(entry["task"])
        if entry["event"] == "completed":
            completed.add(entry["task"])
    text = (f"{killed['process']} kills of the process, {killed['head']} of the head, "
            f"{killed['both']} of both, {processes} processes, {len(twice)} finished tasks ran "
            f"again, {len(grid.left())} files left")
    return [(f"{4 * count} tasks, seed {args.seed}", text, is_right and not twice and not grid.left())]


def late(grid, args):
    """Tasks of 4 s whose runtimes say 1 s: reserved is not slower, and no task is interrupted."""
    four = {"runtime": 1.0, "command": ["sleep", "4"]}
    tasks = [{"id": f"t{i}", **four} for i in range(3 * args.nodes)]
    file = write(grid.dir / "late.toml", "late", tasks)
    rows, spans = [], []
    for how, options in [("best effort", ["--best-effort"]), ("reserved", [])]:
        result, _ = grid.run(file, *options)
        again = sum(task["attempts"] > 1 for task in result["tasks"])
        spans.append(result["makespan_s"])
        text = f"{spans[-1]:.1f} s, {again} tasks ran more than once"
        rows.append((f"{len(tasks)} tasks of 4 s instead of 1 s, {how}", text, again == 0))
    return rows


def makeflow(grid, args, script):
    """The seconds that Makeflow takes for the tasks, if this host has it."""
    if not shutil.which("makeflow"):
        return None
    directory = grid.dir / "makeflow"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    rules = "".join(f"t{i}:\n\t{script} ; touch t{i}\n\n" for i in range(1000))
    (directory / "tasks.makeflow").write_text(rules)
    line = ["makeflow", "-T", "local", "-j", str(args.nodes), "tasks.makeflow"]
    begun = time.time()
    subprocess.run(line, cwd=directory, check=True, capture_output=True)
    return time.time() - begun


PARSL = """
import sys, parsl
from parsl.app.app import bash_app
from parsl.config import Config
from parsl.executors import HighThroughputExecutor
from parsl.providers import LocalProvider
workers, script = int(sys.argv[1]), sys.argv[2]
executor = HighThroughputExecutor(
    address="127.0.0.1", max_workers_per_node=workers, cores_per_worker=0.01,
    provider=LocalProvider(init_blocks=1, max_blocks=1))
with parsl.load(Config(executors=[executor], strategy="none")):
    @bash_app
    def task(line):
        return line
    [future.result() for future in [task(script) for _ in range(1000)]]
"""


def parsl(grid, args, script):
    """The seconds that Parsl takes for the tasks, if a Python has it."""
    python = os.environ.get("PARSL_PYTHON", sys.executable)
    if subprocess.run([python, "-c", "import parsl"], capture_output=True).returncode != 0:
        return None
    path = os.pathsep.join([os.path.dirname(python), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path}
    line = [python, "-c", PARSL, str(args.nodes), script]
    begun = time.time()
    subprocess.run(line, cwd=grid.dir, check=True, capture_output=True, env=environment)
    return time.time() - begun


def make(grid, args):
    rows = []
    for name, script in [("true", "true"), ("sleep 0.05", "sleep 0.05"), ("seq | sort", "seq 20000 | sort -n > /dev/null")]:
        tasks = [{"id": f"t{i}", "runtime": 0.05, "command": ["sh", "-c", script]} for i in range(1000)]
        file = write(grid.dir / "short.toml", "short", tasks)
        _, took = grid.run(file, "--best-effort")
        rules = "all: " + " ".join(f"t{i}" for i in range(1000)) + "\n"
        rules += "".join(f"t{i}:\n\t@{script}\n" for i in range(1000))
        (grid.dir / "Makefile").write_text(rules)
        begun = time.time()
        subprocess.run(["make", "-s", "-j", str(args.nodes)], cwd=grid.dir, check=True)
        other = time.time() - begun
        text = f"{took:.2f} s, make -j {args.nodes} {other:.2f} s: ratio {took / other:.2f}"
        for system, run in [("Makeflow", makeflow), ("Parsl", parsl)]:
            other = run(grid, args, script)
            text += f"; {system} {other:.2f} s" if other else f"; {system} is not installed"
        rows.append((f"1,000 tasks of {name}", text, True))
    return rows


def public(grid, _):
    rows = []
    for name, file, scale in PUBLIC:
        path = DATA / file
        if not path.exists():
            return [(name, f"skipped: {path.name} is not in {DATA}", True)]
        for how, options in [("best effort", ["--best-effort"]), ("reserved", [])]:
            options = [*options, "--pretend", str(scale)]
            result, _ = grid.run(path, *options)
            count = len(result["tasks"])
            again, restored = grid.run_interrupted(path, count // 3, *options)
            done = [sum(task["state"] == "completed" for task in one["tasks"]) for one in (result, again)]
            text = (f"{count} tasks, {result['makespan_s']:.1f} s; interrupted, then continued with "
                    f"{restored} tasks completed, {len(grid.left())} files left")
            is_right = done == [count, count] and restored >= count // 3 and not grid.left()
            rows.append((f"{name}, {how}", text, is_right))
    return rows


def slurm(grid, args):
    return public(grid, args)


def sizes_of(case, nodes):
    if case in ("public", "slurm"):
        return {"ams": nodes - 2 * (nodes // 3), "bud": nodes // 3, "del": nodes // 3}
    return {"ams": nodes - nodes // 2, "del": nodes // 2}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("bin")
    parser.add_argument("dir")
    parser.add_argument("cases", nargs="*", metavar="CASE")
    args = parser.parse_args()
    unknown = set(args.cases) - set(CASES) - {"slurm"}
    if unknown:
        parser.error(f"no case {', '.join(unknown)}: the cases are {', '.join(CASES)}, slurm")
    directory = Path(args.dir).resolve()
    all_right = True
    for case in args.cases or CASES:
        sizes = sizes_of(case, args.nodes)
        lab = directory / case / "lab" if case == "slurm" else None
        grid = None
        try:
            if lab:
                shares = [f"{name}={size}" for name, size in sizes.items()]
                environment = {**os.environ, "LAB_PARENT": str(os.getpid())}
                subprocess.run(["bash", LAB, "start", lab, *shares], env=environment, check=True)
            grid = Grid(os.path.abspath(args.bin), directory / case, sizes, lab)
            for name, text, is_right in globals()[case](grid, args):
                all_right &= is_right
                print(f"{case:8} {name:38} {text}{'' if is_right else '   WRONG'}", flush=True)
        finally:
            if grid:
                grid.stop()
            if lab:
                subprocess.run(["bash", LAB, "stop", lab], check=False)
    sys.exit(0 if all_right else 1)


if __name__ == "__main__":
    main()
