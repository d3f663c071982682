//! Text and JSON output for jobs and plans.
//!
//! Independent of the command line.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Value, json};
use springtide_actors::admit::Principal;
use springtide_actors::policy::malleability::{Placed, Transfer};
use springtide_actors::scheduler::manager::{JobView, Phase};
use springtide_actors::scheduler::{JobDetail, JobState, JobStatus, PlanError};
use springtide_runtime::id::{ClusterId, JobId};

use crate::desk::{JobEntry, JobRecord, Purged};
use crate::report::{SCHEMA, seconds, size};

/// State of a job that the scheduler has forgotten and whose end has not reached the archive yet.
const END_PENDING: &str = "ending";

/// The state of a job, from the archive and from the scheduler.
pub(super) struct JobInfo {
    pub(super) job: JobId,
    pub(super) record: Option<JobRecord>,
    pub(super) detail: Option<JobDetail>,
}

impl JobInfo {
    /// The reason for the job's state: its error, else its reason to wait or the last scheduling
    /// decision.
    pub(super) fn why(&self) -> Option<String> {
        let end = self.record.as_ref().and_then(|record| record.entry.ended.as_ref());
        let detail = self.detail.as_ref();
        let view = detail.and_then(|detail| detail.view.as_ref());
        let waits = || detail.and_then(|detail| detail.status.as_ref()?.waits_for.clone());
        let why = end.and_then(|end| end.error.clone());
        let why = why.or_else(|| view.map(|view| view.why.clone())).or_else(waits);
        why.filter(|why| !why.is_empty())
    }

    /// The reason to wait of a job that has no further details.
    pub(super) fn waits_for(&self) -> Option<&String> {
        let detail = self.detail.as_ref().filter(|detail| detail.view.is_none())?;
        detail.status.as_ref()?.waits_for.as_ref().filter(|what| !what.is_empty())
    }

    /// The principal that submitted the job.
    pub(super) fn principal(&self) -> Option<&Principal> {
        let kept = self.record.as_ref().and_then(|record| record.entry.principal.as_ref());
        let status = self.detail.as_ref().and_then(|detail| detail.status.as_ref());
        kept.or_else(|| status?.principal.as_ref())
    }

    pub(super) fn has_ended(&self) -> bool {
        let record = self.record.as_ref();
        record.map_or(self.state() == "over", |record| record.entry.ended.is_some())
    }

    /// The state in one word, as the list of jobs shows it.
    pub(super) fn state(&self) -> &'static str {
        let ended = self.record.as_ref().and_then(|record| record.entry.ended.as_ref());
        if let Some(end) = ended {
            return end.word();
        }
        let detail = self.detail.as_ref();
        let view = detail.and_then(|detail| detail.view.as_ref());
        match (view, detail.and_then(|detail| detail.status.as_ref())) {
            (Some(view), _) => phase(view.phase),
            (None, Some(status)) => state(status.state),
            (None, None) if self.record.is_some() => END_PENDING,
            (None, None) => "over",
        }
    }
}

pub(super) fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::Waiting => "waiting",
        Phase::Placed => "placed",
        Phase::Claiming => "starting",
        Phase::Running => "running",
        Phase::Growing => "growing",
        Phase::Shrinking => "shrinking",
        Phase::Ending => "ending",
    }
}

pub(super) fn state(state: JobState) -> &'static str {
    match state {
        JobState::Queued => "waiting",
        JobState::Assigning => "starting",
        JobState::Running => "running",
        JobState::Ending => "ending",
    }
}

pub(super) fn plan_object(line: &str, plan: &Result<Placed, PlanError>) -> Value {
    match plan {
        Ok(placed) => json!({ "job": line, "ok": true, "placed": placed }),
        Err(PlanError::NoPlace(no)) => {
            json!({
                "job": line, "ok": false, "why": no.to_string(), "excluded": no.excluded,
                "never": no.never,
            })
        }
        Err(error) => json!({ "job": line, "ok": false, "why": error.to_string() }),
    }
}

