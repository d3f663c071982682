//! Messages that the network had no room for. They are sent again later: bounded, in small batches,
//! with backoff.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use crate::id::NodeId;
use crate::wire::Kind;

/// The first pause after a refusal; it doubles with each refusal and halves with each success.
const WAIT_MIN: Duration = Duration::from_millis(2);
const WAIT_MAX: Duration = Duration::from_secs(1);

/// The number of messages that are sent at once.
const BATCH: usize = 8;

pub(super) struct Backlogs {
    limit: usize,
    nodes: BTreeMap<NodeId, Backlog>,
}

struct Backlog {
    queue: VecDeque<(Kind, Bytes)>,
    bytes: usize,
    wait: Duration,
    /// Whether the network refused something since the last attempt.
    refused: bool,
    next: Instant,
}

impl Backlogs {
    /// Creates backlogs with this bound in bytes per node.
    pub fn new(limit: usize) -> Self {
        Self { limit, nodes: BTreeMap::new() }
    }

    /// Keeps a message for later. Returns the bytes that were dropped: those of the message if
    /// there is no room.
    pub fn push(&mut self, to: NodeId, kind: Kind, body: Bytes, now: Instant) -> u64 {
        let backlog = self.nodes.entry(to).or_insert_with(|| Backlog {
            queue: VecDeque::new(),
            bytes: 0,
            wait: WAIT_MIN / 2,
            refused: false,
            next: now,
        });
        if backlog.bytes + body.len() > self.limit {
            return body.len() as u64;
        }
        if !backlog.refused {
            backlog.refused = true;
            backlog.wait = (backlog.wait * 2).clamp(WAIT_MIN, WAIT_MAX);
            backlog.next = now + backlog.wait;
        }
        backlog.bytes += body.len();
        backlog.queue.push_back((kind, body));
        0
    }

    /// Removes and returns the messages to send now. Refused ones return by `push`.
    pub fn due(&mut self, now: Instant) -> Vec<(NodeId, Kind, Bytes)> {
        self.nodes.retain(|_, backlog| !backlog.queue.is_empty() || backlog.next > now);
        let mut out = Vec::new();
        for (node, backlog) in self.nodes.iter_mut().filter(|(_, b)| b.next <= now) {
            for _ in 0..BATCH {
                let Some((kind, body)) = backlog.queue.pop_front() else { break };
                backlog.bytes -= body.len();
                out.push((node.clone(), kind, body));
            }
            if !backlog.refused {
                backlog.wait = (backlog.wait / 2).max(WAIT_MIN);
            }
            backlog.refused = false;
            // Kept for a while even when empty, so that the next refusal doubles the pause.
            backlog.next = now + backlog.wait;
        }
        out
    }

    /// The time of the next attempt.
    pub fn next(&self) -> Option<Instant> {
        self.nodes.values().filter(|b| !b.queue.is_empty()).map(|b| b.next).min()
    }

    /// Drops the backlog of a lost node.
    pub fn forget(&mut self, node: &NodeId) {
        self.nodes.remove(node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_back_off_and_no_message_is_lost_or_duplicated() {
        let mut backlogs = Backlogs::new(1000);
        let mut now = Instant::now();
        let node = NodeId::from("a");
        for i in 0..100u8 {
            assert_eq!(
                backlogs.push(node.clone(), Kind::OBJECT_UPDATE, vec![i; 10].into(), now),
                0
            );
        }
        assert_eq!(
            backlogs.push(node.clone(), Kind::OBJECT_UPDATE, vec![0].into(), now),
            1,
            "it is full"
        );
        // The network refuses the first ten attempts and accepts all later ones.
        let (mut attempts, mut taken, mut last_wait) = (0, Vec::new(), Duration::ZERO);
        while let Some(next) = backlogs.next() {
            let wait = next - now;
            if attempts < 9 {
                assert!(wait > last_wait || wait == WAIT_MAX);
            }
            last_wait = wait;
            now = next;
            for (to, kind, body) in backlogs.due(now) {
                if attempts < 10 {
                    assert_eq!(backlogs.push(to, kind, body, now), 0);
                } else {
                    taken.push(body[0]);
                }
            }
            attempts += 1;
        }
        taken.sort_unstable();
        assert_eq!(taken, (0..100).collect::<Vec<u8>>());
        backlogs.due(now + WAIT_MAX * 2);
        assert!(backlogs.nodes.is_empty(), "an emptied backlog is forgotten");
    }
}
