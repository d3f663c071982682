//! The root of a command: it manages the agents, and runs the processes of its own node.
//!
//! It sees the members of the job. It does not know the negotiation of nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::time::Instant;

use super::agent::{CommandAgent, host_name};
use super::child::PIECE_MAX;
use super::children::ChildSet;
use super::environment::ProcessLayout;
use super::launch::{
    AgentId, InterruptedAttempts, LaunchAction, LaunchEvent, LaunchRules, LaunchTable,
};
use super::message::{AgentAnswer, AgentReport, LaunchOrder};
use super::spec::CommandSpec;
use crate::id::Peer;
use crate::spmd::ProcessHandle;
use crate::spmd::group::{ProcessGroup, ReceivedAnswer};
use crate::spmd::process_pool::{DisbandOnDrop, ProcessPool, group_ended};
use crate::wire;
use crate::work::{Checkpoint, Context, Outcome, ProgressReport, Stop};

/// The interval at which the root looks at the nodes without a notification.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The same interval before the start.
const START_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// The most bytes of output that a job keeps. Later output is dropped, with a notice.
const OUTPUT_MAX: u64 = 256 << 20;

/// What a later root has to know.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct SavedAttempts {
    /// The number of attempts that have started.
    attempts: u32,
    /// The number of losses that count.
    losses: u32,
    /// Whether the root moves as ordered, and is not lost.
    moves: bool,
    /// The attempts that ended because a node left.
    #[serde(default)]
    interrupted: InterruptedAttempts,
    /// The node that the root leaves, if it moves.
    #[serde(default)]
    from: Option<Peer>,
}

/// Runs a command to its end, in a job's [`run`](crate::work::Job::run).
///
/// # Errors
/// A process failed: the failure has its exit code. Nodes were lost too often or did not come. Or a
/// halt.
pub fn run(spec: &CommandSpec, cx: &Context) -> Result<Outcome, Stop> {
    start(spec, SavedAttempts { moves: true, ..SavedAttempts::default() }, cx)
}

/// Runs a command again after the loss or the move of its root, in a job's
/// [`resume`](crate::work::Job::resume).
///
/// # Errors
/// As for [`run`], or the state belongs to another program.
pub fn resume(spec: &CommandSpec, saved: Checkpoint, cx: &Context) -> Result<Outcome, Stop> {
    start(spec, saved.get()?, cx)
}

fn start(spec: &CommandSpec, saved: SavedAttempts, cx: &Context) -> Result<Outcome, Stop> {
    let Some(post) = cx.post() else {
        return Err(Stop::fail("this pool runs no processes: run the job on a grid, or alone"));
    };
    if !cx.is_real() {
        return Err(Stop::fail("virtual time runs no processes of the operating system"));
    }
    // The root of the last attempt was lost with its node.
    let losses = saved.losses + u32::from(!saved.moves);
    if losses > spec.restarts {
        return Err(Stop::fail(format_args!(
            "the node of the job's root was lost while the program ran; it was started {} times, \
             and --restarts allows no more",
            saved.attempts
        )));
    }
    let group = post.create_group(cx.waker());
    let _disband = DisbandOnDrop(post.clone(), group.clone());
    let rules = LaunchRules {
        job: post.job(),
        unit: spec.unit,
        restarts: spec.restarts,
        grace: spec.grace,
        processors_min: cx.processors_min(),
    };
    let now = Instant::now();
    let mut root = CommandRoot {
        spec,
        at: ProcessHandle { cx, post, group, process: 0 },
        pool: ProcessPool::new(),
        table: LaunchTable::new(rules, (saved.attempts, losses), saved.interrupted, now)
            .with_move_from(saved.from, now),
        children: ChildSet::new(spec, cx),
        agents: BTreeMap::new(),
        early: BTreeMap::new(),
        checked_at: None,
        views: 0,
        processes: 0,
        output_bytes: 0,
        ended: None,
    };
    let outcome = root.supervise();
    // After a halt, the processes of this node get the grace too.
    let rest = root.children.end_blocking();
    root.relay_output(rest);
    if outcome.is_ok() {
        root.pool.collect_all(&root.at);
    }
    outcome
}

