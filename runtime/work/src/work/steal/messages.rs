//! The messages between thieves and victims. Compact encoding; golden bytes in
//! `runtime/work/golden`.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::id::{JobId, Peer, TaskPath};
use crate::share::ObjectNeed;
use crate::work::recover::{PartialResults, ResultLocation, RootStart};
use crate::work::{Failure, LeaseId};

/// A thief's request for work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StealRequest {
    /// The job of the request.
    pub job: JobId,
    /// The thief's number of the request, which the answer repeats. Answers are matched by it,
    /// never by sender.
    pub id: u32,
    /// Leapfrogging: accept only a task at or below this path, which the victim executes for the
    /// thief.
    pub awaited: Option<TaskPath>,
}

/// The answer to a [`StealRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StealReply {
    /// The job of the request.
    pub job: JobId,
    /// The number of the request.
    pub id: u32,
    /// A task, or `None`: then the victim sends a hint when it has work.
    pub task: Option<StolenTask>,
}

/// A task on its way to a thief.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StolenTask {
    /// The lease under which the result is reported.
    pub lease: LeaseId,
    /// The task's path from the root.
    pub path: TaskPath,
    /// The task's registered name.
    pub name: String,
    /// The shared objects that the task reads.
    pub needs: Vec<ObjectNeed>,
    /// The encoded task itself.
    pub body: Bytes,
    /// The nodes with results of its descendants, if a node that left started it earlier.
    #[serde(default)]
    pub result_locations: Vec<ResultLocation>,
    /// The start of the job's root that it belongs to.
    #[serde(default)]
    pub start: RootStart,
}

/// A hint of a victim without work that it has some again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkHint {
    /// The job with the work.
    pub job: JobId,
}

/// The end of a leased task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TaskOutcome {
    /// The task's encoded output.
    Output(Bytes),
    /// The task failed, and with it the job.
    Failed(Failure),
}

/// The report of a leased task's end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskResult {
    /// The job of the task.
    pub job: JobId,
    /// The lease of the task.
    pub lease: LeaseId,
    /// The outcome of the task.
    pub outcome: TaskOutcome,
}

/// The return of an unfinished leased task, whose value the owner still has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskReturn {
    /// The job of the task.
    pub job: JobId,
    /// The lease of the task.
    pub lease: LeaseId,
    /// The partial results of the task.
    #[serde(default)]
    pub left: PartialResults,
}

/// The owner's notice that it abandons a lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Abandon {
    /// The job of the task.
    pub job: JobId,
    /// The lease of the task.
    pub lease: LeaseId,
    /// The node that holds the parent task, if the owner leaves: the leased task continues for that
    /// node.
    #[serde(default)]
    pub successor: Option<Peer>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Epoch;
    use crate::share::{ObjectKey, Version};
    use crate::wire::{Kind, decode, fuzz, golden};

    #[test]
    fn mutated_frames_are_values_or_typed_errors() {
        let decoders: [fuzz::Decoder; 6] = [
            (Kind::STEAL_REQUEST, |b| decode::<StealRequest>(Kind::STEAL_REQUEST, b).is_ok()),
            (Kind::STEAL_REPLY, |b| decode::<StealReply>(Kind::STEAL_REPLY, b).is_ok()),
            (Kind::WORK_HINT, |b| decode::<WorkHint>(Kind::WORK_HINT, b).is_ok()),
            (Kind::TASK_RESULT, |b| decode::<TaskResult>(Kind::TASK_RESULT, b).is_ok()),
            (Kind::TASK_RETURN, |b| decode::<TaskReturn>(Kind::TASK_RETURN, b).is_ok()),
            (Kind::TASK_ABANDON, |b| decode::<Abandon>(Kind::TASK_ABANDON, b).is_ok()),
        ];
        let tally = fuzz::run(&golden::corpus(env!("CARGO_MANIFEST_DIR")), &decoders, 3);
        assert!(tally.accepted > 0 && tally.refused > 0, "{tally:?}");
    }

    /// One message of each kind, as in the golden files.
    #[test]
    fn the_encoding_matches_the_golden_files() {
        let job = JobId(7);
        let lease = LeaseId { index: 3, generation: 2 };
        let path = TaskPath(vec![0, 1, 300]);
        let key = ObjectKey { name: "bodies".to_owned(), part: 1 };
        let needs = vec![ObjectNeed { key, version: Version { epoch: Epoch(1), n: 9 } }];
        let body = Bytes::from_static(b"\x01\x02\x03");
        let task = StolenTask {
            lease,
            path: path.clone(),
            name: "forces".to_owned(),
            needs,
            body: body.clone(),
            result_locations: Vec::new(),
            start: RootStart::default(),
        };
        let failure = Failure {
            name: "forces".to_owned(),
            path: path.clone(),
            message: "no".to_owned(),
            panicked: true,
            located: true,
            exit: None,
        };
        golden::check(
            env!("CARGO_MANIFEST_DIR"),
            Kind::STEAL_REQUEST,
            "any",
            &StealRequest { job, id: 5, awaited: None },
        );
        golden::check(
            env!("CARGO_MANIFEST_DIR"),
            Kind::STEAL_REQUEST,
            "leapfrog",
            &StealRequest { job, id: 5, awaited: Some(path) },
        );
        golden::check(
            env!("CARGO_MANIFEST_DIR"),
            Kind::STEAL_REPLY,
            "none",
            &StealReply { job, id: 5, task: None },
        );
        golden::check(
            env!("CARGO_MANIFEST_DIR"),
            Kind::STEAL_REPLY,
            "task",
            &StealReply { job, id: 5, task: Some(task) },
        );
        golden::check(env!("CARGO_MANIFEST_DIR"), Kind::WORK_HINT, "hint", &WorkHint { job });
        let result = |outcome| TaskResult { job, lease, outcome };
        golden::check(
            env!("CARGO_MANIFEST_DIR"),
            Kind::TASK_RESULT,
            "output",
            &result(TaskOutcome::Output(body)),
        );
        golden::check(
            env!("CARGO_MANIFEST_DIR"),
            Kind::TASK_RESULT,
            "failed",
            &result(TaskOutcome::Failed(failure)),
        );
        golden::check(
            env!("CARGO_MANIFEST_DIR"),
            Kind::TASK_RETURN,
            "return",
            &TaskReturn { job, lease, left: PartialResults::default() },
        );
        golden::check(
            env!("CARGO_MANIFEST_DIR"),
            Kind::TASK_ABANDON,
            "abandon",
            &Abandon { job, lease, successor: None },
        );
    }
}
