//! Requests of coordinators: more nodes, offers, speeds, and subscriptions to faster nodes.
//!
//! Requests are served by job number. A request with a benchmark waits at most [`MEASURE_TIMEOUT`]
//! for the speeds of unmeasured free nodes. Later requests wait too, because they would get those
//! nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use springtide_base::id::{ClusterId, Epoch, Incarnation, JobId, NodeId};
use springtide_base::processors::Processors;
use springtide_metrics::{BenchmarkSpec, SpeedMeasurement};
use springtide_net::net::Contact;
use tokio::time::Instant;

use super::choose::{SelectionInput, choose};
use super::event::SchedulerAction;
use super::node::{PoolNode, PoolNodeState, member};
use super::speeds::{SpeedClass, Unit};
use super::{ActiveJob, SchedulerCore};
use crate::policy::SchedulerRequest;
use crate::scheduler::{
    AuthorityError, GrantedNode, JobState, Offers, RequestNodes, SpeedsMeasured, Subscribe,
    WithdrawNodes,
};

/// Time limit of a request's wait for benchmarks.
const MEASURE_TIMEOUT: Duration = Duration::from_secs(5);
/// Delay before the next grant after a failed one.
const GRANT_RETRY_DELAY: Duration = Duration::from_secs(1);

/// Open request of a job. The criteria of the last request apply to all open processors.
#[derive(Debug, Default)]
pub(super) struct OpenRequest {
    pub(super) count: Processors,
    /// Greatest number of processors, if no nodes fit `count`.
    pub(super) most: Processors,
    pub(super) request: SchedulerRequest,
    pub(super) benchmark: Option<BenchmarkSpec>,
    pub(super) rtt_s: BTreeMap<ClusterId, f64>,
    pub(super) bandwidth: BTreeMap<ClusterId, f64>,
    /// Earliest time of the next grant.
    pub(super) not_before: Option<Instant>,
    /// End of the wait for benchmarks.
    pub(super) measure_until: Option<Instant>,
    /// Reason why no node was granted.
    why: String,
}

impl OpenRequest {
    pub(super) fn waits_for(&self) -> Option<String> {
        let OpenRequest { count, why, .. } = self;
        let s = if *count == Processors::ONE { "" } else { "s" };
        (!count.is_zero()).then(|| format!("{} more processor{s}: {why}", count.get()))
    }

    /// Subtracts withdrawn processors.
    fn withdraw(&mut self, processors: Processors) {
        self.count = self.count.saturating_sub(processors);
        self.most = self.most.saturating_sub(processors).max(self.count);
        if self.count.is_zero() {
            self.most = Processors::ZERO;
        }
    }

    /// Subtracts granted processors. Returns what the grant serves: a node may have more
    /// processors than were open.
    ///
    /// The rest gets a greater node only where the sum comes nearer to the requested number, as in
    /// one selection of nodes.
    pub(super) fn serve(&mut self, granted: Processors) -> ServedRequest {
        let before = (self.count, self.most);
        self.withdraw(granted);
        if !granted.is_zero() && !self.count.is_zero() {
            let nearer = self.count.saturating_mul(2).saturating_sub(Processors::ONE);
            self.most = self.most.min(nearer);
        }
        ServedRequest {
            count: before.0.saturating_sub(self.count),
            most: before.1.saturating_sub(self.most),
        }
    }

    /// Opens again what a grant has served.
    fn reopen(&mut self, served: ServedRequest) {
        self.count = self.count.saturating_add(served.count);
        self.most = self.most.saturating_add(served.most);
    }
}

/// The part of an open request that a grant serves.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ServedRequest {
    count: Processors,
    most: Processors,
}

/// A grant that the coordinator has not acknowledged.
#[derive(Debug)]
pub(super) struct OpenGrant {
    pub(super) nodes: Vec<NodeId>,
    pub(super) served: ServedRequest,
}

#[derive(Debug)]
pub(super) struct Subscription {
    faster_than: f64,
    /// Faster nodes that were free at the last check.
    free: BTreeSet<NodeId>,
}

