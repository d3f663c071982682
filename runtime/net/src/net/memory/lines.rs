//! The state of the in-memory network, continued: its lines and their changes, and statistics.

use std::collections::BTreeMap;
use std::time::Duration;

use super::pipe::Pipe;
use super::state::{Call, NetworkEvent, NetworkState, NodeIndex, NodeRef, Payload, Traffic};
use crate::checksum;
use crate::id::{ClusterId, NodeId};
use crate::net::{Class, LinkProfile, LinkState, LinkStats, RefusedCounts};

impl NetworkState {
    pub(super) fn pipe(&mut self, from: NodeIndex, to: NodeIndex) -> usize {
        let (one, other) = (self.nodes[from].cluster, self.nodes[to].cluster);
        if let Some(Some(pipe)) = self.pipe_by_indices[one].get(other) {
            return *pipe as usize;
        }
        let clusters = (self.nodes[from].peer.cluster.clone(), self.nodes[to].peer.cluster.clone());
        let pipe = self.pipe_between(clusters);
        let row = &mut self.pipe_by_indices[one];
        row.resize(row.len().max(other + 1), None);
        // A pipe with a larger number is found by the names of its clusters.
        row[other] = u32::try_from(pipe).ok();
        pipe
    }

    fn pipe_between(&mut self, clusters: (ClusterId, ClusterId)) -> usize {
        if let Some(pipe) = self.pipe_by_clusters.get(&clusters) {
            return *pipe;
        }
        let path = self.paths.path(&clusters);
        self.pipes.push(Pipe::new(path));
        self.pipe_by_clusters.insert(clusters, self.pipes.len() - 1);
        self.pipes.len() - 1
    }

    pub(super) fn set_line(
        &mut self,
        from: &ClusterId,
        to: &ClusterId,
        profile: LinkProfile,
        now: Duration,
    ) {
        let clusters = (from.clone(), to.clone());
        let pipe = self.pipe_between(clusters.clone());
        self.paths.set_line(&clusters, profile, now.max(self.event_time));
        self.update_pipe(pipe, now);
    }

    pub(super) fn set_stub(
        &mut self,
        cluster: &ClusterId,
        up: bool,
        profile: LinkProfile,
        now: Duration,
    ) {
        self.paths.set_access_link(cluster, up, profile, now.max(self.event_time));
        let pipes: Vec<_> = self
            .pipe_by_clusters
            .iter()
            .map(|(clusters, pipe)| (clusters.clone(), *pipe))
            .collect();
        for (clusters, pipe) in pipes {
            self.pipes[pipe].path = self.paths.path(&clusters);
            self.update_pipe(pipe, now);
        }
    }

    pub(super) fn partition(&mut self, a: &ClusterId, b: &ClusterId, cut: bool, now: Duration) {
        for (from, to) in [(a, b), (b, a)] {
            let pipe = self.pipe_between((from.clone(), to.clone()));
            self.pipes[pipe].cut = cut;
            self.update_pipe(pipe, now);
        }
    }

    /// Updates a pipe after a change of its links, which may close or open it.
    pub(super) fn update_pipe(&mut self, pipe: usize, now: Duration) {
        let now = now.max(self.event_time);
        if self.pipes[pipe].is_open(&self.paths.links) {
            self.outages.remove(&pipe);
            self.pump(pipe, now);
        } else if !self.outages.contains_key(&pipe) {
            self.seq += 1;
            let since = self.seq;
            self.outages.insert(pipe, since);
            self.schedule(now + self.config.idle_timeout, NetworkEvent::Outage { pipe, since });
        }
    }

    /// Closes all links between two clusters at both sides.
    pub(super) fn handle_outage(&mut self, pipe: usize, calls: &mut Vec<Call>) {
        let Some((from, to)) =
            self.pipe_by_clusters.iter().find(|(_, p)| **p == pipe).map(|(c, _)| c.clone())
        else {
            return;
        };
        let mut ends = Vec::new();
        for (index, node) in self.nodes.iter().enumerate() {
            let here = &node.peer.cluster;
            for (peer, end) in &node.ends {
                let there = &self.nodes[*peer].peer.cluster;
                let between = (here, there) == (&from, &to) || (there, here) == (&from, &to);
                if between && end.state == LinkState::Up {
                    ends.push((index, *peer, end.link));
                }
            }
        }
        for (node, peer, link) in ends {
            // A stopped process detects this when it resumes, before later events.
            let silent = NetworkEvent::Silent { node, peer, link };
            if self.unless_stopped(silent).is_some() {
                self.down(node, peer, "no message within the idle timeout", calls);
            }
        }
    }
}

