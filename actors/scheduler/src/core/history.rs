//! Histories of the manager's jobs: descriptions of events in order, for explanations.
//!
//! This module must not depend on how decisions are made.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use springtide_base::id::JobId;
use tokio::time::Instant;

use crate::manager::{JobRequirements, JobSubmission, ManagerAction, ManagerEvent};
use crate::policy::malleability::PlacementTransfer;

/// Most lines that are kept of each job: the last ones.
const LINES_MAX: usize = 256;
/// Most ended jobs whose lines are kept: the last ones.
const JOBS_MAX: usize = 256;

/// Time within which freed processors are merged into one line.
const MERGE_WINDOW: Duration = Duration::from_secs(1);

/// Merges two lines about freed processors of one cluster.
fn merge(first: &str, second: &str) -> Option<String> {
    let free = |line: &str| -> Option<(u32, String)> {
        let (count, cluster) = line.strip_suffix(FREE)?.split_once(" of ")?;
        Some((count.parse().ok()?, cluster.to_owned()))
    };
    let ((a, cluster), (b, other)) = (free(first)?, free(second)?);
    (cluster == other).then(|| format!("{} of {cluster}{FREE}", a + b))
}

/// Line of an answer that accepts no processor.
const NONE: &str = "it answers 0";

/// End of lines about freed processors.
const FREE: &str = " are free";

/// Lines of jobs, each with its time.
#[derive(Debug, Default)]
pub(super) struct Histories {
    lines: BTreeMap<JobId, VecDeque<(LineTime, String)>>,
    /// Time of the first line of this scheduler.
    origin: Option<Instant>,
    /// Lines that are not stored yet.
    unstored: Vec<HistoryLine>,
}

/// Microseconds since the first line of this scheduler; negative for those of an earlier one.
type LineTime = i64;

/// A line of a job's history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryLine {
    /// Job of the history.
    pub job: JobId,
    /// Time since the event.
    pub age: Duration,
    /// Description of the event.
    pub line: String,
}

fn micros(time: Duration) -> LineTime {
    LineTime::try_from(time.as_micros()).unwrap_or(LineTime::MAX)
}

impl Histories {
    fn add(&mut self, job: JobId, now: Instant, line: String) {
        let at = self.line_time(now);
        let age = Duration::ZERO;
        self.unstored.push(HistoryLine { job, age, line: line.clone() });
        self.insert(job, at, line);
    }

    fn line_time(&mut self, now: Instant) -> LineTime {
        micros(now.saturating_duration_since(*self.origin.get_or_insert(now)))
    }

    fn insert(&mut self, job: JobId, at: LineTime, line: String) {
        let lines = self.lines.entry(job).or_default();
        // The same offer with the same refusal is recorded once.
        let text = |back: usize| Some(lines.get(lines.len().checked_sub(back)?)?.1.as_str());
        if line == NONE && text(2) == Some(NONE) && text(1).is_some() && text(1) == text(3) {
            lines.pop_back();
            return;
        }
        if let Some((last_at, last)) = lines.back_mut()
            && at.saturating_sub(*last_at) < micros(MERGE_WINDOW)
            && let Some(both) = merge(last, &line)
        {
            *last = both;
            return;
        }
        if lines.len() == LINES_MAX {
            lines.pop_front();
        }
        lines.push_back((at, line));
    }

    /// Puts the lines of an earlier scheduler, oldest first, before those of this one.
    pub(super) fn restore(
        &mut self,
        former: Vec<HistoryLine>,
        now: Instant,
        known: impl Fn(JobId) -> bool,
    ) {
        let now_at = self.line_time(now);
        let later = std::mem::take(&mut self.lines);
        for HistoryLine { job, age, line } in former {
            self.insert(job, now_at.saturating_sub(micros(age)), line);
        }
        let jobs: Vec<JobId> = self.lines.keys().copied().filter(|job| known(*job)).collect();
        for job in jobs {
            self.add(job, now, "the scheduler was restarted".to_owned());
        }
        for (job, lines) in later {
            lines.into_iter().for_each(|(at, line)| self.insert(job, at, line));
        }
        self.trim(known);
    }

    /// Takes the lines that were added since the last call.
    pub(super) fn take_unstored(&mut self) -> Vec<HistoryLine> {
        std::mem::take(&mut self.unstored)
    }

