//! The cost of reading a shared object in each leaf of a tree of tasks, on one thread and on
//! several: readers must not slow each other down.
//!
//! `cargo bench -p springtide-runtime --bench reads [-- N THREADS]`. The tree is that of fib(N), by
//! default 34, with as many threads as the machine has processors. Each figure is the least of
//! five runs in seconds. The last column is the speed-up over one thread.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use springtide_runtime::prelude::*;
use springtide_runtime::work::{PoolConfig, encode_job, solo};

const RUNS: usize = 5;

/// What each leaf of the tree reads.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Read {
    Nothing,
    Versioned(Version),
    Merged,
}

#[derive(Clone, Serialize, Deserialize)]
struct Table(Vec<u64>);

impl Versioned for Table {
    const NAME: &'static str = "table";
    type Delta = ();

    fn apply(&self, (): ()) -> Self {
        self.clone()
    }
}

#[derive(Clone, PartialEq, Serialize, Deserialize)]
struct Least(u64);

impl Merged for Least {
    const NAME: &'static str = "least";

    fn merge(&mut self, other: &Self) {
        self.0 = self.0.min(other.0);
    }
}

#[derive(Clone, Serialize, Deserialize)]
struct Fib {
    n: u32,
    read: Read,
}

impl Task for Fib {
    type Output = u64;
    const NAME: &'static str = "fib";

    fn run(self, cx: &Context) -> Result<u64, Stop> {
        let Self { n, read } = self;
        if n < 2 {
            return Ok(match read {
                Read::Nothing => n.into(),
                Read::Versioned(version) => cx.get::<Table>(0, version)?.0[n as usize],
                Read::Merged => cx.merged::<Least>().map_or(0, |least| least.0) + u64::from(n),
            });
        }
        let (a, b) = cx.join(Self { n: n - 1, read }, Self { n: n - 2, read })?;
        Ok(a + b)
    }
}

#[derive(Clone, Serialize, Deserialize)]
struct Reads {
    n: u32,
    what: u8,
}

impl Job for Reads {
    const NAME: &'static str = "reads";
    const ABOUT: &'static str = "a tree of tasks whose leaves read a shared object";

    fn register(registry: &mut Registry) {
        registry.task::<Fib>().versioned::<Table>().merged::<Least>();
    }

    fn run(self, cx: &Context) -> Result<Outcome, Stop> {
        let version = cx.put(0, Table(vec![0, 1]))?;
        cx.merge(Least(0))?;
        let read = match self.what {
            0 => Read::Nothing,
            1 => Read::Versioned(version),
            _ => Read::Merged,
        };
        let checksum = cx.call(Fib { n: self.n, read })?;
        Ok(Outcome { checksum, result: serde_json::Value::Null })
    }
}

fn least(n: u32, what: u8, threads: usize) -> f64 {
    let once = || {
        let mut registry = Registry::new();
        registry.job::<Reads>();
        let config = PoolConfig { threads, ..PoolConfig::default() };
        let body = encode_job(Reads { n, what }).expect("it serialises");
        let report = solo::run(Arc::new(registry), "reads", body, &config, |_| {});
        let report = report.expect("the job is registered");
        report.outcome.expect("the job ends");
        report.wall.as_secs_f64()
    };
    (0..RUNS).map(|_| once()).fold(f64::INFINITY, f64::min)
}

fn main() {
    let mut numbers = std::env::args().skip(1).filter_map(|arg| arg.parse().ok());
    let n = numbers.next().unwrap_or(34);
    let available = std::thread::available_parallelism().map_or(2, usize::from);
    let threads = numbers.next().map_or(available, |threads| threads as usize);
    println!("{:24} {:>10} {:>10} {:>9}", "in each leaf", "1 thread", threads, "speed-up");
    for (what, name) in ["no read", "a versioned object", "a merged object"].iter().enumerate() {
        let [one, many] = [1, threads].map(|threads| least(n, what as u8, threads));
        println!("{name:24} {one:>10.3} {many:>10.3} {:>9.2}", one / many);
    }
}
