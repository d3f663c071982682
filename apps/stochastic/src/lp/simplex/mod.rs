//! The simplex method for programs with bounded variables: the dual method, and the primal method for
//! what the dual one leaves.
//!
//! A basis that is not dual feasible is made so by shifting costs; the feasible set does not depend on
//! costs. From the feasible point that the dual method finds, the primal method continues with the true
//! costs. Costs are shifted as well where the dual method stalls (perturbation). Ties are broken by
//! variable numbers alone, so one input gives one sequence of bases.
//!
//! Numbers are kept in scaled units. Tolerances are relative to each row's and each column's own numbers.
//! Every answer is checked from the program itself before it is returned.
//!
//! Sources: Koberstein, The dual simplex method, techniques for a fast and stable implementation
//! (Paderborn 2005); Maros, Computational techniques of the simplex method (2003) for the ratio test
//! that flips boxed variables; Forrest and Goldfarb, Steepest-edge simplex algorithms (Math.
//! Programming 1992) for dual weights.

mod check;
mod dual;
mod primal;
mod scale;

pub(crate) use self::scale::{Scale, power_of_two};
use super::factor::Factor;
use super::problem::Problem;

/// Primal and dual feasibility of a variable, relative to the larger of 1 and its own bound or cost.
const FEASIBLE: f64 = 1e-9;
/// The smallest pivot, where there is a choice.
const PIVOT: f64 = 1e-9;
/// A number of the tableau below this counts as zero.
const TINY: f64 = 1e-13;
/// Pivots between two factorisations.
const REFACTOR: usize = 100;
/// How much rounding may enlarge a number that was divided and multiplied again.
const ROUNDED: f64 = 1.0 + 1e-14;
/// Stands for a sum that cancelled, so that it still counts as an entry.
const CANCELLED: f64 = 1e-300;
/// Times the dual and the primal method take turns before the solve gives up.
const TURNS_MAX: usize = 20;

/// How a solve ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// At a least-cost point, confirmed by its residuals and reduced costs.
    Optimal,
    /// No point exists: [`Simplex::ray`] proves it.
    Infeasible,
    /// Costs have no lower bound: [`Simplex::direction`] proves it, from a feasible point.
    Unbounded,
    /// The solve took more pivots than any program of its size should.
    Limit,
    /// No answer could be confirmed: the numbers of the program are too far apart.
    Trouble,
}

/// Where a variable is.
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

/// How the leaving row is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pricing {
    /// The largest infeasibility: cheapest, and best for few pivots from a good basis.
    Largest,
    /// The largest infeasibility relative to the length of its dual edge.
    Steepest,
}

/// A basis to restart from, with its factors.
#[derive(Clone, Debug)]
pub struct Root {
    head: Vec<u32>,
    position: Vec<Position>,
    d: Vec<f64>,
    factor: Factor,
    number: u64,
    /// The version of the costs that `d` belongs to.
    costs: u64,
}

impl Root {
    /// The number of entries of its factors.
    pub fn entries(&self) -> usize {
        self.factor.entries()
    }
}

/// A linear program and a basis of it.
#[derive(Clone, Debug)]
pub struct Simplex {
    /// In scaled units, as all numbers below.
    problem: Problem,
    scale: Scale,
    pricing: Pricing,
    /// The basic variable of each row.
    head: Vec<u32>,
    position: Vec<Position>,
    low: Vec<f64>,
    high: Vec<f64>,
    /// Columns with a finite bound other than zero, ascending: only these can rest away from zero.
    offset: Vec<u32>,
    /// True costs with the shifts of this solve.
    cost: Vec<f64>,
    shifted: bool,
    /// Reduced costs.
    d: Vec<f64>,
    x: Vec<f64>,
    low_b: Vec<f64>,
    high_b: Vec<f64>,
    weights: Vec<f64>,
    factor: Factor,
    /// The root whose factors these are; 0 if they are no root's.
    root: u64,
    roots: u64,
    /// The version of the costs.
    costs: u64,
    /// Rows were added, or the basis was set: there are no factors.
    stale: bool,
    /// `d` belongs to the basis and the true costs.
    priced: bool,
    pivots: u64,
    /// Pivots when the present solve began.
    began: u64,
    effort: u64,
    /// What absolute tolerances of values and of reduced costs are relative to.
    primal_unit: f64,
    dual_unit: f64,
    ray: Vec<f64>,
    direction: Vec<f64>,
    /// A bound lies above its counterpart.
    crossed: bool,
    work: Work,
}

