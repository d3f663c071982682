//! Callers that never finish: first packets from many addresses, and half-open handshakes.
//!
//! Packets are quinn's own, so that the endpoint does all its usual work for them. Connection ids
//! follow from a printed seed, keys from the system's randomness.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use quinn::crypto::rustls::QuicClientConfig;
use quinn_proto::{ClientConfig, DatagramEvent, Endpoint, EndpointConfig};
use springtide_runtime::random::SplitMix;

/// The addresses of half-open callers, each with its own port.
fn half_open_host(n: usize) -> Ipv4Addr {
    Ipv4Addr::new(127, 9, 9, 1 + n as u8)
}

fn is_half_open(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V4(ip) if ip.octets()[..3] == [127, 9, 9])
}

/// The time to wait for an answer.
const ANSWER: Duration = Duration::from_millis(300);
/// The number of simultaneous callers.
const AT_ONCE: usize = 100;

pub struct Flood {
    pub at: SocketAddr,
    pub alpn: &'static [u8],
    /// Callers that verify their address, and then send nothing.
    pub half_open: usize,
    /// The number of hosts of these.
    pub hosts: usize,
    /// Callers from an address of their own each.
    pub spoofed: usize,
    pub seed: u64,
}

/// The answers that callers got.
#[derive(Debug, Default)]
pub struct Answers {
    /// Requests to verify the address.
    pub retries: usize,
    /// Endpoint's parts of a handshake, without verification.
    pub served: usize,
    /// Half-open callers that verified their address.
    pub followed: usize,
    /// Half-open callers that got the endpoint's part of a handshake, and sent no more.
    pub begun: usize,
    /// Half-open callers that were refused after the verification, for lack of a place.
    pub turned_away: usize,
}

/// A caller, with the bytes that it got.
struct Caller {
    socket: UdpSocket,
    endpoint: Endpoint,
    conn: quinn_proto::Connection,
    shown: bool,
    done: bool,
}

/// TLS that trusts no certificate, so that no handshake finishes.
fn config(alpn: &[u8]) -> ClientConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    tls.alpn_protocols = vec![alpn.to_vec()];
    ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()))
}

impl Flood {
    /// Runs all callers, and returns the answers.
    pub fn run(&self) -> Answers {
        println!("an attack on {}: seed {}", self.at, self.seed);
        let mut rng = SplitMix(self.seed);
        let config = config(self.alpn);
        let mut answers = Answers::default();
        let half_open = (0..self.half_open).map(|n| half_open_host(n % self.hosts));
        // Each address once, and none of the good peers'.
        let spoofed = (0..self.spoofed)
            .map(|n| Ipv4Addr::new(127, 20 + (n >> 16) as u8, (n >> 8) as u8, n as u8));
        let hosts: Vec<Ipv4Addr> = half_open.chain(spoofed).collect();
        // Half-open callers are kept to the end, so that all are open at once.
        let mut kept = Vec::new();
        for batch in hosts.chunks(AT_ONCE) {
            let mut callers: Vec<Caller> =
                batch.iter().map(|host| self.caller(*host, &config, &mut rng)).collect();
            let until = Instant::now() + ANSWER;
            while Instant::now() < until && callers.iter().any(|caller| !caller.done) {
                for caller in callers.iter_mut().filter(|caller| !caller.done) {
                    self.receive(caller, &mut answers);
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            kept.extend(callers.into_iter().filter(|caller| caller.shown));
        }
        answers
    }

    fn caller(&self, host: Ipv4Addr, config: &ClientConfig, rng: &mut SplitMix) -> Caller {
        let socket = UdpSocket::bind((host, 0)).unwrap();
        socket.set_nonblocking(true).unwrap();
        let mut seed = [0; 32];
        seed.chunks_mut(8).for_each(|part| part.copy_from_slice(&rng.next().to_le_bytes()));
        let mut endpoint =
            Endpoint::new(Arc::new(EndpointConfig::default()), None, false, Some(seed));
        let now = Instant::now();
        let (_, conn) = endpoint.connect(now, config.clone(), self.at, "node.springtide").unwrap();
        let mut caller = Caller { socket, endpoint, conn, shown: false, done: false };
        self.send(&mut caller);
        caller
    }

    fn send(&self, caller: &mut Caller) {
        let mut packet = Vec::new();
        while caller.conn.poll_transmit(Instant::now(), 1, &mut packet).is_some() {
            // A full buffer of the system is equivalent to a lost packet.
            let _ = caller.socket.send_to(&packet, self.at);
            packet.clear();
        }
    }

    fn receive(&self, caller: &mut Caller, answers: &mut Answers) {
        let mut buffer = [0; 2048];
        let len = match caller.socket.recv_from(&mut buffer) {
            Ok((len, _)) => len,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            Err(error) => panic!("{error}"),
        };
        let half_open = is_half_open(caller.socket.local_addr().unwrap().ip());
        // The type of a long header (RFC 9000, 17.2).
        match (buffer[0] >> 4 & 3, half_open, caller.shown) {
            (3, false, _) => {
                answers.retries += 1;
                caller.done = true;
            }
            (3, true, false) => {
                answers.retries += 1;
                answers.followed += 1;
                self.show(caller, &buffer[..len]);
            }
            // Short answers contain a close and no keys: the caller was refused.
            (_, true, true) => {
                answers.begun += usize::from(len >= 200);
                answers.turned_away += usize::from(len < 200);
                caller.done = true;
            }
            (_, true, false) => {
                answers.begun += usize::from(len >= 200);
                caller.done = true;
            }
            (_, false, _) => {
                answers.served += 1;
                caller.done = true;
            }
        }
    }

    /// Repeats the first packet, with the token of the Retry.
    fn show(&self, caller: &mut Caller, retry: &[u8]) {
        let (now, mut out) = (Instant::now(), Vec::new());
        let event =
            caller.endpoint.handle(now, self.at, None, None, BytesMut::from(retry), &mut out);
        if let Some(DatagramEvent::ConnectionEvent(_, event)) = event {
            caller.conn.handle_event(event);
        }
        caller.shown = true;
        self.send(caller);
    }
}
