//! One round of growing or shrinking the malleable jobs of a cluster: the requests to jobs and
//! their order. Implements the paper's figures 4 and 5, and an efficiency-aware policy.
//!
//! A state machine: [`Round::requests`] returns the requests to send now, and answers arrive in any
//! order. This module does not know timeouts: a caller that stops waiting for a job calls
//! [`Round::drop_job`].

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use springtide_base::id::JobId;
pub use springtide_config::Malleability as Policy;

use super::benefit::{Benefit, GrowthLimits};

/// Whether processors are given or reclaimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// Processors are given to jobs.
    Grow,
    /// Processors are reclaimed from jobs.
    Shrink,
}

/// A running malleable job of the cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MalleableJob {
    /// Number of the job.
    pub job: JobId,
    /// Time of its start, from a common origin.
    pub started: Duration,
    /// Processors that it has in this cluster.
    pub size: u32,
    /// Processors that it has in other clusters.
    pub elsewhere: u32,
    /// Minimum processors in this cluster.
    pub min: u32,
    /// Maximum processors in this cluster.
    pub max: u32,
    /// Largest offer at this size of which it took none; 0: none.
    pub refused: u32,
    /// Benefit of processors to the job.
    pub benefit: Benefit,
}

impl MalleableJob {
    fn room(&self, direction: Direction) -> u32 {
        match direction {
            Direction::Grow => self.max.saturating_sub(self.size),
            Direction::Shrink => self.size.saturating_sub(self.min),
        }
    }

    /// Minimum offer to the job. After a complete refusal the offer doubles, which quickly finds a
    /// size that the job accepts.
    fn step(&self) -> u32 {
        if self.refused == 0 { 1 } else { self.refused.saturating_mul(2) }
    }
}

/// A request to a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResizeRequest {
    /// Number of the job.
    pub job: JobId,
    /// Number of processors offered or reclaimed, at least 1.
    pub count: u32,
}

/// State of a round.
#[derive(Clone, Debug, PartialEq)]
pub struct Round {
    policy: Policy,
    direction: Direction,
    /// Processors still to give or reclaim; negative if jobs released more than requested.
    left: i64,
    /// Jobs still to be asked, with their share. FPSMA has no shares: it asks for the rest.
    next: VecDeque<(JobId, Option<u32>)>,
    /// Jobs with an outstanding answer or release.
    asked: BTreeMap<JobId, Pending>,
}

/// Outstanding message of an asked job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pending {
    Answer,
    /// Number of processors that it announced to release.
    Release(u32),
}

impl Round {
    /// Starts a round that gives `value` processors to these jobs, or reclaims them.
    pub fn new(
        policy: Policy,
        direction: Direction,
        value: u32,
        worth: &GrowthLimits,
        jobs: &[MalleableJob],
    ) -> Self {
        let mut list: Vec<&MalleableJob> =
            jobs.iter().filter(|job| job.room(direction) > 0).collect();
        match direction {
            Direction::Grow => list.sort_by_key(|runner| (runner.started, runner.job)),
            Direction::Shrink => list.sort_by_key(|runner| Reverse((runner.started, runner.job))),
        }
        let next = match policy {
            _ if value == 0 => VecDeque::new(),
            Policy::Fpsma => list.iter().map(|runner| (runner.job, None)).collect(),
            Policy::Egs => {
                let count = u32::try_from(list.len()).unwrap_or(u32::MAX).max(1);
                let (share, rest) = (value / count, value % count);
                let shares = (0u32..).map(|at| share + u32::from(at < rest));
                list.iter().zip(shares).map(|(runner, share)| (runner.job, Some(share))).collect()
            }
            Policy::EfficiencyAware => {
                let shares = match direction {
                    Direction::Grow => best_grow(value, worth, &list),
                    Direction::Shrink => best_shrink(value, &list),
                };
                list.iter().zip(shares).map(|(runner, share)| (runner.job, Some(share))).collect()
            }
        };
        Self { policy, direction, left: i64::from(value), next, asked: BTreeMap::new() }
    }

    /// Returns the requests to send now, each of them once.
    pub fn requests(&mut self) -> Vec<ResizeRequest> {
        let mut asks = Vec::new();
        while let Some(&(job, share)) = self.next.front() {
            let count = match share {
                Some(share) => share,
                // One job at a time: each is asked for the whole rest.
                None if !self.asked.is_empty() => break,
                None => u32::try_from(self.left).unwrap_or(0),
            };
            if share.is_none() && count == 0 {
                self.next.clear();
                break;
            }
            self.next.pop_front();
            if count > 0 {
                self.asked.insert(job, Pending::Answer);
                asks.push(ResizeRequest { job, count });
            }
        }
        asks
    }

