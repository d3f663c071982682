//! Springtide's runtime: what every node stands on. It knows no role; see `ARCHITECTURE.md`.

pub mod checksum;
pub mod config;
pub mod event;
pub mod files;
pub mod guard;
pub mod id;
pub mod malleable;
pub mod membership;
pub mod meter;
pub mod mw;
pub mod net;
pub mod random;
pub mod remote;
pub mod share;
pub mod spmd;
pub mod topology;
pub mod wire;
pub mod work;
