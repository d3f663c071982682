//! Real endpoints on loopback, in one process and one thread each test. Waits are bounded only so that a failure ends.

use std::sync::atomic::AtomicUsize;

use bytes::Bytes;
use quinn::crypto::rustls::QuicClientConfig;

use super::*;
use crate::net::Why;
use crate::net::hello::Hello;
use crate::net::tls::{Ca, EPHEMERAL_VALIDITY};
use crate::wire::{self, Kind};

const LONG: Duration = Duration::from_secs(30);

/// What an endpoint was told, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Told {
    Up(String, u64),
    Frame(String, Class, Bytes),
    Down(String, u64, String),
    Drained(Class),
    Undelivered(Class, Bytes),
    Superseded(String, Option<Incarnation>),
}

#[derive(Default)]
pub(super) struct Log(Mutex<Vec<Told>>);

impl Log {
    fn push(&self, told: Told) {
        self.0.lock().unwrap().push(told);
    }

    fn all(&self) -> Vec<Told> {
        self.0.lock().unwrap().clone()
    }

    pub fn bodies(&self, class: Class) -> Vec<Bytes> {
        let pick = |told| match told {
            Told::Frame(_, c, body) if c == class => Some(body),
            _ => None,
        };
        self.all().into_iter().filter_map(pick).collect()
    }

    fn count(&self, wanted: impl Fn(&Told) -> bool) -> usize {
        self.0.lock().unwrap().iter().filter(|told| wanted(told)).count()
    }

    pub fn downs(&self) -> usize {
        self.count(|told| matches!(told, Told::Down(..)))
    }

    fn ups(&self) -> usize {
        self.count(|told| matches!(told, Told::Up(..)))
    }
}

impl Events for Log {
    fn frame(&self, from: &Peer, class: Class, frame: Frame) {
        self.push(Told::Frame(from.to_string(), class, frame.body));
    }
    fn up(&self, peer: &Peer) {
        self.push(Told::Up(peer.to_string(), peer.incarnation.0));
    }
    fn down(&self, peer: &Peer, why: &Why) {
        self.push(Told::Down(peer.to_string(), peer.incarnation.0, why.text.clone()));
    }
    fn drained(&self, _to: &NodeId, class: Class) {
        self.push(Told::Drained(class));
    }
    fn superseded(&self, peer: &NodeId, known: Option<Incarnation>) {
        self.push(Told::Superseded(peer.to_string(), known));
    }
    fn undelivered(&self, _to: &NodeId, class: Class, frame: Frame) {
        self.push(Told::Undelivered(class, frame.body));
    }
}

pub(super) struct Node {
    pub quic: Quic,
    pub log: Arc<Log>,
}

impl Node {
    fn open(ca: &Ca, name: &str, incarnation: u64, config: NetConfig) -> Self {
        Self::over(ca, (name, "c"), incarnation, config, plain)
    }

    pub fn over(
        ca: &Ca,
        (name, cluster): (&str, &str),
        incarnation: u64,
        config: NetConfig,
        wrap: impl FnOnce(UdpSocket) -> io::Result<Arc<dyn quinn::AsyncUdpSocket>>,
    ) -> Self {
        Self::of_role("node", ca, (name, cluster), incarnation, config, wrap)
    }

    fn of_role(
        role: &str,
        ca: &Ca,
        (name, cluster): (&str, &str),
        incarnation: u64,
        config: NetConfig,
        wrap: impl FnOnce(UdpSocket) -> io::Result<Arc<dyn quinn::AsyncUdpSocket>>,
    ) -> Self {
        let identity = ca.issue(&name.into(), &cluster.into(), role, EPHEMERAL_VALIDITY).unwrap();
        let log = Arc::new(Log::default());
        let quic =
            Quic::open(config, &identity, Incarnation(incarnation), wrap, log.clone()).unwrap();
        quic.start();
        Self { quic, log }
    }

    fn new(ca: &Ca, name: &str) -> Self {
        Self::open(ca, name, 1, NetConfig::default())
    }

    pub fn contact(&self) -> Contact {
        let me = self.quic.me().clone();
        Contact { node: me.node, cluster: me.cluster, address: self.quic.address() }
    }

    pub fn knows(&self, other: &Node) {
        self.quic.learn(other.contact(), None);
    }

    pub fn id(&self) -> &NodeId {
        &self.quic.me().node
    }

    pub fn send(&self, to: &Node, class: Class, body: impl Into<Bytes>) -> Result<(), SendError> {
        self.quic.send(to.id(), class, Frame::new(Kind::TELL, body))
    }

    fn refused(&self, reason: RefuseReason) -> u64 {
        self.quic.refused().get(&reason).copied().unwrap_or(0)
    }

    fn open_connections(&self) -> usize {
        self.quic.0.endpoint.open_connections()
    }

