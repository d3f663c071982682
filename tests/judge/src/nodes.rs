//! The nodes that jobs hold, by the log of their schedulers.
//!
//! One job holds a node, from its grant until the scheduler knows that it is free: by a message, by
//! the loss of the node, or because a later incarnation registers. After a restart of the head a
//! grant stands until the node registers without a job, or the scheduler resumes or frees it.

use std::collections::BTreeMap;

use super::record::{Record, Recorder};
use super::{Rule, Verdict};

struct Hold<'a> {
    job: u64,
    grant: &'a Record,
    /// Whether an earlier scheduler granted it, and the node has not registered since.
    pending: bool,
}

#[derive(Default)]
struct Ledger<'a> {
    holds: BTreeMap<String, Hold<'a>>,
    incarnations: BTreeMap<String, u64>,
}

pub(crate) fn judge(records: &[Record], settled: bool, verdict: &mut Verdict) {
    let mut ledger = Ledger::default();
    let mut scheduler: Option<&Recorder> = None;
    for record in records {
        if !matches!(record.kind(), "nodes_granted" | "nodes_freed" | "node_registered") {
            continue;
        }
        if scheduler.is_some_and(|known| *known != record.recorder) {
            verdict.count("restarts of the head", 1);
            ledger.holds.values_mut().for_each(|hold| hold.pending = true);
        }
        scheduler = Some(&record.recorder);
        match record.kind() {
            "nodes_granted" => ledger.grant(record, verdict),
            "nodes_freed" => ledger.free(record),
            _ => ledger.register(record),
        }
    }
    if !settled {
        return;
    }
    // A node that has not registered with the last scheduler may be lost.
    for (node, hold) in ledger.holds.iter().filter(|(_, hold)| !hold.pending) {
        let what = format!("node {node} is still held by job {}", hold.job);
        verdict.fault(Rule::NodeForgotten, what, &[hold.grant]);
    }
}

impl<'a> Ledger<'a> {
    fn grant(&mut self, record: &'a Record, verdict: &mut Verdict) {
        let (resumed, job) = (record.flag("resumed"), record.number("job").unwrap_or_default());
        for node in record.texts("nodes") {
            verdict.count("grants of nodes", 1);
            let hold = Hold { job, grant: record, pending: false };
            let before = self.holds.insert(node.clone(), hold);
            let Some(before) = before else { continue };
            // The scheduler knows of the former grant by the store or by the node.
            if !resumed || before.job != job {
                let what = format!("node {node} went to job {job}, and job {} has it", before.job);
                verdict.fault(Rule::NodeGrantedTwice, what, &[before.grant, record]);
            }
        }
    }

    fn free(&mut self, record: &Record) {
        let (job, nodes) = (record.number("job"), record.texts("nodes"));
        self.holds.retain(|node, hold| {
            let named = nodes.is_empty() || nodes.contains(node);
            !(named && job.is_none_or(|job| job == hold.job))
        });
    }

    fn register(&mut self, record: &Record) {
        let node = record.text("node").to_owned();
        let incarnation = record.number("incarnation").unwrap_or_default();
        let before = self.incarnations.insert(node.clone(), incarnation);
        let Some(hold) = self.holds.get_mut(&node) else { return };
        let is_new = before.is_some_and(|before| before < incarnation);
        // A log of an earlier version does not say whether the node works.
        let known = record.event.get("job").is_some();
        match record.number("job") {
            Some(job) if hold.pending && !is_new => (hold.job, hold.pending) = (job, false),
            None if hold.pending && known && !is_new => drop(self.holds.remove(&node)),
            _ if is_new => drop(self.holds.remove(&node)),
            _ => {}
        }
    }
}
