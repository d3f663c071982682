//! The departure of this node from a running job with a handover of its work, and the recovery
//! after the loss of a member.
//!
//! This module does not know who decides that a node leaves or is lost.

use tokio::time::Instant;

use super::*;

impl EngineCore {
    pub(super) fn leave(&self) {
        let pool = self.pool_ref();
        if let Some(metering) = &self.metering {
            metering.leave(pool, Instant::now());
        }
        let unstarted = pool.take_all_incoming(|_| true);
        let (given_up, waiting, halted, unclaimed) = {
            let mut state = self.state();
            state.leaving = true;
            state.adopted.clear();
            let given_up: Vec<(Peer, LeaseId, Stolen)> = unstarted
                .into_iter()
                .filter_map(|task| {
                    let stolen = state.stolen.remove(&(task.owner.node.clone(), task.lease))?;
                    Some((task.owner, task.lease, stolen))
                })
                .collect();
            let waiting = std::mem::take(&mut state.waiting);
            // A process ends when its group releases it: it must hand over its state at a point
            // that all agree on.
            let halted = state.stolen.values().filter(|stolen| !stolen.process);
            let halted: Vec<_> = halted.map(|stolen| stolen.base.clone()).collect();
            (given_up, waiting, halted, state.results.unclaimed())
        };
        for (owner, lease, stolen) in given_up {
            self.return_stolen(&owner, lease, stolen);
        }
        for (ticket, (owner, task)) in waiting {
            self.objects_ref().forget(Ticket(ticket));
            self.return_unstarted(&owner, task);
        }
        for base in halted {
            pool.halt_tree(&base, Halt::Leave);
        }
        for StoredResult { identity: task, owner, output, .. } in unclaimed {
            // Looked up separately, since both calls lock the state.
            let owner = self.state().peer(&owner);
            let successor = owner.or_else(|| self.any_staying_peer());
            if let Some(successor) = successor {
                let left = PartialResults::default();
                self.hand_over(&successor, self.handover(task, Some(output), left));
            }
        }
        self.driver.notify_one();
    }

    /// Gives unstarted tasks below the unfinished ones to the nodes that get these back: at most
    /// one for each of their threads. No other node asks a leaving one for work.
    pub(super) fn give_unstarted(&self) {
        let trees: Vec<(Peer, TaskPath, u32)> = {
            let state = self.state();
            let own = state.stolen.values().filter(|stolen| !stolen.process);
            let trees = own.filter_map(|stolen| {
                let receiver = stolen.receiver()?;
                let member = state.view.members.get(&receiver.node)?;
                let stays = member.incarnation == receiver.incarnation && !member.leaving;
                let takes = stays && receiver.node != self.me.node;
                takes.then(|| (receiver.clone(), stolen.task.path.clone(), member.threads))
            });
            trees.collect()
        };
        for (receiver, path, threads) in trees {
            for _ in 0..threads.max(1) {
                let Some(task) = self.export(&receiver, Some(&path)) else { break };
                let lease = task.lease;
                // The number of no request: the receiver accepts the task as a late answer.
                let reply = StealReply { job: self.job, id: 0, task: Some(task) };
                if let Err(why) = answer(&self.net, &receiver, &reply) {
                    self.reclaim(lease, &why);
                    break;
                }
                self.state().count_event("a leaving node gives an unstarted task away");
            }
        }
    }

    /// Whether the work of a leaving node is gone from here (`None`: not yet), and then, whether
    /// messages to forward may still arrive.
    pub(super) fn drained(&self) -> Option<bool> {
        let state = self.state();
        let empty = state.stolen.is_empty() && state.waiting.is_empty() && state.unsent.is_empty();
        empty.then(|| !state.moved.is_empty() || !state.returned_tasks.is_empty())
    }

