#!/usr/bin/env python3
"""The cost of a build, crate by crate, and a comparison of the kernels of two builds.

    python3 tests/shows/build.py cost --profile release -- cargo build --workspace
    python3 tests/shows/build.py kernels NEW OLD [--pairs 10] [--only fib-42,tsp]

`cost` runs the cargo command with an empty target directory (--target names one that is kept). It wraps
the compiler to measure the processor time of each compilation, independent of other load. It prints own
and third-party crates separately, their ratio, the most expensive crates, and the size of the program.

`kernels` alternates between two `springtide` binaries, on one thread and without a grid. For each
kernel it prints the ratio of the processor times: the median of the pairs, and its 95 % interval by
ranks. It marks ratios above 1.03 and then exits with 1.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RECORDS = "SPRINGTIDE_BUILD_RECORDS"
ROOT = Path(__file__).resolve().parents[2]
LIMIT = 1.03

# Arguments of the binary, by name.
KERNELS = {
    "barnes-hut-1e5": ["run", "barnes-hut", "--sequential", "--bodies", "100000", "--steps", "2"],
    "fib-42": ["run", "fib", "--sequential", "--n", "42"],
    "fib-38-grain-1": ["run", "fib", "--sequential", "--n", "38", "--grain", "1"],
    "queens-15": ["run", "queens", "--sequential", "--size", "15"],
    "integrate": ["run", "integrate", "--sequential"],
    "tsp": ["run", "tsp", "--sequential"],
    "solve-ssn-300": ["solve", "../shared/data/smps/ssn", "--sequential", "--scenarios", "300"],
}


def cpu(usage):
    return usage.ru_utime + usage.ru_stime


def compile_and_record(command):
    """Wraps the compiler: runs it and records its processor time."""
    child = subprocess.Popen(command, close_fds=False)  # cargo's jobserver needs them
    _, status, usage = os.wait4(child.pid, 0)
    names = [command[n + 1] for n, word in enumerate(command[:-1]) if word == "--crate-name"]
    if names and "___" not in names[0]:
        kind = "test" if "--test" in command else "lib"
        record = {"crate": names[0], "kind": kind, "cpu": cpu(usage), "rss": usage.ru_maxrss}
        with open(os.environ[RECORDS], "a", encoding="utf-8") as out:
            out.write(json.dumps(record) + "\n")
    return os.waitstatus_to_exitcode(status)


def is_own(record):
    return record["crate"].startswith("springtide") or record["crate"] in ("all", "unit")


def cost(arguments):
    target = Path(arguments.target or tempfile.mkdtemp(prefix="springtide-build-"))
    records = target / "records.jsonl"
    target.mkdir(parents=True, exist_ok=True)
    records.unlink(missing_ok=True)
    command = [*arguments.command, "--profile", arguments.profile]
    environment = {
        **os.environ,
        "CARGO_TARGET_DIR": str(target),
        "CARGO_INCREMENTAL": "0",
        "RUSTC_WRAPPER": str(Path(__file__).resolve()),
        RECORDS: str(records),
    }
    began = time.monotonic()
    child = subprocess.Popen(command, cwd=ROOT, env=environment)
    _, status, usage = os.wait4(child.pid, 0)
    wall = time.monotonic() - began
    if status:
        sys.exit(f"the build failed: {' '.join(command)}")
    rows = [json.loads(line) for line in records.read_text(encoding="utf-8").splitlines()]
    own = sum(row["cpu"] for row in rows if is_own(row))
    others = sum(row["cpu"] for row in rows if not is_own(row))
    rest = cpu(usage) - own - others
    print(f"{' '.join(command)}: {wall / 60:.1f} min on {os.cpu_count()} processors, {cpu(usage) / 60:.1f} CPU min")
    print(f"own crates {own:.0f} s, third-party crates {others:.0f} s, build scripts and cargo {rest:.0f} s")
    print(f"own / third-party {own / others:.2f}")
    for row in sorted(rows, key=lambda row: -row["cpu"])[: arguments.rows]:
        print(f"{row['cpu']:8.1f} s  {row['rss'] / 1024:6.0f} MiB  {row['crate']} ({row['kind']})")
    for folder in ("release", "dist", "debug"):
        program = target / folder / "springtide"
        if program.exists():
            print(f"{program.stat().st_size / 1e6:.0f} MB  {folder}/springtide")
    if not arguments.target:
        shutil.rmtree(target)


def run_once(binary, words, folder):
    child = subprocess.Popen([binary, *words], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    errors = child.stderr.read()
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        sys.exit(f"the command failed: {binary} {' '.join(words)}\n{errors.decode()}")
    return cpu(usage)


def interval(ratios):
    """The 95 % interval of the median by ranks (normal approximation of the binomial)."""
    ordered, count = sorted(ratios), len(ratios)
    half = 0.98 * count**0.5
    low = max(0, int(count / 2 - half))
    return ordered[low], ordered[count - 1 - low]


def kernels(arguments):
    chosen = arguments.only.split(",") if arguments.only else list(KERNELS)
    slow = False
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen:
            words = KERNELS[name]
            if name.startswith("solve") and not (ROOT / words[1]).exists():
                print(f"{name}: skipped: {words[1]} does not exist")
                continue
            if words[0] == "run":
                words = [*words, "-q"]
            else:
                words = [words[0], str((ROOT / words[1]).resolve()), *words[2:]]
            ratios, news, olds = [], [], []
            for n in range(arguments.pairs):
                # Neither binary is always the first of a pair.
                order = [(arguments.new, news), (arguments.old, olds)]
                for binary, times in order if n % 2 == 0 else reversed(order):
                    times.append(run_once(os.path.abspath(binary), words, folder))
                ratios.append(news[-1] / olds[-1])
            low, high = interval(ratios)
            median = statistics.median(ratios)
            slow |= median > LIMIT
            mark = "  ABOVE" if median > LIMIT else ""
            print(
                f"{name:16} {statistics.median(news):8.2f} s / {statistics.median(olds):8.2f} s  "
                f"{median:.3f} [{low:.3f}, {high:.3f}]  best / best {min(news) / min(olds):.3f}{mark}",
                flush=True,
            )
    return 1 if slow else 0


def main():
    # As the compiler's wrapper: the arguments are the compiler and its own.
    if RECORDS in os.environ:
        return compile_and_record(sys.argv[1:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    part = parts.add_parser("cost")
    part.add_argument("--profile", default="release")
    part.add_argument("--target", help="directory of the build [default: a temporary one]")
    part.add_argument("--rows", type=int, default=25)
    part.add_argument("command", nargs=argparse.REMAINDER)
    part = parts.add_parser("kernels")
    part.add_argument("new")
    part.add_argument("old")
    part.add_argument("--pairs", type=int, default=10)
    part.add_argument("--only")
    arguments = parser.parse_args()
    if arguments.part == "kernels":
        return kernels(arguments)
    arguments.command = [word for word in arguments.command if word != "--"]
    return cost(arguments)


if __name__ == "__main__":
    sys.exit(main())
