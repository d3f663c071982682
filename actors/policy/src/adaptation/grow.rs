//! Growth: above the band, replacement of lost capacity within it, and the job's minimum.

use springtide_base::processors::Processors;

use super::change::{Aim, Prediction};
use super::decision::AdaptationAction;
use super::decision_state::DecisionState;
use super::memory::{Memory, Trial};
use super::reason::{QuarantineEndReason, Reason};

/// Tolerance that keeps a whole number from being lost to rounding: 0.6 * 20 / 0.4 is 30.
const ROUNDING: f64 = 1e-9;

/// Grows above the band, to the size that brings efficiency to the middle at constant useful
/// capacity.
pub(super) fn above(turn: &mut DecisionState<'_>, efficiency: f64) {
    let settings = turn.settings;
    let n = turn.all.counted;
    // The casts saturate.
    let wanted = (f64::from(n) * efficiency / settings.target() + ROUNDING).floor() as u32;
    let wanted = Processors(wanted).min(most_after(turn)).max(n);
    turn.add_reason(Reason::Above { e_max: settings.e_max, wanted, expected: turn.expected });
    let growth = wanted.saturating_sub(turn.expected);
    let lost = refill_count(turn);
    if lost.now > growth {
        return ask_refill(turn, lost);
    }
    let first = turn.is_before_first_iteration();
    let free = first && !std::mem::replace(&mut turn.memory.grew_before_first_iteration, true);
    if !turn.covers_iteration() && !free {
        return turn.add_reason(Reason::Partial { first });
    }
    if growth.is_zero() {
        if wanted == n {
            turn.add_reason(Reason::BestSize { processors: n });
        }
        renew(turn);
        return;
    }
    if turn.awaits_verdict() {
        return;
    }
    let clock = turn.memory.clock_s;
    if let Some(ceiling) = Memory::limit(&turn.memory.ceiling, clock).copied() {
        let room = ceiling.processors.saturating_sub(turn.expected);
        if room < growth {
            turn.add_reason(ceiling.reason(true, clock));
        }
        return ask(turn, growth.min(room), Aim::Grow);
    }
    ask(turn, growth, Aim::Grow);
}

/// Grows before any speed is measured, if the processors are busy. Efficiency is high then, unless
/// their speeds are very unequal.
///
/// A job that iterates grows so once. Others grow so after each cool-down. Returns whether it does.
pub(super) fn before_measurement(turn: &mut DecisionState<'_>) -> bool {
    let (n, working) = (turn.all.joining, turn.all.joining_working);
    let is_whole = turn.all.silent.is_zero() && !turn.snapshot.is_silent();
    if n.is_zero() || !is_whole || working <= turn.settings.e_max || turn.in_cool_down() {
        return false;
    }
    let iterates = turn.is_before_first_iteration();
    if iterates && turn.memory.grew_before_first_iteration {
        return false;
    }
    let wanted = f64::from(n) * (working / turn.settings.target()).min(turn.settings.growth_max);
    // The cast saturates.
    let growth = Processors(wanted.floor() as u32).saturating_sub(turn.expected);
    let room = turn.max_processors().saturating_sub(turn.expected);
    let count = growth.min(room);
    if count.is_zero() || renew(turn) {
        return false;
    }
    turn.memory.grew_before_first_iteration |= iterates;
    turn.add_reason(Reason::Busy { working, processors: n });
    let most = average_parallelism(n, working)
        .map_or(Processors::MAX, |parallelism| size_at(parallelism, turn.settings.e_min));
    let most = most.saturating_sub(turn.expected).clamp(count, room);
    add_request(turn, count, most, Aim::Grow, None);
    guess(turn, n);
    true
}

/// Ends a request without a measurement to compare a prediction with: there is no trial.
fn guess(turn: &mut DecisionState<'_>, before: Processors) {
    turn.memory.size_before_guess.get_or_insert(before);
    turn.cool_down();
}

/// Replaces lost capacity within the band, or below it to undo a harmful removal. Returns whether
/// any is missing.
pub(super) fn refill(turn: &mut DecisionState<'_>) -> bool {
    let lost = refill_count(turn);
    if !lost.now.is_zero() {
        ask_refill(turn, lost);
    } else if turn.memory.refill.is_some() {
        renew(turn); // the replacements are under way
    }
    turn.memory.refill.is_some()
}

