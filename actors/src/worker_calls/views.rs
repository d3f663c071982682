//! Distribution of views to workers: as changes of the previous view, or whole where that is
//! unknown.
//!
//! This module does not know their origin.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use springtide_protocol::names::WORKER;
use springtide_protocol::receivers::Worker;
use springtide_protocol::worker::{ChangeView, NewView};
use springtide_runtime::id::{ClusterId, JobId, NodeId};
use springtide_runtime::membership::{View, ViewChange};
use springtide_runtime::remote::{Hub, RemoteError};
use tokio::sync::Semaphore;

/// Timeout of a view to a worker.
const VIEW_DEADLINE: Duration = Duration::from_secs(5);

/// Maximum bytes of members in whole views that one role sends at once; a longer view is sent
/// alone. A view of 10,000 members has 700 kB, and each worker of a cluster gets one.
const WHOLE_VIEWS_BYTES: usize = 1 << 20;

/// The pending transmission of a view.
pub(crate) type SendingView = Pin<Box<dyn Future<Output = Result<(), RemoteError>>>>;

/// Sends whole views to workers, a bounded number of bytes at once.
pub(crate) struct ViewSender {
    budget: Arc<Semaphore>,
    /// The nodes whose views wait for others to arrive.
    waiting: Rc<RefCell<BTreeSet<NodeId>>>,
}

impl ViewSender {
    pub(crate) fn new() -> Self {
        let budget = Arc::new(Semaphore::new(WHOLE_VIEWS_BYTES));
        Self { budget, waiting: Rc::default() }
    }

    /// Sends the worker of a node the whole view, now if others leave room. `None` if an earlier
    /// view for this node waits: the worker asks again if that one is too old.
    pub(crate) fn send(
        &self,
        hub: &Arc<Hub>,
        node: &NodeId,
        job: JobId,
        view: &View,
    ) -> Option<SendingView> {
        let bytes = view.members.encoded_len().clamp(1, WHOLE_VIEWS_BYTES);
        let permits = u32::try_from(bytes).unwrap_or(u32::MAX);
        if let Ok(permit) = self.budget.clone().try_acquire_many_owned(permits) {
            let sending = send_view(hub, node, job, view, None);
            return Some(Box::pin(async move {
                let _permit = permit;
                sending.await
            }));
        }
        if !self.waiting.borrow_mut().insert(node.clone()) {
            return None;
        }
        let (budget, waiting) = (self.budget.clone(), self.waiting.clone());
        let (hub, node, view) = (hub.clone(), node.clone(), view.clone());
        Some(Box::pin(async move {
            // The semaphore is never closed.
            let _permit = budget.acquire_many_owned(permits).await;
            waiting.borrow_mut().remove(&node);
            send_view(&hub, &node, job, &view, None).await
        }))
    }
}

/// Sends the worker of a node the view, as a `change` if there is one and the worker knows its
/// base. The first message is under way when this returns; an error is the last message's.
pub(crate) fn send_view(
    hub: &Arc<Hub>,
    node: &NodeId,
    job: JobId,
    view: &View,
    change: Option<&ViewChange>,
) -> impl Future<Output = Result<(), RemoteError>> + use<> {
    let remote = hub.remote::<Worker>(node, WORKER);
    let whole = NewView { job, view: view.clone() };
    let change = change.map(|change| {
        let message = ChangeView { job, change: change.clone() };
        remote.send(message).deadline(VIEW_DEADLINE).start()
    });
    let started = match &change {
        Some(_) => None,
        None => Some(remote.send(whole.clone()).deadline(VIEW_DEADLINE).start()),
    };
    async move {
        if let Some(change) = change
            && change.await?
        {
            return Ok(());
        }
        match started {
            Some(started) => started.await,
            None => remote.send(whole).deadline(VIEW_DEADLINE).await,
        }
    }
}

/// Returns the change between two views, if it is smaller than the view.
pub(crate) fn small_change(from: &View, to: &View) -> Option<ViewChange> {
    let change = to.change_since(from);
    (!from.partial && !to.partial && change.members.len() <= to.members.len() / 2).then_some(change)
}

/// Number of members of a view, by cluster.
pub(crate) fn workers_by_cluster(view: &View) -> BTreeMap<ClusterId, u32> {
    let mut workers = BTreeMap::new();
    for member in view.members.values() {
        *workers.entry(member.cluster.clone()).or_insert(0) += 1;
    }
    workers
}
