//! Admission to a grid, asserted at the head: each case names the counter of the head, and checks
//! that no actor saw anything.
//!
//! Real endpoints on loopback; `--nocapture` prints the matrix. `apps/springtide/tests` tests the
//! processes.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use actix::prelude::*;
use quinn::crypto::rustls::QuicClientConfig;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde::{Deserialize, Serialize};
use springtide_actors::endpoint::Endpoint;
use springtide_actors::enrol::{
    Clusters, ENROLMENT, EnrolmentActor, EnrolmentService, EnrolmentStore, GetJoinStatus,
    JoinTerms, ReloadEnrolment, RenewCertificate, TokenRole, TokenSpec,
};
use springtide_actors::hardware::Hardware;
use springtide_actors::head::{HEAD, HEAD_CLUSTER, Head};
use springtide_actors::job::{SCHEDULER, site_name};
use springtide_actors::provider::{JoinProvider, NodeRequest};
use springtide_actors::scheduler::manager::ManagerSettings;
use springtide_actors::scheduler::{
    CancelJob, Drain, GetStatus, NodeState, Resize, ResizeJob, Scheduler, Undrain,
};
use springtide_actors::site::{Register, RestartNodes, Site};
use springtide_actors::store::Store;
use springtide_runtime::id::{Incarnation, JobId, NodeId};
use springtide_runtime::net::join::{
    JoinError, JoinGrant, JoinLimits, JoinToken, NOT_GOOD, NewToken, join,
};
use springtide_runtime::net::tls::{
    ALPN, Ca, Calendar, JOIN_ALPN, NODE_VALIDITY, NewKey, NodeIdentity,
};
use springtide_runtime::net::{Address, NetConfig};
use springtide_runtime::remote::{Hub, Refusal, Remote, RemoteError, RemoteMessage};
use springtide_runtime::remote_message;
use springtide_runtime::wire::{Frame, Kind};
use tokio::time::timeout;

use crate::bars::odd::{self, Hello, say_hello};

const LONG: Duration = Duration::from_secs(60);
const LOOPBACK: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);
const DAY: i64 = 24 * 3600;

/// A message that any peer with a link may send.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct TestMessage {}

remote_message! {
    "sing" => TestMessage;
}

/// An actor of the head that accepts messages of every role: a message that it gets has passed all
/// checks.
struct Canary(Rc<Cell<u64>>);

impl Actor for Canary {
    type Context = Context<Self>;
}

impl Handler<TestMessage> for Canary {
    type Result = ();

    fn handle(&mut self, _: TestMessage, _: &mut Self::Context) {
        self.0.set(self.0.get() + 1);
    }
}

/// A head with cluster lab, of three nodes that join; the test sets the date.
struct JoinedGrid {
    ca: Ca,
    head: Head,
    book: EnrolmentStore,
    now: Arc<AtomicI64>,
    probes: Rc<Cell<u64>>,
    rows: Vec<[String; 4]>,
    lives: Cell<u64>,
    _dir: tempfile::TempDir,
}

impl JoinedGrid {
    async fn start() -> Self {
        Self::valid_for(Duration::from_secs(DAY as u64)).await
    }

    async fn valid_for(validity: Duration) -> Self {
        let dir = tempfile::tempdir().unwrap();
        Ca::create("home", &dir.path().join("ca")).unwrap();
        let ca = || Ca::load(&dir.path().join("ca")).unwrap();
        let identity = ca().issue(&HEAD.into(), &HEAD_CLUSTER.into(), "head", NODE_VALIDITY);
        let identity = identity.unwrap();
        let endpoint = Endpoint::quic(NetConfig::default(), &identity, Incarnation(1)).unwrap();
        let store = Store::open(dir.path()).unwrap();
        let probes = Rc::new(Cell::new(0));
        let canary = Canary(probes.clone()).start();
        endpoint.hub.publish("canary", canary).accepts::<TestMessage>();
        let mut head = Head::start(endpoint, store, ManagerSettings::default());
        let place = |n: u32| NodeRequest {
            node: format!("lab-{n}").into(),
            program: Default::default(),
            config: Default::default(),
            log: Default::default(),
            env: Vec::new(),
            threads: 1,
            host: None,
            shipped: None,
        };
        head.start_site("lab".into(), (1..=3).map(place).collect(), Rc::new(JoinProvider));
        let now = Arc::new(AtomicI64::new(springtide_runtime::net::tls::calendar()()));
        let book = EnrolmentStore::of(dir.path());
        let terms = JoinTerms {
            node_limit: 3,
            config: Box::new(|node| Ok(format!("node = \"{node}\"\n"))),
        };
        let clusters = Clusters::from([("lab".into(), terms)]);
        let date = now.clone();
        let calendar: Calendar = Arc::new(move || date.load(Ordering::Relaxed));
        let recorder = head.endpoint.recorder.clone();
        let enrolment =
            EnrolmentService::new(ca(), book.clone(), calendar, clusters, validity, recorder);
        let door = Some((LOOPBACK, JoinLimits::default()));
        head.enrol(enrolment, &identity, door).unwrap();
        let (rows, lives) = (Vec::new(), Cell::new(1));
        Self { ca: ca(), head, book, now, probes, rows, lives, _dir: dir }
    }

