mod reserved;

use super::*;
use crate::policy::malleability::{Component, Placement};

const SECOND: Duration = Duration::from_secs(1);

/// A manager, and the present time.
struct Scene {
    manager: Manager,
    now: Instant,
}

impl Scene {
    fn new(settings: Settings, sites: &[(&str, u32)]) -> Self {
        let now = Instant::now();
        let names = sites.iter().map(|site| ClusterId::from(site.0));
        let mut scene = Self { manager: Manager::new(settings, names, now), now };
        for &(name, size) in sites {
            assert_eq!(scene.poll(name, size, 0), []);
        }
        scene
    }

    fn tell(&mut self, event: Event) -> Vec<Action> {
        let out = self.manager.handle(event, self.now);
        self.manager.audit().unwrap();
        out
    }

    fn poll(&mut self, name: &str, size: u32, others: u32) -> Vec<Action> {
        self.tell(Event::Polled { cluster: name.into(), size, others, whole: size })
    }

    fn submit(&mut self, job: u64, need: Need) -> Vec<Action> {
        self.tell(Event::Submit { job: JobId(job), need: Box::new(need) })
    }

    /// Submits a job that starts at once on `start` processors of a cluster.
    fn runs(&mut self, job: u64, cluster: &str, (min, start, most): (u32, u32, u32)) {
        let mut need = Need::one(Kind::Malleable, min, start, most);
        need.components[0].clusters = [ClusterId::from(cluster)].into();
        let out = self.submit(job, need);
        assert!(matches!(&out[..], [Action::Claim { .. }]), "{out:?}");
        self.claimed(job, cluster, start);
    }

    fn claimed(&mut self, job: u64, cluster: &str, count: u32) -> Vec<Action> {
        self.now += SECOND;
        self.tell(Event::Claimed { job: JobId(job), got: [(cluster.into(), count)].into() })
    }

    fn answer(&mut self, job: u64, change: u64, count: u32) -> Vec<Action> {
        self.tell(Event::Answer { job: JobId(job), change, count: Some(count) })
    }

    fn freed(&mut self, job: u64, cluster: &str, count: u32) -> Vec<Action> {
        self.tell(Event::Freed { job: JobId(job), cluster: cluster.into(), count, let_go: false })
    }

    /// Advances the time to the next due event.
    fn wait(&mut self) -> Vec<Action> {
        self.now = self.manager.due().expect("something is due");
        self.tell(Event::Tick)
    }

    fn size(&self, job: u64) -> u32 {
        self.manager.job(JobId(job)).map_or(0, |view| view.sizes.values().sum())
    }

    fn phase(&self, job: u64) -> Option<Phase> {
        self.manager.job(JobId(job)).map(|view| view.phase)
    }
}

/// Offers and shrinks, as (job, change of size).
fn asked(out: &[Action]) -> Vec<(u64, i64)> {
    let ask = |action: &Action| match action {
        Action::Offer { job, count, .. } => Some((job.0, i64::from(*count))),
        Action::Shrink { job, count, .. } => Some((job.0, -i64::from(*count))),
        _ => None,
    };
    out.iter().filter_map(ask).collect()
}

fn change(out: &[Action], job: u64) -> u64 {
    let of = |action: &Action| match action {
        Action::Offer { job: j, change, .. } | Action::Shrink { job: j, change, .. }
            if j.0 == job =>
        {
            Some(*change)
        }
        _ => None,
    };
    out.iter().find_map(of).expect("it is asked")
}

fn by(approach: Approach, policy: Policy) -> Settings {
    Settings { approach, policy, ..Settings::default() }
}

#[test]
fn job_computes_while_processors_are_held() {
    let mut scene = Scene::new(by(Approach::Waiting, Policy::Egs), &[("a", 10)]);
    scene.runs(1, "a", (2, 2, 6));
    let out = scene.poll("a", 10, 0);
    assert_eq!(asked(&out), [(1, 8)]);
    assert_eq!(scene.phase(1), Some(Phase::Growing));
    let number = change(&out, 1);
    let out = scene.answer(1, number, 4);
    let cluster = ClusterId::from("a");
    assert_eq!(
        out,
        [Action::Hold { job: JobId(1), change: number, cluster: cluster.clone(), count: 4 }]
    );
    let held = |count| Event::Held { job: JobId(1), change: number, count };
    assert_eq!(scene.tell(held(3)), []);
    assert_eq!(scene.size(1), 2);
    let recruit = Action::Recruit { job: JobId(1), change: number, cluster, count: 4 };
    assert_eq!(scene.tell(held(1)), [recruit]);
    assert_eq!(scene.poll("a", 10, 0), [], "one change at a time");
    assert_eq!(scene.tell(Event::Grown { job: JobId(1), change: number, count: 4 }), []);
    assert_eq!((scene.size(1), scene.phase(1)), (6, Some(Phase::Running)));
    assert_eq!(scene.manager.grow_value(&"a".into()), 4);
}

