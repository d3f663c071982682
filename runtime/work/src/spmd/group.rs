//! The state of a process group that the root's node keeps: processes, configurations and
//! agreements.
//!
//! A state machine without I/O. Methods such as `reach` and `lost` take events and return messages
//! to processes. Each process is in one state at a time, and configurations are numbered. A
//! configuration that loses a member or a message ends as a whole. This module depends on neither
//! threads nor networks nor programs.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

use bytes::Bytes;
use tokio::time::Instant;

use super::message::{
    CollectiveAction, Configuration, Invitation, ProcessMessage, RankAssignment, StateSource,
    StepRate,
};
use super::timer::RetryTimer;
use crate::id::{Incarnation, NodeId, Peer};

/// The shortest step, in seconds, for which processes wait at a point while the root decides. The
/// wait takes a few round trips.
const LONG_STEP_S: f64 = 1.0;

/// A message, with its receiver's node and process number.
pub(crate) type OutgoingMessage = (Peer, u32, ProcessMessage);

/// The state of a process, as the root knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProcessState {
    /// Spawned, and not yet reported.
    Spawned,
    /// It waits to be recruited.
    Waiting,
    /// It takes part in the configuration, or is invited to.
    Member,
    /// Its configuration has ended, and it has not confirmed that.
    Leaving,
    /// It was dismissed, or will be as soon as it reports.
    Dismissed,
    /// It has ended.
    Ended,
}

#[derive(Clone, Debug)]
struct ProcessEntry {
    peer: Option<Peer>,
    state: ProcessState,
}

/// An action that all members are to execute.
#[derive(Debug)]
struct PendingAction {
    number: u32,
    action: CollectiveAction,
    /// The points that the members named.
    points: BTreeMap<u32, u64>,
    agreed: Option<u64>,
}

/// The root's state of a group.
#[derive(Debug)]
pub(crate) struct ProcessGroup {
    processes: BTreeMap<u32, ProcessEntry>,
    /// The number of the last configuration.
    generation: u32,
    configuration: Option<Configuration>,
    /// The members that have their state.
    complete: BTreeSet<u32>,
    /// Processes that others get their state from, until all have it.
    givers: BTreeSet<u32>,
    /// The members that have finished the work after their last step.
    done: BTreeSet<u32>,
    change: Option<PendingAction>,
    last_change: u32,
    /// The members' speeds, by process.
    step_rates: BTreeMap<u32, StepRate>,
    /// Processes that ended without a dismissal.
    ended: Vec<u32>,
    /// Why the last configuration ended.
    cause: Option<ConfigurationEnd>,
    /// Reports of processes that the root has not relayed.
    reports: Vec<ProcessReport>,
    /// The total bytes of these reports.
    reports_bytes: usize,
    /// Whether the notice about dropped reports has been added.
    dropped: bool,
    /// The running processes that take orders, by number.
    takers: BTreeMap<u32, OrderTaker>,
    /// Their answers that the root has not taken.
    answers: Vec<ReceivedAnswer>,
    /// Whether processes came or ended since the root last asked.
    news: bool,
    /// Whether processes came or leave since the root last decided.
    undecided: bool,
    /// Nodes that the program released and that are still members.
    released: BTreeSet<Peer>,
}

/// An answer of a process that takes orders.
#[derive(Debug)]
pub(crate) struct ReceivedAnswer {
    pub(crate) process: u32,
    pub(crate) peer: Peer,
    pub(crate) body: Bytes,
    /// The time of its arrival, independent of when the root takes it.
    pub(crate) at: Instant,
}

/// The root's state of a process that takes orders.
#[derive(Debug)]
struct OrderTaker {
    peer: Peer,
    session: u64,
    /// The number of the last order.
    last: u64,
    /// Orders that the process has not acknowledged.
    unacknowledged: VecDeque<(u64, Bytes)>,
    timer: RetryTimer,
    /// Whether it has unexecuted orders.
    is_working: bool,
}

impl OrderTaker {
    fn orders(&self) -> impl Iterator<Item = ProcessMessage> {
        let session = self.session;
        let unacknowledged = self.unacknowledged.iter();
        unacknowledged.map(move |(number, body)| ProcessMessage::Order {
            session,
            number: *number,
            body: body.clone(),
        })
    }
}

