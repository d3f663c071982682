//! A node's dispatcher for one job: local processes, groups whose roots run here, and their
//! messages.
//!
//! Messages between processes of this node never leave it. No call blocks: compute threads sleep
//! until their condition holds, and are woken. It neither knows how frames travel (see
//! [`SendFrame`]) nor what programs compute.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::time::Instant;

use super::group::{OutgoingMessage, ProcessGroup, ProcessReport, ProcessState};
use super::local_process::LocalProcess;
use super::message::{DataMessage, Envelope, ForwardTarget, GroupId, ProcessMessage};
use crate::id::{JobId, NodeId, Peer};
use crate::membership::{Member, Members, View};
use crate::net::Address;
use crate::wire::{self, Kind};
use crate::work::waker::Waker;

/// Sends a frame to another node.
pub(crate) type SendFrame = Box<dyn Fn(&NodeId, Bytes) + Send + Sync>;

/// Drops unsent data messages of a group's configurations up to this generation.
pub(crate) type Forget = Box<dyn Fn(&GroupId, u32) + Send + Sync>;

/// Bounds of unsent bytes and frames. A process that sends more waits.
const KEPT_MAX: usize = 256 << 20;
const KEPT_FRAMES_MAX: usize = 100_000;

/// A process that runs on this node.
struct RunningProcess {
    local: LocalProcess,
    waker: Waker,
}

#[derive(Default)]
struct PostState {
    running: BTreeMap<(GroupId, u32), RunningProcess>,
    /// The groups whose roots run here, by number.
    groups: BTreeMap<u64, ProcessGroup>,
    /// Counts groups created and processes started.
    numbers: u64,
    /// Counts views of the job.
    views: u64,
    /// Epoch and version of the last view. They are higher in each membership of this node in the
    /// job.
    stay: (u32, u64),
    /// The members of the last view, which all nodes of a process share.
    members: Members,
    /// Messages dropped because their configuration had ended, for processes that have ended.
    stale: u64,
}

/// A member of the job that may run processes of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JobMember {
    pub(crate) peer: Peer,
    pub(crate) threads: u32,
    pub(crate) leaving: bool,
}

impl JobMember {
    fn of((node, member): (&NodeId, &Member)) -> Self {
        Self {
            peer: Peer {
                node: node.clone(),
                incarnation: member.incarnation,
                cluster: member.cluster.clone(),
            },
            threads: member.threads,
            leaving: member.leaving,
        }
    }
}

/// The dispatcher of one job's processes on this node.
pub struct Dispatcher {
    job: JobId,
    me: Peer,
    carry: SendFrame,
    forget: Forget,
    /// Whether senders must wait: too much is unsent.
    full: AtomicBool,
    state: Mutex<PostState>,
}

impl Dispatcher {
    pub(crate) fn new(job: JobId, me: Peer, carry: SendFrame, forget: Forget) -> Self {
        Self { job, me, carry, forget, full: AtomicBool::new(false), state: Mutex::default() }
    }

    /// Notes the bytes and frames that wait for the network.
    pub(crate) fn set_unsent(&self, bytes: usize, frames: usize) {
        self.full.store(bytes >= KEPT_MAX || frames >= KEPT_FRAMES_MAX, Ordering::Release);
    }

    /// Whether another message may be sent. This bounds the unsent bytes.
    pub(crate) fn has_room(&self) -> bool {
        !self.full.load(Ordering::Acquire)
    }

    /// A dispatcher without a network, for a pool without a node.
    pub(crate) fn without_network(threads: u32) -> Self {
        let (node, cluster) = ("alone".into(), "alone".into());
        let me = Peer { node, incarnation: Default::default(), cluster };
        let post = Self::new(JobId(0), me.clone(), Box::new(|_, _| {}), Box::new(|_, _| {}));
        let member = Member {
            incarnation: me.incarnation,
            cluster: me.cluster,
            address: Address::Memory,
            threads,
            leaving: false,
        };
        post.state().members.insert(me.node, member);
        post
    }

    fn state(&self) -> MutexGuard<'_, PostState> {
        // Each step under the lock leaves a consistent state, so a poisoned lock remains usable.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The job of the processes.
    pub(crate) fn job(&self) -> JobId {
        self.job
    }

