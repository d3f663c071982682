//! How the book gives out work: who is measured, what goes to whom, what is taken back, and what is done twice.
//!
//! Must not know what came of it, nor how the schedule chooses.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use super::worker::{Cost, Item, Worker, seconds};
use super::{Book, Place, Told};
use crate::mw::program::Dealing;
use crate::mw::schedule::{self, Forecast, Hand, Job, Share};

/// The most workers that have the same block.
const COPIES_MAX: usize = 2;
/// A plan is given up for another only if that takes so much less.
const WORTH: f64 = 0.9;
/// A copy must be done so many times sooner.
const SOONER: f64 = 1.5;

impl Book {
    /// Gives out what nobody has, and sees whether what is not begun is better done by others.
    pub(super) fn plan(&mut self, now: Instant) {
        if self.batches.is_empty() {
            self.replans = false;
            return;
        }
        if self.settings.dealing != Dealing::Earliest {
            self.replans = false;
            return self.deal(now);
        }
        for worker in self.workers.values_mut() {
            self.replans |= worker.was_late(now);
        }
        let idle = |worker: &Worker| worker.is_idle() && worker.known;
        if now >= self.idle_at && self.workers.values().any(idle)
            || !self.pool.is_empty() && self.workers.values().any(Worker::is_idle)
        {
            self.replans = true;
        }
        if !std::mem::take(&mut self.replans) {
            return;
        }
        let costs = self.costs();
        self.give_benchmarks(&costs, now);
        self.rearrange(&costs, now);
        if self.settings.copies && self.pool.is_empty() {
            self.give_copies(&costs, now);
        }
        let left = self.workers.iter().map(|(id, worker)| worker.left(&costs[id], now));
        let left = left.fold(0.0, f64::max);
        self.idle_at = now + seconds(left / 20.0).max(Duration::from_millis(5));
    }

    /// Who was not measured gets as much as that takes, but not what others could do as well. Where nobody has anything left, there
    /// is nothing to measure it by.
    fn give_benchmarks(&mut self, costs: &BTreeMap<u32, Cost>, now: Instant) {
        let stay = self.workers.values().filter(|worker| !worker.leaving).count().max(1);
        let open: f64 = self.pool.iter().map(|place| self.units_of(*place)).sum();
        let enough = match self.pool.is_empty() {
            true => self.settings.bench_units,
            false => self.settings.bench_units.min(open / stay as f64),
        };
        let new = self.workers.iter().filter(|(_, worker)| !worker.known && worker.is_idle());
        for id in new.map(|(id, _)| *id).collect::<Vec<_>>() {
            let (mut units, mut places) = (0.0, Vec::new());
            // From the pool, else from whoever would be through last.
            for place in self.pool.iter().copied() {
                if units >= enough && !places.is_empty() {
                    break;
                }
                units += self.units_of(place);
                places.push(place);
            }
            if places.is_empty() {
                let last = self.workers.iter().filter(|(_, worker)| worker.known);
                let last = last.map(|(id, worker)| (worker.left(&costs[id], now), *id));
                let Some((_, last)) = last.max_by(|a, b| a.0.total_cmp(&b.0)) else { return };
                let from = &self.workers[&last];
                let kept = from.begun(&costs[&last], now);
                let mine = from.queue.iter().skip(kept).rev();
                for item in mine {
                    if units >= enough && !places.is_empty() {
                        break;
                    }
                    units += item.units;
                    places.push(item.place);
                }
                places.reverse();
                self.take_back(last, &places.iter().copied().collect());
            }
            self.assign(id, places, now);
        }
    }

    fn units_of(&self, (batch, task, _): Place) -> f64 {
        self.task(batch, task).map_or(0.0, |task| task.units)
    }

