//! The primal simplex method: from a feasible basis, variables enter whose reduced costs have the
//! wrong sign.

use super::{PIVOT_MIN, Position, REFACTOR_INTERVAL, ROUNDING_FACTOR, Simplex, Status};

impl Simplex {
    /// Pivots until no reduced cost has the wrong sign. Where the method stalls, the first such
    /// variable enters (Bland).
    ///
    /// # Errors
    /// The program is unbounded, `pivots_max` pivots were made since the program was created, or
    /// the basis cannot be factored well enough.
    pub(super) fn primal_method(&mut self, pivots_max: u64) -> Result<(), Status> {
        let (mut stalled, mut refused) = (0, 0);
        loop {
            if self.factor.replaced() >= REFACTOR_INTERVAL {
                self.refactor_for_primal()?;
            }
            if self.pivots >= pivots_max {
                return Err(Status::Limit);
            }
            let bland = stalled > 50 + self.head.len() / 2;
            let Some(entering) = self.choose_entering(bland) else {
                if self.factor.replaced() == 0 {
                    return Ok(());
                }
                // That the point is optimal is certain with fresh factors only.
                self.refactor_for_primal()?;
                continue;
            };
            let up = match self.position[entering] {
                Position::Lower => true,
                Position::Upper => false,
                _ => self.d[entering] < 0.0,
            };
            self.tableau_column(entering);
            let (step, leaves) = self.ratio_test(entering, up, bland);
            if !step.is_finite() {
                self.take_direction(entering, up);
                return Err(Status::Unbounded);
            }
            stalled = if step > 1e-12 { 0 } else { stalled + 1 };
            let signed = if up { step } else { -step };
            let Some((row, to)) = leaves else {
                // The variable moves to its other bound.
                for &at in &self.work.column_at {
                    self.x[at as usize] -= signed * self.work.column[at as usize];
                }
                self.position[entering] = if up { Position::Upper } else { Position::Lower };
                self.pivots += 1;
                continue;
            };
            self.tableau_row(row);
            let pivot = self.work.alpha[entering];
            let theta = if pivot == 0.0 { 0.0 } else { self.d[entering] / pivot };
            let wrong = (pivot - self.work.column[row]).abs() > 1e-6 * (1.0 + pivot.abs());
            if wrong && self.factor.replaced() > 0 {
                self.clear_row();
                self.refactor_for_primal()?;
                refused += 1;
                if refused > 50 {
                    return Err(Status::Trouble);
                }
                continue;
            }
            self.update_reduced_costs(theta);
            self.weights[row] = 1.0;
            self.d[self.head[row] as usize] = -theta;
            self.exchange(row, entering, signed, to);
        }
    }

    /// The variable that enters: the one with the largest reduced cost of the wrong sign, or the
    /// first (Bland).
    fn choose_entering(&self, bland: bool) -> Option<usize> {
        let all = 0..self.position.len();
        let wrong = all.map(|variable| (variable, self.dual_gap(variable)));
        let mut wrong = wrong.filter(|(variable, gap)| *gap > self.dual_tolerance(*variable));
        if bland {
            return wrong.next().map(|(variable, _)| variable);
        }
        let most = wrong.fold(None, |best: Option<(usize, f64)>, one| match best {
            Some(best) if best.1 >= one.1 => Some(best),
            _ => Some(one),
        });
        most.map(|(variable, _)| variable)
    }

    /// The largest step of the entering variable, and the row whose variable blocks it with the
    /// bound that it reaches; none if the entering variable reaches its own other bound.
    fn ratio_test(
        &self,
        entering: usize,
        up: bool,
        bland: bool,
    ) -> (f64, Option<(usize, Position)>) {
        let sign = if up { 1.0 } else { -1.0 };
        // Basic variables change by -step * sign * column.
        let bound = |row: usize| {
            let rate = -sign * self.work.column[row];
            let (x, low, high) = (self.x[row], self.basic_low[row], self.basic_high[row]);
            if rate < 0.0 {
                (rate.abs(), (x - low).max(0.0), Position::Lower, low)
            } else {
                (rate.abs(), (high - x).max(0.0), Position::Upper, high)
            }
        };
        let range = self.high[entering] - self.low[entering];
        let mut limit = f64::INFINITY;
        for &row in &self.work.column_at {
            let (rate, room, _, bound) = bound(row as usize);
            if rate > PIVOT_MIN && room.is_finite() {
                limit = limit.min((room + self.primal_tolerance(bound)) / rate);
            }
        }
        if range <= limit {
            return (range, None);
        }
        let mut best: Option<(f64, f64, usize, Position)> = None;
        for &row in &self.work.column_at {
            let row = row as usize;
            let (rate, room, to, _) = bound(row);
            if rate <= PIVOT_MIN || !room.is_finite() || room > limit * rate * ROUNDING_FACTOR {
                continue;
            }
            let better = best.is_none_or(|(most, _, known, _)| {
                if bland { self.head[row] < self.head[known] } else { rate > most }
            });
            if better {
                best = Some((rate, room / rate, row, to));
            }
        }
        match best {
            Some((_, step, row, to)) => (step, Some((row, to))),
            None => (f64::INFINITY, None),
        }
    }

    /// Keeps the direction of the entering variable, which proves the program unbounded.
    fn take_direction(&mut self, entering: usize, up: bool) {
        let n = self.problem.columns();
        let sign = if up { 1.0 } else { -1.0 };
        self.direction.clear();
        self.direction.resize(n, 0.0);
        if entering < n {
            self.direction[entering] = sign * self.scale.columns[entering];
        }
        for &row in &self.work.column_at {
            let (row, basic) = (row as usize, self.head[row as usize] as usize);
            if basic < n {
                self.direction[basic] = -sign * self.work.column[row] * self.scale.columns[basic];
            }
        }
    }

    /// Refactors the basis.
    fn refactor_for_primal(&mut self) -> Result<(), Status> {
        self.refactor()?;
        self.compute_reduced_costs();
        self.compute_values();
        Ok(())
    }
}
