//! The process that holds a network: it creates it, answers requests, and ends it on request or
//! after a time.
//!
//! This module depends on neither the caller nor the presentation.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use springtide_runtime::id::ClusterId;
use springtide_runtime::net::LinkProfile;
use springtide_runtime::topology::{LinkId, Topology};

use crate::fabric::{FabricError, Namespaces, Port, RouterThread};
use crate::kernel::{Kernel, KernelError};
use crate::place::{
    self, Backend, BorderStatus, ControlAnswer, ControlRequest, LineStatus, SpaceStatus, Status,
    StubStatus,
};
use crate::quota;
use crate::router::{PortKind, Router, RouterChange, RouterCounts, UnknownCluster, check};
use crate::set::{ChangeResult, LinkOverrides, LinkSelector, Steering, check_supported};
use crate::sys;
use crate::table::{LinkTable, TableError};

/// Time that programs in a network get to end after SIGTERM.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// The network to hold.
#[derive(Clone, Debug)]
pub struct NetworkSpec {
    /// The name of the network.
    pub name: String,
    /// The topology of the network.
    pub topology: Topology,
    /// The implementation of the network.
    pub network: Backend,
    /// Whether nodes or clusters have namespaces. The kernel supports clusters alone, and sockets
    /// neither.
    pub ports: PortKind,
    /// The seed of losses and jitter, except those of the kernel.
    pub seed: u64,
    /// Whether to accept a network that this machine's kernel emulates only in part.
    pub partial: bool,
    /// The time after which the network ends by itself.
    pub lasts: Duration,
    /// Whether the network ends at the end of its standard input, with the process that started it.
    pub tied: bool,
}

/// Failure to hold a network.
#[derive(Debug, thiserror::Error)]
pub enum HolderError {
    /// A user namespace is not available.
    #[error(
        "without root a network needs a user namespace, and Linux does not give one ({0}): run it \
         as root"
    )]
    Users(#[source] io::Error),
    /// The network namespaces are not available.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The kernel cannot emulate the network.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The table that sockets share cannot be created.
    #[error(transparent)]
    Table(#[from] TableError),
    /// Another network has this name.
    #[error(
        "a network named {0} is up already: end it with `wan down {0}`, or give this one another \
         --name"
    )]
    Taken(String),
    /// Another operation failed.
    #[error("{what}: {source}")]
    Io {
        /// The operation that failed.
        what: &'static str,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
}

fn io(what: &'static str) -> impl FnOnce(io::Error) -> HolderError {
    move |source| HolderError::Io { what, source }
}

struct HeldNetwork {
    order: NetworkSpec,
    own_users: bool,
    carrier: Carrier,
    /// Held while a link changes, so that changes are sequential.
    steering: Mutex<Steering>,
    /// Signals that the next flap is at another time.
    steered: Condvar,
    ends: Instant,
    tied: Mutex<Vec<Tied>>,
}

/// The running implementation of a network.
enum Carrier {
    Router(Namespaces, RouterThread),
    Kernel(Mutex<Kernel>),
    Sockets(LinkTable, PathBuf),
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each step leaves the value valid.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Carrier {
    fn drop(&mut self) {
        if let Self::Sockets(_, path) = self {
            let _ = fs::remove_file(path);
        }
    }
}

impl Carrier {
    fn start(order: &mut NetworkSpec, home: &Path) -> Result<Self, HolderError> {
        let NetworkSpec { name, network, partial, ports, seed, .. } = order.clone();
        match network {
            Backend::Router => {
                let fabric = Namespaces::new(&order.topology, ports)?;
                let router = Router::new(order.topology.clone(), ports, seed);
                let routing = RouterThread::start(router, &fabric).map_err(io("the router"))?;
                Ok(Self::Router(fabric, routing))
            }
            Backend::Kernel => {
                order.ports = PortKind::Cluster;
                let state = place::state(home, &name);
                let kernel = Kernel::start(&name, &order.topology, state, partial)?;
                Ok(Self::Kernel(Mutex::new(kernel)))
            }
            Backend::Sockets => {
                // Linux has all of 127.0.0.0/8 without set-up, and no other addresses.
                order.topology.prefix[0] = Ipv4Addr::LOCALHOST.octets()[0];
                let path = place::table(home, &name);
                Ok(Self::Sockets(LinkTable::create(&path, &order.topology, seed)?, path))
            }
        }
    }

