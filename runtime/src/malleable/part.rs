//! One process's part in a configuration: its state, and what it does at and between adaptation points.
//!
//! Must not know whether it is the root's process, nor who decides what.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::program::Program;
use crate::meter::{Load, Probe, Sample};
use crate::spmd::message::{Deed, Origin, Recruit, Roster, Word};
use crate::spmd::seat::AtPoint;
use crate::spmd::{Comm, MESSAGE_MAX, Pace, SAVE, Station};
use crate::wire::{self, WireError};
use crate::work::{Outcome, Stop};

/// The longest whole state that is saved, in bytes: what a message may hold, less what a checkpoint has around it.
pub const SAVED_MAX: usize = MESSAGE_MAX - (64 << 10);

/// How often a process tells how fast it goes.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// A process that computes.
pub(super) struct Part<'c, P: Program> {
    program: &'c P,
    at: Station<'c>,
    pub(super) roster: Arc<Roster>,
    pub(super) layout: P::Layout,
    comm: Comm<'c>,
    pub(super) state: P::State,
    /// Steps done.
    pub(super) point: u64,
    watch: Watch,
}

/// What is measured between two words to the root.
struct Watch {
    since: Instant,
    busy: Duration,
    steps: u32,
    probe: Option<(Probe, Sample)>,
}

/// What comes of something that all processes do together.
pub(super) enum Met<T> {
    /// This.
    Done(T),
    /// The configuration is over: what this process has is no state any more.
    Torn,
}

/// What was met at an adaptation point.
pub(super) enum Point {
    /// The next step comes.
    Go,
    /// The state was saved; the whole of it is the root's.
    Saved(Option<Whole>),
    /// A new configuration holds, with this process in it.
    Changed,
    /// A new configuration holds, without this process.
    Free,
}

/// The whole state, at the root.
pub(super) enum Whole {
    /// Encoded.
    State(Bytes),
    /// It has at least so many bytes, over what can be saved.
    TooLong(u64),
}

/// The result of a program's own code, or of messages within it: an error of a configuration that is over is none.
fn met<T>(at: &Station<'_>, result: Result<T, Stop>) -> Result<Met<T>, Stop> {
    // A halt comes first: it stops the process, and not its configuration alone.
    at.cx.check()?;
    match result {
        _ if at.is_torn() => Ok(Met::Torn),
        Ok(value) => Ok(Met::Done(value)),
        Err(stop) => Err(stop),
    }
}

/// The layout of one process, under which a state is whole.
pub(super) fn whole<P: Program>(program: &P) -> P::Layout {
    program.layout(&[Default::default()], None)
}

impl<'c, P: Program> Part<'c, P> {
    /// Takes part in a configuration. Pieces of state are on their way, or were sent by this process itself.
    pub(super) fn enter(
        program: &'c P,
        at: Station<'c>,
        recruit: Recruit,
    ) -> Result<Met<Self>, Stop> {
        let Recruit { roster, origin, point } = recruit;
        let roster = Arc::new(roster);
        at.seat(|seat| seat.enter(roster.clone(), point));
        let layout: P::Layout = wire::decode_payload(&roster.layout)?;
        let comm = Comm::new(at.clone(), roster.clone());
        let made = match origin {
            Origin::Start => program.start(&layout, &comm),
            Origin::From { givers, layout: before } => {
                let before: P::Layout = wire::decode_payload(&before)?;
                match at.pieces(roster.generation, givers)? {
                    Some(pieces) => program.take(&pieces, &before, (&layout, comm.rank())),
                    None => return Ok(Met::Torn),
                }
            }
        };
        let state = match met(&at, made)? {
            Met::Done(state) => state,
            Met::Torn => return Ok(Met::Torn),
        };
        at.tell_root(Word::Whole { process: at.process, generation: roster.generation });
        comm.take_waited();
        let now = Instant::now();
        let probe = at.cx.is_real().then(|| {
            let probe = Probe::new();
            let sample = probe.sample(now);
            (probe, sample)
        });
        let watch = Watch { since: now, busy: Duration::ZERO, steps: 0, probe };
        Ok(Met::Done(Self { program, at, roster, layout, comm, state, point, watch }))
    }

    /// At an adaptation point: does what was agreed for it.
    pub(super) fn arrive(&mut self) -> Result<Met<Point>, Stop> {
        let point = self.point;
        loop {
            match self.at.seat(|seat| seat.arrive(point)).unwrap_or(AtPoint::Torn) {
                AtPoint::Go => return met(&self.at, Ok(Point::Go)),
                AtPoint::Torn => return met(&self.at, Ok(Point::Free)),
                AtPoint::Hold => {
                    let ready = || !self.at.seat(|seat| seat.holds(point)).unwrap_or(false);
                    self.at.wait(false, &ready)?;
                }
                AtPoint::Do(Deed::Save) => return self.save(),
                AtPoint::Do(Deed::Change(next)) => return self.change(next),
            }
        }
    }

