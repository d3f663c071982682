//! One node's side of a link to another: its state, its queues by class, and its counters.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::MemoryConfig;
use crate::id::{Incarnation, Peer};
use crate::net::{Class, ClassStats, LinkState, LinkStats, Violations};
use crate::wire::Frame;

const CLASSES: usize = Class::Bulk as usize + 1;

/// One node's side of a link.
///
/// A large grid has several hundred thousand, so it is small, and what few links need is boxed.
#[derive(Default)]
pub(super) struct LinkEnd {
    pub(super) state: LinkState,
    /// Number of the attempt that this end belongs to.
    pub(super) link: u64,
    /// The peer as of its last hello.
    pub(super) peer: Option<Arc<Peer>>,
    strikes: Option<Box<Violations>>,
    /// Frames in transit, by class.
    send_queues: [SendQueue; CLASSES],
    /// Numbers of received frames and bytes, by class.
    received: [(u64, u64); CLASSES],
    /// Frames that wait for the link to come up.
    pub(super) pending: Vec<(Class, Frame)>,
    /// The peer's attempt, deferred in favour of this end's earlier one.
    pub(super) deferred: Option<Box<(u64, Arc<Peer>)>>,
    /// The latest arrival time by class, to keep the order; zero before the first.
    arrivals: [Duration; CLASSES],
    /// The latest incarnation of the peer among received frames.
    latest_incarnation: Incarnation,
    dialled_at: Option<Duration>,
    rtt: Option<Duration>,
    ups: u32,
}

/// The frames of one class in transit, with counters.
#[derive(Default, PartialEq)]
pub(super) struct SendQueue {
    bytes: usize,
    frames_out: u64,
    bytes_out: u64,
    frames: u32,
    full: u32,
    pub(super) dropped: u32,
    refused: bool,
}

impl SendQueue {
    /// Reserves space for a frame, unless a bound would be exceeded. An empty queue accepts any
    /// frame.
    pub(super) fn reserve(&mut self, len: usize, config: &MemoryConfig) -> bool {
        let full =
            self.bytes + len > config.queue_bytes || self.frames as usize >= config.queue_frames;
        if self.frames > 0 && full {
            self.refused = true;
            self.full += 1;
            return false;
        }
        self.frames += 1;
        self.bytes += len;
        true
    }

    /// Releases the space of a frame that arrived. Returns whether a queue that had refused frames
    /// is at most half full.
    pub(super) fn release(&mut self, len: usize, config: &MemoryConfig) -> bool {
        self.frames = self.frames.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(len);
        let drained = self.refused
            && self.bytes < config.queue_bytes / 2
            && (self.frames as usize) < config.queue_frames / 2;
        if drained {
            self.refused = false;
        }
        drained
    }

    pub(super) fn count_sent(&mut self, len: usize) {
        self.frames_out += 1;
        self.bytes_out += len as u64;
    }
}

impl LinkEnd {
    pub(super) fn out(&mut self, class: Class) -> &mut SendQueue {
        &mut self.send_queues[class as usize]
    }

    pub(super) fn is_banned(&self, now: Duration) -> bool {
        self.strikes.as_ref().is_some_and(|strikes| strikes.is_banned(now))
    }

    /// Records a violation of the peer. Returns whether it causes a ban.
    pub(super) fn strike(&mut self, now: Duration) -> bool {
        self.strikes.get_or_insert_default().strike(now)
    }

    /// Bytes in transit in a class, with headers.
    pub(super) fn queued_bytes(&self, class: Class) -> usize {
        self.send_queues[class as usize].bytes
    }

    pub(super) fn dial(&mut self, link: u64, now: Duration) {
        self.link = link;
        self.state = LinkState::Connecting;
        self.dialled_at = Some(now);
        self.arrivals = Default::default();
    }

    /// Joins the other side's attempt.
    pub(super) fn join_attempt(&mut self, link: u64) {
        self.link = link;
        self.state = LinkState::Connecting;
        self.dialled_at = None;
        self.arrivals = Default::default();
    }

    /// Sets the link up and returns the pending frames.
    pub(super) fn set_up(&mut self, peer: Arc<Peer>, now: Duration) -> Vec<(Class, Frame)> {
        self.state = LinkState::Up;
        self.deferred = None;
        self.peer = Some(peer);
        self.ups += 1;
        self.rtt = self.dialled_at.map(|at| now.saturating_sub(at));
        std::mem::take(&mut self.pending)
    }

    /// Sets the link down and returns the pending frames. Frames in transit are lost.
    pub(super) fn reset(&mut self) -> Vec<(Class, Frame)> {
        self.state = LinkState::Idle;
        self.link = 0;
        self.deferred = None;
        self.rtt = None;
        for out in &mut self.send_queues {
            (out.frames, out.bytes, out.refused) = (0, 0, false);
        }
        std::mem::take(&mut self.pending)
    }

    /// The time at which a message arrives whose path gives `arrival`: behind earlier ones of its
    /// class, or of all classes.
    pub(super) fn in_order(&mut self, class: Class, arrival: Duration, all: bool) -> Duration {
        let last = self.arrivals.iter().max().filter(|_| all);
        let before = *last.unwrap_or(&self.arrivals[class as usize]);
        let arrival = arrival.max(before);
        self.arrivals[class as usize] = arrival;
        arrival
    }

    /// Whether a message of this class overtakes another stream of the link.
    pub(super) fn overtakes(&self, class: Class, arrival: Duration) -> bool {
        let mut others =
            self.arrivals.iter().enumerate().filter(|(other, _)| *other != class as usize);
        others.any(|(_, at)| *at > arrival)
    }

    /// Whether a frame is of an earlier incarnation of the peer than one received before.
    pub(super) fn is_stale(&mut self, incarnation: Incarnation) -> bool {
        let is_stale = incarnation < self.latest_incarnation;
        self.latest_incarnation = self.latest_incarnation.max(incarnation);
        is_stale
    }

    pub(super) fn count_received(&mut self, class: Class, len: usize) {
        let (frames, bytes) = &mut self.received[class as usize];
        *frames += 1;
        *bytes += len as u64;
    }

    pub(super) fn rtt(&self) -> Option<Duration> {
        self.rtt
    }

    /// Payload bytes that have been sent.
    pub(super) fn bytes_out(&self) -> u64 {
        self.send_queues.iter().map(|out| out.bytes_out).sum()
    }

    pub(super) fn stats(&self, other: &Peer) -> LinkStats {
        let mut classes: BTreeMap<Class, ClassStats> = BTreeMap::new();
        for class in [Class::Control, Class::Steal, Class::Bulk] {
            let (out, (frames_in, bytes_in)) =
                (&self.send_queues[class as usize], self.received[class as usize]);
            if *out == SendQueue::default() && frames_in == 0 {
                continue;
            }
            let stats = ClassStats {
                frames_out: out.frames_out,
                bytes_out: out.bytes_out,
                queued_frames: out.frames.into(),
                queued_bytes: out.bytes as u64,
                full: out.full.into(),
                dropped: out.dropped.into(),
                frames_in,
                bytes_in,
            };
            classes.insert(class, stats);
        }
        let unknown = || Peer { incarnation: Incarnation(0), ..other.clone() };
        LinkStats {
            peer: self.peer.as_deref().cloned().unwrap_or_else(unknown),
            state: self.state,
            rtt: self.rtt,
            mtu: None,
            relayed: false,
            protocol: None,
            classes,
            reconnects: self.ups.saturating_sub(1).into(),
            unknown_kinds: 0,
            strikes: self.strikes.as_ref().map_or(0, |strikes| strikes.count()),
        }
    }
}
