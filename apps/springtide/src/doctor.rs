//! `wan doctor`: what this machine can do for emulated networks, if not why, and what to do about it.
//!
//! Whatever changes a process or leaves something in it is tried by children, which are this program again: their spaces, devices and
//! groups end with them. Must not know how links are described, nor who will use what is found.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::parent_id;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};
use std::{env, fs, io};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use springtide_runtime::config::{Sources, TopologyConfig, load};
use springtide_runtime::id::{Incarnation, NodeId, Peer};
use springtide_runtime::net::tls::{Ca, EPHEMERAL_VALIDITY};
use springtide_runtime::net::{Class, Inbox, Net, NetConfig};
use springtide_runtime::topology::Topology;
use springtide_runtime::wire;
use springtide_wan::fabric::{Fabric, Port, Routing};
use springtide_wan::kernel::{Kernel, SCRIPT};
use springtide_wan::place;
use springtide_wan::quota::{Kind, Quotas, processor_groups};
use springtide_wan::router::{PortOf, Router};
use springtide_wan::shaped::Shaped;
use springtide_wan::sys::{self, Space};
use springtide_wan::table::Table;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::exit::Failed;
use crate::report::SCHEMA;
use crate::run::print;

/// Tells a child what it is to try. Not a word of the command line, for nobody is to type it.
const PART: &str = "SPRINGTIDE_WAN_DOCTOR";
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
const ASKED: Duration = Duration::from_millis(5);
/// A cluster each, so that the line between them is met.
const TWO: &str = "name = \"doctor\"\n[wide]\nrtt = \"10ms\"\n\
    [[cluster]]\nname = \"a\"\nnodes = 1\n[[cluster]]\nname = \"b\"\nnodes = 1\n";
/// The same on loopback, for shaped sockets.
const TWO_SOCKETS: &str = "net = \"127.77.0.0/16\"\n";
/// One that needs all that the kernel back end can be asked for. A loss so small that it harms no datagram here must be provided for
/// like any other.
const TWO_KERNEL: &str = "name = \"doctor\"\n[wide]\nrtt = \"10ms\"\nloss = 0.000001\nbandwidth = \"10MB/s\"\n\
    [[cluster]]\nname = \"a\"\nnodes = 1\nuplink = \"10MB/s\"\n[[cluster]]\nname = \"b\"\nnodes = 1\n";
const IPROUTE2: &str = "iproute2";
/// What it runs, and the package of each.
const TOOLS: [(&str, &str); 4] =
    [("ip", IPROUTE2), ("tc", IPROUTE2), ("nsenter", "util-linux"), ("unshare", "util-linux")];
/// What `kernel.sh can` tells of, and the kernel's module for each.
const KINDS: [(&str, &str); 6] = [
    ("netem", "sch_netem"),
    ("tbf", "sch_tbf"),
    ("htb", "sch_htb"),
    ("u32", "cls_u32"),
    ("veth", "veth"),
    ("nft", "nft_numgen"),
];
/// Programs of others that are of use, their packages, and what for.
const HELPERS: [(&str, &str, &str); 3] = [
    ("ping", "iputils-ping", "to look at round trips with `wan exec`"),
    ("iperf3", "iperf3", "to look at rates with `wan exec`"),
    ("qemu-system-x86_64", "qemu-system-x86", "for `netem-scripts/vm.sh`, a kernel with netem"),
];

/// Names of facts, as they are in JSON.
mod of {
    pub const SOCKETS: &str = "shaped_sockets";
    pub const SPACES: &str = "namespaces";
    pub const TUN: &str = "tun";
    pub const FIRST: &str = "router_first";
    pub const TRIP: &str = "round_trip";
    pub const KERNEL: &str = "kernel_network";
    pub const QUOTA: &str = "quota";
}

/// What came of one try.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Fact {
    name: String,
    ok: bool,
    /// What was found, or what was said against it.
    said: String,
    /// The number of Linux's error.
    code: Option<i32>,
    /// What was measured.
    numbers: BTreeMap<String, f64>,
}

impl Fact {
    fn yes(name: &str, said: impl ToString) -> Self {
        Self { name: name.into(), ok: true, said: said.to_string(), ..Self::default() }
    }

    fn no(name: &str, said: impl ToString) -> Self {
        Self { name: name.into(), said: said.to_string(), ..Self::default() }
    }

    fn error(name: &str, error: &io::Error) -> Self {
        Self { code: error.raw_os_error(), ..Self::no(name, error) }
    }
}

