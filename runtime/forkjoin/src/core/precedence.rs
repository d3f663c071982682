//! Priority on a busy processor: threads that carry messages precede threads that compute.
//!
//! Since Linux 6.12 a thread that wakes up interrupts one with longer time slices at once.
//! Otherwise it waits for the end of that slice or the next tick (4 ms). Compute threads do not
//! need short slices. With longer ones they keep their share of the processor, and requests for
//! work are answered meanwhile. It requires no privilege.

/// The slice of compute threads. Longer than the default on any number of processors (2.8 ms from
/// eight on), and short enough for compute threads of other processes.
#[cfg(all(target_os = "linux", not(miri)))]
const SLICE_NS: u64 = 10_000_000;

/// Gives the calling thread long time slices, so that threads that wake up for messages interrupt
/// it. No effect where the system has no slices.
#[cfg(all(target_os = "linux", not(miri)))]
pub(crate) fn use_long_slices() {
    /// The kernel's structure in its first version.
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
    // SAFETY: the kernel writes at most `size` bytes to `now`, a plain value of this frame of
    // exactly that size.
    let status = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut now, size, 0) };
    if status != 0 || now.policy != libc::SCHED_OTHER as u32 {
        return; // somebody chose another policy for it
    }
    // The call replaces all attributes, so unchanged ones are set again.
    let wanted = Attributes { size, nice: now.nice, runtime: SLICE_NS, ..Attributes::default() };
    // SAFETY: the kernel reads `wanted.size` bytes of `wanted`, which has that size and outlives
    // the call. A refusal changes nothing.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const wanted, 0) };
}

/// Does nothing: other systems offer no way.
#[cfg(not(all(target_os = "linux", not(miri))))]
pub(crate) fn use_long_slices() {}

#[cfg(all(test, target_os = "linux", not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_computes_keeps_its_policy_and_nice_value() {
        let look = || {
            // SAFETY: both take integers and access no memory of this process.
            unsafe { (libc::sched_getscheduler(0), libc::getpriority(libc::PRIO_PROCESS, 0)) }
        };
        let thread = std::thread::spawn(move || {
            // SAFETY: as above; lowering a thread's own priority is always allowed.
            assert_eq!(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 3) }, 0);
            let before = look();
            use_long_slices();
            assert_eq!(look(), before);
        });
        thread.join().unwrap();
    }
}
