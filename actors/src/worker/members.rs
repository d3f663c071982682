//! Changes of a worker's view, and questions about other members.
//!
//! This module does not know the origin of views.

use super::*;

/// Time for which a proxy waits for the member's answer.
const REACH_WITHIN: Duration = Duration::from_millis(1500);

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

impl Handler<ProbeMember> for Worker {
    type Result = ResponseFuture<bool>;

    fn handle(&mut self, probe: ProbeMember, _: &mut Context<Self>) -> Self::Result {
        let me = self.net.me();
        let running = self.running.as_ref().filter(|running| running.spec.id == probe.job);
        if me.node == probe.node {
            let is_alive = running.is_some() && me.incarnation == probe.incarnation;
            return Box::pin(async move { is_alive });
        }
        // Only questions about members are forwarded.
        let known = running.and_then(|running| running.view.members.get(&probe.node));
        if known.is_none_or(|member| member.incarnation != probe.incarnation) {
            return Box::pin(async { false });
        }
        let remote = self.hub.remote::<Worker>(&probe.node, WORKER);
        let call = remote.send(probe).deadline(REACH_WITHIN).start();
        Box::pin(async move { matches!(call.await, Ok(true)) })
    }
}
