//! Histories of many brief jobs: jobs of no length, jobs that fail at once, and cancels at any
//! moment.
//!
//! Meanwhile links break, slow down and let streams overtake each other. A brief job ends before
//! the last message of its start has arrived. Each submission must be answered, and each job must
//! end once. No node may work for an ended job after [`RECONCILED_WITHIN`].

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use springtide_actors::client::JobUpdate;
use springtide_actors::job::{JobError, NoteKind};
use springtide_actors::scheduler::{CancelJob, JobState, RECONCILED_WITHIN, SubmitError};
use springtide_runtime::event::Record;
use springtide_runtime::id::{ClusterId, JobId};
use springtide_runtime::work::{Context, Job, Outcome, Registry, Stop};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::judge::{self, CompletedHistory};
use super::play::{HistoryWorld, registry};
use super::{FaultHistory, HistoryFailure, HistoryReport, PathCounts, SOON, Violation};
use crate::apps::hash;
use crate::grid::{GridError, SimulatedGrid};

/// The counted ends of brief jobs, and the states in which they are cancelled.
const PATHS: &[&str] = &[
    "brief: of no length",
    "brief: failed at once",
    "brief: cancelled",
    "brief: refused",
    "cancel: queued",
    "cancel: assigning",
    "cancel: running",
    "cancel: ending",
];

/// All counted paths of brief jobs.
pub(super) fn paths() -> impl Iterator<Item = &'static str> {
    PATHS.iter().copied()
}

/// A job that computes for a moment, or fails.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Momentary {
    /// Work of the root, in microseconds; 0: it ends at once.
    pub work_us: u64,
    /// Whether the job fails after its work.
    pub fails: bool,
    /// Makes the answer differ from that of other jobs.
    pub tag: u32,
}

impl Momentary {
    fn answer(&self) -> u64 {
        hash(self.tag, 0)
    }
}

impl Job for Momentary {
    const NAME: &'static str = "momentary";
    const ABOUT: &'static str = "a job that ends or fails at once";

    fn register(_: &mut Registry) {}

    fn run(self, cx: &Context) -> Result<Outcome, Stop> {
        if self.work_us > 0 {
            cx.spend_modelled_time(Duration::from_micros(self.work_us))?;
        }
        if self.fails {
            return Err(std::io::Error::other("the job fails by request").into());
        }
        Ok(Outcome { checksum: self.answer(), result: serde_json::Value::Null })
    }
}

/// The submission of a brief job.
#[derive(Clone, Debug, PartialEq)]
pub struct BriefJob {
    /// Time after the start of the history.
    pub at: Duration,
    /// The job to submit.
    pub job: Momentary,
    /// Nodes by cluster; absent: all nodes.
    pub clusters: Option<BTreeMap<ClusterId, u32>>,
}

/// Brief jobs and cancels.
#[derive(Clone, Debug, PartialEq)]
pub struct BriefJobs {
    /// The jobs, by the time of their submission.
    pub jobs: Vec<BriefJob>,
    /// Cancels: a time, and the index of a known job modulo their number.
    pub cancels: Vec<(Duration, usize)>,
}

/// The ends of the jobs so far.
#[derive(Default)]
struct Ends {
    ended: RefCell<BTreeMap<JobId, Result<Outcome, JobError>>>,
    /// The number of ends reported for jobs that had ended already.
    repeated_ends: Cell<u64>,
    cancelled: RefCell<BTreeSet<JobId>>,
    /// Events that the jobs sent to the client.
    records: RefCell<Vec<Record>>,
}

