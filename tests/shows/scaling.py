"""Show: the speed-up of Barnes-Hut from one node to 4 clusters of 2 nodes, with one thread each, on this
machine. Measures replicated bodies and domains.

    python3 tests/shows/scaling.py target/release/springtide DIR [--bodies N] [--share S] [--rounds N]
        [--only WHICH]

The show creates DIR and takes about ten minutes. Each thread gets a share of a core, like a thread on
a separate machine. The shares must fit: on two cores, eight threads of 0.2 leave a fifth for all
else. Links are those of loopback. The first step is not counted, because it includes the start of the
run. Uses only Python's standard library.
"""

import argparse
import json
import statistics
import sys

from grid import Grid

ONE = [("ams", 1)]
WHICH = ("replicated", "domains")
EIGHT = [("ams", 2), ("bud", 2), ("cre", 2), ("del", 2)]


def steps(options, name, clusters, which):
    lines = f"[work]\nshare = {options.share}\nthreads = 1\n"
    with Grid(options.binary, f"{options.dir}/{name}", clusters, lines) as grid:
        job = grid.run(
            "barnes-hut", "--model", "plummer", "--bodies", options.bodies, "--steps", options.steps, "--force-error", "1e-3",
            "--dt", 1 / 1024, "--distribution", which, "--mode", "static", "--checkpoint-every", 0,
        )
        job.wait(1800)
        if job.returncode:
            sys.exit(grid.text("job.err"))
        result = json.loads(grid.text("job.out"))
        return result["checksum"], result["iterations"][1:]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("dir")
    parser.add_argument("--bodies", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--share", type=float, default=0.2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", choices=WHICH)
    options = parser.parse_args()
    print("bodies      round   one node   eight nodes   efficiency   by means   (seconds a step, medians)")
    for which in [options.only] if options.only else WHICH:
        found = []
        for number in range(options.rounds):
            (sum_one, one), (sum_eight, eight) = (
                steps(options, f"{which}-{number}-{len(clusters)}", clusters, which) for clusters in (ONE, EIGHT)
            )
            if sum_one != sum_eight:
                sys.exit(f"checksums differ: {sum_one} and {sum_eight}")
            by_means = statistics.mean(one) / statistics.mean(eight) / 8
            one, eight = statistics.median(one), statistics.median(eight)
            found.append(one / eight / 8)
            print(f"{which:10}  {number:5}   {one:8.3f}   {eight:11.3f}   {found[-1]:10.2f}   {by_means:8.2f}", flush=True)
        print(f"{which:10}  median {statistics.median(found):.2f}", flush=True)


main()
