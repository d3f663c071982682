//! One node's part in a job: ties the pool, the steal protocol, the shared objects and the network together.
//!
//! Knows no role and no actor: it is told views and reports statistics. Frames are handled on the endpoint's thread, results
//! leave from compute threads; nobody waits for anybody.

mod absent;
mod books;
mod host;
mod inbox;
mod leave;
mod losses;
mod mail;
mod reuse;
mod root;
mod state;
mod thief;
mod victim;

use absent::{answer, refuse};
use state::{Adopter, State, Stolen, is_below};

pub use absent::Absent;
pub use books::{Books, EngineWatch, Tables, Waits};
pub use root::{FinishedTask, RootEnd, RootLeft, StopRoot};

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::core::LeaseId;
use super::core::slot::Base;
use super::core::worker::root_base;
use super::metering::{Metering, MeteringSettings};
use super::pool::{Encoded, Host, Note, Pool, PoolConfig, Recalled, SavedRoot, Seam};
use super::recover::messages::{Adopt, Audit, Handover, Orphans};
use super::recover::{Finished, Identity, Kept, Left, Place, Results, Start, Whereabouts};
use super::registry::{JobEntry, Registry};
use super::solo::into_failure;
use super::steal::{
    Abandon, Scope, StealPolicy, StealReply, StealRequest, StolenTask, TaskOutcome, TaskResult,
    TaskReturn, Thief, ThiefAction, Victim, WorkHint,
};
use super::task::{Cause, Failure, Halt, Outcome, Stop};
use crate::event::{self, Event, Recorder, TaskEnd};
use crate::id::{ClusterId, Incarnation, JobId, NodeId, Peer, TaskPath};
use crate::membership::View;
use crate::meter::{
    BenchmarkSpec, Counters, Histograms, Offer, PeriodMeasure, Statistics, ThreadState,
};
use crate::net::{Class, Inbox, Net, SendError, Undelivered, Why};
use crate::random::SplitMix;
use crate::share::{
    Action as ShareAction, Fact, Held, Needed, ShareConfig, Shared as Objects, Ticket, Unavailable,
};
use crate::spmd::post::Post;
use crate::wire::{self, Kind};

use losses::Losses;
pub use losses::{HeldTask, LOSSES_MAX, Loss};
use mail::post_of;

/// Tasks named by one message about orphans, and leases by one audit: well under the kinds' caps.
const ORPHANS_A_MESSAGE: usize = 1000;
const LEASES_A_MESSAGE: usize = 1000;

/// How often a recomputed parent asks after a running task that it took over, and how many times in a row the task may be
/// found not to advance before the parent runs it itself. A wait for a task that started *earlier* can close a circle of
/// waits, which stealing alone cannot: the task may wait for one that lies under the waiting parent. In a circle nothing
/// advances, so it breaks here. Soon, for all others wait meanwhile (with a second each, nodes that left cost a job of forty an
/// iteration of six seconds in place of three); what waits for another reason is taken over with all that was done of it.
const ASK_AFTER: Duration = Duration::from_millis(250);
const STALLED_MAX: u32 = 3;

/// A node that was offered a task which may not run there asks nobody for so long: see `State::may_take`.
const REFUSED_PAUSE: Duration = Duration::from_millis(50);

/// How often what was done of a task follows one that it lies under, from node to node.
const HOPS_MAX: u32 = 32;

/// Places told with a stolen task that was begun before; what is not told is computed again.
const PLACES_A_TASK: usize = 4000;

/// A leaving node that told others of heirs stays so long after its last tree has ended, to pass on what crosses that word.
const LINGER: Duration = Duration::from_millis(500);
/// How often it looks whether it is done.
const LEAVE_LOOK: Duration = Duration::from_millis(10);

/// The holder of a task that a thread here waits for is asked after it this often. The message that
/// ends a lease can be lost without a broken link: its sender may leave the job meanwhile.
const AUDIT_INTERVAL: Duration = Duration::from_secs(10);
/// A task of a member without a link is taken back after this many intervals in a row. The membership
/// may keep such a member for as long as others reach it.
const CUT_OFF_AUDITS: u32 = 12;

/// How often a member whose link is down is tried.
const PROBE: Duration = Duration::from_secs(1);

/// Ticks for long tasks come no more often, whatever the floor.
const LEAST_TICK: Duration = Duration::from_millis(1);

/// How often what the network had no room for is offered again.
const RETRY: Duration = Duration::from_millis(5);

