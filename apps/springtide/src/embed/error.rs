//! Why an embedded grid or a job of it failed.

use springtide_actors::job::{AssignError, JobError};
use springtide_actors::scheduler::SubmitError;
use springtide_cli::exit::{Exit, Failed, of_refusal};
use springtide_runtime::id::{JobId, NodeId};
use springtide_runtime::remote::RemoteError;
use springtide_runtime::work::{Failure, OutputError};

/// The reason why a grid or one of its jobs failed. Each text says what to do.
///
/// ```
/// # use springtide::prelude::*;
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct Fail;
/// # impl Task for Fail {
/// #     type Output = ();
/// #     const NAME: &'static str = "fail";
/// #     fn run(self, _: &Context) -> Result<(), Stop> { Err(Stop::fail("no input")) }
/// # }
/// match springtide::run(Fail, 1) {
///     Err(springtide::Error::Task { failure }) => assert_eq!(failure.message, "no input"),
///     other => panic!("the task fails: {other:?}"),
/// }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A task failed or panicked. The failure has its name and path. A panic's message has its
    /// file, line and column.
    #[error(transparent)]
    Task {
        /// The failing task.
        failure: Failure,
    },
    /// The node of the job's root was lost, and no other one could continue.
    #[error("node {node} was lost: {reason}; submit the job again")]
    NodeLost {
        /// The lost node.
        node: NodeId,
        /// How it ended, with its last lines if any.
        reason: String,
    },
    /// Several nodes died while they held the same task.
    #[error(transparent)]
    PoisonTask {
        /// The task, and the deaths that count.
        error: JobError,
    },
    /// The tasks of a job are too long for a message.
    #[error(
        "{what} is {bytes} bytes long, more than {limit}: divide the work among several jobs, or \
         let the tasks read their input from files"
    )]
    TooLong {
        /// What is too long.
        what: String,
        /// Its encoded length in bytes.
        bytes: usize,
        /// The greatest length in bytes.
        limit: usize,
    },
    /// The job did not end before its deadline. It was cancelled.
    #[error("{job} did not end within its deadline of {limit:?}, and was cancelled: allow more")]
    Deadline {
        /// The name of the job.
        job: String,
        /// The time that it had.
        limit: std::time::Duration,
    },
    /// The job was cancelled.
    #[error("the job was cancelled: {reason}")]
    Cancelled {
        /// Who cancelled it, and why.
        reason: String,
    },
    /// A submitted task or job is not among those of the program's nodes.
    #[error(
        "{name} is not registered: add its type to the call of springtide::node, for example \
         springtide::node(springtide::tasks![TYPE])"
    )]
    NotRegistered {
        /// The registered name of the task or job.
        name: String,
    },
    /// The program did not call [`node`](crate::node), so that its binary cannot be a node.
    #[error(
        "this program cannot start nodes: call springtide::node(springtide::tasks![...]) first in \
         its main, before anything else"
    )]
    NoNodeProgram,
    /// The nodes run another program or another version of it, and cannot be restarted with this
    /// one.
    #[error("the nodes run another program: {reason}")]
    OtherProgram {
        /// The difference, and what to do.
        reason: String,
    },
    /// The grid does not start this program on the nodes of a cluster.
    #[error("the grid does not run this program: {reason}")]
    ProgramRefused {
        /// The problem, and what to do; with the last lines of the program, if it was started.
        reason: String,
    },
    /// The head or a node has an incompatible version of Springtide.
    #[error(
        "the versions of this program and of the grid differ: {reason}; build both from one version"
    )]
    Version {
        /// The versions, as far as known.
        reason: String,
    },
    /// The grid does not accept this program's certificate, or cannot issue one.
    #[error("the grid does not admit this program: {reason}")]
    NotAdmitted {
        /// The problem, and what to do.
        reason: String,
    },
    /// The grid does not answer.
    #[error("the grid cannot be reached: {reason}")]
    Unreachable {
        /// The error of the connection, and what to do.
        reason: String,
    },
    /// The grid cannot give the job the processors that it needs, now and later.
    #[error("{reason}; ask for fewer processors, or add nodes")]
    NotPlaced {
        /// The missing resources.
        reason: String,
    },
    /// The configuration, the shape of the grid or the input of a job is wrong.
    #[error("{reason}")]
    Config {
        /// The mistake, its place and what to do.
        reason: String,
    },
    /// The grid or a job could not be started.
    #[error("{reason}")]
    Start {
        /// The first problem, with the last lines of the node.
        reason: String,
    },
    /// The output of a job did not arrive whole, or has another type.
    #[error("the output of the job cannot be read: start its nodes with this program alone")]
    Output {
        /// The error of the decoder.
        #[from]
        #[source]
        error: OutputError,
    },
    /// The grid has ended.
    #[error("the grid has ended: keep its `Grid` as long as its jobs run")]
    Ended,
}

