"""Show: nodes with a quarter of a processor each. Free nodes appear, and the job grows. Then one node
gets three competing processes (`hog`) or a fifth of its quota (`quota`). The job must remove and
replace the slow node, and take it back after the load has ended and another node has left.

    sudo python3 tests/shows/load.py target/release/springtide DIR hog|quota

The show creates DIR and takes two and a half minutes. It creates CPU quotas below /sys/fs/cgroup
(version 1 or 2) and removes them at the end.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

from grid import Grid

PERIOD_US, FULL_US, LESS_US = 20_000, 5_000, 1_000
LOADED, LOAD_FROM, LOAD_UNTIL, CHANGE_AT, END_AT = "ams-2", 23, 63, 113, 135


class Quota:
    """A group of processes that share a fraction of a processor."""

    def __init__(self, name):
        first = Path("/sys/fs/cgroup/cpu")
        self.is_first = (first / "cpu.cfs_quota_us").exists()
        top = first if self.is_first else Path("/sys/fs/cgroup")
        self.path = top / f"springtide-show-{os.getpid()}-{name}"
        try:
            if not self.is_first:
                (top / "cgroup.subtree_control").write_text("+cpu")
            self.path.mkdir()
            self.set(FULL_US)
        except OSError as error:
            sys.exit(f"this machine gives no CPU quotas here ({error}): run as root, where cgroups may be written")

    def set(self, us):
        if self.is_first:
            (self.path / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (self.path / "cpu.cfs_quota_us").write_text(str(us))
        else:
            (self.path / "cpu.max").write_text(f"{us} {PERIOD_US}")

    def take(self, pid):
        (self.path / "cgroup.procs").write_text(str(pid))

    def remove(self):
        for _ in range(100):
            try:
                return self.path.rmdir()
            except OSError:
                time.sleep(0.1)


def main(binary, directory, kind):
    if kind not in ("hog", "quota"):
        sys.exit(f"hog or quota, not {kind}")
    quotas, hogs = {}, []
    try:
        with Grid(binary, directory, [("ams", 3), ("bud", 3)]) as grid:
            for node, pid in sorted(grid.nodes().items()):
                quotas[node] = Quota(node)
                quotas[node].take(pid)
            grid.node("drain", "ams-3", "bud-3")
            job = ["barnes-hut", "--bodies", "60000", "--theta", "0.2", "--steps", "100000"]
            grid.run(*job, "--period", "3s", "--max-nodes", "5", "--set", "quarantine_s=40")
            began, root = time.monotonic(), grid.root()
            grid.say(f"the root runs on {root}; from here on seconds of the job")
            grid.began = began
            at = lambda second: time.sleep(max(0, began + second - time.monotonic()))
            at(3)
            grid.node("undrain", "ams-3", "bud-3")
            at(LOAD_FROM)
            if kind == "hog":
                for _ in range(3):
                    hogs.append(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
                    quotas[LOADED].take(hogs[-1].pid)
            else:
                quotas[LOADED].set(LESS_US)
            grid.say(f"the load on {LOADED} begins")
            at(LOAD_UNTIL)
            for hog in hogs:
                hog.kill()
                hog.wait()
            quotas[LOADED].set(FULL_US)
            grid.say(f"the load on {LOADED} ends")
            at(CHANGE_AT)
            grid.node("drain", "bud-3")
            at(END_AT)
            grid.job.send_signal(2)
            grid.job.wait(60)
            for line in grid.text("job.err").splitlines():
                if any(part in line for part in ("leaves the job", "joins the job", "removed ", "asked for", "root moves")):
                    print("   ", line)
            grid.tell_log()
    finally:
        for hog in hogs:
            hog.kill()
        for quota in quotas.values():
            quota.remove()


main(*sys.argv[1:])
