//! The queue of jobs that wait for all their nodes at once.
//!
//! Jobs are served strictly in order, and before running jobs get more nodes. Only a job that
//! cannot be placed until nodes return to service is skipped meanwhile.

use std::collections::{BTreeMap, BTreeSet};

use springtide_base::id::{ClusterId, Epoch, JobId, NodeId};
use springtide_base::processors::{Processors, select_nodes};
use springtide_net::membership::View;
use tokio::time::Instant;

use super::event::SchedulerAction;
use super::node::{PoolNode, PoolNodeState, ProgramKey, member};
use super::pool::ClusterPool;
use super::starts::{Attempts, Start};
use super::{ActiveJob, SchedulerCore};
use crate::job::{Assign, JobSpec};
use crate::program::ProgramError;
use crate::scheduler::{JobState, JobStatus, Submit, SubmitError};

#[derive(Debug)]
pub(super) struct QueuedJob {
    pub(super) job: JobId,
    pub(super) epoch: Epoch,
    pub(super) submit: Box<Submit>,
    pub(super) waits_for: String,
    /// Whether it cannot be placed before a node returns to service.
    pub(super) blocked: bool,
    /// State of its wait for nodes that may arrive.
    rest: NodeWait,
    /// Failed attempts to start it.
    pub(super) attempts: Attempts,
    /// Whether its next placement waits until its next epoch is on disk.
    pub(super) awaits_epoch: bool,
    /// Clusters that do not start its program, and why.
    pub(super) refused: BTreeMap<ClusterId, ProgramError>,
}

impl QueuedJob {
    /// Whether the job may start with fewer nodes than requested: it requests every node, or lost
    /// some at a failed start.
    fn takes_fewer(&self) -> bool {
        self.submit.clusters.is_none() || self.attempts.failed > 0
    }

    pub(super) fn new(job: JobId, epoch: Epoch, submit: Box<Submit>) -> Self {
        Self {
            job,
            epoch,
            submit,
            waits_for: String::new(),
            blocked: false,
            rest: NodeWait::Unknown,
            attempts: Attempts::default(),
            awaits_epoch: false,
            refused: BTreeMap::new(),
        }
    }

    pub(super) fn status(&self) -> JobStatus {
        JobStatus {
            principal: self.submit.principal.clone(),
            job: self.job,
            name: self.submit.name.clone(),
            state: JobState::Queued,
            sizes: BTreeMap::new(),
            waits_for: Some(self.waits_for.clone()),
            coordinator: None,
        }
    }
}

/// State of the wait for nodes that are starting or unreachable, at the head of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NodeWait {
    /// It does not wait, or for other nodes.
    Unknown,
    /// It waits until this time.
    Until(Instant),
    /// The time has passed: it starts with the present nodes, if they suffice.
    Over,
}

/// Whether a job in the queue can start on nodes that are present.
enum StartDecision {
    /// The job can start on these nodes.
    Nodes(Vec<NodeId>),
    /// The job must wait.
    Wait {
        /// Nodes that it waits for, and why they are not available.
        reason: String,
        /// Whether all missing nodes may arrive by themselves.
        coming: bool,
    },
    /// The job must wait until nodes return to service.
    Blocked(String),
    /// Nodes must first be restarted with the job's program.
    Replace(BTreeMap<ClusterId, Vec<NodeId>>),
    /// The job can never start.
    Never(SubmitError),
}

/// Reasons why a job's nodes are not available.
enum Lack {
    Never(SubmitError),
    Blocked(String),
}

