//! Programs on pools without a network: results are independent of the number of threads, failures
//! name the process, and saved states continue.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use springtide_forkjoin::ParallelLoops;

use super::root::SavedState;
use super::*;
use crate::processors::Processors;
use crate::spmd::group::ConfigurationEnd;
use crate::spmd::post::Dispatcher;
use crate::spmd::{Comm, MESSAGE_MAX, ProcessHandle};
use crate::wire;
use crate::work::{
    Outcome, PoolConfig, ProgressReport, Registry, SavedRoot, Stop, Throttle, ThrottledSeam,
    encode_job, solo, thread_cpu,
};

/// Numbers in a ring: in each step each number gets a third of its left neighbour. Processes hold
/// runs of numbers.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Ring<const SAVED: usize = SAVED_MAX> {
    numbers: u32,
    steps: u64,
    fails: Option<(u64, u32)>,
    panics: bool,
    misuse: Option<Misuse>,
}

const RING: Ring = Ring { numbers: 23, steps: 40, fails: None, panics: false, misuse: None };

/// Errors of a program.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Misuse {
    Rank,
    Tag,
    Parts,
    Broadcast,
}

impl Misuse {
    fn of(self, comm: &Comm<'_>) -> Result<(), Stop> {
        match self {
            Misuse::Rank => comm.send(comm.size(), 0, Bytes::new()),
            Misuse::Tag => comm.receive(0, 1 << 31).map(drop),
            Misuse::Parts => comm.all_to_all(Vec::new()).map(drop),
            Misuse::Broadcast => comm.broadcast(comm.rank(), None::<&u8>).map(drop),
        }
    }
}

/// The start of each process's run, and the end of the last.
type Bounds = Vec<u32>;

impl<const SAVED: usize> Program for Ring<SAVED> {
    const NAME: &'static str = "ring.process";
    const SAVED_MAX: usize = SAVED;
    type State = Vec<f64>;
    type Layout = Bounds;

    fn steps(&self) -> u64 {
        self.steps
    }

    fn layout(&self, hands: &[ProcessInfo], _: Option<&Bounds>) -> Bounds {
        let parts = u32::try_from(hands.len()).unwrap_or(1);
        (0..=parts).map(|part| self.numbers * part / parts).collect()
    }

    fn start(&self, layout: &Bounds, comm: &Comm<'_>) -> Result<Vec<f64>, Stop> {
        let rank = comm.rank() as usize;
        Ok((layout[rank]..layout[rank + 1]).map(|n| 1.0 / f64::from(n + 1)).collect())
    }

    fn step(
        &self,
        state: &mut Vec<f64>,
        step: u64,
        layout: &Bounds,
        comm: &Comm<'_>,
    ) -> Result<(), Stop> {
        if let Some((at, rank)) = self.fails
            && at == step
            && rank.min(comm.size() - 1) == comm.rank()
        {
            assert!(!self.panics, "out of cheese");
            return Err(Stop::fail("out of cheese"));
        }
        if let Some(misuse) = self.misuse.filter(|_| step == 3) {
            return misuse.of(comm);
        }
        // Runs may be empty, so all processes get all ends.
        let last = comm.all_gather(&state.last().copied())?;
        let rank = comm.rank() as usize;
        let before = (0..rank).rev().chain((rank..layout.len() - 1).rev());
        let mut left = before.filter_map(|other| last[other]).next().unwrap_or_default();
        for number in state {
            let was = *number;
            *number = was + left / 3.0 - was / 7.0;
            left = was;
        }
        Ok(())
    }

    fn split_state(
        &self,
        state: &Vec<f64>,
        (from, rank): (&Bounds, u32),
        (to, other): (&Bounds, u32),
    ) -> Result<Bytes, Stop> {
        let (rank, other) = (rank as usize, other as usize);
        let begin = to[other].clamp(from[rank], from[rank + 1]);
        let end = to[other + 1].clamp(from[rank], from[rank + 1]);
        let at = |n: u32| (n - from[rank]) as usize;
        Ok(wire::encode_payload(&state[at(begin)..at(end)])?)
    }

    fn join_state(
        &self,
        pieces: &[Bytes],
        _: &Bounds,
        (to, rank): (&Bounds, u32),
    ) -> Result<Vec<f64>, Stop> {
        let mut state = Vec::new();
        for piece in pieces {
            state.extend(wire::decode_payload::<Vec<f64>>(piece)?);
        }
        let wanted = to[rank as usize + 1] - to[rank as usize];
        if state.len() != wanted as usize {
            return Err(Stop::fail("a state that is no state"));
        }
        Ok(state)
    }

