//! The adaptation policy: a pure function `(snapshot, memory, settings) -> (decision, memory')`.
//!
//! It has no actors, no I/O, no clock and no randomness. The same inputs give the same decision to
//! the bit: in a run, in a simulation and in a replay of a log.
//!
//! Source: Wrzesinska, Maassen, Bal, *Self-adaptive applications on the grid*, PPoPP 2007 (below:
//! the paper). This module decides the points that the paper leaves open, contradicts or names as
//! future work. B6.n are the open points of the specification, Cn its traps.
//!
//! # The rules
//!
//! **Measurement**
//! 1. Weighted average efficiency is `1/n * sum speed_i * (1 - overhead_i)` over `n` processors
//!    (the paper's sum from 0 to n is a slip, B6.3). A processor is a compute thread of a worker.
//!    Speeds are relative to the fastest *present* processor. All sizes, bounds, requests and
//!    offers count processors. A node whose number is unknown counts as one processor. Sums are
//!    exact, so the sum over clusters equals the flat formula. A worker that reports but has no
//!    measured speed counts with its cluster's mean speed. So does a processor that the master of
//!    other workers occupies, with the mean of all else too: it is not there to compute. Speeds of
//!    different units are never mixed. For a job that reports its iterations, overheads are means
//!    over one iteration, since the phases of an iteration differ. Judgements wait for a whole
//!    iteration, and the size stays while one is overdue. Until the first one ends, the job grows
//!    at most once and does not shrink.
//! 2. Workers in their grace period, leaving workers (both B6.7) and workers that are silent for
//!    too long do not count. A recent last report replaces a missing one (the paper, 3.2).
//! 3. An implausible report counts as a missing one and is flagged. A cluster whose numbers
//!    contradict each other is excluded.
//! 4. Inter-cluster overhead is what the meter charges to it. This includes idle time with only an
//!    inter-cluster steal outstanding (B6.6). Too little work looks the same, so rule 12 requires
//!    more than the paper's threshold.
//! 5. Bandwidths come from transfers above the meter's minimum size (B6.8). An unknown bandwidth
//!    stays unknown, and nothing is learned from it.
//!    An efficiency has a standard error: from the errors of speeds, which grow with age, and the
//!    scatter of overheads between windows. While its interval of two standard errors includes the
//!    bound of a decision, the size stays. A doubt that lasts orders new measurements of speeds,
//!    and ends with a decision.
//!
//! **Size** (B6.1)
//! 6. Above Emax: the job grows to the size that brings efficiency to the middle of the band if the
//!    useful capacity stayed the same. The size is rounded down and at most doubles. Processors
//!    under way count: those joining, and those requested according to the *scheduler* (lost
//!    requests are repeated, C23, C29). If one more node would leave the band, the job does not
//!    grow: small jobs would oscillate. Before any speed is measured, a job grows if its processors
//!    are busy: in the first period, for most. There is no trial of such growth. If efficiency is
//!    below Emin after it, the job may return to its earlier size at once. A request that nothing
//!    free can meet stays.
//! 7. Below Emin: the job shrinks by the same formula, at most to half. It shrinks only after
//!    several bad periods in a row (C21, C22). Outstanding requests are withdrawn first: one
//!    decision never both grows and shrinks (C21). If the job grows again after a removal of
//!    healthy nodes, it had a phase with little work. The next such removal waits until efficiency
//!    was low for twice as long, at most for an hour. Nodes are chosen so that their processors fit
//!    the wanted number. A greater node joins if the size comes nearer to the wanted one. If no
//!    other fits, it joins where the predicted efficiency stays at Emin or above. A greater healthy
//!    node leaves only if the size comes nearer to the wanted one. The worst bad node leaves in any
//!    case, as far as the minimum permits.
//! 8. After a removal for cause or a crash, while efficiency is above Emin: the job grows up to the
//!    last good capacity, else the first one (B6.2). The paper's text adds nodes above Emax = 0.5
//!    only. Yet its scenarios 2, 3 (35 %) and 5 (30 %) add nodes, and 4 (40 %) does not: no rule
//!    reproduces all of them. With this rule, 2, 3 and 5 end as in the paper and 4 ends better.
//!    With [`AdaptationSettings::refill`] off, the policy follows the paper's text, and 4 ends as
//!    in the paper.
//! 9. The job never falls below its minimum (at least one node), exceeds its maximum, or loses its
//!    last cluster (B6.9). A violated bound (after a crash or a changed bound) is corrected at
//!    once, even in a cool-down. After a loss (a crash, a root taken over by a successor) and while
//!    members are silent, no node is removed. The others wait for the lost results then, which
//!    looks like a bad link or too little work.
//! 10. A cool-down follows each action (B6.5). Near the job's end there is no action (C27: removals
//!     would lose the holders of the last results). Durations of tasks play no part (C30).
//!
//! **Selection of nodes to remove** (B6.4)
//! 11. By badness `alpha / speed + beta * inter + gamma * in worst cluster`. The term of the link
//!     counts for a node or cluster whose overhead is exceptional: too little work makes all wait
//!     for steals from other clusters. So the slowest of healthy nodes are removed first. Those
//!     that work most of the time stay, and so do the fastest ones, as many as the work occupies: a
//!     slower processor would take longer for the same task. Bad nodes are removed first and alone.
//!     A node is bad if it is slow against the *mean* speed beyond its error, or if its link
//!     overhead is exceptional. Healthy nodes are removed only if there is no bad one: then the job
//!     has too many nodes (B6.5). Only bad nodes enter quarantine. A cluster's badness uses its
//!     mean speed: by the sum, a small healthy cluster would always be bad. Of clusters with about
//!     equal badness, the smallest is removed first.
//! 12. A whole cluster is removed after one bad period in either of two cases. Its mean
//!     inter-cluster overhead is above the threshold and exceptional, or its link is measured to be
//!     the bottleneck. In a synchronous job no overhead is exceptional, since the fastest processes
//!     wait longest. Before the first iteration ends, the overhead of a cluster that has worked
//!     counts as exceptional only if it lasts. Only one cluster is removed at a time, since its
//!     link makes other clusters wait too (C34). If another cluster behind a far narrower link is
//!     no more productive than the exceptional one, that one is removed instead. A cluster with
//!     more than half of the job's speed is never removed for its link. As in the paper, this
//!     happens only below Emin, and it does not wait for the verdict on another action.
//! 13. The root's node is never simply removed (B6.9). The root first moves to a node of another
//!     cluster, chosen by speed and by the bandwidth of the cluster's uplink. If the root's node is
//!     healthy, another node is removed instead. The root also moves if another party asked its
//!     node to leave. If it saves checkpoints, it also leaves a node that was slow for several
//!     periods, also within the band: all processors wait while it runs the serial part of an
//!     iteration. The next such move waits, each time for longer.
//! 14. Every removal is a leave with notice (C31). No removal names joining or leaving nodes, and
//!     no leaving node is a target of any action (C25, C26). A planned leave is no crash (C28).
//!
//! **Learning**
//! 15. A change of size waits for the verdict on the last one, as far as the verdict's wait is
//!     bounded. Slow nodes and bad links are removed earlier. Replacements are judged together with
//!     the removal before them. Each action predicts efficiency and useful speed. The prediction is
//!     compared with settled periods, by *useful speed*: efficiency jumps when the fastest node
//!     joins or leaves (B6.3). A removal whose work no other node took over is undone: its
//!     quarantine and requirements are revoked, and the badness term that chose it loses weight
//!     (B6.4). Growth without gain is not repeated, and harmful growth is undone. The former is
//!     tried again after a delay (doubling, capped). A size is not tried again either if the job
//!     became faster without the surplus nodes. What was undone is repeated only when
//!     efficiency shows that conditions have changed, or when the removed subject is clearly worse
//!     than at its removal.
//! 16. The minimum bandwidth rises above that of a cluster removed for its link, but never above a
//!     bandwidth that suffices elsewhere. It falls when such a cluster is back and performs well.
//!     The minimum speed rises likewise, but never above the limit at which a node is slow. Both
//!     are revoked with a harmful removal.
//! 17. Quarantine is temporary, unlike a blacklist: terms double up to a cap, and end early when a
//!     node or link is measured better.
//! 18. Within the band, the job migrates to better free nodes if the gain over the remaining run
//!     exceeds the cost of moving.
//! 19. A successor continues with the newest memory. It has all that was learned, of links too, and
//!     all that was observed since the last decision: the same snapshot gives the same decision. A
//!     coordinator of an older epoch decides nothing (C24).
//!
//! The meter bounds the cost of benchmarks (B6.10); this module considers only their error.

