"""What shows of packages share: the crates of the workspace as packages, and clean builds outside it."""

import resource
import shutil
import subprocess
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def package(work):
    """Packages all crates that are published, and unpacks them. Returns the packages' folders by name."""
    target = work / "package-target"
    subprocess.run(
        ["cargo", "package", "--workspace", "--exclude", "springtide-tests", "--exclude", "springtide-judge"]
        + ["--no-verify", "--allow-dirty", "--offline", "-q", "--target-dir", target],
        cwd=ROOT, check=True,
    )
    crates = work / "crates"
    shutil.rmtree(crates, ignore_errors=True)
    crates.mkdir()
    paths, size = {}, 0
    for file in sorted((target / "package").glob("*.crate")):
        with tarfile.open(file) as archive:
            archive.extractall(crates, filter="data")
        folder = file.name.removesuffix(".crate")
        paths[folder.rsplit("-", 1)[0]] = crates / folder
        size += file.stat().st_size
    print(f"{len(paths)} packages, {size / 1e6:.1f} MB", flush=True)
    return paths


def write_program(folder, source, dependencies, paths=None):
    """Writes a program outside the workspace. `paths` are packages that crates.io does not have."""
    (folder / "src").mkdir(parents=True, exist_ok=True)
    shutil.copy(source, folder / "src/main.rs")
    manifest = f'[package]\nname = "{folder.name}"\nversion = "0.1.0"\nedition = "2024"\n\n[workspace]\n\n[dependencies]\n'
    manifest += "".join(f"{line}\n" for line in dependencies)
    if paths:
        shutil.copy(ROOT / "Cargo.lock", folder / "Cargo.lock")
        manifest += "\n[patch.crates-io]\n"
        manifest += "".join(f'{name} = {{ path = "{path}" }}\n' for name, path in paths.items())
    (folder / "Cargo.toml").write_text(manifest)


def build(folder, target, flags):
    """Builds a program. Returns the processor time in seconds; None if it fails."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    built = subprocess.run(["cargo", "build", "--offline", "-q", "--target-dir", target, *flags], cwd=folder)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return None if built.returncode else cpu


def crates_of(folder):
    """The number of crates in a program's tree, without those of build scripts and tests."""
    tree = subprocess.run(
        ["cargo", "tree", "--offline", "-e", "normal", "--prefix", "none", "--no-dedupe"],
        cwd=folder, check=True, capture_output=True, text=True,
    ).stdout
    return len({line.split(" (")[0] for line in tree.split("\n") if line})


def lines_of(source, comment="//"):
    """The number of lines with code."""
    lines = (line.strip() for line in source.read_text().splitlines())
    return sum(bool(line) and not line.startswith(comment) for line in lines)
