//! The master's book with workers that are modelled: in any order of events each block counts once and batches end, and in time they
//! end about as soon as they could.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;
use tokio::time::Instant;

use super::book::{Action, Book, Counts, Event, Place, Told};
use super::desk::{Block, Desk};
use super::message::{Order, Run};
use super::program::{Dealing, Settings};

/// What a block gives, whoever does it.
fn output((batch, task, block): Place) -> Bytes {
    Bytes::from(format!("{batch} {task} {block}"))
}

fn order(told: Told) -> Order {
    let work = Bytes::new();
    match told {
        Told::Common { batch } => Order::Common { batch, body: Bytes::new() },
        Told::Run { batch, task, id, from, to, units } => {
            Order::Run(Run { batch, task, id, from, to, units, work })
        }
        Told::Revoke { batch, task, from, to } => Order::Revoke { batch, task, from, to },
        Told::Forget { batch } => Order::Forget { batch },
    }
}

/// What of each batch is to come, and has come.
#[derive(Default)]
struct Ledger {
    /// By batch and task's number: how many blocks. Numbers are places here.
    wanted: BTreeMap<(u64, u32), u32>,
    whole: BTreeSet<(u64, u32)>,
    over: BTreeSet<u64>,
}

impl Ledger {
    fn submits(&mut self, batch: u64, tasks: &[(u32, f64, u32)]) {
        self.wanted.extend(tasks.iter().map(|(id, _, blocks)| ((batch, *id), *blocks)));
    }

    /// Takes in what the book says to the driver.
    fn hears(&mut self, action: Action) {
        match action {
            Action::Whole { batch, task, outputs } => {
                assert!(self.whole.insert((batch, task)), "task {task} of {batch} is done twice");
                assert!(!self.over.contains(&batch), "after its end");
                let blocks = self.wanted[&(batch, task)];
                let all: Vec<Bytes> =
                    (0..blocks).map(|block| output((batch, task, block))).collect();
                assert_eq!(outputs, all);
            }
            Action::Over { batch } => assert!(self.over.insert(batch)),
            Action::Deadly { .. } | Action::Tell { .. } => panic!("{action:?}"),
        }
    }
}

/// Workers, and what is on its way to and from them, in any order.
struct World {
    now: Instant,
    book: Book,
    ledger: Ledger,
    workers: BTreeMap<u32, Desk>,
    orders: BTreeMap<u32, VecDeque<Vec<Told>>>,
    answers: Vec<(u32, Place)>,
    next_worker: u32,
    next_batch: u64,
    withdrawn: BTreeSet<u64>,
}

