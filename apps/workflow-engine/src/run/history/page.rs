//! The page of a run: one file of HTML without scripts and external resources.

use std::path::Path;

use springtide_cli::dates::date;
use springtide_cli::format::{many, number, seconds, size};
use springtide_runtime::work::OutputStream;

use super::analysis::{KindUsage, PathStep, Percentiles, critical_path, usage};
use super::attempts::{AttemptEnd, RunHistory, TaskAttempt, TaskOutcome};
use super::chart::{KindColours, gantt, load};
use super::markup::{Cell, Markup, relative_url, table};
use crate::check::percent;
use crate::shown;

/// The most rows of a table.
const ROWS_MAX: usize = 200;
/// The most failed attempts with the end of their log.
const LOG_ENDS_MAX: usize = 10;
/// The most bytes of the end of a log.
const LOG_END_MAX: usize = 1500;

const STYLE: &str = include_str!("page.css");

/// The page of a run, for a file in a directory.
pub fn page(history: &RunHistory, dir: &Path) -> String {
    let (usage, path) = (usage(history), critical_path(history));
    let colours = KindColours::new(&usage);
    let name = shown(&history.manifest.workflow);
    let mut out = Markup::default();
    out.raw("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n");
    out.raw("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    out.element("title", &format!("{name}: report of a workflow run"));
    out.raw("\n<style>").raw(STYLE).text(&colours.style()).raw("</style></head><body><main>\n");
    header(&mut out, history, &name);
    timeline(&mut out, history, &path, &colours);
    path_section(&mut out, history, &path);
    waits(&mut out, history, &usage);
    failures(&mut out, history, dir);
    resources(&mut out, history, &usage);
    files(&mut out, history, dir);
    footer(&mut out, history, dir);
    out.raw("</main></body></html>\n");
    out.into_string()
}

fn header(out: &mut Markup, history: &RunHistory, name: &str) {
    out.raw("<header><h1>").text(name).raw(" <span");
    out.attribute("class", &format!("state {}", history.state)).raw(">");
    out.text(history.state).raw("</span></h1>\n");
    if let Some(error) = &history.error {
        out.raw("<p class=\"error\">").text(error).raw("</p>\n");
    }
    out.raw("<dl class=\"facts\">");
    let mut fact = |name: &'static str, value: &str| {
        out.raw("<div>").element("dt", name).element("dd", value).raw("</div>");
    };
    let completed = history.count(TaskOutcome::Completed) + history.count(TaskOutcome::Cached);
    let count = |n: usize| number(n as u64);
    fact("completed", &format!("{} of {} tasks", count(completed), count(history.total)));
    let cached = history.count(TaskOutcome::Cached);
    if cached > 0 {
        fact("from the cache", &count(cached));
    }
    fact("failed", &count(history.count(TaskOutcome::Failed)));
    if history.workflow.is_ok() {
        fact("skipped", &count(history.count(TaskOutcome::Skipped)));
    }
    let failed =
        |attempt: &&TaskAttempt| matches!(attempt.end, AttemptEnd::Failed { again: true, .. });
    let again = history.attempts.iter().filter(failed).count();
    if again > 0 {
        fact("repeated attempts", &count(again));
    }
    fact("wall time", &seconds(history.last_s() - history.begun_s()));
    if history.processes.len() > 1 {
        let (active, count) = (seconds(history.active_s()), history.processes.len());
        fact("continued", &format!("{active} in {count} processes"));
    }
    if history.workflow.is_ok() {
        let used = number(history.used_processor_s().round() as u64);
        let used_s = history.used_processor_s();
        let used = if used_s < 100.0 { format!("{used_s:.2}") } else { used };
        fact("used", &format!("{used} processor-seconds"));
    }
    if !history.best_effort || !history.costs.is_empty() {
        let cost = history.costs.iter().fold(0.0, |sum, cost| sum + cost);
        let reserved = many(history.costs.len() as u64, "reservation");
        fact("planned cost", &format!("{cost:.2} in {reserved}"));
    }
    out.raw("</dl>\n");
    let place = if history.best_effort { "best effort" } else { "on reserved slots" };
    let grid = history.manifest.config.display().to_string();
    out.raw("<p class=\"quiet\">").text(&format!(
        "From {} to {}, {place}. Workflow {}. Grid {grid}.",
        date(history.begun_s() as u64),
        date(history.last_s() as u64),
        history.manifest.file.display(),
    ));
    out.raw("</p>\n");
    if let Err(reason) = &history.workflow {
        out.raw("<p class=\"note\">").text(reason);
        out.raw(": the page has no critical path, no waits and no requested resources.</p>\n");
    }
    out.raw("</header>\n");
}

