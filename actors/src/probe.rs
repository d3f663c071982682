//! The prober: measures paths to other nodes, for `net check`.
//!
//! Every process of a grid has one. This module does not know the use of its results.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use springtide_runtime::net::{Contact, Net};
use springtide_runtime::remote::{Hub, Remote, RemoteError};
use tokio::time::Instant;

use crate::admit;
pub use springtide_protocol::names::PROBER;
pub use springtide_protocol::probe::{
    BandwidthSample, CheckPaths, FetchSample, PathMeasurement, Paths, Ping, SAMPLE_MAX,
};

/// Timeout of one answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Number of measured round trips, of which the shortest counts. Meanwhile the path's MTU is
/// probed, one packet per round trip: from 1200 bytes to 1452, or to the first loss, in a dozen
/// steps.
const ROUNDS: usize = 24;

/// Minimum and maximum size of a bandwidth measurement, in bytes.
const TRANSFER_MIN: u32 = 128 << 10;
const TRANSFER_MAX: u32 = SAMPLE_MAX;
/// Duration from which a measurement suffices; otherwise the size grows.
const SUFFICIENT: Duration = Duration::from_millis(500);
/// Timeout of a bandwidth measurement.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(15);

/// The prober actor, published as [`PROBER`].
pub struct Prober {
    hub: Arc<Hub>,
}

impl Prober {
    /// Starts the actor on this arbiter and publishes it.
    pub fn publish(hub: &Arc<Hub>) {
        let prober = Prober { hub: Arc::clone(hub) }.start();
        let published = hub.publish(PROBER, prober);
        published
            .accepts_from::<Ping>(admit::by_rule)
            .accepts_from::<BandwidthSample>(admit::by_rule)
            .accepts_from::<FetchSample>(admit::by_rule)
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

impl Handler<BandwidthSample> for Prober {
    type Result = ();

    fn handle(&mut self, _: BandwidthSample, _: &mut Self::Context) {}
}

impl Handler<FetchSample> for Prober {
    type Result = MessageResult<FetchSample>;

    fn handle(&mut self, message: FetchSample, _: &mut Self::Context) -> Self::Result {
        let bytes = message.bytes.min(SAMPLE_MAX) as usize;
        MessageResult(BandwidthSample { bytes: vec![0; bytes] })
    }
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

/// Duration of a call to a node.
async fn round_trip(prober: &Remote<Prober>) -> Result<Duration, RemoteError> {
    let asked = Instant::now();
    match prober.send(Ping {}).deadline(ANSWER_TIMEOUT).await {
        // An older version without a prober answers too.
        Ok(()) | Err(RemoteError::NoActor { .. }) => Ok(asked.elapsed()),
        Err(error) => Err(error),
    }
}

/// TransferDirection of a bandwidth measurement.
#[derive(Clone, Copy)]
enum TransferDirection {
    /// To the node.
    There,
    /// From the node.
    Back,
}

/// Measures the bandwidth between this node and another, in bytes per second. It is that of the
/// narrower direction, since work uses both. The result is a lower bound.
///
/// # Errors
/// The node is unreachable.
pub async fn bandwidth(hub: &Arc<Hub>, contact: Contact) -> Result<f64, RemoteError> {
    let node = contact.node.clone();
    hub.net().learn_if_down(contact);
    let prober: Remote<Prober> = hub.remote(&node, PROBER);
    let mut latency = Duration::MAX;
    // The first call opens the link.
    for _ in 0..2 {
        latency = round_trip(&prober).await?;
    }
    let there = bandwidth_of(&prober, TransferDirection::There, latency).await?;
    let back = bandwidth_of(&prober, TransferDirection::Back, latency).await?;
    Ok(there.min(back))
}

async fn bandwidth_of(
    prober: &Remote<Prober>,
    direction: TransferDirection,
    latency: Duration,
) -> Result<f64, RemoteError> {
    let mut bytes = TRANSFER_MIN;
    loop {
        let asked = Instant::now();
        let answer = match direction {
            TransferDirection::There => {
                let sample = BandwidthSample { bytes: vec![0; bytes as usize] };
                prober.send(sample).deadline(TRANSFER_TIMEOUT).await
            }
            TransferDirection::Back => {
                let call = prober.send(FetchSample { bytes }).deadline(TRANSFER_TIMEOUT);
                call.await.map(drop)
            }
        };
        let took = asked.elapsed();
        match answer {
            Ok(()) => {}
            // So slow that the partial transfer is the result.
            Err(RemoteError::Timeout { .. }) => return Ok(f64::from(bytes) / took.as_secs_f64()),
            Err(error) => return Err(error),
        }
        let carried = took.saturating_sub(latency);
        if carried >= SUFFICIENT || bytes >= TRANSFER_MAX {
            return Ok(f64::from(bytes) / carried.as_secs_f64().max(1e-6));
        }
        bytes *= 4;
    }
}

/// Measures the path from this node to another.
pub async fn path(hub: &Arc<Hub>, contact: Contact) -> PathMeasurement {
    let net: &Net = hub.net();
    let node = contact.node.clone();
    net.learn_if_down(contact);
    let prober: Remote<Prober> = hub.remote(&node, PROBER);
    let mut best = Duration::MAX;
    for _ in 0..ROUNDS {
        match round_trip(&prober).await {
            Ok(took) => best = best.min(took),
            Err(error) => {
                return PathMeasurement {
                    error: Some(error.to_string()),
                    ..PathMeasurement::default()
                };
            }
        }
    }
    let link = net.links().into_iter().find(|link| link.peer.node == node);
    let (mtu, relayed) = link.map_or((None, false), |link| (link.mtu, link.relayed));
    let round_trip_us = Some(u64::try_from(best.as_micros()).unwrap_or(u64::MAX));
    PathMeasurement { round_trip_us, mtu, relayed, error: None }
}