impl SchedulerCore {
    /// Serves the queue from its head, up to the first job that must wait.
    pub(super) fn serve_queue(&mut self, now: Instant, out: &mut Vec<SchedulerAction>) {
        let mut at = 0;
        while let Some(waiting) = self.queue.get_mut(at) {
            waiting.blocked = false;
            if waiting.awaits_epoch {
                return self.wait_behind(at);
            }
            if matches!(waiting.rest, NodeWait::Until(until) if until <= now) {
                waiting.rest = NodeWait::Over;
            }
            let decision = self.decide_start(&self.queue[at]);
            let waiting = &mut self.queue[at];
            match decision {
                StartDecision::Wait { reason, coming } => {
                    waiting.waits_for = reason;
                    waiting.rest = match (coming, waiting.rest) {
                        (false, _) => NodeWait::Unknown,
                        (true, NodeWait::Unknown) => {
                            NodeWait::Until(now + self.managing.start_wait)
                        }
                        (true, rest) => rest,
                    };
                    return self.wait_behind(at);
                }
                StartDecision::Blocked(reason) => {
                    (waiting.waits_for, waiting.blocked) = (reason, true);
                    at += 1;
                }
                StartDecision::Replace(by_cluster) => {
                    let (job, submit) = (waiting.job, waiting.submit.clone());
                    for (cluster, nodes) in by_cluster {
                        for node in &nodes {
                            if let Some(node) = self.nodes.get_mut(node) {
                                node.state = PoolNodeState::Starting;
                                node.tried = Some(job);
                            }
                        }
                        let (program, image) = (submit.program.clone(), submit.image.clone());
                        let reason = format!("{job} needs another program");
                        out.push(SchedulerAction::Replace {
                            cluster,
                            nodes,
                            program,
                            image,
                            reason,
                        });
                    }
                }
                StartDecision::Never(error) => {
                    out.push(SchedulerAction::Refuse { job: waiting.job, error });
                    self.queue.remove(at);
                }
                StartDecision::Nodes(nodes) => {
                    if let Some(waiting) = self.queue.remove(at) {
                        self.assign(waiting, nodes, out);
                        self.poll_for_reservations(now, out);
                    }
                }
            }
        }
    }

    /// Time at which a job's wait for arriving nodes ends.
    pub(super) fn rest_due(&self) -> Option<Instant> {
        let until = self.queue.iter().filter_map(|waiting| match waiting.rest {
            NodeWait::Until(until) => Some(until),
            NodeWait::Unknown | NodeWait::Over => None,
        });
        until.min()
    }

    /// Updates the reasons of the jobs behind one that waits. Some wait for nodes out of service.
    fn wait_behind(&mut self, first: usize) {
        for at in first + 1..self.queue.len() {
            let lack = self.requested_nodes(&self.queue[at]).err();
            let waiting = &mut self.queue[at];
            waiting.rest = NodeWait::Unknown;
            (waiting.waits_for, waiting.blocked) = match lack {
                Some(Lack::Blocked(reason)) => (reason, true),
                _ => (String::new(), false),
            };
        }
    }

