//! Lists of a modelled batch system in any order, and what the ledger makes of them.

use proptest::prelude::*;

use super::*;

const POLL: Duration = Duration::from_secs(2);
const AHEAD: Duration = Duration::from_secs(60);
const MISSING: Duration = Duration::from_secs(60);
const SETTINGS: LedgerSettings =
    LedgerSettings { poll: POLL, leave_ahead: AHEAD, time: None, missing_timeout: MISSING };

fn id(id: u64) -> BatchJobId {
    BatchJobId::new(&id.to_string()).unwrap()
}

fn ended(how: &str) -> StubState {
    StubState::Ended(how.to_owned())
}

fn job(number: u64, state: StubState) -> QueuedStub {
    QueuedStub {
        id: id(number),
        node: format!("vu-{number}"),
        token: format!("t{number}"),
        state,
        ..QueuedStub::default()
    }
}

fn ledger() -> (StubLedger, Instant) {
    (StubLedger::new(SETTINGS), Instant::now())
}

fn list(ledger: &mut StubLedger, jobs: &[QueuedStub], now: Instant) -> Vec<LedgerChange> {
    let query = ledger.begin_query();
    ledger.record(query, jobs, &BTreeMap::new(), now)
}

fn phase(changes: &[LedgerChange]) -> Option<StubPhase> {
    match changes {
        [LedgerChange::Changed(_, record)] => Some(record.phase.clone()),
        _ => None,
    }
}

#[test]
fn a_stub_waits_runs_and_ends() {
    let (mut ledger, now) = ledger();
    assert!(!ledger.needs_queries());
    assert_eq!(ledger.track(&id(1), None, now).phase, StubPhase::Pending);
    assert!(ledger.needs_queries());
    assert_eq!(list(&mut ledger, &[job(1, StubState::Pending)], now), []);
    let seen = |ledger: &mut StubLedger, state| phase(&list(ledger, &[job(1, state)], now));
    assert_eq!(seen(&mut ledger, StubState::Running), Some(StubPhase::Active));
    assert_eq!(seen(&mut ledger, StubState::Unknown), None);
    assert_eq!(seen(&mut ledger, StubState::Ending), Some(StubPhase::Ending));
    let failed = Some(StubPhase::Ended("batch job 1 failed".into()));
    assert_eq!(seen(&mut ledger, ended("failed")), failed);
    // The end is final.
    assert_eq!(seen(&mut ledger, StubState::Running), None);
    assert_eq!(list(&mut ledger, &[], now), []);
}

/// A replacement waits in the batch system's queue as long as the last stubs did.
#[test]
fn the_warning_leaves_time_for_the_wait_in_the_queue() {
    let mut now = Instant::now();
    let time = Some(Duration::from_secs(3600));
    let mut ledger = StubLedger::new(LedgerSettings { time, ..SETTINGS });
    ledger.track(&id(1), None, now);
    now += Duration::from_secs(300);
    assert_eq!(list(&mut ledger, &[job(1, StubState::Running)], now).len(), 1);
    let left = |seconds| {
        let left = Some(Duration::from_secs(seconds));
        [QueuedStub { left, ..job(1, StubState::Running) }]
    };
    assert_eq!(list(&mut ledger, &left(601), now), []);
    let changes = list(&mut ledger, &left(600), now);
    let [LedgerChange::Changed(_, record)] = &changes[..] else { panic!("{changes:?}") };
    let warned = record.revocation.as_ref().expect("a warning");
    assert_eq!(warned.within, Duration::from_secs(600));
}

/// The times of warnings, in seconds after the start of stubs with these time limits.
fn warning_times(limits: &[u64]) -> Vec<u64> {
    let (mut ledger, begin) = ledger();
    for number in 0..limits.len() as u64 {
        ledger.track(&id(number), None, begin);
    }
    let mut times = Vec::new();
    for second in 0..limits.iter().copied().max().unwrap_or_default() {
        let running = limits.iter().zip(0..).map(|(limit, number)| {
            let left = limit.checked_sub(second).map(Duration::from_secs);
            let state = if left.is_some() { StubState::Running } else { ended("completed") };
            QueuedStub { left, ..job(number, state) }
        });
        let running: Vec<_> = running.collect();
        for change in list(&mut ledger, &running, begin + Duration::from_secs(second)) {
            let LedgerChange::Changed(stub, record) = change else { panic!("{change:?}") };
            if record.revocation.is_some() && record.phase == StubPhase::Active {
                let left = limits[stub.as_str().parse::<usize>().unwrap()] - second;
                assert!(left >= AHEAD.as_secs().min(second), "{stub} is warned too late");
                times.push(second);
            }
        }
    }
    assert_eq!(times.len(), limits.len());
    times
}

