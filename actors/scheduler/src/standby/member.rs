//! A member as a state machine.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use springtide_base::id::NodeId;

use super::{
    DurableChange, DurableState, LogEntry, LogPosition, MayNotAct, MemberAction, MemberEvent,
    MemberMessage, MemberPart, Members, StandbyTiming, Term,
};

/// The maximum number of records in a message.
const ENTRIES_MAX: usize = 64;
/// Bytes of records after which a message takes no more of them.
const BYTES_MAX: usize = 1 << 20;
/// Questions whose sending times the leader remembers for each member.
const ROUNDS_MAX: usize = 64;

/// What a leader knows of another member.
#[derive(Clone, Debug)]
struct Follower {
    /// Index up to which its records, or its stored position, are the leader's.
    matched: u64,
    /// Index of the next record to send.
    next: u64,
    /// Sending times of the questions that have no answer, by number.
    asked: BTreeMap<u64, Duration>,
    /// Sending time of the latest question that it has answered.
    confirmed: Option<Duration>,
    /// Time of its last answer.
    answered: Duration,
}

/// The part of a member in its term.
#[derive(Clone, Debug)]
enum Part {
    Follower,
    /// A head that stands for election, as a trial or in earnest.
    Candidate {
        term: Term,
        is_trial: bool,
        /// The members that would vote, or have voted, for this head.
        voters: BTreeSet<NodeId>,
    },
    Leader {
        followers: BTreeMap<NodeId, Follower>,
        /// Index of the first entry of this term.
        first: u64,
        committed: u64,
        round: u64,
        /// Time of the next questions.
        ask_at: Duration,
    },
}

/// A member: a head or the witness. Times are those of its own clock since any fixed moment.
#[derive(Clone, Debug)]
pub struct Member {
    me: NodeId,
    members: Members,
    timing: StandbyTiming,
    state: DurableState,
    part: Part,
    /// Time until which it votes for no other head.
    promised_until: Duration,
    /// Time of the next attempt to be elected.
    attempt_at: Duration,
    /// Index up to which a leader has said that records are committed.
    committed: u64,
}

impl Member {
    /// A member that starts, with the state of its earlier process or none.
    pub fn start(
        me: NodeId,
        members: Members,
        timing: StandbyTiming,
        state: DurableState,
        now: Duration,
    ) -> Self {
        // The earlier process may have confirmed a leader just before it ended.
        let promised_until = now + timing.promise;
        // A snapshot replaces committed records alone.
        let (part, committed) = (Part::Follower, state.base.index);
        let mut member =
            Self { me, members, timing, state, part, promised_until, attempt_at: now, committed };
        member.attempt_at = member.first_attempt();
        member
    }

    /// The time after the promise at which this head first stands for election.
    fn first_attempt(&self) -> Duration {
        let is_second = self.members.heads[1] == self.me;
        self.promised_until + if is_second { self.timing.attempt / 2 } else { Duration::ZERO }
    }

    fn is_head(&self) -> bool {
        self.members.heads.contains(&self.me)
    }

    fn others(&self) -> Vec<NodeId> {
        let all = self.members.heads.iter().chain([&self.members.witness]);
        all.filter(|member| **member != self.me).cloned().collect()
    }

    /// The durable state, as the saved changes result in it.
    pub fn state(&self) -> &DurableState {
        &self.state
    }

    /// Index of the last record that this member knows to be committed.
    pub fn committed(&self) -> u64 {
        self.committed
    }

    /// Asks the others for their votes as a trial, which has no effect now. A head that starts
    /// becomes reachable by that before it stands for election.
    pub fn greet(&self, out: &mut Vec<MemberAction>) {
        let (term, position) = (Term(self.state.term.0 + 1), self.state.last());
        for to in self.others().into_iter().filter(|_| self.is_head()) {
            let message = MemberMessage::VoteRequest { term, position, is_trial: true };
            out.push(MemberAction::Send { to, message });
        }
    }

