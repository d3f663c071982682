//! Input from the network: frames of the job, changes of links, and undelivered messages.
//!
//! It decodes and dispatches; it does not know the meaning of the messages.

use super::*;
use crate::spmd::message::Envelope;

impl EngineCore {
    fn dispatch(&self, from: &Peer, kind: Kind, body: Bytes) -> Result<(), wire::WireError> {
        match kind {
            Kind::STEAL_REQUEST => {
                let request: StealRequest = wire::decode(kind, &body)?;
                if request.job == self.job && !self.closing.load(Ordering::Acquire) {
                    self.on_steal_request(from, request);
                } else {
                    refuse(&self.net, from, &request);
                }
            }
            Kind::STEAL_REPLY => {
                let reply: StealReply = wire::decode(kind, &body)?;
                if reply.job == self.job {
                    self.on_reply(from, reply);
                }
            }
            Kind::WORK_HINT => {
                let hint: WorkHint = wire::decode(kind, &body)?;
                if hint.job == self.job {
                    self.state().thief.hinted(&from.node);
                    self.driver.notify_one();
                }
            }
            Kind::TASK_RESULT => {
                let result: TaskResult = wire::decode(kind, &body)?;
                if result.job == self.job {
                    self.on_result(from, result);
                }
            }
            Kind::TASK_RETURN => {
                let back: TaskReturn = wire::decode(kind, &body)?;
                if back.job == self.job {
                    self.on_return(from, back);
                }
            }
            Kind::TASK_ABANDON => {
                let abandon: Abandon = wire::decode(kind, &body)?;
                if abandon.job == self.job {
                    self.on_abandon(from, abandon);
                }
            }
            Kind::ORPHANS => {
                let orphans: Orphans = wire::decode(kind, &body)?;
                if orphans.job == self.job {
                    self.on_orphans(from, orphans);
                }
            }
            Kind::ADOPT => {
                let adopt: Adopt = wire::decode(kind, &body)?;
                if adopt.job == self.job {
                    self.on_adopt(from, adopt);
                }
            }
            Kind::AUDIT => {
                let audit: Audit = wire::decode(kind, &body)?;
                if audit.job == self.job {
                    self.on_audit(from, audit);
                }
            }
            Kind::HANDOVER => {
                let handover: Handover = wire::decode(kind, &body)?;
                if handover.job == self.job {
                    self.on_handover(from, handover);
                }
            }
            Kind::PROCESS => {
                let letter: Envelope = wire::decode(kind, &body)?;
                if letter.job == self.job {
                    self.post.receive_frame(from, letter);
                }
            }
            _ => self.objects_ref().frame(&from.node, kind, body),
        }
        Ok(())
    }
}

impl NetworkHandler for EngineCore {
    fn frame(&self, from: &Peer, kind: Kind, body: Bytes) {
        if self.closing.load(Ordering::Acquire) && kind != Kind::STEAL_REQUEST {
            return;
        }
        {
            let mut state = self.state();
            if state.is_dead(from) {
                return state.count_event("refused: a message of a dead incarnation");
            }
            // Requests are answered in any case, since a thief waits.
            if kind != Kind::STEAL_REQUEST && !state.has_taken_part(from) {
                return state.keep_early(from, kind, body);
            }
        }
        if let Err(error) = self.dispatch(from, kind, body) {
            self.state().counters.frames_refused += 1;
            self.net.report_violation(from, &format!("a {kind:?} frame: {error}"));
        }
    }

    /// Handles the loss of a link, which is not a death. The node is not asked for work until the
    /// link is up again. Its tasks are reclaimed only when the membership removes it.
    fn down(&self, peer: &Peer, why: &LinkError) {
        let mut state = self.state();
        if state.view.members.contains_key(&peer.node) {
            tracing::debug!(%peer, %why, "a member's link is down");
            state.suspected.insert(peer.node.clone());
        }
        state.thief.suspect(&peer.node, true);
        drop(state);
        self.objects_ref().down(&peer.node);
        self.post.handle_broken_link(peer);
        self.driver.notify_one();
    }

    fn up(&self, peer: &Peer) {
        let (was_down, parked) = {
            let mut state = self.state();
            state.thief.suspect(&peer.node, false);
            (state.suspected.remove(&peer.node), state.parked.remove(&peer.node))
        };
        for (kind, body) in parked.into_iter().flatten() {
            self.state().count_event("a message that a broken link gave back is sent again");
            self.send_encoded(&peer.node, Class::Steal, kind, body);
        }
        if was_down {
            self.audit(peer);
        }
        self.driver.notify_one();
    }

    fn transferred(&self, from: &Peer, bytes: u64, began: Instant, ended: Instant) {
        if let Some(metering) = &self.metering {
            metering.transferred(from, bytes, began, ended);
        }
    }

    fn undelivered(&self, (to, kind, body): Undelivered) {
        match kind {
            Kind::STEAL_REPLY => {
                if let Ok(StealReply { task: Some(task), .. }) =
                    wire::decode::<StealReply>(kind, &body)
                {
                    self.reclaim(task.lease, "a task that was not sent is taken back");
                }
            }
            Kind::STEAL_REQUEST => {
                self.state().thief.unreachable(&to);
                self.driver.notify_one();
            }
            // These must arrive if the node lives: kept until its link is up again, or the node is
            // lost.
            Kind::TASK_RESULT
            | Kind::TASK_RETURN
            | Kind::TASK_ABANDON
            | Kind::ADOPT
            | Kind::HANDOVER => {
                let mut state = self.state();
                if state.view.members.contains_key(&to) {
                    state.parked.entry(to).or_default().push((kind, body));
                    self.driver.notify_one();
                }
            }
            kind if kind >= Kind::OBJECT_UPDATE && kind <= Kind::OBJECT_MERGE => {
                self.objects_ref().unsent(to, kind, body);
            }
            _ => {}
        }
    }
}
