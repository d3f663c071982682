//! Orders of the root to the agents, and what agents report. Data only.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::environment::ProcessLayout;
use crate::work::OutputStream;

/// An order of the root to an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum LaunchOrder {
    /// Start this node's processes of an attempt.
    Start {
        /// The attempt, from 1.
        attempt: u32,
        /// The processes of all nodes.
        layout: ProcessLayout,
    },
    /// End the processes of this attempt.
    End {
        /// The attempt to end.
        attempt: u32,
    },
}

/// The end of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ProcessEnd {
    /// It exited with this code.
    Exited(u8),
    /// This signal ended it.
    Signalled(u8),
    /// The kernel ended it, or a process that it had started, because memory was short.
    OutOfMemory,
    /// It could not be started.
    NotStarted {
        /// Whether the program does not exist.
        missing: bool,
        /// The error.
        reason: String,
    },
}

impl ProcessEnd {
    /// The exit code as a shell has it: 128 and the number of a signal, 127 for a program that does
    /// not exist, and 126 for one that cannot be started.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Self::Exited(code) => *code,
            Self::Signalled(signal) => signal.saturating_add(128),
            Self::OutOfMemory => 137,
            Self::NotStarted { missing: true, .. } => 127,
            Self::NotStarted { missing: false, .. } => 126,
        }
    }

    /// Describes the end as the predicate of a sentence.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Exited(code) => format!("exited with code {code}"),
            Self::Signalled(signal) => format!("was ended by signal {signal}"),
            Self::OutOfMemory => "was ended by the kernel, because memory was short".to_owned(),
            Self::NotStarted { reason, .. } => format!("could not be started: {reason}"),
        }
    }
}

/// What an agent reports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum AgentReport {
    /// The agent is ready for orders.
    Ready {
        /// The name of its host.
        host: String,
        /// The processors of its node.
        processors: u32,
    },
    /// A piece of a process's output.
    Output {
        /// The attempt of the process.
        attempt: u32,
        /// The rank of the process.
        rank: u32,
        /// The stream of the piece.
        stream: OutputStream,
        /// The bytes of the piece.
        bytes: Bytes,
    },
    /// A process has ended. Its output precedes this report.
    Ended {
        /// The attempt of the process.
        attempt: u32,
        /// The rank of the process.
        rank: u32,
        /// How it ended.
        end: ProcessEnd,
    },
}

/// Reports of an agent in one answer. Answers may be repeated and overtake each other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct AgentAnswer {
    /// The number of this answer among those of the agent's session, from 0.
    pub(super) number: u64,
    /// The reports in their order.
    pub(super) reports: Vec<AgentReport>,
}
