//! The right to act as the head of a grid, and the replication of the head's records.
//!
//! Three members: two heads, of which one acts, and a witness in another cluster. Two of them are a
//! majority. The protocol is that of Raft (Ongaro and Ousterhout, 2014) with a witness that stores
//! no records, and with leases:
//!
//! - A *term* has at most one leader. A head becomes leader with its own vote and another one, and
//!   a voter stores its vote before it answers.
//! - The leader appends records and sends them to the other head. A record is *committed* when the
//!   other head has stored it, or when the witness has stored its position.
//! - A snapshot may replace committed records. A head that lacks some of them gets the snapshot.
//! - The witness stores a position only while the other head is silent. It votes for no head with
//!   a lower position. So a head that lacks committed records gets no vote.
//! - A leader acts only while it holds a *lease*: a majority has confirmed it lately, counted from
//!   the sending of the question. A member that confirms a leader votes for no other head for
//!   longer than the lease, even if its clock is faster. A restarted member waits that time.
//! - The first head founds the log, with the votes of both other members. A head that has lost its
//!   disk is therefore never elected before it has the records again.
//! - Before it votes for itself, a head asks the others whether they would vote for it. So a head
//!   that was cut off does not disturb the leader when it returns.
//!
//! No messages are sent here, no files are written, and there is no clock: an event and the time go
//! in, actions come out. Each member has its own clock. The rates of two clocks differ by at most a
//! tenth. This module does not know the meaning of records.

mod member;
#[cfg(test)]
mod tests;

use std::time::Duration;

use serde::{Deserialize, Serialize};
use springtide_base::id::NodeId;

pub use self::member::Member;

/// Number of a leader's period: it grows with each election.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Term(pub u64);

/// Place of a record in the log: the term in which it was appended, and its number from 1.
///
/// Two logs with a record at the same position are equal up to it. A higher position belongs to a
/// log that has all committed records of the other.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct LogPosition {
    /// Term of the leader that appended the record.
    pub term: Term,
    /// Number of the record; 0: before the first record.
    pub index: u64,
}

/// A record of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogEntry {
    /// Term of the leader that appended it.
    pub term: Term,
    /// The record; absent in the first entry of a leader, which commits those before it.
    #[serde(with = "springtide_base::bytes_text")]
    pub value: Option<Vec<u8>>,
}

/// The three members of a grid's head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Members {
    /// The heads. The first one stands for election before the second one.
    pub heads: [NodeId; 2],
    /// The witness, which never acts.
    pub witness: NodeId,
}

/// The part of a member in its term.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemberPart {
    /// It follows a leader, or waits for one. The witness is always one.
    #[default]
    Follower,
    /// It stands for election.
    Candidate,
    /// It leads.
    Leader,
}

/// The times of the protocol, each by the clock of the member that measures it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StandbyTiming {
    /// Interval between two questions of the leader.
    pub heartbeat: Duration,
    /// Time for which a confirmed leader acts, from the sending of its question.
    pub lease: Duration,
    /// Time for which a member that confirmed a leader votes for no other head. It exceeds the
    /// lease by more than the rates of two clocks differ.
    pub promise: Duration,
    /// Silence of the other head after which the witness stores positions.
    pub silence: Duration,
    /// Interval between two attempts of a head to be elected.
    pub attempt: Duration,
}

impl Default for StandbyTiming {
    /// Times with which a head takes over within 10 s.
    fn default() -> Self {
        let ms = Duration::from_millis;
        Self {
            heartbeat: ms(500),
            lease: ms(4000),
            promise: ms(4500),
            silence: ms(1500),
            attempt: ms(500),
        }
    }
}

/// What a member must find again after a crash.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DurableState {
    /// The highest known term.
    pub term: Term,
    /// The head that got this member's vote in that term.
    pub vote: Option<NodeId>,
    /// Position of the snapshot. Of the witness: the highest stored position.
    pub base: LogPosition,
    /// Of a head: the net effect of the records up to that position.
    pub snapshot: Vec<u8>,
    /// Of a head: the records after it.
    pub entries: Vec<LogEntry>,
}

/// A change of the durable state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DurableChange {
    /// The member knows this term, and has given this vote in it.
    Vote {
        /// The term.
        term: Term,
        /// The head that got the vote, if any did.
        vote: Option<NodeId>,
    },
    /// Entries replace all from this index on.
    Entries {
        /// Index of the first new entry.
        from: u64,
        /// The new entries.
        entries: Vec<LogEntry>,
    },
    /// A snapshot replaces all records up to this position. The witness stores the position alone.
    Snapshot {
        /// Position of the last replaced record.
        position: LogPosition,
        /// Their net effect; empty at the witness.
        value: Vec<u8>,
    },
}

