//! Jobs whose processors the malleability manager deals out: its counts by cluster, carried out with nodes.
//!
//! The manager says how many processors of which cluster a job is started with, grows by and gives back; here they become
//! nodes, and what becomes of the nodes is told to the manager as counts. Must not decide how many anybody gets.
//!
//! The *ledger* has each node that the manager knows to be in an account, and as what. After every event it is compared with
//! what nodes really do ([`Core::settle`]): whatever way a node left its job, the manager hears of it once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use springtide_runtime::id::{ClusterId, Epoch, JobId, NodeId};
use tokio::time::Instant;

use super::choose::{Case, choose};
use super::event::Action;
use super::history::Histories;
use super::pool::{State, member};
use super::queue::Waiting;
use super::{Core, Job};
use crate::job::AssignError;
use crate::policy::malleability::Placed;
use crate::scheduler::manager::{
    Action as Order, Event as News, JobView, Kind, Manager, Need, Settings, Want,
};
use crate::scheduler::{
    GrantedNode, JobDetail, JobEfficiency, JobState, Resize, ResizeError, ResizeJob, Resized,
    Submit, SubmitError,
};

/// Nodes that come are dealt out together if they come within this time.
const GATHER: Duration = Duration::from_millis(500);

/// A job of the manager's.
#[derive(Debug)]
pub(super) struct Managed {
    epoch: Epoch,
    pub(super) submit: Box<Submit>,
    pub(super) stage: Stage,
    /// Grants that its coordinator has not answered: for which change.
    grants: BTreeMap<u64, u64>,
    /// Nodes that were lost while it was being started.
    lost: BTreeMap<ClusterId, u32>,
    /// As last told to the manager.
    wants: u32,
    /// More that its owner wants it to have.
    ordered: Ordered,
}

/// What a job's owner asks for it.
#[derive(Clone, Debug, Default)]
struct Ordered {
    count: u32,
    within: Option<Duration>,
    clusters: BTreeSet<ClusterId>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The manager seeks a place for it.
    Waiting,
    /// Its nodes are coming; those that have not come then are given up, and it waits again.
    Gathering {
        nodes: BTreeSet<NodeId>,
        until: Instant,
    },
    /// Its workers are being told.
    Claiming,
    /// They could not all be told, for this reason: when all are free it waits again.
    Failing(String),
    Running,
    /// The manager knows that it has ended.
    Over,
}

/// What the manager takes a node for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// The job is being started on it.
    Claimed,
    /// It is asked for, for this change of the job, and has not come.
    Ordered(u64),
    /// It has come, and is held for this change of the job.
    Held(u64),
    /// The job is being given it, by this change.
    Recruited(u64),
    /// The job computes on it.
    Computes,
    /// It was to be the job's, and is given back.
    GivenBack,
}

/// A cluster's processors, as last told to the manager.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Polled {
    pub(super) size: u32,
    pub(super) others: u32,
}

/// The manager, and what it was told of.
#[derive(Debug)]
pub(super) struct Managing {
    manager: Manager,
    /// How often clusters are polled though nothing changed.
    every: Duration,
    /// How long the nodes of a job that is to start are waited for.
    hold_within: Duration,
    pub(super) jobs: BTreeMap<JobId, Managed>,
    pub(super) ledger: BTreeMap<NodeId, (JobId, Use)>,
    polled: BTreeMap<ClusterId, Polled>,
    next_poll: Option<Instant>,
    pub(super) histories: Histories,
}

impl Managing {
    pub(super) fn new(settings: Settings, now: Instant) -> Self {
        Self {
            every: settings.poll_every,
            hold_within: settings.hold_within,
            manager: Manager::new(settings, [], now),
            jobs: BTreeMap::new(),
            ledger: BTreeMap::new(),
            polled: BTreeMap::new(),
            next_poll: None,
            histories: Histories::default(),
        }
    }

    pub(super) fn due(&self) -> Option<Instant> {
        if self.jobs.is_empty() {
            return None;
        }
        let gathering = self.jobs.values().filter_map(|job| match job.stage {
            Stage::Gathering { until, .. } => Some(until),
            _ => None,
        });
        self.manager.due().into_iter().chain(self.next_poll).chain(gathering).min()
    }

