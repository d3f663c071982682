//! A worker process: it registers, executes orders, sends answers, and ends when it is dismissed.
//!
//! It does not know who sends orders, nor by which rules.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::message::{BlockOrder, BlockResult};
use super::order_queue::{BlockToRun, OrderQueue};
use super::program::Program;
use crate::spmd::message::GroupId;
use crate::spmd::process_pool::run_process;
use crate::spmd::{MESSAGE_MAX, ProcessHandle};
use crate::wire;
use crate::work::{Context, Stop, Task};

/// Bounds on how long, and up to how many bytes, answers wait for others to be sent along.
///
/// They wait only while the worker has further blocks. An answer that itself took longer is sent at
/// once, for the next block may take as long.
const GATHER_TIME: Duration = Duration::from_millis(5);
const GATHER_BYTES: usize = 256 << 10;

/// The task of a worker process.
#[derive(Serialize, Deserialize)]
#[serde(bound = "")]
pub(super) struct MasterWorkerProcess<P: Program> {
    pub(super) group: GroupId,
    pub(super) number: u32,
    pub(super) program: P,
}

impl<P: Program> Task for MasterWorkerProcess<P> {
    type Output = ();
    const NAME: &'static str = P::NAME;
    const PROCESS: bool = true;

    fn run(self, cx: &Context) -> Result<(), Stop> {
        let MasterWorkerProcess { group, number, program } = self;
        run_process(cx, group, number, |at| run_worker(&program, at))
    }
}

fn run_worker<P: Program>(program: &P, at: &ProcessHandle<'_>) -> Result<(), Stop> {
    at.report_ready();
    let mut queue = OrderQueue::default();
    let mut executor = Executor::new(program);
    let mut answers = Answers::default();
    // The end of the previous block or wait. Time from here on counts for the next block.
    let mut since = Instant::now();
    loop {
        let state = at.with_process(|local| (local.take_orders(), local.is_dismissed()));
        let Some((orders, dismissed)) = state else { return Ok(()) };
        for body in orders {
            let orders: Vec<BlockOrder> = wire::decode_payload(&body)?;
            orders.into_iter().for_each(|order| queue.apply(order));
        }
        if dismissed {
            // Others execute the blocks not started. Sent answers must arrive before the node
            // leaves.
            answers.flush(at)?;
            return at.wait_for_acks(false);
        }
        match queue.next() {
            Some(block) => {
                let answer = executor.execute(&queue, block, Some(since), at.cx)?;
                since = Instant::now();
                answers.push(answer);
                if answers.are_due() {
                    answers.flush(at)?;
                }
                at.cx.check()?;
            }
            None => {
                answers.flush(at)?;
                at.wait_for_orders()?;
                since = Instant::now();
            }
        }
    }
}

/// Answers not yet sent.
#[derive(Default)]
struct Answers {
    answers: Vec<BlockResult>,
    bytes: usize,
    since: Option<Instant>,
    /// Whether one took so long that none waits for others.
    was_long: bool,
}

impl Answers {
    fn push(&mut self, answer: BlockResult) {
        self.since.get_or_insert_with(Instant::now);
        self.bytes += answer.output.len();
        self.was_long |= answer.seconds >= GATHER_TIME.as_secs_f64();
        self.answers.push(answer);
    }

    fn are_due(&self) -> bool {
        let waited = self.since.is_some_and(|since| since.elapsed() >= GATHER_TIME);
        waited || self.was_long || self.bytes >= GATHER_BYTES
    }

    fn flush(&mut self, at: &ProcessHandle<'_>) -> Result<(), Stop> {
        let Self { answers, .. } = std::mem::take(self);
        if answers.is_empty() {
            return Ok(());
        }
        at.answer(wire::encode_payload(&answers)?)
    }
}

/// Executes blocks, on a worker's thread or the master's.
pub(super) struct Executor<'p, P: Program> {
    program: &'p P,
    worker: Option<P::Worker>,
    /// The decoded common parts, by batch.
    commons: BTreeMap<u64, P::Common>,
    work: Option<((u64, u32), P::Work)>,
}

impl<'p, P: Program> Executor<'p, P> {
    pub(super) fn new(program: &'p P) -> Self {
        Self { program, worker: None, commons: BTreeMap::new(), work: None }
    }

    /// Executes one block. Its units count towards the node's speed.
    ///
    /// The measured time starts at `since`, if given. It then includes encoding and sending of the
    /// previous answer and the wake-ups that this causes, whose share grows as blocks become
    /// smaller.
    pub(super) fn execute(
        &mut self,
        queue: &OrderQueue,
        block: BlockToRun,
        mut since: Option<Instant>,
        cx: &Context,
    ) -> Result<BlockResult, Stop> {
        let BlockToRun { batch, task, id, block, units, work } = block;
        self.commons.retain(|batch, _| queue.knows(*batch));
        let common = match self.commons.entry(batch) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                // The common part arrives before the batch's first task.
                let body = queue.common(batch).cloned().unwrap_or_default();
                new.insert(wire::decode_payload(&body)?)
            }
        };
        let work = match &mut self.work {
            Some((of, known)) if *of == (batch, task) => known,
            other => &mut other.insert(((batch, task), wire::decode_payload(&work)?)).1,
        };
        let worker = match &mut self.worker {
            Some(worker) => worker,
            none => {
                // The creation of the worker happens once, so it must not count as speed.
                since = None;
                none.insert(self.program.worker(cx)?)
            }
        };
        let began = since.unwrap_or_else(Instant::now);
        let output = self.program.execute(worker, common, id, work, block, cx);
        let output =
            output.map_err(|stop| stop.within(format_args!("task {id}, block {block}")))?;
        // The pause of a throttled thread counts as part of the block, not as waiting after it.
        cx.rest();
        let seconds = began.elapsed().as_secs_f64();
        cx.count_units(units);
        let output = wire::encode_payload(&output)?;
        if output.len() > MESSAGE_MAX - (64 << 10) {
            return Err(Stop::fail(format_args!(
                "the output of task {id}, block {block} has {} bytes, more than a message may \
                 have: split the task into more blocks",
                output.len()
            )));
        }
        Ok(BlockResult { batch, task, block, seconds, output })
    }
}
