//! Faults of the in-memory network besides those of links: stopped processes and repeated messages.
//!
//! The model covers what can happen over QUIC. Inside a stream no frame is lost, duplicated or
//! reordered, and the transport handles duplicate and late datagrams. No frame is therefore
//! delivered twice *for one sending*. However:
//!
//! - Streams overtake each other; a line with `reorder` and jitter causes it, and it is counted
//!   here.
//! - A sender repeats a message if it does not know whether the first one arrived, because a link
//!   was lost or a reply is late. The receiver then gets it twice, the second time much later and
//!   over another link ([`RepeatRule`]).
//! - A stopped process (`SIGSTOP`, a swapping host, a migrating virtual machine) neither reads nor
//!   writes. Its peers close their links after the idle timeout. When it resumes, it receives
//!   everything that was sent in the meantime.

use std::time::Duration;

use super::state::{
    Call, NetworkEvent, NetworkState, NodeIndex, NodePhase, Notification, Packet, Payload,
};
use crate::id::{ClusterId, Incarnation, NodeId};
use crate::net::{Class, LinkState};
use crate::wire::{Frame, Kind};

/// Delay after which a repeated message without a link is sent again.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Maximum number of attempts to send a repeated message.
const TRIES_MAX: u32 = 60;

/// The selection of messages that are sent twice, and the delay.
#[derive(Clone, Debug, PartialEq)]
pub struct RepeatRule {
    /// Fraction of the messages of these kinds that are repeated, 0 to 1.
    pub fraction: f64,
    /// Maximum delay of the second message after the first.
    pub max_delay: Duration,
    /// Kinds whose senders repeat messages without a reply. Receivers of other kinds need not
    /// tolerate repetitions.
    pub kinds: Vec<Kind>,
}

/// Counts of unusual events so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Frames that arrive before earlier ones of another stream of the same link.
    pub overtaking: u64,
    /// Frames delivered a second time.
    pub repeated: u64,
    /// Frames refused because their link was closed.
    pub stale: u64,
    /// Refused frames whose sender's incarnation had ended when they arrived.
    pub stale_incarnations: u64,
    /// Frames delivered after some of a later incarnation of their sender, which must not happen.
    pub stale_deliveries: u64,
    /// Processes that were stopped.
    pub stops: u64,
    /// Processes that were stopped so long that their links were closed.
    pub long_stops: u64,
}

/// The deferred events of a stopped process, in order.
pub(super) struct StoppedProcess {
    since: u64,
    waiting: Vec<NetworkEvent>,
}

impl StoppedProcess {
    pub(super) fn defer(&mut self, event: NetworkEvent) {
        self.waiting.push(event);
    }
}

/// A message that is sent for the second time.
pub(super) struct RepeatedMessage {
    from: (NodeIndex, Incarnation),
    to: (NodeIndex, Incarnation),
    class: Class,
    frame: Frame,
    tries: u32,
}

impl NetworkState {
    // --- stopped processes ---

    /// Stops a node's process. Returns false if there is none, or it is already stopped.
    pub(super) fn stop(&mut self, node: &NodeId, now: Duration) -> bool {
        let Some(index) = self.by_name(node) else { return false };
        if self.nodes[index].phase == NodePhase::Over || self.nodes[index].stopped.is_some() {
            return false;
        }
        self.seq += 1;
        let since = self.seq;
        self.nodes[index].stopped = Some(StoppedProcess { since, waiting: Vec::new() });
        self.oddities.stops += 1;
        let at = now.max(self.event_time) + self.config.idle_timeout;
        self.schedule(at, NetworkEvent::LongStop { node: index, since });
        true
    }

    /// Resumes a process, with all deferred events. Returns false if it is not stopped.
    pub(super) fn resume(&mut self, node: &NodeId, now: Duration) -> bool {
        let Some(index) = self.by_name(node) else { return false };
        let Some(stopped) = self.nodes[index].stopped.take() else { return false };
        let at = now.max(self.event_time);
        for event in stopped.waiting {
            if !self.is_abandoned(&event) {
                self.schedule(at, event);
            }
        }
        true
    }

    /// Whether the caller of a link has abandoned it in the meantime: a handshake needs more than
    /// its first message.
    fn is_abandoned(&self, event: &NetworkEvent) -> bool {
        let NetworkEvent::Arrive(_, Packet { from, to, link, payload: Payload::Hello(_) }) = event
        else {
            return false;
        };
        self.nodes[*from].ends.get(to).is_none_or(|end| end.link != *link)
    }

