//! Plans of workflows: the slots to reserve, the places of tasks on them, and the Pareto front; or
//! the reason why no plan exists, with the nearest one.
//!
//! A plan is a function of a workflow, offers and a request. This module is independent of files,
//! command lines and figures.

use springtide_actors::policy::provisioning::{
    Budget, Constraint, Dag, DagTask, Edge, ListScheduler, Method, Objectives, ParetoFront,
    PlanPoint, Runtime, Schedule, Search, Slot, SlotPieces, SlotSet, Time, UnplacedTask,
    from_seconds, search, seconds,
};

use super::processors::{Numbers, Span, most, number};
use springtide_operations::offers::Offers;

/// Number of trade-offs for which a front is evaluated: 0 (fastest), 0.1, ... 1 (cheapest).
pub const TRADE_OFFS: usize = 11;

/// The trade-off with a number below [`TRADE_OFFS`].
pub fn trade_off(number: usize) -> f64 {
    number as f64 / (TRADE_OFFS - 1) as f64
}

/// The criteria of the choice, and the settings of the search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlanRequest {
    /// Weight of cost against time: 0 selects the fastest plan, 1 the cheapest.
    pub alpha: f64,
    /// Deadline and budget of the plan.
    pub constraint: Constraint,
    /// List scheduler that places tasks.
    pub method: Method,
    /// Search among sets of slots.
    pub search: Search,
    /// Size and number of generations of the search.
    pub budget: Budget,
    /// Random seed of the search.
    pub seed: u64,
}

/// A slot that a plan reserves.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedSlot {
    /// Index among all slots of the offers.
    pub slot: usize,
    /// Index among the slots of its site.
    pub of_site: usize,
    /// The offer of the site.
    pub offer: Slot,
    /// End of the reservation: the offer's end, or later if it is extended.
    pub end: Time,
    /// Cost of the reservation, in the unit of the offers.
    pub cost: f64,
    /// Processor-microseconds of the tasks on it.
    pub used: u128,
    /// Start of the first and end of the last task on it.
    pub busy: (Time, Time),
    /// Number of tasks on it.
    pub tasks: usize,
    /// Its numbers among the processors of its site.
    pub processors: Numbers,
}

impl PlannedSlot {
    /// Processor-microseconds that are paid: all, or those used of a divisible slot.
    pub fn paid(&self) -> u128 {
        self.offer.paid(self.used, self.end).unwrap_or(0)
    }
}

/// A plan, and the front from which it was chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Plans that no other dominates, the cheapest first.
    pub front: ParetoFront,
    /// Index of this plan on the front.
    pub index_on_front: usize,
    /// Index of the plan that each trade-off selects among those that meet the constraint.
    pub chosen_by_trade_off: [usize; TRADE_OFFS],
    /// Start, end and site of each task.
    pub schedule: Schedule,
    /// Processors of each task, by number within its site.
    pub places: Vec<Numbers>,
    /// The slots of this plan, by site and start.
    pub slots: Vec<PlannedSlot>,
    /// Lower bound of the cost of all plans: each task at the lowest price that an offer has for
    /// its processors (equation 9 where a processor-second costs 1).
    pub floor: f64,
    /// Lower bound of the makespan of all plans: the longest chain of tasks, each on the fastest
    /// site that offers a slot.
    pub chain: Time,
    /// Number of sets of slots that were evaluated.
    pub tried: usize,
    /// Number of these sets on which the workflow fits.
    pub feasible: usize,
}

impl Plan {
    /// Cost and makespan of the plan.
    pub fn objectives(&self) -> Objectives {
        self.front.points()[self.index_on_front].objectives
    }

    /// Cost above the lower bound.
    pub fn waste(&self) -> f64 {
        (self.objectives().cost - self.floor).max(0.0)
    }

    /// For each site of the offers: the largest processor number of the plan's slots, plus one.
    pub fn rows(&self, offers: &Offers) -> Vec<u32> {
        let mut rows = vec![0; offers.sites.len()];
        for had in &self.slots {
            rows[had.offer.site] = rows[had.offer.site].max(had.processors.end());
        }
        rows
    }

