//! Bases: roots to restart from, bases as bits, and the factors of the present basis.

use super::super::factor::Factor;
use super::tableau::Entries;
use super::{Position, Pricing, Simplex, Status};

/// A basis to restart from, with its factors.
#[derive(Clone, Debug)]
pub struct RestartBasis {
    head: Vec<u32>,
    position: Vec<Position>,
    d: Vec<f64>,
    factor: Factor,
    number: u64,
    /// The version of the costs that `d` belongs to.
    costs: u64,
}

impl RestartBasis {
    /// The number of entries of its factors.
    pub fn entries(&self) -> usize {
        self.factor.entries()
    }
}

impl Simplex {
    /// The present basis with factors of its own, to restart from. Drops all cost shifts.
    ///
    /// # Errors
    /// The basis cannot be factored.
    pub fn root(&mut self) -> Result<RestartBasis, Status> {
        self.restore_costs();
        self.refactor()?;
        self.compute_reduced_costs();
        self.roots += 1;
        self.root = self.roots;
        let (head, position, d) = (self.head.clone(), self.position.clone(), self.d.clone());
        let (factor, number) = (self.factor.clone(), self.roots);
        Ok(RestartBasis { head, position, d, factor, number, costs: self.costs })
    }

    /// Restores the basis of a root. Bounds and costs stay as they are.
    ///
    /// # Panics
    /// If rows were added or dropped since the root was taken.
    #[inline]
    pub fn restart(&mut self, root: &RestartBasis) {
        assert_eq!(root.head.len(), self.head.len(), "rows were added since");
        self.head.copy_from_slice(&root.head);
        self.position.copy_from_slice(&root.position);
        self.d.copy_from_slice(&root.d);
        if self.root == root.number {
            self.factor.truncate(0);
        } else {
            self.factor.clone_from(&root.factor);
            self.root = root.number;
        }
        if self.shifted {
            self.restore_costs();
        }
        if self.pricing == Pricing::Steepest {
            self.weights.fill(1.0);
        }
        (self.stale, self.priced) = (false, self.costs == root.costs);
    }

    /// The basis in two bits a variable, columns first: which variables are basic, and which
    /// nonbasic ones are at their upper bounds.
    pub fn basis(&self) -> Vec<u8> {
        let mut bits = vec![0; self.position.len().div_ceil(4)];
        for (variable, position) in self.position.iter().enumerate() {
            let two = match position {
                Position::Basic => 1,
                Position::Upper => 2,
                _ => 0,
            };
            bits[variable / 4] |= two << (2 * (variable % 4));
        }
        bits
    }

    /// Sets a basis that [`Simplex::basis`] returned. The next solve repairs bits that are not a
    /// basis of this program. Earlier solves have no influence: two programs with equal rows and
    /// bounds take the same pivots from it.
    pub fn set_basis(&mut self, bits: &[u8]) {
        let m = self.head.len();
        self.head.clear();
        for variable in 0..self.position.len() {
            let two = bits.get(variable / 4).map_or(0, |bits| bits >> (2 * (variable % 4)) & 3);
            let mut position = self.nonbasic_position(variable, self.d[variable]);
            if two == 1 && self.head.len() < m {
                self.head.push(variable as u32);
                position = Position::Basic;
            } else if matches!(position, Position::Lower | Position::Upper) {
                position = match two {
                    2 if self.high[variable].is_finite() => Position::Upper,
                    _ if self.low[variable].is_finite() => Position::Lower,
                    _ => position,
                };
            }
            self.position[variable] = position;
        }
        for row in 0..m {
            let logical = self.problem.columns() + row;
            if self.head.len() < m && self.position[logical] != Position::Basic {
                self.head.push(logical as u32);
                self.position[logical] = Position::Basic;
            }
        }
        if self.shifted {
            self.restore_costs();
        }
        self.forget_factors();
    }

    /// Makes the next solve refactor the present basis.
    pub(super) fn forget_factors(&mut self) {
        self.weights.fill(1.0);
        (self.stale, self.priced) = (true, false);
        self.root = 0;
    }

    /// Factors the basis. Logical variables replace dependent columns.
    pub(super) fn refactor(&mut self) -> Result<(), Status> {
        let n = self.problem.columns();
        for _ in 0..3 {
            let (head, problem) = (&self.head, &self.problem);
            let column = |&variable: &u32| Entries::of(problem, variable as usize);
            match Factor::of(&mut head.iter().map(column)) {
                Ok((factor, at_row)) => {
                    let moved: Vec<u32> = at_row.iter().map(|&at| self.head[at]).collect();
                    if self.pricing == Pricing::Steepest {
                        self.weights = at_row.iter().map(|&at| self.weights[at]).collect();
                    }
                    self.head = moved;
                    self.factor = factor;
                    self.root = 0;
                    self.stale = false;
                    return Ok(());
                }
                // Logical variables of the rows without a pivot replace the dependent columns.
                Err(singular) => {
                    for (&position, &row) in singular.positions.iter().zip(&singular.rows) {
                        let out = self.head[position] as usize;
                        self.position[out] = self.nonbasic_position(out, self.d[out]);
                        self.head[position] = (n + row) as u32;
                        self.position[n + row] = Position::Basic;
                        self.weights[position] = 1.0;
                    }
                    self.priced = false;
                }
            }
        }
        Err(Status::Trouble)
    }
}