impl SchedulerCore {
    /// Checks that a coordinator of this epoch has authority over this job.
    pub fn check(&self, id: JobId, epoch: Epoch) -> Result<(), AuthorityError> {
        match self.jobs.get(&id) {
            Some(job) if job.state == JobState::Ending => Err(AuthorityError::Over { job: id }),
            Some(job) if epoch != job.epoch => {
                Err(AuthorityError::Epoch { job: id, asked: epoch, known: job.epoch })
            }
            Some(_) => Ok(()),
            None if self.is_returning(id) => Ok(()),
            None => Err(AuthorityError::Over { job: id }),
        }
    }

    /// Number of processors that a job has requested, and that have not reached its coordinator.
    pub fn asked(&self, id: JobId) -> Processors {
        self.jobs.get(&id).map_or(Processors::ZERO, |job| job.asked(&self.nodes))
    }

    /// Computes the nodes that a job could get at `now`.
    pub fn offers(&self, id: JobId, epoch: Epoch, now: Instant) -> Result<Offers, AuthorityError> {
        self.check(id, epoch)?;
        let working = self.nodes.values().filter(|node| node.works());
        let existing = working.map(PoolNode::processors).sum();
        // A returning job gets no offers yet.
        let job = self.jobs.get(&id);
        let offers = job.map_or_else(BTreeMap::new, |job| self.offers_for(job, now));
        Ok(Offers { offers, open: self.asked(id), existing })
    }

    /// Finds a free node of a cluster that would be offered to a job.
    ///
    /// # Errors
    /// As for [`SchedulerCore::check`].
    pub fn sample(
        &self,
        id: JobId,
        epoch: Epoch,
        cluster: &ClusterId,
    ) -> Result<Option<Contact>, AuthorityError> {
        self.check(id, epoch)?;
        let Some(job) = self.jobs.get(&id) else { return Ok(None) };
        let found = self.free_for(job).find(|(_, registration)| registration.cluster == *cluster);
        Ok(found.map(|(node, registration)| {
            let (node, cluster, address) =
                (node.clone(), cluster.clone(), registration.address.clone());
            Contact { node, cluster, address }
        }))
    }

    pub(super) fn request(
        &mut self,
        request: RequestNodes,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        let RequestNodes { job: id, epoch, request, benchmark, rtt_s, bandwidth } = request;
        if self.check(id, epoch).is_err() {
            return;
        }
        let Some(job) = self.jobs.get_mut(&id) else { return };
        for (what, value) in [("speed", request.min_speed), ("bandwidth", request.min_bandwidth)] {
            if let Some(value) = value.filter(|value| !value.is_finite() || *value < 0.0) {
                let what =
                    format!("{id} asks for a {what} of at least {value}: the condition is ignored");
                out.push(SchedulerAction::ProtocolViolation { what });
            }
        }
        if let Some(spec) = &benchmark {
            job.unit = Some(Unit::of(spec.id(), id));
        }
        job.open = OpenRequest {
            count: job.open.count.saturating_add(request.count),
            most: job.open.most.saturating_add(request.most.max(request.count)),
            measure_until: benchmark.as_ref().map(|_| now + MEASURE_TIMEOUT),
            request,
            benchmark,
            rtt_s,
            bandwidth,
            not_before: job.open.not_before,
            why: String::new(),
        };
    }

    pub(super) fn withdraw(&mut self, withdraw: WithdrawNodes) {
        let WithdrawNodes { job: id, epoch, count } = withdraw;
        if self.check(id, epoch).is_ok()
            && let Some(job) = self.jobs.get_mut(&id)
        {
            job.open.withdraw(count);
        }
    }

