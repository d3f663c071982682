//! When to dial, whom to welcome, which of two crossed connections stays: one peer's link as a state machine without I/O.
//!
//! Must not know sockets or timers: events in, actions out. Rules:
//! - Two connections opened at once: the one that the smaller node name dialled stays. The larger welcomes it and gives
//!   its own dial up; the smaller parks the other's hello until its own dial is settled, so that neither is left without.
//! - Dials are numbered in each life. A welcome makes void all dials of both sides so far, so that a hello that comes late
//!   cannot replace a link that was made after it.
//! - A valid hello while a link is up says that the peer lost that link: the new one replaces it.
//! - A higher incarnation ends all that concerned the former life; a lower one is refused.
//! - A peer that is known to have moved is dialled anew, and what waits goes to whoever answers under its name there.

use std::time::Duration;

use crate::id::Incarnation;
use crate::net::{RefuseReason, Why};
use crate::random::SplitMix;

/// A connection, from this peer's link's view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Conn {
    /// Dialled by this side, by the number of the dial.
    Ours(u64),
    /// Accepted, numbered by the endpoint.
    Theirs(u64),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// Something waits to be sent.
    Wanted,
    /// A hello, checked against certificate and grid, came over an accepted connection.
    Hello { conn: Conn, incarnation: Incarnation, dial: u64 },
    /// This side's dial was welcomed.
    Welcomed { dial: u64, incarnation: Incarnation, dials: u64 },
    /// This side's dial failed. `fatal`: to try again would fail again.
    Failed { dial: u64, why: Why, fatal: bool },
    /// A connection is gone. `orderly`: the peer said goodbye. `wanted`: something waits to be sent.
    Lost { conn: Conn, why: Why, orderly: bool, wanted: bool },
    /// The wait that `Action::Retry` asked for is over.
    Retry { serial: u64, wanted: bool },
    /// The user wants no link to this peer.
    Forget,
    /// The user was told that the peer lives elsewhere, or (`life`) that it began a later life. `up`: the link that stood
    /// when that was told. `wanted`: something waits to be sent.
    Moved { up: Option<Conn>, life: Option<Incarnation>, wanted: bool },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Open a connection and send a hello with this number.
    Dial(u64),
    /// Answer the hello with a welcome that carries `dials`, then run the link.
    Welcome { conn: Conn, dials: u64 },
    /// Answer the hello with a refusal and close.
    Refuse { conn: Conn, reason: RefuseReason },
    /// Close a connection that is given up, whatever its state, without an answer.
    Abandon(Conn),
    /// Come back with `Event::Retry` after a wait.
    Retry { after: Duration, serial: u64 },
    /// Tell the user; frames may flow over `conn` both ways.
    Up { conn: Conn, incarnation: Incarnation, again: bool },
    /// Tell the user.
    Down { incarnation: Incarnation, why: Why },
    /// Give back what waits to be sent.
    DropQueue,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Idle,
    Dialling(u64),
    Backoff(u64),
    Up(Conn),
}

/// Longest wait between two attempts.
const BACKOFF_MAX: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct Machine {
    /// Whether this side's dial stays when two cross.
    mine_stays: bool,
    attempts_max: u32,
    backoff: Duration,
    rng: SplitMix,
    phase: Phase,
    /// The peer's latest known life.
    incarnation: Option<Incarnation>,
    /// A hello that waits until this side's own dial is settled.
    parked: Option<(Conn, u64)>,
    /// This side's dials so far.
    dials: u64,
    /// The peer's dials up to this one are void.
    void: u64,
    /// Attempts since the last link.
    failed: u32,
    /// Tells one wait from the next.
    serial: u64,
    was_up: bool,
    /// The peer is known to have moved: what waits is for whoever answers there, a later life too.
    moved: bool,
}

impl Machine {
    pub fn new(mine_stays: bool, attempts_max: u32, backoff: Duration, seed: u64) -> Self {
        Self {
            mine_stays,
            attempts_max,
            backoff,
            rng: SplitMix(seed),
            phase: Phase::Idle,
            incarnation: None,
            parked: None,
            dials: 0,
            void: 0,
            failed: 0,
            serial: 0,
            was_up: false,
            moved: false,
        }
    }