#[test]
fn growth_respects_reserve_and_caps() {
    let settings = Settings {
        reserves: [("a".into(), 3)].into(),
        caps: [("b".into(), 5)].into(),
        cap: Some(9),
        ..by(Approach::Waiting, Policy::Egs)
    };
    let mut scene = Scene::new(settings, &[("a", 10), ("b", 10)]);
    scene.runs(1, "a", (2, 2, 100));
    scene.runs(2, "b", (2, 2, 100));
    // 10 - 2 - 4 others - 3 reserved.
    assert_eq!(asked(&scene.poll("a", 10, 4)), [(1, 1)]);
    // 5 of the cluster's cap, of which 2 are used.
    assert_eq!(asked(&scene.poll("b", 10, 0)), [(2, 3)]);
    // 8 of 9 are booked: offers count.
    let out = scene.poll("a", 10, 0);
    assert_eq!(asked(&out), [], "its answer is outstanding");
    assert_eq!(scene.manager.grow_value(&"a".into()), 1);
}

#[test]
fn running_jobs_take_precedence_and_never_shrink() {
    let mut scene = Scene::new(by(Approach::Running, Policy::Fpsma), &[("a", 10)]);
    scene.runs(1, "a", (2, 2, 6));
    assert_eq!(scene.submit(2, Need::one(Kind::Rigid, 3, 3, 3)), []);
    let why = scene.manager.job(JobId(2)).unwrap().why;
    assert!(
        why.contains("a closed: its idle processors are kept for job-1, which runs and can grow"),
        "{why}"
    );
    let out = scene.poll("a", 10, 0);
    assert_eq!(asked(&out), [(1, 8)]);
    let number = change(&out, 1);
    scene.answer(1, number, 4);
    scene.tell(Event::Held { job: JobId(1), change: number, count: 4 });
    let out = scene.tell(Event::Grown { job: JobId(1), change: number, count: 4 });
    assert_eq!(out, [], "only freed processors and polls cause a scan");
    let out = scene.poll("a", 10, 0);
    assert!(matches!(&out[..], [Action::Claim { job: JobId(2), .. }]), "{out:?}");
    // No job shrinks for one that does not fit.
    assert_eq!(scene.submit(3, Need::one(Kind::Rigid, 4, 4, 4)), []);
    for _ in 0..20 {
        assert_eq!(asked(&scene.wait()), []);
    }
}

#[test]
fn job_that_refused_an_offer_does_not_block_the_queue() {
    let mut scene = Scene::new(by(Approach::Running, Policy::Egs), &[("a", 10)]);
    scene.runs(1, "a", (2, 4, 8));
    scene.submit(2, Need::one(Kind::Rigid, 3, 3, 3));
    let others = 3; // three are left, and it needs four
    let out = scene.poll("a", 10, others);
    assert_eq!(asked(&out), [(1, 3)]);
    let out = scene.answer(1, change(&out, 1), 0);
    assert!(matches!(&out[..], [Action::Claim { job: JobId(2), .. }]), "{out:?}");
}

#[test]
fn running_jobs_shrink_for_the_head_of_the_queue() {
    let mut scene = Scene::new(by(Approach::Waiting, Policy::Fpsma), &[("a", 10)]);
    scene.runs(1, "a", (2, 5, 8));
    scene.runs(2, "a", (2, 4, 8));
    // 1 is idle, 3 + 2 could be released.
    let out = scene.submit(3, Need::one(Kind::Rigid, 5, 5, 5));
    assert_eq!(asked(&out), [(2, -4)], "the youngest first");
    assert!(matches!(&out[0], Action::Shrink { mandatory: true, .. }));
    let first = change(&out, 2);
    assert_eq!(
        scene.answer(2, first, 2),
        [Action::Odd { what: "job-2 must release 4 processors of a and offers 2".to_owned() }][..0],
        "it can release no more than two"
    );
    assert_eq!(scene.poll("a", 10, 0), [], "no job is asked twice, and none grows");
    let out = scene.freed(2, "a", 2);
    assert_eq!(asked(&out), [(1, -2)], "then the next job is asked");
    let why = scene.manager.job(JobId(3)).unwrap().why;
    assert!(why.contains("3 idle, 5 needed; running jobs are making room for it"), "{why}");
    // A job that would fit has to wait: the processors are kept.
    assert_eq!(scene.submit(4, Need::one(Kind::Rigid, 1, 1, 1)), []);
    assert!(
        scene
            .manager
            .job(JobId(4))
            .unwrap()
            .why
            .contains("processors are kept for job-3, which waits")
    );
    // A shared snapshot gives the same explanations as separate ones.
    let together = Outlook::default();
    for job in [4, 3, 1].map(JobId) {
        let alone = scene.manager.job(job).unwrap().why;
        assert_eq!(scene.manager.why(job, &together), Some(alone));
    }
    scene.answer(1, change(&out, 1), 2);
    let out = scene.freed(1, "a", 2);
    assert!(matches!(&out[..], [Action::Claim { job: JobId(3), .. }]), "{out:?}");
    assert_eq!((scene.size(1), scene.size(2)), (3, 2));
}

