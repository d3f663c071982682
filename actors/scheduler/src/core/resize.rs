//! Nodes that a running job of the malleability manager gains or loses.
//!
//! This module must not decide on numbers.

use std::collections::{BTreeMap, BTreeSet};

use springtide_base::id::{ClusterId, JobId, NodeId};
use springtide_base::processors::Processors;
use tokio::time::Instant;

use super::choose::{FreeNode, SelectionInput, choose, refuse, refuse_cluster};
use super::event::SchedulerAction;
use super::managed::{GrantRecord, LedgerEntry, NodeUse};
use super::node::{PoolNodeState, member};
use super::request::OpenRequest;
use super::{ActiveJob, SchedulerCore};
use crate::audit::subtract;
use crate::manager::ManagerEvent;
use crate::scheduler::{GrantedNode, JobEfficiency, JobState};

/// Selects the best nodes for a job, by the criteria of its last request. They have about `count`
/// processors.
fn select_best(
    job: &ActiveJob,
    free: BTreeMap<NodeId, FreeNode>,
    count: Processors,
) -> Vec<NodeId> {
    let OpenRequest { request, rtt_s, bandwidth, .. } = &job.open;
    let (request, rtt_s, bandwidth) = (request.clone(), rtt_s.clone(), bandwidth.clone());
    let most = Processors::MAX;
    choose(&SelectionInput { count, most, request, rtt_s, bandwidth, free }).nodes
}

impl SchedulerCore {
    /// The best free nodes of a cluster for a running job.
    pub(super) fn pick(
        &self,
        job: &ActiveJob,
        cluster: &ClusterId,
        count: u32,
        now: Instant,
    ) -> Vec<NodeId> {
        let mut free = self.candidates_for(job.unit, job.program, now);
        free.retain(|_, candidate| candidate.cluster == *cluster);
        select_best(job, free, Processors(count))
    }

    /// Clusters whose nodes the job's criteria exclude, as far as known. With nodes on demand, only
    /// present nodes are known.
    pub(super) fn unfit_for(&self, job: &ActiveJob, now: Instant) -> BTreeSet<ClusterId> {
        let OpenRequest { request, bandwidth, .. } = &job.open;
        let refused = |cluster: &&ClusterId| refuse_cluster(request, bandwidth, cluster).is_some();
        let mut unfit: BTreeSet<ClusterId> = self.sites.keys().filter(refused).cloned().collect();
        if request.min_speed.is_some() || !request.avoid_nodes.is_empty() {
            let free = self.candidates_for(job.unit, job.program, now);
            let (excluded, fits): (Vec<_>, Vec<_>) =
                free.iter().partition(|(id, node)| refuse(request, bandwidth, id, node).is_some());
            let of = |nodes: Vec<(_, &FreeNode)>| -> BTreeSet<ClusterId> {
                nodes.into_iter().map(|(_, node)| node.cluster.clone()).collect()
            };
            unfit.extend(&of(excluded) - &of(fits));
        }
        unfit
    }

    /// Grants nodes to a running job, the best first.
    pub(super) fn recruit(
        &mut self,
        id: JobId,
        change: u64,
        cluster: ClusterId,
        count: u32,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) -> Option<ManagerEvent> {
        let nothing = Some(ManagerEvent::Grown { job: id, change, count: 0 });
        let Some(coordinator) = self.coordinator_of(id) else { return nothing };
        let Some(job) = self.jobs.get(&id) else { return nothing };
        let chosen = if self.is_on_demand(&cluster) {
            self.held_nodes((id, job), change, &cluster, now)
        } else {
            self.pick(job, &cluster, count, now)
        };
        let nodes: Vec<GrantedNode> = chosen
            .iter()
            .filter_map(|node| {
                let registration = self.nodes.get(node)?.registration.as_ref()?;
                let speed = self.speeds.best(job.unit, registration, now);
                Some(GrantedNode { node: node.clone(), member: member(registration), speed })
            })
            .collect();
        if nodes.is_empty() {
            return nothing;
        }
        for GrantedNode { node, .. } in &nodes {
            self.book_node(node, id, NodeUse::Recruited(change));
        }
        let given: Processors = nodes.iter().map(GrantedNode::processors).sum();
        let given = given.get();
        let mut ordered = 0;
        // An owner's order is served before the coordinator's request.
        if let Some(managed) = self.managing.jobs.get_mut(&id) {
            let of = &mut managed.ordered;
            let here = of.clusters.is_empty() || of.clusters.contains(&cluster);
            ordered = if here { given.min(of.count) } else { 0 };
            subtract(&mut of.count, ordered, &mut self.shortfall, || format!("the order for {id}"));
        }
        let rest = Processors(given - ordered);
        let Some(job) = self.jobs.get_mut(&id) else { return nothing };
        let served = job.open.serve(rest);
        let open = job.open.count;
        let grant = self.add_members(id, &nodes, served);
        if let Some(managed) = self.managing.jobs.get_mut(&id) {
            managed.grants.insert(grant, GrantRecord { change, ordered });
        }
        let why = format!("the malleability manager grants it {given} of {cluster}");
        let count = Processors(given);
        let case = Box::new(SelectionInput { count, ..SelectionInput::default() });
        out.push(SchedulerAction::GrantNodes {
            job: id,
            grant,
            coordinator,
            nodes,
            open,
            why,
            case,
        });
        None
    }

