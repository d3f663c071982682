//! Decides which files a cluster fetches, from which source, and how many at a time.
//!
//! A state machine without I/O: events in, actions out. A file is fetched once, even if several
//! jobs wait for it. Each source is asked once. If all fail, the requester gets the errors and
//! decides whether to retry. This module must not depend on disks or on the network.

use std::collections::{BTreeMap, VecDeque};

use springtide_runtime::id::JobId;

use springtide_protocol::files::{FetchResult, FileEntry, FileError, FileSource};

/// Inputs of the table.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum TransferEvent {
    /// A job needs a file; `ticket` identifies the answer.
    Wanted { ticket: u64, job: JobId, file: FileEntry, from: Vec<FileSource> },
    /// A fetch has ended.
    Fetched { number: u64, answer: Result<FetchResult, FileError> },
    /// A job needs no more files.
    Dropped { job: JobId },
}

/// Outputs of the table.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum TransferAction {
    /// Start a fetch; [`Event::Fetched`] follows.
    Fetch { number: u64, file: FileEntry, from: FileSource },
    /// Cancel a fetch and delete its part. No event follows.
    Stop { number: u64, file: FileEntry },
    /// Answer the requester.
    Answer { ticket: u64, answer: Result<FetchResult, FileError> },
}

#[derive(Debug)]
struct FileTransfer {
    file: FileEntry,
    /// Sources that were not asked yet.
    from: VecDeque<FileSource>,
    /// Errors of the sources that were asked.
    tried: Vec<String>,
    /// Requesters that wait for the file.
    tickets: Vec<(u64, JobId)>,
    /// Number of the running fetch.
    running: Option<u64>,
}

/// The transfers to a cluster.
#[derive(Debug)]
pub(super) struct TransferTable {
    at_once: usize,
    /// By name of the file.
    transfers: BTreeMap<String, FileTransfer>,
    /// Files that wait for a fetch, in order of arrival.
    queue: VecDeque<String>,
    last: u64,
}

impl TransferTable {
    /// Creates a table with at most `at_once` simultaneous fetches, at least one.
    pub(super) fn new(at_once: usize) -> Self {
        let (transfers, queue) = (BTreeMap::new(), VecDeque::new());
        Self { at_once: at_once.max(1), transfers, queue, last: 0 }
    }

    /// Whether a file of this name is being fetched.
    pub(super) fn has(&self, name: &str) -> bool {
        self.transfers.contains_key(name)
    }

    pub(super) fn handle(&mut self, event: TransferEvent) -> Vec<TransferAction> {
        let mut out = Vec::new();
        match event {
            TransferEvent::Wanted { ticket, job, file, from } => {
                self.handle_wanted((ticket, job), file, from, &mut out)
            }
            TransferEvent::Fetched { number, answer } => {
                self.handle_fetched(number, answer, &mut out)
            }
            TransferEvent::Dropped { job } => self.handle_dropped(job, &mut out),
        }
        self.start_fetches(&mut out);
        out
    }

    fn handle_wanted(
        &mut self,
        (ticket, job): (u64, JobId),
        file: FileEntry,
        from: Vec<FileSource>,
        out: &mut Vec<TransferAction>,
    ) {
        if let Some(known) = self.transfers.get_mut(&file.name) {
            if known.file != file {
                let (name, reason) =
                    (file.name, "another file of this name is being fetched".to_owned());
                let answer = Err(FileError::NoSource { name, reason });
                return out.push(TransferAction::Answer { ticket, answer });
            }
            known.tickets.push((ticket, job));
            return;
        }
        let name = file.name.clone();
        let (from, tickets) = (from.into(), vec![(ticket, job)]);
        let transfer = FileTransfer { file, from, tried: Vec::new(), tickets, running: None };
        self.transfers.insert(name.clone(), transfer);
        self.queue.push_back(name);
    }

