"""Show: the published crates as a stranger gets them. Packages all crates, unpacks them outside the
workspace, and builds and runs the programs of the book's pages "From `cargo new`" against them.

    python3 tests/shows/packages.py [--release] [DIR]

Prints for each program its lines, the crates in its tree, the processor time of its build, the size
of its binary, and the time from its start to its first line. The programs share the builds of the
crates that they depend on, and the first one starts from nothing. Without the index of crates.io they
are built from the crates that are on this machine. The packages of the workspace itself come from DIR,
since they are not published.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import outside

PROGRAMS = ["divide_and_conquer", "master_worker", "processes", "actors", "singleton"]
DEPENDENCIES = [
    'serde = { version = "1", features = ["derive"] }',
    'springtide = "0.1"',
    'tokio = { version = "1", features = ["macros", "rt"] }',
]

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--release", action="store_true", help="build with the release profile")
parser.add_argument("dir", nargs="?", type=pathlib.Path, help="directory for packages and programs")
args = parser.parse_args()
work = args.dir or pathlib.Path(tempfile.mkdtemp(prefix="springtide-packages-"))
work.mkdir(parents=True, exist_ok=True)
work = work.resolve()

paths = outside.package(work)
target = work / "target"
shutil.rmtree(target, ignore_errors=True)
print(f"{'program':20} {'lines':>5} {'crates':>6} {'build CPU':>10} {'binary':>9} {'first line':>10}")
failed = 0
for program in PROGRAMS:
    folder = work / program
    outside.write_program(folder, outside.ROOT / "apps/springtide/examples" / f"{program}.rs", DEPENDENCIES, paths)
    cpu = outside.build(folder, target, ["--release"] if args.release else [])
    if cpu is None:
        failed += 1
        print(f"{program:20} does not build")
        continue
    binary = target / ("release" if args.release else "debug") / program
    began = time.monotonic()
    run = subprocess.Popen([binary], cwd=folder, stdout=subprocess.PIPE, text=True, env=os.environ | {"TMPDIR": str(work)})
    line = run.stdout.readline().strip()
    first = time.monotonic() - began
    run.stdout.read()
    failed += run.wait() != 0 or not line
    print(
        f"{program:20} {outside.lines_of(folder / 'src/main.rs'):5} {outside.crates_of(folder):6}"
        f" {cpu:8.0f} s {binary.stat().st_size / 1e6:6.0f} MB {first:8.2f} s  {line}",
        flush=True,
    )
if not args.dir:
    shutil.rmtree(work)
sys.exit(failed > 0)
