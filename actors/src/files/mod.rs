//! Input files of jobs: each cluster's directory of them, how they get from one cluster to another, and who has which.
//!
//! A *file server* is one of a cluster, an actor beside its site. It tells the scheduler what its directory holds, and fetches what
//! it is told to from other file servers: bytes go from the one that has them to the one that needs them, and never through
//! the scheduler. `table` decides which transfers run, `dir` is the disk, `fetch` one transfer, `catalogue` what the
//! scheduler knows of all of them. Must not know jobs' places, nor why a file is wanted.

pub mod catalogue;
mod dir;
mod fetch;
mod messages;
mod server;
mod table;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub use dir::entry_of;
pub use messages::{
    BringFile, Brought, CHUNK_MAX, DropFiles, FileEntry, FileError, FilesHere, LookForFiles,
    PutChunk, PutState, ReadChunk, RemoveFiles, Source,
};
pub use server::{FileServer, Keeping, TellAgain};

use springtide_runtime::id::ClusterId;

/// The published name of a cluster's file server.
pub fn files_name(cluster: &ClusterId) -> String {
    format!("files-{cluster}")
}

/// What a server of files goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// A larger file is not taken, in bytes.
    pub largest: u64,
    /// So many are fetched at a time.
    pub at_once: usize,
    /// How often the directory is looked through.
    pub poll: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { largest: 16 << 30, at_once: 4, poll: Duration::from_secs(5) }
    }
}
