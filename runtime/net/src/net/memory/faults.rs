//! The in-memory network, continued: what goes wrong beside the links. Processes that stand still, and messages that are said twice.
//!
//! What is modelled is what can happen over QUIC. Inside a stream nothing is lost, doubled or reordered, and datagrams that
//! come twice or late are the transport's own business; so no frame is delivered twice *for one sending*. But:
//!
//! - streams overtake each other (a line with `reorder` and jitter does that; it is counted here),
//! - a sender that does not know whether a message arrived, because a link went down or an answer is late, says it again: then
//!   the receiver hears it twice, the second time much later and over another link ([`Repeat`]),
//! - a process that is stopped (`SIGSTOP`, a machine that swaps, a virtual machine that is moved) neither reads nor writes, its
//!   peers take the link for dead after the idle timeout, and when it goes on it finds all that was sent to it meanwhile.

use std::time::Duration;

use super::state::{Call, Event, Ix, Life, Load, News, Parcel, State};
use crate::id::{ClusterId, Incarnation, NodeId};
use crate::net::{Class, LinkState};
use crate::wire::{Frame, Kind};

/// A message that is to be said again waits so long for a link, and is tried so often.
const TRY_AGAIN: Duration = Duration::from_secs(1);
const TRIES_MAX: u32 = 60;

/// Which messages are said twice, and when.
#[derive(Clone, Debug, PartialEq)]
pub struct Repeat {
    /// Of all messages of these kinds so many, 0 to 1.
    pub share: f64,
    /// At most so long after the first time.
    pub late: Duration,
    /// Kinds whose senders do say them again when in doubt. (Others are never heard twice, and need not bear it.)
    pub kinds: Vec<Kind>,
}

/// What was met so far that is not usual.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Oddities {
    /// Frames that arrive before some of another stream of the same link that had left earlier.
    pub overtaking: u64,
    /// Frames heard a second time.
    pub repeated: u64,
    /// Frames refused: of a link that is over.
    pub stale: u64,
    /// Of these, frames whose sender's life was over when they came.
    pub stale_lives: u64,
    /// Frames delivered after some of a later life of their sender: there must be none.
    pub from_the_dead: u64,
    /// Processes that stood still, and of these, so long that their links were taken for dead.
    pub stops: u64,
    /// See [`Oddities::stops`].
    pub long_stops: u64,
}

/// What waits for a process that stands still, in order.
pub(super) struct Stopped {
    since: u64,
    waiting: Vec<Event>,
}

impl Stopped {
    pub(super) fn keep(&mut self, event: Event) {
        self.waiting.push(event);
    }
}

/// A message under way for the second time.
pub(super) struct Again {
    from: (Ix, Incarnation),
    to: (Ix, Incarnation),
    class: Class,
    frame: Frame,
    tries: u32,
}

impl State {
    // --- processes that stand still ---

    /// A node's process stands still from now on. False: there is none, or it stands already.
    pub(super) fn stop(&mut self, node: &NodeId, now: Duration) -> bool {
        let Some(ix) = self.by_name(node) else { return false };
        if self.nodes[ix].life == Life::Over || self.nodes[ix].stopped.is_some() {
            return false;
        }
        self.seq += 1;
        let since = self.seq;
        self.nodes[ix].stopped = Some(Stopped { since, waiting: Vec::new() });
        self.oddities.stops += 1;
        let at = now.max(self.fine) + self.config.idle_timeout;
        self.schedule(at, Event::Stood { node: ix, since });
        true
    }

    /// It goes on, with all that came meanwhile. False: it does not stand.
    pub(super) fn go_on(&mut self, node: &NodeId, now: Duration) -> bool {
        let Some(ix) = self.by_name(node) else { return false };
        let Some(stopped) = self.nodes[ix].stopped.take() else { return false };
        let at = now.max(self.fine);
        for event in stopped.waiting {
            if !self.is_given_up(&event) {
                self.schedule(at, event);
            }
        }
        true
    }

    /// A link that its dialler has given up meanwhile never comes about: its handshake wants more than a first word.
    fn is_given_up(&self, event: &Event) -> bool {
        let Event::Arrive(_, Parcel { from, to, link, load: Load::Hello(_) }) = event else {
            return false;
        };
        self.nodes[*from].ends.get(to).is_none_or(|end| end.link != *link)
    }