    pub(crate) fn me(&self) -> &Peer {
        &self.me
    }

    // --- received messages ---

    /// Handles a frame of this job.
    pub(crate) fn receive_frame(&self, from: &Peer, letter: Envelope) {
        let Envelope { group, to, word, .. } = letter;
        if word.is_order() && *from != group.root {
            self.state().stale += 1;
            return;
        }
        self.handle(vec![(group, to, word)], from);
    }

    /// Processes messages for this node and those that follow from them, and sends the others.
    fn handle(&self, mut todo: Vec<(GroupId, u32, ProcessMessage)>, from: &Peer) {
        let mut from = from.clone();
        let (mut away, mut wake, mut over) = (Vec::new(), Vec::new(), Vec::new());
        {
            let mut state = self.state();
            let state = &mut *state;
            while !todo.is_empty() {
                let mut next = Vec::new();
                for (group, to, word) in todo {
                    if let ProcessMessage::Apart { generation } = word {
                        over.push((group.clone(), generation));
                    }
                    let word = match word {
                        ProcessMessage::Pass { mail, on } => {
                            for ForwardTarget { node, process, number } in on {
                                let mail =
                                    ProcessMessage::Mail(DataMessage { number, ..mail.clone() });
                                if node == self.me.node {
                                    next.push((group.clone(), process, mail));
                                } else {
                                    away.push((group.clone(), node, process, mail));
                                }
                            }
                            ProcessMessage::Mail(mail)
                        }
                        word => word,
                    };
                    let out = state.take_in(&self.me, &from, &group, to, word, &mut wake);
                    for (peer, process, word) in out {
                        if peer.node == self.me.node {
                            next.push((group.clone(), process, word));
                        } else {
                            away.push((group.clone(), peer.node, process, word));
                        }
                    }
                }
                todo = next;
                from = self.me.clone();
            }
        }
        for (group, generation) in over {
            (self.forget)(&group, generation);
        }
        for waker in wake {
            waker.wake();
        }
        for (group, node, to, word) in away {
            self.send_frame(&node, group, to, word);
        }
    }

    fn send_frame(&self, node: &NodeId, group: GroupId, to: u32, word: ProcessMessage) {
        let letter = Envelope { job: self.job, group, to, word };
        match wire::encode(Kind::PROCESS, &letter) {
            Ok(body) => (self.carry)(node, body),
            Err(error) => tracing::error!(%error, "a process's message does not encode"),
        }
    }

    /// Sends a message to a process. Process 0 is the root of the group.
    pub(crate) fn send(&self, peer: &Peer, group: &GroupId, to: u32, word: ProcessMessage) {
        if peer.node == self.me.node {
            let me = self.me.clone();
            self.handle(vec![(group.clone(), to, word)], &me);
        } else {
            self.send_frame(&peer.node, group.clone(), to, word);
        }
    }

    /// Whether other processes depend on one of this peer: it is in a configuration of a group
    /// rooted here, or holds results. A process that only waits cannot have caused a failure of its
    /// node.
    pub(crate) fn depends_on(&self, peer: &Peer) -> bool {
        self.state().groups.values().any(|group| group.counts_on(peer))
    }

    /// Applies a new view of the job.
    pub(crate) fn apply_view(&self, view: &View) {
        let members = &view.members;
        let lost = |peer: &Peer| {
            members.get(&peer.node).is_none_or(|member| member.incarnation != peer.incarnation)
        };
        self.with_groups(|state, number| Some(state.groups.get_mut(&number)?.lost(lost)));
        self.with_groups(|state, number| {
            let known = |node| state.members.get(node).is_some_and(|member| member.leaving);
            let leaving: Vec<Peer> = members
                .iter()
                .filter(|(node, member)| member.leaving && !known(node))
                .map(|member| JobMember::of(member).peer)
                .collect();
            let group = state.groups.get_mut(&number)?;
            leaving.iter().any(|peer| group.counts_on(peer)).then(|| group.request_decision())
        });
        let mut state = self.state();
        state.members = members.clone();
        state.stay = (view.epoch.0, view.version);
        state.views += 1;
        // Roots that wait for nodes check again.
        let wake: Vec<Waker> =
            state.running.values().map(|running| running.waker.clone()).collect();
        drop(state);
        wake.iter().for_each(Waker::wake);
    }

