//! Network spaces for a topology, each with a TUN device as its way out, and the thread that routes between them.
//!
//! Spaces have no name and no file: they end with the process that holds them and what runs in them. Must not know who asked for them.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use springtide_runtime::topology::Topology;

use crate::router::{GATE, PortOf, Router};
use crate::sys::{self, Interfaces, Poll, Space};

/// The way out of each space.
const DEVICE: &str = "wan";
/// Packets that may wait for the router in each: at 1500 bytes some 10 MB.
const QUEUE: u16 = 7000;
/// The longest packet: larger ones are fragmented by Linux, which knows what the device takes.
const PACKET: usize = 1 << 16;
/// How often the router looks whether it is to end.
const LOOK: Duration = Duration::from_millis(50);
/// From one port in a row, so that none waits for another's flood.
const BATCH: usize = 64;
/// Above most others, and below what Linux itself needs.
const PRIORITY: i32 = 50;

/// A network space could not be made.
#[derive(Debug, thiserror::Error)]
#[error("{space}: {what}: {source}")]
pub struct FabricError {
    /// Whose.
    pub space: String,
    /// What was asked of Linux.
    pub what: &'static str,
    /// What it said.
    #[source]
    pub source: io::Error,
}

/// A network space.
pub struct Port {
    /// Its node's name, or its cluster's.
    pub name: String,
    /// To be entered with [`sys::enter`].
    pub net: OwnedFd,
}

/// The spaces of a topology.
pub struct Fabric {
    /// In the order of the router's ports.
    pub ports: Vec<Port>,
    /// Their ways out.
    tuns: Vec<File>,
}

/// What a space's interfaces are called by others.
enum Addresses {
    /// A node's one address.
    Node(Ipv4Addr),
    /// All addresses of a cluster's nodes, and that of the way out.
    Cluster { first: Ipv4Addr, gate: Ipv4Addr },
}

/// A space in which nothing is set up yet, not even `lo`.
///
/// # Errors
/// [`FabricError`]; nothing is left.
pub fn bare(name: &str) -> Result<Port, FabricError> {
    apart(name, || space(name))
}

/// Does it in a thread of its own, which may then have another space than the caller.
fn apart<T: Send>(
    name: &str,
    what: impl FnOnce() -> Result<T, FabricError> + Send,
) -> Result<T, FabricError> {
    let made = thread::scope(|scope| scope.spawn(what).join());
    made.unwrap_or_else(|_| {
        let source = io::Error::other("the thread that makes it panicked");
        Err(FabricError { space: name.to_owned(), what: "a space", source })
    })
}

/// The calling thread's, from now on.
fn space(name: &str) -> Result<Port, FabricError> {
    let failed = |what| move |source| FabricError { space: name.to_owned(), what, source };
    sys::unshare(Space::Net).map_err(failed("a network space of its own"))?;
    let net = sys::own_net().map_err(failed("its file in /proc"))?;
    Ok(Port { name: name.to_owned(), net })
}

/// In a thread of its own, whose space it then is.
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
    // Linux lets none but the machine's own root have a longer one; the usual 500 packets do for all but the largest windows.
    let _ = interfaces.set_queue(DEVICE, QUEUE);
    interfaces.set_up(DEVICE).map_err(failed("its TUN device"))?;
    Ok((port, tun))
}

/// Whether a topology's addresses can be those of spaces.
///
/// # Errors
/// They are of loopback.
pub fn check_addresses(topology: &Topology) -> Result<(), FabricError> {
    if topology.prefix[0] != Ipv4Addr::LOCALHOST.octets()[0] {
        return Ok(());
    }
    let reason = "nothing leaves a space for a loopback address: give the topology a private `net` such as \"10.77.0.0/16\"";
    let source = io::Error::new(ErrorKind::InvalidInput, reason);
    Err(FabricError { space: topology.name.clone(), what: "its addresses", source })
}

