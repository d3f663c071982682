//! The reuse of finished or running tasks of other nodes when their parents are computed again, and
//! audits of leases after a link was down. See `recover`.
//!
//! This module does not know how a result was lost.

use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;

use super::*;

impl EngineCore {
    /// Announces to all nodes, including this one, which tasks a recomputed parent can get here.
    pub(super) fn announce(&self, tasks: Vec<TaskIdentity>) {
        if tasks.is_empty() {
            return;
        }
        tracing::info!(tasks = tasks.len(), "announces tasks of a lost node");
        let epoch = self.state().view.epoch;
        for some in tasks.chunks(ORPHANS_PER_MESSAGE) {
            let orphans =
                Orphans { job: self.job, epoch, holder: self.me.clone(), tasks: some.to_vec() };
            self.pass_on(&orphans, None);
            self.learn_locations(orphans);
        }
    }

    /// Forwards an announcement: to all nodes of this cluster, and once to each other cluster. The
    /// coordinator's node of a cluster forwards its announcements to the others, and those of
    /// others within the cluster.
    pub(super) fn pass_on(&self, orphans: &Orphans, from: Option<&Peer>) {
        let to: Vec<NodeId> = {
            let state = self.state();
            let view = &state.view;
            let mine = &self.me.cluster;
            let coordinates = view.cluster_coordinators.get(mine) == Some(&self.me.node);
            let others = || {
                let others = view.cluster_coordinators.iter().filter(|(c, _)| *c != mine);
                others.map(|(_, node)| node.clone())
            };
            let near = || view.in_cluster(mine).filter(|node| **node != self.me.node).cloned();
            match from {
                None if coordinates => near().chain(others()).collect(),
                None => near().collect(),
                Some(from) if from.cluster == *mine && coordinates => others().collect(),
                Some(from) if from.cluster != *mine && coordinates => near().collect(),
                Some(_) => Vec::new(),
            }
        };
        for node in to {
            self.send(&node, Kind::ORPHANS, orphans);
        }
    }

    pub(super) fn learn_locations(&self, orphans: Orphans) {
        let now = Instant::now();
        let depth = {
            let mut state = self.state();
            let Orphans { holder, tasks, epoch, .. } = orphans;
            let there = match state.view.members.get(&holder.node) {
                Some(member) => member.incarnation == holder.incarnation,
                None => false,
            };
            if !there || epoch < state.view.epoch {
                return;
            }
            for identity in tasks {
                // A result on this node takes precedence, and the announcing node may be about to
                // leave.
                let mine =
                    state.known_results.at(&identity.path).is_some_and(|it| it.holder == self.me);
                if holder != self.me && mine && state.results.at(&identity.path).is_some() {
                    continue;
                }
                state.known_results.learn(ResultLocation { identity, holder: holder.clone() }, now);
            }
            state.known_results.depth()
        };
        self.pool_ref().recover(depth);
    }

    pub(super) fn on_orphans(&self, from: &Peer, orphans: Orphans) {
        self.pass_on(&orphans, Some(from));
        self.learn_locations(orphans);
    }

