//! A table of links in a file that processes share: each computes from it when its datagrams
//! arrive, and so they share the links.
//!
//! The meaning of a link is that of `springtide_runtime::net::Link`. The queue is represented by
//! one number, the time at which the link is free. So a datagram costs a few atomic operations, and
//! there is no lock that a killed process could hold. This module depends on neither the sender nor
//! the contents of datagrams.
//!
//! A file is valid on the machine on which it was made and until its restart: its times are those
//! of [`sys::now_ns`].

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use springtide_runtime::event::write_atomic;
use springtide_runtime::id::ClusterId;
use springtide_runtime::net::{DropCause, LinkProfile};
use springtide_runtime::random::SplitMix;
use springtide_runtime::topology::{LinkId, Topology, TopologyCluster};

use self::entry::{AT_STATE, CUT, EXISTS, LINK, LinkEntry};
use crate::impair::Fate;
use crate::router::{self, RouterChange, RouterCounts, UnknownCluster};
use crate::sys::{self, SharedWords};

mod entry;

/// The first word of a file. As a number, it differs on a machine of another byte order.
const MAGIC: u64 = u64::from_le_bytes(*b"sprtlink");
/// The version of the format.
const VERSION: u64 = 3;

/// The numbers of words of the header, and of a cluster.
const HEADER: usize = 8;
const SITE: usize = 8;

/// Indices of words in the header.
const AT_VERSION: usize = 1;
const AT_SITES: usize = 2;
const AT_SEED: usize = 3;
const AT_PREFIX: usize = 4;
const AT_MADE: usize = 5;

/// Indices of a cluster's words: its name takes the first, padded with zeros.
const NAME_WORDS: usize = 4;
const AT_NODES: usize = NAME_WORDS;

/// The maximum number of clusters of a topology.
const SITES_MAX: usize = 250;

/// A table cannot be created or used.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// The system refuses an operation.
    #[error("cannot {what} the table of links {path}: {source}")]
    Io {
        /// The operation that failed.
        what: &'static str,
        /// The path of the file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The file is not a table of links.
    #[error(
        "{0} is no table of links: name the file of an emulated network that was made on this \
         machine"
    )]
    NotATable(PathBuf),
    /// Another version of this program made the file.
    #[error(
        "the table of links {path} has version {found}, this program reads {VERSION}: create it \
         again with this program"
    )]
    Version {
        /// The path of the file.
        path: PathBuf,
        /// The version of the file.
        found: u64,
    },
    /// The file is shorter than its header states.
    #[error("the table of links {path} has {found} bytes of {needed}: create it again")]
    Truncated {
        /// The path of the file.
        path: PathBuf,
        /// The length of the file, in bytes.
        found: u64,
        /// The length by the header, in bytes.
        needed: u64,
    },
    /// The file was made before the last restart of the machine.
    #[error(
        "the table of links {0} was made before this machine was last started: create it again"
    )]
    Stale(PathBuf),
    /// The topology does not fit into a table.
    #[error("the topology cannot be a table of links: {0}")]
    Topology(String),
}

/// A table of links, shared with all processes that have opened the same file.
pub struct LinkTable {
    words: SharedWords,
    /// The constant part of the file, read once.
    sites: Vec<(ClusterId, u8)>,
    prefix: [u8; 2],
    seed: u64,
}

impl std::fmt::Debug for LinkTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table").field("sites", &self.sites).finish_non_exhaustive()
    }
}

/// The number of words of a table with this number of clusters.
fn words(sites: usize) -> usize {
    HEADER + SITE * sites + LINK * (sites * sites + 2 * sites)
}

fn bytes(words: usize) -> u64 {
    8 * words as u64
}

/// Indices of links: all lines, then all uplinks, then all downlinks.
fn line_at(sites: usize, from: usize, to: usize) -> usize {
    from * sites + to
}

fn stub_at(sites: usize, up: bool, site: usize) -> usize {
    sites * sites + site + if up { 0 } else { sites }
}

