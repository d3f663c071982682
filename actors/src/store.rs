//! Persistent state of the scheduler, in a record store that survives crashes.
//!
//! Submissions are blobs, written before the record that names them. Only the holder of the grid's
//! lease opens the store. This module does not know the records' meaning to the scheduler.
//!
//! ```text
//! DIR/scheduler.records/    the records, and the submissions of jobs that have not ended
//! DIR/scheduler.lease       the lease that permits writing
//! DIR/scheduler.history     lines of jobs' histories, for explanations
//! DIR/audit.jsonl           commands of other processes, with their senders and outcomes
//! ```

mod history;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use springtide_protocol::reservation::{Reservation, ReservationId};
use springtide_protocol::scheduler::Submit;
use springtide_runtime::id::{Epoch, JobId, NodeId};
use springtide_runtime::net::tls::calendar;
use springtide_runtime::records::{
    BlobRef, Contents, Cursor, Disk, Files, NewRecord as Value, RecordError, RecordLog,
    RecordSchema, RecordSettings,
};
use springtide_runtime::wire::decode_stored;

use crate::audit::AuditLog;
use crate::lease::{Lease, LeaseError};
use springtide_scheduler::core::{HistoryLine, RecoveredJob, StartRecord};
use springtide_scheduler::manager::ManagerMemory;

use self::history::HistoryFile;

/// Schema of [`StoreRecord`] records.
pub const SCHEMA: RecordSchema = RecordSchema { name: "scheduler", version: 1 };
/// Settings of the record store.
pub const SETTINGS: RecordSettings = RecordSettings::new(
    "scheduler",
    "jobs that have not ended, drained nodes and reservations are forgotten",
);

/// Greatest number of a job or a reservation. Half of the range stays free, so that no arithmetic
/// on a number overflows.
const NUMBER_MAX: u64 = u64::MAX / 2;
/// Greatest epoch of a job, for the same reason.
const EPOCH_MAX: u32 = u32::MAX / 2;

/// Directory of the records in a grid's directory.
pub fn records_dir(dir: &Path) -> PathBuf {
    dir.join("scheduler.records")
}

/// A record of the store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum StoreRecord {
    /// An epoch of a job was issued.
    Epoch {
        /// Number of the job.
        job: JobId,
        /// The issued epoch.
        epoch: Epoch,
    },
    /// A job was submitted by a client that does not wait for it.
    Submitted {
        /// Number of the job.
        job: JobId,
        /// The submission: a [`Submit`] as a MessagePack map; with an index, a list of several.
        submission: BlobRef,
        /// The place of the submission in the list of its blob.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        index: Option<u32>,
    },
    /// The job is being started.
    Begun {
        /// Number of the job.
        job: JobId,
        /// Placement and start of the job.
        begun: StartRecord,
    },
    /// The owner sets or removes a maximum of processors.
    Limit {
        /// Number of the job.
        job: JobId,
        /// Maximum number of processors; absent: no maximum.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        most: Option<u32>,
    },
    /// The job has ended.
    Over {
        /// Number of the job.
        job: JobId,
    },
    /// A node was taken out of service for this reason, or returned to service.
    Drained {
        /// Name of the node.
        node: NodeId,
        /// Reason; absent: it is in service.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// A reservation is committed or confirmed.
    Reserved {
        /// The reservation with its bookings.
        reservation: Box<Reservation>,
    },
    /// A reservation has ended.
    Unreserved {
        /// Number of the reservation.
        id: ReservationId,
    },
    /// The manager has learned this.
    Learned {
        /// The whole memory.
        memory: Box<ManagerMemory>,
    },
}

impl StoreRecord {
    fn job(&self) -> Option<JobId> {
        match self {
            Self::Epoch { job, .. }
            | Self::Submitted { job, .. }
            | Self::Begun { job, .. }
            | Self::Limit { job, .. }
            | Self::Over { job } => Some(*job),
            Self::Drained { .. }
            | Self::Reserved { .. }
            | Self::Unreserved { .. }
            | Self::Learned { .. } => None,
        }
    }

