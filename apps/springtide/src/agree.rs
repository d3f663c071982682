//! A broker that carries out what [`Broker`] orders: it asks a grid's scheduler for slots, reserves what a plan needs, and holds on to it.
//!
//! Must not know how a plan is made.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use springtide_actors::policy::provisioning::{Time, from_duration};
use springtide_actors::reservation::{
    Broker, Failure, Limits, News, Order, Part, Refusal, Reservation,
};
use springtide_actors::scheduler::{
    CommitSlots, ConfirmSlots, GetSlots, GridSlots, PrepareSlots, ReleaseSlots, Scheduler,
};
use springtide_runtime::id::ClusterId;
use springtide_runtime::random::SplitMix;
use springtide_runtime::remote::{Remote, RemoteError, RemoteMessage};
use tokio::time::sleep;

use crate::exit::{Exit, Failed};

/// Word of the scheduler that takes longer is taken for none.
const WITHIN: Duration = Duration::from_secs(5);

/// The time, in microseconds of the Unix epoch.
pub fn now() -> Time {
    let passed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    from_duration(passed)
}

/// Asks which slots there are.
///
/// # Errors
/// Nobody answers.
pub async fn slots(scheduler: &Remote<Scheduler>) -> Result<GridSlots, Failed> {
    Ok(scheduler.send(GetSlots {}).deadline(WITHIN).await?)
}

/// A plan of offers: what it needs and the most that is paid for it, or why there is none. It is given clusters to stay away from, and why.
pub type Planner<'a> =
    dyn FnMut(&GridSlots, &BTreeMap<ClusterId, String>) -> Result<(Vec<Part>, f64), String> + 'a;

/// Reserves what a plan needs. With a lease it ends when it is not [renewed](renew) for so long.
///
/// # Errors
/// [`Exit::NotPlaced`] where no plan can be reserved, or there is none.
pub async fn agree(
    scheduler: &Remote<Scheduler>,
    name: &str,
    lease: Option<Duration>,
    planner: &mut Planner<'_>,
) -> Result<Reservation, Failed> {
    let lease_ms = lease.map(|lease| u64::try_from(lease.as_millis()).unwrap_or(u64::MAX));
    // Nobody else's seed: another process, or another time.
    let seed = SplitMix::of(now(), &format!("{name} {}", std::process::id())).next();
    let mut broker = Broker::new(name, lease_ms, seed, Limits::default());
    let mut news = News::Begin;
    loop {
        news = match broker.handle(news, now()) {
            Order::Plan { but } => match slots(scheduler).await {
                Ok(slots) => News::Planned(planner(&slots, &but)),
                Err(_) => News::Silent,
            },
            Order::Prepare(ask) => asked(scheduler, PrepareSlots { ask }).await,
            Order::Commit(id, token) => asked(scheduler, CommitSlots { id, token }).await,
            Order::Confirm(id, token) => asked(scheduler, ConfirmSlots { id, token }).await,
            Order::Wait(wait) => {
                sleep(wait).await;
                News::Waited
            }
            Order::Done(one) => return Ok(*one),
            Order::Failed { release, why } => {
                if let Some((id, token)) = release {
                    // Where nobody hears it, it runs out.
                    let word = ReleaseSlots { id, token: Some(token) };
                    let _ = scheduler.send(word).deadline(WITHIN).await;
                }
                let exit = match why {
                    Failure::Silent(_) => Exit::Failure,
                    Failure::Refused(Refusal::Store { .. }) => Exit::Failure,
                    Failure::Refused(_) => Exit::Usage,
                    Failure::NoPlan(_) | Failure::TooOften { .. } => Exit::NotPlaced,
                };
                return Err(Failed::new(exit, why));
            }
        }
    }
}

async fn asked<M>(scheduler: &Remote<Scheduler>, word: M) -> News
where
    M: RemoteMessage<Result = Result<Reservation, Refusal>>,
    Scheduler: actix::Handler<M>,
{
    let answer: Result<Result<Reservation, Refusal>, RemoteError> =
        scheduler.send(word).deadline(WITHIN).await;
    match answer {
        Ok(answer) => News::Answered(answer.map(Box::new)),
        Err(_) => News::Silent,
    }
}

/// Renews a lease now and then, until it is refused; returns why.
pub async fn renew(scheduler: Remote<Scheduler>, one: Reservation) -> Refusal {
    let every = Duration::from_millis(one.lease_ms.unwrap_or(60_000)) / 4;
    loop {
        sleep(every).await;
        let word = ConfirmSlots { id: one.id, token: one.token };
        // Who is silent may have been started anew, and goes on then.
        if let Ok(Err(refusal)) = scheduler.send(word).deadline(WITHIN).await {
            return refusal;
        }
    }
}