#[test]
fn no_job_shrinks_in_vain() {
    let mut scene = Scene::new(by(Approach::Waiting, Policy::Egs), &[("a", 10)]);
    scene.runs(1, "a", (4, 5, 8));
    scene.runs(2, "a", (3, 3, 8));
    assert_eq!(scene.submit(3, Need::one(Kind::Rigid, 4, 4, 4)), [], "the others need 7");
    assert_eq!(asked(&scene.poll("a", 10, 0)), [(1, 1), (2, 1)]);
}

#[test]
fn processors_under_release_are_not_requested_again() {
    let mut scene = Scene::new(by(Approach::Waiting, Policy::Egs), &[("a", 10)]);
    scene.runs(1, "a", (2, 5, 8));
    scene.runs(2, "a", (2, 5, 8));
    let out = scene.submit(3, Need::one(Kind::Rigid, 4, 4, 4));
    assert_eq!(asked(&out), [(2, -2), (1, -2)]);
    // A job with constraints releases more than it is asked for.
    scene.answer(2, change(&out, 2), 3);
    scene.answer(1, change(&out, 1), 2);
    for _ in 0..3 {
        assert_eq!(asked(&scene.poll("a", 10, 0)), []);
    }
    assert_eq!(scene.freed(2, "a", 3), []);
    let out = scene.freed(1, "a", 2);
    assert!(matches!(&out[..], [Action::Claim { job: JobId(3), .. }]), "{out:?}");
    assert_eq!(scene.manager.booked(&"a".into()), 9);
}

#[test]
fn refused_or_unanswered_shrink_is_forced() {
    for answers in [true, false] {
        let mut scene = Scene::new(by(Approach::Waiting, Policy::Egs), &[("a", 4)]);
        scene.runs(1, "a", (1, 4, 4));
        let out = scene.submit(2, Need::one(Kind::Rigid, 2, 2, 2));
        assert_eq!(asked(&out), [(1, -2)]);
        let begun = scene.now;
        if answers {
            let out = scene.answer(1, change(&out, 1), 0);
            assert!(matches!(&out[..], [Action::Odd { .. }]), "{out:?}");
        }
        let forced = loop {
            let out = scene.wait();
            if let Some(Action::Force { count, .. }) =
                out.iter().find(|a| matches!(a, Action::Force { .. }))
            {
                break *count;
            }
        };
        let Settings { answer_within, release_within, .. } = Settings::default();
        assert_eq!(forced, 2);
        assert!(scene.now - begun <= answer_within + release_within);
        let out = scene.freed(1, "a", 2);
        assert!(matches!(&out[..], [Action::Claim { job: JobId(2), .. }]), "{out:?}");
    }
}

#[test]
fn late_answer_is_ignored() {
    let mut scene = Scene::new(by(Approach::Waiting, Policy::Egs), &[("a", 4)]);
    scene.runs(1, "a", (1, 1, 4));
    let out = scene.poll("a", 4, 0);
    let number = change(&out, 1);
    assert_eq!(scene.wait(), []);
    assert_eq!((scene.phase(1), scene.manager.booked(&"a".into())), (Some(Phase::Running), 1));
    assert_eq!(scene.answer(1, number, 3), []);
    assert_eq!(scene.manager.booked(&"a".into()), 1);
}

#[test]
fn missing_stub_makes_growth_partial() {
    let mut scene = Scene::new(by(Approach::Waiting, Policy::Egs), &[("a", 6)]);
    scene.runs(1, "a", (1, 1, 6));
    let out = scene.poll("a", 6, 0);
    let number = change(&out, 1);
    scene.answer(1, number, 5);
    scene.tell(Event::Held { job: JobId(1), change: number, count: 2 });
    let reason = "the site says no".to_owned();
    scene.tell(Event::NotHeld { job: JobId(1), change: number, count: 1, reason });
    let out = scene.wait();
    let unheld = matches!(&out[0], Action::Unhold { count: 2, .. });
    assert!(unheld && matches!(&out[1], Action::Recruit { count: 2, .. }), "{out:?}");
    assert_eq!(scene.manager.booked(&"a".into()), 5, "processors under release are not free yet");
    scene.tell(Event::Unheld { job: JobId(1), cluster: "a".into(), count: 2 });
    // The job can use one of the two recruited processors.
    let out = scene.tell(Event::Grown { job: JobId(1), change: number, count: 1 });
    assert!(matches!(&out[..], [Action::Unhold { count: 1, .. }]), "{out:?}");
    scene.tell(Event::Unheld { job: JobId(1), cluster: "a".into(), count: 1 });
    assert_eq!((scene.size(1), scene.manager.booked(&"a".into())), (2, 2));
}

