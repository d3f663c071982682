"""Show: ssn with 10,000 scenarios on 3 clusters while workers of unequal speeds join, slow down, leave
and crash.

    python3 tests/shows/solve.py target/release/springtide DIR ../shared/data/smps/ssn

The show creates DIR and takes about five minutes. The answer must have the same bits as that of one
thread. The controller's trace shows the forecast and the measured time of each iterate.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time

from grid import Grid

JOB = ["--scenarios", "10000", "--tasks", "200", "--estimate", "20000"]


class Brake:
    """Lets a process run for a share of the time until the process or the show ends."""

    def __init__(self, pid):
        self.pid, self.share = pid, 1.0
        threading.Thread(target=self.work, daemon=True).start()

    def work(self):
        try:
            while True:
                time.sleep(0.05 * self.share)
                if self.share < 1.0:
                    os.kill(self.pid, signal.SIGSTOP)
                    time.sleep(0.05 * (1.0 - self.share))
                    os.kill(self.pid, signal.SIGCONT)
        except ProcessLookupError:
            pass


def main(binary, directory, model):
    model = os.path.abspath(model)
    alone = subprocess.run(
        [binary, "solve", model, *JOB, "--sequential", "--json", "--out", directory + "-alone"], capture_output=True, text=True
    )
    alone = json.loads(alone.stdout)
    print(f"alone: {alone['run']['wall_s']:.1f} s, objective {alone['objective']}, {alone['iterations']} iterations", flush=True)
    # All nodes share two cores. Each gets less than its part, so that the given speeds hold.
    with Grid(binary, directory, [("ams", 3), ("bud", 4), ("cre", 4)], "[work]\nshare = 0.14\n") as grid:
        spare = [f"cre-{n}" for n in range(1, 5)]
        grid.node("drain", *spare)
        job = grid.run("solve", model, *JOB, "--explain", "--isolate", "--period", "3s", "--min-nodes", "7")
        done = lambda leg, iterate: f"leg {leg}, iterate {iterate}," in grid.text("job.err")
        root = grid.root()
        others = [node for node in sorted(grid.nodes()) if node != root and node not in spare]
        brakes = {node: Brake(pid) for node, pid in grid.nodes().items() if node in others}
        for node, share in zip(others[:3], (0.6, 0.3, 0.15)):
            brakes[node].share = share
            grid.say(f"{node} runs at {share} of its speed")
        grid.wait("iterates", lambda: done(0, 8), 300)
        grid.node("undrain", *spare)
        grid.wait("iterates", lambda: done(1, 2), 300)
        brakes[others[3]].share = 0.2
        grid.say(f"{others[3]} slows down to 0.2 of its speed")
        grid.wait("iterates", lambda: done(1, 6), 300)
        grid.node("drain", others[0])
        grid.kill(others[4])
        grid.wait("iterates", lambda: done(2, 2), 300)
        grid.kill(root)
        job.wait(600)
        result = json.loads(grid.text("job.out"))
        print("--- the controller's trace")
        for line in grid.text("job.err").splitlines():
            if any(part in line for part in ("predicted", "tasks: about", "joins the job", "leaves the job", "was lost", "the root runs")):
                print("   ", line)
        found = result["result"]
        same = result["checksum"] == alone["run"]["checksum"]
        print(f"objective {found['objective']} in {found['iterations']} iterations; estimate {found['estimate']}")
        print("controller", json.dumps({key: value for key, value in found["controller"].items() if key != "iterates"}))
        grid.say(f"exit {job.returncode}; checksum {result['checksum']}, alone {alone['run']['checksum']}, equal {same}")
        if job.returncode or not same:
            sys.exit(1)


main(*sys.argv[1:])
