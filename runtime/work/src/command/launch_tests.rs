//! Histories of the root's state machine: starts, ends, losses, and random orders of them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use super::launch::{
    AgentId, InterruptedAttempts, LaunchAction, LaunchEvent, LaunchRules, LaunchTable, MOVE_WAIT,
    NODES_WAIT,
};
use super::message::ProcessEnd;
use super::spec::ProcessUnit;
use crate::id::{Incarnation, JobId, Peer};
use crate::random::SplitMix;

const GRACE: Duration = Duration::from_secs(5);

fn peer(number: u32) -> Peer {
    let node = format!("a-{number}");
    Peer { node: node.as_str().into(), incarnation: Incarnation(1), cluster: "a".into() }
}

/// The root of a job on nodes 0, 1, ... and their agents.
struct LaunchTest {
    table: LaunchTable,
    now: Instant,
    members: BTreeSet<Peer>,
    leaving: BTreeSet<Peer>,
    session: u64,
}

impl LaunchTest {
    fn new(nodes_min: u32, restarts: u32, unit: ProcessUnit) -> Self {
        // Each node has two processors.
        let processors_min = 2 * nodes_min;
        let rules = LaunchRules { job: JobId(1), unit, restarts, grace: GRACE, processors_min };
        let now = Instant::now();
        let table = LaunchTable::new(rules, (0, 0), InterruptedAttempts::default(), now);
        Self { table, now, members: BTreeSet::new(), leaving: BTreeSet::new(), session: 1 }
    }

    fn handle(&mut self, event: LaunchEvent) -> Vec<LaunchAction> {
        self.table.handle(event, self.now)
    }

    /// Nodes with these numbers are members, and their agents run.
    fn nodes(&mut self, numbers: &[u32]) -> Vec<LaunchAction> {
        self.members = numbers.iter().map(|number| peer(*number)).collect();
        let session = self.session;
        let agents =
            numbers.iter().map(|number| (peer(*number), AgentId { process: *number, session }));
        let event = LaunchEvent::Nodes {
            members: self.members.clone(),
            leaving: self.leaving.clone(),
            agents: agents.collect::<BTreeMap<_, _>>(),
        };
        self.handle(event)
    }

    fn ready(&mut self, number: u32) -> Vec<LaunchAction> {
        let host = format!("host-{number}");
        self.handle(LaunchEvent::Ready { peer: peer(number), host, processors: 2 })
    }

    fn ended(&mut self, number: u32, attempt: u32, rank: u32, code: u8) -> Vec<LaunchAction> {
        let end = ProcessEnd::Exited(code);
        self.handle(LaunchEvent::Ended { peer: peer(number), attempt, rank, end })
    }

    fn pass(&mut self, time: Duration) -> Vec<LaunchAction> {
        self.now += time;
        self.handle(LaunchEvent::Tick)
    }

    /// A job on three nodes whose processes run.
    fn started(restarts: u32) -> Self {
        let mut test = Self::new(3, restarts, ProcessUnit::Node);
        assert_eq!(test.ready(0), []);
        assert_eq!(test.nodes(&[0, 1, 2]), []);
        assert_eq!(test.ready(1), []);
        assert_eq!(started(&test.ready(2)), Some((1, 3)));
        test
    }
}

/// The attempt that is started, and its number of processes.
fn started(actions: &[LaunchAction]) -> Option<(u32, u32)> {
    actions.iter().find_map(|action| match action {
        LaunchAction::Start { attempt, layout, .. } => Some((*attempt, layout.processes())),
        _ => None,
    })
}

/// The nodes that are ordered to end processes.
fn ending(actions: &[LaunchAction]) -> Vec<Peer> {
    let ends = actions.iter().filter_map(|action| match action {
        LaunchAction::End { peer, .. } => Some(peer.clone()),
        _ => None,
    });
    ends.collect()
}

fn failure(actions: &[LaunchAction]) -> Option<(Option<u8>, &str)> {
    actions.iter().find_map(|action| match action {
        LaunchAction::Fail { exit, reason } => Some((*exit, &**reason)),
        _ => None,
    })
}

#[test]
fn a_command_succeeds_when_all_processes_have() {
    let mut test = LaunchTest::started(0);
    assert_eq!(test.ended(0, 1, 0, 0), []);
    assert_eq!(test.ended(2, 1, 2, 0), []);
    assert_eq!(test.ended(2, 1, 2, 9), [], "an end counts once");
    assert_eq!(test.ended(2, 1, 1, 9), [], "a node reports only its own ranks");
    let actions = test.ended(1, 1, 1, 0);
    assert!(matches!(&actions[..], [LaunchAction::Succeed { attempt: 1, .. }]), "{actions:?}");
    assert_eq!(test.nodes(&[]), []);
}

