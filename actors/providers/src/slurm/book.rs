//! What is known of the stubs of one provider: what the queue showed is held against what was asked for.
//!
//! A state machine without I/O: answers of `squeue` and the time go in, what became of whom comes out. A question has a number, so
//! that a stub that was submitted after it is not missed in its answer, and of two answers that cross the later question's
//! counts.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use super::answers::{QueuedStub, SlurmJobState};

/// How often the queue is looked at while something is about to happen.
const FAST: Duration = Duration::from_millis(200);
/// Then more rarely, by this factor each time that nothing did.
const SLOWER: f64 = 1.5;
/// A stub that nobody wants is cancelled again after this time,
const AGAIN: Duration = Duration::from_secs(2);
/// and later after twice the time each, up to this.
const AGAIN_MOST: Duration = Duration::from_secs(60);
/// A submission that failed may yet have arrived: its job is looked for for so long, in answers that come.
const DOUBT: Duration = Duration::from_secs(60);
/// A stub that is in no list is gone if it is in a later one neither,
const MISSED: u32 = 2;
/// not before this time: two looks side by side are as good as one.
const MISSED_FOR: Duration = Duration::from_secs(2);
/// One that was gone and shows again within this time is cancelled: its node has been given to another, or away.
const REMEMBERED: Duration = Duration::from_secs(600);
/// When the time of a doubt is over it takes so many more answers to end it: what was submitted is carried out in the same
/// order as what was asked.
const DOUBT_ANSWERS: u32 = 2;
/// A time limit that comes closer by this much more than time passed was changed.
const CUT: Duration = Duration::from_secs(10);

/// Where a stub is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StubPhase {
    /// In the queue.
    Pending,
    /// It has its processor.
    Active,
    /// Its processor will soon be free.
    Ending,
    /// Its processor is free: how it ended, in words.
    Ended(String),
}

/// What is known of a stub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sight {
    pub phase: StubPhase,
    /// Why it waits in the queue, in Slurm's word.
    pub waits: Option<String>,
    /// Its processor will be taken from it in about this time, and why. Stays once said.
    pub warned: Option<(Duration, String)>,
}

/// What an answer of the queue comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StubUpdate {
    /// More is known of a stub.
    Seen(u64, Sight),
    /// A stub that nobody wants is there: cancel it.
    Cancel(u64),
}

#[derive(Debug)]
struct StubEntry {
    sight: Sight,
    /// Answers to earlier questions say nothing of it.
    since: u64,
    missed: u32,
    /// Since when it is missing.
    missing: Option<Instant>,
    /// Its time left, and when that was said.
    left: Option<(Duration, Instant)>,
}

/// When something is to be done again.
#[derive(Clone, Copy, Debug)]
struct Again {
    at: Instant,
    wait: Duration,
    /// Answers to earlier questions say nothing of it.
    since: u64,
}

/// The stubs of one provider.
#[derive(Debug)]
pub(super) struct Book {
    poll: Duration,
    leave_ahead: Duration,
    stubs: BTreeMap<u64, StubEntry>,
    /// Stubs that nobody wants any more and that may still be there.
    unwanted: BTreeMap<u64, Again>,
    /// Submissions that are under way, by their token.
    submitting: BTreeSet<String>,
    /// Submissions that failed, by their token, until when their jobs are looked for, and how many answers are left after that.
    doubtful: BTreeMap<String, (Instant, u32)>,
    /// Stubs that were gone, and until when that is remembered.
    vanished: BTreeMap<u64, Instant>,
    /// The number of the last question, and that of the last one that was answered.
    asked: u64,
    answered: u64,
    pause: Duration,
}

impl Book {
    /// An empty one. The queue is looked at each `poll` at least; who has less than `leave_ahead` left is warned.
    pub fn new(poll: Duration, leave_ahead: Duration) -> Self {
        Self {
            poll,
            leave_ahead,
            stubs: BTreeMap::new(),
            unwanted: BTreeMap::new(),
            submitting: BTreeSet::new(),
            doubtful: BTreeMap::new(),
            vanished: BTreeMap::new(),
            asked: 0,
            answered: 0,
            pause: poll,
        }
    }

