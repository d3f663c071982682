//! Helpers of the tests that cross crates. The tests themselves are in `tests/tests/all.rs`.

pub mod federation;
pub mod modelled;
pub mod slurm;
pub mod virtual_grid;

pub use springtide_runtime::wire::fuzz::number;
