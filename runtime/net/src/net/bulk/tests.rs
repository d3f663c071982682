//! Tests of bulk transfers: the protocol under all orders of events, its bounds, and the window on
//! simulated links.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;

use super::message::{Begin, Cancel, Credit, TransferHeader};
use super::sender::{ACTIVE_MAX, Sender};
use super::window::{CHUNK_MAX, CHUNK_MIN, Window};
use super::*;
use crate::id::Incarnation;
use crate::net::link::{Link, LinkProfile};

const MS: Duration = Duration::from_millis(1);

fn peer(node: &str, incarnation: u64) -> Peer {
    Peer { node: node.into(), incarnation: Incarnation(incarnation), cluster: "c".into() }
}

/// Two nodes and the frames in transit between them, by direction and class, in order.
struct TestLink {
    config: BulkConfig,
    sides: [Sides; 2],
    queues: BTreeMap<(usize, Class), VecDeque<Frame>>,
    /// Whether chunks arrive with the payload that they are a part of.
    share_memory: bool,
    /// Capacity of each queue in frames.
    depth: usize,
    refused: BTreeMap<(usize, Class), bool>,
    delivered: Vec<(usize, Bytes)>,
    returned: Vec<(usize, Bytes)>,
    now: Duration,
}

impl TestLink {
    fn new(config: BulkConfig, depth: usize) -> Self {
        let side = || Sides { sender: Sender::new(100), receiver: Receiver::default() };
        Self {
            config,
            sides: [side(), side()],
            queues: BTreeMap::new(),
            share_memory: false,
            depth,
            refused: BTreeMap::new(),
            delivered: Vec::new(),
            returned: Vec::new(),
            now: Duration::ZERO,
        }
    }

    fn peer(side: usize) -> Peer {
        peer(["a", "b"][side], 1)
    }

