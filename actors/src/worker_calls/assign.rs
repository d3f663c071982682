//! Assignment of a job to a worker: by the scheduler when the job starts, and by the job's
//! coordinator when it grows.

use std::time::Duration;

use springtide_protocol::job::{Assign, AssignError};
use springtide_protocol::receivers::Worker;
use springtide_runtime::remote::{Remote, RemoteError, RemoteRequest};
use tokio::time::{Instant, sleep};

/// Time after which a worker without an answer is left out.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);
/// Time for which an assignment is repeated after its link went down.
const RETRY_WITHIN: Duration = Duration::from_secs(2);

/// Sends an assignment; it is under way when this returns.
pub(crate) fn send_assign(remote: &Remote<Worker>, assign: Assign) -> RemoteRequest<Assign> {
    remote.send(assign).deadline(ANSWER_WITHIN).start()
}

/// Assigns a worker a job by this first request, and returns its answer.
///
/// A link that goes down may belong to the node's previous incarnation, and its message may be
/// lost. So the assignment is repeated while `wanted` holds. A worker that has accepted the job
/// answers the same again.
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