    fn decide_start(&self, waiting: &QueuedJob) -> StartDecision {
        let submit = &waiting.submit;
        if waiting.rest == NodeWait::Over
            && let Some(nodes) = self.available_nodes(waiting)
        {
            return StartDecision::Nodes(nodes);
        }
        let asked = match self.requested_nodes(waiting) {
            Ok(asked) => asked,
            Err(Lack::Never(error)) => return StartDecision::Never(error),
            Err(Lack::Blocked(reason)) => return StartDecision::Blocked(reason),
        };
        let mut chosen = Vec::new();
        let mut replace: BTreeMap<ClusterId, Vec<NodeId>> = BTreeMap::new();
        let mut short = Vec::new();
        let mut all_come = waiting.takes_fewer();
        for (cluster, count) in asked {
            let Some(site) = self.sites.get(&cluster) else { continue };
            let mut of_program = Vec::new();
            let mut of_other = Vec::new();
            let mut coming = 0;
            let mut why = Vec::new();
            for id in &site.nodes {
                let Some(node) = self.nodes.get(id) else { continue };
                let fits = node.running(ProgramKey::of(submit)).is_some();
                match node.state {
                    _ if node.drain.is_some() => {}
                    _ if node.reserved.is_some() => {}
                    PoolNodeState::Idle if !self.is_heard(id) && waiting.takes_fewer() => {
                        coming += 1;
                        why.push(format!("{id} is not reached"));
                    }
                    PoolNodeState::Idle if fits => of_program.push(id.clone()),
                    PoolNodeState::Idle => of_other.push((id.clone(), node)),
                    PoolNodeState::Starting => {
                        coming += 1;
                        let reason = node.reason.as_ref().map(|why| format!(": {why}"));
                        why.push(format!("{id} is starting{}", reason.unwrap_or_default()));
                    }
                    PoolNodeState::Measuring(_) => coming += 1,
                    // It is still ending the last attempt to start this job.
                    PoolNodeState::Busy(job) if job == waiting.job => {
                        coming += 1;
                        why.push(format!("{id} has not ended the last attempt"));
                    }
                    PoolNodeState::Busy(_)
                    | PoolNodeState::Broken
                    | PoolNodeState::Off
                    | PoolNodeState::Closing => {}
                }
            }
            let spare = self.unreserved(&cluster) as usize;
            if count > spare {
                all_come = false;
                short.push(format!(
                    "{} more of cluster {cluster} without a reservation",
                    count - spare
                ));
                continue;
            }
            if of_program.len() >= count {
                chosen.extend(of_program.into_iter().take(count));
                continue;
            }
            let lacks = count - of_program.len();
            if lacks > coming && !of_other.is_empty() {
                // The node was started for this job, and has another registry again: it never has
                // the right one.
                let tried = of_other.iter().find(|(_, node)| node.tried == Some(waiting.job));
                if let Some((id, node)) = tried {
                    return StartDecision::Never(another_program(id, node, submit));
                }
                if !site.can_start(submit) {
                    let (id, node) = &of_other[0];
                    return StartDecision::Never(another_program(id, node, submit));
                }
                let nodes = of_other.into_iter().map(|(id, _)| id).take(lacks - coming);
                replace.entry(cluster.clone()).or_default().extend(nodes);
            }
            all_come &= lacks <= coming;
            let why =
                if why.is_empty() { String::new() } else { format!(" ({})", summarize(&why)) };
            short.push(format!("{lacks} more of cluster {cluster}{why}"));
        }
        if !replace.is_empty() {
            StartDecision::Replace(replace)
        } else if !short.is_empty() {
            let wait = if all_come {
                format!("; at most {:?}, if the others suffice", self.managing.start_wait)
            } else {
                String::new()
            };
            let reason = format!("nodes: {}{wait}", short.join(", "));
            StartDecision::Wait { reason, coming: all_come }
        } else {
            let most = submit.params.max_processors.unwrap_or(Processors::MAX);
            // The number of a cluster's nodes follows from their least size, if the job names none.
            let fitting = |nodes| self.first_fitting(nodes, most);
            StartDecision::Nodes(if submit.clusters.is_none() { fitting(chosen) } else { chosen })
        }
    }

    /// The first of these nodes whose processors fit into `most` together.
    fn first_fitting(&self, nodes: Vec<NodeId>, most: Processors) -> Vec<NodeId> {
        let sizes: Vec<Processors> = nodes.iter().map(|node| self.processors_of([node])).collect();
        let selected = select_nodes(sizes, most, most);
        selected.into_iter().map(|at| nodes[at].clone()).collect()
    }

    /// The available nodes with which a job starts after its wait, if they suffice.
    fn available_nodes(&self, waiting: &QueuedJob) -> Option<Vec<NodeId>> {
        let submit = &waiting.submit;
        let most = submit.params.max_processors.unwrap_or(Processors::MAX);
        let mut chosen = Vec::new();
        for (cluster, site) in self.sites.iter().filter(|(_, site)| site.on_demand.is_none()) {
            let asked = match &submit.clusters {
                None => usize::MAX,
                Some(clusters) => clusters.get(cluster).map_or(0, |&count| count as usize),
            };
            let spare = self.unreserved(cluster) as usize;
            let fits = |id: &&NodeId| {
                let node = self.nodes.get(*id).filter(|node| node.is_free());
                let runs = node.and_then(|node| node.running(ProgramKey::of(submit))).is_some();
                runs && self.is_heard(id)
            };
            let there = site.nodes.iter().filter(fits).take(asked.min(spare));
            chosen.extend(there.cloned());
        }
        let chosen = self.first_fitting(chosen, most);
        (self.processors_of(&chosen) >= submit.params.min_or_one()).then_some(chosen)
    }

