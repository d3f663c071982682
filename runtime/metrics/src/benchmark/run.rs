//! One run of a benchmark: repeats on all threads until they suffice, and the resulting speed.

use std::time::Duration;

use tokio::time::Instant;

use crate::meter::{Ratio, SpeedMeasurement};

/// The length of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BenchmarkGoal {
    /// The minimum length. The run ends after it once every thread has completed a few repeats.
    pub min_length: Duration,
    /// The time after which no repeat starts.
    pub max_length: Duration,
    /// The length of the stretches into which repeats are summed. Their scatter gives the error.
    ///
    /// It is the quota's period: within one, a node under a quota first runs at full speed and then
    /// stops.
    pub window: Duration,
}

/// The repeats of every thread, if time allows.
const REPEATS: u32 = 3;

/// A run under way: all compute threads of a node repeat the same work independently.
#[derive(Clone, Debug)]
pub struct BenchmarkRun {
    goal: BenchmarkGoal,
    units: f64,
    began: Instant,
    threads: Vec<Thread>,
    ratio: Ratio,
    repeats: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Thread {
    repeats: u32,
    /// Repeats and time of the current stretch.
    open: (u32, Duration),
}

impl BenchmarkRun {
    /// Starts a run on this many threads at `now`. A repeat is `units` of work
    /// ([`BenchmarkSpec::units`](super::BenchmarkSpec::units)).
    pub fn new(goal: BenchmarkGoal, units: f64, threads: u32, now: Instant) -> Self {
        let threads = vec![Thread::default(); threads.max(1) as usize];
        Self { goal, units, began: now, threads, ratio: Ratio::default(), repeats: 0 }
    }

    /// Records a thread's repeat and its wall time. Returns whether the thread is to repeat again;
    /// false for an invalid thread number.
    pub fn record_repeat(&mut self, thread: usize, took: Duration, now: Instant) -> bool {
        let Some(state) = self.threads.get_mut(thread) else { return false };
        state.repeats = state.repeats.saturating_add(1);
        self.repeats = self.repeats.saturating_add(1);
        state.open.0 += 1;
        state.open.1 = state.open.1.saturating_add(took);
        if state.open.1 >= self.goal.window {
            let (repeats, time) = std::mem::take(&mut state.open);
            self.ratio.push(f64::from(repeats) * self.units, time);
        }
        let lasted = now.saturating_duration_since(self.began);
        lasted < self.goal.max_length && (lasted < self.goal.min_length || state.repeats < REPEATS)
    }

    /// The number of repeats so far, on all threads.
    pub fn repeats(&self) -> u32 {
        self.repeats
    }

    /// The number of threads with at least one repeat.
    pub fn active_threads(&self) -> u32 {
        self.threads.iter().map(|thread| u32::from(thread.repeats > 0)).sum()
    }

    /// Whether the run has its full length at `now`. Otherwise it was cut short, and its error is
    /// larger.
    pub fn is_complete(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.began) >= self.goal.min_length && self.repeats > 0
    }

    /// The speed of the node; none without repeats. Its error is absent if the run was too short.
    pub fn measurement(&self) -> Option<SpeedMeasurement> {
        let mut ratio = self.ratio;
        for thread in &self.threads {
            // The last stretch of any length counts, for the estimate weighs it by its time.
            let (repeats, time) = thread.open;
            ratio.push(f64::from(repeats) * self.units, time);
        }
        // Threads without a repeat had other work, and are not counted.
        Some(SpeedMeasurement {
            speed: ratio.rate()? * f64::from(self.active_threads()),
            relative_error: ratio.relative_error(),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const GOAL: BenchmarkGoal = BenchmarkGoal {
        min_length: Duration::from_millis(500),
        max_length: Duration::from_secs(2),
        window: Duration::from_millis(100),
    };

    #[test]
    fn equal_repeats_give_their_speed_and_no_error() {
        let start = Instant::now();
        let mut run = BenchmarkRun::new(GOAL, 0.02, 2, start);
        assert_eq!(run.measurement(), None);
        let mut repeats = 0;
        for i in 1..=100 {
            let now = start + 10 * i * MS;
            let more = [run.record_repeat(0, 10 * MS, now), run.record_repeat(1, 10 * MS, now)];
            repeats += 2;
            assert_eq!(more, [i < 50; 2]);
            if !more[0] {
                break;
            }
        }
        assert_eq!(run.repeats(), repeats);
        assert!(run.is_complete(start + 500 * MS) && !run.is_complete(start + 499 * MS));
        // Twice the reference speed on each of two threads.
        let measured = run.measurement().unwrap();
        assert!((measured.speed - 4.0).abs() < 1e-9, "{measured:?}");
        assert!(measured.relative_error.unwrap() < 1e-6, "{measured:?}");
        assert!(!run.record_repeat(2, MS, start), "there is no such thread");
    }

    #[test]
    fn long_repeats_are_done_a_few_times_but_not_past_the_limit() {
        let start = Instant::now();
        let mut run = BenchmarkRun::new(GOAL, 1.0, 1, start);
        assert!(run.record_repeat(0, 600 * MS, start + 600 * MS));
        assert!(run.measurement().unwrap().relative_error.is_none(), "one repeat tells no error");
        assert!(run.record_repeat(0, 600 * MS, start + 1200 * MS));
        assert!(!run.record_repeat(0, 600 * MS, start + 1800 * MS));
        let mut run = BenchmarkRun::new(GOAL, 1.0, 1, start);
        assert!(!run.record_repeat(0, 2100 * MS, start + 2100 * MS));
    }

    /// Under a quota of half a processor a thread runs 50 ms and stops 50 ms: repeats of 10 ms take
    /// 10 or 60 ms.
    #[test]
    fn a_quota_is_measured_in_full_and_with_a_small_error() {
        let start = Instant::now();
        let mut run = BenchmarkRun::new(GOAL, 0.01, 1, start);
        let (mut now, mut ran) = (start, 0);
        loop {
            let took = if ran % 5 == 4 { 60 * MS } else { 10 * MS };
            (now, ran) = (now + took, ran + 1);
            if !run.record_repeat(0, took, now) {
                break;
            }
        }
        let measured = run.measurement().unwrap();
        assert!((measured.speed - 0.5).abs() < 1e-9, "{measured:?}");
        assert!(measured.relative_error.unwrap() < 0.01, "{measured:?}");
    }

    proptest! {
        #[test]
        fn a_run_ends_with_finite_numbers(
            steps in prop::collection::vec((0usize..4, 0u64..400), 0..80),
            threads in 0u32..4,
            units in any::<f64>(),
        ) {
            let start = Instant::now();
            let mut run = BenchmarkRun::new(GOAL, units, threads, start);
            let mut now = start;
            for (thread, millis) in steps {
                let took = Duration::from_millis(millis);
                now += took;
                let more = run.record_repeat(thread, took, now);
                prop_assert!(!more || now < start + GOAL.max_length);
            }
            if let Some(measured) = run.measurement() {
                prop_assert!(measured.speed > 0.0, "{:?}", measured);
                let is_valid = |error: f64| error >= 0.0 && error.is_finite();
                prop_assert!(measured.relative_error.is_none_or(is_valid));
            }
        }
    }
}
