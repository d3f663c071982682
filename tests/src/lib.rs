//! Helpers of the tests that cross crates. The tests themselves are in `tests/tests/all.rs`.

pub mod federation;
pub mod modelled;
pub mod slurm;
pub mod virtual_grid;

/// A number from the environment, for tests whose length is set so.
///
/// # Panics
/// If it is none.
pub fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |set| set.parse().expect("a number"))
}
