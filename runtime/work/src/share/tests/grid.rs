//! A grid of stores in virtual time: messages are delayed, reordered, duplicated, refused or lost,
//! as a seed determines.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::super::message::{PayloadId, Update};
use super::super::*;
use crate::id::{ClusterId, Incarnation, JobId, NodeId};
use crate::membership::{Member, View};
use crate::net::Address;
use crate::wire::{self, Kind};

/// A block of bytes; a delta adds to some of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blob(#[serde(with = "serde_bytes")] pub Vec<u8>);

impl Versioned for Blob {
    const NAME: &'static str = "blob";
    type Delta = (u64, u8, u64);

    fn apply(&self, (from, add, count): Self::Delta) -> Self {
        assert!(add != 99, "ninety-nine is refused");
        let mut bytes = self.0.clone();
        let (from, len) = (from as usize, bytes.len().max(1));
        for i in 0..count as usize {
            if let Some(byte) = bytes.get_mut((from + i) % len) {
                *byte = byte.wrapping_add(add);
            }
        }
        Blob(bytes)
    }
}

/// The minimum of all values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Least(pub u64);

impl Merged for Least {
    const NAME: &'static str = "least";

    fn merge(&mut self, other: &Self) {
        self.0 = self.0.min(other.0);
    }
}

/// The union of all values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Union(pub BTreeSet<u32>);

impl Merged for Union {
    const NAME: &'static str = "union";

    fn merge(&mut self, other: &Self) {
        self.0.extend(&other.0);
    }
}

pub fn types() -> ObjectTypes {
    let mut types = ObjectTypes::new();
    types.versioned::<Blob>().merged::<Least>().merged::<Union>();
    types
}

pub const JOB: JobId = JobId(7);

/// The conditions for messages.
#[derive(Clone, Copy, Debug)]
pub struct Conditions {
    /// The longest delay inside a cluster and between clusters, in milliseconds.
    pub delay_ms: (u64, u64),
    /// The percentage of messages that are duplicated.
    pub doubled: u64,
    /// The percentage of messages that are lost.
    pub lost: u64,
    /// The percentage of messages that the sender's network refuses.
    pub refused: u64,
}

pub const CALM: Conditions = Conditions { delay_ms: (1, 20), doubled: 0, lost: 0, refused: 0 };

type Actions = Arc<Mutex<Vec<ObjectAction>>>;

enum GridEvent {
    Frame { from: NodeId, to: NodeId, kind: Kind, body: Bytes },
    Tick(NodeId),
}

pub struct ObjectGrid {
    pub view: View,
    nodes: BTreeMap<NodeId, (SharedObjects, Actions)>,
    queue: BTreeMap<(Instant, u64), GridEvent>,
    seq: u64,
    rng: u64,
    config: ShareConfig,
    pub conditions: Conditions,
    /// The pairs (from, to) between which no message arrives.
    pub cut: BTreeSet<(NodeId, NodeId)>,
    /// The object bytes that entered each cluster from another.
    pub wide: BTreeMap<ClusterId, u64>,
    /// The frames with object data among these, as (from, to).
    pub wide_frames: BTreeMap<(NodeId, NodeId), u64>,
    pub copies: BTreeMap<NodeId, BTreeSet<NodeId>>,
    pub ready: BTreeMap<(NodeId, u64), HeldVersions>,
    pub failed: BTreeMap<(NodeId, u64), Unavailable>,
    pub facts: Vec<(NodeId, Fact)>,
}

/// Runs a test under the paused clock.
pub fn virtually<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap()
        .block_on(test)
}

pub fn node(cluster: usize, i: usize) -> NodeId {
    format!("c{cluster}-{i:02}").into()
}

