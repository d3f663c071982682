//! Distribution of views to workers: as changes of the previous view, or whole where that is
//! unknown.
//!
//! Independent of their origin.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use springtide_protocol::names::WORKER;
use springtide_protocol::receivers::Worker;
use springtide_protocol::worker::{ChangeView, NewView};
use springtide_runtime::id::{ClusterId, JobId, NodeId};
use springtide_runtime::membership::{View, ViewChange};
use springtide_runtime::remote::{Hub, RemoteError};

/// Timeout of a view to a worker.
const VIEW_DEADLINE: Duration = Duration::from_secs(5);

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
