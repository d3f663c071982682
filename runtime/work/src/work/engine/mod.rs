//! One node's part in a job: connects the pool, the steal protocol, the shared objects and the
//! network.
//!
//! It knows no roles and no actors: it gets views and reports statistics. Frames are handled on the
//! endpoint's thread, and results are sent from compute threads; neither waits for the other.

mod absent;
mod inbox;
mod leased_tasks;
mod leave;
mod losses;
mod mail;
mod observer;
mod report;
mod reuse;
mod root;
mod state;
mod stolen_tasks;

use absent::{answer, refuse};
use state::{Adopter, ClientMessages, EngineState, Stolen, is_below};

pub use absent::AbsentNodeInbox;
pub use report::{EngineReport, EngineWatch, TableSizes, WaitGraph};
pub use root::{FinishedTask, RootEnd, RootResults, StopRoot};

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::core::LeaseId;
use super::core::remote_task::{Encoded, Export};
use super::core::shared::Incoming;
use super::core::tree::{Base, root_base};
use super::metering::{Metering, MeteringSettings};
use super::observer::{CachedResult, PoolObserver, WakeRoot};
use super::outcome::{Failure, Halt, Outcome, Stop, StopCause};
use super::pool::{Pool, Seam};
use super::pool_config::PoolConfig;
use super::recover::messages::{Adopt, Audit, Handover, Orphans};
use super::recover::{
    KeptOutput, PartialResults, ResultLocation, ResultLocations, Results, RootStart, StoredResult,
    TaskIdentity,
};
use super::registry::{JobEntry, Registry};
use super::report::{ProgressReport, SavedRoot};
use super::solo::into_failure;
use super::steal::{
    Abandon, StealPolicy, StealReply, StealRequest, StealScope, StolenTask, TaskOutcome,
    TaskResult, TaskReturn, Thief, ThiefAction, WaitingThieves, WorkHint,
};
use crate::event::{Event, Recorder, StolenTaskEnd};
use crate::id::{ClusterId, Incarnation, JobId, NodeId, Peer, TaskPath};
use crate::membership::View;
use crate::memory::MemoryBudget;
use crate::meter::{
    BenchmarkOffer, BenchmarkSpec, Counters, Histograms, PeriodMeasure, Statistics, ThreadState,
};
use crate::net::{Class, LinkError, Net, NetworkHandler, SendError, Undelivered};
use crate::random::SplitMix;
use crate::share::{
    Fact, HeldVersions, Needed, ObjectAction as ShareAction, ShareConfig, SharedObjects as Objects,
    Ticket, Unavailable,
};
use crate::spmd::post::Dispatcher;
use crate::wire::{self, Kind};

use losses::Losses;
pub use losses::{LOSSES_MAX, LeasedTask, NodeLosses};
use mail::new_post;

/// The maximum number of tasks in one message about orphans, and of leases in one audit; both are
/// below the kinds' limits.
const ORPHANS_PER_MESSAGE: usize = 1000;
const LEASES_PER_MESSAGE: usize = 1000;

/// The interval at which a recomputed parent asks for an adopted task, and the number of answers in
/// a row that may show no progress. Then the parent runs the task itself.
///
/// A wait for a task that started *earlier* can close a cycle of waits, which stealing alone
/// cannot: the task may wait for one below the waiting parent. No task in a cycle makes progress,
/// so it is broken here. The interval is short, since all others wait meanwhile. With a second,
/// departures cost a job of forty nodes an iteration of six seconds instead of three. A task that
/// waits for another reason is taken over with its partial results.
const ASK_INTERVAL: Duration = Duration::from_millis(250);
const STALLED_MAX: u32 = 3;

/// The pause in requests after a task that may not run on this node: see `State::may_run`.
const REFUSAL_PAUSE: Duration = Duration::from_millis(50);

/// The maximum number of nodes through which partial results follow an ancestor.
const HOPS_MAX: u32 = 32;

/// The maximum number of pointers sent with a stolen task that was started earlier; others are
/// computed again.
const LOCATIONS_PER_TASK: usize = 4000;

/// The time for which a task of another node may wait for a thread here while thieves get nothing.
const START_WAIT_MAX: Duration = Duration::from_millis(100);

