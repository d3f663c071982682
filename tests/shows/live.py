"""The paper's scenarios with live node processes, one after another, each mode so many times; runs that are there already are kept.

    sudo python3 tests/shows/live.py target/release/springtide DIR [--times 3] [--time-scale 30] [--period TIME] [--only 1a,3]
        [--modes static,adaptive] [--limit 900]
    springtide wan report DIR --figures DIR

Without --period each runs with its file's own, 1.8 undisturbed iterations (180 s, at --time-scale 30 six seconds): only such runs stand
beside the paper. `--period 90s` is ours, three seconds at --time-scale 30: put it in another DIR, for runs that are there are kept.

Nothing else should run meanwhile: forty nodes want two cores. A round of all should take half an hour at --time-scale 30 (by what is predicted).
"""

import argparse
import pathlib
import subprocess
import sys
import time

# Scenario 0 is where monitoring alone is weighed.
MODES = {name: ["static", "adaptive"] for name in ["1a", "1b", "1c", "2", "3", "4", "5"]}
MODES["0"] = ["static", "monitor", "adaptive"]

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("program")
parser.add_argument("folder", type=pathlib.Path)
parser.add_argument("--times", type=int, default=3)
parser.add_argument("--time-scale", default="30")
parser.add_argument("--period", help="in the file's time, before it is scaled; left out: the file's own")
parser.add_argument("--share", default="0.04")
parser.add_argument("--quota", default="duty")
parser.add_argument("--network", default="router")
parser.add_argument("--only", default=",".join(sorted(MODES)))
parser.add_argument("--modes", default="static,monitor,adaptive")
parser.add_argument("--limit", type=float, default=900, help="seconds for one run")
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
