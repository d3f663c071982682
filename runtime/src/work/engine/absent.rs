//! What a thief hears from a node that does not take part in its job: not yet, or no more.
//!
//! Without an answer it would wait for one until it gives up, seconds later; nodes that join ask each other before all are there.
//! Must not know who takes part in what.

use bytes::Bytes;

use crate::id::Peer;
use crate::net::{Class, Inbox, Net};
use crate::wire::{self, Kind};
use crate::work::steal::{StealReply, StealRequest};

/// Answers thieves for a node that takes part in no job.
pub struct Absent(Net);

impl Absent {
    /// What it answers: to be routed to it while no engine is there.
    pub const KIND: Kind = Kind::STEAL_REQUEST;

    /// Answers through this network.
    pub fn new(net: Net) -> Self {
        Self(net)
    }
}

impl Inbox for Absent {
    fn frame(&self, from: &Peer, kind: Kind, body: Bytes) {
        match wire::decode(kind, &body) {
            Ok(request) => refuse(&self.0, from, &request),
            Err(error) => self.0.breach(from, &format!("a {kind:?} frame: {error}")),
        }
    }
}

/// Answers that there is no work here.
pub(super) fn refuse(net: &Net, thief: &Peer, request: &StealRequest) {
    let reply = StealReply { job: request.job, id: request.id, task: None };
    if let Err(why) = answer(net, thief, &reply) {
        tracing::debug!(peer = %thief, %why, "a thief hears nothing");
    }
}

/// Sends a thief its answer; else why not.
pub(super) fn answer(net: &Net, thief: &Peer, reply: &StealReply) -> Result<(), String> {
    let body = wire::encode(Kind::STEAL_REPLY, reply).map_err(|error| error.to_string())?;
    let sent = net.send(&thief.node, Class::Steal, Kind::STEAL_REPLY, body);
    sent.map_err(|error| error.to_string())
}
