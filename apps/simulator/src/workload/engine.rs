//! Plays a workload: one event after the other, in the order of their times.
//!
//! Sites and jobs are modelled, the manager is the live one. Must not decide anything that the manager decides.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::time::Duration;

use springtide_actors::policy::malleability::Direction;
use springtide_actors::scheduler::manager::{Action, Event, Kind, Manager, Need};
use springtide_runtime::id::{ClusterId, JobId};
use tokio::time::Instant;

use super::dice::Dice;
use super::{Arrival, Site, Workload};

/// After the last job has ended what it had is free within this time, or it never is.
const LINGER: Duration = Duration::from_secs(600);

/// What became of a workload.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// The jobs, as they came.
    pub jobs: Vec<Ended>,
    /// What was in use, whenever that changed.
    pub used: Vec<Moment>,
    /// When jobs were asked to grow, or to shrink (`true`), and took or gave something.
    pub changes: Vec<(Duration, Direction)>,
    /// Messages that asked for it.
    pub offers: u64,
    /// Messages that asked for processors back.
    pub shrinks: u64,
    /// When the last job ended.
    pub end: Duration,
    /// Events that the manager took in.
    pub events: u64,
    /// What it thought odd. Nothing should be.
    pub odd: Vec<String>,
}

/// What is in use at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// When.
    pub at: Duration,
    /// By jobs, with what is held for them.
    pub jobs: u32,
    /// By local users.
    pub users: u32,
}

/// What became of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct Ended {
    /// Its program.
    pub program: String,
    /// Its kind.
    pub kind: Kind,
    /// Fewest processors.
    pub min: u32,
    /// When it came.
    pub came: Duration,
    /// When it began; absent if it never did.
    pub began: Option<Duration>,
    /// When it ended.
    pub ended: Option<Duration>,
    /// Why it never began.
    pub failed: Option<String>,
    /// Mean of its processors over its run.
    pub mean: f64,
    /// Most processors.
    pub most: u32,
    /// Changes of its size.
    pub changes: u32,
    /// Processor-seconds that it, or what was held for it, took.
    pub taken: f64,
    /// Those of one processor alone.
    pub work: f64,
    /// Seconds in which it computed nothing because it changed.
    pub paused: f64,
}

impl Ended {
    /// From its coming to its end, in seconds.
    pub fn response(&self) -> Option<f64> {
        self.ended.map(|ended| (ended - self.came).as_secs_f64())
    }

    /// From its beginning to its end, in seconds.
    pub fn execution(&self) -> Option<f64> {
        Some((self.ended? - self.began?).as_secs_f64())
    }

    /// From its coming to its beginning, in seconds.
    pub fn wait(&self) -> Option<f64> {
        self.began.map(|began| (began - self.came).as_secs_f64())
    }
}

/// What happens next.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Next {
    Comes(usize),
    Poll(usize),
    Tick,
    /// Stubs of a claim are there, or not.
    Claimed(usize),
    /// A job computes on what it was given.
    Grown {
        job: usize,
        change: u64,
        count: u32,
    },
    /// Stubs of a growth are there, as far as there is room.
    Stubs {
        job: usize,
        change: u64,
        site: usize,
        count: u32,
    },
    /// A job's size changes; it goes on after the pause.
    Change {
        job: usize,
        site: usize,
        change: u64,
        count: u32,
        grow: bool,
    },
    /// A job goes on.
    Resume {
        job: usize,
        round: u64,
    },
    /// Processors are free.
    Free {
        job: usize,
        site: usize,
        count: u32,
    },
    /// Stubs are given back, of which so many were there.
    Unheld {
        job: usize,
        site: usize,
        count: u32,
        there: u32,
    },
    /// A job's work is done, if nothing has changed since.
    Done {
        job: usize,
        round: u64,
    },
    /// A local user comes.
    User(usize),
    /// A local user goes.
    Leaves {
        site: usize,
        count: u32,
    },
}

