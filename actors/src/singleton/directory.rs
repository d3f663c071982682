//! The head's directory: on which node each singleton is.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use springtide_protocol::names::{SINGLETON_HOST, SINGLETONS};
use springtide_protocol::receivers;
use springtide_protocol::scheduler::{GetStatus, GridStatus, NodeState};
use springtide_protocol::singleton::{
    CreateSingleton, FindSingleton, FindSingletonError, GetSingleton, SingletonPlace,
};
use springtide_runtime::id::Incarnation;
use springtide_runtime::net::Contact;
use springtide_runtime::remote::{Hub, Refusal, Remote, RemoteError};
use springtide_runtime::work::checksum;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::admit;
use crate::supervise::{RestartCounter, RestartLimits};

/// Largest number of singletons. Each client may ask for any name.
const SINGLETONS_MAX: usize = 4096;
/// Time for a node's answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);

/// A registered node that could have a singleton.
#[derive(Clone, Debug)]
struct RegisteredNode {
    contact: Contact,
    incarnation: Incarnation,
    /// Whether it gets no new instance, since it is being drained or stopped.
    leaves: bool,
}

/// An instance that was created, or may have been.
struct SingletonInstance {
    place: SingletonPlace,
    /// Incarnation of its node.
    incarnation: Incarnation,
}

impl SingletonInstance {
    fn at(node: &RegisteredNode, generation: u64) -> Self {
        let place = SingletonPlace { contact: node.contact.clone(), generation };
        Self { place, incarnation: node.incarnation }
    }

    fn is_on(&self, node: &RegisteredNode) -> bool {
        self.place.contact.node == node.contact.node && self.incarnation == node.incarnation
    }
}

/// What the directory knows of one singleton.
struct KnownSingleton {
    instance: Option<SingletonInstance>,
    restarts: RestartCounter,
}

impl Default for KnownSingleton {
    fn default() -> Self {
        Self { instance: None, restarts: RestartCounter::new(RestartLimits::default()) }
    }
}

/// The directory of singletons. It asks nodes, and decides for one singleton at a time.
pub struct SingletonDirectory {
    hub: Arc<Hub>,
    status: Recipient<GetStatus>,
    /// Singletons by the fingerprint of their program, and their name.
    known: BTreeMap<(u64, String), Arc<Mutex<KnownSingleton>>>,
}

impl SingletonDirectory {
    /// Starts the directory on this arbiter and publishes it. `status` returns the nodes.
    pub fn publish(hub: &Arc<Hub>, status: impl Into<Recipient<GetStatus>>) {
        let (hub, known) = (Arc::clone(hub), BTreeMap::new());
        let directory = Self { hub: Arc::clone(&hub), status: status.into(), known }.start();
        hub.publish(SINGLETONS, directory).accepts_from::<FindSingleton>(admit::by_rule);
    }
}

impl Actor for SingletonDirectory {
    type Context = Context<Self>;
}

impl Handler<FindSingleton> for SingletonDirectory {
    type Result = ResponseFuture<Result<SingletonPlace, FindSingletonError>>;

    fn handle(&mut self, ask: FindSingleton, _: &mut Self::Context) -> Self::Result {
        let number = self.known.len();
        let known = match self.known.entry((ask.fingerprint, ask.name.clone())) {
            Entry::Occupied(known) => Arc::clone(known.get()),
            Entry::Vacant(_) if number >= SINGLETONS_MAX => {
                return Box::pin(async move { Err(FindSingletonError::TooMany(number)) });
            }
            Entry::Vacant(known) => Arc::clone(known.insert(Arc::default())),
        };
        let (hub, status) = (Arc::clone(&self.hub), self.status.clone());
        Box::pin(async move {
            let mut known = known.lock().await;
            // The scheduler lives as long as the head.
            let nodes = registered(&status.send(GetStatus {}).await.unwrap_or_default());
            SingletonSearch { hub: &hub, ask: &ask, nodes: &nodes }.find(&mut known).await
        })
    }
}

/// The nodes that may have a singleton.
fn registered(status: &GridStatus) -> Vec<RegisteredNode> {
    let mut nodes = Vec::new();
    for (cluster, site) in &status.sites {
        for node in &site.nodes {
            let leaves = match node.state {
                NodeState::Idle | NodeState::Busy | NodeState::Measuring | NodeState::Held => false,
                // An instance there exists until the node ends.
                NodeState::Draining | NodeState::Drained | NodeState::Closing => true,
                NodeState::Starting | NodeState::Broken | NodeState::Off => continue,
            };
            if let (Some(incarnation), Some(address)) = (node.incarnation, &node.address) {
                let (node, address) = (node.node.clone(), address.clone());
                let contact = Contact { node, cluster: cluster.clone(), address };
                nodes.push(RegisteredNode { contact, incarnation, leaves });
            }
        }
    }
    nodes
}

