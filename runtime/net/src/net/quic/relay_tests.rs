//! Tests of endpoints on loopback, some of which cannot reach each other: datagrams between them
//! are dropped.

use std::collections::BTreeSet;
use std::net::UdpSocket;

use super::super::tests::{QuicNode, grid, numbered, until};
use super::super::{CLASSES, plain_socket};
use super::*;
use crate::net::tls::Ca;
use crate::net::{Address, Contact, IDLE_TIMEOUT, NetConfig, Transport};
use crate::wire::golden;

fn secs(s: u64) -> Duration {
    Duration::from_secs(s)
}

fn names(relays: &[(&str, &str)]) -> BTreeMap<ClusterId, NodeId> {
    relays.iter().map(|(cluster, node)| (ClusterId::from(*cluster), NodeId::from(*node))).collect()
}

#[test]
fn golden_bytes() {
    let datagram = Bytes::from_static(&[0x40, 1, 2, 3]);
    let relayed = RelayedDatagram { to: "b-1".into(), from: "a-1".into(), hops: 1, datagram };
    golden::check(env!("CARGO_MANIFEST_DIR"), Kind::RELAY, "plain", &relayed);
}

#[test]
fn stand_in_addresses_are_distinguished_from_real_ones() {
    for mapped in [false, true] {
        assert_eq!(number(address(7, mapped)), Some(7));
    }
    for real in ["127.0.0.1:1", "10.0.0.1:7400", "239.255.255.255:1", "[::1]:1", "[2001:db8::1]:1"]
    {
        assert!(!is_stand_in(real.parse().unwrap()), "{real}");
    }
}

#[test]
fn direct_and_relayed_attempts_alternate_until_one_succeeds() {
    let (node, cluster) = (NodeId::from("b-2"), ClusterId::from("b"));
    let mut routes = Routes::default();
    routes.set_relays(&names(&[("b", "b-1")]));
    assert!(!routes.needs_relay(&node, &cluster, secs(0)), "directly first");
    routes.record_attempt(&node, &cluster, false, false, secs(5));
    assert!(routes.needs_relay(&node, &cluster, secs(5)));
    routes.record_attempt(&node, &cluster, true, false, secs(10));
    assert!(!routes.needs_relay(&node, &cluster, secs(10)), "then directly again");
    routes.record_attempt(&node, &cluster, false, false, secs(15));
    routes.record_attempt(&node, &cluster, true, true, secs(16));
    assert!(routes.needs_relay(&node, &cluster, secs(100)));
    assert!(!routes.needs_relay(&node, &cluster, secs(137)), "it may have become reachable");
}

#[test]
fn the_route_of_one_node_applies_to_its_cluster_except_its_relay() {
    let (b2, b3, b1) = (NodeId::from("b-2"), NodeId::from("b-3"), NodeId::from("b-1"));
    let b = ClusterId::from("b");
    let mut routes = Routes::default();
    routes.set_relays(&names(&[("b", "b-1")]));
    routes.record_attempt(&b2, &b, false, false, secs(5));
    assert!(!routes.needs_relay(&b3, &b, secs(5)), "a node that does not answer may be dead");
    routes.record_attempt(&b2, &b, true, true, secs(6));
    assert!(routes.needs_relay(&b3, &b, secs(6)));
    assert!(!routes.needs_relay(&b1, &b, secs(6)));
    routes.record_attempt(&b3, &b, false, true, secs(200));
    let b4 = NodeId::from("b-4");
    assert!(!routes.needs_relay(&b4, &b, secs(7)), "a node was reached directly since");
}

fn quick() -> NetConfig {
    NetConfig { connect_timeout_ms: 400, backoff_ms: 10, ..NetConfig::default() }
}

/// Pairs of nodes that cannot reach each other in either direction.
#[derive(Clone, Default)]
struct BlockedPairs {
    pairs: Arc<Mutex<BTreeSet<(SocketAddr, SocketAddr)>>>,
    nodes: Arc<Mutex<BTreeMap<String, SocketAddr>>>,
}

impl BlockedPairs {
    fn open(&self, ca: &Ca, name: &str, cluster: &str) -> QuicNode {
        self.open_with(ca, name, cluster, quick())
    }

