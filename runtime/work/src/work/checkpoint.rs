//! Checkpoints of a job's root, from which another root continues instead of from the start.
//!
//! This module knows neither where checkpoints are stored nor who restarts a root. They leave as
//! notes ([`Note::Checkpoint`](super::Note)) and return with
//! [`Engine::run_job`](super::Engine::run_job).

use std::any::type_name;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use serde::de::DeserializeOwned;

use super::outcome::Stop;
use crate::wire;

/// The state that a job's root gave to [`Context::checkpoint`](super::Context::checkpoint), for
/// [`Job::resume`](super::Job::resume).
#[derive(Clone, Debug)]
pub struct Checkpoint(Bytes);

impl Checkpoint {
    pub(crate) fn new(state: Bytes) -> Self {
        Self(state)
    }

    /// Decodes the state.
    ///
    /// # Errors
    /// The state has another type.
    pub fn get<S: DeserializeOwned>(&self) -> Result<S, Stop> {
        wire::decode_payload(&self.0).map_err(|error| {
            Stop::fail(format_args!(
                "the root's checkpoint cannot be read as {}: {error}; Job::resume must ask for \
                 the type that Context::checkpoint was given, of the same version of the program",
                type_name::<S>()
            ))
        })
    }
}

/// The cost of a checkpoint in addition to its bytes, in bytes, so that many small ones are
/// limited, too.
const EACH_BYTES: u64 = 16 << 10;

/// The common state of one root's checkpoints. Only the root's thread accesses it, except `stops`
/// and `detached`. Its fields are atomic because it is in the tree's base, which other threads
/// read.
#[derive(Debug, Default)]
pub(crate) struct RootMarks {
    /// The number of the last checkpoint.
    seq: AtomicU64,
    /// The number of halts that this thread's code had received when the root started.
    halts: AtomicU64,
    /// The time of the pool's clock, in microseconds, before which no checkpoint is due.
    due_us: AtomicU64,
    /// Whether the root stops after its next checkpoint.
    stops: AtomicBool,
    /// Whether another root has replaced this one.
    detached: AtomicBool,
}

impl RootMarks {
    /// Starts the root; `seq` is the number of the checkpoint from which it resumes, 0 for none.
    pub(crate) fn begin(&self, seq: u64, halts: u64) {
        self.seq.store(seq, Ordering::Relaxed);
        self.halts.store(halts, Ordering::Relaxed);
        self.due_us.store(0, Ordering::Relaxed);
    }

    /// Whether a checkpoint is due at this time of the pool's clock: the last one is paid for at
    /// the rate, or the root stops at this one.
    pub(crate) fn due(&self, now_us: u64) -> bool {
        self.stops() || now_us >= self.due_us.load(Ordering::Relaxed)
    }

    /// Records a checkpoint of this size. The rate is in bytes a second; 0 is no limit.
    pub(crate) fn record(&self, now_us: u64, bytes: usize, rate: u64) {
        let cost = EACH_BYTES.saturating_add(bytes as u64).saturating_mul(1_000_000);
        let pause_us = cost.checked_div(rate).unwrap_or(0);
        self.due_us.store(now_us.saturating_add(pause_us), Ordering::Relaxed);
    }

    /// The next checkpoint's number.
    pub(crate) fn next(&self) -> u64 {
        self.seq.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }

    /// Makes the next checkpoint the root's last.
    pub(crate) fn stop(&self) {
        self.stops.store(true, Ordering::Relaxed);
    }

    /// Whether the root stops after its next checkpoint.
    pub(crate) fn stops(&self) -> bool {
        self.stops.load(Ordering::Relaxed)
    }

    /// Marks the root as replaced by another one: its reports are discarded.
    pub(crate) fn detach(&self) {
        self.detached.store(true, Ordering::Relaxed);
    }

    /// Whether another root has replaced this one.
    pub(crate) fn is_detached(&self) -> bool {
        self.detached.load(Ordering::Relaxed)
    }

