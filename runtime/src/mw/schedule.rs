//! Who does what: work is given one task at a time to the worker with the earliest expected completion.
//!
//! Pure functions of what is to be done and of who is there to a plan that says why. Ties go to the lower number, so one question has
//! one answer. Must not know how speeds are measured, nor how orders reach workers.

use std::collections::BTreeSet;
use std::fmt;

/// A worker as the schedule sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Hand {
    /// Seconds from now until it is through with what it has.
    pub(super) free: f64,
    /// Seconds a unit takes it, of a block that it did before.
    pub(super) warm: f64,
    /// Seconds a unit takes it, of any other.
    pub(super) cold: f64,
}

/// A task, or what is left of it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Job {
    /// Of each block.
    pub(super) units: f64,
    /// By block that is to be done: the number of the hand that did it before, if one of these did.
    pub(super) blocks: Vec<(u32, Option<usize>)>,
}

impl Job {
    fn size(&self) -> f64 {
        self.units * self.blocks.len() as f64
    }
}

/// Blocks of one task for one worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Share {
    pub(super) job: usize,
    pub(super) blocks: Vec<u32>,
}

/// What each does, in this order.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Plan {
    /// By hand.
    pub(super) shares: Vec<Vec<Share>>,
    /// By hand: when it is through, in seconds from now.
    pub(super) ends: Vec<f64>,
    pub(super) why: Forecast,
}

/// A plan in short, and why it is as it is. Its text says so in a line.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Forecast {
    /// Tasks that are given out.
    pub tasks: usize,
    /// How many of them more than one worker does.
    pub split: usize,
    /// Workers that get something.
    pub used: usize,
    /// Workers that were there.
    pub workers: usize,
    /// In how many seconds the last of the tasks is done.
    pub makespan_s: f64,
    /// In how many it would be if work could be divided at will.
    pub fluid_s: f64,
}

impl fmt::Display for Forecast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tasks, split, used, workers, makespan_s, fluid_s } = self;
        write!(
            f,
            "{tasks} tasks, {split} of them split, for {used} of {workers} workers: {makespan_s:.3} s, and no less than \
             {fluid_s:.3} s"
        )
    }
}

/// By when all work could be done if it could be divided at will: each works from when it is free until then. `units` cost each hand
/// what `cost` says a unit. Infinite if nobody is there.
pub(super) fn fluid(hands: &[Hand], units: f64, cost: impl Fn(&Hand) -> f64) -> f64 {
    let mut order: Vec<(f64, f64)> =
        hands.iter().map(|hand| (hand.free, 1.0 / cost(hand).max(f64::MIN_POSITIVE))).collect();
    order.sort_by(|a, b| a.0.total_cmp(&b.0));
    // Those that are free first take it all, until the next is free.
    let (mut speed, mut done) = (0.0, 0.0);
    for (at, (free, more)) in order.iter().enumerate() {
        speed += more;
        done += free * more;
        let end = (units + done) / speed;
        if order.get(at + 1).is_none_or(|(next, _)| end <= *next) {
            return end;
        }
    }
    f64::INFINITY
}

/// A number that has an order.
#[derive(Clone, Copy, Debug, PartialEq)]
struct At(f64);

impl Eq for At {}

impl PartialOrd for At {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for At {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// Who would be through first with something of this size that nobody did before. Made anew only for another size: tasks of a batch
/// are mostly of one.
struct First {
    size: f64,
    order: BTreeSet<(At, usize)>,
}

struct Table<'a> {
    hands: &'a [Hand],
    ends: Vec<f64>,
    first: First,
    shares: Vec<Vec<Share>>,
    /// Where a hand is taken to have enough.
    enough: f64,
}

impl<'a> Table<'a> {
    fn new(hands: &'a [Hand], enough: f64) -> Self {
        Self {
            hands,
            ends: hands.iter().map(|hand| hand.free).collect(),
            first: First { size: f64::NAN, order: BTreeSet::new() },
            shares: vec![Vec::new(); hands.len()],
            enough,
        }
    }

    /// For rules that ask nobody's speed: the bound is told, and no more.
    fn blind(jobs: &[Job], hands: &'a [Hand]) -> Self {
        let units = jobs.iter().map(Job::size).sum();
        Self::new(hands, fluid(hands, units, |hand| hand.cold))
    }

    /// The hand with the earliest expected completion of something of this size that nobody did before, and when that is.
    fn first(&mut self, size: f64) -> Option<(f64, usize)> {
        if self.first.size.to_bits() != size.to_bits() {
            let ends = self.ends.iter().zip(self.hands).enumerate();
            let order = ends.map(|(at, (end, hand))| (At(end + size * hand.cold), at));
            self.first = First { size, order: order.collect() };
        }
        self.first.order.first().map(|(end, hand)| (end.0, *hand))
    }

