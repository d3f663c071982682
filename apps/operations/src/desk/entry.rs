//! What the archive knows of a job.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use springtide_actors::admit::Principal;
use springtide_actors::job::JobReport;
use springtide_cli::exit::Exit;
use springtide_cli::run_end::RunEnd;
use springtide_runtime::event::{Event, Record};
use springtide_runtime::id::JobId;
use springtide_runtime::records::Files;

use super::retention::Retention;

/// The error of a job without an end whose head has ended.
pub(super) const LOST: &str = "the grid ended before the job did: submit it again";

/// Entry of an archived job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArchiveEntry {
    /// The number of the job.
    pub job: JobId,
    /// The registered name of its program.
    pub name: String,
    /// The program and its options as a command line.
    pub line: String,
    /// Time of submission in seconds since the Unix epoch.
    pub submitted_unix_s: u64,
    /// The end of the job, if it has ended.
    #[serde(default)]
    pub ended: Option<JobEnd>,
    /// Time of the end in seconds since the Unix epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_unix_s: Option<u64>,
    /// The principal that submitted it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<Principal>,
}

impl ArchiveEntry {
    /// Whether this principal submitted it; true for every job if no principal is given.
    pub(super) fn is_of(&self, of: Option<&Principal>) -> bool {
        of.is_none() || self.principal.as_ref() == of
    }
}

/// The end of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobEnd {
    /// The reason why it has no outcome, if it has none.
    pub error: Option<String>,
    /// Whether the job was cancelled.
    #[serde(default)]
    pub cancelled: bool,
    /// The exit code that `run` would end with, where it is not 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<u8>,
    /// Whether this is the exit code of the program that a command ran.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_program: bool,
    /// What the job has used.
    #[serde(default)]
    pub usage: JobUsage,
}

/// What a job has used. Absent values are unknown: the job never started, its coordinator was lost,
/// or the head was.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobUsage {
    /// Time of the first start in seconds since the Unix epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_unix_s: Option<u64>,
    /// Number of starts of the job's root: more than one after losses and moves.
    pub starts: u32,
    /// Processors at the first start: nodes, the scheduler's unit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processors: Option<u32>,
    /// The number of nodes that took part, from the start to the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<u32>,
    /// Time from the last start of the root to its end, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wall_ms: Option<u64>,
    /// Time of all compute threads that the job had, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processor_ms: Option<u64>,
    /// Processor time that its nodes used for it, in milliseconds. Processes of commands are not
    /// included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_ms: Option<u64>,
    /// Numbers of its nodes over time, at each change.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sizes: Vec<JobSize>,
}

/// The number of a job's nodes from a time on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobSize {
    /// Time in milliseconds since the Unix epoch, by the clock of the coordinator's host.
    pub at_unix_ms: u64,
    /// Number of nodes of the job from then on.
    pub nodes: u32,
}

/// The maximum number of a job's sizes that are kept: the first ones.
const SIZES_MAX: usize = 1000;

impl JobUsage {
    /// Records a start of the job's root.
    pub(super) fn begin(&mut self, processors: u32, now_unix_s: u64) {
        self.starts += 1;
        self.started_unix_s.get_or_insert(now_unix_s);
        self.processors.get_or_insert(processors);
        if self.sizes.is_empty() {
            let at_unix_ms = now_unix_s.saturating_mul(1000);
            self.sizes.push(JobSize { at_unix_ms, nodes: processors });
        }
    }

    /// Records the sizes that events of the job report.
    pub(super) fn resize(&mut self, records: &[Record]) {
        for Record { t_us, began_unix_us, event, .. } in records {
            let (Event::ViewChanged { members: nodes, .. }, Some(began)) = (event, began_unix_us)
            else {
                continue;
            };
            let is_change = self.sizes.last().is_none_or(|last| last.nodes != *nodes);
            if is_change && self.sizes.len() < SIZES_MAX {
                let at_unix_ms = began.saturating_add(*t_us) / 1000;
                self.sizes.push(JobSize { at_unix_ms, nodes: *nodes });
            }
        }
    }

    /// Records the report of the job's end. The report of a job without a coordinator is empty.
    pub(super) fn end(&mut self, report: &JobReport) {
        if report.clusters.is_empty() {
            return;
        }
        self.nodes = Some(report.clusters.values().map(|cluster| cluster.workers).sum());
        self.wall_ms = Some((report.wall_s * 1e3) as u64);
        self.processor_ms = Some(report.total.times.total_ns() / 1_000_000);
        self.cpu_ms = Some(report.total.counters.cpu_us / 1000);
    }
}

impl JobEnd {
    pub(super) fn of(ended: &RunEnd, cancelled: bool, exit: Exit) -> Self {
        let error = ended.error().map(str::to_owned);
        let own = !matches!(exit, Exit::Ok | Exit::Failure);
        let by_program = matches!(exit, Exit::Program(_));
        let usage = JobUsage::default();
        Self { error, cancelled, exit: own.then_some(exit.code()), by_program, usage }
    }

    /// The exit code of a command that reports this end.
    pub fn exit(&self) -> Exit {
        match (&self.error, self.exit) {
            (None, _) => Exit::Ok,
            (Some(_), None) => Exit::Failure,
            (Some(_), Some(code)) if self.by_program => Exit::Program(code),
            (Some(_), Some(code)) => Exit::of(code),
        }
    }

    /// The state in one word.
    pub fn word(&self) -> &'static str {
        match (self.cancelled, &self.error) {
            (true, _) => "cancelled",
            (false, Some(_)) => "failed",
            (false, None) => "done",
        }
    }
}

/// Everything known about a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobRecord {
    /// The entry of the job.
    pub entry: ArchiveEntry,
    /// The progress that it last reported.
    pub progress: Option<String>,
    /// Its last lines of output.
    pub lines: Vec<String>,
    /// The number of all lines of its output.
    #[serde(default)]
    pub said: u64,
    /// Its result as a JSON object and as text, if it has ended and the result was requested.
    pub result: Option<(Value, String)>,
    /// The reason why its result is only in the head's memory, if it could not be stored.
    #[serde(default)]
    pub unwritten: Option<String>,
    /// The reason why its result cannot be read, if it is damaged.
    #[serde(default)]
    pub unreadable: Option<String>,
    /// The directory of its files on the head's host.
    pub dir: PathBuf,
}

/// Settings of an archive.
pub struct ArchiveSettings {
    /// The directory of the grid.
    pub dir: PathBuf,
    /// The files of the records.
    pub files: Arc<dyn Files>,
    /// The grid's config in its printed form.
    pub config: String,
    /// The version of this program.
    pub version: &'static str,
    /// Maximum size of a job's event log in bytes.
    pub log_max: u64,
    /// The limits on ended jobs.
    pub retention: Retention,
}

/// Seconds since the Unix epoch.
pub fn since_epoch() -> u64 {
    // Approximate: only people read it.
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
