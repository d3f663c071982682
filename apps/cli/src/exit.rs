//! Exit codes of the command, and failures that carry them.
//!
//! This module is independent of all commands.

use std::fmt;
use std::path::Path;
use std::process::ExitCode;

use springtide_actors::enrol::EnrolmentStoreError;
use springtide_actors::job::{AssignError, JobError};
use springtide_actors::node::NodeError;
use springtide_actors::scheduler::{DrainError, SubmitError};
use springtide_actors::site::MEMORY_EXIT_CODE;
use springtide_actors::store::StoreError;
use springtide_runtime::config::ConfigError;
use springtide_runtime::event::{LogError, RunDirError};
use springtide_runtime::net::join::JoinError;
use springtide_runtime::net::tls::TlsError;
use springtide_runtime::net::{NetError, RefuseReason};
use springtide_runtime::private::PrivateError;
use springtide_runtime::records::RecordError;
use springtide_runtime::remote::{Refusal, RemoteError};
use springtide_runtime::work::InputError;

/// The exit code of the process. Scripts rely on the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// The command succeeded: 0.
    Ok,
    /// The command failed: 1.
    Failure,
    /// Options, configuration or input files are wrong: 2.
    Usage,
    /// The grid cannot give the nodes or slots asked for, or a job cannot spare them: 3.
    NotPlaced,
    /// The command exceeded a time limit: 4.
    Timeout,
    /// A certificate is missing, foreign or expired: 5.
    Auth,
    /// The remote process runs another version: 6.
    Version,
    /// The process and its children exceeded their memory: 7.
    Memory,
    /// Ctrl-C ended the process: 130.
    Interrupted,
    /// SIGTERM ended the process: 143.
    Terminated,
    /// The program of a job `command` exited with this code.
    Program(u8),
}

impl Exit {
    /// The exit code as the process returns it.
    pub fn code(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Failure => 1,
            Self::Usage => 2,
            Self::NotPlaced => 3,
            Self::Timeout => 4,
            Self::Auth => 5,
            Self::Version => 6,
            Self::Memory => MEMORY_EXIT_CODE,
            Self::Interrupted => 130,
            Self::Terminated => 143,
            Self::Program(code) => code,
        }
    }

    /// The exit with this number; [`Exit::Failure`] for an unknown number.
    pub fn of(code: u8) -> Self {
        let all = [
            Self::Ok,
            Self::Usage,
            Self::NotPlaced,
            Self::Timeout,
            Self::Auth,
            Self::Version,
            Self::Memory,
            Self::Interrupted,
            Self::Terminated,
        ];
        all.into_iter().find(|exit| exit.code() == code).unwrap_or(Self::Failure)
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit.code())
    }
}

/// The exit codes as `--help` shows them.
pub const EXIT_CODES: &str = "\
Exit codes:
  0    done
  1    failure
  2    wrong options, configuration or input files
  3    the grid cannot give the nodes or slots asked for, or a job cannot spare them
  4    took longer than --timeout
  5    a certificate is missing, foreign, expired, or of a role that may not do this
  6    the other side runs another version
  7    a node and its programs used more memory than the node's share
  130  ended by Ctrl-C (143: by SIGTERM); everything it started has ended too
  134  ended itself (SIGABRT), because of a defect of the program that its last lines describe
  N    the exit code of the program that a job of the kind `command` ran";

/// The reason why a command failed, with its exit code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// The exit code of the process.
    pub exit: Exit,
    /// What failed and how to correct it. Empty if the failure was printed already.
    pub message: String,
}

impl Failed {
    /// Creates a failure with this exit.
    pub fn new(exit: Exit, message: impl fmt::Display) -> Self {
        Self { exit, message: message.to_string() }
    }

    /// Creates a failure with [`Exit::Failure`].
    pub fn failure(message: impl fmt::Display) -> Self {
        Self::new(Exit::Failure, message)
    }

