//! Reservations of a run: it plans tasks on present offers and holds the slots.
//!
//! It does not know when tasks start.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use springtide_actors::policy::provisioning::{SECOND, Time, seconds};
use springtide_actors::reservation::{
    Reservation, ReservationId, ReservationRefusal, ReservedSlot,
};
use springtide_actors::scheduler::manager::SiteOffer;
use springtide_actors::scheduler::{GridSlots, ReleaseSlots, Scheduler};
use springtide_cli::exit::Failed;
use springtide_runtime::id::ClusterId;
use springtide_runtime::remote::Remote;
use tokio::sync::mpsc;

use super::Prepared;
use super::flow::AgreedPlan;
use super::journal::JournalEntry;
use super::parts::{most, parts};
use super::spec::RunSpec;
use super::staging::Staging;
use crate::planning::{Needs, NoPlan, dag, plan};
use springtide_operations::agree::{agree, now, renew};
use springtide_operations::slots::offers_of;

/// Timeout of an answer that takes no work.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// A reservation ends if its run is silent for this time.
const LEASE: Duration = Duration::from_secs(60);
/// The time from the offers to the first task, in which the slots are reserved.
const LEAD: Time = SECOND / 2;

/// Slots that were reserved.
#[derive(Clone, Debug)]
pub struct ReservedSlots {
    /// Number of the reservation.
    pub id: ReservationId,
    /// Time of the reservation.
    pub at: Time,
    /// Reason of the reservation.
    pub reason: String,
    /// Number of tasks in the plan.
    pub tasks: usize,
    /// The planned running time of these tasks in seconds.
    pub makespan_s: f64,
    /// Cost of the plan.
    pub planned_cost: f64,
    /// The cost of the reserved slots.
    pub cost: f64,
    /// The reserved slots of the plan.
    pub parts: Vec<ReservedSlot>,
    /// The time of the release, once they are released.
    pub released: Option<Time>,
}

impl ReservedSlots {
    /// The cost until the release: slots are paid for the time until then.
    pub fn paid(&self) -> f64 {
        let Some(released) = self.released else { return self.cost };
        let bookings = || self.parts.iter().flat_map(|part| &part.bookings);
        let area = |until: Time| -> f64 {
            bookings()
                .map(|b| {
                    let end = b.end.min(until).max(b.start);
                    f64::from(b.processors) * seconds(end - b.start)
                })
                .sum()
        };
        let whole = area(Time::MAX);
        if whole > 0.0 { self.cost * area(released) / whole } else { self.cost }
    }
}

/// The reservations of a run.
pub struct Reserver {
    scheduler: Remote<Scheduler>,
    held: BTreeMap<ReservationId, HeldReservation>,
    losses: (mpsc::UnboundedSender<LostReservation>, mpsc::UnboundedReceiver<LostReservation>),
    all: Vec<ReservedSlots>,
}

/// A reservation that a task of this process renews.
struct HeldReservation {
    reservation: Reservation,
    renewing: tokio::task::JoinHandle<()>,
}

/// A reservation that cannot be renewed, and why.
type LostReservation = (ReservationId, ReservationRefusal);

impl Reserver {
    /// Creates a reserver without reservations.
    pub fn new(scheduler: Remote<Scheduler>) -> Self {
        let losses = mpsc::unbounded_channel();
        Self { scheduler, held: BTreeMap::new(), losses, all: Vec::new() }
    }

    /// All reservations so far.
    pub fn all(&self) -> &[ReservedSlots] {
        &self.all
    }

    /// Milliseconds until a reservation ends.
    pub fn remaining_ms(&self, id: ReservationId) -> Option<u64> {
        let parts = &self.held.get(&id)?.reservation.parts;
        let ends = parts.iter().flat_map(|part| &part.bookings).map(|booking| booking.end);
        Some((ends.max()?.saturating_sub(now()) / 1000).max(1))
    }

    /// Waits for the loss of a reservation. Cancel safe.
    pub async fn lost(&mut self) -> (ReservationId, String) {
        loop {
            match self.losses.1.recv().await {
                Some((id, refusal)) => {
                    if self.held.remove(&id).is_some() {
                        return (id, refusal.to_string());
                    }
                }
                // This object has a sender, so that the channel stays open.
                None => std::future::pending().await,
            }
        }
    }

