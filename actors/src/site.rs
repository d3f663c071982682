//! The site of a cluster. It starts the cluster's nodes through a provider, registers them,
//! restarts nodes that end, and ends them all.
//!
//! A provider may hold processors on demand (a batch system). Then nodes exist only while the
//! scheduler needs them, none is restarted, and the cluster's capacity is polled. Where nodes join
//! by themselves, the site registers them, and starts and ends none.
//!
//! This module does not know jobs: the scheduler decides on the consequences of a node's end.

mod keeper;
mod messages;
mod programs;
mod voice;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use springtide_runtime::id::{ClusterId, Incarnation, NodeId};
use springtide_runtime::net::Contact;
use springtide_runtime::remote::{Hub, Receives, Remote, RemoteError, RemoteMessage};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::provider::{
    Capacity, ExistingStub, NodeRequest, Provider, ProviderError, StubEvent, StubId,
};
use crate::supervise::{RestartDelays, RestartSchedule};

use crate::policy::malleability::{HostCapacity, HostShare};
use crate::programs::{ProgramAccess, ShippedProgram};
use springtide_protocol::job::Shutdown;
use springtide_protocol::names::{REGISTRAR, WORKER};
use springtide_protocol::node::RegisterAgain;
use springtide_protocol::receivers::{Registrar, Scheduler, Worker};
use springtide_protocol::scheduler::{
    Drain, NodeLoss, NodeRegistration, SiteRegistration, SiteReport, StubLossKind,
};
pub use springtide_protocol::site::*;

use self::keeper::{KeeperOrder, REPLACE_GRACE, StubExit, keep, stop, unless_ended};
use self::messages::{
    Poll, ProcessorLoss, ProcessorPending, ProgramStarting, RevocationNotice, SiteRegistered,
};
use self::programs::{NextStep, ProgramWait, SentPrograms};
use self::voice::{QueuedMessage, send_in_order};

/// Time to register after which a node is restarted.
const REGISTER_WITHIN: Duration = Duration::from_secs(30);
/// Delays before restarts of a node. They bound the load of a program that ends at once.
const RESTARTS: RestartDelays = RestartDelays {
    soon: 3,
    short: Duration::from_millis(200),
    first: Duration::from_secs(10),
    max: Duration::from_secs(300),
    recovered: Duration::from_secs(60),
};
/// Delay before an unreachable machine is tried again. It doubles with each failure, without limit
/// on the attempts.
const REACH_AGAIN: Duration = Duration::from_secs(1);
/// Number of failed attempts after which the scheduler does not wait for the node: it counts as
/// broken until it registers.
const AWAITED_ATTEMPTS: u32 = 3;
/// Maximum delay before a failing provider is asked again. The delay starts at the usual interval
/// and doubles.
const BACKOFF_MAX: Duration = Duration::from_secs(60);
/// Minimum timeout of requests to the scheduler.
const ASK_WITHIN: Duration = Duration::from_secs(5);
/// Parameters of a provider that holds processors on demand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnDemand {
    /// Interval of polls of the capacity.
    pub poll: Duration,
    /// Time for which an unneeded node is kept.
    pub keep: Duration,
    /// Hosts whose shares nodes are given; empty: nodes have a fixed size.
    pub hosts: Vec<HostCapacity>,
    /// Whether nodes are bound to the processors of their shares. Not where several hosts are parts
    /// of one machine.
    pub binds: bool,
}

impl Default for OnDemand {
    fn default() -> Self {
        let (poll, keep) = (Duration::from_secs(2), Duration::from_secs(2));
        Self { poll, keep, hosts: Vec::new(), binds: false }
    }
}

/// The site actor of a cluster.
pub struct Site {
    cluster: ClusterId,
    slots: BTreeMap<NodeId, NodeLifecycle>,
    provider: Rc<dyn Provider>,
    on_demand: OnDemand,
    scheduler: Remote<Scheduler>,
    /// Hub that reaches its nodes.
    hub: Arc<Hub>,
    /// Messages to the scheduler, in order; set when the site starts.
    messages: Option<mpsc::UnboundedSender<QueuedMessage>>,
    /// Whether existing stubs were taken over.
    taken_over: bool,
    /// Whether the current scheduler knows the site, so that messages about nodes are useful.
    introduced: bool,
    /// Number of failed polls since the last success.
    failures: u32,
    /// Stray stubs that are being ended, so that repeated registrations of a node do not end them
    /// twice.
    strays: Rc<RefCell<BTreeSet<StubId>>>,
    /// The last refusal of a processor by a working provider.
    denied: Option<Denied>,
    ending: bool,
    /// Whether a file server of the cluster is in this process.
    files: bool,
    /// Address of this process, if it is not the scheduler's.
    address: Option<Contact>,
    /// The programs of users, if this process keeps any.
    programs: Option<ProgramAccess>,
    sent: SentPrograms,
}

