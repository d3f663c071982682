//! A member of a grid's head as an actor: it executes the protocol of
//! [`standby`](springtide_scheduler::standby) over links, with its state on disk.
//!
//! The actor stops if its disk fails, because a member may not answer before its state is durable.
//! Independent of the records' meaning.

mod log;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use serde::{Deserialize, Serialize};
use springtide_protocol::admit::{self, HasRule, Rule};
use springtide_runtime::id::NodeId;
use springtide_runtime::net::tls::Role;
use springtide_runtime::records::RecordError;
use springtide_runtime::remote::{Hub, Refusal, Remote, Sender};
use springtide_runtime::remote_message;
use springtide_scheduler::standby::{
    MayNotAct, Member, MemberAction, MemberEvent, MemberMessage, Members, StandbyTiming,
};
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

pub use self::log::MemberLog;

/// Name under which a process publishes its member.
pub const STANDBY: &str = "standby";

/// To a member, by another one: a message of the protocol.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StandbyMessage {
    /// Name of the sending member.
    pub from: NodeId,
    /// The message of the protocol.
    pub message: MemberMessage,
}

remote_message! {
    "standby-message" => StandbyMessage;
}

impl HasRule for StandbyMessage {
    const RULE: Rule = Rule { roles: &[Role::Head, Role::Site], places: None, confirmed: false };

    fn claim(&self, from: &Sender<'_>) -> Result<(), Refusal> {
        from.holds(|peer| peer.node == self.from)
    }
}

/// To a member of this process: appends a record. The answer comes when it is committed.
#[derive(Message)]
#[rtype(result = "Result<u64, AppendError>")]
pub struct AppendRecord(pub Vec<u8>);

/// The reason why an append was not confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// Nothing was appended.
    #[error(transparent)]
    MayNotAct(#[from] MayNotAct),
    /// The record may be committed later, or never: this head has lost its lease, or its disk has
    /// failed. A sender that repeats the append may write the record twice.
    #[error("this head does not know whether the record is committed: the acting head does")]
    OutcomeUnknown,
}

/// What a member shows to its process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberStatus {
    /// Time until which this head may act; absent: it may not.
    pub acts_until: Option<Instant>,
    /// Index of the last record that is known to be committed.
    pub committed: u64,
}

impl MemberStatus {
    /// Whether the head may act now. To be asked before each act.
    pub fn may_act(&self) -> bool {
        self.acts_until.is_some_and(|until| Instant::now() < until)
    }
}

/// The actor of a member.
pub struct StandbyMember {
    me: NodeId,
    member: Member,
    log: MemberLog,
    hub: Arc<Hub>,
    /// The zero of the member's clock.
    start: Instant,
    timer: Option<SpawnHandle>,
    status: watch::Sender<MemberStatus>,
    /// Submitters of records that are not committed yet, by index.
    waiting: BTreeMap<u64, oneshot::Sender<Result<u64, AppendError>>>,
}

impl StandbyMember {
    /// Starts the member of this process, with the state in its log, and publishes it. The
    /// receiver shows whether it may act.
    pub fn publish(
        hub: &Arc<Hub>,
        members: Members,
        timing: StandbyTiming,
        log: MemberLog,
    ) -> (Addr<Self>, watch::Receiver<MemberStatus>) {
        let me = hub.net().me().node.clone();
        let state = log.state().clone();
        let member = Member::start(me.clone(), members, timing, state, Duration::ZERO);
        let (status, shown) = watch::channel(MemberStatus::default());
        let actor = Self {
            me,
            member,
            log,
            hub: Arc::clone(hub),
            start: Instant::now(),
            timer: None,
            status,
            waiting: BTreeMap::new(),
        };
        let actor = actor.start();
        hub.publish(STANDBY, actor.clone()).accepts_from::<StandbyMessage>(admit::by_rule);
        (actor, shown)
    }

    fn clock(&self) -> Duration {
        self.start.elapsed()
    }

    fn feed(&mut self, ctx: &mut Context<Self>, event: MemberEvent) {
        let (now, mut out) = (self.clock(), Vec::new());
        self.member.handle(event, now, &mut out);
        self.finish(ctx, out);
    }

