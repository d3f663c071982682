//! The reservations of the grid in a tick: a bounded amount of data.
//!
//! This module does not know the drawing.

use serde_json::{Value, json};
use springtide_actors::policy::provisioning::{Time, seconds};
use springtide_actors::reservation::{Reservation, ReservationPhase};
use springtide_actors::scheduler::GridSlots;

/// Maximum number of bookings, the earliest ones; others are counted.
const BOOKINGS_MAX: usize = 60;
/// Maximum length of a reservation's name in characters.
const NAME_MAX: usize = 30;

/// The slots in a tick; none if no cluster offers any and none is reserved. Times are seconds from
/// the snapshot on.
pub fn slots_object(slots: &GridSlots) -> Option<Value> {
    let GridSlots { now, sites, reservations, .. } = slots;
    if reservations.is_empty() && sites.iter().all(|site| site.slots.is_empty()) {
        return None;
    }
    let after = |time: Time| seconds(time.saturating_sub(*now)).round() as u64;
    let all: Vec<_> = sites
        .iter()
        .map(|site| {
            let free =
                site.slots.iter().filter(|slot| slot.start <= *now).map(|slot| slot.processors);
            let free: u32 = free.sum();
            match &site.none {
                Some(why) => json!({ "n": site.cluster, "p": site.processors, "none": why }),
                None => json!({ "n": site.cluster, "p": site.processors, "free": free }),
            }
        })
        .collect();
    let mut bookings: Vec<_> = reservations
        .iter()
        .flat_map(|one| one.bookings().map(move |(cluster, booking)| (one, cluster, booking)))
        .filter(|(_, _, booking)| booking.end > *now)
        .filter_map(|(one, cluster, booking)| {
            let site = sites.iter().position(|site| site.cluster == *cluster)?;
            Some((after(booking.start), after(booking.end), site, booking.processors, one))
        })
        .collect();
    bookings.sort_by_key(|(start, end, site, _, one)| (*start, *site, *end, one.id));
    let more = bookings.len().saturating_sub(BOOKINGS_MAX);
    let mut named: Vec<&Reservation> = Vec::new();
    let mut rows = Vec::new();
    for (start, end, site, processors, one) in bookings.into_iter().take(BOOKINGS_MAX) {
        let known = named.iter().position(|known| known.id == one.id);
        let at = known.unwrap_or_else(|| {
            named.push(one);
            named.len() - 1
        });
        rows.push(json!([site, processors, start, end, at]));
    }
    let of = |one: &&Reservation| {
        let phase = match one.phase {
            ReservationPhase::Prepared { .. } => "prepared",
            ReservationPhase::Committed { .. } => "committed",
            ReservationPhase::Confirmed { .. } => "confirmed",
        };
        let name: String = one.name.chars().take(NAME_MAX).collect();
        json!([one.id.0, name, phase, (one.cost * 100.0).round() / 100.0])
    };
    let named: Vec<_> = named.iter().map(of).collect();
    Some(json!({ "sites": all, "bookings": rows, "reservations": named, "more": more }))
}

#[cfg(test)]
mod tests {
    use springtide_actors::policy::provisioning::{Booking, Price, SECOND, Slot};
    use springtide_actors::reservation::{ReservationId, ReservedSlot};
    use springtide_actors::scheduler::manager::SiteOffer;

    use super::*;

    const NOW: Time = 1_000_000 * SECOND;

    fn site(cluster: &str, slots: Vec<Slot>, none: Option<&str>) -> SiteOffer {
        let none = none.map(str::to_owned);
        SiteOffer { cluster: cluster.into(), processors: 4, epoch: 1, slots, none }
    }

    fn slot(processors: u32) -> Slot {
        let (start, end) = (NOW, NOW + 100 * SECOND);
        Slot {
            site: 0,
            processors,
            start,
            end,
            price: Price::default(),
            divisible: true,
            extensible: true,
        }
    }

    fn reservation(id: u64, cluster: &str, times: &[(u64, u64)]) -> Reservation {
        let booking = |(start, end): &(u64, u64)| Booking {
            processors: 2,
            start: NOW + start * SECOND,
            end: NOW + end * SECOND,
        };
        Reservation {
            id: ReservationId(id),
            token: 1,
            name: "n".repeat(100),
            parts: vec![ReservedSlot {
                cluster: cluster.into(),
                bookings: times.iter().map(booking).collect(),
            }],
            cost: 1.239,
            phase: ReservationPhase::Confirmed { until: None },
            lease_ms: None,
            owner: None,
        }
    }

    #[test]
    fn the_earliest_bookings_are_listed_and_the_others_counted() {
        let sites =
            vec![site("a", vec![slot(3)], None), site("b", Vec::new(), Some("batch system"))];
        let many: Vec<_> = (0..100).map(|n| (n * 10, n * 10 + 5)).collect();
        let reservations =
            vec![reservation(2, "a", &many), reservation(1, "a", &[(3, 4), (9, 12)])];
        let object =
            slots_object(&GridSlots { now: NOW, sites, reservations, links: Vec::new() }).unwrap();
        assert_eq!(
            object["sites"],
            json!([{"n": "a", "p": 4, "free": 3}, {"n": "b", "p": 4, "none": "batch system"}])
        );
        let rows = object["bookings"].as_array().unwrap();
        assert_eq!(
            rows[..3],
            [json!([0, 2, 0, 5, 0]), json!([0, 2, 3, 4, 1]), json!([0, 2, 9, 12, 1])]
        );
        assert_eq!((rows.len(), &object["more"]), (BOOKINGS_MAX, &json!(42)));
        assert_eq!(
            object["reservations"],
            json!([
                [2, "n".repeat(NAME_MAX), "confirmed", 1.24],
                [1, "n".repeat(NAME_MAX), "confirmed", 1.24]
            ])
        );
        assert!(object.to_string().len() < 2000, "{}", object.to_string().len());
    }

    #[test]
    fn without_offers_there_is_no_object() {
        let sites = vec![site("b", Vec::new(), Some("batch system"))];
        assert_eq!(
            slots_object(&GridSlots {
                now: NOW,
                sites,
                reservations: Vec::new(),
                links: Vec::new()
            }),
            None
        );
    }
}
