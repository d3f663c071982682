//! The interface of an SPMD process to the others: messages by rank and tag. Collectives:
//! `collective`.
//!
//! Results do not depend on the order of arrival: each receive names its sender, and reductions
//! fold in order of rank. Waiting goes through the pool and counts as waiting, not as work. This
//! module does not know why configurations change.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use springtide_forkjoin::ParallelLoops;
use tokio::time::Instant;

use super::collective::{Clusters, Sharing};
use super::group::ProcessReport;
use super::local_process::LocalProcess;
use super::mailbox::{MESSAGE_COST, Mailbox, UNREAD_MAX};
use super::message::{
    Configuration, DataMessage, ForwardTarget, GroupId, ProcessMessage, RankAssignment,
};
use super::post::Dispatcher;
use crate::wire;
use crate::work::{Context, PhaseClock, Stop};

/// Tags from here on belong to the runtime.
const RESERVED: u32 = 1 << 31;
/// The tag of collectives, whose order is the same on all ranks.
pub(super) const COLLECTIVE: u32 = RESERVED;
/// The tag of a piece of state on its way to a new configuration.
pub(crate) const PIECE: u32 = RESERVED + 1;
/// The tag of a piece of state for a checkpoint.
pub(crate) const SAVE: u32 = RESERVED + 2;

/// The longest message to another node, in bytes: the limit of a frame without its header.
pub const MESSAGE_MAX: usize = wire::DATA_MAX - 4096;

/// The longest message that the network sends inline, in bytes, with room for a header.
///
/// It sends longer messages as separate transfers, which start slowly. Data that others wait for
/// should be sent in several messages of this length.
pub const INLINE_MESSAGE_MAX: usize = wire::INLINE_MAX / 4 * 3;

/// The most bytes that a node is asked to forward at once, in all copies.
const PASSED_MAX: usize = 64 << 20;

/// The interval at which a sender that waits for room checks for it.
const ROOM_INTERVAL: Duration = Duration::from_millis(5);

/// The wait for a message after which the process reports it, once in a configuration: perhaps no
/// process sends it.
const LONG_WAIT: Duration = Duration::from_secs(30);

/// Describes a tag for the user.
fn tag_name(tag: u32) -> String {
    match tag {
        COLLECTIVE => "in a collective operation".to_owned(),
        PIECE | SAVE => "its piece of the state".to_owned(),
        tag => format!("tag {tag}"),
    }
}

/// The interval at which a waiting process reports to its root, since a broken link may have lost
/// messages. The root itself relays reports at this interval.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// A running process of a group: it waits, and sends messages to the group's root.
#[derive(Clone)]
pub(crate) struct ProcessHandle<'c> {
    pub(crate) cx: &'c Context<'c>,
    pub(crate) post: Arc<Dispatcher>,
    pub(crate) group: GroupId,
    pub(crate) process: u32,
}

