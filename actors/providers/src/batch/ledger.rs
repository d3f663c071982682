//! The ledger of a provider's stubs: it compares the batch system's list with what was requested.
//!
//! A state machine without I/O. Lists and times go in, changes of stubs come out. Queries are
//! numbered: a list does not show a stub that was submitted after its query. Of two lists that
//! cross, the one of the later query counts.
//!
//! Warnings are staggered. Stubs that started together reach their time limits together, and a job
//! must not lose all its nodes at one moment. So some of them are warned earlier than necessary.
//! Their replacements then have time limits that lie apart.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use super::files::ExitStatus;
use super::system::{BatchJobId, QueuedStub, StubState};

/// The number of waits in the queue from which the next one is predicted.
const QUEUE_WAITS_MAX: usize = 16;
/// The interval of queries while a change is expected.
const FAST: Duration = Duration::from_millis(200);
/// The factor by which the interval grows after each query without a change.
const SLOWER: f64 = 1.5;
/// The longest interval of queries that fail, unless the usual one is longer.
const FAILING_MAX: Duration = Duration::from_secs(10);
/// The delay before an abandoned stub is cancelled again.
const RETRY: Duration = Duration::from_secs(2);
/// The longest such delay: it doubles with each cancellation.
const RETRY_MAX: Duration = Duration::from_secs(60);
/// The time for which the job of a failed submission is looked for, in lists that arrive.
const UNCERTAIN: Duration = Duration::from_secs(60);
/// The number of lists after that time which end the search. A batch system executes submissions in
/// the order of its requests.
const UNCERTAIN_LISTS: u32 = 2;
/// The number of lists that lack a stub before it counts as ended,
const MISSED: u32 = 2;
/// and the time from the first of them: two lists of one moment are one.
const MISSED_FOR: Duration = Duration::from_secs(2);
/// The time for which a vanished stub is remembered. If it reappears, it is cancelled: its node has
/// another stub by then.
const VANISHED: Duration = Duration::from_secs(600);
/// The interval between two staggered warnings, as a part of the time of a warning.
const STAGGER: u32 = 4;
/// A time limit that comes closer by this much more than the time that passed was changed.
const CUT: Duration = Duration::from_secs(10);

/// The phase of a stub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StubPhase {
    /// It waits in the queue.
    Pending,
    /// It has its processor.
    Active,
    /// Its processor will soon be free.
    Ending,
    /// Its processor is free: how it ended, in words.
    Ended(String),
}

/// The known state of a stub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StubRecord {
    pub phase: StubPhase,
    /// The reason of its wait, in the batch system's words.
    pub reason: Option<String>,
    /// The revocation of its processor. It stays once set.
    pub revocation: Option<ProcessorRevocation>,
}

/// A processor that the batch system will revoke.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProcessorRevocation {
    /// Approximate time until then.
    pub within: Duration,
    pub reason: String,
}

/// A consequence of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LedgerChange {
    /// The state of a stub has changed.
    Changed(BatchJobId, StubRecord),
    /// An abandoned stub exists: cancel it.
    Cancel(BatchJobId),
}

/// The parameters of a ledger.
#[derive(Clone, Copy, Debug)]
pub(super) struct LedgerSettings {
    /// The longest interval of queries.
    pub poll: Duration,
    /// The least remaining time at which a stub is warned.
    pub leave_ahead: Duration,
    /// The time limit of stubs, if they have one. It counts where the list has no remaining time.
    pub time: Option<Duration>,
    /// The time after which a stub that ends unexpectedly counts as ended.
    pub missing_timeout: Duration,
}

#[derive(Debug)]
struct LedgerEntry {
    record: StubRecord,
    /// Lists of queries up to this one do not show it.
    since: u64,
    missed: u32,
    /// The time of the first list in a row that lacks it.
    missing: Option<Instant>,
    /// Whether it has an order to end.
    is_ending: bool,
    /// The time of its submission, if this process submitted it.
    submitted: Option<Instant>,
    /// The time of the first list in which it ran.
    running: Option<Instant>,
    /// Its remaining time, and when that was listed.
    left: Option<(Duration, Instant)>,
    /// The most time that it had left.
    time: Duration,
}

