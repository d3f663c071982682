//! Asks the grid how it is, again and again while somebody watches, and hands on what it hears.
//!
//! Must not know how it is shown.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use actix::Addr;
use actix_rt::task::JoinHandle;
use springtide_actors::cluster::ClusterCoordinator;
use springtide_actors::coordinator::Coordinator;
use springtide_actors::job::{cluster_coordinator_name, coordinator_name};
use springtide_actors::look::{JobLook, LookAtCluster, LookAtJob, WorkerLook};
use springtide_actors::scheduler::{GetSlots, GetStatus, JobState, Scheduler};
use springtide_runtime::event::Record;
use springtide_runtime::id::{ClusterId, JobId, NodeId};
use springtide_runtime::remote::{Hub, Refusal};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::model::Seen;
use super::serve::Board;

/// How often it is looked while somebody watches.
const EVERY: Duration = Duration::from_millis(500);
/// Of these looks every so many is taken while nobody does, for the history.
const IDLE_EVERY: u32 = 10;
/// And of those every so many asks what is reserved, too.
const SLOTS_EVERY: u64 = 10;
/// Who does not answer in this time is asked again.
const WITHIN: Duration = Duration::from_secs(2);
/// A look waits for answers no longer than this: what comes later is in the next one, and nobody waits for who does not answer.
const MOMENT: Duration = Duration::from_millis(60);
/// So many jobs are looked at at once; of more, these are the first.
const JOBS: usize = 32;

/// Looks until nobody takes what is seen.
pub(super) async fn gather(
    hub: Arc<Hub>,
    scheduler: Addr<Scheduler>,
    board: Arc<Board>,
    mut records: mpsc::Receiver<Record>,
    show: mpsc::Sender<Seen>,
) {
    let mut looks = interval(EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut skipped, mut looked) = (IDLE_EVERY, 0_u64);
    let mut asked: BTreeMap<JobId, JoinHandle<Option<Found>>> = BTreeMap::new();
    loop {
        looks.tick().await;
        skipped += 1;
        if !board.is_watched() && skipped < IDLE_EVERY {
            continue;
        }
        skipped = 0;
        let Ok(status) = scheduler.send(GetStatus {}).await else { return };
        let mut seen = Seen { status, ..Seen::default() };
        let refusals = hub.refusals().into_iter();
        let refusals = refusals.map(|((name, why), n)| ((name.to_owned(), reason(why)), n));
        seen.refused_messages = refusals.collect();
        if looked % SLOTS_EVERY == 0 {
            seen.slots = scheduler.send(GetSlots {}).await.ok();
        }
        looked += 1;
        while let Ok(record) = records.try_recv() {
            seen.records.push(record);
        }
        let running = seen.status.jobs.iter().filter(|job| job.state == JobState::Running);
        let hosts = running.filter_map(|job| Some((job.job, job.coordinator.clone()?)));
        for (job, node) in hosts.take(JOBS) {
            asked.entry(job).or_insert_with(|| actix_rt::spawn(look(hub.clone(), job, node)));
        }
        if !asked.is_empty() {
            sleep(MOMENT).await;
        }
        for (job, answer) in std::mem::take(&mut asked) {
            if !answer.is_finished() {
                asked.insert(job, answer);
                continue;
            }
            let Ok(Some((look, workers))) = answer.await else { continue };
            seen.jobs.insert(job, look);
            seen.workers.insert(job, workers);
        }
        if show.send(seen).await.is_err() {
            return;
        }
    }
}

/// A refusal's reason as a label.
fn reason(why: Refusal) -> String {
    match why {
        Refusal::Role => "role".to_owned(),
        Refusal::Identity => "identity".to_owned(),
        Refusal::Place => "place".to_owned(),
        Refusal::Epoch => "epoch".to_owned(),
        Refusal::Owner => "owner".to_owned(),
        Refusal::Stale => "stale".to_owned(),
        Refusal::NoJob => "no-job".to_owned(),
        Refusal::Unconfirmed => "unconfirmed".to_owned(),
        other => other.to_string(),
    }
}

type Found = (JobLook, BTreeMap<ClusterId, Vec<WorkerLook>>);

/// A job and its workers, as far as they answer.
async fn look(hub: Arc<Hub>, job: JobId, coordinator: NodeId) -> Option<Found> {
    let remote = hub.remote::<Coordinator>(&coordinator, &coordinator_name(job));
    let look = remote.send(LookAtJob { job }).deadline(WITHIN).await.ok()??;
    let name = cluster_coordinator_name(job);
    let hosts =
        look.clusters.iter().filter_map(|(cluster, sum)| Some((cluster, sum.host.as_ref()?)));
    let asked: Vec<_> = hosts
        .map(|(cluster, host)| {
            let remote = hub.remote::<ClusterCoordinator>(host, &name);
            (cluster.clone(), remote.send(LookAtCluster { job }).deadline(WITHIN).start())
        })
        .collect();
    let mut workers = BTreeMap::new();
    for (cluster, request) in asked {
        if let Ok(Some(found)) = request.await {
            workers.insert(cluster, found.workers);
        }
    }
    Some((look, workers))
}
