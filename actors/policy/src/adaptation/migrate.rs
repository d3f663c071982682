//! Opportunistic migration: within the band, the job moves to better free nodes if that is worth
//! its cost (the paper's section 3.3 and future work).
//!
//! It takes two steps, so that capacity never falls. First better nodes are requested. When they
//! have joined and passed their grace, worse nodes with as many processors leave. A job at its
//! maximum does not migrate this way, since nodes would have to leave first.

use springtide_base::id::NodeId;
use springtide_base::processors::Processors;

use super::change::{Aim, Prediction, RemovalCause};
use super::decision::AdaptationAction;
use super::decision_state::DecisionState;
use super::grow;
use super::memory::Migration;
use super::number::is_rate;
use super::reason::Reason;
use super::shrink;

/// Continues a migration under way. Returns whether there is one; then nothing else changes the
/// size.
pub(super) fn proceed(turn: &mut DecisionState<'_>) -> bool {
    let Some(migration) = turn.memory.migration.clone() else { return false };
    let age = turn.memory.tick - migration.tick;
    let arriving =
        !turn.snapshot.requested.is_zero() && age < u64::from(turn.settings.request_patience);
    let warming = !turn.all.joining.is_zero() && age < turn.patience();
    if arriving || warming {
        turn.add_reason(Reason::MoveUnderWay { victims: migration.victims.len() as u32 });
        return true;
    }
    turn.memory.migration = None;
    grow::withdraw(turn, false);
    let came = turn.staying.saturating_sub(migration.base);
    let may = turn.staying.saturating_sub(turn.min_processors()).min(came);
    let mut gone = Processors::ZERO;
    let mut nodes = Vec::new();
    let mut lost = 0.0;
    for named in turn.clusters.values().flat_map(|c| &c.worst) {
        let node = &named.node;
        let free = !turn.holds_root(node) && !turn.snapshot.leaving.contains_key(node);
        let with = gone.saturating_add(named.processors);
        if with <= may && free && migration.victims.contains(node) {
            gone = with;
            nodes.push(node.clone());
            lost += named.useful();
        }
    }
    if nodes.is_empty() {
        turn.memory.migrate_after_s = turn.memory.clock_s + turn.settings.quarantine_s;
        turn.add_reason(Reason::NoneArrived);
        return true;
    }
    // Scales the prediction by the fraction of nodes that arrived.
    let names = nodes.iter().collect();
    let max_speed = shrink::fastest_without(turn, &names);
    let (before, meant) = (migration.before, migration.prediction);
    let share = nodes.len() as f64 / migration.victims.len().max(1) as f64;
    let useful = before.useful + (meant.useful - before.useful) * share.min(1.0);
    let staying = turn.all.counted.saturating_sub(gone);
    let most = f64::from(staying) * max_speed;
    let efficiency = if most > 0.0 { (useful / most).min(1.0) } else { 0.0 };
    let prediction = Prediction { processors: staying, efficiency, useful };
    let mut trial = turn.trial(Aim::Migrate, prediction);
    trial.before = migration.before;
    trial.lost = lost;
    trial.removed = gone;
    let (weights, max) = (turn.memory.weights, turn.all.max_speed);
    let all = turn.clusters.iter().flat_map(|(id, c)| c.worst.iter().map(move |w| (*id, w)));
    let reasons: Vec<Reason> = all
        .filter(|(_, named)| nodes.contains(&named.node))
        .map(|(cluster, named)| Reason::NodeRemoved {
            node: named.node.clone(),
            cluster: cluster.clone(),
            processors: named.processors,
            cause: RemovalCause::Replaced,
            speed_term: weights.alpha * max / named.processor_speed(),
            link_term: weights.beta * named.inter,
            cluster_term: 0.0,
        })
        .collect();
    reasons.into_iter().for_each(|reason| turn.add_reason(reason));
    turn.actions.push(AdaptationAction::Remove { nodes, cause: RemovalCause::Replaced });
    turn.start_trial(trial);
    true
}