impl LinkTable {
    /// Creates or replaces the file, with the links of a topology. Losses and jitter follow from
    /// `seed`.
    ///
    /// Processes that have opened a former file keep that one.
    ///
    /// # Errors
    /// The topology has names that do not fit, or the file cannot be written.
    pub fn create(path: &Path, topology: &Topology, seed: u64) -> Result<Self, TableError> {
        let sites = &topology.sites;
        if !(1..=SITES_MAX).contains(&sites.len()) {
            let reason = format!("it has {} clusters, not 1 to {SITES_MAX}", sites.len());
            return Err(TableError::Topology(reason));
        }
        let mut head = vec![0; HEADER + SITE * sites.len()];
        head[0] = MAGIC;
        head[AT_VERSION] = VERSION;
        head[AT_SITES] = sites.len() as u64;
        head[AT_SEED] = seed;
        head[AT_PREFIX] = u64::from(u16::from_be_bytes(topology.prefix));
        head[AT_MADE] = sys::now_ns();
        for (place, TopologyCluster { name, number, nodes, .. }) in sites.iter().enumerate() {
            let bytes = name.as_str().as_bytes();
            if bytes.len() > 8 * NAME_WORDS || bytes.is_empty() || bytes.contains(&0) {
                let reason = format!("{name:?} is no name of 1 to {} bytes", 8 * NAME_WORDS);
                return Err(TableError::Topology(reason));
            }
            if usize::from(*number) != place + 1 {
                let reason = format!("cluster {name} has number {number} at place {}", place + 1);
                return Err(TableError::Topology(reason));
            }
            let site = &mut head[HEADER + SITE * place..][..SITE];
            for (word, part) in site.iter_mut().zip(bytes.chunks(8)) {
                let mut whole = [0; 8];
                whole[..part.len()].copy_from_slice(part);
                *word = u64::from_le_bytes(whole);
            }
            site[AT_NODES] = u64::from(*nodes);
        }
        let mut all: Vec<AtomicU64> = head.into_iter().map(AtomicU64::new).collect();
        all.resize_with(words(sites.len()), AtomicU64::default);
        let count = sites.len();
        let set = |place: usize, profile: &LinkProfile| {
            LinkEntry(&all[HEADER + SITE * count + LINK * place..][..LINK]).set(profile, 0);
        };
        let place = |name: &ClusterId| sites.iter().position(|site| site.name == *name);
        for at in 0..count * count {
            set(at, &LinkProfile::default());
        }
        for (from, to, profile) in &topology.lines {
            let ends = place(from).zip(place(to)).ok_or_else(|| {
                TableError::Topology(format!("a line goes from {from} to {to}, which it has not"))
            })?;
            set(line_at(count, ends.0, ends.1), profile);
        }
        for (at, site) in sites.iter().enumerate() {
            set(line_at(count, at, at), &site.inside);
            for (up, stub) in [(true, &site.up), (false, &site.down)] {
                if let Some(profile) = stub {
                    set(stub_at(count, up, at), profile);
                }
            }
        }
        // The file is written under another name and renamed, so that no process can open half a
        // table.
        let bytes: Vec<u8> = all.iter().flat_map(|word| word.load(Relaxed).to_ne_bytes()).collect();
        let failed = |source| TableError::Io { what: "write", path: path.to_owned(), source };
        write_atomic(path, &bytes).map_err(failed)?;
        Self::open(path)
    }

    /// Opens a file that [`create`](Self::create) made.
    ///
    /// # Errors
    /// [`TableError`]: the file is missing, invalid, of another version, too short, or older than
    /// the machine's last start.
    pub fn open(path: &Path) -> Result<Self, TableError> {
        let failed = |what| move |source| TableError::Io { what, path: path.to_owned(), source };
        let mut file =
            OpenOptions::new().read(true).write(true).open(path).map_err(failed("open"))?;
        let mut head = Vec::new();
        let read = file.by_ref().take(bytes(HEADER)).read_to_end(&mut head);
        read.map_err(failed("read"))?;
        let word = |at: usize| {
            let word = head.get(8 * at..8 * at + 8)?;
            Some(u64::from_ne_bytes(word.try_into().ok()?))
        };
        if word(0) != Some(MAGIC) {
            return Err(TableError::NotATable(path.to_owned()));
        }
        let found = file.metadata().map_err(failed("read"))?.len();
        let truncated =
            |words| TableError::Truncated { path: path.to_owned(), found, needed: bytes(words) };
        let version = word(AT_VERSION).ok_or_else(|| truncated(HEADER))?;
        if version != VERSION {
            return Err(TableError::Version { path: path.to_owned(), found: version });
        }
        let get = |at| word(at).ok_or_else(|| truncated(HEADER));
        let (count, seed, prefix, made) =
            (get(AT_SITES)?, get(AT_SEED)?, get(AT_PREFIX)?, get(AT_MADE)?);
        let count = usize::try_from(count).ok().filter(|count| (1..=SITES_MAX).contains(count));
        let count = count.ok_or_else(|| TableError::NotATable(path.to_owned()))?;
        if found < bytes(words(count)) {
            return Err(truncated(words(count)));
        }
        if made > sys::now_ns() {
            return Err(TableError::Stale(path.to_owned()));
        }
        let words = SharedWords::map(&file, words(count)).map_err(failed("map"))?;
        let sites = words[HEADER..][..SITE * count].chunks(SITE).map(|site| {
            let name = site[..NAME_WORDS].iter().flat_map(|word| word.load(Relaxed).to_le_bytes());
            let name: Vec<u8> = name.take_while(|byte| *byte != 0).collect();
            let name = ClusterId::from(String::from_utf8_lossy(&name).as_ref());
            (name, u8::try_from(site[AT_NODES].load(Relaxed)).unwrap_or(u8::MAX))
        });
        let sites = sites.collect();
        // The file stores sixteen bits.
        let prefix = (prefix as u16).to_be_bytes();
        Ok(Self { words, sites, prefix, seed })
    }

