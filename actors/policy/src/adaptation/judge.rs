//! Judges whether the last action had its predicted effect, and learns from it: the paper's
//! "feedback control" (its section 7, future work). Chooses no actions.
//!
//! It compares useful speed in absolute units, never efficiency, which jumps when the fastest node
//! joins or leaves.

use springtide_base::processors::Processors;

use super::change::{Aim, Measured, Term};
use super::decision_state::DecisionState;
use super::memory::{
    Acquittal, Capacity, Limit, QuarantineEntry, Refill, Requirements, Trial, term,
};
use super::reason::{QuarantineEndReason, Reason};
use super::shrink;

/// Fraction of the predicted gain that successful growth must reach.
const GAIN: f64 = 0.2;
/// Fraction of the removed nodes' work that the others must take over after a successful removal.
const TAKEN_OVER: f64 = 0.5;
/// Relative change of useful speed that is indistinguishable from noise.
const NOISE: f64 = 0.05;

/// Compares the last action's prediction with the observation, once conditions have settled.
pub(super) fn judge(turn: &mut DecisionState<'_>) {
    let Some(mut trial) = turn.memory.trial.take() else { return };
    let age = turn.memory.tick - trial.tick.max(trial.changed);
    let waits =
        !turn.snapshot.requested.is_zero() && age <= u64::from(turn.settings.request_patience);
    let settled = age >= 2
        && turn.covers_iteration()
        && !turn.all.counted.is_zero()
        && turn.all.joining.is_zero()
        && turn.all.leaving.is_zero()
        && turn.snapshot.leaving.is_empty()
        && !waits;
    if settled {
        let now = turn.measured();
        trial.seen += 1;
        trial.efficiency += now.efficiency;
        trial.useful += now.useful;
    }
    // Each settled period covers an iteration, so a few are enough. Where growth has clearly
    // gained, one is enough, so that the job may continue to grow.
    let enough = turn.settings.settling(turn.settings.check_periods);
    let clear = trial.seen == 1 && settled && trial.aim == Aim::Grow && has_gained(turn, &trial);
    if trial.seen >= enough || clear {
        let seen = f64::from(trial.seen);
        let observed = Measured {
            processors: turn.all.counted,
            efficiency: trial.efficiency / seen,
            useful: trial.useful / seen,
        };
        conclude(turn, trial, observed);
    } else if age >= turn.patience() {
        turn.add_reason(Reason::Unjudged { aim: trial.aim, overtaken: false });
    } else {
        turn.memory.trial = Some(trial);
    }
}

/// Whether the useful speed reaches what growth must reach, with a margin for noise.
fn has_gained(turn: &DecisionState<'_>, trial: &Trial) -> bool {
    let gain = trial.prediction.useful - trial.before.useful;
    let came = turn.all.counted > trial.before.processors;
    came && turn.all.useful >= trial.before.useful + (GAIN + NOISE) * gain + NOISE * turn.all.useful
}

fn conclude(turn: &mut DecisionState<'_>, trial: Trial, observed: Measured) {
    let (aim, before, predicted) = (trial.aim, trial.before, trial.prediction);
    let gain = predicted.useful - before.useful;
    let grew = matches!(aim, Aim::Grow | Aim::Refill | Aim::Migrate);
    let poor = observed.efficiency < turn.settings.e_min;
    let new_are_slow = aim == Aim::Grow && are_new_nodes_slow(turn, &trial);
    let is_held_up = !new_are_slow && shrink::is_held_up(turn);
    if grew && (is_held_up || poor && shrink::is_link_suspect(turn)) {
        // All nodes may wait for that node or for tasks behind that link, regardless of the new
        // nodes.
        turn.add_reason(Reason::Unjudged { aim, overtaken: true });
        return;
    }
    // All nodes may have slowed down since, by a phase of the job or an external load. So growth is
    // judged at the earlier speeds.
    let fell = fastest(&before) / fastest(&observed);
    let useful = if grew && fell > 1.0 { observed.useful * fell } else { observed.useful };
    let helped = match aim {
        Aim::Grow | Aim::Refill => {
            let came = f64::from(observed.processors) - f64::from(before.processors);
            if came <= 0.0 {
                // None arrived, so the growth was not tried.
                turn.add_reason(Reason::Unjudged { aim, overtaken: false });
                return;
            }
            let asked = predicted.processors.saturating_sub(before.processors);
            let asked = f64::from(asked.max(Processors::ONE));
            useful >= before.useful + GAIN * gain * (came / asked).min(1.0)
        }
        Aim::Migrate => useful >= before.useful + GAIN * gain,
        Aim::Cure | Aim::Shrink | Aim::Unlink => {
            let others = before.useful - trial.lost;
            let least = others + TAKEN_OVER * trial.lost;
            trial.lost <= NOISE * before.useful || observed.useful >= least - NOISE * others
        }
    };
    let harm = aim == Aim::Grow && !helped && useful < (1.0 - NOISE) * before.useful;
    let other_is_slow = grew && !helped && !new_are_slow && shrink::has_slow(turn);
    if other_is_slow && !harm {
        // The node may have become slow since; another rule handles that.
        turn.add_reason(Reason::Unjudged { aim, overtaken: true });
        return;
    }
    if harm && !trial.doubted {
        // An external load may have started at the same time, and shows in speeds later. One
        // judgement removes no node.
        turn.add_reason(Reason::Doubted { aim, before, observed });
        turn.memory.trial =
            Some(Trial { doubted: true, seen: 0, efficiency: 0.0, useful: 0.0, ..trial });
        return;
    }
    if harm {
        turn.memory.excess = observed.processors.saturating_sub(before.processors);
    }
    if other_is_slow {
        // That node goes, whether it or the growth did harm.
        turn.add_reason(Reason::Unjudged { aim, overtaken: true });
        return;
    }
    turn.add_reason(Reason::Judged { aim, before, predicted, observed, helped });
    if let Some(which) = trial.term {
        learn_weight(turn, which, helped);
    }
    let is_faster = observed.useful > (1.0 + NOISE) * before.useful;
    if aim == Aim::Shrink && helped && is_faster {
        // The removed nodes delayed the others, and so would new ones.
        limit(turn, true, true, &observed);
    }
    if helped {
        // The effect is visible.
        turn.memory.cool_until = turn.memory.cool_until.min(turn.memory.unsettled_until);
        return;
    }
    match aim {
        Aim::Grow => limit(turn, true, harm, &before),
        Aim::Refill => {
            turn.memory.refill = None;
            turn.add_reason(Reason::RefillOver { expected: turn.expected, given_up: true });
            limit(turn, true, false, &before);
        }
        Aim::Migrate => {
            turn.memory.migrate_after_s = turn.memory.clock_s + turn.settings.quarantine_max_s;
        }
        Aim::Cure | Aim::Unlink => {
            acquit(turn, &trial);
            undo(turn, &before);
        }
        Aim::Shrink => {
            limit(turn, false, true, &before);
            undo(turn, &before);
        }
    }
}

