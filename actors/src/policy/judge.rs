//! Whether the last action did what was expected of it, and what is learned from that: the paper's "feedback control"
//! (its section 7, future work). Must not choose actions.
//!
//! Judged by useful speed in absolute units, never by efficiency: that jumps when the fastest node comes or goes.

use super::memory::{Aim, Capacity, Limit, Measured, Refill, Requirements, Term, Trial, term};
use super::reason::{Reason, Release};
use super::shrink;
use super::turn::Turn;

/// Share of the predicted gain that growth must bring to have helped.
const GAIN: f64 = 0.2;
/// Share of what removed nodes did that the others must take over for a removal to have helped.
const TAKEN_OVER: f64 = 0.5;
/// Change of useful speed below which nothing can be told.
const NOISE: f64 = 0.05;

/// Compares the last action's prediction with the period, if things have settled.
pub(super) fn judge(turn: &mut Turn<'_>) {
    let Some(mut trial) = turn.memory.trial.take() else { return };
    let age = turn.memory.tick - trial.tick;
    let waits = turn.snapshot.requested > 0 && age <= u64::from(turn.settings.request_patience);
    let settled = age >= 2
        && turn.is_whole()
        && turn.all.counted > 0
        && turn.all.joining == 0
        && turn.all.leaving == 0
        && turn.snapshot.leaving.is_empty()
        && !waits;
    if settled {
        let now = turn.measured();
        trial.seen += 1;
        trial.efficiency += now.efficiency;
        trial.useful += now.useful;
    }
    if u64::from(trial.seen) >= turn.settling(turn.settings.check_periods) {
        let seen = f64::from(trial.seen);
        let observed = Measured {
            nodes: turn.all.counted,
            efficiency: trial.efficiency / seen,
            useful: trial.useful / seen,
        };
        conclude(turn, trial, observed);
    } else if age >= turn.patience() {
        turn.say(Reason::Unjudged { aim: trial.aim, overtaken: false });
    } else {
        turn.memory.trial = Some(trial);
    }
}

fn conclude(turn: &mut Turn<'_>, trial: Trial, observed: Measured) {
    let (aim, before, predicted) = (trial.aim, trial.before, trial.prediction);
    let gain = predicted.useful - before.useful;
    let grew = matches!(aim, Aim::Grow | Aim::Refill | Aim::Migrate);
    let poor = observed.efficiency < turn.settings.e_min;
    if grew && (shrink::is_held_up(turn) || poor && shrink::is_link_suspect(turn)) {
        // All may wait for that node or for what is behind that link, whoever came.
        turn.say(Reason::Unjudged { aim, overtaken: true });
        return;
    }
    // What every node does may have fallen since, with a phase of the job or a load on all: growth is judged at the speeds of before.
    let fell = fastest(&before) / fastest(&observed);
    let useful = if grew && fell > 1.0 { observed.useful * fell } else { observed.useful };
    let helped = match aim {
        Aim::Grow | Aim::Refill => {
            let came = f64::from(observed.nodes) - f64::from(before.nodes);
            if came <= 0.0 {
                // Nobody came: nothing was tried.
                turn.say(Reason::Unjudged { aim, overtaken: false });
                return;
            }
            let asked = f64::from(predicted.nodes.saturating_sub(before.nodes).max(1));
            useful >= before.useful + GAIN * gain * (came / asked).min(1.0)
        }
        Aim::Migrate => useful >= before.useful + GAIN * gain,
        Aim::Cure | Aim::Shrink | Aim::Unlink => {
            let others = before.useful - trial.lost;
            let least = others + TAKEN_OVER * trial.lost;
            trial.lost <= NOISE * before.useful || observed.useful >= least - NOISE * others
        }
    };
    if grew && !helped && shrink::has_slow(turn) {
        // It may have become slow since; that is dealt with by itself.
        turn.say(Reason::Unjudged { aim, overtaken: true });
        return;
    }
    let harm = aim == Aim::Grow && !helped && useful < (1.0 - NOISE) * before.useful;
    if harm && !trial.doubted {
        // A load may have come at the same time, and shows in speeds a little later: nobody goes for one look.
        turn.say(Reason::Doubted { aim, before, observed });
        turn.memory.trial =
            Some(Trial { doubted: true, seen: 0, efficiency: 0.0, useful: 0.0, ..trial });
        return;
    }
    turn.say(Reason::Judged { aim, before, predicted, observed, helped });
    if let Some(which) = trial.term {
        learn_weight(turn, which, helped);
    }
    if helped {
        return;
    }
    match aim {
        Aim::Grow => {
            limit(turn, true, &before);
            if harm {
                turn.memory.excess = observed.nodes - before.nodes;
            }
        }
        Aim::Refill => {
            turn.memory.refill = None;
            turn.say(Reason::RefillOver { expected: turn.expected, given_up: true });
            limit(turn, true, &before);
        }
        Aim::Migrate => {
            turn.memory.migrate_after_s = turn.memory.clock_s + turn.settings.parole_cap_s;
        }
        Aim::Cure | Aim::Unlink => {
            acquit(turn, &trial);
            undo(turn, &before);
        }
        Aim::Shrink => {
            limit(turn, false, &before);
            undo(turn, &before);
        }
    }
}

