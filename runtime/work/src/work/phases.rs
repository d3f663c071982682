//! The time of the phases of a job's steps, and how much of it ran on one thread.
//!
//! A phase's serial time is what is left of its wall time without the loops and tasks that several
//! threads can share. A loop of one piece counts as one that they can share. On one thread it is
//! the same as on many. So a run on one thread shows how far more of them can help (G. M. Amdahl,
//! AFIPS Conf. Proc. 30, 483, 1967).

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::time::Duration;

use springtide_forkjoin::ParallelLoops;
use tokio::time::Instant;

use super::context::Context;
use super::outcome::Stop;
use super::phase_times::{PhaseTime, PhaseTimes};
use super::report::ProgressReport;
use super::task::Task;

/// Measures the phases of a task, most often the job's root.
///
/// It runs loops and calls tasks as the [`Context`] does, and measures how much time they take.
pub struct PhaseClock<'a, 'w> {
    cx: &'a Context<'w>,
    times: RefCell<PhaseTimes>,
    /// When the current phase began, and the processor time then.
    began: Cell<(Instant, Option<Duration>)>,
    /// The time of loops and tasks in the current phase.
    parallel: Cell<Duration>,
}

impl<'a, 'w> PhaseClock<'a, 'w> {
    /// Starts a clock; the first phase begins.
    pub fn start(cx: &'a Context<'w>) -> Self {
        let began = Cell::new((Instant::now(), cx.compute_cpu()));
        Self { cx, times: RefCell::default(), began, parallel: Cell::default() }
    }

    /// Ends the current phase under this name, and begins the next one.
    pub fn lap(&self, name: &str) {
        let now = (Instant::now(), self.cx.compute_cpu());
        let (began, cpu_before) = self.began.replace(now);
        let wall = now.0 - began;
        let cpu = now.1.zip(cpu_before).map(|(now, before)| now.saturating_sub(before));
        let serial = wall.saturating_sub(self.parallel.take());
        self.times.borrow_mut().add_phase(PhaseTime {
            name: name.to_owned(),
            wall_s: wall.as_secs_f64(),
            cpu_s: cpu.map(|cpu| cpu.as_secs_f64()),
            serial_s: serial.as_secs_f64(),
        });
    }

    /// The times since the last call.
    fn take(&self) -> PhaseTimes {
        self.times.take()
    }

    /// As [`Context::call`], for a task that splits.
    ///
    /// # Errors
    /// As the task's.
    pub fn call<T: Task>(&self, task: T) -> Result<T::Output, Stop> {
        self.measure(|| self.cx.call(task))
    }

    fn measure<R>(&self, what: impl FnOnce() -> R) -> R {
        let began = Instant::now();
        let result = what();
        self.parallel.set(self.parallel.get() + began.elapsed());
        result
    }
}

impl ParallelLoops for PhaseClock<'_, '_> {
    type Stop = Stop;

    fn parallel_for(
        &self,
        range: Range<usize>,
        grain: usize,
        body: impl Fn(Range<usize>) + Sync,
    ) -> Result<(), Stop> {
        self.measure(|| self.cx.parallel_for(range, grain, body))
    }
}

impl Context<'_> {
    /// Reports the end of an iteration, with the times of its phases: those since the last one.
    pub fn iteration_done_in(&self, clock: &PhaseClock<'_, '_>) {
        self.report_phases(clock);
        self.report(ProgressReport::Iteration);
    }

    /// Reports the times of the phases since the last report.
    pub(crate) fn report_phases(&self, clock: &PhaseClock<'_, '_>) {
        self.report(ProgressReport::Phases(clock.take()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_add_up_by_phase_and_the_serial_share_is_of_all() {
        let mut times = PhaseTimes::default();
        assert_eq!(times.serial_share(), 0.0);
        let phase = |name: &str, [wall_s, cpu_s, serial_s]: [f64; 3]| PhaseTime {
            name: name.to_owned(),
            wall_s,
            cpu_s: Some(cpu_s),
            serial_s,
        };
        let step =
            PhaseTimes(vec![phase("sort", [1.0, 2.0, 1.0]), phase("forces", [3.0, 5.0, 0.0])]);
        times.add(&step);
        times.add(&step);
        times.add(&PhaseTimes(vec![phase("sort", [2.0, 2.0, 0.0])]));
        let mut read = PhaseTimes::from_json(&times.to_json());
        read.0.sort_by(|a, b| b.name.cmp(&a.name));
        assert_eq!(read, times);
        assert_eq!(times.serial_share(), 0.2);
        assert_eq!(
            times.to_json(),
            serde_json::json!({
                "sort": { "wall_s": 4.0, "cpu_s": 6.0, "serial_s": 2.0 },
                "forces": { "wall_s": 6.0, "cpu_s": 10.0, "serial_s": 0.0 },
                "serial_share": 0.2,
            })
        );
    }
}
