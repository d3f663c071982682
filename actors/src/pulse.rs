//! Heartbeats inside a cluster: of the workers to their cluster's coordinator, and its answers.
//!
//! They are what a grid says most, so they are frames of a few bytes that reach no actor. Only what is not as usual goes on to one: a
//! worker that has an old view, or is no member, or somebody silent. All workers tell that they live; all but a few ask only now
//! and then whether the coordinator does. Must not know what is done about silence.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use actix::prelude::*;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use springtide_runtime::id::{ClusterId, Epoch, Incarnation, JobId, NodeId, Peer};
use springtide_runtime::membership::{Detector, Finding, Patience, View};
use springtide_runtime::net::tls::Role;
use springtide_runtime::net::{Class, Inbox, Net};
use springtide_runtime::remote::Sender;
use springtide_runtime::wire::{self, Kind};
use tokio::time::Instant;

/// So many workers of a cluster, the first in order of name, are answered each time: they notice first that the coordinator is
/// silent, and the first of them takes its place.
const DEPUTIES: usize = 2;
/// The others ask for an answer with every so many heartbeats.
const ASK_EVERY: u64 = 3;

/// How long those bear silence.
const SELDOM: Patience = Patience {
    every: Patience::CLUSTER.every,
    suspect: Duration::from_millis(3700),
    dead: Duration::from_millis(5000),
};

/// A worker lives. From whom it comes, and which life of it, the link tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Beat {
    /// The job that both take part in.
    pub(crate) job: JobId,
    /// The sender's view.
    pub(crate) epoch: Epoch,
    /// Within the epoch.
    pub(crate) version: u64,
    /// It has not been told all members yet.
    pub(crate) partial: bool,
    /// It wants to be answered.
    pub(crate) asks: bool,
}

/// The cluster's coordinator lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Heard {
    /// The job.
    pub(crate) job: JobId,
    /// Whether whoever is answered is a member; if not, it was declared dead.
    pub(crate) member: bool,
}

/// A worker was heard that has an older view than its cluster's coordinator, or only a part of it. Local only.
#[derive(Clone, Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct Behind {
    /// Which.
    pub(crate) node: NodeId,
}

/// The cluster's coordinator does not know this node as a member. Local only.
#[derive(Clone, Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct NoMember {
    /// Of which job.
    pub(crate) job: JobId,
    /// Whose word it is.
    pub(crate) host: NodeId,
}

/// A node's part in the heartbeats of its cluster.
pub struct Pulse {
    net: Net,
    parts: Mutex<Parts>,
}

#[derive(Default)]
struct Parts {
    hosted: Option<Hosted>,
    own: Option<Own>,
}

/// The role of the cluster's coordinator is here.
struct Hosted {
    job: JobId,
    view: View,
    detector: Detector,
    coordinator: Recipient<Behind>,
}

/// This node's worker watches its cluster's coordinator.
struct Own {
    job: JobId,
    host: NodeId,
    life: Incarnation,
    deputy: bool,
    detector: Detector,
    beats: u64,
    worker: Recipient<NoMember>,
}

impl Pulse {
    /// The kinds that [`Pulse`] takes.
    pub(crate) const KINDS: std::ops::RangeInclusive<Kind> = Kind::ALIVE..=Kind::HEARD;

    pub(crate) fn new(net: Net) -> Arc<Self> {
        Arc::new(Self { net, parts: Mutex::default() })
    }

    fn parts(&self) -> MutexGuard<'_, Parts> {
        // Each change is a single step.
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This node coordinates its cluster: it watches the members from now on, save itself. Who is new counts as heard now.
    pub(crate) fn host(
        &self,
        job: JobId,
        cluster: &ClusterId,
        view: &View,
        coordinator: &Recipient<Behind>,
    ) {
        let (now, mut parts) = (Instant::now(), self.parts());
        let known = parts.hosted.take().filter(|hosted| hosted.coordinator == *coordinator);
        let detector = known.map(|hosted| hosted.detector);
        let mut detector = detector.unwrap_or_else(|| Detector::new(Patience::CLUSTER, now));
        let mine = view.cluster_coordinators.get(cluster);
        let others = view.in_cluster(cluster).filter(|node| Some(*node) != mine);
        let lives = others.filter_map(|node| Some((node.clone(), view.members.get(node)?)));
        detector.watch(lives.map(|(node, member)| (node, member.incarnation)), now);
        let (view, coordinator) = (view.clone(), coordinator.clone());
        parts.hosted = Some(Hosted { job, view, detector, coordinator });
    }