    /// What is in the pool, and what those have not begun that were measured, is given out anew, if that is worth it.
    fn rearrange(&mut self, costs: &BTreeMap<u32, Cost>, now: Instant) {
        let stays = self.workers.iter().filter(|(_, worker)| worker.known && !worker.leaving);
        let ids: Vec<u32> = stays.map(|(id, _)| *id).collect();
        if ids.is_empty() {
            return;
        }
        let mut hands = Vec::new();
        let mut before = 0.0f64;
        let mut open = self.pool.clone();
        for id in &ids {
            let (worker, cost) = (&self.workers[id], costs[id]);
            let begun = worker.begun(&cost, now);
            let rest: f64 = worker.queue.iter().skip(begun).map(|item| cost.of(item)).sum();
            let left = worker.left(&cost, now);
            if !worker.is_idle() {
                before = before.max(left);
            }
            open.extend(worker.queue.iter().skip(begun).map(|item| item.place));
            let free = (left - rest).max(0.0) + if worker.is_idle() { worker.lag } else { 0.0 };
            hands.push(Hand { free, warm: cost.warm, cold: cost.cold });
        }
        if open.is_empty() {
            return;
        }
        let forced = !self.pool.is_empty();
        let places: BTreeMap<u32, usize> = ids.iter().copied().zip(0..).collect();
        // One batch after the other: what was submitted first is done first.
        let mut given: Vec<Vec<Place>> = vec![Vec::new(); ids.len()];
        let (mut why, mut after) = (Forecast::default(), 0.0f64);
        let mut open = open.into_iter().peekable();
        while let Some((batch, ..)) = open.peek().copied() {
            let of_batch = std::iter::from_fn(|| open.next_if(|(of, ..)| *of == batch));
            let (tasks, jobs) = self.jobs(of_batch, |id, block| {
                self.held.get(&(id, block)).and_then(|by| places.get(by).copied())
            });
            let plan = schedule::earliest(&jobs, &hands);
            for (to, shares) in given.iter_mut().zip(plan.shares) {
                to.extend(blocks(&tasks, shares));
            }
            for (hand, end) in hands.iter_mut().zip(&plan.ends) {
                hand.free = *end;
            }
            after = after.max(plan.why.makespan_s);
            why = plan.why;
        }
        if !forced && after >= WORTH * before {
            return;
        }
        self.planned = why;
        tracing::debug!(%why, before, "work is given out");
        // All is taken back first, so that nothing is in two places.
        let mut new = Vec::new();
        for (id, places) in ids.iter().zip(given) {
            let begun = self.workers[id].begun(&costs[id], now);
            let has: BTreeSet<Place> =
                self.workers[id].queue.iter().skip(begun).map(|item| item.place).collect();
            let gets: BTreeSet<Place> = places.iter().copied().collect();
            self.take_back(*id, &has.difference(&gets).copied().collect());
            new.push((*id, places.into_iter().filter(|at| !has.contains(at)).collect()));
        }
        for (id, places) in new {
            self.assign(id, places, now);
        }
    }

    /// Blocks as the schedule sees them, in order, with the task that each of its jobs is. `by` says who did a block before.
    fn jobs(
        &self,
        places: impl Iterator<Item = Place>,
        by: impl Fn(u32, u32) -> Option<usize>,
    ) -> (Vec<(u64, u32)>, Vec<Job>) {
        let (mut tasks, mut jobs): (Vec<(u64, u32)>, Vec<Job>) = Default::default();
        for (batch, task, block) in places {
            let Some(known) = self.task(batch, task) else { continue };
            if tasks.last() != Some(&(batch, task)) {
                tasks.push((batch, task));
                jobs.push(Job { units: known.units, blocks: Vec::new() });
            }
            if let Some(job) = jobs.last_mut() {
                job.blocks.push((block, by(known.id, block)));
            }
        }
        (tasks, jobs)
    }

    /// A worker is not to do these, which it has not begun.
    fn take_back(&mut self, id: u32, places: &BTreeSet<Place>) {
        if places.is_empty() {
            return;
        }
        let Some(worker) = self.workers.get_mut(&id) else { return };
        worker.queue.retain(|item| !places.contains(&item.place));
        self.counts.moved += places.len() as u64;
        for place in places {
            if let Some(block) = self.block(*place) {
                block.by.retain(|by| *by != id);
            }
            // In the pool until it is given to another, which is at once.
            self.pool.insert(*place);
            self.tell_revoke(id, *place);
        }
    }

