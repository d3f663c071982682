//! The in-memory network as a state machine: nodes, their links, and messages in transit. No I/O,
//! no clock.
//!
//! A caller passes the time and executes the returned [`Call`]s in order.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;
use std::time::Duration;

use super::MemoryConfig;
use super::dispatcher::Simulation;
use super::end::LinkEnd;
use super::faults::{FaultCounts, RepeatRule, StoppedProcess};
use super::lines::DIGEST;
use super::pipe::{Pipe, TransitMessage};
use crate::id::{ClusterId, Incarnation, NodeId, Peer};
use crate::net::paths::Paths;
use crate::net::{
    Class, Contact, Events, LinkError, LinkState, RefuseReason, RefusedCounts, SegmentPool,
    SendError,
};
use crate::random::SplitMix;
use crate::wire::{Frame, HEADER_LEN, Kind};

/// Index of a node in [`NetworkState::nodes`]: one per name, for all incarnations.
pub(super) type NodeIndex = usize;

/// Index of a cluster: one per name.
pub(super) type ClusterIndex = usize;

/// Length in bytes of a hello, a welcome or a goodbye.
const HANDSHAKE_LEN: usize = 100;

/// A notification of a node's user.
pub(super) struct Call {
    pub(super) events: Arc<dyn Events>,
    pub(super) notification: Notification,
}

pub(super) enum Notification {
    Frame(Arc<Peer>, Class, Frame),
    Up(Arc<Peer>),
    Down(Arc<Peer>, LinkError),
    Drained(NodeId, Class),
    Undelivered(NodeId, Class, Frame),
}

/// A message in transit. `link` is the number of the attempt to link two nodes; messages of other
/// attempts are dropped.
pub(super) struct Packet {
    pub(super) from: NodeIndex,
    pub(super) to: NodeIndex,
    pub(super) link: u64,
    pub(super) payload: Payload,
}

pub(super) enum Payload {
    Hello(Arc<Peer>),
    Welcome(Arc<Peer>),
    Refuse(RefuseReason),
    Goodbye(String),
    Frame(Frame),
}

pub(super) enum NetworkEvent {
    Arrive(Class, Packet),
    /// A pipe has room again.
    Pump(usize),
    /// A node did not reply to a hello in time.
    ConnectTimeout {
        node: NodeIndex,
        peer: NodeIndex,
        link: u64,
    },
    /// No message of a peer arrived within the idle timeout.
    Silent {
        node: NodeIndex,
        peer: NodeIndex,
        link: u64,
    },
    /// Two clusters have been disconnected for the idle timeout.
    Outage {
        pipe: usize,
        since: u64,
    },
    /// A notification from outside the dispatcher.
    Notify(Box<Call>),
    /// The linger time of a closing node is over.
    Linger(NodeIndex, Incarnation),
    /// A process has been stopped for the idle timeout.
    LongStop {
        node: NodeIndex,
        since: u64,
    },
    /// A sender repeats a message.
    RepeatedMessage(Box<super::faults::RepeatedMessage>),
}

struct ScheduledEvent {
    at: Duration,
    seq: u64,
    event: NetworkEvent,
}

impl PartialEq for ScheduledEvent {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.seq) == (other.at, other.seq)
    }
}
impl Eq for ScheduledEvent {}
impl PartialOrd for ScheduledEvent {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for ScheduledEvent {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.seq).cmp(&(other.at, other.seq))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum NodePhase {
    Running,
    Closing,
    Over,
}

/// An incarnation of a node, with its index.
#[derive(Clone)]
pub(super) struct NodeRef {
    pub(super) peer: Peer,
    pub(super) index: NodeIndex,
}

pub(super) struct NodeEntry {
    /// Shared with the links and messages of the node.
    pub(super) peer: Arc<Peer>,
    pub(super) cluster: ClusterIndex,
    pub(super) events: Option<Arc<dyn Events>>,
    pub(super) phase: NodePhase,
    pub(super) contacts: BTreeSet<NodeIndex>,
    /// Boxed, since a map has room for more entries than it contains.
    pub(super) ends: BTreeMap<NodeIndex, Box<LinkEnd>>,
    pub(super) refused: RefusedCounts,
    /// The deferred events, if the process is stopped.
    pub(super) stopped: Option<StoppedProcess>,
    /// Links with lower numbers belong to an earlier incarnation.
    pub(super) first_link: u64,
}

impl NodeEntry {
    /// The entry of a node that has not joined.
    fn absent(peer: Arc<Peer>, cluster: ClusterIndex) -> Self {
        Self {
            peer,
            cluster,
            events: None,
            phase: NodePhase::Over,
            contacts: BTreeSet::new(),
            ends: BTreeMap::new(),
            refused: RefusedCounts::new(),
            stopped: None,
            first_link: 0,
        }
    }
}

/// Traffic between two clusters in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Number of frames that left their sender.
    pub frames: u64,
    /// Payload bytes of these frames; each has a header of 8 bytes on top.
    pub bytes: u64,
    /// Number of datagrams that were lost and repaired.
    pub lost: u64,
}

