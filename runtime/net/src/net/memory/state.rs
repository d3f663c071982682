//! The in-memory network as a state machine: nodes, their links, what is on its way. No I/O, no clock.
//!
//! A caller says what time it is and carries out the [`Call`]s that come back, in order.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;
use std::time::Duration;

use super::MemoryConfig;
use super::clockwork::World;
use super::end::End;
use super::faults::{Oddities, Repeat, Stopped};
use super::lines::DIGEST;
use super::pipe::{Item, Pipe};
use crate::id::{ClusterId, Incarnation, NodeId, Peer};
use crate::net::paths::Paths;
use crate::net::{Class, Contact, Events, LinkState, RefuseReason, RefusedCounts, SendError, Why};
use crate::random::SplitMix;
use crate::wire::{Frame, HEADER_LEN};

/// A node's place in [`State::nodes`]: one a name, whatever its life.
pub(super) type Ix = usize;

/// Bytes of a hello, a welcome or a goodbye.
const GREETING: usize = 100;

/// Something to tell a node's user.
pub(super) struct Call {
    pub(super) events: Arc<dyn Events>,
    pub(super) news: News,
}

pub(super) enum News {
    Frame(Peer, Class, Frame),
    Up(Peer),
    Down(Peer, Why),
    Drained(NodeId, Class),
    Undelivered(NodeId, Class, Frame),
}

/// What travels. `link` numbers the attempt to link two nodes: what belongs to another is dropped.
pub(super) struct Parcel {
    pub(super) from: Ix,
    pub(super) to: Ix,
    pub(super) link: u64,
    pub(super) load: Load,
}

pub(super) enum Load {
    Hello(Peer),
    Welcome(Peer),
    Refuse(RefuseReason),
    Goodbye(String),
    Frame(Frame),
}

pub(super) enum Event {
    Arrive(Class, Parcel),
    /// A pipe has room again.
    Pump(usize),
    /// A node that was dialled has not answered.
    ConnectTimeout {
        node: Ix,
        peer: Ix,
        link: u64,
    },
    /// Nothing was heard from a peer for as long as a link may be silent.
    Silent {
        node: Ix,
        peer: Ix,
        link: u64,
    },
    /// Two clusters have been cut off from each other for that long.
    Blackout {
        pipe: usize,
        since: u64,
    },
    /// News that was made outside the dispatcher.
    Tell(Call),
    /// A closing node has had its time.
    Linger(Ix, Incarnation),
    /// A process has stood still for as long as a link may be silent.
    Stood {
        node: Ix,
        since: u64,
    },
    /// A sender that doubts says a message again.
    Again(super::faults::Again),
}

struct Timed {
    at: Duration,
    seq: u64,
    event: Event,
}

impl PartialEq for Timed {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.seq) == (other.at, other.seq)
    }
}
impl Eq for Timed {}
impl PartialOrd for Timed {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Timed {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.seq).cmp(&(other.at, other.seq))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Life {
    Running,
    Closing,
    Over,
}

/// A life of a node, and its place, which its name keeps.
#[derive(Clone)]
pub(super) struct Me {
    pub(super) peer: Peer,
    pub(super) ix: Ix,
}

pub(super) struct Node {
    pub(super) peer: Peer,
    pub(super) events: Option<Arc<dyn Events>>,
    pub(super) life: Life,
    pub(super) contacts: BTreeMap<NodeId, Ix>,
    pub(super) ends: BTreeMap<Ix, End>,
    pub(super) refused: RefusedCounts,
    /// Its process stands still.
    pub(super) stopped: Option<Stopped>,
    /// Links with lower numbers are of an earlier life.
    pub(super) first_link: u64,
}

/// Payload between two clusters, in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Frames that left their sender.
    pub frames: u64,
    /// Their payload bytes; headers are 8 bytes a frame on top.
    pub bytes: u64,
    /// Datagrams lost and made good.
    pub lost: u64,
}

