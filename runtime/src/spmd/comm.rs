//! What a process of an SPMD program sees of the others: messages by rank and tag (operations of all: `collective`).
//!
//! Results do not depend on the order in which messages come: each receive names its sender, and reductions fold in order of
//! rank. Waiting is done at the pool's one seam and counts as waiting, not as work. Must not know why configurations change.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::collective::{Clusters, Sharing};
use super::group::Report;
use super::mailbox::{MESSAGE_COST, Mailbox, UNREAD_MAX};
use super::message::{GroupId, Mail, Onward, Roster, Seated, Word};
use super::post::Post;
use super::seat::Seat;
use crate::wire;
use crate::work::{Context, Stop};

/// Tags from here on are the runtime's own.
const OWN: u32 = 1 << 31;
/// Operations of all: these come in one order everywhere.
pub(super) const ALL: u32 = OWN;
/// A piece of state on its way to a new configuration.
pub(crate) const PIECE: u32 = OWN + 1;
/// A piece of state for a checkpoint.
pub(crate) const SAVE: u32 = OWN + 2;

/// The longest message to another node, in bytes: what a frame may hold, less what is around it.
pub const MESSAGE_MAX: usize = wire::DATA_MAX - 4096;

/// Bytes up to which a message is sent at once, with room for what is added to it. The network sends longer ones apart, and slowly at first: what
/// others wait for is better sent as several.
pub const SHORT: usize = wire::INLINE_MAX / 4 * 3;

/// The most bytes that a node is asked to pass on at once, in all copies.
const PASSED_MAX: usize = 64 << 20;

/// Who waits for room for a message looks for it this often.
const LOOK_FOR_ROOM: Duration = Duration::from_millis(5);

/// Who waits so long for a message says so, once in a configuration: perhaps nobody sends it.
const LONG: Duration = Duration::from_secs(30);

/// How a tag is told.
fn tag_name(tag: u32) -> String {
    match tag {
        ALL => "in an operation of all".to_owned(),
        PIECE | SAVE => "its piece of the state".to_owned(),
        tag => format!("tag {tag}"),
    }
}

/// A process asks its root once a second whether what it waits for is still to come, for words may be lost with a link; the root,
/// which asks nobody, passes on what the others report.
const ASK_ROOT: Duration = Duration::from_secs(1);

/// A process at its place: how it waits, and tells the group's root.
#[derive(Clone)]
pub(crate) struct Station<'c> {
    pub(crate) cx: &'c Context<'c>,
    pub(crate) post: Arc<Post>,
    pub(crate) group: GroupId,
    pub(crate) process: u32,
}

