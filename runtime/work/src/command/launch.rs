//! The root's state of a command: which nodes run which attempt, and what follows from ends and
//! losses.
//!
//! A state machine without I/O: events and the time in, actions out. It depends neither on messages
//! nor on processes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::environment::{NodeProcesses, ProcessLayout};
use super::message::ProcessEnd;
use super::spec::ProcessUnit;
use crate::id::{JobId, Peer};

/// The wait for nodes after which the job's output says so.
const WAIT_REPORT: Duration = Duration::from_secs(5);
/// The longest wait for nodes, at the start and after a loss. Then the job fails.
pub(super) const NODES_WAIT: Duration = Duration::from_secs(120);
/// The time after the grace in which an agent must report the ends of its processes. Then its node
/// counts as lost.
const END_WAIT: Duration = Duration::from_secs(10);

/// The longest time for which the node that the root has left counts as leaving, before its own
/// order to leave arrives. Then it is a member like others.
pub(super) const MOVE_WAIT: Duration = Duration::from_secs(10);

/// The number of attempts that ran as long as their nodes stay, after which the command fails.
const FULL_STAYS_MAX: u32 = 5;
/// Shorter attempts say nothing: nodes that started together leave shortly after one another.
const FULL_STAY_MIN: Duration = Duration::from_secs(60);

/// Attempts that ended because a node left.
///
/// A program that takes longer than its nodes stay would start again for ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct InterruptedAttempts {
    /// The time of the longest one in milliseconds.
    longest_ms: u64,
    /// The number of those that ran for at least half of that time.
    full_stays: u32,
}

impl InterruptedAttempts {
    /// Adds an attempt of this time. Returns whether the program takes longer than nodes stay.
    pub(super) fn add(&mut self, ran: Duration) -> bool {
        if ran < FULL_STAY_MIN {
            return false;
        }
        let ran_ms = u64::try_from(ran.as_millis()).unwrap_or(u64::MAX);
        if ran_ms / 2 > self.longest_ms {
            self.full_stays = 0; // the earlier ones were short
        }
        self.longest_ms = self.longest_ms.max(ran_ms);
        self.full_stays += u32::from(ran_ms >= self.longest_ms / 2);
        self.full_stays >= FULL_STAYS_MAX
    }

    /// The reason of a failure.
    fn describe(self) -> String {
        format!(
            "the program ran {} times for up to {} s until a node left: it takes longer than nodes \
             stay, such as the time limit of batch jobs",
            self.full_stays,
            self.longest_ms.div_ceil(1000)
        )
    }
}

/// Identifies a running agent: its process in the group, and that process's session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct AgentId {
    pub(super) process: u32,
    pub(super) session: u64,
}

/// The rules of a command.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaunchRules {
    pub(super) job: JobId,
    pub(super) unit: ProcessUnit,
    /// The number of starts after the first one, for losses of nodes.
    pub(super) restarts: u32,
    pub(super) grace: Duration,
    /// The number of processors without which it does not start.
    pub(super) processors_min: u32,
}

/// An event of a command.
#[derive(Clone, Debug)]
pub(super) enum LaunchEvent {
    /// The nodes of the job that stay, and the agents that run on them.
    Nodes { members: BTreeSet<Peer>, leaving: BTreeSet<Peer>, agents: BTreeMap<Peer, AgentId> },
    /// An agent is ready for orders.
    Ready { peer: Peer, host: String, processors: u32 },
    /// A process of an attempt has ended.
    Ended { peer: Peer, attempt: u32, rank: u32, end: ProcessEnd },
    /// Time has passed.
    Tick,
}

/// An action of the root.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum LaunchAction {
    /// Save the number of this attempt, then order these nodes to start their processes.
    Start { attempt: u32, layout: ProcessLayout, peers: Vec<Peer> },
    /// Order this node to end its processes of the attempt.
    End { attempt: u32, peer: Peer },
    /// Tell the user.
    Say(String),
    /// The command has ended: all processes exited with 0.
    Succeed { attempt: u32, layout: ProcessLayout },
    /// The command has failed, with this exit code if a process has caused that.
    Fail { exit: Option<u8>, reason: String },
}

