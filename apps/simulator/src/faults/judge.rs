//! What is right in every history: the answer, once; books that balance; nothing heard from the dead; nothing left.
//!
//! Must not know what happened, but for whether a node of the job was left.

use std::time::Duration;

use springtide_actors::job::JobError;
use springtide_actors::scheduler::NodeState;
use springtide_runtime::id::{JobId, NodeId};
use springtide_runtime::work::{Books, EngineWatch, Tables};
use tokio::time::{Instant, sleep};

use super::{History, Met, Wrong};
use crate::grid::Grid;
use crate::submitter::Ended;

/// Nodes must be free so long after their job.
const FREE_WITHIN: Duration = Duration::from_secs(60);
/// What an engine may still hold of messages when it has ended, and of pointers at any time.
const MESSAGES_MAX: usize = 10_000;
const POINTERS_MAX: usize = 1 << 16;

/// Ways of recovery of which the job tells its user: the names under which they are counted, and what is said.
const SAID: &[(&str, &str)] = &[
    ("root: another took its place", "takes its place"),
    ("root: from a checkpoint", "the root goes on from its checkpoint"),
    ("root: anew", "the root begins anew"),
    ("root: moved", "the job's root moves from"),
    ("member: lost by its site's word", "its process ended"),
    ("member: lost by silence", "silent for"),
    ("member: joined", "joins the job"),
    ("member: left", "leaves the job"),
];

/// Other ways of recovery, and what must be refused, by the names under which they are counted.
const PATHS: &[&str] = &[
    "fault: lasts longer than the job",
    "fault: while the job starts",
    "link: streams overtake each other",
    "link: heard twice",
    "link: a process stood longer than the idle timeout",
    "link: refused: of a link that is over",
    "link: refused: of a life that is over",
    "engine: a task that was not sent is taken back",
    "engine: a task is taken back from a lost node",
    "engine: a task comes back unfinished",
    "engine: a task is stopped that nobody wants",
    "engine: a task that may not run here goes back",
    "engine: a leaving owner names an heir",
    "engine: a leaving node hands a result over",
    "engine: what was done of a task follows it",
    "engine: who asks for a task is sent to whom it was given",
    "engine: a result of lost work is used again",
    "engine: a finished orphan is taken over",
    "engine: a running orphan is taken over",
    "engine: a circle of waits is broken",
    "engine: a result follows its task to the heir",
    "engine: an orphan that was told of is not there",
    "engine: leases are asked after when a link is back",
    "engine: a member that was taken for dead asks after its leases",
    "engine: a result lost with a link is sent again",
    "engine: a task lost with a link is sent for again",
    "engine: a message that a broken link gave back is sent again",
    "engine: refused: a message of a dead incarnation",
    "engine: refused: a request of no member",
    "engine: refused: a result nobody waits for",
    "engine: refused: a return of what is not leased",
    "engine: refused: a result of another task at the same place",
];

/// All that is counted beside the faults.
pub(super) fn paths() -> impl Iterator<Item = &'static str> {
    SAID.iter().map(|(path, _)| *path).chain(PATHS.iter().copied())
}

/// What is judged.
pub(super) struct Judged<'a> {
    pub(super) history: &'a History,
    pub(super) grid: &'a Grid,
    pub(super) job: JobId,
    /// Nodes of the job that were there when it ended.
    pub(super) survivors: Vec<NodeId>,
}

pub(super) async fn all(told: &Judged<'_>, ended: &Ended, met: &mut Met) -> Result<(), Wrong> {
    job(told, ended, met)?;
    nothing_left(told, FREE_WITHIN, met).await
}

/// Nobody works for an ended job any more, within so long.
pub(super) async fn nothing_left(
    told: &Judged<'_>,
    within: Duration,
    met: &mut Met,
) -> Result<(), Wrong> {
    all_are_free(told.grid, within).await?;
    balance(told, within, met).await
}

