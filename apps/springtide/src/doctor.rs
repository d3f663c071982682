//! `wan doctor`: what this machine can do for emulated networks, if not why, and what to do about it.
//!
//! Whatever changes a process or leaves something in it is tried by children, which are this program again: their spaces, devices and
//! groups end with them. Must not know how links are described, nor who will use what is found.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};
use std::{env, fs, io};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use springtide_runtime::config::{Sources, TopologyConfig, load};
use springtide_runtime::topology::Topology;
use springtide_wan::fabric::{Fabric, Port, Routing};
use springtide_wan::quota::{Kind, Quotas, processor_groups};
use springtide_wan::router::{PortOf, Router};
use springtide_wan::sys::{self, Space};

use crate::exit::Failed;
use crate::report::SCHEMA;
use crate::run::print;

/// Tells a child what it is to try. Not a word of the command line, for nobody is to type it.
const PART: &str = "SPRINGTIDE_WAN_DOCTOR";
/// A child takes well below a second; one that takes so long is stuck, and killed.
const PART_WITHIN: Duration = Duration::from_secs(20);
/// `tc` takes milliseconds, but where it loads a module.
const TOOL_WITHIN: Duration = Duration::from_secs(4);
/// A datagram that is not there after so long does not come.
const PACKET_WITHIN: Duration = Duration::from_secs(2);
/// Of so many round trips the middle one is told: one alone tells of the machine's mood.
const ROUND_TRIPS: usize = 9;
/// Each way.
const ASKED: Duration = Duration::from_millis(5);
/// A cluster each, so that the line between them is met.
const TWO: &str = "name = \"doctor\"\n[wide]\nrtt = \"10ms\"\n\
    [[cluster]]\nname = \"a\"\nnodes = 1\n[[cluster]]\nname = \"b\"\nnodes = 1\n";
/// Two nodes of shaped sockets.
const NODES: [Ipv4Addr; 2] = [Ipv4Addr::new(127, 77, 1, 1), Ipv4Addr::new(127, 77, 2, 1)];
/// What the kernel back end shapes with, and an example of each.
const KINDS: [(&str, &[&str]); 4] = [
    ("netem", &["netem", "delay", "1ms"]),
    ("tbf", &["tbf", "rate", "1mbit", "burst", "3200", "limit", "10000"]),
    ("htb", &["htb", "default", "1"]),
    ("fq_codel", &["fq_codel"]),
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
    pub const IP: &str = "ip";
    pub const TC: &str = "tc";
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
    let mut facts = vec![sockets()];
    let mut reasons = BTreeMap::new();
    for part in ["router", "kernel", "processors"] {
        let (found, reason) = ask(part);
        facts.extend(found);
        reasons.insert(part, reason);
    }
    facts.extend(HELPERS.iter().map(|(name, ..)| match find(name) {
        Some(path) => Fact::yes(name, path.display()),
        None => Fact::no(name, ""),
    }));
    let found = Found::of(&facts, &reasons, &Machine::look());
    print(&if json { format!("{}\n", found.object()) } else { found.table() })?;
    match found.network {
        Some(_) => Ok(()),
        None => Err(Failed::failure("no network can be emulated here: see what is said above")),
    }
}

/// Shaped sockets need no more than addresses of this machine.
fn sockets() -> Fact {
    let tried = || -> io::Result<()> {
        let near = UdpSocket::bind((NODES[0], 0))?;
        let far = UdpSocket::bind((NODES[1], 0))?;
        far.set_read_timeout(Some(PACKET_WITHIN))?;
        near.send_to(b"?", far.local_addr()?)?;
        far.recv_from(&mut [0; 8]).map(drop)
    };
    match tried() {
        Ok(()) => Fact::yes(of::SOCKETS, format!("nodes can be at {}", NODES[0])),
        Err(error) => Fact::error(of::SOCKETS, &error),
    }
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
    let topology = Topology::of(&load::<TopologyConfig>(&Sources::of_text("doctor", TWO))?.value);
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
        Ok(took) => trip_told(2 * ASKED, took),
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
    took.sort();
    Ok(took[took.len() / 2])
}

