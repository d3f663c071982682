"""Show: 3 clusters of 4 workers run Barnes-Hut. One node is drained, the process of a sub-coordinator is
killed, a whole cluster is killed, and four nodes join.

    python3 tests/shows/losses.py target/release/springtide DIR

The show creates DIR and takes half a minute. The answer must equal that of a sequential run. `why`
prints what happened.
"""

import json
import subprocess
import sys

from grid import Grid

JOB = ["barnes-hut", "--bodies", "20000", "--steps", "150"]


def main(binary, directory):
    with Grid(binary, directory, [("ams", 4), ("bud", 4), ("cre", 4), ("del", 4)]) as grid:
        alone = subprocess.run([grid.binary, "run", *JOB, "--sequential", "--json"], capture_output=True, text=True)
        alone = json.loads(alone.stdout)["checksum"]
        spare = [f"del-{n}" for n in range(1, 5)]
        grid.node("drain", *spare)
        job = grid.run(*JOB, "--period", "1s", "--min-nodes", "10", "--max-nodes", "12")
        grid.wait("iterations", lambda: "iteration 10 took" in grid.text("job.err"))
        root = grid.root()
        grid.say(f"the root runs on {root}")
        grid.node("drain", next(node for node in ("ams-3", "ams-4") if node != root))
        grid.kill(next(node for node in ("bud-1", "ams-1") if node != root))
        grid.wait("iterations", lambda: "iteration 50 took" in grid.text("job.err"))
        cluster = next(cluster for cluster in ("cre", "bud") if not grid.root().startswith(cluster))
        grid.kill(*[node for node in sorted(grid.nodes()) if node.startswith(cluster)])
        grid.node("undrain", *spare)
        job.wait(300)
        result = json.loads(grid.text("job.out"))
        grid.say(f"exit {job.returncode}; checksum alone {alone}, grid {result['checksum']}, equal {alone == result['checksum']}")
        for line in grid.text("job.err").splitlines():
            if any(part in line for part in ("leaves the job", "was lost", "joins the job", "succeeds it")):
                print("   ", line)
        grid.tell_log()
        if job.returncode or alone != result["checksum"]:
            sys.exit(1)


main(*sys.argv[1:])
