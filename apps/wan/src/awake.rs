//! Keeps a virtual machine's processors from falling asleep, for as long as something is timed.
//!
//! A processor with nothing to do is taken by the machine's host, and comes back when the host thinks so: on a busy host milliseconds
//! after the packet or the timer that woke it, and what was lost shows as stolen time. (Measured with forty nodes: with processors that
//! sleep one packet in a hundred was late by 4.4 ms and the host had 8 % of the time, without by 0.1 ms and nothing.) So a thread
//! runs on each that all others go before. It costs what the processors' rest would have saved; what uses it must say so. Must not know
//! what is timed.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use springtide_runtime::work::thread_cpu;

use crate::sys;

/// Threads that keep all processors of this process awake until it is dropped.
pub struct Awake {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<io::Result<Duration>>>,
}

/// Whether this machine is a virtual one, as far as its processors say so.
pub fn is_virtual() -> bool {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    text.lines().any(|line| {
        line.starts_with("flags") && line.split_whitespace().any(|flag| flag == "hypervisor")
    })
}

impl Awake {
    /// Starts a thread for each processor. Each calls `aside` first: to be last among the threads of a control group is not to be last.
    ///
    /// # Errors
    /// The system gives no thread, or does not tell which processors there are.
    pub fn start(aside: impl Fn() -> io::Result<()> + Clone + Send + 'static) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut awake = Self { stop, threads: Vec::new() };
        for cpu in sys::processors()? {
            let (stop, aside) = (awake.stop.clone(), aside.clone());
            let run = move || {
                aside()?;
                sys::run_last(cpu)?;
                while !stop.load(Ordering::Relaxed) {
                    (0..1000).for_each(|_| std::hint::spin_loop());
                }
                Ok(thread_cpu())
            };
            awake.threads.push(Builder::new().name(format!("awake-{cpu}")).spawn(run)?);
        }
        Ok(awake)
    }

    /// Ends them; the processor time that they had, all together.
    ///
    /// # Errors
    /// One of them could not be last in line, and was none.
    pub fn end(mut self) -> io::Result<Duration> {
        self.stop.store(true, Ordering::Relaxed);
        let threads = std::mem::take(&mut self.threads);
        let panicked = |_| Err(io::Error::other("a thread that keeps a processor awake panicked"));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).sum()
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_keep_processors_awake_end_and_tell_what_they_had() {
        let awake = Awake::start(|| Ok(())).unwrap();
        assert_eq!(awake.threads.len(), sys::processors().unwrap().len());
        // However busy the machine is, a thread that ends has run.
        assert!(awake.end().unwrap() > Duration::ZERO);
        drop(Awake::start(|| Ok(())).unwrap());
        assert!(sys::run_last(1 << 20).is_err());
    }
}
