//! The kernel as the network between namespaces: veth pairs and `tc`, by `netem-scripts/kernel.sh`,
//! which is part of the program.
//!
//! This process owns the namespaces and ends their programs. This module depends on neither the
//! caller nor the commands of `tc`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use springtide_runtime::id::ClusterId;
use springtide_runtime::net::LinkProfile;
use springtide_runtime::topology::{LinkId, Topology, TopologyCluster, line_row, uplink_row};

use crate::fabric::{self, FabricError, Port};
use crate::place::{LineStatus, StubStatus};
use crate::router::{RouterChange, RouterCounts, UnknownCluster, check, is_between, place_of};

/// The script of the kernel back end.
pub const SCRIPT: &str = include_str!("../netem-scripts/kernel.sh");
/// The namespace that forwards packets between clusters. No cluster of a table can have this name.
const CORE: &str = "core";

/// The kernel cannot emulate the network.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// The namespaces cannot be created.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The shell cannot run the script.
    #[error("the kernel back end needs `sh`: {0}")]
    Shell(#[source] io::Error),
    /// The script fails.
    #[error(
        "the kernel does not take it: {0}; a network by `--network router` needs neither tc nor \
         netem"
    )]
    Refused(String),
    /// The kernel would emulate less than the topology specifies.
    #[error(
        "of {all} links {less} would not be as the topology says ({first}): `--network router` \
         emulates all of it, and with --partial you get what this kernel can do"
    )]
    Partial {
        /// The number of directed links, including those inside clusters.
        all: usize,
        /// The number of links that are emulated in part.
        less: usize,
        /// The first missing property.
        first: String,
    },
    /// The kernel would emulate less than a change specifies.
    #[error(
        "{0}; nothing is changed: `wan up --network router` emulates all of it, and with \
         --partial you get what this kernel can do"
    )]
    Lacks(String),
    /// The change names an unknown cluster.
    #[error(transparent)]
    Unknown(#[from] UnknownCluster),
}

/// The state of one direction of a line.
#[derive(Clone, Debug, PartialEq)]
struct LineState {
    profile: LinkProfile,
    cut: bool,
}

/// The links of the network.
#[derive(Clone, Debug, PartialEq)]
struct KernelLinks {
    clusters: Vec<ClusterId>,
    lines: BTreeMap<(ClusterId, ClusterId), LineState>,
    stubs: BTreeMap<(ClusterId, bool), LinkProfile>,
}

impl KernelLinks {
    fn of(topology: &Topology) -> Self {
        let inside =
            |site: &TopologyCluster| (site.name.clone(), site.name.clone(), site.inside.clone());
        let lines = topology.sites.iter().map(inside).chain(topology.lines.iter().cloned());
        let lines =
            lines.map(|(from, to, profile)| ((from, to), LineState { profile, cut: false }));
        let stubs = topology.sites.iter().flat_map(|site| {
            let both = [(true, &site.up), (false, &site.down)].into_iter();
            both.filter_map(|(up, stub)| Some(((site.name.clone(), up), stub.clone()?)))
        });
        let clusters = topology.sites.iter().map(|site| site.name.clone()).collect();
        Self { clusters, lines: lines.collect(), stubs: stubs.collect() }
    }

    /// Applies a change, and adds the links that it concerns to `touched`.
    fn change(&mut self, change: &RouterChange, touched: &mut BTreeSet<LinkId>) {
        match change {
            RouterChange::Line { from, to, profile } => {
                let line = LineState { profile: profile.clone(), cut: false };
                let there = self.lines.entry((from.clone(), to.clone())).or_insert(line);
                there.profile = profile.clone();
                touched.insert(LinkId::Line(from.clone(), to.clone()));
            }
            RouterChange::Stub { cluster, up, profile } => {
                self.stubs.insert((cluster.clone(), *up), profile.clone());
                touched.insert(LinkId::Stub(cluster.clone(), *up));
            }
            RouterChange::Cut { a, b, cut } => {
                for ((from, to), line) in &mut self.lines {
                    if is_between((a, b), (from, to)) {
                        line.cut = *cut;
                        touched.insert(LinkId::Line(from.clone(), to.clone()));
                    }
                }
            }
            // Refused before they get here.
            RouterChange::Impair { .. } | RouterChange::Border { .. } => {}
        }
    }

    /// The table rows of these links: one for each, for the script refuses repetitions.
    fn rows(&self, touched: &BTreeSet<LinkId>) -> String {
        let row = |link: &LinkId| match link {
            LinkId::Line(from, to) => {
                self.lines.get(&(from.clone(), to.clone())).map(|line| line.row(from, to))
            }
            LinkId::Stub(cluster, up) => {
                let stub = self.stubs.get(&(cluster.clone(), *up));
                stub.map(|profile| uplink_row(cluster, *up, profile))
            }
        };
        touched.iter().filter_map(row).collect()
    }
}

