"""Gravity of a Plummer sphere at equal errors of the forces, on one thread: Springtide compared with
pytreegrav, rebound and particular.

    python3 tests/shows/nbody.py --venv VENV --work DIR                # 1e5 bodies, about five minutes
    python3 tests/shows/nbody.py --venv VENV --work DIR --bodies 1000000 --peers pytreegrav --limit 100

All programs use the same positions (G = M = 1, Henon units, softening 0.01, seed 42). Each scans its
opening parameter over a fixed range, with each order of moments that it supports. A point has the CPU
seconds of tree and forces for all bodies, the least of the repeats. It also has the relative errors of
the acceleration of the same 1,000 random bodies (root mean square, median, 99th percentile). The
reference is a direct sum in double precision with the peer's own softening.

Seconds at a given error are interpolated between the points of one order, in log-log space. The
cheapest order counts. `<` means that its cheapest point is more exact, `>` that no point is as exact
(then the seconds are those of the best point).

Seconds are user time for the peers, and user plus system time for Springtide. A point that takes
longer than --limit ends the scan of a peer. pytreegrav and rebound are installed into VENV if they are
missing. A crate that is written into DIR builds particular. Peers that cannot be installed are named
and left out. --tree-speed names the release build of the example `tree_speed`; without it, cargo
builds the example.
"""

import argparse
import json
import math
import os
import resource
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve()
REPOSITORY = HERE.parents[2]
SOFTENING = 0.01
# A spline with this support has the depth of a Plummer potential of that softening (V. Springel, MNRAS 364, 1105, 2005).
SUPPORT = 2.8 * SOFTENING
SAMPLE = 1000
TARGETS = (1e-2, 1e-3, 1e-4)
PACKAGES = ("numpy", "pytreegrav", "rebound")
# Opening parameters, the cheapest first: Springtide's error of cells, the peers' angle theta.
SCANS = {
    "ours": {
        "mono": (0.1, 0.05, 0.03, 0.02, 0.01, 0.005, 0.0025, 0.0015, 0.001, 0.0005, 0.0002, 0.0001),
        "quad": (0.1, 0.03, 0.01, 0.003, 0.0015, 0.0008, 0.0004, 0.0002, 0.0001),
        "series": (0.1, 0.03, 0.01, 0.005, 0.003, 0.0015, 0.0008, 0.0004, 0.0002, 0.0001),
    },
    "pytreegrav": {
        "mono": (2.0, 1.4, 1.0, 0.7, 0.5, 0.35, 0.25),
        "quad": (2.0, 1.4, 1.0, 0.8, 0.6, 0.45, 0.35),
    },
    "rebound": {"mono": (1.6, 1.2, 0.9, 0.7, 0.5, 0.35, 0.25)},
    "particular": {"mono": (1.6, 1.2, 0.9, 0.7, 0.5, 0.35, 0.25)},
}


# Functions that run the peers, each in its own process in the environment


def user():
    return resource.getrusage(resource.RUSAGE_SELF).ru_utime


def pytreegrav(positions, masses, order):
    import numpy
    from pytreegrav import Accel

    def forces(positions, masses, theta):
        support = numpy.full(len(masses), SUPPORT)
        return Accel(positions, masses, support, theta=theta, method="tree", quadrupole=order == "quad")

    # The first call compiles.
    forces(positions[:1000], masses[:1000], 0.7)

    def point(theta, sample):
        start = user()
        all_of_them = forces(positions, masses, theta)
        return user() - start, all_of_them[sample]

    return point


def rebound(positions, masses, _order):
    from ctypes import byref

    import numpy
    import rebound

    simulation = rebound.Simulation()
    low, high = positions.min(), positions.max()
    simulation.root_size = 1.01 * 2 * max(-low, high)
    simulation.gravity = "tree"
    simulation.softening = SOFTENING
    for mass, (x, y, z) in zip(masses.tolist(), positions.tolist()):
        simulation.add(m=mass, x=x, y=y, z=z)

    def point(theta, sample):
        simulation.opening_angle2 = theta * theta
        start = user()
        rebound.clibrebound.reb_simulation_update_acceleration(byref(simulation))
        seconds = user() - start
        some = [simulation.particles[int(body)] for body in sample]
        return seconds, numpy.array([[body.ax, body.ay, body.az] for body in some])

    return point


