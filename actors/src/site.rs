//! The site: one a cluster. It starts the cluster's nodes through a provider, takes their registration, starts those anew
//! that end, and ends them all. Where the provider holds processors on demand (a batch system), nodes are there only while
//! the scheduler wants them: none is started anew, and what the cluster has is polled. Where nodes join by themselves, it takes their
//! word, and starts and ends none.
//!
//! Must not know jobs: what a node's end means to a job is the scheduler's to say.

mod keeper;
mod messages;
mod news;
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
use springtide_runtime::remote::{Hub, Remote, RemoteError, RemoteMessage};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::job::{Shutdown, WORKER};
use crate::node::{REGISTRAR, RegisterAnew, Registrar};
use crate::provider::{Capacity, Listed, NodeRequest, Provider, ProviderError, StubId, StubNews};
use crate::scheduler::{Drain, NodeLost, Registered, Scheduler, SitePolled, SiteUp, StubGone};
use crate::supervise::{RestartDelays, Restarts};
use crate::worker::Worker;

pub use self::messages::{
    Announce, CloseStubs, EndNodes, Expelled, GetHeld, HoldStubs, LeaveJobs, LeaveNodes, Register,
    RegisterError, StartAnew,
};

use self::keeper::{End, Order, REPLACE_GRACE, keep, stop, unless_ended};
use self::news::{Active, Exited, Introduced, Poll, Waits, Warned};
use self::voice::{Word, say};

/// A node that has not registered after this time is started anew.
const REGISTER_WITHIN: Duration = Duration::from_secs(30);
/// Delays before restarts of a node. A program that ends at once does not keep the machine busy.
const RESTARTS: RestartDelays = RestartDelays {
    soon: 3,
    short: Duration::from_millis(200),
    first: Duration::from_secs(10),
    max: Duration::from_secs(300),
    recovered: Duration::from_secs(60),
};
/// A machine that could not be reached is tried again after this time, then after twice that, and so on, without end.
const REACH_AGAIN: Duration = Duration::from_secs(1);
/// After so many attempts its node is not waited for any more: it is a broken one until it registers.
const AWAITED_ATTEMPTS: u32 = 3;
/// A provider that fails is asked again after its usual time, then twice that, and so on to this.
const BACKOFF_MAX: Duration = Duration::from_secs(60);
/// The least time that the scheduler has to answer.
const ASK_WITHIN: Duration = Duration::from_secs(5);
/// How a site uses a provider that holds processors on demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnDemand {
    /// How often it is asked what there is.
    pub poll: Duration,
    /// How long a node that no job needs is kept.
    pub keep: Duration,
}

impl Default for OnDemand {
    fn default() -> Self {
        Self { poll: Duration::from_secs(2), keep: Duration::from_secs(2) }
    }
}

/// The site actor.
pub struct Site {
    cluster: ClusterId,
    slots: BTreeMap<NodeId, Slot>,
    provider: Rc<dyn Provider>,
    on_demand: OnDemand,
    scheduler: Remote<Scheduler>,
    /// Where its nodes are reached.
    hub: Arc<Hub>,
    /// What the scheduler is to be told, in order; set when the site starts.
    words: Option<mpsc::UnboundedSender<Word>>,
    /// What was there already has been taken over.
    taken_over: bool,
    /// The scheduler that is there now has heard of the site: it can be told of its nodes.
    introduced: bool,
    /// Polls that failed since the last that did not.
    failures: u32,
    /// What is being ended of what nobody held: a node that registers again meanwhile is not looked for twice.
    strays: Rc<RefCell<BTreeSet<StubId>>>,
    /// The last processor that was not to be had although the provider answers.
    denied: Option<Denied>,
    ending: bool,
    /// A file server of the cluster is beside it.
    files: bool,
    /// Where this process is, if it is not the scheduler's.
    at: Option<Contact>,
}