/// State of a node across its incarnations.
struct NodeLifecycle {
    request: NodeRequest,
    /// The site's own program.
    program: PathBuf,
    /// The program of a user that it is started with instead.
    shipped: Option<ShippedProgram>,
    /// Whether a process of that program has registered.
    proven: bool,
    /// The program that its next start waits for.
    pending: Option<ProgramWait>,
    /// Its share of a host, where the cluster has hosts.
    share: Option<HostShare>,
    /// Number of processes started for it. Messages about earlier ones are recognised by it.
    round: u64,
    keeper: Option<mpsc::Sender<KeeperOrder>>,
    registered: Option<Incarnation>,
    /// Its last registration.
    registration: Option<NodeRegistration>,
    /// Whether the current scheduler knows this incarnation.
    known: bool,
    /// Whether its program is being started, or was.
    active: bool,
    /// Deadline of its registration.
    expected: Option<Instant>,
    restarts: RestartSchedule,
    /// Time of its next start, while it is down.
    retry: Option<Instant>,
    /// Failed attempts to reach its machine since the last success.
    unreached: u32,
    /// Why the provider has not given it a processor yet.
    waits: Option<String>,
}

impl NodeLifecycle {
    /// Makes the next process of the node use this share of a host.
    fn take_share(&mut self, share: HostShare, binds: bool) {
        let request = &mut self.request;
        request.threads = u32::try_from(share.processors.len()).unwrap_or(u32::MAX);
        request.host = Some(share.host.clone());
        let names: BTreeSet<&str> = SHARE_VARIABLES.into_iter().collect();
        request.env.retain(|(name, _)| !names.contains(name.as_str()));
        request.env.extend(share_variables(&share, binds));
        self.share = Some(share);
    }
}

/// Variables by which a node learns its share of a host.
const SHARE_VARIABLES: [&str; 6] = [
    "SPRINGTIDE_WORK__THREADS",
    "SPRINGTIDE_SHARE__PROCESSORS",
    "SPRINGTIDE_SHARE__MEMORY",
    "SPRINGTIDE_DEVICES",
    "CUDA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
];

/// The variables of a share. Devices that are called `gpu` are also named as their libraries
/// expect.
fn share_variables(share: &HostShare, binds: bool) -> Vec<(String, String)> {
    let list = |positions: &BTreeSet<u32>| {
        positions.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
    };
    let [threads, processors, memory, devices, cuda, rocr] = SHARE_VARIABLES;
    let mut all = vec![(threads.to_owned(), share.processors.len().to_string())];
    if binds {
        all.push((processors.to_owned(), list(&share.processors)));
    }
    if share.memory > 0 {
        all.push((memory.to_owned(), format!("{}B", share.memory)));
    }
    if !share.devices.is_empty() {
        let named = share.devices.iter().map(|(name, at)| format!("{name}:{}", list(at)));
        all.push((devices.to_owned(), named.collect::<Vec<_>>().join(" ")));
    }
    if let Some(gpus) = share.devices.get("gpu") {
        all.extend([cuda, rocr].map(|name| (name.to_owned(), list(gpus))));
    }
    all
}

/// Refused processors: the number of consecutive refusals, and the end of the pause.
struct Denied {
    reason: String,
    count: u32,
    until: Instant,
    /// Whether the scheduler knows.
    reported: bool,
}

impl Site {
    /// Creates a site with these nodes.
    pub fn new(
        cluster: ClusterId,
        requests: Vec<NodeRequest>,
        provider: Rc<dyn Provider>,
        on_demand: OnDemand,
        scheduler: Remote<Scheduler>,
        hub: Arc<Hub>,
    ) -> Self {
        let slot = |request: NodeRequest| NodeLifecycle {
            program: request.program.clone(),
            request,
            shipped: None,
            proven: false,
            pending: None,
            share: None,
            round: 0,
            keeper: None,
            registered: None,
            registration: None,
            known: false,
            active: false,
            expected: None,
            restarts: RestartSchedule::new(RESTARTS),
            retry: None,
            unreached: 0,
            waits: None,
        };
        let slots = requests.into_iter().map(|r| (r.node.clone(), slot(r))).collect();
        Self {
            cluster,
            slots,
            provider,
            on_demand,
            scheduler,
            hub,
            messages: None,
            taken_over: false,
            introduced: false,
            failures: 0,
            strays: Rc::default(),
            denied: None,
            ending: false,
            files: false,
            address: None,
            programs: None,
            sent: SentPrograms::default(),
        }
    }

    /// Marks the site as a process of its own at this address: the scheduler's process may restart.
    pub fn is_own(&mut self, at: Contact) {
        self.address = Some(at);
    }