impl ObjectGrid {
    /// Creates clusters of equal size. The first node of each is its coordinator, and the first of
    /// all writes.
    pub fn new(
        clusters: usize,
        size: usize,
        seed: u64,
        config: ShareConfig,
        conditions: Conditions,
    ) -> Self {
        let mut grid = Self {
            view: View { epoch: Epoch(1), ..View::default() },
            nodes: BTreeMap::new(),
            queue: BTreeMap::new(),
            seq: 0,
            rng: seed,
            config,
            conditions,
            cut: BTreeSet::new(),
            wide: BTreeMap::new(),
            wide_frames: BTreeMap::new(),
            copies: BTreeMap::new(),
            ready: BTreeMap::new(),
            failed: BTreeMap::new(),
            facts: Vec::new(),
        };
        for cluster in 0..clusters {
            for i in 0..size {
                grid.add(cluster, i);
            }
            grid.view
                .cluster_coordinators
                .insert(format!("c{cluster}").as_str().into(), node(cluster, 0));
        }
        grid.view.coordinator = Some(node(0, 0));
        grid.announce();
        grid
    }

    /// Adds a member; announce it with [`Grid::announce`].
    pub fn add(&mut self, cluster: usize, i: usize) {
        let name = node(cluster, i);
        let member = Member {
            incarnation: Incarnation(1),
            cluster: format!("c{cluster}").as_str().into(),
            address: Address::Memory,
            threads: 1,
            leaving: false,
        };
        self.view.members.insert(name.clone(), member);
        let actions: Actions = Arc::default();
        let sink = actions.clone();
        let shared = SharedObjects::new(
            name.clone(),
            JOB,
            types(),
            self.config.clone(),
            Arc::new(move |action| sink.lock().unwrap().push(action)),
        );
        self.nodes.insert(name, (shared, actions));
    }

    /// Kills a node: its messages in both directions are lost. The view changes later.
    pub fn kill(&mut self, name: &NodeId) {
        self.nodes.remove(name);
        self.queue.retain(|_, event| match event {
            GridEvent::Frame { from, to, .. } => from != name && to != name,
            GridEvent::Tick(node) => node != name,
        });
        self.view.members.remove(name);
        for coordinator in self.view.cluster_coordinators.values_mut() {
            if coordinator == name {
                let next = self.view.members.keys().find(|n| n.as_str()[..2] == name.as_str()[..2]);
                *coordinator = next.expect("a member is left").clone();
            }
        }
    }

    /// Sends the view to all members.
    pub fn announce(&mut self) {
        self.view.version += 1;
        for name in self.names() {
            self.nodes[&name].0.view(&self.view);
            self.drain(&name);
        }
    }

    pub fn names(&self) -> Vec<NodeId> {
        self.nodes.keys().cloned().collect()
    }

    pub fn at(&self, name: &NodeId) -> &SharedObjects {
        &self.nodes[name].0
    }

    /// Calls a node's store and collects its actions.
    pub fn on<T>(&mut self, name: &NodeId, call: impl FnOnce(&SharedObjects) -> T) -> T {
        let answer = call(&self.nodes[name].0);
        self.drain(name);
        answer
    }

    pub fn need(&mut self, name: &NodeId, ticket: u64, needs: &[ObjectNeed]) {
        let answer = self.on(name, |shared| shared.need(Ticket(ticket), needs)).unwrap();
        if let Needed::Ready(held) = answer {
            self.ready.insert((name.clone(), ticket), held);
        }
    }

    /// Delivers a frame without a sender.
    pub fn inject(&mut self, from: &NodeId, to: &NodeId, kind: Kind, body: Bytes) {
        self.on(to, |shared| shared.frame(from, kind, body));
    }

    /// Runs until no event is left, or until `limit`.
    pub async fn run(&mut self, limit: Duration) {
        let end = Instant::now() + limit;
        while let Some(((at, _), _)) = self.queue.first_key_value() {
            if *at > end {
                break;
            }
            let ((at, _), event) = self.queue.pop_first().unwrap();
            if at > Instant::now() {
                tokio::time::advance(at - Instant::now()).await;
            }
            match event {
                GridEvent::Frame { from, to, kind, body } => {
                    if let Some((shared, _)) = self.nodes.get(&to) {
                        shared.frame(&from, kind, body);
                        self.drain(&to);
                    }
                }
                GridEvent::Tick(name) => {
                    if let Some((shared, _)) = self.nodes.get(&name) {
                        shared.tick();
                        self.drain(&name);
                    }
                }
            }
        }
    }

