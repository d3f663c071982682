//! The adaptation policy: `(snapshot, memory, settings) -> (decision, memory')`. No actors, no I/O, no clock, no
//! randomness; the same inputs give the same decision to the bit, here, in a simulation and from a log.
//!
//! Source: Wrzesinska, Maassen, Bal, *Self-adaptive applications on the grid*, PPoPP 2007 (below: the paper). What it
//! leaves open, contradicts itself in, or names as future work is decided here; B6.n are the open points of
//! the specification, Cn its traps.
//!
//! # The rules
//!
//! **What counts**
//! 1. Weighted average efficiency is `1/n * sum speed_i * (1 - overhead_i)`, `n` terms (the paper's sum from 0 to n
//!    is a slip (B6.3)), speeds relative to the fastest *that is there*. Sums are exact, so the sum over clusters is
//!    the flat formula.
//!    A worker that reports and has not worked yet counts as one of its fellows' speed that waits.
//!    Of a job that tells of its iterations overheads are means over one of them, for its phases differ; what is judged waits as
//!    long, and before the first is over the job grows at most once and does not shrink.
//! 2. Workers in their grace period (B6.7), leaving ones (B6.7) and those silent for too long do not count. A missing
//!    report is made up for by the last one while it is young (the paper, 3.2).
//! 3. A report of nonsense counts as a missing one and is flagged; a cluster whose numbers contradict each other is
//!    set aside.
//! 4. Overhead between clusters is what the meter charges to it: idle with only a steal between clusters outstanding
//!    too (B6.6). Because that is also what too little work looks like, rule 12 wants more than the paper's threshold.
//! 5. Bandwidths are those of transfers above the meter's size floor (B6.8); unknown is unknown, and nothing is learned
//!    from it.
//!
//! **How many** (B6.1)
//! 6. Above Emax: so many as bring efficiency to the band's middle if the useful capacity stayed as it is, rounded
//!    down, at most doubling. All under way count: joining, asked for as the *scheduler* says (what was lost is asked
//!    anew, C23, C29). If one more would already leave the band, none (small jobs would flap).
//! 7. Below Emin: the same downwards, at most halving; only after some bad periods in a row (C21, C22), and what was
//!    asked for is withdrawn first: up and down are never decided together (C21).
//! 8. After a removal for cause or a crash, while efficiency is above Emin: up to the last good capacity, else the
//!    first (B6.2). The paper's text adds nodes above Emax = 0.5 only, yet its scenarios 2, 3 (35 %) and 5 (30 %) add
//!    nodes, and 4 (40 %) does not: no rule reproduces all of them. With this one 2, 3 and 5 end as the paper's do
//!    and 4 ends better; [`Settings::refill`] off is the paper's text, by which 4 ends as it does.
//! 9. Never below the job's minimum (one node at least), above its maximum, or without a last cluster (B6.9).
//!    Crossing a bound (a crash, a changed bound) is mended at once, cool-down or not.
//!     After a loss (a crash, a root that another took over) and while members are silent nobody goes: others wait for
//!     what was lost, which looks like a bad link or too little work.
//! 10. After an action a cool-down (B6.5); none about the job's end (C27: a tail must not lose the holders of its
//!     results). Durations of tasks play no part (C30).
//!
//! **Who goes** (B6.4)
//! 11. By badness `alpha / speed + beta * inter + gamma * in worst cluster`. Bad nodes (slow against the *mean* speed
//!     beyond their error, or with a link that stands out) go alone first; healthy ones only when there is no bad
//!     one, for then the job has too much of everything (B6.5). Only bad ones go on the parole list. A cluster's
//!     badness takes its mean speed, not the sum, by which a small healthy cluster would always be bad; of clusters
//!     about equally bad the smallest goes first.
//! 12. A whole cluster goes, after one bad period, if its mean inter-cluster overhead is above the threshold and
//!     stands out or its link is measured to be the bottleneck; one at a time, for it makes others wait too (C34): of one that
//!     stands out and another that does no more behind a far narrower link, the other goes. As in the paper only below Emin.
//! 13. The root's node is never simply removed (B6.9): the root moves to a node of another cluster first, by speed and by
//!     what the cluster's uplink carries. If nothing is wrong with it, another node goes. So too if somebody else asked it to leave.
//! 14. Every removal is a leave with notice (C31), none names joiners or leaving nodes, and no leaving node is a
//!     target of anything (C25, C26). A planned leave is no crash (C28).
//!
//! **What is learned**
//! 15. Each action predicts efficiency and useful speed; settled periods after it are compared, by *useful speed*,
//!     for efficiency jumps when the fastest node comes or goes (B6.3). Removal that took away work nobody took over is
//!     undone, its parole and requirements are taken back, the term that chose loses weight (B6.4). Growth without gain
//!     is not repeated, growth that did harm is undone. Both are tried again after a while (doubling, capped) or when
//!     efficiency shows that conditions have changed.
//! 16. The least bandwidth rises above that of a cluster removed for its link, never above what suffices elsewhere,
//!     and falls when such a cluster is back and does well. The least speed rises likewise, never above what makes a
//!     node slow. Both are taken back with a removal that did harm.
//! 17. Parole, not a blacklist: terms double up to a cap, and end early when a node or link is measured better.
//! 18. The job moves to better free nodes within the band if the gain over the remaining run beats the cost of
//!     moving.
//! 19. A successor goes on from the newest memory; a coordinator of an older epoch decides nothing (C24).
//!
//! The cost of benchmarks (B6.10) is the meter's to bound; here only their error counts.