    /// Jobs that have no nodes yet, first those that are first in the queue.
    pub(super) fn waiting(&self) -> impl Iterator<Item = (JobId, &Submit)> {
        let queued = self.manager.queued();
        let waits = |job: &&Managed| matches!(job.stage, Stage::Waiting | Stage::Gathering { .. });
        let of = move |id: &JobId| self.jobs.get(id).filter(waits);
        let first: Vec<JobId> = queued.filter(|id| of(id).is_some()).collect();
        let placed: Vec<JobId> = self
            .jobs
            .keys()
            .filter(|id| of(id).is_some() && !first.contains(id))
            .copied()
            .collect();
        first
            .into_iter()
            .chain(placed)
            .filter_map(move |id| Some((id, &*self.jobs.get(&id)?.submit)))
    }

    /// Processors of a cluster in accounts of jobs.
    #[cfg(test)]
    pub(super) fn booked(&self, cluster: &ClusterId) -> u32 {
        self.manager.booked(cluster)
    }

    /// Whether a job is the manager's.
    pub(super) fn has(&self, id: JobId) -> bool {
        self.jobs.contains_key(&id)
    }

    /// Whether a job that ends here will be started again under the same number.
    pub(super) fn starts_again(&self, id: JobId) -> bool {
        self.jobs.get(&id).is_some_and(|job| matches!(job.stage, Stage::Failing(_)))
    }

    /// A job as the manager sees it.
    pub(super) fn view(&self, id: JobId) -> Option<JobView> {
        self.manager.job(id)
    }

    /// Waiting jobs whose client is this process.
    pub(super) fn waiting_of<'a>(&'a self, client: &'a NodeId) -> impl Iterator<Item = JobId> + 'a {
        let waits = |job: &Managed| matches!(job.stage, Stage::Waiting | Stage::Gathering { .. });
        let theirs = self.jobs.iter().filter(move |(_, job)| waits(job));
        theirs.filter(move |(_, job)| job.submit.client.node == *client).map(|(&id, _)| id)
    }
}

impl Core {
    /// A job comes that says what it needs.
    pub(super) fn submit_managed(
        &mut self,
        id: JobId,
        epoch: Epoch,
        (submit, need): (Box<Submit>, Need),
        now: Instant,
        out: &mut Vec<Action>,
    ) {
        let (stage, grants, lost) = (Stage::Waiting, BTreeMap::new(), BTreeMap::new());
        let ordered = Ordered::default();
        let job = Managed { epoch, submit, stage, grants, lost, wants: 0, ordered };
        self.managing.jobs.insert(id, job);
        self.introduce_files(&need, now, out);
        self.poll(now, out);
        self.tell(News::Submit { job: id, need: Box::new(need) }, now, out);
    }

    /// What happened to nodes and jobs by the last event is told to the manager, and what it orders is done.
    pub(super) fn manage(&mut self, now: Instant, out: &mut Vec<Action>) {
        if self.managing.jobs.is_empty() {
            self.managing.next_poll = None;
            return;
        }
        self.settle(now, out);
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        let (fewer, more) = self.changed();
        if more && !fewer && !due(self.managing.next_poll) {
            let soon = now + GATHER;
            self.managing.next_poll = Some(self.managing.next_poll.map_or(soon, |at| at.min(soon)));
        }
        if fewer || due(self.managing.next_poll) || self.managing.next_poll.is_none() {
            self.poll(now, out);
        }
        if due(self.managing.manager.due()) {
            self.tell(News::Tick, now, out);
        }
        // What the manager ordered meanwhile may have taken nodes from jobs.
        self.settle(now, out);
    }

    /// Processors by cluster as they are.
    fn processors(&self) -> BTreeMap<ClusterId, Polled> {
        let mut all: BTreeMap<ClusterId, Polled> = BTreeMap::new();
        for cluster in self.sites.keys() {
            all.entry(cluster.clone()).or_default();
        }
        for (cluster, known) in &mut all {
            if self.is_on_demand(cluster) {
                *known = self.processors_on_demand(cluster);
            }
        }
        let standing = self.nodes.iter().filter(|(_, node)| !self.is_on_demand(&node.cluster));
        for (id, node) in standing {
            let known = all.entry(node.cluster.clone()).or_default();
            let managed = self.managing.ledger.contains_key(id);
            let there = node.life.is_some() && node.drain.is_none();
            let busy = matches!(node.state, State::Busy(_) | State::Measuring(_));
            known.size += u32::from(managed || (there && (busy || node.is_free())));
            known.others += u32::from(!managed && there && busy);
        }
        all
    }

