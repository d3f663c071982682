//! A coordinator that takes the place of one that was lost: it gathers what that one had learned and saved, and starts the
//! job's root again.
//!
//! Must not know who decides that it does.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use actix::prelude::*;
use springtide_runtime::id::{ClusterId, NodeId};
use springtide_runtime::remote::RemoteError;
use springtide_runtime::work::SavedRoot;
use tokio::time::Instant;

use super::{Coordinator, Phase, Succession};
use crate::cluster::{ClusterCoordinator, GetMemory};
use crate::job::{CHECKPOINTS, NoteKind, SCHEDULER, WORKER, cluster_coordinator_name};
use crate::poison::Dead;
use crate::policy::Memory;
use crate::scheduler::{Freed, NodeFreed, Scheduler};
use crate::worker::{Bequest, FindRoot, GetRoot, KeepRoot, KeptRoot, Worker};

/// What the clusters do not tell within this time is lost.
const HERITAGE_WITHIN: Duration = Duration::from_secs(4);
/// A cluster whose coordinator is only starting is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// So many nodes keep a checkpoint, of as many clusters if there are.
const KEEPERS: usize = 2;
/// A node that has not taken a checkpoint in after this time is slow: later ones go to others.
const KEEP_WITHIN: Duration = Duration::from_secs(60);
/// How long its answer is waited for all the same: until then it gets no other, for what is under way cannot be called back.
const GIVE_UP_AFTER: Duration = Duration::from_secs(3600);

/// Checkpoints of the root on their way to other nodes: one at a time, and only the newest waits.
#[derive(Default)]
pub(super) struct Checkpoints {
    /// Who has been sent one and has not answered, and when it was sent.
    under_way: BTreeMap<NodeId, Instant>,
    /// Clusters in which the last one took too long.
    slow: BTreeSet<ClusterId>,
    waiting: Option<KeptRoot>,
    /// The newest, and when it came; or the one that the root went on from.
    last: Option<(KeptRoot, Instant)>,
    /// The longest time between two.
    longest: Option<Duration>,
}

impl Checkpoints {
    /// A root begins, from this checkpoint if there is one.
    pub(super) fn go_on_from(&mut self, kept: Option<KeptRoot>) {
        self.last = kept.map(|kept| (kept, Instant::now()));
    }

    /// The newest is to be kept by others again.
    fn keep_anew(&mut self, kept: Option<KeptRoot>) {
        self.waiting = kept;
    }

    fn came(&mut self, kept: KeptRoot, now: Instant) {
        if let Some((_, before)) = self.last.replace((kept.clone(), now)) {
            let stretch = now.saturating_duration_since(before);
            self.longest = Some(self.longest.map_or(stretch, |longest| longest.max(stretch)));
        }
        self.waiting = Some(kept);
    }

    /// From where the root would go on.
    pub(super) fn last(&self) -> Option<&KeptRoot> {
        self.last.as_ref().map(|(kept, _)| kept)
    }

    /// The longest time between two checkpoints so far; absent while there were not two.
    pub(super) fn longest_stretch(&self, now: Instant) -> Option<Duration> {
        let (_, last) = self.last.as_ref()?;
        Some(self.longest?.max(now.saturating_duration_since(*last)))
    }
}

/// The root has left a checkpoint, after so many iterations. Local only.
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
        let kept = KeptRoot { epoch: self.spec.epoch, saved, iterations };
        self.checkpoints.came(kept, Instant::now());
        self.send_checkpoint(ctx);
    }
}

impl Coordinator {
    fn send_checkpoint(&mut self, ctx: &mut Context<Self>) {
        let runs = matches!(self.phase, Phase::Running | Phase::HandingOver);
        let now = Instant::now();
        let is_slow = |sent: &Instant| now.saturating_duration_since(*sent) >= KEEP_WITHIN;
        if !runs || !self.checkpoints.under_way.values().all(is_slow) {
            return;
        }
        let keepers = self.keepers();
        if keepers.is_empty() {
            return; // all have one on their way: it waits for the first to answer
        }
        let Some(kept) = self.checkpoints.waiting.take() else { return };
        for node in keepers {
            let remote = self.hub.remote::<Worker>(&node, CHECKPOINTS);
            let keep = KeepRoot { job: self.spec.id, kept: kept.clone() };
            let call = remote.send(keep).deadline(GIVE_UP_AFTER).start();
            self.checkpoints.under_way.insert(node.clone(), now);
            ctx.spawn(call.into_actor(self).map(move |answer, coordinator, ctx| {
                if let Err(error) = answer {
                    tracing::info!(%node, %error, "a checkpoint was not kept");
                }
                coordinator.checkpoint_answered(&node, ctx);
            }));
        }
        ctx.run_later(KEEP_WITHIN, |coordinator, ctx| coordinator.send_checkpoint(ctx));
    }

    fn checkpoint_answered(&mut self, node: &NodeId, ctx: &mut Context<Self>) {
        let Some(sent) = self.checkpoints.under_way.remove(node) else { return };
        if let Some(cluster) = self.view.cluster_of(node) {
            match sent.elapsed() >= KEEP_WITHIN {
                true => self.checkpoints.slow.insert(cluster.clone()),
                false => self.checkpoints.slow.remove(cluster),
            };
        }
        self.send_checkpoint(ctx);
    }

