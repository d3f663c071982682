#!/usr/bin/env python3
"""Runs the benchmarks that take minutes, and writes their figures into BENCHMARKS.md.

    python3 tests/shows/benchmarks.py                 # all: about an hour with the builds
    python3 tests/shows/benchmarks.py join net        # these alone; the rows of others stay
    python3 tests/shows/benchmarks.py --list          # their names and commands
    python3 tests/shows/benchmarks.py --binary PROGRAM --commit NAME solve faults

A row has the figure, its limit, the machine with its load, the commit and the date. Ratios compare
programs that alternate in one process, so they hold on a loaded machine. Times do not.
`springtide` is built by `cargo build --release -p springtide --features command`, unless `--binary` names it.
"""

import argparse
import datetime
import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "BENCHMARKS.md"
BEGIN, END = "<!-- benchmarks.py: begin -->", "<!-- benchmarks.py: end -->"
HEAD = "| benchmark | what | command | figure | limit | verdict | machine, load | commit, date |"
LIMIT_S = 3600


class Figure:
    """A figure in the output of a benchmark: what it is, its pattern, its unit and its limit."""

    def __init__(self, what, pattern, unit="", at_most=None, at_least=None, digits=4):
        self.what, self.pattern, self.unit, self.digits = what, re.compile(pattern), unit, digits
        self.at_most, self.at_least = at_most, at_least

    def read(self, output):
        """The figure, its limit and the verdict as texts. Several matches give their range."""
        found = [match.groups() for match in self.pattern.finditer(output)]
        if not found:
            return "", self.limit(), "not measured"
        values = [float(groups[0]) for groups in found]
        low, high = min(values), max(values)
        text = self.number(low)
        if low != high:
            text += f" to {self.number(high)}"
        spread = f" [{', '.join(found[0][1:])}]" if len(found) == 1 and found[0][1:] else ""
        held = (self.at_most is None or high <= self.at_most) and (
            self.at_least is None or low >= self.at_least
        )
        known = self.at_most is not None or self.at_least is not None
        verdict = ("held" if held else "missed") if known else ""
        return text + self.unit + spread, self.limit(), verdict

    def limit(self):
        bounds = [("at least", self.at_least), ("at most", self.at_most)]
        known = [f"{word} {self.number(bound)}" for word, bound in bounds if bound is not None]
        return ", ".join(known) + (self.unit if known else "")

    def number(self, value):
        return f"{value:.{self.digits}g}"


def bench(package, name, *arguments):
    extra = ["--", *arguments] if arguments else []
    return ["cargo", "bench", "-q", "-p", package, "--bench", name, *extra]


def program(*arguments):
    return ["springtide", *arguments]


