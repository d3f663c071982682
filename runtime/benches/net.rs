//! What the network costs over bare quinn: the round trip of a 64-byte message and the rate of pipelined ones.
//!
//! `cargo bench -p springtide-runtime --bench net [-- ROUNDS]`. Both sides are threads of this process with a
//! single-threaded runtime each, with mutual TLS, over loopback. The hand-written quinn program and ours take turns, so that
//! what else the machine does meets both; read the ratios. The hand-written one is a good one: one long stream, frames
//! with a length before them, everything that one read brought is answered by one write.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use springtide_runtime::id::{Incarnation, NodeId, Peer};
use springtide_runtime::net::tls::{Ca, EPHEMERAL_VALIDITY, NodeIdentity};
use springtide_runtime::net::{Class, Inbox, Net, NetConfig};
use springtide_runtime::wire::Kind;
use tokio::sync::oneshot;

const BODY: usize = 64;
const PINGS: usize = 10_000;
const PIPELINED: usize = 200_000;
const IN_FLIGHT: usize = 256;

fn main() {
    let rounds = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(5);
    let ca = Ca::ephemeral("bench").expect("an authority");
    let identity = |name: &str| {
        ca.issue(&name.into(), &"c".into(), "node", EPHEMERAL_VALIDITY).expect("an identity")
    };
    let (one, two) = (identity("one"), identity("two"));
    let bare = Bare::start(&one, &two);
    let ours = Ours::start(&one, &two);
    let (mut latency, mut rate) = (Vec::new(), Vec::new());
    println!(
        "{:>5} {:>12} {:>12} {:>6} {:>14} {:>14} {:>6}",
        "round", "bare p50", "ours p50", "ratio", "bare msg/s", "ours msg/s", "ratio"
    );
    for round in 1..=rounds {
        let (a, b) = (bare.round_trips(), ours.round_trips());
        let (c, d) = (bare.pipelined(), ours.pipelined());
        latency.push(b.as_secs_f64() / a.as_secs_f64());
        rate.push(d / c);
        println!(
            "{round:>5} {:>9.1} us {:>9.1} us {:>6.2} {c:>14.0} {d:>14.0} {:>6.2}",
            a.as_secs_f64() * 1e6,
            b.as_secs_f64() * 1e6,
            latency[latency.len() - 1],
            rate[rate.len() - 1]
        );
    }
    println!(
        "round trip, ours / bare, median of rounds: {:.3} (bar: at most 1.15)",
        median(&mut latency)
    );
    println!(
        "pipelined rate, ours / bare, median of rounds: {:.3} (bar: at least 0.70)",
        median(&mut rate)
    );
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn p50(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// A thread with a single-threaded runtime that runs what it is sent.
struct Thread(tokio::runtime::Handle);

impl Thread {
    fn start() -> Self {
        let (tx, rx) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.expect("a runtime");
            tx.send(runtime.handle().clone()).expect("the starter waits");
            runtime.block_on(std::future::pending::<()>());
        });
        Self(rx.recv().expect("the thread says its handle"))
    }

    fn run<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> T {
        let (tx, rx) = std::sync::mpsc::channel();
        self.0.spawn(async move { tx.send(work.await) });
        rx.recv().expect("the work ends")
    }
}

/// The program one would write with quinn alone.
struct Bare {
    client: Thread,
    stream: Arc<tokio::sync::Mutex<(quinn::SendStream, quinn::RecvStream)>>,
}

impl Bare {
    fn start(server: &NodeIdentity, client: &NodeIdentity) -> Self {
        let (at_server, at_client) = (Thread::start(), Thread::start());
        let server_config = server_config(server);
        let address = at_server.run(async move {
            let any: SocketAddr = "127.0.0.1:0".parse().expect("an address");
            let endpoint = quinn::Endpoint::server(server_config, any).expect("an endpoint");
            let address = endpoint.local_addr().expect("an address");
            tokio::spawn(async move {
                let conn = endpoint.accept().await.expect("a call").await.expect("a connection");
                let (send, recv) = conn.accept_bi().await.expect("a stream");
                echo(send, recv).await;
            });
            address
        });
        let client_config = client_config(client);
        let stream = at_client.run(async move {
            let any = "127.0.0.1:0".parse().expect("an address");
            let endpoint = quinn::Endpoint::client(any).expect("an endpoint");
            let call = endpoint.connect_with(client_config, address, "node.springtide");
            let conn = call.expect("a call").await.expect("a connection");
            conn.open_bi().await.expect("a stream")
        });
        Self { client: at_client, stream: Arc::new(tokio::sync::Mutex::new(stream)) }
    }

