//! The result of a run: the JSON object of `--json`, and the summary for people.
//!
//! This module does not know the origin of the numbers.

use std::fmt::Write;

use serde_json::{Map, Value, json};
use springtide_actors::job::{JobEndReport, JobError, JobReport};
use springtide_runtime::meter::{Histogram, Histograms, Statistics, StealCounts, ThreadState};
use springtide_runtime::work::solo::SoloReport;
use springtide_runtime::work::{Outcome, PhaseTime, PhaseTimes};

use crate::exit::Exit;
use crate::format::{SCHEMA, many, micros, number, seconds, size};

/// The end of a run.
#[derive(Clone, Debug)]
pub struct RunEnd {
    /// The name of the job.
    pub job: String,
    /// Its outcome, or the reason why it has none.
    pub outcome: Result<Outcome, String>,
    /// The resources that it used, if known.
    pub report: Option<JobReport>,
    /// Warnings to print, in sentences.
    pub warnings: Vec<String>,
    /// The reason why files are missing, which fails the run.
    pub unwritten: Option<String>,
    /// The reason why it was stopped, if its outcome is preliminary.
    pub stopped: Option<String>,
}

impl RunEnd {
    /// The end of a job as its client received it.
    pub fn of(job: &str, ended: &JobEndReport) -> Self {
        let outcome = ended.outcome.clone().map_err(|error| error.to_string());
        // A job without a coordinator has no report.
        let report = Some(ended.report.clone()).filter(|report| *report != JobReport::default());
        Self::new(job, outcome, report)
    }

    /// A job with this outcome.
    pub fn new(job: &str, outcome: Result<Outcome, String>, report: Option<JobReport>) -> Self {
        Self {
            job: job.to_owned(),
            outcome,
            report,
            warnings: Vec::new(),
            unwritten: None,
            stopped: None,
        }
    }

    /// The reason why it failed, if it did.
    pub fn error(&self) -> Option<&str> {
        let failed = self.outcome.as_ref().err();
        failed.or(self.stopped.as_ref()).or(self.unwritten.as_ref()).map(String::as_str)
    }

    /// A job that was stopped, with its preliminary outcome.
    pub fn stopped(job: &str, outcome: Outcome, why: &str) -> Self {
        Self { stopped: Some(why.to_owned()), ..Self::new(job, Ok(outcome), None) }
    }

    /// Replaces a missing outcome by the last preliminary one, if any.
    pub fn or_preliminary(self, preliminary: Option<Outcome>) -> Self {
        match (self.outcome, preliminary) {
            (Err(why), Some(outcome)) => Self { outcome: Ok(outcome), stopped: Some(why), ..self },
            (outcome, _) => Self { outcome, ..self },
        }
    }

    /// A run that failed before its job began.
    pub fn early(job: &str, error: &str) -> Self {
        Self::new(job, Err(error.to_owned()), None)
    }

    /// The end of a run without a grid.
    pub fn solo(job: &str, solo: SoloReport, iterations: Vec<f64>, phases: PhaseTimes) -> Self {
        let wall_s = solo.wall.as_secs_f64();
        let mut report = JobReport { wall_s, iterations, phases, ..JobReport::default() };
        let total = &mut report.total;
        total.threads = 1;
        total.counters.tasks.spawned = solo.counts.spawned;
        total.counters.tasks.executed = solo.counts.executed;
        total.times = solo.times;
        total.counters.cpu_us =
            solo.cpu.map_or(0, |cpu| u64::try_from(cpu.as_micros()).unwrap_or(u64::MAX));
        let outcome = solo.outcome.map_err(|failure| failure.to_string());
        Self::new(job, outcome, Some(report))
    }

