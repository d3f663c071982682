//! Providers of a site's nodes: they have processors and start programs on them.
//!
//! Begin at [`Provider`] and [`Stub`], the traits; a site sees nothing else. A provider knows the
//! configuration and the programs of its batch system. It knows no messages, actors or jobs.
//!
//! A *stub* is a unit of processors held at the provider (the compute threads of a node). A node's
//! program starts in it as soon as it is available. A registered node without a job is a held stub.
//! A job recruits it by a message, which is fast.
//!
//! `local` starts processes on this machine, `ssh` on others, and `join` none. `batch` submits each
//! stub as a batch job of one node: batch systems do not resize jobs in a stable way, while small
//! jobs need no special features (Buisson et al., CLUSTER 2007, section 5.2).

mod batch;
mod join;
mod local;
mod ssh;
mod words;

use std::fmt;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;

use springtide_base::id::NodeId;

pub use self::batch::{BatchCluster, BatchProvider};
pub use self::join::JoinProvider;
pub use self::local::LocalProvider;
pub use self::ssh::{SshError, SshProvider};

/// A boxed future that stays on its thread.
pub type LocalFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// A node to be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRequest {
    /// Name of the node.
    pub node: NodeId,
    /// The program, which accepts `node run --config FILE`.
    pub program: PathBuf,
    /// Path of its config file.
    pub config: PathBuf,
    /// File to which its standard error is appended; on this machine, also its standard output.
    pub log: PathBuf,
    /// Variables added to its environment.
    pub env: Vec<(String, String)>,
    /// Number of compute threads, and so of cores in a stub.
    pub threads: u32,
    /// Host of the cluster, if the scheduler chooses it.
    pub host: Option<String>,
    /// What `program` is, if it is a file of this host that a user brought.
    pub shipped: Option<ShippedFile>,
}

/// A program that a user brought, as a file of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShippedFile {
    /// SHA-256 of the file, in hexadecimal digits.
    pub digest: String,
    /// Length of the file, in bytes.
    pub bytes: u64,
    /// Machine that the program is for, as `uname -m` prints it, if it is known.
    pub machine: Option<String>,
}

/// How a provider's hosts get a program that a user brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramDelivery {
    /// They do not: nodes run the programs of their hosts.
    None,
    /// They have the files of this host.
    SameFiles,
    /// The provider copies it.
    Copies,
}

/// Capacity of a site, as its provider reports it. All counts are stubs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// Number of working stubs.
    pub size: u32,
    /// Number of these in use outside this grid.
    pub others: u32,
}

/// A stub that exists at the provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExistingStub {
    /// Node of the stub.
    pub node: NodeId,
    /// Identifier at the provider.
    pub id: StubId,
}

/// The provider's identifier of a stub: a process id, or that of a batch job.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StubId(pub String);

impl fmt::Display for StubId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why a provider's operation failed.
#[derive(Debug, thiserror::Error)]
pub enum ProviderError {
    /// The program did not start.
    #[error("cannot start {}: {source}", program.display())]
    Start {
        /// Path of the program.
        program: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// Its log file is not writable.
    #[error("cannot write {}: {source}", log.display())]
    Log {
        /// Path of the log file.
        log: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A command of the provider failed.
    #[error("`{command}` failed ({how}): {said}")]
    Failed {
        /// The command, as a user would type it.
        command: String,
        /// How it ended.
        how: String,
        /// The end of its standard error.
        said: String,
    },
    /// The batch system answers, and refused a job: a limit is reached, or a request is invalid.
    #[error("`{command}` was refused ({how}): {said}")]
    Refused {
        /// The command, as a user would type it.
        command: String,
        /// How it ended.
        how: String,
        /// The end of its standard error.
        said: String,
    },
    /// A command of the provider did not end.
    #[error("`{command}` did not answer within {} s", after.as_secs_f64())]
    Timeout {
        /// The command, as a user would type it.
        command: String,
        /// Time after which it was killed.
        after: Duration,
    },
    /// The output of a provider's command is unintelligible.
    #[error("`{command}` printed unintelligible output {said:?}: {reason}")]
    Unintelligible {
        /// The command, as a user would type it.
        command: String,
        /// The unintelligible line.
        said: String,
        /// Description of the error.
        reason: String,
    },
    /// The program is for another kind of machine than its host.
    #[error("host {host} runs {has}, and the program is for {needs}")]
    OtherMachine {
        /// Name of the host.
        host: String,
        /// System and machine of the host.
        has: String,
        /// System and machine of the program.
        needs: String,
    },
    /// The provider does not start nodes.
    #[error("the nodes of this cluster join by themselves: none can be started from here")]
    Joins,
}

impl ProviderError {
    /// Whether a repetition may succeed without a change on this side: an unreachable machine or
    /// service may return, a missing program or file does not.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Start { .. } | Self::Log { .. } | Self::OtherMachine { .. } | Self::Joins => {
                false
            }
            Self::Failed { .. }
            | Self::Refused { .. }
            | Self::Timeout { .. }
            | Self::Unintelligible { .. } => true,
        }
    }
}

