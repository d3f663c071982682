//! What former heads have left of their jobs, and what becomes of it when a head begins.
//!
//! Knows nothing of what is written of a job while it runs.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use springtide_runtime::id::JobId;
use springtide_runtime::records::Disk;

use super::kept::Kept;
use super::records::JobRecords;
use super::{LOST, Setting};
use crate::exit::Failed;
use crate::grid::cannot;
use crate::outdir::make_dir;

/// What former heads have left of their jobs.
pub struct Drawer {
    pub(super) setting: Setting,
    pub(super) dir: PathBuf,
    pub(super) records: JobRecords,
    pub(super) jobs: BTreeMap<JobId, Kept>,
    /// The highest number that anything is left of.
    pub(super) last: JobId,
}

impl Drawer {
    /// Reads what there is. To be called by the only head that may be there.
    ///
    /// # Errors
    /// The records are damaged, or the directory cannot be read or made: to go on without a job
    /// would be to lose it.
    pub fn open(setting: Setting) -> Result<Self, Failed> {
        let dir = setting.dir.join("jobs");
        make_dir(&dir)?;
        let records = JobRecords::open(Arc::new(Disk), &setting.dir)?;
        let last = records.last().max(last_dir(&dir)?);
        let kept = |entry: super::JobEntry| {
            let mut kept = Kept::of(dir.join(entry.job.to_string()), entry, records.clone());
            kept.read_lines();
            (kept.entry.job, kept)
        };
        let mut jobs: BTreeMap<JobId, Kept> = records.entries().into_iter().map(kept).collect();
        // The head died between their outcome and their end.
        for kept in jobs.values_mut().filter(|kept| kept.entry.ended.is_none()) {
            if kept.has_outcome() {
                kept.lose(LOST);
            }
        }
        Ok(Self { setting, dir, records, jobs, last })
    }

    /// The highest number that anything is left of: a new job must have another.
    pub fn last(&self) -> JobId {
        self.last
    }

    /// Whether a job was submitted, and has no end. The client of one that is not known has had no
    /// answer.
    pub fn wants(&self, job: JobId) -> bool {
        self.jobs.get(&job).is_some_and(|kept| kept.entry.ended.is_none())
    }
}

/// The highest number of a job that has a directory.
fn last_dir(dir: &Path) -> Result<JobId, Failed> {
    let mut last = JobId(0);
    for entry in fs::read_dir(dir).map_err(|error| cannot("read", dir, &error))? {
        let entry = entry.map_err(|error| cannot("read", dir, &error))?;
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("job-")?.parse().ok());
        // A copy under another name is none of ours.
        let Some(job) = number.map(JobId).filter(|job| name == *job.to_string()) else { continue };
        last = last.max(job);
        let former = entry.path().join("job.json");
        if former.exists() {
            return Err(Failed::failure(format!(
                "{} has a form that this program does not read: move {} away to begin without the \
                 jobs in it",
                former.display(),
                dir.display()
            )));
        }
    }
    Ok(last)
}
