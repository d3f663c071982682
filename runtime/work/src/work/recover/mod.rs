//! Results and their locations, kept so that no finished task is computed again when nodes are lost
//! or leave.
//!
//! A node keeps the results that it finished for others, and the locations of further results. Both
//! are caches: bounded, and never needed for a correct answer. A result is reused only for a task
//! that is equal in every respect ([`TaskIdentity`]). No I/O, no threads; the engine provides the
//! input and sends the messages.
//!
//! Source: the global result table of Wrzesinska et al., *Fault-tolerance, malleability and
//! migration for divide-and-conquer applications on the grid* (IPDPS 2005), with two changes.
//! Pointers contain the whole identity, not only the path. Tasks that still run have pointers as
//! well, and the recomputed parent adopts them.

mod kept;
pub(crate) mod messages;
mod results;
mod whereabouts;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::id::{Peer, TaskPath};
use crate::share::ObjectNeed;

pub(crate) use kept::KeptOutputs;
pub(crate) use results::{Results, StoredResult};
pub use whereabouts::ResultLocation;
pub(crate) use whereabouts::ResultLocations;

/// Identifies the start of the job's root from which a task descends.
///
/// Within one start a path identifies a task, since every execution of a task creates the same
/// children. A restarted root need not do so, even from the same checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RootStart(u64);

impl RootStart {
    /// The start with number `count` in this incarnation of a node. Two starts are equal with
    /// probability 2^-64.
    pub(crate) fn of(node: &Peer, count: u64) -> Self {
        let mut name = node.node.as_str().as_bytes().to_vec();
        name.extend(node.incarnation.0.to_le_bytes());
        name.extend(count.to_le_bytes());
        Self(hash(&name))
    }
}

/// The identity of a task within its job: tasks with equal identities have equal results.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TaskIdentity {
    /// The path in the tree of tasks.
    pub path: TaskPath,
    /// The task's registered name.
    pub name: String,
    /// The hash of the encoded task (FNV-1a over words). 0 if unknown, a value that no task has:
    /// see [`TaskIdentity::trusted`].
    pub hash: u64,
    /// The shared objects that it reads, with their versions.
    pub needs: Vec<ObjectNeed>,
    /// The start that it descends from. It is irrelevant for tasks with a known hash.
    #[serde(default)]
    pub start: RootStart,
}

impl PartialEq for TaskIdentity {
    fn eq(&self, other: &Self) -> bool {
        let full = !self.is_trusted() || self.start == other.start;
        let same = self.path == other.path && self.name == other.name;
        same && self.hash == other.hash && self.needs == other.needs && full
    }
}

impl Eq for TaskIdentity {}

/// The output of a finished descendant of a task that a leaving node returns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptOutput {
    /// The path of the finished task.
    pub path: TaskPath,
    /// The task's registered name.
    pub name: String,
    /// The task's encoded output.
    pub output: Bytes,
}

/// Partial results of a task that a leaving node returns unfinished.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartialResults {
    /// The finished descendants of the task.
    pub kept: Vec<KeptOutput>,
    /// Descendants that other nodes execute or have finished.
    pub leased: Vec<ResultLocation>,
}

impl PartialResults {
    /// Whether there are no known partial results.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty() && self.leased.is_empty()
    }
}

impl TaskIdentity {
    /// The identity of a task, from its encoded form.
    pub fn of(
        path: TaskPath,
        name: &str,
        body: &[u8],
        needs: &[ObjectNeed],
        start: RootStart,
    ) -> Self {
        Self { path, name: name.to_owned(), hash: hash(body).max(1), needs: needs.to_vec(), start }
    }

    /// The identity of a descendant, known by its path alone, in the partial results of a returned
    /// task. Each execution of that task creates the same children. So within one start the path
    /// identifies the task.
    pub fn trusted(path: TaskPath, name: String, start: RootStart) -> Self {
        Self { path, name, hash: 0, needs: Vec::new(), start }
    }

    /// Whether a result of this task is one of `asked`, whose hash is known.
    pub fn is(&self, asked: &TaskIdentity) -> bool {
        let same = self.path == asked.path && self.name == asked.name;
        let full = || self.hash == asked.hash && self.needs == asked.needs;
        same && if self.is_trusted() { self.start == asked.start } else { full() }
    }

    /// Whether the identity is valid among descendants of a task of this start.
    pub(crate) fn is_valid_in(&self, start: RootStart) -> bool {
        !self.is_trusted() || self.start == start
    }

    /// Whether the task is identified by its path alone, without a hash.
    pub fn is_trusted(&self) -> bool {
        self.hash == 0
    }
}

/// FNV-1a over eight bytes at a time. It distinguishes arguments and does not resist attacks; peers
/// are authenticated.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    let step = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3);
    let mut chunks = bytes.chunks_exact(8);
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for chunk in chunks.by_ref() {
        let word = u64::from_le_bytes(chunk.try_into().expect("eight bytes"));
        // The product's high half depends on the low bytes. Folding it in preserves the top bits of
        // a word.
        let mixed = step(hash, word);
        hash = mixed ^ (mixed >> 32);
    }
    for byte in chunks.remainder() {
        hash = step(hash, u64::from(*byte));
    }
    step(hash, bytes.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_sees_every_bit_and_the_length() {
        let base = vec![0u8; 40];
        let mut seen = std::collections::BTreeSet::from([hash(&base), hash(&base[..39])]);
        for bit in 0..320 {
            let mut other = base.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(seen.insert(hash(&other)), "bit {bit}");
        }
    }

    /// A restarted root may create another task at the same path.
    #[test]
    fn a_task_known_by_its_path_differs_between_starts() {
        let peer = |n| Peer {
            node: "a".into(),
            incarnation: crate::id::Incarnation(n),
            cluster: "c".into(),
        };
        let starts =
            [RootStart::of(&peer(1), 1), RootStart::of(&peer(1), 2), RootStart::of(&peer(2), 1)];
        let path = TaskPath(vec![1, 2]);
        for (at, mine) in starts.into_iter().enumerate() {
            let placed = TaskIdentity::trusted(path.clone(), "t".to_owned(), mine);
            let full = TaskIdentity::of(path.clone(), "t", b"x", &[], mine);
            for (other, theirs) in starts.into_iter().enumerate() {
                let asked = TaskIdentity::of(path.clone(), "t", b"x", &[], theirs);
                assert_eq!(placed.is(&asked), at == other);
                assert_eq!(placed.is_valid_in(theirs), at == other);
                assert_eq!(
                    placed == TaskIdentity::trusted(path.clone(), "t".to_owned(), theirs),
                    at == other
                );
                // A task with a known hash is the same in every start.
                assert!(full.is(&asked) && full == asked && full.is_valid_in(theirs));
                assert!(!full.is(&TaskIdentity::of(path.clone(), "t", b"y", &[], theirs)));
            }
        }
    }
}
