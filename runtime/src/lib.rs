//! Springtide's runtime: what every node stands on. It knows no role; see `ARCHITECTURE.md`.

pub mod event;
pub mod id;
pub mod meter;
