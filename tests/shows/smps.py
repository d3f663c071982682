#!/usr/bin/env python3
"""Solves each published SMPS file with `springtide solve`, and its extensive form with HiGHS.

    python3 tests/shows/smps.py target/release/springtide ../shared/data/smps/public [--epsilon 1e-7]

Prints a table: the file, its sizes, the optimum of the extensive form by HiGHS, Springtide's optimum,
their relative difference, and the seconds of both. HiGHS solves forms of up to 100,000 rows; for larger
programs, the bound certifies the optimum. Exits with 1 if a two-stage file cannot be read, or if a
difference is above 1e-6.

Needs `pip install highspy`.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROWS_MAX = 100_000
LIMIT = 1e-6


def programs(root):
    """Core, time and stochastic file of every program below a directory."""
    for stoch in sorted(root.rglob("*.sto")):
        cores = sorted(stoch.parent.glob("*.cor"), key=lambda core: -len(core.stem))
        # The core file with the longest common name; `pltexpb-3-6` belongs to `pltexpa-3`.
        name = re.sub("^pltexpb", "pltexpa", stoch.stem)
        core = next((core for core in cores if name.startswith(core.stem)), cores[-1])
        times = sorted(stoch.parent.glob("*.tim"), key=lambda file: -len(file.stem))
        file = next((file for file in times if core.stem.startswith(file.stem)), times[-1])
        yield core, file, stoch


def highs(mps):
    import highspy

    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.readModel(str(mps))
    began = time.monotonic()
    solver.run()
    status = solver.modelStatusToString(solver.getModelStatus())
    if status != "Optimal":
        return status.lower(), None
    return solver.getInfo().objective_function_value, time.monotonic() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("springtide", type=Path)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--epsilon", default="1e-7")
    options = parser.parse_args()
    failed = False
    print("| file | rows, columns, scenarios | extensive form (HiGHS), s | ours, s | difference | gap |")
    print("| --- | --- | --- | --- | --- | --- |")
    for core, times, stoch in programs(options.directory):
        name = stoch.relative_to(options.directory).with_suffix("")
        with tempfile.TemporaryDirectory() as scratch:
            mps = Path(scratch) / "whole.mps"
            line = [options.springtide, "solve", "--core", core, "--time", times, "--stoch", stoch]
            line += ["--all-scenarios", "--epsilon", options.epsilon, "--sequential", "--json", "-q"]
            line += ["--out", Path(scratch) / "run"]

            def run(more):
                return subprocess.run([*map(str, line + more)], capture_output=True, text=True)

            began = time.monotonic()
            ended = run([])
            took = time.monotonic() - began
            if ended.returncode:
                error = ended.stderr.strip().splitlines()[-1]
                refused = re.search(r"has \d+ periods", error)
                failed |= refused is None
                print(f"| {name} | | refused: {error.split(': ', 2)[-1][:90]} | | | |")
                continue
            ours = json.loads(ended.stdout)
            rows = len(ours["rows"])
            sizes = f"{rows}, {len(ours['columns'])} first stage; {ours['scenarios']}"
            other, seconds, difference = "beyond 100,000 rows", "", "by the bound"
            if ours["scenarios"] <= 20_000:
                run(["--write-mps", str(mps), "--timeout", "10m"])
                with open(mps) as file:
                    count = 0
                    for text in file:
                        if text.startswith("COLUMNS"):
                            break
                        count += text.startswith(" ")
                if count - 1 <= ROWS_MAX:
                    value, seconds = highs(mps)
                    if seconds is None:
                        other, failed, difference, seconds = value, True, "", ""
                    else:
                        gap = abs(value - ours["objective"]) / (1 + abs(value))
                        failed |= gap > LIMIT
                        other, seconds, difference = f"{value:.8g}", f"{seconds:.2f}", f"{gap:.1e}"
            print(
                f"| {name} | {sizes} | {other}, {seconds} | {ours['objective']:.8g}, {took:.2f} "
                f"| {difference} | {ours['gap']:.1e} |",
                flush=True,
            )
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
