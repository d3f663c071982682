//! Tests of endpoints on loopback, each in one process and one thread. Timeouts serve only to end
//! failing tests.

use std::sync::atomic::AtomicUsize;

use bytes::Bytes;
use quinn::crypto::rustls::QuicClientConfig;

use super::*;
use crate::net::LinkError;
use crate::net::hello::Hello;
use crate::net::tls::{Ca, EPHEMERAL_VALIDITY};
use crate::wire::{self, Kind};

const LONG: Duration = Duration::from_secs(30);

/// An event that an endpoint reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reported {
    Up(String, u64),
    Frame(String, Class, Bytes),
    Down(String, u64, String),
    Drained(Class),
    Undelivered(Class, Bytes),
    Superseded(String, Option<Incarnation>),
}

#[derive(Default)]
pub(super) struct ReportedEvents(Mutex<Vec<Reported>>);

impl ReportedEvents {
    fn push(&self, reported: Reported) {
        self.0.lock().unwrap().push(reported);
    }

    fn all(&self) -> Vec<Reported> {
        self.0.lock().unwrap().clone()
    }

    pub fn bodies(&self, class: Class) -> Vec<Bytes> {
        let pick = |reported| match reported {
            Reported::Frame(_, c, body) if c == class => Some(body),
            _ => None,
        };
        self.all().into_iter().filter_map(pick).collect()
    }

    fn count(&self, wanted: impl Fn(&Reported) -> bool) -> usize {
        self.0.lock().unwrap().iter().filter(|reported| wanted(reported)).count()
    }

    pub fn downs(&self) -> usize {
        self.count(|reported| matches!(reported, Reported::Down(..)))
    }

    fn ups(&self) -> usize {
        self.count(|reported| matches!(reported, Reported::Up(..)))
    }
}

impl Events for ReportedEvents {
    fn frame(&self, from: &Peer, class: Class, frame: Frame) {
        self.push(Reported::Frame(from.to_string(), class, frame.body));
    }
    fn up(&self, peer: &Peer) {
        self.push(Reported::Up(peer.to_string(), peer.incarnation.0));
    }
    fn down(&self, peer: &Peer, why: &LinkError) {
        self.push(Reported::Down(peer.to_string(), peer.incarnation.0, why.text.clone()));
    }
    fn drained(&self, _to: &NodeId, class: Class) {
        self.push(Reported::Drained(class));
    }
    fn superseded(&self, peer: &NodeId, known: Option<Incarnation>) {
        self.push(Reported::Superseded(peer.to_string(), known));
    }
    fn undelivered(&self, _to: &NodeId, class: Class, frame: Frame) {
        self.push(Reported::Undelivered(class, frame.body));
    }
}

pub(super) struct QuicNode {
    pub quic: Quic,
    pub log: Arc<ReportedEvents>,
}

impl QuicNode {
    fn open(ca: &Ca, name: &str, incarnation: u64, config: NetConfig) -> Self {
        Self::over(ca, name, "c", incarnation, config, plain_socket)
    }

    pub fn over(
        ca: &Ca,
        name: &str,
        cluster: &str,
        incarnation: u64,
        config: NetConfig,
        wrap: impl FnOnce(UdpSocket) -> io::Result<Arc<dyn quinn::AsyncUdpSocket>>,
    ) -> Self {
        Self::of_role("node", ca, name, cluster, incarnation, config, wrap)
    }

