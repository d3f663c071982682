//! The site: one a cluster. It starts the cluster's nodes through a provider, takes their registration, starts those anew
//! that end, and ends them all.
//!
//! Must not know jobs: what a node's end means to a job is the scheduler's to say.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use actix::prelude::*;
use serde::{Deserialize, Serialize};
use springtide_runtime::id::{ClusterId, Incarnation, NodeId};
use springtide_runtime::net::Contact;
use springtide_runtime::remote::{Refusal, Remote, RemoteError, RemoteMessage};
use springtide_runtime::remote_message;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep};

use crate::hardware::Hardware;
use crate::provider::{Ended, LocalFuture, NodeRequest, Provider, Stub, StubNews};
use crate::scheduler::{NodeLost, Registered, Scheduler, SiteUp};
use crate::supervise::{Intensity, Limits};

/// A node that has not registered after this time is started anew.
const REGISTER_WITHIN: Duration = Duration::from_secs(30);
/// How often a node is started anew before it is given up.
const LIMITS: Limits = Limits { restarts: 3, within: Duration::from_secs(60) };
/// Wait before a restart, so that a program that ends at once does not keep the machine busy.
const RESTART_DELAY: Duration = Duration::from_millis(200);
/// A node that is started anew by order gets this long to end.
const REPLACE_GRACE: Duration = Duration::from_secs(3);
/// A scheduler with too many messages is left alone for so long.
const BUSY_PAUSE: Duration = Duration::from_millis(50);

/// To a site (published as [`site_name`](crate::job::site_name)), by a node: I am here. Said again after the link to the
/// site was down.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Register {
    /// Who, and where it is reached.
    pub contact: Contact,
    /// Which life of it.
    pub incarnation: Incarnation,
    /// Its compute threads.
    pub threads: u32,
    /// Fingerprint of its program's registry.
    pub fingerprint: u64,
    /// Its process.
    pub pid: u32,
    /// Its machine.
    #[serde(default)]
    pub hardware: Hardware,
}

/// Why a site does not take a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum RegisterError {
    /// It is none of the site's nodes.
    #[error("site {cluster} has no node {node}: its nodes are {known}")]
    UnknownNode {
        /// The site's cluster.
        cluster: ClusterId,
        /// Who asked.
        node: NodeId,
        /// The nodes it has.
        known: String,
    },
    /// A later life of the node has registered.
    #[error("a later life of node {node} has registered")]
    Stale {
        /// Who asked.
        node: NodeId,
    },
}

/// To a site, by the scheduler: end these nodes and start them anew.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StartAnew {
    /// Which.
    pub nodes: Vec<NodeId>,
    /// With which program; absent: the one each had.
    pub program: Option<PathBuf>,
    /// Why, for logs.
    pub reason: String,
}

remote_message! {
    "register" => Register -> Result<(), RegisterError>;
    "start-anew" => StartAnew;
}

/// To a site of this process: end all nodes. Answered when no process is left.
#[derive(Message)]
#[rtype(result = "()")]
pub struct EndNodes {
    /// How long each gets to end in order.
    pub grace: Duration,
}

/// The site actor.
pub struct Site {
    cluster: ClusterId,
    slots: BTreeMap<NodeId, Slot>,
    provider: Rc<dyn Provider>,
    scheduler: Remote<Scheduler>,
    /// What the scheduler is to be told, in order; set when the site starts.
    words: Option<mpsc::UnboundedSender<Word>>,
    ending: bool,
}

/// Says one thing to the scheduler, each time it is called.
type Word = Box<dyn Fn(&Remote<Scheduler>) -> LocalFuture<'static, Result<(), RemoteError>>>;

/// A node's place: what is started there, life after life.
struct Slot {
    request: NodeRequest,
    /// Counts the processes started in it, so that late word of an earlier one is known as such.
    round: u64,
    keeper: Option<mpsc::Sender<Order>>,
    registered: Option<Incarnation>,
    restarts: Intensity,
}

/// What the keeper of a process is told.
enum Order {
    /// End it in order within this time; answered when it has ended.
    Stop(Duration, oneshot::Sender<()>),
    /// Kill it: it is taken for dead.
    Kill,
}

