//! The victim's side of a steal: the engine answers steal requests, leases tasks to thieves, and
//! accepts results and returned tasks.
//!
//! `steal::waiting_thieves` decides which nodes get hints. This module does not know how thieves
//! choose victims.

use super::*;

impl EngineCore {
    pub(super) fn on_steal_request(&self, from: &Peer, request: StealRequest) {
        let pool = self.pool_ref();
        let StealRequest { id, awaited, .. } = request;
        let gives = {
            let mut state = self.state();
            // No event would reclaim a task from a node that is not a member (no longer, or not
            // yet).
            let member = state.view.members.get(&from.node);
            let member = member.is_some_and(|member| member.incarnation == from.incarnation);
            if !member {
                state.count_event("refused: a request from a non-member");
            }
            !state.leaving && member
        };
        let task = if gives { self.export(from, awaited.as_ref()) } else { None };
        let scope = self.state().thief.scope_of(&from.node);
        if task.is_none()
            && let Some(path) = &awaited
        {
            // The awaited task has not even started here: return it.
            if let Some(task) = pool.take_back(from, path) {
                let stolen = self.state().stolen.remove(&(from.node.clone(), task.lease));
                if let Some(stolen) = stolen {
                    self.ended(&stolen.task.path, from, StolenTaskEnd::HandedBack);
                }
                self.send_return(from, task.lease, PartialResults::default());
            }
        }
        let reply = StealReply { job: self.job, id, task };
        let sent = answer(&self.net, from, &reply);
        match (reply.task, sent) {
            (Some(task), Err(why)) => self.reclaim(task.lease, &why),
            (Some(_), Ok(())) => self.state().waiting_thieves.remove_waiting(&from.node),
            (None, _) => {
                if awaited.is_none() {
                    self.return_overdue(Instant::now());
                    self.state().waiting_thieves.add_waiting(&from.node, scope);
                    // There may be work by now; otherwise the pool must notify the engine of the
                    // next.
                    if self.hint_waiting(pool, Instant::now()).is_some() {
                        self.driver.notify_one();
                    }
                }
            }
        }
    }

    /// Returns a task of another node that has waited too long for a thread, since a thief asks.
    ///
    /// The threads took other tasks while it was under way. A thief cannot steal it from here, but
    /// from its owner.
    fn return_overdue(&self, now: Instant) {
        let overdue: Vec<(NodeId, LeaseId)> = {
            let state = self.state();
            let is_overdue = |stolen: &Stolen| {
                // A leaving owner cannot give it to another.
                let goes = !stolen.process && state.view.stays(&stolen.owner.node);
                goes && now.saturating_duration_since(stolen.since) >= START_WAIT_MAX
            };
            let overdue = state.stolen.iter().filter(|(_, stolen)| is_overdue(stolen));
            overdue.map(|(key, _)| key.clone()).collect()
        };
        if overdue.is_empty() {
            return;
        }
        let unstarted = self
            .pool_ref()
            .take_incoming(|task| overdue.contains(&(task.owner.node.clone(), task.lease)));
        let Some(Incoming { owner, lease, .. }) = unstarted else { return };
        let stolen = self.state().stolen.remove(&(owner.node.clone(), lease));
        if let Some(stolen) = stolen {
            self.state().count_event("a task that waits for a thread goes back");
            self.return_stolen(&owner, lease, stolen);
        }
    }

    /// Leases an unstarted task, if there is one, to a node that is a member. With `below`, only a
    /// task at or below this path.
    pub(super) fn export(&self, to: &Peer, below: Option<&TaskPath>) -> Option<StolenTask> {
        let start = self.next_deque.fetch_add(1, Ordering::Relaxed);
        let Export { lease, task, encoded } = self.pool_ref().export(to, below, start)?;
        Some(StolenTask {
            lease,
            result_locations: self.locations_below(&task),
            start: task.start,
            path: task.path,
            name: task.name,
            needs: encoded.needs,
            body: encoded.body,
        })
    }

