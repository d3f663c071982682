//! The process of one runner: its start, its frames and its end.
//!
//! It carries out what the session decides. It does not know what tasks compute.

use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::ioctl_fionbio;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use tokio::time::Instant;

use super::frame::{FrameBuffer, NodeFrame, PROTOCOL_VERSION, RunnerFrame, encode_frame};
use super::message::RunnerReport;
use super::report::ReportSink;
use super::root::RunnerSpec;
use super::session::{RunnerRequest, Session};
use super::task::TaskWatch;
use crate::command::child::end_of;
use crate::command::environment::withhold_variables;
use crate::work::Stop;

/// Kills the runner's group, unless the runner has ended before this node's process.
const GUARD: &str = r#"read -r word; [ "$word" = end ] || kill -s KILL -- "-$1" 2>/dev/null"#;
/// The interval at which a node looks whether the work of a runner is halted.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// The time in which a runner must answer a cancellation.
const CANCEL_WAIT: Duration = Duration::from_millis(500);
/// The time in which an idle runner must end when it is asked to.
const END_WAIT: Duration = Duration::from_millis(500);
/// The longest wait for the log of an ended runner. Programs that it left may hold it open.
const LOG_WAIT: Duration = Duration::from_millis(200);
/// The most bytes of one read.
const READ_BYTES: usize = 64 << 10;
/// The most bytes of the end of a runner's log in an error.
const LOG_END_BYTES: usize = 2000;
/// The longest time between two looks at the log.
const LOG_INTERVAL: Duration = Duration::from_secs(1);
/// A longer line reaches the client in pieces.
const LINE_BYTES: usize = 8 << 10;

/// Why a runner is of no more use for a task.
pub(super) enum RunnerFault {
    /// The task is halted.
    Halted(Stop),
    /// The client has cancelled the task.
    Cancelled,
    /// The runner has ended, or had to be ended: the reason as the predicate of a sentence.
    Died(String),
}

/// Where a runner runs.
#[derive(Clone, Copy)]
pub(super) struct RunnerPlace<'a> {
    /// The name of the node.
    pub(super) node: &'a str,
    /// The name of the node's cluster.
    pub(super) cluster: &'a str,
}

/// A running process.
pub(super) struct RunnerProcess {
    child: Child,
    is_collected: bool,
    stdin: Option<ChildStdin>,
    stdout: ChildStdout,
    guard: Child,
    received: FrameBuffer,
    piece: Box<[u8]>,
    log: Option<Arc<Mutex<LogPump>>>,
    /// The thread that reads the log.
    log_reader: Option<JoinHandle<()>>,
    pub(super) session: Session,
}

impl RunnerProcess {
    /// Starts a runner, and waits until it is ready. `sink` gets what it prints.
    ///
    /// # Errors
    /// It does not start, is not ready in time, or the task is halted or cancelled.
    pub(super) fn start(
        spec: &RunnerSpec,
        place: RunnerPlace<'_>,
        sink: Option<ReportSink>,
        watch: Option<&TaskWatch<'_, '_>>,
    ) -> Result<Self, RunnerFault> {
        let Some((program, arguments)) = spec.command.split_first() else {
            return Err(RunnerFault::Died("has no command".to_owned()));
        };
        let mut command = Command::new(program);
        command.args(arguments).process_group(0);
        withhold_variables(&mut command);
        command.envs(spec.environment.iter().map(|variable| (&variable.name, &variable.value)));
        // A relative module of the client is found where hosts share its directory.
        if let Some(directory) = spec.directory.as_ref().filter(|directory| directory.is_dir()) {
            command.current_dir(directory);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let not_started =
            |error: io::Error| RunnerFault::Died(format!("could not be started: {error}"));
        let mut child = command.spawn().map_err(|error| {
            RunnerFault::Died(format!("could not be started ({program}): {error}"))
        })?;
        let guard = match start_guard(child.id()) {
            Ok(guard) => guard,
            Err(error) => {
                // An ended process cannot be killed, and is collected all the same.
                let _ = child.kill();
                let _ = child.wait();
                return Err(not_started(error));
            }
        };
        let streams = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(stdin), Some(stdout), Some(stderr)) = streams else {
            return Err(not_started(io::Error::other("it has no pipes")));
        };
        let mut process = Self {
            child,
            is_collected: false,
            stdin: Some(stdin),
            stdout,
            guard,
            received: FrameBuffer::default(),
            piece: vec![0; READ_BYTES].into(),
            log: None,
            log_reader: None,
            session: Session::default(),
        };
        process.prepare(stderr, sink).map_err(not_started)?;
        process.welcome(spec.start_timeout, place, watch)?;
        Ok(process)
    }