    /// Whether the manager would find fewer processors somewhere than it knows of, and whether more.
    fn changed(&self) -> (bool, bool) {
        let idle = |polled: &Polled| polled.size - polled.others;
        let (mut fewer, mut more) = (false, false);
        for (cluster, is) in self.processors() {
            let was = self.managing.polled.get(&cluster).map_or(0, idle);
            fewer |= idle(&is) < was;
            more |= idle(&is) > was;
        }
        (fewer, more)
    }

    pub(super) fn poll(&mut self, now: Instant, out: &mut Vec<Action>) {
        self.managing.next_poll = Some(now + self.managing.every);
        let all = self.processors();
        self.managing.polled = all.clone();
        for (cluster, Polled { size, others }) in all {
            let news = match self.failing(&cluster) {
                Some(reason) => News::Unreachable { cluster, reason },
                None => News::Polled { cluster, size, others },
            };
            self.tell(news, now, out);
        }
    }

    /// Tells the manager, does what it orders, and tells it what came of that at once.
    pub(super) fn tell(&mut self, news: News, now: Instant, out: &mut Vec<Action>) {
        let mut all = VecDeque::from([news]);
        while let Some(news) = all.pop_front() {
            self.managing.histories.news(&news, now);
            for order in self.managing.manager.handle(news, now) {
                self.managing.histories.order(&order, now);
                all.extend(self.obey(order, now, out));
            }
        }
    }

    fn obey(&mut self, order: Order, now: Instant, out: &mut Vec<Action>) -> Option<News> {
        match order {
            Order::Move { job, transfers } => {
                self.begin_move(job, transfers, now, out);
                None
            }
            Order::Claim { job, placed } => {
                if placed.transfers.is_empty() {
                    // What is on its way for a former place is not waited for.
                    self.drop_move(job, out);
                }
                self.claim(job, &placed, now, out)
            }
            Order::Fail { job, reason } => {
                self.drop_move(job, out);
                self.managing.jobs.remove(&job);
                out.push(Action::Refuse { job, error: SubmitError::NotPlaced { reason } });
                None
            }
            Order::Offer { job, change, cluster, count, why } => {
                let Some(coordinator) = self.coordinator_of(job) else {
                    return Some(News::Answer { job, change, count: 0 });
                };
                out.push(Action::OfferGrowth { job, coordinator, change, cluster, count, why });
                None
            }
            Order::Hold { job, change, cluster, count } if self.is_on_demand(&cluster) => {
                self.hold(job, change, &cluster, count, out)
            }
            // Nodes of a standing pool are held as soon as they are chosen, which is when the job is given them.
            Order::Hold { job, change, count, .. } => Some(News::Held { job, change, count }),
            Order::Recruit { job, change, cluster, count } => {
                self.recruit(job, change, cluster, count, now, out)
            }
            Order::Unhold { job, change, cluster, count, .. } => {
                self.give_back(job, change, &cluster, count, now, out)
            }
            Order::Shrink { job, change, cluster, count, mandatory, within, why } => {
                let Some(coordinator) = self.coordinator_of(job) else {
                    return Some(News::Answer { job, change, count: 0 });
                };
                let within_ms = u64::try_from(within.as_millis()).unwrap_or(u64::MAX);
                out.push(Action::AskShrink {
                    job,
                    coordinator,
                    change,
                    cluster,
                    count,
                    mandatory,
                    within_ms,
                    why,
                });
                None
            }
            Order::Force { job, cluster, count, reason } => {
                self.force(job, &cluster, count, &reason, now, out);
                None
            }
            Order::Refuse { job, reason } => {
                if let Some(managed) = self.managing.jobs.get_mut(&job) {
                    managed.wants = managed.wants.saturating_sub(managed.ordered.count);
                    managed.ordered = Ordered::default();
                }
                if let Some(held) = self.jobs.get_mut(&job) {
                    held.open.refused(reason);
                }
                None
            }
            Order::Odd { what } => {
                out.push(Action::Odd { what });
                None
            }
        }
    }

    fn coordinator_of(&self, id: JobId) -> Option<NodeId> {
        let job = self.jobs.get(&id).filter(|job| job.state == JobState::Running)?;
        job.view.coordinator.clone()
    }