#[test]
fn job_that_ends_during_a_change_leaves_nothing() {
    for stage in 0..4 {
        let mut scene = Scene::new(by(Approach::Waiting, Policy::Egs), &[("a", 6)]);
        scene.runs(1, "a", (1, 1, 6));
        let out = scene.poll("a", 6, 0);
        let number = change(&out, 1);
        if stage > 0 {
            scene.answer(1, number, 4);
        }
        if stage > 1 {
            scene.tell(Event::Held {
                job: JobId(1),
                change: number,
                count: if stage == 2 { 2 } else { 4 },
            });
        }
        let out = scene.tell(Event::Ended { job: JobId(1) });
        assert_eq!(matches!(&out[..], [Action::Unhold { count: 4, .. }]), stage > 0, "{out:?}");
        assert_eq!(scene.manager.booked(&"a".into()), if stage == 0 { 1 } else { 5 });
        if stage > 0 {
            scene.tell(Event::Unheld { job: JobId(1), cluster: "a".into(), count: 4 });
        }
        scene.freed(1, "a", 1);
        assert_eq!((scene.phase(1), scene.manager.booked(&"a".into())), (None, 0));
        assert_eq!(scene.poll("a", 6, 0), []);
        assert!(scene.manager.due().is_none());
    }
}

#[test]
fn submission_fails_after_its_tries() {
    let settings = Settings { tries: Some(3), ..by(Approach::Waiting, Policy::Egs) };
    let mut scene = Scene::new(settings, &[("a", 4)]);
    scene.submit(1, Need::one(Kind::Rigid, 4, 4, 4));
    scene.claimed(1, "a", 4);
    scene.submit(2, Need::one(Kind::Rigid, 1, 1, 1));
    for tries in 1..=3 {
        // Other events are no tries.
        assert_eq!(scene.poll("a", 4, 0), []);
        assert_eq!(scene.wait(), []);
        assert_eq!(scene.manager.job(JobId(2)).unwrap().tries, tries);
    }
    let out = scene.wait();
    let [Action::Fail { job: JobId(2), reason }] = &out[..] else { panic!("{out:?}") };
    assert_eq!(
        reason,
        "no place was found in 4 tries: no cluster can take component 1: a 0 idle, 1 needed"
    );
    assert!(scene.manager.due().is_none());
}

#[test]
fn scan_covers_the_whole_queue() {
    let mut scene = Scene::new(by(Approach::Waiting, Policy::Egs), &[("a", 4)]);
    scene.submit(1, Need::one(Kind::Rigid, 3, 3, 3));
    scene.claimed(1, "a", 3);
    scene.submit(2, Need::one(Kind::Rigid, 3, 3, 3));
    scene.submit(3, Need::one(Kind::Rigid, 2, 2, 2));
    let out = scene.submit(4, Need::one(Kind::Rigid, 1, 1, 1));
    assert!(matches!(&out[..], [Action::Claim { job: JobId(4), .. }]), "{out:?}");
    assert_eq!(scene.manager.queued().map(|job| job.0).collect::<Vec<_>>(), [2, 3]);
    let out = scene.submit(5, Need::one(Kind::Rigid, 5, 5, 5));
    let [Action::Fail { job: JobId(5), reason }] = &out[..] else { panic!("{out:?}") };
    assert!(reason.contains("no cluster can ever take"), "{reason}");
}

#[test]
fn unreachable_site_does_not_block_others() {
    let mut scene = Scene::new(by(Approach::Waiting, Policy::Egs), &[("a", 4), ("b", 4)]);
    let reason = "sinfo: connection refused".to_owned();
    scene.tell(Event::Unreachable { cluster: "a".into(), reason });
    let out = scene.submit(1, Need::one(Kind::Rigid, 2, 2, 2));
    let [Action::Claim { placed, .. }] = &out[..] else { panic!("{out:?}") };
    assert_eq!(placed.parts[0].cluster, "b".into());
    scene.submit(2, Need::one(Kind::Rigid, 4, 4, 4));
    let why = scene.manager.job(JobId(2)).unwrap().why;
    assert!(why.contains("a closed: sinfo: connection refused; b 2 idle, 4 needed"), "{why}");
    let out = scene.poll("a", 4, 0);
    assert!(matches!(&out[..], [Action::Claim { job: JobId(2), .. }]), "{out:?}");
}

#[test]
fn processors_are_claimed_shortly_before_the_files_arrive() {
    let settings = Settings { claim_ahead: 5 * SECOND, ..by(Approach::Waiting, Policy::Egs) };
    let mut scene = Scene::new(settings, &[("a", 4), ("b", 1)]);
    let (file, clusters) = ("bodies".to_owned(), [ClusterId::from("b")].into());
    scene.tell(Event::Replicas { file: file.clone(), bytes: 2000, clusters, differs: None });
    scene.tell(Event::Link { from: "b".into(), to: "a".into(), rate: 100.0 });
    let mut need = Need::one(Kind::Rigid, 3, 3, 3);
    need.placement = Placement::CloseToFiles;
    need.components[0].files = vec![file];
    let out = scene.submit(1, need.clone());
    assert!(matches!(&out[..], [Action::Move { .. }]), "{out:?}");
    let begun = scene.now;
    assert_eq!((scene.phase(1), scene.manager.booked(&"a".into())), (Some(Phase::Placed), 0));
    let out = scene.wait();
    assert!(matches!(&out[..], [Action::Claim { .. }]), "{out:?}");
    assert_eq!(scene.now - begun, 15 * SECOND);
    scene.claimed(1, "a", 3);
    // Another user takes the processors: the job waits again, and its files have arrived by then.
    scene.tell(Event::Ended { job: JobId(1) });
    scene.freed(1, "a", 3);
    let out = scene.submit(2, need);
    assert!(matches!(&out[..], [Action::Move { .. }]), "{out:?}");
    scene.poll("a", 4, 2);
    assert_eq!(scene.tell(Event::Moved { job: JobId(2) }), []);
    let view = scene.manager.job(JobId(2)).unwrap();
    assert_eq!((view.phase, view.tries), (Phase::Waiting, 1));
    let out = scene.poll("a", 4, 0);
    assert!(matches!(&out[..], [Action::Claim { .. }]), "{out:?}");
}

