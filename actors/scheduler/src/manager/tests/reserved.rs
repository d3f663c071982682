//! Reservations among jobs.

use super::*;
use crate::policy::provisioning::{Booking, SECOND as S, Terms, Time};
use crate::reservation::{
    Reservation, ReservationId, ReservationRefusal, ReservationRequest, ReservedSlot,
};

const CLOCK: Time = 1_700_000_000 * S;

fn scene(settings: ManagerSettings, sites: &[(&str, u32)]) -> Scene {
    Scene::new(ManagerSettings { clock_us: CLOCK, ..settings }, sites)
}

fn part(cluster: &str, processors: u32, start: u64, end: u64) -> ReservedSlot {
    let booking = Booking { processors, start: CLOCK + start * S, end: CLOCK + end * S };
    ReservedSlot { cluster: cluster.into(), bookings: vec![booking] }
}

fn reserve(scene: &mut Scene, parts: Vec<ReservedSlot>) -> Result<Reservation, ReservationRefusal> {
    let token = scene.manager.reservations().len() as u64 + 77;
    let name = "test".to_owned();
    let ask = ReservationRequest {
        token,
        name,
        parts,
        max_cost: f64::INFINITY,
        lease_ms: None,
        owner: None,
    };
    let id = (scene.manager.prepare(&ask)?.id, token);
    let mut changes = Vec::new();
    scene.manager.commit(id.0, id.1, &mut changes)?;
    let one = scene.manager.confirm(id.0, id.1, &mut changes)?;
    assert_eq!(changes.len(), 2);
    scene.tell(ManagerEvent::Tick);
    Ok(one)
}

/// Advances the time to `seconds` after the start, and returns all actions.
fn advance_to(scene: &mut Scene, seconds: u64) -> Vec<ManagerAction> {
    let until = scene.manager.origin + Duration::from_secs(seconds);
    let mut out = Vec::new();
    while let Some(due) = scene.manager.due().filter(|due| *due <= until) {
        scene.now = due.max(scene.now);
        out.extend(scene.tell(ManagerEvent::Tick));
    }
    scene.now = until;
    out.extend(scene.tell(ManagerEvent::Tick));
    out
}

fn slots(scene: &mut Scene, cluster: &str) -> Vec<(u32, u64, u64, bool)> {
    let offers = scene.manager.offers();
    let offer = offers.into_iter().find(|offer| offer.cluster == cluster.into()).unwrap();
    let from = |time: Time| (time - CLOCK) / S;
    let slot = |slot: &crate::policy::provisioning::Slot| {
        (slot.processors, from(slot.start), from(slot.end), slot.divisible)
    };
    offer.slots.iter().map(slot).collect()
}

const DAY: u64 = 24 * 3600;