    /// Records a job's answer: the number of processors that it takes or will release. Ignores a
    /// job that was not asked.
    pub fn record_answer(&mut self, job: JobId, accepted: u32) {
        let Some(pending) = self.asked.get_mut(&job).filter(|pending| **pending == Pending::Answer)
        else {
            return;
        };
        self.left -= i64::from(accepted);
        match self.direction {
            Direction::Shrink if accepted > 0 => *pending = Pending::Release(accepted),
            _ => {
                self.asked.remove(&job);
            }
        }
    }

    /// Records processors that a job has released.
    pub fn record_release(&mut self, job: JobId, count: u32) {
        if let Some(Pending::Release(owed)) = self.asked.get_mut(&job) {
            *owed = owed.saturating_sub(count);
            if *owed == 0 {
                self.asked.remove(&job);
            }
        }
    }

    /// Stops waiting for a job that has ended or missed a timeout, and does not ask it.
    pub fn drop_job(&mut self, job: JobId) {
        if let Some(Pending::Release(owed)) = self.asked.remove(&job) {
            self.left += i64::from(owed);
        }
        self.next.retain(|(next, _)| *next != job);
    }

    /// Whether no request and no answer is outstanding.
    pub fn is_over(&self) -> bool {
        self.next.is_empty() && self.asked.is_empty()
    }

    /// Processors not given or reclaimed; negative if jobs released more than requested.
    pub fn remaining(&self) -> i64 {
        self.left
    }

    /// Whether the round gives or reclaims.
    pub fn direction(&self) -> Direction {
        self.direction
    }

    /// Policy of the round.
    pub fn policy(&self) -> Policy {
        self.policy
    }
}

/// Shares of a growth, in the jobs' order. Each processor goes to the job whose relative runtime it
/// reduces most, if the gain suffices and the others keep their fair share.
fn best_grow(value: u32, worth: &GrowthLimits, jobs: &[&MalleableJob]) -> Vec<u32> {
    let mut shares = vec![0; jobs.len()];
    let has: u64 = jobs.iter().map(|runner| u64::from(runner.size + runner.elsewhere)).sum();
    let equal = (has + u64::from(value)) as f64 / jobs.len().max(1) as f64;
    let most = (equal * worth.max_shares).ceil();
    let mut left = value;
    while left > 0 {
        let mut best: Option<(f64, usize, u32)> = None;
        for (at, runner) in jobs.iter().enumerate() {
            let size = runner.elsewhere + runner.size + shares[at];
            let step = if shares[at] == 0 { runner.step() } else { 1 };
            let fits = step <= left && step <= runner.room(Direction::Grow) - shares[at];
            let fair = jobs.len() == 1 || f64::from(size + step) <= most;
            let gain = runner.benefit.gain(size, step);
            if fits && fair && gain >= worth.min_gain {
                let saves = runner.benefit.saves(size, step);
                if best.is_none_or(|(most, ..)| saves > most) {
                    best = Some((saves, at, step));
                }
            }
        }
        let Some((_, at, step)) = best else { break };
        shares[at] += step;
        left -= step;
    }
    shares
}