impl Fabric {
    /// A space for each port of a router of this topology. The calling thread stays where it is.
    ///
    /// # Errors
    /// [`FabricError`]; nothing is left of what was made.
    pub fn new(topology: &Topology, ports: PortOf) -> Result<Self, FabricError> {
        check_addresses(topology)?;
        let orders: Vec<(String, Addresses)> = match ports {
            PortOf::Node => {
                let node =
                    |(node, _, address): (_, _, _)| (format!("{node}"), Addresses::Node(address));
                topology.nodes().map(node).collect()
            }
            PortOf::Cluster => {
                let sites = topology.sites.iter().map(|site| {
                    let first = topology.address(site.number, 1);
                    let gate = topology.address(site.number, GATE);
                    (site.name.to_string(), Addresses::Cluster { first, gate })
                });
                sites.collect()
            }
        };
        let made = orders.iter().map(|(name, addresses)| apart(name, || make(name, addresses)));
        let (ports, tuns) = made.collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
        Ok(Self { ports, tuns })
    }
}

/// The router, and how well it does.
pub struct Core {
    /// The network.
    pub router: Router,
    /// How much later than it should each packet left, in nanoseconds.
    pub late: Histogram<u64>,
    /// Packets that Linux had no room for, or did not take.
    pub refused: u64,
    /// Ports whose device is no more: somebody has deleted it in its space, where the owner may.
    pub gone: BTreeSet<usize>,
}

/// What routes, until it is dropped.
pub struct Routing {
    core: Arc<Mutex<Core>>,
    stop: Arc<AtomicBool>,
    /// Why its thread does not run before others, if it does not.
    pub ordinary: Option<String>,
    start: Instant,
    thread: Option<JoinHandle<()>>,
}

impl Routing {
    /// Begins to route between the spaces.
    ///
    /// # Errors
    /// Linux gives no thread, or cannot wait to the microsecond.
    pub fn start(router: Router, fabric: &Fabric) -> io::Result<Self> {
        let late = Histogram::new_with_max(60_000_000_000, 3).map_err(io::Error::other)?;
        let core = Arc::new(Mutex::new(Core { router, late, refused: 0, gone: BTreeSet::new() }));
        let tuns = fabric.tuns.iter().map(File::try_clone);
        let tuns: Vec<File> = tuns.collect::<Result<_, _>>()?;
        let poll = Poll::new(tuns.len())?;
        for (number, tun) in tuns.iter().enumerate() {
            poll.add(tun.as_fd(), number as u64)?;
        }
        let (stop, start) = (Arc::new(AtomicBool::new(false)), Instant::now());
        let (tell, told) = std::sync::mpsc::channel();
        let (core_there, stop_there) = (core.clone(), stop.clone());
        let thread = thread::Builder::new().name("wan-router".into()).spawn(move || {
            // It is told to the nanosecond when to wake; without this Linux takes 50 us more.
            let precise = sys::wake_precisely().and_then(|()| sys::run_first(PRIORITY));
            let _ = tell.send(precise.err().map(|error| error.to_string()));
            route(&core_there, &tuns, poll, start, &stop_there);
        })?;
        let ordinary = told.recv().unwrap_or(None);
        Ok(Self { core, stop, ordinary, start, thread: Some(thread) })
    }

    /// The router and its counts. Packets wait meanwhile.
    pub fn core(&self) -> MutexGuard<'_, Core> {
        lock(&self.core)
    }

    /// The router's time.
    pub fn now(&self) -> Duration {
        self.start.elapsed()
    }
}

impl Drop for Routing {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // It does nothing that panics but for a defect, which then was told.
            let _ = thread.join();
        }
    }
}

fn lock(core: &Mutex<Core>) -> MutexGuard<'_, Core> {
    // Each step leaves it whole.
    core.lock().unwrap_or_else(PoisonError::into_inner)
}