/// Counts of what a simulated network has done so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventCounts {
    /// Number of events: arrivals and timers of links.
    pub events: u64,
    /// Number of delivered frames by kind; empty for datagrams.
    pub frames: BTreeMap<Kind, u64>,
}

pub(super) struct NetworkState {
    pub(super) config: MemoryConfig,
    pub(super) names: BTreeMap<NodeId, NodeIndex>,
    pub(super) nodes: Vec<NodeEntry>,
    clusters: BTreeMap<ClusterId, ClusterIndex>,
    pub(super) pipes: Vec<Pipe<Packet>>,
    pub(super) pipe_by_clusters: BTreeMap<(ClusterId, ClusterId), usize>,
    /// The same pipes by the indices of their clusters, for each message.
    pub(super) pipe_by_indices: Vec<Vec<Option<u32>>>,
    pub(super) paths: Paths,
    pub(super) traffic: BTreeMap<usize, Traffic>,
    pub(super) outages: BTreeMap<usize, u64>,
    /// Pairs of clusters between which messages are repeated.
    pub(super) repeats: BTreeMap<(ClusterId, ClusterId), RepeatRule>,
    /// Random numbers that select repeated messages and their delays.
    pub(super) repeat_rng: SplitMix,
    pub(super) oddities: FaultCounts,
    heap: BinaryHeap<Reverse<ScheduledEvent>>,
    pub(super) seq: u64,
    pub(super) counts: EventCounts,
    /// The segments of shared objects that the nodes have.
    pub(super) segments: Arc<SegmentPool>,
    pub(super) next_link: u64,
    /// Time of the last event, which is finer than tokio's milliseconds.
    pub(super) event_time: Duration,
    pub(super) digest: u64,
}

impl Simulation for NetworkState {
    type Call = Call;

    fn next_at(&self) -> Option<Duration> {
        self.heap.peek().map(|Reverse(scheduled)| scheduled.at)
    }

    fn step(&mut self, limit: Duration) -> Vec<Call> {
        let mut calls = Vec::new();
        let Some(at) = self.next_at().filter(|at| *at <= limit) else { return calls };
        self.event_time = self.event_time.max(at);
        while self.next_at() == Some(at)
            && let Some(Reverse(scheduled)) = self.heap.pop()
        {
            self.counts.events += 1;
            self.handle(scheduled.event, self.event_time, &mut calls);
        }
        calls
    }

    fn execute(call: Call) {
        match call.notification {
            Notification::Frame(from, class, frame) => call.events.frame(&from, class, frame),
            Notification::Up(peer) => call.events.up(&peer),
            Notification::Down(peer, why) => call.events.down(&peer, &why),
            Notification::Drained(to, class) => call.events.drained(&to, class),
            Notification::Undelivered(to, class, frame) => {
                call.events.undelivered(&to, class, frame)
            }
        }
    }
}

