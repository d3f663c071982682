//! The tests of `wan doctor`. Each part runs in a child, which executes this program: namespaces,
//! devices and groups end with it.
//!
//! This module does not know the evaluation of results.

use std::fmt::Display;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::parent_id;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use std::{env, fs, io, thread};

use bytes::Bytes;
use springtide_cli::exit::Failed;
use springtide_cli::print::print;
use springtide_runtime::config::{Sources, TopologyConfig, load};
use springtide_runtime::id::{Incarnation, NodeId, Peer};
use springtide_runtime::net::tls::{Ca, EPHEMERAL_VALIDITY};
use springtide_runtime::net::{Class, Net, NetConfig, NetworkHandler};
use springtide_runtime::topology::Topology;
use springtide_runtime::wire;
use springtide_wan::fabric::{Namespaces, Port, RouterThread};
use springtide_wan::kernel::{Kernel, SCRIPT};
use springtide_wan::place;
use springtide_wan::quota::Quotas;
use springtide_wan::router::{PortKind, Router};
use springtide_wan::shaped::Shaped;
use springtide_wan::sys::{self, Namespace};
use springtide_wan::table::LinkTable;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::{Fact, IPROUTE2, KINDS, TOOLS, of};

/// The environment variable that names a child's part. No option of the command line, because only
/// this program uses it.
pub(super) const PART: &str = "SPRINGTIDE_WAN_DOCTOR";
/// Timeout of a child, which takes well below a second.
const PART_TIMEOUT: Duration = Duration::from_secs(20);
/// Timeout of `ip -V`, which takes milliseconds.
const TOOL_TIMEOUT: Duration = Duration::from_secs(4);
/// Timeout of the script's tests, which take milliseconds unless the kernel loads modules.
const SCRIPT_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of shaped sockets to open a link and for all round trips over it.
const LINK_TIMEOUT: Duration = Duration::from_secs(15);
/// Timeout of a datagram, after which it is lost.
const PACKET_TIMEOUT: Duration = Duration::from_secs(2);
/// The number of round trips, of which the median is reported: single ones vary with the host's
/// load.
const ROUND_TRIPS: usize = 9;
/// The delay in each direction.
pub(super) const DELAY: Duration = Duration::from_millis(5);
/// One node per cluster, so that the link between them is used.
const TWO: &str = "name = \"doctor\"\n[wide]\nrtt = \"10ms\"\n\
[[cluster]]\nname = \"a\"\nnodes = 1\n[[cluster]]\nname = \"b\"\nnodes = 1\n";
/// The same on loopback, for shaped sockets.
const TWO_SOCKETS: &str = "net = \"127.77.0.0/16\"\n";
/// A topology that uses all features of the kernel. The loss is too small to lose a datagram here,
/// but needs the same support as any other.
const TWO_KERNEL: &str = "name = \"doctor\"\n[wide]\nrtt = \"10ms\"\nloss = 0.000001\n\
bandwidth = \"10MB/s\"\n\
[[cluster]]\nname = \"a\"\nnodes = 1\nuplink = \"10MB/s\"\n[[cluster]]\nname = \"b\"\nnodes = 1\n";

/// The name of a doctor's networks, from its process id.
pub(super) fn own_name(pid: u32) -> String {
    format!("doctor-{pid}")
}

fn topology(text: &str) -> Result<Topology, Failed> {
    Ok(Topology::from_config(&load::<TopologyConfig>(&Sources::of_text("doctor", text))?.value))
}

/// The facts that a child found, and the reason if it failed.
pub(super) fn ask(part: &str) -> (Vec<Fact>, Option<String>) {
    let this = match env::current_exe() {
        Ok(this) => this,
        Err(error) => return (Vec::new(), Some(error.to_string())),
    };
    let mut child = Command::new(this);
    child.args(["wan", "doctor"]).env(PART, part);
    match output_of(child, PART_TIMEOUT) {
        Ok(output) => {
            let facts = parse_facts(&String::from_utf8_lossy(&output.stdout));
            let said = String::from_utf8_lossy(&output.stderr);
            let last = said.trim().lines().next_back().unwrap_or("it ended in the middle");
            (facts, (!output.status.success()).then(|| last.to_owned()))
        }
        Err(error) => (Vec::new(), Some(error.to_string())),
    }
}

