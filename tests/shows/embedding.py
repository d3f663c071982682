"""Show: the same small program with Springtide, kameo, Ray and Dask. It squares one number and then
1,000 numbers on two worker processes of this host.

    python3 tests/shows/embedding.py [--release] [--runs 5] [--only ray,dask] DIR

Prints for each its lines, the time from the start of the program to the first and to the last result,
the processor time (user and system) of its clean build, the crates or Python packages that it brings,
and the size of its binary or of these packages. Times are medians of the runs.

DIR keeps what is built and installed, except the build of a program, which starts from nothing.
Ray and Dask come from PyPI, each into a virtual environment of its own, and kameo from crates.io. What
cannot be had is skipped with a printed reason. Springtide is built against its packages. kameo finds its
peers by multicast, which stays in a network namespace of its own.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import outside

SQUARES = Path(__file__).resolve().parent / "squares"
SUM = f"sum {sum(x * x for x in range(1000))}"
PYTHON = {"ray": "ray", "dask": "dask[distributed]"}
DEPENDENCIES = {
    "springtide": ['springtide = "0.1"', 'tokio = { version = "1", features = ["macros", "rt"] }'],
    "kameo": [
        'serde = { version = "1", features = ["derive"] }',
        'futures = "0.3"',
        'kameo = { version = "0.22", features = ["remote"] }',
        'tokio = { version = "1", features = ["macros", "process", "rt-multi-thread", "time"] }',
    ],
}
# The longest run of a program, in seconds.
TIMEOUT = 120
# A network with one address, on which multicast works.
NAMESPACE = (
    "ip link set lo up && ip link add near type veth peer name far && ip address add 10.255.255.1/24 dev near"
    ' && ip link set near up && ip link set far up && ip route add 224.0.0.0/4 dev near && exec "$0" "$@"'
)


def run_once(command, folder):
    """Runs a program. Returns the seconds to its first and to its last result, or None if it fails."""
    log = folder / "stderr.txt"
    with log.open("w") as errors, tempfile.TemporaryDirectory(prefix="show-") as home:
        # Ray does not report to its makers, and leaves no files.
        environment = os.environ | {"HOME": home, "RAY_TMPDIR": home, "RAY_USAGE_STATS_ENABLED": "0"}
        began = time.monotonic()
        child = subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        )
        limit = threading.Timer(TIMEOUT, child.kill)
        limit.start()
        times = []
        for expected in ["first 49", SUM]:
            line = child.stdout.readline().strip()
            times.append(time.monotonic() - began)
            if line != expected:
                limit.cancel()
                child.kill()
                print(f"{command[-1].name} printed {line!r} instead of {expected!r}: {log.read_text().strip()}")
                return None
        child.stdout.read()
        limit.cancel()
        if child.wait():
            print(f"{command[-1].name} failed: {log.read_text().strip()}")
            return None
    return times


def row(name, source, command, build, brought, megabytes, runs):
    folder = command[-1].parent
    # A run that fails is printed and left out: processes that find each other may do so too late.
    times = [seconds for seconds in (run_once(command, folder) for _ in range(runs)) if seconds]
    if not times:
        sys.exit(f"no run of {name} ended")
    first, last = (statistics.median(column) for column in zip(*times))
    lines = outside.lines_of(source, "#" if source.suffix == ".py" else "//")
    build = "" if build is None else f"{build:.0f} s"
    print(f"{name:18} {lines:5} {first:8.2f} s {last:8.2f} s {build:>9} {brought:>12} {megabytes:6.0f} MB", flush=True)


def rust(name, work, flags, runs, paths):
    folder = work / f"squares-{name}"
    outside.write_program(folder, SQUARES / f"{name}.rs", DEPENDENCIES[name], paths)
    if not paths and subprocess.run(["cargo", "fetch", "-q"], cwd=folder).returncode:
        print(f"skipped: {name} cannot be fetched")
        return
    target = folder / "target"
    shutil.rmtree(target, ignore_errors=True)
    cpu = outside.build(folder, target, flags)
    if cpu is None:
        sys.exit(f"the program of {name} does not build")
    binary = target / ("release" if flags else "debug") / folder.name
    command = [binary]
    if name == "kameo":
        command = ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", NAMESPACE, binary]
        if subprocess.run([*command[:-1], "true"], capture_output=True).returncode:
            print(f"skipped: {name} needs a network namespace, which this machine does not allow")
            return
    crates = f"{outside.crates_of(folder)} crates"
    row(name, SQUARES / f"{name}.rs", command, cpu, crates, binary.stat().st_size / 1e6, runs)


def python(name, work, runs):
    environment = work / f"venv-{name}"
    interpreter = environment / "bin/python"
    pip = [interpreter, "-m", "pip", "--disable-pip-version-check"]
    if not (environment / "installed").exists():
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
        if subprocess.run([*pip, "install", "-q", PYTHON[name]]).returncode:
            print(f"skipped: {name} cannot be installed")
            return
        (environment / "installed").touch()
    shown = subprocess.run([*pip, "list", "--format=freeze"], check=True, capture_output=True, text=True).stdout
    packages = [line for line in shown.split() if not line.startswith(("pip=", "setuptools="))]
    version = next(line.split("==")[1] for line in packages if line.startswith((f"{name}=",)))
    files = (file for file in environment.glob("lib/python*/site-packages/**/*") if file.is_file())
    size = sum(f.stat().st_size for f in files if not {"pip", "setuptools", "__pycache__"} & set(f.parts)) / 1e6
    source = work / f"with_{name}.py"
    source.write_text((SQUARES / source.name).read_text())
    row(f"{name} {version}", source, [interpreter, source], None, f"{len(packages)} packages", size, runs)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--release", action="store_true", help="build with the release profile")
    parser.add_argument("--runs", type=int, default=5, help="runs of each program")
    parser.add_argument("--only", help="only these, separated by commas")
    parser.add_argument("dir", type=Path, help="directory for packages and programs")
    args = parser.parse_args()
    only = args.only.split(",") if args.only else [*DEPENDENCIES, *PYTHON]
    args.dir.mkdir(parents=True, exist_ok=True)
    work, flags = args.dir.resolve(), ["--release"] if args.release else []
    load = os.getloadavg()[0]
    print(f"{os.cpu_count()} processors, load before the start {load:.1f}, {time.strftime('%Y-%m-%d')}")
    paths = outside.package(work) if "springtide" in only else None
    print(f"{'':18} {'lines':>5} {'first':>10} {'last':>10} {'build CPU':>9} {'brings':>12} {'size':>9}")
    for name in only:
        if name in PYTHON:
            python(name, work, args.runs)
        else:
            rust(name, work, flags, args.runs, paths if name == "springtide" else None)


if __name__ == "__main__":
    main()