    /// A worker is to do these, after what it has.
    fn assign(&mut self, id: u32, places: Vec<Place>, now: Instant) {
        if places.is_empty() || !self.workers.contains_key(&id) {
            return;
        }
        for place in places {
            self.pool.remove(&place);
            let (batch, task, block) = place;
            let known = self.task(batch, task).map(|task| (task.id, task.units));
            let Some((number, units)) = known else { continue };
            let warm = self.held.get(&(number, block)) == Some(&id);
            if let Some(block) = self.block(place) {
                block.by.push(id);
            }
            let Some(worker) = self.workers.get_mut(&id) else { continue };
            let told = self.told.entry(id).or_default();
            if worker.commons.insert(batch) {
                told.push(Told::Common { batch });
            }
            match told.last_mut() {
                Some(Told::Run { batch: of, task: at, to, .. })
                    if (*of, *at, *to) == (batch, task, block) =>
                {
                    *to += 1;
                }
                _ => {
                    let (from, to) = (block, block + 1);
                    told.push(Told::Run { batch, task, id: number, from, to, units });
                }
            }
            let was_idle = worker.queue.is_empty();
            worker.queue.push_back(Item { place, units, warm });
            if was_idle {
                worker.ordered = worker.busy_until.is_none().then_some(now);
                let begins = worker.busy_until.filter(|at| *at > now).unwrap_or(now);
                self.begins(id, begins);
            }
        }
    }

    /// Who has nothing to do does once more what another would be through with later.
    fn give_copies(&mut self, costs: &BTreeMap<u32, Cost>, now: Instant) {
        let idle = self.workers.iter().filter(|(_, worker)| worker.known && worker.is_idle());
        let mut idle: Vec<(f64, u32)> = idle.map(|(id, _)| (costs[id].cold, *id)).collect();
        idle.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let mut late: Vec<(f64, u32)> = self
            .workers
            .iter()
            .filter(|(_, worker)| !worker.queue.is_empty())
            .map(|(id, worker)| (worker.first_left(&costs[id], now), *id))
            .collect();
        late.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let mut late = late.into_iter().peekable();
        for (cold, id) in idle {
            for (left, of) in late.by_ref() {
                let Some(item) = self.workers[&of].queue.front().copied() else { continue };
                let takes = self.workers[&id].lag + item.units * cold;
                let once = self.block(item.place).is_some_and(|one| one.by.len() < COPIES_MAX);
                if once && left > SOONER * takes {
                    self.counts.copies += 1;
                    self.assign(id, vec![item.place], now);
                    break;
                }
            }
            if late.peek().is_none() {
                break;
            }
        }
    }

    /// What nobody has is dealt out by a rule that knows no speeds: to all at once, or one task to each that has nothing to do, while the
    /// rest waits.
    fn deal(&mut self, now: Instant) {
        let stays = self.workers.iter().filter(|(_, worker)| !worker.leaving);
        let mut ids: Vec<u32> = stays.map(|(id, _)| *id).collect();
        if ids.is_empty() || self.pool.is_empty() {
            return;
        }
        let queues = self.settings.dealing == Dealing::Queue;
        if queues {
            // Who has waited longest is asked first, so that numbers say nothing.
            ids.sort_by_key(|id| (self.workers[id].idle_since, *id));
        }
        let costs = self.costs();
        let hands = ids.iter().map(|id| {
            let (worker, cost) = (&self.workers[id], costs[id]);
            Hand { free: worker.left(&cost, now), warm: cost.cold, cold: cost.cold }
        });
        let hands: Vec<Hand> = hands.collect();
        let (tasks, jobs) = self.jobs(self.pool.iter().copied(), |_, _| None);
        if !queues {
            let plan = schedule::equal(&jobs, &hands);
            self.planned = plan.why;
            for (id, shares) in ids.into_iter().zip(plan.shares) {
                self.assign(id, blocks(&tasks, shares).collect(), now);
            }
            return;
        }
        self.planned = schedule::queue(&jobs, &hands).why;
        ids.retain(|id| self.workers[id].is_idle());
        for (id, ((batch, task), job)) in ids.into_iter().zip(tasks.into_iter().zip(jobs)) {
            let places = job.blocks.into_iter().map(|(block, _)| (batch, task, block));
            self.assign(id, places.collect(), now);
        }
    }

    pub(super) fn tell_revoke(&mut self, id: u32, (batch, task, block): Place) {
        let told = self.told.entry(id).or_default();
        match told.last_mut() {
            Some(Told::Revoke { batch: of, task: at, to, .. })
                if (*of, *at, *to) == (batch, task, block) =>
            {
                *to += 1;
            }
            _ => told.push(Told::Revoke { batch, task, from: block, to: block + 1 }),
        }
    }
}

/// The blocks of shares; `tasks` is which task each job is.
fn blocks(tasks: &[(u64, u32)], shares: Vec<Share>) -> impl Iterator<Item = Place> {
    shares.into_iter().flat_map(|share| {
        let (batch, task) = tasks[share.job];
        share.blocks.into_iter().map(move |block| (batch, task, block))
    })
}
