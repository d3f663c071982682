//! A run's log as a story: its records on one clock, counted from the job's start, and the policy's decisions among
//! them.
//!
//! Must not know how it is told.
//!
//! Each record carries its teller's own clock. Tellers' lives are numbered by the time of their start, so that the two
//! together are a time of day; in virtual time all lives begin together. That is good enough to tell in which order
//! things happened, as far as the machines' clocks agree; nothing else is made of it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use springtide_actors::policy::{ADAPT, Logged};
use springtide_runtime::event::{Event, ReadLog, Record, RunDir, read};
use springtide_runtime::id::{ClusterId, NodeId};

use crate::exit::Failed;

/// Lives numbered from here on are numbered by microseconds since 1970.
const BY_CLOCK: u64 = 1_000_000_000_000_000;

/// A record with its place in time.
#[derive(Clone, Debug, PartialEq)]
pub struct Moment {
    /// Seconds since the job's start; before it, negative.
    pub at_s: f64,
    /// What happened.
    pub event: Event,
}

/// A decision of the policy with its place in time.
#[derive(Clone, Debug, PartialEq)]
pub struct Taken {
    /// As of a [`Moment`]. Its snapshot has the coordinator's own word, which is the one that is told.
    pub at_s: f64,
    /// It, and what it was taken from.
    pub logged: Logged,
}

/// A run's log.
#[derive(Debug)]
pub struct Story {
    /// The log's file.
    pub file: PathBuf,
    /// The run's name.
    pub run: String,
    /// All but the policy's decisions, in order of time.
    pub moments: Vec<Moment>,
    /// In the order in which they were taken: by epoch and period.
    pub decisions: Vec<Taken>,
    /// Nodes with their clusters.
    pub homes: BTreeMap<NodeId, ClusterId>,
    /// What is missing of the log, and why.
    pub gap: Option<String>,
}

impl Story {
    /// Reads the log of a run's directory.
    ///
    /// # Errors
    /// There is no run, or its log is malformed elsewhere than at its end.
    pub fn read(dir: &Path) -> Result<Self, Failed> {
        let file = RunDir::open(dir).map_err(Failed::usage)?.events();
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
                    let logged: Logged = serde_json::from_value(inputs).map_err(|error| {
                        Failed::failure(format!(
                            "{}: decision {} of node {} cannot be read ({error}): was the run made with another version?",
                            file.display(),
                            record.seq,
                            record.node
                        ))
                    })?;
                    decisions.push(Taken { at_s, logged });
                }
                event => moments.push(Moment { at_s, event }),
            }
        }
        moments.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
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
        Ok(Self { file, run, moments, decisions, homes, gap })
    }

    /// The decisions.
    ///
    /// # Errors
    /// There are none.
    pub fn some_decisions(&self) -> Result<&[Taken], Failed> {
        match self.decisions.is_empty() {
            false => Ok(&self.decisions),
            true => Err(Failed::failure(self.no_decisions())),
        }
    }

    /// Said of a log without decisions.
    pub fn no_decisions(&self) -> String {
        format!(
            "no decision is in {}: the run was static (--mode), without a grid (--sequential), or over before its first \
             period (--period)",
            self.file.display()
        )
    }
}

/// What the log lacks.
fn gap(log: &ReadLog) -> Option<String> {
    match &log.cut {
        Some(cut) => Some(format!("{cut}: the run was cut off there")),
        None if !log.complete => {
            Some("the log has no end: the run goes on, or was cut off there".to_owned())
        }
        None => None,
    }
}

fn clock_us(record: &Record) -> i128 {
    let life = record.incarnation.0;
    let began = if life >= BY_CLOCK { life } else { 0 };
    i128::from(began) + i128::from(record.t_us)
}

/// When the job started: what times are counted from. Without that, the first record.
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
