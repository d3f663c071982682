//! Real endpoints on loopback, some of which cannot reach each other: what they send there is dropped.

use std::collections::BTreeSet;
use std::net::UdpSocket;

use super::super::tests::{Node, grid, numbered, until};
use super::super::{CLASSES, plain};
use super::*;
use crate::net::tls::Ca;
use crate::net::{Address, Contact, IDLE_TIMEOUT, NetConfig, Transport};
use crate::wire::golden;

fn secs(s: u64) -> Duration {
    Duration::from_secs(s)
}

fn names(gates: &[(&str, &str)]) -> BTreeMap<ClusterId, NodeId> {
    gates.iter().map(|(cluster, node)| (ClusterId::from(*cluster), NodeId::from(*node))).collect()
}

#[test]
fn golden_bytes() {
    let datagram = Bytes::from_static(&[0x40, 1, 2, 3]);
    let parcel = Parcel { to: "b-1".into(), from: "a-1".into(), hops: 1, datagram };
    golden::check(env!("CARGO_MANIFEST_DIR"), Kind::RELAY, "plain", &parcel);
}

#[test]
fn stand_ins_are_told_from_addresses() {
    for mapped in [false, true] {
        assert_eq!(number(address(7, mapped)), Some(7));
    }
    for real in ["127.0.0.1:1", "10.0.0.1:7400", "239.255.255.255:1", "[::1]:1", "[2001:db8::1]:1"]
    {
        assert!(!is_stand_in(real.parse().unwrap()), "{real}");
    }
}

#[test]
fn a_node_is_tried_turn_by_turn_until_one_way_works() {
    let (node, cluster) = (NodeId::from("b-2"), ClusterId::from("b"));
    let b2 = (&node, &cluster);
    let mut ways = Ways::default();
    ways.set_gates(&names(&[("b", "b-1")]));
    assert!(!ways.wants_gate(&node, &cluster, secs(0)), "directly first");
    ways.tried(b2, false, false, secs(5));
    assert!(ways.wants_gate(&node, &cluster, secs(5)));
    ways.tried(b2, true, false, secs(10));
    assert!(!ways.wants_gate(&node, &cluster, secs(10)), "then directly again");
    ways.tried(b2, false, false, secs(15));
    ways.tried(b2, true, true, secs(16));
    assert!(ways.wants_gate(&node, &cluster, secs(100)));
    assert!(!ways.wants_gate(&node, &cluster, secs(137)), "it may have become reachable");
}

#[test]
fn what_was_learned_of_one_node_holds_for_its_cluster_but_not_for_its_gate() {
    let (b2, b3, b1) = (NodeId::from("b-2"), NodeId::from("b-3"), NodeId::from("b-1"));
    let b = ClusterId::from("b");
    let mut ways = Ways::default();
    ways.set_gates(&names(&[("b", "b-1")]));
    ways.tried((&b2, &b), false, false, secs(5));
    assert!(!ways.wants_gate(&b3, &b, secs(5)), "one that does not answer may be dead");
    ways.tried((&b2, &b), true, true, secs(6));
    assert!(ways.wants_gate(&b3, &b, secs(6)));
    assert!(!ways.wants_gate(&b1, &b, secs(6)));
    ways.tried((&b3, &b), false, true, secs(200));
    assert!(!ways.wants_gate(&NodeId::from("b-4"), &b, secs(7)), "one was reached directly since");
}

fn quick() -> NetConfig {
    NetConfig { connect_timeout_ms: 400, backoff_ms: 10, ..NetConfig::default() }
}

/// Pairs that cannot reach each other, either way, by name.
#[derive(Clone, Default)]
struct Walls {
    pairs: Arc<Mutex<BTreeSet<(SocketAddr, SocketAddr)>>>,
    nodes: Arc<Mutex<BTreeMap<String, SocketAddr>>>,
}

impl Walls {
    fn open(&self, ca: &Ca, name: &str, cluster: &str) -> Node {
        self.open_with(ca, name, cluster, quick())
    }