    /// The names and file descriptors of the namespaces.
    fn spaces(&self) -> Vec<SpaceStatus> {
        let of = |ports: &[Port]| {
            let ports = ports.iter();
            let of =
                |port: &Port| SpaceStatus { name: port.name.clone(), file: port.net.as_raw_fd() };
            ports.map(of).collect()
        };
        match self {
            Self::Router(fabric, _) => of(&fabric.ports),
            Self::Kernel(kernel) => of(lock(kernel).ports()),
            Self::Sockets(..) => Vec::new(),
        }
    }

    /// Applies all changes or none. Returns which of them are not emulated, a sentence each.
    fn change(&self, changes: &[RouterChange]) -> Result<Vec<String>, KernelError> {
        match self {
            Self::Router(_, routing) => {
                let now = routing.now();
                let mut core = routing.core();
                check(changes, core.router.clusters())?;
                let mut changes = changes.iter();
                changes.try_for_each(|change| core.router.change(change, now))?;
            }
            Self::Kernel(kernel) => return lock(kernel).change(changes),
            Self::Sockets(table, _) => {
                check(changes, table.clusters())?;
                let now = sys::now_ns();
                changes.iter().try_for_each(|change| table.change(change, now))?;
            }
        }
        Ok(Vec::new())
    }

    /// The profile of a link.
    fn profile(&self, link: &LinkId) -> Result<LinkProfile, UnknownCluster> {
        match self {
            Self::Router(_, routing) => routing.core().router.profile(link),
            Self::Kernel(kernel) => lock(kernel).profile(link),
            Self::Sockets(table, _) => table.profile(link),
        }
    }

    /// Sets a link atomically with respect to other requests.
    fn set(
        &self,
        steering: &Mutex<Steering>,
        link: &LinkSelector,
        wish: &LinkOverrides,
    ) -> Result<ChangeResult, String> {
        let mut steering = lock(steering);
        let plan = steering.plan(link, wish, |link| self.profile(link), Instant::now());
        let plan = plan.map_err(|error| error.to_string())?;
        let lacks = self.change(&plan.changes).map_err(|error| error.to_string())?;
        *steering = plan.then;
        Ok(ChangeResult { lacks, ..plan.outcome })
    }

    /// All lines, and the limited uplinks and downlinks.
    fn links(&self) -> Result<(Vec<LineStatus>, Vec<StubStatus>), String> {
        let line = |from: &ClusterId, to: &ClusterId, profile, cut, counts: RouterCounts| {
            let (queued, rate, impairments) = (0, None, String::new());
            let (from, to) = (from.clone(), to.clone());
            LineStatus { from, to, profile, cut, counts, queued, rate, impairments }
        };
        let stub = |cluster: &ClusterId, up, profile| {
            let (queued, rate, impairments) = (0, None, String::new());
            StubStatus { cluster: cluster.clone(), up, profile, queued, rate, impairments }
        };
        match self {
            Self::Router(_, routing) => {
                let core = routing.core();
                let lines = core.router.lines();
                let lines =
                    lines.map(|(a, b, profile, cut, n)| line(a, b, profile.clone(), cut, n));
                let stubs = core.router.stubs();
                let stubs = stubs.map(|(cluster, up, profile)| stub(cluster, up, profile.clone()));
                Ok((lines.collect(), stubs.collect()))
            }
            Self::Kernel(kernel) => lock(kernel).status().map_err(|error| error.to_string()),
            Self::Sockets(table, _) => {
                let lines =
                    table.lines().map(|(a, b, profile, cut, n)| line(a, b, profile, cut, n));
                let stubs =
                    table.stubs().map(|(cluster, up, profile, _)| stub(cluster, up, profile));
                Ok((lines.collect(), stubs.collect()))
            }
        }
    }