    /// Who keeps checkpoints: nodes of other clusters, one of each, and then any; those of slow clusters last, and none that has
    /// one on its way.
    fn keepers(&self) -> Vec<NodeId> {
        let Checkpoints { under_way, slow, .. } = &self.checkpoints;
        let view = &self.view;
        let home = view.coordinator.as_ref().and_then(|node| view.cluster_of(node));
        let far = view.cluster_coordinators.iter().filter(|(cluster, _)| Some(*cluster) != home);
        let far = far.map(|(_, node)| node);
        let is_slow = |node: &NodeId| {
            let cluster = view.cluster_of(node);
            // A cluster that has one on its way for so long is slow before it has answered.
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

    /// Tells the members of the new epoch, gathers what is left, and starts the root.
    pub(super) fn inherit(&mut self, ctx: &mut Context<Self>) {
        let Some(succession) = self.succeeds.clone() else { return };
        let Succession { lost, reason, handed, bequest, gone, strangers } = succession;
        let me = self.view.coordinator.clone().unwrap_or_else(|| "".into());
        let dead = gone.iter().map(|(node, member)| Dead::of(node, member, &reason));
        let lives_on = |cluster: &ClusterId| self.view.in_cluster(cluster).next().is_some();
        self.poison.died(dead, lives_on, Instant::now());
        let dead = gone.iter().filter(|(node, _)| !handed || **node != lost);
        for (node, member) in dead {
            self.record_lost(node, member, &reason, Duration::ZERO);
        }
        self.announce_view(None, ctx);
        if !handed {
            let text = format!("node {lost} was lost ({reason}): {me} takes its place");
            self.tell(NoteKind::Say { text });
        }
        for (node, incarnation) in strangers {
            let freed = NodeFreed {
                job: self.spec.id,
                epoch: self.spec.epoch,
                node,
                incarnation,
                why: Freed::Refused {
                    reason: format!("node {lost} coordinates no more, and it had not joined"),
                    busy: None,
                },
            };
            let remote = self.hub.remote::<Scheduler>(&self.scheduler.node, SCHEDULER);
            let call = remote.send(freed).start();
            ctx.spawn(async move { drop(call.await) }.into_actor(self));
        }
        if let Some(Bequest { memory, root, left, .. }) = bequest.filter(|_| handed) {
            self.engine.inherit_root(left);
            return self.begin_as_heir(Some(memory), root, ctx);
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
                                tracing::info!(%error, "a cluster does not tell what was learned");
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
                let find = remote.send(FindRoot { job }).deadline(HERITAGE_WITHIN).start();
                let far = (*node != me, Some(&member.cluster) != self.view.cluster_of(&me));
                (node.clone(), far, find)
            })
            .collect();
        let hub = self.hub.clone();
        // After as long as the job has run it were as well to begin anew.
        let fetched_by = Instant::now() + self.started.elapsed().max(HERITAGE_WITHIN);
        let gathered = async move {
            let mut found = Vec::new();
            for (node, far, find) in finds {
                if let Ok(Some(mark)) = find.await {
                    found.push((Reverse(mark), far, node));
                }
            }
            // The newest first, from near by.
            found.sort();
            let mut root: Option<KeptRoot> = None;
            for (_, _, node) in found {
                let left = fetched_by.saturating_duration_since(Instant::now());
                if root.is_some() || left.is_zero() {
                    break;
                }
                match hub.remote::<Worker>(&node, WORKER).send(GetRoot { job }).deadline(left).await
                {
                    Ok(kept) => root = kept,
                    Err(error) => tracing::warn!(%node, %error, "a checkpoint could not be had"),
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
            coordinator.begin_as_heir(memory, root, ctx);
        }));
    }

    /// Starts the root with what is left of its predecessor.
    fn begin_as_heir(
        &mut self,
        memory: Option<Memory>,
        root: Option<KeptRoot>,
        ctx: &mut Context<Self>,
    ) {
        if self.phase == Phase::Ending {
            return; // the job was cancelled while this coordinator gathered what is left
        }
        if let Some(memory) = memory {
            self.adaptation.inherit(memory);
        }
        self.succeeds = None;
        self.joined = super::workers_by_cluster(&self.view);
        let from = match &root {
            Some(kept) => format!("goes on from its checkpoint {}", kept.saved.seq),
            None => "begins anew, with what is finished elsewhere".to_owned(),
        };
        self.tell(NoteKind::Say { text: format!("the root {from}") });
        // Those who kept it may be gone, or not have got it.
        self.checkpoints.keep_anew(root.clone());
        self.start_root(root, ctx);
        self.send_checkpoint(ctx);
        self.resume_leaves(ctx);
        self.leave_at_last(ctx);
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

    /// How many roots were started.
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

    /// A successor on the only node that is left. Neither the client nor the scheduler answers, so
    /// it still runs when it has gathered what is left.
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
            cluster_coordinators: BTreeMap::from([(me.cluster, me.node)]),
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

    /// Roots that a successor starts, cancelled or not while it gathers what is left.
    async fn roots(cancelled: bool) -> u32 {
        let before = ROOTS.load(Ordering::SeqCst);
        let (coordinator, own, engine) = successor();
        sleep(HERITAGE_WITHIN / 2).await;
        if cancelled {
            let cancel = Cancel { job: JobId(1), reason: "test".to_owned() };
            coordinator.send(cancel).await.expect("it runs");
        }
        sleep(HERITAGE_WITHIN).await;
        assert!(coordinator.connected(), "nobody has taken its end");
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
    async fn a_successor_that_is_cancelled_while_it_gathers_starts_no_root() {
        tokio::time::pause();
        assert_eq!(roots(false).await, 1, "one that is not cancelled starts it");
        assert_eq!(roots(true).await, 0);
    }
}
