//! Which thread of a busy processor goes first: one that carries messages before one that computes.
//!
//! Linux's scheduler (from 6.12 on) lets a thread that wakes up interrupt one with longer time slices at once, instead of after
//! that one's slice or the next tick (4 ms). Compute threads have no use for short slices: with longer ones than everybody's they keep
//! their part of the processor, and a request for work is answered meanwhile. It takes no privilege. Must not know what the
//! threads do.

/// Longer than the default of any number of processors (2.8 ms from eight on), and short enough that compute threads of other
/// processes have their turn.
#[cfg(all(target_os = "linux", not(miri)))]
const SLICE_NS: u64 = 10_000_000;

/// The calling thread computes: who wakes up to carry a message need not wait for it. Where the system does not know of slices
/// nothing changes.
#[cfg(all(target_os = "linux", not(miri)))]
pub(crate) fn give_way() {
    /// As the kernel reads it in its first version.
    #[derive(Default)]
    #[repr(C)]
    struct Attributes {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        runtime: u64,
        deadline: u64,
        period: u64,
    }
    let size = size_of::<Attributes>() as libc::c_uint;
    let mut now = Attributes::default();
    // SAFETY: the kernel writes at most `size` bytes to `now`, a plain value of this frame of just that size.
    let told = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut now, size, 0) };
    if told != 0 || now.policy != libc::SCHED_OTHER as u32 {
        return; // somebody chose another policy for it
    }
    // What stays as it is must be said again.
    let wanted = Attributes { size, nice: now.nice, runtime: SLICE_NS, ..Attributes::default() };
    // SAFETY: the kernel reads `wanted.size` bytes of `wanted`, which is of that size and outlives the call. A refusal changes
    // nothing.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const wanted, 0) };
}

/// No other system tells how.
#[cfg(not(all(target_os = "linux", not(miri))))]
pub(crate) fn give_way() {}

#[cfg(all(test, target_os = "linux", not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_computes_keeps_its_policy_and_nice_value() {
        let look = || {
            // SAFETY: both take integers and touch no memory of ours.
            unsafe { (libc::sched_getscheduler(0), libc::getpriority(libc::PRIO_PROCESS, 0)) }
        };
        let thread = std::thread::spawn(move || {
            // SAFETY: as above; lowering a thread's own priority is always allowed.
            assert_eq!(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 3) }, 0);
            let before = look();
            give_way();
            assert_eq!(look(), before);
        });
        thread.join().unwrap();
    }
}