impl From<Failed> for Error {
    fn from(Failed { exit, message: reason }: Failed) -> Self {
        match exit {
            Exit::Usage => Self::Config { reason },
            Exit::Auth => Self::NotAdmitted { reason },
            Exit::Version => Self::Version { reason },
            _ => Self::Start { reason },
        }
    }
}

impl Error {
    /// The error of a connection to a grid that is up.
    pub(super) fn of_connection(failed: Failed) -> Self {
        match Self::from(failed) {
            Self::Start { reason } => Self::Unreachable { reason },
            error => error,
        }
    }

    /// The error of a submission. `refused` is the scheduler's answer.
    pub(super) fn of_submission(refused: SubmitError) -> Self {
        match refused {
            SubmitError::NotPlaced { reason } => {
                Self::NotPlaced { reason: format!("the job cannot be placed: {reason}") }
            }
            SubmitError::Program { reason } => Self::OtherProgram { reason },
            SubmitError::Shipping(error) => Self::ProgramRefused { reason: error.to_string() },
            SubmitError::Refused(
                error @ (AssignError::Program { .. } | AssignError::UnknownJob { .. }),
            ) => Self::OtherProgram { reason: error.to_string() },
            SubmitError::Cancelled { reason } => Self::Cancelled { reason },
            error => Self::from(Failed::from(error)),
        }
    }

    /// The error of a call to the head.
    pub(super) fn of_call(error: &RemoteError) -> Self {
        if let RemoteError::TooLong { len, cap, .. } = error {
            return Self::TooLong { what: "the job".to_owned(), bytes: *len, limit: *cap };
        }
        let reason = error.to_string();
        match of_refusal(error.refused()) {
            _ if matches!(error, RemoteError::Version { .. }) => Self::Version { reason },
            Exit::Auth => Self::NotAdmitted { reason },
            Exit::Version => Self::Version { reason },
            _ => Self::Unreachable { reason },
        }
    }

    /// The error of a job that has ended without an outcome.
    pub(super) fn of_job(error: JobError) -> Self {
        match error {
            JobError::Task(failure) => Self::of_failure(failure),
            JobError::Cancelled { reason } => Self::Cancelled { reason },
            JobError::NodeLost { node, reason } => Self::NodeLost { node, reason },
            error @ JobError::Poison { .. } => Self::PoisonTask { error },
            JobError::Start { .. } => Self::Start { reason: error.to_string() },
        }
    }

    /// The error of a task. The program does not know the names of jobs that only run tasks.
    pub(super) fn of_failure(mut failure: Failure) -> Self {
        if let Some(task) = failure.name.strip_prefix("run:") {
            failure.name = task.to_owned();
        }
        Self::Task { failure }
    }

    /// The error of a job that was cancelled by a handle.
    pub(super) fn cancelled(job: JobId) -> Self {
        Self::Cancelled { reason: format!("{job} was cancelled by its handle") }
    }
}

#[cfg(test)]
mod tests {
    use springtide_runtime::net::{LinkError, RefuseReason};

    use super::*;

    #[test]
    fn causes_that_need_different_actions_are_different_errors() {
        let gone = |reason| RemoteError::Gone { node: "head".into(), reason };
        let version = Error::of_call(&gone(LinkError::refused(RefuseReason::Protocol, "old")));
        assert!(matches!(version, Error::Version { .. }), "{version}");
        let foreign = Error::of_call(&gone(LinkError::refused(RefuseReason::ForeignCa, "no")));
        assert!(matches!(foreign, Error::NotAdmitted { .. }), "{foreign}");
        let silent = Error::of_call(&gone("no route".into()));
        assert!(matches!(silent, Error::Unreachable { .. }), "{silent}");
        let long = RemoteError::TooLong { message: "submit", len: 9, cap: 8 };
        assert!(matches!(Error::of_call(&long), Error::TooLong { bytes: 9, limit: 8, .. }));
        let name = "fib".to_owned();
        let unknown = SubmitError::Refused(AssignError::UnknownJob { node: "ams-1".into(), name });
        assert!(matches!(Error::of_submission(unknown), Error::OtherProgram { .. }));
        let lost = JobError::NodeLost { node: "ams-1".into(), reason: "killed".to_owned() };
        assert!(matches!(Error::of_job(lost), Error::NodeLost { .. }));
    }

    #[test]
    fn errors_can_cross_threads() {
        fn is_error<E: std::error::Error + Send + Sync + 'static>() {}
        is_error::<Error>();
    }
}