pub(super) struct State {
    pub(super) config: MemoryConfig,
    pub(super) names: BTreeMap<NodeId, Ix>,
    pub(super) nodes: Vec<Node>,
    pub(super) pipes: Vec<Pipe<Parcel>>,
    pub(super) pipe_by_clusters: BTreeMap<(ClusterId, ClusterId), usize>,
    pub(super) paths: Paths,
    pub(super) traffic: BTreeMap<usize, Traffic>,
    pub(super) blackouts: BTreeMap<usize, u64>,
    /// Pairs of clusters between which messages are said again.
    pub(super) repeats: BTreeMap<(ClusterId, ClusterId), Repeat>,
    /// Decides which, and when.
    pub(super) doubts: SplitMix,
    pub(super) oddities: Oddities,
    heap: BinaryHeap<Reverse<Timed>>,
    pub(super) seq: u64,
    pub(super) next_link: u64,
    /// The time of the event handled last: time runs in it finer than tokio's milliseconds.
    pub(super) fine: Duration,
    pub(super) digest: u64,
}

impl World for State {
    type Call = Call;

    fn next_at(&self) -> Option<Duration> {
        self.heap.peek().map(|Reverse(timed)| timed.at)
    }

    fn step(&mut self, limit: Duration) -> Vec<Call> {
        let mut calls = Vec::new();
        let Some(at) = self.next_at().filter(|at| *at <= limit) else { return calls };
        self.fine = self.fine.max(at);
        while self.next_at() == Some(at)
            && let Some(Reverse(timed)) = self.heap.pop()
        {
            self.handle(timed.event, self.fine, &mut calls);
        }
        calls
    }

    fn make(call: Call) {
        match call.news {
            News::Frame(from, class, frame) => call.events.frame(&from, class, frame),
            News::Up(peer) => call.events.up(&peer),
            News::Down(peer, why) => call.events.down(&peer, &why),
            News::Drained(to, class) => call.events.drained(&to, class),
            News::Undelivered(to, class, frame) => call.events.undelivered(&to, class, frame),
        }
    }
}

impl State {
    pub(super) fn new(seed: u64, config: MemoryConfig) -> Self {
        Self {
            paths: Paths::new(seed, config.inside.clone(), config.between.clone()),
            config,
            names: BTreeMap::new(),
            nodes: Vec::new(),
            pipes: Vec::new(),
            pipe_by_clusters: BTreeMap::new(),
            traffic: BTreeMap::new(),
            blackouts: BTreeMap::new(),
            repeats: BTreeMap::new(),
            doubts: SplitMix(seed ^ 0x646f_7562_7473),
            oddities: Oddities::default(),
            heap: BinaryHeap::new(),
            seq: 0,
            next_link: 1,
            fine: Duration::ZERO,
            digest: DIGEST,
        }
    }

    // --- nodes -------------------------------------------------------------------------------------------------

    /// A node appears. Of a name that is known, only a later life may appear; the former one dies.
    pub(super) fn join(&mut self, peer: Peer, now: Duration) -> Option<Ix> {
        let node = Node {
            peer: peer.clone(),
            events: None,
            life: Life::Running,
            contacts: BTreeMap::new(),
            ends: BTreeMap::new(),
            refused: RefusedCounts::new(),
            stopped: None,
            first_link: self.next_link,
        };
        match self.names.get(&peer.node) {
            Some(&ix) if self.nodes[ix].peer.incarnation >= peer.incarnation => None,
            Some(&ix) => {
                self.kill(ix, now);
                self.nodes[ix] = node;
                Some(ix)
            }
            None => {
                let ix = self.nodes.len();
                self.names.insert(peer.node.clone(), ix);
                self.nodes.push(node);
                Some(ix)
            }
        }
    }

    pub(super) fn start(&mut self, me: &Me, events: Arc<dyn Events>) {
        if let Some(ix) = self.living(me) {
            self.nodes[ix].events = Some(events);
        }
    }

    pub(super) fn by_name(&self, node: &NodeId) -> Option<Ix> {
        self.names.get(node).copied()
    }

    /// The place of this life of a node, while it lasts.
    pub(super) fn living(&self, me: &Me) -> Option<Ix> {
        let node = &self.nodes[me.ix];
        let same = node.peer.incarnation == me.peer.incarnation;
        (same && node.life != Life::Over).then_some(me.ix)
    }