impl NetworkState {
    pub(super) fn new(seed: u64, config: MemoryConfig) -> Self {
        Self {
            paths: Paths::new(seed, config.inside.clone(), config.between.clone()),
            config,
            names: BTreeMap::new(),
            nodes: Vec::new(),
            pipes: Vec::new(),
            clusters: BTreeMap::new(),
            pipe_by_clusters: BTreeMap::new(),
            pipe_by_indices: Vec::new(),
            traffic: BTreeMap::new(),
            outages: BTreeMap::new(),
            repeats: BTreeMap::new(),
            repeat_rng: SplitMix(seed ^ 0x646f_7562_7473),
            oddities: FaultCounts::default(),
            heap: BinaryHeap::new(),
            seq: 0,
            counts: EventCounts::default(),
            segments: Arc::default(),
            next_link: 1,
            event_time: Duration::ZERO,
            digest: DIGEST,
        }
    }

    // --- nodes

    /// Adds a node. A known name needs a later incarnation; the former one is killed.
    pub(super) fn join(&mut self, peer: Peer, now: Duration) -> Option<NodeIndex> {
        let first_link = self.next_link;
        let cluster = self.cluster_index(&peer.cluster);
        let peer = Arc::new(peer);
        let node = NodeEntry {
            phase: NodePhase::Running,
            first_link,
            ..NodeEntry::absent(Arc::clone(&peer), cluster)
        };
        match self.names.get(&peer.node) {
            Some(&index) if self.nodes[index].peer.incarnation >= peer.incarnation => None,
            Some(&index) => {
                self.kill(index, now);
                self.nodes[index] = node;
                Some(index)
            }
            None => {
                let index = self.nodes.len();
                self.names.insert(peer.node.clone(), index);
                self.nodes.push(node);
                Some(index)
            }
        }
    }

    /// The index of a cluster, which is new at its first use.
    fn cluster_index(&mut self, cluster: &ClusterId) -> ClusterIndex {
        if let Some(index) = self.clusters.get(cluster) {
            return *index;
        }
        let index = self.clusters.len();
        self.clusters.insert(cluster.clone(), index);
        self.pipe_by_indices.push(Vec::new());
        index
    }

    pub(super) fn start(&mut self, me: &NodeRef, events: Arc<dyn Events>) {
        if let Some(index) = self.running(me) {
            self.nodes[index].events = Some(events);
        }
    }

    pub(super) fn by_name(&self, node: &NodeId) -> Option<NodeIndex> {
        self.names.get(node).copied()
    }

    /// Index of a node, if this incarnation is still running.
    pub(super) fn running(&self, me: &NodeRef) -> Option<NodeIndex> {
        let node = &self.nodes[me.index];
        let same = node.peer.incarnation == me.peer.incarnation;
        (same && node.phase != NodePhase::Over).then_some(me.index)
    }

    pub(super) fn learn(
        &mut self,
        me: &NodeRef,
        contact: &Contact,
        incarnation: Option<Incarnation>,
        now: Duration,
    ) {
        let Some(index) = self.running(me) else { return };
        // The name suffices to reach a node that may not have joined yet, so an index is reserved
        // for it.
        let peer = match self.by_name(&contact.node) {
            Some(peer) => peer,
            None => {
                let node = contact.node.clone();
                let peer =
                    Peer { node, incarnation: Incarnation(0), cluster: contact.cluster.clone() };
                let cluster = self.cluster_index(&peer.cluster);
                self.names.insert(contact.node.clone(), self.nodes.len());
                self.nodes.push(NodeEntry::absent(Arc::new(peer), cluster));
                self.nodes.len() - 1
            }
        };
        self.nodes[index].contacts.insert(peer);
        let end = self.nodes[index].ends.get(&peer);
        let known = end.and_then(|end| end.peer.as_ref()).map(|peer| peer.incarnation);
        let up = end.is_some_and(|end| end.state == LinkState::Up);
        if up && incarnation.zip(known).is_some_and(|(incarnation, known)| known < incarnation) {
            self.replace_incarnation(index, peer, now);
        }
    }

    /// The nodes that a node knows by contact or by a link.
    pub(super) fn known(&self, me: &NodeRef) -> Vec<NodeId> {
        let Some(index) = self.running(me) else { return Vec::new() };
        let node = &self.nodes[index];
        let known = node.contacts.iter().chain(node.ends.keys());
        let known: BTreeSet<&NodeId> = known.map(|peer| &self.nodes[*peer].peer.node).collect();
        known.into_iter().cloned().collect()
    }