#[derive(Clone, Debug, Default)]
struct Work {
    rho: Vec<f64>,
    column: Vec<f64>,
    column_at: Vec<u32>,
    alpha: Vec<f64>,
    touched: Vec<u32>,
    candidates: Vec<Candidate>,
    flips: Vec<u32>,
    tau: Vec<f64>,
    activity: Vec<f64>,
}

/// A nonbasic variable that may enter.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    variable: u32,
    /// Its entry of the tableau row, with the sign that makes it positive where the variable may move.
    alpha: f64,
    /// The distance of its reduced cost from zero.
    gap: f64,
    /// How far it can move before it reaches its other bound.
    range: f64,
}

impl Simplex {
    /// A program with the basis of its logical variables.
    pub fn new(problem: Problem, pricing: Pricing) -> Self {
        let scale = Scale::new(&problem);
        let problem = match scale.is_identity() {
            true => problem,
            false => problem.scaled(&scale.rows, &scale.columns),
        };
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
            offset: (0..n as u32)
                .filter(|at| is_offset(problem.lower[*at as usize], problem.upper[*at as usize]))
                .collect(),
            cost: problem.cost.clone(),
            shifted: false,
            d: vec![0.0; n],
            x: Vec::new(),
            low_b: Vec::new(),
            high_b: Vec::new(),
            weights: Vec::new(),
            factor: Factor::default(),
            root: 0,
            roots: 0,
            costs: 0,
            stale: true,
            priced: false,
            pivots: 0,
            began: 0,
            effort: 0,
            primal_unit,
            dual_unit,
            ray: Vec::new(),
            direction: Vec::new(),
            crossed: false,
            work: Work::default(),
            scale,
            problem,
        };
        for variable in 0..n {
            simplex.position[variable] = simplex.resting(variable, simplex.cost[variable]);
        }
        for row in 0..m {
            simplex.grow(row);
        }
        simplex
    }
    /// Prepares the variables of a row that was added; its logical variable is basic.
    fn grow(&mut self, row: usize) {
        let (lower, upper) = self.problem.row_bounds(row);
        self.head.push((self.problem.columns() + row) as u32);
        self.position.push(Position::Basic);
        self.low.push(-upper);
        self.high.push(-lower);
        self.cost.push(0.0);
        self.d.push(0.0);
        self.x.push(0.0);
        self.low_b.push(-upper);
        self.high_b.push(-lower);
        self.weights.push(1.0);
        self.stale = true;
    }

    /// The position of a nonbasic variable with this reduced cost.
    fn resting(&self, variable: usize, d: f64) -> Position {
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
    pub fn program(&self) -> Problem {
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
        self.grow(self.problem.rows() - 1);
    }

    /// Drops the rows for which `keep` does not hold and whose logical variables are basic; the basis
    /// stays one. Returns which rows are gone, by their numbers before.
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
        for all in [&mut self.x, &mut self.low_b, &mut self.high_b, &mut self.weights] {
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
        if is_offset(lower, upper)
            && let Err(at) = self.offset.binary_search(&(column as u32))
        {
            self.offset.insert(at, column as u32);
        }
        self.bound(column, lower, upper);
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
        self.bound(self.problem.columns() + row, -upper, -lower);
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

    #[inline]
    fn bound(&mut self, variable: usize, low: f64, high: f64) {
        (self.low[variable], self.high[variable]) = (low, high);
        let rests = match self.position[variable] {
            Position::Basic => true,
            Position::Fixed => low == high,
            Position::Lower => low.is_finite() && low < high,
            Position::Upper => high.is_finite() && low < high,
            Position::Free => low == f64::NEG_INFINITY && high == f64::INFINITY,
        };
        if !rests {
            self.position[variable] = self.resting(variable, self.d[variable]);
        }
    }

    /// Pivots since the program was made.
    pub fn pivots(&self) -> u64 {
        self.pivots
    }

    /// Numbers that pivots of the dual method touched since the program was made: proportional to
    /// their processor time, and equal on every machine.
    pub fn effort(&self) -> u64 {
        self.effort
    }

    // --- bases to restart from ---

    /// The present basis with factors of its own, to restart from. Drops all cost shifts.
    ///
    /// # Errors
    /// The basis cannot be factored.
    pub fn root(&mut self) -> Result<Root, Status> {
        self.restore_costs();
        self.refactor()?;
        self.price();
        self.roots += 1;
        self.root = self.roots;
        let (head, position, d) = (self.head.clone(), self.position.clone(), self.d.clone());
        let (factor, number) = (self.factor.clone(), self.roots);
        Ok(Root { head, position, d, factor, number, costs: self.costs })
    }

    /// Goes back to a basis. Bounds and costs stay as they are.
    ///
    /// # Panics
    /// If rows were added or dropped since the root was taken.
    #[inline]
    pub fn restart(&mut self, root: &Root) {
        assert_eq!(root.head.len(), self.head.len(), "rows were added since");
        self.head.copy_from_slice(&root.head);
        self.position.copy_from_slice(&root.position);
        self.d.copy_from_slice(&root.d);
        if self.root == root.number {
            self.factor.back_to(0);
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

    /// The basis in two bits a variable, columns first: which variables are basic, and which nonbasic
    /// ones are at their upper bounds.
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

    /// Takes a basis that [`Simplex::basis`] returned. Bits that are no basis of this program are
    /// repaired by the next solve. Earlier solves play no part: two programs with equal rows and
    /// bounds take the same pivots from it.
    pub fn set_basis(&mut self, bits: &[u8]) {
        let m = self.head.len();
        self.head.clear();
        for variable in 0..self.position.len() {
            let two = bits.get(variable / 4).map_or(0, |bits| bits >> (2 * (variable % 4)) & 3);
            let mut position = self.resting(variable, self.d[variable]);
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
    fn forget_factors(&mut self) {
        self.weights.fill(1.0);
        (self.stale, self.priced) = (true, false);
        self.root = 0;
    }

    // --- the solution ---

    /// The cost of the present point.
    pub fn objective(&self) -> f64 {
        let n = self.problem.columns();
        let mut sum = 0.0;
        for &column in &self.offset {
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

    /// The dual value of a row: the change of the least cost for each unit that the row's binding bound
    /// grows.
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

    /// Row multipliers that prove an infeasible program so: for every point within the columns'
    /// bounds the weighted sum of the rows' activities is above what the rows' bounds allow. All zero
    /// where a column's own bounds exclude each other.
    pub fn ray(&self) -> &[f64] {
        &self.ray
    }

    /// A direction, by column, along which the costs of an unbounded program fall without end and
    /// every point stays feasible.
    pub fn direction(&self) -> &[f64] {
        &self.direction
    }

    // --- solving ---

    /// Solves from the present basis. An answer that fails its check is looked for again
    /// from fresh factors, and then from the basis of the logical variables.
    pub fn solve(&mut self) -> Status {
        let pricing = self.pricing;
        let status = self.solve_again();
        self.pricing = pricing;
        status
    }

    fn solve_again(&mut self) -> Status {
        let mut last = Status::Trouble;
        for attempt in 0..3 {
            match attempt {
                0 => {}
                1 => {
                    self.restore_costs();
                    self.forget_factors();
                }
                _ => {
                    self.pricing = Pricing::Steepest;
                    self.set_basis(&[]);
                }
            }
            last = match self.attempt() {
                Ok(()) => Status::Optimal,
                Err(status) => status,
            };
            let confirmed = match last {
                Status::Optimal => self.confirms_optimal(),
                Status::Infeasible => self.confirms_infeasible(),
                Status::Unbounded => self.confirms_unbounded(),
                Status::Limit | Status::Trouble => false,
            };
            if confirmed {
                return last;
            }
        }
        if last == Status::Limit { last } else { Status::Trouble }
    }

    fn attempt(&mut self) -> Result<(), Status> {
        self.began = self.pivots;
        self.crossed = self.low.iter().zip(&self.high).any(|(low, high)| low > high);
        if self.crossed {
            return self.excluded();
        }
        if self.stale {
            self.refactor()?;
            self.priced = false;
        }
        if !self.priced {
            self.price();
        }
        self.make_dual_feasible();
        self.place();
        let most = self.pivots + 20_000 + 50 * (self.position.len() as u64);
        let before = self.pivots;
        self.dual_method(most)?;
        // After few pivots from a root the reduced costs are as good as new.
        let mut doubted = self.pricing == Pricing::Steepest && self.pivots > before;
        for _ in 0..TURNS_MAX {
            if !self.shifted && !doubted {
                self.priced = true;
                return Ok(());
            }
            doubted = false;
            self.restore_costs();
            self.price();
            if !self.is_dual_feasible() {
                self.primal_method(most)?;
                // The dual method finds again what feasibility was lost on the way.
                if !self.is_primal_feasible() {
                    self.make_dual_feasible();
                    self.place();
                    self.dual_method(most)?;
                }
            }
        }
        Err(Status::Trouble)
    }

    /// A variable whose lower bound lies above its upper one.
    fn excluded(&mut self) -> Result<(), Status> {
        let n = self.problem.columns();
        self.ray = vec![0.0; self.head.len()];
        if let Some(row) = (0..self.head.len()).find(|row| self.low[n + row] > self.high[n + row]) {
            self.ray[row] = 1.0;
        }
        Err(Status::Infeasible)
    }

    fn restore_costs(&mut self) {
        let n = self.problem.columns();
        self.cost[..n].copy_from_slice(&self.problem.cost);
        self.cost[n..].fill(0.0);
        self.shifted = false;
    }

    fn refactor(&mut self) -> Result<(), Status> {
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
                        self.position[out] = self.resting(out, self.d[out]);
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

    /// Computes the reduced costs of the basis.
    fn price(&mut self) {
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

    /// How far a value may lie beyond this bound.
    #[inline]
    fn primal_tolerance(&self, bound: f64) -> f64 {
        FEASIBLE * self.primal_unit.max(bound.abs())
    }

    /// How far a variable's reduced cost may have the wrong sign.
    #[inline]
    fn dual_tolerance(&self, variable: usize) -> f64 {
        FEASIBLE * self.dual_unit.max(self.cost[variable].abs())
    }

    /// How far a nonbasic variable's reduced cost has the wrong sign for its position.
    fn dual_gap(&self, variable: usize) -> f64 {
        let d = self.d[variable];
        match self.position[variable] {
            Position::Lower => -d,
            Position::Upper => d,
            Position::Free => d.abs(),
            Position::Basic | Position::Fixed => 0.0,
        }
    }

    fn is_dual_feasible(&self) -> bool {
        (0..self.position.len()).all(|at| self.dual_gap(at) <= self.dual_tolerance(at))
    }

    fn is_primal_feasible(&self) -> bool {
        let all = self.x.iter().zip(self.low_b.iter().zip(&self.high_b));
        all.into_iter().all(|(&x, (&low, &high))| {
            x >= low - 10.0 * self.primal_tolerance(low)
                && x <= high + 10.0 * self.primal_tolerance(high)
        })
    }

    /// Moves nonbasic variables to the bounds that their reduced costs call for; shifts the costs of
    /// those that lack that bound.
    fn make_dual_feasible(&mut self) {
        let least = FEASIBLE * self.dual_unit;
        for variable in 0..self.position.len() {
            let gap = self.dual_gap(variable);
            if gap <= least || gap <= self.dual_tolerance(variable) {
                continue;
            }
            if self.low[variable].is_finite() && self.high[variable].is_finite() {
                self.position[variable] = match self.position[variable] {
                    Position::Lower => Position::Upper,
                    _ => Position::Lower,
                };
            } else {
                self.cost[variable] -= self.d[variable];
                self.d[variable] = 0.0;
                self.shifted = true;
            }
        }
    }

    #[inline(always)]
    fn value(&self, variable: usize) -> f64 {
        match self.position[variable] {
            Position::Lower | Position::Fixed => self.low[variable],
            Position::Upper => self.high[variable],
            Position::Free | Position::Basic => 0.0,
        }
    }

    /// Computes the values of basic variables from those of the others.
    fn place(&mut self) {
        let mut x = std::mem::take(&mut self.x);
        x.fill(0.0);
        let logical = self.problem.columns()..self.position.len();
        let structural = self.offset.iter().map(|column| *column as usize);
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
            self.low_b[row] = self.low[variable as usize];
            self.high_b[row] = self.high[variable as usize];
        }
    }

    /// Computes a row of the tableau into `work.alpha`; `work.touched` lists its nonzero entries.
    #[inline]
    fn tableau_row(&mut self, row: usize) {
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

    #[inline]
    fn clear_row(&mut self) {
        for &variable in &self.work.touched {
            self.work.alpha[variable as usize] = 0.0;
        }
        self.work.touched.clear();
    }

    /// Updates the reduced costs after a pivot by the row of the tableau, and clears that row.
    #[inline]
    fn reduce(&mut self, theta: f64) {
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
    fn tableau_column(&mut self, variable: usize) {
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

    /// The basic variable of a row leaves to a bound; another enters, moved by `step`.
    #[inline]
    fn exchange(&mut self, row: usize, entering: usize, step: f64, to: Position) {
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
        (self.low_b[row], self.high_b[row]) = (self.low[entering], self.high[entering]);
        self.factor.replace(row, &self.work.column, &self.work.column_at);
        self.pivots += 1;
    }
}

/// Whether a nonbasic variable with these bounds can have a value other than zero.
fn is_offset(low: f64, high: f64) -> bool {
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

/// The rows and values of a variable's column.
enum Entries<'a> {
    Column(std::slice::Iter<'a, (u32, f64)>),
    Logical(Option<usize>),
}

impl<'a> Entries<'a> {
    #[inline]
    fn of(problem: &'a Problem, variable: usize) -> Self {
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

#[cfg(test)]
mod tests;
