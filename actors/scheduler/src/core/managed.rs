//! Jobs of the malleability manager: converts its counts by cluster into nodes.
//!
//! The manager decides with how many processors of which cluster a job starts, grows and shrinks.
//! Here they become nodes, and changes of nodes are reported to the manager as counts of their
//! processors. This module must not decide on sizes.
//!
//! The *ledger* has each node in an account of the manager, with its use. After each event, it is
//! compared with the actual states of nodes ([`Core::reconcile`]). So the manager gets exactly one
//! report of each node that leaves its job, for any reason.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use springtide_base::id::{ClusterId, Epoch, JobId, NodeId};
use springtide_base::processors::{Processors, select_nodes};
use tokio::time::Instant;

use super::SchedulerCore;
use super::drain::PlannedRevocations;
use super::event::{ManagerQuestion, SchedulerAction};
use super::history::Histories;
use super::node::{PoolNode, PoolNodeState};
use crate::manager::{
    GridOutlook, GrowthRequest, JobRequirements, JobView, Manager, ManagerAction, ManagerEvent,
    ManagerSettings,
};
use crate::policy::malleability::PlacementPlan;
use crate::program::ProgramError;
use crate::scheduler::{JobState, JobStatus, Submit, SubmitError};

/// Time within which arriving nodes are distributed together.
const GATHER: Duration = Duration::from_millis(500);

/// A job of the malleability manager.
#[derive(Debug)]
pub(super) struct ManagedJob {
    pub(super) epoch: Epoch,
    /// Whether its next placement waits until its next epoch is on disk.
    pub(super) awaits_epoch: bool,
    pub(super) submit: Box<Submit>,
    pub(super) stage: JobStage,
    /// Grants that its coordinator has not acknowledged.
    pub(super) grants: BTreeMap<u64, GrantRecord>,
    /// Number of processors that were lost during its start.
    pub(super) lost: BTreeMap<ClusterId, u32>,
    /// Request for the job, as last reported to the manager.
    pub(super) wants: GrowthOrder,
    /// Open order of its owner or its program for more processors.
    pub(super) ordered: GrowthOrder,
    /// Greatest number of processors that its owner permits.
    pub(super) limit: Option<u32>,
    /// Requirements of a job that has lost all its nodes, and restarts once its old state is
    /// cleared.
    pub(super) again: Option<JobRequirements>,
    /// Number of restarts after a loss of all nodes.
    pub(super) losses: u32,
    /// Whether it was started earlier, so that a coordinator of it may still send messages.
    pub(super) begun: bool,
    /// Last epoch before the restart, and the node that it was issued to.
    pub(super) former: Option<(Epoch, NodeId)>,
    /// The last lost node, if its owner had announced that it takes the node away.
    pub(super) revoked: Option<NodeId>,
    /// Clusters that do not start its program, and why.
    pub(super) refused: BTreeMap<ClusterId, ProgramError>,
}

/// Nodes granted to a job by a change, and the order that they serve.
#[derive(Clone, Copy, Debug)]
pub(super) struct GrantRecord {
    pub(super) change: u64,
    pub(super) ordered: u32,
}

/// A request for more processors of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct GrowthOrder {
    /// Number of the job's request; 0: its owner's order.
    pub(super) number: u64,
    pub(super) count: u32,
    /// Time limit of an urgent request.
    pub(super) until: Option<Instant>,
    pub(super) clusters: BTreeSet<ClusterId>,
    /// Clusters to avoid.
    pub(super) but: BTreeSet<ClusterId>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum JobStage {
    /// The manager seeks a place for it.
    Waiting,
    /// Its nodes are arriving. At the time limit, its start fails and it waits again.
    Gathering {
        nodes: BTreeSet<NodeId>,
        placed: PlacementPlan,
        until: Instant,
    },
    /// It is being assigned to its workers.
    Claiming,
    /// Its assignment failed for this reason. It waits again when all its nodes are free.
    Failing(String),
    Running,
    /// The manager knows that it has ended.
    Over,
}

/// A node in an account of the manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LedgerEntry {
    pub(super) job: JobId,
    pub(super) used: NodeUse,
    /// The node's processors, as the manager counts them.
    pub(super) processors: u32,
}