    /// Whether code of the root received a halt since the start. The root may have continued with a
    /// wrong value, so its state is not saved.
    pub(crate) fn halted_since(&self, halts: u64) -> bool {
        self.halts.load(Ordering::Relaxed) != halts
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex, OnceLock, mpsc};

    use serde::{Deserialize, Serialize};

    use super::super::outcome::{Failure, Halt, Outcome, StopCause};
    use super::super::pool::{Pool, RealSeam};
    use super::super::pool_config::PoolConfig;
    use super::super::registry::{Registry, encode_job};
    use super::super::report::{ProgressReport, SavedRoot};
    use super::super::solo::{self, SoloObserver, SoloReport};
    use super::super::task::{Job, Task};
    use super::super::{Context, bench};
    use super::*;

    /// Adds the numbers up to `n` in a tree of joins.
    #[derive(Serialize, Deserialize)]
    struct Sum {
        n: u64,
        fails: bool,
        checkpoints: bool,
    }

    impl Task for Sum {
        type Output = u64;
        const NAME: &'static str = "sum";

        fn run(self, cx: &Context) -> Result<u64, Stop> {
            if self.checkpoints {
                cx.checkpoint(&self.n)?;
            }
            if self.fails {
                return Err(Stop::fail("as requested"));
            }
            if self.n < 2 {
                return Ok(self.n);
            }
            let half = |n| Sum { n, fails: false, checkpoints: false };
            let (a, b) = cx.join(half(self.n / 2), half(self.n - self.n / 2))?;
            Ok(a + b)
        }
    }

    fn sum(n: u64) -> Sum {
        Sum { n, fails: false, checkpoints: false }
    }

    /// The error of a run, after the first step.
    #[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
    enum Twist {
        None,
        /// A child fails in the last step.
        Fails,
        /// A task makes a checkpoint.
        InCall,
        InJoin,
        InJoinAll,
        InSpawned,
        /// Children are not collected at a checkpoint.
        Open,
        Synced,
        Dropped,
        /// The root ignores a halt.
        Swallows,
        /// The root reads another state than it wrote.
        Misreads,
    }

    #[derive(Clone, Copy, Serialize, Deserialize)]
    struct Steps {
        steps: u64,
        twist: Twist,
    }

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    struct TestState {
        step: u64,
        total: u64,
    }

    impl Job for Steps {
        const NAME: &'static str = "steps";
        const ABOUT: &'static str = "for tests";

        fn register(registry: &mut Registry) {
            registry.task::<Sum>();
        }

        fn run(self, cx: &Context) -> Result<Outcome, Stop> {
            self.run_from(TestState { step: 0, total: 0 }, cx)
        }

        fn resume(self, state: Checkpoint, cx: &Context) -> Result<Outcome, Stop> {
            if self.twist == Twist::Misreads {
                state.get::<Vec<String>>()?;
            }
            self.run_from(state.get()?, cx)
        }
    }

    /// The same job without a `resume` of its own.
    #[derive(Clone, Copy, Serialize, Deserialize)]
    struct Restarting(Steps);

    impl Job for Restarting {
        const NAME: &'static str = "restarted";
        const ABOUT: &'static str = "for tests";

        fn register(registry: &mut Registry) {
            Steps::register(registry);
        }

        fn run(self, cx: &Context) -> Result<Outcome, Stop> {
            self.0.run(cx)
        }
    }

    impl Steps {
        fn run_from(self, mut state: TestState, cx: &Context) -> Result<Outcome, Stop> {
            while state.step < self.steps {
                state.step += 1;
                cx.report_text(format!("step {}", state.step));
                self.twist(&mut state, cx)?;
                // Three children: one by `call`, two by `join`; and the spawned ones.
                let fails = self.twist == Twist::Fails && state.step == self.steps;
                state.total += cx.call(Sum { fails, ..sum(10 * state.step) })?;
                let (a, b) = cx.join(sum(state.step), sum(1))?;
                let spawned: Vec<_> = (0..state.step % 3).map(|n| cx.spawn(sum(n))).collect();
                for child in spawned {
                    state.total += child.take()?;
                }
                state.total += a * b;
                cx.checkpoint(&state)?;
            }
            Ok(Outcome { checksum: state.total, result: serde_json::Value::Null })
        }