    /// Drops the lines of unknown jobs, but for the last ones.
    pub(super) fn trim(&mut self, known: impl Fn(JobId) -> bool) {
        // Numbers grow: the smallest is the oldest.
        let over: Vec<JobId> = self.lines.keys().copied().filter(|job| !known(*job)).collect();
        for old in &over[..over.len().saturating_sub(JOBS_MAX)] {
            self.lines.remove(old);
        }
    }

    /// Records another event of a job of the manager.
    pub(super) fn note(&mut self, job: JobId, now: Instant, line: String) {
        self.add(job, now, line);
    }

    /// Returns a job's lines, oldest first, with their age in seconds.
    pub(super) fn of(&self, job: JobId, now: Instant) -> Vec<(f64, String)> {
        let since = |origin: Instant| micros(now.saturating_duration_since(origin));
        let now_at = self.origin.map_or(0, since);
        let age = |at: LineTime| now_at.saturating_sub(at).max(0) as f64 / 1e6;
        let lines = self.lines.get(&job).into_iter().flatten();
        lines.map(|(at, line)| (age(*at), line.clone())).collect()
    }

    /// Records an input of the manager.
    pub(super) fn record_event(&mut self, news: &ManagerEvent, now: Instant) {
        let (job, line) = match news {
            ManagerEvent::SubmitAll(all) => {
                for JobSubmission { job, need } in all {
                    self.add(*job, now, submitted(need));
                }
                return;
            }
            ManagerEvent::Submit { job, need } => (job, submitted(need)),
            ManagerEvent::Moved { job } => (job, "all its files are where it is placed".to_owned()),
            ManagerEvent::MoveFailed { job, reason } => {
                (job, format!("its files could not be moved: {reason}"))
            }
            ManagerEvent::Claimed { job, got } => (job, format!("runs on {}", counts(got))),
            ManagerEvent::Resumed { job, sizes, .. } => {
                (job, format!("continues on {} after a restart of the scheduler", counts(sizes)))
            }
            ManagerEvent::ClaimFailed { job, reason, .. } => {
                (job, format!("could not be started: {reason}"))
            }
            ManagerEvent::Answer { job, count: Some(count), .. } => {
                (job, format!("it answers {count}"))
            }
            ManagerEvent::Answer { job, count: None, .. } => (job, "it does not answer".to_owned()),
            ManagerEvent::NotHeld { job, count, reason, .. } => {
                (job, format!("{count} processors could not be held: {reason}"))
            }
            ManagerEvent::Grown { job, count, .. } => (job, format!("grown by {count}")),
            ManagerEvent::Freed { job, cluster, count, .. } => {
                (job, format!("{count} of {cluster}{FREE}"))
            }
            ManagerEvent::RevocationsPlanned { job, cluster, count, unreplaced }
                if *unreplaced > 0 =>
            {
                (job, format!("{count} of {cluster} will be taken away, {unreplaced} to replace"))
            }
            ManagerEvent::NotForced { job, cluster, count } => {
                (job, format!("it keeps {count} of {cluster}, because it cannot run without them"))
            }
            ManagerEvent::GrowthRequested { job, want } if want.count > 0 => {
                (job, format!("{} more processors are requested", want.count))
            }
            ManagerEvent::SizeLimited { job, most: Some(most) } => {
                (job, format!("its owner lets it have {most} processors at most"))
            }
            ManagerEvent::SizeLimited { job, most: None } => {
                (job, "its owner sets it no limit".to_owned())
            }
            ManagerEvent::MemoryRaised { job, memory } => (
                job,
                format!(
                    "a node exceeded its memory: the next ones get {} MiB for each processor",
                    memory >> 20
                ),
            ),
            ManagerEvent::Ended { job } => (job, "has ended".to_owned()),
            ManagerEvent::Withdraw { job } => (job, "is withdrawn".to_owned()),
            _ => return,
        };
        self.add(*job, now, line);
    }

