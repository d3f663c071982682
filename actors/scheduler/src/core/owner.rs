//! Orders and questions of a job's owner: resize, history, and a plan for a new job.
//!
//! This module must not depend on how an order is executed.

use std::collections::BTreeSet;
use std::time::Duration;

use springtide_base::id::JobId;
use tokio::time::Instant;

use super::SchedulerCore;
use super::event::SchedulerAction;
use super::history::HistoryLine;
use super::managed::{GrowthOrder, JobStage};
use crate::manager::{JobRequirements, Kind, ManagerEvent, ManagerMemory};
use crate::policy::malleability::{PlacementError, PlacementPlan};
use crate::scheduler::{JobDetail, Resize, ResizeAck, ResizeError, ResizeJob};

impl SchedulerCore {
    /// Checks a resize order of a job's owner, and returns the intended size.
    pub fn check_resize(&self, order: &ResizeJob) -> Result<ResizeAck, ResizeError> {
        let job = order.job;
        let managed = self.managing.jobs.get(&job);
        let running = managed.is_some_and(|managed| managed.stage == JobStage::Running);
        let Some(view) = self.managing.view(job).filter(|_| running) else {
            if self.jobs.contains_key(&job) && managed.is_none() {
                return Err(ResizeError::NotManaged { job });
            }
            return Err(ResizeError::NotRunning { job });
        };
        if view.kind != Kind::Malleable {
            return Err(ResizeError::Fixed { job, kind: view.kind });
        }
        let from: u32 = view.sizes.values().sum();
        let to = match &order.by {
            Resize::Grow { count, cluster, .. } => {
                if let Some(cluster) = cluster.as_ref().filter(|at| !self.sites.contains_key(at)) {
                    return Err(ResizeError::UnknownCluster { cluster: cluster.clone() });
                }
                from.saturating_add(*count)
            }
            Resize::Shrink { count } => from.saturating_sub(*count),
        };
        if to < view.least || to > view.useful {
            let (least, most) = (view.least, view.useful);
            return Err(ResizeError::Bounds { job, to, least, most });
        }
        Ok(ResizeAck { from, to })
    }

    /// Resizes a job, if possible. `number` is that of the job's own request; 0 for an owner's
    /// order.
    pub(super) fn resize(
        &mut self,
        order: &ResizeJob,
        number: u64,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        let (job, Ok(ResizeAck { to, .. })) = (order.job, self.check_resize(order)) else { return };
        let Some(view) = self.managing.view(job) else { return };
        let coordinator = self.coordinator_of(job);
        let Some(managed) = self.managing.jobs.get_mut(&job) else { return };
        let most = match &order.by {
            Resize::Grow { count, timeout_ms: within_ms, cluster } => {
                let until = within_ms.and_then(|ms| now.checked_add(Duration::from_millis(ms)));
                let clusters = cluster.iter().cloned().collect();
                let count = *count;
                managed.ordered =
                    GrowthOrder { number, count, until, clusters, ..GrowthOrder::default() };
                // Raises a limit that would prevent the growth.
                (to > view.most || view.most < view.useful).then_some(to.max(view.most))
            }
            Resize::Shrink { .. } => {
                let ordered = std::mem::take(&mut managed.ordered);
                if let (Some(_), Some(coordinator)) = (ordered.until, coordinator) {
                    // The job's program may wait for the processors.
                    let reason = "its owner limits its size".to_owned();
                    let number = ordered.number;
                    out.push(SchedulerAction::RefuseGrowth { job, coordinator, reason, number });
                }
                Some(to)
            }
        };
        if let Some(most) = most {
            let most = (most < view.useful).then_some(most);
            managed.limit = most;
            out.push(SchedulerAction::Limit { job, most });
            self.report(ManagerEvent::SizeLimited { job, most }, now, out);
        }
        self.report_request(job, now, out);
        self.poll(now, out);
    }

    /// Continues the histories of an earlier scheduler.
    pub(super) fn restore_history(&mut self, lines: Vec<HistoryLine>, now: Instant) {
        let known: BTreeSet<JobId> = self.known();
        self.managing.histories.restore(lines, now, |job| known.contains(&job));
    }

    /// Takes the lines of histories that were added since the last call, to be stored.
    pub fn take_history(&mut self) -> Vec<HistoryLine> {
        self.managing.histories.take_unstored()
    }

    /// Returns what the manager has learned, to be stored.
    pub fn memory(&self) -> &ManagerMemory {
        self.managing.manager.memory()
    }

    /// Returns the details of a job, or `None` if it is unknown and has no history.
    pub fn detail(&self, job: JobId, now: Instant) -> Option<JobDetail> {
        let status = self.job_status(job);
        let (mut view, history) = (self.managing.view(job), self.managing.history(job, now));
        let sent = self.managing.waits(job).and_then(|submit| self.sent_program(submit));
        if let (Some(view), Some(sent)) = (&mut view, sent) {
            view.reason = sent;
        }
        (status.is_some() || !history.is_empty()).then_some(JobDetail { status, view, history })
    }

    /// Computes where a job would be placed now.
    ///
    /// # Errors
    /// [`PlacementError`], with the reason for each cluster.
    pub fn plan(&self, need: &JobRequirements) -> Result<PlacementPlan, PlacementError> {
        self.managing.manager.plan(need)
    }
}