#[test]
fn the_first_failure_ends_the_others_and_counts() {
    let mut test = LaunchTest::started(2);
    let actions = test.ended(1, 1, 1, 7);
    assert_eq!(ending(&actions), [peer(0), peer(2)]);
    assert_eq!(test.ended(0, 1, 0, 143), []);
    let actions = test.ended(2, 1, 2, 143);
    let reason = "rank 1 on node a-1 exited with code 7";
    assert_eq!(failure(&actions), Some((Some(7), reason)));
}

#[test]
fn an_agent_that_does_not_report_ends_counts_as_lost_after_the_grace() {
    let mut test = LaunchTest::started(2);
    test.ended(1, 1, 1, 7);
    assert_eq!(test.pass(GRACE + Duration::from_secs(9)), []);
    assert!(failure(&test.pass(Duration::from_secs(1))).is_some());
}

#[test]
fn a_lost_node_restarts_all_processes_on_the_full_number_of_nodes() {
    let mut test = LaunchTest::started(1);
    // The order to the third node may not arrive, and is not needed.
    assert_eq!(ending(&test.nodes(&[0, 1])).len(), 3);
    test.ended(0, 1, 0, 143);
    let actions = test.ended(1, 1, 1, 0);
    assert!(matches!(&actions[..], [LaunchAction::Say(_)]), "{actions:?}");
    // Another node replaces the lost one.
    assert_eq!(test.nodes(&[0, 1, 3]), []);
    assert_eq!(started(&test.ready(3)), Some((2, 3)));
    // Ends of the first attempt are late.
    assert_eq!(test.ended(1, 1, 1, 9), []);
    test.nodes(&[0, 1]);
    test.ended(0, 2, 0, 0);
    let actions = test.ended(1, 2, 1, 0);
    let (exit, reason) = failure(&actions).unwrap();
    assert!(exit.is_none() && reason.contains("started 2 times"), "{reason}");
}

#[test]
fn a_leaving_node_does_not_count_as_a_restart() {
    let mut test = LaunchTest::started(0);
    test.leaving = [peer(2)].into();
    // The order to the third node may not arrive, and is not needed.
    assert_eq!(ending(&test.nodes(&[0, 1])).len(), 3);
    test.ended(0, 1, 0, 0);
    assert_eq!(failure(&test.ended(1, 1, 1, 0)), None);
    test.nodes(&[0, 1, 3]);
    assert_eq!(started(&test.ready(3)), Some((2, 3)));
}

/// The root moves before its old node is ordered to leave. No attempt may start on both.
#[test]
fn an_attempt_after_a_move_excludes_the_node_that_the_root_has_left() {
    let moved = |nodes_min| {
        let mut test = LaunchTest::new(nodes_min, 0, ProcessUnit::Node);
        test.table = test.table.with_move_from(Some(peer(0)), test.now);
        test.ready(1);
        test.ready(0);
        test
    };
    let mut test = moved(1);
    let actions = test.nodes(&[0, 1]);
    assert_eq!(started(&actions), Some((1, 1)));
    test.leaving = [peer(0)].into();
    assert_eq!(test.nodes(&[1]), [], "it does not run there");
    let actions = test.ended(1, 1, 0, 0);
    assert!(matches!(&actions[..], [LaunchAction::Succeed { .. }]), "{actions:?}");

    // A node that stays nevertheless is a member again.
    let mut test = moved(2);
    assert_eq!(test.nodes(&[0, 1]), []);
    test.now += MOVE_WAIT;
    assert_eq!(started(&test.nodes(&[0, 1])), Some((1, 2)));
}

/// A program that takes longer than its nodes stay fails with the reason.
#[test]
fn a_program_that_outlasts_its_nodes_fails_in_the_end() {
    const STAY: Duration = Duration::from_secs(3600);
    let mut record = InterruptedAttempts::default();
    // Old nodes leave soon, and fresh ones stay.
    for seconds in [600, 70, 70, 70, 70, 70, 20, 20] {
        assert!(!record.add(Duration::from_secs(seconds)));
    }
    for _ in 1..5 {
        assert!(!record.add(STAY));
        assert!(!record.add(Duration::from_secs(70)));
    }
    assert!(record.add(STAY));

    let mut test = LaunchTest::started(0);
    let mut replaced = 2;
    let reason = loop {
        test.pass(STAY);
        test.leaving = [peer(replaced)].into();
        let attempt = replaced - 1;
        test.nodes(&[0, 1]);
        test.ended(0, attempt, 0, 0);
        let actions = test.ended(1, attempt, 1, 0);
        if let Some((exit, reason)) = failure(&actions) {
            assert_eq!(exit, None);
            break reason.to_owned();
        }
        replaced += 1;
        test.nodes(&[0, 1, replaced]);
        assert_eq!(started(&test.ready(replaced)), Some((replaced - 1, 3)));
    };
    assert_eq!(replaced, 6);
    assert!(reason.contains("ran 5 times for up to 3600 s"), "{reason}");
}

