//! A batch job of one node, as a stub.

use std::fs;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::files::{self, StubFiles, exists, length};
use super::ledger::{StubPhase, StubRecord};
use super::monitor::{JobMonitor, StubOrder};
use super::script;
use super::system::BatchJobId;
use crate::local::last_lines;
use crate::{LocalFuture, NodeRequest, ProviderError, Stub, StubEnd, StubEvent, StubId};

/// The interval at which a script that starts another program is checked.
const CHECK: Duration = Duration::from_millis(20);
/// The time for a script to start another program after the end of the previous one.
const TAKE_WITHIN: Duration = Duration::from_secs(10);
/// The interval at which a killed stub that still exists is killed again: an order may be lost.
const KILL_AGAIN: Duration = Duration::from_secs(5);
/// The first interval at which an order to leave or to end is repeated; it doubles each time.
const RETRY: Duration = Duration::from_secs(2);
/// The longest such interval.
const RETRY_MAX: Duration = Duration::from_secs(60);
/// The meaning that templates give to the state of a job which the system ended for its memory.
const OUT_OF_MEMORY: &str = "used more memory than it may";

/// A batch job of one node.
pub(super) struct BatchStub {
    monitor: Rc<JobMonitor>,
    id: BatchJobId,
    changes: watch::Receiver<StubRecord>,
    files: StubFiles,
    /// The number of its next further program.
    next: u32,
    log: PathBuf,
    /// The start of the current program's lines in the log, in bytes.
    begin: u64,
    /// The reported reason of its wait.
    reason: Option<String>,
    /// Whether it was reported as active.
    active: bool,
    /// Whether its revocation was reported.
    warned: bool,
    ended: Option<StubEnd>,
    killed: bool,
    left: bool,
}

impl BatchStub {
    /// The stub of a job that the monitor follows.
    pub fn new(
        monitor: Rc<JobMonitor>,
        id: BatchJobId,
        changes: watch::Receiver<StubRecord>,
        files: StubFiles,
        log: PathBuf,
    ) -> Self {
        let mut next = 1;
        while exists(&files.taken(next)) {
            next += 1;
        }
        let (reason, ended) = (None, None);
        let (active, warned, killed, left) = (false, false, false, false);
        Self {
            monitor,
            id,
            changes,
            files,
            next,
            log,
            begin: 0,
            reason,
            active,
            warned,
            ended,
            killed,
            left,
        }
    }

    /// Sets the start of the program's lines in the log.
    pub fn with_begin(mut self, begin: u64) -> Self {
        self.begin = begin;
        self
    }

    fn phase(&self) -> StubPhase {
        self.changes.borrow().phase.clone()
    }

    fn end_with(&mut self, status: String) {
        let last_lines = last_lines(&self.log, self.begin);
        let out_of_memory = status.contains(OUT_OF_MEMORY);
        self.ended = Some(StubEnd { status, out_of_memory, last_lines });
    }

    /// Waits for its end.
    async fn ended(&mut self) -> StubEnd {
        loop {
            if let Some(ended) = &self.ended {
                return ended.clone();
            }
            if let StubPhase::Ended(how) = self.phase() {
                self.end_with(how);
                self.files.remove(self.next);
            } else if self.changes.changed().await.is_err() {
                // The other of two holders has ended or left it: no changes follow, and its files
                // belong to that one.
                self.end_with(format!("batch job {} has lost its holder", self.id));
            }
        }
    }

    /// Ends it, and waits until its processor is free. While the batch system does not answer,
    /// that is unknown.
    async fn end(&mut self, grace: Duration) -> StubEnd {
        self.withdraw();
        let begun = Instant::now();
        let mut retry = RETRY;
        loop {
            let order = if begun.elapsed() >= grace {
                StubOrder::Kill
            } else if self.phase() == StubPhase::Pending {
                StubOrder::Cancel
            } else {
                StubOrder::Leave
            };
            if self.ended.is_none() && !matches!(self.phase(), StubPhase::Ended(_)) {
                self.monitor.order(&self.id, order);
            }
            let rest = grace.saturating_sub(begun.elapsed());
            let wait = if rest.is_zero() { retry } else { retry.min(rest) };
            if let Ok(ended) = timeout(wait, self.ended()).await {
                return ended;
            }
            retry = (retry * 2).min(RETRY_MAX);
        }
    }