    /// What a process would see that stands still waits until it goes on.
    pub(super) fn unless_stopped(&mut self, event: Event) -> Option<Event> {
        let of = match &event {
            Event::Arrive(_, parcel) => parcel.to,
            Event::ConnectTimeout { node, .. } | Event::Silent { node, .. } => *node,
            Event::Again(again) => again.to.0,
            _ => return Some(event),
        };
        match &mut self.nodes[of].stopped {
            Some(stopped) => {
                stopped.keep(event);
                None
            }
            None => Some(event),
        }
    }

    /// A process stands still for so long that its peers take their links for dead, and so will it.
    pub(super) fn stood(&mut self, ix: Ix, since: u64, calls: &mut Vec<Call>) {
        let stands = self.nodes[ix].stopped.as_ref();
        if stands.is_none_or(|stopped| stopped.since != since) {
            return;
        }
        self.oddities.long_stops += 1;
        let up = self.nodes[ix].ends.iter().filter(|(_, end)| end.state == LinkState::Up);
        let links: Vec<(Ix, u64)> = up.map(|(peer, end)| (*peer, end.link)).collect();
        for (peer, link) in links {
            if self.nodes[peer].ends.get(&ix).is_some_and(|end| end.link == link) {
                self.down(peer, ix, "nothing heard for the idle timeout", calls);
            }
            if let Some(stopped) = &mut self.nodes[ix].stopped {
                stopped.keep(Event::Silent { node: ix, peer, link });
            }
        }
    }

    // --- messages that are said twice ---

    pub(super) fn repeat(&mut self, from: &ClusterId, to: &ClusterId, repeat: Option<Repeat>) {
        let clusters = (from.clone(), to.clone());
        match repeat {
            Some(repeat) => self.repeats.insert(clusters, repeat),
            None => self.repeats.remove(&clusters),
        };
    }

    /// A frame is delivered: perhaps its sender will say it again.
    pub(super) fn doubt(&mut self, from: Ix, to: Ix, class: Class, frame: &Frame, now: Duration) {
        if self.repeats.is_empty() {
            return;
        }
        let (sender, receiver) = (&self.nodes[from].peer, &self.nodes[to].peer);
        let clusters = (sender.cluster.clone(), receiver.cluster.clone());
        let Some(repeat) = self.repeats.get(&clusters) else { return };
        if !repeat.kinds.contains(&frame.kind) || self.doubts.unit() >= repeat.share {
            return;
        }
        let again = Again {
            from: (from, sender.incarnation),
            to: (to, receiver.incarnation),
            class,
            frame: frame.clone(),
            tries: 0,
        };
        let at = now + repeat.late.mul_f64(self.doubts.unit());
        self.schedule(at, Event::Again(again));
    }

    pub(super) fn again(&mut self, mut again: Again, now: Duration, calls: &mut Vec<Call>) {
        let lives = |state: &Self, (ix, life): (Ix, Incarnation)| {
            let node = &state.nodes[ix];
            node.peer.incarnation == life && node.life == Life::Running
        };
        if !lives(self, again.from) || !lives(self, again.to) {
            return;
        }
        let ((from, life), (to, _)) = (again.from, again.to);
        let up = |end: &&super::end::End| {
            let peer = end.peer.as_ref();
            end.state == LinkState::Up && peer.is_some_and(|peer| peer.incarnation == life)
        };
        let peer = self.nodes[to].ends.get(&from).filter(up).and_then(|end| end.peer.clone());
        let Some(peer) = peer else {
            again.tries += 1;
            if again.tries <= TRIES_MAX {
                self.schedule(now + TRY_AGAIN, Event::Again(again));
            }
            return;
        };
        self.oddities.repeated += 1;
        let load = Load::Frame(again.frame.clone());
        self.note(now, from, to, again.class, &load);
        self.tell(to, News::Frame(peer, again.class, again.frame), calls);
    }

    // --- messages of links that are over ---

    pub(super) fn refused_frame(&mut self, from: Ix, link: u64) {
        self.oddities.stale += 1;
        self.oddities.stale_lives += u64::from(link < self.nodes[from].first_link);
    }
}
