//! What a grid's scheduler decides, on disk as it happens: `DIR/scheduler.events.jsonl`, which outlives heads.
//!
//! Must not know what the events mean.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use springtide_runtime::event::{Header, LogError, Record, RunLog, SCHEMA};

/// The log. One that has grown too long is put aside, in place of the one that was put aside before it.
pub struct GridLog {
    path: PathBuf,
    version: &'static str,
    max_bytes: u64,
    log: RunLog,
}

impl GridLog {
    /// Where it is.
    pub fn path(dir: &Path) -> PathBuf {
        dir.join("scheduler.events.jsonl")
    }

    /// Goes on with the log of a grid's directory, or begins it. It is put aside at twice `max_bytes` at most.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn open(dir: &Path, version: &'static str, max_bytes: u64) -> Result<Self, LogError> {
        let path = Self::path(dir);
        let log = match path.exists() {
            true => RunLog::resume(&path, u64::MAX)?,
            false => begin(&path, version)?,
        };
        let mut log = Self { path, version, max_bytes, log };
        log.turn()?;
        Ok(log)
    }

    /// Writes records down.
    ///
    /// # Errors
    /// They are not written.
    pub fn append(&mut self, records: &[Record]) -> Result<(), LogError> {
        if records.is_empty() {
            return Ok(());
        }
        self.log.append(records)?;
        self.turn()
    }

    fn turn(&mut self) -> Result<(), LogError> {
        if fs::metadata(&self.path).map_or(0, |file| file.len()) <= self.max_bytes {
            return Ok(());
        }
        let aside = self.path.with_extension("1.jsonl");
        fs::rename(&self.path, &aside).map_err(|source| LogError::Io {
            file: self.path.clone(),
            what: "put it aside",
            source,
        })?;
        self.log = begin(&self.path, self.version)?;
        Ok(())
    }
}

fn begin(path: &Path, version: &str) -> Result<RunLog, LogError> {
    // Only people read it.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let header = Header {
        schema: SCHEMA,
        run: "scheduler".to_owned(),
        started_unix_us: u64::try_from(now.as_micros()).unwrap_or(u64::MAX),
        version: version.to_owned(),
    };
    RunLog::create(path, &header, u64::MAX)
}

#[cfg(test)]
mod tests {
    use springtide_runtime::event::{Event, Recorder, read};
    use springtide_runtime::id::{Incarnation, NodeId};

    use super::*;

    #[test]
    fn it_goes_on_after_a_head_and_is_put_aside_when_it_is_long() {
        let dir = tempfile::tempdir().unwrap();
        let now = tokio::time::Instant::now();
        let recorder = Recorder::new(NodeId::from("head"), Incarnation(1), now, 100);
        let decide = |why: &str| {
            recorder.record(Event::Decision {
                decision: "hold 2 processors of vu".to_owned(),
                why: why.to_owned(),
                inputs: serde_json::Value::Null,
            });
            recorder.drain()
        };
        let open = || GridLog::open(dir.path(), "1", 4000).unwrap();
        open().append(&decide("first")).unwrap();
        let mut log = open();
        log.append(&decide("second")).unwrap();
        let path = GridLog::path(dir.path());
        assert_eq!(read(&path).unwrap().records.len(), 2);
        for _ in 0..40 {
            log.append(&decide("more")).unwrap();
        }
        assert!(fs::metadata(&path).unwrap().len() <= 4000);
        let aside = read(&path.with_extension("1.jsonl")).unwrap();
        assert!(!aside.records.is_empty());
    }
}
