//! One process of a command on this node: its start, its output and its end.
//!
//! Threads of its own read its output and wait for its end. They do not know ranks' meaning.

use std::collections::VecDeque;
use std::io::{self, Read, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use springtide_base::memory::OutOfMemoryWatch;

use super::message::ProcessEnd;
use crate::work::OutputStream;
use crate::work::waker::Waker;

/// The most bytes of a piece of output.
pub(super) const PIECE_MAX: usize = 32 << 10;
/// The most bytes of output that wait on a node. A process that writes more waits.
const WAITING_MAX: usize = 1 << 20;

/// Sends the signals that it reads to a group of processes. If its input ends without the word
/// `end`, this node's process has ended: the group is killed, and its directory removed.
const GUARD: &str = r#"while read -r word; do
  [ "$word" = end ] && exit 0
  kill -s "$word" -- "-$1" 2>/dev/null
done
kill -s KILL -- "-$1" 2>/dev/null
rm -rf -- "$2""#;

/// What the threads of a node's processes report.
#[derive(Debug)]
pub(super) enum ChildEvent {
    /// A piece of output.
    Output { rank: u32, stream: OutputStream, bytes: Bytes },
    /// A stream has ended.
    Closed { rank: u32 },
    /// The process has ended.
    Ended { rank: u32, end: ProcessEnd },
}

/// The events of a node's processes, bounded in bytes.
#[derive(Debug, Default)]
struct WaitingEvents {
    events: VecDeque<ChildEvent>,
    bytes: usize,
    /// Whether no agent takes events any more.
    is_closed: bool,
}

/// The queue between the threads of a node's processes and its agent.
pub(super) struct EventQueue {
    waiting: Mutex<WaitingEvents>,
    changed: Condvar,
    waker: Waker,
}

impl EventQueue {
    pub(super) fn new(waker: Waker) -> Self {
        Self { waiting: Mutex::default(), changed: Condvar::new(), waker }
    }

    fn waiting(&self) -> MutexGuard<'_, WaitingEvents> {
        // Each step under the lock leaves a consistent state.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an event, after a wait for room if it has bytes.
    fn push(&self, event: ChildEvent) {
        let bytes = if let ChildEvent::Output { bytes, .. } = &event { bytes.len() } else { 0 };
        let mut waiting = self.waiting();
        while bytes > 0 && waiting.bytes >= WAITING_MAX && !waiting.is_closed {
            waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
        if waiting.is_closed {
            return;
        }
        waiting.bytes += bytes;
        waiting.events.push_back(event);
        drop(waiting);
        self.changed.notify_all();
        self.waker.wake();
    }

    /// Takes the oldest event.
    pub(super) fn take(&self) -> Option<ChildEvent> {
        let mut waiting = self.waiting();
        let event = waiting.events.pop_front()?;
        if let ChildEvent::Output { bytes, .. } = &event {
            waiting.bytes -= bytes.len();
        }
        drop(waiting);
        self.changed.notify_all();
        Some(event)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting().events.is_empty()
    }

    /// Blocks this thread until there is an event, for at most this time.
    pub(super) fn wait(&self, time: Duration) {
        let waiting = self.waiting();
        if waiting.events.is_empty() {
            // A spurious wakeup is harmless: the caller looks at the time.
            drop(self.changed.wait_timeout(waiting, time));
        }
    }

    /// Drops all events, also later ones.
    pub(super) fn close(&self) {
        let mut waiting = self.waiting();
        *waiting = WaitingEvents { is_closed: true, ..WaitingEvents::default() };
        drop(waiting);
        self.changed.notify_all();
    }
}

/// A running process and its group.
#[derive(Debug)]
pub(super) struct ChildProcess {
    /// The process that signals the group, also when this node's process has ended.
    guard: Child,
    signals: Option<ChildStdin>,
    /// The streams that have not ended.
    pub(super) open_streams: u32,
    /// How it ended, once it has.
    pub(super) end: Option<ProcessEnd>,
}

impl ChildProcess {
    /// Starts a process in a group of its own. `room` is the directory to remove if this node's
    /// process ends first.
    ///
    /// # Errors
    /// How the process ended instead of starting.
    pub(super) fn start(
        mut command: Command,
        rank: u32,
        stdin: Option<Bytes>,
        room: &std::path::Path,
        events: &Arc<EventQueue>,
    ) -> Result<Self, ProcessEnd> {
        command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.stdin(if stdin.is_some() { Stdio::piped() } else { Stdio::null() });
        let memory = OutOfMemoryWatch::begin();
        let mut child = command.spawn().map_err(|error| not_started(&error))?;
        let guard = start_guard(&child, room);
        let (mut guard, threads) = match guard {
            Ok(guard) => (guard, start_threads(&mut child, rank, stdin, events)),
            Err(error) => {
                end_child(&mut child);
                return Err(not_started(&error));
            }
        };
        let signals = guard.stdin.take();
        let open_streams = match threads {
            Ok(streams) => streams,
            Err(error) => {
                let mut process = Self { guard, signals, open_streams: 0, end: None };
                process.signal("KILL");
                end_child(&mut child);
                process.release();
                return Err(not_started(&error));
            }
        };
        let mut process = Self { guard, signals, open_streams, end: None };
        let (queue, name) = (events.clone(), format!("rank-{rank}-end"));
        // The thread gets the child, or is not started.
        let slot = Arc::new(Mutex::new(Some(child)));
        let taken = slot.clone();
        let wait = move || {
            let child = taken.lock().unwrap_or_else(PoisonError::into_inner).take();
            let Some(mut child) = child else { return };
            let end = match child.wait() {
                Ok(status) if memory.is_cause(status.code(), status.signal()) => {
                    ProcessEnd::OutOfMemory
                }
                Ok(status) => end_of(status),
                Err(error) => not_started(&error),
            };
            queue.push(ChildEvent::Ended { rank, end });
        };
        if let Err(error) = std::thread::Builder::new().name(name).spawn(wait) {
            process.signal("KILL");
            let child = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
            child.into_iter().for_each(|mut child| end_child(&mut child));
            process.release();
            return Err(not_started(&error));
        }
        Ok(process)
    }

    /// Sends a signal to the whole group.
    pub(super) fn signal(&mut self, name: &str) {
        if let Some(signals) = &mut self.signals {
            // A failed write means that the guard has ended, which it does only with its group.
            let _ = signals.write_all(format!("{name}\n").as_bytes());
        }
    }

    /// Ends what is left of the group, once the process has ended.
    pub(super) fn release(mut self) {
        self.signal("KILL");
        self.signal("end");
        self.signals = None;
        // The guard ends after the signals, in a few milliseconds.
        let _ = self.guard.wait();
    }
}

/// Ends and collects a process without a guard.
fn end_child(child: &mut Child) {
    // An ended process cannot be killed, and is collected all the same.
    let _ = child.kill();
    let _ = child.wait();
}

fn not_started(error: &io::Error) -> ProcessEnd {
    let missing = error.kind() == io::ErrorKind::NotFound;
    ProcessEnd::NotStarted { missing, reason: error.to_string() }
}

/// How an ended process ended.
pub(crate) fn end_of(status: ExitStatus) -> ProcessEnd {
    let byte = |number: i32| u8::try_from(number).unwrap_or(u8::MAX);
    match (status.code(), status.signal()) {
        (Some(code), _) => ProcessEnd::Exited(byte(code)),
        (None, signal) => ProcessEnd::Signalled(byte(signal.unwrap_or_default())),
    }
}

fn start_guard(child: &Child, room: &std::path::Path) -> io::Result<Child> {
    let mut guard = Command::new("sh");
    guard.args(["-c", GUARD, "sh", &child.id().to_string()]).arg(room);
    // In a group of its own, for the group of this node's process may be killed as a whole.
    guard.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    guard.spawn()
}

/// Starts the threads that feed the process and read its output. Returns the number of streams.
fn start_threads(
    child: &mut Child,
    rank: u32,
    stdin: Option<Bytes>,
    events: &Arc<EventQueue>,
) -> io::Result<u32> {
    let mut streams = 0;
    if let Some(out) = child.stdout.take() {
        start_reader(out, rank, OutputStream::Stdout, events)?;
        streams += 1;
    }
    if let Some(out) = child.stderr.take() {
        start_reader(out, rank, OutputStream::Stderr, events)?;
        streams += 1;
    }
    if let (Some(mut input), Some(bytes)) = (child.stdin.take(), stdin) {
        // A process that does not read its input is not an error.
        let write = move || drop(input.write_all(&bytes));
        std::thread::Builder::new().name(format!("rank-{rank}-stdin")).spawn(write)?;
    }
    Ok(streams)
}

fn start_reader(
    mut out: impl Read + Send + 'static,
    rank: u32,
    stream: OutputStream,
    events: &Arc<EventQueue>,
) -> io::Result<()> {
    let events = events.clone();
    let read = move || {
        let mut buffer = vec![0; PIECE_MAX];
        loop {
            match out.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => {
                    let bytes = Bytes::copy_from_slice(&buffer[..count]);
                    events.push(ChildEvent::Output { rank, stream, bytes });
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        events.push(ChildEvent::Closed { rank });
    };
    std::thread::Builder::new().name(format!("rank-{rank}-out")).spawn(read).map(drop)
}
