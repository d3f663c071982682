//! Updates the memory from a period: crashes, ends of quarantines, the root's move, the last
//! capacity with good efficiency. This module chooses no actions, so a run that is only monitored
//! keeps all updates.

use springtide_base::id::ClusterId;
use springtide_base::processors::Processors;

use super::change::{Crash, QuarantineSubject, RemovalCause};
use super::decision_state::DecisionState;
use super::memory::{Capacity, Iterations, Memory, QuarantineEntry, Refill, term};
use super::reason::{QuarantineEndReason, Reason};
use super::shrink::is_slow;
use super::snapshot::JobProgress;
use super::worker::SPAN_MAX;

/// Change of efficiency at which a size that did not help may be tried again early.
const EFFICIENCY_CHANGE_MIN: f64 = 0.1;

/// Maximum seconds for which leaving nodes delay the others. A slower node ends without handing all
/// back.
const LEAVING_S: f64 = 60.0;

/// Interval of measuring a quarantined cluster's link, as a fraction of the first term.
const PROBE_INTERVAL_FRACTION: f64 = 0.2;

/// Maximum periods by which a term is extended for a measurement of the link.
const EXTENSIONS_MAX: u32 = 3;

/// Maximum measurements of unknown links in a period.
const MEASURED_MAX: usize = 2;

/// Updates the memory from the period.
pub(super) fn observe(turn: &mut DecisionState<'_>) {
    if !turn.all.counted.is_zero() {
        turn.memory.max_speed = Some(turn.all.max_speed);
    }
    estimate_iterations(turn);
    record_crashes(turn);
    handle_orders(turn);
    end_quarantines(turn);
    measure_unknown_links(turn);
    check_root_move(turn);
    note_slow_root(turn);
    let memory = &mut turn.memory;
    memory.requested_since =
        (!turn.snapshot.requested.is_zero()).then(|| memory.requested_since.unwrap_or(memory.tick));
    let Some(efficiency) = turn.all.efficiency() else { return };
    turn.memory.measured = Some(turn.measured());
    let bad = efficiency < turn.settings.e_min && !turn.is_unsettled();
    turn.memory.below = if bad { turn.memory.below.saturating_add(1) } else { 0 };
    let all = &turn.all;
    let reason = Reason::Efficiency {
        efficiency,
        processors: all.counted,
        stale: all.stale,
        joining: all.joining,
        leaving: all.leaving,
        silent: all.silent,
        presumed: all.presumed,
        error: all.efficiency_error().unwrap_or(0.0),
    };
    turn.add_reason(reason);
    drop_outdated_limits(turn, efficiency);
}

/// Estimates the length of the job's iterations. Phases of an iteration differ, so a period within
/// one does not represent the job.
fn estimate_iterations(turn: &mut DecisionState<'_>) {
    turn.memory.synchronous = turn.snapshot.synchronous;
    let Some(JobProgress { done, total: Some(_) }) = turn.snapshot.progress else { return };
    let memory = &mut turn.memory;
    let now = memory.clock_s;
    memory.iterations = Some(match memory.iterations {
        Some(known) if done > known.done => {
            let period_s = turn.snapshot.period_s;
            // The job's first iteration started with it, and ended about half a period ago.
            let first = known.done == 0 && known.at_s <= period_s;
            let took = if first { now - period_s / 2.0 } else { now - known.at_s };
            let last = took / (done - known.done) as f64;
            // Ends are observed at the ends of periods, with an error of up to a period. Smoothing
            // removes it.
            let seen_late = |known: f64| (last - known).abs() < 1.01 * period_s;
            let smooth = |known: f64| {
                if seen_late(known) { known + (last - known) / 3.0 } else { last }
            };
            let length = known.length_s.map_or(last, smooth);
            // The first observed iteration may have started long before.
            let whole = known.done > 0 || first;
            Iterations { done, at_s: now, length_s: whole.then_some(length).or(known.length_s) }
        }
        // A new root continues from a checkpoint.
        Some(known) if done < known.done => Iterations { done, at_s: now, ..known },
        Some(known) => known,
        None => Iterations { done, at_s: now, length_s: None },
    });
    let length = memory.iterations.and_then(|known| known.length_s);
    let periods = length.map_or(1.0, |length| length / turn.snapshot.period_s);
    // The cast saturates; `validate` refuses a period that is not a positive number.
    let span = (periods.ceil() as u32).clamp(1, SPAN_MAX);
    // Between one and two periods, the span decides whether a period covers an iteration. In longer
    // spans a difference of one is insignificant.
    let other = match memory.span {
        1 => periods > 1.1,
        known => periods <= 0.9 || span.abs_diff(known) > 1,
    };
    if other {
        let is_longer = span > memory.span;
        memory.span = span;
        if !is_longer {
            return;
        }
        // The clusters learn the span now; their next aggregates still use the shorter one, which
        // covers a part of an iteration.
        let until = memory.tick + 1;
        memory.cool_until = memory.cool_until.max(until);
        memory.unsettled_until = memory.unsettled_until.max(until);
    }
}