/// How a stub ended; its processor is free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StubEnd {
    /// For example `exit status: 1` or `signal: 9 (SIGKILL)`.
    pub status: String,
    /// Whether the kernel or the batch system ended it because memory was short.
    pub out_of_memory: bool,
    /// Its last lines of output, oldest first.
    pub last_lines: Vec<String>,
}

impl StubEnd {
    /// Describes the end for an error message.
    pub fn describe(&self) -> String {
        let mut text = format!("its process ended ({})", self.status);
        if self.out_of_memory {
            text.push_str(" because memory was short");
        }
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

/// A change of a stub's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StubEvent {
    /// It has no processor yet, for this reason, in the provider's words. Repeated when the reason
    /// changes.
    Waits {
        /// Reason of the wait.
        reason: String,
    },
    /// It has its processor, and its program is being started. Sent at most once.
    Active,
    /// Its processor will be revoked.
    Warned {
        /// Approximate time until then.
        within: Duration,
        /// Reason of the revocation.
        reason: String,
    },
    /// It has ended, and its processor is free.
    Ended(StubEnd),
}

/// Owner of a site's processors.
pub trait Provider {
    /// Returns the current capacity; none if the capacity is what is held.
    ///
    /// Also a sign that the provider works: while it fails, nothing is requested.
    ///
    /// # Errors
    /// [`ProviderError`] of the query.
    fn poll(&self) -> LocalFuture<'_, Result<Option<Capacity>, ProviderError>> {
        Box::pin(async { Ok(None) })
    }

    /// Lists the site's stubs, including those of former processes of the site. Empty where a stub
    /// ends with its site.
    ///
    /// # Errors
    /// [`ProviderError`] of the query.
    fn list(&self) -> LocalFuture<'_, Result<Vec<ExistingStub>, ProviderError>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    /// Requests a processor, and starts a node's program in it once available, which may be long
    /// after this completes. After a failure, no stub is left.
    ///
    /// # Errors
    /// [`ProviderError`] of the request.
    fn hold<'a>(
        &'a self,
        request: &'a NodeRequest,
    ) -> LocalFuture<'a, Result<Box<dyn Stub>, ProviderError>>;

    /// Takes over a stub of [`Provider::list`] for this node. Where stubs end with their site,
    /// holds another.
    ///
    /// # Errors
    /// [`ProviderError`] of the takeover.
    fn adopt<'a>(
        &'a self,
        listed: &'a ExistingStub,
        request: &'a NodeRequest,
    ) -> LocalFuture<'a, Result<Box<dyn Stub>, ProviderError>> {
        let _ = listed;
        self.hold(request)
    }

    /// Whether it can start a program at a path that a job's submitter names.
    fn starts_programs(&self) -> bool;

    /// How hosts get a program that a user brought.
    fn delivery(&self) -> ProgramDelivery {
        if self.starts_programs() { ProgramDelivery::SameFiles } else { ProgramDelivery::None }
    }

    /// Whether processors are held only while jobs need them. Otherwise all are held for the site's
    /// life.
    fn on_demand(&self) -> bool {
        false
    }

    /// Whether nodes join by themselves, so that nothing is requested.
    fn joins(&self) -> bool {
        false
    }
}

/// A stub, pending or held. Dropping it releases it at once, unless [left](Stub::leave).
pub trait Stub {
    /// The provider's identifier, while it exists.
    fn id(&self) -> Option<StubId>;

    /// The program's last lines of output, oldest first.
    fn last_lines(&self) -> Vec<String>;

    /// Waits for the next change of state. Repeats [`StubEvent::Ended`]. It may be dropped and
    /// called again without loss.
    fn news(&mut self) -> LocalFuture<'_, StubEvent>;

    /// Ends its program in order, or kills it after `grace`, and starts another one in the held
    /// processor. This is faster than to release the processor and hold another.
    ///
    /// # Errors
    /// [`ProviderError`]; then the stub ends.
    fn recruit<'a>(
        &'a mut self,
        request: &'a NodeRequest,
        grace: Duration,
    ) -> LocalFuture<'a, Result<(), ProviderError>>;

    /// Ends its program in order, or kills it after `grace`, and returns the processor. Completes
    /// when that is free.
    fn release(&mut self, grace: Duration) -> LocalFuture<'_, StubEnd>;

    /// Kills its program; [`StubEvent::Ended`] follows.
    fn kill(&mut self);

    /// Leaves the stub running without its holder, where the provider permits it: a later site
    /// [adopts](Provider::adopt) it.
    fn leave(self: Box<Self>);
}
