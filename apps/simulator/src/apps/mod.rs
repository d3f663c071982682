//! Jobs that model the computation and messages of real ones.

mod model;

pub use model::{LeafPhase, ModelledJob, WorkDivision};
pub(crate) use model::{chain, hash};
