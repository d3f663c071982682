//! The cluster coordinator: one a job and cluster, on a worker's node. It collects its workers' statistics and sends one
//! aggregate a period to the coordinator, so that the coordinator's input is O(clusters).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use serde::{Deserialize, Serialize};
use springtide_runtime::event::Record;
use springtide_runtime::id::{ClusterId, Incarnation, JobId, NodeId};
use springtide_runtime::membership::View;
use springtide_runtime::meter::{NodeReport, Statistics, Tally};
use springtide_runtime::remote::{Hub, RemoteError, RemoteMessage};
use springtide_runtime::remote_message;

use crate::admit;
use crate::coordinator::Coordinator;
use crate::job::{JobSpec, WORKER, cluster_coordinator_name, coordinator_name};
use crate::worker::{Finish, Worker};

/// How long a worker may take to stop its threads at the end of a job.
const FINISH_DEADLINE: Duration = Duration::from_secs(30);

/// The cluster coordinator actor. Published under [`cluster_coordinator_name`].
pub struct ClusterCoordinator {
    spec: JobSpec,
    view: View,
    cluster: ClusterId,
    hub: Arc<Hub>,
    joined: BTreeSet<NodeId>,
    told_joined: bool,
    tally: Tally<NodeId>,
    periods: u64,
}

impl ClusterCoordinator {
    /// The coordinator of `cluster` for a job.
    pub fn new(spec: JobSpec, view: View, cluster: ClusterId, hub: Arc<Hub>) -> Self {
        Self {
            spec,
            view,
            cluster,
            hub,
            joined: BTreeSet::new(),
            told_joined: false,
            tally: Tally::new(),
            periods: 0,
        }
    }

    /// Starts the actor on this arbiter and publishes it.
    pub fn publish(self) -> Addr<Self> {
        let (hub, name) = (self.hub.clone(), cluster_coordinator_name(self.spec.id));
        let addr = self.start();
        hub.publish(&name, addr.clone())
            .accepts_from::<Joined>(admit::joined)
            .accepts_from::<Period>(admit::period)
            .accepts_from::<FinishCluster>(admit::worker);
        addr
    }

    fn members(&self) -> BTreeSet<NodeId> {
        self.view.in_cluster(&self.cluster).cloned().collect()
    }

    fn tell_coordinator<M>(&self, message: M, ctx: &mut Context<Self>)
    where
        M: RemoteMessage<Result = ()> + Clone,
        Coordinator: Handler<M>,
    {
        let Some(node) = &self.view.coordinator else { return };
        let remote = self.hub.remote::<Coordinator>(node, &coordinator_name(self.spec.id));
        let told = async move {
            let mut pause = Duration::from_millis(20);
            // The coordinator's node may still be starting it, or has begun a new life since the last job and the link was
            // that of the old one. A message that arrives twice does no harm.
            for _ in 0..8 {
                match remote.send(message.clone()).await {
                    Ok(()) => return,
                    Err(RemoteError::NoActor { .. } | RemoteError::Gone { .. }) => {}
                    Err(error) => {
                        tracing::warn!(%error, "the job's coordinator did not take a message");
                        return;
                    }
                }
                tokio::time::sleep(pause).await;
                pause *= 2;
            }
            tracing::warn!(?remote, "the job's coordinator is not there");
        };
        ctx.spawn(told.into_actor(self));
    }

    fn push_period(&mut self, ctx: &mut Context<Self>) {
        self.periods += 1;
        let mut statistics = self.tally.total();
        statistics.latencies = self.tally.take_latencies();
        let message = ClusterPeriod {
            job: self.spec.id,
            cluster: self.cluster.clone(),
            seq: self.periods,
            workers: self.joined.len() as u32,
            statistics,
        };
        self.tell_coordinator(message, ctx);
    }
}

/// To the cluster's coordinator, by a worker: it takes part.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Joined {
    /// Which job.
    pub job: JobId,
    /// Who.
    pub node: NodeId,
    /// Which life.
    pub incarnation: Incarnation,
    /// Its compute threads.
    pub threads: u32,
}

/// To the cluster's coordinator, by a worker: its period's statistics.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Period {
    /// Which job.
    pub job: JobId,
    /// The sums since the job's start.
    pub report: NodeReport,
}

/// To the coordinator: all workers of a cluster have joined.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClusterJoined {
    /// Which job.
    pub job: JobId,
    /// Which cluster.
    pub cluster: ClusterId,
    /// Its workers.
    pub workers: u32,
}

