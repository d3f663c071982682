//! What former heads have left of their jobs, and what becomes of it when a head begins.
//!
//! Must not know what is written of a job while it runs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use springtide_actors::scheduler::core::Recovered;
use springtide_runtime::id::JobId;

use super::kept::{Kept, Told, write_entry};
use super::{JobEntry, LOST, Setting};
use crate::exit::Failed;
use crate::grid::cannot;
use crate::outdir::make_dir;

/// What former heads have left of their jobs.
pub struct Drawer {
    pub(super) setting: Setting,
    pub(super) dir: PathBuf,
    pub(super) jobs: BTreeMap<JobId, Kept>,
    /// Those whose entry is damaged.
    pub(super) damaged: BTreeSet<JobId>,
    /// The highest number that anything is left of, whole or not.
    pub(super) last: JobId,
}

impl Drawer {
    /// Looks what there is. To be called by the only head that may be there: what another writes meanwhile is not seen.
    ///
    /// # Errors
    /// The directory cannot be read or made, or something of it cannot be read: to go on without a job would be to lose it.
    pub fn open(setting: Setting) -> Result<Self, Failed> {
        let dir = setting.dir.join("jobs");
        make_dir(&dir)?;
        let Found { mut jobs, mut damaged, last } = read(&dir)?;
        // What came of them is known: the head died before it could note that they have ended.
        for kept in jobs.values_mut().filter(|kept| kept.entry.ended.is_none()) {
            if kept.told().is_some() {
                kept.lose(LOST);
            }
        }
        damaged.retain(|&job| {
            let mut kept = Kept::of(dir.join(job.to_string()), anew(&dir, job, ""));
            let Some(Told { name, .. }) = kept.told() else { return true };
            kept.entry = anew(&dir, job, &name);
            kept.lose(LOST);
            jobs.insert(job, kept);
            false
        });
        Ok(Self { setting, dir, jobs, damaged, last })
    }

    /// The highest number that anything is left of: a new job must have another.
    pub fn last(&self) -> JobId {
        self.last
    }

    /// Whether a job was submitted, and has no end. Of one that is not known whoever submitted it has had no answer.
    pub fn wants(&self, job: JobId) -> bool {
        let goes_on = |kept: &Kept| kept.entry.ended.is_none();
        self.jobs.get(&job).map_or_else(|| self.damaged.contains(&job), goes_on)
    }

    /// Writes the damaged entries of jobs that the scheduler still has anew, by what was submitted.
    ///
    /// # Errors
    /// It has not all of them, or they cannot be written.
    pub fn mend(&mut self, recovered: &[Recovered]) -> Result<(), Failed> {
        for job in std::mem::take(&mut self.damaged) {
            let dir = self.dir.join(job.to_string());
            let Some(found) = recovered.iter().find(|found| found.job == job) else {
                return Err(Failed::failure(format!(
                    "{} is damaged, and nothing else tells of the job: restore the file, or move {} away",
                    dir.join("job.json").display(),
                    dir.display()
                )));
            };
            let mut kept = Kept::of(dir.clone(), anew(&self.dir, job, &found.submit.name));
            tracing::warn!("the job.json of {job} was damaged, and is written anew");
            write_entry(&dir, &kept.entry)?;
            kept.read_lines();
            self.jobs.insert(job, kept);
        }
        Ok(())
    }
}

/// The entry of a job whose own is damaged. With which options it was submitted nothing else tells, and when only that file.
fn anew(dir: &Path, job: JobId, name: &str) -> JobEntry {
    let about = fs::metadata(dir.join(job.to_string()).join("job.json"));
    let at = about.and_then(|about| about.modified()).ok();
    let at = at.and_then(|at| at.duration_since(UNIX_EPOCH).ok()).unwrap_or_default().as_secs();
    let (name, line) = (name.to_owned(), name.to_owned());
    JobEntry { job, name, line, submitted_unix_s: at, ended: None, principal: None }
}

/// Jobs of former heads.
pub(super) struct Found {
    pub(super) jobs: BTreeMap<JobId, Kept>,
    pub(super) damaged: BTreeSet<JobId>,
    /// The highest number of their directories.
    pub(super) last: JobId,
}

/// Looks for jobs of former heads. What is no job's is passed over.
pub(super) fn read(dir: &Path) -> Result<Found, Failed> {
    let (mut jobs, mut damaged, mut last) = (BTreeMap::new(), BTreeSet::new(), JobId(0));
    for entry in fs::read_dir(dir).map_err(|error| cannot("read", dir, &error))? {
        let entry = entry.map_err(|error| cannot("read", dir, &error))?;
        let (dir, name) = (entry.path(), entry.file_name());
        let number = name.to_str().and_then(|name| name.strip_prefix("job-")?.parse().ok());
        // A copy that somebody made under another name is none of ours.
        let Some(job) = number.map(JobId).filter(|job| name == *job.to_string()) else { continue };
        last = last.max(job);
        let path = dir.join("job.json");
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            // It was never submitted.
            Err(error) if is_absent(&error) => continue,
            Err(error) => return Err(cannot("read", &path, &error)),
        };
        match serde_json::from_slice::<JobEntry>(&bytes) {
            Ok(entry) if entry.job == job => {
                let mut kept = Kept::of(dir, entry);
                kept.read_lines();
                jobs.insert(job, kept);
            }
            _ => drop(damaged.insert(job)),
        }
    }
    Ok(Found { jobs, damaged, last })
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}