    pub async fn close(&self) {
        self.quic.close("the test is over");
        self.quic.closed().await;
    }
}

pub(super) fn grid() -> Ca {
    Ca::ephemeral("test").unwrap()
}

pub(super) async fn until(what: &str, condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(LONG, wait).await.unwrap_or_else(|_| panic!("never: {what}"));
}

pub(super) fn numbered(range: std::ops::Range<u32>) -> Vec<Bytes> {
    range.map(|n| Bytes::copy_from_slice(&n.to_le_bytes())).collect()
}

#[tokio::test]
async fn frames_arrive_in_order_in_every_class_both_ways() {
    let ca = grid();
    let (a, b) = (Node::new(&ca, "a"), Node::new(&ca, "b"));
    a.knows(&b);
    let sizes = [0, 1, 7, 100, 1400, 4095, 4096, 20_000, wire::INLINE_MAX];
    let body = |i: usize| Bytes::from(vec![i as u8; sizes[i % sizes.len()]]);
    let bodies: Vec<Bytes> = (0..90).map(body).collect();
    for class in CLASSES {
        bodies.iter().for_each(|body| a.send(&b, class, body.clone()).unwrap());
    }
    until("all at b", || CLASSES.iter().all(|c| b.log.bodies(*c).len() == 90)).await;
    // b was never told of a: it answers over the link that a opened.
    for class in CLASSES {
        bodies.iter().for_each(|body| b.send(&a, class, body.clone()).unwrap());
    }
    until("all at a", || CLASSES.iter().all(|c| a.log.bodies(*c).len() == 90)).await;
    for (node, other) in [(&a, "c/b"), (&b, "c/a")] {
        assert_eq!(node.log.all()[0], Told::Up(other.into(), 1), "up comes first");
        assert_eq!(node.log.ups(), 1);
        for class in CLASSES {
            assert_eq!(node.log.bodies(class), bodies);
        }
        let links = node.quic.links();
        let sum = bodies.iter().map(|b| b.len() as u64).sum::<u64>();
        for stats in links[0].classes.values() {
            assert_eq!((stats.frames_out, stats.frames_in), (90, 90));
            assert_eq!((stats.bytes_out, stats.bytes_in), (sum, sum));
        }
        assert_eq!(links[0].state, LinkState::Up);
        assert!(links[0].rtt.is_some());
    }
    a.close().await;
    until("down at b", || b.log.downs() == 1).await;
    b.close().await;
}

#[tokio::test]
async fn what_is_expected_of_a_cluster_holds_for_its_nodes_alone() {
    let ca = grid();
    let policy = LinkPolicy { rtt_ms: 20.0, bandwidth: 1e6, ..LinkPolicy::default() };
    let links = [(ClusterId::from("c"), policy)].into();
    let a = Node::open(&ca, "a", 1, NetConfig { links, ..NetConfig::default() });
    let (b, shared) = (Node::new(&ca, "b"), &a.quic.0);
    let Address::Socket(at_b) = b.quic.address() else { panic!() };
    assert_eq!((a.quic.expected(b.id()), shared.cluster_at(at_b)), (None, None), "not known");
    a.knows(&b);
    assert_eq!(a.quic.expected(b.id()), Some(policy));
    let elsewhere = SocketAddr::new(at_b.ip(), 1);
    assert_eq!(shared.cluster_at(at_b), Some("c".into()));
    assert_eq!(shared.cluster_at(elsewhere), Some("c".into()), "its host");
    let address = Address::Socket(SocketAddr::new(at_b.ip(), 2));
    a.quic.learn(Contact { node: "d-1".into(), cluster: "d".into(), address }, None);
    assert_eq!(a.quic.expected(&"d-1".into()), None);
    assert_eq!(shared.cluster_at(at_b), Some("c".into()));
    assert_eq!(shared.cluster_at(elsewhere), None, "two clusters are at this host");
    a.send(&b, Class::Control, "x").unwrap();
    until("x", || b.log.bodies(Class::Control).len() == 1).await;
    a.close().await;
    b.close().await;
}

#[tokio::test]
async fn both_sides_dial_at_once_and_one_connection_stays() {
    let ca = grid();
    for round in 0..30u64 {
        let (a, b) = (Node::new(&ca, "a"), Node::new(&ca, "b"));
        a.knows(&b);
        b.knows(&a);
        for n in numbered(0..50) {
            a.send(&b, Class::Steal, n.clone()).unwrap();
            b.send(&a, Class::Steal, n).unwrap();
            if round % 3 == 1 {
                tokio::task::yield_now().await;
            }
        }
        until("all frames", || {
            [&a, &b].iter().all(|node| node.log.bodies(Class::Steal).len() == 50)
        })
        .await;
        until("one connection", || a.open_connections() == 1 && b.open_connections() == 1).await;
        for node in [&a, &b] {
            assert_eq!(node.log.bodies(Class::Steal), numbered(0..50), "round {round}");
            assert_eq!((node.log.ups(), node.log.downs()), (1, 0), "round {round}");
        }
        a.close().await;
        b.close().await;
    }
}

