//! Where a site's nodes come from: something that has processors and starts programs on them.
//!
//! A *stub* is one processor held at the provider (the number of compute threads of a node), with a node's program that
//! is started in it as soon as it is there. A node that has registered and works for nobody is a held stub; a job that gets it
//! recruits it by a message, which is why that is fast. Must not know jobs, nor why a processor is held.
//!
//! `local` starts processes on this machine, `ssh` on others, `join` none at all, `slurm` has each stub as a batch job of size 1: batch
//! systems do not resize jobs in a way that lasts from version to version, and many small ones need nothing that is not
//! everywhere (Buisson et al., CLUSTER 2007, section 5.2).

mod join;
mod local;
mod slurm;
mod ssh;
mod words;

use std::fmt;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;

use springtide_runtime::id::NodeId;

pub use self::join::JoinProvider;
pub use self::local::LocalProvider;
pub use self::slurm::SlurmProvider;
pub use self::ssh::{SshError, SshProvider};

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
    /// Its compute threads: so many cores are one stub.
    pub threads: u32,
}

/// What a site has, as whoever owns the processors says. All in stubs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// Those that work.
    pub size: u32,
    /// Of these, those in use by others than this grid.
    pub others: u32,
}

/// A stub that exists at the provider, whoever asked for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Whose node it is.
    pub node: NodeId,
    /// As the provider calls it.
    pub id: StubId,
}

/// What the provider calls a stub: a process id, or a batch job's.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StubId(pub String);

impl fmt::Display for StubId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why a provider did not do what it was asked.
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
    /// A command of the provider's failed.
    #[error("`{command}` failed ({how}): {said}")]
    Failed {
        /// The command, as one would type it.
        command: String,
        /// How it ended.
        how: String,
        /// The end of what it wrote on standard error.
        said: String,
    },
    /// A command of the provider's did not end.
    #[error("`{command}` did not answer within {} s", after.as_secs_f64())]
    Hung {
        /// The command, as one would type it.
        command: String,
        /// How long it was waited for; then it was killed.
        after: Duration,
    },
    /// A command of the provider's said what cannot be understood.
    #[error("`{command}` answered what is not understood: {said:?}: {reason}")]
    Nonsense {
        /// The command, as one would type it.
        command: String,
        /// The line.
        said: String,
        /// What is wrong with it.
        reason: String,
    },
    /// There is nobody to start nodes.
    #[error("the nodes of this cluster join by themselves: none can be started from here")]
    Joins,
}

impl ProviderError {
    /// Whether the same may succeed later with nothing changed here: a machine or a service that is away comes back, a program or
    /// a file that is missing does not.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Start { .. } | Self::Log { .. } | Self::Joins => false,
            Self::Failed { .. } | Self::Hung { .. } | Self::Nonsense { .. } => true,
        }
    }
}

/// How a stub ended: its processor is free.
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

/// What becomes of a stub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StubNews {
    /// It has no processor yet, for this reason, in the provider's words. Said again when that changes.
    Waits {
        /// Why.
        reason: String,
    },
    /// It has its processor, and its program is being started. Said once at most.
    Active,
    /// Its processor will be taken from it.
    Warned {
        /// In about this time.
        within: Duration,
        /// Why.
        reason: String,
    },
    /// It has ended, and its processor is free.
    Ended(Ended),
}

/// Whoever has the processors of a site.
pub trait Provider {
    /// What there is now; none where there is what is held and nothing else. Also the sign that the provider works: while it fails,
    /// nothing is asked of it.
    ///
    /// # Errors
    /// [`ProviderError`].
    fn poll(&self) -> LocalFuture<'_, Result<Option<Capacity>, ProviderError>> {
        Box::pin(async { Ok(None) })
    }

    /// The site's stubs that exist, of former lives of the site too: none, where a stub ends with the site that holds it.
    ///
    /// # Errors
    /// [`ProviderError`].
    fn list(&self) -> LocalFuture<'_, Result<Vec<Listed>, ProviderError>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    /// Asks for a processor, and starts a node's program in it when it is there, which may be long after this completes. When this
    /// fails, no stub is left.
    ///
    /// # Errors
    /// [`ProviderError`].
    fn hold<'a>(
        &'a self,
        request: &'a NodeRequest,
    ) -> LocalFuture<'a, Result<Box<dyn Stub>, ProviderError>>;

    /// Takes over a stub that exists ([`Provider::list`]) for this node; where none outlives its site, holds another.
    ///
    /// # Errors
    /// [`ProviderError`].
    fn adopt<'a>(
        &'a self,
        listed: &'a Listed,
        request: &'a NodeRequest,
    ) -> LocalFuture<'a, Result<Box<dyn Stub>, ProviderError>> {
        let _ = listed;
        self.hold(request)
    }

    /// Whether it can start a program handed in by whoever submits a job.
    fn starts_programs(&self) -> bool;

    /// Whether processors are held when jobs need them and released afterwards. If not, all are held as long as the site is
    /// there.
    fn on_demand(&self) -> bool {
        false
    }

    /// Whether nodes come and go by themselves, and nothing is asked of this.
    fn joins(&self) -> bool {
        false
    }
}

/// A stub, pending or held. Dropping it releases it at once, unless it was [left](Stub::leave).
pub trait Stub {
    /// What the provider calls it, while it exists.
    fn id(&self) -> Option<StubId>;

    /// The last lines its program wrote, oldest first.
    fn last_lines(&self) -> Vec<String>;

    /// Completes when something becomes of it; [`StubNews::Ended`] is said again each time. May be dropped and called again, and
    /// nothing is lost by that.
    fn news(&mut self) -> LocalFuture<'_, StubNews>;

    /// Ends its program in order, or kills it after `grace`, and starts this one in the processor it holds: faster than to release
    /// it and to hold another.
    ///
    /// # Errors
    /// [`ProviderError`]: the stub ends.
    fn recruit<'a>(
        &'a mut self,
        request: &'a NodeRequest,
        grace: Duration,
    ) -> LocalFuture<'a, Result<(), ProviderError>>;

    /// Ends its program in order, or kills it after `grace`, and gives the processor back. Completes when that is free.
    fn release(&mut self, grace: Duration) -> LocalFuture<'_, Ended>;

    /// Kills its program; [`StubNews::Ended`] follows.
    fn kill(&mut self);

    /// It goes on without whoever holds it, as far as the provider lets it: a later site [adopts](Provider::adopt) it.
    fn leave(self: Box<Self>);
}
