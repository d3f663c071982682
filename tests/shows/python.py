"""Show: the overhead of tasks in Python, on grids of this machine with one thread a node.

    python3 tests/shows/python.py target/release/springtide [--shape CxN] [--rounds N]

Measures nested tasks of 1 ms by `join`, flat ones of 0.1 ms by `map`, and single futures. The ideal time is the
work divided by the processors that compute: all but the root's. A task computes without a wait, so the processors
must be as many as the nodes, or their shares are small. Prints medians. Uses only Python's standard library; with Dask
or Ray installed it measures them, too: `--with dask`, `--with ray`.
"""

import argparse
import os
import platform
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "apps" / "python"))
from springtide import Grid, join, task


def spin(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass
    return 1


@task
def tree(depth, seconds):
    """A tree of 2^depth leaves, each of this time."""
    if depth == 0:
        return spin(seconds)
    return sum(join(tree.call(depth - 1, seconds), tree.call(depth - 1, seconds)))


def timed(action):
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun


def line(name, tasks, work_s, processors, times):
    median = statistics.median(times)
    overhead = (median * processors - work_s) / tasks
    print(f"{name:34} {tasks:7} {work_s / processors:9.3f} {median:9.3f} {overhead * 1e3:12.3f}", flush=True)


def on_springtide(options):
    with Grid.start(options.shape) as grid:
        processors = max(1, grid.processors - 1)
        list(grid.map(spin, [0.001] * 64, chunksize=1))
        rounds = range(options.rounds)
        times = [timed(lambda: grid.submit(tree, 10, 0.001).result()) for _ in rounds]
        line("nested, 1 ms, join", 1024, 1.024, processors, times)
        times = [timed(lambda: list(grid.map(spin, [0.0001] * 10_000))) for _ in rounds]
        line("flat, 0.1 ms, map", 10_000, 1.0, processors, times)
        times = [timed(lambda: list(grid.map(spin, [0.001] * 1000, chunksize=1))) for _ in rounds]
        line("flat, 1 ms, a future each", 1000, 1.0, processors, times)
        times = [timed(lambda: [grid.submit(spin, 0.0).result() for _ in range(200)]) for _ in rounds]
        line("one after the other, empty", 200, 0.0, 1, times)


def on_processes(options):
    workers = max(1, options.workers)
    with ProcessPoolExecutor(workers) as pool:
        list(pool.map(spin, [0.001] * 64))
        rounds = range(options.rounds)
        times = [timed(lambda: list(pool.map(spin, [0.0001] * 10_000, chunksize=125))) for _ in rounds]
        line("processes: flat, 0.1 ms, map", 10_000, 1.0, workers, times)
        times = [timed(lambda: list(pool.map(spin, [0.001] * 1000))) for _ in rounds]
        line("processes: flat, 1 ms, each", 1000, 1.0, workers, times)


def on_dask(options):
    from dask.distributed import Client, LocalCluster, get_client, rejoin, secede

    def dask_tree(depth, seconds):
        if depth == 0:
            return spin(seconds)
        client = get_client()
        other = client.submit(dask_tree, depth - 1, seconds, pure=False)
        first = dask_tree(depth - 1, seconds)
        secede()
        value = other.result()
        rejoin()
        return first + value

    workers = max(1, options.workers)
    cluster = LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None)
    with cluster, Client(cluster) as client:
        client.gather(client.map(spin, [0.001] * 64, pure=False))
        rounds = range(options.rounds)
        run = lambda: client.submit(dask_tree, 10, 0.001, pure=False).result()
        line("dask: nested, 1 ms", 1024, 1.024, workers, [timed(run) for _ in rounds])
        run = lambda: client.gather(client.map(spin, [0.0001] * 10_000, pure=False, batch_size=125))
        line("dask: flat, 0.1 ms, map", 10_000, 1.0, workers, [timed(run) for _ in rounds])


def on_ray(options):
    import ray

    workers = max(1, options.workers)
    ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False)
    leaf = ray.remote(spin)

    @ray.remote
    def ray_tree(depth, seconds):
        if depth == 0:
            return spin(seconds)
        return sum(ray.get([ray_tree.remote(depth - 1, seconds) for _ in range(2)]))

    ray.get([leaf.remote(0.001) for _ in range(64)])
    rounds = range(options.rounds)
    run = lambda: ray.get(ray_tree.remote(10, 0.001))
    line("ray: nested, 1 ms", 2047, 1.024, workers, [timed(run) for _ in rounds])
    run = lambda: ray.get([leaf.remote(0.0001) for _ in range(10_000)])
    line("ray: flat, 0.1 ms", 10_000, 1.0, workers, [timed(run) for _ in rounds])
    ray.shutdown()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--shape", default="1x3")
    parser.add_argument("--workers", type=int, default=2, help="processes of the others")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--with", dest="others", action="append", default=[], choices=["processes", "dask", "ray"])
    options = parser.parse_args()
    os.environ["SPRINGTIDE_BINARY"] = os.path.abspath(options.binary)
    print(f"{'what':34} {'tasks':>7} {'ideal s':>9} {'median s':>9} {'ms per task':>12}")
    on_springtide(options)
    for other in options.others:
        if other != "processes":
            print(f"{other} {version(other)}, Python {platform.python_version()}", flush=True)
        {"processes": on_processes, "dask": on_dask, "ray": on_ray}[other](options)


if __name__ == "__main__":
    main()
