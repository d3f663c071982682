//! Clusters with processors on demand: their stubs, from the order to hold one to its end.
//!
//! A node of such a cluster is *off* until a stub is requested. It is reserved for a job until it
//! is granted, or the stub has ended. An unused stub is kept for a while, so that the next job gets
//! it at once, and is then released. The site polls the cluster's other processors and foreign use.
//! This module must not depend on how stubs are started.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use springtide_base::id::{ClusterId, JobId, NodeId};
use springtide_base::processors::{Processors, cover_with_nodes, select_nodes};
use tokio::time::Instant;

use super::SchedulerCore;
use super::capacity::CapacityLesson;
use super::event::SchedulerAction;
use super::managed::{KnownCapacity, LedgerEntry, NodeUse};
use super::node::{PoolNodeState, ProgramKey};
use crate::manager::{Kind, ManagerEvent};
use crate::policy::malleability::placeable;
use crate::scheduler::{SiteRegistration, StubLoss, StubLossKind};

/// A cluster with processors on demand.
#[derive(Debug)]
pub(super) struct OnDemand {
    /// Time for which an unused stub is kept.
    keep: Duration,
    /// Result of the last poll; absent: not polled yet.
    pub(super) polled: Option<KnownCapacity>,
    /// Reason why the site cannot be used now.
    pub(super) failing: Option<String>,
    /// What refusals of processors have shown.
    pub(super) lesson: CapacityLesson,
}

impl SchedulerCore {
    /// Processes the start of a site. Only stubs that the site has taken over are alive.
    pub(super) fn stubs_up(
        &mut self,
        site: &SiteRegistration,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        let Some(keep_ms) = site.keep_ms else { return };
        let keep = Duration::from_millis(keep_ms);
        if let Some(known) = self.sites.get_mut(&site.cluster) {
            let before = known.on_demand.take();
            known.on_demand = Some(match before {
                Some(before) => OnDemand { keep, ..before },
                None => {
                    let lesson = CapacityLesson::default();
                    OnDemand { keep, polled: None, failing: None, lesson }
                }
            });
        }
        let mut closing = Vec::new();
        for id in &site.nodes {
            let Some(node) = self.nodes.get_mut(id) else { continue };
            if node.state == PoolNodeState::Closing && site.stubs.contains(id) {
                closing.push(id.clone()); // the site may not have received the order
            }
            if node.registration.is_none()
                && node.state == PoolNodeState::Starting
                && node.reserved.is_none()
            {
                node.state = PoolNodeState::Off; // it was created here
            }
            if node.state != PoolNodeState::Off && !site.stubs.contains(id) {
                self.node_lost(id, "its stub had ended when its site restarted", false, now, out);
            } else if node.state == PoolNodeState::Off && site.stubs.contains(id) {
                node.mark_starting(now);
            }
        }
        self.repeat_close(closing, out);
    }

    /// Repeats an undelivered order to release stubs.
    pub(super) fn repeat_close(&mut self, nodes: Vec<NodeId>, out: &mut Vec<SchedulerAction>) {
        let closing =
            |id: &NodeId| self.nodes.get(id).is_some_and(|n| n.state == PoolNodeState::Closing);
        let nodes: Vec<NodeId> = nodes.into_iter().filter(closing).collect();
        self.close_stubs(nodes, "no job needs it", out);
    }

    /// Whether a cluster's processors are held on demand.
    pub(super) fn is_on_demand(&self, cluster: &ClusterId) -> bool {
        self.sites.get(cluster).is_some_and(|site| site.on_demand.is_some())
    }

