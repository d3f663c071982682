//! The slots of a running grid, and manual reservations.
//!
//! This module does not know the purpose of reservations.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use springtide_actors::policy::provisioning::{Booking, Time, from_duration, seconds};
use springtide_actors::reservation::{
    Reservation, ReservationId, ReservationRefusal, ReservedSlot,
};
use springtide_actors::scheduler::manager::SiteOffer;
use springtide_actors::scheduler::{GridSlots, ReleaseSlots};
use springtide_cli::exit::{Exit, Failed};
use springtide_cli::outdir::write_file;
use springtide_runtime::id::ClusterId;

use super::agree::{agree, slots};
use super::attach::attach_by;
use super::offers::{self, Link, Offer, Offers, Site};

/// A reservation that a person asks for.
pub struct ReserveRequest<'a> {
    /// The cluster to reserve in.
    pub cluster: &'a str,
    /// The number of processors.
    pub processors: u32,
    /// The earliest start from now; none: at once.
    pub ahead: Option<Duration>,
    /// The duration of the reservation.
    pub duration: Duration,
    /// Whether it must begin at the earliest start.
    pub exactly: bool,
    /// The maximum price; none: no limit.
    pub budget: Option<f64>,
    /// The name of the reservation in lists.
    pub name: &'a str,
}

/// The slots and reservations of the grid of a config file.
///
/// # Errors
/// No grid is up.
pub async fn list(config: &Path) -> Result<GridSlots, Failed> {
    let grid = attach_by(config).await?;
    let found = slots(&grid.scheduler()).await;
    grid.endpoint.net.close("answered").await;
    found
}

/// Reserves processors.
///
/// # Errors
/// [`Exit::NotPlaced`] if the processors are not available.
pub async fn reserve(config: &Path, request: &ReserveRequest<'_>) -> Result<Reservation, Failed> {
    let grid = attach_by(config).await?;
    let mut planner = |slots: &_, but: &_| plan(request, slots, but);
    let made = agree(&grid.scheduler(), request.name, None, &mut planner).await;
    grid.endpoint.net.close("answered").await;
    made
}

/// Ends a reservation.
///
/// # Errors
/// No such reservation exists.
pub async fn release(config: &Path, id: ReservationId) -> Result<(), Failed> {
    let grid = attach_by(config).await?;
    let answer = grid.scheduler().send(ReleaseSlots { id, token: None, by: None }).await;
    grid.endpoint.net.close("answered").await;
    answer?.map(drop).map_err(|refusal| {
        let is_foreign = matches!(refusal, ReservationRefusal::Foreign { .. });
        Failed::new(if is_foreign { Exit::Auth } else { Exit::Usage }, refusal)
    })
}

/// The earliest reservation for which a cluster's slots have enough processors.
fn plan(
    request: &ReserveRequest<'_>,
    slots: &GridSlots,
    but: &BTreeMap<ClusterId, String>,
) -> Result<(Vec<ReservedSlot>, f64), String> {
    let cluster = ClusterId::from(request.cluster);
    if let Some(why) = but.get(&cluster) {
        return Err(format!("{cluster} does not grant it: {why}"));
    }
    let names = || slots.sites.iter().map(|site| site.cluster.as_str()).collect::<Vec<_>>();
    let Some(site) = slots.sites.iter().find(|site| site.cluster == cluster) else {
        return Err(format!("the grid has no cluster {cluster}; it has {}", names().join(", ")));
    };
    if let Some(none) = &site.none {
        return Err(format!("{cluster} offers no slots: {none}"));
    }
    let from = slots.now.saturating_add(from_duration(request.ahead.unwrap_or_default()));
    let duration = from_duration(request.duration);
    let Some(start) = earliest(site, request.processors, from, duration) else {
        let most = site.slots.iter().map(|slot| slot.processors).max().unwrap_or(0);
        return Err(format!(
            "{cluster} never offers {} processors together for this time (its largest slot has \
            {most}): `slots list` shows its slots",
            request.processors
        ));
    };
    if request.exactly && start > from {
        let late = seconds(start - from);
        return Err(format!(
            "{cluster} has {} processors for this time only {late:.0} s later: omit --exactly to \
            reserve them then",
            request.processors
        ));
    }
    let booking =
        Booking { processors: request.processors, start, end: start.saturating_add(duration) };
    let part = ReservedSlot { cluster, bookings: vec![booking] };
    Ok((vec![part], request.budget.unwrap_or(f64::INFINITY)))
}