/// How an engine is made.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Which job.
    pub job: JobId,
    /// The pool's settings.
    pub pool: PoolConfig,
    /// Whom to steal from.
    pub policy: StealPolicy,
    /// The shared objects' settings.
    pub share: ShareConfig,
    /// What is measured of this node, and how; nothing by default.
    pub metering: Option<MeteringSettings>,
    /// Bytes of finished results kept for the case that the node they were computed for is lost; 0 keeps none, and tasks
    /// whose owner is lost are stopped.
    pub results_bytes: usize,
}

/// Default of [`EngineConfig::results_bytes`].
pub const RESULTS_BYTES: usize = 64 << 20;

/// One node's part in one job. Cheap to clone.
#[derive(Clone)]
pub struct Engine(Arc<Inner>);

/// Tells what the job's root reports; called on compute threads.
pub type Notes = Box<dyn Fn(Note) + Send + Sync>;

struct Inner {
    job: JobId,
    me: Peer,
    net: Net,
    recorder: Recorder,
    notes: Notes,
    pool: OnceLock<Pool>,
    objects: OnceLock<Objects>,
    post: Arc<Post>,
    metering: Option<Metering>,
    state: Mutex<State>,
    /// Time between two ticks for long tasks; none where their outputs are not kept.
    tick_every: Option<Duration>,
    /// Wakes the driver.
    poke: Notify,
    /// There is work for thieves that wait.
    surplus: AtomicBool,
    closing: AtomicBool,
    threads_left: AtomicUsize,
    ended: Notify,
    next_deque: AtomicUsize,
    abandoned_leases: AtomicU64,
    /// What the links had carried before this job.
    bytes_before: BTreeMap<NodeId, u64>,
    /// For who looks when it is no more.
    last_books: Arc<OnceLock<Books>>,
}

