//! Heartbeats inside a cluster: from the workers to their cluster's coordinator, and its replies.
//!
//! Heartbeats are a grid's most frequent messages. So they are frames of a few bytes that reach no
//! actor. Only exceptions reach one: a worker with an old view, a sender that is not a member, or a
//! silent node. All workers send heartbeats; all but a few request a reply only now and then.
//! This module does not decide on the consequences of silence.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use actix::prelude::*;
use bytes::Bytes;
use serde::Serialize;
use springtide_protocol::heartbeat::{Heartbeat, HeartbeatReply};
use springtide_runtime::id::{ClusterId, Incarnation, JobId, NodeId, Peer};
use springtide_runtime::membership::{Detector, Finding, SilenceLimits, View};
use springtide_runtime::net::tls::Role;
use springtide_runtime::net::{Class, Net, NetworkHandler};
use springtide_runtime::remote::Sender;
use springtide_runtime::wire::{self, Kind};
use tokio::time::Instant;

/// Number of workers that get a reply to each heartbeat, the first by name. They notice first that
/// the coordinator is silent, and the first of them succeeds it.
const DEPUTIES: usize = 2;
/// Interval, in heartbeats, at which the other workers request a reply.
const REPLY_INTERVAL: u64 = 3;

/// Limits on the silence of the coordinator at the other workers.
const OTHERS_SILENCE_LIMITS: SilenceLimits = SilenceLimits {
    check_interval: SilenceLimits::CLUSTER.check_interval,
    suspect: Duration::from_millis(3700),
    dead: Duration::from_millis(5000),
};

/// A worker has an older view than its cluster's coordinator, or a partial one. Local only.
#[derive(Clone, Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct StaleView {
    /// Node of the worker.
    pub(crate) node: NodeId,
}

/// The cluster's coordinator does not know this node as a member. Local only.
#[derive(Clone, Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct NotAMember {
    /// The job in question.
    pub(crate) job: JobId,
    /// Node of the cluster's coordinator.
    pub(crate) host: NodeId,
}

/// A node's part in the heartbeats of its cluster.
pub struct Heartbeats {
    net: Net,
    parts: Mutex<Parts>,
}

#[derive(Default)]
struct Parts {
    hosted: Option<HostedRole>,
    own: Option<CoordinatorWatch>,
}

/// State of a hosted cluster coordinator.
struct HostedRole {
    job: JobId,
    view: View,
    detector: Detector,
    coordinator: Recipient<StaleView>,
}

/// State of a worker that watches its cluster's coordinator.
struct CoordinatorWatch {
    job: JobId,
    host: NodeId,
    incarnation: Incarnation,
    deputy: bool,
    detector: Detector,
    heartbeats_sent: u64,
    worker: Recipient<NotAMember>,
}

impl Heartbeats {
    /// The kinds of frames that [`Heartbeats`] handles.
    pub(crate) const KINDS: std::ops::RangeInclusive<Kind> =
        Kind::HEARTBEAT..=Kind::HEARTBEAT_REPLY;

    pub(crate) fn new(net: Net) -> Arc<Self> {
        Arc::new(Self { net, parts: Mutex::default() })
    }

    fn parts(&self) -> MutexGuard<'_, Parts> {
        // A panic cannot leave the state inconsistent: each change is a single step.
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts or updates the hosted role: watches the members except this node. New members count
    /// as alive.
    pub(crate) fn host(
        &self,
        job: JobId,
        cluster: &ClusterId,
        view: &View,
        coordinator: &Recipient<StaleView>,
    ) {
        let (now, mut parts) = (Instant::now(), self.parts());
        let known = parts.hosted.take().filter(|hosted| hosted.coordinator == *coordinator);
        let detector = known.map(|hosted| hosted.detector);
        let mut detector = detector.unwrap_or_else(|| Detector::new(SilenceLimits::CLUSTER, now));
        let mine = view.cluster_coordinators.get(cluster);
        let others = view.in_cluster(cluster).filter(|node| Some(*node) != mine);
        let members = others.filter_map(|node| Some((node.clone(), view.members.get(node)?)));
        detector.watch(members.map(|(node, member)| (node, member.incarnation)), now);
        let (view, coordinator) = (view.clone(), coordinator.clone());
        parts.hosted = Some(HostedRole { job, view, detector, coordinator });
    }

    /// Returns changes of liveness among the members. Must be called at each
    /// [`SilenceLimits::check_interval`] of [`SilenceLimits::CLUSTER`].
    pub(crate) fn check_members(&self, coordinator: &Recipient<StaleView>) -> Vec<Finding> {
        let mut parts = self.parts();
        let hosted = parts.hosted.as_mut().filter(|hosted| hosted.coordinator == *coordinator);
        hosted.map(|hosted| hosted.detector.check(Instant::now())).unwrap_or_default()
    }

