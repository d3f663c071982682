//! Network namespaces of a topology, each with a TUN device, and the thread that routes between
//! them.
//!
//! Namespaces have no name and no file: they end with this process and their programs. This module
//! does not depend on the caller.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use hdrhistogram::Histogram;
use springtide_runtime::topology::Topology;

use crate::pcap;
use crate::router::{GATE, PortKind, Router};
use crate::sys::{self, Interfaces, Namespace, Poll};

/// The name of the TUN device in each namespace.
const DEVICE: &str = "wan";
/// Packets of a device that may wait for the router; at 1500 bytes, some 10 MB.
const QUEUE: u16 = 7000;
/// The largest packet; Linux fragments larger ones by the device's MTU.
const PACKET: usize = 1 << 16;
/// The interval at which the router checks whether to end.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// The maximum number of packets that are read from a port in a row, so that other ports are
/// served.
const BATCH: usize = 64;
/// Packets that may wait for the writer of a capture.
const CAPTURE_QUEUE: usize = 4096;
/// A real-time priority above most programs, and below what Linux itself needs.
const PRIORITY: i32 = 50;

/// A network namespace could not be created.
#[derive(Debug, thiserror::Error)]
#[error("{space}: {what}: {source}")]
pub struct FabricError {
    /// The name of the namespace.
    pub space: String,
    /// The operation that failed.
    pub what: &'static str,
    /// The error of the system.
    #[source]
    pub source: io::Error,
}

/// A network namespace of a node or a cluster.
pub struct Port {
    /// The name of the node or cluster.
    pub name: String,
    /// The namespace, to be entered with [`sys::enter`].
    pub net: OwnedFd,
}

/// The namespaces of a topology.
pub struct Namespaces {
    /// The namespaces in the order of the router's ports.
    pub ports: Vec<Port>,
    /// Their TUN devices.
    tuns: Vec<File>,
}

/// The addresses of a namespace's interfaces.
enum Addresses {
    /// The one address of a node.
    Node(Ipv4Addr),
    /// All addresses of a cluster's nodes, and that of the TUN device.
    Cluster { first: Ipv4Addr, gate: Ipv4Addr },
}

/// Creates a namespace without any configured interface, not even `lo`.
///
/// # Errors
/// [`FabricError`]; nothing is left.
pub fn bare(name: &str) -> Result<Port, FabricError> {
    in_new_thread(name, || space(name))
}

/// Runs a function in a new thread, which may change its namespace.
fn in_new_thread<T: Send>(
    name: &str,
    what: impl FnOnce() -> Result<T, FabricError> + Send,
) -> Result<T, FabricError> {
    let made = thread::scope(|scope| scope.spawn(what).join());
    made.unwrap_or_else(|_| {
        let source = io::Error::other("the thread that makes it panicked");
        Err(FabricError { space: name.to_owned(), what: "a namespace", source })
    })
}

/// Creates a namespace for the calling thread.
fn space(name: &str) -> Result<Port, FabricError> {
    let failed = |what| move |source| FabricError { space: name.to_owned(), what, source };
    sys::unshare(Namespace::Net).map_err(failed("a network namespace"))?;
    let net = sys::own_net().map_err(failed("its file in /proc"))?;
    Ok(Port { name: name.to_owned(), net })
}

/// Creates a namespace with its interfaces, for the calling thread.
fn make(name: &str, addresses: &Addresses) -> Result<(Port, File), FabricError> {
    let failed = |what| move |source| FabricError { space: name.to_owned(), what, source };
    let port = space(name)?;
    let tun = sys::open_tun(DEVICE).map_err(failed("a TUN device"))?;
    let interfaces = Interfaces::here().map_err(failed("a socket"))?;
    interfaces.set_up("lo").map_err(failed("its loopback interface"))?;
    let own = match *addresses {
        Addresses::Node(address) => address,
        Addresses::Cluster { first, gate } => {
            // A network on the loopback interface is this host with all its addresses.
            interfaces.set_address("lo:1", first, 24).map_err(failed("its nodes' addresses"))?;
            gate
        }
    };
    interfaces.set_address(DEVICE, own, 16).map_err(failed("the address of its TUN device"))?;
    // Only the machine's own root may lengthen the queue; the usual 500 packets suffice except for
    // the largest windows.
    let _ = interfaces.set_queue(DEVICE, QUEUE);
    interfaces.set_up(DEVICE).map_err(failed("its TUN device"))?;
    Ok((port, tun))
}

