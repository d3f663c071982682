//! Backfilling against an independent implementation of EASY, and fair shares.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use proptest::prelude::*;

use super::*;

const SECOND: Duration = Duration::from_secs(1);
/// Processors of the only cluster.
const SIZE: u32 = 16;

/// A rigid job of a drawn workload. Times are in microseconds.
#[derive(Clone, Copy, Debug)]
struct DrawnJob {
    submit: u64,
    size: u32,
    run: u64,
    expected: u64,
}

/// An event of the driver, in order of time. Ends come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    End(usize),
    Arrival(usize),
}

/// A manager of one cluster, and the starts of jobs.
struct Machine {
    manager: Manager,
    began: Instant,
    starts: BTreeMap<usize, u64>,
    /// The first reservation of each job.
    promised: BTreeMap<usize, u64>,
    next: BinaryHeap<Reverse<(u64, Happening)>>,
}

impl Machine {
    fn new(queue: QueueDiscipline) -> Self {
        let began = Instant::now();
        // A scan between a job's end and the release of its processors may start later jobs, which
        // the oracle does not model.
        let scan_interval = 1_000_000 * SECOND;
        let settings = ManagerSettings { queue, scan_interval, ..ManagerSettings::default() };
        let mut manager = Manager::new(settings, ["a".into()], began);
        let polled =
            ManagerEvent::Polled { cluster: "a".into(), size: SIZE, others: 0, whole: SIZE };
        manager.handle(polled, began);
        let (starts, promised, next) = Default::default();
        Self { manager, began, starts, promised, next }
    }

    fn tell(&mut self, event: ManagerEvent, now: u64, jobs: &[DrawnJob]) {
        let mut news = vec![event];
        while let Some(event) = news.pop() {
            let at = self.began + Duration::from_micros(now);
            for action in self.manager.handle(event, at) {
                let ManagerAction::Claim { job, placed } = action else { panic!("{action:?}") };
                let got = placed.parts.iter().map(|part| (part.cluster.clone(), part.count));
                news.push(ManagerEvent::Claimed { job, got: got.collect() });
                let index = job.0 as usize;
                self.starts.insert(index, now);
                self.next.push(Reverse((now + jobs[index].run, Happening::End(index))));
            }
        }
        for (id, start) in &self.manager.planned_starts {
            self.promised.entry(id.0 as usize).or_insert(start.at);
        }
    }

    /// Runs a workload to its end.
    fn run(mut self, jobs: &[DrawnJob]) -> Self {
        for (index, job) in jobs.iter().enumerate() {
            self.next.push(Reverse((job.submit, Happening::Arrival(index))));
        }
        while let Some(Reverse((now, happening))) = self.next.pop() {
            match happening {
                Happening::Arrival(index) => {
                    let DrawnJob { size, expected, .. } = jobs[index];
                    // The options' resolution is a millisecond.
                    let time = Some(expected / 1000);
                    let (expected_ms, time_ms) =
                        if index % 2 == 0 { (time, None) } else { (None, time) };
                    let one = JobRequirements::one(Kind::Rigid, size, size, size);
                    let need = JobRequirements { expected_ms, time_ms, ..one };
                    let (job, need) = (JobId(index as u64), Box::new(need));
                    self.tell(ManagerEvent::Submit { job, need }, now, jobs);
                }
                Happening::End(index) => {
                    let (job, cluster) = (JobId(index as u64), ClusterId::from("a"));
                    self.tell(ManagerEvent::Ended { job }, now, jobs);
                    let count = jobs[index].size;
                    let freed = ManagerEvent::Freed { job, cluster, count, voluntary: false };
                    self.tell(freed, now, jobs);
                }
            }
        }
        self
    }
}

/// EASY after its description by Lifka (1995): no part of it is shared with the manager.
struct EasyOracle<'a> {
    jobs: &'a [DrawnJob],
    events: BinaryHeap<Reverse<(u64, Happening)>>,
    queue: Vec<usize>,
    running: Vec<usize>,
    starts: BTreeMap<usize, u64>,
}

