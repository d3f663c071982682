//! Slow processors on a fast machine: compute threads that use no more than a share of a core, by the quota of a control group or
//! by resting.
//!
//! A [`Seam`] around that of real threads. Other threads of the process, those of the network above all, are none of its business: a
//! node whose network threads wait for a quota answers a tenth of a second late, as no slow processor does. Must not know who asks
//! for it, nor what the threads compute.

use std::cell::Cell;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use super::core::cpu_clock::thread_cpu;
use super::pool::{RealSeam, Seam};

/// Between two looks at the clock of a busy loop no more than this is computed: what passes beyond it was an interruption.
const GLANCE_MOST: Duration = Duration::from_micros(50);
/// A thread looks at its clock no more often: that alone costs half a microsecond.
const LOOK_EVERY: Duration = Duration::from_micros(100);
/// Sleeps that are shorter end late by as much as they last: they are made up for together.
const NAP_LEAST: Duration = Duration::from_millis(1);
/// A thread that rests is asked so often whether it is to stop.
const NAP_MOST: Duration = Duration::from_millis(50);
/// Who was late to go on, for its nap ended late or its processor was away, may catch up on no more than this. Who waited for work
/// may catch up on nothing: a slow processor does not become a fast one by waiting.
const CREDIT: Duration = Duration::from_millis(50);
/// The file with the share is read this often.
const READ_EVERY: Duration = Duration::from_millis(100);
/// The smallest share: who asks for nothing waits for ever.
const SHARE_LEAST: f64 = 1e-4;

/// How compute threads are slowed down.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Throttle {
    /// They, and no other threads, join this control group, whose quota then holds for them: a folder of version 1 (with a file
    /// `tasks`) or 2 (with `cgroup.threads`, of type `threaded`).
    pub cgroup: Option<PathBuf>,
    /// They rest between tasks so that each uses no more than this share of a core, above 0 and up to 1. Tasks that neither
    /// spawn nor join are made up for when they have ended.
    pub share: Option<f64>,
    /// This file holds the share, as a decimal number, and is read again every 100 ms: it may change at any time. Until it can be
    /// read, `share` holds.
    pub share_file: Option<PathBuf>,
}

impl Throttle {
    /// Whether it slows anything down.
    pub fn is_any(&self) -> bool {
        *self != Self::default()
    }

    /// Whether threads can join the control group.
    ///
    /// # Errors
    /// It is none.
    pub fn check(&self) -> io::Result<()> {
        let Some(group) = &self.cgroup else { return Ok(()) };
        if ["cgroup.threads", "tasks"].iter().any(|file| group.join(file).exists()) {
            return Ok(());
        }
        let reason = format!("{} is no control group", group.display());
        Err(io::Error::new(io::ErrorKind::NotFound, reason))
    }

    /// Lets the calling thread join the control group.
    fn join(&self) -> io::Result<()> {
        let Some(group) = &self.cgroup else { return Ok(()) };
        let threads = group.join("cgroup.threads");
        let file = if threads.exists() { threads } else { group.join("tasks") };
        // 0 is whoever writes it.
        fs::write(&file, "0")
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", file.display())))
    }
}

/// The seam of real threads under a [`Throttle`]. Declared compute time (`Context::model`) is computed: a thread is busy until it has
/// used so much of a processor.
pub struct ThrottledSeam {
    threads: Arc<RealSeam>,
    throttle: Throttle,
    /// The bits of the share that holds.
    share: AtomicU64,
    read: Mutex<Option<Instant>>,
}

/// What a thread may use, and has used.
///
/// The system's clock of a thread's processor time is not to be trusted by the moment: on a machine whose host takes time away it
/// stands still and leaps, by ten milliseconds in no time at all, and at a share of 4 % such a leap is a pause of a quarter of a
/// second that nobody has worked for. So no more is charged than time has passed.
#[derive(Clone, Copy)]
struct Account {
    /// Since when it counts.
    since: Instant,
    /// What the thread has used of a processor since then.
    used: Duration,
    /// Both clocks when it was charged last.
    charged: Instant,
    cpu: Duration,
    looked: Instant,
}

thread_local! {
    static ACCOUNT: Cell<Option<Account>> = const { Cell::new(None) };
}

impl Account {
    fn new() -> Self {
        let now = Instant::now();
        Self { since: now, used: Duration::ZERO, charged: now, cpu: thread_cpu(), looked: now }
    }

    /// Takes note of the clocks, but of nothing computed since the last time: to fall asleep and to wake up is no computing.
    fn forgive(&mut self, cpu: Duration, now: Instant) {
        (self.cpu, self.charged) = (cpu, now);
    }

    /// Takes note of the clocks; returns what the thread has computed since the last time.
    fn charge(&mut self, cpu: Duration, now: Instant) -> Duration {
        let passed = now.saturating_duration_since(self.charged);
        let computed = cpu.saturating_sub(self.cpu).min(passed);
        (self.cpu, self.charged) = (cpu, now);
        self.used += computed;
        computed
    }