    pub(super) fn learn(
        &mut self,
        me: &Me,
        contact: &Contact,
        life: Option<Incarnation>,
        now: Duration,
    ) {
        let Some(ix) = self.living(me) else { return };
        // The name alone suffices to reach it, and it may not have joined yet: a place is kept for it.
        let peer = match self.by_name(&contact.node) {
            Some(peer) => peer,
            None => {
                let node = contact.node.clone();
                let peer =
                    Peer { node, incarnation: Incarnation(0), cluster: contact.cluster.clone() };
                self.names.insert(contact.node.clone(), self.nodes.len());
                self.nodes.push(Node {
                    peer,
                    events: None,
                    life: Life::Over,
                    contacts: BTreeMap::new(),
                    ends: BTreeMap::new(),
                    refused: RefusedCounts::new(),
                    stopped: None,
                    first_link: 0,
                });
                self.nodes.len() - 1
            }
        };
        self.nodes[ix].contacts.insert(contact.node.clone(), peer);
        let end = self.nodes[ix].ends.get(&peer);
        let known = end.and_then(|end| end.peer.as_ref()).map(|peer| peer.incarnation);
        let up = end.is_some_and(|end| end.state == LinkState::Up);
        if up && life.zip(known).is_some_and(|(life, known)| known < life) {
            self.moved(ix, peer, now);
        }
    }

    /// Whom a node was told of or has had a link with.
    pub(super) fn known(&self, me: &Me) -> Vec<NodeId> {
        let Some(ix) = self.living(me) else { return Vec::new() };
        let node = &self.nodes[ix];
        let met = node.ends.keys().map(|peer| &self.nodes[*peer].peer.node);
        let known: BTreeSet<&NodeId> = node.contacts.keys().chain(met).collect();
        known.into_iter().cloned().collect()
    }

    /// Ends a link to an earlier life of a peer. What has not left goes to the later one, but for bulk transfers, which
    /// are given back: half of one is of no use there.
    fn moved(&mut self, node: Ix, peer: Ix, now: Duration) {
        let unsent = self
            .withdraw(node, |parcel| parcel.to == peer && matches!(parcel.load, Load::Frame(_)));
        let mut calls = Vec::new();
        self.down(node, peer, "the node is now elsewhere", &mut calls);
        let name = self.nodes[peer].peer.node.clone();
        let Some(end) = self.nodes[node].ends.get_mut(&peer) else { return };
        let mut back = Vec::new();
        for (class, parcel) in unsent {
            let Load::Frame(frame) = parcel.load else { continue };
            if class == Class::Bulk {
                end.out(class).dropped += 1;
                back.push(News::Undelivered(name.clone(), class, frame));
            } else {
                end.out(class).take(frame.body.len() + HEADER_LEN, &self.config);
                end.held.push((class, frame));
            }
        }
        let wanted = !end.held.is_empty();
        back.into_iter().for_each(|news| self.tell(node, news, &mut calls));
        if wanted {
            self.dial(node, peer, now);
        }
        for call in calls {
            self.schedule(now.max(self.fine), Event::Tell(call));
        }
    }

    /// A node vanishes without a word.
    pub(super) fn kill(&mut self, ix: Ix, now: Duration) {
        let node = &mut self.nodes[ix];
        node.life = Life::Over;
        node.events = None;
        node.stopped = None;
        let ends = std::mem::take(&mut node.ends);
        self.withdraw(ix, |_| true);
        for (peer, end) in ends {
            let event = Event::Silent { node: peer, peer: ix, link: end.link };
            self.schedule(now + self.config.idle_timeout, event);
        }
    }

    // --- sending -----------------------------------------------------------------------------------------------

    pub(super) fn send(
        &mut self,
        me: &Me,
        to: &NodeId,
        class: Class,
        frame: Frame,
        now: Duration,
    ) -> Result<(), SendError> {
        let ix = self.living(me).ok_or(SendError::Closed)?;
        let node = &mut self.nodes[ix];
        if node.life != Life::Running || node.events.is_none() {
            return Err(SendError::Closed);
        }
        let peer = match self.names.get(to) {
            Some(peer) if node.contacts.contains_key(to) || node.ends.contains_key(peer) => *peer,
            _ => return Err(SendError::Unknown(to.clone())),
        };
        let len = frame.body.len() + HEADER_LEN;
        let end = node.ends.entry(peer).or_default();
        if !end.out(class).take(len, &self.config) {
            return Err(SendError::Full(to.clone()));
        }
        match end.state {
            LinkState::Up => {
                let load = Load::Frame(frame);
                let parcel = Parcel { from: ix, to: peer, link: end.link, load };
                self.post(parcel, class, len, now);
            }
            LinkState::Connecting => end.held.push((class, frame)),
            LinkState::Idle | LinkState::Backoff => {
                end.held.push((class, frame));
                self.dial(ix, peer, now);
            }
        }
        Ok(())
    }