    fn of_role(
        role: &str,
        ca: &Ca,
        name: &str,
        cluster: &str,
        incarnation: u64,
        config: NetConfig,
        wrap: impl FnOnce(UdpSocket) -> io::Result<Arc<dyn quinn::AsyncUdpSocket>>,
    ) -> Self {
        let identity = ca.issue(&name.into(), &cluster.into(), role, EPHEMERAL_VALIDITY).unwrap();
        let log = Arc::new(ReportedEvents::default());
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

    pub fn learn(&self, other: &QuicNode) {
        self.quic.learn(other.contact(), None);
    }

    pub fn id(&self) -> &NodeId {
        &self.quic.me().node
    }

    pub fn send(
        &self,
        to: &QuicNode,
        class: Class,
        body: impl Into<Bytes>,
    ) -> Result<(), SendError> {
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
    let (a, b) = (QuicNode::new(&ca, "a"), QuicNode::new(&ca, "b"));
    a.learn(&b);
    let sizes = [0, 1, 7, 100, 1400, 4095, 4096, 20_000, wire::INLINE_MAX];
    let body = |i: usize| Bytes::from(vec![i as u8; sizes[i % sizes.len()]]);
    let bodies: Vec<Bytes> = (0..90).map(body).collect();
    for class in CLASSES {
        bodies.iter().for_each(|body| a.send(&b, class, body.clone()).unwrap());
    }
    until("all at b", || CLASSES.iter().all(|c| b.log.bodies(*c).len() == 90)).await;
    // b has no contact of a: it replies over the link that a opened.
    for class in CLASSES {
        bodies.iter().for_each(|body| b.send(&a, class, body.clone()).unwrap());
    }
    until("all at a", || CLASSES.iter().all(|c| a.log.bodies(*c).len() == 90)).await;
    for (node, other) in [(&a, "c/b"), (&b, "c/a")] {
        assert_eq!(node.log.all()[0], Reported::Up(other.into(), 1), "up comes first");
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
async fn the_policy_of_a_cluster_applies_to_its_nodes_only() {
    let ca = grid();
    let policy = LinkPolicy { rtt_ms: 20.0, bandwidth: 1e6, ..LinkPolicy::default() };
    let links = [(ClusterId::from("c"), policy)].into();
    let a = QuicNode::open(&ca, "a", 1, NetConfig { links, ..NetConfig::default() });
    let (b, shared) = (QuicNode::new(&ca, "b"), &a.quic.0);
    let Address::Socket(at_b) = b.quic.address() else { panic!() };
    assert_eq!((a.quic.expected(b.id()), shared.cluster_at(at_b)), (None, None), "not known");
    a.learn(&b);
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
async fn simultaneous_attempts_end_in_one_connection() {
    let ca = grid();
    for round in 0..30u64 {
        let (a, b) = (QuicNode::new(&ca, "a"), QuicNode::new(&ca, "b"));
        a.learn(&b);
        b.learn(&a);
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
async fn closing_sends_queued_frames_and_reports_the_reason() {
    let ca = grid();
    let (a, b) = (QuicNode::new(&ca, "a"), QuicNode::new(&ca, "b"));
    a.learn(&b);
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
    assert_eq!(last, Reported::Down("c/a".into(), 1, why), "down comes last");
    b.close().await;
}

#[tokio::test]
async fn a_full_queue_refuses_frames_and_reports_free_space() {
    let ca = grid();
    let config = NetConfig { queue_frames: 100, queue_bytes: 64 << 10, ..NetConfig::default() };
    let (a, b) = (QuicNode::open(&ca, "a", 1, config), QuicNode::new(&ca, "b"));
    a.learn(&b);
    let mut sent = Vec::new();
    // Without an await no frame can leave in the meantime.
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
    until("room", || a.log.count(|reported| *reported == Reported::Drained(Class::Steal)) == 1)
        .await;
    until("all", || b.log.bodies(Class::Steal).len() == 100).await;
    assert_eq!(b.log.bodies(Class::Steal), sent);
    assert_eq!(a.quic.room(b.id(), Class::Steal), 64 << 10);
    a.close().await;
    b.close().await;
}

#[tokio::test]
async fn a_broken_connection_is_replaced_and_queued_frames_arrive() {
    let ca = grid();
    let (a, b) = (QuicNode::new(&ca, "a"), QuicNode::new(&ca, "b"));
    a.learn(&b);
    for round in 1..=5 {
        a.send(&b, Class::Control, format!("before {round}")).unwrap();
        let wanted = Bytes::from(format!("before {round}"));
        until("before", || b.log.bodies(Class::Control).contains(&wanted)).await;
        let entry = a.quic.0.find(b.id()).unwrap();
        for slot in entry.lock().conns.values() {
            let ConnState::InUse(live) = slot else { panic!("not in use") };
            live.conn.close(VarInt::from_u32(77), b"cut");
        }
        until("down at both", || a.log.downs() == round && b.log.downs() == round).await;
        // Both sides queue and connect; one connection stays.
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
async fn a_later_incarnation_replaces_an_earlier_one_which_is_then_refused() {
    let ca = grid();
    let a = QuicNode::new(&ca, "a");
    let old = QuicNode::open(&ca, "b", 10, NetConfig::default());
    a.learn(&old);
    a.send(&old, Class::Control, "to the old").unwrap();
    until("up", || a.log.ups() == 1 && old.log.bodies(Class::Control).len() == 1).await;

    // The old process hangs: it has not said goodbye when the new one starts.
    let new = QuicNode::open(&ca, "b", 11, NetConfig::default());
    new.learn(&a);
    new.send(&a, Class::Control, "from the new").unwrap();
    until("from the new", || a.log.bodies(Class::Control).len() == 1).await;
    let reported: Vec<Reported> = a
        .log
        .all()
        .into_iter()
        .filter(|t| matches!(t, Reported::Up(..) | Reported::Down(..)))
        .collect();
    assert_eq!(
        reported,
        [
            Reported::Up("c/b".into(), 10),
            Reported::Down("c/b".into(), 10, "the node has a new incarnation".into()),
            Reported::Up("c/b".into(), 11),
        ]
    );
    // The old process resumes and tries again.
    until("the old one is disconnected", || old.log.downs() == 1).await;
    old.send(&a, Class::Control, "from the old").unwrap();
    until("refused", || a.refused(RefuseReason::StaleIncarnation) > 0).await;
    let returned = Reported::Undelivered(Class::Control, Bytes::from("from the old"));
    until("returned", || old.log.count(|reported| *reported == returned) == 1).await;
    assert_eq!(a.log.bodies(Class::Control).len(), 1);
    // The refusal names the incarnation that it would have to exceed.
    let superseded = Reported::Superseded("a".into(), Some(Incarnation(11)));
    assert_eq!(old.log.count(|reported| *reported == superseded), 1);
    for node in [&a, &old, &new] {
        node.close().await;
    }
}

/// A peer that lost its directory presents an earlier incarnation than a node remembers.
#[tokio::test]
async fn nodes_forget_the_incarnation_of_a_node_and_all_forget_that_of_a_head() {
    let ca = grid();
    for (forgets_nodes, role, forgotten) in
        [(true, "node", true), (false, "node", false), (false, "head", true)]
    {
        let config = NetConfig { forgets_nodes, ..NetConfig::default() };
        let a = QuicNode::open(&ca, "a", 1, config);
        let b = |incarnation| {
            QuicNode::of_role(role, &ca, "b", "c", incarnation, NetConfig::default(), plain_socket)
        };
        let first = b(11);
        a.learn(&first);
        a.send(&first, Class::Control, "to the first").unwrap();
        until("up", || a.log.ups() == 1).await;
        first.close().await;
        until("down", || a.log.downs() == 1).await;
        let again = b(10);
        again.learn(&a);
        again.send(&a, Class::Control, "too early").unwrap();
        let superseded = Reported::Superseded("a".into(), Some(Incarnation(11)));
        until("refused", || again.log.count(|reported| *reported == superseded) == 1).await;
        a.quic.age_links(Duration::from_secs(61));
        again.send(&a, Class::Control, "later").unwrap();
        if forgotten {
            until("welcome", || a.log.bodies(Class::Control).len() == 1).await;
        } else {
            until("refused", || again.log.count(|reported| *reported == superseded) == 2).await;
        }
        a.close().await;
        again.close().await;
    }
}

/// The link to a dead process would absorb frames until the idle timeout.
#[tokio::test]
async fn a_moved_node_is_contacted_again_and_gets_the_queued_frames() {
    for incarnation in [None, Some(Incarnation(11))] {
        let ca = grid();
        let a = QuicNode::new(&ca, "a");
        let old = QuicNode::open(&ca, "b", 10, NetConfig::default());
        a.learn(&old);
        a.send(&old, Class::Control, "to the old").unwrap();
        until("up", || a.log.ups() == 1 && old.log.bodies(Class::Control).len() == 1).await;
        let new = QuicNode::open(&ca, "b", 11, NetConfig::default());
        // Without an await no frame can leave in the meantime.
        a.send(&old, Class::Control, "before").unwrap();
        a.send(&old, Class::Bulk, "a part").unwrap();
        a.quic.learn(new.contact(), incarnation);
        a.send(&new, Class::Control, "after").unwrap();
        until("both at the new", || new.log.bodies(Class::Control).len() == 2).await;
        assert_eq!(new.log.bodies(Class::Control), ["before", "after"]);
        assert!(new.log.bodies(Class::Bulk).is_empty());
        assert_eq!(old.log.bodies(Class::Control).len(), 1);
        let why = "the node is now elsewhere".to_owned();
        let reported = [
            Reported::Up("c/b".into(), 10),
            Reported::Down("c/b".into(), 10, why),
            Reported::Undelivered(Class::Bulk, "a part".into()),
            Reported::Up("c/b".into(), 11),
        ];
        assert_eq!(a.log.all(), reported);
        // Outdated contacts, and other addresses of the current incarnation, change nothing.
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
async fn an_attempt_to_an_old_address_does_not_delay_the_new_one() {
    let ca = grid();
    let (a, b) = (QuicNode::new(&ca, "a"), QuicNode::new(&ca, "b"));
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = Address::Socket(silent.local_addr().unwrap());
    a.quic.learn(Contact { address, ..b.contact() }, None);
    a.send(&b, Class::Steal, "x").unwrap();
    assert_eq!(a.quic.links()[0].state, LinkState::Connecting);
    a.learn(&b);
    until("x", || b.log.bodies(Class::Steal).len() == 1).await;
    assert_eq!((a.log.ups(), a.log.downs()), (1, 0));
    a.close().await;
    b.close().await;
}

#[tokio::test]
async fn an_unreachable_node_is_reported_down_and_queued_frames_return() {
    let ca = grid();
    let config =
        NetConfig { connect_timeout_ms: 50, attempts: 2, backoff_ms: 1, ..NetConfig::default() };
    let a = QuicNode::open(&ca, "a", 1, config);
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
    let back = |body| Reported::Undelivered(Class::Steal, Bytes::from(body));
    until("returned", || a.log.count(|reported| *reported == back("two")) == 1).await;
    let why = "no answer within 50 ms".to_owned();
    assert_eq!(a.log.all(), [Reported::Down("c/b".into(), 0, why), back("one"), back("two")]);
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
async fn a_forgotten_node_is_disconnected() {
    let ca = grid();
    let (a, b) = (QuicNode::new(&ca, "a"), QuicNode::new(&ca, "b"));
    a.learn(&b);
    a.send(&b, Class::Control, "x").unwrap();
    until("up", || a.log.ups() == 1 && b.log.ups() == 1).await;
    a.quic.forget(b.id());
    until("down", || a.log.downs() == 1 && b.log.downs() == 1).await;
    assert_eq!(a.send(&b, Class::Control, "y"), Err(SendError::Unknown(b.id().clone())));
    a.close().await;
    b.close().await;
}

#[tokio::test]
async fn closing_is_quick_during_an_attempt() {
    let ca = grid();
    let a = QuicNode::new(&ca, "a");
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
    let (a, b) = (QuicNode::new(&ca, "a"), QuicNode::new(&ca, "b"));
    a.learn(&b);
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

/// A peer without this program: a quinn endpoint with a certificate of the test's choice, or none.
struct RawClient {
    endpoint: Endpoint,
}

impl RawClient {
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

    async fn connect(&self, node: &QuicNode) -> Result<Connection, quinn::ConnectionError> {
        let Address::Socket(address) = node.quic.address() else { panic!() };
        self.endpoint.connect(address, crate::net::tls::SERVER_NAME).unwrap().await
    }

    /// Sends a frame on the control stream and returns the kind of the reply, or `None` if the
    /// connection is closed.
    async fn exchange(
        &self,
        node: &QuicNode,
        frame: &Frame,
    ) -> Option<(Connection, SendStream, Kind)> {
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

fn hello_frame(hello: &Hello) -> Frame {
    handshake::message(Kind::HELLO, hello)
}

/// The refusing side counts every refusal with its reason, and reports no event to the user.
#[tokio::test]
async fn foreign_clients_are_refused_and_counted_by_reason() {
    let ca = grid();
    let node = QuicNode::new(&ca, "a");
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
    let client = RawClient::new(no_certificate);
    assert!(client.exchange(&node, &hello_frame(&hello("b"))).await.is_none());
    assert_eq!(refused(RefuseReason::NoCertificate).await, 1);

    // A certificate of another authority with the same grid name; the client itself trusts our
    // authority.
    let foreign = {
        let theirs = Ca::ephemeral("test").unwrap();
        let mixed = theirs.issue(&"b".into(), &"c".into(), "node", EPHEMERAL_VALIDITY).unwrap();
        mixed.with_authority(ca.cert_pem()).client_config().unwrap()
    };
    assert!(RawClient::new(foreign).exchange(&node, &hello_frame(&hello("b"))).await.is_none());
    assert_eq!(refused(RefuseReason::ForeignCa).await, 2);

    let mut other_protocol = RawClient::of(&ca, "b");
    other_protocol.alpn_protocols = vec![b"springtide/2".to_vec()];
    assert!(
        RawClient::new(other_protocol).exchange(&node, &hello_frame(&hello("b"))).await.is_none()
    );
    assert_eq!(refused(RefuseReason::Alpn).await, 3);

    let client = RawClient::new(RawClient::of(&ca, "b"));
    let cases = [
        (RefuseReason::Protocol, Hello { protocol_min: 2, protocol_max: 3, ..hello("b") }),
        (RefuseReason::Grid, Hello { grid: "another".into(), ..hello("b") }),
        (RefuseReason::Identity, hello("z")),
    ];
    for (i, (reason, hello)) in cases.iter().enumerate() {
        let (.., answer) =
            client.exchange(&node, &hello_frame(hello)).await.expect("the refusal is sent");
        assert_eq!(answer, Kind::REFUSE, "{reason:?}");
        assert_eq!(refused(*reason).await, 4 + i as u64);
    }

    let not_a_hello = Frame::new(Kind::TELL, "let me in");
    assert!(client.exchange(&node, &not_a_hello).await.is_none());
    assert_eq!(refused(RefuseReason::BadHello).await, 7);
    let nonsense = Frame::new(Kind::HELLO, &[0xc1; 50][..]);
    assert!(client.exchange(&node, &nonsense).await.is_none());
    until("bad hello", || node.refused(RefuseReason::BadHello) == 2).await;

    assert_eq!(node.log.all(), []);
    assert!(node.quic.links().is_empty());

    // The same client with a valid hello is accepted; an earlier incarnation of it is not.
    let (welcome, _control, answer) =
        client.exchange(&node, &hello_frame(&hello("b"))).await.unwrap();
    assert_eq!(answer, Kind::WELCOME);
    let earlier = Hello { incarnation: Incarnation(4), dial: 2, ..hello("b") };
    let (.., answer) = client.exchange(&node, &hello_frame(&earlier)).await.unwrap();
    assert_eq!(answer, Kind::REFUSE);
    until("stale", || node.refused(RefuseReason::StaleIncarnation) == 1).await;
    assert_eq!(node.log.all(), [Reported::Up("c/b".into(), 5)]);
    drop(welcome);
    node.close().await;
}

#[tokio::test]
async fn the_connecting_side_refuses_as_well() {
    let (ca, other) = (grid(), Ca::ephemeral("test").unwrap());
    let a = QuicNode::new(&ca, "a");
    let foreign = QuicNode::new(&other, "b");
    a.learn(&foreign);
    a.send(&foreign, Class::Control, "secret").unwrap();
    until("foreign", || a.refused(RefuseReason::ForeignCa) == 1).await;
    until("returned", || a.log.downs() == 1).await;

    // The address of d belongs to c.
    let c = QuicNode::new(&ca, "c");
    a.quic.learn(Contact { node: "d".into(), ..c.contact() }, None);
    a.quic.send(&"d".into(), Class::Control, Frame::new(Kind::TELL, "for d alone")).unwrap();
    until("another node", || a.refused(RefuseReason::Identity) == 1).await;
    until("returned", || a.log.downs() == 2).await;
    assert_eq!(c.log.all(), []);
    assert_eq!(foreign.log.all(), []);
    for node in [&a, &foreign, &c] {
        node.close().await;
    }
}

#[tokio::test]
async fn a_protocol_violation_closes_the_link_and_unknown_kinds_are_skipped() {
    let ca = grid();
    let node = QuicNode::new(&ca, "a");
    let raw = |frame: &Frame| [&frame.header()[..], &frame.body[..]].concat();
    let unknown = [&[3, 0, 0, 0, 0xe7, 3, 1, 0][..], b"???"].concat();
    let breaks: [&[u8]; 4] = [
        &[1, 0, 0, 0, 18, 0, 9, 0, 0],             // another wire version
        &[0xff, 0xff, 0xff, 0xff, 18, 0, 1, 0],    // over the cap
        &raw(&hello_frame(&hello("b"))),           // a hello inside a link
        &raw(&Frame::new(Kind::GOODBYE, "\u{1}")), // a goodbye that cannot be decoded
    ];
    for (i, bytes) in breaks.iter().enumerate() {
        // Each case uses another node name, because a third strike leads to a ban.
        let name = format!("b{i}");
        let client = RawClient::new(RawClient::of(&ca, &name));
        let hello = hello(&name);
        let (conn, mut control, _) = client.exchange(&node, &hello_frame(&hello)).await.unwrap();
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
async fn errors_in_the_settings_are_named() {
    let ca = grid();
    let identity = ca.issue(&"a".into(), &"c".into(), "node", EPHEMERAL_VALIDITY).unwrap();
    let open = |config| {
        Quic::open(
            config,
            &identity,
            Incarnation(1),
            plain_socket,
            Arc::new(ReportedEvents::default()),
        )
        .map(drop)
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

/// A user that sends from within an event: no lock may be held during the call.
#[tokio::test]
async fn the_user_may_send_from_within_an_event() {
    struct Echo {
        quic: Mutex<Option<std::sync::Weak<Quic>>>,
        received: AtomicUsize,
    }
    impl Echo {
        fn send(&self, to: &NodeId, body: &'static str) {
            let quic = self.quic.lock().unwrap().as_ref().and_then(std::sync::Weak::upgrade);
            let _ = quic.unwrap().send(to, Class::Control, Frame::new(Kind::TELL, body));
        }
    }
    impl Events for Echo {
        fn frame(&self, from: &Peer, _: Class, frame: Frame) {
            self.received.fetch_add(1, Ordering::SeqCst);
            if &frame.body[..] == b"ping" {
                self.send(&from.node, "pong");
            }
        }
        fn up(&self, peer: &Peer) {
            self.send(&peer.node, "ping");
        }
        fn down(&self, peer: &Peer, _: &LinkError) {
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
            let echo = Arc::new(Echo { quic: Mutex::default(), received: AtomicUsize::new(0) });
            let config = NetConfig::default();
            let quic =
                Quic::open(config, &identity.unwrap(), Incarnation(1), plain_socket, echo.clone());
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
    // a receives b's ping and one pong; b receives two pings and the pong to its own.
    until("echoes", || {
        a.1.received.load(Ordering::SeqCst) >= 3 && b.1.received.load(Ordering::SeqCst) >= 3
    })
    .await;
    for (quic, _) in &nodes {
        quic.close("done");
        quic.closed().await;
    }
}

/// The bytes of a new link before any payload. With hundreds of pairs over an uplink of 100 kB/s
/// they are decisive.
#[tokio::test]
async fn a_link_costs_a_few_packets() {
    let ca = grid();
    let (a, b) = (QuicNode::new(&ca, "a"), QuicNode::new(&ca, "b"));
    a.learn(&b);
    a.send(&b, Class::Steal, "x").unwrap();
    until("the frame", || b.log.bodies(Class::Steal).len() == 1).await;
    let stats = |node: &QuicNode| {
        let entry = node.quic.0.peers.read().unwrap().values().next().unwrap().clone();
        let live = entry.lock().live().next().cloned();
        live.map(|live| live.conn.stats()).unwrap_or_default()
    };
    // The last step: larger packets were probed.
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
