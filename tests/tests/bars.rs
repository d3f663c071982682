//! Bars of reliability, measured from outside: the memory of an endpoint under attack (bar 8), and
//! grids with several versions (bar 10).
//!
//! Memory has short tests, whose caps are far above the measurements (the machine is shared). The
//! tests of full size are `#[ignore]`d, and their tables are in BENCHMARKS.md:
//!
//! ```text
//! cargo test -p springtide-tests --test all bars::full -- --ignored --nocapture --test-threads 1
//! ```
//!
//! The endpoint is a process of its own (`helper`), so that the measurement covers its memory
//! alone. Loopback only.

mod attack;
mod consumer;
mod full;
mod helper;
pub(crate) mod odd;
mod skew;
mod stored;

use std::net::SocketAddr;
use std::time::Duration;

use springtide_runtime::net::join::JoinLimits;
use springtide_runtime::net::tls::Ca;

use self::attack::Flood;
use self::helper::{Helper, ProcessKind};
use self::odd::{GoodPeer, percentile};

/// No wait of a successful test takes longer.
const LONG: Duration = Duration::from_secs(60);
const MIB: f64 = 1024.0;

/// The maximum number of places for callers with unverified addresses: `UNSHOWN_INCOMING` of the
/// links' endpoint, a quarter of the join endpoint's.
const UNSHOWN_LINKS: usize = 64;

fn unshown_door() -> usize {
    JoinLimits::default().max_callers.div_ceil(4)
}

/// The effect of an attack on an endpoint and on its good peers.
struct AttackResult {
    base_kib: u64,
    most_kib: u64,
    /// The durations of the good peers' calls, sorted.
    took: Vec<Duration>,
    /// Callers with unverified addresses that got another answer than a Retry.
    served: usize,
    retries: usize,
    /// Half-open callers that got a Retry, and that were refused.
    followed: usize,
    begun: usize,
    turned_away: usize,
}

impl AttackResult {
    fn above_mib(&self) -> f64 {
        self.most_kib.saturating_sub(self.base_kib) as f64 / MIB
    }

    fn p99(&self) -> Duration {
        percentile(&self.took, 0.99)
    }

    fn row(&self, what: &str) -> String {
        let Self { base_kib, took, served, retries, followed, begun, turned_away, .. } = self;
        format!(
            "| {what} | {:.1} MiB | +{:.1} MiB | {} calls: p50 {:.0} ms, p99 {:.0} ms, most {:.0} \
             ms | {served} served, {retries} asked to \
             show where they are; of those half open {followed} showed \
             it, {begun} were left half open, {turned_away} were turned away |",
            *base_kib as f64 / MIB,
            self.above_mib(),
            took.len(),
            ms(percentile(took, 0.5)),
            ms(self.p99()),
            ms(percentile(took, 1.0)),
        )
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Attacks an endpoint while good peers call it one after another, at least `good` times.
///
/// The attack has `half_open` handshakes from a number of hosts, with verified addresses, which are
/// never finished. It also has `spoofed` first packets from as many addresses.
fn attacked(
    role: ProcessKind,
    (half_open, hosts): (usize, usize),
    spoofed: usize,
    good: usize,
    seed: u64,
) -> AttackResult {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let ca = Ca::ephemeral("bars").unwrap();
        let mut helper = Helper::start(&ca, role);
        let caller = GoodPeer::new(&ca, role, helper.at);
        // Permanent allocations of the first calls belong to the base.
        for _ in 0..10 {
            caller.call().await;
        }
        let base_kib = helper.look().resident_kib;
        let alpn = role.alpn();
        let flood =
            |half_open, spoofed| Flood { at: helper.at, alpn, half_open, hosts, spoofed, seed };
        let (open, spoof) = (flood(half_open, 0), flood(0, spoofed));
        let threads =
            [std::thread::spawn(move || open.run()), std::thread::spawn(move || spoof.run())];
        let (mut took, mut most_kib) = (Vec::new(), base_kib);
        while threads.iter().any(|thread| !thread.is_finished()) {
            took.push(caller.call().await);
            most_kib = most_kib.max(helper.look().resident_kib);
        }
        assert!(took.len() >= good, "{} calls of good peers meanwhile", took.len());
        let [open, spoof] = threads.map(|thread| thread.join().expect("the attack goes through"));
        most_kib = most_kib.max(helper.look().resident_kib);
        took.sort();
        AttackResult {
            base_kib,
            most_kib,
            took,
            served: spoof.served,
            retries: spoof.retries + open.retries,
            followed: open.followed,
            begun: open.begun,
            turned_away: open.turned_away,
        }
    })
}

/// Few of many callers from as many addresses get more than a short answer.
///
/// No unfinished caller keeps a good peer out, and the endpoint's memory stays the same.
#[test]
fn spoofed_and_half_open_callers_cost_little_and_keep_no_peer_out() {
    let result = attacked(ProcessKind::Links, (300, 1), 1000, 1, 1);
    println!("{}", result.row("links"));
    assert!(result.above_mib() < 100.0, "{}", result.row("links"));
    // Those that arrive before there are many, of both kinds; the good ones count too for a moment.
    assert!(result.served <= UNSHOWN_LINKS, "{}", result.row("links"));
    assert!(result.retries >= 1000 - UNSHOWN_LINKS, "{}", result.row("links"));
    assert!(
        result.turned_away > 0,
        "one host has as many places as it likes: {}",
        result.row("links")
    );
}

/// The same at the join endpoint. Callers that hold its places in silence come from one host, which
/// gets half of them at most.
#[test]
fn spoofed_and_half_open_callers_at_the_join_endpoint_keep_no_peer_out() {
    let result = attacked(ProcessKind::Door, (100, 1), 1000, 1, 2);
    println!("{}", result.row("door"));
    assert!(result.above_mib() < 100.0, "{}", result.row("door"));
    assert!(result.served <= unshown_door(), "{}", result.row("door"));
    assert!(result.retries >= 1000 - unshown_door(), "{}", result.row("door"));
    assert!(result.turned_away > 0, "one host has all places: {}", result.row("door"));
}

fn loopback() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}
