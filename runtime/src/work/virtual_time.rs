//! Compute threads under a paused clock: each is an OS thread that runs only while it has the baton.
//!
//! The executor hands the baton to one thread at a time and waits for it synchronously, so that virtual time cannot advance
//! while a task computes, and one seed gives one history. What a task computes takes no virtual time; what it declares by
//! `Context::model` does. Needs a current-thread runtime with a `LocalSet` (actix's) whose clock is paused.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

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

/// The seam of compute threads in virtual time. One a pool.
#[derive(Default)]
pub struct VirtualSeam {
    threads: Mutex<Vec<Arc<Thread>>>,
}

impl VirtualSeam {
    /// A seam without threads yet.
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    fn thread(&self, index: usize) -> Option<Arc<Thread>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).get(index).cloned()
    }
}

async fn drive(thread: Arc<Thread>) {
    loop {
        match thread.run() {
            Wish::Ended => return,
            Wish::Start => {}
            Wish::Pass(time) => tokio::time::sleep(time).await,
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
        tokio::task::spawn_local(drive(thread));
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
