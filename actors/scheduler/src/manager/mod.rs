//! The malleability manager: places jobs, and grows and shrinks malleable ones, for all clusters.
//!
//! A state machine without I/O and without a clock: events and the time in, actions out. The same
//! code runs in a live scheduler and in simulations of workloads.
//!
//! Source: Buisson, Sonmez, Mohamed, Lammers, Epema, *Scheduling malleable applications in
//! multicluster systems*, CLUSTER 2007. The manager counts processors by cluster. It must not
//! depend on which nodes these are, nor on messages to sites and jobs. The driver answers each
//! action, also with a failure, and feeds [`ManagerEvent::Tick`] at [`Manager::due`].
//!
//! Invariants:
//! - A processor is in one account from its offer, claim or hold until it is reported free
//!   (`accounts`).
//! - The manager never assigns more than a cluster has: foreign use, as last polled, and all
//!   accounts.
//! - Growth respects the reserve for local users and the caps; placement does not.
//! - No job is placed on reserved processors, or grown into them. Jobs release them in time
//!   (`calendar`).
//! - Each job has at most one change under way. Each wait has a time limit.
//! - Processors under release count as available before another job is asked to shrink.

mod accounts;
mod backfill;
mod calendar;
mod change;
mod event;
mod head_reservation;
mod hold;
mod queue;
mod settled;
mod shares;
mod waiting;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use springtide_base::id::{ClusterId, JobId};
pub use springtide_config::Precedence as Approach;
pub use springtide_config::QueueDiscipline;
use springtide_config::{BoundedInt, SchedulingSection, ShareSection};
use tokio::time::Instant;

pub use self::backfill::RunTimes;
pub use self::event::{GrowthRequest, JobSubmission, ManagerAction, ManagerEvent, ReservationBill};
pub use self::queue::GridOutlook;
pub use self::shares::{ShareLedger, ShareTerms};

use self::accounts::{AllocationStage, ClusterAccount, ClusterUsage, JobAccount};
use self::backfill::PlannedStart;
use self::calendar::ReservationCalendar;
use self::head_reservation::HeadReservation;
use self::settled::SettledClusters;
use self::waiting::{WaitingNeed, WaitingQueue};
use crate::audit::Auditor;
use crate::policy::malleability::{
    Benefit, CapacitySnapshot, ClusterCapacity, Direction, FileReplicas, FreeHost, GrowthLimits,
    MalleableJob, PlacementError, PlacementPlan, Policy, Round, place,
};
use crate::policy::provisioning::{Terms, Time};
use crate::reservation::StepTimeouts;
use crate::scheduler::GridLink;
pub use crate::scheduler::{JobPhase, JobRequirements, JobView, Kind, SiteOffer};

/// Rise of a job's efficiency after which processors that it refused are offered again.
const REFUSAL_RESET: f64 = 0.05;

/// Settings of the malleability manager.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ManagerSettings {
    /// Whether running or waiting jobs have precedence.
    pub approach: Approach,
    /// Which waiting jobs may start before others.
    pub queue: QueueDiscipline,
    /// Time in which past use of processors loses half of its weight; absent: the queue is in the
    /// order of submission.
    pub fair_share_half_life: Option<Duration>,
    /// Terms of users, by name.
    pub users: BTreeMap<String, ShareTerms>,
    /// Terms of projects, by name.
    pub projects: BTreeMap<String, ShareTerms>,
    /// Policy that selects the jobs to grow and shrink.
    pub policy: Policy,
    /// Least gain by a processor, for the efficiency-aware policy.
    pub worth: GrowthLimits,
    /// Interval in which the driver polls each cluster even without changes. Growth begins with a
    /// poll.
    pub poll_interval: Duration,
    /// Interval between regular scans of the queue.
    pub scan_interval: Duration,
    /// Number of unsuccessful scans that a submission survives; absent: unlimited.
    pub max_tries: Option<u32>,
    /// Processors of each cluster that growth leaves to local users, unless `reserves` has an
    /// entry.
    pub reserve: u32,
    /// Processors left to local users, by cluster.
    pub reserves: BTreeMap<ClusterId, u32>,
    /// Size of all jobs in a cluster above which none of them grows there.
    pub caps: BTreeMap<ClusterId, u32>,
    /// Size of all jobs in all clusters above which no job grows.
    pub cap: Option<u32>,
    /// Time limit for a job's answer. Without an answer, it takes nothing.
    pub answer_timeout: Duration,
    /// Time that a job for all nodes waits for nodes that are starting or unreachable.
    pub start_wait: Duration,
    /// Time limit for holding processors. The job grows by those held in time.
    pub hold_timeout: Duration,
    /// Time limit for a job to compute on recruited processors, which it loses otherwise.
    pub recruit_timeout: Duration,
    /// Time limit for a mandatory release. Then the processors are taken from the job.
    pub release_timeout: Duration,
    /// Time before the expected end of file transfers at which a job's processors are claimed.
    pub claim_ahead: Duration,
    /// Assumed rates, in bytes per second, from the first cluster to the second, until measured.
    pub links: Vec<(ClusterId, ClusterId, f64)>,
    /// Clusters without a file server, which no file can reach.
    pub without_files: BTreeSet<ClusterId>,
    /// Terms of each cluster's slots; without an entry, [`Terms::default`].
    pub terms: BTreeMap<ClusterId, Terms>,
    /// Time between prepare and commit of a reservation.
    pub commit_timeout: Duration,
    /// Time between commit and confirmation of a reservation.
    pub confirm_timeout: Duration,
    /// Properties of the links between clusters, as reported to brokers.
    pub grid_links: Vec<GridLink>,
    /// Time of the manager's start, in microseconds of the Unix epoch. Reservations use this clock.
    pub clock_us: u64,
}