/// The time that a leaving node stays after its last tree, if it named successors, to forward
/// messages under way.
const LINGER: Duration = Duration::from_millis(500);
/// The interval at which a node that is short of memory looks whether it still is.
const SHORT_INTERVAL: Duration = Duration::from_millis(100);

/// The time after which a leaving node gives tasks below its unfinished ones to their owners.
const GIVE_DELAY: Duration = Duration::from_millis(500);

/// The time from the departure of a member that left in order to the reclaiming of its leases.
const DEPARTED_DELAY: Duration = Duration::from_secs(3);

/// The interval at which a leaving node checks whether it is done.
const LEAVE_CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// The interval at which a node asks the holder of an awaited task for it. The message that ends a
/// lease can be lost without a broken link, since its sender may leave the job meanwhile.
const AUDIT_INTERVAL: Duration = Duration::from_secs(10);
/// The number of such intervals in a row after which a task of a member without a link is
/// reclaimed. The membership keeps such a member as long as others reach it.
const CUT_OFF_AUDITS: u32 = 12;

/// The interval of attempts to reach a member whose link is down.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// The minimum interval of ticks for long tasks, for any floor.
const TICK_MIN: Duration = Duration::from_millis(1);

/// The interval of attempts to send frames for which the network had no room.
const RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// The delay after which nodes with free threads are called to take processes, and the interval of
/// later calls.
const CALL_DELAY: Duration = Duration::from_millis(200);
const CALL_INTERVAL: Duration = Duration::from_secs(1);

/// The configuration of an engine.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// The job to work for.
    pub job: JobId,
    /// The configuration of the pool.
    pub pool: PoolConfig,
    /// The rule by which victims are chosen.
    pub policy: StealPolicy,
    /// The settings of the shared objects.
    pub share: ShareConfig,
    /// The measurements on this node; `None` by default.
    pub metering: Option<MeteringSettings>,
    /// The bound in bytes on finished results, kept in case the node they were computed for is
    /// lost. With 0 none are kept, and tasks of lost owners are stopped.
    pub results_bytes: usize,
    /// The memory of this process, if it is limited. It bounds what is kept for others. While
    /// memory is short, the engine asks for tasks only when it has none of other nodes. It drops
    /// results that their owners have, and refuses messages of clients.
    pub memory: Option<Arc<MemoryBudget>>,
}

/// The default of [`EngineConfig::results_bytes`].
pub const RESULTS_BYTES: usize = 64 << 20;

/// The most bytes of messages of a job's client that wait for its root. One message may be longer.
pub const CLIENT_MESSAGES_BYTES: usize = 64 << 20;

impl EngineConfig {
    /// A bound in bytes on one kind of kept data, from the usual one and the memory.
    fn bound(&self, usual: usize) -> usize {
        self.memory.as_ref().map_or(usual, |memory| memory.bound(usual))
    }
}

/// One node's part in one job. Cheap to clone.
#[derive(Clone)]
pub struct Engine(Arc<EngineCore>);

/// The callback for reports of the job's root; called on compute threads.
pub type ReportHandler = Box<dyn Fn(ProgressReport) + Send + Sync>;

struct EngineCore {
    job: JobId,
    me: Peer,
    net: Net,
    recorder: Recorder,
    notes: ReportHandler,
    pool: OnceLock<Pool>,
    objects: OnceLock<Objects>,
    post: Arc<Dispatcher>,
    metering: Option<Metering>,
    memory: Option<Arc<MemoryBudget>>,
    state: Mutex<EngineState>,
    /// The interval of ticks for long tasks; `None` if their outputs are not kept.
    tick_interval: Option<Duration>,
    /// Wakes the driver.
    driver: Notify,
    /// Whether there is work for waiting thieves.
    surplus: AtomicBool,
    closing: AtomicBool,
    threads_left: AtomicUsize,
    ended: Notify,
    next_deque: AtomicUsize,
    abandoned_leases: AtomicU64,
    /// The bytes that the links had carried before this job.
    bytes_before: BTreeMap<NodeId, u64>,
    /// The last state, for observers of an ended engine.
    last_report: Arc<OnceLock<EngineReport>>,
}

