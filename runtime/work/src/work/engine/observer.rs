//! The callbacks of compute threads to the engine. They run on compute threads and do not block.

use super::*;

/// The engine as its pool sees it. The engine owns the pool, so this must not keep the engine
/// alive.
pub(super) struct EngineObserver {
    pub(super) inner: Weak<EngineCore>,
    pub(super) objects: Objects,
    pub(super) post: Arc<Dispatcher>,
}

impl EngineObserver {
    /// Calls the engine, if it still exists.
    fn with_engine(&self, call: impl FnOnce(&EngineCore)) {
        if let Some(inner) = self.inner.upgrade() {
            call(&inner);
        }
    }
}

impl PoolObserver for EngineObserver {
    fn idle(&self) {
        let Some(inner) = self.inner.upgrade() else { return };
        inner.driver.notify_one();
    }

    fn surplus(&self) {
        let Some(inner) = self.inner.upgrade() else { return };
        inner.surplus.store(true, Ordering::Release);
        inner.driver.notify_one();
    }

    fn tick_taken(&self) {
        self.with_engine(|inner| inner.driver.notify_one());
    }

    fn finished(&self, owner: Peer, lease: LeaseId, outcome: Result<Bytes, Stop>) {
        let Some(inner) = self.inner.upgrade() else { return };
        let stolen = inner.state().stolen.remove(&(owner.node.clone(), lease));
        if matches!(&outcome, Err(stop) if matches!(*stop.0, StopCause::Halt(_))) {
            // A halted tree has ended, so the signal for halted trees may be cleared.
            inner.driver.notify_one();
        }
        let (outcome, end) = match outcome {
            Ok(body) => (TaskOutcome::Output(body), StolenTaskEnd::Done),
            Err(stop) => match *stop.0 {
                StopCause::Failed(failure) => (TaskOutcome::Failed(failure), StolenTaskEnd::Failed),
                StopCause::Halt(Halt::Leave) => {
                    if let Some(stolen) = stolen {
                        inner.return_stolen(&owner, lease, stolen);
                    }
                    return;
                }
                // No other node needs the result.
                StopCause::Halt(Halt::Cancelled | Halt::OwnerLost) => {
                    if let Some(stolen) = stolen {
                        inner.ended(&stolen.task.path, &owner, StolenTaskEnd::Stopped);
                        inner.state().tree_ended(&stolen.task.path);
                    }
                    return;
                }
            },
        };
        let Some(Stolen { task, process, orphan, successor, adopters, .. }) = stolen else {
            return;
        };
        inner.ended(&task.path, &owner, end);
        if let TaskOutcome::Output(output) = &outcome
            && !process
        {
            let mut state = inner.state();
            let path = task.path.clone();
            let claimed = !orphan || !adopters.is_empty();
            state.results.keep(StoredResult {
                identity: task.clone(),
                owner: successor.as_ref().unwrap_or(&owner).node.clone(),
                output: output.clone(),
                claimed,
            });
            let leaving = state.leaving && !claimed;
            inner.finished_below(state, &path);
            if leaving && let Some(successor) = &successor {
                let output = Some(output.clone());
                let left = PartialResults::default();
                inner.hand_over(successor, inner.handover(task, output, left));
            }
        }
        for Adopter { peer, lease, .. } in adopters {
            let outcome = outcome.clone();
            inner.report(&peer, TaskResult { job: inner.job, lease, outcome });
        }
        if !orphan {
            inner.report(&owner, TaskResult { job: inner.job, lease, outcome });
        }
    }

    fn lookup_cached(
        &self,
        thread: u32,
        path: &TaskPath,
        name: &str,
        encode: &dyn Fn() -> Option<Encoded>,
    ) -> CachedResult {
        let Some(inner) = self.inner.upgrade() else { return CachedResult::Missing };
        if inner.state().known_results.at(path).is_none() {
            return CachedResult::Missing;
        }
        // Users' code encodes the task, so the lock is not held.
        let Some(encoded) = encode() else { return CachedResult::Missing };
        let task = encoded.identity(path.clone(), name);
        let (recalled, depth) = {
            let mut state = inner.state();
            let Some(place) = state.known_results.take(path) else { return CachedResult::Missing };
            let recalled = if !place.identity.is(&task) {
                state.counters.tasks.reuse_misses += 1;
                state.count_event("refused: a result of another task at the same place");
                CachedResult::Missing
            } else if let Some(output) = state.results.find(&task).cloned() {
                state.count_event("a result of lost work is used again");
                CachedResult::Local(output)
            } else if state.stolen.values().any(|s| s.task == task && s.base.is_run_by(thread)) {
                // It lies further down the stack that would wait for it.
                CachedResult::Missing
            } else {
                CachedResult::Remote(place.holder, task)
            };
            if !matches!(recalled, CachedResult::Missing) {
                state.counters.tasks.reused += 1;
            }
            (recalled, state.known_results.depth())
        };
        inner.pool_ref().recover(depth);
        if let CachedResult::Missing = recalled {
            inner.recorder.record(Event::ReuseMissed {
                job: inner.job,
                path: path.clone(),
                task: name.to_owned(),
            });
        }
        recalled
    }