    /// Who among the members of the cluster is silent. To be called every [`Patience::every`] of [`Patience::CLUSTER`].
    pub(crate) fn look(&self, coordinator: &Recipient<Behind>) -> Vec<Finding> {
        let mut parts = self.parts();
        let hosted = parts.hosted.as_mut().filter(|hosted| hosted.coordinator == *coordinator);
        hosted.map(|hosted| hosted.detector.look(Instant::now())).unwrap_or_default()
    }

    /// The role is here no more.
    pub(crate) fn retire(&self, coordinator: &Recipient<Behind>) {
        self.parts().hosted.take_if(|hosted| hosted.coordinator == *coordinator);
    }

    /// Tells the cluster's coordinator that this node lives, if another node has that role. To be called every
    /// [`Patience::every`] of [`Patience::CLUSTER`]. How long the coordinator has been silent, once it counts as dead.
    pub(crate) fn beat(
        &self,
        job: JobId,
        view: &View,
        worker: &Recipient<NoMember>,
    ) -> Option<Silence> {
        let (me, now) = (self.net.me(), Instant::now());
        let host = view.cluster_coordinators.get(&me.cluster).filter(|host| **host != me.node)?;
        let life = view.members.get(host)?.incarnation;
        let mut others = view.in_cluster(&me.cluster).filter(|node| *node != host).take(DEPUTIES);
        let deputy = others.any(|node| *node == me.node);
        let mut parts = self.parts();
        let same = |own: &Own| {
            (own.job, &own.host, own.life, own.deputy) == (job, host, life, deputy)
                && own.worker == *worker
        };
        let own = match parts.own.take_if(|own| same(own)) {
            Some(own) => own,
            None => {
                let patience = if deputy { Patience::CLUSTER } else { SELDOM };
                let mut detector = Detector::new(patience, now);
                detector.watch([(host.clone(), life)], now);
                let (host, worker) = (host.clone(), worker.clone());
                Own { job, host, life, deputy, detector, beats: 0, worker }
            }
        };
        let own = parts.own.insert(own);
        let found = own.detector.look(now).into_iter().find_map(|finding| match finding {
            Finding::Dead(_, silent) => Some(silent),
            Finding::Suspect(_) | Finding::Back(_) => None,
        });
        if let Some(silent) = found {
            // Said again when it has been silent for as long again.
            let host = host.clone();
            own.detector.watch([(host.clone(), life)], now);
            return Some(Silence { host, life, silent });
        }
        let asks = deputy || own.beats.is_multiple_of(ASK_EVERY);
        own.beats += 1;
        drop(parts);
        let (epoch, version, partial) = (view.epoch, view.version, view.partial);
        self.send(host, Kind::ALIVE, &Beat { job, epoch, version, partial, asks });
        None
    }

    /// This node's worker takes part in no job.
    pub(crate) fn stop(&self) {
        self.parts().own = None;
    }

    fn send<M: Serialize>(&self, to: &NodeId, kind: Kind, message: &M) {
        match wire::encode(kind, message) {
            // One that does not arrive is silence, and silence is what the other side acts on.
            Ok(frame) => drop(self.net.send(to, Class::Control, kind, frame)),
            Err(error) => tracing::warn!(%error, "a heartbeat cannot be written"),
        }
    }

    /// A worker was heard here.
    fn beaten(&self, from: &Peer, beat: Beat) {
        let mut member = true;
        if let Some(hosted) = self.parts().hosted.as_mut().filter(|it| it.job == beat.job) {
            let Hosted { view, detector, coordinator, .. } = hosted;
            let watched = detector.watches(&from.node, from.incarnation);
            if let Some(back) = detector.heard(&from.node, from.incarnation, Instant::now()) {
                tracing::info!(?back, "a suspected worker");
            }
            let (told, mine) = ((beat.epoch, beat.version), (view.epoch, view.version));
            if told < mine || (beat.partial && told == mine) {
                coordinator.do_send(Behind { node: from.node.clone() });
            }
            let life = |node| view.members.get(node).map(|member| member.incarnation);
            // One with a newer view may be a member that this node has not heard of yet.
            member = watched || told > mine || life(&from.node) == Some(from.incarnation);
        }
        // That the role has not started here yet is a sign of life, too.
        if beat.asks || !member {
            self.send(&from.node, Kind::HEARD, &Heard { job: beat.job, member });
        }
    }

