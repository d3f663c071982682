//! The dual simplex method: from a dual feasible basis, basic variables beyond their bounds leave
//! it.

use springtide_runtime::random::SplitMix;

use super::tableau::Entries;
use super::{
    EnteringVariable, FEASIBILITY_TOLERANCE, PIVOT_MIN, Position, Pricing, REFACTOR_INTERVAL,
    ROUNDING_FACTOR, Simplex, Status,
};

/// The largest violation that counts as rounding if no pivot can reduce it, relative to the larger
/// of 1 and the violated bound.
const NOISE: f64 = 1e-7;
/// A multiplier of a ray below this part of the largest multiplier is rounding.
const RAY_TINY: f64 = 1e-11;
/// The most refused pivots and doubtful rows before the solve fails.
const TROUBLE_MAX: usize = 20;

impl Simplex {
    /// Pivots until no basic variable is beyond its bounds.
    ///
    /// # Errors
    /// The program is infeasible, `pivots_max` pivots were made since the program was created, or
    /// the basis cannot be factored well enough.
    pub(super) fn dual_method(&mut self, pivots_max: u64) -> Result<(), Status> {
        let (mut stalled, mut troubled) = (0_usize, 0);
        let patience = 50 + self.head.len() / 2;
        loop {
            if self.factor.replaced() >= REFACTOR_INTERVAL.max(if self.root > 0 { 300 } else { 0 })
            {
                self.refactor_for_dual()?;
            }
            let Some((row, delta)) = self.choose_leaving() else { return Ok(()) };
            if self.pivots >= pivots_max {
                return Err(Status::Limit);
            }
            self.tableau_row(row);
            let Some(entering) = self.dual_ratio_test(delta) else {
                // That no variable can enter is certain with fresh factors only.
                if self.factor.replaced() > 0 && troubled < 3 {
                    troubled += 1;
                    self.clear_row();
                    self.refactor_for_dual()?;
                    continue;
                }
                let bound = if delta > 0.0 { self.basic_high[row] } else { self.basic_low[row] };
                if delta.abs() <= NOISE * self.primal_unit.max(bound.abs()) {
                    let x = self.x[row];
                    self.basic_low[row] = self.basic_low[row].min(x);
                    self.basic_high[row] = self.basic_high[row].max(x);
                    self.clear_row();
                    continue;
                }
                self.take_ray(-delta.signum());
                self.clear_row();
                return Err(Status::Infeasible);
            };
            let before = self.pivots;
            let gain = self.dual_pivot(row, entering as usize, delta)?;
            if self.pivots == before {
                troubled += 1;
                if troubled > TROUBLE_MAX {
                    return Err(Status::Trouble);
                }
                continue;
            }
            troubled = 0;
            stalled = if gain > 1e-12 * self.dual_unit { 0 } else { stalled + 1 };
            if stalled > patience {
                self.perturb();
                stalled = 0;
            }
        }
    }

    /// Keeps the row multipliers in `work.rho` as the ray that proves the program infeasible.
    fn take_ray(&mut self, sign: f64) {
        let rho = &self.work.rho;
        let least = RAY_TINY * rho.iter().fold(0.0_f64, |most, value| most.max(value.abs()));
        let kept = |value: f64| if value.abs() > least { sign * value } else { 0.0 };
        let units = rho.iter().zip(&self.scale.rows);
        self.ray.clear();
        self.ray.extend(units.map(|(rho, scale)| kept(*rho) * scale));
    }

    /// Refactors the basis and makes it dual feasible again.
    fn refactor_for_dual(&mut self) -> Result<(), Status> {
        self.refactor()?;
        self.compute_reduced_costs();
        self.make_dual_feasible();
        self.compute_values();
        Ok(())
    }

    /// The row that leaves, and the distance of its variable from its bound: positive above the
    /// upper.
    #[inline]
    fn choose_leaving(&self) -> Option<(usize, f64)> {
        let row = self.most_violated(|_| true)?;
        // That row nearly always exceeds the tolerance of its own bound as well.
        let counts = |row: usize| {
            let (x, low, high) = (self.x[row], self.basic_low[row], self.basic_high[row]);
            let bound = if x < low { low } else { high };
            (low - x).max(x - high) > self.primal_tolerance(bound)
        };
        let row = if counts(row) { row } else { self.most_violated(counts)? };
        let (x, low, high) = (self.x[row], self.basic_low[row], self.basic_high[row]);
        Some((row, if x < low { x - low } else { x - high }))
    }

