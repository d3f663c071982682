//! The description of a run that has ended: for people, as JSON, and as a table of its tasks.
//!
//! It does not know how the run was executed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Value, json};
use springtide_actors::policy::provisioning::{Time, seconds};
use springtide_cli::exit::Failed;
use springtide_cli::format::{SCHEMA, plural};
use springtide_cli::outdir::Artefacts;
use springtide_simulator::workload::figures::quoted;

use super::flow::TaskTimes;
use super::reserve::ReservedSlots;
use super::table::{TaskState, TaskTable};

/// A run that has ended.
pub struct CompletedRun<'a> {
    /// Name of the workflow.
    pub name: String,
    /// When this process began the run.
    pub begun: Time,
    /// When this process ended the run.
    pub ended: Time,
    /// The table of tasks.
    pub table: &'a TaskTable,
    /// When and where they ran.
    pub times: &'a [TaskTimes],
    /// Tasks that earlier processes completed.
    pub restored: usize,
    /// What was reserved for them.
    pub reserved: &'a [ReservedSlots],
    /// Whether the tasks ran without reservations.
    pub best_effort: bool,
    /// Why tasks are left.
    pub failed: Option<&'a Failed>,
}

impl CompletedRun<'_> {
    fn tasks(&self) -> impl Iterator<Item = (usize, &TaskTimes)> {
        self.times.iter().enumerate()
    }

    /// Seconds from the begin to the end of the last task.
    fn makespan_s(&self) -> f64 {
        let last = self.times.iter().filter_map(|times| times.end).max().unwrap_or(self.begun);
        seconds(last.saturating_sub(self.begun))
    }

    /// Processor-seconds of tasks that this process completed.
    fn used_s(&self) -> f64 {
        let of = |(task, times): (usize, &TaskTimes)| {
            let start = times.start.filter(|start| *start >= self.begun)?;
            let lasted = seconds(times.end?.saturating_sub(start));
            Some(lasted * f64::from(self.table.steps()[task].processors))
        };
        // (A sum of nothing is -0.)
        self.tasks().filter_map(of).fold(0.0, |sum, one| sum + one)
    }

    fn cost(&self) -> f64 {
        self.reserved.iter().fold(0.0, |sum, reserved| sum + reserved.paid())
    }

    fn text(&self) -> String {
        let (counts, all) = (self.table.counts(), self.table.steps().len());
        let again = (0..all).filter(|&task| self.table.attempts(task) > 1).count();
        let mut out = format!(
            "{}: {} of {all} tasks in {}, {:.1} processor-seconds used",
            self.name,
            counts.completed,
            springtide_cli::format::seconds(self.makespan_s()),
            self.used_s()
        );
        // Writing to a text does not fail.
        if self.restored > 0 {
            let _ = write!(out, ", {} were completed before", self.restored);
        }
        if again > 0 {
            let _ = write!(out, ", {again} tried more than once");
        }
        if self.best_effort {
            out.push_str(", best effort");
        } else {
            let (plans, cost) = (self.reserved.len(), self.cost());
            let reservations = plural(plans as u64, "reservation");
            let _ = write!(out, ", {plans} {reservations} at a cost of {cost:.2}");
        }
        let mut sites: BTreeMap<String, usize> = BTreeMap::new();
        for times in self.times.iter().filter(|times| times.end.is_some()) {
            if let Some(cluster) = &times.cluster {
                *sites.entry(cluster.to_string()).or_default() += 1;
            }
        }
        let sites: Vec<String> = sites.iter().map(|(site, n)| format!("{n} in {site}")).collect();
        if !sites.is_empty() {
            let _ = write!(out, "; {}", sites.join(", "));
        }
        out.push('\n');
        out
    }

    /// The run as a JSON object.
    pub fn object(&self) -> Value {
        let since = |time: Option<Time>| time.map(|time| seconds(time) - seconds(self.begun));
        let task = |(at, times): (usize, &TaskTimes)| {
            let step = &self.table.steps()[at];
            let (state, reason) = match self.table.state(at) {
                TaskState::Completed => ("completed", None),
                TaskState::Failed { reason } => ("failed", Some(reason.clone())),
                TaskState::Skipped { failed } => {
                    let id = &self.table.steps()[*failed].id;
                    ("skipped", Some(format!("it depends on {id}, which failed")))
                }
                TaskState::Waiting | TaskState::Ready | TaskState::Active => ("open", None),
            };
            json!({
                "id": step.id,
                "state": state,
                "reason": reason,
                "processors": step.processors,
                "cluster": times.cluster,
                "start_s": since(times.start),
                "end_s": since(times.end),
                "attempts": self.table.attempts(at),
            })
        };
        let reserved = |one: &ReservedSlots| {
            json!({
                "reservation": one.id,
                "at_s": since(Some(one.at)),
                "why": one.reason,
                "tasks": one.tasks,
                "planned_makespan_s": one.makespan_s,
                "planned_cost": one.planned_cost,
                "cost": one.cost,
                "paid": one.paid(),
                "parts": one.parts,
            })
        };
        json!({
            "schema": SCHEMA,
            "ok": self.failed.is_none(),
            "error": self.failed.map(|failed| failed.message.as_str()),
            "workflow": self.name,
            "submitted_unix_s": seconds(self.begun),
            "makespan_s": self.makespan_s(),
            "took_s": seconds(self.ended.saturating_sub(self.begun)),
            "best_effort": self.best_effort,
            "cost": if self.best_effort { self.used_s() } else { self.cost() },
            "used_processor_s": self.used_s(),
            "completed_before": self.restored,
            "reservations": self.reserved.iter().map(reserved).collect::<Vec<_>>(),
            "tasks": self.tasks().map(task).collect::<Vec<_>>(),
        })
    }

    /// The tasks as a table.
    pub fn csv(&self) -> String {
        let mut out = "task,processors,cluster,start_s,end_s,attempts\n".to_owned();
        let since = |time: Option<Time>| {
            time.map_or_else(String::new, |t| format!("{:.3}", seconds(t) - seconds(self.begun)))
        };
        for (at, times) in self.tasks() {
            let step = &self.table.steps()[at];
            let cluster = times.cluster.as_ref().map_or_else(String::new, |c| c.to_string());
            let (start, end) = (since(times.start), since(times.end));
            let id = quoted(&step.id);
            let (processors, attempts) = (step.processors, self.table.attempts(at));
            let _ = writeln!(out, "{id},{processors},{cluster},{start},{end},{attempts}");
        }
        out
    }
}

/// Prints the run, and writes its files to a directory if one is given.
///
/// # Errors
/// They cannot be written.
pub fn print(ended: &CompletedRun<'_>, json: bool, out: Option<&Path>) -> Result<(), Failed> {
    let mut artefacts = Artefacts::of(out);
    artefacts.keep("run.json", format!("{}\n", ended.object()));
    artefacts.keep("tasks.csv", ended.csv());
    artefacts.print(json, ended.object(), || ended.text())
}
