//! The broker's side of reservations: offers are asked for, a plan made of them, and what it needs reserved; where something is in the
//! way, the same anew.
//!
//! A state machine without I/O and without a clock: each [`Order`] that has an answer is answered by a [`News`], also when nobody
//! answered ([`News::Silent`]). Must not know how plans are made, nor who the grid is.

use std::collections::BTreeMap;
use std::time::Duration;

use springtide_runtime::id::ClusterId;
use springtide_runtime::random::SplitMix;

use super::{Ask, Part, Phase, Refusal, Reservation, ReservationId, after};
use crate::policy::provisioning::Time;

/// How often, and how long, it tries.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Plans that are tried at most.
    pub plans: u32,
    /// Silence after which the same is asked again.
    pub again: Duration,
    /// It gives an agreement up that it has not come to after so long.
    pub agree_within: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { plans: 10, again: Duration::from_secs(1), agree_within: Duration::from_secs(30) }
    }
}

/// What it hears.
#[derive(Clone, Debug)]
pub enum News {
    /// Begin.
    Begin,
    /// Offers came, and this is the plan: what it needs and the most that is paid for it; or why there is none.
    Planned(Result<(Vec<Part>, f64), String>),
    /// The answer to [`Order::Prepare`], [`Order::Commit`] or [`Order::Confirm`].
    Answered(Result<Box<Reservation>, Refusal>),
    /// There was none.
    Silent,
    /// [`Order::Wait`] is over.
    Waited,
}

/// What it wants done, one at a time.
#[derive(Clone, Debug, PartialEq)]
pub enum Order {
    /// Ask for offers and plan; not on these clusters, which refused for these reasons.
    Plan {
        /// They do not grant it.
        but: BTreeMap<ClusterId, String>,
    },
    /// Ask the grid to keep this free.
    Prepare(Ask),
    /// It is wanted.
    Commit(ReservationId, u64),
    /// It is agreed.
    Confirm(ReservationId, u64),
    /// Nothing for so long.
    Wait(Duration),
    /// Done: this is had. Whoever carries it out renews its lease from now on.
    Done(Box<Reservation>),
    /// It is given up: what of it may be left is to be released, whether or not somebody hears it, and this is why.
    Failed {
        /// What was last tried.
        release: Option<(ReservationId, u64)>,
        /// Why.
        why: Failure,
    },
}

/// Why nothing was agreed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Failure {
    /// There is no plan.
    #[error("{0}")]
    NoPlan(String),
    /// Every plan met something.
    #[error("{plans} plans were tried and none could be reserved; the last: {last}")]
    TooOften {
        /// How many.
        plans: u32,
        /// What was in the way of the last.
        last: Refusal,
    },
    /// It makes no sense.
    #[error(transparent)]
    Refused(Refusal),
    /// Nobody answers.
    #[error("the grid's head has not answered for {0:?}: is it up, and reached from here?")]
    Silent(Duration),
}

#[derive(Clone, Debug)]
pub(super) enum Step {
    Idle,
    Planning,
    /// In this order: preparing, committing, confirming.
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
    /// Tokens come from it: what is asked for the first time has another than anything before.
    tokens: SplitMix,
    ask: Option<Ask>,
    step: Step,
    /// What is asked now was asked first then, or is done again after a silence.
    since: Time,
    waiting: bool,
    plans: u32,
    but: BTreeMap<ClusterId, String>,
}

impl Broker {
    /// One that reserves under this name. `seed`: drawn at random, so that its tokens are nobody else's.
    pub fn new(name: &str, lease_ms: Option<u64>, seed: u64, limits: Limits) -> Self {
        Self {
            limits,
            name: name.to_owned(),
            lease_ms,
            tokens: SplitMix(seed),
            ask: None,
            step: Step::Idle,
            since: 0,
            waiting: false,
            plans: 0,
            but: BTreeMap::new(),
        }
    }

    /// Takes news in; says what is to be done next.
    pub fn handle(&mut self, news: News, now: Time) -> Order {
        match (std::mem::replace(&mut self.step, Step::Over), news) {
            // Nothing is open any more.
            (Step::Over, _) => self.say(Step::Over),
            (step, News::Silent) => self.silent(step, now),
            (step, News::Waited) if self.waiting => {
                self.waiting = false;
                self.say(step)
            }
            (Step::Idle, News::Begin) => self.plan(now),
            (Step::Planning, News::Planned(Ok((parts, most_cost)))) => {
                let (token, name) = (self.tokens.next(), self.name.clone());
                self.ask = Some(Ask { token, name, parts, most_cost, lease_ms: self.lease_ms });
                self.go(Step::Preparing, now)
            }
            (Step::Planning, News::Planned(Err(why))) => self.fail(Failure::NoPlan(why)),
            // An answer of an agreement that was given up is none of this one's.
            (step, News::Answered(answer)) if self.is_open(&step, &answer) => match answer {
                Ok(one) => self.agreed(step, *one, now),
                Err(refusal) => self.refused(step, refusal, now),
            },
            // Whoever carries orders out answers them; what is not an answer changes nothing.
            (step, _) => self.say(step),
        }
    }

