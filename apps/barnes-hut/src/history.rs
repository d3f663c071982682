//! The reports of a run's steps, thinned out to a bounded number.
//!
//! This module does not depend on the runtime. Checkpoints contain it, so that the result of a
//! resumed run covers all steps.

use serde::{Deserialize, Serialize};

use crate::check::ForceError;
use crate::simulate::StepReport;

/// The maximum number of steps in the result, which is one line of text.
const REPORTED: u64 = 10_000;

/// The reports of a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RunHistory {
    /// The distance of the steps that are kept.
    every: u64,
    kept: Vec<StepReport>,
    last: Option<StepReport>,
    worst_error: f64,
    #[serde(default)]
    worst_turning: f64,
    /// The number of forces computed in all steps.
    #[serde(default)]
    forces: u64,
    /// The steps whose forces were checked, with their errors.
    #[serde(default)]
    checked: Vec<(u64, ForceError)>,
}

impl RunHistory {
    /// An empty history of a run with this number of steps.
    pub fn new(steps: u64) -> Self {
        let every = steps.saturating_add(1).div_ceil(REPORTED).max(1);
        Self { every, ..Self::default() }
    }

    /// Adds the next step's report.
    pub fn push(&mut self, report: StepReport) {
        if report.step.is_multiple_of(self.every) {
            self.kept.push(report);
        }
        self.worst_error = self.worst_error.max(report.energy_error.abs());
        self.worst_turning = self.worst_turning.max(report.angular_momentum_error);
        self.forces += report.forces;
        if let Some(error) = report.force_error {
            self.checked.push((report.step, error));
            if self.checked.len() as u64 > REPORTED {
                // Every other step suffices when there are too many.
                let mut odd = false;
                self.checked.retain(|_| {
                    odd = !odd;
                    odd
                });
            }
        }
        self.last = Some(report);
    }

    /// The result of a run with this number of bodies.
    pub fn result(&self, bodies: usize) -> serde_json::Value {
        let column =
            |value: fn(&StepReport) -> f64| self.kept.iter().map(value).collect::<Vec<f64>>();
        let last = self.last;
        serde_json::json!({
            "bodies": bodies,
            "steps": last.map_or(0, |r| r.step),
            "energy": last.map(|r| r.energy()),
            "energy_error": last.map(|r| r.energy_error),
            "energy_error_max": self.worst_error,
            "momentum": last.map(|r| r.momentum),
            "angular_momentum": last.map(|r| r.angular_momentum),
            "angular_momentum_error": last.map(|r| r.angular_momentum_error),
            "angular_momentum_error_max": self.worst_turning,
            "forces": self.forces,
            "force_error": force_error(&self.checked),
            "per_step": {
                "step": self.kept.iter().map(|r| r.step).collect::<Vec<_>>(),
                "kinetic": column(|r| r.kinetic),
                "potential": column(|r| r.potential),
                "energy_error": column(|r| r.energy_error),
                "momentum": self.kept.iter().map(|r| r.momentum).collect::<Vec<_>>(),
                "angular_momentum":
                    self.kept.iter().map(|r| r.angular_momentum).collect::<Vec<_>>(),
                "angular_momentum_error": column(|r| r.angular_momentum_error),
                "forces": self.kept.iter().map(|r| r.forces).collect::<Vec<_>>(),
            },
        })
    }
}

/// Columns of the force errors; null if no forces were checked.
fn force_error(checked: &[(u64, ForceError)]) -> serde_json::Value {
    if checked.is_empty() {
        return serde_json::Value::Null;
    }
    let column =
        |value: fn(&ForceError) -> f64| checked.iter().map(|(_, e)| value(e)).collect::<Vec<f64>>();
    serde_json::json!({
        "step": checked.iter().map(|(step, _)| *step).collect::<Vec<_>>(),
        "rms": column(|e| e.rms),
        "median": column(|e| e.median),
        "p99": column(|e| e.p99),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(step: u64) -> StepReport {
        let energy_error = if step == 7 { -0.5 } else { 0.25 };
        let kinetic = step as f64;
        StepReport {
            step,
            kinetic,
            potential: -1.0,
            energy_error,
            forces: 3,
            ..StepReport::default()
        }
    }

    #[test]
    fn force_errors_are_reported_for_checked_steps() {
        let mut history = RunHistory::new(50);
        assert_eq!(history.result(1)["force_error"], serde_json::Value::Null);
        for step in 0..=50 {
            let error = ForceError { rms: step as f64, median: 0.5, p99: 2.0 };
            let force_error = (step % 25 == 0).then_some(error);
            history.push(StepReport { force_error, ..report(step) });
        }
        let result = history.result(3);
        assert_eq!(result["force_error"]["step"], serde_json::json!([0, 25, 50]));
        assert_eq!(result["force_error"]["rms"], serde_json::json!([0.0, 25.0, 50.0]));
        assert_eq!(result["force_error"]["p99"], serde_json::json!([2.0, 2.0, 2.0]));
        assert_eq!(result["forces"], 153);
        // The number of checked steps is bounded.
        let error = ForceError { rms: 1.0, median: 1.0, p99: 1.0 };
        let mut history = RunHistory::new(3 * REPORTED);
        for step in 0..3 * REPORTED {
            history.push(StepReport { force_error: Some(error), ..report(step) });
        }
        assert!(history.checked.len() as u64 <= REPORTED);
        assert_eq!(history.checked[0].0, 0);
    }

    #[test]
    fn many_steps_are_thinned_out_and_the_worst_and_last_are_kept() {
        for (steps, every) in [(0, 1), (3, 1), (9_999, 1), (10_000, 2), (45_000, 5)] {
            let mut history = RunHistory::new(steps);
            for step in 0..=steps {
                history.push(report(step));
            }
            let result = history.result(3);
            let expected: Vec<u64> = (0..=steps).step_by(every).collect();
            assert_eq!(result["per_step"]["step"], serde_json::json!(expected));
            assert_eq!(result["per_step"]["kinetic"].as_array().unwrap().len(), expected.len());
            assert_eq!(result["steps"], steps);
            assert_eq!(result["energy"], steps as f64 - 1.0);
            assert_eq!(result["energy_error_max"], if steps < 7 { 0.25 } else { 0.5 });
        }
        assert_eq!(RunHistory::new(u64::MAX).every, u64::MAX.div_ceil(REPORTED));
    }
}