/// What is known of a ready agent.
#[derive(Clone, Debug)]
struct ReadyAgent {
    host: String,
    processors: u32,
}

/// Why an attempt ends early.
#[derive(Clone, Debug)]
enum EndCause {
    /// A process failed.
    Process { exit: u8, reason: String },
    /// A node was lost, or leaves. A leaving node does not count as a restart.
    Node { reason: String, counts: bool },
}

/// The attempt that runs.
#[derive(Debug)]
struct Attempt {
    layout: ProcessLayout,
    /// The nodes with processes, with the agents that got the order.
    nodes: BTreeMap<Peer, AgentId>,
    /// The ends of processes, by rank.
    ends: BTreeMap<u32, ProcessEnd>,
    /// Why it ends early, and when its agents must have reported that.
    ending: Option<(EndCause, Instant)>,
    began: Instant,
}

/// The root's state of a command.
#[derive(Debug)]
pub(super) struct LaunchTable {
    rules: LaunchRules,
    members: BTreeSet<Peer>,
    agents: BTreeMap<Peer, AgentId>,
    ready: BTreeMap<Peer, ReadyAgent>,
    /// The number of attempts that have started, also by earlier roots.
    attempts: u32,
    /// The number of losses that count.
    losses: u32,
    interrupted: InterruptedAttempts,
    /// The node that the root has left, and the time until which it counts as leaving.
    moved_from: Option<(Peer, Instant)>,
    current: Option<Attempt>,
    waits_since: Instant,
    wait_reported: bool,
    is_over: bool,
}

impl LaunchTable {
    /// The state before the first attempt of this root. Earlier roots started `attempts`, of which
    /// the last one was lost.
    pub(super) fn new(
        rules: LaunchRules,
        (attempts, losses): (u32, u32),
        interrupted: InterruptedAttempts,
        now: Instant,
    ) -> Self {
        Self {
            rules,
            members: BTreeSet::new(),
            agents: BTreeMap::new(),
            ready: BTreeMap::new(),
            attempts,
            losses,
            interrupted,
            moved_from: None,
            current: None,
            waits_since: now,
            wait_reported: false,
            is_over: false,
        }
    }

    /// Excludes the node that the root has left, which leaves the job within moments.
    pub(super) fn with_move_from(self, peer: Option<Peer>, now: Instant) -> Self {
        Self { moved_from: peer.map(|peer| (peer, now + MOVE_WAIT)), ..self }
    }

    /// The number of attempts that have started, and of losses that count.
    pub(super) fn counts(&self) -> (u32, u32) {
        (self.attempts, self.losses)
    }

    /// Records the attempt that ends because the root moves. Fails if the program takes longer than
    /// nodes stay: with the reason.
    pub(super) fn interrupt(&mut self, now: Instant) -> Result<InterruptedAttempts, String> {
        let Some(attempt) = &self.current else { return Ok(self.interrupted) };
        if self.interrupted.add(now.saturating_duration_since(attempt.began)) {
            return Err(self.interrupted.describe());
        }
        Ok(self.interrupted)
    }

    /// The attempts that ended because a node left.
    pub(super) fn interrupted(&self) -> InterruptedAttempts {
        self.interrupted
    }

    /// Whether the next attempt waits for nodes.
    pub(super) fn is_waiting(&self) -> bool {
        self.current.is_none() && !self.is_over
    }

    /// Whether a node has processes that have not ended.
    pub(super) fn is_working(&self, peer: &Peer) -> bool {
        self.current
            .as_ref()
            .is_some_and(|attempt| attempt.nodes.contains_key(peer) && !attempt.has_ended_on(peer))
    }

    /// Handles an event.
    pub(super) fn handle(&mut self, event: LaunchEvent, now: Instant) -> Vec<LaunchAction> {
        let mut out = Vec::new();
        if self.is_over {
            return out;
        }
        match event {
            LaunchEvent::Nodes { members, leaving, agents } => {
                self.update_nodes(members, &leaving, agents, now, &mut out);
            }
            LaunchEvent::Ready { peer, host, processors } => {
                self.ready.insert(peer, ReadyAgent { host, processors: processors.max(1) });
            }
            LaunchEvent::Ended { peer, attempt, rank, end } => {
                self.process_ended(&peer, (attempt, rank), end, now, &mut out);
            }
            LaunchEvent::Tick => {}
        }
        self.end_attempt(now, &mut out);
        self.start_attempt(now, &mut out);
        out
    }

