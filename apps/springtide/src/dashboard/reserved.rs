//! What is reserved of the grid, as a tick tells it: few numbers, whatever there is.
//!
//! Must not know how it is drawn.

use serde_json::{Value, json};
use springtide_actors::policy::provisioning::{Time, seconds};
use springtide_actors::reservation::{Phase, Reservation};
use springtide_actors::scheduler::GridSlots;

/// Bookings that are told of, the earliest ones; of more their number is said.
const BOOKINGS: usize = 60;
/// Characters of a reservation's name.
const NAME: usize = 30;

/// What a tick says of slots; nothing where no cluster offers any and none is taken. Times are seconds from the moment on at which it
/// was asked.
pub fn told(slots: &GridSlots) -> Option<Value> {
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
    let more = bookings.len().saturating_sub(BOOKINGS);
    let mut named: Vec<&Reservation> = Vec::new();
    let mut rows = Vec::new();
    for (start, end, site, processors, one) in bookings.into_iter().take(BOOKINGS) {
        let known = named.iter().position(|known| known.id == one.id);
        let at = known.unwrap_or_else(|| {
            named.push(one);
            named.len() - 1
        });
        rows.push(json!([site, processors, start, end, at]));
    }
    let of = |one: &&Reservation| {
        let phase = match one.phase {
            Phase::Prepared { .. } => "prepared",
            Phase::Committed { .. } => "committed",
            Phase::Confirmed { .. } => "confirmed",
        };
        let name: String = one.name.chars().take(NAME).collect();
        json!([one.id.0, name, phase, (one.cost * 100.0).round() / 100.0])
    };
    let named: Vec<_> = named.iter().map(of).collect();
    Some(json!({ "sites": all, "bookings": rows, "reservations": named, "more": more }))
}

#[cfg(test)]
mod tests {
    use springtide_actors::policy::provisioning::{Booking, Price, SECOND, Slot};
    use springtide_actors::reservation::{Part, ReservationId};
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
            parts: vec![Part {
                cluster: cluster.into(),
                bookings: times.iter().map(booking).collect(),
            }],
            cost: 1.239,
            phase: Phase::Confirmed { until: None },
            lease_ms: None,
        }
    }

    #[test]
    fn the_earliest_bookings_are_told_and_the_others_counted() {
        let sites =
            vec![site("a", vec![slot(3)], None), site("b", Vec::new(), Some("batch system"))];
        let many: Vec<_> = (0..100).map(|n| (n * 10, n * 10 + 5)).collect();
        let reservations =
            vec![reservation(2, "a", &many), reservation(1, "a", &[(3, 4), (9, 12)])];
        let told = told(&GridSlots { now: NOW, sites, reservations, links: Vec::new() }).unwrap();
        assert_eq!(
            told["sites"],
            json!([{"n": "a", "p": 4, "free": 3}, {"n": "b", "p": 4, "none": "batch system"}])
        );
        let rows = told["bookings"].as_array().unwrap();
        assert_eq!(
            rows[..3],
            [json!([0, 2, 0, 5, 0]), json!([0, 2, 3, 4, 1]), json!([0, 2, 9, 12, 1])]
        );
        assert_eq!((rows.len(), &told["more"]), (BOOKINGS, &json!(42)));
        assert_eq!(
            told["reservations"],
            json!([
                [2, "n".repeat(NAME), "confirmed", 1.24],
                [1, "n".repeat(NAME), "confirmed", 1.24]
            ])
        );
        assert!(told.to_string().len() < 2000, "{}", told.to_string().len());
    }

    #[test]
    fn where_nothing_is_offered_nothing_is_told() {
        let sites = vec![site("b", Vec::new(), Some("batch system"))];
        assert_eq!(
            told(&GridSlots { now: NOW, sites, reservations: Vec::new(), links: Vec::new() }),
            None
        );
    }
}
