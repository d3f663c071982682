//! Identifiers, random numbers, checksums and record stores: what every crate of Springtide stands
//! on.
//!
//! No network, no actors, no clock.

pub mod atomic_file;
pub mod bytes_text;
pub mod checksum;
pub mod files;
#[doc(hidden)]
pub mod fuzz;
pub mod guard;
pub mod id;
pub mod incarnation;
pub mod memory;
pub mod private;
pub mod processors;
pub mod random;
pub mod records;
#[doc(hidden)]
pub mod state_table;
