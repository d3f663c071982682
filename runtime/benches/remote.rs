//! The cost of a call to a remote actor over bare quinn: the round trip of a 64-byte message.
//!
//! It measures an actor on the endpoint's arbiter, one on another arbiter, and a local one.
//!
//! `cargo bench -p springtide-runtime --bench remote [-- ROUNDS]`. As in the `net` bench, both
//! sides are threads of this process, and the programs alternate: only the ratios are meaningful.

use std::future::pending;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use actix::prelude::*;
use serde::{Deserialize, Serialize};
use springtide_runtime::id::Incarnation;
use springtide_runtime::net::tls::{Ca, EPHEMERAL_VALIDITY, NodeIdentity};
use springtide_runtime::net::{Contact, Net, NetConfig};
use springtide_runtime::remote::{Hub, Remote};
use springtide_runtime::remote_message;
use std::sync::Arc;

use crate::bare::{BODY, IN_FLIGHT, PINGS, QuinnProgram, median, p50};

mod bare;

#[derive(Clone, Serialize, Deserialize)]
struct Ping(#[serde(with = "serde_bytes")] Vec<u8>);

remote_message! { "ping" => Ping -> Ping; }

struct EchoActor;

impl Actor for EchoActor {
    type Context = Context<Self>;
}

impl Handler<Ping> for EchoActor {
    type Result = MessageResult<Ping>;
    fn handle(&mut self, ping: Ping, _: &mut Self::Context) -> Self::Result {
        MessageResult(ping)
    }
}

fn main() {
    let rounds = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(5);
    let ca = Ca::ephemeral("bench").expect("an authority");
    let identity = |name: &str| {
        ca.issue(&name.into(), &"c".into(), "node", EPHEMERAL_VALIDITY).expect("an identity")
    };
    let (one, two) = (identity("one"), identity("two"));
    let bare = QuinnProgram::start(&one, &two);
    let requester = Requester::start(serve(one), two);
    let mut ratios: [Vec<f64>; 3] = Default::default();
    println!(
        "{:>5} {:>11} {:>11} {:>5} {:>11} {:>5} {:>11} {:>11}",
        "round", "bare p50", "same p50", "", "other p50", "", "local p50", "calls/s"
    );
    for round in 1..=rounds {
        let base = bare.round_trips().as_secs_f64();
        let [same, other, local] = ["same", "other", "local"].map(|to| requester.round_trips(to));
        let rate = requester.pipelined();
        let trips = [same, other, local].map(|trip| trip.as_secs_f64());
        for (list, trip) in ratios.iter_mut().zip(trips) {
            list.push(trip / base);
        }
        println!(
            "{round:>5} {:>8.1} us {:>8.1} us {:>5.2} {:>8.1} us {:>5.2} {:>8.2} us {rate:>11.0}",
            base * 1e6,
            trips[0] * 1e6,
            trips[0] / base,
            trips[1] * 1e6,
            trips[1] / base,
            trips[2] * 1e6,
        );
    }
    let [same, other, local] = ratios.each_mut().map(|list| median(list));
    println!("an actor on the endpoint's arbiter / bare, median: {same:.3} (limit: at most 1.15)");
    println!("an actor on another arbiter / bare, median: {other:.3} (limit: at most 1.6)");
    println!("an actor of the same node and arbiter / bare, median: {local:.3}");
}

/// Starts a node with a hub, inside an actix system.
fn node(identity: &NodeIdentity) -> (Net, Arc<Hub>) {
    let net = Net::quic(NetConfig::default(), identity, Incarnation(1)).expect("a network");
    let hub = Hub::new(net.clone());
    net.start(hub.clone());
    (net, hub)
}

/// Publishes an echo actor on the endpoint's arbiter and one on another. Returns the contact of the
/// node.
fn serve(identity: NodeIdentity) -> Contact {
    let (tx, rx) = mpsc::channel();
    std::thread::spawn(move || {
        actix::System::new().block_on(async move {
            let (net, hub) = node(&identity);
            let other = EchoActor::start_in_arbiter(&Arbiter::new().handle(), |_| EchoActor);
            hub.publish("same", EchoActor.start()).accepts::<Ping>();
            hub.publish("other", other).accepts::<Ping>();
            tx.send(net.contact()).expect("the starter waits");
            pending::<()>().await;
        });
    });
    rx.recv().expect("the server starts")
}

/// An order to the calling thread: number of calls, calls in flight, actor, and a channel for the
/// median and the total time.
type Order = (usize, usize, String, mpsc::Sender<(Duration, Duration)>);

struct Requester(tokio::sync::mpsc::UnboundedSender<Order>);

impl Requester {
    fn start(server: Contact, identity: NodeIdentity) -> Self {
        let (tx, mut rx) = tokio::sync::mpsc::unbounded_channel::<Order>();
        std::thread::spawn(move || {
            actix::System::new().block_on(async move {
                let (net, hub) = node(&identity);
                net.learn(server.clone());
                hub.publish("local", EchoActor.start()).accepts::<Ping>();
                while let Some((calls, in_flight, name, answer)) = rx.recv().await {
                    let at = if name == "local" { &net.me().node } else { &server.node };
                    let actor: Remote<EchoActor> = hub.remote(at, &name);
                    let start = Instant::now();
                    let times = make_calls(&actor, calls, in_flight).await;
                    answer.send((p50(times), start.elapsed())).expect("the order waits");
                }
            });
        });
        Self(tx)
    }

    fn order(&self, calls: usize, in_flight: usize, name: &str) -> (Duration, Duration) {
        let (tx, rx) = mpsc::channel();
        self.0.send((calls, in_flight, name.to_owned(), tx)).expect("the asker runs");
        rx.recv().expect("the asker answers")
    }

    fn round_trips(&self, name: &str) -> Duration {
        self.order(PINGS, 1, name).0
    }

    fn pipelined(&self) -> f64 {
        let calls = 10 * PINGS;
        calls as f64 / self.order(calls, IN_FLIGHT, "same").1.as_secs_f64()
    }
}

/// Makes calls with a number of them in flight; returns the time of each.
async fn make_calls(actor: &Remote<EchoActor>, calls: usize, in_flight: usize) -> Vec<Duration> {
    let ping = Ping(vec![7; BODY]);
    let requesters: Vec<_> = (0..in_flight)
        .map(|_| {
            let (actor, ping) = (actor.clone(), ping.clone());
            actix::spawn(async move {
                let mut times = Vec::with_capacity(calls / in_flight);
                for _ in 0..calls / in_flight {
                    let start = Instant::now();
                    actor.send(ping.clone()).await.expect("an answer");
                    times.push(start.elapsed());
                }
                times
            })
        })
        .collect();
    let mut times = Vec::with_capacity(calls);
    for requester in requesters {
        times.extend(requester.await.expect("no panic"));
    }
    times
}