/// Why a configuration ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ConfigurationEnd {
    /// The node was lost.
    Lost(NodeId),
    /// The link between two nodes broke.
    Link(NodeId, NodeId),
    /// A process on the node ended.
    Ended(NodeId),
    /// A process on the node restarted.
    Restarted(NodeId),
}

impl fmt::Display for ConfigurationEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(node) => write!(f, "node {node} was lost"),
            Self::Link(one, other) => write!(f, "the link between {one} and {other} broke"),
            Self::Ended(node) => write!(f, "a process on {node} ended"),
            Self::Restarted(node) => write!(f, "a process restarted on {node}"),
        }
    }
}

/// Output of a process for the job's client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ProcessReport {
    /// A line of text.
    Say(String),
    /// A file: its name and contents.
    Artifact(String, Bytes),
}

/// Bounds of reports that the root has not relayed, in number and bytes. Reports beyond them are
/// dropped with a notice. The root relays at each of its points, and once a second while it waits.
const REPORTS_MAX: usize = 10_000;
const REPORTS_BYTES_MAX: usize = 2 << 30;

impl ProcessReport {
    fn bytes(&self) -> usize {
        match self {
            Self::Say(text) => text.len(),
            Self::Artifact(name, bytes) => name.len() + bytes.len(),
        }
    }
}

impl ProcessGroup {
    /// A group with only the root's process, number 0.
    pub(crate) fn new(root: Peer) -> Self {
        let root = ProcessEntry { peer: Some(root), state: ProcessState::Waiting };
        Self {
            processes: BTreeMap::from([(0, root)]),
            generation: 0,
            configuration: None,
            complete: BTreeSet::new(),
            givers: BTreeSet::new(),
            done: BTreeSet::new(),
            change: None,
            last_change: 0,
            step_rates: BTreeMap::new(),
            ended: Vec::new(),
            cause: None,
            reports: Vec::new(),
            reports_bytes: 0,
            dropped: false,
            takers: BTreeMap::new(),
            answers: Vec::new(),
            news: false,
            undecided: false,
            released: BTreeSet::new(),
        }
    }

    // --- received messages ---

    /// Handles the message that a process runs.
    pub(crate) fn handle_here(
        &mut self,
        process: u32,
        peer: &Peer,
        generation: u32,
    ) -> Vec<OutgoingMessage> {
        let now = self.configuration.as_ref().map_or(0, |configuration| configuration.generation);
        let gives = self.givers.contains(&process);
        let Some(entry) = self.processes.get_mut(&process) else {
            return vec![(peer.clone(), process, ProcessMessage::Dismiss)];
        };
        let moved = entry.peer.as_ref().is_some_and(|before| before != peer);
        match entry.state {
            ProcessState::Dismissed | ProcessState::Ended => {
                vec![(peer.clone(), process, ProcessMessage::Dismiss)]
            }
            ProcessState::Spawned | ProcessState::Waiting | ProcessState::Leaving
                if generation == 0 =>
            {
                *entry = ProcessEntry { peer: Some(peer.clone()), state: ProcessState::Waiting };
                self.request_decision()
            }
            // It is leaving the previous configuration.
            ProcessState::Waiting if gives => Vec::new(),
            ProcessState::Spawned | ProcessState::Waiting | ProcessState::Leaving => {
                vec![(peer.clone(), process, ProcessMessage::Apart { generation })]
            }
            // It restarted elsewhere, and its state is lost.
            ProcessState::Member if moved => {
                *entry = ProcessEntry { peer: Some(peer.clone()), state: ProcessState::Waiting };
                self.dissolve(ConfigurationEnd::Restarted(peer.node.clone()))
            }
            // It still waits in an earlier configuration, since it missed that end.
            ProcessState::Member if generation > 0 && generation < now && !gives => {
                vec![(peer.clone(), process, ProcessMessage::Apart { generation })]
            }
            // It enters the configuration, or is in it.
            ProcessState::Member => Vec::new(),
        }
    }

