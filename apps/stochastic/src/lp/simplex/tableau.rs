//! The tableau of the present basis: reduced costs, values of variables, single rows and columns,
//! and the exchange of a basic variable.

use super::super::problem::LinearProgram;
use super::{Position, Simplex};

/// A number of the tableau below this counts as zero.
const TINY: f64 = 1e-13;
/// A sum that cancelled: it stays an entry of its row.
const CANCELLED: f64 = 1e-300;

impl Simplex {
    /// Computes the reduced costs of the basis.
    pub(super) fn compute_reduced_costs(&mut self) {
        let n = self.problem.columns();
        let mut y = std::mem::take(&mut self.work.rho);
        y.clear();
        y.extend(self.head.iter().map(|&variable| self.cost[variable as usize]));
        self.factor.btran(&mut y);
        self.d.copy_from_slice(&self.cost);
        for (row, &y) in y.iter().enumerate() {
            if y != 0.0 {
                let (index, value) = self.problem.row_slices(row);
                for (&column, &value) in index.iter().zip(value) {
                    self.d[column as usize] -= y * value;
                }
                self.d[n + row] -= y;
            }
        }
        for &variable in &self.head {
            self.d[variable as usize] = 0.0;
        }
        self.work.rho = y;
        self.priced = true;
    }

    /// The value of a nonbasic variable; zero for a basic one.
    #[inline(always)]
    pub(super) fn value(&self, variable: usize) -> f64 {
        match self.position[variable] {
            Position::Lower | Position::Fixed => self.low[variable],
            Position::Upper => self.high[variable],
            Position::Free | Position::Basic => 0.0,
        }
    }

    /// Computes the values of basic variables from those of the others.
    pub(super) fn compute_values(&mut self) {
        let mut x = std::mem::take(&mut self.x);
        x.fill(0.0);
        let logical = self.problem.columns()..self.position.len();
        let structural = self.nonzero_bounds.iter().map(|column| *column as usize);
        for variable in structural.chain(logical) {
            let value = self.value(variable);
            if value == 0.0 {
                continue;
            }
            for (row, entry) in Entries::of(&self.problem, variable) {
                x[row] -= entry * value;
            }
        }
        self.factor.ftran(&mut x);
        self.x = x;
        for (row, &variable) in self.head.iter().enumerate() {
            self.basic_low[row] = self.low[variable as usize];
            self.basic_high[row] = self.high[variable as usize];
        }
    }

    /// Computes a row of the tableau into `work.alpha`; `work.touched` lists its nonzero entries.
    #[inline]
    pub(super) fn tableau_row(&mut self, row: usize) {
        let n = self.problem.columns();
        let m = self.head.len();
        let work = &mut self.work;
        work.rho.clear();
        work.rho.resize(m, 0.0);
        work.rho[row] = 1.0;
        self.factor.btran(&mut work.rho);
        work.alpha.resize(n + m, 0.0);
        let (alpha, touched) = (&mut work.alpha[..], &mut work.touched);
        touched.clear();
        for (row, rho) in work.rho.iter_mut().enumerate() {
            let times = *rho;
            if times.abs() <= TINY {
                *rho = 0.0;
                continue;
            }
            let (index, value) = self.problem.row_slices(row);
            for (&column, &value) in index.iter().zip(value) {
                let at = &mut alpha[column as usize];
                if *at == 0.0 {
                    touched.push(column);
                }
                let sum = *at + times * value;
                *at = if sum == 0.0 { CANCELLED } else { sum };
            }
            alpha[n + row] = times;
            touched.push((n + row) as u32);
        }
    }

    /// Clears the row of the tableau in `work.alpha`.
    #[inline]
    pub(super) fn clear_row(&mut self) {
        for &variable in &self.work.touched {
            self.work.alpha[variable as usize] = 0.0;
        }
        self.work.touched.clear();
    }

    /// Updates the reduced costs after a pivot by the row of the tableau, and clears that row.
    #[inline]
    pub(super) fn update_reduced_costs(&mut self, theta: f64) {
        for &variable in &self.work.touched {
            let variable = variable as usize;
            let alpha = std::mem::take(&mut self.work.alpha[variable]);
            if self.position[variable] != Position::Basic {
                self.d[variable] -= theta * alpha;
            }
        }
        self.work.touched.clear();
    }

    /// Computes a variable's column of the tableau into `work.column`; `work.column_at` lists its
    /// nonzero entries.
    #[inline]
    pub(super) fn tableau_column(&mut self, variable: usize) {
        let work = &mut self.work;
        work.column.clear();
        work.column.resize(self.head.len(), 0.0);
        Entries::of(&self.problem, variable).for_each(|(row, value)| work.column[row] = value);
        self.factor.ftran(&mut work.column);
        work.column_at.clear();
        for (row, value) in work.column.iter().enumerate() {
            if value.abs() > TINY {
                work.column_at.push(row as u32);
            }
        }
    }

    /// Exchanges the basic variable of a row, which leaves to the bound `to`, for a nonbasic one,
    /// whose value changes by `step`.
    #[inline]
    pub(super) fn exchange(&mut self, row: usize, entering: usize, step: f64, to: Position) {
        let value = self.value(entering) + step;
        for &at in &self.work.column_at {
            self.x[at as usize] -= step * self.work.column[at as usize];
        }
        let out = self.head[row] as usize;
        self.position[out] = if self.low[out] == self.high[out] { Position::Fixed } else { to };
        self.position[entering] = Position::Basic;
        self.d[entering] = 0.0;
        self.head[row] = entering as u32;
        self.x[row] = value;
        (self.basic_low[row], self.basic_high[row]) = (self.low[entering], self.high[entering]);
        self.factor.replace(row, &self.work.column, &self.work.column_at);
        self.pivots += 1;
    }
}

/// Iterator over the rows and values of a variable's column.
pub(super) enum Entries<'a> {
    Column(std::slice::Iter<'a, (u32, f64)>),
    Logical(Option<usize>),
}

impl<'a> Entries<'a> {
    #[inline]
    pub(super) fn of(problem: &'a LinearProgram, variable: usize) -> Self {
        match variable.checked_sub(problem.columns()) {
            Some(row) => Self::Logical(Some(row)),
            None => Self::Column(problem.column(variable).iter()),
        }
    }
}

impl Iterator for Entries<'_> {
    type Item = (usize, f64);

    #[inline]
    fn next(&mut self) -> Option<(usize, f64)> {
        match self {
            Self::Column(entries) => entries.next().map(|&(row, value)| (row as usize, value)),
            Self::Logical(row) => row.take().map(|row| (row, 1.0)),
        }
    }
}