/// Use of a node from the manager's view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeUse {
    /// The job is being started on it.
    Claimed,
    /// It is requested for this change of the job, and has not arrived.
    Requested(u64),
    /// It has arrived, and is held for this change of the job.
    Held(u64),
    /// It is being granted to the job by this change.
    Recruited(u64),
    /// The job computes on it.
    Computing,
    /// It was held for the job, and is being released.
    Releasing,
}

impl ManagedJob {
    /// A job without nodes.
    pub(super) fn waiting(epoch: Epoch, submit: Box<Submit>) -> Self {
        Self {
            epoch,
            awaits_epoch: false,
            submit,
            stage: JobStage::Waiting,
            grants: BTreeMap::new(),
            lost: BTreeMap::new(),
            wants: GrowthOrder::default(),
            ordered: GrowthOrder::default(),
            limit: None,
            again: None,
            losses: 0,
            begun: false,
            former: None,
            revoked: None,
            refused: BTreeMap::new(),
        }
    }
}

/// Makes a submission and its valid requirements agree. What a submitter says of itself has no
/// effect on its share.
pub(super) fn reconcile_submission(submit: &mut Submit, need: &mut JobRequirements) {
    need.user = submit.principal.as_ref().map(|user| user.name.to_string());
    need.program = Some(submit.name.clone());
    submit.params.managed = true;
    submit.params.array = need.array;
    submit.params.min_processors = submit.params.min_processors.max(need.least().into());
}

/// A cluster's processors, as last reported to the manager.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct KnownCapacity {
    pub(super) size: u32,
    pub(super) others: u32,
    /// Number of processors if all worked.
    pub(super) whole: u32,
}

/// A node that has left a job's account: its cluster, job, use and processors, and whether the job
/// released it voluntarily.
type FreedNode = (ClusterId, JobId, NodeUse, u32, bool);

/// The manager, and the state that was reported to it.
#[derive(Debug)]
pub(super) struct ManagerState {
    pub(super) manager: Manager,
    /// Interval between polls without changes.
    pub(super) every: Duration,
    /// Time that a job for all nodes waits for absent ones.
    pub(super) start_wait: Duration,
    /// Time limit for the arrival of a starting job's nodes.
    pub(super) hold_timeout: Duration,
    pub(super) jobs: BTreeMap<JobId, ManagedJob>,
    pub(super) ledger: BTreeMap<NodeId, LedgerEntry>,
    /// Nodes that start again for another job before the manager has learnt that they were lost.
    closed: Vec<(NodeId, LedgerEntry)>,
    polled: BTreeMap<ClusterId, KnownCapacity>,
    next_poll: Option<Instant>,
    pub(super) histories: Histories,
    /// Whether a job has had needs for each of its nodes, so that the manager needs the hosts.
    pub(super) node_needs: bool,
    /// Nodes that their jobs released voluntarily.
    pub(super) let_go: BTreeSet<NodeId>,
    /// Processors that will be taken away, as last reported to the manager.
    revocations: BTreeMap<(JobId, ClusterId), PlannedRevocations>,
}

impl ManagerState {
    pub(super) fn new(settings: ManagerSettings, now: Instant) -> Self {
        Self {
            every: settings.poll_interval,
            start_wait: settings.start_wait,
            hold_timeout: settings.hold_timeout,
            manager: Manager::new(settings, [], now),
            jobs: BTreeMap::new(),
            ledger: BTreeMap::new(),
            closed: Vec::new(),
            polled: BTreeMap::new(),
            next_poll: None,
            histories: Histories::default(),
            node_needs: false,
            let_go: BTreeSet::new(),
            revocations: BTreeMap::new(),
        }
    }

    pub(super) fn due(&self) -> Option<Instant> {
        if self.jobs.is_empty() && !self.manager.has_reservations() {
            return None;
        }
        let gathering = self.jobs.values().filter_map(|job| match job.stage {
            JobStage::Gathering { until, .. } => Some(until),
            _ => None,
        });
        self.manager.due().into_iter().chain(self.next_poll).chain(gathering).min()
    }

