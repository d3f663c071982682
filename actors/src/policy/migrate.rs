//! Opportunistic migration: within the band too the job moves to better nodes when they are free and worth it (the
//! paper's section 3.3 and future work). In two steps, so that capacity never falls: better nodes are asked for, and
//! when they are there and past their grace, as many of the worst ones go.
//! A job that has all the nodes it may have does not migrate: it would have to let nodes go first.

use springtide_runtime::id::NodeId;

use super::decision::{Action, Cause, Prediction};
use super::grow;
use super::memory::{Aim, Migration};
use super::reason::Reason;
use super::shrink;
use super::snapshot::is_rate;
use super::turn::Turn;

/// Goes on with a migration under way. Returns whether there is one: then nothing else changes the size.
pub(super) fn proceed(turn: &mut Turn<'_>) -> bool {
    let Some(migration) = turn.memory.migration.clone() else { return false };
    let age = turn.memory.tick - migration.tick;
    let arriving = turn.snapshot.requested > 0 && age < u64::from(turn.settings.request_patience);
    let warming = turn.all.joining > 0 && age < turn.patience();
    if arriving || warming {
        turn.say(Reason::MoveUnderWay { victims: migration.victims.len() as u32 });
        return true;
    }
    turn.memory.migration = None;
    grow::withdraw(turn, false);
    let came = turn.staying.saturating_sub(migration.base);
    let may = turn.staying.saturating_sub(turn.least()).min(came) as usize;
    let mut nodes = Vec::new();
    let mut lost = 0.0;
    for named in turn.clusters.values().flat_map(|c| &c.worst) {
        let node = &named.node;
        let free = !turn.holds_root(node) && !turn.snapshot.leaving.contains(node);
        if nodes.len() < may && free && migration.victims.contains(node) {
            nodes.push(node.clone());
            lost += named.useful();
        }
    }
    if nodes.is_empty() {
        turn.memory.migrate_after_s = turn.memory.clock_s + turn.settings.parole_s;
        turn.say(Reason::NoneCame);
        return true;
    }
    // As was predicted, as far as nodes came.
    let gone = nodes.iter().collect();
    let max_speed = shrink::fastest_without(turn, &gone);
    let (before, meant) = (migration.before, migration.prediction);
    let share = nodes.len() as f64 / migration.victims.len().max(1) as f64;
    let useful = before.useful + (meant.useful - before.useful) * share.min(1.0);
    let staying = turn.all.counted.saturating_sub(nodes.len() as u32);
    let most = f64::from(staying) * max_speed;
    let efficiency = if most > 0.0 { (useful / most).min(1.0) } else { 0.0 };
    let prediction = Prediction { nodes: staying, efficiency, useful };
    let mut trial = turn.trial(Aim::Migrate, prediction);
    trial.before = migration.before;
    trial.lost = lost;
    trial.removed = nodes.len() as u32;
    let (weights, max) = (turn.memory.weights, turn.all.max_speed);
    let all = turn.clusters.iter().flat_map(|(id, c)| c.worst.iter().map(move |w| (*id, w)));
    let told: Vec<Reason> = all
        .filter(|(_, named)| nodes.contains(&named.node))
        .map(|(cluster, named)| Reason::Goes {
            node: named.node.clone(),
            cluster: cluster.clone(),
            cause: Cause::Replaced,
            speed_term: weights.alpha * max / named.speed,
            link_term: weights.beta * named.inter,
            cluster_term: 0.0,
        })
        .collect();
    told.into_iter().for_each(|reason| turn.say(reason));
    turn.actions.push(Action::Remove { nodes, cause: Cause::Replaced });
    turn.act(trial);
    true
}

/// Begins one if it is worth it.
pub(super) fn consider(turn: &mut Turn<'_>) {
    let settings = turn.settings;
    let busy_with_last =
        turn.memory.trial.is_some() || turn.all.joining > 0 || turn.all.leaving > 0;
    let early = turn.memory.clock_s < turn.memory.migrate_after_s || !turn.is_whole();
    if !settings.migrate || busy_with_last || early || turn.snapshot.requested > 0 {
        return;
    }
    let room = turn.most().saturating_sub(turn.expected).min(turn.all.counted);
    // Without room for both the old ones go first, which must be worth more than better ones alone.
    let in_turn = room == 0;
    let most = if in_turn { turn.staying.saturating_sub(turn.least()) } else { room } as usize;
    let mut old: Vec<(f64, &NodeId)> = Vec::new();
    for named in turn.clusters.values().flat_map(|c| &c.worst) {
        let stays = turn.holds_root(&named.node) || in_turn && !shrink::is_slow(turn, named);
        if !stays && !turn.snapshot.leaving.contains(&named.node) {
            old.push((named.effective(), &named.node));
        }
    }
    old.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(b.1)));
    // Of unknown speed is not known to be better.
    let offered = turn.fitting(&turn.requirements());
    let through = |(id, speed): (_, Option<f64>)| Some(speed? * (1.0 - turn.inter_of(id)));
    let mut new: Vec<f64> = offered.into_iter().filter_map(through).collect();
    new.sort_by(|a, b| b.total_cmp(a));
    let pairs: Vec<_> = old
        .iter()
        .zip(&new)
        .take(most)
        .take_while(|((old, _), new)| **new >= settings.migrate_factor * *old)
        .collect();
    let Some(((dullest, _), slowest_new)) = pairs.last().map(|(old, new)| (**old, **new)) else {
        return;
    };
    let count = pairs.len() as u32;
    let gained: f64 = pairs.iter().map(|((old, _), new)| **new - *old).sum();
    let joins: f64 = pairs.iter().map(|(_, new)| **new).sum();
    let victims: Vec<NodeId> = pairs.iter().map(|((_, node), _)| (*node).clone()).collect();
    // The share of time spent working shrinks with the speed gained; waiting stays. Moving costs the new nodes' first
    // seconds. The rest is as long as the job says, else as the past: runs that have lasted long tend to last.
    let (speed, then) = (turn.all.speed, turn.all.speed + gained);
    let busy = (turn.all.useful / speed).clamp(0.0, 1.0);
    let known = turn.snapshot.remaining_s();
    let remaining_s = known.unwrap_or(turn.snapshot.elapsed_s);
    if !is_rate(remaining_s) || !is_rate(then) {
        return;
    }
    let gain_s = remaining_s * busy * (1.0 - speed / then);
    let cost_s = settings.move_cost_s * joins / then;
    if gain_s <= settings.migrate_margin * cost_s {
        return turn.say(Reason::NotWorth { count, gain_s, cost_s });
    }
    let known = known.is_some();
    turn.say(Reason::Migrates { count, gain_s, cost_s, remaining_s, known });
    if in_turn {
        return shrink::make_room(turn, count);
    }
    let least = (settings.migrate_factor * dullest).min(slowest_new);
    grow::asked(turn, count, Aim::Migrate, Some(least));
    let (counted, max) = (f64::from(turn.all.counted), turn.all.max_speed.max(new[0]));
    let useful = busy * then;
    let efficiency = (useful / (counted * max)).min(1.0);
    let prediction = Prediction { nodes: turn.all.counted, efficiency, useful };
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