/// What advice depends on.
#[derive(Clone, Debug, Default, PartialEq)]
struct Machine {
    root: bool,
    /// By name, as `sysctl` tells them.
    settings: BTreeMap<&'static str, String>,
    /// The control group with this process's share of real time, if there are such, and that share.
    real_time: Option<(PathBuf, String)>,
}

/// Settings that keep users from having spaces, with the value that does, and the one that does not.
const AGAINST_USERS: [(&str, &str, &str); 3] = [
    ("kernel.unprivileged_userns_clone", "0", "1"),
    ("user.max_user_namespaces", "0", "10000"),
    ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
];

impl Machine {
    fn look() -> Self {
        let read = |path: &Path| fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
        let settings = AGAINST_USERS.iter().filter_map(|(name, ..)| {
            let path = Path::new("/proc/sys").join(name.replace('.', "/"));
            Some((*name, read(&path)?))
        });
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let groups = processor_groups(&text("/proc/self/mounts"), &text("/proc/self/cgroup"));
        let share = |group: &PathBuf| read(&group.join("cpu.rt_runtime_us"));
        Self {
            root: sys::ids().0 == 0,
            settings: settings.collect(),
            real_time: groups.into_iter().find_map(|group| Some((group.clone(), share(&group)?))),
        }
    }
}

/// Tries what there is, and tells it.
///
/// # Errors
/// Nothing works.
pub fn doctor(json: bool) -> Result<(), Failed> {
    if let Ok(part) = env::var(PART) {
        return part_of(&part);
    }
    let (mut facts, mut reasons) = (Vec::new(), BTreeMap::new());
    for part in ["sockets", "router", "kernel", "processors"] {
        let (found, reason) = ask(part);
        facts.extend(found);
        reasons.insert(part, reason);
    }
    // A child that was killed leaves its files.
    if let Ok(home) = place::home() {
        let name = own_name(std::process::id());
        for file in [place::table(&home, &name), place::state(&home, &name)] {
            let _ = fs::remove_file(file);
        }
    }
    facts.extend(HELPERS.iter().map(|(name, ..)| match places(name).first() {
        Some(path) => Fact::yes(name, path.display()),
        None => Fact::no(name, ""),
    }));
    let found = Found::of(&facts, &reasons, &Machine::look());
    print(&if json { format!("{}\n", found.object()) } else { found.table() })?;
    match (found.network, found.kernel) {
        (None, None) => {
            Err(Failed::failure("no network can be emulated here: see what is said above"))
        }
        _ => Ok(()),
    }
}

/// What a doctor's networks are called, by the number of its process.
fn own_name(pid: u32) -> String {
    format!("doctor-{pid}")
}

fn topology(text: &str) -> Result<Topology, Failed> {
    Ok(Topology::of(&load::<TopologyConfig>(&Sources::of_text("doctor", text))?.value))
}

// --- children --------------------------------------------------------------------------------------------------------