    /// Sites whose slots in this plan exceed their processors at some moment: the site offers some
    /// processors twice.
    pub fn overbooked(&self, offers: &Offers) -> Vec<usize> {
        let rows = self.rows(offers).into_iter().enumerate();
        rows.filter(|(site, rows)| *rows > offers.sites[*site].processors).map(|(s, _)| s).collect()
    }
}

/// The reason why no plan exists, with the nearest one.
#[derive(Clone, Debug, PartialEq)]
pub enum NoPlan {
    /// No site offers a slot.
    NoSlots,
    /// A task fits on no set of slots.
    NoPlace(Box<BlockedTask>),
    /// Plans exist, but none meets the constraint.
    Constraint(Box<NearestPlan>),
}

/// A task that fits on no set of slots, with explanations and remedies.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockedTask {
    /// Report of the list scheduler.
    pub why: UnplacedTask,
    /// Index of the task.
    pub task: usize,
    /// Earliest start of the task, if each of its predecessors runs on its fastest site without
    /// waiting.
    pub ready: Time,
    /// The maximum of processors that one site offers at once from then on: site, number, start.
    pub widest: Option<(usize, u64, Time)>,
    /// The longest interval in which a site offers enough processors: site, start, end.
    pub longest: Option<(usize, Time, Time)>,
    /// The site with the most processors, offered or not.
    pub largest: (usize, u32),
    /// Tasks with reduced numbers of processors and the same runtimes, with which the workflow fits
    /// on all slots.
    pub narrower: Option<(Vec<(usize, u32)>, Objectives)>,
    /// Another list scheduler with which the workflow fits on all slots.
    pub other: Option<(Method, Objectives)>,
}

/// The plans that come nearest to a constraint that none meets.
#[derive(Clone, Debug, PartialEq)]
pub struct NearestPlan {
    /// The constraint of the request.
    pub constraint: Constraint,
    /// The nearest plan: the fastest if all miss the deadline, the cheapest if all exceed the
    /// budget, else the one with the smallest violation of both.
    pub nearest: Plan,
    /// Cost and makespan of the fastest plan.
    pub fastest: Objectives,
    /// Cost and makespan of the cheapest plan.
    pub cheapest: Objectives,
}

/// The resources of a task, for the planner.
#[derive(Clone, Debug, PartialEq)]
pub struct Needs {
    /// Unique name of the task.
    pub name: String,
    /// Seconds at a speed of 1.
    pub runtime_s: f64,
    /// Processors that it needs at the same time.
    pub processors: u32,
}

/// The planner's graph of a workflow, with the runtimes on sites of these speeds. A runtime is at
/// least a microsecond.
///
/// # Errors
/// The graph has a cycle, or a task needs no processors. Readers accept no such workflow.
pub fn dag(
    tasks: impl IntoIterator<Item = Needs>,
    edges: impl IntoIterator<Item = (usize, usize, u64)>,
    speeds: &[f64],
) -> Result<Dag, springtide_actors::policy::provisioning::DagError> {
    let even = speeds.windows(2).all(|two| two[0] == two[1]);
    let task = |Needs { name, runtime_s, processors }| {
        let on = |speed: f64| from_seconds(runtime_s / speed).max(1);
        let runtime = if even {
            Runtime::Same(on(speeds.first().copied().unwrap_or(1.0)))
        } else {
            Runtime::BySite(speeds.iter().copied().map(on).collect())
        };
        DagTask { name, processors, runtime }
    };
    let edges: Vec<Edge> =
        edges.into_iter().map(|(from, to, bytes)| Edge { from, to, bytes }).collect();
    Dag::new(tasks.into_iter().map(task).collect(), &edges, speeds.len())
}