    /// Refuses numbers that leave no room for later ones.
    fn checked(self) -> Result<Self, String> {
        if let Some(job) = self.job().filter(|job| job.0 > NUMBER_MAX) {
            return Err(format!("its number of a job, {}, exceeds {NUMBER_MAX}", job.0));
        }
        if let Self::Epoch { epoch, .. } = &self
            && epoch.0 > EPOCH_MAX
        {
            return Err(format!("its epoch, {}, exceeds {EPOCH_MAX}", epoch.0));
        }
        let reservation = match &self {
            Self::Reserved { reservation } => reservation.id.0,
            Self::Unreserved { id } => id.0,
            _ => 0,
        };
        if reservation > NUMBER_MAX {
            return Err(format!(
                "its number of a reservation, {reservation}, exceeds {NUMBER_MAX}"
            ));
        }
        Ok(self)
    }
}

/// Why the store is unusable.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The records are unreadable or not writable.
    #[error(transparent)]
    Records(#[from] RecordError),
    /// A submission cannot be encoded.
    #[error("the submission of {job} cannot be encoded: {reason}")]
    Submission {
        /// Number of the job.
        job: JobId,
        /// Description of the error.
        reason: String,
    },
    /// The store has the format of an earlier version.
    #[error("{} has a format that this program cannot read: end its jobs with the version that \
             wrote it, or move it away to start without them", path.display())]
    Former {
        /// Path of the file.
        path: PathBuf,
    },
    /// Another scheduler holds the lease.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// No number follows the last one.
    #[error("no {kind} number follows the last one")]
    Exhausted {
        /// What is numbered.
        kind: &'static str,
    },
}

/// The open store of a scheduler.
#[derive(Debug)]
pub struct Store {
    /// Log and lease on disk; absent for a store in memory.
    kept: Option<LogAndLease>,
    state: StoreState,
    /// Jobs with an unreadable submission, and the reasons.
    lost: BTreeMap<JobId, String>,
    /// Histories of jobs; none for a store in memory.
    history: Option<HistoryFile>,
    /// Log of the commands of other processes; none for a store in memory.
    audit_log: Option<Arc<AuditLog>>,
}

/// State that results from the records.
#[derive(Clone, Debug, Default, PartialEq)]
struct StoreState {
    last_job: u64,
    /// Jobs that have not ended and that no client waits for.
    open: BTreeMap<JobId, Open>,
    /// The number of these jobs for each file of a submission, for equal jobs share one.
    blobs: BTreeMap<String, u32>,
    /// Epochs of jobs that clients wait for, or that are being submitted.
    epochs: BTreeMap<JobId, Epoch>,
    /// Nodes out of service, with the reasons.
    drained: BTreeMap<NodeId, String>,
    /// Reservations that have not ended.
    reserved: BTreeMap<ReservationId, Reservation>,
    /// Number of the last reservation.
    last_reservation: ReservationId,
    /// What the manager has learned.
    memory: Option<Box<ManagerMemory>>,
}

/// State of a job that has not ended.
#[derive(Clone, Debug, PartialEq)]
struct Open {
    epoch: Epoch,
    submission: Option<BlobRef>,
    /// The place of the submission in the list of its blob; none in a blob of its own.
    index: Option<u32>,
    begun: Option<StartRecord>,
    limit: Option<u32>,
}

/// Log of the records, and the lease to write it.
#[derive(Debug)]
struct LogAndLease {
    log: RecordLog,
    lease: Option<Lease>,
}

impl StoreState {
    fn of(contents: &Contents, dir: &Path) -> Result<Self, StoreError> {
        let mut state = Self::default();
        for record in contents.iter() {
            let entry = record.decode(SCHEMA).and_then(StoreRecord::checked);
            state.apply(&entry.map_err(|reason| record.unreadable(dir, SETTINGS, reason))?);
        }
        Ok(state)
    }