    /// Handles a broken link: messages on their way may be lost.
    ///
    /// The root of each group with a process here decides whether that matters, for it alone knows
    /// which processes wait for each other. Waiting processes report too: a process just released
    /// may have sent what is lost, and a recruited one may wait for it.
    pub(crate) fn handle_broken_link(&self, peer: &Peer) {
        let far = (&peer.node, Some(peer.incarnation));
        self.with_groups(|state, number| {
            Some(state.groups.get_mut(&number)?.link_broke(&self.me, far))
        });
        let mut wake = Vec::new();
        let mut again = Vec::new();
        let groups_here: BTreeSet<GroupId> = {
            let mut state = self.state();
            let far = |group: &GroupId| group.root.node == peer.node;
            for ((group, process), RunningProcess { local, waker }) in &mut state.running {
                if far(group) {
                    // Answers are repeated, not lost.
                    let answers = local.unacknowledged_answers().into_iter();
                    again.extend(answers.map(|answer| (group.clone(), *process, answer)));
                }
                if far(group) && !local.is_acknowledged() {
                    local.drop_reports();
                    wake.push(waker.clone());
                }
            }
            let groups = state.running.keys().map(|(group, _)| group);
            groups.filter(|group| group.root != self.me).cloned().collect()
        };
        wake.iter().for_each(Waker::wake);
        for (group, process, (number, body)) in again {
            self.send(&group.root, &group, 0, ProcessMessage::Answer { process, number, body });
        }
        for group in groups_here {
            let (node, incarnation) = (peer.node.clone(), Some(peer.incarnation));
            self.send(&group.root, &group, 0, ProcessMessage::Broken { node, incarnation });
        }
    }

    fn with_groups(
        &self,
        mut action: impl FnMut(&mut PostState, u64) -> Option<Vec<OutgoingMessage>>,
    ) {
        let mut all = Vec::new();
        {
            let mut state = self.state();
            let numbers: Vec<u64> = state.groups.keys().copied().collect();
            for number in numbers {
                all.extend(action(&mut state, number).map(|out| (number, out)));
            }
        }
        for (number, out) in all {
            self.spread(number, out);
        }
    }

    fn spread(&self, number: u64, out: Vec<OutgoingMessage>) {
        let group = GroupId { root: self.me.clone(), number };
        for (peer, process, word) in out {
            self.send(&peer, &group, process, word);
        }
    }

    // --- for the root ---

    /// Creates a group whose root is the process on this thread.
    pub(crate) fn create_group(&self, waker: Waker) -> GroupId {
        let mut state = self.state();
        let number = state.next_number();
        state.groups.insert(number, ProcessGroup::new(self.me.clone()));
        let group = GroupId { root: self.me.clone(), number };
        state
            .running
            .insert((group.clone(), 0), RunningProcess { local: LocalProcess::default(), waker });
        group
    }

    /// Runs `action` on a group whose root runs here, and sends the resulting messages.
    pub(crate) fn group<R>(
        &self,
        group: &GroupId,
        action: impl FnOnce(&mut ProcessGroup) -> (R, Vec<OutgoingMessage>),
    ) -> Option<R> {
        let (result, out) = {
            let mut state = self.state();
            action(state.groups.get_mut(&group.number).filter(|_| group.root == self.me)?)
        };
        self.spread(group.number, out);
        Some(result)
    }

    /// Reads a group whose root runs here.
    pub(crate) fn read_group<R>(
        &self,
        group: &GroupId,
        action: impl FnOnce(&ProcessGroup) -> R,
    ) -> Option<R> {
        let state = self.state();
        Some(action(state.groups.get(&group.number).filter(|_| group.root == self.me)?))
    }

    /// The members of the job.
    pub(crate) fn members(&self) -> Vec<JobMember> {
        self.state().members.iter().map(JobMember::of).collect()
    }

    /// Whether the root of a group runs here.
    pub(crate) fn has_groups(&self) -> bool {
        !self.state().groups.is_empty()
    }

