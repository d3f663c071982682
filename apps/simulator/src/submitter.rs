//! Submits jobs to a simulated or live grid, and follows their progress.
//!
//! This module does not depend on the grid's implementation.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use springtide_actors::client::{self, Client, JobUpdate};
use springtide_actors::endpoint::Endpoint;
use springtide_actors::job::{JobEndReport, JobParams, NoteKind, SCHEDULER};
use springtide_actors::links::LinkChanges;
use springtide_actors::scheduler::manager::JobRequirements;
use springtide_actors::scheduler::{JobGrant, Scheduler, Submit};
use springtide_runtime::event::Record;
use springtide_runtime::id::{ClusterId, JobId};
use springtide_runtime::net::Contact;
use springtide_runtime::remote::Remote;
use springtide_runtime::work::{Job, encode_job};
use tokio::sync::{Mutex, mpsc};
use tokio::time::{Instant, timeout};

use crate::grid::{GridError, RecentEvents};

/// Time limit of a submission's answer, which may wait for nodes that join.
const SUBMIT_TIMEOUT: Duration = Duration::from_secs(120);

/// A job that has ended, with its progress.
#[derive(Debug)]
pub struct CompletedRun {
    /// The report that the client gets.
    pub ended: Box<JobEndReport>,
    /// Time from the submission to the result, or to the end if there is no result. Records may
    /// arrive later: over a slow link they take seconds.
    pub wall: Duration,
    /// Length of each iteration, seconds.
    pub iterations: Vec<f64>,
    /// Messages of the job, with the time since its submission.
    pub said: Vec<(Duration, String)>,
    /// Records of events, in the order of their arrival at the client.
    pub records: Vec<Record>,
}

/// Submits jobs from the head of a grid.
pub struct Submitter {
    scheduler: Remote<Scheduler>,
    client: Contact,
    fingerprint: u64,
    program: Option<PathBuf>,
    news: Mutex<mpsc::Receiver<client::ReceivedNews>>,
    _links: Arc<LinkChanges>,
}

/// The progress of a running job.
#[derive(Debug)]
pub enum SubmissionProgress<'a> {
    /// The number of completed iterations.
    Iterations(u64),
    /// A recorded event.
    Record(&'a Record),
}

/// A callback for the progress of a job.
type ProgressCallback<'a> = dyn Fn(SubmissionProgress<'_>) + 'a;

/// A submitted job that has not ended.
pub struct SubmittedJob<'a> {
    submitter: &'a Submitter,
    submitted_at: Instant,
    granted: JobGrant,
    iterations: Vec<f64>,
    said: Vec<(Duration, String)>,
    records: Vec<Record>,
    callback: Option<Box<ProgressCallback<'a>>>,
    /// Time from the submission to the arrival of the result.
    done: Option<Duration>,
}

impl Submitter {
    /// Creates a submitter at the head's endpoint, for a program with this fingerprint.
    ///
    /// Sites that can start a client's program start `program`.
    pub fn new(endpoint: &Endpoint, fingerprint: u64, program: Option<PathBuf>) -> Self {
        let (links, news) = Client::publish(endpoint);
        Self {
            scheduler: endpoint.hub.remote(&endpoint.net.me().node, SCHEDULER),
            client: endpoint.net.contact(),
            fingerprint,
            program,
            news: Mutex::new(news),
            _links: links,
        }
    }

    /// The scheduler of the grid.
    pub fn scheduler(&self) -> &Remote<Scheduler> {
        &self.scheduler
    }

