//! The dual method: of a dual feasible basis, rows leave that are beyond their bounds.
//!
//! Must not know how the basis was found, nor why costs were changed before.

use springtide_runtime::random::SplitMix;

use super::{At, Candidate, Entries, PIVOT, Pricing, REFACTOR, ROUNDED, Simplex, Status};

/// No program is called infeasible for less than this.
const NOISE: f64 = 1e-7;

impl Simplex {
    pub(super) fn dual_method(&mut self, most: u64) -> Result<(), Status> {
        let (mut stalled, mut troubled) = (0_usize, 0);
        let patience = 50 + self.head.len() / 2;
        loop {
            if self.factor.replaced() >= REFACTOR.max(if self.root > 0 { 300 } else { 0 }) {
                self.renew()?;
            }
            let Some((row, delta)) = self.leaving() else { return Ok(()) };
            if self.pivots >= most {
                return Err(Status::Limit);
            }
            self.tableau_row(row);
            let Some(entering) = self.entering(delta) else {
                // It is believed of good factors alone.
                if self.factor.replaced() > 0 && troubled < 3 {
                    troubled += 1;
                    self.clear_row();
                    self.renew()?;
                    continue;
                }
                if delta.abs() <= NOISE * self.primal_scale {
                    // Nothing can be done about it, and it is no more than rounding in a bad basis makes.
                    let x = self.x[row];
                    self.low_b[row] = self.low_b[row].min(x);
                    self.high_b[row] = self.high_b[row].max(x);
                    self.clear_row();
                    continue;
                }
                let sign = -delta.signum();
                self.ray.clear();
                self.ray.extend(self.work.rho.iter().map(|rho| sign * rho));
                self.clear_row();
                return Err(Status::Infeasible);
            };
            let before = self.pivots;
            let gain = self.dual_pivot(row, entering as usize, delta)?;
            if self.pivots == before {
                troubled += 1;
                if troubled > 20 {
                    return Err(Status::Trouble);
                }
                continue;
            }
            troubled = 0;
            stalled = if gain > 1e-12 * self.dual_scale { 0 } else { stalled + 1 };
            if stalled > patience {
                self.perturb();
                stalled = 0;
            }
        }
    }

    /// The basis from new factors, and dual feasible as before.
    fn renew(&mut self) -> Result<(), Status> {
        self.refactor()?;
        self.price();
        self.make_dual_feasible();
        self.place();
        Ok(())
    }

    /// The row that leaves, and how far its variable is beyond its bound: above where positive.
    #[inline]
    fn leaving(&self) -> Option<(usize, f64)> {
        let tolerance = self.primal_tolerance();
        let (mut best, mut found) = (0.0, None);
        let all = self.x.iter().zip(&self.low_b).zip(&self.high_b).enumerate();
        match self.pricing {
            Pricing::Largest => {
                best = tolerance;
                for (row, ((&x, &low), &high)) in all {
                    let beyond = (low - x).max(x - high);
                    if beyond > best {
                        (best, found) = (beyond, Some(row));
                    }
                }
            }
            Pricing::Steepest => {
                for (row, ((&x, &low), &high)) in all {
                    let beyond = (low - x).max(x - high);
                    if beyond > tolerance {
                        let worth = beyond * beyond / self.weights[row];
                        if worth > best {
                            (best, found) = (worth, Some(row));
                        }
                    }
                }
            }
        }
        let row = found?;
        let (x, low, high) = (self.x[row], self.low_b[row], self.high_b[row]);
        Some((row, if x < low { x - low } else { x - high }))
    }