    pub fn phase(&self) -> Phase {
        self.phase
    }

    pub fn incarnation(&self) -> Option<Incarnation> {
        self.incarnation
    }

    /// Forgets the peer's incarnation: the next that says hello is the first.
    pub fn forget_incarnation(&mut self) {
        (self.incarnation, self.void) = (None, 0);
    }

    /// This side's dial that a hello over `conn` waits for.
    pub fn dial_before(&self, conn: Conn) -> Option<u64> {
        match self.phase {
            Phase::Dialling(dial) if self.parked.is_some_and(|(parked, _)| parked == conn) => {
                Some(dial)
            }
            _ => None,
        }
    }

    pub fn handle(&mut self, event: Event) -> Vec<Action> {
        let mut out = Vec::new();
        match event {
            Event::Wanted => {
                if self.phase == Phase::Idle {
                    self.dial(&mut out);
                }
            }
            Event::Hello { conn, incarnation, dial } => {
                self.hello(conn, incarnation, dial, &mut out);
            }
            Event::Welcomed { dial, incarnation, dials } => {
                self.welcomed(dial, incarnation, dials, &mut out);
            }
            Event::Failed { dial, why, fatal } => {
                if self.phase == Phase::Dialling(dial) {
                    self.phase = Phase::Idle;
                    match self.parked.take() {
                        Some((conn, dial)) => self.welcome(conn, dial, &mut out),
                        None => self.attempt_failed(why, fatal, &mut out),
                    }
                }
            }
            Event::Lost { conn, why, orderly, wanted } => {
                if self.parked.is_some_and(|(parked, _)| parked == conn) {
                    self.parked = None;
                }
                if self.phase == Phase::Up(conn) {
                    self.phase = Phase::Idle;
                    self.down(why, &mut out);
                    if orderly {
                        out.push(Action::DropQueue);
                    } else if wanted {
                        self.back_off(&mut out);
                    }
                }
            }
            Event::Retry { serial, wanted } => {
                if self.phase == Phase::Backoff(serial) {
                    self.phase = Phase::Idle;
                    if wanted {
                        self.dial(&mut out);
                    }
                }
            }
            Event::Forget => {
                self.drop_parked(&mut out);
                match self.phase {
                    Phase::Up(conn) => {
                        out.push(Action::Abandon(conn));
                        self.down("the node was forgotten".into(), &mut out);
                    }
                    Phase::Dialling(dial) => out.push(Action::Abandon(Conn::Ours(dial))),
                    Phase::Idle | Phase::Backoff(_) => {}
                }
                self.phase = Phase::Idle;
                self.failed = 0;
                self.moved = false;
                out.push(Action::DropQueue);
            }
            Event::Moved { up, life, wanted } => self.peer_moved(up, life, wanted, &mut out),
        }
        out
    }

    /// Ends what stands with the place, or the life, that the peer has left; what waits is kept and goes to the new one.
    fn peer_moved(
        &mut self,
        up: Option<Conn>,
        life: Option<Incarnation>,
        wanted: bool,
        out: &mut Vec<Action>,
    ) {
        let newer = life.is_some_and(|life| self.incarnation.is_some_and(|known| known < life));
        match self.phase {
            // A link that came up since is not of the past, unless its life is.
            Phase::Up(conn) if newer || up == Some(conn) => {
                out.push(Action::Abandon(conn));
                self.phase = Phase::Idle;
                self.down("the node is now elsewhere".into(), out);
            }
            Phase::Up(_) => return,
            Phase::Dialling(dial) => out.push(Action::Abandon(Conn::Ours(dial))),
            Phase::Idle | Phase::Backoff(_) => {}
        }
        self.phase = Phase::Idle;
        self.failed = 0;
        if newer {
            self.drop_parked(out);
            self.incarnation = life;
            self.void = 0;
        }
        if let Some((conn, dial)) = self.parked.take() {
            return self.welcome(conn, dial, out);
        }
        self.moved = true;
        if wanted {
            self.dial(out);
        }
    }

