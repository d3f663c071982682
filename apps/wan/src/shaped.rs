//! Sockets that delay, lose and limit what they send as a table of links says: an emulated network for processes that opt in, with no
//! privilege, on loopback.
//!
//! The receiver's side is the system's own: all that happens on the way happens before a datagram is sent. What goes to addresses outside
//! the table's network passes as it is. Must not know what datagrams hold.

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
use crate::table::Table;

/// Of IPv4 and UDP: a link carries them too, and the router, which sees whole packets, counts them.
const HEADERS: usize = 28;
/// Bytes that may be on the way from one socket: what comes on top is lost, however long a queue the table asks for.
const MOST: usize = 64 << 20;
/// What is on the way when a socket is closed still arrives if it does so within this time, in nanoseconds.
const LINGER: u64 = 2_000_000_000;
/// The system had no room: so long until it is asked again..
const AGAIN: Duration = Duration::from_micros(50);
/// ..and so often, then the datagram is lost.
const TIMES: u32 = 2000;
/// Above most others, and below what Linux itself needs.
const PRIORITY: i32 = 50;

struct Parcel {
    at: u64,
    seq: u64,
    to: SocketAddr,
    from: Option<IpAddr>,
    ecn: Option<EcnCodepoint>,
    contents: Box<[u8]>,
}

impl PartialEq for Parcel {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.seq) == (other.at, other.seq)
    }
}
impl Eq for Parcel {}
impl PartialOrd for Parcel {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Parcel {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.seq).cmp(&(other.at, other.seq))
    }
}

/// What is on the way from one socket.
struct State {
    rng: SplitMix,
    on_the_way: BinaryHeap<Reverse<Parcel>>,
    /// Of their contents.
    bytes: usize,
    seq: u64,
    /// When the sender looks next: what is due earlier must wake it. 0 while it is awake, and sends or looks before it sleeps.
    wakes_at: u64,
    /// From then on nothing is sent: the socket was closed.
    ends_at: u64,
}

struct Shared {
    table: Arc<Table>,
    /// The same socket as the inner one, for a thread that has no part in its runtime.
    socket: UdpSocket,
    udp: UdpSocketState,
    state: Mutex<State>,
    wake: Condvar,
}

/// A UDP socket of one cluster of an emulated network. One thread sends what is on the way, and ends soon after the socket is closed.
pub struct Shaped {
    inner: Arc<dyn AsyncUdpSocket>,
    shared: Arc<Shared>,
    own: u8,
}

impl fmt::Debug for Shaped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shaped").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl Shaped {
    /// Makes one of a bound socket, whose address says in which cluster it is. To be called inside a tokio runtime; fits
    /// `springtide_runtime::net::Net::quic_over`.
    ///
    /// # Errors
    /// The address is not one of a cluster of the table, or the system does not give a thread.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn wrap(socket: UdpSocket, table: Arc<Table>) -> io::Result<Arc<dyn AsyncUdpSocket>> {
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
        let state = State {
            rng: SplitMix::of(table.seed(), &address.to_string()),
            on_the_way: BinaryHeap::new(),
            bytes: 0,
            seq: 0,
            wakes_at: 0,
            ends_at: u64::MAX,
        };
        let (state, wake) = (Mutex::new(state), Condvar::new());
        let shared = Arc::new(Shared { table, socket: out, udp, state, wake });
        let sender = shared.clone();
        thread::Builder::new().name("shaped".into()).spawn(move || sender.serve())?;
        Ok(Arc::new(Self { inner, shared, own }))
    }
}

impl Drop for Shaped {
    fn drop(&mut self) {
        self.shared.lock().ends_at = sys::now_ns().saturating_add(LINGER);
        // It is not waited for: who closes a socket is often a thread on which others wait.
        self.shared.wake.notify_one();
    }
}

