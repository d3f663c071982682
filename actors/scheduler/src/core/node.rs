//! A node of the grid: its state and its job, the program that it runs, and its drain.

use std::collections::BTreeMap;

use springtide_base::id::{ClusterId, Incarnation, JobId, NodeId};
use springtide_base::processors::Processors;
use springtide_net::membership::Member;
use tokio::time::Instant;

use super::speeds::Unit;
use crate::policy::malleability::HostShare;
use crate::program::ProgramDigest;
use crate::scheduler::{CrowdedHost, NodeRegistration, NodeState, NodeStatus, Submit};

/// A node with its state in the scheduler.
#[derive(Debug)]
pub(super) struct PoolNode {
    pub(super) cluster: ClusterId,
    pub(super) state: PoolNodeState,
    /// Its last registration.
    pub(super) registration: Option<NodeRegistration>,
    /// Reason why it is absent.
    pub(super) reason: Option<String>,
    /// Last job whose program it was started with.
    pub(super) tried: Option<JobId>,
    /// Its drain, if any.
    pub(super) drain: Option<DrainMark>,
    /// Job that it is kept for, until it is granted.
    pub(super) reserved: Option<JobId>,
    /// Time since which it is idle or being started.
    pub(super) since: Option<Instant>,
    /// Whether it joins by itself instead of being started by a site.
    pub(super) joins: bool,
    /// Time at which a silent node that joined by itself counts as lost.
    pub(super) lost_at: Option<Instant>,
    /// Compute threads that its site starts it with; 0: unknown.
    pub(super) threads: u32,
    /// Its share of a host, from the order to start it until its end.
    pub(super) share: Option<HostShare>,
}

/// State of a node in the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PoolNodeState {
    Starting,
    Idle,
    /// Held by a job, from its selection until it is reported free.
    Busy(JobId),
    /// Runs a benchmark.
    Measuring(Unit),
    Broken,
    /// No process exists, and none is requested.
    Off,
    /// The process is being stopped.
    Closing,
}

/// Drain of a node.
#[derive(Debug)]
pub(super) struct DrainMark {
    pub(super) reason: String,
    /// Time at which the node stops in any case.
    pub(super) until: Option<Instant>,
    /// Incarnation that ends the drain with its own end.
    pub(super) incarnation: Option<Incarnation>,
    /// Whether the job was asked to release the node.
    pub(super) asked: bool,
    /// Earliest time of the next order to the job.
    pub(super) not_before: Option<Instant>,
    /// Time at which the job is asked although no replacement has joined; absent: the job needs to
    /// wait for none.
    pub(super) replace_until: Option<Instant>,
    /// Number of its processors that have replacements already.
    pub(super) replaced: u32,
}

/// Identity of a program, by which nodes are matched with jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProgramKey {
    /// Fingerprint of its registry.
    pub(super) fingerprint: u64,
    /// Digest of its file, if the job brings it.
    pub(super) digest: Option<ProgramDigest>,
}

impl PoolNode {
    /// A node that is being started.
    pub(super) fn new(cluster: ClusterId) -> Self {
        let state = PoolNodeState::Starting;
        Self {
            cluster,
            state,
            registration: None,
            reason: None,
            tried: None,
            drain: None,
            reserved: None,
            since: None,
            joins: false,
            lost_at: None,
            threads: 0,
            share: None,
        }
    }

    /// Makes the node idle.
    pub(super) fn mark_idle(&mut self, now: Instant) {
        (self.state, self.since) = (PoolNodeState::Idle, Some(now));
    }

    /// Marks the node as being started.
    pub(super) fn mark_starting(&mut self, now: Instant) {
        (self.state, self.since) = (PoolNodeState::Starting, Some(now));
    }

    /// Marks the node as having no process.
    pub(super) fn turn_off(&mut self, reason: Option<String>) {
        (self.state, self.reason, self.reserved, self.registration) =
            (PoolNodeState::Off, reason, None, None);
        self.share = None;
        // A drain of one incarnation ends with it.
        self.drain = self.drain.take().filter(|mark| mark.incarnation.is_none());
    }

    /// Whether the node may be granted.
    pub(super) fn is_free(&self) -> bool {
        self.state == PoolNodeState::Idle && self.drain.is_none() && self.reserved.is_none()
    }

    /// Whether a process may be requested.
    pub(super) fn is_off(&self) -> bool {
        self.state == PoolNodeState::Off && self.drain.is_none()
    }

    /// Whether nothing runs on the node.
    pub(super) fn is_empty(&self) -> bool {
        !matches!(self.state, PoolNodeState::Busy(_) | PoolNodeState::Measuring(_))
    }

    /// Whether jobs may rely on the node.
    pub(super) fn works(&self) -> bool {
        // A node that has not joined may never do so.
        let away = self.joins && self.state == PoolNodeState::Off;
        self.state != PoolNodeState::Broken && !away && self.drain.is_none()
    }

    /// Its processors: those of its share or its registration, or those that it is started with. A
    /// node of unknown size counts as one.
    pub(super) fn processors(&self) -> Processors {
        let shared = || self.share.as_ref().map_or(self.threads, |s| s.processors.len() as u32);
        Processors::of_node(self.registration.as_ref().map_or_else(shared, |known| known.threads))
    }