fn trip_told(asked: Duration, took: Duration) -> Fact {
    let [asked, took] = [asked, took].map(|time| (time.as_secs_f64() * 1e5).round() / 100.0);
    // A link that is too fast is none.
    let (ok, late) = (took >= asked, took > 1.2 * asked);
    let late = if late { ": this machine is busy" } else { "" };
    Fact {
        ok,
        said: format!("{asked} ms asked, {took} ms measured{late}"),
        numbers: [("asked_ms".into(), asked), ("measured_ms".into(), took)].into(),
        ..Fact::no(of::TRIP, "")
    }
}

fn kernel(tell: impl Fn(Fact) -> Result<(), Failed>) -> Result<(), Failed> {
    // Before there is any thread.
    let root = be_root();
    let version = |name: &str| -> Result<PathBuf, String> {
        let path = find(name).ok_or("")?;
        let mut asked = Command::new(&path);
        asked.arg("-V");
        let said = output_of(asked, TOOL_WITHIN).map_err(|error| error.to_string())?;
        // That of busybox knows neither namespaces nor these kinds.
        let is = String::from_utf8_lossy(&said.stdout).contains("iproute2");
        if is { Ok(path) } else { Err(format!("{} is not iproute2's", path.display())) }
    };
    let [ip, tc] = [of::IP, of::TC].map(|name| (name, version(name)));
    for (name, found) in [&ip, &tc] {
        tell(match found {
            Ok(path) => Fact::yes(name, path.display()),
            Err(said) => Fact::no(name, said),
        })?;
    }
    let Ok(tc) = tc.1 else { return Ok(()) };
    let tried = root.and_then(|_| {
        apart(|| {
            // Each under a handle of its own: Linux does not put another kind under a handle that is taken.
            let numbered = KINDS.iter().zip(1..);
            numbered
                .map(|((name, words), number)| (*name, add(&tc, number, words)))
                .collect::<Vec<_>>()
        })
    });
    match tried {
        Ok(tried) => tried.into_iter().try_for_each(|(name, tried)| {
            tell(match tried {
                Ok(()) => Fact::yes(name, "this kernel has it"),
                Err(said) => Fact::no(name, said),
            })
        }),
        // What the router's child says of it is enough.
        Err(_) => Ok(()),
    }
}

/// Whether `tc` takes this on the loopback interface of the calling thread's network space.
fn add(tc: &Path, number: u32, words: &[&str]) -> Result<(), String> {
    let mut command = Command::new(tc);
    let handle = format!("{number}:");
    command.args(["qdisc", "replace", "dev", "lo", "root", "handle", &handle]).args(words);
    let said = output_of(command, TOOL_WITHIN).map_err(|error| error.to_string())?;
    if said.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&said.stderr);
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let text = text.trim_start_matches("Error: ").trim_end_matches('.');
    Err(if text.is_empty() { "`tc` gave no reason".to_owned() } else { text.to_owned() })
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

/// A program that can be run, also where root's are.
fn find(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    env::split_paths(&path).chain(usual).map(|folder| folder.join(name)).find(|path| {
        fs::metadata(path)
            .is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    })
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
    summary: String,
}