    /// The members of the grid's head.
    pub fn members(&self) -> &Members {
        &self.members
    }

    /// The part of this member now.
    pub fn part(&self) -> MemberPart {
        match &self.part {
            Part::Leader { .. } => MemberPart::Leader,
            Part::Candidate { .. } => MemberPart::Candidate,
            Part::Follower => MemberPart::Follower,
        }
    }

    /// What a leader knows of each other member: the index up to which it has the records, and
    /// whether it answers. The witness has positions that only it and the leader have.
    pub fn followers(&self, now: Duration) -> BTreeMap<NodeId, (u64, bool)> {
        let Part::Leader { followers, .. } = &self.part else { return BTreeMap::new() };
        let state = |(node, follower): (&NodeId, &Follower)| {
            let answers =
                follower.confirmed.is_some() && now < follower.answered + self.timing.silence;
            (node.clone(), (follower.matched, answers))
        };
        followers.iter().map(state).collect()
    }

    /// Whether this head may act as the grid's head at this time. To be asked before each act.
    pub fn may_act(&self, now: Duration) -> bool {
        self.acts_until().is_some_and(|until| now < until)
    }

    /// The time until which this head may act, unless a majority confirms it again; absent if it
    /// does not lead, or lacks records that may be committed.
    pub fn acts_until(&self) -> Option<Duration> {
        let Part::Leader { first, committed, .. } = &self.part else { return None };
        self.leased_until().filter(|_| committed >= first)
    }

    /// The end of the lease. One other member, and so a majority, has confirmed this leader.
    fn leased_until(&self) -> Option<Duration> {
        let Part::Leader { followers, .. } = &self.part else { return None };
        let confirmed = followers.values().filter_map(|follower| follower.confirmed).max()?;
        Some(confirmed + self.timing.lease)
    }

    /// The time of the next [`MemberEvent::Tick`]; none for the witness, which only answers.
    pub fn due(&self) -> Option<Duration> {
        match &self.part {
            Part::Leader { ask_at, .. } => Some(*ask_at),
            Part::Follower | Part::Candidate { .. } => self.stands().then_some(self.attempt_at),
        }
    }

    /// Whether this member stands for election. Only the first head founds the log.
    fn stands(&self) -> bool {
        self.is_head() && (self.members.heads[0] == self.me || !self.is_empty())
    }

    /// Whether this head has never had a record. Either no head has ever led, or this one has lost
    /// its disk.
    fn is_empty(&self) -> bool {
        self.state.last().index == 0
    }

    /// Appends records in this order, and returns the index of the last one. Their submitter gets
    /// the answer when [`MemberAction::Committed`] names this index or a later one. A crash may
    /// leave only the first of them.
    ///
    /// # Errors
    /// [`MayNotAct`]; then nothing is appended.
    pub fn append(
        &mut self,
        values: Vec<Vec<u8>>,
        now: Duration,
        out: &mut Vec<MemberAction>,
    ) -> Result<u64, MayNotAct> {
        if !self.may_act(now) {
            return Err(MayNotAct);
        }
        let term = self.state.term;
        let entry = |value| LogEntry { term, value: Some(value) };
        self.push_entries(values.into_iter().map(entry).collect(), out);
        self.ask(now, out);
        Ok(self.state.last().index)
    }

    /// Replaces the records up to a committed one by a snapshot of their net effect. Without effect
    /// for an index that is not known to be committed, or that a snapshot replaces already.
    pub fn compact(&mut self, index: u64, value: Vec<u8>, out: &mut Vec<MemberAction>) {
        let position = self.state.position(index);
        let is_due = index <= self.committed && index > self.state.base.index;
        if let Some(position) = position.filter(|_| is_due) {
            self.save(DurableChange::Snapshot { position, value }, out);
        }
    }

