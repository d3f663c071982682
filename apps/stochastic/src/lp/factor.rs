//! The factors of a basis matrix: triangular factors of the basis as it was factored, and an
//! elementary matrix for each column replaced since (product form of the inverse).
//!
//! Rows and positions of the basis share one index space: [`Factor::of`] returns which column has
//! its pivot in which row, so a vector is solved in place. This module must not know what a linear
//! program is.
//!
//! Sources: Markowitz, The elimination form of the inverse (Management Science 1957); Suhl and
//! Suhl, Computing sparse LU factorizations for large-scale linear programming bases (ORSA J.
//! Computing 1990), which eliminates singletons first.

/// The smallest pivot relative to the largest entry of its column (threshold pivoting).
const THRESHOLD: f64 = 0.1;
/// The smallest pivot.
const PIVOT_MIN: f64 = 1e-11;
/// Entries of a replaced column up to this size are dropped.
const DROP: f64 = 1e-14;
/// The number of columns, those with the fewest entries, that are searched for a pivot.
const SEARCHED_COLUMNS: usize = 4;

/// Sparse vectors, stored one after another.
#[derive(Clone, Debug)]
struct SparseVectors {
    starts: Vec<u32>,
    index: Vec<u32>,
    value: Vec<f64>,
}

impl Default for SparseVectors {
    fn default() -> Self {
        Self { starts: vec![0], index: Vec::new(), value: Vec::new() }
    }
}

impl SparseVectors {
    /// Adds an entry to the last vector.
    fn push(&mut self, index: usize, value: f64) {
        self.index.push(index as u32);
        self.value.push(value);
    }

    /// Completes the last vector and begins the next one.
    fn close(&mut self) {
        self.starts.push(self.index.len() as u32);
    }

    #[inline(always)]
    fn get(&self, at: usize) -> (&[u32], &[f64]) {
        let range = self.starts[at] as usize..self.starts[at + 1] as usize;
        (&self.index[range.clone()], &self.value[range])
    }

    /// Keeps the first `count` vectors.
    fn truncate(&mut self, count: usize) {
        self.starts.truncate(count + 1);
        let end = self.starts[count] as usize;
        self.index.truncate(end);
        self.value.truncate(end);
    }

    fn entries(&self) -> usize {
        self.index.len()
    }
}

/// Subtracts `times` times a sparse vector from `x`.
#[inline(always)]
fn subtract((index, value): (&[u32], &[f64]), times: f64, x: &mut [f64]) {
    for (&at, &value) in index.iter().zip(value) {
        x[at as usize] -= value * times;
    }
}

/// The inner product of a sparse vector and `x`.
#[inline(always)]
fn dot((index, value): (&[u32], &[f64]), x: &[f64]) -> f64 {
    index.iter().zip(value).map(|(&at, &value)| value * x[at as usize]).sum()
}

/// The factors of a basis; by default of the empty one.
#[derive(Clone, Debug, Default)]
pub struct Factor {
    /// Pivot rows of the lower factor's columns.
    l_rows: Vec<u32>,
    l: SparseVectors,
    /// Pivot rows of the upper factor in the order of elimination. Steps without effect are left
    /// out: a unit column whose row has no other entry.
    u_rows: Vec<u32>,
    u_pivots: Vec<f64>,
    /// Entries above the pivots, by columns.
    u: SparseVectors,
    /// The same entries by rows.
    u_by_rows: SparseVectors,
    /// The row of each replaced column. Its eta vector is the new column in terms of the basis
    /// before.
    eta_rows: Vec<u32>,
    eta_pivots: Vec<f64>,
    eta: SparseVectors,
}

/// A basis whose columns are dependent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Singular {
    /// The positions of columns without a pivot.
    pub positions: Vec<usize>,
    /// The rows without a pivot; as many.
    pub rows: Vec<usize>,
}

/// The active submatrix: rows and columns that are not eliminated yet.
struct ActiveSubmatrix {
    columns: Vec<Vec<(u32, f64)>>,
    /// The columns that have, or had, an entry in each row.
    rows: Vec<Vec<u32>>,
    /// The number of active columns with an entry in each row.
    row_counts: Vec<u32>,
    row_done: Vec<bool>,
    column_done: Vec<bool>,
    /// The entries of each column in eliminated rows.
    above: Vec<Vec<(u32, f64)>>,
}