    /// Jobs without nodes, in queue order.
    pub(super) fn waiting(&self) -> impl Iterator<Item = (JobId, &Submit)> {
        let queued = self.manager.queued();
        let first: Vec<JobId> = queued.filter(|id| self.waits(*id).is_some()).collect();
        let queued: BTreeSet<JobId> = first.iter().copied().collect();
        let placed = self.jobs.keys().copied().filter(move |id| !queued.contains(id));
        first.into_iter().chain(placed).filter_map(move |id| Some((id, self.waits(id)?)))
    }

    /// The submission of a job that has no nodes yet.
    pub(super) fn waits(&self, id: JobId) -> Option<&Submit> {
        let waits =
            |job: &&ManagedJob| matches!(job.stage, JobStage::Waiting | JobStage::Gathering { .. });
        self.jobs.get(&id).filter(waits).map(|job| &*job.submit)
    }

    /// Status of a job that has no nodes yet.
    /// `sent` describes the transfers of its program.
    pub(super) fn status(
        &self,
        id: JobId,
        submit: &Submit,
        outlook: &GridOutlook,
        sent: Option<String>,
    ) -> JobStatus {
        let placed = || self.manager.why(id, outlook).map(|why| format!("a place: {why}"));
        JobStatus {
            principal: submit.principal.clone(),
            job: id,
            name: submit.name.clone(),
            state: JobState::Queued,
            sizes: BTreeMap::new(),
            waits_for: sent.or_else(placed),
            coordinator: None,
        }
    }

    /// Returns the history of a job.
    pub(super) fn history(&self, job: JobId, now: Instant) -> Vec<(f64, String)> {
        self.histories.of(job, now)
    }

    /// Requirements of a job.
    pub(super) fn need(&self, id: JobId) -> Option<JobRequirements> {
        self.manager.need(id).cloned()
    }

    /// Processors of a cluster in accounts of jobs.
    #[cfg(test)]
    pub(super) fn booked(&self, cluster: &ClusterId) -> u32 {
        self.manager.booked_processors(cluster)
    }

    /// Whether the manager has a job.
    pub(super) fn has(&self, id: JobId) -> bool {
        self.jobs.contains_key(&id)
    }

    /// Whether a job that ends now will be started again under the same number.
    pub(super) fn starts_again(&self, id: JobId) -> bool {
        let again =
            |job: &ManagedJob| matches!(job.stage, JobStage::Failing(_)) || job.again.is_some();
        self.jobs.get(&id).is_some_and(again)
    }

    /// Prevents a restart of a job whose client knows of its end.
    pub(super) fn prevent_restart(&mut self, id: JobId) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.again = None;
        if let JobStage::Failing(_) = job.stage {
            job.stage = JobStage::Claiming;
        }
    }

    /// Public state of a job in the manager.
    pub(super) fn view(&self, id: JobId) -> Option<JobView> {
        self.manager.job(id)
    }

    /// Waiting jobs of a client.
    pub(super) fn waiting_of<'a>(&'a self, client: &'a NodeId) -> impl Iterator<Item = JobId> + 'a {
        let waits =
            |job: &ManagedJob| matches!(job.stage, JobStage::Waiting | JobStage::Gathering { .. });
        let theirs = self.jobs.iter().filter(move |(_, job)| waits(job));
        theirs.filter(move |(_, job)| job.submit.client.node == *client).map(|(&id, _)| id)
    }
}

impl SchedulerCore {
    /// Submits a job with requirements to the manager.
    pub(super) fn submit_managed(
        &mut self,
        id: JobId,
        managed: ManagedJob,
        need: JobRequirements,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        let limit = managed.limit;
        self.managing.jobs.insert(id, managed);
        self.managing.node_needs |= !need.node.is_met_by_all();
        self.introduce_files(&need, now, out);
        self.poll(now, out);
        self.report(ManagerEvent::Submit { job: id, need: Box::new(need) }, now, out);
        if limit.is_some() {
            self.report(ManagerEvent::SizeLimited { job: id, most: limit }, now, out);
        }
    }