    /// Handles an event at a time of this member's clock.
    pub fn handle(&mut self, event: MemberEvent, now: Duration, out: &mut Vec<MemberAction>) {
        match event {
            MemberEvent::Tick => self.tick(now, out),
            MemberEvent::Received { from, message } if self.others().contains(&from) => {
                self.receive(from, message, now, out);
            }
            // Another process may use the network of the members by mistake.
            MemberEvent::Received { .. } => {}
        }
    }

    fn receive(
        &mut self,
        from: NodeId,
        message: MemberMessage,
        now: Duration,
        out: &mut Vec<MemberAction>,
    ) {
        match message {
            MemberMessage::VoteRequest { term, position, is_trial } => {
                self.vote(from, term, position, is_trial, now, out);
            }
            MemberMessage::Vote { term, is_trial, is_granted, known } => {
                if !is_granted {
                    return self.adopt(known, out);
                }
                // Only the other head knows whether an empty head has lost its disk.
                let required = if self.is_empty() { 2 } else { 1 };
                let Part::Candidate { term: own, is_trial: trial, voters } = &mut self.part else {
                    return;
                };
                if *own == term && *trial == is_trial && voters.insert(from) {
                    let is_elected = voters.len() == required;
                    if is_elected {
                        self.win(term, is_trial, now, out);
                    }
                }
            }
            MemberMessage::Append { term, round, previous, entries, note, committed } => {
                let matched = self.confirm(term, now, out).then(|| {
                    let matched = self.store(previous, entries, note, out)?;
                    self.learn_committed(committed.min(matched), out);
                    Some(matched)
                });
                self.answer(from, round, matched.flatten(), out);
            }
            MemberMessage::Install { term, round, position, value } => {
                let matched = self.confirm(term, now, out).then(|| {
                    if position.index > self.state.base.index && self.is_head() {
                        self.save(DurableChange::Snapshot { position, value }, out);
                        self.learn_committed(position.index, out);
                    }
                    position.index
                });
                self.answer(from, round, matched, out);
            }
            MemberMessage::Appended { term, round, matched, last } => {
                if term > self.state.term {
                    return self.adopt(term, out);
                }
                if term == self.state.term {
                    self.appended(&from, round, matched, last, now, out);
                }
            }
        }
    }

    /// Saves a change of the state.
    fn save(&mut self, change: DurableChange, out: &mut Vec<MemberAction>) {
        self.state.apply(change.clone());
        out.push(MemberAction::Save(change));
    }

    /// Follows from now on, under a higher term if it is one.
    fn adopt(&mut self, term: Term, out: &mut Vec<MemberAction>) {
        if term > self.state.term {
            self.save(DurableChange::Vote { term, vote: None }, out);
            self.follow(out);
        }
    }

    fn follow(&mut self, out: &mut Vec<MemberAction>) {
        if matches!(self.part, Part::Leader { .. }) {
            out.push(MemberAction::Follow);
        }
        self.part = Part::Follower;
    }

    /// Answers the leader under this member's term.
    fn answer(&self, to: NodeId, round: u64, matched: Option<u64>, out: &mut Vec<MemberAction>) {
        let (term, last) = (self.state.term, self.state.last().index);
        let message = MemberMessage::Appended { term, round, matched, last };
        out.push(MemberAction::Send { to, message });
    }

    /// Confirms the leader of this term, and votes for no other head for a while. Returns whether
    /// the term counts: a lower one is that of a former leader.
    fn confirm(&mut self, term: Term, now: Duration, out: &mut Vec<MemberAction>) -> bool {
        if term < self.state.term {
            return false;
        }
        self.adopt(term, out);
        self.follow(out);
        self.promised_until = now + self.timing.promise;
        self.attempt_at = self.first_attempt();
        true
    }

