//! `run --sequential`: runs the job in this process, on one thread, without a grid.
//!
//! This module does not know the presentation of runs.

use std::thread;

use springtide_actors::job::{JobParams, NoteKind};
use springtide_cli::exit::{Exit, Failed};
use springtide_cli::run_end::RunEnd;
use springtide_runtime::work::{PhaseTimes, PoolConfig, ProgressReport, solo};
use tokio::sync::mpsc;
use tokio::time::{Instant, interval};

use crate::watch::{RunRequest, RunWatcher};

/// Capacity of the queue of notes; a full queue blocks the job.
const NOTES_MAX: usize = 64;

enum JobMessage {
    Note(Instant, ProgressReport),
    Ended(Box<Result<solo::SoloReport, solo::SoloError>>),
}

/// Runs a job. A stopped run leaves its thread running until the process ends.
///
/// # Errors
/// The run was stopped, or no thread can be created.
pub async fn run(
    order: &RunRequest,
    params: &JobParams,
    watch: &mut RunWatcher<'_>,
) -> Result<(RunEnd, Exit), Failed> {
    let (sender, mut receiver) = mpsc::channel(NOTES_MAX);
    let config = PoolConfig {
        threads: 1,
        stack_bytes: usize::try_from(params.stack_bytes).unwrap_or(usize::MAX),
        nesting_bound: params.nesting_bound,
        seed: params.seed,
        files: order.args.input_dir(),
        ..PoolConfig::default()
    };
    let (registry, job, body) = (order.registry.clone(), order.job, order.body.clone());
    let began = Instant::now();
    let work = move || {
        let notes = sender.clone();
        let note = move |note| {
            // The receiver is gone once the run was stopped.
            let _ = notes.blocking_send(JobMessage::Note(Instant::now(), note));
        };
        let ended = solo::run(registry, job, body, &config, note);
        let _ = sender.blocking_send(JobMessage::Ended(Box::new(ended)));
    };
    thread::Builder::new()
        .name("solo".to_owned())
        .spawn(work)
        .map_err(|error| Failed::failure(format!("cannot create a thread: {error}")))?;
    let mut ticks = interval(std::time::Duration::from_millis(100));
    let (mut iterations, mut phases) = (Vec::new(), PhaseTimes::default());
    let mut last = began;
    watch.talk.wait_for("running");
    loop {
        tokio::select! {
            biased;
            failed = watch.stopped() => return Err(failed),
            item = receiver.recv() => match item {
                Some(JobMessage::Note(at, ProgressReport::Iteration)) => {
                    let seconds = at.saturating_duration_since(last).as_secs_f64();
                    last = at;
                    let index = iterations.len() as u64;
                    iterations.push(seconds);
                    watch.note(NoteKind::Iteration { index, seconds });
                }
                Some(JobMessage::Note(_, ProgressReport::Phases(times))) => phases.add(&times),
                Some(JobMessage::Note(_, note)) => {
                    if let Some(kind) = kind(note) {
                        watch.note(kind);
                    }
                }
                Some(JobMessage::Ended(ended)) => {
                    let report = ended.map_err(Failed::failure)?;
                    let exit = if report.outcome.is_ok() { Exit::Ok } else { Exit::Failure };
                    return Ok((RunEnd::solo(order.job, report, iterations, phases), exit));
                }
                None => return Err(Failed::failure("the job's thread ended without a result")),
            },
            _ = ticks.tick() => watch.talk.tick(),
        }
    }
}

fn kind(note: ProgressReport) -> Option<NoteKind> {
    Some(match note {
        ProgressReport::Iteration => NoteKind::Iteration { index: 0, seconds: 0.0 },
        ProgressReport::Progress { done, total, what } => NoteKind::Progress { done, total, what },
        ProgressReport::Say { text } => NoteKind::Text { text },
        ProgressReport::Preliminary { outcome } => {
            NoteKind::Preliminary { outcome: Box::new(outcome) }
        }
        ProgressReport::Artifact { name, bytes } => NoteKind::Artifact { name, bytes },
        ProgressReport::ClientMessage { body } => NoteKind::Message { body },
        ProgressReport::Output { rank, attempt, processes, stream, bytes } => {
            NoteKind::Output { rank, attempt, processes, stream, bytes }
        }
        // No other node could continue from it.
        ProgressReport::Checkpoint(_)
        | ProgressReport::Phases(_)
        | ProgressReport::Synchronous
        | ProgressReport::NeedNodes { .. }
        | ProgressReport::Release { .. } => return None,
    })
}
