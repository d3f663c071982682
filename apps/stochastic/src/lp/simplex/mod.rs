//! The revised simplex method for programs with bounded variables: first the dual method, then the
//! primal method where costs were shifted.
//!
//! Shifted costs make a basis dual feasible; the feasible set does not depend on costs. From the
//! feasible point of the dual method, the primal method continues with the true costs. Costs are
//! shifted as well where the dual method stalls (perturbation). Ties are broken by variable numbers
//! alone, so one input gives one sequence of bases.
//!
//! Numbers are in scaled units. Tolerances are relative to the numbers of each row and column.
//! Every answer is checked against the program before it is returned.
//!
//! - `solve`: the turns of the two methods, attempts and dual feasibility.
//! - `dual`, `primal`: the methods.
//! - `tableau`: rows and columns of the tableau, and the exchange of a basic variable.
//! - `basis`: bases to restart from, and factors.
//! - `check`: checks of answers.
//! - `scale`: scaling.
//!
//! This file holds the program, its edits and its solution. This module must not know what the
//! program models.
//!
//! Sources: Koberstein, The dual simplex method, techniques for a fast and stable implementation
//! (Paderborn 2005); Maros, Computational techniques of the simplex method (2003) for the ratio
//! test that flips boxed variables; Forrest and Goldfarb, Steepest-edge simplex algorithms (Math.
//! Programming 1992) for dual weights.

mod basis;
mod check;
mod dual;
mod primal;
mod scale;
mod solve;
mod tableau;

pub use self::basis::RestartBasis;
pub(crate) use self::scale::{Scale, power_of_two};
use super::factor::Factor;
use super::problem::LinearProgram;

/// Primal and dual feasibility of a variable, relative to the larger of 1 and its own bound or
/// cost.
const FEASIBILITY_TOLERANCE: f64 = 1e-9;
/// The smallest pivot, where there is a choice.
const PIVOT_MIN: f64 = 1e-9;
/// The most pivots between two factorisations.
const REFACTOR_INTERVAL: usize = 100;
/// The largest factor by which rounding enlarges a number that is divided and multiplied again.
const ROUNDING_FACTOR: f64 = 1.0 + 1e-14;

/// The end of a solve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// At a least-cost point, confirmed by its residuals and reduced costs.
    Optimal,
    /// No feasible point exists: [`Simplex::ray`] proves it.
    Infeasible,
    /// Costs have no lower bound: [`Simplex::direction`] proves it, from a feasible point.
    Unbounded,
    /// The solve took more pivots than any program of its size should.
    Limit,
    /// No answer could be confirmed: the numbers of the program are too far apart.
    Trouble,
}

/// The position of a variable: basic, or nonbasic at a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Position {
    Basic,
    Lower,
    Upper,
    /// Nonbasic without bounds, at zero.
    Free,
    /// Nonbasic with two equal bounds: it never enters the basis.
    Fixed,
}

/// The rule that chooses the leaving row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pricing {
    /// The largest infeasibility: cheapest, and best for few pivots from a good basis.
    Largest,
    /// The largest infeasibility relative to the length of its dual edge.
    Steepest,
}

/// A linear program and a basis of it.
#[derive(Clone, Debug)]
pub struct Simplex {
    /// The program in scaled units, as all numbers below.
    problem: LinearProgram,
    scale: Scale,
    pricing: Pricing,
    /// The basic variable of each row.
    head: Vec<u32>,
    position: Vec<Position>,
    /// Bounds of all variables: columns first, then the logical variables of rows.
    low: Vec<f64>,
    high: Vec<f64>,
    /// Columns with a finite bound other than zero, ascending: other nonbasic columns are zero.
    nonzero_bounds: Vec<u32>,
    /// The true costs plus the shifts of this solve.
    cost: Vec<f64>,
    /// Whether any cost is shifted.
    shifted: bool,
    /// Reduced costs.
    d: Vec<f64>,
    /// Values of the basic variables, by row.
    x: Vec<f64>,
    /// Bounds of the basic variables, by row.
    basic_low: Vec<f64>,
    basic_high: Vec<f64>,
    /// Dual steepest-edge weights, by row.
    weights: Vec<f64>,
    factor: Factor,
    /// The number of the root that the factors began as; 0 if they belong to no root.
    root: u64,
    /// The number of roots so far.
    roots: u64,
    /// The version of the costs: it grows with each change.
    costs: u64,
    /// Whether the basis lacks factors, as after a new row or a set basis.
    stale: bool,
    /// Whether `d` belongs to the basis and the true costs.
    priced: bool,
    pivots: u64,
    /// Pivots before the present attempt.
    pivots_before: u64,
    effort: u64,
    /// The unit of absolute tolerances of values.
    primal_unit: f64,
    /// The unit of absolute tolerances of reduced costs.
    dual_unit: f64,
    ray: Vec<f64>,
    direction: Vec<f64>,
    /// Whether a lower bound lies above its upper bound.
    crossed: bool,
    work: PivotVectors,
}

