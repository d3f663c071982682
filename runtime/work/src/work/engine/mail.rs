//! Transport of the messages of SPMD processes, as frames of the job that are kept while they
//! cannot be sent.
//!
//! The kept amount is bounded: a process that sends more waits. This module does not know the
//! messages.

use super::*;
use crate::spmd::message::{GroupId, data_message_header};

/// Creates the post of an engine's processes. The engine owns it, so it must not keep the engine
/// alive.
pub(super) fn new_post(job: JobId, me: Peer, inner: Weak<EngineCore>) -> Dispatcher {
    let to_forget = inner.clone();
    Dispatcher::new(
        job,
        me,
        Box::new(move |to, body| {
            if let Some(inner) = inner.upgrade() {
                inner.send_encoded(to, Class::Steal, Kind::PROCESS, body);
            }
        }),
        Box::new(move |group, generation| {
            if let Some(inner) = to_forget.upgrade() {
                inner.drop_messages(group, generation);
            }
        }),
    )
}

/// Kept frames in order, and their total bytes. The total is updated incrementally, since there may
/// be a hundred thousand frames.
#[derive(Default)]
pub(super) struct Unsent {
    frames: VecDeque<OutgoingFrame>,
    bytes: usize,
}

/// The receiver, the class, the kind and the body of a frame.
type OutgoingFrame = (NodeId, Class, Kind, Bytes);

impl Unsent {
    pub(super) fn push(&mut self, frame: OutgoingFrame) {
        self.bytes += frame.3.len();
        self.frames.push_back(frame);
    }

    pub(super) fn retain(&mut self, stays: impl FnMut(&OutgoingFrame) -> bool) {
        self.frames.retain(stays);
        self.bytes = self.frames.iter().map(|(.., body)| body.len()).sum();
    }

    /// Appends the present frames to earlier ones.
    fn prepend(&mut self, mut first: Self) {
        first.frames.append(&mut self.frames);
        first.bytes += self.bytes;
        *self = first;
    }

    pub(super) fn len(&self) -> usize {
        self.frames.len()
    }

    /// Whether a frame of a kind to a node is kept.
    pub(super) fn has(&self, to: &NodeId, kind: Kind) -> bool {
        self.frames.iter().any(|(node, _, of, _)| node == to && *of == kind)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }
}

impl EngineCore {
    /// Keeps a frame that cannot be sent now.
    pub(super) fn keep_frame(&self, to: &NodeId, class: Class, kind: Kind, body: Bytes) {
        let mut state = self.state();
        // The first frame wakes the driver, which returns as long as any are left.
        let first = state.unsent.is_empty();
        state.unsent.push((to.clone(), class, kind, body));
        self.report_kept(&state);
        drop(state);
        if first {
            self.driver.notify_one();
        }
    }

    /// Sends the kept frames for which there is room now. Returns the time of the next attempt.
    pub(super) fn resend(&self, now: Instant) -> Option<Instant> {
        let mut full: BTreeSet<(NodeId, Class)> = BTreeSet::new();
        let unsent = std::mem::take(&mut self.state().unsent);
        if unsent.is_empty() {
            return None;
        }
        let mut kept = Unsent::default();
        for (to, class, kind, body) in unsent.frames {
            let key = (to, class);
            let sends = |body| match self.net.send(&key.0, class, kind, body) {
                Err(SendError::Unknown(_)) => kind != Kind::PROCESS,
                sent => !matches!(sent, Err(SendError::Full(_))),
            };
            if !full.contains(&key) && sends(body.clone()) {
                continue;
            }
            kept.push((key.0.clone(), class, kind, body));
            full.insert(key);
        }
        let retry = !kept.is_empty();
        let mut state = self.state();
        state.unsent.prepend(kept);
        self.report_kept(&state);
        retry.then(|| now + RETRY_INTERVAL)
    }

    /// Drops kept messages of configurations that have ended.
    fn drop_messages(&self, group: &GroupId, generation: u32) {
        let mut state = self.state();
        state.unsent.retain(|(_, _, kind, body)| {
            let mail = if *kind == Kind::PROCESS { data_message_header(body) } else { None };
            mail.is_none_or(|(of, when)| of != *group || when > generation)
        });
        self.report_kept(&state);
    }

