//! The links between clusters, and the path of a datagram from one cluster to another.
//!
//! Both kinds of in-memory network, the user-space router and shaped sockets share it. This module
//! does not know the traffic.

use std::collections::BTreeMap;
use std::time::Duration;

use super::link::{DropCause, Link, LinkProfile};
use crate::id::ClusterId;
use crate::random::SplitMix;

/// The links of one direction between two clusters, by index: the sender's uplink, the line, the
/// receiver's downlink.
pub type Path = Vec<usize>;

/// All links of a network, between and inside clusters.
pub struct Paths {
    seed: u64,
    inside: LinkProfile,
    between: LinkProfile,
    /// All links, in order of creation.
    pub(crate) links: Vec<Link>,
    lines: BTreeMap<(ClusterId, ClusterId), usize>,
    /// Uplinks (true) and downlinks of clusters.
    access_links: BTreeMap<(ClusterId, bool), usize>,
}

impl Paths {
    /// A network without links. `inside` and `between` are the profiles of links that are never
    /// set.
    pub fn new(seed: u64, inside: LinkProfile, between: LinkProfile) -> Self {
        let (links, lines, access_links) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        Self { seed, inside, between, links, lines, access_links }
    }

    /// The path from one cluster to another, or inside one.
    pub fn path(&mut self, clusters: &(ClusterId, ClusterId)) -> Path {
        let (from, to) = clusters;
        let line = self.line(clusters);
        if from == to {
            return vec![line];
        }
        let up = self.access_links.get(&(from.clone(), true));
        let down = self.access_links.get(&(to.clone(), false));
        up.into_iter().chain([&line]).chain(down).copied().collect()
    }

    /// Offers a datagram of `len` bytes to the links of a path in order. Returns its arrival time,
    /// or `None` if it is lost.
    ///
    /// # Panics
    /// The path belongs to another network.
    pub fn offer(&mut self, path: &Path, now: Duration, len: usize) -> Option<Duration> {
        self.try_offer(path, now, len).ok()
    }

    /// Offers a datagram of `len` bytes to the links of a path in order. Returns its arrival time.
    ///
    /// # Errors
    /// A link does not carry the datagram.
    ///
    /// # Panics
    /// The path belongs to another network.
    pub fn try_offer(
        &mut self,
        path: &Path,
        now: Duration,
        len: usize,
    ) -> Result<Duration, DropCause> {
        path.iter().try_fold(now, |at, link| self.links[*link].try_offer(at, len))
    }

    /// The bytes that wait in the queue of the line from one cluster to another; 0 if the line was
    /// never used.
    pub fn line_queue(&mut self, clusters: &(ClusterId, ClusterId), now: Duration) -> usize {
        self.lines.get(clusters).map_or(0, |line| self.links[*line].queued(now))
    }

    /// The bytes that wait in the queue of a cluster's uplink (`up`) or downlink; 0 if there is no
    /// such link.
    pub fn access_link_queue(&mut self, cluster: &ClusterId, up: bool, now: Duration) -> usize {
        let link = self.access_links.get(&(cluster.clone(), up));
        link.map_or(0, |link| self.links[*link].queued(now))
    }

    /// Profile of the line from one cluster to another; `None` if the line was never used.
    pub fn line_profile(&self, clusters: &(ClusterId, ClusterId)) -> Option<&LinkProfile> {
        self.lines.get(clusters).map(|line| self.links[*line].profile())
    }

    /// The uplinks (true) and downlinks of clusters that were set, with their profiles.
    pub fn access_link_profiles(&self) -> impl Iterator<Item = (&ClusterId, bool, &LinkProfile)> {
        let access_links = self.access_links.iter();
        access_links.map(|((cluster, up), link)| (cluster, *up, self.links[*link].profile()))
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

    /// Creates a link whose history depends on the seed and its two ends, not on the time of its
    /// first use.
    fn new_link(&mut self, profile: LinkProfile, from: &ClusterId, to: &ClusterId) -> usize {
        let SplitMix(seed) = SplitMix::with_text(self.seed, &format!("{from}>{to}"));
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

    /// Sets a cluster's uplink (`up`) or downlink. Paths that were returned earlier may be outdated
    /// afterwards.
    pub fn set_access_link(
        &mut self,
        cluster: &ClusterId,
        up: bool,
        profile: LinkProfile,
        now: Duration,
    ) {
        let key = (cluster.clone(), up);
        match self.access_links.get(&key) {
            Some(link) => self.links[*link].set_profile(profile, now),
            None => {
                let wan = ClusterId::from("");
                let (from, to) = if up { (cluster, &wan) } else { (&wan, cluster) };
                let link = self.new_link(profile, from, to);
                self.access_links.insert(key, link);
            }
        }
    }
}
