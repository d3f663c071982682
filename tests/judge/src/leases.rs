//! Leases of tasks.
//!
//! A lease has one holder. An owner leases a task at most as often as the task reached it: stolen
//! by the owner, spawned by an execution of its parent there, or returned or reclaimed from an
//! earlier holder. A thief ends a task at most as often as it stole it.

use std::collections::{BTreeMap, BTreeSet};

use super::record::{Record, Recorder};
use super::{Rule, Verdict};

type TaskPath = Vec<u64>;

/// What one recorder did with the tasks of a job, by path.
#[derive(Default)]
struct Tasks<'a> {
    stolen: BTreeMap<TaskPath, i64>,
    /// Tasks that came back from a holder.
    back: BTreeMap<TaskPath, i64>,
    /// Steals from this recorder, as their thieves recorded them.
    leased: BTreeMap<TaskPath, Vec<&'a Record>>,
    roots: i64,
}

impl Tasks<'_> {
    /// The number of times that the task can have been executed here.
    fn executions(&self, path: &[u64]) -> i64 {
        (self.arrivals(path) - self.leased.get(path).map_or(0, |all| all.len() as i64)).max(0)
    }

    /// The number of times that the task can have been in a queue here.
    fn arrivals(&self, path: &[u64]) -> i64 {
        let count = |of: &BTreeMap<TaskPath, i64>| of.get(path).copied().unwrap_or_default();
        let spawned = match path.split_last() {
            Some((_, parent)) => self.executions(parent),
            None => self.roots,
        };
        count(&self.stolen) + count(&self.back) + spawned
    }
}

pub(crate) fn judge(records: &[Record], verdict: &mut Verdict) {
    judge_holders(records, verdict);
    let complete = complete(records);
    judge_owners(records, &complete, verdict);
    judge_thieves(records, &complete, verdict);
}

fn lease(record: &Record) -> Option<(Recorder, Vec<u64>)> {
    let owner = (record.text("from").to_owned(), record.number("from_incarnation")?);
    Some((owner, record.numbers("lease")))
}

fn judge_holders(records: &[Record], verdict: &mut Verdict) {
    let mut holders: BTreeMap<_, &Record> = BTreeMap::new();
    for record in records.iter().filter(|record| record.kind() == "task_stolen") {
        let (Some(lease), Some(job)) = (lease(record), record.number("job")) else { continue };
        verdict.count("leases", 1);
        if let Some(first) = holders.insert((job, lease), record) {
            let what = format!("the lease of {:?} is held twice", record.numbers("path"));
            verdict.fault(Rule::LeaseHeldTwice, what, &[first, record]);
        }
    }
}

/// The recorders all of whose records are in the log: they are contiguous, and their node is not
/// lost.
fn complete(records: &[Record]) -> BTreeSet<&Recorder> {
    let mut counts: BTreeMap<&Recorder, (u64, u64)> = BTreeMap::new();
    let mut lost: BTreeSet<Recorder> = BTreeSet::new();
    for record in records {
        let (count, last) = counts.entry(&record.recorder).or_default();
        (*count, *last) = (*count + 1, record.seq);
        if record.kind() == "node_lost"
            && let Some(incarnation) = record.number("incarnation")
        {
            lost.insert((record.text("node").to_owned(), incarnation));
        }
    }
    let whole = counts.into_iter().filter(|(_, (count, last))| count == last);
    whole.map(|(recorder, _)| recorder).filter(|recorder| !lost.contains(*recorder)).collect()
}

fn judge_owners(records: &[Record], complete: &BTreeSet<&Recorder>, verdict: &mut Verdict) {
    let mut tasks: BTreeMap<(u64, Recorder), Tasks<'_>> = BTreeMap::new();
    for record in records {
        let Some(job) = record.number("job") else { continue };
        let path = record.numbers("path");
        let here = tasks.entry((job, record.recorder.clone())).or_default();
        match record.kind() {
            "task_stolen" => {
                *here.stolen.entry(path.clone()).or_default() += 1;
                if let Some((owner, _)) = lease(record) {
                    let owner = tasks.entry((job, owner)).or_default();
                    owner.leased.entry(path).or_default().push(record);
                }
            }
            "lease_returned" | "lease_reclaimed" => *here.back.entry(path).or_default() += 1,
            "job_started" => here.roots += 1,
            _ => {}
        }
    }
    for ((job, owner), tasks) in tasks {
        if !complete.contains(&owner) {
            continue;
        }
        for (path, leased) in &tasks.leased {
            verdict.count("leased tasks of complete owners", 1);
            let arrivals = tasks.arrivals(path);
            if leased.len() as i64 > arrivals {
                let times = leased.len();
                let what = format!(
                    "{owner:?} leased task {path:?} of job {job} {times} times, and had it \
                     {arrivals} times"
                );
                verdict.fault(Rule::TaskLeasedTwice, what, leased);
            }
        }
    }
}

fn judge_thieves(records: &[Record], complete: &BTreeSet<&Recorder>, verdict: &mut Verdict) {
    let mut held: BTreeMap<(&Recorder, u64, TaskPath), i64> = BTreeMap::new();
    for record in records.iter().filter(|record| complete.contains(&record.recorder)) {
        let Some(job) = record.number("job") else { continue };
        let key = || (&record.recorder, job, record.numbers("path"));
        match record.kind() {
            "task_stolen" => *held.entry(key()).or_default() += 1,
            "task_ended" => {
                verdict.count("ends of stolen tasks", 1);
                let held = held.entry(key()).or_default();
                *held -= 1;
                if *held < 0 {
                    let what = format!("stolen task {:?} ended twice", record.numbers("path"));
                    verdict.fault(Rule::TwoResults, what, &[record]);
                }
            }
            _ => {}
        }
    }
}
