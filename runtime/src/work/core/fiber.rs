//! A compute thread of virtual time: its own stack on the executor's thread, entered and left like a call.
//!
//! Knows nothing of time or of tasks. The switch of stacks is corosensei's; what is here is how code deep in a fiber finds its
//! way out.

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::ptr;
use std::rc::Rc;
use std::time::Duration;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};

/// What a fiber waits for when it gives its thread back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// `unpark`, or the time.
    Park(Option<Duration>),
    /// The time.
    Pass(Duration),
}

type Way = *const Yielder<(), Wish>;

thread_local! {
    /// The way out of the innermost fiber that runs on this thread; null where none does.
    static OUT: Cell<Way> = const { Cell::new(ptr::null()) };
}

/// Puts the way out of the fiber outside back, also when the one inside panics.
struct Outside(Way);

impl Drop for Outside {
    fn drop(&mut self) {
        OUT.set(self.0);
    }
}

/// A function with a stack of its own.
pub(crate) struct Fiber {
    coroutine: ManuallyDrop<Coroutine<(), Wish, ()>>,
    /// Null until it has begun.
    out: Rc<Cell<Way>>,
}

impl Fiber {
    /// A function that has not begun.
    ///
    /// # Errors
    /// If the system gives no stack of that size.
    pub(crate) fn new(stack_bytes: usize, body: impl FnOnce() + 'static) -> std::io::Result<Self> {
        let stack = DefaultStack::new(stack_bytes)?;
        let out = Rc::new(Cell::new(ptr::null()));
        let own = out.clone();
        let coroutine = Coroutine::with_stack(stack, move |yielder: &Yielder<(), Wish>, ()| {
            own.set(yielder);
            OUT.set(yielder);
            body();
        });
        Ok(Self { coroutine: ManuallyDrop::new(coroutine), out })
    }

    /// Runs it until it suspends itself, or to its end: `None`.
    ///
    /// # Panics
    /// As its function does, and if it has ended.
    pub(crate) fn resume(&mut self) -> Option<Wish> {
        let _outside = Outside(OUT.replace(self.out.get()));
        match self.coroutine.resume(()) {
            CoroutineResult::Yield(wish) => Some(wish),
            CoroutineResult::Return(()) => None,
        }
    }
}

impl Drop for Fiber {
    /// The stack of one that has not ended is left as it is: others may point into it, and unwinding it would run users' code
    /// in a runtime that is going down.
    fn drop(&mut self) {
        if !self.coroutine.started() || self.coroutine.done() {
            // SAFETY: this is the only place that drops it, and it is not used after.
            unsafe { ManuallyDrop::drop(&mut self.coroutine) }
        }
    }
}

/// Called in a fiber: gives the thread back to whoever resumed it, and returns when it is resumed.
///
/// # Panics
/// In no fiber.
pub(crate) fn suspend(wish: Wish) {
    let out = OUT.get();
    assert!(!out.is_null(), "only a compute thread of virtual time can wait in it");
    // SAFETY: a way that is not null is that of the innermost fiber that runs on this thread: `resume` sets it before it enters
    // the fiber (the fiber itself the first time) and puts the one outside back when it comes out. So this call is made on that
    // fiber's stack, at whose bottom the yielder lives until the fiber's function has returned.
    unsafe { (*out).suspend(wish) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fibers_take_turns_and_one_runs_inside_another() {
        let told = Rc::new(Cell::new(0));
        let tell = |by: u32| {
            let told = told.clone();
            move || told.set(told.get() * 10 + by)
        };
        let (one, two, three) = (tell(1), tell(2), tell(3));
        let mut inner = Fiber::new(1 << 16, move || {
            one();
            suspend(Wish::Park(None));
            one();
        })
        .unwrap();
        let mut outer = Fiber::new(1 << 16, move || {
            two();
            assert_eq!(inner.resume(), Some(Wish::Park(None)));
            suspend(Wish::Pass(Duration::from_secs(1)));
            three();
            assert_eq!(inner.resume(), None);
        })
        .unwrap();
        assert_eq!(outer.resume(), Some(Wish::Pass(Duration::from_secs(1))));
        assert_eq!(told.get(), 21);
        assert_eq!(outer.resume(), None);
        assert_eq!(told.get(), 2131);
    }

    #[test]
    fn a_panic_comes_out_and_leaves_no_way_behind() {
        let mut fiber = Fiber::new(1 << 16, || panic!("as expected")).unwrap();
        let end = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| fiber.resume()));
        assert!(end.is_err());
        let outside = std::panic::catch_unwind(|| suspend(Wish::Park(None)));
        assert!(outside.is_err(), "there is no fiber here");
    }

    #[test]
    fn one_that_is_not_over_is_left_as_it_is() {
        let held = Rc::new(());
        let here = held.clone();
        let mut fiber = Fiber::new(1 << 16, move || {
            let _here = here;
            suspend(Wish::Park(None));
        })
        .unwrap();
        fiber.resume();
        drop(fiber);
        assert_eq!(Rc::strong_count(&held), 2);
        drop(Fiber::new(1 << 16, || unreachable!()).unwrap());
    }
}
