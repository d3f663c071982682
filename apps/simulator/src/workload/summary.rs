//! What became of a workload, in a few numbers.

use serde::Serialize;
use springtide_actors::scheduler::manager::Kind;

use super::{Ended, Outcome};

/// Runs shorter than this count as so long in a slowdown, seconds: the bound of Feitelson's *bounded slowdown*.
const SHORT: f64 = 10.0;

/// What became of a workload. Times in seconds; means are over the jobs that ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// Jobs that ended.
    pub ended: usize,
    /// Jobs that never began.
    pub failed: usize,
    /// When the last one ended.
    pub end_s: f64,
    /// Mean time from a job's beginning to its end.
    pub execution_s: f64,
    /// From its coming to its end.
    pub response_s: f64,
    /// Of ten jobs one had a longer response time.
    pub response_p90_s: f64,
    /// From its coming to its beginning.
    pub wait_s: f64,
    /// Mean of response time by execution time, where no execution time is shorter than 10 s.
    pub slowdown: f64,
    /// Mean over the jobs of their processors, each a mean over its run.
    pub processors: f64,
    /// Processors in use by jobs, over the time until the last one ended.
    pub used: f64,
    /// Malleable jobs that never had more than their fewest processors.
    pub stuck: usize,
    /// Processor-hours in use beyond what one processor alone would have taken for the same work.
    pub wasted_h: f64,
    /// Messages that offered processors.
    pub offers: u64,
    /// Messages that asked for some back.
    pub shrinks: u64,
    /// Of both, those after which a job changed.
    pub operations: usize,
    /// Seconds in which a job computed nothing because it changed, a job.
    pub paused_s: f64,
}

impl Summary {
    /// The mean of several; of none all is 0. Counts are rounded.
    pub fn mean(all: &[Self]) -> Self {
        let of = |of: fn(&Self) -> f64| mean(all.iter().map(of));
        let count = |value: fn(&Self) -> f64| of(value).round();
        Self {
            ended: count(|one| one.ended as f64) as usize,
            failed: count(|one| one.failed as f64) as usize,
            end_s: of(|one| one.end_s),
            execution_s: of(|one| one.execution_s),
            response_s: of(|one| one.response_s),
            response_p90_s: of(|one| one.response_p90_s),
            wait_s: of(|one| one.wait_s),
            slowdown: of(|one| one.slowdown),
            processors: of(|one| one.processors),
            used: of(|one| one.used),
            stuck: count(|one| one.stuck as f64) as usize,
            wasted_h: of(|one| one.wasted_h),
            offers: count(|one| one.offers as f64) as u64,
            shrinks: count(|one| one.shrinks as f64) as u64,
            operations: count(|one| one.operations as f64) as usize,
            paused_s: of(|one| one.paused_s),
        }
    }

    /// Of this outcome.
    pub fn of(outcome: &Outcome) -> Self {
        let jobs = &outcome.jobs;
        let mean = |of: fn(&Ended) -> Option<f64>| mean(jobs.iter().filter_map(of));
        let mut responses: Vec<f64> = jobs.iter().filter_map(Ended::response).collect();
        responses.sort_by(f64::total_cmp);
        let p90 = responses.get((responses.len() * 9 / 10).min(responses.len().saturating_sub(1)));
        let end_s = outcome.end.as_secs_f64();
        let over = |pair: &[super::Moment]| {
            f64::from(pair[0].jobs) * (pair[1].at - pair[0].at).as_secs_f64()
        };
        let used: f64 = outcome.used.windows(2).map(over).sum();
        let stuck = |job: &&Ended| job.kind == Kind::Malleable && job.most == job.min;
        let wasted: f64 = jobs.iter().map(|job| job.taken - job.work).sum();
        Self {
            ended: responses.len(),
            failed: jobs.iter().filter(|job| job.failed.is_some()).count(),
            end_s,
            execution_s: mean(Ended::execution),
            response_s: mean(Ended::response),
            response_p90_s: p90.copied().unwrap_or(0.0),
            wait_s: mean(Ended::wait),
            slowdown: mean(|job| Some(job.response()? / job.execution()?.max(SHORT))),
            processors: mean(|job| job.ended.map(|_| job.mean)),
            used: used / end_s.max(f64::MIN_POSITIVE),
            stuck: jobs.iter().filter(stuck).count(),
            wasted_h: wasted / 3600.0,
            offers: outcome.offers,
            shrinks: outcome.shrinks,
            operations: outcome.changes.len(),
            paused_s: mean(|job| job.ended.map(|_| job.paused)),
        }
    }
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (count, sum) = values.fold((0u32, 0.0), |(count, sum), value| (count + 1, sum + value));
    if count == 0 { 0.0 } else { sum / f64::from(count) }
}