#[tokio::test]
async fn what_is_queued_is_sent_before_the_end_and_the_reason_is_told() {
    let ca = grid();
    let (a, b) = (Node::new(&ca, "a"), Node::new(&ca, "b"));
    a.knows(&b);
    a.send(&b, Class::Control, "first").unwrap();
    until("up", || b.log.ups() == 1).await;
    for class in CLASSES {
        for n in numbered(0..2000) {
            a.send(&b, class, n).unwrap();
        }
    }
    a.quic.close("maintenance");
    assert_eq!(a.send(&b, Class::Control, "late"), Err(SendError::Closed));
    a.quic.closed().await;
    until("down", || b.log.downs() == 1).await;
    assert_eq!(b.log.bodies(Class::Control).len(), 2001);
    assert_eq!(b.log.bodies(Class::Steal), numbered(0..2000));
    assert_eq!(b.log.bodies(Class::Bulk), numbered(0..2000));
    let last = b.log.all().pop().unwrap();
    let why = "the peer says goodbye: maintenance".to_owned();
    assert_eq!(last, Told::Down("c/a".into(), 1, why), "down comes last");
    b.close().await;
}

#[tokio::test]
async fn a_flooded_queue_is_bounded_and_its_sender_told_when_there_is_room() {
    let ca = grid();
    let config = NetConfig { queue_frames: 100, queue_bytes: 64 << 10, ..NetConfig::default() };
    let (a, b) = (Node::open(&ca, "a", 1, config), Node::new(&ca, "b"));
    a.knows(&b);
    let mut sent = Vec::new();
    // Nothing is awaited, so nothing can leave meanwhile.
    for n in numbered(0..1000) {
        match a.send(&b, Class::Steal, n.clone()) {
            Ok(()) => sent.push(n),
            Err(error) => assert_eq!(error, SendError::Full(b.id().clone())),
        }
    }
    assert_eq!(sent.len(), 100);
    assert_eq!(a.quic.room(b.id(), Class::Steal), 0);
    assert_eq!(a.quic.room(b.id(), Class::Control), 64 << 10);
    assert_eq!(a.quic.links()[0].classes[&Class::Steal].full, 900);
    until("room", || a.log.count(|told| *told == Told::Drained(Class::Steal)) == 1).await;
    until("all", || b.log.bodies(Class::Steal).len() == 100).await;
    assert_eq!(b.log.bodies(Class::Steal), sent);
    assert_eq!(a.quic.room(b.id(), Class::Steal), 64 << 10);
    a.close().await;
    b.close().await;
}

#[tokio::test]
async fn a_broken_connection_is_replaced_and_what_was_queued_meanwhile_arrives() {
    let ca = grid();
    let (a, b) = (Node::new(&ca, "a"), Node::new(&ca, "b"));
    a.knows(&b);
    for round in 1..=5 {
        a.send(&b, Class::Control, format!("before {round}")).unwrap();
        let wanted = Bytes::from(format!("before {round}"));
        until("before", || b.log.bodies(Class::Control).contains(&wanted)).await;
        let entry = a.quic.0.find(b.id()).unwrap();
        for slot in entry.lock().conns.values() {
            let Slot::Live(live) = slot else { panic!("not in use") };
            live.conn.close(VarInt::from_u32(77), b"cut");
        }
        until("down at both", || a.log.downs() == round && b.log.downs() == round).await;
        // Both queue, both dial, one connection stays.
        a.send(&b, Class::Control, format!("after {round}")).unwrap();
        b.send(&a, Class::Control, format!("after {round}")).unwrap();
        let wanted = Bytes::from(format!("after {round}"));
        until("after", || {
            [&a, &b].iter().all(|node| node.log.bodies(Class::Control).contains(&wanted))
        })
        .await;
    }
    assert_eq!(a.quic.links()[0].reconnects, 5);
    assert_eq!((a.log.ups(), b.log.ups()), (6, 6));
    a.close().await;
    b.close().await;
}