pub(super) fn plan_text(line: &str, plan: &Result<Placed, PlanError>) -> String {
    match plan {
        Ok(placed) => {
            let mut text = format!("{line}: would start now ({})", placed.why);
            for part in &placed.parts {
                let _ = write!(
                    text,
                    "\n  component {}: {} of {}",
                    part.component + 1,
                    part.count,
                    part.cluster
                );
            }
            for transfer in &placed.transfers {
                let Transfer { file, from, to, bytes, seconds: takes } = transfer;
                let _ =
                    write!(text, "\n  {file} ({}) is brought from {from} to {to}", size(*bytes));
                if takes.is_finite() {
                    let _ = write!(text, " in about {}", seconds(*takes));
                }
            }
            text
        }
        Err(PlanError::NoPlace(no)) => {
            let (will, has) = match no.never {
                true => ("can never start", "can have no place"),
                false => ("would wait", "has no place"),
            };
            let mut text = format!("{line}: {will}, for component {} {has}", no.component + 1);
            for (cluster, why) in &no.excluded {
                let _ = write!(text, "\n  {cluster}: {why}");
            }
            text
        }
        Err(error) => format!("{line}: {error}"),
    }
}

/// A line of `job list`.
pub(super) struct Row {
    job: JobId,
    state: &'static str,
    sizes: BTreeMap<ClusterId, u32>,
    age_s: Option<u64>,
    ended_s: Option<u64>,
    line: String,
    about: String,
    principal: Option<Principal>,
}

impl Row {
    fn nodes(&self) -> u32 {
        self.sizes.values().sum()
    }
}

/// Merges jobs of the archive and of other clients, by number.
pub(super) fn rows(entries: Vec<JobEntry>, live: Vec<JobStatus>, now: u64) -> Vec<Row> {
    let mut rows: BTreeMap<JobId, Row> = BTreeMap::new();
    for status in live {
        let JobStatus { job, name, state: at, sizes, waits_for, principal, .. } = status;
        let (about, state, line) = (waits_for.unwrap_or_default(), state(at), name);
        let (age_s, ended_s) = (None, None);
        rows.insert(job, Row { job, state, sizes, age_s, ended_s, line, about, principal });
    }
    for entry in entries {
        let age_s = Some(now.saturating_sub(entry.submitted_unix_s));
        let ended_s = entry.ended_unix_s.map(|at| now.saturating_sub(at));
        let row = match (rows.remove(&entry.job), entry.ended) {
            (_, Some(end)) => {
                let state = end.word();
                let first = end.error.as_deref().and_then(|error| error.lines().next());
                let about = first.unwrap_or_default().to_owned();
                Row {
                    job: entry.job,
                    state,
                    sizes: BTreeMap::new(),
                    age_s,
                    ended_s,
                    line: entry.line,
                    about,
                    principal: entry.principal,
                }
            }
            (Some(live), None) => Row { age_s, line: entry.line, ..live },
            (None, None) => {
                let about = String::new();
                Row {
                    job: entry.job,
                    state: END_PENDING,
                    sizes: BTreeMap::new(),
                    age_s,
                    ended_s,
                    line: entry.line,
                    about,
                    principal: entry.principal,
                }
            }
        };
        rows.insert(row.job, row);
    }
    rows.into_values().collect()
}

pub(super) fn list_object(rows: &[Row], more: bool) -> String {
    let jobs: Vec<Value> = rows
        .iter()
        .map(|row| {
            json!({
                "job": row.job.0, "state": row.state, "processors": row.nodes(), "sizes": row.sizes,
                "line": row.line, "submitted_ago_s": row.age_s, "ended_ago_s": row.ended_s,
                "about": row.about, "principal": row.principal,
            })
        })
        .collect();
    format!("{}\n", json!({ "schema": SCHEMA, "jobs": jobs, "more": more }))
}

