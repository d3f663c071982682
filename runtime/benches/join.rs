//! What a join costs: fib(35) by `Context::join` against the same program by `rayon::join`, on one thread and on two.
//!
//! Paired and interleaved in one process; prints each side's median and the median of the pairs' ratios.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use springtide_runtime::work::{
    Context, Job, Outcome, PoolConfig, Registry, Stop, Task, encode_job, solo,
};

const N: u32 = 35;
const ROUNDS: usize = 7;

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

fn ours(registry: &Arc<Registry>, threads: usize) -> Duration {
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

fn rayons(pool: &rayon::ThreadPool) -> Duration {
    pool.install(|| {
        let start = Instant::now();
        assert_eq!(black_box(fib_rayon(black_box(N))), 9_227_465);
        start.elapsed()
    })
}

fn fib(n: u32) -> u64 {
    if n < 2 { n.into() } else { fib(black_box(n - 1)) + fib(black_box(n - 2)) }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let mut registry = Registry::new();
    registry.job::<Root>();
    let registry = Arc::new(registry);
    let joins = 14_930_351.0;
    let start = Instant::now();
    assert_eq!(fib(N), 9_227_465);
    println!("sequential calls: {:.2} ns a call", start.elapsed().as_secs_f64() * 1e9 / joins);
    for threads in [1, 2] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
        let pairs: Vec<(f64, f64)> = (0..ROUNDS)
            .map(|_| (ours(&registry, threads).as_secs_f64(), rayons(&pool).as_secs_f64()))
            .collect();
        let of = |side: fn(&(f64, f64)) -> f64| median(pairs.iter().map(side).collect());
        println!(
            "fib({N}), {threads} thread(s): ours {:.2} ns a join, rayon {:.2} ns a join, ratio {:.2} (median of {ROUNDS} pairs)",
            of(|p| p.0) * 1e9 / joins,
            of(|p| p.1) * 1e9 / joins,
            of(|p| p.0 / p.1),
        );
    }
}