    /// Marks the cluster as keeping files, with a file server in this process.
    pub fn keeps_files(&mut self) {
        self.files = true;
    }

    /// Lets the site start programs that this store receives.
    pub fn starts_from(&mut self, programs: ProgramAccess) {
        self.programs = Some(programs);
    }

    /// Sends a message to the scheduler, in order.
    fn report<M>(&self, message: M)
    where
        Scheduler: Receives<M>,
        M: RemoteMessage<Result = ()> + Clone,
    {
        let message: QueuedMessage = Box::new(move |scheduler: &Remote<Scheduler>| {
            let (scheduler, message) = (scheduler.clone(), message.clone());
            Box::pin(async move { scheduler.send(message).await })
        });
        self.put(message);
    }

    fn put(&self, message: QueuedMessage) {
        if let Some(messages) = &self.messages {
            // The receiver lives as long as this actor.
            let _ = messages.send(message);
        }
    }

    /// Starts a node. With `listed`, takes over its existing stub.
    fn start(&mut self, ctx: &mut Context<Self>, node: &NodeId, listed: Option<ExistingStub>) {
        let on_demand = self.provider.on_demand();
        let Some(slot) = self.slots.get_mut(node) else { return };
        if self.ending {
            return;
        }
        slot.round += 1;
        if listed.is_none() {
            // A taken-over node may have registered before.
            slot.registered = None;
        }
        (slot.active, slot.expected, slot.waits, slot.retry) = (false, None, None, None);
        let (order, mut orders) = mpsc::channel(4);
        slot.keeper = Some(order);
        let (round, request) = (slot.round, slot.request.clone());
        let (provider, site) = (Rc::clone(&self.provider), ctx.address());
        let (active, node) = (ProgramStarting { node: node.clone(), round }, node.clone());
        let keeper = async move {
            let asked = async {
                match &listed {
                    Some(listed) => provider.adopt(listed, &request).await,
                    None => provider.hold(&request).await,
                }
            };
            let held = match on_demand {
                // A request to a batch system cannot be cancelled before the system has returned
                // its identifier.
                true => Some(asked.await),
                false => unless_ended(asked, &mut orders).await,
            };
            let Some(held) = held else { return };
            let to = site.clone();
            let ProgramStarting { node: starting, round: of } = active.clone();
            let on_event = move |event| match event {
                StubEvent::Active => to.do_send(active.clone()),
                StubEvent::Waits { reason } => {
                    to.do_send(ProcessorPending { node: starting.clone(), round: of, reason });
                }
                StubEvent::Warned { within, reason } => {
                    to.do_send(RevocationNotice { node: starting.clone(), within, reason });
                }
                StubEvent::Ended(_) => {}
            };
            let end = match held {
                Ok(stub) => keep(stub, orders, on_event).await,
                Err(error) => StubExit::Never(error),
            };
            // The site stops only when the head ends.
            let _ = site.send(ProcessorLoss { node, round, end }).await;
        };
        actix::spawn(keeper);
    }

    /// Expects a registration from a started program.
    fn expect(&mut self, ctx: &mut Context<Self>, node: NodeId) {
        let Some(slot) = self.slots.get_mut(&node) else { return };
        let by = Instant::now() + REGISTER_WITHIN;
        slot.expected = Some(by);
        let round = slot.round;
        ctx.run_later(REGISTER_WITHIN, move |site, _| {
            site.late(&Late { node, round, deadline: by })
        });
    }

    fn late(&mut self, late: &Late) {
        let Some(slot) = self.slots.get(&late.node) else { return };
        let Some(keeper) = &slot.keeper else { return };
        // Another program may have been started since, with its own deadline.
        let awaited = slot.round == late.round && slot.expected == Some(late.deadline);
        if awaited && slot.registered.is_none() {
            tracing::warn!(
                "node {} did not register within {REGISTER_WITHIN:?} and is killed",
                late.node
            );
            // If the channel is full or closed, it is being ended already.
            let _ = keeper.try_send(KeeperOrder::Kill);
        }
    }

    /// Handles the end of a node's process by itself.
    fn exited(
        &mut self,
        ctx: &mut Context<Self>,
        node: &NodeId,
        mut reason: String,
        kind: StubLossKind,
    ) {
        let on_demand = self.provider.on_demand();
        let Some(slot) = self.slots.get_mut(node) else { return };
        (slot.keeper, slot.unreached) = (None, 0);
        let never = slot.registered.take().is_none();
        let refused = never && self.start_failed(node, &reason);
        if on_demand {
            let kind = if refused { StubLossKind::NoProgram } else { kind };
            return self.stub_lost(node.clone(), reason, kind);
        }
        if never {
            reason = format!("it did not register: {reason}");
        }
        self.restart(ctx, node, reason);
    }