    /// Submits a job on the given number of nodes of each cluster, or on all nodes.
    ///
    /// # Errors
    /// [`GridError`].
    pub async fn submit<J: Job>(
        &self,
        job: J,
        params: JobParams,
        clusters: Option<BTreeMap<ClusterId, u32>>,
    ) -> Result<SubmittedJob<'_>, GridError> {
        self.submit_as(job, params, clusters, None).await
    }

    /// Submits a job that the malleability manager places, grows and shrinks.
    ///
    /// # Errors
    /// [`GridError`].
    pub async fn submit_needing<J: Job>(
        &self,
        job: J,
        params: JobParams,
        need: JobRequirements,
    ) -> Result<SubmittedJob<'_>, GridError> {
        self.submit_as(job, params, None, Some(need)).await
    }

    async fn submit_as<J: Job>(
        &self,
        job: J,
        params: JobParams,
        clusters: Option<BTreeMap<ClusterId, u32>>,
        need: Option<JobRequirements>,
    ) -> Result<SubmittedJob<'_>, GridError> {
        let body = encode_job(job).map_err(|error| GridError::Job(error.to_string()))?;
        let submit = Submit {
            name: J::NAME.to_owned(),
            body,
            fingerprint: self.fingerprint,
            params,
            clusters,
            client: self.client.clone(),
            program: self.program.clone(),
            need,
            principal: None,
            image: None,
        };
        let submitted_at = Instant::now();
        let granted = self.scheduler.send(submit).deadline(SUBMIT_TIMEOUT).await??;
        Ok(SubmittedJob {
            submitter: self,
            submitted_at,
            granted,
            iterations: Vec::new(),
            said: Vec::new(),
            records: Vec::new(),
            callback: None,
            done: None,
        })
    }

    /// The next news of any job, for callers that follow several jobs.
    pub async fn news(&self) -> Option<client::ReceivedNews> {
        self.news.lock().await.recv().await
    }

    /// The number of end notifications of a job since its [`SubmittedJob`] was consumed.
    pub async fn ended_again(&self, job: JobId) -> u64 {
        let mut news = self.news.lock().await;
        let mut times = 0;
        while let Ok((of, news, _)) = news.try_recv() {
            times += u64::from(of == job && matches!(news, JobUpdate::Ended(_)));
        }
        times
    }
}

impl<'a> SubmittedJob<'a> {
    /// The scheduler's grant of the job.
    pub fn granted(&self) -> &JobGrant {
        &self.granted
    }

    /// Sets the callback for the job's progress.
    pub fn on_progress(mut self, callback: impl Fn(SubmissionProgress<'_>) + 'a) -> Self {
        self.callback = Some(Box::new(callback));
        self
    }

    /// Waits for the end of the job.
    ///
    /// # Errors
    /// [`GridError::Endless`] after `limit` from now.
    pub async fn ended(mut self, limit: Duration) -> Result<CompletedRun, GridError> {
        let callback = async {
            let mut news = self.submitter.news.lock().await;
            while let Some((job, news, _)) = news.recv().await {
                if job != self.granted.job {
                    continue;
                }
                match news {
                    JobUpdate::Ended(ended) => return Some(ended),
                    JobUpdate::Note(note) => {
                        if matches!(*note, NoteKind::Outcome { .. }) {
                            // A job that continues elsewhere may repeat it.
                            self.done.get_or_insert(self.submitted_at.elapsed());
                        }
                        let before = self.records.len();
                        record_note(
                            *note,
                            self.submitted_at.elapsed(),
                            &mut self.iterations,
                            &mut self.said,
                            &mut self.records,
                        );
                        if let Some(callback) = &self.callback {
                            self.records[before..]
                                .iter()
                                .for_each(|new| callback(SubmissionProgress::Record(new)));
                            callback(SubmissionProgress::Iterations(self.iterations.len() as u64));
                        }
                    }
                }
            }
            None
        };
        match timeout(limit, callback).await {
            Ok(Some(ended)) => Ok(CompletedRun {
                ended,
                wall: self.done.unwrap_or_else(|| self.submitted_at.elapsed()),
                iterations: self.iterations,
                said: self.said,
                records: self.records,
            }),
            _ => Err(GridError::Endless(limit, RecentEvents(self.said), String::new())),
        }
    }
}

fn record_note(
    note: NoteKind,
    at: Duration,
    iterations: &mut Vec<f64>,
    said: &mut Vec<(Duration, String)>,
    records: &mut Vec<Record>,
) {
    match note {
        NoteKind::Iteration { seconds, .. } => iterations.push(seconds),
        NoteKind::Text { text } => said.push((at, text)),
        NoteKind::Started { root, workers } => {
            let nodes: u32 = workers.values().sum();
            said.push((at, format!("the root runs on {root}, with {nodes} workers")));
        }
        NoteKind::Events { records: more } => records.extend(more),
        NoteKind::Progress { .. }
        | NoteKind::Artifact { .. }
        | NoteKind::Message { .. }
        | NoteKind::Output { .. }
        | NoteKind::Preliminary { .. }
        | NoteKind::Outcome { .. }
        | NoteKind::Period { .. } => {}
    }
}
