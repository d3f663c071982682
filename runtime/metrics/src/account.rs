//! The time account of a compute thread: it is always in one state, and the states sum to wall
//! time.
//!
//! It neither reads a clock nor knows why a thread changes its state.

use std::ops::{Add, AddAssign, Sub};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::is_default;

/// The state of a compute thread. Source: the time classes of the adaptation paper (busy, idle,
/// intra-cluster and inter-cluster communication, benchmarking).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ThreadState {
    /// It runs a task.
    Working,
    /// It has no work and waits for no particular answer.
    Idle,
    /// It waits for an answer from its own cluster.
    WaitLocal,
    /// It waits only for an answer from another cluster.
    WaitWide,
    /// It measures the node's speed.
    Bench,
}

impl ThreadState {
    /// All states, in the order of reports.
    pub const ALL: [ThreadState; 5] = [
        ThreadState::Working,
        ThreadState::Idle,
        ThreadState::WaitLocal,
        ThreadState::WaitWide,
        ThreadState::Bench,
    ];

    /// The key of the state in a report's `time` object.
    pub fn name(self) -> &'static str {
        match self {
            ThreadState::Working => "work",
            ThreadState::Idle => "idle",
            ThreadState::WaitLocal => "wait_local",
            ThreadState::WaitWide => "wait_wide",
            ThreadState::Bench => "bench",
        }
    }
}

/// Time spent in each state, in nanoseconds. For one thread it sums to wall time.
///
/// Sums over threads are thread-nanoseconds. They saturate at 2^64 ns, which are 584 thread-years.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Times {
    /// Nanoseconds spent in [`ThreadState::Working`].
    #[serde(skip_serializing_if = "is_default")]
    pub working_ns: u64,
    /// Nanoseconds spent in [`ThreadState::Idle`].
    #[serde(skip_serializing_if = "is_default")]
    pub idle_ns: u64,
    /// Nanoseconds spent in [`ThreadState::WaitLocal`].
    #[serde(skip_serializing_if = "is_default")]
    pub wait_local_ns: u64,
    /// Nanoseconds spent in [`ThreadState::WaitWide`].
    #[serde(skip_serializing_if = "is_default")]
    pub wait_wide_ns: u64,
    /// Nanoseconds spent in [`ThreadState::Bench`].
    #[serde(skip_serializing_if = "is_default")]
    pub bench_ns: u64,
    /// Nanoseconds in which the thread served: it waited as the master of the job's workers. Not
    /// part of the other fields; reports count them as [`ThreadState::WaitLocal`].
    #[serde(skip_serializing_if = "is_default")]
    pub serving_ns: u64,
}

/// Converts parts to hundredths of their sum. They add up to 100, or are all 0 if the parts are.
/// The largest part takes the rounding error.
pub fn hundredths(parts: [u64; 5]) -> [u8; 5] {
    let all = parts.map(u128::from);
    let sum: u128 = all.iter().sum();
    if sum == 0 {
        return [0; 5];
    }
    let mut shares = all.map(|part| u8::try_from(part * 100 / sum).unwrap_or(100));
    let most = (0..all.len()).max_by_key(|&at| all[at]).unwrap_or(0);
    shares[most] += 100 - shares.iter().sum::<u8>();
    shares
}

impl Times {
    /// Nanoseconds in a state. A master's wait for its workers is in [`ThreadState::WaitLocal`].
    pub fn get(&self, state: ThreadState) -> u64 {
        match state {
            ThreadState::Working => self.working_ns,
            ThreadState::Idle => self.idle_ns,
            ThreadState::WaitLocal => self.wait_local_ns.saturating_add(self.serving_ns),
            ThreadState::WaitWide => self.wait_wide_ns,
            ThreadState::Bench => self.bench_ns,
        }
    }

    fn get_mut(&mut self, state: ThreadState) -> &mut u64 {
        match state {
            ThreadState::Working => &mut self.working_ns,
            ThreadState::Idle => &mut self.idle_ns,
            ThreadState::WaitLocal => &mut self.wait_local_ns,
            ThreadState::WaitWide => &mut self.wait_wide_ns,
            ThreadState::Bench => &mut self.bench_ns,
        }
    }

    /// Seconds in a state, for reports.
    pub fn seconds(&self, state: ThreadState) -> f64 {
        self.get(state) as f64 / 1e9
    }

    /// Nanoseconds in all states.
    pub fn total_ns(&self) -> u64 {
        ThreadState::ALL.iter().fold(0, |sum, &state| sum.saturating_add(self.get(state)))
    }

    /// The share of work, from 0 to 1; none if there is no time.
    pub fn working_share(&self) -> Option<f64> {
        let total = self.total_ns();
        (total > 0).then(|| self.working_ns as f64 / total as f64)
    }