    /// Closes a link to an earlier incarnation of a peer. Unsent frames go to the later one, except
    /// bulk transfers, which return because partial ones are useless.
    fn replace_incarnation(&mut self, node: NodeIndex, peer: NodeIndex, now: Duration) {
        let unsent = self.remove_unsent(node, |packet| {
            packet.to == peer && matches!(packet.payload, Payload::Frame(_))
        });
        let mut calls = Vec::new();
        self.down(node, peer, "the node is now elsewhere", &mut calls);
        let name = self.nodes[peer].peer.node.clone();
        let Some(end) = self.nodes[node].ends.get_mut(&peer) else { return };
        let mut back = Vec::new();
        for (class, packet) in unsent {
            let Payload::Frame(frame) = packet.payload else { continue };
            if class == Class::Bulk {
                end.out(class).dropped += 1;
                back.push(Notification::Undelivered(name.clone(), class, frame));
            } else {
                end.out(class).reserve(frame.body.len() + HEADER_LEN, &self.config);
                end.pending.push((class, frame));
            }
        }
        let has_pending = !end.pending.is_empty();
        back.into_iter().for_each(|notification| self.notify(node, notification, &mut calls));
        if has_pending {
            self.dial(node, peer, now);
        }
        for call in calls {
            self.schedule(now.max(self.event_time), NetworkEvent::Notify(Box::new(call)));
        }
    }

    /// Kills a node without a goodbye.
    pub(super) fn kill(&mut self, index: NodeIndex, now: Duration) {
        let node = &mut self.nodes[index];
        node.phase = NodePhase::Over;
        node.events = None;
        node.stopped = None;
        let ends = std::mem::take(&mut node.ends);
        self.remove_unsent(index, |_| true);
        for (peer, end) in ends {
            let event = NetworkEvent::Silent { node: peer, peer: index, link: end.link };
            self.schedule(now + self.config.idle_timeout, event);
        }
    }

    // --- sending

    pub(super) fn send(
        &mut self,
        me: &NodeRef,
        to: &NodeId,
        class: Class,
        frame: Frame,
        now: Duration,
    ) -> Result<(), SendError> {
        let index = self.running(me).ok_or(SendError::Closed)?;
        let node = &mut self.nodes[index];
        if node.phase != NodePhase::Running || node.events.is_none() {
            return Err(SendError::Closed);
        }
        let peer = match self.names.get(to) {
            Some(peer) if node.contacts.contains(peer) || node.ends.contains_key(peer) => *peer,
            _ => return Err(SendError::Unknown(to.clone())),
        };
        let len = frame.body.len() + HEADER_LEN;
        let end = node.ends.entry(peer).or_default();
        if !end.out(class).reserve(len, &self.config) {
            return Err(SendError::Full(to.clone()));
        }
        match end.state {
            LinkState::Up => {
                let payload = Payload::Frame(frame);
                let packet = Packet { from: index, to: peer, link: end.link, payload };
                self.enqueue(packet, class, len, now);
            }
            LinkState::Connecting => end.pending.push((class, frame)),
            LinkState::Idle | LinkState::Backoff => {
                end.pending.push((class, frame));
                self.dial(index, peer, now);
            }
        }
        Ok(())
    }

    fn dial(&mut self, index: NodeIndex, peer: NodeIndex, now: Duration) {
        let link = self.next_link;
        self.next_link += 1;
        let me = Arc::clone(&self.nodes[index].peer);
        let end = self.nodes[index].ends.entry(peer).or_default();
        end.dial(link, now);
        self.enqueue(
            Packet { from: index, to: peer, link, payload: Payload::Hello(me) },
            Class::Control,
            HANDSHAKE_LEN,
            now,
        );
        let event = NetworkEvent::ConnectTimeout { node: index, peer, link };
        self.schedule(now + self.config.connect_timeout, event);
    }

    fn enqueue(&mut self, packet: Packet, class: Class, len: usize, now: Duration) {
        let pipe = self.pipe(packet.from, packet.to);
        self.pipes[pipe].push(TransitMessage::new(packet, class, len));
        self.pump(pipe, now);
    }