    /// The nodes that have threads without a process, if a group whose root runs here has unclaimed
    /// processes.
    pub(crate) fn nodes_to_call(&self) -> BTreeSet<NodeId> {
        let state = self.state();
        let mut nodes = BTreeSet::new();
        for group in state.groups.values() {
            let mut running: BTreeMap<&Peer, u32> = BTreeMap::new();
            let mut unclaimed = false;
            for (_, peer, process) in group.process_states() {
                unclaimed |= process == ProcessState::Spawned && peer.is_none();
                if let Some(peer) = peer.filter(|_| process != ProcessState::Ended) {
                    *running.entry(peer).or_default() += 1;
                }
            }
            let is_free = |member: &JobMember| {
                let count = running.get(&member.peer).copied().unwrap_or_default();
                let stays = !member.leaving && !group.is_released(&member.peer);
                member.peer != self.me && stays && count < member.threads
            };
            let all = state.members.iter().filter(|_| unclaimed).map(JobMember::of);
            nodes.extend(all.filter(is_free).map(|member| member.peer.node));
        }
        nodes
    }

    /// The number of views so far. A changed number means that the members may have changed.
    pub(crate) fn views(&self) -> u64 {
        self.state().views
    }

    // --- for processes ---

    /// Registers a process that starts on this thread.
    ///
    /// Returns false if it is obsolete: its group is rooted here and has dismissed it or ended, or
    /// this thread belongs to the group's root, which waits further down the stack.
    pub(crate) fn register(&self, group: &GroupId, process: u32, waker: Waker) -> bool {
        let mut state = self.state();
        if group.root == self.me {
            let known = state.groups.get(&group.number);
            let dismissed = known.is_none_or(|group| {
                matches!(
                    group.process_state(process),
                    None | Some(ProcessState::Dismissed | ProcessState::Ended)
                )
            });
            let root = state.running.get(&(group.clone(), 0));
            if dismissed || root.is_some_and(|root| root.waker.thread == waker.thread) {
                return false;
            }
        }
        let mut local = LocalProcess::default();
        local.start_session(state.next_number());
        state.running.insert((group.clone(), process), RunningProcess { local, waker });
        true
    }

    /// Removes a process that has ended.
    pub(crate) fn unregister(&self, group: &GroupId, process: u32) {
        let mut state = self.state();
        if let Some(running) = state.running.remove(&(group.clone(), process)) {
            state.stale += running.local.stale();
        }
        if process == 0 {
            state.groups.remove(&group.number);
        }
    }

    /// Runs `action` on a process that runs here.
    pub(crate) fn with_process<R>(
        &self,
        group: &GroupId,
        process: u32,
        action: impl FnOnce(&mut LocalProcess) -> R,
    ) -> Option<R> {
        let mut state = self.state();
        state.running.get_mut(&(group.clone(), process)).map(|running| action(&mut running.local))
    }

    /// The number of messages dropped because their configuration had ended.
    pub(crate) fn dropped_messages(&self) -> u64 {
        let state = self.state();
        let running: u64 = state.running.values().map(|running| running.local.stale()).sum();
        state.stale + running
    }
}

impl PostState {
    /// The next number of a group or of a start of a process. A node that leaves a job and joins
    /// again gets a new dispatcher in the same incarnation. The later view then keeps the numbers
    /// distinct.
    fn next_number(&mut self) -> u64 {
        self.numbers += 1;
        let (epoch, version) = self.stay;
        u64::from(epoch) << 40 | (version & 0xff_ffff) << 16 | (self.numbers & 0xffff)
    }