    /// Requeues, without delay, a task that did not reach its thief.
    pub(super) fn reclaim(&self, lease: LeaseId, why: &str) {
        self.take_back(lease, "a task that was not sent is taken back", why);
    }

    pub(super) fn record_reclaimed(&self, path: TaskPath, thief: &Peer, why: &str) {
        let (job, holder, why) = (self.job, thief.node.clone(), why.to_owned());
        self.recorder.record(Event::LeaseReclaimed { job, path, holder, why });
    }

    pub(super) fn on_result(&self, from: &Peer, result: TaskResult) {
        let delivery = match result.outcome {
            TaskOutcome::Output(body) => {
                self.state().counters.results.bytes += body.len() as u64;
                Ok(body)
            }
            TaskOutcome::Failed(failure) => Err(failure),
        };
        let output = delivery.as_ref().ok().cloned();
        if let Some(task) = self.pool_ref().complete(result.lease, delivery) {
            // In case this node leaves before the task's parent has ended.
            let Some(output) = output else { return };
            let mut state = self.state();
            let path = task.path.clone();
            let owner = self.me.node.clone();
            state.results.keep(StoredResult { identity: task, owner, output, claimed: true });
            self.finished_below(state, &path);
            return;
        }
        let moved = self.state().moved.get(&result.lease).cloned();
        match (moved, output) {
            (Some((task, successor)), Some(output)) => {
                let left = PartialResults::default();
                self.state().count_event("a result is forwarded to the successor");
                self.hand_over(&successor, self.handover(task, Some(output), left));
            }
            _ => {
                let mut state = self.state();
                state.counters.results.duplicates += 1;
                state.count_event("refused: a result without a lease");
                drop(state);
                tracing::debug!(from = %from, lease = ?result.lease, "ignored a late result");
            }
        }
    }

    /// Drops the pointers of a finished task's descendants. Its own pointer stays, since other
    /// nodes may have it.
    pub(super) fn finished_below(&self, mut state: MutexGuard<'_, EngineState>, path: &TaskPath) {
        if state.known_results.is_empty() {
            return;
        }
        state.known_results.drop_descendants(path);
        let depth = state.known_results.depth();
        drop(state);
        self.pool_ref().recover(depth);
    }

    /// Handles the return of an unfinished leased task.
    pub(super) fn on_return(&self, from: &Peer, back: TaskReturn) {
        let TaskReturn { lease, left, .. } = back;
        let moved = self.state().moved.get(&lease).cloned();
        if let Some((task, successor)) = moved {
            self.hand_over(&successor, self.handover(task, None, left));
            return;
        }
        let Some(task) = self.pool_ref().leased_task(lease) else {
            self.state().count_event("refused: a return of a task that is not leased");
            tracing::debug!(%from, ?lease, "ignored a late return");
            return;
        };
        if !left.is_empty() {
            let depth = {
                let mut state = self.state();
                state.accept_results(&task, left, &self.me);
                state.known_results.depth()
            };
            // Before it is queued, so that the thread that runs it finds the results.
            self.pool_ref().recover(depth);
        }
        if self.pool_ref().reclaim(lease).is_some() {
            let (job, path, holder) = (self.job, task.path, from.node.clone());
            self.recorder.record(Event::LeaseReturned { job, path, holder });
            let mut state = self.state();
            state.counters.tasks.returned += 1;
            state.count_event("a task comes back unfinished");
        }
    }

    /// The known locations of results of a task's descendants, before it goes to another node.
    pub(super) fn locations_below(&self, task: &TaskIdentity) -> Vec<ResultLocation> {
        let state = self.state();
        if state.known_results.is_empty() {
            return Vec::new();
        }
        state.locations_below(&task.path, task.start).take(LOCATIONS_PER_TASK).cloned().collect()
    }
}
