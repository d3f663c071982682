//! A two-stage stochastic linear program as data. This module knows neither files nor the solver.
//! Random elements are right-hand sides, costs and matrix entries of the second stage.

use serde::{Deserialize, Serialize};

/// A sparse matrix by columns. Within a column rows ascend, none twice, and no value is zero.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Columns {
    rows: usize,
    /// Start of each column in `index` and `value`, and end of the last column.
    starts: Vec<usize>,
    index: Vec<u32>,
    value: Vec<f64>,
}

impl Columns {
    /// Builds a matrix of entries (row, column, value) in any order. Entries at one place are
    /// summed.
    ///
    /// # Panics
    /// If a row or column is outside the matrix.
    pub fn of(
        rows: usize,
        columns: usize,
        entries: impl IntoIterator<Item = (usize, usize, f64)>,
    ) -> Self {
        let mut entries: Vec<(usize, usize, f64)> = entries.into_iter().collect();
        // A stable sort: entries at one place are summed in the given order.
        entries.sort_by_key(|&(row, column, _)| (column, row));
        entries.dedup_by(|next, kept| {
            let same = (next.0, next.1) == (kept.0, kept.1);
            if same {
                kept.2 += next.2;
            }
            same
        });
        let mut matrix =
            Self { rows, starts: vec![0; columns + 1], index: Vec::new(), value: Vec::new() };
        for (row, column, value) in entries {
            assert!(row < rows && column < columns, "({row}, {column}) of {rows} x {columns}");
            if value != 0.0 {
                matrix.index.push(row as u32);
                matrix.value.push(value);
                matrix.starts[column + 1] += 1;
            }
        }
        for column in 0..columns {
            matrix.starts[column + 1] += matrix.starts[column];
        }
        matrix
    }

    /// Number of the matrix's rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of the matrix's columns.
    pub fn columns(&self) -> usize {
        self.starts.len().saturating_sub(1)
    }

    /// Number of stored entries.
    pub fn entries(&self) -> usize {
        self.index.len()
    }

    /// Rows and values of a column.
    ///
    /// # Panics
    /// If there is no such column.
    pub fn column(&self, column: usize) -> impl ExactSizeIterator<Item = (usize, f64)> {
        let (rows, values) = self.slices(column);
        rows.iter().zip(values).map(|(&row, &value)| (row as usize, value))
    }

    /// Rows and values of a column as slices.
    ///
    /// # Panics
    /// If there is no such column.
    pub fn slices(&self, column: usize) -> (&[u32], &[f64]) {
        let at = self.starts[column]..self.starts[column + 1];
        (&self.index[at.clone()], &self.value[at])
    }

    /// The value of an entry; 0 if there is none.
    ///
    /// # Panics
    /// If there is no such column.
    pub fn get(&self, row: usize, column: usize) -> f64 {
        let (rows, values) = self.slices(column);
        rows.binary_search(&(row as u32)).map_or(0.0, |at| values[at])
    }

    /// The transpose: its columns are the rows of this matrix.
    pub fn transposed(&self) -> Self {
        let all = (0..self.columns())
            .flat_map(|column| self.column(column).map(move |(row, value)| (column, row, value)));
        Self::of(self.columns(), self.rows, all)
    }

    /// Adds the product of the matrix and a vector to `out`.
    ///
    /// # Panics
    /// If `x` or `out` has the wrong length.
    pub fn add_times(&self, x: &[f64], out: &mut [f64]) {
        assert_eq!((x.len(), out.len()), (self.columns(), self.rows));
        for (column, &x) in x.iter().enumerate() {
            if x != 0.0 {
                for (row, value) in self.column(column) {
                    out[row] += value * x;
                }
            }
        }
    }
}

/// Columns and rows of one stage. The activity of each row lies in `[rhs - below, rhs + above]`,
/// where `below` and `above` are at least 0 and may be infinite. Both are 0 in an equation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stage {
    /// Name of each column.
    pub columns: Vec<String>,
    /// Objective coefficient of each column.
    pub cost: Vec<f64>,
    /// Lower bound of each column, or minus infinity.
    pub lower: Vec<f64>,
    /// Upper bound of each column, or infinity.
    pub upper: Vec<f64>,
    /// Name of each row.
    pub rows: Vec<String>,
    /// Right-hand side of each row.
    pub rhs: Vec<f64>,
    /// Largest shortfall of each row from its right-hand side.
    pub below: Vec<f64>,
    /// Largest excess of each row over its right-hand side.
    pub above: Vec<f64>,
    /// Coefficients of the stage's columns in its rows.
    pub matrix: Columns,
}

/// A bound of a stage that a decision breaks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ConstraintViolation {
    /// The lower or upper bound of a column.
    Column {
        /// The column's index.
        column: usize,
        /// The bound.
        bound: f64,
    },
    /// A bound of a row.
    Row {
        /// The row's index.
        row: usize,
        /// The row's activity at the decision.
        activity: f64,
        /// The bound.
        bound: f64,
    },
}

impl ConstraintViolation {
    /// The violation in words, with the names of the stage.
    pub fn describe(&self, stage: &Stage) -> String {
        match *self {
            Self::Column { column, bound } => {
                format!("column {} breaks its bound {bound}", stage.columns[column])
            }
            Self::Row { row, activity, bound } => {
                format!("row {} is {activity}, beyond its bound {bound}", stage.rows[row])
            }
        }
    }
}

