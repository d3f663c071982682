//! What is remembered of a period before anything is decided: crashes, terms that end, the root's way, capacity that
//! ran well. Must not choose actions: a run that is only monitored keeps all of this.

use super::decision::{Action, Cause};
use super::memory::{Capacity, Iterations, Memory, Parole, Refill, Subject, term};
use super::reason::{Reason, Release};
use super::snapshot::{Crash, Progress};
use super::turn::Turn;
use super::worker::SPAN_MAX;

/// Efficiency by which conditions must differ for a size that did not help to be tried again early.
const CHANGED: f64 = 0.1;

/// Who leaves holds the others up for so many seconds at most: nodes that take longer end without having handed all back.
const LEAVING_S: f64 = 60.0;

/// The link of a cluster on parole is measured after such a share of the first term.
const LOOKS: f64 = 0.2;

/// Takes the period in.
pub(super) fn observe(turn: &mut Turn<'_>) {
    if turn.all.counted > 0 {
        turn.memory.max_speed = Some(turn.all.max_speed);
    }
    iterations(turn);
    crashes(turn);
    orders(turn);
    releases(turn);
    root(turn);
    let memory = &mut turn.memory;
    memory.requested_since =
        (turn.snapshot.requested > 0).then(|| memory.requested_since.unwrap_or(memory.tick));
    let Some(efficiency) = turn.all.efficiency() else { return };
    let bad = efficiency < turn.settings.e_min && !turn.is_unsettled();
    turn.memory.below = if bad { turn.memory.below.saturating_add(1) } else { 0 };
    let all = &turn.all;
    let said = Reason::Efficiency {
        efficiency,
        nodes: all.counted,
        stale: all.stale,
        joining: all.joining,
        leaving: all.leaving,
        silent: all.silent,
        presumed: all.presumed,
    };
    turn.say(said);
    limits(turn, efficiency);
}

/// How long the job's iterations take. Their phases differ: what a period shows of one of them is no measure of the job.
fn iterations(turn: &mut Turn<'_>) {
    let Some(Progress { done, total: Some(_) }) = turn.snapshot.progress else { return };
    let memory = &mut turn.memory;
    let now = memory.clock_s;
    memory.iterations = Some(match memory.iterations {
        Some(known) if done > known.done => {
            let period_s = turn.snapshot.period_s;
            // The job's first began with it, and ended half a period ago, more or less.
            let first = known.done == 0 && known.at_s <= period_s;
            let took = if first { now - period_s / 2.0 } else { now - known.at_s };
            let last = took / (done - known.done) as f64;
            // Ends are seen at the ends of periods: what is off by one says little, but often enough it does.
            let seen_late = |known: f64| (last - known).abs() < 1.01 * period_s;
            let smooth = |known: f64| {
                if seen_late(known) { known + (last - known) / 3.0 } else { last }
            };
            let length = known.length_s.map_or(last, smooth);
            // The first one seen may have begun long before.
            let whole = known.done > 0 || first;
            Iterations { done, at_s: now, length_s: whole.then_some(length).or(known.length_s) }
        }
        // A new root goes on from a checkpoint.
        Some(known) if done < known.done => Iterations { done, at_s: now, ..known },
        Some(known) => known,
        None => Iterations { done, at_s: now, length_s: None },
    });
    let length = memory.iterations.and_then(|known| known.length_s);
    let periods = length.map_or(1.0, |length| length / turn.snapshot.period_s);
    // What is no number was refused: the length is of clocks of the policy's own.
    let span = (periods.ceil() as u32).clamp(1, SPAN_MAX);
    // Between one and two it is decided whether a period tells of the whole; one more or less of many is no matter.
    let other = match memory.span {
        1 => periods > 1.1,
        known => periods <= 0.9 || span.abs_diff(known) > 1,
    };
    if other {
        memory.span = span;
        // Clusters hear of it now: what they tell next is of the old one still.
        let until = memory.tick + 1;
        memory.cool_until = memory.cool_until.max(until);
        memory.unsettled_until = memory.unsettled_until.max(until);
    }
}

