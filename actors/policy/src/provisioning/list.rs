//! List schedulers on slots: HEFT, greedy, Min-Min, Max-Min. They give the cost of a set of slots
//! and the makespan on it.
//!
//! Source: the paper, sections 3 and 5 (HEFT with windows, cross-slot scheduling, extension,
//! cutting), after Topcuoglu, Hariri, Wu 2002 and Mandal et al. 2005. This module does not know the
//! search.
//!
//! A task takes the earliest finish, in the earliest sufficient gap. Among sites with equal finish
//! it takes the first. Among a site's slots it takes a used one (another would add cost), then the
//! cheaper, then the earlier one. If one slot has too few processors, or has them later,
//! overlapping slots of a site are combined. Each contributes its minimum of free processors over
//! the task's whole time, since a task does not migrate.

use serde::{Deserialize, Serialize};

use super::slot::SlotSet;
use super::{
    AvailabilityProfile, Dag, NEVER, SiteLinks, Slot, SlotPieces, Time, from_seconds, seconds, slot,
};

/// Order in which tasks are placed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// By upward rank: heterogeneous earliest finish time.
    #[default]
    Heft,
    /// Parents before children, in the workflow's order.
    Greedy,
    /// Level by level, the earliest finish first.
    MinMin,
    /// Level by level, the latest of the best finishes first.
    MaxMin,
}

impl Method {
    /// All methods in their order.
    pub const ALL: [Self; 4] = [Self::Heft, Self::Greedy, Self::MinMin, Self::MaxMin];
}

impl std::fmt::Display for Method {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Heft => "HEFT",
            Self::Greedy => "greedy",
            Self::MinMin => "Min-Min",
            Self::MaxMin => "Max-Min",
        })
    }
}

/// Result of a schedule on a set of slots.
#[derive(Clone, Debug, PartialEq)]
pub struct ScheduleResult {
    /// Cost of all slots of the set.
    pub cost: f64,
    /// Cost of the slots with tasks.
    pub cost_used: f64,
    /// End of the last task.
    pub makespan: Time,
    /// The slots with tasks.
    pub used: SlotSet,
}

/// Processors of a slot for a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotPart {
    /// Index of the slot.
    pub slot: usize,
    /// Number of its processors.
    pub processors: u32,
}

/// Time and place of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskPlan {
    /// Start of the task.
    pub start: Time,
    /// End of the task.
    pub end: Time,
    /// Index of the site.
    pub site: usize,
    /// Processors of these slots.
    pub pieces: Vec<SlotPart>,
}

/// Times and places of all tasks, in the workflow's order.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    /// Plan of each task.
    pub tasks: Vec<TaskPlan>,
    /// Cost and makespan of the schedule.
    pub outcome: ScheduleResult,
}

/// Failure to place a task.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "task {task} needs {processors} processors for {} s and has no place in {slots} slots: \
     at most {most} of one site are free for that long at once{late}",
    seconds(*.runtime)
)]
pub struct UnplacedTask {
    /// Name of the task.
    pub task: String,
    /// Processors that it needs.
    pub processors: u32,
    /// Runtime on its fastest site.
    pub runtime: Time,
    /// Number of slots in the set.
    pub slots: usize,
    /// Maximum processors available for its runtime.
    pub most: u32,
    /// Note that these processors are free only too early for the task, if so.
    pub late: &'static str,
}

/// A chosen slot during scheduling.
#[derive(Clone, Copy, Debug)]
struct Lane {
    slot: usize,
    start: Time,
    /// End of the slot; `NEVER` if extensible.
    end: Time,
    processors: u32,
    /// Index of its availability profile, once a task runs there.
    line: Option<usize>,
}

