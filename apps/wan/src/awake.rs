//! Keeps the processors of a virtual machine awake during a measurement.
//!
//! The host takes an idle processor away and returns it late: on a busy host, milliseconds after
//! the packet or timer that woke it. The lost time counts as stolen. With forty nodes and idle
//! processors, one packet in a hundred was late by 4.4 ms and 8 % of the time was stolen; with busy
//! ones it was 0.1 ms and 0 %.
//!
//! So a thread with the lowest priority runs on each processor. It costs the processor time that
//! idling would save, and callers must report that. This module does not depend on the measurement.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use springtide_runtime::work::thread_cpu;

use crate::sys;

/// Threads that keep all processors of this process busy until it is dropped.
pub struct BusyThreads {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<io::Result<Duration>>>,
}

/// Whether this machine is a virtual one, by the flags of its processors.
pub fn is_virtual() -> bool {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    text.lines().any(|line| {
        line.starts_with("flags") && line.split_whitespace().any(|flag| flag == "hypervisor")
    })
}

impl BusyThreads {
    /// Starts a thread for each processor, which first calls `aside` to leave its control group.
    ///
    /// The lowest priority of a control group is not the lowest of the machine.
    ///
    /// # Errors
    /// The system gives no thread, or does not list the processors.
    pub fn start(aside: impl Fn() -> io::Result<()> + Clone + Send + 'static) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut awake = Self { stop, threads: Vec::new() };
        for cpu in sys::processors()? {
            let (stop, aside) = (awake.stop.clone(), aside.clone());
            let run = move || {
                aside()?;
                sys::set_idle_priority(cpu)?;
                while !stop.load(Ordering::Relaxed) {
                    (0..1000).for_each(|_| std::hint::spin_loop());
                }
                Ok(thread_cpu())
            };
            awake.threads.push(Builder::new().name(format!("awake-{cpu}")).spawn(run)?);
        }
        Ok(awake)
    }

    /// Ends the threads and returns the sum of their processor time.
    ///
    /// # Errors
    /// A thread could not get the lowest priority.
    pub fn end(mut self) -> io::Result<Duration> {
        self.stop.store(true, Ordering::Relaxed);
        let threads = std::mem::take(&mut self.threads);
        let panicked = |_| Err(io::Error::other("a thread that keeps a processor awake panicked"));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).sum()
    }
}

impl Drop for BusyThreads {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_end_and_report_their_processor_time() {
        let awake = BusyThreads::start(|| Ok(())).unwrap();
        assert_eq!(awake.threads.len(), sys::processors().unwrap().len());
        // A thread that ends has run, even on a busy machine.
        assert!(awake.end().unwrap() > Duration::ZERO);
        drop(BusyThreads::start(|| Ok(())).unwrap());
        assert!(sys::set_idle_priority(1 << 20).is_err());
    }
}