    /// The seed of losses and jitter, which each process combines with its own address.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The clusters, in the order of their numbers, which start with 1.
    pub fn clusters(&self) -> impl Iterator<Item = &ClusterId> + Clone {
        self.sites.iter().map(|(name, _)| name)
    }

    /// The number of an address's cluster, its third byte; none if the address is outside of this
    /// network.
    ///
    /// There may be no cluster of this number.
    pub fn number_of(&self, address: IpAddr) -> Option<u8> {
        let address = match address {
            IpAddr::V4(address) => address,
            IpAddr::V6(address) => address.to_ipv4_mapped()?,
        };
        let [first, second, third, _] = address.octets();
        ([first, second] == self.prefix).then_some(third)
    }

    /// Whether there is a cluster of this number.
    pub fn has(&self, number: u8) -> bool {
        self.place(number).is_some()
    }

    /// The range of the clusters' addresses, as text.
    pub fn range(&self) -> String {
        let [first, second] = self.prefix;
        format!("{first}.{second}.1.1 to {first}.{second}.{}.254", self.sites.len())
    }

    /// A node's address, by its name; none if the topology has no such node.
    pub fn address(&self, node: &str) -> Option<Ipv4Addr> {
        let (cluster, number) = node.rsplit_once('-')?;
        let place = self.sites.iter().position(|(name, _)| name.as_str() == cluster)?;
        let number = number.parse().ok().filter(|n| (1..=self.sites[place].1).contains(n))?;
        let [first, second] = self.prefix;
        // At most SITES_MAX.
        Some(Ipv4Addr::new(first, second, place as u8 + 1, number))
    }

    /// Offers a datagram of `len` bytes, headers included, to the path between two clusters or
    /// within one.
    ///
    /// `now_ns` is the time of [`sys::now_ns`]. Returns the time of arrival, or none if the
    /// datagram is lost, finds no room, or has an unknown cluster. As in the link model it passes
    /// the sender's uplink, the line and the receiver's downlink in series. All three have counted
    /// it when this function returns.
    pub fn offer(
        &self,
        from: u8,
        to: u8,
        len: usize,
        now_ns: u64,
        rng: &mut SplitMix,
    ) -> Option<u64> {
        let (from, to) = (self.place(from)?, self.place(to)?);
        let line = self.line(from, to);
        // The counts of a line are those of the whole path, as at the router.
        line.count(len);
        let passed = self.pass(from, to, len, now_ns, rng);
        passed.inspect_err(|cause| line.drop(*cause)).ok()
    }

    /// Draws what the impairments of the line between two clusters do to a datagram that arrives.
    pub fn impair(&self, from: u8, to: u8, rng: &mut SplitMix) -> Option<Fate> {
        let (from, to) = (self.place(from)?, self.place(to)?);
        Some(self.line(from, to).impair(rng))
    }

    /// The bytes that wait in the queue of a link.
    ///
    /// # Errors
    /// A cluster is unknown.
    pub fn queued(&self, link: &LinkId, now_ns: u64) -> Result<usize, UnknownCluster> {
        let entry = match link {
            LinkId::Line(from, to) => self.line(self.place_of(from)?, self.place_of(to)?),
            LinkId::Stub(cluster, up) => self.stub(*up, self.place_of(cluster)?),
        };
        Ok(if entry.has(EXISTS) { entry.queued(now_ns) } else { 0 })
    }

    fn pass(
        &self,
        from: usize,
        to: usize,
        len: usize,
        now: u64,
        rng: &mut SplitMix,
    ) -> Result<u64, DropCause> {
        let line = self.line(from, to);
        if line.has(CUT) {
            return Err(DropCause::Down);
        }
        if from == to {
            return line.offer(len, now, rng);
        }
        let stub = |up, at, now, rng: &mut SplitMix| {
            let stub = self.stub(up, at);
            if !stub.has(EXISTS) {
                return Ok(now);
            }
            stub.count(len);
            stub.offer(len, now, rng).inspect_err(|cause| stub.drop(*cause))
        };
        let at = stub(true, from, now, rng)?;
        let at = line.offer(len, at, rng)?;
        stub(false, to, at, rng)
    }