/// Checks whether a topology's addresses can be used in namespaces.
///
/// # Errors
/// They are loopback addresses.
pub fn check_addresses(topology: &Topology) -> Result<(), FabricError> {
    if topology.prefix[0] != Ipv4Addr::LOCALHOST.octets()[0] {
        return Ok(());
    }
    let reason = "packets to a loopback address never leave a namespace: give the topology a \
                  private `net` such as \"10.77.0.0/16\"";
    let source = io::Error::new(ErrorKind::InvalidInput, reason);
    Err(FabricError { space: topology.name.clone(), what: "its addresses", source })
}

impl Namespaces {
    /// Creates a namespace for each port of a router of this topology. The calling thread keeps its
    /// own.
    ///
    /// # Errors
    /// [`FabricError`]; nothing is left.
    pub fn new(topology: &Topology, ports: PortKind) -> Result<Self, FabricError> {
        check_addresses(topology)?;
        let orders: Vec<(String, Addresses)> = match ports {
            PortKind::Node => {
                let node =
                    |(node, _, address): (_, _, _)| (format!("{node}"), Addresses::Node(address));
                topology.nodes().map(node).collect()
            }
            PortKind::Cluster => {
                let sites = topology.sites.iter().map(|site| {
                    let first = topology.address(site.number, 1);
                    let gate = topology.address(site.number, GATE);
                    (site.name.to_string(), Addresses::Cluster { first, gate })
                });
                sites.collect()
            }
        };
        let made =
            orders.iter().map(|(name, addresses)| in_new_thread(name, || make(name, addresses)));
        let (ports, tuns) = made.collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
        Ok(Self { ports, tuns })
    }
}

/// The router with its statistics.
pub struct RouterCore {
    /// The router of the network.
    pub router: Router,
    /// The lateness of packets, in nanoseconds.
    pub late: Histogram<u64>,
    /// The number of packets that Linux did not accept.
    pub refused: u64,
    /// Ports whose device was deleted in its namespace, where the owner may do so.
    pub gone: BTreeSet<usize>,
    /// The captures under way.
    captures: Vec<Capture>,
}

/// A capture of packets, which another thread writes.
struct Capture {
    /// Whether packets are captured when they enter the network.
    offered: bool,
    records: SyncSender<Vec<u8>>,
    /// Packets that the writer had no room for.
    missed: Arc<AtomicU64>,
}

impl RouterCore {
    /// Gives a packet to the captures. A slow writer does not delay the router: it misses packets.
    fn capture(&mut self, offered: bool, packet: &[u8]) {
        if self.captures.is_empty() {
            return;
        }
        let record = pcap::record(SystemTime::now(), packet);
        self.captures.retain(|capture| {
            if capture.offered != offered {
                return true;
            }
            match capture.records.try_send(record.clone()) {
                Ok(()) => true,
                Err(TrySendError::Full(_)) => {
                    capture.missed.fetch_add(1, Ordering::Relaxed);
                    true
                }
                Err(TrySendError::Disconnected(_)) => false,
            }
        });
    }
}

/// The thread that routes, until this is dropped.
pub struct RouterThread {
    core: Arc<Mutex<RouterCore>>,
    stop: Arc<AtomicBool>,
    /// The reason why the thread has no real-time priority, if it has none.
    pub ordinary: Option<String>,
    start: Instant,
    thread: Option<JoinHandle<()>>,
}