impl Factor {
    /// Factors a square matrix, given by columns. Returns the factors, and for each row the
    /// position of the column that has its pivot there.
    ///
    /// # Errors
    /// The columns are dependent.
    ///
    /// # Panics
    /// If an entry's row is beyond the number of columns.
    pub fn of<'a, I>(columns: &mut dyn Iterator<Item = I>) -> Result<(Self, Vec<usize>), Singular>
    where
        I: Iterator<Item = (usize, f64)> + 'a,
    {
        let given: Vec<Vec<(u32, f64)>> = columns
            .map(|column| column.map(|(row, value)| (row as u32, value)).collect())
            .collect();
        let m = given.len();
        let mut active = ActiveSubmatrix {
            rows: vec![Vec::new(); m],
            row_counts: vec![0; m],
            row_done: vec![false; m],
            column_done: vec![false; m],
            above: vec![Vec::new(); m],
            columns: given,
        };
        for (at, column) in active.columns.iter().enumerate() {
            for &(row, _) in column {
                active.rows[row as usize].push(at as u32);
                active.row_counts[row as usize] += 1;
            }
        }
        let mut order: Vec<(u32, u32, f64)> = Vec::with_capacity(m);
        let (mut l_rows, mut l) = (Vec::new(), SparseVectors::default());
        active.eliminate_singleton_columns(&mut order);
        active.eliminate_singleton_rows(&mut order, &mut l_rows, &mut l);
        active.eliminate_others(&mut order, &mut l_rows, &mut l);
        if order.len() < m {
            let left = |done: &[bool]| (0..m).filter(|&at| !done[at]).collect();
            let (positions, rows) = (left(&active.column_done), left(&active.row_done));
            return Err(Singular { positions, rows });
        }
        Ok(Self::assemble(m, &order, &active.above, (l_rows, l)))
    }

    /// Builds the factors from the pivots (row, column, value) in the order of elimination.
    fn assemble(
        m: usize,
        order: &[(u32, u32, f64)],
        above: &[Vec<(u32, f64)>],
        (l_rows, l): (Vec<u32>, SparseVectors),
    ) -> (Self, Vec<usize>) {
        let mut at_row = vec![0; m];
        let mut by_rows: Vec<Vec<(u32, f64)>> = vec![Vec::new(); m];
        for &(row, column, _) in order {
            at_row[row as usize] = column as usize;
            for &(over, value) in &above[column as usize] {
                by_rows[over as usize].push((row, value));
            }
        }
        let (mut u_rows, mut u_pivots) = (Vec::new(), Vec::new());
        let (mut u, mut u_by_rows) = (SparseVectors::default(), SparseVectors::default());
        for &(row, column, pivot) in order {
            let (over, right) = (&above[column as usize], &by_rows[row as usize]);
            if pivot == 1.0 && over.is_empty() && right.is_empty() {
                continue;
            }
            u_rows.push(row);
            u_pivots.push(pivot);
            over.iter().for_each(|&(row, value)| u.push(row as usize, value));
            u.close();
            right.iter().for_each(|&(row, value)| u_by_rows.push(row as usize, value));
            u_by_rows.close();
        }
        (Self { l_rows, l, u_rows, u_pivots, u, u_by_rows, ..Self::default() }, at_row)
    }

    /// Solves Bx = v, in place.
    #[inline]
    pub fn ftran(&self, x: &mut [f64]) {
        for (step, &row) in self.l_rows.iter().enumerate() {
            let value = x[row as usize];
            if value != 0.0 {
                subtract(self.l.get(step), value, x);
            }
        }
        for step in (0..self.u_rows.len()).rev() {
            let row = self.u_rows[step] as usize;
            if x[row] != 0.0 {
                let value = x[row] / self.u_pivots[step];
                x[row] = value;
                subtract(self.u.get(step), value, x);
            }
        }
        for (step, &row) in self.eta_rows.iter().enumerate() {
            let row = row as usize;
            if x[row] != 0.0 {
                let value = x[row] / self.eta_pivots[step];
                x[row] = value;
                subtract(self.eta.get(step), value, x);
            }
        }
    }

    /// Solves B'y = v, in place.
    #[inline]
    pub fn btran(&self, y: &mut [f64]) {
        for step in (0..self.eta_rows.len()).rev() {
            let row = self.eta_rows[step] as usize;
            y[row] = (y[row] - dot(self.eta.get(step), y)) / self.eta_pivots[step];
        }
        for (step, &row) in self.u_rows.iter().enumerate() {
            let row = row as usize;
            if y[row] != 0.0 {
                let value = y[row] / self.u_pivots[step];
                y[row] = value;
                subtract(self.u_by_rows.get(step), value, y);
            }
        }
        for step in (0..self.l_rows.len()).rev() {
            let row = self.l_rows[step] as usize;
            y[row] -= dot(self.l.get(step), y);
        }
    }

