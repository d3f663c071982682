//! The extensive form: a two-stage program over some scenarios as one linear program.

use std::collections::BTreeMap;

use crate::lp::LinearProgram;
use crate::model::{RandomElement, TwoStage};
use crate::sample::{Sampler, Scenario};

/// A scenario with its probability and the values of its random elements.
pub type WeightedScenario = (f64, Vec<(RandomElement, f64)>);

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

struct ConstraintRow {
    entries: Vec<(usize, f64)>,
    lower: f64,
    upper: f64,
}

/// The extensive form without the constant of the objective. Its columns and rows are those of the
/// first stage, then those of the second stage for each scenario in turn.
pub fn extensive_form(
    model: &TwoStage,
    scenarios: impl IntoIterator<Item = WeightedScenario>,
) -> LinearProgram {
    let (first, second) = (&model.first, &model.second);
    let (n, width) = (first.cost.len(), second.cost.len());
    let (mut cost, mut lower) = (first.cost.clone(), first.lower.clone());
    let mut upper = first.upper.clone();
    let (technology, matrix) = (model.technology.transposed(), second.matrix.transposed());
    let mut rows: Vec<ConstraintRow> = Vec::new();
    for (at, (probability, values)) in scenarios.into_iter().enumerate() {
        let mut costs = second.cost.clone();
        let mut rhs = second.rhs.clone();
        // Entries of rows, by the column of this scenario's program.
        let mut changes: BTreeMap<(usize, usize), f64> = BTreeMap::new();
        for (place, value) in values {
            match place {
                RandomElement::Rhs(row) => rhs[row] = value,
                RandomElement::Cost(column) => costs[column] = value,
                RandomElement::Technology(row, column) => {
                    changes.insert((row, column), value);
                }
                RandomElement::Recourse(row, column) => {
                    changes.insert((row, n + column), value);
                }
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
            rows.push(ConstraintRow { entries: entries.collect(), lower, upper });
        }
    }
    let mut problem = LinearProgram::new(&cost, &lower, &upper);
    problem.add_rows(&first.matrix, &first.rhs, &first.below, &first.above);
    for ConstraintRow { entries, lower, upper } in rows {
        problem.add_row(entries, lower, upper);
    }
    problem
}