    /// Answers a request for a vote.
    fn vote(
        &mut self,
        from: NodeId,
        term: Term,
        position: LogPosition,
        is_trial: bool,
        now: Duration,
        out: &mut Vec<MemberAction>,
    ) {
        let is_bound = now < self.promised_until.max(self.leased_until().unwrap_or_default());
        let is_free = term > self.state.term
            || (term == self.state.term
                && self.state.vote.as_ref().is_none_or(|vote| *vote == from));
        let is_granted = !is_bound
            && is_free
            && self.members.heads.contains(&from)
            && position >= self.state.last();
        if is_granted && !is_trial {
            self.follow(out);
            self.save(DurableChange::Vote { term, vote: Some(from.clone()) }, out);
            // The candidate gets time to lead before this head stands itself.
            self.attempt_at = self.attempt_at.max(now + self.timing.attempt);
        }
        let known = self.state.term;
        let message = MemberMessage::Vote { term, is_trial, is_granted, known };
        out.push(MemberAction::Send { to: from, message });
    }

    fn tick(&mut self, now: Duration, out: &mut Vec<MemberAction>) {
        if self.due().is_none_or(|due| now < due) {
            return;
        }
        if matches!(self.part, Part::Leader { .. }) {
            return self.ask(now, out);
        }
        // A trial changes no state of the voters.
        let term = Term(self.state.term.0 + 1);
        self.attempt_at = now + self.timing.attempt;
        self.stand(term, true, out);
    }

    fn stand(&mut self, term: Term, is_trial: bool, out: &mut Vec<MemberAction>) {
        self.part = Part::Candidate { term, is_trial, voters: BTreeSet::new() };
        let position = self.state.last();
        for to in self.others() {
            let message = MemberMessage::VoteRequest { term, position, is_trial };
            out.push(MemberAction::Send { to, message });
        }
    }

    /// Enough members would vote for this head, or have voted for it: with itself a majority, and
    /// all of them for an empty head.
    fn win(&mut self, term: Term, is_trial: bool, now: Duration, out: &mut Vec<MemberAction>) {
        if is_trial {
            let vote = Some(self.me.clone());
            self.save(DurableChange::Vote { term, vote }, out);
            return self.stand(term, false, out);
        }
        if self.is_empty() {
            // The other head gets a snapshot first: this head may have a state without records.
            let position = LogPosition { term, index: 1 };
            self.save(DurableChange::Snapshot { position, value: Vec::new() }, out);
        }
        let last = self.state.last().index;
        let follower = Follower {
            matched: 0,
            next: last + 1,
            asked: BTreeMap::new(),
            confirmed: None,
            answered: now,
        };
        let followers = self.others().into_iter().map(|node| (node, follower.clone())).collect();
        let (first, committed) = (last + 1, self.committed);
        self.part = Part::Leader { followers, first, committed, round: 0, ask_at: now };
        out.push(MemberAction::Lead(term));
        // Commits what earlier leaders appended.
        self.push_entries(vec![LogEntry { term, value: None }], out);
        self.ask(now, out);
    }

    fn push_entries(&mut self, entries: Vec<LogEntry>, out: &mut Vec<MemberAction>) {
        let from = self.state.last().index + 1;
        self.save(DurableChange::Entries { from, entries }, out);
    }

    /// Sends records and questions to both other members.
    fn ask(&mut self, now: Duration, out: &mut Vec<MemberAction>) {
        let Part::Leader { followers, round, ask_at, committed, .. } = &mut self.part else {
            return;
        };
        *round += 1;
        *ask_at = now + self.timing.heartbeat;
        let (round, committed, last) = (*round, *committed, self.state.last());
        let witness = &self.members.witness;
        let standby = followers.iter().find(|(node, _)| *node != witness);
        // The witness cannot give the records back, so that it counts only for a silent head.
        let is_silent = standby.is_some_and(|(_, standby)| {
            standby.matched < last.index && now >= standby.answered + self.timing.silence
        });
        for (node, follower) in followers {
            let is_witness = node == witness;
            let previous = follower.next - 1;
            let previous = if is_witness { Some(last) } else { self.state.position(previous) };
            follower.asked.insert(round, now);
            if follower.asked.len() > ROUNDS_MAX {
                follower.asked.pop_first();
            }
            let (term, state) = (self.state.term, &self.state);
            let message = match previous {
                Some(previous) => {
                    let records = state.entries.iter().skip(state.offset(previous.index + 1));
                    let mut bytes = 0;
                    let fits = |entry: &&LogEntry| {
                        let is_first = bytes == 0;
                        bytes += 1 + entry.value.as_ref().map_or(0, Vec::len);
                        is_first || bytes <= BYTES_MAX
                    };
                    let entries = records.take(ENTRIES_MAX).take_while(fits).cloned().collect();
                    let note = (is_witness && is_silent).then_some(last);
                    MemberMessage::Append { term, round, previous, entries, note, committed }
                }
                None => {
                    let (position, value) = (state.base, state.snapshot.clone());
                    MemberMessage::Install { term, round, position, value }
                }
            };
            out.push(MemberAction::Send { to: node.clone(), message });
        }
    }

