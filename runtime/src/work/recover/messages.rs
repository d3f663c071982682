//! What nodes say to each other after a loss or about a leave. Compact encoding; golden bytes in `runtime/golden`.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{Identity, Left};
use crate::id::{Epoch, JobId, Peer, TaskPath};
use crate::work::LeaseId;

/// These results are, or are being computed, at `holder`. Sent to every node of the job: inside a cluster directly, to
/// another cluster once, whose coordinator's node passes it on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Orphans {
    /// Which job.
    pub job: JobId,
    /// The sender's view of the job's ownership.
    pub epoch: Epoch,
    /// Who has them.
    pub holder: Peer,
    /// What.
    pub tasks: Vec<Identity>,
}

/// A recomputed parent takes over a result, or a task that still runs: report under this lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Adopt {
    /// Which job.
    pub job: JobId,
    /// Of the sender's table.
    pub lease: LeaseId,
    /// Which task; the answer is its result, now or when it has ended, or its return if it is not there.
    pub task: Identity,
    /// Who asks, where the message was passed on by a node that had handed the task over.
    #[serde(default)]
    pub asker: Option<Peer>,
}

/// A leaving node hands over what it has of a task whose owner left before it: to the heir that the owner named.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handover {
    /// Which job.
    pub job: JobId,
    /// Of which task.
    pub task: Identity,
    /// Its output, if it was finished.
    pub output: Option<Bytes>,
    /// Else what was done of it.
    pub left: Left,
    /// How often it was passed on, to whoever runs what the task lies under.
    #[serde(default)]
    pub hops: u32,
}

/// After a link was down: these leases of mine I believe with you. What is not there any more is answered by its result,
/// if that is still kept, else by its return.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Audit {
    /// Which job.
    pub job: JobId,
    /// The leases with their tasks' paths.
    pub leases: Vec<(LeaseId, TaskPath)>,
    /// The sender had taken the receiver for dead, and has nothing of it any more: it should ask the same.
    #[serde(default)]
    pub forgot: bool,
}

#[cfg(test)]
mod tests {
    use super::super::{Kept, Place, Start};
    use super::*;
    use crate::id::Incarnation;
    use crate::share::{Need, ObjectKey, Version};
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

    /// One of each, as in the golden files.
    #[test]
    fn the_wire_form_is_the_golden_one() {
        let job = JobId(7);
        let lease = LeaseId { index: 3, generation: 2 };
        let path = TaskPath(vec![0, 1, 300]);
        let key = ObjectKey { name: "bodies".to_owned(), part: 1 };
        let needs = vec![Need { key, version: Version { epoch: Epoch(1), n: 9 } }];
        let task = Identity::of(path.clone(), "forces", b"\x01\x02\x03", &needs, Start::default());
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
            &Adopt { job, lease, task: task.clone(), asker: None },
        );
        let name = "forces".to_owned();
        let output = Bytes::from_static(b"\x07");
        let kept = vec![Kept { path: path.clone(), name, output }];
        let leased = vec![Place { identity: task.clone(), holder }];
        let left = Left { kept, leased };
        golden::check(
            home,
            Kind::HANDOVER,
            "left",
            &Handover { job, task, output: None, left, hops: 0 },
        );
        let audit = Audit { job, leases: vec![(lease, path)], forgot: true };
        golden::check(home, Kind::AUDIT, "audit", &audit);
    }
}
