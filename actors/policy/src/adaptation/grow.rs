//! Growth: above the band, replacement of lost capacity within it, and the job's minimum.

use super::decision::{AdaptationAction, Prediction};
use super::decision_state::DecisionState;
use super::memory::{Aim, Memory, Trial};
use super::reason::{QuarantineEndReason, Reason};

/// Tolerance that keeps a whole number from being lost to rounding: 0.6 * 20 / 0.4 is 30.
const ROUNDING: f64 = 1e-9;

/// Grows above the band, to the size that brings efficiency to the middle at constant useful
/// capacity.
pub(super) fn above(turn: &mut DecisionState<'_>, efficiency: f64) {
    let settings = turn.settings;
    let n = turn.all.counted;
    let wanted = (f64::from(n) * efficiency / settings.target() + ROUNDING).floor() as u32;
    let wanted = wanted.min(most_after(turn)).max(n);
    turn.add_reason(Reason::Above { e_max: settings.e_max, wanted, expected: turn.expected });
    let growth = wanted.saturating_sub(turn.expected);
    let lost = refill_count(turn);
    if lost > growth {
        return ask(turn, lost, Aim::Refill);
    }
    let first = turn.is_before_first_iteration();
    let free = first && !std::mem::replace(&mut turn.memory.grew_before_first_iteration, true);
    if !turn.covers_iteration() && !free {
        return turn.add_reason(Reason::Partial { first });
    }
    if growth == 0 {
        if wanted == n {
            turn.add_reason(Reason::BestSize { nodes: n });
        }
        renew(turn);
        return;
    }
    let clock = turn.memory.clock_s;
    if let Some(ceiling) = Memory::limit(&turn.memory.ceiling, clock).copied() {
        let room = ceiling.nodes.saturating_sub(turn.expected);
        if room < growth {
            let (nodes, for_s) = (ceiling.nodes, ceiling.until_s - clock);
            turn.add_reason(Reason::NotRepeated { growth: true, nodes, for_s });
        }
        return ask(turn, growth.min(room), Aim::Grow);
    }
    ask(turn, growth, Aim::Grow);
}

/// Replaces lost capacity within the band, or below it to undo a harmful removal. Returns whether
/// any is missing.
pub(super) fn refill(turn: &mut DecisionState<'_>) -> bool {
    let count = refill_count(turn);
    if count > 0 {
        ask(turn, count, Aim::Refill);
    } else if turn.memory.refill.is_some() {
        renew(turn); // the replacements are under way
    }
    turn.memory.refill.is_some()
}

/// Requests the nodes missing to the job's minimum.
pub(super) fn up_to_minimum(turn: &mut DecisionState<'_>) {
    let (expected, min) = (turn.expected, turn.min_nodes());
    turn.add_reason(Reason::BelowMinimum { expected, min });
    ask(turn, min - expected, Aim::Refill);
}

/// Maximum nodes after a decision.
fn most_after(turn: &DecisionState<'_>) -> u32 {
    let base = f64::from(turn.all.counted.max(turn.staying));
    (base * turn.settings.growth_max).floor().min(f64::from(u32::MAX)) as u32
}

/// Nodes missing to the capacity that ran well: the smaller number of the two by count and by
/// speed.
fn refill_count(turn: &mut DecisionState<'_>) -> u32 {
    let Some(refill) = turn.memory.refill.clone() else { return 0 };
    let mean = turn.all.mean_speed();
    let expected = turn.expected;
    let by_number = refill.to.nodes.saturating_sub(expected);
    let unmeasured = f64::from(expected.saturating_sub(turn.all.counted));
    let have = turn.all.speed + unmeasured * mean;
    let by_speed = ((refill.to.speed - have) / mean - ROUNDING).ceil().max(0.0);
    let missing = if by_speed.is_nan() { by_number } else { by_number.min(by_speed as u32) };
    if missing == 0 {
        // The replacement ends once the requested nodes have joined.
        if turn.snapshot.requested == 0 && turn.all.joining == 0 {
            turn.memory.refill = None;
            turn.add_reason(Reason::RefillOver { expected, given_up: false });
        }
        return 0;
    }
    turn.add_reason(Reason::Refilling { expected, to: refill.to.nodes, cause: refill.cause });
    missing.min(most_after(turn).saturating_sub(expected))
}

