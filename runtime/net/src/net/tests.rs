//! Tests of the handle over QUIC endpoints on loopback, beyond those of the transport and the bulk
//! layer.

use std::sync::Mutex;

use super::tls::{Ca, EPHEMERAL_VALIDITY};
use super::*;
use crate::wire::DATA_MAX;

#[derive(Default)]
struct RecordingInbox {
    frames: Mutex<Vec<(Kind, Bytes)>>,
    struck: Mutex<Vec<(String, bool)>>,
    downs: Mutex<Vec<String>>,
}

impl NetworkHandler for RecordingInbox {
    fn frame(&self, _from: &Peer, kind: Kind, body: Bytes) {
        self.frames.lock().unwrap().push((kind, body));
    }
    fn down(&self, _peer: &Peer, why: &LinkError) {
        self.downs.lock().unwrap().push(why.text.clone());
    }
    fn violation(&self, _peer: &Peer, why: &str, banned: bool) {
        self.struck.lock().unwrap().push((why.to_owned(), banned));
    }
}

impl RecordingInbox {
    fn all(&self) -> Vec<(Kind, Bytes)> {
        self.frames.lock().unwrap().clone()
    }

    fn struck(&self) -> Vec<(String, bool)> {
        self.struck.lock().unwrap().clone()
    }

    fn downs(&self) -> Vec<String> {
        self.downs.lock().unwrap().clone()
    }
}

fn node(ca: &Ca, name: &str) -> (Net, Arc<RecordingInbox>) {
    let identity = ca.issue(&name.into(), &"c".into(), "node", EPHEMERAL_VALIDITY).unwrap();
    let net = Net::quic(NetConfig::default(), &identity, Incarnation(1)).unwrap();
    (net, Arc::new(RecordingInbox::default()))
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), wait)
        .await
        .unwrap_or_else(|_| panic!("never: {what}"));
}

#[tokio::test]
async fn large_and_small_payloads_arrive_intact_and_small_ones_do_not_wait() {
    let ca = Ca::ephemeral("test").unwrap();
    let (a, at_a) = node(&ca, "a");
    let (b, at_b) = node(&ca, "b");
    a.learn(b.contact());
    let to = b.me().node.clone();
    assert_eq!(
        a.send(&to, Class::Control, Kind::TELL, "early"),
        Err(SendError::Closed),
        "not started"
    );
    a.start(at_a);
    b.start(at_b.clone());

    let large: Bytes =
        (0..32u32 << 18).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    assert_eq!(large.len(), 32 << 20);
    let middle = Bytes::from(vec![7; INLINE_MAX + 1]);
    a.send(&to, Class::Steal, Kind::STEAL_REPLY, large.clone()).unwrap();
    a.send(&to, Class::Control, Kind::CALL, middle.clone()).unwrap();
    for n in 0..100u8 {
        a.send(&to, Class::Steal, Kind::TASK_RESULT, vec![n]).unwrap();
    }
    until("all", || at_b.all().len() == 102).await;
    let all = at_b.all();
    let of =
        |kind| all.iter().filter(|(k, _)| *k == kind).map(|(_, b)| b.clone()).collect::<Vec<_>>();
    assert!(of(Kind::STEAL_REPLY) == [large], "the large payload has changed");
    assert!(of(Kind::CALL) == [middle], "the middle payload has changed");
    assert_eq!(
        of(Kind::TASK_RESULT).iter().map(|b| b[0]).collect::<Vec<_>>(),
        (0..100).collect::<Vec<u8>>()
    );
    let last_small = all.iter().rposition(|(kind, _)| *kind == Kind::TASK_RESULT);
    let large_at = all.iter().position(|(kind, _)| *kind == Kind::STEAL_REPLY);
    assert!(last_small < large_at, "small ones do not wait for a large one");

    let stats = &a.links()[0].classes;
    assert_eq!(stats[&Class::Steal].frames_out, 100);
    assert!(stats[&Class::Bulk].bytes_out >= 32 << 20);

    let cap = Kind::HELLO.info().unwrap().cap;
    let too_long = a.send(&to, Class::Control, Kind::HELLO, vec![0; cap + 1]);
    assert_eq!(too_long, Err(SendError::TooLong { kind: Kind::HELLO, len: cap + 1, cap }));
    const { assert!(DATA_MAX > 32 << 20) };
    a.close("done").await;
    b.close("done").await;
    assert_eq!(a.send(&to, Class::Control, Kind::TELL, "late"), Err(SendError::Closed));
}

#[tokio::test]
async fn closing_completes_a_transfer_under_way() {
    let ca = Ca::ephemeral("test").unwrap();
    let ((a, at_a), (b, at_b)) = (node(&ca, "a"), node(&ca, "b"));
    a.learn(b.contact());
    a.start(at_a);
    b.start(at_b.clone());
    let large = Bytes::from(vec![9; 4 << 20]);
    a.send(&b.me().node, Class::Bulk, Kind::TASK_RESULT, large.clone()).unwrap();
    a.close("done").await;
    until("it is there", || at_b.all().len() == 1).await;
    assert!(at_b.all()[0].1 == large, "it has changed");
    b.close("done").await;
}

#[tokio::test]
async fn a_peer_that_violates_bulk_transfers_is_disconnected_and_then_banned() {
    let ca = Ca::ephemeral("test").unwrap();
    let ((a, at_a), (b, at_b)) = (node(&ca, "a"), node(&ca, "b"));
    b.learn(a.contact());
    a.start(at_a.clone());
    b.start(at_b.clone());
    let to = a.me().node.clone();
    for strike in 1..=VIOLATIONS_MAX {
        let nonsense = Frame::new(Kind::BULK_BEGIN, &[0xc1; 9][..]);
        b.transport().send(&to, Class::Bulk, nonsense).unwrap();
        until("struck", || at_a.struck().len() == strike).await;
        until("down", || at_b.downs().len() == strike).await;
    }
    let struck = at_a.struck();
    assert_eq!(struck.iter().map(|(_, banned)| *banned).collect::<Vec<_>>(), [false, false, true]);
    assert!(struck[0].0.contains("bulk-begin"), "{struck:?}");
    assert!(at_b.downs()[0].contains(&struck[0].0), "{:?}", at_b.downs());
    assert_eq!(a.links()[0].strikes, 3);
    b.send(&to, Class::Control, Kind::TELL, "sorry").unwrap();
    until("refused", || a.refused().contains_key(&RefuseReason::Banned)).await;
    a.send(&b.me().node, Class::Control, Kind::TELL, "no").unwrap();
    until("not dialled", || at_a.downs().len() == VIOLATIONS_MAX + 1).await;
    assert!(at_a.all().is_empty() && at_b.all().is_empty());
    a.close("done").await;
    b.close("done").await;
}