    fn apply(&mut self, entry: &StoreRecord) {
        if let Some(job) = entry.job() {
            self.last_job = self.last_job.max(job.0);
        }
        match entry {
            StoreRecord::Epoch { job, epoch } => match self.open.get_mut(job) {
                Some(open) => open.epoch = open.epoch.max(*epoch),
                None => drop(self.epochs.insert(*job, *epoch)),
            },
            StoreRecord::Submitted { job, submission, index } => {
                let epoch = self.epochs.remove(job).unwrap_or(Epoch(1));
                *self.blobs.entry(submission.file.clone()).or_default() += 1;
                let submission = Some(submission.clone());
                let index = *index;
                let open = Open { epoch, submission, index, begun: None, limit: None };
                if let Some(former) = self.open.insert(*job, open) {
                    self.release_blob(former);
                }
            }
            StoreRecord::Begun { job, begun } => {
                if let Some(open) = self.open.get_mut(job) {
                    open.begun = Some(begun.clone());
                }
            }
            StoreRecord::Limit { job, most } => {
                if let Some(open) = self.open.get_mut(job) {
                    open.limit = *most;
                }
            }
            StoreRecord::Over { job } => {
                if let Some(open) = self.open.remove(job) {
                    self.release_blob(open);
                }
                self.epochs.remove(job);
            }
            StoreRecord::Drained { node, reason: Some(reason) } => {
                self.drained.insert(node.clone(), reason.clone());
            }
            StoreRecord::Drained { node, reason: None } => drop(self.drained.remove(node)),
            StoreRecord::Reserved { reservation } => {
                self.last_reservation = self.last_reservation.max(reservation.id);
                self.reserved.insert(reservation.id, (**reservation).clone());
            }
            StoreRecord::Unreserved { id } => {
                self.last_reservation = self.last_reservation.max(*id);
                self.reserved.remove(id);
            }
            StoreRecord::Learned { memory } => self.memory = Some(memory.clone()),
        }
    }

    fn release_blob(&mut self, open: Open) {
        let Some(blob) = open.submission else { return };
        if let Some(count) = self.blobs.get_mut(&blob.file) {
            *count -= 1;
            if *count == 0 {
                self.blobs.remove(&blob.file);
            }
        }
    }

    /// Records that result in the same state.
    fn entries(&self) -> Vec<StoreRecord> {
        let out_of_service = |(node, reason): (&NodeId, &String)| StoreRecord::Drained {
            node: node.clone(),
            reason: Some(reason.clone()),
        };
        let mut entries: Vec<StoreRecord> = self.drained.iter().map(out_of_service).collect();
        let kept = |one: &Reservation| StoreRecord::Reserved { reservation: Box::new(one.clone()) };
        entries.extend(self.reserved.values().map(kept));
        let learned = |memory| StoreRecord::Learned { memory };
        entries.extend(self.memory.clone().map(learned));
        let last = self.last_reservation;
        if last.0 > 0 && !self.reserved.contains_key(&last) {
            entries.push(StoreRecord::Unreserved { id: last });
        }
        for (&job, Open { epoch, submission, index, begun, limit }) in &self.open {
            entries.push(StoreRecord::Epoch { job, epoch: *epoch });
            let submission = submission.clone();
            let index = *index;
            let stored = |submission| StoreRecord::Submitted { job, submission, index };
            entries.extend(submission.map(stored));
            entries.extend(begun.clone().map(|begun| StoreRecord::Begun { job, begun }));
            entries.extend(limit.map(|most| StoreRecord::Limit { job, most: Some(most) }));
        }
        let last = JobId(self.last_job);
        if last.0 > 0 && !self.open.contains_key(&last) {
            // The number must not be issued again.
            entries.push(StoreRecord::Over { job: last });
        }
        entries
    }

    /// Checks that `entries` result in the same state, without the epochs of jobs whose clients
    /// wait.
    fn check_entries(&self, entries: &[StoreRecord]) -> Result<(), String> {
        let mut again = StoreState::default();
        entries.iter().for_each(|entry| again.apply(entry));
        let numbers = |state: &StoreState| (state.last_job, state.last_reservation);
        if numbers(&again) != numbers(self) {
            let (ours, theirs) = (numbers(self), numbers(&again));
            return Err(format!("its records have the last numbers {theirs:?}, not {ours:?}"));
        }
        if again.open != self.open {
            return Err("its records have other jobs".to_owned());
        }
        if again.memory != self.memory {
            return Err("its records have another memory of the manager".to_owned());
        }
        if again.drained != self.drained || again.reserved != self.reserved {
            return Err("its records have other drained nodes or reservations".to_owned());
        }
        Ok(())
    }
}