RUNTIME = "springtide-runtime"
BENCHMARKS = {
    "join": (
        bench(RUNTIME, "join", "9"),
        [
            Figure("`join` over `rayon::join`, fib(35), one thread, median [quartiles]",
                   r", 1 thread.*ratio ([\d.]+) \[([\d.]+) to ([\d.]+)\]", at_most=0.6),
            Figure("the same, of the best times", r", 1 thread.*of the best ([\d.]+)", at_most=0.6),
            Figure("the same, two threads, median [quartiles]",
                   r", 2 thread.*ratio ([\d.]+) \[([\d.]+) to ([\d.]+)\]", at_most=1.0),
        ],
    ),
    "net": (
        bench(RUNTIME, "net", "9"),
        [
            Figure("round trip of 64 bytes, `Net` over bare quinn, p50",
                   r"round trip, net / bare, median of rounds: ([\d.]+)", at_most=1.15),
            Figure("pipelined messages a second, `Net` over bare quinn",
                   r"pipelined rate, net / bare, median of rounds: ([\d.]+)", at_least=0.70),
        ],
    ),
    "remote": (
        bench(RUNTIME, "remote", "9"),
        [
            Figure("call of a remote actor on the endpoint's arbiter, over bare quinn, p50",
                   r"endpoint's arbiter / bare, median: ([\d.]+)", at_most=1.15),
            Figure("the same on another arbiter", r"another arbiter / bare, median: ([\d.]+)",
                   at_most=1.6),
        ],
    ),
    "steal": (
        bench(RUNTIME, "steal", "5"),
        [
            Figure("steal from a busy victim over a bare ping-pong, p50",
                   r"steal round trip / bare, median of rounds: ([\d.]+)", at_most=2.0),
            Figure("the same, both next to a busy thread", r"both next to a busy thread: ([\d.]+)",
                   at_most=2.0),
            Figure("new work to its start on a parked node, p99",
                   r"parked node starts.*p99 ([\d.]+) ms", " ms", at_most=10.0),
            Figure("for comparison: as many plain threads wake each other, p99",
                   r"plain threads.*p99 ([\d.]+) ms", " ms"),
        ],
    ),
    "broadcast": (
        bench("springtide-tests", "broadcast"),
        [
            Figure("bytes of a 100 MB object into each cluster, over its size (virtual time)",
                   r"into \w+: ([\d.]+) of the object", at_most=1.05),
            Figure("p99 of wide steals during that transfer, over without (virtual time)",
                   r"wide steals, with / without: ([\d.]+)", at_most=3.0),
        ],
    ),
    "stealing": (
        ["cargo", "test", "-q", "-p", "springtide-tests", "cluster_aware", "--", "--nocapture"],
        [
            Figure("efficiency of one cluster of 16 nodes (virtual time)",
                   r"one cluster ([\d.]+), cluster"),
            Figure("of four clusters of 4, 20 ms apart, cluster-aware stealing",
                   r"cluster-aware ([\d.]+)", at_least=0.89),
            Figure("the same with random stealing", r"random ([\d.]+)"),
        ],
    ),
    "idle": (
        bench("springtide-tests", "idle"),
        [
            Figure("six free nodes, processor time together",
                   r"free, \d+ s: six nodes ([\d.]+) %", " % of a core", at_most=1.0),
            Figure("six idle nodes of a running job",
                   r"running job, \d+ s: six nodes ([\d.]+) %", " % of a core", at_most=1.0),
            Figure("resident memory of a node", r"resident at most ([\d.]+) MiB", " MiB",
                   at_most=40.0),
        ],
    ),
    "scheduling": (
        bench("springtide-tests", "scheduling"),
        [
            Figure("decision of the manager, 1,000 jobs on 100 clusters, largest p99",
                   r"largest p99: ([\d.]+) us", " us", at_most=1000.0),
        ],
    ),
    "provisioning": (
        bench("springtide-actors", "provisioning"),
        [
            Figure("one evaluation of a plan, 100 tasks, 124 slots",
                   r"one evaluation, [^:]*: ([\d.]+) us", " us", at_most=50.0),
            Figure("hypervolume of our search, 4,000 evaluations (NSGA-II of pymoo: 0.815)",
                   r"Pruned 100 x 40: hypervolume ([\d.]+)", at_least=0.8401),
            Figure("hypervolume of the paper's search, 1,750 evaluations",
                   r"50 x 35: hypervolume ([\d.]+)", at_least=0.75),
            Figure("HEFT of CyberShake, 8,039 tasks", r"HEFT ([\d.]+) ms", " ms", at_most=10.0),
        ],
    ),
    "forces": (
        bench("springtide-barnes-hut", "forces"),
        [
            Figure("tree of 1e5 bodies, one thread",
                   r"Mono theta 0\.7 group 256: tree +([\d.]+) ms", " ms"),
            Figure("forces, theta 0.7, monopoles, groups of 256",
                   r"Mono theta 0\.7 group 256: .*forces +([\d.]+) ms", " ms"),
            Figure("RMS error of these forces",
                   r"Mono theta 0\.7 group 256: .*rms error ([\d.e-]+)"),
        ],
    ),
    "delta": (
        bench("springtide-barnes-hut", "delta"),
        [
            Figure("positions as changes, forecasts from three versions (whole: 12 bytes)",
                   r"3 frames: ([\d.]+) bytes", " bytes a body", at_most=12.0),
        ],
    ),
    "faults": (
        program("sim", "faults", "--seeds", "1..61"),
        [
            Figure("random fault histories, wrong of 60", r"histories in \d+ s, (\d+) wrong",
                   at_most=0.0),
            Figure("time of these 60", r"histories in (\d+) s", " s"),
        ],
    ),
    "scenario-static": (
        program("sim", "run", "1a", "--mode", "static", "--json", "-q"),
        [Figure("the paper's scenario 1a without adaptation (virtual time)",
                r'"wall_s":([\d.]+)', " s")],
    ),
    "scenario-adaptive": (
        program("sim", "run", "1a", "--mode", "adaptive", "--period", "10s", "--json", "-q"),
        [Figure("the same with adaptation every 10 s; half of the static time is the paper's",
                r'"wall_s":([\d.]+)', " s", at_most=2012.0)],
    ),
    "solve": (
        program("solve", "../shared/data/smps/ssn", "--scenarios", "100", "--sequential",
                "--estimate", "0", "--json", "-q"),
        [
            Figure("objective of `ssn`, 100 scenarios (HiGHS on the extensive form: 7.0879157)",
                   r'"objective":([\d.]+)', at_most=7.08792, at_least=7.08791, digits=8),
            Figure("its relative gap", r'"gap":([\d.e+-]+)', at_most=1e-5),
        ],
    ),
}


