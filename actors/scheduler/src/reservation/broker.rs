//! The broker's side of reservations: requests offers, plans, reserves, and plans again if refused.
//!
//! A state machine without I/O and without a clock. The driver answers each [`Order`] with a
//! [`News`], with [`News::Silent`] if the grid does not answer. This module must not depend on how
//! plans are made, nor on the transport to the grid.

use std::collections::BTreeMap;
use std::time::Duration;

use springtide_base::id::ClusterId;
use springtide_base::random::SplitMix;

use super::{Ask, Part, Phase, Refusal, Reservation, ReservationId, after};
use crate::policy::provisioning::Time;

/// Limits of the attempts and their times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Greatest number of plans to try.
    pub plans: u32,
    /// Delay before a repeated request.
    pub again: Duration,
    /// Time after which an unanswered step fails.
    pub agree_within: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { plans: 10, again: Duration::from_secs(1), agree_within: Duration::from_secs(30) }
    }
}

/// Inputs of the broker.
#[derive(Clone, Debug)]
pub enum News {
    /// Starts the broker.
    Begin,
    /// The plan that follows from the offers: its parts and the highest acceptable cost. An error
    /// is the reason why there is no plan.
    Planned(Result<(Vec<Part>, f64), String>),
    /// Answer to [`Order::Prepare`], [`Order::Commit`] or [`Order::Confirm`].
    Answered(Result<Box<Reservation>, Refusal>),
    /// The grid did not answer.
    Silent,
    /// The time of [`Order::Wait`] has passed.
    Waited,
}

/// Outputs of the broker, one at a time.
#[derive(Clone, Debug, PartialEq)]
pub enum Order {
    /// Request offers and plan, without the clusters that denied a reservation.
    Plan {
        /// The excluded clusters, with their reasons.
        but: BTreeMap<ClusterId, String>,
    },
    /// Ask the grid to prepare this reservation.
    Prepare(Ask),
    /// Commit the reservation with this token.
    Commit(ReservationId, u64),
    /// Confirm the reservation with this token.
    Confirm(ReservationId, u64),
    /// Wait for this time.
    Wait(Duration),
    /// The reservation is agreed. From now on, the driver renews its lease.
    Done(Box<Reservation>),
    /// The broker failed. The driver releases the rest, without waiting for an answer.
    Failed {
        /// The last attempt, which may still exist.
        release: Option<(ReservationId, u64)>,
        /// Reason of the failure.
        why: Failure,
    },
}

/// Reasons why no reservation was agreed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Failure {
    /// No plan exists.
    #[error("{0}")]
    NoPlan(String),
    /// All plans were refused.
    #[error("none of {plans} plans could be reserved; the last refusal: {last}")]
    TooOften {
        /// Number of plans tried.
        plans: u32,
        /// Refusal of the last plan.
        last: Refusal,
    },
    /// The grid refuses the request for good.
    #[error(transparent)]
    Refused(Refusal),
    /// The grid does not answer.
    #[error(
        "the grid's head has not answered for {0:?}: check that it runs and is \
     reachable from here"
    )]
    Silent(Duration),
}

#[derive(Clone, Debug)]
pub(super) enum Step {
    Idle,
    Planning,
    /// The protocol's steps, in this order: preparing, committing, confirming.
    Preparing,
    Committing(ReservationId),
    Confirming(ReservationId),
    Over,
}

/// A broker that seeks one reservation.
#[derive(Clone, Debug)]
pub struct Broker {
    limits: Limits,
    name: String,
    lease_ms: Option<u64>,
    /// Source of tokens. Each agreement gets a token of its own.
    tokens: SplitMix,
    ask: Option<Ask>,
    step: Step,
    /// Start of the present step, or of its first attempt.
    step_started: Time,
    waiting: bool,
    plans: u32,
    denied: BTreeMap<ClusterId, String>,
}

impl Broker {
    /// Creates a broker. `seed` must be random, so that no other broker draws the same tokens.
    pub fn new(name: &str, lease_ms: Option<u64>, seed: u64, limits: Limits) -> Self {
        Self {
            limits,
            name: name.to_owned(),
            lease_ms,
            tokens: SplitMix(seed),
            ask: None,
            step: Step::Idle,
            step_started: 0,
            waiting: false,
            plans: 0,
            denied: BTreeMap::new(),
        }
    }

