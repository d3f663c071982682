//! How what processes of SPMD programs say travels: as frames of the job, kept while they cannot be sent.
//!
//! What is kept has a bound: who says more waits. Must not know what they say.

use super::*;
use crate::spmd::message::{GroupId, mail_of};

/// The post office of an engine's processes. It belongs to the engine, so it must not keep that alive.
pub(super) fn post_of(job: JobId, me: Peer, inner: Weak<Inner>) -> Post {
    let to_forget = inner.clone();
    Post::new(
        job,
        me,
        Box::new(move |to, body| {
            if let Some(inner) = inner.upgrade() {
                inner.send_encoded(to, Class::Steal, Kind::PROCESS, body);
            }
        }),
        Box::new(move |group, generation| {
            if let Some(inner) = to_forget.upgrade() {
                inner.forget_mail(group, generation);
            }
        }),
    )
}

impl Inner {
    /// Keeps for later what cannot be sent now.
    pub(super) fn keep(&self, to: &NodeId, class: Class, kind: Kind, body: Bytes) {
        let mut state = self.state();
        state.unsent.push_back((to.clone(), class, kind, body));
        self.tell_kept(&state);
        drop(state);
        self.poke.notify_one();
    }

    /// Drops what is kept of mail that reaches nobody any more.
    fn forget_mail(&self, group: &GroupId, generation: u32) {
        let mut state = self.state();
        state.unsent.retain(|(_, _, kind, body)| {
            let mail = if *kind == Kind::PROCESS { mail_of(body) } else { None };
            mail.is_none_or(|(of, when)| of != *group || when > generation)
        });
        self.tell_kept(&state);
    }

    /// Tells processes how much is kept: see [`Post::has_room`].
    pub(super) fn tell_kept(&self, state: &State) {
        self.post.keeps(state.unsent.iter().map(|(.., body)| body.len()).sum());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spmd::message::{Letter, Mail, Word};

    /// What a torn configuration said does not stay in memory until the network has room for it.
    #[tokio::test]
    async fn kept_mail_of_a_configuration_that_is_over_is_dropped() {
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
            let mail = Mail { generation, from: 0, tag: 1, number: 0, body };
            // Nobody knows this node: it is kept until somebody does.
            engine.0.post.say(&me("ams-9"), &group(number), 3, Word::Mail(mail));
        };
        say(1, 1, 1000);
        say(1, 2, 1000);
        say(2, 1, 1000);
        engine.0.post.say(&me("ams-9"), &group(1), 3, Word::Dismiss);
        assert_eq!(engine.0.state().unsent.len(), 4);
        let apart = Word::Apart { generation: 1 };
        let letter = Letter { job: JobId(1), group: group(1), to: 5, word: apart };
        engine.0.post.letter(&me("ams-1"), letter);
        let kept = |engine: &Engine| -> Vec<_> {
            engine.0.state().unsent.iter().map(|(.., body)| mail_of(body)).collect()
        };
        assert_eq!(kept(&engine), [Some((group(1), 2)), Some((group(2), 1)), None]);
        // Who says more than can be kept waits.
        assert!(engine.0.post.has_room());
        say(1, 2, 256 << 20);
        assert!(!engine.0.post.has_room());
        let apart = Word::Apart { generation: 2 };
        let letter = Letter { job: JobId(1), group: group(1), to: 5, word: apart };
        engine.0.post.letter(&me("ams-1"), letter);
        assert!(engine.0.post.has_room());
        engine.close();
        engine.closed().await;
    }
}
