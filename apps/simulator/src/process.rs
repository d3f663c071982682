//! A process that can stop, as by `SIGSTOP`: an executor of its own for its tasks, which does not
//! run while its gate is shut.
//!
//! Its timers stop with it. All timers that expire meanwhile fire at once when the process
//! continues. This module depends on neither the process's tasks nor its network, which the caller
//! stops.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Poll, Waker};

use std::rc::Rc;

use tokio::task::LocalSet;

/// Stops and continues a process.
#[derive(Default)]
pub(crate) struct Gate {
    shut: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Gate {
    /// Stops the process.
    pub(crate) fn shut(&self) {
        self.shut.set(true);
    }

    /// Continues the process.
    pub(crate) fn open(&self) {
        self.shut.set(false);
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }
}

/// Runs all tasks of a process to their ends, except while its gate is shut.
pub(crate) async fn run(mut tasks: LocalSet, gate: Rc<Gate>) {
    poll_fn(|cx| {
        if gate.shut.get() {
            *gate.waker.borrow_mut() = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Pin::new(&mut tasks).poll(cx)
    })
    .await;
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::{Instant, sleep};

    use super::*;

    #[test]
    fn timers_of_a_stopped_process_fire_when_it_continues() {
        crate::simulate(|| async {
            let (tasks, gate) = (LocalSet::new(), Rc::new(Gate::default()));
            let start = Instant::now();
            let fired = Rc::new(RefCell::new(Vec::new()));
            let inside = tasks.enter();
            for after in [1, 3, 5, 9] {
                let fired = fired.clone();
                actix_rt::spawn(async move {
                    sleep(Duration::from_secs(after)).await;
                    fired.borrow_mut().push(start.elapsed().as_secs());
                });
            }
            drop(inside);
            let process = actix_rt::spawn(run(tasks, gate.clone()));
            sleep(Duration::from_secs(2)).await;
            gate.shut();
            sleep(Duration::from_secs(5)).await;
            gate.open();
            process.await.expect("no panic");
            assert_eq!(*fired.borrow(), [1, 7, 7, 9]);
        });
    }
}
