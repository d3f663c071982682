//! Input files of jobs: a directory in each cluster, and transfers between clusters.
//!
//! Each cluster has one *file server*, an actor in the process of its site. It reports the files of
//! its directory to the scheduler, and fetches files from other file servers when ordered. The
//! bytes travel between file servers, never through the scheduler. `table` decides which transfers
//! run, `dir` accesses the disk, and `fetch` executes one transfer. This module must not depend on
//! where jobs run, nor on why they need a file.

pub(crate) mod dir;
pub(crate) mod fetch;
mod server;
mod table;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub use dir::entry_of;
pub use server::{FileServer, FileServerSettings, RepeatReport};
pub use springtide_protocol::files::*;
pub use springtide_protocol::names::files_name;

/// What the scheduler knows of the files of all clusters.
pub mod catalogue {
    pub use springtide_protocol::files::FileStatus;
}

/// Limits of a file server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileLimits {
    /// Largest accepted file, in bytes.
    pub max_bytes: u64,
    /// Greatest number of simultaneous fetches.
    pub max_fetches: usize,
    /// Interval between two scans of the directory.
    pub scan_interval: Duration,
}

impl Default for FileLimits {
    fn default() -> Self {
        Self { max_bytes: 16 << 30, max_fetches: 4, scan_interval: Duration::from_secs(5) }
    }
}