impl Engine {
    /// Starts the engine and its compute threads.
    ///
    /// Frames of the kinds `STEAL_REQUEST..=PROCESS` and `OBJECT_UPDATE..=OBJECT_MERGE` must be
    /// routed to [`Engine::inbox`], and [`Engine::drive`] must run on the endpoint's thread.
    ///
    /// # Errors
    /// The system provides no thread.
    pub fn start(
        config: &EngineConfig,
        registry: Arc<Registry>,
        net: Net,
        seam: Arc<dyn Seam>,
        recorder: Recorder,
        notes: ReportHandler,
    ) -> std::io::Result<Self> {
        let me = net.me().clone();
        let thief =
            Thief::new(me.node.clone(), me.cluster.clone(), config.policy, config.pool.seed);
        let state = EngineState {
            thief,
            waiting_thieves: WaitingThieves::new(config.policy),
            view: View::default(),
            stolen: BTreeMap::new(),
            waiting: BTreeMap::new(),
            results: Results::new(config.bound(config.results_bytes)),
            known_results: ResultLocations::default(),
            leaving: false,
            moved: BTreeMap::new(),
            returned_tasks: BTreeMap::new(),
            root: None,
            roots: 0,
            adopted: BTreeMap::new(),
            audits_due: BTreeMap::new(),
            suspected: BTreeSet::new(),
            probe_at: None,
            parked: BTreeMap::new(),
            next_ticket: 0,
            losses: Losses::default(),
            dead: BTreeMap::new(),
            reclaims_due: Vec::new(),
            former: BTreeMap::new(),
            early: state::EarlyFrames::new(config.bound(state::EARLY_BYTES)),
            doubled: 0,
            event_counts: BTreeMap::new(),
            unsent: mail::Unsent::default(),
            counters: Counters::default(),
            stolen_from: BTreeMap::new(),
            latencies: Histograms::default(),
            tick_at: None,
            thief_wake: None,
            ask_again_at: None,
            share_wake: None,
            calls_at: None,
            refused: None,
            client_messages: ClientMessages::default(),
        };
        let bytes_before = net.bytes_out().into_iter().collect();
        let threads = config.pool.threads.max(1);
        // Modelled time and real time cannot be measured together.
        let real = seam.is_real() && config.pool.fork_time.is_none();
        let metering = config.metering.map(|settings| {
            Metering::new(settings, me.cluster.clone(), threads as u32, real, Instant::now())
        });
        // Without a cache of results no returned output is used.
        let keeps = config.results_bytes > 0 && !config.pool.work_floor.is_zero();
        let work_floor = if keeps { config.pool.work_floor } else { Duration::ZERO };
        let inner = Arc::new_cyclic(|weak: &Weak<EngineCore>| EngineCore {
            job: config.job,
            me: me.clone(),
            net,
            recorder,
            notes,
            pool: OnceLock::new(),
            objects: OnceLock::new(),
            post: Arc::new(new_post(config.job, me.clone(), weak.clone())),
            metering,
            memory: config.memory.clone(),
            state: Mutex::new(state),
            tick_interval: keeps.then(|| (work_floor / 2).max(TICK_MIN)),
            driver: Notify::new(),
            surplus: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            threads_left: AtomicUsize::new(threads),
            ended: Notify::new(),
            next_deque: AtomicUsize::new(0),
            abandoned_leases: AtomicU64::new(0),
            bytes_before,
            last_report: Arc::default(),
        });
        // The engine owns the store, so the store's callback must not keep the engine alive.
        let weak = Arc::downgrade(&inner);
        let handler = Arc::new(move |action: ShareAction| {
            if let Some(inner) = weak.upgrade() {
                inner.execute_action(action);
            }
        });
        let types = registry.objects().clone();
        let objects = Objects::new(me.node, config.job, types, config.share.clone(), handler);
        if let Some(pool) = inner.net.segments() {
            objects.set_pool(pool);
        }
        // Both are set only here.
        let _ = inner.objects.set(objects.clone());
        let observer = Arc::new(observer::EngineObserver {
            inner: Arc::downgrade(&inner),
            objects,
            post: inner.post.clone(),
        });
        let metered = config.metering.is_some();
        // An incarnation may leave a job and join it again. A late result of a lease of its former
        // engine must then match no lease of this one.
        let age = inner.recorder.elapsed(Instant::now()).as_micros() as u64;
        // The lower half of a well mixed number is as good as the whole.
        let first_lease_generation = SplitMix(me.incarnation.0 ^ age.rotate_left(32)).next() as u32;
        let pool_config =
            PoolConfig { metered, work_floor, first_lease_generation, ..config.pool.clone() };
        let pool = Pool::start(&pool_config, registry, seam, observer)?;
        let _ = inner.pool.set(pool);
        inner.driver.notify_one();
        Ok(Self(inner))
    }

