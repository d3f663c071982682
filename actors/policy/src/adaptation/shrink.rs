//! Selection of nodes to remove: a cluster with a bad link, bad nodes, surplus nodes. Never removes
//! the root's node, joining nodes or the last cluster, and respects the job's minimum. Chooses
//! nodes so that their processors fit the number to remove.

use std::collections::BTreeSet;

use springtide_base::id::{ClusterId, NodeId};
use springtide_base::processors::{Processors, select_nodes};

use super::aggregate::{ClusterAggregate, RatedWorker};
use super::change::{Aim, Prediction, QuarantineSubject, RemovalCause, Term};
use super::decision::AdaptationAction;
use super::decision_state::{AS_WIDE, DecisionState};
use super::grow;
use super::memory::{Capacity, Memory, Trial, term};
use super::observe::begin_refill;
use super::reason::{Evidence, Reason, RootMoveReason, StayReason};

/// Factor by which a learned minimum exceeds the insufficient value.
const MARGIN: f64 = 1.1;
/// A cluster's overhead or badness counts as equal to the highest from this fraction of it.
const ALIKE: f64 = 0.8;
/// Fraction of a link's bandwidth from which it counts as full.
const FULL: f64 = 0.5;
/// Below this fraction of the limit of slowness, a node delays all others.
const STRAGGLER: f64 = 0.5;
/// Difference from which an inter-cluster overhead is clearly higher than another one.
const APART: f64 = 0.1;
/// Multiple of the mean speed from which no other processor replaces one.
const FASTER: f64 = 1.2;
/// Maximum staying nodes that a decision reports.
const STAYS_MAX: usize = 4;

/// The nodes that a removal may choose from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RemovalScope {
    /// Bad ones; without any, healthy ones, down to a size not known to do harm.
    Worst,
    /// All nodes, bad ones first, since the job exceeds its maximum.
    Any,
    /// Bad ones only.
    Bad,
    /// Slow nodes only.
    Slow,
}

/// A worker that may be removed, with its terms of badness.
#[derive(Clone)]
struct RemovalCandidate {
    cluster: ClusterId,
    named: RatedWorker,
    speed_term: f64,
    link_term: f64,
    cluster_term: f64,
    /// The problem of the worker; [`Cause::Surplus`] if it is healthy.
    cause: RemovalCause,
    in_doubt: bool,
    /// Why the job needs the worker, if it is healthy and the job does.
    needed: Option<StayReason>,
}

impl RemovalCandidate {
    fn badness(&self) -> f64 {
        self.speed_term + self.link_term + self.cluster_term
    }
}

/// Shrinks below the band.
pub(super) fn below(turn: &mut DecisionState<'_>, efficiency: f64) {
    let settings = turn.settings;
    let n = turn.all.counted;
    // Withdraws requests unless they undo a harmful removal: one decision never both grows and
    // shrinks.
    let patience = turn.patience();
    let (tick, undo) = (turn.memory.tick, turn.memory.refill.as_ref().filter(|r| r.undo));
    let undoing = undo.is_some_and(|refill| tick <= refill.tick + patience);
    if undo.is_some() && !undoing {
        // Too few nodes arrived in time; conditions may have changed.
        turn.memory.refill = None;
        turn.add_reason(Reason::RefillOver { expected: turn.expected, given_up: true });
    }
    let least = Processors((f64::from(n) * settings.shrink_min).ceil() as u32);
    let ideal = Processors((f64::from(n) * efficiency / settings.target()).round() as u32);
    let wanted = ideal.max(least).max(Processors::ONE).min(n);
    turn.add_reason(Reason::Below { e_min: settings.e_min, wanted, periods: turn.memory.below });
    if turn.is_unsettled() {
        let periods = turn.memory.unsettled_until - turn.memory.tick + 1;
        let nodes = turn.snapshot.leaving.len() as u32;
        return turn.add_reason(match periods {
            1 if nodes > 0 => Reason::StillLeaving { nodes },
            _ => Reason::Unsettled { periods },
        });
    }
    if !undoing {
        grow::withdraw(turn, false);
    }
    if let Some(bad) = bad_link(turn) {
        return unlink(turn, bad);
    }
    if undoing && grow::refill(turn) {
        return;
    }
    if turn.awaits_verdict() && !has_slow(turn) {
        return;
    }
    if turn.memory.below < settings.bad_periods {
        let (seen, needed) = (turn.memory.below, settings.bad_periods);
        return turn.add_reason(Reason::Patience { seen, needed });
    }
    if wanted == n {
        return turn.add_reason(Reason::BestSize { processors: n });
    }
    // Growth before any measurement was a guess. A job that cannot use it may return to its size.
    let guess = turn.memory.size_before_guess.filter(|&size| size < least);
    let most = n.saturating_sub(guess.unwrap_or(least));
    let (seen_s, needed_s) = (turn.below_s(), turn.memory.surplus.wait_s);
    let mut scope = RemovalScope::Worst;
    if seen_s < needed_s {
        turn.add_reason(Reason::AwaitsPhase { seen_s, needed_s });
        scope = RemovalScope::Bad;
    }
    remove(turn, n.saturating_sub(wanted), most, scope);
}

