//! The coordinator: one a job, on the node that runs the job's root. It starts the root when all clusters have joined,
//! passes on what the job reports, collects each period's aggregates, and ends the job in order.
//!
//! Its input and work are O(clusters). Adaptation decides here from the adaptation issue on.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use springtide_runtime::event::{Event, Record, Recorder};
use springtide_runtime::id::{ClusterId, JobId};
use springtide_runtime::membership::View;
use springtide_runtime::meter::{Deltas, Statistics, Tally};
use springtide_runtime::net::Contact;
use springtide_runtime::remote::{Hub, Remote};
use springtide_runtime::work::{Engine, Failure, Note, Outcome, Registry};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::admit;
use crate::client::Client;
use crate::cluster::{
    ClusterCoordinator, ClusterFinal, ClusterJoined, ClusterPeriod, FinishCluster,
};
use crate::job::{
    CLIENT, Cancel, ClusterReport, JobEnded, JobError, JobNote, JobOver, JobReport, JobSpec,
    NoteKind, SCHEDULER, cluster_coordinator_name, coordinator_name,
};
use crate::scheduler::Scheduler;
use crate::worker::workers_by_cluster;

/// How long all workers may take to join.
const JOIN_DEADLINE: Duration = Duration::from_secs(30);
/// How long a cluster may take to end a job.
const FINISH_DEADLINE: Duration = Duration::from_secs(45);
/// How long the client may take to take in a note (an artefact crosses the network).
const NOTE_DEADLINE: Duration = Duration::from_secs(120);
/// Progress notes are sent at most this often.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);

/// What a coordinator is made of.
pub struct CoordinatorConfig {
    /// The job.
    pub spec: JobSpec,
    /// Who takes part.
    pub view: View,
    /// Whom to tell.
    pub client: Contact,
    /// Whom to tell when the job is over.
    pub scheduler: Contact,
    /// This program.
    pub registry: Arc<Registry>,
    /// This node's part in the job; the root runs here.
    pub engine: Engine,
    /// This node's events.
    pub recorder: Recorder,
    /// What the root reports, and the other end, for the root's end itself.
    pub reports: (mpsc::UnboundedSender<Reported>, mpsc::UnboundedReceiver<Reported>),
}

/// What comes from the root, in order, with the time it happened.
#[derive(Debug)]
pub enum Reported {
    /// The root begins.
    Started(Instant),
    /// It reports.
    Note(Instant, Note),
    /// It has ended.
    Ended(Result<Outcome, Failure>),
}

/// What goes to client and scheduler, in order.
enum Outgoing {
    Note(NoteKind),
    End(Box<JobEnded>, JobOver),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Joining,
    Running,
    Ending,
}

/// The coordinator actor. Published under [`coordinator_name`].
pub struct Coordinator {
    spec: JobSpec,
    view: View,
    client: Contact,
    scheduler: Contact,
    registry: Arc<Registry>,
    engine: Engine,
    recorder: Recorder,
    report: mpsc::UnboundedSender<Reported>,
    reports: Option<mpsc::UnboundedReceiver<Reported>>,
    iterations: Vec<f64>,
    hub: Arc<Hub>,
    phase: Phase,
    joined: BTreeMap<ClusterId, u32>,
    tally: Tally<ClusterId>,
    latencies: Deltas,
    started: Instant,
    out: mpsc::UnboundedSender<Outgoing>,
    outgoing: Option<mpsc::UnboundedReceiver<Outgoing>>,
}

impl Coordinator {
    /// A coordinator that waits for the clusters to join.
    pub fn new(config: CoordinatorConfig, hub: Arc<Hub>) -> Self {
        let (out, outgoing) = mpsc::unbounded_channel();
        let CoordinatorConfig { spec, view, client, scheduler, .. } = config;
        let CoordinatorConfig { registry, engine, recorder, reports: (report, reports), .. } =
            config;
        Self {
            spec,
            view,
            client,
            scheduler,
            registry,
            engine,
            recorder,
            report,
            reports: Some(reports),
            iterations: Vec::new(),
            hub,
            phase: Phase::Joining,
            joined: BTreeMap::new(),
            tally: Tally::new(),
            latencies: Deltas::default(),
            started: Instant::now(),
            out,
            outgoing: Some(outgoing),
        }
    }

    /// Starts the actor on this arbiter and publishes it.
    pub fn publish(self) -> Addr<Self> {
        let (hub, name) = (self.hub.clone(), coordinator_name(self.spec.id));
        let addr = self.start();
        hub.publish(&name, addr.clone())
            .accepts_from::<ClusterJoined>(admit::cluster_joined)
            .accepts_from::<ClusterPeriod>(admit::cluster_period)
            .accepts_from::<Cancel>(admit::client);
        addr
    }

    fn tell(&self, note: NoteKind) {
        // The forwarding task lives as long as this actor.
        let _ = self.out.send(Outgoing::Note(note));
    }