    /// Reports the kept amount to the processes: see [`Dispatcher::has_room`].
    pub(super) fn report_kept(&self, state: &EngineState) {
        self.post.set_unsent(state.unsent.bytes, state.unsent.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spmd::message::{DataMessage, Envelope, ProcessMessage};

    /// Messages of a torn configuration do not stay in memory until the network has room.
    #[tokio::test]
    async fn messages_of_an_ended_configuration_are_dropped() {
        let network = crate::net::MemoryNet::new(1);
        let me = |node: &str| Peer {
            node: node.into(),
            incarnation: Incarnation(1),
            cluster: "ams".into(),
        };
        let net = network.join(me("ams-0")).expect("names are unique");
        let config = EngineConfig {
            job: JobId(1),
            pool: PoolConfig::default(),
            policy: StealPolicy::ClusterAware,
            share: ShareConfig::default(),
            metering: None,
            results_bytes: 0,
            memory: None,
        };
        let recorder = Recorder::new("ams-0".into(), Incarnation(1), Instant::now(), 100);
        let engine = Engine::start(
            &config,
            Arc::new(Registry::new()),
            net.clone(),
            crate::work::RealSeam::new(),
            recorder,
            Box::new(|_| {}),
        )
        .expect("threads");
        net.start(Arc::new(crate::net::Router::default()));
        let group = |number| GroupId { root: me("ams-1"), number };
        let say = |number, generation, bytes: usize| {
            let body = Bytes::from(vec![7; bytes]);
            let mail = DataMessage { generation, from: 0, tag: 1, number: 0, body };
            // This node is unknown, so the message is kept until a view names it.
            engine.0.post.send(&me("ams-9"), &group(number), 3, ProcessMessage::Mail(mail));
        };
        say(1, 1, 1000);
        say(1, 2, 1000);
        say(2, 1, 1000);
        engine.0.post.send(&me("ams-9"), &group(1), 3, ProcessMessage::Dismiss);
        assert_eq!(engine.0.state().unsent.len(), 4);
        let apart = ProcessMessage::Apart { generation: 1 };
        let letter = Envelope { job: JobId(1), group: group(1), to: 5, word: apart };
        engine.0.post.receive_frame(&me("ams-1"), letter);
        let kept = |engine: &Engine| -> Vec<_> {
            engine
                .0
                .state()
                .unsent
                .frames
                .iter()
                .map(|(.., body)| data_message_header(body))
                .collect()
        };
        assert_eq!(kept(&engine), [Some((group(1), 2)), Some((group(2), 1)), None]);
        // A process that sends more than can be kept waits.
        assert!(engine.0.post.has_room());
        say(1, 2, 256 << 20);
        assert!(!engine.0.post.has_room());
        let apart = ProcessMessage::Apart { generation: 2 };
        let letter = Envelope { job: JobId(1), group: group(1), to: 5, word: apart };
        engine.0.post.receive_frame(&me("ams-1"), letter);
        assert!(engine.0.post.has_room());
        // Empty messages take room, too.
        let before = engine.0.state().unsent.len();
        for _ in before..100_000 {
            assert!(engine.0.post.has_room());
            say(1, 3, 0);
        }
        assert!(!engine.0.post.has_room());
        // The count always equals the total of the kept frames.
        let counted = |engine: &Engine| {
            let state = engine.0.state();
            let sum: usize = state.unsent.frames.iter().map(|(.., body)| body.len()).sum();
            (state.unsent.bytes, sum)
        };
        let (bytes, sum) = counted(&engine);
        assert_eq!(bytes, sum);
        assert!(engine.0.resend(Instant::now()).is_some());
        let (bytes, sum) = counted(&engine);
        assert_eq!(bytes, sum);
        engine.0.lost(&"ams-9".into(), false, "a test");
        assert_eq!(counted(&engine), (0, 0));
        assert!(engine.0.post.has_room());
        engine.close();
        engine.closed().await;
    }
}
