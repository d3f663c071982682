//! `wan doctor`: tests which network emulations this host supports, with reasons and remedies for
//! failures.
//!
//! Tests that change a process or create objects run in children, which execute this program: their
//! namespaces, devices and groups end with them. This module knows neither the description of links
//! nor the use of the results.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use springtide_cli::exit::Failed;
use springtide_cli::format::SCHEMA;
use springtide_wan::place;
use springtide_wan::quota::{QuotaKind, processor_groups};
use springtide_wan::sys;

use self::tries::{PART, ask, own_name, part_of, places};

mod tries;

const IPROUTE2: &str = "iproute2";
/// The tools that the script runs, with their packages.
const TOOLS: [(&str, &str); 4] =
    [("ip", IPROUTE2), ("tc", IPROUTE2), ("nsenter", "util-linux"), ("unshare", "util-linux")];
/// The kinds that `kernel.sh can` reports, with their kernel modules.
const KINDS: [(&str, &str); 6] = [
    ("netem", "sch_netem"),
    ("tbf", "sch_tbf"),
    ("htb", "sch_htb"),
    ("u32", "cls_u32"),
    ("veth", "veth"),
    ("nft", "nft_numgen"),
];
/// Useful programs of other projects, with their packages and purposes.
const HELPERS: [(&str, &str, &str); 3] = [
    ("ping", "iputils-ping", "to look at round trips with `wan exec`"),
    ("iperf3", "iperf3", "to look at rates with `wan exec`"),
    ("qemu-system-x86_64", "qemu-system-x86", "for `netem-scripts/vm.sh`, a kernel with netem"),
];

/// Names of facts, as in JSON.
mod of {
    pub const SOCKETS: &str = "shaped_sockets";
    pub const SPACES: &str = "namespaces";
    pub const TUN: &str = "tun";
    pub const FIRST: &str = "router_first";
    pub const TRIP: &str = "round_trip";
    pub const KERNEL: &str = "kernel_network";
    pub const QUOTA: &str = "quota";
}

/// The result of one test.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Fact {
    name: String,
    ok: bool,
    /// The finding, or the reason of the failure.
    said: String,
    /// The error number of Linux.
    code: Option<i32>,
    /// Measured values by name.
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

/// The properties of the host that advice depends on.
#[derive(Clone, Debug, Default, PartialEq)]
struct Host {
    root: bool,
    /// Kernel settings by name, as `sysctl` prints them.
    settings: BTreeMap<&'static str, String>,
    /// The control group that limits this process's real-time share, if any, and that share.
    real_time: Option<(PathBuf, String)>,
}

/// Settings that forbid user namespaces: name, forbidding value, permitting value.
const USER_NAMESPACE_SETTINGS: [(&str, &str, &str); 3] = [
    ("kernel.unprivileged_userns_clone", "0", "1"),
    ("user.max_user_namespaces", "0", "10000"),
    ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
];

