//! The thief's side of a steal: the engine accepts stolen tasks, runs them and reports their
//! outcomes.
//!
//! `steal::thief` decides which node to ask. This module does not know how victims choose the
//! tasks.

use super::*;

impl EngineCore {
    pub(super) fn on_reply(&self, from: &Peer, reply: StealReply) {
        let now = Instant::now();
        let threads = self.pool_ref().threads();
        let hit = {
            let mut state = self.state();
            let hit = reply.task.as_ref().is_some_and(|task| state.may_run(task, threads));
            let scope = match state.thief.answered(reply.id, hit, now) {
                Some(answered) => {
                    let latencies = &mut state.latencies;
                    match answered.scope {
                        StealScope::Local => latencies.steal_local.record(answered.latency),
                        StealScope::Wide => latencies.steal_wide.record(answered.latency),
                    }
                    answered.scope
                }
                None => state.thief.scope_of(&from.node),
            };
            let counts = counts_of(&mut state.counters, scope);
            if hit {
                counts.hits += 1;
                match scope {
                    StealScope::Local => state.counters.tasks.stolen_local += 1,
                    StealScope::Wide => state.counters.tasks.stolen_wide += 1,
                }
            } else {
                counts.empty += 1;
            }
            hit
        };
        // A task in a late answer is accepted as well; dropping it would lose it.
        if let Some(task) = reply.task {
            self.receive_task(from, task, hit);
        }
        self.driver.notify_one();
    }

    /// Accepts a stolen task, or returns it if it may not run here (`fits` is false).
    pub(super) fn receive_task(&self, from: &Peer, task: StolenTask, fits: bool) {
        let refused = {
            let mut state = self.state();
            // A leaving node can still receive the answer to an earlier request.
            let refused = !fits || state.leaving;
            if refused {
                state.ask_again_at = Some(Instant::now() + REFUSAL_PAUSE);
            }
            refused
        };
        if refused {
            self.state().count_event("a task that may not run here goes back");
            self.send_return(from, task.lease, PartialResults::default());
            return;
        }
        let scope = {
            let mut state = self.state();
            *state.stolen_from.entry(from.cluster.clone()).or_default() += 1;
            state.thief.scope_of(&from.node)
        };
        self.recorder.record(Event::TaskStolen {
            job: self.job,
            path: task.path.clone(),
            task: task.name.clone(),
            from: from.node.clone(),
            to: self.me.node.clone(),
            scope,
            task_bytes: task.body.len() as u64,
            lease: Some([task.lease.index, task.lease.generation]),
            from_incarnation: Some(from.incarnation),
        });
        if task.needs.is_empty() {
            self.start_stolen(from, task, None);
            return;
        }
        let needs = task.needs.clone();
        let lease = task.lease;
        let ticket = {
            let mut state = self.state();
            state.next_ticket += 1;
            let ticket = state.next_ticket;
            state.waiting.insert(ticket, (from.clone(), task));
            ticket
        };
        // The lock is not held, since the store may call back at once.
        match self.objects_ref().need(Ticket(ticket), &needs) {
            Ok(Needed::Ready(held)) => self.objects_ready(ticket, held),
            Ok(Needed::Waiting) => {}
            Err(error) => {
                if let Some((from, task)) = self.state().waiting.remove(&ticket) {
                    self.ended(&task.path, &from, StolenTaskEnd::Failed);
                }
                let outcome = TaskOutcome::Failed(job_failure(error.to_string()));
                self.report(from, TaskResult { job: self.job, lease, outcome });
            }
        }
    }

    /// Starts a stolen task when its shared objects are present.
    pub(super) fn objects_ready(&self, ticket: u64, held: HeldVersions) {
        let waiting = self.state().waiting.remove(&ticket);
        if let Some((from, task)) = waiting {
            self.start_stolen(&from, task, Some(held));
        }
    }

