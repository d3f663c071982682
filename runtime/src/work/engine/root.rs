//! The planned move of a job's root: it is stopped here, when it has left a checkpoint or at once, and what is finished or runs
//! elsewhere of it goes along to the node that starts it again.
//!
//! Must not know who decides that it moves, nor how the job gets its next epoch.

use serde::Deserialize;

use super::*;

/// How a job's root came to its end here.
#[derive(Debug)]
pub enum RootEnd {
    /// It ran to its end, or failed.
    Ended(Result<Outcome, Failure>),
    /// It was stopped, to go on elsewhere: see [`Engine::stop_root`].
    Stopped(RootLeft),
}

/// When a root stops.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopRoot {
    /// When it has left its next checkpoint: nothing is computed twice. A root that makes none never stops.
    AtCheckpoint,
    /// At its next call into the runtime. What other nodes run of it goes on there, for this node.
    Now {
        /// Where the root is to go on.
        heir: NodeId,
    },
}

/// What is left of a root that was stopped, for the node that starts it again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RootLeft {
    /// Finished below it. Only what is known in full, its arguments too: unlike a task that came back, a root that is started
    /// again need not make the same children.
    pub finished: Vec<FinishedTask>,
    /// Tasks below it that other nodes run, or have finished.
    pub running: Vec<Place>,
}

/// A finished task and its output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FinishedTask {
    /// Which.
    pub task: Identity,
    /// Its encoded output.
    pub output: Bytes,
}

impl RootLeft {
    /// Without what lies under children that a root does not make again which goes on from a checkpoint: those before this
    /// index.
    pub fn forget_before(&mut self, next_child: u32) {
        let is_over =
            |task: &Identity| task.path.0.first().is_some_and(|child| *child < next_child);
        self.finished.retain(|finished| !is_over(&finished.task));
        self.running.retain(|place| !is_over(&place.identity));
    }
}

/// The job's root, while it runs here.
pub(super) struct RootTree {
    base: Arc<Base>,
    /// Where it goes on, once that is known.
    pub(super) heir: Option<Peer>,
}

impl Engine {
    /// Runs the job's root here, from its start or, by [`Job::resume`](crate::work::Job::resume), from a checkpoint; `done`
    /// is called on a compute thread with its end, unless another root has taken its place by then.
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
        let base = root_base(job.name, Start::of(&self.0.me, state.roots));
        state.root = Some(RootTree { base: base.clone(), heir: None });
        drop(state);
        let (inner, tree) = (self.0.clone(), base.clone());
        let ended = move |outcome: Result<_, Stop>| {
            if let Some(end) = inner.root_ended(&tree, outcome) {
                done(end);
            }
        };
        self.0.pool_ref().run_root(base, job, body, resume, ended);
    }

    /// Stops the job's root, if it runs here; its end is told as always, and is [`RootEnd::Stopped`] unless it was faster.
    pub fn stop_root(&self, when: &StopRoot) {
        let base = {
            let mut state = self.0.state();
            let heir = match when {
                StopRoot::AtCheckpoint => None,
                StopRoot::Now { heir } => state.peer(heir),
            };
            let Some(root) = &mut state.root else { return };
            root.heir = heir;
            root.base.clone()
        };
        match when {
            StopRoot::AtCheckpoint => self.0.pool_ref().stop_root(&base),
            StopRoot::Now { .. } => self.0.pool_ref().halt_tree(&base, Halt::Leave),
        }
    }

    /// What is left of a root that was told to stop [now](StopRoot::Now) and computes on, for it makes no call: its heir need not wait
    /// for it. Nothing that it says from here on is heard, its end neither. None: it does not run here, or was not told.
    pub fn leave_root_behind(&self) -> Option<RootLeft> {
        let state = self.0.state();
        let root = state.root.as_ref().filter(|root| root.heir.is_some())?;
        if root.base.root.is_left_behind() {
            return None;
        }
        root.base.root.leave_behind();
        let mut left = state.left_of_root(&root.base);
        // Leases that it holds still, under which it will disown the tasks when it makes a call.
        let lent = self.0.pool_ref().leased_below(&root.base.path);
        left.running.extend(lent.into_iter().filter(|place| state.is_of_root(&place.identity)));
        Some(left)
    }

    /// Stops the job's root, if one runs here, for good: another node has it by now. What it still says is not heard, and what it
    /// publishes is refused.
    pub fn cancel_root(&self) {
        // One that was left behind names its heir still when it makes a call.
        let root = self.0.state().root.take_if(|root| !root.base.root.is_left_behind());
        if let Some(root) = root {
            root.base.root.leave_behind();
            self.0.pool_ref().halt_tree(&root.base, Halt::Cancelled);
        }
    }

    /// Takes over what is left of the job's root, which is about to be started here.
    pub fn inherit_root(&self, left: RootLeft) {
        let now = Instant::now();
        let depth = {
            let mut state = self.0.state();
            let me = self.0.me.clone();
            for FinishedTask { task, output } in left.finished {
                let owner = me.node.clone();
                let identity = task.clone();
                state.results.keep(Finished { identity, owner, output, claimed: true });
                state.known.learn(Place { identity: task, holder: me.clone() }, now);
            }
            for place in left.running {
                if state.view.members.contains_key(&place.holder.node) {
                    state.known.learn(place, now);
                }
            }
            state.known.depth()
        };
        self.0.pool_ref().recover(depth);
    }
}

impl Inner {
    fn root_ended(&self, tree: &Arc<Base>, outcome: Result<Outcome, Stop>) -> Option<RootEnd> {
        let mut state = self.state();
        // Another may have begun here since this one was cancelled.
        let root = state.root.take_if(|root| Arc::ptr_eq(&root.base, tree))?;
        if tree.root.is_left_behind() {
            return None;
        }
        Some(match outcome {
            Err(stop) if matches!(*stop.0, Cause::Halt(Halt::Leave)) => {
                // At a checkpoint nothing of it is under way.
                let at_once = root.heir.is_some();
                let left = at_once.then(|| state.left_of_root(&root.base));
                RootEnd::Stopped(left.unwrap_or_default())
            }
            outcome => RootEnd::Ended(outcome.map_err(into_failure)),
        })
    }
}

impl State {
    /// Whether this is known to be a task of the root that runs here: not one that belongs to a task of others.
    fn is_of_root(&self, task: &Identity) -> bool {
        let others = || self.stolen.values().any(|s| is_below(&task.path, &s.task.path));
        !task.is_trusted() && !others()
    }

    /// What is known to be finished, or to run elsewhere, of the root. What belongs to tasks of others that run here stays.
    fn left_of_root(&self, base: &Base) -> RootLeft {
        let finished = self.results.all().filter(|finished| self.is_of_root(&finished.identity));
        let finished = finished.map(|finished| FinishedTask {
            task: finished.identity.clone(),
            output: finished.output.clone(),
        });
        let known = self.known.below(&base.path).cloned();
        let mut running = base.take_left().leased;
        running.extend(known);
        running.retain(|place| self.is_of_root(&place.identity));
        RootLeft { finished: finished.collect(), running }
    }
}
