//! Helpers of the tests that cross crates. The tests themselves are in `tests/tests/all.rs`.

pub mod modelled;
pub mod virtual_grid;