mod aggregate;
mod change;
mod decision;
mod decision_state;
mod doubt;
mod explain;
mod grow;
mod judge;
mod links;
mod memory;
mod migrate;
mod number;
mod observe;
mod reason;
mod sentence;
mod settings;
mod shrink;
mod snapshot;
mod worker;

#[cfg(test)]
mod case;
#[cfg(test)]
mod model;
#[cfg(test)]
mod tests_doubt;
#[cfg(test)]
mod tests_guesses;
#[cfg(test)]
mod tests_open_points;
#[cfg(test)]
mod tests_phases;
#[cfg(test)]
mod tests_processors;
#[cfg(test)]
mod tests_properties;
#[cfg(test)]
mod tests_scenarios;
#[cfg(test)]
mod tests_tables;
#[cfg(test)]
mod tests_traps;
#[cfg(test)]
mod tests_verdicts;

use std::collections::BTreeSet;

pub use aggregate::{
    ClusterAggregate, FastestWorker, JobAggregate, RatedWorker, SharedParameters, UnmeasuredWorker,
    UnmeasuredWorkers, Uplink,
};
pub use change::{Aim, Crash, Measured, Prediction, QuarantineSubject, RemovalCause, Term};
pub use decision::{AdaptationAction, Decision, Flag, SchedulerRequest};
pub use explain::{
    ADAPT, Divergence, Inputs, LoggedDecision, describe_action, explain, explain_node, replay,
};
pub use links::{LinkMemory, LinkRank, LinkRanking, Probe, RememberedLink};
pub use memory::{
    Acquittal, Capacity, Doubt, Iterations, Limit, Memory, Migration, QUARANTINE_MAX,
    QuarantineEntry, RecentObservations, Refill, Requirements, RootMove, SurplusPhases, Trial,
};
pub use number::ExactSum;
pub use reason::{Evidence, QuarantineEndReason, Reason, RootMoveReason, StayReason};
pub use settings::{AdaptationSettings, Contradiction, Contradictions, JobBounds, Weights};
pub use snapshot::{JobProgress, LinkEstimate, Mode, NodeOffer, OfferedNode, RootNode, Snapshot};
pub use worker::{Field, ImplausibleValue, WorkerHistory, WorkerStats};