/// Statistics of nodes and links.
impl NetworkState {
    pub(super) fn room(&self, me: &NodeRef, to: &NodeId, class: Class) -> usize {
        let (Some(index), Some(peer)) = (self.running(me), self.by_name(to)) else { return 0 };
        let node = &self.nodes[index];
        match node.ends.get(&peer) {
            Some(end) => self.config.queue_bytes.saturating_sub(end.queued_bytes(class)),
            None if node.contacts.contains(&peer) => self.config.queue_bytes,
            None => 0,
        }
    }

    pub(super) fn link_stats(&self, me: &NodeRef) -> Vec<LinkStats> {
        let Some(index) = self.running(me) else { return Vec::new() };
        let mut stats: Vec<LinkStats> = self.nodes[index]
            .ends
            .iter()
            .map(|(peer, end)| end.stats(&self.nodes[*peer].peer))
            .collect();
        stats.sort_by(|a, b| a.peer.node.cmp(&b.peer.node));
        stats
    }

    pub(super) fn round_trips(&self, me: &NodeRef) -> Vec<(ClusterId, Duration)> {
        let Some(index) = self.running(me) else { return Vec::new() };
        let up = self.nodes[index].ends.iter().filter(|(_, end)| end.state == LinkState::Up);
        let far = up.filter_map(|(peer, end)| Some((&self.nodes[*peer].peer, end.rtt()?)));
        far.map(|(peer, rtt)| (peer.cluster.clone(), rtt)).collect()
    }

    pub(super) fn bytes_out(&self, me: &NodeRef) -> Vec<(NodeId, u64)> {
        let Some(index) = self.running(me) else { return Vec::new() };
        let ends = self.nodes[index].ends.iter();
        ends.map(|(peer, end)| (self.nodes[*peer].peer.node.clone(), end.bytes_out())).collect()
    }

    pub(super) fn refused(&self, me: &NodeRef) -> RefusedCounts {
        self.running(me).map(|index| self.nodes[index].refused.clone()).unwrap_or_default()
    }

    pub(super) fn traffic(&self) -> BTreeMap<(ClusterId, ClusterId), Traffic> {
        self.pipe_by_clusters
            .iter()
            .filter_map(|(clusters, pipe)| {
                let traffic = self.traffic.get(pipe)?;
                Some((clusters.clone(), Traffic { lost: self.pipes[*pipe].lost, ..*traffic }))
            })
            .collect()
    }

    pub(super) fn digest(&self) -> u64 {
        self.digest
    }

    /// Adds an arrival to the digest: FNV-1a over time, ends, class, kind and length.
    pub(super) fn digest_arrival(
        &mut self,
        now: Duration,
        from: NodeIndex,
        to: NodeIndex,
        class: Class,
        payload: &Payload,
    ) {
        let (kind, len) = match payload {
            Payload::Hello(_) => (1, 0),
            Payload::Welcome(_) => (2, 0),
            Payload::Refuse(_) => (3, 0),
            Payload::Goodbye(_) => (4, 0),
            Payload::Frame(frame) => (u64::from(frame.kind.0), frame.body.len() as u64),
        };
        let nanos = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        fnv(&mut self.digest, &[nanos, from as u64, to as u64, class as u64, kind, len]);
    }
}

/// The initial value of a digest.
pub(super) const DIGEST: u64 = checksum::START;

/// Adds numbers to a digest, by FNV-1a.
pub(super) fn fnv(digest: &mut u64, words: &[u64]) {
    let bytes = words.iter().flat_map(|word| word.to_le_bytes());
    *digest = checksum::checksum_from(*digest, bytes);
}
