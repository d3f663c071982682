//! An engine's report on its own state: leases, table sizes, and counts of recoveries and refusals.
//!
//! It serves tests, the simulator and people who search for an error; the engine does not depend on
//! it.

use super::*;
use crate::work::LeaseCounts;

/// The state of an engine at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineReport {
    /// The leases of this node's own tasks.
    pub leases: LeaseCounts,
    /// The sizes of the engine's tables.
    pub tables: TableSizes,
    /// Tasks that arrived under a lease already present here. There must be none.
    pub doubled: u64,
    /// Whether the node leaves the job.
    pub leaving: bool,
    /// Whether the engine is closed.
    pub closed: bool,
    /// Compute threads that have not ended.
    pub threads: usize,
    /// The number of recoveries and refusals, by name.
    pub events: BTreeMap<&'static str, u64>,
}

/// The sizes of an engine's tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableSizes {
    /// Tasks of other nodes that run here or wait for a thread.
    pub stolen: usize,
    /// Tasks of other nodes that wait for shared objects.
    pub waiting: usize,
    /// The number of leases of halted trees, whose tasks continue for a successor.
    pub moved: usize,
    /// The number of tasks that were returned because the node leaves.
    pub returned_tasks: usize,
    /// The number of adopted tasks that run on other nodes.
    pub adopted: usize,
    /// Messages that wait for a link.
    pub parked: usize,
    /// Messages that wait for room in the network's queues.
    pub unsent: usize,
    /// Bytes of kept results.
    pub results_bytes: usize,
    /// The bound on the bytes of kept results.
    pub results_max: usize,
    /// Pointers to results on other nodes.
    pub known_results: usize,
}

/// The waits of one node, for the diagnosis of a job that makes no progress.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WaitGraph {
    /// Tasks that threads of this node wait for, with their holders.
    pub awaited: Vec<(TaskPath, NodeId)>,
    /// Tasks of this node that others have leased, with their holders.
    pub leased: Vec<(TaskPath, NodeId)>,
    /// Tasks of other nodes here: the path, the owner, the thread that runs it, and whether it is
    /// an orphan.
    pub stolen: Vec<(TaskPath, NodeId, Option<u32>, bool)>,
}

/// The number of entries of each list that are displayed.
const DISPLAYED_MAX: usize = 20;

impl std::fmt::Display for WaitGraph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let list = |all: &[(TaskPath, NodeId)]| {
            let all =
                all.iter().take(DISPLAYED_MAX).map(|(path, node)| format!("{path} at {node}"));
            all.collect::<Vec<_>>().join(", ")
        };
        let stolen = self.stolen.iter().take(DISPLAYED_MAX).map(|(path, owner, thread, orphan)| {
            let by = thread.map_or("not begun".to_owned(), |thread| format!("thread {thread}"));
            let orphan = if *orphan { ", an orphan" } else { "" };
            format!("{path} of {owner} ({by}{orphan})")
        });
        let stolen = stolen.collect::<Vec<_>>().join(", ");
        let (awaited, leased) = (list(&self.awaited), list(&self.leased));
        write!(f, "waits for [{awaited}]; lent [{leased}]; has [{stolen}]")
    }
}

/// Observes an engine without keeping it alive, and keeps its last state when it ends.
#[derive(Clone)]
pub struct EngineWatch {
    job: JobId,
    me: Peer,
    inner: Weak<EngineCore>,
    last: Arc<OnceLock<EngineReport>>,
}

impl EngineWatch {
    /// The job of the engine.
    pub fn job(&self) -> JobId {
        self.job
    }

    /// The node of the engine.
    pub fn me(&self) -> &Peer {
        &self.me
    }

    /// Whether the engine has ended.
    pub fn is_over(&self) -> bool {
        self.last.get().is_some()
    }

    /// The current waits of the node; `None` when the engine has ended.
    pub fn waits(&self) -> Option<WaitGraph> {
        self.inner.upgrade().map(|inner| inner.waits())
    }

    /// The current or last state of the engine.
    pub fn report(&self) -> EngineReport {
        let now = self.inner.upgrade().map(|inner| inner.engine_report());
        now.or_else(|| self.last.get().cloned()).unwrap_or_default()
    }
}

impl Engine {
    /// Creates an observer of this engine.
    pub fn watch(&self) -> EngineWatch {
        EngineWatch {
            job: self.0.job,
            me: self.0.me.clone(),
            inner: Arc::downgrade(&self.0),
            last: self.0.last_report.clone(),
        }
    }
}

impl EngineState {
    /// Counts an unusual event, such as a recovery or a refusal.
    pub(super) fn count_event(&mut self, what: &'static str) {
        *self.event_counts.entry(what).or_default() += 1;
    }

    /// Whether a message comes from a dead incarnation: older than the member's, or declared dead.
    /// Its statements about tasks and leases are void.
    pub(super) fn is_dead(&self, peer: &Peer) -> bool {
        let member = self.view.members.get(&peer.node);
        member.is_some_and(|member| peer.incarnation < member.incarnation)
            || self.dead.get(&peer.node).is_some_and(|dead| peer.incarnation <= *dead)
    }
}

impl EngineCore {
    fn waits(&self) -> WaitGraph {
        let pool = self.pool.get();
        let awaited = pool.map(Pool::awaited).unwrap_or_default().into_iter();
        let awaited = awaited.map(|(_, path, holder)| (path, holder.node)).collect();
        let leased = pool.map(|pool| pool.leased_below(&TaskPath::root())).unwrap_or_default();
        let leased = leased.into_iter().map(|place| (place.identity.path, place.holder.node));
        let leased = leased.collect();
        let state = self.state();
        let stolen = state.stolen.values().map(|stolen| {
            let Stolen { base, task, owner, orphan, .. } = stolen;
            (task.path.clone(), owner.node.clone(), base.thread(), *orphan)
        });
        WaitGraph { awaited, leased, stolen: stolen.collect() }
    }

    pub(super) fn engine_report(&self) -> EngineReport {
        let leases = self.pool.get().map(Pool::lease_counts).unwrap_or_default();
        let stale = self.post.dropped_messages();
        let state = self.state();
        let mut met = state.event_counts.clone();
        if stale > 0 {
            met.insert("refused: a message of a configuration that is over", stale);
        }
        let (results_bytes, results_max) = state.results.size();
        let tables = TableSizes {
            stolen: state.stolen.len(),
            waiting: state.waiting.len(),
            moved: state.moved.len(),
            returned_tasks: state.returned_tasks.len(),
            adopted: state.adopted.len(),
            parked: state.parked.values().map(Vec::len).sum(),
            unsent: state.unsent.len(),
            results_bytes,
            results_max,
            known_results: state.known_results.len(),
        };
        EngineReport {
            leases,
            tables,
            doubled: state.doubled,
            leaving: state.leaving,
            closed: self.closing.load(Ordering::Acquire),
            threads: self.threads_left.load(Ordering::Acquire),
            events: met,
        }
    }
}
