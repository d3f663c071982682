//! Scaling of a program, and the tolerances that hold in scaled units.
//!
//! All factors are powers of two, so scaling and its inverse are exact.
//!
//! Source: Curtis and Reid, On the automatic scaling of matrices for Gaussian elimination (IMA
//! Journal of Applied Mathematics 1972), for the goal; the iteration is geometric scaling as in
//! Maros, Computational techniques of the simplex method (2003).

use super::super::problem::LinearProgram;

/// Entries within this factor of 1 need no scaling.
const BALANCED: f64 = 1024.0;
/// Rounds of geometric scaling.
const ROUNDS: usize = 4;

/// Factors of rows and columns: entry (i, j) is multiplied by `rows[i] * columns[j]`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scale {
    pub rows: Vec<f64>,
    pub columns: Vec<f64>,
}

impl Scale {
    /// The factors that bring all entries near 1. All factors are 1 if the entries are near 1
    /// already.
    pub fn new(problem: &LinearProgram) -> Self {
        let (m, n) = (problem.rows(), problem.columns());
        let mut scale = Self { rows: vec![1.0; m], columns: vec![1.0; n] };
        let entries = (0..m).flat_map(|row| problem.row(row).map(|(_, value)| value));
        if entries.into_iter().all(is_balanced) {
            return scale;
        }
        for _ in 0..ROUNDS {
            for row in 0..m {
                let entries = problem.row(row).map(|(column, value)| value * scale.columns[column]);
                scale.rows[row] = factor(entries);
            }
            for column in 0..n {
                let entries = problem.column(column).iter();
                let entries = entries.map(|&(row, value)| value * scale.rows[row as usize]);
                scale.columns[column] = factor(entries);
            }
        }
        scale
    }

    /// Whether all factors are 1.
    pub fn is_identity(&self) -> bool {
        self.rows.iter().chain(&self.columns).all(|factor| *factor == 1.0)
    }

    /// The factor that brings the largest entry of a new row of a scaled program near 1.
    pub fn added_row(&self, entries: &[(usize, f64)]) -> f64 {
        let scaled = entries.iter().map(|&(column, value)| (value * self.columns[column]).abs());
        let largest = scaled.fold(0.0, f64::max);
        if largest == 0.0 || is_balanced(largest) { 1.0 } else { power_of_two(1.0 / largest) }
    }
}

fn is_balanced(value: f64) -> bool {
    (1.0 / BALANCED..=BALANCED).contains(&value.abs())
}

/// The factor after which the smallest and the largest value have the same distance from 1, in the
/// logarithm.
fn factor(values: impl Iterator<Item = f64>) -> f64 {
    let (mut least, mut most) = (f64::INFINITY, 0.0_f64);
    for value in values {
        least = least.min(value.abs());
        most = most.max(value.abs());
    }
    if most == 0.0 { 1.0 } else { power_of_two(1.0 / (least.sqrt() * most.sqrt())) }
}

/// The nearest power of two.
pub(crate) fn power_of_two(value: f64) -> f64 {
    value.log2().round().clamp(-500.0, 500.0).exp2()
}

/// The unit that absolute tolerances are relative to: the geometric mean of the magnitudes, but at
/// most 1, and at least 1e-6.
pub(super) fn unit(values: impl Iterator<Item = f64>) -> f64 {
    let (mut sum, mut count) = (0.0, 0.0);
    for value in values.filter(|value| *value != 0.0 && value.is_finite()) {
        sum += value.abs().log2();
        count += 1.0;
    }
    if count == 0.0 { 1.0 } else { power_of_two((sum / count).exp2()).clamp(1e-6, 1.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_columns_in_other_units_are_brought_back() {
        let mut problem = LinearProgram::new(&[1.0; 3], &[0.0; 3], &[1.0; 3]);
        let (rows, columns) = ([1e9, 1.0, 1e-7], [1e-4, 1.0, 1e6]);
        for row in rows {
            problem.add_row((0..3).map(|column| (column, 3.0 * row * columns[column])), 0.0, 1.0);
        }
        let scale = Scale::new(&problem);
        for row in 0..3 {
            for (column, value) in problem.row(row) {
                let scaled = value * scale.rows[row] * scale.columns[column];
                assert!((0.2..5.0).contains(&scaled), "{row} {column} {scaled}");
            }
        }
    }

    #[test]
    fn balanced_programs_keep_their_numbers() {
        let mut problem = LinearProgram::new(&[1.0; 2], &[0.0; 2], &[1.0; 2]);
        problem.add_row([(0, 1000.0), (1, 0.01)], 0.0, 1.0);
        let mut scale = Scale::new(&problem);
        assert_eq!((scale.rows, scale.columns.clone()), (vec![1.0], vec![1.0; 2]));
        scale.rows = Vec::new();
        assert_eq!(scale.added_row(&[(0, 3.0), (1, -1e-9)]), 1.0);
        assert_eq!(scale.added_row(&[(0, 3.0), (1, -2_f64.powi(40))]), 2_f64.powi(-40));
        assert_eq!(scale.added_row(&[]), 1.0);
    }

    #[test]
    fn units_are_at_most_one() {
        assert_eq!(unit([0.5, 1e9, f64::INFINITY, 0.0].into_iter()), 1.0);
        assert_eq!(unit([2_f64.powi(-10); 3].into_iter()), 2_f64.powi(-10));
        assert_eq!(unit([1e-30].into_iter()), 1e-6);
        assert_eq!(unit([].into_iter()), 1.0);
    }
}
