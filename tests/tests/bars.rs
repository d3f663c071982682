//! Bars of reliability that are measured from outside: what an endpoint holds in memory while others do their worst (bar 8), and who
//! shares a grid with other versions (bar 10).
//!
//! Memory has short tests, whose caps are far from what is measured (the machine is shared), and tests of full size, `#[ignore]`d,
//! whose tables go into BENCHMARKS.md:
//!
//! ```text
//! cargo test -p springtide-tests --test all bars::full -- --ignored --nocapture --test-threads 1
//! ```
//!
//! The endpoint is a process of its own (`helper`), so that what is measured is its memory alone. Loopback only.

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
use self::helper::{Helper, Role};
use self::odd::{Good, percentile};

/// Nothing takes longer in a test that ends well.
const LONG: Duration = Duration::from_secs(60);
const MIB: f64 = 1024.0;

/// Callers that have not shown where they are get this many places at most: `UNSHOWN_INCOMING` of the links' endpoint, a quarter of the door's.
const UNSHOWN_LINKS: usize = 64;

fn unshown_door() -> usize {
    JoinLimits::default().at_once.div_ceil(4)
}

/// What an attack did to an endpoint, and to its good peers meanwhile.
struct Stood {
    base_kib: u64,
    most_kib: u64,
    /// Of the good peers' calls, in order.
    took: Vec<Duration>,
    /// Unshown callers that were answered otherwise than with a Retry.
    served: usize,
    retries: usize,
    /// Half-open callers that a Retry was asked of, and that were told to go away.
    followed: usize,
    begun: usize,
    turned_away: usize,
}

impl Stood {
    fn above_mib(&self) -> f64 {
        self.most_kib.saturating_sub(self.base_kib) as f64 / MIB
    }

    fn p99(&self) -> Duration {
        percentile(&self.took, 0.99)
    }

    fn row(&self, what: &str) -> String {
        let Self { base_kib, took, served, retries, followed, begun, turned_away, .. } = self;
        format!(
            "| {what} | {:.1} MiB | +{:.1} MiB | {} calls: p50 {:.0} ms, p99 {:.0} ms, most {:.0} ms | {served} served, {retries} asked to \
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

/// `half_open` handshakes that are begun at so many hosts, shown to be from where they say, and never finished, and `spoofed` first packets from as
/// many addresses; meanwhile good peers call, one after another, `good` times at least.
fn attacked(
    role: Role,
    (half_open, hosts): (usize, usize),
    spoofed: usize,
    good: usize,
    seed: u64,
) -> Stood {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let ca = Ca::ephemeral("bars").unwrap();
        let mut helper = Helper::start(&ca, role);
        let caller = Good::new(&ca, role, helper.at);
        // Whatever the first call allocates for good belongs to the base.
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
        Stood {
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

/// Of so many callers from as many addresses few get more than a short answer, none of those that never finish keeps a good peer out,
/// and the endpoint's memory stays where it was.
#[test]
fn spoofed_and_half_open_callers_cost_little_and_keep_no_peer_out() {
    let stood = attacked(Role::Links, (300, 1), 1000, 1, 1);
    println!("{}", stood.row("links"));
    assert!(stood.above_mib() < 100.0, "{}", stood.row("links"));
    // Those that came before there was a crowd, of both kinds; and the good ones count too for a moment.
    assert!(stood.served <= UNSHOWN_LINKS, "{}", stood.row("links"));
    assert!(stood.retries >= 1000 - UNSHOWN_LINKS, "{}", stood.row("links"));
    assert!(
        stood.turned_away > 0,
        "one host has as many places as it likes: {}",
        stood.row("links")
    );
}

/// The same at the door. Whoever holds its places without saying anything comes from one host, and that gets half of them at most.
#[test]
fn spoofed_and_half_open_callers_at_the_door_cost_little_and_keep_nobody_out() {
    let stood = attacked(Role::Door, (100, 1), 1000, 1, 2);
    println!("{}", stood.row("door"));
    assert!(stood.above_mib() < 100.0, "{}", stood.row("door"));
    assert!(stood.served <= unshown_door(), "{}", stood.row("door"));
    assert!(stood.retries >= 1000 - unshown_door(), "{}", stood.row("door"));
    assert!(stood.turned_away > 0, "one host has all places: {}", stood.row("door"));
}

fn loopback() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}
