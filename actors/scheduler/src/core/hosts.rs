//! Clusters whose nodes are as large as jobs need: each node is given a share of a host.
//!
//! A node has a share from the order to start it until it has ended. The share of an idle node
//! counts as free: the node ends when another one needs a part of it. This module must not decide
//! how many processors a job gets.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use springtide_base::id::{ClusterId, JobId, NodeId};
use tokio::time::Instant;

use super::SchedulerCore;
use super::event::SchedulerAction;
use super::managed::{KnownCapacity, NodeUse};
use super::node::{DrainMark, PoolNode, PoolNodeState, ProgramKey};
use super::pool::HostFailure;
use crate::manager::ManagerEvent;
use crate::policy::malleability::{
    FreeHost, HostCapacity, HostShare, NodeNeeds, allocate, placeable,
};
use crate::scheduler::HostStatus;

/// First and longest time for which a host on which a node did not start is left out.
const LEFT_OUT_MIN: Duration = Duration::from_secs(2);
const LEFT_OUT_MAX: Duration = Duration::from_secs(300);

/// Nodes for a job in a cluster of hosts.
#[derive(Debug, Default)]
pub(super) struct HostNodes {
    /// Idle nodes that fit.
    pub(super) idle: Vec<NodeId>,
    /// Nodes to be started, with their shares.
    pub(super) started: BTreeMap<NodeId, HostShare>,
    /// Idle nodes whose shares are needed.
    pub(super) ended: BTreeSet<NodeId>,
}

impl SchedulerCore {
    /// Status of each host of a cluster.
    pub(super) fn host_statuses(&self, cluster: &ClusterId) -> Vec<HostStatus> {
        let Some(site) = self.sites.get(cluster) else { return Vec::new() };
        let mut used: BTreeMap<&str, u32> = BTreeMap::new();
        for (id, node, share) in self.shares(cluster).filter(|(_, node, _)| !node.is_free()) {
            *used.entry(&share.host).or_default() += self.booked_size(id, node);
        }
        let status = |host: &HostCapacity| HostStatus {
            host: host.host.clone(),
            processors: host.processors,
            used: used.get(host.host.as_str()).copied().unwrap_or(0),
            left_out: site.host_failures.get(&host.host).map(|failed| failed.reason.clone()),
        };
        site.hosts.iter().map(status).collect()
    }

    /// Whether a cluster's nodes are as large as jobs need.
    pub(super) fn has_hosts(&self, cluster: &ClusterId) -> bool {
        self.sites.get(cluster).is_some_and(|site| !site.hosts.is_empty())
    }

    /// Nodes of a cluster that have shares.
    fn shares(
        &self,
        cluster: &ClusterId,
    ) -> impl Iterator<Item = (&NodeId, &PoolNode, &HostShare)> {
        let here = self.sites.get(cluster).into_iter().flat_map(|site| &site.nodes);
        here.filter_map(|id| {
            let node = self.nodes.get(id)?;
            Some((id, node, node.share.as_ref()?))
        })
    }

    /// The free parts of a cluster's hosts, as far as nodes start there. Processors that no idle
    /// node has come first.
    pub(super) fn free_hosts(&self, cluster: &ClusterId) -> Vec<FreeHost> {
        let Some(site) = self.sites.get(cluster) else { return Vec::new() };
        let starts = |host: &&HostCapacity| !site.host_failures.contains_key(&host.host);
        let mut all: BTreeMap<&str, FreeHost> = site
            .hosts
            .iter()
            .filter(starts)
            .map(|host| (host.host.as_str(), FreeHost::whole(host.clone())))
            .collect();
        let mut idle: BTreeMap<&str, BTreeSet<u32>> = BTreeMap::new();
        for (_, node, share) in self.shares(cluster) {
            if node.is_free() {
                idle.entry(&share.host).or_default().extend(&share.processors);
            } else if let Some(host) = all.get_mut(share.host.as_str()) {
                host.take(share);
            }
        }
        for (host, positions) in &idle {
            if let Some(free) = all.get_mut(host) {
                free.processors.sort_by_key(|position| (positions.contains(position), *position));
            }
        }
        all.into_values().collect()
    }

    /// The hosts of a cluster for jobs with needs, also of one whose nodes have a fixed size: each
    /// of these is a host of its own.
    pub(super) fn hosts_for_needs(&self, cluster: &ClusterId) -> (Vec<FreeHost>, Vec<FreeHost>) {
        let Some(site) = self.sites.get(cluster) else { return Default::default() };
        if !site.hosts.is_empty() {
            let whole = site.hosts.iter().cloned().map(FreeHost::whole).collect();
            return (self.free_hosts(cluster), whole);
        }
        let capacity = |id: &NodeId, node: &PoolNode| HostCapacity {
            host: id.to_string(),
            processors: self.booked_size(id, node),
            ..HostCapacity::default()
        };
        let (mut free, mut whole) = (Vec::new(), Vec::new());
        for (id, node) in site.nodes.iter().filter_map(|id| Some((id, self.nodes.get(id)?))) {
            let host = FreeHost::whole(capacity(id, node));
            if node.is_free() || node.is_off() {
                free.push(host.clone());
            }
            whole.push(host);
        }
        (free, whole)
    }