    /// Which variable enters for a row that is `delta` beyond its bound: of those whose reduced costs are the first to change sign, within
    /// the tolerance, that of the largest pivot (Harris). Variables that would only go to their other bounds, and leave the row
    /// infeasible, are passed; they are in `work.flips`.
    #[inline]
    fn entering(&mut self, delta: f64) -> Option<u32> {
        let sign = delta.signum();
        let tolerance = self.dual_tolerance();
        let reached = self.primal_tolerance() + 1e-10 * delta.abs();
        let work = &mut self.work;
        work.candidates.clear();
        work.flips.clear();
        for &variable in &work.touched {
            let at = variable as usize;
            let alpha = sign * work.alpha[at];
            let (alpha, gap) = match self.at[at] {
                At::Lower if alpha > PIVOT => (alpha, self.d[at]),
                At::Upper if alpha < -PIVOT => (-alpha, -self.d[at]),
                At::Free if alpha.abs() > PIVOT => (alpha.abs(), 0.0),
                _ => continue,
            };
            let range = self.high[at] - self.low[at];
            work.candidates.push(Candidate { variable, alpha, gap: gap.max(0.0), range });
        }
        let mut slope = delta.abs();
        let all = &mut work.candidates;
        while !all.is_empty() {
            let limits = all.iter().map(|one| (one.gap + tolerance) / one.alpha);
            let limit = limits.fold(f64::INFINITY, f64::min);
            let within = |one: &Candidate| one.gap <= limit * one.alpha * ROUNDED;
            let (mut best, mut gain): (Option<Candidate>, f64) = (None, 0.0);
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
            // All of these only change their bounds.
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
                // With all at their other bounds the row is where it should be only if nothing is left of the slope.
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

    /// Returns by how much the dual objective has grown. If the pivot turned out to be wrong, the factors were made anew, and nothing
    /// else has changed.
    #[inline]
    fn dual_pivot(&mut self, row: usize, entering: usize, delta: f64) -> Result<f64, Status> {
        self.tableau_column(entering);
        let through = self.head.len() + self.work.touched.len() + self.factor.entries();
        self.effort += (through + 2 * self.factor.eta_entries()) as u64;
        let (pivot, expected) = (self.work.column[row], self.work.alpha[entering]);
        let differs = (pivot - expected).abs() > 1e-7 * (1.0 + pivot.abs());
        if differs || pivot.abs() < 0.1 * PIVOT {
            self.clear_row();
            if self.factor.replaced() == 0 && differs {
                return Err(Status::Trouble);
            }
            self.renew()?;
            return Ok(0.0);
        }
        // One whose reduced cost has the wrong sign, within the tolerance, has it no more.
        let mut d = self.d[entering];
        let wrong = match self.at[entering] {
            At::Lower => d < 0.0,
            At::Upper => d > 0.0,
            _ => d != 0.0,
        };
        if wrong {
            self.cost[entering] -= d;
            self.changed = true;
            d = 0.0;
        }
        let theta = d / expected;
        // To which bound it leaves is not a matter of what rounding leaves of the distance.
        let above = delta > 0.0;
        let mut delta = delta;
        if !self.work.flips.is_empty() {
            delta = self.flip(row, delta);
        }
        self.reduce(theta);
        if self.pricing == Pricing::Steepest {
            self.update_weights(row);
        }
        let out = self.head[row] as usize;
        self.d[out] = -theta;
        self.exchange(row, entering, delta / pivot, if above { At::Upper } else { At::Lower });
        Ok((theta * delta).abs())
    }

    /// Boxed variables that were passed go to their other bounds. Returns how far the row is beyond its bound now.
    fn flip(&mut self, row: usize, delta: f64) -> f64 {
        let mut change = std::mem::take(&mut self.work.tau);
        change.clear();
        change.resize(self.head.len(), 0.0);
        for &variable in &self.work.flips {
            let variable = variable as usize;
            let range = self.high[variable] - self.low[variable];
            let (at, by) = match self.at[variable] {
                At::Lower => (At::Upper, range),
                _ => (At::Lower, -range),
            };
            self.at[variable] = at;
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

    /// Dual weights after a pivot (Forrest and Goldfarb).
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

    /// Where the dual method does not get on: costs of nonbasic variables are moved away from zero a little, each by another number.
    fn perturb(&mut self) {
        // Not by what was solved before: a scenario's answer depends on it alone.
        let mut dice = SplitMix(self.pivots - self.began);
        for variable in 0..self.at.len() {
            let by = (1.0 + dice.unit()) * 1e-6 * (self.dual_scale + self.cost[variable].abs());
            let by = match self.at[variable] {
                At::Lower => by,
                At::Upper => -by,
                _ => continue,
            };
            self.cost[variable] += by;
            self.d[variable] += by;
        }
        self.changed = true;
    }
}
