//! Clusters of the grid: their nodes, hosts that fail, and offers of free nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use springtide_base::id::{ClusterId, NodeId};
use springtide_base::processors::Processors;
use tokio::time::Instant;

use super::choose::{FreeNode, is_rate};
use super::event::SchedulerAction;
use super::node::{DrainMark, PoolNode, PoolNodeState, ProgramKey};
use super::speeds::{Speeds, Unit};
use super::stubs::OnDemand;
use super::{ActiveJob, SchedulerCore};
use crate::policy::malleability::HostCapacity;
use crate::policy::{NodeOffer, OfferedNode};
use crate::scheduler::{NodeRegistration, NodeStatus, SiteRegistration};

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

/// A host on which nodes do not start.
#[derive(Debug)]
pub(super) struct HostFailure {
    /// The last reason.
    pub(super) reason: String,
    /// Time at which it is tried again.
    pub(super) until: Instant,
    /// Time for which it is left out.
    pub(super) left_out: Duration,
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
