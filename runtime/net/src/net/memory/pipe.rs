//! One direction between two clusters: frames wait at their senders by class, and leave as the
//! links accept them.
//!
//! It models a congestion-controlled transport with stream priorities. A more urgent class can
//! overtake frames that wait at a sender, but not those that a link has accepted. Senders never
//! overfill a shared queue. Losses are repaired after a round trip, at the expense of bandwidth and
//! delay.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::net::link::{DATAGRAM, Link};
use crate::net::paths::Path;
use crate::net::{Class, LinkProfile};

/// Number of attempts after which a datagram certainly arrives, so that the delay is bounded.
const ATTEMPTS_MAX: u32 = 16;
/// Time added to the round trip before a loss is repaired: about the granularity of QUIC's timers.
const RECOVERY: Duration = Duration::from_millis(5);

/// A message in transit from one node to another.
#[derive(Debug)]
pub(super) struct TransitMessage<T> {
    pub(super) content: T,
    pub(super) class: Class,
    len: usize,
    offered: usize,
    arrival: Duration,
}

impl<T> TransitMessage<T> {
    pub(super) fn new(content: T, class: Class, len: usize) -> Self {
        Self { content, class, len, offered: 0, arrival: Duration::ZERO }
    }
}

/// One direction between two clusters.
#[derive(Debug)]
pub(super) struct Pipe<T> {
    pub(super) path: Path,
    queues: BTreeMap<Class, VecDeque<TransitMessage<T>>>,
    /// Whether a partition cuts the pipe, regardless of its links.
    pub(super) cut: bool,
    /// The time at which the pipe checks its links for room.
    pub(super) wakes_at: Option<Duration>,
    pub(super) lost: u64,
}

/// The result of sending from a pipe.
pub(super) struct PumpResult<T> {
    /// Messages that left, with their arrival times, in order.
    pub(super) sent: Vec<(TransitMessage<T>, Duration)>,
    /// The time at which the links have room for more.
    pub(super) retry_at: Option<Duration>,
}

impl<T> Pipe<T> {
    pub(super) fn new(path: Path) -> Self {
        Self { path, queues: BTreeMap::new(), cut: false, wakes_at: None, lost: 0 }
    }

    pub(super) fn push(&mut self, item: TransitMessage<T>) {
        self.queues.entry(item.class).or_default().push_back(item);
    }

    /// Removes the messages that fulfil a condition, most urgent class first, in order within a
    /// class.
    pub(super) fn take(&mut self, mut condition: impl FnMut(&T) -> bool) -> Vec<TransitMessage<T>> {
        let mut taken = Vec::new();
        for queue in self.queues.values_mut() {
            for item in std::mem::take(queue) {
                if condition(&item.content) {
                    taken.push(item);
                } else {
                    queue.push_back(item);
                }
            }
        }
        taken
    }

    /// Whether any waiting message fulfils a condition.
    pub(super) fn any(&self, mut condition: impl FnMut(&T) -> bool) -> bool {
        self.queues.values().flatten().any(|item| condition(&item.content))
    }

    /// Whether the pipe carries any messages.
    pub(super) fn is_open(&self, links: &[Link]) -> bool {
        !self.cut && self.path.iter().all(|link| carries(links[*link].profile()))
    }

    /// Offers waiting messages to the links, as far as they have room.
    pub(super) fn pump(&mut self, links: &mut [Link], now: Duration) -> PumpResult<T> {
        let mut pumped = PumpResult { sent: Vec::new(), retry_at: None };
        if !self.is_open(links) {
            return pumped;
        }
        let profiles = || self.path.iter().map(|link| links[*link].profile());
        let piece_len = piece_len(profiles());
        let delay: Duration =
            profiles().map(|profile| Duration::from_micros(profile.delay_us)).sum();
        let recovery = 2 * delay + RECOVERY;
        while let Some(queue) = self.queues.values_mut().find(|queue| !queue.is_empty()) {
            let Some(item) = queue.front_mut() else { break };
            let rest = item.len - item.offered;
            let piece = rest.min(piece_len);
            let room_at =
                self.path.iter().map(|link| links[*link].room_at(now, piece)).max_by_key(|at| {
                    at.unwrap_or(Duration::MAX) // never, unless the link is changed
                });
            match room_at.flatten() {
                Some(at) if at <= now => {}
                at => {
                    pumped.retry_at = at;
                    break;
                }
            }
            let mut attempt = 0;
            let arrival = loop {
                let arrival =
                    self.path.iter().try_fold(now, |at, link| links[*link].offer(at, piece));
                match arrival {
                    Some(at) => break at + recovery * attempt,
                    None if attempt == ATTEMPTS_MAX => break now + delay + recovery * attempt,
                    None => (attempt, self.lost) = (attempt + 1, self.lost + 1),
                }
            };
            item.arrival = item.arrival.max(arrival);
            item.offered += piece;
            if item.offered == item.len
                && let Some(item) = queue.pop_front()
            {
                let arrival = item.arrival;
                pumped.sent.push((item, arrival));
            }
        }
        pumped
    }
}

/// The length of the pieces in which a stream is offered to these links.
///
/// Without loss the pieces matter only for overtaking, for which the bytes of a millisecond are
/// fine enough. Without a rate limit the whole message is one piece.
fn piece_len<'a>(profiles: impl Iterator<Item = &'a LinkProfile>) -> usize {
    profiles.fold(usize::MAX, |piece_len, profile| match profile.rate {
        _ if profile.loss > 0.0 => piece_len.min(DATAGRAM),
        None => piece_len,
        Some(rate) => {
            let in_a_millisecond = usize::try_from(rate / 1000).unwrap_or(usize::MAX);
            piece_len.min(in_a_millisecond.min(profile.queue).max(DATAGRAM))
        }
    })
}

fn carries(profile: &LinkProfile) -> bool {
    profile.up && profile.rate != Some(0) && profile.loss < 1.0
}