    pub(super) fn subscribe(&mut self, subscribe: Subscribe, out: &mut Vec<SchedulerAction>) {
        let Subscribe { job: id, epoch, faster_than } = subscribe;
        if self.check(id, epoch).is_err() {
            return;
        }
        let Some(job) = self.jobs.get_mut(&id) else { return };
        if faster_than.is_some_and(f64::is_nan) {
            let what = format!("{id} wants nodes faster than NaN: its subscription ends");
            out.push(SchedulerAction::ProtocolViolation { what });
        }
        job.subscription = faster_than.filter(|speed| !speed.is_nan()).map(|faster_than| {
            // Nodes that were reported already are not reported again for a new bound.
            let free = job.subscription.take().map(|old| old.free).unwrap_or_default();
            Subscription { faster_than, free }
        });
    }

    pub(super) fn record_speeds(
        &mut self,
        report: SpeedsMeasured,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        let SpeedsMeasured { job: id, epoch, spec, speeds } = report;
        if self.check(id, epoch).is_err() {
            return;
        }
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let unit = Unit::of(spec, id);
        if job.open.benchmark.is_none() {
            job.unit = Some(unit);
        }
        for (node, speed) in speeds {
            let held = self.nodes.get(&node).filter(|node| node.state == PoolNodeState::Busy(id));
            let Some(registration) = held.and_then(|node| node.registration.as_ref()) else {
                continue;
            };
            if let Err(speed) = self.speeds.at_work(unit, registration, speed, now) {
                let what = format!("{id} measured a speed of {speed} of node {node}: not used");
                out.push(SchedulerAction::ProtocolViolation { what });
            }
        }
    }

    pub(super) fn measured(
        &mut self,
        id: &NodeId,
        incarnation: Incarnation,
        answer: Result<SpeedMeasurement, String>,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        let Some(node) = self.nodes.get_mut(id) else { return };
        let PoolNodeState::Measuring(unit) = node.state else { return };
        let Some(registration) = node
            .registration
            .as_ref()
            .filter(|registration| registration.incarnation == incarnation)
        else {
            return; // the answer of an earlier incarnation
        };
        (node.state, node.since) = (PoolNodeState::Idle, Some(now));
        match answer {
            Ok(SpeedMeasurement { speed, .. }) => {
                if let Err(speed) = self.speeds.benchmarked(unit, registration, speed, now) {
                    let what = format!("node {id} measured a speed of {speed}: not used");
                    out.push(SchedulerAction::ProtocolViolation { what });
                }
            }
            Err(reason) => {
                self.speeds.failed(unit, registration, now);
                let what = format!("node {id} could not be measured: {reason}");
                out.push(SchedulerAction::ProtocolViolation { what });
            }
        }
    }

    /// Serves the requests of running jobs, by job number.
    pub(super) fn serve_requests(&mut self, now: Instant, out: &mut Vec<SchedulerAction>) {
        let over = |at: &mut Option<Instant>| *at = at.filter(|at| *at > now);
        let mut asking = Vec::new();
        for (&id, job) in &mut self.jobs {
            over(&mut job.open.not_before);
            over(&mut job.open.measure_until);
            if job.state == JobState::Running && !job.open.count.is_zero() && !self.managing.has(id)
            {
                asking.push(id);
            }
        }
        for id in asking {
            if !self.serve_request(id, now, out) {
                return;
            }
        }
    }