    /// Ends the hosted role.
    pub(crate) fn retire(&self, coordinator: &Recipient<StaleView>) {
        self.parts().hosted.take_if(|hosted| hosted.coordinator == *coordinator);
    }

    /// Sends a heartbeat to the cluster's coordinator, if another node has that role. Must be
    /// called at each [`SilenceLimits::check_interval`] of [`SilenceLimits::CLUSTER`]. Returns the
    /// coordinator's silence once it counts as dead.
    pub(crate) fn send_heartbeat(
        &self,
        job: JobId,
        view: &View,
        worker: &Recipient<NotAMember>,
    ) -> Option<Silence> {
        let (me, now) = (self.net.me(), Instant::now());
        let host = view.cluster_coordinators.get(&me.cluster).filter(|host| **host != me.node)?;
        let incarnation = view.members.get(host)?.incarnation;
        let mut others = view.in_cluster(&me.cluster).filter(|node| *node != host).take(DEPUTIES);
        let deputy = others.any(|node| *node == me.node);
        let mut parts = self.parts();
        let same = |own: &CoordinatorWatch| {
            (own.job, &own.host, own.incarnation, own.deputy) == (job, host, incarnation, deputy)
                && own.worker == *worker
        };
        let own = match parts.own.take_if(|own| same(own)) {
            Some(own) => own,
            None => {
                let limits = if deputy { SilenceLimits::CLUSTER } else { OTHERS_SILENCE_LIMITS };
                let mut detector = Detector::new(limits, now);
                detector.watch([(host.clone(), incarnation)], now);
                let (host, worker) = (host.clone(), worker.clone());
                CoordinatorWatch {
                    job,
                    host,
                    incarnation,
                    deputy,
                    detector,
                    heartbeats_sent: 0,
                    worker,
                }
            }
        };
        let own = parts.own.insert(own);
        let found = own.detector.check(now).into_iter().find_map(|finding| match finding {
            Finding::Dead(_, silence) => Some(silence),
            Finding::Suspect(_) | Finding::Recovered(_) => None,
        });
        if let Some(duration) = found {
            // Restarts the count, so that the silence is reported again if it lasts as long once
            // more.
            let host = host.clone();
            own.detector.watch([(host.clone(), incarnation)], now);
            return Some(Silence { host, incarnation, duration });
        }
        let asks = deputy || own.heartbeats_sent.is_multiple_of(REPLY_INTERVAL);
        own.heartbeats_sent += 1;
        drop(parts);
        let (epoch, version, partial) = (view.epoch, view.version, view.partial);
        self.send(host, Kind::HEARTBEAT, &Heartbeat { job, epoch, version, partial, asks });
        None
    }

    /// Ends the worker's part, since it is in no job.
    pub(crate) fn stop(&self) {
        self.parts().own = None;
    }

    fn send<M: Serialize>(&self, to: &NodeId, kind: Kind, message: &M) {
        match wire::encode(kind, message) {
            // A lost heartbeat is silence, on which the other side acts.
            Ok(frame) => drop(self.net.send(to, Class::Control, kind, frame)),
            Err(error) => tracing::warn!(%error, "a heartbeat cannot be encoded"),
        }
    }

    /// Handles a worker's heartbeat.
    fn handle_heartbeat(&self, from: &Peer, beat: Heartbeat) {
        let mut member = true;
        if let Some(hosted) = self.parts().hosted.as_mut().filter(|it| it.job == beat.job) {
            let HostedRole { view, detector, coordinator, .. } = hosted;
            let watched = detector.watches(&from.node, from.incarnation);
            if let Some(back) =
                detector.record_message(&from.node, from.incarnation, Instant::now())
            {
                tracing::info!(?back, "a suspected worker is alive");
            }
            let (theirs, mine) = ((beat.epoch, beat.version), (view.epoch, view.version));
            if theirs < mine || (beat.partial && theirs == mine) {
                coordinator.do_send(StaleView { node: from.node.clone() });
            }
            let incarnation = |node| view.members.get(node).map(|member| member.incarnation);
            // A sender with a newer view may be a member that this node does not know yet.
            member = watched || theirs > mine || incarnation(&from.node) == Some(from.incarnation);
        }
        // A reply is a sign of life even before the role has started here.
        if beat.asks || !member {
            self.send(&from.node, Kind::HEARTBEAT_REPLY, &HeartbeatReply { job: beat.job, member });
        }
    }

    /// Handles a reply of the cluster's coordinator.
    fn handle_reply(&self, from: &Peer, reply: HeartbeatReply) {
        let mut parts = self.parts();
        let is_host = |own: &&mut CoordinatorWatch| own.job == reply.job && own.host == from.node;
        let Some(own) = parts.own.as_mut().filter(is_host) else { return };
        own.detector.record_message(&from.node, from.incarnation, Instant::now());
        if !reply.member {
            own.worker.do_send(NotAMember { job: reply.job, host: from.node.clone() });
        }
    }
}

