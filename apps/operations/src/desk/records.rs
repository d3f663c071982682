//! The record store of the job archive: submissions, outcomes and ends.
//!
//! ```text
//! DIR/jobs.records/   the records; results and large outcomes are blobs
//! ```
//!
//! The files of a job's directory are copies for people: the grid never reads an answer from them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use springtide_runtime::id::JobId;
use springtide_runtime::records::{
    BlobRef, Disk, Files, NewRecord as Written, RecordError, RecordLog, RecordSchema,
    RecordSettings,
};
use springtide_runtime::work::Outcome;

use super::entry::{ArchiveEntry, JobEnd};

const SCHEMA: RecordSchema = RecordSchema { name: "jobs", version: 1 };
const SETTINGS: RecordSettings =
    RecordSettings::new("jobs", "submissions and results of jobs are forgotten");

/// The directory of the records in a grid's directory.
pub(super) fn records_dir(dir: &Path) -> PathBuf {
    dir.join("jobs.records")
}

/// An entry of the record log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
enum ArchiveRecord {
    /// A job was submitted.
    Submitted {
        /// The job, without an end.
        entry: ArchiveEntry,
    },
    /// A job has an outcome, and has not ended.
    Outcome {
        /// The job.
        job: JobId,
        /// The [`Outcome`] as JSON.
        outcome: StoredOutcome,
    },
    /// A job has ended.
    Ended {
        /// The job.
        job: JobId,
        /// The kind of its end.
        end: JobEnd,
        /// Time of the end in seconds since the Unix epoch.
        at_unix_s: u64,
        /// The [`JobResult`] as JSON.
        result: BlobRef,
    },
    /// Ended jobs were removed.
    Purged {
        /// The removed jobs.
        jobs: Vec<JobId>,
    },
    /// The highest job number, in a snapshot.
    Last {
        /// The job.
        job: JobId,
    },
}

/// An outcome in a record. A blob costs two more waits for the disk, so that small outcomes are in
/// the record itself. Results stay for long, and damage to one must not concern others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
enum StoredOutcome {
    Blob(BlobRef),
    Inline {
        /// The value as JSON.
        json: String,
    },
}

/// Checks that the records in a grid's directory are readable.
///
/// # Errors
/// They are damaged, or of a newer version.
pub fn check_records(dir: &Path) -> Result<(), RecordError> {
    JobRecords::open(Arc::new(Disk), dir).map(drop)
}

/// The maximum length of an outcome in its record, in bytes.
const INLINE_MAX: usize = if cfg!(test) { 28 } else { 2048 };

/// A job's result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct JobResult {
    /// The result as one JSON object.
    pub(super) object: Value,
    /// The result as text.
    pub(super) summary: String,
}

/// The records of all jobs, shared by the archive and its jobs.
#[derive(Clone, Debug)]
pub(super) struct JobRecords(Arc<Mutex<OpenArchive>>);

#[derive(Debug)]
struct OpenArchive {
    log: RecordLog,
    state: RecordsState,
}

/// The state that follows from the records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct RecordsState {
    jobs: BTreeMap<JobId, RecordedJob>,
    last: JobId,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct RecordedJob {
    entry: ArchiveEntry,
    outcome: Option<StoredOutcome>,
    result: Option<BlobRef>,
}

impl RecordsState {
    /// Applies an entry. Returns the blobs that no record names any longer.
    fn apply(&mut self, entry: ArchiveRecord) -> Vec<BlobRef> {
        match entry {
            ArchiveRecord::Submitted { entry } => {
                self.last = self.last.max(entry.job);
                let kept = RecordedJob { entry, outcome: None, result: None };
                self.jobs.insert(kept.entry.job, kept);
                Vec::new()
            }
            ArchiveRecord::Outcome { job, outcome } => match self.jobs.get_mut(&job) {
                Some(kept) => {
                    let former = kept.outcome.replace(outcome);
                    former.and_then(StoredOutcome::into_blob).into_iter().collect()
                }
                None => outcome.into_blob().into_iter().collect(),
            },
            ArchiveRecord::Ended { job, end, at_unix_s, result } => match self.jobs.get_mut(&job) {
                Some(kept) => {
                    (kept.entry.ended, kept.entry.ended_unix_s) = (Some(end), Some(at_unix_s));
                    let former = kept.result.replace(result);
                    let outcome = kept.outcome.take().and_then(StoredOutcome::into_blob);
                    outcome.into_iter().chain(former).collect()
                }
                None => vec![result],
            },
            ArchiveRecord::Purged { jobs } => {
                let removed = jobs.iter().filter_map(|job| self.jobs.remove(job));
                let blobs = removed.flat_map(|kept| {
                    kept.outcome.and_then(StoredOutcome::into_blob).into_iter().chain(kept.result)
                });
                blobs.collect()
            }
            ArchiveRecord::Last { job } => {
                self.last = self.last.max(job);
                Vec::new()
            }
        }
    }