    /// Processes the result of a site's poll.
    pub(super) fn site_polled(
        &mut self,
        cluster: &ClusterId,
        found: Result<(u32, u32), String>,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        let Some(site) = self.sites.get_mut(cluster) else {
            // The site registers once its provider answers.
            if let Err(reason) = found {
                self.report(
                    ManagerEvent::Unreachable { cluster: cluster.clone(), reason },
                    now,
                    out,
                );
            }
            return;
        };
        let Some(on_demand) = &mut site.on_demand else { return };
        match found {
            Ok((size, others)) => {
                let polled = KnownCapacity { size, others, whole: size };
                let before = on_demand.polled.replace(polled);
                if before.is_some_and(|before| before.size != polled.size) {
                    // An administrator may have ended the cause of refusals. Other users come and
                    // go all the time, and then no lesson would last.
                    on_demand.lesson.forget();
                }
                let first = before.is_none();
                if on_demand.failing.take().is_some() || first {
                    self.poll(now, out);
                }
            }
            Err(reason) => {
                on_demand.failing = Some(reason.clone());
                let cluster = cluster.clone();
                self.report(ManagerEvent::Unreachable { cluster, reason }, now, out);
            }
        }
    }

    /// Reason why a cluster cannot be used now.
    pub(super) fn failing(&self, cluster: &ClusterId) -> Option<String> {
        let site = self.sites.get(cluster)?;
        let on_demand = site.on_demand.as_ref()?;
        on_demand.failing.clone().or_else(|| {
            // The config of hosts says how many processors there are.
            let unknown = on_demand.polled.is_none() && site.hosts.is_empty();
            unknown.then(|| "its site has not reported its processors yet".to_owned())
        })
    }

    /// Processors of a cluster on demand, for the manager: the polled number, without stubs that
    /// neither belong to the manager's jobs nor are available.
    pub(super) fn processors_on_demand(&self, cluster: &ClusterId) -> KnownCapacity {
        if self.has_hosts(cluster) {
            return self.processors_of_hosts(cluster);
        }
        let Some(site) = self.sites.get(cluster) else { return KnownCapacity::default() };
        let Some(KnownCapacity { size, others, .. }) =
            site.on_demand.as_ref().and_then(|d| d.polled)
        else {
            return KnownCapacity::default();
        };
        let (mut busy, mut usable, mut whole) = (0, 0, 0);
        for id in &site.nodes {
            let Some(node) = self.nodes.get(id) else { continue };
            let managed = self.managing.ledger.contains_key(id);
            let to_be_had = node.is_free() || node.is_off();
            let processors = self.booked_size(id, node);
            whole += processors;
            if managed || to_be_had {
                usable += processors;
            } else if node.state != PoolNodeState::Off {
                busy += processors;
            }
        }
        let others = others.saturating_add(busy);
        let lesson = site.on_demand.as_ref().and_then(|on_demand| on_demand.lesson.limit());
        // Held processors count until they are released, also above the limit.
        let held = self.granted_processors(cluster);
        let usable = lesson.map_or(usable, |limit| usable.min(limit.granted.max(held)));
        // There may be more processors than nodes to use them.
        KnownCapacity {
            size: size.min(others.saturating_add(usable)),
            others: others.min(size),
            whole,
        }
    }

    /// Processors of a cluster's nodes that have registered: they were granted.
    pub(super) fn granted_processors(&self, cluster: &ClusterId) -> u32 {
        let here = self.sites.get(cluster).into_iter().flat_map(|site| &site.nodes);
        let known = here.filter_map(|id| Some((id, self.nodes.get(id)?)));
        let granted = known.filter(|(_, node)| node.registration.is_some());
        granted.map(|(id, node)| self.booked_size(id, node)).sum()
    }

    /// Records that a cluster's batch system did not grant a processor.
    pub(super) fn capacity_refused(
        &mut self,
        cluster: &ClusterId,
        reason: &str,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        let granted = self.granted_processors(cluster);
        self.more_refused(cluster, granted, reason, now, out);
    }

    /// Records that a start ended, after this time, with processors that had not come. A planned
    /// leave may end it early. The waits of such starts are added up, and count as a refusal when
    /// the sum is as long as a full wait.
    pub(super) fn wait_ended(
        &mut self,
        cluster: &ClusterId,
        waited: Duration,
        reason: &str,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        let enough = self.managing.hold_timeout;
        let site = self.sites.get_mut(cluster);
        let Some(on_demand) = site.and_then(|site| site.on_demand.as_mut()) else { return };
        if on_demand.lesson.wait_ended(waited, enough, now) {
            self.capacity_refused(cluster, reason, now, out);
        }
    }

