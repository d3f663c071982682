//! What happens: the typed catalogue of events, how a node keeps them until they are shipped, and the run log.
//!
//! The one source of run logs, and later of explanations, replay, metrics and the dashboard: nothing else writes them.
//! Must not know who decides what, nor how records travel. No decision may depend on a record's time.

mod catalogue;
mod dir;
mod log;
mod record;
mod recorder;

pub use catalogue::{Event, Scope, TaskEnd, Weight, WorkerRow};
pub use dir::{Manifest, RunDir, RunDirError, write_atomic};
pub use log::{Header, LogError, ReadLog, RunLog, SCHEMA, read};
pub use record::{EventHash, Record};
pub use recorder::{Recorder, wall_clock_us};
