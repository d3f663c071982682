//! Checks of answers against the program itself, without the factors that found them.
//!
//! Scale factors are powers of two, so a residual relative to its row is the same in scaled units
//! and in the caller's.

use super::{Position, Pricing, Simplex};

/// The largest violation of a bound, relative to the numbers of its row.
const PRIMAL: f64 = 2e-7;
/// The largest reduced cost of the wrong sign, relative to the terms that it is the sum of.
const DUAL: f64 = 1e-7;
/// The largest sum that counts as zero, relative to its terms.
const CANCELLED: f64 = 1e-10;
/// The least violation that a ray must prove, relative to the terms of its proof.
const PROVED: f64 = 1e-9;
/// The reduced costs of a solve with at least this many pivots are checked.
const LONG_SOLVE: u64 = 300;
/// The reduced costs of a shorter solve are checked if this divides the number of its pivots.
const CHECK_EVERY: u64 = 16;

impl Simplex {
    /// Whether residuals and reduced costs confirm the point. Residuals are checked after each
    /// solve; reduced costs, which take a pass over the matrix, only after some of the short solves
    /// from a root. The number of pivots alone decides which.
    pub(super) fn confirms_optimal(&mut self) -> bool {
        let pivots = self.pivots - self.pivots_before;
        let whole = self.pricing == Pricing::Steepest
            || pivots >= LONG_SOLVE
            || pivots.is_multiple_of(CHECK_EVERY);
        self.confirms_primal() && (!whole || self.confirms_dual())
    }

    fn confirms_primal(&mut self) -> bool {
        let (n, m) = (self.problem.columns(), self.problem.rows());
        let mut activity = std::mem::take(&mut self.work.activity);
        activity.clear();
        activity.resize(m, 0.0);
        self.for_each_value(|variable, x| {
            for &(row, value) in self.problem.column(variable) {
                activity[row as usize] += value * x;
            }
        });
        let mut confirmed = self.head.iter().zip(&self.x).all(|(&variable, &x)| {
            let variable = variable as usize;
            let within = |low, high| variable >= n || !self.is_beyond(x, low, high, 0.0);
            x.is_finite() && within(self.low[variable], self.high[variable])
        });
        for (row, activity) in activity.iter().enumerate() {
            let (low, high) = (self.low[n + row], self.high[n + row]);
            // Only a row with a doubtful residual needs the size of its terms.
            confirmed &= !self.is_beyond(-activity, low, high, 0.0)
                || !self.is_beyond(-activity, low, high, self.largest_term(row));
        }
        self.work.activity = activity;
        confirmed
    }

    /// Calls `visit` for each column with a nonzero value.
    #[inline]
    fn for_each_value(&self, mut visit: impl FnMut(usize, f64)) {
        let n = self.problem.columns();
        for &column in &self.nonzero_bounds {
            let x = self.value(column as usize);
            if x != 0.0 {
                visit(column as usize, x);
            }
        }
        for (&variable, &x) in self.head.iter().zip(&self.x) {
            if (variable as usize) < n && x != 0.0 {
                visit(variable as usize, x);
            }
        }
    }

    fn is_beyond(&self, x: f64, low: f64, high: f64, size: f64) -> bool {
        let bound = if x < low { low } else { high };
        (low - x).max(x - high) > PRIMAL * self.primal_unit.max(size).max(bound.abs())
    }

    /// The largest term of a row's activity.
    fn largest_term(&self, row: usize) -> f64 {
        let mut x = vec![0.0; self.problem.columns()];
        self.for_each_value(|variable, value| x[variable] = value);
        self.problem.row(row).fold(0.0, |most, (column, value)| (value * x[column]).abs().max(most))
    }

    fn confirms_dual(&self) -> bool {
        let n = self.problem.columns();
        let y = |row: usize| match self.position[n + row] {
            Position::Basic => 0.0,
            _ => -self.d[n + row],
        };
        let wrong = |position: Position, d: f64| match position {
            Position::Lower => -d,
            Position::Upper => d,
            Position::Free | Position::Basic => d.abs(),
            Position::Fixed => 0.0,
        };
        let columns = (0..n).all(|column| {
            let mut d = self.problem.cost[column];
            let mut magnitude = self.dual_unit.max(d.abs());
            for &(row, value) in self.problem.column(column) {
                let term = y(row as usize) * value;
                d -= term;
                magnitude = magnitude.max(term.abs());
            }
            wrong(self.position[column], d) <= DUAL * magnitude
        });
        columns
            && (0..self.problem.rows()).all(|row| {
                let position = self.position[n + row];
                position == Position::Basic || wrong(position, -y(row)) <= DUAL * self.dual_unit
            })
    }

    /// Whether the ray proves the program infeasible: within the bounds of the columns, the least
    /// weighted sum of the rows exceeds the largest one that the bounds of the rows allow.
    pub(super) fn confirms_infeasible(&self) -> bool {
        if self.crossed {
            return true;
        }
        let (n, m) = (self.problem.columns(), self.problem.rows());
        let ray = |row: usize| self.ray[row] / self.scale.rows[row];
        let (mut gap, mut terms) = (0.0, 0.0_f64);
        let largest = (0..m).fold(0.0_f64, |most, row| most.max(ray(row).abs()));
        for row in 0..m {
            let weight = ray(row);
            let (lower, upper) = self.problem.row_bounds(row);
            let bound = if weight > 0.0 { upper } else { lower };
            if weight == 0.0 || bound.is_infinite() && weight.abs() <= CANCELLED * largest {
                continue;
            }
            gap -= weight * bound;
            terms += (weight * bound).abs();
        }
        for column in 0..n {
            let (mut weight, mut magnitude) = (0.0, 0.0_f64);
            for &(row, value) in self.problem.column(column) {
                let term = ray(row as usize) * value;
                weight += term;
                magnitude = magnitude.max(term.abs());
            }
            let (low, high) = (self.low[column], self.high[column]);
            let bound = if weight > 0.0 { low } else { high };
            if weight == 0.0 || bound.is_infinite() && weight.abs() <= CANCELLED * magnitude {
                continue;
            }
            gap += weight * bound;
            terms += (weight * bound).abs();
        }
        gap.is_finite() && gap > PROVED * terms
    }

    /// Whether the direction proves the program unbounded: it leaves no finite bound, costs fall
    /// along it, and the point that it starts from is feasible.
    pub(super) fn confirms_unbounded(&mut self) -> bool {
        let (n, m) = (self.problem.columns(), self.problem.rows());
        let along = |column: usize| self.direction[column] / self.scale.columns[column];
        let largest = (0..n).fold(0.0_f64, |most, column| most.max(along(column).abs()));
        let leaves = |by: f64, low: f64, high: f64, size: f64| {
            let bound = if by < 0.0 { low } else { high };
            bound.is_finite() && by.abs() > CANCELLED * size
        };
        let (mut slope, mut terms) = (0.0, 0.0);
        for column in 0..n {
            let by = along(column);
            if leaves(by, self.low[column], self.high[column], largest) {
                return false;
            }
            slope += self.problem.cost[column] * by;
            terms += (self.problem.cost[column] * by).abs();
        }
        for row in 0..m {
            // Residues of rounding are compared with the largest entry of the whole row.
            let (mut by, mut size) = (0.0, 0.0_f64);
            for (column, value) in self.problem.row(row) {
                by += value * along(column);
                size = size.max(value.abs());
            }
            let (lower, upper) = self.problem.row_bounds(row);
            if leaves(by, lower, upper, size * largest) {
                return false;
            }
        }
        slope < -PROVED * terms && self.confirms_primal()
    }
}
