//! Linear programs: a revised simplex method with bounded variables, dual first, on sparse factors.
//!
//! This module must not know stages or scenarios. See [`simplex`] for the method and [`problem`]
//! for its input.

pub mod factor;
pub mod problem;
pub mod simplex;

pub use problem::LinearProgram;
pub use simplex::{RestartBasis, Simplex, Status};