    pub(super) fn pump(&mut self, pipe: usize, now: Duration) {
        let now = now.max(self.event_time);
        let pumped = self.pipes[pipe].pump(&mut self.paths.links, now);
        for (item, arrival) in pumped.sent {
            let (packet, class) = (item.content, item.class);
            let mut arrival = arrival;
            if let Some(end) = self.nodes[packet.from].ends.get_mut(&packet.to)
                && end.link == packet.link
            {
                let last = matches!(packet.payload, Payload::Goodbye(_));
                arrival = end.in_order(class, arrival, last);
                if let Payload::Frame(frame) = &packet.payload {
                    self.oddities.overtaking += u64::from(end.overtakes(class, arrival));
                    let traffic = self.traffic.entry(pipe).or_default();
                    traffic.frames += 1;
                    traffic.bytes += frame.body.len() as u64;
                    end.out(class).count_sent(frame.body.len());
                }
            }
            self.schedule(arrival, NetworkEvent::Arrive(class, packet));
        }
        let pipe_state = &mut self.pipes[pipe];
        if let Some(at) = pumped.retry_at
            && pipe_state.wakes_at.is_none_or(|wakes_at| at < wakes_at)
        {
            pipe_state.wakes_at = Some(at);
            self.schedule(at, NetworkEvent::Pump(pipe));
        }
    }

    /// Removes unsent packets from all pipes of a node.
    fn remove_unsent(
        &mut self,
        from: NodeIndex,
        which: impl Fn(&Packet) -> bool,
    ) -> Vec<(Class, Packet)> {
        let mut taken = Vec::new();
        for pipe in self.pipes_out_of(from) {
            let items = self.pipes[pipe].take(|packet| packet.from == from && which(packet));
            taken.extend(items.into_iter().map(|item| (item.class, item.content)));
        }
        taken
    }

    /// The pipes that may contain packets of a node.
    fn pipes_out_of(&self, from: NodeIndex) -> Vec<usize> {
        let cluster = &self.nodes[from].peer.cluster;
        let pipes = self.pipe_by_clusters.range((cluster.clone(), ClusterId::from(""))..);
        pipes.take_while(|((of, _), _)| of == cluster).map(|(_, pipe)| *pipe).collect()
    }

    // --- time

    pub(super) fn schedule(&mut self, at: Duration, event: NetworkEvent) {
        self.seq += 1;
        self.heap.push(Reverse(ScheduledEvent { at, seq: self.seq, event }));
    }

    fn handle(&mut self, event: NetworkEvent, now: Duration, calls: &mut Vec<Call>) {
        let Some(event) = self.unless_stopped(event) else { return };
        match event {
            NetworkEvent::Arrive(class, packet) => self.arrive(class, packet, now, calls),
            NetworkEvent::Pump(pipe) => {
                self.pipes[pipe].wakes_at = None;
                self.pump(pipe, now);
            }
            NetworkEvent::ConnectTimeout { node, peer, link } => {
                let end = self.nodes[node].ends.get_mut(&peer);
                let tried = |end: &&mut Box<LinkEnd>| {
                    end.link == link && end.state == LinkState::Connecting
                };
                let Some(end) = end.filter(tried) else { return };
                let deferred = end.deferred.take();
                self.down(node, peer, "could not be reached", calls);
                if let Some((link, other)) = deferred.map(|deferred| *deferred) {
                    self.accept_deferred(peer, node, link, other, now, calls);
                }
            }
            NetworkEvent::Silent { node, peer, link } => {
                if self.nodes[node].ends.get(&peer).is_some_and(|end| end.link == link) {
                    self.down(node, peer, "no message within the idle timeout", calls);
                }
            }
            NetworkEvent::Outage { pipe, since } => {
                if self.outages.get(&pipe) == Some(&since) {
                    self.handle_outage(pipe, calls);
                }
            }
            NetworkEvent::Notify(call) => calls.push(*call),
            NetworkEvent::Linger(index, incarnation) => {
                let node = &self.nodes[index];
                if node.peer.incarnation == incarnation && node.phase == NodePhase::Closing {
                    self.kill(index, now);
                }
            }
            NetworkEvent::LongStop { node, since } => self.handle_long_stop(node, since, calls),
            NetworkEvent::RepeatedMessage(again) => self.send_repeated(*again, now, calls),
        }
    }

    // --- arrivals