impl Default for ManagerSettings {
    fn default() -> Self {
        Self {
            approach: Approach::default(),
            queue: QueueDiscipline::default(),
            fair_share_half_life: None,
            users: BTreeMap::new(),
            projects: BTreeMap::new(),
            policy: Policy::default(),
            worth: GrowthLimits::default(),
            poll_interval: Duration::from_secs(15),
            scan_interval: Duration::from_secs(15),
            max_tries: None,
            reserve: 0,
            reserves: BTreeMap::new(),
            caps: BTreeMap::new(),
            cap: None,
            answer_timeout: Duration::from_secs(10),
            start_wait: Duration::from_secs(5),
            hold_timeout: Duration::from_secs(60),
            recruit_timeout: Duration::from_secs(120),
            release_timeout: Duration::from_secs(60),
            claim_ahead: Duration::from_secs(5),
            links: Vec::new(),
            without_files: BTreeSet::new(),
            terms: BTreeMap::new(),
            commit_timeout: StepTimeouts::default().commit,
            confirm_timeout: StepTimeouts::default().confirm,
            grid_links: Vec::new(),
            clock_us: 0,
        }
    }
}

impl From<&SchedulingSection> for ManagerSettings {
    fn from(section: &SchedulingSection) -> Self {
        let worth = GrowthLimits { min_gain: section.gain_min, max_shares: section.shares_max };
        let terms = |all: &[ShareSection]| {
            all.iter().map(|one| (one.name.to_string(), ShareTerms::from(one))).collect()
        };
        Self {
            approach: section.precedence,
            queue: section.queue,
            fair_share_half_life: section.fair_share_half_life.map(|time| time.get()),
            users: terms(&section.user),
            projects: terms(&section.project),
            policy: section.policy,
            worth,
            poll_interval: section.poll.get(),
            scan_interval: section.scan_interval.get(),
            max_tries: section.tries.map(BoundedInt::get),
            reserve: section.reserve.get(),
            reserves: BTreeMap::new(),
            caps: BTreeMap::new(),
            cap: section.cap.map(BoundedInt::get),
            answer_timeout: section.answer_timeout.get(),
            start_wait: section.start_wait.get(),
            hold_timeout: section.hold_timeout.get(),
            recruit_timeout: section.recruit_timeout.get(),
            release_timeout: section.release_timeout.get(),
            claim_ahead: section.claim_ahead.get(),
            ..Self::default()
        }
    }
}

/// What a manager has learned, and a later one continues with.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ManagerMemory {
    /// Past use of users and projects.
    pub shares: ShareLedger,
    /// Run times of programs, by which ends are predicted.
    pub run_times: RunTimes,
}

