//! What the audit log keeps of a command's reply.
//!
//! This module does not know the log's file.

use std::fmt::Display;

use springtide_base::id::JobId;

/// The outcome of a command, for the audit log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditOutcome {
    /// Jobs that the reply names; those of the command itself are known already.
    pub jobs: Vec<JobId>,
    /// The reason of the failure; absent: the command succeeded.
    pub error: Option<String>,
}

impl AuditOutcome {
    /// The outcome of a command that concerns these jobs.
    pub fn of_jobs(jobs: Vec<JobId>) -> Self {
        Self { jobs, error: None }
    }

    /// The outcome of a command that failed for this reason.
    pub fn failed(error: impl Display) -> Self {
        Self { jobs: Vec::new(), error: Some(error.to_string()) }
    }
}