    fn token(&self, uses: u32) -> JoinToken {
        let minted = NewToken::draw().unwrap();
        let (role, cluster) = (TokenRole::Node, "lab".into());
        let order = TokenSpec { role, cluster, ttl: DAY, uses };
        let now = self.now.load(Ordering::Relaxed);
        self.book.change(|book| book.create(&order, &minted, now)).unwrap();
        JoinToken { authority: self.ca.fingerprint(), id: minted.id, secret: minted.secret }
    }

    async fn ask(&self, token: &JoinToken, node: Option<&str>) -> Result<JoinGrant, JoinError> {
        let request = NewKey::make().unwrap().request().unwrap();
        join(LOOPBACK, self.door(), token, request, node.map(Into::into), LONG).await
    }

    async fn join(&self) -> NodeIdentity {
        let key = NewKey::make().unwrap();
        let request = key.request().unwrap();
        let grant = join(LOOPBACK, self.door(), &self.token(1), request, None, LONG).await.unwrap();
        key.identity(&grant.certificate, &grant.authority).unwrap()
    }

    async fn revoke(&self, node: &NodeId) {
        let now = self.now.load(Ordering::Relaxed);
        self.book.change(|book| book.revoke(node, "stolen", now)).unwrap().unwrap();
        let client = self.node(&self.issue("client-2", HEAD_CLUSTER, "client"));
        let enrolment: Remote<EnrolmentActor> = client.hub.remote(&HEAD.into(), ENROLMENT);
        enrolment.send(ReloadEnrolment {}).deadline(LONG).await.unwrap();
        client.net.close("done").await;
    }

    fn door(&self) -> SocketAddr {
        self.head.join_address().unwrap()
    }

    fn links(&self) -> SocketAddr {
        let Address::Socket(at) = self.head.endpoint.net.address() else { panic!("no socket") };
        at
    }

    /// An endpoint with this identity that knows the head.
    fn node(&self, identity: &NodeIdentity) -> Endpoint {
        self.lives.set(self.lives.get() + 1);
        let life = Incarnation(self.lives.get());
        let config = NetConfig { attempts: 1, ..NetConfig::default() };
        let endpoint = Endpoint::quic(config, identity, life).unwrap();
        endpoint.start();
        endpoint.net.learn(self.head.contact());
        endpoint
    }

    fn issue(&self, node: &str, cluster: &str, role: &str) -> NodeIdentity {
        self.ca.issue(&node.into(), &cluster.into(), role, NODE_VALIDITY).unwrap()
    }

    /// The head's counter of this name: at the join endpoint, of links, or of messages.
    async fn counted(&self, what: &str) -> u64 {
        let stats = self.head.endpoint.hub.stats();
        match what.split_once(' ') {
            Some(("message", _)) => stats.denied_in,
            Some(("link", reason)) => {
                let refused = self.head.endpoint.net.refused();
                let name = |why| serde_json::to_value(why).unwrap();
                refused.iter().filter(|(why, _)| name(**why) == reason).map(|(_, n)| n).sum()
            }
            Some(("door", reason)) => {
                let client = self.node(&self.issue("client-1", HEAD_CLUSTER, "client"));
                let door: Remote<EnrolmentActor> = client.hub.remote(&HEAD.into(), ENROLMENT);
                let counts = door.send(GetJoinStatus {}).deadline(LONG).await.unwrap();
                client.net.close("asked").await;
                counts.refused.get(reason).copied().unwrap_or(0)
            }
            _ => panic!("{what}"),
        }
    }