/// Runs a history of brief jobs.
pub(super) async fn play(
    history: &FaultHistory,
    brief: &BriefJobs,
) -> Result<HistoryReport, HistoryFailure> {
    let grid = SimulatedGrid::start(&history.layout, registry()).await;
    let began = Instant::now();
    let ends = Rc::new(Ends::default());
    let (of, received) = (Rc::clone(&grid), Rc::clone(&ends));
    let reading = actix_rt::spawn(async move {
        while let Some((job, news, _)) = of.submitter().news().await {
            let ended = match news {
                JobUpdate::Ended(ended) => ended,
                JobUpdate::Note(note) => {
                    if let NoteKind::Events { records } = *note {
                        received.records.borrow_mut().extend(records);
                    }
                    continue;
                }
            };
            if received.ended.borrow_mut().insert(job, ended.outcome).is_some() {
                received.repeated_ends.set(received.repeated_ends.get() + 1);
            }
        }
    });
    let latest = Rc::new(Cell::new(JobId(0)));
    let world = || HistoryWorld {
        grid: Rc::clone(&grid),
        layout: history.layout.clone(),
        job: Rc::clone(&latest),
        spares_one_node: false,
    };
    let scripts = history.faults.iter().map(|(at, fault)| {
        let (world, fault, at) = (world(), fault.clone(), began + *at);
        actix_rt::spawn(async move {
            sleep_until(at).await;
            world.execute(&fault).await
        })
    });
    let scripts: Vec<_> = scripts.collect();
    let cancels = brief.cancels.iter().map(|(at, which)| {
        let (grid, ends, at, which) = (Rc::clone(&grid), Rc::clone(&ends), began + *at, *which);
        actix_rt::spawn(async move {
            sleep_until(at).await;
            cancel(&grid, &ends, which).await
        })
    });
    let cancels: Vec<_> = cancels.collect();
    let submissions = brief.jobs.iter().map(|one| {
        let (grid, one, latest) = (Rc::clone(&grid), one.clone(), Rc::clone(&latest));
        let params = history.params.clone();
        actix_rt::spawn(async move {
            sleep_until(began + one.at).await;
            let submitted = grid.submitter().submit(one.job, params, one.clusters).await?;
            latest.set(submitted.granted().job);
            Ok::<_, GridError>(submitted.granted().job)
        })
    });
    let submissions: Vec<_> = submissions.collect();
    let script = |error: tokio::task::JoinError| Violation::Script(error.to_string());
    let mut met = PathCounts::new();
    let mut granted = BTreeMap::new();
    for (submission, one) in submissions.into_iter().zip(&brief.jobs) {
        match submission.await.map_err(script)? {
            Ok(job) => drop(granted.insert(job, one.job.clone())),
            Err(GridError::Submit(error)) => check_refusal(history, &ends, &error, &mut met)?,
            Err(error) => return Err(Violation::Grid(error).into()),
        }
    }
    for (running, (_, fault)) in scripts.into_iter().zip(&history.faults) {
        if running.await.map_err(script)? {
            *met.entry(format!("fault: {}", fault.kind())).or_default() += 1;
        }
    }
    for cancel in cancels {
        if let Some(state) = cancel.await.map_err(script)? {
            let state = format!("{state:?}").to_lowercase();
            *met.entry(format!("cancel: {state}")).or_default() += 1;
        }
    }
    let healed = began + history.healed();
    let until = healed.max(Instant::now()) + SOON;
    let all_ended = async {
        while granted.keys().any(|job| !ends.ended.borrow().contains_key(job)) {
            sleep(Duration::from_millis(100)).await;
        }
    };
    if timeout_at(until, all_ended).await.is_err() {
        let open = |job: &&JobId| !ends.ended.borrow().contains_key(*job);
        let open: Vec<_> = granted.keys().filter(open).collect();
        return Err(Violation::Failed(format!(
            "{open:?} have no end: {:?}",
            grid.head().status().await
        ))
        .into());
    }
    let wall = began.elapsed();
    for (job, submitted_job) in &granted {
        check_end(history, &ends, *job, submitted_job, &mut met)?;
    }
    let last = granted.keys().next_back().copied().unwrap_or(JobId(0));
    // The checks read the news from here on.
    reading.abort();
    let completed = CompletedHistory { history, grid: &grid, job: last, survivors: Vec::new() };
    judge::check_nothing_left(&completed, RECONCILED_WITHIN, &mut met).await?;
    if ends.repeated_ends.get() > 0 {
        return Err(Violation::Again(ends.repeated_ends.get()).into());
    }
    let after = wall.saturating_sub(history.healed());
    let mut records = ends.records.take();
    records.extend(grid.drain_records());
    let digest = grid.digest(&records);
    Ok(HistoryReport { paths: met, digest, records, said: Vec::new(), wall, after })
}

/// Cancels one of the jobs that the scheduler knows. Returns its state at that time.
async fn cancel(grid: &SimulatedGrid, ends: &Ends, which: usize) -> Option<JobState> {
    let jobs = grid.head().status().await.jobs;
    let job = jobs.get(which % jobs.len().max(1))?;
    ends.cancelled.borrow_mut().insert(job.job);
    let cancel = CancelJob { job: job.job, reason: "a fault history".to_owned() };
    grid.scheduler().send(cancel).await.ok()?;
    Some(job.state)
}

/// Whether a fault may end a job.
fn may_lose(history: &FaultHistory) -> bool {
    !history.faults.is_empty()
}

/// Checks a refused submission: it was cancelled, or no worker accepted it.
fn check_refusal(
    history: &FaultHistory,
    ends: &Ends,
    error: &SubmitError,
    met: &mut PathCounts,
) -> Result<(), Violation> {
    let fits = match error {
        SubmitError::Cancelled { .. } => !ends.cancelled.borrow().is_empty(),
        SubmitError::Refused(_) | SubmitError::NotPlaced { .. } => may_lose(history),
        SubmitError::Program { .. } | SubmitError::Shipping(_) | SubmitError::Store { .. } => false,
    };
    *met.entry("brief: refused".to_owned()).or_default() += 1;
    if fits { Ok(()) } else { Err(Violation::Failed(error.to_string())) }
}

/// Checks the end of a job: its answer, its failure, a cancel or a fault.
fn check_end(
    history: &FaultHistory,
    ends: &Ends,
    job: JobId,
    submitted_job: &Momentary,
    met: &mut PathCounts,
) -> Result<(), Violation> {
    let ended = ends.ended.borrow();
    let Some(outcome) = ended.get(&job) else { return Ok(()) };
    let path = match outcome {
        Ok(outcome) => {
            let (found, expected) = (outcome.checksum, submitted_job.answer());
            if submitted_job.fails || found != expected {
                return Err(Violation::Answer { found, expected });
            }
            "brief: of no length"
        }
        Err(JobError::Task(_)) if submitted_job.fails => "brief: failed at once",
        Err(JobError::Cancelled { .. }) if ends.cancelled.borrow().contains(&job) => {
            "brief: cancelled"
        }
        Err(JobError::NodeLost { .. } | JobError::Start { .. }) if may_lose(history) => {
            "brief: lost with a node"
        }
        Err(error) => return Err(Violation::Failed(format!("{job}: {error}"))),
    };
    *met.entry(path.to_owned()).or_default() += 1;
    Ok(())
}

impl BriefJobs {
    /// The work of all jobs together.
    pub(super) fn work(&self) -> Duration {
        self.jobs.iter().map(|one| Duration::from_micros(one.job.work_us)).sum()
    }
}
