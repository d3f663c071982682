//! Texts about slots and reservations.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use springtide_actors::policy::provisioning::{Time, seconds};
use springtide_actors::reservation::{Reservation, ReservationPhase};
use springtide_actors::scheduler::GridSlots;
use springtide_actors::scheduler::manager::SiteOffer;
use springtide_cli::format;
use springtide_runtime::id::ClusterId;

/// The time from now as text.
fn at(time: Time, now: Time) -> String {
    match time.checked_sub(now) {
        None | Some(0) => "now".to_owned(),
        Some(left) => format!("in {}", format::seconds(seconds(left))),
    }
}

/// A reservation as a line.
pub fn line(one: &Reservation, now: Time) -> String {
    let mut clusters: BTreeMap<&ClusterId, u32> = Default::default();
    for part in &one.parts {
        for booking in &part.bookings {
            let most = clusters.entry(&part.cluster).or_default();
            *most = (*most).max(one.processors_at(&part.cluster, booking.start));
        }
    }
    let where_at: Vec<String> =
        clusters.iter().map(|(cluster, most)| format!("{most} of {cluster}")).collect();
    let phase = match one.phase {
        ReservationPhase::Prepared { .. } => ", prepared",
        ReservationPhase::Committed { .. } => ", committed",
        ReservationPhase::Confirmed { .. } => "",
    };
    format!(
        "{} ({}): {} {} until {}, costs {:.2}{phase}",
        one.id,
        one.name,
        where_at.join(", "),
        at(one.start(), now),
        at(one.end(), now).trim_start_matches("in ").replace("now", "now (over)"),
        one.cost
    )
}

/// Slots and reservations as lines.
pub fn text(found: &GridSlots) -> String {
    let mut out = String::new();
    for site in &found.sites {
        let SiteOffer { cluster, processors, epoch, slots, none } = site;
        let _ = write!(out, "{cluster}: {}", format::many((*processors).into(), "processor"));
        if let Some(none) = none {
            let _ = writeln!(out, ", no slots: {none}");
            continue;
        }
        let _ = writeln!(out, ", offers of epoch {epoch}");
        if slots.is_empty() {
            let _ = writeln!(out, "  nothing: all processors are taken indefinitely");
        }
        for slot in slots {
            let (start, duration) = (at(slot.start, found.now), seconds(slot.end - slot.start));
            let duration = if slot.extensible {
                format!("{} or longer", format::seconds(duration))
            } else {
                format::seconds(duration)
            };
            let whole = if slot.divisible { "in part or whole" } else { "only whole" };
            let fixed = if slot.price.fixed > 0.0 {
                format!(" and {:.2}", slot.price.fixed)
            } else {
                String::new()
            };
            let _ = writeln!(
                out,
                "  {:>5} {start} for {duration}, {whole}, {:.3} a second{fixed}",
                slot.processors, slot.price.rate
            );
        }
    }
    for one in &found.reservations {
        let _ = writeln!(out, "{}", line(one, found.now));
    }
    out
}