/// State of the malleability manager.
#[derive(Debug)]
pub struct Manager {
    settings: ManagerSettings,
    origin: Instant,
    clusters: BTreeMap<ClusterId, ClusterUsage>,
    /// Replicas and links. The capacities in it are computed for each decision.
    snapshot: CapacitySnapshot,
    jobs: BTreeMap<JobId, JobAccount>,
    queue: WaitingQueue,
    /// The jobs that do not wait in the queue. Thousands may wait, and most events concern none of
    /// them.
    active: BTreeSet<JobId>,
    rounds: BTreeMap<ClusterId, Round>,
    head_reservation: Option<HeadReservation>,
    last_change: u64,
    next_scan: Option<Instant>,
    /// Whether processors became free or jobs arrived, so that a scan is due.
    dirty: bool,
    last_scan: queue::LastScan,
    /// The polls that would change nothing.
    settled: SettledClusters,
    /// Starts that the last scan predicted.
    planned_starts: BTreeMap<JobId, PlannedStart>,
    memory: ManagerMemory,
    /// Time until which the memory has the use of running jobs.
    charged_until: Time,
    /// Number of regular scans that were left out, since they would have found no place.
    vain_scans: u32,
    /// Jobs that may grow in clusters where they have no processors.
    spreading: BTreeSet<JobId>,
    /// The waiting jobs of each job that must end before them.
    dependents: BTreeMap<JobId, BTreeSet<JobId>>,
    /// Reservations of users and workflows.
    calendar: ReservationCalendar,
    /// Time of the last event, in microseconds of the Unix epoch.
    now: Time,
    auditor: Auditor,
    /// Whether tests compare with the manager, which then takes no short cut.
    #[cfg(test)]
    examines_all: bool,
}

impl Manager {
    /// Creates a manager for these clusters, all closed until their first poll.
    pub fn new(
        settings: ManagerSettings,
        clusters: impl IntoIterator<Item = ClusterId>,
        now: Instant,
    ) -> Self {
        let unpolled = || ClusterUsage {
            closed: Some("it has not reported yet".to_owned()),
            ..ClusterUsage::default()
        };
        let assumed = settings.links.iter();
        let links = assumed.map(|(a, b, rate)| ((a.clone(), b.clone()), *rate)).collect();
        let without_files = settings.without_files.clone();
        let timeouts =
            StepTimeouts { commit: settings.commit_timeout, confirm: settings.confirm_timeout };
        Self {
            calendar: ReservationCalendar::new(timeouts),
            now: settings.clock_us,
            charged_until: settings.clock_us,
            settings,
            origin: now,
            clusters: clusters.into_iter().map(|cluster| (cluster, unpolled())).collect(),
            snapshot: CapacitySnapshot { links, without_files, ..CapacitySnapshot::default() },
            jobs: BTreeMap::new(),
            queue: WaitingQueue::default(),
            active: BTreeSet::new(),
            rounds: BTreeMap::new(),
            head_reservation: None,
            last_change: 0,
            next_scan: None,
            dirty: false,
            last_scan: queue::LastScan::default(),
            settled: SettledClusters::default(),
            planned_starts: BTreeMap::new(),
            memory: ManagerMemory::default(),
            vain_scans: 0,
            spreading: BTreeSet::new(),
            dependents: BTreeMap::new(),
            auditor: Auditor::default(),
            #[cfg(test)]
            examines_all: false,
        }
    }