    /// The best free nodes of a cluster for a job that runs.
    fn pick(&self, job: &Job, cluster: &ClusterId, count: u32, now: Instant) -> Vec<NodeId> {
        let mut case = Case {
            count,
            request: job.open.request.clone(),
            rtt_s: BTreeMap::new(),
            bandwidth: BTreeMap::new(),
            free: self.candidates_for(job.unit, job.fingerprint, now),
        };
        case.free.retain(|_, candidate| candidate.cluster == *cluster);
        choose(&case).nodes
    }

    fn claim(
        &mut self,
        id: JobId,
        placed: &Placed,
        now: Instant,
        out: &mut Vec<Action>,
    ) -> Option<News> {
        let mut nodes: BTreeSet<NodeId> = BTreeSet::new();
        let mut wanted: BTreeMap<&ClusterId, u32> = BTreeMap::new();
        for part in &placed.parts {
            *wanted.entry(&part.cluster).or_default() += part.count;
        }
        for (cluster, count) in wanted {
            let chosen = self.reserve(id, cluster, count, Use::Claimed, out);
            let (has, needs) = (chosen.len(), count as usize);
            nodes.extend(chosen);
            if has < needs {
                let what = match self.is_on_demand(cluster) {
                    true => "can be had at once",
                    false => "are free and run the job's program",
                };
                let reason = format!("of {count} nodes of {cluster} only {has} {what}");
                self.give_up(id, reason, now, out);
                return self.given_up(id);
            }
        }
        let until = now + self.managing.hold_within;
        self.managing.jobs.get_mut(&id)?.stage = Stage::Gathering { nodes, until };
        self.gather(id, now, out);
        None
    }

    /// Starts a job when all its nodes and files have come; gives its nodes up when one is lost or late.
    fn gather(&mut self, id: JobId, now: Instant, out: &mut Vec<Action>) {
        let moving = self.files.moving(id);
        let Some(job) = self.managing.jobs.get_mut(&id) else { return };
        let Stage::Gathering { nodes, until } = &mut job.stage else { return };
        let fingerprint = job.submit.fingerprint;
        let (mut coming, mut lost) = (0, None);
        for node in &*nodes {
            match self.nodes.get(node).filter(|node| node.reserved == Some(id)) {
                Some(known) if known.state != State::Idle => coming += 1,
                Some(known) if known.running(fingerprint).is_some() => {}
                Some(_) => lost = Some(format!("{node} runs another program than the job's")),
                None => {
                    let reason = self.nodes.get(node).and_then(|node| node.reason.clone());
                    let reason = reason.unwrap_or_else(|| "it is gone".to_owned());
                    lost = Some(format!("{node}: {reason}"));
                }
            }
        }
        if coming > 0 && *until <= now {
            let (all, within) = (nodes.len(), self.managing.hold_within);
            lost =
                lost.or(Some(format!("{coming} of {all} nodes have not come within {within:?}")));
        }
        if let Some(reason) = lost {
            return self.give_up(id, reason, now, out);
        }
        if coming == 0 && moving {
            // Its nodes are there, and wait for the files, which have bounds of their own.
            *until = now + self.managing.hold_within;
        } else if coming == 0 {
            let nodes = nodes.iter().cloned().collect();
            job.stage = Stage::Claiming;
            let (epoch, submit) = (job.epoch, job.submit.clone());
            let (waits_for, blocked) = (String::new(), false);
            self.assign(Waiting { job: id, epoch, submit, waits_for, blocked }, nodes, out);
        }
    }

    /// A job does not get its nodes. It waits again when none of them is its any more.
    pub(super) fn give_up(
        &mut self,
        id: JobId,
        reason: String,
        now: Instant,
        out: &mut Vec<Action>,
    ) {
        if let Some(job) = self.managing.jobs.get_mut(&id) {
            job.stage = Stage::Failing(reason);
        }
        self.drop_move(id, out);
        self.unreserve_all(id, now, out);
    }

    fn unreserve_all(&mut self, id: JobId, now: Instant, out: &mut Vec<Action>) {
        let theirs = self.nodes.iter().filter(|(_, node)| node.reserved == Some(id));
        let theirs: Vec<NodeId> = theirs.map(|(node, _)| node.clone()).collect();
        for node in theirs {
            if self.unreserve(&node, now, out)
                && let Some(job) = self.managing.jobs.get_mut(&id)
            {
                *job.lost.entry(self.nodes[&node].cluster.clone()).or_default() += 1;
            }
        }
    }

