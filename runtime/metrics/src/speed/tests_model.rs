//! A node whose true speed changes, with its meter and planner: how soon and how well the reported
//! speed follows, and what that costs.
//!
//! The true speed is the speed of the hardware times the share of the processors that the job gets.
//! A foreign load or a quota changes the share, which shows in the threads' processor time. A cut
//! changes the hardware's speed, which only a benchmark or work units show.

use proptest::prelude::*;

use super::*;
use crate::meter::{BenchmarkAction, BenchmarkEvent, BenchmarkPlanner, BenchmarkSettings};

const SPEC: SpecId = SpecId(7);
const STEP: Duration = Duration::from_millis(100);

/// What changes the true speed.
#[derive(Clone, Copy, Debug)]
enum Change {
    /// Other processes take this share of the processors.
    Foreign(f64),
    /// The quota grants this share of what the job wants.
    Quota(f64),
    /// The hardware has this speed, relative to its first.
    Cut(f64),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        3 => (0.0f64..0.97).prop_map(Change::Foreign),
        2 => (0.05f64..1.0).prop_map(Change::Quota),
        1 => (0.3f64..1.0).prop_map(Change::Cut),
    ]
}

/// The parameters of a modelled node.
#[derive(Clone, Debug)]
struct Model {
    seed: u64,
    period_s: u32,
    threads: u32,
    /// Whether its tasks declare a cost.
    has_units: bool,
    /// The share of time in which its threads have work.
    busy: f64,
    /// The relative scatter of what a count of work units or a benchmark shows.
    noise: f64,
    /// Seconds until each change, from the one before.
    changes: Vec<(u32, Change)>,
}

fn model() -> impl Strategy<Value = Model> {
    let changes = prop::collection::vec((90u32..200, change()), 1..8);
    let node = (any::<u64>(), prop::sample::select(vec![1u32, 2, 5, 10]), 1u32..9);
    (node, any::<bool>(), 0.4f64..1.0, 0.005f64..0.08, changes).prop_map(
        |((seed, period_s, threads), has_units, busy, noise, changes)| Model {
            seed,
            period_s,
            threads,
            has_units,
            busy,
            noise,
            changes,
        },
    )
}

/// The result of a modelled run.
#[derive(Default)]
struct Followed {
    /// Ends of periods later than the latency after a change, and of these, those at which the
    /// report was within its error.
    judged: u32,
    within: u32,
    /// The longest time from a change of the job's share by more than a fifth until the report
    /// followed it.
    slowest: Duration,
    /// Time of benchmarks, in seconds.
    benchmarks: f64,
    lasted: f64,
}

struct Node {
    model: Model,
    dice: UniformRandom,
    meter: SpeedMeter,
    planner: BenchmarkPlanner,
    now: Instant,
    foreign: f64,
    quota: f64,
    hardware: f64,
    running: Option<Instant>,
    wake: Option<Instant>,
    followed: Followed,
}

impl Node {
    fn new(model: Model) -> Self {
        let now = Instant::now();
        let period = Duration::from_secs(model.period_s.into());
        let settings = BenchmarkSettings { period, ..BenchmarkSettings::default() };
        let speed = SpeedSettings { period, ..SpeedSettings::default() };
        Self {
            dice: UniformRandom(model.seed | 1),
            meter: SpeedMeter::new(model.threads, speed),
            planner: BenchmarkPlanner::new(settings, now),
            now,
            foreign: 0.0,
            quota: 1.0,
            hardware: 1.0,
            running: None,
            wake: None,
            followed: Followed::default(),
            model,
        }
    }

    /// A number near 1: the sum of uniform numbers is near enough to a normal one.
    fn noisy(&mut self, noise: f64) -> f64 {
        let sum: f64 = (0..12).map(|_| self.dice.unit()).sum();
        (1.0 + noise * (sum - 6.0)).max(0.01)
    }

    fn pace(&self) -> f64 {
        (1.0 - self.foreign) * self.quota
    }