    /// Reports the consequences of the last event to the manager, and executes its orders.
    pub(super) fn manage(&mut self, now: Instant, out: &mut Vec<SchedulerAction>) {
        if self.managing.jobs.is_empty() && !self.managing.manager.has_reservations() {
            self.managing.next_poll = None;
            return;
        }
        self.reconcile(now, out);
        self.expire_limits(now, out);
        self.retry_hosts(now);
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        let (fewer, more) = self.changed();
        if (more || self.have_hosts_changed()) && !fewer && !due(self.managing.next_poll) {
            let soon = now + GATHER;
            self.managing.next_poll = Some(self.managing.next_poll.map_or(soon, |at| at.min(soon)));
        }
        if fewer || due(self.managing.next_poll) || self.managing.next_poll.is_none() {
            self.poll(now, out);
        }
        if due(self.managing.manager.due()) {
            self.report(ManagerEvent::Tick, now, out);
        }
        // The manager's orders may have taken nodes from jobs.
        self.reconcile(now, out);
    }

    /// Present processors by cluster.
    fn processors(&self) -> BTreeMap<ClusterId, KnownCapacity> {
        let mut all: BTreeMap<ClusterId, KnownCapacity> = BTreeMap::new();
        for cluster in self.sites.keys() {
            all.entry(cluster.clone()).or_default();
        }
        for (cluster, known) in &mut all {
            if self.is_on_demand(cluster) {
                *known = self.processors_on_demand(cluster);
            }
        }
        let standing = self.nodes.iter().filter(|(_, node)| !self.is_on_demand(&node.cluster));
        // Nodes that the queue waits for count as used.
        let wanted = self.wanted();
        let mut kept: BTreeMap<ClusterId, u32> = BTreeMap::new();
        for (id, node) in standing {
            let known = all.entry(node.cluster.clone()).or_default();
            let managed = self.managing.ledger.contains_key(id);
            // A node that is being started exists, and belongs to no job.
            let there = managed || node.works();
            let free = node.is_free() && !wanted.contains(&node.cluster);
            let processors = self.booked_size(id, node);
            known.whole += processors;
            if there {
                known.size += processors;
            }
            if there && !managed && !free {
                known.others += processors;
                if node.is_free() {
                    *kept.entry(node.cluster.clone()).or_default() += processors;
                }
            }
        }
        // Reserved processors are excepted: they belong to their reservations.
        for (cluster, count) in kept {
            let given_away = self.unreserved(&cluster).min(count);
            if let Some(known) = all.get_mut(&cluster) {
                known.others -= count - given_away;
            }
        }
        all
    }

    /// Whether some cluster has fewer idle processors than the manager knows, and whether more.
    fn changed(&self) -> (bool, bool) {
        let idle = |polled: &KnownCapacity| polled.size - polled.others;
        let (mut fewer, mut more) = (false, false);
        for (cluster, is) in self.processors() {
            let was = self.managing.polled.get(&cluster).map_or(0, idle);
            fewer |= idle(&is) < was;
            more |= idle(&is) > was;
        }
        (fewer, more)
    }

    /// Closes clusters whose sites have not registered: jobs that need them wait.
    pub(super) fn expect(
        &mut self,
        clusters: Vec<ClusterId>,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        for cluster in clusters {
            if self.sites.contains_key(&cluster) {
                continue;
            }
            let reason = "its site has not registered yet".to_owned();
            self.report(ManagerEvent::Unreachable { cluster, reason }, now, out);
        }
    }

    pub(super) fn poll(&mut self, now: Instant, out: &mut Vec<SchedulerAction>) {
        self.managing.next_poll = Some(now + self.managing.every);
        let all = self.processors();
        self.managing.polled = all.clone();
        for (cluster, KnownCapacity { size, others, whole }) in all {
            let news = match self.failing(&cluster) {
                Some(reason) => ManagerEvent::Unreachable { cluster, reason },
                None => {
                    self.report_hosts(&cluster, now, out);
                    ManagerEvent::Polled { cluster, size, others, whole }
                }
            };
            self.report(news, now, out);
        }
    }