    /// Returns an unfinished task, with its partial results, to its current owner.
    pub(super) fn return_stolen(&self, owner: &Peer, lease: LeaseId, stolen: Stolen) {
        self.ended(&stolen.task.path, owner, StolenTaskEnd::HandedBack);
        let left = {
            let mut state = self.state();
            let left = state.partial_results_of(&stolen, &self.me);
            state.tree_ended(&stolen.task.path);
            if state.leaving
                && let Some(to) = stolen.receiver()
            {
                state.returned_tasks.insert(stolen.task.path.clone(), to.clone());
            }
            left
        };
        for Adopter { peer, lease, .. } in &stolen.adopters {
            self.send_return(peer, *lease, left.clone());
        }
        if !stolen.orphan {
            self.send_return(owner, lease, left);
        } else if let (Some(successor), true) = (&stolen.successor, stolen.adopters.is_empty()) {
            let task = stolen.task;
            self.hand_over(successor, self.handover(task, None, left));
        }
    }

    pub(super) fn handover(
        &self,
        task: TaskIdentity,
        output: Option<Bytes>,
        left: PartialResults,
    ) -> Handover {
        Handover { job: self.job, task, output, results: left, hops: 0 }
    }

    pub(super) fn hand_over(&self, successor: &Peer, handover: Handover) {
        if successor.node == self.me.node {
            self.on_handover(&self.me, handover);
        } else {
            self.send(&successor.node, Kind::HANDOVER, &handover);
        }
    }

    pub(super) fn on_handover(&self, from: &Peer, handover: Handover) {
        let next = {
            let state = self.state();
            let to = state.given_to(&handover.task.path).cloned();
            to.filter(|to| to.node != self.me.node)
        };
        if let Some(next) = next {
            self.hand_over(&next, handover);
            return;
        }
        let Handover { task, output: Some(output), .. } = handover else {
            self.state().count_event("partial results are forwarded");
            return self.forward_results(from, handover);
        };
        self.state().count_event("a leaving node hands a result over");
        let depth = {
            let mut state = self.state();
            let owner = self.me.node.clone();
            let identity = task.clone();
            state.results.keep(StoredResult { identity, owner, output, claimed: false });
            let place = ResultLocation { identity: task.clone(), holder: self.me.clone() };
            state.known_results.learn(place, Instant::now());
            state.known_results.depth()
        };
        self.pool_ref().recover(depth);
        // Another node may run the parent by now.
        self.announce(vec![task]);
    }

    /// Accepts partial results of a task, and forwards them to the node that runs an ancestor. A
    /// thief learns all pointers known when it steals the ancestor, but not later ones.
    ///
    /// A node that returned the ancestor, or never accepted it, has said so before it sends this
    /// back. Each node on the way keeps the partial results as well, since the ancestor may return
    /// earlier.
    fn forward_results(&self, from: &Peer, handover: Handover) {
        let task = &handover.task;
        let path = &task.path;
        let here = self.state().runs_above(path);
        let strays = handover.hops > 0 && here.is_none();
        let next =
            self.pool_ref().leased_above(path, here).or_else(|| strays.then(|| from.clone()));
        if !strays {
            let depth = {
                let mut state = self.state();
                state.accept_results(task, handover.results.clone(), &self.me);
                state.known_results.depth()
            };
            self.pool_ref().recover(depth);
        }
        if let Some(next) = next.filter(|_| handover.hops < HOPS_MAX) {
            let hops = handover.hops + 1;
            self.hand_over(&next, Handover { hops, ..handover });
        }
    }

    /// A member that does not leave: preferably the cluster's coordinator's node or the job's.
    pub(super) fn any_staying_peer(&self) -> Option<Peer> {
        let state = self.state();
        let view = &state.view;
        let first = [view.cluster_coordinators.get(&self.me.cluster), view.coordinator.as_ref()];
        let mut all = first.into_iter().flatten().chain(view.members.keys());
        let stays = |node: &&NodeId| **node != self.me.node && view.stays(node);
        all.find(stays).and_then(|node| state.peer(node))
    }