/// Marks the start of a root that continues from a checkpoint: the nodes get new tasks, so earlier
/// periods say nothing about this one.
pub(super) fn mark_new_root(turn: &mut DecisionState<'_>) {
    turn.memory.below = 0;
    turn.mark_mixed();
}

/// Marks periods in which measurements reflect a recovery.
///
/// This is so shortly after a loss or after the root's node was lost (`fell_over`), and while
/// members are silent or leaving. The others wait for their tasks then. (A cluster behind 100 kB/s
/// took 19 s to hand back its tasks; meanwhile four healthy nodes looked idle.)
pub(super) fn mark_unsettled(turn: &mut DecisionState<'_>, fell_over: bool) {
    let crashed = |crash: &Crash| !turn.snapshot.leaving.contains_key(&crash.node);
    let lost = fell_over || turn.snapshot.crashes.iter().any(crashed);
    let silent = !turn.all.silent.is_zero() || turn.snapshot.is_silent();
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
        turn.mark_mixed();
    }
    let memory = &mut turn.memory;
    memory.unsettled_until = memory.unsettled_until.max(memory.tick + periods);
}

/// Records capacity lost to crashes for replacement. Leaves are intended, and do not count.
fn record_crashes(turn: &mut DecisionState<'_>) {
    let crashes: Vec<_> = turn.snapshot.crashes.iter().collect();
    let unplanned: Vec<_> =
        crashes.into_iter().filter(|c| !turn.snapshot.leaving.contains_key(&c.node)).collect();
    if unplanned.is_empty() {
        return;
    }
    for crash in &unplanned {
        turn.add_reason(Reason::Crashed {
            node: crash.node.clone(),
            cluster: crash.cluster.clone(),
        });
        let settings = turn.settings;
        let who = QuarantineSubject::Node(crash.node.clone());
        let entry = turn.memory.quarantine(who, RemovalCause::Crashed, None, 0.0, settings);
        let for_s = entry.until_s - turn.memory.clock_s;
        if for_s > 0.0 {
            let (who, cause, times) = (entry.subject, entry.cause, entry.count);
            turn.add_reason(Reason::Quarantined { who, cause, for_s, times });
        }
    }
    begin_refill(turn, RemovalCause::Crashed, None);
    // The effects of the crash and of the action are indistinguishable.
    if let Some(trial) = turn.memory.trial.take() {
        turn.add_reason(Reason::Unjudged { aim: trial.aim, overtaken: true });
    }
}

/// Handles changes by the scheduler: they are not actions of this policy, are not judged, and start
/// no cool-down.
fn handle_orders(turn: &mut DecisionState<'_>) {
    if !turn.snapshot.ordered {
        return;
    }
    if let Some(trial) = turn.memory.trial.take() {
        turn.add_reason(Reason::Unjudged { aim: trial.aim, overtaken: true });
    }
    // The earlier size is not a reference either.
    turn.memory.excess = Processors::ZERO;
    turn.memory.last_good = None;
}