    /// Reports an event to the manager, executes its orders, and reports their immediate results.
    pub(super) fn report(
        &mut self,
        news: ManagerEvent,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        self.report_all(VecDeque::from([news]), now, out);
    }

    /// Executes orders of the manager, and reports their immediate results.
    pub(super) fn execute_orders(
        &mut self,
        orders: Vec<ManagerAction>,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        let mut all = VecDeque::new();
        for order in orders {
            self.managing.histories.record_action(&order, now);
            all.extend(self.execute_order(order, now, out));
        }
        self.report_all(all, now, out);
    }

    fn report_all(
        &mut self,
        mut all: VecDeque<ManagerEvent>,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        while let Some(news) = all.pop_front() {
            self.managing.histories.record_event(&news, now);
            for order in self.managing.manager.handle(news, now) {
                self.managing.histories.record_action(&order, now);
                all.extend(self.execute_order(order, now, out));
            }
        }
    }

    fn execute_order(
        &mut self,
        order: ManagerAction,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) -> Option<ManagerEvent> {
        match order {
            ManagerAction::TransferFiles { job, transfers } => {
                self.begin_move(job, transfers, now, out);
                None
            }
            ManagerAction::Claim { job, placed } => {
                if placed.transfers.is_empty() {
                    // Transfers for an earlier placement are cancelled.
                    self.cancel_move(job, out);
                }
                self.claim(job, &placed, now, out)
            }
            ManagerAction::Fail { job, reason } => {
                self.cancel_move(job, out);
                let refused = |managed: &ManagedJob| managed.refused.values().next().cloned();
                let error = match self.managing.jobs.get(&job).and_then(refused) {
                    // It had a place where its program does not start.
                    Some(error) => SubmitError::Shipping(Box::new(error)),
                    None => SubmitError::NotPlaced { reason },
                };
                self.forget_managed(job);
                out.push(SchedulerAction::Refuse { job, error });
                out.push(SchedulerAction::Forget { job });
                None
            }
            ManagerAction::Offer { job, change, cluster, count, within, why } => {
                let Some(coordinator) = self.coordinator_of(job) else {
                    return Some(ManagerEvent::Answer { job, change, count: None });
                };
                let count = self.whole_nodes(&cluster, count);
                if count == 0 {
                    return Some(ManagerEvent::Answer { job, change, count: Some(0) });
                }
                let offer =
                    ManagerQuestion { job, coordinator, change, cluster, count, within, why };
                out.push(SchedulerAction::OfferGrowth(Box::new(offer)));
                None
            }
            ManagerAction::Hold { job, change, cluster, count } if self.is_on_demand(&cluster) => {
                self.hold_stubs(job, change, &cluster, count, now, out)
            }
            // Nodes of a standing pool are held once they are selected, at recruitment.
            ManagerAction::Hold { job, change, count, .. } => {
                Some(ManagerEvent::Held { job, change, count })
            }
            ManagerAction::Recruit { job, change, cluster, count } => {
                self.recruit(job, change, cluster, count, now, out)
            }
            ManagerAction::Unhold { job, change, cluster, count, .. } => {
                self.release_held(job, change, &cluster, count, now, out)
            }
            ManagerAction::Shrink {
                job,
                change,
                cluster,
                count,
                mandatory,
                answer_timeout,
                within,
                why,
            } => {
                let Some(coordinator) = self.coordinator_of(job) else {
                    return Some(ManagerEvent::Answer { job, change, count: None });
                };
                let within_ms = u64::try_from(within.as_millis()).unwrap_or(u64::MAX);
                let within = answer_timeout;
                let asking =
                    ManagerQuestion { job, coordinator, change, cluster, count, within, why };
                out.push(SchedulerAction::AskShrink {
                    asking: Box::new(asking),
                    mandatory,
                    within_ms,
                });
                None
            }
            ManagerAction::Force { job, cluster, count, reason } => {
                self.take_by_force(job, &cluster, count, &reason, now, out)
            }
            ManagerAction::Refuse { job, reason } => {
                let mut number = 0;
                if let Some(managed) = self.managing.jobs.get_mut(&job) {
                    number = managed.ordered.number;
                    // Only urgent requests are refused, which clears the manager's request. Other
                    // requests are reported again.
                    (managed.wants, managed.ordered) = Default::default();
                }
                if let Some(coordinator) = self.coordinator_of(job) {
                    out.push(SchedulerAction::RefuseGrowth { job, coordinator, reason, number });
                }
                None
            }
            ManagerAction::End { job, reason } => {
                self.cancel(job, &reason, now, out);
                None
            }
            ManagerAction::ReservationEnded(bill) => {
                out.push(SchedulerAction::Unreserved(bill));
                None
            }
            ManagerAction::ProtocolViolation { what } => {
                out.push(SchedulerAction::ProtocolViolation { what });
                None
            }
        }
    }