    fn give(&mut self, hand: usize, job: usize, blocks: Vec<u32>, end: f64) {
        let cold = self.first.size * self.hands[hand].cold;
        self.first.order.remove(&(At(self.ends[hand] + cold), hand));
        self.ends[hand] = end;
        self.first.order.insert((At(end + cold), hand));
        match self.shares[hand].last_mut() {
            Some(last) if last.job == job => last.blocks.extend(blocks),
            _ => self.shares[hand].push(Share { job, blocks }),
        }
    }

    /// When this hand would be through with these blocks.
    fn end(&self, hand: usize, job: &Job, blocks: &[(u32, Option<usize>)]) -> f64 {
        let Hand { warm, cold, .. } = self.hands[hand];
        let held = blocks.iter().filter(|(_, by)| *by == Some(hand)).count() as f64;
        self.ends[hand] + job.units * (held * warm + (blocks.len() as f64 - held) * cold)
    }

    /// Who is to do these blocks. The earliest is; but one who did them before, or does those before them, is asked first as long as
    /// it does not get more than enough by that: what others would do sooner now they would do instead of what is theirs.
    fn choose(
        &mut self,
        job: &Job,
        blocks: &[(u32, Option<usize>)],
        last: Option<usize>,
    ) -> Option<(f64, usize)> {
        let mut best = self.first(job.units * blocks.len() as f64)?;
        let mut holders: Vec<usize> = blocks.iter().filter_map(|(_, by)| *by).collect();
        holders.sort_unstable();
        holders.dedup();
        let holders = holders.into_iter().map(|hand| (self.end(hand, job, blocks), hand));
        let holder = holders.min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        if let Some(holder) = holder {
            if holder.0 <= self.enough {
                return Some(holder);
            }
            if holder.0 < best.0 {
                best = holder;
            }
        }
        let last = last.map(|hand| (self.end(hand, job, blocks), hand));
        Some(last.filter(|last| last.0 <= self.enough.max(best.0)).unwrap_or(best))
    }
}

/// Gives all out, one task at a time to whoever is expected to be through with it first; slow ones may get none. A task that would be
/// done only after all could be (see [`fluid`]) is split, where it has blocks: these are given out in the same way, one at a time.
pub(super) fn earliest(jobs: &[Job], hands: &[Hand]) -> Plan {
    let units: f64 = jobs.iter().map(Job::size).sum();
    let held =
        |job: &Job| job.units * job.blocks.iter().filter(|(_, by)| by.is_some()).count() as f64;
    let share = jobs.iter().map(held).sum::<f64>() / units.max(f64::MIN_POSITIVE);
    let enough = fluid(hands, units, |hand| share * hand.warm + (1.0 - share) * hand.cold);
    let mut table = Table::new(hands, enough);
    // The longest first: the short ones fill what is left.
    let mut order: Vec<usize> = (0..jobs.len()).collect();
    order.sort_by(|a, b| jobs[*b].size().total_cmp(&jobs[*a].size()).then(a.cmp(b)));
    let mut split = Vec::new();
    for at in order {
        let job = &jobs[at];
        let Some((end, hand)) = table.choose(job, &job.blocks, None) else { break };
        if job.blocks.len() > 1 && end > enough {
            split.push(at);
        } else {
            let blocks = job.blocks.iter().map(|(block, _)| *block).collect();
            table.give(hand, at, blocks, end);
        }
    }
    for at in &split {
        let job = &jobs[*at];
        let mut last = None;
        for block in &job.blocks {
            let one = std::slice::from_ref(block);
            let Some((end, hand)) = table.choose(job, one, last) else { break };
            last = Some(hand);
            table.give(hand, *at, vec![block.0], end);
        }
    }
    table.plan(jobs.len(), split.len())
}

/// Gives each the same number of tasks, in order, whatever its speed: what is usual without a schedule, and the baseline of
/// comparisons. Nothing is split.
pub(super) fn equal(jobs: &[Job], hands: &[Hand]) -> Plan {
    let mut table = Table::blind(jobs, hands);
    for (at, job) in jobs.iter().enumerate() {
        let hand = at * hands.len() / jobs.len().max(1);
        if hand < hands.len() {
            let end = table.end(hand, job, &job.blocks);
            table.give(hand, at, job.blocks.iter().map(|(block, _)| *block).collect(), end);
        }
    }
    table.plan(jobs.len(), 0)
}

/// Gives the tasks, in order, to whoever is free first, whatever its speed: what a master does that keeps a queue, and a baseline of
/// comparisons. Among those that are free at once the order of the hands decides. Nothing is split.
pub(super) fn queue(jobs: &[Job], hands: &[Hand]) -> Plan {
    let mut table = Table::blind(jobs, hands);
    let mut free: BTreeSet<(At, usize)> =
        hands.iter().enumerate().map(|(at, hand)| (At(hand.free), at)).collect();
    for (at, job) in jobs.iter().enumerate() {
        let Some((_, hand)) = free.pop_first() else { break };
        let end = table.end(hand, job, &job.blocks);
        table.give(hand, at, job.blocks.iter().map(|(block, _)| *block).collect(), end);
        free.insert((At(end), hand));
    }
    table.plan(jobs.len(), 0)
}

impl Table<'_> {
    fn plan(self, tasks: usize, split: usize) -> Plan {
        let used = || self.shares.iter().zip(&self.ends).filter(|(shares, _)| !shares.is_empty());
        let makespan = used().map(|(_, end)| *end).fold(0.0, f64::max);
        let (used, workers) = (used().count(), self.hands.len());
        let (makespan_s, fluid_s) = (makespan, self.enough);
        let why = Forecast { tasks, split, used, workers, makespan_s, fluid_s };
        Plan { shares: self.shares, ends: self.ends, why }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn job(units: f64, blocks: u32) -> Job {
        let blocks = (0..blocks).map(|block| (block, None)).collect();
        Job { units, blocks }
    }

    fn hand(cold: f64) -> Hand {
        Hand { free: 0.0, warm: cold, cold }
    }

    fn makespan(plan: &Plan) -> f64 {
        plan.why.makespan_s
    }

    /// The paper's own way: one task at a time, and the slow get none.
    #[test]
    fn slow_workers_may_get_none_and_the_reason_is_told() {
        let hands = [hand(1.0), hand(1.0), hand(9.0)];
        let plan = earliest(&vec![job(1.0, 1); 8], &hands);
        assert_eq!(plan.ends, [4.0, 4.0, 0.0]);
        assert!(plan.shares[2].is_empty());
        let told =
            "8 tasks, 0 of them split, for 2 of 3 workers: 4.000 s, and no less than 3.789 s";
        assert_eq!(plan.why.to_string(), told);
        assert_eq!(makespan(&equal(&vec![job(1.0, 1); 8], &hands)), 18.0);
        // A queue gives the slow one a task, and no second.
        let plan = queue(&vec![job(1.0, 1); 8], &hands);
        assert_eq!(plan.ends, [4.0, 3.0, 9.0]);
        assert!((plan.why.fluid_s - 72.0 / 19.0).abs() < 1e-12, "{}", plan.why);
    }

    #[test]
    fn tasks_go_to_whoever_did_them_before() {
        let warm = |units, by| Job { units, blocks: vec![(0, Some(by))] };
        let hands = vec![Hand { free: 0.0, warm: 0.1, cold: 1.0 }; 3];
        let jobs: Vec<Job> = (0..9).map(|at| warm(1.0, (at * 7 + 1) % 3)).collect();
        let plan = earliest(&jobs, &hands);
        assert!((makespan(&plan) - 0.3).abs() < 1e-9, "{plan:?}");
        // Not if it has too much of them: a cold start elsewhere is sooner.
        let jobs = vec![warm(1.0, 0); 40];
        let plan = earliest(&jobs, &hands);
        assert!(plan.shares.iter().all(|shares| !shares.is_empty()));
        assert!(makespan(&plan) < 4.0);
    }

    #[test]
    fn more_workers_than_tasks_are_of_use_where_tasks_have_blocks() {
        let hands: Vec<Hand> = (0..40).map(|at| hand(1.0 + f64::from(at % 7))).collect();
        let plan = earliest(&vec![job(1.0, 50); 10], &hands);
        assert!(plan.why.used > 30, "{}", plan.why);
        assert!(makespan(&plan) < 1.15 * plan.why.fluid_s, "{}", plan.why);
        let whole = earliest(&vec![job(50.0, 1); 10], &hands);
        assert!(makespan(&whole) > 2.0 * makespan(&plan));
    }

    /// 200 tasks of the paper over 50 workers of evenly spread speeds, one to seven: close to the bound, and equal shares, which take
    /// as long as the slowest, have 2.3 times that.
    #[test]
    fn a_spread_of_seven_costs_nothing_but_the_grain() {
        let hands: Vec<Hand> =
            (0..50).map(|at| hand(1.0 + 6.0 * f64::from(at * 17 % 50) / 49.0)).collect();
        for (tasks, blocks, most) in [(200, 1, 1.25), (800, 1, 1.1), (200, 10, 1.05)] {
            let jobs = vec![job(50.0 / f64::from(blocks), blocks); tasks];
            let plan = earliest(&jobs, &hands);
            assert!(makespan(&plan) <= most * plan.why.fluid_s, "{}", plan.why);
            assert!(makespan(&equal(&jobs, &hands)) > 2.2 / most * makespan(&plan));
        }
    }

    #[test]
    fn nobody_there_and_nothing_to_do() {
        assert_eq!(earliest(&[job(1.0, 3)], &[]).shares, Vec::<Vec<Share>>::new());
        assert_eq!(equal(&[job(1.0, 3)], &[]).shares, Vec::<Vec<Share>>::new());
        assert_eq!(makespan(&earliest(&[], &[hand(1.0)])), 0.0);
        assert_eq!(fluid(&[], 1.0, |hand| hand.cold), f64::INFINITY);
        let later = Hand { free: 3.0, ..hand(1.0) };
        assert_eq!(fluid(&[hand(1.0), later], 2.0, |hand| hand.cold), 2.0);
        assert_eq!(fluid(&[hand(1.0), later], 5.0, |hand| hand.cold), 4.0);
    }

    type Drawn = (Vec<Job>, Vec<Hand>);

    fn drawn() -> impl Strategy<Value = Drawn> {
        let hand = (0.0..3.0f64, 0.05..2.0f64, 0.01..1.0f64).prop_map(|(free, cold, share)| Hand {
            free,
            warm: cold * share,
            cold,
        });
        let hands = prop::collection::vec(hand, 1..12);
        let job = (0.1..4.0f64, prop::collection::vec(prop::option::of(0..12usize), 1..9));
        (prop::collection::vec(job, 0..40), hands).prop_map(|(jobs, hands)| {
            let jobs = jobs.into_iter().map(|(units, blocks)| {
                let by = |by: Option<usize>| by.filter(|by| *by < hands.len());
                let blocks = (0..).zip(blocks).map(|(block, held)| (block, by(held))).collect();
                Job { units, blocks }
            });
            (jobs.collect(), hands)
        })
    }

    proptest! {
        /// Nothing is lost or doubled, and ends are what the shares take.
        #[test]
        fn all_is_given_out_once((jobs, hands) in drawn(), rule in 0..3usize) {
            let rule = [earliest, equal, queue][rule];
            let plan = rule(&jobs, &hands);
            let mut given = BTreeSet::new();
            for (hand, (shares, end)) in plan.shares.iter().zip(&plan.ends).enumerate() {
                let mut sum = hands[hand].free;
                for Share { job, blocks } in shares {
                    for block in blocks {
                        prop_assert!(given.insert((*job, *block)));
                        let (_, by) = jobs[*job].blocks[*block as usize];
                        let warm = by == Some(hand);
                        let cost = if warm { hands[hand].warm } else { hands[hand].cold };
                        sum += jobs[*job].units * cost;
                    }
                }
                prop_assert!((sum - end).abs() < 1e-6 * (1.0 + sum), "{sum} {end}");
            }
            let all: usize = jobs.iter().map(|job| job.blocks.len()).sum();
            prop_assert_eq!(given.len(), all);
            prop_assert_eq!(plan, rule(&jobs, &hands));
        }

        /// Within the bound of work divided at will, and one more block or indivisible task; and so never worse than equal shares by
        /// more than that.
        #[test]
        fn no_more_than_a_task_above_what_divided_work_would_take(
            (mut jobs, hands) in drawn(), blocks in 1..6u32,
        ) {
            let cold: Vec<Hand> = hands.iter().map(|hand| Hand { warm: hand.cold, ..*hand }).collect();
            for job in &mut jobs {
                job.blocks = (0..blocks).map(|block| (block, None)).collect();
            }
            let plan = earliest(&jobs, &cold);
            let grain = jobs.iter().map(|job| job.units).fold(0.0, f64::max);
            let slowest = cold.iter().map(|hand| hand.cold).fold(0.0, f64::max);
            let most = plan.why.fluid_s.max(0.0) + grain * slowest;
            prop_assert!(makespan(&plan) <= most * (1.0 + 1e-9) + 1e-9, "{}", plan.why);
            let even = makespan(&equal(&jobs, &cold));
            prop_assert!(makespan(&plan) <= even + grain * slowest + 1e-9, "{} {even}", plan.why);
        }
    }
}