    /// Takes note of what a busy loop has computed since the last time: all that has passed but for interruptions. (By the thread's
    /// own clock it was 4 to 8 % less: what that stands still for it makes up for by leaps, which are not believed.)
    fn glance(&mut self, now: Instant) -> Duration {
        let computed = now.saturating_duration_since(self.charged).min(GLANCE_MOST);
        self.charged = now;
        self.used += computed;
        computed
    }

    /// How long the thread must rest by now. Longer pauses than it owed are forgotten but for a moment.
    fn owes(&mut self, share: f64, now: Instant) -> Duration {
        let cost = self.used.div_f64(share.max(SHARE_LEAST));
        let passed = now.saturating_duration_since(self.since);
        let owed = cost.saturating_sub(passed);
        if owed.is_zero() {
            // Paid: it counts from here on, less what it may catch up on.
            let credit = (passed - cost).min(CREDIT);
            (self.since, self.used) = (now.checked_sub(credit).unwrap_or(now), Duration::ZERO);
        }
        owed
    }

    /// The thread waited for work from `began` to `now`. That pays off what it owed, and earns it nothing.
    fn waited(&mut self, share: f64, began: Instant, now: Instant, cpu: Duration) {
        let owed = self.owes(share, began);
        let waited = now.saturating_duration_since(began);
        self.since += waited.saturating_sub(owed);
        self.forgive(cpu, now);
    }
}

impl ThrottledSeam {
    /// A seam without threads yet.
    pub fn new(throttle: Throttle) -> Arc<Self> {
        let share = AtomicU64::new(throttle.share.unwrap_or(1.0).to_bits());
        Arc::new(Self { threads: RealSeam::new(), throttle, share, read: Mutex::new(None) })
    }

