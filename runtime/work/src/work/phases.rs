//! The time of the phases of a job's steps, and how much of it ran on one thread.
//!
//! A phase's serial time is what is left of its wall time without the loops and tasks that several
//! threads can share. A loop of one piece counts as one that they can share. On one thread it is
//! the same as on many. So a run on one thread shows how far more of them can help (G. M. Amdahl,
//! AFIPS Conf. Proc. 30, 483, 1967).

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use springtide_forkjoin::ParallelLoops;
use tokio::time::Instant;

use super::context::Context;
use super::task::{Stop, Task};

/// The time of one phase, summed over all steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PhaseTime {
    /// The name of the phase.
    pub name: String,
    /// Wall time in seconds.
    pub wall_s: f64,
    /// Processor time of this node's compute threads in seconds; none in virtual time, or where the
    /// system does not report it.
    pub cpu_s: Option<f64>,
    /// The part of the wall time in seconds outside loops and tasks that threads can share.
    pub serial_s: f64,
}

/// The times of all phases, in the order of their first laps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PhaseTimes(pub Vec<PhaseTime>);

impl PhaseTimes {
    /// The part of the whole wall time that was serial; 0 if no time has passed.
    pub fn serial_share(&self) -> f64 {
        let sum = |of: fn(&PhaseTime) -> f64| self.0.iter().map(of).sum::<f64>();
        let wall = sum(|phase| phase.wall_s);
        if wall > 0.0 { sum(|phase| phase.serial_s) / wall } else { 0.0 }
    }

    /// The times for a result in JSON: an object for each phase by name, and `serial_share`.
    pub fn to_json(&self) -> serde_json::Value {
        let phase = |phase: &PhaseTime| {
            let PhaseTime { name, wall_s, cpu_s, serial_s } = phase;
            let times =
                serde_json::json!({ "wall_s": wall_s, "cpu_s": cpu_s, "serial_s": serial_s });
            (name.clone(), times)
        };
        let mut all: serde_json::Map<_, _> = self.0.iter().map(phase).collect();
        all.insert("serial_share".to_owned(), self.serial_share().into());
        all.into()
    }

    /// The times of an object that [`to_json`](Self::to_json) made. Entries of another form are
    /// left out.
    pub fn from_json(object: &serde_json::Value) -> Self {
        let phase = |(name, times): (&String, &serde_json::Value)| {
            let seconds = |key: &str| times[key].as_f64();
            let (wall_s, serial_s) = (seconds("wall_s")?, seconds("serial_s")?);
            Some(PhaseTime { name: name.clone(), wall_s, cpu_s: seconds("cpu_s"), serial_s })
        };
        Self(object.as_object().into_iter().flatten().filter_map(phase).collect())
    }

    /// Whether there are no phases.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds the times of other steps.
    pub fn add(&mut self, other: &Self) {
        other.0.iter().for_each(|phase| self.add_phase(phase.clone()));
    }

    fn add_phase(&mut self, phase: PhaseTime) {
        match self.0.iter_mut().find(|known| known.name == phase.name) {
            Some(known) => {
                known.wall_s += phase.wall_s;
                known.cpu_s = known.cpu_s.zip(phase.cpu_s).map(|(sum, cpu)| sum + cpu);
                known.serial_s += phase.serial_s;
            }
            None => self.0.push(phase),
        }
    }
}

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
    pub(super) fn take(&self) -> PhaseTimes {
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
