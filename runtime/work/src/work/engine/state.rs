//! The state of an engine, and the steps that need nothing else: tasks of other nodes, results,
//! locations of results.
//!
//! No I/O and no threads: the engine's single lock protects all of it.

use super::*;

pub(super) struct EngineState {
    pub(super) thief: Thief,
    pub(super) waiting_thieves: WaitingThieves,
    pub(super) view: View,
    /// Tasks of other nodes that run or wait for a thread here.
    pub(super) stolen: BTreeMap<(NodeId, LeaseId), Stolen>,
    /// Stolen tasks that wait for shared objects.
    pub(super) waiting: BTreeMap<u64, (Peer, StolenTask)>,
    /// Results finished here for other nodes.
    pub(super) results: Results,
    /// Locations of results that new tasks may use.
    pub(super) known_results: ResultLocations,
    /// Whether this node leaves: then it neither takes nor gives work.
    pub(super) leaving: bool,
    /// Leases of trees that were halted because this node leaves, with the successors for which the
    /// tasks continue.
    pub(super) moved: BTreeMap<LeaseId, (TaskIdentity, Peer)>,
    /// Tasks that were returned or handed over because this node leaves, with their receivers.
    pub(super) returned_tasks: BTreeMap<TaskPath, Peer>,
    /// The job's root, if it runs here.
    pub(super) root: Option<root::RootTree>,
    /// The number of roots started here.
    pub(super) roots: u64,
    /// Adopted tasks that still run on other nodes: the time of the next question, and the holder.
    pub(super) adopted: BTreeMap<LeaseId, (Instant, Peer, TaskIdentity)>,
    /// The times of the next audits of awaited leases, and the number of audits in a row that found
    /// the holder's link down.
    pub(super) audits_due: BTreeMap<LeaseId, (Instant, u32)>,
    /// Members whose links are down, and the time of the next probe.
    pub(super) suspected: BTreeSet<NodeId>,
    pub(super) probe_at: Option<Instant>,
    /// Undelivered messages that must reach their nodes if those live, in order.
    pub(super) parked: BTreeMap<NodeId, Vec<(Kind, Bytes)>>,
    pub(super) next_ticket: u64,
    /// Tasks that lost nodes had from this one, until the coordinator asks.
    pub(super) losses: Losses,
    /// The last incarnation of each node that was declared dead and is not a member since.
    pub(super) dead: BTreeMap<NodeId, Incarnation>,
    /// Incarnations that left the job in order: earlier messages of theirs may still arrive.
    pub(super) former: BTreeMap<NodeId, Incarnation>,
    /// Members that left in order, with the times at which leases that they still have are
    /// reclaimed: the messages that end them may be under way.
    pub(super) reclaims_due: Vec<(Instant, Peer)>,
    /// Frames of nodes that no view has named yet.
    pub(super) early: EarlyFrames,
    /// Tasks that arrived under a lease already present here.
    pub(super) doubled: u64,
    /// Counts of recoveries and refusals, by name.
    pub(super) event_counts: BTreeMap<&'static str, u64>,
    /// Frames for which the network had no room, in order.
    pub(super) unsent: mail::Unsent,
    pub(super) counters: Counters,
    /// Tasks stolen from nodes of each cluster.
    pub(super) stolen_from: BTreeMap<ClusterId, u64>,
    pub(super) latencies: Histograms,
    /// The time of the next tick for long tasks; `None` while no task of another node is here.
    pub(super) tick_at: Option<Instant>,
    pub(super) thief_wake: Option<Instant>,
    /// The end of the pause in requests, after a task that may not run here.
    pub(super) ask_again_at: Option<Instant>,
    pub(super) share_wake: Option<Instant>,
    /// The time of the next call to nodes with free threads.
    pub(super) calls_at: Option<Instant>,
    /// The reason why the job does not get the nodes that its root last requested.
    pub(super) refused: Option<String>,
    /// Messages of the job's client that the root has not taken.
    pub(super) client_messages: ClientMessages,
}