/// Vectors that pivots reuse.
#[derive(Clone, Debug, Default)]
struct PivotVectors {
    /// A row of the inverse basis.
    rho: Vec<f64>,
    /// A column of the tableau, and the rows of its nonzero entries.
    column: Vec<f64>,
    column_at: Vec<u32>,
    /// A row of the tableau, and the variables of its nonzero entries.
    alpha: Vec<f64>,
    touched: Vec<u32>,
    candidates: Vec<EnteringVariable>,
    /// Boxed variables that move to their other bounds.
    flips: Vec<u32>,
    tau: Vec<f64>,
    /// Activities of rows.
    activity: Vec<f64>,
}

/// A nonbasic variable that may enter.
#[derive(Clone, Copy, Debug)]
struct EnteringVariable {
    variable: u32,
    /// The absolute value of its entry in the tableau row.
    alpha: f64,
    /// The distance of its reduced cost from zero.
    gap: f64,
    /// The distance between its bounds.
    range: f64,
}

impl Simplex {
    /// A program with the basis of its logical variables.
    pub fn new(problem: LinearProgram, pricing: Pricing) -> Self {
        let scale = Scale::new(&problem);
        let problem =
            if scale.is_identity() { problem } else { problem.scaled(&scale.rows, &scale.columns) };
        let (n, m) = (problem.columns(), problem.rows());
        let row_bounds = (0..m).flat_map(|row| <[f64; 2]>::from(problem.row_bounds(row)));
        let bounds = problem.lower.iter().chain(&problem.upper).copied();
        let primal_unit = scale::unit(bounds.chain(row_bounds));
        let dual_unit = scale::unit(problem.cost.iter().copied());
        let mut simplex = Self {
            pricing,
            head: Vec::new(),
            position: vec![Position::Lower; n],
            low: problem.lower.clone(),
            high: problem.upper.clone(),
            nonzero_bounds: (0..n as u32)
                .filter(|at| {
                    has_nonzero_bound(problem.lower[*at as usize], problem.upper[*at as usize])
                })
                .collect(),
            cost: problem.cost.clone(),
            shifted: false,
            d: vec![0.0; n],
            x: Vec::new(),
            basic_low: Vec::new(),
            basic_high: Vec::new(),
            weights: Vec::new(),
            factor: Factor::default(),
            root: 0,
            roots: 0,
            costs: 0,
            stale: true,
            priced: false,
            pivots: 0,
            pivots_before: 0,
            effort: 0,
            primal_unit,
            dual_unit,
            ray: Vec::new(),
            direction: Vec::new(),
            crossed: false,
            work: PivotVectors::default(),
            scale,
            problem,
        };
        for variable in 0..n {
            simplex.position[variable] =
                simplex.nonbasic_position(variable, simplex.cost[variable]);
        }
        for row in 0..m {
            simplex.add_logical(row);
        }
        simplex
    }

    /// Prepares the variables of a row that was added; its logical variable is basic.
    fn add_logical(&mut self, row: usize) {
        let (lower, upper) = self.problem.row_bounds(row);
        self.head.push((self.problem.columns() + row) as u32);
        self.position.push(Position::Basic);
        self.low.push(-upper);
        self.high.push(-lower);
        self.cost.push(0.0);
        self.d.push(0.0);
        self.x.push(0.0);
        self.basic_low.push(-upper);
        self.basic_high.push(-lower);
        self.weights.push(1.0);
        self.stale = true;
    }

    /// The position of a nonbasic variable with this reduced cost.
    fn nonbasic_position(&self, variable: usize, d: f64) -> Position {
        let (low, high) = (self.low[variable], self.high[variable]);
        match (low.is_finite(), high.is_finite()) {
            (true, true) if low == high => Position::Fixed,
            (true, true) if d < 0.0 => Position::Upper,
            (true, _) => Position::Lower,
            (false, true) => Position::Upper,
            (false, false) => Position::Free,
        }
    }