    fn finish(&self, state: Vec<f64>, _: &Bounds, comm: &Comm<'_>) -> Result<Outcome, Stop> {
        let all = comm.gather(0, &state)?.unwrap_or_default().concat();
        let sum: f64 = all.iter().sum();
        comm.barrier()?;
        let size = comm.all_reduce(&1u32, |a, b| a + b)?;
        let result = serde_json::json!({ "processes": size });
        Ok(Outcome { checksum: sum.to_bits(), result })
    }
}

impl<const SAVED: usize> Malleable for Ring<SAVED> {
    const JOB: &'static str = "ring";
    const ABOUT: &'static str = "for tests";

    fn usable(&self, processes: u32) -> u32 {
        processes.min(self.numbers)
    }
}

type RunResult = (Result<Outcome, crate::work::Failure>, Vec<ProgressReport>);

fn solo<J: Malleable>(job: J, threads: usize, saved: Option<SavedRoot>) -> RunResult {
    let name = J::JOB;
    let mut registry = Registry::new();
    registry.job::<J>();
    let notes = Arc::new(Mutex::new(Vec::new()));
    let sink = notes.clone();
    let note = move |note| sink.lock().unwrap().push(note);
    let config = PoolConfig { threads, checkpoint_rate: 0, ..PoolConfig::default() };
    let body = encode_job(job).unwrap();
    let registry = Arc::new(registry);
    let report = match saved {
        Some(saved) => solo::resume(registry, name, body, saved, &config, note),
        None => solo::run(registry, name, body, &config, note),
    };
    let outcome = report.unwrap().outcome;
    let notes = notes.lock().unwrap().clone();
    (outcome, notes)
}

#[test]
fn every_number_of_processes_gives_the_same_bits_and_uses_all_threads() {
    let alone = solo(RING, 1, None).0.unwrap();
    for threads in 2..=5 {
        let (outcome, notes) = solo(RING, threads, None);
        let outcome = outcome.unwrap();
        assert_eq!(outcome.checksum, alone.checksum, "{threads} threads");
        assert_eq!(outcome.result["processes"], threads);
        let done = notes.iter().filter(|note| **note == ProgressReport::Iteration).count();
        assert_eq!(done as u64, RING.steps);
    }
}

/// From each saved state and on any number of threads, the answer is that of an uninterrupted run.
#[test]
fn a_saved_state_continues_on_another_number_of_processes() {
    let (whole, notes) = solo(RING, 3, None);
    let saved = notes.into_iter().filter_map(|note| match note {
        ProgressReport::Checkpoint(saved) => Some(saved),
        _ => None,
    });
    let saved: Vec<SavedRoot> = saved.collect();
    assert!(saved.len() > 5, "{} states were saved", saved.len());
    for (at, saved) in saved.into_iter().enumerate() {
        let (outcome, notes) = solo(RING, 1 + at % 4, Some(saved));
        assert_eq!(outcome.unwrap().checksum, whole.as_ref().unwrap().checksum);
        let done = notes.iter().filter(|note| **note == ProgressReport::Iteration).count();
        assert!((done as u64) < RING.steps, "it continued, and did not restart");
    }
}

/// Disturbances of runs of [`Upset`] and their results, by number of the run.
static DISTURBANCES: Mutex<BTreeMap<u32, Disturbances>> = Mutex::new(BTreeMap::new());

#[derive(Default)]
struct Disturbances {
    /// The configuration ends at this step, once.
    ends_at: Option<u64>,
    /// From then on there is no room for messages, for a while.
    no_room: bool,
    /// The dispatcher, after the disturbance.
    post: Option<Arc<Dispatcher>>,
    /// Whether there was room when the root sent a second piece after that.
    room: Vec<bool>,
}

impl Disturbances {
    /// Called when rank 0 is at this step.
    fn disturb(&mut self, step: u64, at: &ProcessHandle<'_>) {
        if self.ends_at.take_if(|at| *at == step).is_none() {
            return;
        }
        if self.no_room {
            at.post.set_unsent(1 << 30, 0);
            let post = at.post.clone();
            self.post = Some(post.clone());
            std::thread::spawn(move || {
                std::thread::sleep(std::time::Duration::from_millis(100));
                post.set_unsent(0, 0);
            });
        }
        let cause = ConfigurationEnd::Link("one".into(), "another".into());
        at.post.group(&at.group, |group| ((), group.dissolve(cause)));
    }
}