/// Plans a workflow on offers. The result is a function of the arguments.
///
/// # Errors
/// [`NoPlan`].
pub fn plan(dag: &Dag, offers: &Offers, request: &PlanRequest) -> Result<Plan, NoPlan> {
    let (slots, links) = (offers.slots(), offers.links());
    if slots.is_empty() {
        return Err(NoPlan::NoSlots);
    }
    // The paper's search selects whole slots.
    let pieces = match request.search {
        Search::Pruned => SlotPieces::cut(&slots),
        Search::Paper { .. } => SlotPieces::whole(&slots),
    };
    let all = SlotSet::all(pieces.slots().len());
    let mut lister = ListScheduler::on_pieces(dag, &links, &pieces, request.method);
    let mut found = search(&mut lister, request.search, request.budget, request.seed, false);
    if found.front.points().is_empty() {
        // The search may have missed the few feasible sets. If any set is feasible, all slots are.
        lister.set_cost_weight(0.0);
        match lister.schedule(&all) {
            Ok(schedule) => {
                let (cost, makespan) = (schedule.outcome.cost, schedule.outcome.makespan);
                found.front.insert(Objectives { cost, makespan }, &all);
            }
            Err(why) => return Err(blocked(dag, offers, &slots, request.method, why)),
        }
    }
    let front = found.front;
    let index =
        |point: &PlanPoint| front.points().iter().position(|other| other == point).unwrap_or(0);
    let chosen = front.choose(request.alpha, &request.constraint);
    let ends =
        |at: Option<&PlanPoint>| at.map_or(Objectives { cost: 0.0, makespan: 0 }, |p| p.objectives);
    let (cheapest, fastest) = (ends(front.points().first()), ends(front.points().last()));
    let at = match chosen {
        Ok(point) => index(point),
        Err(nearest) => {
            let Constraint { deadline, budget } = request.constraint;
            if deadline.is_some_and(|deadline| fastest.makespan > deadline) {
                front.points().len() - 1
            } else if budget.is_some_and(|budget| cheapest.cost > budget) {
                0
            } else {
                nearest.map_or(0, index)
            }
        }
    };
    let mut chosen_by_trade_off = [at; TRADE_OFFS];
    for (number, chosen) in chosen_by_trade_off.iter_mut().enumerate() {
        if let Ok(point) = front.choose(trade_off(number), &request.constraint) {
            *chosen = index(point);
        }
    }
    let is_held = chosen.is_ok();
    lister.set_cost_weight(front.points()[at].cost_weight);
    let mut schedule = match lister.schedule(&front.points()[at].slots) {
        Ok(schedule) => schedule,
        Err(why) => return Err(blocked(dag, offers, &slots, request.method, why)),
    };
    for part in schedule.tasks.iter_mut().flat_map(|task| &mut task.pieces) {
        part.slot = pieces.offer(part.slot);
    }
    let mut chosen_slots = slots.clone();
    for (offer, slot) in chosen_slots.iter_mut().enumerate() {
        slot.processors = pieces.processors_of(offer, &front.points()[at].slots);
    }
    let front = front.map_slots(|chosen| pieces.offers_of(chosen));
    let (had, places) = placed(&chosen_slots, &front.points()[at].slots, &schedule);
    let floor = floor(dag, &slots, offers.sites.len());
    let chain = chain(dag, &slots, offers.sites.len()).into_iter().max().unwrap_or(0);
    let (tried, feasible) = (found.evaluations, found.feasible);
    let plan = Plan {
        front,
        index_on_front: at,
        chosen_by_trade_off,
        schedule,
        places,
        slots: had,
        floor,
        chain,
        tried,
        feasible,
    };
    if is_held {
        Ok(plan)
    } else {
        Err(NoPlan::Constraint(Box::new(NearestPlan {
            constraint: request.constraint,
            nearest: plan,
            fastest,
            cheapest,
        })))
    }
}

/// Lower bound of the cost of all plans.
fn floor(dag: &Dag, slots: &[Slot], sites: usize) -> f64 {
    let mut rates = vec![f64::INFINITY; sites];
    for slot in slots {
        rates[slot.site] = rates[slot.site].min(slot.price.rate);
    }
    let least = |task: &DagTask| {
        let costs = |(site, rate): (usize, &f64)| seconds(task.runtime.on(site)) * rate;
        let offered = rates.iter().enumerate().filter(|(_, rate)| rate.is_finite());
        f64::from(task.processors) * offered.map(costs).fold(f64::INFINITY, f64::min)
    };
    dag.tasks().iter().map(least).sum()
}