/// Time and place found for a task.
#[derive(Clone, Copy, Debug)]
struct TaskPlacement {
    start: Time,
    end: Time,
    site: usize,
    lanes: LaneChoice,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LaneChoice {
    /// Index of a single lane.
    One(usize),
    /// Range of `ListScheduler::parts` with several lanes.
    Many { first: usize, count: usize },
}

/// Total cost of slots. Sums the time at each rate before multiplying: otherwise rounding depends
/// on the division of work among divisible slots, and a front fills with plans that are "cheaper"
/// by rounding alone.
#[derive(Debug, Default)]
struct CostSum {
    rate: f64,
    at_rate: u128,
    before: f64,
}

impl CostSum {
    fn add(&mut self, slot: &Slot, paid: u128) {
        if slot.price.rate != self.rate {
            self.before = self.total();
            (self.rate, self.at_rate) = (slot.price.rate, 0);
        }
        self.at_rate += paid;
        self.before += slot.price.fixed;
    }

    fn total(&self) -> f64 {
        self.before + slot::cost_of(self.at_rate, self.rate)
    }
}

/// A list scheduler for one workflow on one set of offers. It reuses its buffers, since a search
/// evaluates thousands of sets.
#[derive(Debug)]
pub struct ListScheduler<'a> {
    dag: &'a Dag,
    links: &'a SiteLinks,
    slots: &'a [Slot],
    method: Method,
    /// Seconds of a later finish that are as bad as a unit of cost.
    cost_weight: f64,
    /// Tasks in the order of placement; for the level methods, level by level.
    order: Vec<usize>,
    /// Index after each level in `order`.
    levels: Vec<usize>,
    /// Slots by site, then by start.
    sorted: Vec<usize>,
    /// By slot: the offer that it is a piece of.
    offer_of: Vec<usize>,
    sites: usize,
    // State of one evaluation.
    lanes: Vec<Lane>,
    /// Range of lanes of each site.
    of_site: Vec<(usize, usize)>,
    profiles: Vec<AvailabilityProfile>,
    profiles_used: usize,
    places: Vec<TaskPlacement>,
    /// (lane, processors) of tasks in several lanes.
    parts: Vec<(usize, u32)>,
    /// By lane: processor-microseconds of its tasks, and the last end.
    loads: Vec<(u128, Time)>,
    moments: Vec<Time>,
}

impl<'a> ListScheduler<'a> {
    /// Creates a scheduler for pieces of offers. The chosen pieces of an offer act as one slot.
    pub fn on_pieces(
        dag: &'a Dag,
        links: &'a SiteLinks,
        pieces: &'a SlotPieces,
        method: Method,
    ) -> Self {
        let mut lister = Self::new(dag, links, pieces.slots(), method);
        lister.offer_of = pieces.offers().to_vec();
        lister
    }

    /// Creates a scheduler for these slots. Their site numbers give the number of sites.
    pub fn new(dag: &'a Dag, links: &'a SiteLinks, slots: &'a [Slot], method: Method) -> Self {
        let sites = slots.iter().map(|slot| slot.site + 1).max().unwrap_or(0);
        let mut sorted: Vec<usize> = (0..slots.len()).collect();
        sorted.sort_by_key(|&slot| (slots[slot].site, slots[slot].start, slot));
        let mut order = dag.order().to_vec();
        let mut levels = Vec::new();
        match method {
            Method::Heft => {
                let ranks = dag.ranks(links, sites);
                // A stable sort keeps parents before children at equal ranks.
                order.sort_by(|&a, &b| ranks[b].total_cmp(&ranks[a]));
            }
            Method::Greedy => {}
            Method::MinMin | Method::MaxMin => {
                let level = dag.levels();
                order.sort_by_key(|&task| level[task]);
                let ends =
                    |at: &usize| *at == order.len() || level[order[*at]] != level[order[*at - 1]];
                levels = (1..=order.len()).filter(ends).collect();
            }
        }
        let no_place = TaskPlacement { start: 0, end: 0, site: 0, lanes: LaneChoice::One(0) };
        Self {
            dag,
            links,
            slots,
            method,
            cost_weight: 0.0,
            order,
            levels,
            sorted,
            offer_of: (0..slots.len()).collect(),
            sites,
            lanes: Vec::new(),
            of_site: Vec::new(),
            profiles: Vec::new(),
            profiles_used: 0,
            places: vec![no_place; dag.len()],
            parts: Vec::new(),
            loads: Vec::new(),
            moments: Vec::new(),
        }
    }

