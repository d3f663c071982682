//! A run's directory read back: its records on one clock that counts from the job's start, the
//! policy's decisions among them, and the run's result.
//!
//! This module does not know the presentation of runs.
//!
//! Each record carries its node's own time since its recorder started, and when that was by the
//! node's wall clock. The sum of the two puts records of several nodes on one clock, as far as the
//! hosts' clocks agree. In virtual time all recorders start together.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;
use springtide_actors::policy::{ADAPT, LoggedDecision, Mode};
use springtide_cli::exit::Failed;
use springtide_runtime::event::{Event, Manifest, ReadLog, Record, RunDir, read};
use springtide_runtime::id::{ClusterId, NodeId};

/// Incarnations in this range are microseconds since 1970, in logs without start times.
const BY_CLOCK: std::ops::Range<u64> = 1_000_000_000_000_000..1 << 52;

/// A record with its place in time.
#[derive(Clone, Debug, PartialEq)]
pub struct TimedEvent {
    /// Seconds since the job's start; negative before it.
    pub at_s: f64,
    /// The event of the record.
    pub event: Event,
}

/// A decision of the policy with its place in time.
#[derive(Clone, Debug, PartialEq)]
pub struct TimedDecision {
    /// Seconds as of a [`TimedEvent`]. The snapshot has the coordinator's own clock.
    pub at_s: f64,
    /// The decision with its inputs.
    pub logged: LoggedDecision,
}

/// The log of a run.
#[derive(Debug)]
pub struct RunLog {
    /// The path of the log.
    pub file: PathBuf,
    /// The name of the run.
    pub run: String,
    /// All events except the policy's decisions, in order of time.
    pub moments: Vec<TimedEvent>,
    /// The policy's decisions, by epoch and period.
    pub decisions: Vec<TimedDecision>,
    /// The cluster of each node.
    pub homes: BTreeMap<NodeId, ClusterId>,
    /// The reason why the log is incomplete, if it is.
    pub gap: Option<String>,
    /// The manifest of the run, if it can be read.
    pub manifest: Option<Manifest>,
    /// The result as `--json` prints it, if the run has ended.
    pub result: Option<Value>,
}

impl RunLog {
    /// Reads the log of a run's directory.
    ///
    /// # Errors
    /// No run exists, or its log is malformed before its end.
    pub fn read(dir: &Path) -> Result<Self, Failed> {
        let run_dir = RunDir::open(dir).map_err(Failed::usage)?;
        let file = run_dir.events();
        let log = read(&file)?;
        let gap = gap(&log);
        let (run, start) = (log.header.run, start_us(&log.records));
        let (mut moments, mut decisions) = (Vec::new(), Vec::new());
        let mut homes = BTreeMap::new();
        for record in log.records {
            let at_s = (clock_us(&record) - start) as f64 / 1e6;
            learn_home(&mut homes, &record.event);
            match record.event {
                Event::Decision { decision, inputs, .. } if decision == ADAPT => {
                    let logged: LoggedDecision = serde_json::from_value(inputs).map_err(|error| {
                        Failed::failure(format!(
                            "{}: decision {} of node {} cannot be read ({error}): was the run made \
                            with another version?",
                            file.display(),
                            record.seq,
                            record.node
                        ))
                    })?;
                    decisions.push(TimedDecision { at_s, logged });
                }
                event => moments.push(TimedEvent { at_s, event }),
            }
        }
        moments.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
        once_each(&mut moments);
        decisions.sort_by_key(|taken| {
            let snapshot = &taken.logged.inputs.snapshot;
            (snapshot.epoch, snapshot.period)
        });
        for taken in &decisions {
            let snapshot = &taken.logged.inputs.snapshot;
            for (cluster, aggregate) in &snapshot.clusters {
                let named = aggregate.worst.iter().chain(&aggregate.best).map(|named| &named.node);
                named.for_each(|node| drop(homes.insert(node.clone(), cluster.clone())));
            }
        }
        let manifest = read_json(&run_dir.manifest());
        let result = read_json(&run_dir.result());
        Ok(Self { file, run, moments, decisions, homes, gap, manifest, result })
    }

    /// The mode of adaptation, from the decisions or else the manifest, if it is known.
    pub fn mode(&self) -> Option<Mode> {
        let decided = self.decisions.last().map(|taken| taken.logged.inputs.snapshot.mode);
        decided.or_else(|| Mode::of_word(self.manifest.as_ref()?.mode.as_deref()?))
    }

    /// The decisions of the policy.
    ///
    /// # Errors
    /// The log has none.
    pub fn some_decisions(&self) -> Result<&[TimedDecision], Failed> {
        if self.decisions.is_empty() {
            Err(Failed::failure(self.no_decisions()))
        } else {
            Ok(&self.decisions)
        }
    }

    /// The message about a log without decisions.
    pub fn no_decisions(&self) -> String {
        format!(
            "no decision is in {}: the run was static (--mode), without a grid (--sequential), or \
            over before its first \
            period (--period)",
            self.file.display()
        )
    }
}

/// Removes joins and losses that are recorded twice: a coordinator and its successor may both have
/// recorded them.
fn once_each(moments: &mut Vec<TimedEvent>) {
    let mut is_member: BTreeMap<NodeId, bool> = BTreeMap::new();
    moments.retain(|moment| match &moment.event {
        Event::NodeJoined { node, .. } => is_member.insert(node.clone(), true) != Some(true),
        Event::NodeLeft { node, .. } | Event::NodeLost { node, .. } => {
            is_member.insert(node.clone(), false) != Some(false)
        }
        _ => true,
    });
}

/// A file of a run, if it exists and is complete: a report needs only the log.
fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

/// The reason why the log is incomplete, if it is.
fn gap(log: &ReadLog) -> Option<String> {
    match &log.cut {
        Some(cut) => Some(format!("{cut}: the run was cut off there")),
        None if !log.complete => {
            Some("the log has no end: the run continues, or was cut off there".to_owned())
        }
        None => None,
    }
}

fn clock_us(record: &Record) -> i128 {
    let incarnation = record.incarnation.0;
    let by_incarnation = if BY_CLOCK.contains(&incarnation) { incarnation } else { 0 };
    let began = record.began_unix_us.unwrap_or(by_incarnation);
    i128::from(began) + i128::from(record.t_us)
}

/// The start of the job, from which times are counted; else the first record.
fn start_us(records: &[Record]) -> i128 {
    let started = records.iter().filter(|r| matches!(r.event, Event::JobStarted { .. }));
    let first = started.map(clock_us).min();
    first.or_else(|| records.iter().map(clock_us).min()).unwrap_or(0)
}

fn learn_home(homes: &mut BTreeMap<NodeId, ClusterId>, event: &Event) {
    if let Event::NodeRegistered { node, cluster, .. }
    | Event::NodeJoined { node, cluster, .. }
    | Event::NodeLeft { node, cluster, .. }
    | Event::NodeLost { node, cluster, .. } = event
    {
        homes.insert(node.clone(), cluster.clone());
    }
}
