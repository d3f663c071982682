//! Processor time of the calling thread, of another thread, and of the process.

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

/// The clock of one thread's processor time, which any thread of the process may read.
#[derive(Clone, Copy, Debug)]
pub struct ThreadClock(libc::clockid_t);

impl ThreadClock {
    /// The clock of the calling thread; `None` where the system has none. Only Linux is supported.
    pub fn of_this_thread() -> Option<Self> {
        #[cfg(all(target_os = "linux", not(miri)))]
        {
            let mut id = 0;
            // SAFETY: the thread is the caller, so it exists, and `id` is a value of this frame.
            let result = unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &raw mut id) };
            (result == 0).then_some(Self(id))
        }
        #[cfg(not(all(target_os = "linux", not(miri))))]
        None
    }

    /// Processor time of the thread since its start; `None` once it has ended.
    pub fn read(self) -> Option<Duration> {
        read(self.0)
    }
}

fn clock(id: libc::clockid_t) -> Duration {
    if cfg!(miri) {
        return Duration::ZERO; // Miri knows no processor time.
    }
    read(id).unwrap_or(Duration::ZERO)
}

fn read(id: libc::clockid_t) -> Option<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the result is written to a value of this frame.
    let result = unsafe { libc::clock_gettime(id, &raw mut time) };
    if result != 0 {
        return None;
    }
    Some(Duration::new(time.tv_sec.try_into().ok()?, time.tv_nsec.try_into().ok()?))
}

#[cfg(all(test, target_os = "linux", not(miri)))]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn another_thread_reads_the_clock_of_a_thread_until_it_ends() {
        let (sender, receiver) = mpsc::channel();
        let (release, held) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let from = thread_cpu();
            while thread_cpu() < from + Duration::from_millis(20) {}
            let clock = ThreadClock::of_this_thread().unwrap();
            sender.send((clock, thread_cpu())).unwrap();
            let _ = held.recv();
        });
        let (clock, by_itself) = receiver.recv().unwrap();
        assert!(clock.read().unwrap() >= by_itself);
        assert!(by_itself >= Duration::from_millis(20));
        drop(release);
        thread.join().unwrap();
        // The kernel removes the thread a moment after its end is known.
        let is_gone = |_| {
            std::thread::yield_now();
            clock.read().is_none()
        };
        assert!((0..1_000_000).any(is_gone));
    }
}
