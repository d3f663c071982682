//! What `wan doctor` tries, each part in a child, which is this program again: spaces, devices and groups end with it.
//!
//! Must not know what is made of what is found.

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
use springtide_runtime::config::{Sources, TopologyConfig, load};
use springtide_runtime::id::{Incarnation, NodeId, Peer};
use springtide_runtime::net::tls::{Ca, EPHEMERAL_VALIDITY};
use springtide_runtime::net::{Class, Inbox, Net, NetConfig};
use springtide_runtime::topology::Topology;
use springtide_runtime::wire;
use springtide_wan::fabric::{Fabric, Port, Routing};
use springtide_wan::kernel::{Kernel, SCRIPT};
use springtide_wan::place;
use springtide_wan::quota::Quotas;
use springtide_wan::router::{PortOf, Router};
use springtide_wan::shaped::Shaped;
use springtide_wan::sys::{self, Space};
use springtide_wan::table::Table;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::{Fact, IPROUTE2, KINDS, TOOLS, of};
use crate::exit::Failed;
use crate::run::print;

/// Tells a child what it is to try. Not a word of the command line, for nobody is to type it.
pub(super) const PART: &str = "SPRINGTIDE_WAN_DOCTOR";
/// A child takes well below a second; one that takes so long is stuck, and killed.
const PART_WITHIN: Duration = Duration::from_secs(20);
/// `ip` takes milliseconds to say its version.
const TOOL_WITHIN: Duration = Duration::from_secs(4);
/// What the script tries takes milliseconds, but where the kernel loads modules for it.
const SCRIPT_WITHIN: Duration = Duration::from_secs(10);
/// Shaped sockets have so long to open a link and for all round trips over it.
const LINK_WITHIN: Duration = Duration::from_secs(15);
/// A datagram that is not there after so long does not come.
const PACKET_WITHIN: Duration = Duration::from_secs(2);
/// Of so many round trips the middle one is told: one alone tells of the machine's mood.
const ROUND_TRIPS: usize = 9;
/// Each way.
pub(super) const ASKED: Duration = Duration::from_millis(5);
/// A cluster each, so that the line between them is met.
const TWO: &str = "name = \"doctor\"\n[wide]\nrtt = \"10ms\"\n\
    [[cluster]]\nname = \"a\"\nnodes = 1\n[[cluster]]\nname = \"b\"\nnodes = 1\n";
/// The same on loopback, for shaped sockets.
const TWO_SOCKETS: &str = "net = \"127.77.0.0/16\"\n";
/// One that needs all that the kernel back end can be asked for. A loss so small that it harms no datagram here must be provided for
/// like any other.
const TWO_KERNEL: &str = "name = \"doctor\"\n[wide]\nrtt = \"10ms\"\nloss = 0.000001\nbandwidth = \"10MB/s\"\n\
    [[cluster]]\nname = \"a\"\nnodes = 1\nuplink = \"10MB/s\"\n[[cluster]]\nname = \"b\"\nnodes = 1\n";

/// What a doctor's networks are called, by the number of its process.
pub(super) fn own_name(pid: u32) -> String {
    format!("doctor-{pid}")
}

fn topology(text: &str) -> Result<Topology, Failed> {
    Ok(Topology::of(&load::<TopologyConfig>(&Sources::of_text("doctor", text))?.value))
}

/// What a child found, and if it came to a bad end, which.
pub(super) fn ask(part: &str) -> (Vec<Fact>, Option<String>) {
    let this = match env::current_exe() {
        Ok(this) => this,
        Err(error) => return (Vec::new(), Some(error.to_string())),
    };
    let mut child = Command::new(this);
    child.args(["wan", "doctor"]).env(PART, part);
    match output_of(child, PART_WITHIN) {
        Ok(output) => {
            let facts = told(&String::from_utf8_lossy(&output.stdout));
            let said = String::from_utf8_lossy(&output.stderr);
            let last = said.trim().lines().next_back().unwrap_or("it ended in the middle");
            (facts, (!output.status.success()).then(|| last.to_owned()))
        }
        Err(error) => (Vec::new(), Some(error.to_string())),
    }
}

/// A child tells each fact as soon as it has it, so that those before a bad end count.
fn told(text: &str) -> Vec<Fact> {
    text.lines().map_while(|line| serde_json::from_str(line).ok()).collect()
}

/// Runs a command, which is killed when it takes longer, or when this process ends.
fn output_of(mut command: Command, within: Duration) -> io::Result<Output> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    sys::run_in(&mut command, Vec::new());
    let child = command.spawn()?;
    let pid = i32::try_from(child.id()).map_err(io::Error::other)?;
    let (tell, told) = mpsc::channel();
    thread::spawn(move || tell.send(child.wait_with_output()));
    told.recv_timeout(within).unwrap_or_else(|_| {
        sys::end(pid, true);
        let what = format!("it took longer than {} s", within.as_secs());
        // What it said before; nobody else holds its end of the line for long.
        let mut output =
            told.recv_timeout(within).map_err(|_| io::Error::other(what.clone()))??;
        output.stderr = what.into_bytes();
        Ok(output)
    })
}