    fn entries(&self) -> Vec<ArchiveRecord> {
        let mut entries = vec![ArchiveRecord::Last { job: self.last }];
        for (&job, RecordedJob { entry, outcome, result }) in &self.jobs {
            let submitted = ArchiveEntry { ended: None, ended_unix_s: None, ..entry.clone() };
            entries.push(ArchiveRecord::Submitted { entry: submitted });
            let outcome = outcome.clone();
            entries.extend(outcome.map(|outcome| ArchiveRecord::Outcome { job, outcome }));
            if let (Some(end), Some(result)) = (entry.ended.clone(), result.clone()) {
                let at_unix_s = entry.ended_unix_s.unwrap_or_default();
                entries.push(ArchiveRecord::Ended { job, end, at_unix_s, result });
            }
        }
        entries
    }

    fn names(&self, file: &str) -> bool {
        let mut all = self.jobs.values().flat_map(|kept| {
            kept.outcome.as_ref().and_then(StoredOutcome::blob).into_iter().chain(&kept.result)
        });
        all.any(|blob| blob.file == file)
    }
}

impl JobRecords {
    /// Opens the records of the grid with this directory, or creates them.
    ///
    /// # Errors
    /// The records are damaged or cannot be used.
    pub(super) fn open(files: Arc<dyn Files>, dir: &Path) -> Result<Self, RecordError> {
        let dir = records_dir(dir);
        let (log, contents) = RecordLog::open(files, &dir, SETTINGS)?;
        let mut state = RecordsState::default();
        for record in contents.iter() {
            let entry = record.decode(SCHEMA);
            state.apply(entry.map_err(|reason| record.unreadable(&dir, SETTINGS, reason))?);
        }
        log.retain_blobs(|file| state.names(file))?;
        Ok(Self(Arc::new(Mutex::new(OpenArchive { log, state }))))
    }

    fn inner(&self) -> MutexGuard<'_, OpenArchive> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The entries of all jobs.
    pub(super) fn entries(&self) -> Vec<ArchiveEntry> {
        self.inner().state.jobs.values().map(|kept| kept.entry.clone()).collect()
    }

    /// The highest number that a job ever had.
    pub(super) fn last(&self) -> JobId {
        self.inner().state.last
    }

    /// Records the submissions of jobs, with one wait for the disk.
    pub(super) fn submitted(&self, entries: &[ArchiveEntry]) -> Result<(), RecordError> {
        let records = entries.iter().map(|entry| ArchiveRecord::Submitted { entry: entry.clone() });
        self.inner().append_all(records.collect())
    }

    /// Records the outcome of a job.
    pub(super) fn has_outcome(&self, job: JobId, outcome: &Outcome) -> Result<(), RecordError> {
        let mut inner = self.inner();
        let json = json_of(outcome)?;
        let outcome = match json.len() {
            0..=INLINE_MAX => StoredOutcome::Inline { json },
            _ => {
                StoredOutcome::Blob(inner.log.put_blob(&format!("{job}-outcome"), json.as_bytes())?)
            }
        };
        inner.append(ArchiveRecord::Outcome { job, outcome })
    }

    /// Records the end of a job.
    pub(super) fn ended(
        &self,
        job: JobId,
        end: &JobEnd,
        at_unix_s: u64,
        result: &JobResult,
    ) -> Result<(), RecordError> {
        let mut inner = self.inner();
        let json = json_of(result)?;
        let result = inner.log.put_blob(&format!("{job}-result"), json.as_bytes())?;
        inner.append(ArchiveRecord::Ended { job, end: end.clone(), at_unix_s, result })
    }