/// A node's place: what is started there, life after life.
struct Slot {
    request: NodeRequest,
    /// The site's own program.
    program: PathBuf,
    /// Counts the processes started in it, so that late word of an earlier one is known as such.
    round: u64,
    keeper: Option<mpsc::Sender<Order>>,
    registered: Option<Incarnation>,
    /// What it said when it last registered.
    said: Option<Registered>,
    /// The scheduler that is there now has heard of this life of it.
    known: bool,
    /// Its program is being started, or was.
    active: bool,
    /// It is to have registered by then.
    expected: Option<Instant>,
    restarts: Restarts,
    /// When it is started again, while it is not there.
    retry: Option<Instant>,
    /// Attempts to reach its machine that failed since the last that did not.
    unreached: u32,
    /// Why the provider has not given it a processor yet, in its words.
    waits: Option<String>,
}

/// That processors were asked for in vain: how often in a row, and until when no more are.
struct Denied {
    reason: String,
    count: u32,
    until: Instant,
    /// The scheduler knows.
    told: bool,
}

impl Site {
    /// A site whose nodes are those of `requests`.
    pub fn new(
        cluster: ClusterId,
        requests: Vec<NodeRequest>,
        provider: Rc<dyn Provider>,
        on_demand: OnDemand,
        scheduler: Remote<Scheduler>,
        hub: Arc<Hub>,
    ) -> Self {
        let slot = |request: NodeRequest| Slot {
            program: request.program.clone(),
            request,
            round: 0,
            keeper: None,
            registered: None,
            said: None,
            known: false,
            active: false,
            expected: None,
            restarts: Restarts::new(RESTARTS),
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
            words: None,
            taken_over: false,
            introduced: false,
            failures: 0,
            strays: Rc::default(),
            denied: None,
            ending: false,
            files: false,
            at: None,
        }
    }

    /// It is in a process of its own, which is here: the scheduler's may go and come again.
    pub fn is_own(&mut self, at: Contact) {
        self.at = Some(at);
    }

    /// The cluster keeps files: a file server of it is in this process.
    pub fn keeps_files(&mut self) {
        self.files = true;
    }

    /// Tells the scheduler, in order.
    fn tell<M>(&self, message: M)
    where
        Scheduler: Handler<M>,
        M: RemoteMessage<Result = ()> + Clone,
    {
        let word: Word = Box::new(move |scheduler: &Remote<Scheduler>| {
            let (scheduler, message) = (scheduler.clone(), message.clone());
            Box::pin(async move { scheduler.send(message).await })
        });
        self.put(word);
    }

    fn put(&self, word: Word) {
        if let Some(words) = &self.words {
            // Its reader lives as long as this actor.
            let _ = words.send(word);
        }
    }

    /// Starts a node; `listed`: it is there, and is taken over.
    fn start(&mut self, ctx: &mut Context<Self>, node: &NodeId, listed: Option<Listed>) {
        let on_demand = self.provider.on_demand();
        let Some(slot) = self.slots.get_mut(node) else { return };
        if self.ending {
            return;
        }
        slot.round += 1;
        if listed.is_none() {
            // One that is taken over may have registered before it was found.
            slot.registered = None;
        }
        (slot.active, slot.expected, slot.waits, slot.retry) = (false, None, None, None);
        let (order, mut orders) = mpsc::channel(4);
        slot.keeper = Some(order);
        let (round, request) = (slot.round, slot.request.clone());
        let (provider, site) = (Rc::clone(&self.provider), ctx.address());
        let (active, node) = (Active { node: node.clone(), round }, node.clone());
        let keeper = async move {
            let asked = async {
                match &listed {
                    Some(listed) => provider.adopt(listed, &request).await,
                    None => provider.hold(&request).await,
                }
            };
            let held = match on_demand {
                // What a batch system was asked for cannot be taken back before it has said what that is called.
                true => Some(asked.await),
                false => unless_ended(asked, &mut orders).await,
            };
            let Some(held) = held else { return };
            let to = site.clone();
            let Active { node: whom, round: of } = active.clone();
            let news = move |news| match news {
                StubNews::Active => to.do_send(active.clone()),
                StubNews::Waits { reason } => {
                    to.do_send(Waits { node: whom.clone(), round: of, reason });
                }
                StubNews::Warned { within, reason } => {
                    to.do_send(Warned { node: whom.clone(), within, reason });
                }
                StubNews::Ended(_) => {}
            };
            let end = match held {
                Ok(stub) => keep(stub, orders, news).await,
                Err(error) => End::Never(error),
            };
            // The site is gone only when the head ends.
            let _ = site.send(Exited { node, round, end }).await;
        };
        actix::spawn(keeper);
    }