/// What a child found, and if it came to a bad end, which.
fn ask(part: &str) -> (Vec<Fact>, Option<String>) {
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
fn part_of(part: &str) -> Result<(), Failed> {
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

fn trip_told(name: &str, asked: Duration, took: Duration) -> Fact {
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
fn network_told(notes: &[String], took: Duration) -> Fact {
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
fn places(name: &str) -> Vec<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    let all = env::split_paths(&path).chain(usual).map(|folder| folder.join(name));
    let can_run = |path: &PathBuf| {
        fs::metadata(path)
            .is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    all.filter(can_run).collect()
}

// --- what it means ---------------------------------------------------------------------------------------------------

/// What a network would be made by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Network {
    /// For programs of any kind.
    Router,
    /// For this program's own traffic alone.
    Sockets,
}

impl Network {
    /// The best of those that work.
    fn choose(router: bool, sockets: bool) -> Option<Self> {
        match (router, sockets) {
            (true, _) => Some(Self::Router),
            (false, true) => Some(Self::Sockets),
            (false, false) => None,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Router => "router",
            Self::Sockets => "shaped_sockets",
        }
    }
}

/// What a network by the kernel would have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ByKernel {
    /// All that a topology says.
    Whole,
    /// Rates, and loss where `nft` gives it.
    Rates,
}

impl ByKernel {
    fn word(self) -> &'static str {
        match self {
            Self::Whole => "whole",
            Self::Rates => "rates",
        }
    }
}

/// One line of what is told.
#[derive(Clone, Debug, PartialEq)]
struct Item {
    name: &'static str,
    what: String,
    ok: bool,
    why: String,
    numbers: BTreeMap<String, f64>,
    /// Nothing that networks need.
    optional: bool,
}

/// All that is told.
struct Found {
    items: Vec<Item>,
    network: Option<Network>,
    kernel: Option<ByKernel>,
    summary: String,
}

impl Found {
    /// `reasons`: by part, why its child came to a bad end, if it did.
    fn of(facts: &[Fact], reasons: &BTreeMap<&str, Option<String>>, machine: &Machine) -> Self {
        let fact = |name: &str| facts.iter().find(|fact| fact.name == name);
        let is = |name: &str| fact(name).is_some_and(|fact| fact.ok);
        let item = |name: &'static str, what: &str, part: &str, optional: bool| {
            let reason = reasons.get(part).cloned().flatten();
            let missing =
                reason.unwrap_or_else(|| match (part, TOOLS.iter().find(|tool| !is(tool.0))) {
                    ("kernel", Some((tool, _))) => format!("not tried without `{tool}`"),
                    ("kernel", None) if !is(of::SPACES) => {
                        "not tried without a namespace".to_owned()
                    }
                    _ => "not tried, for something before it failed".to_owned(),
                });
            let (what, missing) = (what.to_owned(), Fact::no(name, missing));
            let tried = fact(name);
            let Fact { ok, said, numbers, .. } = tried.unwrap_or(&missing).clone();
            let advice = tried.filter(|tried| !tried.ok).map(|tried| advice(tried, machine));
            let parts = [said, advice.unwrap_or_default()];
            let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
            Item { name, what, ok, why: parts.join("; "), numbers, optional }
        };
        let mut items = vec![
            item(of::SOCKETS, "shaped sockets: a round trip", "sockets", false),
            item(of::SPACES, "router: network namespaces", "router", false),
            item(of::TUN, "router: TUN devices", "router", false),
            item(of::FIRST, "router: runs before others", "router", false),
            item(of::TRIP, "router: a round trip", "router", false),
        ];
        // Where there is netem nothing else is needed for loss.
        let of_kernel = |name: &'static str| {
            item(name, &format!("kernel: {name}"), "kernel", name == "nft" && is("netem"))
        };
        items.extend(TOOLS.iter().chain(&KINDS).map(|&(name, _)| of_kernel(name)));
        items.push(item(of::KERNEL, "kernel: a network, and a round trip", "kernel", false));
        items.push(item(of::QUOTA, "processors: quotas", "processors", false));
        items.extend(HELPERS.iter().map(|(name, ..)| item(name, name, "", true)));
        let network = Network::choose(is(of::TRIP), is(of::SOCKETS));
        let whole = if is("netem") { ByKernel::Whole } else { ByKernel::Rates };
        let kernel = is(of::KERNEL).then_some(whole);
        let quota = fact(of::QUOTA).filter(|fact| fact.ok);
        let summary = summary(network, kernel, fact(of::SPACES), quota);
        Self { items, network, kernel, summary }
    }

    fn table(&self) -> String {
        let width = self.items.iter().map(|item| item.what.len()).max().unwrap_or(0);
        let mut text = String::new();
        for Item { what, ok, why, .. } in &self.items {
            let word = if *ok { "yes" } else { "no" };
            let _ = writeln!(text, "{word:3}  {what:width$}  {why}");
        }
        let _ = writeln!(text, "\n{}", self.summary);
        text
    }

    fn object(&self) -> Value {
        let mut checks = serde_json::Map::new();
        for Item { name, what, ok, why, numbers, optional } in &self.items {
            let mut check = json!({ "ok": ok, "what": what, "why": why, "optional": optional });
            for (name, number) in numbers {
                check[name] = json!(number);
            }
            checks.insert((*name).to_owned(), check);
        }
        let is = |name: &str| self.items.iter().any(|item| item.name == name && item.ok);
        json!({
            "schema": SCHEMA,
            "checks": checks,
            "network": self.network.map(Network::word),
            "kernel": self.kernel.map(ByKernel::word),
            "quota": if is(of::QUOTA) { "groups" } else { "duty" },
            "summary": self.summary,
        })
    }
}

