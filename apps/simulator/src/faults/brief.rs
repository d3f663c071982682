//! Histories of many brief jobs: jobs of no length, jobs that fail at once, and cancels at any
//! moment, while links break, slow down and let streams overtake each other.
//!
//! A brief job ends before the last word of its start has come. Each submission must be answered,
//! each job must end once, and no node may be left at work for an ended job within
//! [`RECONCILED_WITHIN`].

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use springtide_actors::client::News;
use springtide_actors::job::JobError;
use springtide_actors::scheduler::{CancelJob, JobState, RECONCILED_WITHIN, SubmitError};
use springtide_runtime::id::{ClusterId, JobId};
use springtide_runtime::work::{Context, Job, Outcome, Registry, Stop};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::judge::{self, Judged};
use super::play::{World, registry};
use super::{Failed, History, Met, SOON, Told, Wrong};
use crate::apps::hash;
use crate::grid::{Grid, GridError};

/// Ways in which brief jobs end, and states in which they are cancelled, as they are counted.
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

/// All that is counted of brief jobs.
pub(super) fn paths() -> impl Iterator<Item = &'static str> {
    PATHS.iter().copied()
}

/// A job that computes for a moment, or fails.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Momentary {
    /// Work of its root, in microseconds; 0: it ends at once.
    pub work_us: u64,
    /// It fails after its work.
    pub fails: bool,
    /// Makes its answer another than that of other jobs.
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
            cx.model(Duration::from_micros(self.work_us))?;
        }
        if self.fails {
            return Err(std::io::Error::other("it fails as it is told to").into());
        }
        Ok(Outcome { checksum: self.answer(), result: serde_json::Value::Null })
    }
}

/// The submission of a brief job.
#[derive(Clone, Debug, PartialEq)]
pub struct Submission {
    /// Time after the start of the history.
    pub at: Duration,
    /// The job.
    pub job: Momentary,
    /// Nodes by cluster; absent: all.
    pub clusters: Option<BTreeMap<ClusterId, u32>>,
}

/// Brief jobs and cancels.
#[derive(Clone, Debug, PartialEq)]
pub struct Brief {
    /// The jobs, by the time of their submission.
    pub jobs: Vec<Submission>,
    /// Times at which one of the known jobs is cancelled, and which of them, modulo their number.
    pub cancels: Vec<(Duration, usize)>,
}

/// What became of the jobs so far.
#[derive(Default)]
struct Ends {
    ended: RefCell<BTreeMap<JobId, Result<Outcome, JobError>>>,
    again: Cell<u64>,
    cancelled: RefCell<BTreeSet<JobId>>,
}