    /// The receiver of the network's frames.
    pub fn inbox(&self) -> Arc<dyn NetworkHandler> {
        self.0.clone()
    }

    /// Handles timers and wake-ups until [`Engine::close`]; spawn it on the endpoint's thread.
    pub async fn drive(self) {
        loop {
            let wake = self.0.pump();
            if self.0.closing.load(Ordering::Acquire) {
                return;
            }
            let sleep = async {
                match wake {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = self.0.driver.notified() => {}
                () = sleep => {}
            }
        }
    }

    /// Sets the members of the job and their addresses. Nodes that are no longer members, or have a
    /// new incarnation, are lost: their tasks are queued again, and their results are announced for
    /// reuse.
    pub fn set_view(&self, view: &View) {
        self.0.net.follow(&view.members);
        self.0.net.set_relays(&view.cluster_coordinators);
        let of = |id: &ClusterId| self.0.net.expected(id).map(|policy| policy.steal_timeout());
        let clusters = view.members.clusters().map(|(cluster, _)| cluster);
        let timeouts = clusters.filter_map(|cluster| Some((cluster.clone(), of(cluster)?)));
        let timeouts = timeouts.collect();
        let (gone, returned, early) = {
            let mut state = self.0.state();
            let old = std::mem::replace(&mut state.view, view.clone());
            state.thief.set_timeouts(timeouts);
            state.thief.view(view);
            state.waiting_thieves.retain(|node| view.members.contains_key(node));
            let gone = view.members.lost_since(&old.members);
            // Messages of a member that left in order may still be under way.
            let left = gone.iter().filter(|(_, member)| member.leaving);
            let at = Instant::now() + DEPARTED_DELAY;
            for (node, member) in left {
                let (node, incarnation) = ((*node).clone(), member.incarnation);
                let cluster = member.cluster.clone();
                state.former.insert(node.clone(), incarnation);
                state.reclaims_due.push((at, Peer { node, incarnation, cluster }));
            }
            let dead = gone.iter().filter(|(_, member)| !member.leaving);
            state.dead.extend(dead.map(|(node, member)| ((*node).clone(), member.incarnation)));
            let is_member = |(node, incarnation): (&NodeId, &Incarnation)| {
                view.members.get(node).is_some_and(|member| member.incarnation == *incarnation)
            };
            let returned: Vec<NodeId> = state
                .dead
                .iter()
                .filter(|dead| is_member(*dead))
                .map(|(node, _)| node.clone())
                .collect();
            state.dead.retain(|node, incarnation| {
                view.members.get(node).is_none_or(|member| member.incarnation > *incarnation)
            });
            let gone: Vec<(NodeId, bool)> =
                gone.into_iter().map(|(node, member)| (node.clone(), member.leaving)).collect();
            let early = state.early.ready(view);
            (gone, returned, early)
        };
        self.0.objects_ref().view(view);
        for (node, has_left) in gone {
            self.0.lost(&node, has_left, "it is no member any more");
        }
        // After the lost tasks are queued again: processes among them are called for again.
        self.0.post.apply_view(view);
        if self.0.post.has_groups() {
            self.0.call_free_nodes_soon();
        }
        self.0.report_forgotten(&returned);
        for (peer, kind, body) in early {
            self.0.frame(&peer, kind, body);
        }
        self.0.driver.notify_one();
    }

    /// Returns all work of other nodes, with partial results, and accepts no more. Unstarted tasks
    /// return at once, running ones at their next call into the runtime. Completes when no work is
    /// left; if the caller stops waiting, the rest is lost with the node.
    ///
    /// A running task may take long until that call. After half a second, the unstarted tasks
    /// below it are given away.
    pub async fn leave(&self) {
        self.0.leave();
        let mut gives_at = Some(Instant::now() + GIVE_DELAY);
        let mut empty_since: Option<Instant> = None;
        loop {
            let now = Instant::now();
            if gives_at.take_if(|at| *at <= now).is_some() {
                self.0.give_unstarted();
            }
            match self.0.drained() {
                Some(passes_on) => {
                    let since = *empty_since.get_or_insert(now);
                    if !passes_on || now >= since + LINGER {
                        return;
                    }
                }
                None => empty_since = None,
            }
            tokio::time::sleep(LEAVE_CHECK_INTERVAL).await;
        }
    }

    /// The tasks that former members had from this node, since the last call: at most
    /// [`LOSSES_MAX`]. Members that left in order are included if they kept any.
    pub fn take_node_losses(&self) -> Vec<NodeLosses> {
        self.0.state().losses.take()
    }

    /// Refuses the last request of the job's root, which runs here, for nodes: [`Context::refused`]
    /// returns the reason.
    ///
    /// [`Context::refused`]: crate::work::Context::refused
    pub fn refuse_nodes(&self, why: &str) {
        self.0.state().refused = Some(why.to_owned());
    }

    /// Gives the job's root, which runs here, a message of the job's client. Returns whether there
    /// is room for it: at most [`CLIENT_MESSAGES_BYTES`] wait, a part of the node's memory, and one
    /// message while memory is short.
    pub fn deliver_client_message(&self, body: Bytes) -> bool {
        let memory = self.0.memory.as_ref();
        let most = memory.map_or(CLIENT_MESSAGES_BYTES, |it| it.bound(CLIENT_MESSAGES_BYTES));
        let wake = {
            let mut state = self.0.state();
            let messages = &mut state.client_messages;
            let is_full = self.0.is_short() || messages.bytes + body.len() > most;
            if !messages.waiting.is_empty() && is_full {
                return false;
            }
            messages.bytes += body.len();
            messages.waiting.push_back(body);
            messages.wake.clone()
        };
        if let Some(wake) = wake {
            wake();
        }
        true
    }

    /// The counters and measurements since the start; `latencies` adds those since the last call.
    pub fn statistics(&self, latencies: bool) -> Statistics {
        self.0.statistics(latencies)
    }

    /// The number of tasks that this node has stolen from nodes of each cluster.
    pub fn stolen_from(&self) -> BTreeMap<ClusterId, u64> {
        self.0.state().stolen_from.clone()
    }

    /// Tasks of other nodes that run here, at most `max`: the name and the path of each, and the
    /// node that it was stolen from.
    pub fn stolen_tasks(&self, max: usize) -> Vec<(String, TaskPath, NodeId)> {
        let state = self.0.state();
        let stolen = state.stolen.values().take(max);
        let describe = |Stolen { task, owner, .. }: &Stolen| {
            (task.name.clone(), task.path.clone(), owner.node.clone())
        };
        stolen.map(describe).collect()
    }

    /// Records the time from a message of this job to its answer.
    pub fn round_trip(&self, time: Duration) {
        self.0.state().latencies.round_trip.record(time);
    }

    /// Ends a statistics period and returns its measurements. Call it once a period, on the
    /// endpoint's thread. In static mode nothing is measured, and the result is empty.
    pub fn end_period(&self, now: Instant) -> PeriodMeasure {
        let Some(metering) = &self.0.metering else { return PeriodMeasure::default() };
        let measure = metering.end_period(self.0.pool_ref(), &self.0.net.round_trips(), now);
        // A benchmark may have become due.
        self.0.driver.notify_one();
        measure
    }

    /// Sets the job's benchmark, the same on all its nodes. Ignored if nothing is measured.
    pub fn set_benchmark(&self, spec: BenchmarkSpec) {
        if let Some(metering) = &self.0.metering {
            metering.benchmark(spec, self.0.pool_ref(), Instant::now());
            self.0.driver.notify_one();
        }
    }

    /// Measures the node's speed again, if no work units give it: the job's efficiency is too
    /// uncertain for a decision.
    pub fn measure_speed_again(&self) {
        if let Some(metering) = &self.0.metering {
            metering.measure_again(self.0.pool_ref(), Instant::now());
            self.0.driver.notify_one();
        }
    }

    /// A benchmark made of tasks that ran here, once there are enough, until the job has one.
    pub fn benchmark_candidate(&self) -> Option<BenchmarkSpec> {
        self.0.metering.as_ref()?.candidate()
    }

    /// Halts all work and ends the threads, without waiting for them.
    pub fn close(&self) {
        self.0.closing.store(true, Ordering::Release);
        if let Some(metering) = &self.0.metering {
            metering.leave(self.0.pool_ref(), Instant::now());
        }
        self.0.pool_ref().close();
        // The job's view determines the relays of clusters.
        self.0.net.set_relays(&BTreeMap::new());
        self.0.driver.notify_one();
    }

    /// Completes when all compute threads have ended, after [`Engine::close`].
    pub async fn closed(&self) {
        while self.0.threads_left.load(Ordering::Acquire) > 0 {
            let ended = self.0.ended.notified();
            if self.0.threads_left.load(Ordering::Acquire) > 0 {
                ended.await;
            }
        }
    }

    /// The shared objects of this node.
    pub fn objects(&self) -> &Objects {
        self.0.objects_ref()
    }
}

impl EngineCore {
    fn state(&self) -> MutexGuard<'_, EngineState> {
        // Steps under the lock leave the state consistent, so a poisoned lock is safe to use.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pool_ref(&self) -> &Pool {
        self.pool.get().expect("set before the engine is handed out")
    }

