//! Small divide-and-conquer jobs that teach Springtide's API. Each is one file of about a hundred lines; read them in this
//! order:
//!
//! 1. [`fib`]: a task, a job, and `join`: all that a program needs.
//! 2. [`queens`]: any number of children with `spawn`, and a grain that suits other nodes.
//! 3. [`integrate`]: depth that depends on the data, and sums of floats that come out equal everywhere.
//! 4. [`tsp`]: a shared object that any task reads and improves while it runs.
//! 5. [`raytracer`]: a list of tasks with `join_all`, outputs that are large, and a file as the result.
//! 6. [`words`]: input that each task reads from a file where it runs.
//!
//! Try one with `springtide run fib`, or without a grid with `springtide run fib --sequential`. The jobs know the runtime
//! alone; nothing here may know of nodes, clusters or the command.

mod cities;
pub mod fib;
pub mod integrate;
pub mod queens;
pub mod raytracer;
mod scene;
#[cfg(test)]
mod tests;
pub mod tsp;
pub mod words;

use std::fmt::Debug;
use std::ops::RangeInclusive;

use springtide_runtime::work::InputError;

pub use fib::Fib;
pub use integrate::Integrate;
pub use queens::Queens;
pub use raytracer::Raytracer;
pub use tsp::Tsp;
pub use words::Words;

/// Refuses an option's value outside of `range`, saying `why` it ends there.
fn check<T: PartialOrd + Debug>(
    option: &str,
    value: T,
    range: RangeInclusive<T>,
    why: &str,
) -> Result<(), InputError> {
    if range.contains(&value) {
        return Ok(());
    }
    let (low, high) = range.into_inner();
    Err(InputError::new(format!(
        "{option} {value:?}: give a value from {low:?} to {high:?} ({why})"
    )))
}

/// FNV-1a over bytes, for a job's checksum.
fn checksum(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