impl LineState {
    fn row(&self, from: &ClusterId, to: &ClusterId) -> String {
        let now = self.profile.clone();
        line_row(from, to, &if self.cut { now.up(false) } else { now })
    }
}

/// A network that the kernel emulates.
pub struct Kernel {
    name: String,
    /// The clusters' namespaces, in the order of the topology, and the one between them.
    ports: Vec<Port>,
    core: Port,
    /// The file in which the script keeps its state.
    state: PathBuf,
    links: KernelLinks,
    /// Whether a network is accepted that the kernel emulates in part.
    partial: bool,
    /// Deviations from the topology, a sentence each.
    notes: Vec<String>,
}

impl Kernel {
    /// Creates the namespaces of the clusters, and connects them by the kernel.
    ///
    /// `state` is a file for the script, removed with this value. `partial` accepts a network that
    /// the kernel emulates in part; [`notes`](Self::notes) then lists the deviations.
    ///
    /// # Errors
    /// [`KernelError`]; nothing is left.
    pub fn start(
        name: &str,
        topology: &Topology,
        state: PathBuf,
        partial: bool,
    ) -> Result<Self, KernelError> {
        fabric::check_addresses(topology)?;
        let ports = topology.sites.iter().map(|site| fabric::bare(site.name.as_str()));
        let ports = ports.collect::<Result<Vec<_>, _>>()?;
        let core = fabric::bare(CORE)?;
        let (name, links) = (name.to_owned(), KernelLinks::of(topology));
        let mut kernel = Self { name, ports, core, state, links, partial, notes: Vec::new() };
        let (_, output) = kernel.script("up", &topology.table())?;
        kernel.notes = warnings(&output);
        match kernel.notes.first() {
            Some(first) if !partial => Err(KernelError::Partial {
                all: kernel.links.lines.len(),
                less: kernel.notes.len(),
                first: first.clone(),
            }),
            _ => Ok(kernel),
        }
    }

    /// The namespaces of the clusters.
    pub fn ports(&self) -> &[Port] {
        &self.ports
    }

    /// Deviations from the topology or from later changes.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The profile of a link, as it was specified; an unspecified uplink has no limits.
    ///
    /// # Errors
    /// The link names an unknown cluster.
    pub fn profile(&self, link: &LinkId) -> Result<LinkProfile, UnknownCluster> {
        let place = |name: &ClusterId| place_of(name, self.links.clusters.iter());
        let found = match link {
            LinkId::Line(from, to) => {
                place(from)?;
                place(to)?;
                self.links.lines.get(&(from.clone(), to.clone())).map(|line| &line.profile)
            }
            LinkId::Stub(cluster, up) => {
                place(cluster)?;
                self.links.stubs.get(&(cluster.clone(), *up))
            }
        };
        Ok(found.cloned().unwrap_or_default())
    }

    /// Applies all changes or none. Returns the deviations, a sentence each.
    ///
    /// # Errors
    /// A cluster is unknown, the script fails, or the kernel would emulate the changes only in part
    /// and `partial` is not set.
    pub fn change(&mut self, changes: &[RouterChange]) -> Result<Vec<String>, KernelError> {
        check(changes, self.links.clusters.iter())?;
        let (mut links, mut touched) = (self.links.clone(), BTreeSet::new());
        changes.iter().for_each(|change| links.change(change, &mut touched));
        let (_, output) = self.script("set", &links.rows(&touched))?;
        let lacks = warnings(&output);
        if let Some(first) = lacks.first().filter(|_| !self.partial) {
            self.script("set", &self.links.rows(&touched))?;
            return Err(KernelError::Lacks(first.clone()));
        }
        self.links = links;
        self.notes.retain(|note| !touched.iter().any(|link| is_about(note, link)));
        self.notes.extend_from_slice(&lacks);
        Ok(lacks)
    }

    /// All lines with their counts, and the limited uplinks and downlinks.
    ///
    /// # Errors
    /// The script fails.
    pub fn status(&self) -> Result<(Vec<LineStatus>, Vec<StubStatus>), KernelError> {
        let (output, _) = self.script("status", "")?;
        let counts = parse_counts(&output);
        let lines =
            self.links.lines.iter().map(|((from, to), LineState { profile, cut })| LineStatus {
                from: from.clone(),
                to: to.clone(),
                profile: profile.clone(),
                cut: *cut,
                counts: counts.get(&(from.clone(), to.clone())).copied().unwrap_or_default(),
                queued: 0,
                rate: None,
                impairments: String::new(),
            });
        let stubs = self.links.stubs.iter().map(|((cluster, up), profile)| StubStatus {
            cluster: cluster.clone(),
            up: *up,
            profile: profile.clone(),
            queued: 0,
            rate: None,
            impairments: String::new(),
        });
        Ok((lines.collect(), stubs.collect()))
    }

