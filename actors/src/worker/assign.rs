//! How a worker is assigned a job: by the scheduler when the job starts, and by the job's coordinator when it grows.

use std::time::Duration;

use springtide_runtime::remote::{Remote, RemoteError, RemoteRequest};
use tokio::time::{Instant, sleep};

use super::Worker;
use crate::job::{Assign, AssignError};

/// A worker that has not answered an assignment after this time does not take part.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);
/// A worker whose link went down is assigned the job again within this time.
const RETRY_WITHIN: Duration = Duration::from_secs(2);

/// Sends an assignment, which is on its way when this returns.
pub(crate) fn send_assign(remote: &Remote<Worker>, assign: Assign) -> RemoteRequest<Assign> {
    remote.send(assign).deadline(ANSWER_WITHIN).start()
}

/// Assigns a worker a job by this first request, and returns its answer. Where the link goes down, it may be the link of the
/// node's life before, and nobody knows what arrived: the assignment is sent again while `wanted`. A worker that has taken
/// the job before says so.
///
/// # Errors
/// The worker did not answer.
pub(crate) async fn assign_worker(
    remote: Remote<Worker>,
    first: RemoteRequest<Assign>,
    assign: Assign,
    wanted: impl Fn() -> bool,
) -> Result<Result<(), AssignError>, RemoteError> {
    let until = Instant::now() + RETRY_WITHIN;
    let mut pause = Duration::from_millis(20);
    let mut request = first;
    loop {
        let error = match request.await {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        let again = matches!(error, RemoteError::Gone { .. }) && wanted();
        if !again || Instant::now() + pause >= until {
            return Err(error);
        }
        sleep(pause).await;
        pause *= 2;
        if !wanted() {
            return Err(error);
        }
        request = send_assign(&remote, assign.clone());
    }
}