    pub fn random(&mut self, below: u64) -> u64 {
        self.rng = self.rng.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.rng;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below.max(1)
    }

    fn push(&mut self, at: Instant, event: GridEvent) {
        self.seq += 1;
        self.queue.insert((at, self.seq), event);
    }

    fn drain(&mut self, name: &NodeId) {
        loop {
            let actions = std::mem::take(&mut *self.nodes[name].1.lock().unwrap());
            if actions.is_empty() {
                return;
            }
            for action in actions {
                match action {
                    ObjectAction::Send { to, kind, body, .. } => self.send(name, to, kind, body),
                    ObjectAction::Ready { ticket, held } => {
                        let twice = self.ready.insert((name.clone(), ticket.0), held);
                        assert!(twice.is_none(), "{name}: ticket {ticket:?} was ready twice");
                    }
                    ObjectAction::Failed { ticket, why } => {
                        self.failed.insert((name.clone(), ticket.0), why);
                    }
                    ObjectAction::Wake(at) => self.push(at, GridEvent::Tick(name.clone())),
                    ObjectAction::Event(fact) => self.facts.push((name.clone(), fact)),
                }
            }
        }
    }

    fn send(&mut self, from: &NodeId, to: NodeId, kind: Kind, body: Bytes) {
        if self.random(100) < self.conditions.refused {
            return self.nodes[from].0.unsent(to, kind, body);
        }
        let (here, there) = (from.as_str()[..2].to_owned(), to.as_str()[..2].to_owned());
        let wide = here != there;
        if wide {
            *self.wide.entry(there.as_str().into()).or_default() += body.len() as u64;
        }
        if kind == Kind::OBJECT_UPDATE {
            self.copies.entry(from.clone()).or_default().insert(to.clone());
            if wide {
                *self.wide_frames.entry((from.clone(), to.clone())).or_default() += 1;
            }
        }
        if self.cut.contains(&(from.clone(), to.clone())) {
            return;
        }
        if !self.nodes.contains_key(&to) || self.random(100) < self.conditions.lost {
            return;
        }
        let (near, far) = self.conditions.delay_ms;
        let times = if self.random(100) < self.conditions.doubled { 2 } else { 1 };
        for _ in 0..times {
            let longest = if wide { far } else { near } * 1000;
            let delay = Duration::from_micros(longest / 2 + self.random(longest / 2 + 1));
            let frame =
                GridEvent::Frame { from: from.clone(), to: to.clone(), kind, body: body.clone() };
            self.push(Instant::now() + delay, frame);
        }
    }
}

/// The frames of a whole value.
pub fn segments(value: &Blob, segment: usize, version: Version) -> Vec<Update> {
    let payload = cell::Payload::cut(wire::encode_payload(value).unwrap(), segment);
    let id = PayloadId {
        version,
        delta: false,
        len: payload.len as u64,
        segment: payload.segment as u32,
        sum: payload.sum,
    };
    payload
        .segments
        .iter()
        .enumerate()
        .map(|(i, data)| Update {
            job: JOB,
            key: ObjectKey { name: "blob".into(), part: 0 },
            id,
            index: i as u32,
            origin: node(0, 0),
            request: 0,
            relay: false,
            below: Vec::new(),
            data: data.clone(),
        })
        .collect()
}

pub fn small() -> ShareConfig {
    ShareConfig { segment: 4 << 10, ..ShareConfig::default() }
}

pub fn blob(len: usize, seed: u64) -> Blob {
    let mut x = seed | 1;
    Blob(
        (0..len)
            .map(|_| {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                x as u8
            })
            .collect(),
    )
}
