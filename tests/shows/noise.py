"""Show: the master's time for each decision, with and without a node of its own, and with and without a
log line per task, as in figures 4 and 5 of the paper.

    python3 tests/shows/noise.py target/release/springtide DIR ../shared/data/smps/ssn

The show creates DIR and takes two minutes. The iterates are the same in all runs, so each decision is
compared with itself.
"""

import csv
import itertools
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

JOB = ["--scenarios", "4000", "--tasks", "200", "--no-warm-start", "--estimate", "0", "--clusters", "2x1@2", "--mode", "static"]
EDGES = (1.05, 1.1, 1.25, 1.5, 2.0)


def load():
    """Two processes of another user, each busy for half of the time."""
    code = "import time\nwhile True:\n end = time.monotonic() + 0.05\n while time.monotonic() < end: pass\n time.sleep(0.05)"
    return [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]


def run(binary, directory, model, name, options):
    out = Path(directory) / name.replace(" ", "-").replace(",", "")
    line = [binary, "solve", model, *JOB, *options, "--explain", "--json", "--out", str(out)]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    with open(out / "iterates.csv") as rows:
        rows = list(csv.DictReader(rows))
    return json.loads(done.stdout)["run"]["checksum"], [float(row["master_s"]) for row in rows]


def main(binary, directory, model):
    model = os.path.abspath(model)
    os.makedirs(directory)
    runs, sums = {}, set()
    for loaded, shared, logs in itertools.product((True, False), repeat=3):
        name = ", ".join(
            (
                "others on the machine" if loaded else "alone on the machine",
                "workers on its node" if shared else "a node of its own",
                "a line of each task" if logs else "no lines",
            )
        )
        others = load() if loaded else []
        try:
            options = ([] if shared else ["--isolate"]) + (["--log-tasks"] if logs else [])
            checksum, runs[name] = run(binary, directory, model, name, options)
            sums.add(checksum)
        finally:
            for process in others:
                process.kill()
                process.wait()
    least = [min(times) for times in zip(*runs.values())]
    heads = [f"<{edge}x" for edge in EDGES] + ["more"]
    print(f"{len(least)} decisions, the least of each {sum(least):.2f} s in all; how many took how much more than their least")
    print(f"{'':62}{'all':>8}{'mean':>9}{'deviation':>10}  " + "".join(f"{head:>7}" for head in heads))
    for name, times in runs.items():
        ratios = [time / best for time, best in zip(times, least) if best > 1e-4]
        counts = [0] * (len(EDGES) + 1)
        for ratio in ratios:
            counts[next((at for at, edge in enumerate(EDGES) if ratio < edge), len(EDGES))] += 1
        mean, deviation = statistics.mean(ratios), statistics.stdev(ratios)
        print(f"{name:62}{sum(times):6.2f} s{mean:8.2f}x{deviation:10.2f}  " + "".join(f"{count:7}" for count in counts))
    print("the answers are the same" if len(sums) == 1 else f"the answers differ: {sums}")
    sys.exit(len(sums) != 1)


main(*sys.argv[1:])
