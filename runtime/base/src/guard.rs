//! Users' code on the runtime's own threads: its panics are caught and returned as errors.
//!
//! A panic of the runtime's own code on these threads may end the process, by a hook that runs
//! before the panic is caught. The hook must know whose code panicked. This module does not know
//! the purpose of the code.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};

thread_local! {
    /// The nesting depth of calls of users' code on this thread.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    /// The place of this thread's last panic, until it is taken.
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Calls users' code and catches its panic. The user is responsible for state that is left
/// incomplete.
///
/// # Errors
/// The message of the panic.
pub fn call_user_code<R>(code: impl FnOnce() -> R) -> Result<R, String> {
    struct DepthGuard;
    impl Drop for DepthGuard {
        fn drop(&mut self) {
            DEPTH.set(DEPTH.get().saturating_sub(1));
        }
    }
    DEPTH.set(DEPTH.get() + 1);
    let _guard = DepthGuard;
    catch_unwind(AssertUnwindSafe(code)).map_err(|panic| panic_text(&*panic))
}

/// Whether this thread is in a call of [`call_user_code`], for panic hooks.
pub fn is_in_user_code() -> bool {
    // A thread whose locals are dropped runs no users' code.
    DEPTH.try_with(Cell::get).unwrap_or(0) > 0
}

/// Notes the file, line and column of a panic of this thread. For panic hooks.
pub fn note_panic_place(info: &PanicHookInfo<'_>) {
    let place = info.location().map(ToString::to_string);
    // A thread whose locals are dropped runs no users' code.
    let _ = PLACE.try_with(|noted| {
        if let Ok(mut noted) = noted.try_borrow_mut() {
            *noted = place;
        }
    });
}

/// The message of this thread's last panic, with its file, line and column if a hook noted them.
pub fn located_panic_text(panic: &(dyn Any + Send)) -> String {
    match PLACE.try_with(RefCell::take) {
        Ok(Some(place)) => format!("{} ({place})", panic_text(panic)),
        _ => panic_text(panic),
    }
}

/// The message of a panic.
pub fn panic_text(panic: &(dyn Any + Send)) -> String {
    if let Some(text) = panic.downcast_ref::<&str>() {
        (*text).to_owned()
    } else if let Some(text) = panic.downcast_ref::<String>() {
        text.clone()
    } else {
        "a panic without a message".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_code_is_marked_until_it_ends_in_any_way() {
        assert!(!is_in_user_code());
        assert_eq!(call_user_code(|| (is_in_user_code(), call_user_code(|| 7))), Ok((true, Ok(7))));
        let nested = call_user_code(|| {
            let inner = call_user_code(|| panic!("out of cheese"));
            (inner, is_in_user_code())
        });
        assert_eq!(nested, Ok((Err::<(), _>("out of cheese".to_owned()), true)));
        assert!(!is_in_user_code());
    }
}