    /// The share that holds now.
    fn share(&self, now: Instant) -> f64 {
        if let Some(file) = &self.throttle.share_file
            // Whoever finds it locked leaves it to the one who reads.
            && let Ok(mut read) = self.read.try_lock()
            && read.is_none_or(|read| now.saturating_duration_since(read) >= READ_EVERY)
        {
            *read = Some(now);
            // A file that is just being written is read the next time.
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
            // The group was there when the node began. Without it a job goes on, if faster than it should.
            if let Err(error) = throttle.join() {
                tracing::error!("a compute thread is under no quota: {error}");
            }
            body();
        });
        self.threads.start(thread, name, stack_bytes, body)
    }

    fn park(&self, thread: usize, timeout: Option<Duration>) {
        let Some(mut account) = ACCOUNT.get().filter(|_| self.rests()) else {
            return self.threads.park(thread, timeout);
        };
        let began = Instant::now();
        account.charge(thread_cpu(), began);
        self.threads.park(thread, timeout);
        let now = Instant::now();
        account.waited(self.share(now), began, now, thread_cpu());
        ACCOUNT.set(Some(account));
    }

    fn unpark(&self, thread: usize) {
        self.threads.unpark(thread);
    }

    fn pass(&self, thread: usize, time: Duration) {
        let mut account = ACCOUNT.get().unwrap_or_else(Account::new);
        account.charge(thread_cpu(), Instant::now());
        let mut computed = Duration::ZERO;
        while computed < time {
            for _ in 0..300 {
                std::hint::spin_loop();
            }
            computed += account.glance(Instant::now());
            ACCOUNT.set(Some(account));
            self.rest(thread, &|| false);
            account = ACCOUNT.get().unwrap_or(account);
        }
    }

    fn rests(&self) -> bool {
        self.throttle.share.is_some() || self.throttle.share_file.is_some()
    }

    fn rest(&self, _thread: usize, stop: &dyn Fn() -> bool) {
        if !self.rests() {
            return;
        }
        let mut account = ACCOUNT.get().unwrap_or_else(Account::new);
        let mut now = Instant::now();
        if now.saturating_duration_since(account.looked) >= LOOK_EVERY {
            account.looked = now;
            let share = self.share(now);
            if share < 1.0 {
                account.charge(thread_cpu(), now);
                loop {
                    let owed = account.owes(share, now);
                    if owed < NAP_LEAST || stop() {
                        break;
                    }
                    std::thread::sleep(owed.min(NAP_MOST));
                    now = Instant::now();
                    // Where the share is a thousandth of a core a nap may cost as much as it pays off.
                    account.forgive(thread_cpu(), now);
                }
            } else {
                account = Account::new();
            }
        }
        ACCOUNT.set(Some(account));
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

    fn account(began: Instant, cpu: Duration) -> Account {
        Account { since: began, used: Duration::ZERO, charged: began, cpu, looked: began }
    }

    #[test]
    fn what_is_owed_follows_from_the_share_and_pauses_are_forgotten() {
        let ms = Duration::from_millis;
        let began = Instant::now();
        let mut account = account(began, ms(100));
        // 10 ms at a tenth are worth 100 ms, of which 30 have passed.
        assert_eq!(account.charge(ms(110), began + ms(30)), ms(10));
        assert_eq!(account.owes(0.1, began + ms(30)), ms(70));
        assert_eq!(account.owes(0.1, began + ms(100)), Duration::ZERO);
        assert_eq!((account.since, account.used), (began + ms(100), ms(0)));
        // A second without work gives 50 ms of credit, no more.
        assert_eq!(account.owes(0.1, began + ms(1100)), Duration::ZERO);
        account.charge(ms(120), began + ms(1100));
        assert_eq!(account.owes(0.1, began + ms(1100)), ms(50));
        // A share of nothing is next to nothing, and no division by it.
        assert!(account.owes(0.0, began + ms(1100)) > ms(1000));
    }

    #[test]
    fn a_leap_of_the_processors_clock_is_not_charged() {
        let ms = Duration::from_millis;
        let began = Instant::now();
        let mut account = account(began, ms(100));
        // 3 of 13 ms can have been computed where 3 have passed.
        assert_eq!(account.charge(ms(113), began + ms(3)), ms(3));
        assert_eq!(account.owes(0.5, began + ms(3)), ms(3));
        // A clock that goes back is no debt, and what it then makes up for is charged as it passes.
        assert_eq!(account.charge(ms(110), began + ms(44)), ms(0));
        assert_eq!(account.charge(ms(111), began + ms(45)), ms(1));
    }

    #[test]
    fn a_busy_loop_computes_all_the_time_but_for_interruptions() {
        let us = Duration::from_micros;
        let began = Instant::now();
        let mut account = account(began, us(100));
        assert_eq!(account.glance(began + us(20)), us(20));
        assert_eq!(account.glance(began + us(60)), us(40));
        assert_eq!(account.glance(began + us(5000)), GLANCE_MOST);
        assert_eq!(account.used, us(60) + GLANCE_MOST);
        // What the thread's own clock says of that time is not charged once more.
        assert_eq!(account.charge(us(3000), began + us(5001)), us(1));
    }

    /// A node that waited 20 ms for a stolen task then computed two of them at the speed of the whole core: no wait for a distant
    /// cluster was to be seen, nor whom a node asked for work.
    #[test]
    fn who_waits_for_work_earns_nothing_by_it() {
        let ms = Duration::from_millis;
        let began = Instant::now();
        let mut account = account(began, ms(0));
        account.charge(ms(2), began + ms(2));
        // Of 20 ms it owes 18, and waits for 40: those 18 are paid.
        account.waited(0.1, began + ms(2), began + ms(42), ms(2));
        assert_eq!(account.owes(0.1, began + ms(42)), ms(0));
        account.charge(ms(3), began + ms(43));
        assert_eq!(account.owes(0.1, began + ms(43)), ms(9));
        // What it owed for longer than it waited it still owes, and what it was late before stands to its credit.
        account.waited(0.1, began + ms(43), began + ms(46), ms(3));
        assert_eq!(account.owes(0.1, began + ms(46)), ms(6));
        assert_eq!(account.owes(0.1, began + ms(62)), ms(0));
        account.waited(0.1, began + ms(62), began + ms(90), ms(3));
        account.charge(ms(5), began + ms(92));
        assert_eq!(account.owes(0.1, began + ms(92)), ms(8));
    }

    /// A scenario's loaded nodes with 0.12 % of a core never ended a task: each nap was charged as much as it paid off.
    #[test]
    fn a_nap_pays_off_debts_whatever_it_costs() {
        let ms = Duration::from_millis;
        let began = Instant::now();
        let mut account = account(began, ms(0));
        account.charge(ms(1), began + ms(1));
        let mut now = began + ms(1);
        for nap in 1..=20u32 {
            now += ms(50);
            account.forgive(ms(1) + nap * Duration::from_micros(100), now);
        }
        assert_eq!(account.owes(0.001, now), Duration::ZERO);
        assert_eq!(account.charge(ms(3) + ms(1), now + ms(1)), ms(1));
    }

    /// No more can have been computed than time has passed.
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
        let now = Instant::now() + READ_EVERY;
        fs::write(&file, "0.25\n").unwrap();
        assert!((seam.share(now) - 0.25).abs() < 1e-9);
        fs::write(&file, "nonsense").unwrap();
        assert!((seam.share(now + READ_EVERY) - 0.25).abs() < 1e-9);
    }

    #[test]
    fn a_thread_that_owes_much_stops_when_it_is_told_to() {
        let seam = ThrottledSeam::new(Throttle { share: Some(1e-4), ..Throttle::default() });
        let began = Instant::now();
        let day = Duration::from_secs(86_400);
        let looked = began.checked_sub(LOOK_EVERY).unwrap_or(began);
        ACCOUNT.set(Some(Account { looked, ..account(began, thread_cpu()) }));
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
        assert!(error.to_string().contains("is no control group"), "{error}");
    }
}