/// The schedule of a stub's cancellations.
#[derive(Clone, Copy, Debug)]
struct CancelSchedule {
    at: Instant,
    wait: Duration,
    /// Lists of queries up to this one say nothing about it.
    since: u64,
}

/// The search for the job of a failed submission.
#[derive(Clone, Copy, Debug)]
struct UncertainSubmission {
    until: Instant,
    /// The number of lists after that time.
    lists: u32,
}

/// The stubs of one provider.
#[derive(Debug)]
pub(super) struct StubLedger {
    settings: LedgerSettings,
    /// The last times from a submission to the start of its stub.
    queue_waits: VecDeque<Duration>,
    stubs: BTreeMap<BatchJobId, LedgerEntry>,
    /// The largest number of stubs with a time limit that ran since none did.
    limited_max: u32,
    /// Stubs without a holder that may still exist.
    abandoned: BTreeMap<BatchJobId, CancelSchedule>,
    /// Tokens of submissions under way.
    submitting: BTreeSet<String>,
    /// Failed submissions by their tokens.
    uncertain: BTreeMap<String, UncertainSubmission>,
    /// Stubs that vanished, and until when that is remembered.
    vanished: BTreeMap<BatchJobId, Instant>,
    /// The number of the last query.
    asked: u64,
    /// The number of the last query with a list.
    answered: u64,
    interval: Duration,
}

impl StubLedger {
    /// A ledger without stubs.
    pub fn new(settings: LedgerSettings) -> Self {
        Self {
            settings,
            queue_waits: VecDeque::new(),
            stubs: BTreeMap::new(),
            limited_max: 0,
            abandoned: BTreeMap::new(),
            submitting: BTreeSet::new(),
            uncertain: BTreeMap::new(),
            vanished: BTreeMap::new(),
            asked: 0,
            answered: 0,
            interval: settings.poll,
        }
    }

    /// Adds a stub with a holder. `listed` is its row in a list.
    pub fn track(
        &mut self,
        id: &BatchJobId,
        listed: Option<&QueuedStub>,
        now: Instant,
    ) -> StubRecord {
        let settings = self.present_settings();
        self.abandoned.remove(id);
        self.vanished.remove(id);
        let entry = self.stubs.entry(id.clone()).or_insert(LedgerEntry {
            record: StubRecord::new(StubPhase::Pending),
            since: self.asked,
            missed: 0,
            missing: None,
            is_ending: false,
            submitted: listed.is_none().then_some(now),
            running: None,
            left: None,
            time: Duration::ZERO,
        });
        if let Some(job) = listed {
            entry.update(job, None, &settings, now);
        }
        let record = entry.record.clone();
        self.expect_change();
        record
    }

    /// The settings with a warning that leaves time for a replacement: twice the longest of the
    /// last waits in the batch system's queue, and at most half of a stub's time.
    fn present_settings(&self) -> LedgerSettings {
        let wait = self.queue_waits.iter().max().copied().unwrap_or_default();
        let most = self.settings.time.map_or(Duration::MAX, |time| time / 2);
        let leave_ahead = (2 * wait).min(most).max(self.settings.leave_ahead);
        LedgerSettings { leave_ahead, ..self.settings }
    }