    /// Replaces the column at `row`. `column` is the new column in terms of this basis, as
    /// [`Factor::ftran`] computes it; `nonzeros` are the indices of its entries.
    #[inline]
    pub fn replace(&mut self, row: usize, column: &[f64], nonzeros: &[u32]) {
        for &at in nonzeros {
            let value = column[at as usize];
            if at as usize != row && value.abs() > DROP {
                self.eta.push(at as usize, value);
            }
        }
        self.eta.close();
        self.eta_rows.push(row as u32);
        self.eta_pivots.push(column[row]);
    }

    /// The number of replaced columns.
    pub fn replaced(&self) -> usize {
        self.eta_rows.len()
    }

    /// The number of entries of the eta vectors.
    pub fn eta_entries(&self) -> usize {
        self.eta.entries()
    }

    /// The number of entries of the triangular factors.
    pub fn entries(&self) -> usize {
        self.l.entries() + self.u.entries() + self.u_rows.len()
    }

    /// Undoes all replacements but the first `replaced`.
    pub fn truncate(&mut self, replaced: usize) {
        self.eta_rows.truncate(replaced);
        self.eta_pivots.truncate(replaced);
        self.eta.truncate(replaced);
    }
}

impl ActiveSubmatrix {
    /// Eliminates columns with one active entry. They precede all others in the upper factor and
    /// need no arithmetic.
    fn eliminate_singleton_columns(&mut self, order: &mut Vec<(u32, u32, f64)>) {
        let m = self.columns.len();
        let mut counts: Vec<u32> = self.columns.iter().map(|column| column.len() as u32).collect();
        let mut todo: Vec<u32> = (0..m as u32).filter(|&at| counts[at as usize] == 1).collect();
        while let Some(at) = todo.pop() {
            let column = at as usize;
            if self.column_done[column] || counts[column] != 1 {
                continue;
            }
            let entries = &self.columns[column];
            let Some(&(row, pivot)) = entries.iter().find(|(row, _)| !self.row_done[*row as usize])
            else {
                continue;
            };
            if pivot.abs() < PIVOT_MIN {
                continue;
            }
            self.eliminate(row, at, pivot, order);
            for &other in &self.rows[row as usize] {
                counts[other as usize] -= 1;
                if counts[other as usize] == 1 {
                    todo.push(other);
                }
            }
        }
    }

    /// Eliminates rows with one active column. Its other entries, divided by the pivot, are a
    /// column of the lower factor; no other entry changes.
    fn eliminate_singleton_rows(
        &mut self,
        order: &mut Vec<(u32, u32, f64)>,
        l_rows: &mut Vec<u32>,
        l: &mut SparseVectors,
    ) {
        let m = self.columns.len();
        for row in 0..m {
            let columns = &self.rows[row];
            let left = columns.iter().filter(|&&at| !self.column_done[at as usize]).count();
            self.row_counts[row] = left as u32;
        }
        let single =
            |row: &u32| self.row_counts[*row as usize] == 1 && !self.row_done[*row as usize];
        let mut todo: Vec<u32> = (0..m as u32).filter(single).collect();
        while let Some(row) = todo.pop() {
            if self.row_done[row as usize] || self.row_counts[row as usize] != 1 {
                continue;
            }
            let columns = &self.rows[row as usize];
            let Some(&at) = columns.iter().find(|&&at| !self.column_done[at as usize]) else {
                continue;
            };
            let column = at as usize;
            let entries = &self.columns[column];
            let (mut pivot, mut largest) = (0.0_f64, 0.0_f64);
            for &(other, value) in entries.iter().filter(|(row, _)| !self.row_done[*row as usize]) {
                largest = largest.max(value.abs());
                if other == row {
                    pivot = value;
                }
            }
            // A relatively small pivot waits for the elimination that can choose another one.
            if pivot.abs() < PIVOT_MIN || pivot.abs() < 1e-3 * largest {
                continue;
            }
            let below = entries.iter().filter(|(r, _)| *r != row && !self.row_done[*r as usize]);
            let before = l.entries();
            for &(other, value) in below {
                l.push(other as usize, value / pivot);
                self.row_counts[other as usize] -= 1;
                if self.row_counts[other as usize] == 1 {
                    todo.push(other);
                }
            }
            if l.entries() > before {
                l.close();
                l_rows.push(row);
            }
            self.eliminate(row, at, pivot, order);
        }
    }

