//! Input files in the core: the catalogue, rates of links, and the transfers under way.
//!
//! A move transfers files of one job to its placement. A failed transfer is repeated a few times,
//! with the sources of that time. Then the job returns to the queue. This module must not depend on
//! how files are transferred.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use springtide_base::id::{ClusterId, JobId};
use tokio::time::Instant;

use super::SchedulerCore;
use super::event::SchedulerAction;
use super::managed::JobStage;
use crate::catalogue::Catalogue;
use crate::files::{FetchResult, FileEntry, FileStatus, FilesReport};
use crate::manager::{JobRequirements, ManagerEvent};
use crate::policy::malleability::PlacementTransfer;

/// Greatest number of attempts to transfer a file.
const ATTEMPTS_MAX: u32 = 4;
/// Delay before the second attempt; it doubles for each further one.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Weight of the last transfer's rate in a link's mean rate.
const RATE_WEIGHT: f64 = 0.3;
/// Shortest transfer that measures a link. The time of shorter ones is that of a round trip.
const MIN_BYTES: u64 = 64 << 10;

/// A file that a move waits for.
#[derive(Debug)]
struct TransferStep {
    transfer: PlacementTransfer,
    /// Number of the present fetch.
    ask: Option<u64>,
    tries: u32,
    /// Time of the next attempt.
    until: Option<Instant>,
}

/// The scheduler's knowledge of files.
#[derive(Debug, Default)]
pub(super) struct InputFiles {
    catalogue: Catalogue,
    /// Clusters that keep files.
    keep: BTreeSet<ClusterId>,
    /// Measured rates of links, in bytes per second.
    rates: BTreeMap<(ClusterId, ClusterId), f64>,
    moves: BTreeMap<JobId, Vec<TransferStep>>,
    last_ask: u64,
}

impl InputFiles {
    /// Whether files of a job are being transferred.
    pub(super) fn moving(&self, job: JobId) -> bool {
        self.moves.contains_key(&job)
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.moves.values().flatten().filter_map(|step| step.until).min()
    }
}

impl SchedulerCore {
    /// Checks that the grid has the files that a job needs.
    ///
    /// # Errors
    /// Names the missing file and the known files.
    pub fn check_files(&self, need: &JobRequirements) -> Result<(), String> {
        let names: BTreeSet<&String> = need.components.iter().flat_map(|one| &one.files).collect();
        self.files.catalogue.check(names, &self.files.keep)
    }

    /// All files in the grid, by name.
    pub fn file_statuses(&self) -> Vec<FileStatus> {
        self.files.catalogue.files()
    }

    /// Clusters that keep files.
    pub fn keepers(&self) -> impl Iterator<Item = &ClusterId> {
        self.files.keep.iter()
    }

    /// Records whether a cluster keeps files. If so, its file server reports them.
    pub(super) fn record_file_server(&mut self, cluster: &ClusterId, keeps: bool) {
        if keeps {
            self.files.keep.insert(cluster.clone());
        } else {
            self.files.keep.remove(cluster);
        }
    }

    /// Processes a file server's report.
    pub(super) fn files_reported(
        &mut self,
        here: FilesReport,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        self.files.keep.insert(here.cluster.clone());
        for name in self.files.catalogue.here(here) {
            self.report_file(&name, now, out);
        }
    }

    fn report_file(&mut self, name: &str, now: Instant, out: &mut Vec<SchedulerAction>) {
        let file = self.files.catalogue.file(name);
        let differs = file.differs();
        let bytes = file.clusters.values().next().map_or(0, |entry| entry.bytes);
        let clusters = file.clusters.into_keys().collect();
        self.report(ManagerEvent::Replicas { file: file.name, bytes, clusters, differs }, now, out);
    }

    /// Reports a job's files to the manager, including those that no cluster has.
    pub(super) fn introduce_files(
        &mut self,
        need: &JobRequirements,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        let names: BTreeSet<&String> = need.components.iter().flat_map(|one| &one.files).collect();
        for name in names {
            self.report_file(name, now, out);
        }
    }

    /// Starts to transfer a job's files to its placement.
    pub(super) fn begin_move(
        &mut self,
        job: JobId,
        transfers: Vec<PlacementTransfer>,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        let mut before = self.files.moves.remove(&job).unwrap_or_default();
        let step = |transfer: PlacementTransfer| {
            let same = |step: &TransferStep| {
                step.transfer.file == transfer.file && step.transfer.to == transfer.to
            };
            match before.iter().position(same) {
                // An earlier placement there started the same transfer, which continues.
                Some(at) => before.swap_remove(at),
                None => TransferStep { transfer, ask: None, tries: 0, until: Some(now) },
            }
        };
        let steps: Vec<TransferStep> = transfers.into_iter().map(step).collect();
        // Transfers to clusters of the earlier placement are cancelled.
        let still = |cluster: &ClusterId| steps.iter().any(|step| step.transfer.to == *cluster);
        cancel_steps(job, &before, |cluster| !still(cluster), out);
        self.files.moves.insert(job, steps);
    }

