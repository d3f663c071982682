//! A worker's part in a change of coordinator: it keeps checkpoints of the root, and takes the role
//! on order.
//!
//! This module does not know the decision.

use super::*;

impl Handler<StoreCheckpoint> for Worker {
    type Result = ();

    fn handle(&mut self, message: StoreCheckpoint, _: &mut Context<Self>) {
        let Some(running) = self.running.as_mut().filter(|r| r.spec.id == message.job) else {
            return;
        };
        // Checkpoints of a replaced coordinator are ignored.
        let current = message.kept.epoch >= running.view.epoch;
        if current && running.kept.as_ref().is_none_or(|known| known.mark() < message.kept.mark()) {
            let checkpoint = message.kept.saved.seq;
            let job = message.job;
            tracing::debug!(%job, checkpoint, "keeps a checkpoint of the root");
            running.kept = Some(message.kept);
        }
    }
}

impl Handler<FindCheckpoint> for Worker {
    type Result = MessageResult<FindCheckpoint>;

    fn handle(&mut self, message: FindCheckpoint, _: &mut Context<Self>) -> Self::Result {
        let running = self.running.as_ref().filter(|running| running.spec.id == message.job);
        MessageResult(running.and_then(|running| running.kept.as_ref()).map(RootCheckpoint::mark))
    }
}

impl Handler<GetCheckpoint> for Worker {
    type Result = MessageResult<GetCheckpoint>;

    fn handle(&mut self, message: GetCheckpoint, _: &mut Context<Self>) -> Self::Result {
        let running = self.running.as_ref().filter(|running| running.spec.id == message.job);
        MessageResult(running.and_then(|running| running.kept.clone()))
    }
}

impl Handler<PrepareSuccessor> for Worker {
    type Result = ();

    fn handle(
        &mut self,
        PrepareSuccessor { job, bequest }: PrepareSuccessor,
        _: &mut Context<Self>,
    ) {
        let Some(running) = self.running.as_mut().filter(|r| r.spec.id == job) else { return };
        let older = |known: &HandoverState| known.epoch <= bequest.epoch;
        if running.bequest.as_ref().is_none_or(older) && bequest.epoch >= running.view.epoch {
            running.bequest = Some(bequest);
        }
    }
}

impl Handler<TakeOver> for Worker {
    type Result = Result<(), String>;

    fn handle(&mut self, order: TakeOver, ctx: &mut Context<Self>) -> Self::Result {
        let TakeOver { job, epoch, members, lost, reason, handed, elapsed_ms } = order;
        let me = self.me();
        let Some(running) = self.running.as_mut().filter(|running| running.spec.id == job) else {
            return Err(format!("node {me} is not in {job}"));
        };
        if epoch <= running.view.epoch {
            return Err(format!("node {me} knows epoch {} already", running.view.epoch.0));
        }
        if running.view.partial {
            return Err(format!("node {me} does not know all members of {job} yet"));
        }
        let is_alive = |node: &NodeId, member: &Member| {
            (handed || *node != lost) && members.get(node) == Some(&member.incarnation)
        };
        let former_epoch = running.view.epoch;
        let view = running.view.with_coordinator(epoch, &me, is_alive);
        let gone = running.view.members.iter().filter(|(n, _)| !view.members.contains_key(*n));
        let gone = gone.map(|(n, member)| (n.clone(), member.clone())).collect();
        match view.members.get(&me) {
            Some(member) if member.leaving => return Err(format!("node {me} leaves the job")),
            Some(_) => {}
            None => return Err(format!("node {me} is not among the live members")),
        }
        tracing::info!(%job, %lost, reason, handed, "this node is now the job's coordinator");
        running.spec.epoch = epoch;
        // From the coordinator that hands over now, not from an earlier attempt.
        let bequest = running.bequest.take().filter(|left| handed && left.epoch == former_epoch);
        if let Some(former) = running.coordinator.take() {
            // From an earlier epoch in which this node had the role.
            running.engine.cancel_root();
            former.do_send(StopReplaced);
        }
        let strangers = members.into_iter().filter(|(n, _)| !view.members.contains_key(n));
        let strangers = strangers.collect();
        let config = CoordinatorConfig {
            spec: running.spec.clone(),
            view: view.clone(),
            client: running.client.clone(),
            scheduler: running.scheduler.clone(),
            registry: self.registry.clone(),
            engine: running.engine.clone(),
            recorder: self.recorder.clone(),
            reports: listen(&running.listener),
            succeeds: Some(Succession { lost, reason, handed, bequest, gone, strangers }),
            elapsed: Duration::from_millis(elapsed_ms),
        };
        running.coordinator = Some(Coordinator::new(config, self.hub.clone()).publish());
        self.handle(NewView { job, view }, ctx);
        Ok(())
    }
}