#[test]
fn job_with_failed_transfers_waits_again() {
    let mut scene = Scene::new(by(Approach::Waiting, Policy::Egs), &[("a", 4), ("b", 1)]);
    let replicas = |advance_to: &[&str], differs: Option<&str>| Event::Replicas {
        file: "bodies".to_owned(),
        bytes: 2000,
        clusters: advance_to.iter().map(|&name| name.into()).collect(),
        differs: differs.map(str::to_owned),
    };
    scene.tell(replicas(&["b"], None));
    let mut need = Need::one(Kind::Rigid, 3, 3, 3);
    need.components[0].files = vec!["bodies".to_owned()];
    let out = scene.submit(1, need);
    assert!(matches!(&out[..], [Action::Move { .. }]), "{out:?}");
    let failed = |job| Event::MoveFailed { job: JobId(job), reason: "b is gone".to_owned() };
    assert_eq!(scene.tell(failed(2)), []);
    assert_eq!(scene.tell(failed(1)), []);
    let view = scene.manager.job(JobId(1)).unwrap();
    assert_eq!((view.phase, view.tries), (Phase::Waiting, 1));
    // A repeated failure has no effect.
    assert_eq!(scene.tell(failed(1)), []);
    assert_eq!(scene.manager.job(JobId(1)).unwrap().tries, 1);
    // No cluster has the file: the job is not placed, and the reason says so.
    scene.tell(replicas(&[], None));
    assert_eq!(scene.wait(), []);
    let why = scene.manager.job(JobId(1)).unwrap().why;
    assert!(why.contains("a no cluster has the file bodies"), "{why}");
    assert_eq!(scene.tell(replicas(&["a", "b"], Some("b has 7 bytes"))), []);
    let why = scene.manager.job(JobId(1)).unwrap().why;
    assert!(why.contains("files named bodies differ: b has 7 bytes"), "{why}");
    // The file is where it is needed.
    let out = scene.tell(replicas(&["a"], None));
    assert!(matches!(&out[..], [Action::Claim { .. }]), "{out:?}");
    // A claimed job is not requeued by a failed transfer.
    assert_eq!(scene.tell(failed(1)), []);
    assert_eq!(scene.phase(1), Some(Phase::Claiming));
}

#[test]
fn job_with_files_cannot_spread() {
    let mut need = Need::one(Kind::Malleable, 1, 1, 4);
    need.components[0].files = vec!["bodies".to_owned()];
    assert_eq!(need.check(), Ok(()));
    need.spreads = true;
    assert!(need.check().unwrap_err().contains("cannot grow into clusters"));
    need.spreads = false;
    need.components[0].files = vec!["../bodies".to_owned()];
    assert!(need.check().unwrap_err().contains("not a valid name of an input file"));
}

#[test]
fn failed_claim_counts_as_a_try() {
    let mut scene = Scene::new(by(Approach::Waiting, Policy::Egs), &[("a", 4)]);
    scene.submit(1, Need::one(Kind::Rigid, 4, 4, 4));
    let reason = "a local user was faster".to_owned();
    scene.tell(Event::ClaimFailed { job: JobId(1), reason });
    let view = scene.manager.job(JobId(1)).unwrap();
    assert_eq!((view.phase, view.tries, scene.manager.booked(&"a".into())), (Phase::Waiting, 1, 0));
    let out = scene.wait();
    assert!(matches!(&out[..], [Action::Claim { .. }]), "{out:?}");
}

#[test]
fn request_is_granted_from_free_processors() {
    let mut scene = Scene::new(by(Approach::Waiting, Policy::Egs), &[("a", 6), ("b", 6)]);
    scene.runs(1, "a", (1, 4, 8));
    let want = Want { count: 5, within: None, clusters: BTreeSet::new(), but: BTreeSet::new() };
    assert_eq!(scene.tell(Event::Want { job: JobId(1), want }), []);
    let out = scene.poll("a", 6, 1);
    assert!(matches!(&out[..], [Action::Hold { count: 1, .. }]), "{out:?}");
    let Action::Hold { change, .. } = &out[0] else { unreachable!() };
    scene.tell(Event::Held { job: JobId(1), change: *change, count: 1 });
    scene.tell(Event::Grown { job: JobId(1), change: *change, count: 1 });
    assert_eq!(scene.poll("b", 6, 0), [], "the job is placed in one cluster");
    let out = scene.poll("a", 6, 0);
    assert!(matches!(&out[..], [Action::Hold { count: 1, .. }]), "{out:?}");
}