    /// Starts the fetches that are due.
    pub(super) fn start_fetches(&mut self, now: Instant, out: &mut Vec<SchedulerAction>) {
        let InputFiles { catalogue, moves, last_ask, .. } = &mut self.files;
        let mut failed = Vec::new();
        for (&job, steps) in moves {
            for step in steps.iter_mut().filter(|step| step.until.is_some_and(|at| at <= now)) {
                step.tries += 1;
                *last_ask += 1;
                (step.ask, step.until) = (Some(*last_ask), None);
                let PlacementTransfer { file: name, from, to, .. } = &step.transfer;
                let file = catalogue.file(name);
                let Some(entry) = file.entry().cloned() else {
                    let reason = match file.differs() {
                        Some(differs) => format!("files named {name} differ: {differs}"),
                        None => format!("no cluster has the file {name} any longer"),
                    };
                    failed.push((*last_ask, job, reason));
                    continue;
                };
                // The planned source comes first, then the others.
                let mut sources: Vec<ClusterId> =
                    file.clusters.into_keys().filter(|cluster| cluster != to).collect();
                sources.sort_by_key(|cluster| (cluster != from, cluster.clone()));
                out.push(SchedulerAction::BringFile {
                    job,
                    ask: *last_ask,
                    file: entry,
                    from: sources,
                    to: to.clone(),
                });
            }
        }
        for (ask, job, reason) in failed {
            self.file_fetched(job, ask, Err(reason), now, out);
        }
    }

    /// Processes the answer to [`Action::FetchFile`], or its absence.
    pub(super) fn file_fetched(
        &mut self,
        job: JobId,
        ask: u64,
        answer: Result<(FileEntry, FetchResult), String>,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        let Some(steps) = self.files.moves.get_mut(&job) else { return };
        let Some(at) = steps.iter().position(|step| step.ask == Some(ask)) else { return };
        let PlacementTransfer { file: name, to, .. } = steps[at].transfer.clone();
        match answer {
            Ok((file, brought)) => {
                steps.remove(at);
                let all = steps.is_empty();
                self.managing.histories.note(job, now, describe_fetch(&name, &to, &brought));
                self.measured_link(&to, &brought, now, out);
                self.files.catalogue.has(&to, file);
                self.report_file(&name, now, out);
                if all {
                    self.files.moves.remove(&job);
                    self.report(ManagerEvent::Moved { job }, now, out);
                }
            }
            Err(reason) if steps[at].tries < ATTEMPTS_MAX => {
                let wait = RETRY_DELAY * (1 << (steps[at].tries - 1));
                (steps[at].ask, steps[at].until) = (None, Some(now + wait));
                let line =
                    format!("{name} did not get to {to}, and is tried again in {wait:?}: {reason}");
                self.managing.histories.note(job, now, line);
            }
            Err(reason) => {
                steps[at].ask = None;
                let reason =
                    format!("{name} did not get to {to} in {ATTEMPTS_MAX} tries: {reason}");
                self.cancel_move(job, out);
                self.move_failed(job, reason, now, out);
            }
        }
    }

    /// Fails a job's start because of its files. A job that has nodes releases them first.
    fn move_failed(
        &mut self,
        job: JobId,
        reason: String,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        match self.managing.jobs.get(&job).map(|managed| managed.stage.clone()) {
            Some(JobStage::Gathering { .. }) => self.fail_start(job, reason, now, out),
            Some(_) => self.report(ManagerEvent::MoveFailed { job, reason }, now, out),
            None => {}
        }
    }

    /// Cancels all transfers for a job.
    pub(super) fn cancel_move(&mut self, job: JobId, out: &mut Vec<SchedulerAction>) {
        let Some(steps) = self.files.moves.remove(&job) else { return };
        cancel_steps(job, &steps, |_| true, out);
    }

    /// Updates a link's mean rate after a transfer.
    fn measured_link(
        &mut self,
        to: &ClusterId,
        brought: &FetchResult,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        let FetchResult { from: Some(from), bytes, seconds } = brought else { return };
        let rate = *bytes as f64 / seconds;
        // The values come from another process.
        if *bytes < MIN_BYTES || !rate.is_finite() || rate <= 0.0 {
            return;
        }
        let link = (from.clone(), to.clone());
        let mean =
            self.files.rates.get(&link).map_or(rate, |mean| mean + RATE_WEIGHT * (rate - mean));
        self.files.rates.insert(link, mean);
        self.report(
            ManagerEvent::LinkMeasured { from: from.clone(), to: to.clone(), rate: mean },
            now,
            out,
        );
    }
}

fn describe_fetch(name: &str, to: &ClusterId, brought: &FetchResult) -> String {
    match &brought.from {
        Some(from) => {
            let FetchResult { bytes, seconds, .. } = brought;
            format!("{name} was transferred from {from} to {to}: {bytes} bytes in {seconds:.2} s")
        }
        None => format!("{name} is in {to}"),
    }
}

/// Cancels the fetches of these steps in the selected clusters.
fn cancel_steps(
    job: JobId,
    steps: &[TransferStep],
    of: impl Fn(&ClusterId) -> bool,
    out: &mut Vec<SchedulerAction>,
) {
    let asked = steps.iter().filter(|step| step.ask.is_some() && of(&step.transfer.to));
    let clusters: BTreeSet<ClusterId> = asked.map(|step| step.transfer.to.clone()).collect();
    out.extend(clusters.into_iter().map(|cluster| SchedulerAction::DropFiles { job, cluster }));
}