/// The earliest time at which slots of a site together have this many processors for this time.
/// Each slot is free throughout its interval; an extensible slot has no end.
fn earliest(site: &SiteOffer, processors: u32, from: Time, duration: Time) -> Option<Time> {
    let mut starts: Vec<Time> = site.slots.iter().map(|slot| slot.start.max(from)).collect();
    starts.sort_unstable();
    let fits = |start: &Time| {
        let end = start.saturating_add(duration);
        let free = site
            .slots
            .iter()
            .filter(|slot| slot.start <= *start && (slot.extensible || slot.end >= end));
        free.map(|slot| slot.processors).sum::<u32>() >= processors
    };
    starts.into_iter().find(fits)
}

/// The offers of a grid with this config.
///
/// # Errors
/// No grid is up.
pub async fn offers_now(config: &Path) -> Result<Offers, Failed> {
    let found = list(config).await?;
    Ok(offers_of(&found, found.now))
}

/// Writes the offers to a file for planners.
///
/// # Errors
/// The file cannot be written.
pub fn advertise(found: &GridSlots, file: &Path) -> Result<(), Failed> {
    let text = offers_json(found)?;
    write_file(file, text.as_bytes())
}

/// The offers as a JSON object in the format of an offer file.
///
/// # Errors
/// They do not serialise.
pub fn offers_json(found: &GridSlots) -> Result<String, Failed> {
    let text = serde_json::to_string(&offers_of(found, found.now));
    Ok(format!("{}\n", text.map_err(Failed::failure)?))
}

/// The offers of sites, with times relative to `origin`.
pub fn offers_of(found: &GridSlots, origin: Time) -> Offers {
    let after = |time: Time| seconds(time.saturating_sub(origin));
    let site = |offer: &SiteOffer| Site {
        name: offer.cluster.to_string(),
        processors: offer.processors,
        speed: 1.0,
        epoch: offer.epoch,
        slots: offer
            .slots
            .iter()
            .filter(|slot| slot.end > origin)
            .map(|slot| Offer {
                processors: slot.processors,
                start_s: after(slot.start),
                end_s: after(slot.end),
                rate: slot.price.rate,
                fixed: slot.price.fixed,
                divisible: slot.divisible,
                extensible: slot.extensible,
            })
            .collect(),
    };
    let link = |link: &springtide_actors::scheduler::GridLink| Link {
        a: link.a.to_string(),
        b: link.b.to_string(),
        latency_s: link.latency_s,
        bytes_per_s: link.bytes_per_s,
    };
    Offers {
        schema: offers::SCHEMA,
        origin_unix_s: seconds(origin),
        sites: found.sites.iter().map(site).collect(),
        links: found.links.iter().map(link).collect(),
    }
}

#[cfg(test)]
mod tests {
    use springtide_actors::policy::provisioning::{Price, SECOND, Slot};

    use super::*;

    fn slot(processors: u32, start: u64, end: u64, last: bool) -> Slot {
        let (start, end) = (start * SECOND, end * SECOND);
        let price = Price::default();
        Slot { site: 0, processors, start, end, price, divisible: last, extensible: last }
    }

    #[test]
    fn the_earliest_time_may_take_several_slots() {
        let slots = vec![slot(2, 0, 10, false), slot(3, 0, 100, true), slot(4, 20, 100, true)];
        let (cluster, none) = ("a".into(), None);
        let site = SiteOffer { cluster, processors: 9, epoch: 1, slots, none };
        let at = |processors, from: u64, duration: u64| {
            earliest(&site, processors, from * SECOND, duration * SECOND).map(|time| time / SECOND)
        };
        assert_eq!(at(5, 0, 10), Some(0));
        assert_eq!(at(5, 0, 11), Some(20));
        assert_eq!(at(3, 5, 5000), Some(5));
        assert_eq!(at(7, 0, 5000), Some(20));
        assert_eq!(at(8, 0, 1), None);
    }
}
