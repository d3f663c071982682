//! Other users' jobs on a site: a trace, and a second copy of it, from which each job is taken with
//! a probability.
//!
//! The second copy is one week later. The recipe is the paper's (section 5, after Sabin et al.
//! 2003): the load rises, and single jobs stay realistic. For a load below that of the first copy,
//! each of its jobs is taken with a probability as well. This module does not depend on what is
//! compared.

use std::time::Duration;

use springtide_actors::policy::provisioning::{Time, seconds};

use crate::workload::dice::RandomSource;
use crate::workload::swf::Trace;

/// A job of another user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadJob {
    /// The time of its submission.
    pub submit: Time,
    /// The number of its processors.
    pub processors: u32,
    /// The duration of its reservation.
    pub duration: Time,
}

/// The part of a trace that is used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TraceWindow {
    /// The first day of the window, from 0.
    pub from_day: u32,
    /// The number of days.
    pub days: u32,
    /// The distance of the second copy from the first in the trace, in days.
    pub apart_days: u32,
    /// The factor by which users overestimate runtimes; 1: not at all.
    pub estimate: f64,
}

impl Default for TraceWindow {
    fn default() -> Self {
        Self { from_day: 0, days: 60, apart_days: 7, estimate: 1.0 }
    }
}

const DAY: Duration = Duration::from_secs(24 * 3600);

/// The jobs of a site under a load.
#[derive(Clone, Debug, PartialEq)]
pub struct SiteLoad {
    /// Processors of the site.
    pub processors: u32,
    /// The jobs in order of their submission.
    pub jobs: Vec<LoadJob>,
    /// The offered load of the jobs over the window, as a part of the site.
    pub offered: f64,
}

/// Two copies of a trace, from which jobs are drawn for a target load.
#[derive(Debug)]
pub struct Copies {
    processors: u32,
    window: TraceWindow,
    first: Vec<LoadJob>,
    second: Vec<LoadJob>,
}

impl Copies {
    /// Takes the copies of a trace, for a machine of this size. Wider jobs get all of its
    /// processors.
    pub fn of(trace: &Trace, processors: u32, window: TraceWindow) -> Self {
        let copy = |from_day: u32| -> Vec<LoadJob> {
            let (from, to) = (DAY * from_day, DAY * (from_day + window.days));
            let there = trace.jobs.iter().filter(|job| job.submit >= from && job.submit < to);
            let micros = |time: Duration| Time::try_from(time.as_micros()).unwrap_or(Time::MAX);
            let job = there.map(|job| LoadJob {
                submit: micros(job.submit - from),
                processors: job.size.clamp(1, processors),
                duration: micros(job.run.mul_f64(window.estimate)).max(1),
            });
            job.collect()
        };
        let (first, second) = (copy(window.from_day), copy(window.from_day + window.apart_days));
        Self { processors, window, first, second }
    }

    /// The offered load of these jobs, as a part of the site.
    fn offered(&self, jobs: &[LoadJob]) -> f64 {
        let work: f64 =
            jobs.iter().map(|job| f64::from(job.processors) * seconds(job.duration)).sum();
        // The overestimation of runtimes adds no load.
        work / self.window.estimate
            / f64::from(self.processors)
            / (DAY * self.window.days).as_secs_f64()
    }

    /// The offered load of the first copy alone.
    pub fn least(&self) -> f64 {
        self.offered(&self.first)
    }

    /// Draws the jobs for a target load: the first copy, and each job of the second with the same
    /// probability.
    ///
    /// For a target below the load of the first copy, each of its jobs is taken with the same
    /// probability.
    pub fn under(&self, target: f64, seed: u64) -> SiteLoad {
        let part = |missing_load: f64, of: &[LoadJob]| {
            (missing_load.max(0.0) / self.offered(of).max(f64::MIN_POSITIVE)).min(1.0)
        };
        let first = part(target, &self.first);
        let second = part(target - self.least(), &self.second);
        let mut dice = RandomSource::new(seed, 13);
        let mut some = |of: &[LoadJob], share: f64| -> Vec<LoadJob> {
            // A whole copy draws no random numbers.
            of.iter().copied().filter(|_| share >= 1.0 || dice.unit() < share).collect()
        };
        let mut jobs = some(&self.first, first);
        jobs.extend(some(&self.second, second));
        jobs.sort_by_key(|job| job.submit);
        let offered = self.offered(&jobs);
        SiteLoad { processors: self.processors, jobs, offered }
    }
}