/// Whether what is measured tells of a recovery: something was lost shortly before, or the root's node was (`fell_over`), or
/// members are silent or still leaving, whose tasks the others wait for. (A cluster behind 100 kB/s took 19 s to hand back what it
/// had; four healthy nodes were let go meanwhile for having nothing to do.)
pub(super) fn unsettled(turn: &mut Turn<'_>, fell_over: bool) {
    let crashed = |crash: &Crash| !turn.snapshot.leaving.contains(&crash.node);
    let lost = fell_over || turn.snapshot.crashes.iter().any(crashed);
    let silent = turn.all.silent > 0 || turn.snapshot.is_silent();
    let memory = &mut turn.memory;
    let (leaves, now) = (!turn.snapshot.leaving.is_empty(), memory.clock_s);
    memory.leaving_since_s = leaves.then(|| memory.leaving_since_s.unwrap_or(now));
    let leaving = memory.leaving_since_s.is_some_and(|since| now - since < LEAVING_S);
    let periods = match (lost, silent || leaving) {
        (true, _) => turn.settling(turn.settings.cool_down),
        (false, true) => 0,
        (false, false) => return,
    };
    if lost {
        turn.stir();
    }
    let memory = &mut turn.memory;
    memory.unsettled_until = memory.unsettled_until.max(memory.tick + periods);
}

/// Capacity lost to a crash is remembered as to be replaced. Leaves are none: they were wanted.
fn crashes(turn: &mut Turn<'_>) {
    let crashes: Vec<_> = turn.snapshot.crashes.iter().collect();
    let unplanned: Vec<_> =
        crashes.into_iter().filter(|c| !turn.snapshot.leaving.contains(&c.node)).collect();
    if unplanned.is_empty() {
        return;
    }
    for crash in &unplanned {
        turn.say(Reason::Crashed { node: crash.node.clone(), cluster: crash.cluster.clone() });
        let settings = turn.settings;
        let who = Subject::Node(crash.node.clone());
        let entry = turn.memory.sentence(who, Cause::Crashed, None, settings);
        let for_s = entry.until_s - turn.memory.clock_s;
        if for_s > 0.0 {
            let (who, cause, times) = (entry.who, entry.cause, entry.times);
            turn.say(Reason::Paroled { who, cause, for_s, times });
        }
    }
    begin_refill(turn, Cause::Crashed, None);
    // What came between cannot be told from what was done.
    if let Some(trial) = turn.memory.trial.take() {
        turn.say(Reason::Unjudged { aim: trial.aim, overtaken: true });
    }
}

/// What the scheduler did by itself is no action of this policy: it is not judged as one, and begins no cool-down.
fn orders(turn: &mut Turn<'_>) {
    if !turn.snapshot.ordered {
        return;
    }
    if let Some(trial) = turn.memory.trial.take() {
        turn.say(Reason::Unjudged { aim: trial.aim, overtaken: true });
    }
    // Nor is the size of before one to go back to.
    turn.memory.excess = 0;
    turn.memory.last_good = None;
}

/// Remembers that lost capacity is to be replaced: up to what ran well last, else to `first` (a job that never ran
/// well was given its first nodes by somebody who meant it).
pub(super) fn begin_refill(turn: &mut Turn<'_>, cause: Cause, first: Option<Capacity>) {
    if !turn.settings.refill || turn.memory.refill.is_some() {
        return;
    }
    if let Some(to) = turn.memory.last_good.or(first) {
        let tick = turn.memory.tick;
        turn.memory.refill = Some(Refill { to, cause, undo: false, tick });
    }
}

/// Terms that end, and what is learned from a cluster that is back and does well.
fn releases(turn: &mut Turn<'_>) {
    let settings = turn.settings;
    let clock = turn.memory.clock_s;
    let period = turn.snapshot.period_s;
    let mut kept = Vec::new();
    for mut entry in std::mem::take(&mut turn.memory.parole) {
        look(turn, &mut entry);
        let why = if clock >= entry.until_s + settings.parole_cap_s {
            Some(Release::Clean)
        } else if clock >= entry.until_s && clock - period < entry.until_s && entry.times > 0 {
            // Told once, in the period in which it ends. A forgiven crash never began a term.
            (entry.cause != Cause::Crashed || entry.times > 1).then_some(Release::Served)
        } else {
            None
        };
        if let Some(why) = why {
            turn.say(Reason::Released { who: entry.who.clone(), why });
        }
        if why != Some(Release::Clean) {
            kept.push(entry);
        }
    }
    turn.memory.parole = kept;
    let needed = turn.memory.requirements.min_bandwidth;
    let (Some(needed), true) = (needed, turn.all.efficiency() >= Some(settings.e_min)) else {
        return;
    };
    let back = turn.memory.parole.iter().find_map(|entry| {
        let Subject::Cluster(cluster) = &entry.who else { return None };
        let settled = turn.memory.tick > entry.tick + turn.settling(settings.cool_down);
        let c = turn.clusters.get(cluster).filter(|c| settled && c.leaving == 0)?;
        let well = c.mean_inter()? < settings.node_threshold;
        let has = turn.snapshot.uplink(cluster).filter(|&has| well && has < needed)?;
        Some((cluster.clone(), has))
    });
    if let Some((cluster, has)) = back {
        turn.memory.requirements.min_bandwidth = Some(has);
        let (from, to) = (Some(needed), Some(has));
        turn.say(Reason::Bandwidth { cluster: Some(cluster), from, to });
    }
}

