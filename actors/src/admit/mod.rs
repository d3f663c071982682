//! Judgement of received messages before an actor's handlers, by the rules of the protocol.

mod judge;
#[cfg(test)]
mod rogue;

pub use self::judge::{AdmissionResult, AdmitsMessages, AuthorityQuery, ask_scheduler, hear, wait};
pub use springtide_protocol::admit::*;