    /// Records that a cluster's batch system refused the job of a stub. Those that it accepted
    /// count, although their nodes have not come yet.
    fn job_refused(
        &mut self,
        refused: &NodeId,
        cluster: &ClusterId,
        reason: &str,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        let here = self.sites.get(cluster).into_iter().flat_map(|site| &site.nodes);
        let others = here.filter(|id| *id != refused);
        let known = others.filter_map(|id| Some((id, self.nodes.get(id)?)));
        let held = known.filter(|(_, node)| node.state != PoolNodeState::Off);
        let held = held.map(|(id, node)| self.booked_size(id, node)).sum();
        self.more_refused(cluster, held, reason, now, out);
    }

    fn more_refused(
        &mut self,
        cluster: &ClusterId,
        granted: u32,
        reason: &str,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        let site = self.sites.get_mut(cluster);
        let Some(on_demand) = site.and_then(|site| site.on_demand.as_mut()) else { return };
        let Some(limit) = on_demand.lesson.refuse(granted, reason, now) else { return };
        let wait = limit.until.saturating_duration_since(now).as_secs();
        let granted = limit.granted;
        let why = format!(
            "{cluster} grants {granted} processors and refused more three times ({reason}); it is \
             asked for more again after {wait} s"
        );
        out.push(SchedulerAction::ProtocolViolation { what: why.clone() });
        let cluster = cluster.clone();
        self.report(ManagerEvent::CapacityLimited { cluster, reason: Some(why) }, now, out);
        self.poll(now, out);
    }

    /// Records that a cluster granted a processor, which may end a limit.
    pub(super) fn capacity_granted(
        &mut self,
        cluster: &ClusterId,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        let granted = self.granted_processors(cluster);
        let site = self.sites.get_mut(cluster);
        let Some(on_demand) = site.and_then(|site| site.on_demand.as_mut()) else { return };
        let had = on_demand.lesson.limit().is_some();
        on_demand.lesson.grant(granted);
        if had && on_demand.lesson.limit().is_none() {
            let cluster = cluster.clone();
            self.report(ManagerEvent::CapacityLimited { cluster, reason: None }, now, out);
        }
    }

    /// Ends the limits whose time has passed.
    pub(super) fn expire_limits(&mut self, now: Instant, out: &mut Vec<SchedulerAction>) {
        let mut ended = Vec::new();
        for (cluster, site) in &mut self.sites {
            if site.on_demand.as_mut().is_some_and(|on_demand| on_demand.lesson.expire(now)) {
                ended.push(cluster.clone());
            }
        }
        for cluster in ended {
            self.report(ManagerEvent::CapacityLimited { cluster, reason: None }, now, out);
        }
    }