impl Site {
    /// A site whose nodes are those of `requests`.
    pub fn new(
        cluster: ClusterId,
        requests: Vec<NodeRequest>,
        provider: Rc<dyn Provider>,
        scheduler: Remote<Scheduler>,
    ) -> Self {
        let slot = |request: NodeRequest| Slot {
            request,
            round: 0,
            keeper: None,
            registered: None,
            restarts: Intensity::new(LIMITS),
        };
        let slots = requests.into_iter().map(|r| (r.node.clone(), slot(r))).collect();
        Self { cluster, slots, provider, scheduler, words: None, ending: false }
    }

    /// Tells the scheduler, in order. It lives as long as the head does, and the head's end is also ours.
    fn tell<M>(&self, message: M)
    where
        Scheduler: Handler<M>,
        M: RemoteMessage<Result = ()> + Clone,
    {
        let word: Word = Box::new(move |scheduler: &Remote<Scheduler>| {
            let (scheduler, message) = (scheduler.clone(), message.clone());
            Box::pin(async move { scheduler.send(message).await })
        });
        if let Some(words) = &self.words {
            // Its reader lives as long as this actor.
            let _ = words.send(word);
        }
    }

    fn start(&mut self, ctx: &mut Context<Self>, node: &NodeId) {
        let Some(slot) = self.slots.get_mut(node) else { return };
        if self.ending {
            return;
        }
        slot.round += 1;
        slot.registered = None;
        let (order, orders) = mpsc::channel(4);
        slot.keeper = Some(order);
        let (round, request) = (slot.round, slot.request.clone());
        let (provider, site) = (Rc::clone(&self.provider), ctx.address());
        let told = Exited { node: node.clone(), round, ended: None };
        let keeper = async move {
            let ended = match provider.hold(&request).await {
                Ok(stub) => keep(stub, orders).await,
                Err(error) => Some(Ended { how: error.to_string(), last_lines: Vec::new() }),
            };
            // The site is gone only when the head ends.
            let _ = site.send(Exited { ended, ..told }).await;
        };
        actix::spawn(keeper);
        let late = Late { node: node.clone(), round };
        ctx.run_later(REGISTER_WITHIN, move |site, _| site.late(&late));
    }

    fn late(&mut self, late: &Late) {
        let Some(slot) = self.slots.get(&late.node) else { return };
        if slot.round == late.round && slot.registered.is_none() {
            tracing::warn!(
                "node {} did not register within {REGISTER_WITHIN:?}: killed",
                late.node
            );
            if let Some(keeper) = &slot.keeper {
                // Full or closed: it is being ended already.
                let _ = keeper.try_send(Order::Kill);
            }
        }
    }

    fn exited(&mut self, ctx: &mut Context<Self>, node: &NodeId, ended: &Ended) {
        let Some(slot) = self.slots.get_mut(node) else { return };
        slot.keeper = None;
        let never = slot.registered.take().is_none();
        let mut reason = ended.describe();
        if never {
            reason = format!("it did not register: {reason}");
        }
        let returns = slot.restarts.may_restart(Instant::now());
        if returns {
            tracing::info!("node {node} is started anew: {reason}");
        } else {
            let Limits { restarts, within } = LIMITS;
            let within = within.as_secs();
            reason = format!("given up after {restarts} restarts within {within} s: {reason}");
            tracing::info!("node {node} is {reason}");
        }
        self.tell(NodeLost { node: node.clone(), reason, returns });
        let (node, round) = (node.clone(), self.slots.get(node).map_or(0, |slot| slot.round));
        if returns {
            ctx.run_later(RESTART_DELAY, move |site, ctx| {
                if site.slots.get(&node).is_some_and(|slot| slot.round == round) {
                    site.start(ctx, &node);
                }
            });
        }
    }
}

/// Says these to the scheduler, one after the other. One that has too much to do just now, as when thousands of nodes register
/// at once, is told again; nothing may overtake it then.
async fn say(mut words: mpsc::UnboundedReceiver<Word>, scheduler: Remote<Scheduler>) {
    while let Some(word) = words.recv().await {
        loop {
            match word(&scheduler).await {
                Ok(()) => break,
                Err(RemoteError::Refused { why: Refusal::Busy, .. }) => sleep(BUSY_PAUSE).await,
                Err(error) => {
                    tracing::warn!("the scheduler was not told: {error}");
                    break;
                }
            }
        }
    }
}

