//! The protocol by which threads fall asleep and are woken.
//!
//! A thread announces that it sleeps and then looks for work once more; a thread that has work
//! publishes it and then looks for sleepers. With a fence between the two steps on each side, one
//! of the two sees the other. The announcement is a bit of the word that every join reads, so a
//! join pays nothing for it.

use std::sync::Arc;
use std::time::Duration;

use super::fence::Fences;
use super::sync::{AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering, fence, lock, spin_loop};
use crate::seam::Seam;

/// The signal for a thread that sleeps, or a remote thief that waits, and must be notified of new
/// work. Other bits are the layer's.
pub const WANTED: u32 = 1;

#[derive(Default)]
struct Sleepers {
    threads: Vec<u32>,
    remote: bool,
}

#[repr(align(128))]
struct Signals(AtomicU32);

#[repr(align(128))]
struct SleepingThread {
    asleep: AtomicBool,
    /// The time of a wake-up for work, in microseconds of the seam's clock, plus one; 0 for none.
    called_us: AtomicU64,
}

/// The sleeping threads of a pool.
pub(crate) struct Sleep {
    signals: Signals,
    fences: Fences,
    sleepers: Mutex<Sleepers>,
    threads: Box<[SleepingThread]>,
    seam: Arc<dyn Seam>,
}

impl Sleep {
    pub(crate) fn new(threads: usize, fences: Fences, seam: Arc<dyn Seam>, signals: u32) -> Self {
        let thread =
            |_| SleepingThread { asleep: AtomicBool::new(false), called_us: AtomicU64::new(0) };
        Self {
            signals: Signals(AtomicU32::new(signals)),
            fences,
            sleepers: Mutex::new(Sleepers::default()),
            threads: (0..threads).map(thread).collect(),
            seam,
        }
    }

    /// The word that joins read once: nonzero if anything needs handling.
    #[inline(always)]
    pub(crate) fn signals(&self) -> &AtomicU32 {
        &self.signals.0
    }

    #[inline(always)]
    fn is_wanted(&self) -> bool {
        self.signals.0.load(Ordering::Relaxed) & WANTED != 0
    }

    pub(crate) fn seam(&self) -> &Arc<dyn Seam> {
        &self.seam
    }

    /// Puts a thread to sleep until it is woken, unless `ready` holds. With `any_work` the thread
    /// also wakes for any work, and stays awake while `is_work` holds. May return early.
    ///
    /// Returns the time from a wake-up for work until the thread ran.
    pub(crate) fn sleep(
        &self,
        thread: u32,
        timeout: Option<Duration>,
        any_work: bool,
        ready: impl Fn() -> bool,
        is_work: impl Fn() -> bool,
    ) -> Option<Duration> {
        let me = &self.threads[thread as usize];
        if any_work {
            lock(&self.sleepers).threads.push(thread);
            self.signals.0.fetch_or(WANTED, Ordering::SeqCst);
        }
        me.asleep.store(true, Ordering::SeqCst);
        // Pairs with the light fence between a push and its read of the signals. It also pairs with
        // the store of a final state and the waker's read of `asleep`, both sequentially
        // consistent.
        self.fences.heavy();
        fence(Ordering::SeqCst);
        let mut delay = None;
        let stays_awake = ready() || any_work && is_work();
        if stays_awake {
            spin_loop();
        } else {
            self.seam.park(thread as usize, timeout);
            let called_us = me.called_us.swap(0, Ordering::Relaxed);
            if called_us > 0 {
                let now_us = self.now_us() + 1;
                delay = Some(Duration::from_micros(now_us.saturating_sub(called_us)));
            }
        }
        me.asleep.store(false, Ordering::SeqCst);
        if any_work {
            let mut sleepers = lock(&self.sleepers);
            sleepers.threads.retain(|other| *other != thread);
            self.clear_wanted(&sleepers);
        }
        delay
    }

    fn now_us(&self) -> u64 {
        self.seam.now().as_micros() as u64
    }

    fn clear_wanted(&self, sleepers: &Sleepers) {
        if sleepers.threads.is_empty() && !sleepers.remote {
            self.signals.0.fetch_and(!WANTED, Ordering::SeqCst);
        }
    }

    /// Wakes one sleeper that has not `seen` the work. If there is none, returns whether thieves
    /// outside the pool wait for work; they then wait no more.
    #[cold]
    pub(crate) fn notify(&self, seen: impl Fn(u32) -> bool) -> bool {
        let mut sleepers = lock(&self.sleepers);
        if let Some(at) = sleepers.threads.iter().rposition(|thread| !seen(*thread)) {
            let thread = sleepers.threads.remove(at);
            self.clear_wanted(&sleepers);
            drop(sleepers);
            self.call(thread);
            return false;
        }
        let remote = std::mem::take(&mut sleepers.remote);
        if remote {
            self.clear_wanted(&sleepers);
        }
        remote
    }

    /// Wakes one sleeper, if there is any, after work was put into the injector.
    pub(crate) fn notify_injected(&self) {
        fence(Ordering::SeqCst);
        if self.is_wanted() {
            let thread = lock(&self.sleepers).threads.pop();
            if let Some(thread) = thread {
                self.call(thread);
            }
        }
    }

    /// As [`Sleep::notify`], if any thread sleeps.
    pub(crate) fn notify_if_wanted(&self, seen: impl Fn(u32) -> bool) -> bool {
        self.is_wanted() && self.notify(seen)
    }

    /// Wakes a sleeping thread because there is work.
    fn call(&self, thread: u32) {
        let now_us = self.now_us() + 1;
        self.threads[thread as usize].called_us.store(now_us, Ordering::Relaxed);
        self.seam.unpark(thread as usize);
    }

    /// Requests that a later [`Sleep::notify`] returns true. Returns true, without a later one, if
    /// `is_work` holds.
    pub(crate) fn request_remote_notice(&self, is_work: impl FnOnce() -> bool) -> bool {
        {
            let mut sleepers = lock(&self.sleepers);
            sleepers.remote = true;
            self.signals.0.fetch_or(WANTED, Ordering::SeqCst);
        }
        self.fences.heavy();
        let there = is_work();
        if there {
            let mut sleepers = lock(&self.sleepers);
            sleepers.remote = false;
            self.clear_wanted(&sleepers);
        }
        there
    }

    /// Wakes a thread after the state of one of its slots became final, if it sleeps.
    pub(crate) fn wake(&self, thread: u32) {
        // Between the caller's store of the state and this read: pairs with the fence in `sleep`.
        fence(Ordering::SeqCst);
        if self.threads[thread as usize].asleep.load(Ordering::SeqCst) {
            self.seam.unpark(thread as usize);
        }
    }

    pub(crate) fn wake_all(&self) {
        for thread in 0..self.threads.len() {
            self.seam.unpark(thread);
        }
    }
}
