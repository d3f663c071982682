//! How a root calls for processes and lets them go: one for each thread of the job that could run one, but for its own.
//!
//! What they do, and whether they compute in configurations or take orders, is the root's own affair. Must not know programs, nor who
//! offers nodes or takes them: it sees the job's members.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Station;
use super::group::Stand;
use super::message::{GroupId, Word};
use super::post::{Place, Post};
use crate::id::{NodeId, Peer};
use crate::work::{Context, Spawned, Stop, Task};

/// Processes that nobody came for within this time are told of, to the nodes that could run them, and then this often. (A node asks
/// few of other clusters for work: of fourteen nodes on three clusters eight never asked the root.)
const TELL_AFTER: Duration = Duration::from_millis(200);
const TELL_EVERY: Duration = Duration::from_secs(1);

/// The processes that a root has called for.
pub(crate) struct Crew<'c, T> {
    called: BTreeMap<u32, Spawned<'c, T>>,
    /// The number of the next process.
    next: u32,
    /// When one was called for last, or all were to begin anew.
    pub(crate) called_at: Instant,
    /// Members when it looked last.
    known: BTreeSet<Peer>,
    /// How many of them stay.
    pub(crate) nodes: u32,
    /// Nodes that were given back and are members still.
    released: BTreeSet<Peer>,
    /// Threads beside the root's that could run a process.
    pub(crate) capacity: usize,
    /// When nodes were told last that there are processes to be run.
    told_at: Option<Instant>,
}

impl<'c, T: Task> Crew<'c, T> {
    /// Nobody yet.
    pub(crate) fn new() -> Self {
        Self {
            called: BTreeMap::new(),
            next: 1,
            called_at: Instant::now(),
            known: BTreeSet::new(),
            nodes: 0,
            released: BTreeSet::new(),
            capacity: 0,
            told_at: None,
        }
    }

    /// Calls for a process for each thread that could run one, lets those go that are on nodes which leave, and collects those
    /// that have ended. `call` makes the process of this number.
    ///
    /// # Errors
    /// A halt, or the failure of a process that ended by itself.
    pub(crate) fn reconcile(
        &mut self,
        at: &Station<'c>,
        call: impl Fn(GroupId, u32) -> T,
    ) -> Result<(), Stop> {
        at.relay();
        let places = at.post.places();
        let nodes = places.iter().filter(|place| !place.leaving).count();
        self.nodes = u32::try_from(nodes).unwrap_or(u32::MAX);
        let peers: BTreeSet<Peer> = places.iter().map(|place| place.peer.clone()).collect();
        if self.known != peers {
            let used = |peers: &BTreeSet<Peer>| {
                peers.difference(&self.released).cloned().collect::<BTreeSet<_>>()
            };
            if used(&self.known) != used(&peers) {
                // Nodes that were given back, and that somebody keeps in the job, may be of use now.
                self.released.clear();
            }
            self.released.retain(|peer| peers.contains(peer));
            self.known = peers;
        }
        let stays = places.iter().filter(|place| self.stays(place));
        let threads: u32 = stays.clone().map(|place| place.threads).sum();
        let stays: BTreeSet<Peer> = stays.map(|place| place.peer.clone()).collect();
        self.capacity = threads.saturating_sub(1) as usize;
        // A process reports its end once, and a broken link may lose that. The result of its task
        // arrives in any case.
        let finished = self.called.iter().filter(|(_, spawned)| spawned.is_finished());
        let finished: Vec<u32> = finished.map(|(process, _)| *process).collect();
        let reconciled = at.post.group(&at.group, |group| {
            let mut out: Vec<_> =
                finished.into_iter().flat_map(|process| group.over(process)).collect();
            let settled = group.is_settled() || group.roster().is_none();
            let counts = |(process, peer, stand): &(u32, Option<&Peer>, Stand)| {
                let lives = !matches!(stand, Stand::Dismissed | Stand::Over);
                *process != 0 && lives && peer.is_none_or(|peer| stays.contains(peer))
            };
            let here = group.stands().filter(counts).count();
            // Those that gave their state away end when the others have it.
            if settled {
                let leaves = |peer: &Peer| !stays.contains(peer);
                out.extend(group.dismiss(|_, peer, _| peer.is_some_and(leaves)));
            }
            let over = group.stands().filter(|(_, _, stand)| *stand == Stand::Over);
            let over: Vec<u32> = over.map(|(process, ..)| process).collect();
            group.forget_over();
            ((here, over, group.take_ended()), out)
        });
        let (here, idle, ended) = reconciled.ok_or_else(gone)?;
        for process in idle {
            let Some(spawned) = self.called.remove(&process) else { continue };
            let end = spawned.take();
            at.cx.check()?;
            // One that nobody had told to end has failed, if it is not one that was found to be of no use where it began.
            if ended.contains(&process) {
                end?;
            }
        }
        for _ in here..self.capacity {
            let process = self.next;
            self.next += 1;
            self.called_at = Instant::now();
            let called = at.post.group(&at.group, |group| (group.call(process), Vec::new()));
            called.ok_or_else(gone)?;
            self.called.insert(process, at.cx.spawn(call(at.group.clone(), process)));
        }
        self.tell_nodes(at, &places);
        Ok(())
    }