    /// Defers an event of a stopped process until it resumes; returns other events.
    pub(super) fn unless_stopped(&mut self, event: NetworkEvent) -> Option<NetworkEvent> {
        let owner = match &event {
            NetworkEvent::Arrive(_, packet) => packet.to,
            NetworkEvent::ConnectTimeout { node, .. } | NetworkEvent::Silent { node, .. } => *node,
            NetworkEvent::RepeatedMessage(repeated) => repeated.to.0,
            _ => return Some(event),
        };
        match &mut self.nodes[owner].stopped {
            Some(stopped) => {
                stopped.defer(event);
                None
            }
            None => Some(event),
        }
    }

    /// Handles a process that has been stopped for the idle timeout: its peers close their links,
    /// and so will it.
    pub(super) fn handle_long_stop(&mut self, index: NodeIndex, since: u64, calls: &mut Vec<Call>) {
        let stopped = self.nodes[index].stopped.as_ref();
        if stopped.is_none_or(|stopped| stopped.since != since) {
            return;
        }
        self.oddities.long_stops += 1;
        let up = self.nodes[index].ends.iter().filter(|(_, end)| end.state == LinkState::Up);
        let links: Vec<(NodeIndex, u64)> = up.map(|(peer, end)| (*peer, end.link)).collect();
        for (peer, link) in links {
            if self.nodes[peer].ends.get(&index).is_some_and(|end| end.link == link) {
                self.down(peer, index, "no message within the idle timeout", calls);
            }
            if let Some(stopped) = &mut self.nodes[index].stopped {
                stopped.defer(NetworkEvent::Silent { node: index, peer, link });
            }
        }
    }

    // --- repeated messages ---

    pub(super) fn repeat(&mut self, from: &ClusterId, to: &ClusterId, repeat: Option<RepeatRule>) {
        let clusters = (from.clone(), to.clone());
        match repeat {
            Some(repeat) => self.repeats.insert(clusters, repeat),
            None => self.repeats.remove(&clusters),
        };
    }

    /// Decides whether the sender of a delivered frame will repeat it.
    pub(super) fn maybe_repeat(
        &mut self,
        from: NodeIndex,
        to: NodeIndex,
        class: Class,
        frame: &Frame,
        now: Duration,
    ) {
        if self.repeats.is_empty() {
            return;
        }
        let (sender, receiver) = (&self.nodes[from].peer, &self.nodes[to].peer);
        let clusters = (sender.cluster.clone(), receiver.cluster.clone());
        let Some(repeat) = self.repeats.get(&clusters) else { return };
        if !repeat.kinds.contains(&frame.kind) || self.repeat_rng.unit() >= repeat.fraction {
            return;
        }
        let repeated = RepeatedMessage {
            from: (from, sender.incarnation),
            to: (to, receiver.incarnation),
            class,
            frame: frame.clone(),
            tries: 0,
        };
        let at = now + repeat.max_delay.mul_f64(self.repeat_rng.unit());
        self.schedule(at, NetworkEvent::RepeatedMessage(Box::new(repeated)));
    }

    pub(super) fn send_repeated(
        &mut self,
        mut again: RepeatedMessage,
        now: Duration,
        calls: &mut Vec<Call>,
    ) {
        let is_running = |state: &Self, (index, incarnation): (NodeIndex, Incarnation)| {
            let node = &state.nodes[index];
            node.peer.incarnation == incarnation && node.phase == NodePhase::Running
        };
        if !is_running(self, again.from) || !is_running(self, again.to) {
            return;
        }
        let ((from, incarnation), (to, _)) = (again.from, again.to);
        let is_up = |end: &super::end::LinkEnd| {
            let peer = end.peer.as_ref();
            end.state == LinkState::Up && peer.is_some_and(|peer| peer.incarnation == incarnation)
        };
        let end = self.nodes[to].ends.get(&from).filter(|end| is_up(end));
        let peer = end.and_then(|end| end.peer.clone());
        let Some(peer) = peer else {
            again.tries += 1;
            if again.tries <= TRIES_MAX {
                self.schedule(now + RETRY_DELAY, NetworkEvent::RepeatedMessage(Box::new(again)));
            }
            return;
        };
        self.oddities.repeated += 1;
        let payload = Payload::Frame(again.frame.clone());
        self.digest_arrival(now, from, to, again.class, &payload);
        self.notify(to, Notification::Frame(peer, again.class, again.frame), calls);
    }

    // --- messages of closed links ---

    pub(super) fn count_stale_frame(&mut self, from: NodeIndex, link: u64) {
        self.oddities.stale += 1;
        self.oddities.stale_incarnations += u64::from(link < self.nodes[from].first_link);
    }
}
