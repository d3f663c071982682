"""Time to the same answer on the same scenarios: `springtide solve`, the extensive form in HiGHS, and
mpi-sppy.

    python3 tests/shows/peers.py target/release/springtide DIR ../shared/data/smps --venv VENV

The show creates DIR and takes about ten minutes. It draws scenarios from the independent ones of each
instance and writes them as SMPS files (SCENARIOS DISCRETE), which all solvers read. The solvers run
one after another, each in its own process on one thread. CPU seconds are those of the whole process,
including imports. The show exits with 1 if a solver claims an optimum that differs by more than 1e-6,
or if springtide has none.

More arguments select other cases, such as ssn:100 20term:100. Cases of more than 100 scenarios exclude
mpi-sppy, which builds each scenario in Python. Missing packages are installed into VENV. If that fails,
their rows are skipped. The show prints the versions.

mpi-sppy accepts a subset of the format, so all solvers get this subset. It accepts no INDEP section,
mistakes right-hand sides named RHS for a section header, and rejects rows without entries (storm has
two, which are left out). Progressive hedging stops after some iterations at the mean of the scenarios'
decisions. HiGHS computes the cost of this decision outside the measured time, and the row shows the
distance to the optimum. If HiGHS needs too long for a case, it runs again from springtide's decision
to check it.
"""

import argparse
import csv
import importlib.metadata
import json
import os
import random
import resource
import subprocess
import sys
import time
from pathlib import Path

PACKAGES = {"highspy": ["highspy", "numpy"], "mpisppy": ["mpi-sppy", "pyomo", "mip", "scipy", "highspy", "numpy"]}
HERE = Path(__file__).resolve()
RHS = "RHS1"
SAME = 1e-6
SPPY_MOST = 100
CHECK_S = 400
# Weights of the proximal term of progressive hedging: the best of a few candidates.
RHO = {"ssn": 0.001, "20term": 10.0, "storm": 3000.0}


# The scenarios


def lines(path):
    """The lines of an SMPS file as pairs: whether it is a section header, and its words."""
    for line in path.read_text().splitlines():
        if line.strip() and not line.startswith("*"):
            yield not line[0].isspace(), line.split()


def only(directory, ending):
    return next(Path(directory).glob(f"*.{ending}"))


def outcomes(path):
    """The values, as written, and the probabilities of each random right-hand side, by row."""
    rows = {}
    for section, words in lines(path):
        if section and words[0] == "INDEP" and words[1] != "DISCRETE" or section and words[0] in ("BLOCKS", "SCENARIOS"):
            sys.exit(f"{path}: only INDEP DISCRETE is drawn from, not {' '.join(words)}")
        if not section:
            values, weights = rows.setdefault(words[1], ([], []))
            values.append(words[2])
            weights.append(float(words[-1]))
    return rows


def plain(path, random_rows):
    """The core file with a new name, renamed right-hand sides, and without empty rows."""
    used = set()
    section = ""
    for header, words in lines(path):
        if header:
            section = words[0]
        elif section == "COLUMNS" or section == "RHS" and any(float(value) for value in words[2::2]):
            used.update(words[1::2])
    section, told = "", []
    for line in path.read_text().splitlines():
        words = line.split()
        if not words or line.startswith("*"):
            continue
        if not line[0].isspace():
            section = words[0]
            line = "NAME          CORE" if section == "NAME" else line
        elif section == "ROWS" and words[0] != "N" and words[1] not in used | random_rows:
            continue
        elif section == "RHS":
            line = "    " + RHS.ljust(10) + line[line.index(words[0]) + len(words[0]) :].lstrip()
        told.append(line.rstrip())
    return "\n".join(told) + "\n"


def write_case(instance, directory, count, seed):
    """Writes the three files of the instance with `count` equally likely scenarios."""
    directory.mkdir(parents=True)
    rows, draw = outcomes(only(instance, "sto")), random.Random(seed)
    (directory / "case.cor").write_text(plain(only(instance, "cor"), set(rows)))
    time_file = only(instance, "tim")
    (directory / "case.tim").write_text(time_file.read_text())
    period = [words for section, words in lines(time_file) if not section][1][2]
    told = ["STOCH         CASE", "SCENARIOS     DISCRETE"]
    for n in range(1, count + 1):
        told.append(f" SC SCEN{n:05}  ROOT      {1 / count!r}   {period}")
        for row, (values, weights) in rows.items():
            told.append(f"    {RHS.ljust(8)}  {row.ljust(8)}  {draw.choices(values, weights)[0]}")
    (directory / "case.sto").write_text("\n".join(told + ["ENDATA"]) + "\n")


