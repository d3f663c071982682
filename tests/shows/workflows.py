#!/usr/bin/env python3
"""Show: workflows on a live grid of three clusters, on reserved slots and best effort, with and without
other jobs.

    tests/shows/workflows.py BIN DIR [--times 3] [--pretend 0.05] FILE...

BIN is the springtide program. The show creates DIR. FILEs are workflows of any format. Placeholders
replace their commands, for a fraction of the runtimes and file sizes. Each workflow runs best effort
and on reserved slots in turn, first alone, then while rigid jobs of other users come and go.

For each, the show prints the time from submission to the last task, the price, and the number of
plans. It exits with 1 if a run fails or leaves files or reservations. On a machine with few
processors, the times show only that everything works together.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from grid import Grid

CLUSTERS = [("ams", 4), ("del", 3), ("lei", 3)]
QUICK = '[scheduling]\npoll = "500ms"\nscan_interval = "500ms"\n'
OTHERS_S = 3.0


def call(grid, *words):
    line = [grid.binary, *map(str, words), "--config", grid.file]
    return subprocess.run(line, capture_output=True, text=True)


def left(grid):
    files = [str(file) for file in (grid.dir / "files").rglob("*") if file.is_file()]
    listed = call(grid, "slots", "list").stdout
    return files + [line for line in listed.splitlines() if line.startswith("reservation")]


def others(grid):
    """Submits a rigid job to each cluster as another user, with its duration as the time limit."""
    for name, _ in CLUSTERS:
        line = ["job", "submit", "queens", "--size", 18, "--kind", "rigid", "--min", 2, "--on", name]
        done = call(grid, *line, "--time", f"{OTHERS_S}s")
        if done.returncode != 0:
            sys.exit(done.stderr)


def show(grid, file, busy, args, wrong):
    rows = {"best effort": [], "reserved": []}
    for _ in range(args.times):
        for how, more in [("best effort", ["--best-effort"]), ("reserved", [])]:
            if busy:
                others(grid)
            done = call(grid, "workflow", "run", file, "--pretend", args.pretend, "--json", *more)
            if done.returncode != 0:
                wrong.append(f"{file.name}, {how}: {done.stderr.strip()}")
                continue
            rows[how].append(json.loads(done.stdout))
            if found := left(grid):
                wrong.append(f"{file.name}, {how} left {found[:3]}")
            if busy:
                time.sleep(OTHERS_S)
    print(f"{file.name}{', with other jobs' if busy else ''}:")
    for how, runs in rows.items():
        if not runs:
            continue
        took = [run["makespan_s"] for run in runs]
        again = sum(task["attempts"] > 1 for run in runs for task in run["tasks"])
        cost = statistics.median(run["cost"] for run in runs)
        used = statistics.median(run["used_processor_s"] for run in runs)
        plans = sum(len(run["reservations"]) for run in runs)
        every = " ".join(f"{one:.2f}" for one in took)
        print(
            f"  {how:11}  {len(runs[0]['tasks'])} tasks in {statistics.median(took):.2f} s ({every}), "
            f"paid {cost:.1f} for {used:.1f} used, {plans} reservations, {again} tasks repeated",
            flush=True,
        )


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("program")
    args.add_argument("dir")
    args.add_argument("file", nargs="+")
    args.add_argument("--times", type=int, default=3)
    args.add_argument("--pretend", default="0.05")
    args = args.parse_args()
    wrong = []
    with Grid(args.program, args.dir, CLUSTERS, QUICK) as grid:
        for file in [Path(file).resolve() for file in args.file]:
            for busy in [False, True]:
                show(grid, file, busy, args, wrong)
    for line in wrong:
        print("WRONG:", line)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