impl ProcessHandle<'_> {
    /// Waits until `ready` holds. Each message to this process causes a check.
    pub(crate) fn wait(&self, wide: bool, ready: &dyn Fn() -> bool) -> Result<(), Stop> {
        self.wait_long(wide, ready, None)
    }

    /// Like [`ProcessHandle::wait`], but calls `long` once after [`LONG_WAIT`].
    fn wait_long(
        &self,
        wide: bool,
        ready: &dyn Fn() -> bool,
        mut long: Option<&dyn Fn()>,
    ) -> Result<(), Stop> {
        let long_at = Instant::now() + LONG_WAIT;
        loop {
            let report_at = Instant::now() + REPORT_INTERVAL;
            let deadline = if long.is_some() { report_at.min(long_at) } else { report_at };
            if self.cx.wait_for(wide, Some(deadline), ready)? {
                return Ok(());
            }
            if Instant::now() >= long_at
                && let Some(long) = long.take()
            {
                long();
            }
            match self.process {
                0 => self.relay_reports(),
                _ => {
                    self.report_presence();
                    self.repeat_overdue_answers();
                }
            }
        }
    }

    /// Relays the reports of processes on other nodes to the job. For the root's process.
    pub(crate) fn relay_reports(&self) {
        let reports = self.post.group(&self.group, |group| (group.take_reports(), Vec::new()));
        for report in reports.into_iter().flatten() {
            match report {
                ProcessReport::Say(text) => self.cx.report_text(text),
                ProcessReport::Artifact(name, bytes) => self.cx.artifact(&name, bytes.into()),
            }
        }
    }

    pub(crate) fn report_presence(&self) {
        let generation = self.with_process(|local| local.generation()).unwrap_or_default();
        self.send_to_root(ProcessMessage::Here { process: self.process, generation });
    }

    /// Reports that this process takes orders, and the last order received.
    pub(crate) fn report_ready(&self) {
        if let Some((session, received)) = self.with_process(|local| local.ready()) {
            self.send_to_root(ProcessMessage::Ready { process: self.process, session, received });
        }
    }

    /// Sends an answer, and repeats it until the root acknowledges it.
    pub(crate) fn answer(&self, body: Bytes) -> Result<(), Stop> {
        self.wait_for_room()?;
        if let Some(number) = self.with_process(|local| local.answer(body.clone())) {
            self.send_to_root(ProcessMessage::Answer { process: self.process, number, body });
        }
        Ok(())
    }

    /// Waits for orders or a dismissal. The time counts as idle.
    pub(crate) fn wait_for_orders(&self) -> Result<(), Stop> {
        let ready = || self.with_process(|local| local.has_orders()).unwrap_or(true);
        self.idle_until(None, &ready)
    }

    /// Waits until `ready` holds, and runs pieces of the node's parallel loops meanwhile. The time
    /// without a piece counts as idle.
    pub(crate) fn help_until(&self, ready: &dyn Fn() -> bool) -> Result<(), Stop> {
        while !self.cx.help_for(Some(Instant::now() + REPORT_INTERVAL), ready)? {
            self.report_presence();
        }
        Ok(())
    }

    /// Waits until `ready` holds or until this time. The time counts as idle.
    pub(crate) fn idle_until(
        &self,
        until: Option<Instant>,
        ready: &dyn Fn() -> bool,
    ) -> Result<(), Stop> {
        loop {
            let report_at = Instant::now() + REPORT_INTERVAL;
            let deadline = until.map_or(report_at, |until| until.min(report_at));
            if self.cx.idle_for(Some(deadline), ready)?
                || until.is_some_and(|until| Instant::now() >= until)
            {
                return Ok(());
            }
            // An undetected broken link may have lost messages.
            self.report_ready();
            self.repeat_overdue_answers();
        }
    }

    /// Repeats answers that the root has not acknowledged for long.
    fn repeat_overdue_answers(&self) {
        for (number, body) in self.with_process(LocalProcess::overdue_answers).unwrap_or_default() {
            self.send_to_root(ProcessMessage::Answer { process: self.process, number, body });
        }
    }

    /// Whether this node is the root's, where reports reach the coordinator directly.
    fn is_at_root(&self) -> bool {
        *self.post.me() == self.group.root
    }

    pub(crate) fn send_to_root(&self, word: ProcessMessage) {
        self.post.send(&self.group.root, &self.group, 0, word);
    }

    /// Sends a report to the root, which acknowledges it.
    fn report(&self, word: impl FnOnce(u32, u64) -> ProcessMessage) {
        if let Some(number) = self.with_process(LocalProcess::report) {
            self.send_to_root(word(self.process, number));
        }
    }

    /// Waits until the root has acknowledged all reports; with `or_ended` also ends when the
    /// configuration does.
    pub(crate) fn wait_for_acks(&self, or_ended: bool) -> Result<(), Stop> {
        let acknowledged =
            |local: &mut LocalProcess| local.is_acknowledged() || or_ended && local.has_ended();
        self.wait(false, &|| self.with_process(acknowledged).unwrap_or(true))
    }

    /// Waits while the network has no room for further messages.
    pub(crate) fn wait_for_room(&self) -> Result<(), Stop> {
        while !self.post.has_room() && !self.has_ended() {
            let look = Some(Instant::now() + ROOM_INTERVAL);
            self.cx.wait_for(false, look, &|| self.post.has_room() || self.has_ended())?;
        }
        Ok(())
    }

    pub(crate) fn with_process<R>(&self, what: impl FnOnce(&mut LocalProcess) -> R) -> Option<R> {
        self.post.with_process(&self.group, self.process, what)
    }

    /// Whether the configuration has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.with_process(|local| local.has_ended()).unwrap_or(true)
    }

    /// Waits for a message. None if the configuration ends first. Calls `long` once after
    /// [`LONG_WAIT`].
    fn mail(
        &self,
        generation: u32,
        (from, tag): (u32, u32),
        wide: bool,
        long: Option<&dyn Fn()>,
    ) -> Result<Option<Bytes>, Stop> {
        let ready = || {
            let there = self.with_process(|local| {
                let full = local.mailbox().overflow().is_some();
                local.has_ended() || full || local.mailbox().has(generation, from, tag, 1)
            });
            there.unwrap_or(true)
        };
        self.wait_long(wide, &ready, long)?;
        self.check_room()?;
        let mail = self.with_process(|local| {
            if local.has_ended() { None } else { local.mailbox().take(generation, from, tag) }
        });
        Ok(mail.flatten())
    }

    /// Fails if messages were dropped because too many were unread.
    fn check_room(&self) -> Result<(), Stop> {
        let full =
            self.with_process(
                |local| if local.has_ended() { None } else { local.mailbox().overflow() },
            );
        let Some((from, tag)) = full.flatten() else { return Ok(()) };
        let tag = tag_name(tag);
        Err(Stop::fail(format_args!(
            "rank {from} sent more than {UNREAD_MAX} bytes ({MESSAGE_COST} more counted for each \
             message) that were not received here, last {tag}: receive them before more is sent, \
             or let the sender wait for an answer from time to time"
        )))
    }

    /// Sends a piece of state to rank `to` of the next configuration, as rank `from` of the last.
    pub(crate) fn give(
        &self,
        next: &Configuration,
        from: u32,
        to: u32,
        body: Bytes,
    ) -> Result<(), Stop> {
        let generation = next.generation;
        self.send(next, to, DataMessage { generation, from, tag: PIECE, number: 0, body })
    }

    /// Receives a piece of each of the givers. None if the configuration ends first.
    pub(crate) fn pieces(&self, generation: u32, givers: u32) -> Result<Option<Vec<Bytes>>, Stop> {
        let pieces = (0..givers).map(|from| self.mail(generation, (from, PIECE), false, None));
        pieces.collect()
    }

    /// Sends a message that the receiver's node forwards to others, given by rank and message
    /// number.
    fn send_on(
        &self,
        configuration: &Configuration,
        to: u32,
        mail: DataMessage,
        others: impl Iterator<Item = (u32, u64)>,
    ) -> Result<(), Stop> {
        let Some(member) = configuration.members.get(to as usize) else { return Ok(()) };
        let onward = |(rank, number)| {
            let RankAssignment { process, peer } = configuration.members.get(rank as usize)?;
            Some(ForwardTarget { node: peer.node.clone(), process: *process, number })
        };
        let on = others.filter_map(onward).collect();
        self.wait_for_room()?;
        self.post.send(
            &member.peer,
            &self.group,
            member.process,
            ProcessMessage::Pass { mail, on },
        );
        Ok(())
    }

    fn send(&self, configuration: &Configuration, to: u32, mail: DataMessage) -> Result<(), Stop> {
        let Some(member) = configuration.members.get(to as usize) else { return Ok(()) };
        // A message within the node is in no frame.
        if mail.body.len() > MESSAGE_MAX && member.peer.node != self.post.me().node {
            return Err(Stop::fail(format_args!(
                "a message of {} bytes from process {} to {to} exceeds the limit of {MESSAGE_MAX}: \
                 send it in parts, or use more processes",
                mail.body.len(),
                mail.from
            )));
        }
        self.wait_for_room()?;
        self.post.send(&member.peer, &self.group, member.process, ProcessMessage::Mail(mail));
        Ok(())
    }
}

