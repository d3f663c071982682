//! Judges logs of runs and of schedulers: epochs, leases, results, held nodes and reservations.
//!
//! It knows the documented format of events alone (`reference/events.md` of the book), and shares
//! no code with the programs that write the logs. The rules stand in four modules, and [`Rule`]
//! names each fault. Order is that of each recorder's sequence numbers and of a scheduler's log; no
//! rule compares clocks of two machines.
//!
//! A log may lack facts: a full buffer drops them, and a killed node takes its last ones along. A
//! rule that counts facts of a recorder applies only if the log has all of them.
//! [`Verdict::judged`] says how many subjects each rule had, so that a test can demand some.
//!
//! The log does not show:
//! - for how long two holders of a task overlap, because that compares clocks of two machines;
//! - results that an owner drops because they are late, because their path is unknown there;
//! - which job uses which reservation, so that only agreements are compared with the capacity;
//! - deliveries to a client that does not write a run log.

mod leases;
mod nodes;
mod ownership;
mod record;
mod reservations;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use serde_json::Value;

pub use self::record::{ReadError, Record};

/// The name of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// Two different records have one recorder and sequence number.
    ConflictingRecords,
    /// An epoch or version decreased, or the scheduler issued an epoch twice.
    EpochWentBack,
    /// Two incarnations acted as the coordinator of one epoch.
    TwoCoordinators,
    /// A coordinator used an epoch that the scheduler did not issue.
    UnissuedEpoch,
    /// Two nodes accepted one lease, or one node accepted it twice.
    LeaseHeldTwice,
    /// An owner leased a task more often than it could.
    TaskLeasedTwice,
    /// A job, a run or a stolen task ended twice.
    TwoResults,
    /// A result differs from the expected one, or from another of the same job.
    WrongResult,
    /// A job got a node that another grant held.
    NodeGrantedTwice,
    /// A node is held although all jobs are over.
    NodeForgotten,
    /// Reservations together exceed a cluster's processors.
    Overbooked,
    /// A reservation changed, or it was refused or ended without a reason.
    BookingNotKept,
}

/// A violation of a rule, with the records that show it.
#[derive(Clone, Debug)]
pub struct Fault {
    /// The rule that the log violates.
    pub rule: Rule,
    /// Description of the violation.
    pub what: String,
    /// The records that show it, as lines of the log.
    pub excerpt: Vec<String>,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.rule, self.what)?;
        self.excerpt.iter().try_for_each(|line| write!(f, "\n    {line}"))
    }
}

/// What the caller knows about the log's end.
#[derive(Clone, Debug, Default)]
pub struct Expectation {
    /// Checksum of the job's result, 16 hexadecimal digits.
    pub checksum: Option<String>,
    /// Whether all jobs were over and all nodes free when the log ended.
    pub settled: bool,
}

/// The result of a judgement.
#[derive(Debug, Default)]
pub struct Verdict {
    /// All violations that the judge found.
    pub faults: Vec<Fault>,
    /// Number of the subjects of each rule.
    pub judged: BTreeMap<&'static str, u64>,
}

impl Verdict {
    fn count(&mut self, what: &'static str, times: u64) {
        *self.judged.entry(what).or_default() += times;
    }

    fn fault(&mut self, rule: Rule, what: String, records: &[&Record]) {
        let excerpt = records.iter().map(|record| record.line.clone()).collect();
        self.faults.push(Fault { rule, what, excerpt });
    }

    /// Adds the counts of another verdict.
    pub fn merge(&mut self, other: Verdict) {
        self.faults.extend(other.faults);
        for (what, times) in other.judged {
            self.count(what, times);
        }
    }

    /// Whether some fault violates this rule.
    pub fn names(&self, rule: Rule) -> bool {
        self.faults.iter().any(|fault| fault.rule == rule)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, times) in &self.judged {
            writeln!(f, "{times:9}  {what}")?;
        }
        self.faults.iter().try_for_each(|fault| writeln!(f, "{fault}"))
    }
}

/// Judges the lines of logs, in the order of their writers. Header and end lines may be among them.
///
/// # Errors
/// A line is not a JSON object.
pub fn judge<L: AsRef<str>>(
    lines: impl IntoIterator<Item = L>,
    expected: &Expectation,
) -> Result<Verdict, ReadError> {
    let mut verdict = Verdict::default();
    let records = record::parse(lines, &mut verdict)?;
    verdict.count("records", records.len() as u64);
    ownership::judge(&records, expected, &mut verdict);
    leases::judge(&records, &mut verdict);
    nodes::judge(&records, expected.settled, &mut verdict);
    reservations::judge(&records, &mut verdict);
    Ok(verdict)
}

/// Judges a run's directory, a grid's directory, or one that contains both.
///
/// It reads `events.jsonl`, `scheduler.events.jsonl` with its predecessors, and the checksum in
/// `result.json` unless `expected` has one.
///
/// # Errors
/// A file cannot be read, or there is no log.
pub fn judge_dir(dir: &Path, expected: &Expectation) -> Result<Verdict, ReadError> {
    let lines = record::read_dir(dir)?;
    let mut expected = expected.clone();
    if expected.checksum.is_none()
        && let Some(result) = record::read_result(&dir.join("result.json"))?
    {
        expected.checksum = result.get("checksum").and_then(Value::as_str).map(str::to_owned);
    }
    judge(lines, &expected)
}
