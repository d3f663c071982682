//! Submissions, and the jobs that wait for others to end.
//!
//! The manager holds such jobs back. Here it learns of the ends: a job has ended once no part of
//! the scheduler knows it any more.

use springtide_base::id::{Epoch, JobId};
use tokio::time::Instant;

use super::SchedulerCore;
use super::event::{NumberedSubmission, SchedulerAction};
use super::managed::{ManagedJob, reconcile_submission};
use super::queue::QueuedJob;
use crate::manager::{JobSubmission, ManagerEvent};
use crate::scheduler::SubmitError;

/// Most numbers of jobs that have succeeded. The archive knows all of them. Here they matter while
/// a submission that waits for one is on its way.
const SUCCEEDED_MAX: usize = 10_000;

impl SchedulerCore {
    /// Submits jobs, those with requirements to the manager.
    pub(super) fn submit_all(
        &mut self,
        all: Vec<NumberedSubmission>,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        let mut managed = Vec::new();
        for NumberedSubmission { job, epoch, mut submit } in all {
            let Some(mut need) = submit.need.take() else {
                self.queue.push_back(QueuedJob::new(job, epoch, submit));
                continue;
            };
            if let Err(reason) = need.check() {
                let error = SubmitError::NotPlaced { reason };
                out.push(SchedulerAction::Refuse { job, error });
                continue;
            }
            reconcile_submission(&mut submit, &mut need);
            self.managing.node_needs |= !need.node.is_met_by_all();
            self.introduce_files(&need, now, out);
            self.managing.jobs.insert(job, ManagedJob::waiting(epoch, submit));
            managed.push(JobSubmission { job, need: Box::new(need) });
        }
        if managed.is_empty() {
            return;
        }
        self.poll(now, out);
        let single = if managed.len() == 1 { managed.pop() } else { None };
        let event = match single {
            Some(JobSubmission { job, need }) => ManagerEvent::Submit { job, need },
            None => ManagerEvent::SubmitAll(managed),
        };
        self.report(event, now, out);
    }

    /// Records that a job has succeeded, if the report has its current epoch.
    pub(super) fn record_success(&mut self, job: JobId, epoch: Epoch, ok: bool) {
        let known = self.jobs.get(&job).map(|known| known.epoch);
        let known = known.or_else(|| self.returning.get(&job).map(|known| known.epoch));
        if !ok || known != Some(epoch) {
            return;
        }
        self.succeeded.insert(job);
        if self.succeeded.len() > SUCCEEDED_MAX {
            self.succeeded.pop_first();
        }
    }

    /// Whether a job has not ended.
    fn knows(&self, job: JobId) -> bool {
        self.jobs.contains_key(&job)
            || self.managing.jobs.contains_key(&job)
            || self.returning.contains_key(&job)
            || self.queue.iter().any(|waiting| waiting.job == job)
    }

    /// Reports to the manager which jobs have ended that others wait for. A job that fails for this
    /// reason may be one that others wait for.
    pub(super) fn settle_dependencies(&mut self, now: Instant, out: &mut Vec<SchedulerAction>) {
        loop {
            let awaited = self.managing.manager.awaited();
            let ended: Vec<JobId> = awaited.filter(|job| !self.knows(*job)).collect();
            if ended.is_empty() {
                return;
            }
            for job in ended {
                let ok = self.succeeded.contains(&job);
                self.report(ManagerEvent::DependencyEnded { job, ok }, now, out);
            }
        }
    }
}