/// Shares of a shrink, in the jobs' order. Each processor is taken from the job that loses least.
fn best_shrink(value: u32, jobs: &[&MalleableJob]) -> Vec<u32> {
    let mut shares = vec![0; jobs.len()];
    for _ in 0..value {
        let misses = |at: usize| {
            let left = jobs[at].size - shares[at];
            (left > jobs[at].min).then(|| jobs[at].benefit.saves(jobs[at].elsewhere + left - 1, 1))
        };
        let all = (0..jobs.len()).filter_map(|at| misses(at).map(|misses| (misses, at)));
        let Some((_, at)) = all.min_by(|a, b| a.0.total_cmp(&b.0)) else { break };
        shares[at] += 1;
    }
    shares
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// An application of the paper's experiments, with its size.
    #[derive(Clone, Copy, Debug)]
    enum App {
        /// GADGET 2: any size from 2 to 46.
        G(u32),
        /// NAS FT: powers of two from 2 to 32.
        F(u32),
    }

    impl App {
        fn size(self) -> u32 {
            match self {
                Self::G(size) | Self::F(size) => size,
            }
        }

        fn max(self) -> u32 {
            match self {
                Self::G(_) => 46,
                Self::F(_) => 32,
            }
        }

        fn accepts(self, direction: Direction, asked: u32) -> u32 {
            let bound = match direction {
                Direction::Grow => (self.size() + asked).min(self.max()),
                Direction::Shrink => self.size().saturating_sub(asked).max(2),
            };
            let to = match self {
                Self::G(_) => bound,
                Self::F(_) => 1 << bound.ilog2(),
            };
            to.abs_diff(self.size())
        }
    }

    /// The first is the oldest in growth, the youngest in a shrink.
    fn runners(apps: &[App], direction: Direction) -> Vec<MalleableJob> {
        let count = apps.len();
        let runner = |(at, app): (usize, &App)| MalleableJob {
            job: JobId(at as u64),
            started: Duration::from_secs(match direction {
                Direction::Grow => at,
                Direction::Shrink => count - at,
            } as u64),
            size: app.size(),
            elsewhere: 0,
            min: 2,
            max: app.max(),
            refused: 0,
            benefit: Benefit::default(),
        };
        apps.iter().enumerate().map(runner).collect()
    }

    /// Returns pairs of requested and accepted processors in the order of requests, and the rest.
    fn run_round(
        policy: Policy,
        direction: Direction,
        value: u32,
        apps: &[App],
    ) -> (Vec<(u32, u32)>, i64) {
        let jobs = runners(apps, direction);
        let mut round = Round::new(policy, direction, value, &GrowthLimits::default(), &jobs);
        let mut answers = Vec::new();
        loop {
            let asks = round.requests();
            if asks.is_empty() {
                break;
            }
            for ResizeRequest { job, count } in asks {
                let accepted = apps[job.0 as usize].accepts(direction, count);
                answers.push((count, accepted));
                round.record_answer(job, accepted);
                if direction == Direction::Shrink && accepted > 0 {
                    assert!(!round.is_over(), "it must wait for the release");
                    if policy == Policy::Fpsma {
                        assert_eq!(round.requests(), [], "asked before the previous release");
                    }
                    round.record_release(job, accepted);
                }
            }
        }
        assert!(round.is_over());
        (answers, round.remaining())
    }

    #[test]
    fn vectors_of_the_specification() {
        use App::{F, G};
        use Direction::{Grow, Shrink};
        use Policy::{Egs, Fpsma};
        /// Policy, direction, value, jobs, pairs of requested and accepted processors, rest.
        type Case<'a> = (Policy, Direction, u32, &'a [App], &'a [(u32, u32)], i64);
        let cases: [Case; 10] = [
            (Fpsma, Grow, 20, &[G(2), F(2)], &[(20, 20)], 0),
            (Fpsma, Grow, 60, &[G(2), F(2)], &[(60, 44), (16, 14)], 2),
            (Fpsma, Grow, 7, &[F(2), G(2)], &[(7, 6), (1, 1)], 0),
            (Egs, Grow, 20, &[G(2), F(2), G(2)], &[(7, 7), (7, 6), (6, 6)], 1),
            (Egs, Grow, 11, &[F(4), F(4), F(8)], &[(4, 4), (4, 4), (3, 0)], 3),
            (Fpsma, Shrink, 5, &[G(8), F(8), G(9)], &[(5, 5)], 0),
            (Fpsma, Shrink, 10, &[G(8), F(8), G(9)], &[(10, 6), (4, 4)], 0),
            (Fpsma, Shrink, 3, &[F(8)], &[(3, 4)], -1),
            (Egs, Shrink, 5, &[G(8), F(8), G(9)], &[(2, 2), (2, 4), (1, 1)], -2),
            (Egs, Shrink, 2, &[G(8), F(8), G(9)], &[(1, 1), (1, 4)], -3),
        ];
        for (policy, direction, value, apps, answers, left) in cases {
            let got = run_round(policy, direction, value, apps);
            assert_eq!(got, (answers.to_vec(), left), "{policy} {direction:?} {value} {apps:?}");
        }
    }

    #[test]
    fn without_jobs_or_processors_there_is_nothing_to_do() {
        for &policy in Policy::ALL {
            for direction in [Direction::Grow, Direction::Shrink] {
                assert_eq!(run_round(policy, direction, 5, &[]), (vec![], 5));
                assert_eq!(run_round(policy, direction, 0, &[App::G(5)]), (vec![], 0));
                let full = [if direction == Direction::Grow { App::G(46) } else { App::G(2) }];
                assert_eq!(run_round(policy, direction, 5, &full), (vec![], 5));
            }
        }
    }

    #[test]
    fn an_ended_or_silent_job_does_not_block_the_round() {
        let jobs = runners(&[App::G(8), App::G(9)], Direction::Shrink);
        let mut round =
            Round::new(Policy::Fpsma, Direction::Shrink, 4, &GrowthLimits::default(), &jobs);
        assert_eq!(round.requests(), [ResizeRequest { job: JobId(0), count: 4 }]);
        round.record_answer(JobId(0), 4);
        round.record_answer(JobId(0), 4); // a duplicate
        round.record_release(JobId(0), 1);
        round.drop_job(JobId(0));
        assert_eq!(round.requests(), [ResizeRequest { job: JobId(1), count: 3 }]);
        round.drop_job(JobId(1));
        assert!(round.is_over());
        assert_eq!(round.remaining(), 3);
    }

    #[test]
    fn processors_go_where_they_gain_most() {
        let mut jobs = runners(&[App::G(2), App::G(10), App::G(2)], Direction::Grow);
        jobs[0].benefit = Benefit::measured(0.505, 2); // almost no gain
        jobs[1].benefit = Benefit::measured(0.95, 10);
        jobs[2].benefit = Benefit::measured(0.95, 2);
        let grow = |value, jobs: &[MalleableJob]| {
            let worth = GrowthLimits::default();
            let mut round =
                Round::new(Policy::EfficiencyAware, Direction::Grow, value, &worth, jobs);
            round.requests().iter().map(|ask| (ask.job.0, ask.count)).collect::<Vec<_>>()
        };
        // The small efficient job comes first, until the large one gains as much.
        assert_eq!(grow(4, &jobs), [(2, 4)]);
        assert_eq!(grow(12, &jobs), [(1, 2), (2, 10)]);
        // The job without gain gets nothing, even if no other job can take more.
        let alone = &jobs[..1];
        assert_eq!(grow(40, alone), []);
        // A job that took none of 3 is not offered fewer than 6.
        jobs[2].refused = 3;
        assert_eq!(grow(5, &jobs[1..]), [(1, 5)]);
        assert_eq!(grow(6, &jobs[2..]), [(2, 6)]);
    }

    #[test]
    fn processors_are_taken_where_the_loss_is_least() {
        let mut jobs = runners(&[App::G(8), App::G(20), App::G(8)], Direction::Shrink);
        jobs[0].benefit = Benefit::measured(0.2, 8);
        jobs[1].benefit = Benefit::measured(0.9, 20);
        jobs[2].benefit = Benefit::measured(0.95, 8);
        let mut round = Round::new(
            Policy::EfficiencyAware,
            Direction::Shrink,
            10,
            &GrowthLimits::default(),
            &jobs,
        );
        let asks: Vec<_> = round.requests().iter().map(|ask| (ask.job.0, ask.count)).collect();
        assert_eq!(asks, [(0, 1), (1, 9)]);
    }

    proptest! {
        /// Bounds hold, no processor is promised twice, and each policy's order and shares are as
        /// stated.
        #[test]
        fn rounds_respect_bounds_and_shares(
            apps in prop::collection::vec(
                prop_oneof![(2u32..=46).prop_map(App::G), (1u32..=5).prop_map(|p| App::F(1 << p))],
                0..8,
            ),
            value in 0u32..120,
            grow in any::<bool>(),
            policy in prop::sample::select(Policy::ALL),
        ) {
            let direction = if grow { Direction::Grow } else { Direction::Shrink };
            let jobs = runners(&apps, direction);
            let mut round = Round::new(policy, direction, value, &GrowthLimits::default(), &jobs);
            let (mut asked_all, mut accepted_all) = (Vec::new(), 0);
            loop {
                let asks = round.requests();
                if asks.is_empty() { break; }
                for ask in asks {
                    let app = apps[ask.job.0 as usize];
                    let accepted = app.accepts(direction, ask.count);
                    let size = if grow { app.size() + accepted } else { app.size() - accepted };
                    prop_assert!((2..=app.max()).contains(&size));
                    prop_assert!(matches!(app, App::G(_)) || size.is_power_of_two());
                    asked_all.push(ask);
                    accepted_all += i64::from(accepted);
                    round.record_answer(ask.job, accepted);
                    if !grow { round.record_release(ask.job, accepted); }
                }
            }
            prop_assert!(round.is_over());
            prop_assert_eq!(round.remaining(), i64::from(value) - accepted_all);
            prop_assert!(!grow || accepted_all <= i64::from(value));
            // The list is ordered by job number in this test.
            prop_assert!(asked_all.windows(2).all(|two| two[0].job < two[1].job));
            prop_assert!(asked_all.iter().all(|ask| ask.count > 0));
            if policy == Policy::Egs {
                let counts: Vec<u32> = asked_all.iter().map(|ask| ask.count).collect();
                prop_assert!(counts.windows(2).all(|two| two[0] >= two[1]), "{counts:?}");
                if let (Some(first), Some(last)) = (counts.first(), counts.last()) {
                    prop_assert!(first - last <= 1, "{counts:?}");
                }
            }
        }
    }
}