    /// Number of these processors that whole nodes can give. Where all nodes have one processor, it
    /// is `count`, and nodes of hosts are as large as needed.
    fn whole_nodes(&self, cluster: &ClusterId, count: u32) -> u32 {
        let here = || self.nodes.values().filter(|node| node.cluster == *cluster);
        if self.has_hosts(cluster) || here().all(|node| node.processors() <= Processors::ONE) {
            return count;
        }
        let free = here().filter(|node| node.is_free() || node.is_off());
        let sizes: Vec<Processors> = free.map(PoolNode::processors).collect();
        let fit = select_nodes(sizes.iter().copied(), count.into(), count.into());
        fit.into_iter().map(|at| sizes[at].get()).sum()
    }

    /// Processors of a node as the manager counts them: those that were booked, if it is booked.
    pub(super) fn booked_size(&self, id: &NodeId, node: &PoolNode) -> u32 {
        let booked = self.managing.ledger.get(id).map(|entry| entry.processors);
        booked.unwrap_or_else(|| node.processors().get())
    }

    /// Removes a node that starts again from the account of the job that it worked for before, and
    /// remembers its processors: the manager learns that they are free at the next reconciliation.
    pub(super) fn close_account(&mut self, id: &NodeId) {
        if let Some(entry) = self.managing.ledger.remove(id) {
            self.managing.closed.push((id.clone(), entry));
        }
    }

    /// Puts a node into a job's account, or changes its use there.
    pub(super) fn book_node(&mut self, id: &NodeId, job: JobId, used: NodeUse) {
        let Some(processors) = self.nodes.get(id).map(|node| self.booked_size(id, node)) else {
            return;
        };
        self.managing.ledger.insert(id.clone(), LedgerEntry { job, used, processors });
    }

    pub(super) fn coordinator_of(&self, id: JobId) -> Option<NodeId> {
        let job = self.jobs.get(&id).filter(|job| job.state == JobState::Running)?;
        job.view.coordinator.clone()
    }

    /// Compares the ledger with the actual states of nodes, and reports each difference to the
    /// manager.
    fn reconcile(&mut self, now: Instant, out: &mut Vec<SchedulerAction>) {
        // All free nodes leave the ledger first, because the manager may grant them at the first
        // report.
        let mut free = Vec::new();
        self.managing.ledger.retain(|node, LedgerEntry { job, used, processors }| {
            let known = self.nodes.get(node);
            let holds = known.is_some_and(|known| {
                known.state == PoolNodeState::Busy(*job) || known.reserved == Some(*job)
            });
            let let_go = self.managing.let_go.remove(node);
            // A node under drain did not leave voluntarily.
            let let_go = let_go && known.is_some_and(|known| known.drain.is_none());
            let freed = known.filter(|_| !holds);
            free.extend(
                freed.map(|known| (known.cluster.clone(), *job, *used, *processors, let_go)),
            );
            holds
        });
        self.managing.let_go.clear();
        free.extend(self.take_closed());
        self.record_lost_claims(&free);
        self.reconcile_stubs(now, out);
        self.report_revocations(now, out);
        for id in self.managing.jobs.keys().copied().collect::<Vec<_>>() {
            self.gather(id, now, out);
            self.reconcile_job(id, now, out);
        }
        // A report may close other accounts, when the manager starts one of these nodes again.
        while !free.is_empty() {
            self.report_free(std::mem::take(&mut free), now, out);
            free = self.take_closed();
            self.record_lost_claims(&free);
        }
        let ledger = &self.managing.ledger;
        let has = |id: &JobId| ledger.values().any(|entry| entry.job == *id);
        let over = |(id, job): (&JobId, &ManagedJob)| job.stage == JobStage::Over && !has(id);
        let over: Vec<JobId> =
            self.managing.jobs.iter().filter(|one| over(*one)).map(|(id, _)| *id).collect();
        for id in over {
            if !self.restart_if_due(id, out) {
                self.forget_managed(id);
                out.push(SchedulerAction::Forget { job: id });
            }
        }
    }