    fn may_start(&self, thread: u32, path: &TaskPath) -> bool {
        let Some(inner) = self.inner.upgrade() else { return true };
        let state = inner.state();
        if state.known_results.below(path).all(|place| place.identity.path == *path) {
            return true;
        }
        let part = |s: &Stolen| is_below(&s.task.path, path) && s.base.is_run_by(thread);
        !state.stolen.values().any(part)
    }

    fn adopt(&self, holder: &Peer, lease: LeaseId, task: TaskIdentity) {
        let Some(inner) = self.inner.upgrade() else { return };
        let again = Instant::now() + ASK_INTERVAL;
        {
            let mut state = inner.state();
            let member = state.view.members.get(&holder.node);
            if member.is_none_or(|member| member.incarnation != holder.incarnation) {
                drop(state);
                // The holder is lost since it was announced, so no later event would reclaim this.
                inner.reclaim(lease, "its holder is lost");
                return;
            }
            state.adopted.insert(lease, (again, holder.clone(), task.clone()));
        }
        inner.send_adopt(holder, lease, task);
        inner.driver.notify_one();
    }

    fn abandoned(&self, thief: &Peer, lease: LeaseId) {
        let Some(inner) = self.inner.upgrade() else { return };
        inner.abandoned_leases.fetch_add(1, Ordering::Relaxed);
        inner.send(
            &thief.node,
            Kind::TASK_ABANDON,
            &Abandon { job: inner.job, lease, successor: None },
        );
    }

    fn disowned(&self, tree: &TaskPath, thief: &Peer, lease: LeaseId, task: TaskIdentity) {
        let Some(inner) = self.inner.upgrade() else { return };
        let successor = {
            let mut state = inner.state();
            let stolen = state.stolen.values().find(|stolen| stolen.task.path == *tree);
            let of_root = state.root.as_ref().filter(|_| tree.0.is_empty());
            let successor = stolen.and_then(Stolen::receiver);
            let successor = successor.or_else(|| of_root?.successor.as_ref()).cloned();
            if let Some(successor) = &successor {
                state.moved.insert(lease, (task, successor.clone()));
            }
            successor
        };
        if thief.node == inner.me.node {
            // The task was adopted from this same node.
            if let Some(successor) = successor {
                inner.state().inherit(thief, lease, successor);
            }
            return;
        }
        inner.send(&thief.node, Kind::TASK_ABANDON, &Abandon { job: inner.job, lease, successor });
    }

    fn task_done(&self, owner: &Peer, lease: LeaseId, body: &Bytes, time: Duration) {
        let Some(inner) = self.inner.upgrade() else { return };
        let Some(metering) = &inner.metering else { return };
        let key = (owner.node.clone(), lease);
        let task = inner.state().stolen.get(&key).filter(|s| !s.process).map(|s| s.task.clone());
        let Some(task) = task else { return };
        let needs_objects = !task.needs.is_empty();
        metering.offer(&BenchmarkOffer {
            name: &task.name,
            path: &task.path,
            body,
            time,
            needs_objects,
        });
    }

    fn task_ran(&self, time: Duration) {
        self.with_engine(|inner| inner.state().latencies.task.record(time));
    }

    fn join_delayed(&self, time: Duration) {
        self.with_engine(|inner| inner.state().latencies.join_delay.record(time));
    }

    fn thread_woke(&self, time: Duration) {
        self.with_engine(|inner| inner.state().latencies.wake.record(time));
    }

    fn note(&self, note: ProgressReport) {
        self.with_engine(|inner| (inner.notes)(note));
    }

    fn objects(&self) -> &Objects {
        &self.objects
    }

    fn post(&self) -> Option<&Arc<Dispatcher>> {
        Some(&self.post)
    }

    fn call_free_nodes(&self) {
        self.with_engine(EngineCore::call_free_nodes_soon);
    }

    fn refused(&self) -> Option<String> {
        self.inner.upgrade()?.state().refused.clone()
    }

    fn clear_refusal(&self) {
        self.with_engine(|inner| inner.state().refused = None);
    }

    fn take_client_messages(&self, wake: WakeRoot) -> Vec<Bytes> {
        let Some(inner) = self.inner.upgrade() else { return Vec::new() };
        let mut state = inner.state();
        let messages = &mut state.client_messages;
        messages.bytes = 0;
        messages.wake = Some(wake);
        messages.waiting.drain(..).collect()
    }

    fn has_client_messages(&self) -> bool {
        self.inner.upgrade().is_some_and(|it| !it.state().client_messages.waiting.is_empty())
    }

    fn ended(&self) {
        self.with_engine(|inner| {
            inner.threads_left.fetch_sub(1, Ordering::AcqRel);
            // All waiters: a node may be ordered to leave twice.
            inner.ended.notify_waiters();
        });
    }
}

impl Drop for EngineCore {
    /// Closes the pool, since its threads have no engine to report to.
    fn drop(&mut self) {
        if let Some(pool) = self.pool.get() {
            pool.close();
        }
        let _ = self.last_report.set(self.engine_report());
    }
}
