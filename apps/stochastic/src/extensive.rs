//! The extensive form: a two-stage program over some scenarios as one linear program.

use std::collections::BTreeMap;

use crate::lp::Problem;
use crate::model::{Place, TwoStage};
use crate::sample::{Sampler, Scenario};

/// A scenario with its probability and the values of its random elements.
pub type WeightedScenario = (f64, Vec<(Place, f64)>);

/// All scenarios of a sampler.
pub fn scenarios<'a>(
    model: &'a TwoStage,
    sampler: &'a Sampler,
) -> impl Iterator<Item = WeightedScenario> + 'a {
    let mut scenario = Scenario::default();
    (0..sampler.count()).map(move |number| {
        sampler.scenario(number, &mut scenario);
        (scenario.probability, scenario.values(model).collect())
    })
}

struct Row {
    entries: Vec<(usize, f64)>,
    lower: f64,
    upper: f64,
}

/// The extensive form without the constant of the objective. Its columns and rows are those of the first
/// stage, then those of the second stage for each scenario in turn.
pub fn extensive_form(
    model: &TwoStage,
    scenarios: impl IntoIterator<Item = WeightedScenario>,
) -> Problem {
    let (first, second) = (&model.first, &model.second);
    let (n, width) = (first.cost.len(), second.cost.len());
    let (mut cost, mut lower) = (first.cost.clone(), first.lower.clone());
    let mut upper = first.upper.clone();
    let (technology, matrix) = (model.technology.transposed(), second.matrix.transposed());
    let mut rows: Vec<Row> = Vec::new();
    for (at, (probability, values)) in scenarios.into_iter().enumerate() {
        let mut costs = second.cost.clone();
        let mut rhs = second.rhs.clone();
        // Entries of rows, by the column of this scenario's program.
        let mut changes: BTreeMap<(usize, usize), f64> = BTreeMap::new();
        for (place, value) in values {
            match place {
                Place::Rhs(row) => rhs[row] = value,
                Place::Cost(column) => costs[column] = value,
                Place::Technology(row, column) => drop(changes.insert((row, column), value)),
                Place::Recourse(row, column) => drop(changes.insert((row, n + column), value)),
            }
        }
        cost.extend(costs.iter().map(|cost| cost * probability));
        lower.extend(&second.lower);
        upper.extend(&second.upper);
        let shift = at * width;
        for (row, rhs) in rhs.into_iter().enumerate() {
            let own = matrix.column(row).map(|(column, value)| (n + column, value));
            let fixed = technology.column(row).chain(own);
            let fixed = fixed.filter(|(column, _)| !changes.contains_key(&(row, *column)));
            let changed = changes.range((row, 0)..(row + 1, 0));
            let entries = fixed.chain(changed.map(|(&(_, column), &value)| (column, value)));
            let entries = entries
                .map(|(column, value)| (if column < n { column } else { column + shift }, value));
            let (lower, upper) = (rhs - second.below[row], rhs + second.above[row]);
            rows.push(Row { entries: entries.collect(), lower, upper });
        }
    }
    let mut problem = Problem::new(&cost, &lower, &upper);
    problem.add_rows(&first.matrix, &first.rhs, &first.below, &first.above);
    for Row { entries, lower, upper } in rows {
        problem.add_row(entries, lower, upper);
    }
    problem
}