    /// Processes an event that happened at `now`, and returns the resulting actions.
    ///
    /// # Panics
    /// The state is inconsistent ([`Manager::audit`]).
    pub fn handle(&mut self, event: ManagerEvent, now: Instant) -> Vec<ManagerAction> {
        if self.is_known(&event) {
            return Vec::new();
        }
        if self.changes_nothing(&event, now) {
            self.now = self.time(now).max(self.now);
            self.count_repeated_scans(now + Duration::from_nanos(1));
            return Vec::new();
        }
        self.auditor.record(&event);
        let mut out = Vec::new();
        let mut polled = None;
        let mut repeats_poll = false;
        self.unsettle(&event, now);
        self.advance_time(now, &mut out);
        let is_clock = matches!(
            event,
            ManagerEvent::Polled { .. } | ManagerEvent::HostsPolled { .. } | ManagerEvent::Tick
        );
        if !is_clock && !matches!(event, ManagerEvent::EfficiencyMeasured { .. }) {
            self.last_scan = queue::LastScan::default();
        }
        match event {
            ManagerEvent::Polled { cluster, size, others, whole } => {
                repeats_poll = self.polled(&cluster, size, others, whole);
                polled = Some(cluster);
            }
            ManagerEvent::HostsPolled { cluster, free, whole } => {
                let known = self.clusters.entry(cluster).or_default();
                (known.free_hosts, known.whole_hosts) = (free, whole);
                // Jobs with needs may fit now, although no number of processors has changed.
                self.last_scan = queue::LastScan::default();
            }
            ManagerEvent::Unreachable { cluster, reason } => {
                self.clusters.entry(cluster).or_default().closed = Some(reason);
            }
            ManagerEvent::CapacityLimited { cluster, reason } => {
                self.clusters.entry(cluster).or_default().limited = reason;
            }
            ManagerEvent::Replicas { file, bytes, clusters, differs } => {
                self.snapshot.files.insert(file, FileReplicas { bytes, clusters, differs });
                self.dirty = true;
            }
            ManagerEvent::LinkMeasured { from, to, rate } => {
                self.snapshot.links.insert((from, to), rate);
            }
            ManagerEvent::Submit { job, need } => self.submit(job, *need, now, &mut out),
            ManagerEvent::SubmitAll(all) => {
                for JobSubmission { job, need } in all {
                    self.submit(job, *need, now, &mut out);
                }
            }
            ManagerEvent::DependencyEnded { job, ok } => self.dependency_ended(job, ok, &mut out),
            ManagerEvent::Moved { job } => self.moved(job, now, &mut out),
            ManagerEvent::MoveFailed { job, reason } => {
                self.move_failed(job, &reason, now, &mut out)
            }
            ManagerEvent::Claimed { job, got } => self.claimed(job, &got, now),
            ManagerEvent::Resumed { job, need, placed, since, sizes } => {
                self.resumed(job, *need, &placed, since, &sizes);
            }
            ManagerEvent::ClaimFailed { job, reason, without } => {
                self.restrict(job, &without);
                self.claim_failed(job, &reason, now, &mut out)
            }
            ManagerEvent::Answer { job, change, count } => {
                self.answer(job, change, count, now, &mut out)
            }
            ManagerEvent::Held { job, change, count } => {
                self.held(job, change, count, now, &mut out)
            }
            ManagerEvent::Enlarged { job, change, cluster, count } => {
                self.enlarged(job, change, &cluster, count);
            }
            ManagerEvent::NotHeld { job, change, count, reason } => {
                self.not_held(job, change, count, &reason, now, &mut out);
            }
            ManagerEvent::Grown { job, change, count } => self.grown(job, change, count, &mut out),
            ManagerEvent::Freed { job, cluster, count, voluntary: let_go } => {
                self.freed(job, &cluster, count, let_go, &mut out);
            }
            ManagerEvent::NotForced { job, cluster, count } => {
                self.not_forced(job, &cluster, count)
            }
            ManagerEvent::RootMoved { job, cluster } => {
                if let Some(job) = self.jobs.get_mut(&job) {
                    job.root = cluster;
                }
            }
            ManagerEvent::Unheld { job, cluster, count } => {
                self.unheld(job, &cluster, count, &mut out)
            }
            ManagerEvent::RevocationsPlanned { job, cluster, count, unreplaced } => {
                if let Some((_, account)) = self.account(job, &cluster) {
                    (account.to_be_revoked, account.unreplaced) = (count, unreplaced.min(count));
                }
                self.restore(&cluster, now, &mut out);
                self.close(job, &cluster);
            }
            ManagerEvent::EfficiencyMeasured { job, efficiency, processors } => {
                if let Some(job) = self.jobs.get_mut(&job) {
                    job.benefit = Benefit::measured(efficiency, processors);
                    job.efficiency = Some(efficiency);
                    // Refusals from before the first measurement did not depend on the efficiency.
                    if efficiency
                        >= *job.refusal_efficiency.get_or_insert(efficiency) + REFUSAL_RESET
                    {
                        job.refusal_efficiency = Some(efficiency);
                        job.accounts.values_mut().for_each(|account| account.refused = 0);
                    }
                }
            }
            ManagerEvent::GrowthRequested { job, want } => self.want(job, want, now),
            ManagerEvent::MemoryRaised { job, memory } => {
                if let Some(job) = self.jobs.get_mut(&job) {
                    job.need.node.memory = memory;
                }
            }
            ManagerEvent::SizeLimited { job, most } => {
                if let Some(job) = self.jobs.get_mut(&job) {
                    job.limit = most;
                }
            }
            ManagerEvent::Ended { job } => self.ended(job, &mut out),
            ManagerEvent::Withdraw { job } => self.withdraw(job),
            ManagerEvent::Tick => {}
        }
        self.expire(now, &mut out);
        self.keep_limits(now, &mut out);
        self.claim_due(now, &mut out);
        let has_scanned = self.scan(now, polled.is_some(), &mut out);
        self.serve_head_reservation(now, &mut out);
        self.keep_reservations(&mut out);
        if let Some(cluster) = &polled {
            self.grow(cluster, now, &mut out);
        }
        self.serve_rounds(now, &mut out);
        if let Some(cluster) = polled {
            self.settle(cluster, !repeats_poll || has_scanned || !out.is_empty());
        }
        let mut auditor = std::mem::take(&mut self.auditor);
        let shortfall = self.clusters.values().find_map(|cluster| cluster.shortfall.as_ref());
        auditor.audit("malleability manager", shortfall, || self.audit());
        self.auditor = auditor;
        out
    }

