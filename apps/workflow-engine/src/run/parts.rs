//! The parts of offered slots that are reserved for a plan.
//!
//! It does not know how slots are reserved.

use std::collections::BTreeMap;

use springtide_actors::policy::provisioning::{AvailabilityProfile, Booking, NEVER, Time};
use springtide_actors::reservation::ReservedSlot;
use springtide_runtime::id::ClusterId;

use crate::planning::Plan;
use springtide_operations::offers::Offers;

/// The part of each slot of a plan: all of it, or what tasks use of a divisible one. The plan's
/// times count from `origin`.
pub fn parts(plan: &Plan, offers: &Offers, origin: Time) -> Vec<ReservedSlot> {
    let mut used: BTreeMap<usize, AvailabilityProfile> = BTreeMap::new();
    for task in &plan.schedule.tasks {
        for piece in &task.pieces {
            let line = used.entry(piece.slot).or_default();
            line.give(piece.processors, task.start, task.end);
        }
    }
    let mut all = Vec::new();
    for had in &plan.slots {
        let cluster = ClusterId::from(offers.sites[had.offer.site].name.as_str());
        let whole = || {
            let (processors, start, end) = (had.offer.processors, had.offer.start, had.end);
            vec![Booking { processors, start, end }]
        };
        let mut bookings = if had.offer.divisible {
            used.get(&had.slot).map_or_else(Vec::new, steps)
        } else {
            whole()
        };
        for booking in &mut bookings {
            booking.start = booking.start.saturating_add(origin);
            booking.end = booking.end.saturating_add(origin);
        }
        if !bookings.is_empty() {
            all.push(ReservedSlot { cluster, bookings });
        }
    }
    all
}

/// A profile as bookings that do not overlap, one for each interval of a constant number.
fn steps(line: &AvailabilityProfile) -> Vec<Booking> {
    let steps: Vec<(Time, u32)> = line.steps().collect();
    let mut all: Vec<Booking> = Vec::new();
    for two in steps.windows(2) {
        let ((start, processors), (end, _)) = (two[0], two[1]);
        match all.last_mut() {
            Some(last) if last.end == start && last.processors == processors => last.end = end,
            _ if processors > 0 => all.push(Booking { processors, start, end }),
            _ => {}
        }
    }
    all
}

/// The most processors of each cluster at a time.
pub fn most(parts: &[ReservedSlot]) -> BTreeMap<&ClusterId, u32> {
    let mut lines: BTreeMap<&ClusterId, AvailabilityProfile> = BTreeMap::new();
    for part in parts {
        let line = lines.entry(&part.cluster).or_default();
        part.bookings.iter().for_each(|b| line.give(b.processors, b.start, b.end));
    }
    lines.into_iter().map(|(cluster, line)| (cluster, line.max_free(0, NEVER))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_becomes_bookings_that_do_not_overlap() {
        let mut line = AvailabilityProfile::default();
        for (processors, start, end) in
            [(2, 10, 30), (1, 20, 40), (3, 50, 60), (1, 60, 70), (2, 60, 70)]
        {
            line.give(processors, start, end);
        }
        let told: Vec<_> = steps(&line).iter().map(|b| (b.processors, b.start, b.end)).collect();
        assert_eq!(told, [(2, 10, 20), (3, 20, 30), (1, 30, 40), (3, 50, 70)]);
        let part = |bookings| ReservedSlot { cluster: "a".into(), bookings };
        let parts = [part(steps(&line)), part(vec![Booking { processors: 2, start: 35, end: 55 }])];
        assert_eq!(most(&parts), [(&"a".into(), 5)].into());
    }
}
