//! Simulates a workload event by event, in order of time.
//!
//! Sites and jobs are modelled, the manager is the live one. This module takes none of the
//! manager's decisions.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::time::Duration;

use springtide_actors::policy::malleability::Direction;
use springtide_actors::scheduler::manager::{
    JobRequirements, Kind, Manager, ManagerAction, ManagerEvent,
};
use springtide_runtime::id::{ClusterId, JobId};
use tokio::time::Instant;

use super::dice::RandomSource;
use super::{Arrival, Workload, WorkloadCluster};

/// Time after the end of the last job within which all processors must be free.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(600);

/// The outcome of a workload.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WorkloadOutcome {
    /// The jobs, in order of their arrival.
    pub jobs: Vec<WorkloadRecord>,
    /// The processors in use, at each change.
    pub used: Vec<UsageSample>,
    /// Changes of jobs: the time and the direction.
    pub changes: Vec<(Duration, Direction)>,
    /// Messages that offered processors.
    pub offers: u64,
    /// Messages that requested processors back.
    pub shrinks: u64,
    /// The end of the last job.
    pub end: Duration,
    /// The number of events that the manager handled.
    pub events: u64,
    /// The number of processors of the largest cluster.
    pub largest: u32,
    /// Violations that the manager reported; there should be none.
    pub violations: Vec<String>,
}

/// The processors in use from a time on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsageSample {
    /// Time since the beginning of the workload.
    pub at: Duration,
    /// Processors of jobs, including those that are held for them.
    pub jobs: u32,
    /// Processors of local users.
    pub users: u32,
}

/// The history of a job in a workload.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkloadRecord {
    /// The name of the program.
    pub program: String,
    /// The kind of the job.
    pub kind: Kind,
    /// The minimum number of processors.
    pub min: u32,
    /// The time of the job's arrival.
    pub came: Duration,
    /// The time of the job's start; absent if it never started.
    pub began: Option<Duration>,
    /// The time of the job's end.
    pub ended: Option<Duration>,
    /// The reason why the job never started.
    pub failed: Option<String>,
    /// Mean number of processors over the run.
    pub mean: f64,
    /// The maximum number of processors.
    pub most: u32,
    /// The number of changes of the size.
    pub changes: u32,
    /// Processor-seconds of the job, including those that were held for it.
    pub taken: f64,
    /// Processor-seconds of its work ([`Curve::work`](super::program::Curve::work)).
    pub work: f64,
    /// Seconds in pauses for changes.
    pub paused: f64,
}

impl WorkloadRecord {
    /// Time from the arrival to the end, in seconds.
    pub fn response(&self) -> Option<f64> {
        self.ended.map(|ended| (ended - self.came).as_secs_f64())
    }

    /// Time from the start to the end, in seconds.
    pub fn execution(&self) -> Option<f64> {
        Some((self.ended? - self.began?).as_secs_f64())
    }

    /// Time from the arrival to the start, in seconds.
    pub fn wait(&self) -> Option<f64> {
        self.began.map(|began| (began - self.came).as_secs_f64())
    }
}

/// A scheduled event of the simulation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum QueuedEvent {
    Comes(usize),
    /// The stubs of a claim start, or fail to.
    Claimed(usize),
    /// A job computes on added processors.
    Grown {
        job: usize,
        change: u64,
        count: u32,
    },
    /// The stubs of a growth start, as far as there is room.
    Stubs {
        job: usize,
        change: u64,
        site: usize,
        count: u32,
    },
    /// A job's size changes; it continues after the pause.
    Change {
        job: usize,
        site: usize,
        change: u64,
        count: u32,
        grow: bool,
    },
    /// A job continues after a pause.
    Resume {
        job: usize,
        round: u64,
    },
    /// Released processors become free.
    Free {
        job: usize,
        site: usize,
        count: u32,
    },
    /// Stubs are released, of which `there` had started.
    Unheld {
        job: usize,
        site: usize,
        count: u32,
        there: u32,
    },
    /// A job's work is done, unless its state has changed since.
    Done {
        job: usize,
        round: u64,
    },
    /// A local user arrives.
    User(usize),
    /// A local user leaves.
    Leaves {
        site: usize,
        count: u32,
    },
}

/// A step of the simulation. Of those at one time, events come first, and polls see their effects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    /// The first queued event.
    Event,
    /// The time that the manager waits for.
    Tick,
    /// A poll of a site.
    Poll(usize),
}