    fn dial(&mut self, ix: Ix, peer: Ix, now: Duration) {
        let link = self.next_link;
        self.next_link += 1;
        let me = self.nodes[ix].peer.clone();
        let end = self.nodes[ix].ends.entry(peer).or_default();
        end.dial(link, now);
        self.post(
            Parcel { from: ix, to: peer, link, load: Load::Hello(me) },
            Class::Control,
            GREETING,
            now,
        );
        let event = Event::ConnectTimeout { node: ix, peer, link };
        self.schedule(now + self.config.connect_timeout, event);
    }

    fn post(&mut self, parcel: Parcel, class: Class, len: usize, now: Duration) {
        let pipe = self.pipe(parcel.from, parcel.to);
        self.pipes[pipe].push(Item::new(parcel, class, len));
        self.pump(pipe, now);
    }

    pub(super) fn pump(&mut self, pipe: usize, now: Duration) {
        let now = now.max(self.fine);
        let pumped = self.pipes[pipe].pump(&mut self.paths.links, now);
        for (item, arrival) in pumped.left {
            let (parcel, class) = (item.what, item.class);
            let mut arrival = arrival;
            if let Some(end) = self.nodes[parcel.from].ends.get_mut(&parcel.to)
                && end.link == parcel.link
            {
                let last = matches!(parcel.load, Load::Goodbye(_));
                arrival = end.in_order(class, arrival, last);
                if let Load::Frame(frame) = &parcel.load {
                    self.oddities.overtaking += u64::from(end.overtakes(class, arrival));
                    let traffic = self.traffic.entry(pipe).or_default();
                    traffic.frames += 1;
                    traffic.bytes += frame.body.len() as u64;
                    end.out(class).left(frame.body.len());
                }
            }
            self.schedule(arrival, Event::Arrive(class, parcel));
        }
        let pipe_state = &mut self.pipes[pipe];
        if let Some(at) = pumped.again
            && pipe_state.wakes_at.is_none_or(|wakes_at| at < wakes_at)
        {
            pipe_state.wakes_at = Some(at);
            self.schedule(at, Event::Pump(pipe));
        }
    }

    /// Takes parcels out of all pipes, unsent.
    fn withdraw(&mut self, from: Ix, which: impl Fn(&Parcel) -> bool) -> Vec<(Class, Parcel)> {
        let mut taken = Vec::new();
        for pipe in self.pipes_out_of(from) {
            let items = self.pipes[pipe].take(|parcel| parcel.from == from && which(parcel));
            taken.extend(items.into_iter().map(|item| (item.class, item.what)));
        }
        taken
    }

    /// What a node sends waits in one of these.
    fn pipes_out_of(&self, from: Ix) -> Vec<usize> {
        let cluster = &self.nodes[from].peer.cluster;
        let pipes = self.pipe_by_clusters.range((cluster.clone(), ClusterId::from(""))..);
        pipes.take_while(|((of, _), _)| of == cluster).map(|(_, pipe)| *pipe).collect()
    }

    // --- time --------------------------------------------------------------------------------------------------

    pub(super) fn schedule(&mut self, at: Duration, event: Event) {
        self.seq += 1;
        self.heap.push(Reverse(Timed { at, seq: self.seq, event }));
    }

