//! One process of a group as its node knows it: what it is called to, its mail, and how it keeps to the agreed point.
//!
//! A state machine without I/O: the network's side tells it what comes, the compute thread asks at each of its points. A process
//! that has said which point it can reach next does not go beyond before it hears what is agreed; so the greatest of what all
//! said is a point that none has passed (AFPAC's agreement). Must not know threads, nor what a program computes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;

use super::mailbox::Mailbox;
use super::message::{Deed, Mail, Recruit, Roster};
use super::patience::Patience;

/// What a process is to do at a point of its progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AtPoint {
    /// Go on to the next.
    Go,
    /// Wait until it is known.
    Hold,
    /// Do this, with all others, before it goes on.
    Do(Deed),
    /// The configuration is over.
    Torn,
}

/// What a process that waits hears.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Recruit(Recruit),
    Dismiss,
}

#[derive(Debug)]
struct Change {
    number: u32,
    deed: Deed,
    /// The point that was said to be reachable.
    said: u64,
    agreed: Option<u64>,
}

/// One process.
#[derive(Debug, Default)]
pub(crate) struct Seat {
    roster: Option<Arc<Roster>>,
    /// Configurations up to this one are over.
    over: u32,
    mailbox: Mailbox,
    /// The next point it arrives at.
    next: u64,
    change: Option<Change>,
    /// The number of the last change that was proposed: none is done twice.
    proposed: u32,
    call: Option<Recruit>,
    dismissed: bool,
    /// Dropped with generations that are over.
    refused: u64,
    /// How often it reported something to whoever watches the job.
    reports: u64,
    /// Those reports of which the root has not said that they are there.
    unheard: BTreeSet<u64>,
    desk: Desk,
}

/// What one that takes orders has of them, and has answered.
#[derive(Debug, Default)]
struct Desk {
    /// Which of the times that the process began this is.
    sitting: u64,
    /// All orders up to this number were here.
    heard: u64,
    /// Those that came before one that was said earlier: what is long is overtaken.
    ahead: BTreeMap<u64, Bytes>,
    /// To be read.
    orders: VecDeque<Bytes>,
    /// Answers of which the root has not said that they are there.
    answers: BTreeMap<u64, Bytes>,
    patience: Patience,
}

impl Seat {
    // --- what comes ---

    pub(crate) fn mail(&mut self, mail: Mail) {
        self.mailbox.put(mail);
    }

    pub(crate) fn recruit(&mut self, recruit: Recruit) {
        let generation = recruit.roster.generation;
        let known = self.call.as_ref().map_or(0, |call| call.roster.generation);
        if generation > self.over.max(self.generation()).max(known) {
            // Nobody is recruited who takes part: what it is in is over, and the word of that was lost.
            self.over = self.over.max(self.generation());
            self.call = Some(recruit);
        } else {
            self.refused += 1;
        }
    }

    /// The next point at which it can do this; none: it does not take part in that configuration, or not any more.
    pub(crate) fn propose(&mut self, generation: u32, number: u32, deed: Deed) -> Option<u64> {
        if generation != self.generation() || self.is_torn() {
            self.refused += 1;
            return None;
        }
        match &self.change {
            // Said again.
            Some(change) if change.number == number => Some(change.said),
            Some(_) => None,
            None if number <= self.proposed => None,
            None => {
                self.proposed = number;
                self.change = Some(Change { number, deed, said: self.next, agreed: None });
                Some(self.next)
            }
        }
    }

    pub(crate) fn agreed(&mut self, number: u32, point: u64) {
        if let Some(change) = self.change.as_mut().filter(|change| change.number == number) {
            change.agreed = Some(point);
        }
    }

    pub(crate) fn apart(&mut self, generation: u32) {
        self.over = self.over.max(generation);
        self.call.take_if(|call| call.roster.generation <= generation);
        self.mailbox.begin(self.over + 1);
    }

    pub(crate) fn dismiss(&mut self) {
        self.dismissed = true;
    }

    /// A report or an answer is at the root.
    pub(crate) fn heard(&mut self, number: u64) {
        self.unheard.remove(&number);
        self.desk.answers.remove(&number);
    }

    /// An order; one that is known, or was for an earlier time that the process began, is dropped.
    pub(crate) fn give_order(&mut self, sitting: u64, number: u64, body: Bytes) {
        let desk = &mut self.desk;
        if sitting != desk.sitting || number <= desk.heard {
            self.refused += 1;
            return;
        }
        desk.ahead.insert(number, body);
        while let Some(body) = desk.ahead.remove(&(desk.heard + 1)) {
            desk.heard += 1;
            desk.orders.push_back(body);
        }
    }