/// Removes the bad node that stayed only because it held the root. The removal belongs to the
/// previous action, so its cool-down does not apply. Returns whether it removes the node.
pub(super) fn remove_owed(turn: &mut DecisionState<'_>) -> bool {
    let Some(node) = turn.memory.pending_removal.take() else { return false };
    let found = candidates(turn).into_iter().find(|c| c.named.node == node);
    let Some(still) = found.filter(|c| c.cause != RemovalCause::Surplus) else { return false };
    if turn.holds_root(&node)
        || turn.staying.saturating_sub(still.named.processors) < turn.min_processors()
    {
        return false;
    }
    let trial = turn.memory.trial.take();
    remove_nodes(turn, std::slice::from_ref(&still), Aim::Cure);
    // Both removals are judged together.
    if let (Some(mut trial), Some(new)) = (trial, turn.memory.trial.take()) {
        trial.lost += still.named.useful();
        trial.removed = trial.removed.saturating_add(still.named.processors);
        trial.prediction = Prediction { useful: trial.prediction.useful, ..new.prediction };
        turn.memory.trial = Some(trial);
    }
    true
}

/// Moves the root off a slow node that stays. All processors wait while the root runs the serial
/// part of an iteration, which the efficiency hardly shows. A root without checkpoints stays, since
/// its work would begin again. The root of processes that take their steps together stays too: its
/// own process does not move with it.
pub(super) fn move_slow_root(turn: &mut DecisionState<'_>) {
    let seen = &turn.memory.slow_root;
    let is_lasting = seen.periods >= turn.settings.bad_periods;
    let rests = turn.memory.clock_s < seen.rest_until_s;
    let iterates = turn.snapshot.has_checkpoints
        && !turn.snapshot.synchronous
        && turn.memory.iterations.is_some_and(|known| known.length_s.is_some());
    let is_busy = turn.actions.iter().any(AdaptationAction::is_change)
        || turn.in_cool_down()
        || turn.memory.trial.is_some()
        || turn.memory.root_move.is_some()
        || turn.memory.pending_removal.is_some()
        || turn.is_unsettled();
    if !is_lasting || rests || !iterates || is_busy || turn.near_end().is_some() {
        return;
    }
    let named = turn.clusters.values().flat_map(|c| c.worst.iter().chain(&c.best));
    let slow = named.filter(|w| is_slow(turn, w)).map(|w| w.node.clone()).collect();
    if turn.move_root(RootMoveReason::SlowNode, &slow, None) {
        let clock = turn.memory.clock_s;
        let seen = &mut turn.memory.slow_root;
        seen.moves += 1;
        seen.rest_until_s = clock + term(seen.moves, turn.settings);
    }
}

/// Undoes harmful growth: removes the same number of the worst processors, or only bad ones if
/// there are any. Returns whether it removes any.
pub(super) fn undo_growth(turn: &mut DecisionState<'_>) -> bool {
    let processors = std::mem::take(&mut turn.memory.excess);
    if processors.is_zero() {
        return false;
    }
    turn.add_reason(Reason::GrowthUndone { processors });
    grow::withdraw(turn, false);
    remove(turn, processors, Processors::MAX, RemovalScope::Worst);
    turn.actions.iter().any(|action| matches!(action, AdaptationAction::Remove { .. }))
}

/// Removes the processors above the job's maximum.
pub(super) fn down_to_maximum(turn: &mut DecisionState<'_>) {
    let (processors, max) = (turn.staying, turn.max_processors());
    turn.add_reason(Reason::AboveMaximum { processors, max });
    grow::withdraw(turn, false);
    remove(turn, processors.saturating_sub(max), Processors::MAX, RemovalScope::Any);
}

/// Removes slow nodes to make room for better free ones, where the job has no room for both.
pub(super) fn make_room(turn: &mut DecisionState<'_>, count: Processors) {
    remove(turn, count, Processors::MAX, RemovalScope::Slow);
}

/// Returns the cluster whose link is to blame, if any.
///
/// The paper blames every cluster whose mean inter-cluster overhead is above a threshold. With too
/// little work, all nodes wait with only an inter-cluster steal outstanding, and all clusters are
/// above it. So the cluster must be exceptional, or its link must be measured to be the bottleneck.
/// Only one cluster is blamed: a bad link makes the clusters at its other end wait too.
fn bad_link(turn: &mut DecisionState<'_>) -> Option<ClusterId> {
    let (suspects, cleared) = suspects(turn);
    cleared.into_iter().for_each(|reason| turn.add_reason(reason));
    let Suspect { cluster: id, inter, others, evidence, .. } = most_suspect(turn, suspects)?;
    if !turn.clusters.iter().any(|(other, c)| **other != id && !c.counted.is_zero()) {
        turn.add_reason(Reason::LastCluster { cluster: id });
        return None;
    }
    let threshold = turn.settings.cluster_threshold;
    turn.add_reason(Reason::LinkBad { cluster: id.clone(), inter, threshold, others, evidence });
    Some(id)
}

/// Whether some cluster's link may be to blame for the overhead of all.
pub(super) fn is_link_suspect(turn: &DecisionState<'_>) -> bool {
    !suspects(turn).0.is_empty()
}

/// Whether one node is so slow that all others may wait for it.
pub(super) fn is_held_up(turn: &DecisionState<'_>) -> bool {
    straggler(turn, |_| true).is_some()
}