fn timeline(out: &mut Markup, history: &RunHistory, path: &[PathStep], colours: &KindColours) {
    let Some(chart) = gantt(history, path, colours) else { return };
    out.raw("<section><h2>Tasks by node</h2>\n<ul class=\"legend\">");
    for (class, name) in colours.legend() {
        out.raw("<li><i").attribute("class", class).raw("></i>").text(&name).raw("</li>");
    }
    let is_failed = |attempt: &TaskAttempt| {
        matches!(attempt.end, AttemptEnd::Failed { .. }) && attempt.start_s.is_some()
    };
    let mut marks = Vec::new();
    if history.attempts.iter().any(is_failed) {
        let class = if chart.is_aggregated { "i-mark" } else { "i-failed" };
        marks.push((class, "failed attempt"));
    }
    if !chart.is_aggregated && history.workflow.is_ok() {
        marks.push(("i-critical", "critical path"));
        marks.push(("i-wait", "a ready task waits on its node"));
    }
    for (class, name) in marks {
        out.raw("<li><i").attribute("class", class).raw("></i>").text(name).raw("</li>");
    }
    out.raw("</ul>\n");
    if chart.is_aggregated {
        out.raw("<p class=\"quiet\">Mean number of running tasks in each row over time.</p>\n");
    }
    let svg = load(history, &chart);
    out.append(chart.svg);
    out.raw("<h3>Running and waiting tasks</h3>\n<ul class=\"legend\">");
    out.raw("<li><i class=\"active\"></i>running</li>");
    if history.workflow.is_ok() {
        out.raw("<li><i class=\"ready\"></i>ready, and waiting for a node or files</li>");
    }
    out.raw("</ul>\n").append(svg);
    out.raw("</section>\n");
}

/// Adds a note about rows that a table does not have.
fn more(out: &mut Markup, all: usize, what: &str) {
    if all > ROWS_MAX {
        let left = many((all - ROWS_MAX) as u64, what);
        out.raw("<p class=\"quiet\">And ").text(&left).raw(" more.</p>\n");
    }
}

fn path_section(out: &mut Markup, history: &RunHistory, path: &[PathStep]) {
    let (Some(first), Ok(_)) = (path.first(), &history.workflow) else { return };
    let total = |part: fn(&PathStep) -> f64| path.iter().map(part).fold(0.0, |sum, s| sum + s);
    let parts = [
        ("running tasks", total(|step| step.run_s)),
        ("failed attempts", total(|step| step.failed_s)),
        ("transfers of files", total(|step| step.staging_s)),
        ("waiting for a node", total(|step| step.node_wait_s)),
        ("without a process of the run", total(|step| step.stopped_s)),
    ];
    let all = parts.iter().fold(0.0, |sum, (_, part)| sum + part);
    out.raw("<section><h2>Critical path</h2>\n<p>");
    out.text(&format!("{} in {}: ", many(path.len() as u64, "task"), seconds(all)));
    let shares = parts.iter().filter(|(_, part)| *part > 0.0);
    let shares = shares.map(|(name, part)| {
        format!("{} {name} ({})", seconds(*part), percent(if all > 0.0 { part / all } else { 0.0 }))
    });
    out.text(&shares.collect::<Vec<_>>().join(", ")).raw(".</p>\n");
    out.raw(
        "<p class=\"quiet\">The path leads from the task that was completed last back to the \
         parent that ended last, and so on. A task waits for parents from the end of its first \
         parent to the end of its last one, and then for a node.</p>\n",
    );
    let origin = first.ready_s;
    let has_transfers = path.iter().any(|step| step.staging_s > 0.0);
    let has_stops = path.iter().any(|step| step.failed_s + step.stopped_s > 0.0);
    let rows: Vec<Vec<Cell>> = path
        .iter()
        .take(ROWS_MAX)
        .map(|step| {
            let task = &history.tasks[step.task];
            let attempt = &history.attempts[step.attempt];
            let time = |s: f64| Cell::number(if s > 0.0 { seconds(s) } else { "-".to_owned() });
            let mut row = vec![
                Cell::text(shown(&task.id)),
                Cell::text(shown(&task.kind)),
                Cell::text(attempt.node.clone().unwrap_or_default()),
                Cell::number(seconds(attempt.start_s.unwrap_or(origin) - origin)),
                time(step.run_s),
                time(step.parent_wait_s),
                time(step.node_wait_s),
            ];
            row.extend(has_transfers.then(|| time(step.staging_s)));
            row.extend(has_stops.then(|| time(step.failed_s + step.stopped_s)));
            row
        })
        .collect();
    let mut heads =
        vec!["task", "kind", "node", "start", "ran", "waited for parents", "waited for a node"];
    heads.extend(has_transfers.then_some("transfers"));
    heads.extend(has_stops.then_some("failed attempts, stops"));
    table(out, &heads, &rows);
    more(out, path.len(), "task");
    out.raw("</section>\n");
}

