//! Compute threads under a paused clock: each has a stack of its own on the executor's thread.
//!
//! The executor enters one of them at a time and continues when that one suspends. So virtual time
//! cannot advance while a task computes, and one seed gives one history. Computing takes no virtual
//! time; time declared by `Context::spend_modelled_time` does.
//!
//! It needs a current-thread runtime with a `LocalSet` (actix's) whose clock is paused.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use springtide_forkjoin::layer::{Fiber, Suspension, suspend};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::pool::Seam;

/// The speed of a modelled processor: seconds of work in a second. It may change at any time, also
/// during work.
#[derive(Clone, Debug)]
pub struct ProcessorSpeed(Arc<watch::Sender<PaceState>>);

#[derive(Clone, Copy, Debug)]
struct PaceState {
    speed: f64,
    /// The total time for which its executor did not run.
    stood: Duration,
}

impl ProcessorSpeed {
    /// A pace with this speed. A speed that is not a positive number means a standstill.
    pub fn new(speed: f64) -> Self {
        Self(Arc::new(watch::channel(PaceState { speed, stood: Duration::ZERO }).0))
    }

    /// Sets the speed from now on.
    pub fn set(&self, speed: f64) {
        self.0.send_modify(|state| state.speed = speed);
    }

    /// Records that the executor did not run for this time, so no work was done.
    pub fn add_standstill(&self, time: Duration) {
        self.0.send_modify(|state| state.stood += time);
    }

    /// The speed: seconds of work in a second.
    pub fn speed(&self) -> f64 {
        self.0.borrow().speed
    }

    /// Waits until this work is done. `ahead` is the excess of the last wait due to the clock's
    /// resolution, in seconds of work.
    async fn work(&self, work: Duration, ahead: &mut f64) {
        let mut speeds = self.0.subscribe();
        let mut left = work.as_secs_f64() - *ahead;
        // A smaller rest is below the resolution of any clock.
        while left > 1e-9 {
            let PaceState { speed, stood } = *speeds.borrow_and_update();
            let began = Instant::now();
            let takes = Duration::try_from_secs_f64(left / speed).ok().filter(|_| speed > 0.0);
            tokio::select! {
                biased;
                _ = speeds.changed() => {}
                () = async {
                    match takes {
                        Some(takes) => tokio::time::sleep(takes).await,
                        None => std::future::pending().await,
                    }
                } => {}
            }
            let stood = speeds.borrow().stood.saturating_sub(stood);
            left -= began.elapsed().saturating_sub(stood).as_secs_f64() * speed.max(0.0);
        }
        *ahead = -left;
    }
}

/// The seam of compute threads in virtual time, one per pool.
pub struct VirtualSeam {
    /// The notifiers that wake parked threads, by thread.
    unparked: Mutex<Vec<Arc<Notify>>>,
    pace: Option<ProcessorSpeed>,
    start: Instant,
}

impl VirtualSeam {
    /// Creates a seam without threads. Declared time passes as it is, rounded up to the clock's
    /// milliseconds.
    pub fn new() -> Arc<Self> {
        Arc::new(Self { unparked: Mutex::default(), pace: None, start: Instant::now() })
    }

    /// Creates a seam in which declared time is work at this pace. Delays due to the clock's
    /// resolution are subtracted from the thread's next work.
    pub fn paced(pace: ProcessorSpeed) -> Arc<Self> {
        Arc::new(Self { unparked: Mutex::default(), pace: Some(pace), start: Instant::now() })
    }
}

async fn drive(mut fiber: Fiber, unparked: Arc<Notify>, pace: Option<ProcessorSpeed>) {
    let mut ahead = 0.0;
    while let Some(suspension) = fiber.resume() {
        match suspension {
            Suspension::Pass(time) => match &pace {
                None => tokio::time::sleep(time).await,
                Some(pace) => pace.work(time, &mut ahead).await,
            },
            Suspension::Park(None) => unparked.notified().await,
            Suspension::Park(Some(timeout)) => {
                tokio::select! {
                    biased;
                    () = unparked.notified() => {}
                    () = tokio::time::sleep(timeout) => {}
                }
            }
        }
    }
}

impl Seam for VirtualSeam {
    /// Starts a thread; the caller is on the executor's thread, inside its `LocalSet`.
    fn start(
        &self,
        _thread: usize,
        _name: String,
        stack_bytes: usize,
        body: Box<dyn FnOnce() + Send>,
    ) -> std::io::Result<()> {
        let fiber = Fiber::new(stack_bytes, body)?;
        let unparked = Arc::new(Notify::new());
        self.unparked.lock().unwrap_or_else(PoisonError::into_inner).push(unparked.clone());
        tokio::task::spawn_local(drive(fiber, unparked, self.pace.clone()));
        Ok(())
    }

    fn park(&self, _thread: usize, timeout: Option<Duration>) {
        suspend(Suspension::Park(timeout));
    }

    fn unpark(&self, thread: usize) {
        let unparked = self.unparked.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(unparked) = unparked.get(thread) {
            unparked.notify_one();
        }
    }

    fn pass(&self, _thread: usize, time: Duration) {
        suspend(Suspension::Pass(time));
    }

    fn now(&self) -> Duration {
        Instant::now().saturating_duration_since(self.start)
    }

    fn join(&self) {
        // The drivers end with their threads; to wait for them here would stop their executor.
    }
}
