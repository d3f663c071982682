"""Show: the paper's scenarios with live node processes, --times runs of each mode. Existing runs in DIR
are kept.

    sudo python3 tests/shows/live.py target/release/springtide DIR [--times 3] [--time-scale 30]
        [--period TIME] [--only 1a,3] [--modes static,adaptive] [--limit 900]
    springtide wan report DIR --figures DIR

Without --period, each run has the period of its file: 1.8 undisturbed iterations, which are 180 s, or
six seconds at --time-scale 30. Only such runs are comparable with the paper. `--period 90s` is
Springtide's own period, three seconds at --time-scale 30. It needs another DIR.

Run nothing else meanwhile, because forty nodes need two cores. One round of all scenarios should take
half an hour at --time-scale 30.
"""

import argparse
import pathlib
import subprocess
import sys
import time

# Scenario 0 measures the cost of monitoring.
MODES = {name: ["static", "adaptive"] for name in ["1a", "1b", "1c", "2", "3", "4", "5"]}
MODES["0"] = ["static", "monitor", "adaptive"]

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("program")
parser.add_argument("folder", type=pathlib.Path)
parser.add_argument("--times", type=int, default=3)
parser.add_argument("--time-scale", default="30")
parser.add_argument("--period", help="period in the time of the file, before scaling [default: that of the file]")
parser.add_argument("--share", default="0.04")
parser.add_argument("--quota", default="duty")
parser.add_argument("--network", default="router")
parser.add_argument("--only", default=",".join(sorted(MODES)))
parser.add_argument("--modes", default="static,monitor,adaptive")
parser.add_argument("--limit", type=float, default=900, help="time limit of one run in seconds")
args = parser.parse_args()

failed = 0
for turn in range(1, args.times + 1):
    for name in args.only.split(","):
        for mode in [mode for mode in MODES[name] if mode in args.modes.split(",")]:
            out = args.folder / f"{name}-{mode}-{turn}"
            if (out / "wan.json").exists():
                continue
            command = [args.program, "wan", "run", name, "--mode", mode, "--time-scale", args.time_scale]
            command += ["--period", args.period] if args.period else []
            command += ["--share", args.share, "--quota", args.quota, "--network", args.network]
            command += ["--seed", str(turn), "--out", str(out)]
            began = time.monotonic()
            args.folder.mkdir(parents=True, exist_ok=True)
            try:
                with open(f"{out}.log", "w") as log:
                    code = subprocess.run(command, stdout=log, stderr=log, timeout=args.limit).returncode
            except subprocess.TimeoutExpired:
                code = f"not over after {args.limit:.0f} s"
            failed += code != 0
            told = "" if code == 0 else f"  {code}: see {out}.log"
            print(f"{name:3} {mode:8} {turn}  {time.monotonic() - began:6.1f} s{told}", flush=True)
sys.exit(min(failed, 1))
