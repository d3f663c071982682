//! The paper's scenarios 0 to 5, further ones, and histories that must not oscillate, in the toy
//! grid's closed loop. Numbers in comments are the paper's results.

use super::model::{PolicyWorld, ToyNodeState};
use super::*;

/// Three clusters with 12 workers each; two more clusters and the rest are free.
fn paper() -> PolicyWorld {
    PolicyWorld::of(&[
        ("fs0", 72, 12),
        ("fs1", 32, 12),
        ("fs2", 32, 12),
        ("fs3", 32, 0),
        ("fs4", 32, 0),
    ])
}

/// Replays the decisions from the log, through JSON lines, and compares every bit.
fn replays(world: &PolicyWorld) {
    let lines: Vec<String> = world.log.iter().map(|l| serde_json::to_string(l).unwrap()).collect();
    let back: Vec<LoggedDecision> =
        lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(replay(&back), Ok(world.log.len() as u64));
}

fn settled(
    world: &PolicyWorld,
    nodes: std::ops::RangeInclusive<u32>,
    seconds: std::ops::Range<f64>,
) {
    let explanation = world.explanation();
    assert!(nodes.contains(&world.members()), "{} nodes\n{explanation}", world.members());
    assert!(seconds.contains(&world.time()), "{} s\n{explanation}", world.time());
    assert!(world.quiet() >= 8, "it does not settle\n{explanation}");
    replays(world);
}

#[test]
fn scenario_0_the_right_size_is_left_alone() {
    let mut world = paper();
    world.run(20);
    settled(&world, 36..=36, 95.0..106.0);
    assert!(world.log.iter().all(|l| l.decision.actions.is_empty()), "{}", world.explanation());
}

#[test]
fn scenario_1_too_few_nodes_become_enough() {
    // Paper: 36 to 40 nodes from 8, 16 and 24; iterations shorter by factors 3, 1.7 and 1.2.
    for (start, ratio) in [(8, 2.4), (16, 1.5), (24, 1.15)] {
        let (a, b) = if start == 8 { (8, 0) } else { (start / 2, start / 2) };
        let mut world =
            PolicyWorld::of(&[("fs0", 12, a), ("fs1", 12, b), ("fs2", 12, 0), ("fs3", 12, 0)]);
        let before = world.time();
        world.run(20);
        settled(&world, 35..=40, 90.0..110.0);
        assert!(before / world.time() > ratio, "{} -> {}", before, world.time());
        assert_eq!(world.turns(), 0, "{}", world.explanation());
    }
}

#[test]
fn scenario_2_overloaded_processors_are_replaced() {
    // Paper: the overloaded nodes are removed, the job grows back to 38 nodes, iterations are as
    // long as at first.
    let mut world = paper();
    world.run(2).load("fs1", 10.0);
    assert!(world.time() > 200.0, "iterations take two to three times as long");
    world.run(24);
    settled(&world, 35..=40, 90.0..110.0);
    assert_eq!(world.members_of("fs1"), 0, "{}", world.explanation());
    assert_eq!(world.turns(), 1, "{}", world.explanation());
    assert!(world.said(|r| matches!(r, Reason::Judged { aim: Aim::Cure, helped: true, .. })));
    assert!(world.memory.requirements.min_speed.is_some_and(|speed| speed > 0.1));
    // No healthy node was removed with them.
    let is_slow = |name: &str| name.starts_with("fs1");
    let gone =
        |r: &Reason| matches!(r, Reason::NodeRemoved { node, .. } if !is_slow(node.as_str()));
    assert!(!world.said(gone), "{}", world.explanation());
}

#[test]
fn scenario_3_a_badly_connected_cluster_is_replaced() {
    // Paper: removed after the first period, then 38 nodes and iterations of about 100 s.
    let mut world = paper();
    world.uplinks.insert("fs2".into(), 100e3);
    assert!(world.time() > 170.0);
    let decision = world.step().clone();
    assert!(
        matches!(&decision.actions[..], [AdaptationAction::RemoveCluster { cluster, .. }]
            if cluster.as_str() == "fs2"),
        "{decision:?}"
    );
    world.run(20);
    settled(&world, 35..=40, 90.0..110.0);
    assert_eq!(world.members_of("fs2"), 0);
    // The first fall precedes the first entry.
    assert_eq!(world.turns(), 0, "{}", world.explanation());
    let needs = world.memory.requirements.min_bandwidth.unwrap();
    assert!((100e3..200e3).contains(&needs), "{needs}");
}

