//! The malleability manager: places jobs, and gives processors to malleable ones and takes them, for all clusters of a
//! grid. A state machine without I/O and without a clock: events and the time in, actions out. The same one runs in a live
//! scheduler and in simulations of workloads.
//!
//! Source: Buisson, Sonmez, Mohamed, Lammers, Epema, *Scheduling malleable applications in multicluster systems*,
//! CLUSTER 2007. It deals in counts of processors by cluster. Must not know which nodes these are, nor how sites and jobs are
//! told: whoever carries an action out feeds its answer back, also when that is a failure, and feeds [`Event::Tick`]
//! when [`Manager::due`] has come.
//!
//! What it promises:
//! - A processor is in one account from when it is offered, claimed or held for a job until the word that it is free
//!   (`books`). What others use, as last polled, and all accounts of a cluster are never more than the cluster has
//!   *by this manager's doing*.
//! - Growth keeps to the reserve for local users and to the caps; placement does not.
//! - What is reserved is nobody else's: neither placed on nor grown into, and given back in time (`calendar`).
//! - Of each job one change at most is under way. Whatever is awaited is awaited for a stated time.
//! - What is being released counts as on its way before anybody else is asked to shrink.

mod books;
mod calendar;
mod change;
mod event;
mod queue;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use serde::{Deserialize, Serialize};
pub use springtide_runtime::config::Precedence as Approach;
use springtide_runtime::config::{SchedulingSection, Whole};
use springtide_runtime::id::{ClusterId, JobId};
use tokio::time::Instant;

pub use self::calendar::SiteOffer;
pub use self::event::{Action, Bill, Event, Kind, Need, Want};
pub use self::queue::Outlook;

use self::books::{Account, Cluster, Job, Stage};
use self::calendar::Calendar;
use self::queue::Pledge;
use crate::policy::malleability::{
    Benefit, Direction, Ground, NoPlace, Placed, Policy, Replica, Room, Round, Runner, Worth, place,
};
use crate::policy::provisioning::{Terms, Time};
use crate::reservation::Within;
use crate::scheduler::GridLink;

/// A job whose efficiency has risen by so much may take what it has refused.
const ANOTHER: f64 = 0.05;

/// How it manages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Who comes first.
    pub approach: Approach,
    /// Who grows and shrinks.
    pub policy: Policy,
    /// What a processor has to bring (efficiency-aware policy).
    pub worth: Worth,
    /// How often whoever feeds it polls each cluster, though nothing changed: growth begins with a poll.
    pub poll_every: Duration,
    /// How often the queue is looked through even if nothing happens.
    pub scan_every: Duration,
    /// A submission fails when so many scans, and one more, found no place for it; absent: never.
    pub tries: Option<u32>,
    /// Processors of each cluster that growth leaves to local users, where `reserves` says nothing else.
    pub reserve: u32,
    /// By cluster.
    pub reserves: BTreeMap<ClusterId, u32>,
    /// Most processors of a cluster beyond which no job is grown there.
    pub caps: BTreeMap<ClusterId, u32>,
    /// Most of all clusters.
    pub cap: Option<u32>,
    /// A job that has not answered in this time takes nothing.
    pub answer_within: Duration,
    /// How long a job that wants every node waits for those that are starting, or are not reached.
    pub start_wait: Duration,
    /// Processors that are not held after this time are given up, and the job grows by the others.
    pub hold_within: Duration,
    /// A job that does not compute on what it was given after this time loses it.
    pub recruit_within: Duration,
    /// A job that must shrink has this time; then processors are taken from it.
    pub release_within: Duration,
    /// How long before the expected end of its transfers a job's processors are claimed.
    pub claim_ahead: Duration,
    /// Bytes per second from the first cluster to the second that are assumed before a link is measured.
    pub links: Vec<(ClusterId, ClusterId, f64)>,
    /// Clusters to which no file can be brought.
    pub without_files: BTreeSet<ClusterId>,
    /// What each cluster asks for slots, and what it does not grant; of others [`Terms::default`].
    pub terms: BTreeMap<ClusterId, Terms>,
    /// A reservation that was prepared is kept so long for its commit.
    pub commit_within: Duration,
    /// One that was committed for its being confirmed.
    pub confirm_within: Duration,
    /// What brokers are told of the links between clusters.
    pub grid_links: Vec<GridLink>,
    /// The time when the manager begins, in microseconds of the Unix epoch: reservations are told by it.
    pub clock_us: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            approach: Approach::default(),
            policy: Policy::default(),
            worth: Worth::default(),
            poll_every: Duration::from_secs(15),
            scan_every: Duration::from_secs(15),
            tries: None,
            reserve: 0,
            reserves: BTreeMap::new(),
            caps: BTreeMap::new(),
            cap: None,
            answer_within: Duration::from_secs(10),
            start_wait: Duration::from_secs(5),
            hold_within: Duration::from_secs(60),
            recruit_within: Duration::from_secs(120),
            release_within: Duration::from_secs(60),
            claim_ahead: Duration::from_secs(5),
            links: Vec::new(),
            without_files: BTreeSet::new(),
            terms: BTreeMap::new(),
            commit_within: Within::default().commit,
            confirm_within: Within::default().confirm,
            grid_links: Vec::new(),
            clock_us: 0,
        }
    }
}