/// Stubs that end together are warned one after another, the last one in time.
#[test]
fn warnings_are_staggered() {
    assert_eq!(warning_times(&[600; 5]), [480, 495, 510, 525, 540]);
    // Time limits that lie apart need no more.
    assert_eq!(warning_times(&[600, 630, 700]), [540, 570, 640]);
    // Many stubs: none is warned before half of its time.
    let many = warning_times(&[600; 120]);
    assert!(many[0] >= 300 && many[119] == 540, "{many:?}");
    let at_once = many.iter().map(|time| many.iter().filter(|other| *other == time).count());
    assert_eq!(at_once.max(), Some(1), "{many:?}");
    // A short time leaves less between them.
    assert_eq!(warning_times(&[180; 3]), [100, 110, 120]);
}

#[test]
fn a_missing_stub_has_not_ended_yet() {
    let (mut ledger, now) = ledger();
    let early = ledger.begin_query();
    ledger.track(&id(1), None, now);
    // It was submitted after this query, and the next one fails.
    assert_eq!(ledger.record(early, &[], &BTreeMap::new(), now), []);
    ledger.begin_query();
    ledger.query_failed(now);
    assert_eq!(list(&mut ledger, &[], now), []);
    assert_eq!(list(&mut ledger, &[job(1, StubState::Running)], now).len(), 1);
    // Lists of one moment are one, and empty lists of some seconds prove nothing.
    for seconds in [0, 0, 0, 2, 10, 59] {
        assert_eq!(list(&mut ledger, &[], now + Duration::from_secs(seconds)), []);
    }
    let gone = phase(&list(&mut ledger, &[], now + MISSING));
    assert_eq!(gone, Some(StubPhase::Ended("batch job 1 is gone from the queue".into())));
}

#[test]
fn an_expected_end_is_known_soon() {
    let (mut ledger, now) = ledger();
    ledger.track(&id(1), None, now);
    ledger.track(&id(2), None, now);
    ledger.end_ordered(&id(1));
    let exits = BTreeMap::from([(id(2), "3".parse().unwrap())]);
    let list = |ledger: &mut StubLedger, now| {
        let query = ledger.begin_query();
        ledger.record(query, &[], &exits, now)
    };
    assert_eq!(list(&mut ledger, now), []);
    let changes = list(&mut ledger, now + MISSED_FOR);
    let how = changes.iter().map(|change| match change {
        LedgerChange::Changed(_, StubRecord { phase: StubPhase::Ended(how), .. }) => how,
        other => panic!("{other:?}"),
    });
    let how: Vec<_> = how.collect();
    assert_eq!(how, ["batch job 1 is gone from the queue", "batch job 2 failed (exit status: 3)"]);
}

#[test]
fn a_vanished_stub_that_reappears_is_cancelled() {
    let (mut ledger, mut now) = ledger();
    ledger.track(&id(1), None, now);
    list(&mut ledger, &[], now);
    now += MISSING;
    assert_eq!(list(&mut ledger, &[], now).len(), 1);
    ledger.forget(&id(1));
    let both = [job(1, StubState::Running), job(2, StubState::Running)];
    assert!(ledger.refuses(&both[0]));
    now += Duration::from_secs(60);
    assert_eq!(list(&mut ledger, &both, now), [LedgerChange::Cancel(id(1))]);
    assert!(ledger.needs_queries());
    // A batch system starts numbering at one some day, so that the memory ends.
    now += VANISHED;
    assert_eq!(list(&mut ledger, &[], now), []);
    assert!(!ledger.refuses(&both[0]) && !ledger.needs_queries());
    assert_eq!(list(&mut ledger, &both, now), []);
}

