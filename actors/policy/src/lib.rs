//! The decisions of a Springtide grid as pure functions of their inputs.
//!
//! - [`adaptation`]: which nodes a running job asks for and which it releases. Begin at [`decide`].
//! - [`malleability`]: where a job starts, and which malleable jobs grow and shrink. Begin at
//!   [`malleability::place`] and [`malleability::Round`].
//! - [`provisioning`]: which slots of the sites a workflow buys, and where its tasks run. Begin at
//!   [`provisioning::search`].
//!
//! A policy knows identifiers, the values of the configuration, and the numbers that callers pass.
//! It knows no actors, messages, files or clocks: callers collect the inputs, execute the decision
//! and log both. The same inputs give the same decision to the bit in a run, in a simulation and in
//! a replay of a log.
//!
//! An example: the benefit of more processors to a job, derived from one measured efficiency.
//!
//! ```
//! use springtide_policy::malleability::Benefit;
//!
//! // Eight processors at efficiency 0.5 have the speedup of four.
//! let benefit = Benefit::measured(0.5, 8);
//! assert!((benefit.speedup(8) - 4.0).abs() < 1e-9);
//! // It accepts nine of sixteen more: with ten its efficiency would be below 0.3.
//! assert_eq!(benefit.acceptable(8, 16, 0.3), 9);
//! ```

pub mod adaptation;
pub mod malleability;
pub mod provisioning;

pub use adaptation::*;