    fn round_trips(&self) -> Duration {
        let stream = self.stream.clone();
        self.client.run(async move {
            let (send, recv) = &mut *stream.lock().await;
            let mut message = [0; 4 + BODY];
            message[..4].copy_from_slice(&(BODY as u32).to_le_bytes());
            let mut body = [0; BODY];
            let mut times = Vec::with_capacity(PINGS);
            for _ in 0..PINGS {
                let start = Instant::now();
                send.write_all(&message).await.expect("written");
                let mut len = [0; 4];
                recv.read_exact(&mut len).await.expect("a header");
                recv.read_exact(&mut body).await.expect("a body");
                times.push(start.elapsed());
            }
            p50(times)
        })
    }

    fn pipelined(&self) -> f64 {
        let stream = self.stream.clone();
        self.client.run(async move {
            let (send, recv) = &mut *stream.lock().await;
            let mut message = [0; 4 + BODY];
            message[..4].copy_from_slice(&(BODY as u32).to_le_bytes());
            let mut frames = Frames::default();
            let mut batch = message.repeat(IN_FLIGHT);
            let (mut sent, mut got) = (IN_FLIGHT, 0);
            let start = Instant::now();
            while got < PIPELINED {
                if !batch.is_empty() {
                    send.write_all(&batch).await.expect("written");
                    batch.clear();
                }
                let chunk = recv.read_chunk(usize::MAX, true).await.expect("read").expect("open");
                got += frames.each(&chunk.bytes, |_| {
                    if sent < PIPELINED {
                        sent += 1;
                        batch.extend_from_slice(&message);
                    }
                });
            }
            PIPELINED as f64 / start.elapsed().as_secs_f64()
        })
    }
}

async fn echo(mut send: quinn::SendStream, mut recv: quinn::RecvStream) {
    let mut frames = Frames::default();
    let mut batch = Vec::new();
    while let Ok(Some(chunk)) = recv.read_chunk(usize::MAX, true).await {
        frames.each(&chunk.bytes, |body| {
            batch.extend_from_slice(&(body.len() as u32).to_le_bytes());
            batch.extend_from_slice(body);
        });
        if send.write_all(&batch).await.is_err() {
            return;
        }
        batch.clear();
    }
}

#[derive(Default)]
struct Frames(Vec<u8>);

impl Frames {
    fn each(&mut self, data: &[u8], mut sink: impl FnMut(&[u8])) -> usize {
        self.0.extend_from_slice(data);
        let (mut at, mut count) = (0, 0);
        while let Some(header) = self.0[at..].first_chunk() {
            let end = at + 4 + u32::from_le_bytes(*header) as usize;
            let Some(body) = self.0.get(at + 4..end) else { break };
            sink(body);
            (at, count) = (end, count + 1);
        }
        self.0.drain(..at);
        count
    }
}

fn material(
    identity: &NodeIdentity,
) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>, Arc<rustls::RootCertStore>) {
    let [cert, key, ca] = identity.pem();
    let mut roots = rustls::RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(ca.as_bytes()).expect("a certificate"))
        .expect("a root");
    let cert = CertificateDer::from_pem_slice(cert.as_bytes()).expect("a certificate");
    (vec![cert], PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("a key"), Arc::new(roots))
}

fn server_config(identity: &NodeIdentity) -> quinn::ServerConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let (cert, key, roots) = material(identity);
    let verifier =
        rustls::server::WebPkiClientVerifier::builder_with_provider(roots, provider.clone());
    let tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("TLS 1.3")
        .with_client_cert_verifier(verifier.build().expect("a verifier"))
        .with_single_cert(cert, key)
        .expect("a certificate");
    let crypto = QuicServerConfig::try_from(tls).expect("a cipher suite");
    quinn::ServerConfig::with_crypto(Arc::new(crypto))
}