    /// The cluster's coordinator has answered.
    fn heard(&self, from: &Peer, heard: Heard) {
        let mut parts = self.parts();
        let is_host = |own: &&mut Own| own.job == heard.job && own.host == from.node;
        let Some(own) = parts.own.as_mut().filter(is_host) else { return };
        own.detector.heard(&from.node, from.incarnation, Instant::now());
        if !heard.member {
            own.worker.do_send(NoMember { job: heard.job, host: from.node.clone() });
        }
    }
}

/// A cluster's coordinator says nothing.
pub(crate) struct Silence {
    /// Which node.
    pub(crate) host: NodeId,
    /// Which life of it.
    pub(crate) life: Incarnation,
    /// For so long.
    pub(crate) silent: Duration,
}

impl Inbox for Pulse {
    fn frame(&self, from: &Peer, kind: Kind, body: Bytes) {
        let sender = Sender { peer: from, role: self.net.role(&from.node) };
        if let Err(why) = sender.is(&[Role::Node]) {
            tracing::warn!(peer = %from, %why, "a heartbeat is denied");
            return;
        }
        let taken = match kind {
            Kind::ALIVE => wire::decode(kind, &body).map(|beat| self.beaten(from, beat)),
            _ => wire::decode(kind, &body).map(|heard| self.heard(from, heard)),
        };
        if let Err(error) = taken {
            self.net.breach(from, &format!("a heartbeat: {error}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use springtide_runtime::membership::Member;
    use springtide_runtime::net::{Address, MemoryNet, Router};
    use tokio::time::sleep;

    use super::*;

    const JOB: JobId = JobId(1);

    /// Counts what reaches an actor.
    #[derive(Default)]
    struct Ears {
        behind: Vec<NodeId>,
        no_member: u32,
    }

    impl Actor for Ears {
        type Context = Context<Self>;
    }

    impl Handler<Behind> for Ears {
        type Result = ();
        fn handle(&mut self, Behind { node }: Behind, _: &mut Self::Context) {
            self.behind.push(node);
        }
    }

    impl Handler<NoMember> for Ears {
        type Result = ();
        fn handle(&mut self, _: NoMember, _: &mut Self::Context) {
            self.no_member += 1;
        }
    }

    #[derive(Message)]
    #[rtype(result = "(Vec<NodeId>, u32)")]
    struct Told;

    impl Handler<Told> for Ears {
        type Result = MessageResult<Told>;
        fn handle(&mut self, _: Told, _: &mut Self::Context) -> Self::Result {
            MessageResult((std::mem::take(&mut self.behind), std::mem::take(&mut self.no_member)))
        }
    }

    struct Node {
        pulse: Arc<Pulse>,
        ears: Addr<Ears>,
        view: View,
    }

    impl Node {
        fn beat(&self) -> Option<Silence> {
            self.pulse.beat(JOB, &self.view, &self.ears.clone().recipient())
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

    fn node(net: &MemoryNet, name: &str, view: &View) -> Node {
        let me = Peer { node: name.into(), cluster: "c".into(), incarnation: Incarnation(1) };
        let net = net.join(me).unwrap();
        net.follow(&view.members);
        let (pulse, router) = (Pulse::new(net.clone()), Router::default());
        router.on(Pulse::KINDS, pulse.clone());
        net.start(Arc::new(router));
        Node { pulse, ears: Ears::default().start(), view: view.clone() }
    }

    #[actix::test]
    async fn all_are_heard_and_only_deputies_are_answered_each_time() {
        tokio::time::pause();
        let names = ["n0", "n1", "n2", "n3", "n4"];
        let (net, view) = (MemoryNet::new(1), view(&names));
        let nodes: Vec<Node> = names.iter().map(|name| node(&net, name, &view)).collect();
        let host = nodes[0].ears.clone().recipient();
        nodes[0].pulse.host(JOB, &"c".into(), &view, &host);
        for _ in 0..30 {
            for node in &nodes {
                assert!(node.beat().is_none());
            }
            sleep(Patience::CLUSTER.every).await;
            assert_eq!(nodes[0].pulse.look(&host), []);
        }
        assert_eq!(nodes[0].ears.send(Told).await.unwrap(), (Vec::new(), 0));
        // Twice each time, and twice every third time.
        let frames = net.traffic()[&("c".into(), "c".into())].frames;
        let (beats, answers) = (4 * 30, 2 * 30 + 2 * 10);
        assert_eq!(frames, beats + answers);

        // The host falls silent: deputies say so first, the others too, and again and again.
        net.kill(&"n0".into());
        let mut said = [(0, Duration::MAX); 5];
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(12) {
            for (node, said) in nodes.iter().zip(&mut said).skip(1) {
                if let Some(Silence { host, life, .. }) = node.beat() {
                    assert_eq!((host, life), ("n0".into(), Incarnation(1)));
                    *said = (said.0 + 1, said.1.min(began.elapsed()));
                }
            }
            sleep(Patience::CLUSTER.every).await;
        }
        let within = |from: usize, limit: Duration| {
            said[from..from + 2].iter().all(|(times, first)| *times >= 2 && *first <= limit)
        };
        assert!(within(1, Duration::from_secs(3)) && within(3, Duration::from_secs(6)), "{said:?}");
        assert!(said[3].1 > said[1].1);
    }

    #[actix::test]
    async fn who_is_silent_behind_or_no_member_is_told_apart() {
        tokio::time::pause();
        let (net, known) = (MemoryNet::new(1), view(&["n0", "n1", "n2"]));
        let later = known.with([("n3".into(), known.members[&"n1".into()].clone())]);
        let host = node(&net, "n0", &known);
        let ears = host.ears.clone().recipient();
        host.pulse.host(JOB, &"c".into(), &known, &ears);
        let knows = node(&net, "n1", &known);
        // One that the host has not heard of yet, and one that has seen only a part.
        let new = node(&net, "n3", &later.glimpse(&"n3".into()));
        let mut findings = Vec::new();
        for _ in 0..6 {
            assert!(knows.beat().is_none() && new.beat().is_none());
            sleep(Patience::CLUSTER.every).await;
            findings.extend(host.pulse.look(&ears));
        }
        let name = |finding: &Finding| match finding {
            Finding::Suspect(node) | Finding::Back(node) | Finding::Dead(node, _) => node.clone(),
        };
        assert_eq!(findings.iter().map(name).collect::<Vec<_>>(), ["n2".into(), "n2".into()]);
        assert_eq!(host.ears.send(Told).await.unwrap().0, []);
        assert_eq!(new.ears.send(Told).await.unwrap().1, 0);

        // Now the host knows it: it has only a part, and the other an older view.
        host.pulse.host(JOB, &"c".into(), &later, &ears);
        assert!(knows.beat().is_none() && new.beat().is_none());
        sleep(Patience::CLUSTER.every).await;
        assert_eq!(host.ears.send(Told).await.unwrap().0, ["n1".into(), "n3".into()]);
        assert_eq!(new.ears.send(Told).await.unwrap().1, 0);

        // It was declared dead meanwhile: it is told at its next heartbeat, whether it asks or not.
        let without = later.without([&"n3".into()]);
        host.pulse.host(JOB, &"c".into(), &without, &ears);
        for _ in 0..2 {
            assert!(new.beat().is_none());
            sleep(Patience::CLUSTER.every).await;
        }
        assert_eq!(new.ears.send(Told).await.unwrap().1, 2);
        // The role passes on: nobody is watched here any more.
        host.pulse.retire(&ears);
        sleep(Duration::from_secs(9)).await;
        assert_eq!(host.pulse.look(&ears), []);
        assert!(new.beat().is_none());
        sleep(Patience::CLUSTER.every).await;
        assert_eq!(new.ears.send(Told).await.unwrap().1, 0);
    }

    #[test]
    fn mutated_frames_are_heartbeats_or_typed_errors() {
        let decoders: [wire::fuzz::Decoder; 2] = [
            (Kind::ALIVE, |bytes| wire::decode::<Beat>(Kind::ALIVE, bytes).is_ok()),
            (Kind::HEARD, |bytes| wire::decode::<Heard>(Kind::HEARD, bytes).is_ok()),
        ];
        let corpus = wire::golden::corpus(env!("CARGO_MANIFEST_DIR"));
        let corpus: Vec<_> =
            corpus.into_iter().filter(|(kind, _)| Pulse::KINDS.contains(kind)).collect();
        let tally = wire::fuzz::run(&corpus, &decoders, 9);
        assert!(tally.accepted > 0 && tally.refused > 0, "{tally:?}");
    }
}
