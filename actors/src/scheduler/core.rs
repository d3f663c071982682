//! What the scheduler decides: which nodes a job gets, and what becomes of nodes and jobs when one of them ends.
//!
//! A state machine without I/O and without a clock: events in, actions out. It must not know how actions are carried out.
//! Whoever carries out an action that has an answer feeds the answer back, also when it is a failure.
//!
//! Jobs are rigid here and served strictly in order: the first one waits until all it asks for is free, and the others
//! wait behind it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use springtide_runtime::id::{ClusterId, Epoch, JobId, NodeId};
use springtide_runtime::membership::{Member, View};
use springtide_runtime::net::Contact;

use super::messages::{
    Granted, GridStatus, JobState, JobStatus, MemberSilent, NodeState, NodeStatus, Registered,
    SiteStatus, Submit, SubmitError,
};
use crate::job::{Assign, AssignError, JobError, JobSpec};

/// What the scheduler hears.
#[derive(Clone, Debug)]
pub enum Event {
    /// A site is there, with these nodes.
    SiteUp {
        /// Its cluster.
        cluster: ClusterId,
        /// Its nodes.
        nodes: Vec<NodeId>,
        /// Whether it can start nodes with a program handed in.
        starts_programs: bool,
    },
    /// A node has registered.
    Registered(Registered),
    /// A node is gone.
    NodeLost {
        /// Which.
        node: NodeId,
        /// Why.
        reason: String,
        /// Whether its site starts it again.
        returns: bool,
    },
    /// A job's coordinator goes on without a member that was silent too long.
    MemberSilent(MemberSilent),
    /// A job is submitted under a number and epoch that are on disk.
    Submit {
        /// Its number.
        job: JobId,
        /// Its first epoch.
        epoch: Epoch,
        /// The rest.
        submit: Box<Submit>,
    },
    /// A worker answered [`Action::Assign`].
    Assigned {
        /// Which job.
        job: JobId,
        /// Which node.
        node: NodeId,
        /// Its answer; no answer is an [`AssignError::Failed`].
        answer: Result<(), AssignError>,
    },
    /// A worker answered [`Action::Release`], or did not.
    Released {
        /// Which job.
        job: JobId,
        /// Which node.
        node: NodeId,
        /// Whether it answered.
        ok: bool,
    },
    /// A job's coordinator says that it is over and its workers are free.
    JobOver {
        /// Which.
        job: JobId,
        /// The coordinator's epoch.
        epoch: Epoch,
    },
    /// Somebody wants a job ended.
    Cancel {
        /// Which.
        job: JobId,
        /// Why.
        reason: String,
    },
    /// A job's coordinator did not take [`Action::Cancel`].
    CancelFailed {
        /// Which.
        job: JobId,
        /// What became of it.
        reason: String,
    },
    /// The link to a submitting process is down.
    ClientLost {
        /// Which.
        client: NodeId,
    },
}

/// What is to be done.
#[derive(Clone, Debug)]
pub enum Action {
    /// Send this to the node's worker; feed back [`Event::Assigned`].
    Assign {
        /// Whom.
        node: NodeId,
        /// What.
        assign: Box<Assign>,
    },
    /// Answer the submission: all workers have the job.
    Grant(Granted),
    /// Answer the submission: the job does not run.
    Refuse {
        /// Which.
        job: JobId,
        /// Why.
        error: SubmitError,
    },
    /// Tell the node's worker that the job is over; feed back [`Event::Released`].
    Release {
        /// Whom.
        node: NodeId,
        /// Which job.
        job: JobId,
    },
    /// Tell the job's coordinator to end it; feed back [`Event::CancelFailed`] if it cannot be told.
    Cancel {
        /// Which job.
        job: JobId,
        /// The coordinator's node.
        coordinator: NodeId,
        /// Why.
        reason: String,
    },
    /// Tell the job's coordinator that a member is dead.
    MemberLost {
        /// Which job.
        job: JobId,
        /// The coordinator's node.
        coordinator: NodeId,
        /// Who is dead.
        node: NodeId,
        /// How it ended.
        reason: String,
    },
    /// Tell the client that the job ended without an outcome, before anything else is told to anyone.
    Ended {
        /// Which job.
        job: JobId,
        /// Whom.
        client: Contact,
        /// Why.
        error: JobError,
    },
    /// Ask the site to start these nodes anew with this program.
    Replace {
        /// Where.
        cluster: ClusterId,
        /// Which.
        nodes: Vec<NodeId>,
        /// With what; absent: the one it had.
        program: Option<std::path::PathBuf>,
        /// Why, for logs.
        reason: String,
    },
}

