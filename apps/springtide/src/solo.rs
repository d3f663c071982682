//! `run --sequential`: the job in this process, on one thread, without a grid.
//!
//! Must not know how a run is told of.

use std::thread;

use springtide_actors::job::{JobParams, NoteKind};
use springtide_runtime::work::{Note, PoolConfig, solo};
use tokio::sync::mpsc;
use tokio::time::{Instant, interval};

use crate::exit::{Exit, Failed};
use crate::report::Ended;
use crate::run::{Order, Watch};

/// Notes that wait for this thread; the job waits beyond that.
const NOTES_MAX: usize = 64;

enum FromJob {
    Note(Instant, Note),
    Ended(Box<Result<solo::SoloReport, solo::SoloError>>),
}

/// Runs it. A run that is stopped leaves its thread behind, which ends with the process.
///
/// # Errors
/// It was stopped, or there is no thread for it.
pub async fn run(
    order: &Order,
    params: &JobParams,
    watch: &mut Watch<'_>,
) -> Result<(Ended, Exit), Failed> {
    let (tell, mut told) = mpsc::channel(NOTES_MAX);
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
        let notes = tell.clone();
        let note = move |note| {
            // Nobody listens once the run was stopped.
            let _ = notes.blocking_send(FromJob::Note(Instant::now(), note));
        };
        let ended = solo::run(registry, job, body, &config, note);
        let _ = tell.blocking_send(FromJob::Ended(Box::new(ended)));
    };
    thread::Builder::new()
        .name("solo".to_owned())
        .spawn(work)
        .map_err(|error| Failed::failure(format!("the system gives no thread: {error}")))?;
    let mut ticks = interval(std::time::Duration::from_millis(100));
    let mut iterations = Vec::new();
    let mut last = began;
    watch.talk.wait_for("running");
    loop {
        tokio::select! {
            biased;
            failed = watch.stopped() => return Err(failed),
            item = told.recv() => match item {
                Some(FromJob::Note(at, Note::Iteration)) => {
                    let seconds = at.saturating_duration_since(last).as_secs_f64();
                    last = at;
                    let index = iterations.len() as u64;
                    iterations.push(seconds);
                    watch.note(NoteKind::Iteration { index, seconds });
                }
                Some(FromJob::Note(_, note)) => {
                    if let Some(kind) = kind(note) {
                        watch.note(kind);
                    }
                }
                Some(FromJob::Ended(ended)) => {
                    let report = ended.map_err(Failed::failure)?;
                    let exit = if report.outcome.is_ok() { Exit::Ok } else { Exit::Failure };
                    return Ok((Ended::solo(order.job, report, iterations), exit));
                }
                None => return Err(Failed::failure("the job's thread ended without a word")),
            },
            _ = ticks.tick() => watch.talk.tick(),
        }
    }
}

fn kind(note: Note) -> Option<NoteKind> {
    Some(match note {
        Note::Iteration => NoteKind::Iteration { index: 0, seconds: 0.0 },
        Note::Progress { done, total, what } => NoteKind::Progress { done, total, what },
        Note::Say { text } => NoteKind::Say { text },
        Note::Preliminary { outcome } => NoteKind::Preliminary { outcome: Box::new(outcome) },
        Note::Artifact { name, bytes } => NoteKind::Artifact { name, bytes },
        // There is no other node that could go on from it.
        Note::Checkpoint(_) | Note::NeedNodes { .. } | Note::Release { .. } => return None,
    })
}
