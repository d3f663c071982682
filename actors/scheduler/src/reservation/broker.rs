//! The broker's side of reservations: requests offers, plans, reserves, and plans again if refused.
//!
//! A state machine without I/O and without a clock. The driver answers each [`Order`] with a
//! [`News`], with [`News::NodeSilence`] if the grid does not answer. This module must not depend on
//! how plans are made, nor on the transport to the grid.

use std::collections::BTreeMap;
use std::time::Duration;

use springtide_base::id::ClusterId;
use springtide_base::random::SplitMix;

use super::{
    Reservation, ReservationId, ReservationPhase, ReservationRefusal, ReservationRequest,
    ReservedSlot, after,
};
use crate::policy::provisioning::Time;

/// Limits of the attempts and their times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BrokerLimits {
    /// Greatest number of plans to try.
    pub plans: u32,
    /// Delay before a repeated request.
    pub retry_delay: Duration,
    /// Time after which an unanswered step fails.
    pub agreement_timeout: Duration,
}

impl Default for BrokerLimits {
    fn default() -> Self {
        Self {
            plans: 10,
            retry_delay: Duration::from_secs(1),
            agreement_timeout: Duration::from_secs(30),
        }
    }
}

/// Inputs of the broker.
#[derive(Clone, Debug)]
pub enum BrokerInput {
    /// Starts the broker.
    Begin,
    /// The plan that follows from the offers: its parts and the highest acceptable cost. An error
    /// is the reason why there is no plan.
    Planned(Result<(Vec<ReservedSlot>, f64), String>),
    /// Answer to [`BrokerAction::Prepare`], [`BrokerAction::Commit`] or [`BrokerAction::Confirm`].
    Answered(Result<Box<Reservation>, ReservationRefusal>),
    /// The grid did not answer.
    Silent,
    /// The time of [`BrokerAction::Wait`] has passed.
    Waited,
}

/// Outputs of the broker, one at a time.
#[derive(Clone, Debug, PartialEq)]
pub enum BrokerAction {
    /// Request offers and plan, without the clusters that denied a reservation.
    Plan {
        /// The excluded clusters, with their reasons.
        but: BTreeMap<ClusterId, String>,
    },
    /// Ask the grid to prepare this reservation.
    Prepare(ReservationRequest),
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
        why: BrokerError,
    },
}

/// Reasons why no reservation was agreed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum BrokerError {
    /// No plan exists.
    #[error("{0}")]
    NoPlan(String),
    /// All plans were refused.
    #[error("none of {plans} plans could be reserved; the last refusal: {last}")]
    TooOften {
        /// Number of plans tried.
        plans: u32,
        /// Refusal of the last plan.
        last: ReservationRefusal,
    },
    /// The grid refuses the request for good.
    #[error(transparent)]
    Refused(ReservationRefusal),
    /// The grid does not answer.
    #[error(
        "the grid's head has not answered for {0:?}: check that it runs and is \
     reachable from here"
    )]
    Silent(Duration),
}

#[derive(Clone, Debug)]
pub(super) enum BrokerStep {
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
    limits: BrokerLimits,
    name: String,
    lease_ms: Option<u64>,
    /// Source of tokens. Each agreement gets a token of its own.
    tokens: SplitMix,
    ask: Option<ReservationRequest>,
    step: BrokerStep,
    /// Start of the present step, or of its first attempt.
    step_started: Time,
    waiting: bool,
    plans: u32,
    denied: BTreeMap<ClusterId, String>,
}

impl Broker {
    /// Creates a broker. `seed` must be random, so that no other broker draws the same tokens.
    pub fn new(name: &str, lease_ms: Option<u64>, seed: u64, limits: BrokerLimits) -> Self {
        Self {
            limits,
            name: name.to_owned(),
            lease_ms,
            tokens: SplitMix(seed),
            ask: None,
            step: BrokerStep::Idle,
            step_started: 0,
            waiting: false,
            plans: 0,
            denied: BTreeMap::new(),
        }
    }

    /// Processes an input and returns the next order.
    pub fn handle(&mut self, news: BrokerInput, now: Time) -> BrokerAction {
        match (std::mem::replace(&mut self.step, BrokerStep::Over), news) {
            // The broker has finished.
            (BrokerStep::Over, _) => self.order(BrokerStep::Over),
            (step, BrokerInput::Silent) => self.handle_silent(step, now),
            (step, BrokerInput::Waited) if self.waiting => {
                self.waiting = false;
                self.order(step)
            }
            (BrokerStep::Idle, BrokerInput::Begin) => self.plan(now),
            (BrokerStep::Planning, BrokerInput::Planned(Ok((parts, most_cost)))) => {
                let (token, name) = (self.tokens.next(), self.name.clone());
                self.ask = Some(ReservationRequest {
                    token,
                    name,
                    parts,
                    max_cost: most_cost,
                    lease_ms: self.lease_ms,
                    owner: None,
                });
                self.enter(BrokerStep::Preparing, now)
            }
            (BrokerStep::Planning, BrokerInput::Planned(Err(why))) => {
                self.abort(BrokerError::NoPlan(why))
            }
            // An answer to an abandoned agreement does not belong to this one.
            (step, BrokerInput::Answered(answer)) if self.is_open(&step, &answer) => match answer {
                Ok(one) => self.handle_agreed(step, *one, now),
                Err(refusal) => self.handle_refused(step, refusal, now),
            },
            // Only answers to the present order change the state.
            (step, _) => self.order(step),
        }
    }

