//! Singletons on a network in memory, whose nodes and heads end and start again.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use serde::{Deserialize, Serialize};
use springtide_protocol::scheduler::{GetStatus, GridStatus, NodeState, NodeStatus, SiteStatus};
use springtide_runtime::id::{Incarnation, NodeId, Peer};
use springtide_runtime::net::{Address, Contact, MemoryNet};
use springtide_runtime::remote::Hub;
use springtide_runtime::remote_message;

use super::*;

const PROGRAM: u64 = 7;
const COUNTER: &str = "counter";

/// Counts its messages.
struct Counter {
    count: u32,
}

impl Actor for Counter {
    type Context = Context<Self>;
}

#[derive(Serialize, Deserialize)]
struct Count {
    panic: bool,
}

remote_message! { "count" => Count -> u32; }

impl Handler<Count> for Counter {
    type Result = MessageResult<Count>;

    fn handle(&mut self, order: Count, _: &mut Context<Self>) -> Self::Result {
        assert!(!order.panic, "as the test orders");
        self.count += 1;
        MessageResult(self.count)
    }
}

/// Answers as the scheduler of the head does.
struct Nodes(Rc<RefCell<BTreeMap<NodeId, (u64, NodeState)>>>);

impl Actor for Nodes {
    type Context = Context<Self>;
}

impl Handler<GetStatus> for Nodes {
    type Result = MessageResult<GetStatus>;

    fn handle(&mut self, _: GetStatus, _: &mut Self::Context) -> Self::Result {
        let nodes = self.0.borrow();
        let nodes = nodes.iter().map(|(node, (incarnation, state))| NodeStatus {
            node: node.clone(),
            state: *state,
            job: None,
            threads: Some(1),
            pid: Some(1),
            incarnation: Some(Incarnation(*incarnation)),
            address: Some(Address::Memory),
            reason: None,
            next_try_ms: None,
        });
        let site = SiteStatus { nodes: nodes.collect(), ..SiteStatus::default() };
        let sites = BTreeMap::from([("ams".into(), site)]);
        MessageResult(GridStatus { sites, ..GridStatus::default() })
    }
}

/// A head, a client and nodes, of which those in `registered` are known to the head.
struct SingletonGrid {
    net: MemoryNet,
    /// Incarnation of the process that has started last.
    started: u64,
    registered: Rc<RefCell<BTreeMap<NodeId, (u64, NodeState)>>>,
    hubs: BTreeMap<NodeId, Arc<Hub>>,
}

impl SingletonGrid {
    fn new(nodes: &[&str]) -> Self {
        let (net, registered, hubs) = (MemoryNet::new(1), Rc::default(), BTreeMap::new());
        let mut grid = Self { net, started: 0, registered, hubs };
        grid.start_head();
        grid.process("client");
        for node in nodes {
            grid.start_node(node);
        }
        grid
    }

    fn process(&mut self, name: &str) -> Arc<Hub> {
        // Incarnations are times.
        self.started += 1000;
        let incarnation = Incarnation(self.started);
        let peer = Peer { node: name.into(), incarnation, cluster: "ams".into() };
        let net = self.net.join(peer).expect("another process of this name has ended");
        let hub = Hub::new(net.clone());
        net.start(hub.clone());
        for node in ["head", "client"] {
            let (node, cluster) = (node.into(), "ams".into());
            net.learn(Contact { node, cluster, address: Address::Memory });
        }
        self.hubs.insert(name.into(), hub.clone());
        hub
    }

    fn start_head(&mut self) {
        self.net.kill(&"head".into());
        let hub = self.process("head");
        SingletonDirectory::publish(&hub, Nodes(self.registered.clone()).start());
    }

    fn start_node(&mut self, name: &str) {
        let hub = self.process(name);
        let accept =
            |actor: springtide_runtime::remote::Published<Counter>| actor.accepts::<Count>();
        let counter = SingletonFactory::new(COUNTER, || Counter { count: 0 }, accept);
        SingletonHost::publish(&hub, PROGRAM, Arc::new([counter]));
        self.registered.borrow_mut().insert(name.into(), (self.started, NodeState::Idle));
    }

    fn end_node(&mut self, node: &NodeId) {
        self.net.kill(node);
        self.registered.borrow_mut().remove(node);
    }

    fn handle(&self, name: &str, program: u64) -> Singleton<Counter> {
        Singleton::new(&self.hubs[&NodeId::from("client")], &"head".into(), name, program)
    }
}

fn run(test: impl Future<Output = ()>) {
    actix::System::new().block_on(async {
        tokio::time::pause();
        test.await;
    });
}

async fn count(handle: &Singleton<Counter>) -> Result<u32, SingletonError> {
    handle.send_within(Count { panic: false }, Duration::from_secs(5)).await
}

#[test]
fn a_singleton_exists_once_and_is_the_same_for_all() {
    run(async {
        let grid = SingletonGrid::new(&["ams-1", "ams-2"]);
        let (first, second) = (grid.handle(COUNTER, PROGRAM), grid.handle(COUNTER, PROGRAM));
        assert_eq!(count(&first).await.unwrap(), 1);
        assert_eq!(count(&second).await.unwrap(), 2);
        assert_eq!(count(&first.clone()).await.unwrap(), 3);
        assert_eq!(first.node().await.unwrap(), second.node().await.unwrap());
        for (name, program) in [("meter", PROGRAM), (COUNTER, PROGRAM + 1)] {
            let error = count(&grid.handle(name, program)).await.unwrap_err();
            assert!(error.to_string().starts_with("no registered node runs"), "{error}");
        }
    });
}

