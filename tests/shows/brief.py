#!/usr/bin/env python3
"""Show: many short jobs on live grids of this machine. All must end soon, and none may be reported as
cancelled.

    tests/shows/brief.py BIN DIR [--workflows 200] [--wide 50] [--runs 500]

BIN is the springtide program. The show creates DIR. It has three parts, each on its own grid:

1. a workflow of 20 tasks on two nodes, best effort, --workflows times;
2. a workflow of 150 independent tasks `true` on three nodes, best effort, --wide times;
3. `run fib --n 20` on a grid of two nodes, --runs times.

Each command has a limit of 60 seconds. The show prints the median and the longest time of each part.
It exits with 1 if a command fails, does not end or takes longer than 10 seconds, or if a log says
that a job was cancelled.
"""

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

from grid import Grid

QUICK = '[scheduling]\npoll = "500ms"\nscan_interval = "500ms"\n'
LIMIT_S, SLOW_S = 60, 10
TASK = '[[task]]\nid = "m{0}"\ncommand = ["sh", "-c", "echo {0} > o{0}"]\nruntime = 0.01\noutputs = ["o{0}"]\n[[file]]\nname = "o{0}"\nsize = 4\n'
TRUE = '[[task]]\nid = "t{0}"\ncommand = ["true"]\nruntime = 0.01\n'


def times(grid, what, count, words, wrong):
    took = []
    for index in range(count):
        line = [str(word) for word in (grid.binary, *words(index), "--config", grid.file)]
        began = time.monotonic()
        try:
            done = subprocess.run(line, cwd=grid.dir, capture_output=True, text=True, timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            wrong.append(f"{what}, number {index + 1}: did not end in {LIMIT_S} s")
            break
        took.append(time.monotonic() - began)
        if done.returncode != 0:
            wrong.append(f"{what}, number {index + 1}: {done.stderr.strip()[-500:]}")
        if took[-1] > SLOW_S:
            wrong.append(f"{what}, number {index + 1}: took {took[-1]:.1f} s")
    if took:
        grid.say(f"{what}: {len(took)} times, median {statistics.median(took):.2f} s, longest {max(took):.2f} s")
    said = [line for line in grid.text("up.err").splitlines() if "cancelled" in line]
    wrong.extend(f"{what}: {line}" for line in said[:5])
    code, status = grid.told("node", "list", "--config", grid.file)
    if code != 0 or "busy" in status:
        wrong.append(f"{what}: nodes are busy after the last job:\n{status}")


def show(args, name, clusters, what, count, words, wrong):
    if count == 0:
        return
    # The head logs the ends of jobs at this level.
    options = ["-vv", "--log-level", "info"]
    with Grid(args.program, Path(args.dir) / name, clusters, QUICK, options) as grid:
        times(grid, what, count, lambda index: words(grid, index), wrong)


def workflow(grid, tasks):
    file = grid.dir / "tasks.toml"
    if not file.exists():
        file.write_text('name = "many"\n' + "".join(tasks))
    return ["workflow", "run", file, "--best-effort"]


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("program")
    args.add_argument("dir")
    args.add_argument("--workflows", type=int, default=200)
    args.add_argument("--wide", type=int, default=50)
    args.add_argument("--runs", type=int, default=500)
    args = args.parse_args()
    wrong = []
    many = [TASK.format(n) for n in range(20)]
    wide = [TRUE.format(n) for n in range(150)]
    show(args, "many", [("ams", 2)], "20 tasks on two nodes", args.workflows, lambda g, _: workflow(g, many), wrong)
    show(args, "wide", [("ams", 2), ("del", 1)], "150 tasks on three nodes", args.wide, lambda g, _: workflow(g, wide), wrong)
    run = lambda g, index: ["run", "fib", "--n", 20, "--out", g.dir / f"out-{index}"]
    show(args, "runs", [("ams", 1), ("del", 1)], "fib on two nodes", args.runs, run, wrong)
    for line in wrong:
        print("WRONG:", line)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
