//! The messages between nodes after a loss or about a departure. Compact encoding; golden bytes in
//! `runtime/work/golden`.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{PartialResults, TaskIdentity};
use crate::id::{Epoch, JobId, Peer, TaskPath};
use crate::work::LeaseId;

/// An announcement of results at `holder`, finished or being computed. It goes to every node of the
/// job: directly inside a cluster, and once to each other cluster, whose coordinator's node
/// forwards it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Orphans {
    /// The job of the tasks.
    pub job: JobId,
    /// The epoch that the sender knows.
    pub epoch: Epoch,
    /// The node with the results.
    pub holder: Peer,
    /// The identities of the tasks.
    pub tasks: Vec<TaskIdentity>,
}

/// The adoption of a result, or of a running task, by a recomputed parent: report under this lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Adopt {
    /// The job of the task.
    pub job: JobId,
    /// The lease in the sender's table.
    pub lease: LeaseId,
    /// The adopted task. The answer is its result, at once or later, or its return if it is not
    /// there.
    pub task: TaskIdentity,
    /// The adopting node, if the message was forwarded by a node that had handed the task over.
    #[serde(default)]
    pub adopter: Option<Peer>,
}

/// The handover of partial results by a leaving node. The task's owner left earlier and named the
/// receiver as successor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handover {
    /// The job of the task.
    pub job: JobId,
    /// The identity of the task.
    pub task: TaskIdentity,
    /// The task's output, if it was finished.
    pub output: Option<Bytes>,
    /// Otherwise, the task's partial results.
    pub results: PartialResults,
    /// The number of times that it was forwarded to the node of an ancestor.
    #[serde(default)]
    pub hops: u32,
}

/// The leases that the sender believes to be at the receiver, after a link was down. The receiver
/// answers a missing lease with the task's result, if it is still kept, or with a return.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Audit {
    /// The job of the leases.
    pub job: JobId,
    /// The leases with their tasks' paths.
    pub leases: Vec<(LeaseId, TaskPath)>,
    /// Whether the sender had declared the receiver dead and dropped its tasks: then the receiver
    /// audits its own leases.
    #[serde(default)]
    pub receiver_was_dropped: bool,
}

#[cfg(test)]
mod tests {
    use super::super::{KeptOutput, ResultLocation, RootStart};
    use super::*;
    use crate::id::Incarnation;
    use crate::share::{ObjectKey, ObjectNeed, Version};
    use crate::wire::{Kind, decode, fuzz, golden};

    #[test]
    fn mutated_frames_are_values_or_typed_errors() {
        let decoders: [fuzz::Decoder; 4] = [
            (Kind::ORPHANS, |b| decode::<Orphans>(Kind::ORPHANS, b).is_ok()),
            (Kind::ADOPT, |b| decode::<Adopt>(Kind::ADOPT, b).is_ok()),
            (Kind::AUDIT, |b| decode::<Audit>(Kind::AUDIT, b).is_ok()),
            (Kind::HANDOVER, |b| decode::<Handover>(Kind::HANDOVER, b).is_ok()),
        ];
        let tally = fuzz::run(&golden::corpus(env!("CARGO_MANIFEST_DIR")), &decoders, 5);
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
        let task =
            TaskIdentity::of(path.clone(), "forces", b"\x01\x02\x03", &needs, RootStart::default());
        let (node, incarnation) = ("ams-1".into(), Incarnation(5));
        let holder = Peer { node, incarnation, cluster: "ams".into() };
        let tasks = vec![task.clone()];
        let orphans = Orphans { job, epoch: Epoch(2), holder: holder.clone(), tasks };
        let home = env!("CARGO_MANIFEST_DIR");
        golden::check(home, Kind::ORPHANS, "orphans", &orphans);
        golden::check(
            home,
            Kind::ADOPT,
            "adopt",
            &Adopt { job, lease, task: task.clone(), adopter: None },
        );
        let name = "forces".to_owned();
        let output = Bytes::from_static(b"\x07");
        let kept = vec![KeptOutput { path: path.clone(), name, output }];
        let leased = vec![ResultLocation { identity: task.clone(), holder }];
        let left = PartialResults { kept, leased };
        golden::check(
            home,
            Kind::HANDOVER,
            "left",
            &Handover { job, task, output: None, results: left, hops: 0 },
        );
        let audit = Audit { job, leases: vec![(lease, path)], receiver_was_dropped: true };
        golden::check(home, Kind::AUDIT, "audit", &audit);
    }
}
