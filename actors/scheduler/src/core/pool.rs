//! The nodes of the grid: their states, their jobs, and offers of free nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use springtide_base::id::{ClusterId, JobId, NodeId};
use springtide_base::processors::Processors;
use springtide_net::membership::Member;
use tokio::time::Instant;

use super::choose::{FreeNode, is_rate};
use super::drain::DrainMark;
use super::event::SchedulerAction;
use super::hosts::HostFailure;
use super::programs::ProgramKey;
use super::speeds::{Speeds, Unit};
use super::stubs::OnDemand;
use super::{ActiveJob, SchedulerCore};
use crate::policy::malleability::{HostCapacity, HostShare};
use crate::policy::{NodeOffer, OfferedNode};
use crate::scheduler::{CrowdedHost, NodeRegistration, NodeState, NodeStatus, SiteRegistration};

/// Nodes and properties of a cluster.
#[derive(Debug)]
pub(super) struct ClusterPool {
    pub(super) nodes: BTreeSet<NodeId>,
    pub(super) starts_programs: bool,
    pub(super) receives_programs: bool,
    /// State of a site with processors on demand. Absent: its nodes always exist.
    pub(super) on_demand: Option<OnDemand>,
    /// Whether its nodes join by themselves.
    pub(super) joins: bool,
    /// Process of the site, if that is not the scheduler's.
    pub(super) at: Option<NodeId>,
    /// Time of the next check of its nodes, while its process is silent.
    pub(super) look_at: Option<Instant>,
    /// Hosts whose shares its nodes are given; empty: its nodes have a fixed size.
    pub(super) hosts: Vec<HostCapacity>,
    /// Hosts that are left out for a time.
    pub(super) host_failures: BTreeMap<String, HostFailure>,
    /// The last times for which hosts were left out that are in use again.
    pub(super) former_failures: BTreeMap<String, Duration>,
}

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