    /// Records the removal of ended jobs.
    pub(super) fn purged(&self, jobs: &[JobId]) -> Result<(), RecordError> {
        self.inner().append(ArchiveRecord::Purged { jobs: jobs.to_vec() })
    }

    /// The outcome of a job without an end, if it is stored.
    pub(super) fn outcome(&self, job: JobId) -> Result<Option<Outcome>, RecordError> {
        let inner = self.inner();
        match inner.state.jobs.get(&job).and_then(|kept| kept.outcome.as_ref()) {
            None => Ok(None),
            Some(StoredOutcome::Blob(blob)) => inner.get(blob).map(Some),
            Some(StoredOutcome::Inline { json }) => {
                let path = inner.log.dir().to_owned();
                let refused = |error: serde_json::Error| RecordError::Blob {
                    path,
                    reason: error.to_string(),
                };
                serde_json::from_str(json).map(Some).map_err(refused)
            }
        }
    }

    /// The result of a job, if it is stored.
    pub(super) fn result(&self, job: JobId) -> Result<Option<JobResult>, RecordError> {
        let inner = self.inner();
        let blob = inner.state.jobs.get(&job).and_then(|kept| kept.result.as_ref());
        blob.map(|blob| inner.get(blob)).transpose()
    }
}

impl StoredOutcome {
    fn blob(&self) -> Option<&BlobRef> {
        match self {
            Self::Blob(blob) => Some(blob),
            Self::Inline { .. } => None,
        }
    }

    fn into_blob(self) -> Option<BlobRef> {
        match self {
            Self::Blob(blob) => Some(blob),
            Self::Inline { .. } => None,
        }
    }
}

fn json_of(value: &impl Serialize) -> Result<String, RecordError> {
    let refused = |error: serde_json::Error| RecordError::Value {
        schema: SCHEMA.name,
        reason: error.to_string(),
    };
    serde_json::to_string(value).map_err(refused)
}

impl OpenArchive {
    fn get<T: DeserializeOwned>(&self, blob: &BlobRef) -> Result<T, RecordError> {
        let bytes = self.log.blob(blob)?;
        serde_json::from_slice(&bytes).map_err(|error| RecordError::Blob {
            path: self.log.dir().join("blobs").join(&blob.file),
            reason: error.to_string(),
        })
    }

    fn append(&mut self, entry: ArchiveRecord) -> Result<(), RecordError> {
        self.append_all(vec![entry])
    }

