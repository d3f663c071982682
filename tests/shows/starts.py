"""Show: nodes are killed while jobs start, and clients are killed whose nodes must be free soon.

    python3 tests/shows/starts.py target/release/springtide DIR [STARTS [LATEST]]

The show creates DIR and takes about a minute. It prints how many of STARTS runs (default 15) failed,
and how long three killed clients held their nodes. Each run loses a node between 20 ms and LATEST
(default 60 ms) after its command begins. On a busy machine, LATEST must be larger.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time

from grid import Grid

JOB = ["queens", "--size", "11"]
ENDLESS = ["queens", "--size", "18"]


def idle(grid):
    _, text = grid.told("node", "list", "--config", grid.file, "--json")
    return [node["node"] for node in json.loads(text)["nodes"] if node["state"] == "idle"]


def start(grid, node, after):
    """Kills this node while a run starts. Returns the error if the run fails."""
    before = grid.nodes()
    line = [grid.binary, "run", *JOB, "--json", "--timeout", "60s", "--config", grid.file]
    run = subprocess.Popen([str(word) for word in line], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(after)
    os.kill(before[node], signal.SIGKILL)
    out, err = run.communicate(timeout=120)
    grid.wait("all nodes are back", lambda: len(idle(grid)) == len(before))
    if run.returncode:
        return f"{node} killed after {1000 * after:.0f} ms: exit {run.returncode}: {err.strip()[-300:]}"
    return None


def main(binary, directory, starts=15, latest=60):
    draw = random.Random(1)
    with Grid(binary, directory, [("ams", 2), ("bud", 2), ("del", 2)]) as grid:
        # Each node in turn: a node that fails often within a minute is restarted with a delay.
        names = sorted(grid.nodes())
        nodes = [names[n % len(names)] for n in range(int(starts))]
        failed = [error for node in nodes if (error := start(grid, node, draw.uniform(0.02, float(latest) / 1000)))]
        for error in failed:
            print("   ", error)
        grid.say(f"{len(failed)} of {starts} runs failed because a node died at their start")
        slow = 0
        for job in (ENDLESS, ENDLESS, ENDLESS):
            client = grid.run(*job)
            client.kill()
            client.wait()
            killed = time.monotonic()
            grid.wait("the nodes are free", lambda: len(idle(grid)) == len(names))
            took = time.monotonic() - killed
            slow += took > 10
            grid.say(f"a killed client held its nodes for {took:.1f} s")
            subprocess.run(["rm", "-rf", str(grid.dir / "out")], check=True)
        if failed or slow:
            sys.exit(1)


main(*sys.argv[1:])
