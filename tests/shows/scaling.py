"""Show: how Barnes-Hut scales on this machine, over the threads of a node, nodes and clusters.

    python3 tests/shows/scaling.py target/release/springtide DIR [--bodies N] [--steps N] [--dt T]
        [--shapes 1x1@1,1x1@2,1x2@1] [--which replicated,domains] [--rounds N] [--share S]

A shape CxN@T has C clusters of N nodes of T threads. All runs alternate, round by round. The script
prints, for each distribution and shape, the median time of a step, the speed-up over the best
one-thread time of any distribution, the processor time of a step over that of one thread of the
same distribution, and the part of the time that ran on one thread. Then it prints the phases of a
step. The checksum must be the same for all shapes of a distribution.

With `--share`, each thread gets that part of a core, like a thread on a separate machine; the
shares must fit on this machine. Links are those of loopback. The first step is not counted, since
it includes the start of the run. Uses only Python's standard library.
"""

import argparse
import json
import re
import statistics
import sys

from grid import Grid

NAMES = ("ams", "bud", "cre", "del", "ely", "fez", "gao", "hue")
BAD = "a shape is CxN@T, for instance 2x3@1"


def shape(text):
    found = re.fullmatch(r"(\d+)x(\d+)@(\d+)", text)
    if not found or int(found[1]) > len(NAMES):
        raise argparse.ArgumentTypeError(BAD)
    return tuple(int(number) for number in found.groups())


def measure(options, name, which, clusters, nodes, threads):
    """The checksum, the seconds of each step but the first, and the report of the run."""
    share = f"share = {options.share}\n" if options.share else ""
    lines = f"[work]\nthreads = {threads}\n{share}"
    with Grid(options.binary, f"{options.dir}/{name}", [(c, nodes) for c in NAMES[:clusters]], lines) as grid:
        grid.say = lambda _: None
        job = grid.run(
            "barnes-hut", "--model", "plummer", "--bodies", options.bodies, "--steps", options.steps, "--force-error", "1e-3",
            "--dt", options.dt, "--distribution", which, "--mode", "static", "--checkpoint-every", 0,
        )
        job.wait(1800)
        if job.returncode:
            sys.exit(grid.text("job.err"))
        report = json.loads(grid.text("job.out"))
    return report["checksum"], report["iterations"][1:], report


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("dir")
    parser.add_argument("--bodies", type=int, default=1_000_000)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--dt", type=float, default=1 / 64)
    parser.add_argument("--share", type=float)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--which", default="replicated,domains")
    parser.add_argument("--shapes", default="1x1@1,1x1@2,1x2@1")
    options = parser.parse_args()
    shapes = [shape(text) for text in options.shapes.split(",")]
    which = options.which.split(",")
    if (1, 1, 1) not in shapes:
        sys.exit("the shapes need 1x1@1, which all others are compared with")
    steps, cpus, sums, phases = {}, {}, {}, {}
    for number in range(options.rounds):
        for of in which:
            for place in shapes:
                name = "{}-{}-{}x{}x{}".format(number, of, *place)
                checksum, seconds, report = measure(options, name, of, *place)
                if sums.setdefault(of, checksum) != checksum:
                    sys.exit(f"{of}: checksums differ: {sums[of]} and {checksum}")
                steps.setdefault((of, place), []).extend(seconds)
                cpus.setdefault((of, place), []).append(report["cpu_s"])
                phases[of, place] = report.get("phases")
    best = min(statistics.median(steps[of, (1, 1, 1)]) for of in which)
    print("distribution  shape     s a step   speed-up   CPU over one thread's   on one thread")
    for (of, place), seconds in steps.items():
        step = statistics.median(seconds)
        cpu = statistics.median(cpus[of, place]) / statistics.median(cpus[of, (1, 1, 1)])
        serial = phases[of, place]
        serial = f"{100 * serial['serial_share']:12.1f} %" if serial else "not measured"
        print("{:12}  {}x{}@{:<4}  {:9.3f}  {:9.2f}  {:22.2f}   {}".format(of, *place, step, best / step, cpu, serial))
    for (of, place), times in phases.items():
        if times:
            count = options.steps
            parts = (f"{name} {1000 * t['wall_s'] / count:.0f} ({1000 * t['serial_s'] / count:.0f})" for name, t in times.items() if name != "serial_share")
            print("{} {}x{}@{}, ms a step, in brackets on one thread: {}".format(of, *place, ", ".join(parts)))


main()