    /// The object of `--json`, also the run's `result.json`. Unknown values are omitted.
    pub fn json(&self) -> Value {
        let mut object = json!({
            "schema": SCHEMA,
            "job": self.job,
            "ok": self.error().is_none(),
            "checksum": self.outcome.as_ref().ok().map(|outcome| checksum(outcome.checksum)),
            "result": self.outcome.as_ref().ok().map(|outcome| &outcome.result),
        });
        if let Some(object) = object.as_object_mut() {
            if let Some(Value::Object(figures)) = self.report.as_ref().map(figures) {
                object.extend(figures);
            }
            if !self.warnings.is_empty() {
                object.insert("warnings".to_owned(), json!(self.warnings));
            }
            if let Some(error) = self.error() {
                object.insert("error".to_owned(), json!(error));
            }
            if self.stopped.is_some() {
                object.insert("unfinished".to_owned(), json!(true));
            }
        }
        object
    }

    /// The object with the job's own keys first and the rest under `run`. A run without a result
    /// has the plain object.
    pub fn result_first(&self) -> Value {
        let mut run = self.json();
        let result = run.get_mut("result").map(Value::take);
        let Some(Value::Object(mut result)) = result else { return run };
        if let Some(run) = run.as_object_mut() {
            run.remove("result");
        }
        result.insert("run".to_owned(), run);
        Value::Object(result)
    }

    /// The summary for people, for a run with an outcome.
    pub fn summary(&self) -> String {
        let mut out = String::new();
        let Ok(outcome) = &self.outcome else { return out };
        let unknown = JobReport::default();
        let report = self.report.as_ref().unwrap_or(&unknown);
        let total = &report.total;
        let workers: u32 = report.clusters.values().map(|cluster| cluster.workers).sum();
        let place = match report.clusters.len() {
            0 => "alone on one thread".to_owned(),
            clusters => format!(
                "by {} in {}",
                many(workers.into(), "worker"),
                many(clusters as u64, "cluster")
            ),
        };
        let mut line = |name: &str, text: &str| {
            let _ = writeln!(out, "{name:<12}{text}");
        };
        line("job", &self.job);
        if let Some(why) = &self.stopped {
            line("unfinished", why);
        }
        if self.report.is_some() {
            line("time", &format!("{} {place}", seconds(report.wall_s)));
        }
        if report.iterations.len() > 1 {
            line("iterations", &iterations(&report.iterations));
        }
        if !report.phases.is_empty() {
            line("phases", &phases(&report.phases));
        }
        line("checksum", &checksum(outcome.checksum));
        let mut first = true;
        // A job may define the order of its summary.
        let lines = match outcome.result.get("summary").and_then(Value::as_array) {
            Some(own) => own.iter().filter_map(|line| line.as_str().map(str::to_owned)).collect(),
            None => flat(&outcome.result)
                .into_iter()
                .map(|(name, value)| format!("{name} = {value}"))
                .collect::<Vec<_>>(),
        };
        for text in lines {
            line(if first { "result" } else { "" }, &text);
            first = false;
        }
        let warn = |line: &mut dyn FnMut(&str, &str)| {
            self.warnings.iter().for_each(|warning| line("warning", warning));
        };
        if self.report.is_none() {
            warn(&mut line);
            return out;
        }
        let tasks = &total.counters.tasks;
        line("tasks", &format!("{} run of {} made", number(tasks.executed), number(tasks.spawned)));
        let all = total.times.total_ns();
        if all > 0 {
            let share = |state| total.times.get(state) as f64 / all as f64 * 100.0;
            let mut shares = format!("{:.1} % working", share(ThreadState::Working));
            let others = [
                (ThreadState::Idle, "idle"),
                (ThreadState::WaitLocal, "waiting inside the cluster"),
                (ThreadState::WaitWide, "waiting between clusters"),
                (ThreadState::Bench, "benchmarking"),
            ];
            for (state, name) in others {
                if total.times.get(state) > 0 {
                    let _ = write!(shares, ", {:.1} % {name}", share(state));
                }
            }
            line("threads", &shares);
        }
        if let Some(cpu_s) = cpu_s(total) {
            let mut text = format!("{} of processor time", seconds(cpu_s));
            if all > 0 {
                let share = cpu_s * 1e9 / all as f64 * 100.0;
                let _ = write!(text, ", {share:.1} % of the threads' time");
            }
            line("cpu", &text);
        }
        warn(&mut line);
        if report.clusters.is_empty() {
            return out;
        }
        if tasks.reclaimed + tasks.returned > 0 {
            let mut text = format!(
                "{} taken back, {} returned unfinished",
                number(tasks.reclaimed),
                number(tasks.returned)
            );
            if tasks.reused > 0 {
                text.push_str(&format!(
                    "; {} results of lost work used again",
                    number(tasks.reused)
                ));
            }
            line("leases", &text);
        }
        let latencies = latencies(report);
        let scopes = [
            (
                "local",
                tasks.stolen_local,
                &total.counters.steals.local,
                &latencies.steal_local,
                total.counters.bytes.local,
            ),
            (
                "wide",
                tasks.stolen_wide,
                &total.counters.steals.wide,
                &latencies.steal_wide,
                total.counters.bytes.wide,
            ),
        ];
        for (name, stolen, counts, latency, bytes) in scopes {
            let mut text = format!(
                "{} stolen, {} answered of {}, {} sent",
                many(stolen, "task"),
                number(counts.hits),
                many(counts.requests, "request"),
                size(bytes)
            );
            if let (Some(p50), Some(p99)) = (latency.p50_us(), latency.p99_us()) {
                let _ = write!(text, "; p50 {}, p99 {}", micros(p50), micros(p99));
            }
            line(name, &text);
        }
        out
    }
}

