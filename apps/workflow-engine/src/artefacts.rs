//! The files of a plan: its tables and its JSON. This module knows neither planning nor the text
//! output.

use std::fmt::Write as _;

use serde_json::{Value, json};
use springtide_actors::policy::provisioning::{Dag, Method, SECOND, seconds};
use springtide_cli::dates::date;
use springtide_simulator::figure::FigureError;
use springtide_simulator::workload::figures::quoted;

use super::planning::{Plan, PlanRequest, PlannedSlot, TRADE_OFFS, trade_off};
use super::{Read, Summary, front, gantt};
use springtide_experiments::provisioning::SearchMode;
use springtide_operations::offers::Offers;

/// A plan with its inputs.
#[derive(Clone, Copy)]
pub struct PlanReport<'a> {
    /// The workflow as read from its file.
    pub read: &'a Read,
    /// The workflow in numbers.
    pub summary: &'a Summary,
    /// The planner's graph of the workflow.
    pub dag: &'a Dag,
    /// The slots that the sites offered.
    pub offers: &'a Offers,
    /// Origin of the offers, for messages.
    pub source: &'a str,
    /// The request that the plan answers.
    pub request: &'a PlanRequest,
    /// The plan that was selected.
    pub plan: &'a Plan,
}

/// A method's name on the command line.
pub fn method_word(method: Method) -> String {
    method.to_string().to_ascii_lowercase()
}

/// Converts processor-microseconds to processor-seconds.
fn processor_s(used: u128) -> f64 {
    used as f64 / SECOND as f64
}

impl PlanReport<'_> {
    /// The time at which the last parent of a task ends. Data may arrive later, and processors may
    /// be busy.
    pub fn ready(&self, task: usize) -> u64 {
        let ends = |&(parent, _): &(usize, u64)| self.plan.schedule.tasks[parent].end;
        self.dag.parents(task).iter().map(ends).max().unwrap_or(0)
    }

    /// The index of each site's first processor among the processors of all sites.
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

    /// The plan as a JSON object. Times are seconds after the origin, costs are in the unit of the
    /// offers' prices.
    pub fn object(&self) -> Value {
        let Self { read, summary, offers, request, plan, source, .. } = *self;
        let first = self.first_processors();
        let site = |site: usize| &offers.sites[site].name;
        let points = plan.front.points().iter().enumerate().map(|(at, point)| {
            let takes = (0..TRADE_OFFS).filter(|number| plan.chosen_by_trade_off[*number] == at);
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
            json!({
                "name": site.name, "processors": site.processors, "epoch": site.epoch,
                "first": first,
            })
        });
        let paid: u128 = plan.slots.iter().map(PlannedSlot::paid).sum();
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
                "method": method_word(request.method),
                "search": SearchMode::from_search(request.search).word(),
                "population": request.budget.population,
                "iterations": request.budget.iterations,
                "seed": request.seed,
                "tried": plan.tried,
                "feasible": plan.feasible,
            },
            "request": {
                "alpha": request.alpha,
                "deadline_s": request.constraint.deadline.map(seconds),
                "budget": request.constraint.budget,
            },
            "taken": plan.index_on_front,
            "makespan_s": seconds(plan.objectives().makespan),
            "cost": plan.objectives().cost,
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

    /// The schedule in the format that Batsim writes and evalys reads, one line a task. A task is
    /// submitted when its last parent ends. Resources are numbered over all sites (`first` of a
    /// site in the JSON); `site_resources` are numbered within the site. The metadata is the task's
    /// kind.
    pub fn schedule_csv(&self) -> String {
        let mut text = "job_id,workload_name,submission_time,requested_number_of_resources,\
                        requested_time,success,starting_time,execution_time,finish_time,\
                        waiting_time,turnaround_time,stretch,allocated_resources,consumed_energy,\
                        metadata,site,site_resources\n"
            .to_owned();
        let first = self.first_processors();
        let workload = quoted(&self.read.name());
        for (task, place) in self.plan.schedule.tasks.iter().enumerate() {
            let of = self.dag.task(task);
            let numbers = &self.plan.places[task];
            let submitted = self.ready(task);
            let runs = seconds(place.end - place.start);
            let around = seconds(place.end - submitted);
            // Writing to a `String` does not fail.
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

    /// The names and contents of the files of a plan.
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