    /// The node's program has been started: it is to register soon.
    fn expect(&mut self, ctx: &mut Context<Self>, node: NodeId) {
        let Some(slot) = self.slots.get_mut(&node) else { return };
        let by = Instant::now() + REGISTER_WITHIN;
        slot.expected = Some(by);
        let round = slot.round;
        ctx.run_later(REGISTER_WITHIN, move |site, _| site.late(&Late { node, round, by }));
    }

    fn late(&mut self, late: &Late) {
        let Some(slot) = self.slots.get(&late.node) else { return };
        let Some(keeper) = &slot.keeper else { return };
        // Another program may have been started in its place meanwhile, and has its own time.
        let awaited = slot.round == late.round && slot.expected == Some(late.by);
        if awaited && slot.registered.is_none() {
            tracing::warn!(
                "node {} did not register within {REGISTER_WITHIN:?}: killed",
                late.node
            );
            // Full or closed: it is being ended already.
            let _ = keeper.try_send(Order::Kill);
        }
    }

    /// A node's process has ended by itself.
    fn exited(&mut self, ctx: &mut Context<Self>, node: &NodeId, mut reason: String) {
        let on_demand = self.provider.on_demand();
        let Some(slot) = self.slots.get_mut(node) else { return };
        (slot.keeper, slot.unreached) = (None, 0);
        let never = slot.registered.take().is_none();
        if on_demand {
            return self.tell(StubGone { node: node.clone(), reason });
        }
        if never {
            reason = format!("it did not register: {reason}");
        }
        self.restart(ctx, node, reason);
    }

    /// Starts a node again that has ended: soon at first, then after ever longer delays. Jobs wait for it
    /// while it comes soon.
    fn restart(&mut self, ctx: &mut Context<Self>, node: &NodeId, mut reason: String) {
        let now = Instant::now();
        let Some(slot) = self.slots.get_mut(node) else { return };
        let wait = slot.restarts.failed(now) - now;
        let returns = slot.restarts.is_soon();
        if !returns {
            reason = format!("it ended {} times in a row: {reason}", slot.restarts.failures());
        }
        tracing::info!("node {node} is started again in {wait:?}: {reason}");
        self.lost(node, reason, returns, Some(wait));
        self.start_in(ctx, node, wait);
    }