    /// Hundredths in each of [`ThreadState::ALL`]; see [`hundredths`].
    pub fn percent(&self) -> [u8; 5] {
        hundredths(ThreadState::ALL.map(|state| self.get(state)))
    }

    /// The time since an `earlier` snapshot of the same account. A smaller value than before, from
    /// another account's snapshot, counts as zero.
    pub fn since(&self, earlier: &Times) -> Times {
        self.zip(earlier, u64::saturating_sub)
    }

    fn zip(&self, other: &Times, op: fn(u64, u64) -> u64) -> Times {
        Times {
            working_ns: op(self.working_ns, other.working_ns),
            idle_ns: op(self.idle_ns, other.idle_ns),
            wait_local_ns: op(self.wait_local_ns, other.wait_local_ns),
            wait_wide_ns: op(self.wait_wide_ns, other.wait_wide_ns),
            bench_ns: op(self.bench_ns, other.bench_ns),
            serving_ns: op(self.serving_ns, other.serving_ns),
        }
    }
}

impl Add for Times {
    type Output = Times;

    fn add(self, other: Times) -> Times {
        self.zip(&other, u64::saturating_add)
    }
}

impl AddAssign for Times {
    fn add_assign(&mut self, other: Times) {
        *self = *self + other;
    }
}

/// Like [`Times::since`].
impl Sub for Times {
    type Output = Times;

    fn sub(self, earlier: Times) -> Times {
        self.since(&earlier)
    }
}

/// The time account of one thread.
#[derive(Clone, Debug)]
pub struct Account {
    state: ThreadState,
    /// Whether time without work counts as serving.
    serves: bool,
    /// The time up to which `times` is complete.
    booked: Instant,
    times: Times,
}

impl Account {
    /// Creates an account that starts at `now` in this state.
    pub fn new(state: ThreadState, now: Instant) -> Self {
        Self { state, serves: false, booked: now, times: Times::default() }
    }

    /// The current state of the thread.
    pub fn state(&self) -> ThreadState {
        self.state
    }

    /// Ends the current state at `now`, starts `state`, and returns the previous one.
    ///
    /// A `now` before the booked time books nothing, so time never decreases. That happens if two
    /// threads read the clock in another order than they call.
    pub fn switch(&mut self, state: ThreadState, now: Instant) -> ThreadState {
        self.book(now);
        std::mem::replace(&mut self.state, state)
    }

    /// Sets whether the thread serves from `now` on: whether it waits as the master of the job's
    /// workers. Then its time without work counts as [`Times::serving_ns`].
    pub fn serve(&mut self, serves: bool, now: Instant) {
        self.book(now);
        self.serves = serves;
    }

    /// Switches to `to` if the current state is in `from`, and returns whether it did.
    pub fn relabel(&mut self, from: &[ThreadState], to: ThreadState, now: Instant) -> bool {
        let applies = from.contains(&self.state);
        if applies {
            self.switch(to, now);
        }
        applies
    }

    /// The times up to `now`. They sum to the wall time since [`Account::new`], to the nanosecond.
    pub fn snapshot(&mut self, now: Instant) -> Times {
        self.book(now);
        self.times
    }

    fn book(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.booked);
        let passed = u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX);
        let waits = !matches!(self.state, ThreadState::Working | ThreadState::Bench);
        let slot = if self.serves && waits {
            &mut self.times.serving_ns
        } else {
            self.times.get_mut(self.state)
        };
        *slot = slot.saturating_add(passed);
        self.booked = self.booked.max(now);
    }
}

/// An account that its thread switches and others read or relabel.
///
/// It uses a mutex, for a thread switches only when it runs out of work or gets some.
#[derive(Clone, Debug)]
pub struct SharedAccount(Arc<Mutex<Account>>);

impl SharedAccount {
    /// Creates an account; see [`Account::new`].
    pub fn new(state: ThreadState, now: Instant) -> Self {
        Self(Arc::new(Mutex::new(Account::new(state, now))))
    }

    /// The current state; see [`Account::state`].
    pub fn state(&self) -> ThreadState {
        self.lock().state()
    }

    /// Switches the state; see [`Account::switch`].
    pub fn switch(&self, state: ThreadState, now: Instant) -> ThreadState {
        self.lock().switch(state, now)
    }

    /// Like [`Account::relabel`]: for an actor that moves idle threads to [`ThreadState::WaitWide`]
    /// while only a wide-area steal is pending. A thread that has found work meanwhile is
    /// unaffected.
    pub fn relabel(&self, from: &[ThreadState], to: ThreadState, now: Instant) -> bool {
        self.lock().relabel(from, to, now)
    }