    fn start_root(&mut self, ctx: &mut Context<Self>) {
        self.phase = Phase::Running;
        self.started = Instant::now();
        self.recorder.record(Event::JobStarted {
            job: self.spec.id,
            name: self.spec.name.clone(),
            epoch: self.spec.epoch,
        });
        let root = self.view.coordinator.clone().unwrap_or_else(|| "".into());
        self.tell(NoteKind::Started { root, workers: self.joined.clone() });
        let Some(job) = self.registry.find_job(&self.spec.name) else {
            let reason = format!("this node's program knows no job {}", self.spec.name);
            return self.end(Err(JobError::Start { reason }), ctx);
        };
        let report = self.report.clone();
        // The receiver lives as long as this actor; after it nobody wants the answer.
        let _ = report.send(Reported::Started(self.started));
        self.engine.run_job(job, self.spec.body.clone(), move |outcome| {
            let _ = report.send(Reported::Ended(outcome));
        });
    }

    /// Ends the job with this outcome: workers stop, then client and scheduler are told.
    fn end(&mut self, outcome: Result<Outcome, JobError>, ctx: &mut Context<Self>) {
        if self.phase == Phase::Ending {
            return;
        }
        self.phase = Phase::Ending;
        let wall = self.started.elapsed();
        let job = self.spec.id;
        let requests: Vec<_> = self
            .view
            .cluster_coordinators
            .iter()
            .map(|(cluster, node)| {
                let remote =
                    self.hub.remote::<ClusterCoordinator>(node, &cluster_coordinator_name(job));
                let request = remote.send(FinishCluster { job }).deadline(FINISH_DEADLINE);
                (cluster.clone(), request.start())
            })
            .collect();
        let finals = async move {
            let mut finals = Vec::new();
            for (cluster, request) in requests {
                finals.push((cluster, request.await));
            }
            finals
        };
        ctx.spawn(finals.into_actor(self).map(move |finals, coordinator, _| {
            let mut last = Vec::new();
            for (cluster, answer) in finals {
                match answer {
                    Ok(answer) => last.push(answer),
                    Err(error) => {
                        tracing::warn!(%cluster, %error, "a cluster did not end the job in order");
                    }
                }
            }
            coordinator.conclude(outcome, wall, last);
        }));
    }

    fn conclude(
        &mut self,
        outcome: Result<Outcome, JobError>,
        wall: Duration,
        finals: Vec<ClusterFinal>,
    ) {
        let job = self.spec.id;
        let mut records: Vec<Record> = Vec::new();
        let mut clusters = BTreeMap::new();
        let mut total = Statistics::default();
        for last in finals {
            for (node, why) in &last.silent {
                tracing::warn!(%node, why, "a worker did not end the job in order");
            }
            records.extend(last.records);
            if let Err(error) = total.merge(&last.statistics) {
                tracing::warn!(cluster = %last.cluster, %error, "a cluster's last report is malformed");
            }
            let report = ClusterReport { workers: last.workers, statistics: last.statistics };
            clusters.insert(last.cluster, report);
        }
        if let Err(error) = total.latencies.merge(&self.latencies) {
            tracing::warn!(%error, "the periods' latencies are malformed");
        }
        self.recorder.record(Event::JobEnded {
            job,
            ok: outcome.is_ok(),
            wall_us: u64::try_from(wall.as_micros()).unwrap_or(u64::MAX),
            checksum: outcome.as_ref().ok().map(|outcome| format!("{:016x}", outcome.checksum)),
            error: outcome.as_ref().err().map(ToString::to_string),
        });
        records.extend(self.recorder.drain());
        self.tell(NoteKind::Events { records });
        let iterations = std::mem::take(&mut self.iterations);
        let report = JobReport { wall_s: wall.as_secs_f64(), iterations, clusters, total };
        let over = JobOver { job, epoch: self.spec.epoch, ok: outcome.is_ok() };
        let ended = Box::new(JobEnded { job, outcome, report });
        let _ = self.out.send(Outgoing::End(ended, over));
    }
}

/// The root has ended. Local only.
struct RootEnded {
    outcome: Result<Outcome, Failure>,
    iterations: Vec<f64>,
}

impl Message for RootEnded {
    type Result = ();
}

/// Turns what the root reports into notes, in order; iterations are timed by when they were reported.
async fn read_reports(
    mut reports: mpsc::UnboundedReceiver<Reported>,
    out: mpsc::UnboundedSender<Outgoing>,
    coordinator: Addr<Coordinator>,
    recorder: Recorder,
    job: JobId,
) {
    let mut iterations = Vec::new();
    let mut last_iteration = Instant::now();
    let mut last_progress: Option<Instant> = None;
    while let Some(report) = reports.recv().await {
        let (at, note) = match report {
            Reported::Started(at) => {
                last_iteration = at;
                continue;
            }
            Reported::Note(at, note) => (at, note),
            Reported::Ended(outcome) => {
                // The coordinator lives until it has told the end.
                let _ = coordinator.send(RootEnded { outcome, iterations }).await;
                return;
            }
        };
        let kind = match note {
            Note::Iteration => {
                let took = at.saturating_duration_since(last_iteration);
                last_iteration = at;
                let index = iterations.len() as u64;
                iterations.push(took.as_secs_f64());
                recorder.record_at(
                    Event::IterationDone {
                        job,
                        iteration: index,
                        wall_us: u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
                        detail: serde_json::Value::Null,
                    },
                    at,
                );
                NoteKind::Iteration { index, seconds: took.as_secs_f64() }
            }
            Note::Progress { done, total, what } => {
                let soon = last_progress.is_some_and(|last| at < last + PROGRESS_EVERY);
                if soon && done < total {
                    continue;
                }
                last_progress = Some(at);
                NoteKind::Progress { done, total, what }
            }
            Note::Say { text } => NoteKind::Say { text },
            Note::Artifact { name, bytes } => NoteKind::Artifact { name, bytes },
        };
        if out.send(Outgoing::Note(kind)).is_err() {
            return;
        }
    }
}