    fn arrive(&mut self, class: Class, packet: Packet, now: Duration, calls: &mut Vec<Call>) {
        let Packet { from, to, link, payload } = packet;
        if let Payload::Frame(frame) = &payload {
            self.delivered(from, to, link, class, frame.body.len() + HEADER_LEN, calls);
        }
        if self.nodes[to].phase == NodePhase::Over || self.nodes[to].events.is_none() {
            return;
        }
        self.digest_arrival(now, from, to, class, &payload);
        match payload {
            Payload::Hello(peer) => self.hello(from, to, link, peer, now, calls),
            Payload::Welcome(peer) => self.linked(to, from, link, &peer, now, calls),
            Payload::Refuse(reason) => {
                let end = self.nodes[to].ends.get(&from);
                if end.is_some_and(|end| end.link == link && end.state == LinkState::Connecting) {
                    self.down_as(
                        to,
                        from,
                        LinkError::refused(reason, format!("refused: {reason:?}")),
                        calls,
                    );
                }
            }
            Payload::Goodbye(why) => {
                if self.nodes[to].ends.get(&from).is_some_and(|end| end.link == link) {
                    self.down(to, from, why, calls);
                }
            }
            Payload::Frame(frame) => {
                let end = self.nodes[to].ends.get_mut(&from);
                let known = |end: &&mut Box<LinkEnd>| {
                    end.link == link && matches!(end.state, LinkState::Up | LinkState::Connecting)
                };
                let Some(end) = end.filter(known) else {
                    self.count_stale_frame(from, link);
                    return self.reject_link(to, from, link, now);
                };
                if end.state == LinkState::Connecting {
                    // On a link that reorders, jitter may let a frame overtake the welcome, which
                    // it implies.
                    let peer = Arc::clone(&self.nodes[from].peer);
                    self.linked(to, from, link, &peer, now, calls);
                }
                let Some(end) = self.nodes[to].ends.get_mut(&from) else { return };
                end.count_received(class, frame.body.len());
                *self.counts.frames.entry(frame.kind).or_default() += 1;
                if let Some(peer) = end.peer.clone() {
                    self.oddities.stale_deliveries += u64::from(end.is_stale(peer.incarnation));
                    self.maybe_repeat(from, to, class, &frame, now);
                    self.notify(to, Notification::Frame(peer, class, frame), calls);
                }
            }
        }
    }

    /// Rejects a message over an unknown link, as QUIC does, so that the other side stops sending.
    /// Links of an earlier incarnation get no reply.
    fn reject_link(&mut self, me: NodeIndex, to: NodeIndex, link: u64, now: Duration) {
        if link < self.nodes[me].first_link {
            return;
        }
        let payload = Payload::Goodbye("the peer does not know this link".to_owned());
        self.enqueue(Packet { from: me, to, link, payload }, Class::Control, HANDSHAKE_LEN, now);
    }

    fn hello(
        &mut self,
        from: NodeIndex,
        to: NodeIndex,
        link: u64,
        peer: Arc<Peer>,
        now: Duration,
        calls: &mut Vec<Call>,
    ) {
        let node = &mut self.nodes[to];
        let known = node.ends.get(&from).and_then(|end| end.peer.clone());
        let banned = node.ends.get(&from).is_some_and(|end| end.is_banned(now));
        let refuse = match &known {
            _ if node.phase != NodePhase::Running => Some(RefuseReason::Closing),
            _ if banned => Some(RefuseReason::Banned),
            Some(known) if known.incarnation > peer.incarnation => {
                Some(RefuseReason::StaleIncarnation)
            }
            _ => None,
        };
        if let Some(reason) = refuse {
            *node.refused.entry(reason).or_default() += 1;
            let payload = Payload::Refuse(reason);
            self.enqueue(
                Packet { from: to, to: from, link, payload },
                Class::Control,
                HANDSHAKE_LEN,
                now,
            );
            return;
        }
        if let Some(end) = node.ends.get_mut(&from) {
            match end.state {
                // Both sides called: the earlier attempt stays, and its hello is in transit or has
                // arrived.
                LinkState::Connecting if end.link < link => {
                    end.deferred = Some(Box::new((link, peer)));
                    return;
                }
                LinkState::Up if end.link > link => return,
                LinkState::Up => self.down(to, from, "replaced by a new link", calls),
                _ => {}
            }
        }
        let me = Arc::clone(&self.nodes[to].peer);
        let end = self.nodes[to].ends.entry(from).or_default();
        end.join_attempt(link);
        // The welcome precedes the pending frames.
        let payload = Payload::Welcome(me);
        self.enqueue(
            Packet { from: to, to: from, link, payload },
            Class::Control,
            HANDSHAKE_LEN,
            now,
        );
        self.linked(to, from, link, &peer, now, calls);
    }