    /// Serves a job. Returns whether the next job may be served.
    fn serve_request(&mut self, id: JobId, now: Instant, out: &mut Vec<SchedulerAction>) -> bool {
        let Some(job) = self.jobs.get(&id) else { return true };
        let Some(coordinator) = job.view.coordinator.clone() else { return true };
        if job.open.not_before.is_some() {
            return true;
        }
        let has = self.processors_of(&job.members);
        let room = job.max.map_or(Processors::MAX, |max| max.saturating_sub(has));
        let count = job.open.count.min(room);
        let mut case = SelectionInput {
            count,
            most: job.open.most.min(room),
            request: job.open.request.clone(),
            rtt_s: job.open.rtt_s.clone(),
            bandwidth: job.open.bandwidth.clone(),
            free: self.candidates(job, now),
        };
        self.exclude_reserved(&mut case.free);
        if !count.is_zero() && self.measure(id, &case, now, out) {
            return false;
        }
        let Some(job) = self.jobs.get(&id) else { return true };
        case.free = self.candidates(job, now);
        self.exclude_reserved(&mut case.free);
        let mut choice = choose(&case);
        if count.is_zero() {
            choice.why = format!("it has {}, as many as it may have", has.get());
        }
        let granted = choice.nodes.iter().filter_map(|node| {
            let registration = self.nodes.get(node)?.registration.as_ref()?;
            let speed = case.free.get(node).and_then(|candidate| candidate.speed);
            Some(GrantedNode { node: node.clone(), member: member(registration), speed })
        });
        let nodes: Vec<GrantedNode> = granted.collect();
        let Some(job) = self.jobs.get_mut(&id) else { return true };
        if nodes.is_empty() {
            job.open.why = choice.why;
            return true;
        }
        let granted = nodes.iter().map(GrantedNode::processors).sum();
        let served = job.open.serve(granted);
        job.open.why = "no node is free".to_owned();
        let (open, why, case) = (job.open.count, choice.why, Box::new(case));
        let grant = self.add_members(id, &nodes, served);
        out.push(SchedulerAction::GrantNodes {
            job: id,
            grant,
            coordinator,
            nodes,
            open,
            why,
            case,
        });
        self.poll_for_reservations(now, out);
        true
    }