/// Whether some node is slow: it alone may reduce the work of all.
pub(super) fn has_slow(turn: &DecisionState<'_>) -> bool {
    let slowest = slowest(turn, |_| true);
    slowest.is_some_and(|(_, share)| share < turn.settings.slow_below)
}

/// A cluster whose link may be to blame.
struct Suspect {
    cluster: ClusterId,
    useful: f64,
    inter: f64,
    others: f64,
    evidence: Evidence,
    has: Option<f64>,
}

/// Returns the clusters whose links may be to blame, and the reasons that exonerate others.
fn suspects(turn: &DecisionState<'_>) -> (Vec<Suspect>, Vec<Reason>) {
    let settings = turn.settings;
    let mut suspects = Vec::new();
    let mut cleared = Vec::new();
    for (id, cluster) in &turn.clusters {
        let Some(inter) = cluster.mean_inter().filter(|&ic| ic > settings.cluster_threshold) else {
            continue;
        };
        let others = turn.inter_without(Some(id));
        let has = turn.snapshot.uplink(id);
        let full = cluster.uplink.used.zip(has).is_some_and(|(used, has)| used >= FULL * has);
        let needs = turn.memory.requirements.min_bandwidth;
        let exceptional = is_exceptional(turn, inter, others);
        let quality = 1.0 - inter;
        let who = QuarantineSubject::Cluster((*id).clone());
        if turn.memory.is_acquitted(&who, RemovalCause::Link, quality, settings.better_factor) {
            cleared.push(Reason::StaysAcquitted { who, cause: RemovalCause::Link });
            continue;
        }
        let straggler = straggler(turn, |other| other != *id).filter(|_| exceptional && !full);
        if let Some((node, share)) = straggler {
            let cluster = (*id).clone();
            cleared.push(Reason::LinkInDoubt { cluster, inter, node: node.clone(), share });
            continue;
        }
        let has_worked = cluster.presumed < cluster.counted;
        if exceptional && !full && has_worked && turn.may_end_first_iteration() {
            // At the end of an iteration, fast clusters wait for the last tasks of slow ones.
            cleared.push(Reason::Partial { first: true });
            continue;
        }
        let blamed = if exceptional {
            let thin = has.filter(|_| !full).and_then(|has| bottleneck_of(turn, id, has));
            thin.map_or(Some((*id, *cluster, Evidence::Exceptional)), |(thin, aggregate)| {
                Some((thin, aggregate, Evidence::Thin))
            })
        } else if full {
            Some((*id, *cluster, Evidence::Saturated))
        } else if needs.zip(has).is_some_and(|(needs, has)| has < needs) {
            Some((*id, *cluster, Evidence::BelowNeed))
        } else {
            None
        };
        let most = blamed.and_then(|(id, cluster, _)| Some((id, share_of_most(turn, cluster)?)));
        if let Some((id, share)) = most {
            cleared.push(Reason::LinkOfMost { cluster: id.clone(), share });
            continue;
        }
        match blamed {
            Some((id, cluster, evidence)) => suspects.push(Suspect {
                cluster: id.clone(),
                useful: cluster.useful.value(),
                inter,
                others,
                evidence,
                has: turn.snapshot.uplink(id),
            }),
            None => cleared.push(Reason::LinkNotBlamed { cluster: (*id).clone(), inter, others }),
        }
    }
    (suspects, cleared)
}

/// The share of a cluster in the job's speed, if it is more than half of it and others have the
/// rest.
///
/// Without such a cluster, the job would have less than half of its processors' speed. It waits for
/// tasks of small clusters: its own processors have done theirs.
fn share_of_most(turn: &DecisionState<'_>, cluster: &ClusterAggregate) -> Option<f64> {
    let share = cluster.speed.value() / turn.all.speed;
    (share > 0.5 && cluster.counted < turn.all.counted).then_some(share)
}

/// Whether an inter-cluster overhead stands out against that of the others: it is higher by a
/// factor, or leaves less time for work by this factor and is clearly higher.
///
/// Where the others wait for most of their time, too, no overhead can exceed theirs by the factor.
/// In a synchronous job none stands out, since the fastest processes wait longest.
fn is_exceptional(turn: &DecisionState<'_>, inter: f64, others: f64) -> bool {
    let factor = turn.settings.cluster_exceptional;
    let leaves_less = factor * (1.0 - inter) <= 1.0 - others;
    let stands_out = inter >= factor * others || leaves_less && inter - others >= APART;
    stands_out && !turn.snapshot.synchronous
}

/// Returns the cluster that this one waits for, if that one's link is the thin one.
///
/// Its uplink or the link between the two is far narrower, and it is no more productive. A cluster
/// that waits for tasks stolen across a thin link has exceptional overhead. The nodes behind the
/// thin link have no steals to wait for.
fn bottleneck_of<'a>(
    turn: &DecisionState<'a>,
    id: &ClusterId,
    has: f64,
) -> Option<(&'a ClusterId, &'a ClusterAggregate)> {
    let done = |c: &ClusterAggregate| c.useful.value() / f64::from(c.counted);
    let waits = done(turn.clusters.get(id)?);
    let thin = turn.clusters.iter().filter_map(|(other, c)| {
        let uplink = turn.snapshot.uplink(other);
        let between = turn.snapshot.bandwidth(id, other).filter(|_| !turn.has_root(other));
        let narrowest = uplink.into_iter().chain(between).reduce(f64::min)?;
        let is_member = !c.counted.is_zero() && *other != id;
        let is_thin = is_member && AS_WIDE * narrowest < has && done(c) <= waits;
        is_thin.then_some((narrowest, *other, *c))
    });
    thin.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, other, c)| (other, c))
}

