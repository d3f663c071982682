//! Programs that jobs bring: which nodes run them, and their way to the sites.
//!
//! A site reports the transfer of a program, its arrival, and why it does not start it. Then the
//! jobs that need the program use other clusters, or are refused if they may use no other one. This
//! module must not depend on how programs are transferred.

use std::collections::{BTreeMap, BTreeSet};

use springtide_base::id::{ClusterId, JobId, NodeId};
use tokio::time::Instant;

use super::SchedulerCore;
use super::event::SchedulerAction;
use super::managed::JobStage;
use super::node::{PoolNodeState, ProgramKey};
use super::pool::ClusterPool;
use crate::policy::malleability::Component;
use crate::program::{ProgramDigest, ProgramError, ProgramReport, ProgramState, describe_sending};
use crate::scheduler::{Submit, SubmitError};

impl ClusterPool {
    /// Whether the site can start nodes with the program of a submission.
    pub(super) fn can_start(&self, submit: &Submit) -> bool {
        (self.starts_programs && submit.program.is_some())
            || (self.receives_programs && submit.image.is_some())
    }
}

/// Programs on their way to sites.
#[derive(Debug, Default)]
pub(super) struct ProgramTransfers {
    /// Received bytes and length.
    running: BTreeMap<(ClusterId, ProgramDigest), (u64, u64)>,
    /// Clusters whose sites have received a program.
    ready: BTreeSet<(ProgramDigest, ClusterId)>,
}

impl ProgramTransfers {
    /// Forgets what a former process of a site has reported.
    pub(super) fn restart(&mut self, cluster: &ClusterId) {
        self.running.retain(|(of, _), _| of != cluster);
        self.ready.retain(|(_, of)| of != cluster);
    }

    /// Whether a program is on its way to one of these clusters.
    pub(super) fn is_sent<'a>(
        &self,
        digest: ProgramDigest,
        clusters: impl IntoIterator<Item = &'a ClusterId>,
    ) -> bool {
        let mut clusters = clusters.into_iter();
        clusters.any(|cluster| self.running.contains_key(&(cluster.clone(), digest)))
    }

    /// Describes the transfers of a program.
    pub(super) fn describe(&self, digest: ProgramDigest) -> Option<String> {
        let of = self.running.iter().filter(|((_, other), _)| *other == digest);
        let all: Vec<String> = of
            .map(|((cluster, _), (received, bytes))| {
                describe_sending(*received, *bytes, &format!("cluster {cluster}"))
            })
            .collect();
        (!all.is_empty()).then(|| all.join(", "))
    }
}

impl SchedulerCore {
    /// Clusters whose sites have a program.
    pub fn clusters_with(&self, digest: ProgramDigest) -> Vec<ClusterId> {
        let all = self.programs.ready.iter().filter(|(of, _)| *of == digest);
        all.map(|(_, cluster)| cluster.clone()).collect()
    }

    /// The jobs of a client that bring a program.
    pub fn jobs_that_bring(&self, client: &NodeId) -> impl Iterator<Item = (JobId, &Submit)> {
        let queued = self.queue.iter().map(|waiting| (waiting.job, &*waiting.submit));
        let managed = self.managing.jobs.iter().map(|(id, job)| (*id, &*job.submit));
        let brings = |submit: &Submit| submit.client.node == *client && submit.image.is_some();
        queued.chain(managed).filter(move |(_, submit)| brings(submit))
    }

    /// Describes the transfers of a submission's program.
    pub(super) fn sent_program(&self, submit: &Submit) -> Option<String> {
        self.programs.describe(submit.image.as_ref()?.digest)
    }

    /// Processes a site's report about a program.
    pub(super) fn program_reported(
        &mut self,
        report: ProgramReport,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        let ProgramReport { cluster, digest, state } = report;
        let key = (cluster.clone(), digest);
        match state {
            ProgramState::Sending { received, bytes } => {
                let is_first = self.programs.running.insert(key, (received, bytes)).is_none();
                let text = describe_sending(received, bytes, &format!("cluster {cluster}"));
                if is_first {
                    self.note_program(&cluster, digest, &text, now);
                }
                self.explain_starts(&cluster, digest, Some(text));
            }
            ProgramState::Ready { bytes, millis } => {
                self.programs.running.remove(&key);
                self.programs.ready.insert((digest, cluster.clone()));
                self.explain_starts(&cluster, digest, None);
                if bytes > 0 {
                    let seconds = millis as f64 / 1000.0;
                    let text = format!(
                        "program {} was sent to {cluster}: {bytes} bytes in {seconds:.2} s",
                        digest.short()
                    );
                    self.note_program(&cluster, digest, &text, now);
                }
            }
            // Its nodes have another order meanwhile.
            ProgramState::Failed { error: ProgramError::Cancelled { .. } } => {
                self.programs.running.remove(&key);
                self.explain_starts(&cluster, digest, None);
            }
            ProgramState::Failed { error } => {
                self.programs.running.remove(&key);
                self.note_program(&cluster, digest, &error.to_string(), now);
                self.refuse_program(&cluster, digest, &error, now, out);
            }
        }
    }

