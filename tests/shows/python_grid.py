"""Show: Python on a grid of 3 clusters x 2 nodes of this machine.

    python3 tests/shows/python_grid.py target/release/springtide [array] [search]

`array` (needs numpy): all tasks read a shared array of 100 MB. Prints the bytes that the nodes of the job have sent to
other clusters, by the grid's own counters. Two wide links lead from the root's cluster to the others.

`search` (needs scikit-learn): a grid search runs by joblib, and a node is killed meanwhile. Prints whether the results
are those of a search in this process.
"""

import argparse
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
    return float(shared.value[at::1000].sum())


def sent_bytes(dashboard):
    """The bytes that the nodes of running jobs have sent to other clusters, once the number is steady."""
    last = None
    until = time.monotonic() + 120
    while time.monotonic() < until:
        # Statistics arrive once a period.
        time.sleep(12)
        text = urllib.request.urlopen(f"{dashboard}metrics").read().decode()
        sent = re.search(r'springtide_sent_bytes_total\{scope="wide"\} (\S+)', text)
        now = float(sent.group(1)) if sent else None
        if now is not None and last is not None and now - last < 1e6:
            return now
        last = now
    sys.exit("the counters of the grid do not become steady")


def array(binary):
    import numpy

    with running_grid(binary) as (config, dashboard):
        with Grid.connect(config) as grid:
            wait_for_processors(grid, 6)
            value = numpy.arange(ARRAY_BYTES // 8, dtype=float)
            begun = time.perf_counter()
            shared = grid.put(value)
            parts = [grid.submit(part_of, shared, at) for at in range(1000)]
            total = sum(part.result() for part in parts)
            took = time.perf_counter() - begun
            if abs(total - value.sum()) > 1e-6 * total:
                sys.exit(f"the parts have the sum {total} in place of {value.sum()}")
            links = len(CLUSTERS) - 1
            crossed = sent_bytes(dashboard) / links / ARRAY_BYTES
    print(f"array: {ARRAY_BYTES / 1e6:.0f} MB read by 1000 tasks on 3 x 2 nodes in {took:.2f} s;")
    print(f"       it crossed each of {links} wide links {crossed:.3f} times")
    if crossed > 1.05:
        sys.exit("the array crosses wide links more than once")


def node_processes(directory):
    """The processes of nodes by their names."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        for word in words:
            path = Path(os.fsdecode(word))
            if b"node" in words and path.name == "node.toml" and directory in path.parents:
                found[path.parent.name] = int(entry.name)
    return found


def search(binary):
    import sklearn
    from sklearn.datasets import load_digits
    from sklearn.model_selection import GridSearchCV
    from sklearn.svm import SVC
    from springtide.joblib import parallel_config

    warnings.filterwarnings("ignore")
    x, y = (part[:1000] for part in load_digits(return_X_y=True))
    parameters = {"C": [0.1, 1, 10, 100], "gamma": [1e-4, 3e-4, 1e-3, 3e-3], "kernel": ["rbf"]}
    make = lambda: GridSearchCV(SVC(), parameters, cv=5)
    begun = time.perf_counter()
    here = make().fit(x, y)
    alone_s = time.perf_counter() - begun
    with running_grid(binary) as (config, _):
        with Grid.connect(config) as grid:
            wait_for_processors(grid, 6)
            killed = []

            def kill():
                nodes = node_processes(config.parent)
                name = min(name for name in nodes if name != grid.root)
                os.kill(nodes[name], signal.SIGKILL)
                killed.append(name)

            timer = threading.Timer(2, kill)
            timer.start()
            begun = time.perf_counter()
            with parallel_config(grid):
                found = make().fit(x, y)
            took = time.perf_counter() - begun
            timer.cancel()
    scores = (here.cv_results_["mean_test_score"] == found.cv_results_["mean_test_score"]).all()
    print(f"search: scikit-learn {sklearn.__version__}, {len(here.cv_results_['params'])} candidates x 5 folds,")
    print(f"        {took:.2f} s on 3 x 2 nodes, {alone_s:.2f} s in one process; killed: {killed or 'none'}")
    print(f"        best {found.best_params_}, score {found.best_score_:.4f}; equal scores: {bool(scores)}")
    if not scores or here.best_params_ != found.best_params_ or not killed:
        sys.exit("the search on the grid differs, or ended before the node was killed")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("what", nargs="*", metavar="array|search", help="default: both")
    options = parser.parse_args()
    binary = os.path.abspath(options.binary)
    os.environ["SPRINGTIDE_BINARY"] = binary
    shows = {"array": array, "search": search}
    unknown = set(options.what) - set(shows)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are array and search")
    for what in options.what or shows:
        shows[what](binary)


if __name__ == "__main__":
    main()