# Functions that run in the peers' environment, each in its own process


class Clock:
    """CPU and wall seconds of the phases of this process, from its start."""

    def __init__(self):
        self.parts, self.began = {}, (0.0, time.time() - self.age())

    @staticmethod
    def age():
        with open("/proc/self/stat") as stat, open("/proc/uptime") as uptime:
            ticks = int(stat.read().rsplit(")", 1)[1].split()[19])
            return float(uptime.read().split()[0]) - ticks / os.sysconf("SC_CLK_TCK")

    def done(self, part):
        used = resource.getrusage(resource.RUSAGE_SELF)
        now = used.ru_utime + used.ru_stime, time.time()
        self.parts[part] = [now[0] - self.began[0], now[1] - self.began[1]]
        self.began = now


def extensive_form(highspy, np, case):
    """The extensive form as a HiGHS model: one first stage, and a second stage per scenario."""
    core = case.parent / f"{case.name}.mps"  # HiGHS selects the format by the ending
    if not core.exists():
        core.write_text((case / "case.cor").read_text())
    reader = highspy.Highs()
    reader.setOptionValue("output_flag", False)
    if reader.readModel(str(core)) != highspy.HighsStatus.kOk:
        sys.exit(f"HiGHS does not read {core}")
    lp = reader.getLp()
    row_of = {name: n for n, name in enumerate(lp.row_names_)}
    column_of = {name: n for n, name in enumerate(lp.col_names_)}
    second = [words for section, words in lines(case / "case.tim") if not section][1]
    n1, n, m = column_of[second[0]], lp.num_col_, lp.num_row_
    m1 = row_of[second[1]]  # HiGHS stores the objective separately
    scenarios = []
    for section, words in lines(case / "case.sto"):
        if words[0] == "SC":
            scenarios.append((float(words[3]), {}))
        elif words[0] == RHS:
            scenarios[-1][1][row_of[words[1]]] = float(words[2])
    start, index, value = (np.array(part) for part in (lp.a_matrix_.start_, lp.a_matrix_.index_, lp.a_matrix_.value_))
    if lp.a_matrix_.format_ != highspy.MatrixFormat.kColwise:
        sys.exit("the core file's matrix is not by columns")
    of = np.repeat(np.arange(n), np.diff(start))
    assert not np.any((of >= n1) & (index < m1)), "a second-stage column in a first-stage row"
    count, n2, m2 = len(scenarios), n - n1, m - m1
    shift = np.arange(count)
    parts = []  # (columns, rows, values)
    first = of < n1
    low = first & (index < m1)
    parts.append((of[low], index[low], value[low]))
    for chosen, by in ((first & (index >= m1), 0), (~first, n2)):
        parts.append(
            (
                (of[chosen] + by * shift[:, None]).ravel(),
                (index[chosen] + m2 * shift[:, None]).ravel(),
                np.tile(value[chosen], count),
            )
        )
    columns, rows, values = (np.concatenate(part) for part in zip(*parts))
    order = np.lexsort((rows, columns))
    weight = np.array([probability for probability, _ in scenarios])
    cost, lower, upper, row_lower, row_upper = (
        np.array(part) for part in (lp.col_cost_, lp.col_lower_, lp.col_upper_, lp.row_lower_, lp.row_upper_)
    )
    below, above = np.tile(row_lower[m1:], (count, 1)), np.tile(row_upper[m1:], (count, 1))
    for n_th, (_, changed) in enumerate(scenarios):
        for row, rhs in changed.items():
            for bounds, of_core in ((below, row_lower), (above, row_upper)):
                if np.isfinite(of_core[row]):
                    bounds[n_th, row - m1] = rhs
    big = highspy.HighsLp()
    big.num_col_, big.num_row_, big.offset_ = n1 + n2 * count, m1 + m2 * count, lp.offset_
    big.col_cost_ = np.concatenate([cost[:n1], (weight[:, None] * cost[n1:]).ravel()])
    big.col_lower_ = np.concatenate([lower[:n1], np.tile(lower[n1:], count)])
    big.col_upper_ = np.concatenate([upper[:n1], np.tile(upper[n1:], count)])
    big.row_lower_ = np.concatenate([row_lower[:m1], below.ravel()])
    big.row_upper_ = np.concatenate([row_upper[:m1], above.ravel()])
    big.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    big.a_matrix_.start_ = np.concatenate([[0], np.cumsum(np.bincount(columns, minlength=big.num_col_))])
    big.a_matrix_.index_, big.a_matrix_.value_ = rows[order], values[order]
    return big, list(lp.col_names_[:n1])