    /// Restarts a node that has ended: soon at first, then with increasing delays. Jobs wait for a
    /// node that restarts soon.
    fn restart(&mut self, ctx: &mut Context<Self>, node: &NodeId, mut reason: String) {
        let now = Instant::now();
        let Some(slot) = self.slots.get_mut(node) else { return };
        let wait = slot.restarts.failed(now) - now;
        let returns = slot.restarts.is_soon();
        if !returns {
            reason = format!("it ended {} times in a row: {reason}", slot.restarts.failures());
        }
        tracing::info!("node {node} restarts in {wait:?}: {reason}");
        self.lost(node, reason, returns, Some(wait));
        self.start_in(ctx, node, wait);
    }

    /// Informs the scheduler that a node is down, and when it restarts.
    fn lost(&self, node: &NodeId, reason: String, returns: bool, retry: Option<Duration>) {
        let retry_ms = retry.map(|wait| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
        self.report(NodeLoss { node: node.clone(), reason, returns, retry_ms });
    }

    fn start_in(&mut self, ctx: &mut Context<Self>, node: &NodeId, wait: Duration) {
        let Some(slot) = self.slots.get_mut(node) else { return };
        slot.retry = Some(Instant::now() + wait);
        let (node, round) = (node.clone(), slot.round);
        ctx.run_later(wait, move |site, ctx| {
            if site.slots.get(&node).is_some_and(|slot| slot.round == round) {
                site.start(ctx, &node, None);
            }
        });
    }

    /// Handles the failure to obtain a processor for a node.
    fn never(&mut self, ctx: &mut Context<Self>, node: &NodeId, error: &ProviderError) {
        let Some(slot) = self.slots.get_mut(node) else { return };
        (slot.keeper, slot.registered) = (None, None);
        let refused = !error.is_transient() && self.start_refused(node, error);
        if self.provider.on_demand() {
            let kind = if refused {
                StubLossKind::NoProgram
            } else if !self.on_demand.hosts.is_empty() {
                StubLossKind::Ended // the scheduler leaves its host out
            } else if matches!(error, ProviderError::Refused { .. }) {
                StubLossKind::Refused // no failure: other jobs may fit
            } else {
                self.denied(&error.to_string());
                StubLossKind::Unreachable
            };
            let reason = format!("no processor was available: {error}");
            return self.stub_lost(node.clone(), reason, kind);
        }
        if !error.is_transient() {
            return self.restart(ctx, node, format!("it cannot be started: {error}"));
        }
        let Some(slot) = self.slots.get_mut(node) else { return };
        // An unreachable machine implies nothing about its program.
        let wait = backoff(REACH_AGAIN, slot.unreached);
        slot.unreached = slot.unreached.saturating_add(1);
        // The scheduler stops waiting for a machine that stays unreachable; its node registers when
        // it is back.
        let returns = slot.unreached <= AWAITED_ATTEMPTS;
        let reason = format!("it cannot be started, and is retried in {wait:?}: {error}");
        tracing::info!("node {node}: {reason}");
        self.lost(node, reason, returns, Some(wait));
        self.start_in(ctx, node, wait);
    }

    /// Takes over existing stubs of a former process of this site, and ends those of unknown nodes.
    /// Only then the scheduler learns of the site.
    fn take_over(&mut self, ctx: &mut Context<Self>) {
        let provider = Rc::clone(&self.provider);
        let listed = async move { provider.list().await };
        let on_done = |listed: Result<Vec<ExistingStub>, ProviderError>,
                       site: &mut Self,
                       ctx: &mut Context<Self>| {
            match listed {
                Ok(listed) => {
                    site.failures = 0;
                    site.up(ctx, listed);
                    ctx.address().do_send(Poll);
                }
                Err(error) => {
                    // Continuing without the list could hold the same nodes twice.
                    let wait = site.failed(&error.to_string());
                    ctx.run_later(wait, Self::take_over);
                }
            }
        };
        ctx.spawn(listed.into_actor(self).map(on_done));
    }

    fn up(&mut self, ctx: &mut Context<Self>, listed: Vec<ExistingStub>) {
        self.taken_over = true;
        let nodes: Vec<NodeId> = self.slots.keys().cloned().collect();
        let on_demand = self.provider.on_demand();
        let known = |listed: &ExistingStub| self.slots.contains_key(&listed.node);
        let (known, unknown): (Vec<ExistingStub>, Vec<ExistingStub>) =
            listed.into_iter().partition(known);
        self.introduce(ctx, known.iter().map(|listed| listed.node.clone()).collect());
        for listed in unknown {
            tracing::info!(
                "stub {} of {}, which is not a node of this site, is ended",
                listed.id,
                listed.node
            );
            self.end_stray(listed);
        }
        for listed in known {
            tracing::info!("stub {} of {} is taken over", listed.id, listed.node);
            let node = listed.node.clone();
            self.start(ctx, &node, Some(listed));
        }
        let starts = !on_demand && !self.provider.joins();
        let all = nodes.iter().filter(|_| starts);
        for node in all {
            if self.slots.get(node).is_some_and(|slot| slot.keeper.is_none()) {
                self.start(ctx, node, None);
            }
        }
    }

    /// Introduces the site to the scheduler, with the nodes in `stubs` present or under way.
    /// Afterwards the nodes are reported.
    fn introduce(&mut self, ctx: &mut Context<Self>, stubs: BTreeSet<NodeId>) {
        self.introduced = false;
        for slot in self.slots.values_mut() {
            slot.known = false;
        }
        let keep_ms = u64::try_from(self.on_demand.keep.as_millis()).unwrap_or(u64::MAX);
        let shares = stubs.iter().filter_map(|node| {
            let share = self.slots.get(node)?.share.clone()?;
            Some((node.clone(), share))
        });
        let threads = self.slots.values().map(|slot| slot.request.threads).max();
        let threads = threads.filter(|_| !self.provider.joins() && self.on_demand.hosts.is_empty());
        let message = SiteRegistration {
            threads: threads.unwrap_or(0),
            hosts: self.on_demand.hosts.clone(),
            shares: shares.collect(),
            cluster: self.cluster.clone(),
            nodes: self.slots.keys().cloned().collect(),
            starts_programs: self.starts_paths(),
            receives_programs: self.receives_programs(),
            keep_ms: self.provider.on_demand().then_some(keep_ms),
            stubs,
            files: self.files,
            at: self.address.clone(),
            joins: self.provider.joins(),
        };
        let site = ctx.address();
        let message: QueuedMessage = Box::new(move |scheduler: &Remote<Scheduler>| {
            let (scheduler, message, site) = (scheduler.clone(), message.clone(), site.clone());
            Box::pin(async move {
                scheduler.send(message).await?;
                site.do_send(SiteRegistered);
                Ok(())
            })
        });
        self.put(message);
    }

    /// Requests a new registration of a node, which knows its current job. Its last registration
    /// may be outdated.
    fn request_registration(
        &self,
        ctx: &mut Context<Self>,
        node: NodeId,
        incarnation: Incarnation,
    ) {
        let registrar: Remote<Registrar> = self.hub.remote(&node, REGISTRAR);
        let asked = async move { registrar.send(RegisterAgain {}).deadline(ASK_WITHIN).await };
        let on_done = move |answer: Result<(), RemoteError>,
                            site: &mut Self,
                            _: &mut Context<Self>| {
            // An unreachable node registers when its link is back. A node of an older version
            // cannot be asked.
            let Err(RemoteError::NoActor { .. }) = answer else { return };
            let slot = site.slots.get_mut(&node);
            if let Some(slot) = slot.filter(|it| it.registered == Some(incarnation) && !it.known)
                && let Some(registration) = slot.registration.clone()
            {
                slot.known = true;
                site.report(registration);
            }
        };
        ctx.spawn(asked.into_actor(self).map(on_done));
    }

    /// Orders a node that joined by itself, and was declared dead, to restart. If it is dead, the
    /// order is lost.
    fn order_restart(&self, node: NodeId, reason: String) {
        let worker: Remote<Worker> = self.hub.remote(&node, WORKER);
        actix::spawn(async move {
            let reason = format!("it must restart: {reason}");
            if let Err(error) = worker.send(Shutdown { reason }).deadline(ASK_WITHIN).await {
                tracing::info!("the order to restart did not reach node {node}: {error}");
            }
        });
    }

    /// Ends a stray stub of a node without a keeper: a batch job that started after it was given
    /// up.
    fn end_strays_of(&self, ctx: &mut Context<Self>, node: NodeId) {
        tracing::warn!("node {node} has registered without a held stub: looking for the stub");
        let provider = Rc::clone(&self.provider);
        let listed = async move { provider.list().await };
        let on_done = move |listed: Result<Vec<ExistingStub>, ProviderError>,
                            site: &mut Self,
                            _: &mut Context<Self>| {
            let held = |node| site.slots.get(node).is_some_and(|slot| slot.keeper.is_some());
            match listed {
                Ok(listed) => {
                    let strays = listed.into_iter().filter(|it| it.node == node && !held(&node));
                    for stray in strays.collect::<Vec<_>>() {
                        tracing::warn!("stub {} of {node} is ended: it was not held", stray.id);
                        site.end_stray(stray);
                    }
                }
                Err(error) => tracing::warn!("the stubs of {node} are unknown: {error}"),
            }
        };
        ctx.spawn(listed.into_actor(self).map(on_done));
    }

    fn end_stray(&self, listed: ExistingStub) {
        let provider = Rc::clone(&self.provider);
        let Some(like) = self.slots.values().next().map(|slot| slot.request.clone()) else {
            return;
        };
        let strays = Rc::clone(&self.strays);
        if !strays.borrow_mut().insert(listed.id.clone()) {
            return;
        }
        actix::spawn(async move {
            match provider.adopt(&listed, &like).await {
                Ok(mut stub) => drop(stub.release(REPLACE_GRACE).await),
                Err(error) => {
                    tracing::warn!("stub {} of {} is not ended: {error}", listed.id, listed.node)
                }
            }
            strays.borrow_mut().remove(&listed.id);
        });
    }

    /// Records a failure of the provider. Returns the delay before the next request.
    fn failed(&mut self, reason: &str) -> Duration {
        let wait = backoff(self.on_demand.poll, self.failures);
        self.failures = self.failures.saturating_add(1);
        tracing::warn!("{}: {reason}; retried in {wait:?}", self.cluster);
        let found = Err(reason.to_owned());
        self.report(SiteReport { cluster: self.cluster.clone(), found });
        wait
    }

    fn polled(&mut self, found: Result<Option<Capacity>, String>) -> Duration {
        match found {
            Ok(Some(Capacity { size, others })) => {
                self.failures = 0;
                if !self.is_denied() {
                    // Where nodes have a fixed size, the provider counts nodes.
                    let threads = self.slots.values().map(|slot| slot.request.threads).max();
                    let fixed = threads.filter(|_| self.on_demand.hosts.is_empty());
                    let each = fixed.unwrap_or(1).max(1);
                    let found = Ok((size.saturating_mul(each), others.saturating_mul(each)));
                    self.report(SiteReport { cluster: self.cluster.clone(), found });
                }
                self.on_demand.poll
            }
            Ok(None) => self.on_demand.poll,
            Err(reason) => {
                if let Some(denied) = &mut self.denied {
                    denied.reported = false;
                }
                self.failed(&reason)
            }
        }
    }

    /// Records a refused processor. Simultaneous refusals count once.
    fn denied(&mut self, reason: &str) {
        let now = Instant::now();
        let before = self.denied.as_ref().filter(|denied| now < denied.until + BACKOFF_MAX);
        let count = match before {
            Some(denied) if now < denied.until => return,
            Some(denied) => denied.count.saturating_add(1),
            None => 0,
        };
        let wait = backoff(self.on_demand.poll, count);
        tracing::warn!("{}: {reason}; no requests for {wait:?}", self.cluster);
        let (reason, until, reported) = (reason.to_owned(), now + wait, false);
        self.denied = Some(Denied { reason, count, until, reported });
        self.is_denied();
    }

    /// Whether requests for processors pause although the provider works. Reports the reason to the
    /// scheduler once.
    fn is_denied(&mut self) -> bool {
        let now = Instant::now();
        let Some(denied) = self.denied.as_mut().filter(|denied| now < denied.until) else {
            return false;
        };
        if !std::mem::replace(&mut denied.reported, true) {
            let found = Err(denied.reason.clone());
            self.report(SiteReport { cluster: self.cluster.clone(), found });
        }
        true
    }
}

/// Delay before a provider is asked again after this number of earlier failures in a row.
fn backoff(usual: Duration, failures: u32) -> Duration {
    usual.saturating_mul(1 << failures.min(16)).min(BACKOFF_MAX).max(usual)
}

impl Site {
    /// Ends the process of a node, and starts another one by its request.
    fn replace_process(&mut self, ctx: &mut Context<Self>, node: NodeId) {
        let on_demand = self.provider.on_demand();
        let Some(slot) = self.slots.get_mut(&node) else { return };
        if on_demand && let Some(keeper) = &slot.keeper {
            // If the channel is full or closed, it is ending, and its end will be reported.
            let _ = keeper.try_send(KeeperOrder::Recruit(Box::new(slot.request.clone())));
            // A node without a processor may wait long.
            if slot.active {
                self.expect(ctx, node);
            }
            return;
        }
        let old = slot.keeper.take();
        slot.round += 1; // messages about the current process become void
        let ended = async move {
            if let Some(keeper) = old {
                stop(&keeper, REPLACE_GRACE).await;
            }
        };
        let on_done =
            move |(), site: &mut Site, ctx: &mut Context<Site>| site.start(ctx, &node, None);
        ctx.spawn(ended.into_actor(self).map(on_done));
    }
}

impl Actor for Site {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        let (messages, all) = mpsc::unbounded_channel();
        self.messages = Some(messages);
        let patient = self.address.is_some();
        ctx.spawn(send_in_order(all, self.scheduler.clone(), patient).into_actor(self));
        if self.provider.on_demand() {
            self.take_over(ctx);
        } else {
            self.up(ctx, Vec::new());
        }
    }
}