    fn handle_fetched(
        &mut self,
        number: u64,
        answer: Result<FetchResult, FileError>,
        out: &mut Vec<TransferAction>,
    ) {
        let of = |(_, transfer): &(&String, &FileTransfer)| transfer.running == Some(number);
        let Some(name) = self.transfers.iter().find(of).map(|(name, _)| name.clone()) else {
            return; // cancelled in the meantime
        };
        let Some(transfer) = self.transfers.get_mut(&name) else { return };
        transfer.running = None;
        let answer = match answer {
            // Try the next source; it may resume from the stored part.
            Err(error) if !transfer.from.is_empty() => {
                transfer.tried.push(error.to_string());
                return self.queue.push_front(name);
            }
            Err(error) if transfer.tried.is_empty() => Err(error),
            Err(error) => {
                transfer.tried.push(error.to_string());
                Err(FileError::NoSource { name: name.clone(), reason: transfer.tried.join("; ") })
            }
            Ok(brought) => Ok(brought),
        };
        self.finish(&name, &answer, out);
    }

    fn finish(
        &mut self,
        name: &str,
        answer: &Result<FetchResult, FileError>,
        out: &mut Vec<TransferAction>,
    ) {
        let Some(transfer) = self.transfers.remove(name) else { return };
        self.queue.retain(|queued| queued != name);
        for (i, (ticket, _)) in transfer.tickets.into_iter().enumerate() {
            let mut answer = answer.clone();
            // Only one answer counts the bytes of the link.
            if let (Ok(brought), true) = (&mut answer, i > 0) {
                *brought = FetchResult { from: None, bytes: 0, seconds: 0.0 };
            }
            out.push(TransferAction::Answer { ticket, answer });
        }
    }

    fn handle_dropped(&mut self, job: JobId, out: &mut Vec<TransferAction>) {
        let mut idle = Vec::new();
        for (name, transfer) in &mut self.transfers {
            transfer.tickets.retain(|(ticket, waits)| {
                if *waits == job {
                    let answer = Err(FileError::Cancelled { name: name.clone() });
                    out.push(TransferAction::Answer { ticket: *ticket, answer });
                }
                *waits != job
            });
            if transfer.tickets.is_empty() {
                idle.push(name.clone());
            }
        }
        for name in idle {
            let Some(transfer) = self.transfers.remove(&name) else { continue };
            self.queue.retain(|queued| *queued != name);
            if let Some(number) = transfer.running {
                out.push(TransferAction::Stop { number, file: transfer.file });
            }
        }
    }