impl DurableState {
    /// Applies a change to this state.
    pub fn apply(&mut self, change: DurableChange) {
        match change {
            DurableChange::Vote { term, vote } => (self.term, self.vote) = (term, vote),
            DurableChange::Entries { from, entries } => {
                self.entries.truncate(self.offset(from));
                self.entries.extend(entries);
            }
            DurableChange::Snapshot { position, value } => {
                let has_it = self.position(position.index) == Some(position);
                let replaced = if has_it { self.offset(position.index + 1) } else { usize::MAX };
                self.entries.drain(..replaced.min(self.entries.len()));
                (self.base, self.snapshot) = (position, value);
            }
        }
    }

    /// Changes of an empty state that result in this one.
    pub fn changes(&self) -> Vec<DurableChange> {
        let (term, vote) = (self.term, self.vote.clone());
        let (position, value) = (self.base, self.snapshot.clone());
        let (from, entries) = (self.base.index + 1, self.entries.clone());
        vec![
            DurableChange::Vote { term, vote },
            DurableChange::Snapshot { position, value },
            DurableChange::Entries { from, entries },
        ]
    }

    /// Place of a record with this index in `entries`.
    fn offset(&self, index: u64) -> usize {
        usize::try_from(index.saturating_sub(self.base.index + 1)).unwrap_or(usize::MAX)
    }

    /// Position of the last record, or the one that the witness stores.
    pub fn last(&self) -> LogPosition {
        let index = self.base.index + self.entries.len() as u64;
        self.entries.last().map_or(self.base, |last| LogPosition { term: last.term, index })
    }

    /// The record with this index; absent in the snapshot and beyond the last record.
    pub fn entry(&self, index: u64) -> Option<&LogEntry> {
        if index > self.base.index { self.entries.get(self.offset(index)) } else { None }
    }

    /// The position with this index; absent before the snapshot's and beyond the last record.
    pub fn position(&self, index: u64) -> Option<LogPosition> {
        if index == self.base.index {
            return Some(self.base);
        }
        self.entry(index).map(|entry| LogPosition { term: entry.term, index })
    }
}

/// A message between two members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemberMessage {
    /// A head asks for a vote.
    VoteRequest {
        /// The term that the head stands for.
        term: Term,
        /// Position of its last record.
        position: LogPosition,
        /// Whether the head only asks how the member would vote.
        is_trial: bool,
    },
    /// The answer to a request for a vote.
    Vote {
        /// The term of the request.
        term: Term,
        /// Whether the request was a trial.
        is_trial: bool,
        /// Whether the head gets the vote.
        is_granted: bool,
        /// The voter's term, which a head with a lower one adopts.
        known: Term,
    },
    /// The leader sends records, and asks for its confirmation.
    Append {
        /// The term of the leader.
        term: Term,
        /// Number of the question, for the answer.
        round: u64,
        /// Position before the records.
        previous: LogPosition,
        /// The records; none for the witness.
        entries: Vec<LogEntry>,
        /// A position for the witness to store, while the other head is silent.
        note: Option<LogPosition>,
        /// Index of the last committed record.
        committed: u64,
    },
    /// The leader sends its snapshot to a head that lacks records before it.
    Install {
        /// The term of the leader.
        term: Term,
        /// Number of the question, for the answer.
        round: u64,
        /// Position of the snapshot.
        position: LogPosition,
        /// Its value.
        value: Vec<u8>,
    },
    /// The answer to the leader.
    Appended {
        /// The term of the member, which is higher than the leader's if it refuses the leader.
        term: Term,
        /// Number of the question.
        round: u64,
        /// Index up to which the member's records, or its stored position, are the leader's;
        /// absent if `previous` does not match.
        matched: Option<u64>,
        /// Index of the member's last record, from which the leader continues.
        last: u64,
    },
}

/// An input of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberEvent {
    /// A message of another member arrived.
    Received {
        /// The sender.
        from: NodeId,
        /// The message.
        message: MemberMessage,
    },
    /// The time of [`Member::due`] has come.
    Tick,
}

/// An output of a member. Actions are executed in their order: a change is durable before any later
/// action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberAction {
    /// Make a change durable.
    Save(DurableChange),
    /// Send a message. It may be lost.
    Send {
        /// The receiver.
        to: NodeId,
        /// The message.
        message: MemberMessage,
    },
    /// All records up to this index are committed: their submitters may get answers, and the other
    /// head may apply them.
    Committed(u64),
    /// This head leads under this term. It acts while [`Member::may_act`] says so.
    Lead(Term),
    /// This head no longer leads.
    Follow,
}

/// The reason why a record was not appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this head may not act now: another one may have taken over")]
pub struct MayNotAct;
