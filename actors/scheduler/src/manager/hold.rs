//! Waiting jobs that are not placed even if processors are free: until others have ended, or while
//! their array has as many jobs with processors as it may have.

use std::collections::BTreeMap;

use springtide_base::id::JobId;

use super::JobRequirements;
use super::Manager;
use super::accounts::AllocationStage;
use super::event::ManagerAction;
use super::waiting::WaitingNeed;
use crate::scheduler::JobDependency;

/// The number of jobs of each array that have processors or are being started.
#[derive(Debug, Default)]
pub(super) struct ArrayUsage(BTreeMap<u64, u32>);

impl ArrayUsage {
    /// Counts a job that is placed.
    pub(super) fn add(&mut self, need: Option<&JobRequirements>) {
        if let Some(array) = need.and_then(|need| need.array) {
            *self.0.entry(array.id).or_default() += 1;
        }
    }

    /// Whether the array of a waiting job has as many jobs as it may have.
    pub(super) fn is_full(&self, need: &JobRequirements) -> bool {
        let Some(array) = need.array else { return false };
        array.limit.is_some_and(|limit| self.used(array.id) >= limit)
    }

    fn used(&self, id: u64) -> u32 {
        self.0.get(&id).copied().unwrap_or_default()
    }
}

/// Why a waiting job is held back, if it is.
pub(super) fn held_back(need: &JobRequirements, arrays: &ArrayUsage) -> Option<String> {
    if !need.after.is_empty() {
        let text = |one: &JobDependency| {
            let end = if one.any { "end" } else { "success" };
            format!("the {end} of {}", one.job)
        };
        let first: Vec<String> = need.after.iter().take(3).map(text).collect();
        let more = need.after.len().saturating_sub(first.len());
        let more = match more {
            0 => String::new(),
            1 => " and of 1 more job".to_owned(),
            more => format!(" and of {more} more jobs"),
        };
        return Some(format!("it waits for {}{more}", first.join(", ")));
    }
    let array = need.array.filter(|_| arrays.is_full(need))?;
    let limit = array.limit.unwrap_or_default();
    Some(format!("{limit} jobs of its array run, and no more may run at the same time"))
}

impl Manager {
    /// The usage of all arrays.
    pub(super) fn array_usage(&self) -> ArrayUsage {
        let mut usage = ArrayUsage::default();
        let active = self.active.iter().filter_map(|id| self.jobs.get(id));
        let placed = active.filter(|job| job.stage != AllocationStage::Waiting);
        placed.for_each(|job| usage.add(Some(&job.need)));
        usage
    }

    /// The jobs that others wait for.
    pub fn awaited(&self) -> impl Iterator<Item = JobId> {
        self.dependents.keys().copied()
    }

    /// Forgets that a job waits for others.
    pub(super) fn forget_dependencies(&mut self, id: JobId, after: &[JobDependency]) {
        for dependency in after {
            if let Some(waiting) = self.dependents.get_mut(&dependency.job) {
                waiting.remove(&id);
                if waiting.is_empty() {
                    self.dependents.remove(&dependency.job);
                }
            }
        }
    }

    /// Releases the jobs that waited for this one, or ends those that can no longer start.
    pub(super) fn dependency_ended(
        &mut self,
        ended: JobId,
        ok: bool,
        out: &mut Vec<ManagerAction>,
    ) {
        for id in self.dependents.remove(&ended).unwrap_or_default() {
            let Some(job) = self.jobs.get_mut(&id) else { continue };
            let fails = |one: &JobDependency| one.job == ended && !one.any && !ok;
            let failed = job.need.after.iter().any(fails);
            job.need.after.retain(|one| one.job != ended);
            self.queue.update(id, WaitingNeed::of(&job.need));
            job.vain_from = self.vain_scans;
            if failed && job.stage == AllocationStage::Waiting {
                self.forget(id);
                let reason = format!("{ended} must succeed first, and has not");
                out.push(ManagerAction::Fail { job: id, reason });
            }
            self.dirty = true;
        }
    }
}