impl Station<'_> {
    /// Waits until something is ready that a word to this process makes so.
    pub(crate) fn wait(&self, wide: bool, ready: &dyn Fn() -> bool) -> Result<(), Stop> {
        self.wait_long(wide, ready, None)
    }

    /// As [`Station::wait`]; calls `long` once when it has waited for [`LONG`].
    fn wait_long(
        &self,
        wide: bool,
        ready: &dyn Fn() -> bool,
        mut long: Option<&dyn Fn()>,
    ) -> Result<(), Stop> {
        let long_at = Instant::now() + LONG;
        loop {
            let ask = Instant::now() + ASK_ROOT;
            let until = if long.is_some() { ask.min(long_at) } else { ask };
            if self.cx.wait_for(wide, Some(until), ready)? {
                return Ok(());
            }
            if Instant::now() >= long_at
                && let Some(long) = long.take()
            {
                long();
            }
            match self.process {
                0 => self.relay(),
                _ => {
                    self.say_here();
                    self.repeat_overdue_answers();
                }
            }
        }
    }

    /// Passes on what processes of other nodes reported. For the root's process.
    pub(crate) fn relay(&self) {
        let reports = self.post.group(&self.group, |group| (group.take_reports(), Vec::new()));
        for report in reports.into_iter().flatten() {
            match report {
                Report::Say(text) => self.cx.say(text),
                Report::Artifact(name, bytes) => self.cx.artifact(&name, bytes.into()),
            }
        }
    }

    pub(crate) fn say_here(&self) {
        let generation = self.seat(|seat| seat.generation()).unwrap_or_default();
        self.tell_root(Word::Here { process: self.process, generation });
    }

    /// Says that this process takes orders, and which it has.
    pub(crate) fn say_ready(&self) {
        if let Some((sitting, heard)) = self.seat(|seat| seat.ready()) {
            self.tell_root(Word::Ready { process: self.process, sitting, heard });
        }
    }

    /// Answers by the orders. It is said until the root has heard it.
    pub(crate) fn answer(&self, body: Bytes) -> Result<(), Stop> {
        self.room()?;
        if let Some(number) = self.seat(|seat| seat.answer(body.clone())) {
            self.tell_root(Word::Answer { process: self.process, number, body });
        }
        Ok(())
    }

    /// Waits for orders, or to be let go; with nothing to do, so that it counts as idle.
    pub(crate) fn wait_for_orders(&self) -> Result<(), Stop> {
        let ready = || self.seat(|seat| seat.has_orders()).unwrap_or(true);
        loop {
            if self.cx.idle_for(Some(Instant::now() + ASK_ROOT), &ready)? {
                return Ok(());
            }
            // Words may be lost with a link that nobody here knows to be broken.
            self.say_ready();
            self.repeat_overdue_answers();
        }
    }

    /// Sends the answers again that the root has not acknowledged for long.
    fn repeat_overdue_answers(&self) {
        for (number, body) in self.seat(Seat::overdue_answers).unwrap_or_default() {
            self.tell_root(Word::Answer { process: self.process, number, body });
        }
    }

    /// Whether what is reported here reaches the job's coordinator.
    fn is_at_root(&self) -> bool {
        *self.post.me() == self.group.root
    }

    pub(crate) fn tell_root(&self, word: Word) {
        self.post.say(&self.group.root, &self.group, 0, word);
    }

    /// Reports something to whoever watches the job, by the root, which says when it is there.
    fn report(&self, word: impl FnOnce(u32, u64) -> Word) {
        if let Some(number) = self.seat(Seat::report) {
            self.tell_root(word(self.process, number));
        }
    }

    /// Waits until the root has all that was reported; `or_torn`: or the configuration is over.
    pub(crate) fn heard(&self, or_torn: bool) -> Result<(), Stop> {
        let heard = |seat: &mut Seat| seat.is_heard() || or_torn && seat.is_torn();
        self.wait(false, &|| self.seat(heard).unwrap_or(true))
    }

    /// Waits while the network has no room for what was said before.
    pub(crate) fn room(&self) -> Result<(), Stop> {
        while !self.post.has_room() && !self.is_torn() {
            let look = Some(Instant::now() + LOOK_FOR_ROOM);
            self.cx.wait_for(false, look, &|| self.post.has_room() || self.is_torn())?;
        }
        Ok(())
    }

    pub(crate) fn seat<R>(&self, what: impl FnOnce(&mut Seat) -> R) -> Option<R> {
        self.post.seat(&self.group, self.process, what)
    }

    /// Whether its configuration is over.
    pub(crate) fn is_torn(&self) -> bool {
        self.seat(|seat| seat.is_torn()).unwrap_or(true)
    }

    /// Waits for mail. Absent if the configuration is over first. `long` is called once if that takes long.
    fn mail(
        &self,
        generation: u32,
        (from, tag): (u32, u32),
        wide: bool,
        long: Option<&dyn Fn()>,
    ) -> Result<Option<Bytes>, Stop> {
        let ready = || {
            let there = self.seat(|seat| {
                let full = seat.mailbox().overflow().is_some();
                seat.is_torn() || full || seat.mailbox().has(generation, from, tag, 1)
            });
            there.unwrap_or(true)
        };
        self.wait_long(wide, &ready, long)?;
        self.check_room()?;
        let mail = self.seat(|seat| match seat.is_torn() {
            false => seat.mailbox().take(generation, from, tag),
            true => None,
        });
        Ok(mail.flatten())
    }

    /// Fails if mail had to be dropped, for more came than was read.
    fn check_room(&self) -> Result<(), Stop> {
        let full = self.seat(|seat| match seat.is_torn() {
            false => seat.mailbox().overflow(),
            true => None,
        });
        let Some((from, tag)) = full.flatten() else { return Ok(()) };
        let tag = tag_name(tag);
        Err(Stop::fail(format_args!(
            "rank {from} sent more than {UNREAD_MAX} bytes ({MESSAGE_COST} more counted for each message) that were not received here, last {tag}: receive them before more is \
             sent, or let the sender wait for an answer now and then"
        )))
    }

    /// Gives a piece of state to rank `to` of the next configuration, as rank `from` of the last.
    pub(crate) fn give(&self, next: &Roster, from: u32, to: u32, body: Bytes) -> Result<(), Stop> {
        let generation = next.generation;
        self.send(next, to, Mail { generation, from, tag: PIECE, number: 0, body })
    }

    /// Waits for the pieces of so many givers. Absent if the configuration is over before all are there.
    pub(crate) fn pieces(&self, generation: u32, givers: u32) -> Result<Option<Vec<Bytes>>, Stop> {
        let pieces = (0..givers).map(|from| self.mail(generation, (from, PIECE), false, None));
        pieces.collect()
    }

    /// Mail for one, whose node passes it on to others, each by rank and with the number that it has for it.
    fn send_on(
        &self,
        roster: &Roster,
        to: u32,
        mail: Mail,
        others: impl Iterator<Item = (u32, u64)>,
    ) -> Result<(), Stop> {
        let Some(member) = roster.members.get(to as usize) else { return Ok(()) };
        let onward = |(rank, number)| {
            let Seated { process, peer } = roster.members.get(rank as usize)?;
            Some(Onward { node: peer.node.clone(), process: *process, number })
        };
        let on = others.filter_map(onward).collect();
        self.room()?;
        self.post.say(&member.peer, &self.group, member.process, Word::Pass { mail, on });
        Ok(())
    }

    fn send(&self, roster: &Roster, to: u32, mail: Mail) -> Result<(), Stop> {
        let Some(member) = roster.members.get(to as usize) else { return Ok(()) };
        // What stays on this node is in no frame.
        if mail.body.len() > MESSAGE_MAX && member.peer.node != self.post.me().node {
            return Err(Stop::fail(format_args!(
                "a message of {} bytes from process {} to {to} is over the {MESSAGE_MAX} that one may have: send it in \
                 parts, or use more processes",
                mail.body.len(),
                mail.from
            )));
        }
        self.room()?;
        self.post.say(&member.peer, &self.group, member.process, Word::Mail(mail));
        Ok(())
    }
}