    /// Reserves processors of a cluster for a job: kept stubs first, then new ones with its
    /// program. Returns the nodes, possibly fewer than requested.
    pub(super) fn reserve_nodes(
        &mut self,
        id: JobId,
        cluster: &ClusterId,
        count: u32,
        used: NodeUse,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) -> BTreeSet<NodeId> {
        let Some(managed) = self.managing.jobs.get(&id) else { return BTreeSet::new() };
        let submit = managed.submit.clone();
        let (wanted_program, program) = (ProgramKey::of(&submit), submit.program.clone());
        if self.has_hosts(cluster) {
            return self.reserve_shares(id, cluster, count, used, out);
        }
        let free = || self.free_running(wanted_program).map(|(node, _)| node);
        let warm: Vec<NodeId> = match (self.jobs.get(&id), used) {
            // A growing job has criteria for its nodes.
            (Some(job), NodeUse::Requested(_)) => self.pick(job, cluster, count, now),
            _ => free().filter(|node| self.nodes[*node].cluster == *cluster).cloned().collect(),
        };
        let on_demand = self.is_on_demand(cluster);
        let here = || self.nodes.iter().filter(|(_, node)| node.cluster == *cluster);
        let off = here().filter(|(_, node)| on_demand && node.is_off()).map(|(id, _)| id.clone());
        let off: Vec<NodeId> = off.collect();
        // Held stubs with another program: a restart is faster than another stub.
        let starts = self.sites.get(cluster).is_some_and(|site| site.can_start(&submit));
        // In a standing cluster, only for a job that starts. Growth there is selected by speed.
        let wanted = (on_demand || used == NodeUse::Claimed) && starts;
        let tried = |node: &super::PoolNode| !on_demand && node.tried == Some(id);
        let other = here().filter(|(_, node)| {
            wanted && node.is_free() && node.running(wanted_program).is_none() && !tried(node)
        });
        let other: Vec<NodeId> = other.map(|(id, _)| id.clone()).collect();
        let all: Vec<&NodeId> = warm.iter().chain(&off).chain(&other).collect();
        let sizes = all.iter().map(|id| self.nodes[*id].processors());
        let taken = match used {
            NodeUse::Claimed => cover_with_nodes(sizes, count.into()),
            _ => select_nodes(sizes, count.into(), Processors::MAX),
        };
        let nodes: BTreeSet<NodeId> = taken.into_iter().map(|at| all[at].clone()).collect();
        let off: Vec<NodeId> = off.into_iter().filter(|id| nodes.contains(id)).collect();
        let other: Vec<NodeId> = other.into_iter().filter(|id| nodes.contains(id)).collect();
        for node in off.iter().chain(&other) {
            self.close_account(node);
            if let Some(node) = self.nodes.get_mut(node) {
                (node.state, node.tried, node.since) = (PoolNodeState::Starting, Some(id), None);
            }
        }
        for node in &nodes {
            if let Some(node) = self.nodes.get_mut(node) {
                node.reserved = Some(id);
            }
            self.book_node(node, id, used);
        }
        let reason = format!("{id} needs them");
        if !off.is_empty() {
            let (cluster, program) = (cluster.clone(), program.clone());
            let (nodes, shares, reason) = (off, BTreeMap::new(), reason.clone());
            let image = submit.image.clone();
            out.push(SchedulerAction::HoldStubs { cluster, nodes, shares, program, image, reason });
        }
        if !other.is_empty() {
            let cluster = cluster.clone();
            let (nodes, image) = (other, submit.image.clone());
            out.push(SchedulerAction::Replace { cluster, nodes, program, image, reason });
        }
        self.report_excess(id, cluster, (count, self.processors_of(&nodes).get()), used, now, out);
        nodes
    }

    /// Reports processors beyond those that the manager asked for: nodes of a fixed size are
    /// granted as a whole.
    fn report_excess(
        &mut self,
        id: JobId,
        cluster: &ClusterId,
        (asked, got): (u32, u32),
        used: NodeUse,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        let change = match used {
            NodeUse::Requested(change) => Some(change),
            _ => None,
        };
        let count = got.saturating_sub(asked);
        if count > 0 {
            let cluster = cluster.clone();
            self.report(ManagerEvent::Enlarged { job: id, change, cluster, count }, now, out);
        }
    }

    /// Reserves shares of a cluster's hosts for a job, and starts nodes in them. Returns no node if
    /// a starting job's needs are not met.
    fn reserve_shares(
        &mut self,
        id: JobId,
        cluster: &ClusterId,
        count: u32,
        used: NodeUse,
        out: &mut Vec<SchedulerAction>,
    ) -> BTreeSet<NodeId> {
        let Some(managed) = self.managing.jobs.get(&id) else { return BTreeSet::new() };
        let (program, image) = (managed.submit.program.clone(), managed.submit.image.clone());
        let wanted = ProgramKey::of(&managed.submit);
        let need = self.managing.need(id);
        let needs = need.as_ref().map(|need| need.node.clone()).unwrap_or_default();
        // The root's node cannot be released: a malleable job's is as small as the job may be.
        let malleable = need.filter(|need| need.kind == Kind::Malleable);
        let first = match used {
            NodeUse::Claimed => malleable.map_or(count, |need| need.least()),
            _ => count,
        };
        let mut allocated = self.allocate_nodes(cluster, (count, first), &needs, wanted);
        if allocated.is_none() && used != NodeUse::Claimed {
            // Growth takes what there is.
            let most = count.min(placeable(&self.free_hosts(cluster), &needs));
            allocated = self.allocate_nodes(cluster, (most, most), &needs, wanted);
        }
        let Some(allocated) = allocated else { return BTreeSet::new() };
        self.close_stubs(allocated.ended.clone(), "another node needs its processors", out);
        let nodes = self.start_allocated(id, &allocated, used);
        if !allocated.started.is_empty() {
            let names = allocated.started.keys().cloned().collect();
            let (cluster, shares) = (cluster.clone(), allocated.started);
            let reason = format!("{id} needs them");
            out.push(SchedulerAction::HoldStubs {
                cluster,
                nodes: names,
                shares,
                program,
                image,
                reason,
            });
        }
        nodes
    }

