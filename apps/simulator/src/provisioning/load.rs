//! Other users' jobs on a site: a trace, and a second copy of it, one week later, of which each job comes by a probability.
//!
//! The recipe is the paper's (section 5, after Sabin et al. 2003): load rises and what single jobs are like does not change. Where a load
//! below the first copy's is asked for, each of its jobs comes by a probability as well. Must not know what is compared under the load.

use std::time::Duration;

use springtide_actors::policy::provisioning::{Time, seconds};

use crate::workload::dice::Dice;
use crate::workload::swf::Trace;

/// Another user's job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// When it is submitted.
    pub submit: Time,
    /// Its processors.
    pub processors: u32,
    /// How long they are reserved for it.
    pub duration: Time,
}

/// What is taken of a trace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Window {
    /// Its first day, from 0.
    pub from_day: u32,
    /// How many.
    pub days: u32,
    /// The second copy is so many days later in the trace.
    pub apart_days: u32,
    /// Runtimes are said to be so many times as long as they are (1: exactly).
    pub estimate: f64,
}

impl Default for Window {
    fn default() -> Self {
        Self { from_day: 0, days: 60, apart_days: 7, estimate: 1.0 }
    }
}

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Jobs of a site under a load.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    /// Processors of the site.
    pub processors: u32,
    /// By submission.
    pub jobs: Vec<Job>,
    /// What the jobs would keep busy of the site over the window, as a part of it.
    pub offered: f64,
}

/// A trace as two copies: what each would keep busy alone, and both together under a target.
#[derive(Debug)]
pub struct Copies {
    processors: u32,
    window: Window,
    first: Vec<Job>,
    second: Vec<Job>,
}

impl Copies {
    /// Of a trace on a machine with so many processors. Jobs that are wider have that many.
    pub fn of(trace: &Trace, processors: u32, window: Window) -> Self {
        let copy = |from_day: u32| -> Vec<Job> {
            let (from, to) = (DAY * from_day, DAY * (from_day + window.days));
            let there = trace.jobs.iter().filter(|job| job.submit >= from && job.submit < to);
            let micros = |time: Duration| Time::try_from(time.as_micros()).unwrap_or(Time::MAX);
            let job = there.map(|job| Job {
                submit: micros(job.submit - from),
                processors: job.size.clamp(1, processors),
                duration: micros(job.run.mul_f64(window.estimate)).max(1),
            });
            job.collect()
        };
        let (first, second) = (copy(window.from_day), copy(window.from_day + window.apart_days));
        Self { processors, window, first, second }
    }

    /// What jobs would keep busy, as a part of the site.
    fn offered(&self, jobs: &[Job]) -> f64 {
        let work: f64 =
            jobs.iter().map(|job| f64::from(job.processors) * seconds(job.duration)).sum();
        // How long runtimes are said to be is no load.
        work / self.window.estimate
            / f64::from(self.processors)
            / (DAY * self.window.days).as_secs_f64()
    }

    /// What the first copy alone would keep busy.
    pub fn least(&self) -> f64 {
        self.offered(&self.first)
    }

    /// The first copy, and as much of the second as makes a target: each of its jobs comes by the same probability. Less than the first
    /// copy is as much of that.
    pub fn under(&self, target: f64, seed: u64) -> Load {
        let part = |lacks: f64, of: &[Job]| {
            (lacks.max(0.0) / self.offered(of).max(f64::MIN_POSITIVE)).min(1.0)
        };
        let first = part(target, &self.first);
        let second = part(target - self.least(), &self.second);
        let mut dice = Dice::new(seed, 13);
        let mut some = |of: &[Job], share: f64| -> Vec<Job> {
            // A whole copy draws nothing.
            of.iter().copied().filter(|_| share >= 1.0 || dice.unit() < share).collect()
        };
        let mut jobs = some(&self.first, first);
        jobs.extend(some(&self.second, second));
        jobs.sort_by_key(|job| job.submit);
        let offered = self.offered(&jobs);
        Load { processors: self.processors, jobs, offered }
    }
}