/// In a child: tries its part.
pub(super) fn part_of(part: &str) -> Result<(), Failed> {
    let tell = |fact: Fact| print(&format!("{}\n", serde_json::to_value(fact).unwrap_or_default()));
    match part {
        "sockets" => sockets(tell),
        "router" => router(tell),
        "kernel" => kernel(tell),
        "processors" => processors(tell),
        _ => Err(Failed::usage(format!(
            "{PART} is set to {part:?}: it is for this command's own use"
        ))),
    }
}

/// Root as `wan up` becomes it, and how. This process must have no other thread yet.
fn be_root() -> io::Result<&'static str> {
    if !sys::be_root()? {
        return Ok("as root");
    }
    // Who gets other rights lives on without its parent, if it does not ask again.
    sys::die_with_parent()?;
    Ok("without root, in a space of users of one's own")
}

/// Does something in a thread of its own, whose network space this then is.
fn apart<T: Send>(what: impl FnOnce() -> T + Send) -> io::Result<T> {
    let done =
        thread::scope(|scope| scope.spawn(|| sys::unshare(Space::Net).map(|()| what())).join());
    done.unwrap_or_else(|_| Err(io::Error::other("it panicked")))
}

/// Two nodes of this program's own, in one process, as `wan up --network sockets` would have them.
fn sockets(tell: impl Fn(Fact) -> Result<(), Failed>) -> Result<(), Failed> {
    let topology = topology(&format!("{TWO_SOCKETS}{TWO}"))?;
    let home = place::home().map_err(Failed::failure)?;
    let table = place::table(&home, &own_name(parent_id()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(Failed::failure)?;
    tell(match runtime.block_on(shaped_trip(&topology, &table)) {
        Ok(took) => trip_told(of::SOCKETS, 2 * ASKED, took),
        Err(error) => Fact::error(of::SOCKETS, &error),
    })
}

/// Tells that something has come.
struct Heard(UnboundedSender<()>);

impl Inbox for Heard {
    fn frame(&self, _from: &Peer, _kind: wire::Kind, _body: Bytes) {
        // Who has measured enough does not listen any more.
        let _ = self.0.send(());
    }
}

/// Why something of the network's cannot be had, as a failure of the system.
fn wrong(error: impl Display) -> io::Error {
    io::Error::other(error.to_string())
}

/// How long a message takes there and back over QUIC on shaped sockets, whose table of links is in this file meanwhile.
async fn shaped_trip(topology: &Topology, file: &Path) -> io::Result<Duration> {
    // Opened a second time, as another process would.
    let tables = Table::create(file, topology, 1)
        .and_then(|table| Ok([Arc::new(table), Arc::new(Table::open(file)?)]));
    // Who has it open needs no name for it.
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
        let (tell, told) = unbounded_channel();
        net.start(Arc::new(Heard(tell)));
        nodes.push((net, told));
    }
    let [(near, back), (far, there)] = &mut nodes[..] else {
        return Err(wrong("the topology has not two clusters"));
    };
    near.learn(far.contact());
    far.learn(near.contact());
    let trips = async {
        let mut took = Vec::new();
        // The first opens the link.
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
        Ok::<Duration, io::Error>(middle(took))
    };
    let late = |_| Err(wrong(format!("no answer came within {} s", LINK_WITHIN.as_secs())));
    tokio::time::timeout(LINK_WITHIN, trips).await.unwrap_or_else(late)
}

/// Of several; there is one at least.
fn middle(mut took: Vec<Duration>) -> Duration {
    took.sort();
    took[took.len() / 2]
}

fn router(tell: impl Fn(Fact) -> Result<(), Failed>) -> Result<(), Failed> {
    let device = be_root().and_then(|how| Ok((how, apart(|| sys::open_tun("wan").map(drop))?)));
    let device = match device {
        Ok((how, device)) => {
            tell(Fact::yes(of::SPACES, how))?;
            device
        }
        Err(error) => return tell(Fact::error(of::SPACES, &error)),
    };
    match device {
        Ok(()) => tell(Fact::yes(of::TUN, "/dev/net/tun gives one"))?,
        Err(error) => return tell(Fact::error(of::TUN, &error)),
    }
    let topology = topology(TWO)?;
    let fabric = match Fabric::new(&topology, PortOf::Node) {
        Ok(fabric) => fabric,
        Err(error) => return tell(Fact::no(of::TRIP, error)),
    };
    let [near, far] = [1, 2].map(|number| topology.address(number, 1));
    let routing = match Routing::start(Router::new(topology, PortOf::Node, 1), &fabric) {
        Ok(routing) => routing,
        Err(error) => return tell(Fact::error(of::TRIP, &error)),
    };
    tell(match &routing.ordinary {
        None => Fact::yes(of::FIRST, "SCHED_FIFO is granted"),
        Some(error) => Fact::no(of::FIRST, error),
    })?;
    tell(match trip([(&fabric.ports[0], near), (&fabric.ports[1], far)]) {
        Ok(took) => trip_told(of::TRIP, 2 * ASKED, took),
        Err(error) => Fact::error(of::TRIP, &error),
    })
}

/// How long a datagram takes there and back.
fn trip(ends: [(&Port, Ipv4Addr); 2]) -> io::Result<Duration> {
    // A socket stays in the space it was made in.
    let bind = |(port, address): (&Port, Ipv4Addr)| -> io::Result<UdpSocket> {
        let bound = thread::scope(|scope| {
            let there = scope.spawn(|| {
                sys::enter(port.net.as_fd(), Space::Net)?;
                UdpSocket::bind((address, 0))
            });
            there.join()
        });
        let socket = bound.unwrap_or_else(|_| Err(io::Error::other("it panicked")))?;
        socket.set_read_timeout(Some(PACKET_WITHIN))?;
        Ok(socket)
    };
    let [near, far] = [bind(ends[0])?, bind(ends[1])?];
    let (to, mut buffer, mut took) = (far.local_addr()?, [0; 8], Vec::new());
    let lost = |error: io::Error| match error.kind() {
        io::ErrorKind::WouldBlock => io::Error::other(format!(
            "a datagram did not come within {} s",
            PACKET_WITHIN.as_secs()
        )),
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
    Ok(middle(took))
}

fn ms(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e5).round() / 100.0
}

pub(super) fn trip_told(name: &str, asked: Duration, took: Duration) -> Fact {
    let [asked, took] = [asked, took].map(ms);
    // A link that is too fast is none.
    let (ok, late) = (took >= asked, took > 1.2 * asked);
    let late = if late { ": this machine is busy" } else { "" };
    Fact {
        ok,
        said: format!("{asked} ms asked, {took} ms measured{late}"),
        numbers: [("asked_ms".into(), asked), ("measured_ms".into(), took)].into(),
        ..Fact::no(name, "")
    }
}

fn kernel(tell: impl Fn(Fact) -> Result<(), Failed>) -> Result<(), Failed> {
    // Both before there is any thread; and the folder before this is another user.
    let home = place::home().map_err(Failed::failure)?;
    let root = be_root();
    let mut whole = true;
    for (name, package) in TOOLS {
        let found = tool(name, package);
        whole &= found.is_ok();
        tell(match found {
            Ok(path) => Fact::yes(name, path.display()),
            Err(said) => Fact::no(name, said),
        })?;
    }
    // What the router's child says of namespaces is enough.
    if !whole || root.is_err() {
        return Ok(());
    }
    let mut can = Command::new("sh");
    can.args(["-c", SCRIPT, "kernel.sh", "can"]);
    match output_of(can, SCRIPT_WITHIN) {
        Ok(Output { status, stdout, .. }) if status.success() => {
            let told = String::from_utf8_lossy(&stdout);
            told.lines().filter_map(ability).try_for_each(&tell)?;
        }
        Ok(Output { stderr, .. }) => {
            let said = String::from_utf8_lossy(&stderr);
            return tell(Fact::no(of::KERNEL, said.trim().trim_start_matches("kernel.sh: ")));
        }
        Err(error) => return tell(Fact::error(of::KERNEL, &error)),
    }
    tell(network(&topology(TWO_KERNEL)?, &home))
}

/// What the script says of a kind: `NAME yes`, or `NAME no: WHY`.
fn ability(line: &str) -> Option<Fact> {
    let (name, said) = line.split_once(' ')?;
    KINDS.iter().find(|kind| kind.0 == name)?;
    match said.strip_prefix("no: ") {
        Some(why) => Some(Fact::no(name, why.trim().trim_end_matches('.'))),
        None => (said == "yes").then(|| Fact::yes(name, "this kernel has it")),
    }
}

/// A network by the kernel, for as long as datagrams go there and back.
fn network(topology: &Topology, home: &Path) -> Fact {
    let name = own_name(parent_id());
    let state = place::state(home, &name);
    // With whatever is missing: what that is, is told.
    let started = Kernel::start(&name, topology, state.clone(), true);
    // Only who changes the network needs it.
    let _ = fs::remove_file(&state);
    let kernel = match started {
        Ok(kernel) => kernel,
        Err(error) => return Fact::no(of::KERNEL, error),
    };
    let [near, far] = [1, 2].map(|number| topology.address(number, 1));
    let tried = match kernel.ports() {
        [a, b] => trip([(a, near), (b, far)]),
        ports => Err(wrong(format!("it has {} namespaces of two", ports.len()))),
    };
    match tried {
        Ok(took) => network_told(kernel.notes(), took),
        Err(error) => Fact::no(of::KERNEL, format!("it comes up, but {error}")),
    }
}

/// `notes`: what the network lacks.
pub(super) fn network_told(notes: &[String], took: Duration) -> Fact {
    if notes.is_empty() {
        return trip_told(of::KERNEL, 2 * ASKED, took);
    }
    let (has, lacks) = match notes.iter().any(|note| note.contains("loss")) {
        true => ("rates", "delay, jitter or loss"),
        false => ("rates and loss", "delay or jitter"),
    };
    let took = ms(took);
    let said = format!(
        "{has} only, no netem: topologies with {lacks} come up with --partial alone; {took} ms measured"
    );
    Fact { numbers: [("measured_ms".into(), took)].into(), ..Fact::yes(of::KERNEL, said) }
}

/// The tool that the script would take: `ip` and `tc` of busybox know neither namespaces nor these kinds.
fn tool(name: &str, package: &str) -> Result<PathBuf, String> {
    let mut other = String::new();
    for path in places(name) {
        if package != IPROUTE2 {
            return Ok(path);
        }
        let mut asked = Command::new(&path);
        asked.arg("-V");
        let said = output_of(asked, TOOL_WITHIN).map_err(|error| error.to_string())?;
        if String::from_utf8_lossy(&said.stdout).contains(package) {
            return Ok(path);
        }
        other = format!("{} is not that of {package}", path.display());
    }
    Err(other)
}

fn processors(tell: impl Fn(Fact) -> Result<(), Failed>) -> Result<(), Failed> {
    // The least that a run asks for by itself. It is gone again when `quotas` is.
    let tried = Quotas::by_groups().and_then(|quotas| {
        quotas.set("doctor", 0.04, 1)?;
        Ok(quotas)
    });
    tell(match tried {
        Ok(quotas) => Fact::yes(of::QUOTA, quotas.kind().word()),
        Err(error) => Fact::no(of::QUOTA, error),
    })
}

/// Programs of this name that can be run, also where root's are, in the order in which they are looked for.
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
    fn a_link_that_is_too_fast_is_none_and_a_late_one_is_told() {
        let ms = Duration::from_millis;
        assert!(!trip_told(of::TRIP, ms(10), ms(1)).ok);
        assert!(trip_told(of::TRIP, ms(10), ms(11)).ok);
        assert_eq!(
            trip_told(of::TRIP, ms(10), ms(30)).said,
            "10 ms asked, 30 ms measured: this machine is busy"
        );
    }

    #[test]
    fn what_the_script_says_is_read() {
        let told = "netem no: Specified qdisc kind is unknown. \ntbf yes\nnew yes\nhtb\n";
        let found: Vec<Fact> = told.lines().filter_map(ability).collect();
        let netem = Fact::no("netem", "Specified qdisc kind is unknown");
        assert_eq!(found, [netem, Fact::yes("tbf", "this kernel has it")]);
        // Each is one that the script tries.
        for (kind, _) in KINDS {
            assert!(SCRIPT.contains(&format!("\ntry {kind} ")), "{kind}");
        }
    }

    /// No right is needed: this is never skipped.
    #[test]
    fn shaped_sockets_take_the_time_that_is_asked() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("t.links");
        let topology = topology(&format!("{TWO_SOCKETS}{TWO}")).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let took = runtime.block_on(shaped_trip(&topology, &file)).unwrap();
        assert!(took >= 2 * ASKED, "{took:?}");
        assert!(!file.exists());
    }

    #[test]
    fn networks_that_are_tried_are_right() {
        assert_eq!(topology(TWO).unwrap().sites.len(), 2);
        let kernel = topology(TWO_KERNEL).unwrap();
        let line = "link a b 5000 0 0.000001 10000000 1000000 0\n";
        assert!(kernel.table().contains(line), "{}", kernel.table());
        assert!(kernel.table().contains("uplink a 10000000 1000000\n"));
    }

    #[test]
    fn facts_before_a_bad_end_are_read() {
        let fact = trip_told(of::TRIP, 2 * ASKED, 2 * ASKED);
        let line = serde_json::to_string(&fact).unwrap();
        assert_eq!(told(&format!("{line}\n{line}\n{{\"name\":")), [fact.clone(), fact]);
        assert_eq!(told(""), []);
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