/// Requests the processors missing to the job's minimum. A node of any size that the job may have
/// fits.
pub(super) fn up_to_minimum(turn: &mut DecisionState<'_>) {
    let (expected, min) = (turn.expected, turn.min_processors());
    turn.add_reason(Reason::BelowMinimum { expected, min });
    ask_up_to(turn, min.saturating_sub(expected), Processors::MAX, Aim::Refill);
}

/// Maximum processors after a decision.
fn most_after(turn: &DecisionState<'_>) -> Processors {
    let base = f64::from(turn.all.counted.max(turn.staying));
    Processors((base * turn.settings.growth_max).floor().min(f64::from(u32::MAX)) as u32)
}

/// Processors missing to the capacity that ran well.
#[derive(Clone, Copy, Default)]
struct LostCapacity {
    /// All of them.
    all: Processors,
    /// Those to request now, by the limit of growth at once.
    now: Processors,
}

/// Requests replacements. A node with as many processors as are missing in all fits, since that
/// capacity ran well.
fn ask_refill(turn: &mut DecisionState<'_>, lost: LostCapacity) {
    let limit = Memory::limit(&turn.memory.ceiling, turn.memory.clock_s);
    let room =
        limit.map_or(Processors::MAX, |limit| limit.processors.saturating_sub(turn.expected));
    let most = usable(turn).saturating_sub(turn.expected).max(lost.all).min(room).max(lost.now);
    ask_up_to(turn, lost.now, most, Aim::Refill);
}

/// The capacity that is to be replaced: the smaller number of the two by count and by speed.
fn refill_count(turn: &mut DecisionState<'_>) -> LostCapacity {
    let Some(refill) = turn.memory.refill.clone() else { return LostCapacity::default() };
    let mean = turn.all.mean_speed();
    let expected = turn.expected;
    let by_number = refill.to.processors.saturating_sub(expected);
    let unmeasured = f64::from(expected.saturating_sub(turn.all.counted));
    let have = turn.all.speed + unmeasured * mean;
    let by_speed = ((refill.to.speed - have) / mean - ROUNDING).ceil().max(0.0);
    let missing =
        if by_speed.is_nan() { by_number } else { by_number.min(Processors(by_speed as u32)) };
    if missing.is_zero() {
        // The replacement ends once the requested nodes have joined.
        if turn.snapshot.requested.is_zero() && turn.all.joining.is_zero() {
            turn.memory.refill = None;
            turn.add_reason(Reason::RefillOver { expected, given_up: false });
        }
        return LostCapacity::default();
    }
    let (to, cause) = (refill.to.processors, refill.cause);
    turn.add_reason(Reason::Refilling { expected, to, cause });
    LostCapacity { all: missing, now: missing.min(most_after(turn).saturating_sub(expected)) }
}

/// Requests processors, within the job's maximum, and starts a trial.
///
/// A node with more processors than wanted fits if the predicted efficiency stays at Emin or above.
/// No limit of growth may be exceeded.
pub(super) fn ask(turn: &mut DecisionState<'_>, count: Processors, aim: Aim) {
    let limit = Memory::limit(&turn.memory.ceiling, turn.memory.clock_s);
    let room =
        limit.map_or(Processors::MAX, |limit| limit.processors.saturating_sub(turn.expected));
    let most = usable(turn).saturating_sub(turn.expected).min(room).max(count);
    ask_up_to(turn, count, most, aim);
}

fn ask_up_to(turn: &mut DecisionState<'_>, count: Processors, most: Processors, aim: Aim) {
    let room = turn.max_processors().saturating_sub(turn.expected);
    if room < count {
        turn.add_reason(Reason::AtMaximum { max: turn.max_processors() });
    }
    let count = count.min(room);
    if count.is_zero() || renew(turn) {
        return;
    }
    add_request(turn, count, most.min(room), aim, None);
    if turn.is_before_first_iteration() {
        return guess(turn, turn.staying);
    }
    let prediction = predict(turn, count);
    if aim == Aim::Refill && turn.extend_trial(prediction) {
        return;
    }
    let trial: Trial = turn.trial(aim, prediction);
    turn.start_trial(trial);
}