    /// Time at which [`ManagerEvent::Tick`] is due, if no other event comes first.
    pub fn due(&self) -> Option<Instant> {
        if let Some(settled) = &self.settled.0 {
            return settled.until;
        }
        self.due_of_jobs().into_iter().chain(self.next_scan).chain(self.calendar_due()).min()
    }

    /// Time of the first change that a job waits for.
    fn due_of_jobs(&self) -> Option<Instant> {
        let of_job = |(_, job): (&JobId, &JobAccount)| {
            let change = job.change.as_ref().map(|change| change.until);
            let want = job.want.as_ref().and_then(|want| want.until);
            let claim = match &job.stage {
                AllocationStage::Placed { claim_at, .. } => *claim_at,
                _ => None,
            };
            change.into_iter().chain(want).chain(claim).min()
        };
        self.active_jobs().filter_map(of_job).min()
    }

    /// Computes where a job would be placed now.
    ///
    /// # Errors
    /// [`PlacementError`].
    pub fn plan(&self, need: &JobRequirements) -> Result<PlacementPlan, PlacementError> {
        let mut snapshot = self.capacities_now();
        self.adjust_capacities(need, &mut snapshot.clusters);
        let placed = place(need.placement, &need.components, &snapshot);
        placed.map_err(|no| no.explain_by_node_needs(&need.node))
    }

    /// Returns the public state of a job, if the job is known.
    pub fn job(&self, id: JobId) -> Option<JobView> {
        let job = self.jobs.get(&id)?;
        let phase = match (&job.stage, &job.change) {
            (AllocationStage::Waiting, _) => JobPhase::Waiting,
            (AllocationStage::Placed { .. }, _) => JobPhase::Placed,
            (AllocationStage::Claiming, _) => JobPhase::Claiming,
            (AllocationStage::Ending, _) => JobPhase::Ending,
            (AllocationStage::Running, None) => JobPhase::Running,
            (AllocationStage::Running, Some(change)) => match change.step.direction() {
                Direction::Grow => JobPhase::Growing,
                Direction::Shrink => JobPhase::Shrinking,
            },
        };
        let sizes = job.accounts.iter().filter(|(_, account)| account.size > 0);
        let sizes = sizes.map(|(cluster, account)| (cluster.clone(), account.size)).collect();
        let (kind, least, useful) = (job.need.kind, job.need.least(), job.need.greatest());
        let most = job.limit.map_or(useful, |limit| limit.min(useful));
        let why = self.why(id, &GridOutlook::default())?;
        Some(JobView {
            phase,
            kind,
            least,
            most,
            useful,
            sizes,
            tries: self.tries(job),
            reason: why,
        })
    }

    /// Explains a job's state, as in its [view](Self::job). Calls for many jobs share one snapshot.
    pub fn why(&self, id: JobId, snapshot: &GridOutlook) -> Option<String> {
        let job = self.jobs.get(&id)?;
        Some(match job.stage {
            AllocationStage::Waiting => self.explain_wait(id, job, snapshot),
            _ => job.why.clone(),
        })
    }

    /// The free parts of a cluster's hosts, as last reported.
    pub fn free_hosts(&self, cluster: &ClusterId) -> &[FreeHost] {
        self.clusters.get(cluster).map_or(&[], |known| &known.free_hosts)
    }

    /// Returns the requirements of a job, if the job is known.
    pub fn need(&self, id: JobId) -> Option<&JobRequirements> {
        self.jobs.get(&id).map(|job| &job.need)
    }

