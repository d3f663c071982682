//! The decisions of a grid's scheduler on disk: `DIR/scheduler.events.jsonl`, which survives heads.
//!
//! This module does not know the meaning of events.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use springtide_runtime::event::{LogError, LogHeader, Record, RunLog, SCHEMA};

/// Interval between removals of old logs.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(60);

/// Limits of the log's size and age.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogLimits {
    /// Size in bytes at which the log is rotated.
    pub bytes: u64,
    /// The maximum number of rotated logs.
    pub count: u32,
    /// The maximum age of rotated logs.
    pub age: Duration,
}

/// The log. A full one is rotated to `scheduler.events.1.jsonl`, the one before it to `2`, and so
/// on, within the limits.
pub struct GridLog {
    path: PathBuf,
    version: &'static str,
    limits: LogLimits,
    log: RunLog,
    expired: Instant,
}

impl GridLog {
    /// The path of the log.
    pub fn path(dir: &Path) -> PathBuf {
        dir.join("scheduler.events.jsonl")
    }

    fn rotated_path(&self, number: u32) -> PathBuf {
        self.path.with_extension(format!("{number}.jsonl"))
    }

    /// Continues the log of a grid's directory, or creates it.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn open(dir: &Path, version: &'static str, limits: LogLimits) -> Result<Self, LogError> {
        let path = Self::path(dir);
        let log =
            if path.exists() { RunLog::resume(&path, u64::MAX)? } else { create(&path, version)? };
        let mut log = Self { path, version, limits, log, expired: Instant::now() };
        log.rotate()?;
        log.expire(SystemTime::now());
        Ok(log)
    }

    /// Appends records to the log.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn append(&mut self, records: &[Record]) -> Result<(), LogError> {
        if self.expired.elapsed() >= EXPIRY_INTERVAL {
            self.expire(SystemTime::now());
        }
        if records.is_empty() {
            return Ok(());
        }
        self.log.append(records)?;
        self.rotate()
    }

    /// Removes logs that exceed the limits.
    fn expire(&mut self, now: SystemTime) {
        self.expired = Instant::now();
        for number in 1.. {
            let path = self.rotated_path(number);
            let Ok(about) = fs::metadata(&path) else { return };
            let age = about.modified().ok().and_then(|at| now.duration_since(at).ok());
            if number > self.limits.count || age.is_some_and(|age| age > self.limits.age) {
                // Logs with higher numbers are older.
                (number..)
                    .map(|number| self.rotated_path(number))
                    .take_while(|path| path.exists())
                    .for_each(|path| {
                        if let Err(error) = fs::remove_file(&path) {
                            tracing::warn!("{} cannot be removed: {error}", path.display());
                        }
                    });
                return;
            }
        }
    }

    fn rotate(&mut self) -> Result<(), LogError> {
        if fs::metadata(&self.path).map_or(0, |file| file.len()) <= self.limits.bytes {
            return Ok(());
        }
        let io = |source| LogError::Io { file: self.path.clone(), operation: "rotate", source };
        let last = (1..).find(|number| !self.rotated_path(*number).exists()).unwrap_or(1);
        for number in (1..last).rev() {
            fs::rename(self.rotated_path(number), self.rotated_path(number + 1)).map_err(io)?;
        }
        fs::rename(&self.path, self.rotated_path(1)).map_err(io)?;
        self.log = create(&self.path, self.version)?;
        self.expire(SystemTime::now());
        Ok(())
    }
}

fn create(path: &Path, version: &str) -> Result<RunLog, LogError> {
    // Approximate: only people read it.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let header = LogHeader {
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
    fn the_log_continues_after_a_head_and_is_rotated_when_full() {
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
        let limits = LogLimits { bytes: 4000, count: 2, age: Duration::from_secs(3600) };
        let open = || GridLog::open(dir.path(), "1", limits).unwrap();
        open().append(&decide("first")).unwrap();
        let mut log = open();
        log.append(&decide("second")).unwrap();
        let path = GridLog::path(dir.path());
        assert_eq!(read(&path).unwrap().records.len(), 2);
        for _ in 0..200 {
            log.append(&decide("more")).unwrap();
        }
        assert!(fs::metadata(&path).unwrap().len() <= 4000);
        // The newest log has the lowest number.
        let [first, second] = [1, 2].map(|number| read(&log.rotated_path(number)).unwrap().records);
        assert!(first[0].order() > second[0].order());
        assert!(!log.rotated_path(3).exists());
        let hour = Duration::from_secs(3600);
        log.expire(SystemTime::now() + hour / 2);
        assert!(log.rotated_path(2).exists());
        log.expire(SystemTime::now() + 2 * hour);
        assert!(!log.rotated_path(1).exists() && !log.rotated_path(2).exists() && path.exists());
    }
}