#[derive(Debug)]
struct Site {
    nodes: BTreeSet<NodeId>,
    starts_programs: bool,
}

#[derive(Debug)]
struct Node {
    cluster: ClusterId,
    state: State,
    /// As it last registered.
    life: Option<Registered>,
    /// Why it is not there.
    reason: Option<String>,
    /// The last job whose program it was started with.
    tried: Option<JobId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Starting,
    Idle,
    Busy(JobId),
    Broken,
}

#[derive(Debug)]
struct Waiting {
    job: JobId,
    epoch: Epoch,
    submit: Box<Submit>,
    waits_for: String,
}

#[derive(Debug)]
struct Job {
    name: String,
    state: JobState,
    client: Contact,
    view: View,
    epoch: Epoch,
    /// Members that hold the job, as far as is known here.
    members: BTreeSet<NodeId>,
    /// Members whose answer to the assignment is awaited.
    unanswered: BTreeSet<NodeId>,
}

/// The scheduler's state.
#[derive(Debug)]
pub struct Core {
    me: Contact,
    sites: BTreeMap<ClusterId, Site>,
    nodes: BTreeMap<NodeId, Node>,
    queue: VecDeque<Waiting>,
    jobs: BTreeMap<JobId, Job>,
}

/// What the first job in the queue can get now.
enum Placement {
    /// These nodes.
    Nodes(Vec<NodeId>),
    /// Nothing yet.
    Wait(String),
    /// Nodes must run the job's program first.
    Replace(BTreeMap<ClusterId, Vec<NodeId>>),
    /// Nothing ever.
    Never(SubmitError),
}

impl Core {
    /// A scheduler at `me` that knows no site yet.
    pub fn new(me: Contact) -> Self {
        Self {
            me,
            sites: BTreeMap::new(),
            nodes: BTreeMap::new(),
            queue: VecDeque::new(),
            jobs: BTreeMap::new(),
        }
    }

    /// Takes an event in.
    pub fn handle(&mut self, event: Event) -> Vec<Action> {
        let mut out = Vec::new();
        match event {
            Event::SiteUp { cluster, nodes, starts_programs } => {
                self.site_up(cluster, nodes, starts_programs);
            }
            Event::Registered(life) => self.registered(life, &mut out),
            Event::NodeLost { node, reason, returns } => {
                self.lost(&node, &reason, returns, &mut out)
            }
            Event::Submit { job, epoch, submit } => {
                let waits_for = String::new();
                self.queue.push_back(Waiting { job, epoch, submit, waits_for });
            }
            Event::Assigned { job, node, answer } => self.assigned(job, &node, answer, &mut out),
            Event::Released { job, node, ok } => self.released(job, &node, ok, &mut out),
            Event::JobOver { job, epoch } => self.over(job, epoch),
            Event::Cancel { job, reason } => self.cancel(job, &reason, &mut out),
            Event::CancelFailed { job, reason } => {
                self.fail(job, JobError::Cancelled { reason }, None, &mut out)
            }
            Event::MemberSilent(silent) => self.silent(silent, &mut out),
            Event::ClientLost { client } => self.client_lost(&client, &mut out),
        }
        self.serve_queue(&mut out);
        out
    }

