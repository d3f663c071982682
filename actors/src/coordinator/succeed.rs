//! Start of a coordinator that succeeds a lost one: it gathers the predecessor's memory and
//! checkpoint, and restarts the job's root.
//!
//! This module does not know the decision that it succeeds.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use actix::prelude::*;
use springtide_runtime::id::{ClusterId, NodeId};
use springtide_runtime::remote::RemoteError;
use springtide_runtime::work::SavedRoot;
use tokio::time::Instant;

use super::{Coordinator, CoordinatorPhase, Succession};
use crate::policy::Memory;
use springtide_protocol::cluster::GetMemory;
use springtide_protocol::job::NoteKind;
use springtide_protocol::names::{CHECKPOINTS, SCHEDULER, WORKER, cluster_coordinator_name};
use springtide_protocol::receivers::{CheckpointKeeper, ClusterCoordinator, Scheduler, Worker};
use springtide_protocol::scheduler::{NodeFreed, ReleaseReason};
use springtide_protocol::worker::{
    FindCheckpoint, GetCheckpoint, HandoverState, RootCheckpoint, StoreCheckpoint,
};
use springtide_scheduler::poison::DeadNode;

/// Maximum time to gather memory and checkpoints.
const HERITAGE_WITHIN: Duration = Duration::from_secs(4);
/// Interval of retries to a cluster whose coordinator is starting.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// Number of nodes that keep a checkpoint, of different clusters if possible.
const KEEPERS: usize = 2;
/// Time after which a node that has not accepted a checkpoint is slow. Later ones go to other
/// nodes.
const KEEP_WITHIN: Duration = Duration::from_secs(60);
/// Timeout of a transfer. Until then the node gets no other checkpoint, since a transfer cannot be
/// revoked.
const GIVE_UP_AFTER: Duration = Duration::from_secs(3600);

/// Transfers of the root's checkpoints to other nodes. Only the newest checkpoint waits.
#[derive(Default)]
pub(super) struct Checkpoints {
    /// Nodes with an outstanding transfer, and its start.
    under_way: BTreeMap<NodeId, Instant>,
    /// Clusters whose last transfer was slow.
    slow: BTreeSet<ClusterId>,
    waiting: Option<RootCheckpoint>,
    /// The newest checkpoint and its time, or the one that the root resumed from.
    last: Option<(RootCheckpoint, Instant)>,
    /// The longest interval between two checkpoints.
    longest: Option<Duration>,
}

impl Checkpoints {
    /// Records the start of a root, from this checkpoint if any.
    pub(super) fn resume_from(&mut self, kept: Option<RootCheckpoint>) {
        self.last = kept.map(|kept| (kept, Instant::now()));
    }

    /// Sends the newest checkpoint to other nodes again.
    fn resend(&mut self, kept: Option<RootCheckpoint>) {
        self.waiting = kept;
    }

    fn came(&mut self, kept: RootCheckpoint, now: Instant) {
        if let Some((_, before)) = self.last.replace((kept.clone(), now)) {
            let stretch = now.saturating_duration_since(before);
            self.longest = Some(self.longest.map_or(stretch, |longest| longest.max(stretch)));
        }
        self.waiting = Some(kept);
    }

    /// The checkpoint from which the root would resume.
    pub(super) fn last(&self) -> Option<&RootCheckpoint> {
        self.last.as_ref().map(|(kept, _)| kept)
    }

    /// The longest interval between two checkpoints so far; absent with fewer than two.
    pub(super) fn longest_stretch(&self, now: Instant) -> Option<Duration> {
        let (_, last) = self.last.as_ref()?;
        Some(self.longest?.max(now.saturating_duration_since(*last)))
    }
}

/// The root has saved a checkpoint after this number of iterations. Local only.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Checkpointed {
    pub(super) saved: SavedRoot,
    pub(super) iterations: u64,
}

impl Handler<Checkpointed> for Coordinator {
    type Result = ();

    fn handle(&mut self, message: Checkpointed, ctx: &mut Self::Context) {
        let Checkpointed { saved, iterations } = message;
        let kept = RootCheckpoint { epoch: self.spec.epoch, saved, iterations };
        self.checkpoints.came(kept, Instant::now());
        self.send_checkpoint(ctx);
    }
}

