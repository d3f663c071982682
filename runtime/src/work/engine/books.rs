//! What an engine says of its own books: leases and how they ended, what is held, what was refused, and which ways of recovery were
//! gone. For tests, the simulator and people who look for a bug; nothing in the engine depends on it.

use super::*;
use crate::work::core::LeaseBook;

/// An engine's books at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Books {
    /// Every lease of this node's own tasks.
    pub leases: LeaseBook,
    /// What is held.
    pub tables: Tables,
    /// Tasks that came under a lease under which one was here already: there must be none.
    pub doubled: u64,
    /// Whether the node leaves.
    pub leaving: bool,
    /// Whether it was told to end.
    pub closed: bool,
    /// Compute threads that have not ended.
    pub threads: usize,
    /// Ways of recovery that were gone, and what was refused: how often, by name.
    pub met: BTreeMap<&'static str, u64>,
}

/// How many entries an engine's tables have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tables {
    /// Tasks of other nodes that run here or wait for a thread.
    pub stolen: usize,
    /// Those that wait for shared objects.
    pub waiting: usize,
    /// Leases that were named an heir, tasks that were given back, and tasks taken over that run elsewhere.
    pub moved: usize,
    /// See [`Tables::moved`].
    pub given: usize,
    /// See [`Tables::moved`].
    pub adopted: usize,
    /// Messages that wait for a link.
    pub parked: usize,
    /// Messages that wait for room.
    pub unsent: usize,
    /// Bytes of results kept.
    pub results_bytes: usize,
    /// The most that may be.
    pub results_max: usize,
    /// Pointers to results elsewhere.
    pub known: usize,
}

/// Who waits for whom on one node: what to look at when a job does not go on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// Tasks that threads here wait for, and who has them.
    pub awaited: Vec<(TaskPath, NodeId)>,
    /// Tasks of this node that others have.
    pub leased: Vec<(TaskPath, NodeId)>,
    /// Tasks of others here: whose, which thread runs them, and whether nobody waits for the answer any more.
    pub stolen: Vec<(TaskPath, NodeId, Option<u32>, bool)>,
}

/// So many of each are told.
const WAITS_TOLD: usize = 20;

impl std::fmt::Display for Waits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let told = |all: &[(TaskPath, NodeId)]| {
            let all = all.iter().take(WAITS_TOLD).map(|(path, node)| format!("{path} at {node}"));
            all.collect::<Vec<_>>().join(", ")
        };
        let stolen = self.stolen.iter().take(WAITS_TOLD).map(|(path, owner, thread, orphan)| {
            let by = thread.map_or("not begun".to_owned(), |thread| format!("thread {thread}"));
            let orphan = if *orphan { ", an orphan" } else { "" };
            format!("{path} of {owner} ({by}{orphan})")
        });
        let stolen = stolen.collect::<Vec<_>>().join(", ");
        let (awaited, leased) = (told(&self.awaited), told(&self.leased));
        write!(f, "waits for [{awaited}]; lent [{leased}]; has [{stolen}]")
    }
}

/// Looks at an engine, and remembers its books when it is no more. Does not keep it.
#[derive(Clone)]
pub struct EngineWatch {
    job: JobId,
    me: Peer,
    inner: Weak<Inner>,
    last: Arc<OnceLock<Books>>,
}

impl EngineWatch {
    /// For which job it works.
    pub fn job(&self) -> JobId {
        self.job
    }

    /// Where.
    pub fn me(&self) -> &Peer {
        &self.me
    }

    /// Whether the engine is no more.
    pub fn is_over(&self) -> bool {
        self.last.get().is_some()
    }

    /// Who waits for whom there; absent when the engine is no more.
    pub fn waits(&self) -> Option<Waits> {
        self.inner.upgrade().map(|inner| inner.waits())
    }

    /// Its books, as they are or were last.
    pub fn books(&self) -> Books {
        let now = self.inner.upgrade().map(|inner| inner.books());
        now.or_else(|| self.last.get().cloned()).unwrap_or_default()
    }
}

impl Engine {
    /// Looks at this engine from now on.
    pub fn watch(&self) -> EngineWatch {
        EngineWatch {
            job: self.0.job,
            me: self.0.me.clone(),
            inner: Arc::downgrade(&self.0),
            last: self.0.last_books.clone(),
        }
    }
}

impl State {
    /// Writes down that something was met that is not usual.
    pub(super) fn met(&mut self, what: &'static str) {
        *self.met.entry(what).or_default() += 1;
    }

    /// Whether a message is of a life that is over, by the membership's word: of an earlier one than the member's, or of one
    /// that was declared dead. What such a node says of tasks and leases nobody goes by any more.
    pub(super) fn is_dead(&self, peer: &Peer) -> bool {
        let member = self.view.members.get(&peer.node);
        member.is_some_and(|member| peer.incarnation < member.incarnation)
            || self.dead.get(&peer.node).is_some_and(|life| peer.incarnation <= *life)
    }
}

impl Inner {
    fn waits(&self) -> Waits {
        let pool = self.pool.get();
        let awaited = pool.map(Pool::awaited).unwrap_or_default().into_iter();
        let awaited = awaited.map(|(_, path, holder)| (path, holder.node)).collect();
        let leased = pool.map(|pool| pool.leased_below(&TaskPath::root())).unwrap_or_default();
        let leased = leased.into_iter().map(|place| (place.identity.path, place.holder.node));
        let leased = leased.collect();
        let state = self.state();
        let stolen = state.stolen.values().map(|stolen| {
            let Stolen { base, task, owner, orphan, .. } = stolen;
            (task.path.clone(), owner.node.clone(), base.thread(), *orphan)
        });
        Waits { awaited, leased, stolen: stolen.collect() }
    }

    pub(super) fn books(&self) -> Books {
        let leases = self.pool.get().map(Pool::lease_book).unwrap_or_default();
        let stale = self.post.stale();
        let state = self.state();
        let mut met = state.met.clone();
        if stale > 0 {
            met.insert("refused: a message of a configuration that is over", stale);
        }
        let (results_bytes, results_max) = state.results.size();
        let tables = Tables {
            stolen: state.stolen.len(),
            waiting: state.waiting.len(),
            moved: state.moved.len(),
            given: state.given.len(),
            adopted: state.adopted.len(),
            parked: state.parked.values().map(Vec::len).sum(),
            unsent: state.unsent.len(),
            results_bytes,
            results_max,
            known: state.known.len(),
        };
        Books {
            leases,
            tables,
            doubled: state.doubled,
            leaving: state.leaving,
            closed: self.closing.load(Ordering::Acquire),
            threads: self.threads_left.load(Ordering::Acquire),
            met,
        }
    }
}