/// A program whose state is the number of steps, in each process. Pieces for several processes have
/// a given length.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Upset {
    run: u32,
    steps: u64,
    piece: usize,
}

impl Program for Upset {
    const NAME: &'static str = "upset.process";
    type State = u64;
    type Layout = u32;

    fn steps(&self) -> u64 {
        self.steps
    }

    fn layout(&self, hands: &[ProcessInfo], _: Option<&u32>) -> u32 {
        u32::try_from(hands.len()).unwrap_or(1)
    }

    fn start(&self, _: &u32, _: &Comm<'_>) -> Result<u64, Stop> {
        Ok(0)
    }

    fn step(&self, state: &mut u64, step: u64, _: &u32, comm: &Comm<'_>) -> Result<(), Stop> {
        *state += 1;
        if comm.rank() == 0 {
            DISTURBANCES.lock().unwrap().entry(self.run).or_default().disturb(step, comm.station());
        }
        comm.barrier()
    }

    fn split_state(
        &self,
        state: &u64,
        (_, rank): (&u32, u32),
        (to, other): (&u32, u32),
    ) -> Result<Bytes, Stop> {
        if (rank, *to, other) == (0, 2, 1) {
            let mut disturbances = DISTURBANCES.lock().unwrap();
            let disturbances = disturbances.entry(self.run).or_default();
            let room = disturbances.post.as_ref().map(|post| post.has_room());
            disturbances.room.extend(room);
        }
        let mut piece = vec![0; if *to > 1 { self.piece } else { 8 }];
        piece[..8].copy_from_slice(&state.to_le_bytes());
        Ok(piece.into())
    }

    fn join_state(&self, pieces: &[Bytes], _: &u32, _: (&u32, u32)) -> Result<u64, Stop> {
        let first = pieces.first().ok_or_else(|| Stop::fail("no pieces"))?;
        Ok(u64::from_le_bytes(first[..8].try_into()?))
    }

    fn finish(&self, state: u64, _: &u32, _: &Comm<'_>) -> Result<Outcome, Stop> {
        Ok(Outcome { checksum: state, result: serde_json::Value::Null })
    }
}

impl Malleable for Upset {
    const JOB: &'static str = "upset";
    const ABOUT: &'static str = "for tests";
}

/// A root that continues from a state reports no step that its predecessor reported. The
/// predecessor may have got further, restarted, and saved an earlier state.
#[test]
fn no_step_is_reported_twice() {
    let job = |run| Upset { run, steps: 30, piece: 8 };
    let (_, notes) = solo(job(1), 2, None);
    let states = |notes: Vec<ProgressReport>| -> Vec<SavedRoot> {
        let saved = notes.into_iter().filter_map(|note| match note {
            ProgressReport::Checkpoint(saved) => Some(saved),
            _ => None,
        });
        saved.collect()
    };
    let mut first = states(notes).remove(0);
    let mut saved: SavedState = wire::decode_payload(&first.state).unwrap();
    assert!(saved.told >= saved.point && saved.point < 20, "{saved:?}");
    saved.told = 25;
    first.state = wire::encode_payload(&saved).unwrap();
    let (outcome, notes) = solo(job(2), 2, Some(first));
    assert_eq!(outcome.unwrap().checksum, 30);
    assert_eq!(notes.iter().filter(|note| **note == ProgressReport::Iteration).count(), 5);
    let again = states(notes).remove(0);
    let again: SavedState = wire::decode_payload(&again.state).unwrap();
    assert!(again.point < 25 && again.told == 25, "{again:?}");
}

/// Pieces within a node are in no frame, and may be longer than one.
#[test]
fn pieces_that_stay_on_a_node_may_have_any_length() {
    let job = |run, piece| Upset { run, steps: 30, piece };
    let (_, notes) = solo(job(3, 8), 2, None);
    let saved = notes.into_iter().find_map(|note| match note {
        ProgressReport::Checkpoint(saved) => Some(saved),
        _ => None,
    });
    // Only the first bytes are touched, so the others take no memory.
    let (outcome, _) = solo(job(4, MESSAGE_MAX + 1), 2, saved);
    assert_eq!(outcome.unwrap().checksum, 30);
}

