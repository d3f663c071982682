//! Decides which programs a process keeps, receives and removes.
//!
//! A state machine without I/O: events in, actions out. A program is received once, even if
//! several users wait for it. Each source is asked once. A program with a user is never removed.
//! Others are removed, the least recently used one first, when the cache exceeds its size. This
//! module must not depend on disks or on the network.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;

use springtide_protocol::files::FileSource;
use springtide_protocol::program::{ProgramDigest, ProgramError, ProgramImage};
use springtide_runtime::id::{JobId, NodeId};

use super::ProgramLimits;

/// Who needs a program. Each user needs one program at a time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProgramUser {
    /// A job that has not ended.
    Job(JobId),
    /// A node that was started with it, or will be.
    Node(NodeId),
    /// A client that is about to submit jobs, by the number of its offer.
    Offer(u64),
    /// A process that reads it while it is being received, by the number of its request.
    Reader(u64),
}

/// Where a program may be received from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ProgramSource {
    /// A file of this host, which may be another one.
    Local(PathBuf),
    /// Another process.
    Remote(FileSource),
}

/// How a program came, for the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgramArrival {
    /// Bytes that were received over the network.
    pub bytes: u64,
    /// Duration of the transfer, in milliseconds.
    pub millis: u64,
}

/// Result of an attempt to receive a program.
pub(super) type ReceiveResult = Result<ProgramArrival, ReceiveError>;

/// Why an attempt failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ReceiveError {
    /// This source does not have the program, or was lost.
    Source(String),
    /// The program itself is wrong, from any source.
    Program(Box<ProgramError>),
}

/// Inputs of the table.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ProgramEvent {
    /// The cache has a program from an earlier process. The least recently used one comes first.
    Found { digest: ProgramDigest, bytes: u64 },
    /// A user needs a program; `ticket` identifies the answer.
    Wanted { ticket: u64, user: ProgramUser, image: ProgramImage, from: Vec<ProgramSource> },
    /// An attempt to receive a program has ended.
    Received { number: u64, result: ReceiveResult },
    /// A user needs its program no longer.
    Released { user: ProgramUser },
    /// The file of a program is gone.
    Vanished { digest: ProgramDigest },
}

/// Outputs of the table.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ProgramAction {
    /// Receive a program; [`ProgramEvent::Received`] follows.
    Receive { number: u64, image: ProgramImage, from: ProgramSource },
    /// Stop an attempt and delete its part. No event follows.
    Stop { number: u64, image: ProgramImage },
    /// Record the use of a program, for the order of removals by later processes.
    Touch { digest: ProgramDigest },
    /// Remove a program's file.
    Remove { digest: ProgramDigest },
    /// Answer the caller.
    Answer { ticket: u64, answer: Result<ProgramArrival, ProgramError> },
}

#[derive(Debug)]
struct StoredProgram {
    bytes: u64,
    /// Number of its last use. Greater numbers are later.
    last_use: u64,
}

#[derive(Debug)]
struct ProgramTransfer {
    image: ProgramImage,
    /// Sources that were not asked yet.
    from: VecDeque<ProgramSource>,
    /// Errors of the sources that were asked.
    tried: Vec<String>,
    /// Users that wait for the program.
    tickets: Vec<(u64, ProgramUser)>,
    /// Number of the running attempt.
    running: Option<u64>,
}

/// The programs of a process.
#[derive(Debug)]
pub(super) struct ProgramTable {
    limits: ProgramLimits,
    stored: BTreeMap<ProgramDigest, StoredProgram>,
    users: BTreeMap<ProgramUser, ProgramDigest>,
    transfers: BTreeMap<ProgramDigest, ProgramTransfer>,
    /// Programs that wait for an attempt, in order of arrival.
    queue: VecDeque<ProgramDigest>,
    last_use: u64,
    last_number: u64,
}

impl ProgramTable {
    pub(super) fn new(limits: ProgramLimits) -> Self {
        Self {
            limits,
            stored: BTreeMap::new(),
            users: BTreeMap::new(),
            transfers: BTreeMap::new(),
            queue: VecDeque::new(),
            last_use: 0,
            last_number: 0,
        }
    }

    /// Whether a program is being received, or waits for that.
    pub(super) fn receives(&self, digest: &ProgramDigest) -> bool {
        self.transfers.contains_key(digest)
    }

