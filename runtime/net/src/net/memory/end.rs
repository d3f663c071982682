//! One node's side of a link to another: its state, its queues by class, its counters.

use std::collections::BTreeMap;
use std::time::Duration;

use super::MemoryConfig;
use crate::id::{Incarnation, Peer};
use crate::net::{Class, ClassStats, LinkState, LinkStats, Strikes};
use crate::wire::Frame;

const CLASSES: usize = Class::Bulk as usize + 1;

#[derive(Default)]
pub(super) struct End {
    pub(super) state: LinkState,
    /// The attempt that this end belongs to.
    pub(super) link: u64,
    /// The peer as it last said hello.
    pub(super) peer: Option<Peer>,
    pub(super) strikes: Strikes,
    /// This and the next two by class.
    pub(super) outs: [Half; CLASSES],
    /// Frames that came, and their bytes.
    ins: [(u64, u64); CLASSES],
    /// Frames that wait for the link to be up.
    pub(super) held: Vec<(Class, Frame)>,
    /// The peer's attempt that was passed over, for this end's is the earlier one.
    pub(super) passed_over: Option<(u64, Peer)>,
    /// The latest arrival, to keep the order.
    arrivals: [Option<Duration>; CLASSES],
    /// The latest life that a frame came from.
    heard: Incarnation,
    dialled_at: Option<Duration>,
    rtt: Option<Duration>,
    ups: u64,
}

/// What goes out in one class: what is taken and has not arrived, and counters.
#[derive(Default, PartialEq)]
pub(super) struct Half {
    pub(super) frames: usize,
    pub(super) bytes: usize,
    refused: bool,
    full: u64,
    pub(super) dropped: u64,
    frames_out: u64,
    bytes_out: u64,
}

impl Half {
    /// Takes a frame in, unless that is over a bound. An empty queue takes any frame.
    pub(super) fn take(&mut self, len: usize, config: &MemoryConfig) -> bool {
        let over = self.bytes + len > config.queue_bytes || self.frames >= config.queue_frames;
        if self.frames > 0 && over {
            self.refused = true;
            self.full += 1;
            return false;
        }
        self.frames += 1;
        self.bytes += len;
        true
    }

    /// A frame arrived. Returns whether a queue that had refused is under half again.
    pub(super) fn give(&mut self, len: usize, config: &MemoryConfig) -> bool {
        self.frames = self.frames.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(len);
        let drained = self.refused
            && self.bytes < config.queue_bytes / 2
            && self.frames < config.queue_frames / 2;
        if drained {
            self.refused = false;
        }
        drained
    }

    pub(super) fn left(&mut self, len: usize) {
        self.frames_out += 1;
        self.bytes_out += len as u64;
    }
}

impl End {
    pub(super) fn out(&mut self, class: Class) -> &mut Half {
        &mut self.outs[class as usize]
    }

    pub(super) fn dial(&mut self, link: u64, now: Duration) {
        self.link = link;
        self.state = LinkState::Connecting;
        self.dialled_at = Some(now);
        self.arrivals = Default::default();
    }

    /// Takes part in the other side's attempt.
    pub(super) fn adopt(&mut self, link: u64) {
        self.link = link;
        self.state = LinkState::Connecting;
        self.dialled_at = None;
        self.arrivals = Default::default();
    }

    /// The link is up: returns what was held.
    pub(super) fn linked(&mut self, peer: Peer, now: Duration) -> Vec<(Class, Frame)> {
        self.state = LinkState::Up;
        self.passed_over = None;
        self.peer = Some(peer);
        self.ups += 1;
        self.rtt = self.dialled_at.map(|at| now.saturating_sub(at));
        std::mem::take(&mut self.held)
    }

    /// The link is down: returns what was held. What is on its way is lost.
    pub(super) fn reset(&mut self) -> Vec<(Class, Frame)> {
        self.state = LinkState::Idle;
        self.link = 0;
        self.passed_over = None;
        self.rtt = None;
        for out in &mut self.outs {
            (out.frames, out.bytes, out.refused) = (0, 0, false);
        }
        std::mem::take(&mut self.held)
    }

    /// The time at which something that would arrive at `arrival` does, behind what went before it in its class (or in
    /// every class).
    pub(super) fn in_order(&mut self, class: Class, arrival: Duration, all: bool) -> Duration {
        let last = self.arrivals.iter().max().filter(|_| all);
        // None is before all times.
        let before = *last.unwrap_or(&self.arrivals[class as usize]);
        let arrival = before.map_or(arrival, |before| arrival.max(before));
        self.arrivals[class as usize] = Some(arrival);
        arrival
    }

    /// Whether something of this class overtakes what another stream of the link carries.
    pub(super) fn overtakes(&self, class: Class, arrival: Duration) -> bool {
        let mut others =
            self.arrivals.iter().enumerate().filter(|(other, _)| *other != class as usize);
        others.any(|(_, at)| *at > Some(arrival))
    }

    /// Whether a frame is of an earlier life of the peer than one that came before it.
    pub(super) fn is_behind(&mut self, life: Incarnation) -> bool {
        let behind = life < self.heard;
        self.heard = self.heard.max(life);
        behind
    }

    pub(super) fn came(&mut self, class: Class, len: usize) {
        let (frames, bytes) = &mut self.ins[class as usize];
        *frames += 1;
        *bytes += len as u64;
    }

    pub(super) fn rtt(&self) -> Option<Duration> {
        self.rtt
    }

    /// Payload bytes that have left.
    pub(super) fn bytes_out(&self) -> u64 {
        self.outs.iter().map(|out| out.bytes_out).sum()
    }

    pub(super) fn stats(&self, other: &Peer) -> LinkStats {
        let mut classes: BTreeMap<Class, ClassStats> = BTreeMap::new();
        for class in [Class::Control, Class::Steal, Class::Bulk] {
            let (out, (frames_in, bytes_in)) =
                (&self.outs[class as usize], self.ins[class as usize]);
            if *out == Half::default() && frames_in == 0 {
                continue;
            }
            let stats = ClassStats {
                frames_out: out.frames_out,
                bytes_out: out.bytes_out,
                queued_frames: out.frames as u64,
                queued_bytes: out.bytes as u64,
                full: out.full,
                dropped: out.dropped,
                frames_in,
                bytes_in,
            };
            classes.insert(class, stats);
        }
        let unknown = || Peer { incarnation: Incarnation(0), ..other.clone() };
        LinkStats {
            peer: self.peer.clone().unwrap_or_else(unknown),
            state: self.state,
            rtt: self.rtt,
            mtu: None,
            relayed: false,
            protocol: None,
            classes,
            reconnects: self.ups.saturating_sub(1),
            unknown_kinds: 0,
            strikes: self.strikes.count(),
        }
    }
}
