//! Slow processors on a fast machine: compute threads that use at most a share of a core.
//!
//! The share is enforced by the quota of a control group or by rests. [`ThrottledSeam`] wraps the
//! [`Seam`] of real threads and leaves other threads of the process alone. A node whose network
//! threads wait for a quota answers a tenth of a second late, as no slow processor does. This
//! module knows neither its users nor what the threads compute.

use std::cell::Cell;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use springtide_forkjoin::layer::thread_cpu;

use super::pool::{RealSeam, Seam};

/// The most time between two clock readings of a busy loop that counts as computing. The rest was
/// an interruption.
const BUSY_STEP_MAX: Duration = Duration::from_micros(50);
/// The minimum interval between clock readings of a thread; one costs half a microsecond.
const CLOCK_INTERVAL: Duration = Duration::from_micros(100);
/// The shortest sleep. The overshoot of shorter ones is as long as they are, so debts are
/// accumulated.
const NAP_MIN: Duration = Duration::from_millis(1);
/// The longest sleep of a resting thread before it checks for a halt.
const NAP_MAX: Duration = Duration::from_millis(50);
/// The most time that a thread may catch up after a late wake-up or an absent processor. Waiting
/// for work earns none, since a slow processor does not become fast by waiting.
const CREDIT_MAX: Duration = Duration::from_millis(50);
/// The interval between reads of the file with the share.
const READ_INTERVAL: Duration = Duration::from_millis(100);
/// The smallest share; with a share of zero a thread would rest forever.
const SHARE_MIN: f64 = 1e-4;

/// The limits on the speed of compute threads.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Throttle {
    /// The control group that compute threads join, so that its quota applies to them alone. A
    /// directory of version 1 (with a file `tasks`) or 2 (with `cgroup.threads`, of type
    /// `threaded`).
    pub cgroup: Option<PathBuf>,
    /// The share of a core, above 0 and up to 1, that each thread may use; it rests between tasks.
    /// A task without spawns and joins is compensated when it has ended.
    pub share: Option<f64>,
    /// A file with the share as a decimal number, read every 100 ms, so it may change at any time.
    /// Until it can be read, `share` applies.
    pub share_file: Option<PathBuf>,
}

impl Throttle {
    /// Whether any limit is set.
    pub fn is_any(&self) -> bool {
        *self != Self::default()
    }

    /// Checks that threads can join the control group.
    ///
    /// # Errors
    /// The directory is not a control group.
    pub fn check(&self) -> io::Result<()> {
        let Some(group) = &self.cgroup else { return Ok(()) };
        if ["cgroup.threads", "tasks"].iter().any(|file| group.join(file).exists()) {
            return Ok(());
        }
        let reason = format!("{} is not a control group", group.display());
        Err(io::Error::new(io::ErrorKind::NotFound, reason))
    }

    /// Adds the calling thread to the control group.
    fn join(&self) -> io::Result<()> {
        let Some(group) = &self.cgroup else { return Ok(()) };
        let threads = group.join("cgroup.threads");
        let file = if threads.exists() { threads } else { group.join("tasks") };
        // 0 stands for the thread that writes it.
        fs::write(&file, "0")
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", file.display())))
    }
}

/// The seam of real threads under a [`Throttle`]. Declared compute time
/// (`Context::spend_modelled_time`) is computed: the thread is busy until it has used that much
/// processor time.
pub struct ThrottledSeam {
    threads: Arc<RealSeam>,
    throttle: Throttle,
    /// The bits of the current share.
    share: AtomicU64,
    read: Mutex<Option<Instant>>,
}

/// The processor time that a thread may use, and has used.
///
/// The system's clock of a thread's processor time is unreliable over short intervals. On a machine
/// whose host takes time away it stops and jumps by ten milliseconds. At a share of 4 % such a jump
/// is a pause of a quarter of a second for no work. So at most the elapsed time is charged.
#[derive(Clone, Copy)]
struct ThreadQuota {
    /// The start of the accounting period.
    since: Instant,
    /// The processor time that the thread has used in this period.
    used: Duration,
    /// The readings of both clocks at the last charge.
    charged: Instant,
    cpu: Duration,
    checked: Instant,
}

thread_local! {
    static THREAD_QUOTA: Cell<Option<ThreadQuota>> = const { Cell::new(None) };
}

