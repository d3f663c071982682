//! Whole grids in virtual time: the live scheduler, sites, coordinators and workers on the in-memory network, under tokio's
//! paused clock, with compute threads whose declared time passes at their node's speed. One seed gives one history.
//!
//! What is live and what is modelled: everything above the network, the processes and the processors is the code that runs
//! on real grids. The network is the link model's ([`springtide_runtime::net::MemoryNet`]); a process is a set of actors on this
//! one thread ([`machines`]); a processor is a number ([`springtide_runtime::work::Pace`]).

pub mod apps;
pub mod batch;
mod dead_end;
pub mod faults;
pub mod figure;
pub mod forecast;
pub mod grid;
pub mod machines;
pub mod paper;
mod process;
pub mod provisioning;
pub mod recorded;
pub mod scenario;
#[cfg(test)]
mod schema_tests;
pub mod shipped;
pub mod stage;
pub mod submitter;
#[cfg(test)]
mod tests_wire;
pub mod workload;

/// Does this for each, as many at a time as there are cores, and gives the answers in their order. Each is a world of its own.
pub fn on_all_cores<T: Sync, R: Send>(all: &[T], what: impl Fn(&T) -> R + Sync) -> Vec<R> {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Mutex, PoisonError};

    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let answers = Mutex::new(all.iter().map(|_| None).collect::<Vec<Option<R>>>());
    let one_after_another = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(one) = all.get(at) else { return };
            let answer = what(one);
            answers.lock().unwrap_or_else(PoisonError::into_inner)[at] = Some(answer);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(one_after_another);
        }
    });
    let answers = answers.into_inner().unwrap_or_else(PoisonError::into_inner);
    // Each was taken by a thread, and a panic in one ends the scope.
    answers.into_iter().flatten().collect()
}

pub use self::dead_end::Now;
pub use self::grid::{Grid, GridError, Layout, Place, Run, simulate};
pub use self::submitter::Ended;