/// Selects among the suspects with about the highest overhead. Takes the thinnest link if all are
/// known, else the least productive cluster, preferably not the root's.
fn most_suspect(turn: &DecisionState<'_>, mut suspects: Vec<Suspect>) -> Option<Suspect> {
    let highest = suspects.iter().map(|suspect| suspect.inter).reduce(f64::max)?;
    suspects.retain(|suspect| suspect.inter >= ALIKE * highest);
    let known: Option<Vec<f64>> = suspects.iter().map(|suspect| suspect.has).collect();
    let thinnest = known.filter(|all| {
        let least = all.iter().copied().fold(f64::INFINITY, f64::min);
        all.iter().all(|&has| has == least || has >= least / ALIKE) && all.len() > 1
    });
    suspects.sort_by(|a, b| {
        let by_link = match &thinnest {
            Some(_) => a.has.unwrap_or(0.0).total_cmp(&b.has.unwrap_or(0.0)),
            None => std::cmp::Ordering::Equal,
        };
        let by_root = turn.has_root(&a.cluster).cmp(&turn.has_root(&b.cluster));
        let by_use = a.useful.total_cmp(&b.useful);
        by_link.then(by_root).then(by_use).then_with(|| a.cluster.cmp(&b.cluster))
    });
    suspects.into_iter().next()
}

/// The slowest node of the clusters, if it is so slow that all others wait for its tasks. Across a
/// link, this looks like a bad link. With its fraction of the mean speed.
fn straggler<'a>(
    turn: &DecisionState<'a>,
    of: impl Fn(&ClusterId) -> bool,
) -> Option<(&'a NodeId, f64)> {
    slowest(turn, of).filter(|(_, share)| *share < turn.settings.slow_below * STRAGGLER)
}

/// The slowest node of the clusters, with its fraction of the mean speed.
fn slowest<'a>(
    turn: &DecisionState<'a>,
    of: impl Fn(&ClusterId) -> bool,
) -> Option<(&'a NodeId, f64)> {
    let mean = turn.all.mean_speed();
    let clusters = turn.clusters.iter().filter(|(id, _)| of(id));
    let staying = clusters.flat_map(|(_, c)| &c.worst);
    let staying = staying.filter(|named| !turn.snapshot.leaving.contains_key(&named.node));
    // Ignores the error of the speed: the result raises a doubt and removes no node.
    let shares = staying.map(|w| (&w.node, w.processor_speed() / mean));
    shares.min_by(|a, b| a.1.total_cmp(&b.1))
}

/// Removes a cluster in steps: moves the root, requests replacements up to the job's minimum, then
/// removes the cluster.
fn unlink(turn: &mut DecisionState<'_>, id: ClusterId) {
    let Some(cluster) = turn.clusters.get(&id).copied() else { return };
    if turn.has_root(&id) {
        turn.move_root(RootMoveReason::BadCluster, &BTreeSet::new(), Some(&id));
        return;
    }
    let goes = cluster.staying();
    let least = turn.min_processors();
    if turn.staying.saturating_sub(goes) < least {
        turn.add_reason(Reason::AtMinimum { min: least, wanted: goes });
        let missing = least.saturating_sub(turn.expected.saturating_sub(goes));
        // Quarantine makes the replacements come from elsewhere.
        quarantine_cluster(turn, &id, cluster);
        if !missing.is_zero() {
            grow::ask(turn, missing, Aim::Refill);
        }
        return;
    }
    grow::withdraw(turn, false);
    let rest = || turn.clusters.iter().filter(|(other, _)| ***other != id).map(|(_, c)| *c);
    let max_speed = rest().map(|c| c.max_speed).fold(0.0, f64::max);
    let prediction = predict(turn, cluster.counted, max_speed);
    let mut trial = turn.trial(Aim::Unlink, prediction);
    trial.lost = cluster.useful.value();
    trial.removed = goes;
    let healthy = rest().map(|c| c.speed.value()).sum::<f64>();
    let n = turn.all.counted;
    let others = n.saturating_sub(cluster.counted).max(Processors::ONE);
    let first = Capacity { processors: n, speed: healthy / f64::from(others) * f64::from(n) };
    learn_bandwidth(turn, &id);
    quarantine_cluster(turn, &id, cluster);
    begin_refill(turn, RemovalCause::Link, Some(first));
    turn.actions.push(AdaptationAction::RemoveCluster { cluster: id, cause: RemovalCause::Link });
    turn.start_trial(trial);
}