impl ThreadQuota {
    fn new() -> Self {
        let now = Instant::now();
        Self { since: now, used: Duration::ZERO, charged: now, cpu: thread_cpu(), checked: now }
    }

    /// Records the clocks without a charge, since falling asleep and waking up are not computing.
    fn skip(&mut self, cpu: Duration, now: Instant) {
        (self.cpu, self.charged) = (cpu, now);
    }

    /// Records the clocks and charges the computing since the last record. Returns it.
    fn charge(&mut self, cpu: Duration, now: Instant) -> Duration {
        let passed = now.saturating_duration_since(self.charged);
        let computed = cpu.saturating_sub(self.cpu).min(passed);
        (self.cpu, self.charged) = (cpu, now);
        self.used += computed;
        computed
    }

    /// Charges the computing of a busy loop since the last record: the elapsed time without
    /// interruptions.
    ///
    /// The thread's own clock shows 4 to 8 % less. It makes up for that by jumps, which
    /// [`ThreadQuota::charge`] does not charge.
    fn charge_busy(&mut self, now: Instant) -> Duration {
        let computed = now.saturating_duration_since(self.charged).min(BUSY_STEP_MAX);
        self.charged = now;
        self.used += computed;
        computed
    }

    /// The time that the thread must rest now. Unused time of longer pauses is forgotten, except
    /// for a small credit.
    fn debt(&mut self, share: f64, now: Instant) -> Duration {
        let cost = self.used.div_f64(share.max(SHARE_MIN));
        let passed = now.saturating_duration_since(self.since);
        let owed = cost.saturating_sub(passed);
        if owed.is_zero() {
            // Paid: a new period begins here, less the credit.
            let credit = (passed - cost).min(CREDIT_MAX);
            (self.since, self.used) = (now.checked_sub(credit).unwrap_or(now), Duration::ZERO);
        }
        owed
    }

    /// Records a wait for work from `began` to `now`. It pays off debts and earns no credit.
    fn record_wait(&mut self, share: f64, began: Instant, now: Instant, cpu: Duration) {
        let owed = self.debt(share, began);
        let waited = now.saturating_duration_since(began);
        self.since += waited.saturating_sub(owed);
        self.skip(cpu, now);
    }
}

impl ThrottledSeam {
    /// Creates a seam without threads.
    pub fn new(throttle: Throttle) -> Arc<Self> {
        let share = AtomicU64::new(throttle.share.unwrap_or(1.0).to_bits());
        Arc::new(Self { threads: RealSeam::new(), throttle, share, read: Mutex::new(None) })
    }

    /// The share at this time.
    fn share(&self, now: Instant) -> f64 {
        if let Some(file) = &self.throttle.share_file
            // A thread that finds the lock taken leaves the read to the other one.
            && let Ok(mut read) = self.read.try_lock()
            && read.is_none_or(|read| now.saturating_duration_since(read) >= READ_INTERVAL)
        {
            *read = Some(now);
            // A file that is just being written is read at the next interval.
            let found =
                fs::read_to_string(file).ok().and_then(|text| text.trim().parse::<f64>().ok());
            if let Some(share) = found.filter(|share| share.is_finite() && *share > 0.0) {
                self.share.store(share.to_bits(), Ordering::Relaxed);
            }
        }
        f64::from_bits(self.share.load(Ordering::Relaxed))
    }
}

impl Seam for ThrottledSeam {
    fn start(
        &self,
        thread: usize,
        name: String,
        stack_bytes: usize,
        body: Box<dyn FnOnce() + Send>,
    ) -> io::Result<()> {
        let throttle = self.throttle.clone();
        let body = Box::new(move || {
            // The group existed when the node started. Without it a job runs on, but too fast.
            if let Err(error) = throttle.join() {
                tracing::error!("a compute thread runs without a quota: {error}");
            }
            body();
        });
        self.threads.start(thread, name, stack_bytes, body)
    }

    fn park(&self, thread: usize, timeout: Option<Duration>) {
        let Some(mut quota) = THREAD_QUOTA.get().filter(|_| self.rests()) else {
            return self.threads.park(thread, timeout);
        };
        let began = Instant::now();
        quota.charge(thread_cpu(), began);
        self.threads.park(thread, timeout);
        let now = Instant::now();
        quota.record_wait(self.share(now), began, now, thread_cpu());
        THREAD_QUOTA.set(Some(quota));
    }