impl RouterThread {
    /// Starts to route between the namespaces.
    ///
    /// # Errors
    /// The system gives no thread, or cannot wait with a resolution of microseconds.
    pub fn start(router: Router, fabric: &Namespaces) -> io::Result<Self> {
        let late = Histogram::new_with_max(60_000_000_000, 3).map_err(io::Error::other)?;
        let core = Arc::new(Mutex::new(RouterCore {
            router,
            late,
            refused: 0,
            gone: BTreeSet::new(),
            captures: Vec::new(),
        }));
        let tuns = fabric.tuns.iter().map(File::try_clone);
        let tuns: Vec<File> = tuns.collect::<Result<_, _>>()?;
        let poll = Poll::new(tuns.len())?;
        for (number, tun) in tuns.iter().enumerate() {
            poll.add(tun.as_fd(), number as u64)?;
        }
        let (stop, start) = (Arc::new(AtomicBool::new(false)), Instant::now());
        let (sender, receiver) = std::sync::mpsc::channel();
        let (core_there, stop_there) = (core.clone(), stop.clone());
        let thread = thread::Builder::new().name("wan-router".into()).spawn(move || {
            // Wake-up times are exact to the nanosecond; by default Linux adds 50 us.
            let result = sys::wake_precisely().and_then(|()| sys::set_realtime_priority(PRIORITY));
            let _ = sender.send(result.err().map(|error| error.to_string()));
            route(&core_there, &tuns, poll, start, &stop_there);
        })?;
        let ordinary = receiver.recv().unwrap_or(None);
        Ok(Self { core, stop, ordinary, start, thread: Some(thread) })
    }

    /// The router with its statistics; packets wait while it is locked.
    pub fn core(&self) -> MutexGuard<'_, RouterCore> {
        lock(&self.core)
    }

    /// Writes packets to a connection as a capture file, until it breaks.
    ///
    /// # Errors
    /// The connection has broken.
    pub fn capture(&self, mut to: UnixStream, offered: bool) -> io::Result<()> {
        let (records, receiver) = mpsc::sync_channel(CAPTURE_QUEUE);
        let missed = Arc::new(AtomicU64::new(0));
        to.write_all(&pcap::header())?;
        let capture = Capture { offered, records, missed: missed.clone() };
        self.core().captures.push(capture);
        for record in receiver {
            to.write_all(&record)?;
        }
        match missed.load(Ordering::Relaxed) {
            0 => {}
            missed => tracing::warn!(missed, "a capture was too slow for some packets"),
        }
        Ok(())
    }

    /// The present time of the router.
    pub fn now(&self) -> Duration {
        self.start.elapsed()
    }
}

impl Drop for RouterThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread is a defect that was reported already.
            let _ = thread.join();
        }
    }
}

fn lock(core: &Mutex<RouterCore>) -> MutexGuard<'_, RouterCore> {
    // Each step leaves the value valid.
    core.lock().unwrap_or_else(PoisonError::into_inner)
}