#[test]
fn the_reason_of_a_wait_is_recorded() {
    let (mut ledger, now) = ledger();
    ledger.track(&id(1), None, now);
    let reason = |ledger: &mut StubLedger, state, reason: &str| {
        let job = QueuedStub { reason: reason.to_owned(), ..job(1, state) };
        match &list(ledger, &[job], now)[..] {
            [LedgerChange::Changed(_, record)] => record.reason.clone(),
            _ => Some("no change".to_owned()),
        }
    };
    let limit = "QOSMaxCpuPerUserLimit";
    assert_eq!(reason(&mut ledger, StubState::Pending, limit).as_deref(), Some(limit));
    assert_eq!(reason(&mut ledger, StubState::Pending, limit).as_deref(), Some("no change"));
    assert_eq!(reason(&mut ledger, StubState::Running, ""), None);
}

#[test]
fn the_list_of_the_later_query_counts() {
    let (mut ledger, now) = ledger();
    ledger.track(&id(1), None, now);
    let (first, second) = (ledger.begin_query(), ledger.begin_query());
    let mut record = |query, state| ledger.record(query, &[job(1, state)], &BTreeMap::new(), now);
    assert_eq!(record(second, StubState::Running).len(), 1);
    assert_eq!(record(first, StubState::Pending), []);
}

#[test]
fn an_abandoned_stub_is_cancelled_until_it_is_gone() {
    let (mut ledger, mut now) = ledger();
    ledger.track(&id(1), None, now);
    ledger.abandon(&id(1), now);
    let both = [job(1, StubState::Running), job(2, StubState::Running)];
    assert_eq!(list(&mut ledger, &both, now), []); // it was cancelled just now
    now += RETRY;
    assert_eq!(list(&mut ledger, &both, now), [LedgerChange::Cancel(id(1))]);
    assert_eq!(list(&mut ledger, &both, now), []);
    now += 2 * RETRY;
    assert_eq!(list(&mut ledger, &both, now), [LedgerChange::Cancel(id(1))]);
    assert!(ledger.needs_queries() && ledger.refuses(&both[0]) && !ledger.refuses(&both[1]));
    assert_eq!(list(&mut ledger, &[job(1, ended("cancelled"))], now), []);
    assert!(!ledger.needs_queries());
}

#[test]
fn the_job_of_a_failed_submission_is_cancelled() {
    let (mut ledger, mut now) = ledger();
    ledger.submission_started("t7".into());
    let early = [job(7, StubState::Pending)];
    assert!(ledger.needs_queries() && ledger.refuses(&early[0]));
    assert_eq!(list(&mut ledger, &early, now), []);
    ledger.submission_failed("t7".into(), now);
    assert_eq!(list(&mut ledger, &[], now), []);
    let both = [job(6, StubState::Pending), job(7, StubState::Pending)];
    assert!(ledger.refuses(&both[1]));
    assert_eq!(list(&mut ledger, &both, now), [LedgerChange::Cancel(id(7))]);
    assert_eq!(list(&mut ledger, &[job(7, ended("cancelled"))], now), []);
    now += UNCERTAIN;
    assert_eq!(list(&mut ledger, &[], now), []);
    assert!(ledger.needs_queries());
    assert_eq!(list(&mut ledger, &[], now), []);
    assert!(!ledger.needs_queries());
}

#[test]
fn the_search_for_a_submission_outlasts_failing_queries() {
    let (mut ledger, mut now) = ledger();
    ledger.submission_started("t7".into());
    ledger.submission_failed("t7".into(), now);
    for _ in 0..100 {
        now += Duration::from_secs(5);
        ledger.begin_query();
        ledger.query_failed(now);
    }
    // The controller continues, and answers before it executes the submission.
    assert_eq!(list(&mut ledger, &[], now), []);
    now += UNCERTAIN / 2;
    let late = [job(7, StubState::Pending)];
    assert_eq!(list(&mut ledger, &late, now), [LedgerChange::Cancel(id(7))]);
}

#[test]
fn queries_are_frequent_while_a_change_is_expected() {
    let (mut ledger, now) = ledger();
    ledger.track(&id(1), None, now);
    assert_eq!(ledger.interval(), FAST);
    list(&mut ledger, &[job(1, StubState::Pending)], now);
    assert!(ledger.interval() > FAST && ledger.interval() < POLL);
    for _ in 0..20 {
        list(&mut ledger, &[job(1, StubState::Pending)], now);
    }
    assert_eq!(ledger.interval(), POLL);
    list(&mut ledger, &[job(1, StubState::Running)], now);
    assert_eq!(ledger.interval(), FAST);
    list(&mut ledger, &[job(1, StubState::Running)], now);
    assert_eq!(ledger.interval(), POLL);
    for _ in 0..20 {
        ledger.query_failed(now);
    }
    assert_eq!(ledger.interval(), FAILING_MAX);
}