    /// Number of requested nodes by cluster, or why that cannot be fulfilled.
    fn requested_nodes(&self, waiting: &QueuedJob) -> Result<BTreeMap<ClusterId, usize>, Lack> {
        let submit = &waiting.submit;
        let not_placed = |reason: String| Err(Lack::Never(SubmitError::NotPlaced { reason }));
        let (least, most) = (submit.params.min_or_one(), submit.params.max_processors);
        if let Some(most) = most.filter(|&most| most < least) {
            let why = format!("it may have at most {most} and needs at least {}", least.get());
            return not_placed(format!("{why}: raise max_processors or lower min_processors"));
        }
        let most = most.unwrap_or(Processors::MAX);
        let Some(clusters) = &submit.clusters else {
            let refused = waiting.refused.values().next();
            return self.all_requested_nodes(waiting, least, most).map_err(|lack| {
                match (lack, refused) {
                    (Lack::Never(_), Some(error)) => {
                        Lack::Never(SubmitError::Shipping(Box::new(error.clone())))
                    }
                    (lack, _) => lack,
                }
            });
        };
        if clusters.is_empty() {
            return not_placed("it asks for no cluster".to_owned());
        }
        let mut asked = BTreeMap::new();
        let mut out_of_service = Vec::new();
        for (cluster, &count) in clusters {
            let Some(site) = self.sites.get(cluster) else {
                let names: Vec<_> = self.sites.keys().map(ClusterId::as_str).collect();
                let names = names.join(", ");
                return not_placed(format!("the grid has no cluster {cluster}; it has {names}"));
            };
            if site.on_demand.is_some() {
                return not_placed(held_on_demand(cluster));
            }
            let mut count = count as usize;
            if count == 0 {
                return not_placed(format!("it asks for no node of cluster {cluster}"));
            }
            let (works, drained) = self.capacity(site);
            if waiting.takes_fewer() {
                // As a running job would, it does without nodes that it lost.
                count = count.min(works + drained.len());
                if count == 0 {
                    continue;
                }
            }
            if count > works + drained.len() {
                let of_site = site.nodes.iter().filter_map(|id| self.nodes.get(id));
                let why = Self::broken_reasons(of_site);
                let works = works + drained.len();
                return not_placed(format!(
                    "it asks for {count} nodes of cluster {cluster}, which has {works} that \
                     work{why}"
                ));
            }
            if count > works {
                out_of_service.push(format!("{} more of cluster {cluster}", count - works));
                out_of_service.push(blocked_by(&drained));
            }
            asked.insert(cluster.clone(), count);
        }
        let (fewest, greatest) = self.processors_at(&asked);
        if greatest < least {
            return not_placed(format!(
                "it asks for {greatest} and needs at least {}",
                least.get()
            ));
        }
        if fewest > most {
            return not_placed(format!("it asks for {fewest} and may have at most {}", most.get()));
        }
        if out_of_service.is_empty() {
            Ok(asked)
        } else {
            Err(Lack::Blocked(format!("nodes: {}", out_of_service.join("; "))))
        }
    }

    /// The fewest and the most processors of one of a site's working nodes. Where no node has
    /// registered yet, it has one processor at least.
    fn node_sizes(&self, site: &ClusterPool) -> (Processors, Processors) {
        let nodes = site.nodes.iter().filter_map(|id| self.nodes.get(id));
        let known = nodes.filter(|node| node.works() && node.registration.is_some());
        let known = known.map(|node| (node.processors(), node.processors()));
        let sizes = known.reduce(|all, one| (all.0.min(one.0), all.1.max(one.1)));
        sizes.unwrap_or((Processors::ONE, Processors::MAX))
    }