    fn append_all(&mut self, entries: Vec<ArchiveRecord>) -> Result<(), RecordError> {
        let values: Result<Vec<Written>, RecordError> =
            entries.iter().map(|entry| Written::new(SCHEMA, entry)).collect();
        self.log.append_all(&values?)?;
        for blob in entries.into_iter().flat_map(|entry| self.state.apply(entry)) {
            // A blob that stays is removed when the records are next opened.
            let _ = self.log.remove_blob(&blob);
        }
        if self.log.is_compaction_due() {
            let entries = self.state.entries();
            let entries: Result<Vec<Written>, RecordError> =
                entries.iter().map(|entry| Written::new(SCHEMA, entry)).collect();
            // The record is stored; the next append compacts again.
            if let Err(error) = entries.and_then(|entries| self.log.compact(&entries)) {
                tracing::warn!("the records of jobs are not compacted: {error}");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use springtide_runtime::records::memory::{MemoryFiles, StorageFault};

    use super::*;

    fn open(files: &MemoryFiles) -> Result<JobRecords, RecordError> {
        JobRecords::open(Arc::new(files.clone()), Path::new("grid"))
    }

    fn entry(job: u64) -> ArchiveEntry {
        ArchiveEntry {
            job: JobId(job),
            name: "queens".to_owned(),
            line: "queens --size 10".to_owned(),
            submitted_unix_s: 7,
            ended: None,
            ended_unix_s: None,
            principal: None,
        }
    }

    fn outcome() -> Outcome {
        Outcome { checksum: 7, result: json!({ "solutions": 724 }) }
    }

    fn result() -> JobResult {
        JobResult { object: json!({ "solutions": 724 }), summary: "724".to_owned() }
    }

    fn done() -> JobEnd {
        JobEnd::default()
    }

    /// A job that ends, one that has an outcome, one that runs and one that is purged.
    fn fill(files: &MemoryFiles) -> Result<(), RecordError> {
        let records = open(files)?;
        for job in 1..=4 {
            records.submitted(&[entry(job)])?;
        }
        for job in [1, 2, 4] {
            records.has_outcome(JobId(job), &outcome())?;
        }
        records.ended(JobId(1), &done(), 9, &result())?;
        records.ended(JobId(4), &done(), 9, &result())?;
        records.purged(&[JobId(4)])
    }

    #[test]
    fn jobs_and_outcomes_survive_a_restart_and_a_snapshot() {
        let files = MemoryFiles::new(0);
        fill(&files).unwrap();
        let records = open(&files).unwrap();
        let ended = ArchiveEntry { ended: Some(done()), ended_unix_s: Some(9), ..entry(1) };
        assert_eq!(records.entries(), [ended, entry(2), entry(3)]);
        assert_eq!(records.last(), JobId(4));
        assert_eq!(records.outcome(JobId(2)).unwrap(), Some(outcome()));
        assert_eq!(records.result(JobId(1)).unwrap(), Some(result()));
        assert_eq!(records.result(JobId(3)).unwrap(), None);
        let blobs = files.paths().iter().filter(|path| path.extension().unwrap() != "log").count();
        assert_eq!(blobs, 2, "{:?}", files.paths());
        let inner = records.inner();
        let mut again = RecordsState::default();
        inner.state.entries().into_iter().for_each(|entry| drop(again.apply(entry)));
        assert_eq!(again, inner.state);
    }

    #[test]
    fn a_small_outcome_is_in_its_record() {
        let files = MemoryFiles::new(0);
        let small = Outcome { checksum: 7, result: Value::Null };
        let records = open(&files).unwrap();
        records.submitted(&[entry(1)]).unwrap();
        records.has_outcome(JobId(1), &small).unwrap();
        let is_log = |path: &std::path::PathBuf| path.extension().is_some_and(|it| it == "log");
        assert!(files.paths().iter().all(is_log), "{:?}", files.paths());
        assert_eq!(open(&files).unwrap().outcome(JobId(1)).unwrap(), Some(small));
    }

    #[test]
    fn no_flipped_bit_changes_a_value() {
        let files = MemoryFiles::new(0);
        fill(&files).unwrap();
        let before = open(&files).unwrap().entries();
        for path in files.paths() {
            for bit in 0..files.read(&path, 0).unwrap().len() * 8 {
                let damaged = files.copy();
                damaged.flip(&path, bit);
                let about = format!("{}, bit {bit}", path.display());
                let Ok(records) = open(&damaged) else { continue };
                assert_eq!(records.entries(), before, "{about}");
                let blob = |name: &str| path.to_string_lossy().contains(name);
                let (outcome_of_2, result_of_1) =
                    (records.outcome(JobId(2)), records.result(JobId(1)));
                assert_eq!(outcome_of_2.is_err(), blob("job-2-outcome"), "{about}");
                assert_eq!(result_of_1.is_err(), blob("job-1-result"), "{about}");
                let errors = outcome_of_2.err().into_iter().chain(result_of_1.err());
                let errors: Vec<String> = errors.map(|error| error.to_string()).collect();
                // One of them is damaged, or opening would have failed.
                assert!(errors.len() == 1 && errors[0].contains("is damaged"), "{about}");
            }
        }
    }

    #[test]
    fn a_crash_at_every_step_keeps_acknowledged_records() {
        let files = MemoryFiles::new(0);
        fill(&files).unwrap();
        for step in 1..=files.steps() {
            for seed in 0..10 {
                let files = MemoryFiles::new(seed);
                files.fault_at(step, StorageFault::Crash);
                // Failed removal of unnamed blobs is not reported.
                let _ = fill(&files);
                assert!(files.has_crashed());
                files.restart();
                let records = open(&files).unwrap();
                for entry in records.entries() {
                    let job = entry.job;
                    let found = records.outcome(job).unwrap();
                    assert!(found.is_none_or(|found| found == outcome()));
                    let found = records.result(job).unwrap();
                    assert_eq!(found, entry.ended.map(|_| result()), "step {step}, seed {seed}");
                }
            }
        }
    }
}