/// The interface of a process to the other processes of its configuration.
///
/// Not `Send`: it belongs to the thread of this process.
pub struct Comm<'c> {
    at: ProcessHandle<'c>,
    rank: u32,
    configuration: Arc<Configuration>,
    /// Messages sent so far, by rank and tag.
    sent: RefCell<BTreeMap<(u32, u32), u64>>,
    waited: Cell<Duration>,
    /// Whether a long wait for a message was reported.
    reported_wait: Cell<bool>,
    clusters: Clusters,
    sharing: Sharing,
}

impl<'c> Comm<'c> {
    pub(crate) fn new(at: ProcessHandle<'c>, configuration: Arc<Configuration>) -> Self {
        let rank = configuration.rank_of(at.process).unwrap_or_default();
        let clusters = Clusters::of(&configuration);
        Self {
            at,
            rank,
            configuration,
            sent: RefCell::default(),
            waited: Cell::default(),
            reported_wait: Cell::default(),
            clusters,
            sharing: Sharing::default(),
        }
    }

    /// For tests that imitate a network.
    #[cfg(test)]
    pub(crate) fn station(&self) -> &ProcessHandle<'c> {
        &self.at
    }

    /// The rank of this process, from 0. The job's root is 0.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// The number of processes in the configuration.
    pub fn size(&self) -> u32 {
        self.configuration.size()
    }

    /// Sends bytes to the process of rank `to`, which receives them by [`Comm::receive`].
    ///
    /// Messages of one sender under one tag arrive in the order of sending. Use few tags: both ends
    /// keep a counter for each until the configuration ends. Distinguish steps by the order of
    /// messages.
    ///
    /// Does not wait for the receiver. If the network is slower than the sender, it waits until at
    /// most 256 MiB of unsent messages remain on this node.
    ///
    /// # Errors
    /// There is no such rank; the tag is 2^31 or above; a message of more than [`MESSAGE_MAX`]
    /// bytes is for a process of another node; or a halt.
    pub fn send(&self, to: u32, tag: u32, bytes: impl Into<Bytes>) -> Result<(), Stop> {
        self.check_tag(tag)?;
        self.put(to, tag, bytes.into())
    }

    /// Sends the same bytes to several processes, as by [`Comm::send`].
    ///
    /// The bytes cross the link to another cluster once, and a node there forwards them, even while
    /// it computes. Each process gets its own message if a cluster's copies exceed 64 MiB in all.
    ///
    /// # Errors
    /// As for [`Comm::send`].
    pub fn multicast(&self, to: &[u32], tag: u32, bytes: impl Into<Bytes>) -> Result<(), Stop> {
        self.check_tag(tag)?;
        to.iter().try_for_each(|rank| self.check_rank(*rank))?;
        let body = bytes.into();
        for mut ranks in self.clusters().by_cluster(to) {
            let near = self.is_in_same_cluster(ranks[0]);
            if near || ranks.len() == 1 || ranks.len() * body.len() > PASSED_MAX {
                ranks.into_iter().try_for_each(|rank| self.put(rank, tag, body.clone()))?;
                continue;
            }
            // Senders of one cluster choose different nodes to forward.
            let turn = self.clusters().index_of(self.rank) % ranks.len();
            let first = ranks.remove(turn);
            let number = self.number(first, tag);
            let (generation, from, body) = (self.configuration.generation, self.rank, body.clone());
            let mail = DataMessage { generation, from, tag, number, body };
            let others = ranks.into_iter().map(|rank| (rank, self.number(rank, tag)));
            self.at.send_on(&self.configuration, first, mail, others)?;
        }
        Ok(())
    }

    /// Receives the next bytes that rank `from` sent to this process under this tag.
    ///
    /// Waits without limit. After 30 s a line of output says which rank waits for which.
    ///
    /// # Errors
    /// There is no such rank; the tag is 2^31 or above; a halt; the configuration has ended, since
    /// a node was lost (pass the error up); or a sender has more than 2 GiB unread here, counting
    /// 256 bytes more for each message.
    pub fn receive(&self, from: u32, tag: u32) -> Result<Bytes, Stop> {
        self.check_tag(tag)?;
        self.get(from, tag)
    }

    /// Whether the next bytes of rank `from` under this tag are here, so that [`Comm::receive`]
    /// does not wait. Also true if receiving would return an error.
    ///
    /// # Errors
    /// There is no such rank; the tag is 2^31 or above; or a halt.
    pub fn has_arrived(&self, from: u32, tag: u32) -> Result<bool, Stop> {
        self.check_tag(tag)?;
        self.check_rank(from)?;
        Ok(self.has(from, tag, 1))
    }

    /// The number of compute threads of this process's node.
    pub fn node_threads(&self) -> usize {
        self.at.cx.threads().max(1) as usize
    }

    /// The ranks of each cluster. Clusters are in order of their lowest ranks.
    pub fn ranks_by_cluster(&self) -> &[Vec<u32>] {
        self.clusters().ranks()
    }

    /// Whether the process of this rank is in the same cluster. False if there is no such rank.
    pub fn is_in_same_cluster(&self, rank: u32) -> bool {
        self.clusters().are_neighbours(self.rank(), rank)
    }

    pub(super) fn clusters(&self) -> &Clusters {
        &self.clusters
    }

    pub(super) fn sharing(&self) -> &Sharing {
        &self.sharing
    }

    pub(super) fn check_tag(&self, tag: u32) -> Result<(), Stop> {
        if tag >= RESERVED {
            return Err(Stop::fail(format_args!(
                "tag {tag} is the runtime's own: give one below {RESERVED}"
            )));
        }
        self.check()
    }

    pub(super) fn check_rank(&self, rank: u32) -> Result<(), Stop> {
        let size = self.size();
        if rank >= size {
            return Err(Stop::fail(format_args!(
                "there is no process {rank}: ranks are from 0 to {}",
                size.saturating_sub(1)
            )));
        }
        Ok(())
    }

    pub(crate) fn put(&self, to: u32, tag: u32, body: Bytes) -> Result<(), Stop> {
        self.check_rank(to)?;
        let number = self.number(to, tag);
        let generation = self.configuration.generation;
        self.at.send(
            &self.configuration,
            to,
            DataMessage { generation, from: self.rank, tag, number, body },
        )
    }

    fn number(&self, to: u32, tag: u32) -> u64 {
        let mut sent = self.sent.borrow_mut();
        let sent = sent.entry((to, tag)).or_default();
        *sent += 1;
        *sent - 1
    }

    /// Whether the next `count` messages are here, or receiving them would fail.
    pub(super) fn has(&self, from: u32, tag: u32, count: u64) -> bool {
        let generation = self.configuration.generation;
        let here = |mailbox: &Mailbox| mailbox.has(generation, from, tag, count);
        self.at.with_process(|local| local.has_ended() || here(local.mailbox())).unwrap_or(true)
    }

    pub(crate) fn get(&self, from: u32, tag: u32) -> Result<Bytes, Stop> {
        self.check_rank(from)?;
        let here = &self.at.post.me().cluster;
        let sender = self.configuration.members.get(from as usize);
        let wide = sender.is_some_and(|member| member.peer.cluster != *here);
        let began = Instant::now();
        let long = || {
            // Once per configuration, for later waits are long for the same reason.
            if !self.reported_wait.replace(true) {
                let (rank, tag, time) = (self.rank, tag_name(tag), LONG_WAIT.as_secs());
                self.report_text(format!("rank {rank} has waited {time} s for rank {from}, {tag}"));
            }
        };
        let mail = self.at.mail(self.configuration.generation, (from, tag), wide, Some(&long));
        self.waited.set(self.waited.get() + began.elapsed());
        mail?.ok_or_else(dissolved)
    }

    /// Whether the configuration has ended. Then every operation fails, and the state is invalid.
    pub(crate) fn has_ended(&self) -> bool {
        self.at.has_ended()
    }

    /// Takes the time spent waiting since the last call.
    pub(crate) fn take_waited(&self) -> Duration {
        self.waited.take()
    }

    /// Checks for a halt, and lets a throttled thread ([`Throttle`](crate::work::Throttle)) rest.
    ///
    /// Call it within long steps. A step without such points runs at full speed until it waits for
    /// others, and does not stop early.
    ///
    /// # Errors
    /// A halt, or the end of the configuration: pass it up.
    pub fn check(&self) -> Result<(), Stop> {
        self.at.cx.rest();
        self.at.cx.check()?;
        self.at.check_room()?;
        if self.has_ended() { Err(dissolved()) } else { Ok(()) }
    }

    /// Spends modelled compute time; see [`Context::spend_modelled_time`].
    ///
    /// # Errors
    /// As for [`Comm::check`].
    pub fn spend_modelled_time(&self, time: Duration) -> Result<(), Stop> {
        self.at.cx.spend_modelled_time(time)?;
        self.check()
    }

    /// Starts a clock for the phases of a step. It runs loops as the process itself does.
    pub fn start_phase_clock(&self) -> PhaseClock<'_, 'c> {
        PhaseClock::start(self.at.cx)
    }

    /// Reports the times of the phases of a step on rank 0, once before its end. On other ranks it
    /// has no effect.
    pub fn report_phases(&self, clock: &PhaseClock<'_, '_>) {
        if self.rank == 0 {
            self.at.cx.report_phases(clock);
        }
    }

    /// Writes a line to the job's output, from any rank. From other nodes it goes through the root.
    pub fn report_text(&self, text: impl Into<String>) {
        if self.at.is_at_root() {
            return self.at.cx.report_text(text);
        }
        let mut text = text.into();
        if text.len() > MESSAGE_MAX {
            text = format!(
                "a line of {} bytes from rank {} exceeds the limit of a message",
                text.len(),
                self.rank
            );
        }
        self.at.report(|process, number| ProcessMessage::Say { text, process, number });
    }

    /// The path of an input file on this process's node; see [`Context::input_file`].
    ///
    /// # Errors
    /// As for [`Context::input_file`].
    pub fn file(&self, name: &str) -> Result<PathBuf, Stop> {
        self.at.cx.input_file(name)
    }

    /// Writes a file to the run directory, from any rank; see [`Context::artifact`].
    ///
    /// `name` is a plain file name. From other nodes than the root's it goes through the root, and
    /// the job ends only once it has arrived.
    ///
    /// # Errors
    /// Name and contents exceed [`MESSAGE_MAX`] bytes on a node other than the root's; or as for
    /// [`Comm::check`].
    pub fn artifact(&self, name: &str, bytes: Vec<u8>) -> Result<(), Stop> {
        self.check()?;
        if self.at.is_at_root() {
            self.at.cx.artifact(name, bytes);
            return Ok(());
        }
        if bytes.len().saturating_add(name.len()) > MESSAGE_MAX {
            return Err(Stop::fail(format_args!(
                "the file {name} of process {} has {} bytes, more than the limit of \
                 {MESSAGE_MAX}: write it in parts, or on rank 0",
                self.rank,
                bytes.len()
            )));
        }
        self.at.wait_for_room()?;
        let (name, bytes) = (name.to_owned(), bytes.into());
        self.at.report(|process, number| ProcessMessage::Artifact { name, bytes, process, number });
        Ok(())
    }
}

/// The loops run on the compute threads of the node that take part in no configuration. In a
/// program with [one process for each thread](crate::malleable::Placement), there are hardly any.
///
/// # Errors
/// As for [`Comm::check`].
impl ParallelLoops for Comm<'_> {
    type Stop = Stop;

    fn parallel_for(
        &self,
        range: Range<usize>,
        grain: usize,
        body: impl Fn(Range<usize>) + Sync,
    ) -> Result<(), Stop> {
        self.at.cx.parallel_for(range, grain, body)?;
        self.check()
    }
}

/// The error of a configuration that has ended. The process then restarts in the next one.
pub(super) fn dissolved() -> Stop {
    Stop::fail("a node of the program was lost, and its processes restart")
}