/// To the coordinator: a cluster's aggregate of a period.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClusterPeriod {
    /// Which job.
    pub job: JobId,
    /// Which cluster.
    pub cluster: ClusterId,
    /// Counts the aggregates of this cluster's coordinator, from 1.
    pub seq: u64,
    /// Workers that take part.
    pub workers: u32,
    /// Sum over the workers since the job's start; latencies since the aggregate before.
    pub statistics: Statistics,
}

/// To the cluster's coordinator: the job has ended; stop the workers and send their last words.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FinishCluster {
    /// Which job.
    pub job: JobId,
}

/// A cluster's last word.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClusterFinal {
    /// Which cluster.
    pub cluster: ClusterId,
    /// Workers that took part.
    pub workers: u32,
    /// Their sums, with what latencies were not sent before.
    pub statistics: Statistics,
    /// What happened on them.
    pub records: Vec<Record>,
    /// Workers that did not answer, and why.
    pub silent: BTreeMap<NodeId, String>,
}

remote_message! {
    "joined" => Joined;
    "period" => Period;
    "cluster-joined" => ClusterJoined;
    "cluster-period" => ClusterPeriod;
    "finish-cluster" => FinishCluster -> ClusterFinal;
}

impl Actor for ClusterCoordinator {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        let period = Duration::from_millis(self.spec.params.period_ms.max(100));
        ctx.run_interval(period, |coordinator, ctx| coordinator.push_period(ctx));
    }
}

impl Handler<Joined> for ClusterCoordinator {
    type Result = ();

    fn handle(&mut self, message: Joined, ctx: &mut Self::Context) {
        if message.job != self.spec.id || !self.members().contains(&message.node) {
            tracing::warn!(node = %message.node, "a node that is not in the view wants to join");
            return;
        }
        self.joined.insert(message.node);
        if !self.told_joined && self.joined == self.members() {
            self.told_joined = true;
            let message = ClusterJoined {
                job: self.spec.id,
                cluster: self.cluster.clone(),
                workers: self.joined.len() as u32,
            };
            self.tell_coordinator(message, ctx);
        }
    }
}

impl Handler<Period> for ClusterCoordinator {
    type Result = ();

    fn handle(&mut self, message: Period, _ctx: &mut Self::Context) {
        let NodeReport { node, incarnation, seq, statistics, .. } = message.report;
        if let Err(error) = self.tally.put(node.clone(), incarnation.0, seq, statistics) {
            tracing::warn!(%node, %error, "a worker's report is malformed; its last one counts");
        }
    }
}

impl Handler<FinishCluster> for ClusterCoordinator {
    type Result = ResponseActFuture<Self, ClusterFinal>;

    fn handle(&mut self, message: FinishCluster, _ctx: &mut Self::Context) -> Self::Result {
        let job = message.job;
        let requests: Vec<_> = self
            .members()
            .into_iter()
            .map(|node| {
                let remote = self.hub.remote::<Worker>(&node, WORKER);
                (node, remote.send(Finish { job }).deadline(FINISH_DEADLINE).start())
            })
            .collect();
        let answers = async move {
            let mut answers = Vec::new();
            for (node, request) in requests {
                answers.push((node, request.await));
            }
            answers
        };
        Box::pin(answers.into_actor(self).map(|answers, coordinator, ctx| {
            let mut records = Vec::new();
            let mut silent = BTreeMap::new();
            for (node, answer) in answers {
                match answer {
                    Ok(Some(last)) => {
                        let NodeReport { node, incarnation, seq, statistics, .. } = last.report;
                        if let Err(error) =
                            coordinator.tally.put(node.clone(), incarnation.0, seq, statistics)
                        {
                            tracing::warn!(%node, %error, "a worker's last report is malformed");
                        }
                        records.extend(last.records);
                    }
                    Ok(None) => {
                        silent.insert(node, "it does not know the job".to_owned());
                    }
                    Err(error) => {
                        silent.insert(node, error.to_string());
                    }
                }
            }
            let mut statistics = coordinator.tally.total();
            statistics.latencies = coordinator.tally.take_latencies();
            ctx.stop();
            ClusterFinal {
                cluster: coordinator.cluster.clone(),
                workers: coordinator.joined.len() as u32,
                statistics,
                records,
                silent,
            }
        }))
    }
}
