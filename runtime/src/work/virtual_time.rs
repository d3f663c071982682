//! Compute threads under a paused clock: each is an OS thread that runs only while it has the baton.
//!
//! The executor hands the baton to one thread at a time and waits for it synchronously, so that virtual time cannot advance
//! while a task computes, and one seed gives one history. What a task computes takes no virtual time; what it declares by
//! `Context::model` does. Needs a current-thread runtime with a `LocalSet` (actix's) whose clock is paused.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::pool::Seam;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// The compute thread runs; the executor waits.
    Thread,
    /// The executor runs; the compute thread waits for this to happen.
    Executor(Wish),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    /// Not started yet.
    Start,
    /// `unpark`, or the time.
    Park(Option<Duration>),
    /// The time.
    Pass(Duration),
    /// Nothing: the thread has ended.
    Ended,
}

struct Thread {
    turn: Mutex<Turn>,
    changed: Condvar,
    unparked: Notify,
}

impl Thread {
    fn turn(&self) -> MutexGuard<'_, Turn> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// On the compute thread: gives the baton back and waits for it.
    fn wish(&self, wish: Wish) {
        let mut turn = self.turn();
        *turn = Turn::Executor(wish);
        self.changed.notify_all();
        if wish != Wish::Ended {
            while *turn != Turn::Thread {
                turn = self.changed.wait(turn).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// On the compute thread: waits for the baton for the first time.
    fn wait_for_start(&self) {
        let mut turn = self.turn();
        while *turn != Turn::Thread {
            turn = self.changed.wait(turn).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// On the executor's thread: hands the baton over and blocks until it comes back.
    fn run(&self) -> Wish {
        let mut turn = self.turn();
        *turn = Turn::Thread;
        self.changed.notify_all();
        loop {
            if let Turn::Executor(wish) = *turn {
                return wish;
            }
            turn = self.changed.wait(turn).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// How fast a modelled processor is: seconds of work in a second. It may change at any time, also while work is done.
#[derive(Clone, Debug)]
pub struct Pace(Arc<watch::Sender<f64>>);

impl Pace {
    /// So fast for now. What is no positive number is taken for a standstill.
    pub fn new(speed: f64) -> Self {
        Self(Arc::new(watch::channel(speed).0))
    }

    /// As fast as this from now on.
    pub fn set(&self, speed: f64) {
        self.0.send_replace(speed);
    }

    /// Seconds of work in a second.
    pub fn speed(&self) -> f64 {
        *self.0.borrow()
    }

    /// Lets so much work be done. What the clock's grain made it wait too long last time is `ahead`, in seconds of work.
    async fn work(&self, work: Duration, ahead: &mut f64) {
        let mut speeds = self.0.subscribe();
        let mut left = work.as_secs_f64() - *ahead;
        // Less is no time on any clock.
        while left > 1e-9 {
            let speed = *speeds.borrow_and_update();
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
            left -= began.elapsed().as_secs_f64() * speed.max(0.0);
        }
        *ahead = -left;
    }
}

/// The seam of compute threads in virtual time. One a pool.
pub struct VirtualSeam {
    threads: Mutex<Vec<Arc<Thread>>>,
    pace: Option<Pace>,
}

impl VirtualSeam {
    /// A seam without threads yet. Declared time passes as it is, rounded up to the clock's milliseconds.
    pub fn new() -> Arc<Self> {
        Arc::new(Self { threads: Mutex::default(), pace: None })
    }

    /// The same, but declared time is work that is done at this pace; how far the clock's grain let a thread lag is made
    /// good with its next work.
    pub fn paced(pace: Pace) -> Arc<Self> {
        Arc::new(Self { threads: Mutex::default(), pace: Some(pace) })
    }

    fn thread(&self, index: usize) -> Option<Arc<Thread>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).get(index).cloned()
    }
}

async fn drive(thread: Arc<Thread>, pace: Option<Pace>) {
    let mut ahead = 0.0;
    loop {
        match thread.run() {
            Wish::Ended => return,
            Wish::Start => {}
            Wish::Pass(time) => match &pace {
                None => tokio::time::sleep(time).await,
                Some(pace) => pace.work(time, &mut ahead).await,
            },
            Wish::Park(None) => thread.unparked.notified().await,
            Wish::Park(Some(timeout)) => {
                tokio::select! {
                    biased;
                    () = thread.unparked.notified() => {}
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
        name: String,
        stack_bytes: usize,
        body: Box<dyn FnOnce() + Send>,
    ) -> std::io::Result<()> {
        let thread = Arc::new(Thread {
            turn: Mutex::new(Turn::Executor(Wish::Start)),
            changed: Condvar::new(),
            unparked: Notify::new(),
        });
        let handle = tokio::runtime::Handle::current();
        let here = thread.clone();
        std::thread::Builder::new().name(name).stack_size(stack_bytes).spawn(move || {
            // The thread reads the executor's clock.
            let _entered = handle.enter();
            here.wait_for_start();
            body();
            here.wish(Wish::Ended);
        })?;
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread.clone());
        tokio::task::spawn_local(drive(thread, self.pace.clone()));
        Ok(())
    }

    fn park(&self, thread: usize, timeout: Option<Duration>) {
        if let Some(thread) = self.thread(thread) {
            thread.wish(Wish::Park(timeout));
        }
    }

    fn unpark(&self, thread: usize) {
        if let Some(thread) = self.thread(thread) {
            thread.unparked.notify_one();
        }
    }

    fn pass(&self, thread: usize, time: Duration) {
        if let Some(thread) = self.thread(thread) {
            thread.wish(Wish::Pass(time));
        }
    }

    fn join(&self) {
        // The drivers end with their threads; waiting for them here would stop the executor they run on.
    }
}