use decision_state::DecisionState;

/// Decides one period by the module's rules.
///
/// The caller executes `actions` in their order. It passes the memory to the next period and to
/// every cluster coordinator. `settings` must be [valid](AdaptationSettings::validate).
pub fn decide(
    snapshot: &Snapshot,
    memory: &Memory,
    settings: &AdaptationSettings,
) -> (Decision, Memory) {
    if let Some(reason) = fence(snapshot, memory) {
        let flags = BTreeSet::from([Flag::Fenced]);
        return (Decision { reasons: vec![reason], flags, ..Decision::default() }, memory.clone());
    }
    let mut memory = memory.clone();
    let is_new_epoch = memory.tick > 0 && snapshot.epoch > memory.epoch;
    // After an ordered move of the root, no node waits for lost results.
    let fell_over = is_new_epoch && memory.root_move.is_none();
    (memory.epoch, memory.period) = (snapshot.epoch, snapshot.period);
    memory.tick += 1;
    if number::is_rate(snapshot.period_s) {
        memory.clock_s += snapshot.period_s;
    }
    if snapshot.mode == Mode::Static {
        let why = vec![Reason::Static];
        return (Decision { reasons: why, ..Decision::default() }, memory);
    }
    let presumed = aggregate::presumed(&snapshot.clusters, settings.named)
        .map(|clusters| Snapshot { clusters, ..snapshot.clone() });
    let snapshot = presumed.as_ref().unwrap_or(snapshot);
    let snapshot = &links::complete(snapshot, &mut memory, settings);
    let mut turn = DecisionState::new(snapshot, memory, settings);
    if is_new_epoch {
        observe::mark_new_root(&mut turn);
    }
    observe::mark_unsettled(&mut turn, fell_over);
    observe::observe(&mut turn);
    judge::judge(&mut turn);
    if turn.all.efficiency() >= Some(settings.e_min) {
        observe::remember_good(&mut turn);
    }
    let mut observed = turn.memory.clone();
    choose(&mut turn);
    if turn.actions.iter().any(AdaptationAction::is_change) {
        turn.memory.doubt = None;
    }
    // New measurements change no nodes, so a monitored run makes them too.
    (observed.doubt, observed.measurements) = (turn.memory.doubt, turn.memory.measurements);
    let mut decision = Decision {
        efficiency: turn.all.efficiency(),
        processors: turn.all.counted,
        actions: turn.actions,
        withheld: Vec::new(),
        prediction: turn.prediction,
        reasons: turn.reasons,
        flags: turn.flags,
    };
    if snapshot.mode == Mode::Monitor {
        // A monitored decision has no effect, so neither a trial nor a cool-down is kept.
        decision.withheld = std::mem::take(&mut decision.actions);
        decision.flags.insert(Flag::MonitorOnly);
        let actions = decision.withheld.len() as u32;
        decision.reasons.push(Reason::Monitored { actions });
        return (decision, observed);
    }
    (decision, turn.memory)
}