/// Starts the replacement of lost capacity: up to the last capacity with good efficiency, else up
/// to `first`. A job that never ran well was given its first nodes on purpose.
pub(super) fn begin_refill(
    turn: &mut DecisionState<'_>,
    cause: RemovalCause,
    first: Option<Capacity>,
) {
    if !turn.settings.refill || turn.memory.refill.is_some() {
        return;
    }
    if let Some(to) = turn.memory.last_good.or(first) {
        let tick = turn.memory.tick;
        turn.memory.refill = Some(Refill { to, cause, undo: false, tick });
    }
}

/// Ends terms of quarantine, and learns from a returned cluster that performs well.
fn end_quarantines(turn: &mut DecisionState<'_>) {
    let settings = turn.settings;
    let clock = turn.memory.clock_s;
    let period = turn.snapshot.period_s;
    let mut kept = Vec::new();
    for mut entry in std::mem::take(&mut turn.memory.quarantine) {
        probe_link(turn, &mut entry);
        let why = if clock >= entry.until_s + settings.quarantine_max_s {
            Some(QuarantineEndReason::Clean)
        } else if clock >= entry.until_s && clock - period < entry.until_s && entry.count > 0 {
            // Reported once, in the period of the end. A forgiven crash has no term.
            (entry.cause != RemovalCause::Crashed || entry.count > 1)
                .then_some(QuarantineEndReason::Served)
        } else {
            None
        };
        if let Some(why) = why {
            turn.add_reason(Reason::QuarantineEnded { who: entry.subject.clone(), why });
        }
        if why != Some(QuarantineEndReason::Clean) {
            kept.push(entry);
        }
    }
    turn.memory.quarantine = kept;
    let needed = turn.memory.requirements.min_bandwidth;
    let (Some(needed), true) = (needed, turn.all.efficiency() >= Some(settings.e_min)) else {
        return;
    };
    let back = turn.memory.quarantine.iter().find_map(|entry| {
        let QuarantineSubject::Cluster(cluster) = &entry.subject else { return None };
        let settled = turn.memory.tick > entry.tick + turn.settling(settings.cool_down);
        let c = turn.clusters.get(cluster).filter(|c| settled && c.leaving.is_zero())?;
        let well = c.mean_inter()? < settings.node_threshold;
        let has = turn.snapshot.uplink(cluster).filter(|&has| well && has < needed)?;
        Some((cluster.clone(), has))
    });
    if let Some((cluster, has)) = back {
        turn.memory.requirements.min_bandwidth = Some(has);
        let (from, to) = (Some(needed), Some(has));
        turn.add_reason(Reason::Bandwidth { cluster: Some(cluster), from, to });
    }
}