    /// Processors of a cluster of hosts, for the manager.
    pub(super) fn processors_of_hosts(&self, cluster: &ClusterId) -> KnownCapacity {
        let Some(site) = self.sites.get(cluster) else { return KnownCapacity::default() };
        let whole = site.hosts.iter().map(|host| host.processors).sum();
        let starts = |host: &&HostCapacity| !site.host_failures.contains_key(&host.host);
        let mut size: u32 = site.hosts.iter().filter(starts).map(|host| host.processors).sum();
        let mut others = 0;
        for (id, node, share) in self.shares(cluster) {
            let processors = self.booked_size(id, node);
            if !self.managing.ledger.contains_key(id) && !node.is_free() {
                others += processors;
            }
            // Its host has failed since, and it is there.
            if site.host_failures.contains_key(&share.host) {
                size += processors;
            }
        }
        // A batch system may have fewer processors than the config says, or others use them.
        if let Some(polled) = site.on_demand.as_ref().and_then(|on_demand| on_demand.polled) {
            size = size.min(polled.size.max(self.granted_processors(cluster)));
            others = others.saturating_add(polled.others);
        }
        KnownCapacity { size, others: others.min(size), whole }
    }

    /// Selects nodes with `count` processors for a job. The first one has at most `first`. Returns
    /// `None` if the free parts of the hosts do not meet the needs.
    pub(super) fn allocate_nodes(
        &self,
        cluster: &ClusterId,
        (count, first): (u32, u32),
        needs: &NodeNeeds,
        program: ProgramKey,
    ) -> Option<HostNodes> {
        let mut hosts = self.free_hosts(cluster);
        let mut names = self.sites.get(cluster)?.nodes.iter().filter(|id| self.nodes[*id].is_off());
        let mut found = HostNodes::default();
        let mut taken: Vec<HostShare> = Vec::new();
        let first = first.max(needs.least()).min(count);
        for part in [first, count - first].into_iter().filter(|part| *part > 0) {
            for share in allocate(&hosts, part, needs)? {
                let fits = |(id, node, of): &(&NodeId, &PoolNode, &HostShare)| {
                    let like = of.processors.len() == share.processors.len()
                        && (&of.host, of.memory) == (&share.host, share.memory)
                        && of.devices.keys().eq(share.devices.keys())
                        && of.devices.values().zip(share.devices.values()).all(same_number);
                    let free = node.is_free() && !found.idle.contains(id);
                    let there = hosts.iter().any(|host| host.has(of));
                    like && free && there && node.running(program).is_some()
                };
                let share = match self.shares(cluster).find(fits) {
                    Some((id, _, of)) => {
                        found.idle.push(id.clone());
                        of.clone()
                    }
                    None => {
                        found.started.insert(names.next()?.clone(), share.clone());
                        share
                    }
                };
                if let Some(host) = hosts.iter_mut().find(|h| h.capacity.host == share.host) {
                    host.take(&share);
                }
                taken.push(share);
            }
        }
        // Idle nodes keep what is left.
        for (id, _, share) in self.shares(cluster).filter(|(_, node, _)| node.is_free()) {
            if found.idle.contains(id) {
                continue;
            }
            match hosts.iter_mut().find(|host| host.has(share)) {
                Some(host) if host.capacity.host == share.host => host.take(share),
                _ => {
                    let needed = |one: &HostShare| one.host == share.host;
                    if taken.iter().any(needed) {
                        found.ended.insert(id.clone());
                    }
                }
            }
        }
        Some(found)
    }

    /// Makes the nodes of an allocation start, and those that it replaces end. Returns the nodes of
    /// the job.
    pub(super) fn start_allocated(
        &mut self,
        id: JobId,
        allocated: &HostNodes,
        used: NodeUse,
    ) -> BTreeSet<NodeId> {
        for (name, share) in &allocated.started {
            self.close_account(name);
            if let Some(node) = self.nodes.get_mut(name) {
                (node.state, node.tried, node.since) = (PoolNodeState::Starting, Some(id), None);
                node.share = Some(share.clone());
            }
        }
        let nodes: BTreeSet<NodeId> =
            allocated.idle.iter().chain(allocated.started.keys()).cloned().collect();
        for name in &nodes {
            if let Some(node) = self.nodes.get_mut(name) {
                node.reserved = Some(id);
            }
            self.book_node(name, id, used);
        }
        nodes
    }