#[test]
fn scenario_4_both_by_the_papers_text_and_by_ours() {
    let make = || {
        let mut world = paper();
        world.uplinks.insert("fs2".into(), 100e3);
        world.load("fs1", 10.0 / 3.0);
        world
    };
    // Paper: without the cluster, 210 s and an efficiency within the band: no further action.
    let mut paper = make();
    (paper.settings.refill, paper.settings.migrate) = (false, false);
    paper.run(20);
    settled(&paper, 24..=24, 190.0..240.0);
    assert_eq!(paper.members_of("fs1"), 12);
    // Policy: refill, and migration to the faster nodes that are free.
    let mut ours = make();
    ours.run(40);
    settled(&ours, 34..=42, 85.0..115.0);
    assert_eq!((ours.members_of("fs1"), ours.members_of("fs2")), (0, 0), "{}", ours.explanation());
    // Migration alone has the same effect.
    let mut moved = make();
    moved.settings.refill = false;
    moved.run(40);
    assert!(moved.said(|r| matches!(r, Reason::Migrates { .. })), "{}", moved.explanation());
    assert!(moved.time() < 0.7 * paper.time(), "{}", moved.explanation());
    assert_eq!(moved.members_of("fs1"), 0, "{}", moved.explanation());
}

#[test]
fn scenario_5_crashed_clusters_are_replaced() {
    // Paper: 2 of 3 clusters crash; 35 nodes and 100 s again.
    let mut world = paper();
    world.run(3);
    world.crash("fs1");
    world.crash("fs2");
    world.run(20);
    settled(&world, 35..=40, 90.0..110.0);
    assert_eq!(world.members_of("fs1") + world.members_of("fs2"), 0);
    assert_eq!(world.turns(), 1, "{}", world.explanation());
}

#[test]
fn scenario_5_where_efficiency_stays_in_the_band() {
    // By the paper's text, 30 % is not a reason to add nodes; the refill is.
    let mut world = paper();
    world.run(4); // it ran well
    world.serial = 170.0; // the remaining nodes wait much more: 38 % on 12 nodes
    world.crash("fs1");
    world.crash("fs2");
    let decision = world.step().clone();
    let efficiency = decision.efficiency.unwrap();
    assert!(efficiency > 0.3 && efficiency < 0.5, "{efficiency}");
    assert!(
        matches!(&decision.actions[..], [AdaptationAction::Request(r)] if r.count.get() == 12),
        "{decision:?}"
    );
    let mut off = paper();
    off.settings.refill = false;
    off.run(4);
    off.serial = 170.0;
    off.crash("fs1");
    off.crash("fs2");
    assert!(off.step().actions.is_empty());
}

#[test]
fn the_node_set_follows_the_applications_parallelism() {
    let mut world = paper();
    world.run(6);
    let wide = world.members();
    world.serial = 300.0; // a sixth of the parallelism
    world.run(30);
    settled(&world, 5..=12, 0.0..f64::INFINITY);
    let narrow = world.members();
    world.serial = 50.0;
    world.run(40);
    settled(&world, 34..=45, 85.0..110.0);
    assert!(narrow * 3 <= wide);
    assert_eq!(world.turns(), 1, "{}", world.explanation());
    assert!(world.memory.quarantine.is_empty(), "all nodes were healthy\n{}", world.explanation());
    assert!(!world.said(|r| matches!(r, Reason::LinkBad { .. })), "{}", world.explanation());
}

#[test]
fn too_many_nodes_go_without_blame() {
    let mut world =
        PolicyWorld::of(&[("fs0", 40, 40), ("fs1", 40, 40), ("fs2", 40, 40), ("fs3", 32, 0)]);
    world.run(20);
    settled(&world, 30..=75, 60.0..110.0);
    assert!(
        world.memory.quarantine.is_empty() && world.memory.requirements == Requirements::default()
    );
    assert!(world.members_of("fs0") > 0, "the root's cluster stays\n{}", world.explanation());
}

#[test]
fn a_loaded_cluster_is_replaced_and_returns_after_the_load() {
    // A grid without spare nodes, 12 of them with an external load.
    let mut world = PolicyWorld::of(&[("fs0", 12, 12), ("fs1", 12, 12), ("fs2", 12, 12)]);
    world.run(3).load("fs1", 10.0);
    world.run(10);
    assert_eq!(world.members_of("fs1"), 0, "{}", world.explanation());
    world.load("fs1", 1.0);
    world.run(12);
    settled(&world, 36..=36, 90.0..110.0);
    let better =
        |r: &Reason| matches!(r, Reason::QuarantineEnded { why: QuarantineEndReason::Better, .. });
    assert!(world.said(better), "{}", world.explanation());
}