fn route(
    core: &Mutex<RouterCore>,
    tuns: &[File],
    mut poll: Poll,
    start: Instant,
    stop: &AtomicBool,
) {
    let mut buffer = vec![0; PACKET];
    while !stop.load(Ordering::Acquire) {
        let next = {
            let mut core = lock(core);
            send_due(&mut core, tuns, start);
            core.router.next_at()
        };
        let wait = next.map_or(STOP_CHECK_INTERVAL, |at| {
            at.saturating_sub(start.elapsed()).min(STOP_CHECK_INTERVAL)
        });
        let ready: Vec<u64> = match poll.wait(wait) {
            Ok(ready) => ready.collect(),
            Err(error) => return tracing::error!(%error, "the router cannot wait and ends"),
        };
        let mut core = lock(core);
        for number in ready {
            // Numbers are indices of `tuns`.
            let port = number as usize;
            for _ in 0..BATCH {
                match (&tuns[port]).read(&mut buffer) {
                    Ok(len) => {
                        core.capture(true, &buffer[..len]);
                        core.router.accept(port, buffer[..len].to_vec(), start.elapsed());
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => {
                        // The other ports continue.
                        tracing::warn!(port, %error, "a TUN device is gone");
                        poll.remove(tuns[port].as_fd());
                        core.gone.insert(port);
                        break;
                    }
                }
                send_due(&mut core, tuns, start);
            }
        }
    }
}

fn send_due(core: &mut RouterCore, tuns: &[File], start: Instant) {
    let now = start.elapsed();
    while let Some(due) = core.router.due(now) {
        core.capture(false, &due.packet);
        // A device accepts a packet whole or not at all.
        match (&tuns[due.to]).write_all(&due.packet) {
            Ok(()) => {
                let late = start.elapsed().saturating_sub(due.at).as_nanos();
                core.late.saturating_record(u64::try_from(late).unwrap_or(u64::MAX));
            }
            Err(_) => core.refused += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use springtide_runtime::config::{Sources, TopologyConfig, load};

    use super::*;

    const TEXT: &str = "name = \"two\"\n[wide]\nrtt = \"30ms\"\n\
        [[cluster]]\nname = \"a\"\nnodes = 2\n[[cluster]]\nname = \"b\"\n";

    fn topology() -> Topology {
        let config = load::<TopologyConfig>(&Sources::of_text("t.toml", TEXT));
        Topology::from_config(&config.unwrap_or_else(|error| panic!("{error}")).value)
    }

    /// Runs a function in a namespace, in a thread of its own.
    fn inside<T: Send>(port: &Port, what: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let there = scope.spawn(|| {
                sys::enter(port.net.as_fd(), Namespace::Net).expect("it was made here");
                what()
            });
            there.join().expect("no panic")
        })
    }

    #[test]
    fn datagrams_between_namespaces_take_their_links_time() {
        for ports in [PortKind::Node, PortKind::Cluster] {
            let topology = topology();
            let fabric = match Namespaces::new(&topology, ports) {
                Ok(fabric) => fabric,
                Err(error) => return println!("skipped: {error}"),
            };
            let names: Vec<&str> = fabric.ports.iter().map(|port| port.name.as_str()).collect();
            let expected: &[&str] =
                if ports == PortKind::Node { &["a-1", "a-2", "b-1"] } else { &["a", "b"] };
            assert_eq!(names, expected);
            let routing = RouterThread::start(Router::new(topology, ports, 1), &fabric).unwrap();
            let bind = |address: &str| UdpSocket::bind(address).expect("its own address");
            let near = inside(&fabric.ports[0], || bind("10.77.1.1:4000"));
            let far = inside(fabric.ports.last().unwrap(), || bind("10.77.2.1:4000"));
            for socket in [&near, &far] {
                socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            }
            let began = Instant::now();
            near.send_to(b"there", "10.77.2.1:4000").unwrap();
            let mut buffer = [0; 100];
            let (len, from) = far.recv_from(&mut buffer).expect("it comes");
            assert_eq!(
                (&buffer[..len], from.to_string()),
                (&b"there"[..], "10.77.1.1:4000".into())
            );
            far.send_to(b"and back", from).unwrap();
            let (len, _) = near.recv_from(&mut buffer).expect("it comes back");
            assert_eq!(&buffer[..len], b"and back");
            assert!(began.elapsed() >= Duration::from_millis(30), "{:?}", began.elapsed());
            let core = routing.core();
            let counts: Vec<u64> = core.router.counts().iter().map(|(.., c)| c.packets).collect();
            assert_eq!((counts, core.refused), (vec![1, 1], 0));
            // The interfaces and addresses do not exist outside the namespaces.
            assert!(UdpSocket::bind("10.77.1.1:0").is_err());
            drop(core);
        }
    }

    #[test]
    fn without_one_nodes_device_the_others_reach_each_other() {
        let topology = topology();
        let fabric = match Namespaces::new(&topology, PortKind::Node) {
            Ok(fabric) => fabric,
            Err(error) => return println!("skipped: {error}"),
        };
        let routing =
            RouterThread::start(Router::new(topology, PortKind::Node, 1), &fabric).unwrap();
        let deleted = inside(&fabric.ports[1], || {
            std::process::Command::new("ip").args(["link", "del", DEVICE]).status()
        });
        if !deleted.is_ok_and(|status| status.success()) {
            return println!("skipped: no `ip` to delete a device with");
        }
        let near = inside(&fabric.ports[0], || UdpSocket::bind("10.77.1.1:4000")).unwrap();
        let far = inside(&fabric.ports[2], || UdpSocket::bind("10.77.2.1:4000")).unwrap();
        far.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        near.send_to(b"to no device", "10.77.1.2:4000").unwrap();
        near.send_to(b"there", "10.77.2.1:4000").unwrap();
        let mut buffer = [0; 100];
        let (len, _) = far.recv_from(&mut buffer).expect("it comes");
        assert_eq!(&buffer[..len], b"there");
        let core = routing.core();
        assert_eq!((core.gone.iter().copied().collect::<Vec<_>>(), core.refused), (vec![1], 1));
    }
}