/// Raises the minimum bandwidth above that of a cluster removed for its link, but never above a
/// bandwidth that suffices for a staying one.
fn learn_bandwidth(turn: &mut DecisionState<'_>, removed: &ClusterId) {
    let Some(had) = turn.snapshot.uplink(removed) else { return };
    let stays = turn.clusters.iter().filter(|(id, c)| {
        let fine = c.mean_inter().is_some_and(|ic| ic <= turn.settings.cluster_threshold);
        **id != removed && fine
    });
    let suffices =
        stays.filter_map(|(id, _)| turn.snapshot.uplink(id)).fold(f64::INFINITY, f64::min);
    let needs = (had * MARGIN).min(suffices * 0.9);
    let from = turn.memory.requirements.min_bandwidth;
    if needs > had && from.is_none_or(|known| needs > known) {
        turn.memory.requirements.min_bandwidth = Some(needs);
        let (cluster, to) = (Some(removed.clone()), Some(needs));
        turn.add_reason(Reason::Bandwidth { cluster, from, to });
    }
}

/// Puts a cluster into quarantine for its link.
fn quarantine_cluster(turn: &mut DecisionState<'_>, id: &ClusterId, cluster: &ClusterAggregate) {
    let bandwidth = turn.snapshot.uplink(id);
    let quality = 1.0 - cluster.mean_inter().unwrap_or(0.0);
    let who = QuarantineSubject::Cluster(id.clone());
    add_to_quarantine(turn, who, RemovalCause::Link, bandwidth, quality);
}

fn add_to_quarantine(
    turn: &mut DecisionState<'_>,
    who: QuarantineSubject,
    cause: RemovalCause,
    measured: Option<f64>,
    quality: f64,
) {
    let barred = turn.memory.quarantine.iter().any(|e| e.subject == who && turn.is_barred(e));
    if barred && matches!(who, QuarantineSubject::Cluster(_)) {
        return; // its replacements are under way
    }
    let settings = turn.settings;
    let entry = turn.memory.quarantine(who, cause, measured, quality, settings);
    let for_s = entry.until_s - turn.memory.clock_s;
    turn.add_reason(Reason::Quarantined { who: entry.subject, cause, for_s, times: entry.count });
}

fn processors_of(candidates: &[RemovalCandidate]) -> Processors {
    candidates.iter().map(|c| c.named.processors).sum()
}

/// Removes nodes with about `count` processors, and with `most` at most.
///
/// Only the worst bad node and a violated maximum of the job may exceed `most`.
fn remove(turn: &mut DecisionState<'_>, count: Processors, most: Processors, of: RemovalScope) {
    let force = of == RemovalScope::Any;
    let allowed = turn.staying.saturating_sub(turn.min_processors());
    if allowed < count {
        let wanted = count.saturating_sub(allowed);
        turn.add_reason(Reason::AtMinimum { min: turn.min_processors(), wanted });
    }
    let mut count = count.min(allowed);
    let mut most = most.min(allowed);
    if count.is_zero() {
        return;
    }
    let mut candidates = candidates(turn);
    if of == RemovalScope::Slow {
        candidates.retain(|c| c.cause == RemovalCause::Slow);
    } else if !force && !turn.covers_iteration() {
        // A node's speed is the same in all phases of a job; all other measurements depend on the
        // phase.
        turn.add_reason(Reason::Partial { first: turn.is_before_first_iteration() });
        candidates.retain(|c| c.cause == RemovalCause::Slow);
    } else if !force && turn.awaits_verdict() {
        candidates.retain(|c| c.cause == RemovalCause::Slow);
    }
    if of == RemovalScope::Bad {
        candidates.retain(|c| c.cause != RemovalCause::Surplus);
    }
    let (bad, healthy): (Vec<_>, Vec<_>) =
        candidates.into_iter().partition(|c| c.cause != RemovalCause::Surplus);
    if bad.is_empty() && healthy.is_empty() {
        return;
    }
    let is_kept = |c: &RemovalCandidate| !force && c.needed.is_some();
    let (kept, healthy): (Vec<_>, Vec<_>) = healthy.into_iter().partition(is_kept);
    let known = processors_of(&bad).saturating_add(processors_of(&healthy));
    let cure = !bad.is_empty() && !force;
    if cure && processors_of(&bad) < count {
        turn.add_reason(Reason::HealthySpared { bad: processors_of(&bad), wanted: count });
    }
    if !cure && !force {
        let clock = turn.memory.clock_s;
        if let Some(floor) = Memory::limit(&turn.memory.floor, clock).copied() {
            let room = turn.staying.saturating_sub(floor.processors);
            if room < count {
                turn.add_reason(floor.reason(false, clock));
            }
            (count, most) = (count.min(room), most.min(room));
            if count.is_zero() {
                return;
            }
        }
    }
    if !cure && known < count {
        turn.add_reason(Reason::NotNamed { wanted: count, known });
    }
    let mut ranked: Vec<RemovalCandidate> =
        if cure { bad } else { bad.into_iter().chain(healthy).collect() };
    let select = |ranked: &[RemovalCandidate]| {
        let sizes: Vec<Processors> = ranked.iter().map(|c| c.named.processors).collect();
        match (cure, force) {
            (true, _) => select_bad(&sizes, count, most, allowed),
            (false, true) => select_excess(&sizes, count, allowed),
            // A greater node only if the size comes nearer to the wanted one.
            (false, false) => {
                let nearer = count.saturating_mul(2).saturating_sub(Processors::ONE);
                select_nodes(sizes, count, most.min(nearer))
            }
        }
    };
    let mut selected = select(&ranked);
    let none_fits = selected.is_empty();
    let holds_root = |c: &RemovalCandidate| turn.holds_root(&c.named.node);
    if !cure && let Some(&at) = selected.iter().find(|&&at| holds_root(&ranked[at])) {
        // It is healthy: another node is removed instead.
        let root = ranked.remove(at);
        let (badness, why) = (root.badness(), StayReason::HoldsRoot);
        turn.add_reason(Reason::Stays { node: root.named.node, badness, why });
        selected = select(&ranked);
    }
    let (mut chosen, mut stays) = (Vec::new(), Vec::new());
    for (at, candidate) in ranked.into_iter().enumerate() {
        if selected.contains(&at) { chosen.push(candidate) } else { stays.push(candidate) }
    }
    if let Some(i) = chosen.iter().position(|c| turn.holds_root(&c.named.node)) {
        let root = chosen.remove(i);
        let names: BTreeSet<NodeId> = chosen.iter().map(|c| c.named.node.clone()).collect();
        let (node, cause) = (root.named.node, root.cause);
        if turn.move_root(RootMoveReason::BadNode, &names, None) {
            turn.add_reason(Reason::NodeRemovedLater { node, cause });
        }
    } else if none_fits && !force && of != RemovalScope::Slow {
        turn.add_reason(Reason::BestSize { processors: turn.all.counted });
    }
    for stay in stays.into_iter().chain(kept).take(STAYS_MAX) {
        let why = match () {
            _ if turn.holds_root(&stay.named.node) => StayReason::HoldsRoot,
            _ if stay.in_doubt => StayReason::InDoubt,
            _ => stay.needed.unwrap_or(StayReason::Enough),
        };
        let badness = stay.badness();
        turn.add_reason(Reason::Stays { node: stay.named.node, badness, why });
    }
    if !chosen.is_empty() {
        remove_nodes(turn, &chosen, if cure { Aim::Cure } else { Aim::Shrink });
    }
}

