//! The state machine of a link to one peer, without I/O. It decides when to connect, and which of
//! two crossed connections stays.
//!
//! This module knows neither sockets nor timers: it maps events to actions. Rules:
//! - If both sides connect simultaneously, the connection of the smaller node name stays. The
//!   larger one welcomes it and abandons its own attempt. The smaller one parks the other's hello
//!   until its own attempt is settled, so that one connection always remains.
//! - Attempts are numbered in each incarnation. A welcome invalidates all earlier attempts of both
//!   sides, so that a late hello cannot replace a newer link.
//! - A valid hello while a link is up means that the peer lost that link: the new one replaces it.
//! - A higher incarnation ends everything of the former one; a lower one is refused.
//! - A peer that is known to have moved is contacted again. Its queue goes to the node of its name
//!   at the new address.

use std::time::Duration;

use crate::id::Incarnation;
use crate::net::{LinkError, RefuseReason};
use crate::random::SplitMix;

/// A connection to this peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Conn {
    /// Opened by this side, with the number of the attempt.
    Dialled(u64),
    /// Accepted by the endpoint, with its own number.
    Accepted(u64),
}

/// An input of the state machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ConnectionEvent {
    /// A frame was queued.
    SendRequested,
    /// A hello arrived over an accepted connection and matches the certificate and the grid.
    Hello { conn: Conn, incarnation: Incarnation, dial: u64 },
    /// The peer welcomed this side's attempt.
    Welcomed { dial: u64, incarnation: Incarnation, dials: u64 },
    /// This side's attempt failed. `fatal`: a retry would fail as well.
    Failed { dial: u64, why: LinkError, fatal: bool },
    /// A connection was lost. `orderly`: the peer said goodbye. `pending`: frames are queued.
    Lost { conn: Conn, why: LinkError, orderly: bool, pending: bool },
    /// The delay of `Action::Retry` is over.
    Retry { serial: u64, pending: bool },
    /// The user wants no link to this peer.
    Forget,
    /// The user reported a new address of the peer, or (`incarnation`) a later incarnation. `up`:
    /// the link that was up at that time. `pending`: frames are queued.
    Moved { up: Option<Conn>, incarnation: Option<Incarnation>, pending: bool },
}

/// An output of the state machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ConnectionAction {
    /// Open a connection and send a hello with this number.
    Dial(u64),
    /// Reply to the hello with a welcome that carries `dials`, then run the link.
    Welcome { conn: Conn, dials: u64 },
    /// Reply to the hello with a refusal and close.
    Refuse { conn: Conn, reason: RefuseReason },
    /// Close an abandoned connection in any state, without a reply.
    Abandon(Conn),
    /// Send `Event::Retry` after a delay.
    Retry { after: Duration, serial: u64 },
    /// Report the link as up; frames may flow over `conn` in both directions.
    Up { conn: Conn, incarnation: Incarnation, again: bool },
    /// Report the link as down.
    Down { incarnation: Incarnation, why: LinkError },
    /// Return queued frames as undelivered.
    DropQueue,
}

/// The state of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkPhase {
    Idle,
    Dialling(u64),
    Backoff(u64),
    Up(Conn),
}

/// Longest delay between two attempts.
const BACKOFF_MAX: Duration = Duration::from_secs(2);

/// The state machine of a link to one peer.
#[derive(Debug)]
pub(super) struct LinkMachine {
    /// Whether this side's connection stays when two cross.
    own_dial_stays: bool,
    attempts_max: u32,
    backoff: Duration,
    rng: SplitMix,
    phase: LinkPhase,
    /// The peer's latest known incarnation.
    incarnation: Option<Incarnation>,
    /// A hello that waits until this side's own attempt is settled.
    parked: Option<(Conn, u64)>,
    /// Number of this side's attempts.
    dials: u64,
    /// The peer's attempts up to this number are void.
    void_up_to: u64,
    /// Number of failed attempts since the last link.
    failed: u32,
    /// Number of the current delay, to ignore timers of earlier ones.
    serial: u64,
    was_up: bool,
    /// Whether the peer is known to have moved: the queue is for any incarnation at the new
    /// address.
    moved: bool,
}

impl LinkMachine {
    pub fn new(own_dial_stays: bool, attempts_max: u32, backoff: Duration, seed: u64) -> Self {
        Self {
            own_dial_stays,
            attempts_max,
            backoff,
            rng: SplitMix(seed),
            phase: LinkPhase::Idle,
            incarnation: None,
            parked: None,
            dials: 0,
            void_up_to: 0,
            failed: 0,
            serial: 0,
            was_up: false,
            moved: false,
        }
    }

    pub fn phase(&self) -> LinkPhase {
        self.phase
    }