    /// Counts a datagram that its sender has no room for as offered and lost.
    pub fn lose(&self, from: u8, to: u8, len: usize) {
        let Some((from, to)) = self.place(from).zip(self.place(to)) else { return };
        let line = self.line(from, to);
        line.count(len);
        line.drop(DropCause::QueueFull);
    }

    /// Sets the line from a cluster to another, or inside one, for all processes.
    ///
    /// Waiting datagrams leave at the new rate, and those with an arrival keep it. A concurrent
    /// offer uses either the old settings or the new ones. Only the process that holds the network
    /// may set links, one at a time.
    ///
    /// # Errors
    /// A cluster is unknown.
    pub fn set_line(
        &self,
        from: &ClusterId,
        to: &ClusterId,
        profile: &LinkProfile,
        now_ns: u64,
    ) -> Result<(), UnknownCluster> {
        let (from, to) = (self.place_of(from)?, self.place_of(to)?);
        self.line(from, to).set(profile, now_ns);
        Ok(())
    }

    /// Sets a cluster's uplink (`up`) or downlink, as [`set_line`](Self::set_line). There may have
    /// been none.
    ///
    /// # Errors
    /// The cluster is unknown.
    pub fn set_stub(
        &self,
        cluster: &ClusterId,
        up: bool,
        profile: &LinkProfile,
        now_ns: u64,
    ) -> Result<(), UnknownCluster> {
        self.stub(up, self.place_of(cluster)?).set(profile, now_ns);
        Ok(())
    }

    /// Cuts or restores the connection of two clusters; if both are the same, that of the cluster
    /// to all others.
    ///
    /// # Errors
    /// A cluster is unknown.
    pub fn cut(&self, a: &ClusterId, b: &ClusterId, cut: bool) -> Result<(), UnknownCluster> {
        let (a, b) = (self.place_of(a)?, self.place_of(b)?);
        let others =
            (0..self.sites.len()).filter(|other| if a == b { *other != a } else { *other == b });
        for other in others {
            for line in [self.line(a, other), self.line(other, a)] {
                if cut {
                    line.word(AT_STATE).fetch_or(CUT, Relaxed);
                } else {
                    line.word(AT_STATE).fetch_and(!CUT, Relaxed);
                }
            }
        }
        Ok(())
    }

    /// Applies a change, as a router does.
    ///
    /// # Errors
    /// A cluster is unknown.
    pub fn change(&self, change: &RouterChange, now_ns: u64) -> Result<(), UnknownCluster> {
        match change {
            RouterChange::Line { from, to, profile } => self.set_line(from, to, profile, now_ns),
            RouterChange::Stub { cluster, up, profile } => {
                self.set_stub(cluster, *up, profile, now_ns)
            }
            RouterChange::Cut { a, b, cut } => self.cut(a, b, *cut),
            RouterChange::Impair { from, to, impairments } => {
                let (from, to) = (self.place_of(from)?, self.place_of(to)?);
                self.line(from, to).set_impairments(impairments);
                Ok(())
            }
            // Refused before it gets here: sockets have no addresses of their own to translate.
            RouterChange::Border { .. } => Ok(()),
        }
    }

    /// The profile of a link; an uplink that was never limited has no limits.
    ///
    /// # Errors
    /// A cluster is unknown.
    pub fn profile(&self, link: &LinkId) -> Result<LinkProfile, UnknownCluster> {
        let entry = match link {
            LinkId::Line(from, to) => self.line(self.place_of(from)?, self.place_of(to)?),
            LinkId::Stub(cluster, up) => self.stub(*up, self.place_of(cluster)?),
        };
        Ok(if entry.has(EXISTS) { entry.profile() } else { LinkProfile::default() })
    }

    /// All lines: source, destination, profile, whether it is cut, and counts.
    pub fn lines(
        &self,
    ) -> impl Iterator<Item = (&ClusterId, &ClusterId, LinkProfile, bool, RouterCounts)> {
        let count = self.sites.len();
        (0..count * count).map(move |at| {
            let (link, [from, to]) = (self.link(at), [at / count, at % count]);
            let [from, to] = [from, to].map(|site| &self.sites[site].0);
            (from, to, link.profile(), link.has(CUT), link.counts())
        })
    }