mod aggregate;
mod decision;
mod explain;
mod grow;
mod judge;
pub mod malleability;
mod memory;
mod migrate;
mod number;
mod observe;
pub mod provisioning;
mod reason;
mod sentence;
mod settings;
mod shrink;
mod snapshot;
mod turn;
mod worker;

#[cfg(test)]
mod case;
#[cfg(test)]
mod model;
#[cfg(test)]
mod tests_open_points;
#[cfg(test)]
mod tests_phases;
#[cfg(test)]
mod tests_properties;
#[cfg(test)]
mod tests_scenarios;
#[cfg(test)]
mod tests_tables;
#[cfg(test)]
mod tests_traps;

use std::collections::BTreeSet;

pub use aggregate::{Agreed, ClusterAggregate, Idle, Named, Overall, Uplink};
pub use decision::{Action, Cause, Decision, Flag, Prediction, Request};
pub use explain::{ADAPT, Divergence, Inputs, Logged, action, replay, tell, tell_node};
pub use memory::{
    Aim, Capacity, Iterations, Limit, MOST_PAROLE, Measured, Memory, Migration, Parole, Refill,
    Requirements, RootMove, Subject, Term, Trial,
};
pub use number::ExactSum;
pub use reason::{Evidence, Kept, Reason, Release, RootWhy};
pub use settings::{Contradiction, Contradictions, Frame, Settings, Weights};
pub use snapshot::{Crash, LinkEstimate, Mode, Offer, Progress, Root, Snapshot};
pub use worker::{Field, History, Oddity, WorkerStats};

use turn::Turn;