#[test]
fn an_agent_that_starts_again_has_lost_its_processes() {
    let mut test = LaunchTest::started(1);
    test.session = 2;
    let actions = test.nodes(&[0, 1, 2]);
    assert_eq!(ending(&actions).len(), 3);
    // No agent of the attempt runs, so all processes have ended.
    assert!(actions.iter().any(|action| matches!(action, LaunchAction::Say(_))), "{actions:?}");
    for number in 0..2 {
        assert_eq!(test.ready(number), []);
    }
    assert_eq!(started(&test.ready(2)), Some((2, 3)));
}

#[test]
fn missing_nodes_are_reported_and_fail_the_job_in_the_end() {
    let mut test = LaunchTest::new(3, 2, ProcessUnit::Processor);
    test.ready(0);
    test.nodes(&[0, 1]);
    let actions = test.pass(Duration::from_secs(5));
    let [LaunchAction::Say(text)] = &actions[..] else { panic!("{actions:?}") };
    assert!(text.starts_with("2 of 6 processors are ready (a-1)"), "{text}");
    assert_eq!(test.pass(Duration::from_secs(5)), [], "once");
    let actions = test.pass(NODES_WAIT);
    let (exit, reason) = failure(&actions).unwrap();
    assert!(exit.is_none() && reason.contains("2 of 6 processors"), "{reason}");
}

#[test]
fn one_process_a_job_runs_on_the_first_node_and_ignores_other_losses() {
    let mut test = LaunchTest::new(1, 0, ProcessUnit::Job);
    test.ready(0);
    assert_eq!(test.nodes(&[0, 1]), []);
    assert_eq!(started(&test.ready(1)), Some((1, 1)));
    assert_eq!(test.nodes(&[0]), []);
    let actions = test.ended(0, 1, 0, 0);
    assert!(matches!(&actions[..], [LaunchAction::Succeed { .. }]), "{actions:?}");
}

/// In every history, no attempt starts while processes of another one may run, no more attempts
/// start than allowed, and the command ends once.
#[test]
fn random_histories_end_once_and_keep_attempts_apart() {
    for seed in 0..300 {
        let mut random = SplitMix::with_text(seed, "command");
        let restarts = random.below(3) as u32;
        let mut test = LaunchTest::new(2, restarts, ProcessUnit::Processor);
        let (mut attempts, mut ends, mut losses) = (0, 0, 0);
        // The processes that run, by attempt and rank, with their nodes.
        let mut running: BTreeMap<(u32, u32), u32> = BTreeMap::new();
        for step in 0..400 {
            let about = format!("seed {seed}, step {step}");
            let actions = match random.below(8) {
                0 => {
                    let all: Vec<u32> = (0..3).filter(|_| random.below(4) > 0).collect();
                    losses += u32::from(all.len() < 3);
                    running.retain(|_, node| all.contains(node));
                    test.nodes(&all)
                }
                1 | 2 => {
                    let number = random.below(3) as u32;
                    if test.members.contains(&peer(number)) { test.ready(number) } else { vec![] }
                }
                3 => test.pass(Duration::from_millis(random.below(3000) as u64)),
                _ => {
                    let known: Vec<_> = running.iter().map(|(key, node)| (*key, *node)).collect();
                    if known.is_empty() {
                        continue;
                    }
                    let ((attempt, rank), node) = known[random.below(known.len())];
                    running.remove(&(attempt, rank));
                    let code = u8::from(random.below(20) == 0);
                    test.ended(node, attempt, rank, code)
                }
            };
            for action in actions {
                match action {
                    LaunchAction::Start { attempt, layout, peers } => {
                        assert_eq!(running.len(), 0, "{about}: another attempt runs");
                        assert!(layout.nodes.len() >= 2, "{about}");
                        attempts += 1;
                        assert_eq!(attempt, attempts, "{about}");
                        for peer in peers {
                            let own = layout.of(&peer.node).unwrap();
                            let node = peer.node.as_str()[2..].parse().unwrap();
                            for rank in own.first_rank..own.first_rank + own.processes {
                                running.insert((attempt, rank), node);
                            }
                        }
                    }
                    LaunchAction::Succeed { .. } | LaunchAction::Fail { .. } => ends += 1,
                    LaunchAction::End { .. } | LaunchAction::Say(_) => {}
                }
            }
            assert!(ends <= 1 && attempts <= restarts + 1, "{about}: {losses} losses");
        }
    }
}