/// The root waits for room as all processes do, after a link failure too.
#[test]
fn the_root_waits_for_room_when_it_redistributes_a_saved_state() {
    let mut disturbances = DISTURBANCES.lock().unwrap();
    *disturbances.entry(5).or_default() =
        Disturbances { ends_at: Some(20), no_room: true, ..Disturbances::default() };
    drop(disturbances);
    let (outcome, _) = solo(Upset { run: 5, steps: 30, piece: 8 }, 2, None);
    assert_eq!(outcome.unwrap().checksum, 30);
    let room = DISTURBANCES.lock().unwrap()[&5].room.clone();
    assert!(!room.is_empty() && room.iter().all(|room| *room), "{room:?}");
}

/// A line of output says so once, and the program continues.
#[test]
fn a_state_that_is_too_long_is_not_saved() {
    let right = solo(RING, 1, None).0.unwrap().checksum;
    // All of it is too long, or the half of one process.
    for (threads, most) in [(1, 200), (3, 200), (2, 50)] {
        let Ring { numbers, steps, fails, panics, misuse } = RING;
        let (outcome, notes) = match most {
            200 => solo(Ring::<200> { numbers, steps, fails, panics, misuse }, threads, None),
            _ => solo(Ring::<50> { numbers, steps, fails, panics, misuse }, threads, None),
        };
        assert_eq!(outcome.unwrap().checksum, right);
        let limit = format!("no more than {most} are saved");
        let is_limit = |note: &&ProgressReport| {
            let ProgressReport::Say { text } = note else { return false };
            text.contains(&limit)
        };
        assert_eq!(notes.iter().filter(is_limit).count(), 1, "{notes:?}");
        assert!(!notes.iter().any(|note| matches!(note, ProgressReport::Checkpoint(_))));
    }
}

#[test]
fn a_process_that_fails_or_panics_fails_the_job_by_its_name() {
    for threads in 1..=3 {
        for rank in 0..threads as u32 {
            for panics in [false, true] {
                let job = Ring { fails: Some((7, rank)), panics, ..RING };
                let failure = solo(job, threads, None).0.unwrap_err();
                assert_eq!((&*failure.message, failure.panicked), ("out of cheese", panics));
                let name = if rank == 0 { "ring" } else { "ring.process" };
                assert_eq!(failure.name, name, "{threads} threads, rank {rank}");
            }
        }
    }
}

#[test]
fn errors_of_a_program_are_reported() {
    for (misuse, expected) in [
        (Misuse::Rank, "there is no process 2: ranks are from 0 to 1"),
        (Misuse::Tag, "tag 2147483648 is the runtime's own: give one below 2147483648"),
        (Misuse::Parts, "0 parts for 2 processes: give one for each"),
        (Misuse::Broadcast, "broadcasts and gives no value"),
    ] {
        let failure = solo(Ring { misuse: Some(misuse), ..RING }, 2, None).0.unwrap_err();
        assert!(failure.message.contains(expected), "{misuse:?}: {failure}");
    }
}

#[test]
fn a_program_of_no_steps_ends_at_once() {
    let none = Ring { steps: 0, ..RING };
    let alone = solo(none.clone(), 1, None).0.unwrap();
    assert_eq!(solo(none, 4, None).0.unwrap().checksum, alone.checksum);
}

/// Offers and requests are judged by the usable processes.
#[test]
fn offers_are_judged_by_usable_processes() {
    // Of 23 numbers, one thread of 24 has none.
    for (current, offered, takes) in [(8, 12, 12), (20, 36, 3), (23, 9, 0), (4, 160, 19)] {
        let answer = RING.accept_growth(Processors(current), Processors(offered));
        assert_eq!(answer, Processors(takes), "{current} {offered}");
    }
    for (current, asked, gives) in [(20, 8, 8), (28, 4, 5), (36, 4, 13), (12, 36, 11), (1, 1, 0)] {
        let answer = RING.accept_shrink(Processors(current), Processors(asked));
        assert_eq!(answer, Processors(gives), "{current} {asked}");
    }
}

/// A program that computes for 10 ms per step. Its state is the processor time used, in
/// nanoseconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Busy;

impl Program for Busy {
    const NAME: &'static str = "busy.process";
    type State = u64;
    type Layout = u32;

    fn steps(&self) -> u64 {
        30
    }

    fn layout(&self, hands: &[ProcessInfo], _: Option<&u32>) -> u32 {
        u32::try_from(hands.len()).unwrap_or(1)
    }

    fn start(&self, _: &u32, _: &Comm<'_>) -> Result<u64, Stop> {
        Ok(0)
    }

