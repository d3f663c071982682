//! The primal method: of a feasible basis, variables enter whose reduced costs are wrong.
//!
//! Must not know why they are.

use super::{At, PIVOT, REFACTOR, ROUNDED, Simplex, Status};

impl Simplex {
    /// From a feasible point: variables enter whose reduced costs are wrong. Where it stalls, the first such enters (Bland).
    pub(super) fn primal_method(&mut self, most: u64) -> Result<(), Status> {
        let mut stalled = 0;
        loop {
            if self.factor.replaced() >= REFACTOR {
                self.refresh()?;
            }
            if self.pivots >= most {
                return Err(Status::Limit);
            }
            let bland = stalled > 50 + self.head.len() / 2;
            let Some(entering) = self.improving(bland) else {
                if self.factor.replaced() == 0 {
                    return Ok(());
                }
                // It is believed of good factors alone.
                self.refresh()?;
                continue;
            };
            let up = match self.at[entering] {
                At::Lower => true,
                At::Upper => false,
                _ => self.d[entering] < 0.0,
            };
            self.tableau_column(entering);
            let (step, leaves) = self.blocking(entering, up, bland);
            if !step.is_finite() {
                return Err(Status::Unbounded);
            }
            stalled = if step > 1e-12 { 0 } else { stalled + 1 };
            let signed = if up { step } else { -step };
            let Some((row, to)) = leaves else {
                // It goes to its other bound.
                for &at in &self.work.column_at {
                    self.x[at as usize] -= signed * self.work.column[at as usize];
                }
                self.at[entering] = if up { At::Upper } else { At::Lower };
                self.pivots += 1;
                continue;
            };
            self.tableau_row(row);
            let pivot = self.work.alpha[entering];
            let theta = if pivot == 0.0 { 0.0 } else { self.d[entering] / pivot };
            let wrong = (pivot - self.work.column[row]).abs() > 1e-6 * (1.0 + pivot.abs());
            if wrong && self.factor.replaced() > 0 {
                self.clear_row();
                self.refresh()?;
                stalled += 1;
                if stalled > 10_000 {
                    return Err(Status::Trouble);
                }
                continue;
            }
            self.reduce(theta);
            self.weights[row] = 1.0;
            self.d[self.head[row] as usize] = -theta;
            self.exchange(row, entering, signed, to);
        }
    }

    fn improving(&self, bland: bool) -> Option<usize> {
        let tolerance = self.dual_tolerance();
        let all = 0..self.at.len();
        let wrong = all.map(|variable| (variable, self.dual_gap(variable)));
        let mut wrong = wrong.filter(|(_, gap)| *gap > tolerance);
        if bland {
            return wrong.next().map(|(variable, _)| variable);
        }
        let most = wrong.fold(None, |best: Option<(usize, f64)>, one| match best {
            Some(best) if best.1 >= one.1 => Some(best),
            _ => Some(one),
        });
        most.map(|(variable, _)| variable)
    }

    /// How far a variable can go, and which row's variable is at its bound then; none if its own.
    fn blocking(&self, entering: usize, up: bool, bland: bool) -> (f64, Option<(usize, At)>) {
        let tolerance = self.primal_tolerance();
        let sign = if up { 1.0 } else { -1.0 };
        // Basic variables change by -step * sign * column.
        let bound = |row: usize| {
            let rate = -sign * self.work.column[row];
            let (x, low, high) = (self.x[row], self.low_b[row], self.high_b[row]);
            match rate < 0.0 {
                true => (rate.abs(), (x - low).max(0.0), At::Lower),
                false => (rate.abs(), (high - x).max(0.0), At::Upper),
            }
        };
        let range = self.high[entering] - self.low[entering];
        let mut limit = f64::INFINITY;
        for &row in &self.work.column_at {
            let (rate, room, _) = bound(row as usize);
            if rate > PIVOT && room.is_finite() {
                limit = limit.min((room + tolerance) / rate);
            }
        }
        if range <= limit {
            return (range, None);
        }
        let mut best: Option<(f64, f64, usize, At)> = None;
        for &row in &self.work.column_at {
            let row = row as usize;
            let (rate, room, to) = bound(row);
            if rate <= PIVOT || !room.is_finite() || room > limit * rate * ROUNDED {
                continue;
            }
            let better = best.is_none_or(|(most, _, known, _)| match bland {
                true => self.head[row] < self.head[known],
                false => rate > most,
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

    /// The basis from new factors.
    fn refresh(&mut self) -> Result<(), Status> {
        self.refactor()?;
        self.price();
        self.place();
        Ok(())
    }
}