/// The end of a job for its report, with the exit code.
pub fn conclude(name: &str, ended: JobEndReport) -> (RunEnd, Exit) {
    let exit = match &ended.outcome {
        Ok(_) => Exit::Ok,
        Err(JobError::Start { .. }) => Exit::NotPlaced,
        Err(JobError::Task(failure)) => failure.exit.map_or(Exit::Failure, Exit::Program),
        Err(_) => Exit::Failure,
    };
    (RunEnd::of(name, &ended), exit)
}

/// The resources that a job used, as keys of the object of `--json`.
fn figures(report: &JobReport) -> Value {
    let total = &report.total;
    let counters = &total.counters;
    let latencies = latencies(report);
    let clusters: Vec<Value> = report
        .clusters
        .iter()
        .map(|(name, cluster)| json!({ "name": name, "workers": cluster.workers }))
        .collect();
    let work = report.clusters.iter();
    let work: Map<String, Value> =
        work.map(|(name, part)| (name.to_string(), work_of(&part.statistics))).collect();
    let time: Map<String, Value> = ThreadState::ALL
        .iter()
        .map(|&state| (state.name().to_owned(), json!(total.times.seconds(state))))
        .collect();
    let steals = |counts: &StealCounts, latency: &Histogram| {
        json!({
            "requests": counts.requests,
            "hits": counts.hits,
            "p50_us": latency.p50_us(),
            "p99_us": latency.p99_us(),
        })
    };
    let mut object = json!({
        "wall_s": report.wall_s,
        "iterations": report.iterations,
        "clusters": clusters,
        "tasks": {
            "spawned": counters.tasks.spawned,
            "executed": counters.tasks.executed,
            "stolen_local": counters.tasks.stolen_local,
            "stolen_wide": counters.tasks.stolen_wide,
            "reclaimed": counters.tasks.reclaimed,
        },
        "time": time,
        "work": work,
        "steals": {
            "local": steals(&counters.steals.local, &latencies.steal_local),
            "wide": steals(&counters.steals.wide, &latencies.steal_wide),
        },
        "bytes": {
            "local": counters.bytes.local,
            "wide": counters.bytes.wide,
            "results": counters.results.bytes,
        },
        "join_delay": {
            "count": latencies.join_delay.count(),
            "p50_us": latencies.join_delay.p50_us(),
            "p99_us": latencies.join_delay.p99_us(),
            "max_us": latencies.join_delay.max_us(),
        },
    });
    if !report.phases.is_empty() {
        object["phases"] = report.phases.to_json();
    }
    if let (Some(cpu_s), Some(object)) = (cpu_s(total), object.as_object_mut()) {
        object.insert("cpu_s".to_owned(), json!(cpu_s));
    }
    object
}

