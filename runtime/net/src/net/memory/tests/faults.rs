//! Tests of stopped processes and repeated messages.

use super::*;
use crate::net::memory::RepeatRule;

#[tokio::test(start_paused = true)]
async fn a_resumed_process_receives_all_messages_in_order() {
    let net = MemoryNet::new(1);
    let ((a, a_log), (b, b_log)) = pair(&net);
    tell(&a, &b, Class::Control, 1, 1).unwrap();
    sleep(100 * MS).await;
    assert!(net.stop(&"b".into()) && !net.stop(&"b".into()));
    for head in 2..5 {
        tell(&a, &b, Class::Control, head, 1).unwrap();
    }
    sleep(5 * SECOND).await;
    assert_eq!(b_log.count("tell"), 1);
    assert!(net.resume(&"b".into()) && !net.resume(&"b".into()));
    sleep(MS).await;
    let received: Vec<String> = (1..5).map(|head| format!("tell {head} 1 from a")).collect();
    assert_eq!(b_log.lines()[1..], received);
    assert_eq!((a_log.count("down"), b_log.count("down")), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_process_that_was_stopped_too_long_gets_new_links() {
    let net = MemoryNet::new(1);
    let ((a, a_log), (b, b_log)) = pair(&net);
    tell(&a, &b, Class::Control, 1, 1).unwrap();
    sleep(100 * MS).await;
    net.stop(&"b".into());
    sleep(16 * SECOND).await;
    assert_eq!((a_log.count("down"), b_log.count("down")), (1, 0));
    // The process is called and does not reply.
    tell(&a, &b, Class::Control, 2, 1).unwrap();
    sleep(11 * SECOND).await;
    assert_eq!((a_log.count("down"), a_log.count("back")), (2, 1));
    net.resume(&"b".into());
    sleep(SECOND).await;
    assert_eq!(b_log.count("down b"), 0);
    assert!(b_log.count("down a") >= 1, "{:?}", b_log.lines());
    tell(&b, &a, Class::Control, 3, 1).unwrap();
    tell(&a, &b, Class::Control, 4, 1).unwrap();
    sleep(SECOND).await;
    assert_eq!(a_log.lines().last().unwrap(), "tell 3 1 from b");
    assert_eq!(b_log.lines().last().unwrap(), "tell 4 1 from a");
    assert_eq!(b_log.count("tell 2"), 0, "it has returned");
    let counts = net.fault_counts();
    assert_eq!((counts.stops, counts.long_stops, counts.stale_deliveries), (1, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_killed_stopped_process_leaves_nothing_to_its_next_incarnation() {
    let net = MemoryNet::new(1);
    let ((a, _), (b, b_log)) = pair(&net);
    tell(&a, &b, Class::Control, 1, 1).unwrap();
    sleep(100 * MS).await;
    net.stop(&"b".into());
    tell(&a, &b, Class::Control, 2, 1).unwrap();
    sleep(100 * MS).await;
    net.kill(&"b".into());
    let (_b, next_log) = node(&net, peer("y", "b", 2));
    assert!(!net.resume(&"b".into()));
    sleep(SECOND).await;
    assert_eq!((b_log.count("tell 2"), next_log.count("tell 2")), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn selected_kinds_are_repeated_also_over_the_next_link() {
    let net = MemoryNet::new(1);
    let ((a, _), (b, b_log)) = pair(&net);
    let (x, y) = (a.me().cluster.clone(), b.me().cluster.clone());
    let repeat = |kind| RepeatRule { fraction: 1.0, max_delay: 30 * SECOND, kinds: vec![kind] };
    net.repeat(&x, &y, Some(repeat(Kind::CALL)));
    tell(&a, &b, Class::Control, 1, 1).unwrap();
    sleep(60 * SECOND).await;
    assert_eq!(b_log.count("tell 1"), 1, "not of this kind");
    net.repeat(&x, &y, Some(repeat(Kind::TELL)));
    for head in 2..12 {
        tell(&a, &b, Class::Control, head, 1).unwrap();
    }
    sleep(100 * MS).await;
    net.repeat(&x, &y, None);
    net.partition(&x, &y, true);
    sleep(31 * SECOND).await;
    net.partition(&x, &y, false);
    tell(&a, &b, Class::Control, 20, 1).unwrap();
    sleep(5 * SECOND).await;
    assert!(b_log.count("down") >= 1);
    for head in 2..12 {
        assert_eq!(b_log.count(&format!("tell {head} ")), 2, "{:?}", b_log.lines());
    }
    assert_eq!((b_log.count("tell 20"), net.fault_counts().repeated), (1, 10));
}

#[tokio::test(start_paused = true)]
async fn streams_of_a_link_overtake_each_other_if_delays_vary() {
    for seed in 1..=3 {
        let net = MemoryNet::new(seed);
        let jittery = LinkProfile::default().delay(50 * MS).jitter(50 * MS).reorder(true);
        net.set_links(&"x".into(), &"y".into(), &jittery);
        let ((a, _), (b, b_log)) = pair(&net);
        for i in 0..100 {
            tell(&a, &b, [Class::Control, Class::Steal][i % 2], i as u8, 10).unwrap();
            sleep(MS).await;
        }
        sleep(SECOND).await;
        assert!(net.fault_counts().overtaking > 10, "seed {seed}: {:?}", net.fault_counts());
        assert_eq!(b_log.count("tell"), 100);
    }
}

/// Both ends of a link lose it at different times, and connect while one direction is cut. Each may
/// defer the other's attempt in favour of its own, which the other has forgotten.
#[tokio::test(start_paused = true)]
async fn two_ends_connect_again_after_a_cut_of_one_direction() {
    for cut_ms in (100..3000).step_by(200) {
        let config = MemoryConfig { idle_timeout: 400 * MS, ..MemoryConfig::default() };
        let net = MemoryNet::with(1, config);
        let ((a, a_log), (b, b_log)) = pair(&net);
        let line = LinkProfile::default().delay(43 * MS);
        let (x, y) = ("x".into(), "y".into());
        net.set_links(&x, &y, &line);
        net.set_link(&x, &y, line.clone().up(false));
        let exchange_messages = async |millis: u32| {
            for _ in 0..millis / 50 {
                let _ = tell(&b, &a, Class::Control, 1, 10);
                sleep(50 * MS).await;
                let _ = tell(&a, &b, Class::Control, 2, 10);
            }
        };
        exchange_messages(cut_ms).await;
        net.set_link(&x, &y, line);
        // Each attempt may take the whole connection timeout.
        exchange_messages(30_000).await;
        let (a_received, b_received) = (a_log.count("tell"), b_log.count("tell"));
        exchange_messages(10_000).await;
        assert!(a_log.count("tell") >= a_received + 190, "{cut_ms}: {:?}", a_log.lines());
        assert!(b_log.count("tell") >= b_received + 190, "{cut_ms}: {:?}", b_log.lines());
    }
}
