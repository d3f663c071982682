//! A program in units in which its numbers are near 1.
//!
//! Tolerances are meant for such numbers. All factors are powers of two, so scaling and its inverse
//! are exact, and a program that is balanced already keeps its numbers.

use std::sync::Arc;

use crate::extensive::extensive_form;
use crate::lp::simplex::{Scale, power_of_two};
use crate::model::{Columns, RandomElement, Stage, TwoStage};

/// A geometric mean of costs or of bounds above this is not scaled: only small numbers hide below
/// absolute tolerances.
const SMALL: f64 = 0.25;

/// A scaled program, and the factors back to its own units.
#[derive(Clone, Debug)]
pub struct Scaled {
    /// The program in scaled units.
    pub model: Arc<TwoStage>,
    /// One scaled unit of each first-stage column.
    pub first: Vec<f64>,
    /// One scaled unit of each second-stage column.
    pub second: Vec<f64>,
    /// One scaled unit of each first-stage row's activity.
    pub rows: Vec<f64>,
    /// One scaled unit of cost.
    pub cost: f64,
}

impl Scaled {
    /// Scales a program. The factors depend on the program alone.
    pub fn new(model: Arc<TwoStage>) -> Self {
        let problem = extensive_form(&model, [(1.0, largest_elements(&model))]);
        let Scale { rows, columns } = Scale::new(&problem);
        let (n, m) = (model.first.cost.len(), model.first.rows.len());
        let (first, second) = columns.split_at(n);
        let (first_rows, second_rows) = rows.split_at(m);
        let mut scaled = TwoStage::clone(&model);
        scale_stage(&mut scaled.first, first_rows, first);
        scale_stage(&mut scaled.second, second_rows, second);
        scaled.technology = scale_matrix(&model.technology, second_rows, first);
        for_each_value(&mut scaled, |place, value| {
            *value *= place_factor(place, second_rows, first, second);
        });
        let stages = [&scaled.first, &scaled.second];
        let costs = stages.iter().flat_map(|stage| stage.cost.iter().copied());
        let bounds = stages
            .iter()
            .flat_map(|stage| stage.rhs.iter().chain(&stage.lower).chain(&stage.upper).copied());
        let cost_factor = enlarging(
            costs.chain(values(&scaled, |place| matches!(place, RandomElement::Cost(_)))),
        );
        let bound_factor = enlarging(
            bounds.chain(values(&scaled, |place| matches!(place, RandomElement::Rhs(_)))),
        );
        for stage in [&mut scaled.first, &mut scaled.second] {
            stage.cost.iter_mut().for_each(|cost| *cost *= cost_factor);
            let bounds = stage.rhs.iter_mut().chain(&mut stage.lower).chain(&mut stage.upper);
            let slack = stage.below.iter_mut().chain(&mut stage.above);
            bounds.chain(slack).for_each(|bound| *bound *= bound_factor);
        }
        for_each_value(&mut scaled, |place, value| {
            *value *= match place {
                RandomElement::Rhs(_) => bound_factor,
                RandomElement::Cost(_) => cost_factor,
                RandomElement::Technology(..) | RandomElement::Recourse(..) => 1.0,
            };
        });
        scaled.offset *= cost_factor * bound_factor;
        let unit = |factors: &[f64]| factors.iter().map(|factor| factor / bound_factor).collect();
        Self {
            first: unit(first),
            second: unit(second),
            rows: first_rows.iter().map(|factor| 1.0 / factor / bound_factor).collect(),
            cost: 1.0 / (cost_factor * bound_factor),
            model: if scaled == *model { model } else { Arc::new(scaled) },
        }
    }
}

/// Changes each value of each random element.
fn for_each_value(model: &mut TwoStage, mut change: impl FnMut(&RandomElement, &mut f64)) {
    for block in &mut model.random {
        for outcome in &mut block.outcomes {
            for (place, value) in block.places.iter().zip(&mut outcome.values) {
                change(place, value);
            }
        }
    }
}

