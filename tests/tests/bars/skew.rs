//! Versions: neighbouring versions share a grid, others are refused, and both sides get both
//! versions (bar 10).
//!
//! There is one minor version so far. So this build plays the former one, with nodes that claim
//! another version in addition. The agreed version, and the frames of the links, differ between
//! them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::Command;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use quinn::crypto::rustls::QuicServerConfig;
use quinn::{Connection, Endpoint};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use springtide_classics::Queens;
use springtide_runtime::id::{Incarnation, NodeId, Peer};
use springtide_runtime::meter::Statistics;
use springtide_runtime::net::tls::{ALPN, Ca, EPHEMERAL_VALIDITY, NodeIdentity, VERSIONS_ALPN};
use springtide_runtime::net::{
    Address, Class, Contact, LinkError, LinkUnit, Net, NetConfig, NetworkHandler, Protocols,
    RefuseReason,
};
use springtide_runtime::wire::{self, Frame, HEADER_LEN, Header, Kind};
use springtide_runtime::work::{Job, PoolConfig, Registry, encode_job, solo};
use springtide_simulator::{SimulatedGrid, simulate};
use springtide_tests::virtual_grid::{VirtualGridConfig, run_scripted};
use tokio::time::{Instant, sleep, timeout};

use super::odd::{Hello, client, say_hello};
use super::{LONG, loopback, ms};
use crate::simulated;

/// The versions of this build, and of one with another minor version in addition.
const FORMER: Protocols = Protocols { min: 1, max: 1 };
const LATER: Protocols = Protocols { min: 1, max: 2 };
/// Versions that have nothing in common with this build.
const TWO_LATER: Protocols = Protocols { min: 2, max: 3 };

const NEXT_MAJOR: &[u8] = b"springtide/2";

fn alone<J: Job + Clone>(job: &J) -> u64 {
    let mut registry = Registry::new();
    registry.job::<J>();
    let body = encode_job(job.clone()).unwrap();
    let alone = solo::run(Arc::new(registry), J::NAME, body, &PoolConfig::default(), |_| {});
    alone.unwrap().outcome.unwrap().checksum
}

fn later() -> LinkUnit {
    LinkUnit::Quic(Box::new(NetConfig { protocols: LATER, ..NetConfig::default() }))
}

/// Cluster c1 has the former version, and so has a node of c0. Both sides steal from each other,
/// and one node of each leaves.
#[test]
fn nodes_of_two_minor_versions_steal_from_each_other_and_leave() {
    let job = Queens { size: 10, grain: 5 };
    let old = ["c0-n02", "c1-n00", "c1-n01", "c1-n02"];
    let protocols: BTreeMap<NodeId, Protocols> =
        old.iter().map(|node| (NodeId::from(*node), FORMER)).collect();
    for seed in 1..=2 {
        let shape = VirtualGridConfig {
            fork_time: Some(Duration::from_millis(1)),
            wire: later(),
            protocols: protocols.clone(),
            ..VirtualGridConfig::of(&[3, 3], 1, seed)
        };
        let observations = Rc::<RefCell<Observations>>::default();
        let note = observations.clone();
        let run = run_scripted(&shape, job.clone(), move |hands| async move {
            let names = hands.nodes();
            let look = |observations: &mut Observations| {
                for node in &names {
                    let refused = hands.net(node).refused();
                    observations.refused |= refused.contains_key(&RefuseReason::Protocol);
                    observations.steals.insert(node.clone(), hands.statistics(node));
                    for link in hands.net(node).links() {
                        if let Some(protocol) = link.protocol {
                            observations.spoken.insert((node.clone(), link.peer.node), protocol);
                        }
                    }
                }
            };
            while note.borrow().both_ways().is_none() {
                sleep(Duration::from_millis(20)).await;
                look(&mut note.borrow_mut());
            }
            hands.leave(&["c0-n01", "c1-n02"]).await;
            look(&mut note.borrow_mut());
            note.borrow_mut().left = true;
        });
        let observations = observations.borrow();
        println!(
            "seed {seed}: {:?}, {} links",
            observations.both_ways(),
            observations.spoken.len()
        );
        assert_eq!(run.outcome.unwrap().checksum, alone(&job), "seed {seed}");
        assert!(
            observations.left,
            "seed {seed}: the job was over before anybody left: {:?}",
            observations.both_ways()
        );
        assert!(!observations.refused, "seed {seed}: a version was refused");
        let old: Vec<NodeId> = old.iter().map(|node| NodeId::from(*node)).collect();
        for ((a, b), protocol) in &observations.spoken {
            let mixed = old.contains(a) || old.contains(b);
            assert_eq!(*protocol, if mixed { 1 } else { 2 }, "seed {seed}: {a} and {b}");
        }
        let both: std::collections::BTreeSet<u16> = observations.spoken.values().copied().collect();
        assert_eq!(both, [1, 2].into(), "seed {seed}");
    }
}