    fn truth(&self) -> f64 {
        100.0 * self.hardware * self.pace() * f64::from(self.model.threads)
    }

    fn plan(&mut self, event: BenchmarkEvent) {
        for action in self.planner.handle(event, self.now) {
            match action {
                BenchmarkAction::Run { goal, .. } => {
                    assert!(self.running.is_none(), "a run starts during another");
                    let length = goal.min_length.min(goal.max_length);
                    self.running = Some(self.now + length);
                    self.followed.benchmarks += length.as_secs_f64();
                }
                BenchmarkAction::Stop => self.running = Some(self.now),
                BenchmarkAction::Wake { at } => self.wake = Some(at),
            }
        }
    }

    fn step(&mut self) {
        self.now += STEP;
        if self.running.is_some_and(|end| end <= self.now) {
            self.running = None;
            let noise = self.model.noise;
            let speed = self.truth() * self.noisy(noise);
            let pace = self.pace() * self.noisy(0.01);
            let measured = SpeedMeasurement { speed, relative_error: Some(noise) };
            self.meter.benchmark(SPEC, measured, Some(pace), self.now).unwrap();
            self.plan(BenchmarkEvent::Finished { whole: true });
        }
        if self.wake.is_some_and(|at| at <= self.now) {
            self.wake = None;
            self.plan(BenchmarkEvent::Tick);
        }
    }

    fn count(&mut self, every: Duration) {
        let busy = every.mul_f64(self.model.busy * f64::from(self.model.threads));
        let cpu = busy.mul_f64((self.pace() * self.noisy(0.03)).min(1.0));
        self.meter.pace(cpu, busy);
        if self.model.has_units {
            let noise = self.noisy(self.model.noise);
            let units = 100.0 * self.hardware * self.pace() * busy.as_secs_f64() * noise;
            self.meter.units(units, busy);
        }
    }

    fn end_period(&mut self) {
        let noise = 0.01 * (self.dice.unit() - 0.5);
        let load = Load {
            foreign_cpu_share: Some((self.foreign + noise).clamp(0.0, 1.0)),
            throttled_share: Some(1.0 - self.quota),
            ..Load::default()
        };
        self.meter.load(load, self.now);
        self.meter.end_period(self.now).unwrap();
        let knows = self.meter.knows_units(self.now);
        self.plan(BenchmarkEvent::KnowsUnits(knows));
        self.plan(BenchmarkEvent::Load(load));
    }