    /// A job that got no nodes waits again, if none of those that came or were coming is its any more.
    fn given_up(&mut self, id: JobId) -> Option<News> {
        let job = self.managing.jobs.get_mut(&id)?;
        let Stage::Failing(reason) = &job.stage else { return None };
        if self.nodes.values().any(|node| node.reserved == Some(id)) {
            return None;
        }
        let reason = reason.clone();
        job.stage = Stage::Waiting;
        job.lost.clear();
        self.managing.ledger.retain(|_, (job, _)| *job != id);
        Some(News::ClaimFailed { job: id, reason })
    }

    /// Gives a running job nodes, those that it likes best.
    fn recruit(
        &mut self,
        id: JobId,
        change: u64,
        cluster: ClusterId,
        count: u32,
        now: Instant,
        out: &mut Vec<Action>,
    ) -> Option<News> {
        let nothing = Some(News::Grown { job: id, change, count: 0 });
        let Some(coordinator) = self.coordinator_of(id) else { return nothing };
        let Some(job) = self.jobs.get(&id) else { return nothing };
        let chosen = match self.is_on_demand(&cluster) {
            true => self.held_for(id, change, &cluster),
            false => self.pick(job, &cluster, count, now),
        };
        let nodes: Vec<GrantedNode> = chosen
            .iter()
            .filter_map(|node| {
                let life = self.nodes.get(node)?.life.as_ref()?;
                let speed = self.speeds.best(job.unit, life, now);
                Some(GrantedNode { node: node.clone(), member: member(life), speed })
            })
            .collect();
        if nodes.is_empty() {
            return nothing;
        }
        for GrantedNode { node, .. } in &nodes {
            self.managing.ledger.insert(node.clone(), (id, Use::Recruited(change)));
        }
        let grant = self.hand(id, &nodes);
        let Some(job) = self.jobs.get_mut(&id) else { return nothing };
        let given = nodes.len() as u32;
        let managed = self.managing.jobs.get_mut(&id);
        // What its owner ordered is served before what its coordinator asks for.
        let ordered = managed.map_or(0, |managed| {
            let Ordered { count, clusters, .. } = &mut managed.ordered;
            let here = clusters.is_empty() || clusters.contains(&cluster);
            let ordered = if here { given.min(*count) } else { 0 };
            *count -= ordered;
            ordered
        });
        job.open.count = job.open.count.saturating_sub(given - ordered);
        if let Some(managed) = self.managing.jobs.get_mut(&id) {
            managed.grants.insert(grant, change);
            managed.wants = job.open.count.saturating_add(managed.ordered.count);
        }
        let why = format!("the malleability manager gives it {} of {cluster}", nodes.len());
        let (open, case) = (job.open.count, Box::new(Case { count, ..Case::default() }));
        out.push(Action::GrantNodes { job: id, grant, coordinator, nodes, open, why, case });
        None
    }

    /// What is held for a change.
    fn held_for(&self, id: JobId, change: u64, cluster: &ClusterId) -> Vec<NodeId> {
        let of_change = |(node, (job, used)): (&NodeId, &(JobId, Use))| {
            let here = self.nodes.get(node).filter(|known| known.cluster == *cluster)?;
            let held = *job == id && *used == Use::Held(change) && here.state == State::Idle;
            held.then(|| node.clone())
        };
        self.managing.ledger.iter().filter_map(of_change).collect()
    }

    /// A job's coordinator has answered a grant, or not: so many nodes of it are its.
    pub(super) fn grant_settled(
        &mut self,
        id: JobId,
        grant: u64,
        now: Instant,
        out: &mut Vec<Action>,
    ) {
        let Some(managed) = self.managing.jobs.get_mut(&id) else { return };
        let Some(change) = managed.grants.remove(&grant) else { return };
        let holds =
            |node: &NodeId| self.jobs.get(&id).is_some_and(|job| job.members.contains(node));
        let mut count = 0;
        for (node, (job, used)) in &mut self.managing.ledger {
            if *job == id && *used == Use::Recruited(change) && holds(node) {
                *used = Use::Computes;
                count += 1;
            }
        }
        self.tell(News::Grown { job: id, change, count }, now, out);
    }