    /// The processors of these nodes.
    pub(super) fn processors_of<'a>(
        &self,
        nodes: impl IntoIterator<Item = &'a NodeId>,
    ) -> Processors {
        nodes.into_iter().filter_map(|id| self.nodes.get(id)).map(PoolNode::processors).sum()
    }

    /// Mean processors of a job's nodes, rounded up; at least one.
    pub(super) fn mean_processors(&self, job: &ActiveJob) -> Processors {
        let nodes = u32::try_from(job.members.len()).unwrap_or(u32::MAX).max(1);
        Processors::of_node(self.processors_of(&job.members).get().div_ceil(nodes))
    }

    /// Removes nodes that reservations need, so that jobs without a time limit do not get them.
    fn exclude_reserved(&self, free: &mut BTreeMap<NodeId, super::FreeNode>) {
        let mut left: BTreeMap<ClusterId, u32> = BTreeMap::new();
        free.retain(|_, candidate| {
            let cluster = &candidate.cluster;
            let left = left.entry(cluster.clone()).or_insert_with(|| self.unreserved(cluster));
            match left.checked_sub(candidate.processors().get()) {
                Some(rest) => {
                    *left = rest;
                    true
                }
                None => false,
            }
        });
    }

    /// Makes nodes members of a running job. Returns the number of the grant.
    pub(super) fn add_members(
        &mut self,
        id: JobId,
        nodes: &[GrantedNode],
        served: ServedRequest,
    ) -> u64 {
        self.last_grant += 1;
        let grant = self.last_grant;
        let Some(job) = self.jobs.get_mut(&id) else { return grant };
        for GrantedNode { node, .. } in nodes {
            if let Some(known) = self.nodes.get_mut(node) {
                (known.state, known.reserved) = (PoolNodeState::Busy(id), None);
            }
            job.members.insert(node.clone());
            job.granted.insert(node.clone());
        }
        let nodes = nodes.iter().map(|granted| granted.node.clone()).collect();
        job.grants.insert(grant, OpenGrant { nodes, served });
        grant
    }

    /// Starts benchmarks on free nodes of unknown speed that the request could get.
    ///
    /// Returns whether the request must wait for them, which it does only for a limited time. Nodes
    /// under measurement are not granted. No benchmark runs where it cannot affect the selection:
    /// all fitting nodes are of one kind, or all are granted, and none is in doubt.
    fn measure(
        &mut self,
        id: JobId,
        case: &SelectionInput,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) -> bool {
        let Some(job) = self.jobs.get(&id) else { return false };
        let (Some(unit), Some(spec)) = (job.unit, job.open.benchmark.clone()) else { return false };
        let within = job.open.measure_until.is_some();
        let under_way = |nodes: &BTreeMap<NodeId, super::PoolNode>| -> BTreeSet<SpeedClass> {
            let here = nodes.values().filter(|node| node.state == PoolNodeState::Measuring(unit));
            here.filter_map(|node| node.registration.as_ref()).map(SpeedClass::of).collect()
        };
        let fit = choose(&SelectionInput { count: Processors::MAX, ..case.clone() }).nodes;
        let all = self.processors_of(&fit);
        let registrations =
            fit.iter().filter_map(|node| self.nodes.get(node)?.registration.as_ref());
        let mut settled = under_way(&self.nodes);
        let kinds: BTreeSet<SpeedClass> = registrations.clone().map(SpeedClass::of).collect();
        let any_will_do = case.request.min_speed.is_none() && !self.speeds.any_slow(&fit);
        if any_will_do && (kinds.len() == 1 || all <= case.count) {
            settled.extend(kinds);
        }
        for node in self.speeds.to_measure(unit, registrations, settled, now) {
            let Some(known) = self.nodes.get_mut(&node) else { continue };
            let Some(incarnation) =
                known.registration.as_ref().map(|registration| registration.incarnation)
            else {
                continue;
            };
            known.state = PoolNodeState::Measuring(unit);
            out.push(SchedulerAction::Measure { node, incarnation, spec: Box::new(spec.clone()) });
        }
        let waits = within && !under_way(&self.nodes).is_empty();
        if let Some(job) = self.jobs.get_mut(&id).filter(|_| waits) {
            job.open.why = "free nodes are being measured".to_owned();
        }
        waits
    }

    pub(super) fn grant_acknowledged(
        &mut self,
        id: JobId,
        grant: u64,
        ok: bool,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let Some(OpenGrant { nodes, served }) = job.grants.remove(&grant) else { return };
        if ok {
            return self.grant_settled(id, grant, now, out);
        }
        if let Some(managed) = self.managing.jobs.get_mut(&id)
            && let Some(given) = managed.grants.get(&grant)
        {
            managed.ordered.count = managed.ordered.count.saturating_add(given.ordered);
        }
        job.open.reopen(served);
        job.open.not_before = Some(now + GRANT_RETRY_DELAY);
        job.open.why = "its coordinator did not take the last grant".to_owned();
        for node in nodes {
            // The coordinator may have received the grant all the same: the node must end the job
            // first.
            let held = self.jobs.get(&id).is_some_and(|job| job.members.contains(&node));
            if held {
                self.release(id, &node, out);
            }
        }
        self.grant_settled(id, grant, now, out);
    }

    /// Notifies subscribers of faster nodes that were not free at the last check.
    pub(super) fn notify_subscribers(&mut self, now: Instant, out: &mut Vec<SchedulerAction>) {
        let mut seen = Vec::new();
        for (&id, job) in &self.jobs {
            let Some(subscription) = &job.subscription else { continue };
            let better = self.free_for(job).filter(|(_, registration)| {
                let speed = self.speeds.best(job.unit, registration, now);
                let processors = f64::from(Processors::of_node(registration.threads));
                speed.is_some_and(|speed| speed / processors > subscription.faster_than)
            });
            let better: BTreeSet<NodeId> = better.map(|(node, _)| node.clone()).collect();
            if let (true, Some(coordinator)) =
                (!better.is_subset(&subscription.free), &job.view.coordinator)
            {
                let (coordinator, offers) = (coordinator.clone(), self.offers_for(job, now));
                out.push(SchedulerAction::BetterFree { job: id, coordinator, offers });
            }
            seen.push((id, better));
        }
        for (id, better) in seen {
            if let Some(subscription) = self.jobs.get_mut(&id).and_then(|j| j.subscription.as_mut())
            {
                subscription.free = better;
            }
        }
    }
}