    /// A stub that somebody wants. Where it was seen, that is what is known of it.
    pub fn want(&mut self, id: u64, seen: Option<&QueuedStub>, now: Instant) -> Sight {
        self.unwanted.remove(&id);
        self.vanished.remove(&id);
        let sight = Sight::of(StubPhase::Pending);
        let (since, missed, missing, left) = (self.asked, 0, None, None);
        let entry = StubEntry { sight, since, missed, missing, left };
        let entry = self.stubs.entry(id).or_insert(entry);
        if let Some(job) = seen {
            entry.see(job, self.leave_ahead, now);
        }
        let sight = entry.sight.clone();
        self.stir();
        sight
    }

    /// A stub that nobody wants any more; it has been cancelled just now.
    pub fn unwant(&mut self, id: u64, now: Instant) {
        self.stubs.remove(&id);
        let again = Again { at: now + AGAIN, wait: AGAIN, since: self.asked };
        self.unwanted.insert(id, again);
        self.stir();
    }

    /// A stub that is left as it is.
    pub fn forget(&mut self, id: u64) {
        self.stubs.remove(&id);
    }

    /// Records a submission that is under way.
    pub fn submission_started(&mut self, token: String) {
        self.submitting.insert(token);
        self.stir();
    }

    /// Records that a submission succeeded: its stub is [wanted](Self::want).
    pub fn submission_succeeded(&mut self, token: &str) {
        self.submitting.remove(token);
    }

    /// A submission failed: if its job is there all the same, nobody wants it.
    pub fn doubt(&mut self, token: String, now: Instant) {
        self.submitting.remove(&token);
        self.doubtful.insert(token, (now + DOUBT, DOUBT_ANSWERS));
        self.stir();
    }

    /// Whether somebody wants this stub.
    pub fn wants(&self, id: u64) -> bool {
        self.stubs.contains_key(&id)
    }

    /// Whether nobody may take this job over: it is not wanted, or its submission has not succeeded yet.
    pub fn refuses(&self, job: &QueuedStub) -> bool {
        let known =
            |token: &String| self.doubtful.contains_key(token) || self.submitting.contains(token);
        self.unwanted.contains_key(&job.id)
            || self.vanished.contains_key(&job.id)
            || !self.wants(job.id) && job.about.token.as_ref().is_some_and(known)
    }

    /// Something is about to happen: the queue is to be looked at soon.
    pub fn stir(&mut self) {
        self.pause = FAST.min(self.poll);
    }

    /// Whether the queue needs to be looked at at all.
    pub fn watches(&self) -> bool {
        let there = |entry: &StubEntry| !matches!(entry.sight.phase, StubPhase::Ended(_));
        self.stubs.values().any(there)
            || !self.unwanted.is_empty()
            || !self.submitting.is_empty()
            || !self.doubtful.is_empty()
    }

    /// From one look to the next.
    pub fn pause(&self) -> Duration {
        self.pause
    }

    /// The queue is asked: the number of this question.
    pub fn ask(&mut self) -> u64 {
        self.asked += 1;
        self.asked
    }

    /// There was no answer: nothing is known, and nothing has ended. What was submitted may be carried out when answers come again.
    pub fn unanswered(&mut self, now: Instant) {
        for (until, _) in self.doubtful.values_mut() {
            *until = now + DOUBT;
        }
        self.slow(Duration::from_secs(10));
    }