fn latencies(report: &JobReport) -> Histograms {
    report.histograms().unwrap_or_else(|error| {
        tracing::warn!("the report's latencies are malformed and omitted: {error}");
        Histograms::default()
    })
}

/// Processor time in seconds, if it is known.
fn cpu_s(statistics: &Statistics) -> Option<f64> {
    Some(statistics.counters.cpu_us as f64 / 1e6).filter(|seconds| *seconds > 0.0)
}

/// The computed work, as a prediction of the job's run elsewhere needs it.
fn work_of(statistics: &Statistics) -> Value {
    let work = &statistics.counters.work;
    let mut object = json!({
        "working_s": statistics.times.seconds(ThreadState::Working),
        "root_s": work.root_us as f64 * 1e-6,
        "tasks": work.tasks,
        "units": work.units.get(),
        "squares": work.squares.get(),
    });
    if let (Some(cpu_s), Some(object)) = (cpu_s(statistics), object.as_object_mut()) {
        object.insert("cpu_s".to_owned(), json!(cpu_s));
    }
    object
}

/// A checksum in its printed form.
pub fn checksum(value: u64) -> String {
    format!("{value:016x}")
}

/// The values of a result with their dotted names.
fn flat(value: &Value) -> Vec<(String, String)> {
    fn walk(prefix: &str, value: &Value, out: &mut Vec<(String, String)>) {
        match value {
            Value::Object(map) => {
                for (key, value) in map {
                    let name =
                        if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
                    walk(&name, value, out);
                }
            }
            Value::Null => {}
            // Series are for `--json` and figures.
            Value::Array(items) if items.len() > 4 || items.iter().any(Value::is_array) => {}
            other => {
                let mut text = other.to_string();
                if text.chars().count() > 100 {
                    text = text.chars().take(97).chain("...".chars()).collect();
                }
                let name = if prefix.is_empty() { "value" } else { prefix };
                out.push((name.to_owned(), text));
            }
        }
    }
    let mut out = Vec::new();
    walk("", value, &mut out);
    out
}

/// Each phase's part of the time, and the part that ran on one thread.
fn phases(times: &PhaseTimes) -> String {
    let wall: f64 = times.0.iter().map(|phase| phase.wall_s).sum();
    let part = |seconds: f64| if wall > 0.0 { 100.0 * seconds / wall } else { 0.0 };
    let phase = |phase: &PhaseTime| format!("{} {:.1} %", phase.name, part(phase.wall_s));
    let all: Vec<String> = times.0.iter().map(phase).collect();
    format!("{}; {:.1} % ran on one thread", all.join(", "), 100.0 * times.serial_share())
}

