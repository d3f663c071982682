//! The root of a pilot: it passes orders to the tasks of its node, and their reports to the client.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::time::Instant;

use super::message::{PilotOrder, PilotReport};
use super::tasks::TaskSet;
use crate::command::agent::host_name;
use crate::wire;
use crate::work::{Context, Outcome, Stop};

/// The longest wait of a report that a task has started. Others of a short task follow by then.
const START_REPORT_WAIT: Duration = Duration::from_millis(50);
/// The interval at which the root looks whether its node leaves.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The parameters of a pilot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PilotSpec {
    /// The pilot ends after this time without tasks and orders.
    pub idle_limit: Duration,
}

/// Runs a pilot to its end, in a job's [`run`](crate::work::Job::run).
///
/// # Errors
/// The node has no room for tasks' directories, an order does not decode, or a halt.
pub fn run(spec: &PilotSpec, cx: &Context) -> Result<Outcome, Stop> {
    let Some(post) = cx.post() else {
        return Err(Stop::fail("a pilot has no client here: submit it to a grid"));
    };
    if !cx.is_real() {
        return Err(Stop::fail("virtual time runs no processes of the operating system"));
    }
    let me = post.me();
    let waker = cx.waker();
    let wake = std::sync::Arc::new(move || waker.wake());
    let name = format!("{}-{}", post.job(), me.node);
    let tasks = TaskSet::new(&name, cx.threads(), cx.input_dir().ok(), wake);
    let mut tasks =
        tasks.map_err(|error| Stop::fail(format_args!("no directory for tasks: {error}")))?;
    let ready = PilotReport::Ready {
        node: me.node.clone(),
        cluster: me.cluster.clone(),
        host: host_name(),
        processors: cx.threads(),
    };
    send(cx, vec![ready])?;
    let served = serve(spec, &mut tasks, cx);
    tasks.interrupt();
    let rest = send(cx, tasks.take_reports());
    let count = served?;
    rest?;
    Ok(Outcome { checksum: 0, result: json!({ "tasks": count }) })
}

fn send(cx: &Context, reports: Vec<PilotReport>) -> Result<(), Stop> {
    if !reports.is_empty() {
        cx.send_to_client(wire::encode_payload(&reports)?);
    }
    Ok(())
}

/// Executes orders until the pilot ends in order. Returns the number of tasks.
fn serve(spec: &PilotSpec, tasks: &mut TaskSet, cx: &Context) -> Result<u64, Stop> {
    let (mut finishes, mut count) = (false, 0);
    let mut active_at = Instant::now();
    // Reports that wait for others, since when.
    let (mut pending, mut pending_since) = (Vec::new(), active_at);
    loop {
        for body in cx.take_client_messages() {
            active_at = Instant::now();
            for order in wire::decode_payload::<Vec<PilotOrder>>(&body)? {
                match order {
                    PilotOrder::Run(task) => {
                        count += 1;
                        tasks.add(*task);
                    }
                    PilotOrder::End { number } => tasks.end(number, active_at),
                    PilotOrder::AcknowledgeLogs { bytes } => tasks.acknowledge(bytes),
                    PilotOrder::Finish => finishes = true,
                }
            }
        }
        let now = Instant::now();
        tasks.step(now);
        let reports = tasks.take_reports();
        if pending.is_empty() {
            pending_since = now;
        }
        pending.extend(reports);
        let starts_only =
            pending.iter().all(|report| matches!(report, PilotReport::Started { .. }));
        let send_at = pending_since + START_REPORT_WAIT;
        if !starts_only || now >= send_at {
            send(cx, std::mem::take(&mut pending))?;
        }
        if !tasks.is_empty() {
            active_at = now;
        } else if finishes || now >= active_at + spec.idle_limit {
            return Ok(count);
        }
        // The tasks cannot move with the root.
        if cx.checkpoint_wanted() {
            return Ok(count);
        }
        let due = tasks.due().into_iter().chain((!pending.is_empty()).then_some(send_at));
        let until = due.fold(now + CHECK_INTERVAL, Instant::min);
        cx.serve_for(Some(until), &|| cx.has_client_messages() || tasks.has_news())?;
    }
}