def highs(case, how, limit, fixed=None, go_on=False):
    """Solves the extensive form. Given a decision, computes its cost first, and stops there or continues to the optimum."""
    clock = Clock()
    import highspy
    import numpy as np

    clock.done("import")
    big, names = extensive_form(highspy, np, case)
    solver = highspy.Highs()
    options = {"output_flag": False, "threads": 1, "parallel": "off", "solver": how, "time_limit": float(limit)}
    free = big.col_lower_, big.col_upper_
    if fixed:
        # The mean of decisions satisfies the rows except for rounding.
        options["primal_feasibility_tolerance"] = 1e-6
        bounds = [max(0.0, fixed[name]) for name in names]
        big.col_lower_ = np.concatenate([bounds, np.array(big.col_lower_)[len(names) :]])
        big.col_upper_ = np.concatenate([bounds, np.array(big.col_upper_)[len(names) :]])
    for name, to in options.items():
        if solver.setOptionValue(name, to) != highspy.HighsStatus.kOk:
            sys.exit(f"HiGHS takes no option {name} = {to}")
    solver.passModel(big)
    clock.done("build")
    solver.run()
    if go_on:
        # The primal simplex method continues from the present basis.
        for column in range(len(names)):
            solver.changeColBounds(column, free[0][column], free[1][column])
        solver.setOptionValue("primal_feasibility_tolerance", 1e-7)
        solver.setOptionValue("simplex_strategy", 4)
        solver.run()
    clock.done("solve")
    status = solver.getModelStatus()
    solved = status == highspy.HighsModelStatus.kOptimal
    objective = solver.getInfo().objective_function_value if solved else None
    return {"objective": objective, "status": solver.modelStatusToString(status), "parts": clock.parts}


def sppy_extensive_form(case, limit):
    clock = Clock()
    from argparse import Namespace

    import pyomo.environ as pyo
    from mpisppy.opt.ef import ExtensiveForm
    from mpisppy.problem_io import smps_module as smps

    clock.done("import")
    more = smps.kw_creator(Namespace(smps_dir=str(case)))
    form = ExtensiveForm({"solver": "appsi_highs"}, smps.scenario_names_creator(None), smps.scenario_creator, more)
    clock.done("build")
    results = form.solve_extensive_form({"threads": 1, "parallel": "off", "time_limit": float(limit)})
    clock.done("solve")
    solved = pyo.check_optimal_termination(results)
    objective = form.get_objective_value() if solved else None
    return {"objective": objective, "status": str(results.solver.termination_condition), "parts": clock.parts}


def sppy_hedging(case, iterations, rho, limit):
    clock = Clock()
    from argparse import Namespace

    import pyomo.environ as pyo
    from mpisppy.opt.ph import PH
    from mpisppy.problem_io import smps_module as smps

    clock.done("import")
    def scenario(name, **more):
        """Removes bounds of 1.8e308: mpi-sppy reads missing bounds so, and its proximal term overflows."""
        model = smps.scenario_creator(name, **more)
        for variable in model.component_data_objects(pyo.Var):
            if variable.ub is not None and variable.ub > 1e300:
                variable.setub(None)
        return model

    more = smps.kw_creator(Namespace(smps_dir=str(case)))
    options = {"solver_name": "appsi_highs", "PHIterLimit": iterations, "defaultPHrho": rho, "convthresh": 1e-8, "verbose": False}
    options |= {"display_progress": False, "display_timing": False, "time_limit": limit}
    # This interface of HiGHS has no quadratic objective, so cuts replace the proximal term.
    options |= {"linearize_proximal_terms": True, "proximal_linearization_tolerance": 1e-2}
    options |= {"iter0_solver_options": {"threads": 1}, "iterk_solver_options": {"threads": 1}}
    hedging = PH(options, smps.scenario_names_creator(None), scenario, scenario_creator_kwargs=more)
    clock.done("build")
    _, _, bound = hedging.ph_main()
    clock.done("solve")
    scenario = next(iter(hedging.local_scenarios.values()))
    node = scenario._mpisppy_node_list[0]
    mean = {v.name: scenario._mpisppy_model.xbars["ROOT", n]._value for n, v in enumerate(node.nonant_vardata_list)}
    return {"status": f"after {hedging._PHIter} iterations", "bound": bound, "x": mean, "parts": clock.parts}


def work(out, what, case, *more):
    """Runs one function of this file in the peers' environment, and writes its result into a file."""
    more = [json.loads(word) for word in more]
    found = {"highs": highs, "sppy-ef": sppy_extensive_form, "sppy-ph": sppy_hedging}[what](Path(case), *more)
    Path(out).write_text(json.dumps(found))