    fn objects_ref(&self) -> &Objects {
        self.objects.get().expect("set before the engine is handed out")
    }

    /// Sends a message, or keeps it until there is room. The network reports the loss of the node.
    fn send(&self, to: &NodeId, kind: Kind, message: &impl Serialize) {
        match wire::encode(kind, message) {
            Ok(body) => self.send_encoded(to, Class::Steal, kind, body),
            Err(error) => tracing::error!(%error, ?kind, "a message cannot be encoded"),
        }
    }

    fn send_encoded(&self, to: &NodeId, class: Class, kind: Kind, body: Bytes) {
        match self.net.send(to, class, kind, body.clone()) {
            Ok(()) => {}
            // Processes learn of each other from the group's root, which may know a node before
            // this one does.
            Err(SendError::Unknown(_)) if kind == Kind::PROCESS => {
                self.keep_frame(to, class, kind, body)
            }
            Err(SendError::Full(_)) => self.keep_frame(to, class, kind, body),
            Err(error) => tracing::debug!(%error, to = %to, ?kind, "a message was not sent"),
        }
    }

    /// Handles all due timers. Returns the time of the next one.
    fn pump(&self) -> Option<Instant> {
        let pool = self.pool.get()?;
        pool.forget_halted();
        let now = Instant::now();
        let mut wake = self.resend(now);
        if self.state().share_wake.is_some_and(|at| at <= now) {
            self.state().share_wake = None;
            self.objects_ref().tick();
        }
        let hint = self.hint_waiting(pool, now);
        let (probe, audit) = (self.probe(now), self.audit_awaited(now));
        let calls = self.call_free_nodes(now);
        let reclaims = self.reclaim_due(now);
        let ask = self.ask_adopted(now);
        let timers = [probe, audit, reclaims, ask, self.tick(pool, now), hint, calls];
        for at in timers.into_iter().flatten() {
            wake = Some(wake.map_or(at, |wake| wake.min(at)));
        }
        if let Some(metering) = &self.metering {
            let at = metering.pump(pool, now);
            wake = Some(wake.map_or(at, |wake| wake.min(at)));
        }
        let is_short = self.is_short();
        if is_short {
            self.state().results.drop_claimed();
            let at = now + SHORT_INTERVAL;
            wake = Some(wake.map_or(at, |wake| wake.min(at)));
        }
        // An unreachable victim frees its lane for another: at most all of them in a row.
        for _ in 0..64 {
            let awaited: Vec<(TaskPath, NodeId)> =
                pool.awaited().into_iter().map(|(_, path, peer)| (path, peer.node)).collect();
            let actions = {
                let mut state = self.state();
                let has_room = !is_short || state.stolen.is_empty();
                let idle = has_room && pool.free_capacity() > state.waiting.len() && !state.leaving;
                // The victim of a task that may not run here would offer it again at once.
                let pause = state.ask_again_at.filter(|at| now < *at);
                let asks = pause.is_none() && !state.leaving && has_room;
                let awaited = if asks { awaited } else { Vec::new() };
                state.thief.set_idle(idle && pause.is_none());
                state.thief_wake = None;
                if let Some(at) = pause.filter(|_| idle) {
                    wake = Some(wake.map_or(at, |wake| wake.min(at)));
                }
                state.thief.pump(&awaited, now)
            };
            let mut unreachable = false;
            for action in actions {
                match action {
                    ThiefAction::Request { to, id, scope, awaited } => {
                        unreachable |= !self.send_request(&to, id, scope, awaited);
                    }
                    ThiefAction::Waiting(state) => pool.label_waiting(state),
                    ThiefAction::Wake(at) => self.state().thief_wake = Some(at),
                }
            }
            if !unreachable {
                break;
            }
        }
        // A task that waits for objects determines the state, since less work is requested because
        // of it.
        let fetches = !self.state().waiting.is_empty();
        let fetched = fetches.then(|| self.objects_ref().waits_wide()).flatten();
        let fetched =
            fetched.map(|wide| if wide { ThreadState::WaitWide } else { ThreadState::WaitLocal });
        let state = self.state();
        if let Some(waiting) = fetched.or(state.thief.waiting()) {
            // This includes threads that ran out of work after the others.
            pool.label_waiting(waiting);
        }
        for at in [state.thief_wake, state.share_wake].into_iter().flatten() {
            wake = Some(wake.map_or(at, |wake| wake.min(at)));
        }
        wake
    }

