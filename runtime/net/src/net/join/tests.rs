//! Real endpoints on loopback. Waits are bounded only so that a failure ends.

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

/// Lets everybody in who says this secret, and remembers whom it saw.
struct Gate {
    ca: Ca,
    secret: String,
    asked: AtomicUsize,
    refused: Mutex<Vec<JoinReason>>,
}

impl JoinJudge for Gate {
    fn judge(&self, request: JoinRequest, _: SocketAddr) -> Judging {
        self.asked.fetch_add(1, Ordering::Relaxed);
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

struct Lab {
    gate: Arc<Gate>,
    door: JoinDoor,
    token: JoinToken,
    head: NodeIdentity,
}

const LOOPBACK: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

impl Lab {
    fn open(limits: JoinLimits) -> Self {
        Self::shown_as("head", limits)
    }

    fn shown_as(role: &str, limits: JoinLimits) -> Self {
        let ca = Ca::ephemeral("g").unwrap();
        let head = ca.issue(&"head".into(), &"head".into(), role, NODE_VALIDITY).unwrap();
        let Minted { id, secret, .. } = Minted::draw().unwrap();
        let token = JoinToken { authority: ca.fingerprint(), id, secret: secret.clone() };
        let (asked, refused) = (AtomicUsize::new(0), Mutex::default());
        let gate = Arc::new(Gate { ca, secret, asked, refused });
        let door = JoinDoor::open(LOOPBACK, &head, gate.clone(), limits).unwrap();
        Self { gate, door, token, head }
    }

    async fn join(&self, token: &JoinToken, node: Option<&str>) -> Result<NodeIdentity, JoinError> {
        let key = NewKey::make().unwrap();
        let ends = (LOOPBACK, self.door.address());
        let request = key.request().unwrap();
        let grant = join(ends, token, request, node.map(Into::into), LONG).await?;
        Ok(key.identity(&grant.certificate, &grant.authority)?)
    }

    fn asked(&self) -> usize {
        self.gate.asked.load(Ordering::Relaxed)
    }

    async fn counts(&self, reason: JoinReason, times: u64) {
        let wait = async {
            while self.door.counts().refused.get(&reason).copied().unwrap_or(0) < times {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let came = tokio::time::timeout(LONG, wait).await;
        came.unwrap_or_else(|_| panic!("never: {reason}: {:?}", self.door.counts()));
        assert!(self.gate.refused.lock().unwrap().contains(&reason));
    }

    /// Calls with these protocol names and says this.
    async fn say(&self, alpn: &[&[u8]], bytes: &[u8]) -> Result<(), quinn::ConnectionError> {
        let endpoint = Endpoint::client(LOOPBACK).unwrap();
        let mut config = pinned_config(self.token.authority).unwrap();
        config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
        let config = QuicClientConfig::try_from(config).unwrap();
        let config = quinn::ClientConfig::new(Arc::new(config));
        let to = self.door.address();
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
async fn a_node_joins_and_its_links_are_taken() {
    let lab = Lab::open(JoinLimits::default());
    let identity = lab.join(&lab.token, Some("lab-7")).await.unwrap();
    assert_eq!(identity.name().to_string(), "springtide://lab/node/lab-7");
    assert_eq!(lab.door.counts(), JoinCounts { granted: 1, refused: BTreeMap::new() });
    let net = |identity| Net::quic(NetConfig::default(), identity, Incarnation(1)).unwrap();
    let (head, node) = (net(&lab.head), net(&identity));
    let came = Arc::new(tokio::sync::Notify::new());
    struct Rings(Arc<tokio::sync::Notify>);
    impl crate::net::Inbox for Rings {
        fn frame(&self, _: &crate::id::Peer, _: Kind, _: bytes::Bytes) {
            self.0.notify_one();
        }
    }
    head.start(Arc::new(Rings(came.clone())));
    node.start(Arc::new(Rings(came.clone())));
    node.learn(head.contact());
    node.send(&"head".into(), crate::net::Class::Control, Kind::TELL, "x").unwrap();
    tokio::time::timeout(LONG, came.notified()).await.unwrap();
    node.close("done").await;
    head.close("done").await;
}

#[tokio::test]
async fn a_wrong_secret_is_refused_without_the_reason() {
    let lab = Lab::open(JoinLimits::default());
    let wrong = JoinToken { secret: "0".repeat(48), ..lab.token.clone() };
    let error = lab.join(&wrong, None).await.unwrap_err();
    assert!(matches!(&error, JoinError::Refused(why) if why == NOT_GOOD), "{error}");
    lab.counts(JoinReason::WrongSecret, 1).await;
}

#[tokio::test]
async fn a_grid_of_another_authority_is_told_nothing() {
    let lab = Lab::open(JoinLimits::default());
    let authority = Ca::ephemeral("g").unwrap().fingerprint();
    let other = JoinToken { authority, ..lab.token.clone() };
    let error = lab.join(&other, None).await.unwrap_err();
    assert!(matches!(error, JoinError::OtherGrid { .. }), "{error}");
    lab.counts(JoinReason::Handshake, 1).await;
    assert_eq!(lab.asked(), 0);
    // Nor is a node that shows the right authority and is no head.
    let node = Lab::shown_as("node", JoinLimits::default());
    let error = node.join(&node.token, None).await.unwrap_err();
    assert!(matches!(error, JoinError::OtherGrid { .. }), "{error}");
    node.counts(JoinReason::Handshake, 1).await;
    assert_eq!(node.asked(), 0);
}

#[tokio::test]
async fn other_protocols_are_refused_in_the_handshake() {
    let lab = Lab::open(JoinLimits::default());
    for alpn in [&[][..], &[crate::net::tls::ALPN][..], &[b"h3".as_slice()][..]] {
        assert!(lab.say(alpn, b"").await.is_err());
    }
    lab.counts(JoinReason::Alpn, 3).await;
    // And the endpoint of links is no door.
    let links = Net::quic(NetConfig::default(), &lab.head, Incarnation(1)).unwrap();
    struct Nobody;
    impl crate::net::Inbox for Nobody {
        fn frame(&self, _: &crate::id::Peer, _: Kind, _: bytes::Bytes) {}
    }
    links.start(Arc::new(Nobody));
    let crate::net::Address::Socket(at) = links.address() else { panic!() };
    let request = NewKey::make().unwrap().request().unwrap();
    let error = join((LOOPBACK, at), &lab.token, request, None, LONG).await.unwrap_err();
    assert!(matches!(error, JoinError::NoDoor { .. }), "{error}");
    assert_eq!(links.refused().get(&crate::net::RefuseReason::Alpn), Some(&1));
    links.close("done").await;
}

#[tokio::test]
async fn what_is_no_request_is_refused_unread() {
    let lab = Lab::open(JoinLimits::default());
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
        lab.say(&[crate::net::tls::JOIN_ALPN], bytes).await.unwrap();
        lab.counts(JoinReason::BadRequest, n as u64 + 1).await;
    }
    assert_eq!(lab.asked(), 0);
    lab.join(&lab.token, None).await.unwrap();
}

#[tokio::test]
async fn whoever_says_nothing_is_hung_up_on_and_keeps_nobody_out_for_long() {
    let within = Duration::from_millis(300);
    let lab = Lab::open(JoinLimits { at_once: 1, within });
    let silent = async {
        lab.say(&[crate::net::tls::JOIN_ALPN], b"").await.unwrap();
    };
    let meanwhile = async {
        while lab.door.shared_inside() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let error = lab.join(&lab.token, None).await.unwrap_err();
        assert!(matches!(error, JoinError::Unreachable { .. }), "{error}");
    };
    tokio::join!(silent, meanwhile);
    lab.counts(JoinReason::Late, 1).await;
    lab.counts(JoinReason::Crowded, 1).await;
    lab.join(&lab.token, None).await.unwrap();
    assert_eq!(lab.asked(), 1);
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
fn mutated_frames_are_values_or_typed_errors() {
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
fn a_secret_gets_into_no_log() {
    assert!(!format!("{:?}", request()).contains("abab"));
}