/// Reads a submission of a list. `last` holds the list that was read last.
fn read_of_list(
    log: &RecordLog,
    blob: &BlobRef,
    index: u32,
    last: &mut Option<(String, Vec<Bytes>)>,
) -> Result<Vec<u8>, String> {
    let list = match last.take() {
        Some((file, list)) if file == blob.file => list,
        _ => {
            let bytes = log.blob(blob).map_err(|error| error.to_string())?;
            decode_stored(&bytes).map_err(|error| error.to_string())?
        }
    };
    let found = list.get(index as usize).map(|bytes| bytes.to_vec());
    *last = Some((blob.file.clone(), list));
    found.ok_or_else(|| format!("its list has no submission {index}"))
}

/// A submission as it is stored.
fn encoded(job: JobId, submit: &Submit) -> Result<Vec<u8>, StoreError> {
    let refused =
        |error: rmp_serde::encode::Error| StoreError::Submission { job, reason: error.to_string() };
    rmp_serde::to_vec_named(submit).map_err(refused)
}

impl Store {
    /// Opens the store in this directory of a grid, or creates it, and reads its records. No other
    /// process can open it meanwhile.
    ///
    /// # Errors
    /// [`StoreError`] with the file.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        Self::open_with(dir, Arc::new(Disk))
    }

    /// As [`Store::open`], with the records in these files.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open_with(dir: &Path, files: Arc<dyn Files>) -> Result<Self, StoreError> {
        let former = dir.join("scheduler.log");
        if former.exists() {
            return Err(StoreError::Former { path: former });
        }
        let lease = Lease::take(&lease_path(dir))?;
        let store = Self::open_on(files, dir, Some(lease))?;
        let history = Some(HistoryFile::new(dir.join("scheduler.history")));
        let audit_log = Some(Arc::new(AuditLog::of(dir, calendar())));
        Ok(Self { history, audit_log, ..store })
    }

    fn open_on(
        files: Arc<dyn Files>,
        dir: &Path,
        lease: Option<Lease>,
    ) -> Result<Self, StoreError> {
        let dir = records_dir(dir);
        let (log, contents) = RecordLog::open(files, &dir, SETTINGS)?;
        let state = StoreState::of(&contents, &dir)?;
        // A crash may have occurred between a submission and its record.
        let wanted = |file: &str| {
            let mut blobs = state.open.values().filter_map(|open| open.submission.as_ref());
            blobs.any(|blob| blob.file == file)
        };
        log.retain_blobs(wanted)?;
        let (kept, lost) = (Some(LogAndLease { log, lease }), BTreeMap::new());
        Ok(Self { kept, state, lost, history: None, audit_log: None })
    }

    /// Issues numbers above `last` only. The store may be older than the jobs that are left.
    pub fn skip_numbers(&mut self, last: JobId) {
        // The first issued number records this.
        self.state.last_job = self.state.last_job.max(last.0.min(NUMBER_MAX));
    }

    /// A store in memory, for grids of tests and simulations that end with their process.
    pub fn in_memory() -> Self {
        let (state, lost) = Default::default();
        Self { kept: None, state, lost, history: None, audit_log: None }
    }

    /// The log of the commands of other processes, if the store is on disk.
    pub fn audit_log(&self) -> Option<&Arc<AuditLog>> {
        self.audit_log.as_ref()
    }

    /// Checks that this is still the only scheduler of the grid.
    ///
    /// # Errors
    /// [`StoreError::Lease`].
    pub fn check(&self) -> Result<(), StoreError> {
        let lease = self.kept.as_ref().and_then(|kept| kept.lease.as_ref());
        Ok(lease.map_or(Ok(()), Lease::check)?)
    }

    /// Issues a new job number with its first epoch. Both are on disk when this returns.
    ///
    /// # Errors
    /// [`StoreError`]; then the number must not be used, and is not issued again.
    pub fn new_job(&mut self) -> Result<(JobId, Epoch), StoreError> {
        if self.state.last_job >= NUMBER_MAX {
            return Err(StoreError::Exhausted { kind: "job" });
        }
        let (job, epoch) = (JobId(self.state.last_job + 1), Epoch(1));
        self.state.last_job = job.0;
        self.append(StoreRecord::Epoch { job, epoch })?;
        Ok((job, epoch))
    }

    /// Issues the epoch after `known` of a job. It is on disk when this returns.
    ///
    /// # Errors
    /// [`StoreError`]; then the epoch must not be used.
    pub fn new_epoch(&mut self, job: JobId, known: Epoch) -> Result<Epoch, StoreError> {
        if known.0 >= EPOCH_MAX {
            return Err(StoreError::Exhausted { kind: "epoch" });
        }
        let epoch = Epoch(known.0 + 1);
        self.append(StoreRecord::Epoch { job, epoch })?;
        Ok(epoch)
    }

    /// Issues numbers with first epochs for these submissions, and stores them until the jobs have
    /// [ended](Store::record_end). All are on disk when this returns.
    ///
    /// # Errors
    /// [`StoreError`]; then none is stored, and no number must be used.
    pub fn new_jobs(&mut self, submits: &[Submit]) -> Result<Vec<(JobId, Epoch)>, StoreError> {
        let first = self.state.last_job;
        let count = submits.len() as u64;
        if first.saturating_add(count) > NUMBER_MAX {
            return Err(StoreError::Exhausted { kind: "job" });
        }
        // After a failure the numbers are not issued again.
        self.state.last_job += count;
        let issued = (first + 1..=first + count).map(|number| (JobId(number), Epoch(1)));
        let issued: Vec<(JobId, Epoch)> = issued.collect();
        if submits.is_empty() {
            return Ok(issued);
        }
        let Some(LogAndLease { log, .. }) = &self.kept else {
            for (job, epoch) in &issued {
                let open =
                    Open { epoch: *epoch, submission: None, index: None, begun: None, limit: None };
                self.state.open.insert(*job, open);
            }
            return Ok(issued);
        };
        // One blob holds all submissions, each once if equal ones follow each other.
        let mut indices: Vec<u32> = Vec::with_capacity(submits.len());
        let mut different: Vec<Bytes> = Vec::new();
        for ((job, _), submit) in issued.iter().zip(submits) {
            let bytes = encoded(*job, submit)?;
            if different.last().is_none_or(|last| **last != bytes) {
                different.push(Bytes::from(bytes));
            }
            indices.push(u32::try_from(different.len() - 1).unwrap_or(u32::MAX));
        }
        let label = JobId(first + 1);
        let list = rmp_serde::to_vec(&different)
            .map_err(|error| StoreError::Submission { job: label, reason: error.to_string() })?;
        let submission = log.put_blob(&label.to_string(), &list)?;
        let mut entries = Vec::with_capacity(2 * submits.len());
        for (&(job, epoch), index) in issued.iter().zip(indices) {
            let (submission, index) = (submission.clone(), Some(index));
            entries.push(StoreRecord::Epoch { job, epoch });
            entries.push(StoreRecord::Submitted { job, submission, index });
        }
        self.append_all(entries)?;
        Ok(issued)
    }

    /// Stores a submission until the job has [ended](Store::record_end).
    ///
    /// # Errors
    /// [`StoreError`]; then it is not stored.
    pub fn store_submission(
        &mut self,
        job: JobId,
        epoch: Epoch,
        submit: &Submit,
    ) -> Result<(), StoreError> {
        let Some(LogAndLease { log, .. }) = &self.kept else {
            self.state.epochs.remove(&job);
            let open = Open { epoch, submission: None, index: None, begun: None, limit: None };
            self.state.open.insert(job, open);
            return Ok(());
        };
        let bytes = encoded(job, submit)?;
        let submission = log.put_blob(&job.to_string(), &bytes)?;
        self.append(StoreRecord::Submitted { job, submission, index: None })
    }

    /// Records that a job is being started. Ignored for jobs that are not
    /// [stored](Store::store_submission).
    ///
    /// # Errors
    /// [`StoreError`]; then it is not recorded.
    pub fn record_start(&mut self, job: JobId, begun: StartRecord) -> Result<(), StoreError> {
        if self.state.open.contains_key(&job) {
            self.append(StoreRecord::Begun { job, begun })
        } else {
            Ok(())
        }
    }

    /// Records the maximum of processors that a job's owner sets. Ignored for jobs that are not
    /// [stored](Store::store_submission).
    ///
    /// # Errors
    /// [`StoreError`]; then it is not recorded.
    pub fn limit(&mut self, job: JobId, most: Option<u32>) -> Result<(), StoreError> {
        if self.state.open.get(&job).is_some_and(|open| open.limit != most) {
            self.append(StoreRecord::Limit { job, most })
        } else {
            Ok(())
        }
    }

    /// Records that a node is out of service with this reason, or in service.
    ///
    /// # Errors
    /// [`StoreError`]; then it is not recorded.
    pub fn set_drained(&mut self, node: &NodeId, reason: Option<&str>) -> Result<(), StoreError> {
        if self.state.drained.get(node).map(String::as_str) == reason {
            return Ok(());
        }
        self.append(StoreRecord::Drained { node: node.clone(), reason: reason.map(str::to_owned) })
    }

    /// Nodes out of service, with the reasons.
    pub fn drained_nodes(&self) -> &BTreeMap<NodeId, String> {
        &self.state.drained
    }

    /// Stores the current state of a reservation until it has [ended](Store::delete_reservation).
    ///
    /// # Errors
    /// [`StoreError`]; then it is not stored.
    pub fn record_reservation(&mut self, one: &Reservation) -> Result<(), StoreError> {
        self.append(StoreRecord::Reserved { reservation: Box::new(one.clone()) })
    }

    /// Deletes a reservation.
    ///
    /// # Errors
    /// [`StoreError`]; then the next scheduler finds it, and that it has expired.
    pub fn delete_reservation(&mut self, id: ReservationId) -> Result<(), StoreError> {
        if self.state.reserved.contains_key(&id) {
            self.append(StoreRecord::Unreserved { id })
        } else {
            Ok(())
        }
    }

    /// Records what the manager has learned, if that has changed.
    ///
    /// # Errors
    /// [`StoreError`]; then it is not recorded.
    pub fn record_memory(&mut self, memory: &ManagerMemory) -> Result<(), StoreError> {
        if self.memory().is_some_and(|known| known == memory) {
            return Ok(());
        }
        self.append(StoreRecord::Learned { memory: Box::new(memory.clone()) })
    }

    /// What the manager of an earlier scheduler had learned.
    pub fn memory(&self) -> Option<&ManagerMemory> {
        self.state.memory.as_deref()
    }

    /// Stores lines of jobs' histories. A crash of the machine may lose the last ones.
    pub fn add_history(&mut self, lines: &[HistoryLine]) {
        if let Some(history) = &mut self.history {
            history.add(lines);
        }
    }

    /// The stored lines of jobs' histories, oldest first.
    pub fn history(&self) -> Vec<HistoryLine> {
        self.history.as_ref().map(HistoryFile::read).unwrap_or_default()
    }

    /// Number of the last recorded reservation.
    pub fn last_reservation(&self) -> ReservationId {
        self.state.last_reservation
    }

    /// Recorded reservations that have not ended.
    pub fn reservations(&self) -> &BTreeMap<ReservationId, Reservation> {
        &self.state.reserved
    }

    /// Deletes a job that has ended.
    ///
    /// # Errors
    /// [`StoreError`]; then the next scheduler finds the job.
    pub fn record_end(&mut self, job: JobId) -> Result<(), StoreError> {
        let Some(open) = self.state.open.get(&job) else {
            // Other jobs have only epochs on disk, which a compaction removes.
            self.state.epochs.remove(&job);
            return Ok(());
        };
        let submission = open.submission.clone();
        self.append(StoreRecord::Over { job })?;
        let submission = submission.filter(|blob| !self.state.blobs.contains_key(&blob.file));
        if let (Some(submission), Some(LogAndLease { log, .. })) = (submission, &self.kept) {
            // A remaining blob is removed when the store is opened next.
            let _ = log.remove_blob(&submission);
        }
        Ok(())
    }

    /// Returns the jobs of a former scheduler in their last state.
    ///
    /// Deletes jobs for which `wanted` is false, and jobs with a damaged submission. The others
    /// continue, and [`Store::lost`] returns the reasons.
    ///
    /// # Errors
    /// [`StoreError`] if a deletion cannot be recorded.
    pub fn recover(
        &mut self,
        wanted: impl Fn(JobId) -> bool,
    ) -> Result<Vec<RecoveredJob>, StoreError> {
        let mut found = Vec::new();
        // Jobs of one list follow each other.
        let mut last: Option<(String, Vec<Bytes>)> = None;
        for (job, open) in self.state.open.clone() {
            let Some(LogAndLease { log, .. }) = self.kept.as_ref().filter(|_| wanted(job)) else {
                self.record_end(job)?;
                continue;
            };
            let Open { epoch, submission, index, begun, limit } = open;
            let read = submission.ok_or_else(|| "it has no stored submission".to_owned());
            let read = read.and_then(|blob| match index {
                None => log.blob(&blob).map_err(|error| error.to_string()),
                Some(index) => read_of_list(log, &blob, index, &mut last),
            });
            let read = read.and_then(|bytes| {
                decode_stored::<Submit>(&bytes).map_err(|error| error.to_string())
            });
            match read {
                Ok(submit) => {
                    let submit = Box::new(submit);
                    found.push(RecoveredJob { job, epoch, submit, begun, limit });
                }
                Err(reason) => {
                    tracing::error!("{job} is lost: its submission is unreadable: {reason}");
                    self.record_end(job)?;
                    self.lost.insert(job, reason);
                }
            }
        }
        Ok(found)
    }

    /// Jobs that [`Store::recover`] could not read, with the reasons.
    pub fn lost(&self) -> &BTreeMap<JobId, String> {
        &self.lost
    }

    /// A cursor over the records from this number on; none for a store in memory.
    pub fn cursor(&self, from: u64) -> Option<Cursor> {
        self.kept.as_ref().map(|kept| kept.log.cursor(from))
    }

    fn append(&mut self, entry: StoreRecord) -> Result<(), StoreError> {
        self.append_all(vec![entry])
    }

    /// Appends records with one wait for the disk.
    fn append_all(&mut self, entries: Vec<StoreRecord>) -> Result<(), StoreError> {
        if let Some(LogAndLease { log, lease, .. }) = &mut self.kept {
            lease.as_ref().map_or(Ok(()), Lease::check)?;
            let values: Result<Vec<Value>, RecordError> =
                entries.iter().map(|entry| Value::new(SCHEMA, entry)).collect();
            log.append_all(&values?)?;
        }
        entries.iter().for_each(|entry| self.state.apply(entry));
        self.compact();
        Ok(())
    }

    /// Compacts the records if that is due.
    ///
    /// # Panics
    /// The compacted records would result in another state.
    fn compact(&mut self) {
        let Some(LogAndLease { log, .. }) = &mut self.kept else { return };
        let is_due = log.is_compaction_due();
        if !is_due && !cfg!(debug_assertions) {
            return;
        }
        let entries = self.state.entries();
        if let Err(broken) = self.state.check_entries(&entries) {
            // The records would lose what the scheduler knows.
            panic!("the state of the store is inconsistent: {broken}");
        }
        if !is_due {
            return;
        }
        let values: Result<Vec<Value>, RecordError> =
            entries.iter().map(|entry| Value::new(SCHEMA, entry)).collect();
        // After an error the records are unchanged, and the next record retries.
        if let Err(error) = values.and_then(|values| log.compact(&values)) {
            tracing::warn!("the scheduler's records are not compacted: {error}");
        }
    }
}

/// The path of the lease in a grid's directory.
pub fn lease_path(dir: &Path) -> PathBuf {
    dir.join("scheduler.lease")
}

#[cfg(test)]
mod tests;