fn waits(out: &mut Markup, history: &RunHistory, usage: &[KindUsage]) {
    if history.workflow.is_err() {
        return;
    }
    let all = usage.iter().flat_map(|kind| kind.waits_s.iter().copied()).collect();
    let Some(all) = Percentiles::of(all) else { return };
    let row = |name: String, waits: Percentiles| {
        let mut row = vec![Cell::text(name), Cell::number(number(waits.count as u64))];
        let values = [waits.p50, waits.p90, waits.p99, waits.max];
        row.extend(values.map(|value| Cell::number(seconds(value))));
        row
    };
    let of = |kind: &KindUsage| {
        Percentiles::of(kind.waits_s.clone()).map(|waits| row(shown(&kind.kind), waits))
    };
    let mut rows: Vec<Vec<Cell>> = usage.iter().filter_map(of).take(ROWS_MAX).collect();
    if rows.len() > 1 {
        rows.push(row("all kinds".to_owned(), all));
    }
    out.raw("<section><h2>Waits from ready to start</h2>\n");
    let heads = ["kind", "attempts", "median", "90 % within", "99 % within", "longest"];
    table(out, &heads, &rows);
    out.raw("</section>\n");
}

fn failures(out: &mut Markup, history: &RunHistory, dir: &Path) {
    let failed: Vec<(&TaskAttempt, &str, bool)> = history
        .attempts
        .iter()
        .filter_map(|attempt| match &attempt.end {
            AttemptEnd::Failed { reason, again } => Some((attempt, reason.as_str(), *again)),
            _ => None,
        })
        .collect();
    out.raw("<section><h2>Failures</h2>\n");
    if failed.is_empty() {
        out.raw("<p>No attempt of a task failed.</p></section>\n");
        return;
    }
    let log = |attempt: &TaskAttempt, stream| history.log(attempt, stream);
    let streams = [("output", OutputStream::Stdout), ("errors", OutputStream::Stderr)];
    // Failures for good come first.
    let mut order: Vec<usize> = (0..failed.len()).collect();
    order.sort_by_key(|&at| failed[at].2);
    let rows: Vec<Vec<Cell>> = order
        .iter()
        .take(ROWS_MAX)
        .map(|&at| {
            let (attempt, reason, again) = failed[at];
            let links = streams.iter().filter_map(|(name, stream)| {
                let path = log(attempt, *stream)?;
                Some(((*name).to_owned(), relative_url(dir, &path)))
            });
            vec![
                Cell::text(shown(&history.tasks[attempt.task].id)),
                Cell::number(attempt.number.to_string()),
                Cell::text(attempt.node.clone().unwrap_or_default()),
                Cell::number(seconds(attempt.duration_s())),
                Cell::text(reason),
                Cell::text(if again { "tried again" } else { "failed for good" }),
                Cell::Links(links.collect()),
            ]
        })
        .collect();
    let heads = ["task", "attempt", "node", "ran", "reason", "then", "log"];
    table(out, &heads, &rows);
    more(out, failed.len(), "attempt");
    for &at in order.iter().filter(|&&at| !failed[at].2).take(LOG_ENDS_MAX) {
        let attempt = failed[at].0;
        let texts = [OutputStream::Stderr, OutputStream::Stdout].into_iter();
        let end = texts.filter_map(|stream| log_end(&log(attempt, stream)?)).next();
        let Some(end) = end else { continue };
        let id = shown(&history.tasks[attempt.task].id);
        out.raw("<details><summary>End of the log of ").text(&id);
        out.text(&format!(", attempt {}", attempt.number)).raw("</summary>");
        out.element("pre", &end).raw("</details>\n");
    }
    skipped(out, history);
    out.raw("</section>\n");
}

/// The end of a log, if it has text.
fn log_end(path: &Path) -> Option<String> {
    use std::io::{Read as _, Seek as _, SeekFrom};
    let mut file = std::fs::File::open(path).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LOG_END_MAX as u64))).ok()?;
    let mut bytes = Vec::new();
    file.take(LOG_END_MAX as u64).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

fn skipped(out: &mut Markup, history: &RunHistory) {
    const NAMES: usize = 20;
    let skipped = history.tasks.iter().filter(|task| task.outcome == TaskOutcome::Skipped);
    let names: Vec<String> = skipped.map(|task| shown(&task.id)).collect();
    if names.is_empty() {
        return;
    }
    let count = many(names.len() as u64, "task");
    let depend = if names.len() == 1 { "depends" } else { "depend" };
    let more = names.len().saturating_sub(NAMES);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let names = names.into_iter().take(NAMES).collect::<Vec<_>>().join(", ");
    out.element("p", &format!("{count} {depend} on failed tasks and did not run: {names}{more}."));
}