    fn unpark(&self, thread: usize) {
        self.threads.unpark(thread);
    }

    fn pass(&self, thread: usize, time: Duration) {
        let mut quota = THREAD_QUOTA.get().unwrap_or_else(ThreadQuota::new);
        quota.charge(thread_cpu(), Instant::now());
        let mut computed = Duration::ZERO;
        while computed < time {
            for _ in 0..300 {
                std::hint::spin_loop();
            }
            computed += quota.charge_busy(Instant::now());
            THREAD_QUOTA.set(Some(quota));
            self.rest(thread, &|| false);
            quota = THREAD_QUOTA.get().unwrap_or(quota);
        }
    }

    fn rests(&self) -> bool {
        self.throttle.share.is_some() || self.throttle.share_file.is_some()
    }

    fn rest(&self, _thread: usize, stop: &dyn Fn() -> bool) {
        if !self.rests() {
            return;
        }
        let mut quota = THREAD_QUOTA.get().unwrap_or_else(ThreadQuota::new);
        let mut now = Instant::now();
        if now.saturating_duration_since(quota.checked) >= CLOCK_INTERVAL {
            quota.checked = now;
            let share = self.share(now);
            if share < 1.0 {
                quota.charge(thread_cpu(), now);
                loop {
                    let owed = quota.debt(share, now);
                    if owed < NAP_MIN || stop() {
                        break;
                    }
                    std::thread::sleep(owed.min(NAP_MAX));
                    now = Instant::now();
                    // At a share of a thousandth of a core a nap may cost as much as it pays off.
                    quota.skip(thread_cpu(), now);
                }
            } else {
                quota = ThreadQuota::new();
            }
        }
        THREAD_QUOTA.set(Some(quota));
    }

    fn is_real(&self) -> bool {
        true
    }

