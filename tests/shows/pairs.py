"""Compares the CPU time of two commands in interleaved pairs. Counts all their processes, as the system
reports them.

    python3 tests/shows/pairs.py 30 'springtide run ... --mode monitor' 'springtide run ... --mode static'
"""

import math
import os
import shlex
import statistics
import subprocess
import sys


def cpu(line):
    """Seconds of processor time of a command and of the children that it waited for."""
    child = subprocess.Popen(shlex.split(line), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        sys.exit(f"the command failed: {line}")
    return usage.ru_utime + usage.ru_stime


def main(count, one, other):
    ratios = []
    for n in range(int(count)):
        # The two commands take turns in going first.
        first, second = (one, other) if n % 2 == 0 else (other, one)
        times = {first: cpu(first)}
        times[second] = cpu(second)
        ratios.append(times[one] / times[other])
        print(f"{n + 1:3}  {times[one]:.2f} s / {times[other]:.2f} s = {ratios[-1]:.3f}", flush=True)
    spread = 1.96 * statistics.stdev(ratios) / math.sqrt(len(ratios))
    print(f"mean {statistics.mean(ratios):.3f} +- {spread:.3f} (95 %), median {statistics.median(ratios):.3f}, {len(ratios)} pairs")


main(*sys.argv[1:])
