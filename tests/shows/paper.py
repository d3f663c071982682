#!/usr/bin/env python3
"""Show: the paper's scenarios in virtual time, static and adaptive, at the paper's period and at 10 s.

    tests/shows/paper.py BIN [--seeds 3] [--jobs 2] [SCENARIO ...]

BIN is the springtide program. For each scenario and seed, the show prints the static runtime, the
adaptive ones, and by how much they are shorter. It exits with 1 if a run fails or has a wrong answer,
or if a reduction is below its limit: what an earlier commit reached in the least of ten seeds, less
two points. Scenario 4 must be shorter by 55 % at the paper's period.
"""

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

# Per cent at the paper's period of 180 s, and at 10 s.
LIMITS = {
    "0": (11.4, 16.3),
    "1a": (54.5, 59.7),
    "1b": (33.6, 36.2),
    "1c": (19.0, 21.2),
    "2": (43.7, 51.8),
    "3": (62.5, 68.1),
    "4": (55.0, 70.3),
    "5": (20.2, 40.7),
}
RUNS = (("static", "180s"), ("adaptive", "180s"), ("adaptive", "10s"))
LIMIT_S = 1800


def runtime(binary, scenario, seed, mode, period):
    line = [binary, "sim", "run", scenario, "--mode", mode, "--period", period]
    line += ["--seed", str(seed), "--json", "-q"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=LIMIT_S)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(line)}: {done.stderr.strip()[-500:]}")
    return json.loads(done.stdout)["wall_s"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("binary")
    parser.add_argument("scenarios", nargs="*", default=list(LIMITS), metavar="SCENARIO")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    unknown = [name for name in args.scenarios if name not in LIMITS]
    if unknown:
        parser.error(f"no scenario of the paper: {', '.join(unknown)}")
    rows = [(name, seed) for name in args.scenarios for seed in range(1, args.seeds + 1)]
    missed = []
    print("scenario  seed    static  180 s  reduction (limit)   10 s  reduction (limit)")
    with ThreadPoolExecutor(args.jobs) as pool:
        times = {row: [pool.submit(runtime, args.binary, *row, *run) for run in RUNS] for row in rows}
        for (name, seed), futures in times.items():
            static, *adaptive = (future.result() for future in futures)
            text = f"{name:8} {seed:5} {static:9.0f}"
            for took, period, limit in zip(adaptive, ("180 s", "10 s"), LIMITS[name]):
                reduction = 100 * (1 - took / static)
                text += f" {took:6.0f}  {reduction:6.1f} % ({limit:4.1f})"
                if reduction < limit:
                    missed.append(f"{name}, seed {seed}, {period}: {reduction:.1f} %, limit {limit} %")
            print(text, flush=True)
    for line in missed:
        print(f"below its limit: scenario {line}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