    /// Whether the answer belongs to the present request.
    fn is_open(
        &self,
        step: &BrokerStep,
        answer: &Result<Box<Reservation>, ReservationRefusal>,
    ) -> bool {
        let asked = matches!(
            step,
            BrokerStep::Preparing | BrokerStep::Committing(_) | BrokerStep::Confirming(_)
        );
        let ours = |one: &Reservation| self.ask.as_ref().is_some_and(|ask| ask.token == one.token);
        asked && answer.as_ref().map_or(true, |one| ours(one))
    }

    fn plan(&mut self, now: Time) -> BrokerAction {
        self.plans += 1;
        self.ask = None;
        self.enter(BrokerStep::Planning, now)
    }

    fn enter(&mut self, step: BrokerStep, now: Time) -> BrokerAction {
        self.step_started = now;
        self.order(step)
    }

    /// The order of a step, the first time or repeated.
    fn order(&mut self, step: BrokerStep) -> BrokerAction {
        let token = self.ask.as_ref().map_or(0, |ask| ask.token);
        let order = match (&step, &self.ask) {
            (BrokerStep::Planning, _) => BrokerAction::Plan { but: self.denied.clone() },
            (BrokerStep::Preparing, Some(ask)) => BrokerAction::Prepare(ask.clone()),
            (BrokerStep::Committing(id), _) => BrokerAction::Commit(*id, token),
            (BrokerStep::Confirming(id), _) => BrokerAction::Confirm(*id, token),
            _ => BrokerAction::Wait(self.limits.retry_delay),
        };
        self.step = step;
        order
    }

    fn handle_agreed(&mut self, step: BrokerStep, one: Reservation, now: Time) -> BrokerAction {
        match (step, one.phase) {
            (BrokerStep::Preparing, ReservationPhase::Prepared { .. }) => {
                self.enter(BrokerStep::Committing(one.id), now)
            }
            // An answer was lost, and the grid is a step ahead.
            (
                BrokerStep::Preparing | BrokerStep::Committing(_),
                ReservationPhase::Committed { .. },
            ) => self.enter(BrokerStep::Confirming(one.id), now),
            (
                BrokerStep::Preparing | BrokerStep::Committing(_) | BrokerStep::Confirming(_),
                ReservationPhase::Confirmed { .. },
            ) => {
                self.step = BrokerStep::Over;
                BrokerAction::Done(Box::new(one))
            }
            (step, _) => self.order(step),
        }
    }

    fn handle_refused(
        &mut self,
        step: BrokerStep,
        refusal: ReservationRefusal,
        now: Time,
    ) -> BrokerAction {
        match &refusal {
            ReservationRefusal::Invalid { .. }
            | ReservationRefusal::NoSite { .. }
            | ReservationRefusal::Foreign { .. } => {
                return self.abort(BrokerError::Refused(refusal));
            }
            // The store failed. The reservation expires by itself.
            ReservationRefusal::Store { .. } => return self.abort(BrokerError::Refused(refusal)),
            ReservationRefusal::Denied { cluster, why } => {
                self.denied.insert(cluster.clone(), why.to_string());
            }
            ReservationRefusal::Taken { .. }
            | ReservationRefusal::Past { .. }
            | ReservationRefusal::TooExpensive { .. }
            | ReservationRefusal::Unknown => {}
        }
        if self.plans >= self.limits.plans {
            self.step = step;
            let plans = self.plans;
            return self.abort(BrokerError::TooOften { plans, last: refusal });
        }
        self.plan(now)
    }

    /// Repeats the request, which counts once. Gives up when the grid's reservation has expired.
    fn handle_silent(&mut self, step: BrokerStep, now: Time) -> BrokerAction {
        if now >= after(self.step_started, self.limits.agreement_timeout) {
            self.step = step;
            return self.abort(BrokerError::Silent(self.limits.agreement_timeout));
        }
        self.step = step;
        self.waiting = true;
        BrokerAction::Wait(self.limits.retry_delay)
    }

    fn abort(&mut self, why: BrokerError) -> BrokerAction {
        let token = self.ask.as_ref().map_or(0, |ask| ask.token);
        let release = match std::mem::replace(&mut self.step, BrokerStep::Over) {
            BrokerStep::Committing(id) | BrokerStep::Confirming(id) => Some((id, token)),
            _ => None,
        };
        BrokerAction::Failed { release, why }
    }

    /// The present step, for tests.
    #[cfg(test)]
    pub(super) fn step(&self) -> &BrokerStep {
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