    /// The time before its limit at which each running stub of this list is to be warned.
    ///
    /// From the last end to the first, warnings keep an interval. It is shorter if there are so
    /// many stubs that the first would be warned before half of its time.
    fn warnings(
        &mut self,
        jobs: &BTreeMap<&BatchJobId, &QueuedStub>,
        settings: &LedgerSettings,
        now: Instant,
    ) -> BTreeMap<BatchJobId, Duration> {
        let mut ends: Vec<(Duration, BatchJobId)> = Vec::new();
        let (mut limited, mut longest) = (0, settings.time);
        for (id, entry) in &mut self.stubs {
            let job = jobs.get(id).filter(|job| job.state == StubState::Running);
            let Some(left) = job.and_then(|job| entry.time_left(job, settings, now)) else {
                continue;
            };
            entry.time = entry.time.max(left);
            longest = longest.max(Some(entry.time));
            limited += 1;
            if entry.record.revocation.is_none() {
                ends.push((left, id.clone()));
            }
        }
        self.limited_max = if limited == 0 { 0 } else { self.limited_max.max(limited) };
        let ahead = settings.leave_ahead;
        let most = longest.unwrap_or_default() / 2;
        let spread = most.saturating_sub(ahead) / self.limited_max.max(1);
        let interval = (ahead / STAGGER).min(spread);
        ends.sort();
        let mut next: Option<Duration> = None;
        let mut warnings = BTreeMap::new();
        for (left, id) in ends.into_iter().rev() {
            let latest = left.saturating_sub(ahead);
            let at = next.map_or(latest, |next| latest.min(next.saturating_sub(interval)));
            next = Some(at);
            warnings.insert(id, left - at);
        }
        warnings
    }

    /// The time limit of stubs, if the config has one.
    pub fn time_limit(&self) -> Option<Duration> {
        self.settings.time
    }

    /// Records that a stub has lost its holder, and that it was cancelled now.
    pub fn abandon(&mut self, id: &BatchJobId, now: Instant) {
        self.stubs.remove(id);
        let schedule = CancelSchedule { at: now + RETRY, wait: RETRY, since: self.asked };
        self.abandoned.insert(id.clone(), schedule);
        self.expect_change();
    }

    /// Removes a stub that continues without a holder.
    pub fn forget(&mut self, id: &BatchJobId) {
        self.stubs.remove(id);
    }

    /// Records that a stub has an order to end.
    pub fn end_ordered(&mut self, id: &BatchJobId) {
        if let Some(entry) = self.stubs.get_mut(id) {
            entry.is_ending = true;
        }
    }

    /// Records a submission that is under way.
    pub fn submission_started(&mut self, token: String) {
        self.submitting.insert(token);
        self.expect_change();
    }

    /// Records that a submission succeeded: its stub is [tracked](Self::track).
    pub fn submission_succeeded(&mut self, token: &str) {
        self.submitting.remove(token);
    }

    /// Records that a submission failed. If its job exists all the same, it is cancelled.
    pub fn submission_failed(&mut self, token: String, now: Instant) {
        self.submitting.remove(&token);
        let search = UncertainSubmission { until: now + UNCERTAIN, lists: UNCERTAIN_LISTS };
        self.uncertain.insert(token, search);
        self.expect_change();
    }

    /// Whether this stub has no holder and may still exist.
    pub fn is_abandoned(&self, id: &BatchJobId) -> bool {
        self.abandoned.contains_key(id)
    }

    /// Whether this stub has a holder.
    pub fn tracks(&self, id: &BatchJobId) -> bool {
        self.stubs.contains_key(id)
    }

    /// The stubs with a holder that have not ended.
    pub fn tracked(&self) -> impl Iterator<Item = &BatchJobId> {
        let lives = |entry: &LedgerEntry| !matches!(entry.record.phase, StubPhase::Ended(_));
        self.stubs.iter().filter(move |(_, entry)| lives(entry)).map(|(id, _)| id)
    }

    /// Whether this job must not be taken over: it is abandoned, or its submission has not
    /// succeeded yet.
    pub fn refuses(&self, job: &QueuedStub) -> bool {
        let QueuedStub { id, token, .. } = job;
        let unfinished = self.uncertain.contains_key(token) || self.submitting.contains(token);
        self.abandoned.contains_key(id)
            || self.vanished.contains_key(id)
            || !self.tracks(id) && unfinished
    }

    /// Shortens the interval of queries, since a change is expected.
    pub fn expect_change(&mut self) {
        self.interval = FAST.min(self.settings.poll);
    }

    /// Whether queries are needed.
    pub fn needs_queries(&self) -> bool {
        self.tracked().next().is_some()
            || !self.abandoned.is_empty()
            || !self.submitting.is_empty()
            || !self.uncertain.is_empty()
    }

    /// The interval of queries.
    pub fn interval(&self) -> Duration {
        self.interval
    }