    /// The description of a program that is being received, or waits for that.
    pub(super) fn incoming(&self, digest: &ProgramDigest) -> Option<&ProgramImage> {
        self.transfers.get(digest).map(|transfer| &transfer.image)
    }

    /// Whether the cache has the whole program.
    pub(super) fn has(&self, digest: &ProgramDigest) -> bool {
        self.stored.contains_key(digest)
    }

    pub(super) fn handle(&mut self, event: ProgramEvent) -> Vec<ProgramAction> {
        let mut out = Vec::new();
        match event {
            ProgramEvent::Found { digest, bytes } => {
                self.last_use += 1;
                self.stored.insert(digest, StoredProgram { bytes, last_use: self.last_use });
            }
            ProgramEvent::Wanted { ticket, user, image, from } => {
                self.wanted(ticket, user, image, from, &mut out);
            }
            ProgramEvent::Received { number, result } => self.received(number, result, &mut out),
            ProgramEvent::Released { user } => self.release(&user, &mut out),
            ProgramEvent::Vanished { digest } => drop(self.stored.remove(&digest)),
        }
        self.shrink_to(self.limits.cache_bytes, &mut out);
        self.start_transfers(&mut out);
        out
    }

    fn wanted(
        &mut self,
        ticket: u64,
        user: ProgramUser,
        image: ProgramImage,
        from: Vec<ProgramSource>,
        out: &mut Vec<ProgramAction>,
    ) {
        let digest = image.digest;
        if self.users.get(&user).is_some_and(|used| *used != digest) {
            self.release(&user, out);
        }
        let (name, bytes) = (image.name.clone(), image.bytes);
        if let Some(stored) = self.stored.get_mut(&digest) {
            self.last_use += 1;
            stored.last_use = self.last_use;
            self.users.insert(user, digest);
            out.push(ProgramAction::Touch { digest });
            let answer = Ok(ProgramArrival::default());
            return out.push(ProgramAction::Answer { ticket, answer });
        }
        if let Some(transfer) = self.transfers.get_mut(&digest) {
            transfer.tickets.push((ticket, user.clone()));
            let known = |source: &ProgramSource| transfer.from.contains(source);
            let more: Vec<_> = from.into_iter().filter(|source| !known(source)).collect();
            transfer.from.extend(more);
            self.users.insert(user, digest);
            return;
        }
        let max = self.limits.size_max;
        if bytes > max {
            let answer = Err(ProgramError::TooLarge { name, bytes, max });
            return out.push(ProgramAction::Answer { ticket, answer });
        }
        let max = self.limits.cache_bytes;
        self.shrink_to(max.saturating_sub(bytes), out);
        let used = self.total();
        if used.saturating_add(bytes) > max {
            let answer = Err(ProgramError::CacheFull { name, bytes, used, max });
            return out.push(ProgramAction::Answer { ticket, answer });
        }
        self.users.insert(user.clone(), digest);
        let (from, tickets) = (from.into(), vec![(ticket, user)]);
        let transfer = ProgramTransfer { image, from, tried: Vec::new(), tickets, running: None };
        self.transfers.insert(digest, transfer);
        self.queue.push_back(digest);
    }

    fn received(&mut self, number: u64, result: ReceiveResult, out: &mut Vec<ProgramAction>) {
        let of_number = |one: &ProgramTransfer| one.running == Some(number);
        let Some(digest) =
            self.transfers.iter().find(|(_, one)| of_number(one)).map(|(digest, _)| *digest)
        else {
            return; // it was stopped
        };
        match result {
            Ok(arrival) => self.finish(digest, Ok(arrival), out),
            Err(ReceiveError::Program(error)) => self.finish(digest, Err(*error), out),
            Err(ReceiveError::Source(reason)) => {
                let Some(transfer) = self.transfers.get_mut(&digest) else { return };
                transfer.running = None;
                transfer.tried.push(reason);
                // A retry precedes other programs.
                self.queue.push_front(digest);
            }
        }
    }

    /// Ends a transfer, and answers its users. Those that get no program use none.
    fn finish(
        &mut self,
        digest: ProgramDigest,
        result: Result<ProgramArrival, ProgramError>,
        out: &mut Vec<ProgramAction>,
    ) {
        let Some(transfer) = self.transfers.remove(&digest) else { return };
        self.queue.retain(|queued| *queued != digest);
        if result.is_ok() {
            self.last_use += 1;
            let stored = StoredProgram { bytes: transfer.image.bytes, last_use: self.last_use };
            self.stored.insert(digest, stored);
        } else {
            self.users.retain(|_, used| *used != digest);
        }
        for (ticket, _) in transfer.tickets {
            out.push(ProgramAction::Answer { ticket, answer: result.clone() });
        }
    }