/// What to do about something that is not to be had.
fn advice(fact: &Fact, machine: &Machine) -> String {
    let Machine { root, settings, real_time } = machine;
    let is = |codes: &[i32]| fact.code.is_some_and(|code| codes.contains(&code));
    match &fact.name[..] {
        of::SOCKETS if fact.numbers.is_empty() => {
            "is the loopback interface up? `ip link set lo up`".to_owned()
        }
        of::SPACES if is(&[libc::ENOSPC]) => {
            "there are too many: see `sysctl user.max_net_namespaces user.max_user_namespaces`".to_owned()
        }
        of::SPACES if *root => {
            "a container must be given them: `docker run --cap-add SYS_ADMIN --cap-add NET_ADMIN --device /dev/net/tun \
             --security-opt seccomp=unconfined`, or --privileged"
                .to_owned()
        }
        of::SPACES => {
            let against = AGAINST_USERS.iter().find_map(|(name, bad, good)| {
                let is = settings.get(name).is_some_and(|value| value == bad);
                is.then(|| format!("as root, `sysctl {name}={good}` gives users namespaces; or "))
            });
            format!("{}run it as root", against.unwrap_or_default())
        }
        of::TUN if is(&[libc::ENOENT, libc::ENODEV, libc::ENXIO]) => {
            "as root, `modprobe tun`; a container is given it with `--device /dev/net/tun`".to_owned()
        }
        of::TUN if is(&[libc::EACCES]) && !root => {
            "as root, `chmod 666 /dev/net/tun` opens it to all users, which is how most systems have it; or run it as root"
                .to_owned()
        }
        of::TUN => {
            "a container must be given it: `--device /dev/net/tun --cap-add NET_ADMIN`".to_owned()
        }
        of::FIRST => {
            let none = real_time.as_ref().filter(|(_, share)| share == "0");
            let do_this = match none {
                Some((group, _)) => format!(
                    "this process's control group has no share of real time: as root, `echo 400000 > {}`, after the same in those \
                     above it",
                    group.join("cpu.rt_runtime_us").display()
                ),
                None if *root => "a container must be given it: `--cap-add SYS_NICE`".to_owned(),
                None => "run it as root, or let this user have it: `rtprio 50` in /etc/security/limits.conf".to_owned(),
            };
            format!("on a busy machine packets are late without it; {do_this}")
        }
        // It says itself what else there is.
        of::KERNEL if fact.numbers.is_empty() => String::new(),
        of::TRIP => "what is above works, so this is a defect: please report it".to_owned(),
        of::SOCKETS | of::KERNEL => {
            "a link that takes less time than was asked for is a defect: please report it".to_owned()
        }
        "netem" => {
            "so the kernel gives no delay or jitter, and loss by nft alone; what is left are rates. Try `modprobe sch_netem` as root \
             (Ubuntu has it in linux-modules-extra); `netem-scripts/vm.sh` runs netem proper in a virtual machine, without root"
                .to_owned()
        }
        "nft" => {
            "it gives loss where there is no netem: `apt-get install nftables`, or `modprobe nft_numgen` as root".to_owned()
        }
        of::QUOTA => {
            let who = if *root { "" } else { "; root gets quotas" };
            let rest = Kind::Duty.word();
            format!("instead: {rest} by themselves, which holds while processors are free{who}")
        }
        name => {
            let tool = TOOLS.iter().find(|tool| tool.0 == name);
            let tool = tool.map(|(_, package)| format!("`apt-get install {package}`"));
            let kind = KINDS.iter().find(|kind| kind.0 == name).map(|(_, module)| {
                format!("`netem-scripts/kernel.sh` cannot do without; try `modprobe {module}` as root")
            });
            let helper = HELPERS.iter().find(|(other, ..)| *other == name);
            let helper = helper.map(|(_, package, why)| format!("optional, {why}: `apt-get install {package}`"));
            tool.or(kind).or(helper).unwrap_or_default()
        }
    }
}