fn route(core: &Mutex<Core>, tuns: &[File], mut poll: Poll, start: Instant, stop: &AtomicBool) {
    let mut buffer = vec![0; PACKET];
    while !stop.load(Ordering::Acquire) {
        let next = {
            let mut core = lock(core);
            send_due(&mut core, tuns, start);
            core.router.next_at()
        };
        let wait = next.map_or(LOOK, |at| at.saturating_sub(start.elapsed()).min(LOOK));
        let ready: Vec<u64> = match poll.wait(wait) {
            Ok(ready) => ready.collect(),
            Err(error) => return tracing::error!(%error, "the router cannot wait and ends"),
        };
        let mut core = lock(core);
        for number in ready {
            // Numbers are those of `tuns`.
            let port = number as usize;
            for _ in 0..BATCH {
                match (&tuns[port]).read(&mut buffer) {
                    Ok(len) => {
                        core.router.take(port, buffer[..len].to_vec(), start.elapsed());
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => {
                        // The others' go on.
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

fn send_due(core: &mut Core, tuns: &[File], start: Instant) {
    let now = start.elapsed();
    while let Some(due) = core.router.due(now) {
        // A device takes a packet whole or not at all.
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
        Topology::of(&config.unwrap_or_else(|error| panic!("{error}")).value)
    }

    /// Something done in a space, by a thread of its own.
    fn inside<T: Send>(port: &Port, what: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let there = scope.spawn(|| {
                sys::enter(port.net.as_fd(), Space::Net).expect("it was made here");
                what()
            });
            there.join().expect("no panic")
        })
    }

    #[test]
    fn datagrams_take_their_links_time_between_spaces_that_nobody_else_sees() {
        for ports in [PortOf::Node, PortOf::Cluster] {
            let topology = topology();
            let fabric = match Fabric::new(&topology, ports) {
                Ok(fabric) => fabric,
                Err(error) => return println!("skipped: {error}"),
            };
            let names: Vec<&str> = fabric.ports.iter().map(|port| port.name.as_str()).collect();
            let expected: &[&str] =
                if ports == PortOf::Node { &["a-1", "a-2", "b-1"] } else { &["a", "b"] };
            assert_eq!(names, expected);
            let routing = Routing::start(Router::new(topology, ports, 1), &fabric).unwrap();
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
            let told: Vec<u64> = core.router.counts().iter().map(|(.., c)| c.packets).collect();
            assert_eq!((told, core.refused), (vec![1, 1], 0));
            // Nobody out here has such an interface or address.
            assert!(UdpSocket::bind("10.77.1.1:0").is_err());
            drop(core);
        }
    }

    #[test]
    fn without_one_nodes_device_the_others_reach_each_other() {
        let topology = topology();
        let fabric = match Fabric::new(&topology, PortOf::Node) {
            Ok(fabric) => fabric,
            Err(error) => return println!("skipped: {error}"),
        };
        let routing = Routing::start(Router::new(topology, PortOf::Node, 1), &fabric).unwrap();
        let deleted = inside(&fabric.ports[1], || {
            std::process::Command::new("ip").args(["link", "del", DEVICE]).status()
        });
        if !deleted.is_ok_and(|status| status.success()) {
            return println!("skipped: no `ip` to delete a device with");
        }
        let near = inside(&fabric.ports[0], || UdpSocket::bind("10.77.1.1:4000")).unwrap();
        let far = inside(&fabric.ports[2], || UdpSocket::bind("10.77.2.1:4000")).unwrap();
        far.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        near.send_to(b"to nobody", "10.77.1.2:4000").unwrap();
        near.send_to(b"there", "10.77.2.1:4000").unwrap();
        let mut buffer = [0; 100];
        let (len, _) = far.recv_from(&mut buffer).expect("it comes");
        assert_eq!(&buffer[..len], b"there");
        let core = routing.core();
        assert_eq!((core.gone.iter().copied().collect::<Vec<_>>(), core.refused), (vec![1], 1));
    }
}
