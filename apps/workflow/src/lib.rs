//! Workflows: their tasks, the files between tasks, and readers for the formats of the field.
//!
//! The crate depends on neither the execution of tasks nor planning.

mod arguments;
mod draft;
mod error;
mod fields;
mod foreign;
mod format;
mod model;
mod overrides;
mod read;
mod text;
mod values;

pub use error::{Cause, ReadError, TextPosition};
pub use fields::{FieldUsage, FormatField, fields};
pub use foreign::ForeignFormat;
pub use format::Format;
pub use model::{
    Command, Container, ContainerEngine, File, FileSource, Occurrences, Position, Redirects,
    Resources, Task, Workflow, WorkflowWarning,
};
pub use overrides::{Override, Overrides};
pub use read::{EDGES_MAX, TEXT_MAX};
pub use values::{RUNTIME_MAX_S, RUNTIME_MIN_S};