    /// The entries of closed accounts.
    fn take_closed(&mut self) -> Vec<FreedNode> {
        let closed = std::mem::take(&mut self.managing.closed);
        let freed = |(node, entry): (NodeId, LedgerEntry)| {
            let cluster = self.nodes.get(&node)?.cluster.clone();
            let LedgerEntry { job, used, processors } = entry;
            Some((cluster, job, used, processors, false))
        };
        closed.into_iter().filter_map(freed).collect()
    }

    /// Records processors that starting jobs have lost: claims are reported as a whole.
    fn record_lost_claims(&mut self, free: &[FreedNode]) {
        for (cluster, job, used, count, _) in free {
            if let (NodeUse::Claimed, Some(managed)) = (used, self.managing.jobs.get_mut(job)) {
                *managed.lost.entry(cluster.clone()).or_default() += count;
            }
        }
    }

    /// Reports nodes that have left their jobs' accounts.
    fn report_free(&mut self, free: Vec<FreedNode>, now: Instant, out: &mut Vec<SchedulerAction>) {
        for (cluster, job, used, count, let_go) in free {
            match used {
                NodeUse::Claimed | NodeUse::Recruited(_) => {}
                NodeUse::Requested(change) | NodeUse::Held(change) => {
                    let reason = "its node is lost".to_owned();
                    self.report(ManagerEvent::NotHeld { job, change, count, reason }, now, out);
                }
                NodeUse::Computing => {
                    self.report(
                        ManagerEvent::Freed { job, cluster, count, voluntary: let_go },
                        now,
                        out,
                    );
                }
                NodeUse::Releasing => {
                    self.report(ManagerEvent::Unheld { job, cluster, count }, now, out)
                }
            }
        }
    }

    /// Removes a job that the manager no longer knows.
    pub(super) fn forget_managed(&mut self, id: JobId) {
        let ManagerState { jobs, histories, .. } = &mut self.managing;
        jobs.remove(&id);
        histories.trim(|job| jobs.contains_key(&job));
    }

    fn reconcile_job(&mut self, id: JobId, now: Instant, out: &mut Vec<SchedulerAction>) {
        let state = self.jobs.get(&id).map(|job| job.state);
        let Some(managed) = self.managing.jobs.get_mut(&id) else { return };
        match (managed.stage.clone(), state) {
            (JobStage::Claiming, Some(JobState::Running)) => {
                managed.stage = JobStage::Running;
                managed.lost.clear();
                let mut got: BTreeMap<ClusterId, u32> = BTreeMap::new();
                for (node, entry) in &mut self.managing.ledger {
                    let known =
                        self.nodes.get(node).filter(|known| known.state == PoolNodeState::Busy(id));
                    if let Some(known) = known.filter(|_| entry.job == id) {
                        entry.used = NodeUse::Computing;
                        *got.entry(known.cluster.clone()).or_default() += entry.processors;
                    }
                }
                self.report(ManagerEvent::Claimed { job: id, got }, now, out);
            }
            (JobStage::Failing(_), None) => {
                if let Some(news) = self.requeue_failed(id) {
                    self.report(news, now, out);
                }
            }
            (JobStage::Claiming | JobStage::Running, Some(JobState::Ending) | None) => {
                managed.stage = JobStage::Over;
                let lost = std::mem::take(&mut managed.lost);
                self.report(ManagerEvent::Ended { job: id }, now, out);
                for (cluster, count) in lost {
                    let let_go = false;
                    self.report(
                        ManagerEvent::Freed { job: id, cluster, count, voluntary: let_go },
                        now,
                        out,
                    );
                }
                // Claimed nodes count as used from here on.
                for entry in self.managing.ledger.values_mut() {
                    if entry.job == id && entry.used == NodeUse::Claimed {
                        entry.used = NodeUse::Computing;
                    }
                }
            }
            (JobStage::Running, Some(JobState::Running)) => {
                self.report_root(id, now, out);
                self.report_request(id, now, out);
            }
            _ => {}
        }
    }