/// Messages of the job's client to its root on this node.
#[derive(Default)]
pub(super) struct ClientMessages {
    /// The messages in order.
    pub(super) waiting: VecDeque<Bytes>,
    /// The bytes of these messages.
    pub(super) bytes: usize,
    /// Wakes the root, if it has asked for messages.
    pub(super) wake: Option<WakeRoot>,
}

pub(super) struct Stolen {
    pub(super) base: Arc<Base>,
    pub(super) task: TaskIdentity,
    /// See [`Task::PROCESS`](crate::work::Task::PROCESS).
    pub(super) process: bool,
    pub(super) owner: Peer,
    /// The time at which it was queued here.
    pub(super) since: Instant,
    /// Whether the owner is lost or leaves.
    pub(super) orphan: bool,
    /// The node that will adopt the task, if the owner left in order.
    pub(super) successor: Option<Peer>,
    /// The nodes that have adopted the task.
    pub(super) adopters: Vec<Adopter>,
    /// Keeps the objects' versions that the task reads.
    pub(super) _held: Option<HeldVersions>,
}

/// A recomputed parent that waits for a task which still runs here.
#[derive(Clone)]
pub(super) struct Adopter {
    pub(super) peer: Peer,
    /// The lease in the peer's table.
    pub(super) lease: LeaseId,
    /// The number of questions in a row without progress of the task.
    pub(super) stalled: u32,
}

/// Whether a task is a proper descendant of another.
pub(super) fn is_below(path: &TaskPath, outer: &TaskPath) -> bool {
    path != outer && path.is_at_or_below(outer)
}

impl Stolen {
    /// The node that gets the task's results: its owner, or else the first adopter or the
    /// successor.
    pub(super) fn receiver(&self) -> Option<&Peer> {
        let adopter = self.adopters.first().map(|adopter| &adopter.peer);
        if self.orphan { adopter.or(self.successor.as_ref()) } else { Some(&self.owner) }
    }
}

/// The maximum number of frames of one node that no view names yet.
const EARLY_FRAMES: usize = 4096;
/// The maximum bytes of these frames. A single node has at most a quarter of them.
pub(super) const EARLY_BYTES: usize = 256 << 20;
/// The maximum number of nodes whose frames are kept.
const EARLY_NODES: usize = 64;

/// Frames of nodes that no view of this job has named: members that this node does not know yet, or
/// strangers. They wait until a view names their sender.
pub(super) struct EarlyFrames {
    frames: BTreeMap<Peer, NodeFrames>,
    bytes: usize,
    bytes_max: usize,
}

#[derive(Default)]
struct NodeFrames {
    frames: Vec<(Kind, Bytes)>,
    bytes: usize,
}

impl EarlyFrames {
    /// Creates a store with this bound in bytes.
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { frames: BTreeMap::new(), bytes: 0, bytes_max }
    }

    /// Keeps a frame. Returns whether it is kept, and whether it is the first of its sender.
    fn keep(&mut self, from: &Peer, kind: Kind, body: Bytes) -> (bool, bool) {
        let known = self.frames.get(from);
        let (count, bytes) = known.map_or((0, 0), |it| (it.frames.len(), it.bytes));
        let room = known.is_some() || self.frames.len() < EARLY_NODES;
        let fits = room
            && count < EARLY_FRAMES
            && bytes + body.len() <= self.bytes_max / 4
            && self.bytes + body.len() <= self.bytes_max;
        if fits {
            self.bytes += body.len();
            let of = self.frames.entry(from.clone()).or_default();
            of.bytes += body.len();
            of.frames.push((kind, body));
        }
        (fits, fits && count == 0)
    }

    /// Removes and returns the frames of nodes that are members now.
    pub(super) fn ready(&mut self, view: &View) -> Vec<(Peer, Kind, Bytes)> {
        let is_member = |peer: &Peer| {
            view.members.get(&peer.node).is_some_and(|it| it.incarnation == peer.incarnation)
        };
        let members: Vec<Peer> =
            self.frames.keys().filter(|peer| is_member(peer)).cloned().collect();
        let mut ready = Vec::new();
        for peer in members {
            let Some(of) = self.frames.remove(&peer) else { continue };
            self.bytes -= of.bytes;
            ready.extend(of.frames.into_iter().map(|(kind, body)| (peer.clone(), kind, body)));
        }
        ready
    }
}