    fn start_fetches(&mut self, out: &mut Vec<TransferAction>) {
        loop {
            let running = self.transfers.values().filter(|one| one.running.is_some()).count();
            if running >= self.at_once {
                return;
            }
            let Some(name) = self.queue.pop_front() else { return };
            let Some(transfer) = self.transfers.get_mut(&name) else { continue };
            let Some(from) = transfer.from.pop_front() else {
                let reason = "no cluster has the file".to_owned();
                self.finish(&name, &Err(FileError::NoSource { name: name.clone(), reason }), out);
                continue;
            };
            self.last += 1;
            transfer.running = Some(self.last);
            out.push(TransferAction::Fetch {
                number: self.last,
                file: transfer.file.clone(),
                from,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use springtide_runtime::net::{Address, Contact};

    use super::*;

    fn file(name: &str) -> FileEntry {
        FileEntry { name: name.to_owned(), bytes: 10, sum: format!("sum of {name}") }
    }

    fn source(cluster: &str) -> FileSource {
        let address = Address::Socket(([127, 0, 0, 1], 47000).into());
        let at = Contact { node: "head".into(), cluster: "head".into(), address };
        FileSource { cluster: cluster.into(), address: at }
    }

    fn brought(from: &str) -> FetchResult {
        FetchResult { from: Some(from.into()), bytes: 10, seconds: 2.0 }
    }

    fn want(ticket: u64, job: u64, name: &str, from: &[&str]) -> TransferEvent {
        let from = from.iter().map(|cluster| source(cluster)).collect();
        TransferEvent::Wanted { ticket, job: JobId(job), file: file(name), from }
    }

    /// Short descriptions of actions.
    fn describe(out: &[TransferAction]) -> Vec<String> {
        out.iter()
            .map(|action| match action {
                TransferAction::Fetch { number, file, from } => {
                    format!("{number}: {} from {}", file.name, from.cluster)
                }
                TransferAction::Stop { number, .. } => format!("{number}: stop"),
                TransferAction::Answer { ticket, answer: Ok(brought) } => {
                    format!("to {ticket}: {} bytes", brought.bytes)
                }
                TransferAction::Answer { ticket, answer: Err(error) } => {
                    format!("to {ticket}: {error}")
                }
            })
            .collect()
    }

    #[test]
    fn file_is_fetched_once_for_all_requesters() {
        let mut table = TransferTable::new(2);
        assert_eq!(describe(&table.handle(want(1, 1, "a", &["x"]))), ["1: a from x"]);
        assert_eq!(describe(&table.handle(want(2, 2, "a", &["x"]))), [""; 0]);
        assert!(table.has("a"));
        // Another file of the same name is refused.
        let mut other = want(3, 3, "a", &["x"]);
        if let TransferEvent::Wanted { file, .. } = &mut other {
            file.sum = "else".to_owned();
        }
        let out = describe(&table.handle(other));
        assert_eq!(
            out,
            ["to 3: a could not be fetched: another file of this name is being fetched"]
        );
        let out = table.handle(TransferEvent::Fetched { number: 1, answer: Ok(brought("x")) });
        assert_eq!(describe(&out), ["to 1: 10 bytes", "to 2: 0 bytes"]);
        assert!(!table.has("a"));
        // Repeated or unknown results have no effect.
        let out = table.handle(TransferEvent::Fetched { number: 1, answer: Ok(brought("x")) });
        assert_eq!(out, []);
    }

    #[test]
    fn each_source_is_asked_once() {
        let mut table = TransferTable::new(1);
        assert_eq!(describe(&table.handle(want(1, 1, "a", &["x", "y"]))), ["1: a from x"]);
        assert_eq!(describe(&table.handle(want(2, 2, "b", &["y"]))), [""; 0]);
        let failed = |why: &str| Err(FileError::NoSource { name: "a".into(), reason: why.into() });
        let out = table.handle(TransferEvent::Fetched { number: 1, answer: failed("x is gone") });
        assert_eq!(describe(&out), ["2: a from y"], "a retry precedes later files");
        let out =
            describe(&table.handle(TransferEvent::Fetched { number: 2, answer: failed("y too") }));
        assert!(out[0].contains("x is gone") && out[0].contains("y too"), "{out:?}");
        assert_eq!(out[1..], ["3: b from y"]);
        let out = describe(&table.handle(want(3, 3, "c", &[])));
        assert_eq!(out, [""; 0], "another fetch runs");
        let out =
            describe(&table.handle(TransferEvent::Fetched { number: 3, answer: Ok(brought("y")) }));
        assert_eq!(
            out,
            ["to 2: 10 bytes", "to 3: c could not be fetched: no cluster has the file"]
        );
    }

    #[test]
    fn fetch_without_requesters_is_cancelled() {
        let mut table = TransferTable::new(1);
        table.handle(want(1, 1, "a", &["x"]));
        table.handle(want(2, 2, "a", &["x"]));
        table.handle(want(3, 1, "b", &["x"]));
        let out = describe(&table.handle(TransferEvent::Dropped { job: JobId(1) }));
        let expected = ["to 1: no job needs a any longer", "to 3: no job needs b any longer"];
        assert_eq!(out, expected, "another job needs a");
        let out = describe(&table.handle(TransferEvent::Dropped { job: JobId(2) }));
        assert_eq!(out, ["to 2: no job needs a any longer", "1: stop"]);
        // The fetch slot is free, and the late result of the cancelled fetch has no effect.
        assert_eq!(describe(&table.handle(want(4, 4, "c", &["x"]))), ["2: c from x"]);
        assert_eq!(
            table.handle(TransferEvent::Fetched { number: 1, answer: Ok(brought("x")) }),
            []
        );
        assert!(table.has("c") && !table.has("a"));
    }
}
