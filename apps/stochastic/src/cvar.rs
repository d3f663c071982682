//! Weighted mean and conditional value at risk: a transformation of a two-stage program into
//! another.
//!
//! The conditional value at risk (CVaR) of level a is the mean cost of the worst 1 - a of all
//! scenarios. It is min v + E max(cost - v, 0) / (1 - a) over v. A first-stage column for v and a
//! second-stage column for the excess over v keep the program two-stage and linear.
//!
//! Source: Rockafellar and Uryasev, Optimization of conditional value-at-risk (Journal of Risk
//! 2000).

use crate::model::{Columns, RandomElement, TwoStage};

/// Name of the first-stage column that holds the value at risk.
pub const VALUE_AT_RISK: &str = "value-at-risk";
/// Name of the second-stage column of the excess, and of the row that defines it.
const EXCESS: &str = "excess-over-value-at-risk";

/// The program with its expected cost replaced by `(1 - weight) * mean + weight * CVaR(level)`. The
/// first-stage column [`VALUE_AT_RISK`] is the value at risk of the whole cost, in the sense of the
/// program's file.
///
/// # Panics
/// If `level` is not from 0 to below 1, or `weight` not from 0 to 1.
pub fn with_cvar(model: &TwoStage, level: f64, weight: f64) -> TwoStage {
    assert!((0.0..1.0).contains(&level) && (0.0..=1.0).contains(&weight));
    let mut program = model.clone();
    let (n, own, rows) = (model.first.cost.len(), model.second.cost.len(), model.second.rhs.len());
    let sense = if model.maximise { -1.0 } else { 1.0 };
    let first = &mut program.first;
    // The mean of the certain cost; the value at risk has its other part.
    first.cost.iter_mut().for_each(|cost| *cost *= 1.0 - weight);
    program.offset *= 1.0 - weight;
    first.columns.push(VALUE_AT_RISK.to_owned());
    first.cost.push(sense * weight);
    first.lower.push(f64::NEG_INFINITY);
    first.upper.push(f64::INFINITY);
    first.matrix = first.matrix.resized(first.rhs.len(), n + 1, []);
    let second = &mut program.second;
    // excess >= first-stage cost + second-stage cost + constant - value at risk
    let costs = second.cost.iter().enumerate().map(|(column, cost)| (rows, column, -cost));
    let entries: Vec<_> = costs.chain([(rows, own, 1.0)]).collect();
    second.matrix = second.matrix.resized(rows + 1, own + 1, entries);
    second.cost.iter_mut().for_each(|cost| *cost *= 1.0 - weight);
    second.columns.push(EXCESS.to_owned());
    second.cost.push(weight / (1.0 - level));
    second.lower.push(0.0);
    second.upper.push(f64::INFINITY);
    second.rows.push(EXCESS.to_owned());
    second.rhs.push(model.offset);
    second.below.push(0.0);
    second.above.push(f64::INFINITY);
    let certain = model.first.cost.iter().enumerate().map(|(column, cost)| (rows, column, -cost));
    let certain: Vec<_> = certain.chain([(rows, n, sense)]).collect();
    program.technology = program.technology.resized(rows + 1, n + 1, certain);
    for block in &mut program.random {
        let costs: Vec<usize> = (0..block.places.len())
            .filter(|at| matches!(block.places[*at], RandomElement::Cost(_)))
            .collect();
        for at in costs {
            let RandomElement::Cost(column) = block.places[at] else { continue };
            block.places.push(RandomElement::Recourse(rows, column));
            for outcome in &mut block.outcomes {
                outcome.values.push(-outcome.values[at]);
                outcome.values[at] *= 1.0 - weight;
            }
        }
    }
    program
}