/// A search for one singleton on the registered nodes.
struct SingletonSearch<'a> {
    hub: &'a Arc<Hub>,
    ask: &'a FindSingleton,
    nodes: &'a [RegisteredNode],
}

impl SingletonSearch<'_> {
    async fn find(&self, known: &mut KnownSingleton) -> Result<SingletonPlace, FindSingletonError> {
        if known.instance.is_none() {
            // An earlier head may have created one.
            known.instance = self.existing().await;
        }
        let lives = |last: &&SingletonInstance| self.nodes.iter().any(|node| last.is_on(node));
        if let Some(SingletonInstance { place, .. }) = known.instance.as_ref().filter(lives) {
            if self.ask.silent != Some(place.generation) {
                return Ok(place.clone());
            }
            match self.get(&place.contact).await {
                Ok(Some(generation)) if generation == place.generation => return Ok(place.clone()),
                Ok(_) => {}
                Err(error) => return Err(self.silent(&place.contact, &error)),
            }
            // It has ended by itself, and not with its node.
            if !known.restarts.may_restart(Instant::now()) {
                return Err(FindSingletonError::EndsTooOften { name: self.ask.name.clone() });
            }
        }
        self.create(known).await
    }

    /// Creates an instance on the first node whose program has the singleton. Which node is first
    /// depends on the name, so that the singletons of a grid are on different nodes.
    async fn create(
        &self,
        known: &mut KnownSingleton,
    ) -> Result<SingletonPlace, FindSingletonError> {
        let name = self.ask.name.clone();
        // Later heads have higher incarnations, which are times in microseconds.
        let first = self.hub.net().me().incarnation.0;
        let last = known.instance.as_ref().map_or(0, |instance| instance.place.generation);
        let generation = first.max(last) + 1;
        let start = checksum(name.bytes()) as usize % self.nodes.len().max(1);
        let (before, after) = self.nodes.split_at(start);
        for at in after.iter().chain(before).filter(|at| !at.leaves) {
            let (name, fingerprint) = (name.clone(), self.ask.fingerprint);
            let order = CreateSingleton { name, fingerprint, generation };
            let answer = self.host(&at.contact).send(order).deadline(ANSWER_WITHIN).await;
            if matches!(answer, Ok(false)) || answer.as_ref().is_err_and(has_no_host) {
                continue;
            }
            // After an error, it may have been created all the same.
            let instance = known.instance.insert(SingletonInstance::at(at, generation));
            return match answer {
                Ok(_) => Ok(instance.place.clone()),
                Err(error) => Err(self.silent(&at.contact, &error)),
            };
        }
        Err(FindSingletonError::NoNode { name })
    }

    /// The latest instance that exists on any node.
    async fn existing(&self) -> Option<SingletonInstance> {
        let mut asked = JoinSet::new();
        for node in self.nodes.iter().cloned() {
            let request = self.host(&node.contact).send(self.query()).deadline(ANSWER_WITHIN);
            asked.spawn(async move { Some(SingletonInstance::at(&node, request.await.ok()??)) });
        }
        let found = asked.join_all().await;
        found.into_iter().flatten().max_by_key(|instance| instance.place.generation)
    }

    /// The generation of the instance on a node.
    async fn get(&self, at: &Contact) -> Result<Option<u64>, RemoteError> {
        let found = self.host(at).send(self.query()).deadline(ANSWER_WITHIN).await;
        if found.as_ref().is_err_and(has_no_host) { Ok(None) } else { found }
    }

    fn query(&self) -> GetSingleton {
        let FindSingleton { name, fingerprint, .. } = self.ask;
        GetSingleton { name: name.clone(), fingerprint: *fingerprint }
    }

    fn host(&self, at: &Contact) -> Remote<receivers::SingletonHost> {
        self.hub.net().learn(at.clone());
        self.hub.remote(&at.node, SINGLETON_HOST)
    }

    fn silent(&self, at: &Contact, error: &RemoteError) -> FindSingletonError {
        let (name, node) = (self.ask.name.clone(), at.node.clone());
        FindSingletonError::Silent { name, node, reason: error.to_string() }
    }
}

/// Whether an error says that a node has no host of singletons, since its program has none.
fn has_no_host(error: &RemoteError) -> bool {
    matches!(
        error,
        RemoteError::NoActor { .. } | RemoteError::Refused { reason: Refusal::NotAccepted, .. }
    )
}