#[test]
fn other_jobs_shrink_for_an_urgent_request() {
    let mut scene = Scene::new(by(Approach::Waiting, Policy::Egs), &[("a", 10)]);
    scene.runs(1, "a", (1, 5, 8));
    scene.runs(2, "a", (2, 4, 8));
    let want = |count| Want {
        count,
        within: Some(20 * SECOND),
        clusters: BTreeSet::new(),
        but: BTreeSet::new(),
    };
    // One idle processor, and two of the other job.
    let out = scene.tell(Event::Want { job: JobId(1), want: want(4) });
    let [Action::Refuse { reason, .. }] = &out[..] else { panic!("{out:?}") };
    assert!(reason.contains("only 3 could be freed"), "{reason}");
    let out = scene.tell(Event::Want { job: JobId(1), want: want(3) });
    assert_eq!(asked(&out), [(2, -2)]);
    scene.answer(2, change(&out, 2), 2);
    let out = scene.freed(2, "a", 2);
    assert!(matches!(&out[..], [Action::Hold { job: JobId(1), count: 3, .. }]), "{out:?}");
    // A request that is not granted in time is refused.
    let mut scene = Scene::new(by(Approach::Waiting, Policy::Egs), &[("a", 10)]);
    scene.runs(1, "a", (1, 5, 8));
    scene.runs(2, "a", (2, 4, 8));
    let out = scene.tell(Event::Want { job: JobId(1), want: want(3) });
    scene.answer(2, change(&out, 2), 2);
    let out = scene.wait();
    assert!(matches!(&out[..], [Action::Refuse { .. }]), "{out:?}");
}

#[test]
fn job_in_several_clusters_grows_and_shrinks_in_each() {
    let mut scene = Scene::new(by(Approach::Waiting, Policy::Egs), &[("a", 6), ("b", 6)]);
    let one = |cluster: &str| Component {
        min: 2,
        start: 3,
        clusters: [ClusterId::from(cluster)].into(),
        files: vec![],
    };
    let components = vec![one("a"), one("b")];
    let placement = Placement::ClusterMinimisation;
    let need =
        Need { placement, components, most: vec![5, 4], ..Need::one(Kind::Malleable, 1, 1, 1) };
    scene.submit(1, need);
    scene.tell(Event::Claimed { job: JobId(1), got: [("a".into(), 3), ("b".into(), 3)].into() });
    let out = scene.poll("a", 6, 0);
    assert_eq!(asked(&out), [(1, 3)]);
    assert_eq!(scene.poll("b", 6, 0), [], "one change at a time");
    scene.answer(1, change(&out, 1), 0);
    assert_eq!(asked(&scene.poll("b", 6, 0)), [(1, 3)]);
    scene.wait();
    let out = scene.submit(2, Need::one(Kind::Rigid, 4, 4, 4));
    assert_eq!(asked(&out), [(1, -1)]);
    let number = change(&out, 1);
    let Action::Shrink { cluster, .. } = &out[0] else { unreachable!() };
    let cluster = cluster.clone();
    scene.answer(1, number, 1);
    let out = scene.freed(1, cluster.as_str(), 1);
    assert!(matches!(&out[..], [Action::Claim { job: JobId(2), .. }]), "{out:?}");
}

#[test]
fn spreading_job_grows_into_new_clusters_and_keeps_its_total_minimum() {
    let mut scene = Scene::new(by(Approach::Waiting, Policy::Egs), &[("a", 4), ("b", 4)]);
    let mut need = Need::one(Kind::Malleable, 4, 4, 6);
    need.spreads = true;
    scene.submit(1, need);
    scene.claimed(1, "a", 4);
    let out = scene.poll("b", 4, 0);
    assert_eq!(asked(&out), [(1, 4)]);
    let number = change(&out, 1);
    scene.answer(1, number, 2);
    scene.tell(Event::Held { job: JobId(1), change: number, count: 2 });
    scene.tell(Event::Grown { job: JobId(1), change: number, count: 2 });
    assert_eq!(scene.size(1), 6);
    // Its minimum is four in total: two of either cluster suffice.
    let mut rigid = Need::one(Kind::Rigid, 2, 2, 2);
    rigid.components[0].clusters = [ClusterId::from("a")].into();
    let out = scene.submit(2, rigid);
    assert_eq!(asked(&out), [(1, -2)]);
    scene.answer(1, change(&out, 1), 2);
    let out = scene.freed(1, "a", 2);
    assert!(matches!(&out[..], [Action::Claim { job: JobId(2), .. }]), "{out:?}");
    let mut rigid = Need::one(Kind::Rigid, 3, 3, 3);
    rigid.components[0].clusters = [ClusterId::from("b")].into();
    assert_eq!(asked(&scene.submit(3, rigid)), []);
}

