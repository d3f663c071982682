//! A group of processes as its root's node keeps it: which were called, which are there, who takes part in what, and the point
//! of progress on which all agree.
//!
//! A state machine without I/O: `here`, `reach`, `lost` and the like come in, words for processes go out. A process is in one
//! state at a time; the changes of configurations are numbered, and a configuration that loses a member, or mail, is over as a
//! whole. Must not know threads, networks or programs.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

use bytes::Bytes;
use tokio::time::Instant;

use super::message::{Deed, Origin, Pace, Recruit, Roster, Seated, Word};
use super::patience::Patience;
use crate::id::{Incarnation, NodeId, Peer};

/// For which process, where, and what.
pub(crate) type Out = (Peer, u32, Word);

/// What the root knows of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stand {
    /// Called for, and not heard of.
    Called,
    /// It waits to be recruited.
    Held,
    /// It takes part, or was recruited to.
    Seated,
    /// Its configuration is over, and it has not said that it knows.
    Parting,
    /// It was told to end, or will be as soon as it is heard of.
    Dismissed,
    /// It has ended.
    Over,
}

#[derive(Clone, Debug)]
struct Known {
    peer: Option<Peer>,
    stand: Stand,
}

/// Something that all are to do.
#[derive(Debug)]
struct Change {
    number: u32,
    deed: Deed,
    /// The next points that the members said.
    said: BTreeMap<u32, u64>,
    agreed: Option<u64>,
}

/// A group.
#[derive(Debug)]
pub(crate) struct Group {
    processes: BTreeMap<u32, Known>,
    /// The last configuration that was made.
    generation: u32,
    roster: Option<Roster>,
    /// Those of it that have their state.
    whole: BTreeSet<u32>,
    /// Those that others have their state from, until all have it.
    givers: BTreeSet<u32>,
    /// Those of it that are through with what comes after the last step.
    done: BTreeSet<u32>,
    change: Option<Change>,
    changes: u32,
    /// By process.
    paces: BTreeMap<u32, Pace>,
    /// Ended without being told to.
    ended: Vec<u32>,
    /// Why the last configuration is over.
    cause: Option<Cause>,
    /// What processes report, and the root has not passed on.
    reports: Vec<Report>,
    /// Bytes in them.
    reports_bytes: usize,
    /// That some were dropped is among them.
    dropped: bool,
    /// By process, of those that take orders and are there.
    desks: BTreeMap<u32, Desk>,
    /// What those answered, and the root has not taken.
    answers: Vec<Answered>,
    /// Some came or ended, which the root has not seen.
    news: bool,
}

/// What a process that takes orders answered.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) process: u32,
    pub(crate) peer: Peer,
    pub(crate) body: Bytes,
    /// When it came, however long after that the root takes it.
    pub(crate) at: Instant,
}

/// What is known of a process that takes orders.
#[derive(Debug)]
struct Desk {
    peer: Peer,
    sitting: u64,
    /// The number of the last order.
    last: u64,
    /// Orders of which it has not said that they are there.
    unheard: VecDeque<(u64, Bytes)>,
    patience: Patience,
    /// It has orders that it has not carried out.
    works: bool,
}

impl Desk {
    fn orders(&self) -> impl Iterator<Item = Word> {
        let sitting = self.sitting;
        let unheard = self.unheard.iter();
        unheard.map(move |(number, body)| Word::Order {
            sitting,
            number: *number,
            body: body.clone(),
        })
    }
}

/// Why a configuration is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// This node was lost.
    Lost(NodeId),
    /// The link between two nodes broke.
    Link(NodeId, NodeId),
    /// A process on this node has ended.
    Ended(NodeId),
    /// A process began anew, on this node.
    Anew(NodeId),
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(node) => write!(f, "node {node} was lost"),
            Self::Link(one, other) => write!(f, "the link between {one} and {other} broke"),
            Self::Ended(node) => write!(f, "a process on {node} ended"),
            Self::Anew(node) => write!(f, "a process began anew on {node}"),
        }
    }
}

/// What a process reports to whoever watches the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// A line.
    Say(String),
    /// A file: its name and contents.
    Artifact(String, Bytes),
}