    fn handle(&mut self, event: Event, now: Duration, calls: &mut Vec<Call>) {
        let Some(event) = self.unless_stopped(event) else { return };
        match event {
            Event::Arrive(class, parcel) => self.arrive(class, parcel, now, calls),
            Event::Pump(pipe) => {
                self.pipes[pipe].wakes_at = None;
                self.pump(pipe, now);
            }
            Event::ConnectTimeout { node, peer, link } => {
                let end = self.nodes[node].ends.get_mut(&peer);
                let tried = |end: &&mut End| end.link == link && end.state == LinkState::Connecting;
                let Some(end) = end.filter(tried) else { return };
                let passed_over = end.passed_over.take();
                self.down(node, peer, "could not be reached", calls);
                if let Some((link, other)) = passed_over {
                    self.accept_late(peer, node, link, other, now, calls);
                }
            }
            Event::Silent { node, peer, link } => {
                if self.nodes[node].ends.get(&peer).is_some_and(|end| end.link == link) {
                    self.down(node, peer, "nothing heard for the idle timeout", calls);
                }
            }
            Event::Blackout { pipe, since } => {
                if self.blackouts.get(&pipe) == Some(&since) {
                    self.blackout(pipe, calls);
                }
            }
            Event::Tell(call) => calls.push(call),
            Event::Linger(ix, incarnation) => {
                let node = &self.nodes[ix];
                if node.peer.incarnation == incarnation && node.life == Life::Closing {
                    self.kill(ix, now);
                }
            }
            Event::Stood { node, since } => self.stood(node, since, calls),
            Event::Again(again) => self.again(again, now, calls),
        }
    }

    // --- arrivals ----------------------------------------------------------------------------------------------

    fn arrive(&mut self, class: Class, parcel: Parcel, now: Duration, calls: &mut Vec<Call>) {
        let Parcel { from, to, link, load } = parcel;
        if let Load::Frame(frame) = &load {
            self.delivered(from, to, link, class, frame.body.len() + HEADER_LEN, calls);
        }
        if self.nodes[to].life == Life::Over || self.nodes[to].events.is_none() {
            return;
        }
        self.note(now, from, to, class, &load);
        match load {
            Load::Hello(peer) => self.hello(from, to, link, peer, now, calls),
            Load::Welcome(peer) => self.linked(to, from, link, &peer, now, calls),
            Load::Refuse(reason) => {
                let end = self.nodes[to].ends.get(&from);
                if end.is_some_and(|end| end.link == link && end.state == LinkState::Connecting) {
                    self.down_as(
                        to,
                        from,
                        Why::refused(reason, format!("refused: {reason:?}")),
                        calls,
                    );
                }
            }
            Load::Goodbye(why) => {
                if self.nodes[to].ends.get(&from).is_some_and(|end| end.link == link) {
                    self.down(to, from, why, calls);
                }
            }
            Load::Frame(frame) => {
                let end = self.nodes[to].ends.get_mut(&from);
                let known = |end: &&mut End| {
                    end.link == link && matches!(end.state, LinkState::Up | LinkState::Connecting)
                };
                let Some(end) = end.filter(known) else {
                    self.refused_frame(from, link);
                    return self.reset(to, from, link, now);
                };
                if end.state == LinkState::Connecting {
                    // Jitter may let a frame overtake the welcome on a link that reorders: it says as much.
                    let peer = self.nodes[from].peer.clone();
                    self.linked(to, from, link, &peer, now, calls);
                }
                let Some(end) = self.nodes[to].ends.get_mut(&from) else { return };
                end.came(class, frame.body.len());
                if let Some(peer) = end.peer.clone() {
                    self.oddities.from_the_dead += u64::from(end.is_behind(peer.incarnation));
                    self.doubt(from, to, class, &frame, now);
                    self.tell(to, News::Frame(peer, class, frame), calls);
                }
            }
        }
    }

    /// Something came over a link that this side does not know any more: it says so, as QUIC does, else the other side would send
    /// into it for ever. Of the links of a former life nothing is left that could be said.
    fn reset(&mut self, me: Ix, to: Ix, link: u64, now: Duration) {
        if link < self.nodes[me].first_link {
            return;
        }
        let load = Load::Goodbye("the peer does not know this link".to_owned());
        self.post(Parcel { from: me, to, link, load }, Class::Control, GREETING, now);
    }