    /// Whether the memory of this process is short.
    fn is_short(&self) -> bool {
        self.memory.as_ref().is_some_and(|memory| memory.is_short())
    }

    /// Sends ticks every half of the floor while tasks of other nodes are here, so that threads
    /// find long ones. It pauses while no thread has taken the last tick; `tick_taken` then wakes
    /// the driver. Returns the time of the next tick.
    fn tick(&self, pool: &Pool, now: Instant) -> Option<Instant> {
        let every = self.tick_interval?;
        let mut state = self.state();
        if state.stolen.is_empty() {
            state.tick_at = None;
        } else if state.tick_at.is_none_or(|at| at <= now) {
            state.tick_at = pool.tick().then(|| now + every);
        }
        state.tick_at
    }

    /// Sends a request for work. Returns false if the victim cannot be reached.
    fn send_request(
        &self,
        to: &NodeId,
        id: u32,
        scope: StealScope,
        awaited: Option<TaskPath>,
    ) -> bool {
        let request = StealRequest { job: self.job, id, awaited };
        let sent = match wire::encode(Kind::STEAL_REQUEST, &request) {
            Ok(body) => self.net.send(to, Class::Steal, Kind::STEAL_REQUEST, body).is_ok(),
            Err(_) => false,
        };
        let mut state = self.state();
        if sent {
            counts_of(&mut state.counters, scope).requests += 1;
        } else {
            state.thief.unreachable(to);
        }
        sent
    }

