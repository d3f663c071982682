//! `node drain` and `node undrain`: take nodes of a running grid out of service, and return them.
//!
//! This module does not know the release of nodes by jobs.

use std::path::Path;
use std::time::Duration;

use springtide_actors::job::SCHEDULER;
use springtide_actors::scheduler::{Drain, DrainError, DrainResult, GetStatus, Scheduler, Undrain};
use springtide_cli::exit::Failed;
use springtide_cli::format::seconds;
use springtide_cli::talk::Talk;
use springtide_runtime::config::nearest;
use springtide_runtime::id::NodeId;
use springtide_runtime::remote::Remote;
use tokio::time::interval;

use crate::attach::{Attachment, attach, grid_config};
use crate::signals::{Signals, word};

/// Maximum time that jobs may need to release the nodes without a deadline.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30 * 24 * 3600);
/// Timeout of a request that the scheduler answers at once.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval between updates of the progress line.
const TICK: Duration = Duration::from_millis(100);

/// A request to drain nodes.
pub struct DrainRequest<'a> {
    /// The names of the nodes.
    pub nodes: &'a [String],
    /// The grid's config file.
    pub file: &'a Path,
    /// The time after which jobs must release the nodes.
    pub deadline: Option<Duration>,
    /// The reason, shown in listings.
    pub reason: Option<&'a str>,
}

/// Drains nodes and returns when they are empty.
///
/// # Errors
/// No grid is up, it has no such node, a job needs the node, or another command returned it to
/// service.
pub async fn drain(request: &DrainRequest<'_>, quiet: bool) -> Result<DrainResult, Failed> {
    let mut signals = Signals::take()?;
    let config = grid_config(request.file)?;
    let Attachment { endpoint, head, .. } = attach(request.file, &config).await?;
    let scheduler: Remote<Scheduler> = endpoint.hub.remote(&head, SCHEDULER);
    let nodes: Vec<NodeId> = request.nodes.iter().map(|name| name.as_str().into()).collect();
    let drain = Drain {
        nodes,
        reason: request.reason.unwrap_or("drained by `node drain`").to_owned(),
        deadline_ms: request.deadline.map(|d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX)),
        incarnation: None,
    };
    let mut talk = Talk::new(quiet);
    let names = request.nodes.join(", ");
    talk.wait_for(&match request.deadline {
        Some(limit) => {
            format!("waiting until {names} are empty, {} at most", seconds(limit.as_secs_f64()))
        }
        None => format!("waiting until {names} are empty"),
    });
    let mut answer = Box::pin(scheduler.send(drain).deadline(DRAIN_TIMEOUT));
    let mut ticks = interval(TICK);
    let drained = loop {
        tokio::select! {
            biased;
            exit = signals.next() => {
                let shown = request.file.display();
                break Err(Failed::new(exit, format!(
                    "{}: the drain continues; `node undrain {} --config {shown}` cancels it",
                    word(exit),
                    request.nodes.join(" "),
                )));
            }
            answer = &mut answer => {
                break match answer {
                    Ok(Ok(drained)) => Ok(drained),
                    Ok(Err(error)) => Err(refused(&scheduler, error).await),
                    Err(error) => Err(error.into()),
                };
            }
            _ = ticks.tick() => talk.tick(),
        }
    };
    talk.done();
    endpoint.net.close("drained").await;
    drained
}

/// Returns nodes to service.
///
/// # Errors
/// No grid is up, or it has no such node.
pub async fn undrain(nodes: &[String], file: &Path) -> Result<(), Failed> {
    let config = grid_config(file)?;
    let Attachment { endpoint, head, .. } = attach(file, &config).await?;
    let scheduler: Remote<Scheduler> = endpoint.hub.remote(&head, SCHEDULER);
    let nodes: Vec<NodeId> = nodes.iter().map(|name| name.as_str().into()).collect();
    let answer = match scheduler.send(Undrain { nodes }).deadline(REQUEST_TIMEOUT).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(refused(&scheduler, error).await),
        Err(error) => Err(error.into()),
    };
    endpoint.net.close("undrained").await;
    answer
}

/// The failure, with a suggestion for an unknown name.
async fn refused(scheduler: &Remote<Scheduler>, error: DrainError) -> Failed {
    let DrainError::UnknownNode { node } = &error else { return error.into() };
    // Without the list of nodes, the failure has no suggestion.
    let status = scheduler.send(GetStatus {}).deadline(REQUEST_TIMEOUT).await.unwrap_or_default();
    let known: Vec<NodeId> =
        status.sites.into_values().flat_map(|site| site.nodes).map(|node| node.node).collect();
    unknown(node, &known)
}

fn unknown(node: &NodeId, known: &[NodeId]) -> Failed {
    let names: Vec<&str> = known.iter().map(NodeId::as_str).collect();
    let hint = match nearest(node.as_str(), names.iter().copied()) {
        Some(meant) => format!("did you mean {meant}?"),
        None => format!("it has {}", names.join(", ")),
    };
    Failed::usage(format!("the grid has no node {node}: {hint}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use springtide_cli::exit::Exit;

    #[test]
    fn each_refusal_has_its_exit_and_its_remedy() {
        let known = ["ams-1".into(), "del-1".into()];
        let failed = unknown(&"asm-1".into(), &known);
        let expected = "the grid has no node asm-1: did you mean ams-1?";
        assert_eq!((failed.exit, failed.message.as_str()), (Exit::Usage, expected));
        let failed = unknown(&"zzz".into(), &known).message;
        assert_eq!(failed, "the grid has no node zzz: it has ams-1, del-1");
        let job = springtide_runtime::id::JobId(3);
        for (error, exit, part) in [
            (DrainError::NoNodes, Exit::Usage, "at least one"),
            (DrainError::UnknownNode { node: "x".into() }, Exit::Usage, "no node x"),
            (
                DrainError::BelowMinimum { job, min: 4.into(), left: 3.into() },
                Exit::NotPlaced,
                "drain fewer of its nodes",
            ),
            (DrainError::Undrained { node: "x".into() }, Exit::Failure, "drain it again"),
            (DrainError::Ended, Exit::Failure, "scheduler ended"),
        ] {
            let failed = Failed::from(error);
            assert_eq!(failed.exit, exit, "{failed}");
            assert!(failed.message.contains(part), "{failed}");
        }
    }
}
