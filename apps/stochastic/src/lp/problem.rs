//! A linear program as the simplex method sees it.
//!
//! Must not know how it is solved.

use crate::model::Columns;

/// min c'x where l <= x <= u and each row's activity lies between two bounds. Row `i` has a *logical* variable, number `columns + i`,
/// which is minus the row's activity: so all rows read Ax + s = 0, and right-hand sides are bounds like any other.
#[derive(Clone, Debug, Default)]
pub struct Problem {
    columns: Vec<Vec<(u32, f64)>>,
    row_starts: Vec<usize>,
    row_index: Vec<u32>,
    row_value: Vec<f64>,
    pub(super) cost: Vec<f64>,
    pub(super) lower: Vec<f64>,
    pub(super) upper: Vec<f64>,
    row_lower: Vec<f64>,
    row_upper: Vec<f64>,
}

impl Problem {
    /// With these columns, and no rows yet: costs, and bounds that may be infinite.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn new(cost: &[f64], lower: &[f64], upper: &[f64]) -> Self {
        assert_eq!((cost.len(), cost.len()), (lower.len(), upper.len()));
        Self {
            columns: vec![Vec::new(); cost.len()],
            row_starts: vec![0],
            cost: cost.to_vec(),
            lower: lower.to_vec(),
            upper: upper.to_vec(),
            ..Self::default()
        }
    }

    /// Adds a row with a lower and an upper bound.
    ///
    /// # Panics
    /// If there is no such column.
    pub fn add_row(
        &mut self,
        entries: impl IntoIterator<Item = (usize, f64)>,
        lower: f64,
        upper: f64,
    ) {
        let row = self.rows() as u32;
        for (column, value) in entries {
            if value != 0.0 {
                self.columns[column].push((row, value));
                self.row_index.push(column as u32);
                self.row_value.push(value);
            }
        }
        self.row_starts.push(self.row_index.len());
        self.row_lower.push(lower);
        self.row_upper.push(upper);
    }

    /// Adds all rows of a matrix: row i's activity lies in `[rhs[i] - below[i], rhs[i] + above[i]]`.
    ///
    /// # Panics
    /// If the lengths do not fit.
    pub fn add_rows(&mut self, matrix: &Columns, rhs: &[f64], below: &[f64], above: &[f64]) {
        let by_rows = matrix.transposed();
        for row in 0..matrix.rows() {
            self.add_row(by_rows.column(row), rhs[row] - below[row], rhs[row] + above[row]);
        }
    }

    /// Keeps the rows for which `keep` holds. Those that remain have lower numbers.
    pub fn retain_rows(&mut self, mut keep: impl FnMut(usize) -> bool) {
        let mut left = Self::new(&self.cost, &self.lower, &self.upper);
        for row in 0..self.rows() {
            if keep(row) {
                left.add_row(self.row(row), self.row_lower[row], self.row_upper[row]);
            }
        }
        *self = left;
    }

    /// How many rows.
    pub fn rows(&self) -> usize {
        self.row_lower.len()
    }

    /// How many columns.
    pub fn columns(&self) -> usize {
        self.cost.len()
    }

    /// How many entries.
    pub fn entries(&self) -> usize {
        self.row_index.len()
    }

    /// A row's columns and values.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row(&self, row: usize) -> impl Iterator<Item = (usize, f64)> {
        let (index, value) = self.row_slices(row);
        index.iter().zip(value).map(|(&column, &value)| (column as usize, value))
    }

    #[inline(always)]
    pub(super) fn row_slices(&self, row: usize) -> (&[u32], &[f64]) {
        let range = self.row_starts[row]..self.row_starts[row + 1];
        (&self.row_index[range.clone()], &self.row_value[range])
    }

    /// A column's rows and values, in order of rows.
    ///
    /// # Panics
    /// If there is no such column.
    pub fn column(&self, column: usize) -> &[(u32, f64)] {
        &self.columns[column]
    }

    /// Bounds of a row's activity.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row_bounds(&self, row: usize) -> (f64, f64) {
        (self.row_lower[row], self.row_upper[row])
    }

    /// Sets them.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn set_row_bounds(&mut self, row: usize, lower: f64, upper: f64) {
        (self.row_lower[row], self.row_upper[row]) = (lower, upper);
    }

    /// What a column costs.
    ///
    /// # Panics
    /// If there is no such column.
    pub fn cost(&self, column: usize) -> f64 {
        self.cost[column]
    }

    /// Bounds of a column.
    ///
    /// # Panics
    /// If there is no such column.
    pub fn bounds(&self, column: usize) -> (f64, f64) {
        (self.lower[column], self.upper[column])
    }

    /// Sets them.
    ///
    /// # Panics
    /// If there is no such column.
    pub fn set_bounds(&mut self, column: usize, lower: f64, upper: f64) {
        (self.lower[column], self.upper[column]) = (lower, upper);
    }
}