    /// Handles the message that a process takes orders. Repeats orders unacknowledged for long.
    pub(crate) fn ready(
        &mut self,
        process: u32,
        peer: &Peer,
        (session, received): (u64, u64),
    ) -> Vec<OutgoingMessage> {
        let out = self.handle_here(process, peer, 0);
        if self.process_state(process) != Some(ProcessState::Waiting) {
            return out;
        }
        let is_here = |taker: &&mut OrderTaker| taker.session == session && taker.peer == *peer;
        let Some(taker) = self.takers.get_mut(&process).filter(is_here) else {
            let (last, unacknowledged) = (0, VecDeque::new());
            let timer = RetryTimer::default();
            let peer = peer.clone();
            let taker =
                OrderTaker { peer, session, last, unacknowledged, timer, is_working: false };
            self.takers.insert(process, taker);
            self.news = true;
            return out;
        };
        taker.unacknowledged.retain(|(number, _)| *number > received);
        let oldest = taker.unacknowledged.front().map(|(number, _)| *number);
        if !taker.timer.is_due(oldest) {
            return Vec::new();
        }
        taker.orders().map(|word| (taker.peer.clone(), process, word)).collect()
    }

    /// Stores an answer.
    pub(crate) fn answer(&mut self, process: u32, from: &Peer, body: Bytes, now: Instant) {
        self.answers.push(ReceivedAnswer { process, peer: from.clone(), body, at: now });
    }

    /// Records the next point at which a process can execute the proposed action.
    pub(crate) fn reach(&mut self, process: u32, number: u32, point: u64) -> Vec<OutgoingMessage> {
        let Some(configuration) = &self.configuration else { return Vec::new() };
        let Some(change) = self.change.as_mut().filter(|c| c.number == number) else {
            return Vec::new();
        };
        if configuration.rank_of(process).is_none() || change.agreed.is_some() {
            return Vec::new();
        }
        change.points.insert(process, point);
        if change.points.len() < configuration.members.len() {
            return Vec::new();
        }
        // No process has passed the greatest point, for each holds at its own until it learns this
        // one.
        let at = change.points.values().copied().max().unwrap_or(point);
        change.agreed = Some(at);
        let before = (configuration.size(), configuration.layout.clone());
        let mut out: Vec<OutgoingMessage> = configuration
            .members
            .iter()
            .map(|to| message_to(to, ProcessMessage::Agreed { change: number, point: at }))
            .collect();
        if let CollectiveAction::Change(next) = &change.action {
            let origin = StateSource::From { givers: before.0, layout: before.1 };
            let recruit = Invitation { configuration: next.clone(), origin, point: at };
            let new = next.members.iter().filter(|to| configuration.rank_of(to.process).is_none());
            out.extend(new.map(|to| message_to(to, ProcessMessage::Recruit(recruit.clone()))));
            let (next, givers) = (next.clone(), configuration.members.iter());
            let givers = givers.map(|giver| giver.process).collect();
            self.install(next, givers);
        }
        // All continue by themselves, so nothing of it is left to execute.
        self.change.take_if(|change| change.action == CollectiveAction::Continue);
        out
    }

    /// Records that a process has its state in this configuration.
    pub(crate) fn mark_complete(&mut self, process: u32, generation: u32) -> Vec<OutgoingMessage> {
        let Some(configuration) =
            self.configuration.as_ref().filter(|r| r.generation == generation)
        else {
            return Vec::new();
        };
        if configuration.rank_of(process).is_some() {
            self.complete.insert(process);
        }
        if self.complete.len() == configuration.members.len() {
            self.givers.clear();
        }
        self.propose_decision()
    }

    /// Records that a process has finished the work after its last step.
    pub(crate) fn mark_done(&mut self, process: u32, generation: u32) {
        if self
            .configuration
            .as_ref()
            .is_some_and(|configuration| configuration.generation == generation)
        {
            self.done.insert(process);
        }
    }

    /// Records the speed of a process.
    pub(crate) fn set_step_rate(&mut self, process: u32, generation: u32, step_rate: StepRate) {
        if self
            .configuration
            .as_ref()
            .is_some_and(|configuration| configuration.generation == generation)
        {
            self.step_rates.insert(process, step_rate);
        }
    }

