//! Submits jobs to a grid, simulated or live, and hears of them.
//!
//! Must not know what the grid is made of.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use springtide_actors::client::{self, Client, News};
use springtide_actors::endpoint::Endpoint;
use springtide_actors::job::{JobEnded, JobParams, NoteKind, SCHEDULER};
use springtide_actors::links::Links;
use springtide_actors::scheduler::manager::Need;
use springtide_actors::scheduler::{Granted, Scheduler, Submit};
use springtide_runtime::event::Record;
use springtide_runtime::id::{ClusterId, JobId};
use springtide_runtime::net::Contact;
use springtide_runtime::remote::Remote;
use springtide_runtime::work::{Job, encode_job};
use tokio::sync::{Mutex, mpsc};
use tokio::time::{Instant, timeout};

use crate::grid::{GridError, Told};

/// A submission is answered within this time: it waits for nodes that join.
const SUBMIT_WITHIN: Duration = Duration::from_secs(120);

/// How a job ended.
#[derive(Debug)]
pub struct Ended {
    /// As its client hears it.
    pub ended: Box<JobEnded>,
    /// From its submission to its result; without one, to its end. The records of what happened may come later: over a slow link
    /// they take seconds.
    pub wall: Duration,
    /// Length of each iteration, seconds.
    pub iterations: Vec<f64>,
    /// What it said, with the time since its submission.
    pub said: Vec<(Duration, String)>,
    /// What happened, in the order in which the client heard it.
    pub records: Vec<Record>,
}

/// Whoever submits jobs from the head of a grid.
pub struct Submitter {
    scheduler: Remote<Scheduler>,
    client: Contact,
    fingerprint: u64,
    program: Option<PathBuf>,
    news: Mutex<mpsc::Receiver<client::Heard>>,
    _links: Arc<Links>,
}

/// What is told of a job while it runs.
#[derive(Debug)]
pub enum Heard<'a> {
    /// So many iterations are done.
    Iterations(u64),
    /// This happened.
    Record(&'a Record),
}

/// Hears of a job.
type Hear<'a> = dyn Fn(Heard<'_>) + 'a;

/// A job on its way.
pub struct Submitted<'a> {
    submitter: &'a Submitter,
    began: Instant,
    granted: Granted,
    iterations: Vec<f64>,
    said: Vec<(Duration, String)>,
    records: Vec<Record>,
    hear: Option<Box<Hear<'a>>>,
    /// When its result was here.
    done: Option<Duration>,
}

impl Submitter {
    /// Submits jobs of a program with this fingerprint from the head's endpoint. Sites that can start a program which a client hands in
    /// start `program`.
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

    /// The scheduler.
    pub fn scheduler(&self) -> &Remote<Scheduler> {
        &self.scheduler
    }

    /// Submits a job, on so many nodes of each cluster, or on all.
    ///
    /// # Errors
    /// [`GridError`].
    pub async fn submit<J: Job>(
        &self,
        job: J,
        params: JobParams,
        clusters: Option<BTreeMap<ClusterId, u32>>,
    ) -> Result<Submitted<'_>, GridError> {
        self.submit_as(job, params, clusters, None).await
    }

    /// Submits a job that the malleability manager places among others, and grows and shrinks.
    ///
    /// # Errors
    /// [`GridError`].
    pub async fn submit_needing<J: Job>(
        &self,
        job: J,
        params: JobParams,
        need: Need,
    ) -> Result<Submitted<'_>, GridError> {
        self.submit_as(job, params, None, Some(need)).await
    }

    async fn submit_as<J: Job>(
        &self,
        job: J,
        params: JobParams,
        clusters: Option<BTreeMap<ClusterId, u32>>,
        need: Option<Need>,
    ) -> Result<Submitted<'_>, GridError> {
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
        };
        let began = Instant::now();
        let granted = self.scheduler.send(submit).deadline(SUBMIT_WITHIN).await??;
        Ok(Submitted {
            submitter: self,
            began,
            granted,
            iterations: Vec::new(),
            said: Vec::new(),
            records: Vec::new(),
            hear: None,
            done: None,
        })
    }

    /// The next news of any job, for who follows many at once.
    pub async fn news(&self) -> Option<client::Heard> {
        self.news.lock().await.recv().await
    }

    /// How often a job was told to have ended that its [`Submitted`] has heard of already.
    pub async fn ended_again(&self, job: JobId) -> u64 {
        let mut news = self.news.lock().await;
        let mut times = 0;
        while let Ok((of, news, _)) = news.try_recv() {
            times += u64::from(of == job && matches!(news, News::Ended(_)));
        }
        times
    }
}

impl<'a> Submitted<'a> {
    /// Which job it is.
    pub fn granted(&self) -> &Granted {
        &self.granted
    }

    /// Tells of it while it runs.
    pub fn hearing(mut self, hear: impl Fn(Heard<'_>) + 'a) -> Self {
        self.hear = Some(Box::new(hear));
        self
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// [`GridError::Endless`] when that takes longer than `limit` from now.
    pub async fn ended(mut self, limit: Duration) -> Result<Ended, GridError> {
        let hear = async {
            let mut news = self.submitter.news.lock().await;
            while let Some((job, news, _)) = news.recv().await {
                if job != self.granted.job {
                    continue;
                }
                match news {
                    News::Ended(ended) => return Some(ended),
                    News::Note(note) => {
                        if matches!(*note, NoteKind::Outcome { .. }) {
                            // A job that goes on elsewhere may tell it again.
                            self.done.get_or_insert(self.began.elapsed());
                        }
                        let before = self.records.len();
                        note_down(
                            *note,
                            self.began.elapsed(),
                            &mut self.iterations,
                            &mut self.said,
                            &mut self.records,
                        );
                        if let Some(hear) = &self.hear {
                            self.records[before..].iter().for_each(|new| hear(Heard::Record(new)));
                            hear(Heard::Iterations(self.iterations.len() as u64));
                        }
                    }
                }
            }
            None
        };
        match timeout(limit, hear).await {
            Ok(Some(ended)) => Ok(Ended {
                ended,
                wall: self.done.unwrap_or_else(|| self.began.elapsed()),
                iterations: self.iterations,
                said: self.said,
                records: self.records,
            }),
            _ => Err(GridError::Endless(limit, Told(self.said), String::new())),
        }
    }
}

fn note_down(
    note: NoteKind,
    at: Duration,
    iterations: &mut Vec<f64>,
    said: &mut Vec<(Duration, String)>,
    records: &mut Vec<Record>,
) {
    match note {
        NoteKind::Iteration { seconds, .. } => iterations.push(seconds),
        NoteKind::Say { text } => said.push((at, text)),
        NoteKind::Started { root, workers } => {
            let nodes: u32 = workers.values().sum();
            said.push((at, format!("the root runs on {root}, with {nodes} workers")));
        }
        NoteKind::Events { records: more } => records.extend(more),
        NoteKind::Progress { .. }
        | NoteKind::Artifact { .. }
        | NoteKind::Preliminary { .. }
        | NoteKind::Outcome { .. }
        | NoteKind::Period { .. } => {}
    }
}