    /// Tells the scheduler that a node is not there, and when it is started again.
    fn lost(&self, node: &NodeId, reason: String, returns: bool, retry: Option<Duration>) {
        let retry_ms = retry.map(|wait| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
        self.tell(NodeLost { node: node.clone(), reason, returns, retry_ms });
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

    /// No processor was got for a node, so there never was a process.
    fn never(&mut self, ctx: &mut Context<Self>, node: &NodeId, error: &ProviderError) {
        let Some(slot) = self.slots.get_mut(node) else { return };
        (slot.keeper, slot.registered) = (None, None);
        if self.provider.on_demand() {
            self.denied(&error.to_string());
            let reason = format!("it was not to be had: {error}");
            return self.tell(StubGone { node: node.clone(), reason });
        }
        if !error.may_pass() {
            return self.restart(ctx, node, format!("it cannot be started: {error}"));
        }
        // That its machine is away for a while says nothing about its program.
        let wait = backoff(REACH_AGAIN, slot.unreached);
        slot.unreached = slot.unreached.saturating_add(1);
        // Whoever waits for all nodes need not wait for a machine that stays away; when it is back, its node registers.
        let returns = slot.unreached <= AWAITED_ATTEMPTS;
        let reason = format!("it cannot be started, and is tried again in {wait:?}: {error}");
        tracing::info!("node {node}: {reason}");
        self.lost(node, reason, returns, Some(wait));
        self.start_in(ctx, node, wait);
    }

    /// Takes over the stubs that are there already, of a former life of this site, and ends those of nodes it does not have. Only
    /// then the scheduler hears of the site.
    fn take_over(&mut self, ctx: &mut Context<Self>) {
        let provider = Rc::clone(&self.provider);
        let listed = async move { provider.list().await };
        let then = |listed: Result<Vec<Listed>, ProviderError>,
                    site: &mut Self,
                    ctx: &mut Context<Self>| {
            match listed {
                Ok(listed) => {
                    site.failures = 0;
                    site.up(ctx, listed);
                    ctx.address().do_send(Poll);
                }
                Err(error) => {
                    // To go on without knowing them would be to hold the same nodes twice.
                    let wait = site.failed(&error.to_string());
                    ctx.run_later(wait, Self::take_over);
                }
            }
        };
        ctx.spawn(listed.into_actor(self).map(then));
    }

    fn up(&mut self, ctx: &mut Context<Self>, listed: Vec<Listed>) {
        self.taken_over = true;
        let nodes: Vec<NodeId> = self.slots.keys().cloned().collect();
        let on_demand = self.provider.on_demand();
        let known = |listed: &Listed| self.slots.contains_key(&listed.node);
        let (known, unknown): (Vec<Listed>, Vec<Listed>) = listed.into_iter().partition(known);
        self.say_up(ctx, known.iter().map(|listed| listed.node.clone()).collect());
        for listed in unknown {
            tracing::info!(
                "stub {} of {}, which is no node of this site, ends",
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

    /// The scheduler hears of the site; `stubs`: nodes that are there, or coming. When it has, it is told of the nodes.
    fn say_up(&mut self, ctx: &mut Context<Self>, stubs: BTreeSet<NodeId>) {
        self.introduced = false;
        for slot in self.slots.values_mut() {
            slot.known = false;
        }
        let keep_ms = u64::try_from(self.on_demand.keep.as_millis()).unwrap_or(u64::MAX);
        let message = SiteUp {
            cluster: self.cluster.clone(),
            nodes: self.slots.keys().cloned().collect(),
            starts_programs: self.provider.starts_programs(),
            keep_ms: self.provider.on_demand().then_some(keep_ms),
            stubs,
            files: self.files,
            at: self.at.clone(),
            joins: self.provider.joins(),
        };
        let site = ctx.address();
        let word: Word = Box::new(move |scheduler: &Remote<Scheduler>| {
            let (scheduler, message, site) = (scheduler.clone(), message.clone(), site.clone());
            Box::pin(async move {
                scheduler.send(message).await?;
                site.do_send(Introduced);
                Ok(())
            })
        });
        self.put(word);
    }

    /// Has a node register again: what it works for now it knows itself, and what it said long ago may be over.
    fn ask_anew(&self, ctx: &mut Context<Self>, node: NodeId, life: Incarnation) {
        let registrar: Remote<Registrar> = self.hub.remote(&node, REGISTRAR);
        let asked = async move { registrar.send(RegisterAnew {}).deadline(ASK_WITHIN).await };
        let then =
            move |answer: Result<(), RemoteError>, site: &mut Self, _: &mut Context<Self>| {
                // One that is not reached registers when its link is back. One of a former version cannot be asked.
                let Err(RemoteError::NoActor { .. }) = answer else { return };
                let slot = site.slots.get_mut(&node);
                if let Some(slot) = slot.filter(|it| it.registered == Some(life) && !it.known)
                    && let Some(said) = slot.said.clone()
                {
                    slot.known = true;
                    site.tell(said);
                }
            };
        ctx.spawn(asked.into_actor(self).map(then));
    }

    /// Tells a node that joined by itself, and was taken for dead, to begin a new life. One that is dead indeed does not hear it.
    fn begin_anew(&self, node: NodeId, reason: String) {
        let worker: Remote<Worker> = self.hub.remote(&node, WORKER);
        actix::spawn(async move {
            let reason = format!("it is to begin anew: {reason}");
            if let Err(error) = worker.send(Shutdown { reason }).deadline(ASK_WITHIN).await {
                tracing::info!("node {node} was not told to begin anew: {error}");
            }
        });
    }

    /// Ends what runs for a node of which nothing is held: a batch job that came after it had been given up.
    fn look_for_stray(&self, ctx: &mut Context<Self>, node: NodeId) {
        tracing::warn!("node {node} has registered, and nothing is held for it: it is looked for");
        let provider = Rc::clone(&self.provider);
        let listed = async move { provider.list().await };
        let then = move |listed: Result<Vec<Listed>, ProviderError>,
                         site: &mut Self,
                         _: &mut Context<Self>| {
            let held = |node| site.slots.get(node).is_some_and(|slot| slot.keeper.is_some());
            match listed {
                Ok(listed) => {
                    let strays = listed.into_iter().filter(|it| it.node == node && !held(&node));
                    for stray in strays.collect::<Vec<_>>() {
                        tracing::warn!("stub {} of {node} ends: nobody held it", stray.id);
                        site.end_stray(stray);
                    }
                }
                Err(error) => tracing::warn!("what runs for {node} is not known: {error}"),
            }
        };
        ctx.spawn(listed.into_actor(self).map(then));
    }

    fn end_stray(&self, listed: Listed) {
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
                    tracing::warn!("stub {} of {} is left: {error}", listed.id, listed.node)
                }
            }
            strays.borrow_mut().remove(&listed.id);
        });
    }

    /// The provider has failed. Returns when it is to be asked again.
    fn failed(&mut self, reason: &str) -> Duration {
        let wait = backoff(self.on_demand.poll, self.failures);
        self.failures = self.failures.saturating_add(1);
        tracing::warn!("{}: {reason}; asked again in {wait:?}", self.cluster);
        let found = Err(reason.to_owned());
        self.tell(SitePolled { cluster: self.cluster.clone(), found });
        wait
    }

    fn polled(&mut self, found: Result<Option<Capacity>, String>) -> Duration {
        match found {
            Ok(Some(Capacity { size, others })) => {
                self.failures = 0;
                if !self.is_denied() {
                    let found = Ok((size, others));
                    self.tell(SitePolled { cluster: self.cluster.clone(), found });
                }
                self.on_demand.poll
            }
            Ok(None) => self.on_demand.poll,
            Err(reason) => {
                if let Some(denied) = &mut self.denied {
                    denied.told = false;
                }
                self.failed(&reason)
            }
        }
    }

    /// A processor was asked for in vain. Those asked for at the same time count once.
    fn denied(&mut self, reason: &str) {
        let now = Instant::now();
        let before = self.denied.as_ref().filter(|denied| now < denied.until + BACKOFF_MAX);
        let count = match before {
            Some(denied) if now < denied.until => return,
            Some(denied) => denied.count.saturating_add(1),
            None => 0,
        };
        let wait = backoff(self.on_demand.poll, count);
        tracing::warn!("{}: {reason}; none is asked for for {wait:?}", self.cluster);
        let (reason, until, told) = (reason.to_owned(), now + wait, false);
        self.denied = Some(Denied { reason, count, until, told });
        self.is_denied();
    }

    /// Whether no processors are to be asked for although the provider answers. The scheduler is told why, once.
    fn is_denied(&mut self) -> bool {
        let now = Instant::now();
        let Some(denied) = self.denied.as_mut().filter(|denied| now < denied.until) else {
            return false;
        };
        if !std::mem::replace(&mut denied.told, true) {
            let found = Err(denied.reason.clone());
            self.tell(SitePolled { cluster: self.cluster.clone(), found });
        }
        true
    }
}

/// When a provider that failed so many times in a row before is asked again.
fn backoff(usual: Duration, failures: u32) -> Duration {
    usual.saturating_mul(1 << failures.min(16)).min(BACKOFF_MAX).max(usual)
}

impl Actor for Site {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        let (words, all) = mpsc::unbounded_channel();
        self.words = Some(words);
        let patient = self.at.is_some();
        ctx.spawn(say(all, self.scheduler.clone(), patient).into_actor(self));
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
            self.look_for_stray(ctx, node);
            return Ok(());
        }
        let again = slot.registered.replace(message.incarnation) == Some(message.incarnation);
        let registered = Registered {
            cluster: self.cluster.clone(),
            node,
            incarnation: message.incarnation,
            address: message.contact.address,
            threads: message.threads,
            fingerprint: message.fingerprint,
            pid: message.pid,
            hardware: message.hardware,
            work: message.work,
        };
        slot.said = Some(registered.clone());
        // A scheduler that has not heard of the site would not know the node: it is asked anew then. One that has heard of this
        // life knows better what it works for than a word that comes by another way.
        // Of one that joined by itself the scheduler knows by its link alone that it is gone, and may have taken it for that.
        if self.introduced && (self.provider.joins() || !(again && slot.known)) {
            slot.known = true;
            self.tell(registered);
        }
        Ok(())
    }
}