    /// Sets the seconds of a later finish that are as bad as a unit of a task's cost. With 0, a
    /// task takes the earliest finish.
    pub fn set_cost_weight(&mut self, weight: f64) {
        self.cost_weight = weight;
    }

    /// The slots to choose from.
    pub fn slots(&self) -> &'a [Slot] {
        self.slots
    }

    /// Whether the order of tasks is independent of the slots. Then unused slots do not affect the
    /// schedule.
    pub fn has_fixed_order(&self) -> bool {
        matches!(self.method, Method::Heft | Method::Greedy)
    }

    /// The workflow to schedule.
    pub fn dag(&self) -> &'a Dag {
        self.dag
    }

    /// Cost and makespan on a set of slots; none if some task has no place.
    pub fn outcome(&mut self, chosen: &SlotSet) -> Option<ScheduleResult> {
        self.place_all(chosen).ok()?;
        Some(self.sum(chosen))
    }

    /// Like [`ListScheduler::outcome`], with the place of every task.
    ///
    /// # Errors
    /// [`UnplacedTask`] for the first task without a place.
    pub fn schedule(&mut self, chosen: &SlotSet) -> Result<Schedule, UnplacedTask> {
        self.place_all(chosen).map_err(|task| self.unplaced(task))?;
        let plan = |(task, place): (usize, &TaskPlacement)| {
            let pieces = match place.lanes {
                LaneChoice::One(lane) => {
                    let processors = self.dag.task(task).processors;
                    vec![SlotPart { slot: self.lanes[lane].slot, processors }]
                }
                LaneChoice::Many { first, count } => {
                    let parts = self.parts[first..first + count].iter();
                    parts
                        .map(|&(lane, processors)| SlotPart {
                            slot: self.lanes[lane].slot,
                            processors,
                        })
                        .collect()
                }
            };
            TaskPlan { start: place.start, end: place.end, site: place.site, pieces }
        };
        let tasks = self.places.iter().enumerate().map(plan).collect();
        Ok(Schedule { tasks, outcome: self.sum(chosen) })
    }

    fn sum(&self, chosen: &SlotSet) -> ScheduleResult {
        let mut used = SlotSet::none(self.slots.len());
        let (mut all, mut of_used, mut makespan) = (CostSum::default(), CostSum::default(), 0);
        for (lane, &(load, last)) in self.lanes.iter().zip(&self.loads) {
            let slot = &self.slots[lane.slot];
            let runs = lane.line.is_some();
            let offer = self.offer_of[lane.slot];
            let pieces = (lane.slot..self.slots.len()).take_while(|at| self.offer_of[*at] == offer);
            pieces.for_each(|piece| used.set(piece, runs && chosen.has(piece)));
            let Some(paid) = slot.paid(load, last) else { continue };
            all.add(slot, paid);
            if runs {
                of_used.add(slot, paid);
            }
        }
        for place in &self.places {
            makespan = makespan.max(place.end);
        }
        debug_assert!(used.is_subset(chosen));
        ScheduleResult { cost: all.total(), cost_used: of_used.total(), makespan, used }
    }

    fn place_all(&mut self, chosen: &SlotSet) -> Result<(), usize> {
        self.begin(chosen);
        match self.method {
            Method::Heft | Method::Greedy => {
                for at in 0..self.order.len() {
                    let task = self.order[at];
                    let place = self.best(task).ok_or(task)?;
                    self.commit(task, place);
                }
                Ok(())
            }
            Method::MinMin | Method::MaxMin => {
                let mut from = 0;
                for level in 0..self.levels.len() {
                    let to = self.levels[level];
                    self.place_level(from, to)?;
                    from = to;
                }
                Ok(())
            }
        }
    }

    fn begin(&mut self, chosen: &SlotSet) {
        self.lanes.clear();
        self.of_site.clear();
        self.parts.clear();
        self.loads.clear();
        self.profiles_used = 0;
        let mut at = 0;
        for site in 0..self.sites {
            let first = self.lanes.len();
            while at < self.sorted.len() && self.slots[self.sorted[at]].site == site {
                let index = self.sorted[at];
                at += 1;
                if chosen.has(index) {
                    let slot = &self.slots[index];
                    if let Some(lane) = self.lanes.last_mut()
                        && self.offer_of[lane.slot] == self.offer_of[index]
                    {
                        lane.processors += slot.processors;
                        continue;
                    }
                    let end = if slot.extensible { NEVER } else { slot.end };
                    let Slot { start, processors, .. } = *slot;
                    self.lanes.push(Lane { slot: index, start, end, processors, line: None });
                    self.loads.push((0, 0));
                }
            }
            self.of_site.push((first, self.lanes.len()));
        }
    }

    /// Earliest time at which a task's data is available at a site.
    fn ready(&self, task: usize, site: usize) -> Time {
        let arrives = |&(parent, bytes): &(usize, u64)| {
            let place = &self.places[parent];
            place.end.saturating_add(self.links.transfer(bytes, place.site, site))
        };
        self.dag.parents(task).iter().map(arrives).max().unwrap_or(0)
    }

    /// Finds the earliest finish of a task; with a cost weight, the best of finish and cost.
    fn best(&mut self, task: usize) -> Option<TaskPlacement> {
        let (dag, slots) = (self.dag, self.slots);
        let task_of = dag.task(task);
        let needs = task_of.processors;
        let mut best: Option<TaskPlacement> = None;
        let weight = self.cost_weight;
        let penalty = |rate: f64, duration: Time| match weight {
            0.0 => 0,
            _ => from_seconds(weight * f64::from(needs) * seconds(duration) * rate),
        };
        // Best so far: its site, its end with the penalty for its cost, whether the slot is used
        // already, and its rate.
        let mut here: Option<usize> = None;
        let (mut until, mut used, mut rate) = (NEVER, false, f64::INFINITY);
        for site in 0..self.sites {
            let (first, last) = self.of_site[site];
            if first == last {
                continue;
            }
            let ready = self.ready(task, site);
            let duration = task_of.runtime.on(site);
            for at in first..last {
                let lane = &self.lanes[at];
                if lane.start.saturating_add(duration) > until {
                    break;
                }
                let mut start = ready.max(lane.start);
                let end = start.saturating_add(duration);
                let penalty = penalty(slots[lane.slot].price.rate, duration);
                if end > lane.end || lane.processors < needs || end.saturating_add(penalty) > until
                {
                    continue;
                }
                let has = lane.line.is_some();
                let better = |end: Time| {
                    let cheaper = || (has, -slots[lane.slot].price.rate) > (used, -rate);
                    let value = end.saturating_add(penalty);
                    value < until || value == until && here == Some(site) && cheaper()
                };
                if !better(end) {
                    continue;
                }
                if let Some(line) = lane.line {
                    let last_end = lane.end.min(until.saturating_sub(penalty));
                    let before = last_end.saturating_sub(duration).saturating_add(1);
                    match self.profiles[line].earliest(needs, duration, start, before) {
                        Some(found) => start = found,
                        None => continue,
                    }
                }
                let end = start + duration;
                if end > lane.end || !better(end) {
                    continue;
                }
                let value = end.saturating_add(penalty);
                (until, used, rate) = (value, has, slots[lane.slot].price.rate);
                here = Some(site);
                best = Some(TaskPlacement { start, end, site, lanes: LaneChoice::One(at) });
            }
            if needs == 1 {
                continue;
            }
            // Slots that are combined may have several rates. The least one decides.
            let rates = self.lanes[first..last].iter().map(|lane| slots[lane.slot].price.rate);
            let penalty = penalty(rates.fold(f64::INFINITY, f64::min), duration);
            let last_end = until.saturating_sub(penalty);
            if last_end > ready.saturating_add(duration) {
                let parts = self.parts.len();
                if let Some(start) = self.combine(site, needs, duration, ready, last_end) {
                    let (count, end) = (self.parts.len() - parts, start + duration);
                    (until, used, rate) = (end.saturating_add(penalty), true, 0.0);
                    here = Some(site);
                    let lanes = LaneChoice::Many { first: parts, count };
                    best = Some(TaskPlacement { start, end, site, lanes });
                }
            }
        }
        best
    }

    /// Combines several slots of a site for a task, if it ends before `until` there. Appends to
    /// `parts`, and returns the start.
    fn combine(
        &mut self,
        site: usize,
        needs: u32,
        duration: Time,
        ready: Time,
        until: Time,
    ) -> Option<Time> {
        let (first, last) = self.of_site[site];
        let all: u64 = self.lanes[first..last].iter().map(|lane| u64::from(lane.processors)).sum();
        if last - first < 2 || all < u64::from(needs) {
            return None;
        }
        // Free processors increase only at these times.
        let mut moments = std::mem::take(&mut self.moments);
        moments.clear();
        for lane in &self.lanes[first..last] {
            let start = lane.start.max(ready);
            if start.saturating_add(duration) > lane.end {
                continue;
            }
            moments.push(start);
            if let Some(line) = lane.line {
                let mut before = 0;
                for (at, free) in self.profiles[line].steps() {
                    if free > before && at > start {
                        moments.push(at);
                    }
                    before = free;
                }
            }
        }
        moments.sort_unstable();
        moments.dedup();
        let mut found = None;
        let parts = self.parts.len();
        for &start in &moments {
            let end = start.saturating_add(duration);
            if end >= until {
                break;
            }
            let mut sum = 0u64;
            for at in first..last {
                let lane = &self.lanes[at];
                if lane.start > start {
                    break;
                }
                if lane.end < end {
                    continue;
                }
                let free = lane
                    .line
                    .map_or(lane.processors, |line| self.profiles[line].min_free(start, end));
                if free > 0 {
                    sum += u64::from(free);
                    self.parts.push((at, free));
                }
            }
            if sum >= u64::from(needs) {
                found = Some(start);
                break;
            }
            self.parts.truncate(parts);
        }
        self.moments = moments;
        found?;
        // Slots without additional cost first, then cheaper ones, then larger ones: as few slots as
        // possible.
        let (slots, lanes) = (self.slots, &self.lanes);
        self.parts[parts..].sort_by(|a, b| {
            let costs = |&(at, free): &(usize, u32)| {
                let (lane, slot) = (&lanes[at], &slots[lanes[at].slot]);
                let more = !slot.divisible && lane.line.is_none();
                (more, slot.price.rate, std::cmp::Reverse(free), at)
            };
            let (a, b) = (costs(a), costs(b));
            let by_price = a.0.cmp(&b.0).then(a.1.total_cmp(&b.1));
            by_price.then(a.2.cmp(&b.2)).then(a.3.cmp(&b.3))
        });
        let mut left = needs;
        let mut kept = parts;
        while left > 0 {
            let part = &mut self.parts[kept];
            part.1 = part.1.min(left);
            left -= part.1;
            kept += 1;
        }
        self.parts.truncate(kept);
        found
    }

    fn commit(&mut self, task: usize, place: TaskPlacement) {
        match place.lanes {
            LaneChoice::One(lane) => self.run(lane, self.dag.task(task).processors, &place),
            LaneChoice::Many { first, count } => {
                for part in first..first + count {
                    let (lane, processors) = self.parts[part];
                    self.run(lane, processors, &place);
                }
            }
        }
        self.places[task] = place;
    }

    fn run(&mut self, lane: usize, processors: u32, place: &TaskPlacement) {
        let Lane { start, end, processors: all, line, .. } = self.lanes[lane];
        let line = line.unwrap_or_else(|| {
            let line = self.profiles_used;
            match self.profiles.get_mut(line) {
                Some(kept) => kept.reset(all, start, end),
                None => self.profiles.push(AvailabilityProfile::new(all, start, end)),
            }
            self.profiles_used += 1;
            self.lanes[lane].line = Some(line);
            line
        });
        self.profiles[line].take(processors, place.start, place.end);
        let load = &mut self.loads[lane];
        load.0 += u128::from(processors) * u128::from(place.end - place.start);
        load.1 = load.1.max(place.end);
    }

    /// Places the tasks of a level. A task's best place changes only when a new task runs in the
    /// same slot at that time.
    fn place_level(&mut self, from: usize, to: usize) -> Result<(), usize> {
        let mut waiting: Vec<usize> = self.order[from..to].to_vec();
        let mut found: Vec<Option<TaskPlacement>> = vec![None; waiting.len()];
        while !waiting.is_empty() {
            let mut next: Option<(Time, usize)> = None;
            for at in 0..waiting.len() {
                let place = match found[at] {
                    Some(place) => place,
                    None => self.best(waiting[at]).ok_or(waiting[at])?,
                };
                found[at] = Some(place);
                let first = match (self.method, next) {
                    (_, None) => true,
                    (Method::MinMin, Some((end, _))) => place.end < end,
                    (_, Some((end, _))) => place.end > end,
                };
                if first {
                    next = Some((place.end, at));
                }
            }
            let Some((_, at)) = next else { break };
            let task = waiting.remove(at);
            let Some(place) = found.remove(at) else { break };
            self.commit(task, place);
            let taken: Vec<usize> = self.lanes_of(&place).collect();
            for other in &mut found {
                let is_stale = other.is_some_and(|other| {
                    other.start < place.end
                        && place.start < other.end
                        && self.lanes_of(&other).any(|lane| taken.contains(&lane))
                });
                // A used slot adds less cost, so another of equal places may become the best.
                if is_stale {
                    *other = None;
                }
            }
        }
        Ok(())
    }

    fn lanes_of(&self, place: &TaskPlacement) -> impl Iterator<Item = usize> {
        let (one, many) = match place.lanes {
            LaneChoice::One(lane) => (Some(lane), &[][..]),
            LaneChoice::Many { first, count } => (None, &self.parts[first..first + count]),
        };
        one.into_iter().chain(many.iter().map(|&(lane, _)| lane))
    }

    fn unplaced(&self, task: usize) -> UnplacedTask {
        let of = self.dag.task(task);
        let quickest = (0..self.sites).min_by_key(|&site| of.runtime.on(site)).unwrap_or(0);
        let runtime = of.runtime.on(quickest);
        let mut most = 0;
        for site in 0..self.sites {
            let (first, last) = self.of_site[site];
            let lanes = &self.lanes[first..last];
            let duration = of.runtime.on(site);
            for start in lanes.iter().map(|lane| lane.start) {
                let end = start.saturating_add(duration);
                let long = lanes.iter().filter(|lane| lane.start <= start && lane.end >= end);
                most = most.max(long.map(|lane| lane.processors).sum());
            }
        }
        let late = if most >= of.processors {
            ", and they are taken or over when its parents have ended"
        } else {
            ""
        };
        let (task, slots) = (of.name.clone(), self.lanes.len());
        UnplacedTask { task, processors: of.processors, runtime, slots, most, late }
    }
}
