//! Processor time of the calling thread and of the process.

use std::time::Duration;

/// Processor time of the calling thread since its start; zero where the system does not report it.
pub fn thread_cpu() -> Duration {
    clock(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Processor time of all threads of the process since its start; zero where the system does not
/// report it.
pub fn process_cpu() -> Duration {
    clock(libc::CLOCK_PROCESS_CPUTIME_ID)
}

fn clock(id: libc::clockid_t) -> Duration {
    if cfg!(miri) {
        return Duration::ZERO; // Miri knows no processor time.
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the result is written to a value of this frame.
    let result = unsafe { libc::clock_gettime(id, &raw mut time) };
    if result != 0 {
        return Duration::ZERO;
    }
    let (seconds, nanos) = (time.tv_sec.try_into(), time.tv_nsec.try_into());
    Duration::new(seconds.unwrap_or(0), nanos.unwrap_or(0))
}