    /// Executes actions, and shows the state that they result in.
    fn finish(&mut self, ctx: &mut Context<Self>, out: Vec<MemberAction>) {
        if let Err(error) = self.execute(out) {
            tracing::error!("{} leaves the members of the head: {error}", self.me);
            self.status.send_replace(MemberStatus::default());
            self.hub.unpublish(STANDBY);
            return ctx.stop();
        }
        let acts_until = self.member.acts_until().map(|until| self.start + until);
        let committed = self.member.committed();
        self.status.send_replace(MemberStatus { acts_until, committed });
        if let Some(timer) = self.timer.take() {
            ctx.cancel_future(timer);
        }
        self.timer = self.member.due().map(|due| {
            ctx.run_later(due.saturating_sub(self.clock()), |act, ctx| {
                act.timer = None;
                act.feed(ctx, MemberEvent::Tick);
            })
        });
    }

    /// Executes actions in their order.
    ///
    /// # Errors
    /// A change is not durable; then nothing after it is executed.
    fn execute(&mut self, out: Vec<MemberAction>) -> Result<(), RecordError> {
        for action in out {
            match action {
                MemberAction::Save(change) => self.log.save(change)?,
                MemberAction::Send { to, message } => {
                    let remote: Remote<Self> = self.hub.remote(&to, STANDBY);
                    let sent = remote.do_send(StandbyMessage { from: self.me.clone(), message });
                    if let Err(error) = sent {
                        // The protocol repeats what is lost.
                        tracing::debug!(%to, %error, "a message to a member is lost");
                    }
                }
                MemberAction::Committed(index) => {
                    let later = self.waiting.split_off(&(index + 1));
                    for (index, waiting) in std::mem::replace(&mut self.waiting, later) {
                        // The submitter may have gone.
                        let _ = waiting.send(Ok(index));
                    }
                }
                // What was appended may be replaced by another head's records.
                MemberAction::Lead(_) | MemberAction::Follow => {
                    for (_, waiting) in std::mem::take(&mut self.waiting) {
                        let _ = waiting.send(Err(AppendError::OutcomeUnknown));
                    }
                }
            }
        }
        Ok(())
    }
}

impl Actor for StandbyMember {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        self.finish(ctx, Vec::new());
    }
}

impl Handler<StandbyMessage> for StandbyMember {
    type Result = ();

    fn handle(&mut self, message: StandbyMessage, ctx: &mut Self::Context) {
        let StandbyMessage { from, message } = message;
        self.feed(ctx, MemberEvent::Received { from, message });
    }
}

impl Handler<AppendRecord> for StandbyMember {
    type Result = ResponseFuture<Result<u64, AppendError>>;

    fn handle(
        &mut self,
        AppendRecord(value): AppendRecord,
        ctx: &mut Self::Context,
    ) -> Self::Result {
        let (now, mut out) = (self.clock(), Vec::new());
        let appended = self.member.append(value, now, &mut out);
        let (sender, committed) = oneshot::channel();
        if let Ok(index) = appended {
            self.waiting.insert(index, sender);
        }
        self.finish(ctx, out);
        Box::pin(async move {
            appended?;
            // A member whose disk fails drops the sender.
            committed.await.unwrap_or(Err(AppendError::OutcomeUnknown))
        })
    }
}

#[cfg(test)]
mod tests {
    use springtide_runtime::id::{Incarnation, Peer};
    use springtide_runtime::net::MemoryNet;
    use springtide_runtime::records::Disk;
    use springtide_scheduler::standby::DurableState;

    use super::*;
    use crate::endpoint::Endpoint;

    const NAMES: [&str; 3] = ["head-a", "head-b", "witness"];

    struct Process {
        endpoint: Endpoint,
        member: Addr<StandbyMember>,
        status: watch::Receiver<MemberStatus>,
    }

    /// Three processes in clusters of their names, with directories that outlive them.
    struct TestMembers {
        network: MemoryNet,
        dir: tempfile::TempDir,
        processes: BTreeMap<&'static str, Process>,
        incarnation: u64,
    }

    impl TestMembers {
        fn start(seed: u64) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let network = MemoryNet::new(seed);
            let mut all = Self { network, dir, processes: BTreeMap::new(), incarnation: 0 };
            NAMES.into_iter().for_each(|name| all.launch(name));
            all
        }

