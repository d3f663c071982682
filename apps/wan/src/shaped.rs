//! Sockets that delay, lose and limit what they send by a table of links: an emulated network on
//! loopback for cooperating processes.
//!
//! They need no privilege. All emulation takes place before a datagram is sent; the receiver uses
//! plain sockets. Datagrams to addresses outside the table's network pass unchanged. This module
//! does not depend on the contents of datagrams.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use quinn::udp::{EcnCodepoint, RecvMeta, Transmit, UdpSocketState};
use quinn::{AsyncUdpSocket, Runtime as _, UdpPoller};
use springtide_runtime::random::SplitMix;

use crate::sys;
use crate::table::LinkTable;

/// Bytes of the IPv4 and UDP headers: a link carries them, and the router, which sees whole
/// packets, counts them.
const HEADERS: usize = 28;
/// The maximum number of bytes under way from one socket; more are lost, however long a queue the
/// table has.
const BYTES_MAX: usize = 64 << 20;
/// Time after the close of a socket in which datagrams under way still arrive, in nanoseconds.
const LINGER: u64 = 2_000_000_000;
/// Delay of a retry if the system has no room for a datagram.
const RETRY_DELAY: Duration = Duration::from_micros(50);
/// The number of attempts before a datagram is lost.
const ATTEMPTS_MAX: u32 = 2000;
/// A real-time priority above most programs, and below what Linux itself needs.
const PRIORITY: i32 = 50;

struct QueuedDatagram {
    at: u64,
    seq: u64,
    to: SocketAddr,
    from: Option<IpAddr>,
    ecn: Option<EcnCodepoint>,
    contents: Box<[u8]>,
}

impl PartialEq for QueuedDatagram {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.seq) == (other.at, other.seq)
    }
}
impl Eq for QueuedDatagram {}
impl PartialOrd for QueuedDatagram {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for QueuedDatagram {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.seq).cmp(&(other.at, other.seq))
    }
}

/// The datagrams under way from one socket.
struct DatagramsInFlight {
    rng: SplitMix,
    /// Of impairments, so that they do not change the history of losses and jitter.
    impair_rng: SplitMix,
    in_flight: BinaryHeap<Reverse<QueuedDatagram>>,
    /// The total bytes of their contents.
    bytes: usize,
    seq: u64,
    /// The time of the sender's next check; earlier datagrams must wake it. 0 while it is awake: it
    /// checks again before it sleeps.
    wakes_at: u64,
    /// The end of all transmission after the socket was closed.
    ends_at: u64,
}

struct SocketState {
    table: Arc<LinkTable>,
    /// A duplicate of the inner socket, for a thread outside of its runtime.
    socket: UdpSocket,
    udp: UdpSocketState,
    state: Mutex<DatagramsInFlight>,
    wake: Condvar,
}

/// A UDP socket of one cluster of an emulated network.
///
/// A thread sends the datagrams under way, and ends soon after the socket is closed.
pub struct Shaped {
    inner: Arc<dyn AsyncUdpSocket>,
    shared: Arc<SocketState>,
    own: u8,
}

impl fmt::Debug for Shaped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shaped").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl Shaped {
    /// Wraps a bound socket, whose address determines its cluster.
    ///
    /// It fits `springtide_runtime::net::Net::quic_over`.
    ///
    /// # Errors
    /// The address belongs to no cluster of the table, or the system gives no thread.
    ///
    /// # Panics
    /// Panics outside a tokio runtime.
    pub fn wrap(socket: UdpSocket, table: Arc<LinkTable>) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        let address = socket.local_addr()?;
        let own = table.number_of(address.ip()).filter(|number| table.has(*number));
        let own = own.ok_or_else(|| {
            let reason = format!(
                "{} is in no cluster of the emulated network, which has {}: bind to one of these",
                address.ip(),
                table.range()
            );
            io::Error::new(io::ErrorKind::InvalidInput, reason)
        })?;
        let out = socket.try_clone()?;
        let udp = UdpSocketState::new((&out).into())?;
        let inner = quinn::TokioRuntime.wrap_udp_socket(socket)?;
        let state = DatagramsInFlight {
            rng: SplitMix::with_text(table.seed(), &address.to_string()),
            impair_rng: SplitMix::with_text(table.seed(), &format!("impair {address}")),
            in_flight: BinaryHeap::new(),
            bytes: 0,
            seq: 0,
            wakes_at: 0,
            ends_at: u64::MAX,
        };
        let (state, wake) = (Mutex::new(state), Condvar::new());
        let shared = Arc::new(SocketState { table, socket: out, udp, state, wake });
        let sender = shared.clone();
        thread::Builder::new().name("shaped".into()).spawn(move || sender.serve())?;
        Ok(Arc::new(Self { inner, shared, own }))
    }
}

