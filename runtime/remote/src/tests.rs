//! Tests of remote actors: two nodes, a network between them, and an actor with handlers of several
//! kinds.

use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use actix::prelude::*;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};

use super::envelope::{Envelope, Reply, code};
use super::*;
use crate::id::{Incarnation, NodeId, Peer};
use crate::net::tls::{Ca, EPHEMERAL_VALIDITY, Role};
use crate::net::{LinkProfile, MemoryNet, Net, NetConfig, RefuseReason, Router};
use crate::remote_message;
use crate::wire::{self, Kind};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Echo(String);

/// Records the order in which handlers start; the reply is the padding's length.
#[derive(Debug, Serialize, Deserialize)]
struct Note {
    n: u32,
    #[serde(with = "serde_bytes")]
    padding: Vec<u8>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Take;

/// Replies after a delay, without blocking the actor.
#[derive(Debug, Serialize, Deserialize)]
struct Slow(u64);

/// Fails with a user's error.
#[derive(Debug, Serialize, Deserialize)]
struct Fail;

/// Stops the actor before it replies.
#[derive(Debug, Serialize, Deserialize)]
struct Halt;

/// Has a handler, but is not accepted from other nodes.
#[derive(Debug, Serialize, Deserialize)]
struct Private;

/// [`Echo`] as another version defines it.
#[derive(Debug, Serialize, Deserialize)]
struct OtherEcho {
    number: u64,
}

remote_message! {
    "echo" => Echo -> String;
    "note" => Note -> usize;
    "take" => Take -> Vec<u32>;
    "slow" => Slow -> u64;
    "fail" => Fail -> Result<u8, String>;
    "halt" => Halt;
    "private" => Private;
}

impl actix::Message for OtherEcho {
    type Result = String;
}
impl RemoteMessage for OtherEcho {
    const NAME: &'static str = "echo";
}

#[derive(Default)]
struct TestActor {
    notes: Vec<u32>,
    started: Arc<Mutex<u32>>,
}

impl Actor for TestActor {
    type Context = actix::Context<Self>;
}

impl Handler<Echo> for TestActor {
    type Result = String;
    fn handle(&mut self, Echo(text): Echo, _: &mut Self::Context) -> String {
        *self.started.lock().unwrap() += 1;
        text
    }
}
impl Handler<OtherEcho> for TestActor {
    type Result = String;
    fn handle(&mut self, _: OtherEcho, _: &mut Self::Context) -> String {
        "other".into()
    }
}
impl Handler<Note> for TestActor {
    type Result = usize;
    fn handle(&mut self, note: Note, _: &mut Self::Context) -> usize {
        self.notes.push(note.n);
        note.padding.len()
    }
}
impl Handler<Take> for TestActor {
    type Result = Vec<u32>;
    fn handle(&mut self, _: Take, _: &mut Self::Context) -> Vec<u32> {
        std::mem::take(&mut self.notes)
    }
}
impl Handler<Slow> for TestActor {
    type Result = ResponseFuture<u64>;
    fn handle(&mut self, Slow(millis): Slow, _: &mut Self::Context) -> Self::Result {
        *self.started.lock().unwrap() += 1;
        Box::pin(async move {
            sleep(Duration::from_millis(millis)).await;
            millis
        })
    }
}
impl Handler<Fail> for TestActor {
    type Result = Result<u8, String>;
    fn handle(&mut self, _: Fail, _: &mut Self::Context) -> Self::Result {
        Err("as asked".into())
    }
}
impl Handler<Halt> for TestActor {
    type Result = ResponseActFuture<Self, ()>;
    fn handle(&mut self, _: Halt, cx: &mut Self::Context) -> Self::Result {
        cx.terminate();
        Box::pin(sleep(SECOND).into_actor(self))
    }
}
impl Handler<Private> for TestActor {
    type Result = ();
    fn handle(&mut self, _: Private, _: &mut Self::Context) {}
}

/// Two nodes with a hub each; a test actor on the second.
struct Pair {
    here: Arc<Hub>,
    there: Arc<Hub>,
    clerk: Remote<TestActor>,
    addr: Addr<TestActor>,
    started: Arc<Mutex<u32>>,
}

fn hub(net: &Net) -> Arc<Hub> {
    let (router, hub) = (Arc::new(Router::default()), Hub::new(net.clone()));
    router.route(Hub::KINDS, hub.clone());
    net.start(router);
    hub
}

fn pair(a: &Net, b: &Net) -> Pair {
    let (here, there) = (hub(a), hub(b));
    a.learn(b.contact());
    b.learn(a.contact());
    let started = Arc::default();
    let addr = TestActor { started: Arc::clone(&started), ..TestActor::default() }.start();
    publish(&there, &addr);
    let clerk = here.remote(&b.me().node, "clerk");
    Pair { here, there, clerk, addr, started }
}

fn publish(hub: &Hub, addr: &Addr<TestActor>) {
    hub.publish("clerk", addr.clone())
        .accepts::<Echo>()
        .accepts::<Note>()
        .accepts::<Take>()
        .accepts::<Slow>()
        .accepts::<Fail>()
        .accepts::<Halt>();
}

fn peer(cluster: &str, node: &str, incarnation: u64) -> Peer {
    Peer { node: node.into(), incarnation: Incarnation(incarnation), cluster: cluster.into() }
}

/// Runs a test of a [`Pair`] over the in-memory network and over QUIC.
macro_rules! on_both_networks {
    ($test:ident) => {
        mod $test {
            #[test]
            fn in_memory() {
                super::in_memory(|_, pair| super::$test(pair));
            }
            #[test]
            fn over_quic() {
                super::over_quic(super::$test);
            }
        }
    };
}

/// Runs a test inside an actix system over real endpoints on loopback.
fn over_quic<F: Future<Output = ()>>(test: impl FnOnce(Pair) -> F) {
    actix::System::new().block_on(async {
        let ca = Ca::ephemeral("test").unwrap();
        let node = |name: &str, cluster: &str| {
            let identity = ca.issue(&name.into(), &cluster.into(), "node", EPHEMERAL_VALIDITY);
            Net::quic(NetConfig::default(), &identity.unwrap(), Incarnation(1)).unwrap()
        };
        let (a, b) = (node("a", "x"), node("b", "y"));
        test(pair(&a, &b)).await;
        a.close("done").await;
        b.close("done").await;
    });
}

/// Runs a test inside an actix system on the paused clock, over an in-memory network with 10 ms
/// each way.
fn in_memory<F: Future<Output = ()>>(test: impl FnOnce(MemoryNet, Pair) -> F) {
    let system = actix::System::with_tokio_rt(|| {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_time().start_paused(true).build().unwrap()
    });
    system.block_on(async {
        let net = MemoryNet::new(1);
        let line = LinkProfile::default().delay(10 * MS).rate(5_000_000);
        net.set_links(&"x".into(), &"y".into(), &line);
        let (a, b) = (net.join(peer("x", "a", 1)).unwrap(), net.join(peer("y", "b", 1)).unwrap());
        let pair = pair(&a, &b);
        test(net, pair).await;
    });
}

#[test]
fn calls_are_answered_with_results_and_users_errors() {
    in_memory(|_, pair| async move {
        let start = Instant::now();
        assert_eq!(pair.clerk.send(Echo("hello".into())).await, Ok("hello".into()));
        assert!(start.elapsed() <= 45 * MS, "a hello, then the call: {:?}", start.elapsed());
        assert_eq!(pair.clerk.send(Fail).await, Ok(Err("as asked".into())));
        assert_eq!(pair.clerk.send(Slow(1500)).await, Ok(1500));
        let stats = (pair.here.stats(), pair.there.stats());
        assert_eq!((stats.0.calls_out, stats.1.calls_in), (3, 3));
    });
}

#[test]
fn a_local_actor_is_called_in_the_same_way() {
    in_memory(|_, pair| async move {
        let me = pair.there.net().me().node.clone();
        let clerk: Remote<TestActor> = pair.there.remote(&me, "clerk");
        assert_eq!(clerk.send(Echo("hello".into())).await, Ok("hello".into()));
        clerk.do_send(Note { n: 7, padding: vec![] }).unwrap();
        assert_eq!(clerk.send(Take).await, Ok(vec![7]));
        let why = Refusal::NotAccepted;
        let refused = clerk.send(Private).await.unwrap_err();
        assert!(matches!(refused, RemoteError::Refused { reason: w, .. } if w == why), "{refused}");
        let other = clerk.send(OtherEcho { number: 1 }).await.unwrap_err();
        assert!(matches!(other, RemoteError::Version { .. }), "{other}");
        let late = clerk.send(Slow(1000)).deadline(100 * MS).await.unwrap_err();
        assert!(
            matches!(late, RemoteError::Timeout { deadline, .. } if deadline == 100 * MS),
            "{late}"
        );
        let absent: Remote<TestActor> = pair.there.remote(&me, "absent");
        let error = absent.send(Take).await.unwrap_err();
        assert_eq!(error, RemoteError::NoActor { node: me, actor: "absent".into() });
        assert!(pair.there.net().links().is_empty(), "nothing travelled");
    });
}

#[test]
fn the_sender_of_a_message_must_match_its_certificate() {
    over_quic(|pair| async move {
        let guarded = pair.there.publish("guarded", pair.addr.clone());
        guarded.accepts_from::<Take>(|from, _| from.is(&[Role::Head])).accepts_from::<Echo>(
            |from, echo| {
                from.is(&[Role::Node])?;
                from.holds(|peer| peer.node.as_str() == echo.0)
            },
        );
        let there = pair.there.net().me().node.clone();
        let remote: Remote<TestActor> = pair.here.remote(&there, "guarded");
        assert_eq!(remote.send(Echo("a".into())).await, Ok("a".into()));
        let denied = |error: RemoteError, expected: Refusal| {
            let RemoteError::Refused { reason: why, .. } = &error else { panic!("{error}") };
            assert_eq!((*why, error.refused()), (expected, Some(RefuseReason::Identity)));
        };
        denied(remote.send(Echo("b".into())).await.unwrap_err(), Refusal::Identity);
        denied(remote.send(Take).await.unwrap_err(), Refusal::Role);
        assert_eq!(pair.there.stats().denied_in, 2);
        // Local messages are not checked.
        let own: Remote<TestActor> = pair.there.remote(&there, "guarded");
        assert_eq!(own.send(Take).await, Ok(vec![]));
    });
}

on_both_networks!(each_failure_has_its_error);
async fn each_failure_has_its_error(pair: Pair) {
    let node = NodeId::from("b");
    let absent: Remote<TestActor> = pair.here.remote(&node, "absent");
    let error = absent.send(Take).await.unwrap_err();
    assert_eq!(error, RemoteError::NoActor { node: node.clone(), actor: "absent".into() });
    let refused = |why| RemoteError::Refused {
        node: node.clone(),
        actor: "clerk".into(),
        message: "private",
        reason: why,
    };
    assert_eq!(pair.clerk.send(Private).await, Err(refused(Refusal::NotAccepted)));
    let error = pair.clerk.send(OtherEcho { number: 1 }).await.unwrap_err();
    assert!(matches!(&error, RemoteError::Version { message: "echo", .. }), "{error}");
    let unknown: Remote<TestActor> = pair.here.remote(&"nowhere".into(), "clerk");
    let error = unknown.send(Take).await.unwrap_err();
    assert!(matches!(&error, RemoteError::Gone { .. }), "{error}");
    let stopped = pair.clerk.send(Halt).await.unwrap_err();
    let why = Refusal::Stopped;
    assert!(matches!(&stopped, RemoteError::Refused { reason: w, .. } if *w == why), "{stopped}");
    let stopped = pair.clerk.send(Take).await.unwrap_err();
    assert!(matches!(&stopped, RemoteError::Refused { reason: w, .. } if *w == why), "{stopped}");
    assert!(pair.there.unpublish("clerk") && !pair.there.unpublish("clerk"));
    let error = pair.clerk.send(Take).await.unwrap_err();
    assert!(matches!(&error, RemoteError::NoActor { .. }), "{error}");
    pair.here.close();
    assert_eq!(pair.clerk.send(Take).await, Err(RemoteError::Closed));
    assert_eq!(pair.clerk.do_send(Take), Err(RemoteError::Closed));
}

#[test]
fn a_deadline_ends_the_call_on_both_sides() {
    in_memory(|_, pair| async move {
        pair.clerk.send(Take).await.unwrap();
        let start = Instant::now();
        let error = pair.clerk.send(Slow(500)).deadline(100 * MS).await.unwrap_err();
        let (node, actor) = ("b".into(), "clerk".into());
        let expected = RemoteError::Timeout { node, actor, message: "slow", deadline: 100 * MS };
        assert_eq!((error, start.elapsed()), (expected, 100 * MS));
        sleep(SECOND).await;
        // The handler ran, but its reply was not sent.
        assert_eq!(*pair.started.lock().unwrap(), 1);
        let (here, there) = (pair.here.stats(), pair.there.stats());
        assert_eq!((here.timeouts, here.replies_late, there.answers_dropped), (1, 0, 1));
    });
}

on_both_networks!(an_abandoned_call_is_handled_but_its_reply_is_dropped);
async fn an_abandoned_call_is_handled_but_its_reply_is_dropped(pair: Pair) {
    pair.clerk.send(Take).await.unwrap();
    let call = pair.clerk.send(Slow(100)).start();
    sleep(50 * MS).await;
    drop(call);
    drop(pair.clerk.send(Slow(1)));
    sleep(SECOND).await;
    assert_eq!(*pair.started.lock().unwrap(), 1, "a call that was never polled is not sent");
    assert_eq!(pair.here.stats().replies_late, 1);
}

on_both_networks!(messages_of_all_lengths_start_in_the_order_sent);
async fn messages_of_all_lengths_start_in_the_order_sent(pair: Pair) {
    let sizes = [10, 100_000, 20, 5_000_000, 30, 60_000, 60_000, 0, 40];
    let mut calls = Vec::new();
    for (n, size) in sizes.into_iter().enumerate() {
        let note = Note { n: n as u32, padding: vec![1; size] };
        match n % 2 {
            0 => calls.push((size, pair.clerk.send(note).start())),
            _ => pair.clerk.do_send(note).unwrap(),
        }
    }
    for (size, call) in calls {
        assert_eq!(call.await, Ok(size));
    }
    assert_eq!(pair.clerk.send(Take).await, Ok((0..sizes.len() as u32).collect()));
    assert_eq!(pair.there.stats().late_in, 0);
}

#[test]
fn a_call_to_a_lost_node_fails_with_gone() {
    in_memory(|net, pair| async move {
        pair.clerk.send(Take).await.unwrap();
        let call = pair.clerk.send(Slow(60_000)).deadline(120 * SECOND).start();
        let long = Note { n: 1, padding: vec![0; 5_000_000] };
        let long = pair.clerk.send(long).deadline(120 * SECOND).start();
        sleep(2 * SECOND).await;
        net.kill(&"b".into());
        let start = Instant::now();
        let error = call.await.unwrap_err();
        assert!(matches!(error, RemoteError::Gone { .. }), "{error}");
        assert_eq!(start.elapsed(), 15 * SECOND, "the network's idle timeout");
        assert_eq!(long.await, Ok(5_000_000), "it was answered before");
        // The node is gone: the connection attempt fails, and the network returns the call.
        let error = pair.clerk.send(Take).await.unwrap_err();
        assert!(matches!(error, RemoteError::Gone { .. }), "{error}");
        assert_eq!(pair.here.stats().gone, 2);
    });
}

#[test]
fn a_new_incarnation_of_the_caller_gets_no_reply_to_the_old_one() {
    in_memory(|net, pair| async move {
        let call = pair.clerk.send(Slow(1000)).start();
        sleep(100 * MS).await;
        drop(call);
        // In the worst case the ids are the same: the incarnation is greater by one.
        let a = net.join(peer("x", "a", 2)).unwrap();
        let again = hub(&a);
        a.learn(pair.there.net().contact());
        let clerk: Remote<TestActor> = again.remote(&"b".into(), "clerk");
        assert_eq!(clerk.send(Slow(5000)).await, Ok(5000));
        assert_eq!(again.stats().replies_late, 0);
        assert_eq!(pair.there.stats().answers_dropped, 1);
    });
}

on_both_networks!(too_many_messages_in_flight_are_refused);
async fn too_many_messages_in_flight_are_refused(pair: Pair) {
    pair.clerk.send(Take).await.unwrap();
    let calls: Vec<_> =
        (0..PEER_IN_FLIGHT_MAX + 10).map(|_| pair.clerk.send(Slow(1000)).start()).collect();
    let (mut answered, mut busy) = (0, 0);
    for call in calls {
        match call.await {
            Ok(_) => answered += 1,
            Err(RemoteError::Refused { reason: Refusal::Busy, .. }) => busy += 1,
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!((answered, busy), (PEER_IN_FLIGHT_MAX, 10));
    // The permits are free again.
    assert_eq!(pair.clerk.send(Slow(1)).await, Ok(1));
}

on_both_networks!(a_stopped_actors_name_serves_its_successor);
async fn a_stopped_actors_name_serves_its_successor(pair: Pair) {
    pair.clerk.send(Halt).await.unwrap_err();
    assert!(!pair.addr.connected());
    publish(&pair.there, &TestActor::default().start());
    assert_eq!(pair.clerk.send(Echo("again".into())).await, Ok("again".into()));
}

#[test]
fn replies_without_a_result_are_typed_errors() {
    in_memory(|_, pair| async move {
        let end = |code, body: &[u8]| {
            let body = bytes::Bytes::copy_from_slice(body);
            let outcome = caller::CallOutcome::Reply { code, body };
            pair.here.typed_result::<Take>(&"b".into(), "clerk", outcome).unwrap_err()
        };
        let lens = [7u64.to_le_bytes(), 5u64.to_le_bytes()].concat();
        let too_long = |len, cap| RemoteError::TooLong { message: "take", len, cap };
        assert_eq!(end(code::TOO_LONG, &lens), too_long(7, 5));
        assert_eq!(end(code::TOO_LONG, &lens[..9]), too_long(7, 0));
        let refused = end(999, b"");
        let why = Refusal::Other(999);
        assert!(matches!(refused, RemoteError::Refused { reason: w, .. } if w == why), "{refused}");
        assert!(matches!(end(code::DONE, &[0xc1]), RemoteError::Version { .. }));
    });
}

#[test]
fn a_node_that_closes_over_quic_ends_the_calls_to_it() {
    over_quic(|pair| async move {
        let start = Instant::now();
        assert_eq!(pair.clerk.send(Echo("hello".into())).await, Ok("hello".into()));
        let call = pair.clerk.send(Slow(600_000)).start();
        assert_eq!(pair.clerk.send(Echo("again".into())).await, Ok("again".into()));
        pair.there.net().close("leaving").await;
        let error = call.await.unwrap_err();
        assert!(matches!(&error, RemoteError::Gone { .. }), "{error}");
        assert!(start.elapsed() < 20 * SECOND, "notified, not timed out");
    });
}

#[test]
fn golden_bytes() {
    let dir = env!("CARGO_MANIFEST_DIR");
    // The envelope borrows its fields; an owned copy passes through the check, and both must encode
    // alike.
    #[derive(Serialize, Deserialize)]
    struct Owned {
        id: u64,
        actor: String,
        message: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline_ms: Option<u64>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<u64>,
        #[serde(with = "serde_bytes")]
        body: Vec<u8>,
    }
    #[derive(Serialize, Deserialize)]
    struct OwnedReply {
        id: u64,
        code: u16,
        #[serde(with = "serde_bytes")]
        body: Vec<u8>,
    }
    let body = wire::encode(Kind::CALL, &Note { n: 3, padding: vec![1, 2] }).unwrap();
    let envelope = |deadline_ms, after| Envelope {
        id: 1_700_000_000_000_001,
        actor: "clerk",
        message: "note",
        deadline_ms,
        after,
        body: &body,
    };
    let check = |kind, name, envelope: Envelope<'_>| {
        let owned = Owned {
            id: envelope.id,
            actor: envelope.actor.into(),
            message: envelope.message.into(),
            deadline_ms: envelope.deadline_ms,
            after: envelope.after,
            body: envelope.body.into(),
        };
        let bytes = wire::encode(kind, &envelope).unwrap();
        assert_eq!(bytes, wire::encode(kind, &owned).unwrap());
        assert_eq!(wire::decode::<Envelope<'_>>(kind, &bytes).unwrap(), envelope);
        wire::golden::check(dir, kind, name, &owned);
    };
    check(Kind::CALL, "plain", envelope(Some(30_000), None));
    check(Kind::CALL, "after", envelope(Some(30_000), Some(1_700_000_000_000_000)));
    check(Kind::TELL, "plain", envelope(None, None));
    let result = wire::encode(Kind::REPLY, &2usize).unwrap();
    for (name, code, body) in [
        ("done", code::DONE, result.to_vec()),
        ("version", code::VERSION, b"missing field".to_vec()),
        ("too-long", code::TOO_LONG, [7u64.to_le_bytes(), 5u64.to_le_bytes()].concat()),
    ] {
        let owned = OwnedReply { id: 9, code, body: body.clone() };
        let reply = Reply { id: 9, code, body: &body };
        assert_eq!(
            wire::encode(Kind::REPLY, &reply).unwrap(),
            wire::encode(Kind::REPLY, &owned).unwrap()
        );
        wire::golden::check(dir, Kind::REPLY, name, &owned);
    }
}

#[test]
fn unknown_fields_of_a_later_version_are_ignored() {
    #[derive(Serialize)]
    struct FutureMessage<'a> {
        priority: u8,
        id: u64,
        actor: &'a str,
        message: &'a str,
        #[serde(with = "serde_bytes")]
        body: &'a [u8],
    }
    let later =
        FutureMessage { priority: 1, id: 5, actor: "clerk", message: "take", body: &[0x80] };
    let bytes = wire::encode(Kind::TELL, &later).unwrap();
    let read = wire::decode::<Envelope<'_>>(Kind::TELL, &bytes).unwrap();
    assert_eq!((read.id, read.actor, read.deadline_ms, read.body), (5, "clerk", None, &[0x80][..]));
}

#[test]
fn mutated_frames_never_panic() {
    let corpus: Vec<_> = wire::golden::corpus(env!("CARGO_MANIFEST_DIR"))
        .into_iter()
        .filter(|(kind, _)| Hub::KINDS.contains(kind))
        .collect();
    assert!(corpus.len() >= 6);
    let tally = wire::fuzz::run(
        &corpus,
        &[
            (Kind::CALL, |body| call(Kind::CALL, body)),
            (Kind::TELL, |body| call(Kind::TELL, body)),
            (Kind::REPLY, |body| wire::decode::<Reply<'_>>(Kind::REPLY, body).is_ok()),
        ],
        16,
    );
    assert!(tally.accepted > 0 && tally.refused > 0, "{tally:?}");

    fn call(kind: Kind, frame: &[u8]) -> bool {
        let envelope = wire::decode::<Envelope<'_>>(kind, frame);
        envelope.is_ok_and(|envelope| wire::decode::<Note>(Kind::CALL, envelope.body).is_ok())
    }
}