    /// Sets whether the thread serves; see [`Account::serve`].
    pub fn serve(&self, serves: bool, now: Instant) {
        self.lock().serve(serves, now);
    }

    /// The times up to `now`; see [`Account::snapshot`].
    pub fn snapshot(&self, now: Instant) -> Times {
        self.lock().snapshot(now)
    }

    /// An account is consistent after each step, so a panic of another thread does no harm.
    fn lock(&self) -> MutexGuard<'_, Account> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn any_state() -> impl Strategy<Value = ThreadState> {
        prop::sample::select(&ThreadState::ALL[..])
    }

    proptest! {
        #[test]
        fn states_add_up_to_wall_time(
            steps in prop::collection::vec(
                (any_state(), 0u64..5_000_000_000, any::<bool>()),
                0..60,
            ),
        ) {
            let start = Instant::now();
            let mut account = Account::new(ThreadState::Idle, start);
            let (mut now, mut expected, mut state) = (start, [0u64; 5], ThreadState::Idle);
            for (next, nanos, relabel) in steps {
                now += Duration::from_nanos(nanos);
                expected[state as usize] += nanos;
                if relabel {
                    let from = [ThreadState::Idle, ThreadState::WaitLocal];
                    prop_assert_eq!(account.relabel(&from, next, now), from.contains(&state));
                    if from.contains(&state) {
                        state = next;
                    }
                } else {
                    prop_assert_eq!(account.switch(next, now), state);
                    state = next;
                }
            }
            let times = account.snapshot(now);
            prop_assert_eq!(ThreadState::ALL.map(|state| times.get(state)), expected);
            prop_assert_eq!(u128::from(times.total_ns()), (now - start).as_nanos());
        }

        #[test]
        fn a_clock_read_out_of_order_neither_loses_nor_adds_time(
            steps in prop::collection::vec((any_state(), -1_000_000i64..2_000_000), 1..60),
        ) {
            let start = Instant::now();
            let mut account = Account::new(ThreadState::Idle, start);
            let (mut at, mut latest) = (0i64, 0i64);
            for (state, step) in steps {
                at = (at + step).max(0);
                latest = latest.max(at);
                account.switch(state, start + Duration::from_nanos(at as u64));
            }
            let times = account.snapshot(start);
            prop_assert_eq!(times.total_ns(), latest as u64);
        }

        #[test]
        fn a_period_plus_the_earlier_time_is_the_total(
            a in any::<[u32; 6]>(), b in any::<[u32; 6]>(),
        ) {
            let times = |ns: [u32; 6]| Times {
                working_ns: ns[0].into(), idle_ns: ns[1].into(), wait_local_ns: ns[2].into(),
                wait_wide_ns: ns[3].into(), bench_ns: ns[4].into(), serving_ns: ns[5].into(),
            };
            let (before, period) = (times(a), times(b));
            prop_assert_eq!((before + period).since(&before), period);
            let text = serde_json::to_string(&period).unwrap();
            prop_assert_eq!(serde_json::from_str::<Times>(&text).unwrap(), period);
        }
    }

    #[test]
    fn a_master_serves_while_it_waits_in_any_way_and_works_as_others() {
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let account = SharedAccount::new(ThreadState::Working, start);
        account.serve(true, start + second);
        account.switch(ThreadState::WaitLocal, start + 2 * second);
        account.relabel(&[ThreadState::WaitLocal], ThreadState::WaitWide, start + 4 * second);
        account.switch(ThreadState::Working, start + 5 * second);
        account.serve(false, start + 6 * second);
        account.switch(ThreadState::Idle, start + 6 * second);
        let times = account.snapshot(start + 8 * second);
        let (working_ns, idle_ns, serving_ns) = (3_000_000_000, 2_000_000_000, 3_000_000_000);
        assert_eq!(times, Times { working_ns, idle_ns, serving_ns, ..Times::default() });
        assert_eq!(times.total_ns(), 8_000_000_000);
        assert_eq!(times.seconds(ThreadState::WaitLocal), 3.0);
    }

    #[test]
    fn only_a_thread_in_a_named_state_is_relabelled() {
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let account = SharedAccount::new(ThreadState::Working, start);
        let idle = [ThreadState::Idle];
        assert!(!account.relabel(&idle, ThreadState::WaitWide, start + second));
        account.switch(ThreadState::Idle, start + 2 * second);
        assert!(account.relabel(&idle, ThreadState::WaitWide, start + 3 * second));
        let times = account.snapshot(start + 7 * second);
        let seconds = ThreadState::ALL.map(|state| times.seconds(state));
        assert_eq!(seconds, [2.0, 1.0, 0.0, 4.0, 0.0]);
    }
}
