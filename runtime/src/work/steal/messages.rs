//! What thieves and victims say to each other. Compact encoding; golden bytes in `runtime/golden`.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::id::{JobId, Peer, TaskPath};
use crate::share::Need;
use crate::work::recover::{Left, Place, Start};
use crate::work::{Failure, LeaseId};

/// A thief asks for work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StealRequest {
    /// Which job.
    pub job: JobId,
    /// Chosen by the thief; the answer carries it. Answers are matched by it, never by sender.
    pub id: u32,
    /// Leapfrogging: only a task at or below this path is wanted, one that the victim holds of the thief.
    pub awaited: Option<TaskPath>,
}

/// The answer to a [`StealRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StealReply {
    /// Which job.
    pub job: JobId,
    /// The request's.
    pub id: u32,
    /// A task, or none: then the victim will hint when it has work.
    pub task: Option<StolenTask>,
}

/// A task on its way to a thief.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StolenTask {
    /// Under which the result is reported.
    pub lease: LeaseId,
    /// Its identity.
    pub path: TaskPath,
    /// Its registered name.
    pub name: String,
    /// The shared objects it reads.
    pub needs: Vec<Need>,
    /// The task itself.
    pub body: Bytes,
    /// Where results of tasks below it are, if it was begun before by a node that left.
    #[serde(default)]
    pub known: Vec<Place>,
    /// Which start of the job's root it is of.
    #[serde(default)]
    pub start: Start,
}

/// A victim that had no work has some now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkHint {
    /// Which job.
    pub job: JobId,
}

/// How a leased task ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TaskOutcome {
    /// With this output.
    Output(Bytes),
    /// It failed, and with it the job.
    Failed(Failure),
}

/// A leased task has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskResult {
    /// Which job.
    pub job: JobId,
    /// The lease it was handed out under.
    pub lease: LeaseId,
    /// How.
    pub outcome: TaskOutcome,
}

/// A leased task comes back unfinished; the owner still has its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskReturn {
    /// Which job.
    pub job: JobId,
    /// The lease it was handed out under.
    pub lease: LeaseId,
    /// What was done of it.
    #[serde(default)]
    pub left: Left,
}

/// The owner no longer wants a leased task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Abandon {
    /// Which job.
    pub job: JobId,
    /// The lease it was handed out under.
    pub lease: LeaseId,
    /// The owner leaves, and whoever has this peer's task runs the parent again: the task goes on, for that one.
    #[serde(default)]
    pub heir: Option<Peer>,
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

    /// One of each, as in the golden files.
    #[test]
    fn the_wire_form_is_the_golden_one() {
        let job = JobId(7);
        let lease = LeaseId { index: 3, generation: 2 };
        let path = TaskPath(vec![0, 1, 300]);
        let key = ObjectKey { name: "bodies".to_owned(), part: 1 };
        let needs = vec![Need { key, version: Version { epoch: Epoch(1), n: 9 } }];
        let body = Bytes::from_static(b"\x01\x02\x03");
        let task = StolenTask {
            lease,
            path: path.clone(),
            name: "forces".to_owned(),
            needs,
            body: body.clone(),
            known: Vec::new(),
            start: Start::default(),
        };
        let failure = Failure {
            name: "forces".to_owned(),
            path: path.clone(),
            message: "no".to_owned(),
            panicked: true,
            located: true,
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
            &TaskReturn { job, lease, left: Left::default() },
        );
        golden::check(
            env!("CARGO_MANIFEST_DIR"),
            Kind::TASK_ABANDON,
            "abandon",
            &Abandon { job, lease, heir: None },
        );
    }
}
