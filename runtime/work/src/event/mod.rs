//! Events: their typed catalogue, a node's buffer of records before they are shipped, and the run
//! log.
//!
//! They are the only source of run logs, explanations, replay, metrics and the dashboard. This
//! module knows neither the deciding components nor the transport of records. No decision may
//! depend on a record's time.

mod catalogue;
mod dir;
mod log;
mod record;
mod recorder;

pub use catalogue::{BookingRow, Event, Retention, StealScope, StolenTaskEnd, WorkerSample};
pub use dir::{Manifest, RunDir, RunDirError};
pub use log::{LogError, LogHeader, ReadLog, RunLog, SCHEMA, read};
pub use record::{EventHash, Record};
pub use recorder::{Recorder, wall_clock_us};
pub use springtide_base::atomic_file::{write_atomic, write_unsynced};
