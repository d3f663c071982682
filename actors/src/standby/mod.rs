//! A member of a grid's head as an actor: it executes the protocol of
//! [`standby`](springtide_scheduler::standby) over links, with its state on disk.
//!
//! Records are changes of the files in a head's directory. Both heads apply them, and the stores of
//! the acting head write through [`ReplicatedFiles`]. A head that lacks records which a snapshot
//! replaces copies the files first.
//!
//! The actor has an arbiter of its own, since the stores wait for it. It stops if its disk fails,
//! because a member may not answer before its state is durable. This module does not know the
//! files' contents.

mod copy;
mod files;
mod log;
mod mirror;
mod replica;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use serde::{Deserialize, Serialize};
use springtide_protocol::admit::{self, HasRule, Rule};
use springtide_protocol::scheduler::{HeadMember, HeadRole};
use springtide_runtime::id::NodeId;
use springtide_runtime::net::tls::Role;
use springtide_runtime::records::RecordError;
use springtide_runtime::remote::{Hub, Refusal, Remote, Sender};
use springtide_runtime::remote_message;
use springtide_scheduler::standby::{
    DurableChange, LogPosition, MayNotAct, Member, MemberAction, MemberEvent, MemberMessage, Term,
};
pub use springtide_scheduler::standby::{MemberPart, Members, StandbyTiming};
use tokio::sync::watch;
use tokio::time::Instant;

use self::copy::{Chunk, ChunkContents, CopiedRange, Copier, CopyError};
pub use self::files::{ChangeLog, ReplicatedFiles};
pub use self::log::MemberLog;
pub use self::mirror::Mirror;
use self::replica::{ListedFile, Replica};

/// Bytes of records in the log above which a snapshot replaces them.
const COMPACT_BYTES: usize = 8 << 20;

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

/// To a head, by the other one: asks for the list of its files.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ListFiles {
    /// Name of the asking head.
    pub from: NodeId,
}

/// To a head, by the other one: asks for parts of its files.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReadChunks {
    /// Name of the asking head.
    pub from: NodeId,
    /// The parts, in their order.
    pub chunks: Vec<Chunk>,
}

/// The files of a head.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FileList {
    /// Index of the last applied record.
    pub applied: u64,
    /// The files with their lengths.
    pub files: Vec<ListedFile>,
}

/// Parts of a head's files.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FileChunks {
    /// Index of the last applied record.
    pub applied: u64,
    /// The first of the requested parts, in their order.
    pub chunks: Vec<ChunkContents>,
}

remote_message! {
    "standby-message" => StandbyMessage;
    "standby-list" => ListFiles -> Result<FileList, String>;
    "standby-read" => ReadChunks -> Result<FileChunks, String>;
}

/// Only a head gets files, which include the authority's key.
macro_rules! rule_of_heads {
    ($($message:ty),*) => {
        $(impl HasRule for $message {
            const RULE: Rule = Rule { roles: &[Role::Head], places: None, confirmed: false };

            fn claim(&self, from: &Sender<'_>) -> Result<(), Refusal> {
                from.holds(|peer| peer.node == self.from)
            }
        })*
    };
}

rule_of_heads!(ListFiles, ReadChunks);

impl HasRule for StandbyMessage {
    const RULE: Rule = Rule { roles: &[Role::Head, Role::Site], places: None, confirmed: false };

    fn claim(&self, from: &Sender<'_>) -> Result<(), Refusal> {
        from.holds(|peer| peer.node == self.from)
    }
}

/// Receives the index of the last appended record when it is committed.
pub type AppendReply = Box<dyn FnOnce(Result<u64, AppendError>) + Send>;

/// To a member of this process: appends records in their order.
#[derive(Message)]
#[rtype(result = "()")]
pub struct AppendRecords {
    /// The records in their order.
    pub values: Vec<Vec<u8>>,
    /// Receives the answer. A member that stops drops it.
    pub reply: AppendReply,
}

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
    /// Position of the last record.
    pub last: LogPosition,
    /// The member's part, and the term that it knows.
    pub part: MemberPart,
    /// The term that it knows.
    pub term: Term,
    /// Of a leader: the index that each other member is known to have, and whether it answers.
    pub others: BTreeMap<NodeId, (u64, bool)>,
    /// Why the member has stopped, if it has.
    pub failed: Option<String>,
}

impl MemberStatus {
    /// Whether the head may act now. To be asked before each act.
    pub fn may_act(&self) -> bool {
        self.acts_until.is_some_and(|until| Instant::now() < until)
    }
}

/// What a head shows of all members.
#[derive(Clone, Debug)]
pub struct MemberWatch {
    /// Name of this head's member.
    pub me: NodeId,
    /// Name of the witness.
    pub witness: NodeId,
    /// The state of this head's member.
    pub status: watch::Receiver<MemberStatus>,
}