    /// The limited uplinks (true) and downlinks, with their counts.
    pub fn stubs(&self) -> impl Iterator<Item = (&ClusterId, bool, LinkProfile, RouterCounts)> {
        let both = self.sites.iter().enumerate().flat_map(|site| [(site, true), (site, false)]);
        both.filter_map(|((at, (name, _)), up)| {
            let stub = self.stub(up, at);
            stub.has(EXISTS).then(|| (name, up, stub.profile(), stub.counts()))
        })
    }

    fn place(&self, number: u8) -> Option<usize> {
        usize::from(number).checked_sub(1).filter(|place| *place < self.sites.len())
    }

    fn place_of(&self, name: &ClusterId) -> Result<usize, UnknownCluster> {
        router::place_of(name, self.clusters())
    }

    fn line(&self, from: usize, to: usize) -> LinkEntry<'_> {
        self.link(line_at(self.sites.len(), from, to))
    }

    fn stub(&self, up: bool, site: usize) -> LinkEntry<'_> {
        self.link(stub_at(self.sites.len(), up, site))
    }

    fn link(&self, at: usize) -> LinkEntry<'_> {
        LinkEntry(&self.words[HEADER + SITE * self.sites.len() + LINK * at..][..LINK])
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Barrier;
    use std::sync::atomic::AtomicBool;
    use std::thread;
    use std::time::Duration;

    use proptest::prelude::*;
    use springtide_runtime::config::{Sources, TopologyConfig, load};

    use super::entry::{AT_FREE, AT_LAST, TIME};
    use super::*;

    const MS: u64 = 1_000_000;

    fn topology(text: &str) -> Topology {
        let config = load::<TopologyConfig>(&Sources::of_text("t.toml", text));
        Topology::from_config(&config.unwrap_or_else(|error| panic!("{error}")).value)
    }

    /// Slow and fast lines, uplinks and downlinks, and clusters without any.
    fn three() -> Topology {
        topology(
            "name = \"three\"\nnet = \"127.77.0.0/16\"\n\
             [wide]\nrtt = \"20ms\"\nbandwidth = \"1MB/s\"\nqueue = 10000\n\
             [[cluster]]\nname = \"a\"\nnodes = 2\nuplink = \"800kB/s\"\n\
             [[cluster]]\nname = \"b\"\nnodes = 3\n\
             [[cluster]]\nname = \"c\"\nuplink = \"1500kB/s\"\n\
             [[link]]\nbetween = [\"a\", \"b\"]\nrtt = \"90ms\"\n\
             [[link]]\nbetween = [\"c\", \"b\"]\nrtt = \"7ms\"\nbandwidth = \"3MB/s\"\n\
             queue = 50000\n",
        )
    }

    fn made(topology: &Topology) -> (tempfile::TempDir, LinkTable) {
        let dir = tempfile::tempdir().unwrap();
        let table = LinkTable::create(&dir.path().join("t.links"), topology, 7).unwrap();
        (dir, table)
    }

    fn profile() -> LinkProfile {
        LinkProfile::default()
    }

    proptest! {
        #[test]
        fn it_agrees_with_the_link_model(
            sent in prop::collection::vec((1u8..4, 1u8..4, 0u64..1500), 1..400),
            len in 20usize..1500,
        ) {
            let topology = three();
            let (_dir, table) = made(&topology);
            let mut paths = topology.paths(7);
            let (mut now, mut rng) = (0, SplitMix(1));
            let mut lost = 0;
            for (from, to, pause_us) in &sent {
                now += pause_us * 1000;
                let [a, b] = [from, to].map(|n| topology.sites[usize::from(*n) - 1].name.clone());
                let path = paths.path(&(a, b));
                let model = paths.offer(&path, Duration::from_nanos(now), len);
                let ours = table.offer(*from, *to, len, now, &mut rng).map(Duration::from_nanos);
                prop_assert_eq!(ours, model, "{} to {} at {}", from, to, now);
                lost += u64::from(ours.is_none());
            }
            let counts: Vec<RouterCounts> = table.lines().map(|(.., counts)| counts).collect();
            prop_assert_eq!(counts.iter().map(|c| c.packets).sum::<u64>(), sent.len() as u64);
            prop_assert_eq!(counts.iter().map(|c| c.bytes).sum::<u64>(), (sent.len() * len) as u64);
            prop_assert_eq!(counts.iter().map(|c| c.lost).sum::<u64>(), lost);
        }

        /// With datagrams of any length the arrivals are the model's if there is room. Otherwise
        /// the queue differs by less than a datagram.
        #[test]
        fn it_agrees_with_the_link_model_for_any_lengths(
            sent in prop::collection::vec((20usize..1500, 0u64..1500), 1..400),
            full: bool,
        ) {
            let (_dir, table) = made(&three());
            let queue = if full { 20_000 } else { 1 << 30 };
            let profile = profile().delay(Duration::from_millis(10)).rate(1_000_000).queue(queue);
            // Inside a cluster there is this one link alone.
            table.set_line(&"b".into(), &"b".into(), &profile, 0).unwrap();
            let mut link = springtide_runtime::net::Link::new(profile, 1);
            let (mut now, mut rng, mut ours, mut models) = (0, SplitMix(1), 0, 0);
            for (len, pause_us) in sent {
                now += pause_us * 300;
                let model = link.offer(Duration::from_nanos(now), len);
                let our = table.offer(2, 2, len, now, &mut rng);
                if !full {
                    prop_assert_eq!(our.map(Duration::from_nanos), model);
                }
                ours += our.map_or(0, |_| len);
                models += model.map_or(0, |_| len);
                prop_assert!(ours.abs_diff(models) <= 2 * 1500, "{} {}", ours, models);
            }
        }
    }

    #[test]
    fn losses_and_jitter_are_as_stated_and_keep_the_order() {
        let (_dir, table) = made(&three());
        let wild =
            profile().delay(Duration::from_millis(10)).jitter(Duration::from_millis(5)).loss(0.02);
        let n = 100_000u64;
        for reorder in [true, false] {
            let b = "b".into();
            table.set_line(&b, &b, &wild.clone().reorder(reorder), 0).unwrap();
            table.line(1, 1).word(AT_LAST).fetch_and(!TIME, Relaxed);
            let mut rng = SplitMix(5);
            let mut found = Vec::new();
            for i in 0..n {
                found.extend(table.offer(2, 2, 100, i * MS, &mut rng).map(|at| (i * MS, at)));
            }
            // 99.9 % interval of a binomial, as for the model.
            let lost = 1.0 - found.len() as f64 / n as f64;
            assert!((lost - 0.02).abs() < 0.0015, "{lost}");
            let delays = found.iter().map(|(now, at)| at - now);
            let (least, most) = (delays.clone().min().unwrap(), delays.max().unwrap());
            assert!(least >= 5 * MS && most <= 15 * MS, "{least} {most}");
            assert_eq!(found.is_sorted_by_key(|(_, at)| *at), !reorder);
        }
    }

    #[test]
    fn two_users_of_one_uplink_get_what_it_carries() {
        let text = "name = \"pair\"\nnet = \"127.77.0.0/16\"\n[wide]\nrtt = \"10ms\"\n\
            [[cluster]]\nname = \"a\"\nnodes = 2\nuplink = \"1MB/s\"\n[[cluster]]\nname = \"b\"\n";
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.links");
        let table = LinkTable::create(&path, &topology(text), 1).unwrap();
        // Each user offers two thousand bytes per millisecond of the model's time, in step.
        let (users, steps) = (2, 2000);
        let step = Barrier::new(users);
        let arrivals: Vec<u64> = thread::scope(|scope| {
            let user = |seed| {
                let (path, step) = (&path, &step);
                move || {
                    let own = LinkTable::open(path).unwrap();
                    let (mut rng, mut arrivals) = (SplitMix(seed), Vec::new());
                    for at in 0..steps {
                        step.wait();
                        for _ in 0..2 {
                            arrivals.extend(own.offer(1, 2, 1000, at * MS, &mut rng));
                        }
                    }
                    arrivals
                }
            };
            let users: Vec<_> = (0..users).map(|seed| scope.spawn(user(seed as u64))).collect();
            users.into_iter().flat_map(|user| user.join().unwrap()).collect()
        });
        // From the first to the last arrival, by the model's time.
        let (first, last) = (arrivals.iter().min().unwrap(), arrivals.iter().max().unwrap());
        let rate = (arrivals.len() - 1) as f64 * 1000.0 / ((last - first) as f64 * 1e-9);
        assert!((rate / 1e6 - 1.0).abs() < 0.05, "{rate}");
        assert!(*last - *first >= (steps - 1) * MS, "{first} {last}");
        let (.., counts) = table.stubs().find(|(_, up, ..)| *up).unwrap();
        assert_eq!(counts.packets, users as u64 * steps * 2);
        assert_eq!(counts.packets - counts.lost, arrivals.len() as u64);
    }

    #[test]
    fn settings_hold_for_all_processes_and_for_waiting_datagrams() {
        let (dir, table) = made(&three());
        let other = LinkTable::open(&dir.path().join("t.links")).unwrap();
        let (mut rng, a, b) = (SplitMix(1), "a".into(), "b".into());
        let plain = profile().rate(1_000_000).queue(10_000);
        table.set_line(&b, &a, &plain, 0).unwrap();
        for _ in 0..10 {
            assert!(other.offer(2, 1, 1000, 0, &mut rng).is_some());
        }
        assert_eq!(other.offer(2, 1, 1000, 0, &mut rng), None);
        // As in the model's own test: after 5 ms half of it is gone; at a tenth of the rate the
        // rest takes 50 ms.
        table.set_line(&b, &a, &plain.clone().rate(100_000), 5 * MS).unwrap();
        // The downlink of `a` adds 1000 bytes at 800 kB/s.
        assert_eq!(other.offer(2, 1, 1000, 5 * MS, &mut rng), Some(65 * MS + 1_250_000));
        for dead in [plain.clone().up(false), plain.clone().rate(0)] {
            table.set_line(&b, &a, &dead, 6 * MS).unwrap();
            assert_eq!(other.offer(2, 1, 1, 200 * MS, &mut rng), None);
        }
        table.set_line(&b, &a, &profile(), 300 * MS).unwrap();
        table.cut(&a, &a, true).unwrap();
        assert_eq!(other.offer(2, 1, 1000, 300 * MS, &mut rng), None);
        assert_eq!(other.offer(2, 3, 1000, 300 * MS, &mut rng).map(|at| at > 0), Some(true));
        // A line whose profile is set stays cut.
        let change = RouterChange::Line { from: b.clone(), to: a.clone(), profile: plain.clone() };
        table.change(&change, 300 * MS).unwrap();
        assert!(
            other
                .lines()
                .any(|(from, to, p, cut, _)| (from, to, p, cut) == (&b, &a, plain.clone(), true))
        );
        table.cut(&a, &b, false).unwrap();
        assert!(other.offer(2, 1, 1000, 300 * MS, &mut rng).is_some());
        assert_eq!(other.offer(3, 1, 1000, 300 * MS, &mut rng), None);
        // An uplink where none was.
        table.set_stub(&b, true, &profile().rate(10_000), 400 * MS).unwrap();
        assert!(other.offer(2, 1, 1000, 400 * MS, &mut rng).is_some_and(|at| at >= 500 * MS));
        let error = table.cut(&a, &"d".into(), true).unwrap_err().to_string();
        assert_eq!(error, "there is no cluster named \"d\": the topology has a, b, c");
    }

    #[test]
    fn slow_datagrams_delay_none_once_the_link_is_fast_again() {
        let (_dir, table) = made(&three());
        let (b, mut rng) = (ClusterId::from("b"), SplitMix(1));
        let of = |delay_ms| profile().delay(Duration::from_millis(delay_ms));
        let set = |profile: LinkProfile, now| table.set_line(&b, &b, &profile, now).unwrap();
        set(of(5000), 0);
        assert_eq!(table.offer(2, 2, 100, 0, &mut rng), Some(5000 * MS));
        // As long as the speed stays the same, so does the order.
        set(of(5000).loss(0.0).queue(5000), 50 * MS);
        set(of(10), 100 * MS);
        assert_eq!(table.offer(2, 2, 100, 200 * MS, &mut rng), Some(210 * MS));
        set(of(10).rate(1000), 300 * MS);
        assert_eq!(table.offer(2, 2, 2000, 300 * MS, &mut rng), Some(2310 * MS));
        set(of(10).rate(1_000_000), 300 * MS);
        assert_eq!(table.offer(2, 2, 1000, 300 * MS, &mut rng), Some(313 * MS));
    }

    #[test]
    fn a_change_is_atomic_for_concurrent_offers() {
        let (_dir, table) = made(&three());
        let (clock, is_over) = (AtomicU64::new(1), AtomicBool::new(false));
        let (fast, slow) = (profile().rate(10_000_000), profile().rate(20_000));
        let both = [fast.queue(10_000).loss(0.0), slow.queue(9_000).reorder(true)];
        let b = ClusterId::from("b");
        table.set_line(&b, &b, &both[0], 0).unwrap();
        let longest = thread::scope(|scope| {
            let user = |seed| {
                let (table, clock, is_over, both) = (&table, &clock, &is_over, &both);
                let line = LinkId::Line(b.clone(), b.clone());
                move || {
                    let (mut rng, mut longest) = (SplitMix(seed), 0);
                    while !is_over.load(Relaxed) {
                        let now = clock.fetch_add(MS / 10, Relaxed);
                        let at = table.offer(2, 2, 1000, now, &mut rng).unwrap_or_default();
                        // Other users may have advanced the clock, but never set it back.
                        longest = longest.max(at.saturating_sub(clock.load(Relaxed)));
                        assert!(both.contains(&table.profile(&line).unwrap()));
                    }
                    longest
                }
            };
            let users: Vec<_> = [1, 2].into_iter().map(|seed| scope.spawn(user(seed))).collect();
            for round in 1..20_000 {
                table.set_line(&b, &b, &both[round % 2], clock.load(Relaxed)).unwrap();
            }
            is_over.store(true, Relaxed);
            users.into_iter().map(|user| user.join().unwrap()).max()
        });
        // A full queue at the lower rate. A queue at one rate that is taken for one at the other
        // would be five hundred times longer.
        assert!(longest.is_some_and(|longest| longest <= 500 * MS), "{longest:?}");
    }

    #[test]
    fn after_a_change_no_more_waits_than_a_queue_holds() {
        let (_dir, table) = made(&three());
        let (b, mut rng) = (ClusterId::from("b"), SplitMix(1));
        let of = |rate| profile().rate(rate).queue(10_000);
        table.set_line(&b, &b, &of(10_000_000), 0).unwrap();
        // As if the link were free in a second, which a queue of 10 kB cannot cause at this rate.
        let line = table.line(1, 1);
        line.word(AT_FREE).fetch_or(1000 * MS, Relaxed);
        table.set_line(&b, &b, &of(20_000), 0).unwrap();
        assert_eq!(table.offer(2, 2, 1000, 50 * MS, &mut rng), Some(550 * MS));
    }

    #[test]
    fn addresses_are_those_of_the_topology() {
        let topology = three();
        let (_dir, table) = made(&topology);
        for (node, _, address) in topology.nodes() {
            assert_eq!(table.address(node.as_str()), Some(address));
        }
        for none in ["a-3", "a-0", "d-1", "a", "a-x"] {
            assert_eq!(table.address(none), None, "{none}");
        }
        let number = |text: &str| table.number_of(text.parse().unwrap());
        assert_eq!(number("127.77.3.1"), Some(3));
        assert_eq!(number("::ffff:127.77.2.1"), Some(2));
        assert_eq!((number("127.78.3.1"), number("::1")), (None, None));
        assert!(table.has(3) && !table.has(4) && !table.has(0));
        assert_eq!(table.offer(1, 4, 100, 0, &mut SplitMix(1)), None);
        assert_eq!(table.offer(0, 1, 100, 0, &mut SplitMix(1)), None);
    }

    #[test]
    fn invalid_tables_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.links");
        let found = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            LinkTable::open(&path).map(drop).unwrap_err()
        };
        assert!(matches!(LinkTable::open(&path), Err(TableError::Io { what: "open", .. })));
        for other in [&b""[..], b"sprt", b"[[cluster]]\nname = \"a\"\n", &[0; 4096]] {
            assert!(matches!(found(other), TableError::NotATable(_)));
        }
        LinkTable::create(&path, &three(), 1).unwrap();
        let right = fs::read(&path).unwrap();
        assert_eq!(right.len() as u64, bytes(words(3)));
        let with = |at: usize, word: u64| {
            let mut bytes = right.clone();
            bytes[8 * at..8 * at + 8].copy_from_slice(&word.to_ne_bytes());
            bytes
        };
        let version = found(&with(AT_VERSION, 9)).to_string();
        assert!(version.contains("version 9") && version.contains("create it again"), "{version}");
        for short in [8, 20, 63, 64, right.len() - 1] {
            assert!(matches!(found(&right[..short]), TableError::Truncated { .. }), "{short}");
        }
        assert!(matches!(found(&with(AT_SITES, 251)), TableError::NotATable(_)));
        assert!(matches!(found(&with(AT_MADE, u64::MAX)), TableError::Stale(_)));
        let mut long = three();
        long.sites[0].name = "x".repeat(33).as_str().into();
        assert!(matches!(LinkTable::create(&path, &long, 1), Err(TableError::Topology(_))));
        // No content of the file causes a panic.
        let mut rng = SplitMix(3);
        for _ in 0..200 {
            let mut bytes = right.clone();
            let start = 8 * (HEADER + SITE * 3);
            bytes[start..].chunks_mut(8).for_each(|word| {
                word.copy_from_slice(&(rng.next() | rng.next() | EXISTS).to_ne_bytes());
            });
            fs::write(&path, &bytes).unwrap();
            let table = LinkTable::open(&path).unwrap();
            for at in 0..20 {
                let _ =
                    table.offer(1 + at % 3, 1 + at % 2, 1200, rng.next() >> at, &mut SplitMix(1));
            }
            let line = profile().rate(5000);
            table.set_line(&"a".into(), &"b".into(), &line, rng.next()).unwrap();
        }
    }
}