    /// Nodes held for a change, without those that turned out not to meet the job's criteria.
    fn held_nodes(
        &self,
        (id, job): (JobId, &ActiveJob),
        change: u64,
        cluster: &ClusterId,
        now: Instant,
    ) -> Vec<NodeId> {
        let of_change = |(node, entry): (&NodeId, &LedgerEntry)| {
            let known = self.nodes.get(node).filter(|known| known.cluster == *cluster)?;
            let registration =
                known.registration.as_ref().filter(|_| known.state == PoolNodeState::Idle)?;
            let held = entry.job == id && entry.used == NodeUse::Held(change);
            held.then(|| (node.clone(), self.candidate_of(job.unit, registration, now)))
        };
        let held = self.managing.ledger.iter().filter_map(of_change).collect();
        select_best(job, held, Processors::MAX)
    }

    /// Concludes a grant after the coordinator's answer, or its absence: its remaining nodes are in
    /// use.
    pub(super) fn grant_settled(
        &mut self,
        id: JobId,
        grant: u64,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        let Some(managed) = self.managing.jobs.get_mut(&id) else { return };
        let Some(GrantRecord { change, .. }) = managed.grants.remove(&grant) else { return };
        let holds =
            |node: &NodeId| self.jobs.get(&id).is_some_and(|job| job.members.contains(node));
        let mut count = 0;
        for (node, entry) in &mut self.managing.ledger {
            if entry.job == id && entry.used == NodeUse::Recruited(change) && holds(node) {
                entry.used = NodeUse::Computing;
                count += entry.processors;
            }
        }
        // The requests are reported first. Otherwise, the manager would grant them again.
        self.replacements_joined(id, count);
        self.report_revocations(now, out);
        self.report_request(id, now, out);
        self.report(ManagerEvent::Grown { job: id, change, count }, now, out);
    }

    /// Releases nodes that were held for a change. Nodes that are members leave the job first; the
    /// others count as released at once.
    pub(super) fn release_held(
        &mut self,
        id: JobId,
        change: u64,
        cluster: &ClusterId,
        count: u32,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) -> Option<ManagerEvent> {
        let of_change = |(node, entry): (&NodeId, &LedgerEntry)| {
            let here = self.nodes.get(node).is_some_and(|known| known.cluster == *cluster);
            // Nodes that have not arrived come first.
            let rank = match entry.used {
                NodeUse::Requested(of) if of == change => 0,
                NodeUse::Held(of) | NodeUse::Recruited(of) if of == change => 1,
                _ => return None,
            };
            (entry.job == id && here).then(|| (rank, entry.processors, node.clone()))
        };
        let mut nodes: Vec<(u8, u32, NodeId)> =
            self.managing.ledger.iter().filter_map(of_change).collect();
        nodes.sort();
        let mut gone = count;
        nodes.retain(|(_, processors, _)| match gone.checked_sub(*processors) {
            Some(rest) => {
                gone = rest;
                true
            }
            None => false,
        });
        // Unless the job has ended, a processor that did not arrive counts as refused by its site.
        let runs = self.jobs.get(&id).is_some_and(|job| job.state == JobState::Running);
        let refused = nodes.iter().find_map(|(rank, _, node)| {
            let known = self
                .nodes
                .get(node)
                .filter(|known| *rank == 0 && runs && known.state == PoolNodeState::Starting)?;
            let reason = known.reason.clone();
            Some(reason.unwrap_or_else(|| "it did not come in time".to_owned()))
        });
        for (_, processors, node) in &nodes {
            self.book_node(node, id, NodeUse::Releasing);
            if self.jobs.get(&id).is_some_and(|job| job.members.contains(node)) {
                self.release(id, node, out);
            }
            let kept = self.nodes.get(node).is_some_and(|known| known.reserved == Some(id));
            if kept && self.unreserve(node, now, out) {
                gone += processors;
            }
        }
        if let Some(reason) = refused {
            self.capacity_refused(cluster, &reason, now, out);
        }
        let cluster = cluster.clone();
        (gone > 0).then_some(ManagerEvent::Unheld { job: id, cluster, count: gone })
    }

    /// Takes nodes from a job that did not release them in time. They are restarted, as after a
    /// loss.
    pub(super) fn take_by_force(
        &mut self,
        id: JobId,
        cluster: &ClusterId,
        count: u32,
        reason: &str,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) -> Option<ManagerEvent> {
        let job = self.jobs.get(&id)?;
        let coordinator = job.view.coordinator.as_ref();
        let here = |node: &&NodeId| {
            self.nodes.get(*node).is_some_and(|known| known.cluster == *cluster)
                && coordinator != Some(*node)
        };
        // The latest nodes have least to lose, and names are issued in order.
        let mut left = count;
        let mut taken = Vec::new();
        for node in job.members.iter().rev().filter(here) {
            if left > 0 {
                left = left.saturating_sub(self.booked_size(node, &self.nodes[node]));
                taken.push(node.clone());
            }
        }
        for node in &taken {
            self.node_lost(node, reason, true, now, out);
        }
        let (cluster, reason) = (cluster.clone(), reason.to_owned());
        if !taken.is_empty() {
            let cluster = cluster.clone();
            out.push(SchedulerAction::Replace {
                cluster,
                nodes: taken,
                program: None,
                image: None,
                reason,
            });
        }
        (left > 0).then_some(ManagerEvent::NotForced { job: id, cluster, count: left })
    }

    /// Reports a job's answer to the manager.
    pub(super) fn report_answer(
        &mut self,
        id: JobId,
        change: u64,
        count: Option<u32>,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        if self.managing.has(id) {
            self.report(ManagerEvent::Answer { job: id, change, count }, now, out);
        }
    }

    /// Reports a job's efficiency to the manager.
    pub(super) fn report_efficiency(
        &mut self,
        report: JobEfficiency,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        let JobEfficiency { job, epoch, efficiency, processors } = report;
        if self.managing.has(job) && self.check(job, epoch).is_ok() {
            self.report(ManagerEvent::EfficiencyMeasured { job, efficiency, processors }, now, out);
        }
    }
}