    /// The row with the largest violation above the smallest tolerance, among rows that `counts`
    /// accepts.
    #[inline]
    fn most_violated(&self, counts: impl Fn(usize) -> bool) -> Option<usize> {
        let least = self.primal_tolerance(0.0);
        let (mut best, mut found) = (0.0, None);
        let all = self.x.iter().zip(&self.basic_low).zip(&self.basic_high).enumerate();
        match self.pricing {
            Pricing::Largest => {
                best = least;
                for (row, ((&x, &low), &high)) in all {
                    let beyond = (low - x).max(x - high);
                    if beyond > best && counts(row) {
                        (best, found) = (beyond, Some(row));
                    }
                }
            }
            Pricing::Steepest => {
                for (row, ((&x, &low), &high)) in all {
                    let beyond = (low - x).max(x - high);
                    if beyond > least {
                        let worth = beyond * beyond / self.weights[row];
                        if worth > best && counts(row) {
                            (best, found) = (worth, Some(row));
                        }
                    }
                }
            }
        }
        found
    }

    /// The variable that enters for a row that is `delta` beyond its bound: of the variables whose
    /// reduced costs change sign first, within the tolerance, the one with the largest pivot
    /// (Harris). Collects in `work.flips` the boxed variables that only move to their other bounds,
    /// after which the row is still infeasible.
    #[inline]
    fn dual_ratio_test(&mut self, delta: f64) -> Option<u32> {
        let sign = delta.signum();
        // The smallest tolerance of all variables keeps the loops short.
        let tolerance = FEASIBILITY_TOLERANCE * self.dual_unit;
        let reached = self.primal_tolerance(0.0) + 1e-10 * delta.abs();
        let work = &mut self.work;
        work.candidates.clear();
        work.flips.clear();
        for &variable in &work.touched {
            let at = variable as usize;
            let alpha = sign * work.alpha[at];
            let (alpha, gap) = match self.position[at] {
                Position::Lower if alpha > PIVOT_MIN => (alpha, self.d[at]),
                Position::Upper if alpha < -PIVOT_MIN => (-alpha, -self.d[at]),
                Position::Free if alpha.abs() > PIVOT_MIN => (alpha.abs(), 0.0),
                _ => continue,
            };
            let range = self.high[at] - self.low[at];
            work.candidates.push(EnteringVariable { variable, alpha, gap: gap.max(0.0), range });
        }
        let mut slope = delta.abs();
        let all = &mut work.candidates;
        while !all.is_empty() {
            let limits = all.iter().map(|one| (one.gap + tolerance) / one.alpha);
            let limit = limits.fold(f64::INFINITY, f64::min);
            let within = |one: &EnteringVariable| one.gap <= limit * one.alpha * ROUNDING_FACTOR;
            let (mut best, mut gain): (Option<EnteringVariable>, f64) = (None, 0.0);
            for one in all.iter().filter(|one| within(one)) {
                gain += one.alpha * one.range;
                let better = best.is_none_or(|best| {
                    one.alpha > best.alpha
                        || one.alpha == best.alpha && one.variable < best.variable
                });
                if better {
                    best = Some(*one);
                }
            }
            slope -= gain;
            if slope < 0.0 || !slope.is_finite() {
                return best.map(|best| best.variable);
            }
            // All variables within the limit move to their other bounds.
            let (mut kept, mut last) = (0, None);
            for at in 0..all.len() {
                let one = all[at];
                if within(&one) {
                    work.flips.push(one.variable);
                    last = best;
                } else {
                    all[kept] = one;
                    kept += 1;
                }
            }
            all.truncate(kept);
            if all.is_empty() {
                // With all variables at their other bounds, the row reaches its bound only if no
                // slope is left.
                return match last {
                    Some(best) if slope <= reached => {
                        work.flips.retain(|&variable| variable != best.variable);
                        Some(best.variable)
                    }
                    _ => None,
                };
            }
        }
        None
    }

