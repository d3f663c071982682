//! What calls, tells and answers look like on the wire: named maps around the encoded message.
//!
//! The message inside is a named map too (it is control, and N and N-1 share a grid), encoded and decoded on its own
//! through the wire gate, so that the hub never needs its type. Texts and bodies are read in place.

use serde::{Deserialize, Serialize};

use super::error::Refusal;

/// A call or a tell.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Envelope<'a> {
    /// Counts up in one life of the sender, over calls and tells.
    pub id: u64,
    /// The published name.
    pub actor: &'a str,
    /// The message's name.
    pub message: &'a str,
    /// How long the caller waits from now on, milliseconds; none for a tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
    /// Not before this earlier message from the same sender to the same actor, which was too long to travel in line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// The message.
    #[serde(with = "serde_bytes")]
    pub body: &'a [u8],
}

/// The answer to a call.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Reply<'a> {
    /// The call's id.
    pub id: u64,
    /// What came of it, see [`code`].
    pub code: u16,
    /// The result, or what the code says.
    #[serde(with = "serde_bytes")]
    pub body: &'a [u8],
}

/// What came of a call. A number keeps its meaning for ever; an unknown one reads as a refusal.
pub(super) mod code {
    /// The body is the result.
    pub const DONE: u16 = 0;
    /// No such actor.
    pub const NO_ACTOR: u16 = 1;
    /// Too many messages in flight.
    pub const BUSY: u16 = 2;
    /// The actor has stopped.
    pub const STOPPED: u16 = 3;
    /// The actor does not accept the message.
    pub const NOT_ACCEPTED: u16 = 4;
    /// The message did not decode; the body is the decoder's words.
    pub const VERSION: u16 = 5;
    /// The result is over the cap; the body is its length and the cap, both `u64` little endian.
    pub const TOO_LONG: u16 = 6;
    /// The sender's certificate has not the role for the message.
    pub const ROLE: u16 = 7;
    /// The message claims another sender than the link's certificate names.
    pub const IDENTITY: u16 = 8;
    /// The sender has no place in the job that lets it send the message.
    pub const PLACE: u16 = 9;
    /// The epoch was not issued to the sender.
    pub const EPOCH: u16 = 10;
    /// Another coordinates the job under a later epoch.
    pub const STALE: u16 = 11;
    /// The receiver does not have the job.
    pub const NO_JOB: u16 = 12;
    /// The scheduler did not confirm the sender's place in time.
    pub const UNCONFIRMED: u16 = 13;
    /// The job belongs to another principal.
    pub const OWNER: u16 = 14;
}

impl Refusal {
    pub(super) fn code(self) -> u16 {
        match self {
            Refusal::Busy => code::BUSY,
            Refusal::Stopped => code::STOPPED,
            Refusal::NotAccepted => code::NOT_ACCEPTED,
            Refusal::Role => code::ROLE,
            Refusal::Identity => code::IDENTITY,
            Refusal::Place => code::PLACE,
            Refusal::Epoch => code::EPOCH,
            Refusal::Stale => code::STALE,
            Refusal::NoJob => code::NO_JOB,
            Refusal::Unconfirmed => code::UNCONFIRMED,
            Refusal::Owner => code::OWNER,
            Refusal::Other(code) => code,
        }
    }

    pub(super) fn from_code(code: u16) -> Self {
        match code {
            code::BUSY => Refusal::Busy,
            code::STOPPED => Refusal::Stopped,
            code::NOT_ACCEPTED => Refusal::NotAccepted,
            code::ROLE => Refusal::Role,
            code::IDENTITY => Refusal::Identity,
            code::PLACE => Refusal::Place,
            code::EPOCH => Refusal::Epoch,
            code::STALE => Refusal::Stale,
            code::NO_JOB => Refusal::NoJob,
            code::UNCONFIRMED => Refusal::Unconfirmed,
            code::OWNER => Refusal::Owner,
            other => Refusal::Other(other),
        }
    }
}