    /// What the queue answered to a question: all jobs of this grid and cluster, those that are over too as long as Slurm
    /// remembers them.
    pub fn answer(&mut self, question: u64, jobs: &[QueuedStub], now: Instant) -> Vec<StubUpdate> {
        if question <= self.answered {
            return Vec::new(); // a later question was answered before
        }
        self.answered = question;
        let by_id: BTreeMap<u64, &QueuedStub> = jobs.iter().map(|job| (job.id, job)).collect();
        let mut changes = Vec::new();
        for (id, entry) in &mut self.stubs {
            if entry.since >= question {
                continue;
            }
            let before = entry.sight.clone();
            match by_id.get(id) {
                Some(job) => entry.see(job, self.leave_ahead, now),
                None if entry.miss(now) => drop(self.vanished.insert(*id, now + REMEMBERED)),
                None => {}
            }
            if entry.sight != before {
                changes.push(StubUpdate::Seen(*id, entry.sight.clone()));
            }
        }
        let doubtful = jobs.iter().filter(|job| {
            let token = job.about.token.as_ref();
            token.is_some_and(|token| self.doubtful.contains_key(token))
        });
        for job in doubtful {
            if !self.stubs.contains_key(&job.id) {
                self.unwanted.entry(job.id).or_insert(Again::now(now));
            }
        }
        self.doubtful.retain(|_, (until, answers)| {
            *answers = answers.saturating_sub(u32::from(*until <= now));
            *answers > 0
        });
        for job in jobs.iter().filter(|job| !matches!(job.state, SlurmJobState::Over(_))) {
            if self.vanished.contains_key(&job.id) && !self.stubs.contains_key(&job.id) {
                self.unwanted.entry(job.id).or_insert(Again::now(now));
            }
        }
        self.vanished.retain(|_, until| *until > now);
        self.unwanted.retain(|id, again| {
            if again.since >= question {
                return true;
            }
            let there =
                by_id.get(id).is_some_and(|job| !matches!(job.state, SlurmJobState::Over(_)));
            if there && again.at <= now {
                let wait = (again.wait * 2).min(AGAIN_MOST);
                *again = Again { at: now + again.wait, wait, ..*again };
                changes.push(StubUpdate::Cancel(*id));
            }
            there
        });
        let settled = |entry: &StubEntry| entry.sight.is_settled() && entry.missing.is_none();
        let settled = self.stubs.values().all(settled);
        match () {
            () if !changes.is_empty() => self.stir(), // what happens to one happens to others
            () if settled && self.unwanted.is_empty() => self.pause = self.poll,
            () => self.slow(self.poll),
        }
        changes
    }

    fn slow(&mut self, most: Duration) {
        self.pause = self.pause.mul_f64(SLOWER).min(most.max(self.poll));
    }
}

impl Again {
    /// At once.
    fn now(now: Instant) -> Self {
        Self { at: now, wait: AGAIN, since: 0 }
    }
}

impl Sight {
    /// Of a stub of which nothing else is known.
    pub fn of(phase: StubPhase) -> Self {
        Self { phase, waits: None, warned: None }
    }

    /// Whether nothing is expected to happen to it soon.
    fn is_settled(&self) -> bool {
        matches!(self.phase, StubPhase::Active | StubPhase::Ended(_))
    }
}

impl StubEntry {
    fn see(&mut self, job: &QueuedStub, leave_ahead: Duration, now: Instant) {
        if matches!(self.sight.phase, StubPhase::Ended(_)) {
            return;
        }
        (self.missed, self.missing, self.sight.waits) = (0, None, None);
        match job.state {
            SlurmJobState::Over(how) => {
                self.sight.phase = StubPhase::Ended(format!("batch job {} {how}", job.id));
            }
            SlurmJobState::Completing => self.sight.phase = StubPhase::Ending,
            SlurmJobState::Running => {
                self.sight.phase = StubPhase::Active;
                self.warn_of_its_end(job.left, leave_ahead, now);
            }
            SlurmJobState::Suspended => {
                self.sight.phase = StubPhase::Active;
                let warned = || (Duration::ZERO, format!("batch job {} is suspended", job.id));
                self.sight.warned.get_or_insert_with(warned);
            }
            // One that ran and waits again is no stub of ours: it is told not to be requeued.
            SlurmJobState::Pending => {
                self.sight.phase = StubPhase::Pending;
                let said = !["", "None", "(null)"].contains(&job.reason.as_str());
                self.sight.waits = said.then(|| job.reason.clone());
            }
            SlurmJobState::Unknown => {}
        }
    }

    fn warn_of_its_end(&mut self, left: Option<Duration>, ahead: Duration, now: Instant) {
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
        self.sight.warned.get_or_insert_with(|| (left, reason.to_owned()));
    }