        fn twist(self, state: &mut TestState, cx: &Context) -> Result<(), Stop> {
            let bad = || Sum { checkpoints: true, ..sum(3) };
            match self.twist {
                Twist::None | Twist::Fails | Twist::Misreads => {}
                Twist::InCall => drop(cx.call(bad())?),
                Twist::InJoin => drop(cx.join(sum(50), bad())?),
                Twist::InJoinAll => drop(cx.join_all([sum(1), sum(2), bad()])?),
                Twist::InSpawned => drop(cx.spawn(bad()).take()?),
                Twist::Open => {
                    let _open = [cx.spawn(sum(2)), cx.spawn(sum(3))];
                    cx.checkpoint(state)?;
                }
                Twist::Synced => {
                    let open = cx.spawn(sum(2));
                    cx.sync()?;
                    cx.checkpoint(state)?;
                    open.take()?;
                }
                Twist::Dropped => drop(cx.spawn(sum(4))),
                Twist::Swallows => {
                    state.total += cx.call(sum(7)).unwrap_or(1000);
                    cx.checkpoint(state)?;
                }
            }
            Ok(())
        }
    }

    fn registry() -> Arc<Registry> {
        let mut registry = Registry::new();
        registry.job::<Steps>().job::<Restarting>();
        Arc::new(registry)
    }

    /// Runs the job alone, from a checkpoint if there is one. Returns the outcome and the reports.
    fn run<J: Job>(
        job: J,
        threads: usize,
        saved: Option<SavedRoot>,
    ) -> (Result<Outcome, Failure>, Vec<ProgressReport>) {
        let notes = Arc::new(Mutex::new(Vec::new()));
        let keep = notes.clone();
        let note = move |note| keep.lock().unwrap().push(note);
        let (registry, name, body) = (registry(), J::NAME, encode_job(job).expect("it serialises"));
        let config = PoolConfig { threads, checkpoint_rate: 0, ..PoolConfig::default() };
        let report: SoloReport = match saved {
            None => solo::run(registry, name, body, &config, note),
            Some(saved) => solo::resume(registry, name, body, saved, &config, note),
        }
        .expect("the job is registered");
        let notes = std::mem::take(&mut *notes.lock().unwrap());
        (report.outcome, notes)
    }

    fn saved(note: &ProgressReport) -> Option<SavedRoot> {
        match note {
            ProgressReport::Checkpoint(saved) => Some(saved.clone()),
            _ => None,
        }
    }

    fn steps(steps: u64, twist: Twist) -> Steps {
        Steps { steps, twist }
    }

    #[test]
    fn from_any_checkpoint_the_rest_equals_an_uninterrupted_run() {
        let job = steps(if cfg!(miri) { 3 } else { 7 }, Twist::None);
        let (outcome, notes) = run(job, 1, None);
        let all: Vec<SavedRoot> = notes.iter().filter_map(saved).collect();
        assert_eq!(all.len() as u64, job.steps);
        for (at, here) in all.iter().enumerate() {
            let step = at as u64 + 1;
            assert_eq!(here.seq, step);
            let children: u64 = (1..=step).map(|step| 3 + step % 3).sum();
            assert_eq!(u64::from(here.next_child), children);
            let state: TestState = Checkpoint::new(here.state.clone()).get().unwrap();
            assert_eq!(state.step, step);
        }
        for threads in 1..=3 {
            assert_eq!(run(job, threads, None), (outcome.clone(), notes.clone()));
            for (at, note) in notes.iter().enumerate() {
                // All later notes are equal, so the indices of children and checkpoints are, too.
                let Some(saved) = saved(note) else { continue };
                let rest = (outcome.clone(), notes[at + 1..].to_vec());
                assert_eq!(run(job, threads, Some(saved)), rest, "{threads} threads, note {at}");
            }
        }
    }

