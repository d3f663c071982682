//! How a site speaks to the scheduler: one word after the other, however long that takes.
//!
//! Must not know what the words mean.

use std::time::Duration;

use springtide_runtime::remote::{Refusal, Remote, RemoteError};
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::backoff;
use crate::provider::LocalFuture;
use crate::scheduler::Scheduler;

/// Wait before a scheduler in another process is called again; twice that after the next failure, and so on.
const RETRY: Duration = Duration::from_millis(250);
const RETRY_MAX: Duration = Duration::from_secs(5);
/// A scheduler with too many messages is left alone for so long.
const BUSY_PAUSE: Duration = Duration::from_millis(50);

/// Says one thing to the scheduler, each time it is called.
pub(super) type Word =
    Box<dyn Fn(&Remote<Scheduler>) -> LocalFuture<'static, Result<(), RemoteError>>>;

/// Says these to the scheduler, one after the other. One that has too much to do just now, as when thousands of nodes register
/// at once, is told again; nothing may overtake it then.
/// `patient`: it is in another process, which may be down for a while; nothing is left unsaid.
pub(super) async fn say(
    mut words: mpsc::UnboundedReceiver<Word>,
    scheduler: Remote<Scheduler>,
    patient: bool,
) {
    while let Some(word) = words.recv().await {
        let mut failures = 0;
        loop {
            match word(&scheduler).await {
                Ok(()) => break,
                Err(RemoteError::Refused { why: Refusal::Busy, .. }) => sleep(BUSY_PAUSE).await,
                Err(error) if patient && !matches!(error, RemoteError::Refused { .. }) => {
                    let wait = backoff(RETRY, failures).min(RETRY_MAX);
                    tracing::debug!(
                        "the scheduler was not told, and is again in {wait:?}: {error}"
                    );
                    failures = failures.saturating_add(1);
                    sleep(wait).await;
                }
                Err(error) => {
                    tracing::warn!("the scheduler was not told: {error}");
                    break;
                }
            }
        }
    }
}