def scan(peer, folder, order, angles, repeats, limit):
    """Runs a Python peer. Prints a JSON line per point, and writes the accelerations of the sample."""
    import numpy

    bodies = numpy.load(folder / "bodies.npy")
    sample = numpy.load(folder / "sample.npy")
    positions, masses = numpy.ascontiguousarray(bodies[:, :3]), numpy.ascontiguousarray(bodies[:, 6])
    point = {"pytreegrav": pytreegrav, "rebound": rebound}[peer](positions, masses, order)
    for number, theta in enumerate(angles):
        seconds, got = point(theta, sample)
        # Repeats only what does not take minutes.
        for _ in range(repeats - 1 if seconds < limit / 5 else 0):
            seconds = min(seconds, point(theta, sample)[0])
        file = folder / f"{peer}-{order}.{number}.npy"
        numpy.save(file, got)
        print(json.dumps({"opening": theta, "seconds": seconds, "file": str(file)}), flush=True)
        if seconds > limit:
            break


# The crate that runs `particular`

MANIFEST = """[package]
name = "peer"
version = "0.0.0"
edition = "2021"

[dependencies]
particular = "0.7"
ultraviolet = "0.9"

[profile.release]
lto = "fat"
codegen-units = 1

[workspace]
"""
# Arguments: file of bodies (float32 x, y, z, mass), output file, repeats, limit, angles. Prints a
# line "theta seconds" per point.
PROGRAM = """use particular::prelude::*;
use particular::sequential::BarnesHutSoftened;

fn user() -> f64 {
    // Ticks of user code of the process: field 14 of its stat, 100 a second.
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let rest = stat.rsplit(')').next().unwrap();
    rest.split_whitespace().nth(11).unwrap().parse::<f64>().unwrap() / 100.0
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let bytes = std::fs::read(&arguments[0]).unwrap();
    let numbers: Vec<f32> =
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    let bodies: Vec<([f32; 3], f32)> =
        numbers.chunks_exact(4).map(|b| ([b[0], b[1], b[2]], b[3])).collect();
    let (repeats, limit) = (arguments[2].parse::<u32>().unwrap(), arguments[3].parse::<f64>().unwrap());
    for (number, theta) in arguments[4..].iter().enumerate() {
        let mut least = f64::INFINITY;
        for repeat in 0..repeats {
            let mut method =
                BarnesHutSoftened { theta: theta.parse::<f32>().unwrap(), softening: SOFTENING_LENGTH };
            let mut all = Vec::new();
            // As often as needed for the clock to tell.
            let (start, mut times) = (user(), 0);
            while times == 0 || user() - start < 0.5 {
                all = bodies.iter().copied().accelerations(&mut method).collect::<Vec<[f32; 3]>>();
                times += 1;
            }
            least = least.min((user() - start) / f64::from(times));
            let bytes: Vec<u8> = all.iter().flatten().flat_map(|c| c.to_le_bytes()).collect();
            std::fs::write(format!("{}.{number}", arguments[1]), bytes).unwrap();
            if repeat == 0 && least > limit / 5.0 {
                break;
            }
        }
        println!("{theta} {least}");
        if least > limit {
            break;
        }
    }
}
"""


def build_particular(folder):
    crate = folder / "particular"
    (crate / "src").mkdir(parents=True, exist_ok=True)
    (crate / "Cargo.toml").write_text(MANIFEST)
    (crate / "src/main.rs").write_text(PROGRAM.replace("SOFTENING_LENGTH", str(SOFTENING)))
    target = crate / "target"
    command = ["cargo", "build", "--release", "-q", "--manifest-path", crate / "Cargo.toml", "--target-dir", target]
    subprocess.run(command, check=True, cwd=crate)
    return target / "release/peer"


# Errors


def plummer(numpy, square):
    softened = square + SOFTENING**2
    return 1 / (softened * numpy.sqrt(softened))


def spline(numpy, square):
    """The factor of the vector between two bodies, for the cubic spline."""
    r = numpy.sqrt(square)
    u = r / SUPPORT
    inner = (32 / 3 + u * u * (32 * u - 38.4)) / SUPPORT**3
    with numpy.errstate(divide="ignore", invalid="ignore"):
        outer = (64 / 3 - 48 * u + 38.4 * u**2 - 32 / 3 * u**3 - 1 / (15 * u**3)) / SUPPORT**3
        newton = 1 / (r * square)
    return numpy.where(u < 0.5, inner, numpy.where(u < 1, outer, newton))