    /// The link to the root broke: what was on its way may be lost, and nobody will say that it came.
    pub(crate) fn lose_reports(&mut self) {
        self.unheard.clear();
    }

    // --- what the compute thread asks ---

    /// The number of the report that it makes now.
    pub(crate) fn report(&mut self) -> u64 {
        self.reports += 1;
        self.unheard.insert(self.reports);
        self.reports
    }

    /// Whether all that it reported or answered is at the root, or lost.
    pub(crate) fn is_heard(&self) -> bool {
        self.unheard.is_empty() && self.desk.answers.is_empty()
    }

    /// It takes orders from now on, this time that it began.
    pub(crate) fn sit(&mut self, sitting: u64) {
        self.desk.sitting = sitting;
    }

    /// Which time that it began this is, and up to which number all orders are here.
    pub(crate) fn ready(&self) -> (u64, u64) {
        (self.desk.sitting, self.desk.heard)
    }

    /// The orders that came since the last time.
    pub(crate) fn take_orders(&mut self) -> VecDeque<Bytes> {
        std::mem::take(&mut self.desk.orders)
    }

    /// Whether there is something for one that takes orders to look at.
    pub(crate) fn has_orders(&self) -> bool {
        self.dismissed || !self.desk.orders.is_empty()
    }

    pub(crate) fn is_dismissed(&self) -> bool {
        self.dismissed
    }

    /// The number of the answer that it gives now. It is kept until the root has it.
    pub(crate) fn answer(&mut self, body: Bytes) -> u64 {
        self.reports += 1;
        self.desk.answers.insert(self.reports, body);
        self.reports
    }

    /// All answers of which the root has not said that they are there: they may be lost with a link.
    pub(crate) fn unheard_answers(&self) -> Vec<(u64, Bytes)> {
        self.desk.answers.iter().map(|(number, body)| (*number, body.clone())).collect()
    }

    /// It has waited for a while: the answers to be said again, if none of those that are not heard has been heard for long.
    pub(crate) fn overdue_answers(&mut self) -> Vec<(u64, Bytes)> {
        let oldest = self.desk.answers.keys().next().copied();
        if self.desk.patience.is_over(oldest) { self.unheard_answers() } else { Vec::new() }
    }

    /// The configuration that it takes part in; 0: none.
    pub(crate) fn generation(&self) -> u32 {
        self.roster.as_ref().map_or(0, |roster| roster.generation)
    }

    #[cfg(test)]
    pub(crate) fn roster(&self) -> Option<&Arc<Roster>> {
        self.roster.as_ref()
    }

    /// Whether the configuration that it takes part in is over.
    pub(crate) fn is_torn(&self) -> bool {
        self.dismissed || self.roster.is_some() && self.generation() <= self.over
    }

    pub(crate) fn order(&mut self) -> Option<Order> {
        if self.dismissed {
            return Some(Order::Dismiss);
        }
        self.call.take().map(Order::Recruit)
    }

    pub(crate) fn has_order(&self) -> bool {
        self.dismissed || self.call.is_some()
    }

    /// It takes part in this configuration, from this point on.
    pub(crate) fn enter(&mut self, roster: Arc<Roster>, point: u64) {
        self.mailbox.begin(roster.generation);
        self.next = point;
        self.change = None;
        self.roster = Some(roster);
    }

    /// It takes part in none.
    pub(crate) fn rise(&mut self) {
        self.over = self.over.max(self.generation());
        self.mailbox.begin(self.over + 1);
        self.roster = None;
        self.change = None;
    }

    /// It is at this point.
    pub(crate) fn arrive(&mut self, point: u64) -> AtPoint {
        if self.is_torn() {
            return AtPoint::Torn;
        }
        match &self.change {
            Some(Change { agreed: Some(at), deed, .. }) if *at == point => {
                let deed = deed.clone();
                self.change = None;
                self.next = point;
                return AtPoint::Do(deed);
            }
            // It has not passed the point that it named, and stands there.
            _ if self.holds(point) => return AtPoint::Hold,
            _ => {}
        }
        self.next = point + 1;
        AtPoint::Go
    }

    /// Whether it has to wait at this point: see [`Seat::arrive`].
    pub(crate) fn holds(&self, point: u64) -> bool {
        let named = |change: &Change| change.agreed.is_none() && change.said <= point;
        !self.is_torn() && self.change.as_ref().is_some_and(named)
    }

    pub(crate) fn mailbox(&mut self) -> &mut Mailbox {
        &mut self.mailbox
    }

    /// What was refused because it belonged to another configuration.
    pub(crate) fn stale(&self) -> u64 {
        self.mailbox.stale() + self.refused
    }
}
