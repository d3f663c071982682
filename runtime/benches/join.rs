//! The cost of a join: fib(35) by `Context::join` and by `rayon::join`, on one thread and on two.
//!
//! `cargo bench -p springtide-runtime --bench join [-- PAIRS]`. The runs are paired and interleaved
//! in one process. It prints the median of the pairs' ratios with their quartiles, and the ratio of
//! the best times. On a shared machine, other programs lengthen some runs and shorten none.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use springtide_runtime::work::{
    Context, Job, Outcome, PoolConfig, Registry, Stop, Task, encode_job, solo,
};

const N: u32 = 35;
const PAIRS: usize = 15;

#[derive(Serialize, Deserialize)]
struct Fib(u32);

impl Task for Fib {
    type Output = u64;
    const NAME: &'static str = "fib";

    fn run(self, cx: &Context) -> Result<u64, Stop> {
        if self.0 < 2 {
            return Ok(self.0.into());
        }
        let (a, b) = cx.join(Fib(self.0 - 1), Fib(self.0 - 2))?;
        Ok(a + b)
    }
}

#[derive(Serialize, Deserialize)]
struct Root(u32);

impl Job for Root {
    const NAME: &'static str = "fib-root";
    const ABOUT: &'static str = "fib";

    fn register(registry: &mut Registry) {
        registry.task::<Fib>();
    }

    fn run(self, cx: &Context) -> Result<Outcome, Stop> {
        let checksum = cx.call(Fib(self.0))?;
        Ok(Outcome { checksum, result: serde_json::Value::Null })
    }
}

fn springtide_time(registry: &Arc<Registry>, threads: usize) -> Duration {
    let config = PoolConfig { threads, ..PoolConfig::default() };
    let body = encode_job(Root(N)).expect("a number encodes");
    let report = solo::run(registry.clone(), "fib-root", body, &config, |_| {}).expect("runs");
    assert_eq!(report.outcome.expect("no failure").checksum, 9_227_465);
    report.wall
}

fn fib_rayon(n: u32) -> u64 {
    if n < 2 {
        return n.into();
    }
    let (a, b) = rayon::join(|| fib_rayon(n - 1), || fib_rayon(n - 2));
    a + b
}

fn rayon_time(pool: &rayon::ThreadPool) -> Duration {
    pool.install(|| {
        let start = Instant::now();
        assert_eq!(black_box(fib_rayon(black_box(N))), 9_227_465);
        start.elapsed()
    })
}

fn fib(n: u32) -> u64 {
    if n < 2 { n.into() } else { fib(black_box(n - 1)) + fib(black_box(n - 2)) }
}

/// The quantile of the values at this fraction.
fn quantile(values: impl Iterator<Item = f64>, fraction: f64) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * fraction).round() as usize]
}

fn main() {
    let pairs = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(PAIRS);
    let mut registry = Registry::new();
    registry.job::<Root>();
    let registry = Arc::new(registry);
    let joins = 14_930_351.0;
    let start = Instant::now();
    assert_eq!(fib(N), 9_227_465);
    println!("sequential calls: {:.2} ns a call", start.elapsed().as_secs_f64() * 1e9 / joins);
    for (threads, limit) in [(1, 0.6), (2, 1.0)] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
        let pairs: Vec<(f64, f64)> = (0..pairs)
            .map(|_| {
                (springtide_time(&registry, threads).as_secs_f64(), rayon_time(&pool).as_secs_f64())
            })
            .collect();
        let ns = |side: fn(&(f64, f64)) -> f64, fraction| {
            quantile(pairs.iter().map(side), fraction) * 1e9 / joins
        };
        let ratio = |fraction| {
            quantile(pairs.iter().map(|(springtide_time, rayon)| springtide_time / rayon), fraction)
        };
        println!(
            "fib({N}), {threads} thread(s), {} pairs: Springtide {:.2} ns a join (best {:.2}), \
             rayon {:.2} (best {:.2}); ratio {:.2} [{:.2} to {:.2}], of the best {:.2} \
             (limit: at most {limit})",
            pairs.len(),
            ns(|p| p.0, 0.5),
            ns(|p| p.0, 0.0),
            ns(|p| p.1, 0.5),
            ns(|p| p.1, 0.0),
            ratio(0.5),
            ratio(0.25),
            ratio(0.75),
            ns(|p| p.0, 0.0) / ns(|p| p.1, 0.0),
        );
    }
}