impl AsyncUdpSocket for Shaped {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        // What is shaped is always taken; the rest waits for the inner socket.
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

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Each step leaves it whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what is to be sent, one or several datagrams of one length.
    fn take(&self, own: u8, to: u8, transmit: &Transmit<'_>) {
        let segment = transmit.segment_size.unwrap_or(transmit.contents.len()).max(1);
        let mut guard = self.lock();
        let state = &mut *guard;
        // They are given to the card at one time.
        let now = sys::now_ns();
        for contents in transmit.contents.chunks(segment) {
            let len = contents.len() + HEADERS;
            if state.bytes + contents.len() > MOST {
                self.table.lose(own, to, len);
                continue;
            }
            let Some(at) = self.table.offer(own, to, len, now, &mut state.rng) else { continue };
            let (address, from, ecn) = (transmit.destination, transmit.src_ip, transmit.ecn);
            // Without delay it need not wait for the thread; but not before what was taken earlier.
            let at_once = at <= now && state.on_the_way.is_empty() && state.wakes_at != 0;
            if at_once && self.send(address, from, ecn, contents).is_ok() {
                continue;
            }
            state.seq += 1;
            state.bytes += contents.len();
            let (seq, contents) = (state.seq, contents.into());
            state.on_the_way.push(Reverse(Parcel { at, seq, to: address, from, ecn, contents }));
        }
        let next = state.on_the_way.peek().map_or(u64::MAX, |Reverse(parcel)| parcel.at);
        if next < state.wakes_at {
            // Told once: until it has looked it is awake.
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
        // All that it fails with is that there is no room; anything else it logs, as for other sockets.
        self.udp.send((&self.socket).into(), &transmit)
    }

    /// Sends what is due until the socket is closed.
    fn serve(&self) {
        // Without the first Linux takes 50 us more; the second it gives to few, and without it a thread waits for its turn.
        if let Err(error) = sys::wake_precisely().and_then(|()| sys::run_first(PRIORITY)) {
            tracing::debug!(%error, "what sends shaped datagrams runs as any thread");
        }
        let mut due = Vec::new();
        let mut state = self.lock();
        loop {
            let now = sys::now_ns();
            while let Some(Reverse(parcel)) = state.on_the_way.peek()
                && parcel.at <= now
                && let Some(Reverse(parcel)) = state.on_the_way.pop()
            {
                state.bytes -= parcel.contents.len();
                due.push(parcel);
            }
            if !due.is_empty() {
                state.wakes_at = 0;
                drop(state);
                due.drain(..).for_each(|parcel| self.deliver(&parcel));
                state = self.lock();
                continue;
            }
            let next = state.on_the_way.peek().map(|Reverse(parcel)| parcel.at);
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

    fn deliver(&self, parcel: &Parcel) {
        for _ in 0..TIMES {
            if self.send(parcel.to, parcel.from, parcel.ecn, &parcel.contents).is_ok() {
                return;
            }
            thread::sleep(AGAIN);
        }
        tracing::warn!(to = %parcel.to, "the system had no room for a datagram for long: it is lost");
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
    use springtide_runtime::net::{Class, Inbox, Net, NetConfig, NetError};
    use springtide_runtime::topology::Topology;
    use springtide_runtime::wire::Kind;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn table(dir: &tempfile::TempDir, wide: &str) -> Arc<Table> {
        let text = format!(
            "name = \"two\"\nnet = \"127.77.0.0/16\"\n[wide]\n{wide}\n\
             [[cluster]]\nname = \"a\"\nnodes = 2\ndelay = \"0ns\"\n[[cluster]]\nname = \"b\"\n"
        );
        let config = load::<TopologyConfig>(&Sources::of_text("t.toml", &text));
        let topology = Topology::of(&config.unwrap_or_else(|error| panic!("{error}")).value);
        Arc::new(Table::create(&dir.path().join("t.links"), &topology, 1).unwrap())
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

    fn came(socket: &UdpSocket) -> Vec<u8> {
        let mut buffer = [0; 2000];
        socket.set_read_timeout(Some(LONG)).unwrap();
        let (len, _) = socket.recv_from(&mut buffer).expect("it comes");
        buffer[..len].to_vec()
    }

    #[tokio::test]
    async fn segments_are_datagrams_of_their_own_and_come_no_sooner_than_they_may() {
        let dir = tempfile::tempdir().unwrap();
        let table = table(&dir, "rtt = \"40ms\"\nbandwidth = \"10MB/s\"");
        let (near, other, far) = (bound(1, 1), bound(1, 2), bound(2, 1));
        let own = Shaped::wrap(near, table.clone()).unwrap();
        let began = Instant::now();
        send(&*own, far.local_addr().unwrap(), &[[1; 100], [2; 100]].concat()[..150], 100);
        assert_eq!((came(&far), came(&far)), (vec![1; 100], vec![2; 50]));
        assert!(began.elapsed() >= Duration::from_millis(20), "{:?}", began.elapsed());
        // Without any delay, and in order of sending.
        for n in 0..50 {
            send(&*own, other.local_addr().unwrap(), &[n; 10], 10);
        }
        let order: Vec<u8> = (0..50).map(|_| came(&other)[0]).collect();
        assert_eq!(order, Vec::from_iter(0..50));
        let counts: Vec<_> = table.lines().map(|(.., counts)| counts).collect();
        assert_eq!((counts[0].packets, counts[1].packets, counts[1].bytes), (50, 2, 150 + 2 * 28));
        assert_eq!(counts[1].lost, 0);
        // What is cut does not come; what is not of the network does, uncounted.
        table.cut(&"a".into(), &"b".into(), true).unwrap();
        send(&*own, far.local_addr().unwrap(), &[3; 10], 10);
        table.cut(&"a".into(), &"b".into(), false).unwrap();
        send(&*own, far.local_addr().unwrap(), &[4; 10], 10);
        assert_eq!(came(&far), [4; 10]);
        let counts: Vec<_> = table.lines().map(|(.., counts)| counts).collect();
        assert_eq!((counts[1].packets, counts[1].lost), (4, 1));
        let outside = UdpSocket::bind("127.0.0.1:0").unwrap();
        let until = Instant::now() + LONG;
        let mut poller = own.clone().create_io_poller();
        let ready = std::future::poll_fn(|cx| poller.as_mut().poll_writable(cx));
        tokio::time::timeout(LONG, ready).await.unwrap().unwrap();
        assert!(Instant::now() < until);
        send(&*own, outside.local_addr().unwrap(), &[5; 10], 10);
        assert_eq!(came(&outside), [5; 10]);
    }

    #[tokio::test]
    async fn what_is_on_the_way_arrives_after_the_end_and_then_the_thread_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let table = table(&dir, "rtt = \"200ms\"");
        let far = bound(2, 1);
        let own = Shaped::wrap(bound(1, 1), table.clone()).unwrap();
        send(&*own, far.local_addr().unwrap(), b"goodbye", 100);
        drop(own);
        assert_eq!(came(&far), b"goodbye");
        // The thread has a share of it, the test another.
        let until = Instant::now() + LONG;
        while Arc::strong_count(&table) > 1 {
            assert!(Instant::now() < until, "the thread goes on");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[tokio::test]
    async fn a_socket_is_in_a_cluster() {
        let dir = tempfile::tempdir().unwrap();
        let table = table(&dir, "");
        for outside in [UdpSocket::bind("127.0.0.1:0").unwrap(), bound(3, 1)] {
            let ip = outside.local_addr().unwrap().ip().to_string();
            let told = Shaped::wrap(outside, table.clone()).unwrap_err().to_string();
            assert!(told.contains(&ip) && told.contains("127.77.1.1 to 127.77.2.254"), "{told}");
        }
        assert_eq!(Arc::strong_count(&table), 1);
    }

    #[derive(Default)]
    struct Heard(Mutex<Vec<(Kind, Bytes)>>);

    impl Inbox for Heard {
        fn frame(&self, _from: &Peer, kind: Kind, body: Bytes) {
            self.0.lock().unwrap().push((kind, body));
        }
    }

    #[tokio::test]
    async fn quic_over_it_brings_all_across_a_line_that_delays_and_loses() {
        let dir = tempfile::tempdir().unwrap();
        let table =
            table(&dir, "rtt = \"6ms\"\njitter = \"1ms\"\nloss = 0.01\nbandwidth = \"20MB/s\"");
        let ca = Ca::ephemeral("test").unwrap();
        let node = |name: &str, cluster: &str, ip: [u8; 4]| {
            let identity = ca.issue(&name.into(), &cluster.into(), "node", EPHEMERAL_VALIDITY);
            let config = NetConfig { bind: SocketAddr::from((ip, 0)), ..NetConfig::default() };
            let wrap = |socket| Shaped::wrap(socket, table.clone());
            let net = Net::quic_over(config, &identity.unwrap(), Incarnation(1), wrap)?;
            let heard = Arc::new(Heard::default());
            net.start(heard.clone());
            Ok::<_, NetError>((net, heard))
        };
        let (a, _) = node("a-1", "a", [127, 77, 1, 1]).unwrap();
        let (b, heard) = node("b-1", "b", [127, 77, 2, 1]).unwrap();
        let error = node("x", "a", [127, 0, 0, 1]).err().unwrap().to_string();
        assert!(error.contains("no cluster of the emulated network"), "{error}");
        a.learn(b.contact());
        let large: Bytes =
            (0..500_000u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
        a.send(&b.me().node, Class::Control, Kind::TELL, "small").unwrap();
        a.send(&b.me().node, Class::Bulk, Kind::TASK_RESULT, large.clone()).unwrap();
        let all = async {
            while heard.0.lock().unwrap().len() < 2 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(LONG, all).await.expect("both come");
        let came = std::mem::take(&mut *heard.0.lock().unwrap());
        assert!(came.contains(&(Kind::TELL, "small".into())));
        assert!(came.contains(&(Kind::TASK_RESULT, large.clone())));
        let [there, back] = [1, 2].map(|at| table.lines().nth(at).unwrap().4);
        assert!(there.bytes - there.lost > large.len() as u64 && there.lost > 0, "{there:?}");
        assert!(back.packets > 0 && back.bytes < there.bytes, "{back:?}");
        a.close("done").await;
        b.close("done").await;
    }
}