    /// Reports changes of the processors that will be taken away from jobs.
    pub(super) fn report_revocations(&mut self, now: Instant, out: &mut Vec<SchedulerAction>) {
        if self.marked.is_empty() && self.managing.revocations.is_empty() {
            return;
        }
        let planned = self.planned_revocations();
        let before = std::mem::replace(&mut self.managing.revocations, planned.clone());
        let ended = before.keys().filter(|key| !planned.contains_key(*key));
        let ended = ended.map(|key| (key.clone(), PlannedRevocations::default()));
        let changed = planned.iter().filter(|(key, value)| before.get(*key) != Some(*value));
        let changed = changed.map(|(key, value)| (key.clone(), *value));
        let all: Vec<_> = ended.chain(changed).collect();
        for ((job, cluster), PlannedRevocations { count, unreplaced }) in all {
            let planned = ManagerEvent::RevocationsPlanned { job, cluster, count, unreplaced };
            self.report(planned, now, out);
        }
    }

    /// Reports a change of the root's cluster.
    fn report_root(&mut self, id: JobId, now: Instant, out: &mut Vec<SchedulerAction>) {
        let coordinator = self.jobs.get(&id).and_then(|job| job.view.coordinator.as_ref());
        let cluster = coordinator.and_then(|node| Some(self.nodes.get(node)?.cluster.clone()));
        if self.managing.manager.root(id) != cluster.as_ref() {
            self.report(ManagerEvent::RootMoved { job: id, cluster }, now, out);
        }
    }

    /// Reports a change of the job's request. An order of its owner or program comes first, and
    /// alone, so that no job shrinks for a request that can wait.
    pub(super) fn report_request(
        &mut self,
        id: JobId,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        let Some(job) = self.jobs.get(&id) else { return };
        let Some(managed) = self.managing.jobs.get(&id) else { return };
        let wants = match managed.ordered.count {
            0 => {
                let count = job.open.count.get();
                let but = if count == 0 { BTreeSet::new() } else { self.unfit_for(job, now) };
                GrowthOrder { count, but, ..GrowthOrder::default() }
            }
            _ => managed.ordered.clone(),
        };
        if managed.wants == wants {
            return;
        }
        if let Some(managed) = self.managing.jobs.get_mut(&id) {
            managed.wants = wants.clone();
        }
        let GrowthOrder { count, until, clusters, but, .. } = wants;
        let within = until.map(|until| until.saturating_duration_since(now));
        let want = GrowthRequest { count, timeout: within, clusters, excluded_clusters: but };
        self.report(ManagerEvent::GrowthRequested { job: id, want }, now, out);
    }

    /// Checks that the manager's accounts agree with the ledger, and the ledger with the nodes.
    ///
    /// # Errors
    /// Description of the first inconsistency.
    pub(super) fn check_ledger(&self) -> Result<(), String> {
        let mut sums: BTreeMap<&ClusterId, u32> = BTreeMap::new();
        for (node, LedgerEntry { job, used, processors }) in &self.managing.ledger {
            let Some(known) = self.nodes.get(node) else {
                return Err(format!("{node} is in the ledger of {job}, and no such node exists"));
            };
            if known.state != PoolNodeState::Busy(*job) && known.reserved != Some(*job) {
                return Err(format!(
                    "{node} is in the ledger of {job} as {used:?}, but is {known:?}"
                ));
            }
            *sums.entry(&known.cluster).or_default() += processors;
        }
        for (cluster, sum) in sums {
            let booked = self.managing.manager.booked_processors(cluster);
            if sum > booked {
                return Err(format!(
                    "{cluster} has {sum} processors in the ledger, and {booked} booked ones"
                ));
            }
        }
        Ok(())
    }
}
