//! A node's post office for one job: the processes that run here, the groups whose roots run here, and the words between them
//! and others.
//!
//! Words for processes of this node never leave it. Nothing here waits: compute threads sleep until what they wait for is there,
//! and are woken. Must not know how frames travel (`Carry` does), nor what programs compute.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::time::Instant;

use super::group::{Group, Out, Report, Stand};
use super::message::{GroupId, Letter, Mail, Onward, Word};
use super::seat::Seat;
use crate::id::{JobId, NodeId, Peer};
use crate::membership::View;
use crate::wire::{self, Kind};
use crate::work::pool::Waker;

/// Takes a frame to another node.
pub(crate) type Carry = Box<dyn Fn(&NodeId, Bytes) + Send + Sync>;

/// Mail of a group's configurations up to this one reaches nobody any more: what is kept of it is dropped.
pub(crate) type Forget = Box<dyn Fn(&GroupId, u32) + Send + Sync>;

/// Who sends more while so many bytes are kept here, for the network has no room for them, or so many frames, waits.
const KEPT_MAX: usize = 256 << 20;
const KEPT_FRAMES_MAX: usize = 100_000;

/// A process that runs here.
struct Sitting {
    seat: Seat,
    waker: Waker,
}

#[derive(Default)]
struct State {
    sitting: BTreeMap<(GroupId, u32), Sitting>,
    /// Those whose roots run here.
    groups: BTreeMap<u64, Group>,
    /// Groups that were made, and processes that began.
    numbers: u64,
    /// Who takes part in the job was said so often.
    views: u64,
    /// Epoch and version of the last view: higher in each stay of this node in the job.
    stay: (u32, u64),
    /// Nodes of the job, their threads, and whether they stay; as the last view says.
    members: BTreeMap<NodeId, Place>,
    /// Refused because it belonged to a configuration that is over, of processes that are no more.
    stale: u64,
}

/// A node that a group may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) peer: Peer,
    pub(crate) threads: u32,
    pub(crate) leaving: bool,
}

/// The post office.
pub struct Post {
    job: JobId,
    me: Peer,
    carry: Carry,
    forget: Forget,
    /// Whether no more is to be sent: too much is kept until the network has room for it.
    full: AtomicBool,
    state: Mutex<State>,
}

impl Post {
    pub(crate) fn new(job: JobId, me: Peer, carry: Carry, forget: Forget) -> Self {
        Self { job, me, carry, forget, full: AtomicBool::new(false), state: Mutex::default() }
    }

    /// So many bytes, in so many frames, are kept until the network has room for them.
    pub(crate) fn keeps(&self, bytes: usize, frames: usize) {
        self.full.store(bytes >= KEPT_MAX || frames >= KEPT_FRAMES_MAX, Ordering::Release);
    }

    /// Whether more can be sent now: what is kept has a bound.
    pub(crate) fn has_room(&self) -> bool {
        !self.full.load(Ordering::Acquire)
    }