        fn launch(&mut self, name: &'static str) {
            self.incarnation += 1;
            let incarnation = Incarnation(self.incarnation);
            let peer = Peer { node: name.into(), incarnation, cluster: name.into() };
            let endpoint = Endpoint::over(self.network.join(peer).unwrap());
            for other in self.processes.values() {
                endpoint.net.learn(other.endpoint.net.contact());
                other.endpoint.net.learn(endpoint.net.contact());
            }
            let [first, second, witness] = NAMES.map(NodeId::from);
            let members = Members { heads: [first, second], witness };
            let log = MemberLog::open(Arc::new(Disk), &self.dir.path().join(name)).unwrap();
            let timing = StandbyTiming::default();
            let (member, status) = StandbyMember::publish(&endpoint.hub, members, timing, log);
            endpoint.start();
            self.processes.insert(name, Process { endpoint, member, status });
        }

        fn kill(&mut self, name: &str) {
            self.network.kill(&name.into());
            self.processes.remove(name);
        }

        fn cut(&self, a: &str, b: &str, cut: bool) {
            self.network.partition(&a.into(), &b.into(), cut);
        }

        fn acting(&self) -> Vec<&'static str> {
            let acts = |process: &Process| process.status.borrow().may_act();
            self.processes.iter().filter(|(_, it)| acts(it)).map(|(name, _)| *name).collect()
        }

        /// Waits until this condition holds of the acting heads, of which there is never a second.
        async fn until(&self, seconds: u64, holds: impl Fn(&[&'static str]) -> bool) {
            let deadline = Instant::now() + Duration::from_secs(seconds);
            loop {
                let acting = self.acting();
                assert!(acting.len() < 2, "{acting:?}");
                if holds(&acting) {
                    return;
                }
                assert!(Instant::now() < deadline, "{acting:?} after {seconds} s");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }

        /// Appends a record at the acting head.
        async fn append(&self, text: &str) -> Result<u64, AppendError> {
            let acting = self.acting();
            let member = self.processes[acting[0]].member.clone();
            member.send(AppendRecord(text.as_bytes().to_vec())).await.unwrap()
        }

        /// The values on the disk of a member.
        fn values(&self, name: &str) -> Vec<String> {
            let log = MemberLog::open(Arc::new(Disk), &self.dir.path().join(name)).unwrap();
            let DurableState { entries, .. } = log.state();
            let values = entries.iter().filter_map(|entry| entry.value.clone());
            values.map(|value| String::from_utf8(value).unwrap()).collect()
        }
    }

    fn other(name: &str) -> &'static str {
        if name == NAMES[0] { NAMES[1] } else { NAMES[0] }
    }

    #[actix::test]
    async fn the_other_head_takes_over_with_all_answered_records() {
        tokio::time::pause();
        for seed in 0..8 {
            let mut all = TestMembers::start(seed);
            all.until(10, |acting| acting.len() == 1).await;
            let first = all.acting()[0];
            let mut answered = Vec::new();
            for number in 0..30 {
                let text = format!("record {number}");
                all.append(&text).await.unwrap();
                answered.push(text);
            }
            all.kill(first);
            all.until(10, |acting| acting == [other(first)]).await;
            all.append("after").await.unwrap();
            answered.push("after".to_owned());
            assert_eq!(all.values(other(first)), answered, "seed {seed}");
            // The first head returns, and gets what it missed.
            all.launch(first);
            let is_whole = |acting: &[&str]| {
                assert_eq!(acting, [other(first)], "seed {seed}");
                all.values(first) == answered
            };
            all.until(30, is_whole).await;
            all.kill(other(first));
            all.until(10, |acting| acting == [first]).await;
        }
    }

    #[actix::test]
    async fn two_heads_that_are_cut_apart_never_act_both() {
        tokio::time::pause();
        for seed in 0..20 {
            let all = TestMembers::start(seed);
            all.until(10, |acting| acting.len() == 1).await;
            let first = all.acting()[0];
            // Both live and reach the witness: the first one continues.
            all.cut(NAMES[0], NAMES[1], true);
            tokio::time::sleep(Duration::from_secs(20)).await;
            all.until(1, |acting| acting == [first]).await;
            all.append("alone").await.unwrap();
            all.cut(NAMES[0], NAMES[1], false);
            tokio::time::sleep(Duration::from_secs(10)).await;
            all.append("together").await.unwrap();
            // The first one reaches no member: the other one acts, after the first one has stopped.
            all.cut(NAMES[0], NAMES[1], true);
            all.cut(first, NAMES[2], true);
            all.until(15, |acting| acting == [other(first)]).await;
            assert_eq!(all.values(other(first)), ["alone", "together"], "seed {seed}");
            let refused = all.processes[first].member.send(AppendRecord(vec![1])).await.unwrap();
            assert_eq!(refused, Err(AppendError::MayNotAct(MayNotAct)));
        }
    }
}