fn iterations(all: &[f64]) -> String {
    let mut sorted = all.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len() - 1;
    format!(
        "{}; fastest {}, median {}, slowest {}",
        all.len(),
        seconds(sorted[0]),
        seconds(sorted[last / 2]),
        seconds(sorted[last])
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use springtide_actors::job::ClusterReport;

    use super::*;

    fn ended() -> RunEnd {
        let mut report =
            JobReport { wall_s: 12.345, iterations: vec![1.5, 0.5, 1.0], ..JobReport::default() };
        for name in ["ams", "del"] {
            let cluster = ClusterReport { workers: 2, ..ClusterReport::default() };
            report.clusters.insert(name.into(), cluster);
        }
        let total = &mut report.total;
        total.times.working_ns = 9_000_000_000;
        total.times.idle_ns = 1_000_000_000;
        total.counters.tasks.spawned = 1_234_567;
        total.counters.tasks.executed = 1_234_568;
        total.counters.tasks.stolen_wide = 3;
        total.counters.steals.wide.requests = 10;
        total.counters.steals.wide.hits = 3;
        total.counters.bytes.wide = 12_345;
        total.counters.cpu_us = 2_500_000;
        let mut latencies = Histograms::default();
        latencies.steal_wide.record(Duration::from_micros(40));
        total.latencies = latencies.take_deltas();
        let result =
            json!({ "n": 5, "deep": { "x": 1.5, "p": [1, 2, 3] }, "series": [1, 2, 3, 4, 5] });
        let outcome = Outcome { checksum: 0xab, result };
        RunEnd::new("fib", Ok(outcome), Some(report))
    }

    #[test]
    fn the_object_has_the_promised_shape() {
        let object = ended().json();
        let keys = |value: &Value| -> BTreeSet<String> {
            value.as_object().unwrap().keys().cloned().collect()
        };
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let top: BTreeSet<String> = set(&[
            "schema",
            "job",
            "ok",
            "wall_s",
            "iterations",
            "checksum",
            "result",
            "clusters",
            "tasks",
            "time",
            "work",
            "steals",
            "bytes",
            "join_delay",
            "cpu_s",
        ]);
        assert_eq!(keys(&object), top);
        let tasks: BTreeSet<String> =
            set(&["spawned", "executed", "stolen_local", "stolen_wide", "reclaimed"]);
        assert_eq!(keys(&object["tasks"]), tasks);
        assert_eq!(
            keys(&object["time"]),
            set(&["work", "idle", "wait_local", "wait_wide", "bench"])
        );
        for scope in ["local", "wide"] {
            let names = set(&["requests", "hits", "p50_us", "p99_us"]);
            assert_eq!(keys(&object["steals"][scope]), names);
        }
        assert_eq!(object["schema"], 1);
        assert_eq!(object["checksum"], "00000000000000ab");
        assert_eq!(
            object["clusters"],
            json!([{ "name": "ams", "workers": 2 }, { "name": "del", "workers": 2 }])
        );
        assert_eq!(object["time"]["work"], 9.0);
        let names = set(&["working_s", "root_s", "tasks", "units", "squares"]);
        assert_eq!(keys(&object["work"]["ams"]), names);
        assert_eq!(object["steals"]["wide"]["hits"], 3);
        assert_eq!(object["steals"]["local"]["p50_us"], Value::Null);
        assert!(object["steals"]["wide"]["p50_us"].as_u64().unwrap() >= 39);
    }

    #[test]
    fn a_failure_has_its_error_and_no_figures() {
        let object = RunEnd::early("fib", "no node").json();
        assert_eq!((&object["ok"], &object["error"]), (&json!(false), &json!("no node")));
        assert_eq!(object["checksum"], Value::Null);
        // Unknown values are omitted: no zeros.
        let mut keys: Vec<&String> = object.as_object().unwrap().keys().collect();
        keys.sort();
        assert_eq!(keys, ["checksum", "error", "job", "ok", "result", "schema"]);
        assert_eq!(RunEnd::early("fib", "no node").summary(), "");
    }

    #[test]
    fn a_missing_file_is_an_error_in_addition_to_the_result() {
        let unwritten = Some("cannot write a.png: full".to_owned());
        let object = RunEnd { unwritten, ..ended() }.json();
        assert_eq!(object["ok"], json!(false));
        assert_eq!(object["error"], json!("cannot write a.png: full"));
        assert_eq!(object["checksum"], ended().json()["checksum"]);
    }

    #[test]
    fn warnings_stand_in_the_object_and_in_the_summary() {
        let warned = RunEnd { warnings: vec!["too many threads".to_owned()], ..ended() };
        assert_eq!(warned.json()["warnings"], json!(["too many threads"]));
        assert!(warned.summary().contains("\nwarning     too many threads\n"));
    }

    #[test]
    fn the_summary_is_aligned_and_names_its_units() {
        let expected = "\
job         fib
time        12.35 s by 4 workers in 2 clusters
iterations  3; fastest 500.0 ms, median 1.00 s, slowest 1.50 s
checksum    00000000000000ab
result      deep.p = [1,2,3]
            deep.x = 1.5
            n = 5
tasks       1'234'568 run of 1'234'567 made
threads     90.0 % working, 10.0 % idle
cpu         2.50 s of processor time, 25.0 % of the threads' time
local       0 tasks stolen, 0 answered of 0 requests, 0 B sent
wide        3 tasks stolen, 3 answered of 10 requests, 12.3 kB sent; p50 40 us, p99 40 us
";
        assert_eq!(ended().summary(), expected);
    }
}