    fn open_with(&self, ca: &Ca, name: &str, cluster: &str, config: NetConfig) -> Node {
        let walls = self.clone();
        let node = Node::over(ca, (name, cluster), 1, config, move |socket: UdpSocket| {
            let me = socket.local_addr()?;
            Ok(Arc::new(Walled { inner: plain(socket)?, me, walls }))
        });
        let Address::Socket(address) = node.quic.address() else { panic!() };
        self.nodes.lock().unwrap().insert(name.to_owned(), address);
        node
    }

    fn between(&self, one: &str, other: &str) {
        let nodes = self.nodes.lock().unwrap();
        let mut pairs = self.pairs.lock().unwrap();
        pairs.extend([(nodes[one], nodes[other]), (nodes[other], nodes[one])]);
    }
}

struct Walled {
    inner: Arc<dyn AsyncUdpSocket>,
    me: SocketAddr,
    walls: Walls,
}

impl fmt::Debug for Walled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Walled")
    }
}

impl AsyncUdpSocket for Walled {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        self.inner.clone().create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        assert!(
            !is_stand_in(transmit.destination),
            "a stand-in is nothing that the system could reach"
        );
        if self.walls.pairs.lock().unwrap().contains(&(self.me, transmit.destination)) {
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

/// All know each other, and who speaks for which cluster.
fn introduce(nodes: &[&Node], gates: &[(&str, &str)]) {
    for one in nodes {
        one.quic.gates(&names(gates));
        nodes.iter().filter(|other| other.id() != one.id()).for_each(|other| one.knows(other));
    }
}

fn is_relayed(node: &Node, to: &Node) -> bool {
    node.quic.links().iter().any(|link| link.peer.node == *to.id() && link.relayed)
}

/// Frames of all classes both ways, as over any link.
async fn talk(a: &Node, b: &Node, frames: u32) {
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
async fn two_nodes_that_cannot_reach_each_other_talk_through_the_others_coordinator() {
    let (ca, walls) = (grid(), Walls::default());
    let open = |name: &str| walls.open(&ca, name, &name[..1]);
    let (a, gate, b, c) = (open("a-1"), open("b-1"), open("b-2"), open("b-3"));
    walls.between("a-1", "b-2");
    walls.between("a-1", "b-3");
    introduce(&[&a, &gate, &b, &c], &[("b", "b-1")]);
    talk(&a, &b, 2000).await;
    assert!(is_relayed(&a, &b) && is_relayed(&b, &a));
    assert!(gate.quic.passed_on() > 50, "{}", gate.quic.passed_on());
    for class in CLASSES {
        let read = gate.log.bodies(class);
        assert!(read.is_empty(), "what is in them is not the gate's to know: {read:?}");
    }
    // What was learned holds for the cluster: nobody waits for an attempt that fails.
    a.send(&c, Class::Steal, "x").unwrap();
    until("a frame", || c.log.bodies(Class::Steal).len() == 1).await;
    assert!(is_relayed(&a, &c) && !is_relayed(&a, &gate));
    assert_eq!((a.log.downs(), b.log.downs()), (0, 0));
    // And goodbyes arrive: nobody waits until a link is silent for too long.
    let closed = tokio::time::Instant::now();
    b.close().await;
    until("the goodbye", || a.log.downs() == 1).await;
    assert!(closed.elapsed() < IDLE_TIMEOUT, "{:?}", closed.elapsed());
    for node in [&a, &gate, &c] {
        node.close().await;
    }
}

/// Both call at once, and the one whose dial would stay cannot reach the other: it does not make that one wait for its failure.
#[tokio::test]
async fn who_comes_through_a_gate_is_not_kept_waiting_for_a_dial_that_fails() {
    let (ca, walls) = (grid(), Walls::default());
    let patient = |name: &str, connect_timeout_ms| {
        walls.open_with(&ca, name, &name[..1], NetConfig { connect_timeout_ms, ..quick() })
    };
    let (a, gate, b) = (patient("a-1", 60_000), patient("c-1", 400), patient("b-1", 400));
    walls.between("a-1", "b-1");
    introduce(&[&a, &gate, &b], &[("c", "c-1")]);
    a.send(&b, Class::Steal, "x").unwrap();
    b.send(&a, Class::Steal, "y").unwrap();
    until("both frames", || {
        a.log.bodies(Class::Steal).len() == 1 && b.log.bodies(Class::Steal).len() == 1
    })
    .await;
    assert!(is_relayed(&a, &b));
    for node in [&a, &gate, &b] {
        node.close().await;
    }
}

#[tokio::test]
async fn nodes_of_two_private_clusters_talk_through_both_coordinators() {
    let (ca, walls) = (grid(), Walls::default());
    let open = |name: &str| walls.open(&ca, name, &name[..1]);
    let (a, a_gate, b_gate, b) = (open("a-2"), open("a-1"), open("b-1"), open("b-2"));
    walls.between("a-2", "b-2");
    walls.between("a-2", "b-1");
    walls.between("a-1", "b-2");
    introduce(&[&a, &a_gate, &b_gate, &b], &[("a", "a-1"), ("b", "b-1")]);
    talk(&a, &b, 200).await;
    assert!(is_relayed(&a, &b) && is_relayed(&b, &a));
    assert!(a_gate.quic.passed_on() > 10 && b_gate.quic.passed_on() > 10);
    for node in [&a, &b, &a_gate, &b_gate] {
        node.close().await;
    }
}

#[tokio::test]
async fn a_cut_between_two_clusters_is_gone_round() {
    let (ca, walls) = (grid(), Walls::default());
    let open = |name: &str| walls.open(&ca, name, &name[..1]);
    let (a_gate, a, b_gate, b, c) =
        (open("a-1"), open("a-2"), open("b-1"), open("b-2"), open("c-1"));
    for (from, to) in [("a-1", "b-1"), ("a-1", "b-2"), ("a-2", "b-1"), ("a-2", "b-2")] {
        walls.between(from, to);
    }
    let gates = [("a", "a-1"), ("b", "b-1"), ("c", "c-1")];
    introduce(&[&a_gate, &a, &b_gate, &b, &c], &gates);
    talk(&a, &b, 200).await;
    talk(&a_gate, &b_gate, 200).await;
    assert!(is_relayed(&a, &b) && is_relayed(&a_gate, &b_gate));
    assert!(c.quic.passed_on() > 20, "{}", c.quic.passed_on());
    for node in [&a, &b, &a_gate, &b_gate, &c] {
        node.close().await;
    }
}

#[tokio::test]
async fn a_node_that_says_through_whom_it_is_reached_is_reached_so_at_once() {
    let (ca, walls) = (grid(), Walls::default());
    let open = |name: &str| walls.open(&ca, name, &name[..1]);
    let (a, gate, b) = (open("a-1"), open("b-1"), open("b-2"));
    walls.between("a-1", "b-2");
    a.knows(&gate);
    gate.knows(&b);
    let address = Address::Via(gate.id().clone());
    a.quic.learn(Contact { address, ..b.contact() }, None);
    talk(&a, &b, 20).await;
    assert!(is_relayed(&a, &b));
    for node in [&a, &b, &gate] {
        node.close().await;
    }
}

#[tokio::test]
async fn without_a_way_it_is_told_and_no_parcel_goes_in_circles() {
    let (ca, walls) = (grid(), Walls::default());
    let open = |name: &str| walls.open(&ca, name, &name[..1]);
    let (a, a_gate, b_gate, b) = (open("a-2"), open("a-1"), open("b-1"), open("b-2"));
    for node in ["a-2", "a-1", "b-1"] {
        walls.between(node, "b-2");
    }
    introduce(&[&a, &a_gate, &b_gate, &b], &[("a", "a-1"), ("b", "b-1")]);
    a.send(&b, Class::Steal, "x").unwrap();
    until("it is given up", || a.log.downs() == 1).await;
    let on = a_gate.quic.passed_on() + b_gate.quic.passed_on();
    assert!(on < 200, "{on} parcels were passed on for a few attempts");
    for node in [&a, &b, &a_gate, &b_gate] {
        node.close().await;
    }
}
