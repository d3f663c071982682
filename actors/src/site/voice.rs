//! Messages of a site to the scheduler: one after the other, with retries.
//!
//! This module does not know their contents.

use std::time::Duration;

use springtide_protocol::receivers::Scheduler;
use springtide_runtime::remote::{Refusal, Remote, RemoteError};
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::backoff;
use crate::provider::LocalFuture;

/// Minimum and maximum delay before a scheduler in another process is called again. The delay
/// doubles with each failure.
const RETRY: Duration = Duration::from_millis(250);
const RETRY_MAX: Duration = Duration::from_secs(5);
/// Pause after a scheduler reported too many messages.
const BUSY_PAUSE: Duration = Duration::from_millis(50);

/// A message that can be sent to the scheduler repeatedly.
pub(super) type QueuedMessage =
    Box<dyn Fn(&Remote<Scheduler>) -> LocalFuture<'static, Result<(), RemoteError>>>;

/// Sends messages to the scheduler, one after the other. A busy scheduler (as when thousands of
/// nodes register at once) gets the same message again, to keep the order. With `patient`, the
/// scheduler is in another process and may be down for a while; no message is dropped.
pub(super) async fn send_in_order(
    mut messages: mpsc::UnboundedReceiver<QueuedMessage>,
    scheduler: Remote<Scheduler>,
    patient: bool,
) {
    while let Some(message) = messages.recv().await {
        let mut failures = 0;
        loop {
            match message(&scheduler).await {
                Ok(()) => break,
                Err(RemoteError::Refused { reason: Refusal::Busy, .. }) => sleep(BUSY_PAUSE).await,
                Err(error) if patient && !matches!(error, RemoteError::Refused { .. }) => {
                    let wait = backoff(RETRY, failures).min(RETRY_MAX);
                    tracing::debug!(
                        "a message to the scheduler failed and is retried in {wait:?}: {error}"
                    );
                    failures = failures.saturating_add(1);
                    sleep(wait).await;
                }
                Err(error) => {
                    tracing::warn!("a message to the scheduler failed: {error}");
                    break;
                }
            }
        }
    }
}