impl Handler<StartAnew> for Site {
    type Result = ();

    fn handle(&mut self, message: StartAnew, ctx: &mut Self::Context) {
        for node in message.nodes {
            let on_demand = self.provider.on_demand();
            let Some(slot) = self.slots.get_mut(&node) else { continue };
            tracing::info!("node {node} is started anew by order: {}", message.reason);
            if let Some(program) = &message.program {
                slot.request.program = program.clone();
            }
            // Another program's failures are not this one's; and a node that waits for its next try is
            // put back into service.
            if message.program.is_some() || slot.retry.is_some() {
                slot.restarts = Restarts::new(RESTARTS);
            }
            (slot.registered, slot.unreached) = (None, 0);
            if self.provider.joins() {
                self.begin_anew(node, message.reason.clone());
                continue;
            }
            if on_demand && let Some(keeper) = &slot.keeper {
                // Full or closed: it is ending, which is told.
                let _ = keeper.try_send(Order::Recruit(Box::new(slot.request.clone())));
                // One that waits for its processor may do so for long.
                if slot.active {
                    self.expect(ctx, node);
                }
                continue;
            }
            let old = slot.keeper.take();
            slot.round += 1; // whatever is under way in the slot is of the past
            let ended = async move {
                if let Some(keeper) = old {
                    stop(&keeper, REPLACE_GRACE).await;
                }
            };
            let then =
                move |(), site: &mut Site, ctx: &mut Context<Site>| site.start(ctx, &node, None);
            ctx.spawn(ended.into_actor(self).map(then));
        }
    }
}