/// A job that runs or will run.
struct WorkloadJob {
    arrival: Arrival,
    sizes: BTreeMap<usize, u32>,
    /// The remaining fraction of its work.
    left: f64,
    /// Whether it pauses for a change.
    paused: bool,
    since: Duration,
    /// The number of the job's state, to recognise a predicted end of an earlier state.
    round: u64,
    ended: WorkloadRecord,
    over: bool,
}

impl WorkloadJob {
    fn size(&self) -> u32 {
        self.sizes.values().sum()
    }

    fn seconds(&self) -> f64 {
        self.arrival.program.curve.seconds(self.size()) * self.arrival.scale
    }

    /// Advances the job's work to the present.
    fn advance(&mut self, now: Duration) {
        let passed = (now - self.since).as_secs_f64();
        self.since = now;
        self.ended.mean += passed * f64::from(self.size());
        if self.paused {
            self.ended.paused += passed;
        } else if self.size() > 0 {
            self.left -= passed / self.seconds();
        }
    }
}

/// The real state of a site's local resource manager.
struct ResourceManager {
    size: u32,
    ours: u32,
    users: u32,
    /// Processors of local users as of the last poll.
    polled_users: u32,
    /// Time of the next poll.
    next_poll: Duration,
    /// Requests of local users that wait for room.
    waiting: VecDeque<u32>,
    dice: RandomSource,
}

impl ResourceManager {
    fn idle(&self) -> u32 {
        self.size - self.ours - self.users
    }
}

struct Engine<'a> {
    workload: &'a Workload,
    manager: Manager,
    origin: Instant,
    now: Duration,
    next: BinaryHeap<Reverse<(Duration, u64, QueuedEvent)>>,
    sequence: u64,
    jobs: Vec<WorkloadJob>,
    sites: Vec<ResourceManager>,
    points: RandomSource,
    /// The number of jobs that have neither ended nor failed.
    open: usize,
    /// The time of the next tick.
    tick: Option<Duration>,
    taken: u32,
    claims: BTreeMap<usize, BTreeMap<usize, u32>>,
    /// Processors that are held for jobs and not yet used, by job and site.
    stubs: BTreeMap<(usize, usize), u32>,
    /// Changes whose stubs are to be released.
    cancelled_changes: BTreeSet<u64>,
    taken_by: Vec<(u32, Duration)>,
    out: WorkloadOutcome,
}

/// Simulates a workload to its end. Jobs that no site ever has room for fail.
pub fn simulate(workload: &Workload) -> WorkloadOutcome {
    let origin = Instant::now();
    let names = workload.sites.iter().map(|site| site.name.clone());
    let manager = Manager::new(workload.settings.clone(), names, origin);
    let jobs: Vec<WorkloadJob> = workload.jobs.iter().map(job).collect();
    let lrm = |(at, site): (usize, &WorkloadCluster)| ResourceManager {
        size: site.size,
        ours: 0,
        users: 0,
        polled_users: 0,
        next_poll: Duration::ZERO,
        waiting: VecDeque::new(),
        dice: RandomSource::new(workload.seed, 2 + at as u64),
    };
    let mut engine = Engine {
        workload,
        manager,
        origin,
        now: Duration::ZERO,
        next: BinaryHeap::new(),
        sequence: 0,
        open: jobs.len(),
        taken_by: vec![(0, Duration::ZERO); jobs.len()],
        jobs,
        sites: workload.sites.iter().enumerate().map(lrm).collect(),
        points: RandomSource::new(workload.seed, 1),
        tick: None,
        taken: 0,
        claims: BTreeMap::new(),
        stubs: BTreeMap::new(),
        cancelled_changes: BTreeSet::new(),
        out: WorkloadOutcome {
            largest: workload.sites.iter().map(|site| site.size).max().unwrap_or(0),
            ..WorkloadOutcome::default()
        },
    };
    engine.run();
    engine.out
}

