//! Epochs, coordinators, and the ends of jobs and runs.
//!
//! One incarnation of one node coordinates a job in an epoch. Epochs and versions of views grow.
//! The scheduler issues each epoch once. A job and a run end once, with one checksum.

use std::collections::{BTreeMap, BTreeSet};

use super::record::{Record, Recorder};
use super::{Expectation, Rule, Verdict};

/// Epoch and version of a view.
type ViewNumber = (u64, u64);

pub(crate) fn judge(records: &[Record], expected: &Expectation, verdict: &mut Verdict) {
    judge_views(records, verdict);
    judge_epochs(records, verdict);
    judge_objects(records, verdict);
    judge_ends(records, expected, verdict);
}

fn judge_views(records: &[Record], verdict: &mut Verdict) {
    let mut coordinators: BTreeMap<(u64, u64), &Record> = BTreeMap::new();
    let mut latest: BTreeMap<(&Recorder, u64), (ViewNumber, &Record)> = BTreeMap::new();
    for record in records {
        let kind = record.kind();
        if kind != "view_changed" && kind != "job_started" {
            continue;
        }
        let (Some(job), Some(epoch)) = (record.number("job"), record.number("epoch")) else {
            continue;
        };
        verdict.count("acts of coordinators", 1);
        let first = *coordinators.entry((job, epoch)).or_insert(record);
        if first.recorder != record.recorder {
            let what = format!("job {job} has two coordinators in epoch {epoch}");
            verdict.fault(Rule::TwoCoordinators, what, &[first, record]);
        }
        let Some(version) = record.number("version") else { continue };
        let now = (epoch, version);
        let key = (&record.recorder, job);
        if let Some((before, earlier)) = latest.get(&key)
            && *before >= now
        {
            let what = format!("the view of job {job} goes from {before:?} to {now:?}");
            verdict.fault(Rule::EpochWentBack, what, &[earlier, record]);
        }
        latest.insert(key, (now, record));
    }
}

/// Epochs that a scheduler issues and uses.
fn judge_epochs(records: &[Record], verdict: &mut Verdict) {
    let mut known: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
    let mut latest: BTreeMap<u64, (u64, &Record)> = BTreeMap::new();
    for record in records {
        let issued = record.kind() == "epoch_issued";
        if !issued && record.kind() != "nodes_granted" {
            continue;
        }
        let (Some(job), Some(epoch)) = (record.number("job"), record.number("epoch")) else {
            continue;
        };
        verdict.count("epochs of the scheduler", 1);
        // A view of an earlier scheduler may be older than the epoch that it issued last.
        if let Some((before, earlier)) = latest.get(&job)
            && !record.flag("resumed")
            && (epoch < *before || issued && epoch == *before)
        {
            let what = format!("the scheduler's epoch of job {job} goes from {before} to {epoch}");
            verdict.fault(Rule::EpochWentBack, what, &[earlier, record]);
        }
        if latest.get(&job).is_none_or(|(before, _)| *before <= epoch) {
            latest.insert(job, (epoch, record));
        }
        known.entry(job).or_default().insert(epoch);
    }
    for record in records.iter().filter(|record| record.kind() == "view_changed") {
        let (Some(job), Some(epoch)) = (record.number("job"), record.number("epoch")) else {
            continue;
        };
        if known.get(&job).is_some_and(|epochs| !epochs.contains(&epoch)) {
            let what = format!("job {job} is coordinated in epoch {epoch}, which was not issued");
            verdict.fault(Rule::UnissuedEpoch, what, &[record]);
        }
    }
}

/// One writer publishes each version of a part of a shared object.
fn judge_objects(records: &[Record], verdict: &mut Verdict) {
    let mut writers = BTreeMap::new();
    for record in records.iter().filter(|record| record.kind() == "object_published") {
        let number = |field| record.number(field).unwrap_or_default();
        let key = (number("job"), record.text("object"), number("part"), number("epoch"));
        verdict.count("published versions", 1);
        let first: &&Record = writers.entry((key, number("version"))).or_insert(record);
        if first.seq != record.seq || first.recorder != record.recorder {
            let what = format!("version {} of {key:?} is published twice", number("version"));
            verdict.fault(Rule::TwoCoordinators, what, &[first, record]);
        }
    }
}

fn judge_ends(records: &[Record], expected: &Expectation, verdict: &mut Verdict) {
    // An end has no epoch: it belongs to the last one in which its recorder acted.
    let mut acts: BTreeMap<(u64, &Recorder), u64> = BTreeMap::new();
    let mut ends: BTreeMap<(u64, &Recorder, u64), &Record> = BTreeMap::new();
    let mut checksums: BTreeMap<u64, &Record> = BTreeMap::new();
    let mut runs: BTreeMap<&Recorder, &Record> = BTreeMap::new();
    let of_kind = |kind: &'static str| records.iter().filter(move |r| r.kind() == kind);
    for record in of_kind("run_ended") {
        if let Some(first) = runs.insert(&record.recorder, record) {
            let what = "a run ended twice".to_owned();
            verdict.fault(Rule::TwoResults, what, &[first, record]);
        }
    }
    for record in records {
        let job = record.number("job").unwrap_or_default();
        let epoch = acts.entry((job, &record.recorder)).or_default();
        match record.kind() {
            "job_started" | "view_changed" => {
                *epoch = record.number("epoch").unwrap_or_default();
                continue;
            }
            "job_ended" => {}
            _ => continue,
        }
        verdict.count("ends of jobs", 1);
        if let Some(first) = ends.insert((job, &record.recorder, *epoch), record) {
            let what = format!("job {job} ended twice");
            verdict.fault(Rule::TwoResults, what, &[first, record]);
        }
        if !record.flag("ok") {
            continue;
        }
        let first = *checksums.entry(job).or_insert(record);
        if first.text("checksum") != record.text("checksum") {
            let what = format!("job {job} has two checksums");
            verdict.fault(Rule::WrongResult, what, &[first, record]);
        }
        if let Some(checksum) = &expected.checksum
            && record.text("checksum") != checksum
        {
            let what = format!("the checksum of job {job} is not the expected {checksum}");
            verdict.fault(Rule::WrongResult, what, &[record]);
        }
    }
}