#[test]
fn malleable_job_uses_future_reservations_and_releases_in_time() {
    let mut scene = scene(by(Approach::Running, Policy::Egs), &[("a", 10)]);
    scene.runs(1, "a", (2, 2, 10));
    reserve(&mut scene, vec![part("a", 6, 1000, 2000)]).unwrap();
    let out = scene.poll("a", 10, 0);
    assert_eq!(asked(&out), [(1, 8)], "the reservation is far in the future");
    let number = change(&out, 1);
    scene.answer(1, number, 8);
    scene.tell(ManagerEvent::Held { job: JobId(1), change: number, count: 8 });
    scene.tell(ManagerEvent::Grown { job: JobId(1), change: number, count: 8 });
    assert_eq!(scene.size(1), 10);
    // Ten seconds to answer, sixty to release, and five of margin. Reservations precede running
    // jobs.
    assert_eq!(advance_to(&mut scene, 924), []);
    let out = advance_to(&mut scene, 925);
    let [ManagerAction::Shrink { count: 6, mandatory: true, why, .. }] = &out[..] else {
        panic!("{out:?}")
    };
    assert!(why.contains("makes room for reservation 1, which starts in 75 s"), "{why}");
    scene.answer(1, change(&out, 1), 6);
    scene.freed(1, "a", 6);
    assert_eq!(asked(&scene.poll("a", 10, 0)), [], "the free processors are reserved");
    assert_eq!(scene.size(1), 4);
    // At the reservation's start, the processors go to its job, regardless of the scan interval.
    advance_to(&mut scene, 931);
    let need = JobRequirements {
        reservation: Some(ReservationId(1)),
        ..JobRequirements::one(Kind::Rigid, 6, 6, 6)
    };
    assert_eq!(scene.submit(2, need), []);
    let why = scene.manager.job(JobId(2)).unwrap().reason;
    assert!(why.contains("reservation 1 starts in 69 s"), "{why}");
    let out = advance_to(&mut scene, 1000);
    assert!(matches!(&out[..], [ManagerAction::Claim { job: JobId(2), .. }]), "{out:?}");
    scene.claimed(2, "a", 6);
    assert_eq!(scene.phase(2), Some(JobPhase::Running));
    // The reservation has ended, and no other needs its processors: the job keeps running.
    let out = advance_to(&mut scene, 2000);
    let [ManagerAction::ReservationEnded(bill)] = &out[..] else { panic!("{out:?}") };
    assert_eq!((bill.cost, bill.penalty, bill.had_s), (6000.0, 0.0, 6000.0));
    assert!((bill.used_s - 5994.0).abs() < 0.01, "{}", bill.used_s);
    assert!(scene.manager.reservations().is_empty());
    assert_eq!(scene.phase(2), Some(JobPhase::Running));
}

#[test]
fn only_releasable_processors_are_offered() {
    let mut scene = scene(by(Approach::Waiting, Policy::Fpsma), &[("a", 10)]);
    assert_eq!(slots(&mut scene, "a"), [(10, 0, DAY, true)]);
    scene.runs(1, "a", (2, 5, 8));
    assert_eq!(slots(&mut scene, "a"), [(8, 1, DAY + 1, true)]);
    let hour =
        JobRequirements { time_ms: Some(3_600_000), ..JobRequirements::one(Kind::Rigid, 3, 3, 3) };
    scene.submit(2, hour);
    scene.claimed(2, "a", 3);
    let busy = [(5, 2, DAY + 2, true), (3, 3602, DAY + 2, true)];
    assert_eq!(slots(&mut scene, "a"), busy);
    scene.poll("a", 10, 1);
    assert_eq!(slots(&mut scene, "a")[0].0, 4);
    reserve(&mut scene, vec![part("a", 4, 1000, 5000)]).unwrap();
    let some = [(4, 2, 1000, false), (3, 3602, DAY + 2, true), (4, 5000, DAY + 2, true)];
    assert_eq!(slots(&mut scene, "a"), some);
    match reserve(&mut scene, vec![part("a", 4, 3601, 5001)]).unwrap_err() {
        ReservationRefusal::Taken { processors: 4, free: 0, .. } => {}
        other => panic!("{other}"),
    }
    reserve(&mut scene, vec![part("a", 3, 3602, 6000)]).unwrap();
}

#[test]
fn offer_epoch_counts_changes_not_time() {
    let mut scene = scene(by(Approach::Waiting, Policy::Fpsma), &[("a", 10)]);
    let epoch = |scene: &mut Scene| scene.manager.offers()[0].epoch;
    assert_eq!(epoch(&mut scene), 1);
    reserve(&mut scene, vec![part("a", 4, 100, 200)]).unwrap();
    assert_eq!(epoch(&mut scene), 2);
    advance_to(&mut scene, 50);
    assert_eq!(epoch(&mut scene), 2);
    scene.runs(1, "a", (2, 5, 8));
    assert_eq!(epoch(&mut scene), 3);
    advance_to(&mut scene, 201);
    assert_eq!(epoch(&mut scene), 4);
}