    /// Transfers a task of this node to a recomputed parent.
    pub(super) fn on_adopt(&self, from: &Peer, mut adopt: Adopt) {
        let asker = adopt.adopter.take();
        let passed_on = asker.is_some();
        let from = &asker.unwrap_or_else(|| from.clone());
        enum AdoptedState {
            Finished(Bytes),
            Running,
            Stuck(Arc<Base>),
            Given(Peer),
            PartialResults(PartialResults),
        }
        let pool = self.pool_ref();
        let there = {
            let mut state = self.state();
            if let Some(output) = state.results.find(&adopt.task) {
                AdoptedState::Finished(output.clone())
            } else if let Some(stolen) = state.stolen.values_mut().find(|s| s.task == adopt.task) {
                let stalled = u32::from(!pool.is_computing(&stolen.base));
                let is = |a: &Adopter| a.peer == *from && a.lease == adopt.lease;
                let known = stolen.adopters.iter().position(is);
                let stalled = match (stalled, known) {
                    (0, _) => 0,
                    (more, Some(at)) => stolen.adopters.remove(at).stalled + more,
                    (more, None) => more,
                };
                stolen.adopters.retain(|a| !is(a));
                let (peer, lease) = (from.clone(), adopt.lease);
                if stalled > STALLED_MAX {
                    // The halted tree cannot stop, since an ancestor waits in the same cycle.
                    let leased = pool.leased_below(&adopt.task.path);
                    let (outputs, stolen_start) = (stolen.base.kept(), stolen.task.start);
                    let mut left = state.kept_results_of(&adopt.task.path, stolen_start, &self.me);
                    left.kept.extend(outputs);
                    left.leased.extend(leased);
                    AdoptedState::PartialResults(left)
                } else {
                    stolen.adopters.push(Adopter { peer, lease, stalled });
                    if stalled == STALLED_MAX {
                        AdoptedState::Stuck(stolen.base.clone())
                    } else {
                        AdoptedState::Running
                    }
                }
            } else if let Some(to) =
                state.given_to(&adopt.task.path).filter(|to| to.node != from.node)
                && !passed_on
            {
                AdoptedState::Given(to.clone())
            } else {
                AdoptedState::PartialResults(state.kept_results_of(
                    &adopt.task.path,
                    adopt.task.start,
                    &self.me,
                ))
            }
        };
        match there {
            AdoptedState::Finished(output) => {
                self.state().count_event("a finished orphan is taken over");
                let outcome = TaskOutcome::Output(output);
                self.report(from, TaskResult { job: self.job, lease: adopt.lease, outcome });
            }
            AdoptedState::Running => self.state().count_event("a running orphan is taken over"),
            // The waiting parent runs it again, with its finished descendants.
            AdoptedState::Stuck(base) => {
                self.state().count_event("a cycle of waits is broken");
                pool.halt_tree(&base, Halt::Leave);
            }
            AdoptedState::Given(to) => {
                self.state().count_event("a request for a task is forwarded to its new holder");
                let asker = Some(from.clone());
                self.send(&to.node, Kind::ADOPT, &Adopt { adopter: asker, ..adopt });
            }
            AdoptedState::PartialResults(left) => {
                self.state().count_event("an announced orphan is missing");
                self.send_return(from, adopt.lease, left);
            }
        }
    }

    /// Asks again for adopted tasks that have not ended: see [`STALLED_MAX`]. Returns the time of
    /// the next call.
    pub(super) fn ask_adopted(&self, now: Instant) -> Option<Instant> {
        let (due, next) = {
            let mut state = self.state();
            if state.adopted.is_empty() {
                return None;
            }
            let pool = self.pool_ref();
            state.adopted.retain(|lease, _| pool.is_leased(*lease));
            let mut due = Vec::new();
            for (lease, (at, holder, task)) in &mut state.adopted {
                if *at <= now {
                    *at = now + ASK_INTERVAL;
                    due.push((*lease, holder.clone(), task.clone()));
                }
            }
            (due, state.adopted.values().map(|(at, ..)| *at).min())
        };
        for (lease, holder, task) in due {
            self.send_adopt(&holder, lease, task);
        }
        next
    }

    pub(super) fn send_adopt(&self, holder: &Peer, lease: LeaseId, task: TaskIdentity) {
        let adopt = Adopt { job: self.job, lease, task, adopter: None };
        if holder.node == self.me.node {
            self.on_adopt(&self.me, adopt);
        } else {
            self.send(&holder.node, Kind::ADOPT, &adopt);
        }
    }

    /// Returns a task that no thread has started, with the known pointers to its descendants.
    pub(super) fn return_unstarted(&self, owner: &Peer, task: StolenTask) {
        self.ended(&task.path, owner, StolenTaskEnd::HandedBack);
        self.send_return(
            owner,
            task.lease,
            PartialResults { kept: Vec::new(), leased: task.result_locations },
        );
    }

    pub(super) fn send_return(&self, owner: &Peer, lease: LeaseId, left: PartialResults) {
        let back = TaskReturn { job: self.job, lease, left };
        if owner.node == self.me.node {
            self.on_return(&self.me, back);
        } else {
            self.send(&owner.node, Kind::TASK_RETURN, &back);
        }
    }

    // --- links that break and come back ---

    /// Probes nodes whose links are down, since parked messages wait for the link and no other
    /// message may be due. Returns the time of the next call.
    pub(super) fn probe(&self, now: Instant) -> Option<Instant> {
        let due: Vec<NodeId> = {
            let mut state = self.state();
            if state.suspected.is_empty() {
                return None;
            }
            if let Some(at) = state.probe_at.filter(|at| *at > now) {
                return Some(at);
            }
            state.probe_at = Some(now + PROBE_INTERVAL);
            state.suspected.iter().cloned().collect()
        };
        due.iter().for_each(|node| self.send_audit(node, Vec::new(), false));
        Some(now + PROBE_INTERVAL)
    }