    /// Pivots, and returns the growth of the dual objective. If the row and the column of the
    /// tableau disagree about the pivot, only renews the factors.
    #[inline]
    fn dual_pivot(&mut self, row: usize, entering: usize, delta: f64) -> Result<f64, Status> {
        self.tableau_column(entering);
        let through = self.head.len() + self.work.touched.len() + self.factor.entries();
        self.effort += (through + 2 * self.factor.eta_entries()) as u64;
        let (pivot, expected) = (self.work.column[row], self.work.alpha[entering]);
        let differs = (pivot - expected).abs() > 1e-7 * (1.0 + pivot.abs());
        if differs || pivot.abs() < 0.1 * PIVOT_MIN {
            self.clear_row();
            if self.factor.replaced() == 0 && differs {
                return Err(Status::Trouble);
            }
            self.refactor_for_dual()?;
            return Ok(0.0);
        }
        // A reduced cost of the wrong sign, within the tolerance, is shifted to zero.
        let mut d = self.d[entering];
        let wrong = match self.position[entering] {
            Position::Lower => d < 0.0,
            Position::Upper => d > 0.0,
            _ => d != 0.0,
        };
        if wrong {
            self.cost[entering] -= d;
            self.shifted = true;
            d = 0.0;
        }
        let theta = d / expected;
        // After flips the distance may be rounding: its sign before them decides the bound.
        let above = delta > 0.0;
        let mut delta = delta;
        if !self.work.flips.is_empty() {
            delta = self.flip(row, delta);
        }
        self.update_reduced_costs(theta);
        if self.pricing == Pricing::Steepest {
            self.update_weights(row);
        }
        let out = self.head[row] as usize;
        self.d[out] = -theta;
        self.exchange(
            row,
            entering,
            delta / pivot,
            if above { Position::Upper } else { Position::Lower },
        );
        Ok((theta * delta).abs())
    }

    /// Moves the boxed variables in `work.flips` to their other bounds. Returns the row's distance
    /// from its bound after that.
    fn flip(&mut self, row: usize, delta: f64) -> f64 {
        let mut change = std::mem::take(&mut self.work.tau);
        change.clear();
        change.resize(self.head.len(), 0.0);
        for &variable in &self.work.flips {
            let variable = variable as usize;
            let range = self.high[variable] - self.low[variable];
            let (at, by) = match self.position[variable] {
                Position::Lower => (Position::Upper, range),
                _ => (Position::Lower, -range),
            };
            self.position[variable] = at;
            for (row, value) in Entries::of(&self.problem, variable) {
                change[row] += value * by;
            }
        }
        self.factor.ftran(&mut change);
        for (x, change) in self.x.iter_mut().zip(&change) {
            *x -= change;
        }
        let moved = change[row];
        self.work.tau = change;
        self.work.flips.clear();
        delta - moved
    }

    /// Updates the dual weights after a pivot (Forrest and Goldfarb).
    fn update_weights(&mut self, row: usize) {
        let mut tau = std::mem::take(&mut self.work.tau);
        tau.clear();
        tau.extend_from_slice(&self.work.rho);
        self.factor.ftran(&mut tau);
        let length: f64 = self.work.rho.iter().map(|rho| rho * rho).sum();
        let pivot = self.work.column[row];
        for &other in &self.work.column_at {
            let other = other as usize;
            if other != row {
                let ratio = self.work.column[other] / pivot;
                let weight =
                    self.weights[other] - 2.0 * ratio * tau[other] + ratio * ratio * length;
                self.weights[other] = weight.max(ratio * ratio * length).max(1e-4);
            }
        }
        self.weights[row] = (length / (pivot * pivot)).max(1e-4);
        self.work.tau = tau;
    }

    /// Moves the reduced costs of nonbasic variables away from zero by small random numbers.
    fn perturb(&mut self) {
        // The seed depends on this solve alone, and so does the answer of a scenario.
        let mut dice = SplitMix(self.pivots - self.pivots_before);
        for variable in 0..self.position.len() {
            let by = (1.0 + dice.unit()) * 1e-6 * (self.dual_unit + self.cost[variable].abs());
            let by = match self.position[variable] {
                Position::Lower => by,
                Position::Upper => -by,
                _ => continue,
            };
            self.cost[variable] += by;
            self.d[variable] += by;
        }
        self.shifted = true;
    }
}
