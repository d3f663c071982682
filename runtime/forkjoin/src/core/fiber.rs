//! A compute thread of virtual time: a stack of its own on the executor's thread, entered and left
//! like a call.
//!
//! It knows neither time nor tasks. The crate corosensei switches the stacks; this module lets code
//! deep in a fiber suspend it.

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::ptr;
use std::rc::Rc;
use std::time::Duration;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};

/// The condition on which a suspended fiber resumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suspension {
    /// An `unpark`, or the end of the timeout.
    Park(Option<Duration>),
    /// The end of the time.
    Pass(Duration),
}

type YielderPointer = *const Yielder<(), Suspension>;

thread_local! {
    /// The yielder of the innermost fiber that runs on this thread; null for none.
    static CURRENT: Cell<YielderPointer> = const { Cell::new(ptr::null()) };
}

/// Restores the yielder of the enclosing fiber, also after a panic.
struct RestoreGuard(YielderPointer);

impl Drop for RestoreGuard {
    fn drop(&mut self) {
        CURRENT.set(self.0);
    }
}

/// A function with a stack of its own.
pub struct Fiber {
    coroutine: ManuallyDrop<Coroutine<(), Suspension, ()>>,
    /// The fiber's yielder; null until it has started.
    yielder: Rc<Cell<YielderPointer>>,
}

impl Fiber {
    /// Creates a fiber that has not started.
    ///
    /// # Errors
    /// The system provides no stack of that size.
    pub fn new(stack_bytes: usize, body: impl FnOnce() + 'static) -> std::io::Result<Self> {
        let stack = DefaultStack::new(stack_bytes)?;
        let yielder = Rc::new(Cell::new(ptr::null()));
        let shared = yielder.clone();
        let coroutine =
            Coroutine::with_stack(stack, move |yielder: &Yielder<(), Suspension>, ()| {
                shared.set(yielder);
                CURRENT.set(yielder);
                body();
            });
        Ok(Self { coroutine: ManuallyDrop::new(coroutine), yielder })
    }

    /// Runs the fiber until it suspends itself; `None` at its end.
    ///
    /// # Panics
    /// If its function panics, or if it has ended.
    pub fn resume(&mut self) -> Option<Suspension> {
        let _restore = RestoreGuard(CURRENT.replace(self.yielder.get()));
        match self.coroutine.resume(()) {
            CoroutineResult::Yield(suspension) => Some(suspension),
            CoroutineResult::Return(()) => None,
        }
    }
}

impl Drop for Fiber {
    /// Leaks the stack of an unfinished fiber. Others may point into it, and unwinding it would run
    /// users' code in a runtime that shuts down.
    fn drop(&mut self) {
        if !self.coroutine.started() || self.coroutine.done() {
            // SAFETY: only this statement drops the coroutine, and it is not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.coroutine) }
        }
    }
}

/// Suspends the calling fiber and returns when it is resumed.
///
/// # Panics
/// If the caller runs in no fiber.
pub fn suspend(suspension: Suspension) {
    let yielder = CURRENT.get();
    assert!(!yielder.is_null(), "only a compute thread of virtual time can wait in it");
    // SAFETY: a yielder that is not null belongs to the innermost fiber on this thread. `resume`
    // sets it before it enters the fiber (the first time the fiber itself does) and restores the
    // enclosing one afterwards. So this call runs on that fiber's stack, where the yielder lives
    // until the fiber's function returns.
    unsafe { (*yielder).suspend(suspension) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fibers_take_turns_and_one_runs_inside_another() {
        let log = Rc::new(Cell::new(0));
        let append = |by: u32| {
            let log = log.clone();
            move || log.set(log.get() * 10 + by)
        };
        let (one, two, three) = (append(1), append(2), append(3));
        let mut inner = Fiber::new(1 << 16, move || {
            one();
            suspend(Suspension::Park(None));
            one();
        })
        .unwrap();
        let mut outer = Fiber::new(1 << 16, move || {
            two();
            assert_eq!(inner.resume(), Some(Suspension::Park(None)));
            suspend(Suspension::Pass(Duration::from_secs(1)));
            three();
            assert_eq!(inner.resume(), None);
        })
        .unwrap();
        assert_eq!(outer.resume(), Some(Suspension::Pass(Duration::from_secs(1))));
        assert_eq!(log.get(), 21);
        assert_eq!(outer.resume(), None);
        assert_eq!(log.get(), 2131);
    }

    #[test]
    fn a_panic_propagates_and_clears_the_yielder() {
        let mut fiber = Fiber::new(1 << 16, || panic!("as expected")).unwrap();
        let end = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| fiber.resume()));
        assert!(end.is_err());
        let outside = std::panic::catch_unwind(|| suspend(Suspension::Park(None)));
        assert!(outside.is_err(), "there is no fiber here");
    }

    #[test]
    fn the_stack_of_an_unfinished_fiber_is_leaked() {
        let held = Rc::new(());
        let here = held.clone();
        let mut fiber = Fiber::new(1 << 16, move || {
            let _here = here;
            suspend(Suspension::Park(None));
        })
        .unwrap();
        fiber.resume();
        drop(fiber);
        assert_eq!(Rc::strong_count(&held), 2);
        drop(Fiber::new(1 << 16, || unreachable!()).unwrap());
    }
}
