"""Energy drift of a Plummer sphere over ten crossing times: Springtide compared with rebound, with the
same error of the forces and the same step.

    python3 tests/shows/drift.py target/release/springtide DIR --venv VENV

The show creates DIR and takes about five minutes. Both codes use the same bodies (Henon units,
softening 0.05, seed 42) and leapfrog with the same fixed step. Springtide's is kick-drift-kick,
rebound's is drift-kick-drift. Springtide gets --force-error. For rebound, the show searches the
opening angle whose forces on a sample of the bodies have this error, within 5 %.

Errors of forces are relative root mean squares over the sample, against a direct sum in double
precision with the same softening. They are measured at the start and at the end. Energies are direct
sums over all pairs at each crossing time (2 sqrt 2), independent of what the codes report. A third
row has Springtide with block time steps: the same longest step, halved by --block-steps.

rebound and numpy are installed into VENV if they are missing. Seconds are user and system time of the
whole process.
"""

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import venv
from pathlib import Path

SOFTENING = 0.05
SEED = 42
CROSSING = 2 * math.sqrt(2)
SAMPLE = 1000
PACKAGES = ("numpy", "rebound")


def forces(positions, masses, sample):
    """Accelerations of the sample, summed over all pairs."""
    import numpy

    out = numpy.empty((len(sample), 3))
    for row, body in enumerate(sample):
        d = positions - positions[body]
        square = (d * d).sum(axis=1) + SOFTENING**2
        out[row] = ((masses / (square * numpy.sqrt(square)))[:, None] * d).sum(axis=0)
    return out


def rms(got, exact):
    import numpy

    return float(numpy.sqrt((((got - exact) ** 2).sum(axis=1) / (exact**2).sum(axis=1)).mean()))


def energy(bodies):
    """Kinetic and potential energy, summed over all pairs."""
    import numpy

    positions, velocities, masses = bodies[:, :3], bodies[:, 3:6], bodies[:, 6]
    potential = 0.0
    for i in range(len(bodies) - 1):
        d = positions[i + 1 :] - positions[i]
        potential -= masses[i] * (masses[i + 1 :] / numpy.sqrt((d * d).sum(axis=1) + SOFTENING**2)).sum()
    return 0.5 * float((masses * (velocities**2).sum(axis=1)).sum()) + float(potential)


class Rebound:
    """The bodies in rebound. Its tree may reorder them, so each has its number as hash."""

    def __init__(self, bodies, dt):
        import rebound

        self.simulation = simulation = rebound.Simulation()
        # Larger than any movement, because rebound's tree loses bodies that leave it.
        simulation.root_size = 1000.0
        simulation.gravity = "tree"
        simulation.integrator = "leapfrog"
        simulation.softening = SOFTENING
        simulation.dt = dt
        for x, y, z, vx, vy, vz, m in bodies.tolist():
            simulation.add(m=m, x=x, y=y, z=z, vx=vx, vy=vy, vz=vz)

    def bodies(self):
        import numpy

        rows = [(p.x, p.y, p.z, p.vx, p.vy, p.vz, p.m) for p in self.simulation.particles]
        return numpy.array(rows)

    def force_error(self, theta, sample):
        from ctypes import byref

        import numpy
        import rebound

        self.simulation.opening_angle2 = theta * theta
        rebound.clibrebound.reb_simulation_update_acceleration(byref(self.simulation))
        bodies = self.bodies()
        got = numpy.array([[p.ax, p.ay, p.az] for p in (self.simulation.particles[int(i)] for i in sample)])
        return rms(got, forces(bodies[:, :3], bodies[:, 6], sample))


def angle_for(simulation, wanted, sample):
    low, high = 0.05, 2.0
    for _ in range(20):
        theta = math.sqrt(low * high)
        found = simulation.force_error(theta, sample)
        if abs(found / wanted - 1) < 0.05:
            break
        low, high = (low, theta) if found > wanted else (theta, high)
    return theta, found


def run_rebound(options, folder):
    """Runs in a separate process."""
    import numpy

    bodies = numpy.load(folder / "start.npy")
    sample = numpy.load(folder / "sample.npy")
    simulation = Rebound(bodies, options.dt)
    theta, first = angle_for(simulation, options.error, sample)
    before = used(resource.RUSAGE_SELF)
    for crossing in range(1, options.crossings + 1):
        simulation.simulation.steps(options.each)
        numpy.save(folder / f"rebound-{crossing:02}.npy", simulation.bodies())
    seconds = used(resource.RUSAGE_SELF) - before
    last = simulation.force_error(theta, sample)
    print(json.dumps({"theta": theta, "errors": [first, last], "seconds": seconds}))