    /// Eliminates a row and a column with their pivot. The column's entries in earlier rows are
    /// above it.
    fn eliminate(&mut self, row: u32, column: u32, pivot: f64, order: &mut Vec<(u32, u32, f64)>) {
        let entries = std::mem::take(&mut self.columns[column as usize]);
        let above = entries.iter().filter(|(row, _)| self.row_done[*row as usize]);
        self.above[column as usize].extend(above);
        self.columns[column as usize] = entries;
        self.row_done[row as usize] = true;
        self.column_done[column as usize] = true;
        order.push((row, column, pivot));
    }

    /// Eliminates the remaining rows and columns in an order that keeps them sparse (Markowitz).
    fn eliminate_others(
        &mut self,
        order: &mut Vec<(u32, u32, f64)>,
        l_rows: &mut Vec<u32>,
        l: &mut SparseVectors,
    ) {
        let m = self.columns.len();
        let mut left: Vec<u32> =
            (0..m as u32).filter(|&at| !self.column_done[at as usize]).collect();
        if left.is_empty() {
            return;
        }
        // From here on columns hold entries of active rows only.
        for &at in &left {
            let column = &mut self.columns[at as usize];
            let done = &self.row_done;
            self.above[at as usize].extend(column.iter().filter(|(row, _)| done[*row as usize]));
            column.retain(|(row, _)| !done[*row as usize]);
        }
        for (row, columns) in self.rows.iter_mut().enumerate() {
            if !self.row_done[row] {
                columns.retain(|&at| !self.column_done[at as usize]);
                self.row_counts[row] = columns.len() as u32;
            }
        }
        let mut place = vec![u32::MAX; m];
        while let Some((row, at)) = self.choose_pivot(&mut left) {
            left.retain(|&other| other != at);
            let column = std::mem::take(&mut self.columns[at as usize]);
            let found = column.iter().find(|(other, _)| *other == row);
            let pivot = found.map_or(0.0, |(_, value)| *value);
            let before = l.entries();
            for &(other, value) in column.iter().filter(|(other, _)| *other != row) {
                l.push(other as usize, value / pivot);
                self.row_counts[other as usize] -= 1;
            }
            let (rows, factors) = (&l.index[before..], &l.value[before..]);
            let crossed = std::mem::take(&mut self.rows[row as usize]);
            for &other in
                crossed.iter().filter(|&&other| !self.column_done[other as usize] && other != at)
            {
                let entries = &mut self.columns[other as usize];
                let Some(here) = entries.iter().position(|(r, _)| *r == row) else { continue };
                let (_, value) = entries.swap_remove(here);
                self.above[other as usize].push((row, value));
                for (here, (row, _)) in entries.iter().enumerate() {
                    place[*row as usize] = here as u32;
                }
                for (&below, &factor) in rows.iter().zip(factors) {
                    let change = -factor * value;
                    match place[below as usize] {
                        u32::MAX => {
                            entries.push((below, change));
                            self.rows[below as usize].push(other);
                            self.row_counts[below as usize] += 1;
                        }
                        here => entries[here as usize].1 += change,
                    }
                }
                for (row, _) in entries.iter() {
                    place[*row as usize] = u32::MAX;
                }
            }
            if l.entries() > before {
                l.close();
                l_rows.push(row);
            }
            self.row_done[row as usize] = true;
            self.column_done[at as usize] = true;
            order.push((row, at, pivot));
        }
    }

    /// The row and column of the next pivot: large enough in its column, with few other entries in
    /// its row and column. None if no column has a pivot.
    fn choose_pivot(&self, left: &mut Vec<u32>) -> Option<(u32, u32)> {
        let mut few: Vec<(usize, u32)> = Vec::with_capacity(SEARCHED_COLUMNS + 1);
        loop {
            few.clear();
            for &at in left.iter() {
                let count = self.columns[at as usize].len();
                if few.len() == SEARCHED_COLUMNS && few.last().is_some_and(|last| count >= last.0) {
                    continue;
                }
                let after = few.partition_point(|known| known.0 <= count);
                few.insert(after, (count, at));
                few.truncate(SEARCHED_COLUMNS);
            }
            let mut best: Option<(u64, f64, u32, u32)> = None;
            for &(count, at) in &few {
                let column = &self.columns[at as usize];
                let largest = column.iter().fold(0.0_f64, |most, (_, value)| most.max(value.abs()));
                if largest < PIVOT_MIN {
                    continue;
                }
                for &(row, value) in column {
                    if value.abs() < THRESHOLD * largest {
                        continue;
                    }
                    let others = u64::from(self.row_counts[row as usize].max(1)) - 1;
                    let cost = others * (count as u64 - 1);
                    let better = best.is_none_or(|(least, size, ..)| {
                        cost < least || cost == least && value.abs() > size
                    });
                    if better {
                        best = Some((cost, value.abs(), row, at));
                    }
                }
            }
            if let Some((_, _, row, at)) = best {
                return Some((row, at));
            }
            // These columns have no pivot: the basis is singular.
            if few.is_empty() {
                return None;
            }
            left.retain(|at| few.iter().all(|(_, empty)| empty != at));
        }
    }
}