    /// Of a pool that has no node: its threads are all there is.
    pub(crate) fn alone(threads: u32) -> Self {
        let (node, cluster) = ("alone".into(), "alone".into());
        let me = Peer { node, incarnation: Default::default(), cluster };
        let post = Self::new(JobId(0), me.clone(), Box::new(|_, _| {}), Box::new(|_, _| {}));
        let place = Place { peer: me.clone(), threads, leaving: false };
        post.state().members.insert(me.node, place);
        post
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Steps under the lock leave the state whole, so a poisoned lock may be used on.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn me(&self) -> &Peer {
        &self.me
    }

    // --- what comes ---

    /// A frame of this job.
    pub(crate) fn letter(&self, from: &Peer, letter: Letter) {
        let Letter { group, to, word, .. } = letter;
        if word.is_order() && *from != group.root {
            self.state().stale += 1;
            return;
        }
        self.handle(vec![(group, to, word)], from);
    }

    /// Takes in words for this node, and what follows from them; sends what is for others.
    fn handle(&self, mut todo: Vec<(GroupId, u32, Word)>, from: &Peer) {
        let mut from = from.clone();
        let (mut away, mut wake, mut over) = (Vec::new(), Vec::new(), Vec::new());
        {
            let mut state = self.state();
            let state = &mut *state;
            while !todo.is_empty() {
                let mut next = Vec::new();
                for (group, to, word) in todo {
                    if let Word::Apart { generation } = word {
                        over.push((group.clone(), generation));
                    }
                    let word = match word {
                        Word::Pass { mail, on } => {
                            for Onward { node, process, number } in on {
                                let mail = Word::Mail(Mail { number, ..mail.clone() });
                                if node == self.me.node {
                                    next.push((group.clone(), process, mail));
                                } else {
                                    away.push((group.clone(), node, process, mail));
                                }
                            }
                            Word::Mail(mail)
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
            self.send(&node, group, to, word);
        }
    }

    fn send(&self, node: &NodeId, group: GroupId, to: u32, word: Word) {
        let letter = Letter { job: self.job, group, to, word };
        match wire::encode(Kind::PROCESS, &letter) {
            Ok(body) => (self.carry)(node, body),
            Err(error) => tracing::error!(%error, "a process's message does not encode"),
        }
    }

    /// Says something to a process, or to the root of its group, which is process 0.
    pub(crate) fn say(&self, peer: &Peer, group: &GroupId, to: u32, word: Word) {
        if peer.node == self.me.node {
            let me = self.me.clone();
            self.handle(vec![(group.clone(), to, word)], &me);
        } else {
            self.send(&peer.node, group.clone(), to, word);
        }
    }

    /// Whether a process there takes part in a configuration of a group whose root runs here, or has what others wait for. A stub
    /// that only waits does nothing that its node could die of.
    pub(crate) fn counts_on(&self, peer: &Peer) -> bool {
        self.state().groups.values().any(|group| group.counts_on(peer))
    }

    /// Who takes part in the job from now on.
    pub(crate) fn view(&self, view: &View) {
        let members = view.members.iter().map(|(node, member)| {
            let peer = Peer {
                node: node.clone(),
                incarnation: member.incarnation,
                cluster: member.cluster.clone(),
            };
            let (threads, leaving) = (member.threads, member.leaving);
            (node.clone(), Place { peer, threads, leaving })
        });
        let members: BTreeMap<NodeId, Place> = members.collect();
        let lost = |members: &BTreeMap<NodeId, Place>, peer: &Peer| {
            members.get(&peer.node).is_none_or(|place| place.peer.incarnation != peer.incarnation)
        };
        self.with_groups(|state, number| {
            Some(state.groups.get_mut(&number)?.lost(|peer| lost(&members, peer)))
        });
        let mut state = self.state();
        state.members = members;
        state.stay = (view.epoch.0, view.version);
        state.views += 1;
        // Roots that wait for nodes look again.
        let wake: Vec<Waker> =
            state.sitting.values().map(|sitting| sitting.waker.clone()).collect();
        drop(state);
        wake.iter().for_each(Waker::wake);
    }

    /// A link broke: what was on its way may be lost. The root of each group that has a process here judges whether that matters:
    /// it alone knows who waits for what. So stubs tell, too: one that was free at last may have given what is lost, and one
    /// that is recruited may wait for it.
    pub(crate) fn link_broke(&self, peer: &Peer) {
        let far = (&peer.node, Some(peer.incarnation));
        self.with_groups(|state, number| {
            Some(state.groups.get_mut(&number)?.link_broke(&self.me, far))
        });
        let mut wake = Vec::new();
        let mut again = Vec::new();
        let concerned: BTreeSet<GroupId> = {
            let mut state = self.state();
            let far = |group: &GroupId| group.root.node == peer.node;
            for ((group, process), Sitting { seat, waker }) in &mut state.sitting {
                if far(group) {
                    // What they answered is said again, and not lost.
                    let answers = seat.unheard_answers().into_iter();
                    again.extend(answers.map(|answer| (group.clone(), *process, answer)));
                }
                if far(group) && !seat.is_heard() {
                    seat.lose_reports();
                    wake.push(waker.clone());
                }
            }
            let groups = state.sitting.keys().map(|(group, _)| group);
            groups.filter(|group| group.root != self.me).cloned().collect()
        };
        wake.iter().for_each(Waker::wake);
        for (group, process, (number, body)) in again {
            self.say(&group.root, &group, 0, Word::Answer { process, number, body });
        }
        for group in concerned {
            let (node, incarnation) = (peer.node.clone(), Some(peer.incarnation));
            self.say(&group.root, &group, 0, Word::Broken { node, incarnation });
        }
    }

    fn with_groups(&self, mut what: impl FnMut(&mut State, u64) -> Option<Vec<Out>>) {
        let mut all = Vec::new();
        {
            let mut state = self.state();
            let numbers: Vec<u64> = state.groups.keys().copied().collect();
            for number in numbers {
                all.extend(what(&mut state, number).map(|out| (number, out)));
            }
        }
        for (number, out) in all {
            self.spread(number, out);
        }
    }

    fn spread(&self, number: u64, out: Vec<Out>) {
        let group = GroupId { root: self.me.clone(), number };
        for (peer, process, word) in out {
            self.say(&peer, &group, process, word);
        }
    }

    // --- for the root ---

    /// A new group, whose root is the process on this thread.
    pub(crate) fn found(&self, waker: Waker) -> GroupId {
        let mut state = self.state();
        let number = state.next_number();
        state.groups.insert(number, Group::new(self.me.clone()));
        let group = GroupId { root: self.me.clone(), number };
        state.sitting.insert((group.clone(), 0), Sitting { seat: Seat::default(), waker });
        group
    }

    /// Does something with a group whose root runs here, and says what follows.
    pub(crate) fn group<R>(
        &self,
        group: &GroupId,
        what: impl FnOnce(&mut Group) -> (R, Vec<Out>),
    ) -> Option<R> {
        let (result, out) = {
            let mut state = self.state();
            what(state.groups.get_mut(&group.number).filter(|_| group.root == self.me)?)
        };
        self.spread(group.number, out);
        Some(result)
    }

    /// Looks at a group whose root runs here.
    pub(crate) fn look<R>(&self, group: &GroupId, what: impl FnOnce(&Group) -> R) -> Option<R> {
        let state = self.state();
        Some(what(state.groups.get(&group.number).filter(|_| group.root == self.me)?))
    }

    /// The nodes of the job.
    pub(crate) fn places(&self) -> Vec<Place> {
        self.state().members.values().cloned().collect()
    }

    /// How often it was said who takes part in the job: another number means that the nodes are to be looked at again.
    pub(crate) fn views(&self) -> u64 {
        self.state().views
    }

    // --- for processes ---

    /// A process begins on this thread. False if nobody needs it: its group is here and has dismissed it, or is over, or this is
    /// the thread of the group's root, which waits for something else further down.
    pub(crate) fn sit(&self, group: &GroupId, process: u32, waker: Waker) -> bool {
        let mut state = self.state();
        if group.root == self.me {
            let known = state.groups.get(&group.number);
            let dismissed = known.is_none_or(|group| {
                matches!(group.stand(process), None | Some(Stand::Dismissed | Stand::Over))
            });
            let root = state.sitting.get(&(group.clone(), 0));
            if dismissed || root.is_some_and(|root| root.waker.thread == waker.thread) {
                return false;
            }
        }
        let mut seat = Seat::default();
        seat.sit(state.next_number());
        state.sitting.insert((group.clone(), process), Sitting { seat, waker });
        true
    }

    /// A process has ended here.
    pub(crate) fn rise(&self, group: &GroupId, process: u32) {
        let mut state = self.state();
        if let Some(sitting) = state.sitting.remove(&(group.clone(), process)) {
            state.stale += sitting.seat.stale();
        }
        if process == 0 {
            state.groups.remove(&group.number);
        }
    }

    /// Does something with a process that runs here.
    pub(crate) fn seat<R>(
        &self,
        group: &GroupId,
        process: u32,
        what: impl FnOnce(&mut Seat) -> R,
    ) -> Option<R> {
        let mut state = self.state();
        state.sitting.get_mut(&(group.clone(), process)).map(|sitting| what(&mut sitting.seat))
    }

    /// How many messages of configurations that are over were dropped.
    pub(crate) fn stale(&self) -> u64 {
        let state = self.state();
        let sitting: u64 = state.sitting.values().map(|sitting| sitting.seat.stale()).sum();
        state.stale + sitting
    }
}

impl State {
    /// The number of the next group, or of the next process that begins. A node that left the job and joined it again begins with a new post office in the same life:
    /// that its groups have other numbers is due to the view, which is a later one.
    fn next_number(&mut self) -> u64 {
        self.numbers += 1;
        let (epoch, version) = self.stay;
        u64::from(epoch) << 40 | (version & 0xff_ffff) << 16 | (self.numbers & 0xffff)
    }

    /// Takes in one word for this node; returns what follows from it.
    fn take_in(
        &mut self,
        me: &Peer,
        from: &Peer,
        group: &GroupId,
        to: u32,
        word: Word,
        wake: &mut Vec<Waker>,
    ) -> Vec<Out> {
        let mine = if group.root == *me { self.groups.get_mut(&group.number) } else { None };
        let root = (group.clone(), 0);
        let out = match (word, mine) {
            (Word::Here { process, generation }, Some(g)) => g.here(process, from, generation),
            // Of a group that is no more.
            (Word::Here { process, .. }, None) => {
                return vec![(from.clone(), process, Word::Dismiss)];
            }
            (Word::Reach { process, change, point }, Some(g)) => g.reach(process, change, point),
            (Word::Whole { process, generation }, Some(g)) => {
                g.is_whole(process, generation);
                Vec::new()
            }
            (Word::Going { process, generation, pace }, Some(g)) => {
                g.going(process, generation, pace);
                Vec::new()
            }
            (Word::Broken { node, incarnation }, Some(g)) => {
                g.link_broke(from, (&node, incarnation))
            }
            (Word::Over { process }, Some(g)) => g.over(process),
            (Word::Done { process, generation }, Some(g)) => {
                g.is_done(process, generation);
                Vec::new()
            }
            // Answered though the group may be no more: whoever leaves waits for that.
            (Word::Say { text, process, number }, g) => {
                g.into_iter().for_each(|g| g.report(Report::Say(text.clone())));
                vec![(from.clone(), process, Word::Heard { number })]
            }
            (Word::Artifact { name, bytes, process, number }, g) => {
                g.into_iter().for_each(|g| g.report(Report::Artifact(name.clone(), bytes.clone())));
                vec![(from.clone(), process, Word::Heard { number })]
            }
            (Word::Ready { process, sitting, heard }, Some(g)) => {
                g.ready(process, from, (sitting, heard))
            }
            (Word::Ready { process, .. }, None) => {
                return vec![(from.clone(), process, Word::Dismiss)];
            }
            // As a report is.
            (Word::Answer { process, number, body }, g) => {
                let now = Instant::now();
                g.into_iter().for_each(|g| g.answer(process, from, body.clone(), now));
                vec![(from.clone(), process, Word::Heard { number })]
            }
            (
                Word::Reach { .. }
                | Word::Whole { .. }
                | Word::Going { .. }
                | Word::Broken { .. }
                | Word::Over { .. }
                | Word::Done { .. },
                None,
            ) => Vec::new(),
            (word, _) => return self.for_seat(group, to, word, wake),
        };
        // The root waits for such things.
        wake.extend(self.sitting.get(&root).map(|sitting| sitting.waker.clone()));
        out
    }

    fn for_seat(
        &mut self,
        group: &GroupId,
        to: u32,
        word: Word,
        wake: &mut Vec<Waker>,
    ) -> Vec<Out> {
        let Some(Sitting { seat, waker }) = self.sitting.get_mut(&(group.clone(), to)) else {
            self.stale += 1;
            return Vec::new();
        };
        wake.push(waker.clone());
        match word {
            Word::Recruit(recruit) => seat.recruit(recruit),
            Word::Propose { generation, change, deed } => {
                if let Some(point) = seat.propose(generation, change, deed) {
                    let reach = Word::Reach { process: to, change, point };
                    return vec![(group.root.clone(), 0, reach)];
                }
            }
            Word::Agreed { change, point } => seat.agreed(change, point),
            Word::Apart { generation } => seat.apart(generation),
            Word::Dismiss => seat.dismiss(),
            Word::Order { sitting, number, body } => {
                seat.give_order(sitting, number, body);
                let (sitting, heard) = seat.ready();
                let ready = Word::Ready { process: to, sitting, heard };
                return vec![(group.root.clone(), 0, ready)];
            }
            Word::Heard { number } => seat.heard(number),
            Word::Mail(mail) => seat.mail(mail),
            // Handled where the group is.
            _ => {}
        }
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::State;

    /// What was said to the group of a former stay is for nobody.
    #[test]
    fn groups_of_every_stay_have_numbers_of_their_own() {
        let mut numbers = BTreeSet::new();
        for stay in [(1, 3), (1, 9), (2, 9), (2, 10)] {
            let mut state = State { stay, ..State::default() };
            numbers.extend([state.next_number(), state.next_number()]);
        }
        assert_eq!(numbers.len(), 8);
    }
}