    /// Whether an answer is one to the question that is open.
    fn is_open(&self, step: &Step, answer: &Result<Box<Reservation>, Refusal>) -> bool {
        let asked = matches!(step, Step::Preparing | Step::Committing(_) | Step::Confirming(_));
        let ours = |one: &Reservation| self.ask.as_ref().is_some_and(|ask| ask.token == one.token);
        asked && answer.as_ref().map_or(true, |one| ours(one))
    }

    fn plan(&mut self, now: Time) -> Order {
        self.plans += 1;
        self.ask = None;
        self.go(Step::Planning, now)
    }

    fn go(&mut self, step: Step, now: Time) -> Order {
        self.since = now;
        self.say(step)
    }

    /// What a step asks for, the first time or again.
    fn say(&mut self, step: Step) -> Order {
        let token = self.ask.as_ref().map_or(0, |ask| ask.token);
        let order = match (&step, &self.ask) {
            (Step::Planning, _) => Order::Plan { but: self.but.clone() },
            (Step::Preparing, Some(ask)) => Order::Prepare(ask.clone()),
            (Step::Committing(id), _) => Order::Commit(*id, token),
            (Step::Confirming(id), _) => Order::Confirm(*id, token),
            _ => Order::Wait(self.limits.again),
        };
        self.step = step;
        order
    }

    fn agreed(&mut self, step: Step, one: Reservation, now: Time) -> Order {
        match (step, one.phase) {
            (Step::Preparing, Phase::Prepared { .. }) => self.go(Step::Committing(one.id), now),
            // An answer was lost, and the grid is further than this side knew.
            (Step::Preparing | Step::Committing(_), Phase::Committed { .. }) => {
                self.go(Step::Confirming(one.id), now)
            }
            (
                Step::Preparing | Step::Committing(_) | Step::Confirming(_),
                Phase::Confirmed { .. },
            ) => {
                self.step = Step::Over;
                Order::Done(Box::new(one))
            }
            (step, _) => self.say(step),
        }
    }

    fn refused(&mut self, step: Step, refusal: Refusal, now: Time) -> Order {
        match &refusal {
            Refusal::Invalid { .. } | Refusal::NoSite { .. } => {
                return self.fail(Failure::Refused(refusal));
            }
            // It could not be written down; what was agreed so far runs out by itself.
            Refusal::Store { .. } => return self.fail(Failure::Refused(refusal)),
            Refusal::Denied { cluster, why } => {
                self.but.insert(cluster.clone(), why.to_string());
            }
            Refusal::Taken { .. }
            | Refusal::Past { .. }
            | Refusal::Dearer { .. }
            | Refusal::Unknown => {}
        }
        if self.plans >= self.limits.plans {
            self.step = step;
            let plans = self.plans;
            return self.fail(Failure::TooOften { plans, last: refusal });
        }
        self.plan(now)
    }

    /// The same again: it counts once. Not for ever: what the grid has of it by then runs out.
    fn silent(&mut self, step: Step, now: Time) -> Order {
        if now >= after(self.since, self.limits.agree_within) {
            self.step = step;
            return self.fail(Failure::Silent(self.limits.agree_within));
        }
        self.step = step;
        self.waiting = true;
        Order::Wait(self.limits.again)
    }

    fn fail(&mut self, why: Failure) -> Order {
        let token = self.ask.as_ref().map_or(0, |ask| ask.token);
        let release = match std::mem::replace(&mut self.step, Step::Over) {
            Step::Committing(id) | Step::Confirming(id) => Some((id, token)),
            _ => None,
        };
        Order::Failed { release, why }
    }

    /// The step that it is at.
    #[cfg(test)]
    pub(super) fn step(&self) -> &Step {
        &self.step
    }

    /// The token of the agreement that it seeks.
    #[cfg(test)]
    pub(super) fn token(&self) -> u64 {
        self.ask.as_ref().map_or(0, |ask| ask.token)
    }

    /// How many plans were tried.
    pub fn plans(&self) -> u32 {
        self.plans
    }
}