impl Coordinator {
    fn send_checkpoint(&mut self, ctx: &mut Context<Self>) {
        let runs = matches!(self.phase, CoordinatorPhase::Running | CoordinatorPhase::HandingOver);
        let now = Instant::now();
        let is_slow = |sent: &Instant| now.saturating_duration_since(*sent) >= KEEP_WITHIN;
        if !runs || !self.checkpoints.under_way.values().all(is_slow) {
            return;
        }
        let keepers = self.keepers();
        if keepers.is_empty() {
            return; // the first answer triggers the next transfer
        }
        let Some(kept) = self.checkpoints.waiting.take() else { return };
        for node in keepers {
            let remote = self.hub.remote::<CheckpointKeeper>(&node, CHECKPOINTS);
            let keep = StoreCheckpoint { job: self.spec.id, kept: kept.clone() };
            let call = remote.send(keep).deadline(GIVE_UP_AFTER).start();
            self.checkpoints.under_way.insert(node.clone(), now);
            ctx.spawn(call.into_actor(self).map(move |answer, coordinator, ctx| {
                if let Err(error) = answer {
                    tracing::info!(%node, %error, "a node did not keep a checkpoint");
                }
                coordinator.checkpoint_answered(&node, ctx);
            }));
        }
        ctx.run_later(KEEP_WITHIN, |coordinator, ctx| coordinator.send_checkpoint(ctx));
    }

    fn checkpoint_answered(&mut self, node: &NodeId, ctx: &mut Context<Self>) {
        let Some(sent) = self.checkpoints.under_way.remove(node) else { return };
        if let Some(cluster) = self.view.cluster_of(node) {
            if sent.elapsed() >= KEEP_WITHIN {
                self.checkpoints.slow.insert(cluster.clone());
            } else {
                self.checkpoints.slow.remove(cluster);
            }
        }
        self.send_checkpoint(ctx);
    }

    /// Nodes to keep checkpoints: one of each other cluster first, then any. Nodes of slow clusters
    /// come last; nodes with an outstanding transfer are excluded.
    fn keepers(&self) -> Vec<NodeId> {
        let Checkpoints { under_way, slow, .. } = &self.checkpoints;
        let view = &self.view;
        let home = view.coordinator.as_ref().and_then(|node| view.cluster_of(node));
        let far = view.cluster_coordinators.iter().filter(|(cluster, _)| Some(*cluster) != home);
        let far = far.map(|(_, node)| node);
        let is_slow = |node: &NodeId| {
            let cluster = view.cluster_of(node);
            // A cluster with a long outstanding transfer counts as slow.
            cluster.is_some_and(|cluster| {
                slow.contains(cluster)
                    || under_way.keys().any(|other| view.cluster_of(other) == Some(cluster))
            })
        };
        let (last, first): (Vec<_>, Vec<_>) =
            far.chain(view.members.keys()).partition(|node| is_slow(node));
        let mut keepers = Vec::<NodeId>::new();
        for node in first.into_iter().chain(last) {
            let takes = view.coordinator.as_ref() != Some(node)
                && view.stays(node)
                && !under_way.contains_key(node);
            if takes && keepers.len() < KEEPERS && !keepers.contains(node) {
                keepers.push(node.clone());
            }
        }
        keepers
    }