    /// Records an output of the manager.
    pub(super) fn record_action(&mut self, order: &ManagerAction, now: Instant) {
        let (job, line) = match order {
            ManagerAction::Claim { job, placed } => (job, format!("is placed: {}", placed.why)),
            ManagerAction::Fail { job, reason } => (job, format!("never starts: {reason}")),
            ManagerAction::Offer { job, cluster, count, why, .. } => {
                (job, format!("is offered {count} of {cluster} ({why})"))
            }
            ManagerAction::Recruit { job, cluster, count, .. } => {
                (job, format!("is given {count} of {cluster}"))
            }
            ManagerAction::Unhold { job, cluster, count, reason, .. } => {
                (job, format!("{count} of {cluster} are released: {reason}"))
            }
            ManagerAction::Shrink { job, cluster, count, mandatory, why, .. } => {
                let must = if *mandatory { "must" } else { "is asked to" };
                (job, format!("{must} release {count} of {cluster} ({why})"))
            }
            ManagerAction::Force { job, cluster, count, reason } => {
                (job, format!("{count} of {cluster} are taken from it: {reason}"))
            }
            ManagerAction::Refuse { job, reason } => (job, format!("does not get more: {reason}")),
            ManagerAction::TransferFiles { job, transfers } => {
                let one = |t: &PlacementTransfer| {
                    let about = if t.seconds.is_finite() {
                        format!(" (about {:.1} s)", t.seconds)
                    } else {
                        String::new()
                    };
                    format!("{} from {} to {}{about}", t.file, t.from, t.to)
                };
                let all: Vec<String> = transfers.iter().map(one).collect();
                (job, format!("files are moved first: {}", all.join(", ")))
            }
            ManagerAction::End { job, reason } => (job, format!("is ended: {reason}")),
            ManagerAction::Hold { .. }
            | ManagerAction::ReservationEnded(_)
            | ManagerAction::ProtocolViolation { .. } => return,
        };
        self.add(*job, now, line);
    }
}

fn submitted(need: &JobRequirements) -> String {
    let (kind, min, most) = (need.kind, need.least(), need.greatest());
    format!("submitted: {kind}, {min} to {most} processors, {}", need.placement)
}

fn counts<K: std::fmt::Display>(all: &BTreeMap<K, u32>) -> String {
    let parts: Vec<String> =
        all.iter().map(|(place, count)| format!("{count} of {place}")).collect();
    if parts.is_empty() { "nothing".to_owned() } else { parts.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_becomes_free_at_once_is_one_line() {
        let start = Instant::now();
        let mut histories = Histories::default();
        let freed = |cluster: &str| ManagerEvent::Freed {
            job: JobId(1),
            cluster: cluster.into(),
            count: 1,
            voluntary: false,
        };
        for (ms, cluster) in [(0, "vu"), (10, "vu"), (900, "vu"), (950, "uva"), (2000, "uva")] {
            histories.record_event(&freed(cluster), start + Duration::from_millis(ms));
        }
        let lines: Vec<String> =
            histories.of(JobId(1), start).into_iter().map(|(_, line)| line).collect();
        assert_eq!(lines, ["3 of vu are free", "1 of uva are free", "1 of uva are free"]);
    }

    #[test]
    fn jobs_that_go_on_keep_their_lines() {
        let now = Instant::now();
        let mut histories = Histories::default();
        histories.note(JobId(1), now, "runs".to_owned());
        for job in 2..1000 {
            histories.note(JobId(job), now, "ran".to_owned());
            histories.trim(|known| known == JobId(1));
        }
        assert_eq!(histories.of(JobId(1), now).len(), 1);
        assert_eq!(histories.of(JobId(999), now).len(), 1);
        assert_eq!(histories.of(JobId(2), now).len(), 0);
        assert_eq!(histories.lines.len(), JOBS_MAX + 1);
    }

    #[test]
    fn lines_of_an_earlier_scheduler_come_first() {
        let now = Instant::now();
        let mut histories = Histories::default();
        histories.note(JobId(2), now, "waits".to_owned());
        let age = Duration::from_secs(7);
        let former = |job| HistoryLine { job: JobId(job), age, line: "ran".to_owned() };
        histories.restore(vec![former(1), former(2)], now, |known| known == JobId(2));
        assert_eq!(histories.of(JobId(1), now), [(7.0, "ran".to_owned())]);
        let of_2: Vec<String> =
            histories.of(JobId(2), now).into_iter().map(|(_, line)| line).collect();
        assert_eq!(of_2, ["ran", "the scheduler was restarted", "waits"]);
        let stored: Vec<String> =
            histories.take_unstored().into_iter().map(|line| line.line).collect();
        assert_eq!(stored, ["waits", "the scheduler was restarted"]);
    }
}