impl Found {
    /// `reasons`: by part, why its child came to a bad end, if it did.
    fn of(facts: &[Fact], reasons: &BTreeMap<&str, Option<String>>, machine: &Machine) -> Self {
        let fact = |name: &str| facts.iter().find(|fact| fact.name == name);
        let is = |name: &str| fact(name).is_some_and(|fact| fact.ok);
        let item = |name: &'static str, what: &str, part: &str, optional: bool| {
            let reason = reasons.get(part).cloned().flatten();
            let missing = reason.unwrap_or_else(|| match (part, is(of::TC)) {
                ("kernel", false) => "not tried without `tc`".to_owned(),
                ("kernel", true) => "not tried without a namespace".to_owned(),
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
            item(of::SOCKETS, "shaped sockets", "", false),
            item(of::SPACES, "router: network namespaces", "router", false),
            item(of::TUN, "router: TUN devices", "router", false),
            item(of::FIRST, "router: runs before others", "router", false),
            item(of::TRIP, "router: a round trip", "router", false),
            item(of::IP, "kernel: ip", "kernel", false),
            item(of::TC, "kernel: tc", "kernel", false),
        ];
        for (name, _) in KINDS {
            items.push(item(name, &format!("kernel: {name}"), "kernel", name == "fq_codel"));
        }
        items.push(item(of::QUOTA, "processors: quotas", "processors", false));
        items.extend(HELPERS.iter().map(|(name, ..)| item(name, name, "", true)));
        let network = Network::choose(is(of::TRIP), is(of::SOCKETS));
        let summary = summary(network, fact(of::SPACES), fact(of::QUOTA).filter(|fact| fact.ok));
        Self { items, network, summary }
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
        of::SOCKETS => "is the loopback interface up? `ip link set lo up`".to_owned(),
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
        of::TRIP => "what is above works, so this is a defect: please report it".to_owned(),
        of::IP | of::TC => "`apt-get install iproute2`".to_owned(),
        "netem" => {
            "so the kernel gives no delay, jitter or loss; what is left are rates by tbf. Try `modprobe sch_netem` as root (Ubuntu has it \
             in linux-modules-extra); `netem-scripts/vm.sh` runs netem proper in a virtual machine, without root"
                .to_owned()
        }
        kind @ ("tbf" | "htb") => {
            format!("`netem-scripts/kernel.sh` cannot do without; try `modprobe sch_{kind}` as root")
        }
        "fq_codel" => "optional: no script here uses it".to_owned(),
        of::QUOTA => {
            let who = if *root { "" } else { "; root gets quotas" };
            let rest = Kind::Duty.word();
            format!("instead: {rest} by themselves, which holds while processors are free{who}")
        }
        name => {
            let helper = HELPERS.iter().find(|(other, ..)| *other == name);
            let told = helper.map(|(_, package, why)| format!("optional, {why}: `apt-get install {package}`"));
            told.unwrap_or_default()
        }
    }
}

/// What commands would do here.
fn summary(network: Option<Network>, spaces: Option<&Fact>, quota: Option<&Fact>) -> String {
    let duty = Kind::Duty.word();
    let shares = format!("processors are shared out by {}", quota.map_or(duty, |fact| &fact.said));
    match network {
        Some(Network::Router) => {
            let how = spaces.map_or("", |fact| &fact.said);
            format!("`wan up` and `wan run` would use the router in user space, {how}; {shares}.")
        }
        Some(Network::Sockets) => format!(
            "`wan run` would use its nodes' own sockets, and `wan up --network sockets` gives those alone, which carry no other program; {shares}."
        ),
        None => "Neither `wan up` nor `wan run` can do anything here.".to_owned(),
    }
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
            Fact::yes(of::SOCKETS, "nodes can be at 127.77.1.1"),
            Fact::yes(of::SPACES, "as root"),
            Fact::yes(of::TUN, "/dev/net/tun gives one"),
            Fact::yes(of::FIRST, "SCHED_FIFO is granted"),
            trip_told(Duration::from_millis(10), Duration::from_micros(10_214)),
            Fact::yes(of::IP, "/sbin/ip"),
            Fact::yes(of::TC, "/sbin/tc"),
            Fact::yes(of::QUOTA, Kind::V1.word()),
        ];
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
        assert!(table.ends_with("version 1.\n") && table.contains("as root; "), "{table}");
        let object = found.object();
        assert_eq!((&object["schema"], &object["network"]), (&1.into(), &"router".into()));
        assert_eq!(object["quota"], "groups");
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
        assert_eq!(why(&told, "netem"), "not tried without `tc`");
        assert!(told.summary.contains("own sockets"), "{}", told.summary);
        facts.push(Fact::yes(of::TC, "/sbin/tc"));
        assert_eq!(why(&found(&facts, &user()), "netem"), "not tried without a namespace");
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
            (Fact::no(of::TC, ""), root(), "apt-get install iproute2"),
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
        assert!(!trip_told(ms(10), ms(1)).ok);
        assert!(trip_told(ms(10), ms(11)).ok);
        assert_eq!(
            trip_told(ms(10), ms(30)).said,
            "10 ms asked, 30 ms measured: this machine is busy"
        );
    }

    #[test]
    fn facts_before_a_bad_end_are_read() {
        let fact = trip_told(2 * ASKED, 2 * ASKED);
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
