//! `slots list`, `reserve` and `release`: the slots of a running grid, and manual reservations.
//!
//! Independent of the purpose of reservations.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueHint};
use serde_json::json;
use springtide_actors::policy::provisioning::{Booking, Time, from_duration, seconds};
use springtide_actors::reservation::{Part, Phase, Reservation, ReservationId};
use springtide_actors::scheduler::manager::SiteOffer;
use springtide_actors::scheduler::{GridSlots, ReleaseSlots};
use springtide_runtime::id::ClusterId;

use crate::agree::{agree, now, slots};
use crate::args::time;
use crate::exit::{Exit, Failed};
use crate::jobs::{GridArgs, attach_by, told_early};
use crate::outdir::write_file;
use crate::report::SCHEMA;
use crate::run::print;
use crate::workflow::offers::{self, Link, Offer, Offers, Site};

/// Subcommands of the command `slots`.
#[derive(Subcommand, Clone, Debug)]
pub enum SlotsCommand {
    /// List slots and reservations; with --json in the format that `workflow plan --slots` reads
    List(GridArgs),
}

/// The options of `reserve`.
#[derive(Args, Clone, Debug)]
pub struct ReserveArgs {
    #[command(flatten)]
    pub grid: GridArgs,
    /// Cluster to reserve in
    #[arg(long, value_name = "CLUSTER")]
    pub on: String,
    /// Number of processors to reserve
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub processors: u32,
    /// Earliest start from now, for example 10m; the reservation begins as soon as processors are
    /// free then [default: 0s]
    #[arg(long = "in", value_name = "TIME", value_parser = time)]
    pub ahead: Option<Duration>,
    /// Duration of the reservation
    #[arg(long = "for", value_name = "TIME", value_parser = time)]
    pub duration: Duration,
    /// Fail unless the reservation can begin at the earliest start
    #[arg(long)]
    pub exactly: bool,
    /// Maximum price [default: no limit]
    #[arg(long, value_name = "COST")]
    pub budget: Option<f64>,
    /// Name of the reservation in lists
    #[arg(long, value_name = "NAME", default_value = "by hand")]
    pub name: String,
}

/// The options of `release`.
#[derive(Args, Clone, Debug)]
pub struct ReleaseArgs {
    /// Number of the reservation
    #[arg(value_name = "N")]
    pub reservation: u64,
    /// Config of the running grid
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub config: PathBuf,
}

/// Executes `slots list`.
///
/// # Errors
/// No grid is up.
pub async fn list(SlotsCommand::List(args): SlotsCommand) -> Result<(), Failed> {
    let request = async {
        let grid = attach_by(&args.config).await?;
        let found = slots(&grid.scheduler()).await;
        grid.endpoint.net.close("answered").await;
        found
    };
    match request.await {
        Ok(found) if args.json => print(&object(&found)?),
        Ok(found) => print(&text(&found)),
        Err(failed) => told_early(args.json, None, failed),
    }
}

/// Executes `reserve`.
///
/// # Errors
/// [`Exit::NotPlaced`] if the processors are not available.
pub async fn reserve(args: ReserveArgs) -> Result<(), Failed> {
    let request = async {
        let grid = attach_by(&args.grid.config).await?;
        let mut planner = |slots: &_, but: &_| plan(&args, slots, but);
        let made = agree(&grid.scheduler(), &args.name, None, &mut planner).await;
        grid.endpoint.net.close("answered").await;
        made
    };
    match request.await {
        Ok(one) if args.grid.json => {
            let object = json!({ "schema": SCHEMA, "ok": true, "reservation": one });
            print(&format!("{object}\n"))
        }
        Ok(one) => print(&format!("{}\n", line(&one, now()))),
        Err(failed) => told_early(args.grid.json, None, failed),
    }
}

/// Executes `release`.
///
/// # Errors
/// No such reservation exists.
pub async fn release(args: ReleaseArgs) -> Result<(), Failed> {
    let grid = attach_by(&args.config).await?;
    let word = ReleaseSlots { id: ReservationId(args.reservation), token: None };
    let answer = grid.scheduler().send(word).await;
    grid.endpoint.net.close("answered").await;
    answer?.map(drop).map_err(|refusal| Failed::new(Exit::Usage, refusal))
}

/// The earliest reservation for which a cluster's slots have enough processors.
fn plan(
    args: &ReserveArgs,
    slots: &GridSlots,
    but: &std::collections::BTreeMap<ClusterId, String>,
) -> Result<(Vec<Part>, f64), String> {
    let cluster = ClusterId::from(args.on.as_str());
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
    let from = slots.now.saturating_add(from_duration(args.ahead.unwrap_or_default()));
    let duration = from_duration(args.duration);
    let Some(start) = earliest(site, args.processors, from, duration) else {
        let most = site.slots.iter().map(|slot| slot.processors).max().unwrap_or(0);
        return Err(format!(
            "{cluster} never offers {} processors together for this time (its largest slot has \
            {most}): `slots list` shows its slots",
            args.processors
        ));
    };
    if args.exactly && start > from {
        let late = seconds(start - from);
        return Err(format!(
            "{cluster} has {} processors for this time only {late:.0} s later: omit --exactly to \
            reserve them then",
            args.processors
        ));
    }
    let booking =
        Booking { processors: args.processors, start, end: start.saturating_add(duration) };
    let part = Part { cluster, bookings: vec![booking] };
    Ok((vec![part], args.budget.unwrap_or(f64::INFINITY)))
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
pub async fn offers_now(config: &std::path::Path) -> Result<Offers, Failed> {
    let grid = attach_by(config).await?;
    let found = slots(&grid.scheduler()).await;
    grid.endpoint.net.close("answered").await;
    found.map(|found| offers_of(&found, found.now))
}

/// Writes the offers to a file for planners.
///
/// # Errors
/// The file cannot be written.
pub fn advertise(found: &GridSlots, file: &std::path::Path) -> Result<(), Failed> {
    let text = object(found)?;
    write_file(file, text.as_bytes())
}

/// The offers as a JSON object in the format of an offer file.
fn object(found: &GridSlots) -> Result<String, Failed> {
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

/// The time from now as text.
fn at(time: Time, now: Time) -> String {
    match time.checked_sub(now) {
        None | Some(0) => "now".to_owned(),
        Some(left) => format!("in {}", crate::report::seconds(seconds(left))),
    }
}

fn line(one: &Reservation, now: Time) -> String {
    let mut clusters: std::collections::BTreeMap<&ClusterId, u32> = Default::default();
    for part in &one.parts {
        for booking in &part.bookings {
            let most = clusters.entry(&part.cluster).or_default();
            *most = (*most).max(one.at(&part.cluster, booking.start));
        }
    }
    let where_at: Vec<String> =
        clusters.iter().map(|(cluster, most)| format!("{most} of {cluster}")).collect();
    let phase = match one.phase {
        Phase::Prepared { .. } => ", prepared",
        Phase::Committed { .. } => ", committed",
        Phase::Confirmed { .. } => "",
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

fn text(found: &GridSlots) -> String {
    let mut out = String::new();
    for site in &found.sites {
        let SiteOffer { cluster, processors, epoch, slots, none } = site;
        let _ = write!(out, "{cluster}: {processors} processors");
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
            let duration = match slot.extensible {
                true => format!("{} or longer", crate::report::seconds(duration)),
                false => crate::report::seconds(duration),
            };
            let whole = if slot.divisible { "in part or whole" } else { "only whole" };
            let fixed = match slot.price.fixed > 0.0 {
                true => format!(" and {:.2}", slot.price.fixed),
                false => String::new(),
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
