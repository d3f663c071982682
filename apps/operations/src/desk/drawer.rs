//! The jobs of earlier heads, as a head finds them at its start.
//!
//! This module does not know what is written about a job while it runs.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use springtide_actors::scheduler::JobDependency;
use springtide_cli::exit::{Failed, cannot};
use springtide_cli::outdir::make_dir;
use springtide_runtime::id::JobId;

use super::archived_job::ArchivedJob;
use super::entry::{ArchiveSettings, LOST};
use super::records::JobRecords;

/// The jobs of earlier heads.
pub struct ArchiveReader {
    pub(super) setting: ArchiveSettings,
    pub(super) dir: PathBuf,
    pub(super) records: JobRecords,
    pub(super) jobs: BTreeMap<JobId, ArchivedJob>,
    /// The highest job number of any record or directory.
    pub(super) last: JobId,
}

impl ArchiveReader {
    /// Reads the archive of a grid. The caller must be the grid's only head.
    ///
    /// # Errors
    /// The records are damaged, or the directory cannot be read or created. A head that continued
    /// all the same would lose jobs.
    pub fn open(setting: ArchiveSettings) -> Result<Self, Failed> {
        let dir = setting.dir.join("jobs");
        make_dir(&dir)?;
        let records = JobRecords::open(Arc::clone(&setting.files), &setting.dir)?;
        let last = records.last().max(last_dir(&dir)?);
        let job = |entry: super::entry::ArchiveEntry| {
            let mut job = ArchivedJob::new(dir.join(entry.job.to_string()), entry, records.clone());
            job.read_lines();
            (job.entry.job, job)
        };
        let mut jobs: BTreeMap<JobId, ArchivedJob> =
            records.entries().into_iter().map(job).collect();
        // Jobs whose head failed between their outcome and their end.
        for job in jobs.values_mut().filter(|job| job.entry.ended.is_none()) {
            if job.has_outcome() {
                job.end_unreported(LOST);
            }
        }
        Ok(Self { setting, dir, records, jobs, last })
    }

    /// The highest job number of any record or directory: a new job needs a higher one.
    pub fn last(&self) -> JobId {
        self.last
    }

    /// Whether a job that another one waits for has ended as required.
    pub fn is_met(&self, dependency: &JobDependency) -> bool {
        let end = self.jobs.get(&dependency.job).and_then(|job| job.entry.ended.as_ref());
        end.is_some_and(|end| dependency.any || end.error.is_none())
    }

    /// Whether a job was submitted and has no end. The client of an unknown job got no answer.
    pub fn awaits_end(&self, job: JobId) -> bool {
        self.jobs.get(&job).is_some_and(|job| job.entry.ended.is_none())
    }
}

/// The highest job number that a directory names.
fn last_dir(dir: &Path) -> Result<JobId, Failed> {
    let mut last = JobId(0);
    for entry in fs::read_dir(dir).map_err(|error| cannot("read", dir, &error))? {
        let entry = entry.map_err(|error| cannot("read", dir, &error))?;
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("job-")?.parse().ok());
        // A directory with another name, such as a copy, is not one of a job.
        let Some(job) = number.map(JobId).filter(|job| name == *job.to_string()) else { continue };
        last = last.max(job);
        let old_entry = entry.path().join("job.json");
        if old_entry.exists() {
            return Err(Failed::failure(format!(
                "{} has a format that this version cannot read: move {} away to start without the \
                 jobs in it",
                old_entry.display(),
                dir.display()
            )));
        }
    }
    Ok(last)
}