    /// Returns the cluster of a job's root, as last reported.
    pub fn root(&self, id: JobId) -> Option<&ClusterId> {
        self.jobs.get(&id)?.root.as_ref()
    }

    /// Returns what the manager has learned.
    pub fn memory(&self) -> &ManagerMemory {
        &self.memory
    }

    /// Continues with what an earlier manager has learned.
    pub fn recover_memory(&mut self, memory: ManagerMemory) {
        self.settled.0 = None;
        self.dirty = true;
        self.memory = memory;
    }

    /// Iterates over waiting jobs in queue order.
    pub fn queued(&self) -> impl Iterator<Item = JobId> {
        self.queue.iter()
    }

    /// Number of a cluster's processors in accounts of jobs.
    pub fn booked_processors(&self, cluster: &ClusterId) -> u32 {
        self.clusters.get(cluster).map_or(0, |cluster| cluster.booked)
    }

    /// Number of processors by which jobs of a cluster may grow.
    ///
    /// The number is bounded by idle processors above the reserve, and by the caps.
    pub fn grow_value(&self, cluster: &ClusterId) -> u32 {
        self.grow_value_with(cluster, 0)
    }

    /// The same after a release of `back` processors.
    fn grow_value_with(&self, cluster: &ClusterId, back: u32) -> u32 {
        let Some(known) = self.clusters.get(cluster).filter(|known| known.closed.is_none()) else {
            return 0;
        };
        let ManagerSettings { reserve, reserves, caps, cap, .. } = &self.settings;
        let reserve = reserves.get(cluster).unwrap_or(reserve);
        let mut value = known.idle().saturating_add(back).saturating_sub(*reserve);
        // Reserved processors are not free, even if jobs use them now.
        value = value.min(
            known.idle().saturating_add(back).saturating_sub(self.withheld_processors(cluster)),
        );
        if let Some(cap) = caps.get(cluster) {
            value = value.min(cap.saturating_add(back).saturating_sub(known.booked));
        }
        if let Some(cap) = cap {
            let all: u32 = self.clusters.values().map(|cluster| cluster.booked).sum();
            value = value.min(cap.saturating_add(back).saturating_sub(all));
        }
        value
    }

    /// Number of processors by which the reserve for local users falls short.
    fn reserve_lacks(&self, cluster: &ClusterId) -> u32 {
        let Some(known) = self.clusters.get(cluster).filter(|known| known.closed.is_none()) else {
            return 0;
        };
        let ManagerSettings { reserve, reserves, .. } = &self.settings;
        reserves.get(cluster).unwrap_or(reserve).saturating_sub(known.idle())
    }

    /// Records a poll. Returns whether the figures are those of the last one.
    fn polled(&mut self, cluster: &ClusterId, size: u32, others: u32, whole: u32) -> bool {
        let known = self.clusters.entry(cluster.clone()).or_default();
        let before = (known.size, known.others, known.whole, known.closed.take());
        (known.size, known.others, known.whole) = (size, others, whole.max(size));
        let repeats = before == (known.size, known.others, known.whole, None);
        if !repeats {
            self.last_scan = queue::LastScan::default();
        }
        for id in &self.active {
            if let Some(want) = self.jobs.get_mut(id).and_then(|job| job.want.as_mut()) {
                want.stalled = false;
            }
        }
        repeats
    }

    /// The jobs that do not wait in the queue.
    fn active_jobs(&self) -> impl Iterator<Item = (&JobId, &JobAccount)> {
        self.active.iter().filter_map(|id| self.jobs.get_key_value(id))
    }