#[test]
fn waiting_job_can_be_withdrawn() {
    let mut scene = Scene::new(by(Approach::Waiting, Policy::Egs), &[("a", 4)]);
    scene.runs(1, "a", (1, 4, 4));
    let out = scene.submit(2, Need::one(Kind::Rigid, 2, 2, 2));
    assert_eq!(asked(&out), [(1, -2)]);
    scene.tell(Event::Withdraw { job: JobId(2) });
    assert_eq!(scene.manager.job(JobId(2)), None);
    scene.answer(1, change(&out, 1), 2);
    scene.freed(1, "a", 2);
    assert_eq!(
        asked(&scene.poll("a", 4, 0)),
        [(1, 2)],
        "the released processors are offered again"
    );
}

#[test]
fn root_processor_is_kept_and_failed_force_ends() {
    let mut scene = Scene::new(by(Approach::Waiting, Policy::Egs), &[("a", 2), ("b", 2)]);
    let mut need = Need::one(Kind::Malleable, 2, 2, 4);
    need.spreads = true;
    assert_eq!(scene.submit(1, need).len(), 1);
    scene.claimed(1, "a", 2);
    let out = scene.poll("b", 2, 0);
    let number = change(&out, 1);
    scene.answer(1, number, 2);
    scene.tell(Event::Held { job: JobId(1), change: number, count: 2 });
    scene.tell(Event::Grown { job: JobId(1), change: number, count: 2 });
    assert_eq!(scene.size(1), 4);
    // It could run on two processors elsewhere, but for its root.
    scene.tell(Event::Root { job: JobId(1), cluster: Some("a".into()) });
    let mut rigid = Need::one(Kind::Rigid, 2, 2, 2);
    rigid.components[0].clusters = ["a".into()].into();
    assert_eq!(asked(&scene.submit(2, rigid)), [], "only one processor of a could be freed");
    // While the root's cluster is unknown, the job is asked for both, and keeps one.
    scene.tell(Event::Root { job: JobId(1), cluster: None });
    let out = scene.wait();
    assert_eq!(asked(&out), [(1, -2)]);
    scene.answer(1, change(&out, 1), 1);
    scene.freed(1, "a", 1);
    assert_eq!(scene.phase(1), Some(Phase::Shrinking), "the mandatory release is owed");
    let out =
        (0..9).map(|_| scene.wait()).find(|out| !out.is_empty()).expect("the release is overdue");
    assert!(matches!(&out[..], [.., Action::Force { count: 1, .. }]), "{out:?}");
    let kept = Event::NotForced { job: JobId(1), cluster: "a".into(), count: 1 };
    scene.tell(Event::Root { job: JobId(1), cluster: Some("a".into()) });
    scene.tell(kept);
    assert_eq!((scene.phase(1), scene.size(1)), (Some(Phase::Running), 3));
}

#[test]
fn failed_request_is_retried_and_finally_refused() {
    for within in [None, Some(30 * SECOND)] {
        let mut scene = Scene::new(by(Approach::Waiting, Policy::Egs), &[("a", 4)]);
        scene.runs(1, "a", (2, 2, 4));
        let want = Want { count: 2, within, clusters: BTreeSet::new(), but: BTreeSet::new() };
        let mut out = scene.tell(Event::Want { job: JobId(1), want });
        if within.is_none() {
            out = scene.poll("a", 4, 0);
        }
        let [Action::Hold { change, count: 2, .. }] = out[..] else { panic!("{out:?}") };
        // A local user took the processors.
        let reason = "no".to_owned();
        let none = Event::NotHeld { job: JobId(1), change, count: 2, reason };
        assert_eq!(scene.tell(none), [], "no immediate retry: another attempt would fail as well");
        assert_eq!(scene.phase(1), Some(Phase::Running));
        let out = scene.poll("a", 4, 0);
        assert!(matches!(out[..], [Action::Hold { count: 2, .. }]), "{out:?}");
        let [Action::Hold { change, .. }] = out[..] else { panic!() };
        let none = Event::NotHeld { job: JobId(1), change, count: 2, reason: "no".to_owned() };
        scene.tell(none);
        if within.is_some() {
            let out = scene.wait();
            assert!(matches!(&out[..], [Action::Refuse { .. }]), "{out:?}");
        }
    }
}

#[test]
fn urgent_growth_respects_the_reserve() {
    let settings = Settings { reserve: 1, ..by(Approach::Waiting, Policy::Egs) };
    let mut scene = Scene::new(settings, &[("a", 4)]);
    scene.runs(1, "a", (1, 1, 4));
    scene.runs(2, "a", (1, 2, 2));
    let want = |count| Want {
        count,
        within: Some(30 * SECOND),
        clusters: BTreeSet::new(),
        but: BTreeSet::new(),
    };
    // The idle processor is reserved for local users: the other job shrinks.
    let out = scene.tell(Event::Want { job: JobId(1), want: want(1) });
    assert_eq!(asked(&out), [(2, -1)]);
    scene.answer(2, change(&out, 2), 1);
    let out = scene.freed(2, "a", 1);
    assert!(matches!(out[..], [Action::Hold { count: 1, .. }]), "{out:?}");
    let mut scene =
        Scene::new(Settings { reserve: 1, ..by(Approach::Waiting, Policy::Egs) }, &[("a", 4)]);
    scene.runs(1, "a", (1, 3, 4));
    let out = scene.tell(Event::Want { job: JobId(1), want: want(1) });
    assert!(matches!(&out[..], [Action::Refuse { .. }]), "{out:?}");
}

