//! What a grid's scheduler decides, on disk as it happens: `DIR/scheduler.events.jsonl`, which outlives heads.
//!
//! Must not know what the events mean.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use springtide_runtime::event::{Header, LogError, Record, RunLog, SCHEMA};

/// Interval between looks for logs that are too old.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(60);

/// What is kept of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogLimits {
    /// A longer log is put aside.
    pub bytes: u64,
    /// Logs that are kept beside the current one.
    pub count: u32,
    /// No log that was put aside is kept longer.
    pub age: Duration,
}

/// The log. One that has grown too long is put aside as `scheduler.events.1.jsonl`, the one before it
/// as `2`, and so on, within the limits.
pub struct GridLog {
    path: PathBuf,
    version: &'static str,
    limits: LogLimits,
    log: RunLog,
    expired: Instant,
}

impl GridLog {
    /// Where it is.
    pub fn path(dir: &Path) -> PathBuf {
        dir.join("scheduler.events.jsonl")
    }

    fn aside(&self, number: u32) -> PathBuf {
        self.path.with_extension(format!("{number}.jsonl"))
    }

    /// Goes on with the log of a grid's directory, or begins it.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn open(dir: &Path, version: &'static str, limits: LogLimits) -> Result<Self, LogError> {
        let path = Self::path(dir);
        let log = match path.exists() {
            true => RunLog::resume(&path, u64::MAX)?,
            false => begin(&path, version)?,
        };
        let mut log = Self { path, version, limits, log, expired: Instant::now() };
        log.turn()?;
        log.expire(SystemTime::now());
        Ok(log)
    }

    /// Writes records down.
    ///
    /// # Errors
    /// They are not written.
    pub fn append(&mut self, records: &[Record]) -> Result<(), LogError> {
        if self.expired.elapsed() >= EXPIRY_INTERVAL {
            self.expire(SystemTime::now());
        }
        if records.is_empty() {
            return Ok(());
        }
        self.log.append(records)?;
        self.turn()
    }

    /// Removes logs that are past the limits.
    fn expire(&mut self, now: SystemTime) {
        self.expired = Instant::now();
        for number in 1.. {
            let path = self.aside(number);
            let Ok(about) = fs::metadata(&path) else { return };
            let age = about.modified().ok().and_then(|at| now.duration_since(at).ok());
            if number > self.limits.count || age.is_some_and(|age| age > self.limits.age) {
                // Those behind it are older.
                (number..)
                    .map(|number| self.aside(number))
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

    fn turn(&mut self) -> Result<(), LogError> {
        if fs::metadata(&self.path).map_or(0, |file| file.len()) <= self.limits.bytes {
            return Ok(());
        }
        let io = |source| LogError::Io { file: self.path.clone(), what: "put it aside", source };
        let last = (1..).find(|number| !self.aside(*number).exists()).unwrap_or(1);
        for number in (1..last).rev() {
            fs::rename(self.aside(number), self.aside(number + 1)).map_err(io)?;
        }
        fs::rename(&self.path, self.aside(1)).map_err(io)?;
        self.log = begin(&self.path, self.version)?;
        self.expire(SystemTime::now());
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
        // The newest has the lowest number.
        let [first, second] = [1, 2].map(|number| read(&log.aside(number)).unwrap().records);
        assert!(first[0].order() > second[0].order());
        assert!(!log.aside(3).exists());
        let hour = Duration::from_secs(3600);
        log.expire(SystemTime::now() + hour / 2);
        assert!(log.aside(2).exists());
        log.expire(SystemTime::now() + 2 * hour);
        assert!(!log.aside(1).exists() && !log.aside(2).exists() && path.exists());
    }
}
