//! The reference program of the benches, written with quinn alone: mutual TLS over loopback, one
//! long stream, length-prefixed frames.
//!
//! It answers all frames of one read by one write.

#![allow(dead_code)] // each bench uses a part of it

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use springtide_runtime::net::tls::NodeIdentity;

/// Length of a message in bytes.
pub const BODY: usize = 64;
/// Number of round trips in a round.
pub const PINGS: usize = 10_000;
/// Number of messages in a round with [`IN_FLIGHT`] of them in flight.
pub const PIPELINED: usize = 200_000;
/// Number of messages in flight in a round of [`PIPELINED`] messages.
pub const IN_FLIGHT: usize = 256;

pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

pub fn p50(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// A thread with a single-threaded runtime that executes the futures it receives.
pub struct Thread(tokio::runtime::Handle);

impl Thread {
    pub fn start() -> Self {
        let (tx, rx) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.expect("a runtime");
            tx.send(runtime.handle().clone()).expect("the starter waits");
            runtime.block_on(std::future::pending::<()>());
        });
        Self(rx.recv().expect("the thread sends its handle"))
    }

    pub fn run<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> T {
        let (tx, rx) = std::sync::mpsc::channel();
        self.0.spawn(async move { tx.send(work.await) });
        rx.recv().expect("the work ends")
    }
}

/// A client and a server with quinn alone.
pub struct QuinnProgram {
    client: Thread,
    stream: Arc<tokio::sync::Mutex<(quinn::SendStream, quinn::RecvStream)>>,
}

impl QuinnProgram {
    pub fn start(server: &NodeIdentity, client: &NodeIdentity) -> Self {
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

    pub fn round_trips(&self) -> Duration {
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

    pub fn pipelined(&self) -> f64 {
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
    let mut config = quinn::ServerConfig::with_crypto(Arc::new(crypto));
    config.transport_config(without_timeout());
    config
}

/// quinn's defaults, except that the connection stays open in rounds in which it is idle.
fn without_timeout() -> Arc<quinn::TransportConfig> {
    let mut transport = quinn::TransportConfig::default();
    transport.max_idle_timeout(None);
    Arc::new(transport)
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
    let crypto = QuicClientConfig::try_from(tls).expect("a cipher suite");
    let mut config = quinn::ClientConfig::new(Arc::new(crypto));
    config.transport_config(without_timeout());
    config
}