    /// Rank 0 gets the whole state, or its length, if it is too long for that. Each process says first how long its piece is.
    fn save(&self) -> Result<Met<Point>, Stop> {
        let whole = whole(self.program);
        let most = P::SAVED_MAX.min(SAVED_MAX) as u64;
        let fits = |len: u64| len <= most;
        let given = || {
            let piece =
                self.program.give(&self.state, (&self.layout, self.comm.rank()), (&whole, 0))?;
            let len = piece.len() as u64;
            self.comm.put(0, SAVE, wire::encode_payload(&len)?)?;
            if fits(len) {
                self.comm.put(0, SAVE, piece)?;
            }
            if self.comm.rank() != 0 {
                return Ok(Point::Saved(None));
            }
            let (mut pieces, mut total) = (Vec::new(), 0u64);
            for from in 0..self.comm.size() {
                let len: u64 = wire::decode_payload(&self.comm.get(from, SAVE)?)?;
                total = total.saturating_add(len);
                if fits(len) {
                    let piece = self.comm.get(from, SAVE)?;
                    // Of what is too long as a whole nothing is kept.
                    if total <= most {
                        pieces.push(piece);
                    }
                }
            }
            if total > most || pieces.len() < self.comm.size() as usize {
                return Ok(Point::Saved(Some(Whole::TooLong(total))));
            }
            let state = self.program.take(&pieces, &self.layout, (&whole, 0))?;
            Ok(Point::Saved(Some(Self::encoded(&state)?)))
        };
        met(&self.at, given())
    }

    /// The state of the only process, which is whole.
    pub(super) fn whole_state(&self) -> Result<Whole, Stop> {
        Self::encoded(&self.state)
    }

    fn encoded(state: &P::State) -> Result<Whole, Stop> {
        match wire::encode_payload(state) {
            Ok(state) if state.len() > P::SAVED_MAX.min(SAVED_MAX) => {
                Ok(Whole::TooLong(state.len() as u64))
            }
            Ok(state) => Ok(Whole::State(state)),
            Err(WireError::TooLong { len, .. }) => Ok(Whole::TooLong(len as u64)),
            Err(error) => Err(error.into()),
        }
    }

    /// The state is dealt out over the processes of the next configuration.
    fn change(&mut self, next: Roster) -> Result<Met<Point>, Stop> {
        let layout: P::Layout = wire::decode_payload(&next.layout)?;
        let rank = self.comm.rank();
        let give = || {
            for to in 0..next.size() {
                let piece = self.program.give(&self.state, (&self.layout, rank), (&layout, to))?;
                self.at.give(&next, rank, to, piece)?;
            }
            Ok(())
        };
        if let Met::Torn = met(&self.at, give())? {
            return Ok(Met::Torn);
        }
        if next.rank_of(self.at.process).is_none() {
            // Its node may leave now, and what it reported must not be on its way then.
            self.at.heard(false)?;
            self.at.seat(|seat| seat.rise());
            return Ok(Met::Done(Point::Free));
        }
        let origin =
            Origin::From { givers: self.roster.size(), layout: self.roster.layout.clone() };
        let recruit = Recruit { roster: next, origin, point: self.point };
        match Self::enter(self.program, self.at.clone(), recruit)? {
            Met::Done(part) => *self = part,
            Met::Torn => return Ok(Met::Torn),
        }
        Ok(Met::Done(Point::Changed))
    }

    /// Whether all steps are done.
    pub(super) fn is_over(&self) -> bool {
        self.point >= self.program.steps()
    }

    /// The step to the next adaptation point.
    pub(super) fn step(&mut self) -> Result<Met<()>, Stop> {
        self.comm.take_waited();
        let began = Instant::now();
        let done = self.program.step(&mut self.state, self.point, &self.layout, &self.comm);
        if let Met::Torn = met(&self.at, done)? {
            return Ok(Met::Torn);
        }
        self.point += 1;
        let now = Instant::now();
        let took = now.saturating_duration_since(began);
        self.watch.busy += took.saturating_sub(self.comm.take_waited());
        self.watch.steps += 1;
        if now.saturating_duration_since(self.watch.since) >= TELL_EVERY {
            self.tell_pace(now);
        }
        Ok(Met::Done(()))
    }

    fn tell_pace(&mut self, now: Instant) {
        let watch = &mut self.watch;
        let step_s = watch.busy.as_secs_f64() / f64::from(watch.steps.max(1));
        let foreign = watch.probe.as_mut().and_then(|(probe, before)| {
            let sample = probe.sample(now);
            let load = Load::between(before, &sample);
            *before = sample;
            load.foreign_cpu_share
        });
        (watch.since, watch.busy, watch.steps) = (now, Duration::ZERO, 0);
        let (process, generation) = (self.at.process, self.roster.generation);
        let pace = Pace { step_s, foreign };
        self.at.tell_root(Word::Going { process, generation, pace });
    }

    /// After the last step. The root knows of it when all that was reported here is there.
    pub(super) fn finish(self) -> Result<Met<Outcome>, Stop> {
        let outcome = self.program.finish(self.state, &self.layout, &self.comm);
        let Met::Done(outcome) = met(&self.at, outcome)? else { return Ok(Met::Torn) };
        self.at.heard(true)?;
        let (process, generation) = (self.at.process, self.roster.generation);
        self.at.tell_root(Word::Done { process, generation });
        Ok(Met::Done(outcome))
    }
}
