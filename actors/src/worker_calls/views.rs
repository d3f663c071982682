//! Distribution of views to workers: as changes of the previous view, or whole where that is
//! unknown.
//!
//! Independent of their origin.

use springtide_runtime::remote::RemoteError;

use super::*;

/// Timeout of a view to a worker.
const VIEW_DEADLINE: Duration = Duration::from_secs(5);

/// Sends the worker of a node the view, as a `change` if there is one and the worker knows its
/// base. The first message is under way when this returns; an error is the last message's.
pub(crate) fn tell_view(
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

impl Handler<ChangeView> for Worker {
    type Result = bool;

    fn handle(&mut self, message: ChangeView, ctx: &mut Context<Self>) -> bool {
        let ChangeView { job, change } = message;
        let Some(running) = self.running.as_ref().filter(|r| r.spec.id == job) else {
            // It is not in the job, so it needs no view.
            return true;
        };
        let view = &running.view;
        if !view.partial && (view.epoch, view.version) >= (change.epoch, change.version) {
            return true;
        }
        let Some(view) = view.changed(&change) else { return false };
        self.handle(NewView { job, view }, ctx);
        true
    }
}