/// Returns the reason not to decide: a stale coordinator, or a period that was decided already.
fn fence(snapshot: &Snapshot, memory: &Memory) -> Option<Reason> {
    if snapshot.epoch < memory.epoch {
        return Some(Reason::StaleEpoch { asked: snapshot.epoch, known: memory.epoch });
    }
    let again = snapshot.epoch == memory.epoch && snapshot.period <= memory.period;
    (again && memory.tick > 0).then_some(Reason::Repeated { period: snapshot.period })
}

/// Chooses the actions of a period.
fn choose(turn: &mut DecisionState<'_>) {
    choose_size(turn);
    shrink::move_slow_root(turn);
}

/// Applies the rules in their order; the first that applies decides the size.
fn choose_size(turn: &mut DecisionState<'_>) {
    let leaving = &turn.snapshot.leaving;
    if turn.snapshot.root.as_ref().is_some_and(|root| leaving.contains_key(&root.node)) {
        turn.move_root(RootMoveReason::Leaving, &BTreeSet::new(), None);
    }
    if turn.expected < turn.min_processors() {
        return grow::up_to_minimum(turn);
    }
    if turn.staying < turn.min_processors() && grow::renew(turn) {
        return;
    }
    if turn.staying > turn.max_processors() {
        return shrink::down_to_maximum(turn);
    }
    let Some(efficiency) = turn.all.efficiency() else {
        let (joining, silent) = (turn.all.joining, turn.all.silent);
        if !grow::before_measurement(turn) {
            turn.add_reason(Reason::NothingMeasured { joining, silent });
        }
        return;
    };
    if shrink::remove_owed(turn) {
        return;
    }
    if turn.in_cool_down() {
        let periods = turn.memory.cool_until - turn.memory.tick + 1;
        return turn.add_reason(Reason::CoolDown { periods });
    }
    if let Some(remaining_s) = turn.near_end() {
        return turn.add_reason(Reason::NearEnd { remaining_s });
    }
    let (e_min, e_max) = (turn.settings.e_min, turn.settings.e_max);
    if shrink::undo_growth(turn) {
        return;
    }
    // Precedes the band: the nodes to be replaced are still members, and may lower efficiency for a
    // while.
    if migrate::proceed(turn) {
        return;
    }
    if doubt::waits(turn, efficiency) {
        return;
    }
    if efficiency < e_min {
        return shrink::below(turn, efficiency);
    }
    if efficiency > e_max {
        grow::above(turn, efficiency);
        if turn.expected >= turn.max_processors() {
            migrate::consider(turn);
        }
        return;
    }
    if grow::refill(turn) {
        return;
    }
    grow::withdraw(turn, false);
    turn.add_reason(Reason::InBand { e_min, e_max });
    migrate::consider(turn);
}
