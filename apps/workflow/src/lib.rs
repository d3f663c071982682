//! Workflows: what their tasks are, which files go between them, and how they are read from the formats of the field.
//!
//! Must not know where tasks are run, nor what a plan is.

mod draft;
mod error;
mod format;
mod model;
mod overrides;
mod read;
mod text;
mod values;

pub use error::{Cause, Place, ReadError};
pub use format::Format;
pub use model::{Command, File, Met, Oddity, Position, Task, Workflow};
pub use overrides::{Override, Overrides};
pub use read::{EDGES_MAX, TEXT_MAX};
pub use values::{RUNTIME_MAX_S, RUNTIME_MIN_S};