#[test]
fn an_instance_that_panics_too_often_is_not_created_again() {
    run(async {
        let grid = SingletonGrid::new(&["ams-1"]);
        let handle = grid.handle(COUNTER, PROGRAM);
        for _ in 0..=5 {
            assert_eq!(count(&handle).await.unwrap(), 1);
            let ended = handle.send(Count { panic: true }).await.unwrap_err();
            assert!(matches!(ended, SingletonError::Call(_)), "{ended}");
            match count(&handle).await.unwrap_err() {
                SingletonError::StateIsNew { name, node } => {
                    assert_eq!((name.as_str(), node.as_str()), (COUNTER, "ams-1"));
                }
                error => {
                    return assert!(error.to_string().contains("ends too often"), "{error}");
                }
            }
        }
        panic!("it is created without limit");
    });
}

/// A node that does not answer may still have the instance.
#[test]
fn no_second_instance_is_created_while_the_node_of_the_first_is_silent() {
    run(async {
        let mut grid = SingletonGrid::new(&["ams-1", "ams-2"]);
        let handle = grid.handle(COUNTER, PROGRAM);
        assert_eq!(count(&handle).await.unwrap(), 1);
        let node = handle.node().await.unwrap();
        grid.net.kill(&node);
        assert!(matches!(count(&handle).await, Err(SingletonError::Call(_))));
        // The head asks the node in vain.
        let error = count(&handle).await.unwrap_err();
        assert!(error.to_string().contains("which does not answer"), "{error}");
        // The head knows that it has ended.
        grid.end_node(&node);
        let error = count(&handle).await.unwrap_err();
        assert!(matches!(error, SingletonError::StateIsNew { .. }), "{error}");
        assert_eq!(count(&handle).await.unwrap(), 1);
        assert_ne!(handle.node().await.unwrap(), node);
    });
}

/// A node that is drained keeps its instance until it ends, and gets no other one.
#[test]
fn a_drained_node_keeps_its_instance_and_gets_no_other() {
    run(async {
        let mut grid = SingletonGrid::new(&["ams-1", "ams-2"]);
        let first = grid.handle(COUNTER, PROGRAM);
        assert_eq!(count(&first).await.unwrap(), 1);
        let node = first.node().await.unwrap();
        for (_, state) in grid.registered.borrow_mut().values_mut() {
            *state = NodeState::Drained;
        }
        assert_eq!(count(&grid.handle(COUNTER, PROGRAM)).await.unwrap(), 2);
        grid.end_node(&node);
        assert!(count(&first).await.is_err());
        let error = count(&first).await.unwrap_err();
        assert!(matches!(error, SingletonError::NotFound { .. }), "{error}");
    });
}

#[derive(Clone, Copy, Debug)]
enum SingletonStep {
    /// The client of this number sends a message.
    Send(usize),
    Panic(usize),
    /// The node of this number ends, and starts again.
    RestartNode(usize),
    NewHead,
}

fn step(random: &mut impl FnMut(u64) -> u64) -> SingletonStep {
    let client = random(2) as usize;
    match random(10) {
        0 => SingletonStep::Panic(client),
        1 => SingletonStep::RestartNode(random(3) as usize),
        2 => SingletonStep::NewHead,
        _ => SingletonStep::Send(client),
    }
}

/// In any history, all clients reach one instance. A client gets an answer of a new instance only
/// after an error has said that its state is new.
#[test]
fn clients_of_a_singleton_know_its_state() {
    run(async {
        for seed in 1..=20_u64 {
            let mut state = seed;
            let mut random = |below: u64| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 33) % below
            };
            let steps: Vec<SingletonStep> = (0..40).map(|_| step(&mut random)).collect();
            history(seed, &steps).await;
        }
    });
}

async fn history(seed: u64, steps: &[SingletonStep]) {
    let names = ["ams-1", "ams-2", "ams-3"];
    let mut grid = SingletonGrid::new(&names);
    let handles = [grid.handle(COUNTER, PROGRAM), grid.handle(COUNTER, PROGRAM)];
    // Messages that the present instance has counted, its number, and the numbers known to clients.
    let (mut counted, mut instance, mut known) = (0, 1, [None; 2]);
    let (mut panics, mut node) = (0, None);
    for (at, step) in steps.iter().copied().enumerate() {
        let place = format!("seed {seed}, step {at}: {step:?}");
        match step {
            SingletonStep::RestartNode(number) => {
                let ended = NodeId::from(names[number]);
                grid.end_node(&ended);
                if node.as_ref() == Some(&ended) {
                    (counted, instance, node) = (0, instance + 1, None);
                }
                grid.start_node(names[number]);
            }
            SingletonStep::NewHead => grid.start_head(),
            SingletonStep::Panic(client) | SingletonStep::Send(client) => {
                let (mut is_new, mut failed) = (false, false);
                let answer = loop {
                    match count(&handles[client]).await {
                        Ok(answer) => break answer,
                        Err(SingletonError::StateIsNew { .. }) => is_new = true,
                        Err(SingletonError::Call(_)) => failed = true,
                        Err(error) => {
                            let error = error.to_string();
                            assert!(error.contains("does not answer"), "{place}: {error}");
                        }
                    }
                };
                counted += 1;
                assert_eq!(answer, counted, "{place}");
                // A message without an answer may have been handled by an instance.
                let must_be_new = known[client].is_some_and(|last| last != instance);
                assert!(is_new == must_be_new || failed && is_new, "{place}");
                known[client] = Some(instance);
                node = Some(handles[client].node().await.unwrap());
                // Now the client certainly knows the present instance, which its panic ends.
                if matches!(step, SingletonStep::Panic(_)) && panics < 4 {
                    panics += 1;
                    assert!(handles[client].send(Count { panic: true }).await.is_err(), "{place}");
                    (counted, instance) = (0, instance + 1);
                }
            }
        }
    }
}