/// Speed of the fastest processor, the reference of efficiency.
fn fastest(measured: &Measured) -> f64 {
    measured.useful / (f64::from(measured.processors) * measured.efficiency)
}

/// Whether the processors that joined since a trial's start are slow against the earlier ones.
///
/// Their speed is the difference between the sums of speeds. A node that became slow since reduces
/// it too, by little where several joined.
fn are_new_nodes_slow(turn: &DecisionState<'_>, trial: &Trial) -> bool {
    let before = f64::from(trial.before.processors);
    let new = f64::from(turn.all.counted) - before;
    let slow = turn.settings.slow_below * trial.speed / before;
    new > 0.0 && trial.speed > 0.0 && turn.all.speed - trial.speed < slow * new
}

/// Raises the weight of the term that chose the nodes if the choice helped, else lowers it.
fn learn_weight(turn: &mut DecisionState<'_>, which: Term, helped: bool) {
    let (bound, step) = (turn.settings.weight_bound, turn.settings.weight_step);
    let first = turn.settings.weights;
    let weights = &mut turn.memory.weights;
    let (weight, first) = match which {
        Term::Speed => (&mut weights.alpha, first.alpha),
        Term::Link => (&mut weights.beta, first.beta),
        Term::Cluster => (&mut weights.gamma, first.gamma),
    };
    let from = *weight;
    let to = if helped { from * step } else { from / step }.clamp(first / bound, first * bound);
    *weight = to;
    if from != to {
        turn.add_reason(Reason::Weight { term: which, from, to });
    }
}

/// Records a size that is not tried again for a while, for longer each time. A size that was
/// `undone` is not tried again before the efficiency changes.
fn limit(turn: &mut DecisionState<'_>, growth: bool, undone: bool, before: &Measured) {
    let clock = turn.memory.clock_s;
    let slot = if growth { &mut turn.memory.ceiling } else { &mut turn.memory.floor };
    let times = slot.map_or(1, |old| old.times.saturating_add(1));
    let for_s = term(times, turn.settings);
    let (processors, efficiency) = (before.processors, before.efficiency);
    let limit = Limit { processors, efficiency, until_s: clock + for_s, times, undone };
    *slot = Some(limit);
    turn.add_reason(limit.reason(growth, clock));
}

/// Revokes the quarantine of nodes that were not the cause, and the requirements learned from them.
fn acquit(turn: &mut DecisionState<'_>, trial: &Trial) {
    let (gone, kept): (Vec<_>, Vec<_>) =
        std::mem::take(&mut turn.memory.quarantine).into_iter().partition(|e| e.tick >= trial.tick);
    turn.memory.quarantine = kept;
    for QuarantineEntry { subject, cause, quality, .. } in gone {
        let who = subject.clone();
        turn.memory.acquit(Acquittal { subject, cause, quality });
        turn.add_reason(Reason::QuarantineEnded { who, why: QuarantineEndReason::Acquitted });
    }
    let Requirements { min_bandwidth, min_speed } = turn.memory.requirements;
    turn.memory.requirements = trial.requirements;
    if min_bandwidth != trial.requirements.min_bandwidth {
        let (from, to) = (min_bandwidth, trial.requirements.min_bandwidth);
        turn.add_reason(Reason::Bandwidth { cluster: None, from, to });
    }
    if min_speed != trial.requirements.min_speed {
        turn.add_reason(Reason::Speed { from: min_speed, to: trial.requirements.min_speed });
    }
}

/// Starts to restore the size before the removal.
fn undo(turn: &mut DecisionState<'_>, before: &Measured) {
    // If growth to that size was judged harmful, its end should have helped; so that judgement is
    // void.
    turn.memory.ceiling.take_if(|ceiling| ceiling.processors < before.processors);
    let processors = before.processors.saturating_sub(turn.expected);
    if processors.is_zero() {
        return;
    }
    let speed = f64::from(before.processors) * turn.all.mean_speed();
    let to = Capacity { processors: before.processors, speed };
    let cause = super::change::RemovalCause::Surplus;
    let tick = turn.memory.tick;
    turn.memory.refill = Some(Refill { to, cause, undo: true, tick });
    turn.add_reason(Reason::Undone { processors });
}