def versions(*packages):
    print("  ".join(f"{package} {importlib.metadata.version(package)}" for package in packages))


# Functions that start the peers


def timed(line, limit, name, directory):
    """Runs a command. Returns its exit status (none after the time limit) and its CPU and wall seconds."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    with open(directory / f"{name}.out", "w") as out, open(directory / f"{name}.err", "w") as err:
        began = time.monotonic()
        process = subprocess.Popen([str(word) for word in line], stdout=out, stderr=err, cwd=directory, env=env)
        late = False
        while True:
            pid, status, used = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            if time.monotonic() - began > limit and not late:
                process.kill()
                late = True
            time.sleep(0.005)
        wall = time.monotonic() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    return None if late else process.returncode, used.ru_utime + used.ru_stime, wall


class Show:
    def __init__(self, args):
        self.args, self.program, self.dir = args, Path(args.program).resolve(), Path(args.directory).resolve()
        self.dir.mkdir(parents=True)
        self.rows, self.wrong = [], []
        self.python = Path(args.venv).absolute() / "bin" / "python" if args.venv else None
        self.has = {name: self.python is not None and self.installed(name, packages) for name, packages in PACKAGES.items()}

    def installed(self, module, packages):
        """Whether the environment has the packages. Installs them if they are missing."""
        if not self.python.exists():
            print(f"creating {self.python.parent.parent}", flush=True)
            subprocess.run([sys.executable, "-m", "venv", self.python.parent.parent], check=True)
        there = lambda: subprocess.run([self.python, HERE, "--versions", *packages], capture_output=True, text=True)
        if there().returncode:
            pip = subprocess.run([self.python, "-m", "pip", "install", "-q", *packages], capture_output=True, text=True)
            if pip.returncode:
                print(f"{module} could not be installed, and its rows are skipped: {pip.stderr.strip().splitlines()[-1]}", flush=True)
                return False
        print(f"{module}: {there().stdout.strip()}", flush=True)
        return True

    def row(self, case, solver, read, solve, wall, cpu, objective, note, exact=True):
        self.rows.append([case, solver, read, solve, wall, cpu, objective, note, exact])
        told = "none" if objective is None else f"{objective:.9g}"
        print(f"{case}, {solver}: {cpu:.2f} s CPU, {wall:.2f} s, objective {told} {note}", flush=True)

    def ours(self, case, name):
        line = [self.program, "solve", case, "--all-scenarios", "--epsilon", "1e-7", "--sequential", "--json"]
        status, cpu, wall = timed([*line, "--out", self.dir / f"{name}-out"], self.args.limit + 60, f"{name}-ours", self.dir)
        if status != 0:
            why = "too long" if status is None else f"exit {status}: " + (self.dir / f"{name}-ours.err").read_text().strip()[-200:]
            self.wrong.append(f"{name}: springtide did not end well ({why})")
            return self.row(name, "springtide", None, None, wall, cpu, None, why)
        found = json.loads((self.dir / f"{name}-ours.out").read_text())
        took = found["run"]["wall_s"]
        note = f"gap {found['gap']:.0e}, {found['iterations']} iterations"
        self.row(name, "springtide", wall - took, took, wall, cpu, found["objective"], note)
        self.bound = found["bound"]

    def theirs(self, case, name, solver, what, *more, extra=60, exact=True):
        """Runs one of the peers and returns its result."""
        tag = f"{name}-{solver.replace(' ', '-').replace(',', '')}"
        out = self.dir / f"{tag}.json"
        line = [self.python, HERE, "--work", out, what, case, *map(json.dumps, more)]
        status, cpu, wall = timed(line, self.args.limit + extra, tag, self.dir)
        if status != 0:
            last = ((self.dir / f"{tag}.err").read_text().strip().splitlines() or [""])[-1]
            why = f"killed after {wall:.0f} s" if status is None else f"exit {status}: {last[:160]}"
            return self.row(name, solver, None, None, wall, cpu, None, why, exact)
        found = json.loads(out.read_text())
        read, solve = found["parts"]["build"][1], found["parts"]["solve"][1]
        note = found["status"] + f", import {found['parts']['import'][1]:.1f} s"
        if exact:
            return self.row(name, solver, read, solve, wall, cpu, found["objective"], note)
        # The cost of its decision is computed outside its time.
        cost = self.dir / f"{tag}-cost.json"
        words = ["choose", self.args.limit, found["x"]]
        line = [self.python, HERE, "--work", cost, "highs", case, *map(json.dumps, words)]
        status, _, _ = timed(line, self.args.limit + extra, f"{tag}-cost", self.dir)
        cost = json.loads(cost.read_text()) if status == 0 else {"objective": None, "status": "not evaluated"}
        if cost["objective"] is None:
            note += f"; its mean decision is {cost['status'].lower()}"
        self.row(name, solver, read, solve, wall, cpu, cost["objective"], f"{note}, bound {found['bound']:.6g}", exact)

    def case(self, word):
        instance, count = word.split(":")
        name, case = f"{instance}-{count}", self.dir / f"{instance}-{count}"
        write_case(Path(self.args.instances) / instance, case, int(count), self.args.seed)
        self.ours(case, name)
        if self.has["highspy"]:
            for how in ("simplex", "ipm"):
                self.theirs(case, name, f"HiGHS {how}", "highs", how, self.args.limit)
            self.check(case, name)
        if self.has["mpisppy"] and int(count) <= SPPY_MOST:
            self.theirs(case, name, "mpi-sppy EF", "sppy-ef", self.args.limit, extra=180)
            if self.args.hedge:
                rho = self.args.rho or RHO.get(instance, 1.0)
                self.theirs(case, name, "mpi-sppy PH", "sppy-ph", self.args.hedge, rho, self.args.limit, extra=180, exact=False)
        self.compare(name)

    def check(self, case, name):
        """Runs HiGHS from springtide's decision, if its first run exceeded the limit."""
        mine = [row for row in self.rows if row[0] == name]
        if mine[0][6] is None or any(row[6] is not None for row in mine[1:]):
            return
        with open(self.dir / f"{name}-out" / "x.csv") as table:
            x = {row["column"]: float(row["value"]) for row in csv.DictReader(table)}
        self.theirs(case, name, "HiGHS from it", "highs", "choose", CHECK_S, x, True, extra=CHECK_S)
        self.rows[-1][7] += "; begun at springtide's decision: a check, no time to compare"

    def compare(self, name):
        """Adds to each row of the case its difference from the optimum of the first peer that has one."""
        rows = [row for row in self.rows if row[0] == name]
        optimum = next((row for row in rows if row[8] and row[1] != "springtide" and row[6] is not None), None)
        for row in rows:
            if optimum is None or row[6] is None:
                row.append(None)
                continue
            off = (row[6] - optimum[6]) / max(abs(optimum[6]), 1e-12)
            row.append(off)
            if row[8] and abs(off) > SAME:
                self.wrong.append(f"{name}: {row[1]} found {row[6]!r}, and {optimum[1]} {optimum[6]!r}")
        if optimum is None:
            print(f"{name}: no peer found the optimum, so nothing is compared", flush=True)
        elif rows[0][6] is not None and self.bound > optimum[6] + SAME * abs(optimum[6]):
            self.wrong.append(f"{name}: springtide's bound {self.bound!r} is above the optimum {optimum[6]!r}")

    def tell(self):
        number = lambda value, form: "-" if value is None else format(value, form)
        head = f"{'case':<12} {'solver':<13} {'read+build s':>12} {'solve s':>8} {'wall s':>8} {'CPU s':>8}"
        print(f"\n{head} {'objective':>15} {'off':>9}  note")
        for case, solver, read, solve, wall, cpu, objective, note, _, off in self.rows:
            left = f"{case:<12} {solver:<13} {number(read, '.2f'):>12} {number(solve, '.2f'):>8} {wall:8.2f} {cpu:8.2f}"
            print(f"{left} {number(objective, '.9g'):>15} {number(off, '+.1e'):>9}  {note}")
        for line in self.wrong:
            print("WRONG:", line)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("directory")
    parser.add_argument("instances", help="directory with one directory per instance")
    parser.add_argument("cases", nargs="*", default=["ssn:100", "20term:100", "storm:100", "ssn:1000"], metavar="INSTANCE:N")
    parser.add_argument("--venv", help="environment for the peers' packages; without it only springtide runs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=int, default=120, help="time limit of one solve in seconds")
    parser.add_argument("--hedge", type=int, default=10, help="iterations of progressive hedging; 0: none")
    parser.add_argument("--rho", type=float, help="weight of the proximal term, for all cases")
    show = Show(parser.parse_args())
    for word in show.args.cases:
        show.case(word)
    show.tell()
    sys.exit(1 if show.wrong else 0)


if sys.argv[1:2] == ["--work"]:
    work(*sys.argv[2:])
elif sys.argv[1:2] == ["--versions"]:
    versions(*sys.argv[2:])
else:
    main()