/// All values of the random elements at the wanted places.
fn values(model: &TwoStage, wanted: fn(&RandomElement) -> bool) -> impl Iterator<Item = f64> {
    model.random.iter().flat_map(move |block| {
        let outcomes = block.outcomes.iter();
        outcomes.flat_map(move |outcome| {
            let all = block.places.iter().zip(&outcome.values);
            all.filter(move |(place, _)| wanted(place)).map(|(_, value)| *value)
        })
    })
}

/// Each random element with its largest value, so that no entry of the matrix is overlooked.
fn largest_elements(model: &TwoStage) -> Vec<(RandomElement, f64)> {
    let elements = model.random.iter().flat_map(|block| {
        block.places.iter().enumerate().map(|(at, place)| {
            let values = block.outcomes.iter().map(|outcome| outcome.values[at]);
            let larger = |one: f64, other: f64| if other.abs() > one.abs() { other } else { one };
            (*place, values.fold(0.0, larger))
        })
    });
    elements.collect()
}

fn place_factor(place: &RandomElement, rows: &[f64], first: &[f64], second: &[f64]) -> f64 {
    match *place {
        RandomElement::Rhs(row) => rows[row],
        RandomElement::Cost(column) => second[column],
        RandomElement::Technology(row, column) => rows[row] * first[column],
        RandomElement::Recourse(row, column) => rows[row] * second[column],
    }
}

/// The factor that brings the geometric mean of small numbers to 1; it is 1 for others.
fn enlarging(values: impl Iterator<Item = f64>) -> f64 {
    let values = values.filter(|value| value.is_finite() && *value != 0.0);
    let (sum, count) =
        values.fold((0.0, 0.0), |(sum, count), value| (sum + value.abs().log2(), count + 1.0));
    let mean = if count == 0.0 { 1.0 } else { f64::exp2(sum / count) };
    if mean < SMALL { power_of_two(1.0 / mean) } else { 1.0 }
}

fn scale_stage(stage: &mut Stage, rows: &[f64], columns: &[f64]) {
    stage.matrix = scale_matrix(&stage.matrix, rows, columns);
    for (column, factor) in columns.iter().enumerate() {
        stage.cost[column] *= factor;
        stage.lower[column] /= factor;
        stage.upper[column] /= factor;
    }
    for (row, factor) in rows.iter().enumerate() {
        stage.rhs[row] *= factor;
        stage.below[row] *= factor;
        stage.above[row] *= factor;
    }
}

fn scale_matrix(matrix: &Columns, rows: &[f64], columns: &[f64]) -> Columns {
    let entries = (0..columns.len()).flat_map(|column| {
        let entries = matrix.column(column);
        entries.map(move |(row, value)| (row, column, value * rows[row] * columns[column]))
    });
    Columns::of(rows.len(), columns.len(), entries)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    #[test]
    fn balanced_programs_keep_their_numbers() {
        for model in [fixtures::plants(), fixtures::reservoir()] {
            let model = Arc::new(model);
            let scaled = Scaled::new(model.clone());
            assert!(Arc::ptr_eq(&model, &scaled.model), "{}", model.name);
            assert!(scaled.first.iter().chain(&scaled.rows).all(|factor| *factor == 1.0));
            assert_eq!(scaled.cost, 1.0);
        }
    }

    #[test]
    fn small_costs_and_bounds_are_enlarged() {
        let mut model = fixtures::plants();
        for stage in [&mut model.first, &mut model.second] {
            stage.cost.iter_mut().for_each(|cost| *cost *= 2_f64.powi(-20));
        }
        let scaled = Scaled::new(Arc::new(model));
        assert!(scaled.cost < 2_f64.powi(-15), "{}", scaled.cost);
        assert!(scaled.model.first.cost.iter().all(|cost| *cost > 0.01));
    }
}