impl MemberWatch {
    /// The members, as this head knows them; itself first.
    pub fn members(&self) -> Vec<HeadMember> {
        let status = self.status.borrow();
        let acts = status.may_act();
        let me = HeadMember {
            node: self.me.clone(),
            role: if acts { HeadRole::Acts } else { HeadRole::Waits },
            answers: true,
            records: Some(status.last.index),
        };
        let other = |(node, (matched, answers)): (&NodeId, &(u64, bool))| {
            let is_witness = *node == self.witness;
            HeadMember {
                node: node.clone(),
                role: if is_witness { HeadRole::Witness } else { HeadRole::Waits },
                answers: *answers,
                records: (!is_witness).then_some(*matched),
            }
        };
        std::iter::once(me).chain(status.others.iter().map(other)).collect()
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
    waiting: BTreeMap<u64, AppendReply>,
    /// Of a head: its files.
    replica: Option<Replica>,
    copier: Copier,
    /// Bytes of the records after the snapshot.
    log_bytes: usize,
}

/// Why a member stops.
#[derive(Debug, thiserror::Error)]
enum MemberFault {
    #[error(transparent)]
    Records(#[from] RecordError),
    #[error("the files of this head: {0}")]
    Files(#[from] io::Error),
}

impl StandbyMember {
    /// Starts the member of this process, with the state in its log, and publishes it. `dir` is the
    /// directory of a head; the witness has none. The receiver shows whether it may act.
    pub fn publish(
        hub: &Arc<Hub>,
        members: Members,
        timing: StandbyTiming,
        log: MemberLog,
        dir: Option<PathBuf>,
    ) -> (Addr<Self>, watch::Receiver<MemberStatus>) {
        let me = hub.net().me().node.clone();
        let state = log.state().clone();
        let (base, last) = (state.base.index, state.last().index);
        let replica = dir.map(|dir| Replica::new(&dir, me.clone(), base, last));
        let log_bytes = state.entries.iter().filter_map(|entry| entry.value.as_ref());
        let log_bytes = log_bytes.map(Vec::len).sum();
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
            replica,
            copier: Copier::default(),
            log_bytes,
        };
        let actor = actor.start();
        hub.publish(STANDBY, actor.clone())
            .accepts_from::<StandbyMessage>(admit::by_rule)
            .accepts_from::<ListFiles>(admit::by_rule)
            .accepts_from::<ReadChunks>(admit::by_rule);
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
        if let Err(fault) = self.execute(out).and_then(|()| self.compact()) {
            return self.fail(ctx, &fault);
        }
        let acts_until = self.member.acts_until().map(|until| self.start + until);
        self.status.send_replace(MemberStatus {
            acts_until,
            committed: self.member.committed(),
            last: self.member.state().last(),
            part: self.member.part(),
            term: self.member.state().term,
            others: self.member.followers(self.clock()),
            failed: None,
        });
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

    /// Leaves the members of the head.
    fn fail(&mut self, ctx: &mut Context<Self>, fault: &MemberFault) {
        tracing::error!("{} leaves the members of the head: {fault}", self.me);
        let failed = Some(fault.to_string());
        self.status.send_replace(MemberStatus { failed, ..MemberStatus::default() });
        self.hub.unpublish(STANDBY);
        self.waiting.clear();
        ctx.stop();
    }

    /// Executes actions in their order.
    ///
    /// # Errors
    /// A change is not durable, or a record cannot be applied; then nothing after it is executed.
    fn execute(&mut self, out: Vec<MemberAction>) -> Result<(), MemberFault> {
        for action in out {
            match action {
                MemberAction::Save(change) => {
                    match &change {
                        DurableChange::Entries { entries, .. } => {
                            let values = entries.iter().filter_map(|entry| entry.value.as_ref());
                            self.log_bytes += values.map(Vec::len).sum::<usize>();
                        }
                        DurableChange::Snapshot { .. } => self.log_bytes = 0,
                        DurableChange::Vote { .. } => {}
                    }
                    self.log.save(change)?;
                }
                MemberAction::Send { to, message } => {
                    let remote: Remote<Self> = self.hub.remote(&to, STANDBY);
                    let sent = remote.do_send(StandbyMessage { from: self.me.clone(), message });
                    if let Err(error) = sent {
                        // The protocol repeats what is lost.
                        tracing::debug!(%to, %error, "a message to a member is lost");
                    }
                }
                MemberAction::Committed(index) => {
                    self.apply(index)?;
                    let later = self.waiting.split_off(&(index + 1));
                    for (index, reply) in std::mem::replace(&mut self.waiting, later) {
                        reply(Ok(index));
                    }
                }
                // What was appended may be replaced by another head's records.
                MemberAction::Lead(_) | MemberAction::Follow => {
                    for (_, reply) in std::mem::take(&mut self.waiting) {
                        reply(Err(AppendError::OutcomeUnknown));
                    }
                }
            }
        }
        Ok(())
    }

    /// Applies the records up to a committed one to the files.
    fn apply(&mut self, committed: u64) -> io::Result<()> {
        let Some(replica) = &mut self.replica else { return Ok(()) };
        let state = self.member.state();
        // A snapshot that was installed stands for files that are copied.
        for index in replica.applied().max(state.base.index) + 1..=committed {
            let Some(entry) = state.entry(index) else { break };
            replica.apply(index, entry.value.as_deref())?;
        }
        Ok(())
    }

    /// Replaces applied records by a snapshot once they are many. The files stand for it.
    fn compact(&mut self) -> Result<(), MemberFault> {
        let Some(replica) = self.replica.as_mut().filter(|_| self.log_bytes > COMPACT_BYTES) else {
            return Ok(());
        };
        replica.sync()?;
        let (applied, mut out) = (replica.applied(), Vec::new());
        self.member.compact(applied, Vec::new(), &mut out);
        self.execute(out)?;
        // Records that cannot be replaced yet are counted again.
        self.log_bytes = 0;
        Ok(())
    }

    /// Whether a snapshot of this position can be installed: the files are a copy that has at least
    /// its effect. Otherwise a copy begins.
    fn is_copied(
        &mut self,
        ctx: &mut Context<Self>,
        from: &NodeId,
        position: LogPosition,
    ) -> Result<bool, MemberFault> {
        let Some(replica) = &mut self.replica else { return Ok(true) };
        if position.index <= self.member.state().base.index {
            return Ok(true);
        }
        if let Some(CopiedRange { from, until }) = self.copier.take_copy(position.index) {
            replica.sync()?;
            replica.copied(from, until);
            return Ok(true);
        }
        if self.copier.begin() {
            tracing::info!("copies the files of {from}");
            let source = self.hub.remote(from, STANDBY);
            let copied = copy::copy(source, self.me.clone(), replica.dir().to_owned());
            let ended = |result: Result<CopiedRange, CopyError>,
                         act: &mut Self,
                         ctx: &mut Context<Self>| {
                if let Err(error) = act.copier.end(result) {
                    match error {
                        CopyError::Files(error) => act.fail(ctx, &error.into()),
                        // The next snapshot begins again.
                        error => tracing::warn!("the copy of the files failed: {error}"),
                    }
                }
            };
            ctx.spawn(copied.into_actor(self).map(ended));
        }
        Ok(false)
    }
}

impl Actor for StandbyMember {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        let mut out = Vec::new();
        // The others' links may still be to the former process.
        self.member.greet(&mut out);
        self.finish(ctx, out);
    }
}

impl Handler<StandbyMessage> for StandbyMember {
    type Result = ();