    /// The fewest and the most processors of these numbers of nodes.
    fn processors_at(&self, asked: &BTreeMap<ClusterId, usize>) -> (Processors, Processors) {
        let (mut fewest, mut greatest) = (Processors::ZERO, Processors::ZERO);
        for (cluster, &nodes) in asked {
            let Some(site) = self.sites.get(cluster) else { continue };
            let nodes = u32::try_from(nodes).unwrap_or(u32::MAX);
            let (least, most) = self.node_sizes(site);
            fewest = fewest.saturating_add(least.saturating_mul(nodes));
            greatest = greatest.saturating_add(most.saturating_mul(nodes));
        }
        (fewest, greatest)
    }

    /// Every working node, within the job's bounds, but in clusters that do not start its program.
    fn all_requested_nodes(
        &self,
        waiting: &QueuedJob,
        least: Processors,
        most: Processors,
    ) -> Result<BTreeMap<ClusterId, usize>, Lack> {
        let sum = |all: &BTreeMap<ClusterId, usize>| self.processors_at(all).1;
        let take = |all: &mut BTreeMap<_, _>, site: &ClusterPool, cluster: &ClusterId, works| {
            let left = most.saturating_sub(self.processors_at(all).0).get();
            let fit = left / self.node_sizes(site).0.get().max(1);
            let taken = usize::min(works, fit as usize);
            if taken > 0 {
                all.insert(cluster.clone(), taken);
            }
        };
        // `later` includes reserved processors, which become free when their reservations end.
        let (mut all, mut later) = (BTreeMap::new(), BTreeMap::new());
        let mut out_of_service = Vec::new();
        let standing = self.sites.iter().filter(|(_, site)| site.on_demand.is_none());
        let starts =
            |(cluster, _): &(&ClusterId, &ClusterPool)| !waiting.refused.contains_key(*cluster);
        for (cluster, site) in standing.clone().filter(starts) {
            let (works, drained) = self.capacity(site);
            out_of_service.extend(drained);
            take(&mut later, site, cluster, works);
            let reserved = self.managing.manager.reserved_ever(cluster) as usize;
            take(&mut all, site, cluster, works.saturating_sub(reserved));
        }
        if sum(&all) >= least {
            return Ok(all);
        }
        if sum(&later) >= least {
            return Ok(later);
        }
        let sum = sum(&all);
        if sum.saturating_add(self.processors_of(&out_of_service)) >= least {
            let lacks = least.saturating_sub(sum).get();
            let why = blocked_by(&out_of_service);
            return Err(Lack::Blocked(format!("processors: {lacks} more; {why}")));
        }
        if let Some(cluster) = self.sites.keys().next().filter(|_| standing.count() == 0) {
            let reason = held_on_demand(cluster);
            return Err(Lack::Never(SubmitError::NotPlaced { reason }));
        }
        let why = Self::broken_reasons(self.nodes.values());
        let reason = if sum.is_zero() {
            format!("no node of the grid works{why}")
        } else {
            format!("it needs at least {least}, the grid has {} that work{why}", sum.get())
        };
        Err(Lack::Never(SubmitError::NotPlaced { reason }))
    }

    /// Number of a site's working nodes, and those that would work if put back into service.
    fn capacity(&self, site: &ClusterPool) -> (usize, Vec<NodeId>) {
        let (mut works, mut drained) = (0, Vec::new());
        for id in &site.nodes {
            match self.nodes.get(id) {
                Some(node) if node.works() => works += 1,
                Some(node) if !matches!(node.state, PoolNodeState::Broken | PoolNodeState::Off) => {
                    drained.push(id.clone())
                }
                _ => {}
            }
        }
        (works, drained)
    }