impl Handler<Expelled> for Site {
    type Result = ();

    fn handle(&mut self, Expelled { node, reason }: Expelled, _: &mut Self::Context) {
        let Some(slot) = self.slots.get_mut(&node) else { return };
        if slot.registered.take().is_some() {
            self.lost(&node, reason, false, None);
        }
    }
}

impl Handler<HoldStubs> for Site {
    type Result = ();

    fn handle(&mut self, message: HoldStubs, ctx: &mut Self::Context) {
        tracing::info!("holds {} processors: {}", message.nodes.len(), message.reason);
        for node in message.nodes {
            let Some(slot) = self.slots.get_mut(&node) else { continue };
            if slot.keeper.is_some() {
                continue; // it is there, or coming
            }
            slot.request.program = message.program.clone().unwrap_or_else(|| slot.program.clone());
            self.start(ctx, &node, None);
        }
    }
}

impl Handler<CloseStubs> for Site {
    type Result = ();

    fn handle(&mut self, message: CloseStubs, ctx: &mut Self::Context) {
        tracing::info!("releases {} processors: {}", message.nodes.len(), message.reason);
        for node in message.nodes {
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
            let then = move |(), site: &mut Site, _: &mut Context<Site>| {
                let current = |slot: &&mut Slot| slot.round == round && slot.keeper.is_some();
                // Else it had ended by itself, which was told, and the next may be asked for already.
                if let Some(slot) = site.slots.get_mut(&node).filter(current) {
                    (slot.keeper, slot.registered) = (None, None);
                    site.tell(StubGone { node, reason });
                }
            };
            ctx.spawn(closed.into_actor(self).map(then));
        }
    }
}

