//! A worker's life: it says that it is there, does what it is ordered to, answers, and ends when nobody needs it.
//!
//! Must not know who gives orders, nor by which rules.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::desk::{Block, Desk};
use super::message::{Answer, Order};
use super::program::Program;
use crate::spmd::crew::seated;
use crate::spmd::message::GroupId;
use crate::spmd::{MESSAGE_MAX, Station};
use crate::wire;
use crate::work::{Context, Stop, Task};

/// Answers wait so long for others that go with them, or until there are so many bytes, while there is more to do. What took longer
/// itself waits for nothing: the next block may take as long.
const GATHER_FOR: Duration = Duration::from_millis(5);
const GATHER_BYTES: usize = 256 << 10;

/// The task that is a worker.
#[derive(Serialize, Deserialize)]
#[serde(bound = "")]
pub(super) struct Process<P: Program> {
    pub(super) group: GroupId,
    pub(super) number: u32,
    pub(super) program: P,
}

impl<P: Program> Task for Process<P> {
    type Output = ();
    const NAME: &'static str = P::NAME;
    const PROCESS: bool = true;

    fn run(self, cx: &Context) -> Result<(), Stop> {
        let Process { group, number, program } = self;
        seated(cx, group, number, |at| live(&program, at))
    }
}

fn live<P: Program>(program: &P, at: &Station<'_>) -> Result<(), Stop> {
    at.say_ready();
    let mut desk = Desk::default();
    let mut hands = Hands::new(program);
    let mut answers = Answers::default();
    // Since when it has done nothing but the next block and what goes with that.
    let mut since = Instant::now();
    loop {
        let seat = at.seat(|seat| (seat.take_orders(), seat.is_dismissed()));
        let Some((orders, dismissed)) = seat else { return Ok(()) };
        for body in orders {
            let orders: Vec<Order> = wire::decode_payload(&body)?;
            orders.into_iter().for_each(|order| desk.take_in(order));
        }
        if dismissed {
            // What is not begun others do. What is done must not be on its way when the node leaves.
            answers.flush(at)?;
            return at.heard(false);
        }
        match desk.next() {
            Some(block) => {
                let answer = hands.execute(&desk, block, Some(since), at.cx)?;
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

/// Answers that were not sent.
#[derive(Default)]
struct Answers {
    answers: Vec<Answer>,
    bytes: usize,
    since: Option<Instant>,
    /// One took so long that no other is waited for.
    was_long: bool,
}

impl Answers {
    fn push(&mut self, answer: Answer) {
        self.since.get_or_insert_with(Instant::now);
        self.bytes += answer.output.len();
        self.was_long |= answer.seconds >= GATHER_FOR.as_secs_f64();
        self.answers.push(answer);
    }

    fn are_due(&self) -> bool {
        let waited = self.since.is_some_and(|since| since.elapsed() >= GATHER_FOR);
        waited || self.was_long || self.bytes >= GATHER_BYTES
    }

    fn flush(&mut self, at: &Station<'_>) -> Result<(), Stop> {
        let Self { answers, .. } = std::mem::take(self);
        if answers.is_empty() {
            return Ok(());
        }
        at.answer(wire::encode_payload(&answers)?)
    }
}

/// What does blocks, on a worker's thread or the master's.
pub(super) struct Hands<'p, P: Program> {
    program: &'p P,
    worker: Option<P::Worker>,
    /// Decoded.
    commons: BTreeMap<u64, P::Common>,
    work: Option<((u64, u32), P::Work)>,
}

impl<'p, P: Program> Hands<'p, P> {
    pub(super) fn new(program: &'p P) -> Self {
        Self { program, worker: None, commons: BTreeMap::new(), work: None }
    }

    /// Does one block. Its units count for the node's speed. What it takes is counted from `since`, if that is said: a worker that encodes
    /// and sends what came of the block before, and wakes others by that, is so much slower, the more so the smaller blocks are.
    pub(super) fn execute(
        &mut self,
        desk: &Desk,
        block: Block,
        mut since: Option<Instant>,
        cx: &Context,
    ) -> Result<Answer, Stop> {
        let Block { batch, task, id, block, units, work } = block;
        self.commons.retain(|batch, _| desk.knows(*batch));
        let common = match self.commons.entry(batch) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                // Told before the first of its tasks.
                let body = desk.common(batch).cloned().unwrap_or_default();
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
                // What is done once tells nothing of a speed.
                since = None;
                none.insert(self.program.worker(cx)?)
            }
        };
        let began = since.unwrap_or_else(Instant::now);
        let output = self.program.execute(worker, common, id, work, block, cx);
        let output =
            output.map_err(|stop| stop.within(format_args!("task {id}, block {block}")))?;
        // A thread that is slowed down is so slow, and not one that is fast and waits afterwards.
        cx.rest();
        let seconds = began.elapsed().as_secs_f64();
        cx.count_units(units);
        let output = wire::encode_payload(&output)?;
        if output.len() > MESSAGE_MAX - (64 << 10) {
            return Err(Stop::fail(format_args!(
                "task {id}, block {block} gave {} bytes, more than a message may have: split it into more blocks",
                output.len()
            )));
        }
        Ok(Answer { batch, task, block, seconds, output })
    }
}