    /// Accepts the peer's deferred attempt after this end's own has failed, because the peer has
    /// forgotten it. Otherwise both ends would defer each other's attempts forever.
    fn accept_deferred(
        &mut self,
        from: NodeIndex,
        to: NodeIndex,
        link: u64,
        peer: Arc<Peer>,
        now: Duration,
        calls: &mut Vec<Call>,
    ) {
        let waits = |end: &LinkEnd| end.link == link && end.state == LinkState::Connecting;
        if self.nodes[from].peer == peer
            && self.nodes[from].ends.get(&to).is_some_and(|end| waits(end))
        {
            self.hello(from, to, link, peer, now, calls);
        }
    }

    /// Sets the link up at `node`'s side.
    fn linked(
        &mut self,
        node: NodeIndex,
        peer_ix: NodeIndex,
        link: u64,
        peer: &Arc<Peer>,
        now: Duration,
        calls: &mut Vec<Call>,
    ) {
        let Some(end) = self.nodes[node].ends.get_mut(&peer_ix) else { return };
        if end.link != link || end.state != LinkState::Connecting {
            return;
        }
        let pending = end.set_up(Arc::clone(peer), now);
        self.notify(node, Notification::Up(Arc::clone(peer)), calls);
        for (class, frame) in pending {
            let len = frame.body.len() + HEADER_LEN;
            let payload = Payload::Frame(frame);
            self.enqueue(Packet { from: node, to: peer_ix, link, payload }, class, len, now);
        }
        if self.nodes[node].phase == NodePhase::Closing {
            let payload = Payload::Goodbye("the peer has closed".into());
            self.enqueue(
                Packet { from: node, to: peer_ix, link, payload },
                Class::Bulk,
                HANDSHAKE_LEN,
                now,
            );
        }
    }

    /// Releases the space of a frame that arrived or was lost at its sender.
    fn delivered(
        &mut self,
        from: NodeIndex,
        to: NodeIndex,
        link: u64,
        class: Class,
        len: usize,
        calls: &mut Vec<Call>,
    ) {
        let Some(end) = self.nodes[from].ends.get_mut(&to) else { return };
        if end.link == link && end.out(class).release(len, &self.config) {
            let name = self.nodes[to].peer.node.clone();
            self.notify(from, Notification::Drained(name, class), calls);
        }
    }

    pub(super) fn notify(
        &mut self,
        node: NodeIndex,
        notification: Notification,
        calls: &mut Vec<Call>,
    ) {
        let node = &mut self.nodes[node];
        let Some(events) = &node.events else { return };
        let call = Call { events: Arc::clone(events), notification };
        match &mut node.stopped {
            Some(stopped) => stopped.defer(NetworkEvent::Notify(Box::new(call))),
            None => calls.push(call),
        }
    }

    // --- link ends

    /// Sets a node's side of a link down and returns its queue.
    pub(super) fn down(
        &mut self,
        node: NodeIndex,
        peer: NodeIndex,
        why: impl Into<String>,
        calls: &mut Vec<Call>,
    ) {
        self.down_as(node, peer, LinkError::from(why), calls);
    }

