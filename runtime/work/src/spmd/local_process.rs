//! A process of a group, as its own node keeps it: invitations, messages and agreed points.
//!
//! A state machine without I/O. The network side passes messages in, and the compute thread asks at
//! each of its points. A process that named a point holds there until it learns the agreement. So
//! no process has passed the greatest of all named points (AFPAC's agreement). It depends neither
//! on threads nor on what a program computes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;

use super::mailbox::Mailbox;
use super::message::{CollectiveAction, Configuration, DataMessage, Invitation};
use super::timer::RetryTimer;

/// The next action of a process at a point of its progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PointAction {
    /// Continue to the next point.
    Continue,
    /// Wait here until the point is agreed.
    Hold,
    /// Execute this action with all members, then continue.
    Execute(CollectiveAction),
    /// The configuration has ended.
    Ended,
}

/// A call to a waiting process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Recruit(Invitation),
    Dismiss,
}

#[derive(Debug)]
struct AnnouncedAction {
    number: u32,
    action: CollectiveAction,
    /// The point that this process named.
    named: u64,
    agreed: Option<u64>,
}

/// The state of a process on its node.
#[derive(Debug, Default)]
pub(crate) struct LocalProcess {
    configuration: Option<Arc<Configuration>>,
    /// All configurations up to this generation have ended.
    ended: u32,
    mailbox: Mailbox,
    /// The next point that it arrives at.
    next: u64,
    change: Option<AnnouncedAction>,
    /// The number of the last proposed change. No change is executed twice.
    proposed: u32,
    /// Whether the root decides at this point, and its proposal is not yet known.
    awaits_decision: bool,
    call: Option<Invitation>,
    dismissed: bool,
    /// Messages dropped because their configuration had ended.
    dropped: u64,
    /// The number of its reports and answers so far.
    reports: u64,
    /// Reports that the root has not acknowledged.
    unacknowledged: BTreeSet<u64>,
    inbox: OrderInbox,
}

/// Orders and answers of a process that takes orders.
#[derive(Debug, Default)]
struct OrderInbox {
    /// Identifies this start of the process.
    session: u64,
    /// All orders up to this number have arrived.
    received: u64,
    /// Orders that arrived before an earlier one, as long messages may be overtaken.
    ahead: BTreeMap<u64, Bytes>,
    /// Orders to be read.
    orders: VecDeque<Bytes>,
    /// Answers that the root has not acknowledged.
    answers: BTreeMap<u64, Bytes>,
    timer: RetryTimer,
}

impl LocalProcess {
    // --- received messages ---

    pub(crate) fn mail(&mut self, mail: DataMessage) {
        self.mailbox.put(mail);
    }

    pub(crate) fn recruit(&mut self, recruit: Invitation) {
        let generation = recruit.configuration.generation;
        let known = self.call.as_ref().map_or(0, |call| call.configuration.generation);
        if generation > self.ended.max(self.generation()).max(known) {
            // A member is recruited only if its configuration has ended, so the message of that end
            // was lost.
            self.ended = self.ended.max(self.generation());
            self.call = Some(recruit);
        } else {
            self.dropped += 1;
        }
    }

    /// Handles a proposal: returns the next point at which this process can execute it. None if it
    /// does not take part in that configuration.
    pub(crate) fn propose(
        &mut self,
        generation: u32,
        number: u32,
        action: CollectiveAction,
    ) -> Option<u64> {
        if generation != self.generation() || self.has_ended() {
            self.dropped += 1;
            return None;
        }
        let named = match &self.change {
            // A repeated proposal.
            Some(change) if change.number == number => return Some(change.named),
            _ if number <= self.proposed => return None,
            // The root has executed this action, and this process has not arrived there.
            Some(change) if change.action.only_waits() => change.agreed.unwrap_or(change.named),
            Some(_) => return None,
            None => self.next,
        };
        self.proposed = number;
        self.awaits_decision = false;
        self.change = Some(AnnouncedAction { number, action, named, agreed: None });
        Some(named)
    }

    pub(crate) fn agreed(&mut self, number: u32, point: u64) {
        if let Some(change) = self.change.as_mut().filter(|change| change.number == number) {
            change.agreed = Some(point);
        }
    }

    pub(crate) fn apart(&mut self, generation: u32) {
        self.ended = self.ended.max(generation);
        self.call.take_if(|call| call.configuration.generation <= generation);
        self.mailbox.begin(self.ended + 1);
    }

    pub(crate) fn dismiss(&mut self) {
        self.dismissed = true;
    }

    /// Handles the root's acknowledgement of a report or an answer.
    pub(crate) fn acknowledge(&mut self, number: u64) {
        self.unacknowledged.remove(&number);
        self.inbox.answers.remove(&number);
    }

    /// Handles an order. Drops duplicates, and orders for an earlier session.
    pub(crate) fn receive_order(&mut self, session: u64, number: u64, body: Bytes) {
        let inbox = &mut self.inbox;
        if session != inbox.session || number <= inbox.received {
            self.dropped += 1;
            return;
        }
        inbox.ahead.insert(number, body);
        while let Some(body) = inbox.ahead.remove(&(inbox.received + 1)) {
            inbox.received += 1;
            inbox.orders.push_back(body);
        }
    }