fn job(told: &Judged<'_>, ended: &Ended, met: &mut Met) -> Result<(), Wrong> {
    let outcome = match &ended.ended.outcome {
        Ok(outcome) => outcome,
        // It says so, and it is so.
        Err(JobError::NodeLost { .. }) if told.survivors.is_empty() => {
            *met.entry("job: lost with all its nodes".to_owned()).or_default() += 1;
            return Ok(());
        }
        Err(error) => return Err(Wrong::Failed(error.to_string())),
    };
    let (found, expected) = (outcome.checksum, told.history.job.answer());
    if found != expected {
        return Err(Wrong::Answer { found, expected });
    }
    for (path, part) in SAID {
        let times = ended.said.iter().filter(|(_, text)| text.contains(part)).count();
        *met.entry((*path).to_owned()).or_default() += times as u64;
    }
    Ok(())
}

async fn all_are_free(grid: &Grid, within: Duration) -> Result<(), Wrong> {
    let until = Instant::now() + within;
    loop {
        let status = grid.head().status().await;
        if status.jobs.is_empty() && status.count(NodeState::Busy) == 0 {
            return Ok(());
        }
        if Instant::now() >= until {
            return Err(Wrong::NotFree(within, format!("{status:?}")));
        }
        sleep(Duration::from_secs(1)).await;
    }
}

/// The books of all engines there were, of all lives of all nodes, and of the network.
async fn balance(told: &Judged<'_>, within: Duration, met: &mut Met) -> Result<(), Wrong> {
    let until = Instant::now() + within;
    let engines = told.grid.machines().engines();
    // A node is free when its threads are told to end; those of a task under way end at its next call. So here do those of a
    // process that was killed, and on a machine that had come to a standstill they had to wait for it.
    let machines = told.grid.machines();
    // Of a process that has ended only its system could free anything.
    let lingers = |engine: &&EngineWatch| !engine.is_over() && machines.lives(engine.me());
    let computes = |engine: &EngineWatch| engine.books().threads > 0;
    while engines.iter().any(|engine| lingers(&engine) || computes(engine))
        && Instant::now() < until
    {
        sleep(Duration::from_secs(1)).await;
    }
    for engine in &engines {
        let books = engine.books();
        balances(engine, &books)?;
        is_bounded(engine, &books, lingers(&engine))?;
        for (what, times) in books.met {
            *met.entry(format!("engine: {what}")).or_default() += times;
        }
    }
    let again = told.grid.ended_again(told.job).await;
    if again > 0 {
        return Err(Wrong::Again(again));
    }
    let odd = told.grid.network().oddities();
    if odd.from_the_dead > 0 {
        return Err(Wrong::Dead(odd.from_the_dead));
    }
    for (what, times) in [
        ("link: streams overtake each other", odd.overtaking),
        ("link: heard twice", odd.repeated),
        ("link: a process stood longer than the idle timeout", odd.long_stops),
        ("link: refused: of a link that is over", odd.stale),
        ("link: refused: of a life that is over", odd.stale_lives),
    ] {
        *met.entry(what.to_owned()).or_default() += times;
    }
    Ok(())
}

fn who(engine: &EngineWatch) -> String {
    let me = engine.me();
    format!("{} (life {})", me.node, me.incarnation.0)
}

fn balances(engine: &EngineWatch, books: &Books) -> Result<(), Wrong> {
    let fits = books.leases.balances() && books.doubled == 0;
    // What its threads were told to leave they have left.
    let open = books.threads == 0 && books.leases.open > 0;
    if fits && !open {
        return Ok(());
    }
    let text = format!("{:?}, {} tasks came twice", books.leases, books.doubled);
    Err(Wrong::Leases(who(engine), text))
}

fn is_bounded(engine: &EngineWatch, books: &Books, lingers: bool) -> Result<(), Wrong> {
    let Tables { stolen, parked, unsent, results_bytes, results_max, known, .. } = books.tables;
    let fits = results_bytes <= results_max
        && known <= POINTERS_MAX
        && parked + unsent <= MESSAGES_MAX
        && (books.threads > 0 || stolen == 0);
    if fits && !lingers && books.threads == 0 {
        return Ok(());
    }
    let over = if lingers { "it is still there; " } else { "" };
    let told = if books.closed { "told to end" } else { "not told to end" };
    let text = format!("{over}{told}, {} threads, {:?}", books.threads, books.tables);
    Err(Wrong::Held(who(engine), text))
}