    fn join(&self) {
        self.threads.join();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota(began: Instant, cpu: Duration) -> ThreadQuota {
        ThreadQuota { since: began, used: Duration::ZERO, charged: began, cpu, checked: began }
    }

    #[test]
    fn the_debt_follows_from_the_share_and_pauses_are_forgotten() {
        let ms = Duration::from_millis;
        let began = Instant::now();
        let mut quota = quota(began, ms(100));
        // 10 ms at a tenth amount to 100 ms, of which 30 have elapsed.
        assert_eq!(quota.charge(ms(110), began + ms(30)), ms(10));
        assert_eq!(quota.debt(0.1, began + ms(30)), ms(70));
        assert_eq!(quota.debt(0.1, began + ms(100)), Duration::ZERO);
        assert_eq!((quota.since, quota.used), (began + ms(100), ms(0)));
        // A second without work gives at most 50 ms of credit.
        assert_eq!(quota.debt(0.1, began + ms(1100)), Duration::ZERO);
        quota.charge(ms(120), began + ms(1100));
        assert_eq!(quota.debt(0.1, began + ms(1100)), ms(50));
        // A share of zero counts as a small one, so that the division is defined.
        assert!(quota.debt(0.0, began + ms(1100)) > ms(1000));
    }

    #[test]
    fn a_jump_of_the_processor_clock_is_not_charged() {
        let ms = Duration::from_millis;
        let began = Instant::now();
        let mut quota = quota(began, ms(100));
        // Where 3 ms have elapsed, at most 3 of the 13 ms can have been computed.
        assert_eq!(quota.charge(ms(113), began + ms(3)), ms(3));
        assert_eq!(quota.debt(0.5, began + ms(3)), ms(3));
        // A clock that goes back adds no debt; later time is charged as it elapses.
        assert_eq!(quota.charge(ms(110), began + ms(44)), ms(0));
        assert_eq!(quota.charge(ms(111), began + ms(45)), ms(1));
    }

    #[test]
    fn a_busy_loop_is_charged_except_for_interruptions() {
        let us = Duration::from_micros;
        let began = Instant::now();
        let mut quota = quota(began, us(100));
        assert_eq!(quota.charge_busy(began + us(20)), us(20));
        assert_eq!(quota.charge_busy(began + us(60)), us(40));
        assert_eq!(quota.charge_busy(began + us(5000)), BUSY_STEP_MAX);
        assert_eq!(quota.used, us(60) + BUSY_STEP_MAX);
        // The thread's own clock does not charge the same time again.
        assert_eq!(quota.charge(us(3000), began + us(5001)), us(1));
    }

    /// With credit for waits, a node that waited 20 ms for a stolen task would compute the next
    /// ones at full speed. Waits for distant clusters, and the choice of victims, would then be
    /// invisible.
    #[test]
    fn waiting_for_work_earns_no_credit() {
        let ms = Duration::from_millis;
        let began = Instant::now();
        let mut quota = quota(began, ms(0));
        quota.charge(ms(2), began + ms(2));
        // Of 20 ms it owes 18, and it waits for 40: the 18 are paid.
        quota.record_wait(0.1, began + ms(2), began + ms(42), ms(2));
        assert_eq!(quota.debt(0.1, began + ms(42)), ms(0));
        quota.charge(ms(3), began + ms(43));
        assert_eq!(quota.debt(0.1, began + ms(43)), ms(9));
        // It still owes the part that exceeds the wait, and keeps the credit for its earlier delay.
        quota.record_wait(0.1, began + ms(43), began + ms(46), ms(3));
        assert_eq!(quota.debt(0.1, began + ms(46)), ms(6));
        assert_eq!(quota.debt(0.1, began + ms(62)), ms(0));
        quota.record_wait(0.1, began + ms(62), began + ms(90), ms(3));
        quota.charge(ms(5), began + ms(92));
        assert_eq!(quota.debt(0.1, began + ms(92)), ms(8));
    }

    /// With naps charged as work, nodes with 0.12 % of a core never end a task: each nap costs as
    /// much as it pays off.
    #[test]
    fn a_nap_pays_off_debts_at_any_cost() {
        let ms = Duration::from_millis;
        let began = Instant::now();
        let mut quota = quota(began, ms(0));
        quota.charge(ms(1), began + ms(1));
        let mut now = began + ms(1);
        for nap in 1..=20u32 {
            now += ms(50);
            quota.skip(ms(1) + nap * Duration::from_micros(100), now);
        }
        assert_eq!(quota.debt(0.001, now), Duration::ZERO);
        assert_eq!(quota.charge(ms(3) + ms(1), now + ms(1)), ms(1));
    }

    /// At most the elapsed time can have been computed.
    #[test]
    fn declared_time_is_computed_and_the_share_may_change() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("share");
        let throttle = Throttle { share_file: Some(file.clone()), ..Throttle::default() };
        assert!(throttle.is_any() && !Throttle::default().is_any());
        let seam = ThrottledSeam::new(throttle);
        assert!(seam.rests());
        let began = Instant::now();
        seam.pass(0, Duration::from_millis(3));
        assert!(began.elapsed() >= Duration::from_millis(3));
        let now = Instant::now() + READ_INTERVAL;
        fs::write(&file, "0.25\n").unwrap();
        assert!((seam.share(now) - 0.25).abs() < 1e-9);
        fs::write(&file, "nonsense").unwrap();
        assert!((seam.share(now + READ_INTERVAL) - 0.25).abs() < 1e-9);
    }

    #[test]
    fn a_thread_with_a_large_debt_stops_on_request() {
        let seam = ThrottledSeam::new(Throttle { share: Some(1e-4), ..Throttle::default() });
        let began = Instant::now();
        let day = Duration::from_secs(86_400);
        let checked = began.checked_sub(CLOCK_INTERVAL).unwrap_or(began);
        THREAD_QUOTA.set(Some(ThreadQuota { checked, ..quota(began, thread_cpu()) }));
        let until = thread_cpu() + Duration::from_millis(1);
        while thread_cpu() < until {
            std::hint::spin_loop();
        }
        // It owes ten seconds.
        let asked = Cell::new(0);
        seam.rest(0, &|| {
            asked.set(asked.get() + 1);
            asked.get() > 2
        });
        assert_eq!(asked.get(), 3);
        assert!(began.elapsed() < day);
    }

    #[test]
    fn a_folder_that_is_no_control_group_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let throttle = Throttle { cgroup: Some(dir.path().to_owned()), ..Throttle::default() };
        let error = throttle.check().unwrap_err();
        assert!(error.to_string().contains("is not a control group"), "{error}");
    }
}