    /// Processes an input and returns the next order.
    pub fn handle(&mut self, news: News, now: Time) -> Order {
        match (std::mem::replace(&mut self.step, Step::Over), news) {
            // The broker has finished.
            (Step::Over, _) => self.order(Step::Over),
            (step, News::Silent) => self.handle_silent(step, now),
            (step, News::Waited) if self.waiting => {
                self.waiting = false;
                self.order(step)
            }
            (Step::Idle, News::Begin) => self.plan(now),
            (Step::Planning, News::Planned(Ok((parts, most_cost)))) => {
                let (token, name) = (self.tokens.next(), self.name.clone());
                self.ask = Some(Ask { token, name, parts, most_cost, lease_ms: self.lease_ms });
                self.enter(Step::Preparing, now)
            }
            (Step::Planning, News::Planned(Err(why))) => self.abort(Failure::NoPlan(why)),
            // An answer to an abandoned agreement does not belong to this one.
            (step, News::Answered(answer)) if self.is_open(&step, &answer) => match answer {
                Ok(one) => self.handle_agreed(step, *one, now),
                Err(refusal) => self.handle_refused(step, refusal, now),
            },
            // Only answers to the present order change the state.
            (step, _) => self.order(step),
        }
    }

    /// Whether the answer belongs to the present request.
    fn is_open(&self, step: &Step, answer: &Result<Box<Reservation>, Refusal>) -> bool {
        let asked = matches!(step, Step::Preparing | Step::Committing(_) | Step::Confirming(_));
        let ours = |one: &Reservation| self.ask.as_ref().is_some_and(|ask| ask.token == one.token);
        asked && answer.as_ref().map_or(true, |one| ours(one))
    }

    fn plan(&mut self, now: Time) -> Order {
        self.plans += 1;
        self.ask = None;
        self.enter(Step::Planning, now)
    }

    fn enter(&mut self, step: Step, now: Time) -> Order {
        self.step_started = now;
        self.order(step)
    }

    /// The order of a step, the first time or repeated.
    fn order(&mut self, step: Step) -> Order {
        let token = self.ask.as_ref().map_or(0, |ask| ask.token);
        let order = match (&step, &self.ask) {
            (Step::Planning, _) => Order::Plan { but: self.denied.clone() },
            (Step::Preparing, Some(ask)) => Order::Prepare(ask.clone()),
            (Step::Committing(id), _) => Order::Commit(*id, token),
            (Step::Confirming(id), _) => Order::Confirm(*id, token),
            _ => Order::Wait(self.limits.again),
        };
        self.step = step;
        order
    }

    fn handle_agreed(&mut self, step: Step, one: Reservation, now: Time) -> Order {
        match (step, one.phase) {
            (Step::Preparing, Phase::Prepared { .. }) => self.enter(Step::Committing(one.id), now),
            // An answer was lost, and the grid is a step ahead.
            (Step::Preparing | Step::Committing(_), Phase::Committed { .. }) => {
                self.enter(Step::Confirming(one.id), now)
            }
            (
                Step::Preparing | Step::Committing(_) | Step::Confirming(_),
                Phase::Confirmed { .. },
            ) => {
                self.step = Step::Over;
                Order::Done(Box::new(one))
            }
            (step, _) => self.order(step),
        }
    }

    fn handle_refused(&mut self, step: Step, refusal: Refusal, now: Time) -> Order {
        match &refusal {
            Refusal::Invalid { .. } | Refusal::NoSite { .. } => {
                return self.abort(Failure::Refused(refusal));
            }
            // The store failed. The reservation expires by itself.
            Refusal::Store { .. } => return self.abort(Failure::Refused(refusal)),
            Refusal::Denied { cluster, why } => {
                self.denied.insert(cluster.clone(), why.to_string());
            }
            Refusal::Taken { .. }
            | Refusal::Past { .. }
            | Refusal::Dearer { .. }
            | Refusal::Unknown => {}
        }
        if self.plans >= self.limits.plans {
            self.step = step;
            let plans = self.plans;
            return self.abort(Failure::TooOften { plans, last: refusal });
        }
        self.plan(now)
    }

    /// Repeats the request, which counts once. Gives up when the grid's reservation has expired.
    fn handle_silent(&mut self, step: Step, now: Time) -> Order {
        if now >= after(self.step_started, self.limits.agree_within) {
            self.step = step;
            return self.abort(Failure::Silent(self.limits.agree_within));
        }
        self.step = step;
        self.waiting = true;
        Order::Wait(self.limits.again)
    }

    fn abort(&mut self, why: Failure) -> Order {
        let token = self.ask.as_ref().map_or(0, |ask| ask.token);
        let release = match std::mem::replace(&mut self.step, Step::Over) {
            Step::Committing(id) | Step::Confirming(id) => Some((id, token)),
            _ => None,
        };
        Order::Failed { release, why }
    }

    /// The present step, for tests.
    #[cfg(test)]
    pub(super) fn step(&self) -> &Step {
        &self.step
    }

    /// The token of the present agreement.
    #[cfg(test)]
    pub(super) fn token(&self) -> u64 {
        self.ask.as_ref().map_or(0, |ask| ask.token)
    }

    /// Number of plans tried.
    pub fn plans(&self) -> u32 {
        self.plans
    }
}