    /// Holds processors for the growth of a job.
    pub(super) fn hold_stubs(
        &mut self,
        id: JobId,
        change: u64,
        cluster: &ClusterId,
        count: u32,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) -> Option<ManagerEvent> {
        let used = NodeUse::Requested(change);
        let reserved = self.reserve_nodes(id, cluster, count, used, now, out);
        let reason = || format!("{cluster} has reached its limit of nodes");
        let count = count.saturating_sub(self.processors_of(&reserved).get());
        (count > 0).then(|| ManagerEvent::NotHeld { job: id, change, count, reason: reason() })
    }

    /// Reports arrived nodes that are reserved for jobs, and releases those with another program.
    pub(super) fn reconcile_stubs(&mut self, now: Instant, out: &mut Vec<SchedulerAction>) {
        let mut held: BTreeMap<(JobId, u64), u32> = BTreeMap::new();
        let (mut wrong, mut drained) = (Vec::new(), Vec::new());
        for (id, LedgerEntry { job, used, processors }) in &mut self.managing.ledger {
            let (NodeUse::Requested(change) | NodeUse::Held(change)) = *used else { continue };
            let Some(node) = self.nodes.get(id) else { continue };
            if node.drain.is_some() {
                drained.push((id.clone(), *job, change, *processors));
                continue;
            }
            if node.state != PoolNodeState::Idle || *used == NodeUse::Held(change) {
                continue;
            }
            let Some(managed) = self.managing.jobs.get(job) else { continue };
            if node.running(ProgramKey::of(&managed.submit)).is_some() {
                *used = NodeUse::Held(change);
                *held.entry((*job, change)).or_default() += *processors;
            } else {
                wrong.push((id.clone(), *job, change, *processors));
            }
        }
        for (id, job, change, count) in drained {
            if self.unreserve(&id, now, out) {
                let reason = format!("{id} is drained");
                self.report(ManagerEvent::NotHeld { job, change, count, reason }, now, out);
            }
        }
        for ((job, change), count) in held {
            self.report(ManagerEvent::Held { job, change, count }, now, out);
        }
        for (id, job, change, count) in wrong {
            if self.unreserve(&id, now, out) {
                let reason = format!("{id} runs another program than the job's");
                self.report(ManagerEvent::NotHeld { job, change, count, reason }, now, out);
            }
        }
    }

    /// Releases a node's reservation. Returns whether the node is free and in no account. One that
    /// has not arrived stays in the job's account until it has stopped.
    pub(super) fn unreserve(
        &mut self,
        id: &NodeId,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) -> bool {
        let Some(cluster) = self.nodes.get(id).map(|node| node.cluster.clone()) else {
            return false;
        };
        let on_demand = self.is_on_demand(&cluster);
        let Some(node) = self.nodes.get_mut(id) else { return false };
        match node.state {
            PoolNodeState::Starting if on_demand => {
                self.close_stubs([id.clone()], "no job needs it any longer", out);
                false
            }
            PoolNodeState::Closing => false,
            _ => {
                (node.reserved, node.since) = (None, Some(now));
                self.managing.ledger.remove(id);
                true
            }
        }
    }

