"""Show: cluster-aware stealing on live nodes: 4 clusters of 8 throttled nodes, compared with random
stealing and with the same nodes in one cluster.

    sudo python3 tests/shows/stealing.py target/release/springtide DIR [--times 3] [--share 0.04]
        [--network router]

Each run is a job of the same work. The show prints the useful share of the granted processor time:
the work of the job divided by what all nodes could have done until its end. Run nothing else
meanwhile.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

NODES, CLUSTERS = 32, 4
# WORK is in seconds of a node of speed 1. `each` and `serial` are zero, so all loss is from stealing.
# Tasks are about as long as the round trip: with tasks of 0.3 s, the choice of victims has no effect.
WORK, ITERATIONS, LEAVES = 48, 50, 2048

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("program")
parser.add_argument("folder", type=pathlib.Path)
parser.add_argument("--times", type=int, default=3)
parser.add_argument("--share", default="0.04")
parser.add_argument("--quota", default="duty")
parser.add_argument("--network", default="router")
args = parser.parse_args()


def scenario(name, clusters, steal):
    text = f'name = "{name}"\nabout = "{NODES} nodes in {clusters} clusters, {steal} stealing."\n'
    text += f'[app]\niterations = {ITERATIONS}\nwork = "{WORK}s"\nleaves = {LEAVES}\n'
    text += f'[job]\nsteal = "{steal}"\nperiod = "5s"\nlimit = "20m"\n'
    text += '[wide]\nrtt = "20ms"\nbandwidth = "1MB/s"\n'
    for number in range(clusters):
        text += f'[[cluster]]\nname = "c{number + 1}"\nnodes = {NODES // clusters}\nstart = {NODES // clusters}\n'
    path = args.folder / f"{name}.toml"
    path.write_text(text)
    return path


args.folder.mkdir(parents=True, exist_ok=True)
kinds = {
    "one": scenario("one", 1, "cluster-aware"),
    "aware": scenario("aware", CLUSTERS, "cluster-aware"),
    "random": scenario("random", CLUSTERS, "random"),
}
useful, failed = {kind: [] for kind in kinds}, 0
for turn in range(1, args.times + 1):
    for kind, path in kinds.items():
        out = args.folder / f"{kind}-{turn}"
        if not (out / "wan.json").exists():
            command = [args.program, "wan", "run", str(path), "--mode", "static", "--time-scale", "1", "--share", args.share]
            command += ["--quota", args.quota, "--network", args.network, "--seed", str(turn), "--out", str(out)]
            with open(f"{out}.log", "w") as log:
                code = subprocess.run(command, stdout=log, stderr=log).returncode
            if code != 0:
                failed += 1
                print(f"{kind} {turn}: exit code {code}, see {out}.log", flush=True)
                continue
        run = json.loads((out / "wan.json").read_text())
        part = WORK * ITERATIONS / (NODES * run["wall_s"])
        useful[kind].append(part)
        print(
            f"{kind:7} {turn}  {run['wall_s']:6.1f} s (simulated {run['predicted_s']:.1f})  useful {part:.3f}  machine {run['busy']:.0%} busy",
            flush=True,
        )
middle = {kind: statistics.median(parts) for kind, parts in useful.items() if parts}
if "one" in middle:
    for kind in ("aware", "random"):
        if kind in middle:
            print(f"{kind} over {CLUSTERS} clusters, relative to one cluster: {middle[kind] / middle['one']:.3f} (medians)")
sys.exit(min(failed, 1))