    pub fn incarnation(&self) -> Option<Incarnation> {
        self.incarnation
    }

    /// Forgets the peer's incarnation: the next hello sets it.
    pub fn forget_incarnation(&mut self) {
        (self.incarnation, self.void_up_to) = (None, 0);
    }

    /// This side's attempt that the parked hello of `conn` waits for.
    pub fn dial_before(&self, conn: Conn) -> Option<u64> {
        match self.phase {
            LinkPhase::Dialling(dial) if self.parked.is_some_and(|(parked, _)| parked == conn) => {
                Some(dial)
            }
            _ => None,
        }
    }

    pub fn handle(&mut self, event: ConnectionEvent) -> Vec<ConnectionAction> {
        let mut out = Vec::new();
        match event {
            ConnectionEvent::SendRequested => {
                if self.phase == LinkPhase::Idle {
                    self.dial(&mut out);
                }
            }
            ConnectionEvent::Hello { conn, incarnation, dial } => {
                self.hello(conn, incarnation, dial, &mut out);
            }
            ConnectionEvent::Welcomed { dial, incarnation, dials } => {
                self.welcomed(dial, incarnation, dials, &mut out);
            }
            ConnectionEvent::Failed { dial, why, fatal } => {
                if self.phase == LinkPhase::Dialling(dial) {
                    self.phase = LinkPhase::Idle;
                    match self.parked.take() {
                        Some((conn, dial)) => self.welcome(conn, dial, &mut out),
                        None => self.attempt_failed(why, fatal, &mut out),
                    }
                }
            }
            ConnectionEvent::Lost { conn, why, orderly, pending } => {
                if self.parked.is_some_and(|(parked, _)| parked == conn) {
                    self.parked = None;
                }
                if self.phase == LinkPhase::Up(conn) {
                    self.phase = LinkPhase::Idle;
                    self.down(why, &mut out);
                    if orderly {
                        out.push(ConnectionAction::DropQueue);
                    } else if pending {
                        self.back_off(&mut out);
                    }
                }
            }
            ConnectionEvent::Retry { serial, pending } => {
                if self.phase == LinkPhase::Backoff(serial) {
                    self.phase = LinkPhase::Idle;
                    if pending {
                        self.dial(&mut out);
                    }
                }
            }
            ConnectionEvent::Forget => {
                self.drop_parked(&mut out);
                match self.phase {
                    LinkPhase::Up(conn) => {
                        out.push(ConnectionAction::Abandon(conn));
                        self.down("the node was forgotten".into(), &mut out);
                    }
                    LinkPhase::Dialling(dial) => {
                        out.push(ConnectionAction::Abandon(Conn::Dialled(dial)))
                    }
                    LinkPhase::Idle | LinkPhase::Backoff(_) => {}
                }
                self.phase = LinkPhase::Idle;
                self.failed = 0;
                self.moved = false;
                out.push(ConnectionAction::DropQueue);
            }
            ConnectionEvent::Moved { up, incarnation, pending } => {
                self.peer_moved(up, incarnation, pending, &mut out)
            }
        }
        out
    }

    /// Ends everything at the former address or of the former incarnation. The queue is kept for
    /// the new one.
    fn peer_moved(
        &mut self,
        up: Option<Conn>,
        incarnation: Option<Incarnation>,
        pending: bool,
        out: &mut Vec<ConnectionAction>,
    ) {
        let newer = incarnation
            .is_some_and(|incarnation| self.incarnation.is_some_and(|known| known < incarnation));
        match self.phase {
            // A link that came up after the report stays, unless its incarnation is outdated.
            LinkPhase::Up(conn) if newer || up == Some(conn) => {
                out.push(ConnectionAction::Abandon(conn));
                self.phase = LinkPhase::Idle;
                self.down("the node is now elsewhere".into(), out);
            }
            LinkPhase::Up(_) => return,
            LinkPhase::Dialling(dial) => out.push(ConnectionAction::Abandon(Conn::Dialled(dial))),
            LinkPhase::Idle | LinkPhase::Backoff(_) => {}
        }
        self.phase = LinkPhase::Idle;
        self.failed = 0;
        if newer {
            self.drop_parked(out);
            self.incarnation = incarnation;
            self.void_up_to = 0;
        }
        if let Some((conn, dial)) = self.parked.take() {
            return self.welcome(conn, dial, out);
        }
        self.moved = true;
        if pending {
            self.dial(out);
        }
    }