/// The earliest end of each task, if all tasks run on the fastest site that offers a slot and wait
/// only for their parents.
fn chain(dag: &Dag, slots: &[Slot], sites: usize) -> Vec<Time> {
    let offers: Vec<usize> =
        (0..sites).filter(|site| slots.iter().any(|slot| slot.site == *site)).collect();
    let mut ends: Vec<Time> = vec![0; dag.len()];
    for &task in dag.order() {
        let quickest = offers.iter().map(|&site| dag.task(task).runtime.on(site)).min();
        let ready = dag.parents(task).iter().map(|&(parent, _)| ends[parent]).max().unwrap_or(0);
        ends[task] = ready.saturating_add(quickest.unwrap_or(0));
    }
    ends
}

/// The slots of a plan with their processors, and the processors of each task.
fn placed(
    slots: &[Slot],
    chosen: &SlotSet,
    schedule: &Schedule,
) -> (Vec<PlannedSlot>, Vec<Numbers>) {
    let mut first_of_site: Vec<usize> = Vec::new();
    for (at, slot) in slots.iter().enumerate() {
        if slot.site >= first_of_site.len() {
            first_of_site.resize(slot.site + 1, at);
        }
    }
    let mut order: Vec<usize> = chosen.iter().collect();
    order.sort_by_key(|&slot| (slots[slot].site, slots[slot].start, slot));
    let mut index = vec![usize::MAX; slots.len()];
    order.iter().enumerate().for_each(|(at, &slot)| index[slot] = at);
    // The tasks of each slot: (task, processors).
    let mut runs: Vec<Vec<(usize, u32)>> = vec![Vec::new(); order.len()];
    for (task, place) in schedule.tasks.iter().enumerate() {
        for piece in &place.pieces {
            if let Some(of_slot) = runs.get_mut(index[piece.slot]) {
                of_slot.push((task, piece.processors));
            }
        }
    }
    let mut had: Vec<PlannedSlot> = Vec::with_capacity(order.len());
    for (&slot, runs) in order.iter().zip(&runs) {
        let offer = slots[slot].clone();
        let (mut used, mut busy) = (0u128, (Time::MAX, 0));
        for &(task, processors) in runs {
            let place = &schedule.tasks[task];
            used += u128::from(processors) * u128::from(place.end - place.start);
            busy = (busy.0.min(place.start), busy.1.max(place.end));
        }
        if runs.is_empty() {
            busy = (offer.start, offer.start);
        }
        had.push(PlannedSlot {
            slot,
            of_site: slot - first_of_site[offer.site],
            end: offer.end.max(busy.1),
            cost: offer.cost(used, busy.1),
            used,
            busy,
            tasks: runs.len(),
            processors: Numbers::default(),
            offer,
        });
    }
    // Number the slots within the processors of their sites.
    let mut from = 0;
    while from < had.len() {
        let site = had[from].offer.site;
        let to = from + had[from..].iter().take_while(|had| had.offer.site == site).count();
        let span = |had: &PlannedSlot| Span {
            processors: had.offer.processors,
            start: had.offer.start,
            end: had.end,
        };
        let spans: Vec<Span> = had[from..to].iter().map(span).collect();
        let limit = u32::try_from(most(&spans)).unwrap_or(u32::MAX);
        for (had, numbers) in
            had[from..to].iter_mut().zip(number(&spans, limit).unwrap_or_default())
        {
            had.processors = numbers;
        }
        from = to;
    }
    // Number the tasks within the processors of their slots.
    let mut places = vec![Numbers::default(); schedule.tasks.len()];
    for (had, runs) in had.iter().zip(&runs) {
        let span = |&(task, processors): &(usize, u32)| {
            let place = &schedule.tasks[task];
            Span { processors, start: place.start, end: place.end }
        };
        let spans: Vec<Span> = runs.iter().map(span).collect();
        // The scheduler uses at most the processors of the slot.
        let numbers = number(&spans, had.offer.processors).unwrap_or_default();
        for (&(task, _), numbers) in runs.iter().zip(numbers) {
            places[task] = places[task].with(&numbers.through(&had.processors));
        }
    }
    (had, places)
}