    /// Stores a report.
    pub(crate) fn report(&mut self, report: ProcessReport) {
        let room = REPORTS_BYTES_MAX.saturating_sub(self.reports_bytes);
        if self.reports.len() < REPORTS_MAX && report.bytes() <= room {
            self.reports_bytes += report.bytes();
            self.reports.push(report);
        } else if !self.dropped {
            self.dropped = true;
            let text = format!(
                "the processes report more than the root relays between two of its steps: the \
                 limits are {REPORTS_MAX} lines and files, and {REPORTS_BYTES_MAX} bytes; what \
                 is beyond is lost"
            );
            self.reports.push(ProcessReport::Say(text));
        }
    }

    /// Handles the end of a process.
    pub(crate) fn handle_end(&mut self, process: u32) -> Vec<OutgoingMessage> {
        let Some(entry) = self.processes.get_mut(&process) else { return Vec::new() };
        let before = std::mem::replace(&mut entry.state, ProcessState::Ended);
        self.takers.remove(&process);
        self.news = true;
        if !matches!(before, ProcessState::Dismissed | ProcessState::Ended) {
            self.ended.push(process);
        }
        let at = entry.peer.as_ref().map(|peer| peer.node.clone());
        match at {
            Some(node) if before == ProcessState::Member || self.is_needed_by_others(process) => {
                self.dissolve(ConfigurationEnd::Ended(node))
            }
            _ => Vec::new(),
        }
    }

    /// Handles lost nodes: their processes restart elsewhere. The root's own node is never among
    /// them.
    pub(crate) fn lost(&mut self, lost: impl Fn(&Peer) -> bool) -> Vec<OutgoingMessage> {
        let mut again = Vec::new();
        self.takers.retain(|_, taker| !lost(&taker.peer));
        self.news = true;
        for (process, entry) in &mut self.processes {
            let Some(peer) = entry.peer.take_if(|peer| lost(peer)) else { continue };
            if matches!(entry.state, ProcessState::Dismissed | ProcessState::Ended) {
                continue;
            }
            again.push((*process, peer.node, entry.state == ProcessState::Member));
            entry.state = ProcessState::Spawned;
        }
        let is_needed = |(process, _, was_member): &(u32, NodeId, bool)| {
            *was_member || self.is_needed_by_others(*process)
        };
        match again.into_iter().find(is_needed) {
            Some((_, node, _)) => self.dissolve(ConfigurationEnd::Lost(node)),
            None => Vec::new(),
        }
    }

    /// Handles a broken link between two nodes, reported by `one`. Messages over it may be lost.
    ///
    /// It matters if both nodes have processes that take part or that others depend on. The
    /// generation that these processes know does not matter: the root installs the next
    /// configuration at the agreement, while they still compute in the previous one. A link to an
    /// earlier incarnation carried no message of this one, though its report may be late.
    pub(crate) fn link_broke(
        &mut self,
        one: &Peer,
        (other, incarnation): (&NodeId, Option<Incarnation>),
    ) -> Vec<OutgoingMessage> {
        let is_other = |peer: &Peer| {
            peer.node == *other
                && incarnation.is_none_or(|incarnation| incarnation == peer.incarnation)
        };
        let root = self.processes.get(&0).and_then(|root| root.peer.clone());
        let again = |peer: &Peer| match &root {
            Some(root) if root == one => is_other(peer),
            Some(root) if is_other(root) => peer == one,
            _ => false,
        };
        // Order takers belong to no configuration: orders that may be lost are repeated.
        let takers = self.takers.iter().filter(|(_, taker)| again(&taker.peer));
        let orders = takers
            .flat_map(|(at, taker)| taker.orders().map(|word| (taker.peer.clone(), *at, word)));
        let orders: Vec<OutgoingMessage> = orders.collect();
        if !orders.is_empty() {
            return orders;
        }
        if self.is_involved(|peer| peer == one) && self.is_involved(is_other) {
            self.dissolve(ConfigurationEnd::Link(one.node.clone(), other.clone()))
        } else {
            Vec::new()
        }
    }

    fn is_involved(&self, at: impl Fn(&Peer) -> bool) -> bool {
        self.processes.iter().any(|(process, entry)| {
            entry.peer.as_ref().is_some_and(&at)
                && (entry.state == ProcessState::Member || self.is_needed_by_others(*process))
        })
    }