    fn hello(
        &mut self,
        conn: Conn,
        incarnation: Incarnation,
        dial: u64,
        out: &mut Vec<ConnectionAction>,
    ) {
        if self.incarnation.is_some_and(|known| incarnation < known) {
            out.push(ConnectionAction::Refuse { conn, reason: RefuseReason::StaleIncarnation });
            return;
        }
        self.set_incarnation(incarnation, out);
        if dial <= self.void_up_to {
            out.push(ConnectionAction::Refuse { conn, reason: RefuseReason::Crossed });
            return;
        }
        match self.phase {
            LinkPhase::Idle | LinkPhase::Backoff(_) => {}
            LinkPhase::Up(old) => {
                out.push(ConnectionAction::Abandon(old));
                self.down("the peer opened another connection".into(), out);
            }
            LinkPhase::Dialling(_) if self.own_dial_stays => {
                self.drop_parked(out);
                self.parked = Some((conn, dial));
                return;
            }
            LinkPhase::Dialling(mine) => out.push(ConnectionAction::Abandon(Conn::Dialled(mine))),
        }
        self.welcome(conn, dial, out);
    }

    fn welcomed(
        &mut self,
        dial: u64,
        incarnation: Incarnation,
        dials: u64,
        out: &mut Vec<ConnectionAction>,
    ) {
        if self.phase != LinkPhase::Dialling(dial) {
            return; // abandoned before
        }
        if self.incarnation.is_some_and(|known| incarnation < known) {
            out.push(ConnectionAction::Abandon(Conn::Dialled(dial)));
            self.phase = LinkPhase::Idle;
            let why = "an earlier incarnation of the node answered";
            let why = LinkError::refused(RefuseReason::StaleIncarnation, why);
            self.attempt_failed(why, false, out);
            return;
        }
        self.set_incarnation(incarnation, out);
        self.drop_parked(out);
        self.void_up_to = self.void_up_to.max(dials);
        self.up(Conn::Dialled(dial), out);
    }

    /// Ends everything of an earlier incarnation of the peer. `incarnation` is not below the known
    /// one.
    fn set_incarnation(&mut self, incarnation: Incarnation, out: &mut Vec<ConnectionAction>) {
        if self.incarnation == Some(incarnation) {
            return;
        }
        self.drop_parked(out);
        if let LinkPhase::Up(conn) = self.phase {
            out.push(ConnectionAction::Abandon(conn));
            self.phase = LinkPhase::Idle;
            self.down("the node has a new incarnation".into(), out);
        }
        if self.incarnation.is_some() && !self.moved {
            out.push(ConnectionAction::DropQueue);
        }
        self.incarnation = Some(incarnation);
        self.void_up_to = 0;
    }

    fn welcome(&mut self, conn: Conn, dial: u64, out: &mut Vec<ConnectionAction>) {
        self.void_up_to = self.void_up_to.max(dial);
        out.push(ConnectionAction::Welcome { conn, dials: self.dials });
        self.up(conn, out);
    }

    fn up(&mut self, conn: Conn, out: &mut Vec<ConnectionAction>) {
        self.phase = LinkPhase::Up(conn);
        self.failed = 0;
        self.moved = false;
        let again = std::mem::replace(&mut self.was_up, true);
        let incarnation = self.incarnation.unwrap_or_default();
        out.push(ConnectionAction::Up { conn, incarnation, again });
    }

    fn down(&mut self, why: LinkError, out: &mut Vec<ConnectionAction>) {
        out.push(ConnectionAction::Down { incarnation: self.incarnation.unwrap_or_default(), why });
    }

    fn dial(&mut self, out: &mut Vec<ConnectionAction>) {
        self.dials += 1;
        self.phase = LinkPhase::Dialling(self.dials);
        out.push(ConnectionAction::Dial(self.dials));
    }

    fn attempt_failed(&mut self, why: LinkError, fatal: bool, out: &mut Vec<ConnectionAction>) {
        self.failed += 1;
        if fatal || self.failed >= self.attempts_max {
            self.failed = 0;
            self.moved = false;
            self.down(why, out);
            out.push(ConnectionAction::DropQueue);
        } else {
            self.back_off(out);
        }
    }

    fn back_off(&mut self, out: &mut Vec<ConnectionAction>) {
        self.serial += 1;
        self.phase = LinkPhase::Backoff(self.serial);
        let whole = self.backoff.saturating_mul(1 << self.failed.saturating_sub(1).min(16));
        let whole = whole.min(BACKOFF_MAX);
        let after = whole / 2 + (whole / 2).mul_f64(self.rng.unit());
        out.push(ConnectionAction::Retry { after, serial: self.serial });
    }

    fn drop_parked(&mut self, out: &mut Vec<ConnectionAction>) {
        if let Some((conn, _)) = self.parked.take() {
            out.push(ConnectionAction::Refuse { conn, reason: RefuseReason::Crossed });
        }
    }
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