impl Handler<Register> for Site {
    type Result = Result<(), RegisterError>;

    fn handle(&mut self, message: Register, ctx: &mut Self::Context) -> Self::Result {
        let node = message.contact.node;
        let Some(slot) = self.slots.get_mut(&node) else {
            let known: Vec<_> = self.slots.keys().map(NodeId::as_str).collect();
            let known = known.join(", ");
            return Err(RegisterError::UnknownNode { cluster: self.cluster.clone(), node, known });
        };
        if slot.registered.is_some_and(|known| known > message.incarnation) {
            return Err(RegisterError::Stale { node, known: slot.registered });
        }
        if self.taken_over && slot.keeper.is_none() && self.provider.on_demand() {
            self.end_strays_of(ctx, node);
            return Ok(());
        }
        let again = slot.registered.replace(message.incarnation) == Some(message.incarnation);
        slot.proven = true;
        let program = slot.shipped.as_ref().map(|shipped| shipped.image.digest);
        if let Some(digest) = &program {
            self.sent.works(digest);
        }
        let registered = NodeRegistration {
            cluster: self.cluster.clone(),
            node,
            incarnation: message.incarnation,
            address: message.contact.address,
            threads: message.threads,
            fingerprint: message.fingerprint,
            pid: message.pid,
            hardware: message.hardware,
            work: message.work,
            program,
        };
        slot.registration = Some(registered.clone());
        if slot.pending.is_some() {
            return Ok(()); // for the scheduler, it starts with another program already
        }
        // A scheduler that does not know the site yet would not know the node: it is asked to
        // register later. A scheduler that knows this incarnation has more current data on its job.
        // A node that joined by itself is monitored by its link, and the scheduler may have
        // declared it lost.
        if self.introduced && (self.provider.joins() || !(again && slot.known)) {
            slot.known = true;
            self.report(registered);
        }
        Ok(())
    }
}