/// Adds the request without a trial. `min_speed` may be stricter than the learned one.
pub(super) fn add_request(
    turn: &mut DecisionState<'_>,
    count: Processors,
    most: Processors,
    aim: Aim,
    min_speed: Option<f64>,
) {
    let mut request = turn.requirements();
    (request.count, request.most) = (count, most);
    if let Some(own) = min_speed {
        request.min_speed = Some(request.min_speed.map_or(own, |learned| learned.max(own)));
    }
    let fits = Processors(turn.fitting(&request).len() as u32);
    let fitting = (!turn.snapshot.offers.is_empty()).then_some(fits);
    if aim == Aim::Grow {
        let (now, most) = (turn.memory.clock_s, turn.settings.quarantine_max_s);
        turn.memory.surplus.end(now, most);
    }
    turn.add_reason(Reason::Requested { count, aim, fitting });
    let better: Vec<_> =
        turn.memory.quarantine.iter().filter(|e| turn.is_better(e)).cloned().collect();
    for entry in better {
        turn.add_reason(Reason::QuarantineEnded {
            who: entry.subject,
            why: QuarantineEndReason::Better,
        });
    }
    turn.actions.push(AdaptationAction::Request(request));
}

/// Withdraws a request that stayed unmet for too long, although free processors fit. The next
/// decision makes a new one from current knowledge. Returns whether it did.
pub(super) fn renew(turn: &mut DecisionState<'_>) -> bool {
    let patience = u64::from(turn.settings.request_patience);
    let late = turn.memory.requested_since.is_some_and(|t| turn.memory.tick >= t + patience);
    let renews = late && !turn.fitting(&turn.requirements()).is_empty();
    if renews {
        withdraw(turn, true);
    }
    renews
}

/// Withdraws all requested processors that have not arrived.
pub(super) fn withdraw(turn: &mut DecisionState<'_>, unmet: bool) {
    let count = turn.snapshot.requested;
    if !count.is_zero()
        && !turn.actions.iter().any(|a| matches!(a, AdaptationAction::Withdraw { .. }))
    {
        turn.actions.push(AdaptationAction::Withdraw { count });
        turn.add_reason(Reason::Withdrawn { count, unmet });
        turn.memory.requested_since = None;
    }
}

/// Average parallelism of the job, and the fraction of time in which its processors work.
///
/// Uses the bound of Eager, Zahorjan and Lazowska (*Speedup versus efficiency in parallel systems*)
/// as an equality: `e(n) = A / (n + A - 1)`. The average parallelism `A` follows from the current
/// `e` and `n`. It is absent for one processor, and if none ever waits: the limit is unknown.
fn parallelism(turn: &DecisionState<'_>) -> (Option<f64>, f64) {
    let all = &turn.all;
    let busy = (all.useful / all.speed).clamp(0.0, 1.0);
    (average_parallelism(all.counted, busy), busy)
}

/// Average parallelism of a job whose `n` processors are busy for this fraction of the time.
fn average_parallelism(n: Processors, busy: f64) -> Option<f64> {
    let parallelism = busy * (f64::from(n) - 1.0) / (1.0 - busy);
    Some(parallelism).filter(|a| *a > 0.0 && a.is_finite())
}

/// Greatest size at which processors are busy for at least this fraction of the time.
fn size_at(parallelism: f64, busy: f64) -> Processors {
    let most = parallelism / busy - parallelism + 1.0;
    // The cast saturates.
    Processors((most + ROUNDING).floor().max(0.0) as u32)
}

/// Greatest size at which the predicted efficiency is at least Emin. Without a known limit of
/// parallelism it is unbounded: all processors are busy.
fn usable(turn: &DecisionState<'_>) -> Processors {
    let (Some(parallelism), _) = parallelism(turn) else { return Processors::MAX };
    // Efficiency is the busy fraction, weighted by the speeds.
    let least = turn.settings.e_min * turn.all.max_speed / turn.all.mean_speed();
    size_at(parallelism, least)
}

/// Predicts the effect of `count` more processors of mean speed.
///
/// The prediction has at most the current efficiency and at least the current useful speed.
fn predict(turn: &DecisionState<'_>, count: Processors) -> Prediction {
    let all = &turn.all;
    let processors = all.counted.saturating_add(count);
    if all.counted.is_zero() || all.speed <= 0.0 || all.max_speed <= 0.0 {
        return Prediction { processors, efficiency: 0.0, useful: 0.0 };
    }
    let (parallelism, busy) = parallelism(turn);
    let new_speed = all.speed + f64::from(count) * all.mean_speed();
    let new_efficiency = parallelism.map_or(busy, |parallelism| {
        (parallelism / (f64::from(processors) + parallelism - 1.0)).min(busy)
    });
    let useful = (new_speed * new_efficiency).max(all.useful);
    let efficiency = (useful / (f64::from(processors) * all.max_speed)).min(1.0);
    Prediction { processors, efficiency, useful }
}
