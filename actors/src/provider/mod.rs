//! Where a site's nodes come from: something that starts and ends processes.
//!
//! Must not know jobs, nor why a node is started. `local` starts processes on this machine; ssh and batch systems come
//! later behind the same traits.

mod local;

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;

use springtide_runtime::id::NodeId;

pub use self::local::LocalProvider;

/// A future of this thread.
pub type LocalFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// A node to be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRequest {
    /// Which.
    pub node: NodeId,
    /// The program, which takes `node run --config FILE`.
    pub program: PathBuf,
    /// Its config file.
    pub config: PathBuf,
    /// Where its standard error goes, after what is there.
    pub log: PathBuf,
    /// Added to its environment.
    pub env: Vec<(String, String)>,
}

/// Why a node could not be started.
#[derive(Debug, thiserror::Error)]
pub enum ProviderError {
    /// The program did not start.
    #[error("cannot start {}: {source}", program.display())]
    Start {
        /// Which.
        program: PathBuf,
        /// The system's word.
        source: std::io::Error,
    },
    /// Its log file cannot be written.
    #[error("cannot write {}: {source}", log.display())]
    Log {
        /// Which.
        log: PathBuf,
        /// The system's word.
        source: std::io::Error,
    },
}

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// For example `exit status: 1` or `signal: 9 (SIGKILL)`.
    pub how: String,
    /// The last lines it wrote, oldest first.
    pub last_lines: Vec<String>,
}

impl Ended {
    /// One text of it for an error message.
    pub fn describe(&self) -> String {
        let mut text = format!("its process ended ({})", self.how);
        if !self.last_lines.is_empty() {
            text.push_str("; its last lines:");
        }
        for line in &self.last_lines {
            text.push_str("\n    ");
            text.push_str(line);
        }
        text
    }
}

/// Starts processes.
pub trait Provider {
    /// Starts a node's process.
    ///
    /// # Errors
    /// [`ProviderError`].
    fn start<'a>(
        &'a self,
        request: &'a NodeRequest,
    ) -> LocalFuture<'a, Result<Box<dyn Process>, ProviderError>>;

    /// Whether it can start a program handed in by whoever submits a job.
    fn starts_programs(&self) -> bool;
}

/// A process that was started. Dropping it kills it.
pub trait Process {
    /// Its id, while it runs.
    fn pid(&self) -> Option<u32>;

    /// The last lines it wrote, oldest first.
    fn last_lines(&self) -> Vec<String>;

    /// Completes when it has ended. May be dropped and called again.
    fn ended(&mut self) -> LocalFuture<'_, Ended>;

    /// Asks it to end in order, and kills it if it has not ended after `grace`.
    fn stop(&mut self, grace: Duration) -> LocalFuture<'_, Ended>;

    /// Kills it; [`Process::ended`] follows.
    fn kill(&mut self);
}