/// Requests nodes, within the job's maximum, and starts a trial.
pub(super) fn ask(turn: &mut DecisionState<'_>, count: u32, aim: Aim) {
    let room = turn.max_nodes().saturating_sub(turn.expected);
    if room < count {
        turn.add_reason(Reason::AtMaximum { max: turn.max_nodes() });
    }
    let count = count.min(room);
    if count == 0 || renew(turn) {
        return;
    }
    add_request(turn, count, aim, None);
    if turn.is_before_first_iteration() {
        // There is no measurement to compare a prediction with.
        return turn.cool_down();
    }
    let prediction = predict(turn, count);
    let trial: Trial = turn.trial(aim, prediction);
    turn.start_trial(trial);
}

/// Adds the request without a trial. `min_speed` may be stricter than the learned one.
pub(super) fn add_request(
    turn: &mut DecisionState<'_>,
    count: u32,
    aim: Aim,
    min_speed: Option<f64>,
) {
    let mut request = turn.requirements();
    request.count = count;
    if let Some(own) = min_speed {
        request.min_speed = Some(request.min_speed.map_or(own, |learned| learned.max(own)));
    }
    let fits = turn.fitting(&request).len() as u32;
    let fitting = (!turn.snapshot.offers.is_empty()).then_some(fits);
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

/// Withdraws a request that stayed unmet for too long. The next decision makes a new one from
/// current knowledge. Returns whether it did.
pub(super) fn renew(turn: &mut DecisionState<'_>) -> bool {
    let patience = u64::from(turn.settings.request_patience);
    let late = turn.memory.requested_since.is_some_and(|t| turn.memory.tick >= t + patience);
    if late {
        withdraw(turn, true);
    }
    late
}

/// Withdraws all requested nodes that have not arrived.
pub(super) fn withdraw(turn: &mut DecisionState<'_>, unmet: bool) {
    let count = turn.snapshot.requested;
    if count > 0 && !turn.actions.iter().any(|a| matches!(a, AdaptationAction::Withdraw { .. })) {
        turn.actions.push(AdaptationAction::Withdraw { count });
        turn.add_reason(Reason::Withdrawn { count, unmet });
        turn.memory.requested_since = None;
    }
}

/// Predicts the effect of `count` more nodes of mean speed.
///
/// Uses the bound of Eager, Zahorjan and Lazowska (*Speedup versus efficiency in parallel systems*)
/// as an equality: `e(n) = A / (n + A - 1)`. The average parallelism `A` follows from the current
/// `e` and `n`. The prediction has at most the current efficiency and at least the current useful
/// speed.
fn predict(turn: &DecisionState<'_>, count: u32) -> Prediction {
    let all = &turn.all;
    let (n, speed) = (f64::from(all.counted), all.speed);
    let nodes = all.counted.saturating_add(count);
    if all.counted == 0 || speed <= 0.0 || all.max_speed <= 0.0 {
        return Prediction { nodes, efficiency: 0.0, useful: 0.0 };
    }
    let busy = (all.useful / speed).clamp(0.0, 1.0);
    let new_speed = speed + f64::from(count) * all.mean_speed();
    let new_efficiency = match (busy * (n - 1.0)) / (1.0 - busy) {
        parallelism if parallelism > 0.0 && parallelism.is_finite() => {
            (parallelism / (f64::from(nodes) + parallelism - 1.0)).min(busy)
        }
        _ => busy, // one node, or none that ever waits: the limit is unknown
    };
    let useful = (new_speed * new_efficiency).max(all.useful);
    let efficiency = (useful / (f64::from(nodes) * all.max_speed)).min(1.0);
    Prediction { nodes, efficiency, useful }
}
