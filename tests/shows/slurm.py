#!/usr/bin/env python3
"""Show: many jobs on five real Slurm clusters. They grow into free nodes, a rigid job makes them shrink,
and a local user takes nodes.

    tests/shows/slurm.py BIN DIR

BIN is the springtide program. The show creates DIR and takes five minutes. It needs root, slurm-wlm
and munge (tests/slurm/lab.sh names what is missing). It prints one log of the jobs and the local users
in order of time, the most processors that the batch systems and the jobs had, and each answer compared
with that of a sequential run. It exits with 1 if anything is wrong. Slurm's processors are pretended,
so the show does not measure speed.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

CLUSTERS = {"vu": 8, "uva": 4, "delft": 6, "mmn": 5, "leiden": 3}
LAB = Path(__file__).resolve().parent.parent / "slurm" / "lab.sh"


def call(*words, **more):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, **more)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, words))}: {done.stderr.strip()}")
    return done.stdout


class Show:
    def __init__(self, program, dir):
        self.program, self.dir = Path(program).resolve(), Path(dir).resolve()
        self.dir.mkdir(parents=True)
        self.lab = self.dir / "lab"
        self.began = time.time()
        self.log = []  # (seconds since the start, who, what)
        self.jobs = {}
        self.most = dict.fromkeys(CLUSTERS, 0)
        self.given = dict.fromkeys(CLUSTERS, 0)
        self.sizes = {}
        self.histories = {}
        self.wrong = []

    def config(self):
        lines = ["[stats]\nperiod = '2s'\n[adaptation]\nmode = 'monitor'",
                 "[scheduling]\npolicy = 'egs'\npoll = '1s'\nscan_interval = '1s'"]
        for name, nodes in CLUSTERS.items():
            lines.append(f"[[cluster]]\nname = '{name}'\nnodes = {nodes}\nprovider = 'slurm'\n[cluster.slurm]\n"
                         f"conf = '{self.lab / name / 'slurm.conf'}'\npoll = '1s'\nkeep = '1s'")
        path = self.dir / "grid.toml"
        path.write_text("\n".join(lines) + "\n")
        return path

    def slurm(self, cluster, *words):
        env = {**os.environ, "SLURM_CONF": str(self.lab / cluster / "slurm.conf")}
        return call(*words, env=env, cwd=self.dir)

    def job(self, *words):
        return call(self.program, "job", *words, "--config", self.dir / "grid.toml", cwd=self.dir)

    def submit(self, *words):
        number = self.job("submit", *words).strip().removeprefix("job-")
        self.jobs[number] = words
        self.note(f"job-{number}", "is submitted: " + " ".join(words))
        return number

    def note(self, who, what):
        self.log.append((time.time() - self.began, who, what))

    def tell_history(self, number):
        """Adds the new lines of a job's history: the scheduler remembers only the last ones."""
        now = time.time() - self.began
        history = json.loads(self.job("why", number, "--json"))["history"]
        new = [(now - line["ago_s"], line["what"]) for line in history]
        known = self.histories.setdefault(number, [])
        texts = lambda lines: [what for _, what in lines]
        common = next(n for n in range(min(len(known), len(new)), -1, -1)
                      if texts(known[len(known) - n:]) == texts(new[:n]))
        known.extend(new[common:])

    def running(self, cluster):
        """Nodes whose batch jobs run, according to the batch system. None may appear twice."""
        rows = [row.split() for row in self.slurm(cluster, "squeue", "-h", "-o", "%t %C %j").splitlines()]
        names = [name for _, _, name in rows if name.startswith("springtide.")]
        if len(names) != len(set(names)):
            self.wrong.append(f"{cluster} holds a node twice: {sorted(names)}")
        used = sum(int(cpus) for state, cpus, _ in rows if state == "R")
        self.most[cluster] = max(self.most[cluster], used)
        return {name for state, _, name in rows if state == "R" and name.startswith("springtide.")}

    def look(self):
        """Checks that the batch systems have all nodes that the scheduler gave to jobs, before or after its answer."""
        before = {cluster: self.running(cluster) for cluster in CLUSTERS}
        given = dict.fromkeys(CLUSTERS, 0)
        # One answer for all jobs: between two answers, a node may pass from one job to another.
        listed = {str(job["job"]): job["sizes"] for job in json.loads(self.job("list", "--json"))["jobs"]}
        for number in self.jobs:
            self.tell_history(number)
            sizes = listed.get(number, {})
            self.sizes.setdefault(number, []).append(sum(sizes.values()))
            for cluster, count in sizes.items():
                given[cluster] += count
        for cluster, count in given.items():
            self.given[cluster] = max(self.given[cluster], count)
            there = before[cluster] | self.running(cluster)
            if count > len(there):
                self.wrong.append(f"{count} of {cluster} are given to jobs, but the batch system has {sorted(there)}")

    def states(self):
        return {str(job["job"]): job["state"] for job in json.loads(self.job("list", "--json"))["jobs"]}

    def until(self, what, ready, seconds=180):
        end = time.monotonic() + seconds
        while not ready():
            self.look()
            if time.monotonic() > end:
                raise SystemExit(f"not in {seconds} s: {what}\n{self.job('list')}")
            time.sleep(0.4)

    def size(self, number):
        return sum((json.loads(self.job("status", number, "--json"))["sizes"] or {}).values())

    def play(self):
        bodies = ["barnes-hut", "--bodies", "12000", "--steps", "1500"]
        malleable = ["--kind", "malleable", "--min", "2"]
        self.jobs = {}
        first = self.submit(*bodies, "--seed", "1", *malleable, "--max", "8")
        second = self.submit(*bodies, "--seed", "2", *malleable, "--max", "6")
        powers = self.submit("ft", "--iterations", "2500", *malleable, "--max", "5")
        self.until("all have grown", lambda: min(map(self.size, (first, second, powers))) >= 4)
        before = {number: self.size(number) for number in (first, second, powers)}
        self.note("all", f"have grown: {before}")
        for cluster in ("uva", "mmn"):
            told = self.slurm(cluster, "sbatch", "-n3", "-o", "/dev/null", "--wrap", "exec sleep 20")
            self.note("a local user", f"takes three processors of {cluster}: {told.strip()}")
        # The next poll sees both. Then four nodes are available only if other jobs shrink.
        time.sleep(2)
        rigid = self.submit("queens", "--size", "12", "--kind", "rigid", "--min", "4")
        self.until("the rigid one is done", lambda: self.states()[rigid] == "done")
        self.note("all", "the rigid one is done")
        self.until("all are done", lambda: set(self.states().values()) == {"done"}, 600)
        room = []
        for number in (first, second, powers, rigid):
            self.tell_history(number)
            for at, what in self.histories[number]:
                self.log.append((at, f"job-{number}", what))
                if f"makes room for job-{rigid}" in what:
                    room.append(number)
        if not room:
            self.wrong.append(f"nobody is said to have made room for job-{rigid}")
        for number in set(room):
            # The sizes of the last seconds show that it shrank.
            sizes = self.sizes[number]
            if not any(later < earlier for earlier, later in zip(sizes, sizes[1:])):
                self.wrong.append(f"job {number} is said to have made room, and never had fewer processors: {sizes}")
        print("--- what happened, in seconds since the start")
        last, again = {}, {}
        for at, who, what in sorted(self.log):
            # A job that declines an offer gets it again each second and declines again.
            if what in last.get(who, []):
                again[who] = again.get(who, 0) + 1
                continue
            more = f"  (the same {again.pop(who)} times before)" if who in again else ""
            last[who] = [*last.get(who, [])[-1:], what]
            print(f"{at:8.1f}  {who:<12}  {what}{more}")
        print("--- answers")
        for number, words in self.jobs.items():
            plain = list(words[:words.index("--kind")])
            here = json.loads(self.job("result", number, "--json"))
            alone = json.loads(call(self.program, "run", *plain, "--sequential", "--json", cwd=self.dir))
            same = here["checksum"] == alone["checksum"]
            print(f"job {number} {' '.join(plain)}: {here['checksum']}, alone {alone['checksum']}")
            if not same:
                self.wrong.append(f"job {number} has another answer than alone")
        self.until("every stub is gone", lambda: all(not self.slurm(c, "squeue", "-h").strip() for c in CLUSTERS))
        print("most processors in use at once: " + ", ".join(f"{c} {n} of {CLUSTERS[c]}" for c, n in self.most.items()))
        print("most that jobs had at once: " + ", ".join(f"{c} {n} of {CLUSTERS[c]}" for c, n in self.given.items()))
        for cluster, size in CLUSTERS.items():
            if max(self.most[cluster], self.given[cluster]) > size:
                self.wrong.append(f"{cluster} has {size} processors, and more were in use")

    def run(self):
        sizes = [f"{name}={size}" for name, size in CLUSTERS.items()]
        call("bash", LAB, "start", self.lab, *sizes, env={**os.environ, "LAB_PARENT": str(os.getpid())})
        try:
            with open(self.dir / "up.log", "w") as log:
                up = subprocess.Popen([self.program, "up", self.config()], stdout=log, stderr=log, cwd=self.dir)
                try:
                    self.until_up(up)
                    self.play()
                finally:
                    up.terminate()
                    up.wait(60)
        finally:
            subprocess.run(["bash", LAB, "stop", self.lab], check=False)
        for wrong in self.wrong:
            print("WRONG: " + wrong)
        return 1 if self.wrong else 0

    def until_up(self, up):
        for _ in range(300):
            if "Ctrl-C ends the grid" in (self.dir / "up.log").read_text():
                return
            if up.poll() is not None:
                break
            time.sleep(0.1)
        raise SystemExit((self.dir / "up.log").read_text())


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    sys.exit(Show(*sys.argv[1:]).run())