impl Handler<RestartNodes> for Site {
    type Result = ();

    fn handle(&mut self, message: RestartNodes, ctx: &mut Self::Context) {
        if let Some(shipped) = message.shipped {
            return self.obtain(ctx, message.nodes, shipped, NextStep::Restart);
        }
        for node in message.nodes {
            if !self.slots.contains_key(&node) {
                continue;
            }
            tracing::info!("node {node} is restarted by order: {}", message.reason);
            if let Some(program) = &message.program {
                let given = self.path_of(Some(program));
                let Some(slot) = self.slots.get_mut(&node) else { continue };
                slot.request.program = given.unwrap_or_else(|| slot.program.clone());
                self.drop_program(&node);
            }
            let Some(slot) = self.slots.get_mut(&node) else { continue };
            // Failures of another program do not count, and a waiting node is returned to service.
            if message.program.is_some() || slot.retry.is_some() {
                slot.restarts = RestartSchedule::new(RESTARTS);
            }
            (slot.registered, slot.unreached) = (None, 0);
            if self.provider.joins() {
                self.order_restart(node, message.reason.clone());
                continue;
            }
            self.replace_process(ctx, node);
        }
    }
}

impl Handler<ExcludeNode> for Site {
    type Result = ();

    fn handle(&mut self, ExcludeNode { node, reason }: ExcludeNode, _: &mut Self::Context) {
        let Some(slot) = self.slots.get_mut(&node) else { return };
        if slot.registered.take().is_some() {
            self.lost(&node, reason, false, None);
        }
    }
}

