"""Show: Python on a grid of 3 clusters x 2 nodes of this machine.

    python3 tests/shows/python_grid.py target/release/springtide [array] [search]

`array` (needs numpy): all tasks read a shared array of 100 MB. Prints the bytes that the nodes of the job have sent to
other clusters, by the grid's own counters. Two wide links lead from the root's cluster to the others.

`search` (needs scikit-learn): a grid search runs by joblib, and a node is killed meanwhile. Prints whether the results
are those of a search in this process.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import warnings
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "apps" / "python"))
from springtide import Grid

CLUSTERS = ("ams", "del", "lei")
ARRAY_BYTES = 100_000_000


@contextmanager
def running_grid(binary):
    """A grid in the background. Yields its config."""
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        config = Path(directory) / "grid.toml"
        clusters = "".join(f'\n[[cluster]]\nname = "{name}"\nnodes = 2\n' for name in CLUSTERS)
        config.write_text(f'grid = "python"\n{clusters}')
        command = lambda *words: subprocess.run(
            [binary, *words], check=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ).stdout
        started = command("up", "--detach")
        try:
            yield config, re.search(r"http://\S+", started).group()
        finally:
            command("down")


def wait_for_processors(grid, count):
    """Keeps the job busy until it has grown."""
    until = time.monotonic() + 60
    while grid.processors < count and time.monotonic() < until:
        list(grid.map(time.sleep, [0.02] * 50, chunksize=1))
    if grid.processors < count:
        sys.exit(f"the job has {grid.processors} of {count} processors after a minute")


def part_of(shared, at):
    return os.environ.get("SPRINGTIDE_NODE"), float(shared.value[at::1000].sum())


def array(binary):
    import numpy

    with running_grid(binary) as (config, dashboard):
        with Grid.connect(config) as grid:
            wait_for_processors(grid, 6)
            value = numpy.arange(ARRAY_BYTES // 8, dtype=float)
            begun = time.perf_counter()
            shared = grid.put(value)
            parts = [grid.submit(part_of, shared, at) for at in range(1000)]
            total = sum(part.result()[1] for part in parts)
            took = time.perf_counter() - begun
            if total != value.sum():
                sys.exit(f"the parts have the sum {total} in place of {value.sum()}")
            time.sleep(20)
            print(urllib.request.urlopen(dashboard+"metrics").read().decode())
    print(f"array of {ARRAY_BYTES / 1e6:.0f} MB, 1000 tasks: {took:.2f} s")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("what", nargs="*", default=["array", "search"], choices=["array", "search"])
    options = parser.parse_args()
    binary = os.path.abspath(options.binary)
    os.environ["SPRINGTIDE_BINARY"] = binary
    for what in options.what:
        {"array": array, "search": None}[what](binary)


if __name__ == "__main__":
    main()