impl Engine {
    /// Starts the compute threads. Frames of the kinds `STEAL_REQUEST..=PROCESS` and `OBJECT_UPDATE..=OBJECT_MERGE`
    /// must be routed to [`Engine::inbox`], and [`Engine::drive`] must run on the endpoint's thread.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub fn start(
        config: &EngineConfig,
        registry: Arc<Registry>,
        net: Net,
        seam: Arc<dyn Seam>,
        recorder: Recorder,
        notes: Notes,
    ) -> std::io::Result<Self> {
        let me = net.me().clone();
        let thief =
            Thief::new(me.node.clone(), me.cluster.clone(), config.policy, config.pool.seed);
        let state = State {
            thief,
            victim: Victim::new(config.policy),
            view: View::default(),
            stolen: BTreeMap::new(),
            waiting: BTreeMap::new(),
            results: Results::new(config.results_bytes),
            known: Whereabouts::default(),
            leaving: false,
            moved: BTreeMap::new(),
            given: BTreeMap::new(),
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
            former: BTreeMap::new(),
            early: state::Early::default(),
            doubled: 0,
            met: BTreeMap::new(),
            unsent: mail::Unsent::default(),
            counters: Counters::default(),
            stolen_from: BTreeMap::new(),
            latencies: Histograms::default(),
            tick_at: None,
            thief_wake: None,
            ask_again_at: None,
            share_wake: None,
            refused: None,
        };
        let bytes_before = net.bytes_out().into_iter().collect();
        let threads = config.pool.threads.max(1);
        // What takes modelled time does not take real time, and the other way round.
        let real = seam.is_real() && config.pool.fork_time.is_none();
        let metering = config.metering.map(|settings| {
            Metering::new(settings, me.cluster.clone(), threads as u32, real, Instant::now())
        });
        // Without a cache of results nothing that comes back is used.
        let keeps = config.results_bytes > 0 && !config.pool.work_floor.is_zero();
        let work_floor = if keeps { config.pool.work_floor } else { Duration::ZERO };
        let inner = Arc::new_cyclic(|weak: &Weak<Inner>| Inner {
            job: config.job,
            me: me.clone(),
            net,
            recorder,
            notes,
            pool: OnceLock::new(),
            objects: OnceLock::new(),
            post: Arc::new(post_of(config.job, me.clone(), weak.clone())),
            metering,
            state: Mutex::new(state),
            tick_every: keeps.then(|| (work_floor / 2).max(LEAST_TICK)),
            poke: Notify::new(),
            surplus: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            threads_left: AtomicUsize::new(threads),
            ended: Notify::new(),
            next_deque: AtomicUsize::new(0),
            abandoned_leases: AtomicU64::new(0),
            bytes_before,
            last_books: Arc::default(),
        });
        // The store's callback must not keep the engine alive: it is owned by it.
        let weak = Arc::downgrade(&inner);
        let carry = Arc::new(move |action: ShareAction| {
            if let Some(inner) = weak.upgrade() {
                inner.carry(action);
            }
        });
        let types = registry.objects().clone();
        let objects = Objects::new(me.node, config.job, types, config.share.clone(), carry);
        // Both are set here only.
        let _ = inner.objects.set(objects.clone());
        let host = Arc::new(host::Behind {
            inner: Arc::downgrade(&inner),
            objects,
            post: inner.post.clone(),
        });
        let metered = config.metering.is_some();
        // The lower half of a well mixed number is as good as the whole.
        let life = SplitMix(me.incarnation.0).next() as u32;
        let pool_config = PoolConfig { metered, work_floor, life, ..config.pool.clone() };
        let pool = Pool::start(&pool_config, registry, seam, host)?;
        let _ = inner.pool.set(pool);
        inner.poke.notify_one();
        Ok(Self(inner))
    }

    /// Where the network's frames go.
    pub fn inbox(&self) -> Arc<dyn Inbox> {
        self.0.clone()
    }

    /// Does what is due until [`Engine::close`]; to be spawned on the endpoint's thread.
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
                () = self.0.poke.notified() => {}
                () = sleep => {}
            }
        }
    }

    /// Who takes part from now on, and where they are reached. Nodes that took part and do not any more (or begin a new
    /// life) are lost: what they held is queued again, what they left behind is offered for reuse.
    pub fn view(&self, view: &View) {
        self.0.net.follow(&view.members);
        self.0.net.gates(&view.cluster_coordinators);
        let of = |id: &ClusterId| self.0.net.expected(id).map(|policy| policy.steal_timeout());
        let clusters = view.members.clusters().map(|(cluster, _)| cluster);
        let timeouts = clusters.filter_map(|cluster| Some((cluster.clone(), of(cluster)?)));
        let timeouts = timeouts.collect();
        let (gone, returned, early) = {
            let mut state = self.0.state();
            let old = std::mem::replace(&mut state.view, view.clone());
            state.thief.expect(timeouts);
            state.thief.view(view);
            state.victim.keep(|node| view.members.contains_key(node));
            let gone = view.members.lost_since(&old.members);
            // Who left in order may have said things that are still on their way.
            let left = gone.iter().filter(|(_, member)| member.leaving);
            state.former.extend(left.map(|(node, member)| ((*node).clone(), member.incarnation)));
            let dead = gone.iter().filter(|(_, member)| !member.leaving);
            state.dead.extend(dead.map(|(node, member)| ((*node).clone(), member.incarnation)));
            let lives = |(node, life): (&NodeId, &Incarnation)| {
                view.members.get(node).is_some_and(|member| member.incarnation == *life)
            };
            let returned: Vec<NodeId> = state
                .dead
                .iter()
                .filter(|dead| lives(*dead))
                .map(|(node, _)| node.clone())
                .collect();
            state.dead.retain(|node, life| {
                view.members.get(node).is_none_or(|member| member.incarnation > *life)
            });
            let gone: Vec<NodeId> = gone.into_iter().map(|(node, _)| node.clone()).collect();
            let early = state.early.ready(view);
            (gone, returned, early)
        };
        self.0.objects_ref().view(view);
        for node in gone {
            self.0.lost(&node, "it is no member any more");
        }
        // After what the lost had was queued again: processes among it are called for once more.
        self.0.post.view(view);
        self.0.own_up(&returned);
        for (peer, kind, body) in early {
            self.0.frame(&peer, kind, body);
        }
        self.0.poke.notify_one();
    }

    /// Gives all work of other nodes back: what has not begun at once, what runs at its next call into the runtime, with what
    /// is finished below it. From here on no work comes. Completes when nothing is left; whatever still runs when the caller
    /// stops waiting is lost with the node.
    pub async fn leave(&self) {
        self.0.leave();
        let mut empty_since: Option<Instant> = None;
        loop {
            let now = Instant::now();
            match self.0.left() {
                Some(passes_on) => {
                    let since = *empty_since.get_or_insert(now);
                    if !passes_on || now >= since + LINGER {
                        return;
                    }
                }
                None => empty_since = None,
            }
            tokio::time::sleep(LEAVE_LOOK).await;
        }
    }

    /// What nodes that are members no more had of this node, since the last time: at most [`LOSSES_MAX`] tasks. Of nodes
    /// that left in order too, if they kept anything.
    pub fn take_losses(&self) -> Vec<Loss> {
        self.0.state().losses.take()
    }

    /// The job does not get the nodes that its root, which runs here, asked for last: [`Context::refused`] tells it.
    ///
    /// [`Context::refused`]: crate::work::Context::refused
    pub fn refuse_nodes(&self, why: &str) {
        self.0.state().refused = Some(why.to_owned());
    }

    /// What was counted and measured here since the start; with `latencies`, those since the last time.
    pub fn statistics(&self, latencies: bool) -> Statistics {
        self.0.statistics(latencies)
    }

    /// Tasks that this node has stolen from nodes of each cluster, for who watches.
    pub fn stolen_from(&self) -> BTreeMap<ClusterId, u64> {
        self.0.state().stolen_from.clone()
    }

    /// A message of this job made its way and the answer came back in this time.
    pub fn round_trip(&self, time: Duration) {
        self.0.state().latencies.round_trip.record(time);
    }

    /// Ends a statistics period: what was measured in it. To be called once a period, on the endpoint's thread. In static
    /// mode nothing is measured, and all is empty.
    pub fn end_period(&self, now: Instant) -> PeriodMeasure {
        let Some(metering) = &self.0.metering else { return PeriodMeasure::default() };
        let measure = metering.end_period(self.0.pool_ref(), &self.0.net.round_trips(), now);
        // A benchmark may have become due.
        self.0.poke.notify_one();
        measure
    }

    /// The job's benchmark from now on, the same on all its nodes. Where nothing is measured it is ignored.
    pub fn benchmark(&self, spec: BenchmarkSpec) {
        if let Some(metering) = &self.0.metering {
            metering.benchmark(spec, self.0.pool_ref(), Instant::now());
            self.0.poke.notify_one();
        }
    }

    /// A benchmark made of tasks that ran here, once there are enough of them, and until the job has one.
    pub fn candidate(&self) -> Option<BenchmarkSpec> {
        self.0.metering.as_ref()?.candidate()
    }

    /// Halts all work and lets the threads end.
    pub fn close(&self) {
        self.0.closing.store(true, Ordering::Release);
        if let Some(metering) = &self.0.metering {
            metering.leave(self.0.pool_ref(), Instant::now());
        }
        self.0.pool_ref().close();
        // Who speaks for a cluster is the job's to say.
        self.0.net.gates(&BTreeMap::new());
        self.0.poke.notify_one();
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

fn event_scope(scope: Scope) -> event::Scope {
    match scope {
        Scope::Local => event::Scope::Local,
        Scope::Wide => event::Scope::Wide,
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        // Steps under the lock leave the state whole, so a poisoned lock may be used on.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pool_ref(&self) -> &Pool {
        self.pool.get().expect("set before the engine is handed out")
    }

    fn objects_ref(&self) -> &Objects {
        self.objects.get().expect("set before the engine is handed out")
    }

    /// Sends, or keeps for later what there is no room for. The node's loss is told by the network.
    fn send(&self, to: &NodeId, kind: Kind, message: &impl Serialize) {
        match wire::encode(kind, message) {
            Ok(body) => self.send_encoded(to, Class::Steal, kind, body),
            Err(error) => tracing::error!(%error, ?kind, "a message of our own does not encode"),
        }
    }

    fn send_encoded(&self, to: &NodeId, class: Class, kind: Kind, body: Bytes) {
        match self.net.send(to, class, kind, body.clone()) {
            Ok(()) => {}
            // Processes hear of each other by the group's root, which may know a node before this one does.
            Err(SendError::Unknown(_)) if kind == Kind::PROCESS => self.keep(to, class, kind, body),
            Err(SendError::Full(_)) => self.keep(to, class, kind, body),
            Err(error) => tracing::debug!(%error, to = %to, ?kind, "not sent"),
        }
    }

    /// Does what is due; when to come again.
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
        let timers = [probe, audit, self.ask_after(now), self.tick(pool, now), hint];
        for at in timers.into_iter().flatten() {
            wake = Some(wake.map_or(at, |wake| wake.min(at)));
        }
        if let Some(metering) = &self.metering {
            let at = metering.pump(pool, now);
            wake = Some(wake.map_or(at, |wake| wake.min(at)));
        }
        // A victim that cannot be reached frees its lane for another: at most all of them in a row.
        for _ in 0..64 {
            let awaited: Vec<(TaskPath, NodeId)> =
                pool.awaited().into_iter().map(|(_, path, peer)| (path, peer.node)).collect();
            let actions = {
                let mut state = self.state();
                let hungry = pool.appetite() > state.waiting.len() && !state.leaving;
                // Whoever offered what may not run here would offer it again at once.
                let pause = state.ask_again_at.filter(|at| now < *at);
                let asks = pause.is_none() && !state.leaving;
                let awaited = if asks { awaited } else { Vec::new() };
                state.thief.set_hungry(hungry && pause.is_none());
                state.thief_wake = None;
                if let Some(at) = pause.filter(|_| hungry) {
                    wake = Some(wake.map_or(at, |wake| wake.min(at)));
                }
                state.thief.pump(&awaited, now)
            };
            let mut unreachable = false;
            for action in actions {
                match action {
                    ThiefAction::Request { to, id, scope, awaited } => {
                        unreachable |= !self.ask(&to, id, scope, awaited);
                    }
                    ThiefAction::Waiting(state) => pool.label_waiting(state),
                    ThiefAction::Wake(at) => self.state().thief_wake = Some(at),
                }
            }
            if !unreachable {
                break;
            }
        }
        // What is there and cannot begin comes first: because of it less is asked for, or nothing.
        let fetches = !self.state().waiting.is_empty();
        let fetched = fetches.then(|| self.objects_ref().waits_wide()).flatten();
        let fetched = fetched.map(|wide| match wide {
            true => ThreadState::WaitWide,
            false => ThreadState::WaitLocal,
        });
        let state = self.state();
        if let Some(waiting) = fetched.or(state.thief.waiting()) {
            // Also those that have run out of work since the others did.
            pool.label_waiting(waiting);
        }
        for at in [state.thief_wake, state.share_wake].into_iter().flatten() {
            wake = Some(wake.map_or(at, |wake| wake.min(at)));
        }
        wake
    }

    /// While tasks of other nodes are here, tells the threads every half of the floor to see which of them are long; not
    /// while all of them still have the last tick before them, and `took_tick` pokes. When to come again.
    fn tick(&self, pool: &Pool, now: Instant) -> Option<Instant> {
        let every = self.tick_every?;
        let mut state = self.state();
        if state.stolen.is_empty() {
            state.tick_at = None;
        } else if state.tick_at.is_none_or(|at| at <= now) {
            state.tick_at = pool.tick().then(|| now + every);
        }
        state.tick_at
    }

    /// Asks for work. False if the victim cannot be reached.
    fn ask(&self, to: &NodeId, id: u32, scope: Scope, awaited: Option<TaskPath>) -> bool {
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

    /// Tells waiting thieves of work, when there is some; when to look again.
    fn hint_waiting(&self, pool: &Pool, now: Instant) -> Option<Instant> {
        let told = self.surplus.swap(false, Ordering::AcqRel);
        if !self.state().victim.has_waiting() {
            return None;
        }
        // Without any it is told of the next.
        let tasks = match pool.surplus() {
            0 if !told && !pool.want_surplus() => return None,
            tasks => tasks.max(1),
        };
        let thieves = self.state().victim.to_hint(tasks, now);
        for thief in thieves {
            self.send(&thief, Kind::WORK_HINT, &WorkHint { job: self.job });
        }
        self.state().victim.look_again(now)
    }

    // --- shared objects ---

    fn carry(&self, action: ShareAction) {
        match action {
            ShareAction::Send { to, class, kind, body } => {
                match self.net.send(&to, class, kind, body.clone()) {
                    Ok(()) => {}
                    Err(SendError::Full(_)) => self.objects_ref().unsent(to, kind, body),
                    Err(error) => tracing::debug!(%error, %to, ?kind, "not sent"),
                }
            }
            ShareAction::Ready { ticket, held } => self.present(ticket.0, held),
            ShareAction::Failed { ticket, why } => {
                let mut state = self.state();
                let Some((owner, task)) = state.waiting.remove(&ticket.0) else { return };
                if let Unavailable::NoHolder { .. } = why {
                    // Here, now: where the task comes from it may be had, and others may take it from there.
                    state.ask_again_at = Some(Instant::now() + REFUSED_PAUSE);
                    state.met("a task goes back for want of what it reads");
                    drop(state);
                    tracing::info!(%why, owner = %owner.node, "a task goes back for want of what it reads");
                    return self.hand_back_unbegun(&owner, task);
                }
                drop(state);
                self.fail_unbegun(&owner, &task.path, task.lease, job_failure(why.to_string()));
            }
            ShareAction::Wake(at) => {
                let mut state = self.state();
                state.share_wake = Some(state.share_wake.map_or(at, |wake| wake.min(at)));
                drop(state);
                self.poke.notify_one();
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
                    scope: if wide { event::Scope::Wide } else { event::Scope::Local },
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

fn counts_of(counters: &mut Counters, scope: Scope) -> &mut crate::meter::StealCounts {
    match scope {
        Scope::Local => &mut counters.steals.local,
        Scope::Wide => &mut counters.steals.wide,
    }
}

fn job_failure(message: String) -> Failure {
    super::core::worker::job_failure(message)
}
