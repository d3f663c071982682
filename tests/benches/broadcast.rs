//! Broadcast of a large shared object to three clusters of four nodes, over links with a 20 ms
//! round trip and 1 MB/s.
//!
//! It measures the bytes over the links, and the delay of simultaneous steals.
//!
//! `cargo bench -p springtide-tests --bench broadcast [-- MEGABYTES]`. Real engines run on the
//! in-memory network, in virtual time: the figures are the same on every machine. Leaves take
//! modelled time. One tree is computed repeatedly, during the transfer and, in a run of its own,
//! without it.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use springtide_runtime::id::ClusterId;
use springtide_runtime::meter::LatencySummary;
use springtide_runtime::net::{LinkProfile, MemoryNet};
use springtide_runtime::share::{ObjectNeed, Version, Versioned};
use springtide_runtime::work::{Context, Job, Outcome, Registry, Stop, Task};
use springtide_tests::modelled::Modelled;
use springtide_tests::virtual_grid::{RunOutcome, VirtualGridConfig, run_with};
use tokio::time::Instant;

const CLUSTERS: [&str; 3] = ["c0", "c1", "c2"];
const ROUND_TRIP: Duration = Duration::from_millis(20);
const RATE: u64 = 1_000_000;
/// Virtual time of the run without the object.
const WITHOUT: Duration = Duration::from_secs(60);
/// The bars: bytes into a cluster over the object's, and p99 with the transfer over that without.
const BYTES_BAR: f64 = 1.05;
const DELAY_BAR: f64 = 3.0;

/// Whether the transfer (or the run without one) is over. Statics, for the job's root runs on a
/// thread of this process.
static OVER: AtomicBool = AtomicBool::new(false);
static TOOK: Mutex<Duration> = Mutex::new(Duration::ZERO);
static TRAFFIC: Mutex<Traffic> = Mutex::new(Traffic::new());

/// Payload bytes by pair of clusters, from and to.
type Traffic = BTreeMap<(String, String), u64>;

/// Incompressible bytes, a function of their number.
#[derive(Serialize, Deserialize)]
struct Blob(#[serde(with = "serde_bytes")] Vec<u8>);

impl Blob {
    fn new(len: usize) -> Self {
        let mut x = 0x9e37_79b9_7f4a_7c15u64;
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            bytes.extend_from_slice(&x.to_le_bytes());
        }
        bytes.truncate(len);
        Self(bytes)
    }

    fn sum(&self) -> u64 {
        self.0.iter().fold(0, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)))
    }
}

impl Versioned for Blob {
    const NAME: &'static str = "blob";
    type Delta = ();

    fn apply(&self, (): ()) -> Self {
        Self(self.0.clone())
    }
}

/// Reads the object on the node that runs it.
#[derive(Serialize, Deserialize)]
struct Check(Version);

impl Task for Check {
    type Output = u64;
    const NAME: &'static str = "check";

    fn run(self, cx: &Context) -> Result<u64, Stop> {
        cx.spend_modelled_time(Duration::from_millis(300))?;
        Ok(cx.get::<Blob>(0, self.0)?.sum())
    }

    fn needs(&self) -> Vec<ObjectNeed> {
        vec![ObjectNeed::of::<Blob>(0, self.0)]
    }
}

/// Publishes an object of this number of bytes, if any, and computes until the network has carried
/// it.
#[derive(Clone, Serialize, Deserialize)]
struct Spread(usize);

impl Job for Spread {
    const NAME: &'static str = "spread";
    const ABOUT: &'static str = "a large object during steals";

    fn register(registry: &mut Registry) {
        Modelled::register(registry);
        registry.task::<Check>();
        registry.versioned::<Blob>();
    }

    fn run(self, cx: &Context) -> Result<Outcome, Stop> {
        let published = match self.0 {
            0 => None,
            len => {
                let blob = Blob::new(len);
                let sum = blob.sum();
                Some((cx.put(0, blob)?, sum))
            }
        };
        while !OVER.load(Ordering::Acquire) {
            Modelled { rounds: 1, leaves: 512, leaf_us: 14_000 }.run(cx)?;
        }
        if let Some((version, sum)) = published {
            for read in cx.join_all((0..48).map(|_| Check(version)))? {
                assert_eq!(read, sum, "a node reads what was published");
            }
        }
        Ok(Outcome { checksum: 0, result: serde_json::Value::Null })
    }
}