    /// Informs the members of the new epoch, gathers the predecessor's state, and starts the root.
    pub(super) fn inherit(&mut self, ctx: &mut Context<Self>) {
        let Some(succession) = self.succeeds.clone() else { return };
        let Succession { lost, reason, handed, bequest, gone, strangers } = succession;
        let me = self.view.coordinator.clone().unwrap_or_else(|| "".into());
        let dead = gone.iter().map(|(node, member)| DeadNode::of(node, member, &reason));
        let lives_on = |cluster: &ClusterId| self.view.in_cluster(cluster).next().is_some();
        self.poison.record_deaths(dead, lives_on, Instant::now());
        let dead = gone.iter().filter(|(node, _)| !handed || **node != lost);
        for (node, member) in dead {
            self.record_lost(node, member, &reason, Duration::ZERO);
            if !member.leaving {
                self.adaptation.recent().crashed(node, &member.cluster);
            }
        }
        self.announce_view(None, ctx);
        if !handed {
            let text = format!("node {lost} was lost ({reason}): {me} succeeds it");
            self.notify_client(NoteKind::Text { text });
        }
        for (node, incarnation) in strangers {
            let freed = NodeFreed {
                job: self.spec.id,
                epoch: self.spec.epoch,
                node,
                incarnation,
                why: ReleaseReason::Refused {
                    reason: format!("node {lost} is no longer coordinator, and it had not joined"),
                    busy: None,
                },
            };
            let remote = self.hub.remote::<Scheduler>(&self.scheduler.node, SCHEDULER);
            let call = remote.send(freed).start();
            ctx.spawn(async move { drop(call.await) }.into_actor(self));
        }
        if let Some(HandoverState { memory, root, left, .. }) = bequest.filter(|_| handed) {
            self.engine.inherit_root(left);
            return self.start_as_successor(Some(memory), root, ctx);
        }
        let job = self.spec.id;
        let until = Instant::now() + HERITAGE_WITHIN;
        let asked: Vec<_> = self
            .view
            .cluster_coordinators
            .values()
            .map(|node| {
                let name = cluster_coordinator_name(job);
                let remote = self.hub.remote::<ClusterCoordinator>(node, &name);
                actix::spawn(async move {
                    loop {
                        let left = until.saturating_duration_since(Instant::now());
                        match remote.send(GetMemory { job }).deadline(left).await {
                            Ok(memory) => return memory,
                            Err(RemoteError::NoActor { .. } | RemoteError::Gone { .. })
                                if left > ASK_AGAIN =>
                            {
                                tokio::time::sleep(ASK_AGAIN).await;
                            }
                            Err(error) => {
                                tracing::info!(%error, "a cluster did not return its memory");
                                return None;
                            }
                        }
                    }
                })
            })
            .collect();
        let finds: Vec<_> = self
            .view
            .members
            .iter()
            .map(|(node, member)| {
                let remote = self.hub.remote::<Worker>(node, WORKER);
                let find = remote.send(FindCheckpoint { job }).deadline(HERITAGE_WITHIN).start();
                let far = (*node != me, Some(&member.cluster) != self.view.cluster_of(&me));
                (node.clone(), far, find)
            })
            .collect();
        let hub = self.hub.clone();
        // Fetching longer than the job has run would not be better than a restart.
        let fetched_by = Instant::now() + self.started.elapsed().max(HERITAGE_WITHIN);
        let gathered = async move {
            let mut found = Vec::new();
            for (node, far, find) in finds {
                if let Ok(Some(mark)) = find.await {
                    found.push((Reverse(mark), far, node));
                }
            }
            // The newest checkpoint first, then the nearest node.
            found.sort();
            let mut root: Option<RootCheckpoint> = None;
            for (_, _, node) in found {
                let left = fetched_by.saturating_duration_since(Instant::now());
                if root.is_some() || left.is_zero() {
                    break;
                }
                match hub
                    .remote::<Worker>(&node, WORKER)
                    .send(GetCheckpoint { job })
                    .deadline(left)
                    .await
                {
                    Ok(kept) => root = kept,
                    Err(error) => tracing::warn!(%node, %error, "a checkpoint was not fetched"),
                }
            }
            let mut newest: Option<Memory> = None;
            for one in asked {
                let Ok(Some(memory)) = one.await else { continue };
                newest = Some(match newest {
                    Some(known) => Memory::newest(known, memory),
                    None => memory,
                });
            }
            (newest, root)
        };
        ctx.spawn(gathered.into_actor(self).map(|(memory, root), coordinator, ctx| {
            coordinator.start_as_successor(memory, root, ctx);
        }));
    }

