//! The links between clusters, and which of them lie on the way from one to another.
//!
//! Shared by both forms of the in-memory network, the user-space router and shaped sockets. Must not know what travels.

use std::collections::BTreeMap;
use std::time::Duration;

use super::link::{Link, LinkProfile};
use crate::id::ClusterId;
use crate::random::SplitMix;

/// The links of one direction between two clusters, by their place among all of a network's: the sender's uplink, the line, the
/// receiver's downlink.
pub type Path = Vec<usize>;

/// All links of a network.
pub struct Paths {
    seed: u64,
    inside: LinkProfile,
    between: LinkProfile,
    /// Every link of the network.
    pub(crate) links: Vec<Link>,
    lines: BTreeMap<(ClusterId, ClusterId), usize>,
    /// Uplinks (true) and downlinks of clusters.
    stubs: BTreeMap<(ClusterId, bool), usize>,
}

impl Paths {
    /// No links yet; those that are never set are like these, inside clusters and between them.
    pub fn new(seed: u64, inside: LinkProfile, between: LinkProfile) -> Self {
        let (links, lines, stubs) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        Self { seed, inside, between, links, lines, stubs }
    }

    /// The way from one cluster to another, or inside one.
    pub fn path(&mut self, clusters: &(ClusterId, ClusterId)) -> Path {
        let (from, to) = clusters;
        let line = self.line(clusters);
        if from == to {
            return vec![line];
        }
        let up = self.stubs.get(&(from.clone(), true));
        let down = self.stubs.get(&(to.clone(), false));
        up.into_iter().chain([&line]).chain(down).copied().collect()
    }

    /// Offers a datagram of `len` bytes to the links of a path, one after the other. Returns when it arrives, or `None` when it is lost.
    ///
    /// # Panics
    /// If the path is another network's.
    pub fn offer(&mut self, path: &Path, now: Duration, len: usize) -> Option<Duration> {
        path.iter().try_fold(now, |at, link| self.links[*link].offer(at, len))
    }

    /// What the line from one cluster to another is like; `None` where it was never asked for.
    pub fn line_profile(&self, clusters: &(ClusterId, ClusterId)) -> Option<&LinkProfile> {
        self.lines.get(clusters).map(|line| self.links[*line].profile())
    }

    /// Uplinks (true) and downlinks of clusters that were set.
    pub fn stub_profiles(&self) -> impl Iterator<Item = (&ClusterId, bool, &LinkProfile)> {
        let stubs = self.stubs.iter();
        stubs.map(|((cluster, up), link)| (cluster, *up, self.links[*link].profile()))
    }

    fn line(&mut self, clusters: &(ClusterId, ClusterId)) -> usize {
        let (from, to) = clusters;
        if let Some(line) = self.lines.get(clusters) {
            return *line;
        }
        let profile = if from == to { &self.inside } else { &self.between };
        let line = self.new_link(profile.clone(), from, to);
        self.lines.insert(clusters.clone(), line);
        line
    }

    /// A link whose history depends on the seed and its place alone, not on when it was first used.
    fn new_link(&mut self, profile: LinkProfile, from: &ClusterId, to: &ClusterId) -> usize {
        let SplitMix(seed) = SplitMix::of(self.seed, &format!("{from}>{to}"));
        self.links.push(Link::new(profile, seed));
        self.links.len() - 1
    }

    /// Sets the line from one cluster to another, or inside one.
    pub fn set_line(
        &mut self,
        clusters: &(ClusterId, ClusterId),
        profile: LinkProfile,
        now: Duration,
    ) {
        let line = self.line(clusters);
        self.links[line].set_profile(profile, now);
    }

    /// Sets a cluster's uplink (`up`) or downlink. Paths that were asked for before may be others now.
    pub fn set_stub(&mut self, cluster: &ClusterId, up: bool, profile: LinkProfile, now: Duration) {
        let key = (cluster.clone(), up);
        match self.stubs.get(&key) {
            Some(link) => self.links[*link].set_profile(profile, now),
            None => {
                let wan = ClusterId::from("");
                let (from, to) = if up { (cluster, &wan) } else { (&wan, cluster) };
                let link = self.new_link(profile, from, to);
                self.stubs.insert(key, link);
            }
        }
    }
}