/// A job that runs, or will.
struct Job {
    arrival: Arrival,
    sizes: BTreeMap<usize, u32>,
    /// Part of its work that is left.
    left: f64,
    /// It computes nothing.
    paused: bool,
    since: Duration,
    /// Counts its states, so that an end foreseen in an earlier one is known as such.
    round: u64,
    ended: Ended,
    over: bool,
}

impl Job {
    fn size(&self) -> u32 {
        self.sizes.values().sum()
    }

    fn seconds(&self) -> f64 {
        self.arrival.program.curve.seconds(self.size()) * self.arrival.scale
    }

    /// Computes until now.
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

/// What a site really has.
struct Lrm {
    size: u32,
    ours: u32,
    users: u32,
    /// Local users that wait for room.
    waiting: VecDeque<u32>,
    dice: Dice,
}

impl Lrm {
    fn idle(&self) -> u32 {
        self.size - self.ours - self.users
    }
}

struct Engine<'a> {
    workload: &'a Workload,
    manager: Manager,
    origin: Instant,
    now: Duration,
    next: BinaryHeap<Reverse<(Duration, u64, Next)>>,
    counted: u64,
    jobs: Vec<Job>,
    sites: Vec<Lrm>,
    points: Dice,
    /// Jobs that have neither ended nor failed.
    open: usize,
    /// When a tick is in the heap for.
    tick: Option<Duration>,
    taken: u32,
    claims: BTreeMap<usize, BTreeMap<usize, u32>>,
    /// What is held for jobs that do not compute on it yet, by job and site.
    stubs: BTreeMap<(usize, usize), u32>,
    /// Changes whose stubs are not wanted any more.
    given_up: BTreeSet<u64>,
    taken_by: Vec<(u32, Duration)>,
    out: Outcome,
}

/// Plays a workload to its end. Of a workload that a site never has room for, jobs fail.
pub fn play(workload: &Workload) -> Outcome {
    let origin = Instant::now();
    let names = workload.sites.iter().map(|site| site.name.clone());
    let manager = Manager::new(workload.settings.clone(), names, origin);
    let jobs: Vec<Job> = workload.jobs.iter().map(job).collect();
    let lrm = |(at, site): (usize, &Site)| Lrm {
        size: site.size,
        ours: 0,
        users: 0,
        waiting: VecDeque::new(),
        dice: Dice::new(workload.seed, 2 + at as u64),
    };
    let mut engine = Engine {
        workload,
        manager,
        origin,
        now: Duration::ZERO,
        next: BinaryHeap::new(),
        counted: 0,
        open: jobs.len(),
        taken_by: vec![(0, Duration::ZERO); jobs.len()],
        jobs,
        sites: workload.sites.iter().enumerate().map(lrm).collect(),
        points: Dice::new(workload.seed, 1),
        tick: None,
        taken: 0,
        claims: BTreeMap::new(),
        stubs: BTreeMap::new(),
        given_up: BTreeSet::new(),
        out: Outcome::default(),
    };
    engine.run();
    engine.out
}