/// Plays a history of brief jobs.
pub(super) async fn play(history: &History, brief: &Brief) -> Result<Told, Failed> {
    let grid = Grid::start(&history.layout, registry()).await;
    let began = Instant::now();
    let ends = Rc::new(Ends::default());
    let (of, heard) = (Rc::clone(&grid), Rc::clone(&ends));
    let reading = actix_rt::spawn(async move {
        while let Some((job, news, _)) = of.submitter().news().await {
            let News::Ended(ended) = news else { continue };
            if heard.ended.borrow_mut().insert(job, ended.outcome).is_some() {
                heard.again.set(heard.again.get() + 1);
            }
        }
    });
    let latest = Rc::new(Cell::new(JobId(0)));
    let world = || World {
        grid: Rc::clone(&grid),
        layout: history.layout.clone(),
        job: Rc::clone(&latest),
        spares: false,
    };
    let scripts = history.faults.iter().map(|(at, fault)| {
        let (world, fault, at) = (world(), fault.clone(), began + *at);
        actix_rt::spawn(async move {
            sleep_until(at).await;
            world.happen(&fault).await
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
    let script = |error: tokio::task::JoinError| Wrong::Script(error.to_string());
    let mut met = Met::new();
    let mut granted = BTreeMap::new();
    for (submission, one) in submissions.into_iter().zip(&brief.jobs) {
        match submission.await.map_err(script)? {
            Ok(job) => drop(granted.insert(job, one.job.clone())),
            Err(GridError::Submit(error)) => refused(history, &ends, &error, &mut met)?,
            Err(error) => return Err(Wrong::Grid(error).into()),
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
        return Err(Wrong::Failed(format!(
            "{open:?} have no end: {:?}",
            grid.head().status().await
        ))
        .into());
    }
    let wall = began.elapsed();
    for (job, asked) in &granted {
        ended(history, &ends, *job, asked, &mut met)?;
    }
    let last = granted.keys().next_back().copied().unwrap_or(JobId(0));
    // The judge reads the news that come from here on.
    reading.abort();
    let told = Judged { history, grid: &grid, job: last, survivors: Vec::new() };
    judge::nothing_left(&told, RECONCILED_WITHIN, &mut met).await?;
    if ends.again.get() > 0 {
        return Err(Wrong::Again(ends.again.get()).into());
    }
    let after = wall.saturating_sub(history.healed());
    let digest = grid.digest(&[]);
    Ok(Told { met, digest, said: Vec::new(), wall, after })
}

/// Cancels one of the jobs that the scheduler knows. Returns in which state that was.
async fn cancel(grid: &Grid, ends: &Ends, which: usize) -> Option<JobState> {
    let jobs = grid.head().status().await.jobs;
    let job = jobs.get(which % jobs.len().max(1))?;
    ends.cancelled.borrow_mut().insert(job.job);
    let cancel = CancelJob { job: job.job, reason: "a fault history".to_owned() };
    grid.scheduler().send(cancel).await.ok()?;
    Some(job.state)
}

/// Whether a fault may end a job.
fn may_lose(history: &History) -> bool {
    !history.faults.is_empty()
}

/// A submission was refused: cancelled, or no worker took it.
fn refused(
    history: &History,
    ends: &Ends,
    error: &SubmitError,
    met: &mut Met,
) -> Result<(), Wrong> {
    let fits = match error {
        SubmitError::Cancelled { .. } => !ends.cancelled.borrow().is_empty(),
        SubmitError::Refused(_) | SubmitError::NotPlaced { .. } => may_lose(history),
        SubmitError::Program { .. } | SubmitError::Store { .. } => false,
    };
    *met.entry("brief: refused".to_owned()).or_default() += 1;
    if fits { Ok(()) } else { Err(Wrong::Failed(error.to_string())) }
}

/// A job has ended: with its answer, its failure, or what a cancel or a fault made of it.
fn ended(
    history: &History,
    ends: &Ends,
    job: JobId,
    asked: &Momentary,
    met: &mut Met,
) -> Result<(), Wrong> {
    let ended = ends.ended.borrow();
    let Some(outcome) = ended.get(&job) else { return Ok(()) };
    let path = match outcome {
        Ok(outcome) => {
            let (found, expected) = (outcome.checksum, asked.answer());
            if asked.fails || found != expected {
                return Err(Wrong::Answer { found, expected });
            }
            "brief: of no length"
        }
        Err(JobError::Task(_)) if asked.fails => "brief: failed at once",
        Err(JobError::Cancelled { .. }) if ends.cancelled.borrow().contains(&job) => {
            "brief: cancelled"
        }
        Err(JobError::NodeLost { .. } | JobError::Start { .. }) if may_lose(history) => {
            "brief: lost with a node"
        }
        Err(error) => return Err(Wrong::Failed(format!("{job}: {error}"))),
    };
    *met.entry(path.to_owned()).or_default() += 1;
    Ok(())
}

impl Brief {
    /// The work of all jobs together.
    pub(super) fn work(&self) -> Duration {
        self.jobs.iter().map(|one| Duration::from_micros(one.job.work_us)).sum()
    }
}