impl EngineState {
    /// Whether this incarnation is a member of the job, or has left it in order.
    pub(super) fn has_taken_part(&self, peer: &Peer) -> bool {
        let member = self.view.members.get(&peer.node);
        member.is_some_and(|member| member.incarnation == peer.incarnation)
            || self.former.get(&peer.node) == Some(&peer.incarnation)
    }

    /// Keeps a frame of a node that is not a member until a view names the node.
    pub(super) fn keep_early(&mut self, from: &Peer, kind: Kind, body: Bytes) {
        let (kept, first) = self.early.keep(from, kind, body);
        if first {
            tracing::info!(%from, ?kind, "a frame of a node that is no member waits for a view");
        }
        if kept {
            self.count_event("kept: a frame of a node that is no member");
        } else {
            self.counters.frames_refused += 1;
            self.count_event("refused: a frame of a node that is no member");
        }
    }

    /// The partial results of a task that stops because this node leaves, without its own result.
    pub(super) fn partial_results_of(&mut self, stolen: &Stolen, me: &Peer) -> PartialResults {
        let mut left = stolen.base.take_results();
        let TaskIdentity { path, start, .. } = &stolen.task;
        // Results of leases, and pointers that came with the task.
        let mine = self.results.take_for(path, *start, &me.node);
        let outputs = left.kept.len();
        for StoredResult { identity, output, .. } in mine {
            // These are in order of path, and none is a descendant of another.
            let before = left.kept[..outputs].partition_point(|kept| kept.path <= identity.path);
            let last = before.checked_sub(1).map(|at| &left.kept[at].path);
            let known = last.is_some_and(|path| identity.path.is_at_or_below(path));
            if identity.path != *path && !known {
                let TaskIdentity { path, name, .. } = identity;
                left.kept.push(KeptOutput { path, name, output });
            }
        }
        let places = self.locations_below(path, *start);
        left.leased.extend(places.filter(|place| place.holder != *me).cloned());
        left
    }