impl From<&SchedulingSection> for Settings {
    fn from(section: &SchedulingSection) -> Self {
        let worth = Worth { least_gain: section.least_gain, most_shares: section.most_shares };
        Self {
            approach: section.precedence,
            policy: section.policy,
            worth,
            poll_every: section.poll.get(),
            scan_every: section.scan_every.get(),
            tries: section.tries.map(Whole::get),
            reserve: section.reserve.get(),
            reserves: BTreeMap::new(),
            caps: BTreeMap::new(),
            cap: section.cap.map(Whole::get),
            answer_within: section.answer_within.get(),
            start_wait: section.start_wait.get(),
            hold_within: section.hold_within.get(),
            recruit_within: section.recruit_within.get(),
            release_within: section.release_within.get(),
            claim_ahead: section.claim_ahead.get(),
            ..Self::default()
        }
    }
}

/// A job as others may see it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobView {
    /// What it does.
    pub phase: Phase,
    /// Whether its size can change.
    pub kind: Kind,
    /// Fewest processors that it may have.
    pub least: u32,
    /// Most that it may have now.
    pub most: u32,
    /// Most that it can use.
    pub useful: u32,
    /// Processors that it computes on, by cluster.
    pub sizes: BTreeMap<ClusterId, u32>,
    /// Scans that found no place for it.
    pub tries: u32,
    /// Why it waits, or what was last done about it.
    pub why: String,
}

/// What a job does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// It waits for a place.
    Waiting,
    /// Its files are on their way.
    Placed,
    /// It is being started.
    Claiming,
    /// It runs.
    Running,
    /// It runs, and is being given processors.
    Growing,
    /// It runs, and is giving some back.
    Shrinking,
    /// Its processors are being freed.
    Ending,
}

/// The manager's state.
#[derive(Debug)]
pub struct Manager {
    settings: Settings,
    origin: Instant,
    clusters: BTreeMap<ClusterId, Cluster>,
    /// Replicas and links; its rooms are made anew for each decision.
    ground: Ground,
    jobs: BTreeMap<JobId, Job>,
    queue: VecDeque<JobId>,
    rounds: BTreeMap<ClusterId, Round>,
    pledge: Option<Pledge>,
    last_change: u64,
    next_scan: Option<Instant>,
    /// Something became free, or came in: the queue is to be looked through.
    stirred: bool,
    /// Jobs that may grow where they have nothing.
    spreading: BTreeSet<JobId>,
    /// Reservations.
    calendar: Calendar,
    /// The time of the last event, of the Unix epoch.
    now: Time,
}

impl Manager {
    /// For these clusters, none of which has been heard of at `now`.
    pub fn new(
        settings: Settings,
        clusters: impl IntoIterator<Item = ClusterId>,
        now: Instant,
    ) -> Self {
        let unheard = || Cluster {
            closed: Some("nothing was heard of it yet".to_owned()),
            ..Cluster::default()
        };
        let assumed = settings.links.iter();
        let links = assumed.map(|(a, b, rate)| ((a.clone(), b.clone()), *rate)).collect();
        let without_files = settings.without_files.clone();
        let within = Within { commit: settings.commit_within, confirm: settings.confirm_within };
        Self {
            calendar: Calendar::new(within),
            now: settings.clock_us,
            settings,
            origin: now,
            clusters: clusters.into_iter().map(|cluster| (cluster, unheard())).collect(),
            ground: Ground { links, without_files, ..Ground::default() },
            jobs: BTreeMap::new(),
            queue: VecDeque::new(),
            rounds: BTreeMap::new(),
            pledge: None,
            last_change: 0,
            next_scan: None,
            stirred: false,
            spreading: BTreeSet::new(),
        }
    }

