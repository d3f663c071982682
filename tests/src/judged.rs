//! Judges the records of simulated grids.
//!
//! The judge reads them as lines of a log: it does not know their types.

use springtide_judge::{Expectation, Verdict, judge};
use springtide_runtime::event::Record;
use springtide_simulator::faults::{FaultHistory, HistoryJob, HistoryReport};

/// Judges records in the order of their writers.
///
/// # Panics
/// Panics if a record cannot be serialised.
pub fn judge_records(records: &[Record], expected: &Expectation) -> Verdict {
    let line = |record| serde_json::to_string(record).expect("a record has string keys");
    judge(records.iter().map(line), expected).expect("records are JSON objects")
}

/// Judges a completed history, after which all nodes are free.
pub fn judge_history(history: &FaultHistory, report: &HistoryReport) -> Verdict {
    let has_answer = !matches!(history.job, HistoryJob::Brief(_));
    let checksum = has_answer.then(|| format!("{:016x}", history.job.answer()));
    judge_records(&report.records, &Expectation { checksum, settled: true })
}

/// Asserts that a completed history violates no rule.
///
/// # Panics
/// Panics with the faults and the records that show them.
pub fn assert_sound(history: &FaultHistory, report: &HistoryReport) -> Verdict {
    let verdict = judge_history(history, report);
    assert!(verdict.faults.is_empty(), "{history}{verdict}");
    verdict
}