    // --- the program ---

    /// The number of columns.
    pub fn columns(&self) -> usize {
        self.problem.columns()
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.problem.rows()
    }

    /// The columns and values of a row, in the caller's units.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row(&self, row: usize) -> impl Iterator<Item = (usize, f64)> {
        let factor = self.scale.rows[row];
        let entries = self.problem.row(row);
        entries.map(move |(column, value)| (column, value / factor / self.scale.columns[column]))
    }

    /// The bounds of a row's activity, in the caller's units.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row_bounds(&self, row: usize) -> (f64, f64) {
        let (lower, upper) = self.problem.row_bounds(row);
        (lower / self.scale.rows[row], upper / self.scale.rows[row])
    }

    /// A copy of the program in the caller's units.
    pub fn program(&self) -> LinearProgram {
        let inverse = |all: &[f64]| all.iter().map(|scale| 1.0 / scale).collect::<Vec<f64>>();
        self.problem.scaled(&inverse(&self.scale.rows), &inverse(&self.scale.columns))
    }

    /// Adds a row; its logical variable is basic.
    ///
    /// # Panics
    /// If there is no such column.
    pub fn add_row(
        &mut self,
        entries: impl IntoIterator<Item = (usize, f64)>,
        lower: f64,
        upper: f64,
    ) {
        let entries: Vec<(usize, f64)> = entries.into_iter().collect();
        let factor = self.scale.added_row(&entries);
        let columns = &self.scale.columns;
        let scaled = entries.iter().map(|&(at, value)| (at, value * factor * columns[at]));
        self.problem.add_row(scaled, lower * factor, upper * factor);
        self.scale.rows.push(factor);
        self.add_logical(self.problem.rows() - 1);
    }

    /// Drops the rows that `keep` refuses and whose logical variables are basic, so that the others
    /// stay a basis. Returns whether each row was dropped, by its number before.
    pub fn drop_rows(&mut self, mut keep: impl FnMut(usize) -> bool) -> Vec<bool> {
        let n = self.problem.columns();
        let gone: Vec<bool> = (0..self.problem.rows())
            .map(|row| self.position[n + row] == Position::Basic && !keep(row))
            .collect();
        if !gone.contains(&true) {
            return gone;
        }
        self.problem.retain_rows(|row| !gone[row]);
        retain(&mut self.scale.rows, |row| !gone[row]);
        let mut new = vec![0; gone.len()];
        let mut next = 0;
        for (row, gone) in gone.iter().enumerate() {
            new[row] = next;
            next += usize::from(!gone);
        }
        let is_gone = |variable: usize| variable >= n && gone[variable - n];
        let stay: Vec<bool> = self.head.iter().map(|&basic| !is_gone(basic as usize)).collect();
        retain(&mut self.head, |position| stay[position]);
        for all in [&mut self.x, &mut self.basic_low, &mut self.basic_high, &mut self.weights] {
            retain(all, |position| stay[position]);
        }
        for variable in &mut self.head {
            if *variable as usize >= n {
                *variable = (n + new[*variable as usize - n]) as u32;
            }
        }
        for all in [&mut self.low, &mut self.high, &mut self.cost, &mut self.d] {
            retain(all, |variable| !is_gone(variable));
        }
        retain(&mut self.position, |variable| !is_gone(variable));
        self.stale = true;
        gone
    }

    /// Sets the bounds of a column.
    ///
    /// # Panics
    /// If there is no such column.
    pub fn set_bounds(&mut self, column: usize, lower: f64, upper: f64) {
        let factor = self.scale.columns[column];
        let (lower, upper) = (lower / factor, upper / factor);
        self.problem.set_bounds(column, lower, upper);
        if has_nonzero_bound(lower, upper)
            && let Err(at) = self.nonzero_bounds.binary_search(&(column as u32))
        {
            self.nonzero_bounds.insert(at, column as u32);
        }
        self.set_variable_bounds(column, lower, upper);
    }

    /// Sets the bounds of a row's activity.
    ///
    /// # Panics
    /// If there is no such row.
    #[inline]
    pub fn set_row_bounds(&mut self, row: usize, lower: f64, upper: f64) {
        let factor = self.scale.rows[row];
        let (lower, upper) = (lower * factor, upper * factor);
        self.problem.set_row_bounds(row, lower, upper);
        self.set_variable_bounds(self.problem.columns() + row, -upper, -lower);
    }

    /// Sets the cost of a column. The basis stays, with new reduced costs.
    ///
    /// # Panics
    /// If there is no such column.
    pub fn set_cost(&mut self, column: usize, cost: f64) {
        let cost = cost * self.scale.columns[column];
        if self.problem.cost[column] != cost {
            (self.problem.cost[column], self.cost[column]) = (cost, cost);
            self.priced = false;
            self.costs += 1;
        }
    }

    /// Sets the bounds of a variable, and moves a nonbasic one to a finite bound.
    #[inline]
    fn set_variable_bounds(&mut self, variable: usize, low: f64, high: f64) {
        (self.low[variable], self.high[variable]) = (low, high);
        let rests = match self.position[variable] {
            Position::Basic => true,
            Position::Fixed => low == high,
            Position::Lower => low.is_finite() && low < high,
            Position::Upper => high.is_finite() && low < high,
            Position::Free => low == f64::NEG_INFINITY && high == f64::INFINITY,
        };
        if !rests {
            self.position[variable] = self.nonbasic_position(variable, self.d[variable]);
        }
    }

    /// Pivots since the program was made.
    pub fn pivots(&self) -> u64 {
        self.pivots
    }

    /// The number of matrix entries that pivots of the dual method have read since the program was
    /// made: about proportional to their processor time, and the same on every machine.
    pub fn effort(&self) -> u64 {
        self.effort
    }

    // --- the solution ---

    /// The cost of the present point.
    pub fn objective(&self) -> f64 {
        let n = self.problem.columns();
        let mut sum = 0.0;
        for &column in &self.nonzero_bounds {
            sum += self.problem.cost[column as usize] * self.value(column as usize);
        }
        for (&variable, x) in self.head.iter().zip(&self.x) {
            if (variable as usize) < n {
                sum += self.problem.cost[variable as usize] * x;
            }
        }
        sum
    }

    /// The values of the columns.
    ///
    /// # Panics
    /// If the length of `out` is not the number of columns.
    pub fn values(&self, out: &mut [f64]) {
        let n = self.problem.columns();
        assert_eq!(out.len(), n);
        for (variable, out) in out.iter_mut().enumerate() {
            *out = self.value(variable) * self.scale.columns[variable];
        }
        for (&variable, &x) in self.head.iter().zip(&self.x) {
            let variable = variable as usize;
            if variable < n {
                out[variable] = x * self.scale.columns[variable];
            }
        }
    }

    /// The dual value of a row: the change of the least cost for each unit that the row's binding
    /// bound grows.
    ///
    /// # Panics
    /// If there is no such row.
    #[inline]
    pub fn dual(&self, row: usize) -> f64 {
        let logical = self.problem.columns() + row;
        match self.position[logical] {
            Position::Basic => 0.0,
            _ => -self.d[logical] * self.scale.rows[row],
        }
    }

    /// The reduced cost of a column.
    ///
    /// # Panics
    /// If there is no such column.
    pub fn reduced_cost(&self, column: usize) -> f64 {
        match self.position[column] {
            Position::Basic => 0.0,
            _ => self.d[column] / self.scale.columns[column],
        }
    }

    /// Whether the logical variable of a row is basic: the row could be left out.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn is_slack(&self, row: usize) -> bool {
        self.position[self.problem.columns() + row] == Position::Basic
    }

    /// Row multipliers that prove a program infeasible: at every point within the bounds of the
    /// columns, the weighted sum of the rows' activities exceeds its limit by the bounds of the
    /// rows. All zero where the bounds of a column exclude each other.
    pub fn ray(&self) -> &[f64] {
        &self.ray
    }

    /// A direction, by column, that proves a program unbounded: along it costs fall and every point
    /// stays feasible.
    pub fn direction(&self) -> &[f64] {
        &self.direction
    }
}

/// Whether a nonbasic variable with these bounds can have a value other than zero.
fn has_nonzero_bound(low: f64, high: f64) -> bool {
    let is_away = |bound: f64| bound.is_finite() && bound != 0.0;
    is_away(low) || is_away(high)
}

/// Keeps the elements at these indices.
fn retain<T>(all: &mut Vec<T>, mut keep: impl FnMut(usize) -> bool) {
    let mut at = 0;
    all.retain(|_| {
        at += 1;
        keep(at - 1)
    });
}

#[cfg(test)]
mod tests;
