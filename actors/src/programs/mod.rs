//! Programs that users bring to a grid.
//!
//! The head and each site process have one *program store*: a directory of programs by digest.
//! The head's store receives a program from the client that submits it ([`ProgramServer`]). A
//! site's store receives it from the head or from another site. A site then starts nodes with the
//! file in its store. `table` decides what a store keeps, `elf` reads headers, and `store`
//! executes. This module must not depend on where jobs run, nor on how nodes are started.

mod elf;
mod server;
mod store;
mod table;
#[cfg(test)]
mod tests;

pub use self::elf::{ElfHeader, own_target, read_header};
pub use self::server::{ImageError, ProgramServer, own_image};
pub use self::store::{
    GetReceived, KeepProgram, ProgramAccess, ProgramStore, ProgramStoreSettings, ReleaseProgram,
    StoredPath, UseProgram,
};
pub use self::table::{ProgramArrival, ProgramUser};
pub use springtide_protocol::names::PROGRAMS;
pub use springtide_protocol::program::*;

/// Limits of a program store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramLimits {
    /// Longest accepted program, in bytes.
    pub size_max: u64,
    /// Size of all programs of the store, in bytes.
    pub cache_bytes: u64,
    /// Greatest number of programs that are received at a time.
    pub transfers_max: usize,
}

impl Default for ProgramLimits {
    fn default() -> Self {
        Self { size_max: 1 << 30, cache_bytes: 8 << 30, transfers_max: 2 }
    }
}
