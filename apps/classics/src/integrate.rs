//! The area under a curve with very narrow peaks, which equal steps would miss: the steps adapt to
//! it.
//!
//! New here: the depth of the tree of tasks is unknown in advance. Most of the work lies in a
//! millionth of the range, and work stealing balances it without a plan.
//!
//! Also new: sums of floats. They depend on the order of additions. So the order is that of the
//! tree, left half plus right half, and never the order of arrival. Then steals change nothing, and
//! the result is equal to the last bit. (For the same reason the curve uses `+ - * /` only: `sin`
//! may differ between machines.)

use clap::Args;
use serde::{Deserialize, Serialize};
use springtide_runtime::work::{Context, InputError, Job, Outcome, Registry, Stop, Task};

/// The job: `springtide run integrate`.
#[derive(Args, Serialize, Deserialize, Clone, Debug)]
pub struct Integrate {
    /// Approximate maximum of the error.
    #[arg(long, default_value_t = 5e-14)]
    pub tolerance: f64,
    /// Approximate number of steps up to which a task spawns no further tasks.
    #[arg(long, default_value_t = 10_000.0)]
    pub grain: f64,
}

/// The position and half-width of each peak. All have height 1.
pub const PEAKS: [(f64, f64); 6] =
    [(0.71, 1e-1), (0.13, 1e-2), (0.57, 1e-3), (0.89, 1e-4), (0.37, 1e-5), (0.29, 1e-6)];

fn curve(x: f64) -> f64 {
    let away = PEAKS.iter().map(|(place, width)| (x - place) / width);
    away.map(|widths| 1.0 / (1.0 + widths * widths)).sum()
}

impl Job for Integrate {
    const NAME: &'static str = "integrate";
    const ABOUT: &'static str = "The area under a curve with narrow peaks: depth depends on data";

    fn register(registry: &mut Registry) {
        registry.task::<Interval>();
    }

    fn prepare(&mut self) -> Result<(), InputError> {
        InputError::check(
            "--tolerance",
            self.tolerance,
            1e-14..=1.0,
            "below it rounding errors dominate",
        )?;
        InputError::check("--grain", self.grain, 1.0..=1e9, "it is a number of steps")
    }

    fn run(self, cx: &Context) -> Result<Outcome, Stop> {
        let Integrate { tolerance, grain } = self;
        let ends = (curve(0.0), curve(1.0));
        let (area, steps) = cx.call(Interval { at: 0.0, length: 1.0, ends, tolerance, grain })?;
        let result = serde_json::json!({ "area": area, "steps": steps });
        Ok(Outcome { checksum: area.to_bits(), result })
    }

    fn benchmark(&self) -> Option<Self> {
        Some(Integrate { tolerance: self.tolerance.max(3e-10), grain: self.grain })
    }
}

/// The task: the area over one interval, and its number of steps.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Interval {
    at: f64,
    length: f64,
    /// The curve's values at both ends.
    ends: (f64, f64),
    tolerance: f64,
    grain: f64,
}

impl Interval {
    /// The area of the interval. It makes tasks as long as there is enough work.
    fn area(self, cx: Option<&Context>) -> Result<(f64, u64), Stop> {
        let (half, (start, end)) = (self.length / 2.0, self.ends);
        let middle = curve(self.at + half);
        // The change by halving the step in the trapezium rule, relative to the tolerance.
        let excess = (start + end - 2.0 * middle).abs() / 4.0 / self.tolerance;
        if excess <= 1.0 {
            return Ok((half * (start + end + 2.0 * middle) / 2.0, 2));
        }
        let left = Interval { length: half, ends: (start, middle), ..self };
        let right = Interval { at: self.at + half, length: half, ends: (middle, end), ..self };
        // Each halving divides the excess by four, so its root is about the number of remaining
        // steps.
        let (left, right) = match cx.filter(|_| excess > self.grain * self.grain) {
            Some(cx) => cx.join(left, right)?,
            None => (left.area(None)?, right.area(None)?),
        };
        Ok((left.0 + right.0, left.1 + right.1))
    }
}

impl Task for Interval {
    type Output = (f64, u64);
    const NAME: &'static str = "integrate.interval";

    fn run(self, cx: &Context) -> Result<(f64, u64), Stop> {
        self.area(Some(cx))
    }
}