    fn open_with(&self, ca: &Ca, name: &str, cluster: &str, config: NetConfig) -> QuicNode {
        let blocked = self.clone();
        let node = QuicNode::over(ca, name, cluster, 1, config, move |socket: UdpSocket| {
            let me = socket.local_addr()?;
            Ok(Arc::new(FilteredSocket { inner: plain_socket(socket)?, me, blocked }))
        });
        let Address::Socket(address) = node.quic.address() else { panic!() };
        self.nodes.lock().unwrap().insert(name.to_owned(), address);
        node
    }

    fn block(&self, one: &str, other: &str) {
        let nodes = self.nodes.lock().unwrap();
        let mut pairs = self.pairs.lock().unwrap();
        pairs.extend([(nodes[one], nodes[other]), (nodes[other], nodes[one])]);
    }
}

struct FilteredSocket {
    inner: Arc<dyn AsyncUdpSocket>,
    me: SocketAddr,
    blocked: BlockedPairs,
}

impl fmt::Debug for FilteredSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FilteredSocket")
    }
}

impl AsyncUdpSocket for FilteredSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        self.inner.clone().create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        assert!(!is_stand_in(transmit.destination), "the system cannot reach a stand-in address");
        if self.blocked.pairs.lock().unwrap().contains(&(self.me, transmit.destination)) {
            return Ok(());
        }
        self.inner.try_send(transmit)
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        self.inner.poll_recv(cx, bufs, meta)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.inner.max_transmit_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.inner.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.inner.may_fragment()
    }
}

/// Announces all nodes to each other, and the relay of each cluster.
fn introduce(nodes: &[&QuicNode], relays: &[(&str, &str)]) {
    for one in nodes {
        one.quic.set_relays(&names(relays));
        nodes.iter().filter(|other| other.id() != one.id()).for_each(|other| one.learn(other));
    }
}

fn is_relayed(node: &QuicNode, to: &QuicNode) -> bool {
    node.quic.links().iter().any(|link| link.peer.node == *to.id() && link.relayed)
}

/// Sends frames of all classes in both directions, as over any link.
async fn exchange_frames(a: &QuicNode, b: &QuicNode, frames: u32) {
    for (from, to) in [(a, b), (b, a)] {
        for class in CLASSES {
            for body in numbered(0..frames) {
                from.send(to, class, body).unwrap();
            }
        }
        for class in CLASSES {
            until("all frames", || to.log.bodies(class).len() >= frames as usize).await;
            assert_eq!(to.log.bodies(class), numbered(0..frames), "in order, once");
        }
    }
}

#[tokio::test]
async fn two_unreachable_nodes_communicate_through_a_coordinator() {
    let (ca, blocked) = (grid(), BlockedPairs::default());
    let open = |name: &str| blocked.open(&ca, name, &name[..1]);
    let (a, relay, b, c) = (open("a-1"), open("b-1"), open("b-2"), open("b-3"));
    blocked.block("a-1", "b-2");
    blocked.block("a-1", "b-3");
    introduce(&[&a, &relay, &b, &c], &[("b", "b-1")]);
    exchange_frames(&a, &b, 2000).await;
    assert!(is_relayed(&a, &b) && is_relayed(&b, &a));
    assert!(relay.quic.relayed_datagrams() > 50, "{}", relay.quic.relayed_datagrams());
    for class in CLASSES {
        let read = relay.log.bodies(class);
        assert!(read.is_empty(), "a relay must not read the relayed data: {read:?}");
    }
    // The route applies to the whole cluster, without a failing direct attempt first.
    a.send(&c, Class::Steal, "x").unwrap();
    until("a frame", || c.log.bodies(Class::Steal).len() == 1).await;
    assert!(is_relayed(&a, &c) && !is_relayed(&a, &relay));
    assert_eq!((a.log.downs(), b.log.downs()), (0, 0));
    // Goodbyes arrive as well, before the idle timeout.
    let closed = tokio::time::Instant::now();
    b.close().await;
    until("the goodbye", || a.log.downs() == 1).await;
    assert!(closed.elapsed() < IDLE_TIMEOUT, "{:?}", closed.elapsed());
    for node in [&a, &relay, &c] {
        node.close().await;
    }
}

