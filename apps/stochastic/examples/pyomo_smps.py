#!/usr/bin/env python3
"""Solve a two-stage program that is modelled in Pyomo with Springtide.

    python3 pyomo_smps.py [DIRECTORY] [--springtide PROGRAM]

A bakery orders flour and sugar before it knows the demand for bread and cake. The model is written
once, for one scenario. Pyomo's MPS writer makes the core file of it; the time file lists which rows and
columns belong to which stage; the stochastic file lists the random demands. Springtide then solves the
program over all scenarios, and the result comes back as JSON.

Needs Pyomo (`pip install pyomo`) and the `springtide` command.
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

import pyomo.environ as pyo

# Scenarios of the demand, independent of each other: product to (demand, probability).
DEMAND = {
    "bread": [(40.0, 0.25), (60.0, 0.5), (90.0, 0.25)],
    "cake": [(10.0, 0.5), (30.0, 0.5)],
}
PRICE = {"bread": 4.0, "cake": 9.0}
RECIPE = {("bread", "flour"): 1.0, ("cake", "flour"): 0.5, ("cake", "sugar"): 0.5}
COST = {"flour": 1.5, "sugar": 3.0}
BUDGET = 200.0


def build():
    """The deterministic model, with any demand. Costs are minimised: sales count negative."""
    model = pyo.ConcreteModel("bakery")
    model.order = pyo.Var(COST.keys(), within=pyo.NonNegativeReals)
    model.sold = pyo.Var(PRICE.keys(), within=pyo.NonNegativeReals)
    model.cost = pyo.Objective(
        expr=sum(COST[i] * model.order[i] for i in COST)
        - sum(PRICE[p] * model.sold[p] for p in PRICE)
    )
    model.budget = pyo.Constraint(expr=sum(COST[i] * model.order[i] for i in COST) <= BUDGET)
    model.demand = pyo.Constraint(
        PRICE.keys(), rule=lambda m, p: m.sold[p] <= DEMAND[p][0][0]
    )
    model.stock = pyo.Constraint(
        COST.keys(),
        rule=lambda m, i: sum(RECIPE.get((p, i), 0.0) * m.sold[p] for p in PRICE) <= m.order[i],
    )
    return model


def write_smps(model, first_stage, random_rhs, directory):
    """Write a model as SMPS files.

    first_stage: the Pyomo components (variables and constraints) of the first stage.
    random_rhs:  pairs of a Pyomo constraint and its [(right-hand side, probability)].
    """
    core = directory / "model.cor"
    model.write(str(core), format="mps", io_options={"symbolic_solver_labels": True})
    first = {label(data) for component in first_stage for data in component.values()}

    # The names as they are in the file, which may hold more than the model has.
    section, rows, columns = "", [], []
    for line in core.read_text().splitlines():
        if line and not line[0].isspace():
            section = line.split()[0]
        elif section == "ROWS":
            kind, name = line.split()
            rows += [] if kind == "N" else [name]
        elif section == "COLUMNS" and line.split()[0] not in columns:
            columns.append(line.split()[0])
    row_of = {bare(row): row for row in rows}

    def period(name):
        return "FIRST" if bare(name) in first or "ONE_VAR_CONSTANT" in name else "SECOND"

    time = ["TIME bakery", "PERIODS EXPLICIT", " FIRST", " SECOND", "ROWS"]
    time += [f" {name} {period(name)}" for name in rows]
    time += ["COLUMNS"] + [f" {name} {period(name)}" for name in columns] + ["ENDATA"]
    (directory / "model.tim").write_text("\n".join(time) + "\n")

    stoch = ["STOCH bakery", "INDEP DISCRETE"]
    for constraint, outcomes in random_rhs:
        row = row_of[label(constraint)]
        stoch += [f" RHS {row} {value} SECOND {chance}" for value, chance in outcomes]
    (directory / "model.sto").write_text("\n".join(stoch + ["ENDATA"]) + "\n")


def label(data):
    """The name of a variable or constraint as Pyomo's writer spells it."""
    return data.name.replace("[", "(").replace("]", ")")


def bare(name):
    """The name of a row without what Pyomo's writer adds to it."""
    for prefix in ("c_e_", "c_u_", "c_l_", "r_l_", "r_u_"):
        if name.startswith(prefix):
            return name[len(prefix):].removesuffix("_")
    return name


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", nargs="?", type=Path, help="keep the files here")
    parser.add_argument("--springtide", default="springtide", help="the springtide command")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        directory = options.directory or Path(scratch)
        directory.mkdir(parents=True, exist_ok=True)
        model = build()
        random_rhs = [(model.demand[product], DEMAND[product]) for product in DEMAND]
        write_smps(model, [model.order, model.budget], random_rhs, directory)
        line = [options.springtide, "solve", str(directory), "--all-scenarios"]
        line += ["--sequential", "--json", "-q", "--out", str(Path(scratch) / "run")]
        result = json.loads(subprocess.run(line, check=True, capture_output=True).stdout)
    print(f"{result['status']}: expected profit {-result['objective']:.4f}")
    for column, value in zip(result["columns"], result["x"]):
        print(f"  {column} = {value:g}")


if __name__ == "__main__":
    main()
