//! Makes reservations with a grid's scheduler, as a [`Broker`] orders.
//!
//! This module does not know planning.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use springtide_actors::policy::provisioning::{Time, from_duration};
use springtide_actors::reservation::{
    Broker, BrokerAction, BrokerError, BrokerInput, BrokerLimits, Reservation, ReservationRefusal,
    ReservedSlot,
};
use springtide_actors::scheduler::{
    CommitSlots, ConfirmSlots, GetSlots, GridSlots, PrepareSlots, ReleaseSlots, Scheduler,
};
use springtide_cli::exit::{Exit, Failed};
use springtide_runtime::id::ClusterId;
use springtide_runtime::random::SplitMix;
use springtide_runtime::remote::{Remote, RemoteError, RemoteMessage};
use tokio::time::sleep;

/// Timeout of a request to the scheduler.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// The current time, in microseconds since the Unix epoch.
pub fn now() -> Time {
    let passed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    from_duration(passed)
}

/// Asks the scheduler for its slots.
///
/// # Errors
/// The scheduler does not answer.
pub async fn slots(scheduler: &Remote<Scheduler>) -> Result<GridSlots, Failed> {
    Ok(scheduler.send(GetSlots {}).deadline(REQUEST_TIMEOUT).await?)
}

/// The reservations of a plan and their maximum price, or the reason why no plan exists.
pub type PlannedSlots = Result<(Vec<ReservedSlot>, f64), String>;

/// Plans reservations from offers, avoiding some clusters for the given reasons.
pub type Planner<'a> = dyn FnMut(&GridSlots, &BTreeMap<ClusterId, String>) -> PlannedSlots + 'a;

/// Reserves what a plan needs. A reservation with a lease expires unless it is [renewed](renew).
///
/// # Errors
/// [`Exit::NotPlaced`] if no plan exists or none can be reserved; the scheduler refuses the sender.
pub async fn agree(
    scheduler: &Remote<Scheduler>,
    name: &str,
    lease: Option<Duration>,
    planner: &mut Planner<'_>,
) -> Result<Reservation, Failed> {
    let lease_ms = lease.map(|lease| u64::try_from(lease.as_millis()).unwrap_or(u64::MAX));
    // A seed that differs between processes and times.
    let seed = SplitMix::with_text(now(), &format!("{name} {}", std::process::id())).next();
    let mut broker = Broker::new(name, lease_ms, seed, BrokerLimits::default());
    let mut news = BrokerInput::Begin;
    loop {
        news = match broker.handle(news, now()) {
            BrokerAction::Plan { but } => match slots(scheduler).await {
                Ok(slots) => BrokerInput::Planned(planner(&slots, &but)),
                Err(_) => BrokerInput::Silent,
            },
            BrokerAction::Prepare(ask) => send_request(scheduler, PrepareSlots { ask }).await?,
            BrokerAction::Commit(id, token) => {
                send_request(scheduler, CommitSlots { id, token }).await?
            }
            BrokerAction::Confirm(id, token) => {
                send_request(scheduler, ConfirmSlots { id, token }).await?
            }
            BrokerAction::Wait(wait) => {
                sleep(wait).await;
                BrokerInput::Waited
            }
            BrokerAction::Done(one) => return Ok(*one),
            BrokerAction::Failed { release, why } => {
                if let Some((id, token)) = release {
                    // An undelivered release is harmless: the reservation expires.
                    let message = ReleaseSlots { id, token: Some(token), by: None };
                    let _ = scheduler.send(message).deadline(REQUEST_TIMEOUT).await;
                }
                let exit = match why {
                    BrokerError::Silent(_) => Exit::Failure,
                    BrokerError::Refused(ReservationRefusal::Store { .. }) => Exit::Failure,
                    BrokerError::Refused(_) => Exit::Usage,
                    BrokerError::NoPlan(_) | BrokerError::TooOften { .. } => Exit::NotPlaced,
                };
                return Err(Failed::new(exit, why));
            }
        }
    }
}

/// Sends a request; a scheduler that refuses its sender is not asked again.
async fn send_request<M>(scheduler: &Remote<Scheduler>, message: M) -> Result<BrokerInput, Failed>
where
    M: RemoteMessage<Result = Result<Reservation, ReservationRefusal>>,
    Scheduler: actix::Handler<M>,
{
    let answer: Result<Result<Reservation, ReservationRefusal>, RemoteError> =
        scheduler.send(message).deadline(REQUEST_TIMEOUT).await;
    match answer {
        Ok(answer) => Ok(BrokerInput::Answered(answer.map(Box::new))),
        Err(error @ RemoteError::Refused { .. }) => Err(error.into()),
        Err(_) => Ok(BrokerInput::Silent),
    }
}

/// Renews a lease periodically until the scheduler refuses, and returns the refusal.
pub async fn renew(scheduler: Remote<Scheduler>, one: Reservation) -> ReservationRefusal {
    let every = Duration::from_millis(one.lease_ms.unwrap_or(60_000)) / 4;
    loop {
        sleep(every).await;
        let message = ConfirmSlots { id: one.id, token: one.token };
        // A scheduler that does not answer may be restarting, and continues after that.
        if let Ok(Err(refusal)) = scheduler.send(message).deadline(REQUEST_TIMEOUT).await {
            return refusal;
        }
    }
}