impl Host {
    fn inspect() -> Self {
        let read = |path: &Path| fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
        let settings = USER_NAMESPACE_SETTINGS.iter().filter_map(|(name, ..)| {
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

/// Runs all tests. None in a child that runs one part and has printed its facts.
///
/// # Errors
/// The part of a child does not exist, or its facts cannot be printed.
pub fn doctor() -> Result<Option<DoctorReport>, Failed> {
    if let Ok(part) = env::var(PART) {
        return part_of(&part).map(|()| None);
    }
    let (mut facts, mut reasons) = (Vec::new(), BTreeMap::new());
    for part in ["sockets", "router", "kernel", "processors"] {
        let (found, reason) = ask(part);
        facts.extend(found);
        reasons.insert(part, reason);
    }
    // A killed child leaves its files.
    if let Ok(home) = place::networks_dir() {
        let name = own_name(std::process::id());
        for file in [place::table(&home, &name), place::state(&home, &name)] {
            let _ = fs::remove_file(file);
        }
    }
    facts.extend(HELPERS.iter().map(|(name, ..)| match places(name).first() {
        Some(path) => Fact::yes(name, path.display()),
        None => Fact::no(name, ""),
    }));
    Ok(Some(DoctorReport::of(&facts, &reasons, &Host::inspect())))
}

/// The emulation that `wan up` would use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EmulationKind {
    /// For programs of any kind.
    Router,
    /// Only for this program's own traffic.
    Sockets,
}

impl EmulationKind {
    /// The best emulation that works.
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

/// The capabilities of a network by the kernel's queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KernelFeatures {
    /// All features of topologies.
    Whole,
    /// Only rates, and loss if `nft` supports it.
    Rates,
}

impl KernelFeatures {
    fn word(self) -> &'static str {
        match self {
            Self::Whole => "whole",
            Self::Rates => "rates",
        }
    }
}

/// One line of the results.
#[derive(Clone, Debug, PartialEq)]
struct CheckResult {
    name: &'static str,
    what: String,
    ok: bool,
    why: String,
    numbers: BTreeMap<String, f64>,
    /// Whether networks work without it.
    optional: bool,
}

/// All results of the tests.
pub struct DoctorReport {
    items: Vec<CheckResult>,
    network: Option<EmulationKind>,
    kernel: Option<KernelFeatures>,
    summary: String,
}

impl DoctorReport {
    /// Evaluates facts. `reasons` has by part the reason why its child failed, if it did.
    fn of(facts: &[Fact], reasons: &BTreeMap<&str, Option<String>>, machine: &Host) -> Self {
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
                    _ => "not tried, because an earlier test failed".to_owned(),
                });
            let (what, missing) = (what.to_owned(), Fact::no(name, missing));
            let tried = fact(name);
            let Fact { ok, said, numbers, .. } = tried.unwrap_or(&missing).clone();
            let advice = tried.filter(|tried| !tried.ok).map(|tried| advice(tried, machine));
            let parts = [said, advice.unwrap_or_default()];
            let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
            CheckResult { name, what, ok, why: parts.join("; "), numbers, optional }
        };
        let mut items = vec![
            item(of::SOCKETS, "shaped sockets: a round trip", "sockets", false),
            item(of::SPACES, "router: network namespaces", "router", false),
            item(of::TUN, "router: TUN devices", "router", false),
            item(of::FIRST, "router: runs before others", "router", false),
            item(of::TRIP, "router: a round trip", "router", false),
        ];
        // With netem, loss needs nothing else.
        let of_kernel = |name: &'static str| {
            item(name, &format!("kernel: {name}"), "kernel", name == "nft" && is("netem"))
        };
        items.extend(TOOLS.iter().chain(&KINDS).map(|&(name, _)| of_kernel(name)));
        items.push(item(of::KERNEL, "kernel: a network, and a round trip", "kernel", false));
        items.push(item(of::QUOTA, "processors: quotas", "processors", false));
        items.extend(HELPERS.iter().map(|(name, ..)| item(name, name, "", true)));
        let network = EmulationKind::choose(is(of::TRIP), is(of::SOCKETS));
        let whole = if is("netem") { KernelFeatures::Whole } else { KernelFeatures::Rates };
        let kernel = is(of::KERNEL).then_some(whole);
        let quota = fact(of::QUOTA).filter(|fact| fact.ok);
        let summary = summary(network, kernel, fact(of::SPACES), quota);
        Self { items, network, kernel, summary }
    }

    /// Fails if no emulation works.
    ///
    /// # Errors
    /// No network can be emulated on this host.
    pub fn check_any(&self) -> Result<(), Failed> {
        if self.network.is_some() || self.kernel.is_some() {
            return Ok(());
        }
        Err(Failed::failure("no network can be emulated on this host: see the reasons above"))
    }

    /// The results as lines.
    pub fn table(&self) -> String {
        let width = self.items.iter().map(|item| item.what.len()).max().unwrap_or(0);
        let mut text = String::new();
        for CheckResult { what, ok, why, .. } in &self.items {
            let word = if *ok { "yes" } else { "no" };
            let _ = writeln!(text, "{word:3}  {what:width$}  {why}");
        }
        let _ = writeln!(text, "\n{}", self.summary);
        text
    }

    /// The object of `--json`.
    pub fn object(&self) -> Value {
        let mut checks = serde_json::Map::new();
        for CheckResult { name, what, ok, why, numbers, optional } in &self.items {
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
            "network": self.network.map(EmulationKind::word),
            "kernel": self.kernel.map(KernelFeatures::word),
            "quota": if is(of::QUOTA) { "groups" } else { "duty" },
            "summary": self.summary,
        })
    }
}