    /// Runs the script. Returns its output, and its warnings if it succeeds.
    fn script(&self, what: &str, rows: &str) -> Result<(String, String), KernelError> {
        let mut command = Command::new("sh");
        command.args(["-c", SCRIPT, "kernel.sh", what, &self.name]);
        for port in self.ports.iter().chain([&self.core]) {
            let file = format!("/proc/{}/fd/{}", std::process::id(), port.net.as_raw_fd());
            command.env(format!("NS_{}", port.name.replace('-', "_")), file);
        }
        command.env("STATE", &self.state);
        let all = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = all.spawn().map_err(KernelError::Shell)?;
        if let Some(mut stdin) = child.stdin.take() {
            // The script reads all input before it writes; one that has ended reports the reason.
            let _ = stdin.write_all(rows.as_bytes());
        }
        let output = child.wait_with_output().map_err(KernelError::Shell)?;
        let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
        if output.status.success() {
            return Ok((out.into_owned(), err.into_owned()));
        }
        let said = err.lines().map(|line| line.trim_start_matches("kernel.sh: "));
        let said = said.collect::<Vec<_>>().join("; ");
        let said = if said.is_empty() { output.status.to_string() } else { said };
        Err(KernelError::Refused(said))
    }
}

impl Drop for Kernel {
    /// Interfaces and queues end with their namespaces.
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.state);
    }
}

/// The warnings in the script's output.
fn warnings(output: &str) -> Vec<String> {
    let lines = output.lines().filter_map(|line| line.strip_prefix("kernel.sh: warning: "));
    lines.map(str::to_owned).collect()
}

/// Whether a warning of the script concerns this link.
fn is_about(warning: &str, link: &LinkId) -> bool {
    match link {
        LinkId::Line(from, to) => warning.starts_with(&format!("link {from} {to}: ")),
        // The kernel can always emulate a rate.
        LinkId::Stub(..) => false,
    }
}