/// Reports that the root has not passed on, and the bytes in them; what is beyond is dropped, and that is said. It passes them on at
/// each of its points, and once a second while it waits.
const REPORTS_MAX: usize = 10_000;
const REPORTS_BYTES_MAX: usize = 2 << 30;

impl Report {
    fn bytes(&self) -> usize {
        match self {
            Self::Say(text) => text.len(),
            Self::Artifact(name, bytes) => name.len() + bytes.len(),
        }
    }
}

impl Group {
    /// A group of its root's process alone, which is number 0.
    pub(crate) fn new(root: Peer) -> Self {
        let root = Known { peer: Some(root), stand: Stand::Held };
        Self {
            processes: BTreeMap::from([(0, root)]),
            generation: 0,
            roster: None,
            whole: BTreeSet::new(),
            givers: BTreeSet::new(),
            done: BTreeSet::new(),
            change: None,
            changes: 0,
            paces: BTreeMap::new(),
            ended: Vec::new(),
            cause: None,
            reports: Vec::new(),
            reports_bytes: 0,
            dropped: false,
            desks: BTreeMap::new(),
            answers: Vec::new(),
            news: false,
        }
    }

    // --- what comes ---

    /// A process says that it is there.
    pub(crate) fn here(&mut self, process: u32, peer: &Peer, generation: u32) -> Vec<Out> {
        let now = self.roster.as_ref().map_or(0, |roster| roster.generation);
        let gives = self.givers.contains(&process);
        let Some(known) = self.processes.get_mut(&process) else {
            return vec![(peer.clone(), process, Word::Dismiss)];
        };
        let moved = known.peer.as_ref().is_some_and(|before| before != peer);
        match known.stand {
            Stand::Dismissed | Stand::Over => vec![(peer.clone(), process, Word::Dismiss)],
            Stand::Called | Stand::Held | Stand::Parting if generation == 0 => {
                *known = Known { peer: Some(peer.clone()), stand: Stand::Held };
                Vec::new()
            }
            // On its way out of the configuration before.
            Stand::Held if gives => Vec::new(),
            Stand::Called | Stand::Held | Stand::Parting => {
                vec![(peer.clone(), process, Word::Apart { generation })]
            }
            // It began anew elsewhere: what it had is lost.
            Stand::Seated if moved => {
                *known = Known { peer: Some(peer.clone()), stand: Stand::Held };
                self.tear(Cause::Anew(peer.node.clone()))
            }
            // It did not hear that an earlier one is over, in which it waits still.
            Stand::Seated if generation > 0 && generation < now && !gives => {
                vec![(peer.clone(), process, Word::Apart { generation })]
            }
            // On its way into the configuration, or in it.
            Stand::Seated => Vec::new(),
        }
    }

    /// A process that takes orders says that it is there, and which it has. What it has not heard for long is said again.
    pub(crate) fn ready(
        &mut self,
        process: u32,
        peer: &Peer,
        (sitting, heard): (u64, u64),
    ) -> Vec<Out> {
        let out = self.here(process, peer, 0);
        if self.stand(process) != Some(Stand::Held) {
            return out;
        }
        let is_here = |desk: &&mut Desk| desk.sitting == sitting && desk.peer == *peer;
        let Some(desk) = self.desks.get_mut(&process).filter(is_here) else {
            let (last, unheard) = (0, VecDeque::new());
            let patience = Patience::default();
            let peer = peer.clone();
            let desk = Desk { peer, sitting, last, unheard, patience, works: false };
            self.desks.insert(process, desk);
            self.news = true;
            return out;
        };
        desk.unheard.retain(|(number, _)| *number > heard);
        let oldest = desk.unheard.front().map(|(number, _)| *number);
        if !desk.patience.is_over(oldest) {
            return Vec::new();
        }
        desk.orders().map(|word| (desk.peer.clone(), process, word)).collect()
    }

    /// A process answers.
    pub(crate) fn answer(&mut self, process: u32, from: &Peer, body: Bytes, now: Instant) {
        self.answers.push(Answered { process, peer: from.clone(), body, at: now });
    }

