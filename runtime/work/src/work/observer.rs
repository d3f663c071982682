//! The callbacks of compute threads to their node.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::core::remote_task::{Encoded, LeaseId};
use super::outcome::Stop;
use super::recover::TaskIdentity;
use super::report::ProgressReport;
use crate::id::{Peer, TaskPath};
use crate::share::SharedObjects as Objects;
use crate::spmd::post::Dispatcher;

/// The callbacks of compute threads to their node. They run on compute threads and must not block.
pub trait PoolObserver: Send + Sync {
    /// A thread found no work on this node.
    fn idle(&self);
    /// There is work that another node may take, as `Pool::request_surplus_notice` requested.
    fn surplus(&self);
    /// A task of another node has ended.
    fn finished(&self, owner: Peer, lease: LeaseId, outcome: Result<Bytes, Stop>);
    /// A leased task was abandoned.
    fn abandoned(&self, thief: &Peer, lease: LeaseId);
    /// A leased task stays with `thief` because its tree, with the top at `tree`, stops when this
    /// node leaves. A later execution of the tree may use it there.
    fn disowned(&self, tree: &TaskPath, thief: &Peer, lease: LeaseId, task: TaskIdentity) {
        let _ = (tree, task);
        self.abandoned(thief, lease);
    }
    /// A stolen task ran for this time.
    fn task_ran(&self, time: Duration);
    /// A stolen task with these arguments succeeded.
    fn task_done(&self, owner: &Peer, lease: LeaseId, body: &Bytes, time: Duration) {
        let _ = (owner, lease, body, time);
    }
    /// A result of another node waited this long until its task took it.
    fn join_delayed(&self, time: Duration);
    /// A sleeping thread of this node ran this long after it was woken for work.
    fn thread_woke(&self, time: Duration);
    /// A thread took a tick while ticks paused: see `Pool::tick`.
    fn tick_taken(&self) {}
    /// The job sent a report.
    fn note(&self, note: ProgressReport);
    /// The job's shared objects on this node.
    fn objects(&self) -> &Objects;
    /// Looks up the result of a task that is about to run on this thread, while results of lost
    /// work are known. `encode` encodes the task for comparison.
    fn lookup_cached(
        &self,
        thread: u32,
        path: &TaskPath,
        name: &str,
        encode: &dyn Fn() -> Option<Encoded>,
    ) -> CachedResult {
        let _ = (thread, path, name, encode);
        CachedResult::Missing
    }
    /// Whether this thread may start a task that another node started and returned. It may not if
    /// parts of the task lie further down its stack, for which it would wait.
    fn may_start(&self, thread: u32, path: &TaskPath) -> bool {
        let _ = (thread, path);
        true
    }
    /// A task that [`PoolObserver::lookup_cached`] found on `holder` now has this lease there.
    fn adopt(&self, holder: &Peer, lease: LeaseId, task: TaskIdentity) {
        let _ = (holder, lease, task);
    }
    /// The node's part in SPMD programs; `None` if the pool does not support them.
    #[doc(hidden)]
    fn post(&self) -> Option<&Arc<Dispatcher>> {
        None
    }
    /// Calls nodes with free threads soon to take processes that were spawned here.
    fn call_free_nodes(&self) {}
    /// The reason why the job does not get the nodes it last requested, once known.
    fn refused(&self) -> Option<String> {
        None
    }
    /// Clears the refusal, because the job requests nodes again.
    fn clear_refusal(&self) {}
    /// Takes the messages that the job's client has sent to the root, in order. `wake` is called
    /// when another one arrives.
    fn take_client_messages(&self, wake: WakeRoot) -> Vec<Bytes> {
        drop(wake);
        Vec::new()
    }
    /// Whether the job's client has sent messages that the root has not taken.
    fn has_client_messages(&self) -> bool {
        false
    }
    /// A thread has ended, after `Pool::close`.
    fn ended(&self);
}

/// Wakes the thread of a job's root.
pub type WakeRoot = Arc<dyn Fn() + Send + Sync>;

/// The result of [`PoolObserver::lookup_cached`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CachedResult {
    /// There is no result.
    Missing,
    /// The encoded output.
    Local(Bytes),
    /// The node that has this task, finished or running.
    Remote(Peer, TaskIdentity),
}
