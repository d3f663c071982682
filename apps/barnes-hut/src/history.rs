//! What the steps of a run have told so far, thinned out as the result wants it: of bounded size, however many steps.
//!
//! Knows nothing of the runtime; it goes into checkpoints, so that the result of a resumed run tells of all steps.

use serde::{Deserialize, Serialize};

use crate::simulate::Report;

/// More steps than this are thinned out in the result, which is one line of text.
const REPORTED: u64 = 10_000;

/// The reports of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct History {
    /// Every so many steps are kept.
    every: u64,
    kept: Vec<Report>,
    last: Option<Report>,
    worst_error: f64,
}

impl History {
    /// Of a run of so many steps, before the first.
    pub fn new(steps: u64) -> Self {
        let every = steps.saturating_add(1).div_ceil(REPORTED).max(1);
        Self { every, kept: Vec::new(), last: None, worst_error: 0.0 }
    }

    /// Adds the next step's report.
    pub fn push(&mut self, report: Report) {
        if report.step.is_multiple_of(self.every) {
            self.kept.push(report);
        }
        self.worst_error = self.worst_error.max(report.energy_error.abs());
        self.last = Some(report);
    }

    /// The result of a run with so many bodies.
    pub fn result(&self, bodies: usize) -> serde_json::Value {
        let column = |value: fn(&Report) -> f64| self.kept.iter().map(value).collect::<Vec<f64>>();
        let last = self.last;
        serde_json::json!({
            "bodies": bodies,
            "steps": last.map_or(0, |r| r.step),
            "energy": last.map(|r| r.energy()),
            "energy_error": last.map(|r| r.energy_error),
            "energy_error_max": self.worst_error,
            "momentum": last.map(|r| r.momentum),
            "per_step": {
                "step": self.kept.iter().map(|r| r.step).collect::<Vec<_>>(),
                "kinetic": column(|r| r.kinetic),
                "potential": column(|r| r.potential),
                "energy_error": column(|r| r.energy_error),
                "momentum": self.kept.iter().map(|r| r.momentum).collect::<Vec<_>>(),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(step: u64) -> Report {
        let energy_error = if step == 7 { -0.5 } else { 0.25 };
        Report { step, kinetic: step as f64, potential: -1.0, momentum: [0.0; 3], energy_error }
    }

    #[test]
    fn many_steps_are_thinned_out_and_the_worst_and_last_are_kept() {
        for (steps, every) in [(0, 1), (3, 1), (9_999, 1), (10_000, 2), (45_000, 5)] {
            let mut history = History::new(steps);
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
        assert_eq!(History::new(u64::MAX).every, u64::MAX.div_ceil(REPORTED));
    }
}
