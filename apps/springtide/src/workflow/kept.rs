//! What is kept of a plan: its tables and its JSON.
//!
//! Must not know how a plan is found, nor how it is told to people.

use std::fmt::Write as _;

use serde_json::{Value, json};
use springtide_actors::policy::provisioning::{Dag, Method, SECOND, seconds};
use springtide_cli::dates::date;
use springtide_simulator::figure::FigureError;
use springtide_simulator::workload::figures::quoted;

use super::planning::{Had, Plan, TRADE_OFFS, Wish, trade_off};
use super::{Read, Summary, front, gantt};
use crate::operations::offers::Offers;
use springtide_experiments::provisioning::SearchMode;

/// A plan with all that it was made of.
#[derive(Clone, Copy)]
pub struct Planned<'a> {
    /// The workflow as read from its file.
    pub read: &'a Read,
    /// The workflow in numbers.
    pub summary: &'a Summary,
    /// The workflow as the planner saw it.
    pub dag: &'a Dag,
    /// The slots that the sites offered.
    pub offers: &'a Offers,
    /// Where the offers are from, for people.
    pub source: &'a str,
    /// What was asked for.
    pub wish: &'a Wish,
    /// The plan that was selected.
    pub plan: &'a Plan,
}

/// A method's word on a command line.
pub fn method_word(method: Method) -> String {
    method.to_string().to_ascii_lowercase()
}

/// Processor-seconds of processor-microseconds.
fn processor_s(used: u128) -> f64 {
    used as f64 / SECOND as f64
}

