//! The file of jobs' histories. It only serves explanations, so that it is neither synced nor
//! necessary.
//!
//! A line is a JSON object. A file that is too large is renamed, and replaces the one before it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use springtide_runtime::id::JobId;
use springtide_scheduler::core::HistoryLine;

/// Size of the file above which a new one begins.
const BYTES_MAX: u64 = 4 << 20;

/// A line of the file.
#[derive(Debug, Serialize, Deserialize)]
struct StoredLine {
    job: JobId,
    /// Time of the event in microseconds since the Unix epoch.
    at_unix_us: u64,
    line: String,
}

/// The file of histories, and its predecessor.
#[derive(Debug)]
pub(super) struct HistoryFile {
    path: PathBuf,
    /// The open file with its length.
    open: Option<(File, u64)>,
    has_failed: bool,
}

fn unix_us() -> u64 {
    let passed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(passed.as_micros()).unwrap_or(u64::MAX)
}

impl HistoryFile {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, open: None, has_failed: false }
    }

    fn former(&self) -> PathBuf {
        self.path.with_extension("history.1")
    }

    /// Appends lines. A failure is logged once.
    pub(super) fn add(&mut self, lines: &[HistoryLine]) {
        if lines.is_empty() {
            return;
        }
        let now = unix_us();
        let mut text = Vec::new();
        for HistoryLine { job, age, line } in lines {
            let age = u64::try_from(age.as_micros()).unwrap_or(u64::MAX);
            let (job, line) = (*job, line.clone());
            let stored = StoredLine { job, at_unix_us: now.saturating_sub(age), line };
            // Writing to a Vec cannot fail.
            let _ = serde_json::to_writer(&mut text, &stored);
            text.push(b'\n');
        }
        if let Err(error) = self.append(&text)
            && !std::mem::replace(&mut self.has_failed, true)
        {
            tracing::warn!("{}: histories of jobs are not stored: {error}", self.path.display());
        }
    }

    fn append(&mut self, text: &[u8]) -> io::Result<()> {
        if self.open.as_ref().is_some_and(|(_, length)| *length > BYTES_MAX) {
            self.open = None;
            fs::rename(&self.path, self.former())?;
        }
        let (file, length) = match &mut self.open {
            Some(open) => open,
            None => {
                let file = OpenOptions::new().create(true).append(true).open(&self.path)?;
                let length = file.metadata()?.len();
                self.open.insert((file, length))
            }
        };
        *length += text.len() as u64;
        file.write_all(text)
    }

    /// All readable lines, oldest first.
    pub(super) fn read(&self) -> Vec<HistoryLine> {
        let now = unix_us();
        let lines = |path: &Path| {
            // A missing file has no lines, and a crash may have damaged some.
            let text = fs::read(path).unwrap_or_default();
            let line = |line: &[u8]| {
                let StoredLine { job, at_unix_us, line } = serde_json::from_slice(line).ok()?;
                let age = Duration::from_micros(now.saturating_sub(at_unix_us));
                Some(HistoryLine { job, age, line })
            };
            text.split(|byte| *byte == b'\n').filter_map(line).collect::<Vec<_>>()
        };
        let mut all = lines(&self.former());
        all.extend(lines(&self.path));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(job: u64, text: &str) -> HistoryLine {
        HistoryLine { job: JobId(job), age: Duration::ZERO, line: text.to_owned() }
    }

    #[test]
    fn lines_survive_and_files_have_a_limit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("scheduler.history");
        HistoryFile::new(path.clone()).add(&[line(1, "waits"), line(2, "waits\nlong")]);
        let mut again = HistoryFile::new(path.clone());
        fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"job\":").unwrap();
        let texts = |file: &HistoryFile| -> Vec<(u64, String)> {
            file.read().into_iter().map(|found| (found.job.0, found.line)).collect()
        };
        let both = [(1, "waits".to_owned()), (2, "waits\nlong".to_owned())];
        assert_eq!(texts(&again), both);
        let long = "x".repeat(1 << 20);
        for job in 3..15 {
            again.add(&[line(job, &long)]);
        }
        let kept = texts(&again);
        assert!((5..=10).contains(&kept.len()), "{}", kept.len());
        assert_eq!(kept.last().unwrap().0, 14);
    }
}
