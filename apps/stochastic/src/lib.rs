//! Two-stage stochastic linear programs with recourse: min c'x + E Q(x, w), Ax = b, where Q(x, w) is the least cost q'y of a second
//! stage Wy = h(w) - T(w)x.
//!
//! - [`model`]: the program as data.
//! - [`smps`]: programs from their files.
//! - [`sample`]: scenarios by their indices.

#[cfg(test)]
mod fixtures;
pub mod model;
pub mod sample;
pub mod smps;