def used(who):
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def ours(options, folder, more):
    """The result, the seconds, and the bodies at each crossing time."""
    import numpy

    out = folder / ("ours" + "".join(more).replace("-", ""))
    steps = options.each * options.crossings
    command = [options.program, "run", "barnes-hut", "--sequential", "-q", "--json", "--out", out, "--input", folder / "start.npy"]
    command += ["--softening", SOFTENING, "--dt", options.dt, "--steps", steps, "--force-error", options.error]
    command += ["--snapshot-every", options.each, "--check-forces", steps, "--check-bodies", SAMPLE, *more]
    before = used(resource.RUSAGE_CHILDREN)
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    seconds = used(resource.RUSAGE_CHILDREN) - before
    result = json.loads(done.stdout)["result"]
    states = [numpy.load(out / f"snapshot-{options.each * k:06}.npy") for k in range(options.crossings + 1)]
    return result, seconds, states


def show(options, folder):
    import numpy

    first = folder / "first"
    begin = [options.program, "run", "barnes-hut", "--sequential", "-q", "--model", "plummer", "--bodies", options.bodies]
    begin += ["--seed", SEED, "--steps", 0, "--snapshot-every", 1, "--out", first]
    subprocess.run([str(word) for word in begin], check=True, capture_output=True)
    start = numpy.load(first / "snapshot-000000.npy")
    numpy.save(folder / "start.npy", start)
    sample = numpy.random.default_rng(SEED).choice(len(start), min(SAMPLE, len(start)), replace=False)
    numpy.save(folder / "sample.npy", sample)

    rows = []
    for name, more in [("ours", []), ("ours, block steps", ["--block-steps", str(options.block_steps)])]:
        result, seconds, states = ours(options, folder, more)
        errors = result["force_error"]["rms"]
        rows.append((name, errors, states, seconds, result["forces"] - len(start)))
    # The same interpreter, so that the packages are present.
    again = [sys.executable, *sys.argv, "--as-rebound"]
    done = subprocess.run(again, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    told = json.loads(done.stdout)
    states = [start] + [numpy.load(folder / f"rebound-{k:02}.npy") for k in range(1, options.crossings + 1)]
    forces_done = len(start) * options.each * options.crossings
    rows.append((f"rebound, theta {told['theta']:.2f}", told["errors"], states, told["seconds"], forces_done))

    steps = options.each * options.crossings
    print(f"{len(start)} bodies, {options.crossings} crossing times in {steps} steps of {options.dt:.5f}, requested force error {options.error:g}\n")
    print("| code | force error at start, end | energy drift at the end | largest at a crossing time | forces | seconds |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, errors, states, seconds, forces_done in rows:
        energies = [energy(state) for state in states]
        drifts = [(e - energies[0]) / abs(energies[0]) for e in energies]
        least = max(abs(drift) for drift in drifts)
        print(f"| {name} | {errors[0]:.1e}, {errors[-1]:.1e} | {drifts[-1]:+.1e} | {least:.1e} | {forces_done:.2e} | {seconds:.0f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("dir", type=Path)
    parser.add_argument("--venv", type=Path, required=True)
    parser.add_argument("--bodies", type=int, default=4096)
    parser.add_argument("--crossings", type=int, default=10)
    parser.add_argument("--each", type=int, default=181, help="steps per crossing time [default: 181, about 1/64 each]")
    parser.add_argument("--error", type=float, default=2e-3)
    parser.add_argument("--block-steps", type=float, default=0.02)
    parser.add_argument("--as-rebound", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.dt = CROSSING / options.each
    folder = options.dir.absolute()
    if options.as_rebound:
        return run_rebound(options, folder)
    python = options.venv.absolute() / "bin" / "python"
    if Path(sys.prefix).resolve() != options.venv.resolve():
        if not python.exists():
            venv.create(options.venv, with_pip=True)
        lacking = subprocess.run([python, "-c", "import numpy, rebound"], capture_output=True)
        if lacking.returncode != 0:
            subprocess.run([python, "-m", "pip", "install", "-q", *PACKAGES], check=True)
        os.execv(python, [str(python), *sys.argv])
    folder.mkdir(parents=True)
    show(options, folder)


if __name__ == "__main__":
    main()