impl Stage {
    /// The first bound that a decision breaks by more than `tolerance`, relative to the largest
    /// number of that row or column.
    ///
    /// # Panics
    /// If `x` has another number of columns.
    pub fn violation(&self, x: &[f64], tolerance: f64) -> Option<ConstraintViolation> {
        let broken = |value: f64, lower: f64, upper: f64, size: f64| {
            let bound = if value < lower { lower } else { upper };
            let beyond = (lower - value).max(value - upper);
            (beyond > tolerance * size.max(bound.abs())).then_some(bound)
        };
        let columns = x.iter().enumerate().find_map(|(column, &x)| {
            let bound = broken(x, self.lower[column], self.upper[column], 1.0)?;
            Some(ConstraintViolation::Column { column, bound })
        });
        if columns.is_some() {
            return columns;
        }
        let mut activity = vec![0.0; self.rhs.len()];
        self.matrix.add_times(x, &mut activity);
        let mut size = vec![0.0_f64; self.rhs.len()];
        for (column, x) in x.iter().enumerate() {
            for (row, value) in self.matrix.column(column) {
                size[row] = size[row].max((value * x).abs()).max(value.abs().min(1.0));
            }
        }
        activity.into_iter().enumerate().find_map(|(row, activity)| {
            let (rhs, below, above) = (self.rhs[row], self.below[row], self.above[row]);
            let bound = broken(activity, rhs - below, rhs + above, size[row])?;
            Some(ConstraintViolation::Row { row, activity, bound })
        })
    }
}

/// A random element of the second stage. Indices count the rows and columns of their stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum RandomElement {
    /// The right-hand side of a row.
    Rhs(usize),
    /// An entry of the technology matrix: second-stage row and first-stage column.
    Technology(usize, usize),
    /// The cost of a second-stage column, in the sense of minimisation.
    Cost(usize),
    /// An entry of the recourse matrix: second-stage row and second-stage column.
    Recourse(usize, usize),
}

/// One outcome of a block.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Realisation {
    /// Probability of the outcome.
    pub probability: f64,
    /// Value of each of the block's places.
    pub values: Vec<f64>,
}

/// Random elements with a joint distribution, independent of all other blocks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MatrixBlock {
    /// The elements; no element is in two blocks.
    pub places: Vec<RandomElement>,
    /// The distribution. Probabilities are positive and sum to 1.
    pub outcomes: Vec<Realisation>,
}

/// A two-stage stochastic linear program, to be minimised. For a program that its files maximise,
/// [`TwoStage::maximise`] is set, and all costs and the constant have the opposite sign.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TwoStage {
    /// The name; may be empty.
    pub name: String,
    /// Whether the files maximise: objective values then change their sign when printed.
    pub maximise: bool,
    /// The constant of the objective.
    pub offset: f64,
    /// The first stage of the program.
    pub first: Stage,
    /// The second stage. Its random elements have the core file's values.
    pub second: Stage,
    /// Coefficients of first-stage columns in second-stage rows. Random elements have the core
    /// file's values.
    pub technology: Columns,
    /// The random elements, by block.
    pub random: Vec<MatrixBlock>,
}

impl TwoStage {
    /// Number of scenarios; none if it exceeds 2^64.
    pub fn scenarios(&self) -> Option<u64> {
        let counts = self.random.iter().map(|block| block.outcomes.len() as u64);
        counts.into_iter().try_fold(1_u64, |all, count| all.checked_mul(count))
    }

    /// The places of all random elements.
    pub fn places(&self) -> impl Iterator<Item = RandomElement> {
        self.random.iter().flat_map(|block| block.places.iter().copied())
    }

    /// The mean of each random element.
    pub fn mean(&self) -> impl Iterator<Item = (RandomElement, f64)> {
        self.random.iter().flat_map(|block| {
            let mean = |at: usize| {
                let outcomes = block.outcomes.iter();
                outcomes.map(|one| one.probability * one.values[at]).sum::<f64>()
            };
            block.places.iter().enumerate().map(move |(at, place)| (*place, mean(at)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_matrix_is_sorted_added_up_and_transposed() {
        let entries = [(2, 1, 1.0), (0, 1, 2.0), (2, 1, 3.0), (1, 0, 0.0), (1, 2, -1.0)];
        let matrix = Columns::of(3, 3, entries);
        assert_eq!((matrix.rows(), matrix.columns(), matrix.entries()), (3, 3, 3));
        assert_eq!(matrix.column(1).collect::<Vec<_>>(), [(0, 2.0), (2, 4.0)]);
        assert_eq!(matrix.column(0).len(), 0);
        assert_eq!([matrix.get(2, 1), matrix.get(1, 1)], [4.0, 0.0]);
        let back = matrix.transposed();
        assert_eq!(back.column(2).collect::<Vec<_>>(), [(1, 4.0)]);
        assert_eq!(back.transposed(), matrix);
        let mut out = vec![1.0; 3];
        matrix.add_times(&[9.0, 1.0, 2.0], &mut out);
        assert_eq!(out, [3.0, -1.0, 5.0]);
    }
}
