//! The dispatcher of an in-memory network: it advances the time, and executes each instant with its
//! consequences before the next.
//!
//! This module does not know the traffic of the network.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, Once, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// A network as a state machine.
pub(super) trait Simulation: Send + 'static {
    /// A call to a user of the network, outside the state machine.
    type Call;

    /// The time of the next event.
    fn next_at(&self) -> Option<Duration>;

    /// Processes the events of the next instant, if it is not after `limit`.
    fn step(&mut self, limit: Duration) -> Vec<Self::Call>;

    /// Executes a call to a user, while the network is not locked.
    fn execute(call: Self::Call);
}

/// A simulated network with its dispatcher.
pub(super) struct Dispatcher<W> {
    simulation: Mutex<W>,
    /// Signals that the next event is earlier than the dispatcher knows.
    changed: Arc<Notify>,
    pub(super) start: Instant,
    dispatching: Once,
}

impl<W: Simulation> Dispatcher<W> {
    pub(super) fn new(simulation: W) -> Arc<Self> {
        Arc::new(Self {
            simulation: Mutex::new(simulation),
            changed: Arc::new(Notify::new()),
            start: Instant::now(),
            dispatching: Once::new(),
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, W> {
        self.simulation.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Changes the network, and wakes the dispatcher if the next event is earlier afterwards.
    pub(super) fn with<R>(&self, change: impl FnOnce(&mut W, Duration) -> R) -> R {
        let mut simulation = self.lock();
        let before = simulation.next_at();
        let result = change(&mut simulation, self.start.elapsed());
        let after = simulation.next_at();
        drop(simulation);
        if after != before {
            self.changed.notify_one();
        }
        result
    }

    /// Starts the dispatcher unless it runs. Call it inside a tokio runtime.
    pub(super) fn start_dispatching(self: &Arc<Self>) {
        self.dispatching.call_once(|| {
            let dispatcher = Arc::downgrade(self);
            tokio::spawn(Self::dispatch(dispatcher, Arc::clone(&self.changed)));
        });
    }

    /// Processes the events of the next instant. Returns a future that completes at the next event;
    /// `None` if one is due now.
    fn tick(&self) -> Option<Pin<Box<dyn Future<Output = ()> + Send>>> {
        // Whole milliseconds: see the documentation of `memory`.
        let millis = self.start.elapsed().as_millis() as u64;
        let limit = Duration::from_millis(millis + 1) - Duration::from_nanos(1);
        let (calls, next) = {
            let mut simulation = self.lock();
            (simulation.step(limit), simulation.next_at())
        };
        calls.into_iter().for_each(W::execute);
        match next {
            Some(next) if next <= limit => None,
            Some(next) => {
                let at = self.start + Duration::from_millis(next.as_millis() as u64);
                Some(Box::pin(sleep_until(at)))
            }
            None => Some(Box::pin(std::future::pending())),
        }
    }

    /// Runs the dispatcher as long as the network exists.
    async fn dispatch(dispatcher: Weak<Self>, changed: Arc<Notify>) {
        while let Some(next_event) = dispatcher.upgrade().map(|dispatcher| dispatcher.tick()) {
            match next_event {
                // Lets all tasks run that are ready: what they send counts from this instant.
                None => tokio::task::yield_now().await,
                Some(next_event) => tokio::select! {
                    biased;
                    () = changed.notified() => {}
                    () = next_event => {}
                },
            }
        }
    }
}

impl<W> Drop for Dispatcher<W> {
    fn drop(&mut self) {
        self.changed.notify_one(); // ends the dispatcher
    }
}