/// Explains why a task has no place, and searches for remedies.
fn blocked(
    dag: &Dag,
    offers: &Offers,
    slots: &[Slot],
    method: Method,
    why: UnplacedTask,
) -> NoPlan {
    let sites = offers.sites.len();
    let task = dag.tasks().iter().position(|task| task.name == why.task).unwrap_or(0);
    let ends = chain(dag, slots, sites);
    let ready = dag.parents(task).iter().map(|&(parent, _)| ends[parent]).max().unwrap_or(0);
    let (mut widest, mut longest) = (None::<(usize, u64, Time)>, None::<(usize, Time, Time)>);
    for site in 0..sites {
        let of_site: Vec<&Slot> = slots.iter().filter(|slot| slot.site == site).collect();
        let until = |slot: &Slot| if slot.extensible { forever() } else { slot.end };
        let mut moments: Vec<Time> = of_site.iter().map(|slot| slot.start.max(ready)).collect();
        moments.sort_unstable();
        moments.dedup();
        for at in moments {
            let mut open: Vec<(Time, u32)> = of_site
                .iter()
                .filter(|slot| slot.start <= at && until(slot) > at)
                .map(|slot| (until(slot), slot.processors))
                .collect();
            // In decreasing order of their ends.
            open.sort_unstable_by(|a, b| b.cmp(a));
            let all: u64 = open.iter().map(|(_, processors)| u64::from(*processors)).sum();
            if all > widest.map_or(0, |(_, most, _)| most) {
                widest = Some((site, all, at));
            }
            let mut sum = 0u64;
            let enough = open.iter().find(|(_, processors)| {
                sum += u64::from(*processors);
                sum >= u64::from(why.processors)
            });
            if let Some(&(end, _)) = enough
                && end - at > longest.map_or(0, |(_, from, to)| to - from)
            {
                longest = Some((site, at, end));
            }
        }
    }
    let largest = offers.sites.iter().enumerate().map(|(at, site)| (at, site.processors));
    let largest = largest.max_by_key(|(at, most)| (*most, std::cmp::Reverse(*at)));
    let links = offers.links();
    let all = SlotSet::all(slots.len());
    let outcome = |dag: &Dag, method| {
        let outcome = ListScheduler::new(dag, &links, slots, method).outcome(&all)?;
        Some(Objectives { cost: outcome.cost_used, makespan: outcome.makespan })
    };
    let others = Method::ALL.into_iter().filter(|other| *other != method);
    let other = others.filter_map(|other| Some((other, outcome(dag, other)?))).next();
    let narrower = narrower(dag, slots, sites, &why, |dag| {
        let mut lister = ListScheduler::new(dag, &links, slots, method);
        lister.schedule(&all).map(|schedule| {
            let outcome = schedule.outcome;
            Objectives { cost: outcome.cost_used, makespan: outcome.makespan }
        })
    });
    let largest = largest.unwrap_or((0, 0));
    NoPlan::NoPlace(Box::new(BlockedTask {
        why,
        task,
        ready,
        widest,
        longest,
        largest,
        narrower,
        other,
    }))
}

/// The end of an extensible slot, which is later than all others.
pub fn forever() -> Time {
    springtide_actors::policy::provisioning::NEVER
}

/// Maximum number of attempts to reduce the processors of tasks without a place.
const NARROWINGS: usize = 24;