def machine():
    """The processors and the load of the last minute."""
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip().removesuffix(" Processor")
            break
    return f"{model}, {os.cpu_count()} processors, load {os.getloadavg()[0]:.0f}"


def commit():
    git = ["git", "-C", str(ROOT)]
    head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    changed = subprocess.run(
        [*git, "status", "--porcelain", "--", "runtime", "actors", "apps"],
        capture_output=True, text=True,
    )
    return head.stdout.strip() + (" with changes" if changed.stdout.strip() else "")


def rows_of_page(text):
    """The rows between the marks, by benchmark."""
    rows = {}
    table = text.split(BEGIN, 1)[1].split(END, 1)[0]
    for line in table.splitlines():
        if line.startswith("| ") and not line.startswith(("| benchmark", "| ---")):
            rows.setdefault(line.split("|")[1].strip(), []).append(line)
    return rows


def write(rows):
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    lines = [HEAD, "|" + " --- |" * (HEAD.count("|") - 1)]
    for name in BENCHMARKS:
        lines += rows.get(name, [])
    table = "\n".join([BEGIN, "", *lines, "", END])
    PAGE.write_text(before + table + after, encoding="utf-8")


def run(name, binary, of_binary):
    """Runs a benchmark and returns its rows; none if it failed."""
    command, figures = BENCHMARKS[name]
    shown = " ".join(command)
    actual = [str(binary), *command[1:]] if command[0] == "springtide" else command
    where, start = machine(), time.monotonic()
    print(f"=== {name}: {shown}", flush=True)
    try:
        result = subprocess.run(
            actual, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"Error: {name}: {error}", file=sys.stderr)
        return None
    if result.returncode != 0:
        last = "\n".join(result.stderr.splitlines()[-5:])
        print(f"Error: {name} ended with {result.returncode}: {last}", file=sys.stderr)
        return None
    known = of_binary if command[0] == "springtide" and of_binary else commit()
    measured = f"{known}, {datetime.date.today()}"
    rows = []
    for figure in figures:
        value, limit, verdict = figure.read(result.stdout + result.stderr)
        cells = [name, figure.what, f"`{shown}`", value, limit, verdict, where, measured]
        rows.append("| " + " | ".join(cells) + " |")
        print(f"{figure.what}: {value} {limit} {verdict}", flush=True)
    print(f"{time.monotonic() - start:.0f} s", flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("names", nargs="*", help="benchmarks to run; none: all")
    parser.add_argument("--list", action="store_true", help="print the benchmarks and end")
    parser.add_argument("--binary", help="the program `springtide`; it is not built then")
    parser.add_argument("--commit", help="the commit of that program, if not the present one")
    options = parser.parse_args()
    if options.list:
        for name, (command, _) in BENCHMARKS.items():
            print(f"{name:18} {' '.join(command)}")
        return 0
    unknown = [name for name in options.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; --list prints them")
    names = options.names or list(BENCHMARKS)
    binary = options.binary
    if binary is None and any(BENCHMARKS[name][0][0] == "springtide" for name in names):
        subprocess.run(["cargo", "build", "--release", "-p", "springtide"], cwd=ROOT, check=True)
        target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
        binary = target / "release" / "springtide"
    failed = 0
    rows = rows_of_page(PAGE.read_text(encoding="utf-8"))
    for name in names:
        measured = run(name, binary, options.commit)
        if measured is None:
            failed += 1
        else:
            rows[name] = measured
            write(rows)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
