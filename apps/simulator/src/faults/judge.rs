//! Checks that hold in every history: one right answer, balanced accounts, no message of the dead,
//! nothing left.
//!
//! This module does not know the faults, except whether a node of the job survived.

use std::time::Duration;

use springtide_actors::job::JobError;
use springtide_actors::scheduler::NodeState;
use springtide_runtime::id::{JobId, NodeId};
use springtide_runtime::work::{EngineReport, EngineWatch, TableSizes};
use tokio::time::{Instant, sleep};

use super::{FaultHistory, PathCounts, Violation};
use crate::grid::SimulatedGrid;
use crate::submitter::CompletedRun;

/// Nodes must be free within this time after their job.
const FREE_WITHIN: Duration = Duration::from_secs(60);
/// Limits of the state of an ended engine: its messages, and its pointers at any time.
const MESSAGES_MAX: usize = 10_000;
const POINTERS_MAX: usize = 1 << 16;

/// Paths of recovery that the job reports to its user: the counted name, and the text of the
/// report.
const REPORTED_PATHS: &[(&str, &str)] = &[
    ("root: another succeeds it", "succeeds it"),
    ("root: from a checkpoint", "the root continues from its checkpoint"),
    ("root: from the beginning", "the root restarts"),
    ("root: moved", "the job's root moves from"),
    ("member: lost by its site's word", "its process ended"),
    ("member: lost by silence", "silent for"),
    ("member: joined", "joins the job"),
    ("member: left", "leaves the job"),
];

/// Other paths of recovery, and refusals, by their counted names.
const PATHS: &[&str] = &[
    "fault: lasts longer than the job",
    "fault: while the job starts",
    "link: streams overtake each other",
    "link: a message arrives twice",
    "link: a process stood longer than the idle timeout",
    "link: refused: of a past link",
    "link: refused: of a past incarnation",
    "engine: a task that was not sent is taken back",
    "engine: a task is taken back from a lost node",
    "engine: a task comes back unfinished",
    "engine: an abandoned task is stopped",
    "engine: a task that may not run here goes back",
    "engine: a leaving owner names a successor",
    "engine: a leaving node hands a result over",
    "engine: partial results are forwarded",
    "engine: a request for a task is forwarded to its new holder",
    "engine: a result of lost work is used again",
    "engine: a finished orphan is taken over",
    "engine: a running orphan is taken over",
    "engine: a cycle of waits is broken",
    "engine: a result is forwarded to the successor",
    "engine: an announced orphan is missing",
    "engine: leases are audited when a link is restored",
    "engine: a member that was declared dead audits its leases",
    "engine: a result lost with a link is sent again",
    "engine: a task lost with a link is sent for again",
    "engine: a message that a broken link gave back is sent again",
    "engine: refused: a message of a dead incarnation",
    "engine: refused: a request from a non-member",
    "engine: refused: a result without a lease",
    "engine: refused: a return of a task that is not leased",
    "engine: refused: a result of another task at the same place",
];

/// All counted paths, except the faults.
pub(super) fn paths() -> impl Iterator<Item = &'static str> {
    REPORTED_PATHS.iter().map(|(path, _)| *path).chain(PATHS.iter().copied())
}

/// The subject of the checks.
pub(super) struct CompletedHistory<'a> {
    pub(super) history: &'a FaultHistory,
    pub(super) grid: &'a SimulatedGrid,
    pub(super) job: JobId,
    /// Nodes of the job that were alive when it ended.
    pub(super) survivors: Vec<NodeId>,
}

pub(super) async fn check_all(
    completed: &CompletedHistory<'_>,
    ended: &CompletedRun,
    met: &mut PathCounts,
) -> Result<(), Violation> {
    check_job(completed, ended, met)?;
    check_nothing_left(completed, FREE_WITHIN, met).await
}

/// Checks that no node works for an ended job, within a time.
pub(super) async fn check_nothing_left(
    completed: &CompletedHistory<'_>,
    within: Duration,
    met: &mut PathCounts,
) -> Result<(), Violation> {
    check_all_free(completed.grid, within).await?;
    check_accounts(completed, within, met).await
}