    fn prepare(&mut self, stderr: ChildStderr, sink: Option<ReportSink>) -> io::Result<()> {
        if let Some(stdin) = &self.stdin {
            ioctl_fionbio(stdin, true)?;
        }
        ioctl_fionbio(&self.stdout, true)?;
        ioctl_fionbio(&stderr, true)?;
        let stream = stderr.as_fd().try_clone_to_owned()?;
        let log = LogPump { stderr, end: Vec::new(), line: Vec::new(), sink };
        let log = self.log.insert(Arc::new(Mutex::new(log))).clone();
        let copy = move || {
            while lock(&log).pump() {
                wait_until_ready(stream.as_fd(), PollFlags::IN, LOG_INTERVAL);
            }
        };
        let reader = std::thread::Builder::new().name("runner-log".to_owned());
        self.log_reader = Some(reader.spawn(copy)?);
        Ok(())
    }

    /// Waits for the runner's hello and answers it.
    fn welcome(
        &mut self,
        timeout: Duration,
        place: RunnerPlace<'_>,
        watch: Option<&TaskWatch<'_, '_>>,
    ) -> Result<(), RunnerFault> {
        let until = Instant::now().checked_add(timeout);
        match self.receive(until, watch)? {
            Some(RunnerRequest::Welcome) => {}
            Some(_) => return Err(self.died("did not begin with a hello")),
            None => return Err(self.died(&format!("sent no hello within {timeout:?}"))),
        }
        let welcome = NodeFrame::Welcome {
            version: PROTOCOL_VERSION,
            node: place.node.to_owned(),
            cluster: place.cluster.to_owned(),
        };
        self.send(&welcome, watch)
    }

