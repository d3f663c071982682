//! Small divide-and-conquer jobs that teach Springtide's API.
//!
//! Each is one file of about a hundred lines. Read them in this order:
//!
//! 1. [`fib`]: a task, a job, and `join`: all that a program needs.
//! 2. [`queens`]: any number of children with `spawn`, and a grain that suits other nodes.
//! 3. [`integrate`]: a depth that depends on the data, and sums of floats that are equal
//!    everywhere.
//! 4. [`tsp`]: a shared object that any task reads and improves while it runs.
//! 5. [`raytracer`]: a list of tasks with `join_all`, large outputs, and a file as the result.
//! 6. [`words`]: input that each task reads from a file where it runs.
//!
//! Try one with `springtide run fib`, or without a grid with `springtide run fib --sequential`. The
//! jobs depend on the runtime only, and know neither nodes, clusters nor the command.

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

pub use fib::Fib;
pub use integrate::Integrate;
pub use queens::Queens;
pub use raytracer::Raytracer;
pub use tsp::Tsp;
pub use words::Words;
