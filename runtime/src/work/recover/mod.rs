//! What a node keeps so that nothing finished is computed again when other nodes are lost or leave: results it finished for
//! others, and word of where other results are.
//!
//! Both are caches: bounded, and never needed for a right answer. A result is used again only for a task that is the same
//! in every respect ([`Identity`]). No I/O, no threads; the engine feeds it and carries messages.
//!
//! Source: the global result table of Wrzesinska et al., *Fault-tolerance, malleability and migration for
//! divide-and-conquer applications on the grid* (IPDPS 2005), with two changes: pointers name the whole identity and not
//! the path alone, and tasks that still run are pointed to as well and adopted by the recomputed parent.

mod kept;
pub(crate) mod messages;
mod results;
mod whereabouts;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::id::{Peer, TaskPath};
use crate::share::Need;

pub(crate) use kept::KeptOutputs;
pub(crate) use results::{Finished, Results};
pub use whereabouts::Place;
pub(crate) use whereabouts::Whereabouts;

/// Which start of the job's root a task descends from. Within one, a task's place tells what it is, for everybody who runs a
/// task makes the same children; a root that is started again need not, even from the same checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Start(u64);

impl Start {
    /// The so manyth start in this life of a node. No two are alike but by a chance of 2^-64.
    pub(crate) fn of(node: &Peer, count: u64) -> Self {
        let mut name = node.node.as_str().as_bytes().to_vec();
        name.extend(node.incarnation.0.to_le_bytes());
        name.extend(count.to_le_bytes());
        Self(hash(&name))
    }
}

/// What makes two tasks the same: a result of one is a result of the other. (The job is that of the engine.)
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Identity {
    /// Where in the tree.
    pub path: TaskPath,
    /// The name as registered.
    pub name: String,
    /// Of the encoded task (FNV-1a over words); 0, which no task has, where it is not known: see [`Identity::trusted`].
    pub hash: u64,
    /// The shared objects it reads, in these versions.
    pub needs: Vec<Need>,
    /// Where it comes from. Tasks that are known in full are the same whichever it is.
    #[serde(default)]
    pub start: Start,
}

impl PartialEq for Identity {
    fn eq(&self, other: &Self) -> bool {
        let full = !self.is_trusted() || self.start == other.start;
        let same = self.path == other.path && self.name == other.name;
        same && self.hash == other.hash && self.needs == other.needs && full
    }
}

impl Eq for Identity {}

/// The output of a task below one that a leaving node gives back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// Which.
    pub path: TaskPath,
    /// Its name as registered.
    pub name: String,
    /// Its encoded output.
    pub output: Bytes,
}

/// What was done of a task that a leaving node gives back unfinished.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Left {
    /// Tasks below it that are finished.
    pub kept: Vec<Kept>,
    /// Tasks below it that other nodes run, or have finished.
    pub leased: Vec<Place>,
}

impl Left {
    /// Whether nothing was done, as far as is known.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty() && self.leased.is_empty()
    }
}

impl Identity {
    /// The identity of a task from its encoded form.
    pub fn of(path: TaskPath, name: &str, body: &[u8], needs: &[Need], start: Start) -> Self {
        Self { path, name: name.to_owned(), hash: hash(body).max(1), needs: needs.to_vec(), start }
    }

    /// A task below one whose identity is known: what a leaving node kept of a task that it returned. Whoever runs that very
    /// task again makes the same children, so in trees of that task's start the place tells which it was.
    pub fn trusted(path: TaskPath, name: String, start: Start) -> Self {
        Self { path, name, hash: 0, needs: Vec::new(), start }
    }

    /// Whether a result of this task is one of `asked`, which is known in full.
    pub fn is(&self, asked: &Identity) -> bool {
        let same = self.path == asked.path && self.name == asked.name;
        let full = || self.hash == asked.hash && self.needs == asked.needs;
        same && if self.is_trusted() { self.start == asked.start } else { full() }
    }

    /// Whether what is known of this place holds for those below a task of this start as well.
    pub(crate) fn holds_in(&self, start: Start) -> bool {
        !self.is_trusted() || self.start == start
    }

    /// Whether its arguments are known by its place alone.
    pub fn is_trusted(&self) -> bool {
        self.hash == 0
    }
}

/// FNV-1a over eight bytes at a time: told apart are arguments, not attackers (peers are authenticated).
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    let step = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3);
    let mut chunks = bytes.chunks_exact(8);
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for chunk in chunks.by_ref() {
        let word = u64::from_le_bytes(chunk.try_into().expect("eight bytes"));
        // The product's high half holds what the low bytes did; fold it in, or the top bits of a word would be lost.
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

    /// A root that is started again may make another task at the place.
    #[test]
    fn a_task_known_by_its_place_is_another_in_another_start() {
        let peer = |n| Peer {
            node: "a".into(),
            incarnation: crate::id::Incarnation(n),
            cluster: "c".into(),
        };
        let starts = [Start::of(&peer(1), 1), Start::of(&peer(1), 2), Start::of(&peer(2), 1)];
        let path = TaskPath(vec![1, 2]);
        for (at, mine) in starts.into_iter().enumerate() {
            let placed = Identity::trusted(path.clone(), "t".to_owned(), mine);
            let full = Identity::of(path.clone(), "t", b"x", &[], mine);
            for (other, theirs) in starts.into_iter().enumerate() {
                let asked = Identity::of(path.clone(), "t", b"x", &[], theirs);
                assert_eq!(placed.is(&asked), at == other);
                assert_eq!(placed.holds_in(theirs), at == other);
                assert_eq!(
                    placed == Identity::trusted(path.clone(), "t".to_owned(), theirs),
                    at == other
                );
                // What is known in full is the same task wherever it comes from.
                assert!(full.is(&asked) && full == asked && full.holds_in(theirs));
                assert!(!full.is(&Identity::of(path.clone(), "t", b"y", &[], theirs)));
            }
        }
    }
}
