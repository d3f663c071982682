//! Reservations with jobs that choose their own nodes, which have no time limit.
//!
//! Such jobs get only the nodes that are never reserved.

use std::collections::BTreeMap;

use super::*;
use crate::policy::provisioning::{Booking, SECOND, Time};
use crate::reservation::{
    LedgerChange, Reservation, ReservationPhase, ReservationRefusal, ReservationRequest,
    ReservedSlot,
};

const CLOCK: Time = 1_700_000_000 * SECOND;

impl CoreTestGrid {
    fn clocked(nodes: usize) -> Self {
        let mut grid = Self::of(nodes, OURS);
        let settings = ManagerSettings { clock_us: CLOCK, ..ManagerSettings::default() };
        grid.core.managing = ManagerState::new(settings, grid.now);
        grid
    }

    /// Reserves `count` nodes from second `start` on, for 100 seconds.
    fn reserve(
        &mut self,
        cluster: &str,
        count: u32,
        start: u64,
    ) -> Result<Reservation, ReservationRefusal> {
        let start = self.core.wall(self.now) + start * SECOND;
        let booking = Booking { processors: count, start, end: start + 100 * SECOND };
        let parts = vec![ReservedSlot { cluster: cluster.into(), bookings: vec![booking] }];
        let (token, name) = (start + u64::from(count), "test".to_owned());
        let ask = ReservationRequest {
            token,
            name,
            parts,
            max_cost: f64::INFINITY,
            lease_ms: None,
            owner: None,
        };
        let (prepared, ..) = self.core.prepare(&ask, self.now);
        let id = (prepared?.id, token);
        let (committed, notes, _) = self.core.commit(id.0, id.1, self.now);
        committed?;
        assert!(matches!(&notes[..], [LedgerChange::Keep(_)]));
        let (confirmed, notes, _) = self.core.confirm(id.0, id.1, self.now);
        assert!(matches!(&notes[..], [LedgerChange::Keep(_)]));
        confirmed
    }
}

#[test]
fn queued_jobs_get_only_unreserved_nodes() {
    let mut grid = CoreTestGrid::clocked(4);
    let one = grid.reserve("ams", 2, 5_000).unwrap();
    let out = grid.submit(submit(Some(&[("ams", 3)]), OURS, None));
    assert_eq!(out, [""; 0]);
    let waits = grid.core.status().jobs[0].waits_for.clone().unwrap();
    assert!(waits.contains("1 more of cluster ams without a reservation"), "{waits}");
    // The nodes that it waits for do not count as used by others.
    grid.now += std::time::Duration::from_secs(100);
    assert_eq!(grid.put(SchedulerEvent::Poll), [""; 0]);
    let waits = grid.core.status().jobs[0].waits_for.clone().unwrap();
    assert!(waits.contains("1 more of cluster ams without a reservation"), "{waits}");
    // After the release, the job gets its nodes.
    let (gone, actions) = grid.core.release_reservation(one.id, None, grid.now);
    assert_eq!(gone.unwrap().id, one.id);
    assert_eq!(actions.iter().map(text).collect::<Vec<_>>(), ["reservation 1 ends"]);
    let out = grid.put(SchedulerEvent::Tick);
    assert_eq!(out, ["assign job-1 ams-1", "assign job-1 ams-2", "assign job-1 ams-3"]);
    // The job has no time limit: none of its nodes can be reserved at any time.
    match grid.reserve("ams", 2, 50_000).unwrap_err() {
        ReservationRefusal::Taken { processors: 2, free: 1, .. } => {}
        other => panic!("{other}"),
    }
    grid.reserve("ams", 1, 50_000).unwrap();
    // A job on every working node leaves reserved ones.
    grid.reserve("del", 3, 10).unwrap();
    grid.accept(1, &["ams-1", "ams-2", "ams-3"]);
    grid.over(1);
    let out = grid.submit(submit(None, OURS, None));
    let all = ["ams-1", "ams-2", "ams-3", "del-1"];
    assert_eq!(out, all.map(|node| format!("assign job-2 {node}")));
}

