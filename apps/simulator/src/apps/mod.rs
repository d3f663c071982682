//! Jobs as models of what they compute and send.

mod model;

pub use model::{Model, Shape, Then};
pub(crate) use model::{chain, hash};