impl World {
    fn new(settings: Settings) -> Self {
        let now = Instant::now();
        let mut world = Self {
            now,
            book: Book::new(settings, now),
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

    fn tell(&mut self, event: Event) {
        for action in self.book.handle(event, self.now) {
            match action {
                Action::Tell { worker, what } => {
                    if self.workers.contains_key(&worker) {
                        self.orders.entry(worker).or_default().push_back(what);
                    }
                }
                action => self.ledger.hears(action),
            }
        }
    }

    fn join(&mut self) {
        let worker = self.next_worker;
        self.next_worker += 1;
        self.workers.insert(worker, Desk::default());
        self.tell(Event::Here { worker, node: format!("n{}", worker % 3).into() });
    }

    fn some(&self, which: u32) -> Option<u32> {
        let at = which as usize % self.workers.len().max(1);
        self.workers.keys().nth(at).copied()
    }

    fn submit(&mut self, which: u32) {
        let batch = self.next_batch;
        self.next_batch += 1;
        let tasks: Vec<(u32, f64, u32)> = (0..1 + which % 13)
            .map(|id| (id, f64::from(1 + (which >> 5) % 40), 1 + (which >> (id % 16)) % 4))
            .collect();
        self.ledger.submits(batch, &tasks);
        self.tell(Event::Submit { batch, tasks });
    }

    /// A worker hears the next order, whatever it does.
    fn deliver(&mut self, worker: u32) {
        let told = self.orders.get_mut(&worker).and_then(VecDeque::pop_front);
        if let (Some(told), Some(desk)) = (told, self.workers.get_mut(&worker)) {
            told.into_iter().for_each(|told| desk.take_in(order(told)));
        }
    }

    fn works(&mut self, worker: u32) {
        let Some(Block { batch, task, block, .. }) =
            self.workers.get_mut(&worker).and_then(Desk::next)
        else {
            return;
        };
        self.answers.push((worker, (batch, task, block)));
    }

    fn answers(&mut self, at: usize, keep: bool) {
        let (worker, place) = match keep {
            true => self.answers[at],
            false => self.answers.swap_remove(at),
        };
        let lives = self.workers.contains_key(&worker);
        let seconds = 0.001 * f64::from(1 + worker * 7 % 5);
        let (worker, output) = (lives.then_some(worker), output(place));
        let came_at = self.now;
        self.tell(Event::Answer { worker, place, seconds, output, came_at });
    }

    /// One is no more, with what was on its way to it, and some of what was on its way from it.
    fn lose(&mut self, worker: u32, died: bool) {
        self.workers.remove(&worker);
        self.orders.remove(&worker);
        self.answers.retain(|(from, place)| *from != worker || place.2 % 2 == 0);
        self.tell(Event::Gone { worker, died });
    }

    fn settle(&mut self) {
        for _ in 0..5000 {
            for worker in self.workers.keys().copied().collect::<Vec<_>>() {
                while self.orders.get(&worker).is_some_and(|orders| !orders.is_empty()) {
                    self.deliver(worker);
                }
                self.works(worker);
            }
            while !self.answers.is_empty() {
                self.answers(0, false);
            }
            self.now += Duration::from_millis(1);
            self.tell(Event::Tick);
            if !self.book.is_busy() {
                return;
            }
        }
    }
}

fn dealings() -> impl Strategy<Value = Dealing> {
    prop_oneof![3 => Just(Dealing::Earliest), 1 => Just(Dealing::Equal), 1 => Just(Dealing::Queue)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Whatever is lost, said twice or late, and whoever comes and goes: each block counts once, each task is told once and whole,
    /// and while a worker lives batches end.
    #[test]
    fn each_block_counts_once_and_batches_end(
        script in prop::collection::vec((0..100u32, any::<u32>()), 20..600),
        (dealing, copies, affinity) in (dealings(), any::<bool>(), any::<bool>()),
    ) {
        let settings = Settings { dealing, copies, affinity, deaths: 0, ..Settings::default() };
        let mut world = World::new(settings);
        for (what, which) in script {
            let some = world.some(which >> 3);
            let at = which as usize % world.answers.len().max(1);
            match (what, some) {
                (0..=29, Some(worker)) => world.works(worker),
                (30..=49, Some(worker)) => world.deliver(worker),
                (50..=72, _) if !world.answers.is_empty() => world.answers(at, false),
                // Said twice.
                (73..=76, _) if !world.answers.is_empty() => world.answers(at, true),
                (77..=82, _) => {
                    world.now += Duration::from_millis(u64::from(which % 200));
                    world.tell(Event::Tick);
                }
                (83..=86, _) => world.join(),
                (87..=89, Some(worker)) => world.lose(worker, which % 2 == 0),
                (90..=92, Some(worker)) => world.tell(Event::Leaving { worker }),
                (93, Some(worker)) => world.tell(Event::Here { worker, node: "n0".into() }),
                (94..=98, _) => world.submit(which),
                (99, _) => {
                    let batch = 1 + u64::from(which) % world.next_batch;
                    if batch < world.next_batch && !world.ledger.over.contains(&batch) {
                        world.withdrawn.insert(batch);
                        world.tell(Event::Withdraw { batch });
                    }
                }
                _ => {}
            }
        }
        // The last one came to stay.
        world.join();
        world.settle();
        prop_assert!(!world.book.is_busy(), "{:?}", world.book);
        let mut blocks = 0;
        for ((batch, task), of) in &world.ledger.wanted {
            let whole = world.ledger.whole.contains(&(*batch, *task));
            prop_assert!(whole || world.withdrawn.contains(batch), "task {task} of {batch}");
            blocks += if whole { u64::from(*of) } else { 0 };
        }
        prop_assert!(world.book.counts().blocks >= blocks);
        prop_assert!(world.ledger.over.len() as u64 == world.next_batch - 1);
        // Nobody has anything of it any more.
        for worker in world.workers.keys().copied().collect::<Vec<_>>() {
            while world.orders.get(&worker).is_some_and(|orders| !orders.is_empty()) {
                world.deliver(worker);
            }
            prop_assert!(world.workers[&worker].is_empty());
        }
    }
}

/// Workers in modelled time: seconds that a unit takes each, cold, and what share of that warm.
struct Timed {
    began: Instant,
    now: Instant,
    book: Book,
    ledger: Ledger,
    hands: BTreeMap<u32, Hand>,
    batch: u64,
}

struct Hand {
    cold: f64,
    warm: f64,
    desk: Desk,
    did: BTreeSet<(u32, u32)>,
    doing: Option<(Instant, Block, f64)>,
}

impl Timed {
    fn new(settings: Settings, colds: &[f64], warm: f64) -> Self {
        let now = Instant::now();
        let (book, ledger) = (Book::new(settings, now), Ledger::default());
        let hands = BTreeMap::new();
        let mut timed = Self { began: now, now, book, ledger, hands, batch: 0 };
        colds.iter().for_each(|cold| timed.join(*cold, cold * warm));
        timed
    }

    fn join(&mut self, cold: f64, warm: f64) {
        let worker = self.hands.len() as u32 + 1;
        let (desk, did) = (Desk::default(), BTreeSet::new());
        self.hands.insert(worker, Hand { cold, warm, desk, did, doing: None });
        self.tell(Event::Here { worker, node: format!("n{worker}").into() });
    }

    fn tell(&mut self, event: Event) {
        for action in self.book.handle(event, self.now) {
            match action {
                Action::Tell { worker, what } => {
                    if let Some(hand) = self.hands.get_mut(&worker) {
                        what.into_iter().for_each(|told| hand.desk.take_in(order(told)));
                    }
                }
                action => self.ledger.hears(action),
            }
        }
        for hand in self.hands.values_mut().filter(|hand| hand.doing.is_none()) {
            if let Some(block) = hand.desk.next() {
                let warm = !hand.did.insert((block.id, block.block));
                let takes = block.units * if warm { hand.warm } else { hand.cold };
                hand.doing = Some((self.now + Duration::from_secs_f64(takes), block, takes));
            }
        }
    }

    /// Seconds that a batch takes.
    fn run(&mut self, tasks: &[(u32, f64, u32)], mut meddle: impl FnMut(&mut Self)) -> f64 {
        self.batch += 1;
        let (batch, from) = (self.batch, self.now);
        self.ledger.submits(batch, tasks);
        self.tell(Event::Submit { batch, tasks: tasks.to_vec() });
        while !self.ledger.over.contains(&batch) {
            let next = self.hands.iter().filter_map(|(id, hand)| {
                let (at, ..) = hand.doing.as_ref()?;
                Some((*at, *id))
            });
            let (next, wake) = (next.min(), self.book.wake_at());
            match next {
                Some((at, id)) if wake.is_none_or(|wake| at <= wake.max(self.now)) => {
                    self.now = at;
                    let hand = self.hands.get_mut(&id).expect("it is there");
                    let (_, block, seconds) = hand.doing.take().expect("it does something");
                    let place = (block.batch, block.task, block.block);
                    let (worker, output) = (Some(id), output(place));
                    let came_at = self.now;
                    self.tell(Event::Answer { worker, place, seconds, output, came_at });
                }
                _ => {
                    self.now = self.now.max(wake.expect("somebody does something"));
                    self.now += Duration::from_micros(1);
                    self.tell(Event::Tick);
                }
            }
            meddle(self);
        }
        (self.now - from).as_secs_f64()
    }

    fn counts(&self) -> Counts {
        self.book.counts()
    }
}

/// A spread of seven as on the paper's grid: most near the fastest, some far behind.
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

/// Once speeds are known a batch takes little more than work divided at will would, and equal shares three times as long.
#[test]
fn batches_end_close_to_the_bound_and_three_times_sooner_than_equal_shares() {
    let colds = spread(50);
    let settings = Settings { affinity: false, ..Settings::default() };
    for (tasks, blocks, most) in [(200, 1, 1.2), (800, 1, 1.08), (200, 10, 1.08), (40, 10, 1.2)] {
        let batch = equal_tasks(tasks, 10_000.0 / f64::from(tasks), blocks);
        let bound = fluid(&colds, 10_000.0);
        let mut timed = Timed::new(settings, &colds, 1.0);
        let first = timed.run(&batch, |_| {});
        let second = timed.run(&batch, |_| {});
        let third = timed.run(&batch, |_| {});
        let mut equally = Timed::new(Settings { dealing: Dealing::Equal, ..settings }, &colds, 1.0);
        let even = equally.run(&batch, |_| {});
        let told = format!("{tasks} {blocks}: {first} {second} {third}, {even}, bound {bound}");
        assert!(second <= most * bound && third <= most * bound, "{told}");
        // The first is no later than the slowest's benchmark, or what others do of it again.
        assert!(first <= 2.0 * bound + 0.3, "{told}");
        // Where there are more workers than tasks, equal shares leave some out, be they slow or not.
        assert!(tasks < 50 || even >= 3.0 * third, "{told}");
        assert_eq!(timed.counts().blocks, 3 * u64::from(tasks * blocks));
    }
}

/// A queue serves whoever has nothing to do, slow or fast, and gives nobody more than one task at a time; as many workers as tasks and
/// the slowest has one, however long that takes.
#[test]
fn a_queue_knows_no_speeds() {
    let settings = Settings { dealing: Dealing::Queue, ..Settings::default() };
    let colds = [0.01, 0.01, 0.01, 0.1];
    let mut timed = Timed::new(settings, &colds, 1.0);
    // The slow one takes 10 s for its task; each of the others does five by then, and one a sixth.
    for _ in 0..3 {
        let took = timed.run(&equal_tasks(17, 100.0, 1), |timed| {
            assert!(timed.book.workers().all(|worker| worker.waiting < 100.1));
        });
        assert!((took - 10.0).abs() < 1e-6, "{took}");
        let took = timed.run(&equal_tasks(4, 100.0, 3), |_| {});
        assert!((took - 10.0).abs() < 1e-6, "{took}");
    }
    let Counts { copies, moved, .. } = timed.counts();
    assert_eq!((copies, moved), (0, 0));
}

/// Tasks stay where they were done as long as that is sooner.
#[test]
fn affinity_keeps_tasks_where_they_are_warm() {
    let colds = spread(20);
    let batch = equal_tasks(160, 25.0, 1);
    let times = |affinity: bool| {
        let settings = Settings { affinity, ..Settings::default() };
        let mut timed = Timed::new(settings, &colds, 0.1);
        (0..5).map(|_| timed.run(&batch, |_| {})).collect::<Vec<f64>>()
    };
    let (with, without) = (times(true), times(false));
    assert!(with[4] < 0.5 * without[4], "{with:?} {without:?}");
    assert!(with[4] < 0.15 * with[0], "{with:?}");
}

/// Half of the workers come amid the batch: they take part in it.
#[test]
fn who_joins_amid_a_batch_takes_part() {
    let batch = equal_tasks(100, 25.0, 5);
    let mut timed = Timed::new(Settings::default(), &[0.01; 4], 1.0);
    let mut joined = false;
    let took = timed.run(&batch, |timed| {
        if !joined && timed.now - timed.began > Duration::from_secs(2) {
            joined = true;
            (0..4).for_each(|_| timed.join(0.01, 0.01));
        }
    });
    // Alone it would be 6.25 s.
    assert!(took < 4.5, "{took}");
}

/// One that stands still amid its block is done without.
#[test]
fn who_is_late_is_not_waited_for() {
    let batch = equal_tasks(40, 25.0, 1);
    let mut timed = Timed::new(Settings::default(), &[0.01; 5], 1.0);
    timed.run(&batch, |_| {});
    let mut stood = false;
    let took = timed.run(&batch, |timed| {
        if !stood {
            stood = true;
            let hand = timed.hands.get_mut(&2).expect("it is there");
            hand.doing.as_mut().expect("it works").0 += Duration::from_secs(3600);
        }
    });
    assert!(took < 3.5, "{took} {:?}", timed.counts());
    assert!(timed.counts().copies >= 1 && timed.counts().moved >= 1, "{:?}", timed.counts());
}

/// A task that nodes die of is named.
#[test]
fn a_task_that_workers_die_of_is_told() {
    let now = Instant::now();
    let mut book = Book::new(Settings::default(), now);
    let tasks = vec![(7, 25.0, 1), (8, 25.0, 1)];
    book.handle(Event::Submit { batch: 1, tasks }, now);
    for worker in 1..=3 {
        book.handle(Event::Here { worker, node: format!("n{worker}").into() }, now);
        let actions = book.handle(Event::Gone { worker, died: true }, now);
        let deadly = Action::Deadly { task: 7, deaths: 3 };
        assert_eq!(actions.contains(&deadly), worker == 3, "{actions:?}");
    }
}

#[test]
fn a_forecast_is_the_schedule_of_what_is_not_submitted() {
    let colds = [0.01, 0.01, 0.02];
    let mut timed = Timed::new(Settings::default(), &colds, 1.0);
    let nobody = Book::new(Settings::default(), timed.now);
    assert_eq!(nobody.forecast(&[1.0], Dealing::Earliest, timed.now), None);
    let batch = equal_tasks(30, 50.0, 1);
    timed.run(&batch, |_| {});
    let by = |dealing| timed.book.forecast(&[50.0; 25], dealing, timed.now);
    let by = |dealing| by(dealing).expect("somebody is there").makespan_s;
    let told = by(Dealing::Earliest);
    let equal = by(Dealing::Equal);
    assert!(equal > 1.3 * told, "{equal} {told}");
    assert!(told <= by(Dealing::Queue) && by(Dealing::Queue) < equal);
    let batch = equal_tasks(25, 50.0, 1);
    let took = timed.run(&batch, |_| {});
    assert!((told / took - 1.0).abs() < 0.02, "{told} {took}");
}

/// A worker so slow that others did its block as well is measured by it all the same, though the batch is over when it answers.
#[test]
fn who_answers_too_late_is_measured() {
    let now = Instant::now();
    let mut book = Book::new(Settings { bench_units: 1.0, ..Settings::default() }, now);
    for worker in [1, 2] {
        book.handle(Event::Here { worker, node: format!("n{worker}").as_str().into() }, now);
    }
    let tasks = vec![(0, 1.0, 1), (1, 1.0, 1)];
    let told = book.handle(Event::Submit { batch: 1, tasks }, now);
    let first = told.iter().find_map(|action| match action {
        Action::Tell { worker: 1, what } => what.iter().find_map(|told| match told {
            Told::Run { task, .. } => Some(*task),
            _ => None,
        }),
        _ => None,
    });
    let first = first.expect("each has one");
    let (mine, others) = ((1, first, 0), (1, 1 - first, 0));
    let answer = |worker, place, seconds, came_at| {
        let (worker, output) = (Some(worker), Bytes::new());
        Event::Answer { worker, place, seconds, output, came_at }
    };
    let (soon, later) = (now + Duration::from_secs(1), now + Duration::from_secs(60));
    book.handle(answer(1, mine, 1.0, soon), soon);
    // It is late, and the other does what it has.
    book.handle(Event::Tick, later);
    let after = later + Duration::from_secs(1);
    let over = book.handle(answer(1, others, 1.0, after), after);
    assert!(over.contains(&Action::Over { batch: 1 }), "{over:?}");
    assert_eq!(book.workers().filter(|seen| seen.cold_s.is_some()).count(), 1);
    let last = later + Duration::from_secs(10);
    book.handle(answer(2, others, 70.0, last), last);
    let seen: Vec<Option<f64>> = book.workers().map(|seen| seen.cold_s).collect();
    assert_eq!(seen, [Some(1.0), Some(70.0)]);
}

/// A master that computes, or rests, when an answer comes takes it in later: that makes no worker begin later, and is not foreseen of it. What
/// an answer is on its way for is.
#[test]
fn an_answer_that_waits_at_the_master_is_not_late() {
    let seconds = |seconds| Duration::from_secs_f64(seconds);
    for (on_its_way, waits) in [(0.0, 0.0), (0.0, 5.0), (0.5, 0.0), (0.5, 5.0)] {
        let now = Instant::now();
        let mut book = Book::new(Settings { bench_units: 1.0, ..Settings::default() }, now);
        book.handle(Event::Here { worker: 1, node: "n1".into() }, now);
        book.handle(Event::Submit { batch: 1, tasks: vec![(0, 1.0, 1)] }, now);
        let came_at = now + seconds(1.0 + on_its_way);
        let (worker, place, output) = (Some(1), (1, 0, 0), Bytes::new());
        let answer = Event::Answer { worker, place, seconds: 1.0, output, came_at };
        let now = came_at + seconds(waits);
        book.handle(answer, now);
        let told = book.forecast(&[1.0], Dealing::Earliest, now).expect("somebody is there");
        assert!((told.makespan_s - 1.0 - on_its_way).abs() < 1e-9, "{told} {waits}");
    }
}