#[test]
fn running_jobs_get_only_unreserved_nodes() {
    let mut grid = CoreTestGrid::clocked(4);
    grid.submit(submit(Some(&[("ams", 1)]), OURS, None));
    grid.accept(1, &["ams-1"]);
    grid.reserve("ams", 2, 1_000).unwrap();
    grid.reserve("del", 4, 1_000).unwrap();
    let request = crate::policy::SchedulerRequest {
        count: 8.into(),
        ..crate::policy::SchedulerRequest::default()
    };
    let (job, epoch, benchmark) = (JobId(1), Epoch(1), None);
    let (rtt_s, bandwidth) = (BTreeMap::new(), BTreeMap::new());
    let asks = crate::scheduler::RequestNodes { job, epoch, request, benchmark, rtt_s, bandwidth };
    let out = grid.put(SchedulerEvent::Request(Box::new(asks)));
    assert_eq!(out, ["grant 1 of job-1 at ams-1: ams-2 and 7"]);
    // After the reservations, it gets all free nodes.
    grid.now += std::time::Duration::from_secs(1_101);
    let out = grid.put(SchedulerEvent::Tick);
    let granted = "grant 2 of job-1 at ams-1: ams-3 ams-4 del-1 del-2 del-3 del-4 and 1";
    assert_eq!(out, ["reservation 1 ends", "reservation 2 ends", granted]);
}

#[test]
fn new_scheduler_keeps_agreed_reservations_and_drops_expired_ones() {
    let mut grid = CoreTestGrid::clocked(4);
    let kept = grid.reserve("ams", 3, 60).unwrap();
    let over = Reservation {
        id: crate::reservation::ReservationId(9),
        parts: vec![ReservedSlot {
            cluster: "del".into(),
            bookings: vec![Booking { processors: 4, start: CLOCK - 9, end: CLOCK - 1 }],
        }],
        ..kept.clone()
    };
    let unsure = Reservation {
        id: crate::reservation::ReservationId(8),
        token: 5,
        phase: ReservationPhase::Committed { until: CLOCK + 20 * SECOND },
        ..kept.clone()
    };
    let mut later = CoreTestGrid::clocked(4);
    let last = crate::reservation::ReservationId(0);
    later.put(SchedulerEvent::Reserved(vec![kept.clone(), over, unsure], last));
    let out = later.put(SchedulerEvent::Poll);
    assert_eq!(out, ["reservation 9 ends"]);
    assert_eq!(later.core.reservations().len(), 2);
    // Numbers are not issued again.
    assert_eq!(later.reserve("del", 1, 60).unwrap().id.0, 10);
    later.now += std::time::Duration::from_secs(20);
    assert_eq!(later.put(SchedulerEvent::Poll), ["reservation 8 ends"]);
    assert_eq!(later.core.reservations().keys().map(|id| id.0).collect::<Vec<_>>(), [1, 10]);
}

#[test]
fn queued_job_leaves_nodes_to_jobs_of_a_reservation() {
    use crate::manager::{JobRequirements, Kind};

    let mut grid = CoreTestGrid::clocked(4);
    let one = grid.reserve("ams", 2, 100).unwrap();
    assert_eq!(grid.submit(submit(Some(&[("ams", 3)]), OURS, None)), [""; 0]);
    let need =
        JobRequirements { reservation: Some(one.id), ..JobRequirements::one(Kind::Rigid, 2, 2, 2) };
    let own = Submit { need: Some(need), ..submit(None, OURS, None) };
    assert_eq!(grid.submit(own), [""; 0]);
    grid.now += std::time::Duration::from_secs(100);
    let out = grid.put(SchedulerEvent::Tick);
    assert_eq!(out, ["assign job-2 ams-1", "assign job-2 ams-2"]);
    // A job is not refused for good because of reservations.
    let mut grid = CoreTestGrid::clocked(1);
    grid.reserve("ams", 1, 100).unwrap();
    grid.reserve("del", 1, 101).unwrap();
    assert_eq!(grid.submit(submit(None, OURS, None)), [""; 0]);
    grid.now += std::time::Duration::from_secs(300);
    let out = grid.put(SchedulerEvent::Tick);
    assert!(out.contains(&"assign job-1 ams-1".to_owned()), "{out:?}");
}