/// The link of a cluster on parole is measured from time to time, so that it is neither kept out for longer than the link is
/// bad nor tried in vain: a term is renewed that ends with the link measured to be as bad. One that went before its link was
/// measured had, as far as can be known, what is measured first, if that is less than the others have.
fn look(turn: &mut Turn<'_>, entry: &mut Parole) {
    let Subject::Cluster(cluster) = &entry.who else { return };
    let Some(offer) = turn.snapshot.offers.get(cluster).filter(|offer| offer.free > 0) else {
        return;
    };
    if entry.cause != Cause::Link {
        return;
    }
    let (clock, period) = (turn.memory.clock_s, turn.snapshot.period_s);
    let passed = (turn.memory.tick - entry.tick.min(turn.memory.tick)) as f64 * period;
    let ends = clock >= entry.until_s && clock - period < entry.until_s;
    let known = offer.measured_s.filter(|age| *age <= passed).and(offer.bandwidth);
    if entry.measured.is_none() {
        entry.measured = known.filter(|&now| {
            let others = turn.clusters.keys().filter_map(|other| turn.snapshot.uplink(other));
            others.reduce(f64::min).is_some_and(|least| now * turn.settings.better_factor <= least)
        });
    }
    let as_bad = entry.measured.is_some() && !turn.is_better(entry);
    if let Some(bandwidth) = known.filter(|_| ends && as_bad) {
        entry.times = entry.times.saturating_add(1);
        let for_s = term(entry.times, turn.settings);
        entry.until_s = clock + for_s;
        turn.say(Reason::StillSlow { cluster: cluster.clone(), bandwidth, for_s });
    }
    let every = (turn.settings.parole_s * LOOKS).max(period);
    if clock < entry.until_s && clock - entry.looked_s >= every && !turn.is_better(entry) {
        entry.looked_s = clock;
        turn.say(Reason::Measures { cluster: cluster.clone() });
        turn.actions.push(Action::Measure { cluster: cluster.clone() });
    }
}

/// Whether the root has arrived. A move that takes too long is forgotten, so that it is asked for anew.
fn root(turn: &mut Turn<'_>) {
    let Some(moving) = turn.memory.root_move.clone() else { return };
    let late = turn.memory.tick > moving.tick + u64::from(turn.settings.request_patience);
    let there = turn.snapshot.root.as_ref().is_none_or(|root| root.node != moving.from);
    if late || there {
        turn.memory.root_move = None;
        turn.memory.owed = (there && moving.then_goes).then_some(moving.from);
    } else {
        turn.say(Reason::RootUnderWay { from: moving.from, to: moving.to });
    }
}

/// Forgets sizes that did not help, when their time is over or conditions have changed.
fn limits(turn: &mut Turn<'_>, efficiency: f64) {
    let (clock, cap) = (turn.memory.clock_s, turn.settings.parole_cap_s);
    let memory = &mut turn.memory;
    memory.ceiling = memory
        .ceiling
        .take()
        .filter(|l| clock < l.until_s + cap && efficiency <= l.efficiency + CHANGED);
    memory.floor = memory
        .floor
        .take()
        .filter(|l| clock < l.until_s + cap && efficiency >= l.efficiency - CHANGED / 2.0);
}

/// Remembers the capacity of a period in which the job ran well and nothing was under way.
pub(super) fn remember_good(turn: &mut Turn<'_>) {
    let all = &turn.all;
    let still = all.joining == 0
        && all.leaving == 0
        && all.silent == 0
        && turn.snapshot.requested == 0
        && turn.snapshot.leaving.is_empty();
    let Memory { refill, trial, migration, .. } = &turn.memory;
    if still && refill.is_none() && trial.is_none() && migration.is_none() {
        turn.memory.last_good = Some(Capacity { nodes: all.counted, speed: all.speed });
    }
}
