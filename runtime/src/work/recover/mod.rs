//! What a node keeps so that nothing finished is computed again when other nodes are lost or leave: results it finished for
//! others, and word of where other results are.
//!
//! Both are caches: bounded, and never needed for a right answer. A result is used again only for a task that is the same
//! in every respect ([`Identity`]). No I/O, no threads; the engine feeds it and carries messages.
//!
//! Source: the global result table of Wrzesinska et al., *Fault-tolerance, malleability and migration for
//! divide-and-conquer applications on the grid* (IPDPS 2005), with two changes: pointers name the whole identity and not
//! the path alone, and tasks that still run are pointed to as well and adopted by the recomputed parent.

pub(crate) mod messages;
mod results;
mod whereabouts;

use serde::{Deserialize, Serialize};

use crate::id::TaskPath;
use crate::share::Need;

pub(crate) use results::{Finished, Results};
pub(crate) use whereabouts::{Place, Whereabouts};

/// What makes two tasks the same: a result of one is a result of the other. (The job is that of the engine.)
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Where in the tree.
    pub path: TaskPath,
    /// The name as registered.
    pub name: String,
    /// Of the encoded task (FNV-1a over words).
    pub hash: u64,
    /// The shared objects it reads, in these versions.
    pub needs: Vec<Need>,
}

impl Identity {
    /// The identity of a task from its encoded form.
    pub fn of(path: TaskPath, name: &str, body: &[u8], needs: &[Need]) -> Self {
        Self { path, name: name.to_owned(), hash: hash(body), needs: needs.to_vec() }
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
