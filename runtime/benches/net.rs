//! The cost of the network over bare quinn: the round trip of a 64-byte message, and the rate of
//! pipelined ones.
//!
//! `cargo bench -p springtide-runtime --bench net [-- ROUNDS]`. Both sides are threads of this
//! process with a single-threaded runtime each, with mutual TLS, over loopback. The reference
//! program and `Net` alternate, so that other load affects both: only the ratios are meaningful.
//! The reference program is efficient: one long stream, length-prefixed frames, and one write for
//! all frames of one read.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use springtide_runtime::id::{Incarnation, NodeId, Peer};
use springtide_runtime::net::tls::{Ca, EPHEMERAL_VALIDITY, NodeIdentity};
use springtide_runtime::net::{Class, Net, NetConfig, NetworkHandler};
use springtide_runtime::wire::Kind;
use tokio::sync::oneshot;

use crate::bare::{BODY, IN_FLIGHT, PINGS, PIPELINED, QuinnProgram, Thread, median, p50};

mod bare;

fn main() {
    let rounds = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(5);
    let ca = Ca::ephemeral("bench").expect("an authority");
    let identity = |name: &str| {
        ca.issue(&name.into(), &"c".into(), "node", EPHEMERAL_VALIDITY).expect("an identity")
    };
    let (one, two) = (identity("one"), identity("two"));
    let bare = QuinnProgram::start(&one, &two);
    let over_net = NetProgram::start(&one, &two);
    let (mut latency, mut rate) = (Vec::new(), Vec::new());
    println!(
        "{:>5} {:>12} {:>12} {:>6} {:>14} {:>14} {:>6}",
        "round", "bare p50", "net p50", "ratio", "bare msg/s", "net msg/s", "ratio"
    );
    for round in 1..=rounds {
        let (a, b) = (bare.round_trips(), over_net.round_trips());
        let (c, d) = (bare.pipelined(), over_net.pipelined());
        latency.push(b.as_secs_f64() / a.as_secs_f64());
        rate.push(d / c);
        println!(
            "{round:>5} {:>9.1} us {:>9.1} us {:>6.2} {c:>14.0} {d:>14.0} {:>6.2}",
            a.as_secs_f64() * 1e6,
            b.as_secs_f64() * 1e6,
            latency[latency.len() - 1],
            rate[rate.len() - 1]
        );
    }
    println!(
        "round trip, net / bare, median of rounds: {:.3} (limit: at most 1.15)",
        median(&mut latency)
    );
    println!(
        "pipelined rate, net / bare, median of rounds: {:.3} (limit: at least 0.70)",
        median(&mut rate)
    );
}

/// The same exchange over `Net`.
struct NetProgram {
    client: Thread,
    net: Net,
    requester: Arc<Requester>,
    _server: Net,
}

struct EchoInbox(OnceLock<Net>);

impl NetworkHandler for EchoInbox {
    fn frame(&self, from: &Peer, kind: Kind, body: Bytes) {
        let net = self.0.get().expect("set before it was started");
        net.send(&from.node, Class::Steal, kind, body).expect("room");
    }
}

/// Sends the next message when a reply arrives. As the reference program, it takes no lock and
/// clones no reference per pipelined message, so that the bench measures the network.
#[derive(Default)]
struct Requester {
    net: OnceLock<Net>,
    to: OnceLock<NodeId>,
    timed: AtomicBool,
    left: AtomicUsize,
    unanswered: AtomicUsize,
    sent_at: Mutex<Option<Instant>>,
    times: Mutex<Vec<Duration>>,
    done: Mutex<Option<oneshot::Sender<()>>>,
}

impl Requester {
    fn send_request(&self) {
        self.left.fetch_sub(1, Ordering::Relaxed);
        let net = self.net.get().expect("set before it was started");
        let to = self.to.get_or_init(|| "one".into());
        net.send(to, Class::Steal, Kind::TELL, Bytes::from_static(&[0; BODY])).expect("room");
    }

    async fn exchange(&self, messages: usize, in_flight: usize) -> Duration {
        let (tx, rx) = oneshot::channel();
        *self.done.lock().expect("sound") = Some(tx);
        self.left.store(messages, Ordering::Relaxed);
        self.unanswered.store(messages, Ordering::Relaxed);
        let start = Instant::now();
        self.timed.store(in_flight == 1, Ordering::Relaxed);
        *self.sent_at.lock().expect("sound") = (in_flight == 1).then_some(start);
        (0..in_flight).for_each(|_| self.send_request());
        rx.await.expect("all are answered");
        start.elapsed()
    }
}

impl NetworkHandler for Requester {
    fn frame(&self, _from: &Peer, _kind: Kind, _body: Bytes) {
        if self.timed.load(Ordering::Relaxed)
            && let Some(sent_at) = &mut *self.sent_at.lock().expect("sound")
        {
            let now = Instant::now();
            self.times.lock().expect("sound").push(now - *sent_at);
            *sent_at = now;
        }
        if self.unanswered.fetch_sub(1, Ordering::Relaxed) == 1 {
            let done = self.done.lock().expect("sound").take();
            let _ = done.map(|done| done.send(()));
        } else if self.left.load(Ordering::Relaxed) > 0 {
            self.send_request();
        }
    }
}

impl NetProgram {
    fn start(server: &NodeIdentity, client: &NodeIdentity) -> Self {
        let (at_server, at_client) = (Thread::start(), Thread::start());
        let open = |thread: &Thread, identity: &NodeIdentity| {
            let identity = identity.clone();
            thread.run(async move {
                Net::quic(NetConfig::default(), &identity, Incarnation(1)).expect("a network")
            })
        };
        let (server_net, net) = (open(&at_server, server), open(&at_client, client));
        let echo = Arc::new(EchoInbox(OnceLock::from(server_net.clone())));
        let requester = Arc::new(Requester::default());
        assert!(requester.net.set(net.clone()).is_ok());
        server_net.start(echo);
        net.learn(server_net.contact());
        net.start(requester.clone());
        Self { client: at_client, net, requester, _server: server_net }
    }

    fn round_trips(&self) -> Duration {
        let requester = self.requester.clone();
        self.client.run(async move {
            requester.exchange(PINGS, 1).await;
            p50(std::mem::take(&mut *requester.times.lock().expect("sound")))
        })
    }

    fn pipelined(&self) -> f64 {
        let requester = self.requester.clone();
        self.client.run(async move {
            let took = requester.exchange(PIPELINED, IN_FLIGHT).await;
            PIPELINED as f64 / took.as_secs_f64()
        })
    }
}

impl Drop for NetProgram {
    fn drop(&mut self) {
        let net = self.net.clone();
        self.client.run(async move { net.close("the bench is over").await });
    }
}
