//! A process that can stand still: an executor of its own for all its tasks, which is not run while its gate is shut.
//!
//! So its timers stand with it, as with a process that was sent `SIGSTOP`: what was due meanwhile is found due, all at once, when
//! it goes on. Must not know what runs in it; its network is stopped elsewhere.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Poll, Waker};

use std::rc::Rc;

use tokio::task::LocalSet;

/// Lets a process run, or stand still.
#[derive(Default)]
pub(crate) struct Gate {
    shut: Cell<bool>,
    waits: RefCell<Option<Waker>>,
}

impl Gate {
    /// It stands still from now on.
    pub(crate) fn shut(&self) {
        self.shut.set(true);
    }

    /// It goes on.
    pub(crate) fn open(&self) {
        self.shut.set(false);
        if let Some(waiting) = self.waits.borrow_mut().take() {
            waiting.wake();
        }
    }
}

/// Runs all tasks of a process to their ends, but for the times when its gate is shut.
pub(crate) async fn run(mut tasks: LocalSet, gate: Rc<Gate>) {
    poll_fn(|cx| {
        if gate.shut.get() {
            *gate.waits.borrow_mut() = Some(cx.waker().clone());
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
    fn a_process_that_stands_still_finds_its_timers_due_when_it_goes_on() {
        crate::simulate(|| async {
            let (tasks, gate) = (LocalSet::new(), Rc::new(Gate::default()));
            let began = Instant::now();
            let told = Rc::new(RefCell::new(Vec::new()));
            let inside = tasks.enter();
            for after in [1, 3, 5, 9] {
                let told = told.clone();
                actix_rt::spawn(async move {
                    sleep(Duration::from_secs(after)).await;
                    told.borrow_mut().push(began.elapsed().as_secs());
                });
            }
            drop(inside);
            let process = actix_rt::spawn(run(tasks, gate.clone()));
            sleep(Duration::from_secs(2)).await;
            gate.shut();
            sleep(Duration::from_secs(5)).await;
            gate.open();
            process.await.expect("no panic");
            assert_eq!(*told.borrow(), [1, 7, 7, 9]);
        });
    }
}