    /// Executes a request that must be refused; checks that the head counted it once under this
    /// name, and that no actor saw it.
    async fn case(
        &mut self,
        what: &str,
        counted: &str,
        attempt: impl AsyncFnOnce(&Self) -> String,
    ) {
        let before = self.counted(counted).await;
        let (probes, given) = (self.probes.get(), self.given());
        let said = timeout(LONG, attempt(self)).await.unwrap_or_else(|_| panic!("{what}: no end"));
        let counts = async {
            while self.counted(counted).await == before {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let counts = timeout(LONG, counts).await;
        counts.unwrap_or_else(|_| panic!("{what}: the head did not count {counted}: {said}"));
        assert_eq!(self.counted(counted).await, before + 1, "{what}: {said}");
        assert_eq!(self.probes.get(), probes, "{what}: an actor got the message");
        assert_eq!(self.given(), given, "{what}: a name was given");
        let [what, counted] = [what, counted].map(str::to_owned);
        self.rows.push([what, counted, "none".to_owned(), said]);
    }

    /// The number of names that were given, and the remaining uses of all tokens.
    fn given(&self) -> (usize, u32) {
        let book = self.book.read().unwrap();
        (book.names().len(), book.tokens().iter().map(|token| token.uses_left).sum())
    }

    /// Sends the message with this identity, and returns the result.
    async fn send_probe(&self, identity: &NodeIdentity) -> Result<(), RemoteError> {
        let endpoint = self.node(identity);
        let canary: Remote<Canary> = endpoint.hub.remote(&HEAD.into(), "canary");
        let result = canary.send(TestMessage {}).deadline(LONG).await;
        endpoint.net.close("sung").await;
        result
    }

    /// Connects with this certificate, or none, and these protocol names; then sends some bytes.
    async fn connect_and_send(
        &self,
        at: SocketAddr,
        alpn: &[&[u8]],
        identity: Option<&NodeIdentity>,
    ) -> String {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.ca.cert_pem().as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match identity.map(NodeIdentity::pem) {
            None => config.with_no_client_auth(),
            Some([cert, key, _]) => {
                let cert = CertificateDer::from_pem_slice(cert.as_bytes()).unwrap();
                let key = rustls::pki_types::PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
                config.with_client_auth_cert(vec![cert], key).unwrap()
            }
        };
        config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
        let crypto = QuicClientConfig::try_from(config).unwrap();
        let config = quinn::ClientConfig::new(Arc::new(crypto));
        let endpoint = quinn::Endpoint::client(LOOPBACK).unwrap();
        let said = async {
            let conn = endpoint.connect_with(config, at, "node.springtide").unwrap().await?;
            let (mut send, mut recv) = conn.open_bi().await?;
            // A hello, or bytes that resemble a call of an actor; the head does not read them.
            let _ = send.write_all(&[1, 0, 0, 0, 16, 0, 1, 0, 0x80]).await;
            let _ = recv.read_to_end(1 << 16).await;
            Err(conn.closed().await)
        };
        let said: Result<(), quinn::ConnectionError> = said.await;
        endpoint.close(0u32.into(), b"");
        said.expect_err("it was let in").to_string()
    }

    fn state(&self, status: &springtide_actors::scheduler::GridStatus, node: &str) -> NodeState {
        let nodes = &status.sites[&"lab".into()].nodes;
        nodes.iter().find(|known| known.node.as_str() == node).unwrap().state
    }

    fn print(&self) {
        let head = ["case", "counted at the head", "received by an actor", "answer to the caller"];
        let rows: Vec<[&str; 4]> = std::iter::once(head)
            .chain(self.rows.iter().map(|row| [&*row[0], &*row[1], &*row[2], &*row[3]]))
            .collect();
        let width = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
        let (a, b, c) = (width(0), width(1), width(2));
        for [what, counted, received, answer] in rows {
            let answer: String = answer.chars().take(110).collect();
            println!("| {what:a$} | {counted:b$} | {received:c$} | {answer}");
        }
    }
}

fn no<T>(answer: Result<T, impl std::fmt::Display>) -> String {
    match answer {
        Ok(_) => panic!("it was let in"),
        Err(error) => error.to_string(),
    }
}

async fn call<A, M>(hub: &Arc<Hub>, actor: &str, message: M) -> String
where
    A: Actor<Context = Context<A>> + Handler<M>,
    M: RemoteMessage,
    M::Result: Send,
{
    let remote: Remote<A> = hub.remote(&HEAD.into(), actor);
    match remote.send(message).deadline(LONG).await {
        Err(RemoteError::Refused { reason: why @ (Refusal::Role | Refusal::Identity), .. }) => {
            format!("{why:?}")
        }
        Ok(_) => panic!("an actor got it"),
        Err(error) => panic!("{error}"),
    }
}

#[actix_rt::test]
async fn peers_without_a_valid_certificate_get_no_link() {
    let mut grid = JoinedGrid::start().await;
    // A peer with a valid certificate is accepted; otherwise the other cases would prove nothing.
    grid.send_probe(&grid.join().await).await.unwrap();
    assert_eq!(grid.probes.get(), 1);
    grid.case("no certificate", "link no-certificate", async |grid| {
        grid.connect_and_send(grid.links(), &[ALPN], None).await
    })
    .await;
    grid.case("another authority, of the same grid's name", "link foreign-ca", async |grid| {
        let other = Ca::ephemeral("home").unwrap();
        let other = other.issue(&"lab-1".into(), &"lab".into(), "node", NODE_VALIDITY).unwrap();
        let [cert, key, _] = other.pem();
        let forged = NodeIdentity::of_parts(cert, key, grid.ca.cert_pem()).unwrap();
        no(grid.send_probe(&forged).await)
    })
    .await;
    grid.case("expired certificate", "link bad-certificate", async |grid| {
        let long_ago = grid.now.load(Ordering::Relaxed) - 3 * DAY;
        let day = Duration::from_secs(DAY as u64);
        let old = grid.ca.issue_at(&"lab-1".into(), &"lab".into(), "node", day, long_ago);
        no(grid.send_probe(&old.unwrap()).await)
    })
    .await;
    grid.case("no application protocol", "link alpn", async |grid| {
        grid.connect_and_send(grid.links(), &[], Some(&grid.issue("lab-1", "lab", "node"))).await
    })
    .await;
    grid.case("the door's protocol at the links' endpoint", "link alpn", async |grid| {
        grid.connect_and_send(grid.links(), &[JOIN_ALPN], Some(&grid.issue("lab-1", "lab", "node")))
            .await
    })
    .await;
    grid.case("a certificate and no hello", "link bad-hello", async |grid| {
        grid.connect_and_send(grid.links(), &[ALPN], Some(&grid.issue("lab-1", "lab", "node")))
            .await
    })
    .await;
    // A peer with a valid certificate is the one that it claims to be, and no other.
    let honest =
        || Hello { grid: "home".to_owned(), cluster: "lab".to_owned(), ..Hello::of("lab-1") };
    let (node, cluster, other) = ("lab-2".to_owned(), "ams".to_owned(), "work".to_owned());
    for (what, counted, hello) in [
        ("the hello names another node", "link identity", Hello { node, ..honest() }),
        ("the hello names another cluster", "link identity", Hello { cluster, ..honest() }),
        ("the hello names another grid", "link grid", Hello { grid: other, ..honest() }),
        (
            "no version in common",
            "link protocol",
            Hello { protocol_min: 2, protocol_max: 3, ..honest() },
        ),
    ] {
        grid.case(what, counted, async |grid| {
            let endpoint = quinn::Endpoint::client(LOOPBACK).unwrap();
            let config = odd::client(&grid.issue("lab-1", "lab", "node"), &[ALPN]);
            let odd = say_hello(&endpoint, config, grid.links(), &hello).await.unwrap();
            assert_eq!(odd.answer.kind, Kind::REFUSE, "{what}");
            let (mut send, _) = (odd.send, odd.recv);
            let call = Frame::new(Kind::TELL, "received by no actor");
            let _ = send.write_all(&[&call.header()[..], &call.body].concat()).await;
            odd.conn.closed().await.to_string()
        })
        .await;
    }
    let identity = grid.join().await;
    grid.send_probe(&identity).await.unwrap();
    grid.revoke(&identity.name().node).await;
    grid.case("revoked node", "link revoked", async |grid| no(grid.send_probe(&identity).await))
        .await;
    grid.print();
}

#[actix_rt::test]
async fn peers_without_a_valid_token_get_no_certificate() {
    let mut grid = JoinedGrid::start().await;
    let closed = |error: JoinError| match error {
        JoinError::Refused(why) => {
            assert_eq!(why, NOT_GOOD);
            "not good".to_owned()
        }
        error => panic!("{error}"),
    };
    grid.case("no application protocol", "door alpn", async |grid| {
        grid.connect_and_send(grid.door(), &[], None).await
    })
    .await;
    grid.case("the links' protocol at the door", "door alpn", async |grid| {
        grid.connect_and_send(grid.door(), &[ALPN], Some(&grid.issue("lab-1", "lab", "node"))).await
    })
    .await;
    grid.case("a call of an actor at the door", "door bad-request", async |grid| {
        grid.connect_and_send(grid.door(), &[JOIN_ALPN], None).await
    })
    .await;
    let token = grid.token(2);
    grid.case("another authority's sum: nothing is said", "door handshake", async |grid| {
        let authority = Ca::ephemeral("home").unwrap().fingerprint();
        let other = JoinToken { authority, ..token.clone() };
        let error = grid.ask(&other, None).await.unwrap_err();
        assert!(matches!(error, JoinError::OtherGrid { .. }), "{error}");
        error.to_string()
    })
    .await;
    grid.case("unknown token", "door unknown-token", async |grid| {
        let other = NewToken::draw().unwrap();
        let other = JoinToken { id: other.id, secret: other.secret, ..token.clone() };
        closed(grid.ask(&other, None).await.unwrap_err())
    })
    .await;
    grid.case("wrong secret", "door wrong-secret", async |grid| {
        let secret = NewToken::draw().unwrap().secret;
        closed(grid.ask(&JoinToken { secret, ..token.clone() }, None).await.unwrap_err())
    })
    .await;
    grid.case("garbled token", "door unknown-token", async |grid| {
        // The client refuses its text before it sends anything; the head does not know it either.
        let text = token.to_string();
        assert!(text[..text.len() - 1].parse::<JoinToken>().is_err());
        let id = token.id.to_uppercase() + "\n";
        closed(grid.ask(&JoinToken { id, ..token.clone() }, None).await.unwrap_err())
    })
    .await;
    grid.case("a request that its key did not sign", "door bad-key", async |grid| {
        let mut request = NewKey::make().unwrap().request().unwrap();
        let last = request.len() - 1;
        request[last] ^= 1;
        no(join(LOOPBACK, grid.door(), &token, request, None, LONG).await)
    })
    .await;
    for (what, name) in [("another cluster's name", "ams-1"), ("the head's name", HEAD)] {
        grid.case(what, "door name-taken", async |grid| no(grid.ask(&token, Some(name)).await))
            .await;
    }
    let (once, request) = (grid.token(1), NewKey::make().unwrap().request().unwrap());
    join(LOOPBACK, grid.door(), &once, request.clone(), None, LONG).await.unwrap();
    grid.case("a request that was granted, replayed", "door used-up-token", async |grid| {
        closed(join(LOOPBACK, grid.door(), &once, request, None, LONG).await.unwrap_err())
    })
    .await;
    // Both uses at once, and a third: exactly two are accepted.
    let three =
        tokio::join!(grid.ask(&token, None), grid.ask(&token, None), grid.ask(&token, None));
    let granted = [&three.0, &three.1, &three.2].iter().filter(|answer| answer.is_ok()).count();
    assert_eq!(granted, 2, "{three:?}");
    assert_eq!(grid.given(), (3, 0));
    grid.case("used as often as it may be", "door used-up-token", async |grid| {
        closed(grid.ask(&token, None).await.unwrap_err())
    })
    .await;
    let fresh = grid.token(1);
    grid.case("no name left", "door no-room", async |grid| no(grid.ask(&fresh, None).await)).await;
    let revoked = grid.token(1);
    let now = grid.now.load(Ordering::Relaxed);
    grid.book.change(|book| book.revoke_token(&revoked.id, now)).unwrap().unwrap();
    grid.case("revoked token", "door revoked-token", async |grid| {
        closed(grid.ask(&revoked, None).await.unwrap_err())
    })
    .await;
    grid.now.fetch_add(DAY, Ordering::Relaxed);
    grid.case("expired token", "door expired-token", async |grid| {
        closed(grid.ask(&fresh, None).await.unwrap_err())
    })
    .await;
    assert_eq!(grid.probes.get(), 0);
    grid.print();
}

#[actix_rt::test]
async fn a_certificate_grants_its_own_rights_alone() {
    let mut grid = JoinedGrid::start().await;
    let node = grid.join().await;
    let ends = grid.node(&node);
    let me = ends.net.me().clone();
    let contact = ends.net.contact();
    let hub = &ends.hub;
    let register = |contact: &springtide_runtime::net::Contact| Register {
        contact: contact.clone(),
        incarnation: me.incarnation,
        threads: 1,
        fingerprint: 7,
        pid: 1,
        hardware: Hardware::default(),
        work: None,
    };
    let site = site_name(&"lab".into());
    // Its own registration is accepted; otherwise the other cases would prove nothing.
    let own: Remote<Site> = hub.remote(&HEAD.into(), &site);
    own.send(register(&contact)).deadline(LONG).await.unwrap().unwrap();
    grid.case("wrong role: a client registers as a node", "message denied", async |grid| {
        let client = grid.node(&grid.issue("client-3", HEAD_CLUSTER, "client"));
        let contact = client.net.contact();
        let register = Register { incarnation: client.net.me().incarnation, ..register(&contact) };
        let said = call::<Site, _>(&client.hub, &site, register).await;
        client.net.close("done").await;
        said
    })
    .await;
    grid.case("wrong role: an unknown node registers", "message denied", async |grid| {
        let king = grid.node(&grid.issue("lab-3", "lab", "king"));
        let contact = king.net.contact();
        let register = Register { incarnation: king.net.me().incarnation, ..register(&contact) };
        let said = call::<Site, _>(&king.hub, &site, register).await;
        king.net.close("done").await;
        said
    })
    .await;
    grid.case("wrong cluster: a node of ams registers in lab", "message denied", async |grid| {
        let other = grid.node(&grid.issue("lab-2", "ams", "node"));
        let contact =
            springtide_runtime::net::Contact { cluster: "lab".into(), ..other.net.contact() };
        let register = Register { incarnation: other.net.me().incarnation, ..register(&contact) };
        let said = call::<Site, _>(&other.hub, &site, register).await;
        other.net.close("done").await;
        said
    })
    .await;
    grid.case("a node registers under another's name", "message denied", async |_| {
        let other = springtide_runtime::net::Contact { node: "lab-2".into(), ..contact.clone() };
        call::<Site, _>(hub, &site, register(&other)).await
    })
    .await;
    let (job, reason) = (JobId(1), "because".to_owned());
    let nodes: Vec<NodeId> = vec!["lab-2".into()];
    let why = reason.clone();
    grid.case("a node cancels a job", "message denied", async |_| {
        call::<Scheduler, _>(hub, SCHEDULER, CancelJob { job, reason: why }).await
    })
    .await;
    grid.case("a node resizes a job", "message denied", async |_| {
        let by = Resize::Shrink { count: 1 };
        call::<Scheduler, _>(hub, SCHEDULER, ResizeJob { job, by }).await
    })
    .await;
    let (why, all) = (reason.clone(), nodes.clone());
    grid.case("a node drains another", "message denied", async |_| {
        let drain = Drain { nodes: all, reason: why, deadline_ms: None, incarnation: None };
        call::<Scheduler, _>(hub, SCHEDULER, drain).await
    })
    .await;
    let all = nodes.clone();
    grid.case("a node puts another back", "message denied", async |_| {
        call::<Scheduler, _>(hub, SCHEDULER, Undrain { nodes: all }).await
    })
    .await;
    grid.case("a node gives a site orders", "message denied", async |_| {
        let order = RestartNodes { nodes, program: None, reason, shipped: None };
        call::<Site, _>(hub, &site, order).await
    })
    .await;
    grid.case("a node speaks as a client of enrolment", "message denied", async |_| {
        call::<EnrolmentActor, _>(hub, ENROLMENT, ReloadEnrolment {}).await
    })
    .await;
    let request: bytes::Bytes = node.request().unwrap().into();
    for (what, name, role) in [
        ("a node renews another's certificate", "lab-2", "node"),
        ("a node renews into another role", "lab-1", "client"),
        ("a node renews into the head's role", "lab-1", "head"),
    ] {
        let request = request.clone();
        grid.case(what, "message denied", async |_| {
            let (node, cluster) = (name.into(), "lab".into());
            let ask = RenewCertificate { node, cluster, role: role.to_owned(), request };
            call::<EnrolmentActor, _>(hub, ENROLMENT, ask).await
        })
        .await;
    }
    ends.net.close("done").await;
    grid.print();
}

#[actix_rt::test]
async fn a_certificate_is_renewed_under_a_link_that_stays_and_not_when_it_is_revoked() {
    let grid = JoinedGrid::valid_for(Duration::from_secs(3600)).await;
    let node = grid.join().await;
    let ends = grid.node(&node);
    let own: Remote<Site> = ends.hub.remote(&HEAD.into(), &site_name(&"lab".into()));
    let register = Register {
        contact: ends.net.contact(),
        incarnation: ends.net.me().incarnation,
        threads: 1,
        fingerprint: 7,
        pid: 1,
        hardware: Hardware::default(),
        work: None,
    };
    own.send(register).deadline(LONG).await.unwrap().unwrap();
    let enrolment: Remote<EnrolmentActor> = ends.hub.remote(&HEAD.into(), ENROLMENT);
    let name = node.name().clone();
    let ask = || RenewCertificate {
        node: name.node.clone(),
        cluster: name.cluster.clone(),
        role: name.role.clone(),
        request: node.request().unwrap().into(),
    };
    grid.now.fetch_add(1800, Ordering::Relaxed);
    let renewed = enrolment.send(ask()).deadline(LONG).await.unwrap().unwrap();
    let renewed = node.with_certificate(&renewed).unwrap();
    let later = renewed.dates().unwrap().until - node.dates().unwrap().until;
    assert_eq!(later, 1800);
    ends.net.renew(&renewed).unwrap();
    let links = |grid: &JoinedGrid| {
        let links = grid.head.endpoint.net.links();
        let link = links.into_iter().find(|link| link.peer.node.as_str() == "lab-1").unwrap();
        (link.peer.incarnation, link.reconnects)
    };
    let before = links(&grid);
    let canary: Remote<Canary> = ends.hub.remote(&HEAD.into(), "canary");
    canary.send(TestMessage {}).deadline(LONG).await.unwrap();
    assert_eq!(links(&grid), before, "the link was dropped");
    // New links present the new certificate: the head forgets the node, and is called again.
    grid.head.endpoint.net.forget(&"lab-1".into());
    let again = async {
        while canary.send(TestMessage {}).deadline(LONG).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(LONG, again).await.unwrap();
    // The certificate of another node is refused.
    assert!(ends.net.renew(&grid.issue("lab-2", "lab", "node")).is_err());

    let now = grid.now.load(Ordering::Relaxed);
    grid.book.change(|book| book.revoke(&"lab-1".into(), "stolen", now)).unwrap().unwrap();
    let refused = enrolment.send(ask()).deadline(LONG).await;
    // By the ledger or, if the head has checked it meanwhile, by the link.
    let said = match refused {
        Ok(answer) => answer.unwrap_err().to_string(),
        Err(error) => error.to_string(),
    };
    assert!(said.contains("revoked"), "{said}");
    grid.revoke(&"lab-1".into()).await;
    // Its link is closed, and the scheduler knows the reason.
    let gone = async {
        loop {
            let status = grid.head.scheduler.send(GetStatus {}).await.unwrap();
            let node = status.sites[&"lab".into()].nodes[0].clone();
            if grid.state(&status, "lab-1") == NodeState::Off {
                break node.reason.unwrap_or_default();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let why = timeout(LONG, gone).await.unwrap();
    assert!(why.contains("revoked: stolen"), "{why}");
    let probes = grid.probes.get();
    let refused = canary.send(TestMessage {}).deadline(LONG).await.unwrap_err();
    assert!(refused.to_string().contains("revoked"), "{refused}");
    assert_eq!(grid.probes.get(), probes);
    ends.net.close("done").await;
}
