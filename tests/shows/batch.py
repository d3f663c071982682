#!/usr/bin/env python3
"""Show: jobs on real batch systems whose configuration grants less than they list, with local
users, walltimes that are shorter than the jobs, and kills of the head and of daemons.

    tests/shows/batch.py [--walltime MINUTES] [--queens SIZE] BIN DIR [CASE...]

BIN is the springtide program. The show creates DIR. A case takes four walltimes, which are three
minutes by default. It needs root, and the programs that tests/slurm/lab.sh and
tests/gridengine/lab.sh name. On a machine under load, --queens states smaller jobs: these must
end within ten walltimes. The cases, by default all of them:

    threads     Slurm allocates whole cores of two hardware threads
    exclusive   Slurm gives each job a whole host
    memory      Slurm allocates memory, and a job without a request gets all memory of its host
    limit       a quality of service limits the number of a user's batch jobs
    quota       a quality of service limits the number of a user's processors
    gridengine  Grid Engine

Each case has a malleable, a rigid, a command and an MPI job, and a rigid one that never fits. It
prints one log of jobs and events in order of time, the list of jobs, and a verdict for each check.
It exits with 1 if a check fails.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
SLURM, GRID_ENGINE = TESTS / "slurm" / "lab.sh", TESTS / "gridengine" / "lab.sh"
# Options of the laboratory, the size of the cluster, and its listed and obtainable processors.
CASES = {
    "threads": (["--threads", "2"], "3x4", 12, 6),
    "exclusive": (["--exclusive"], "5x2", 10, 5),
    "memory": (["--memory"], "5x2", 10, 5),
    "limit": (["--qos", "MaxSubmitJobsPerUser=6"], "2x5", 10, 6),
    "quota": (["--qos", "MaxTRESPerUser=cpu=6"], "2x5", 10, 6),
    "gridengine": (None, "6", 6, 6),
}
# Solutions of the queens problem by size. A size more takes about seven times as long.
QUEENS = {14: 365596, 15: 2279184, 16: 14772512, 17: 95815104, 18: 666090624}
MPI = r"""
#include <mpi.h>
#include <stdio.h>
#include <unistd.h>
int main(int argc, char **argv) {
    int rank, size, sum;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    sleep(10);
    int mine = rank + 1;
    MPI_Reduce(&mine, &sum, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) printf("sum %d of %d\n", sum, size);
    MPI_Finalize();
}
"""


def call(*words, check=True, **more):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, **more)
    if check and done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, words))}: {done.stderr.strip()}")
    return done.stdout


class Case:
    def __init__(self, name, program, directory, minutes, long):
        self.name, self.program, self.dir = name, program, directory
        self.options, self.size, self.listed, self.obtainable = CASES[name]
        self.walltime = 60 * minutes
        self.is_slurm = self.options is not None
        self.script = SLURM if self.is_slurm else GRID_ENGINE
        self.lab = self.dir / "lab"
        self.long = long
        self.began = time.time()
        self.log, self.histories, self.jobs, self.verdicts = [], {}, {}, []
        self.up = None
        self.dir.mkdir(parents=True)

    def note(self, who, what):
        self.log.append((time.time() - self.began, who, what))
        print(f"  [{time.time() - self.began:6.1f}] {who}: {what}", file=sys.stderr, flush=True)

    def verdict(self, holds, what):
        self.verdicts.append((holds, what))
        print(f"  {'ok' if holds else 'WRONG'}: {what}", file=sys.stderr, flush=True)

    # The laboratory.

    def start_lab(self):
        sizes = [*self.options, f"vu={self.size}"] if self.is_slurm else [self.size]
        environment = {**os.environ, "LAB_PARENT": str(os.getpid())}
        call("bash", self.script, "start", self.lab, *sizes, env=environment)

    def batch(self, *words, check=True):
        if self.is_slurm:
            environment = {**os.environ, "SLURM_CONF": str(self.lab / "vu" / "slurm.conf")}
            return call(*words, env=environment, cwd=self.dir, check=check)
        return call(self.lab / "bin" / words[0], *words[1:], check=check)

    def queue(self):
        """The batch jobs: name and state."""
        if self.is_slurm:
            rows = self.batch("squeue", "-h", "-o", "%j %t").splitlines()
            return [tuple(row.rsplit(" ", 1)) for row in rows]
        rows = self.batch("qstat", "-r").splitlines()
        names = [row.split(":", 1)[1].strip() for row in rows if "Full jobname:" in row]
        states = [row.split()[4] for row in rows if row.split() and row.split()[0].isdigit()]
        return list(zip(names, states))

    def local_user(self, seconds):
        if self.is_slurm:
            self.batch("sbatch", "-n1", "-o", "/dev/null", "--wrap", f"exec sleep {seconds}",
                       check=False)
        else:
            self.batch("qsub", "-b", "y", "-j", "y", "-o", "/dev/null", "sleep", str(seconds))
        self.note("a local user", f"submits a batch job of one processor for {seconds} s")

    def kill_daemon(self, slurm, grid_engine, seconds=5):
        daemon = [["vu", slurm], [grid_engine]][not self.is_slurm]
        call("bash", self.script, "kill", self.lab, *daemon)
        self.note(daemon[-1], f"is killed, and starts again after {seconds} s")
        self.wait(seconds)
        call("bash", self.script, "revive", self.lab, *daemon)

    # The grid.

    def config(self):
        ahead = self.walltime // 4
        lines = ["grid = 'show'", "[stats]", "period = '2s'", "[adaptation]", "mode = 'monitor'",
                 "[scheduling]", "policy = 'egs'", "poll = '1s'", "scan_interval = '1s'",
                 "[[cluster]]", "name = 'vu'", f"nodes = {self.listed}", "threads = 1"]
        if self.is_slurm:
            conf = self.lab / "vu" / "slurm.conf"
            lines += ["provider = 'slurm'", "[cluster.slurm]", f"conf = '{conf}'"]
        else:
            lines += ["provider = 'batch'", "[cluster.batch]", "preset = 'gridengine'"]
        lines += ["poll = '1s'", "keep = '2s'", f"time = '{self.walltime}s'",
                  f"leave_ahead = '{ahead}s'", "missing_timeout = '15s'"]
        (self.dir / "grid.toml").write_text("\n".join(lines) + "\n")

    def inside(self, *words):
        """A command in the cell of Grid Engine, whose network has no other processes."""
        if self.is_slurm:
            return words
        return [self.lab / "bin" / "in-cell", "env", "-C", self.dir, *words]

    def start_head(self):
        with open(self.dir / "up.log", "a") as log:
            mark = log.tell()
            self.up = subprocess.Popen(self.inside(self.program, "up", "grid.toml"), stdout=log,
                                       stderr=log, cwd=self.dir)
        for _ in range(600):
            if "Ctrl-C ends the grid" in (self.dir / "up.log").read_text()[mark:]:
                return
            if self.up.poll() is not None:
                break
            time.sleep(0.1)
        raise RuntimeError((self.dir / "up.log").read_text())

    def end_head(self, kill):
        """Ends the head, in order or as a failure does."""
        head = self.up.pid
        if not self.is_slurm:
            # The command that enters the cell waits for the head, and passes no signals on.
            children = Path(f"/proc/{head}/task/{head}/children").read_text().split()
            head = int(children[0]) if children else head
        os.kill(head, signal.SIGKILL if kill else signal.SIGTERM)
        self.up.wait(60)

    def job(self, *words, check=True):
        words = [self.program, "job", *words]
        at = words.index("--") if "--" in words else len(words)
        words = self.inside(*words[:at], "--config", "grid.toml", *words[at:])
        return call(*words, cwd=self.dir, check=check)

    def submit(self, kind, *words):
        number = self.job("submit", *words).strip().removeprefix("job-")
        self.jobs[kind] = number
        self.note(f"job-{number}", f"({kind}) is submitted: " + " ".join(words))
        return number

    def look(self):
        """Adds what is new of the jobs' histories, and of their states and sizes."""
        now = time.time() - self.began
        for number in self.jobs.values():
            answer = self.job("why", number, "--json", check=False)
            if not answer:
                continue
            history = json.loads(answer).get("history", [])
            new = [(now - line["ago_s"], line["what"]) for line in history]
            known = self.histories.setdefault(number, [])
            texts = lambda lines: [what for _, what in lines]
            common = next(n for n in range(min(len(known), len(new)), -1, -1)
                          if texts(known[len(known) - n:]) == texts(new[:n]))
            known.extend(new[common:])
        self.check_nodes()

    def check_nodes(self):
        try:
            names = [name for name, state in self.queue() if name.startswith("springtide.")]
        except RuntimeError:
            return  # the daemon that answers was killed
        for name in {name for name in names if names.count(name) > 1}:
            self.verdict(False, f"two batch jobs of one node: {name}")

    def states(self):
        answer = self.job("list", "--json", check=False)
        listed = json.loads(answer).get("jobs", []) if answer else []
        return {str(job["job"]): job["state"] for job in listed}

    def wait(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.look()
            time.sleep(1)

    def until(self, what, holds, seconds):
        end = time.monotonic() + seconds
        while not holds():
            self.look()
            if time.monotonic() > end:
                self.verdict(False, f"{what}: not in {seconds} s")
                return False
            time.sleep(1)
        return True

    # The checks.

    def play(self):
        wall = self.walltime
        (self.dir / "mpi.c").write_text(MPI)
        call("mpicc", "-o", self.dir / "mpi", self.dir / "mpi.c")
        self.submit("malleable", "queens", "--size", str(self.long), "--kind", "malleable",
                    "--min", "1", "--max", str(self.listed))
        self.submit("rigid", "queens", "--size", str(self.long - 1), "--processors", "2")
        self.submit("command", "--", "sh", "-c", f"sleep {wall // 3}; echo counted to $((6 * 7))")
        self.wait(10)
        mpirun = ("mpirun --allow-run-as-root --mca btl self,vader --mca oob_tcp_if_include lo --hostfile "
                  f'"$SPRINGTIDE_HOSTFILE" {self.dir}/mpi')
        self.submit("mpi", "--processors", "2", "--per", "job", "--", "sh", "-c", mpirun)
        if self.listed > self.obtainable:
            self.submit("too large", "queens", "--size", "12", "--processors",
                        str(self.listed - 1))
        self.wait(10)
        for _ in range(2):
            self.local_user(wall // 3)
        self.wait(wall * 0.5)
        self.kill_daemon("slurmctld", "sge_qmaster")
        self.wait(wall * 0.4)
        self.end_head(kill=True)
        self.note("the head", "is killed, and starts again after 5 s")
        time.sleep(5)
        self.start_head()
        self.note("the head", "is up again")
        self.wait(wall * 0.4)
        self.kill_daemon("slurmd", "sge_execd")
        self.submit("longer than the walltime", "command", "--restarts", "1", "--", "sleep",
                    str(wall * 10 // 3))
        ours = [self.jobs[kind] for kind in ("malleable", "rigid", "command", "mpi")]
        over = lambda: all(self.states().get(n) in ("done", "failed") for n in ours)
        self.until("the jobs end", over, wall * 10)
        if "too large" in self.jobs:
            # A head that has just started learns the capacity from attempts of a minute each.
            reason = "`job why` of the job that never fits names the reason"
            why = lambda: self.job("why", self.jobs["too large"], check=False)
            is_named = lambda: "are needed" in why() or "grants" in why()
            if self.until(reason, is_named, wall * 4):
                self.verdict(True, reason)
            self.note("why", why())
        number = self.jobs["longer than the walltime"]
        self.until("the program that outlasts the walltime ends",
                   lambda: self.states().get(number) in ("done", "failed"), wall * 6)
        why = self.job("why", number)
        self.note("why", why)
        self.verdict("time limit" in why, "`job why` of the program that outlasts the walltime "
                     "names the time limit")

    def answers(self):
        for kind, size in (("malleable", self.long), ("rigid", self.long - 1)):
            answer = self.job("result", self.jobs[kind], "--json", check=False)
            found = json.loads(answer).get("result", {}) if answer else {}
            self.verdict(found.get("solutions") == QUEENS[size],
                         f"{kind}: {size} queens have {QUEENS[size]} solutions: {found}")
        for kind, expected in (("command", "counted to 42"), ("mpi", "sum 3 of 2")):
            text = self.job("logs", self.jobs[kind], "--rank", "0", check=False).strip()
            self.verdict(text.endswith(expected), f"{kind}: {text!r}")

    def leaks(self):
        ours = lambda: [name for name, _ in self.queue() if name.startswith("springtide.")]
        self.until("no batch job is left", lambda: not ours(), 90)
        self.verdict(not ours(), f"no batch job is left: {ours()}")

    def processes(self):
        left = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            is_node = f"{self.dir}/.springtide" in words or f"{self.dir}/mpi" in words
            if is_node and "batch.py" not in words:
                left.append(words)
        self.verdict(not left, f"no process is left: {left}")

    def report(self):
        print(f"=== {self.name}: {self.listed} processors are listed, {self.obtainable} can be had")
        for number, history in self.histories.items():
            self.log += [(at, f"job-{number}", what) for at, what in history]
        last, again = {}, {}
        for at, who, what in sorted(self.log, key=lambda entry: entry[0]):
            if what in last.get(who, []):
                again[who] = again.get(who, 0) + 1
                continue
            more = f"  (the same {again.pop(who)} times before)" if who in again else ""
            last[who] = [*last.get(who, [])[-1:], what]
            print(f"{at:8.1f}  {who:<12}  {what}{more}")
        print("--- jobs")
        print(self.listing)
        print("--- verdicts")
        for holds, what in self.verdicts:
            print(f"{'ok' if holds else 'WRONG'}: {what}")
        sys.stdout.flush()

    def run(self):
        self.listing = ""
        try:
            self.start_lab()
            self.config()
            self.start_head()
            self.play()
            self.answers()
            self.listing = self.job("list")
            for number, state in self.states().items():
                if state not in ("done", "failed"):
                    self.job("cancel", number, check=False)
            self.leaks()
        except (RuntimeError, ValueError, KeyError) as error:
            self.verdict(False, f"the show ended early: {error}")
        finally:
            if self.up is not None and self.up.poll() is None:
                self.end_head(kill=False)
            time.sleep(2)
            self.processes()
            subprocess.run(["bash", self.script, "stop", self.lab], check=False)
        self.report()
        return all(holds for holds, _ in self.verdicts)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=Path)
    parser.add_argument("dir", type=Path)
    parser.add_argument("cases", nargs="*", default=list(CASES), metavar="CASE")
    parser.add_argument("--walltime", type=int, default=3, help="of nodes, in minutes")
    parser.add_argument("--queens", type=int, choices=[*QUEENS][1:], metavar="SIZE",
                        help="size of the malleable job; by default, it takes several walltimes on "
                        "two processors without other load")
    given = parser.parse_args()
    if shutil.which("mpicc") is None:
        raise SystemExit("the show needs Open MPI (Debian: apt-get install openmpi-bin libopenmpi-dev)")
    # The laboratory and the head end with the show. A background process of a shell ignores SIGINT.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    program = given.program.resolve()
    default = {1: 16, 2: 16}.get(given.walltime, 17) + ("release" in program.parts)
    right = True
    for name in given.cases:
        if name not in CASES:
            raise SystemExit(f"no such case: {name} ({' '.join(CASES)})")
        case = Case(name, program, given.dir.resolve() / name, given.walltime,
                    given.queens or default)
        right &= case.run()
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