    /// Whether others depend on this process though it does not take part: a proposed configuration
    /// includes it, or others wait for its state.
    fn is_needed_by_others(&self, process: u32) -> bool {
        if self.givers.contains(&process) {
            return true;
        }
        let action = self.change.as_ref().map(|change| &change.action);
        matches!(action, Some(CollectiveAction::Change(next)) if next.rank_of(process).is_some())
    }

    // --- actions of the root ---

    /// Sends an order to a process. Does nothing if the process is not here.
    pub(crate) fn order(&mut self, process: u32, body: Bytes) -> Vec<OutgoingMessage> {
        let Some(taker) = self.takers.get_mut(&process) else { return Vec::new() };
        taker.last += 1;
        taker.unacknowledged.push_back((taker.last, body.clone()));
        let word = ProcessMessage::Order { session: taker.session, number: taker.last, body };
        vec![(taker.peer.clone(), process, word)]
    }

    /// Sets whether a process has unexecuted orders.
    pub(crate) fn set_working(&mut self, process: u32, is_working: bool) {
        if let Some(taker) = self.takers.get_mut(&process) {
            taker.is_working = is_working;
        }
    }

    /// Takes the answers received since the last call.
    pub(crate) fn take_answers(&mut self) -> Vec<ReceivedAnswer> {
        std::mem::take(&mut self.answers)
    }

    /// Adds a spawned process.
    pub(crate) fn call(&mut self, process: u32) {
        self.processes.insert(process, ProcessEntry { peer: None, state: ProcessState::Spawned });
    }

    /// Makes the next configuration, with these processes in order of rank. None unless each is
    /// waiting or a member.
    pub(crate) fn make_configuration(
        &mut self,
        processes: &[u32],
        layout: Bytes,
    ) -> Option<Configuration> {
        let assignment = |process: &u32| {
            let entry = self.processes.get(process)?;
            let fits = matches!(entry.state, ProcessState::Waiting | ProcessState::Member);
            let peer = entry.peer.clone().filter(|_| fits)?;
            Some(RankAssignment { process: *process, peer })
        };
        let members: Option<Vec<RankAssignment>> = processes.iter().map(assignment).collect();
        let members = members?;
        self.generation += 1;
        Some(Configuration { generation: self.generation, members, layout })
    }

    /// Starts the first configuration, or the first after a dissolved one, and recruits all but the
    /// root's process. None if a member is no longer where the configuration has it, as its node
    /// may be lost by now.
    pub(crate) fn form(
        &mut self,
        configuration: Configuration,
        origin: StateSource,
        point: u64,
    ) -> Option<Vec<OutgoingMessage>> {
        if !self.holds(&configuration) {
            return None;
        }
        let recruit = Invitation { configuration: configuration.clone(), origin, point };
        let others = configuration.members.iter().filter(|to| to.process != 0);
        let out =
            others.map(|to| message_to(to, ProcessMessage::Recruit(recruit.clone()))).collect();
        self.install(configuration, BTreeSet::new());
        Some(out)
    }

    /// Whether all members are where the configuration has them and may take part.
    fn holds(&self, configuration: &Configuration) -> bool {
        configuration.members.iter().all(|member| {
            self.processes.get(&member.process).is_some_and(|entry| {
                entry.peer.as_ref() == Some(&member.peer)
                    && matches!(entry.state, ProcessState::Waiting | ProcessState::Member)
            })
        })
    }

    fn install(&mut self, configuration: Configuration, givers: BTreeSet<u32>) {
        for (process, entry) in &mut self.processes {
            let takes_part = configuration.rank_of(*process).is_some();
            match entry.state {
                ProcessState::Waiting if takes_part => entry.state = ProcessState::Member,
                // It gives its state away, and waits.
                ProcessState::Member if !takes_part => entry.state = ProcessState::Waiting,
                _ => {}
            }
        }
        self.complete.clear();
        self.done.clear();
        self.givers = givers;
        self.step_rates.clear();
        self.change = None;
        self.configuration = Some(configuration);
    }

