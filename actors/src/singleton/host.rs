//! The singletons of one node: how to start them, and which exist.

use std::collections::BTreeMap;
use std::sync::Arc;

use actix::prelude::*;
use springtide_protocol::names::{SINGLETON_HOST, singleton_name};
use springtide_protocol::singleton::{CreateSingleton, GetSingleton};
use springtide_runtime::remote::{Hub, Published};

use crate::admit;
use crate::supervise::start_published;

/// Returns whether an actor still lives.
type LivenessCheck = Box<dyn Fn() -> bool>;

/// Starts an instance on this arbiter and publishes it under this name.
type StartInstance = Box<dyn Fn(&Hub, &str) -> LivenessCheck + Send + Sync>;

/// Starts instances of one singleton.
pub struct SingletonFactory {
    name: &'static str,
    start: StartInstance,
}

impl SingletonFactory {
    /// A singleton of this name. `make` creates the actor, and `accept` names the messages that it
    /// accepts.
    pub fn new<A: Actor<Context = Context<A>>>(
        name: &'static str,
        make: impl Fn() -> A + Send + Sync + 'static,
        accept: impl Fn(Published<A>) -> Published<A> + Send + Sync + 'static,
    ) -> Self {
        let start = move |hub: &Hub, published: &str| -> LivenessCheck {
            let addr = start_published(hub, published, &make, &accept).downgrade();
            Box::new(move || addr.upgrade().is_some_and(|addr| addr.connected()))
        };
        Self { name, start: Box::new(start) }
    }

    /// Name of the singleton.
    pub fn name(&self) -> &'static str {
        self.name
    }
}

/// An instance that was started on this node.
struct HostedSingleton {
    generation: u64,
    lives: LivenessCheck,
}

/// Starts singletons on a node by order of the head. It lives on the arbiter of the singletons.
pub struct SingletonHost {
    hub: Arc<Hub>,
    /// Fingerprint of this node's program.
    fingerprint: u64,
    factories: Arc<[SingletonFactory]>,
    instances: BTreeMap<&'static str, HostedSingleton>,
}

impl SingletonHost {
    /// Starts the actor on this arbiter and publishes it.
    pub fn publish(hub: &Arc<Hub>, fingerprint: u64, factories: Arc<[SingletonFactory]>) {
        let instances = BTreeMap::new();
        let host = Self { hub: Arc::clone(hub), fingerprint, factories, instances }.start();
        hub.publish(SINGLETON_HOST, host)
            .accepts_from::<CreateSingleton>(admit::by_rule)
            .accepts_from::<GetSingleton>(admit::by_rule);
    }

    /// The instance of a singleton here, if it lives.
    fn living(&self, name: &str) -> Option<&HostedSingleton> {
        self.instances.get(name).filter(|instance| (instance.lives)())
    }
}

impl Actor for SingletonHost {
    type Context = Context<Self>;
}

impl Handler<CreateSingleton> for SingletonHost {
    /// Whether the instance exists. Otherwise, this program does not have the singleton.
    type Result = bool;

    fn handle(&mut self, order: CreateSingleton, _: &mut Self::Context) -> bool {
        let CreateSingleton { name, fingerprint, generation } = order;
        let factory = self.factories.iter().find(|factory| factory.name == name);
        let Some(factory) = factory.filter(|_| fingerprint == self.fingerprint) else {
            return false;
        };
        if self.living(&name).is_some_and(|instance| instance.generation == generation) {
            return true;
        }
        if let Some(former) = self.instances.remove(factory.name) {
            self.hub.unpublish(&singleton_name(&name, former.generation));
        }
        let lives = (factory.start)(&self.hub, &singleton_name(&name, generation));
        self.instances.insert(factory.name, HostedSingleton { generation, lives });
        true
    }
}

impl Handler<GetSingleton> for SingletonHost {
    type Result = Option<u64>;

    fn handle(&mut self, ask: GetSingleton, _: &mut Self::Context) -> Option<u64> {
        let living = self.living(&ask.name).filter(|_| ask.fingerprint == self.fingerprint);
        living.map(|instance| instance.generation)
    }
}