    /// Audits leased tasks that threads here have awaited for [`AUDIT_INTERVAL`]. Reclaims those
    /// whose holder is not a member, or has had no link for [`CUT_OFF_AUDITS`] intervals. Returns
    /// the time of the next call.
    pub(super) fn audit_awaited(&self, now: Instant) -> Option<Instant> {
        let pool = self.pool_ref();
        let awaited = pool.awaited();
        let (mut audits, mut left_behind) = (Vec::new(), Vec::new());
        let next = {
            let mut state = self.state();
            let state = &mut *state;
            state.audits_due.retain(|id, _| awaited.iter().any(|(lease, ..)| lease == id));
            for (lease, path, holder) in awaited {
                let first = (now + AUDIT_INTERVAL, 0);
                let (due, cut_off) = state.audits_due.entry(lease).or_insert(first);
                if *due > now {
                    continue;
                }
                *due = now + AUDIT_INTERVAL;
                let is_suspected = state.suspected.contains(&holder.node);
                *cut_off = if is_suspected { *cut_off + 1 } else { 0 };
                let member = state.view.members.get(&holder.node);
                let is_member = member.is_some_and(|m| m.incarnation == holder.incarnation);
                if !is_member || *cut_off >= CUT_OFF_AUDITS {
                    left_behind.push(lease);
                } else if !is_suspected {
                    audits.push((holder, lease, path));
                }
            }
            state.audits_due.values().map(|(due, _)| *due).min()
        };
        for (holder, lease, path) in audits {
            self.state().count_event("an awaited task is audited");
            self.send_audit(&holder.node, vec![(lease, path)], false);
        }
        for lease in left_behind {
            let way = "a task is taken back from a node that is not reached or no member";
            self.take_back(lease, way, way);
        }
        next
    }

    fn send_audit(&self, to: &NodeId, leases: Vec<(LeaseId, TaskPath)>, forgot: bool) {
        self.send(to, Kind::AUDIT, &Audit { job: self.job, leases, receiver_was_dropped: forgot });
    }

    /// Reclaims a leased task without a message of its holder, records `why`, and counts it as
    /// `way`.
    pub(super) fn take_back(&self, lease: LeaseId, way: &'static str, why: &str) {
        if let Some((holder, task)) = self.pool_ref().reclaim(lease) {
            tracing::debug!(%holder, why, "reclaimed a leased task");
            self.record_reclaimed(task.path, &holder, why);
            let mut state = self.state();
            state.counters.tasks.reclaimed += 1;
            state.count_event(way);
        }
    }

    /// Audits the leases of a node: messages about them may have been lost with the link.
    pub(super) fn audit(&self, peer: &Peer) {
        let leases = self.pool_ref().leased_to(peer);
        for some in leases.chunks(LEASES_PER_MESSAGE) {
            self.state().count_event("leases are audited when a link is restored");
            self.send_audit(&peer.node, some.to_vec(), false);
        }
    }

    /// Informs members that were declared dead and returned in the same incarnation that their
    /// leases were dropped here.
    pub(super) fn report_forgotten(&self, returned: &[NodeId]) {
        returned.iter().for_each(|node| self.send_audit(node, Vec::new(), true));
    }

    pub(super) fn on_audit(&self, from: &Peer, audit: Audit) {
        if audit.receiver_was_dropped {
            self.state().count_event("a member that was declared dead audits its leases");
            self.audit(from);
        }
        for (lease, path) in audit.leases {
            let found = {
                let mut state = self.state();
                let key = (from.node.clone(), lease);
                // An owner that asks needs the answer, even if it had been declared dead.
                if let Some(stolen) = state.stolen.get_mut(&key).filter(|s| s.owner == *from) {
                    stolen.orphan = false;
                    continue;
                }
                let is = |adopter: &Adopter| adopter.peer == *from && adopter.lease == lease;
                let adopted = |stolen: &Stolen| stolen.adopters.iter().any(is);
                let waits =
                    |(owner, task): &(Peer, StolenTask)| owner == from && task.lease == lease;
                if state.waiting.values().any(waits) || state.stolen.values().any(adopted) {
                    continue;
                }
                // A slow link may need minutes for a long result. A copy of it would make that
                // worse, and the owner asks again.
                if state.unsent.has(&from.node, Kind::TASK_RESULT)
                    || self.net.is_sending(&from.node, Kind::TASK_RESULT)
                {
                    state.count_event("an audited result is on its way");
                    continue;
                }
                state.results.at(&path).filter(|f| f.owner == from.node).map(|f| f.output.clone())
            };
            match found {
                Some(output) => {
                    self.state().count_event("a result lost with a link is sent again");
                    let outcome = TaskOutcome::Output(output);
                    self.report(from, TaskResult { job: self.job, lease, outcome });
                }
                None => {
                    self.state().count_event("a task lost with a link is sent for again");
                    self.send_return(from, lease, PartialResults::default());
                }
            }
        }
    }
}