#[test]
fn a_loaded_cluster_is_retried_at_growing_intervals() {
    let mut world = PolicyWorld::of(&[("fs0", 12, 12), ("fs1", 12, 12), ("fs2", 12, 12)]);
    world.blind = true; // only the ends of their terms bring them back
    world.run(3).load("fs1", 10.0);
    world.run(300);
    let removals = world.log.iter().filter(|l| {
        l.decision
            .actions
            .iter()
            .any(|a| matches!(a, AdaptationAction::Remove { cause: RemovalCause::Slow, .. }))
    });
    // Terms of 30, 60, 120 and 240 periods.
    let removals = removals.count();
    assert!((3..=5).contains(&removals), "{removals}\n{}", world.explanation());
}

#[test]
fn the_job_grows_into_capacity_that_appears() {
    let mut world = PolicyWorld::of(&[("fs0", 12, 12), ("fs1", 12, 0), ("fs2", 12, 0)]);
    for cluster in ["fs1", "fs2"] {
        world.cluster(cluster).for_each(|(_, node)| node.free = false);
    }
    world.run(10);
    assert_eq!(world.members(), 12);
    for cluster in ["fs1", "fs2"] {
        world.cluster(cluster).for_each(|(_, node)| node.free = true);
    }
    world.run(14);
    settled(&world, 34..=36, 90.0..110.0);
    assert_eq!(world.turns(), 0);
}

#[test]
fn a_link_that_recovers_is_used_again() {
    let mut world = PolicyWorld::of(&[("fs0", 12, 12), ("fs1", 12, 12), ("fs2", 12, 12)]);
    world.uplinks.insert("fs2".into(), 100e3);
    world.run(8);
    assert_eq!(world.members_of("fs2"), 0, "{}", world.explanation());
    assert_eq!(world.members(), 24, "there are no other nodes");
    world.uplinks.insert("fs2".into(), 10e6);
    world.run(14);
    settled(&world, 34..=36, 90.0..110.0);
}

#[test]
fn the_roots_cluster_goes_after_the_root() {
    let mut world = paper();
    world.uplinks.insert("fs0".into(), 100e3);
    let first = world.step().clone();
    assert!(
        matches!(&first.actions[..], [AdaptationAction::MoveRoot { from, cluster, .. }]
            if from.as_str() == "fs0-00" && cluster.as_str() != "fs0"),
        "{first:?}"
    );
    let second = world.step().clone();
    assert!(
        matches!(&second.actions[..], [AdaptationAction::RemoveCluster { cluster, .. }]
            if cluster.as_str() == "fs0"),
        "{second:?}"
    );
    world.run(20);
    settled(&world, 35..=40, 90.0..110.0);
    assert_eq!(world.members_of("fs0"), 0);
}

#[test]
fn a_slow_root_moves_and_its_node_goes_later() {
    let mut world = paper();
    world.run(2);
    // The slow nodes are enough to matter; the root's node is one of them.
    let mut slow = 0;
    for (_, node) in
        world.cluster("fs0").filter(|(_, n)| matches!(n.state, ToyNodeState::Member { .. }))
    {
        node.load = 20.0;
        slow += 1;
    }
    assert_eq!(slow, 12);
    world.run(30);
    settled(&world, 35..=40, 90.0..110.0);
    assert_ne!(world.root.as_str(), "fs0-00");
    assert_eq!(world.members_of("fs0"), 0, "{}", world.explanation());
    assert!(
        world.said(|r| matches!(r, Reason::NodeRemovedLater { .. })),
        "{}",
        world.explanation()
    );
}

/// A load on the root's node alone hardly changes the efficiency. The root moves all the same.
#[test]
fn the_root_leaves_a_slow_node_within_the_band() {
    let mut world = paper();
    world.iterations = Some(200);
    world.run(12);
    let root = world.root.clone();
    world.nodes.get_mut(&root).expect("it is there").load = 10.0;
    world.run(6);
    assert_ne!(world.root, root, "{}", world.explanation());
    let moved = |r: &Reason| matches!(r, Reason::RootMoves { why: RootMoveReason::SlowNode, .. });
    assert!(world.said(moved), "{}", world.explanation());
    let settings = AdaptationSettings::default();
    let band = settings.e_min..=settings.e_max;
    let efficiencies: Vec<f64> =
        world.log[12..].iter().filter_map(|l| l.decision.efficiency).collect();
    assert!(efficiencies.iter().all(|e| band.contains(e)), "{efficiencies:?}");
    let moves = world.log.iter().flat_map(|l| &l.decision.actions);
    let moves = moves.filter(|action| matches!(action, AdaptationAction::MoveRoot { .. })).count();
    assert_eq!(moves, 1, "{}", world.explanation());
    replays(&world);
}