impl PoolNode {
    fn new(cluster: ClusterId) -> Self {
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

    fn status(&self, id: &NodeId) -> NodeStatus {
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

impl SchedulerCore {
    pub(super) fn node_statuses(&self) -> impl Iterator<Item = (&ClusterId, NodeStatus)> {
        // Of the many names in a cluster of hosts, most have no share.
        let listed = self
            .nodes
            .iter()
            .filter(|(_, node)| node.state != PoolNodeState::Off || !self.has_hosts(&node.cluster));
        listed.map(|(id, node)| (&node.cluster, node.status(id)))
    }

    pub(super) fn site_up(
        &mut self,
        site: &SiteRegistration,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        let SiteRegistration { cluster, nodes, starts_programs, .. } = site;
        for id in nodes {
            let node =
                self.nodes.entry(id.clone()).or_insert_with(|| PoolNode::new(cluster.clone()));
            (node.joins, node.threads) = (site.joins, site.threads);
            if node.state == PoolNodeState::Starting && node.tried.take().is_some() {
                node.reason = None; // the order that it waits for may be lost
            }
            if let Some(share) = site.shares.get(id) {
                node.share = Some(share.clone());
            }
            if node.joins && node.registration.is_none() && node.state == PoolNodeState::Starting {
                node.state = PoolNodeState::Off; // it was created here
            }
            if let Some(reason) = self.marks.remove(id) {
                node.drain = Some(DrainMark::lasting(reason));
                self.marked.insert(id.clone());
            }
        }
        let before = self.sites.remove(cluster);
        let (on_demand, host_failures, former_failures) = before
            .map_or_else(Default::default, |site| {
                (site.on_demand, site.host_failures, site.former_failures)
            });
        let nodes = nodes.iter().cloned().collect();
        let (starts_programs, look_at) = (*starts_programs, None);
        let at = site.at.as_ref().map(|at| at.node.clone());
        let joins = site.joins;
        let known = ClusterPool {
            nodes,
            starts_programs,
            receives_programs: site.receives_programs,
            on_demand,
            joins,
            at,
            look_at,
            hosts: site.hosts.clone(),
            host_failures,
            former_failures,
        };
        self.sites.insert(cluster.clone(), known);
        self.record_file_server(cluster, site.files);
        self.programs.restart(cluster);
        self.stubs_up(site, now, out);
        self.site_back(site, now, out);
    }

    pub(super) fn registered(
        &mut self,
        registration: NodeRegistration,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        let Some(node) = self.nodes.get(&registration.node) else {
            return; // it belongs to no site, which could start or stop it
        };
        if let Some(known) = &node.registration {
            if known.incarnation > registration.incarnation {
                return; // a late message of an earlier incarnation
            }
            if known.incarnation < registration.incarnation && !node.is_empty() {
                let reason = "it was restarted".to_owned();
                self.node_lost(&registration.node.clone(), &reason, true, now, out);
            }
        }
        let Some(node) = self.nodes.get_mut(&registration.node) else { return };
        if node.is_empty() && node.state != PoolNodeState::Closing {
            node.mark_idle(now);
        }
        if node
            .drain
            .as_ref()
            .is_some_and(|mark| mark.incarnation.is_some_and(|l| l != registration.incarnation))
        {
            node.drain = None; // it drained itself before it stopped
        }
        (node.reason, node.lost_at) = (None, None);
        // For a known incarnation, the state here is newer than a message that may be late. An
        // exception is a node that outlived an earlier scheduler.
        let is_new = node
            .registration
            .as_ref()
            .is_none_or(|known| known.incarnation != registration.incarnation);
        let (id, work) = (registration.node.clone(), registration.work.clone());
        if is_new {
            // A broken link was that of an earlier incarnation.
            self.unreachable.remove(&id);
        }
        let cluster = registration.cluster.clone();
        node.registration = Some(NodeRegistration { work: None, ..registration });
        self.awaited.remove(&id);
        self.host_works(&id);
        self.capacity_granted(&cluster, now, out);
        let work = work.filter(|work| is_new || self.returning.contains_key(&work.job));
        if let Some(work) = work {
            self.register_work(&id, &work, out);
        }
    }

    /// Clusters with nodes that jobs in the queue wait for. Their free nodes are granted to no
    /// other job.
    pub(super) fn wanted(&self) -> BTreeSet<&ClusterId> {
        let mut wanted = BTreeSet::new();
        for waiting in self.queue.iter().filter(|waiting| !waiting.blocked) {
            match &waiting.submit.clusters {
                Some(clusters) => wanted.extend(clusters.keys()),
                None => wanted.extend(self.sites.keys()),
            }
        }
        wanted
    }

    /// Nodes that could be granted to a running job now.
    pub(super) fn free_for<'a>(
        &'a self,
        job: &ActiveJob,
    ) -> impl Iterator<Item = (&'a NodeId, &'a NodeRegistration)> {
        let (program, wanted) = (job.program, self.wanted());
        self.nodes.iter().filter_map(move |(id, node)| {
            let registration = node.running(program)?;
            let free = node.is_free() && self.is_heard(id);
            (free && !wanted.contains(&node.cluster)).then_some((id, registration))
        })
    }

    /// Free nodes that run this program, including those that the queue waits for.
    pub(super) fn free_running(
        &self,
        program: ProgramKey,
    ) -> impl Iterator<Item = (&NodeId, &NodeRegistration)> {
        let free = self.nodes.iter().filter(|(_, node)| node.is_free());
        free.filter_map(move |(id, node)| Some((id, node.running(program)?)))
    }

    /// Properties of the free nodes that run this program, for a selection.
    pub(super) fn candidates_for(
        &self,
        unit: Option<Unit>,
        program: ProgramKey,
        now: Instant,
    ) -> BTreeMap<NodeId, FreeNode> {
        self.free_running(program)
            .map(|(id, registration)| (id.clone(), self.candidate_of(unit, registration, now)))
            .collect()
    }

    pub(super) fn candidate_of(
        &self,
        unit: Option<Unit>,
        registration: &NodeRegistration,
        now: Instant,
    ) -> FreeNode {
        FreeNode {
            cluster: registration.cluster.clone(),
            speed: self.speeds.best(unit, registration, now),
            threads: registration.threads,
            hardware: registration.hardware.clone(),
        }
    }

    /// Properties of the nodes that could be granted to a running job.
    pub(super) fn candidates(&self, job: &ActiveJob, now: Instant) -> BTreeMap<NodeId, FreeNode> {
        let of = |registration| self.candidate_of(job.unit, registration, now);
        self.free_for(job).map(|(id, registration)| (id.clone(), of(registration))).collect()
    }

    /// Nodes that could be granted to a running job, as offers for its policy.
    pub(super) fn offers_for(
        &self,
        job: &ActiveJob,
        now: Instant,
    ) -> BTreeMap<ClusterId, NodeOffer> {
        let mut offers: BTreeMap<ClusterId, NodeOffer> = BTreeMap::new();
        for (id, registration) in self.free_for(job) {
            let offer = offers.entry(registration.cluster.clone()).or_insert_with(|| NodeOffer {
                bandwidth: job
                    .open
                    .bandwidth
                    .get(&registration.cluster)
                    .copied()
                    .filter(|&b| is_rate(b)),
                rtt_s: job
                    .open
                    .rtt_s
                    .get(&registration.cluster)
                    .copied()
                    .filter(|&s| s >= 0.0 && s.is_finite()),
                ..NodeOffer::default()
            });
            let processors = Processors::of_node(registration.threads);
            offer.smallest = match offer.smallest {
                Processors::ZERO => processors,
                smallest => smallest.min(processors),
            };
            offer.free = offer.free.saturating_add(processors);
            offer_speed(offer, &self.speeds, job.unit, (id, registration), now);
        }
        offers
    }
}

/// Adds the speed of a node's processors under its name, or that of its kind. The offer's speed is
/// that of the slowest kind, so that it never promises too much.
fn offer_speed(
    offer: &mut NodeOffer,
    speeds: &Speeds,
    unit: Option<Unit>,
    (id, registration): (&NodeId, &NodeRegistration),
    now: Instant,
) {
    let processors = Processors::of_node(registration.threads);
    let of_one = |speed: f64| speed / f64::from(processors);
    if let Some(own) = speeds.own(unit, id, now) {
        offer.nodes.insert(id.clone(), OfferedNode { processors, speed: of_one(own) });
    } else if let Some(kind) = speeds.best(unit, registration, now).map(of_one) {
        offer.speed = Some(offer.speed.map_or(kind, |slowest| slowest.min(kind)));
    }
}
