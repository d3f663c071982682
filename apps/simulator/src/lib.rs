//! Whole grids in virtual time: the live scheduler, sites, coordinators and workers on the
//! in-memory network.
//!
//! Time is tokio's paused clock. Compute threads let their declared time pass at their node's
//! speed. One seed gives one history.
//!
//! Everything above the network, the processes and the processors is the code that runs on real
//! grids. Three parts are modelled:
//!
//! - the network, by the link model ([`springtide_runtime::net::MemoryNet`]);
//! - a process, as a set of actors on this one thread ([`machines`]);
//! - a processor, as a number ([`springtide_runtime::work::ProcessorSpeed`]).

pub mod apps;
pub mod batch;
mod dead_end;
pub mod faults;
pub mod figure;
pub mod forecast;
pub mod grid;
pub mod machines;
pub mod no_harm;
pub mod paper;
mod process;
pub mod provisioning;
pub mod recorded;
pub mod scale;
pub mod scenario;
pub mod scenario_driver;
#[cfg(test)]
mod schema_tests;
pub mod shipped;
pub mod submitter;
#[cfg(test)]
mod tests_wire;
pub mod workload;

/// Applies a function to all inputs on all cores, and returns the results in the order of the
/// inputs.
///
/// Each input is handled by one thread from start to end.
pub fn on_all_cores<T: Sync, R: Send>(inputs: &[T], function: impl Fn(&T) -> R + Sync) -> Vec<R> {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Mutex, PoisonError};

    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let results = Mutex::new(inputs.iter().map(|_| None).collect::<Vec<Option<R>>>());
    let take_inputs = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(input) = inputs.get(index) else { return };
            let result = function(input);
            results.lock().unwrap_or_else(PoisonError::into_inner)[index] = Some(result);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(take_inputs);
        }
    });
    let results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    // A thread has taken each input, and a panic of one ends the scope.
    results.into_iter().flatten().collect()
}

pub use self::dead_end::GridState;
pub use self::grid::{GridError, Layout, SimulatedCluster, SimulatedGrid, SimulatedRun, simulate};
pub use self::submitter::CompletedRun;