/// Parses facts. A child prints each fact at once, so that those before a failure count.
fn parse_facts(text: &str) -> Vec<Fact> {
    text.lines().map_while(|line| serde_json::from_str(line).ok()).collect()
}

/// Runs a command, which is killed at the timeout or when this process ends.
fn output_of(mut command: Command, within: Duration) -> io::Result<Output> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    sys::run_in_namespaces(&mut command, Vec::new(), None);
    let child = command.spawn()?;
    let pid = i32::try_from(child.id()).map_err(io::Error::other)?;
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(child.wait_with_output()));
    receiver.recv_timeout(within).unwrap_or_else(|_| {
        sys::end(pid, true);
        let what = format!("it took longer than {} s", within.as_secs());
        // The output so far; no other process holds the pipe for long.
        let mut output =
            receiver.recv_timeout(within).map_err(|_| io::Error::other(what.clone()))??;
        output.stderr = what.into_bytes();
        Ok(output)
    })
}

/// Runs a part in a child.
pub(super) fn part_of(part: &str) -> Result<(), Failed> {
    let report =
        |fact: Fact| print(&format!("{}\n", serde_json::to_value(fact).unwrap_or_default()));
    match part {
        "sockets" => sockets(report),
        "router" => router(report),
        "kernel" => kernel(report),
        "processors" => processors(report),
        _ => Err(Failed::usage(format!("{PART} is set to {part:?}: only this command may set it"))),
    }
}

/// Becomes root as `wan up` does, and returns how. This process must have no other thread yet.
fn be_root() -> io::Result<&'static str> {
    if !sys::become_root()? {
        return Ok("as root");
    }
    // A process with changed rights survives its parent, unless it asks again.
    sys::die_with_parent()?;
    Ok("without root, in a user namespace of its own")
}

/// Calls a function in a thread of its own, which may have its own network namespace.
fn apart<T: Send>(what: impl FnOnce() -> T + Send) -> io::Result<T> {
    let done =
        thread::scope(|scope| scope.spawn(|| sys::unshare(Namespace::Net).map(|()| what())).join());
    done.unwrap_or_else(|_| Err(io::Error::other("it panicked")))
}

