//! The place where compute threads start and block.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::core::precedence::use_long_slices;

/// The place where compute threads start and block. Real threads park; under virtual time the
/// executor runs.
pub trait Seam: Send + Sync {
    /// Starts a compute thread that runs `body`; `stack_bytes` is its stack's size.
    ///
    /// # Errors
    /// The system provides no thread.
    fn start(
        &self,
        thread: usize,
        name: String,
        stack_bytes: usize,
        body: Box<dyn FnOnce() + Send>,
    ) -> std::io::Result<()>;

    /// Blocks compute thread `thread`, the caller, until its `unpark` (also an earlier one) or the
    /// timeout. May return early.
    fn park(&self, thread: usize, timeout: Option<Duration>);

    /// Wakes `thread`, or lets its next `park` return at once.
    fn unpark(&self, thread: usize);

    /// Spends modelled compute time on compute thread `thread`, the caller; `unpark` does not end
    /// it.
    fn pass(&self, thread: usize, time: Duration);

    /// Waits until all threads have ended. The caller is not a compute thread.
    fn join(&self);

    /// The time on the seam's clock, since any fixed moment.
    fn now(&self) -> Duration {
        static START: OnceLock<Instant> = OnceLock::new();
        START.get_or_init(Instant::now).elapsed()
    }

    /// Whether compute threads have to [rest](Self::rest).
    fn rests(&self) -> bool {
        false
    }

    /// Pauses compute thread `thread`, the caller, between tasks and at joins. It may block for a
    /// while, unless `stop` holds.
    fn rest(&self, _thread: usize, _stop: &dyn Fn() -> bool) {}

    /// Whether computing takes time on the clock. Only then can times be measured.
    fn is_real(&self) -> bool {
        false
    }
}

/// The seam of real threads, which park.
#[derive(Default)]
pub struct RealSeam {
    threads: Mutex<Vec<std::thread::JoinHandle<()>>>,
}

impl RealSeam {
    /// Creates a seam without threads.
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    fn threads(&self) -> MutexGuard<'_, Vec<std::thread::JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seam for RealSeam {
    fn start(
        &self,
        _thread: usize,
        name: String,
        stack_bytes: usize,
        body: Box<dyn FnOnce() + Send>,
    ) -> std::io::Result<()> {
        let body = move || {
            use_long_slices();
            body();
        };
        let thread = std::thread::Builder::new().name(name).stack_size(stack_bytes).spawn(body)?;
        self.threads().push(thread);
        Ok(())
    }

    fn park(&self, _thread: usize, timeout: Option<Duration>) {
        match timeout {
            Some(timeout) => std::thread::park_timeout(timeout),
            None => std::thread::park(),
        }
    }

    fn unpark(&self, thread: usize) {
        if let Some(thread) = self.threads().get(thread) {
            thread.thread().unpark();
        }
    }

    fn pass(&self, _thread: usize, time: Duration) {
        std::thread::sleep(time);
    }

    fn is_real(&self) -> bool {
        true
    }

    fn join(&self) {
        let threads = std::mem::take(&mut *self.threads());
        for thread in threads {
            // A compute thread catches panics of users' code, so an error is the runtime's own
            // panic, which the panic message on stderr has reported.
            drop(thread.join());
        }
    }
}