/// Decides one period. See the module's rules.
///
/// Whoever carries the decision out does `actions` in their order and hands the memory to the next period and to
/// every cluster coordinator. `settings` must be [valid](Settings::validate).
pub fn decide(snapshot: &Snapshot, memory: &Memory, settings: &Settings) -> (Decision, Memory) {
    if let Some(reason) = fence(snapshot, memory) {
        let flags = BTreeSet::from([Flag::Fenced]);
        return (Decision { why: vec![reason], flags, ..Decision::default() }, memory.clone());
    }
    let mut memory = memory.clone();
    // A root that moved by order left nobody waiting.
    let fell_over = memory.tick > 0 && snapshot.epoch > memory.epoch && memory.root_move.is_none();
    (memory.epoch, memory.period) = (snapshot.epoch, snapshot.period);
    memory.tick += 1;
    if snapshot::is_rate(snapshot.period_s) {
        memory.clock_s += snapshot.period_s;
    }
    if snapshot.mode == Mode::Static {
        let why = vec![Reason::Static];
        return (Decision { why, ..Decision::default() }, memory);
    }
    let presumed = aggregate::presumed(&snapshot.clusters, settings.named)
        .map(|clusters| Snapshot { clusters, ..snapshot.clone() });
    let snapshot = presumed.as_ref().unwrap_or(snapshot);
    let mut turn = Turn::new(snapshot, memory, settings);
    observe::unsettled(&mut turn, fell_over);
    observe::observe(&mut turn);
    judge::judge(&mut turn);
    if turn.all.efficiency() >= Some(settings.e_min) {
        observe::remember_good(&mut turn);
    }
    let observed = turn.memory.clone();
    choose(&mut turn);
    let mut decision = Decision {
        efficiency: turn.all.efficiency(),
        nodes: turn.all.counted,
        actions: turn.actions,
        withheld: Vec::new(),
        prediction: turn.prediction,
        why: turn.why,
        flags: turn.flags,
    };
    if snapshot.mode == Mode::Monitor {
        // What is not done has no effect to be judged and nothing to be waited for.
        decision.withheld = std::mem::take(&mut decision.actions);
        decision.flags.insert(Flag::MonitorOnly);
        let actions = decision.withheld.len() as u32;
        decision.why.push(Reason::Monitored { actions });
        return (decision, observed);
    }
    (decision, turn.memory)
}

/// Whether there is nothing to decide: a former coordinator asks, or the same thing is asked twice.
fn fence(snapshot: &Snapshot, memory: &Memory) -> Option<Reason> {
    if snapshot.epoch < memory.epoch {
        return Some(Reason::StaleEpoch { asked: snapshot.epoch, known: memory.epoch });
    }
    let again = snapshot.epoch == memory.epoch && snapshot.period <= memory.period;
    (again && memory.tick > 0).then_some(Reason::Repeated { period: snapshot.period })
}

/// The rules in their order: the first that applies decides the size.
fn choose(turn: &mut Turn<'_>) {
    let leaving = &turn.snapshot.leaving;
    if turn.snapshot.root.as_ref().is_some_and(|root| leaving.contains(&root.node)) {
        turn.move_root(RootWhy::Leaving, &BTreeSet::new(), None);
    }
    if turn.expected < turn.least() {
        return grow::up_to_minimum(turn);
    }
    if turn.staying < turn.least() && grow::renew(turn) {
        return;
    }
    if turn.staying > turn.most() {
        return shrink::down_to_maximum(turn);
    }
    let Some(efficiency) = turn.all.efficiency() else {
        let (joining, silent) = (turn.all.joining, turn.all.silent);
        return turn.say(Reason::NothingMeasured { joining, silent });
    };
    if shrink::owed(turn) {
        return;
    }
    if turn.memory.tick <= turn.memory.cool_until {
        let periods = turn.memory.cool_until - turn.memory.tick + 1;
        return turn.say(Reason::CoolDown { periods });
    }
    let near = f64::from(turn.settings.near_end);
    let near = (near * turn.snapshot.period_s).min(turn.settings.settle_s);
    if let Some(remaining_s) = turn.snapshot.remaining_s().filter(|&left| left < near) {
        return turn.say(Reason::NearEnd { remaining_s });
    }
    let (e_min, e_max) = (turn.settings.e_min, turn.settings.e_max);
    if shrink::undo_growth(turn) {
        return;
    }
    // Before the band: the nodes that are to go are still there, so that efficiency may be low for a while.
    if migrate::proceed(turn) {
        return;
    }
    if efficiency < e_min {
        return shrink::below(turn, efficiency);
    }
    if efficiency > e_max {
        grow::above(turn, efficiency);
        if turn.expected >= turn.most() {
            migrate::consider(turn);
        }
        return;
    }
    if grow::refill(turn) {
        return;
    }
    grow::withdraw(turn, false);
    turn.say(Reason::InBand { e_min, e_max });
    migrate::consider(turn);
}