    fn step(&self, state: &mut u64, _: u64, _: &u32, comm: &Comm<'_>) -> Result<(), Stop> {
        let began = thread_cpu();
        while thread_cpu() < began + Duration::from_millis(10) {
            std::hint::spin_loop();
        }
        *state += (thread_cpu() - began).as_nanos() as u64;
        comm.check()
    }

    fn split_state(&self, state: &u64, _: (&u32, u32), _: (&u32, u32)) -> Result<Bytes, Stop> {
        Ok(state.to_le_bytes().to_vec().into())
    }

    fn join_state(&self, pieces: &[Bytes], _: &u32, _: (&u32, u32)) -> Result<u64, Stop> {
        let first = pieces.first().ok_or_else(|| Stop::fail("no pieces"))?;
        Ok(u64::from_le_bytes(first[..8].try_into()?))
    }

    fn finish(&self, state: u64, _: &u32, _: &Comm<'_>) -> Result<Outcome, Stop> {
        Ok(Outcome { checksum: state, result: serde_json::Value::Null })
    }
}

impl Malleable for Busy {
    const JOB: &'static str = "busy";
    const ABOUT: &'static str = "for tests";
}

/// A single process never waits for others, but must be throttled all the same. There is no upper
/// bound: at a fifth of a core it takes five times as long or longer, less what it catches up.
/// Runs a loop with as many pieces as there are threads, each of which waits for the others.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Meeting;

impl Program for Meeting {
    const NAME: &'static str = "meeting.process";
    type State = ();
    type Layout = Vec<u32>;

    fn steps(&self) -> u64 {
        3
    }

    fn placement(&self) -> Placement {
        Placement::EachNode
    }

    fn layout(&self, hands: &[ProcessInfo], _: Option<&Vec<u32>>) -> Vec<u32> {
        hands.iter().map(|hand| hand.threads).collect()
    }

    fn start(&self, layout: &Vec<u32>, comm: &Comm<'_>) -> Result<(), Stop> {
        assert_eq!(layout, &[comm.node_threads() as u32]);
        Ok(())
    }

    fn step(&self, _: &mut (), _: u64, _: &Vec<u32>, comm: &Comm<'_>) -> Result<(), Stop> {
        let threads = comm.node_threads();
        let (arrived, changed) = (Mutex::new(0), Condvar::new());
        let met = comm.parallel_map(0..threads, 1, |_| {
            let mut count = arrived.lock().unwrap();
            *count += 1;
            changed.notify_all();
            // Far more than any thread takes to wake up.
            let limit = Duration::from_secs(60);
            let waits = |count: &mut usize| *count < threads;
            let (_count, waited) = changed.wait_timeout_while(count, limit, waits).unwrap();
            !waited.timed_out()
        })?;
        assert!(met.iter().all(|met| *met), "a thread of the node has run no piece");
        Ok(())
    }

    fn split_state(&self, _: &(), _: (&Vec<u32>, u32), _: (&Vec<u32>, u32)) -> Result<Bytes, Stop> {
        Ok(Bytes::new())
    }

    fn join_state(&self, _: &[Bytes], _: &Vec<u32>, _: (&Vec<u32>, u32)) -> Result<(), Stop> {
        Ok(())
    }

    fn finish(&self, _: (), _: &Vec<u32>, comm: &Comm<'_>) -> Result<Outcome, Stop> {
        Ok(Outcome { checksum: u64::from(comm.size()), result: serde_json::Value::Null })
    }
}

impl Malleable for Meeting {
    const JOB: &'static str = "meeting";
    const ABOUT: &'static str = "for tests";
}

#[test]
fn the_threads_of_a_node_share_the_loops_of_its_only_process() {
    for threads in [1, 2, 5] {
        let (outcome, ..) = solo(Meeting, threads, None);
        assert_eq!(outcome.unwrap().checksum, 1, "one process on {threads} threads");
    }
}

#[test]
fn a_single_process_is_throttled() {
    let mut registry = Registry::new();
    registry.job::<Busy>();
    let entry = *registry.find_job(Busy::JOB).unwrap();
    let seam = ThrottledSeam::new(Throttle { share: Some(0.2), ..Throttle::default() });
    let config = PoolConfig { threads: 1, checkpoint_rate: 0, ..PoolConfig::default() };
    let body = encode_job(Busy).unwrap();
    let run = solo::run_on(seam, Arc::new(registry), &entry, body, None, &config, |_| {}).unwrap();
    let computed = Duration::from_nanos(run.outcome.unwrap().checksum);
    assert!(run.wall > 2 * computed, "{:?} for {computed:?} of a processor", run.wall);
}