impl Drop for Shaped {
    fn drop(&mut self) {
        self.shared.lock().ends_at = sys::now_ns().saturating_add(LINGER);
        // The thread is not joined: the thread that closes a socket often serves others.
        self.shared.wake.notify_one();
    }
}

impl AsyncUdpSocket for Shaped {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        // Shaped datagrams are always accepted; others wait for the inner socket.
        self.inner.clone().create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let Some(to) = self.shared.table.number_of(transmit.destination.ip()) else {
            return self.inner.try_send(transmit);
        };
        self.shared.take(self.own, to, transmit);
        Ok(())
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

impl SocketState {
    fn lock(&self) -> MutexGuard<'_, DatagramsInFlight> {
        // Each step leaves the value valid.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Accepts a transmission of one or several datagrams of one length.
    fn take(&self, own: u8, to: u8, transmit: &Transmit<'_>) {
        let segment = transmit.segment_size.unwrap_or(transmit.contents.len()).max(1);
        let mut guard = self.lock();
        let state = &mut *guard;
        // All datagrams of a transmission are sent at one time.
        let now = sys::now_ns();
        for contents in transmit.contents.chunks(segment) {
            let len = contents.len() + HEADERS;
            if state.bytes + contents.len() > BYTES_MAX {
                self.table.lose(own, to, len);
                continue;
            }
            let Some(at) = self.table.offer(own, to, len, now, &mut state.rng) else { continue };
            let fate = self.table.impair(own, to, &mut state.impair_rng);
            let Some(fate) = fate.filter(|fate| !fate.is_lost) else { continue };
            let at = at.saturating_add(u64::try_from(fate.hold.as_nanos()).unwrap_or(u64::MAX));
            let (address, from, ecn) = (transmit.destination, transmit.src_ip, transmit.ecn);
            let is_whole = fate.flip.is_none() && !fate.is_duplicated;
            // A datagram without delay is sent here, but not before earlier ones.
            let at_once = at <= now && state.in_flight.is_empty() && state.wakes_at != 0;
            if at_once && is_whole && self.send(address, from, ecn, contents).is_ok() {
                continue;
            }
            for _ in 0..if fate.is_duplicated { 2 } else { 1 } {
                state.seq += 1;
                state.bytes += contents.len();
                let (seq, mut contents): (u64, Box<[u8]>) = (state.seq, contents.into());
                fate.corrupt(&mut contents);
                state.in_flight.push(Reverse(QueuedDatagram {
                    at,
                    seq,
                    to: address,
                    from,
                    ecn,
                    contents,
                }));
            }
        }
        let next = state.in_flight.peek().map_or(u64::MAX, |Reverse(datagram)| datagram.at);
        if next < state.wakes_at {
            // The sender is notified once: it is awake until its next check.
            state.wakes_at = 0;
            drop(guard);
            self.wake.notify_one();
        }
    }

    fn send(
        &self,
        destination: SocketAddr,
        src_ip: Option<IpAddr>,
        ecn: Option<EcnCodepoint>,
        contents: &[u8],
    ) -> io::Result<()> {
        let transmit = Transmit { destination, ecn, contents, segment_size: None, src_ip };
        // The only error is a lack of room; the socket logs others, as for other sockets.
        self.udp.send((&self.socket).into(), &transmit)
    }