fn revocation(changes: &[LedgerChange]) -> Option<ProcessorRevocation> {
    match changes {
        [LedgerChange::Changed(_, StubRecord { revocation, .. })] => revocation.clone(),
        _ => None,
    }
}

#[test]
fn a_stub_with_little_time_left_is_warned_once() {
    let left = |seconds| QueuedStub {
        left: Some(Duration::from_secs(seconds)),
        ..job(1, StubState::Running)
    };
    let (mut all, mut now) = ledger();
    all.track(&id(1), None, now);
    assert_eq!(revocation(&list(&mut all, &[left(70)], now)), None);
    now += Duration::from_secs(11);
    let warned = revocation(&list(&mut all, &[left(59)], now)).unwrap();
    let near = "its time limit is near";
    assert_eq!((warned.within.as_secs(), warned.reason.as_str()), (59, near));
    assert_eq!(list(&mut all, &[left(50)], now), []);

    let (mut all, _) = ledger();
    all.track(&id(1), Some(&left(3600)), now);
    let warned = revocation(&list(&mut all, &[left(30)], now)).unwrap();
    assert!(warned.within.as_secs() == 30 && warned.reason.contains("preempted"));

    let (mut all, _) = ledger();
    let suspended = all.track(&id(1), Some(&job(1, StubState::Suspended)), now);
    assert!(suspended.revocation.is_some_and(|it| it.reason.contains("suspended")));
}

#[test]
fn a_time_limit_counts_without_a_listed_one() {
    let time = Some(Duration::from_secs(100));
    let mut ledger = StubLedger::new(LedgerSettings { time, ..SETTINGS });
    let now = Instant::now();
    ledger.track(&id(1), None, now);
    let runs = [job(1, StubState::Running)];
    assert_eq!(revocation(&list(&mut ledger, &runs, now)), None);
    let later = now + Duration::from_secs(41);
    let warned = revocation(&list(&mut ledger, &runs, later)).unwrap();
    assert_eq!(warned.within.as_secs(), 59);
}

fn state() -> impl Strategy<Value = StubState> {
    prop_oneof![
        Just(StubState::Pending),
        Just(StubState::Running),
        Just(StubState::Ending),
        Just(ended("cancelled")),
        Just(StubState::Unknown),
    ]
}

fn rounds() -> impl Strategy<Value = Vec<(BTreeMap<u64, StubState>, u64, u32)>> {
    let list = prop::collection::btree_map(0u64..6, state(), 0..6);
    prop::collection::vec((list, 0u64..6, 0u32..4), 1..30)
}

proptest! {
    /// Only abandoned stubs are cancelled, and a stub that has ended was over or long missing.
    #[test]
    fn no_stub_is_cancelled_or_lost_by_mistake(rounds in rounds()) {
        let (mut ledger, mut now) = ledger();
        let mut missing: BTreeMap<u64, u32> = BTreeMap::new();
        for (shown, number, act) in rounds {
            now += Duration::from_secs(20);
            match act {
                0 => drop(ledger.track(&id(number), None, now)),
                1 => ledger.abandon(&id(number), now),
                2 => ledger.forget(&id(number)),
                _ => ledger.query_failed(now),
            }
            let jobs: Vec<QueuedStub> =
                shown.iter().map(|(id, state)| job(*id, state.clone())).collect();
            for number in 0..6 {
                let count = missing.entry(number).or_default();
                *count = if shown.contains_key(&number) { 0 } else { *count + 1 };
            }
            let refused = |number: &u64| ledger.refuses(&job(*number, StubState::Running));
            let refused: BTreeSet<u64> = (0..6).filter(refused).collect();
            for change in list(&mut ledger, &jobs, now) {
                match change {
                    LedgerChange::Cancel(id) => {
                        let number = id.as_str().parse().unwrap();
                        prop_assert!(refused.contains(&number) && !ledger.tracks(&id));
                    }
                    LedgerChange::Changed(id, record) => {
                        prop_assert!(ledger.tracks(&id));
                        let number: u64 = id.as_str().parse().unwrap();
                        if let StubPhase::Ended(_) = record.phase {
                            let over = shown.get(&number).is_some_and(StubState::is_over);
                            prop_assert!(over || missing[&number] > 3);
                        }
                    }
                }
            }
        }
    }
}