fn resources(out: &mut Markup, history: &RunHistory, usage: &[KindUsage]) {
    if usage.is_empty() {
        return;
    }
    let is_known = history.workflow.is_ok();
    out.raw("<section><h2>Resources by kind of task</h2>\n");
    let limit = |limit: Option<String>| match (is_known, limit) {
        (false, _) => "?".to_owned(),
        (true, limit) => limit.unwrap_or_else(|| "none".to_owned()),
    };
    let rows: Vec<Vec<Cell>> = usage
        .iter()
        .take(ROWS_MAX)
        .map(|kind| {
            let processors = match kind.processors {
                _ if !is_known => "?".to_owned(),
                (least, most) if least == most => least.to_string(),
                (least, most) => format!("{least} to {most}"),
            };
            let ran = kind.completed > 0;
            let mean = kind.wall_s / kind.completed.max(1) as f64;
            let dash = |value: String, is: bool| if is { value } else { "-".to_owned() };
            let memory = dash(size(kind.memory_bytes), kind.memory_bytes > 0);
            let efficiency = kind.efficiency().filter(|_| is_known);
            vec![
                Cell::text(shown(&kind.kind)),
                Cell::number(number(kind.tasks as u64)),
                Cell::number(number(kind.completed as u64)),
                Cell::number(number(kind.failed as u64)),
                Cell::number(processors),
                Cell::number(dash(seconds(mean), ran)),
                Cell::number(dash(seconds(kind.longest_s), ran)),
                Cell::number(limit(kind.time_limit_s.map(seconds))),
                Cell::number(memory),
                Cell::number(limit(kind.memory_limit_bytes.map(size))),
                Cell::number(efficiency.map_or_else(|| "-".to_owned(), percent)),
            ]
        })
        .collect();
    let heads = [
        "kind",
        "tasks",
        "completed",
        "failed attempts",
        "processors",
        "mean time",
        "longest",
        "time limit",
        "most memory",
        "memory limit",
        "CPU efficiency",
    ];
    table(out, &heads, &rows);
    more(out, usage.len(), "kind");
    out.raw(
        "<p class=\"quiet\">CPU efficiency is the processor time as a share of the running time \
         of all processors that the tasks asked for. Limits are those of first attempts.</p>\
         </section>\n",
    );
}

fn files(out: &mut Markup, history: &RunHistory, dir: &Path) {
    if history.transfers.is_empty() && history.fetched.is_empty() {
        return;
    }
    out.raw("<section><h2>Files</h2>\n");
    if !history.transfers.is_empty() {
        let mut routes: std::collections::BTreeMap<(&str, &str), (usize, u64, f64)> =
            std::collections::BTreeMap::new();
        for transfer in &history.transfers {
            let route = routes.entry((&transfer.from, &transfer.to)).or_default();
            *route = (route.0 + 1, route.1 + transfer.bytes, route.2 + transfer.seconds);
        }
        let rows: Vec<Vec<Cell>> = routes
            .iter()
            .take(ROWS_MAX)
            .map(|((from, to), (count, bytes, took))| {
                let rate = if *took > 0.0 { *bytes as f64 / took } else { 0.0 };
                vec![
                    Cell::text(*from),
                    Cell::text(*to),
                    Cell::number(number(*count as u64)),
                    Cell::number(size(*bytes)),
                    Cell::number(seconds(*took)),
                    Cell::number(format!("{}/s", size(rate as u64))),
                ]
            })
            .collect();
        out.raw("<h3>Transfers between clusters</h3>\n");
        let heads = ["from", "to", "files", "bytes", "time of transfers", "mean rate"];
        table(out, &heads, &rows);
        more(out, routes.len(), "pair of clusters");
    }
    if !history.fetched.is_empty() {
        out.raw("<h3>Results</h3>\n");
        let rows: Vec<Vec<Cell>> = history
            .fetched
            .iter()
            .take(ROWS_MAX)
            .map(|(name, path)| {
                let bytes = std::fs::metadata(path).map(|meta| size(meta.len()));
                let shown_path = path.display().to_string();
                vec![
                    Cell::text(shown(name)),
                    Cell::number(bytes.unwrap_or_else(|_| "gone".to_owned())),
                    Cell::Links(vec![(shown_path, relative_url(dir, path))]),
                ]
            })
            .collect();
        table(out, &["file", "size", "path"], &rows);
        more(out, history.fetched.len(), "file");
    }
    out.raw("</section>\n");
}

fn footer(out: &mut Markup, history: &RunHistory, dir: &Path) {
    out.raw("<footer>Run ").text(&history.manifest.id).raw(": <a");
    out.attribute("href", &relative_url(dir, &history.dir.join("journal.jsonl")));
    out.raw(">journal</a>. Springtide ").text(env!("CARGO_PKG_VERSION"));
    out.raw(".</footer>\n");
}