/// Parses the counts of lines in the script's output: `# link FROM TO: N bytes, N packets, N
/// dropped, N waiting`.
fn parse_counts(output: &str) -> BTreeMap<(ClusterId, ClusterId), RouterCounts> {
    let of = |line: &str| {
        let (ends, counts) = line.strip_prefix("# link ")?.split_once(": ")?;
        let (from, to) = ends.split_once(' ')?;
        let mut numbers =
            counts.split(", ").filter_map(|part| part.split_once(' ')?.0.parse().ok());
        let (bytes, sent, lost) = (numbers.next()?, numbers.next()?, numbers.next()?);
        // A dropped packet is not among the sent ones.
        Some((
            (from.into(), to.into()),
            RouterCounts { packets: sent + lost, bytes, lost, ..RouterCounts::default() },
        ))
    };
    output.lines().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use springtide_runtime::config::{Sources, TopologyConfig, load};

    use super::*;

    fn topology() -> Topology {
        let text = "name = \"two\"\n[wide]\nrtt = \"0ms\"\nbandwidth = \"1MB/s\"\n\
            [[cluster]]\nname = \"a-side\"\nnodes = 2\nuplink = \"2MB/s\"\n\
            [[cluster]]\nname = \"b\"\n";
        let config = load::<TopologyConfig>(&Sources::of_text("t.toml", text));
        Topology::from_config(&config.unwrap_or_else(|error| panic!("{error}")).value)
    }

    #[test]
    fn changes_become_rows_of_the_table() {
        let mut links = KernelLinks::of(&topology());
        let before = links.clone();
        let cut = |cut| RouterChange::Cut { a: "b".into(), b: "b".into(), cut };
        let rows = |links: &mut KernelLinks, changes: &[&RouterChange]| {
            let mut touched = BTreeSet::new();
            changes.iter().for_each(|change| links.change(change, &mut touched));
            links.rows(&touched)
        };
        assert_eq!(
            rows(&mut links, &[&cut(true)]),
            "link a-side b 0 0 1 1000000 100000 0\nlink b a-side 0 0 1 1000000 100000 0\n"
        );
        // A new profile of a cut line keeps the cut, which can be lifted later.
        let profile = LinkProfile::default().delay(Duration::from_millis(5)).loss(0.25);
        let line = RouterChange::Line { from: "b".into(), to: "a-side".into(), profile };
        assert_eq!(rows(&mut links, &[&line]), "link b a-side 5000 0 1 - 100000 0\n");
        // The script gets each link once, even if several changes concern it.
        assert_eq!(
            rows(&mut links, &[&line, &cut(true), &cut(false)]),
            "link a-side b 0 0 0 1000000 100000 0\nlink b a-side 5000 0 0.25 - 100000 0\n"
        );
        let closed = LinkProfile::default().up(false);
        let stub = RouterChange::Stub { cluster: "b".into(), up: false, profile: closed };
        assert_eq!(rows(&mut links, &[&stub]), "downlink b 0 100000\n");
        assert_eq!(links.stubs.len(), before.stubs.len() + 1);
        let unknown = [cut(true), RouterChange::Cut { a: "b".into(), b: "c".into(), cut: true }];
        let error = check(&unknown, links.clusters.iter()).unwrap_err().to_string();
        assert_eq!(error, "there is no cluster named \"c\": the topology has a-side, b");
    }

    #[test]
    fn the_output_of_the_script_is_parsed() {
        let output = "# x: namespaces of the caller\nlink a b 0 0 0 - 100000 0\n\
            # carried since it is up\n# uplink a: 1 bytes, 1 packets, 0 dropped, 0 waiting\n\
            # link a b: 1500 bytes, 3 packets, 2 dropped, 0 waiting\n";
        let counts = parse_counts(output);
        assert_eq!(counts.len(), 1);
        let found = counts[&("a".into(), "b".into())];
        assert_eq!((found.packets, found.bytes, found.lost), (5, 1500, 2));
        let output = "kernel.sh: warning: link a b: not modelled: delay 5 us\nsomething else\n";
        assert_eq!(warnings(output), ["link a b: not modelled: delay 5 us"]);
    }

    #[test]
    fn rates_hold_between_spaces_that_the_kernel_joins() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("two.kernel");
        let mut kernel = match Kernel::start("two", &topology(), state.clone(), true) {
            Ok(kernel) => kernel,
            Err(error @ (KernelError::Fabric(_) | KernelError::Refused(_))) => {
                return println!("skipped: {error}");
            }
            Err(error) => panic!("{error}"),
        };
        assert!(state.exists());
        let inside = |port: &Port, address: &str| {
            let (net, address) = (port.net.try_clone().unwrap(), address.to_owned());
            let bound = std::thread::spawn(move || {
                use std::os::fd::AsFd;
                crate::sys::enter(net.as_fd(), crate::sys::Namespace::Net)
                    .expect("it was made here");
                std::net::UdpSocket::bind(address).expect("its own address")
            });
            bound.join().expect("no panic")
        };
        let near = inside(&kernel.ports()[0], "10.77.1.2:4000");
        let far = inside(&kernel.ports()[1], "10.77.2.1:4000");
        far.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let cross = |bytes: &[u8]| {
            near.send_to(bytes, "10.77.2.1:4000").unwrap();
            let mut buffer = [0; 100];
            far.recv_from(&mut buffer).map(|(len, from)| (len, from.to_string()))
        };
        assert_eq!(cross(b"there").unwrap(), (5, "10.77.1.2:4000".to_owned()));
        let cut = |cut| [RouterChange::Cut { a: "a-side".into(), b: "b".into(), cut }];
        kernel.change(&cut(true)).unwrap();
        far.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        assert!(cross(b"lost").is_err());
        kernel.change(&cut(false)).unwrap();
        far.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        assert_eq!(cross(b"again").unwrap().0, 5);
        let (lines, stubs) = kernel.status().unwrap();
        let line = lines.iter().find(|line| line.to.as_str() == "b" && line.from.as_str() != "b");
        let counts = line.expect("it is there").counts;
        assert_eq!((counts.packets, counts.lost), (3, 1), "{lines:?}");
        assert_eq!(stubs.len(), 2);
        // The script accepts several changes of one line.
        let (from, to) = (ClusterId::from("a-side"), ClusterId::from("b"));
        let profile = kernel.profile(&LinkId::Line(from.clone(), to.clone())).unwrap();
        assert_eq!(profile.rate, Some(1_000_000));
        let line = RouterChange::Line { from, to, profile: profile.rate(2_000_000) };
        kernel.change(&[&[line][..], &cut(false)].concat()).unwrap();
        let unknown = [RouterChange::Cut { a: "a-side".into(), b: "z".into(), cut: true }];
        assert!(matches!(kernel.change(&unknown), Err(KernelError::Unknown(_))));
        drop(kernel);
        assert!(!state.exists());
    }
}