impl Columns {
    /// The matrix with more rows and columns, plus these entries.
    fn resized(
        &self,
        rows: usize,
        columns: usize,
        entries: impl IntoIterator<Item = (usize, usize, f64)>,
    ) -> Self {
        let own = (0..self.columns())
            .flat_map(|column| self.column(column).map(move |(row, value)| (row, column, value)));
        Self::of(rows, columns, own.chain(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extensive::{extensive_form, scenarios};
    use crate::fixtures;
    use crate::lp::simplex::Pricing;
    use crate::lp::{Simplex, Status};
    use crate::recourse::{Recourse, RootChoice};
    use crate::sample::{Sampler, Sampling, Scenario};

    fn least(model: &TwoStage) -> (f64, Vec<f64>) {
        let sampler = Sampler::new(model, Sampling::All, 0, 0).unwrap();
        let problem = extensive_form(model, scenarios(model, &sampler));
        let mut simplex = Simplex::new(problem, Pricing::Steepest);
        assert_eq!(simplex.solve(), Status::Optimal);
        let mut x = vec![0.0; simplex.columns()];
        simplex.values(&mut x);
        x.truncate(model.first.cost.len());
        (simplex.objective() + model.offset, x)
    }

    /// The second stage's costs at a decision with their probabilities.
    fn costs(model: &TwoStage, x: &[f64]) -> Vec<(f64, f64)> {
        let sampler = Sampler::new(model, Sampling::All, 0, 0).unwrap();
        let mut recourse = Recourse::new(model.clone(), RootChoice::Slack).unwrap();
        recourse.at(x);
        let mut scenario = Scenario::default();
        let cost = |number| {
            sampler.scenario(number, &mut scenario);
            let cost = recourse.cost(&scenario).unwrap().finite().unwrap();
            (cost, scenario.probability)
        };
        (0..sampler.count()).map(cost).collect()
    }

    /// The probabilities of second-stage costs above a value, and of those not below it.
    fn probabilities(model: &TwoStage, x: &[f64], value: f64) -> (f64, f64) {
        let costs = costs(model, x);
        let sum = |of: &dyn Fn(f64) -> bool| -> f64 {
            costs.iter().filter(|(cost, _)| of(*cost)).map(|(_, probability)| probability).sum()
        };
        let margin = 1e-6 * (1.0 + value.abs());
        (sum(&|cost| cost > value + margin), sum(&|cost| cost > value - margin))
    }

    /// Mean and CVaR of the second stage's cost at a decision, by sorting.
    fn mean_and_cvar(model: &TwoStage, x: &[f64], level: f64) -> (f64, f64) {
        let mut costs = costs(model, x);
        costs.sort_by(|one, other| other.0.total_cmp(&one.0));
        let mean = costs.iter().map(|(cost, p)| cost * p).sum();
        let (mut left, mut tail) = (1.0 - level, 0.0);
        for (cost, probability) in costs {
            let share = probability.min(left);
            tail += share * cost;
            left -= share;
        }
        (mean, tail / (1.0 - level))
    }

    #[test]
    fn the_objective_is_mean_and_tail() {
        for model in [fixtures::plants(), fixtures::farm(), fixtures::reservoir()] {
            let (neutral, _) = least(&model);
            for (level, weight) in [(0.0, 1.0), (0.5, 0.5), (0.9, 1.0), (0.95, 0.25)] {
                let (objective, x) = least(&with_cvar(&model, level, weight));
                let n = model.first.cost.len();
                let first: f64 = model.first.cost.iter().zip(&x).map(|(cost, x)| cost * x).sum();
                let (mean, cvar) = mean_and_cvar(&model, &x[..n], level);
                let right = model.offset + first + (1.0 - weight) * mean + weight * cvar;
                assert!(
                    (objective - right).abs() < 1e-7 * (1.0 + right.abs()),
                    "{objective} {right}"
                );
                assert!(objective >= neutral - 1e-7 * neutral.abs());
                if level == 0.0 {
                    assert!((objective - neutral).abs() < 1e-7 * neutral.abs());
                }
            }
        }
    }

    /// The column is the value at risk of the whole cost, in the sense of the program's file.
    #[test]
    fn the_column_is_the_value_at_risk() {
        for maximise in [false, true] {
            let model = TwoStage { maximise, ..fixtures::plants() };
            let (level, n) = (0.8, model.first.cost.len());
            let (_, x) = least(&with_cvar(&model, level, 0.5));
            let certain = model.first.cost.iter().zip(&x).map(|(cost, x)| cost * x).sum::<f64>();
            let value = if maximise { -x[n] } else { x[n] } - certain - model.offset;
            let (above, not_below) = probabilities(&model, &x[..n], value);
            assert!(above <= 1.0 - level + 1e-9 && not_below >= 1.0 - level - 1e-9, "{value}");
        }
    }

    #[test]
    fn random_costs_enter_the_excess() {
        let mut model = fixtures::plants();
        model.random[0].places.push(RandomElement::Cost(0));
        for (at, outcome) in model.random[0].outcomes.iter_mut().enumerate() {
            outcome.values.push(2.0 + at as f64);
        }
        let (objective, x) = least(&with_cvar(&model, 0.8, 0.5));
        let n = model.first.cost.len();
        let first: f64 = model.first.cost.iter().zip(&x).map(|(cost, x)| cost * x).sum();
        let (mean, cvar) = mean_and_cvar(&model, &x[..n], 0.8);
        let right = model.offset + first + 0.5 * mean + 0.5 * cvar;
        assert!((objective - right).abs() < 1e-7 * (1.0 + right.abs()), "{objective} {right}");
    }
}