    /// How things are.
    pub fn status(&self) -> GridStatus {
        let mut sites: BTreeMap<ClusterId, SiteStatus> = BTreeMap::new();
        for cluster in self.sites.keys() {
            sites.insert(cluster.clone(), SiteStatus::default());
        }
        for (id, node) in &self.nodes {
            let life = node.life.as_ref();
            let (state, job) = match node.state {
                State::Starting => (NodeState::Starting, None),
                State::Idle => (NodeState::Idle, None),
                State::Busy(job) => (NodeState::Busy, Some(job)),
                State::Broken => (NodeState::Broken, None),
            };
            sites.entry(node.cluster.clone()).or_default().nodes.push(NodeStatus {
                node: id.clone(),
                state,
                job,
                threads: life.map(|life| life.threads),
                pid: life.map(|life| life.pid),
                incarnation: life.map(|life| life.incarnation),
                address: life.map(|life| life.address.clone()),
                reason: node.reason.clone(),
            });
        }
        let queued = self.queue.iter().map(|waiting| JobStatus {
            job: waiting.job,
            name: waiting.submit.name.clone(),
            state: JobState::Queued,
            nodes: 0,
            waits_for: Some(waiting.waits_for.clone()),
        });
        let running = self.jobs.iter().map(|(&id, job)| JobStatus {
            job: id,
            name: job.name.clone(),
            state: job.state,
            nodes: job.members.len() as u32,
            waits_for: None,
        });
        GridStatus { sites, jobs: queued.chain(running).collect() }
    }

    fn site_up(&mut self, cluster: ClusterId, nodes: Vec<NodeId>, starts_programs: bool) {
        for node in &nodes {
            self.nodes.entry(node.clone()).or_insert_with(|| Node {
                cluster: cluster.clone(),
                state: State::Starting,
                life: None,
                reason: None,
                tried: None,
            });
        }
        self.sites.insert(cluster, Site { nodes: nodes.into_iter().collect(), starts_programs });
    }

    fn registered(&mut self, life: Registered, out: &mut Vec<Action>) {
        let Some(node) = self.nodes.get(&life.node) else {
            return; // of no site: nobody would start or stop it
        };
        if let Some(known) = &node.life {
            if known.incarnation > life.incarnation {
                return; // a late word of an earlier life
            }
            if known.incarnation < life.incarnation && matches!(node.state, State::Busy(_)) {
                let reason = "it was started anew".to_owned();
                self.lost(&life.node.clone(), &reason, true, out);
            }
        }
        let Some(node) = self.nodes.get_mut(&life.node) else { return };
        if !matches!(node.state, State::Busy(_)) {
            node.state = State::Idle;
        }
        node.reason = None;
        node.life = Some(life);
    }

    fn lost(&mut self, id: &NodeId, reason: &str, returns: bool, out: &mut Vec<Action>) {
        let Some(node) = self.nodes.get_mut(id) else { return };
        let before = node.state;
        node.state = if returns { State::Starting } else { State::Broken };
        node.reason = Some(reason.to_owned());
        let State::Busy(job) = before else { return };
        let Some(held) = self.jobs.get_mut(&job) else { return };
        held.members.remove(id);
        held.unanswered.remove(id);
        if let (JobState::Running, Some(coordinator)) = (held.state, &held.view.coordinator)
            && coordinator != id
        {
            let (coordinator, node) = (coordinator.clone(), id.clone());
            out.push(Action::MemberLost { job, coordinator, node, reason: reason.to_owned() });
            return;
        }
        let error = JobError::NodeLost { node: id.clone(), reason: reason.to_owned() };
        self.fail(job, error, Some(id), out);
    }

    /// The job has a new view without the node already; what is left is to have it started anew.
    fn silent(&mut self, silent: MemberSilent, out: &mut Vec<Action>) {
        let MemberSilent { job, epoch, node: id, incarnation, reason } = silent;
        let Some(held) = self.jobs.get_mut(&job).filter(|held| held.epoch <= epoch) else { return };
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let this_life = node.life.as_ref().is_some_and(|life| life.incarnation == incarnation);
        if node.state != State::Busy(job) || !this_life {
            return;
        }
        held.members.remove(&id);
        held.unanswered.remove(&id);
        node.state = State::Starting;
        node.reason = Some(reason.clone());
        let (cluster, nodes) = (node.cluster.clone(), vec![id]);
        out.push(Action::Replace { cluster, nodes, program: None, reason });
    }