    /// Sends hints to waiting thieves when there is work. Returns the time of the next check.
    fn hint_waiting(&self, pool: &Pool, now: Instant) -> Option<Instant> {
        let notified = self.surplus.swap(false, Ordering::AcqRel);
        if !self.state().waiting_thieves.has_waiting() {
            return None;
        }
        // Without work, the pool notifies the engine of the next.
        let tasks = match pool.surplus() {
            0 if !notified && !pool.request_surplus_notice() => return None,
            tasks => tasks.max(1),
        };
        let thieves = self.state().waiting_thieves.take_thieves_to_hint(tasks, now);
        for thief in thieves {
            self.send(&thief, Kind::WORK_HINT, &WorkHint { job: self.job });
        }
        self.state().waiting_thieves.next_check(now)
    }

    /// Calls nodes with free threads after the delay in which most find the processes themselves.
    fn call_free_nodes_soon(&self) {
        let soon = Instant::now() + CALL_DELAY;
        let mut state = self.state();
        state.calls_at = Some(state.calls_at.map_or(soon, |at| at.min(soon)));
        drop(state);
        self.driver.notify_one();
    }

    /// Calls nodes with free threads to take unclaimed processes, at intervals while processes of a
    /// group may be unclaimed. Returns the time of the next check.
    ///
    /// A node asks only a few others for work, and often none of them has processes.
    fn call_free_nodes(&self, now: Instant) -> Option<Instant> {
        let at = self.state().calls_at?;
        if now < at {
            return Some(at);
        }
        let next = self.post.has_groups().then(|| now + CALL_INTERVAL);
        self.state().calls_at = next;
        for node in self.post.nodes_to_call() {
            self.send(&node, Kind::WORK_HINT, &WorkHint { job: self.job });
        }
        next
    }