impl Handler<StartStubs> for Site {
    type Result = ();

    fn handle(&mut self, message: StartStubs, ctx: &mut Self::Context) {
        tracing::info!("starts {} nodes: {}", message.nodes.len(), message.reason);
        let mut shares = message.shares;
        let mut waiting = Vec::new();
        for node in message.nodes {
            let Some(slot) = self.slots.get_mut(&node) else { continue };
            if slot.keeper.is_some() || slot.pending.is_some() {
                continue; // the stub exists or is under way
            }
            if let Some(share) = shares.remove(&node) {
                slot.take_share(share, self.on_demand.binds);
            }
            if message.shipped.is_some() {
                waiting.push(node);
                continue;
            }
            let given = self.path_of(message.program.as_ref());
            let Some(slot) = self.slots.get_mut(&node) else { continue };
            slot.request.program = given.unwrap_or_else(|| slot.program.clone());
            self.drop_program(&node);
            self.start(ctx, &node, None);
        }
        if let Some(shipped) = message.shipped {
            self.obtain(ctx, waiting, shipped, NextStep::Start);
        }
    }
}

impl Handler<EndStubs> for Site {
    type Result = ();

    fn handle(&mut self, message: EndStubs, ctx: &mut Self::Context) {
        tracing::info!("ends {} nodes: {}", message.nodes.len(), message.reason);
        for node in message.nodes {
            let Some(slot) = self.slots.get_mut(&node) else { continue };
            if slot.pending.take().is_some() && slot.keeper.is_none() {
                self.stub_lost(node, message.reason.clone(), StubLossKind::Ended);
                continue;
            }
            let Some(slot) = self.slots.get_mut(&node) else { continue };
            let keeper = slot.keeper.clone();
            let (round, mut reason) = (slot.round, message.reason.clone());
            if let Some(why) = slot.waits.as_ref().filter(|_| !slot.active) {
                reason = format!("{reason}; it was still waiting for its processor: {why}");
            }
            let closed = async move {
                if let Some(keeper) = keeper {
                    stop(&keeper, REPLACE_GRACE).await;
                }
            };
            let on_done = move |(), site: &mut Site, _: &mut Context<Site>| {
                let current =
                    |slot: &&mut NodeLifecycle| slot.round == round && slot.keeper.is_some();
                // Otherwise it ended by itself and was reported, and a new stub may be requested
                // already.
                if let Some(slot) = site.slots.get_mut(&node).filter(current) {
                    (slot.keeper, slot.registered) = (None, None);
                    site.stub_lost(node, reason, StubLossKind::Ended);
                }
            };
            ctx.spawn(closed.into_actor(self).map(on_done));
        }
    }
}