    fn close_stubs(
        &mut self,
        nodes: impl IntoIterator<Item = NodeId>,
        reason: &str,
        out: &mut Vec<SchedulerAction>,
    ) {
        let mut by_cluster: BTreeMap<ClusterId, Vec<NodeId>> = BTreeMap::new();
        for id in nodes {
            let Some(node) = self.nodes.get_mut(&id) else { continue };
            node.state = PoolNodeState::Closing;
            // This incarnation is awaited no longer. Otherwise, it would be restarted while it
            // stops.
            self.awaited.remove(&id);
            by_cluster.entry(node.cluster.clone()).or_default().push(id);
        }
        for (cluster, nodes) in by_cluster {
            let reason = reason.to_owned();
            out.push(SchedulerAction::CloseStubs { cluster, nodes, reason });
        }
    }

    /// Records why a stub still waits for its processor.
    pub(super) fn stub_waits(&mut self, id: &NodeId, reason: String) {
        let waits = |node: &&mut super::PoolNode| {
            node.state == PoolNodeState::Starting && node.registration.is_none()
        };
        if let Some(node) = self.nodes.get_mut(id).filter(waits) {
            node.reason = Some(format!("it waits for its processor: {reason}"));
        }
    }

    /// Processes the end of a stub, by order or by itself. Its processor is free.
    pub(super) fn stub_gone(
        &mut self,
        gone: &StubLoss,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        let Some(node) = self.nodes.get_mut(&gone.node) else { return };
        let (cluster, came) = (node.cluster.clone(), node.registration.is_some());
        if node.state == PoolNodeState::Closing {
            node.turn_off(None);
            if gone.kind == StubLossKind::Refused {
                self.job_refused(&gone.node, &cluster, &gone.reason, now, out);
            }
            return;
        }
        if node.state == PoolNodeState::Starting && !came {
            match gone.kind {
                StubLossKind::Ended if self.host_failed(&gone.node, &gone.reason, now) => {}
                StubLossKind::Ended => self.capacity_refused(&cluster, &gone.reason, now, out),
                StubLossKind::Refused => {
                    self.job_refused(&gone.node, &cluster, &gone.reason, now, out);
                }
                StubLossKind::Unreachable | StubLossKind::OutOfMemory | StubLossKind::NoProgram => {
                }
            }
        }
        let exceeded = match gone.kind {
            StubLossKind::OutOfMemory => self.memory_exceeded(&gone.node, now, out),
            _ => None,
        };
        // For a stub without a node, this is the only report.
        let exceeded = exceeded.map_or_else(String::new, |what| format!("{what}; "));
        let reason = format!("{exceeded}its stub has ended: {}", gone.reason);
        self.node_lost(&gone.node, &reason, false, now, out);
    }

    /// Releases stubs that were unused for long enough.
    pub(super) fn close_idle(&mut self, now: Instant, out: &mut Vec<SchedulerAction>) {
        if !self.returning.is_empty() {
            self.returning_at = Some(now);
        }
        let due = |(_, at): &(NodeId, Instant)| *at <= now;
        let idle: Vec<NodeId> = self.kept().filter(due).map(|(id, _)| id).collect();
        self.close_stubs(idle, "no job needs it", out);
    }

    /// Unused stubs, with the times of their release.
    fn kept(&self) -> impl Iterator<Item = (NodeId, Instant)> {
        // Jobs that have returned are offered processors at the next poll.
        let after_return = self.returning_at.map(|at| at + self.managing.every);
        self.nodes.iter().filter_map(move |(id, node)| {
            let keep = self.sites.get(&node.cluster)?.on_demand.as_ref()?.keep;
            let since = node.since.filter(|_| node.reserved.is_none())?;
            let at = match node.state {
                // A node under drain is empty, and of no use.
                PoolNodeState::Idle if node.drain.is_some() => since,
                // A returning job may have been about to grow onto it.
                PoolNodeState::Idle if !self.returning.is_empty() => return None,
                PoolNodeState::Idle => since.max(after_return.unwrap_or(since)) + keep,
                // Requested by an earlier scheduler, or restarting: it may wait for a processor
                // forever.
                PoolNodeState::Starting => since + self.managing.hold_timeout,
                _ => return None,
            };
            Some((id.clone(), at))
        })
    }

    /// Time of the next release.
    pub(super) fn close_due(&self) -> Option<Instant> {
        self.kept().map(|(_, at)| at).min()
    }
}