#[test]
fn a_single_fast_node_does_not_displace_the_others() {
    // By the formula, each node next to one ten times as fast counts as a tenth, and efficiency is
    // 0.1. Removing half of the others would lose their work: they are busy.
    let mut world = PolicyWorld::of(&[("fs0", 21, 21)]);
    world.serial = 0.5;
    world.nodes.get_mut(&"fs0-20".into()).unwrap().speed = 10.0;
    world.run(30);
    let busy = |r: &Reason| matches!(r, Reason::Stays { why: StayReason::Busy, .. });
    assert!(world.said(busy), "{}", world.explanation());
    assert_eq!(world.members(), 21, "{}", world.explanation());
    assert_eq!(world.quiet(), 30, "{}", world.explanation());
    replays(&world);
}

#[test]
fn monitoring_withholds_actions_and_reports_them() {
    let mut world = paper();
    world.mode = Mode::Monitor;
    world.run(2).load("fs1", 10.0);
    world.run(6);
    assert_eq!(world.members(), 36);
    assert!(world.log.iter().all(|l| l.decision.actions.is_empty()));
    let last = &world.log.last().unwrap().decision;
    assert!(last.flags.contains(&Flag::MonitorOnly));
    assert!(
        matches!(&last.withheld[..], [AdaptationAction::Remove { nodes, .. }] if nodes.len() == 12)
    );
    assert!(world.memory.quarantine.is_empty() && world.memory.trial.is_none());
    replays(&world);
}

#[test]
fn a_successor_does_not_add_removed_nodes() {
    let mut world =
        PolicyWorld::of(&[("fs0", 12, 12), ("fs1", 12, 12), ("fs2", 12, 12), ("fs3", 6, 0)]);
    world.uplinks.insert("fs2".into(), 100e3);
    world.run(2);
    // The coordinator is lost; two copies of its memory are found, one of them a period older.
    let old = world.log.last().unwrap().inputs.memory.clone();
    world.memory = Memory::newest(old, world.memory.clone());
    (world.epoch.0, world.period) = (2, 0);
    world
        .cluster("fs2")
        .for_each(|(_, n)| assert!(!matches!(n.state, ToyNodeState::Member { .. })));
    world.run(12);
    assert_eq!(world.members_of("fs2"), 0, "{}", world.explanation());
    assert_eq!(world.members(), 30);
}

#[test]
fn a_short_job_is_left_alone_near_its_end() {
    let mut world = paper();
    world.iterations = Some(6);
    world.run(3).load("fs1", 10.0);
    // In one of them it learns that iterations take longer, and waits for a whole one.
    world.run(4);
    assert!(world.said(|r| matches!(r, Reason::NearEnd { .. })), "{}", world.explanation());
    assert_eq!(world.members(), 36);
}

#[test]
fn decisions_are_explained_in_sentences() {
    let mut world = paper();
    world.run(2).load("fs1", 10.0);
    world.run(10);
    let explanation = explain(&world.log, None).join("\n");
    for part in [
        "removed fs1-00, fs1-01",
        "node fs1-00 of cluster fs1 with 1 processor is removed: it is slow (badness 2",
        "only bad nodes with 12 processors are removed, not 18 processors",
        "node fs1-00 is in quarantine for 5400 s (it is slow, time 1)",
        "removing bad nodes helped: 36 processors at efficiency 0.",
        "12 processors asked for (replacing lost nodes)",
    ] {
        assert!(explanation.contains(part), "{part} is not in\n{explanation}");
    }
    let of_node = explain_node(&world.log, &"fs1-03".into(), Some(&"fs1".into()));
    assert!(
        of_node
            .iter()
            .any(|line| line.contains("fs1-03 of cluster fs1 with 1 processor is removed")),
        "{of_node:?}"
    );
    let at = explain(&world.log, Some(200.0)).join("\n");
    assert!(at.starts_with("180.0 s, period 1: changed nothing"), "{at}");
    assert!(at.contains("the number of processors is right"), "{at}");
}