    /// A process names the next point at which it can do what is proposed.
    pub(crate) fn reach(&mut self, process: u32, number: u32, point: u64) -> Vec<Out> {
        let Some(roster) = &self.roster else { return Vec::new() };
        let Some(change) = self.change.as_mut().filter(|c| c.number == number) else {
            return Vec::new();
        };
        if roster.rank_of(process).is_none() || change.agreed.is_some() {
            return Vec::new();
        }
        change.said.insert(process, point);
        if change.said.len() < roster.members.len() {
            return Vec::new();
        }
        // The greatest: nobody has passed it, for each stands at the one that it named until it hears this.
        let at = change.said.values().copied().max().unwrap_or(point);
        change.agreed = Some(at);
        let before = (roster.size(), roster.layout.clone());
        let mut out: Vec<Out> = roster
            .members
            .iter()
            .map(|to| told(to, Word::Agreed { change: number, point: at }))
            .collect();
        if let Deed::Change(next) = &change.deed {
            let origin = Origin::From { givers: before.0, layout: before.1 };
            let recruit = Recruit { roster: next.clone(), origin, point: at };
            let new = next.members.iter().filter(|to| roster.rank_of(to.process).is_none());
            out.extend(new.map(|to| told(to, Word::Recruit(recruit.clone()))));
            let (next, givers) = (next.clone(), roster.members.iter());
            let givers = givers.map(|giver| giver.process).collect();
            self.seat(next, givers);
        }
        out
    }

    /// A process has its state under this configuration.
    pub(crate) fn is_whole(&mut self, process: u32, generation: u32) {
        let Some(roster) = self.roster.as_ref().filter(|r| r.generation == generation) else {
            return;
        };
        if roster.rank_of(process).is_some() {
            self.whole.insert(process);
        }
        if self.whole.len() == roster.members.len() {
            self.givers.clear();
        }
    }

    /// A process is through with what comes after the last step.
    pub(crate) fn is_done(&mut self, process: u32, generation: u32) {
        if self.roster.as_ref().is_some_and(|roster| roster.generation == generation) {
            self.done.insert(process);
        }
    }

    /// A process tells how fast it goes.
    pub(crate) fn going(&mut self, process: u32, generation: u32, pace: Pace) {
        if self.roster.as_ref().is_some_and(|roster| roster.generation == generation) {
            self.paces.insert(process, pace);
        }
    }

    /// A process reports.
    pub(crate) fn report(&mut self, report: Report) {
        let room = REPORTS_BYTES_MAX.saturating_sub(self.reports_bytes);
        if self.reports.len() < REPORTS_MAX && report.bytes() <= room {
            self.reports_bytes += report.bytes();
            self.reports.push(report);
        } else if !self.dropped {
            self.dropped = true;
            let text = format!(
                "the processes say more than can be passed on: no more than {REPORTS_MAX} lines and files, and \
                 {REPORTS_BYTES_MAX} bytes, between two steps of the root; what is beyond is lost"
            );
            self.reports.push(Report::Say(text));
        }
    }

    /// A process has ended.
    pub(crate) fn over(&mut self, process: u32) -> Vec<Out> {
        let Some(known) = self.processes.get_mut(&process) else { return Vec::new() };
        let before = std::mem::replace(&mut known.stand, Stand::Over);
        self.desks.remove(&process);
        self.news = true;
        if !matches!(before, Stand::Dismissed | Stand::Over) {
            self.ended.push(process);
        }
        let at = known.peer.as_ref().map(|peer| peer.node.clone());
        match at {
            Some(node) if before == Stand::Seated || self.is_awaited(process) => {
                self.tear(Cause::Ended(node))
            }
            _ => Vec::new(),
        }
    }