    fn update_nodes(
        &mut self,
        mut members: BTreeSet<Peer>,
        leaving: &BTreeSet<Peer>,
        agents: BTreeMap<Peer, AgentId>,
        now: Instant,
        out: &mut Vec<LaunchAction>,
    ) {
        if let Some((left, _)) = self.moved_from.as_ref().filter(|(_, until)| now < *until) {
            members.remove(left);
        }
        // An agent that started again must report again.
        let is_same = |peer: &Peer, known: &AgentId| agents.get(peer) == Some(known);
        self.ready.retain(|peer, _| self.agents.get(peer).is_none_or(|known| is_same(peer, known)));
        (self.members, self.agents) = (members, agents);
        let Some(attempt) = &self.current else { return };
        let is_same = |peer: &Peer, agent: &AgentId| self.agents.get(peer) == Some(agent);
        let lost = attempt.nodes.iter().find(|(peer, agent)| {
            !attempt.has_ended_on(peer) && (!self.members.contains(*peer) || !is_same(peer, agent))
        });
        let Some((peer, _)) = lost else { return };
        let leaves = leaving.contains(peer);
        let reason = if leaves {
            format!("node {} leaves", peer.node)
        } else {
            format!("node {} was lost", peer.node)
        };
        self.end_early(EndCause::Node { reason, counts: !leaves }, now, out);
    }

    fn process_ended(
        &mut self,
        peer: &Peer,
        (number, rank): (u32, u32),
        end: ProcessEnd,
        now: Instant,
        out: &mut Vec<LaunchAction>,
    ) {
        let is_current = number == self.attempts;
        let Some(attempt) = self.current.as_mut().filter(|_| is_current) else { return };
        let known = attempt.layout.node_of(rank).is_some_and(|one| one.node == peer.node);
        if !known || !attempt.nodes.contains_key(peer) || attempt.ends.contains_key(&rank) {
            return;
        }
        let failed = (end.code() != 0).then(|| {
            let reason = format!("rank {rank} on node {} {}", peer.node, end.describe());
            EndCause::Process { exit: end.code(), reason }
        });
        attempt.ends.insert(rank, end);
        if let Some(cause) = failed {
            self.end_early(cause, now, out);
        }
    }

    /// Ends the attempt before its processes have ended by themselves. The first cause counts.
    fn end_early(&mut self, cause: EndCause, now: Instant, out: &mut Vec<LaunchAction>) {
        let Some(attempt) = self.current.as_mut().filter(|attempt| attempt.ending.is_none()) else {
            return;
        };
        let peers = attempt.nodes.keys().filter(|peer| !attempt.has_ended_on(peer));
        out.extend(
            peers.map(|peer| LaunchAction::End { attempt: self.attempts, peer: peer.clone() }),
        );
        attempt.ending = Some((cause, now + self.rules.grace + END_WAIT));
    }

    /// Draws the consequences once no process of the attempt runs any more.
    fn end_attempt(&mut self, now: Instant, out: &mut Vec<LaunchAction>) {
        let Some(attempt) = &self.current else { return };
        let due = attempt.ending.as_ref().is_some_and(|(_, due)| now >= *due);
        let runs = |(peer, agent): (&Peer, &AgentId)| {
            !attempt.has_ended_on(peer) && self.agents.get(peer) == Some(agent)
        };
        if !due && attempt.nodes.iter().any(runs) {
            return;
        }
        let Some(Attempt { layout, ending, began, .. }) = self.current.take() else { return };
        (self.waits_since, self.wait_reported) = (now, false);
        let attempt = self.attempts;
        match ending.map(|(cause, _)| cause) {
            None => {
                self.is_over = true;
                out.push(LaunchAction::Succeed { attempt, layout });
            }
            Some(EndCause::Process { exit, reason }) => {
                self.is_over = true;
                out.push(LaunchAction::Fail { exit: Some(exit), reason });
            }
            Some(EndCause::Node { reason, counts }) => {
                self.losses += u32::from(counts);
                let ran = now.saturating_duration_since(began);
                if !counts && self.interrupted.add(ran) {
                    self.is_over = true;
                    let reason = format!("{reason}; {}", self.interrupted.describe());
                    out.push(LaunchAction::Fail { exit: None, reason });
                } else if self.losses > self.rules.restarts {
                    self.is_over = true;
                    let times = self.attempts;
                    let s = if times == 1 { "" } else { "s" };
                    out.push(LaunchAction::Fail {
                        exit: None,
                        reason: format!(
                            "{reason} while the program ran there; it was started {times} time{s}, \
                             and --restarts allows no more"
                        ),
                    });
                } else {
                    out.push(LaunchAction::Say(format!(
                        "{reason}: the program starts again on all nodes"
                    )));
                }
            }
        }
    }