def direct_sum(numpy, bodies, sample, kernel):
    """Accelerations of the sample from all bodies; `sample` are indices."""
    columns = [numpy.ascontiguousarray(bodies[:, axis]) for axis in range(3)]
    exact = numpy.empty((len(sample), 3))
    for row, body in enumerate(sample):
        away = [column - column[body] for column in columns]
        weight = bodies[:, 6] * kernel(numpy, away[0] ** 2 + away[1] ** 2 + away[2] ** 2)
        weight[body] = 0
        exact[row] = [weight @ one for one in away]
    return exact


def errors(numpy, got, exact):
    relative = numpy.sqrt(((got - exact) ** 2).sum(1) / (exact**2).sum(1))
    return {
        "rms": float(numpy.sqrt((relative**2).mean())),
        "median": float(numpy.median(relative)),
        "p99": float(numpy.quantile(relative, 0.99)),
    }


def at_error(points, target):
    """Seconds, median and p99 at this error, interpolated; "<" or ">" if it is outside the points."""
    points = sorted(points, key=lambda point: point["seconds"])
    # Keeps only points that are better than all cheaper ones.
    best = []
    for point in points:
        if not best or point["rms"] < best[-1]["rms"]:
            best.append(point)
    if best[0]["rms"] <= target:
        return {"sign": "<", **best[0]}
    for coarse, fine in zip(best, best[1:]):
        if fine["rms"] <= target:
            part = math.log(coarse["rms"] / target) / math.log(coarse["rms"] / fine["rms"])
            keys = ("seconds", "rms", "median", "p99")
            mid = {key: coarse[key] * (fine[key] / coarse[key]) ** part for key in keys}
            return {"sign": "", "order": fine["order"], **mid}
    return {"sign": ">", **best[-1]}


def cheapest(points, target):
    """The cheapest order that reaches the error, or else the one that comes closest."""
    orders = {point["order"] for point in points}
    found = [at_error([point for point in points if point["order"] == order], target) for order in orders]
    reached = [one for one in found if one["sign"] != ">"]
    return min(reached, key=lambda one: one["seconds"]) if reached else min(found, key=lambda one: one["rms"])


# The comparison


def ours(tree_speed, folder, order, openings, repeats):
    """The lines of the table of `tree_speed` as points."""
    prefix = folder / f"ours-{order}"
    listed = ",".join(map(str, openings))
    words = [f"input={folder / 'bodies.npy'}", f"order={order}", f"error={listed}", f"forces={prefix}", "sample=0", f"repeats={repeats}"]
    table = subprocess.run([tree_speed, *words], check=True, capture_output=True, text=True).stdout
    print("\n".join(line for line in table.splitlines() if line.startswith("peak")), file=sys.stderr)
    lines = [line for line in table.splitlines() if line.lower().startswith(order)]
    for number, (opening, line) in enumerate(zip(openings, lines, strict=True)):
        yield {"opening": opening, "seconds": float(line.split("|")[1].split()[-1]), "file": f"{prefix}.{number}"}


def run_particular(folder, program, angles, repeats, limit):
    words = [program, folder / "bodies.f32", folder / "particular-mono", str(repeats), str(limit), *map(str, angles)]
    told = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    for number, line in enumerate(told.splitlines()):
        opening, seconds = map(float, line.split())
        yield {"opening": opening, "seconds": seconds, "file": f"{folder}/particular-mono.{number}"}


def run_python(peer, folder, order, angles, repeats, limit):
    words = [sys.executable, HERE, "--scan", peer, order, "--work", folder, "--repeats", str(repeats), "--limit", str(limit)]
    one_thread = {name: "1" for name in ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    child = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ, **one_thread})
    for line in child.stdout:
        yield json.loads(line)
    if child.wait():
        raise subprocess.CalledProcessError(child.returncode, words)


def in_venv(venv):
    """Continues in the environment, with the packages that can be installed."""
    python = venv / "bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    for package in PACKAGES:
        if subprocess.run([python, "-c", f"import {package}"], stderr=subprocess.DEVNULL).returncode:
            if subprocess.run([python, "-m", "pip", "install", "-q", package]).returncode:
                print(f"{package} cannot be installed here", file=sys.stderr)
    if Path(sys.executable) != python.absolute():
        os.execv(python, [python, HERE, *sys.argv[1:]])


