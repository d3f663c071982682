//! The assignment table with simulated workers.
//!
//! In any order of events each block counts once and batches end. In simulated time they end close
//! to the bound.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;
use tokio::time::Instant;

use super::assignment::{
    AssignmentAction, AssignmentEvent, AssignmentTable, BlockId, TaskCounts, WorkerOrder,
};
use super::message::{BlockOrder, BlockRun};
use super::order_queue::{BlockToRun, OrderQueue};
use super::program::{AssignmentSettings, DispatchRule};

/// The output of a block, the same for all workers.
fn output((batch, task, block): BlockId) -> Bytes {
    Bytes::from(format!("{batch} {task} {block}"))
}

fn encoded(order: WorkerOrder) -> BlockOrder {
    let work = Bytes::new();
    match order {
        WorkerOrder::Common { batch } => BlockOrder::Common { batch, body: Bytes::new() },
        WorkerOrder::Run { batch, task, id, from, to, units } => {
            BlockOrder::Run(BlockRun { batch, task, id, from, to, units, work })
        }
        WorkerOrder::Revoke { batch, task, from, to } => {
            BlockOrder::Revoke { batch, task, from, to }
        }
        WorkerOrder::Forget { batch } => BlockOrder::Forget { batch },
    }
}

/// The expected and received results of each batch.
#[derive(Default)]
struct Ledger {
    /// The number of blocks, by batch and number of the task. Numbers equal indices here.
    wanted: BTreeMap<(u64, u32), u32>,
    done: BTreeSet<(u64, u32)>,
    ended: BTreeSet<u64>,
}

impl Ledger {
    fn expect(&mut self, batch: u64, tasks: &[(u32, f64, u32)]) {
        self.wanted.extend(tasks.iter().map(|(id, _, blocks)| ((batch, *id), *blocks)));
    }

    /// Handles an action for the driver.
    fn receive(&mut self, action: AssignmentAction) {
        match action {
            AssignmentAction::TaskDone { batch, task, outputs } => {
                assert!(self.done.insert((batch, task)), "task {task} of {batch} is done twice");
                assert!(!self.ended.contains(&batch), "after its end");
                let blocks = self.wanted[&(batch, task)];
                let all: Vec<Bytes> =
                    (0..blocks).map(|block| output((batch, task, block))).collect();
                assert_eq!(outputs, all);
            }
            AssignmentAction::BatchDone { batch } => assert!(self.ended.insert(batch)),
            AssignmentAction::PoisonTask { .. } | AssignmentAction::SendOrders { .. } => {
                panic!("{action:?}")
            }
        }
    }
}

/// Workers, and messages to and from them in any order.
struct AssignmentWorld {
    now: Instant,
    table: AssignmentTable,
    ledger: Ledger,
    workers: BTreeMap<u32, OrderQueue>,
    orders: BTreeMap<u32, VecDeque<Vec<WorkerOrder>>>,
    answers: Vec<(u32, BlockId)>,
    next_worker: u32,
    next_batch: u64,
    withdrawn: BTreeSet<u64>,
}

impl AssignmentWorld {
    fn new(settings: AssignmentSettings) -> Self {
        let now = Instant::now();
        let mut world = Self {
            now,
            table: AssignmentTable::new(settings, now),
            ledger: Ledger::default(),
            workers: BTreeMap::new(),
            orders: BTreeMap::new(),
            answers: Vec::new(),
            next_worker: 1,
            next_batch: 1,
            withdrawn: BTreeSet::new(),
        };
        world.join();
        world
    }

    fn tell(&mut self, event: AssignmentEvent) {
        for action in self.table.handle(event, self.now) {
            match action {
                AssignmentAction::SendOrders { worker, orders } => {
                    if self.workers.contains_key(&worker) {
                        self.orders.entry(worker).or_default().push_back(orders);
                    }
                }
                action => self.ledger.receive(action),
            }
        }
    }

    fn join(&mut self) {
        let worker = self.next_worker;
        self.next_worker += 1;
        self.workers.insert(worker, OrderQueue::default());
        self.tell(AssignmentEvent::Joined { worker, node: format!("n{}", worker % 3).into() });
    }

    fn some(&self, random: u32) -> Option<u32> {
        let at = random as usize % self.workers.len().max(1);
        self.workers.keys().nth(at).copied()
    }