    /// Takes an event in, that happened at `now`.
    pub fn handle(&mut self, event: Event, now: Instant) -> Vec<Action> {
        let mut out = Vec::new();
        let mut polled = None;
        self.pass(now, &mut out);
        match event {
            Event::Polled { cluster, size, others, whole } => {
                self.polled(&cluster, size, others, whole);
                polled = Some(cluster);
            }
            Event::Unreachable { cluster, reason } => {
                self.clusters.entry(cluster).or_default().closed = Some(reason);
            }
            Event::Replicas { file, bytes, clusters, differs } => {
                self.ground.files.insert(file, Replica { bytes, clusters, differs });
                self.stirred = true;
            }
            Event::Link { from, to, rate } => {
                self.ground.links.insert((from, to), rate);
            }
            Event::Submit { job, need } => self.submit(job, *need, now, &mut out),
            Event::Moved { job } => self.moved(job, now, &mut out),
            Event::MoveFailed { job, reason } => self.move_failed(job, &reason, now, &mut out),
            Event::Claimed { job, got } => self.claimed(job, &got, now),
            Event::Resumed { job, need, placed, since, sizes } => {
                self.resumed(job, *need, &placed, since, &sizes);
            }
            Event::ClaimFailed { job, reason } => self.claim_failed(job, &reason, now, &mut out),
            Event::Answer { job, change, count } => self.answer(job, change, count, now, &mut out),
            Event::Held { job, change, count } => self.held(job, change, count, now, &mut out),
            Event::NotHeld { job, change, count, reason } => {
                self.not_held(job, change, count, &reason, now, &mut out);
            }
            Event::Grown { job, change, count } => self.grown(job, change, count, &mut out),
            Event::Freed { job, cluster, count, let_go } => {
                self.freed(job, &cluster, count, let_go, &mut out);
            }
            Event::NotForced { job, cluster, count } => self.not_forced(job, &cluster, count),
            Event::Root { job, cluster } => {
                if let Some(job) = self.jobs.get_mut(&job) {
                    job.root = cluster;
                }
            }
            Event::Unheld { job, cluster, count } => self.unheld(job, &cluster, count, &mut out),
            Event::Efficiency { job, efficiency, processors } => {
                if let Some(job) = self.jobs.get_mut(&job) {
                    job.benefit = Benefit::measured(efficiency, processors);
                    job.efficiency = Some(efficiency);
                    // What was refused before anything was measured was not refused for the efficiency.
                    if efficiency >= *job.refused_at.get_or_insert(efficiency) + ANOTHER {
                        job.refused_at = Some(efficiency);
                        job.accounts.values_mut().for_each(|account| account.refused = 0);
                    }
                }
            }
            Event::Want { job, want } => self.want(job, want, now),
            Event::Limit { job, most } => {
                if let Some(job) = self.jobs.get_mut(&job) {
                    job.limit = most;
                }
            }
            Event::Ended { job } => self.ended(job, &mut out),
            Event::Withdraw { job } => self.withdraw(job),
            Event::Tick => {}
        }
        self.expire(now, &mut out);
        self.keep_limits(now, &mut out);
        self.claim_due(now, &mut out);
        self.scan(now, &mut out);
        self.serve_pledge(now, &mut out);
        self.keep_reservations(&mut out);
        if let Some(cluster) = polled {
            self.grow(&cluster, now, &mut out);
        }
        self.ask(now, &mut out);
        out
    }

    /// When [`Event::Tick`] is due, if nothing else happens before.
    pub fn due(&self) -> Option<Instant> {
        let changes = self.jobs.values().filter_map(|job| job.change.as_ref().map(|c| c.until));
        let wants = self.jobs.values().filter_map(|job| job.want.as_ref().and_then(|w| w.until));
        let claims = self.jobs.values().filter_map(|job| match &job.stage {
            Stage::Placed { claim_at, .. } => *claim_at,
            _ => None,
        });
        changes.chain(wants).chain(claims).chain(self.next_scan).chain(self.calendar_due()).min()
    }

    /// Where a job would be placed now.
    ///
    /// # Errors
    /// [`NoPlace`].
    pub fn plan(&self, need: &Need) -> Result<Placed, NoPlace> {
        let mut ground = self.ground_now();
        self.rooms_of(need, &mut ground.rooms);
        place(need.placement, &need.components, &ground)
    }

