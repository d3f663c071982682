//! The planned move of a job's root to another node.
//!
//! The root stops here, at a checkpoint or at once. Its partial results go to the node that starts
//! it again. This module knows neither who decides on the move nor how the job gets its next epoch.

use serde::Deserialize;

use super::*;

/// The end of a job's root on this node.
#[derive(Debug)]
pub enum RootEnd {
    /// The root ran to its end, or failed.
    Ended(Result<Outcome, Failure>),
    /// The root was stopped and continues on another node: see [`Engine::stop_root`].
    Stopped(RootResults),
}

/// The time at which a root stops.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopRoot {
    /// After its next checkpoint: nothing is computed twice. A root without checkpoints never
    /// stops.
    AtCheckpoint,
    /// At its next call into the runtime. Its tasks on other nodes continue for the successor.
    Now {
        /// The node on which the root continues.
        successor: NodeId,
    },
}

/// The partial results of a stopped root, for the node that starts it again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RootResults {
    /// Finished descendants of the root whose arguments are known. Unlike a returned task, a
    /// restarted root need not create the same children, so a path does not identify them.
    pub finished: Vec<FinishedTask>,
    /// Descendants that other nodes execute or have finished.
    pub running: Vec<ResultLocation>,
}

/// A finished task and its output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FinishedTask {
    /// The identity of the task.
    pub task: TaskIdentity,
    /// The task's encoded output.
    pub output: Bytes,
}

impl RootResults {
    /// Drops the descendants of children before this index: a root that continues from a checkpoint
    /// does not create these again.
    pub fn forget_before(&mut self, next_child: u32) {
        let is_over =
            |task: &TaskIdentity| task.path.0.first().is_some_and(|child| *child < next_child);
        self.finished.retain(|finished| !is_over(&finished.task));
        self.running.retain(|place| !is_over(&place.identity));
    }
}

/// The job's root while it runs here.
pub(super) struct RootTree {
    base: Arc<Base>,
    /// The node on which the root continues, once known.
    pub(super) successor: Option<Peer>,
}

impl Engine {
    /// Runs the job's root here, from its start or, by [`Job::resume`](crate::work::Job::resume),
    /// from a checkpoint. `done` is called on a compute thread at its end, unless another root has
    /// replaced it by then.
    pub fn run_job(
        &self,
        job: &JobEntry,
        body: Bytes,
        resume: Option<SavedRoot>,
        done: impl FnOnce(RootEnd) + Send + 'static,
    ) {
        self.cancel_root();
        let mut state = self.0.state();
        state.roots += 1;
        let base = root_base(job.name, RootStart::of(&self.0.me, state.roots));
        state.root = Some(RootTree { base: base.clone(), successor: None });
        drop(state);
        let (inner, tree) = (self.0.clone(), base.clone());
        let ended = move |outcome: Result<_, Stop>| {
            if let Some(end) = inner.root_ended(&tree, outcome) {
                done(end);
            }
        };
        self.0.pool_ref().run_root(base, job, body, resume, ended);
    }

    /// Stops the job's root, if it runs here. `done` reports the end as usual: [`RootEnd::Stopped`]
    /// unless the root ended earlier.
    pub fn stop_root(&self, when: &StopRoot) {
        let base = {
            let mut state = self.0.state();
            let successor = match when {
                StopRoot::AtCheckpoint => None,
                StopRoot::Now { successor: heir } => state.peer(heir),
            };
            let Some(root) = &mut state.root else { return };
            root.successor = successor;
            root.base.clone()
        };
        match when {
            StopRoot::AtCheckpoint => self.0.pool_ref().stop_root(&base),
            StopRoot::Now { .. } => self.0.pool_ref().halt_tree(&base, Halt::Leave),
        }
    }

    /// Detaches a root that was ordered to stop [now](StopRoot::Now) but computes on without calls,
    /// so that its successor need not wait.
    ///
    /// Returns its partial results. Its later reports are discarded, and so is its end. `None` if
    /// it does not run here or was not ordered to stop.
    pub fn detach_root(&self) -> Option<RootResults> {
        let state = self.0.state();
        let root = state.root.as_ref().filter(|root| root.successor.is_some())?;
        if root.base.root.is_detached() {
            return None;
        }
        root.base.root.detach();
        let mut left = state.partial_results_of_root(&root.base);
        // It still holds these leases, and will disown the tasks at its next call.
        let lent = self.0.pool_ref().leased_below(&root.base.path);
        left.running.extend(lent.into_iter().filter(|place| state.is_of_root(&place.identity)));
        Some(left)
    }

    /// Stops the job's root, if it runs here, because another node has it by now. Its later reports
    /// are discarded, and its publications are refused.
    pub fn cancel_root(&self) {
        // A detached root still names its successor at its next call.
        let root = self.0.state().root.take_if(|root| !root.base.root.is_detached());
        if let Some(root) = root {
            root.base.root.detach();
            self.0.pool_ref().halt_tree(&root.base, Halt::Cancelled);
        }
    }

    /// Accepts the partial results of the job's root, which is about to start here.
    pub fn inherit_root(&self, left: RootResults) {
        let now = Instant::now();
        let depth = {
            let mut state = self.0.state();
            let me = self.0.me.clone();
            for FinishedTask { task, output } in left.finished {
                let owner = me.node.clone();
                let identity = task.clone();
                state.results.keep(StoredResult { identity, owner, output, claimed: true });
                state
                    .known_results
                    .learn(ResultLocation { identity: task, holder: me.clone() }, now);
            }
            for place in left.running {
                if state.view.members.contains_key(&place.holder.node) {
                    state.known_results.learn(place, now);
                }
            }
            state.known_results.depth()
        };
        self.0.pool_ref().recover(depth);
    }
}

impl EngineCore {
    fn root_ended(&self, tree: &Arc<Base>, outcome: Result<Outcome, Stop>) -> Option<RootEnd> {
        let mut state = self.state();
        // Another root may have started here since this one was cancelled.
        let root = state.root.take_if(|root| Arc::ptr_eq(&root.base, tree))?;
        if tree.root.is_detached() {
            return None;
        }
        Some(match outcome {
            Err(stop) if matches!(*stop.0, StopCause::Halt(Halt::Leave)) => {
                // At a checkpoint no task of it is unfinished.
                let at_once = root.successor.is_some();
                let left = at_once.then(|| state.partial_results_of_root(&root.base));
                RootEnd::Stopped(left.unwrap_or_default())
            }
            outcome => RootEnd::Ended(outcome.map_err(into_failure)),
        })
    }
}

impl EngineState {
    /// Whether this is certainly a task of the root that runs here, and of no other node's task.
    fn is_of_root(&self, task: &TaskIdentity) -> bool {
        let others = || self.stolen.values().any(|s| is_below(&task.path, &s.task.path));
        !task.is_trusted() && !others()
    }

    /// The finished and running tasks of the root, as far as they are known. Those of other nodes'
    /// tasks are excluded.
    fn partial_results_of_root(&self, base: &Base) -> RootResults {
        let finished = self.results.all().filter(|finished| self.is_of_root(&finished.identity));
        let finished = finished.map(|finished| FinishedTask {
            task: finished.identity.clone(),
            output: finished.output.clone(),
        });
        let known = self.known_results.below(&base.path).cloned();
        let mut running = base.take_results().leased;
        running.extend(known);
        running.retain(|place| self.is_of_root(&place.identity));
        RootResults { finished: finished.collect(), running }
    }
}
