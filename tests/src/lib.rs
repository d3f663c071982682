//! Helpers of the tests across crates. The tests are in `tests/tests/all.rs`.

pub mod federation;
pub mod gridengine;
pub mod judged;
mod lab;
pub mod modelled;
pub mod slurm;
pub mod virtual_grid;

pub use springtide_runtime::wire::fuzz::number;
