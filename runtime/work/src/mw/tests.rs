//! Programs on pools without a network: results are independent of the number of threads, failures
//! name the task, and saved states continue.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::*;
use crate::wire;
use crate::work::{
    Checkpoint, Context, Failure, Job, Outcome, PoolConfig, ProgressReport, Registry, SavedRoot,
    Stop, encode_job, solo,
};

/// A program of iterations. In each, tasks sum a function of the last iterate over blocks of
/// numbers, and the next iterate follows from all sums.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Sums {
    iterations: u32,
    tasks: u32,
    blocks: u32,
    block_us: u64,
    fails: Option<Misuse>,
    isolate: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
enum Misuse {
    Error,
    Panic,
    Idle,
    Empty,
    Twice,
}

const SUMS: Sums =
    Sums { iterations: 5, tasks: 11, blocks: 3, block_us: 200, fails: None, isolate: false };

/// The number of workers created, in all tests.
static CREATED: AtomicU32 = AtomicU32::new(0);

struct SumsDriver {
    job: Sums,
    iteration: u32,
    iterate: f64,
    sums: Vec<Option<f64>>,
}

impl SumsDriver {
    fn submit(&mut self, master: &mut Master<'_, Sums>) -> Result<(), Stop> {
        let job = &self.job;
        if job.fails == Some(Misuse::Idle) {
            return Ok(());
        }
        self.sums = vec![None; job.tasks as usize];
        let mut tasks: Vec<TaskSpec<u32>> = (0..job.tasks)
            .map(|id| TaskSpec { id, units: 30.0, blocks: job.blocks, work: id * 1000 })
            .collect();
        match job.fails {
            Some(Misuse::Empty) => tasks.clear(),
            Some(Misuse::Twice) => tasks[1].id = 0,
            _ => {}
        }
        master.submit(Batch { common: self.iterate, tasks }).map(drop)
    }
}

impl Driver<Sums> for SumsDriver {
    fn start(&mut self, master: &mut Master<'_, Sums>) -> Result<(), Stop> {
        if self.job.isolate {
            master.isolate(true);
        }
        self.submit(master)
    }

    fn task_completed(
        &mut self,
        batch: BatchId,
        task: u32,
        outputs: Vec<f64>,
        master: &mut Master<'_, Sums>,
    ) -> Result<(), Stop> {
        assert!(batch.number() <= u64::from(self.job.iterations));
        assert_eq!(outputs.len(), self.job.blocks as usize);
        assert!(self.sums[task as usize].replace(outputs.iter().sum()).is_none());
        if self.sums.iter().any(Option::is_none) {
            return Ok(());
        }
        // In order of task numbers, so that the bits are always the same.
        self.iterate = self.sums.iter().flatten().sum::<f64>().sin();
        self.iteration += 1;
        master.cx().iteration_done();
        master.checkpoint();
        if self.iteration < self.job.iterations {
            let reported = |dealing| master.forecast(&[30.0; 4], dealing);
            let all =
                [DispatchRule::Earliest, DispatchRule::Equal, DispatchRule::Queue].map(reported);
            assert!(all.iter().all(|reported| reported.is_some_and(|reported| reported.used > 0)));
            assert!(!master.workers().is_empty() && master.last_plan().workers > 0);
            self.submit(master)?;
        }
        Ok(())
    }

    fn outcome(&mut self) -> Option<Outcome> {
        let (checksum, result) = (self.iterate.to_bits(), serde_json::Value::Null);
        (self.iteration == self.job.iterations).then_some(Outcome { checksum, result })
    }

    fn state(&self) -> (u32, f64) {
        (self.iteration, self.iterate)
    }
}

impl Program for Sums {
    const NAME: &'static str = "sums.worker";
    type Common = f64;
    type Work = u32;
    type Output = f64;
    type Worker = u32;
    type Driver = SumsDriver;
    type State = (u32, f64);

    fn worker(&self, _: &Context) -> Result<u32, Stop> {
        CREATED.fetch_add(1, Ordering::Relaxed);
        Ok(0)
    }

    fn driver(&self, saved: Option<(u32, f64)>, _: &Context) -> Result<SumsDriver, Stop> {
        let (iteration, iterate) = saved.unwrap_or((0, 0.5));
        Ok(SumsDriver { job: self.clone(), iteration, iterate, sums: Vec::new() })
    }

    fn execute(
        &self,
        worker: &mut u32,
        common: &f64,
        task: u32,
        work: &u32,
        block: u32,
        cx: &Context,
    ) -> Result<f64, Stop> {
        *worker += 1;
        assert_eq!(*work, task * 1000);
        if (task, block) == (3, 1) {
            match self.fails {
                Some(Misuse::Error) => return Err(Stop::fail("out of cheese")),
                Some(Misuse::Panic) => panic!("out of cheese"),
                _ => {}
            }
        }
        cx.spend_modelled_time(Duration::from_micros(self.block_us))?;
        let numbers = (0..100).map(|n| f64::from(work + block * 100 + n));
        Ok(numbers.map(|n| (n * common).cos() / 3.0).sum())
    }
}

impl Job for Sums {
    const NAME: &'static str = "sums";
    const ABOUT: &'static str = "for tests";

    fn register(registry: &mut Registry) {
        register::<Self>(registry);
    }

    fn run(self, cx: &Context) -> Result<Outcome, Stop> {
        run(self, cx)
    }

    fn resume(self, state: Checkpoint, cx: &Context) -> Result<Outcome, Stop> {
        resume(self, state, cx)
    }
}