    // --- shared objects ---

    fn execute_action(&self, action: ShareAction) {
        match action {
            ShareAction::Send { to, class, kind, body } => {
                match self.net.send(&to, class, kind, body.clone()) {
                    Ok(()) => {}
                    Err(SendError::Full(_)) => self.objects_ref().unsent(to, kind, body),
                    Err(error) => tracing::debug!(%error, %to, ?kind, "a message was not sent"),
                }
            }
            ShareAction::Ready { ticket, held } => self.objects_ready(ticket.0, held),
            ShareAction::Failed { ticket, why } => {
                let mut state = self.state();
                let Some((owner, task)) = state.waiting.remove(&ticket.0) else { return };
                if let Unavailable::NoHolder { .. } = why {
                    // The object is missing only here and now: the task's owner or other thieves
                    // may have it.
                    state.ask_again_at = Some(Instant::now() + REFUSAL_PAUSE);
                    state.count_event("a task is returned for lack of objects");
                    drop(state);
                    tracing::info!(%why, owner = %owner.node, "returned a task without objects");
                    return self.return_unstarted(&owner, task);
                }
                drop(state);
                self.fail_unstarted(&owner, &task.path, task.lease, job_failure(why.to_string()));
            }
            ShareAction::Wake(at) => {
                let mut state = self.state();
                state.share_wake = Some(state.share_wake.map_or(at, |wake| wake.min(at)));
                drop(state);
                self.driver.notify_one();
            }
            ShareAction::Event(fact) => self.record_fact(fact),
        }
    }

    fn record_fact(&self, fact: Fact) {
        match fact {
            Fact::Published { key, version, delta, bytes } => {
                self.recorder.record(Event::ObjectPublished {
                    job: self.job,
                    object: key.name,
                    part: key.part,
                    epoch: version.epoch,
                    version: version.n,
                    object_bytes: bytes,
                    delta,
                });
            }
            Fact::Fetched { key, version, from, wide } => {
                self.recorder.record(Event::ObjectFetched {
                    job: self.job,
                    object: key.name,
                    part: key.part,
                    epoch: version.epoch,
                    version: version.n,
                    from,
                    scope: if wide { StealScope::Wide } else { StealScope::Local },
                });
            }
            other => tracing::debug!(fact = ?other, "shared objects"),
        }
    }

    fn statistics(&self, latencies: bool) -> Statistics {
        let pool = self.pool_ref();
        let sent = self.net.bytes_out();
        let mut state = self.state();
        let mut counters = state.counters;
        let pool_counts = pool.counts();
        counters.cpu_us = pool.cpu().map_or(0, |cpu| cpu.as_micros().try_into().unwrap_or(0));
        counters.tasks.spawned = pool_counts.spawned;
        counters.tasks.executed = pool_counts.executed;
        counters.tasks.kept = pool_counts.kept;
        counters.work = pool.work();
        counters.tasks.stolen_local += pool_counts.taken_here;
        for (node, bytes) in sent {
            let Some(cluster) = state.view.cluster_of(&node) else { continue };
            let bytes = bytes - self.bytes_before.get(&node).copied().unwrap_or(0).min(bytes);
            let scope = if *cluster == self.me.cluster {
                &mut counters.bytes.local
            } else {
                &mut counters.bytes.wide
            };
            *scope += bytes;
        }
        let [local, wide] = state.thief.timeouts();
        counters.steals.local.timeouts = local;
        counters.steals.wide.timeouts = wide;
        let latencies = if latencies { state.latencies.take_deltas() } else { Default::default() };
        Statistics { threads: pool.threads(), counters, times: pool.times(), latencies }
    }
}

fn counts_of(counters: &mut Counters, scope: StealScope) -> &mut crate::meter::StealCounts {
    match scope {
        StealScope::Local => &mut counters.steals.local,
        StealScope::Wide => &mut counters.steals.wide,
    }
}

fn job_failure(message: String) -> Failure {
    super::core::worker::job_failure(message)
}