    /// Nodes are members no more: what ran there begins anew elsewhere. (The root's own node is never among them.)
    pub(crate) fn lost(&mut self, lost: impl Fn(&Peer) -> bool) -> Vec<Out> {
        let mut again = Vec::new();
        self.desks.retain(|_, desk| !lost(&desk.peer));
        self.news = true;
        for (process, known) in &mut self.processes {
            let Some(peer) = known.peer.take_if(|peer| lost(peer)) else { continue };
            if matches!(known.stand, Stand::Dismissed | Stand::Over) {
                continue;
            }
            again.push((*process, peer.node, known.stand == Stand::Seated));
            known.stand = Stand::Called;
        }
        let counted_on =
            |(process, _, seated): &(u32, NodeId, bool)| *seated || self.is_awaited(*process);
        match again.into_iter().find(counted_on) {
            Some((_, node, _)) => self.tear(Cause::Lost(node)),
            None => Vec::new(),
        }
    }

    /// The link between two nodes broke, one of which says so: what was said over it may be lost. It matters if both have
    /// processes that take part or that others count on; in which configuration these believe themselves to be does not, for the
    /// next one is seated here as soon as it is agreed, while they still compute in the one before. A link to a former life of a
    /// node, of which the word may be late, carried nothing of this one's.
    pub(crate) fn link_broke(
        &mut self,
        one: &Peer,
        (other, life): (&NodeId, Option<Incarnation>),
    ) -> Vec<Out> {
        let is_other =
            |peer: &Peer| peer.node == *other && life.is_none_or(|life| life == peer.incarnation);
        let root = self.processes.get(&0).and_then(|root| root.peer.clone());
        let again = |peer: &Peer| match &root {
            Some(root) if root == one => is_other(peer),
            Some(root) if is_other(root) => peer == one,
            _ => false,
        };
        // What takes orders is no part of a configuration: those that may be lost are said again, and nothing is over.
        let desks = self.desks.iter().filter(|(_, desk)| again(&desk.peer));
        let orders =
            desks.flat_map(|(at, desk)| desk.orders().map(|word| (desk.peer.clone(), *at, word)));
        let orders: Vec<Out> = orders.collect();
        if !orders.is_empty() {
            return orders;
        }
        if self.is_concerned(|peer| peer == one) && self.is_concerned(is_other) {
            self.tear(Cause::Link(one.node.clone(), other.clone()))
        } else {
            Vec::new()
        }
    }

    fn is_concerned(&self, at: impl Fn(&Peer) -> bool) -> bool {
        self.processes.iter().any(|(process, known)| {
            known.peer.as_ref().is_some_and(&at)
                && (known.stand == Stand::Seated || self.is_awaited(*process))
        })
    }

    /// Whether others count on this process, though it does not take part: what is proposed, or those that wait for what it has.
    fn is_awaited(&self, process: u32) -> bool {
        if self.givers.contains(&process) {
            return true;
        }
        let deed = self.change.as_ref().map(|change| &change.deed);
        matches!(deed, Some(Deed::Change(next)) if next.rank_of(process).is_some())
    }

    // --- what the root does ---

    /// A process that takes orders is given one. Nothing is said if it is not there.
    pub(crate) fn order(&mut self, process: u32, body: Bytes) -> Vec<Out> {
        let Some(desk) = self.desks.get_mut(&process) else { return Vec::new() };
        desk.last += 1;
        desk.unheard.push_back((desk.last, body.clone()));
        let word = Word::Order { sitting: desk.sitting, number: desk.last, body };
        vec![(desk.peer.clone(), process, word)]
    }

    /// Whether a process has orders that it has not carried out.
    pub(crate) fn works(&mut self, process: u32, works: bool) {
        if let Some(desk) = self.desks.get_mut(&process) {
            desk.works = works;
        }
    }

    /// What came from processes that take orders since the last time, and from which.
    pub(crate) fn take_answers(&mut self) -> Vec<Answered> {
        std::mem::take(&mut self.answers)
    }

    /// A process is called for.
    pub(crate) fn call(&mut self, process: u32) {
        self.processes.insert(process, Known { peer: None, stand: Stand::Called });
    }