    /// Starts the root with the predecessor's state.
    fn start_as_successor(
        &mut self,
        memory: Option<Memory>,
        root: Option<RootCheckpoint>,
        ctx: &mut Context<Self>,
    ) {
        if self.phase == CoordinatorPhase::Ending {
            return; // the job was cancelled meanwhile
        }
        if let Some(memory) = memory {
            self.adaptation.inherit(memory);
        }
        self.succeeds = None;
        self.joined = super::workers_by_cluster(&self.view);
        let from = match &root {
            Some(kept) => format!("continues from its checkpoint {}", kept.saved.seq),
            None => "restarts, with the finished results of other nodes".to_owned(),
        };
        self.notify_client(NoteKind::Text { text: format!("the root {from}") });
        // Its keepers may be lost, or may not have received it.
        self.checkpoints.resend(root.clone());
        self.start_root(root, ctx);
        self.send_checkpoint(ctx);
        self.resume_leaves(ctx);
        self.process_postponed_leaves(ctx);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use serde::{Deserialize, Serialize};
    use springtide_runtime::event::Recorder;
    use springtide_runtime::id::{Epoch, Incarnation, JobId, Peer};
    use springtide_runtime::membership::{Member, Members, View};
    use springtide_runtime::net::MemoryNet;
    use springtide_runtime::share::ShareConfig;
    use springtide_runtime::work::steal::StealPolicy;
    use springtide_runtime::work::{
        Engine, EngineConfig, Job, Outcome, PoolConfig, RealSeam, Registry, Stop, encode_job,
    };
    use tokio::sync::mpsc;
    use tokio::time::sleep;

    use super::*;
    use crate::coordinator::CoordinatorConfig;
    use crate::endpoint::Endpoint;
    use crate::job::{Cancel, JobParams, JobSpec};

    /// Number of started roots.
    static ROOTS: AtomicU32 = AtomicU32::new(0);

    /// A job that counts the starts of its root.
    #[derive(Serialize, Deserialize)]
    struct CountedRoot;

    impl Job for CountedRoot {
        const NAME: &'static str = "counted-root";
        const ABOUT: &'static str = "counts the starts of its root";

        fn register(_: &mut Registry) {}

        fn run(self, _: &springtide_runtime::work::Context) -> Result<Outcome, Stop> {
            ROOTS.fetch_add(1, Ordering::SeqCst);
            Ok(Outcome { checksum: 0, result: serde_json::Value::Null })
        }
    }

    /// A successor on the only remaining node. Client and scheduler do not answer, so it is still
    /// running after gathering.
    fn successor() -> (Addr<Coordinator>, Endpoint, Engine) {
        let network = MemoryNet::new(1);
        let me = Peer { node: "ams-1".into(), incarnation: Incarnation(1), cluster: "ams".into() };
        let own = Endpoint::over(network.join(me.clone()).expect("names are unique"));
        own.start();
        let mut registry = Registry::new();
        registry.job::<CountedRoot>();
        let registry = Arc::new(registry);
        let recorder = Recorder::new(me.node.clone(), me.incarnation, Instant::now(), 100);
        let job = JobId(1);
        let config = EngineConfig {
            job,
            pool: PoolConfig::default(),
            policy: StealPolicy::ClusterAware,
            share: ShareConfig::default(),
            metering: None,
            results_bytes: 0,
            memory: None,
        };
        let notes = Box::new(|_| {});
        let (net, seam) = (own.net.clone(), RealSeam::new());
        let engine = Engine::start(&config, registry.clone(), net, seam, recorder.clone(), notes)
            .expect("threads");
        let contact = own.net.contact();
        let member = Member {
            incarnation: me.incarnation,
            cluster: me.cluster.clone(),
            address: contact.address.clone(),
            threads: 1,
            leaving: false,
        };
        let view = View {
            epoch: Epoch(2),
            version: 1,
            members: Members::from_iter([(me.node.clone(), member)]),
            coordinator: Some(me.node.clone()),
            cluster_coordinators: BTreeMap::from([(me.cluster, me.node)]).into(),
            partial: false,
        };
        let spec = JobSpec {
            id: job,
            epoch: Epoch(2),
            name: CountedRoot::NAME.to_owned(),
            body: encode_job(CountedRoot).expect("it serialises"),
            fingerprint: registry.fingerprint(),
            params: JobParams::default(),
        };
        let succession = Succession {
            lost: "del-1".into(),
            reason: "test".to_owned(),
            handed: false,
            bequest: None,
            gone: BTreeMap::new(),
            strangers: BTreeMap::new(),
        };
        let config = CoordinatorConfig {
            spec,
            view,
            client: contact.clone(),
            scheduler: contact,
            registry,
            engine: engine.clone(),
            recorder,
            reports: mpsc::unbounded_channel(),
            succeeds: Some(succession),
            elapsed: Duration::from_secs(1),
        };
        (Coordinator::new(config, own.hub.clone()).publish(), own, engine)
    }

    /// Number of roots that a successor starts, cancelled during gathering or not.
    async fn roots(cancelled: bool) -> u32 {
        let before = ROOTS.load(Ordering::SeqCst);
        let (coordinator, own, engine) = successor();
        sleep(HERITAGE_WITHIN / 2).await;
        if cancelled {
            let cancel = Cancel { job: JobId(1), reason: "test".to_owned() };
            coordinator.send(cancel).await.expect("it runs");
        }
        sleep(HERITAGE_WITHIN).await;
        assert!(coordinator.connected(), "no client has accepted its end");
        // Compute threads run in real time.
        for _ in 0..50 {
            std::thread::sleep(Duration::from_millis(10));
            sleep(Duration::from_millis(1)).await;
        }
        engine.close();
        engine.closed().await;
        drop(own);
        ROOTS.load(Ordering::SeqCst) - before
    }

    #[actix::test]
    async fn a_successor_cancelled_while_gathering_starts_no_root() {
        tokio::time::pause();
        assert_eq!(roots(false).await, 1, "a successor that is not cancelled starts it");
        assert_eq!(roots(true).await, 0);
    }
}