    fn submit(&mut self, random: u32) {
        let batch = self.next_batch;
        self.next_batch += 1;
        let tasks: Vec<(u32, f64, u32)> = (0..1 + random % 13)
            .map(|id| (id, f64::from(1 + (random >> 5) % 40), 1 + (random >> (id % 16)) % 4))
            .collect();
        self.ledger.expect(batch, &tasks);
        self.tell(AssignmentEvent::Submit { batch, tasks });
    }

    /// A worker receives its next orders.
    fn deliver(&mut self, worker: u32) {
        let orders = self.orders.get_mut(&worker).and_then(VecDeque::pop_front);
        if let (Some(orders), Some(queue)) = (orders, self.workers.get_mut(&worker)) {
            orders.into_iter().for_each(|order| queue.apply(encoded(order)));
        }
    }

    fn execute_next(&mut self, worker: u32) {
        let Some(BlockToRun { batch, task, block, .. }) =
            self.workers.get_mut(&worker).and_then(OrderQueue::next)
        else {
            return;
        };
        self.answers.push((worker, (batch, task, block)));
    }

    fn answer(&mut self, at: usize, keep: bool) {
        let (worker, block_id) = if keep { self.answers[at] } else { self.answers.swap_remove(at) };
        let lives = self.workers.contains_key(&worker);
        let seconds = 0.001 * f64::from(1 + worker * 7 % 5);
        let (worker, output) = (lives.then_some(worker), output(block_id));
        let came_at = self.now;
        self.tell(AssignmentEvent::Answer { worker, block_id, seconds, output, came_at });
    }

    /// A worker is gone, with all orders to it and some of its answers.
    fn lose(&mut self, worker: u32, died: bool) {
        self.workers.remove(&worker);
        self.orders.remove(&worker);
        self.answers.retain(|(from, block_id)| *from != worker || block_id.2 % 2 == 0);
        self.tell(AssignmentEvent::Left { worker, died });
    }

    fn settle(&mut self) {
        for _ in 0..5000 {
            for worker in self.workers.keys().copied().collect::<Vec<_>>() {
                while self.orders.get(&worker).is_some_and(|orders| !orders.is_empty()) {
                    self.deliver(worker);
                }
                self.execute_next(worker);
            }
            while !self.answers.is_empty() {
                self.answer(0, false);
            }
            self.now += Duration::from_millis(1);
            self.tell(AssignmentEvent::Tick);
            if !self.table.is_busy() {
                return;
            }
        }
    }
}

