//! The task of a process: it waits, computes while it is recruited, and ends when it is dismissed.
//!
//! It does not know who decides that.

use serde::{Deserialize, Serialize};

use super::part::{ComputeProcess, PointResult, StepResult};
use super::program::Program;
use crate::spmd::ProcessHandle;
use crate::spmd::local_process::Call;
use crate::spmd::message::{GroupId, Invitation};
use crate::spmd::process_pool::run_process;
use crate::work::{Context, Stop, Task};

/// The task of a process.
#[derive(Serialize, Deserialize)]
#[serde(bound = "")]
pub(super) struct MalleableProcess<P: Program> {
    pub(super) group: GroupId,
    pub(super) number: u32,
    pub(super) program: P,
}

impl<P: Program> Task for MalleableProcess<P> {
    type Output = ();
    const NAME: &'static str = P::NAME;
    const PROCESS: bool = true;

    fn run(self, cx: &Context) -> Result<(), Stop> {
        let MalleableProcess { group, number, program } = self;
        run_process(cx, group, number, |at| run_process_task(&program, at))
    }
}

fn run_process_task<P: Program>(program: &P, at: &ProcessHandle<'_>) -> Result<(), Stop> {
    at.report_presence();
    loop {
        // After the end of its configuration the process reports that it waits again.
        if at.has_ended() {
            at.with_process(|local| local.leave());
            at.report_presence();
        }
        let ready = || {
            let ready = at.with_process(|local| local.has_call() || local.has_ended());
            ready.unwrap_or(true)
        };
        at.help_until(&ready)?;
        match at.with_process(|local| local.take_call()) {
            Some(Some(Call::Recruit(recruit))) => compute(program, at, recruit)?,
            Some(None) => {}
            Some(Some(Call::Dismiss)) | None => return Ok(()),
        }
    }
}

/// Computes until the last step, its removal, or the end of the configuration.
fn compute<P: Program>(
    program: &P,
    at: &ProcessHandle<'_>,
    recruit: Invitation,
) -> Result<(), Stop> {
    let StepResult::Done(mut part) = ComputeProcess::enter(program, at.clone(), recruit)? else {
        return Ok(());
    };
    loop {
        match part.arrive()? {
            StepResult::Done(
                PointResult::Saved(_) | PointResult::Changed | PointResult::Decide,
            ) => continue,
            StepResult::Done(PointResult::Go) => {}
            StepResult::Done(PointResult::Free) | StepResult::Ended => return Ok(()),
        }
        if part.is_over() {
            return part.finish().map(drop);
        }
        if let StepResult::Ended = part.step()? {
            return Ok(());
        }
    }
}