fn check_job(
    completed: &CompletedHistory<'_>,
    ended: &CompletedRun,
    met: &mut PathCounts,
) -> Result<(), Violation> {
    let outcome = match &ended.ended.outcome {
        Ok(outcome) => outcome,
        // A job that lost all its nodes reports it correctly.
        Err(JobError::NodeLost { .. }) if completed.survivors.is_empty() => {
            *met.entry("job: lost with all its nodes".to_owned()).or_default() += 1;
            return Ok(());
        }
        Err(error) => return Err(Violation::Failed(error.to_string())),
    };
    let (found, expected) = (outcome.checksum, completed.history.job.answer());
    if found != expected {
        return Err(Violation::Answer { found, expected });
    }
    for (path, part) in REPORTED_PATHS {
        let times = ended.said.iter().filter(|(_, text)| text.contains(part)).count();
        *met.entry((*path).to_owned()).or_default() += times as u64;
    }
    Ok(())
}

async fn check_all_free(grid: &SimulatedGrid, within: Duration) -> Result<(), Violation> {
    let until = Instant::now() + within;
    loop {
        let status = grid.head().status().await;
        if status.jobs.is_empty() && status.count(NodeState::Busy) == 0 {
            return Ok(());
        }
        if Instant::now() >= until {
            return Err(Violation::NotFree(within, format!("{status:?}")));
        }
        sleep(Duration::from_secs(1)).await;
    }
}

/// Checks the accounts of all engines of all incarnations, and of the network.
async fn check_accounts(
    completed: &CompletedHistory<'_>,
    within: Duration,
    met: &mut PathCounts,
) -> Result<(), Violation> {
    let until = Instant::now() + within;
    let engines = completed.grid.machines().engines();
    // A node is free when its threads have orders to end, and threads of a running task end at its
    // next call. This also holds for a killed process. On a stopped machine its threads end only
    // after the machine has resumed.
    let machines = completed.grid.machines();
    // Only the operating system could free the state of a process that has ended.
    let lingers = |engine: &&EngineWatch| !engine.is_over() && machines.is_current(engine.me());
    let computes = |engine: &EngineWatch| engine.report().threads > 0;
    while engines.iter().any(|engine| lingers(&engine) || computes(engine))
        && Instant::now() < until
    {
        sleep(Duration::from_secs(1)).await;
    }
    for engine in &engines {
        let report = engine.report();
        check_leases(engine, &report)?;
        check_bounds(engine, &report, lingers(&engine))?;
        for (what, times) in report.events {
            *met.entry(format!("engine: {what}")).or_default() += times;
        }
    }
    let again = completed.grid.ended_again(completed.job).await;
    if again > 0 {
        return Err(Violation::Again(again));
    }
    let oddities = completed.grid.network().fault_counts();
    if oddities.stale_deliveries > 0 {
        return Err(Violation::Dead(oddities.stale_deliveries));
    }
    for (what, times) in [
        ("link: streams overtake each other", oddities.overtaking),
        ("link: a message arrives twice", oddities.repeated),
        ("link: a process stood longer than the idle timeout", oddities.long_stops),
        ("link: refused: of a past link", oddities.stale),
        ("link: refused: of a past incarnation", oddities.stale_incarnations),
    ] {
        *met.entry(what.to_owned()).or_default() += times;
    }
    Ok(())
}

fn describe(engine: &EngineWatch) -> String {
    let me = engine.me();
    format!("{} (incarnation {})", me.node, me.incarnation.0)
}

fn check_leases(engine: &EngineWatch, report: &EngineReport) -> Result<(), Violation> {
    let fits = report.leases.balances() && report.doubled == 0;
    // Threads that had orders to leave their leases have left them.
    let open = report.threads == 0 && report.leases.open > 0;
    if fits && !open {
        return Ok(());
    }
    let text = format!("{:?}, {} tasks came twice", report.leases, report.doubled);
    Err(Violation::Leases(describe(engine), text))
}

fn check_bounds(
    engine: &EngineWatch,
    report: &EngineReport,
    lingers: bool,
) -> Result<(), Violation> {
    let TableSizes { stolen, parked, unsent, results_bytes, results_max, known_results, .. } =
        report.tables;
    let fits = results_bytes <= results_max
        && known_results <= POINTERS_MAX
        && parked + unsent <= MESSAGES_MAX
        && (report.threads > 0 || stolen == 0);
    if fits && !lingers && report.threads == 0 {
        return Ok(());
    }
    let over = if lingers { "it is still there; " } else { "" };
    let state = if report.closed { "ordered to end" } else { "not ordered to end" };
    let text = format!("{over}{state}, {} threads, {:?}", report.threads, report.tables);
    Err(Violation::Held(describe(engine), text))
}
