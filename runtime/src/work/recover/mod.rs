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

use crate::id::TaskPath;
use crate::share::Need;

pub(crate) use kept::KeptOutputs;
pub(crate) use results::{Finished, Results};
pub use whereabouts::Place;
pub(crate) use whereabouts::Whereabouts;

/// What makes two tasks the same: a result of one is a result of the other. (The job is that of the engine.)
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Where in the tree.
    pub path: TaskPath,
    /// The name as registered.
    pub name: String,
    /// Of the encoded task (FNV-1a over words); 0, which no task has, where it is not known: see [`Identity::trusted`].
    pub hash: u64,
    /// The shared objects it reads, in these versions.
    pub needs: Vec<Need>,
}

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
    pub fn of(path: TaskPath, name: &str, body: &[u8], needs: &[Need]) -> Self {
        Self { path, name: name.to_owned(), hash: hash(body).max(1), needs: needs.to_vec() }
    }

    /// A task below one whose identity is known: what a leaving node kept of a task that it returned. Whoever runs that very
    /// task again makes the same children, so the place in the tree tells which it was.
    pub fn trusted(path: TaskPath, name: String) -> Self {
        Self { path, name, hash: 0, needs: Vec::new() }
    }

    /// Whether a result of this task is one of `asked`, which is known in full.
    pub fn is(&self, asked: &Identity) -> bool {
        let same = self.path == asked.path && self.name == asked.name;
        same && (self.is_trusted() || (self.hash == asked.hash && self.needs == asked.needs))
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
}