    fn broken_reasons<'a>(nodes: impl Iterator<Item = &'a PoolNode>) -> String {
        let broken = nodes.filter(|node| node.state == PoolNodeState::Broken);
        let reasons: Vec<_> = broken.filter_map(|node| node.reason.as_deref()).take(1).collect();
        reasons.first().map_or_else(String::new, |reason| format!(": {reason}"))
    }

    pub(super) fn assign(
        &mut self,
        waiting: QueuedJob,
        nodes: Vec<NodeId>,
        out: &mut Vec<SchedulerAction>,
    ) {
        let QueuedJob { job: id, epoch, submit, attempts, .. } = waiting;
        let mut view = View { epoch, version: 1, ..View::default() };
        // Roles preferably go to reachable nodes that were not coordinators of a failed start.
        let (sure, others): (Vec<NodeId>, Vec<NodeId>) = nodes
            .into_iter()
            .partition(|node| self.is_heard(node) && !attempts.coordinators.contains(node));
        let sure_clusters =
            sure.iter().filter_map(|node| Some(self.nodes.get(node)?.cluster.clone()));
        let sure_clusters: BTreeSet<ClusterId> = sure_clusters.collect();
        let nodes: Vec<NodeId> = sure.into_iter().chain(others).collect();
        for name in &nodes {
            let Some(node) = self.nodes.get_mut(name) else { continue };
            let Some(registration) = &node.registration else { continue };
            let member = member(registration);
            (node.state, node.reserved) = (PoolNodeState::Busy(id), None);
            view.cluster_coordinators.entry(node.cluster.clone()).or_insert_with(|| name.clone());
            view.members.insert(name.clone(), member);
        }
        let mut coordinators = view.cluster_coordinators.iter();
        let first = coordinators.clone().next();
        let sure = coordinators.find(|(cluster, _)| sure_clusters.contains(*cluster));
        view.coordinator = sure.or(first).map(|(_, node)| node.clone());
        let spec = JobSpec {
            id,
            epoch,
            name: submit.name.clone(),
            body: submit.body.clone(),
            fingerprint: submit.fingerprint,
            params: submit.params.clone(),
        };
        let members: BTreeSet<NodeId> = view.members.keys().cloned().collect();
        // The coordinator's node comes first, so that it is ready for the others' reports.
        let first = view.coordinator.iter();
        let others = members.iter().filter(|node| view.coordinator.as_ref() != Some(*node));
        for node in first.chain(others) {
            let assign = Assign {
                spec: spec.clone(),
                view: view.partial_view(node),
                client: submit.client.clone(),
                scheduler: self.me.clone(),
                benchmark: None,
            };
            out.push(SchedulerAction::Assign { node: node.clone(), assign: Box::new(assign) });
        }
        // The job grows by the nodes that it did not wait for.
        let all = submit.clusters.is_none() && !self.managing.has(id);
        let works = self.nodes.values().filter(|node| node.works()).count();
        let missing = if all { works.saturating_sub(members.len()) } else { 0 };
        let mut start = Start::new(submit.clone(), attempts, missing);
        let mut job = ActiveJob::assigning(epoch, *submit, view, members);
        if let Some(poison) = start.take_poison() {
            job.poison = poison;
        }
        job.start = Some(start);
        self.jobs.insert(id, job);
    }

    /// Whether a node can be reached. Nodes of a site with its own process connect to that site,
    /// and need no link to this process.
    pub(super) fn is_heard(&self, id: &NodeId) -> bool {
        let own_site = |site: &ClusterPool| site.at.is_none();
        let called = self.nodes.get(id).and_then(|node| self.sites.get(&node.cluster));
        !self.unreachable.contains(id) || !called.is_some_and(own_site)
    }
}

/// Lists the first reasons, and the number of further ones.
fn summarize(all: &[String]) -> String {
    const SHOWN: usize = 3;
    let shown = all.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    match all.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

fn held_on_demand(cluster: &ClusterId) -> String {
    format!(
        "nodes of {cluster} exist only while jobs need them: use `job submit`, which states how \
         many they need"
    )
}

/// Advice about drained nodes.
fn blocked_by(drained: &[NodeId]) -> String {
    let names: Vec<&str> = drained.iter().map(NodeId::as_str).collect();
    format!("{} are drained: put them back into service, or cancel the job", names.join(", "))
}

fn another_program(id: &NodeId, node: &PoolNode, submit: &Submit) -> SubmitError {
    let has = node.registration.as_ref().map_or(0, |registration| registration.fingerprint);
    SubmitError::Program {
        reason: format!(
            "node {id} runs another program (registry {has:016x}, the job's is {:016x}): start its \
             nodes with the \
             program that submits the job",
            submit.fingerprint
        ),
    }
}