    fn release(&mut self, user: &ProgramUser, out: &mut Vec<ProgramAction>) {
        let Some(digest) = self.users.remove(user) else { return };
        let Some(transfer) = self.transfers.get_mut(&digest) else { return };
        let name = transfer.image.name.clone();
        transfer.tickets.retain(|(ticket, waits)| {
            if waits == user {
                let answer = Err(ProgramError::Cancelled { name: name.clone() });
                out.push(ProgramAction::Answer { ticket: *ticket, answer });
            }
            waits != user
        });
        if self.users.values().any(|used| *used == digest) {
            return;
        }
        let Some(transfer) = self.transfers.remove(&digest) else { return };
        self.queue.retain(|queued| *queued != digest);
        if let Some(number) = transfer.running {
            out.push(ProgramAction::Stop { number, image: transfer.image });
        }
    }

    /// Bytes of all programs, including those that are being received.
    fn total(&self) -> u64 {
        let stored = self.stored.values().map(|stored| stored.bytes);
        stored.chain(self.transfers.values().map(|one| one.image.bytes)).sum()
    }

    /// Removes unused programs until all have at most this number of bytes.
    fn shrink_to(&mut self, max: u64, out: &mut Vec<ProgramAction>) {
        while self.total() > max {
            let is_used = |digest: &ProgramDigest| self.users.values().any(|used| used == digest);
            let unused = self.stored.iter().filter(|(digest, _)| !is_used(digest));
            let oldest = unused.min_by_key(|(_, stored)| stored.last_use);
            let Some(digest) = oldest.map(|(digest, _)| *digest) else { return };
            self.stored.remove(&digest);
            out.push(ProgramAction::Remove { digest });
        }
    }