type RunResult = (Result<Outcome, Failure>, Vec<ProgressReport>);

fn solo(job: Sums, threads: usize, saved: Option<SavedRoot>) -> RunResult {
    let mut registry = Registry::new();
    registry.job::<Sums>();
    let notes = Arc::new(Mutex::new(Vec::new()));
    let reported = notes.clone();
    let note = move |note| reported.lock().unwrap().push(note);
    let config = PoolConfig { threads, checkpoint_rate: 0, ..PoolConfig::default() };
    let body = encode_job(job).unwrap();
    let registry = Arc::new(registry);
    let report = match saved {
        Some(saved) => solo::resume(registry, "sums", body, saved, &config, note),
        None => solo::run(registry, "sums", body, &config, note),
    };
    let outcome = report.unwrap().outcome;
    let notes = notes.lock().unwrap().clone();
    (outcome, notes)
}

/// The same computation without the runtime.
fn answer(job: &Sums) -> u64 {
    let mut iterate = 0.5f64;
    for _ in 0..job.iterations {
        let task = |task: u32| -> f64 {
            let block = |block: u32| -> f64 {
                let numbers = (0..100).map(|n| f64::from(task * 1000 + block * 100 + n));
                numbers.map(|n| (n * iterate).cos() / 3.0).sum()
            };
            (0..job.blocks).map(block).sum()
        };
        iterate = (0..job.tasks).map(task).sum::<f64>().sin();
    }
    iterate.to_bits()
}

#[test]
fn every_number_of_workers_gives_the_same_bits() {
    let right = answer(&SUMS);
    for threads in 1..=5 {
        for blocks in [1, 3] {
            let job = Sums { blocks, ..SUMS };
            let (outcome, notes) = solo(job.clone(), threads, None);
            assert_eq!(outcome.unwrap().checksum, answer(&job), "{threads} threads");
            let done = notes.iter().filter(|note| **note == ProgressReport::Iteration).count();
            assert_eq!(done as u32, SUMS.iterations);
        }
        let alone = Sums { isolate: true, ..SUMS };
        assert_eq!(solo(alone, threads, None).0.unwrap().checksum, right);
    }
    assert!(CREATED.load(Ordering::Relaxed) >= 5);
}

/// From each saved state and on any number of threads, the answer is that of an uninterrupted run.
#[test]
fn a_saved_state_continues_with_another_number_of_workers() {
    let (_, notes) = solo(SUMS, 3, None);
    let saved = notes.into_iter().filter_map(|note| match note {
        ProgressReport::Checkpoint(saved) => Some(saved),
        _ => None,
    });
    let saved: Vec<SavedRoot> = saved.collect();
    assert!(saved.len() > 2, "{} states were saved", saved.len());
    for (at, saved) in saved.into_iter().enumerate() {
        let (outcome, notes) = solo(SUMS, 1 + at % 4, Some(saved));
        assert_eq!(outcome.unwrap().checksum, answer(&SUMS));
        let done = notes.iter().filter(|note| **note == ProgressReport::Iteration).count();
        assert!((done as u32) < SUMS.iterations, "it continued, and did not restart");
    }
}

#[test]
fn a_worker_that_fails_or_panics_fails_the_job() {
    for threads in 1..=3 {
        let failure =
            solo(Sums { fails: Some(Misuse::Error), ..SUMS }, threads, None).0.unwrap_err();
        assert_eq!(failure.message, "task 3, block 1: out of cheese");
        assert_eq!(failure.name, if threads == 1 { "sums" } else { "sums.worker" });
        let failure =
            solo(Sums { fails: Some(Misuse::Panic), ..SUMS }, threads, None).0.unwrap_err();
        assert_eq!((&*failure.message, failure.panicked), ("out of cheese", true));
    }
}

#[test]
fn errors_of_a_driver_are_reported() {
    for (fails, reported) in [
        (Misuse::Idle, "neither an outcome nor work in hand"),
        (Misuse::Empty, "a batch without tasks was submitted"),
        (Misuse::Twice, "two tasks of a batch have the number 0"),
    ] {
        let failure = solo(Sums { fails: Some(fails), ..SUMS }, 2, None).0.unwrap_err();
        assert!(failure.message.contains(reported), "{failure}");
    }
}

/// Orders and answers decode to the encoded values.
#[test]
fn orders_and_answers_decode_to_what_was_encoded() {
    use super::message::{BlockOrder, BlockResult, BlockRun};
    use bytes::Bytes;
    let body = Bytes::from_static(b"\x07");
    let run = BlockRun { batch: 1, task: 2, id: 9, from: 3, to: 5, units: 0.5, work: body.clone() };
    let orders = vec![
        BlockOrder::Common { batch: 1, body: body.clone() },
        BlockOrder::Run(run),
        BlockOrder::Revoke { batch: 1, task: 2, from: 4, to: 5 },
        BlockOrder::Forget { batch: 1 },
    ];
    let encoded = wire::encode_payload(&orders).expect("it encodes");
    assert_eq!(wire::decode_payload::<Vec<BlockOrder>>(&encoded).expect("it is read"), orders);
    let answer = vec![BlockResult { batch: 1, task: 2, block: 3, seconds: 0.25, output: body }];
    let encoded = wire::encode_payload(&answer).expect("it encodes");
    assert_eq!(wire::decode_payload::<Vec<BlockResult>>(&encoded).expect("it is read"), answer);
}