#[test]
fn only_jobs_with_time_limits_run_before_a_reservation() {
    let mut scene = scene(by(Approach::Waiting, Policy::Fpsma), &[("a", 10)]);
    reserve(&mut scene, vec![part("a", 8, 1000, 2000)]).unwrap();
    assert_eq!(scene.submit(1, JobRequirements::one(Kind::Rigid, 3, 3, 3)), []);
    let timed =
        |ms| JobRequirements { time_ms: Some(ms), ..JobRequirements::one(Kind::Rigid, 3, 3, 3) };
    assert_eq!(scene.submit(2, timed(1_000_001)), []);
    let out = scene.submit(3, timed(900_000));
    assert!(matches!(&out[..], [ManagerAction::Claim { job: JobId(3), .. }]), "{out:?}");
    scene.claimed(3, "a", 3);
    // The job exceeds its time limit.
    let out = advance_to(&mut scene, 901);
    assert!(matches!(&out[..], [ManagerAction::End { job: JobId(3), .. }]), "{out:?}");
    // After the reservation's end, the first job gets a place.
    scene.tell(ManagerEvent::Ended { job: JobId(3) });
    scene.freed(3, "a", 3);
    let out = advance_to(&mut scene, 2001);
    let placed =
        |action: &ManagerAction| matches!(action, ManagerAction::Claim { job: JobId(1), .. });
    assert!(out.iter().any(placed), "{out:?}");
}

#[test]
fn overrunning_jobs_end_when_another_reservation_starts() {
    let mut scene = scene(by(Approach::Waiting, Policy::Fpsma), &[("a", 4)]);
    let first = reserve(&mut scene, vec![part("a", 4, 0, 100)]).unwrap();
    reserve(&mut scene, vec![part("a", 3, 150, 300)]).unwrap();
    for job in [1, 2] {
        let need = JobRequirements {
            reservation: Some(first.id),
            ..JobRequirements::one(Kind::Rigid, 2, 2, 2)
        };
        let out = scene.submit(job, need);
        assert!(matches!(&out[..], [ManagerAction::Claim { .. }]), "{out:?}");
        scene.claimed(job, "a", 2);
    }
    let third = JobRequirements {
        reservation: Some(first.id),
        ..JobRequirements::one(Kind::Rigid, 1, 1, 1)
    };
    assert_eq!(scene.submit(3, third), [], "the reservation has no more processors");
    let out = advance_to(&mut scene, 149);
    let ended = |action: &ManagerAction| match action {
        ManagerAction::End { job, .. } => Some(job.0),
        _ => None,
    };
    let never =
        |action: &ManagerAction| matches!(action, ManagerAction::Fail { job: JobId(3), .. });
    assert!(out.iter().any(never), "a job without its reservation never starts: {out:?}");
    assert_eq!(out.iter().filter_map(ended).collect::<Vec<_>>(), [] as [u64; 0]);
    let out = advance_to(&mut scene, 150);
    assert_eq!(out.iter().filter_map(ended).collect::<Vec<_>>(), [2, 1], "{out:?}");
    assert_eq!(advance_to(&mut scene, 151), [], "no job is ended twice");
}

#[test]
fn denying_site_offers_nothing_and_waste_costs_a_penalty() {
    let terms = Terms { unused_surcharge: 0.5, rate: 2.0, ..Terms::default() };
    let closed = Terms { advertise: false, ..Terms::default() };
    let terms = [("a".into(), terms), ("b".into(), closed)].into();
    let settings = ManagerSettings { terms, ..by(Approach::Waiting, Policy::Fpsma) };
    let mut scene = scene(settings, &[("a", 4), ("b", 4)]);
    assert_eq!(slots(&mut scene, "b"), []);
    let denied = reserve(&mut scene, vec![part("b", 1, 0, 10)]).unwrap_err();
    assert!(matches!(denied, ReservationRefusal::Denied { .. }), "{denied}");
    let one = reserve(&mut scene, vec![part("a", 2, 10, 110)]).unwrap();
    assert_eq!(one.cost, 400.0);
    advance_to(&mut scene, 60);
    let mut out = Vec::new();
    scene.manager.release(one.id, None, &mut out).unwrap();
    let [ManagerAction::ReservationEnded(bill)] = &out[..] else { panic!("{out:?}") };
    assert_eq!((bill.had_s, bill.used_s, bill.penalty), (100.0, 0.0, 100.0));
}

