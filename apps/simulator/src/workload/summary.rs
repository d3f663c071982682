//! Statistics of a workload's outcome.

use serde::Serialize;
use springtide_actors::scheduler::manager::Kind;

use super::{WorkloadOutcome, WorkloadRecord};

/// The bound of Feitelson's *bounded slowdown*, seconds: shorter runs count as this long.
const SHORT: f64 = 10.0;

/// Statistics of a workload's outcome. Times are in seconds; means are over the jobs that ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct WorkloadSummary {
    /// The number of jobs that ended.
    pub ended: usize,
    /// The number of jobs that never started.
    pub failed: usize,
    /// The end of the last job.
    pub end_s: f64,
    /// Mean time from a job's start to its end.
    pub execution_s: f64,
    /// Mean time from a job's arrival to its end.
    pub response_s: f64,
    /// The 90th percentile of the response time.
    pub response_p90_s: f64,
    /// Mean time from a job's arrival to its start.
    pub wait_s: f64,
    /// Mean time from the arrival to the start of the jobs that need over half of the largest
    /// cluster; absent without such jobs.
    pub wait_wide_s: Option<f64>,
    /// Mean of response time by execution time, where execution times below 10 s count as 10 s.
    pub slowdown: f64,
    /// Mean over the jobs of each one's mean number of processors.
    pub processors: f64,
    /// Mean number of processors in use by jobs until the last one ended.
    pub used: f64,
    /// Malleable jobs that never had more than their minimum of processors.
    pub stuck: usize,
    /// Processor-hours in use beyond those of the work: those of one processor, or of a rigid job's
    /// own number where no other duration is known.
    pub wasted_h: f64,
    /// Messages that offered processors.
    pub offers: u64,
    /// Messages that requested processors back.
    pub shrinks: u64,
    /// Offers and requests after which a job changed.
    pub operations: usize,
    /// Mean seconds of a job in pauses for its changes.
    pub paused_s: f64,
}

impl WorkloadSummary {
    /// The mean of several summaries, with rounded counts; all values are 0 if there are none.
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
            wait_wide_s: all
                .iter()
                .any(|one| one.wait_wide_s.is_some())
                .then(|| mean(all.iter().filter_map(|one| one.wait_wide_s))),
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

    /// Computes the summary of an outcome.
    pub fn of(outcome: &WorkloadOutcome) -> Self {
        let jobs = &outcome.jobs;
        let mean = |of: fn(&WorkloadRecord) -> Option<f64>| mean(jobs.iter().filter_map(of));
        let mut responses: Vec<f64> = jobs.iter().filter_map(WorkloadRecord::response).collect();
        responses.sort_by(f64::total_cmp);
        let p90 = responses.get((responses.len() * 9 / 10).min(responses.len().saturating_sub(1)));
        let end_s = outcome.end.as_secs_f64();
        let over = |pair: &[super::UsageSample]| {
            f64::from(pair[0].jobs) * (pair[1].at - pair[0].at).as_secs_f64()
        };
        let used: f64 = outcome.used.windows(2).map(over).sum();
        let stuck = |job: &&WorkloadRecord| job.kind == Kind::Malleable && job.most == job.min;
        let is_wide = |job: &&WorkloadRecord| u64::from(job.min) * 2 > u64::from(outcome.largest);
        let wide: Vec<f64> = jobs.iter().filter(is_wide).filter_map(WorkloadRecord::wait).collect();
        let wait_wide_s = (!wide.is_empty()).then(|| self::mean(wide.iter().copied()));
        let wasted: f64 = jobs.iter().map(|job| job.taken - job.work).sum();
        Self {
            ended: responses.len(),
            failed: jobs.iter().filter(|job| job.failed.is_some()).count(),
            end_s,
            execution_s: mean(WorkloadRecord::execution),
            response_s: mean(WorkloadRecord::response),
            response_p90_s: p90.copied().unwrap_or(0.0),
            wait_s: mean(WorkloadRecord::wait),
            wait_wide_s,
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