    /// The bytes that wait in the queue of a link; 0 where the system does not say.
    fn queued(&self, link: &LinkId) -> usize {
        let queued = match self {
            Self::Router(_, routing) => {
                let now = routing.now();
                routing.core().router.queued(link, now)
            }
            Self::Kernel(_) => Ok(0),
            Self::Sockets(table, _) => table.queued(link, sys::now_ns()),
        };
        queued.unwrap_or_default()
    }

    /// The clusters with an address translator or a firewall.
    fn borders(&self) -> Vec<BorderStatus> {
        let Self::Router(_, routing) = self else { return Vec::new() };
        let core = routing.core();
        let borders = core.router.borders().filter(|(_, border)| border.rules().filters());
        let status = borders.map(|(cluster, border)| BorderStatus {
            cluster: cluster.clone(),
            rules: border.rules().words(),
            public: border.rules().nat.map(|_| Ipv4Addr::from(border.public())),
            flows: border.flows(),
        });
        status.collect()
    }

    fn notes(&self) -> Vec<String> {
        match self {
            Self::Router(_, routing) => {
                let priority = routing.ordinary.iter().map(|why| {
                    format!(
                        "its router has no real-time priority ({why}): on a busy machine packets \
                         are late"
                    )
                });
                let spaces = self.spaces();
                let core = routing.core();
                let gone = core.gone.iter().filter_map(|port| spaces.get(*port)).map(|space| {
                    format!(
                        "the interface of {} was deleted, and nothing reaches it: `wan down`, \
                         then `wan up` again",
                        space.name
                    )
                });
                priority.chain(gone).collect()
            }
            Self::Kernel(kernel) => lock(kernel).notes().to_vec(),
            Self::Sockets(..) => Vec::new(),
        }
    }
}

/// A process that the network is tied to, and the files that it leaves.
#[derive(Clone)]
struct Tied {
    pid: u32,
    groups: Vec<PathBuf>,
    folder: PathBuf,
    /// Whether its connection has broken.
    is_broken: bool,
}

/// Holds a network until a request or its time ends it; calls `ready` once the network can be used.
///
/// # Errors
/// [`HolderError`]; nothing is left.
pub fn hold(mut order: NetworkSpec, home: &Path, ready: impl FnOnce()) -> Result<(), HolderError> {
    let own_users = match order.network {
        Backend::Sockets => false,
        Backend::Router | Backend::Kernel => sys::become_root().map_err(HolderError::Users)?,
    };
    // The name comes first: its owner owns all files of that name.
    let (listener, path) = listen(home, &order.name)?;
    let hosts = place::hosts(home, &order.name);
    let carrier = Carrier::start(&mut order, home).and_then(|carrier| {
        if !matches!(carrier, Carrier::Sockets(..)) {
            fs::write(&hosts, hosts_text(&order.topology)).map_err(io("the file of its names"))?;
        }
        Ok(carrier)
    });
    let carrier = carrier.inspect_err(|_| {
        for file in [&path, &hosts] {
            let _ = fs::remove_file(file);
        }
    })?;
    let ends = Instant::now() + order.lasts;
    let steering = Mutex::new(Steering::new(&order.topology, Instant::now()));
    let (steered, tied) = (Condvar::new(), Mutex::default());
    let network =
        Arc::new(HeldNetwork { order, own_users, carrier, steering, steered, ends, tied });
    let (end_sender, end_receiver) = mpsc::channel();
    let (answering, sender) = (network.clone(), end_sender.clone());
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (network, end_sender) = (answering.clone(), sender.clone());
            thread::spawn(move || {
                // The caller may have closed the connection; then the answer is dropped.
                let _ = network.answer(stream, &end_sender);
            });
        }
    });
    if network.order.tied {
        let (end_sender, network) = (end_sender.clone(), network.clone());
        thread::spawn(move || {
            // The caller never writes there.
            let _ = io::copy(&mut io::stdin(), &mut io::sink());
            lock(&network.tied).iter_mut().for_each(|tied| tied.is_broken = true);
            let _ = end_sender.send(None);
        });
    }
    ready();
    let flapping = network.clone();
    thread::spawn(move || flapping.flap());
    let requester = loop {
        match end_receiver.recv_timeout(ends.saturating_duration_since(Instant::now())) {
            Ok(requester) => break requester,
            Err(RecvTimeoutError::Disconnected) => break None,
            Err(RecvTimeoutError::Timeout) if Instant::now() >= ends => break None,
            Err(RecvTimeoutError::Timeout) => {}
        }
    };
    lock(&network.steering).end();
    network.end_programs();
    network.clear_up();
    let name = &network.order.name;
    let own = [place::log, place::table, place::state, place::hosts].map(|file| file(home, name));
    for file in own.iter().chain([&path]) {
        let _ = fs::remove_file(file);
    }
    if let Some(mut requester) = requester {
        let _ = place::write_message(&mut requester, &ControlAnswer::Done);
    }
    Ok(())
}