    /// Ends a job from here: its client is told, and what members are left are released. `gone` is the member whose loss is
    /// the cause.
    fn fail(&mut self, id: JobId, error: JobError, gone: Option<&NodeId>, out: &mut Vec<Action>) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        match job.state {
            JobState::Ending | JobState::Queued => {}
            JobState::Assigning => {
                let failed = match &error {
                    JobError::NodeLost { node, reason } => {
                        SubmitError::Refused(AssignError::failed(node, reason.clone()))
                    }
                    other => SubmitError::Cancelled { reason: other.to_string() },
                };
                out.push(Action::Refuse { job: id, error: failed });
            }
            JobState::Running => {
                out.push(Action::Ended {
                    job: id,
                    client: job.client.clone(),
                    error: error.clone(),
                });
                let coordinator = job.view.coordinator.clone();
                if let Some(coordinator) = coordinator.filter(|node| Some(node) != gone) {
                    out.push(Action::Cancel { job: id, coordinator, reason: error.to_string() });
                }
            }
        }
        self.release_members(id, out);
    }

    fn release_members(&mut self, id: JobId, out: &mut Vec<Action>) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        if job.state != JobState::Ending {
            job.state = JobState::Ending;
            for node in &job.members {
                out.push(Action::Release { node: node.clone(), job: id });
            }
        }
        if job.members.is_empty() {
            self.jobs.remove(&id);
        }
    }

    fn assigned(
        &mut self,
        id: JobId,
        node: &NodeId,
        answer: Result<(), AssignError>,
        out: &mut Vec<Action>,
    ) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        if !job.unanswered.remove(node) || job.state != JobState::Assigning {
            return;
        }
        match answer {
            Ok(()) if job.unanswered.is_empty() => {
                job.state = JobState::Running;
                if let Some(granted) = grant(id, job) {
                    out.push(Action::Grant(granted));
                }
            }
            Ok(()) => {}
            Err(error) => {
                out.push(Action::Refuse { job: id, error: SubmitError::Refused(error) });
                self.release_members(id, out);
            }
        }
    }

    fn released(&mut self, id: JobId, node: &NodeId, ok: bool, out: &mut Vec<Action>) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        if job.state != JobState::Ending || !job.members.remove(node) {
            return;
        }
        if job.members.is_empty() {
            self.jobs.remove(&id);
        }
        let Some(known) = self.nodes.get_mut(node) else { return };
        if known.state != State::Busy(id) {
            return;
        }
        if ok {
            known.state = State::Idle;
        } else {
            let reason = format!("it did not release {id}");
            known.state = State::Starting;
            known.reason = Some(reason.clone());
            let cluster = known.cluster.clone();
            out.push(Action::Replace { cluster, nodes: vec![node.clone()], program: None, reason });
        }
    }

    fn over(&mut self, id: JobId, epoch: Epoch) {
        // A coordinator of an older epoch has no say.
        if self.jobs.get(&id).is_none_or(|job| epoch < job.epoch) {
            return;
        }
        let Some(job) = self.jobs.get_mut(&id) else { return };
        if job.state != JobState::Running {
            return; // the answers to the releases tell which nodes are free
        }
        for node in std::mem::take(&mut job.members) {
            if let Some(node) = self.nodes.get_mut(&node)
                && node.state == State::Busy(id)
            {
                node.state = State::Idle;
            }
        }
        self.jobs.remove(&id);
    }

    fn cancel(&mut self, id: JobId, reason: &str, out: &mut Vec<Action>) {
        if let Some(at) = self.queue.iter().position(|waiting| waiting.job == id) {
            self.queue.remove(at);
            let error = SubmitError::Cancelled { reason: reason.to_owned() };
            out.push(Action::Refuse { job: id, error });
            return;
        }
        let Some(job) = self.jobs.get(&id) else { return };
        match (job.state, job.view.coordinator.clone()) {
            (JobState::Ending, _) => {}
            (JobState::Running, Some(coordinator)) => {
                out.push(Action::Cancel { job: id, coordinator, reason: reason.to_owned() });
            }
            _ => self.fail(id, JobError::Cancelled { reason: reason.to_owned() }, None, out),
        }
    }

    fn client_lost(&mut self, client: &NodeId, out: &mut Vec<Action>) {
        let queued = self.queue.iter().filter(|w| w.submit.client.node == *client).map(|w| w.job);
        let running = self.jobs.iter().filter(|(_, j)| j.client.node == *client).map(|(&id, _)| id);
        let theirs: Vec<JobId> = queued.chain(running).collect();
        for job in theirs {
            self.cancel(job, "the process that submitted it is gone", out);
        }
    }

    /// Serves the queue from its head as far as it goes.
    fn serve_queue(&mut self, out: &mut Vec<Action>) {
        while let Some(first) = self.queue.front() {
            match self.place(first) {
                Placement::Wait(reason) => {
                    if let Some(first) = self.queue.front_mut() {
                        first.waits_for = reason;
                    }
                    return;
                }
                Placement::Replace(by_cluster) => {
                    let (job, program) = (first.job, first.submit.program.clone());
                    for (cluster, nodes) in by_cluster {
                        for node in &nodes {
                            if let Some(node) = self.nodes.get_mut(node) {
                                node.state = State::Starting;
                                node.tried = Some(job);
                            }
                        }
                        let program = program.clone();
                        let reason = format!("{job} is of another program");
                        out.push(Action::Replace { cluster, nodes, program, reason });
                    }
                }
                Placement::Never(error) => {
                    out.push(Action::Refuse { job: first.job, error });
                    self.queue.pop_front();
                }
                Placement::Nodes(nodes) => {
                    if let Some(first) = self.queue.pop_front() {
                        self.assign(first, nodes, out);
                    }
                }
            }
        }
    }

    fn place(&self, waiting: &Waiting) -> Placement {
        let submit = &waiting.submit;
        let asked = match self.asked(submit) {
            Ok(asked) => asked,
            Err(error) => return Placement::Never(error),
        };
        let mut chosen = Vec::new();
        let mut replace: BTreeMap<ClusterId, Vec<NodeId>> = BTreeMap::new();
        let mut short = Vec::new();
        for (cluster, count) in asked {
            let Some(site) = self.sites.get(&cluster) else { continue };
            let mut of_program = Vec::new();
            let mut of_other = Vec::new();
            let mut coming = 0;
            for id in &site.nodes {
                let Some(node) = self.nodes.get(id) else { continue };
                let fits = node.life.as_ref().is_some_and(|l| l.fingerprint == submit.fingerprint);
                match node.state {
                    State::Idle if fits => of_program.push(id.clone()),
                    State::Idle => of_other.push((id.clone(), node)),
                    State::Starting => coming += 1,
                    State::Busy(_) | State::Broken => {}
                }
            }
            if of_program.len() >= count {
                chosen.extend(of_program.into_iter().take(count));
                continue;
            }
            let lacks = count - of_program.len();
            if lacks > coming && !of_other.is_empty() {
                // A node that was started for this job and still has another registry never will have the right one.
                let tried = of_other.iter().find(|(_, node)| node.tried == Some(waiting.job));
                if let Some((id, node)) = tried {
                    return Placement::Never(another_program(id, node, submit));
                }
                if submit.program.is_none() || !site.starts_programs {
                    let (id, node) = &of_other[0];
                    return Placement::Never(another_program(id, node, submit));
                }
                let nodes = of_other.into_iter().map(|(id, _)| id).take(lacks - coming);
                replace.entry(cluster.clone()).or_default().extend(nodes);
            }
            short.push(format!("{lacks} more of cluster {cluster}"));
        }
        if !replace.is_empty() {
            Placement::Replace(replace)
        } else if !short.is_empty() {
            Placement::Wait(format!("nodes: {}", short.join(", ")))
        } else {
            Placement::Nodes(chosen)
        }
    }

    /// How many nodes of which cluster, or why that can never be.
    fn asked(&self, submit: &Submit) -> Result<BTreeMap<ClusterId, usize>, SubmitError> {
        let not_placed = |reason: String| Err(SubmitError::NotPlaced { reason });
        let works = |site: &Site| {
            let whole =
                |id: &&NodeId| self.nodes.get(*id).is_some_and(|node| node.state != State::Broken);
            site.nodes.iter().filter(whole).count()
        };
        let Some(clusters) = &submit.clusters else {
            let all: BTreeMap<_, _> = self
                .sites
                .iter()
                .map(|(cluster, site)| (cluster.clone(), works(site)))
                .filter(|(_, count)| *count > 0)
                .collect();
            if all.is_empty() {
                let why = Self::broken_reasons(self.nodes.values());
                return not_placed(format!("no node of the grid works{why}"));
            }
            return Ok(all);
        };
        if clusters.is_empty() {
            return not_placed("it asks for no cluster".to_owned());
        }
        let mut asked = BTreeMap::new();
        for (cluster, &count) in clusters {
            let Some(site) = self.sites.get(cluster) else {
                let names: Vec<_> = self.sites.keys().map(ClusterId::as_str).collect();
                let names = names.join(", ");
                return not_placed(format!("the grid has no cluster {cluster}; it has {names}"));
            };
            let count = count as usize;
            if count == 0 {
                return not_placed(format!("it asks for no node of cluster {cluster}"));
            }
            let works = works(site);
            if count > works {
                let of_site = site.nodes.iter().filter_map(|id| self.nodes.get(id));
                let why = Self::broken_reasons(of_site);
                return not_placed(format!(
                    "it asks for {count} nodes of cluster {cluster}, which has {works} that work{why}"
                ));
            }
            asked.insert(cluster.clone(), count);
        }
        Ok(asked)
    }

    fn broken_reasons<'a>(nodes: impl Iterator<Item = &'a Node>) -> String {
        let broken = nodes.filter(|node| node.state == State::Broken);
        let reasons: Vec<_> = broken.filter_map(|node| node.reason.as_deref()).take(1).collect();
        reasons.first().map_or_else(String::new, |reason| format!(": {reason}"))
    }

    fn assign(&mut self, waiting: Waiting, nodes: Vec<NodeId>, out: &mut Vec<Action>) {
        let Waiting { job: id, epoch, submit, .. } = waiting;
        let mut view = View { epoch, version: 1, ..View::default() };
        for name in &nodes {
            let Some(node) = self.nodes.get_mut(name) else { continue };
            let Some(life) = &node.life else { continue };
            let member = Member {
                incarnation: life.incarnation,
                cluster: node.cluster.clone(),
                address: life.address.clone(),
                threads: life.threads,
                leaving: false,
            };
            node.state = State::Busy(id);
            view.cluster_coordinators.entry(node.cluster.clone()).or_insert_with(|| name.clone());
            view.members.insert(name.clone(), member);
        }
        view.coordinator = view.cluster_coordinators.values().next().cloned();
        let spec = JobSpec {
            id,
            epoch,
            name: submit.name.clone(),
            body: submit.body.clone(),
            fingerprint: submit.fingerprint,
            params: submit.params.clone(),
        };
        let members: BTreeSet<NodeId> = view.members.keys().cloned().collect();
        // The coordinator's node first, so that it is there when the others report to it.
        let first = view.coordinator.iter();
        let others = members.iter().filter(|node| view.coordinator.as_ref() != Some(*node));
        for node in first.chain(others) {
            let assign = Assign {
                spec: spec.clone(),
                view: view.clone(),
                client: submit.client.clone(),
                scheduler: self.me.clone(),
            };
            out.push(Action::Assign { node: node.clone(), assign: Box::new(assign) });
        }
        let unanswered = members.clone();
        let state = JobState::Assigning;
        let (name, client) = (submit.name, submit.client);
        self.jobs.insert(id, Job { name, state, client, view, epoch, members, unanswered });
    }
}

fn grant(id: JobId, job: &Job) -> Option<Granted> {
    let node = job.view.coordinator.clone()?;
    let member = job.view.members.get(&node)?;
    let (cluster, address) = (member.cluster.clone(), member.address.clone());
    let coordinator = Contact { node, cluster, address };
    Some(Granted { job: id, epoch: job.epoch, coordinator, view: job.view.clone() })
}

fn another_program(id: &NodeId, node: &Node, submit: &Submit) -> SubmitError {
    let has = node.life.as_ref().map_or(0, |life| life.fingerprint);
    SubmitError::Program {
        reason: format!(
            "node {id} runs another program (registry {has:016x}, the job's is {:016x}): start its nodes with the \
             program that submits the job",
            submit.fingerprint
        ),
    }
}

#[cfg(test)]
#[path = "core_tests.rs"]
mod tests;