    /// Sends datagrams that are due until the socket is closed.
    fn serve(&self) {
        // By default Linux adds 50 us to wake-up times. Real-time priority needs a privilege;
        // without it the thread waits for its turn.
        if let Err(error) =
            sys::wake_precisely().and_then(|()| sys::set_realtime_priority(PRIORITY))
        {
            tracing::debug!(%error, "what sends shaped datagrams runs as any thread");
        }
        let mut due = Vec::new();
        let mut state = self.lock();
        loop {
            let now = sys::now_ns();
            while let Some(Reverse(datagram)) = state.in_flight.peek()
                && datagram.at <= now
                && let Some(Reverse(datagram)) = state.in_flight.pop()
            {
                state.bytes -= datagram.contents.len();
                due.push(datagram);
            }
            if !due.is_empty() {
                state.wakes_at = 0;
                drop(state);
                due.drain(..).for_each(|datagram| self.deliver(&datagram));
                state = self.lock();
                continue;
            }
            let next = state.in_flight.peek().map(|Reverse(datagram)| datagram.at);
            let ends_at = state.ends_at;
            if ends_at != u64::MAX && next.is_none_or(|next| next > ends_at) {
                return;
            }
            state.wakes_at = next.unwrap_or(u64::MAX);
            state = match next {
                None => self.wake.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(next) => {
                    let wait = Duration::from_nanos(next.saturating_sub(sys::now_ns()));
                    let woken = self.wake.wait_timeout(state, wait);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    fn deliver(&self, datagram: &QueuedDatagram) {
        for _ in 0..ATTEMPTS_MAX {
            if self.send(datagram.to, datagram.from, datagram.ecn, &datagram.contents).is_ok() {
                return;
            }
            thread::sleep(RETRY_DELAY);
        }
        tracing::warn!(to = %datagram.to, "the system had no room for a datagram: it is lost");
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::Mutex;
    use std::time::Instant;

    use bytes::Bytes;
    use springtide_runtime::config::{Sources, TopologyConfig, load};
    use springtide_runtime::id::{Incarnation, Peer};
    use springtide_runtime::net::tls::{Ca, EPHEMERAL_VALIDITY};
    use springtide_runtime::net::{Class, Net, NetConfig, NetError, NetworkHandler};
    use springtide_runtime::topology::Topology;
    use springtide_runtime::wire::Kind;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn table(dir: &tempfile::TempDir, wide: &str) -> Arc<LinkTable> {
        let text = format!(
            "name = \"two\"\nnet = \"127.77.0.0/16\"\n[wide]\n{wide}\n\
             [[cluster]]\nname = \"a\"\nnodes = 2\ndelay = \"0ns\"\n[[cluster]]\nname = \"b\"\n"
        );
        let config = load::<TopologyConfig>(&Sources::of_text("t.toml", &text));
        let topology =
            Topology::from_config(&config.unwrap_or_else(|error| panic!("{error}")).value);
        Arc::new(LinkTable::create(&dir.path().join("t.links"), &topology, 1).unwrap())
    }

    fn bound(third: u8, fourth: u8) -> UdpSocket {
        UdpSocket::bind((Ipv4Addr::new(127, 77, third, fourth), 0))
            .expect("all of 127/8 is this machine")
    }

    /// Sends one transmission of datagrams of this length.
    fn send(socket: &dyn AsyncUdpSocket, to: SocketAddr, contents: &[u8], each: usize) {
        let (segment_size, ecn, src_ip) = (Some(each), None, None);
        let transmit = Transmit { destination: to, ecn, contents, segment_size, src_ip };
        socket.try_send(&transmit).expect("it is taken");
    }

    fn receive(socket: &UdpSocket) -> Vec<u8> {
        let mut buffer = [0; 2000];
        socket.set_read_timeout(Some(LONG)).unwrap();
        let (len, _) = socket.recv_from(&mut buffer).expect("it comes");
        buffer[..len].to_vec()
    }

    #[tokio::test]
    async fn segments_are_separate_datagrams_and_arrive_after_their_delay() {
        let dir = tempfile::tempdir().unwrap();
        let table = table(&dir, "rtt = \"40ms\"\nbandwidth = \"10MB/s\"");
        let (near, other, far) = (bound(1, 1), bound(1, 2), bound(2, 1));
        let own = Shaped::wrap(near, table.clone()).unwrap();
        let began = Instant::now();
        send(&*own, far.local_addr().unwrap(), &[[1; 100], [2; 100]].concat()[..150], 100);
        assert_eq!((receive(&far), receive(&far)), (vec![1; 100], vec![2; 50]));
        assert!(began.elapsed() >= Duration::from_millis(20), "{:?}", began.elapsed());
        // Datagrams without any delay keep the order of sending.
        for n in 0..50 {
            send(&*own, other.local_addr().unwrap(), &[n; 10], 10);
        }
        let order: Vec<u8> = (0..50).map(|_| receive(&other)[0]).collect();
        assert_eq!(order, Vec::from_iter(0..50));
        let counts: Vec<_> = table.lines().map(|(.., counts)| counts).collect();
        assert_eq!((counts[0].packets, counts[1].packets, counts[1].bytes), (50, 2, 150 + 2 * 28));
        assert_eq!(counts[1].lost, 0);
        // Datagrams over a cut line are lost; those to other networks pass and are not counted.
        table.cut(&"a".into(), &"b".into(), true).unwrap();
        send(&*own, far.local_addr().unwrap(), &[3; 10], 10);
        table.cut(&"a".into(), &"b".into(), false).unwrap();
        send(&*own, far.local_addr().unwrap(), &[4; 10], 10);
        assert_eq!(receive(&far), [4; 10]);
        let counts: Vec<_> = table.lines().map(|(.., counts)| counts).collect();
        assert_eq!((counts[1].packets, counts[1].lost), (4, 1));
        let outside = UdpSocket::bind("127.0.0.1:0").unwrap();
        let until = Instant::now() + LONG;
        let mut poller = own.clone().create_io_poller();
        let ready = std::future::poll_fn(|cx| poller.as_mut().poll_writable(cx));
        tokio::time::timeout(LONG, ready).await.unwrap().unwrap();
        assert!(Instant::now() < until);
        send(&*own, outside.local_addr().unwrap(), &[5; 10], 10);
        assert_eq!(receive(&outside), [5; 10]);
    }

    #[tokio::test]
    async fn datagrams_under_way_arrive_after_the_close_and_then_the_thread_ends() {
        let dir = tempfile::tempdir().unwrap();
        let table = table(&dir, "rtt = \"200ms\"");
        let far = bound(2, 1);
        let own = Shaped::wrap(bound(1, 1), table.clone()).unwrap();
        send(&*own, far.local_addr().unwrap(), b"goodbye", 100);
        drop(own);
        assert_eq!(receive(&far), b"goodbye");
        // The thread has a reference to it, and so has the test.
        let until = Instant::now() + LONG;
        while Arc::strong_count(&table) > 1 {
            assert!(Instant::now() < until, "the thread does not end");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[tokio::test]
    async fn a_socket_must_belong_to_a_cluster() {
        let dir = tempfile::tempdir().unwrap();
        let table = table(&dir, "");
        for outside in [UdpSocket::bind("127.0.0.1:0").unwrap(), bound(3, 1)] {
            let ip = outside.local_addr().unwrap().ip().to_string();
            let error = Shaped::wrap(outside, table.clone()).unwrap_err().to_string();
            assert!(error.contains(&ip) && error.contains("127.77.1.1 to 127.77.2.254"), "{error}");
        }
        assert_eq!(Arc::strong_count(&table), 1);
    }

    #[derive(Default)]
    struct FrameCounter(Mutex<Vec<(Kind, Bytes)>>);

    impl NetworkHandler for FrameCounter {
        fn frame(&self, _from: &Peer, kind: Kind, body: Bytes) {
            self.0.lock().unwrap().push((kind, body));
        }
    }

    #[tokio::test]
    async fn quic_delivers_all_over_a_line_that_delays_and_loses() {
        let dir = tempfile::tempdir().unwrap();
        let table =
            table(&dir, "rtt = \"6ms\"\njitter = \"1ms\"\nloss = 0.01\nbandwidth = \"20MB/s\"");
        let ca = Ca::ephemeral("test").unwrap();
        let node = |name: &str, cluster: &str, ip: [u8; 4]| {
            let identity = ca.issue(&name.into(), &cluster.into(), "node", EPHEMERAL_VALIDITY);
            let config = NetConfig { bind: SocketAddr::from((ip, 0)), ..NetConfig::default() };
            let wrap = |socket| Shaped::wrap(socket, table.clone());
            let net = Net::quic_over(config, &identity.unwrap(), Incarnation(1), wrap)?;
            let received = Arc::new(FrameCounter::default());
            net.start(received.clone());
            Ok::<_, NetError>((net, received))
        };
        let (a, _) = node("a-1", "a", [127, 77, 1, 1]).unwrap();
        let (b, received) = node("b-1", "b", [127, 77, 2, 1]).unwrap();
        let error = node("x", "a", [127, 0, 0, 1]).err().unwrap().to_string();
        assert!(error.contains("no cluster of the emulated network"), "{error}");
        a.learn(b.contact());
        let large: Bytes =
            (0..500_000u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
        a.send(&b.me().node, Class::Control, Kind::TELL, "small").unwrap();
        a.send(&b.me().node, Class::Bulk, Kind::TASK_RESULT, large.clone()).unwrap();
        let all = async {
            while received.0.lock().unwrap().len() < 2 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(LONG, all).await.expect("both come");
        let came = std::mem::take(&mut *received.0.lock().unwrap());
        assert!(came.contains(&(Kind::TELL, "small".into())));
        assert!(came.contains(&(Kind::TASK_RESULT, large.clone())));
        let [there, back] = [1, 2].map(|at| table.lines().nth(at).unwrap().4);
        assert!(there.bytes - there.lost > large.len() as u64 && there.lost > 0, "{there:?}");
        assert!(back.packets > 0 && back.bytes < there.bytes, "{back:?}");
        a.close("done").await;
        b.close("done").await;
    }
}