    /// Plans tasks on present offers, and reserves their slots in addition to earlier ones. Returns
    /// the plan, an entry for the journal and a text for the user.
    ///
    /// # Errors
    /// No plan exists, or its slots cannot be reserved.
    pub async fn plan(
        &mut self,
        prepared: &Prepared,
        spec: &RunSpec,
        staging: &Staging,
        tasks: &BTreeSet<usize>,
        reason: &str,
    ) -> Result<(AgreedPlan, JournalEntry, String), Failed> {
        let order: Vec<usize> = tasks.iter().copied().collect();
        let index: BTreeMap<usize, usize> =
            order.iter().enumerate().map(|(at, &task)| (task, at)).collect();
        let servers = staging.clusters();
        let is_excluded = |cluster: &ClusterId| spec.has_files && !servers.contains(cluster);
        let chosen = RefCell::new(None);
        let mut planner = |slots: &GridSlots, avoided: &BTreeMap<ClusterId, String>| {
            let origin = slots.now.max(now()) + LEAD;
            let mut offers = offers_of(slots, origin);
            for site in &mut offers.sites {
                let cluster = ClusterId::from(site.name.as_str());
                if avoided.contains_key(&cluster) || is_excluded(&cluster) {
                    site.slots.clear();
                }
            }
            let needs = |&task: &usize| Needs {
                name: spec.steps[task].id.clone(),
                runtime_s: spec.planned[task].0,
                processors: spec.planned[task].1,
            };
            let edges = spec
                .edges
                .iter()
                .filter_map(|(from, to, bytes)| Some((*index.get(from)?, *index.get(to)?, *bytes)));
            let speeds: Vec<f64> = offers.sites.iter().map(|site| site.speed).collect();
            let dag = dag(order.iter().map(needs), edges, &speeds).map_err(|e| e.to_string())?;
            let request =
                prepared.args.choice.request(order.len(), &offers).map_err(|f| f.message)?;
            let plan = plan(&dag, &offers, &request).map_err(|no| describe(&no, slots))?;
            let parts = parts(&plan, &offers, origin);
            let places = plan.schedule.tasks.iter().zip(&order).map(|(place, &task)| {
                let cluster = ClusterId::from(offers.sites[place.site].name.as_str());
                (task, (cluster, origin.saturating_add(place.start)))
            });
            let agreed = (places.collect(), parts.clone());
            let objectives = plan.objectives();
            *chosen.borrow_mut() = Some((agreed, seconds(objectives.makespan), objectives.cost));
            Ok((parts, objectives.cost))
        };
        let name = prepared.read.name();
        let one = agree(&self.scheduler, &name, Some(LEASE), &mut planner).await?;
        let Some(((places, parts), makespan_s, planned_cost)) = chosen.into_inner() else {
            return Err(Failed::failure("a reservation has no plan"));
        };
        let agreed = AgreedPlan { reservation: one.id, places, parts };
        let text = format!(
            "{} holds {} for {} tasks: planned to end in {}, costs {:.2}",
            one.id,
            most_text(&one.parts),
            tasks.len(),
            springtide_cli::format::seconds(makespan_s),
            one.cost
        );
        let at = now();
        let entry = JournalEntry::Reserved {
            at_s: seconds(at),
            reservation: one.id.0,
            reason: reason.to_owned(),
            tasks: tasks.len(),
            makespan_s,
            cost: one.cost,
        };
        self.all.push(ReservedSlots {
            id: one.id,
            at,
            reason: reason.to_owned(),
            tasks: tasks.len(),
            makespan_s,
            planned_cost,
            cost: one.cost,
            parts: one.parts.clone(),
            released: None,
        });
        let (scheduler, losses, renewed) =
            (self.scheduler.clone(), self.losses.0.clone(), one.clone());
        let renewing = tokio::task::spawn_local(async move {
            let id = renewed.id;
            let refusal = renew(scheduler, renewed).await;
            // The run may be over.
            let _ = losses.send((id, refusal));
        });
        self.held.insert(one.id, HeldReservation { reservation: one, renewing });
        Ok((agreed, entry, text))
    }

    /// Releases all reservations that it holds.
    pub async fn release(&mut self) {
        for (id, held) in std::mem::take(&mut self.held) {
            held.renewing.abort();
            if let Some(one) = self.all.iter_mut().find(|one| one.id == id) {
                one.released = Some(now());
            }
            let order = ReleaseSlots { id, token: Some(held.reservation.token), by: None };
            // Without an answer it ends with its lease.
            let _ = self.scheduler.send(order).deadline(REQUEST_TIMEOUT).await;
        }
    }
}

/// The most processors of each cluster at a time, for people.
fn most_text(parts: &[ReservedSlot]) -> String {
    let all = most(parts).into_iter().map(|(cluster, most)| format!("{most} of {cluster}"));
    all.collect::<Vec<_>>().join(", ")
}

/// Why there is no plan, in a sentence; `workflow plan` says more.
fn describe(no: &NoPlan, slots: &GridSlots) -> String {
    match no {
        NoPlan::NoSlots => {
            let reason =
                |site: &SiteOffer| Some(format!("{}: {}", site.cluster, site.none.as_ref()?));
            let reasons: Vec<String> = slots.sites.iter().filter_map(reason).collect();
            let reasons = match reasons.as_slice() {
                [] => "`slots list` shows what is reserved".to_owned(),
                reasons => reasons.join("; "),
            };
            format!("no suitable cluster offers a slot, and --best-effort needs none ({reasons})")
        }
        NoPlan::NoPlace(blocked) => blocked.why.to_string(),
        NoPlan::Constraint(missed) => format!(
            "no plan meets the request: the fastest takes {} and costs {:.2}, the cheapest takes \
             {} and costs {:.2}",
            springtide_cli::format::seconds(seconds(missed.fastest.makespan)),
            missed.fastest.cost,
            springtide_cli::format::seconds(seconds(missed.cheapest.makespan)),
            missed.cheapest.cost
        ),
    }
}
