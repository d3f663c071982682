//! Audits: checks of a state machine's invariants after its changes.
//!
//! A state machine with a broken invariant could give a processor to two jobs. So the process ends,
//! and the next one continues from the store. Debug builds, and so tests, audit every change. Other
//! builds audit each [`CHANGES_PER_AUDIT`]th change, which costs at most a few percent of a change
//! (`cargo bench -p springtide-tests --bench scheduling`).

use std::any::Any;
use std::fmt::{self, Debug, Write as _};
use std::io::Write as _;

/// Number of changes from one audit to the next.
pub const CHANGES_PER_AUDIT: usize = if cfg!(debug_assertions) { 1 } else { 64 };
/// Greatest length of a change's description, in bytes.
const DESCRIPTION_MAX: usize = 300;

/// Counts the changes of a state machine, and describes those since its last audit.
#[derive(Debug, Default)]
pub struct Auditor {
    /// Descriptions of the changes since the last audit, oldest first.
    changes: Vec<String>,
}

impl Auditor {
    /// Records a change. Must be called before the change is applied.
    pub fn record(&mut self, change: &impl Debug) {
        let mut text = Description(String::with_capacity(DESCRIPTION_MAX));
        // The description ends with an error at its greatest length.
        let _ = write!(text, "{change:?}");
        self.changes.push(text.0);
    }

    /// Ends the process if a count fell below zero, or if an audit is due and fails. `part` names
    /// the state machine.
    ///
    /// # Panics
    /// An invariant is broken. The text states it, and the changes since the last audit.
    pub fn audit(
        &mut self,
        part: &str,
        shortfall: Option<&Shortfall>,
        invariants: impl FnOnce() -> Result<(), String>,
    ) {
        let due = self.changes.len() >= CHANGES_PER_AUDIT;
        let broken = match shortfall {
            Some(shortfall) => Err(shortfall.to_string()),
            None if due => invariants(),
            None => return,
        };
        if let Err(broken) = broken {
            let changes = self.changes.join("\n  ");
            panic!(
                "the state of the {part} is inconsistent: {broken}\n\
                 changes since the last audit, oldest first:\n  {changes}"
            );
        }
        self.changes.clear();
    }
}

/// A text of limited length.
struct Description(String);

impl fmt::Write for Description {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        let left = DESCRIPTION_MAX - self.0.len();
        if part.len() <= left {
            self.0.push_str(part);
            return Ok(());
        }
        let end = (0..=left).rev().find(|end| part.is_char_boundary(*end)).unwrap_or(0);
        self.0.push_str(&part[..end]);
        Err(fmt::Error)
    }
}

/// A subtraction from a count that is too small. The next audit fails by it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortfall {
    count: String,
    value: u32,
    subtracted: u32,
}

impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { count, value, subtracted } = self;
        write!(f, "{subtracted} is subtracted from {count}, which is {value}")
    }
}

/// Subtracts from a count. If the count is too small, it becomes 0, and `shortfall` is set.
pub fn subtract(
    count: &mut u32,
    subtracted: u32,
    shortfall: &mut Option<Shortfall>,
    name: impl FnOnce() -> String,
) {
    match count.checked_sub(subtracted) {
        Some(left) => *count = left,
        None => {
            let value = std::mem::take(count);
            shortfall.get_or_insert_with(|| Shortfall { count: name(), value, subtracted });
        }
    }
}

/// Ends the process after a panic of a state machine, with SIGABRT (exit code 134 in a shell).
pub fn abort_after_panic(panic: &(dyn Any + Send)) -> ! {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("panic");
    // The lock's holder may be this thread's caller, and tests capture `eprintln!`.
    let _ = writeln!(std::io::stderr(), "the scheduler ends the process: {text}");
    std::process::abort()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::process::Command;

    use super::*;

    #[test]
    fn a_count_that_is_too_small_fails_the_audit_with_its_name_and_the_change() {
        let (mut count, mut shortfall) = (5, None);
        subtract(&mut count, 3, &mut shortfall, || unreachable!());
        assert_eq!((count, &shortfall), (2, &None));
        subtract(&mut count, 3, &mut shortfall, || "booked processors of ams".to_owned());
        assert_eq!(count, 0);
        let mut auditor = Auditor::default();
        auditor.record(&vec!["long"; 1000]);
        auditor.record(&("Freed", 3));
        let audit = || auditor.audit("manager", shortfall.as_ref(), || Ok(()));
        let panic = catch_unwind(AssertUnwindSafe(audit)).unwrap_err();
        let text = panic.downcast_ref::<String>().unwrap();
        let wrong = "3 is subtracted from booked processors of ams, which is 2";
        assert!(text.contains(wrong) && text.ends_with("\n  (\"Freed\", 3)"), "{text}");
        assert!(text.len() < 2 * DESCRIPTION_MAX, "{text}");
    }

    /// Runs in a process of its own, which ends.
    #[test]
    fn a_process_with_a_broken_invariant_ends() {
        const VARIABLE: &str = "SPRINGTIDE_TEST_BREAKS_AN_INVARIANT";
        if std::env::var_os(VARIABLE).is_some() {
            let mut auditor = Auditor::default();
            auditor.record(&"Freed");
            let audit = || auditor.audit("manager", None, || Err("2 is not 3".to_owned()));
            let panic = catch_unwind(AssertUnwindSafe(audit)).unwrap_err();
            abort_after_panic(&*panic);
        }
        let test = std::thread::current().name().unwrap_or_default().to_owned();
        let program = std::env::current_exe().unwrap();
        let mut command = Command::new(program);
        let output = command.args(["--exact", &test]).env(VARIABLE, "1").output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{text}");
        let wrong = "the state of the manager is inconsistent: 2 is not 3";
        assert!(text.contains(wrong) && text.contains("\"Freed\""), "{text}");
    }
}
