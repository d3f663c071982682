//! What is remembered of a period before anything is decided: crashes, terms that end, the root's way, capacity that
//! ran well. Must not choose actions: a run that is only monitored keeps all of this.

use super::decision::Cause;
use super::memory::{Capacity, Memory, Refill, Subject};
use super::reason::{Reason, Release};
use super::snapshot::Crash;
use super::turn::Turn;

/// Efficiency by which conditions must differ for a size that did not help to be tried again early.
const CHANGED: f64 = 0.1;

/// Takes the period in.
pub(super) fn observe(turn: &mut Turn<'_>) {
    if turn.all.counted > 0 {
        turn.memory.max_speed = Some(turn.all.max_speed);
    }
    crashes(turn);
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
    };
    turn.say(said);
    limits(turn, efficiency);
}

/// Whether what is measured tells of a recovery: something was lost shortly before, or the root's node was (`fell_over`), or
/// members are silent, whose tasks the others wait for.
pub(super) fn unsettled(turn: &mut Turn<'_>, fell_over: bool) {
    let crashed = |crash: &Crash| !turn.snapshot.leaving.contains(&crash.node);
    let lost = fell_over || turn.snapshot.crashes.iter().any(crashed);
    let silent = turn.all.silent > 0 || turn.snapshot.is_silent();
    let periods = match (lost, silent) {
        (true, _) => u64::from(turn.settings.settling(turn.settings.cool_down)),
        (false, true) => 0,
        (false, false) => return,
    };
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
    for entry in std::mem::take(&mut turn.memory.parole) {
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
        let settled =
            turn.memory.tick > entry.tick + u64::from(settings.settling(settings.cool_down));
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
