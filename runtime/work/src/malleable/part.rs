//! A process in a configuration: its state, and its actions at and between adaptation points.
//!
//! It knows neither whether it is the root's process nor who decides.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::program::Program;
use crate::meter::{Load, LoadReader, LoadSample};
use crate::spmd::local_process::PointAction;
use crate::spmd::message::{
    CollectiveAction, Configuration, Invitation, ProcessMessage, StateSource,
};
use crate::spmd::{Comm, MESSAGE_MAX, ProcessHandle, SAVE, StepRate};
use crate::wire::{self, WireError};
use crate::work::{Outcome, Stop};

/// The longest whole state that is saved, in bytes: the limit of a message without a checkpoint's
/// header.
pub const SAVED_MAX: usize = MESSAGE_MAX - (64 << 10);

/// The interval at which a process reports its speed.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// A computing process.
pub(super) struct ComputeProcess<'c, P: Program> {
    program: &'c P,
    at: ProcessHandle<'c>,
    pub(super) configuration: Arc<Configuration>,
    pub(super) layout: P::Layout,
    comm: Comm<'c>,
    pub(super) state: P::State,
    /// The number of completed steps.
    pub(super) point: u64,
    watch: PeriodMeasurements,
}

/// Measurements since the last report to the root.
struct PeriodMeasurements {
    since: Instant,
    busy: Duration,
    steps: u32,
    probe: Option<(LoadReader, LoadSample)>,
}

/// The result of an operation of all processes.
pub(super) enum StepResult<T> {
    /// Its value.
    Done(T),
    /// The configuration has ended, and the state of this process is invalid.
    Ended,
}

/// The result of an adaptation point.
pub(super) enum PointResult {
    /// Continue with the next step.
    Go,
    /// The state was saved. The root gets the whole of it.
    Saved(Option<Whole>),
    /// The root decides at this point.
    Decide,
    /// The configuration has changed, and this process is in the new one.
    Changed,
    /// The configuration has changed, and this process is not in the new one.
    Free,
}

/// The whole state, on the root.
pub(super) enum Whole {
    /// The encoded state.
    State(Bytes),
    /// The state is too long to be saved: at least this many bytes.
    TooLong(u64),
}

/// Converts the result of program code: an error after the end of the configuration is ignored.
fn checked<T>(at: &ProcessHandle<'_>, result: Result<T, Stop>) -> Result<StepResult<T>, Stop> {
    // A halt comes first, for it stops the process and not only its configuration.
    at.cx.check()?;
    match result {
        _ if at.has_ended() => Ok(StepResult::Ended),
        Ok(value) => Ok(StepResult::Done(value)),
        Err(stop) => Err(stop),
    }
}

/// The layout of a single process, which holds the whole state.
pub(super) fn whole<P: Program>(program: &P) -> P::Layout {
    program.layout(&[Default::default()], None)
}

impl<'c, P: Program> ComputeProcess<'c, P> {
    /// Enters a configuration. The pieces of its state are on their way, or come from this process.
    pub(super) fn enter(
        program: &'c P,
        at: ProcessHandle<'c>,
        recruit: Invitation,
    ) -> Result<StepResult<Self>, Stop> {
        let Invitation { configuration, origin, point } = recruit;
        let configuration = Arc::new(configuration);
        at.with_process(|local| local.enter(configuration.clone(), point));
        let layout: P::Layout = wire::decode_payload(&configuration.layout)?;
        let comm = Comm::new(at.clone(), configuration.clone());
        let made = match origin {
            StateSource::Start => program.start(&layout, &comm),
            StateSource::From { givers, layout: before } => {
                let before: P::Layout = wire::decode_payload(&before)?;
                match at.pieces(configuration.generation, givers)? {
                    Some(pieces) => program.join_state(&pieces, &before, (&layout, comm.rank())),
                    None => return Ok(StepResult::Ended),
                }
            }
        };
        let state = match checked(&at, made)? {
            StepResult::Done(state) => state,
            StepResult::Ended => return Ok(StepResult::Ended),
        };
        at.send_to_root(ProcessMessage::Whole {
            process: at.process,
            generation: configuration.generation,
        });
        comm.take_waited();
        let now = Instant::now();
        let probe = at.cx.is_real().then(|| {
            let probe = LoadReader::new();
            let sample = probe.sample(now);
            (probe, sample)
        });
        let watch = PeriodMeasurements { since: now, busy: Duration::ZERO, steps: 0, probe };
        Ok(StepResult::Done(Self { program, at, configuration, layout, comm, state, point, watch }))
    }

    /// Handles an adaptation point, and executes an action agreed for it.
    pub(super) fn arrive(&mut self) -> Result<StepResult<PointResult>, Stop> {
        let point = self.point;
        loop {
            match self.at.with_process(|local| local.arrive(point)).unwrap_or(PointAction::Ended) {
                PointAction::Continue => return checked(&self.at, Ok(PointResult::Go)),
                PointAction::Ended => return checked(&self.at, Ok(PointResult::Free)),
                PointAction::Hold => {
                    let ready =
                        || !self.at.with_process(|local| local.holds(point)).unwrap_or(false);
                    self.at.wait(false, &ready)?;
                }
                PointAction::Execute(CollectiveAction::Decide) => {
                    return checked(&self.at, Ok(PointResult::Decide));
                }
                PointAction::Execute(CollectiveAction::Continue) => {}
                PointAction::Execute(CollectiveAction::Save) => return self.save(),
                PointAction::Execute(CollectiveAction::Change(next)) => return self.change(next),
            }
        }
    }