    /// Nodes of a cluster that start with a program, and the jobs for which they do.
    fn starts_with(&self, cluster: &ClusterId, digest: ProgramDigest) -> Vec<(NodeId, JobId)> {
        let starting = self
            .nodes
            .iter()
            .filter(|(_, node)| node.cluster == *cluster && node.state == PoolNodeState::Starting);
        let of = |job: JobId| {
            let queued = self.queue.iter().find(|waiting| waiting.job == job);
            let queued = queued.map(|waiting| &*waiting.submit);
            let managed = || self.managing.jobs.get(&job).map(|managed| &*managed.submit);
            queued.or_else(managed).and_then(|submit| submit.image.as_ref())
        };
        let starting = starting.filter_map(|(id, node)| Some((id, node.tried?)));
        let theirs = starting.filter(|(_, job)| of(*job).is_some_and(|it| it.digest == digest));
        theirs.map(|(id, job)| (id.clone(), job)).collect()
    }

    /// The jobs for which nodes of a cluster start with a program.
    fn jobs_starting_with(&self, cluster: &ClusterId, digest: ProgramDigest) -> BTreeSet<JobId> {
        self.starts_with(cluster, digest).into_iter().map(|(_, job)| job).collect()
    }

    /// Sets the reason why nodes are not there yet.
    fn explain_starts(&mut self, cluster: &ClusterId, digest: ProgramDigest, text: Option<String>) {
        for (id, _) in self.starts_with(cluster, digest) {
            if let Some(node) = self.nodes.get_mut(&id) {
                node.reason.clone_from(&text);
            }
        }
    }

    /// Notes an event in the histories of the jobs that start with a program in a cluster.
    fn note_program(
        &mut self,
        cluster: &ClusterId,
        digest: ProgramDigest,
        text: &str,
        now: Instant,
    ) {
        for job in self.jobs_starting_with(cluster, digest) {
            if self.managing.has(job) {
                self.managing.histories.note(job, now, text.to_owned());
            }
        }
    }

    /// Makes the jobs that start with a program in a cluster use other clusters, or refuses them.
    /// Running jobs do not grow there.
    fn refuse_program(
        &mut self,
        cluster: &ClusterId,
        digest: ProgramDigest,
        error: &ProgramError,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        self.explain_starts(cluster, digest, Some(error.to_string()));
        for job in self.jobs_starting_with(cluster, digest) {
            if self.leave_cluster(job, cluster, error, now, out) {
                continue;
            }
            let refused = SubmitError::Shipping(Box::new(error.clone()));
            let queued = self.queue.iter().position(|waiting| waiting.job == job);
            if let Some(at) = queued {
                self.queue.remove(at);
                out.push(SchedulerAction::Refuse { job, error: refused });
            } else {
                self.withdraw_managed(job, refused, now, out);
            }
        }
    }

    /// Makes a job that has not started leave a cluster that does not start its program. Returns
    /// false if it may use no other one.
    fn leave_cluster(
        &mut self,
        id: JobId,
        cluster: &ClusterId,
        error: &ProgramError,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) -> bool {
        if let Some(waiting) = self.queue.iter_mut().find(|waiting| waiting.job == id) {
            waiting.refused.insert(cluster.clone(), error.clone());
            let mut standing = self.sites.iter().filter(|(_, site)| site.on_demand.is_none());
            return waiting.submit.clusters.is_none()
                && standing.any(|(name, _)| !waiting.refused.contains_key(name));
        }
        let Some(need) = self.managing.need(id) else { return false };
        let Some(job) = self.managing.jobs.get_mut(&id) else { return false };
        if !matches!(job.stage, JobStage::Gathering { .. } | JobStage::Failing(_)) {
            return false;
        }
        job.refused.insert(cluster.clone(), error.clone());
        let program = ProgramKey::of(&job.submit);
        let starts = |(name, site): &(&ClusterId, &ClusterPool)| {
            let mut there = site.nodes.iter().filter_map(|node| self.nodes.get(node));
            !job.refused.contains_key(*name)
                && (site.can_start(&job.submit) || there.any(|it| it.running(program).is_some()))
        };
        let others: BTreeSet<ClusterId> =
            self.sites.iter().filter(starts).map(|(name, _)| name.clone()).collect();
        let has_other =
            |one: &Component| one.clusters.is_empty() || !one.clusters.is_disjoint(&others);
        if others.is_empty() || !need.components.iter().all(has_other) {
            return false;
        }
        if matches!(job.stage, JobStage::Gathering { .. }) {
            self.fail_start(id, error.to_string(), now, out);
        }
        true
    }
}
