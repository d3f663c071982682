//! The base of a tree of tasks on this node, with the partial results that are kept of it, and the
//! paths of its tasks.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use springtide_forkjoin::layer::{ComputeThread, Place, TaskFrame};

use super::remote_task::{TaskAbout, wire_name};
use crate::id::TaskPath;
use crate::wire;
use crate::work::checkpoint::RootMarks;
use crate::work::outcome::Halt;
use crate::work::recover::{KeptOutput, KeptOutputs, PartialResults, ResultLocation, RootStart};

/// The base of a tree of tasks on this node: the job's root, or a task stolen from another node.
#[derive(Debug)]
pub(crate) struct Base {
    /// The top task's path.
    pub(crate) path: TaskPath,
    /// The top task's name.
    pub(crate) name: &'static str,
    /// The start of the job's root that the tree belongs to.
    pub(crate) start: RootStart,
    /// Whether this tree must stop.
    pub(crate) halted: AtomicBool,
    /// The reason of the halt; valid once `halted` is set.
    pub(crate) reason: AtomicU32,
    /// The thread that runs the top task; [`NO_THREAD`] until one starts.
    thread: AtomicU32,
    /// Partial results, kept in case the tree stops because the node leaves.
    results: Mutex<TreeResults>,
    /// State of the root's checkpoints; unused in other trees.
    pub(crate) root: RootMarks,
}

/// Partial results of an unfinished tree.
#[derive(Debug, Default)]
struct TreeResults {
    kept: KeptOutputs,
    leased: Vec<ResultLocation>,
    /// Tasks whose code received a halt. It may have swallowed the halt, so the outputs of these
    /// tasks and their ancestors are invalid.
    halted: BTreeSet<TaskPath>,
}

/// The most bytes of outputs that are kept while a tree runs. Outputs saved when it stops have no
/// limit.
const KEPT_BYTES: usize = 16 << 20;

/// The value of [`Base::thread`] for no thread.
const NO_THREAD: u32 = u32::MAX;

impl Base {
    pub(crate) fn new(path: TaskPath, name: &'static str, start: RootStart) -> Self {
        Self {
            path,
            name,
            start,
            halted: AtomicBool::new(false),
            reason: AtomicU32::new(0),
            thread: AtomicU32::new(NO_THREAD),
            results: Mutex::default(),
            root: RootMarks::default(),
        }
    }

    fn results(&self) -> MutexGuard<'_, TreeResults> {
        // Entries are added whole, so a poisoned lock is safe to use.
        self.results.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the output of a finished task and drops the kept outputs of its descendants. Returns
    /// whether it is kept.
    ///
    /// Outputs of tasks at or above a halted task are refused, since they may be incomplete.
    fn keep(&self, kept: KeptOutput, bytes_max: usize) -> bool {
        let mut results = self.results();
        let halted = results.halted.range(kept.path.clone()..).next();
        let valid = halted.is_none_or(|halted| !halted.is_at_or_below(&kept.path));
        valid && results.kept.keep(kept, bytes_max)
    }

    /// Records a task of the tree that continues at another node.
    pub(crate) fn add_leased(&self, place: ResultLocation) {
        self.results().leased.push(place);
    }

    /// Records that the code of this task received a halt.
    pub(crate) fn record_halt(&self, path: TaskPath) {
        self.results().halted.insert(path);
    }

    /// The outputs kept so far, for a successor that restarts the tree while it still runs.
    pub(crate) fn kept(&self) -> Vec<KeptOutput> {
        self.results().kept.iter().cloned().collect()
    }

    /// Takes the partial results.
    pub(crate) fn take_results(&self) -> PartialResults {
        let TreeResults { kept, leased, .. } = std::mem::take(&mut *self.results());
        PartialResults { kept: kept.into_vec(), leased }
    }

    /// Records the thread that starts the top task.
    pub(crate) fn begin(&self, thread: u32) {
        self.thread.store(thread, Ordering::Relaxed);
    }

    /// The thread that runs the top task.
    pub(crate) fn thread(&self) -> Option<u32> {
        Some(self.thread.load(Ordering::Relaxed)).filter(|thread| *thread != NO_THREAD)
    }

    /// Whether this thread runs the top task.
    pub(crate) fn is_run_by(&self, thread: u32) -> bool {
        self.thread() == Some(thread)
    }

    pub(crate) fn halt(&self, reason: Halt) {
        self.reason.store(reason as u32, Ordering::Relaxed);
        self.halted.store(true, Ordering::Release);
    }

    pub(crate) fn halted(&self) -> Option<Halt> {
        self.halted.load(Ordering::Acquire).then(|| halt_of(self.reason.load(Ordering::Relaxed)))
    }
}

/// The inverse of `Halt as u32`.
pub(crate) fn halt_of(value: u32) -> Halt {
    match value {
        1 => Halt::Leave,
        2 => Halt::OwnerLost,
        _ => Halt::Cancelled,
    }
}

/// The base of a job's root, with an empty path.
pub(crate) fn root_base(name: &'static str, start: RootStart) -> Arc<Base> {
    Arc::new(Base::new(TaskPath::root(), name, start))
}

fn path_below((base, indices): (&Base, Vec<u32>)) -> TaskPath {
    let mut path = base.path.0.clone();
    path.extend(indices);
    TaskPath(path)
}

/// The path of the task in this frame.
pub(crate) fn path_of<W: ComputeThread<Tree = Base>>(frame: &TaskFrame<W>) -> TaskPath {
    path_below(frame.indices())
}

/// The path of the child at this place.
pub(crate) fn path_at<W: ComputeThread<Tree = Base>>(place: Place<'_, W>) -> TaskPath {
    path_below(place.indices())
}

/// The base of the tree, if this is the frame of the job's root. Every other top task was a child,
/// so its path is not empty.
pub(crate) fn root_of<W: ComputeThread<Tree = Base>>(frame: &TaskFrame<W>) -> Option<&Base> {
    frame.top_of().filter(|base| base.path.0.is_empty())
}

/// Whether the paths of this task's children have at most `depth` elements.
pub(crate) fn is_above<W: ComputeThread<Tree = Base>>(frame: &TaskFrame<W>, depth: usize) -> bool {
    let (mut frame, mut below) = (frame, 1);
    while below <= depth {
        match frame.parent_or_tree() {
            Ok(parent) => (frame, below) = (parent, below + 1),
            Err(base) => return base.path.0.len() + below <= depth,
        }
    }
    false
}

/// Keeps the output of a finished task when its tree stops because the node leaves.
pub(crate) fn keep_output<O: Serialize>(
    base: &Base,
    path: TaskPath,
    about: &TaskAbout,
    output: &O,
) {
    keep(base, path, about, output, usize::MAX);
}

/// Keeps the output of a finished task while its tree still runs, if there is room. Returns whether
/// it is kept.
pub(crate) fn keep_early<O: Serialize>(
    base: &Base,
    path: TaskPath,
    about: &TaskAbout,
    output: &O,
) -> bool {
    keep(base, path, about, output, KEPT_BYTES)
}

fn keep<O: Serialize>(
    base: &Base,
    path: TaskPath,
    about: &TaskAbout,
    output: &O,
    bytes_max: usize,
) -> bool {
    // An output that cannot be encoded cannot be sent either, so its task is computed again.
    let encode = AssertUnwindSafe(|| wire::encode_payload(output));
    let Ok(Ok(output)) = catch_unwind(encode) else { return false };
    let name = wire_name(about.name, about.batch);
    base.keep(KeptOutput { path, name, output }, bytes_max)
}