/// Tells the client all notes in order, and client and scheduler the end.
async fn forward(
    mut outgoing: mpsc::UnboundedReceiver<Outgoing>,
    client: Remote<Client>,
    scheduler: Remote<Scheduler>,
    coordinator: Addr<Coordinator>,
    job: JobId,
) {
    let mut seq = 0;
    let mut client_lost = false;
    while let Some(item) = outgoing.recv().await {
        match item {
            Outgoing::Note(what) if !client_lost => {
                let note = JobNote { job, seq, what };
                seq += 1;
                if let Err(error) = client.send(note).deadline(NOTE_DEADLINE).await {
                    tracing::warn!(%error, "the client does not take notes any more");
                    client_lost = true;
                    let reason = format!("its client is lost ({error})");
                    let _ = coordinator.send(Cancel { job, reason }).await;
                }
            }
            Outgoing::Note(_) => {}
            Outgoing::End(ended, over) => {
                if !client_lost
                    && let Err(error) = client.send(*ended).deadline(NOTE_DEADLINE).await
                {
                    tracing::warn!(%error, "the client did not take the job's end");
                }
                if let Err(error) = scheduler.send(over).await {
                    tracing::warn!(%error, "the scheduler did not take the job's end");
                }
                return;
            }
        }
    }
}

impl Actor for Coordinator {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        let job = self.spec.id;
        if let (Some(reports), Some(outgoing)) = (self.reports.take(), self.outgoing.take()) {
            let (out, recorder) = (self.out.clone(), self.recorder.clone());
            let reading = read_reports(reports, out, ctx.address(), recorder, job);
            ctx.spawn(reading.into_actor(self));
            let client = self.hub.remote::<Client>(&self.client.node, CLIENT);
            let scheduler = self.hub.remote::<Scheduler>(&self.scheduler.node, SCHEDULER);
            let forwarding = forward(outgoing, client, scheduler, ctx.address(), job);
            ctx.spawn(forwarding.into_actor(self).map(|(), _, ctx| ctx.stop()));
        }
        ctx.run_later(JOIN_DEADLINE, |coordinator, ctx| {
            if coordinator.phase == Phase::Joining {
                let wanted = workers_by_cluster(&coordinator.view);
                let missing: Vec<String> = wanted
                    .keys()
                    .filter(|cluster| !coordinator.joined.contains_key(*cluster))
                    .map(ToString::to_string)
                    .collect();
                let reason = format!(
                    "the workers of {} did not join within {} s: look at their logs in the run's directory",
                    missing.join(", "),
                    JOIN_DEADLINE.as_secs()
                );
                coordinator.end(Err(JobError::Start { reason }), ctx);
            }
        });
    }
}

impl Handler<ClusterJoined> for Coordinator {
    type Result = ();

    fn handle(&mut self, message: ClusterJoined, ctx: &mut Self::Context) {
        self.joined.insert(message.cluster, message.workers);
        if self.phase == Phase::Joining && self.joined == workers_by_cluster(&self.view) {
            self.start_root(ctx);
        }
    }
}

impl Handler<ClusterPeriod> for Coordinator {
    type Result = ();

    fn handle(&mut self, message: ClusterPeriod, _ctx: &mut Self::Context) {
        let epoch = u64::from(self.spec.epoch.0);
        match self.tally.put(message.cluster.clone(), epoch, message.seq, message.statistics) {
            Ok(true) => {
                if let Err(error) = self.latencies.merge(&self.tally.take_latencies()) {
                    tracing::warn!(%error, "latencies do not add up");
                }
                self.tell(NoteKind::Period { total: Box::new(self.tally.total()) });
            }
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(cluster = %message.cluster, %error, "an aggregate is malformed");
            }
        }
    }
}

impl Handler<Cancel> for Coordinator {
    type Result = ();

    fn handle(&mut self, message: Cancel, ctx: &mut Self::Context) {
        self.end(Err(JobError::Cancelled { reason: message.reason }), ctx);
    }
}

impl Handler<RootEnded> for Coordinator {
    type Result = ();

    fn handle(&mut self, message: RootEnded, ctx: &mut Self::Context) {
        self.iterations = message.iterations;
        self.end(message.outcome.map_err(JobError::Task), ctx);
    }
}
