//! The solve: the dual and the primal method in turn, until an answer is confirmed.

use super::{FEASIBILITY_TOLERANCE, Position, Pricing, Simplex, Status};

/// The most turns of the dual and the primal method in one attempt.
const TURNS_MAX: usize = 20;

impl Simplex {
    /// Solves from the present basis. If the answer fails its check, solves again from fresh
    /// factors, and then from the basis of the logical variables.
    pub fn solve(&mut self) -> Status {
        let pricing = self.pricing;
        let status = self.solve_repeatedly();
        self.pricing = pricing;
        status
    }

    fn solve_repeatedly(&mut self) -> Status {
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
            last = match self.solve_once() {
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

    /// One attempt, whose answer is not checked yet.
    fn solve_once(&mut self) -> Result<(), Status> {
        self.pivots_before = self.pivots;
        self.crossed = self.low.iter().zip(&self.high).any(|(low, high)| low > high);
        if self.crossed {
            return self.prove_crossed();
        }
        if self.stale {
            self.refactor()?;
            self.priced = false;
        }
        if !self.priced {
            self.compute_reduced_costs();
        }
        self.make_dual_feasible();
        self.compute_values();
        let pivots_max = self.pivots + 20_000 + 50 * (self.position.len() as u64);
        let before = self.pivots;
        self.dual_method(pivots_max)?;
        // With largest-infeasibility pricing solves are short, and updated reduced costs are exact
        // enough.
        let mut doubted = self.pricing == Pricing::Steepest && self.pivots > before;
        for _ in 0..TURNS_MAX {
            if !self.shifted && !doubted {
                self.priced = true;
                return Ok(());
            }
            doubted = false;
            self.restore_costs();
            self.compute_reduced_costs();
            if !self.is_dual_feasible() {
                self.primal_method(pivots_max)?;
                // The primal method can lose feasibility by rounding; the dual method restores it.
                if !self.is_primal_feasible() {
                    self.make_dual_feasible();
                    self.compute_values();
                    self.dual_method(pivots_max)?;
                }
            }
        }
        Err(Status::Trouble)
    }

    /// The ray of a program in which a lower bound lies above its upper bound.
    fn prove_crossed(&mut self) -> Result<(), Status> {
        let n = self.problem.columns();
        self.ray = vec![0.0; self.head.len()];
        if let Some(row) = (0..self.head.len()).find(|row| self.low[n + row] > self.high[n + row]) {
            self.ray[row] = 1.0;
        }
        Err(Status::Infeasible)
    }

    /// Removes all cost shifts.
    pub(super) fn restore_costs(&mut self) {
        let n = self.problem.columns();
        self.cost[..n].copy_from_slice(&self.problem.cost);
        self.cost[n..].fill(0.0);
        self.shifted = false;
    }

    /// The largest violation of a bound that counts as rounding.
    #[inline]
    pub(super) fn primal_tolerance(&self, bound: f64) -> f64 {
        FEASIBILITY_TOLERANCE * self.primal_unit.max(bound.abs())
    }

    /// The largest reduced cost of the wrong sign that counts as zero.
    #[inline]
    pub(super) fn dual_tolerance(&self, variable: usize) -> f64 {
        FEASIBILITY_TOLERANCE * self.dual_unit.max(self.cost[variable].abs())
    }

    /// The size of a nonbasic variable's reduced cost if it has the wrong sign for its position;
    /// else zero or less.
    pub(super) fn dual_gap(&self, variable: usize) -> f64 {
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
        let all = self.x.iter().zip(self.basic_low.iter().zip(&self.basic_high));
        all.into_iter().all(|(&x, (&low, &high))| {
            x >= low - 10.0 * self.primal_tolerance(low)
                && x <= high + 10.0 * self.primal_tolerance(high)
        })
    }

    /// Makes the basis dual feasible: moves nonbasic variables to the bounds that their reduced
    /// costs require, and shifts the costs of those without that bound.
    pub(super) fn make_dual_feasible(&mut self) {
        let least = FEASIBILITY_TOLERANCE * self.dual_unit;
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
}
