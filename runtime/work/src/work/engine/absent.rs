//! The answer to thieves by a node that does not take part in their job, either not yet or no
//! longer.
//!
//! Without an answer a thief would wait for its timeout of seconds. Joining nodes send requests
//! before all have started. This module does not know who takes part in which job.

use bytes::Bytes;

use crate::id::Peer;
use crate::net::{Class, Net, NetworkHandler};
use crate::wire::{self, Kind};
use crate::work::steal::{StealReply, StealRequest};

/// The inbox of a node that takes part in no job: it answers thieves.
pub struct AbsentNodeInbox(Net);

impl AbsentNodeInbox {
    /// The kind of frames that it answers; route it here while there is no engine.
    pub const KIND: Kind = Kind::STEAL_REQUEST;

    /// Creates an inbox that answers through this network.
    pub fn new(net: Net) -> Self {
        Self(net)
    }
}

impl NetworkHandler for AbsentNodeInbox {
    fn frame(&self, from: &Peer, kind: Kind, body: Bytes) {
        match wire::decode(kind, &body) {
            Ok(request) => refuse(&self.0, from, &request),
            Err(error) => self.0.report_violation(from, &format!("a {kind:?} frame: {error}")),
        }
    }
}

/// Answers a thief that there is no work here.
pub(super) fn refuse(net: &Net, thief: &Peer, request: &StealRequest) {
    let reply = StealReply { job: request.job, id: request.id, task: None };
    if let Err(why) = answer(net, thief, &reply) {
        tracing::debug!(peer = %thief, %why, "an answer to a thief was not sent");
    }
}

/// Sends a thief its answer.
///
/// # Errors
/// The reason why it was not sent.
pub(super) fn answer(net: &Net, thief: &Peer, reply: &StealReply) -> Result<(), String> {
    let body = wire::encode(Kind::STEAL_REPLY, reply).map_err(|error| error.to_string())?;
    let sent = net.send(&thief.node, Class::Steal, Kind::STEAL_REPLY, body);
    sent.map_err(|error| error.to_string())
}