    /// Processes one message for this node, and returns the messages that follow from it.
    fn take_in(
        &mut self,
        me: &Peer,
        from: &Peer,
        group: &GroupId,
        to: u32,
        word: ProcessMessage,
        wake: &mut Vec<Waker>,
    ) -> Vec<OutgoingMessage> {
        let mine = if group.root == *me { self.groups.get_mut(&group.number) } else { None };
        let root = (group.clone(), 0);
        let out = match (word, mine) {
            (ProcessMessage::Here { process, generation }, Some(g)) => {
                g.handle_here(process, from, generation)
            }
            // The group has ended.
            (ProcessMessage::Here { process, .. }, None) => {
                return vec![(from.clone(), process, ProcessMessage::Dismiss)];
            }
            (ProcessMessage::Reach { process, change, point }, Some(g)) => {
                g.reach(process, change, point)
            }
            (ProcessMessage::Whole { process, generation }, Some(g)) => {
                g.mark_complete(process, generation)
            }
            (ProcessMessage::Going { process, generation, pace }, Some(g)) => {
                g.set_step_rate(process, generation, pace);
                Vec::new()
            }
            (ProcessMessage::Broken { node, incarnation }, Some(g)) => {
                g.link_broke(from, (&node, incarnation))
            }
            (ProcessMessage::Over { process }, Some(g)) => g.handle_end(process),
            (ProcessMessage::Done { process, generation }, Some(g)) => {
                g.mark_done(process, generation);
                Vec::new()
            }
            // Acknowledged even if the group has ended, for a process waits for this before it
            // ends.
            (ProcessMessage::Say { text, process, number }, g) => {
                g.into_iter().for_each(|g| g.report(ProcessReport::Say(text.clone())));
                vec![(from.clone(), process, ProcessMessage::Acknowledge { number })]
            }
            (ProcessMessage::Artifact { name, bytes, process, number }, g) => {
                g.into_iter()
                    .for_each(|g| g.report(ProcessReport::Artifact(name.clone(), bytes.clone())));
                vec![(from.clone(), process, ProcessMessage::Acknowledge { number })]
            }
            (ProcessMessage::Ready { process, session, received }, Some(g)) => {
                g.ready(process, from, (session, received))
            }
            (ProcessMessage::Ready { process, .. }, None) => {
                return vec![(from.clone(), process, ProcessMessage::Dismiss)];
            }
            // Acknowledged like a report.
            (ProcessMessage::Answer { process, number, body }, g) => {
                let now = Instant::now();
                g.into_iter().for_each(|g| g.answer(process, from, body.clone(), now));
                vec![(from.clone(), process, ProcessMessage::Acknowledge { number })]
            }
            (
                ProcessMessage::Reach { .. }
                | ProcessMessage::Whole { .. }
                | ProcessMessage::Going { .. }
                | ProcessMessage::Broken { .. }
                | ProcessMessage::Over { .. }
                | ProcessMessage::Done { .. },
                None,
            ) => Vec::new(),
            (word, _) => return self.process_for_local(group, to, word, wake),
        };
        // The root may be waiting for this.
        wake.extend(self.running.get(&root).map(|running| running.waker.clone()));
        out
    }

    fn process_for_local(
        &mut self,
        group: &GroupId,
        to: u32,
        word: ProcessMessage,
        wake: &mut Vec<Waker>,
    ) -> Vec<OutgoingMessage> {
        let Some(RunningProcess { local, waker }) = self.running.get_mut(&(group.clone(), to))
        else {
            self.stale += 1;
            return Vec::new();
        };
        wake.push(waker.clone());
        match word {
            ProcessMessage::Recruit(recruit) => local.recruit(recruit),
            ProcessMessage::Propose { generation, change, action } => {
                if let Some(point) = local.propose(generation, change, action) {
                    let reach = ProcessMessage::Reach { process: to, change, point };
                    return vec![(group.root.clone(), 0, reach)];
                }
            }
            ProcessMessage::Agreed { change, point } => local.agreed(change, point),
            ProcessMessage::Apart { generation } => local.apart(generation),
            ProcessMessage::Dismiss => local.dismiss(),
            ProcessMessage::Order { session, number, body } => {
                local.receive_order(session, number, body);
                let (session, received) = local.ready();
                let ready = ProcessMessage::Ready { process: to, session, received };
                return vec![(group.root.clone(), 0, ready)];
            }
            ProcessMessage::Acknowledge { number } => local.acknowledge(number),
            ProcessMessage::Mail(mail) => local.mail(mail),
            // Handled in `process_message`.
            _ => {}
        }
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::PostState;

    /// A message to a group of an earlier membership reaches no group of a later one.
    #[test]
    fn groups_of_every_membership_have_distinct_numbers() {
        let mut numbers = BTreeSet::new();
        for stay in [(1, 3), (1, 9), (2, 9), (2, 10)] {
            let mut state = PostState { stay, ..PostState::default() };
            numbers.extend([state.next_number(), state.next_number()]);
        }
        assert_eq!(numbers.len(), 8);
    }
}
