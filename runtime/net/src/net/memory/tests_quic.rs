//! The faster form of the network against real endpoints: the same happens, at about the same time.

use tokio::time::Instant;

use super::tests::{Log, MS, SECOND, node, pair, peer, tell};
use super::*;
use crate::net::{Congestion, LinkPolicy, NetConfig, RefuseReason, SendError};
use crate::wire::Kind;

fn both() -> [Wire; 2] {
    [Wire::Frames, Wire::quic()]
}

fn net(seed: u64, wire: Wire) -> MemoryNet {
    MemoryNet::with(seed, MemoryConfig { wire, ..MemoryConfig::default() })
}

async fn until(log: &Log, word: &str) -> Duration {
    let start = Instant::now();
    while log.count(word) == 0 {
        assert!(start.elapsed() < 600 * SECOND, "no {word} in {:?}", log.lines());
        sleep(MS).await;
    }
    start.elapsed()
}

/// How long so many bytes take over this line, once the link is up, where it is as was expected.
async fn transfer(mut wire: Wire, len: usize, line: &LinkProfile) -> Duration {
    if let Wire::Quic(net) = &mut wire {
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

/// What the faster form leaves out is slow start, headers and pacing in whole milliseconds: a tenth where the line is slow, a
/// quarter where a transfer is over in two seconds. Over a line that is both slow and long, slow start overfills the queue once,
/// and what is over in ten round trips takes up to three quarters longer.
#[tokio::test(start_paused = true)]
async fn transfers_take_about_as_long() {
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
async fn a_shared_uplink_is_shared_by_two_clusters() {
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
async fn a_cut_line_is_seen_by_both_and_heals() {
    for wire in both() {
        let net = net(1, wire);
        let ((a, a_log), (b, b_log)) = pair(&net);
        tell(&a, &b, Class::Control, 1, 10).unwrap();
        until(&b_log, "tell 1").await;
        net.partition(&"x".into(), &"y".into(), true);
        // Counted from what was heard last, which may be a sign of life up to five seconds ago; or, in QUIC, from the next sign of
        // life of one's own, where all before it was acknowledged.
        let seen = until(&a_log, "down b").await;
        assert!((10 * SECOND..21 * SECOND).contains(&seen), "{seen:?}");
        until(&b_log, "down a").await;
        sleep(60 * SECOND).await;
        net.partition(&"x".into(), &"y".into(), false);
        tell(&a, &b, Class::Control, 2, 10).unwrap();
        let again = until(&b_log, "tell 2").await;
        assert!(again < SECOND, "{again:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_killed_node_hears_and_says_nothing_and_its_next_life_is_reached() {
    for wire in both() {
        let net = net(1, wire);
        let ((a, a_log), (b, b_log)) = pair(&net);
        tell(&a, &b, Class::Control, 1, 10).unwrap();
        until(&b_log, "tell 1").await;
        assert!(net.kill(&"b".into()));
        let heard = b_log.lines();
        assert_eq!(tell(&b, &a, Class::Control, 9, 1), Err(SendError::Closed));
        let seen = until(&a_log, "down b").await;
        assert!((10 * SECOND..21 * SECOND).contains(&seen), "{seen:?}");
        sleep(60 * SECOND).await;
        assert_eq!(b_log.lines(), heard);
        assert!(matches!(net.join(peer("y", "b", 1)), Err(JoinError::Taken(_))));
        let (b, b_log) = node(&net, peer("y", "b", 2));
        a.learn_life(b.contact(), Incarnation(2));
        tell(&a, &b, Class::Control, 2, 10).unwrap();
        until(&b_log, "tell 2").await;
        assert_eq!(a_log.count("up b 2"), 1);
        // What takes its place is its death, too.
        let (_, c_log) = node(&net, peer("y", "b", 3));
        assert_eq!(tell(&b, &a, Class::Control, 9, 1), Err(SendError::Closed));
        assert_eq!(c_log.lines(), Vec::<String>::new());
    }
}

/// A history with losses, jitter, a cut and a shared rate: its digest.
async fn history(seed: u64, wire: Wire) -> u64 {
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
async fn one_seed_is_one_history() {
    for wire in both() {
        let first = history(1, wire.clone()).await;
        for _ in 0..5 {
            assert_eq!(history(1, wire.clone()).await, first, "{wire:?}");
        }
        assert_ne!(history(2, wire.clone()).await, first, "{wire:?}");
    }
}

/// Closed before it was made, a connection and the other side's requests to show its address kept each other going: thousands
/// of packets, and of how many there were, chance had a say.
#[tokio::test(start_paused = true)]
async fn a_dial_that_is_given_up_at_once_makes_no_storm() {
    let net = net(1, Wire::quic());
    net.set_links(&"x".into(), &"y".into(), &LinkProfile::default().delay(MS));
    let (a, b) = (node(&net, peer("x", "a", 1)), node(&net, peer("y", "b", 1)));
    for _ in 0..10 {
        a.0.learn(b.0.contact());
        tell(&a.0, &b.0, Class::Control, 1, 10).unwrap();
        sleep(MS).await; // the first packet is on its way
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

/// The share of a line's rate that a transfer gets, by what loses and by who controls it.
async fn share(congestion: Congestion, len: usize, line: &LinkProfile) -> f64 {
    let mut config = NetConfig::default();
    config.link.congestion = congestion;
    let took = transfer(Wire::Quic(Box::new(config)), len, line).await.as_secs_f64();
    len as f64 / line.rate.unwrap_or(1) as f64 / took
}

/// Nodes expect a millisecond, and others have filled a queue of a second: first packets that stand in it are not lost.
#[tokio::test(start_paused = true)]
async fn a_link_that_takes_longer_than_expected_is_not_filled_with_copies() {
    let mut config = NetConfig::default();
    config.link.rtt_ms = 1.0;
    let net = net(1, Wire::Quic(Box::new(config)));
    net.set_links(&"x".into(), &"y".into(), &LinkProfile::default().delay(500 * MS));
    let ((a, _), (b, b_log)) = pair(&net);
    tell(&a, &b, Class::Steal, 1, 1).unwrap();
    until(&b_log, "tell").await;
    let bytes: u64 = net.traffic().values().map(|traffic| traffic.bytes).sum();
    println!("{bytes} bytes");
    assert!(bytes < 25_000, "{bytes}");
}

/// Where nothing is lost, or a queue overflows, it is Cubic; where the line loses packets it keeps several times as much. (Figures
/// of faster lines are in BENCHMARKS.)
#[tokio::test(start_paused = true)]
async fn losses_of_the_line_cost_a_controller_that_measures_little() {
    let line = LinkProfile::default().delay(25 * MS).rate(4_000_000).queue(400_000);
    let len = 12_000_000;
    let lossy = line.clone().loss(0.005);
    let shallow = line.clone().queue(60_000);
    let mut told = Vec::new();
    for line in [&line, &shallow, &lossy] {
        let [cubic, measured] = [Congestion::Cubic, Congestion::Measured];
        told.push((share(cubic, len, line).await, share(measured, len, line).await));
    }
    println!("shares of the rate, by cubic and measured: {told:?}");
    for (cubic, measured) in &told[..2] {
        assert!(*measured > 0.9 * cubic, "{told:?}");
    }
    let (cubic, measured) = told[2];
    assert!(measured > 2.0 * cubic, "{told:?}");
}
