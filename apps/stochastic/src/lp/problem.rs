//! A linear program as data.

use crate::model::Columns;

/// Minimise c'x subject to l <= x <= u and a lower and an upper bound of each row's activity.
///
/// Row `i` has a *logical* variable of number `columns + i`, which is minus the row's activity. So
/// every row reads Ax + s = 0, and right-hand sides are bounds of variables.
#[derive(Clone, Debug, Default)]
pub struct LinearProgram {
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

impl LinearProgram {
    /// A program with these columns and no rows. Bounds may be infinite.
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

    /// Adds a row with a lower and an upper bound. No column may occur twice in it.
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

    /// Adds all rows of a matrix: the activity of row i lies in
    /// `[rhs[i] - below[i], rhs[i] + above[i]]`.
    ///
    /// # Panics
    /// If the lengths do not fit.
    pub fn add_rows(&mut self, matrix: &Columns, rhs: &[f64], below: &[f64], above: &[f64]) {
        let by_rows = matrix.transposed();
        for row in 0..matrix.rows() {
            self.add_row(by_rows.column(row), rhs[row] - below[row], rhs[row] + above[row]);
        }
    }

    /// Keeps the rows for which `keep` holds, and renumbers them in their order.
    pub fn retain_rows(&mut self, mut keep: impl FnMut(usize) -> bool) {
        let mut left = Self::new(&self.cost, &self.lower, &self.upper);
        for row in 0..self.rows() {
            if keep(row) {
                left.add_row(self.row(row), self.row_lower[row], self.row_upper[row]);
            }
        }
        *self = left;
    }

    /// The program in other units: rows multiplied by `rows`, columns by `columns`.
    pub(super) fn scaled(&self, rows: &[f64], columns: &[f64]) -> Self {
        let times = |values: &[f64]| -> Vec<f64> {
            values.iter().zip(columns).map(|(value, scale)| value * scale).collect()
        };
        let divided = |values: &[f64]| -> Vec<f64> {
            values.iter().zip(columns).map(|(value, scale)| value / scale).collect()
        };
        let (lower, upper) = (divided(&self.lower), divided(&self.upper));
        let mut scaled = Self::new(&times(&self.cost), &lower, &upper);
        for (row, scale) in rows.iter().enumerate() {
            let entries = self.row(row).map(|(at, value)| (at, value * scale * columns[at]));
            scaled.add_row(entries, self.row_lower[row] * scale, self.row_upper[row] * scale);
        }
        scaled
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.row_lower.len()
    }

    /// The number of columns.
    pub fn columns(&self) -> usize {
        self.cost.len()
    }

    /// The number of entries.
    pub fn entries(&self) -> usize {
        self.row_index.len()
    }

    /// The columns and values of a row.
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

    /// The rows and values of a column, in order of rows.
    ///
    /// # Panics
    /// If there is no such column.
    pub fn column(&self, column: usize) -> &[(u32, f64)] {
        &self.columns[column]
    }

    /// The bounds of a row's activity.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row_bounds(&self, row: usize) -> (f64, f64) {
        (self.row_lower[row], self.row_upper[row])
    }

    /// Sets the bounds of a row's activity.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn set_row_bounds(&mut self, row: usize, lower: f64, upper: f64) {
        (self.row_lower[row], self.row_upper[row]) = (lower, upper);
    }

    /// The cost of a column.
    ///
    /// # Panics
    /// If there is no such column.
    pub fn cost(&self, column: usize) -> f64 {
        self.cost[column]
    }

    /// The bounds of a column.
    ///
    /// # Panics
    /// If there is no such column.
    pub fn bounds(&self, column: usize) -> (f64, f64) {
        (self.lower[column], self.upper[column])
    }

    /// Sets the bounds of a column.
    ///
    /// # Panics
    /// If there is no such column.
    pub fn set_bounds(&mut self, column: usize, lower: f64, upper: f64) {
        (self.lower[column], self.upper[column]) = (lower, upper);
    }
}