    /// Jobs of a cluster that can be asked to grow or shrink, at any size.
    fn runners(&self, cluster: &ClusterId) -> Vec<MalleableJob> {
        let Some(known) = self.clusters.get(cluster) else { return Vec::new() };
        let none = ClusterAccount::default();
        let runner = |(&id, job): (&JobId, &JobAccount)| {
            let account = job.accounts.get(cluster).unwrap_or(&none);
            let (min, most) = job.bounds(cluster);
            let asks = job.stage == AllocationStage::Running && job.need.kind == Kind::Malleable;
            (asks && job.change.is_none()).then(|| MalleableJob {
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

    /// Finds a running job that can grow into the cluster's idle processors, or grows there now.
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
        let takes = |runner: &MalleableJob| runner.size < runner.max && runner.refused < value;
        self.runners(cluster).iter().find(|runner| takes(runner)).map(|runner| runner.job)
    }

    /// Computes the present capacities for placement.
    fn capacities_now(&self) -> CapacitySnapshot {
        let room = |(cluster, known): (&ClusterId, &ClusterUsage)| {
            let growing = || match self.settings.approach {
                Approach::Running => self.can_grow(cluster),
                Approach::Waiting => None,
            };
            let closed = known.closed.clone().or_else(|| {
                growing().map(|job| {
                    format!("its idle processors are kept for {job}, which runs and can grow")
                })
            });
            let (size, whole) = (known.size, known.whole);
            let idle = self.available(cluster, None);
            (cluster.clone(), ClusterCapacity { size, nominal_size: whole, idle, closed })
        };
        let clusters = self.clusters.iter().map(room).collect();
        CapacitySnapshot { clusters, ..self.snapshot.clone() }
    }

    fn account(
        &mut self,
        id: JobId,
        cluster: &ClusterId,
    ) -> Option<(&mut ClusterUsage, &mut ClusterAccount)> {
        let job = self.jobs.get_mut(&id)?;
        let known = self.clusters.get_mut(cluster)?;
        known.jobs.insert(id);
        Some((known, job.accounts.entry(cluster.clone()).or_default()))
    }

    /// Records the reason of a job's last change.
    fn set_reason(&mut self, id: JobId, why: String) {
        if let Some(job) = self.jobs.get_mut(&id) {
            job.why = why;
        }
    }

    /// Closes empty accounts, and removes an ended job with its last account.
    fn close(&mut self, id: JobId, cluster: &ClusterId) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let empty = job.accounts.get(cluster).is_none_or(|account| account.all() == 0);
        let placed = job.stage != AllocationStage::Ending && job.bounds.contains_key(cluster);
        if empty && !placed {
            job.accounts.remove(cluster);
            if let Some(known) = self.clusters.get_mut(cluster) {
                known.jobs.remove(&id);
            }
        }
        if job.stage == AllocationStage::Ending && job.booked() == 0 {
            self.forget(id);
        }
    }

    fn forget(&mut self, id: JobId) {
        let Some(job) = self.jobs.remove(&id) else { return };
        self.queue.remove(id);
        self.forget_dependencies(id, &job.need.after);
        self.spreading.remove(&id);
        self.active.remove(&id);
        self.planned_starts.remove(&id);
        for cluster in job.accounts.keys().chain(job.bounds.keys()) {
            if let Some(known) = self.clusters.get_mut(cluster) {
                known.jobs.remove(&id);
            }
        }
    }

    /// Checks the accounts, the queue and the reservations.
    ///
    /// # Errors
    /// Description of the first inconsistency.
    pub fn audit(&self) -> Result<(), String> {
        let mut accounts: BTreeMap<&ClusterId, u64> = BTreeMap::new();
        self.queue.audit(|id| self.jobs.get(&id).map(|job| WaitingNeed::of(&job.need)))?;
        let queued: BTreeSet<JobId> = self.queue.iter().collect();
        for (id, job) in &self.jobs {
            for (cluster, account) in &job.accounts {
                let known = self.clusters.get(cluster).is_some_and(|known| known.jobs.contains(id));
                if account.all() > 0 && !known {
                    let wrong = "and is not in the cluster's list of jobs";
                    return Err(format!("{id} has {account:?} in {cluster}, {wrong}"));
                }
                *accounts.entry(cluster).or_default() += u64::from(account.all());
            }
            let is_queued = queued.contains(id);
            if is_queued != (job.stage == AllocationStage::Waiting) {
                let (is, stage) = (if is_queued { "is" } else { "is not" }, &job.stage);
                return Err(format!("{id} {is} in the queue, and is {stage:?}"));
            }
            if self.active.contains(id) != (job.stage != AllocationStage::Waiting) {
                return Err(format!("the list of active jobs is wrong about {id}"));
            }
            if job.stage == AllocationStage::Waiting && job.change.is_some() {
                return Err(format!("{id} waits, and changes its size"));
            }
        }
        for (cluster, known) in &self.clusters {
            let sum = accounts.remove(cluster).unwrap_or(0);
            if sum != u64::from(known.booked) {
                let booked = known.booked;
                return Err(format!(
                    "{cluster} has {booked} booked processors, and its accounts have {sum}"
                ));
            }
        }
        self.calendar.audit()
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_backfill;
#[cfg(test)]
mod tests_random;
#[cfg(test)]
mod tests_table;