/// The remedy for something that is not available.
fn advice(fact: &Fact, machine: &Host) -> String {
    let Host { root, settings, real_time } = machine;
    let is = |codes: &[i32]| fact.code.is_some_and(|code| codes.contains(&code));
    match &fact.name[..] {
        of::SOCKETS if fact.numbers.is_empty() => {
            "is the loopback interface up? `ip link set lo up`".to_owned()
        }
        of::SPACES if is(&[libc::ENOSPC]) => {
            "too many exist: `sysctl user.max_net_namespaces user.max_user_namespaces`".to_owned()
        }
        of::SPACES if *root => {
            "a container must be given them: `docker run --cap-add SYS_ADMIN --cap-add NET_ADMIN \
            --device /dev/net/tun \
            --security-opt seccomp=unconfined`, or --privileged"
                .to_owned()
        }
        of::SPACES => {
            let against = USER_NAMESPACE_SETTINGS.iter().find_map(|(name, bad, good)| {
                let is = settings.get(name).is_some_and(|value| value == bad);
                is.then(|| format!("as root, `sysctl {name}={good}` allows user namespaces; or "))
            });
            format!("{}run it as root", against.unwrap_or_default())
        }
        of::TUN if is(&[libc::ENOENT, libc::ENODEV, libc::ENXIO]) => {
            "as root, `modprobe tun`; in a container, `--device /dev/net/tun`".to_owned()
        }
        of::TUN if is(&[libc::EACCES]) && !root => {
            "as root, `chmod 666 /dev/net/tun` opens it to all users, as on most systems; or run \
            it as root"
                .to_owned()
        }
        of::TUN => "in a container: `--device /dev/net/tun --cap-add NET_ADMIN`".to_owned(),
        of::FIRST => {
            let none = real_time.as_ref().filter(|(_, share)| share == "0");
            let do_this = match none {
                Some((group, _)) => format!(
                    "this process's control group has no real-time share: as root, `echo 400000 > \
                    {}`, first in the groups above it",
                    group.join("cpu.rt_runtime_us").display()
                ),
                None if *root => "in a container: `--cap-add SYS_NICE`".to_owned(),
                None => "run it as root, or allow it to this user: `rtprio 50` in \
                /etc/security/limits.conf"
                    .to_owned(),
            };
            format!("on a busy machine packets are late without it; {do_this}")
        }
        // The fact contains the alternatives.
        of::KERNEL if fact.numbers.is_empty() => String::new(),
        of::TRIP => "the parts above work, so that this is a bug: please report it".to_owned(),
        of::SOCKETS | of::KERNEL => {
            "a link with less delay than requested is a bug: please report it".to_owned()
        }
        "netem" => {
            "so that the kernel emulates rates, and loss by nft, but no delay or jitter. Try \
            `modprobe sch_netem` as root (Ubuntu has it in linux-modules-extra); \
            `netem-scripts/vm.sh` runs netem in a virtual machine, without root"
                .to_owned()
        }
        "nft" => {
            "it emulates loss without netem: `apt-get install nftables`, or `modprobe nft_numgen` \
            as root"
                .to_owned()
        }
        of::QUOTA => {
            let who = if *root { "" } else { "; root gets quotas" };
            let rest = QuotaKind::Duty.word();
            format!("instead: {rest} by themselves, which is exact while processors are free{who}")
        }
        name => {
            let tool = TOOLS.iter().find(|tool| tool.0 == name);
            let tool = tool.map(|(_, package)| format!("`apt-get install {package}`"));
            let kind = KINDS.iter().find(|kind| kind.0 == name).map(|(_, module)| {
                format!("`netem-scripts/kernel.sh` needs it; try `modprobe {module}` as root")
            });
            let helper = HELPERS.iter().find(|(other, ..)| *other == name);
            let helper = helper.map(|(_, package, why)| {
                format!(
                    "optional, {why}: `apt-get install \
                    {package}`"
                )
            });
            tool.or(kind).or(helper).unwrap_or_default()
        }
    }
}