    fn run(mut self) -> Followed {
        let period = Duration::from_secs(self.model.period_s.into());
        let limit = BenchmarkSettings::default().max_age;
        let start = self.now;
        self.plan(BenchmarkEvent::Busy);
        self.plan(BenchmarkEvent::Spec(SPEC));
        let (mut changed, mut latency) = (self.now, 3 * period);
        // Both, after a change of the share, until the report follows it.
        let mut pending = None::<Instant>;
        let (mut count_at, mut period_at) = (self.now + period / 8, self.now + period);
        let mut changes = self.model.changes.clone().into_iter();
        let mut next = changes.next();
        let mut change_at = next.map(|(wait, _)| self.now + Duration::from_secs(wait.into()));
        let mut tail = self.now + Duration::from_secs(100);
        while change_at.is_some() || self.now < tail {
            self.step();
            if self.now >= count_at {
                self.count(period / 8);
                count_at = self.now + period / 8;
            }
            if self.now >= period_at {
                self.end_period();
                period_at = self.now + period;
                let Some(report) = self.meter.report(self.now) else { continue };
                let off = (report.speed / self.truth()).ln().abs();
                // A benchmark has an error of its own; the change shows in the pace.
                let pace = self.meter.pace.map_or(f64::NAN, |pace| pace.ln - self.pace().ln());
                let follows = if self.model.has_units { off < 0.2 } else { pace.abs() < 0.1 };
                if let Some(since) = pending.filter(|_| follows) {
                    self.followed.slowest = self.followed.slowest.max(self.now - since);
                    pending = None;
                }
                if self.now >= changed + latency {
                    self.followed.judged += 1;
                    self.followed.within += u32::from(off <= 2.0 * report.relative_error);
                }
            }
            if change_at.is_some_and(|at| at <= self.now) {
                let before = self.pace();
                let mut shows = true;
                match next.map(|(_, change)| change) {
                    Some(Change::Foreign(share)) => self.foreign = share,
                    Some(Change::Quota(share)) => self.quota = share,
                    Some(Change::Cut(speed)) => {
                        self.hardware = speed;
                        shows = self.model.has_units;
                    }
                    None => {}
                }
                changed = self.now;
                // What shows in no counter waits for the greatest age of a benchmark.
                latency = 3 * period + if shows { Duration::ZERO } else { limit };
                let step = (self.pace() / before).ln().abs();
                pending = (step > 1.2f64.ln()).then_some(self.now);
                next = changes.next();
                change_at = next.map(|(wait, _)| self.now + Duration::from_secs(wait.into()));
                tail = self.now + Duration::from_secs(100);
            }
        }
        if let Some(since) = pending {
            self.followed.slowest = self.followed.slowest.max(self.now - since);
        }
        self.followed.lasted = (self.now - start).as_secs_f64();
        self.followed
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    /// Reports are within two standard errors for 95 % of the time, from three periods after a
    /// change on. A change that only a benchmark shows also waits for the greatest age. Steps of
    /// the job's share by more than a fifth show within three periods. Benchmarks keep to their
    /// overhead, with the runs that the budget saves and lends.
    #[test]
    fn reports_follow_the_true_speed_within_their_error(
        models in prop::collection::vec(model(), 48),
    ) {
        let (mut judged, mut within) = (0, 0);
        for model in models {
            let followed = Node::new(model.clone()).run();
            judged += followed.judged;
            within += followed.within;
            let period = Duration::from_secs(model.period_s.into());
            let slowest = followed.slowest;
            prop_assert!(slowest <= 3 * period + STEP, "{slowest:?}: {model:?}");
            let settings = BenchmarkSettings::default();
            let run = 0.5;
            let runs = f64::from(settings.saved_runs) + 2.0;
            let most = settings.max_overhead * followed.lasted + runs * run;
            prop_assert!(followed.benchmarks <= most, "{} s: {model:?}", followed.benchmarks);
        }
        let share = f64::from(within) / f64::from(judged);
        println!("{:.1} % of {judged} reports were within their error", 100.0 * share);
        prop_assert!(share >= 0.95, "{within} of {judged}");
    }

    /// Nodes whose threads run alike have like speeds, under any load of their benchmarks.
    #[test]
    fn threads_that_run_alike_have_like_speeds(
        (first, second) in (0.0f64..0.95, 0.0f64..0.95), later in 0.0f64..0.95,
        period_s in 1u32..11, threads in 1u32..9,
    ) {
        let speeds = [first, second].map(|foreign| {
            let model = Model {
                seed: 1, period_s, threads, has_units: false, busy: 1.0, noise: 0.02,
                changes: Vec::new(),
            };
            let mut node = Node::new(model);
            node.foreign = foreign;
            node.plan(BenchmarkEvent::Spec(SPEC));
            while node.running.is_some() {
                node.step();
            }
            node.foreign = later;
            // No further benchmark runs: the pace alone shows the new load.
            for _ in 0..3 {
                for _ in 0..8 {
                    node.now += Duration::from_secs(period_s.into()) / 8;
                    node.count(Duration::from_secs(period_s.into()) / 8);
                }
                node.meter.end_period(node.now).unwrap();
            }
            node.meter.report(node.now).unwrap().speed / f64::from(threads)
        });
        let off = (speeds[0] / speeds[1]).ln().abs();
        prop_assert!(off < 0.2, "{speeds:?}");
    }
}
