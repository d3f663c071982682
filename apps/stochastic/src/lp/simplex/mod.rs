//! The simplex method: dual, with a primal one that cleans up where costs had to be changed on the way.
//!
//! A basis that is not dual feasible is made so by changing costs; whether the program has a feasible point does not depend on them. From
//! that point the primal method goes on with the true ones. Costs are changed as well where the dual method stalls (perturbation).
//! Ties are broken by numbers alone, so that one input gives one sequence of bases. Must not know what the program stands for.
//!
//! Sources: Koberstein, The dual simplex method, techniques for a fast and stable implementation (Paderborn 2005); Maros,
//! Computational techniques of the simplex method (2003) for the ratio test that passes boxed variables; Forrest and Goldfarb,
//! Steepest-edge simplex algorithms (Math. Programming 1992) for dual weights.

mod dual;
mod primal;

use super::factor::Factor;
use super::problem::Problem;

/// Primal and dual feasibility, beside values of about 1.
const FEASIBLE: f64 = 1e-9;
/// A pivot is no smaller, where there is a choice.
const PIVOT: f64 = 1e-9;
/// What is smaller counts as zero in a row or column of the tableau.
const TINY: f64 = 1e-13;
/// The factors are made anew after so many pivots.
const REFACTOR: usize = 100;
/// What was divided and multiplied again may be larger by this factor.
const ROUNDED: f64 = 1.0 + 1e-14;
/// A cancelled sum that is still an entry.
const CANCELLED: f64 = 1e-300;

/// How a solve ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// At a least-cost point.
    Optimal,
    /// There is no point: [`Simplex::ray`] proves it.
    Infeasible,
    /// Costs have no bound.
    Unbounded,
    /// It took more pivots than any such program should.
    Limit,
    /// The basis could not be factored well enough to go on.
    Trouble,
}

/// Where a variable is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum At {
    Basic,
    Lower,
    Upper,
    /// Nonbasic without bounds, at zero.
    Free,
    /// Both bounds are equal: it never enters.
    Fixed,
}

/// How the row that leaves is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pricing {
    /// The largest infeasibility: cheapest, and best where few pivots are made from a good basis.
    Largest,
    /// The largest beside the length of its dual edge.
    Steepest,
}

/// A basis to come back to, with its factors.
#[derive(Clone, Debug)]
pub struct Root {
    head: Vec<u32>,
    at: Vec<At>,
    d: Vec<f64>,
    factor: Factor,
    number: u64,
}

impl Root {
    /// How many numbers its factors have.
    pub fn entries(&self) -> usize {
        self.factor.entries()
    }
}

/// A linear program and a basis of it.
#[derive(Clone, Debug)]
pub struct Simplex {
    problem: Problem,
    pricing: Pricing,
    /// The variable that is basic at each row.
    head: Vec<u32>,
    at: Vec<At>,
    low: Vec<f64>,
    high: Vec<f64>,
    /// True costs with what was added to them on the way.
    cost: Vec<f64>,
    changed: bool,
    /// Reduced costs.
    d: Vec<f64>,
    x: Vec<f64>,
    low_b: Vec<f64>,
    high_b: Vec<f64>,
    weights: Vec<f64>,
    factor: Factor,
    /// The root whose factors these are; 0 if none's.
    root: u64,
    roots: u64,
    /// Rows were added, or the basis was set: no factors.
    stale: bool,
    /// Reduced costs are those of the basis and the true costs.
    priced: bool,
    pivots: u64,
    /// Pivots when the present solve began.
    began: u64,
    /// Numbers that pivots went through.
    effort: u64,
    /// How large numbers are beside which feasibility is measured.
    primal_scale: f64,
    dual_scale: f64,
    ray: Vec<f64>,
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
}

#[derive(Clone, Copy, Debug)]
struct Candidate {
    variable: u32,
    /// Of the row, so that it is positive where the variable may move.
    alpha: f64,
    /// What its reduced cost is away from zero.
    gap: f64,
    /// How far it can move before it is at its other bound.
    range: f64,
}

