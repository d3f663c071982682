//! The pool of processes of a root: one for each thread of the job except the root's own.
//!
//! It neither knows programs nor the negotiation of nodes, and sees only the members of the job.
//! The root decides whether processes join configurations or take orders.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::time::Instant;

use super::ProcessHandle;
use super::group::ProcessState;
use super::message::{GroupId, ProcessMessage};
use super::post::{Dispatcher, JobMember};
use crate::id::{NodeId, Peer};
use crate::work::{Context, Spawned, Stop, Task};

/// Bounds of the number of spare processes. Between them there are as many as in the capacity, for
/// a job seldom grows to more than twice its size at once.
const SPARES_MIN: usize = 4;
const SPARES_MAX: usize = 64;

/// The processes that a root has spawned.
pub(crate) struct ProcessPool<'c, T> {
    spawned: BTreeMap<u32, Spawned<'c, T>>,
    /// The number of the next process.
    next: u32,
    /// The time of the last spawn, or of the last restart of all processes.
    pub(crate) spawned_at: Instant,
    /// The members at the last update.
    members: BTreeSet<Peer>,
    /// The number of members that stay.
    pub(crate) nodes: u32,
    /// Nodes that the program released and that are still members.
    released: BTreeSet<Peer>,
    /// Threads that could run a process, without the root's.
    pub(crate) capacity: usize,
    /// Whether processes are spawned beyond the capacity, for nodes that join later.
    has_spares: bool,
}

impl<'c, T: Task> ProcessPool<'c, T> {
    /// An empty pool that keeps spare processes.
    ///
    /// Only the root's thread spawns, and it computes for most of the time. A node that joins
    /// during a step claims a spare process, and takes part sooner.
    pub(crate) fn with_spares() -> Self {
        Self { has_spares: true, ..Self::new() }
    }

    /// An empty pool.
    pub(crate) fn new() -> Self {
        Self {
            spawned: BTreeMap::new(),
            next: 1,
            spawned_at: Instant::now(),
            members: BTreeSet::new(),
            nodes: 0,
            released: BTreeSet::new(),
            capacity: 0,
            has_spares: false,
        }
    }

    /// Brings the pool in line with the job's members.
    ///
    /// Spawns a process for each thread without one, dismisses those on leaving nodes, and collects
    /// those that ended. `call` makes the task of a process with the given number.
    ///
    /// # Errors
    /// A halt, or the failure of a process that ended on its own.
    pub(crate) fn reconcile(
        &mut self,
        at: &ProcessHandle<'c>,
        call: impl Fn(GroupId, u32) -> T,
    ) -> Result<(), Stop> {
        at.relay_reports();
        let members = at.post.members();
        let nodes = members.iter().filter(|member| !member.leaving).count();
        self.nodes = u32::try_from(nodes).unwrap_or(u32::MAX);
        let peers: BTreeSet<Peer> = members.iter().map(|member| member.peer.clone()).collect();
        if self.members != peers {
            let used = |peers: &BTreeSet<Peer>| {
                peers.difference(&self.released).cloned().collect::<BTreeSet<_>>()
            };
            if used(&self.members) != used(&peers) {
                // The set of nodes has changed, so a released node that is still a member may be of
                // use.
                self.released.clear();
            }
            self.released.retain(|peer| peers.contains(peer));
            self.members = peers;
        }
        let stays = members.iter().filter(|member| self.stays(member));
        let threads: u32 = stays.clone().map(|member| member.threads).sum();
        let stays: BTreeSet<Peer> = stays.map(|member| member.peer.clone()).collect();
        self.capacity = threads.saturating_sub(1) as usize;
        // A process reports its end once, and a broken link may lose the report. The result of its
        // task arrives in any case.
        let finished = self.spawned.iter().filter(|(_, spawned)| spawned.is_finished());
        let finished: Vec<u32> = finished.map(|(process, _)| *process).collect();
        let reconciled = at.post.group(&at.group, |group| {
            let mut out: Vec<_> =
                finished.into_iter().flat_map(|process| group.handle_end(process)).collect();
            group.set_released(&self.released);
            let settled = group.is_settled() || group.configuration().is_none();
            let is_active = |(process, peer, state): &(u32, Option<&Peer>, ProcessState)| {
                let runs = !matches!(state, ProcessState::Dismissed | ProcessState::Ended);
                *process != 0 && runs && peer.is_none_or(|peer| stays.contains(peer))
            };
            let count = group.process_states().filter(is_active).count();
            // Processes that handed over their state end once the others have it.
            if settled {
                let leaves = |peer: &Peer| !stays.contains(peer);
                out.extend(group.dismiss(|_, peer, _| peer.is_some_and(leaves)));
            }
            let over = group.process_states().filter(|(_, _, state)| *state == ProcessState::Ended);
            let over: Vec<u32> = over.map(|(process, ..)| process).collect();
            group.remove_ended();
            ((count, over, group.take_ended()), out)
        });
        let (count, idle, ended) = reconciled.ok_or_else(group_ended)?;
        for process in idle {
            let Some(spawned) = self.spawned.remove(&process) else { continue };
            let end = spawned.take();
            at.cx.check()?;
            // A process that ended without a dismissal has failed, unless its node found it
            // obsolete.
            if ended.contains(&process) {
                end?;
            }
        }
        let spares = if self.has_spares { self.capacity.clamp(SPARES_MIN, SPARES_MAX) } else { 0 };
        let spawns = count < self.capacity + spares;
        for _ in count..self.capacity + spares {
            let process = self.next;
            self.next += 1;
            self.spawned_at = Instant::now();
            let added = at.post.group(&at.group, |group| (group.call(process), Vec::new()));
            added.ok_or_else(group_ended)?;
            self.spawned.insert(process, at.cx.spawn(call(at.group.clone(), process)));
        }
        if spawns {
            at.cx.call_free_nodes();
        }
        Ok(())
    }

