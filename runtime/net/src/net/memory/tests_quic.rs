//! Tests of the faster form of the network against real endpoints: the same events at about the
//! same times.

use tokio::time::Instant;

use super::tests::{EventLog, MS, SECOND, node, pair, peer, tell};
use super::*;
use crate::net::{Congestion, LinkPolicy, NetConfig, RefuseReason, SendError};
use crate::wire::Kind;

fn both() -> [LinkUnit; 2] {
    [LinkUnit::Frames, LinkUnit::quic()]
}

fn net(seed: u64, wire: LinkUnit) -> MemoryNet {
    MemoryNet::with(seed, MemoryConfig { wire, ..MemoryConfig::default() })
}

async fn until(log: &EventLog, word: &str) -> Duration {
    let start = Instant::now();
    while log.count(word) == 0 {
        assert!(start.elapsed() < 600 * SECOND, "no {word} in {:?}", log.lines());
        sleep(MS).await;
    }
    start.elapsed()
}

/// The time of a transfer over this line, once the link is up with the correct expectation of the
/// line.
async fn transfer(mut wire: LinkUnit, len: usize, line: &LinkProfile) -> Duration {
    if let LinkUnit::Quic(net) = &mut wire {
        let (rtt_ms, bandwidth) = (2e-3 * line.delay_us as f64, line.rate.unwrap_or(0) as f64);
        net.link = LinkPolicy { rtt_ms, bandwidth, ..net.link };
    }
    let net = net(1, wire);
    net.set_links(&"x".into(), &"y".into(), line);
    let ((a, _), (b, b_log)) = pair(&net);
    tell(&a, &b, Class::Steal, 1, 1).unwrap();
    until(&b_log, "tell").await;
    a.send(&b.me().node, Class::Bulk, Kind::TASK_RESULT, vec![7; len]).unwrap();
    until(&b_log, "task-result").await
}

/// The faster form omits slow start, headers and pacing in whole milliseconds.
///
/// This amounts to a tenth on a slow line, and to a quarter for a transfer of two seconds. On a
/// slow and long line, slow start overfills the queue once, so a transfer of ten round trips takes
/// up to three quarters longer.
#[tokio::test(start_paused = true)]
async fn transfers_take_about_the_same_time() {
    let line = LinkProfile::default().delay(10 * MS).rate(1_000_000);
    for (len, line, bound) in [
        (3_000_000, line.clone(), 1.1),
        (20_000_000, line.clone().rate(10_000_000).queue(1_000_000), 1.25),
        (1_000_000, line.clone().delay(50 * MS), 1.75),
    ] {
        let mut took = Vec::new();
        for wire in both() {
            took.push(transfer(wire, len, &line).await.as_secs_f64());
        }
        println!("{len} bytes at {:?} B/s, {} us: {took:?} s", line.rate, line.delay_us);
        assert!((0.95..bound).contains(&(took[1] / took[0])), "{len} over {line:?}: {took:?} s");
    }
}

#[tokio::test(start_paused = true)]
async fn two_clusters_share_an_uplink() {
    for wire in both() {
        let net = net(1, wire);
        net.set_uplink(&"x".into(), LinkProfile::default().rate(1_000_000));
        let ((a, _), (b, b_log)) = pair(&net);
        let (c, c_log) = node(&net, peer("z", "c", 1));
        a.learn(c.contact());
        for to in [&b, &c] {
            a.send(&to.me().node, Class::Bulk, Kind::TASK_RESULT, vec![7; 1_000_000]).unwrap();
        }
        let start = Instant::now();
        until(&b_log, "task-result").await;
        until(&c_log, "task-result").await;
        let took = start.elapsed().as_secs_f64();
        assert!((2.0..2.5).contains(&took), "{took}");
    }
}