    /// Begins a query: returns its number.
    pub fn begin_query(&mut self) -> u64 {
        self.asked += 1;
        self.asked
    }

    /// Records that a query failed: no stub has ended by that. Submissions may be executed when
    /// queries succeed again.
    pub fn query_failed(&mut self, now: Instant) {
        for search in self.uncertain.values_mut() {
            search.until = now + UNCERTAIN;
        }
        self.slow(FAILING_MAX);
    }

    /// Records the list of a query: all stubs of this grid and cluster. Ended ones are in it as
    /// long as the batch system remembers them. `exits` has the scripts that ended by themselves.
    pub fn record(
        &mut self,
        query: u64,
        jobs: &[QueuedStub],
        exits: &BTreeMap<BatchJobId, ExitStatus>,
        now: Instant,
    ) -> Vec<LedgerChange> {
        if query <= self.answered {
            return Vec::new(); // the list of a later query is known
        }
        self.answered = query;
        let by_id: BTreeMap<&BatchJobId, &QueuedStub> =
            jobs.iter().map(|job| (&job.id, job)).collect();
        let settings = self.present_settings();
        let warnings = self.warnings(&by_id, &settings, now);
        let (mut changes, mut waits) = (Vec::new(), Vec::new());
        for (id, entry) in &mut self.stubs {
            if entry.since >= query {
                continue;
            }
            let before = entry.record.clone();
            let exit = exits.get(id).copied();
            match by_id.get(id) {
                Some(job) => {
                    let leave_ahead = warnings.get(id).copied().unwrap_or(settings.leave_ahead);
                    let settings = LedgerSettings { leave_ahead, ..settings };
                    entry.update(job, exit, &settings, now);
                    if let (Some(_), Some(submitted)) = (entry.running, entry.submitted) {
                        entry.submitted = None;
                        waits.push(now.saturating_duration_since(submitted));
                    }
                }
                None if entry.miss(id, exit, &self.settings, now) => {
                    self.vanished.insert(id.clone(), now + VANISHED);
                }
                None => {}
            }
            if entry.record != before {
                changes.push(LedgerChange::Changed(id.clone(), entry.record.clone()));
            }
        }
        self.queue_waits.extend(waits);
        while self.queue_waits.len() > QUEUE_WAITS_MAX {
            self.queue_waits.pop_front();
        }
        let uncertain = |job: &QueuedStub| self.uncertain.contains_key(&job.token);
        let vanished =
            |job: &QueuedStub| !job.state.is_over() && self.vanished.contains_key(&job.id);
        for job in jobs.iter().filter(|job| uncertain(job) || vanished(job)) {
            if !self.stubs.contains_key(&job.id) {
                self.abandoned.entry(job.id.clone()).or_insert(CancelSchedule::at_once(now));
            }
        }
        self.uncertain.retain(|_, search| {
            search.lists = search.lists.saturating_sub(u32::from(search.until <= now));
            search.lists > 0
        });
        self.vanished.retain(|_, until| *until > now);
        self.abandoned.retain(|id, schedule| {
            if schedule.since >= query {
                return true;
            }
            let exists = by_id.get(id).is_some_and(|job| !job.state.is_over());
            if exists && schedule.at <= now {
                let wait = (schedule.wait * 2).min(RETRY_MAX);
                *schedule = CancelSchedule { at: now + schedule.wait, wait, ..*schedule };
                changes.push(LedgerChange::Cancel(id.clone()));
            }
            exists
        });
        let settled = |entry: &LedgerEntry| entry.record.is_settled() && entry.missing.is_none();
        if !changes.is_empty() {
            self.expect_change(); // changes come in groups
        } else if self.stubs.values().all(settled) && self.abandoned.is_empty() {
            self.interval = self.settings.poll;
        } else {
            self.slow(self.settings.poll);
        }
        changes
    }

    fn slow(&mut self, max: Duration) {
        self.interval = self.interval.mul_f64(SLOWER).min(max.max(self.settings.poll));
    }
}

impl CancelSchedule {
    fn at_once(now: Instant) -> Self {
        Self { at: now, wait: RETRY, since: 0 }
    }
}

