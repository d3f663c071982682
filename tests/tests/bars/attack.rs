//! Callers that never finish: first packets from many addresses, and handshakes that are left half open.
//!
//! Packets are quinn's own (connection ids by a printed seed, keys by the system's randomness), so that the endpoint does all the work
//! for them that it would do for anybody's.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use quinn::crypto::rustls::QuicClientConfig;
use quinn_proto::{ClientConfig, DatagramEvent, Endpoint, EndpointConfig};
use springtide_runtime::random::SplitMix;

/// Where half-open callers are, each at a port of its own.
fn half_open_host(n: usize) -> Ipv4Addr {
    Ipv4Addr::new(127, 9, 9, 1 + n as u8)
}

fn is_half_open(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V4(ip) if ip.octets()[..3] == [127, 9, 9])
}

/// So long an answer is waited for.
const ANSWER: Duration = Duration::from_millis(300);
/// Callers under way at once.
const AT_ONCE: usize = 100;

pub struct Flood {
    pub at: SocketAddr,
    pub alpn: &'static [u8],
    /// These show that they are where they say, and then say nothing more.
    pub half_open: usize,
    /// At so many hosts.
    pub hosts: usize,
    /// Each of these from an address of its own.
    pub spoofed: usize,
    pub seed: u64,
}

/// What the callers were told.
#[derive(Debug, Default)]
pub struct Told {
    /// Asked to show where they are.
    pub retries: usize,
    /// Got the endpoint's part of a handshake, without having shown it.
    pub served: usize,
    /// Half open: asked, and showed it.
    pub followed: usize,
    /// Half open indeed: got the endpoint's part of a handshake, and left it at that.
    pub begun: usize,
    /// Half open: told, after that, that there is no place.
    pub turned_away: usize,
}

/// One caller: what it was told, in bytes.
struct Caller {
    socket: UdpSocket,
    endpoint: Endpoint,
    conn: quinn_proto::Connection,
    shown: bool,
    done: bool,
}

/// TLS that trusts nobody: nothing is ever finished.
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
    /// Sends all, and returns what came back.
    pub fn run(&self) -> Told {
        println!("an attack on {}: seed {}", self.at, self.seed);
        let mut rng = SplitMix(self.seed);
        let config = config(self.alpn);
        let mut told = Told::default();
        let half_open = (0..self.half_open).map(|n| half_open_host(n % self.hosts));
        // None of them twice, none the good peers'.
        let spoofed = (0..self.spoofed)
            .map(|n| Ipv4Addr::new(127, 20 + (n >> 16) as u8, (n >> 8) as u8, n as u8));
        let hosts: Vec<Ipv4Addr> = half_open.chain(spoofed).collect();
        // Half-open ones are kept to the end, so that all are so at once.
        let mut kept = Vec::new();
        for batch in hosts.chunks(AT_ONCE) {
            let mut callers: Vec<Caller> =
                batch.iter().map(|host| self.caller(*host, &config, &mut rng)).collect();
            let until = Instant::now() + ANSWER;
            while Instant::now() < until && callers.iter().any(|caller| !caller.done) {
                for caller in callers.iter_mut().filter(|caller| !caller.done) {
                    self.hear(caller, &mut told);
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            kept.extend(callers.into_iter().filter(|caller| caller.shown));
        }
        told
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
            // A full buffer of the system's is as good as a lost packet.
            let _ = caller.socket.send_to(&packet, self.at);
            packet.clear();
        }
    }

    fn hear(&self, caller: &mut Caller, told: &mut Told) {
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
                told.retries += 1;
                caller.done = true;
            }
            (3, true, false) => {
                told.retries += 1;
                told.followed += 1;
                self.show(caller, &buffer[..len]);
            }
            // Short ones carry a close and no keys: it was turned away.
            (_, true, true) => {
                told.begun += usize::from(len >= 200);
                told.turned_away += usize::from(len < 200);
                caller.done = true;
            }
            (_, true, false) => {
                told.begun += usize::from(len >= 200);
                caller.done = true;
            }
            (_, false, _) => {
                told.served += 1;
                caller.done = true;
            }
        }
    }

    /// Says again what it said, with the answer to the request to show where it is.
    fn show(&self, caller: &mut Caller, retry: &[u8]) {
        let (now, mut out) = (Instant::now(), Vec::new());
        let heard =
            caller.endpoint.handle(now, self.at, None, None, BytesMut::from(retry), &mut out);
        if let Some(DatagramEvent::ConnectionEvent(_, event)) = heard {
            caller.conn.handle_event(event);
        }
        caller.shown = true;
        self.send(caller);
    }
}