    async fn swap(&mut self, request: &NodeRequest, grace: Duration) -> Result<(), ProviderError> {
        script::check(request)?;
        // A program that still waits to be started is replaced.
        let before = self.files.next(self.next - 1);
        let replaces = exists(&before);
        let next = if replaces { before } else { self.files.next(self.next) };
        let begin = length(&request.log);
        let written = script::next(request).and_then(|text| files::write(&next, &text));
        written.map_err(|source| ProviderError::Log { log: next.clone(), source })?;
        self.next += u32::from(!replaces);
        let begun = Instant::now();
        let mut ordered: Option<Instant> = None;
        while exists(&next) {
            // Read before the phase: a script that starts later finds this program.
            let is_up = exists(&self.files.up());
            match self.phase() {
                StubPhase::Ended(how) => {
                    return Err(self.lost("ended before its new program began", &how));
                }
                StubPhase::Pending if !is_up => break, // its script begins with this program
                // The last list may be old: a script with this file runs.
                StubPhase::Pending | StubPhase::Active | StubPhase::Ending => {}
            }
            if is_up {
                // The first order requests an orderly end of the current program, later ones kill
                // it. An order in a file that the script has not read yet would be overwritten.
                let late = |since: Instant| {
                    since.elapsed() >= grace.max(CHECK) && !exists(&self.files.order())
                };
                if ordered.is_none_or(late) {
                    self.monitor.order(&self.id, StubOrder::Swap);
                    ordered = Some(Instant::now());
                }
            } else if ordered.is_none() && begun.elapsed() > TAKE_WITHIN {
                break; // a slow start: its script begins with this program
            }
            if begun.elapsed() > grace + TAKE_WITHIN {
                let reason = "its script does not answer";
                return Err(self.lost("did not start its new program", reason));
            }
            sleep(CHECK).await;
        }
        (self.log, self.begin) = (request.log.clone(), begin);
        Ok(())
    }

    fn lost(&self, how: &str, reason: &str) -> ProviderError {
        let lines = last_lines(&self.log, self.begin).join("\n");
        let (command, how) = (format!("batch job {}", self.id), how.to_owned());
        ProviderError::Failed { command, how, said: format!("{reason}\n{lines}") }
    }

    /// Removes a program that waits to be started.
    fn withdraw(&self) {
        // A missing file is not an error.
        let _ = fs::remove_file(self.files.next(self.next - 1));
    }
}

impl Stub for BatchStub {
    fn id(&self) -> Option<StubId> {
        let exists = !matches!(self.phase(), StubPhase::Ended(_));
        exists.then(|| StubId(self.id.to_string()))
    }

    fn last_lines(&self) -> Vec<String> {
        last_lines(&self.log, self.begin)
    }

    fn news(&mut self) -> LocalFuture<'_, StubEvent> {
        Box::pin(async {
            loop {
                let record = self.changes.borrow_and_update().clone();
                match record.phase {
                    StubPhase::Ended(_) => return StubEvent::Ended(self.ended().await),
                    StubPhase::Active if !std::mem::replace(&mut self.active, true) => {
                        return StubEvent::Active;
                    }
                    StubPhase::Pending
                        if record.reason.is_some() && record.reason != self.reason =>
                    {
                        self.reason = record.reason;
                        let reason = self.reason.clone().unwrap_or_default();
                        return StubEvent::Waits { reason };
                    }
                    _ => {}
                }
                if let Some(revocation) = record.revocation
                    && !std::mem::replace(&mut self.warned, true)
                {
                    let (within, reason) = (revocation.within, revocation.reason);
                    return StubEvent::Warned { within, reason };
                }
                let changed = self.changes.changed();
                let changed = if self.killed {
                    timeout(KILL_AGAIN, changed).await
                } else {
                    Ok(changed.await)
                };
                match changed {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) => return StubEvent::Ended(self.ended().await),
                    Err(_) => self.monitor.order(&self.id, StubOrder::Kill),
                }
            }
        })
    }

    fn recruit<'a>(
        &'a mut self,
        request: &'a NodeRequest,
        grace: Duration,
    ) -> LocalFuture<'a, Result<(), ProviderError>> {
        Box::pin(async move {
            let swapped = self.swap(request, grace).await;
            if swapped.is_err() {
                self.withdraw();
                self.kill();
            }
            swapped
        })
    }

    fn release(&mut self, grace: Duration) -> LocalFuture<'_, StubEnd> {
        Box::pin(self.end(grace))
    }

    fn kill(&mut self) {
        if self.id().is_some() {
            self.killed = true;
            self.monitor.order(&self.id, StubOrder::Kill);
        }
    }

    fn leave(mut self: Box<Self>) {
        self.left = true;
        self.monitor.leave(&self.id);
    }
}

impl Drop for BatchStub {
    fn drop(&mut self) {
        if self.left {
            return;
        }
        if self.id().is_some() {
            self.withdraw();
            self.monitor.discard(&self.id, self.next);
        } else {
            self.monitor.leave(&self.id);
            self.files.remove(self.next);
        }
    }
}