    #[test]
    fn checkpoints_respect_the_rate_and_a_wanted_one_is_always_due() {
        let marks = RootMarks::default();
        marks.begin(0, 0);
        let (mut last, mut gaps, rate) = (None, Vec::new(), 128 << 10);
        for now_us in (0..10_000_000).step_by(1000) {
            if marks.due(now_us) {
                gaps.extend(last.map(|last| now_us - last));
                last = Some(now_us);
                marks.record(now_us, 240 << 10, rate);
            }
        }
        assert_eq!(gaps, [2_000_000; 4]);
        marks.record(10_000_000, usize::MAX, 1);
        assert!(!marks.due(u64::MAX - 1));
        // Another root starts without a debt; and without a rate each checkpoint is due.
        marks.begin(7, 0);
        assert!(marks.due(0));
        marks.record(0, 1 << 30, 0);
        assert!(marks.due(0));
        marks.record(0, 1 << 30, 1);
        assert!(!marks.due(1));
        marks.stop();
        assert!(marks.due(1));
    }

    #[test]
    fn a_root_skips_checkpoints_that_come_too_soon() {
        let notes = Arc::new(Mutex::new(Vec::new()));
        let keep = notes.clone();
        let body = encode_job(steps(5, Twist::None)).unwrap();
        // One checkpoint every four hours.
        let config = PoolConfig { checkpoint_rate: 1, ..PoolConfig::default() };
        let note = move |note| keep.lock().unwrap().push(note);
        let report = solo::run(registry(), "steps", body, &config, note).unwrap();
        assert_eq!(report.outcome, run(steps(5, Twist::None), 1, None).0);
        let kept: Vec<SavedRoot> = notes.lock().unwrap().iter().filter_map(saved).collect();
        assert_eq!(kept.len(), 1);
        // The only checkpoint is that of the first step.
        assert_eq!(run(steps(5, Twist::None), 1, kept.first().cloned()).0, report.outcome);
    }

    #[test]
    fn children_of_a_resumed_root_have_their_original_paths() {
        let job = steps(4, Twist::Fails);
        let (outcome, notes) = run(job, 1, None);
        let failure = outcome.unwrap_err();
        assert_eq!(failure.message, "as requested");
        assert_eq!(failure.path.to_string(), "/12");
        for saved in notes.iter().filter_map(saved) {
            assert_eq!(run(job, 2, Some(saved)).0.unwrap_err(), failure);
        }
    }

    #[test]
    fn a_job_without_resume_runs_from_its_start_with_the_original_indices() {
        let job = Restarting(steps(4, Twist::None));
        let (outcome, notes) = run(job, 2, None);
        let numbers = |notes: &[ProgressReport]| -> Vec<(u32, Bytes)> {
            notes.iter().filter_map(saved).map(|saved| (saved.next_child, saved.state)).collect()
        };
        for from in notes.iter().filter_map(saved) {
            let seq = from.seq;
            let (again, restarted) = run(job, 2, Some(from));
            assert_eq!(again, outcome);
            assert_eq!(numbers(&restarted), numbers(&notes));
            // The newest checkpoint still has the highest number.
            assert_eq!(restarted.iter().find_map(saved).unwrap().seq, seq + 1);
        }
    }

    #[test]
    fn only_the_root_can_make_a_checkpoint() {
        for threads in 1..=3 {
            for twist in [Twist::InCall, Twist::InJoin, Twist::InJoinAll, Twist::InSpawned] {
                let (outcome, notes) = run(steps(2, twist), threads, None);
                let failure = outcome.unwrap_err();
                assert_eq!(failure.name, "sum", "{twist:?}");
                assert!(failure.message.contains("only the job's root"), "{failure}");
                assert_eq!(notes.iter().filter_map(saved).count(), 0, "{twist:?}");
            }
        }
    }