#[tokio::test(start_paused = true)]
async fn both_sides_detect_a_cut_line_and_it_heals() {
    for wire in both() {
        let net = net(1, wire);
        let ((a, a_log), (b, b_log)) = pair(&net);
        tell(&a, &b, Class::Control, 1, 10).unwrap();
        until(&b_log, "tell 1").await;
        net.partition(&"x".into(), &"y".into(), true);
        // Counted from the last message, which may be a keep-alive of up to five seconds ago. In
        // QUIC it may also be this side's next keep-alive, if all earlier packets were
        // acknowledged.
        let detected = until(&a_log, "down b").await;
        assert!((10 * SECOND..21 * SECOND).contains(&detected), "{detected:?}");
        until(&b_log, "down a").await;
        sleep(60 * SECOND).await;
        net.partition(&"x".into(), &"y".into(), false);
        tell(&a, &b, Class::Control, 2, 10).unwrap();
        let again = until(&b_log, "tell 2").await;
        assert!(again < SECOND, "{again:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_killed_node_is_silent_and_its_next_incarnation_is_reached() {
    for wire in both() {
        let net = net(1, wire);
        let ((a, a_log), (b, b_log)) = pair(&net);
        tell(&a, &b, Class::Control, 1, 10).unwrap();
        until(&b_log, "tell 1").await;
        assert!(net.kill(&"b".into()));
        let received = b_log.lines();
        assert_eq!(tell(&b, &a, Class::Control, 9, 1), Err(SendError::Closed));
        let detected = until(&a_log, "down b").await;
        assert!((10 * SECOND..21 * SECOND).contains(&detected), "{detected:?}");
        sleep(60 * SECOND).await;
        assert_eq!(b_log.lines(), received);
        assert!(matches!(net.join(peer("y", "b", 1)), Err(JoinError::Taken(_))));
        let (b, b_log) = node(&net, peer("y", "b", 2));
        a.learn_incarnation(b.contact(), Incarnation(2));
        tell(&a, &b, Class::Control, 2, 10).unwrap();
        until(&b_log, "tell 2").await;
        assert_eq!(a_log.count("up b 2"), 1);
        // The next incarnation kills the former one.
        let (_, c_log) = node(&net, peer("y", "b", 3));
        assert_eq!(tell(&b, &a, Class::Control, 9, 1), Err(SendError::Closed));
        assert_eq!(c_log.lines(), Vec::<String>::new());
    }
}

/// Runs a history with losses, jitter, a cut and a shared rate; returns its digest.
async fn history(seed: u64, wire: LinkUnit) -> u64 {
    let net = net(seed, wire);
    let line = LinkProfile::default().delay(10 * MS).jitter(3 * MS).loss(0.01).rate(1_000_000);
    net.set_links(&"x".into(), &"y".into(), &line);
    let ((a, _), (b, b_log)) = pair(&net);
    let (c, _) = node(&net, peer("x", "c", 1));
    c.learn(b.contact());
    for from in [&a, &c] {
        from.send(&b.me().node, Class::Bulk, Kind::TASK_RESULT, vec![7; 300_000]).unwrap();
        tell(from, &b, Class::Steal, 1, 5000).unwrap();
    }
    sleep(200 * MS).await;
    net.partition(&"x".into(), &"y".into(), true);
    sleep(300 * MS).await;
    net.partition(&"x".into(), &"y".into(), false);
    until(&b_log, "task-result").await;
    sleep(30 * SECOND).await;
    net.digest()
}

#[tokio::test(start_paused = true)]
async fn one_seed_gives_one_history() {
    for wire in both() {
        let first = history(1, wire.clone()).await;
        for _ in 0..5 {
            assert_eq!(history(1, wire.clone()).await, first, "{wire:?}");
        }
        assert_ne!(history(2, wire.clone()).await, first, "{wire:?}");
    }
}

/// If a connection is closed before it is established, its close and the other side's Retry packets
/// trigger each other, thousands of times.
#[tokio::test(start_paused = true)]
async fn an_attempt_that_is_abandoned_immediately_causes_no_packet_storm() {
    let net = net(1, LinkUnit::quic());
    net.set_links(&"x".into(), &"y".into(), &LinkProfile::default().delay(MS));
    let (a, b) = (node(&net, peer("x", "a", 1)), node(&net, peer("y", "b", 1)));
    for _ in 0..10 {
        a.0.learn(b.0.contact());
        tell(&a.0, &b.0, Class::Control, 1, 10).unwrap();
        sleep(MS).await; // the first packet is in transit
        a.0.forget(&b.0.me().node);
        sleep(10 * SECOND).await;
    }
    let traffic = net.traffic()[&("x".into(), "y".into())];
    assert!((10..200).contains(&traffic.frames), "{traffic:?}");
    assert_eq!(b.0.refused().keys().find(|reason| **reason != RefuseReason::Crossed), None);
    a.0.learn(b.0.contact());
    tell(&a.0, &b.0, Class::Control, 2, 10).unwrap();
    until(&b.1, "tell 2").await;
}

/// The fraction of a line's rate that a transfer gets with a congestion control.
async fn share(congestion: Congestion, len: usize, line: &LinkProfile) -> f64 {
    let mut config = NetConfig::default();
    config.link.congestion = congestion;
    let took = transfer(LinkUnit::Quic(Box::new(config)), len, line).await.as_secs_f64();
    len as f64 / line.rate.unwrap_or(1) as f64 / took
}

/// Nodes expect a round trip of a millisecond on a line with a second: waiting first packets must
/// not count as lost.
#[tokio::test(start_paused = true)]
async fn a_longer_line_than_expected_is_not_filled_with_retransmissions() {
    let mut config = NetConfig::default();
    config.link.rtt_ms = 1.0;
    let net = net(1, LinkUnit::Quic(Box::new(config)));
    net.set_links(&"x".into(), &"y".into(), &LinkProfile::default().delay(500 * MS));
    let ((a, _), (b, b_log)) = pair(&net);
    tell(&a, &b, Class::Steal, 1, 1).unwrap();
    until(&b_log, "tell").await;
    let bytes: u64 = net.traffic().values().map(|traffic| traffic.bytes).sum();
    println!("{bytes} bytes");
    assert!(bytes < 25_000, "{bytes}");
}

/// Without loss, or with a queue that overflows, it equals Cubic. With random loss it keeps a
/// multiple of the rate. (BENCHMARKS has measurements of faster lines.)
#[tokio::test(start_paused = true)]
async fn random_losses_cost_the_measuring_controller_little() {
    let line = LinkProfile::default().delay(25 * MS).rate(4_000_000).queue(400_000);
    let len = 12_000_000;
    let lossy = line.clone().loss(0.005);
    let shallow = line.clone().queue(60_000);
    let mut shares = Vec::new();
    for line in [&line, &shallow, &lossy] {
        let [cubic, measured] = [Congestion::Cubic, Congestion::Measured];
        shares.push((share(cubic, len, line).await, share(measured, len, line).await));
    }
    println!("shares of the rate, by cubic and measured: {shares:?}");
    for (cubic, measured) in &shares[..2] {
        assert!(*measured > 0.9 * cubic, "{shares:?}");
    }
    let (cubic, measured) = shares[2];
    assert!(measured > 2.0 * cubic, "{shares:?}");
}