    /// A job, if it is known.
    pub fn job(&self, id: JobId) -> Option<JobView> {
        let job = self.jobs.get(&id)?;
        let phase = match (&job.stage, &job.change) {
            (Stage::Waiting, _) => Phase::Waiting,
            (Stage::Placed { .. }, _) => Phase::Placed,
            (Stage::Claiming, _) => Phase::Claiming,
            (Stage::Ending, _) => Phase::Ending,
            (Stage::Running, None) => Phase::Running,
            (Stage::Running, Some(change)) => match change.step.direction() {
                Direction::Grow => Phase::Growing,
                Direction::Shrink => Phase::Shrinking,
            },
        };
        let sizes = job.accounts.iter().filter(|(_, account)| account.size > 0);
        let sizes = sizes.map(|(cluster, account)| (cluster.clone(), account.size)).collect();
        let (kind, least, useful) = (job.need.kind, job.need.least(), job.need.greatest());
        let most = job.limit.map_or(useful, |limit| limit.min(useful));
        let why = self.why(id, &Outlook::default())?;
        Some(JobView { phase, kind, least, most, useful, sizes, tries: job.tries, why })
    }

    /// Why a job is as it is, as in its [view](Self::job). Whoever asks about many at once shares one outlook among them.
    pub fn why(&self, id: JobId, outlook: &Outlook) -> Option<String> {
        let job = self.jobs.get(&id)?;
        Some(match job.stage {
            Stage::Waiting => self.waits_for(id, job, outlook),
            _ => job.why.clone(),
        })
    }

    /// What a job needs, if it is known.
    pub fn need(&self, id: JobId) -> Option<&Need> {
        self.jobs.get(&id).map(|job| &job.need)
    }

    /// Where a job's root runs, as far as it was told.
    pub fn root(&self, id: JobId) -> Option<&ClusterId> {
        self.jobs.get(&id)?.root.as_ref()
    }

    /// Jobs that wait, first the first.
    pub fn queued(&self) -> impl Iterator<Item = JobId> {
        self.queue.iter().copied()
    }

    /// Processors of a cluster that are in accounts of jobs.
    pub fn booked(&self, cluster: &ClusterId) -> u32 {
        self.clusters.get(cluster).map_or(0, |cluster| cluster.booked)
    }

    /// How many processors jobs of a cluster may be grown by: what is idle above the reserve, and below the caps.
    pub fn grow_value(&self, cluster: &ClusterId) -> u32 {
        self.grow_value_with(cluster, 0)
    }

    /// The same if jobs gave so many processors back.
    fn grow_value_with(&self, cluster: &ClusterId, back: u32) -> u32 {
        let Some(known) = self.clusters.get(cluster).filter(|known| known.closed.is_none()) else {
            return 0;
        };
        let Settings { reserve, reserves, caps, cap, .. } = &self.settings;
        let reserve = reserves.get(cluster).unwrap_or(reserve);
        let mut value = (known.idle() + back).saturating_sub(*reserve);
        // What is reserved is not free, whoever is on it.
        value = value.min((known.idle() + back).saturating_sub(self.withheld(cluster)));
        if let Some(cap) = caps.get(cluster) {
            value = value.min((cap + back).saturating_sub(known.booked));
        }
        if let Some(cap) = cap {
            let all: u32 = self.clusters.values().map(|cluster| cluster.booked).sum();
            value = value.min((cap + back).saturating_sub(all));
        }
        value
    }

    /// How many processors of a cluster local users lack of what is to be theirs.
    fn reserve_lacks(&self, cluster: &ClusterId) -> u32 {
        let Some(known) = self.clusters.get(cluster).filter(|known| known.closed.is_none()) else {
            return 0;
        };
        let Settings { reserve, reserves, .. } = &self.settings;
        reserves.get(cluster).unwrap_or(reserve).saturating_sub(known.idle())
    }

    fn polled(&mut self, cluster: &ClusterId, size: u32, others: u32, whole: u32) {
        let known = self.clusters.entry(cluster.clone()).or_default();
        (known.size, known.others, known.closed) = (size, others, None);
        known.whole = whole.max(size);
        for wanted in self.jobs.values_mut().filter_map(|job| job.want.as_mut()) {
            wanted.stalled = false;
        }
        self.stirred = true;
    }

    /// Jobs of a cluster that can be asked, whatever their bounds.
    fn runners(&self, cluster: &ClusterId) -> Vec<Runner> {
        let Some(known) = self.clusters.get(cluster) else { return Vec::new() };
        let none = Account::default();
        let runner = |(&id, job): (&JobId, &Job)| {
            let account = job.accounts.get(cluster).unwrap_or(&none);
            let (min, most) = job.bounds(cluster);
            let asks = job.stage == Stage::Running && job.need.kind == Kind::Malleable;
            (asks && job.change.is_none()).then(|| Runner {
                job: id,
                started: Duration::from_micros(job.started),
                size: account.size,
                elsewhere: job.size() - account.size,
                min,
                max: most.min(known.size),
                refused: account.refused,
                benefit: job.benefit,
            })
        };
        let there = known.jobs.iter().filter_map(|id| self.jobs.get_key_value(id));
        let there = there.filter(|(_, job)| !job.need.spreads);
        let anywhere = self.spreading.iter().filter_map(|id| self.jobs.get_key_value(id));
        there.chain(anywhere).filter_map(runner).collect()
    }