#[tokio::test]
async fn a_later_life_replaces_an_earlier_one_which_is_then_refused() {
    let ca = grid();
    let a = Node::new(&ca, "a");
    let old = Node::open(&ca, "b", 10, NetConfig::default());
    a.knows(&old);
    a.send(&old, Class::Control, "to the old").unwrap();
    until("up", || a.log.ups() == 1 && old.log.bodies(Class::Control).len() == 1).await;

    // The old one hangs: it has not said goodbye when the new one is there.
    let new = Node::open(&ca, "b", 11, NetConfig::default());
    new.knows(&a);
    new.send(&a, Class::Control, "from the new").unwrap();
    until("from the new", || a.log.bodies(Class::Control).len() == 1).await;
    let told: Vec<Told> =
        a.log.all().into_iter().filter(|t| matches!(t, Told::Up(..) | Told::Down(..))).collect();
    assert_eq!(
        told,
        [
            Told::Up("c/b".into(), 10),
            Told::Down("c/b".into(), 10, "the node began a new life".into()),
            Told::Up("c/b".into(), 11),
        ]
    );
    // The old one wakes up and tries again.
    until("the old one is cut off", || old.log.downs() == 1).await;
    old.send(&a, Class::Control, "from the old").unwrap();
    until("refused", || a.refused(RefuseReason::StaleIncarnation) > 0).await;
    let given_back = Told::Undelivered(Class::Control, Bytes::from("from the old"));
    until("given back", || old.log.count(|told| *told == given_back) == 1).await;
    assert_eq!(a.log.bodies(Class::Control).len(), 1);
    // It hears what it would have to exceed.
    let superseded = Told::Superseded("a".into(), Some(Incarnation(11)));
    assert_eq!(old.log.count(|told| *told == superseded), 1);
    for node in [&a, &old, &new] {
        node.close().await;
    }
}

/// A peer whose directory was lost comes with an earlier number than a node remembers.
#[tokio::test]
async fn an_earlier_number_of_a_node_is_forgotten_by_nodes_alone_and_that_of_a_head_by_all() {
    let ca = grid();
    for (forgets_nodes, role, forgotten) in
        [(true, "node", true), (false, "node", false), (false, "head", true)]
    {
        let config = NetConfig { forgets_nodes, ..NetConfig::default() };
        let a = Node::open(&ca, "a", 1, config);
        let b = |incarnation| {
            Node::of_role(role, &ca, ("b", "c"), incarnation, NetConfig::default(), plain)
        };
        let first = b(11);
        a.knows(&first);
        a.send(&first, Class::Control, "to the first").unwrap();
        until("up", || a.log.ups() == 1).await;
        first.close().await;
        until("down", || a.log.downs() == 1).await;
        let again = b(10);
        again.knows(&a);
        again.send(&a, Class::Control, "too early").unwrap();
        let superseded = Told::Superseded("a".into(), Some(Incarnation(11)));
        until("refused", || again.log.count(|told| *told == superseded) == 1).await;
        a.quic.age_links(Duration::from_secs(61));
        again.send(&a, Class::Control, "later").unwrap();
        match forgotten {
            true => until("welcome", || a.log.bodies(Class::Control).len() == 1).await,
            false => until("refused", || again.log.count(|told| *told == superseded) == 2).await,
        }
        a.close().await;
        again.close().await;
    }
}

/// The link to a dead life would swallow what is sent until the idle timeout.
#[tokio::test]
async fn a_node_that_moved_is_dialled_anew_and_gets_what_was_queued() {
    for life in [None, Some(Incarnation(11))] {
        let ca = grid();
        let a = Node::new(&ca, "a");
        let old = Node::open(&ca, "b", 10, NetConfig::default());
        a.knows(&old);
        a.send(&old, Class::Control, "to the old").unwrap();
        until("up", || a.log.ups() == 1 && old.log.bodies(Class::Control).len() == 1).await;
        let new = Node::open(&ca, "b", 11, NetConfig::default());
        // Nothing is awaited here, so nothing can leave meanwhile.
        a.send(&old, Class::Control, "before").unwrap();
        a.send(&old, Class::Bulk, "a part").unwrap();
        a.quic.learn(new.contact(), life);
        a.send(&new, Class::Control, "after").unwrap();
        until("both at the new", || new.log.bodies(Class::Control).len() == 2).await;
        assert_eq!(new.log.bodies(Class::Control), ["before", "after"]);
        assert!(new.log.bodies(Class::Bulk).is_empty());
        assert_eq!(old.log.bodies(Class::Control).len(), 1);
        let why = "the node is now elsewhere".to_owned();
        let told = [
            Told::Up("c/b".into(), 10),
            Told::Down("c/b".into(), 10, why),
            Told::Undelivered(Class::Bulk, "a part".into()),
            Told::Up("c/b".into(), 11),
        ];
        assert_eq!(a.log.all(), told);
        // Old news, and other ways to the life that is there, change nothing.
        a.quic.learn(old.contact(), Some(Incarnation(10)));
        a.quic.learn(old.contact(), Some(Incarnation(11)));
        a.quic.learn(new.contact(), Some(Incarnation(11)));
        a.send(&new, Class::Control, "still").unwrap();
        until("still", || new.log.bodies(Class::Control).len() == 3).await;
        assert_eq!((a.log.ups(), a.log.downs()), (2, 1));
        for node in [&a, &old, &new] {
            node.close().await;
        }
    }
}