fn client_config(identity: &NodeIdentity) -> quinn::ClientConfig {
    let (cert, key, roots) = material(identity);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("TLS 1.3")
        .with_root_certificates(roots)
        .with_client_auth_cert(cert, key)
        .expect("a certificate");
    quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).expect("a cipher suite")))
}

/// The same over `Net`.
struct Ours {
    client: Thread,
    net: Net,
    asker: Arc<Asker>,
    _server: Net,
}

struct Echo(OnceLock<Net>);

impl Inbox for Echo {
    fn frame(&self, from: &Peer, kind: Kind, body: Bytes) {
        let net = self.0.get().expect("set before it was started");
        net.send(&from.node, Class::Steal, kind, body).expect("room");
    }
}

/// Sends the next message when an answer comes.
#[derive(Default)]
struct Asker {
    net: OnceLock<Net>,
    message: OnceLock<(NodeId, Bytes)>,
    left: AtomicUsize,
    unanswered: AtomicUsize,
    asked: Mutex<Option<Instant>>,
    times: Mutex<Vec<Duration>>,
    done: Mutex<Option<oneshot::Sender<()>>>,
}

impl Asker {
    fn ask(&self) {
        self.left.fetch_sub(1, Ordering::Relaxed);
        let net = self.net.get().expect("set before it was started");
        let (to, body) = self.message.get_or_init(|| ("one".into(), vec![0; BODY].into()));
        net.send(to, Class::Steal, Kind::TELL, body.clone()).expect("room");
    }

    async fn exchange(&self, messages: usize, in_flight: usize) -> Duration {
        let (tx, rx) = oneshot::channel();
        *self.done.lock().expect("sound") = Some(tx);
        self.left.store(messages, Ordering::Relaxed);
        self.unanswered.store(messages, Ordering::Relaxed);
        let start = Instant::now();
        *self.asked.lock().expect("sound") = (in_flight == 1).then_some(start);
        (0..in_flight).for_each(|_| self.ask());
        rx.await.expect("all are answered");
        start.elapsed()
    }
}

impl Inbox for Asker {
    fn frame(&self, _from: &Peer, _kind: Kind, _body: Bytes) {
        if let Some(asked) = &mut *self.asked.lock().expect("sound") {
            let now = Instant::now();
            self.times.lock().expect("sound").push(now - *asked);
            *asked = now;
        }
        if self.unanswered.fetch_sub(1, Ordering::Relaxed) == 1 {
            let done = self.done.lock().expect("sound").take();
            let _ = done.map(|done| done.send(()));
        } else if self.left.load(Ordering::Relaxed) > 0 {
            self.ask();
        }
    }
}

impl Ours {
    fn start(server: &NodeIdentity, client: &NodeIdentity) -> Self {
        let (at_server, at_client) = (Thread::start(), Thread::start());
        let open = |thread: &Thread, identity: &NodeIdentity| {
            let identity = identity.clone();
            thread.run(async move {
                Net::quic(NetConfig::default(), &identity, Incarnation(1)).expect("a network")
            })
        };
        let (server_net, net) = (open(&at_server, server), open(&at_client, client));
        let echo = Arc::new(Echo(OnceLock::from(server_net.clone())));
        let asker = Arc::new(Asker::default());
        assert!(asker.net.set(net.clone()).is_ok());
        server_net.start(echo);
        net.learn(server_net.contact());
        net.start(asker.clone());
        Self { client: at_client, net, asker, _server: server_net }
    }

    fn round_trips(&self) -> Duration {
        let asker = self.asker.clone();
        self.client.run(async move {
            asker.exchange(PINGS, 1).await;
            p50(std::mem::take(&mut *asker.times.lock().expect("sound")))
        })
    }

    fn pipelined(&self) -> f64 {
        let asker = self.asker.clone();
        self.client.run(async move {
            let took = asker.exchange(PIPELINED, IN_FLIGHT).await;
            PIPELINED as f64 / took.as_secs_f64()
        })
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        let net = self.net.clone();
        self.client.run(async move { net.close("the bench is over").await });
    }
}
