//! What is told of a workflow that has run: for people, as JSON, and as a table of its tasks.
//!
//! Must not know how it was run.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Value, json};
use springtide_actors::policy::provisioning::{Time, seconds};
use springtide_actors::reservation::{ReservationId, ReservedSlot};
use springtide_cli::exit::Failed;
use springtide_cli::format::SCHEMA;
use springtide_cli::outdir::Artefacts;
use springtide_simulator::workload::figures::quoted;

use super::flow::{Ran, Step};

/// Slots that were reserved.
#[derive(Clone, Debug)]
pub struct Reserved {
    /// Number of the reservation.
    pub id: ReservationId,
    /// Time of the reservation.
    pub at: Time,
    /// Reason of the reservation.
    pub why: String,
    /// For so many tasks.
    pub tasks: usize,
    /// Within how many seconds these were planned to end.
    pub makespan_s: f64,
    /// What the plan was to cost.
    pub planned_cost: f64,
    /// Cost of what the workflow had reserved.
    pub cost: f64,
    /// Slots of the reservation.
    pub parts: Vec<ReservedSlot>,
}

/// A run that has ended.
pub struct CompletedRun<'a> {
    /// Name of the workflow.
    pub name: String,
    /// When it was submitted.
    pub began: Time,
    /// When it had ended.
    pub ended: Time,
    /// The tasks of the workflow.
    pub steps: &'a [Step],
    /// When and where they ran.
    pub ran: &'a [Ran],
    /// What was reserved for them.
    pub reserved: &'a [Reserved],
    /// Whether the tasks ran without reservations.
    pub best_effort: bool,
    /// Why it did not come to its end.
    pub failed: Option<&'a Failed>,
}

impl CompletedRun<'_> {
    fn done(&self) -> usize {
        self.ran.iter().filter(|ran| ran.end.is_some()).count()
    }

    /// From the submission to the end of the last task that ended.
    fn makespan_s(&self) -> f64 {
        let last = self.ran.iter().filter_map(|ran| ran.end).max().unwrap_or(self.began);
        seconds(last.saturating_sub(self.began))
    }

    /// Processor-seconds on which tasks that ended ran.
    fn used_s(&self) -> f64 {
        let of = |(step, ran): (&Step, &Ran)| {
            let lasted = seconds(ran.end?.saturating_sub(ran.start?));
            Some(lasted * f64::from(step.processors))
        };
        // (A sum of nothing is -0.)
        self.steps.iter().zip(self.ran).filter_map(of).fold(0.0, |sum, one| sum + one)
    }

    fn cost(&self) -> f64 {
        self.reserved.iter().fold(0.0, |sum, reserved| sum + reserved.cost)
    }

    fn text(&self) -> String {
        let (done, all) = (self.done(), self.steps.len());
        let again = self.ran.iter().filter(|ran| ran.attempts > 1).count();
        let mut out = format!(
            "{}: {done} of {all} tasks in {}, {:.1} processor-seconds used",
            self.name,
            springtide_cli::format::seconds(self.makespan_s()),
            self.used_s()
        );
        if again > 0 {
            let _ = write!(out, ", {again} tried more than once");
        }
        if self.best_effort {
            out.push_str(", best effort")
        } else {
            let (plans, cost) = (self.reserved.len(), self.cost());
            let s = if plans == 1 { "" } else { "s" };
            let _ = write!(out, ", {plans} reservation{s} at a cost of {cost:.2}");
        }
        let mut sites: std::collections::BTreeMap<String, usize> = Default::default();
        for ran in self.ran.iter().filter(|ran| ran.end.is_some()) {
            if let Some(cluster) = &ran.cluster {
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

    fn object(&self) -> Value {
        let since = |time: Option<Time>| time.map(|time| seconds(time.saturating_sub(self.began)));
        let task = |(step, ran): (&Step, &Ran)| {
            json!({
                "id": step.id,
                "processors": step.processors,
                "cluster": ran.cluster,
                "start_s": since(ran.start),
                "end_s": since(ran.end),
                "attempts": ran.attempts,
            })
        };
        let reserved = |one: &Reserved| {
            json!({
                "reservation": one.id,
                "at_s": since(Some(one.at)),
                "why": one.why,
                "tasks": one.tasks,
                "planned_makespan_s": one.makespan_s,
                "planned_cost": one.planned_cost,
                "cost": one.cost,
                "parts": one.parts,
            })
        };
        json!({
            "schema": SCHEMA,
            "ok": self.failed.is_none(),
            "error": self.failed.map(|failed| failed.message.as_str()),
            "workflow": self.name,
            "submitted_unix_s": seconds(self.began),
            "makespan_s": self.makespan_s(),
            "took_s": seconds(self.ended.saturating_sub(self.began)),
            "best_effort": self.best_effort,
            "cost": if self.best_effort { self.used_s() } else { self.cost() },
            "used_processor_s": self.used_s(),
            "reservations": self.reserved.iter().map(reserved).collect::<Vec<_>>(),
            "tasks": self.steps.iter().zip(self.ran).map(task).collect::<Vec<_>>(),
        })
    }

    fn table(&self) -> String {
        let mut out = "task,processors,cluster,start_s,end_s,attempts\n".to_owned();
        let since = |time: Option<Time>| {
            time.map_or_else(String::new, |t| {
                format!("{:.3}", seconds(t.saturating_sub(self.began)))
            })
        };
        for (step, ran) in self.steps.iter().zip(self.ran) {
            let cluster = ran.cluster.as_ref().map_or_else(String::new, |c| c.to_string());
            let (start, end) = (since(ran.start), since(ran.end));
            let id = quoted(&step.id);
            let (processors, attempts) = (step.processors, ran.attempts);
            let _ = writeln!(out, "{id},{processors},{cluster},{start},{end},{attempts}");
        }
        out
    }
}

/// Tells, and leaves files where they are wanted.
///
/// # Errors
/// They cannot be written.
pub fn write(ended: &CompletedRun<'_>, json: bool, out: Option<&Path>) -> Result<(), Failed> {
    let mut artefacts = Artefacts::of(out);
    artefacts.keep("run.json", format!("{}\n", ended.object()));
    artefacts.keep("tasks.csv", ended.table());
    artefacts.print(json, ended.object(), || ended.text())
}