fn rules() -> impl Strategy<Value = DispatchRule> {
    prop_oneof![
        3 => Just(DispatchRule::Earliest),
        1 => Just(DispatchRule::Equal),
        1 => Just(DispatchRule::Queue),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// With any losses, duplicates and delays, and any changes of workers, each block counts once.
    /// Each task completes once, and batches end while a worker remains.
    #[test]
    fn each_block_counts_once_and_batches_end(
        script in prop::collection::vec((0..100u32, any::<u32>()), 20..600),
        (dealing, copies, affinity) in (rules(), any::<bool>(), any::<bool>()),
    ) {
        let defaults = AssignmentSettings::default();
        let settings = AssignmentSettings { dealing, copies, affinity, deaths: 0, ..defaults };
        let mut world = AssignmentWorld::new(settings);
        for (choice, random) in script {
            let some = world.some(random >> 3);
            let at = random as usize % world.answers.len().max(1);
            match (choice, some) {
                (0..=29, Some(worker)) => world.execute_next(worker),
                (30..=49, Some(worker)) => world.deliver(worker),
                (50..=72, _) if !world.answers.is_empty() => world.answer(at, false),
                // A duplicate.
                (73..=76, _) if !world.answers.is_empty() => world.answer(at, true),
                (77..=82, _) => {
                    world.now += Duration::from_millis(u64::from(random % 200));
                    world.tell(AssignmentEvent::Tick);
                }
                (83..=86, _) => world.join(),
                (87..=89, Some(worker)) => world.lose(worker, random % 2 == 0),
                (90..=92, Some(worker)) => world.tell(AssignmentEvent::Leaving { worker }),
                (93, Some(worker)) => {
                    world.tell(AssignmentEvent::Joined { worker, node: "n0".into() })
                }
                (94..=98, _) => world.submit(random),
                (99, _) => {
                    let batch = 1 + u64::from(random) % world.next_batch;
                    if batch < world.next_batch && !world.ledger.ended.contains(&batch) {
                        world.withdrawn.insert(batch);
                        world.tell(AssignmentEvent::Withdraw { batch });
                    }
                }
                _ => {}
            }
        }
        // The last worker stays.
        world.join();
        world.settle();
        prop_assert!(!world.table.is_busy(), "{:?}", world.table);
        let mut blocks = 0;
        for ((batch, task), of) in &world.ledger.wanted {
            let done = world.ledger.done.contains(&(*batch, *task));
            prop_assert!(done || world.withdrawn.contains(batch), "task {task} of {batch}");
            blocks += if done { u64::from(*of) } else { 0 };
        }
        prop_assert!(world.table.counts().blocks >= blocks);
        prop_assert!(world.ledger.ended.len() as u64 == world.next_batch - 1);
        // No worker has blocks of it any more.
        for worker in world.workers.keys().copied().collect::<Vec<_>>() {
            while world.orders.get(&worker).is_some_and(|orders| !orders.is_empty()) {
                world.deliver(worker);
            }
            prop_assert!(world.workers[&worker].is_empty());
        }
    }
}

/// Workers in simulated time.
struct Timed {
    began: Instant,
    now: Instant,
    table: AssignmentTable,
    ledger: Ledger,
    workers: BTreeMap<u32, TimedWorker>,
    batch: u64,
}

struct TimedWorker {
    cold: f64,
    warm: f64,
    queue: OrderQueue,
    did: BTreeSet<(u32, u32)>,
    doing: Option<(Instant, BlockToRun, f64)>,
}

impl Timed {
    fn new(settings: AssignmentSettings, colds: &[f64], warm: f64) -> Self {
        let now = Instant::now();
        let (table, ledger) = (AssignmentTable::new(settings, now), Ledger::default());
        let workers = BTreeMap::new();
        let mut timed = Self { began: now, now, table, ledger, workers, batch: 0 };
        colds.iter().for_each(|cold| timed.join(*cold, cold * warm));
        timed
    }

    fn join(&mut self, cold: f64, warm: f64) {
        let worker = self.workers.len() as u32 + 1;
        let (queue, did) = (OrderQueue::default(), BTreeSet::new());
        self.workers.insert(worker, TimedWorker { cold, warm, queue, did, doing: None });
        self.tell(AssignmentEvent::Joined { worker, node: format!("n{worker}").into() });
    }

    fn tell(&mut self, event: AssignmentEvent) {
        for action in self.table.handle(event, self.now) {
            match action {
                AssignmentAction::SendOrders { worker, orders } => {
                    if let Some(entry) = self.workers.get_mut(&worker) {
                        orders.into_iter().for_each(|order| entry.queue.apply(encoded(order)));
                    }
                }
                action => self.ledger.receive(action),
            }
        }
        for entry in self.workers.values_mut().filter(|entry| entry.doing.is_none()) {
            if let Some(block) = entry.queue.next() {
                let warm = !entry.did.insert((block.id, block.block));
                let takes = block.units * if warm { entry.warm } else { entry.cold };
                entry.doing = Some((self.now + Duration::from_secs_f64(takes), block, takes));
            }
        }
    }

    /// Runs a batch, and returns its seconds.
    fn run(&mut self, tasks: &[(u32, f64, u32)], mut meddle: impl FnMut(&mut Self)) -> f64 {
        self.batch += 1;
        let (batch, from) = (self.batch, self.now);
        self.ledger.expect(batch, tasks);
        self.tell(AssignmentEvent::Submit { batch, tasks: tasks.to_vec() });
        while !self.ledger.ended.contains(&batch) {
            let next = self.workers.iter().filter_map(|(id, entry)| {
                let (at, ..) = entry.doing.as_ref()?;
                Some((*at, *id))
            });
            let (next, wake) = (next.min(), self.table.wake_at());
            match next {
                Some((at, id)) if wake.is_none_or(|wake| at <= wake.max(self.now)) => {
                    self.now = at;
                    let entry = self.workers.get_mut(&id).expect("it exists");
                    let (_, block, seconds) = entry.doing.take().expect("it is busy");
                    let block_id = (block.batch, block.task, block.block);
                    let (worker, output) = (Some(id), output(block_id));
                    let came_at = self.now;
                    self.tell(AssignmentEvent::Answer {
                        worker,
                        block_id,
                        seconds,
                        output,
                        came_at,
                    });
                }
                _ => {
                    self.now = self.now.max(wake.expect("some worker is busy"));
                    self.now += Duration::from_micros(1);
                    self.tell(AssignmentEvent::Tick);
                }
            }
            meddle(self);
        }
        (self.now - from).as_secs_f64()
    }

    fn counts(&self) -> TaskCounts {
        self.table.counts()
    }
}

/// Speeds of ratio seven as on the paper's grid: most near the fastest, some far slower.
fn spread(count: u32) -> Vec<f64> {
    let cold = |at: u32| {
        if at % 5 == 4 { 0.04 + 0.03 * f64::from(at % 2) } else { 0.01 + 0.001 * f64::from(at % 9) }
    };
    (0..count).map(cold).collect()
}

fn fluid(colds: &[f64], units: f64) -> f64 {
    units / colds.iter().map(|cold| 1.0 / cold).sum::<f64>()
}

fn equal_tasks(tasks: u32, units: f64, blocks: u32) -> Vec<(u32, f64, u32)> {
    (0..tasks).map(|id| (id, units / f64::from(blocks), blocks)).collect()
}

/// With known speeds a batch takes little more than divided work, and equal shares three times as
/// long.
#[test]
fn batches_end_close_to_the_bound_and_three_times_sooner_than_equal_shares() {
    let colds = spread(50);
    let settings = AssignmentSettings { affinity: false, ..AssignmentSettings::default() };
    for (tasks, blocks, most) in [(200, 1, 1.2), (800, 1, 1.08), (200, 10, 1.08), (40, 10, 1.2)] {
        let batch = equal_tasks(tasks, 10_000.0 / f64::from(tasks), blocks);
        let bound = fluid(&colds, 10_000.0);
        let mut timed = Timed::new(settings, &colds, 1.0);
        let first = timed.run(&batch, |_| {});
        let second = timed.run(&batch, |_| {});
        let third = timed.run(&batch, |_| {});
        let mut equally = Timed::new(
            AssignmentSettings { dealing: DispatchRule::Equal, ..settings },
            &colds,
            1.0,
        );
        let even = equally.run(&batch, |_| {});
        let text = format!("{tasks} {blocks}: {first} {second} {third}, {even}, bound {bound}");
        assert!(second <= most * bound && third <= most * bound, "{text}");
        // The first batch ends no later than the slowest's benchmark, or a copy of it.
        assert!(first <= 2.0 * bound + 0.3, "{text}");
        // With fewer tasks than workers, equal shares leave out some workers at random.
        assert!(tasks < 50 || even >= 3.0 * third, "{text}");
        assert_eq!(timed.counts().blocks, 3 * u64::from(tasks * blocks));
    }
}

/// A queue serves idle workers of any speed, one task at a time. With as many tasks as workers the
/// slowest gets one too.
#[test]
fn a_queue_knows_no_speeds() {
    let settings =
        AssignmentSettings { dealing: DispatchRule::Queue, ..AssignmentSettings::default() };
    let colds = [0.01, 0.01, 0.01, 0.1];
    let mut timed = Timed::new(settings, &colds, 1.0);
    // The slow worker takes 10 s for its task. Each other executes five in that time, and one a
    // sixth.
    for _ in 0..3 {
        let took = timed.run(&equal_tasks(17, 100.0, 1), |timed| {
            assert!(timed.table.workers().all(|worker| worker.waiting < 100.1));
        });
        assert!((took - 10.0).abs() < 1e-6, "{took}");
        let took = timed.run(&equal_tasks(4, 100.0, 3), |_| {});
        assert!((took - 10.0).abs() < 1e-6, "{took}");
    }
    let TaskCounts { copies, moved, .. } = timed.counts();
    assert_eq!((copies, moved), (0, 0));
}

/// Tasks stay with their workers as long as that is sooner.
#[test]
fn affinity_keeps_tasks_where_they_are_warm() {
    let colds = spread(20);
    let batch = equal_tasks(160, 25.0, 1);
    let times = |affinity: bool| {
        let settings = AssignmentSettings { affinity, ..AssignmentSettings::default() };
        let mut timed = Timed::new(settings, &colds, 0.1);
        (0..5).map(|_| timed.run(&batch, |_| {})).collect::<Vec<f64>>()
    };
    let (with, without) = (times(true), times(false));
    assert!(with[4] < 0.5 * without[4], "{with:?} {without:?}");
    assert!(with[4] < 0.15 * with[0], "{with:?}");
}

/// Half of the workers join during the batch, and take part in it.
#[test]
fn workers_that_join_during_a_batch_take_part() {
    let batch = equal_tasks(100, 25.0, 5);
    let mut timed = Timed::new(AssignmentSettings::default(), &[0.01; 4], 1.0);
    let mut joined = false;
    let took = timed.run(&batch, |timed| {
        if !joined && timed.now - timed.began > Duration::from_secs(2) {
            joined = true;
            (0..4).for_each(|_| timed.join(0.01, 0.01));
        }
    });
    // Without them it would take 6.25 s.
    assert!(took < 4.5, "{took}");
}

/// The others complete the block of a worker that stalls.
#[test]
fn late_workers_do_not_delay_a_batch() {
    let batch = equal_tasks(40, 25.0, 1);
    let mut timed = Timed::new(AssignmentSettings::default(), &[0.01; 5], 1.0);
    timed.run(&batch, |_| {});
    let mut stood = false;
    let took = timed.run(&batch, |timed| {
        if !stood {
            stood = true;
            let entry = timed.workers.get_mut(&2).expect("it exists");
            entry.doing.as_mut().expect("it is busy").0 += Duration::from_secs(3600);
        }
    });
    assert!(took < 3.5, "{took} {:?}", timed.counts());
    assert!(timed.counts().copies >= 1 && timed.counts().moved >= 1, "{:?}", timed.counts());
}

/// A worker was slow for a while, so that others get its tasks. It is found fast again, by copies
/// that delay nothing while it is slow.
#[test]
fn a_worker_that_was_slow_for_a_while_gets_work_again() {
    let batch = equal_tasks(3, 35.0, 1);
    let mut timed = Timed::new(AssignmentSettings::default(), &[1.0, 1.0, 20.0], 1.0);
    timed.run(&batch, |_| {});
    // It executes its first block for a long time, and gets no other block meanwhile.
    for _ in 0..10 {
        let took = timed.run(&batch, |_| {});
        assert!((70.0..71.0).contains(&took), "{took} {:?}", timed.counts());
    }
    let worker = timed.workers.get_mut(&3).expect("it exists");
    (worker.cold, worker.warm) = (1.0, 1.0);
    // Old measurements lose weight with each batch.
    let took: Vec<f64> = (0..24).map(|_| timed.run(&batch, |_| {})).collect();
    assert!(took[18..].iter().all(|took| (35.0..36.0).contains(took)), "{took:?}");
}

/// A poison task is reported.
#[test]
fn a_poison_task_is_reported() {
    let now = Instant::now();
    let mut table = AssignmentTable::new(AssignmentSettings::default(), now);
    let tasks = vec![(7, 25.0, 1), (8, 25.0, 1)];
    table.handle(AssignmentEvent::Submit { batch: 1, tasks }, now);
    for worker in 1..=3 {
        table.handle(AssignmentEvent::Joined { worker, node: format!("n{worker}").into() }, now);
        let actions = table.handle(AssignmentEvent::Left { worker, died: true }, now);
        let deadly = AssignmentAction::PoisonTask { task: 7, deaths: 3 };
        assert_eq!(actions.contains(&deadly), worker == 3, "{actions:?}");
    }
}

#[test]
fn a_forecast_predicts_a_batch_that_is_not_submitted() {
    let colds = [0.01, 0.01, 0.02];
    let mut timed = Timed::new(AssignmentSettings::default(), &colds, 1.0);
    let empty = AssignmentTable::new(AssignmentSettings::default(), timed.now);
    assert_eq!(empty.forecast(&[1.0], DispatchRule::Earliest, timed.now), None);
    let batch = equal_tasks(30, 50.0, 1);
    timed.run(&batch, |_| {});
    let by = |dealing| timed.table.forecast(&[50.0; 25], dealing, timed.now);
    let by = |dealing| by(dealing).expect("there are workers").makespan_s;
    let predicted = by(DispatchRule::Earliest);
    let equal = by(DispatchRule::Equal);
    assert!(equal > 1.3 * predicted, "{equal} {predicted}");
    assert!(predicted <= by(DispatchRule::Queue) && by(DispatchRule::Queue) < equal);
    let batch = equal_tasks(25, 50.0, 1);
    let took = timed.run(&batch, |_| {});
    assert!((predicted / took - 1.0).abs() < 0.02, "{predicted} {took}");
}

/// A worker so slow that others executed its block is still measured, although its batch has ended.
#[test]
fn late_answers_still_measure_their_worker() {
    let now = Instant::now();
    let mut table = AssignmentTable::new(
        AssignmentSettings { bench_units: 1.0, ..AssignmentSettings::default() },
        now,
    );
    for worker in [1, 2] {
        table.handle(
            AssignmentEvent::Joined { worker, node: format!("n{worker}").as_str().into() },
            now,
        );
    }
    let tasks = vec![(0, 1.0, 1), (1, 1.0, 1)];
    let actions = table.handle(AssignmentEvent::Submit { batch: 1, tasks }, now);
    let first = actions.iter().find_map(|action| match action {
        AssignmentAction::SendOrders { worker: 1, orders } => {
            orders.iter().find_map(|order| match order {
                WorkerOrder::Run { task, .. } => Some(*task),
                _ => None,
            })
        }
        _ => None,
    });
    let first = first.expect("each has one");
    let (mine, others) = ((1, first, 0), (1, 1 - first, 0));
    let answer = |worker, block_id, seconds, came_at| {
        let (worker, output) = (Some(worker), Bytes::new());
        AssignmentEvent::Answer { worker, block_id, seconds, output, came_at }
    };
    let (soon, later) = (now + Duration::from_secs(1), now + Duration::from_secs(60));
    table.handle(answer(1, mine, 1.0, soon), soon);
    // It is late, and the other worker executes its block.
    table.handle(AssignmentEvent::Tick, later);
    let after = later + Duration::from_secs(1);
    let ended = table.handle(answer(1, others, 1.0, after), after);
    assert!(ended.contains(&AssignmentAction::BatchDone { batch: 1 }), "{ended:?}");
    assert_eq!(table.workers().filter(|worker| worker.cold_s.is_some()).count(), 1);
    let last = later + Duration::from_secs(10);
    table.handle(answer(2, others, 70.0, last), last);
    let speeds: Vec<Option<f64>> = table.workers().map(|worker| worker.cold_s).collect();
    assert_eq!(speeds, [Some(1.0), Some(70.0)]);
}

/// A busy master handles an answer later. That time does not count as the worker's lag, but the
/// time on the network does.
#[test]
fn an_answer_that_waits_at_the_master_is_not_late() {
    let seconds = |seconds| Duration::from_secs_f64(seconds);
    for (on_its_way, waits) in [(0.0, 0.0), (0.0, 5.0), (0.5, 0.0), (0.5, 5.0)] {
        let now = Instant::now();
        let mut table = AssignmentTable::new(
            AssignmentSettings { bench_units: 1.0, ..AssignmentSettings::default() },
            now,
        );
        table.handle(AssignmentEvent::Joined { worker: 1, node: "n1".into() }, now);
        table.handle(AssignmentEvent::Submit { batch: 1, tasks: vec![(0, 1.0, 1)] }, now);
        let came_at = now + seconds(1.0 + on_its_way);
        let (worker, block_id, output) = (Some(1), (1, 0, 0), Bytes::new());
        let answer = AssignmentEvent::Answer { worker, block_id, seconds: 1.0, output, came_at };
        let now = came_at + seconds(waits);
        table.handle(answer, now);
        let forecast =
            table.forecast(&[1.0], DispatchRule::Earliest, now).expect("there are workers");
        assert!((forecast.makespan_s - 1.0 - on_its_way).abs() < 1e-9, "{forecast} {waits}");
    }
}