/// A cluster's coordinator is silent.
pub(crate) struct Silence {
    /// Node of the coordinator.
    pub(crate) host: NodeId,
    /// Incarnation of the node.
    pub(crate) incarnation: Incarnation,
    /// Length of the silence.
    pub(crate) duration: Duration,
}

impl NetworkHandler for Heartbeats {
    fn frame(&self, from: &Peer, kind: Kind, body: Bytes) {
        let sender = Sender { peer: from, role: self.net.role(&from.node) };
        if let Err(why) = sender.is(&[Role::Node]) {
            tracing::warn!(peer = %from, %why, "a heartbeat is denied");
            return;
        }
        let taken = match kind {
            Kind::HEARTBEAT => {
                wire::decode(kind, &body).map(|beat| self.handle_heartbeat(from, beat))
            }
            _ => wire::decode(kind, &body).map(|reply| self.handle_reply(from, reply)),
        };
        if let Err(error) = taken {
            self.net.report_violation(from, &format!("a heartbeat: {error}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use springtide_runtime::id::Epoch;
    use springtide_runtime::membership::Member;
    use springtide_runtime::net::{Address, MemoryNet, Router};
    use tokio::time::sleep;

    use super::*;

    const JOB: JobId = JobId(1);

    /// Records the messages that reach an actor.
    #[derive(Default)]
    struct RecordingActor {
        stale_views: Vec<NodeId>,
        not_a_member: u32,
    }

    impl Actor for RecordingActor {
        type Context = Context<Self>;
    }

    impl Handler<StaleView> for RecordingActor {
        type Result = ();
        fn handle(&mut self, StaleView { node }: StaleView, _: &mut Self::Context) {
            self.stale_views.push(node);
        }
    }

    impl Handler<NotAMember> for RecordingActor {
        type Result = ();
        fn handle(&mut self, _: NotAMember, _: &mut Self::Context) {
            self.not_a_member += 1;
        }
    }

    #[derive(Message)]
    #[rtype(result = "(Vec<NodeId>, u32)")]
    struct TakeRecorded;

    impl Handler<TakeRecorded> for RecordingActor {
        type Result = MessageResult<TakeRecorded>;
        fn handle(&mut self, _: TakeRecorded, _: &mut Self::Context) -> Self::Result {
            MessageResult((
                std::mem::take(&mut self.stale_views),
                std::mem::take(&mut self.not_a_member),
            ))
        }
    }

    struct TestNode {
        heartbeats: Arc<Heartbeats>,
        actor: Addr<RecordingActor>,
        view: View,
    }

    impl TestNode {
        fn beat(&self) -> Option<Silence> {
            self.heartbeats.send_heartbeat(JOB, &self.view, &self.actor.clone().recipient())
        }
    }

    fn view(nodes: &[&str]) -> View {
        let member = Member {
            incarnation: Incarnation(1),
            cluster: "c".into(),
            address: Address::Memory,
            threads: 1,
            leaving: false,
        };
        let first = View { epoch: Epoch(1), coordinator: Some(nodes[0].into()), ..View::default() };
        first.with(nodes.iter().map(|&node| (node.into(), member.clone())))
    }

    fn node(net: &MemoryNet, name: &str, view: &View) -> TestNode {
        let me = Peer { node: name.into(), cluster: "c".into(), incarnation: Incarnation(1) };
        let net = net.join(me).unwrap();
        net.follow(&view.members);
        let (heartbeats, router) = (Heartbeats::new(net.clone()), Router::default());
        router.route(Heartbeats::KINDS, heartbeats.clone());
        net.start(Arc::new(router));
        TestNode { heartbeats, actor: RecordingActor::default().start(), view: view.clone() }
    }

    #[actix::test]
    async fn all_workers_are_heard_and_only_deputies_always_get_a_reply() {
        tokio::time::pause();
        let names = ["n0", "n1", "n2", "n3", "n4"];
        let (net, view) = (MemoryNet::new(1), view(&names));
        let nodes: Vec<TestNode> = names.iter().map(|name| node(&net, name, &view)).collect();
        let host = nodes[0].actor.clone().recipient();
        nodes[0].heartbeats.host(JOB, &"c".into(), &view, &host);
        for _ in 0..30 {
            for node in &nodes {
                assert!(node.beat().is_none());
            }
            sleep(SilenceLimits::CLUSTER.check_interval).await;
            assert_eq!(nodes[0].heartbeats.check_members(&host), []);
        }
        assert_eq!(nodes[0].actor.send(TakeRecorded).await.unwrap(), (Vec::new(), 0));
        // Two per period, and two in every third period.
        let frames = net.traffic()[&("c".into(), "c".into())].frames;
        let (heartbeats, answers) = (4 * 30, 2 * 30 + 2 * 10);
        assert_eq!(frames, heartbeats + answers);

        // The host falls silent: deputies report it first, then the others, repeatedly.
        net.kill(&"n0".into());
        let mut said = [(0, Duration::MAX); 5];
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(12) {
            for (node, said) in nodes.iter().zip(&mut said).skip(1) {
                if let Some(Silence { host, incarnation, .. }) = node.beat() {
                    assert_eq!((host, incarnation), ("n0".into(), Incarnation(1)));
                    *said = (said.0 + 1, said.1.min(began.elapsed()));
                }
            }
            sleep(SilenceLimits::CLUSTER.check_interval).await;
        }
        let within = |from: usize, limit: Duration| {
            said[from..from + 2].iter().all(|(times, first)| *times >= 2 && *first <= limit)
        };
        assert!(within(1, Duration::from_secs(3)) && within(3, Duration::from_secs(6)), "{said:?}");
        assert!(said[3].1 > said[1].1);
    }

    #[actix::test]
    async fn silent_stale_and_unknown_members_are_distinguished() {
        tokio::time::pause();
        let (net, known) = (MemoryNet::new(1), view(&["n0", "n1", "n2"]));
        let later = known.with([("n3".into(), known.members[&"n1".into()].clone())]);
        let host = node(&net, "n0", &known);
        let actor = host.actor.clone().recipient();
        host.heartbeats.host(JOB, &"c".into(), &known, &actor);
        let knows = node(&net, "n1", &known);
        // A worker that the host does not know yet, and one with a partial view.
        let new = node(&net, "n3", &later.partial_view(&"n3".into()));
        let mut findings = Vec::new();
        for _ in 0..6 {
            assert!(knows.beat().is_none() && new.beat().is_none());
            sleep(SilenceLimits::CLUSTER.check_interval).await;
            findings.extend(host.heartbeats.check_members(&actor));
        }
        let name = |finding: &Finding| match finding {
            Finding::Suspect(node) | Finding::Recovered(node) | Finding::Dead(node, _) => {
                node.clone()
            }
        };
        assert_eq!(findings.iter().map(name).collect::<Vec<_>>(), ["n2".into(), "n2".into()]);
        assert_eq!(host.actor.send(TakeRecorded).await.unwrap().0, []);
        assert_eq!(new.actor.send(TakeRecorded).await.unwrap().1, 0);

        // The host knows it now: it has a partial view, and the other an older one.
        host.heartbeats.host(JOB, &"c".into(), &later, &actor);
        assert!(knows.beat().is_none() && new.beat().is_none());
        sleep(SilenceLimits::CLUSTER.check_interval).await;
        assert_eq!(host.actor.send(TakeRecorded).await.unwrap().0, ["n1".into(), "n3".into()]);
        assert_eq!(new.actor.send(TakeRecorded).await.unwrap().1, 0);

        // It was reported dead: it learns that at its next heartbeat, requested or not.
        let without = later.without([&"n3".into()]);
        host.heartbeats.host(JOB, &"c".into(), &without, &actor);
        for _ in 0..2 {
            assert!(new.beat().is_none());
            sleep(SilenceLimits::CLUSTER.check_interval).await;
        }
        assert_eq!(new.actor.send(TakeRecorded).await.unwrap().1, 2);
        // The role moves: no member is watched here any more.
        host.heartbeats.retire(&actor);
        sleep(Duration::from_secs(9)).await;
        assert_eq!(host.heartbeats.check_members(&actor), []);
        assert!(new.beat().is_none());
        sleep(SilenceLimits::CLUSTER.check_interval).await;
        assert_eq!(new.actor.send(TakeRecorded).await.unwrap().1, 0);
    }

    #[test]
    fn mutated_frames_are_heartbeats_or_typed_errors() {
        let decoders: [wire::fuzz::Decoder; 2] = [
            (Kind::HEARTBEAT, |bytes| wire::decode::<Heartbeat>(Kind::HEARTBEAT, bytes).is_ok()),
            (Kind::HEARTBEAT_REPLY, |bytes| {
                wire::decode::<HeartbeatReply>(Kind::HEARTBEAT_REPLY, bytes).is_ok()
            }),
        ];
        let corpus = wire::golden::corpus(concat!(env!("CARGO_MANIFEST_DIR"), "/protocol"));
        let corpus: Vec<_> =
            corpus.into_iter().filter(|(kind, _)| Heartbeats::KINDS.contains(kind)).collect();
        let tally = wire::fuzz::run(&corpus, &decoders, 9);
        assert!(tally.accepted > 0 && tally.refused > 0, "{tally:?}");
    }
}