    /// The next configuration, of these processes in order of rank. All must be held or seated; else none.
    pub(crate) fn roster_of(&mut self, processes: &[u32], layout: Bytes) -> Option<Roster> {
        let seated = |process: &u32| {
            let known = self.processes.get(process)?;
            let fits = matches!(known.stand, Stand::Held | Stand::Seated);
            let peer = known.peer.clone().filter(|_| fits)?;
            Some(Seated { process: *process, peer })
        };
        let members: Option<Vec<Seated>> = processes.iter().map(seated).collect();
        let members = members?;
        self.generation += 1;
        Some(Roster { generation: self.generation, members, layout })
    }

    /// The first configuration, or the first after one that is over, begins: all but the root's process are recruited. None, and
    /// nothing is done, if a member is not where the roster has it any more: nodes may be lost since that was made.
    pub(crate) fn form(&mut self, roster: Roster, origin: Origin, point: u64) -> Option<Vec<Out>> {
        if !self.holds(&roster) {
            return None;
        }
        let recruit = Recruit { roster: roster.clone(), origin, point };
        let others = roster.members.iter().filter(|to| to.process != 0);
        let out = others.map(|to| told(to, Word::Recruit(recruit.clone()))).collect();
        self.seat(roster, BTreeSet::new());
        Some(out)
    }

    /// Whether all members are where the roster has them, and could take part.
    fn holds(&self, roster: &Roster) -> bool {
        roster.members.iter().all(|member| {
            self.processes.get(&member.process).is_some_and(|known| {
                known.peer.as_ref() == Some(&member.peer)
                    && matches!(known.stand, Stand::Held | Stand::Seated)
            })
        })
    }

    fn seat(&mut self, roster: Roster, givers: BTreeSet<u32>) {
        for (process, known) in &mut self.processes {
            let takes_part = roster.rank_of(*process).is_some();
            match known.stand {
                Stand::Held if takes_part => known.stand = Stand::Seated,
                // It gives away what it has, and waits.
                Stand::Seated if !takes_part => known.stand = Stand::Held,
                _ => {}
            }
        }
        self.whole.clear();
        self.done.clear();
        self.givers = givers;
        self.paces.clear();
        self.change = None;
        self.roster = Some(roster);
    }

    /// Something is to be done by all; one thing at a time, only while all have their state, and no change to a configuration
    /// whose members are not all where it has them any more. Nothing is said if it is not proposed.
    pub(crate) fn propose(&mut self, deed: Deed) -> Vec<Out> {
        let Some(roster) = self.roster.as_ref().filter(|_| self.change.is_none()) else {
            return Vec::new();
        };
        if self.whole.len() < roster.members.len() {
            return Vec::new();
        }
        if matches!(&deed, Deed::Change(next) if !self.holds(next)) {
            return Vec::new();
        }
        self.changes += 1;
        let (generation, change) = (roster.generation, self.changes);
        let propose = Word::Propose { generation, change, deed: deed.clone() };
        let out = roster.members.iter().map(|to| told(to, propose.clone())).collect();
        self.change = Some(Change { number: change, deed, said: BTreeMap::new(), agreed: None });
        out
    }

    /// What was agreed, and does not change who takes part, is done.
    pub(crate) fn done(&mut self) {
        self.change.take_if(|change| change.agreed.is_some());
    }

    /// The configuration is over, and those who took part wait to be recruited.
    pub(crate) fn tear(&mut self, cause: Cause) -> Vec<Out> {
        if self.roster.is_some() {
            self.cause = Some(cause);
        }
        self.part()
    }

    fn part(&mut self) -> Vec<Out> {
        self.change = None;
        if self.roster.take().is_none() {
            return Vec::new();
        }
        let generation = self.generation;
        let givers = std::mem::take(&mut self.givers);
        let mut out = Vec::new();
        for (process, known) in &mut self.processes {
            let gives = known.stand == Stand::Held && givers.contains(process);
            if known.stand != Stand::Seated && !gives {
                continue;
            }
            if let Some(peer) = &known.peer {
                out.push((peer.clone(), *process, Word::Apart { generation }));
            }
            // The root's process is the root's own.
            known.stand = if *process == 0 { Stand::Held } else { Stand::Parting };
        }
        out
    }

