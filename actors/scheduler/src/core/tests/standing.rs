//! Authority over a job, as the scheduler judges it, and nodes that work for a job without being
//! members.

use springtide_base::id::Peer;
use springtide_net::net::tls::Role;
use springtide_remote::MessageOrigin;

use super::*;
use crate::admit::{Places, Principal};
use crate::scheduler::ReleaseReason;

fn origin(node: &str, cluster: &str, role: Role) -> MessageOrigin {
    let (node, cluster) = (node.into(), cluster.into());
    MessageOrigin { peer: Peer { node, cluster, incarnation: Incarnation(1) }, role: Some(role) }
}

fn node(name: &str) -> MessageOrigin {
    origin(name, name.split_once('-').unwrap().0, Role::Node)
}

/// A grid of two nodes in each cluster. Job 1 of client-1 runs on ams-1 and del-1.
fn running() -> CoreTestGrid {
    let mut grid = CoreTestGrid::of(2, OURS);
    let mut job = submit(Some(&[("ams", 1), ("del", 1)]), OURS, None);
    job.principal = Some(Principal::of(&origin("client-1", "lab", Role::Client)));
    grid.submit(job);
    grid.accept(1, &["ams-1", "del-1"]);
    grid
}

#[test]
fn places_are_specific_to_a_job() {
    let grid = running();
    let places = |from: &MessageOrigin| grid.core.standing(from, JobId(1)).places;
    assert_eq!(places(&node("ams-1")), Places::COORDINATOR.or(Places::MEMBER));
    assert_eq!(places(&node("del-1")), Places::MEMBER);
    assert_eq!(places(&node("ams-2")), Places::NONE);
    assert_eq!(places(&origin("client-1", "lab", Role::Client)), Places::OWNER);
    assert_eq!(places(&origin("client-2", "lab", Role::Client)), Places::NONE);
    // The authority's key permits certificates of the head's cluster.
    assert_eq!(places(&origin("client-3", "head", Role::Client)), Places::OPERATOR);
    let head = places(&origin("head", "head", Role::Head));
    assert_eq!(head, Places::HEAD.or(Places::OPERATOR));
    // A name alone is not a principal: a node may have a client's name.
    assert_eq!(places(&origin("client-1", "lab", Role::Node)), Places::NONE);
    // An earlier incarnation is not a member.
    let mut stale = node("del-1");
    stale.peer.incarnation = Incarnation(0);
    assert_eq!(places(&stale), Places::NONE);
    assert!(!grid.core.standing(&node("ams-1"), JobId(2)).known);
}

#[test]
fn epoch_belongs_to_the_node_of_its_issue() {
    let mut grid = running();
    grid.register("ams-1", 2, OURS);
    let issued = SchedulerEvent::EpochIssued { job: JobId(1), epoch: Epoch(2) };
    assert_eq!(grid.put(issued), ["del-1 takes job-1 over under 2"]);
    // The node has authority at once, because it may start before its answer arrives.
    let standing = grid.core.standing(&node("del-1"), JobId(1));
    assert_eq!(standing.epoch, Some(Epoch(2)));
    assert!(standing.places.meets(Places::COORDINATOR));
    assert!(!grid.core.standing(&node("ams-1"), JobId(1)).places.meets(Places::COORDINATOR));
    let authority = grid.core.authority(JobId(1), &"ams-1".into()).unwrap();
    assert_eq!((authority.epoch, authority.member), (Epoch(2), false));
    assert_eq!(authority.coordinator, Some("del-1".into()));
}