/// Both sides connect simultaneously. The side whose attempt would stay cannot reach the other,
/// which need not wait for its failure.
#[tokio::test]
async fn a_relayed_connection_does_not_wait_for_a_direct_attempt_that_fails() {
    let (ca, blocked) = (grid(), BlockedPairs::default());
    let patient = |name: &str, connect_timeout_ms| {
        blocked.open_with(&ca, name, &name[..1], NetConfig { connect_timeout_ms, ..quick() })
    };
    let (a, relay, b) = (patient("a-1", 60_000), patient("c-1", 400), patient("b-1", 400));
    blocked.block("a-1", "b-1");
    introduce(&[&a, &relay, &b], &[("c", "c-1")]);
    a.send(&b, Class::Steal, "x").unwrap();
    b.send(&a, Class::Steal, "y").unwrap();
    until("both frames", || {
        a.log.bodies(Class::Steal).len() == 1 && b.log.bodies(Class::Steal).len() == 1
    })
    .await;
    assert!(is_relayed(&a, &b));
    for node in [&a, &relay, &b] {
        node.close().await;
    }
}

#[tokio::test]
async fn nodes_of_two_private_clusters_communicate_through_both_coordinators() {
    let (ca, blocked) = (grid(), BlockedPairs::default());
    let open = |name: &str| blocked.open(&ca, name, &name[..1]);
    let (a, a_relay, b_relay, b) = (open("a-2"), open("a-1"), open("b-1"), open("b-2"));
    blocked.block("a-2", "b-2");
    blocked.block("a-2", "b-1");
    blocked.block("a-1", "b-2");
    introduce(&[&a, &a_relay, &b_relay, &b], &[("a", "a-1"), ("b", "b-1")]);
    exchange_frames(&a, &b, 200).await;
    assert!(is_relayed(&a, &b) && is_relayed(&b, &a));
    assert!(a_relay.quic.relayed_datagrams() > 10 && b_relay.quic.relayed_datagrams() > 10);
    for node in [&a, &b, &a_relay, &b_relay] {
        node.close().await;
    }
}

#[tokio::test]
async fn a_third_cluster_relays_between_two_disconnected_ones() {
    let (ca, blocked) = (grid(), BlockedPairs::default());
    let open = |name: &str| blocked.open(&ca, name, &name[..1]);
    let (a_relay, a, b_relay, b, c) =
        (open("a-1"), open("a-2"), open("b-1"), open("b-2"), open("c-1"));
    for (from, to) in [("a-1", "b-1"), ("a-1", "b-2"), ("a-2", "b-1"), ("a-2", "b-2")] {
        blocked.block(from, to);
    }
    let relays = [("a", "a-1"), ("b", "b-1"), ("c", "c-1")];
    introduce(&[&a_relay, &a, &b_relay, &b, &c], &relays);
    exchange_frames(&a, &b, 200).await;
    exchange_frames(&a_relay, &b_relay, 200).await;
    assert!(is_relayed(&a, &b) && is_relayed(&a_relay, &b_relay));
    assert!(c.quic.relayed_datagrams() > 20, "{}", c.quic.relayed_datagrams());
    for node in [&a, &b, &a_relay, &b_relay, &c] {
        node.close().await;
    }
}

#[tokio::test]
async fn a_node_with_a_relay_in_its_address_is_reached_immediately() {
    let (ca, blocked) = (grid(), BlockedPairs::default());
    let open = |name: &str| blocked.open(&ca, name, &name[..1]);
    let (a, relay, b) = (open("a-1"), open("b-1"), open("b-2"));
    blocked.block("a-1", "b-2");
    a.learn(&relay);
    relay.learn(&b);
    let address = Address::Relayed(relay.id().clone());
    a.quic.learn(Contact { address, ..b.contact() }, None);
    exchange_frames(&a, &b, 20).await;
    assert!(is_relayed(&a, &b));
    for node in [&a, &b, &relay] {
        node.close().await;
    }
}

#[tokio::test]
async fn without_a_route_the_link_fails_and_no_datagram_circulates() {
    let (ca, blocked) = (grid(), BlockedPairs::default());
    let open = |name: &str| blocked.open(&ca, name, &name[..1]);
    let (a, a_relay, b_relay, b) = (open("a-2"), open("a-1"), open("b-1"), open("b-2"));
    for node in ["a-2", "a-1", "b-1"] {
        blocked.block(node, "b-2");
    }
    introduce(&[&a, &a_relay, &b_relay, &b], &[("a", "a-1"), ("b", "b-1")]);
    a.send(&b, Class::Steal, "x").unwrap();
    until("down", || a.log.downs() == 1).await;
    let forwarded = a_relay.quic.relayed_datagrams() + b_relay.quic.relayed_datagrams();
    assert!(forwarded < 200, "{forwarded} datagrams were forwarded for a few attempts");
    for node in [&a, &b, &a_relay, &b_relay] {
        node.close().await;
    }
}