    /// Creates a failure with [`Exit::Usage`]: the user's request is wrong.
    pub fn usage(message: impl fmt::Display) -> Self {
        Self::new(Exit::Usage, message)
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// A failure about a file.
pub fn cannot(what: &str, path: &Path, error: &dyn fmt::Display) -> Failed {
    Failed::failure(format!("cannot {what} {}: {error}", path.display()))
}

/// The exit code of a failed link; `None` if the remote process did not refuse it.
pub fn of_refusal(refused: Option<RefuseReason>) -> Exit {
    match refused {
        Some(RefuseReason::Protocol | RefuseReason::Alpn) => Exit::Version,
        Some(
            RefuseReason::NoCertificate
            | RefuseReason::ForeignCa
            | RefuseReason::BadCertificate
            | RefuseReason::Identity
            | RefuseReason::Revoked
            | RefuseReason::Grid,
        ) => Exit::Auth,
        Some(
            RefuseReason::StaleIncarnation
            | RefuseReason::BadHello
            | RefuseReason::Crossed
            | RefuseReason::Banned
            | RefuseReason::Closing
            | RefuseReason::Other,
        )
        | None => Exit::Failure,
    }
}

macro_rules! failed {
    ($($error:ty => $exit:expr;)*) => {
        $(impl From<$error> for Failed {
            fn from(error: $error) -> Self {
                Self::new($exit, error)
            }
        })*
    };
}

failed! {
    InputError => Exit::Usage;
    ConfigError => Exit::Usage;
    TlsError => Exit::Auth;
    RunDirError => Exit::Failure;
    LogError => Exit::Failure;
    RecordError => Exit::Failure;
    PrivateError => Exit::Auth;
    JobError => Exit::Failure;
}

impl From<NetError> for Failed {
    fn from(error: NetError) -> Self {
        let exit = if matches!(error, NetError::Tls(_)) { Exit::Auth } else { Exit::Failure };
        Self::new(exit, error)
    }
}

impl From<EnrolmentStoreError> for Failed {
    fn from(error: EnrolmentStoreError) -> Self {
        Self::failure(error)
    }
}

impl From<JoinError> for Failed {
    fn from(error: JoinError) -> Self {
        let exit = match &error {
            JoinError::Unreachable { .. } | JoinError::Bind { .. } => Exit::Failure,
            JoinError::OtherGrid { .. } | JoinError::Refused(_) | JoinError::Tls(_) => Exit::Auth,
            JoinError::NoDoor { .. } | JoinError::Answer { .. } => Exit::Version,
        };
        Self::new(exit, error)
    }
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Self {
        Self::failure(error)
    }
}

impl From<NodeError> for Failed {
    fn from(error: NodeError) -> Self {
        match error {
            NodeError::Version(error) => Self::new(Exit::Version, error),
            NodeError::Denied(_) => Self::new(Exit::Auth, error),
            NodeError::HeadGone { ref why, .. } => Self::new(of_refusal(why.refused()), error),
            error => Self::failure(error),
        }
    }
}

impl From<SubmitError> for Failed {
    fn from(error: SubmitError) -> Self {
        let exit = match error {
            SubmitError::NotPlaced { .. }
            | SubmitError::Program { .. }
            | SubmitError::Shipping(_) => Exit::NotPlaced,
            SubmitError::Refused(AssignError::Failed { refused, .. }) => of_refusal(refused),
            _ => Exit::Failure,
        };
        Self::new(exit, error)
    }
}

impl From<DrainError> for Failed {
    fn from(error: DrainError) -> Self {
        let exit = match error {
            DrainError::NoNodes | DrainError::UnknownNode { .. } => Exit::Usage,
            DrainError::BelowMinimum { .. } => Exit::NotPlaced,
            DrainError::Undrained { .. } | DrainError::Ended => Exit::Failure,
        };
        Self::new(exit, error)
    }
}

impl From<RemoteError> for Failed {
    fn from(error: RemoteError) -> Self {
        match &error {
            // The links of both sides continue, but the sender may not give this command.
            RemoteError::Refused {
                node,
                reason: reason @ (Refusal::Owner | Refusal::Role),
                ..
            } => Self::new(Exit::Auth, format!("{node} refuses this command: {reason}")),
            _ => Self::new(of_refusal(error.refused()), error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_names_every_code() {
        let all = [
            Exit::Ok,
            Exit::Failure,
            Exit::Usage,
            Exit::NotPlaced,
            Exit::Timeout,
            Exit::Auth,
            Exit::Version,
            Exit::Interrupted,
            Exit::Terminated,
        ];
        for exit in all {
            assert!(EXIT_CODES.contains(&exit.code().to_string()), "{exit:?}");
            assert_eq!(Exit::of(exit.code()), exit);
        }
    }

    #[test]
    fn a_refused_link_has_the_exit_of_its_reason_and_not_of_its_text() {
        use springtide_runtime::net::{Address, LinkError};
        let gone = |why| Failed::from(RemoteError::Gone { node: "head".into(), reason: why }).exit;
        let refused = |reason| gone(LinkError::refused(reason, "no"));
        assert_eq!(refused(RefuseReason::Protocol), Exit::Version);
        assert_eq!(refused(RefuseReason::Alpn), Exit::Version);
        assert_eq!(refused(RefuseReason::Grid), Exit::Auth);
        assert_eq!(refused(RefuseReason::ForeignCa), Exit::Auth);
        assert_eq!(refused(RefuseReason::Closing), Exit::Failure);
        assert_eq!(gone("the certificate (Protocol) of grid".into()), Exit::Failure);
        let why = RemoteError::Gone {
            node: "head".into(),
            reason: LinkError::refused(RefuseReason::NoCertificate, "no"),
        };
        let address = Address::Socket("127.0.0.1:1".parse().unwrap());
        assert_eq!(Failed::from(NodeError::HeadGone { address, why }).exit, Exit::Auth);
        let (node, reason) = ("ams-1".into(), String::new());
        let refused = Some(RefuseReason::Protocol);
        let failed = AssignError::Failed { node, reason, refused };
        assert_eq!(Failed::from(SubmitError::Refused(failed)).exit, Exit::Version);
    }
}
