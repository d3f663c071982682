//! Two-stage stochastic linear programs with recourse: min c'x + E Q(x, w), Ax = b, where Q(x, w)
//! is the least cost q'y of a second stage Wy = h(w) - T(w)x.
//!
//! - [`model`]: the program as data.
//! - [`smps`]: the program from its three files.
//! - [`sample`]: scenarios of the program, by seed and number.
//! - `cutting_plane`: the cutting-plane model of the master problem.
//! - [`cvar`]: weighted mean and conditional value at risk.
//! - [`export`]: samples as SMPS and MPS files.
//! - [`extensive`]: a sample of the program as one linear program.
//! - [`lp`]: linear programs, by the simplex method.
//! - [`recourse`]: the second stage, and cuts made of it.
//! - [`recession`]: whether costs have a lower bound.
//! - [`scaling`]: the program in units in which its numbers are near 1.
//! - [`trust_region`]: the trust-region method for the first stage, as a state machine.
//! - [`solve`]: the job that solves a program on a grid, as a master and workers.

mod cutting_plane;
pub mod cvar;
pub mod export;
pub mod extensive;
#[cfg(test)]
mod fixtures;
#[cfg(all(test, feature = "highs"))]
mod highs;
#[cfg(test)]
mod instances;
pub mod lp;
pub mod model;
pub mod recession;
pub mod recourse;
pub mod sample;
pub mod scaling;
pub mod smps;
pub mod solve;
pub mod trust_region;

pub use solve::Solve;