/// An agent, and its answers in order.
struct KnownAgent {
    peer: Peer,
    session: u64,
    /// The number of the next answer.
    next: u64,
    /// Answers that overtook an earlier one.
    ahead: BTreeMap<u64, Vec<AgentReport>>,
}

struct CommandRoot<'c> {
    spec: &'c CommandSpec,
    at: ProcessHandle<'c>,
    pool: ProcessPool<'c, CommandAgent>,
    table: LaunchTable,
    children: ChildSet<'c>,
    /// The agents of other nodes, by process number.
    agents: BTreeMap<u32, KnownAgent>,
    /// Answers of agents that the root has not seen at its looks at the nodes.
    early: BTreeMap<(u32, Peer), BTreeMap<u64, Vec<AgentReport>>>,
    /// The time of the last look at the nodes, and the number of views by then.
    checked_at: Option<Instant>,
    views: u64,
    /// The number of processes of the last attempt.
    processes: u32,
    /// The bytes of output so far.
    output_bytes: u64,
    ended: Option<Result<Outcome, Stop>>,
}

impl CommandRoot<'_> {
    fn supervise(&mut self) -> Result<Outcome, Stop> {
        let own = LaunchEvent::Ready {
            peer: self.at.post.me().clone(),
            host: host_name(),
            processors: self.at.cx.threads(),
        };
        self.handle(own)?;
        loop {
            self.update_nodes()?;
            self.receive_answers()?;
            self.children.tick(Instant::now());
            let reports = self.children.take_reports(4 * PIECE_MAX);
            let me = self.at.post.me().clone();
            for report in reports {
                self.take_report(&me, report)?;
            }
            self.handle(LaunchEvent::Tick)?;
            if let Some(ended) = self.ended.take() {
                return ended;
            }
            if self.at.cx.checkpoint_wanted() {
                return self.prepare_move();
            }
            let now = Instant::now();
            let look = if self.table.is_waiting() { START_CHECK_INTERVAL } else { CHECK_INTERVAL };
            let until = self.children.due().unwrap_or(now + look).min(now + look);
            let (post, group) = (&self.at.post, &self.at.group);
            let news = || {
                self.children.has_news()
                    || post.views() != self.views
                    || post.read_group(group, ProcessGroup::has_news).unwrap_or(true)
            };
            self.at.cx.serve_for(Some(until.max(now)), &news)?;
        }
    }

    fn handle(&mut self, event: LaunchEvent) -> Result<(), Stop> {
        for action in self.table.handle(event, Instant::now()) {
            match action {
                LaunchAction::Start { attempt, layout, peers } => {
                    self.start_attempt(attempt, layout, peers)?
                }
                LaunchAction::End { attempt, peer } => {
                    if peer == *self.at.post.me() {
                        self.children.end(attempt, Instant::now());
                    } else {
                        self.order(&peer, &LaunchOrder::End { attempt })?;
                    }
                }
                LaunchAction::Say(text) => self.at.cx.report_text(text),
                LaunchAction::Succeed { attempt, layout } => {
                    self.ended = Some(Ok(self.outcome(attempt, &layout)));
                }
                LaunchAction::Fail { exit, reason } => {
                    let text = format!("{}: {reason}", self.spec.program);
                    self.ended = Some(Err(Stop::fail_with_exit(text, exit)));
                }
            }
        }
        Ok(())
    }

    fn outcome(&self, attempt: u32, layout: &ProcessLayout) -> Outcome {
        let result = json!({
            "program": self.spec.program,
            "exit": 0,
            "processes": layout.processes(),
            "nodes": layout.nodes.len(),
            "tries": attempt,
            "output_bytes": self.output_bytes,
        });
        Outcome { checksum: 0, result }
    }

    fn start_attempt(
        &mut self,
        attempt: u32,
        layout: ProcessLayout,
        peers: Vec<Peer>,
    ) -> Result<(), Stop> {
        // A later root must not start the program once too often.
        let (attempts, losses) = self.table.counts();
        let interrupted = self.table.interrupted();
        let saved = SavedAttempts { attempts, losses, moves: false, interrupted, from: None };
        self.at.cx.checkpoint_beside_processes(&saved)?;
        let count = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
        let nodes = count(layout.nodes.len(), "node");
        let processes = layout.processes();
        self.processes = processes;
        let es = if processes == 1 { "process of" } else { "processes of" };
        let again = if attempt > 1 { format!(" (try {attempt})") } else { String::new() };
        self.at.cx.report_text(format!("{processes} {es} {} on {nodes}{again}", self.spec.program));
        let me = self.at.post.me().clone();
        for peer in peers {
            if peer == me {
                self.children.start(attempt, &layout, &me.node, self.at.cx);
            } else {
                let order = LaunchOrder::Start { attempt, layout: layout.clone() };
                self.order(&peer, &order)?;
            }
        }
        Ok(())
    }

    fn order(&self, peer: &Peer, order: &LaunchOrder) -> Result<(), Stop> {
        let agent = self.agents.iter().find(|(_, agent)| agent.peer == *peer);
        // The next look at the nodes reports the loss of an agent that is gone.
        let Some((process, _)) = agent else { return Ok(()) };
        let body = wire::encode_payload(order)?;
        self.at.wait_for_room()?;
        let is_working = self.table.is_working(peer);
        self.group(|group| {
            group.set_working(*process, is_working);
            ((), group.order(*process, body))
        })
    }

    fn group<R>(
        &self,
        action: impl FnOnce(&mut ProcessGroup) -> (R, Vec<crate::spmd::group::OutgoingMessage>),
    ) -> Result<R, Stop> {
        self.at.post.group(&self.at.group, action).ok_or_else(group_ended)
    }

    /// Brings agents and nodes up to date, if anything has changed.
    fn update_nodes(&mut self) -> Result<(), Stop> {
        let now = Instant::now();
        let views = self.at.post.views();
        let news = self.group(|group| (group.take_news(), Vec::new()))?;
        let look = if self.table.is_waiting() { START_CHECK_INTERVAL } else { CHECK_INTERVAL };
        let due = self.checked_at.is_none_or(|checked_at| now >= checked_at + look);
        if !news && !due && views == self.views {
            return Ok(());
        }
        (self.checked_at, self.views) = (Some(now), views);
        let spec = self.spec;
        let call = |group, number| CommandAgent { group, number, spec: spec.clone() };
        self.pool.reconcile(&self.at, call)?;
        let me = self.at.post.me().clone();
        let takers = self.group(|group| {
            let takers =
                group.takers().map(|(process, peer, session)| (process, peer.clone(), session));
            (takers.collect::<Vec<_>>(), Vec::new())
        })?;
        // One agent for each node: the first that reported. The root is that of its own node.
        self.agents.retain(|process, known| {
            takers.iter().any(|(at, peer, session)| {
                (at, peer, session) == (process, &known.peer, &known.session)
            })
        });
        let mut added = Vec::new();
        for (process, peer, session) in takers {
            let is_known = self.agents.values().any(|known| known.peer == peer);
            if peer != me && !is_known {
                let ahead = self.early.remove(&(process, peer.clone())).unwrap_or_default();
                let known = KnownAgent { peer, session, next: 0, ahead };
                self.agents.insert(process, known);
                added.push(process);
            }
        }
        let mut agents: BTreeMap<Peer, AgentId> = BTreeMap::new();
        agents.insert(me, AgentId { process: 0, session: 0 });
        for (process, known) in &self.agents {
            let agent = AgentId { process: *process, session: known.session };
            agents.insert(known.peer.clone(), agent);
        }
        let (mut members, mut leaving) = (BTreeSet::new(), BTreeSet::new());
        for member in self.at.post.members() {
            let set = if self.pool.stays(&member) { &mut members } else { &mut leaving };
            set.insert(member.peer);
        }
        self.handle(LaunchEvent::Nodes { members, leaving, agents })?;
        added.into_iter().try_for_each(|process| self.take_ordered(process))
    }

    fn receive_answers(&mut self) -> Result<(), Stop> {
        let received = self.group(|group| (group.take_answers(), Vec::new()))?;
        for ReceivedAnswer { process, peer, body, .. } in received {
            let AgentAnswer { number, reports } = match wire::decode_payload(&body) {
                Ok(answer) => answer,
                Err(error) => {
                    tracing::warn!(%peer, %error, "an agent's answer does not decode");
                    continue;
                }
            };
            match self.agents.get_mut(&process).filter(|known| known.peer == peer) {
                Some(known) if number < known.next => {}
                Some(known) => drop(known.ahead.insert(number, reports)),
                // The message that it is ready may arrive later. Other agents of a node only
                // report that they are ready.
                None => {
                    drop(self.early.entry((process, peer)).or_default().insert(number, reports))
                }
            }
            self.take_ordered(process)?;
        }
        Ok(())
    }

    /// Takes the reports of an agent that are next in order.
    fn take_ordered(&mut self, process: u32) -> Result<(), Stop> {
        let Some(known) = self.agents.get_mut(&process) else { return Ok(()) };
        let (peer, mut ordered) = (known.peer.clone(), Vec::new());
        while let Some(reports) = known.ahead.remove(&known.next) {
            known.next += 1;
            ordered.extend(reports);
        }
        if ordered.is_empty() {
            return Ok(());
        }
        for report in ordered {
            self.take_report(&peer, report)?;
        }
        let is_working = self.table.is_working(&peer);
        self.group(|group| (group.set_working(process, is_working), Vec::new()))
    }

    fn take_report(&mut self, peer: &Peer, report: AgentReport) -> Result<(), Stop> {
        match report {
            AgentReport::Ready { host, processors } => {
                self.handle(LaunchEvent::Ready { peer: peer.clone(), host, processors })
            }
            AgentReport::Output { .. } => {
                self.relay_output(vec![report]);
                Ok(())
            }
            AgentReport::Ended { attempt, rank, end } => {
                self.handle(LaunchEvent::Ended { peer: peer.clone(), attempt, rank, end })
            }
        }
    }

    /// Passes output on to the job's client, up to the limit.
    fn relay_output(&mut self, reports: Vec<AgentReport>) {
        for report in reports {
            let AgentReport::Output { attempt, rank, stream, bytes } = report else { continue };
            if self.output_bytes > OUTPUT_MAX {
                continue;
            }
            self.output_bytes += bytes.len() as u64;
            if self.output_bytes > OUTPUT_MAX {
                self.at.cx.report_text(format!(
                    "the program has written more than {OUTPUT_MAX} bytes: later output is \
                     dropped; write large output to files"
                ));
                continue;
            }
            let processes = self.processes;
            let piece = ProgressReport::Output { rank, attempt, processes, stream, bytes };
            self.at.cx.report_output(piece);
        }
    }

    /// Ends all processes, for the root moves to another node. The program starts again there.
    fn prepare_move(&mut self) -> Result<Outcome, Stop> {
        self.at.cx.report_text("the node of the job's root leaves: the program starts again");
        let rest = self.children.end_blocking();
        self.relay_output(rest);
        self.pool.collect_all(&self.at);
        let interrupted = self.table.interrupt(Instant::now());
        let interrupted = interrupted.map_err(|reason| {
            Stop::fail(format_args!(
                "{}: the node of the job's root leaves; {reason}",
                self.spec.program
            ))
        })?;
        let (attempts, losses) = self.table.counts();
        let from = Some(self.at.post.me().clone());
        let saved = SavedAttempts { attempts, losses, moves: true, interrupted, from };
        self.at.cx.checkpoint_beside_processes(&saved)?;
        Err(Stop::fail("the job's root did not move, and its program has ended"))
    }
}