    /// Returns whether it is gone by that.
    fn miss(&mut self, now: Instant) -> bool {
        if matches!(self.sight.phase, StubPhase::Ended(_)) {
            return false;
        }
        self.missed += 1;
        let since = *self.missing.get_or_insert(now);
        let gone = self.missed >= MISSED && now.saturating_duration_since(since) >= MISSED_FOR;
        if gone {
            self.sight.phase = StubPhase::Ended("its batch job is gone from the queue".to_owned());
            self.missing = None;
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::answers::StubComment;
    use super::*;

    const POLL: Duration = Duration::from_secs(2);
    const AHEAD: Duration = Duration::from_secs(60);

    fn job(id: u64, state: SlurmJobState) -> QueuedStub {
        QueuedStub {
            id,
            node: format!("vu-{id}"),
            state,
            left: None,
            machine: "n1".into(),
            reason: "None".into(),
            about: StubComment { token: Some(format!("t{id}")), ..StubComment::default() },
        }
    }

    fn book() -> (Book, Instant) {
        (Book::new(POLL, AHEAD), Instant::now())
    }

    fn ask(book: &mut Book, jobs: &[QueuedStub], now: Instant) -> Vec<StubUpdate> {
        let question = book.ask();
        book.answer(question, jobs, now)
    }

    fn phase(changes: &[StubUpdate]) -> Option<StubPhase> {
        match changes {
            [StubUpdate::Seen(_, sight)] => Some(sight.phase.clone()),
            _ => None,
        }
    }

    #[test]
    fn a_stub_waits_runs_and_ends() {
        let (mut book, now) = book();
        assert!(!book.watches());
        assert_eq!(book.want(1, None, now).phase, StubPhase::Pending);
        assert!(book.watches());
        assert_eq!(ask(&mut book, &[job(1, SlurmJobState::Pending)], now), []);
        let seen = |book: &mut Book, state| phase(&ask(book, &[job(1, state)], now));
        assert_eq!(seen(&mut book, SlurmJobState::Running), Some(StubPhase::Active));
        assert_eq!(seen(&mut book, SlurmJobState::Unknown), None);
        assert_eq!(seen(&mut book, SlurmJobState::Completing), Some(StubPhase::Ending));
        let ended = Some(StubPhase::Ended("batch job 1 failed".into()));
        assert_eq!(seen(&mut book, SlurmJobState::Over("failed")), ended);
        // It stays so, whatever comes.
        assert_eq!(seen(&mut book, SlurmJobState::Running), None);
        assert_eq!(ask(&mut book, &[], now), []);
    }

    #[test]
    fn one_that_is_not_in_the_answer_has_not_ended_yet() {
        let (mut book, now) = book();
        let early = book.ask();
        book.want(1, None, now);
        // It was submitted after this question, and after these two there was no answer.
        assert_eq!(book.answer(early, &[], now), []);
        book.ask();
        book.unanswered(now);
        assert_eq!(ask(&mut book, &[], now), []);
        assert_eq!(ask(&mut book, &[job(1, SlurmJobState::Running)], now).len(), 1);
        // Any number of answers in the same moment are as good as one.
        for _ in 0..5 {
            assert_eq!(ask(&mut book, &[], now), []);
        }
        let gone = phase(&ask(&mut book, &[], now + MISSED_FOR));
        assert!(matches!(gone, Some(StubPhase::Ended(_))), "{gone:?}");
    }

    #[test]
    fn one_that_was_gone_and_shows_again_is_cancelled() {
        let (mut book, mut now) = book();
        book.want(1, None, now);
        ask(&mut book, &[], now);
        now += MISSED_FOR;
        assert_eq!(ask(&mut book, &[], now).len(), 1);
        book.forget(1);
        let there = [job(1, SlurmJobState::Running), job(2, SlurmJobState::Running)];
        assert!(book.refuses(&there[0]));
        now += Duration::from_secs(60);
        assert_eq!(ask(&mut book, &there, now), [StubUpdate::Cancel(1)]);
        assert!(book.watches());
        // It is not remembered for ever, and Slurm begins to number from one some day.
        now += REMEMBERED;
        assert_eq!(ask(&mut book, &[], now), []);
        assert!(!book.refuses(&there[0]) && !book.watches());
        assert_eq!(ask(&mut book, &there, now), []);
    }

    #[test]
    fn why_it_waits_is_seen() {
        let (mut book, now) = book();
        book.want(1, None, now);
        let waits = |book: &mut Book, state, reason: &str| {
            let job = QueuedStub { reason: reason.to_owned(), ..job(1, state) };
            match &ask(book, &[job], now)[..] {
                [StubUpdate::Seen(_, sight)] => sight.waits.clone(),
                _ => Some("nothing new".to_owned()),
            }
        };
        let limit = "QOSMaxCpuPerUserLimit";
        assert_eq!(waits(&mut book, SlurmJobState::Pending, limit).as_deref(), Some(limit));
        assert_eq!(waits(&mut book, SlurmJobState::Pending, limit).as_deref(), Some("nothing new"));
        assert_eq!(waits(&mut book, SlurmJobState::Running, "None"), None);
    }

    #[test]
    fn answers_that_cross_do_not_turn_time_back() {
        let (mut book, now) = book();
        book.want(1, None, now);
        let (first, second) = (book.ask(), book.ask());
        assert_eq!(book.answer(second, &[job(1, SlurmJobState::Running)], now).len(), 1);
        assert_eq!(book.answer(first, &[job(1, SlurmJobState::Pending)], now), []);
    }

    #[test]
    fn one_that_nobody_wants_is_cancelled_until_it_is_gone() {
        let (mut book, mut now) = book();
        book.want(1, None, now);
        book.unwant(1, now);
        let there = [job(1, SlurmJobState::Running), job(2, SlurmJobState::Running)];
        assert_eq!(ask(&mut book, &there, now), []); // it was cancelled just now
        now += AGAIN;
        assert_eq!(ask(&mut book, &there, now), [StubUpdate::Cancel(1)]);
        assert_eq!(ask(&mut book, &there, now), []);
        now += 2 * AGAIN;
        assert_eq!(ask(&mut book, &there, now), [StubUpdate::Cancel(1)]);
        assert!(book.watches() && book.refuses(&there[0]) && !book.refuses(&there[1]));
        assert_eq!(ask(&mut book, &[job(1, SlurmJobState::Over("cancelled"))], now), []);
        assert!(!book.watches());
    }

    #[test]
    fn a_submission_that_failed_and_arrived_is_taken_back() {
        let (mut book, mut now) = book();
        book.submission_started("t7".into());
        let early = [job(7, SlurmJobState::Pending)];
        assert!(book.watches() && book.refuses(&early[0]));
        assert_eq!(ask(&mut book, &early, now), []);
        book.doubt("t7".into(), now);
        assert_eq!(ask(&mut book, &[], now), []);
        let there = [job(6, SlurmJobState::Pending), job(7, SlurmJobState::Pending)];
        assert!(book.refuses(&there[1]));
        assert_eq!(ask(&mut book, &there, now), [StubUpdate::Cancel(7)]);
        assert_eq!(ask(&mut book, &[job(7, SlurmJobState::Over("cancelled"))], now), []);
        now += DOUBT;
        assert_eq!(ask(&mut book, &[], now), []);
        assert!(book.watches());
        assert_eq!(ask(&mut book, &[], now), []);
        assert!(!book.watches());
    }

    #[test]
    fn a_doubt_lasts_as_long_as_there_are_no_answers() {
        let (mut book, mut now) = book();
        book.submission_started("t7".into());
        book.doubt("t7".into(), now);
        for _ in 0..100 {
            now += Duration::from_secs(5);
            book.ask();
            book.unanswered(now);
        }
        // The controller goes on, and answers before it carries out what it was told.
        assert_eq!(ask(&mut book, &[], now), []);
        now += DOUBT / 2;
        assert_eq!(ask(&mut book, &[job(7, SlurmJobState::Pending)], now), [StubUpdate::Cancel(7)]);
    }

    #[test]
    fn it_is_looked_at_often_while_something_is_about_to_happen() {
        let (mut book, now) = book();
        book.want(1, None, now);
        assert_eq!(book.pause(), FAST);
        ask(&mut book, &[job(1, SlurmJobState::Pending)], now);
        assert!(book.pause() > FAST && book.pause() < POLL);
        for _ in 0..20 {
            ask(&mut book, &[job(1, SlurmJobState::Pending)], now);
        }
        assert_eq!(book.pause(), POLL);
        ask(&mut book, &[job(1, SlurmJobState::Running)], now);
        assert_eq!(book.pause(), FAST);
        ask(&mut book, &[job(1, SlurmJobState::Running)], now);
        assert_eq!(book.pause(), POLL);
        for _ in 0..20 {
            book.unanswered(now);
        }
        assert_eq!(book.pause(), Duration::from_secs(10));
    }

    #[test]
    fn who_has_little_time_left_is_warned_once() {
        let (mut book, mut now) = book();
        let left = |seconds| QueuedStub {
            left: Some(Duration::from_secs(seconds)),
            ..job(1, SlurmJobState::Running)
        };
        let warned = |changes: Vec<StubUpdate>| match &changes[..] {
            [StubUpdate::Seen(_, Sight { warned, .. })] => warned.clone(),
            _ => None,
        };
        book.want(1, None, now);
        assert_eq!(warned(ask(&mut book, &[left(70)], now)), None);
        now += Duration::from_secs(11);
        let (within, reason) = warned(ask(&mut book, &[left(59)], now)).unwrap();
        assert_eq!((within.as_secs(), reason.as_str()), (59, "its time limit is near"));
        assert_eq!(ask(&mut book, &[left(50)], now), []);

        let (mut book, _) = super::tests::book();
        book.want(1, Some(&left(3600)), now);
        let (within, reason) = warned(ask(&mut book, &[left(30)], now)).unwrap();
        assert!(within.as_secs() == 30 && reason.contains("preempted"), "{reason}");

        let (mut book, _) = super::tests::book();
        let suspended = book.want(1, Some(&job(1, SlurmJobState::Suspended)), now);
        assert!(suspended.warned.is_some_and(|(_, reason)| reason.contains("suspended")));
    }

    fn state() -> impl Strategy<Value = SlurmJobState> {
        prop_oneof![
            Just(SlurmJobState::Pending),
            Just(SlurmJobState::Running),
            Just(SlurmJobState::Completing),
            Just(SlurmJobState::Over("cancelled")),
            Just(SlurmJobState::Unknown),
        ]
    }

    proptest! {
        /// Whatever is answered: nobody but who is unwanted is cancelled, and who has ended was over, or missing twice.
        #[test]
        fn none_is_cancelled_or_lost_by_mistake(
            rounds in prop::collection::vec((prop::collection::btree_map(0u64..6, state(), 0..6), 0u64..6, 0u32..4), 1..30)
        ) {
            let (mut book, mut now) = book();
            let mut missing: BTreeMap<u64, u32> = BTreeMap::new();
            for (shown, id, act) in rounds {
                now += Duration::from_secs(1);
                match act {
                    0 => drop(book.want(id, None, now)),
                    1 => book.unwant(id, now),
                    2 => book.forget(id),
                    _ => book.unanswered(now),
                }
                let jobs: Vec<QueuedStub> = shown.iter().map(|(id, state)| job(*id, *state)).collect();
                for id in 0..6 {
                    let count = missing.entry(id).or_default();
                    *count = if shown.contains_key(&id) { 0 } else { *count + 1 };
                }
                let unwanted: BTreeSet<u64> =
                    (0..6).filter(|id| book.refuses(&job(*id, SlurmJobState::Running))).collect();
                for change in ask(&mut book, &jobs, now) {
                    match change {
                        StubUpdate::Cancel(id) => prop_assert!(unwanted.contains(&id) && !book.wants(id)),
                        StubUpdate::Seen(id, sight) => {
                            prop_assert!(book.wants(id));
                            if let StubPhase::Ended(_) = sight.phase {
                                let over = matches!(shown.get(&id), Some(SlurmJobState::Over(_)));
                                prop_assert!(over || missing[&id] >= MISSED);
                            }
                        }
                    }
                }
            }
        }
    }
}