impl Handler<ReportEverything> for Site {
    type Result = ();

    fn handle(&mut self, _: ReportEverything, ctx: &mut Self::Context) {
        // The stubs are unknown before the takeover, which introduces the site.
        if self.ending || !self.taken_over {
            return;
        }
        let there = self.slots.iter().filter(|(_, slot)| slot.keeper.is_some());
        let there = there.map(|(node, _)| node.clone()).collect();
        self.introduce(ctx, there);
    }
}

impl Handler<SiteRegistered> for Site {
    type Result = ();

    fn handle(&mut self, _: SiteRegistered, ctx: &mut Self::Context) {
        self.introduced = true;
        let now = Instant::now();
        for (node, slot) in &self.slots {
            if let Some(incarnation) = slot.registered {
                self.request_registration(ctx, node.clone(), incarnation);
            } else if let Some(at) = slot.retry.filter(|_| !slot.restarts.is_soon()) {
                let reason = format!("it ended {} times in a row", slot.restarts.failures());
                self.lost(node, reason, false, Some(at.saturating_duration_since(now)));
            }
        }
        if let Some(denied) = &mut self.denied {
            denied.reported = false;
        }
        self.is_denied();
    }
}

impl Handler<LeaveJobs> for Site {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, message: LeaveJobs, _: &mut Self::Context) -> Self::Result {
        let LeaveJobs { timeout: within, reason } = message;
        let deadline_ms = Some(u64::try_from(within.as_millis()).unwrap_or(u64::MAX));
        let running = self.slots.iter().filter_map(|(node, slot)| Some((node, slot.registered?)));
        let leaves: Vec<_> = running
            .map(|(node, incarnation)| {
                // Applies to this incarnation only: after a restart of the site its node may work
                // again.
                let (nodes, incarnation, reason) =
                    (vec![node.clone()], Some(incarnation), reason.clone());
                let drain = Drain { nodes, reason, deadline_ms, incarnation };
                let scheduler = self.scheduler.clone();
                actix::spawn(async move { scheduler.send(drain).deadline(within).await })
            })
            .collect();
        Box::pin(async move {
            for leave in leaves {
                if let Ok(Ok(Err(error))) = leave.await {
                    tracing::info!("a node does not leave its job: {error}");
                }
            }
        })
    }
}

impl Handler<ListNodes> for Site {
    type Result = Vec<NodeId>;

    fn handle(&mut self, _: ListNodes, _: &mut Self::Context) -> Self::Result {
        let held = self.slots.iter().filter(|(_, slot)| slot.keeper.is_some());
        held.map(|(node, _)| node.clone()).collect()
    }
}

impl Handler<LeaveNodes> for Site {
    type Result = ();

    fn handle(&mut self, _: LeaveNodes, _: &mut Self::Context) {
        self.ending = true;
        // Without its sender, a keeper releases its stub.
        self.slots.values_mut().for_each(|slot| slot.keeper = None);
    }
}

impl Handler<EndNodes> for Site {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, message: EndNodes, _: &mut Self::Context) -> Self::Result {
        self.ending = true;
        let keepers: Vec<_> = self.slots.values_mut().filter_map(|s| s.keeper.take()).collect();
        let stops: Vec<_> = keepers
            .into_iter()
            .map(|keeper| actix::spawn(async move { stop(&keeper, message.grace).await }))
            .collect();
        Box::pin(async move {
            for stop in stops {
                let _ = stop.await;
            }
        })
    }
}

struct Late {
    node: NodeId,
    round: u64,
    deadline: Instant,
}

#[cfg(test)]
mod tests;