    fn hello(
        &mut self,
        from: Ix,
        to: Ix,
        link: u64,
        peer: Peer,
        now: Duration,
        calls: &mut Vec<Call>,
    ) {
        let node = &mut self.nodes[to];
        let known = node.ends.get(&from).and_then(|end| end.peer.clone());
        let banned = node.ends.get(&from).is_some_and(|end| end.strikes.is_banned(now));
        let refuse = match &known {
            _ if node.life != Life::Running => Some(RefuseReason::Closing),
            _ if banned => Some(RefuseReason::Banned),
            Some(known) if known.incarnation > peer.incarnation => {
                Some(RefuseReason::StaleIncarnation)
            }
            _ => None,
        };
        if let Some(reason) = refuse {
            *node.refused.entry(reason).or_default() += 1;
            let load = Load::Refuse(reason);
            self.post(Parcel { from: to, to: from, link, load }, Class::Control, GREETING, now);
            return;
        }
        if let Some(end) = node.ends.get_mut(&from) {
            match end.state {
                // Both dialled: the earlier attempt stays, and its hello is on its way or here.
                LinkState::Connecting if end.link < link => {
                    end.passed_over = Some((link, peer));
                    return;
                }
                LinkState::Up if end.link > link => return,
                LinkState::Up => self.down(to, from, "replaced by a new link", calls),
                _ => {}
            }
        }
        let me = self.nodes[to].peer.clone();
        let end = self.nodes[to].ends.entry(from).or_default();
        end.adopt(link);
        // The welcome goes first, then what was held.
        let load = Load::Welcome(me);
        self.post(Parcel { from: to, to: from, link, load }, Class::Control, GREETING, now);
        self.linked(to, from, link, &peer, now, calls);
    }

    /// An end's own attempt has failed, for the peer has forgotten it. The peer's attempt, which was
    /// passed over for it, succeeds if the peer still waits: else both would pass each other over
    /// for ever.
    fn accept_late(
        &mut self,
        from: Ix,
        to: Ix,
        link: u64,
        peer: Peer,
        now: Duration,
        calls: &mut Vec<Call>,
    ) {
        let waits = |end: &End| end.link == link && end.state == LinkState::Connecting;
        if self.nodes[from].peer == peer && self.nodes[from].ends.get(&to).is_some_and(waits) {
            self.hello(from, to, link, peer, now, calls);
        }
    }

    /// The link is up on `node`'s side.
    fn linked(
        &mut self,
        node: Ix,
        peer_ix: Ix,
        link: u64,
        peer: &Peer,
        now: Duration,
        calls: &mut Vec<Call>,
    ) {
        let Some(end) = self.nodes[node].ends.get_mut(&peer_ix) else { return };
        if end.link != link || end.state != LinkState::Connecting {
            return;
        }
        let held = end.linked(peer.clone(), now);
        self.tell(node, News::Up(peer.clone()), calls);
        for (class, frame) in held {
            let len = frame.body.len() + HEADER_LEN;
            let load = Load::Frame(frame);
            self.post(Parcel { from: node, to: peer_ix, link, load }, class, len, now);
        }
        if self.nodes[node].life == Life::Closing {
            let load = Load::Goodbye("the peer has closed".into());
            self.post(Parcel { from: node, to: peer_ix, link, load }, Class::Bulk, GREETING, now);
        }
    }

    /// A frame arrived or was lost on the way: it no longer counts at its sender.
    fn delivered(
        &mut self,
        from: Ix,
        to: Ix,
        link: u64,
        class: Class,
        len: usize,
        calls: &mut Vec<Call>,
    ) {
        let name = self.nodes[to].peer.node.clone();
        let Some(end) = self.nodes[from].ends.get_mut(&to) else { return };
        if end.link == link && end.out(class).give(len, &self.config) {
            self.tell(from, News::Drained(name, class), calls);
        }
    }

    pub(super) fn tell(&mut self, node: Ix, news: News, calls: &mut Vec<Call>) {
        let node = &mut self.nodes[node];
        let Some(events) = &node.events else { return };
        let call = Call { events: Arc::clone(events), news };
        match &mut node.stopped {
            Some(stopped) => stopped.keep(Event::Tell(call)),
            None => calls.push(call),
        }
    }

    // --- ends --------------------------------------------------------------------------------------------------

    /// A node's side of a link ends; what it had queued is given back.
    pub(super) fn down(
        &mut self,
        node: Ix,
        peer: Ix,
        why: impl Into<String>,
        calls: &mut Vec<Call>,
    ) {
        self.down_as(node, peer, Why::from(why), calls);
    }

