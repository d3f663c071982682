"""Show: a node is killed while a job starts, again and again; then a client is killed, and its nodes are free soon.

    python3 tests/shows/starts.py target/release/springtide DIR [STARTS [LATEST]]   # DIR is made; about a minute

Prints how many of STARTS runs (15 unless given) failed, and how long three killed clients held their nodes. Each run loses a
node 20 ms to LATEST (60 ms unless given) after its command: a busy machine takes longer to start that.
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
    """A run whose start loses this node. Returns what it said if it failed."""
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
        # Each in turn: a node that dies too often within a minute is not started at once.
        names = sorted(grid.nodes())
        nodes = [names[n % len(names)] for n in range(int(starts))]
        failed = [told for node in nodes if (told := start(grid, node, draw.uniform(0.02, float(latest) / 1000)))]
        for told in failed:
            print("   ", told)
        grid.say(f"{len(failed)} of {starts} runs failed of a node's death at their start")
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