    /// Starts an attempt once all nodes are ready.
    fn start_attempt(&mut self, now: Instant, out: &mut Vec<LaunchAction>) {
        if self.is_over || self.current.is_some() {
            return;
        }
        let is_ready =
            |peer: &&Peer| self.agents.contains_key(*peer) && self.ready.contains_key(*peer);
        let processors = |peer: &Peer| self.ready.get(peer).map_or(0, |agent| agent.processors);
        let ready: u32 = self.members.iter().filter(is_ready).map(processors).sum();
        let needed = self.rules.processors_min.max(1);
        if ready < needed || !self.members.iter().all(|peer| is_ready(&peer)) {
            let waited = now.saturating_duration_since(self.waits_since);
            let missing = || {
                let names = self.members.iter().filter(|peer| !is_ready(peer));
                let names: Vec<&str> = names.map(|peer| peer.node.as_str()).collect();
                if names.is_empty() { String::new() } else { format!(" ({})", names.join(", ")) }
            };
            if waited >= NODES_WAIT {
                let reason = format!(
                    "{ready} of {needed} processors were ready after {} s{}: see the logs of the \
                     nodes",
                    NODES_WAIT.as_secs(),
                    missing()
                );
                self.is_over = true;
                out.push(LaunchAction::Fail { exit: None, reason });
            } else if waited >= WAIT_REPORT && !self.wait_reported {
                self.wait_reported = true;
                let missing = missing();
                out.push(LaunchAction::Say(format!(
                    "{ready} of {needed} processors are ready{missing}: the program starts on all \
                     of them together"
                )));
            }
            return;
        }
        let mut peers: Vec<&Peer> = self.members.iter().collect();
        peers.sort_by(|a, b| (&a.cluster, &a.node).cmp(&(&b.cluster, &b.node)));
        let nodes = peers.iter().filter_map(|peer| {
            let ReadyAgent { host, processors } = self.ready.get(*peer)?;
            Some(NodeProcesses {
                node: peer.node.clone(),
                cluster: peer.cluster.clone(),
                host: host.clone(),
                processors: *processors,
                first_rank: 0,
                processes: 0,
            })
        });
        let layout = ProcessLayout::new(self.rules.job, self.rules.unit, nodes.collect());
        let used = |peer: &&&Peer| layout.of(&peer.node).is_some_and(|one| one.processes > 0);
        let peers: Vec<Peer> = peers.iter().filter(used).map(|peer| (*peer).clone()).collect();
        let nodes = peers.iter().filter_map(|peer| Some((peer.clone(), *self.agents.get(peer)?)));
        let nodes = nodes.collect();
        self.attempts += 1;
        let (ends, ending) = (BTreeMap::new(), None);
        let attempt = Attempt { layout: layout.clone(), nodes, ends, ending, began: now };
        self.current = Some(attempt);
        out.push(LaunchAction::Start { attempt: self.attempts, layout, peers });
    }
}

impl Attempt {
    /// Whether all processes of a node have ended.
    fn has_ended_on(&self, peer: &Peer) -> bool {
        self.layout.of(&peer.node).is_none_or(|one| {
            (one.first_rank..one.first_rank + one.processes)
                .all(|rank| self.ends.contains_key(&rank))
        })
    }
}