/// The speed of the fastest node: what efficiency is a share of.
fn fastest(measured: &Measured) -> f64 {
    measured.useful / (f64::from(measured.nodes) * measured.efficiency)
}

/// The term by which nodes were chosen counts for more if it chose well, for less if not.
fn learn_weight(turn: &mut Turn<'_>, which: Term, helped: bool) {
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
        turn.say(Reason::Weight { term: which, from, to });
    }
}

/// Remembers a size not to be tried again for a while, for longer each time.
fn limit(turn: &mut Turn<'_>, growth: bool, before: &Measured) {
    let clock = turn.memory.clock_s;
    let slot = if growth { &mut turn.memory.ceiling } else { &mut turn.memory.floor };
    let times = slot.map_or(1, |old| old.times.saturating_add(1));
    let for_s = term(times, turn.settings);
    let (nodes, efficiency) = (before.nodes, before.efficiency);
    *slot = Some(Limit { nodes, efficiency, until_s: clock + for_s, times });
    turn.say(Reason::NotRepeated { growth, nodes, for_s });
}

/// Those removed were not the cause: they may come back, and what was learned from them is unlearned.
fn acquit(turn: &mut Turn<'_>, trial: &Trial) {
    let (gone, kept): (Vec<_>, Vec<_>) =
        std::mem::take(&mut turn.memory.parole).into_iter().partition(|e| e.tick == trial.tick);
    turn.memory.parole = kept;
    for entry in gone {
        turn.say(Reason::Released { who: entry.who, why: Release::Acquitted });
    }
    let Requirements { min_bandwidth, min_speed } = turn.memory.requirements;
    turn.memory.requirements = trial.requirements;
    if min_bandwidth != trial.requirements.min_bandwidth {
        let (from, to) = (min_bandwidth, trial.requirements.min_bandwidth);
        turn.say(Reason::Bandwidth { cluster: None, from, to });
    }
    if min_speed != trial.requirements.min_speed {
        turn.say(Reason::Speed { from: min_speed, to: trial.requirements.min_speed });
    }
}

/// The nodes removed are wanted back.
fn undo(turn: &mut Turn<'_>, before: &Measured) {
    // If growth to that size was what did harm, its end would have helped.
    turn.memory.ceiling.take_if(|ceiling| ceiling.nodes < before.nodes);
    let nodes = before.nodes.saturating_sub(turn.expected);
    if nodes == 0 {
        return;
    }
    let speed = f64::from(before.nodes) * turn.all.mean_speed();
    let to = Capacity { nodes: before.nodes, speed };
    let cause = super::decision::Cause::Surplus;
    let tick = turn.memory.tick;
    turn.memory.refill = Some(Refill { to, cause, undo: true, tick });
    turn.say(Reason::Undone { nodes });
}