/// The nodes that are faster than the mean, as far as the job's work occupies their processors, the
/// fastest first.
///
/// No other processor can take over a task at the same rate. So without these nodes the job would
/// take longer, although the others have time.
fn fastest_for_work(turn: &DecisionState<'_>) -> BTreeSet<NodeId> {
    let mut named: Vec<(&ClusterId, &RatedWorker)> = turn
        .clusters
        .iter()
        .flat_map(|(id, cluster)| {
            cluster.best.iter().chain(&cluster.worst).map(move |worker| (*id, worker))
        })
        .filter(|(_, worker)| worker.processor_speed() > FASTER * turn.all.mean_speed())
        .collect();
    named.sort_by(|(a, x), (b, y)| {
        let by_speed = y.processor_speed().total_cmp(&x.processor_speed());
        let by_root = turn.has_root(b).cmp(&turn.has_root(a));
        by_speed.then(x.inter.total_cmp(&y.inter)).then(by_root).then_with(|| x.node.cmp(&y.node))
    });
    let mut left = f64::from(turn.all.counted) * (1.0 - turn.all.overhead);
    let mut fast = BTreeSet::new();
    for (_, worker) in named {
        if left <= 0.0 {
            break;
        }
        if fast.insert(worker.node.clone()) {
            left -= f64::from(worker.processors);
        }
    }
    fast
}

/// Selects among bad nodes, worst first: the worst that the job may lose, of any size, then those
/// that fit the rest of `count`.
fn select_bad(
    sizes: &[Processors],
    count: Processors,
    most: Processors,
    allowed: Processors,
) -> Vec<usize> {
    let Some(worst) = sizes.iter().position(|&size| size <= allowed) else { return Vec::new() };
    let others = sizes[worst + 1..].iter().copied();
    let (left, room) = (count.saturating_sub(sizes[worst]), most.saturating_sub(sizes[worst]));
    let nearer = left.saturating_mul(2).saturating_sub(Processors::ONE);
    let others = select_nodes(others, left, room.min(nearer));
    std::iter::once(worst).chain(others.into_iter().map(|at| worst + 1 + at)).collect()
}

/// Selects nodes that have `count` processors at least, as far as the job may lose them.
fn select_excess(sizes: &[Processors], count: Processors, allowed: Processors) -> Vec<usize> {
    let mut selected = select_nodes(sizes.iter().copied(), count, allowed);
    let sum = |selected: &[usize]| selected.iter().map(|&at| sizes[at]).sum::<Processors>();
    while sum(&selected) < count {
        let room = allowed.saturating_sub(sum(&selected));
        let rest = (0..sizes.len()).filter(|at| !selected.contains(at) && sizes[*at] <= room);
        let Some(smallest) = rest.min_by_key(|&at| sizes[at]) else { break };
        selected.push(smallest);
    }
    selected.sort_unstable();
    selected
}

