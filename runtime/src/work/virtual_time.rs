//! Compute threads under a paused clock: each is a stack of its own on the executor's thread.
//!
//! The executor enters one of them at a time and goes on when it comes out, so that virtual time cannot advance while a task
//! computes, and one seed gives one history. What a task computes takes no virtual time; what it declares by
//! `Context::model` does. Needs a current-thread runtime with a `LocalSet` (actix's) whose clock is paused.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::core::fiber::{Fiber, Wish, suspend};
use super::pool::Seam;

/// How fast a modelled processor is: seconds of work in a second. It may change at any time, also while work is done.
#[derive(Clone, Debug)]
pub struct Pace(Arc<watch::Sender<Going>>);

#[derive(Clone, Copy, Debug)]
struct Going {
    speed: f64,
    /// How long it has stood still so far.
    stood: Duration,
}

impl Pace {
    /// So fast for now. What is no positive number is taken for a standstill.
    pub fn new(speed: f64) -> Self {
        Self(Arc::new(watch::channel(Going { speed, stood: Duration::ZERO }).0))
    }

    /// As fast as this from now on.
    pub fn set(&self, speed: f64) {
        self.0.send_modify(|going| going.speed = speed);
    }

    /// Those who work at this pace have stood still for so long until now: their executor did not run. Nothing was done
    /// meanwhile.
    pub fn stood(&self, time: Duration) {
        self.0.send_modify(|going| going.stood += time);
    }

    /// Seconds of work in a second.
    pub fn speed(&self) -> f64 {
        self.0.borrow().speed
    }

    /// Lets so much work be done. What the clock's grain made it wait too long last time is `ahead`, in seconds of work.
    async fn work(&self, work: Duration, ahead: &mut f64) {
        let mut speeds = self.0.subscribe();
        let mut left = work.as_secs_f64() - *ahead;
        // Less is no time on any clock.
        while left > 1e-9 {
            let Going { speed, stood } = *speeds.borrow_and_update();
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

/// The seam of compute threads in virtual time. One a pool.
pub struct VirtualSeam {
    /// Wakes each thread that is parked.
    unparked: Mutex<Vec<Arc<Notify>>>,
    pace: Option<Pace>,
}

impl VirtualSeam {
    /// A seam without threads yet. Declared time passes as it is, rounded up to the clock's milliseconds.
    pub fn new() -> Arc<Self> {
        Arc::new(Self { unparked: Mutex::default(), pace: None })
    }

    /// The same, but declared time is work that is done at this pace; how far the clock's grain let a thread lag is made
    /// good with its next work.
    pub fn paced(pace: Pace) -> Arc<Self> {
        Arc::new(Self { unparked: Mutex::default(), pace: Some(pace) })
    }
}

async fn drive(mut fiber: Fiber, unparked: Arc<Notify>, pace: Option<Pace>) {
    let mut ahead = 0.0;
    while let Some(wish) = fiber.resume() {
        match wish {
            Wish::Pass(time) => match &pace {
                None => tokio::time::sleep(time).await,
                Some(pace) => pace.work(time, &mut ahead).await,
            },
            Wish::Park(None) => unparked.notified().await,
            Wish::Park(Some(timeout)) => {
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
    /// Called on the executor's thread, inside its `LocalSet`.
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
        suspend(Wish::Park(timeout));
    }

    fn unpark(&self, thread: usize) {
        let unparked = self.unparked.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(unparked) = unparked.get(thread) {
            unparked.notify_one();
        }
    }

    fn pass(&self, _thread: usize, time: Duration) {
        suspend(Wish::Pass(time));
    }

    fn join(&self) {
        // The drivers end with their threads; waiting for them here would stop the executor they run on.
    }
}