impl Planned<'_> {
    /// When all that a task waits for has ended: then it could start, were data there and processors free.
    pub fn ready(&self, task: usize) -> u64 {
        let ends = |&(parent, _): &(usize, u64)| self.plan.schedule.tasks[parent].end;
        self.dag.parents(task).iter().map(ends).max().unwrap_or(0)
    }

    /// The number that each site's first processor has among those of all sites.
    pub fn first_processors(&self) -> Vec<u32> {
        let rows = self.plan.rows(self.offers);
        let mut next = 0u32;
        let sites = self.offers.sites.iter().zip(rows);
        sites
            .map(|(site, rows)| {
                let first = next;
                next = next.saturating_add(site.processors.max(rows));
                first
            })
            .collect()
    }

    /// The plan as one object. Times are seconds after the origin, costs in the units of the offers' prices.
    pub fn object(&self) -> Value {
        let Self { read, summary, offers, wish, plan, source, .. } = *self;
        let first = self.first_processors();
        let site = |site: usize| &offers.sites[site].name;
        let points = plan.front.points().iter().enumerate().map(|(at, point)| {
            let takes = (0..TRADE_OFFS).filter(|number| plan.takes[*number] == at);
            json!({
                "makespan_s": seconds(point.objectives.makespan),
                "cost": point.objectives.cost,
                "slots": point.slots.iter().collect::<Vec<_>>(),
                "trade_offs": takes.map(trade_off).collect::<Vec<_>>(),
            })
        });
        let slots = plan.slots.iter().map(|had| {
            json!({
                "site": site(had.offer.site),
                "epoch": offers.sites[had.offer.site].epoch,
                "slot": had.of_site,
                "processors": had.offer.processors,
                "start_s": seconds(had.offer.start),
                "end_s": seconds(had.end),
                "extended_s": seconds(had.end - had.offer.end),
                "divisible": had.offer.divisible,
                "cost": had.cost,
                "paid_processor_s": processor_s(had.paid()),
                "used_processor_s": processor_s(had.used),
                "used_from_s": seconds(had.busy.0),
                "used_until_s": seconds(had.busy.1),
                "tasks": had.tasks,
                "numbers": had.processors.to_string(),
            })
        });
        let index = |slot: usize| plan.slots.iter().position(|had| had.slot == slot);
        let tasks = plan.schedule.tasks.iter().enumerate().map(|(task, place)| {
            let pieces = place
                .pieces
                .iter()
                .map(|piece| json!({ "slot": index(piece.slot), "processors": piece.processors }));
            json!({
                "task": self.dag.task(task).name,
                "kind": read.kinds[task],
                "start_s": seconds(place.start),
                "end_s": seconds(place.end),
                "site": site(place.site),
                "pieces": pieces.collect::<Vec<_>>(),
                "numbers": plan.places[task].to_string(),
            })
        });
        let sites = offers.sites.iter().zip(first).map(|(site, first)| {
            json!({ "name": site.name, "processors": site.processors, "epoch": site.epoch, "first": first })
        });
        let paid: u128 = plan.slots.iter().map(Had::paid).sum();
        let used: u128 = plan.slots.iter().map(|had| had.used).sum();
        json!({
            "schema": springtide_cli::format::SCHEMA,
            "ok": true,
            "workflow": {
                "file": read.file,
                "name": read.workflow.name,
                "format": read.format.map(|format| format.word()),
                "summary": summary,
            },
            "offers": {
                "from": source,
                "origin_unix_s": offers.origin_unix_s,
                "origin": date(offers.origin_unix_s as u64),
                "sites": sites.collect::<Vec<_>>(),
                "slots": offers.sites.iter().map(|site| site.slots.len()).sum::<usize>(),
            },
            "search": {
                "method": method_word(wish.method),
                "search": SearchMode::from_search(wish.search).word(),
                "population": wish.budget.population,
                "iterations": wish.budget.iterations,
                "seed": wish.seed,
                "tried": plan.tried,
                "feasible": plan.feasible,
            },
            "wish": {
                "alpha": wish.alpha,
                "deadline_s": wish.constraint.deadline.map(seconds),
                "budget": wish.constraint.budget,
            },
            "taken": plan.at,
            "makespan_s": seconds(plan.is().makespan),
            "cost": plan.is().cost,
            "floor": plan.floor,
            "waste": plan.waste(),
            "critical_path_s": seconds(plan.chain),
            "paid_processor_s": processor_s(paid),
            "used_processor_s": processor_s(used),
            "front": points.collect::<Vec<_>>(),
            "slots": slots.collect::<Vec<_>>(),
            "tasks": tasks.collect::<Vec<_>>(),
        })
    }

    /// The schedule as Batsim writes jobs and evalys reads them, a line a task. A task is submitted when the last that it waits for has
    /// ended. Resources are numbered over all sites (`first` of a site in the JSON); `site_resources` are the site's own. The metadata is
    /// the task's kind.
    pub fn schedule_csv(&self) -> String {
        let mut text = "job_id,workload_name,submission_time,requested_number_of_resources,requested_time,success,starting_time,\
                        execution_time,finish_time,waiting_time,turnaround_time,stretch,allocated_resources,consumed_energy,metadata,\
                        site,site_resources\n"
            .to_owned();
        let first = self.first_processors();
        let workload = quoted(&self.read.name());
        for (task, place) in self.plan.schedule.tasks.iter().enumerate() {
            let of = self.dag.task(task);
            let numbers = &self.plan.places[task];
            let submitted = self.ready(task);
            let runs = seconds(place.end - place.start);
            let around = seconds(place.end - submitted);
            // A String takes whatever is written.
            let _ = writeln!(
                text,
                "{},{workload},{},{},{runs},1,{},{runs},{},{},{around},{},{},-1,{},{},{numbers}",
                quoted(&of.name),
                seconds(submitted),
                of.processors,
                seconds(place.start),
                seconds(place.end),
                seconds(place.start - submitted),
                around / runs,
                numbers.shifted(first[place.site]),
                quoted(&self.read.kinds[task]),
                quoted(&self.offers.sites[place.site].name),
            );
        }
        text
    }

    /// The files of a plan by their names.
    ///
    /// # Errors
    /// A figure cannot be drawn.
    pub fn files(&self) -> Result<Vec<(&'static str, String)>, FigureError> {
        Ok(vec![
            ("plan.json", format!("{}\n", self.object())),
            ("schedule.csv", self.schedule_csv()),
            ("front.csv", front::csv(self.plan)),
            ("front.svg", front::svg(self)?),
            ("gantt.svg", gantt::hosts(self)?),
            ("tasks.svg", gantt::tasks(self)?),
        ])
    }
}