impl Simplex {
    /// A program with the basis of its logical variables.
    pub fn new(problem: Problem, pricing: Pricing) -> Self {
        let (n, m) = (problem.columns(), problem.rows());
        let mut simplex = Self {
            pricing,
            head: Vec::new(),
            at: vec![At::Lower; n],
            low: problem.lower.clone(),
            high: problem.upper.clone(),
            cost: problem.cost.clone(),
            changed: false,
            d: vec![0.0; n],
            x: Vec::new(),
            low_b: Vec::new(),
            high_b: Vec::new(),
            weights: Vec::new(),
            factor: Factor::default(),
            root: 0,
            roots: 0,
            stale: true,
            priced: false,
            pivots: 0,
            began: 0,
            effort: 0,
            primal_scale: 1.0,
            dual_scale: 1.0,
            ray: Vec::new(),
            work: Work::default(),
            problem,
        };
        for variable in 0..n {
            simplex.at[variable] = simplex.resting(variable, simplex.cost[variable]);
        }
        let largest = simplex.cost.iter().fold(0.0_f64, |most, cost| most.max(cost.abs()));
        simplex.dual_scale = (1e-3 * largest).max(1.0);
        for row in 0..m {
            simplex.grow(row);
        }
        simplex
    }

    /// A row that was added has its logical variable in the basis.
    fn grow(&mut self, row: usize) {
        let (lower, upper) = self.problem.row_bounds(row);
        self.head.push((self.problem.columns() + row) as u32);
        self.at.push(At::Basic);
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

    /// At which bound a nonbasic variable of this reduced cost is.
    fn resting(&self, variable: usize, d: f64) -> At {
        let (low, high) = (self.low[variable], self.high[variable]);
        match (low.is_finite(), high.is_finite()) {
            (true, true) if low == high => At::Fixed,
            (true, true) if d < 0.0 => At::Upper,
            (true, _) => At::Lower,
            (false, true) => At::Upper,
            (false, false) => At::Free,
        }
    }

    /// The program.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// How many pivots were made since the beginning.
    pub fn pivots(&self) -> u64 {
        self.pivots
    }

    /// How many numbers pivots of the dual method went through since the beginning: in proportion to the time that they took, and the
    /// same on every machine.
    pub fn effort(&self) -> u64 {
        self.effort
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
        self.problem.add_row(entries, lower, upper);
        self.grow(self.problem.rows() - 1);
    }

    /// Takes rows away for which `keep` does not hold and whose logical variables are basic: the basis is the same without them. Returns
    /// which are gone, by their numbers before.
    pub fn drop_rows(&mut self, mut keep: impl FnMut(usize) -> bool) -> Vec<bool> {
        let n = self.problem.columns();
        let gone: Vec<bool> = (0..self.problem.rows())
            .map(|row| self.at[n + row] == At::Basic && !keep(row))
            .collect();
        if !gone.contains(&true) {
            return gone;
        }
        self.problem.retain_rows(|row| !gone[row]);
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
        retain(&mut self.at, |variable| !is_gone(variable));
        self.stale = true;
        gone
    }

    /// Sets a column's bounds.
    ///
    /// # Panics
    /// If there is no such column.
    pub fn set_bounds(&mut self, column: usize, lower: f64, upper: f64) {
        self.problem.set_bounds(column, lower, upper);
        self.bound(column, lower, upper);
    }

    /// Sets the bounds of a row's activity.
    ///
    /// # Panics
    /// If there is no such row.
    #[inline]
    pub fn set_row_bounds(&mut self, row: usize, lower: f64, upper: f64) {
        self.problem.set_row_bounds(row, lower, upper);
        self.bound(self.problem.columns() + row, -upper, -lower);
    }

    #[inline]
    fn bound(&mut self, variable: usize, low: f64, high: f64) {
        (self.low[variable], self.high[variable]) = (low, high);
        let rests = match self.at[variable] {
            At::Basic => true,
            At::Fixed => low == high,
            At::Lower => low.is_finite() && low < high,
            At::Upper => high.is_finite() && low < high,
            At::Free => low == f64::NEG_INFINITY && high == f64::INFINITY,
        };
        if !rests {
            self.at[variable] = self.resting(variable, self.d[variable]);
        }
    }

    // --- bases to come back to ---

    /// The present basis, with factors of its own, to come back to. Costs that were changed on the way are forgotten.
    ///
    /// # Errors
    /// It cannot be factored.
    pub fn root(&mut self) -> Result<Root, Status> {
        self.true_costs();
        self.refactor()?;
        self.price();
        self.roots += 1;
        self.root = self.roots;
        let (head, at, d) = (self.head.clone(), self.at.clone(), self.d.clone());
        Ok(Root { head, at, d, factor: self.factor.clone(), number: self.roots })
    }

    /// Goes back to a basis. Bounds stay as they are.
    ///
    /// # Panics
    /// If rows were added or dropped since it was taken.
    #[inline]
    pub fn restart(&mut self, root: &Root) {
        assert_eq!(root.head.len(), self.head.len(), "rows were added since");
        self.head.copy_from_slice(&root.head);
        self.at.copy_from_slice(&root.at);
        self.d.copy_from_slice(&root.d);
        if self.root == root.number {
            self.factor.back_to(0);
        } else {
            self.factor.clone_from(&root.factor);
            self.root = root.number;
        }
        if self.changed {
            self.true_costs();
        }
        if self.pricing == Pricing::Steepest {
            self.weights.fill(1.0);
        }
        (self.stale, self.priced) = (false, true);
    }

    /// Which variables are basic, and which nonbasic ones are at their upper bound: two bits for each, columns first.
    pub fn basis(&self) -> Vec<u8> {
        let mut bits = vec![0; self.at.len().div_ceil(4)];
        for (variable, at) in self.at.iter().enumerate() {
            let two = match at {
                At::Basic => 1,
                At::Upper => 2,
                _ => 0,
            };
            bits[variable / 4] |= two << (2 * (variable % 4));
        }
        bits
    }

    /// Takes a basis that [`Simplex::basis`] told. One that is no basis, or of another program, is mended when it is used. What was
    /// solved before plays no part in what is found from it: a program of the same rows and bounds goes the same way.
    pub fn set_basis(&mut self, bits: &[u8]) {
        let m = self.head.len();
        self.head.clear();
        for variable in 0..self.at.len() {
            let two = bits.get(variable / 4).map_or(0, |bits| bits >> (2 * (variable % 4)) & 3);
            let mut at = self.resting(variable, self.d[variable]);
            if two == 1 && self.head.len() < m {
                self.head.push(variable as u32);
                at = At::Basic;
            } else if matches!(at, At::Lower | At::Upper) {
                at = match two {
                    2 if self.high[variable].is_finite() => At::Upper,
                    _ if self.low[variable].is_finite() => At::Lower,
                    _ => at,
                };
            }
            self.at[variable] = at;
        }
        for row in 0..m {
            let logical = self.problem.columns() + row;
            if self.head.len() < m && self.at[logical] != At::Basic {
                self.head.push(logical as u32);
                self.at[logical] = At::Basic;
            }
        }
        if self.changed {
            self.true_costs();
        }
        self.weights.fill(1.0);
        (self.stale, self.priced) = (true, false);
        self.root = 0;
    }

    // --- what was found ---

    /// The cost of the present point.
    pub fn objective(&self) -> f64 {
        let n = self.problem.columns();
        let nonbasic = (0..n).filter(|&variable| self.at[variable] != At::Basic);
        let mut sum: f64 =
            nonbasic.map(|variable| self.problem.cost[variable] * self.value(variable)).sum();
        for (&variable, x) in self.head.iter().zip(&self.x) {
            if (variable as usize) < n {
                sum += self.problem.cost[variable as usize] * x;
            }
        }
        sum
    }

    /// The columns' values.
    ///
    /// # Panics
    /// If `out` has another length than there are columns.
    pub fn values(&self, out: &mut [f64]) {
        let n = self.problem.columns();
        assert_eq!(out.len(), n);
        for (variable, out) in out.iter_mut().enumerate() {
            *out = self.value(variable);
        }
        for (&variable, &x) in self.head.iter().zip(&self.x) {
            if (variable as usize) < n {
                out[variable as usize] = x;
            }
        }
    }

    /// What one more of a row's activity bound would cost: its dual value.
    ///
    /// # Panics
    /// If there is no such row.
    #[inline]
    pub fn dual(&self, row: usize) -> f64 {
        let logical = self.problem.columns() + row;
        if self.at[logical] == At::Basic { 0.0 } else { -self.d[logical] }
    }

    /// Whether a row's logical variable is basic: the row could be left out.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn is_slack(&self, row: usize) -> bool {
        self.at[self.problem.columns() + row] == At::Basic
    }