impl EasyOracle<'_> {
    fn free(&self) -> u32 {
        SIZE - self.running.iter().map(|&one| self.jobs[one].size).sum::<u32>()
    }

    fn start(&mut self, index: usize, now: u64) {
        self.queue.retain(|one| *one != index);
        self.running.push(index);
        self.starts.insert(index, now);
        let end = now + self.jobs[index].run;
        self.events.push(Reverse((end, Happening::End(index))));
    }

    /// The time at which a job fits, and the processors that it then leaves free.
    fn shadow(&self, head: usize) -> (u64, u32) {
        let end = |&one: &usize| {
            let DrawnJob { expected, size, .. } = self.jobs[one];
            (self.starts[&one] + expected, size)
        };
        let mut ends: Vec<(u64, u32)> = self.running.iter().map(end).collect();
        ends.sort_unstable();
        let needed = self.jobs[head].size;
        let free_at = |time: u64| {
            let ended = ends.iter().filter(|(end, _)| *end <= time);
            self.free() + ended.map(|(_, size)| size).sum::<u32>()
        };
        let mut times = ends.iter().map(|(end, _)| *end);
        let shadow = times.find(|&time| free_at(time) >= needed);
        let shadow = shadow.expect("no job is larger than the cluster");
        (shadow, free_at(shadow) - needed)
    }

    fn schedule(&mut self, now: u64) {
        while let Some(&first) = self.queue.first() {
            if self.jobs[first].size > self.free() {
                break;
            }
            self.start(first, now);
        }
        let Some(&head) = self.queue.first() else { return };
        let (shadow, mut extra) = self.shadow(head);
        let others: Vec<usize> = self.queue[1..].to_vec();
        for index in others {
            let job = self.jobs[index];
            let ends_before = now + job.expected <= shadow;
            if job.size > self.free() || !ends_before && job.size > extra {
                continue;
            }
            if !ends_before {
                extra -= job.size;
            }
            self.start(index, now);
        }
    }
}

/// The starts of jobs by EASY.
fn easy(jobs: &[DrawnJob]) -> BTreeMap<usize, u64> {
    let arrival =
        |(index, job): (usize, &DrawnJob)| Reverse((job.submit, Happening::Arrival(index)));
    let events = jobs.iter().enumerate().map(arrival).collect();
    let (queue, running, starts) = Default::default();
    let mut oracle = EasyOracle { jobs, events, queue, running, starts };
    while let Some(Reverse((now, happening))) = oracle.events.pop() {
        match happening {
            Happening::Arrival(index) => oracle.queue.push(index),
            Happening::End(index) => oracle.running.retain(|one| *one != index),
        }
        oracle.schedule(now);
    }
    oracle.starts
}