    fn hello(&mut self, conn: Conn, life: Incarnation, dial: u64, out: &mut Vec<Action>) {
        if self.incarnation.is_some_and(|known| life < known) {
            out.push(Action::Refuse { conn, reason: RefuseReason::StaleIncarnation });
            return;
        }
        self.new_life(life, out);
        if dial <= self.void {
            out.push(Action::Refuse { conn, reason: RefuseReason::Crossed });
            return;
        }
        match self.phase {
            Phase::Idle | Phase::Backoff(_) => {}
            Phase::Up(old) => {
                out.push(Action::Abandon(old));
                self.down("the peer opened another connection".into(), out);
            }
            Phase::Dialling(_) if self.mine_stays => {
                self.drop_parked(out);
                self.parked = Some((conn, dial));
                return;
            }
            Phase::Dialling(mine) => out.push(Action::Abandon(Conn::Ours(mine))),
        }
        self.welcome(conn, dial, out);
    }

    fn welcomed(&mut self, dial: u64, life: Incarnation, dials: u64, out: &mut Vec<Action>) {
        if self.phase != Phase::Dialling(dial) {
            return; // abandoned before
        }
        if self.incarnation.is_some_and(|known| life < known) {
            out.push(Action::Abandon(Conn::Ours(dial)));
            self.phase = Phase::Idle;
            let why = "an earlier incarnation of the node answered";
            let why = Why::refused(RefuseReason::StaleIncarnation, why);
            self.attempt_failed(why, false, out);
            return;
        }
        self.new_life(life, out);
        self.drop_parked(out);
        self.void = self.void.max(dials);
        self.up(Conn::Ours(dial), out);
    }

    /// What concerned an earlier life of the peer ends. `life` is not below the known one.
    fn new_life(&mut self, life: Incarnation, out: &mut Vec<Action>) {
        if self.incarnation == Some(life) {
            return;
        }
        self.drop_parked(out);
        if let Phase::Up(conn) = self.phase {
            out.push(Action::Abandon(conn));
            self.phase = Phase::Idle;
            self.down("the node began a new life".into(), out);
        }
        if self.incarnation.is_some() && !self.moved {
            out.push(Action::DropQueue);
        }
        self.incarnation = Some(life);
        self.void = 0;
    }

    fn welcome(&mut self, conn: Conn, dial: u64, out: &mut Vec<Action>) {
        self.void = self.void.max(dial);
        out.push(Action::Welcome { conn, dials: self.dials });
        self.up(conn, out);
    }

    fn up(&mut self, conn: Conn, out: &mut Vec<Action>) {
        self.phase = Phase::Up(conn);
        self.failed = 0;
        self.moved = false;
        let again = std::mem::replace(&mut self.was_up, true);
        let incarnation = self.incarnation.unwrap_or_default();
        out.push(Action::Up { conn, incarnation, again });
    }

    fn down(&mut self, why: Why, out: &mut Vec<Action>) {
        out.push(Action::Down { incarnation: self.incarnation.unwrap_or_default(), why });
    }

    fn dial(&mut self, out: &mut Vec<Action>) {
        self.dials += 1;
        self.phase = Phase::Dialling(self.dials);
        out.push(Action::Dial(self.dials));
    }

    fn attempt_failed(&mut self, why: Why, fatal: bool, out: &mut Vec<Action>) {
        self.failed += 1;
        if fatal || self.failed >= self.attempts_max {
            self.failed = 0;
            self.moved = false;
            self.down(why, out);
            out.push(Action::DropQueue);
        } else {
            self.back_off(out);
        }
    }

    fn back_off(&mut self, out: &mut Vec<Action>) {
        self.serial += 1;
        self.phase = Phase::Backoff(self.serial);
        let whole = self.backoff.saturating_mul(1 << self.failed.saturating_sub(1).min(16));
        let whole = whole.min(BACKOFF_MAX);
        let after = whole / 2 + (whole / 2).mul_f64(self.rng.unit());
        out.push(Action::Retry { after, serial: self.serial });
    }

    fn drop_parked(&mut self, out: &mut Vec<Action>) {
        if let Some((conn, _)) = self.parked.take() {
            out.push(Action::Refuse { conn, reason: RefuseReason::Crossed });
        }
    }
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