/// Measures the link of a quarantined cluster at intervals.
///
/// So the cluster is neither excluded for longer than its link is bad, nor tried in vain. A term is
/// renewed if the link is measured to be as bad at its end. Where no bandwidth was known at the
/// removal, the first measurement counts if it is below the others'.
fn probe_link(turn: &mut DecisionState<'_>, entry: &mut QuarantineEntry) {
    let QuarantineSubject::Cluster(cluster) = &entry.subject else { return };
    let Some(offer) = turn.snapshot.offers.get(cluster).filter(|offer| !offer.free.is_zero())
    else {
        return;
    };
    if entry.cause != RemovalCause::Link {
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
    if ends && known.is_none() && entry.extended < EXTENSIONS_MAX {
        // The link may be as bad as it was: it is measured before its cluster is tried again.
        entry.extended += 1;
        entry.until_s = clock + period;
        entry.measured_at_s = clock;
        turn.measure(cluster);
        return;
    }
    let as_bad = entry.measured.is_some() && !turn.is_better(entry);
    if let Some(bandwidth) = known.filter(|_| ends && as_bad) {
        entry.count = entry.count.saturating_add(1);
        entry.extended = 0;
        let for_s = term(entry.count, turn.settings);
        entry.until_s = clock + for_s;
        turn.add_reason(Reason::StillSlow { cluster: cluster.clone(), bandwidth, for_s });
    }
    let interval = (turn.settings.quarantine_s * PROBE_INTERVAL_FRACTION).max(period);
    if clock < entry.until_s && clock - entry.measured_at_s >= interval && !turn.is_better(entry) {
        entry.measured_at_s = clock;
        turn.measure(cluster);
    }
}

/// Measures unknown links of free nodes once the job has learned a minimum bandwidth, so that the
/// next request knows which clusters suffice.
fn measure_unknown_links(turn: &mut DecisionState<'_>) {
    if turn.memory.requirements.min_bandwidth.is_none() {
        return;
    }
    let (clock, settings) = (turn.memory.clock_s, turn.settings);
    let interval = (settings.quarantine_s * PROBE_INTERVAL_FRACTION).max(turn.snapshot.period_s);
    let quarantined = |cluster: &ClusterId| {
        let who = QuarantineSubject::Cluster(cluster.clone());
        turn.memory.quarantine.iter().any(|entry| entry.subject == who)
    };
    let ordered = |cluster: &ClusterId| {
        let probe = turn.memory.links.probes.get(cluster);
        probe.is_some_and(|probe| clock - probe.ordered_at_s < interval)
    };
    let offers = turn.snapshot.offers.iter();
    let unknown = offers.filter(|(_, offer)| !offer.free.is_zero() && offer.bandwidth.is_none());
    let unknown = unknown.filter(|(cluster, _)| !ordered(cluster) && !quarantined(cluster));
    let unknown: Vec<ClusterId> =
        unknown.map(|(cluster, _)| cluster.clone()).take(MEASURED_MAX).collect();
    for cluster in unknown {
        turn.memory.links.probes.entry(cluster.clone()).or_default().ordered_at_s = clock;
        turn.measure(&cluster);
    }
}

/// Counts the periods in which the root's node is slow.
fn note_slow_root(turn: &mut DecisionState<'_>) {
    let mut named = turn.clusters.values().flat_map(|c| c.worst.iter().chain(&c.best));
    let slow = named.find(|w| turn.holds_root(&w.node) && is_slow(turn, w));
    let node = slow.map(|w| w.node.clone());
    let seen = &mut turn.memory.slow_root;
    seen.periods = match &node {
        Some(_) if node == seen.node => seen.periods.saturating_add(1),
        Some(_) => 1,
        None => 0,
    };
    seen.node = node;
}

/// Checks whether the root has arrived. A move that takes too long is dropped, and may be requested
/// again.
fn check_root_move(turn: &mut DecisionState<'_>) {
    let Some(moving) = turn.memory.root_move.clone() else { return };
    let late = turn.memory.tick > moving.tick + u64::from(turn.settings.request_patience);
    let there = turn.snapshot.root.as_ref().is_none_or(|root| root.node != moving.from);
    if late || there {
        turn.memory.root_move = None;
        turn.memory.pending_removal = (there && moving.then_goes).then_some(moving.from);
    } else {
        turn.add_reason(Reason::RootUnderWay { from: moving.from, to: moving.to });
    }
}

/// Deletes limits whose time is over or whose conditions have changed.
fn drop_outdated_limits(turn: &mut DecisionState<'_>, efficiency: f64) {
    let (clock, cap) = (turn.memory.clock_s, turn.settings.quarantine_max_s);
    let memory = &mut turn.memory;
    memory.ceiling = memory
        .ceiling
        .take()
        .filter(|l| l.undone || clock < l.until_s + cap)
        .filter(|l| efficiency <= l.efficiency + EFFICIENCY_CHANGE_MIN);
    memory.floor = memory
        .floor
        .take()
        .filter(|l| l.undone || clock < l.until_s + cap)
        .filter(|l| efficiency >= l.efficiency - EFFICIENCY_CHANGE_MIN / 2.0);
}

/// Records the capacity of a period in which the job ran well and no change was under way.
pub(super) fn remember_good(turn: &mut DecisionState<'_>) {
    let all = &turn.all;
    let still = all.joining.is_zero()
        && all.leaving.is_zero()
        && all.silent.is_zero()
        && turn.snapshot.requested.is_zero()
        && turn.snapshot.leaving.is_empty();
    let Memory { refill, trial, migration, .. } = &turn.memory;
    if still && refill.is_none() && trial.is_none() && migration.is_none() {
        turn.memory.last_good = Some(Capacity { processors: all.counted, speed: all.speed });
    }
}