    /// Dismisses all processes and collects them. Their last messages are ignored.
    pub(crate) fn collect_all(&mut self, at: &ProcessHandle<'c>) {
        self.collect_all_except(at, |_| false);
    }

    /// As [`ProcessPool::collect_all`], without the processes that execute something `unwanted`,
    /// which may take long. They are dropped.
    pub(crate) fn collect_all_except(
        &mut self,
        at: &ProcessHandle<'c>,
        unwanted: impl Fn(u32) -> bool,
    ) {
        // The dismissals come first, so that tasks that have not started never do.
        at.post.group(&at.group, |group| ((), group.disband()));
        for (process, spawned) in std::mem::take(&mut self.spawned) {
            if unwanted(process) {
                spawned.discard();
            } else {
                drop(spawned.take());
            }
        }
    }

    /// Whether a node stays and was not released by the program.
    pub(crate) fn stays(&self, member: &JobMember) -> bool {
        !member.leaving && !self.released.contains(&member.peer)
    }

    /// Releases nodes: the next [`reconcile`](Self::reconcile) dismisses their processes and spawns
    /// none for their threads.
    pub(crate) fn release(&mut self, at: &ProcessHandle<'c>, nodes: Vec<NodeId>) {
        let peers = at.post.members().into_iter().map(|member| member.peer);
        self.released.extend(peers.filter(|peer| nodes.contains(&peer.node)));
        let names: Vec<&str> = nodes.iter().map(|node| node.as_str()).collect();
        at.cx.report_text(format!("the program has no use for {}", names.join(", ")));
        at.cx.release(nodes);
    }
}

/// Disbands the group when the root ends for any reason.
pub(crate) struct DisbandOnDrop(pub(crate) Arc<Dispatcher>, pub(crate) GroupId);

impl Drop for DisbandOnDrop {
    fn drop(&mut self) {
        self.0.group(&self.1, |group| ((), group.disband()));
        self.0.unregister(&self.1, 0);
    }
}

/// Runs a spawned process on this thread: registers it, calls `live`, and reports its end to the
/// root. An obsolete process ends at once.
///
/// # Errors
/// The errors of `live`.
pub(crate) fn run_process(
    cx: &Context,
    group: GroupId,
    process: u32,
    live: impl FnOnce(&ProcessHandle<'_>) -> Result<(), Stop>,
) -> Result<(), Stop> {
    // A pool without a dispatcher runs no root of a group either.
    let Some(post) = cx.post() else { return Ok(()) };
    let at = ProcessHandle { cx, post, group, process };
    if !at.post.register(&at.group, process, cx.waker()) {
        at.send_to_root(ProcessMessage::Over { process });
        return Ok(());
    }
    let _leave = LeaveOnDrop(&at);
    live(&at)
}

/// Unregisters a process when it ends for any reason, and reports the end to the root. After a halt
/// it reports nothing: the root is gone, or learns of the end by a change of membership.
struct LeaveOnDrop<'a>(&'a ProcessHandle<'a>);

impl Drop for LeaveOnDrop<'_> {
    fn drop(&mut self) {
        let at = self.0;
        at.post.unregister(&at.group, at.process);
        if at.cx.check().is_ok() {
            at.send_to_root(ProcessMessage::Over { process: at.process });
        }
    }
}

/// The error of a lost group. A group ends only with its root, so no process observes it.
pub(crate) fn group_ended() -> Stop {
    Stop::fail("the group of the program's processes is no more")
}