fn job(arrival: &Arrival) -> Job {
    let program = &arrival.program;
    let ended = Ended {
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
        work: program.curve.seconds(1) * arrival.scale,
        paused: 0.0,
    };
    Job {
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
    fn at(&mut self, at: Duration, next: Next) {
        self.counted += 1;
        self.next.push(Reverse((at, self.counted, next)));
    }

    fn after(&mut self, wait: Duration, next: Next) {
        self.at(self.now + wait, next);
    }

    fn run(&mut self) {
        for site in 0..self.sites.len() {
            self.at(Duration::ZERO, Next::Poll(site));
            if let Some(first) = self.next_user(site) {
                self.at(first, Next::User(site));
            }
        }
        for at in 0..self.jobs.len() {
            self.at(self.jobs[at].arrival.at, Next::Comes(at));
        }
        while let Some(Reverse((at, _, next))) = self.next.pop() {
            if self.open == 0 && (self.taken == 0 || at > self.out.end + LINGER) {
                break;
            }
            self.now = at;
            self.happen(next);
            if self.open > 0 {
                self.out.end = at;
            }
        }
        for at in 0..self.jobs.len() {
            self.account(at, 0);
        }
        self.out.jobs = self.jobs.drain(..).map(|job| job.ended).collect();
    }

    fn tell(&mut self, event: Event) {
        let mut news = VecDeque::from([event]);
        while let Some(event) = news.pop_front() {
            self.out.events += 1;
            let actions = self.manager.handle(event, self.origin + self.now);
            for action in actions {
                news.extend(self.carry_out(action));
            }
        }
        let due = self.manager.due().map(|due| due.duration_since(self.origin));
        if let Some(due) = due.filter(|due| self.tick.is_none_or(|tick| *due < tick)) {
            self.tick = Some(due);
            self.at(due.max(self.now), Next::Tick);
        }
    }

    fn name(&self, site: usize) -> ClusterId {
        self.workload.sites[site].name.clone()
    }

    fn site(&self, cluster: &ClusterId) -> usize {
        let at = self.workload.sites.iter().position(|site| site.name == *cluster);
        at.unwrap_or_else(|| unreachable!("the manager was told of no cluster {cluster}"))
    }

    /// Does what the manager wants done, and says what it hears at once.
    fn carry_out(&mut self, action: Action) -> Option<Event> {
        match action {
            Action::Move { job, .. } => return Some(Event::Moved { job }),
            Action::Claim { job, placed } => {
                let at = index(job);
                let mut claim = BTreeMap::new();
                for part in placed.parts {
                    *claim.entry(self.site(&part.cluster)).or_default() += part.count;
                }
                self.claims.insert(at, claim);
                self.after(self.workload.costs.hold, Next::Claimed(at));
            }
            Action::Fail { job, reason } => {
                let job = &mut self.jobs[index(job)];
                job.over = true;
                job.ended.failed = Some(reason);
                self.open -= 1;
            }
            Action::Offer { job, change, count, .. } => {
                self.out.offers += 1;
                let at = index(job);
                let accepted = self.answers(at, Direction::Grow, count);
                if accepted > 0 {
                    self.out.changes.push((self.now, Direction::Grow));
                }
                return Some(Event::Answer { job, change, count: Some(accepted) });
            }
            Action::Shrink { job, change, cluster, count, .. } => {
                self.out.shrinks += 1;
                let (at, site) = (index(job), self.site(&cluster));
                let accepted = self.answers(at, Direction::Shrink, count);
                if accepted > 0 {
                    self.out.changes.push((self.now, Direction::Shrink));
                    let until_point = self.until_point();
                    let next = Next::Change { job: at, site, change, count: accepted, grow: false };
                    self.after(until_point, next);
                }
                return Some(Event::Answer { job, change, count: Some(accepted) });
            }
            Action::Hold { job, change, cluster, count } => {
                let (job, site) = (index(job), self.site(&cluster));
                let next = Next::Stubs { job, change, site, count };
                self.after(self.workload.costs.hold, next);
            }
            Action::Recruit { job, change, cluster, count } => {
                let (job, site) = (index(job), self.site(&cluster));
                let until_point = self.until_point();
                self.after(until_point, Next::Change { job, site, change, count, grow: true });
            }
            Action::Unhold { job, change, cluster, count, .. } => {
                let (job, site) = (index(job), self.site(&cluster));
                self.given_up.insert(change);
                let stubs = self.stubs.entry((job, site)).or_default();
                let there = count.min(*stubs);
                *stubs -= there;
                let next = Next::Unheld { job, site, count, there };
                self.after(self.workload.costs.release, next);
            }
            Action::Force { job, cluster, count, .. } => {
                let (job, site) = (index(job), self.site(&cluster));
                let count = self.shrink(job, site, count);
                self.after(self.workload.costs.release, Next::Free { job, site, count });
            }
            Action::Refuse { .. } => {}
            // No job of a workload says how long it takes, and none reserves.
            Action::End { reason, .. } => self.out.odd.push(reason),
            Action::Unreserved(bill) => self.out.odd.push(bill.why),
            Action::Odd { what } => self.out.odd.push(what),
        }
        None
    }

    fn answers(&self, at: usize, direction: Direction, count: u32) -> u32 {
        let job = &self.jobs[at];
        match job.over {
            true => 0,
            false => job.arrival.program.accepts(job.size(), direction, count),
        }
    }

    fn until_point(&mut self) -> Duration {
        self.workload.costs.point.mul_f64(self.points.unit())
    }

    fn happen(&mut self, next: Next) {
        match next {
            Next::Comes(at) => {
                let Arrival { kind, min, start, max, .. } = self.jobs[at].arrival;
                let placement = self.workload.placement;
                let need = Box::new(Need { placement, ..Need::one(kind, min, start, max) });
                self.tell(Event::Submit { job: number(at), need });
            }
            Next::Poll(site) => {
                let Lrm { size, users, .. } = self.sites[site];
                let (cluster, others, whole) = (self.name(site), users, size);
                self.tell(Event::Polled { cluster, size, others, whole });
                self.after(self.workload.settings.poll_every, Next::Poll(site));
            }
            Next::Tick => {
                self.tick = None;
                self.tell(Event::Tick);
            }
            Next::Claimed(at) => self.claimed(at),
            Next::Grown { job, change, count } => {
                self.tell(Event::Grown { job: number(job), change, count });
            }
            Next::Stubs { job, change, site, count } => {
                if self.given_up.contains(&change) {
                    return;
                }
                let there = count.min(self.sites[site].idle());
                self.take(job, site, there);
                *self.stubs.entry((job, site)).or_default() += there;
                let id = number(job);
                if there < count {
                    let (count, reason) = (count - there, "local users were faster".to_owned());
                    self.tell(Event::NotHeld { job: id, change, count, reason });
                }
                self.tell(Event::Held { job: id, change, count: there });
            }
            Next::Change { job, site, change, count, grow } => {
                self.change(job, site, change, count, grow);
            }
            Next::Resume { job, round } => {
                if self.jobs[job].round == round && !self.jobs[job].over {
                    self.jobs[job].advance(self.now);
                    self.jobs[job].paused = false;
                    self.foresee(job);
                }
            }
            Next::Free { job, site, count } => {
                self.give_back(job, site, count);
                let (job, cluster) = (number(job), self.name(site));
                self.tell(Event::Freed { job, cluster, count, let_go: false });
            }
            Next::Unheld { job, site, count, there } => {
                self.give_back(job, site, there);
                let (job, cluster) = (number(job), self.name(site));
                self.tell(Event::Unheld { job, cluster, count });
            }
            Next::Done { job, round } => {
                if self.jobs[job].round == round && !self.jobs[job].over {
                    self.done(job);
                }
            }
            Next::User(site) => {
                let most = f64::from(self.workload.sites[site].users.most.max(1));
                let count = 1 + (self.sites[site].dice.unit() * most) as u32;
                let count = count.min(self.sites[site].size);
                self.sites[site].waiting.push_back(count);
                self.let_users_in(site);
                if let Some(next) = self.next_user(site) {
                    self.after(next, Next::User(site));
                }
            }
            Next::Leaves { site, count } => {
                self.sites[site].users -= count;
                self.let_users_in(site);
                self.note_use();
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

    fn let_users_in(&mut self, site: usize) {
        while let Some(&count) = self.sites[site].waiting.front() {
            if count > self.sites[site].idle() {
                return;
            }
            self.sites[site].waiting.pop_front();
            self.sites[site].users += count;
            let hold = self.workload.sites[site].users.hold.as_secs_f64();
            let hold = self.sites[site].dice.exponential(hold);
            self.after(Duration::from_secs_f64(hold), Next::Leaves { site, count });
            self.note_use();
        }
    }

    fn note_use(&mut self) {
        let users = self.sites.iter().map(|site| site.users).sum();
        let moment = Moment { at: self.now, jobs: self.taken, users };
        match self.out.used.last_mut() {
            Some(last) if last.at == self.now => *last = moment,
            _ => self.out.used.push(moment),
        }
    }

    /// Notes what a job has taken so far, and that it has this many now.
    fn account(&mut self, at: usize, has: u32) {
        let (had, since) = self.taken_by[at];
        self.jobs[at].ended.taken += f64::from(had) * (self.now - since).as_secs_f64();
        self.taken_by[at] = (has, self.now);
    }

    fn take(&mut self, at: usize, site: usize, count: u32) {
        self.account(at, self.taken_by[at].0 + count);
        self.sites[site].ours += count;
        self.taken += count;
        self.note_use();
    }

    fn give_back(&mut self, at: usize, site: usize, count: u32) {
        self.account(at, self.taken_by[at].0.saturating_sub(count));
        self.sites[site].ours -= count;
        self.taken -= count;
        self.note_use();
        self.let_users_in(site);
    }

    fn claimed(&mut self, at: usize) {
        let Some(claim) = self.claims.remove(&at) else { return };
        let id = number(at);
        if claim.iter().any(|(&site, &count)| self.sites[site].idle() < count) {
            let reason = "local users were faster".to_owned();
            return self.tell(Event::ClaimFailed { job: id, reason });
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
        self.foresee(at);
        self.tell(Event::Claimed { job: id, got });
        self.measure(at);
        self.release_rest(at);
    }

    /// A job that cannot use all that it started with gives the rest back by itself.
    fn release_rest(&mut self, at: usize) {
        let job = &self.jobs[at];
        let rest = job.size() - job.arrival.program.usable(job.size()).min(job.size());
        let Some((&site, _)) = job.sizes.iter().next().filter(|_| rest > 0) else { return };
        self.jobs[at].advance(self.now);
        self.shrink(at, site, rest);
        self.foresee(at);
        self.after(self.workload.costs.release, Next::Free { job: at, site, count: rest });
    }

    /// The job tells how efficient it is.
    fn measure(&mut self, at: usize) {
        let job = &self.jobs[at];
        let processors = job.size();
        let efficiency = job.arrival.program.curve.efficiency(processors);
        self.tell(Event::Efficiency { job: number(at), efficiency, processors });
    }

    /// A job goes on without so many, or as many as it has.
    fn shrink(&mut self, at: usize, site: usize, count: u32) -> u32 {
        let size = self.jobs[at].sizes.entry(site).or_default();
        let count = count.min(*size);
        *size -= count;
        count
    }

    fn change(&mut self, at: usize, site: usize, change: u64, count: u32, grow: bool) {
        if self.jobs[at].over {
            return; // what it was given is given back by the manager
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
        // It goes on before anything is released, or the manager hears of it.
        self.after(pause, Next::Resume { job: at, round });
        if grow {
            self.after(pause, Next::Grown { job: at, change, count });
        } else {
            let free = pause + self.workload.costs.release;
            self.after(free, Next::Free { job: at, site, count });
        }
    }

    /// Says when a job that computes will be done.
    fn foresee(&mut self, at: usize) {
        let job = &mut self.jobs[at];
        job.round += 1;
        let round = job.round;
        let left = Duration::from_secs_f64((job.left * job.seconds()).max(0.0));
        self.after(left, Next::Done { job: at, round });
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
        self.tell(Event::Ended { job: number(at) });
        for (site, count) in sizes {
            self.after(self.workload.costs.release, Next::Free { job: at, site, count });
        }
    }
}

fn index(job: JobId) -> usize {
    job.0 as usize - 1
}

fn number(at: usize) -> JobId {
    JobId(at as u64 + 1)
}