/// What commands would do here.
fn summary(
    network: Option<Network>,
    kernel: Option<ByKernel>,
    spaces: Option<&Fact>,
    quota: Option<&Fact>,
) -> String {
    let duty = Kind::Duty.word();
    let shares = format!("processors are shared out by {}", quota.map_or(duty, |fact| &fact.said));
    let usual = match network {
        Some(Network::Router) => {
            let how = spaces.map_or("", |fact| &fact.said);
            format!("`wan up` and `wan run` would use the router in user space, {how}; {shares}.")
        }
        Some(Network::Sockets) => format!(
            "`wan run` would use its nodes' own sockets, and `wan up --network sockets` gives those alone, which carry no other program; {shares}."
        ),
        None => "Neither a router nor the nodes' own sockets work here.".to_owned(),
    };
    let kernel = match kernel {
        Some(ByKernel::Whole) => "would come up, with delay, jitter and loss by netem",
        Some(ByKernel::Rates) => {
            "would come up for rates alone: a topology with delay needs netem, or --partial"
        }
        None => "would not come up",
    };
    format!("{usual}\n`wan up --network kernel` {kernel}.")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user() -> Machine {
        Machine::default()
    }

    fn root() -> Machine {
        Machine { root: true, ..user() }
    }

    fn refused(name: &str, code: i32) -> Fact {
        Fact::error(name, &io::Error::from_raw_os_error(code))
    }

    /// Of a machine that has everything.
    fn all() -> Vec<Fact> {
        let mut facts = vec![
            trip_told(of::SOCKETS, Duration::from_millis(10), Duration::from_micros(10_311)),
            Fact::yes(of::SPACES, "as root"),
            Fact::yes(of::TUN, "/dev/net/tun gives one"),
            Fact::yes(of::FIRST, "SCHED_FIFO is granted"),
            trip_told(of::TRIP, Duration::from_millis(10), Duration::from_micros(10_214)),
            network_told(&[], Duration::from_micros(10_402)),
            Fact::yes(of::QUOTA, Kind::V1.word()),
        ];
        facts.extend(TOOLS.iter().map(|(name, _)| Fact::yes(name, "/sbin")));
        facts.extend(KINDS.iter().map(|(name, _)| Fact::yes(name, "this kernel has it")));
        facts.extend(HELPERS.iter().map(|(name, ..)| Fact::yes(name, "/usr/bin")));
        facts
    }

    fn found(facts: &[Fact], machine: &Machine) -> Found {
        Found::of(facts, &BTreeMap::new(), machine)
    }

    #[test]
    fn the_best_network_that_works_is_chosen() {
        assert_eq!(Network::choose(true, true), Some(Network::Router));
        assert_eq!(Network::choose(true, false), Some(Network::Router));
        assert_eq!(Network::choose(false, true), Some(Network::Sockets));
        assert_eq!(Network::choose(false, false), None);
    }

    #[test]
    fn a_machine_with_everything_is_told_in_a_line_each() {
        let found = found(&all(), &root());
        let table = found.table();
        assert_eq!(
            table.lines().filter(|line| line.starts_with("yes  ")).count(),
            found.items.len()
        );
        assert!(table.contains("10 ms asked, 10.21 ms measured\n"), "{table}");
        assert!(table.contains("10 ms asked, 10.4 ms measured\n"), "{table}");
        assert!(table.contains("version 1.\n") && table.contains("as root; "), "{table}");
        assert!(table.ends_with("loss by netem.\n"), "{table}");
        let object = found.object();
        assert_eq!((&object["schema"], &object["network"]), (&1.into(), &"router".into()));
        assert_eq!((&object["quota"], &object["kernel"]), (&"groups".into(), &"whole".into()));
        assert_eq!(object["checks"]["round_trip"]["measured_ms"], 10.21);
        assert_eq!(
            object["checks"].as_object().map(|checks| checks.len()),
            Some(found.items.len())
        );
    }

    #[test]
    fn what_was_not_tried_says_why_and_the_rest_counts() {
        let mut facts = vec![all().remove(0), refused(of::SPACES, libc::EPERM)];
        let told = found(&facts, &user());
        assert_eq!(told.network, Some(Network::Sockets));
        let why = |told: &Found, name: &str| -> String {
            told.items.iter().find(|item| item.name == name).map(|item| item.why.clone()).unwrap()
        };
        assert!(why(&told, of::SPACES).ends_with("; run it as root"), "{}", why(&told, of::SPACES));
        assert_eq!(why(&told, of::TRIP), "not tried, for something before it failed");
        assert_eq!(why(&told, "netem"), "not tried without `ip`");
        assert!(told.summary.contains("own sockets"), "{}", told.summary);
        facts.push(Fact::yes("ip", "/sbin/ip"));
        assert_eq!(why(&found(&facts, &user()), "veth"), "not tried without `tc`");
        facts.extend(TOOLS.iter().skip(1).map(|(name, _)| Fact::yes(name, "/sbin")));
        let told = found(&facts, &user());
        for name in ["netem", "nft", of::KERNEL] {
            assert_eq!(why(&told, name), "not tried without a namespace");
        }
        assert!(told.summary.ends_with("`wan up --network kernel` would not come up."));
        let reasons = [("router", Some("it took longer than 20 s".to_owned()))].into();
        let told = Found::of(&facts, &reasons, &user());
        assert_eq!(why(&told, of::TUN), "it took longer than 20 s");
        // Whatever it came to: its own facts count.
        assert!(why(&told, of::SPACES).starts_with("Operation not permitted"));
        assert_eq!(Found::of(&[], &reasons, &user()).network, None);
    }

    #[test]
    fn advice_says_what_to_do_here() {
        let set =
            |name, value: &str| Machine { settings: [(name, value.to_owned())].into(), ..user() };
        let group = |share: &str| Machine {
            real_time: Some(("/cg/cpu/x".into(), share.to_owned())),
            ..root()
        };
        let fifo = Fact::no(of::FIRST, "Operation not permitted (os error 1)");
        let netem = Fact::no("netem", "Specified qdisc kind is unknown");
        let cases = [
            (refused(of::SPACES, libc::EPERM), root(), "--cap-add SYS_ADMIN"),
            (refused(of::SPACES, libc::ENOSPC), user(), "user.max_net_namespaces"),
            (
                refused(of::SPACES, libc::EPERM),
                set("kernel.apparmor_restrict_unprivileged_userns", "1"),
                "apparmor_restrict_unprivileged_userns=0` gives",
            ),
            (
                refused(of::SPACES, libc::EPERM),
                set("user.max_user_namespaces", "9"),
                "run it as root",
            ),
            (refused(of::TUN, libc::ENOENT), root(), "`modprobe tun`"),
            (refused(of::TUN, libc::EACCES), user(), "`chmod 666 /dev/net/tun`"),
            (refused(of::TUN, libc::EPERM), root(), "--device /dev/net/tun"),
            (fifo.clone(), group("0"), "echo 400000 > /cg/cpu/x/cpu.rt_runtime_us`"),
            (fifo.clone(), group("950000"), "--cap-add SYS_NICE"),
            (fifo, user(), "limits.conf"),
            (netem, root(), "netem-scripts/vm.sh"),
            (Fact::no("tc", ""), root(), "apt-get install iproute2"),
            (Fact::no("nsenter", ""), root(), "apt-get install util-linux"),
            (Fact::no("u32", "Unknown filter"), root(), "`modprobe cls_u32`"),
            (Fact::no("nft", "nft is not here"), root(), "apt-get install nftables"),
            (Fact::no(of::SOCKETS, "no address"), user(), "ip link set lo up"),
            (trip_told(of::KERNEL, 2 * ASKED, ASKED), root(), "is a defect"),
            (
                Fact::no(of::QUOTA, "no control groups are mounted"),
                user(),
                "threads that rest by themselves",
            ),
            (
                Fact::no("ping", ""),
                root(),
                "optional, to look at round trips with `wan exec`: `apt-get install iputils-ping`",
            ),
        ];
        for (fact, machine, part) in cases {
            let told = advice(&fact, &machine);
            assert!(told.contains(part), "{fact:?}: {told}");
        }
    }

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
    fn a_kernel_without_netem_is_told_with_what_it_has() {
        let took = Duration::from_micros(120);
        let note = |lacks: &str| vec![format!("link a b: not modelled, for this kernel: {lacks}")];
        let told = network_told(&note("delay 5000 us, loss 1e-06"), took);
        assert!(told.ok && told.said.starts_with("rates only, no netem: "), "{}", told.said);
        assert_eq!(told.numbers["measured_ms"], 0.12);
        let told = network_told(&note("delay 5000 us"), took);
        assert!(told.said.starts_with("rates and loss only, no netem: "), "{}", told.said);
        let mut facts = all();
        facts.retain(|fact| !["netem", "nft", of::KERNEL].contains(&&*fact.name));
        facts.extend([Fact::no("netem", "unknown"), Fact::no("nft", "not here"), told]);
        let found = found(&facts, &root());
        assert_eq!(found.object()["kernel"], "rates");
        assert!(found.summary.contains("kernel` would come up for rates alone"));
        // It is needed here.
        assert!(found.items.iter().any(|item| item.name == "nft" && !item.ok && !item.optional));
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
    fn the_group_with_the_share_of_real_time_is_found() {
        let mounts = "proc /proc proc rw 0 0\ncgroup /cg/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n";
        let found = processor_groups(mounts, "4:cpu,cpuacct:/a/b\n0::/c\n");
        assert_eq!(found, [PathBuf::from("/cg/cpu,cpuacct/a/b"), "/cg/cpu,cpuacct".into()]);
        assert!(processor_groups("cgroup2 /cg cgroup2 rw 0 0\n", "0::/\n").is_empty());
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
