//! The wire format of calls, tells and replies: named maps around the encoded message.
//!
//! The inner message is a named map too, because versions N and N-1 share a grid. It is encoded and
//! decoded separately, so the hub needs no knowledge of its type. Texts and bodies are borrowed
//! from the frame.

use serde::{Deserialize, Serialize};

use super::error::Refusal;

/// A call or a tell, with its encoded message.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Envelope<'a> {
    /// Number of the message, ascending over calls and tells of one incarnation of the sender.
    pub id: u64,
    /// Published name of the actor.
    pub actor: &'a str,
    /// Name of the message.
    pub message: &'a str,
    /// Milliseconds that the caller waits from now on; `None` for a tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
    /// An earlier message of the same sender to the same actor that must be delivered first. It was
    /// too long to travel inline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// The message in its encoded form.
    #[serde(with = "serde_bytes")]
    pub body: &'a [u8],
}

/// The reply to a call.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Reply<'a> {
    /// Id of the call.
    pub id: u64,
    /// Outcome of the call, see [`code`].
    pub code: u16,
    /// The encoded result, or details of the code.
    #[serde(with = "serde_bytes")]
    pub body: &'a [u8],
}

/// Outcomes of a call. The meaning of a number never changes; an unknown one reads as a refusal.
pub(super) mod code {
    /// The body is the encoded result.
    pub const DONE: u16 = 0;
    /// No actor is published under the name.
    pub const NO_ACTOR: u16 = 1;
    /// Too many messages are in flight.
    pub const BUSY: u16 = 2;
    /// The actor has stopped.
    pub const STOPPED: u16 = 3;
    /// The actor does not accept the message.
    pub const NOT_ACCEPTED: u16 = 4;
    /// The message did not decode; the body is the decoder's error.
    pub const VERSION: u16 = 5;
    /// The result is over the cap; the body is its length and the cap, both `u64` little endian.
    pub const TOO_LONG: u16 = 6;
    /// The sender's certificate lacks the role for the message.
    pub const ROLE: u16 = 7;
    /// The message names another sender than the link's certificate.
    pub const IDENTITY: u16 = 8;
    /// The sender's position in the job does not allow the message.
    pub const PLACE: u16 = 9;
    /// The epoch was not issued to the sender.
    pub const EPOCH: u16 = 10;
    /// Another node coordinates the job under a later epoch.
    pub const STALE: u16 = 11;
    /// The receiver does not know the job.
    pub const NO_JOB: u16 = 12;
    /// The scheduler did not confirm the sender's position in time.
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
            Refusal::JobRole => code::PLACE,
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
            code::PLACE => Refusal::JobRole,
            code::EPOCH => Refusal::Epoch,
            code::STALE => Refusal::Stale,
            code::NO_JOB => Refusal::NoJob,
            code::UNCONFIRMED => Refusal::Unconfirmed,
            code::OWNER => Refusal::Owner,
            other => Refusal::Other(other),
        }
    }
}