pub(super) fn purged_object(purged: &Purged) -> String {
    let numbers = |jobs: &[JobId]| jobs.iter().map(|job| job.0).collect::<Vec<_>>();
    let Purged { removed, running, unknown, failed } = purged;
    let failures: Vec<Value> =
        failed.iter().map(|(job, why)| json!({ "job": job.0, "error": why })).collect();
    let ok = running.is_empty() && unknown.is_empty() && failed.is_empty();
    let object = json!({
        "schema": SCHEMA, "ok": ok, "removed": numbers(removed), "running": numbers(running),
        "unknown": numbers(unknown), "failed": failures,
    });
    format!("{object}\n")
}

pub(super) fn purged_text(purged: &Purged) -> String {
    match purged.removed.is_empty() {
        true => "no job is removed\n".to_owned(),
        false => purged.removed.iter().map(|job| format!("{job} is removed\n")).collect(),
    }
}

/// An age in one unit.
pub(super) fn age(s: u64) -> String {
    match s {
        0..120 => format!("{s} s"),
        120..7200 => format!("{} min", s / 60),
        _ => format!("{} h", s / 3600),
    }
}

pub(super) fn list_text(rows: &[Row]) -> String {
    if rows.is_empty() {
        return "no jobs\n".to_owned();
    }
    let cells: Vec<[String; 6]> = rows
        .iter()
        .map(|row| {
            let nodes = Some(row.nodes()).filter(|&nodes| nodes > 0);
            let age = row.age_s.map_or_else(String::new, age);
            [
                row.job.to_string(),
                row.state.to_owned(),
                nodes.map_or_else(String::new, |nodes| nodes.to_string()),
                age,
                row.line.clone(),
                row.about.clone(),
            ]
        })
        .collect();
    let heads = ["JOB", "STATE", "NODES", "AGE", "PROGRAM", ""].map(str::to_owned);
    let all = || std::iter::once(&heads).chain(&cells);
    let widths: Vec<usize> =
        (0..6).map(|i| all().map(|row| row[i].chars().count()).max().unwrap_or(0)).collect();
    let mut out = String::new();
    for row in all() {
        let mut line = String::new();
        for (i, cell) in row.iter().enumerate() {
            let width = widths[i];
            // Numbers to the right, words to the left.
            let _ = match i {
                2 | 3 => write!(line, "{cell:>width$}  "),
                _ => write!(line, "{cell:width$}  "),
            };
        }
        out += line.trim_end();
        out.push('\n');
    }
    out
}

pub(super) fn sizes(view: &JobView) -> String {
    let all: u32 = view.sizes.values().sum();
    let parts: Vec<String> =
        view.sizes.iter().map(|(cluster, count)| format!("{count} of {cluster}")).collect();
    match view.sizes.len() {
        0 => "none".to_owned(),
        1 => parts.join(", "),
        _ => format!("{all}: {}", parts.join(", ")),
    }
}

pub(super) fn status_object(info: &JobInfo) -> String {
    let view = info.detail.as_ref().and_then(|detail| detail.view.as_ref());
    let record = info.record.as_ref();
    let object = json!({
        "schema": SCHEMA,
        "job": info.job.0,
        "state": info.state(),
        "line": record.map(|record| &record.entry.line),
        "principal": info.principal(),
        "kind": view.map(|view| view.kind),
        "least": view.map(|view| view.least),
        "most": view.map(|view| view.most),
        "sizes": view.map(|view| &view.sizes),
        "tries": view.map(|view| view.tries),
        "why": view.map(|view| &view.why),
        "waits_for": info.waits_for(),
        "progress": record.and_then(|record| record.progress.as_ref()),
        "dir": record.map(|record| &record.dir),
        "error": record.and_then(|record| record.entry.ended.as_ref()?.error.as_ref()),
    });
    format!("{object}\n")
}