    /// So many processors are not the job's after all: nodes of that change end the job first; others have gone already.
    fn give_back(
        &mut self,
        id: JobId,
        change: u64,
        cluster: &ClusterId,
        count: u32,
        now: Instant,
        out: &mut Vec<Action>,
    ) -> Option<News> {
        let of_change = |(node, (job, used)): (&NodeId, &(JobId, Use))| {
            let here = self.nodes.get(node).is_some_and(|known| known.cluster == *cluster);
            // What has not come yet goes first.
            let rank = match *used {
                Use::Ordered(of) if of == change => 0,
                Use::Held(of) | Use::Recruited(of) if of == change => 1,
                _ => return None,
            };
            (*job == id && here).then(|| (rank, node.clone()))
        };
        let mut nodes: Vec<(u8, NodeId)> =
            self.managing.ledger.iter().filter_map(of_change).collect();
        nodes.sort();
        nodes.truncate(count as usize);
        let mut gone = count - nodes.len() as u32;
        for (_, node) in &nodes {
            self.managing.ledger.insert(node.clone(), (id, Use::GivenBack));
            if self.jobs.get(&id).is_some_and(|job| job.members.contains(node)) {
                self.release(id, node, out);
            }
            let kept = self.nodes.get(node).is_some_and(|known| known.reserved == Some(id));
            gone += u32::from(kept && self.unreserve(node, now, out));
        }
        let cluster = cluster.clone();
        (gone > 0).then_some(News::Unheld { job: id, cluster, count: gone })
    }

    /// Takes nodes from a job that has not let them go in time: they are started anew, as if it had lost them.
    fn force(
        &mut self,
        id: JobId,
        cluster: &ClusterId,
        count: u32,
        reason: &str,
        now: Instant,
        out: &mut Vec<Action>,
    ) {
        let Some(job) = self.jobs.get(&id) else { return };
        let coordinator = job.view.coordinator.as_ref();
        let here = |node: &&NodeId| {
            self.nodes.get(*node).is_some_and(|known| known.cluster == *cluster)
                && coordinator != Some(*node)
        };
        // What came last has least to lose, and names are given out in order.
        let taken: Vec<NodeId> =
            job.members.iter().rev().filter(here).take(count as usize).cloned().collect();
        for node in &taken {
            self.lost(node, reason, true, now, out);
        }
        let (cluster, reason) = (cluster.clone(), reason.to_owned());
        out.push(Action::Replace { cluster, nodes: taken, program: None, reason });
    }

    /// Compares the ledger with what nodes do, and tells the manager of every difference.
    fn settle(&mut self, now: Instant, out: &mut Vec<Action>) {
        // All that are free leave the ledger before the manager hears of any of them: it may give them to others at once.
        let mut free = Vec::new();
        self.managing.ledger.retain(|node, (job, used)| {
            let known = self.nodes.get(node);
            let holds = known.is_some_and(|known| {
                known.state == State::Busy(*job) || known.reserved == Some(*job)
            });
            free.extend(known.filter(|_| !holds).map(|known| (known.cluster.clone(), *job, *used)));
            holds
        });
        for (cluster, job, used) in &free {
            // What is being claimed, or given, is told of as a whole.
            if let (Use::Claimed, Some(managed)) = (used, self.managing.jobs.get_mut(job)) {
                *managed.lost.entry(cluster.clone()).or_default() += 1;
            }
        }
        self.settle_stubs(now, out);
        for id in self.managing.jobs.keys().copied().collect::<Vec<_>>() {
            self.gather(id, now, out);
            self.settle_job(id, now, out);
        }
        for (cluster, job, used) in free {
            match used {
                Use::Claimed | Use::Recruited(_) => {}
                Use::Ordered(change) | Use::Held(change) => {
                    let reason = "its node is gone".to_owned();
                    self.tell(News::NotHeld { job, change, count: 1, reason }, now, out);
                }
                Use::Computes => self.tell(News::Freed { job, cluster, count: 1 }, now, out),
                Use::GivenBack => self.tell(News::Unheld { job, cluster, count: 1 }, now, out),
            }
        }
        let ledger = &self.managing.ledger;
        let has = |id: &JobId| ledger.values().any(|(job, _)| job == id);
        let over = |(id, job): (&JobId, &Managed)| job.stage == Stage::Over && !has(id);
        let over: Vec<JobId> =
            self.managing.jobs.iter().filter(|one| over(*one)).map(|(id, _)| *id).collect();
        for id in over {
            self.managing.jobs.remove(&id);
        }
    }