/// Orders the chosen nodes to leave, and learns from the choice.
fn remove_nodes(turn: &mut DecisionState<'_>, chosen: &[RemovalCandidate], aim: Aim) {
    let n = turn.all.counted;
    let removed = processors_of(chosen);
    let names: BTreeSet<&NodeId> = chosen.iter().map(|c| &c.named.node).collect();
    let prediction = predict(turn, removed, fastest_without(turn, &names));
    let mut trial: Trial = turn.trial(aim, prediction);
    trial.lost = chosen.iter().map(|c| c.named.useful()).sum();
    trial.removed = removed;
    trial.term = chosen_by(chosen, aim);
    for c in chosen {
        turn.add_reason(Reason::NodeRemoved {
            node: c.named.node.clone(),
            cluster: c.cluster.clone(),
            processors: c.named.processors,
            cause: c.cause,
            speed_term: c.speed_term,
            link_term: c.link_term,
            cluster_term: c.cluster_term,
        });
    }
    if aim == Aim::Cure {
        for c in chosen {
            let who = QuarantineSubject::Node(c.named.node.clone());
            let quality = quality(turn, &c.named, c.cause);
            add_to_quarantine(turn, who, c.cause, Some(c.named.processor_speed()), quality);
        }
        let speed = turn.all.speed - chosen.iter().map(|c| c.named.speed).sum::<f64>();
        let mean = speed.max(0.0) / f64::from(n.saturating_sub(removed).max(Processors::ONE));
        learn_speed(turn, chosen, mean);
        let first = Capacity { processors: n, speed: mean * f64::from(n) };
        begin_refill(turn, chosen[0].cause, Some(first));
    } else {
        // The job has more processors than it can use, so its earlier capacity is not a reference.
        turn.memory.refill = None;
        turn.memory.last_good = None;
        let since_s = turn.memory.clock_s - turn.below_s();
        turn.memory.surplus.begin(since_s);
    }
    for cause in [RemovalCause::Slow, RemovalCause::Link, RemovalCause::Surplus] {
        let nodes: Vec<NodeId> = chosen
            .iter()
            .filter(|c| {
                if aim == Aim::Cure { c.cause == cause } else { cause == RemovalCause::Surplus }
            })
            .map(|c| c.named.node.clone())
            .collect();
        if !nodes.is_empty() {
            turn.actions.push(AdaptationAction::Remove { nodes, cause });
        }
    }
    turn.start_trial(trial);
}

/// Raises the minimum speed of a processor above that of the fastest one removed as slow, but never
/// above the current limit of slowness.
///
/// The minimum is the geometric mean of the two, since repeated measurements of a slow node differ.
/// (With a minimum just above the removed speed, loaded nodes returned in the paper's scenario 2: a
/// benchmark found them twice as fast as their work had.)
fn learn_speed(turn: &mut DecisionState<'_>, chosen: &[RemovalCandidate], mean: f64) {
    let slow = chosen.iter().filter(|c| c.cause == RemovalCause::Slow);
    let slow = slow.map(|c| c.named.processor_speed());
    let Some(had) = slow.reduce(f64::max) else { return };
    let slow = turn.settings.slow_below * mean;
    let needs = (had * slow).sqrt().max(had * MARGIN).min(slow);
    let from = turn.memory.requirements.min_speed;
    if needs > 0.0 && from.is_none_or(|known| needs > known) {
        turn.memory.requirements.min_speed = Some(needs);
        turn.add_reason(Reason::Speed { from, to: Some(needs) });
    }
}

/// The badness term that decided the choice: of bad nodes, the problem of most; of healthy ones,
/// membership in the worst cluster.
fn chosen_by(chosen: &[RemovalCandidate], aim: Aim) -> Option<Term> {
    let most = |is: fn(&RemovalCandidate) -> bool| {
        2 * chosen.iter().filter(|c| is(c)).count() >= chosen.len()
    };
    match aim {
        Aim::Cure if most(|c| c.cause == RemovalCause::Slow) => Some(Term::Speed),
        Aim::Cure => Some(Term::Link),
        _ if most(|c| c.cluster_term > 0.0) => Some(Term::Cluster),
        _ => None,
    }
}

/// How good a node is in the respect of this cause; see [`Acquittal`](super::Acquittal).
fn quality(turn: &DecisionState<'_>, named: &RatedWorker, cause: RemovalCause) -> f64 {
    match cause {
        RemovalCause::Slow => named.processor_speed() / turn.all.mean_speed(),
        _ => 1.0 - named.inter,
    }
}

/// Whether a node's processors are slow even at the upper end of their speed's error.
pub(super) fn is_slow(turn: &DecisionState<'_>, named: &RatedWorker) -> bool {
    let at_most = named.processor_speed() * (1.0 + named.speed_error);
    at_most < turn.settings.slow_below * turn.all.mean_speed()
}