#[tokio::test]
async fn a_dial_to_where_a_node_was_does_not_hold_it_up() {
    let ca = grid();
    let (a, b) = (Node::new(&ca, "a"), Node::new(&ca, "b"));
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = Address::Socket(silent.local_addr().unwrap());
    a.quic.learn(Contact { address, ..b.contact() }, None);
    a.send(&b, Class::Steal, "x").unwrap();
    assert_eq!(a.quic.links()[0].state, LinkState::Connecting);
    a.knows(&b);
    until("x", || b.log.bodies(Class::Steal).len() == 1).await;
    assert_eq!((a.log.ups(), a.log.downs()), (1, 0));
    a.close().await;
    b.close().await;
}

#[tokio::test]
async fn a_node_that_cannot_be_reached_is_down_and_what_was_queued_comes_back() {
    let ca = grid();
    let config =
        NetConfig { connect_timeout_ms: 50, attempts: 2, backoff_ms: 1, ..NetConfig::default() };
    let a = Node::open(&ca, "a", 1, config);
    assert_eq!(
        a.quic.send(&"b".into(), Class::Bulk, Frame::new(Kind::TELL, "x")),
        Err(SendError::Unknown("b".into()))
    );
    // A socket that never answers.
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = Address::Socket(silent.local_addr().unwrap());
    a.quic.learn(Contact { node: "b".into(), cluster: "c".into(), address }, None);
    for body in ["one", "two"] {
        a.quic.send(&"b".into(), Class::Steal, Frame::new(Kind::TELL, body)).unwrap();
    }
    let back = |body| Told::Undelivered(Class::Steal, Bytes::from(body));
    until("given back", || a.log.count(|told| *told == back("two")) == 1).await;
    let why = "no answer within 50 ms".to_owned();
    assert_eq!(a.log.all(), [Told::Down("c/b".into(), 0, why), back("one"), back("two")]);
    let stats = &a.quic.links()[0];
    assert_eq!((stats.state, stats.classes[&Class::Steal].dropped), (LinkState::Idle, 2));

    a.quic.forget(&"b".into());
    until("forgotten", || {
        let sent = a.quic.send(&"b".into(), Class::Steal, Frame::new(Kind::TELL, "x"));
        sent == Err(SendError::Unknown("b".into()))
    })
    .await;
    a.close().await;
}

#[tokio::test]
async fn a_forgotten_node_is_cut_off() {
    let ca = grid();
    let (a, b) = (Node::new(&ca, "a"), Node::new(&ca, "b"));
    a.knows(&b);
    a.send(&b, Class::Control, "x").unwrap();
    until("up", || a.log.ups() == 1 && b.log.ups() == 1).await;
    a.quic.forget(b.id());
    until("down", || a.log.downs() == 1 && b.log.downs() == 1).await;
    assert_eq!(a.send(&b, Class::Control, "y"), Err(SendError::Unknown(b.id().clone())));
    a.close().await;
    b.close().await;
}

#[tokio::test]
async fn closing_is_quick_whatever_is_under_way() {
    let ca = grid();
    let a = Node::new(&ca, "a");
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = Address::Socket(silent.local_addr().unwrap());
    a.quic.learn(Contact { node: "b".into(), cluster: "c".into(), address }, None);
    a.quic.send(&"b".into(), Class::Steal, Frame::new(Kind::TELL, "x")).unwrap();
    tokio::time::sleep(Duration::from_millis(5)).await;
    a.close().await;
    assert_eq!(
        a.quic.send(&"b".into(), Class::Steal, Frame::new(Kind::TELL, "x")),
        Err(SendError::Closed)
    );
}

#[tokio::test]
async fn frames_can_be_sent_from_other_threads() {
    let ca = grid();
    let (a, b) = (Node::new(&ca, "a"), Node::new(&ca, "b"));
    a.knows(&b);
    let (quic, to) = (Arc::new(a.quic), b.id().clone());
    let threads: Vec<_> = (0..4u32)
        .map(|thread| {
            let (quic, to) = (quic.clone(), to.clone());
            std::thread::spawn(move || {
                for n in numbered(thread * 1000..thread * 1000 + 1000) {
                    quic.send(&to, Class::Steal, Frame::new(Kind::TELL, n)).unwrap();
                }
            })
        })
        .collect();
    until("all", || b.log.bodies(Class::Steal).len() == 4000).await;
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let mut got = b.log.bodies(Class::Steal);
    for thread in 0..4u32 {
        let range = thread * 1000..thread * 1000 + 1000;
        let of = |body: &&Bytes| range.contains(&u32::from_le_bytes(body[..].try_into().unwrap()));
        let own: Vec<Bytes> = got.iter().filter(of).cloned().collect();
        assert_eq!(own, numbered(range.clone()), "each thread's order is kept");
    }
    got.sort();
    got.dedup();
    assert_eq!(got.len(), 4000);
    quic.close("done");
    quic.closed().await;
    b.close().await;
}