    fn settle_job(&mut self, id: JobId, now: Instant, out: &mut Vec<Action>) {
        let state = self.jobs.get(&id).map(|job| job.state);
        let Some(managed) = self.managing.jobs.get_mut(&id) else { return };
        match (managed.stage.clone(), state) {
            (Stage::Claiming, Some(JobState::Running)) => {
                managed.stage = Stage::Running;
                managed.lost.clear();
                let mut got: BTreeMap<ClusterId, u32> = BTreeMap::new();
                for (node, (job, used)) in &mut self.managing.ledger {
                    let known = self.nodes.get(node).filter(|known| known.state == State::Busy(id));
                    if let Some(known) = known.filter(|_| *job == id) {
                        *used = Use::Computes;
                        *got.entry(known.cluster.clone()).or_default() += 1;
                    }
                }
                self.tell(News::Claimed { job: id, got }, now, out);
            }
            (Stage::Failing(_), None) => {
                if let Some(news) = self.given_up(id) {
                    self.tell(news, now, out);
                }
            }
            (Stage::Claiming | Stage::Running, Some(JobState::Ending) | None) => {
                managed.stage = Stage::Over;
                let lost = std::mem::take(&mut managed.lost);
                self.tell(News::Ended { job: id }, now, out);
                for (cluster, count) in lost {
                    self.tell(News::Freed { job: id, cluster, count }, now, out);
                }
                // What was being claimed counts as its own now.
                for (job, used) in self.managing.ledger.values_mut() {
                    if *job == id && *used == Use::Claimed {
                        *used = Use::Computes;
                    }
                }
            }
            (Stage::Running, Some(JobState::Running)) => self.settle_wants(id, now, out),
            _ => {}
        }
    }

    /// What its coordinator asks for, as far as that changed.
    fn settle_wants(&mut self, id: JobId, now: Instant, out: &mut Vec<Action>) {
        let Some(open) = self.jobs.get(&id).map(|job| job.open.count) else { return };
        let Some(managed) = self.managing.jobs.get_mut(&id) else { return };
        let count = open.saturating_add(managed.ordered.count);
        if managed.wants == count {
            return;
        }
        managed.wants = count;
        let want = match managed.ordered.count {
            0 => Want { count, within: None, clusters: BTreeSet::new() },
            _ => {
                let Ordered { within, clusters, .. } = managed.ordered.clone();
                Want { count, within, clusters }
            }
        };
        self.tell(News::Want { job: id, want }, now, out);
    }

    /// A worker did not take a job of the manager's, or a node was lost meanwhile: if it may be tried again, it is when
    /// all its nodes are free. Returns whether it is.
    pub(super) fn claim_again(&mut self, id: JobId, error: &SubmitError) -> bool {
        let lasting = matches!(
            error,
            SubmitError::Refused(AssignError::Program { .. } | AssignError::UnknownJob { .. })
                | SubmitError::Cancelled { .. }
        );
        match self.managing.jobs.get_mut(&id) {
            Some(job) if !lasting && job.stage == Stage::Claiming => {
                job.stage = Stage::Failing(error.to_string());
                true
            }
            _ => false,
        }
    }

    /// Takes a job that waits from the manager's queue. Returns whether it was there.
    pub(super) fn withdraw_managed(
        &mut self,
        id: JobId,
        reason: &str,
        now: Instant,
        out: &mut Vec<Action>,
    ) -> bool {
        self.drop_move(id, out);
        let Some(job) = self.managing.jobs.get_mut(&id) else { return false };
        match job.stage {
            Stage::Waiting => {
                self.managing.jobs.remove(&id);
                self.tell(News::Withdraw { job: id }, now, out);
            }
            // The manager knows it as one that is being started: it ends, and what came for it is given back.
            Stage::Gathering { .. } => {
                job.stage = Stage::Claiming;
                self.unreserve_all(id, now, out);
            }
            // When its nodes are free it is not started again.
            Stage::Failing(_) => job.stage = Stage::Claiming,
            _ => return false,
        }
        let error = SubmitError::Cancelled { reason: reason.to_owned() };
        out.push(Action::Refuse { job: id, error });
        true
    }

    /// A job answered an offer, or a request for processors.
    pub(super) fn answered(
        &mut self,
        id: JobId,
        change: u64,
        count: u32,
        now: Instant,
        out: &mut Vec<Action>,
    ) {
        if self.managing.has(id) {
            self.tell(News::Answer { job: id, change, count }, now, out);
        }
    }

