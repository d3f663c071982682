//! The bars at full size. These are measurements, not run by default; run them alone on the
//! machine:
//! `cargo test -p springtide-tests --test all bars::full -- --ignored --nocapture --test-threads 1`

use std::time::Duration;

use super::attacked;
use super::consumer::{slow_actor, stalled_peers};
use super::helper::ProcessKind;

#[test]
#[ignore = "it measures"]
fn a_thousand_half_open_and_ten_thousand_spoofed() {
    println!("| endpoint | base | most above | good peers meanwhile | attackers |");
    for (what, role, hosts, seed) in [
        ("links, half-open callers at one host", ProcessKind::Links, 1, 11),
        ("links, at eight hosts", ProcessKind::Links, 8, 12),
        ("door, at one host", ProcessKind::Door, 1, 13),
    ] {
        let stood = attacked(role, (1000, hosts), 10_000, 100, seed);
        println!("{}", stood.row(what));
        assert!(stood.above_mib() < 100.0);
        assert!(stood.p99() < Duration::from_secs(1));
    }
}

#[test]
#[ignore = "it measures"]
fn consumers_that_stall_for_a_minute() {
    println!("| who stalls | links | base | most above | slope | back-pressure |");
    let stall = Duration::from_secs(60);
    for stalled in [stalled_peers(4, stall), slow_actor(4, stall)] {
        println!("{}", stalled.row());
        assert!(stalled.above_mib() < stalled.links as f64 * 16.0, "{}", stalled.row());
        assert!(stalled.slope_mib() < 1.0, "{}", stalled.row());
    }
}