    /// Whether a running job can be given some of the cluster's idle processors, or is being given some.
    fn can_grow(&self, cluster: &ClusterId) -> Option<JobId> {
        let known = self.clusters.get(cluster)?;
        let growing = known.jobs.iter().find(|id| {
            let change = self.jobs.get(id).and_then(|job| job.change.as_ref());
            change.is_some_and(|c| c.cluster == *cluster && c.step.direction() == Direction::Grow)
        });
        if let Some(&growing) = growing {
            return Some(growing);
        }
        let value = self.grow_value(cluster);
        if value == 0 {
            return None;
        }
        let takes = |runner: &Runner| runner.size < runner.max && runner.refused < value;
        self.runners(cluster).iter().find(|runner| takes(runner)).map(|runner| runner.job)
    }

    /// What jobs are placed on now.
    fn ground_now(&self) -> Ground {
        let room = |(cluster, known): (&ClusterId, &Cluster)| {
            let growing = || match self.settings.approach {
                Approach::Running => self.can_grow(cluster),
                Approach::Waiting => None,
            };
            let closed = known.closed.clone().or_else(|| {
                growing().map(|job| format!("its processors go to {job}, which runs and can grow"))
            });
            let (size, whole) = (known.size, known.whole);
            let idle = self.available(cluster, None);
            (cluster.clone(), Room { size, whole, idle, closed })
        };
        let rooms = self.clusters.iter().map(room).collect();
        Ground { rooms, ..self.ground.clone() }
    }

    fn account(&mut self, id: JobId, cluster: &ClusterId) -> Option<(&mut Cluster, &mut Account)> {
        let job = self.jobs.get_mut(&id)?;
        let known = self.clusters.get_mut(cluster)?;
        known.jobs.insert(id);
        Some((known, job.accounts.entry(cluster.clone()).or_default()))
    }

    /// Notes what became of a job in words.
    fn note(&mut self, id: JobId, why: String) {
        if let Some(job) = self.jobs.get_mut(&id) {
            job.why = why;
        }
    }

    /// Closes accounts in which there is nothing, and forgets a job that has ended when all are closed.
    fn close(&mut self, id: JobId, cluster: &ClusterId) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let empty = job.accounts.get(cluster).is_none_or(|account| account.all() == 0);
        let placed = job.stage != Stage::Ending && job.bounds.contains_key(cluster);
        if empty && !placed {
            job.accounts.remove(cluster);
            if let Some(known) = self.clusters.get_mut(cluster) {
                known.jobs.remove(&id);
            }
        }
        if job.stage == Stage::Ending && job.booked() == 0 {
            self.forget(id);
        }
    }

    fn forget(&mut self, id: JobId) {
        let Some(job) = self.jobs.remove(&id) else { return };
        self.spreading.remove(&id);
        for cluster in job.accounts.keys().chain(job.bounds.keys()) {
            if let Some(known) = self.clusters.get_mut(cluster) {
                known.jobs.remove(&id);
            }
        }
    }

    /// Checks the books; for tests.
    ///
    /// # Panics
    /// They do not agree.
    #[doc(hidden)]
    pub fn audit(&self) {
        for (cluster, known) in &self.clusters {
            let accounts = self.jobs.values().filter_map(|job| job.accounts.get(cluster));
            let sum: u32 = accounts.map(Account::all).sum();
            assert_eq!(
                sum, known.booked,
                "{cluster} books {} and its accounts have {sum}",
                known.booked
            );
        }
        for (id, job) in &self.jobs {
            for (cluster, account) in &job.accounts {
                let known = self.clusters[cluster].jobs.contains(id);
                assert!(
                    account.all() == 0 || known,
                    "{id} has {account:?} in {cluster} unknown to it"
                );
            }
            let queued = self.queue.iter().filter(|queued| *queued == id).count();
            assert_eq!(
                queued,
                usize::from(job.stage == Stage::Waiting),
                "{id} is {queued} times in the queue"
            );
        }
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_random;
#[cfg(test)]
mod tests_table;