    /// The registration, if the node runs this program.
    pub(super) fn running(&self, program: ProgramKey) -> Option<&NodeRegistration> {
        let runs = |known: &&NodeRegistration| program.is_of(known.fingerprint, known.program);
        self.registration.as_ref().filter(runs)
    }

    /// Its status for users.
    pub(super) fn status(&self, id: &NodeId) -> NodeStatus {
        let registration = self.registration.as_ref();
        let (state, job) = match (self.state, &self.drain) {
            (PoolNodeState::Starting, _) => (NodeState::Starting, self.reserved),
            (PoolNodeState::Broken, _) => (NodeState::Broken, None),
            (PoolNodeState::Off, _) => (NodeState::Off, None),
            (PoolNodeState::Closing, _) => (NodeState::Closing, None),
            (PoolNodeState::Idle, None) => match self.reserved {
                Some(job) => (NodeState::Held, Some(job)),
                None => (NodeState::Idle, None),
            },
            (PoolNodeState::Idle, Some(_)) => (NodeState::Drained, None),
            (PoolNodeState::Busy(job), None) => (NodeState::Busy, Some(job)),
            (PoolNodeState::Busy(job), Some(_)) => (NodeState::Draining, Some(job)),
            (PoolNodeState::Measuring(_), None) => (NodeState::Measuring, None),
            (PoolNodeState::Measuring(_), Some(_)) => (NodeState::Draining, None),
        };
        let drained = || self.drain.as_ref().map(|mark| mark.reason.clone());
        NodeStatus {
            node: id.clone(),
            state,
            job,
            threads: registration.map(|registration| registration.threads),
            pid: registration.map(|registration| registration.pid),
            incarnation: registration.map(|registration| registration.incarnation),
            address: registration.map(|registration| registration.address.clone()),
            reason: self.reason.clone().or_else(drained),
            next_try_ms: None,
        }
    }
}

impl DrainMark {
    /// A drain that lasts until the node is put back into service.
    pub(super) fn lasting(reason: String) -> Self {
        Self {
            reason,
            until: None,
            incarnation: None,
            asked: false,
            not_before: None,
            replace_until: None,
            replaced: 0,
        }
    }

    /// A mark of a node whose process has ended for a reason that is not a fault of its job.
    pub(super) fn excused(reason: String, incarnation: Incarnation, now: Instant) -> Self {
        Self { until: Some(now), incarnation: Some(incarnation), ..Self::lasting(reason) }
    }

    /// Whether the node's process ends at a known time, even if its job keeps the node.
    pub(super) fn is_revocation(&self) -> bool {
        self.incarnation.is_some() && self.until.is_some()
    }

    /// The time that a revocation gives to replacements: half of the announced time, or less if an
    /// earlier announcement left less.
    pub(super) fn replacement_time(&self, earlier: Option<&Self>, now: Instant) -> Option<Instant> {
        let until = self.until.filter(|_| self.is_revocation())?;
        let half = now + until.saturating_duration_since(now) / 2;
        match earlier.filter(|earlier| earlier.is_revocation()) {
            Some(earlier) => earlier.replace_until.map(|at| at.min(half)),
            None => Some(half),
        }
    }
}

impl ProgramKey {
    /// The program of a submission.
    pub(super) fn of(submit: &Submit) -> Self {
        let digest = submit.image.as_ref().map(|image| image.digest);
        Self { fingerprint: submit.fingerprint, digest }
    }

    /// Whether a node with this fingerprint and, for a program that a job brought, this digest can
    /// execute the job. Equal fingerprints do not distinguish two versions that users build.
    pub(super) fn is_of(&self, fingerprint: u64, digest: Option<ProgramDigest>) -> bool {
        let differs = matches!((self.digest, digest), (Some(own), Some(other)) if own != other);
        self.fingerprint == fingerprint && !differs
    }
}

/// Hosts whose running nodes have more compute threads than processors.
pub(super) fn crowded<'a>(nodes: impl Iterator<Item = &'a PoolNode>) -> Vec<CrowdedHost> {
    let mut hosts: BTreeMap<u64, CrowdedHost> = BTreeMap::new();
    let runs = |node: &&PoolNode| {
        !matches!(node.state, PoolNodeState::Starting | PoolNodeState::Broken | PoolNodeState::Off)
    };
    for registration in nodes.filter(runs).filter_map(|node| node.registration.as_ref()) {
        let usable = &registration.hardware.usable;
        if usable.is_unknown() {
            continue;
        }
        let (host, processors) = (usable.host.clone(), usable.processors);
        let new = || CrowdedHost { host, nodes: 0, threads: 0, processors };
        let crowded = hosts.entry(usable.key).or_insert_with(new);
        crowded.nodes += 1;
        crowded.threads = crowded.threads.saturating_add(registration.threads);
    }
    hosts.into_values().filter(|host| host.threads > host.processors).collect()
}

/// Converts a registered node to a member of a view.
pub(super) fn member(registration: &NodeRegistration) -> Member {
    Member {
        incarnation: registration.incarnation,
        cluster: registration.cluster.clone(),
        address: registration.address.clone(),
        threads: registration.threads,
        leaving: false,
    }
}