/// A peer that is not one of ours: a bare quinn endpoint with a certificate, or none, of the test's choice.
struct Stranger {
    endpoint: Endpoint,
}

impl Stranger {
    fn new(tls: rustls::ClientConfig) -> Self {
        let mut endpoint = Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
        let crypto = QuicClientConfig::try_from(tls).unwrap();
        endpoint.set_default_client_config(quinn::ClientConfig::new(Arc::new(crypto)));
        Self { endpoint }
    }

    fn of(ca: &Ca, name: &str) -> rustls::ClientConfig {
        let identity = ca.issue(&name.into(), &"c".into(), "node", EPHEMERAL_VALIDITY).unwrap();
        identity.client_config().unwrap()
    }

    async fn connect(&self, node: &Node) -> Result<Connection, quinn::ConnectionError> {
        let Address::Socket(address) = node.quic.address() else { panic!() };
        self.endpoint.connect(address, crate::net::tls::SERVER_NAME).unwrap().await
    }

    /// Says a frame on the control stream and returns the kind of the answer, or none when cut off.
    async fn say(&self, node: &Node, frame: &Frame) -> Option<(Connection, SendStream, Kind)> {
        let conn = self.connect(node).await.ok()?;
        let (mut send, mut recv) = conn.open_bi().await.ok()?;
        send.write_all(&frame.header()).await.ok()?;
        send.write_all(&frame.body).await.ok()?;
        let mut header = [0; wire::HEADER_LEN];
        recv.read_exact(&mut header).await.ok()?;
        Some((conn, send, wire::Header::parse(&header).ok()?.kind))
    }
}

fn hello(name: &str) -> Hello {
    Hello {
        protocol_min: 1,
        protocol_max: 1,
        grid: "test".into(),
        node: name.into(),
        incarnation: Incarnation(5),
        cluster: "c".into(),
        address: None,
        dial: 1,
    }
}

fn said(hello: &Hello) -> Frame {
    handshake::message(Kind::HELLO, hello)
}

/// Every refusal is seen at the side that refuses, with its reason, and not a word of it reaches the user.
#[tokio::test]
async fn strangers_are_refused_and_counted_by_reason() {
    let ca = grid();
    let node = Node::new(&ca, "a");
    let refused = async |reason| {
        until(&format!("{reason:?}"), || node.refused(reason) == 1).await;
        let all: u64 = node.quic.refused().values().sum();
        all
    };

    let no_certificate = {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = rustls::RootCertStore::empty();
        use rustls::pki_types::pem::PemObject as _;
        let cert = rustls::pki_types::CertificateDer::from_pem_slice(ca.cert_pem().as_bytes());
        roots.add(cert.unwrap()).unwrap();
        let mut tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        tls.alpn_protocols = vec![crate::net::tls::ALPN.to_vec()];
        tls
    };
    let stranger = Stranger::new(no_certificate);
    assert!(stranger.say(&node, &said(&hello("b"))).await.is_none());
    assert_eq!(refused(RefuseReason::NoCertificate).await, 1);

    // A certificate of another authority of the same grid name, shown to ours: the stranger trusts our authority.
    let foreign = {
        let theirs = Ca::ephemeral("test").unwrap();
        let mixed = theirs.issue(&"b".into(), &"c".into(), "node", EPHEMERAL_VALIDITY).unwrap();
        mixed.with_authority(ca.cert_pem()).client_config().unwrap()
    };
    assert!(Stranger::new(foreign).say(&node, &said(&hello("b"))).await.is_none());
    assert_eq!(refused(RefuseReason::ForeignCa).await, 2);

    let mut other_protocol = Stranger::of(&ca, "b");
    other_protocol.alpn_protocols = vec![b"springtide/2".to_vec()];
    assert!(Stranger::new(other_protocol).say(&node, &said(&hello("b"))).await.is_none());
    assert_eq!(refused(RefuseReason::Alpn).await, 3);

    let stranger = Stranger::new(Stranger::of(&ca, "b"));
    let cases = [
        (RefuseReason::Protocol, Hello { protocol_min: 2, protocol_max: 3, ..hello("b") }),
        (RefuseReason::Grid, Hello { grid: "another".into(), ..hello("b") }),
        (RefuseReason::Identity, hello("z")),
    ];
    for (i, (reason, hello)) in cases.iter().enumerate() {
        let (.., answer) = stranger.say(&node, &said(hello)).await.expect("the refusal is said");
        assert_eq!(answer, Kind::REFUSE, "{reason:?}");
        assert_eq!(refused(*reason).await, 4 + i as u64);
    }

    let not_a_hello = Frame::new(Kind::TELL, "let me in");
    assert!(stranger.say(&node, &not_a_hello).await.is_none());
    assert_eq!(refused(RefuseReason::BadHello).await, 7);
    let nonsense = Frame::new(Kind::HELLO, &[0xc1; 50][..]);
    assert!(stranger.say(&node, &nonsense).await.is_none());
    until("bad hello", || node.refused(RefuseReason::BadHello) == 2).await;

    assert_eq!(node.log.all(), []);
    assert!(node.quic.links().is_empty());

    // The same stranger, honest now, is welcome; an earlier life of it is not.
    let (welcome, _control, answer) = stranger.say(&node, &said(&hello("b"))).await.unwrap();
    assert_eq!(answer, Kind::WELCOME);
    let earlier = Hello { incarnation: Incarnation(4), dial: 2, ..hello("b") };
    let (.., answer) = stranger.say(&node, &said(&earlier)).await.unwrap();
    assert_eq!(answer, Kind::REFUSE);
    until("stale", || node.refused(RefuseReason::StaleIncarnation) == 1).await;
    assert_eq!(node.log.all(), [Told::Up("c/b".into(), 5)]);
    drop(welcome);
    node.close().await;
}