/// Waits for the end of a stub, and carries out orders meanwhile. `None`: it ended by order.
async fn keep(mut stub: Box<dyn Stub>, mut orders: mpsc::Receiver<Order>) -> Option<Ended> {
    loop {
        let order = tokio::select! {
            biased;
            order = orders.recv() => order,
            news = stub.news() => match news {
                StubNews::Ended(ended) => return Some(ended),
                StubNews::Active | StubNews::Warned { .. } => continue,
            },
        };
        match order {
            Some(Order::Stop(grace, done)) => {
                stub.release(grace).await;
                let _ = done.send(());
                return None;
            }
            Some(Order::Kill) => stub.kill(),
            None => return None, // the site is gone: dropping the stub kills it
        }
    }
}

impl Actor for Site {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        let (words, all) = mpsc::unbounded_channel();
        self.words = Some(words);
        ctx.spawn(say(all, self.scheduler.clone()).into_actor(self));
        let nodes: Vec<NodeId> = self.slots.keys().cloned().collect();
        let starts_programs = self.provider.starts_programs();
        let cluster = self.cluster.clone();
        self.tell(SiteUp { cluster, nodes: nodes.clone(), starts_programs });
        for node in &nodes {
            self.start(ctx, node);
        }
    }
}

impl Handler<Register> for Site {
    type Result = Result<(), RegisterError>;

    fn handle(&mut self, message: Register, _: &mut Self::Context) -> Self::Result {
        let node = message.contact.node;
        let Some(slot) = self.slots.get_mut(&node) else {
            let known: Vec<_> = self.slots.keys().map(NodeId::as_str).collect();
            let known = known.join(", ");
            return Err(RegisterError::UnknownNode { cluster: self.cluster.clone(), node, known });
        };
        if slot.registered.is_some_and(|known| known > message.incarnation) {
            return Err(RegisterError::Stale { node });
        }
        if slot.registered.replace(message.incarnation) == Some(message.incarnation) {
            return Ok(()); // said again after a link was down
        }
        let registered = Registered {
            cluster: self.cluster.clone(),
            node,
            incarnation: message.incarnation,
            address: message.contact.address,
            threads: message.threads,
            fingerprint: message.fingerprint,
            pid: message.pid,
            hardware: message.hardware,
        };
        self.tell(registered);
        Ok(())
    }
}

impl Handler<StartAnew> for Site {
    type Result = ();

    fn handle(&mut self, message: StartAnew, ctx: &mut Self::Context) {
        for node in message.nodes {
            let Some(slot) = self.slots.get_mut(&node) else { continue };
            tracing::info!("node {node} is started anew by order: {}", message.reason);
            if let Some(program) = &message.program {
                slot.request.program = program.clone();
                // Another program's failures are not this one's.
                slot.restarts = Intensity::new(LIMITS);
            }
            slot.registered = None;
            let old = slot.keeper.take();
            slot.round += 1; // whatever is under way in the slot is of the past
            let ended = async move {
                if let Some(keeper) = old {
                    stop(&keeper, REPLACE_GRACE).await;
                }
            };
            let then = move |(), site: &mut Site, ctx: &mut Context<Site>| site.start(ctx, &node);
            ctx.spawn(ended.into_actor(self).map(then));
        }
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

/// Ends a process and waits for its end.
async fn stop(keeper: &mpsc::Sender<Order>, grace: Duration) {
    let (done, ended) = oneshot::channel();
    // An error of either means that the process has ended and its keeper with it.
    if keeper.send(Order::Stop(grace, done)).await.is_ok() {
        let _ = ended.await;
    }
}

#[derive(Message)]
#[rtype(result = "()")]
struct Exited {
    node: NodeId,
    round: u64,
    /// Absent: by order.
    ended: Option<Ended>,
}

struct Late {
    node: NodeId,
    round: u64,
}

impl Handler<Exited> for Site {
    type Result = ();

    fn handle(&mut self, message: Exited, ctx: &mut Self::Context) {
        let current = self.slots.get(&message.node).is_some_and(|slot| slot.round == message.round);
        if let Some(ended) = &message.ended
            && current
            && !self.ending
        {
            self.exited(ctx, &message.node, ended);
        }
    }
}