/// All named workers that may be removed: bad ones before healthy ones, each worst first.
fn candidates(turn: &DecisionState<'_>) -> Vec<RemovalCandidate> {
    let settings = turn.settings;
    let weights = turn.memory.weights;
    let (max, mean) = (turn.all.max_speed, turn.all.mean_speed());
    let worst = worst_cluster(turn);
    let slowest = straggler(turn, |_| true);
    let fast = fastest_for_work(turn);
    // The node to which the root is moving.
    let target = turn.memory.root_move.as_ref().map(|moving| &moving.to);
    let mut found = Vec::new();
    for (id, cluster) in &turn.clusters {
        let has_most = share_of_most(turn, cluster).is_some();
        let stays = |w: &&RatedWorker| {
            !turn.snapshot.leaving.contains_key(&w.node) && target != Some(&w.node)
        };
        let staying = cluster.worst.iter().filter(stays);
        for named in staying {
            let certain = is_slow(turn, named);
            let apart = is_exceptional(turn, named.inter, turn.all.inter);
            // Another node's overhead may come from waiting for the straggler.
            let clear = slowest.is_none_or(|(slowest, _)| *slowest == named.node);
            let link = named.inter > settings.node_threshold && apart && clear && !has_most;
            let cause = match (certain, link) {
                (true, _) => RemovalCause::Slow,
                (false, true) => RemovalCause::Link,
                (false, false) => RemovalCause::Surplus,
            };
            let who = QuarantineSubject::Node(named.node.clone());
            let quality = quality(turn, named, cause);
            let acquitted = turn.memory.is_acquitted(&who, cause, quality, settings.better_factor);
            let cause = if acquitted { RemovalCause::Surplus } else { cause };
            let needed = match () {
                _ if cause != RemovalCause::Surplus || turn.holds_root(&named.node) => None,
                _ if 1.0 - named.overhead > settings.e_max => Some(StayReason::Busy),
                _ if fast.contains(&named.node) => Some(StayReason::Fast),
                _ => None,
            };
            found.push(RemovalCandidate {
                cluster: (*id).clone(),
                speed_term: weights.alpha * max / named.processor_speed(),
                // Too little work makes healthy nodes wait for steals from other clusters, too.
                link_term: if link { weights.beta * named.inter } else { 0.0 },
                cluster_term: if worst == Some(*id) { weights.gamma } else { 0.0 },
                cause,
                needed,
                in_doubt: named.processor_speed() < settings.slow_below * mean && !certain,
                named: named.clone(),
            });
        }
    }
    found.sort_by(|a, b| {
        let healthy = |c: &RemovalCandidate| c.cause == RemovalCause::Surplus;
        let by_badness = b.badness().total_cmp(&a.badness());
        let by_link = b.named.inter.total_cmp(&a.named.inter);
        // Among equals, nodes outside the root's cluster come first.
        let by_root = turn.has_root(&a.cluster).cmp(&turn.has_root(&b.cluster));
        let by_kind = healthy(a).cmp(&healthy(b));
        by_kind
            .then(by_badness)
            .then(by_link)
            .then(by_root)
            .then_with(|| a.named.node.cmp(&b.named.node))
    });
    found
}

/// The worst cluster by alpha / speed + beta * inter-cluster overhead; none if there is only one.
///
/// The paper uses the sum of a cluster's speeds, by which a small healthy cluster is always the
/// worst. This uses the mean. Among clusters of about equal badness, the smallest comes first, as
/// by the sum: emptying it removes a link. The root's cluster comes last among equals.
fn worst_cluster<'a>(turn: &DecisionState<'a>) -> Option<&'a ClusterId> {
    let rated = turn.clusters.iter().filter_map(|(id, c)| Some((*id, *c, c.mean_speed()?)));
    let rated: Vec<(&ClusterId, &ClusterAggregate, f64)> = rated.filter(|r| r.2 > 0.0).collect();
    if rated.len() < 2 {
        return None;
    }
    let fastest = rated.iter().map(|r| r.2).fold(0.0, f64::max);
    let weights = turn.memory.weights;
    let link_term = |id: &ClusterId, cluster: &ClusterAggregate| {
        let inter = cluster.mean_inter().unwrap_or(0.0);
        let stands_out = inter > turn.settings.cluster_threshold
            && is_exceptional(turn, inter, turn.inter_without(Some(id)));
        if stands_out { weights.beta * inter } else { 0.0 }
    };
    let badness = |(id, cluster, mean): &(&ClusterId, &ClusterAggregate, f64)| {
        weights.alpha * fastest / mean + link_term(id, cluster)
    };
    let most = rated.iter().map(badness).fold(0.0, f64::max);
    let alike = rated.iter().filter(|&r| badness(r) >= ALIKE * most);
    alike
        .min_by(|a, b| {
            let by_root = turn.has_root(a.0).cmp(&turn.has_root(b.0));
            let by_size = a.1.speed.value().total_cmp(&b.1.speed.value());
            by_root.then(by_size).then_with(|| a.0.cmp(b.0))
        })
        .map(|r| r.0)
}

/// The speed of the fastest processor that stays, as far as it is known by name.
pub(super) fn fastest_without(turn: &DecisionState<'_>, gone: &BTreeSet<&NodeId>) -> f64 {
    let of = |c: &&ClusterAggregate| {
        let mut known = c.best.iter().chain(&c.worst);
        // If its fastest node is not among those named, it is not removed either.
        if !known.any(|w| gone.contains(&w.node) && w.processor_speed() >= c.max_speed) {
            return c.max_speed;
        }
        let stay = c.best.iter().chain(&c.worst).filter(|w| !gone.contains(&w.node));
        stay.map(RatedWorker::processor_speed).fold(0.0, f64::max)
    };
    turn.clusters.values().map(of).fold(0.0, f64::max)
}

/// Predicts the effect of removing nodes: the others take over all of their work.
pub(super) fn predict(turn: &DecisionState<'_>, removed: Processors, max_speed: f64) -> Prediction {
    let processors = turn.all.counted.saturating_sub(removed);
    let useful = turn.all.useful;
    let most = f64::from(processors) * max_speed;
    let efficiency = if most > 0.0 { (useful / most).min(1.0) } else { 0.0 };
    Prediction { processors, efficiency, useful }
}