    /// The known locations of descendants' results that a tree of this start may use.
    pub(super) fn locations_below<'a>(
        &'a self,
        path: &'a TaskPath,
        start: RootStart,
    ) -> impl Iterator<Item = &'a ResultLocation> {
        let below =
            self.known_results.below(path).filter(move |place| place.identity.path != *path);
        below.filter(move |place| place.identity.is_valid_in(start))
    }

    /// The partial results of a task of this start that this node keeps for its next execution:
    /// results of descendants, and the locations of others.
    pub(super) fn kept_results_of(
        &self,
        path: &TaskPath,
        start: RootStart,
        me: &Peer,
    ) -> PartialResults {
        let mine = |finished: &&StoredResult| {
            finished.owner == me.node && finished.identity.start == start
        };
        let kept = self.results.inside(path).filter(mine);
        let kept = kept.map(|finished| KeptOutput {
            path: finished.identity.path.clone(),
            name: finished.identity.name.clone(),
            output: finished.output.clone(),
        });
        let places = self.locations_below(path, start);
        let leased = places.filter(|place| place.holder != *me).cloned().collect();
        PartialResults { kept: kept.collect(), leased }
    }

    /// Drops results and pointers that are known by their paths alone, because their tree has ended
    /// here.
    pub(super) fn tree_ended(&mut self, path: &TaskPath) {
        self.results.drop_trusted(path);
        self.known_results.drop_trusted(path);
    }

    /// Accepts the partial results of a returned task, for its next execution.
    pub(super) fn accept_results(&mut self, task: &TaskIdentity, left: PartialResults, me: &Peer) {
        let path = &task.path;
        let now = Instant::now();
        for KeptOutput { path: of, name, output } in left.kept {
            if !of.is_at_or_below(path) || of == *path || self.results.is_off() {
                continue;
            }
            let identity = TaskIdentity::trusted(of, name, task.start);
            let finished = StoredResult {
                identity: identity.clone(),
                owner: me.node.clone(),
                output,
                claimed: true,
            };
            self.results.keep(finished);
            self.known_results.learn(ResultLocation { identity, holder: me.clone() }, now);
        }
        for place in left.leased {
            let inside = place.identity.path.is_at_or_below(path) && place.identity.path != *path;
            if inside && self.view.members.contains_key(&place.holder.node) {
                self.known_results.learn(place, now);
            }
        }
    }

    /// Whether a task may run here.
    ///
    /// A task that was started earlier on another node waits for descendants that run there. The
    /// tasks below it on its thread's stack wait with it, which can cause cycles of waits. So it
    /// needs a thread without another node's task. A waiting root does no harm, since no task waits
    /// for the root. If descendants of the task run here, it would wait for itself.
    pub(super) fn may_run(&self, task: &StolenTask, threads: u32) -> bool {
        let part = |stolen: &Stolen| is_below(&stolen.task.path, &task.path);
        task.result_locations.is_empty()
            || self.stolen.len() < threads as usize && !self.stolen.values().any(part)
    }

    /// The path length of the innermost task of another node here, running or waiting, that is at
    /// or above this path.
    pub(super) fn runs_above(&self, path: &TaskPath) -> Option<usize> {
        let running = self.stolen.values().map(|stolen| &stolen.task.path);
        let waiting = self.waiting.values().map(|(_, task)| &task.path);
        let above = running.chain(waiting).filter(|above| path.is_at_or_below(above));
        above.map(|above| above.0.len()).max()
    }

    /// Records the successor that the leaving owner of a task names.
    pub(super) fn inherit(&mut self, from: &Peer, lease: LeaseId, successor: Peer) {
        if let Some(stolen) = self.stolen.get_mut(&(from.node.clone(), lease)) {
            stolen.orphan = true;
            stolen.successor = Some(successor);
            return;
        }
        let is = |a: &Adopter| a.peer == *from && a.lease == lease;
        for stolen in self.stolen.values_mut() {
            if stolen.adopters.iter().any(is) {
                stolen.adopters.retain(|adopter| !is(adopter));
                stolen.successor = Some(successor);
                return;
            }
        }
        // Otherwise it has ended, and its result is under way to the owner, which forwards it.
    }

    /// The current incarnation and cluster of a member.
    pub(super) fn peer(&self, node: &NodeId) -> Option<Peer> {
        let member = self.view.members.get(node)?;
        let (incarnation, cluster) = (member.incarnation, member.cluster.clone());
        Some(Peer { node: node.clone(), incarnation, cluster })
    }

    /// The receiver of the returned task that is at or above this path.
    pub(super) fn given_to(&self, path: &TaskPath) -> Option<&Peer> {
        self.returned_tasks.iter().find(|(given, _)| path.is_at_or_below(given)).map(|(_, to)| to)
    }

    /// The tasks here whose owner is lost: those to halt, and those (running or finished) that a
    /// recomputed parent can use. Without reuse all are halted.
    pub(super) fn orphaned_by(&mut self, owner: &NodeId) -> (Vec<Stolen>, Vec<TaskIdentity>) {
        let mut halted = Vec::new();
        // A task that read objects of an earlier epoch can never be the same task again.
        let epoch = self.view.epoch;
        let current =
            |task: &TaskIdentity| task.needs.iter().all(|need| need.version.epoch >= epoch);
        let found = self.results.for_owner(owner).filter(|task| current(task));
        let mut orphans: Vec<TaskIdentity> = found.cloned().collect();
        let keys: Vec<_> = self.stolen.keys().filter(|(node, _)| node == owner).cloned().collect();
        for key in keys {
            let Some(stolen) = self.stolen.get_mut(&key) else { continue };
            stolen.adopters.retain(|adopter| adopter.peer.node != *owner);
            if self.results.is_off() || stolen.process || !current(&stolen.task) {
                halted.extend(self.stolen.remove(&key));
            } else {
                stolen.orphan = true;
                orphans.push(stolen.task.clone());
            }
        }
        for stolen in self.stolen.values_mut() {
            stolen.adopters.retain(|adopter| adopter.peer.node != *owner);
            if stolen.successor.take_if(|successor| successor.node == *owner).is_some() {
                orphans.push(stolen.task.clone());
            }
        }
        (halted, orphans)
    }
}