    fn start_transfers(&mut self, out: &mut Vec<ProgramAction>) {
        loop {
            let running = self.transfers.values().filter(|one| one.running.is_some()).count();
            if running >= self.limits.transfers_max.max(1) {
                return;
            }
            let Some(digest) = self.queue.pop_front() else { return };
            let Some(transfer) = self.transfers.get_mut(&digest) else { continue };
            let Some(from) = transfer.from.pop_front() else {
                let name = transfer.image.name.clone();
                let reason = if transfer.tried.is_empty() {
                    "no process has its file".to_owned()
                } else {
                    transfer.tried.join("; ")
                };
                self.finish(digest, Err(ProgramError::Unavailable { name, reason }), out);
                continue;
            };
            self.last_number += 1;
            transfer.running = Some(self.last_number);
            let (number, image) = (self.last_number, transfer.image.clone());
            out.push(ProgramAction::Receive { number, image, from });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;
    use springtide_protocol::program::ProgramTarget;

    use super::*;

    fn digest(n: u8) -> ProgramDigest {
        ProgramDigest([n; 32])
    }

    fn image(n: u8, bytes: u64) -> ProgramImage {
        let target = ProgramTarget { machine: 62, bits: 64, little_endian: true };
        ProgramImage { name: format!("p{n}"), digest: digest(n), bytes, target, interpreter: None }
    }

    fn node(n: u8) -> ProgramUser {
        ProgramUser::Node(format!("ams-{n}").as_str().into())
    }

    fn local(n: u8) -> ProgramSource {
        ProgramSource::Local(format!("/p{n}").into())
    }

    fn table() -> ProgramTable {
        ProgramTable::new(ProgramLimits { size_max: 60, cache_bytes: 100, transfers_max: 2 })
    }

    fn want(ticket: u64, user: ProgramUser, image: ProgramImage) -> ProgramEvent {
        ProgramEvent::Wanted { ticket, user, image, from: vec![local(1), local(2)] }
    }

    /// Short descriptions of actions.
    fn describe(out: &[ProgramAction]) -> Vec<String> {
        let line = |action: &ProgramAction| match action {
            ProgramAction::Receive { number, image, from } => {
                format!("{number}: {} from {from:?}", image.name)
            }
            ProgramAction::Stop { number, .. } => format!("{number}: stop"),
            ProgramAction::Touch { digest } => format!("touch {}", digest.0[0]),
            ProgramAction::Remove { digest } => format!("remove {}", digest.0[0]),
            ProgramAction::Answer { ticket, answer: Ok(arrival) } => {
                format!("to {ticket}: {} bytes", arrival.bytes)
            }
            ProgramAction::Answer { ticket, answer: Err(error) } => format!("to {ticket}: {error}"),
        };
        out.iter().map(line).collect()
    }

    fn received(number: u64, bytes: u64) -> ProgramEvent {
        ProgramEvent::Received { number, result: Ok(ProgramArrival { bytes, millis: 1 }) }
    }

    fn failed(number: u64, reason: &str) -> ProgramEvent {
        ProgramEvent::Received { number, result: Err(ReceiveError::Source(reason.to_owned())) }
    }

    #[test]
    fn two_users_of_one_program_share_a_transfer_and_a_file() {
        let mut table = table();
        let out = describe(&table.handle(want(1, node(1), image(1, 50))));
        assert_eq!(out, ["1: p1 from Local(\"/p1\")"]);
        assert_eq!(describe(&table.handle(want(2, node(2), image(1, 50)))), [""; 0]);
        let out = describe(&table.handle(received(1, 50)));
        assert_eq!(out, ["to 1: 50 bytes", "to 2: 50 bytes"]);
        // It stays while one of them uses it, although another program needs the place.
        table.handle(ProgramEvent::Released { user: node(1) });
        let out = describe(&table.handle(want(3, node(1), image(2, 51))));
        assert_eq!(out.len(), 1);
        assert!(out[0].starts_with("to 3: p2 has 51 bytes, and 50 of the 100 bytes"), "{out:?}");
        table.handle(ProgramEvent::Released { user: node(2) });
        let out = describe(&table.handle(want(4, node(1), image(2, 51))));
        assert_eq!(out, ["remove 1", "2: p2 from Local(\"/p1\")"]);
    }

    #[test]
    fn the_least_recently_used_program_is_removed_first() {
        let mut table = table();
        for n in [1, 2, 3] {
            table.handle(ProgramEvent::Found { digest: digest(n), bytes: 30 });
        }
        // The first one is used again, and a user of another program releases that.
        let out = describe(&table.handle(want(1, node(1), image(1, 30))));
        assert_eq!(out, ["touch 1", "to 1: 0 bytes"]);
        table.handle(want(2, node(1), image(2, 30)));
        let out = describe(&table.handle(want(3, node(2), image(4, 60))));
        assert_eq!(out, ["remove 3", "remove 1", "1: p4 from Local(\"/p1\")"]);
        // More than the cache may have was found there.
        let mut table = self::table();
        for n in [1, 2, 3] {
            table.handle(ProgramEvent::Found { digest: digest(n), bytes: 30 });
        }
        let out = table.handle(ProgramEvent::Found { digest: digest(4), bytes: 30 });
        assert_eq!(describe(&out), ["remove 1"]);
    }

    #[test]
    fn each_source_is_asked_once_and_a_wrong_program_ends_the_transfer() {
        let mut table = table();
        table.handle(want(1, node(1), image(1, 10)));
        let out = describe(&table.handle(failed(1, "another file is there")));
        assert_eq!(out, ["2: p1 from Local(\"/p2\")"]);
        let out = describe(&table.handle(failed(2, "no answer")));
        let text = "p1 could not be fetched: another file is there; no answer";
        assert_eq!(out, [format!("to 1: {text}; submit the job again")]);
        table.handle(want(2, node(1), image(1, 10)));
        let (name, reason) = ("p1".to_owned(), "it has no ELF header".to_owned());
        let wrong = ProgramError::NotExecutable { name, reason };
        let wrong = ReceiveError::Program(Box::new(wrong));
        let out = table.handle(ProgramEvent::Received { number: 3, result: Err(wrong) });
        assert!(describe(&out)[0].contains("not an executable"), "{out:?}");
        assert!(!table.receives(&digest(1)));
        let out = describe(&table.handle(want(3, node(1), image(1, 61))));
        assert!(out[0].contains("p1 has 61 bytes, above the limit of 60"), "{out:?}");
    }

    #[test]
    fn a_transfer_without_users_is_stopped() {
        let mut table = table();
        table.handle(want(1, node(1), image(1, 10)));
        table.handle(want(2, node(2), image(1, 10)));
        let out = describe(&table.handle(ProgramEvent::Released { user: node(1) }));
        assert_eq!(out, ["to 1: no job needs p1 any longer"]);
        let out = describe(&table.handle(ProgramEvent::Released { user: node(2) }));
        assert_eq!(out, ["to 2: no job needs p1 any longer", "1: stop"]);
        assert_eq!(table.handle(received(1, 10)), [], "its late end has no effect");
        assert!(!table.has(&digest(1)));
        // A vanished file is received again.
        table.handle(ProgramEvent::Found { digest: digest(1), bytes: 10 });
        table.handle(ProgramEvent::Vanished { digest: digest(1) });
        let out = describe(&table.handle(want(3, node(1), image(1, 10))));
        assert_eq!(out, ["2: p1 from Local(\"/p1\")"]);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Want { user: u8, program: u8 },
        Release { user: u8 },
        End { at: usize, ok: bool },
        Vanish { program: u8 },
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (0..5u8, 0..6u8).prop_map(|(user, program)| Step::Want { user, program }),
            2 => (0..5u8).prop_map(|user| Step::Release { user }),
            4 => (0..3usize, any::<bool>()).prop_map(|(at, ok)| Step::End { at, ok }),
            1 => (0..6u8).prop_map(|program| Step::Vanish { program }),
        ];
        proptest::collection::vec(step, 0..80)
    }

    proptest! {
        /// In any history, each caller gets one answer. No program is received twice at a time or
        /// removed while a user has it, and the cache keeps to its size.
        #[test]
        fn used_programs_stay_and_all_callers_are_answered(steps in steps()) {
            let mut table = table();
            let (mut asked, mut answered) = (0, BTreeSet::new());
            let mut running: Vec<(u64, u8)> = Vec::new();
            let mut held: BTreeMap<u8, u8> = BTreeMap::new();
            let mut tickets: BTreeMap<u64, (u8, u8)> = BTreeMap::new();
            let mut files: BTreeSet<u8> = BTreeSet::new();
            for step in steps {
                let out = match step {
                    Step::Want { user, program } => {
                        asked += 1;
                        held.remove(&user);
                        tickets.insert(asked, (user, program));
                        table.handle(want(asked, node(user), image(program, 40)))
                    }
                    Step::Release { user } => {
                        held.remove(&user);
                        table.handle(ProgramEvent::Released { user: node(user) })
                    }
                    Step::End { at, ok } => {
                        if running.is_empty() {
                            continue;
                        }
                        let (number, program) = running.remove(at % running.len());
                        if ok {
                            files.insert(program);
                            table.handle(received(number, 40))
                        } else {
                            table.handle(failed(number, "lost"))
                        }
                    }
                    Step::Vanish { program } => {
                        held.retain(|_, used| *used != program);
                        files.remove(&program);
                        table.handle(ProgramEvent::Vanished { digest: digest(program) })
                    }
                };
                // Of a call, the removals precede the answer that makes a file used.
                for action in out {
                    match action {
                        ProgramAction::Receive { number, image, .. } => {
                            let program = image.digest.0[0];
                            prop_assert!(running.iter().all(|(_, other)| *other != program));
                            prop_assert!(!files.contains(&program));
                            running.push((number, program));
                        }
                        ProgramAction::Stop { number, .. } => {
                            running.retain(|(other, _)| *other != number);
                        }
                        ProgramAction::Touch { digest } => {
                            prop_assert!(files.contains(&digest.0[0]));
                        }
                        ProgramAction::Remove { digest } => {
                            prop_assert!(files.remove(&digest.0[0]));
                            prop_assert!(held.values().all(|used| *used != digest.0[0]));
                        }
                        ProgramAction::Answer { ticket, answer } => {
                            prop_assert!(answered.insert(ticket), "{} twice", ticket);
                            let (user, program) = tickets[&ticket];
                            if answer.is_ok() {
                                prop_assert!(files.contains(&program));
                                held.insert(user, program);
                            }
                        }
                    }
                }
                prop_assert!(running.len() <= 2);
                prop_assert!((files.len() + running.len()) * 40 <= 100);
            }
            for user in 0..5 {
                for action in table.handle(ProgramEvent::Released { user: node(user) }) {
                    if let ProgramAction::Answer { ticket, .. } = action {
                        prop_assert!(answered.insert(ticket), "{} twice", ticket);
                    }
                }
            }
            prop_assert_eq!(answered.len() as u64, asked);
        }
    }
}