    /// Forgets unacknowledged reports: the link to the root broke, and their acknowledgements may
    /// be lost.
    pub(crate) fn drop_reports(&mut self) {
        self.unacknowledged.clear();
    }

    // --- calls of the compute thread ---

    /// Registers a report, and returns its number.
    pub(crate) fn report(&mut self) -> u64 {
        self.reports += 1;
        self.unacknowledged.insert(self.reports);
        self.reports
    }

    /// Whether the root has acknowledged all reports and answers, or they are lost.
    pub(crate) fn is_acknowledged(&self) -> bool {
        self.unacknowledged.is_empty() && self.inbox.answers.is_empty()
    }

    /// Starts a session: the process takes orders from now on.
    pub(crate) fn start_session(&mut self, session: u64) {
        self.inbox.session = session;
    }

    /// The session, and the number up to which all orders have arrived.
    pub(crate) fn ready(&self) -> (u64, u64) {
        (self.inbox.session, self.inbox.received)
    }

    /// Takes the orders received since the last call.
    pub(crate) fn take_orders(&mut self) -> VecDeque<Bytes> {
        std::mem::take(&mut self.inbox.orders)
    }

    /// Whether an order taker has something to handle.
    pub(crate) fn has_orders(&self) -> bool {
        self.dismissed || !self.inbox.orders.is_empty()
    }

    pub(crate) fn is_dismissed(&self) -> bool {
        self.dismissed
    }

    /// Registers an answer and returns its number. It is kept until the root acknowledges it.
    pub(crate) fn answer(&mut self, body: Bytes) -> u64 {
        self.reports += 1;
        self.inbox.answers.insert(self.reports, body);
        self.reports
    }

    /// The unacknowledged answers, which a broken link may have lost.
    pub(crate) fn unacknowledged_answers(&self) -> Vec<(u64, Bytes)> {
        self.inbox.answers.iter().map(|(number, body)| (*number, body.clone())).collect()
    }

    /// The number of answers that the root has not acknowledged.
    pub(crate) fn unacknowledged_answers_count(&self) -> usize {
        self.inbox.answers.len()
    }

    /// Records a check while waiting. Returns the answers to repeat: all unacknowledged ones, once
    /// the oldest is overdue.
    pub(crate) fn overdue_answers(&mut self) -> Vec<(u64, Bytes)> {
        let oldest = self.inbox.answers.keys().next().copied();
        if self.inbox.timer.is_due(oldest) { self.unacknowledged_answers() } else { Vec::new() }
    }

    /// The generation of its configuration; 0 if none.
    pub(crate) fn generation(&self) -> u32 {
        self.configuration.as_ref().map_or(0, |configuration| configuration.generation)
    }

    #[cfg(test)]
    pub(crate) fn configuration(&self) -> Option<&Arc<Configuration>> {
        self.configuration.as_ref()
    }

    /// Whether its configuration has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.dismissed || self.configuration.is_some() && self.generation() <= self.ended
    }

    pub(crate) fn take_call(&mut self) -> Option<Call> {
        if self.dismissed {
            return Some(Call::Dismiss);
        }
        self.call.take().map(Call::Recruit)
    }

    pub(crate) fn has_call(&self) -> bool {
        self.dismissed || self.call.is_some()
    }

    /// Enters a configuration at this point.
    pub(crate) fn enter(&mut self, configuration: Arc<Configuration>, point: u64) {
        self.mailbox.begin(configuration.generation);
        self.next = point;
        self.change = None;
        self.awaits_decision = false;
        self.configuration = Some(configuration);
    }

    /// Leaves the configuration.
    pub(crate) fn leave(&mut self) {
        self.ended = self.ended.max(self.generation());
        self.mailbox.begin(self.ended + 1);
        self.configuration = None;
        self.change = None;
        self.awaits_decision = false;
    }

    /// Handles the arrival at a point.
    pub(crate) fn arrive(&mut self, point: u64) -> PointAction {
        if self.has_ended() {
            return PointAction::Ended;
        }
        match &self.change {
            Some(AnnouncedAction { agreed: Some(at), action, .. }) if *at == point => {
                let action = action.clone();
                self.change = None;
                self.next = point;
                self.awaits_decision = action == CollectiveAction::Decide;
                return PointAction::Execute(action);
            }
            // It has not passed the point that it named, and holds here.
            _ if self.holds(point) => return PointAction::Hold,
            _ => {}
        }
        self.next = point + 1;
        PointAction::Continue
    }

    /// Whether it must wait at this point; see [`LocalProcess::arrive`].
    pub(crate) fn holds(&self, point: u64) -> bool {
        let waits_here =
            |change: &AnnouncedAction| change.agreed.is_none() && change.named <= point;
        !self.has_ended() && self.change.as_ref().map_or(self.awaits_decision, waits_here)
    }

    pub(crate) fn mailbox(&mut self) -> &mut Mailbox {
        &mut self.mailbox
    }

    /// The number of messages dropped because their configuration had ended.
    pub(crate) fn stale(&self) -> u64 {
        self.mailbox.stale() + self.dropped
    }
}