fn job(arrival: &Arrival) -> WorkloadJob {
    let program = &arrival.program;
    let ended = WorkloadRecord {
        program: program.name.clone(),
        kind: arrival.kind,
        min: arrival.min,
        came: arrival.at,
        began: None,
        ended: None,
        failed: None,
        mean: 0.0,
        most: 0,
        changes: 0,
        taken: 0.0,
        work: program.curve.work() * arrival.scale,
        paused: 0.0,
    };
    WorkloadJob {
        arrival: arrival.clone(),
        sizes: BTreeMap::new(),
        left: 1.0,
        paused: false,
        since: Duration::ZERO,
        round: 0,
        ended,
        over: false,
    }
}

impl Engine<'_> {
    fn schedule_at(&mut self, at: Duration, next: QueuedEvent) {
        self.sequence += 1;
        self.next.push(Reverse((at, self.sequence, next)));
    }

    fn schedule_after(&mut self, wait: Duration, next: QueuedEvent) {
        self.schedule_at(self.now + wait, next);
    }

    fn run(&mut self) {
        for site in 0..self.sites.len() {
            if let Some(first) = self.next_user(site) {
                self.schedule_at(first, QueuedEvent::User(site));
            }
        }
        for at in 0..self.jobs.len() {
            self.schedule_at(self.jobs[at].arrival.at, QueuedEvent::Comes(at));
        }
        while let Some((at, step)) = self.next_step() {
            if self.open == 0 && (self.taken == 0 || at > self.out.end + RELEASE_TIMEOUT) {
                break;
            }
            self.now = at;
            match step {
                Step::Event => {
                    if let Some(Reverse((.., next))) = self.next.pop() {
                        self.handle(next);
                    }
                }
                Step::Tick => {
                    self.tick = None;
                    self.notify_manager(ManagerEvent::Tick);
                }
                Step::Poll(site) => self.poll(site),
            }
            if self.open > 0 {
                self.out.end = at;
            }
        }
        for at in 0..self.jobs.len() {
            self.account(at, 0);
        }
        self.out.jobs = self.jobs.drain(..).map(|job| job.ended).collect();
    }

    /// The next step and its time; absent if nothing will change.
    fn next_step(&mut self) -> Option<(Duration, Step)> {
        let event = self.next.peek().map(|Reverse((at, ..))| (*at, Step::Event));
        let next = event.into_iter().chain(self.tick.map(|tick| (tick, Step::Tick))).min();
        let is_known = |site: &ResourceManager| site.users == site.polled_users;
        if self.manager.is_settled() && self.sites.iter().all(is_known) {
            // Polls before the next step change nothing.
            let (until, _) = next?;
            let interval = self.workload.settings.poll_interval;
            for site in &mut self.sites {
                let left = until.saturating_sub(site.next_poll).as_nanos();
                let polls = left.div_ceil(interval.as_nanos().max(1));
                site.next_poll += interval.saturating_mul(u32::try_from(polls).unwrap_or(u32::MAX));
            }
        }
        let polls = self.sites.iter().enumerate();
        next.into_iter().chain(polls.map(|(at, site)| (site.next_poll, Step::Poll(at)))).min()
    }

    fn poll(&mut self, at: usize) {
        let site = &mut self.sites[at];
        site.polled_users = site.users;
        site.next_poll += self.workload.settings.poll_interval;
        let (size, others) = (site.size, site.users);
        let cluster = self.name(at);
        self.notify_manager(ManagerEvent::Polled { cluster, size, others, whole: size });
    }

    fn notify_manager(&mut self, event: ManagerEvent) {
        let mut news = VecDeque::from([event]);
        while let Some(event) = news.pop_front() {
            self.out.events += 1;
            let actions = self.manager.handle(event, self.origin + self.now);
            for action in actions {
                news.extend(self.execute(action));
            }
        }
        let due = self.manager.due().map(|due| due.duration_since(self.origin));
        self.tick = due.map(|due| due.max(self.now));
    }

    fn name(&self, site: usize) -> ClusterId {
        self.workload.sites[site].name.clone()
    }

    fn site(&self, cluster: &ClusterId) -> usize {
        let at = self.workload.sites.iter().position(|site| site.name == *cluster);
        at.unwrap_or_else(|| unreachable!("the manager knows no cluster {cluster}"))
    }

    /// Executes an action of the manager, and returns the event of an immediate answer.
    fn execute(&mut self, action: ManagerAction) -> Option<ManagerEvent> {
        match action {
            ManagerAction::TransferFiles { job, .. } => return Some(ManagerEvent::Moved { job }),
            ManagerAction::Claim { job, placed } => {
                let at = index(job);
                let mut claim = BTreeMap::new();
                for part in placed.parts {
                    *claim.entry(self.site(&part.cluster)).or_default() += part.count;
                }
                self.claims.insert(at, claim);
                self.schedule_after(self.workload.costs.hold, QueuedEvent::Claimed(at));
            }
            ManagerAction::Fail { job, reason } => {
                let job = &mut self.jobs[index(job)];
                job.over = true;
                job.ended.failed = Some(reason);
                self.open -= 1;
            }
            ManagerAction::Offer { job, change, count, .. } => {
                self.out.offers += 1;
                let at = index(job);
                let accepted = self.accepted(at, Direction::Grow, count);
                if accepted > 0 {
                    self.out.changes.push((self.now, Direction::Grow));
                }
                return Some(ManagerEvent::Answer { job, change, count: Some(accepted) });
            }
            ManagerAction::Shrink { job, change, cluster, count, .. } => {
                self.out.shrinks += 1;
                let (at, site) = (index(job), self.site(&cluster));
                let accepted = self.accepted(at, Direction::Shrink, count);
                if accepted > 0 {
                    self.out.changes.push((self.now, Direction::Shrink));
                    let until_point = self.until_point();
                    let next =
                        QueuedEvent::Change { job: at, site, change, count: accepted, grow: false };
                    self.schedule_after(until_point, next);
                }
                return Some(ManagerEvent::Answer { job, change, count: Some(accepted) });
            }
            ManagerAction::Hold { job, change, cluster, count } => {
                let (job, site) = (index(job), self.site(&cluster));
                let next = QueuedEvent::Stubs { job, change, site, count };
                self.schedule_after(self.workload.costs.hold, next);
            }
            ManagerAction::Recruit { job, change, cluster, count } => {
                let (job, site) = (index(job), self.site(&cluster));
                let until_point = self.until_point();
                self.schedule_after(
                    until_point,
                    QueuedEvent::Change { job, site, change, count, grow: true },
                );
            }
            ManagerAction::Unhold { job, change, cluster, count, .. } => {
                let (job, site) = (index(job), self.site(&cluster));
                self.cancelled_changes.insert(change);
                let stubs = self.stubs.entry((job, site)).or_default();
                let there = count.min(*stubs);
                *stubs -= there;
                let next = QueuedEvent::Unheld { job, site, count, there };
                self.schedule_after(self.workload.costs.release, next);
            }
            ManagerAction::Force { job, cluster, count, .. } => {
                let (job, site) = (index(job), self.site(&cluster));
                let count = self.shrink(job, site, count);
                self.schedule_after(
                    self.workload.costs.release,
                    QueuedEvent::Free { job, site, count },
                );
            }
            ManagerAction::Refuse { .. } => {}
            // No job of a workload declares its duration, and none has a reservation.
            ManagerAction::End { reason, .. } => self.out.violations.push(reason),
            ManagerAction::ReservationEnded(bill) => self.out.violations.push(bill.why),
            ManagerAction::ProtocolViolation { what } => self.out.violations.push(what),
        }
        None
    }

    fn accepted(&self, at: usize, direction: Direction, count: u32) -> u32 {
        let job = &self.jobs[at];
        if job.over { 0 } else { job.arrival.program.accepts(job.size(), direction, count) }
    }

    fn until_point(&mut self) -> Duration {
        self.workload.costs.point.mul_f64(self.points.unit())
    }

    fn handle(&mut self, next: QueuedEvent) {
        match next {
            QueuedEvent::Comes(at) => {
                let Arrival { kind, min, start, max, program, expected, user, .. } =
                    &self.jobs[at].arrival;
                let placement = self.workload.placement;
                let expected_ms =
                    expected.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
                let need = Box::new(JobRequirements {
                    placement,
                    expected_ms,
                    // Jobs of a trace are different programs, whose expected times are known.
                    program: expected.is_none().then(|| program.name.clone()),
                    user: user.clone(),
                    ..JobRequirements::one(*kind, *min, *start, *max)
                });
                self.notify_manager(ManagerEvent::Submit { job: number(at), need });
            }
            QueuedEvent::Claimed(at) => self.claimed(at),
            QueuedEvent::Grown { job, change, count } => {
                self.notify_manager(ManagerEvent::Grown { job: number(job), change, count });
            }
            QueuedEvent::Stubs { job, change, site, count } => {
                if self.cancelled_changes.contains(&change) {
                    return;
                }
                let there = count.min(self.sites[site].idle());
                self.take(job, site, there);
                *self.stubs.entry((job, site)).or_default() += there;
                let id = number(job);
                if there < count {
                    let (count, reason) = (count - there, "local users were faster".to_owned());
                    self.notify_manager(ManagerEvent::NotHeld { job: id, change, count, reason });
                }
                self.notify_manager(ManagerEvent::Held { job: id, change, count: there });
            }
            QueuedEvent::Change { job, site, change, count, grow } => {
                self.change(job, site, change, count, grow);
            }
            QueuedEvent::Resume { job, round } => {
                if self.jobs[job].round == round && !self.jobs[job].over {
                    self.jobs[job].advance(self.now);
                    self.jobs[job].paused = false;
                    self.schedule_end(job);
                }
            }
            QueuedEvent::Free { job, site, count } => {
                self.release(job, site, count);
                let (job, cluster) = (number(job), self.name(site));
                self.notify_manager(ManagerEvent::Freed { job, cluster, count, voluntary: false });
            }
            QueuedEvent::Unheld { job, site, count, there } => {
                self.release(job, site, there);
                let (job, cluster) = (number(job), self.name(site));
                self.notify_manager(ManagerEvent::Unheld { job, cluster, count });
            }
            QueuedEvent::Done { job, round } => {
                if self.jobs[job].round == round && !self.jobs[job].over {
                    self.done(job);
                }
            }
            QueuedEvent::User(site) => {
                let most = f64::from(self.workload.sites[site].users.most.max(1));
                let count = 1 + (self.sites[site].dice.unit() * most) as u32;
                let count = count.min(self.sites[site].size);
                self.sites[site].waiting.push_back(count);
                self.admit_users(site);
                if let Some(next) = self.next_user(site) {
                    self.schedule_after(next, QueuedEvent::User(site));
                }
            }
            QueuedEvent::Leaves { site, count } => {
                self.sites[site].users -= count;
                self.admit_users(site);
                self.record_usage();
            }
        }
    }

    fn next_user(&mut self, site: usize) -> Option<Duration> {
        let users = self.workload.sites[site].users;
        let mean = (1.0 + f64::from(users.most.max(1))) / 2.0;
        let every = users.hold.as_secs_f64() * mean / users.mean;
        (users.mean > 0.0 && every.is_finite())
            .then(|| Duration::from_secs_f64(self.sites[site].dice.exponential(every)))
    }

    fn admit_users(&mut self, site: usize) {
        while let Some(&count) = self.sites[site].waiting.front() {
            if count > self.sites[site].idle() {
                return;
            }
            self.sites[site].waiting.pop_front();
            self.sites[site].users += count;
            let hold = self.workload.sites[site].users.hold.as_secs_f64();
            let hold = self.sites[site].dice.exponential(hold);
            self.schedule_after(Duration::from_secs_f64(hold), QueuedEvent::Leaves { site, count });
            self.record_usage();
        }
    }

    fn record_usage(&mut self) {
        let users = self.sites.iter().map(|site| site.users).sum();
        let moment = UsageSample { at: self.now, jobs: self.taken, users };
        match self.out.used.last_mut() {
            Some(last) if last.at == self.now => *last = moment,
            _ => self.out.used.push(moment),
        }
    }

    /// Adds the job's processor-seconds so far, and sets its number of processors.
    fn account(&mut self, at: usize, has: u32) {
        let (had, since) = self.taken_by[at];
        self.jobs[at].ended.taken += f64::from(had) * (self.now - since).as_secs_f64();
        self.taken_by[at] = (has, self.now);
    }

    fn take(&mut self, at: usize, site: usize, count: u32) {
        self.account(at, self.taken_by[at].0 + count);
        self.sites[site].ours += count;
        self.taken += count;
        self.record_usage();
    }

    fn release(&mut self, at: usize, site: usize, count: u32) {
        self.account(at, self.taken_by[at].0.saturating_sub(count));
        self.sites[site].ours -= count;
        self.taken -= count;
        self.record_usage();
        self.admit_users(site);
    }

    fn claimed(&mut self, at: usize) {
        let Some(claim) = self.claims.remove(&at) else { return };
        let id = number(at);
        if claim.iter().any(|(&site, &count)| self.sites[site].idle() < count) {
            let reason = "local users were faster".to_owned();
            let without = BTreeSet::new();
            return self.notify_manager(ManagerEvent::ClaimFailed { job: id, reason, without });
        }
        let mut got = BTreeMap::new();
        for (&site, &count) in &claim {
            self.take(at, site, count);
            got.insert(self.name(site), count);
        }
        let job = &mut self.jobs[at];
        (job.sizes, job.since) = (claim, self.now);
        job.ended.began = Some(self.now);
        job.ended.most = job.size();
        self.schedule_end(at);
        self.notify_manager(ManagerEvent::Claimed { job: id, got });
        self.measure(at);
        self.release_rest(at);
    }

    /// A job that cannot use all initial processors returns the rest by itself.
    fn release_rest(&mut self, at: usize) {
        let job = &self.jobs[at];
        let rest = job.size() - job.arrival.program.usable(job.size()).min(job.size());
        let Some((&site, _)) = job.sizes.iter().next().filter(|_| rest > 0) else { return };
        self.jobs[at].advance(self.now);
        self.shrink(at, site, rest);
        self.schedule_end(at);
        self.schedule_after(
            self.workload.costs.release,
            QueuedEvent::Free { job: at, site, count: rest },
        );
    }

    /// Reports the efficiency of the job to the manager.
    fn measure(&mut self, at: usize) {
        let job = &self.jobs[at];
        let processors = job.size();
        let efficiency = job.arrival.program.curve.efficiency(processors);
        self.notify_manager(ManagerEvent::EfficiencyMeasured {
            job: number(at),
            efficiency,
            processors,
        });
    }

    /// Removes up to `count` processors from a job, and returns their number.
    fn shrink(&mut self, at: usize, site: usize, count: u32) -> u32 {
        let size = self.jobs[at].sizes.entry(site).or_default();
        let count = count.min(*size);
        *size -= count;
        count
    }

    fn change(&mut self, at: usize, site: usize, change: u64, count: u32, grow: bool) {
        if self.jobs[at].over {
            return; // the manager releases the added processors
        }
        self.jobs[at].advance(self.now);
        self.jobs[at].ended.changes += 1;
        let pause = self.workload.costs.pause;
        let count = if grow {
            *self.jobs[at].sizes.entry(site).or_default() += count;
            let stubs = self.stubs.entry((at, site)).or_default();
            *stubs = stubs.saturating_sub(count);
            count
        } else {
            self.shrink(at, site, count)
        };
        let job = &mut self.jobs[at];
        job.ended.most = job.ended.most.max(job.size());
        job.paused = true;
        job.round += 1;
        let round = job.round;
        // The job resumes before processors are released or the manager is notified.
        self.schedule_after(pause, QueuedEvent::Resume { job: at, round });
        if grow {
            self.schedule_after(pause, QueuedEvent::Grown { job: at, change, count });
        } else {
            let free = pause + self.workload.costs.release;
            self.schedule_after(free, QueuedEvent::Free { job: at, site, count });
        }
    }

    /// Schedules the end of a job that computes.
    fn schedule_end(&mut self, at: usize) {
        let job = &mut self.jobs[at];
        job.round += 1;
        let round = job.round;
        let left = Duration::from_secs_f64((job.left * job.seconds()).max(0.0));
        self.schedule_after(left, QueuedEvent::Done { job: at, round });
        if self.jobs[at].ended.changes > 0 {
            self.measure(at);
        }
    }

    fn done(&mut self, at: usize) {
        let job = &mut self.jobs[at];
        job.advance(self.now);
        job.over = true;
        job.ended.ended = Some(self.now);
        let ran = job.ended.execution().unwrap_or(0.0);
        job.ended.mean = if ran > 0.0 { job.ended.mean / ran } else { f64::from(job.size()) };
        let sizes = std::mem::take(&mut job.sizes);
        self.open -= 1;
        self.notify_manager(ManagerEvent::Ended { job: number(at) });
        for (site, count) in sizes {
            self.schedule_after(
                self.workload.costs.release,
                QueuedEvent::Free { job: at, site, count },
            );
        }
    }
}

fn index(job: JobId) -> usize {
    job.0 as usize - 1
}

fn number(at: usize) -> JobId {
    JobId(at as u64 + 1)
}