    /// Collects the whole state on rank 0, or only its length if it is too long. Each process first
    /// sends the length of its piece.
    fn save(&self) -> Result<StepResult<PointResult>, Stop> {
        let whole = whole(self.program);
        let limit = P::SAVED_MAX.min(SAVED_MAX) as u64;
        let fits = |len: u64| len <= limit;
        let given = || {
            let piece = self.program.split_state(
                &self.state,
                (&self.layout, self.comm.rank()),
                (&whole, 0),
            )?;
            let len = piece.len() as u64;
            self.comm.put(0, SAVE, wire::encode_payload(&len)?)?;
            if fits(len) {
                self.comm.put(0, SAVE, piece)?;
            }
            if self.comm.rank() != 0 {
                return Ok(PointResult::Saved(None));
            }
            let (mut pieces, mut total) = (Vec::new(), 0u64);
            for from in 0..self.comm.size() {
                let len: u64 = wire::decode_payload(&self.comm.get(from, SAVE)?)?;
                total = total.saturating_add(len);
                if fits(len) {
                    let piece = self.comm.get(from, SAVE)?;
                    // No piece of a state that is too long is kept.
                    if total <= limit {
                        pieces.push(piece);
                    }
                }
            }
            if total > limit || pieces.len() < self.comm.size() as usize {
                return Ok(PointResult::Saved(Some(Whole::TooLong(total))));
            }
            let state = self.program.join_state(&pieces, &self.layout, (&whole, 0))?;
            Ok(PointResult::Saved(Some(Self::encoded(&state)?)))
        };
        checked(&self.at, given())
    }

    /// The whole state of the only process.
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

    /// Redistributes the state over the processes of the next configuration.
    fn change(&mut self, next: Configuration) -> Result<StepResult<PointResult>, Stop> {
        let layout: P::Layout = wire::decode_payload(&next.layout)?;
        let rank = self.comm.rank();
        let give = || {
            for to in 0..next.size() {
                let piece =
                    self.program.split_state(&self.state, (&self.layout, rank), (&layout, to))?;
                self.at.give(&next, rank, to, piece)?;
            }
            Ok(())
        };
        if let StepResult::Ended = checked(&self.at, give())? {
            return Ok(StepResult::Ended);
        }
        if next.rank_of(self.at.process).is_none() {
            // Its node may leave now, so its reports must have arrived.
            self.at.wait_for_acks(false)?;
            self.at.with_process(|local| local.leave());
            return Ok(StepResult::Done(PointResult::Free));
        }
        let origin = StateSource::From {
            givers: self.configuration.size(),
            layout: self.configuration.layout.clone(),
        };
        let recruit = Invitation { configuration: next, origin, point: self.point };
        match Self::enter(self.program, self.at.clone(), recruit)? {
            StepResult::Done(part) => *self = part,
            StepResult::Ended => return Ok(StepResult::Ended),
        }
        Ok(StepResult::Done(PointResult::Changed))
    }

    /// Whether all steps are complete.
    pub(super) fn is_over(&self) -> bool {
        self.point >= self.program.steps()
    }

    /// Executes the step to the next adaptation point.
    pub(super) fn step(&mut self) -> Result<StepResult<()>, Stop> {
        self.comm.take_waited();
        let began = Instant::now();
        let done = self.program.step(&mut self.state, self.point, &self.layout, &self.comm);
        if let StepResult::Ended = checked(&self.at, done)? {
            return Ok(StepResult::Ended);
        }
        self.point += 1;
        let now = Instant::now();
        let took = now.saturating_duration_since(began);
        self.watch.busy += took.saturating_sub(self.comm.take_waited());
        self.watch.steps += 1;
        if now.saturating_duration_since(self.watch.since) >= REPORT_INTERVAL {
            self.report_pace(now);
        }
        Ok(StepResult::Done(()))
    }

    fn report_pace(&mut self, now: Instant) {
        let watch = &mut self.watch;
        let step_s = watch.busy.as_secs_f64() / f64::from(watch.steps.max(1));
        let foreign = watch.probe.as_mut().and_then(|(probe, before)| {
            let sample = probe.sample(now);
            let load = Load::between(before, &sample);
            *before = sample;
            load.foreign_cpu_share
        });
        (watch.since, watch.busy, watch.steps) = (now, Duration::ZERO, 0);
        let (process, generation) = (self.at.process, self.configuration.generation);
        let pace = StepRate { step_s, foreign };
        self.at.send_to_root(ProcessMessage::Going { process, generation, pace });
    }

    /// Ends the program after the last step. The root learns of it once all reports have arrived.
    pub(super) fn finish(self) -> Result<StepResult<Outcome>, Stop> {
        let outcome = self.program.finish(self.state, &self.layout, &self.comm);
        let StepResult::Done(outcome) = checked(&self.at, outcome)? else {
            return Ok(StepResult::Ended);
        };
        self.at.wait_for_acks(true)?;
        let (process, generation) = (self.at.process, self.configuration.generation);
        self.at.send_to_root(ProcessMessage::Done { process, generation });
        Ok(StepResult::Done(outcome))
    }
}
