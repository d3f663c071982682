//! Polls the grid for its state while clients watch, and sends snapshots.
//!
//! This module does not know the presentation.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use actix::Addr;
use actix_rt::task::JoinHandle;
use springtide_actors::cluster::ClusterCoordinator;
use springtide_actors::coordinator::Coordinator;
use springtide_actors::job::{cluster_coordinator_name, coordinator_name};
use springtide_actors::look::{InspectCluster, InspectJob, JobSnapshot, WorkerSnapshot};
use springtide_actors::scheduler::{GetSlots, GetStatus, JobState, Scheduler};
use springtide_runtime::event::Record;
use springtide_runtime::id::{ClusterId, JobId, NodeId};
use springtide_runtime::remote::{Hub, Refusal};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::model::GridSnapshot;
use crate::serve::DashboardState;

/// Interval between polls while a client watches.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Without clients, only one of this many polls is made, for the history.
const IDLE_FACTOR: u32 = 10;
/// One of this many polls also asks for reservations.
const SLOTS_FACTOR: u64 = 10;
/// Timeout of an answer, after which the request is repeated.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum delay of a snapshot for missing answers: later ones are part of the next.
const ANSWER_DELAY_MAX: Duration = Duration::from_millis(60);
/// Maximum number of jobs polled at once; of more, the first ones.
const JOBS_MAX: usize = 32;

/// Polls until the receiver of snapshots ends.
pub(super) async fn gather(
    hub: Arc<Hub>,
    scheduler: Addr<Scheduler>,
    shared: Arc<DashboardState>,
    mut records: mpsc::Receiver<Record>,
    sender: mpsc::Sender<GridSnapshot>,
) {
    let mut looks = interval(POLL_INTERVAL);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut skipped, mut looked) = (IDLE_FACTOR, 0_u64);
    let mut pending: BTreeMap<JobId, JoinHandle<Option<JobReport>>> = BTreeMap::new();
    loop {
        looks.tick().await;
        skipped += 1;
        if !shared.is_watched() && skipped < IDLE_FACTOR {
            continue;
        }
        skipped = 0;
        let Ok(status) = scheduler.send(GetStatus {}).await else { return };
        let mut snapshot = GridSnapshot { status, ..GridSnapshot::default() };
        let refusals = hub.refusals().into_iter();
        let refusals = refusals.map(|((name, why), n)| ((name.to_owned(), reason(why)), n));
        snapshot.refused_messages = refusals.collect();
        if looked % SLOTS_FACTOR == 0 {
            snapshot.slots = scheduler.send(GetSlots {}).await.ok();
        }
        looked += 1;
        while let Ok(record) = records.try_recv() {
            snapshot.records.push(record);
        }
        let running = snapshot.status.jobs.iter().filter(|job| job.state == JobState::Running);
        let hosts = running.filter_map(|job| Some((job.job, job.coordinator.clone()?)));
        for (job, node) in hosts.take(JOBS_MAX) {
            // Pictures are only for clients.
            let picture = shared.is_watched().then(|| shared.picture_number(job));
            let request = InspectJob { job, picture };
            pending.entry(job).or_insert_with(|| actix_rt::spawn(look(hub.clone(), request, node)));
        }
        if !pending.is_empty() {
            sleep(ANSWER_DELAY_MAX).await;
        }
        for (job, answer) in std::mem::take(&mut pending) {
            if !answer.is_finished() {
                pending.insert(job, answer);
                continue;
            }
            let Ok(Some((look, workers))) = answer.await else { continue };
            snapshot.jobs.insert(job, look);
            snapshot.workers.insert(job, workers);
        }
        if sender.send(snapshot).await.is_err() {
            return;
        }
    }
}

/// The label of a refusal's reason.
fn reason(why: Refusal) -> String {
    match why {
        Refusal::Role => "role".to_owned(),
        Refusal::Identity => "identity".to_owned(),
        Refusal::JobRole => "place".to_owned(),
        Refusal::Epoch => "epoch".to_owned(),
        Refusal::Owner => "owner".to_owned(),
        Refusal::Stale => "stale".to_owned(),
        Refusal::NoJob => "no-job".to_owned(),
        Refusal::Unconfirmed => "unconfirmed".to_owned(),
        other => other.to_string(),
    }
}

type JobReport = (JobSnapshot, BTreeMap<ClusterId, Vec<WorkerSnapshot>>);

/// Asks for a job and its workers, as far as they answer.
async fn look(hub: Arc<Hub>, request: InspectJob, coordinator: NodeId) -> Option<JobReport> {
    let job = request.job;
    let remote = hub.remote::<Coordinator>(&coordinator, &coordinator_name(job));
    let look = remote.send(request).deadline(REQUEST_TIMEOUT).await.ok()??;
    let name = cluster_coordinator_name(job);
    let hosts =
        look.clusters.iter().filter_map(|(cluster, sum)| Some((cluster, sum.host.as_ref()?)));
    let pending: Vec<_> = hosts
        .map(|(cluster, host)| {
            let remote = hub.remote::<ClusterCoordinator>(host, &name);
            (cluster.clone(), remote.send(InspectCluster { job }).deadline(REQUEST_TIMEOUT).start())
        })
        .collect();
    let mut workers = BTreeMap::new();
    for (cluster, request) in pending {
        if let Ok(Some(found)) = request.await {
            workers.insert(cluster, found.workers);
        }
    }
    Some((look, workers))
}