    fn down_as(&mut self, node: NodeIndex, peer: NodeIndex, why: LinkError, calls: &mut Vec<Call>) {
        let other = Arc::clone(&self.nodes[peer].peer);
        let Some(end) = self.nodes[node].ends.get_mut(&peer) else { return };
        let unknown = || Arc::new(Peer { incarnation: Incarnation(0), ..(*other).clone() });
        let reported = end.peer.clone().unwrap_or_else(unknown);
        let pending = end.reset();
        self.notify(node, Notification::Down(Arc::clone(&reported), why), calls);
        let unsent = self.remove_unsent(node, |packet| packet.to == peer);
        let unsent = unsent.into_iter().filter_map(|(class, packet)| match packet.payload {
            Payload::Frame(frame) => Some((class, frame)),
            _ => None,
        });
        for (class, frame) in unsent.chain(pending) {
            if let Some(end) = self.nodes[node].ends.get_mut(&peer) {
                end.out(class).dropped += 1;
            }
            self.notify(
                node,
                Notification::Undelivered(reported.node.clone(), class, frame),
                calls,
            );
        }
    }

    /// Handles a protocol violation of a peer: closes its link. Returns whether it is banned;
    /// `None` if there was no link.
    pub(super) fn breach(
        &mut self,
        me: &NodeRef,
        peer: &Peer,
        why: &str,
        now: Duration,
    ) -> Option<bool> {
        let (index, other) = (self.running(me)?, self.by_name(&peer.node)?);
        let end = self.nodes[index].ends.get_mut(&other)?;
        if end.state != LinkState::Up || end.peer.as_deref() != Some(peer) {
            return None;
        }
        let (link, banned) = (end.link, end.strike(now.max(self.event_time)));
        let mut calls = Vec::new();
        self.down(index, other, why, &mut calls);
        let payload = Payload::Goodbye(why.to_owned());
        self.enqueue(
            Packet { from: index, to: other, link, payload },
            Class::Bulk,
            HANDSHAKE_LEN,
            now,
        );
        for call in calls {
            self.schedule(now.max(self.event_time), NetworkEvent::Notify(Box::new(call)));
        }
        Some(banned)
    }

    pub(super) fn forget(&mut self, me: &NodeRef, node: &NodeId, now: Duration) {
        let (Some(index), Some(peer)) = (self.running(me), self.by_name(node)) else { return };
        self.nodes[index].contacts.remove(&peer);
        let Some(end) = self.nodes[index].ends.get(&peer) else { return };
        let (link, open) = (end.link, end.state != LinkState::Idle);
        if !open {
            return;
        }
        let mut calls = Vec::new();
        self.down(index, peer, "forgotten", &mut calls);
        let payload = Payload::Goodbye("the peer wants no link".into());
        self.enqueue(
            Packet { from: index, to: peer, link, payload },
            Class::Bulk,
            HANDSHAKE_LEN,
            now,
        );
        for call in calls {
            self.schedule(now.max(self.event_time), NetworkEvent::Notify(Box::new(call)));
        }
    }

    /// Sends a goodbye behind all queued frames.
    pub(super) fn close(&mut self, me: &NodeRef, reason: &str, now: Duration) {
        let Some(index) = self.running(me) else { return };
        if self.nodes[index].phase != NodePhase::Running {
            return;
        }
        self.nodes[index].phase = NodePhase::Closing;
        let up = self.nodes[index].ends.iter().filter(|(_, end)| end.state == LinkState::Up);
        let links: Vec<(NodeIndex, u64)> = up.map(|(peer, end)| (*peer, end.link)).collect();
        for (peer, link) in links {
            let payload = Payload::Goodbye(reason.to_owned());
            self.enqueue(
                Packet { from: index, to: peer, link, payload },
                Class::Bulk,
                HANDSHAKE_LEN,
                now,
            );
        }
        let event = NetworkEvent::Linger(index, me.peer.incarnation);
        self.schedule(now.max(self.event_time) + self.config.linger, event);
    }

    /// Whether a closing node has sent its queue.
    pub(super) fn is_closed(&self, me: &NodeRef) -> bool {
        let Some(index) = self.running(me) else { return true };
        let waits = |pipe: &usize| self.pipes[*pipe].any(|packet| packet.from == index);
        let pending = self.nodes[index].ends.values().any(|end| !end.pending.is_empty());
        self.nodes[index].phase == NodePhase::Closing
            && !pending
            && !self.pipes_out_of(index).iter().any(waits)
    }

    /// Ends a closed node, which receives no further events.
    pub(super) fn finish(&mut self, me: &NodeRef, now: Duration) {
        if let Some(index) = self.running(me) {
            self.kill(index, now);
        }
    }
}
