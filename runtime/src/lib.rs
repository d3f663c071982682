//! Springtide's runtime: what every node stands on. It knows no role; see `ARCHITECTURE.md`.

pub mod id;
pub mod net;
pub mod remote;
pub mod wire;