pub(super) fn status_text(info: &JobInfo) -> String {
    let mut rows: Vec<(&str, String)> = vec![("state", info.state().to_owned())];
    if let Some(record) = &info.record {
        rows.insert(0, ("program", record.entry.line.clone()));
    }
    rows.extend(info.principal().map(|principal| ("submitted", format!("by {principal}"))));
    if let Some(view) = info.detail.as_ref().and_then(|detail| detail.view.as_ref()) {
        rows.push(("processors", sizes(view)));
        rows.push(("may have", format!("{} to {} ({})", view.least, view.most, view.kind)));
        if view.tries > 0 {
            rows.push(("tries", view.tries.to_string()));
        }
        if !view.why.is_empty() {
            rows.push(("last", view.why.clone()));
        }
    } else if let Some(status) = info.detail.as_ref().and_then(|detail| detail.status.as_ref()) {
        rows.push(("processors", status.nodes().to_string()));
        rows.extend(info.waits_for().map(|what| ("waits for", what.clone())));
    }
    if let Some(record) = &info.record {
        rows.extend(record.progress.clone().map(|progress| ("progress", progress)));
        let error = record.entry.ended.as_ref().and_then(|end| end.error.clone());
        rows.extend(error.map(|error| ("error", error)));
        rows.push(("files", record.dir.display().to_string()));
    }
    let mut out = format!("{}\n", info.job);
    for (name, value) in rows {
        let _ = writeln!(out, "  {name:<10}  {}", value.replace('\n', "\n              "));
    }
    out
}

pub(super) fn why_object(info: &JobInfo) -> String {
    let history: Vec<Value> = info
        .detail
        .iter()
        .flat_map(|detail| &detail.history)
        .map(|(ago, what)| json!({ "ago_s": ago, "what": what }))
        .collect();
    let object = json!({
        "schema": SCHEMA,
        "job": info.job.0,
        "state": info.state(),
        "why": info.why(),
        "history": history,
    });
    format!("{object}\n")
}

pub(super) fn why_text(info: &JobInfo) -> String {
    let mut out = format!("{} is {}", info.job, info.state());
    if let Some(why) = info.why() {
        let _ = write!(out, ": {why}");
    }
    out.push('\n');
    for (ago, what) in info.detail.iter().flat_map(|detail| &detail.history) {
        let _ = writeln!(out, "  {:>9} ago  {what}", seconds(*ago));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::desk::JobEnd;

    #[test]
    fn the_list_has_a_row_of_each_job() {
        let entry = |job: u64, ended: Option<JobEnd>| JobEntry {
            job: JobId(job),
            name: "queens".to_owned(),
            line: "queens --size 12".to_owned(),
            submitted_unix_s: 100,
            ended_unix_s: ended.as_ref().map(|_| 110),
            ended,
            principal: None,
        };
        let live = |job: u64, state, nodes, waits: Option<&str>| JobStatus {
            job: JobId(job),
            name: "fib".to_owned(),
            state,
            sizes: (nodes > 0).then(|| ("ams".into(), nodes)).into_iter().collect(),
            waits_for: waits.map(str::to_owned),
            coordinator: None,
            principal: None,
        };
        let end = |error: Option<&str>| JobEnd {
            error: error.map(str::to_owned),
            cancelled: false,
            exit: None,
        };
        let entries = vec![
            entry(1, Some(end(None))),
            entry(2, Some(end(Some("it broke\nbadly")))),
            entry(3, None),
            entry(4, None),
        ];
        let live = vec![
            live(3, JobState::Running, 12, None),
            live(
                4,
                JobState::Queued,
                0,
                Some("no cluster can take component 1: ams 0 idle, 2 needed"),
            ),
            live(5, JobState::Running, 2, None),
        ];
        let expected = "\
JOB    STATE    NODES   AGE  PROGRAM
job-1  done            60 s  queens --size 12
job-2  failed          60 s  queens --size 12  it broke
job-3  running     12  60 s  queens --size 12
job-4  waiting         60 s  queens --size 12  no cluster can take component 1: ams 0 idle, 2 needed
job-5  running      2        fib
";
        let text = list_text(&rows(entries, live, 160));
        assert_eq!(text, expected, "{text}");
        assert_eq!(list_text(&[]), "no jobs\n");
    }
}