    /// Of an infeasible program: multipliers of its rows that prove it. For all points within the columns' bounds the rows' activities
    /// so weighted are more than the weighted bounds allow.
    pub fn ray(&self) -> &[f64] {
        &self.ray
    }

    // --- solving ---

    /// Solves from the present basis.
    pub fn solve(&mut self) -> Status {
        match self.try_solve() {
            Ok(()) => Status::Optimal,
            Err(status) => status,
        }
    }

    fn try_solve(&mut self) -> Result<(), Status> {
        self.began = self.pivots;
        if self.low.iter().zip(&self.high).any(|(low, high)| low > high) {
            return self.crossed();
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
        let most = self.pivots + 20_000 + 50 * (self.at.len() as u64);
        let before = self.pivots;
        self.dual_method(most)?;
        // With few pivots from a good basis reduced costs are as good as new.
        let mut doubted = self.pricing == Pricing::Steepest && self.pivots > before;
        while self.changed || doubted {
            doubted = false;
            self.true_costs();
            self.price();
            if self.is_dual_feasible() {
                break;
            }
            self.primal_method(most)?;
            // What was lost on the way in feasibility the dual method finds again.
            if self.is_primal_feasible() {
                break;
            }
            self.make_dual_feasible();
            self.place();
            self.dual_method(most)?;
        }
        self.priced = true;
        Ok(())
    }

    /// A variable has no value between its bounds.
    fn crossed(&mut self) -> Result<(), Status> {
        let n = self.problem.columns();
        self.ray = vec![0.0; self.head.len()];
        for row in 0..self.head.len() {
            if self.low[n + row] > self.high[n + row] {
                self.ray[row] = 1.0;
                break;
            }
        }
        Err(Status::Infeasible)
    }

    fn true_costs(&mut self) {
        let n = self.problem.columns();
        self.cost[..n].copy_from_slice(&self.problem.cost);
        self.cost[n..].fill(0.0);
        self.changed = false;
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
                // Logical variables of the rows that are not covered take the places of columns that depend on others.
                Err(singular) => {
                    for (&position, &row) in singular.positions.iter().zip(&singular.rows) {
                        let out = self.head[position] as usize;
                        self.at[out] = self.resting(out, self.d[out]);
                        self.head[position] = (n + row) as u32;
                        self.at[n + row] = At::Basic;
                        self.weights[position] = 1.0;
                    }
                    self.priced = false;
                }
            }
        }
        Err(Status::Trouble)
    }

    /// Reduced costs of the basis.
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

    fn dual_tolerance(&self) -> f64 {
        FEASIBLE * self.dual_scale
    }

    fn primal_tolerance(&self) -> f64 {
        FEASIBLE * self.primal_scale
    }

    /// How far a nonbasic variable's reduced cost is from what its bound wants.
    fn dual_gap(&self, variable: usize) -> f64 {
        let d = self.d[variable];
        match self.at[variable] {
            At::Lower => -d,
            At::Upper => d,
            At::Free => d.abs(),
            At::Basic | At::Fixed => 0.0,
        }
    }

    fn is_dual_feasible(&self) -> bool {
        (0..self.at.len()).all(|variable| self.dual_gap(variable) <= self.dual_tolerance())
    }

    fn is_primal_feasible(&self) -> bool {
        let most = 10.0 * self.primal_tolerance();
        let all = self.x.iter().zip(self.low_b.iter().zip(&self.high_b));
        all.into_iter().all(|(&x, (&low, &high))| low - x <= most && x - high <= most)
    }

    /// Nonbasic variables go to the bound that their reduced costs want; where there is none, costs are changed.
    fn make_dual_feasible(&mut self) {
        let tolerance = self.dual_tolerance();
        for variable in 0..self.at.len() {
            if self.dual_gap(variable) <= tolerance {
                continue;
            }
            if self.low[variable].is_finite() && self.high[variable].is_finite() {
                self.at[variable] =
                    if self.at[variable] == At::Lower { At::Upper } else { At::Lower };
            } else {
                self.cost[variable] -= self.d[variable];
                self.d[variable] = 0.0;
                self.changed = true;
            }
        }
    }

    #[inline(always)]
    fn value(&self, variable: usize) -> f64 {
        match self.at[variable] {
            At::Lower | At::Fixed => self.low[variable],
            At::Upper => self.high[variable],
            At::Free | At::Basic => 0.0,
        }
    }

    /// Values of basic variables, from those of the others.
    fn place(&mut self) {
        let mut x = std::mem::take(&mut self.x);
        x.fill(0.0);
        let mut largest = 0.0_f64;
        for variable in 0..self.at.len() {
            if self.at[variable] == At::Basic {
                continue;
            }
            let value = self.value(variable);
            if value == 0.0 {
                continue;
            }
            largest = largest.max(value.abs());
            for (row, entry) in Entries::of(&self.problem, variable) {
                x[row] -= entry * value;
            }
        }
        self.primal_scale = (1e-3 * largest).max(1.0);
        self.factor.ftran(&mut x);
        self.x = x;
        for (row, &variable) in self.head.iter().enumerate() {
            self.low_b[row] = self.low[variable as usize];
            self.high_b[row] = self.high[variable as usize];
        }
    }

    /// The row of the tableau at a row of the basis, in `work.alpha`, of which `work.touched` are not zero.
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

    /// Reduced costs after a pivot, by the row of the tableau, which is clear then.
    #[inline]
    fn reduce(&mut self, theta: f64) {
        for &variable in &self.work.touched {
            let variable = variable as usize;
            let alpha = std::mem::take(&mut self.work.alpha[variable]);
            if self.at[variable] != At::Basic {
                self.d[variable] -= theta * alpha;
            }
        }
        self.work.touched.clear();
    }

    /// The column of the tableau of a variable, in `work.column`, of which `work.column_at` are not zero.
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

    /// The variable at a row leaves to a bound, and another enters that moves by `step`.
    #[inline]
    fn exchange(&mut self, row: usize, entering: usize, step: f64, to: At) {
        let value = self.value(entering) + step;
        for &at in &self.work.column_at {
            self.x[at as usize] -= step * self.work.column[at as usize];
        }
        let out = self.head[row] as usize;
        self.at[out] = if self.low[out] == self.high[out] { At::Fixed } else { to };
        self.at[entering] = At::Basic;
        self.d[entering] = 0.0;
        self.head[row] = entering as u32;
        self.x[row] = value;
        (self.low_b[row], self.high_b[row]) = (self.low[entering], self.high[entering]);
        self.factor.replace(row, &self.work.column, &self.work.column_at);
        self.pivots += 1;
    }
}

/// Keeps the elements at these indices.
fn retain<T>(all: &mut Vec<T>, mut keep: impl FnMut(usize) -> bool) {
    let mut at = 0;
    all.retain(|_| {
        at += 1;
        keep(at - 1)
    });
}

/// Rows and values of a variable's column.
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
