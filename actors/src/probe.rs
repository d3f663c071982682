//! The prober: tells how other nodes are reached from its own, for `net check`.
//!
//! One on every process of a grid. Must not know what is done with its answers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use serde::{Deserialize, Serialize};
use springtide_runtime::id::NodeId;
use springtide_runtime::net::{Buffers, Contact, Net};
use springtide_runtime::remote::{Hub, Remote, RemoteError};
use springtide_runtime::remote_message;
use tokio::time::Instant;

use crate::admit;

/// Its published name.
pub const PROBER: &str = "prober";

/// How long one answer may take.
const WITHIN: Duration = Duration::from_secs(5);
/// Round trips measured, the shortest of which counts. Meanwhile larger and larger packets are tried on the path, one a
/// round trip: from 1200 bytes to 1452, or where they are lost, in a dozen steps.
const ROUNDS: usize = 24;

/// Bytes that the way to a node is measured with first, and at most.
const WEIGHT_MIN: usize = 128 << 10;
const WEIGHT_MAX: usize = 2 << 20;
/// Enough if they took so long; else more are sent.
const WEIGHED: Duration = Duration::from_millis(500);
/// Whoever takes longer carries nothing.
const WEIGHED_WITHIN: Duration = Duration::from_secs(15);

/// To a prober: are you there?
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Ping {}

/// To a prober: have this. It is answered when all of it is there.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Weight {
    /// That it weighs something.
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
}

/// To a prober: how do you reach these?
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CheckPaths {
    /// Whom.
    pub contacts: Vec<Contact>,
}

/// How one node reaches others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paths {
    /// Of its socket.
    pub buffers: Option<Buffers>,
    /// By node.
    pub paths: BTreeMap<NodeId, Path>,
}

/// The path to a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Path {
    /// Shortest round trip of a call, microseconds; absent when it was not reached.
    pub round_trip_us: Option<u64>,
    /// Largest packet seen to get through, bytes of UDP payload.
    pub mtu: Option<u16>,
    /// It was reached through another node alone, as a job's gates allow.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub relayed: bool,
    /// Why it was not reached.
    pub error: Option<String>,
}

remote_message! {
    "ping" => Ping;
    "weight" => Weight;
    "check-paths" => CheckPaths -> Paths;
}

/// The prober actor, published as [`PROBER`].
pub struct Prober {
    hub: Arc<Hub>,
}

impl Prober {
    /// Starts it on this arbiter and publishes it.
    pub fn publish(hub: &Arc<Hub>) {
        let prober = Prober { hub: Arc::clone(hub) }.start();
        let published = hub.publish(PROBER, prober);
        published
            .accepts_from::<Ping>(admit::by_rule)
            .accepts_from::<Weight>(admit::by_rule)
            .accepts_from::<CheckPaths>(admit::by_rule);
    }
}

impl Actor for Prober {
    type Context = Context<Self>;
}

impl Handler<Ping> for Prober {
    type Result = ();

    fn handle(&mut self, _: Ping, _: &mut Self::Context) {}
}

impl Handler<Weight> for Prober {
    type Result = ();

    fn handle(&mut self, _: Weight, _: &mut Self::Context) {}
}

impl Handler<CheckPaths> for Prober {
    type Result = ResponseFuture<Paths>;

    fn handle(&mut self, message: CheckPaths, _: &mut Self::Context) -> Self::Result {
        let hub = Arc::clone(&self.hub);
        Box::pin(async move {
            let buffers = hub.net().buffers();
            let mut paths = BTreeMap::new();
            for contact in message.contacts {
                paths.insert(contact.node.clone(), path(&hub, contact).await);
            }
            Paths { buffers, paths }
        })
    }
}

/// How long a call to a node takes.
async fn round_trip(prober: &Remote<Prober>) -> Result<Duration, RemoteError> {
    let asked = Instant::now();
    match prober.send(Ping {}).deadline(WITHIN).await {
        // Another version without a prober: that it says so is an answer.
        Ok(()) | Err(RemoteError::NoActor { .. }) => Ok(asked.elapsed()),
        Err(error) => Err(error),
    }
}

/// What the way to a node carries at least, in bytes per second.
///
/// # Errors
/// Why it was not reached.
pub async fn bandwidth(hub: &Arc<Hub>, contact: Contact) -> Result<f64, RemoteError> {
    let node = contact.node.clone();
    hub.net().introduce(contact);
    let prober: Remote<Prober> = hub.remote(&node, PROBER);
    let mut latency = Duration::MAX;
    // The first one opens the link.
    for _ in 0..2 {
        latency = round_trip(&prober).await?;
    }
    let mut len = WEIGHT_MIN;
    loop {
        let asked = Instant::now();
        let answer = prober.send(Weight { bytes: vec![0; len] }).deadline(WEIGHED_WITHIN).await;
        let took = asked.elapsed();
        match answer {
            Ok(()) => {}
            // So slow that it is all there is to know.
            Err(RemoteError::Timeout { .. }) => return Ok(len as f64 / took.as_secs_f64()),
            Err(error) => return Err(error),
        }
        let carried = took.saturating_sub(latency);
        if carried >= WEIGHED || len >= WEIGHT_MAX {
            return Ok(len as f64 / carried.as_secs_f64().max(1e-6));
        }
        len *= 4;
    }
}

/// How a node is reached from this one.
pub async fn path(hub: &Arc<Hub>, contact: Contact) -> Path {
    let net: &Net = hub.net();
    let node = contact.node.clone();
    net.introduce(contact);
    let prober: Remote<Prober> = hub.remote(&node, PROBER);
    let mut best = Duration::MAX;
    for _ in 0..ROUNDS {
        match round_trip(&prober).await {
            Ok(took) => best = best.min(took),
            Err(error) => return Path { error: Some(error.to_string()), ..Path::default() },
        }
    }
    let link = net.links().into_iter().find(|link| link.peer.node == node);
    let (mtu, relayed) = link.map_or((None, false), |link| (link.mtu, link.relayed));
    let round_trip_us = Some(u64::try_from(best.as_micros()).unwrap_or(u64::MAX));
    Path { round_trip_us, mtu, relayed, error: None }
}