/// Two nodes of this program in one process, as with `wan up --network sockets`.
fn sockets(report: impl Fn(Fact) -> Result<(), Failed>) -> Result<(), Failed> {
    let topology = topology(&format!("{TWO_SOCKETS}{TWO}"))?;
    let home = place::networks_dir().map_err(Failed::failure)?;
    let table = place::table(&home, &own_name(parent_id()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(Failed::failure)?;
    report(match runtime.block_on(shaped_trip(&topology, &table)) {
        Ok(took) => round_trip_fact(of::SOCKETS, 2 * DELAY, took),
        Err(error) => Fact::error(of::SOCKETS, &error),
    })
}

/// Signals that a message has arrived.
struct ArrivalSignal(UnboundedSender<()>);

impl NetworkHandler for ArrivalSignal {
    fn frame(&self, _from: &Peer, _kind: wire::Kind, _body: Bytes) {
        // The receiver is dropped after the measurement.
        let _ = self.0.send(());
    }
}

/// An error of the network as an I/O error.
fn wrong(error: impl Display) -> io::Error {
    io::Error::other(error.to_string())
}

/// The round-trip time of a message over QUIC on shaped sockets, whose table of links is in this
/// file.
async fn shaped_trip(topology: &Topology, file: &Path) -> io::Result<Duration> {
    // Opened a second time, as another process would.
    let tables = LinkTable::create(file, topology, 1)
        .and_then(|table| Ok([Arc::new(table), Arc::new(LinkTable::open(file)?)]));
    // Open files need no name.
    let _ = fs::remove_file(file);
    let tables = tables.map_err(wrong)?;
    let ca = Ca::ephemeral("doctor").map_err(wrong)?;
    let mut nodes: Vec<(Net, UnboundedReceiver<()>)> = Vec::new();
    for (site, table) in topology.sites.iter().zip(tables) {
        let node = NodeId::from(format!("{}-1", site.name));
        let identity = ca.issue(&node, &site.name, "node", EPHEMERAL_VALIDITY).map_err(wrong)?;
        let bind = SocketAddr::from((topology.address(site.number, 1), 0));
        let config = NetConfig { bind, ..NetConfig::default() };
        let shape = |socket| Shaped::wrap(socket, table);
        let net = Net::quic_over(config, &identity, Incarnation(1), shape).map_err(wrong)?;
        let (sender, receiver) = unbounded_channel();
        net.start(Arc::new(ArrivalSignal(sender)));
        nodes.push((net, receiver));
    }
    let [(near, back), (far, there)] = &mut nodes[..] else {
        return Err(wrong("the topology has not two clusters"));
    };
    near.learn(far.contact());
    far.learn(near.contact());
    let trips = async {
        let mut took = Vec::new();
        // The first round trip opens the link.
        for turn in 0..=ROUND_TRIPS {
            let began = Instant::now();
            near.send(&far.me().node, Class::Control, wire::Kind::TELL, "there").map_err(wrong)?;
            there.recv().await;
            far.send(&near.me().node, Class::Control, wire::Kind::TELL, "back").map_err(wrong)?;
            back.recv().await;
            if turn > 0 {
                took.push(began.elapsed());
            }
        }
        Ok::<Duration, io::Error>(median(took))
    };
    let late = |_| Err(wrong(format!("no answer came within {} s", LINK_TIMEOUT.as_secs())));
    tokio::time::timeout(LINK_TIMEOUT, trips).await.unwrap_or_else(late)
}

/// The median of at least one duration.
fn median(mut took: Vec<Duration>) -> Duration {
    took.sort();
    took[took.len() / 2]
}

fn router(report: impl Fn(Fact) -> Result<(), Failed>) -> Result<(), Failed> {
    let device = be_root().and_then(|how| Ok((how, apart(|| sys::open_tun("wan").map(drop))?)));
    let device = match device {
        Ok((how, device)) => {
            report(Fact::yes(of::SPACES, how))?;
            device
        }
        Err(error) => return report(Fact::error(of::SPACES, &error)),
    };
    match device {
        Ok(()) => report(Fact::yes(of::TUN, "/dev/net/tun creates one"))?,
        Err(error) => return report(Fact::error(of::TUN, &error)),
    }
    let topology = topology(TWO)?;
    let fabric = match Namespaces::new(&topology, PortKind::Node) {
        Ok(fabric) => fabric,
        Err(error) => return report(Fact::no(of::TRIP, error)),
    };
    let [near, far] = [1, 2].map(|number| topology.address(number, 1));
    let routing = match RouterThread::start(Router::new(topology, PortKind::Node, 1), &fabric) {
        Ok(routing) => routing,
        Err(error) => return report(Fact::error(of::TRIP, &error)),
    };
    report(match &routing.ordinary {
        None => Fact::yes(of::FIRST, "SCHED_FIFO is granted"),
        Some(error) => Fact::no(of::FIRST, error),
    })?;
    report(match trip([(&fabric.ports[0], near), (&fabric.ports[1], far)]) {
        Ok(took) => round_trip_fact(of::TRIP, 2 * DELAY, took),
        Err(error) => Fact::error(of::TRIP, &error),
    })
}

/// The round-trip time of a datagram.
fn trip(ends: [(&Port, Ipv4Addr); 2]) -> io::Result<Duration> {
    // A socket stays in the namespace in which it was created.
    let bind = |(port, address): (&Port, Ipv4Addr)| -> io::Result<UdpSocket> {
        let bound = thread::scope(|scope| {
            let there = scope.spawn(|| {
                sys::enter(port.net.as_fd(), Namespace::Net)?;
                UdpSocket::bind((address, 0))
            });
            there.join()
        });
        let socket = bound.unwrap_or_else(|_| Err(io::Error::other("it panicked")))?;
        socket.set_read_timeout(Some(PACKET_TIMEOUT))?;
        Ok(socket)
    };
    let [near, far] = [bind(ends[0])?, bind(ends[1])?];
    let (to, mut buffer, mut took) = (far.local_addr()?, [0; 8], Vec::new());
    let lost = |error: io::Error| match error.kind() {
        io::ErrorKind::WouldBlock => {
            io::Error::other(format!("no datagram arrived within {} s", PACKET_TIMEOUT.as_secs()))
        }
        _ => error,
    };
    for _ in 0..ROUND_TRIPS {
        let began = Instant::now();
        near.send_to(b"there", to)?;
        let (_, from) = far.recv_from(&mut buffer).map_err(lost)?;
        far.send_to(b"back", from)?;
        near.recv_from(&mut buffer).map_err(lost)?;
        took.push(began.elapsed());
    }
    Ok(median(took))
}

fn ms(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e5).round() / 100.0
}

pub(super) fn round_trip_fact(name: &str, asked: Duration, took: Duration) -> Fact {
    let [asked, took] = [asked, took].map(ms);
    // A link without the delay is not an emulation.
    let (ok, late) = (took >= asked, took > 1.2 * asked);
    let late = if late { ": this host is busy" } else { "" };
    Fact {
        ok,
        said: format!("{asked} ms asked, {took} ms measured{late}"),
        numbers: [("asked_ms".into(), asked), ("measured_ms".into(), took)].into(),
        ..Fact::no(name, "")
    }
}

fn kernel(report: impl Fn(Fact) -> Result<(), Failed>) -> Result<(), Failed> {
    // Both before any thread exists, and the directory before the change of user.
    let home = place::networks_dir().map_err(Failed::failure)?;
    let root = be_root();
    let mut whole = true;
    for (name, package) in TOOLS {
        let found = tool(name, package);
        whole &= found.is_ok();
        report(match found {
            Ok(path) => Fact::yes(name, path.display()),
            Err(said) => Fact::no(name, said),
        })?;
    }
    // The router's child reports failures of namespaces.
    if !whole || root.is_err() {
        return Ok(());
    }
    let mut can = Command::new("sh");
    can.args(["-c", SCRIPT, "kernel.sh", "can"]);
    match output_of(can, SCRIPT_TIMEOUT) {
        Ok(Output { status, stdout, .. }) if status.success() => {
            let text = String::from_utf8_lossy(&stdout);
            text.lines().filter_map(ability).try_for_each(&report)?;
        }
        Ok(Output { stderr, .. }) => {
            let said = String::from_utf8_lossy(&stderr);
            return report(Fact::no(of::KERNEL, said.trim().trim_start_matches("kernel.sh: ")));
        }
        Err(error) => return report(Fact::error(of::KERNEL, &error)),
    }
    report(network(&topology(TWO_KERNEL)?, &home))
}

/// Parses a line of the script: `NAME yes`, or `NAME no: WHY`.
fn ability(line: &str) -> Option<Fact> {
    let (name, said) = line.split_once(' ')?;
    KINDS.iter().find(|kind| kind.0 == name)?;
    match said.strip_prefix("no: ") {
        Some(why) => Some(Fact::no(name, why.trim().trim_end_matches('.'))),
        None => (said == "yes").then(|| Fact::yes(name, "this kernel has it")),
    }
}

/// Starts a network by the kernel's queues, and measures round trips in it.
fn network(topology: &Topology, home: &Path) -> Fact {
    let name = own_name(parent_id());
    let state = place::state(home, &name);
    // Missing features are accepted and reported.
    let started = Kernel::start(&name, topology, state.clone(), true);
    // Only changes of the network need the file.
    let _ = fs::remove_file(&state);
    let kernel = match started {
        Ok(kernel) => kernel,
        Err(error) => return Fact::no(of::KERNEL, error),
    };
    let [near, far] = [1, 2].map(|number| topology.address(number, 1));
    let tried = match kernel.ports() {
        [a, b] => trip([(a, near), (b, far)]),
        ports => Err(wrong(format!("it has {} namespaces instead of two", ports.len()))),
    };
    match tried {
        Ok(took) => kernel_network_fact(kernel.notes(), took),
        Err(error) => Fact::no(of::KERNEL, format!("it starts, but {error}")),
    }
}

/// The fact of a kernel's network. `notes` are its missing features.
pub(super) fn kernel_network_fact(notes: &[String], took: Duration) -> Fact {
    if notes.is_empty() {
        return round_trip_fact(of::KERNEL, 2 * DELAY, took);
    }
    let (has, lacks) = if notes.iter().any(|note| note.contains("loss")) {
        ("rates", "delay, jitter or loss")
    } else {
        ("rates and loss", "delay or jitter")
    };
    let took = ms(took);
    let said =
        format!("{has} only, no netem: topologies with {lacks} need --partial; {took} ms measured");
    Fact { numbers: [("measured_ms".into(), took)].into(), ..Fact::yes(of::KERNEL, said) }
}

/// The tool that the script would use. `ip` and `tc` of busybox support neither namespaces nor
/// these kinds.
fn tool(name: &str, package: &str) -> Result<PathBuf, String> {
    let mut other = String::new();
    for path in places(name) {
        if package != IPROUTE2 {
            return Ok(path);
        }
        let mut asked = Command::new(&path);
        asked.arg("-V");
        let said = output_of(asked, TOOL_TIMEOUT).map_err(|error| error.to_string())?;
        if String::from_utf8_lossy(&said.stdout).contains(package) {
            return Ok(path);
        }
        other = format!("{} is not the program of {package}", path.display());
    }
    Err(other)
}

fn processors(report: impl Fn(Fact) -> Result<(), Failed>) -> Result<(), Failed> {
    // The least quota that a run requests. It ends with `quotas`.
    let tried = Quotas::by_groups().and_then(|quotas| {
        quotas.set("doctor", 0.04, 1)?;
        Ok(quotas)
    });
    report(match tried {
        Ok(quotas) => Fact::yes(of::QUOTA, quotas.kind().word()),
        Err(error) => Fact::no(of::QUOTA, error),
    })
}

/// Executables with this name, also in root's directories, in the order of search.
pub(super) fn places(name: &str) -> Vec<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    let all = env::split_paths(&path).chain(usual).map(|folder| folder.join(name));
    let can_run = |path: &PathBuf| {
        fs::metadata(path)
            .is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    all.filter(can_run).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fast_link_fails_and_a_late_one_is_noted() {
        let ms = Duration::from_millis;
        assert!(!round_trip_fact(of::TRIP, ms(10), ms(1)).ok);
        assert!(round_trip_fact(of::TRIP, ms(10), ms(11)).ok);
        assert_eq!(
            round_trip_fact(of::TRIP, ms(10), ms(30)).said,
            "10 ms asked, 30 ms measured: this host is busy"
        );
    }

    #[test]
    fn the_scripts_output_is_parsed() {
        let text = "netem no: Specified qdisc kind is unknown. \ntbf yes\nnew yes\nhtb\n";
        let found: Vec<Fact> = text.lines().filter_map(ability).collect();
        let netem = Fact::no("netem", "Specified qdisc kind is unknown");
        assert_eq!(found, [netem, Fact::yes("tbf", "this kernel has it")]);
        // The script tests each of them.
        for (kind, _) in KINDS {
            assert!(SCRIPT.contains(&format!("\ntry {kind} ")), "{kind}");
        }
    }

    /// Needs no rights, so that it is never skipped.
    #[test]
    fn shaped_sockets_have_the_requested_delay() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("t.links");
        let topology = topology(&format!("{TWO_SOCKETS}{TWO}")).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let took = runtime.block_on(shaped_trip(&topology, &file)).unwrap();
        assert!(took >= 2 * DELAY, "{took:?}");
        assert!(!file.exists());
    }

    #[test]
    fn tested_topologies_are_valid() {
        assert_eq!(topology(TWO).unwrap().sites.len(), 2);
        let kernel = topology(TWO_KERNEL).unwrap();
        let line = "link a b 5000 0 0.000001 10000000 1000000 0\n";
        assert!(kernel.table().contains(line), "{}", kernel.table());
        assert!(kernel.table().contains("uplink a 10000000 1000000\n"));
    }

    #[test]
    fn facts_before_a_failure_are_parsed() {
        let fact = round_trip_fact(of::TRIP, 2 * DELAY, 2 * DELAY);
        let line = serde_json::to_string(&fact).unwrap();
        assert_eq!(parse_facts(&format!("{line}\n{line}\n{{\"name\":")), [fact.clone(), fact]);
        assert_eq!(parse_facts(""), []);
    }

    #[test]
    fn a_command_that_takes_too_long_is_killed() {
        let mut sleep = Command::new("sleep");
        sleep.arg("1000");
        let output = output_of(sleep, Duration::from_millis(100)).unwrap();
        assert!(!output.status.success());
        assert_eq!(output.stderr, b"it took longer than 0 s");
    }
}