    /// Tells nodes that have threads without a process of those that nobody has come for.
    fn tell_nodes(&mut self, at: &Station<'c>, places: &[Place]) {
        let now = Instant::now();
        let told = self.told_at.is_some_and(|told| now < told + TELL_EVERY);
        if told || now < self.called_at + TELL_AFTER {
            return;
        }
        let (waits, there) = at
            .post
            .look(&at.group, |group| {
                let mut there: BTreeMap<Peer, u32> = BTreeMap::new();
                let mut waits = false;
                for (_, peer, stand) in group.stands() {
                    waits |= stand == Stand::Called && peer.is_none();
                    if let Some(peer) = peer.filter(|_| stand != Stand::Over) {
                        *there.entry(peer.clone()).or_default() += 1;
                    }
                }
                (waits, there)
            })
            .unwrap_or_default();
        if !waits {
            return;
        }
        let free = |place: &&Place| {
            let has = there.get(&place.peer).copied().unwrap_or_default();
            place.peer != *at.post.me() && self.stays(place) && has < place.threads
        };
        let free: Vec<NodeId> =
            places.iter().filter(free).map(|place| place.peer.node.clone()).collect();
        self.told_at = Some(now);
        at.cx.call_nodes(&free);
    }

    /// Lets all end and collects them. What they still say does not matter.
    pub(crate) fn collect_all(&mut self, at: &Station<'c>) {
        // Told to end first, so that those that have not begun do not.
        at.post.group(&at.group, |group| ((), group.disband()));
        for (_, spawned) in std::mem::take(&mut self.called) {
            drop(spawned.take());
        }
    }

    /// Whether a node stays, and was not given back.
    pub(crate) fn stays(&self, place: &Place) -> bool {
        !place.leaving && !self.released.contains(&place.peer)
    }

    /// These nodes are given back: at the next look their processes are let go, and their threads are not called for.
    pub(crate) fn release(&mut self, at: &Station<'c>, nodes: Vec<NodeId>) {
        let peers = at.post.places().into_iter().map(|place| place.peer);
        self.released.extend(peers.filter(|peer| nodes.contains(&peer.node)));
        let names: Vec<&str> = nodes.iter().map(|node| node.as_str()).collect();
        at.cx.say(format!("the program has no use for {}", names.join(", ")));
        at.cx.release(nodes);
    }
}

/// The group ends with its root, whatever ends that.
pub(crate) struct Disbands(pub(crate) Arc<Post>, pub(crate) GroupId);

impl Drop for Disbands {
    fn drop(&mut self) {
        self.0.group(&self.1, |group| ((), group.disband()));
        self.0.rise(&self.1, 0);
    }
}

/// The life of a process that was called for, on this thread: it sits down, lives, and tells the root when it is no more. One that nobody
/// needs ends at once.
///
/// # Errors
/// As of its life.
pub(crate) fn seated(
    cx: &Context,
    group: GroupId,
    process: u32,
    live: impl FnOnce(&Station<'_>) -> Result<(), Stop>,
) -> Result<(), Stop> {
    // A pool without one runs no root of a group either.
    let Some(post) = cx.post() else { return Ok(()) };
    let at = Station { cx, post, group, process };
    if !at.post.sit(&at.group, process, cx.waker()) {
        at.tell_root(Word::Over { process });
        return Ok(());
    }
    let _rises = Rises(&at);
    live(&at)
}

/// Tells the root that a process is no more, whatever ends it; but not if it is halted, for then the root is gone, or counts on
/// the membership's word.
struct Rises<'a>(&'a Station<'a>);

impl Drop for Rises<'_> {
    fn drop(&mut self) {
        let at = self.0;
        at.post.rise(&at.group, at.process);
        if at.cx.check().is_ok() {
            at.tell_root(Word::Over { process: at.process });
        }
    }
}

/// The group ends with the root alone, so nobody meets this.
pub(crate) fn gone() -> Stop {
    Stop::fail("the group of the program's processes is no more")
}