#[tokio::test]
async fn the_calling_side_refuses_too() {
    let (ca, other) = (grid(), Ca::ephemeral("test").unwrap());
    let a = Node::new(&ca, "a");
    let foreign = Node::new(&other, "b");
    a.knows(&foreign);
    a.send(&foreign, Class::Control, "secret").unwrap();
    until("foreign", || a.refused(RefuseReason::ForeignCa) == 1).await;
    until("given back", || a.log.downs() == 1).await;

    // At the address of d lives c.
    let c = Node::new(&ca, "c");
    a.quic.learn(Contact { node: "d".into(), ..c.contact() }, None);
    a.quic.send(&"d".into(), Class::Control, Frame::new(Kind::TELL, "for d alone")).unwrap();
    until("another node", || a.refused(RefuseReason::Identity) == 1).await;
    until("given back", || a.log.downs() == 2).await;
    assert_eq!(c.log.all(), []);
    assert_eq!(foreign.log.all(), []);
    for node in [&a, &foreign, &c] {
        node.close().await;
    }
}

#[tokio::test]
async fn a_peer_that_breaks_the_protocol_loses_its_link_and_unknown_kinds_are_skipped() {
    let ca = grid();
    let node = Node::new(&ca, "a");
    let raw = |frame: &Frame| [&frame.header()[..], &frame.body[..]].concat();
    let unknown = [&[3, 0, 0, 0, 0xe7, 3, 1, 0][..], b"???"].concat();
    let breaks: [&[u8]; 4] = [
        &[1, 0, 0, 0, 18, 0, 9, 0, 0],             // another wire version
        &[0xff, 0xff, 0xff, 0xff, 18, 0, 1, 0],    // over the cap
        &raw(&said(&hello("b"))),                  // a hello inside a link
        &raw(&Frame::new(Kind::GOODBYE, "\u{1}")), // a goodbye that cannot be decoded
    ];
    for (i, bytes) in breaks.iter().enumerate() {
        // Each of them another node, for a third strike would be one too many.
        let name = format!("b{i}");
        let stranger = Stranger::new(Stranger::of(&ca, &name));
        let hello = hello(&name);
        let (conn, mut control, _) = stranger.say(&node, &said(&hello)).await.unwrap();
        control.write_all(&unknown).await.unwrap();
        control.write_all(&raw(&Frame::new(Kind::TELL, "known"))).await.unwrap();
        until("known", || node.log.bodies(Class::Control).len() == i + 1).await;
        let _ = control.write_all(bytes).await;
        until("cut off", || node.log.downs() == i + 1).await;
        let reason = conn.closed().await;
        let quinn::ConnectionError::ApplicationClosed(close) = reason else { panic!("{reason:?}") };
        assert_eq!(close.error_code, Code::Protocol.into());
    }
    let counts: Vec<_> =
        node.quic.links().iter().map(|link| (link.unknown_kinds, link.strikes)).collect();
    assert_eq!(counts, [(1, 1); 4]);
    node.close().await;
}