#[test]
fn unissued_epochs_are_refused() {
    for epoch in [Epoch(0), Epoch(2), Epoch(u32::MAX)] {
        let mut grid = running();
        let output =
            grid.put(SchedulerEvent::JobOver { job: JobId(1), epoch, ended: None, ok: true });
        assert_eq!(output, [""; 0]);
        let silent = MemberSilent {
            job: JobId(1),
            epoch,
            node: "del-1".into(),
            incarnation: Incarnation(1),
            reason: "silent".into(),
            reporting_cluster: None,
            reporter: None,
        };
        assert_eq!(grid.put(SchedulerEvent::MemberSilent(silent)), [""; 0]);
        assert!(grid.core.check(JobId(1), epoch).is_err());
        assert_eq!(grid.core.status().count(NodeState::Busy), 2);
    }
}

#[test]
fn node_must_end_an_unknown_job() {
    let mut grid = CoreTestGrid::of(1, OURS);
    let mut both = submit(None, OURS, None);
    both.params.min_processors = 2.into();
    grid.submit(both);
    grid.accept(1, &["ams-1"]);
    let (node, job) = (NodeId::from("del-1"), JobId(777));
    let answer = Err(AssignError::Busy { node: node.clone(), job });
    let output =
        grid.put(SchedulerEvent::Assigned { job: JobId(1), epoch: Epoch(1), node, answer });
    assert!(output.contains(&"release job-777 del-1".to_owned()), "{output:?}");
    grid.released(1, "ams-1", true);
    grid.released(1, "del-1", true);
    // The job starts again, with this node.
    let output = grid.put(SchedulerEvent::EpochIssued { job: JobId(1), epoch: Epoch(2) });
    assert_eq!(output, ["assign job-1 ams-1", "assign job-1 del-1"]);
    grid.accept(1, &["ams-1", "del-1"]);
    // A member of the job gets only one order.
    grid.submit(submit(None, OURS, None));
    let (node, job) = (NodeId::from("del-1"), JobId(1));
    let busy = ReleaseReason::Refused { reason: "busy".into(), busy: Some(job) };
    let freed = |grid: &mut CoreTestGrid, busy| {
        let (epoch, incarnation) = (Epoch(2), Incarnation(1));
        let node = node.clone();
        grid.put(SchedulerEvent::Freed(crate::scheduler::NodeFreed {
            job,
            epoch,
            node,
            incarnation,
            why: busy,
        }))
    };
    assert_eq!(freed(&mut grid, busy), ["release job-1 del-1"]);
}

#[test]
fn coordinator_of_a_failed_start_keeps_its_place_until_the_next_start() {
    let mut grid = CoreTestGrid::of(2, OURS);
    grid.submit(submit(None, OURS, None));
    let client = origin("client-1", "head", Role::Client);
    grid.put(SchedulerEvent::NodeLost {
        node: "ams-1".into(),
        reason: "killed".into(),
        returns: true,
    });
    for output in [false, true] {
        if output {
            grid.put(SchedulerEvent::EpochIssued { job: JobId(1), epoch: Epoch(2) });
        }
        let standing = grid.core.standing(&node("ams-1"), JobId(1));
        assert_eq!((standing.places, standing.epoch), (Places::COORDINATOR, Some(Epoch(1))));
        assert_eq!(grid.core.standing(&node("ams-2"), JobId(1)).places, Places::NONE);
        let authority = grid.core.authority(JobId(1), &"ams-2".into()).unwrap();
        assert_eq!((authority.epoch, authority.member), (Epoch(1), false));
        assert_eq!(authority.coordinator, Some("ams-1".into()));
        assert_eq!(authority.client, Some(client.peer.node.clone()));
    }
    for node in ["ams-2", "del-1", "del-2"] {
        grid.released(1, node, true);
    }
    grid.now += ManagerSettings::default().start_wait;
    assert_eq!(grid.put(SchedulerEvent::Tick)[0], "assign job-1 ams-2");
    assert_eq!(grid.core.standing(&node("ams-1"), JobId(1)).places, Places::NONE);
    let standing = grid.core.standing(&node("ams-2"), JobId(1));
    assert!(standing.places.meets(Places::COORDINATOR));
    assert_eq!(standing.epoch, Some(Epoch(2)));
}