#[cfg(test)]
mod tests {
    use springtide_runtime::random::SplitMix;

    use super::*;

    fn random(m: usize, density: f64, seed: u64) -> Vec<Vec<(usize, f64)>> {
        let mut dice = SplitMix(seed);
        (0..m)
            .map(|at| {
                let mut column = Vec::new();
                for row in 0..m {
                    if row == at || dice.unit() < density {
                        column.push((row, dice.unit() * 4.0 - 2.0));
                    }
                }
                column
            })
            .collect()
    }

    fn factor(columns: &[Vec<(usize, f64)>]) -> Result<(Factor, Vec<usize>), Singular> {
        Factor::of(&mut columns.iter().map(|column| column.iter().copied()))
    }

    /// Checks that Bx = b and B'y = b hold, up to rounding.
    fn check(columns: &[Vec<(usize, f64)>], factor: &Factor, seed: u64) {
        let m = columns.len();
        let mut dice = SplitMix(seed);
        let b: Vec<f64> = (0..m).map(|_| dice.unit()).collect();
        let mut x = b.clone();
        factor.ftran(&mut x);
        let mut left = b.clone();
        for (column, x) in columns.iter().zip(&x) {
            for &(row, value) in column {
                left[row] -= value * x;
            }
        }
        let size = x.iter().fold(1.0_f64, |most, x| most.max(x.abs()));
        assert!(left.iter().all(|left| left.abs() < 1e-8 * size), "{left:?}");
        let mut y = b.clone();
        factor.btran(&mut y);
        let size = y.iter().fold(1.0_f64, |most, y| most.max(y.abs()));
        for (column, b) in columns.iter().zip(&b) {
            let sum: f64 = column.iter().map(|&(row, value)| value * y[row]).sum();
            assert!((sum - b).abs() < 1e-8 * size, "{sum} {b}");
        }
    }

    #[test]
    fn solves_with_the_basis_its_transpose_and_replaced_columns() {
        for seed in 0..60 {
            let m = 1 + (seed as usize * 7) % 40;
            let columns = random(m, [0.02, 0.1, 0.4][seed as usize % 3], seed);
            let Ok((mut inverse, at_row)) = factor(&columns) else { continue };
            let mut basis: Vec<_> = at_row.iter().map(|&at| columns[at].clone()).collect();
            check(&basis, &inverse, seed);
            let others = random(m, 0.2, seed + 1000);
            for (at, other) in others.iter().enumerate() {
                let mut column = vec![0.0; m];
                other.iter().for_each(|&(row, value)| column[row] = value);
                inverse.ftran(&mut column);
                if column[at].abs() > 0.1 {
                    let nonzeros: Vec<u32> = (0..m as u32).collect();
                    inverse.replace(at, &column, &nonzeros);
                    basis[at].clone_from(other);
                }
            }
            check(&basis, &inverse, seed);
            let replaced = inverse.replaced();
            inverse.truncate(0);
            let first: Vec<_> = at_row.iter().map(|&at| columns[at].clone()).collect();
            check(&first, &inverse, seed);
            assert!(inverse.replaced() <= replaced);
        }
    }

    #[test]
    fn a_singular_basis_names_columns_and_rows() {
        let columns =
            vec![vec![(0, 1.0), (1, 2.0)], vec![(0, 2.0), (1, 4.0)], vec![(2, 1.0), (0, 3.0)]];
        let singular = factor(&columns).unwrap_err();
        assert_eq!((singular.positions.len(), singular.rows.len()), (1, 1));
        assert!(singular.positions[0] < 2 && singular.rows[0] < 2);
        let empty = factor(&[vec![], vec![(0, 1.0)]]).unwrap_err();
        assert_eq!(empty, Singular { positions: vec![0], rows: vec![1] });
    }

    #[test]
    fn unit_columns_have_no_entries() {
        let columns: Vec<_> = (0..5).map(|at| vec![((at + 2) % 5, 1.0)]).collect();
        let (inverse, at_row) = factor(&columns).unwrap();
        assert_eq!((inverse.entries(), at_row), (0, vec![3, 4, 0, 1, 2]));
    }
}