#[tokio::test]
async fn mistakes_in_the_settings_are_named() {
    let ca = grid();
    let identity = ca.issue(&"a".into(), &"c".into(), "node", EPHEMERAL_VALIDITY).unwrap();
    let open = |config| {
        Quic::open(config, &identity, Incarnation(1), plain, Arc::new(Log::default())).map(drop)
    };
    let holder = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let taken = holder.local_addr().unwrap();
    let config = NetConfig { bind: taken, ..NetConfig::default() };
    let text = open(config).unwrap_err().to_string();
    assert!(text.contains(&taken.to_string()) && text.contains("choose another"), "{text}");
    let ports = Some((taken.port(), taken.port()));
    let text = open(NetConfig { ports, ..NetConfig::default() }).unwrap_err().to_string();
    assert!(text.contains(&taken.port().to_string()), "{text}");
    let ports = Some((taken.port(), taken.port().saturating_add(50)));
    open(NetConfig { ports, ..NetConfig::default() }).unwrap();
    let text = open(NetConfig { bind: "0.0.0.0:0".parse().unwrap(), ..NetConfig::default() });
    let text = text.unwrap_err().to_string();
    assert!(text.contains("advertise"), "{text}");
}

/// A user that answers from within what it is told: no lock may be held meanwhile.
#[tokio::test]
async fn the_user_may_send_from_within_an_event() {
    struct Echo {
        quic: Mutex<Option<std::sync::Weak<Quic>>>,
        heard: AtomicUsize,
    }
    impl Echo {
        fn send(&self, to: &NodeId, body: &'static str) {
            let quic = self.quic.lock().unwrap().as_ref().and_then(std::sync::Weak::upgrade);
            let _ = quic.unwrap().send(to, Class::Control, Frame::new(Kind::TELL, body));
        }
    }
    impl Events for Echo {
        fn frame(&self, from: &Peer, _: Class, frame: Frame) {
            self.heard.fetch_add(1, Ordering::SeqCst);
            if &frame.body[..] == b"ping" {
                self.send(&from.node, "pong");
            }
        }
        fn up(&self, peer: &Peer) {
            self.send(&peer.node, "ping");
        }
        fn down(&self, peer: &Peer, _: &Why) {
            self.send(&peer.node, "still there?");
        }
        fn drained(&self, _: &NodeId, _: Class) {}
        fn undelivered(&self, to: &NodeId, _: Class, _: Frame) {
            self.send(to, "once more");
        }
    }
    let ca = grid();
    let nodes: Vec<_> = ["a", "b"]
        .iter()
        .map(|name| {
            let identity = ca.issue(&(*name).into(), &"c".into(), "node", EPHEMERAL_VALIDITY);
            let echo = Arc::new(Echo { quic: Mutex::default(), heard: AtomicUsize::new(0) });
            let config = NetConfig::default();
            let quic = Quic::open(config, &identity.unwrap(), Incarnation(1), plain, echo.clone());
            let quic = Arc::new(quic.unwrap());
            *echo.quic.lock().unwrap() = Some(Arc::downgrade(&quic));
            quic.start();
            (quic, echo)
        })
        .collect();
    let (a, b) = (&nodes[0], &nodes[1]);
    let me = b.0.me().clone();
    a.0.learn(Contact { node: me.node, cluster: me.cluster, address: b.0.address() }, None);
    a.0.send(&"b".into(), Class::Control, Frame::new(Kind::TELL, "ping")).unwrap();
    // a hears b's ping and one pong; b hears two pings and the pong to its own.
    until("echoes", || {
        a.1.heard.load(Ordering::SeqCst) >= 3 && b.1.heard.load(Ordering::SeqCst) >= 3
    })
    .await;
    for (quic, _) in &nodes {
        quic.close("done");
        quic.closed().await;
    }
}

/// What a slow link carries before two nodes have said anything: with hundreds of pairs over an uplink of 100 kB/s it decides.
#[tokio::test]
async fn a_link_costs_a_few_packets() {
    let ca = grid();
    let (a, b) = (Node::new(&ca, "a"), Node::new(&ca, "b"));
    a.knows(&b);
    a.send(&b, Class::Steal, "x").unwrap();
    until("the frame", || b.log.bodies(Class::Steal).len() == 1).await;
    let stats = |node: &Node| {
        let entry = node.quic.0.peers.read().unwrap().values().next().unwrap().clone();
        let live = entry.lock().live().next().cloned();
        live.map(|live| live.conn.stats()).unwrap_or_default()
    };
    // The last of it: larger packets were tried.
    until("the packet size", || [&a, &b].iter().all(|n| stats(n).path.current_mtu > 1300)).await;
    for node in [&a, &b] {
        let stats = stats(node);
        println!("{}: {:?}, {:?}", node.id(), stats.udp_tx, stats.path);
        assert!(stats.udp_tx.bytes < 8000, "{:?}", stats.udp_tx);
        assert_eq!(stats.path.current_mtu, 1452);
    }
    a.close().await;
    b.close().await;
}