    /// Proposes an action to all members.
    ///
    /// One at a time, only while all have their state, and for a change only if the new members are
    /// where the configuration has them. Otherwise the proposal is refused, which the result `None`
    /// says.
    pub(crate) fn propose(&mut self, action: CollectiveAction) -> Option<Vec<OutgoingMessage>> {
        let configuration = self.configuration.as_ref().filter(|_| self.change.is_none())?;
        if self.complete.len() < configuration.members.len() {
            return None;
        }
        if matches!(&action, CollectiveAction::Change(next) if !self.holds(next)) {
            return None;
        }
        self.last_change += 1;
        let (generation, change) = (configuration.generation, self.last_change);
        let propose = ProcessMessage::Propose { generation, change, action: action.clone() };
        let out = configuration.members.iter().map(|to| message_to(to, propose.clone())).collect();
        self.change =
            Some(PendingAction { number: change, action, points: BTreeMap::new(), agreed: None });
        Some(out)
    }

    /// Handles the arrival of a process, or an order to its node to leave.
    ///
    /// If steps are long, the root decides at the end of the current one. Otherwise it proposes a
    /// change one step later, and no process waits for its decision.
    pub(crate) fn request_decision(&mut self) -> Vec<OutgoingMessage> {
        self.undecided = true;
        self.propose_decision()
    }

    fn propose_decision(&mut self) -> Vec<OutgoingMessage> {
        let is_long = |step_rate: &StepRate| step_rate.step_s >= LONG_STEP_S;
        if self.undecided && (self.step_rates.is_empty() || self.step_rates.values().any(is_long)) {
            // While another action is proposed, the root decides after it.
            self.propose(CollectiveAction::Decide).unwrap_or_default()
        } else {
            Vec::new()
        }
    }

    /// Notes that the root is about to decide on the present processes.
    pub(crate) fn begin_decision(&mut self) {
        self.undecided = false;
    }

    /// Ends an agreed action that does not change the configuration.
    pub(crate) fn done(&mut self) {
        self.change.take_if(|change| change.agreed.is_some());
    }

    /// Dissolves the configuration. Its members then wait to be recruited.
    pub(crate) fn dissolve(&mut self, cause: ConfigurationEnd) -> Vec<OutgoingMessage> {
        if self.configuration.is_some() {
            self.cause = Some(cause);
        }
        self.end_configuration()
    }

    fn end_configuration(&mut self) -> Vec<OutgoingMessage> {
        self.change = None;
        if self.configuration.take().is_none() {
            return Vec::new();
        }
        let generation = self.generation;
        let givers = std::mem::take(&mut self.givers);
        let mut out = Vec::new();
        for (process, entry) in &mut self.processes {
            let gives = entry.state == ProcessState::Waiting && givers.contains(process);
            if entry.state != ProcessState::Member && !gives {
                continue;
            }
            if let Some(peer) = &entry.peer {
                out.push((peer.clone(), *process, ProcessMessage::Apart { generation }));
            }
            // The root's process belongs to the root, and needs no confirmation.
            entry.state = if *process == 0 { ProcessState::Waiting } else { ProcessState::Leaving };
        }
        out
    }

    /// Dismisses the waiting and spawned processes for which `fits` holds.
    pub(crate) fn dismiss(
        &mut self,
        fits: impl Fn(u32, Option<&Peer>, ProcessState) -> bool,
    ) -> Vec<OutgoingMessage> {
        let mut out = Vec::new();
        for (process, entry) in &mut self.processes {
            let idle = matches!(
                entry.state,
                ProcessState::Spawned | ProcessState::Waiting | ProcessState::Leaving
            );
            if *process == 0 || !idle || !fits(*process, entry.peer.as_ref(), entry.state) {
                continue;
            }
            entry.state = ProcessState::Dismissed;
            if let Some(peer) = &entry.peer {
                out.push((peer.clone(), *process, ProcessMessage::Dismiss));
            }
        }
        out
    }

    /// Sets the nodes that the program released and that are still members.
    pub(crate) fn set_released(&mut self, released: &BTreeSet<Peer>) {
        self.released.clone_from(released);
    }

    pub(crate) fn is_released(&self, peer: &Peer) -> bool {
        self.released.contains(peer)
    }

