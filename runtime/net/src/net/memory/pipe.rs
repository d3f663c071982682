//! One direction between two clusters: frames wait at their senders by class, and leave as the links on the way take them.
//!
//! Models what a congestion-controlled transport with stream priorities does: what waits at a sender can be overtaken by a
//! more urgent class, what a link has taken cannot. A sender never overfills a queue it shares; losses are made good
//! after a round trip, at the price of bandwidth and delay.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::net::link::{DATAGRAM, Link};
use crate::net::paths::Path;
use crate::net::{Class, LinkProfile};

/// Attempts after which a datagram is taken to get through, so that bad luck stays bounded.
const ATTEMPTS_MAX: u32 = 16;
/// Added to the round trip before a loss is made good: QUIC's timers have about this granularity.
const RECOVERY: Duration = Duration::from_millis(5);

/// Something on its way from one node to another.
#[derive(Debug)]
pub(super) struct Item<T> {
    pub(super) what: T,
    pub(super) class: Class,
    len: usize,
    offered: usize,
    arrival: Duration,
}

impl<T> Item<T> {
    pub(super) fn new(what: T, class: Class, len: usize) -> Self {
        Self { what, class, len, offered: 0, arrival: Duration::ZERO }
    }
}

#[derive(Debug)]
pub(super) struct Pipe<T> {
    pub(super) path: Path,
    queues: BTreeMap<Class, VecDeque<Item<T>>>,
    /// A partition cuts it, whatever its links say.
    pub(super) cut: bool,
    /// When it looks again whether there is room.
    pub(super) wakes_at: Option<Duration>,
    pub(super) lost: u64,
}

/// What came of pumping.
pub(super) struct Pumped<T> {
    /// What left, and when it arrives, in order of leaving.
    pub(super) left: Vec<(Item<T>, Duration)>,
    /// When there will be room for more.
    pub(super) again: Option<Duration>,
}

impl<T> Pipe<T> {
    pub(super) fn new(path: Path) -> Self {
        Self { path, queues: BTreeMap::new(), cut: false, wakes_at: None, lost: 0 }
    }

    pub(super) fn push(&mut self, item: Item<T>) {
        self.queues.entry(item.class).or_default().push_back(item);
    }

    /// Takes out what fulfils a condition, the most urgent class first, in order within a class.
    pub(super) fn take(&mut self, mut which: impl FnMut(&T) -> bool) -> Vec<Item<T>> {
        let mut taken = Vec::new();
        for queue in self.queues.values_mut() {
            for item in std::mem::take(queue) {
                if which(&item.what) {
                    taken.push(item);
                } else {
                    queue.push_back(item);
                }
            }
        }
        taken
    }

    /// Whether anything that waits fulfils a condition.
    pub(super) fn any(&self, mut which: impl FnMut(&T) -> bool) -> bool {
        self.queues.values().flatten().any(|item| which(&item.what))
    }

    /// Whether anything gets through at all.
    pub(super) fn is_open(&self, links: &[Link]) -> bool {
        !self.cut && self.path.iter().all(|link| carries(links[*link].profile()))
    }

    /// Offers what waits to the links, as far as they have room.
    pub(super) fn pump(&mut self, links: &mut [Link], now: Duration) -> Pumped<T> {
        let mut pumped = Pumped { left: Vec::new(), again: None };
        if !self.is_open(links) {
            return pumped;
        }
        let profiles = || self.path.iter().map(|link| links[*link].profile());
        let grain = grain(profiles());
        let delay: Duration =
            profiles().map(|profile| Duration::from_micros(profile.delay_us)).sum();
        let recovery = 2 * delay + RECOVERY;
        while let Some(queue) = self.queues.values_mut().find(|queue| !queue.is_empty()) {
            let Some(item) = queue.front_mut() else { break };
            let rest = item.len - item.offered;
            let piece = rest.min(grain);
            let room_at =
                self.path.iter().map(|link| links[*link].room_at(now, piece)).max_by_key(|at| {
                    at.unwrap_or(Duration::MAX) // never: somebody must change the link
                });
            match room_at.flatten() {
                Some(at) if at <= now => {}
                at => {
                    pumped.again = at;
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
                pumped.left.push((item, arrival));
            }
        }
        pumped
    }
}

/// In what pieces a stream is offered to these links. Where they lose nothing it makes no difference but to what waits: what a
/// link carries in a millisecond is fine enough for that, and everything where none has a limit.
fn grain<'a>(profiles: impl Iterator<Item = &'a LinkProfile>) -> usize {
    profiles.fold(usize::MAX, |grain, profile| match profile.rate {
        _ if profile.loss > 0.0 => grain.min(DATAGRAM),
        None => grain,
        Some(rate) => {
            let in_a_millisecond = usize::try_from(rate / 1000).unwrap_or(usize::MAX);
            grain.min(in_a_millisecond.min(profile.queue).max(DATAGRAM))
        }
    })
}

fn carries(profile: &LinkProfile) -> bool {
    profile.up && profile.rate != Some(0) && profile.loss < 1.0
}
