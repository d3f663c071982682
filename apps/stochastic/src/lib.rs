//! Two-stage stochastic linear programs with recourse: min c'x + E Q(x, w), Ax = b, where Q(x, w) is the least cost q'y of a second
//! stage Wy = h(w) - T(w)x.
//!
//! - [`model`]: the program as data.
//! - [`lp`]: linear programs, by the simplex method.

pub mod lp;
pub mod model;
pub mod recourse;
pub mod region;