/// The nodes' names and addresses, as a file of hosts.
fn hosts_text(topology: &Topology) -> String {
    let nodes = topology.nodes().map(|(node, _, address)| format!("{address} {node}\n"));
    // Programs look up the name of their host, which is that of the machine on all nodes.
    let own = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("127.0.0.1 localhost {}\n{}", own.trim(), nodes.collect::<String>())
}

/// Creates the socket of a name atomically: it gets another name first, and is then linked unless
/// the name is taken.
fn listen(home: &Path, name: &str) -> Result<(UnixListener, PathBuf), HolderError> {
    let path = place::socket(home, name);
    let first = home.join(format!(".{}", std::process::id()));
    let _ = fs::remove_file(&first);
    let listener = place::listen(&first).map_err(io("its socket"))?;
    let named = fs::hard_link(&first, &path);
    let _ = fs::remove_file(&first);
    match named {
        Ok(()) => Ok((listener, path)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            Err(HolderError::Taken(name.to_owned()))
        }
        Err(error) => Err(io("its socket")(error)),
    }
}

/// The change that gives a link this profile.
fn link_change(link: &LinkId, profile: LinkProfile) -> RouterChange {
    match link {
        LinkId::Line(from, to) => {
            RouterChange::Line { from: from.clone(), to: to.clone(), profile }
        }
        LinkId::Stub(cluster, up) => {
            RouterChange::Stub { cluster: cluster.clone(), up: *up, profile }
        }
    }
}

