//! Tests of endpoints on loopback. Timeouts serve only to end failing tests.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quinn::crypto::rustls::QuicClientConfig;
use quinn::{Endpoint, VarInt};

use super::*;
use crate::id::Incarnation;
use crate::net::tls::{Ca, NODE_VALIDITY, NewKey, NodeIdentity, NodeName, calendar, pinned_config};
use crate::net::{Net, NetConfig};
use crate::wire::{Kind, decode, encode, fuzz, golden};

const LONG: Duration = Duration::from_secs(30);

/// Accepts every caller with this secret, and records the refusals.
struct SecretJudge {
    ca: Ca,
    secret: String,
    requests: AtomicUsize,
    refused: Mutex<Vec<JoinReason>>,
}

impl JoinAuthorizer for SecretJudge {
    fn authorize(&self, request: JoinRequest, _: SocketAddr) -> JoinDecision {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let answer = if request.secret == self.secret {
            let node = request.node.unwrap_or_else(|| "lab-1".into());
            let name = NodeName { node, cluster: "lab".into(), role: "node".into() };
            let now = calendar()();
            let signed = self.ca.sign(&request.request, &name, NODE_VALIDITY, now);
            signed
                .map(|certificate| {
                    let (authority, config) = (self.ca.cert_pem().to_owned(), String::new());
                    JoinGrant { certificate, authority, config }
                })
                .map_err(|error| JoinRefusal::open(JoinReason::BadKey, error.to_string()))
        } else {
            Err(JoinRefusal::closed(JoinReason::WrongSecret, "another secret"))
        };
        Box::pin(async move { answer })
    }

    fn refused(&self, _: SocketAddr, refusal: &JoinRefusal) {
        self.refused.lock().unwrap().push(refusal.reason);
    }
}

struct TestGrid {
    judge: Arc<SecretJudge>,
    endpoint: JoinEndpoint,
    token: JoinToken,
    head: NodeIdentity,
}

const LOOPBACK: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

impl TestGrid {
    fn open(limits: JoinLimits) -> Self {
        Self::open_as("head", limits)
    }

    fn open_as(role: &str, limits: JoinLimits) -> Self {
        let ca = Ca::ephemeral("g").unwrap();
        let head = ca.issue(&"head".into(), &"head".into(), role, NODE_VALIDITY).unwrap();
        let NewToken { id, secret, .. } = NewToken::draw().unwrap();
        let token = JoinToken { authority: ca.fingerprint(), id, secret: secret.clone() };
        let (requests, refused) = (AtomicUsize::new(0), Mutex::default());
        let judge = Arc::new(SecretJudge { ca, secret, requests, refused });
        let endpoint = JoinEndpoint::open(LOOPBACK, &head, judge.clone(), limits).unwrap();
        Self { judge, endpoint, token, head }
    }

    async fn join(&self, token: &JoinToken, node: Option<&str>) -> Result<NodeIdentity, JoinError> {
        let key = NewKey::make().unwrap();
        let at = self.endpoint.address();
        let request = key.request().unwrap();
        let grant = join(LOOPBACK, at, token, request, node.map(Into::into), LONG).await?;
        Ok(key.identity(&grant.certificate, &grant.authority)?)
    }

    fn requests(&self) -> usize {
        self.judge.requests.load(Ordering::Relaxed)
    }

