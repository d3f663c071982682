//! Wire format, links over QUIC and in memory, certificates and membership.
//!
//! - [`wire`]: frames and their encoding.
//! - [`net`]: links between nodes: QUIC, the in-memory network, relays, bulk transfers,
//!   certificates.
//! - [`membership`]: the members of a job, and the detection of failed ones.
//!
//! No roles: which node may send what is decided above.

pub mod membership;
pub mod net;
pub mod wire;

use springtide_base::{checksum, id, private, random};
#[cfg(test)]
use springtide_base::{event_kinds, state_table};