/// Jobs whose times are distinct, so that no two events happen at once. `exact` says whether users
/// know the run times.
fn workload(exact: bool) -> impl Strategy<Value = Vec<DrawnJob>> {
    let job = (0u64..2_000_000, 1..=SIZE, 1u64..400_000, 0u64..400_000);
    prop::collection::vec(job, 1..40).prop_map(move |drawn| {
        let job = |(index, (submit, size, run, more)): (usize, (u64, u32, u64, u64))| {
            // Expected times are whole milliseconds, and run times are not longer.
            let expected = (run + if exact { 0 } else { more }).div_ceil(1000) * 1000 + 2000;
            let (index, expected) = (index as u64, expected * 64);
            // A job that ends as predicted may still be seen as running at that time, so that it
            // ends a moment earlier.
            let run = if exact { expected - index - 1 } else { run * 64 };
            DrawnJob { submit: submit * 64 + index, size, run, expected }
        };
        drawn.into_iter().enumerate().map(job).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn easy_starts_jobs_as_an_independent_implementation(jobs in workload(false)) {
        let machine = Machine::new(QueueDiscipline::Easy).run(&jobs);
        prop_assert_eq!(machine.starts, easy(&jobs));
    }

    /// If run times are known, no job starts later than it was first promised.
    #[test]
    fn reservations_are_kept(
        jobs in workload(true),
        queue in prop::sample::select(vec![QueueDiscipline::Easy, QueueDiscipline::Conservative]),
    ) {
        let machine = Machine::new(queue).run(&jobs);
        prop_assert_eq!(machine.starts.len(), jobs.len());
        for (index, promised) in machine.promised {
            let start = machine.starts[&index];
            prop_assert!(start <= promised, "job {} starts at {}, not {}", index, start, promised);
        }
    }
}

fn scene(settings: ManagerSettings) -> (Manager, Instant) {
    let now = Instant::now();
    let mut manager = Manager::new(settings, ["a".into()], now);
    let polled = ManagerEvent::Polled { cluster: "a".into(), size: SIZE, others: 0, whole: SIZE };
    manager.handle(polled, now);
    (manager, now)
}

fn job_of(user: &str, size: u32, seconds: u64) -> JobRequirements {
    JobRequirements {
        user: Some(user.to_owned()),
        expected_ms: Some(seconds * 1000),
        ..JobRequirements::one(Kind::Rigid, size, size, size)
    }
}

fn submit(manager: &mut Manager, job: u64, need: JobRequirements, now: Instant) -> bool {
    let event = ManagerEvent::Submit { job: JobId(job), need: Box::new(need) };
    let starts = |action: &ManagerAction| matches!(action, ManagerAction::Claim { .. });
    let started = manager.handle(event, now).iter().any(starts);
    if started {
        let got = [("a".into(), manager.booked_processors(&"a".into()))].into();
        manager.handle(ManagerEvent::Claimed { job: JobId(job), got }, now);
    }
    started
}

#[test]
fn the_reservation_is_explained() {
    let settings = ManagerSettings { queue: QueueDiscipline::Easy, ..ManagerSettings::default() };
    let (mut manager, now) = scene(settings);
    assert!(submit(&mut manager, 1, job_of("a", 10, 60), now));
    assert!(!submit(&mut manager, 2, job_of("a", 12, 60), now));
    assert!(!submit(&mut manager, 3, job_of("a", 6, 90), now), "it would delay job 2");
    assert!(submit(&mut manager, 4, job_of("a", 6, 50), now));
    let why = |job| manager.job(JobId(job)).unwrap().reason;
    let end = "12 of a are reserved for it in about 60 s, when running jobs are expected to end";
    assert!(why(2).ends_with(end), "{}", why(2));
    let end = "it must not delay job-2, which is to start in about 60 s";
    assert!(why(3).ends_with(end), "{}", why(3));
}

#[test]
fn run_times_of_a_program_are_learned() {
    let mut times = RunTimes::default();
    assert_eq!(times.predict("fib"), None);
    for seconds in [10, 20] {
        times.record("fib", seconds);
    }
    assert_eq!(times.predict("fib"), None, "too few runs");
    for seconds in [30, 40, 50, 60, 70, 80, 90, 100] {
        times.record("fib", seconds);
    }
    assert_eq!(times.predict("fib"), Some(90));
}

#[test]
fn those_who_used_less_relative_to_their_share_start_first() {
    let users = [
        ("big".to_owned(), ShareTerms { share: 4.0, ..ShareTerms::default() }),
        ("urgent".to_owned(), ShareTerms { priority: 1, ..ShareTerms::default() }),
    ];
    let settings = ManagerSettings {
        fair_share_half_life: Some(3600 * SECOND),
        users: users.into(),
        ..ManagerSettings::default()
    };
    let (mut manager, now) = scene(settings);
    // Both use eight processors for a minute, and one has four times the other's share.
    assert!(submit(&mut manager, 1, job_of("small", 8, 60), now));
    let event = ManagerEvent::Submit { job: JobId(2), need: Box::new(job_of("big", 8, 60)) };
    assert_eq!(manager.handle(event, now).len(), 1);
    let got = [("a".into(), 8)].into();
    manager.handle(ManagerEvent::Claimed { job: JobId(2), got }, now);
    let later = now + 60 * SECOND;
    for (job, user) in [(3, "small"), (4, "big"), (5, "new"), (6, "urgent")] {
        assert!(!submit(&mut manager, job, job_of(user, 16, 60), later));
    }
    assert_eq!(manager.queued().map(|job| job.0).collect::<Vec<_>>(), [6, 5, 4, 3]);
}

#[test]
fn limits_of_users_and_projects_hold() {
    let terms =
        |processors_max, jobs_max| ShareTerms { processors_max, jobs_max, ..ShareTerms::default() };
    let settings = ManagerSettings {
        users: [("a".to_owned(), terms(Some(8), None))].into(),
        projects: [("p".to_owned(), terms(None, Some(1)))].into(),
        ..ManagerSettings::default()
    };
    let (mut manager, now) = scene(settings);
    assert!(submit(&mut manager, 1, job_of("a", 6, 60), now));
    assert!(!submit(&mut manager, 2, job_of("a", 4, 60), now));
    let why = manager.job(JobId(2)).unwrap().reason;
    assert_eq!(why, "user a has 6 processors of at most 8, and the job needs 4");
    let of_project = || JobRequirements { project: Some("p".to_owned()), ..job_of("b", 1, 60) };
    let event = ManagerEvent::Submit { job: JobId(3), need: Box::new(of_project()) };
    assert_eq!(manager.handle(event, now).len(), 1);
    assert!(!submit(&mut manager, 4, of_project(), now));
    let why = manager.job(JobId(4)).unwrap().reason;
    assert_eq!(why, "project p has 1 jobs of at most 1 at a time");
    let freed = |job, count| {
        let cluster = ClusterId::from("a");
        ManagerEvent::Freed { job: JobId(job), cluster, count, voluntary: false }
    };
    manager.handle(ManagerEvent::Ended { job: JobId(1) }, now);
    let out = manager.handle(freed(1, 6), now);
    assert!(matches!(&out[..], [ManagerAction::Claim { job: JobId(2), .. }]), "{out:?}");
}