/// The other processes of a configuration, as one of them sees them. Not `Send`: it stands for this process on its thread.
pub struct Comm<'c> {
    at: Station<'c>,
    rank: u32,
    roster: Arc<Roster>,
    /// What was said to each rank under each tag so far.
    said: RefCell<BTreeMap<(u32, u32), u64>>,
    waited: Cell<Duration>,
    /// It was told that a message is long in coming.
    told_long: Cell<bool>,
    clusters: Clusters,
    sharing: Sharing,
}

impl<'c> Comm<'c> {
    pub(crate) fn new(at: Station<'c>, roster: Arc<Roster>) -> Self {
        let rank = roster.rank_of(at.process).unwrap_or_default();
        let clusters = Clusters::of(&roster);
        Self {
            at,
            rank,
            roster,
            said: RefCell::default(),
            waited: Cell::default(),
            told_long: Cell::default(),
            clusters,
            sharing: Sharing::default(),
        }
    }

    /// For tests, to do what a network does.
    #[cfg(test)]
    pub(crate) fn station(&self) -> &Station<'c> {
        &self.at
    }

    /// Which of the processes this is, from 0. The job's root is 0.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// How many processes there are.
    pub fn size(&self) -> u32 {
        self.roster.size()
    }

    /// Sends bytes to a process, which gets them by [`Comm::receive`] with this rank and tag; several under one tag in the order
    /// in which they were sent. Tags are to be few: what was said under each is counted as long as the configuration lasts, at both
    /// ends, so tell steps apart by the order of messages and not by tags. Does not wait for it; but where the network takes messages more slowly than they are sent, it waits
    /// until no more than 256 MiB of them are kept here.
    ///
    /// # Errors
    /// If there is no such rank, the tag is 2^31 or above, or there are more than [`MESSAGE_MAX`] bytes for a process of another
    /// node; or a halt.
    pub fn send(&self, to: u32, tag: u32, bytes: impl Into<Bytes>) -> Result<(), Stop> {
        self.check_tag(tag)?;
        self.put(to, tag, bytes.into())
    }

    /// Sends the same bytes to each of these processes, as [`Comm::send`] does to one. The line to another cluster they cross once: one of
    /// them there has its node pass them on, whatever it computes. Nodes that pass on have other things to do, too: what would be more than 64 MiB
    /// in all copies for a cluster goes to each by itself.
    ///
    /// # Errors
    /// As [`Comm::send`].
    pub fn multicast(&self, to: &[u32], tag: u32, bytes: impl Into<Bytes>) -> Result<(), Stop> {
        self.check_tag(tag)?;
        to.iter().try_for_each(|rank| self.check_rank(*rank))?;
        let body = bytes.into();
        for mut ranks in self.clusters().parted(to) {
            let near = self.is_near(ranks[0]);
            if near || ranks.len() == 1 || ranks.len() * body.len() > PASSED_MAX {
                ranks.into_iter().try_for_each(|rank| self.put(rank, tag, body.clone()))?;
                continue;
            }
            // Those of one cluster turn to different ones.
            let turn = self.clusters().place(self.rank) % ranks.len();
            let first = ranks.remove(turn);
            let number = self.number(first, tag);
            let (generation, from, body) = (self.roster.generation, self.rank, body.clone());
            let mail = Mail { generation, from, tag, number, body };
            let others = ranks.into_iter().map(|rank| (rank, self.number(rank, tag)));
            self.at.send_on(&self.roster, first, mail, others)?;
        }
        Ok(())
    }

    /// Waits for the next bytes that a process sent to this one under this tag: for ever, if it sends none. After 30 s it is said
    /// who waits for whom.
    ///
    /// # Errors
    /// If there is no such rank or the tag is 2^31 or above; a halt; the configuration is over, as a node was lost: pass it up; or a
    /// process sent more than 2 GiB, with 256 bytes more for each message, that were not received here.
    pub fn receive(&self, from: u32, tag: u32) -> Result<Bytes, Stop> {
        self.check_tag(tag)?;
        self.get(from, tag)
    }

    /// Whether the next bytes that a process sent to this one under this tag are here, so that [`Comm::receive`] need not wait; or it
    /// would be an error.
    ///
    /// # Errors
    /// If there is no such rank or the tag is 2^31 or above; or a halt.
    pub fn has_come(&self, from: u32, tag: u32) -> Result<bool, Stop> {
        self.check_tag(tag)?;
        self.check_rank(from)?;
        Ok(self.has(from, tag, 1))
    }

    /// The ranks of each cluster, which are in the order of each one's lowest.
    pub fn ranks_by_cluster(&self) -> &[Vec<u32>] {
        self.clusters().ranks()
    }

    /// Whether the process of this rank is in this one's cluster; not if there is none.
    pub fn is_near(&self, rank: u32) -> bool {
        self.clusters().are_neighbours(self.rank(), rank)
    }

    pub(super) fn clusters(&self) -> &Clusters {
        &self.clusters
    }

    pub(super) fn sharing(&self) -> &Sharing {
        &self.sharing
    }

    pub(super) fn check_tag(&self, tag: u32) -> Result<(), Stop> {
        if tag >= OWN {
            return Err(Stop::fail(format_args!(
                "tag {tag} is the runtime's own: give one below {OWN}"
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
        let generation = self.roster.generation;
        self.at.send(&self.roster, to, Mail { generation, from: self.rank, tag, number, body })
    }

    fn number(&self, to: u32, tag: u32) -> u64 {
        let mut said = self.said.borrow_mut();
        let said = said.entry((to, tag)).or_default();
        *said += 1;
        *said - 1
    }

    /// Whether the next so many messages are here, or never will be: who gets them then is told.
    pub(super) fn has(&self, from: u32, tag: u32, count: u64) -> bool {
        let generation = self.roster.generation;
        let here = |mailbox: &Mailbox| mailbox.has(generation, from, tag, count);
        self.at.seat(|seat| seat.is_torn() || here(seat.mailbox())).unwrap_or(true)
    }

    pub(crate) fn get(&self, from: u32, tag: u32) -> Result<Bytes, Stop> {
        self.check_rank(from)?;
        let here = &self.at.post.me().cluster;
        let sender = self.roster.members.get(from as usize);
        let wide = sender.is_some_and(|member| member.peer.cluster != *here);
        let began = Instant::now();
        let long = || {
            // Once: what is late is late again.
            if !self.told_long.replace(true) {
                let (rank, tag, time) = (self.rank, tag_name(tag), LONG.as_secs());
                self.say(format!("rank {rank} has waited {time} s for rank {from}, {tag}"));
            }
        };
        let mail = self.at.mail(self.roster.generation, (from, tag), wide, Some(&long));
        self.waited.set(self.waited.get() + began.elapsed());
        mail?.ok_or_else(torn)
    }

    /// Whether the configuration is over: then all that is said here is an error, and what this process has is no state.
    pub(crate) fn is_torn(&self) -> bool {
        self.at.is_torn()
    }

    /// The time spent waiting, since the last time it was asked for.
    pub(crate) fn take_waited(&self) -> Duration {
        self.waited.take()
    }

    /// A point at which a long step can be told to stop, and at which a thread that is slowed down
    /// ([`Throttle`](crate::work::Throttle)) rests: one without such points is as fast as its core until it waits for others.
    ///
    /// # Errors
    /// A halt, or the configuration is over: pass it up.
    pub fn check(&self) -> Result<(), Stop> {
        self.at.cx.rest();
        self.at.cx.check()?;
        self.at.check_room()?;
        if self.is_torn() { Err(torn()) } else { Ok(()) }
    }

    /// Spends modelled compute time: see [`Context::model`].
    ///
    /// # Errors
    /// As [`Comm::check`].
    pub fn model(&self, time: Duration) -> Result<(), Stop> {
        self.at.cx.model(time)?;
        self.check()
    }

    /// A line for whoever watches the job, from any rank. From nodes other than the root's it goes by the root.
    pub fn say(&self, text: impl Into<String>) {
        if self.at.is_at_root() {
            return self.at.cx.say(text);
        }
        let mut text = text.into();
        if text.len() > MESSAGE_MAX {
            text = format!(
                "rank {} says {} bytes, which are too many to be told",
                self.rank,
                text.len()
            );
        }
        self.at.report(|process, number| Word::Say { text, process, number });
    }

    /// Where the input file of this name is on this process's node: see [`Context::file`].
    ///
    /// # Errors
    /// As there.
    pub fn file(&self, name: &str) -> Result<PathBuf, Stop> {
        self.at.cx.file(name)
    }

    /// A file for the run's directory, from any rank; `name` is a plain file name. See [`Context::artifact`]. From nodes other than
    /// the root's it goes by the root, which waits for it before the job ends.
    ///
    /// # Errors
    /// If it has more than [`MESSAGE_MAX`] bytes, with its name, on a node other than the root's; or as [`Comm::check`].
    pub fn artifact(&self, name: &str, bytes: Vec<u8>) -> Result<(), Stop> {
        self.check()?;
        if self.at.is_at_root() {
            self.at.cx.artifact(name, bytes);
            return Ok(());
        }
        if bytes.len().saturating_add(name.len()) > MESSAGE_MAX {
            return Err(Stop::fail(format_args!(
                "the file {name} of process {} has {} bytes, over the {MESSAGE_MAX} that go to the root at once: write it in \
                 parts, or on rank 0",
                self.rank,
                bytes.len()
            )));
        }
        self.at.room()?;
        let (name, bytes) = (name.to_owned(), bytes.into());
        self.at.report(|process, number| Word::Artifact { name, bytes, process, number });
        Ok(())
    }
}

/// What a process hears whose configuration is over. It begins anew in the next, so this reaches nobody else.
pub(super) fn torn() -> Stop {
    Stop::fail("a node of the program was lost, and its processes begin anew")
}