    #[test]
    fn a_benchmark_discards_the_checkpoints_of_its_job() {
        let job = steps(3, Twist::None);
        let body = encode_job(job).unwrap();
        let spec = crate::meter::BenchmarkSpec::of_job("steps", body);
        let (entry, body) = bench::prepare(&registry(), &spec).unwrap();
        let (outcome, _) = super::super::here::run(
            &registry(),
            &entry,
            &body,
            (RealSeam::new(), 0, 1 << 20),
            |_| {},
        )
        .unwrap();
        assert_eq!(Ok(outcome), run(job, 1, None).0);
    }

    #[test]
    fn uncollected_children_are_an_error_with_a_remedy() {
        for (twist, open) in [(Twist::Open, 2), (Twist::Synced, 1), (Twist::Dropped, 1)] {
            let (outcome, notes) = run(steps(2, twist), 2, None);
            let message = outcome.unwrap_err().message;
            let expected = format!(
                "a checkpoint was called for while {open} of the root's spawned children \
                 are not collected: collect each by Spawned::take before Context::checkpoint"
            );
            assert_eq!(message, expected, "{twist:?}");
            assert_eq!(notes.iter().filter_map(saved).count(), 0, "{twist:?}");
        }
    }

    #[test]
    fn a_state_that_does_not_decode_fails_the_job_and_says_so() {
        let (_, notes) = run(steps(2, Twist::None), 1, None);
        let good = notes.iter().find_map(saved).unwrap();
        let mut bodies = vec![Bytes::new(), Bytes::from_static(b"\xc1\xc1\xc1")];
        bodies.extend((0..good.state.len()).map(|len| good.state.slice(..len)));
        bodies.push([&good.state[..], b"\0"].concat().into());
        for state in bodies {
            let bad = SavedRoot { state, ..good.clone() };
            let failure = run(steps(2, Twist::None), 2, Some(bad)).0.unwrap_err();
            assert!(
                failure.message.starts_with("the root's checkpoint cannot be read as ")
                    && failure.message.contains("State: ")
                    && failure.message.contains("Job::resume must ask for the type"),
                "{failure}"
            );
            assert_eq!((failure.name.as_str(), failure.path.to_string().as_str()), ("steps", "/"));
        }
        let failure = run(steps(2, Twist::Misreads), 1, Some(good)).0.unwrap_err();
        assert!(failure.message.contains("Vec<alloc::string::String>"), "{failure}");
    }

    /// Runs a root that is halted when it reports the start of its second step.
    fn run_halted_root(twist: Twist, halt: Halt, threads: usize) -> (Stop, Vec<ProgressReport>) {
        let notes = Arc::new(Mutex::new(Vec::new()));
        let started: Arc<OnceLock<Pool>> = Arc::default();
        let (keep, pool) = (notes.clone(), started.clone());
        let note = move |note: ProgressReport| {
            if note == (ProgressReport::Say { text: "step 2".to_owned() }) {
                pool.get().expect("set before the root began").halt(halt);
            }
            keep.lock().unwrap().push(note);
        };
        let registry = registry();
        let entry = *registry.find_job("steps").expect("registered above");
        let observer = Arc::new(SoloObserver::new(registry.clone(), note));
        let config = PoolConfig { threads, checkpoint_rate: 0, ..PoolConfig::default() };
        let pool = Pool::start(&config, registry, RealSeam::new(), observer).expect("threads");
        started.set(pool.clone()).ok().expect("set once");
        let (sender, end) = mpsc::channel();
        let body = encode_job(steps(5, twist)).expect("it serialises");
        pool.run_job(&entry, body, None, move |outcome| drop(sender.send(outcome)));
        let stop = end.recv().expect("an end").expect_err("halted");
        pool.close();
        pool.join();
        let notes = std::mem::take(&mut *notes.lock().unwrap());
        (stop, notes)
    }