    /// Sends a frame. Without a watch the caller bounds the time.
    ///
    /// # Errors
    /// The runner has ended, the frame is too long, or the task is halted or cancelled.
    pub(super) fn send(
        &mut self,
        frame: &NodeFrame,
        watch: Option<&TaskWatch<'_, '_>>,
    ) -> Result<(), RunnerFault> {
        let bytes = match encode_frame(frame) {
            Ok(bytes) => bytes,
            Err(fault) => return Err(self.died(&format!("cannot get a frame: {fault}"))),
        };
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let Some(stdin) = &mut self.stdin else { return Err(self.died("has no input")) };
            match stdin.write(rest) {
                Ok(count) => rest = &rest[count..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let ready = wait_until_ready(stdin.as_fd(), PollFlags::OUT, CHECK_INTERVAL);
                    match watch {
                        Some(watch) => watch.check()?,
                        None if !ready => return Err(self.died("does not read its input")),
                        None => {}
                    }
                }
                Err(_) => return Err(self.died("")),
            }
        }
        Ok(())
    }

    /// Waits for the next request of the runner, until this time. `None`: none came.
    ///
    /// # Errors
    /// The runner has ended or violates the protocol, or the task is halted or cancelled.
    pub(super) fn receive(
        &mut self,
        until: Option<Instant>,
        watch: Option<&TaskWatch<'_, '_>>,
    ) -> Result<Option<RunnerRequest>, RunnerFault> {
        loop {
            match self.received.next_frame::<RunnerFrame>() {
                Ok(Some(frame)) => {
                    return match self.session.receive(frame) {
                        Ok(request) => {
                            if matches!(request, RunnerRequest::End { .. }) {
                                self.pump_log();
                            }
                            Ok(Some(request))
                        }
                        Err(violation) => Err(self.died(&violates(&violation))),
                    };
                }
                Ok(None) => {}
                Err(fault) => return Err(self.died(&violates(&fault))),
            }
            match self.stdout.read(&mut self.piece) {
                Ok(0) => return Err(self.died("")),
                Ok(count) => self.received.extend(&self.piece[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let now = Instant::now();
                    let left = until.map(|until| until.saturating_duration_since(now));
                    if left == Some(Duration::ZERO) {
                        return Ok(None);
                    }
                    let wait = left.map_or(CHECK_INTERVAL, |left| left.min(CHECK_INTERVAL));
                    wait_until_ready(self.stdout.as_fd(), PollFlags::IN, wait);
                    if let Some(watch) = watch {
                        watch.check()?;
                    }
                }
                Err(error) => return Err(self.died(&format!("cannot be read from: {error}"))),
            }
        }
    }

    /// Asks the runner to end its last task, which is of no use. Returns whether it did so in time,
    /// so that the tasks below can continue. A single task that computes is not asked.
    pub(super) fn cancel(&mut self) -> bool {
        let asks = self.session.depth() > 1 || self.session.accepts_task();
        let Some(frame) = self.session.cancel().filter(|_| asks) else { return false };
        if self.send(&frame, None).is_err() {
            return false;
        }
        let until = Instant::now() + CANCEL_WAIT;
        while let Ok(Some(request)) = self.receive(Some(until), None) {
            match request {
                RunnerRequest::End { .. } => return true,
                // A halted task gets no more answers.
                RunnerRequest::Join { .. } | RunnerRequest::Get { .. } => {}
                RunnerRequest::Spawn { .. } | RunnerRequest::Welcome => {}
                RunnerRequest::Log { .. } | RunnerRequest::Progress { .. } => {}
            }
        }
        false
    }

    /// The fault of a runner that is of no more use. Ends it. Without a `reason` its own end is the
    /// reason.
    fn died(&mut self, reason: &str) -> RunnerFault {
        let mut reason = reason.to_owned();
        if reason.is_empty() {
            // It closes its streams before it ends.
            let ended = self.wait_for_end(END_WAIT);
            let status = self.kill().filter(|_| ended);
            reason = status.map_or_else(
                || "closed its streams".to_owned(),
                |status| end_of(status).describe(),
            );
        }
        self.kill();
        // The end of the log may still be in the pipe.
        let until = Instant::now() + LOG_WAIT;
        while self.log_reader.as_ref().is_some_and(|reader| !reader.is_finished())
            && Instant::now() < until
        {
            pause();
        }
        let end = self.log.as_ref().map_or_else(String::new, |log| {
            let mut log = lock(log);
            // A program that the runner left may hold the stream open.
            log.pump();
            String::from_utf8_lossy(&log.end).trim().to_owned()
        });
        if !end.is_empty() {
            reason.push_str("; the end of its log: ");
            reason.push_str(&end);
        }
        RunnerFault::Died(reason)
    }

    /// Passes on what the runner has printed, before the end of the task that printed it.
    fn pump_log(&self) {
        if let Some(log) = &self.log {
            lock(log).pump_all();
        }
    }

    /// Whether the process has ended, after at most this wait. It is not collected, so that its
    /// number still names its group.
    fn wait_for_end(&self, time: Duration) -> bool {
        let Some(process) = self.process() else { return true };
        let until = Instant::now() + time;
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        loop {
            match waitid(WaitId::Pid(process), options) {
                Ok(None) => {}
                Ok(Some(_)) | Err(rustix::io::Errno::CHILD) => return true,
                Err(_) => return false,
            }
            if Instant::now() >= until {
                return false;
            }
            pause();
        }
    }

    fn process(&self) -> Option<Pid> {
        i32::try_from(self.child.id()).ok().and_then(Pid::from_raw)
    }

    /// Kills the group and collects the process. Returns how it ended, if it is known.
    fn kill(&mut self) -> Option<ExitStatus> {
        // The number of a collected process may be that of another group.
        if let Some(group) = self.process().filter(|_| !self.is_collected) {
            // The group may have ended.
            let _ = kill_process_group(group, Signal::KILL);
        }
        self.is_collected = true;
        self.child.wait().ok()
    }
}