#[derive(Default)]
struct Observations {
    steals: BTreeMap<NodeId, Statistics>,
    /// The version between two nodes, as the first reports it.
    spoken: BTreeMap<(NodeId, NodeId), u16>,
    left: bool,
    /// Whether a node had no version in common with another.
    refused: bool,
}

impl Observations {
    /// Tasks that later nodes stole from the former ones' cluster, and the reverse, once both have
    /// occurred.
    fn both_ways(&self) -> Option<(u64, u64)> {
        let wide = |cluster: &str| {
            let of = self.steals.iter().filter(|(node, _)| node.as_str().starts_with(cluster));
            of.map(|(_, counted)| counted.counters.tasks.stolen_wide).sum::<u64>()
        };
        let (later, former) = (wide("c0"), wide("c1"));
        (later > 0 && former > 0).then_some((later, former))
    }
}

/// The same with all actors of a grid: head, sites and the job's coordinators have both versions.
#[test]
fn a_whole_grid_of_two_minor_versions_works() {
    let mut layout = simulated::layout(&[3, 3], 1);
    layout.network.wire = later();
    layout.network.protocols =
        ["c0-2", "c1-1", "c1-3"].into_iter().map(|node| (NodeId::from(node), FORMER)).collect();
    let job = springtide_simulator::apps::ModelledJob { rounds: 2, ..simulated::TREE };
    let (answer, refused) = (
        job.answer(),
        simulate(|| async move {
            let grid = SimulatedGrid::start(&layout, simulated::registry()).await;
            let run = grid.submit(job, simulated::quiet(1), None).await.expect("it is taken");
            let leave = ["c0-3", "c1-3"].map(NodeId::from).to_vec();
            actix_rt::spawn(simulated::drain_after(grid.clone(), 2, leave));
            let ended = run.ended(Duration::from_secs(3600)).await.expect("it ends");
            let spoken: std::collections::BTreeSet<Option<u16>> =
                grid.head().endpoint.net.links().iter().map(|link| link.protocol).collect();
            assert!(spoken.contains(&Some(1)) && spoken.contains(&Some(2)), "{spoken:?}");
            (ended.ended.outcome.expect("no failure").checksum, grid.head().endpoint.net.refused())
        }),
    );
    assert_eq!(refused.0, answer);
    assert!(!refused.1.contains_key(&RefuseReason::Protocol), "{:?}", refused.1);
}

/// The notifications of a node about its links.
#[derive(Default)]
struct LinkCounts {
    downs: Mutex<Vec<LinkError>>,
    frames: Mutex<Vec<Bytes>>,
}

impl NetworkHandler for LinkCounts {
    fn frame(&self, _: &Peer, _: Kind, body: Bytes) {
        self.frames.lock().unwrap().push(body);
    }

    fn down(&self, _: &Peer, why: &LinkError) {
        self.downs.lock().unwrap().push(why.clone());
    }
}

struct SkewNode {
    net: Net,
    received: Arc<LinkCounts>,
}

impl SkewNode {
    fn open(ca: &Ca, name: &str, protocols: Protocols) -> Self {
        let identity = ca.issue(&name.into(), &"bars".into(), "node", EPHEMERAL_VALIDITY).unwrap();
        let config = NetConfig { protocols, attempts: 1, ..NetConfig::default() };
        let net = Net::quic(config, &identity, Incarnation(1)).unwrap();
        let received = Arc::<LinkCounts>::default();
        net.start(received.clone());
        Self { net, received }
    }