/// The emulations that commands would use here.
fn summary(
    network: Option<EmulationKind>,
    kernel: Option<KernelFeatures>,
    spaces: Option<&Fact>,
    quota: Option<&Fact>,
) -> String {
    let duty = QuotaKind::Duty.word();
    let shares = format!("processors are limited by {}", quota.map_or(duty, |fact| &fact.said));
    let usual = match network {
        Some(EmulationKind::Router) => {
            let how = spaces.map_or("", |fact| &fact.said);
            format!("`wan up` and `wan run` would use the router in user space, {how}; {shares}.")
        }
        Some(EmulationKind::Sockets) => format!(
            "`wan run` would use its nodes' own sockets, and so would `wan up --network sockets`, \
            but for no other programs; {shares}."
        ),
        None => "Neither a router nor the nodes' own sockets work here.".to_owned(),
    };
    let kernel = match kernel {
        Some(KernelFeatures::Whole) => "would come up, with delay, jitter and loss by netem",
        Some(KernelFeatures::Rates) => {
            "would come up for rates only: a topology with delay needs netem, or --partial"
        }
        None => "would not come up",
    };
    format!("{usual}\n`wan up --network kernel` {kernel}.")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::tries::{DELAY, kernel_network_fact, round_trip_fact};
    use super::*;

    fn user() -> Host {
        Host::default()
    }

    fn root() -> Host {
        Host { root: true, ..user() }
    }

    fn refused(name: &str, code: i32) -> Fact {
        Fact::error(name, &io::Error::from_raw_os_error(code))
    }

    /// The facts of a host that supports everything.
    fn all() -> Vec<Fact> {
        let mut facts = vec![
            round_trip_fact(of::SOCKETS, Duration::from_millis(10), Duration::from_micros(10_311)),
            Fact::yes(of::SPACES, "as root"),
            Fact::yes(of::TUN, "/dev/net/tun creates one"),
            Fact::yes(of::FIRST, "SCHED_FIFO is granted"),
            round_trip_fact(of::TRIP, Duration::from_millis(10), Duration::from_micros(10_214)),
            kernel_network_fact(&[], Duration::from_micros(10_402)),
            Fact::yes(of::QUOTA, QuotaKind::V1.word()),
        ];
        facts.extend(TOOLS.iter().map(|(name, _)| Fact::yes(name, "/sbin")));
        facts.extend(KINDS.iter().map(|(name, _)| Fact::yes(name, "this kernel has it")));
        facts.extend(HELPERS.iter().map(|(name, ..)| Fact::yes(name, "/usr/bin")));
        facts
    }

    fn found(facts: &[Fact], machine: &Host) -> DoctorReport {
        DoctorReport::of(facts, &BTreeMap::new(), machine)
    }

    #[test]
    fn the_best_network_that_works_is_chosen() {
        assert_eq!(EmulationKind::choose(true, true), Some(EmulationKind::Router));
        assert_eq!(EmulationKind::choose(true, false), Some(EmulationKind::Router));
        assert_eq!(EmulationKind::choose(false, true), Some(EmulationKind::Sockets));
        assert_eq!(EmulationKind::choose(false, false), None);
    }

    #[test]
    fn a_host_with_everything_has_one_line_per_fact() {
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
    fn untried_tests_have_reasons_and_the_others_count() {
        let mut facts = vec![all().remove(0), refused(of::SPACES, libc::EPERM)];
        let report = found(&facts, &user());
        assert_eq!(report.network, Some(EmulationKind::Sockets));
        let why = |report: &DoctorReport, name: &str| -> String {
            report.items.iter().find(|item| item.name == name).map(|item| item.why.clone()).unwrap()
        };
        let spaces = why(&report, of::SPACES);
        assert!(spaces.ends_with("; run it as root"), "{spaces}");
        assert_eq!(why(&report, of::TRIP), "not tried, because an earlier test failed");
        assert_eq!(why(&report, "netem"), "not tried without `ip`");
        assert!(report.summary.contains("own sockets"), "{}", report.summary);
        facts.push(Fact::yes("ip", "/sbin/ip"));
        assert_eq!(why(&found(&facts, &user()), "veth"), "not tried without `tc`");
        facts.extend(TOOLS.iter().skip(1).map(|(name, _)| Fact::yes(name, "/sbin")));
        let report = found(&facts, &user());
        for name in ["netem", "nft", of::KERNEL] {
            assert_eq!(why(&report, name), "not tried without a namespace");
        }
        assert!(report.summary.ends_with("`wan up --network kernel` would not come up."));
        let reasons = [("router", Some("it took longer than 20 s".to_owned()))].into();
        let report = DoctorReport::of(&facts, &reasons, &user());
        assert_eq!(why(&report, of::TUN), "it took longer than 20 s");
        // The part's own facts count, in spite of its end.
        assert!(why(&report, of::SPACES).starts_with("Operation not permitted"));
        assert_eq!(DoctorReport::of(&[], &reasons, &user()).network, None);
    }

    #[test]
    fn advice_depends_on_the_host() {
        let set =
            |name, value: &str| Host { settings: [(name, value.to_owned())].into(), ..user() };
        let group = |share: &str| Host {
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
                "apparmor_restrict_unprivileged_userns=0` allows",
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
            (round_trip_fact(of::KERNEL, 2 * DELAY, DELAY), root(), "is a bug"),
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
            let report = advice(&fact, &machine);
            assert!(report.contains(part), "{fact:?}: {report}");
        }
    }

    #[test]
    fn a_kernel_without_netem_is_reported_with_its_features() {
        let took = Duration::from_micros(120);
        let note = |lacks: &str| vec![format!("link a b: not modelled, for this kernel: {lacks}")];
        let report = kernel_network_fact(&note("delay 5000 us, loss 1e-06"), took);
        assert!(report.ok && report.said.starts_with("rates only, no netem: "), "{}", report.said);
        assert_eq!(report.numbers["measured_ms"], 0.12);
        let report = kernel_network_fact(&note("delay 5000 us"), took);
        assert!(report.said.starts_with("rates and loss only, no netem: "), "{}", report.said);
        let mut facts = all();
        facts.retain(|fact| !["netem", "nft", of::KERNEL].contains(&&*fact.name));
        facts.extend([Fact::no("netem", "unknown"), Fact::no("nft", "not here"), report]);
        let found = found(&facts, &root());
        assert_eq!(found.object()["kernel"], "rates");
        assert!(found.summary.contains("kernel` would come up for rates only"));
        // Required on this host.
        assert!(found.items.iter().any(|item| item.name == "nft" && !item.ok && !item.optional));
    }

    #[test]
    fn the_group_with_the_share_of_real_time_is_found() {
        let mounts = "proc /proc proc rw 0 0\ncgroup /cg/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n";
        let found = processor_groups(mounts, "4:cpu,cpuacct:/a/b\n0::/c\n");
        assert_eq!(found, [PathBuf::from("/cg/cpu,cpuacct/a/b"), "/cg/cpu,cpuacct".into()]);
        assert!(processor_groups("cgroup2 /cg cgroup2 rw 0 0\n", "0::/\n").is_empty());
    }
}