    /// Tells those to end that wait, or were called, and that `fits`.
    pub(crate) fn dismiss(&mut self, fits: impl Fn(u32, Option<&Peer>, Stand) -> bool) -> Vec<Out> {
        let mut out = Vec::new();
        for (process, known) in &mut self.processes {
            let idle = matches!(known.stand, Stand::Called | Stand::Held | Stand::Parting);
            if *process == 0 || !idle || !fits(*process, known.peer.as_ref(), known.stand) {
                continue;
            }
            known.stand = Stand::Dismissed;
            if let Some(peer) = &known.peer {
                out.push((peer.clone(), *process, Word::Dismiss));
            }
        }
        out
    }

    /// Those that have ended need not be known any more.
    pub(crate) fn forget_over(&mut self) {
        self.processes.retain(|_, known| known.stand != Stand::Over);
    }

    /// The group is no more.
    pub(crate) fn disband(&mut self) -> Vec<Out> {
        let mut out = self.part();
        out.extend(self.dismiss(|_, _, _| true));
        out
    }

    // --- what the root looks at ---

    /// The processes that take orders and are there, where, and which time that each began this is.
    pub(crate) fn desks(&self) -> impl Iterator<Item = (u32, &Peer, u64)> {
        let desks = self.desks.iter();
        let held = desks.filter(|(process, _)| self.stand(**process) == Some(Stand::Held));
        held.map(|(process, desk)| (*process, &desk.peer, desk.sitting))
    }

    /// Whether processes that take orders came, ended or answered since the root looked last.
    pub(crate) fn has_news(&self) -> bool {
        self.news || !self.answers.is_empty()
    }

    /// Whether processes came or ended since the last time.
    pub(crate) fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.news)
    }

    /// How a process stands, and where it is.
    pub(crate) fn stands(&self) -> impl Iterator<Item = (u32, Option<&Peer>, Stand)> {
        self.processes.iter().map(|(process, known)| (*process, known.peer.as_ref(), known.stand))
    }

    pub(crate) fn stand(&self, process: u32) -> Option<Stand> {
        self.processes.get(&process).map(|known| known.stand)
    }

    /// The configuration that holds; none while it is torn.
    pub(crate) fn roster(&self) -> Option<&Roster> {
        self.roster.as_ref()
    }

    /// Whether all have their state, and nothing is proposed.
    pub(crate) fn is_settled(&self) -> bool {
        let all = self.roster.as_ref().is_some_and(|r| self.whole.len() == r.members.len());
        all && self.change.is_none()
    }

    /// Whether all are through with what comes after the last step.
    pub(crate) fn are_done(&self) -> bool {
        let mut members = self.roster.iter().flat_map(|roster| &roster.members);
        self.roster.is_some() && members.all(|member| self.done.contains(&member.process))
    }

    /// Whether a process there takes part, or others count on it; or it did until just now, for a link to a node that dies may
    /// break before anybody says that it died.
    pub(crate) fn counts_on(&self, peer: &Peer) -> bool {
        let parts = |known: &Known| {
            known.stand == Stand::Parting && known.peer.as_ref().is_some_and(|at| at == peer)
        };
        self.is_concerned(|at| at == peer)
            || self.processes.values().any(parts)
            || self.desks.values().any(|desk| desk.works && desk.peer == *peer)
    }

    /// How fast the members go, by rank; absent where not told yet.
    pub(crate) fn paces(&self) -> Vec<Option<Pace>> {
        let members = self.roster.iter().flat_map(|roster| &roster.members);
        members.map(|member| self.paces.get(&member.process).copied()).collect()
    }

    /// Why the last configuration is over, once.
    pub(crate) fn take_cause(&mut self) -> Option<Cause> {
        self.cause.take()
    }

    /// What processes reported since the last time.
    pub(crate) fn take_reports(&mut self) -> Vec<Report> {
        (self.reports_bytes, self.dropped) = (0, false);
        std::mem::take(&mut self.reports)
    }

    /// Those that ended without being told to, since the last time.
    pub(crate) fn take_ended(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.ended)
    }
}

fn told(to: &Seated, word: Word) -> Out {
    (to.peer.clone(), to.process, word)
}