    fn at(&self) -> SocketAddr {
        let Address::Socket(at) = self.net.address() else { panic!("no socket") };
        at
    }

    fn refused(&self, reason: RefuseReason) -> u64 {
        self.net.refused().get(&reason).copied().unwrap_or(0)
    }

    /// Sends to a peer, and returns the reason why it has no link, and the time until then.
    async fn refusal(&self, contact: Contact) -> (LinkError, Duration) {
        let (node, began) = (contact.node.clone(), Instant::now());
        self.net.learn(contact);
        self.net.send(&node, Class::Control, Kind::TELL, "for no node").unwrap();
        let down = async {
            while self.received.downs.lock().unwrap().is_empty() {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(LONG, down).await.expect("a refusal");
        let took = began.elapsed();
        (self.received.downs.lock().unwrap().remove(0), took)
    }
}

fn says_both(text: &str, mine: &str, theirs: &str) {
    assert!(text.contains(mine) && text.contains(theirs), "{mine} and {theirs}: {text}");
}

/// For both directions of the call: the called side refuses and counts it, and the caller gets both
/// versions.
#[actix_rt::test]
async fn a_peer_without_a_common_minor_version_is_refused_and_both_are_named() {
    let ca = Ca::ephemeral("bars").unwrap();
    for (caller, called) in [(FORMER, TWO_LATER), (TWO_LATER, FORMER)] {
        let (a, b) = (SkewNode::open(&ca, "a", caller), SkewNode::open(&ca, "b", called));
        let (why, took) = a.refusal(b.net.contact()).await;
        println!("refused in {:.1} ms: {why}", ms(took));
        assert_eq!(why.refused, Some(RefuseReason::Protocol), "{why}");
        says_both(&why.text, &format!("protocol {caller}"), &format!("protocol {called}"));
        assert_eq!((a.refused(RefuseReason::Protocol), b.refused(RefuseReason::Protocol)), (0, 1));
        assert!(b.received.frames.lock().unwrap().is_empty());
        a.net.close("done").await;
        b.net.close("done").await;
    }
}

/// Frames have the agreed version in both directions, and another version breaks the link.
///
/// An unknown kind of frame is skipped and counted, in every version.
#[actix_rt::test]
async fn frames_carry_the_version_that_was_agreed_on() {
    let ca = Ca::ephemeral("bars").unwrap();
    let node = SkewNode::open(&ca, "a", LATER);
    let endpoint = Endpoint::client(loopback()).unwrap();
    for (newest, agreed) in [(1, 1), (2, 2), (7, 2)] {
        let name = format!("odd-{newest}");
        let config = client(&identity(&ca, &name, "node"), &[ALPN]);
        let hello = Hello { protocol_max: newest, ..Hello::of(&name) };
        let mut odd = say_hello(&endpoint, config, node.at(), &hello).await.unwrap();
        assert_eq!(odd.answer.kind, Kind::WELCOME);
        let welcome: Welcome = wire::decode(Kind::WELCOME, &odd.answer.body).unwrap();
        assert_eq!(welcome.protocol, u16::from(agreed));
        let unknown = Frame::new(Kind(999), "???");
        let known = Frame::new(Kind::TELL, name.clone());
        for frame in [&unknown, &known] {
            odd.send.write_all(&frame.header_version(agreed)).await.unwrap();
            odd.send.write_all(&frame.body).await.unwrap();
        }
        let received = async {
            while node.received.frames.lock().unwrap().last().is_none_or(|body| *body != known.body)
            {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(LONG, received).await.expect("the frame that is known");
        let link = |name: &str| {
            let links = node.net.links();
            links.into_iter().find(|link| link.peer.node.as_str() == name).unwrap()
        };
        assert_eq!((link(&name).protocol, link(&name).unknown_kinds), (Some(agreed.into()), 1));
        // The node sends frames of that version too.
        node.net.send(&name.as_str().into(), Class::Control, Kind::TELL, "back").unwrap();
        let mut header = [0; HEADER_LEN];
        timeout(LONG, odd.recv.read_exact(&mut header)).await.expect("a frame").unwrap();
        let header = Header::parse_version(agreed, &header).unwrap();
        assert_eq!((header.kind, header.len), (Kind::TELL, 4));
        let other = Frame::new(Kind::TELL, "in another").header_version(3 - agreed);
        odd.send.write_all(&other).await.unwrap();
        let why = timeout(LONG, odd.conn.closed()).await.expect("an end").to_string();
        assert!(why.contains(&format!("where {agreed} was agreed on")), "{why}");
        assert_eq!(link(&name).strikes, 1);
    }
    assert_eq!(node.received.frames.lock().unwrap().len(), 3);
    node.net.close("done").await;
}

/// The runtime's own message, of which only the version is read.
#[derive(serde::Deserialize)]
struct Welcome {
    protocol: u16,
}

fn identity(ca: &Ca, name: &str, role: &str) -> NodeIdentity {
    ca.issue(&name.into(), &"bars".into(), role, EPHEMERAL_VALIDITY).unwrap()
}

/// A node of another major version calls: one that announces its versions, and one that does not.
#[actix_rt::test]
async fn a_caller_of_another_major_version_is_refused_and_gets_both() {
    let ca = Ca::ephemeral("bars").unwrap();
    let node = SkewNode::open(&ca, "a", FORMER);
    let endpoint = Endpoint::client(loopback()).unwrap();
    let config = client(&identity(&ca, "next", "node"), &[NEXT_MAJOR, VERSIONS_ALPN]);
    let began = Instant::now();
    let said = async {
        let conn = endpoint.connect_with(config, node.at(), "node.springtide").unwrap().await?;
        let (mut send, _recv) = conn.open_bi().await?;
        send.write_all(b"next speaks springtide protocol 2.0").await.unwrap();
        send.finish().unwrap();
        Err::<(), _>(conn.closed().await)
    };
    let said = timeout(LONG, said).await.expect("a refusal").unwrap_err().to_string();
    println!("refused in {:.1} ms: {said}", ms(began.elapsed()));
    says_both(&said, "a speaks springtide protocol 1.1", "next speaks springtide protocol 2.0");
    assert_eq!(node.refused(RefuseReason::Protocol), 1);

    // Too long an announcement, or an empty one, is refused as well, without being repeated.
    for word in [vec![b'x'; 5000], Vec::new()] {
        let before = node.refused(RefuseReason::Protocol);
        let config = client(&identity(&ca, "next", "node"), &[NEXT_MAJOR, VERSIONS_ALPN]);
        let conn = endpoint.connect_with(config, node.at(), "node.springtide").unwrap();
        let conn = conn.await.unwrap();
        let (mut send, _recv) = conn.open_bi().await.unwrap();
        let _ = send.write_all(&word).await;
        let _ = send.finish();
        let said = timeout(LONG, conn.closed()).await.expect("a refusal").to_string();
        says_both(&said, "a speaks springtide protocol 1.1", "does not say what it speaks");
        assert_eq!(node.refused(RefuseReason::Protocol), before + 1);
    }

    let config = client(&identity(&ca, "next", "node"), &[NEXT_MAJOR]);
    let refused = say_hello(&endpoint, config, node.at(), &Hello::of("next")).await;
    assert!(refused.is_err());
    assert_eq!(node.refused(RefuseReason::Alpn), 1);

    // A caller of this version that could announce versions sends its hello as usual.
    let config = client(&identity(&ca, "same", "node"), &[VERSIONS_ALPN, ALPN]);
    let odd = say_hello(&endpoint, config, node.at(), &Hello::of("same")).await.unwrap();
    assert_eq!(odd.answer.kind, Kind::WELCOME);
    assert!(node.received.frames.lock().unwrap().is_empty());
    node.net.close("done").await;
}

/// A head of the next major version, which announces it as this build would.
fn next_head(identity: &NodeIdentity, alpn: &[&[u8]]) -> Endpoint {
    let [cert, key, ca] = identity.pem();
    let pem = |text: &str| CertificateDer::from_pem_slice(text.as_bytes()).unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(pem(ca)).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(
        Arc::new(roots),
        provider.clone(),
    );
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_client_cert_verifier(verifier.build().unwrap())
        .with_single_cert(vec![pem(cert)], PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap())
        .unwrap();
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    let crypto = QuicServerConfig::try_from(config).unwrap();
    let config = quinn::ServerConfig::with_crypto(Arc::new(crypto));
    let endpoint = Endpoint::server(config, loopback()).unwrap();
    let listens = endpoint.clone();
    actix_rt::spawn(async move {
        while let Some(incoming) = listens.accept().await {
            let Ok(conn) = incoming.await else { continue };
            actix_rt::spawn(tell_versions(conn));
        }
    });
    endpoint
}

async fn tell_versions(conn: Connection) -> Option<()> {
    let (_, mut recv) = conn.accept_bi().await.ok()?;
    let said = recv.read_to_end(200).await.ok()?;
    let said = String::from_utf8_lossy(&said);
    let why = format!("{said}, head speaks springtide protocol 2.0: bring both to one version");
    conn.close(2u32.into(), why.as_bytes());
    Some(())
}

#[actix_rt::test]
async fn a_caller_of_a_node_of_another_major_version_gets_both() {
    let ca = Ca::ephemeral("bars").unwrap();
    for (alpn, reason, theirs) in [
        (&[NEXT_MAJOR, VERSIONS_ALPN][..], RefuseReason::Protocol, "springtide protocol 2.0"),
        // It does not announce its versions, so they are unknown.
        (&[NEXT_MAJOR][..], RefuseReason::Alpn, "no protocol in common"),
    ] {
        let head = next_head(&identity(&ca, "head", "head"), alpn);
        let address = Address::Socket(head.local_addr().unwrap());
        let contact = Contact { node: "head".into(), cluster: "bars".into(), address };
        let node = SkewNode::open(&ca, "a", FORMER);
        let (why, took) = node.refusal(contact).await;
        println!("refused in {:.1} ms: {why}", ms(took));
        assert_eq!(why.refused, Some(reason), "{why}");
        says_both(&why.text, "1.1", theirs);
        node.net.close("done").await;
        head.close(0u32.into(), b"");
    }
}

const LINE: &str = "SPRINGTIDE_BARS_LINE";

/// Does nothing unless the test below runs it: the command, with these arguments.
#[test]
#[ignore = "a process of another test"]
fn command() {
    let Ok(line) = std::env::var(LINE) else { return };
    // The command must not find settings of the tests.
    let code = springtide::App::new("springtide", "0").main_with(line.split('\n'));
    let code = if code == springtide::Exit::Version.into() { 6 } else { 99 };
    std::process::exit(code);
}

/// The command exits with 6, and reports both versions.
#[actix_rt::test]
async fn a_node_of_another_version_than_its_head_ends_with_6() {
    let ca = Ca::ephemeral("bars").unwrap();
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in
        ["node.pem", "node.key", "ca.pem"].iter().zip(identity(&ca, "bars-1", "node").pem())
    {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    }
    let head = next_head(&identity(&ca, "head", "head"), &[NEXT_MAJOR, VERSIONS_ALPN]);
    let minor = SkewNode::open(&ca, "head", TWO_LATER);
    for (at, theirs) in [
        (head.local_addr().unwrap(), "head speaks springtide protocol 2.0"),
        (minor.at(), "head speaks springtide protocol 1.2 to 1.3"),
    ] {
        let config = dir.path().join("node.toml");
        let text = format!(
            "node = \"bars-1\"\ncluster = \"bars\"\n\
             [head]\nname = \"head\"\naddress = \"{at}\"\n\
             [identity]\ncertificate = \"node.pem\"\nkey = \"node.key\"\nca = \"ca.pem\"\n"
        );
        std::fs::write(&config, text).unwrap();
        let line = ["springtide", "node", "run", "--config", config.to_str().unwrap()].join("\n");
        let in_dir = dir.path().to_owned();
        let ended = tokio::task::spawn_blocking(move || {
            Command::new(std::env::current_exe().unwrap())
                .args(["bars::skew::command", "--exact", "--ignored", "--nocapture"])
                .env(LINE, line)
                .current_dir(in_dir)
                .stdin(std::process::Stdio::null())
                .output()
                .unwrap()
        });
        let ended = timeout(LONG, ended).await.expect("it ends").unwrap();
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(6), "{said}");
        says_both(&said, "bars-1 speaks springtide protocol 1.1", theirs);
    }
    assert_eq!(minor.refused(RefuseReason::Protocol), 1);
    minor.net.close("done").await;
    head.close(0u32.into(), b"");
}