    async fn counts(&self, reason: JoinReason, times: u64) {
        let wait = async {
            while self.endpoint.counts().refused.get(&reason).copied().unwrap_or(0) < times {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let counted = tokio::time::timeout(LONG, wait).await;
        counted.unwrap_or_else(|_| panic!("never: {reason}: {:?}", self.endpoint.counts()));
        assert!(self.judge.refused.lock().unwrap().contains(&reason));
    }

    /// Connects with these protocol names and sends these bytes.
    async fn send_bytes(&self, alpn: &[&[u8]], bytes: &[u8]) -> Result<(), quinn::ConnectionError> {
        let endpoint = Endpoint::client(LOOPBACK).unwrap();
        let mut config = pinned_config(self.token.authority).unwrap();
        config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
        let config = QuicClientConfig::try_from(config).unwrap();
        let config = quinn::ClientConfig::new(Arc::new(config));
        let to = self.endpoint.address();
        let conn = endpoint.connect_with(config, to, "node.springtide").unwrap().await?;
        let (mut send, mut recv) = conn.open_bi().await?;
        if !bytes.is_empty() {
            let _ = send.write_all(bytes).await;
            let _ = send.finish();
        }
        let _ = tokio::time::timeout(LONG, recv.read_to_end(1 << 20)).await;
        endpoint.close(VarInt::from_u32(0), b"");
        endpoint.wait_idle().await;
        Ok(())
    }
}

#[tokio::test]
async fn a_node_joins_and_its_links_are_accepted() {
    let grid = TestGrid::open(JoinLimits::default());
    let identity = grid.join(&grid.token, Some("lab-7")).await.unwrap();
    assert_eq!(identity.name().to_string(), "springtide://lab/node/lab-7");
    assert_eq!(grid.endpoint.counts(), JoinCounts { granted: 1, refused: BTreeMap::new() });
    let net = |identity| Net::quic(NetConfig::default(), identity, Incarnation(1)).unwrap();
    let (head, node) = (net(&grid.head), net(&identity));
    let arrived = Arc::new(tokio::sync::Notify::new());
    struct NotifyingInbox(Arc<tokio::sync::Notify>);
    impl crate::net::NetworkHandler for NotifyingInbox {
        fn frame(&self, _: &crate::id::Peer, _: Kind, _: bytes::Bytes) {
            self.0.notify_one();
        }
    }
    head.start(Arc::new(NotifyingInbox(arrived.clone())));
    node.start(Arc::new(NotifyingInbox(arrived.clone())));
    node.learn(head.contact());
    node.send(&"head".into(), crate::net::Class::Control, Kind::TELL, "x").unwrap();
    tokio::time::timeout(LONG, arrived.notified()).await.unwrap();
    node.close("done").await;
    head.close("done").await;
}

#[tokio::test]
async fn a_wrong_secret_is_refused_without_a_reason() {
    let grid = TestGrid::open(JoinLimits::default());
    let wrong = JoinToken { secret: "0".repeat(48), ..grid.token.clone() };
    let error = grid.join(&wrong, None).await.unwrap_err();
    assert!(matches!(&error, JoinError::Refused(why) if why == NOT_GOOD), "{error}");
    grid.counts(JoinReason::WrongSecret, 1).await;
}

#[tokio::test]
async fn nothing_is_sent_to_a_grid_of_another_authority() {
    let grid = TestGrid::open(JoinLimits::default());
    let authority = Ca::ephemeral("g").unwrap().fingerprint();
    let other = JoinToken { authority, ..grid.token.clone() };
    let error = grid.join(&other, None).await.unwrap_err();
    assert!(matches!(error, JoinError::OtherGrid { .. }), "{error}");
    grid.counts(JoinReason::Handshake, 1).await;
    assert_eq!(grid.requests(), 0);
    // The same applies to a node with the right authority that is not a head.
    let node = TestGrid::open_as("node", JoinLimits::default());
    let error = node.join(&node.token, None).await.unwrap_err();
    assert!(matches!(error, JoinError::OtherGrid { .. }), "{error}");
    node.counts(JoinReason::Handshake, 1).await;
    assert_eq!(node.requests(), 0);
}

#[tokio::test]
async fn other_protocols_are_refused_in_the_handshake() {
    let grid = TestGrid::open(JoinLimits::default());
    for alpn in [&[][..], &[crate::net::tls::ALPN][..], &[b"h3".as_slice()][..]] {
        assert!(grid.send_bytes(alpn, b"").await.is_err());
    }
    grid.counts(JoinReason::Alpn, 3).await;
    // The endpoint of links is not a join endpoint.
    let links = Net::quic(NetConfig::default(), &grid.head, Incarnation(1)).unwrap();
    struct IgnoringInbox;
    impl crate::net::NetworkHandler for IgnoringInbox {
        fn frame(&self, _: &crate::id::Peer, _: Kind, _: bytes::Bytes) {}
    }
    links.start(Arc::new(IgnoringInbox));
    let crate::net::Address::Socket(at) = links.address() else { panic!() };
    let request = NewKey::make().unwrap().request().unwrap();
    let error = join(LOOPBACK, at, &grid.token, request, None, LONG).await.unwrap_err();
    assert!(matches!(error, JoinError::NoDoor { .. }), "{error}");
    assert_eq!(links.refused().get(&crate::net::RefuseReason::Alpn), Some(&1));
    links.close("done").await;
}

#[tokio::test]
async fn malformed_requests_are_refused() {
    let grid = TestGrid::open(JoinLimits::default());
    let frame = |kind: Kind, len: u32| {
        let mut bytes = len.to_le_bytes().to_vec();
        bytes.extend(kind.0.to_le_bytes());
        bytes.extend([crate::wire::WIRE_VERSION, 0]);
        bytes
    };
    let body = encode(Kind::JOIN_REQUEST, &request()).unwrap();
    let cut = [frame(Kind::JOIN_REQUEST, body.len() as u32), body[..20].to_vec()].concat();
    let nonsense = [frame(Kind::JOIN_REQUEST, 4), b"\xc1\xc1\xc1\xc1".to_vec()].concat();
    let (hello, long) = (frame(Kind::HELLO, 1), frame(Kind::JOIN_REQUEST, 1 << 20));
    let bad: [&[u8]; 5] = [b"GET / HTTP/1.1\r\n\r\n", &cut, &nonsense, &hello, &long];
    for (n, bytes) in bad.into_iter().enumerate() {
        grid.send_bytes(&[crate::net::tls::JOIN_ALPN], bytes).await.unwrap();
        grid.counts(JoinReason::BadRequest, n as u64 + 1).await;
    }
    assert_eq!(grid.requests(), 0);
    grid.join(&grid.token, None).await.unwrap();
}

#[tokio::test]
async fn a_silent_caller_is_disconnected_and_its_slot_is_freed() {
    let within = Duration::from_millis(300);
    let grid = TestGrid::open(JoinLimits { max_callers: 1, timeout: within });
    let silent = async {
        grid.send_bytes(&[crate::net::tls::JOIN_ALPN], b"").await.unwrap();
    };
    let meanwhile = async {
        while grid.endpoint.callers() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let error = grid.join(&grid.token, None).await.unwrap_err();
        assert!(matches!(error, JoinError::Unreachable { .. }), "{error}");
    };
    tokio::join!(silent, meanwhile);
    grid.counts(JoinReason::Late, 1).await;
    grid.counts(JoinReason::Crowded, 1).await;
    grid.join(&grid.token, None).await.unwrap();
    assert_eq!(grid.requests(), 1);
}

fn request() -> JoinRequest {
    let (token, secret) = ("0123456789".to_owned(), "ab".repeat(24));
    let (version, request) = (VERSION, vec![0x30, 0x81, 1, 2]);
    JoinRequest { version, token, secret, request, node: Some("lab-2".into()) }
}

#[test]
fn golden_bytes() {
    let dir = env!("CARGO_MANIFEST_DIR");
    golden::check(dir, Kind::JOIN_REQUEST, "named", &request());
    golden::check(dir, Kind::JOIN_REQUEST, "plain", &JoinRequest { node: None, ..request() });
    let [certificate, authority, config] =
        ["-----BEGIN", "-----BEGIN", "grid = \"g\"\n"].map(str::to_owned);
    let grant = JoinGrant { certificate, authority, config };
    golden::check(dir, Kind::JOIN_GRANT, "plain", &grant);
    let refused = JoinRefused { why: "no".to_owned() };
    golden::check(dir, Kind::JOIN_REFUSED, "plain", &refused);
}

#[test]
fn mutated_frames_decode_or_give_typed_errors() {
    let decoders: [fuzz::Decoder; 3] = [
        (Kind::JOIN_REQUEST, |bytes| decode::<JoinRequest>(Kind::JOIN_REQUEST, bytes).is_ok()),
        (Kind::JOIN_GRANT, |bytes| decode::<JoinGrant>(Kind::JOIN_GRANT, bytes).is_ok()),
        (Kind::JOIN_REFUSED, |bytes| decode::<JoinRefused>(Kind::JOIN_REFUSED, bytes).is_ok()),
    ];
    let tally = fuzz::run(&golden::corpus(env!("CARGO_MANIFEST_DIR")), &decoders, 17);
    println!("{tally:?}");
    assert!(tally.accepted > 0 && tally.refused > 0 && tally.bad_header > 0, "{tally:?}");
}

#[test]
fn a_secret_is_not_in_the_debug_output() {
    assert!(!format!("{:?}", request()).contains("abab"));
}
