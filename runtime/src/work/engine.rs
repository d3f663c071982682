//! One node's part in a job: ties the pool, the steal protocol, the shared objects and the network together.
//!
//! Knows no role and no actor: it is told views and reports statistics. Frames are handled on the endpoint's thread, results
//! leave from compute threads; nobody waits for anybody.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::core::LeaseId;
use super::core::slot::Base;
use super::pool::{Host, Note, Pool, PoolConfig, Seam};
use super::registry::{JobEntry, Registry};
use super::solo::into_failure;
use super::steal::{
    Abandon, Scope, StealPolicy, StealReply, StealRequest, StolenTask, TaskOutcome, TaskResult,
    TaskReturn, Thief, ThiefAction, Victim, WorkHint,
};
use super::task::{Cause, Failure, Halt, Outcome, Stop};
use crate::event::{self, Event, Recorder};
use crate::id::{JobId, NodeId, Peer, TaskPath};
use crate::membership::View;
use crate::meter::{Counters, Histograms, Statistics};
use crate::net::{Class, Contact, Inbox, Net, SendError, Undelivered, Why};
use crate::share::{
    Action as ShareAction, Fact, Held, Needed, ShareConfig, Shared as Objects, Ticket,
};
use crate::wire::{self, Kind};

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
}

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
    state: Mutex<State>,
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
}

struct State {
    thief: Thief,
    victim: Victim,
    /// Tasks of other nodes that run or wait for a thread here.
    stolen: BTreeMap<(NodeId, LeaseId), Stolen>,
    /// Stolen tasks whose shared objects are on their way.
    waiting: BTreeMap<u64, (Peer, StolenTask)>,
    next_ticket: u64,
    /// What the network had no room for, in order.
    unsent: VecDeque<(NodeId, Class, Kind, Bytes)>,
    counters: Counters,
    latencies: Histograms,
    thief_wake: Option<Instant>,
    share_wake: Option<Instant>,
}

struct Stolen {
    base: Arc<Base>,
    /// Keeps the objects' versions that the task reads.
    _held: Option<Held>,
}