impl Handler<Announce> for Site {
    type Result = ();

    fn handle(&mut self, _: Announce, ctx: &mut Self::Context) {
        // What is there is not known before it was taken over, which is said then.
        if self.ending || !self.taken_over {
            return;
        }
        let there = self.slots.iter().filter(|(_, slot)| slot.keeper.is_some());
        let there = there.map(|(node, _)| node.clone()).collect();
        self.say_up(ctx, there);
    }
}

impl Handler<Introduced> for Site {
    type Result = ();

    fn handle(&mut self, _: Introduced, ctx: &mut Self::Context) {
        self.introduced = true;
        let now = Instant::now();
        for (node, slot) in &self.slots {
            if let Some(life) = slot.registered {
                self.ask_anew(ctx, node.clone(), life);
            } else if let Some(at) = slot.retry.filter(|_| !slot.restarts.is_soon()) {
                let reason = format!("it ended {} times in a row", slot.restarts.failures());
                self.lost(node, reason, false, Some(at.saturating_duration_since(now)));
            }
        }
        if let Some(denied) = &mut self.denied {
            denied.told = false;
        }
        self.is_denied();
    }
}

impl Handler<LeaveJobs> for Site {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, message: LeaveJobs, _: &mut Self::Context) -> Self::Result {
        let LeaveJobs { within, reason } = message;
        let deadline_ms = Some(u64::try_from(within.as_millis()).unwrap_or(u64::MAX));
        let lives = self.slots.iter().filter_map(|(node, slot)| Some((node, slot.registered?)));
        let leaves: Vec<_> = lives
            .map(|(node, life)| {
                // The life's alone: when the site is back its node may work again.
                let (nodes, life, reason) = (vec![node.clone()], Some(life), reason.clone());
                let drain = Drain { nodes, reason, deadline_ms, life };
                let scheduler = self.scheduler.clone();
                actix::spawn(async move { scheduler.send(drain).deadline(within).await })
            })
            .collect();
        Box::pin(async move {
            for leave in leaves {
                if let Ok(Ok(Err(error))) = leave.await {
                    tracing::info!("a node does not leave its job in order: {error}");
                }
            }
        })
    }
}

impl Handler<GetHeld> for Site {
    type Result = Vec<NodeId>;

    fn handle(&mut self, _: GetHeld, _: &mut Self::Context) -> Self::Result {
        let held = self.slots.iter().filter(|(_, slot)| slot.keeper.is_some());
        held.map(|(node, _)| node.clone()).collect()
    }
}

impl Handler<LeaveNodes> for Site {
    type Result = ();

    fn handle(&mut self, _: LeaveNodes, _: &mut Self::Context) {
        self.ending = true;
        // Without its sender a keeper lets go of its stub.
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
    by: Instant,
}

#[cfg(test)]
mod tests;