    /// Stores records of the leader, or a position. Returns the index up to which this member
    /// agrees with the leader; none if it lacks records before these.
    fn store(
        &mut self,
        previous: LogPosition,
        entries: Vec<LogEntry>,
        note: Option<LogPosition>,
        out: &mut Vec<MemberAction>,
    ) -> Option<u64> {
        if !self.is_head() {
            // A leader's own entry is its last one, so that its position exceeds all earlier ones.
            if let Some(position) = note.filter(|note| *note > self.state.base) {
                self.save(DurableChange::Snapshot { position, value: Vec::new() }, out);
            }
            return Some(note.map_or(0, |note| note.index));
        }
        // What a snapshot replaces is committed, so that the leader has the same.
        let is_replaced = previous.index < self.state.base.index;
        if !is_replaced && self.state.position(previous.index) != Some(previous) {
            return None;
        }
        let matched = (previous.index + entries.len() as u64).max(self.state.base.index);
        let differs = |(entry, index): &(&LogEntry, u64)| {
            let is_known = self.state.entry(*index).is_some_and(|own| own.term == entry.term);
            *index > self.state.base.index && !is_known
        };
        let first = entries.iter().zip(previous.index + 1..).find(differs).map(|(_, index)| index);
        if let Some(from) = first {
            let skipped = usize::try_from(from - previous.index - 1).unwrap_or(usize::MAX);
            let entries = entries.into_iter().skip(skipped).collect();
            self.save(DurableChange::Entries { from, entries }, out);
        }
        Some(matched)
    }

    fn appended(
        &mut self,
        from: &NodeId,
        round: u64,
        matched: Option<u64>,
        last: u64,
        now: Duration,
        out: &mut Vec<MemberAction>,
    ) {
        let own_last = self.state.last().index;
        let Part::Leader { followers, first, .. } = &mut self.part else { return };
        let Some(follower) = followers.get_mut(from) else { return };
        // An answer counts once: a repeated one says nothing of a later time.
        let Some(sent) = follower.asked.remove(&round) else { return };
        follower.confirmed = follower.confirmed.max(Some(sent));
        follower.answered = now;
        let has_more = match matched {
            Some(index) => {
                follower.matched = follower.matched.max(index);
                follower.next = follower.next.max(index + 1);
                follower.next <= own_last && *from != self.members.witness
            }
            None => {
                let before = follower.next;
                follower.next = (last + 1).min(follower.next - 1).max(follower.matched + 1);
                follower.next < before
            }
        };
        let first = *first;
        let majority = followers.values().map(|follower| follower.matched).max().unwrap_or(0);
        // Entries of earlier terms are committed by one of this term alone.
        if majority >= first {
            self.learn_committed(majority, out);
        }
        if has_more {
            self.ask(now, out);
        }
    }

    fn learn_committed(&mut self, index: u64, out: &mut Vec<MemberAction>) {
        if let Part::Leader { committed, .. } = &mut self.part {
            *committed = index.max(*committed);
        }
        if index > self.committed {
            self.committed = index;
            out.push(MemberAction::Committed(index));
        }
    }
}
