//! The task of a node: it starts the processes that the root orders, and reports on them.
//!
//! It does not know why the root orders that.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::child::PIECE_MAX;
use super::children::ChildSet;
use super::message::{AgentAnswer, AgentReport, LaunchOrder};
use super::spec::CommandSpec;
use crate::spmd::ProcessHandle;
use crate::spmd::message::GroupId;
use crate::spmd::process_pool::run_process;
use crate::wire;
use crate::work::{Context, Stop, Task};

/// The most bytes of output in one answer.
const ANSWER_MAX: usize = 4 * PIECE_MAX;
/// The most answers that the root has not acknowledged. Further output waits.
const ANSWERS_MAX: usize = 64;

/// The task of an agent.
#[derive(Serialize, Deserialize)]
pub(super) struct CommandAgent {
    pub(super) group: GroupId,
    pub(super) number: u32,
    pub(super) spec: CommandSpec,
}

impl Task for CommandAgent {
    type Output = ();
    const NAME: &'static str = "command.agent";
    const PROCESS: bool = true;

    fn run(self, cx: &Context) -> Result<(), Stop> {
        let CommandAgent { group, number, spec } = self;
        run_process(cx, group, number, |at| run_agent(&spec, at))
    }
}

/// The name of this host.
pub(crate) fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => "localhost".to_owned(),
        name => name.to_owned(),
    }
}

/// Sends the answers of an agent, numbered.
struct AnswerSender<'a, 'c> {
    at: &'a ProcessHandle<'c>,
    next: u64,
}

impl AnswerSender<'_, '_> {
    fn send(&mut self, reports: Vec<AgentReport>) -> Result<(), Stop> {
        if reports.is_empty() {
            return Ok(());
        }
        let answer = AgentAnswer { number: self.next, reports };
        self.next += 1;
        self.at.answer(wire::encode_payload(&answer)?)
    }

    /// Whether the root has acknowledged enough answers for another one.
    fn have_room(&self) -> bool {
        let count = self.at.with_process(|local| local.unacknowledged_answers_count());
        count.unwrap_or_default() < ANSWERS_MAX
    }
}

fn run_agent(spec: &CommandSpec, at: &ProcessHandle<'_>) -> Result<(), Stop> {
    at.report_ready();
    let mut children = ChildSet::new(spec, at.cx);
    let mut answers = AnswerSender { at, next: 0 };
    let served = serve(&mut children, &mut answers);
    // The root, the job or this node's membership has ended, or the root dismisses this agent.
    let rest = children.end_blocking();
    if served.is_ok() {
        answers.send(rest)?;
        return at.wait_for_acks(false);
    }
    served
}

fn serve(children: &mut ChildSet<'_>, answers: &mut AnswerSender<'_, '_>) -> Result<(), Stop> {
    let at = answers.at;
    answers.send(vec![AgentReport::Ready { host: host_name(), processors: at.cx.threads() }])?;
    loop {
        let state = at.with_process(|local| (local.take_orders(), local.is_dismissed()));
        let Some((orders, dismissed)) = state else { return Ok(()) };
        execute(orders, children, at)?;
        if dismissed {
            return Ok(());
        }
        children.tick(Instant::now());
        if answers.have_room() {
            let reports = children.take_reports(ANSWER_MAX);
            if !reports.is_empty() {
                answers.send(reports)?;
                continue;
            }
        }
        let ready = || {
            let ordered = at.with_process(|local| local.has_orders()).unwrap_or(true);
            ordered || children.has_news() && answers.have_room()
        };
        at.idle_until(children.due(), &ready)?;
    }
}

fn execute(
    orders: VecDeque<bytes::Bytes>,
    children: &mut ChildSet<'_>,
    at: &ProcessHandle<'_>,
) -> Result<(), Stop> {
    for body in orders {
        match wire::decode_payload(&body)? {
            LaunchOrder::Start { attempt, layout } => {
                children.start(attempt, &layout, &at.post.me().node, at.cx);
            }
            LaunchOrder::End { attempt } => children.end(attempt, Instant::now()),
        }
    }
    Ok(())
}