    /// Raises the memory that a job's next nodes get, because one of its nodes exceeded its own.
    /// Returns a description. If no host has more, the end counts as any other.
    pub(super) fn memory_exceeded(
        &mut self,
        id: &NodeId,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) -> Option<String> {
        let node = self.nodes.get(id)?;
        let (cluster, share) = (node.cluster.clone(), node.share.clone()?);
        let incarnation = node.registration.as_ref()?.incarnation;
        let PoolNodeState::Busy(job) = node.state else { return None };
        let need = self.managing.need(job)?;
        let each = share.memory / (share.processors.len() as u64).max(1);
        let memory = each.saturating_mul(2).max(need.node.memory);
        let needs = NodeNeeds { memory, ..need.node };
        let whole = self.hosts_for_needs(&cluster).1;
        let what = format!("node {id} exceeded its memory of {} MiB", share.memory >> 20);
        if memory == 0 || placeable(&whole, &needs) < need.components.first()?.min {
            return Some(format!("{what}, and no host has more for it"));
        }
        if let Some(node) = self.nodes.get_mut(id) {
            node.drain = Some(DrainMark::excused(what.clone(), incarnation, now));
        }
        self.managing.node_needs = true;
        self.report(ManagerEvent::MemoryRaised { job, memory }, now, out);
        Some(format!("{what}; the next ones get {} MiB for each processor", memory >> 20))
    }

    /// Leaves a host out for a time: a node did not start on it. Returns whether the cluster has
    /// hosts.
    pub(super) fn host_failed(&mut self, id: &NodeId, reason: &str, now: Instant) -> bool {
        let Some(node) = self.nodes.get(id) else { return false };
        let Some(site) = self.sites.get_mut(&node.cluster) else { return false };
        let Some(share) = node.share.as_ref().filter(|_| !site.hosts.is_empty()) else {
            return false;
        };
        let before = site.former_failures.remove(&share.host).unwrap_or_default();
        let left_out = (before * 2).clamp(LEFT_OUT_MIN, LEFT_OUT_MAX);
        let failure = HostFailure { reason: reason.to_owned(), until: now + left_out, left_out };
        site.host_failures.entry(share.host.clone()).or_insert(failure);
        true
    }

    /// Records that a node has started on its host.
    pub(super) fn host_works(&mut self, id: &NodeId) {
        let Some(node) = self.nodes.get(id) else { return };
        let site = self.sites.get_mut(&node.cluster);
        if let (Some(site), Some(share)) = (site, &node.share) {
            site.host_failures.remove(&share.host);
            site.former_failures.remove(&share.host);
        }
    }

    /// Reports a cluster's hosts to the manager, as far as its jobs need that.
    pub(super) fn report_hosts(
        &mut self,
        cluster: &ClusterId,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        if self.has_hosts(cluster) {
            let reason = self.describe_failures(cluster, now);
            let limited = ManagerEvent::CapacityLimited { cluster: cluster.clone(), reason };
            self.report(limited, now, out);
        }
        if self.managing.node_needs {
            let (free, whole) = self.hosts_for_needs(cluster);
            let cluster = cluster.clone();
            self.report(ManagerEvent::HostsPolled { cluster, free, whole }, now, out);
        }
    }

    /// Whether free parts of hosts differ from those that the manager knows. Processors that jobs
    /// release are known to it at once, and the hosts that have them are not.
    pub(super) fn have_hosts_changed(&self) -> bool {
        let differs = |cluster: &ClusterId| {
            self.failing(cluster).is_none()
                && self.hosts_for_needs(cluster).0 != self.managing.manager.free_hosts(cluster)
        };
        self.managing.node_needs && self.sites.keys().any(differs)
    }

    /// Describes the hosts that are left out, if there are any.
    fn describe_failures(&self, cluster: &ClusterId, now: Instant) -> Option<String> {
        let site = self.sites.get(cluster)?;
        let (host, failure) = site.host_failures.first_key_value()?;
        let others = match site.host_failures.len() - 1 {
            0 => String::new(),
            others => format!(" and {others} more"),
        };
        let wait = failure.until.saturating_duration_since(now).as_secs_f64().ceil();
        let reason = &failure.reason;
        Some(format!(
            "host {host} of {cluster}{others} is left out, and is tried again after {wait} s: \
             {reason}"
        ))
    }

    /// Returns hosts to use whose time has passed.
    pub(super) fn retry_hosts(&mut self, now: Instant) {
        for site in self.sites.values_mut() {
            let former = &mut site.former_failures;
            site.host_failures.retain(|host, failure| {
                let waits = failure.until > now;
                if !waits {
                    former.insert(host.clone(), failure.left_out);
                }
                waits
            });
        }
    }
}

fn same_number((one, other): (&BTreeSet<u32>, &BTreeSet<u32>)) -> bool {
    one.len() == other.len()
}
