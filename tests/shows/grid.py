"""A grid on this machine for the shows: its config, its processes, and a user's commands.

Uses only Python's standard library. Independent of the single shows.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path


class Grid:
    """Runs `springtide up` with these clusters, and ends all its processes even if a show fails."""

    def __init__(self, binary, directory, clusters, lines="", options=()):
        self.binary, self.dir = Path(binary).resolve(), Path(directory).resolve()
        self.dir.mkdir(parents=True)
        self.file = self.dir / "grid.toml"
        one = '[[cluster]]\nname = "{0}"\nnodes = {1}\nfiles = "{2}/files/{0}"\n'
        self.file.write_text(lines + "".join(one.format(c, n, self.dir) for c, n in clusters))
        self.options = options
        self.began = time.monotonic()
        self.job = None

    def __enter__(self):
        self.up = self._start(["up", *self.options, self.file], "up")
        try:
            self.wait("the grid is up", lambda: "Ctrl-C ends the grid" in self.text("up.err"))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in (self.job, self.up):
            if process and process.poll() is None:
                process.send_signal(signal.SIGINT)
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    process.kill()
        left = self.nodes()
        for pid in left.values():
            os.kill(pid, signal.SIGKILL)
        self.say(f"{len(left)} node processes left")

    def _start(self, line, name):
        line = [self.binary, *line]
        out, err = (open(self.dir / f"{name}.{kind}", "w") for kind in ("out", "err"))
        return subprocess.Popen([str(word) for word in line], cwd=self.dir, stdout=out, stderr=err)

    def say(self, text):
        print(f"{time.monotonic() - self.began:7.1f} s  {text}", flush=True)

    def text(self, name):
        return (self.dir / name).read_text()

    def wait(self, what, is_so, seconds=120):
        until = time.monotonic() + seconds
        while not is_so():
            if time.monotonic() > until:
                sys.exit(f"not in {seconds} s: {what}\n{self.text('up.err')[-2000:]}")
            time.sleep(0.05)

    def run(self, *line):
        """Starts the job on the grid, with the run directory `out`."""
        self.job = self._start(["run", *line, "-v", "--json", "--config", self.file, "--out", self.dir / "out"], "job")
        self.wait("the job runs", lambda: "the root runs on" in self.text("job.err"))
        return self.job

    def root(self):
        """The node of the root, from the last message of the job."""
        return self.text("job.err").rsplit("the root runs on ", 1)[1].split(",")[0].split()[0]

    def told(self, *line):
        """The exit code and the output of a command."""
        done = subprocess.run([str(word) for word in (self.binary, *line)], cwd=self.dir, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    def node(self, what, *nodes):
        code, text = self.told("node", what, *nodes, "--config", self.file)
        self.say(f"node {what} {' '.join(nodes)}: {' '.join(text.split()) or 'done'} (exit {code})")

    def nodes(self):
        """The process ids of the running nodes, by name."""
        start, found = f"{self.dir}/.springtide/local/node/", {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    words = (entry / "cmdline").read_text().split("\0")
                except OSError:
                    continue
                for word in words:
                    if word.startswith(start) and word.endswith("/node.toml"):
                        found[word[len(start) :].split("/")[0]] = int(entry.name)
        return found

    def kill(self, *nodes):
        running = self.nodes()
        for node in nodes:
            os.kill(running[node], signal.SIGKILL)
        self.say(f"kill -9 {' '.join(nodes)}")

    def tell_log(self):
        """Prints the output of `why` and `replay` for the run."""
        for command in ("why", "replay"):
            code, text = self.told(command, self.dir / "out")
            print(f"--- springtide {command} (exit {code})\n{text}", flush=True)
