//! What nodes send inside messages: changes of a movie's frames, bodies, and states of masters. And
//! orders that hold numbers, which reach state machines.

use serde::Serialize;
use serde::de::DeserializeOwned;
use springtide_actors::policy::provisioning::{Booking, BookingTable, Terms};
use springtide_actors::reservation::{
    ReservableSite, ReservationLedger, ReservationRequest, ReservedSlot, StepTimeouts,
};
use springtide_actors::scheduler::manager::{
    JobRequirements, Kind, Manager, ManagerEvent, ManagerSettings,
};
use springtide_barnes_hut::bodies::Bodies;
use springtide_barnes_hut::delta::{Delta, PositionFrame, decode, encode};
use springtide_barnes_hut::generate;
use springtide_runtime::fuzz::{Target, run};
use springtide_runtime::id::JobId;
use springtide_runtime::wire::{decode_payload, encode_payload};
use springtide_stochastic::solve::driver::DriverState;

use super::target;

/// Decodes a value; it is the same after it was encoded and decoded again.
fn value<T: Serialize + DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    let value: T = decode_payload(bytes).map_err(|error| error.to_string())?;
    let encoded = encode_payload(&value).unwrap();
    let again: T = decode_payload(&encoded).unwrap();
    assert_eq!(encode_payload(&again).unwrap(), encoded);
    Ok(value)
}

fn frame(shift: u8) -> PositionFrame {
    let inside = (0..20 * 12_u8).map(|byte| byte.wrapping_mul(37).wrapping_add(shift)).collect();
    PositionFrame { centre: [0.0; 3], side: 2.0, inside }
}

#[test]
fn frames_of_movies() {
    let read = |bytes: &[u8]| {
        let delta: Delta = value(bytes)?;
        let _ = delta.wire_len();
        let next = decode(&frame(0), &[frame(1)], &delta).map_err(|error| error.to_string())?;
        assert_eq!(next.len(), frame(0).len());
        Ok(())
    };
    let delta = |before: &[PositionFrame]| encode(&frame(0), before, &frame(3)).unwrap();
    let seeds = [delta(&[]), delta(&[frame(1)])].map(|one| encode_payload(&one).unwrap().to_vec());
    run(target("fuzz::wire::frames_of_movies", read), seeds.to_vec());
}

#[test]
fn bodies() {
    let read = |bytes: &[u8]| {
        let bodies: Bodies = value(bytes)?;
        assert!(bodies.second <= bodies.len());
        assert!(bodies.velocity.len() == bodies.len() && bodies.mass.len() == bodies.len());
        Ok(())
    };
    let seeds = vec![encode_payload(&generate::plummer(4, 1)).unwrap().to_vec()];
    run(target("fuzz::wire::bodies", read), seeds);
}

#[test]
fn states_of_masters() {
    let read = |bytes: &[u8]| value::<DriverState>(bytes).map(drop);
    let empty = (None::<u8>, Vec::<u8>::new(), 3_u64, Some(2_u32), 1.5);
    run(
        target("fuzz::wire::states_of_masters", read),
        vec![encode_payload(&empty).unwrap().to_vec()],
    );
}

const WORDS: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "\"",
    "null",
    "4294967295",
    "18446744073709551615",
    "0",
    "1e308",
];

/// A reservation with any numbers is agreed on or refused, and the ledger stays whole.
#[test]
fn reservations() {
    let read = |bytes: &[u8]| {
        let ask: ReservationRequest =
            serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        let mut ledger = ReservationLedger::new(StepTimeouts::default());
        let site = ReservableSite { table: BookingTable::new(8), terms: Terms::default() };
        let sites = [("a".into(), site)].into();
        let mut changes = Vec::new();
        let now = 1_000_000;
        let agreed = ledger.prepare(&ask, &sites, now).cloned();
        let agreed = agreed.and_then(|one| {
            ledger.commit(one.id, one.token, &sites, now, &mut changes)?;
            ledger.confirm(one.id, one.token, now, &mut changes).cloned()
        });
        ledger.audit().unwrap();
        let table = ledger.booked(&"a".into(), &BookingTable::new(8), now);
        let _ = (table.slots(0, now, |_| Terms::default().price(0)), ledger.due());
        ledger.expire(u64::MAX, &mut changes);
        agreed.map(drop).map_err(|error| error.to_string())
    };
    let booking = Booking { processors: 2, start: 2_000_000, end: 9_000_000 };
    let ask = ReservationRequest {
        token: 7,
        name: "montage".to_owned(),
        parts: vec![ReservedSlot { cluster: "a".into(), bookings: vec![booking] }],
        max_cost: 1e9,
        lease_ms: Some(20_000),
        owner: None,
    };
    let target = target("fuzz::wire::reservations", read);
    let seeds = vec![serde_json::to_vec(&ask).unwrap()];
    run(Target { words: WORDS, max_len: 4 << 10, ..target }, seeds);
}

/// Jobs with any requirements are placed, wait or fail, and the accounts stay whole.
#[test]
fn requirements() {
    let read = |bytes: &[u8]| {
        let need: JobRequirements =
            serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        need.check()?;
        let now = tokio::time::Instant::now();
        let mut manager = Manager::new(ManagerSettings::default(), ["a".into(), "b".into()], now);
        for cluster in ["a", "b"] {
            let cluster = cluster.into();
            manager
                .handle(ManagerEvent::Polled { cluster, size: u32::MAX, others: 2, whole: 9 }, now);
        }
        let _ = manager.plan(&need);
        for job in [1, 2].map(JobId) {
            manager.handle(ManagerEvent::Submit { job, need: Box::new(need.clone()) }, now);
            let _ = manager.job(job);
        }
        manager.handle(ManagerEvent::Ended { job: JobId(1) }, now);
        let later = manager.due().unwrap_or(now);
        manager.handle(ManagerEvent::Tick, later);
        manager.audit()
    };
    let target = target("fuzz::wire::requirements", read);
    let seeds = [Kind::Rigid, Kind::Moldable, Kind::Malleable]
        .map(|kind| serde_json::to_vec(&JobRequirements::one(kind, 2, 3, 5)).unwrap());
    run(Target { words: WORDS, max_len: 4 << 10, ..target }, seeds.to_vec());
}