impl Engine {
    /// Starts the compute threads. Frames of the kinds `STEAL_REQUEST..=TASK_ABANDON` and `OBJECT_UPDATE..=OBJECT_MERGE`
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
            victim: Victim::default(),
            stolen: BTreeMap::new(),
            waiting: BTreeMap::new(),
            next_ticket: 0,
            unsent: VecDeque::new(),
            counters: Counters::default(),
            latencies: Histograms::default(),
            thief_wake: None,
            share_wake: None,
        };
        let bytes_before = sent_to(&net);
        let inner = Arc::new(Inner {
            job: config.job,
            me: me.clone(),
            net,
            recorder,
            notes,
            pool: OnceLock::new(),
            objects: OnceLock::new(),
            state: Mutex::new(state),
            poke: Notify::new(),
            surplus: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            threads_left: AtomicUsize::new(config.pool.threads.max(1)),
            ended: Notify::new(),
            next_deque: AtomicUsize::new(0),
            abandoned_leases: AtomicU64::new(0),
            bytes_before,
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
        let _ = inner.objects.set(objects);
        let host: Arc<dyn Host> = inner.clone();
        let pool = Pool::start(&config.pool, registry, seam, host)?;
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

    /// Who takes part from now on, and where they are reached.
    pub fn view(&self, view: &View) {
        for (node, member) in view.members.iter().filter(|(node, _)| **node != self.0.me.node) {
            let contact = Contact {
                node: node.clone(),
                cluster: member.cluster.clone(),
                address: member.address.clone(),
            };
            self.0.net.learn_life(contact, member.incarnation);
        }
        let of = |node: &NodeId| self.0.net.expected(node).map(|policy| policy.steal_timeout());
        let timeouts = view.members.keys().filter_map(|node| Some((node.clone(), of(node)?)));
        let timeouts = timeouts.collect();
        {
            let mut state = self.0.state();
            state.thief.expect(timeouts);
            state.thief.view(view);
            state.victim.keep(|node| view.members.contains_key(node));
        }
        self.0.objects_ref().view(view);
        self.0.poke.notify_one();
    }

    /// Runs the job's root here; `done` is called on a compute thread.
    pub fn run_job(
        &self,
        job: &JobEntry,
        body: Bytes,
        done: impl FnOnce(Result<Outcome, Failure>) + Send + 'static,
    ) {
        self.0.pool_ref().run_job(job, body, move |outcome| done(outcome.map_err(into_failure)));
    }

    /// A node is gone: what it held of us is queued again, what we run for it stops. Returns how many tasks were taken back.
    pub fn lost(&self, node: &NodeId, why: &str) -> usize {
        self.0.lost(node, why)
    }

    /// What was counted and measured here since the start; with `latencies`, those since the last time.
    pub fn statistics(&self, latencies: bool) -> Statistics {
        self.0.statistics(latencies)
    }

    /// A message of this job made its way and the answer came back in this time.
    pub fn round_trip(&self, time: Duration) {
        self.0.state().latencies.round_trip.record(time);
    }

    /// Halts all work and lets the threads end.
    pub fn close(&self) {
        self.0.closing.store(true, Ordering::Release);
        self.0.pool_ref().close();
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

/// Payload bytes sent so far to each node.
fn sent_to(net: &Net) -> BTreeMap<NodeId, u64> {
    let links = net.links().into_iter();
    links
        .map(|link| (link.peer.node.clone(), link.classes.values().map(|c| c.bytes_out).sum()))
        .collect()
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
            Err(SendError::Full(_)) => {
                self.state().unsent.push_back((to.clone(), class, kind, body));
                self.poke.notify_one();
            }
            Err(error) => tracing::debug!(%error, to = %to, ?kind, "not sent"),
        }
    }

    /// Does what is due; when to come again.
    fn pump(&self) -> Option<Instant> {
        let pool = self.pool.get()?;
        let now = Instant::now();
        let mut wake = self.resend(now);
        if self.state().share_wake.is_some_and(|at| at <= now) {
            self.state().share_wake = None;
            self.objects_ref().tick();
        }
        self.hint_waiting(pool);
        // A victim that cannot be reached frees its lane for another: at most all of them in a row.
        for _ in 0..64 {
            let awaited: Vec<(TaskPath, NodeId)> =
                pool.awaited().into_iter().map(|(path, peer)| (path, peer.node)).collect();
            let actions = {
                let mut state = self.state();
                let hungry = pool.appetite() > state.waiting.len();
                state.thief.set_hungry(hungry);
                state.thief_wake = None;
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
        let state = self.state();
        for at in [state.thief_wake, state.share_wake].into_iter().flatten() {
            wake = Some(wake.map_or(at, |wake| wake.min(at)));
        }
        wake
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

    fn resend(&self, now: Instant) -> Option<Instant> {
        let mut full: BTreeSet<(NodeId, Class)> = BTreeSet::new();
        let mut unsent = std::mem::take(&mut self.state().unsent);
        let mut kept = VecDeque::new();
        for (to, class, kind, body) in unsent.drain(..) {
            let key = (to, class);
            if !full.contains(&key)
                && !matches!(
                    self.net.send(&key.0, class, kind, body.clone()),
                    Err(SendError::Full(_))
                )
            {
                continue;
            }
            kept.push_back((key.0.clone(), class, kind, body));
            full.insert(key);
        }
        let retry = !kept.is_empty();
        if retry {
            let mut state = self.state();
            kept.append(&mut state.unsent);
            state.unsent = kept;
        }
        retry.then(|| now + RETRY)
    }

    /// Tells a waiting thief of work, when there is some.
    fn hint_waiting(&self, pool: &Pool) {
        let mut surplus = self.surplus.swap(false, Ordering::AcqRel);
        loop {
            if surplus {
                let Some(thief) = self.state().victim.next_to_hint() else { return };
                self.send(&thief, Kind::WORK_HINT, &WorkHint { job: self.job });
            }
            if !self.state().victim.has_waiting() {
                return;
            }
            surplus = pool.want_surplus();
            if !surplus {
                return;
            }
        }
    }

    // --- victim ---

    fn on_request(&self, from: &Peer, request: StealRequest) {
        let pool = self.pool_ref();
        let StealRequest { id, awaited, .. } = request;
        let start = self.next_deque.fetch_add(1, Ordering::Relaxed);
        let task = pool.export(from, awaited.as_ref(), start).map(|export| StolenTask {
            lease: export.lease,
            path: export.path,
            name: export.name,
            needs: export.encoded.needs,
            body: export.encoded.body,
        });
        let scope = self.state().thief.scope_of(&from.node);
        if task.is_none()
            && let Some(path) = &awaited
        {
            // What the thief waits for has not even started here: back with it.
            if let Some(task) = pool.take_back(from, path) {
                self.state().stolen.remove(&(from.node.clone(), task.lease));
                let back = TaskReturn { job: self.job, lease: task.lease };
                self.send(&from.node, Kind::TASK_RETURN, &back);
            }
        }
        let lease = task.as_ref().map(|task| task.lease);
        let reply = StealReply { job: self.job, id, task };
        let sent = wire::encode(Kind::STEAL_REPLY, &reply).map_err(|error| error.to_string());
        let sent = sent.and_then(|body| {
            let sent = self.net.send(&from.node, Class::Steal, Kind::STEAL_REPLY, body);
            sent.map_err(|error| error.to_string())
        });
        match (lease, sent) {
            (Some(lease), Err(why)) => self.reclaim(lease, from, &why),
            (Some(_), Ok(())) => self.state().victim.served(&from.node),
            (None, _) => {
                if awaited.is_none() {
                    self.state().victim.refused(&from.node, scope);
                    self.hint_waiting(pool);
                }
            }
        }
    }

    /// A task that did not reach its thief is queued again at once.
    fn reclaim(&self, lease: LeaseId, thief: &Peer, why: &str) {
        if self.pool_ref().reclaim(lease) {
            self.state().counters.tasks.reclaimed += 1;
            tracing::debug!(thief = %thief, why, "a stolen task was taken back");
        }
    }

    fn on_result(&self, from: &Peer, result: TaskResult) {
        let delivery = match result.outcome {
            TaskOutcome::Output(body) => {
                self.state().counters.results.bytes += body.len() as u64;
                Ok(body)
            }
            TaskOutcome::Failed(failure) => Err(failure),
        };
        if !self.pool_ref().complete(result.lease, delivery) {
            self.state().counters.results.duplicates += 1;
            tracing::debug!(from = %from, lease = ?result.lease, "a result nobody waits for");
        }
    }

    // --- thief ---

    fn on_reply(&self, from: &Peer, reply: StealReply) {
        let now = Instant::now();
        let hit = reply.task.is_some();
        {
            let mut state = self.state();
            let scope = match state.thief.answered(reply.id, hit, now) {
                Some(answered) => {
                    let latencies = &mut state.latencies;
                    match answered.scope {
                        Scope::Local => latencies.steal_local.record(answered.latency),
                        Scope::Wide => latencies.steal_wide.record(answered.latency),
                    }
                    answered.scope
                }
                None => state.thief.scope_of(&from.node),
            };
            let counts = counts_of(&mut state.counters, scope);
            if hit {
                counts.hits += 1;
                match scope {
                    Scope::Local => state.counters.tasks.stolen_local += 1,
                    Scope::Wide => state.counters.tasks.stolen_wide += 1,
                }
            } else {
                counts.empty += 1;
            }
        }
        // Also one in a late answer: dropping it would lose it.
        if let Some(task) = reply.task {
            self.take_in(from, task);
        }
        self.poke.notify_one();
    }

    fn take_in(&self, from: &Peer, task: StolenTask) {
        let scope = self.state().thief.scope_of(&from.node);
        self.recorder.record(Event::TaskStolen {
            job: self.job,
            path: task.path.clone(),
            task: task.name.clone(),
            from: from.node.clone(),
            to: self.me.node.clone(),
            scope: event_scope(scope),
            task_bytes: task.body.len() as u64,
        });
        if task.needs.is_empty() {
            self.accept(from, task, None);
            return;
        }
        let needs = task.needs.clone();
        let lease = task.lease;
        let ticket = {
            let mut state = self.state();
            state.next_ticket += 1;
            let ticket = state.next_ticket;
            state.waiting.insert(ticket, (from.clone(), task));
            ticket
        };
        // The lock is not held: the store may call back from within.
        match self.objects_ref().need(Ticket(ticket), &needs) {
            Ok(Needed::Ready(held)) => self.present(ticket, held),
            Ok(Needed::Waiting) => {}
            Err(error) => {
                self.state().waiting.remove(&ticket);
                let outcome = TaskOutcome::Failed(job_failure(error.to_string()));
                self.report(from, TaskResult { job: self.job, lease, outcome });
            }
        }
    }

    /// The objects that a stolen task waited for are there.
    fn present(&self, ticket: u64, held: Held) {
        let waiting = self.state().waiting.remove(&ticket);
        if let Some((from, task)) = waiting {
            self.accept(&from, task, Some(held));
        }
    }

    fn accept(&self, from: &Peer, task: StolenTask, held: Option<Held>) {
        let StolenTask { lease, path, name, body, .. } = task;
        let pool = self.pool_ref();
        match pool.admit(&name, path) {
            Ok((base, run)) => {
                // In the table before a thread can finish it.
                let stolen = Stolen { base: base.clone(), _held: held };
                self.state().stolen.insert((from.node.clone(), lease), stolen);
                pool.enter(base, run, from.clone(), lease, body);
            }
            Err(failure) => {
                let outcome = TaskOutcome::Failed(failure);
                self.report(from, TaskResult { job: self.job, lease, outcome });
            }
        }
    }

    fn report(&self, owner: &Peer, result: TaskResult) {
        self.send(&owner.node, Kind::TASK_RESULT, &result);
    }

    fn on_abandon(&self, from: &Peer, abandon: Abandon) {
        let stolen = self.state().stolen.remove(&(from.node.clone(), abandon.lease));
        if let Some(stolen) = stolen {
            self.state().counters.tasks.abandoned += 1;
            self.pool_ref().halt_tree(&stolen.base, Halt::OwnerLost);
        }
    }

    fn lost(&self, node: &NodeId, why: &str) -> usize {
        let pool = self.pool_ref();
        let (halted, forgotten) = {
            let mut state = self.state();
            state.thief.unreachable(node);
            state.victim.served(node);
            state.unsent.retain(|(to, ..)| to != node);
            let keys: Vec<_> =
                state.stolen.keys().filter(|(owner, _)| owner == node).cloned().collect();
            let halted: Vec<Stolen> =
                keys.iter().filter_map(|key| state.stolen.remove(key)).collect();
            let tickets: Vec<u64> = state
                .waiting
                .iter()
                .filter(|(_, (owner, _))| owner.node == *node)
                .map(|(ticket, _)| *ticket)
                .collect();
            tickets.iter().for_each(|ticket| drop(state.waiting.remove(ticket)));
            (halted, tickets)
        };
        for ticket in forgotten {
            self.objects_ref().forget(Ticket(ticket));
        }
        for stolen in halted {
            pool.halt_tree(&stolen.base, Halt::OwnerLost);
        }
        drop(pool.take_all_incoming(|task| task.owner.node == *node));
        self.objects_ref().down(node);
        let reclaimed = pool.reclaim_from(|thief| thief.node == *node);
        if reclaimed > 0 {
            self.state().counters.tasks.reclaimed += reclaimed as u64;
            tracing::info!(%node, why, reclaimed, "took back what a lost node held");
        }
        self.poke.notify_one();
        reclaimed
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
                let waiting = self.state().waiting.remove(&ticket.0);
                if let Some((owner, task)) = waiting {
                    let outcome = TaskOutcome::Failed(job_failure(why.to_string()));
                    let lease = task.lease;
                    self.report(&owner, TaskResult { job: self.job, lease, outcome });
                }
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
        let sent = sent_to(&self.net);
        let mut state = self.state();
        let mut counters = state.counters;
        let pool_counts = pool.counts();
        counters.tasks.spawned = pool_counts.spawned;
        counters.tasks.executed = pool_counts.executed;
        counters.tasks.stolen_local += pool_counts.taken_here;
        for (node, bytes) in sent {
            if !state.thief.knows(&node) {
                continue;
            }
            let bytes = bytes - self.bytes_before.get(&node).copied().unwrap_or(0).min(bytes);
            match state.thief.scope_of(&node) {
                Scope::Local => counters.bytes.local += bytes,
                Scope::Wide => counters.bytes.wide += bytes,
            }
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

impl Host for Inner {
    fn hungry(&self) {
        self.poke.notify_one();
    }

    fn surplus(&self) {
        self.surplus.store(true, Ordering::Release);
        self.poke.notify_one();
    }

    fn finished(&self, owner: Peer, lease: LeaseId, outcome: Result<Bytes, Stop>) {
        let known = self.state().stolen.remove(&(owner.node.clone(), lease)).is_some();
        let outcome = match outcome {
            Ok(body) => TaskOutcome::Output(body),
            Err(stop) => match *stop.0 {
                Cause::Failed(failure) => TaskOutcome::Failed(failure),
                Cause::Halt(Halt::Leave) => {
                    self.send(&owner.node, Kind::TASK_RETURN, &TaskReturn { job: self.job, lease });
                    return;
                }
                // Nobody wants it any more.
                Cause::Halt(Halt::Cancelled | Halt::OwnerLost) => return,
            },
        };
        if known {
            self.report(&owner, TaskResult { job: self.job, lease, outcome });
        }
    }

    fn abandoned(&self, thief: &Peer, lease: LeaseId) {
        self.abandoned_leases.fetch_add(1, Ordering::Relaxed);
        self.send(&thief.node, Kind::TASK_ABANDON, &Abandon { job: self.job, lease });
    }

    fn task_ran(&self, time: Duration) {
        self.state().latencies.task.record(time);
    }

    fn join_delayed(&self, time: Duration) {
        self.state().latencies.join_delay.record(time);
    }

    fn woke(&self, time: Duration) {
        self.state().latencies.wake.record(time);
    }

    fn note(&self, note: Note) {
        (self.notes)(note);
    }

    fn objects(&self) -> &Objects {
        self.objects_ref()
    }

    fn ended(&self) {
        self.threads_left.fetch_sub(1, Ordering::AcqRel);
        self.ended.notify_one();
    }
}

impl Inner {
    fn dispatch(&self, from: &Peer, kind: Kind, body: Bytes) -> Result<(), wire::WireError> {
        match kind {
            Kind::STEAL_REQUEST => {
                let request: StealRequest = wire::decode(kind, &body)?;
                if request.job == self.job {
                    self.on_request(from, request);
                }
            }
            Kind::STEAL_REPLY => {
                let reply: StealReply = wire::decode(kind, &body)?;
                if reply.job == self.job {
                    self.on_reply(from, reply);
                }
            }
            Kind::WORK_HINT => {
                let hint: WorkHint = wire::decode(kind, &body)?;
                if hint.job == self.job {
                    self.state().thief.hinted(&from.node);
                    self.poke.notify_one();
                }
            }
            Kind::TASK_RESULT => {
                let result: TaskResult = wire::decode(kind, &body)?;
                if result.job == self.job {
                    self.on_result(from, result);
                }
            }
            Kind::TASK_RETURN => {
                let back: TaskReturn = wire::decode(kind, &body)?;
                if back.job == self.job && self.pool_ref().reclaim(back.lease) {
                    self.state().counters.tasks.returned += 1;
                }
            }
            Kind::TASK_ABANDON => {
                let abandon: Abandon = wire::decode(kind, &body)?;
                if abandon.job == self.job {
                    self.on_abandon(from, abandon);
                }
            }
            _ => self.objects_ref().frame(&from.node, kind, body),
        }
        Ok(())
    }
}

impl Inbox for Inner {
    fn frame(&self, from: &Peer, kind: Kind, body: Bytes) {
        if self.closing.load(Ordering::Acquire) {
            return;
        }
        if let Err(error) = self.dispatch(from, kind, body) {
            self.state().counters.frames_refused += 1;
            self.net.breach(from, &format!("a {kind:?} frame: {error}"));
        }
    }

    fn down(&self, peer: &Peer, why: &Why) {
        self.lost(&peer.node, &why.text);
    }

    fn undelivered(&self, (to, kind, body): Undelivered) {
        match kind {
            Kind::STEAL_REPLY => {
                if let Ok(StealReply { task: Some(task), .. }) =
                    wire::decode::<StealReply>(kind, &body)
                    && self.pool_ref().reclaim(task.lease)
                {
                    self.state().counters.tasks.reclaimed += 1;
                }
            }
            Kind::STEAL_REQUEST => {
                self.state().thief.unreachable(&to);
                self.poke.notify_one();
            }
            kind if kind >= Kind::OBJECT_UPDATE && kind <= Kind::OBJECT_MERGE => {
                self.objects_ref().unsent(to, kind, body);
            }
            _ => {}
        }
    }
}
