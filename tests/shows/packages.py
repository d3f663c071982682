"""Show: the published crates as a stranger gets them. Packages all crates, unpacks them outside the
workspace, and builds and runs the programs of the book's pages "From `cargo new`" against them.

    python3 tests/shows/packages.py [--release] [DIR]

Prints for each program its lines, the crates in its tree, the processor time of its clean build, the
size of its binary, and the time from its start to its first line. Without the index of crates.io it
builds from the crates that are on this machine. The packages of the workspace itself come from DIR,
since they are not published.
"""

import argparse
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = ["divide_and_conquer", "master_worker", "processes", "actors"]

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--release", action="store_true", help="build with the release profile")
parser.add_argument("dir", nargs="?", type=pathlib.Path, help="directory for packages and programs")
args = parser.parse_args()
work = args.dir or pathlib.Path(tempfile.mkdtemp(prefix="springtide-packages-"))
work.mkdir(parents=True, exist_ok=True)

target = work / "package-target"
subprocess.run(
    ["cargo", "package", "--workspace", "--exclude", "springtide-tests", "--exclude", "springtide-judge"]
    + ["--no-verify", "--allow-dirty", "--offline", "-q", "--target-dir", target],
    cwd=ROOT, check=True,
)
crates = work / "crates"
shutil.rmtree(crates, ignore_errors=True)
crates.mkdir()
paths = {}
for file in sorted((target / "package").glob("*.crate")):
    with tarfile.open(file) as archive:
        archive.extractall(crates, filter="data")
    folder = file.name.removesuffix(".crate")
    paths[folder.rsplit("-", 1)[0]] = crates / folder
print(f"{len(paths)} packages, {sum(f.stat().st_size for f in (target / 'package').glob('*.crate')) / 1e6:.1f} MB")

patches = "".join(f'{name} = {{ path = "{path}" }}\n' for name, path in paths.items())
print(f"{'program':20} {'lines':>5} {'crates':>6} {'build CPU':>10} {'binary':>9} {'first line':>10}")
failed = 0
for program in PROGRAMS:
    folder = work / program
    (folder / "src").mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / "apps/springtide/examples" / f"{program}.rs", folder / "src/main.rs")
    shutil.copy(ROOT / "Cargo.lock", folder / "Cargo.lock")
    (folder / "Cargo.toml").write_text(
        f'[package]\nname = "{program}"\nversion = "0.1.0"\nedition = "2024"\n\n[workspace]\n\n[dependencies]\n'
        'serde = { version = "1", features = ["derive"] }\nspringtide = "0.1"\n'
        'tokio = { version = "1", features = ["macros", "rt"] }\n\n[patch.crates-io]\n' + patches
    )
    flags = ["--release"] if args.release else []
    out = work / "target" / program
    shutil.rmtree(out, ignore_errors=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    built = subprocess.run(["cargo", "build", "--offline", "-q", "--target-dir", out, *flags], cwd=folder)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if built.returncode:
        failed += 1
        print(f"{program:20} does not build")
        continue
    tree = subprocess.run(
        ["cargo", "tree", "--offline", "-e", "normal", "--prefix", "none", "--no-dedupe"],
        cwd=folder, check=True, capture_output=True, text=True,
    ).stdout
    binary = out / ("release" if args.release else "debug") / program
    began = time.monotonic()
    run = subprocess.Popen([binary], cwd=folder, stdout=subprocess.PIPE, text=True, env=os.environ | {"TMPDIR": str(work)})
    line = run.stdout.readline().strip()
    first = time.monotonic() - began
    run.stdout.read()
    failed += run.wait() != 0 or not line
    lines = sum(bool(text.strip()) and not text.strip().startswith("//") for text in (folder / "src/main.rs").open())
    print(
        f"{program:20} {lines:5} {len({text.split(' (')[0] for text in tree.split(chr(10)) if text}):6}"
        f" {cpu:8.0f} s {binary.stat().st_size / 1e6:6.0f} MB {first:8.2f} s  {line}",
        flush=True,
    )
    if program != PROGRAMS[-1]:
        shutil.rmtree(out)
if not args.dir:
    shutil.rmtree(work)
sys.exit(failed > 0)
