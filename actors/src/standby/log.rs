//! The durable state of a member in a record store.
//!
//! A record is a change of the state. A snapshot's value is a blob. This module does not know the
//! protocol's decisions.

use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use springtide_runtime::records::{
    BlobRef, Files, NewRecord, RecordError, RecordLog, RecordSchema, RecordSettings,
};
use springtide_scheduler::standby::{DurableChange, DurableState};

const SCHEMA: RecordSchema = RecordSchema { name: "standby", version: 1 };
const SETTINGS: RecordSettings =
    RecordSettings::new("standby", "this member's votes are forgotten: two heads may act");

/// A change as it is stored.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct StoredChange {
    /// The change, without the value of a snapshot.
    change: DurableChange,
    /// The value of a snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    value: Option<BlobRef>,
}

/// The log of a member's durable state.
#[derive(Debug)]
pub struct MemberLog {
    log: RecordLog,
    state: DurableState,
    /// The blob of the present snapshot.
    snapshot: Option<BlobRef>,
}

impl MemberLog {
    /// Opens the log in this directory, or creates it. No other process may have it open.
    ///
    /// # Errors
    /// The records are damaged, or the operating system reports an error.
    pub fn open(files: Arc<dyn Files>, dir: &Path) -> Result<Self, RecordError> {
        let (log, contents) = RecordLog::open(files, dir, SETTINGS)?;
        let (mut state, mut snapshot) = (DurableState::default(), None);
        for record in contents.iter() {
            let stored: StoredChange =
                record.decode(SCHEMA).map_err(|reason| record.unreadable(dir, SETTINGS, reason))?;
            if matches!(stored.change, DurableChange::Snapshot { .. }) {
                snapshot.clone_from(&stored.value);
            }
            state.apply(stored.change);
        }
        if let Some(blob) = &snapshot {
            state.snapshot = log.blob(blob)?;
        }
        log.retain_blobs(|file| snapshot.as_ref().is_some_and(|blob| blob.file == file))?;
        Ok(Self { log, state, snapshot })
    }

    /// The state on disk.
    pub fn state(&self) -> &DurableState {
        &self.state
    }

    /// Saves a change. It is durable when this returns.
    ///
    /// # Errors
    /// [`RecordError`]; then it may be durable or not, and the member must stop.
    pub fn save(&mut self, change: DurableChange) -> Result<(), RecordError> {
        let stored = self.stored(change.clone())?;
        self.log.append(SCHEMA, &stored)?;
        if matches!(change, DurableChange::Snapshot { .. }) {
            let former = std::mem::replace(&mut self.snapshot, stored.value);
            if let Some(blob) = former.filter(|former| Some(former) != self.snapshot.as_ref()) {
                self.log.remove_blob(&blob)?;
            }
        }
        self.state.apply(change);
        if self.log.is_compaction_due() {
            self.compact()?;
        }
        Ok(())
    }

    /// A change without the value of a snapshot, which is durable in a blob.
    fn stored(&self, change: DurableChange) -> Result<StoredChange, RecordError> {
        match change {
            DurableChange::Snapshot { position, value } if !value.is_empty() => {
                let blob = self.log.put_blob("snapshot", &value)?;
                let change = DurableChange::Snapshot { position, value: Vec::new() };
                Ok(StoredChange { change, value: Some(blob) })
            }
            change => Ok(StoredChange { change, value: None }),
        }
    }

    fn compact(&mut self) -> Result<(), RecordError> {
        let changes = self.state.changes().into_iter().map(|change| match change {
            DurableChange::Snapshot { position, .. } => {
                let change = DurableChange::Snapshot { position, value: Vec::new() };
                StoredChange { change, value: self.snapshot.clone() }
            }
            change => StoredChange { change, value: None },
        });
        let records: Result<Vec<NewRecord>, RecordError> =
            changes.map(|stored| NewRecord::new(SCHEMA, &stored)).collect();
        self.log.compact(&records?)
    }
}

#[cfg(test)]
mod tests {
    use springtide_runtime::id::NodeId;
    use springtide_runtime::records::memory::{MemoryFiles, StorageFault};
    use springtide_scheduler::standby::{LogEntry, LogPosition, Term};

    use super::*;

    fn entry(term: u64, number: u8) -> LogEntry {
        LogEntry { term: Term(term), value: Some(vec![number; 40]) }
    }

    fn changes() -> Vec<DurableChange> {
        let snapshot = |term, index, value: &[u8]| DurableChange::Snapshot {
            position: LogPosition { term: Term(term), index },
            value: value.to_vec(),
        };
        let entries =
            |from, entries: &[LogEntry]| DurableChange::Entries { from, entries: entries.to_vec() };
        vec![
            DurableChange::Vote { term: Term(1), vote: Some(NodeId::from("head-a")) },
            entries(1, &[entry(1, 1), entry(1, 2), entry(1, 3)]),
            snapshot(1, 2, b"two records"),
            DurableChange::Vote { term: Term(2), vote: None },
            // Replaces the third record.
            entries(3, &[entry(2, 4), entry(2, 5)]),
            snapshot(2, 4, b"four records"),
            // From another head, beyond its own records.
            snapshot(3, 9, b"nine records"),
            entries(10, &[entry(3, 6)]),
        ]
    }

    fn open(files: &MemoryFiles) -> Result<MemberLog, RecordError> {
        MemberLog::open(Arc::new(files.clone()), Path::new("member"))
    }

    #[test]
    fn a_saved_change_survives_a_crash_at_any_step() {
        let mut states = vec![DurableState::default()];
        for change in changes() {
            let mut next = states.last().unwrap().clone();
            next.apply(change);
            states.push(next);
        }
        let live = |files: &MemoryFiles| {
            let mut saved = 0;
            let _ = (|| -> Result<(), RecordError> {
                let mut log = open(files)?;
                for (number, change) in changes().into_iter().enumerate() {
                    log.save(change)?;
                    saved = number + 1;
                    if number % 3 == 2 {
                        log.compact()?;
                    }
                }
                Ok(())
            })();
            saved
        };
        let files = MemoryFiles::new(0);
        assert_eq!(live(&files), states.len() - 1);
        assert_eq!(*open(&files).unwrap().state(), states[states.len() - 1]);
        let steps = files.steps();
        for step in 1..=steps {
            for seed in 0..5 {
                let files = MemoryFiles::new(seed);
                files.fault_at(step, StorageFault::Crash);
                let saved = live(&files);
                files.restart();
                let found = open(&files).unwrap().state().clone();
                let later = &states[saved..(saved + 2).min(states.len())];
                assert!(later.contains(&found), "step {step}, seed {seed}: {saved}, {found:?}");
            }
        }
    }

    #[test]
    fn a_long_log_is_compacted_in_use() {
        let files = MemoryFiles::new(0);
        let mut log = open(&files).unwrap();
        let mut index = 0;
        for _ in 0..400 {
            let entries: Vec<LogEntry> = (0..20).map(|number| entry(1, number)).collect();
            log.save(DurableChange::Entries { from: index + 1, entries }).unwrap();
            index += 20;
            let position = LogPosition { term: Term(1), index };
            log.save(DurableChange::Snapshot { position, value: vec![7; 100] }).unwrap();
        }
        let state = log.state().clone();
        drop(log);
        assert_eq!(*open(&files).unwrap().state(), state);
        let bytes: usize =
            files.paths().iter().map(|path| files.read(path, 0).unwrap().len()).sum();
        assert!(bytes < 1_200_000, "{bytes}");
    }
}
