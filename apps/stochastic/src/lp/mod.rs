//! Linear programs: a revised simplex method with bounded variables, dual first, on sparse factors.
//!
//! Must not know stages nor scenarios. See [`simplex`] for the method and [`problem`] for its
//! input.

pub mod factor;
pub mod problem;
pub mod simplex;

pub use problem::LinearProgram;
pub use simplex::{RestartBasis, Simplex, Status};