/// Starts a migration if it is worthwhile.
pub(super) fn consider(turn: &mut DecisionState<'_>) {
    let settings = turn.settings;
    let busy_with_last =
        turn.memory.trial.is_some() || !turn.all.joining.is_zero() || !turn.all.leaving.is_zero();
    let early = turn.memory.clock_s < turn.memory.migrate_after_s || !turn.covers_iteration();
    if !settings.migrate || busy_with_last || early || !turn.snapshot.requested.is_zero() {
        return;
    }
    let room = turn.max_processors().saturating_sub(turn.expected).min(turn.all.counted);
    // Without room for both, the old nodes leave first. So they must be slow in themselves.
    let in_turn = room.is_zero();
    let spare = turn.staying.saturating_sub(turn.min_processors());
    let most = if in_turn { spare } else { room };
    let mut old: Vec<(f64, &NodeId, Processors)> = Vec::new();
    for named in turn.clusters.values().flat_map(|c| &c.worst) {
        let stays = turn.holds_root(&named.node) || in_turn && !shrink::is_slow(turn, named);
        if !stays && !turn.snapshot.leaving.contains_key(&named.node) {
            old.push((named.effective(), &named.node, named.processors));
        }
    }
    old.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(b.1)));
    // A processor of unknown speed is not known to be better.
    let offered = turn.fitting(&turn.requirements());
    let through = |(id, speed): (_, Option<f64>)| Some(speed? * (1.0 - turn.inter_of(id)));
    let mut new: Vec<f64> = offered.into_iter().filter_map(through).collect();
    new.sort_by(|a, b| b.total_cmp(a));
    // Each processor of a victim needs a better one in its place.
    let mut free = new.iter().copied();
    let mut victims: Vec<NodeId> = Vec::new();
    let mut count = Processors::ZERO;
    let (mut gained, mut joins, mut slowest) = (0.0, 0.0, None);
    for (own, node, processors) in old {
        let with = count.saturating_add(processors);
        let places: Vec<f64> = free.by_ref().take(processors.get() as usize).collect();
        let better = places.iter().all(|&new| new >= settings.migrate_factor * own);
        if with > most || places.len() < processors.get() as usize || !better {
            break;
        }
        count = with;
        victims.push(node.clone());
        for new in places {
            (gained, joins, slowest) = (gained + (new - own), joins + new, Some((own, new)));
        }
    }
    let Some((slowest_old, slowest_new)) = slowest else { return };
    // Working time shrinks with the gained speed; waiting time stays. Moving costs the first
    // seconds of the new nodes. The rest is as long as the job reports, else as the elapsed time:
    // long runs tend to last.
    let (speed, new_speed) = (turn.all.speed, turn.all.speed + gained);
    let busy = (turn.all.useful / speed).clamp(0.0, 1.0);
    let known = turn.snapshot.remaining_s();
    let remaining_s = known.unwrap_or(turn.snapshot.elapsed_s);
    if !is_rate(remaining_s) || !is_rate(new_speed) {
        return;
    }
    let gain_s = remaining_s * busy * (1.0 - speed / new_speed);
    let cost_s = settings.move_cost_s * joins / new_speed;
    if gain_s <= settings.migrate_margin * cost_s {
        return turn.add_reason(Reason::NotWorth { count, gain_s, cost_s });
    }
    let known = known.is_some();
    turn.add_reason(Reason::Migrates { count, gain_s, cost_s, remaining_s, known });
    if in_turn {
        return shrink::make_room(turn, count);
    }
    let least = (settings.migrate_factor * slowest_old).min(slowest_new);
    let most = count.saturating_mul(2).saturating_sub(Processors::ONE).min(room);
    grow::add_request(turn, count, most, Aim::Migrate, Some(least));
    let (counted, max) = (f64::from(turn.all.counted), turn.all.max_speed.max(new[0]));
    let useful = busy * new_speed;
    let efficiency = (useful / (counted * max)).min(1.0);
    let prediction = Prediction { processors: turn.all.counted, efficiency, useful };
    turn.memory.migration = Some(Migration {
        victims,
        base: turn.staying,
        tick: turn.memory.tick,
        before: turn.measured(),
        prediction,
    });
    turn.prediction = Some(prediction);
    turn.cool_down();
}