    #[test]
    fn a_root_that_swallowed_a_halt_saves_no_checkpoint() {
        for threads in 1..=3 {
            for halt in [Halt::Leave, Halt::Cancelled] {
                // No checkpoint contains the root's replacement for the second step's child.
                let (stop, notes) = run_halted_root(Twist::Swallows, halt, threads);
                assert!(
                    matches!(*stop.0, StopCause::Halt(received) if received == halt),
                    "{stop:?}"
                );
                let kept: Vec<u64> = notes.iter().filter_map(saved).map(|s| s.seq).collect();
                assert_eq!(kept, [1, 2]);
            }
        }
    }

    /// A job that is halted between its last child and its checkpoint.
    #[derive(Serialize, Deserialize)]
    struct LateHalt;

    impl Job for LateHalt {
        const NAME: &'static str = "late-word";
        const ABOUT: &'static str = "for tests";

        fn register(registry: &mut Registry) {
            registry.task::<Sum>();
        }

        fn run(self, cx: &Context) -> Result<Outcome, Stop> {
            let total = cx.call(sum(20))?;
            cx.report_text("now");
            cx.checkpoint(&total)?;
            cx.report_text("not reached");
            Err(Stop::fail("the root continued"))
        }
    }

    #[test]
    fn the_checkpoint_is_saved_before_the_root_stops() {
        let mut registry = Registry::new();
        registry.job::<LateHalt>();
        let registry = Arc::new(registry);
        let entry = *registry.find_job("late-word").unwrap();
        for halt in [Halt::Leave, Halt::Cancelled] {
            let notes = Arc::new(Mutex::new(Vec::new()));
            let started: Arc<OnceLock<Pool>> = Arc::default();
            let (keep, pool) = (notes.clone(), started.clone());
            let note = move |note: ProgressReport| {
                if matches!(note, ProgressReport::Say { .. }) {
                    pool.get().unwrap().halt(halt);
                }
                keep.lock().unwrap().push(note);
            };
            let observer = Arc::new(SoloObserver::new(registry.clone(), note));
            let work = (&entry, encode_job(LateHalt).unwrap());
            let stop = Pool::run_alone(
                &PoolConfig::default(),
                registry.clone(),
                RealSeam::new(),
                observer,
                work,
                |pool| drop(started.set(pool.clone())),
            )
            .unwrap_err();
            assert!(matches!(*stop.0, StopCause::Halt(received) if received == halt), "{stop:?}");
            let notes = std::mem::take(&mut *notes.lock().unwrap());
            let saved: Vec<SavedRoot> = notes.iter().filter_map(saved).collect();
            assert_eq!(notes.len(), 2, "{notes:?}");
            assert_eq!((saved[0].next_child, saved[0].seq), (1, 1));
            assert_eq!(Checkpoint::new(saved[0].state.clone()).get::<u64>().unwrap(), 20);
        }
    }

    #[test]
    fn a_saved_root_is_a_named_map_whose_state_is_bytes() {
        let root = SavedRoot { next_child: 7, seq: 3, state: vec![200; 1000].into() };
        let bytes = rmp_serde::to_vec_named(&root).unwrap();
        // A list of numbers would take two bytes for each.
        assert!(bytes.len() < 1000 + 40, "{} bytes", bytes.len());
        assert_eq!(rmp_serde::from_slice::<SavedRoot>(&bytes).unwrap(), root);
        #[derive(Serialize)]
        struct FutureCheckpoint {
            state: Bytes,
            next_child: u32,
            more: &'static str,
            seq: u64,
        }
        let later =
            FutureCheckpoint { state: root.state.clone(), next_child: 7, more: "new", seq: 3 };
        let bytes = rmp_serde::to_vec_named(&later).unwrap();
        assert_eq!(rmp_serde::from_slice::<SavedRoot>(&bytes).unwrap(), root);
    }
}