    fn down_as(&mut self, node: Ix, peer: Ix, why: Why, calls: &mut Vec<Call>) {
        let other = self.nodes[peer].peer.clone();
        let Some(end) = self.nodes[node].ends.get_mut(&peer) else { return };
        let told = end.peer.clone().unwrap_or(Peer { incarnation: Incarnation(0), ..other });
        let held = end.reset();
        self.tell(node, News::Down(told.clone(), why), calls);
        let unsent = self.withdraw(node, |parcel| parcel.to == peer);
        let unsent = unsent.into_iter().filter_map(|(class, parcel)| match parcel.load {
            Load::Frame(frame) => Some((class, frame)),
            _ => None,
        });
        for (class, frame) in unsent.chain(held) {
            if let Some(end) = self.nodes[node].ends.get_mut(&peer) {
                end.out(class).dropped += 1;
            }
            self.tell(node, News::Undelivered(told.node.clone(), class, frame), calls);
        }
    }

    /// A peer broke the protocol: its link is closed. Returns whether it is banned now; none if there was no link.
    pub(super) fn breach(
        &mut self,
        me: &Me,
        peer: &Peer,
        why: &str,
        now: Duration,
    ) -> Option<bool> {
        let (ix, other) = (self.living(me)?, self.by_name(&peer.node)?);
        let end = self.nodes[ix].ends.get_mut(&other)?;
        if end.state != LinkState::Up || end.peer.as_ref() != Some(peer) {
            return None;
        }
        let (link, banned) = (end.link, end.strikes.strike(now.max(self.fine)));
        let mut calls = Vec::new();
        self.down(ix, other, why, &mut calls);
        let load = Load::Goodbye(why.to_owned());
        self.post(Parcel { from: ix, to: other, link, load }, Class::Bulk, GREETING, now);
        for call in calls {
            self.schedule(now.max(self.fine), Event::Tell(call));
        }
        Some(banned)
    }

    pub(super) fn forget(&mut self, me: &Me, node: &NodeId, now: Duration) {
        let (Some(ix), Some(peer)) = (self.living(me), self.by_name(node)) else { return };
        self.nodes[ix].contacts.remove(node);
        let Some(end) = self.nodes[ix].ends.get(&peer) else { return };
        let (link, open) = (end.link, end.state != LinkState::Idle);
        if !open {
            return;
        }
        let mut calls = Vec::new();
        self.down(ix, peer, "forgotten", &mut calls);
        let load = Load::Goodbye("the peer wants no link".into());
        self.post(Parcel { from: ix, to: peer, link, load }, Class::Bulk, GREETING, now);
        for call in calls {
            self.schedule(now.max(self.fine), Event::Tell(call));
        }
    }

    /// Says goodbye behind all that is queued.
    pub(super) fn close(&mut self, me: &Me, reason: &str, now: Duration) {
        let Some(ix) = self.living(me) else { return };
        if self.nodes[ix].life != Life::Running {
            return;
        }
        self.nodes[ix].life = Life::Closing;
        let up = self.nodes[ix].ends.iter().filter(|(_, end)| end.state == LinkState::Up);
        let links: Vec<(Ix, u64)> = up.map(|(peer, end)| (*peer, end.link)).collect();
        for (peer, link) in links {
            let load = Load::Goodbye(reason.to_owned());
            self.post(Parcel { from: ix, to: peer, link, load }, Class::Bulk, GREETING, now);
        }
        let event = Event::Linger(ix, me.peer.incarnation);
        self.schedule(now.max(self.fine) + self.config.linger, event);
    }

    /// Whether a node that was told to close has nothing left to send.
    pub(super) fn is_closed(&self, me: &Me) -> bool {
        let Some(ix) = self.living(me) else { return true };
        let waits = |pipe: &usize| self.pipes[*pipe].any(|parcel| parcel.from == ix);
        let held = self.nodes[ix].ends.values().any(|end| !end.held.is_empty());
        self.nodes[ix].life == Life::Closing && !held && !self.pipes_out_of(ix).iter().any(waits)
    }

    /// A node that has closed hears nothing more.
    pub(super) fn finish(&mut self, me: &Me, now: Duration) {
        if let Some(ix) = self.living(me) {
            self.kill(ix, now);
        }
    }
}