/// Sets the links, and waits until every other cluster has got the object (or the time without one
/// is over).
fn meddle(network: MemoryNet, len: usize) {
    let link = LinkProfile::default().delay(ROUND_TRIP / 2).rate(RATE);
    for (at, a) in CLUSTERS.iter().enumerate() {
        for b in &CLUSTERS[at + 1..] {
            network.set_links(&ClusterId::from(*a), &ClusterId::from(*b), &link);
        }
    }
    actix_rt::spawn(async move {
        let start = Instant::now();
        loop {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let traffic: BTreeMap<_, _> = network
                .traffic()
                .into_iter()
                .map(|((from, to), traffic)| ((from.to_string(), to.to_string()), traffic.bytes))
                .collect();
            let carried = |to: &str| {
                let pair = (CLUSTERS[0].to_owned(), to.to_owned());
                traffic.get(&pair).is_some_and(|bytes| *bytes >= len as u64)
            };
            let over = match len {
                0 => start.elapsed() >= WITHOUT,
                _ => CLUSTERS[1..].iter().all(|cluster| carried(cluster)),
            };
            if over && !OVER.swap(true, Ordering::AcqRel) {
                *TOOK.lock().expect("sound") = start.elapsed();
            }
            *TRAFFIC.lock().expect("sound") = traffic;
        }
    });
}

/// The bytes that entered a cluster from others.
fn into(traffic: &Traffic, cluster: &str) -> u64 {
    let wide = traffic.iter().filter(|((from, to), _)| from != to && to == cluster);
    wide.map(|(_, bytes)| bytes).sum()
}

/// Returns the traffic, and the summaries of wide-area and of local steals.
fn measure(len: usize, seed: u64) -> (Traffic, LatencySummary, LatencySummary) {
    let shape =
        VirtualGridConfig { round_trip: ROUND_TRIP, ..VirtualGridConfig::of(&[4, 4, 4], 1, seed) };
    OVER.store(false, Ordering::Release);
    let RunOutcome { outcome, latencies, .. } =
        run_with(&shape, Spread(len), move |network| meddle(network, len));
    outcome.expect("no failure");
    let traffic = std::mem::take(&mut *TRAFFIC.lock().expect("sound"));
    let wide = latencies.steal_wide.summary().expect("there were wide steals");
    let local = latencies.steal_local.summary().expect("there were local steals");
    (traffic, wide, local)
}

fn main() {
    let megabytes = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(100);
    let len = megabytes * 1_000_000;
    let mut met = true;
    for seed in 1..=3 {
        let (_, without, local_without) = measure(0, seed);
        let (traffic, with, local_with) = measure(len, seed);
        println!(
            "seed {seed}: {megabytes} MB to 3 clusters of 4 in {:.1} s",
            TOOK.lock().expect("sound").as_secs_f64()
        );
        for ((from, to), bytes) in traffic.iter().filter(|((from, to), _)| from != to) {
            println!("  {from} -> {to}: {bytes:>11} bytes");
        }
        for cluster in &CLUSTERS[1..] {
            let ratio = into(&traffic, cluster) as f64 / len as f64;
            met &= ratio <= BYTES_BAR;
            println!(
                "  into {cluster}: {ratio:.4} of the object (bar: at most {BYTES_BAR}; all payload \
                 counts)"
            );
        }
        for (name, without, with) in
            [("wide", &without, &with), ("local", &local_without, &local_with)]
        {
            println!(
                "  {name} steals: p50 {:.1} ms, p99 {:.1} ms of {} without; p50 {:.1} ms, p99 \
                 {:.1} ms of {} during the transfer",
                without.p50_us as f64 / 1e3,
                without.p99_us as f64 / 1e3,
                without.count,
                with.p50_us as f64 / 1e3,
                with.p99_us as f64 / 1e3,
                with.count,
            );
        }
        let delay = with.p99_us as f64 / without.p99_us as f64;
        met &= delay <= DELAY_BAR;
        println!("  p99 of wide steals, with / without: {delay:.2} (bar: at most {DELAY_BAR})");
    }
    println!("{}", if met { "bars met" } else { "A BAR WAS MISSED" });
}