#[test]
fn no_job_shrinks_for_a_job_that_reservations_exclude() {
    let mut scene = scene(by(Approach::Waiting, Policy::Fpsma), &[("a", 8)]);
    scene.runs(1, "a", (1, 8, 8));
    reserve(&mut scene, vec![part("a", 6, 100_000, 200_000)]).unwrap();
    // The processors that job 1 could release are reserved for later, but for one.
    assert_eq!(asked(&scene.submit(2, JobRequirements::one(Kind::Rigid, 4, 4, 4))), []);
    assert!(scene.manager.head_reservation.is_none());
    assert_eq!(asked(&scene.submit(3, JobRequirements::one(Kind::Rigid, 1, 1, 1))), []);
    let out = advance_to(&mut scene, 60);
    assert_eq!(asked(&out), [], "{out:?}");
    assert_eq!(scene.size(1), 8);
}

#[test]
fn prepared_reservation_ends_no_running_job() {
    let mut scene = scene(by(Approach::Waiting, Policy::Fpsma), &[("a", 8)]);
    let first = reserve(&mut scene, vec![part("a", 4, 0, 50)]).unwrap();
    let need = JobRequirements {
        reservation: Some(first.id),
        ..JobRequirements::one(Kind::Rigid, 4, 4, 4)
    };
    scene.submit(1, need);
    scene.claimed(1, "a", 4);
    scene.runs(2, "a", (1, 4, 4));
    advance_to(&mut scene, 60);
    let ask = ReservationRequest {
        token: 5,
        name: "test".to_owned(),
        parts: vec![part("a", 3, 61, 100)],
        max_cost: f64::INFINITY,
        lease_ms: None,
        owner: None,
    };
    let id = (scene.manager.prepare(&ask).unwrap().id, 5);
    let ended = |out: &[ManagerAction]| {
        out.iter().any(|action| matches!(action, ManagerAction::End { .. }))
    };
    let out = advance_to(&mut scene, 62);
    assert!(!ended(&out), "{out:?}");
    // Nor after the agreement, as long as other jobs can release enough.
    scene.manager.commit(id.0, id.1, &mut Vec::new()).unwrap();
    scene.manager.confirm(id.0, id.1, &mut Vec::new()).unwrap();
    let out = advance_to(&mut scene, 63);
    assert!(!ended(&out), "{out:?}");
}

#[test]
fn a_job_may_start_before_its_reservation_on_processors_that_no_other_needs() {
    let mut scene = scene(by(Approach::Running, Policy::Egs), &[("a", 4)]);
    reserve(&mut scene, vec![part("a", 3, 1000, 2000)]).unwrap();
    reserve(&mut scene, vec![part("a", 2, 5, 500)]).unwrap();
    let early = |reservation, size| JobRequirements {
        reservation: Some(ReservationId(reservation)),
        starts_early: true,
        expected_ms: Some(60_000),
        ..JobRequirements::one(Kind::Rigid, size, size, size)
    };
    assert_eq!(scene.submit(1, early(1, 3)), [], "the other reservation needs two");
    let out = scene.submit(2, early(1, 2));
    assert!(matches!(&out[..], [ManagerAction::Claim { job: JobId(2), .. }]), "{out:?}");
    scene.claimed(2, "a", 2);
    // What it has counts in the reservation, and the rest is for the other one.
    let other = scene.submit(3, early(2, 2));
    assert!(matches!(&other[..], [ManagerAction::Claim { job: JobId(3), .. }]), "{other:?}");
    let out = scene.submit(4, JobRequirements::one(Kind::Rigid, 1, 1, 1));
    assert_eq!(out, [], "none is left");
}
