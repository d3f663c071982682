//! What tells an in-memory network the time, and lets each instant have its consequences before the next.
//!
//! Must not know what the network carries.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, Once, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// A network as a state machine.
pub(super) trait World: Send + 'static {
    /// Something to be done outside of it.
    type Call;

    /// When something is due next.
    fn next_at(&self) -> Option<Duration>;

    /// Handles the events of the next instant, if it is not after `limit`.
    fn step(&mut self, limit: Duration) -> Vec<Self::Call>;

    /// Does what is to be done outside. Nothing of the network is locked meanwhile.
    fn make(call: Self::Call);
}

/// A network and its clock.
pub(super) struct Clockwork<W> {
    world: Mutex<W>,
    /// Something became due earlier than the dispatcher knows.
    changed: Arc<Notify>,
    pub(super) start: Instant,
    dispatching: Once,
}

impl<W: World> Clockwork<W> {
    pub(super) fn new(world: W) -> Arc<Self> {
        Arc::new(Self {
            world: Mutex::new(world),
            changed: Arc::new(Notify::new()),
            start: Instant::now(),
            dispatching: Once::new(),
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, W> {
        self.world.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Changes the network, and wakes the dispatcher when something became due earlier.
    pub(super) fn with<R>(&self, change: impl FnOnce(&mut W, Duration) -> R) -> R {
        let mut world = self.lock();
        let before = world.next_at();
        let result = change(&mut world, self.start.elapsed());
        let after = world.next_at();
        drop(world);
        if after != before {
            self.changed.notify_one();
        }
        result
    }

    /// Begins to tell the time, if nobody has before. Inside tokio's context.
    pub(super) fn go(self: &Arc<Self>) {
        self.dispatching.call_once(|| {
            let clockwork = Arc::downgrade(self);
            tokio::spawn(Self::dispatch(clockwork, Arc::clone(&self.changed)));
        });
    }

    /// Handles what is due at the next instant. Returns when there is more to do: `None` for at once.
    fn tick(&self) -> Option<Pin<Box<dyn Future<Output = ()> + Send>>> {
        // Whole milliseconds: see the head of `memory`.
        let millis = self.start.elapsed().as_millis() as u64;
        let limit = Duration::from_millis(millis + 1) - Duration::from_nanos(1);
        let (calls, next) = {
            let mut world = self.lock();
            (world.step(limit), world.next_at())
        };
        calls.into_iter().for_each(W::make);
        match next {
            Some(next) if next <= limit => None,
            Some(next) => {
                let at = self.start + Duration::from_millis(next.as_millis() as u64);
                Some(Box::pin(sleep_until(at)))
            }
            None => Some(Box::pin(std::future::pending())),
        }
    }

    /// Tells the time for as long as somebody holds the network.
    async fn dispatch(clockwork: Weak<Self>, changed: Arc<Notify>) {
        while let Some(due) = clockwork.upgrade().map(|clockwork| clockwork.tick()) {
            match due {
                // Lets everything that can run do so: what it sends counts from this instant.
                None => tokio::task::yield_now().await,
                Some(due) => tokio::select! {
                    biased;
                    () = changed.notified() => {}
                    () = due => {}
                },
            }
        }
    }
}

impl<W> Drop for Clockwork<W> {
    fn drop(&mut self) {
        self.changed.notify_one(); // so that the dispatcher ends
    }
}