    fn handle(&mut self, message: StandbyMessage, ctx: &mut Self::Context) {
        let StandbyMessage { from, message } = message;
        if let MemberMessage::Install { position, .. } = &message {
            match self.is_copied(ctx, &from, *position) {
                Ok(true) => {}
                // The leader repeats it.
                Ok(false) => return,
                Err(fault) => return self.fail(ctx, &fault),
            }
        }
        self.feed(ctx, MemberEvent::Received { from, message });
    }
}

impl Handler<AppendRecords> for StandbyMember {
    type Result = ();

    fn handle(&mut self, message: AppendRecords, ctx: &mut Self::Context) {
        let AppendRecords { values, reply } = message;
        let (now, mut out) = (self.clock(), Vec::new());
        match self.member.append(values, now, &mut out) {
            Ok(index) => drop(self.waiting.insert(index, reply)),
            Err(error) => reply(Err(error.into())),
        }
        self.finish(ctx, out);
    }
}

impl StandbyMember {
    /// The files of this head, for the other one.
    fn files_for(&self, head: &NodeId) -> Result<&Replica, String> {
        let is_head = self.member.members().heads.contains(head) && *head != self.me;
        let replica = self.replica.as_ref().filter(|_| is_head);
        replica.ok_or_else(|| format!("{} gives its files to the other head only", self.me))
    }

    /// Index of the last record with an effect on the files. The founder of the log has files that
    /// the first snapshot stands for.
    fn applied(&self, replica: &Replica) -> u64 {
        replica.applied().max(self.member.state().base.index)
    }
}

impl Handler<ListFiles> for StandbyMember {
    type Result = Result<FileList, String>;

    fn handle(&mut self, message: ListFiles, _: &mut Self::Context) -> Self::Result {
        let replica = self.files_for(&message.from)?;
        let files = replica::list(replica.dir()).map_err(|error| error.to_string())?;
        Ok(FileList { applied: self.applied(replica), files })
    }
}

impl Handler<ReadChunks> for StandbyMember {
    type Result = Result<FileChunks, String>;

    fn handle(&mut self, message: ReadChunks, _: &mut Self::Context) -> Self::Result {
        let replica = self.files_for(&message.from)?;
        let chunks = copy::read(replica.dir(), &message.chunks);
        let chunks = chunks.map_err(|error| error.to_string())?;
        Ok(FileChunks { applied: self.applied(replica), chunks })
    }
}