#[test]
fn missing_answer_is_no_refusal_and_released_processors_are_not_offered_again() {
    let mut scene = Scene::new(by(Approach::Waiting, Policy::EfficiencyAware), &[("a", 4)]);
    scene.runs(1, "a", (1, 1, 4));
    let out = scene.poll("a", 4, 0);
    let number = change(&out, 1);
    scene.tell(Event::Answer { job: JobId(1), change: number, count: None });
    let out = scene.poll("a", 4, 0);
    assert_eq!(asked(&out), [(1, 3)]);
    let number = change(&out, 1);
    scene.answer(1, number, 2);
    scene.tell(Event::Held { job: JobId(1), change: number, count: 2 });
    scene.tell(Event::Grown { job: JobId(1), change: number, count: 2 });
    // It has no use for one of them.
    scene.tell(Event::Freed { job: JobId(1), cluster: "a".into(), count: 1, let_go: true });
    scene.poll("a", 4, 1);
    let out = scene.poll("a", 4, 1);
    assert_eq!(asked(&out), [], "it has just released one");
    assert_eq!(asked(&scene.poll("a", 4, 0)), [(1, 2)], "a larger offer is possible");
}

#[test]
fn processors_freed_before_the_answer_count() {
    let mut scene = Scene::new(by(Approach::Waiting, Policy::Egs), &[("a", 4)]);
    scene.runs(1, "a", (1, 4, 4));
    let out = scene.submit(2, Need::one(Kind::Rigid, 2, 2, 2));
    assert_eq!(asked(&out), [(1, -2)]);
    let number = change(&out, 1);
    scene.freed(1, "a", 2);
    let out = scene.answer(1, number, 2);
    assert_eq!((scene.size(1), scene.phase(1)), (2, Some(Phase::Running)), "{out:?}");
}

#[test]
fn lost_processors_are_replaced_for_each_kind_of_job() {
    let mut scene = Scene::new(by(Approach::Waiting, Policy::Egs), &[("a", 4)]);
    scene.submit(1, Need::one(Kind::Rigid, 3, 3, 3));
    scene.claimed(1, "a", 3);
    scene.freed(1, "a", 1);
    let out = scene.poll("a", 4, 0);
    let [Action::Hold { change, count: 1, .. }] = out[..] else { panic!("{out:?}") };
    scene.tell(Event::Held { job: JobId(1), change, count: 1 });
    scene.tell(Event::Grown { job: JobId(1), change, count: 1 });
    assert_eq!(scene.size(1), 3);
    assert_eq!(scene.poll("a", 4, 0), []);
}

#[test]
fn jobs_may_decline_to_shrink_for_local_users() {
    let settings = |approach| Settings { reserve: 2, ..by(approach, Policy::Egs) };
    let mut scene = Scene::new(settings(Approach::Waiting), &[("a", 6)]);
    scene.runs(1, "a", (1, 2, 6));
    scene.runs(2, "a", (1, 2, 2));
    // A local user arrives: one of two reserved processors is left.
    let out = scene.poll("a", 6, 1);
    assert_eq!(asked(&out), [(2, -1)]);
    let must = |action: &Action| matches!(action, Action::Shrink { mandatory: true, .. });
    assert!(!out.iter().any(must));
    scene.answer(2, change(&out, 2), 0);
    let out = scene.poll("a", 6, 1);
    assert_eq!(asked(&out), [(1, -1)], "the next job is asked");
    scene.answer(1, change(&out, 1), 1);
    scene.freed(1, "a", 1);
    assert_eq!(asked(&scene.poll("a", 6, 1)), [], "two are idle");
    // Where running jobs have precedence, none is asked.
    let mut scene = Scene::new(settings(Approach::Running), &[("a", 4)]);
    scene.runs(1, "a", (1, 2, 4));
    assert_eq!(asked(&scene.poll("a", 4, 1)), []);
}

#[test]
fn more_efficient_job_gets_another_offer() {
    let mut scene = Scene::new(by(Approach::Waiting, Policy::EfficiencyAware), &[("a", 4)]);
    scene.runs(1, "a", (1, 2, 4));
    let measured = |efficiency| Event::Efficiency { job: JobId(1), efficiency, processors: 2 };
    scene.tell(measured(0.6));
    let out = scene.poll("a", 4, 0);
    scene.answer(1, change(&out, 1), 0);
    assert_eq!(asked(&scene.poll("a", 4, 0)), [], "it refused two");
    scene.tell(measured(0.62));
    assert_eq!(asked(&scene.poll("a", 4, 0)), []);
    scene.tell(measured(0.8));
    assert_eq!(asked(&scene.poll("a", 4, 0)), [(1, 2)]);
}
