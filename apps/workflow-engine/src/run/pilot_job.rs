//! The registered job of a pilot, and the link over which a run sends orders to one.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use springtide_actors::coordinator::Coordinator;
use springtide_actors::job::ClientMessage;
use springtide_runtime::id::JobId;
use springtide_runtime::pilot::{self, PilotOrder, PilotSpec, encode_orders};
use springtide_runtime::remote::Remote;
use springtide_runtime::work::{Context, Job, Outcome, Registry, Stop};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

/// The longest wait for the answer to a message.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest time for which a pilot may not be reachable.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// The pause before a message is sent again.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);
/// The most orders in one message.
const ORDERS_MAX: usize = 1000;

/// A job that holds a node for the tasks of a workflow.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkflowPilot {
    /// The name of the workflow.
    pub workflow: String,
    /// The parameters of the pilot.
    pub spec: PilotSpec,
}

impl Job for WorkflowPilot {
    const NAME: &'static str = "workflow-pilot";
    const ABOUT: &'static str = "a node of `workflow run`, for tasks of a workflow";

    fn register(_: &mut Registry) {}

    fn run(self, cx: &Context) -> Result<Outcome, Stop> {
        pilot::run(&self.spec, cx)
    }
}

/// Sends orders to a pilot, several in one message. Ends when `orders` is closed.
///
/// # Errors
/// The pilot cannot be reached any more: the reason.
pub async fn send_orders(
    coordinator: Remote<Coordinator>,
    job: JobId,
    mut orders: mpsc::UnboundedReceiver<PilotOrder>,
) -> Result<(), String> {
    let mut number = 0;
    while let Some(first) = orders.recv().await {
        let mut batch = vec![first];
        while batch.len() < ORDERS_MAX
            && let Ok(order) = orders.try_recv()
        {
            batch.push(order);
        }
        number += 1;
        let body = encode_orders(&batch).map_err(|error| error.to_string())?;
        let begun = Instant::now();
        loop {
            let message = ClientMessage { job, number, body: body.clone() };
            let error = match coordinator.send(message).deadline(MESSAGE_TIMEOUT).await {
                Ok(Ok(())) => break,
                Ok(Err(error)) => error.to_string(),
                Err(error) => error.to_string(),
            };
            if begun.elapsed() > SILENCE_MAX {
                return Err(error);
            }
            sleep(RETRY_INTERVAL).await;
        }
    }
    Ok(())
}