impl HeldNetwork {
    /// Cuts and restores flapping links as long as this process lives.
    fn flap(&self) {
        let mut steering = lock(&self.steering);
        loop {
            let now = Instant::now();
            let mut due = steering.turn(now);
            for (link, rate) in steering.due_rates(now) {
                match self.carrier.profile(&link) {
                    Ok(profile) => due.push(link_change(&link, LinkProfile { rate, ..profile })),
                    Err(error) => tracing::error!("{error}"),
                }
            }
            if !due.is_empty()
                && let Err(error) = self.carrier.change(&due)
            {
                tracing::error!("{error}");
            }
            steering = match steering.next_at() {
                None => self.steered.wait(steering).unwrap_or_else(PoisonError::into_inner),
                Some(at) => {
                    let wait = at.saturating_duration_since(Instant::now());
                    let woken = self.steered.wait_timeout(steering, wait);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    fn change(&self, changes: &[RouterChange]) -> Result<(), KernelError> {
        let mut steering = lock(&self.steering);
        self.carrier.change(changes)?;
        steering.note_changes(changes);
        Ok(())
    }

    fn set(&self, link: &LinkSelector, wish: &LinkOverrides) -> Result<ChangeResult, String> {
        let NetworkSpec { network, ports, .. } = &self.order;
        check_supported(*network, *ports, link, wish).map_err(|error| error.to_string())?;
        let outcome = self.carrier.set(&self.steering, link, wish)?;
        self.steered.notify_all();
        Ok(outcome)
    }

    fn answer(
        &self,
        mut stream: UnixStream,
        end_sender: &mpsc::Sender<Option<UnixStream>>,
    ) -> io::Result<()> {
        while let Some(request) = place::read_message::<ControlRequest>(&stream)? {
            let answer = match request {
                ControlRequest::Status => match self.status() {
                    Ok(status) => ControlAnswer::Status(Box::new(status)),
                    Err(error) => ControlAnswer::Failed(error),
                },
                ControlRequest::Change(changes) => match self.change(&changes) {
                    Ok(()) => ControlAnswer::Done,
                    Err(error) => ControlAnswer::Failed(error.to_string()),
                },
                ControlRequest::Set { link, wish } => match self.set(&link, &wish) {
                    Ok(outcome) => ControlAnswer::Set(outcome),
                    Err(error) => ControlAnswer::Failed(error),
                },
                ControlRequest::Capture { offered } => match &self.carrier {
                    Carrier::Router(_, routing) => return routing.capture(stream, offered),
                    Carrier::Kernel(_) | Carrier::Sockets(..) => {
                        let reason = "only a network by router captures packets: bring it up \
                                      with `--network router`";
                        ControlAnswer::Failed(reason.to_owned())
                    }
                },
                // There is no answer until the end, which closes the connection.
                ControlRequest::Stay => continue,
                ControlRequest::Tie { pid, groups, folder } => {
                    let new = Tied { pid, groups, folder, is_broken: false };
                    let mut tied = lock(&self.tied);
                    let at = tied.len();
                    tied.push(new);
                    drop(tied);
                    place::write_message(&mut stream, &ControlAnswer::Done)?;
                    // Any message or error ends the connection.
                    let _ = place::read_message::<ControlRequest>(&stream);
                    lock(&self.tied)[at].is_broken = true;
                    let _ = end_sender.send(None);
                    return Ok(());
                }
                ControlRequest::Down => {
                    let _ = end_sender.send(Some(stream));
                    return Ok(());
                }
            };
            place::write_message(&mut stream, &answer)?;
        }
        Ok(())
    }

    fn status(&self) -> Result<Status, String> {
        let Self { order, own_users, carrier, ends, .. } = self;
        let (mut lines, mut stubs) = carrier.links()?;
        {
            let steering = lock(&self.steering);
            for line in &mut lines {
                let link = LinkId::Line(line.from.clone(), line.to.clone());
                line.queued = carrier.queued(&link);
                line.rate = steering.rate_text(&link, line.profile.rate);
                line.impairments = steering.words(&link);
            }
            for stub in &mut stubs {
                let link = LinkId::Stub(stub.cluster.clone(), stub.up);
                stub.queued = carrier.queued(&link);
                stub.rate = steering.rate_text(&link, stub.profile.rate);
                stub.impairments = steering.words(&link);
            }
        }
        let nodes = order.topology.nodes().map(|(node, _, address)| (node.to_string(), address));
        let (table, counts) = match carrier {
            Carrier::Router(_, routing) => {
                let core = routing.core();
                let late = |share| core.late.value_at_quantile(share) as f64 * 1e-3;
                // Unknown before the first packet.
                let late = (!core.late.is_empty()).then(|| [0.5, 0.99, 1.0].map(late));
                (None, (late, core.router.unroutable(), core.refused))
            }
            Carrier::Kernel(_) => (None, (None, 0, 0)),
            Carrier::Sockets(_, path) => (Some(path.clone()), (None, 0, 0)),
        };
        let (late_us, unroutable, refused) = counts;
        Ok(Status {
            name: order.name.clone(),
            network: order.network,
            pid: std::process::id(),
            own_users: *own_users,
            ports: order.ports,
            spaces: carrier.spaces(),
            table,
            nodes: nodes.collect(),
            lines,
            stubs,
            borders: carrier.borders(),
            left_s: ends.saturating_duration_since(Instant::now()).as_secs_f64(),
            notes: carrier.notes(),
            late_us,
            unroutable,
            refused,
        })
    }

    /// Removes the files of broken connections' processes: groups as soon as no process runs in
    /// them.
    fn clear_up(&self) {
        let tied = lock(&self.tied).clone();
        for folder in tied.iter().filter(|tied| tied.is_broken).map(|tied| &tied.folder) {
            let _ = fs::remove_dir_all(folder);
        }
        let groups: Vec<&PathBuf> = tied.iter().flat_map(|tied| &tied.groups).collect();
        let until = Instant::now() + END_TIMEOUT;
        while groups.iter().any(|group| group.exists()) && Instant::now() < until {
            groups.iter().for_each(|group| quota::remove(group));
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Ends the programs of the network: by SIGTERM, and then by SIGKILL.
    fn end_programs(&self) {
        let number = |ports: &[Port]| {
            ports.iter().filter_map(|port| sys::inode_of(&port.net).ok()).collect()
        };
        let within = match &self.carrier {
            Carrier::Router(fabric, _) => ProgramFilter::Spaces(number(&fabric.ports)),
            Carrier::Kernel(kernel) => ProgramFilter::Spaces(number(lock(kernel).ports())),
            Carrier::Sockets(_, path) => ProgramFilter::Table(path.clone()),
        };
        let tied = lock(&self.tied).clone();
        let inside = || {
            let ends_itself =
                |pid: &i32| tied.iter().any(|tied| i32::try_from(tied.pid) == Ok(*pid));
            within.programs().filter(|pid| !ends_itself(pid)).collect::<Vec<i32>>()
        };
        let running = inside();
        running.iter().for_each(|pid| sys::end(*pid, false));
        let until = Instant::now() + END_TIMEOUT;
        while !inside().is_empty() && Instant::now() < until {
            thread::sleep(Duration::from_millis(20));
        }
        inside().into_iter().for_each(|pid| sys::end(pid, true));
    }
}

/// The criterion for a network's programs.
#[derive(Clone, Debug)]
pub enum ProgramFilter {
    /// They run in one of the network namespaces with these inode numbers.
    Spaces(Vec<u64>),
    /// `wan exec` gave them this table of links in their environment, which children inherit.
    Table(PathBuf),
}

/// The environment variable that names a program's table of links.
pub const SHAPE: &str = "SPRINGTIDE_NET__SHAPE";

impl ProgramFilter {
    /// The programs that run now, except the calling process.
    pub fn programs(&self) -> impl Iterator<Item = i32> + '_ {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let own = i32::try_from(std::process::id());
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        pids.filter(move |pid| Ok(*pid) != own && self.has(*pid))
    }

    fn has(&self, pid: i32) -> bool {
        match self {
            Self::Spaces(numbers) => {
                let space = fs::metadata(format!("/proc/{pid}/ns/net"));
                space.is_ok_and(|space| numbers.contains(&space.ino()))
            }
            Self::Table(path) => {
                let word = [SHAPE.as_bytes(), b"=", path.as_os_str().as_bytes()].concat();
                let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
                environment.split(|byte| *byte == 0).any(|entry| entry == word)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use springtide_runtime::config::{Sources, TopologyConfig, load};

    use super::*;

    #[test]
    fn concurrent_changes_of_one_link_both_hold() {
        let text = "name = \"pair\"\nnet = \"127.77.0.0/16\"\n[wide]\nrtt = \"10ms\"\n\
            [[cluster]]\nname = \"a\"\n[[cluster]]\nname = \"b\"\n";
        let config = load::<TopologyConfig>(&Sources::of_text("t.toml", text)).unwrap();
        let topology = Topology::from_config(&config.value);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.links");
        let carrier = Carrier::Sockets(LinkTable::create(&path, &topology, 1).unwrap(), path);
        let steering = Mutex::new(Steering::new(&topology, Instant::now()));
        let link: LinkSelector = "a,b".parse().unwrap();
        for round in 1..200 {
            let words = [format!("rtt={}ms", 2 * round), format!("queue={}", 1500 + round)];
            thread::scope(|scope| {
                for word in words {
                    let wish = LinkOverrides::of(&[word]).unwrap();
                    let (carrier, steering, link) = (&carrier, &steering, &link);
                    scope.spawn(move || carrier.set(steering, link, &wish).unwrap());
                }
            });
            for link in [LinkId::Line("a".into(), "b".into()), LinkId::Line("b".into(), "a".into())]
            {
                let now = carrier.profile(&link).unwrap();
                assert_eq!((now.delay_us, now.queue), (1000 * round, 1500 + round as usize));
            }
        }
        // All changes or none; the error lists the known clusters.
        let wish = LinkOverrides::of(&["down"]).unwrap();
        let error =
            carrier.set(&steering, &"a,z".parse::<LinkSelector>().unwrap(), &wish).unwrap_err();
        assert_eq!(error, "there is no cluster named \"z\": the topology has a, b");
        assert!(carrier.profile(&LinkId::Line("a".into(), "b".into())).unwrap().up);
    }
}
