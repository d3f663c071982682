//! Texts about jobs and plans.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Value, json};
use springtide_actors::admit::Principal;
use springtide_actors::policy::malleability::{PlacementPlan, PlacementTransfer};
use springtide_actors::scheduler::manager::JobView;
use springtide_actors::scheduler::{JobStatus, PlanError};
use springtide_cli::exit::Failed;
use springtide_cli::format::{SCHEMA, seconds, size};
use springtide_runtime::id::{ClusterId, JobId};

use springtide_operations::desk::entry::{JobEnd, JobUsage};
use springtide_operations::desk::{ArchiveEntry, Purged};
use springtide_operations::jobs::{END_PENDING, JobInfo, state};

/// A plan as an object.
pub fn plan_object(line: &str, plan: &Result<PlacementPlan, PlanError>) -> Value {
    match plan {
        Ok(placed) => json!({ "job": line, "ok": true, "placed": placed }),
        Err(PlanError::NoPlace(no)) => {
            json!({
                "job": line, "ok": false, "why": no.to_string(), "excluded": no.excluded,
                "never": no.can_never_fit,
            })
        }
        Err(error) => json!({ "job": line, "ok": false, "why": error.to_string() }),
    }
}

/// A plan as lines.
pub fn plan_text(line: &str, plan: &Result<PlacementPlan, PlanError>) -> String {
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
                let PlacementTransfer { file, from, to, bytes, seconds: takes } = transfer;
                let _ = write!(
                    text,
                    "\n  {file} ({}) is transferred from {from} to {to}",
                    size(*bytes)
                );
                if takes.is_finite() {
                    let _ = write!(text, " in about {}", seconds(*takes));
                }
            }
            text
        }
        Err(PlanError::NoPlace(no)) => {
            let (will, has) = if no.can_never_fit {
                ("can never start", "can have no place")
            } else {
                ("would wait", "has no place")
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
pub struct JobRow {
    job: JobId,
    state: &'static str,
    sizes: BTreeMap<ClusterId, u32>,
    age_s: Option<u64>,
    ended_s: Option<u64>,
    line: String,
    about: String,
    principal: Option<Principal>,
}

impl JobRow {
    fn processors(&self) -> u32 {
        self.sizes.values().sum()
    }
}

/// Merges jobs of the archive and of other clients, by number.
pub fn rows(entries: Vec<ArchiveEntry>, live: Vec<JobStatus>, now: u64) -> Vec<JobRow> {
    let mut rows: BTreeMap<JobId, JobRow> = BTreeMap::new();
    for status in live {
        let JobStatus { job, name, state: at, sizes, waits_for, principal, .. } = status;
        let (about, state, line) = (waits_for.unwrap_or_default(), state(at), name);
        let (age_s, ended_s) = (None, None);
        rows.insert(job, JobRow { job, state, sizes, age_s, ended_s, line, about, principal });
    }
    for entry in entries {
        let age_s = Some(now.saturating_sub(entry.submitted_unix_s));
        let ended_s = entry.ended_unix_s.map(|at| now.saturating_sub(at));
        let row = match (rows.remove(&entry.job), entry.ended) {
            (_, Some(end)) => {
                let state = end.word();
                let first = end.error.as_deref().and_then(|error| error.lines().next());
                let about = first.unwrap_or_default().to_owned();
                JobRow {
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
            (Some(live), None) => JobRow { age_s, line: entry.line, ..live },
            (None, None) => {
                let about = String::new();
                JobRow {
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

/// Jobs as the object of `--json`.
pub fn list_object(rows: &[JobRow], more: bool) -> String {
    let jobs: Vec<Value> = rows
        .iter()
        .map(|row| {
            json!({
                "job": row.job.0, "state": row.state,
                "processors": row.processors(), "sizes": row.sizes,
                "line": row.line, "submitted_ago_s": row.age_s, "ended_ago_s": row.ended_s,
                "about": row.about, "principal": row.principal,
            })
        })
        .collect();
    format!("{}\n", json!({ "schema": SCHEMA, "jobs": jobs, "more": more }))
}

/// Removed jobs as the object of `--json`.
pub fn purged_object(purged: &Purged) -> String {
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

/// Removed jobs as lines.
pub fn purged_text(purged: &Purged) -> String {
    if purged.removed.is_empty() {
        "no job is removed\n".to_owned()
    } else {
        purged.removed.iter().map(|job| format!("{job} is removed\n")).collect()
    }
}

/// An age in one unit.
pub fn age(s: u64) -> String {
    match s {
        0..120 => format!("{s} s"),
        120..7200 => format!("{} min", s / 60),
        _ => format!("{} h", s / 3600),
    }
}

/// Jobs as a table.
pub fn list_text(rows: &[JobRow]) -> String {
    if rows.is_empty() {
        return "no jobs\n".to_owned();
    }
    let cells: Vec<[String; 6]> = rows
        .iter()
        .map(|row| {
            let processors = Some(row.processors()).filter(|&count| count > 0);
            let age = row.age_s.map_or_else(String::new, age);
            [
                row.job.to_string(),
                row.state.to_owned(),
                processors.map_or_else(String::new, |count| count.to_string()),
                age,
                one_line(&row.line),
                one_line(&row.about),
            ]
        })
        .collect();
    let heads = ["JOB", "STATE", "PROCESSORS", "AGE", "PROGRAM", ""].map(str::to_owned);
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

/// A text of several lines on one, for a row of a table.
fn one_line(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let is_open = out.ends_with([':', ';', ',', '.']);
        out += if out.is_empty() {
            ""
        } else if is_open {
            " "
        } else {
            "; "
        };
        out += line;
    }
    out
}

/// The processors of a job by cluster.
pub fn sizes(view: &JobView) -> String {
    let all: u32 = view.sizes.values().sum();
    let parts: Vec<String> =
        view.sizes.iter().map(|(cluster, count)| format!("{count} of {cluster}")).collect();
    match view.sizes.len() {
        0 => "none".to_owned(),
        1 => parts.join(", "),
        _ => format!("{all}: {}", parts.join(", ")),
    }
}

/// The state of a job as the object of `--json`.
pub fn status_object(info: &JobInfo) -> String {
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
        "why": view.map(|view| &view.reason),
        "waits_for": info.waits_for(),
        "progress": record.and_then(|record| record.progress.as_ref()),
        "dir": record.map(|record| &record.dir),
        "error": record.and_then(|record| record.entry.ended.as_ref()?.error.as_ref()),
        "exit": record.and_then(|record| Some(record.entry.ended.as_ref()?.exit().code())),
        "usage": record.and_then(|record| {
            Some(usage_object(&record.entry, record.entry.ended.as_ref()?))
        }),
    });
    format!("{object}\n")
}

/// The use of an ended job as an object: absent values are unknown.
fn usage_object(entry: &ArchiveEntry, end: &JobEnd) -> Value {
    let JobUsage {
        started_unix_s,
        starts,
        processors,
        nodes,
        wall_ms,
        processor_ms,
        cpu_ms,
        sizes,
    } = &end.usage;
    let sizes: Vec<Value> = sizes
        .iter()
        .map(|size| json!({ "at_unix_s": size.at_unix_ms as f64 / 1e3, "nodes": size.nodes }))
        .collect();
    let seconds = |ms: &Option<u64>| ms.map(|ms| ms as f64 / 1e3);
    json!({
        "submitted_unix_s": entry.submitted_unix_s,
        "started_unix_s": started_unix_s,
        "ended_unix_s": entry.ended_unix_s,
        "wait_s": started_unix_s.map(|at| at.saturating_sub(entry.submitted_unix_s)),
        "wall_s": seconds(wall_ms),
        "processor_s": seconds(processor_ms),
        "cpu_s": seconds(cpu_ms),
        "processors": processors,
        "nodes": nodes,
        "starts": starts,
        "sizes": sizes,
    })
}

/// The columns of the report of ended jobs that are those of [`usage_object`].
const USAGE_COLUMNS: [&str; 11] = [
    "submitted_unix_s",
    "started_unix_s",
    "ended_unix_s",
    "wait_s",
    "wall_s",
    "processor_s",
    "cpu_s",
    "processors",
    "nodes",
    "starts",
    "sizes",
];

/// The ended jobs as CSV. Unknown values are empty.
pub fn report_csv(entries: &[ArchiveEntry]) -> String {
    let quoted = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
    let mut text = format!("job,user,state,exit,{},program,error\n", USAGE_COLUMNS.join(","));
    for entry in entries {
        let Some(end) = &entry.ended else { continue };
        let user = entry.principal.as_ref().map(ToString::to_string).unwrap_or_default();
        let usage = usage_object(entry, end);
        let cell = |name: &&str| match &usage[*name] {
            Value::Null => String::new(),
            Value::Array(sizes) => {
                let size = |size: &Value| format!("{}:{}", size["at_unix_s"], size["nodes"]);
                sizes.iter().map(size).collect::<Vec<_>>().join(" ")
            }
            value => value.to_string(),
        };
        let cells: Vec<String> = USAGE_COLUMNS.iter().map(cell).collect();
        let exit = end.exit().code();
        let error = end.error.as_deref().map(quoted).unwrap_or_default();
        let (job, user, state) = (entry.job.0, quoted(&user), end.word());
        let (cells, line) = (cells.join(","), quoted(&entry.line));
        // Writing to a text does not fail.
        let _ = writeln!(text, "{job},{user},{state},{exit},{cells},{line},{error}");
    }
    text
}

/// The ended jobs as an object.
pub fn report_object(entries: &[ArchiveEntry]) -> String {
    let row = |entry: &ArchiveEntry| {
        let end = entry.ended.as_ref()?;
        Some(json!({
            "job": entry.job.0,
            "user": entry.principal.as_ref().map(ToString::to_string),
            "state": end.word(),
            "exit": end.exit().code(),
            "usage": usage_object(entry, end),
            "program": entry.line,
            "error": end.error,
        }))
    };
    let jobs: Vec<Value> = entries.iter().filter_map(row).collect();
    format!("{}\n", json!({ "schema": SCHEMA, "jobs": jobs }))
}

/// The state of a job as lines.
pub fn status_text(info: &JobInfo) -> String {
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
        if !view.reason.is_empty() {
            rows.push(("last", view.reason.clone()));
        }
    } else if let Some(status) = info.detail.as_ref().and_then(|detail| detail.status.as_ref()) {
        rows.push(("processors", status.processors().to_string()));
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

/// The reason for the state of a job as the object of `--json`.
pub fn why_object(info: &JobInfo) -> String {
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

/// The reason for the state of a job as lines.
pub fn why_text(info: &JobInfo) -> String {
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

/// The numbers of submitted jobs, with the failure of the others.
pub fn submitted(json: bool, numbers: &[JobId], failed: Option<&Failed>) -> String {
    if !json {
        return numbers.iter().map(|job| format!("{job}\n")).collect();
    }
    let numbers: Vec<u64> = numbers.iter().map(|job| job.0).collect();
    let mut object = json!({ "schema": SCHEMA, "ok": failed.is_none(), "jobs": numbers });
    if let (Some(failed), Some(object)) = (failed, object.as_object_mut()) {
        object.insert("error".to_owned(), json!(failed.message));
    }
    format!("{object}\n")
}

/// The note that some requested lines are missing, if so.
pub fn missing_lines_note(lines: usize, line_count: u64, wanted: Option<usize>) -> Option<String> {
    let fewer = (lines as u64) < line_count && wanted.is_none_or(|wanted| lines < wanted);
    fewer.then(|| format!("only the last {lines} of {line_count} lines are shown"))
}

#[cfg(test)]
mod tests {
    use springtide_actors::scheduler::{JobDetail, JobState};
    use springtide_cli::exit::Exit;

    use super::*;
    use springtide_operations::desk::JobRecord;
    use springtide_operations::jobs::{
        after_some_submitted, check_plans, last_ended, not_purged, not_resizable,
    };

    #[test]
    fn the_list_has_a_row_of_each_job() {
        let entry = |job: u64, ended: Option<JobEnd>| ArchiveEntry {
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
        let end =
            |error: Option<&str>| JobEnd { error: error.map(str::to_owned), ..JobEnd::default() };
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
                Some("no place for component 1:\n  ams 0 idle, 2 needed\n"),
            ),
            live(5, JobState::Running, 2, None),
        ];
        let expected = "\
JOB    STATE    PROCESSORS   AGE  PROGRAM
job-1  done                 60 s  queens --size 12
job-2  failed               60 s  queens --size 12  it broke
job-3  running          12  60 s  queens --size 12
job-4  waiting              60 s  queens --size 12  no place for component 1: ams 0 idle, 2 needed
job-5  running           2        fib
";
        let text = list_text(&rows(entries, live, 160));
        assert_eq!(text, expected, "{text}");
        assert_eq!(list_text(&[]), "no jobs\n");
    }

    #[test]
    fn a_failure_reports_the_jobs_submitted_before_it() {
        let numbers = [JobId(1), JobId(2)];
        let failed = after_some_submitted(Failed::new(Exit::NotPlaced, "nowhere"), "fib", 2, 5);
        let text = "2 of 5 jobs were submitted; then fib: nowhere";
        assert_eq!((failed.exit, failed.message.as_str()), (Exit::NotPlaced, text));
        assert_eq!(after_some_submitted(Failed::failure("no"), "fib", 0, 1).message, "no");
        assert_eq!(submitted(false, &numbers, Some(&failed)), "job-1\njob-2\n");
        let object = |failed| serde_json::from_str::<Value>(&submitted(true, &numbers, failed));
        let expected = json!({ "schema": 1, "ok": false, "jobs": [1, 2], "error": text });
        assert_eq!(object(Some(&failed)).unwrap(), expected);
        assert_eq!(object(None).unwrap(), json!({ "schema": 1, "ok": true, "jobs": [1, 2] }));
    }

    #[test]
    fn a_plan_reports_jobs_that_never_start_and_each_failure() {
        let no = |can_never_fit| {
            let why = springtide_actors::policy::malleability::PlacementError {
                component: 0,
                excluded: BTreeMap::new(),
                can_never_fit,
            };
            Err(PlanError::NoPlace(why))
        };
        assert_eq!(plan_text("fib", &no(false)), "fib: would wait, for component 1 has no place");
        let text = plan_text("fib", &no(true));
        assert_eq!(text, "fib: can never start, for component 1 can have no place");
        let plans = |count: usize| -> Vec<(String, Result<PlacementPlan, PlanError>)> {
            (0..count).map(|i| (format!("fib --n {i}"), no(i % 2 == 0))).collect()
        };
        assert_eq!(check_plans(&plans(0)), Ok(()));
        assert_eq!(
            check_plans(&plans(1)).unwrap_err().message,
            "no cluster can ever take component 1"
        );
        let many = check_plans(&plans(12)).unwrap_err();
        assert_eq!(many.exit, Exit::NotPlaced);
        let expected = "12 of 12 jobs cannot start now:\n  fib --n 0: no cluster can ever take";
        assert!(many.message.starts_with(expected), "{}", many.message);
        assert!(many.message.ends_with("fib --n 9: no cluster can take component 1\n  and 2 more"));
    }

    #[test]
    fn missing_lines_are_reported() {
        assert_eq!(missing_lines_note(5, 5, None), None);
        assert_eq!(missing_lines_note(3, 5, Some(3)), None);
        let expected = Some("only the last 1000 of 1200 lines are shown".to_owned());
        assert_eq!(missing_lines_note(1000, 1200, None), expected);
        assert_eq!(missing_lines_note(1000, 1200, Some(1100)), expected);
    }

    fn job_info(end: Option<JobEnd>, waits: Option<&str>) -> JobInfo {
        let (name, line) = ("fib".to_owned(), "fib --n 5".to_owned());
        let ended_unix_s = end.as_ref().map(|_| 5);
        let entry = ArchiveEntry {
            job: JobId(7),
            name,
            line,
            submitted_unix_s: 0,
            ended: end,
            ended_unix_s,
            principal: None,
        };
        let record = JobRecord {
            entry,
            progress: None,
            lines: Vec::new(),
            said: 0,
            result: None,
            unwritten: None,
            unreadable: None,
            dir: "jobs/job-7".into(),
        };
        let status = waits.map(|waits| JobStatus {
            job: JobId(7),
            name: "fib".to_owned(),
            state: JobState::Queued,
            sizes: std::collections::BTreeMap::new(),
            waits_for: Some(waits.to_owned()),
            coordinator: None,
            principal: None,
        });
        let detail = status.map(|status| JobDetail {
            status: Some(status),
            view: None,
            history: Vec::new(),
        });
        JobInfo { job: JobId(7), record: Some(record), detail }
    }

    #[test]
    fn why_and_status_report_errors_and_reasons_to_wait() {
        let end = JobEnd {
            error: Some("it broke".to_owned()),
            cancelled: false,
            exit: Some(3),
            ..JobEnd::default()
        };
        let failed = job_info(Some(end), None);
        let object: Value = serde_json::from_str(&why_object(&failed)).unwrap();
        assert_eq!((&object["state"], &object["why"]), (&json!("failed"), &json!("it broke")));
        let waits = job_info(None, Some("nodes that may have outlived the former scheduler"));
        let text = status_text(&waits);
        assert!(text.contains("  waits for   nodes that may have outlived"), "{text}");
        let object: Value = serde_json::from_str(&status_object(&waits)).unwrap();
        let expected = object["waits_for"].as_str().unwrap();
        assert!(expected.starts_with("nodes that may"), "{object}");
        let refused = not_resizable(&waits);
        assert_eq!(refused.exit, Exit::Failure);
        let expected = "job-7 is waiting (nodes that may have outlived the former scheduler): its \
        size";
        assert!(refused.message.starts_with(expected), "{refused}");
        assert_eq!(not_resizable(&failed).message, "job-7 has ended: it is failed");
    }

    /// The archive is asked before the scheduler, which may have forgotten the job meanwhile.
    #[test]
    fn a_job_known_to_the_archive_alone_has_one_state_everywhere() {
        let job_info = job_info(None, None);
        assert!(!job_info.has_ended(), "a client that waits for it continues to wait");
        let entry = job_info.record.as_ref().unwrap().entry.clone();
        let rows = rows(vec![entry], Vec::new(), 60);
        let read = |object: String| serde_json::from_str::<Value>(&object).unwrap();
        let listed = read(list_object(&rows, false))["jobs"][0]["state"].clone();
        let (status, why) = (read(status_object(&job_info)), read(why_object(&job_info)));
        for state in [&listed, &status["state"], &why["state"]] {
            assert_eq!(state, "ending");
        }
        assert!(list_text(&rows).contains("job-7  ending "), "{}", list_text(&rows));
        assert!(
            status_text(&job_info).contains("  state       ending\n"),
            "{}",
            status_text(&job_info)
        );
        assert_eq!(why_text(&job_info), "job-7 is ending\n");
        let refused = not_resizable(&job_info).message;
        assert_eq!(refused, "job-7 is ending: its size can be changed when it runs");
        // The scheduler remembers a job of another client, and its end is not stored here.
        let other = JobInfo { record: None, ..job_info };
        assert!(other.has_ended() && other.state() == "over");
    }

    #[test]
    fn a_result_has_the_exit_of_its_job_or_reports_its_loss() {
        let end = JobEnd {
            error: Some("nowhere".to_owned()),
            cancelled: false,
            exit: Some(3),
            ..JobEnd::default()
        };
        let mut failed = job_info(Some(end.clone()), None);
        let lost = failed.into_result().unwrap_err();
        assert_eq!(lost.exit, Exit::Failure);
        assert!(lost.message.contains("has ended (failed: nowhere), and its result could not"));
        failed = job_info(Some(end), None);
        if let Some(record) = &mut failed.record {
            record.result = Some((json!({}), String::new()));
        }
        let expected = failed.into_result().unwrap().failed.unwrap();
        assert_eq!((expected.exit, expected.message.as_str()), (Exit::NotPlaced, "nowhere"));
        let waits = job_info(None, Some("a place")).into_result().unwrap_err();
        assert!(waits.message.contains("has not ended"), "{waits}");
    }

    #[test]
    fn a_list_shows_the_last_ended_jobs_and_an_incomplete_purge_fails() {
        let end =
            || Some(JobEnd { error: None, cancelled: false, exit: None, ..JobEnd::default() });
        let entry = |job: u64, ended_unix_s: Option<u64>| ArchiveEntry {
            job: JobId(job),
            name: "fib".to_owned(),
            line: "fib".to_owned(),
            submitted_unix_s: 0,
            ended: ended_unix_s.and_then(|_| end()),
            ended_unix_s,
            principal: None,
        };
        let all = || vec![entry(1, Some(9)), entry(2, None), entry(3, Some(5)), entry(4, Some(7))];
        let shown = |count| {
            let (shown, more) = last_ended(all(), count);
            (shown.iter().map(|entry| entry.job.0).collect::<Vec<_>>(), more)
        };
        assert_eq!(shown(0), (vec![2], true));
        assert_eq!(shown(2), (vec![1, 2, 4], true));
        assert_eq!(shown(3), (vec![1, 2, 3, 4], false));
        let mut purged = Purged { removed: vec![JobId(1)], ..Purged::default() };
        assert_eq!(not_purged(&purged), None);
        purged.failed.insert(JobId(3), "busy".to_owned());
        assert_eq!(not_purged(&purged).unwrap().message, "job-3 cannot be removed: busy");
        purged.running.push(JobId(2));
        assert_eq!(not_purged(&purged).unwrap().exit, Exit::Failure);
        purged.unknown.push(JobId(7));
        assert_eq!(not_purged(&purged).unwrap().exit, Exit::Usage);
        assert_eq!(purged_text(&purged), "job-1 is removed\n");
        let object: Value = serde_json::from_str(&purged_object(&purged)).unwrap();
        assert_eq!((&object["removed"], &object["ok"]), (&json!([1]), &json!(false)));
    }
}