    /// A job has measured its efficiency.
    pub(super) fn efficiency_told(
        &mut self,
        told: JobEfficiency,
        now: Instant,
        out: &mut Vec<Action>,
    ) {
        let JobEfficiency { job, epoch, efficiency, processors } = told;
        if self.managing.has(job) && self.check(job, epoch).is_ok() {
            self.tell(News::Efficiency { job, efficiency, processors }, now, out);
        }
    }

    /// Whether a job can be made larger or smaller by its owner, and what it is to come to.
    ///
    /// # Errors
    /// [`ResizeError`].
    pub fn check_resize(&self, order: &ResizeJob) -> Result<Resized, ResizeError> {
        let job = order.job;
        let managed = self.managing.jobs.get(&job);
        let running = managed.is_some_and(|managed| managed.stage == Stage::Running);
        let Some(view) = self.managing.view(job).filter(|_| running) else {
            if self.jobs.contains_key(&job) && managed.is_none() {
                return Err(ResizeError::NotManaged { job });
            }
            return Err(ResizeError::NotRunning { job });
        };
        if view.kind != Kind::Malleable {
            return Err(ResizeError::Fixed { job, kind: view.kind });
        }
        let from: u32 = view.sizes.values().sum();
        let to = match &order.by {
            Resize::Grow { count, cluster, .. } => {
                if let Some(cluster) = cluster.as_ref().filter(|at| !self.sites.contains_key(at)) {
                    return Err(ResizeError::UnknownCluster { cluster: cluster.clone() });
                }
                from.saturating_add(*count)
            }
            Resize::Shrink { count } => from.saturating_sub(*count),
        };
        if to < view.least || to > view.useful {
            let (least, most) = (view.least, view.useful);
            return Err(ResizeError::Bounds { job, to, least, most });
        }
        Ok(Resized { from, to })
    }

    /// Makes a job larger or smaller, where that is possible.
    pub(super) fn resize(&mut self, order: &ResizeJob, now: Instant, out: &mut Vec<Action>) {
        let (job, Ok(Resized { to, .. })) = (order.job, self.check_resize(order)) else { return };
        let Some(view) = self.managing.view(job) else { return };
        let Some(managed) = self.managing.jobs.get_mut(&job) else { return };
        let most = match &order.by {
            Resize::Grow { count, within_ms, cluster } => {
                let within = within_ms.map(Duration::from_millis);
                let clusters = cluster.iter().cloned().collect();
                managed.ordered = Ordered { count: *count, within, clusters };
                // A limit that stands in the way goes up.
                (to > view.most || view.most < view.useful).then_some(to.max(view.most))
            }
            Resize::Shrink { .. } => {
                managed.ordered = Ordered::default();
                Some(to)
            }
        };
        if let Some(most) = most {
            let most = (most < view.useful).then_some(most);
            self.tell(News::Limit { job, most }, now, out);
        }
        self.settle_wants(job, now, out);
        self.poll(now, out);
    }

    /// A job as its owner may see it; absent if nothing of it is known any more.
    pub fn detail(&self, job: JobId, now: Instant) -> Option<JobDetail> {
        let status = self.status().jobs.into_iter().find(|status| status.job == job);
        let (view, history) = (self.managing.view(job), self.managing.history(job, now));
        (status.is_some() || !history.is_empty()).then_some(JobDetail { status, view, history })
    }

    /// Where a job would be placed now, and if nowhere why not.
    ///
    /// # Errors
    /// As [`Manager::plan`].
    pub fn plan(&self, need: &Need) -> Result<Placed, crate::policy::malleability::NoPlace> {
        self.managing.manager.plan(need)
    }

    /// For tests: the manager's books agree with themselves and with the nodes.
    #[cfg(test)]
    pub(super) fn audit_managed(&self) {
        self.managing.manager.audit();
        for (cluster, _) in self.processors() {
            let here =
                |node: &NodeId| self.nodes.get(node).is_some_and(|known| known.cluster == cluster);
            let nodes = self.managing.ledger.keys().filter(|node| here(node)).count();
            let booked = self.managing.manager.booked(&cluster) as usize;
            assert!(
                nodes <= booked,
                "{cluster}: {nodes} nodes are in the ledger, {booked} processors are booked"
            );
        }
        for (node, (job, _)) in &self.managing.ledger {
            let known = &self.nodes[node];
            assert!(
                known.state == State::Busy(*job) || known.reserved == Some(*job),
                "{node} is in the ledger of {job} and is {known:?}"
            );
        }
    }
}
