//! Waits of a compute thread for something that is not a task: a message for the process that it
//! runs.
//!
//! Unlike a wait for a child, the thread runs no other tasks meanwhile: these would lie on its
//! stack and delay the message. A process without a part in the computation runs pieces of parallel
//! loops, which are brief. This module does not know what is awaited.

use std::time::Duration;

use springtide_forkjoin::layer::{ComputeThread, SLEEP_MAX, ThreadCore};
use tokio::time::Instant;

use super::shared::{ROUND, TaskFrame, TaskThread};
use crate::meter::ThreadState;
use crate::work::outcome::Stop;

impl TaskThread {
    /// Waits until something is `ready` or `until` is reached; returns whether it is ready. The
    /// time counts as `state`. The party that makes it ready wakes this thread afterwards.
    ///
    /// # Errors
    /// The task in this frame was halted.
    pub(crate) fn wait_for(
        &self,
        frame: &TaskFrame,
        state: ThreadState,
        until: Option<Instant>,
        ready: &dyn Fn() -> bool,
    ) -> Result<bool, Stop> {
        self.wait_with(frame, state, until, ready, |sleep| self.core().sleep(sleep, ready))
    }

    /// As [`TaskThread::wait_for`], but the thread counts as idle, and runs pieces of the parallel
    /// loops of other threads meanwhile.
    pub(crate) fn help_for(
        &self,
        frame: &TaskFrame,
        until: Option<Instant>,
        ready: &dyn Fn() -> bool,
    ) -> Result<bool, Stop> {
        self.wait_with(frame, ThreadState::Idle, until, ready, |sleep| {
            ThreadCore::help_or_sleep(self, frame, sleep, ready);
            self.label(ThreadState::Idle);
        })
    }

    fn wait_with(
        &self,
        frame: &TaskFrame,
        state: ThreadState,
        until: Option<Instant>,
        ready: &dyn Fn() -> bool,
        pause: impl Fn(Duration),
    ) -> Result<bool, Stop> {
        self.check(frame)?;
        self.shared().rest(self.index());
        if ready() {
            return Ok(true);
        }
        let _not_root = self.leave_root();
        self.label(state);
        let outcome = loop {
            if let Err(stop) = self.check(frame) {
                break Err(stop);
            }
            if ready() {
                break Ok(true);
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                break Ok(false);
            }
            self.take_tick(Some(frame));
            if self.shared().signals() & ROUND != 0 {
                self.join_round(false);
            }
            let sleep = left.map_or(SLEEP_MAX, |left| left.min(SLEEP_MAX));
            pause(sleep);
        };
        self.label(ThreadState::Working);
        outcome
    }

    /// As [`TaskThread::wait_for`], for the master of the job's workers. Its waiting time is not an
    /// overhead, since its thread is not there to compute.
    pub(crate) fn serve_for(
        &self,
        frame: &TaskFrame,
        until: Option<Instant>,
        ready: &dyn Fn() -> bool,
    ) -> Result<bool, Stop> {
        let account = &self.data().account;
        account.serve(true, Instant::now());
        let outcome = self.wait_for(frame, ThreadState::WaitLocal, until, ready);
        account.serve(false, Instant::now());
        outcome
    }
}