    /// Runs one side of the protocol with its transport.
    fn with<R>(
        &mut self,
        side: usize,
        f: impl FnOnce(&mut Sides, &BulkConfig, Duration, sender::Send<'_>) -> R,
    ) -> R {
        let TestLink { sides, queues, refused, depth, config, now, .. } = self;
        let mut send = |class, frame| {
            let queue: &mut VecDeque<Frame> = queues.entry((side, class)).or_default();
            if queue.len() >= *depth {
                refused.insert((side, class), true);
                return Err(SendError::Full(Self::peer(1 - side).node));
            }
            queue.push_back(frame);
            Ok(())
        };
        f(&mut sides[side], config, *now, &mut send)
    }

    fn offer(&mut self, side: usize, body: Bytes) -> Result<(), SendError> {
        let to = Self::peer(1 - side).node;
        self.with(side, |sides, config, now, send| {
            sides.sender.offer(config, &to, (Kind::TELL, body), now, send)
        })
    }

    /// Delivers one frame. Returns false if the queue is empty.
    fn deliver(&mut self, from: usize, class: Class) -> bool {
        let Some(queue) = self.queues.get_mut(&(from, class)) else { return false };
        let Some(mut frame) = queue.pop_front() else { return false };
        if !self.share_memory {
            frame.whole = None;
        }
        let drained = queue.len() <= self.depth / 2;
        self.now += MS / 10;
        let (peer, to) = (Self::peer(from), 1 - from);
        let node = peer.node.clone();
        let event = self.with(to, |sides, config, now, send| {
            let Sides { sender, receiver } = sides;
            let event = handle(sender, receiver, config, now, &peer, frame, send);
            receiver.flush(&node, &mut |frame| send(Class::Control, frame).is_ok());
            event
        });
        match event.expect("correct peers make no errors") {
            Some(BulkEvent::Payload(whole)) => self.delivered.push((to, whole.body)),
            Some(BulkEvent::Undelivered((_, _, body))) => self.returned.push((to, body)),
            None => {}
        }
        if drained && self.refused.remove(&(from, class)).is_some() {
            let to = Self::peer(to).node;
            self.with(from, |sides, _, now, send| match class {
                Class::Bulk => sides.sender.drained(&to, now, send),
                _ => sides.receiver.flush(&to, &mut |frame| send(Class::Control, frame).is_ok()),
            });
        }
        true
    }

    /// Takes the link down. Queued chunks return to their sender.
    fn down(&mut self) {
        for side in 0..2 {
            let node = Self::peer(1 - side).node;
            self.sides[side].receiver.down(&node);
            let mut returned = self.sides[side].sender.down(&node);
            for frame in self.queues.remove(&(side, Class::Bulk)).unwrap_or_default() {
                if frame.kind == Kind::BULK_CHUNK {
                    returned.extend(self.sides[side].sender.returned(&node, &frame.body));
                }
            }
            self.returned.extend(returned.into_iter().map(|(_, _, body)| (side, body)));
        }
        self.queues.clear();
        self.refused.clear();
    }
}

fn pattern(n: usize, len: usize) -> Bytes {
    (0..len).map(|i| (i * 31 + n * 7 + i / 251) as u8).collect()
}

#[derive(Clone, Debug)]
enum BulkStep {
    Offer(usize, usize),
    Deliver(usize, Class, usize),
    Down,
}

fn step() -> impl Strategy<Value = BulkStep> {
    let class = prop_oneof![Just(Class::Control), Just(Class::Bulk)];
    prop_oneof![
        3 => (0..2usize, 0..200_000usize).prop_map(|(side, len)| BulkStep::Offer(side, len)),
        9 => (0..2usize, class, 1..30usize).prop_map(|(s, c, n)| BulkStep::Deliver(s, c, n)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn each_payload_arrives_once_or_returns(
        steps in proptest::collection::vec(step(), 1..60),
        down_at in proptest::option::of(0..60usize),
        depth in 1..20usize,
        share_memory: bool,
        transfers_max in 1..20usize,
        memory_bytes in prop_oneof![Just(1 << 30), Just(250_000usize)],
    ) {
        let config = BulkConfig { transfers_max, memory_bytes, ..BulkConfig::default() };
        let mut link = TestLink { share_memory, ..TestLink::new(config, depth) };
        // By sending side: the payloads queued since the link went down, in order.
        let mut offered: [Vec<Bytes>; 2] = Default::default();
        let mut steps = steps;
        if let Some(at) = down_at.filter(|at| *at < steps.len()) {
            steps.insert(at, BulkStep::Down);
        }
        for (n, step) in steps.into_iter().enumerate() {
            match step {
                BulkStep::Offer(side, len) => {
                    let body = pattern(n, len);
                    link.offer(side, body.clone()).unwrap();
                    offered[side].push(body);
                }
                BulkStep::Deliver(side, class, times) => {
                    (0..times).for_each(|_| { link.deliver(side, class); });
                }
                BulkStep::Down => {
                    link.down();
                    prop_assert_eq!(link.sides[0].receiver.memory(), 0);
                    prop_assert_eq!(link.sides[1].receiver.memory(), 0);
                    for (side, offered) in offered.iter_mut().enumerate() {
                        // No payload arrives twice, returns twice, or both arrives and returns.
                        let arrived = link.delivered.iter().filter(|(to, _)| *to == 1 - side);
                        let back = link.returned.iter().filter(|(from, _)| *from == side);
                        let mut ends: Vec<&Bytes> =
                            arrived.chain(back).map(|(_, body)| body).collect();
                        let all = ends.len();
                        ends.sort();
                        ends.dedup_by(|a, b| a == b && !a.is_empty());
                        prop_assert_eq!(all, ends.len());
                        prop_assert!(ends.iter().all(|body| offered.contains(body)));
                        offered.clear();
                    }
                    link.delivered.clear();
                    link.returned.clear();
                }
            }
            prop_assert!(link.sides.iter().all(|side| side.receiver.memory() <= memory_bytes));
        }
        // Without further steps every transfer ends.
        while [(0, Class::Bulk), (0, Class::Control), (1, Class::Bulk), (1, Class::Control)]
            .into_iter().any(|(side, class)| link.deliver(side, class)) {}
        for (side, offered) in offered.iter_mut().enumerate() {
            let arrived = link.delivered.iter().filter(|(to, _)| *to == 1 - side);
            let back = link.returned.iter().filter(|(from, _)| *from == side);
            for (_, body) in arrived.clone().filter(|(_, body)| !body.is_empty()) {
                let is_shared = offered.iter().any(|of| of.as_ptr() == body.as_ptr());
                prop_assert_eq!(is_shared, share_memory);
            }
            let mut ends: Vec<Bytes> =
                arrived.chain(back).map(|(_, body)| body.clone()).collect();
            ends.sort();
            offered.sort();
            prop_assert_eq!(&ends, offered);
            prop_assert_eq!(link.sides[side].sender.held(&TestLink::peer(1 - side).node), 0);
            prop_assert_eq!(link.sides[side].sender.window(&TestLink::peer(1 - side).node).0, 0);
            prop_assert_eq!(link.sides[side].receiver.memory(), 0);
        }
    }
}

#[test]
fn a_short_transfer_does_not_wait_for_long_ones() {
    let mut link = TestLink::new(BulkConfig::default(), 1000);
    let lens = [2_000_000, 2_000_000, 60_000];
    for (n, len) in lens.into_iter().enumerate() {
        link.offer(0, pattern(n, len)).unwrap();
    }
    let mut order = Vec::new();
    while link.deliver(0, Class::Bulk) || link.deliver(1, Class::Control) {
        order.extend(link.delivered.drain(..).map(|(_, body)| body.len()));
    }
    assert_eq!(order, [60_000, 2_000_000, 2_000_000]);
}

#[test]
fn equal_transfers_arrive_in_order_with_a_short_one_in_between() {
    let mut link =
        TestLink::new(BulkConfig { window_bytes: 64 << 10, ..BulkConfig::default() }, 1000);
    let pieces = 3 * ACTIVE_MAX;
    for n in 0..pieces {
        link.offer(0, pattern(n, 1_000_000)).unwrap();
    }
    link.offer(0, pattern(0, 80_000)).unwrap();
    let mut order = Vec::new();
    while link.deliver(0, Class::Bulk) || link.deliver(1, Class::Control) {
        order.extend(link.delivered.drain(..).map(|(_, body)| body));
    }
    let short = order.iter().position(|body| body.len() == 80_000).expect("it arrives");
    assert!(short <= 2, "it waited for {short} longer transfers");
    order.remove(short);
    let pieces: Vec<Bytes> = (0..pieces).map(|n| pattern(n, 1_000_000)).collect();
    assert!(order == pieces, "not in order");
}

#[test]
fn queue_bounds_are_enforced() {
    let config = BulkConfig { queue_bytes: 100_000, ..BulkConfig::default() };
    let mut link = TestLink::new(config, 1000);
    link.offer(0, pattern(0, 150_000)).expect("nothing else is queued");
    assert_eq!(link.offer(0, pattern(1, 1)), Err(SendError::Full("b".into())));
    while link.deliver(0, Class::Bulk) || link.deliver(1, Class::Control) {}
    link.offer(0, pattern(2, 60_000)).unwrap();
    assert_eq!(link.offer(0, pattern(3, 60_000)), Err(SendError::Full("b".into())));
}

/// Feeds frames to a receiver. Returns the errors, the memory and the number of cancels.
fn receiver(config: &BulkConfig, frames: &[Frame]) -> (Vec<BulkError>, usize, usize) {
    let (mut sender, mut receiver) = (Sender::new(1), Receiver::default());
    let mut errors = Vec::new();
    let mut cancels = 0;
    for frame in frames {
        let event = handle(
            &mut sender,
            &mut receiver,
            config,
            Duration::ZERO,
            &peer("x", 1),
            frame.clone(),
            &mut |_, _| Ok(()),
        );
        errors.extend(event.err());
        receiver.flush(&"x".into(), &mut |frame| {
            cancels += usize::from(frame.kind == Kind::BULK_CANCEL);
            true
        });
    }
    (errors, receiver.memory(), cancels)
}

#[test]
fn malformed_frames_are_typed_errors() {
    let config = BulkConfig { transfers_max: 2, ..BulkConfig::default() };
    let begin = |id, kind: Kind, len| {
        let begin = Begin { id, kind: kind.0, len };
        Frame::new(Kind::BULK_BEGIN, wire::encode(Kind::BULK_BEGIN, &begin).unwrap())
    };
    let chunk = |len| Frame::new(Kind::BULK_CHUNK, vec![0; len]);
    let part = |id| {
        Frame::new(Kind::BULK_PART, wire::encode(Kind::BULK_PART, &TransferHeader { id }).unwrap())
    };
    let errors = |frames: &[Frame]| receiver(&config, frames);
    let (e, memory, cancels) = errors(&[chunk(5)]);
    assert_eq!((e, memory, cancels), (vec![BulkError::ChunkWithoutTransfer], 0, 0));
    let (e, memory, cancels) = errors(&[begin(1, Kind::TELL, 10), chunk(6), chunk(6)]);
    assert_eq!((e, memory, cancels), (vec![BulkError::Overrun { id: 1, len: 10 }], 0, 1));
    let (e, ..) = errors(&[begin(1, Kind::TELL, 10), chunk(0)]);
    assert_eq!(e, [BulkError::Overrun { id: 1, len: 10 }]);
    let (e, memory, _) = errors(&[begin(2, Kind::TELL, 10), begin(2, Kind::TELL, 10)]);
    assert_eq!((e, memory), (vec![BulkError::Id { id: 2 }], 10));
    let (e, memory, cancels) = errors(&[begin(1, Kind::BULK_CHUNK, 10)]);
    assert_eq!((e.len(), memory, cancels), (1, 0, 1));
    let (e, memory, cancels) = errors(&[begin(1, Kind::WORK_HINT, 2000), chunk(2000)]);
    assert!(matches!(e[..], [BulkError::TooLong { len: 2000, cap: 1024, .. }]), "{e:?}");
    assert_eq!((memory, cancels), (0, 1));
    let (e, ..) = errors(&[part(7)]);
    assert_eq!(e, [BulkError::Unknown { id: 7 }]);
    let flood: Vec<Frame> = (1..=20).map(|id| begin(id, Kind::TELL, 1 << 29)).collect();
    let (e, memory, cancels) = errors(&flood);
    assert_eq!((memory, cancels), (1 << 30, 14), "two are taken, fourteen refused");
    assert_eq!(e, vec![BulkError::TooMany { max: 16 }; 4]);
    let junk = Frame::new(Kind::BULK_CREDIT, vec![0xc1]);
    assert!(matches!(errors(&[junk]).0[..], [BulkError::Wire(_)]));
    let other = Frame::new(Kind::TELL, vec![]);
    assert_eq!(errors(&[other]).0, [BulkError::Foreign(Kind::TELL)]);
}

#[test]
fn a_credit_for_unsent_bytes_is_an_error() {
    let mut sender = Sender::new(1);
    let to = NodeId::from("x");
    let mut send = |_, _| Ok(());
    let body = (Kind::TELL, pattern(0, 100_000));
    let config = BulkConfig::default();
    sender.offer(&config, &to, body, Duration::ZERO, &mut send).unwrap();
    let id = 1;
    let sent = sender.window(&to).0;
    let credit = Credit { id, received: sent as u64 + 1 };
    let error = sender.credit(&to, &credit, MS, &mut send).unwrap_err();
    assert_eq!(error, BulkError::Credit { id, received: sent + 1, sent });
    let late = Credit { id: 99, received: 1 };
    assert_eq!(sender.credit(&to, &late, MS, &mut send), Ok(()));
}

/// Simulates one transfer over a link. Returns the rate in the second half (bytes a second), the
/// longest queue in it, and the seconds.
fn simulate(profile: LinkProfile, back: LinkProfile, len: usize) -> (f64, Duration, f64) {
    let (mut link, mut back) = (Link::new(profile.clone(), 1), Link::new(back, 2));
    let mut window = Window::new(64 << 20);
    let (mut now, mut sent, mut credited, mut in_flight) = (Duration::ZERO, 0, 0, 0usize);
    let mut credits: VecDeque<(Duration, usize, (Duration, usize))> = VecDeque::new();
    let (mut half_at, mut queue) = (Duration::ZERO, Duration::ZERO);
    while credited < len {
        loop {
            let chunk = window.chunk().min(len - sent);
            if chunk == 0 || (in_flight > 0 && in_flight + chunk > window.bytes()) {
                break;
            }
            let mut arrival = now;
            for start in (0..chunk).step_by(1200) {
                arrival =
                    link.offer(now, 1200.min(chunk - start)).expect("the queue is deep enough");
            }
            if credited > len / 2 {
                let empty = Duration::from_micros(profile.delay_us);
                queue = queue.max(arrival.saturating_sub(now + empty));
            }
            let credit_at = back.offer(arrival, 50).expect("the return path is free");
            (sent, in_flight) = (sent + chunk, in_flight + chunk);
            credits.push_back((credit_at, chunk, (now, in_flight)));
        }
        let (arrival, chunk, sent) = credits.pop_front().expect("chunks are in flight");
        now = now.max(arrival);
        window.credited(chunk, sent, in_flight, false, now);
        (credited, in_flight) = (credited + chunk, in_flight - chunk);
        if half_at == Duration::ZERO && credited > len / 2 {
            half_at = now;
        }
    }
    let rate = (len / 2) as f64 / (now - half_at).as_secs_f64();
    (rate, queue, now.as_secs_f64())
}

#[test]
fn the_window_uses_the_rate_without_filling_the_queue() {
    // (one-way ms, bytes/s, jitter us, minimum fraction of the rate, longest queue in ms)
    let links = [
        (10, 1_000_000, 0, 0.95, 25),
        (10, 1_000_000, 3000, 0.9, 30),
        (10, 100_000, 0, 0.95, 120),
        (25, 12_500_000, 0, 0.95, 40),
        (50, 1_000_000, 0, 0.95, 60),
        (5, 125_000_000, 0, 0.95, 10),
        (75, 50_000_000, 0, 0.9, 60),
    ];
    for (delay, rate, jitter, share, queue_max) in links {
        let profile = LinkProfile::default()
            .delay(delay * MS)
            .rate(rate)
            .jitter(Duration::from_micros(jitter))
            .queue(1 << 30);
        let back = LinkProfile::default().delay(delay * MS);
        let len = (rate as usize * 30).clamp(3_000_000, 1 << 30);
        let (got, queue, took) = simulate(profile.clone(), back, len);
        println!(
            "{delay} ms, {rate} B/s, jitter {jitter} us: {got:.0} B/s, queue {queue:?}, {took:.1} s"
        );
        assert!(got > share * rate as f64, "{profile:?}: {got}");
        assert!(queue <= queue_max * MS, "{profile:?}: {queue:?}");
    }
}

/// Tests jitter above the target delay, with and without reordering. In order, dense packets arrive
/// as late as the latest one before them.
#[test]
fn jitter_is_not_mistaken_for_queueing() {
    // (one-way ms, bytes/s, jitter ms, reordered, minimum fraction of the rate, longest queue in
    // ms)
    let links = [
        (10, 1_000_000, 8, false, 0.8, 80),
        (20, 10_000_000, 15, false, 0.8, 150),
        (50, 1_000_000, 25, false, 0.8, 200),
        (20, 1_000_000, 15, true, 0.8, 150),
        (40, 1_000_000, 40, true, 0.5, 250),
    ];
    for (delay, rate, jitter, reorder, min_share, queue_max) in links {
        let profile = LinkProfile::default().delay(delay * MS).jitter(jitter * MS).reorder(reorder);
        let (profile, back) = (profile.clone().rate(rate).queue(1 << 30), profile);
        let (got, queue, took) = simulate(profile.clone(), back, rate as usize * 60);
        let share_of_rate = got / rate as f64;
        println!(
            "{delay} ms, {rate} B/s, jitter {jitter} ms: {share_of_rate:.2} of the rate, \
             queue {queue:?}, {took:.1} s"
        );
        assert!(share_of_rate > min_share, "{profile:?}: {got}");
        assert!(queue <= queue_max * MS, "{profile:?}: {queue:?}");
    }
}

/// Simulates a transfer with one lost packet in `one_in`, which arrives a round trip later and
/// delays all packets behind it.
///
/// Returns the fraction of the rate and the longest queue. `reported`: the transport reports
/// losses.
fn lossy(rtt: Duration, rate: f64, one_in: usize, reported: bool, seconds: u32) -> (f64, Duration) {
    let mut window = Window::new(64 << 20);
    let mut credits: VecDeque<(Duration, usize, (Duration, usize))> = VecDeque::new();
    let (mut now, mut free_at, mut held) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
    let (mut in_flight, mut done, mut packets, mut queue) = (0, 0, 0, Duration::ZERO);
    // Times at which the sender detects losses.
    let mut losses: VecDeque<Duration> = VecDeque::new();
    let mut lost_at = None;
    while now < Duration::from_secs(seconds.into()) {
        loop {
            let chunk = window.chunk();
            if in_flight > 0 && in_flight + chunk > window.bytes() {
                break;
            }
            for start in (0..chunk).step_by(1200) {
                let len = 1200.min(chunk - start);
                free_at = free_at.max(now) + Duration::from_secs_f64(len as f64 / rate);
                packets += 1;
                if packets % one_in == 0 {
                    held = free_at + rtt / 2 + rtt;
                    losses.push_back(free_at + rtt);
                }
            }
            queue = queue.max(free_at - now);
            in_flight += chunk;
            let arrives = held.max(free_at + rtt / 2);
            credits.push_back((arrives + rtt / 2, chunk, (now, in_flight)));
        }
        let (at, chunk, sent) = credits.pop_front().unwrap();
        now = now.max(at);
        while losses.front().is_some_and(|at| *at <= now) {
            losses.pop_front();
            lost_at = Some(now);
        }
        let lossy = reported && lost_at.is_some_and(|at| sent.0 <= at);
        window.credited(chunk, sent, in_flight, lossy, now);
        in_flight -= chunk;
        done += chunk;
    }
    (done as f64 / rate / f64::from(seconds), queue)
}

#[test]
fn delays_by_losses_are_not_mistaken_for_queueing() {
    // (round trip in ms, bytes/s, packets per loss, minimum fraction of the rate, minimum gain by
    // reports, longest queue in ms). At 50 ms and 12.5 MB/s one loss in 2,000 packets is one in
    // four round trips.
    let links = [
        // With nearly permanent loss delays, a queue of their length can remain undetected.
        (50, 12.5e6, 1000, 0.8, 0.2, 100),
        (50, 12.5e6, 2000, 0.75, 0.1, 80),
        (50, 12.5e6, 10_000, 0.9, 0.0, 80),
        (20, 1e6, 200, 0.8, 0.0, 60),
    ];
    for (rtt, rate, one_in, min_share, gain, queue_max) in links {
        let share = |reported| lossy(rtt * MS, rate, one_in, reported, 60);
        let ((with, queue), (without, _)) = (share(true), share(false));
        println!(
            "{rtt} ms, {rate} B/s, 1 in {one_in}: {with:.2} of the rate, queue {queue:?}; \
             without reports {without:.2}"
        );
        assert!(with >= min_share && with >= without + gain, "{with} {without}");
        assert!(queue <= queue_max * MS, "{queue:?}");
    }
}

#[test]
fn the_window_follows_a_path_that_becomes_longer_and_slower() {
    let mut window = Window::new(16 << 20);
    // (until, one-way delay, rate)
    let phases = [(30, 10, 10e6), (90, 40, 10e6), (150, 40, 1e6)];
    let (mut now, mut free_at) = (0.0f64, 0.0f64);
    let mut credits: VecDeque<(f64, usize, (f64, usize))> = VecDeque::new();
    let mut in_flight = 0usize;
    for (until, delay, rate) in phases {
        let (mut bytes, mut longest) = (0usize, 0.0f64);
        while now < f64::from(until) {
            loop {
                let chunk = window.chunk();
                if in_flight > 0 && in_flight + chunk > window.bytes() {
                    break;
                }
                free_at = free_at.max(now) + chunk as f64 / rate;
                in_flight += chunk;
                credits.push_back((free_at + 2e-3 * f64::from(delay), chunk, (now, in_flight)));
            }
            let (at, chunk, (sent_at, ahead)) = credits.pop_front().unwrap();
            now = now.max(at);
            let seconds = Duration::from_secs_f64;
            window.credited(chunk, (seconds(sent_at), ahead), in_flight, false, seconds(now));
            in_flight -= chunk;
            if now > f64::from(until) - 15.0 {
                bytes += chunk;
                longest = longest.max(free_at - now);
            }
        }
        let share = bytes as f64 / 15.0 / rate;
        println!("{delay} ms, {rate} B/s: {share:.2} of the rate, queue {:.1} ms", longest * 1e3);
        assert!(share > 0.85, "{delay} ms, {rate} B/s: {share}");
        assert!(longest < 0.060, "{delay} ms, {rate} B/s: {longest}");
    }
}

#[test]
fn chunks_shrink_and_grow_with_the_window() {
    let mut window = Window::new(1 << 20);
    assert_eq!(window.chunk(), CHUNK_MIN);
    for i in 0..200 {
        let now = Duration::from_micros(100 * (i + 1));
        window.credited(
            window.chunk(),
            (now - MS / 10, window.bytes()),
            window.bytes(),
            false,
            now,
        );
    }
    assert_eq!((window.chunk(), window.bytes()), (CHUNK_MAX, 1 << 20));
    assert_eq!(window.base(), Some(MS / 10));
}

#[test]
fn golden_bytes() {
    let dir = env!("CARGO_MANIFEST_DIR");
    let begin = Begin { id: 1_700_000_000_000_001, kind: Kind::STEAL_REPLY.0, len: 100 << 20 };
    wire::golden::check(dir, Kind::BULK_BEGIN, "plain", &begin);
    wire::golden::check(dir, Kind::BULK_PART, "plain", &TransferHeader { id: 7 });
    wire::golden::check(dir, Kind::BULK_CREDIT, "plain", &Credit { id: 7, received: 65_536 });
    let cancel = Cancel { id: 7, by_receiver: true, why: "no room at the receiver".into() };
    wire::golden::check(dir, Kind::BULK_CANCEL, "plain", &cancel);
}

#[test]
fn mutated_frames_never_panic_nor_exceed_the_bounds() {
    thread_local! {
        static SIDES: RefCell<(Sender, Receiver)> =
            RefCell::new((Sender::new(7), Receiver::default()));
    }
    fn feed(kind: Kind, body: &[u8]) -> bool {
        let config = BulkConfig { memory_bytes: 1 << 20, ..BulkConfig::default() };
        SIDES.with_borrow_mut(|(sender, receiver)| {
            let frame = Frame::new(kind, body.to_vec());
            let from = peer("x", 1);
            let mut send = |_, _| Ok(());
            let event = handle(sender, receiver, &config, MS, &from, frame, &mut send);
            receiver.flush(&from.node, &mut |_| true);
            assert!(receiver.memory() <= 1 << 20);
            event.is_ok()
        })
    }
    let corpus: Vec<_> = wire::golden::corpus(env!("CARGO_MANIFEST_DIR"))
        .into_iter()
        .filter(|(kind, _)| is_bulk(*kind))
        .chain([(Kind::BULK_CHUNK, vec![5; 100])])
        .collect();
    assert!(corpus.len() >= 5);
    let decoders: [wire::fuzz::Decoder; 5] = [
        (Kind::BULK_BEGIN, |body| feed(Kind::BULK_BEGIN, body)),
        (Kind::BULK_PART, |body| feed(Kind::BULK_PART, body)),
        (Kind::BULK_CHUNK, |body| feed(Kind::BULK_CHUNK, body)),
        (Kind::BULK_CREDIT, |body| feed(Kind::BULK_CREDIT, body)),
        (Kind::BULK_CANCEL, |body| feed(Kind::BULK_CANCEL, body)),
    ];
    let tally = wire::fuzz::run(&corpus, &decoders, 64);
    assert!(tally.accepted > 0 && tally.refused > 0, "{tally:?}");
}

#[test]
fn the_initial_window_is_in_flight_before_the_first_credit() {
    let config = BulkConfig { window_bytes: 1 << 20, ..BulkConfig::default() };
    for (expected, in_flight) in [(0, 16 << 10), (400_000, 400_000), (8 << 20, 1 << 20)] {
        let mut link = TestLink::new(config.clone(), 1000);
        let to = TestLink::peer(1).node;
        link.sides[0].sender.expect(&config, &to, || expected);
        link.offer(0, pattern(1, 4 << 20)).unwrap();
        let (sent, window) = link.sides[0].sender.window(&to);
        assert_eq!(window, in_flight);
        assert!(sent <= window && sent + CHUNK_MAX > window, "{sent} of {window}");
    }
}