def build_ours(folder):
    subprocess.run(["cargo", "build", "--release", "-q", "-p", "springtide-barnes-hut", "--example", "tree_speed"], check=True, cwd=REPOSITORY)
    target = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target"))
    return target / "release/examples/tree_speed"


def version(peer, folder):
    import importlib.metadata

    if peer == "particular":
        lock = (folder / "particular/Cargo.lock").read_text().split('name = "particular"\n')[1]
        return lock.split('"')[1]
    return importlib.metadata.version(peer) if peer != "ours" else ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bodies", type=int, default=100_000)
    parser.add_argument("--peers", nargs="*", default=["pytreegrav", "rebound", "particular"], choices=list(SCANS)[1:])
    parser.add_argument("--work", type=Path, required=True, help="directory for positions, forces and the result; is created")
    parser.add_argument("--venv", type=Path, help="environment of pytreegrav and rebound; is created [default: WORK/venv]")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds of a point after which the scan of a peer ends")
    parser.add_argument("--tree-speed", type=Path, help="the built example of springtide-barnes-hut")
    parser.add_argument("--scan", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    folder = options.work.absolute()
    if options.scan:
        peer, order = options.scan
        return scan(peer, folder, order, SCANS[peer][order], options.repeats, options.limit)
    folder.mkdir(parents=True, exist_ok=True)
    in_venv((options.venv or folder / "venv").absolute())
    import numpy

    tree_speed = (options.tree_speed or build_ours(folder)).absolute()
    subprocess.run([tree_speed, f"bodies={options.bodies}", f"save={folder / 'bodies.npy'}"], check=True)
    bodies = numpy.load(folder / "bodies.npy")
    bodies[:, [0, 1, 2, 6]].astype("<f4").tofile(folder / "bodies.f32")
    sample = numpy.random.default_rng(1).choice(len(bodies), min(SAMPLE, len(bodies)), replace=False)
    numpy.save(folder / "sample.npy", sample)

    exact = {}
    result = {"bodies": len(bodies), "softening": SOFTENING, "points": {}, "at": {}, "versions": {}}
    for peer in ["ours", *options.peers]:
        kernel = spline if peer == "pytreegrav" else plummer
        if kernel not in exact:
            exact[kernel] = direct_sum(numpy, bodies, sample, kernel)
        points = []
        try:
            program = build_particular(folder) if peer == "particular" else None
            for order, openings in SCANS[peer].items():
                repeats, limit = options.repeats, options.limit
                if peer == "ours":
                    run = ours(tree_speed, folder, order, openings, repeats)
                elif peer == "particular":
                    run = run_particular(folder, program, openings, repeats, limit)
                else:
                    run = run_python(peer, folder, order, openings, repeats, limit)
                for point in run:
                    file = point.pop("file")
                    got = numpy.load(file) if file.endswith(".npy") else numpy.fromfile(file, "<f4").reshape(-1, 3)[sample]
                    Path(file).unlink()
                    point = {"order": order, **point, **errors(numpy, got.astype(float), exact[kernel])}
                    points.append(point)
                    print(f"{peer:10} {order} {point['opening']:<7g} {point['seconds']:8.3f} s  rms {point['rms']:.2e}", file=sys.stderr, flush=True)
            result["versions"][peer] = version(peer, folder)
        except (subprocess.CalledProcessError, OSError) as failure:
            print(f"{peer} is not available here: {failure}", file=sys.stderr)
        if points:
            result["points"][peer] = points
            result["at"][peer] = {f"{target:g}": cheapest(points, target) for target in TARGETS}

    print(f"{len(bodies)} bodies, softening {SOFTENING}: CPU seconds of one thread at an RMS error, relative to Springtide's; median and 99th percentile of the error")
    for target in TARGETS:
        print(f"at {target:g}")
        least = result["at"]["ours"][f"{target:g}"]["seconds"]
        for peer, found in result["at"].items():
            one = found[f"{target:g}"]
            name = f"{peer} {result['versions'].get(peer, '')}".strip()
            print(
                f"  {name:18} {one['order']}  {one['sign']:1}{one['seconds']:8.3f} s {one['seconds'] / least:8.1f} x"
                f"   rms {one['rms']:.1e}  median {one['median']:.1e}  p99 {one['p99']:.1e}"
            )
    (folder / "nbody.json").write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