/// Reduces the processors of tasks without a place until all tasks have one.
fn narrower(
    dag: &Dag,
    slots: &[Slot],
    sites: usize,
    why: &UnplacedTask,
    try_on: impl Fn(&Dag) -> Result<Objectives, UnplacedTask>,
) -> Option<(Vec<(usize, u32)>, Objectives)> {
    let edges: Vec<Edge> = (0..dag.len())
        .flat_map(|to| dag.parents(to).iter().map(move |&(from, bytes)| Edge { from, to, bytes }))
        .collect();
    let mut tasks = dag.tasks().to_vec();
    let least = |task: &DagTask| {
        let offers = slots.iter().map(|slot| task.runtime.on(slot.site));
        offers.min().unwrap_or(0)
    };
    let mut why = why.clone();
    for _ in 0..NARROWINGS {
        // Fewer than now, and no more than are free for its runtime.
        let most = why.most.min(why.processors - 1);
        if most == 0 {
            return None;
        }
        // Other tasks with as many processors and as long a runtime have no place either.
        for task in &mut tasks {
            if task.processors > most && least(task) >= why.runtime {
                task.processors = most;
            }
        }
        let narrow = Dag::new(tasks.clone(), &edges, sites).ok()?;
        match try_on(&narrow) {
            Ok(is) => {
                let changed = tasks.iter().zip(dag.tasks()).enumerate();
                let changed = changed.filter(|(_, (now, before))| now != before);
                return Some((changed.map(|(at, (now, _))| (at, now.processors)).collect(), is));
            }
            Err(still) => why = still,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use springtide_actors::policy::provisioning::SECOND;

    use super::*;

    fn offers(sites: &[(&str, u32, f64, &str)]) -> Offers {
        let site = |(name, processors, speed, slots): &(&str, u32, f64, &str)| {
            format!(
                r#"{{"name":"{name}","processors":{processors},"speed":{speed},"slots":[{slots}]}}"#
            )
        };
        let sites: Vec<String> = sites.iter().map(site).collect();
        let text = format!(r#"{{"schema":1,"origin_unix_s":0,"sites":[{}]}}"#, sites.join(","));
        Offers::parse(Path::new("o.json"), text.as_bytes()).unwrap()
    }

    fn slot(processors: u32, start: u32, end: u32) -> String {
        format!(
            r#"{{"processors":{processors},"start_s":{start},"end_s":{end},
               "divisible":false,"extensible":false}}"#
        )
    }

    fn request() -> PlanRequest {
        PlanRequest {
            alpha: 0.5,
            constraint: Constraint::default(),
            method: Method::Heft,
            search: Search::Pruned,
            budget: Budget { population: 10, iterations: 10 },
            seed: 1,
        }
    }

    fn needs(name: &str, runtime_s: f64, processors: u32) -> Needs {
        Needs { name: name.to_owned(), runtime_s, processors }
    }

    /// A task with two children that have twice its runtime and processors.
    fn fork(offers: &Offers) -> Dag {
        let speeds: Vec<f64> = offers.sites.iter().map(|site| site.speed).collect();
        let tasks = [needs("a", 10.0, 1), needs("b", 20.0, 2), needs("c", 20.0, 2)];
        dag(tasks, [(0, 1, 0), (0, 2, 0)], &speeds).unwrap()
    }

    #[test]
    fn the_cost_of_a_plan_is_that_of_its_slots() {
        let slots = [slot(2, 0, 60), slot(2, 0, 30)].join(",");
        let offers = offers(&[("vu", 8, 1.0, &slots), ("uva", 8, 2.0, &slot(4, 0, 100))]);
        let dag = fork(&offers);
        let plan = plan(&dag, &offers, &request()).unwrap();
        // On the site of double speed the workflow takes 15 s in a slot of 100 s. The other site
        // has two slots.
        let points: Vec<_> = plan
            .front
            .points()
            .iter()
            .map(|point| (point.objectives.cost, point.objectives.makespan))
            .collect();
        assert_eq!(points, [(120.0, 50 * SECOND), (180.0, 30 * SECOND), (400.0, 15 * SECOND)]);
        assert_eq!((plan.chosen_by_trade_off[0], plan.chosen_by_trade_off[TRADE_OFFS - 1]), (2, 0));
        let sum: f64 = plan.slots.iter().map(|had| had.cost).sum();
        assert_eq!(sum, plan.objectives().cost);
        assert_eq!((plan.floor, plan.chain), (45.0, 15 * SECOND));
        assert_eq!(plan.waste(), plan.objectives().cost - 45.0);
        let used: u128 = plan.slots.iter().map(|had| had.used).sum();
        let runs: u128 = (plan.schedule.tasks.iter().zip(dag.tasks()))
            .map(|(place, task)| u128::from(task.processors) * u128::from(place.end - place.start))
            .sum();
        assert_eq!(used, runs);
    }

    #[test]
    fn an_unmet_constraint_has_a_nearest_plan() {
        let slots = [slot(2, 0, 60), slot(2, 0, 30)].join(",");
        let offers = offers(&[("vu", 8, 1.0, &slots)]);
        let dag = fork(&offers);
        let ask = |deadline: Option<u64>, budget: Option<f64>| {
            let deadline = deadline.map(|seconds| seconds * SECOND);
            let constraint = Constraint { deadline, budget };
            plan(&dag, &offers, &PlanRequest { constraint, ..request() })
        };
        let missed = |deadline, budget| match ask(deadline, budget) {
            Err(NoPlan::Constraint(missed)) => *missed,
            other => panic!("{other:?}"),
        };
        let late = missed(Some(20), None);
        assert_eq!((late.nearest.objectives(), late.nearest.chain), (late.fastest, 30 * SECOND));
        let dear = missed(None, Some(100.0));
        assert_eq!((dear.nearest.objectives(), dear.cheapest.cost), (dear.cheapest, 120.0));
        let both = missed(Some(40), Some(150.0));
        assert!(both.fastest.makespan <= 40 * SECOND && both.cheapest.cost <= 150.0);
        assert_eq!(ask(Some(50), Some(120.0)).unwrap().objectives().cost, 120.0);
        assert_eq!(ask(Some(30), None).unwrap().objectives().makespan, 30 * SECOND);
    }

    #[test]
    fn a_task_without_a_place_has_explanations_and_remedies() {
        let ask = |offers: &Offers, tasks: Vec<Needs>, edges: &[(usize, usize, u64)]| {
            let dag = dag(tasks, edges.iter().copied(), &[1.0]).unwrap();
            match plan(&dag, offers, &request()) {
                Err(NoPlan::NoPlace(blocked)) => *blocked,
                other => panic!("{other:?}"),
            }
        };
        let slots = [slot(4, 0, 60), slot(2, 30, 100)].join(",");
        let offers = offers(&[("vu", 16, 1.0, &slots)]);
        // Too wide: 6 processors at most, from 30 s on, and for 40 s there are never more than 4.
        let wide = ask(&offers, vec![needs("w", 40.0, 8), needs("x", 10.0, 5)], &[]);
        assert_eq!(
            (wide.why.task.as_str(), wide.widest, wide.largest),
            ("w", Some((0, 6, 30 * SECOND)), (0, 16))
        );
        assert_eq!(wide.longest, None);
        let (changed, is) = wide.narrower.unwrap();
        assert_eq!((changed, is.makespan), (vec![(0, 4)], 50 * SECOND));
        // Too long: 2 processors for 70 s at most.
        let long = ask(&offers, vec![needs("l", 90.0, 2)], &[]);
        assert_eq!(long.longest, Some((0, 30 * SECOND, 100 * SECOND)));
        assert_eq!(long.narrower, None);
        // Too late: the wide slot ends before its parent.
        let late = ask(&offers, vec![needs("p", 50.0, 1), needs("q", 30.0, 4)], &[(0, 1, 0)]);
        assert_eq!((late.why.task.as_str(), late.ready), ("q", 50 * SECOND));
        assert_eq!(late.longest, Some((0, 50 * SECOND, 60 * SECOND)));
        assert_eq!(late.narrower.unwrap().0, [(1, 2)]);
        let none = super::tests::offers(&[("vu", 16, 1.0, "")]);
        let one = dag([needs("a", 1.0, 1)], [], &[1.0]).unwrap();
        assert_eq!(plan(&one, &none, &request()), Err(NoPlan::NoSlots));
    }

    /// For random workflows on random offers: no processor has two tasks at a time, the processors
    /// of a task are within its slots, and slots of a site share none.
    #[test]
    fn two_tasks_are_never_on_one_processor_at_a_time() {
        let mut random = springtide_runtime::random::SplitMix(11);
        let mut plans = 0;
        for seed in 0..60 {
            let sites: Vec<(String, String)> = (0..1 + random.below(3))
                .map(|site| {
                    let slots: Vec<String> = (0..1 + random.below(8))
                        .map(|_| {
                            let start = random.below(200);
                            let end = start + 50 + random.below(800);
                            let processors = 1 + random.below(12);
                            let divisible = random.below(2) == 0;
                            let extensible = random.below(3) == 0;
                            format!(
                                r#"{{"processors":{processors},"start_s":{start},"end_s":{end},"#
                            ) + &format!(r#""divisible":{divisible},"extensible":{extensible}}}"#)
                        })
                        .collect();
                    (format!("s{site}"), slots.join(","))
                })
                .collect();
            let sites: Vec<_> = (sites.iter().zip([1.0, 2.0, 0.5]))
                .map(|((name, slots), speed)| (name.as_str(), 100, speed, slots.as_str()))
                .collect();
            let offers = offers(&sites);
            let speeds: Vec<f64> = offers.sites.iter().map(|site| site.speed).collect();
            let count = 1 + random.below(40);
            let tasks: Vec<Needs> = (0..count)
                .map(|at| {
                    needs(
                        &format!("t{at}"),
                        1.0 + random.below(50) as f64,
                        1 + random.below(14) as u32,
                    )
                })
                .collect();
            let mut edges = Vec::new();
            for to in 1..count {
                if random.below(2) == 0 {
                    edges.push((to / 2, to, random.below(1 << 20) as u64));
                }
            }
            let dag = dag(tasks, edges, &speeds).unwrap();
            let search = if seed % 4 == 0 { Search::PAPER } else { Search::Pruned };
            let method = Method::ALL[seed % 4];
            let asked = PlanRequest { search, method, seed: seed as u64, ..request() };
            let Ok(plan) = plan(&dag, &offers, &asked) else { continue };
            plans += 1;
            let sum: f64 = plan.slots.iter().map(|had| had.cost).sum();
            assert!(
                (sum - plan.objectives().cost).abs() < 1e-6 * sum,
                "{sum} {:?}",
                plan.objectives()
            );
            for (a, place) in plan.schedule.tasks.iter().enumerate() {
                let numbers = &plan.places[a];
                assert_eq!(numbers.count(), dag.task(a).processors);
                let of_slots = place
                    .pieces
                    .iter()
                    .filter_map(|piece| plan.slots.iter().find(|had| had.slot == piece.slot));
                let of_slots: Vec<u32> = of_slots.flat_map(|had| had.processors.iter()).collect();
                assert!(numbers.iter().all(|number| of_slots.contains(&number)));
                for (b, other) in plan.schedule.tasks.iter().enumerate().skip(a + 1) {
                    let meet = place.site == other.site
                        && place.start.max(other.start) < place.end.min(other.end);
                    let shared = numbers.iter().any(|n| plan.places[b].iter().any(|m| m == n));
                    assert!(!(meet && shared), "seed {seed}: tasks {a} and {b}");
                }
            }
            for (at, had) in plan.slots.iter().enumerate() {
                assert_eq!(had.processors.count(), had.offer.processors);
                for other in &plan.slots[at + 1..] {
                    let meet = had.offer.site == other.offer.site
                        && had.offer.start.max(other.offer.start) < had.end.min(other.end);
                    let shared =
                        had.processors.iter().any(|n| other.processors.iter().any(|m| m == n));
                    assert!(!(meet && shared), "seed {seed}");
                }
            }
        }
        assert!(plans > 20, "{plans}");
    }
}