impl StubRecord {
    /// The record of a stub of which only the phase is known.
    pub fn new(phase: StubPhase) -> Self {
        Self { phase, reason: None, revocation: None }
    }

    /// Whether no change is expected soon.
    fn is_settled(&self) -> bool {
        matches!(self.phase, StubPhase::Active | StubPhase::Ended(_))
    }
}

impl LedgerEntry {
    fn update(
        &mut self,
        job: &QueuedStub,
        exit: Option<ExitStatus>,
        settings: &LedgerSettings,
        now: Instant,
    ) {
        if matches!(self.record.phase, StubPhase::Ended(_)) {
            return;
        }
        (self.missed, self.missing, self.record.reason) = (0, None, None);
        match &job.state {
            StubState::Ended(how) => {
                let exit = exit.filter(|exit| !exit.is_success());
                let status = exit.map(|exit| format!(" ({exit})")).unwrap_or_default();
                let how = format!("batch job {} {how}{status}", job.id);
                self.record.phase = StubPhase::Ended(how);
            }
            StubState::Ending => self.record.phase = StubPhase::Ending,
            StubState::Running => {
                self.record.phase = StubPhase::Active;
                self.running.get_or_insert(now);
                let left = self.time_left(job, settings, now);
                self.warn_of_time_limit(left, settings.leave_ahead, now);
            }
            StubState::Suspended => {
                self.record.phase = StubPhase::Active;
                self.record.revocation.get_or_insert_with(|| ProcessorRevocation {
                    within: Duration::ZERO,
                    reason: format!("batch job {} is suspended", job.id),
                });
            }
            // A stub is not requeued, so that one that has run does not come here.
            StubState::Pending => {
                self.record.phase = StubPhase::Pending;
                self.record.reason = (!job.reason.is_empty()).then(|| job.reason.clone());
            }
            StubState::Unknown => {}
        }
    }

    /// The time until its limit, by the list or by the first list in which it ran.
    fn time_left(
        &self,
        job: &QueuedStub,
        settings: &LedgerSettings,
        now: Instant,
    ) -> Option<Duration> {
        let since = self.running.unwrap_or(now);
        let own = || Some(settings.time?.saturating_sub(now.saturating_duration_since(since)));
        job.left.or_else(own)
    }

    fn warn_of_time_limit(&mut self, left: Option<Duration>, ahead: Duration, now: Instant) {
        let before = std::mem::replace(&mut self.left, left.map(|left| (left, now)));
        let Some(left) = left.filter(|left| *left <= ahead) else { return };
        let cut = before.is_some_and(|(before, at)| {
            before.saturating_sub(now.saturating_duration_since(at)) > left + CUT
        });
        let reason = if cut {
            "its time was cut short: it is preempted, or its limit was changed"
        } else {
            "its time limit is near"
        };
        let reason = reason.to_owned();
        self.record.revocation.get_or_insert(ProcessorRevocation { within: left, reason });
    }

    /// Records a list that lacks the stub. Returns whether it has ended by that.
    ///
    /// A short time suffices if its script has ended or an order was to end it. Otherwise the list
    /// may be wrong: a batch system that restarts may answer with an empty list.
    fn miss(
        &mut self,
        id: &BatchJobId,
        exit: Option<ExitStatus>,
        settings: &LedgerSettings,
        now: Instant,
    ) -> bool {
        if matches!(self.record.phase, StubPhase::Ended(_)) {
            return false;
        }
        self.missed += 1;
        let since = *self.missing.get_or_insert(now);
        let expected = exit.is_some() || self.is_ending;
        let wait = if expected { MISSED_FOR } else { settings.missing_timeout };
        let ended = self.missed >= MISSED && now.saturating_duration_since(since) >= wait;
        if ended {
            let how = match exit {
                Some(exit) if exit.is_success() => format!("batch job {id} completed"),
                Some(exit) => format!("batch job {id} failed ({exit})"),
                None => format!("batch job {id} is gone from the queue"),
            };
            self.record.phase = StubPhase::Ended(how);
            self.missing = None;
        }
        ended
    }
}

#[cfg(test)]
mod tests;