    /// Handles the final loss of a member, as declared by the membership.
    ///
    /// If it `has_left` in order, the messages that end its leases may still be under way.
    pub(super) fn lost(&self, node: &NodeId, has_left: bool, why: &str) {
        let pool = self.pool_ref();
        let unstarted = pool.take_all_incoming(|task| task.owner.node == *node);
        let (halted, stopped, forgotten, orphans) = {
            let mut state = self.state();
            state.thief.unreachable(node);
            state.waiting_thieves.remove_waiting(node);
            state.unsent.retain(|(to, ..)| to != node);
            self.report_kept(&state);
            state.parked.remove(node);
            state.suspected.remove(node);
            state.known_results.lost(node);
            let mut stopped: Vec<(TaskPath, Peer)> = unstarted
                .iter()
                .filter_map(|task| state.stolen.remove(&(node.clone(), task.lease)))
                .map(|stolen| (stolen.task.path, stolen.owner))
                .collect();
            let tickets: Vec<u64> = state
                .waiting
                .iter()
                .filter(|(_, (owner, _))| owner.node == *node)
                .map(|(ticket, _)| *ticket)
                .collect();
            let waited = tickets.iter().filter_map(|ticket| state.waiting.remove(ticket));
            stopped.extend(waited.map(|(owner, task)| (task.path, owner)));
            let (halted, orphans) = state.orphaned_by(node);
            let halted = halted.into_iter().map(|stolen| {
                stopped.push((stolen.task.path, stolen.owner));
                stolen.base
            });
            (halted.collect::<Vec<_>>(), stopped, tickets, orphans)
        };
        for (path, owner) in stopped {
            self.ended(&path, &owner, StolenTaskEnd::Stopped);
        }
        for ticket in forgotten {
            self.objects_ref().forget(Ticket(ticket));
        }
        for base in halted {
            pool.halt_tree(&base, Halt::OwnerLost);
        }
        drop(unstarted);
        self.objects_ref().down(node);
        // Announced before its tasks are queued again, so that thieves of these know.
        self.announce(orphans);
        let registry = pool.registry();
        let is_lost = |thief: &Peer, task: &TaskIdentity| {
            thief.node == *node && (!has_left || registry.is_process(&task.name))
        };
        self.reclaim_lost(is_lost, node, why);
        self.driver.notify_one();
    }

    /// Reclaims the leases of members that left in order some time ago: with the last messages of
    /// these, they should have ended. Returns the time of the next call.
    pub(super) fn reclaim_due(&self, now: Instant) -> Option<Instant> {
        let due: Vec<(Instant, Peer)> =
            self.state().reclaims_due.extract_if(.., |(at, _)| *at <= now).collect();
        for (_, peer) in due {
            let why = "it left the job with this task";
            self.reclaim_lost(|thief, _| *thief == peer, &peer.node, why);
        }
        self.state().reclaims_due.iter().map(|(at, _)| *at).min()
    }

    /// Reclaims the leased tasks that `is_lost` matches, and records them as losses of `node`.
    fn reclaim_lost(
        &self,
        is_lost: impl Fn(&Peer, &TaskIdentity) -> bool,
        node: &NodeId,
        why: &str,
    ) {
        let pool = self.pool_ref();
        let reclaimed = pool.reclaim_from(is_lost);
        if reclaimed.is_empty() {
            return;
        }
        let count = reclaimed.len();
        for (thief, task) in &reclaimed {
            self.record_reclaimed(task.path.clone(), thief, why);
        }
        // A stub that takes no part did not cause its node's death. The post still knows the
        // participants here, since it learns of the loss later.
        let registry = pool.registry();
        let blamed = reclaimed.into_iter().filter(|(thief, task)| {
            !registry.is_process(&task.name) || self.post.depends_on(thief)
        });
        let blamed: Vec<_> = blamed.collect();
        let mut state = self.state();
        state.counters.tasks.reclaimed += count as u64;
        *state.event_counts.entry("a task is taken back from a lost node").or_default() +=
            count as u64;
        state.losses.record(blamed);
        drop(state);
        tracing::info!(%node, why, reclaimed = count, "reclaimed the tasks of a lost node");
    }
}
