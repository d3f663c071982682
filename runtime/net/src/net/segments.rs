//! The segments of shared objects that the nodes of one process have, each kept once.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;

/// The number of segments that each call looks at, to drop those that no node has.
const LOOKS: usize = 4;

/// Equal byte strings of several nodes, kept once. A simulated grid would otherwise have as many
/// copies of each object as it has nodes.
#[derive(Debug, Default)]
pub struct SegmentPool(Mutex<PooledSegments>);

#[derive(Debug, Default)]
struct PooledSegments {
    by_digest: BTreeMap<(u64, usize), Bytes>,
    /// The keys of all segments, in the order in which they are looked at next.
    queue: VecDeque<(u64, usize)>,
}

impl SegmentPool {
    /// Returns bytes that are equal to the given ones: those of another node, or else these. The
    /// pool keeps them until a later call after their last user. `digest` is any digest of `bytes`.
    pub fn pooled(&self, digest: u64, bytes: Bytes) -> Bytes {
        let mut pool = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let PooledSegments { by_digest, queue } = &mut *pool;
        let key = (digest, bytes.len());
        for _ in 0..LOOKS.min(queue.len()) {
            let Some(oldest) = queue.pop_front() else { break };
            if by_digest.get(&oldest).is_some_and(Bytes::is_unique) {
                by_digest.remove(&oldest);
            } else {
                queue.push_back(oldest);
            }
        }
        if let Some(known) = by_digest.get(&key) {
            // Another content of the same digest stays out of the pool.
            return if *known == bytes { known.clone() } else { bytes };
        }
        queue.push_back(key);
        by_digest.insert(key, bytes.clone());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_segments_are_kept_once_and_dropped_after_their_last_user() {
        let pool = SegmentPool::default();
        let first = pool.pooled(1, vec![1; 100].into());
        let second = pool.pooled(1, vec![1; 100].into());
        assert_eq!(first.as_ptr(), second.as_ptr());
        let other = pool.pooled(1, vec![2; 100].into());
        assert_eq!(other, vec![2; 100], "another content with the same digest");
        drop((first, second));
        let held: Vec<Bytes> = (2..5).map(|n| pool.pooled(n, vec![n as u8; 10].into())).collect();
        let pool = pool.0.into_inner().unwrap();
        assert_eq!((pool.by_digest.len(), pool.queue.len()), (held.len(), held.len()));
    }
}