    /// Forgets the processes that have ended.
    pub(crate) fn remove_ended(&mut self) {
        self.processes.retain(|_, entry| entry.state != ProcessState::Ended);
    }

    /// Dissolves the configuration and dismisses all processes.
    pub(crate) fn disband(&mut self) -> Vec<OutgoingMessage> {
        let mut out = self.end_configuration();
        out.extend(self.dismiss(|_, _, _| true));
        out
    }

    // --- queries of the root ---

    /// The running processes that take orders: number, node and session.
    pub(crate) fn takers(&self) -> impl Iterator<Item = (u32, &Peer, u64)> {
        let takers = self.takers.iter();
        let held = takers
            .filter(|(process, _)| self.process_state(**process) == Some(ProcessState::Waiting));
        held.map(|(process, taker)| (*process, &taker.peer, taker.session))
    }

    /// Whether order takers came, ended or answered since the root last asked.
    pub(crate) fn has_news(&self) -> bool {
        self.news || !self.answers.is_empty()
    }

    /// Whether processes came or ended since the last call.
    pub(crate) fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.news)
    }

    /// The state and node of each process.
    pub(crate) fn process_states(
        &self,
    ) -> impl Iterator<Item = (u32, Option<&Peer>, ProcessState)> {
        self.processes.iter().map(|(process, entry)| (*process, entry.peer.as_ref(), entry.state))
    }

    pub(crate) fn process_state(&self, process: u32) -> Option<ProcessState> {
        self.processes.get(&process).map(|entry| entry.state)
    }

    /// The current configuration; none while dissolved.
    pub(crate) fn configuration(&self) -> Option<&Configuration> {
        self.configuration.as_ref()
    }

    /// Whether all have their state, and no change of processes is proposed.
    pub(crate) fn is_settled(&self) -> bool {
        let all =
            self.configuration.as_ref().is_some_and(|r| self.complete.len() == r.members.len());
        let action = self.change.as_ref().map(|change| &change.action);
        all && !matches!(action, Some(CollectiveAction::Change(_)))
    }

    /// Whether an action is proposed and not yet executed.
    pub(crate) fn has_proposal(&self) -> bool {
        self.change.is_some()
    }

    /// Whether all have finished the work after the last step.
    pub(crate) fn all_done(&self) -> bool {
        let mut members =
            self.configuration.iter().flat_map(|configuration| &configuration.members);
        self.configuration.is_some() && members.all(|member| self.done.contains(&member.process))
    }

    /// Whether a process of this peer takes part, or others depend on it. Includes processes of a
    /// configuration just dissolved, for a link may break before the loss of its node is known.
    pub(crate) fn counts_on(&self, peer: &Peer) -> bool {
        let parts = |entry: &ProcessEntry| {
            entry.state == ProcessState::Leaving && entry.peer.as_ref().is_some_and(|at| at == peer)
        };
        self.is_involved(|at| at == peer)
            || self.processes.values().any(parts)
            || self.takers.values().any(|taker| taker.is_working && taker.peer == *peer)
    }

    /// The members' speeds, by rank; none where not yet reported.
    pub(crate) fn step_rates(&self) -> Vec<Option<StepRate>> {
        let members = self.configuration.iter().flat_map(|configuration| &configuration.members);
        members.map(|member| self.step_rates.get(&member.process).copied()).collect()
    }

    /// Takes the reason for which the last configuration ended.
    pub(crate) fn take_cause(&mut self) -> Option<ConfigurationEnd> {
        self.cause.take()
    }

    /// Takes the reports since the last call.
    pub(crate) fn take_reports(&mut self) -> Vec<ProcessReport> {
        (self.reports_bytes, self.dropped) = (0, false);
        std::mem::take(&mut self.reports)
    }

    /// Whether there are reports since the last [`ProcessGroup::take_reports`].
    pub(crate) fn has_reports(&self) -> bool {
        !self.reports.is_empty()
    }

    /// Takes the processes that ended without a dismissal since the last call.
    pub(crate) fn take_ended(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.ended)
    }
}

fn message_to(to: &RankAssignment, word: ProcessMessage) -> OutgoingMessage {
    (to.peer.clone(), to.process, word)
}