impl Drop for RunnerProcess {
    fn drop(&mut self) {
        let is_idle = self.session.accepts_task() && self.session.depth() == 0;
        let asked = is_idle && self.send(&NodeFrame::End {}, None).is_ok();
        drop(self.stdin.take());
        if asked {
            self.wait_for_end(END_WAIT);
        }
        self.kill();
        if let Some(mut input) = self.guard.stdin.take() {
            // The number of the ended group may soon be that of another one.
            let _ = input.write_all(b"end\n");
        }
        let _ = self.guard.wait();
    }
}

fn start_guard(group: u32) -> io::Result<Child> {
    let mut guard = Command::new("sh");
    guard.args(["-c", GUARD, "sh", &group.to_string()]);
    // In a group of its own, for the group of this node's process may be killed as a whole.
    guard.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    guard.spawn()
}

fn violates(fault: &dyn std::fmt::Display) -> String {
    format!("violated the protocol: {fault}")
}

fn timespec(time: Duration) -> Timespec {
    let seconds = time.as_secs().try_into().unwrap_or(i64::MAX);
    Timespec { tv_sec: seconds, tv_nsec: time.subsec_nanos().into() }
}

/// Blocks this thread for a moment, between two looks at a process that ends.
fn pause() {
    // An interrupted wait is as good.
    let _ = poll(&mut [], Some(&timespec(Duration::from_millis(2))));
}

/// Waits until a stream is ready, or for this time. Returns whether it is ready.
fn wait_until_ready(stream: BorrowedFd<'_>, flags: PollFlags, time: Duration) -> bool {
    // After an interrupted wait the caller tries its stream again.
    poll(&mut [PollFd::from_borrowed_fd(stream, flags)], Some(&timespec(time)))
        .is_ok_and(|ready| ready > 0)
}

fn lock(log: &Mutex<LogPump>) -> MutexGuard<'_, LogPump> {
    // Each step under the lock leaves a consistent state, so a poisoned lock remains usable.
    log.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Copies a runner's standard error to the log of the node and to the client, and keeps its end.
struct LogPump {
    stderr: ChildStderr,
    end: Vec<u8>,
    /// The last line for the client, while it is incomplete.
    line: Vec<u8>,
    sink: Option<ReportSink>,
}

impl LogPump {
    /// Copies what can be read now. Returns whether the stream is open.
    fn pump(&mut self) -> bool {
        let mut piece = [0; 4096];
        loop {
            match self.stderr.read(&mut piece) {
                Ok(0) => break,
                Ok(count) => self.copy(&piece[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(_) => break,
            }
        }
        self.report(self.line.len());
        false
    }

    /// As [`LogPump::pump`], and passes an incomplete line on.
    fn pump_all(&mut self) {
        self.pump();
        self.report(self.line.len());
    }

    fn copy(&mut self, piece: &[u8]) {
        // The node's log may be gone at its end.
        let _ = io::stderr().write_all(piece);
        self.end.extend_from_slice(piece);
        let excess = self.end.len().saturating_sub(LOG_END_BYTES);
        self.end.drain(..excess);
        if self.sink.is_none() {
            return;
        }
        self.line.extend_from_slice(piece);
        let whole = self.line.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let is_long = self.line.len() - whole > LINE_BYTES;
        self.report(if is_long { self.line.len() } else { whole });
    }

    /// Sends the first bytes of the line to the client.
    fn report(&mut self, count: usize) {
        if count == 0 {
            return;
        }
        let bytes: Vec<u8> = self.line.drain(..count).collect();
        if let Some(sink) = &self.sink {
            let text = String::from_utf8_lossy(&bytes).trim_end_matches('\n').to_owned();
            sink.send(&RunnerReport::Output { node: sink.node(), text });
        }
    }
}