    pub(super) fn start_stolen(&self, from: &Peer, task: StolenTask, held: Option<HeldVersions>) {
        let StolenTask { lease, path, name, body, needs, result_locations: known, start } = task;
        let pool = self.pool_ref();
        match pool.admit(&name, path.clone(), start) {
            Ok((base, entry)) => {
                let task = TaskIdentity::of(path, &name, &body, &needs, start);
                // In the table before a thread can finish it.
                let stolen = Stolen {
                    base: base.clone(),
                    task,
                    process: entry.process,
                    owner: from.clone(),
                    since: Instant::now(),
                    orphan: false,
                    successor: None,
                    adopters: Vec::new(),
                    _held: held,
                };
                let depth = {
                    let mut state = self.state();
                    let task = stolen.task.clone();
                    let before = state.stolen.insert((from.node.clone(), lease), stolen);
                    state.doubled += u64::from(before.is_some());
                    state.accept_results(
                        &task,
                        PartialResults { kept: Vec::new(), leased: known },
                        &self.me,
                    );
                    state.known_results.depth()
                };
                pool.recover(depth);
                pool.enter(base, entry.run, from.clone(), lease, body);
                // Ticks are due from now on.
                self.driver.notify_one();
            }
            Err(failure) => {
                self.fail_unstarted(from, &path, lease, failure);
            }
        }
    }

    /// Reports the failure of a stolen task that cannot start here.
    pub(super) fn fail_unstarted(
        &self,
        from: &Peer,
        path: &TaskPath,
        lease: LeaseId,
        failure: Failure,
    ) {
        self.ended(path, from, StolenTaskEnd::Failed);
        let outcome = TaskOutcome::Failed(failure);
        self.report(from, TaskResult { job: self.job, lease, outcome });
    }

    /// Records that a task stolen from this node is no longer here.
    pub(super) fn ended(&self, path: &TaskPath, from: &Peer, outcome: StolenTaskEnd) {
        let (path, from, to) = (path.clone(), from.node.clone(), self.me.node.clone());
        self.recorder.record(Event::TaskEnded { job: self.job, path, from, to, outcome });
    }

    pub(super) fn report(&self, owner: &Peer, result: TaskResult) {
        if owner.node == self.me.node {
            // The task was stolen from a lost node, and its parent is computed here now.
            self.on_result(&self.me, result);
        } else {
            self.send(&owner.node, Kind::TASK_RESULT, &result);
        }
    }

    pub(super) fn on_abandon(&self, from: &Peer, abandon: Abandon) {
        if let Some(successor) = abandon.successor {
            let unstarted = {
                let mut state = self.state();
                state.inherit(from, abandon.lease, successor);
                state.count_event("a leaving owner names a successor");
                let is = |(owner, task): &(Peer, StolenTask)| {
                    owner == from && task.lease == abandon.lease
                };
                let ticket = state.waiting.iter().find(|(_, waiting)| is(waiting));
                let ticket = ticket.map(|(ticket, _)| *ticket);
                ticket.and_then(|ticket| Some((ticket, state.waiting.remove(&ticket)?)))
            };
            // The successor asks for the task and runs it.
            if let Some((ticket, (_, task))) = unstarted {
                self.ended(&task.path, from, StolenTaskEnd::Stopped);
                self.objects_ref().forget(Ticket(ticket));
            }
            return;
        }
        let stolen = {
            let mut state = self.state();
            let key = (from.node.clone(), abandon.lease);
            match state.stolen.get_mut(&key) {
                // The owner abandons it, but others have adopted it.
                Some(stolen) if !stolen.adopters.is_empty() => {
                    stolen.orphan = true;
                    None
                }
                _ => state.stolen.remove(&key),
            }
        };
        if let Some(stolen) = stolen {
            self.ended(&stolen.task.path, from, StolenTaskEnd::Stopped);
            let mut state = self.state();
            state.counters.tasks.abandoned += 1;
            state.count_event("an abandoned task is stopped");
            drop(state);
            self.pool_ref().halt_tree(&stolen.base, Halt::OwnerLost);
        }
    }
}
