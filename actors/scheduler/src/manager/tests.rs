mod reserved;

use super::*;
use crate::policy::malleability::{Component, PlacementPolicy};

const SECOND: Duration = Duration::from_secs(1);

/// A manager, and the present time.
struct Scene {
    manager: Manager,
    now: Instant,
}

impl Scene {
    fn new(settings: ManagerSettings, sites: &[(&str, u32)]) -> Self {
        let now = Instant::now();
        let names = sites.iter().map(|site| ClusterId::from(site.0));
        let mut scene = Self { manager: Manager::new(settings, names, now), now };
        for &(name, size) in sites {
            assert_eq!(scene.poll(name, size, 0), []);
        }
        scene
    }

    fn tell(&mut self, event: ManagerEvent) -> Vec<ManagerAction> {
        let out = self.manager.handle(event, self.now);
        self.manager.audit().unwrap();
        out
    }

    fn poll(&mut self, name: &str, size: u32, others: u32) -> Vec<ManagerAction> {
        self.tell(ManagerEvent::Polled { cluster: name.into(), size, others, whole: size })
    }

    fn submit(&mut self, job: u64, need: JobRequirements) -> Vec<ManagerAction> {
        self.tell(ManagerEvent::Submit { job: JobId(job), need: Box::new(need) })
    }

    /// Submits a job that starts at once on `start` processors of a cluster.
    fn runs(&mut self, job: u64, cluster: &str, (min, start, most): (u32, u32, u32)) {
        let mut need = JobRequirements::one(Kind::Malleable, min, start, most);
        need.components[0].clusters = [ClusterId::from(cluster)].into();
        let out = self.submit(job, need);
        assert!(matches!(&out[..], [ManagerAction::Claim { .. }]), "{out:?}");
        self.claimed(job, cluster, start);
    }

    fn claimed(&mut self, job: u64, cluster: &str, count: u32) -> Vec<ManagerAction> {
        self.now += SECOND;
        self.tell(ManagerEvent::Claimed { job: JobId(job), got: [(cluster.into(), count)].into() })
    }

    fn answer(&mut self, job: u64, change: u64, count: u32) -> Vec<ManagerAction> {
        self.tell(ManagerEvent::Answer { job: JobId(job), change, count: Some(count) })
    }

    fn freed(&mut self, job: u64, cluster: &str, count: u32) -> Vec<ManagerAction> {
        self.tell(ManagerEvent::Freed {
            job: JobId(job),
            cluster: cluster.into(),
            count,
            voluntary: false,
        })
    }

    /// Advances the time to the next due event.
    fn wait(&mut self) -> Vec<ManagerAction> {
        self.now = self.manager.due().expect("something is due");
        self.tell(ManagerEvent::Tick)
    }

    fn size(&self, job: u64) -> u32 {
        self.manager.job(JobId(job)).map_or(0, |view| view.sizes.values().sum())
    }

    fn phase(&self, job: u64) -> Option<JobPhase> {
        self.manager.job(JobId(job)).map(|view| view.phase)
    }
}

/// Offers and shrinks, as (job, change of size).
fn asked(out: &[ManagerAction]) -> Vec<(u64, i64)> {
    let ask = |action: &ManagerAction| match action {
        ManagerAction::Offer { job, count, .. } => Some((job.0, i64::from(*count))),
        ManagerAction::Shrink { job, count, .. } => Some((job.0, -i64::from(*count))),
        _ => None,
    };
    out.iter().filter_map(ask).collect()
}

fn change(out: &[ManagerAction], job: u64) -> u64 {
    let of = |action: &ManagerAction| match action {
        ManagerAction::Offer { job: j, change, .. }
        | ManagerAction::Shrink { job: j, change, .. }
            if j.0 == job =>
        {
            Some(*change)
        }
        _ => None,
    };
    out.iter().find_map(of).expect("it is asked")
}

fn by(approach: Approach, policy: Policy) -> ManagerSettings {
    ManagerSettings { approach, policy, ..ManagerSettings::default() }
}

#[test]
fn job_computes_while_processors_are_held() {
    let mut scene = Scene::new(by(Approach::Waiting, Policy::Egs), &[("a", 10)]);
    scene.runs(1, "a", (2, 2, 6));
    let out = scene.poll("a", 10, 0);
    assert_eq!(asked(&out), [(1, 8)]);
    assert_eq!(scene.phase(1), Some(JobPhase::Growing));
    let number = change(&out, 1);
    let out = scene.answer(1, number, 4);
    let cluster = ClusterId::from("a");
    assert_eq!(
        out,
        [ManagerAction::Hold { job: JobId(1), change: number, cluster: cluster.clone(), count: 4 }]
    );
    let held = |count| ManagerEvent::Held { job: JobId(1), change: number, count };
    assert_eq!(scene.tell(held(3)), []);
    assert_eq!(scene.size(1), 2);
    let recruit = ManagerAction::Recruit { job: JobId(1), change: number, cluster, count: 4 };
    assert_eq!(scene.tell(held(1)), [recruit]);
    assert_eq!(scene.poll("a", 10, 0), [], "one change at a time");
    assert_eq!(scene.tell(ManagerEvent::Grown { job: JobId(1), change: number, count: 4 }), []);
    assert_eq!((scene.size(1), scene.phase(1)), (6, Some(JobPhase::Running)));
    assert_eq!(scene.manager.grow_value(&"a".into()), 4);
}

#[test]
fn growth_respects_reserve_and_caps() {
    let settings = ManagerSettings {
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
    assert_eq!(scene.submit(2, JobRequirements::one(Kind::Rigid, 3, 3, 3)), []);
    let why = scene.manager.job(JobId(2)).unwrap().reason;
    assert!(
        why.contains("a closed: its idle processors are kept for job-1, which runs and can grow"),
        "{why}"
    );
    let out = scene.poll("a", 10, 0);
    assert_eq!(asked(&out), [(1, 8)]);
    let number = change(&out, 1);
    scene.answer(1, number, 4);
    scene.tell(ManagerEvent::Held { job: JobId(1), change: number, count: 4 });
    let out = scene.tell(ManagerEvent::Grown { job: JobId(1), change: number, count: 4 });
    assert_eq!(out, [], "only freed processors and polls cause a scan");
    let out = scene.poll("a", 10, 0);
    assert!(matches!(&out[..], [ManagerAction::Claim { job: JobId(2), .. }]), "{out:?}");
    // No job shrinks for one that does not fit.
    assert_eq!(scene.submit(3, JobRequirements::one(Kind::Rigid, 4, 4, 4)), []);
    for _ in 0..20 {
        assert_eq!(asked(&scene.wait()), []);
    }
}

#[test]
fn job_that_refused_an_offer_does_not_block_the_queue() {
    let mut scene = Scene::new(by(Approach::Running, Policy::Egs), &[("a", 10)]);
    scene.runs(1, "a", (2, 4, 8));
    scene.submit(2, JobRequirements::one(Kind::Rigid, 3, 3, 3));
    let others = 3; // three are left, and it needs four
    let out = scene.poll("a", 10, others);
    assert_eq!(asked(&out), [(1, 3)]);
    let out = scene.answer(1, change(&out, 1), 0);
    assert!(matches!(&out[..], [ManagerAction::Claim { job: JobId(2), .. }]), "{out:?}");
}

#[test]
fn running_jobs_shrink_for_the_head_of_the_queue() {
    let mut scene = Scene::new(by(Approach::Waiting, Policy::Fpsma), &[("a", 10)]);
    scene.runs(1, "a", (2, 5, 8));
    scene.runs(2, "a", (2, 4, 8));
    // 1 is idle, 3 + 2 could be released.
    let out = scene.submit(3, JobRequirements::one(Kind::Rigid, 5, 5, 5));
    assert_eq!(asked(&out), [(2, -4)], "the youngest first");
    assert!(matches!(&out[0], ManagerAction::Shrink { mandatory: true, .. }));
    let first = change(&out, 2);
    assert_eq!(
        scene.answer(2, first, 2),
        [ManagerAction::ProtocolViolation {
            what: "job-2 must release 4 processors of a and offers 2".to_owned()
        }][..0],
        "it can release no more than two"
    );
    assert_eq!(scene.poll("a", 10, 0), [], "no job is asked twice, and none grows");
    let out = scene.freed(2, "a", 2);
    assert_eq!(asked(&out), [(1, -2)], "then the next job is asked");
    let why = scene.manager.job(JobId(3)).unwrap().reason;
    assert!(why.contains("3 idle, 5 needed; running jobs are making room for it"), "{why}");
    // A job that would fit has to wait: the processors are kept.
    assert_eq!(scene.submit(4, JobRequirements::one(Kind::Rigid, 1, 1, 1)), []);
    assert!(
        scene
            .manager
            .job(JobId(4))
            .unwrap()
            .reason
            .contains("processors are kept for job-3, which waits")
    );
    // A shared snapshot gives the same explanations as separate ones.
    let together = GridOutlook::default();
    for job in [4, 3, 1].map(JobId) {
        let alone = scene.manager.job(job).unwrap().reason;
        assert_eq!(scene.manager.why(job, &together), Some(alone));
    }
    scene.answer(1, change(&out, 1), 2);
    let out = scene.freed(1, "a", 2);
    assert!(matches!(&out[..], [ManagerAction::Claim { job: JobId(3), .. }]), "{out:?}");
    assert_eq!((scene.size(1), scene.size(2)), (3, 2));
}

#[test]
fn no_job_shrinks_in_vain() {
    let mut scene = Scene::new(by(Approach::Waiting, Policy::Egs), &[("a", 10)]);
    scene.runs(1, "a", (4, 5, 8));
    scene.runs(2, "a", (3, 3, 8));
    assert_eq!(
        scene.submit(3, JobRequirements::one(Kind::Rigid, 4, 4, 4)),
        [],
        "the others need 7"
    );
    assert_eq!(asked(&scene.poll("a", 10, 0)), [(1, 1), (2, 1)]);
}

#[test]
fn processors_under_release_are_not_requested_again() {
    let mut scene = Scene::new(by(Approach::Waiting, Policy::Egs), &[("a", 10)]);
    scene.runs(1, "a", (2, 5, 8));
    scene.runs(2, "a", (2, 5, 8));
    let out = scene.submit(3, JobRequirements::one(Kind::Rigid, 4, 4, 4));
    assert_eq!(asked(&out), [(2, -2), (1, -2)]);
    // A job with constraints releases more than it is asked for.
    scene.answer(2, change(&out, 2), 3);
    scene.answer(1, change(&out, 1), 2);
    for _ in 0..3 {
        assert_eq!(asked(&scene.poll("a", 10, 0)), []);
    }
    assert_eq!(scene.freed(2, "a", 3), []);
    let out = scene.freed(1, "a", 2);
    assert!(matches!(&out[..], [ManagerAction::Claim { job: JobId(3), .. }]), "{out:?}");
    assert_eq!(scene.manager.booked_processors(&"a".into()), 9);
}

#[test]
fn refused_or_unanswered_shrink_is_forced() {
    for answers in [true, false] {
        let mut scene = Scene::new(by(Approach::Waiting, Policy::Egs), &[("a", 4)]);
        scene.runs(1, "a", (1, 4, 4));
        let out = scene.submit(2, JobRequirements::one(Kind::Rigid, 2, 2, 2));
        assert_eq!(asked(&out), [(1, -2)]);
        let begun = scene.now;
        if answers {
            let out = scene.answer(1, change(&out, 1), 0);
            assert!(matches!(&out[..], [ManagerAction::ProtocolViolation { .. }]), "{out:?}");
        }
        let forced = loop {
            let out = scene.wait();
            if let Some(ManagerAction::Force { count, .. }) =
                out.iter().find(|a| matches!(a, ManagerAction::Force { .. }))
            {
                break *count;
            }
        };
        let ManagerSettings { answer_timeout, release_timeout, .. } = ManagerSettings::default();
        assert_eq!(forced, 2);
        assert!(scene.now - begun <= answer_timeout + release_timeout);
        let out = scene.freed(1, "a", 2);
        assert!(matches!(&out[..], [ManagerAction::Claim { job: JobId(2), .. }]), "{out:?}");
    }
}

#[test]
fn late_answer_is_ignored() {
    let mut scene = Scene::new(by(Approach::Waiting, Policy::Egs), &[("a", 4)]);
    scene.runs(1, "a", (1, 1, 4));
    let out = scene.poll("a", 4, 0);
    let number = change(&out, 1);
    assert_eq!(scene.wait(), []);
    assert_eq!(
        (scene.phase(1), scene.manager.booked_processors(&"a".into())),
        (Some(JobPhase::Running), 1)
    );
    assert_eq!(scene.answer(1, number, 3), []);
    assert_eq!(scene.manager.booked_processors(&"a".into()), 1);
}

#[test]
fn missing_stub_makes_growth_partial() {
    let mut scene = Scene::new(by(Approach::Waiting, Policy::Egs), &[("a", 6)]);
    scene.runs(1, "a", (1, 1, 6));
    let out = scene.poll("a", 6, 0);
    let number = change(&out, 1);
    scene.answer(1, number, 5);
    scene.tell(ManagerEvent::Held { job: JobId(1), change: number, count: 2 });
    let reason = "the site says no".to_owned();
    scene.tell(ManagerEvent::NotHeld { job: JobId(1), change: number, count: 1, reason });
    let out = scene.wait();
    let unheld = matches!(&out[0], ManagerAction::Unhold { count: 2, .. });
    assert!(unheld && matches!(&out[1], ManagerAction::Recruit { count: 2, .. }), "{out:?}");
    assert_eq!(
        scene.manager.booked_processors(&"a".into()),
        5,
        "processors under release are not free yet"
    );
    scene.tell(ManagerEvent::Unheld { job: JobId(1), cluster: "a".into(), count: 2 });
    // The job can use one of the two recruited processors.
    let out = scene.tell(ManagerEvent::Grown { job: JobId(1), change: number, count: 1 });
    assert!(matches!(&out[..], [ManagerAction::Unhold { count: 1, .. }]), "{out:?}");
    scene.tell(ManagerEvent::Unheld { job: JobId(1), cluster: "a".into(), count: 1 });
    assert_eq!((scene.size(1), scene.manager.booked_processors(&"a".into())), (2, 2));
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
            scene.tell(ManagerEvent::Held {
                job: JobId(1),
                change: number,
                count: if stage == 2 { 2 } else { 4 },
            });
        }
        let out = scene.tell(ManagerEvent::Ended { job: JobId(1) });
        assert_eq!(
            matches!(&out[..], [ManagerAction::Unhold { count: 4, .. }]),
            stage > 0,
            "{out:?}"
        );
        assert_eq!(scene.manager.booked_processors(&"a".into()), if stage == 0 { 1 } else { 5 });
        if stage > 0 {
            scene.tell(ManagerEvent::Unheld { job: JobId(1), cluster: "a".into(), count: 4 });
        }
        scene.freed(1, "a", 1);
        assert_eq!((scene.phase(1), scene.manager.booked_processors(&"a".into())), (None, 0));
        assert_eq!(scene.poll("a", 6, 0), []);
        assert!(scene.manager.due().is_none());
    }
}

#[test]
fn submission_fails_after_its_tries() {
    let settings = ManagerSettings { max_tries: Some(3), ..by(Approach::Waiting, Policy::Egs) };
    let mut scene = Scene::new(settings, &[("a", 4)]);
    scene.submit(1, JobRequirements::one(Kind::Rigid, 4, 4, 4));
    scene.claimed(1, "a", 4);
    scene.submit(2, JobRequirements::one(Kind::Rigid, 1, 1, 1));
    for tries in 1..=3 {
        // Other events are not tries.
        assert_eq!(scene.poll("a", 4, 0), []);
        assert_eq!(scene.wait(), []);
        assert_eq!(scene.manager.job(JobId(2)).unwrap().tries, tries);
    }
    let out = scene.wait();
    let [ManagerAction::Fail { job: JobId(2), reason }] = &out[..] else { panic!("{out:?}") };
    assert_eq!(
        reason,
        "no place was found in 4 tries: no cluster can take component 1: a 0 idle, 1 needed"
    );
    assert!(scene.manager.due().is_none());
}

#[test]
fn scan_covers_the_whole_queue() {
    let mut scene = Scene::new(by(Approach::Waiting, Policy::Egs), &[("a", 4)]);
    scene.submit(1, JobRequirements::one(Kind::Rigid, 3, 3, 3));
    scene.claimed(1, "a", 3);
    scene.submit(2, JobRequirements::one(Kind::Rigid, 3, 3, 3));
    scene.submit(3, JobRequirements::one(Kind::Rigid, 2, 2, 2));
    let out = scene.submit(4, JobRequirements::one(Kind::Rigid, 1, 1, 1));
    assert!(matches!(&out[..], [ManagerAction::Claim { job: JobId(4), .. }]), "{out:?}");
    assert_eq!(scene.manager.queued().map(|job| job.0).collect::<Vec<_>>(), [2, 3]);
    let out = scene.submit(5, JobRequirements::one(Kind::Rigid, 5, 5, 5));
    let [ManagerAction::Fail { job: JobId(5), reason }] = &out[..] else { panic!("{out:?}") };
    assert!(reason.contains("no cluster can ever take"), "{reason}");
}

#[test]
fn unreachable_site_does_not_block_others() {
    let mut scene = Scene::new(by(Approach::Waiting, Policy::Egs), &[("a", 4), ("b", 4)]);
    let reason = "sinfo: connection refused".to_owned();
    scene.tell(ManagerEvent::Unreachable { cluster: "a".into(), reason });
    let out = scene.submit(1, JobRequirements::one(Kind::Rigid, 2, 2, 2));
    let [ManagerAction::Claim { placed, .. }] = &out[..] else { panic!("{out:?}") };
    assert_eq!(placed.parts[0].cluster, "b".into());
    scene.submit(2, JobRequirements::one(Kind::Rigid, 4, 4, 4));
    let why = scene.manager.job(JobId(2)).unwrap().reason;
    assert!(why.contains("a closed: sinfo: connection refused; b 2 idle, 4 needed"), "{why}");
    let out = scene.poll("a", 4, 0);
    assert!(matches!(&out[..], [ManagerAction::Claim { job: JobId(2), .. }]), "{out:?}");
}

#[test]
fn processors_are_claimed_shortly_before_the_files_arrive() {
    let settings =
        ManagerSettings { claim_ahead: 5 * SECOND, ..by(Approach::Waiting, Policy::Egs) };
    let mut scene = Scene::new(settings, &[("a", 4), ("b", 1)]);
    let (file, clusters) = ("bodies".to_owned(), [ClusterId::from("b")].into());
    scene.tell(ManagerEvent::Replicas { file: file.clone(), bytes: 2000, clusters, differs: None });
    scene.tell(ManagerEvent::LinkMeasured { from: "b".into(), to: "a".into(), rate: 100.0 });
    let mut need = JobRequirements::one(Kind::Rigid, 3, 3, 3);
    need.placement = PlacementPolicy::CloseToFiles;
    need.components[0].files = vec![file];
    let out = scene.submit(1, need.clone());
    assert!(matches!(&out[..], [ManagerAction::TransferFiles { .. }]), "{out:?}");
    let begun = scene.now;
    assert_eq!(
        (scene.phase(1), scene.manager.booked_processors(&"a".into())),
        (Some(JobPhase::Placed), 0)
    );
    let out = scene.wait();
    assert!(matches!(&out[..], [ManagerAction::Claim { .. }]), "{out:?}");
    assert_eq!(scene.now - begun, 15 * SECOND);
    scene.claimed(1, "a", 3);
    // Another user takes the processors: the job waits again, and its files have arrived by then.
    scene.tell(ManagerEvent::Ended { job: JobId(1) });
    scene.freed(1, "a", 3);
    let out = scene.submit(2, need);
    assert!(matches!(&out[..], [ManagerAction::TransferFiles { .. }]), "{out:?}");
    scene.poll("a", 4, 2);
    assert_eq!(scene.tell(ManagerEvent::Moved { job: JobId(2) }), []);
    let view = scene.manager.job(JobId(2)).unwrap();
    assert_eq!((view.phase, view.tries), (JobPhase::Waiting, 1));
    let out = scene.poll("a", 4, 0);
    assert!(matches!(&out[..], [ManagerAction::Claim { .. }]), "{out:?}");
}

#[test]
fn job_with_failed_transfers_waits_again() {
    let mut scene = Scene::new(by(Approach::Waiting, Policy::Egs), &[("a", 4), ("b", 1)]);
    let replicas = |advance_to: &[&str], differs: Option<&str>| ManagerEvent::Replicas {
        file: "bodies".to_owned(),
        bytes: 2000,
        clusters: advance_to.iter().map(|&name| name.into()).collect(),
        differs: differs.map(str::to_owned),
    };
    scene.tell(replicas(&["b"], None));
    let mut need = JobRequirements::one(Kind::Rigid, 3, 3, 3);
    need.components[0].files = vec!["bodies".to_owned()];
    let out = scene.submit(1, need);
    assert!(matches!(&out[..], [ManagerAction::TransferFiles { .. }]), "{out:?}");
    let failed = |job| ManagerEvent::MoveFailed { job: JobId(job), reason: "b is gone".to_owned() };
    assert_eq!(scene.tell(failed(2)), []);
    assert_eq!(scene.tell(failed(1)), []);
    let view = scene.manager.job(JobId(1)).unwrap();
    assert_eq!((view.phase, view.tries), (JobPhase::Waiting, 1));
    // A repeated failure has no effect.
    assert_eq!(scene.tell(failed(1)), []);
    assert_eq!(scene.manager.job(JobId(1)).unwrap().tries, 1);
    // No cluster has the file: the job is not placed, and the reason says so.
    scene.tell(replicas(&[], None));
    assert_eq!(scene.wait(), []);
    let why = scene.manager.job(JobId(1)).unwrap().reason;
    assert!(why.contains("a no cluster has the file bodies"), "{why}");
    assert_eq!(scene.tell(replicas(&["a", "b"], Some("b has 7 bytes"))), []);
    let why = scene.manager.job(JobId(1)).unwrap().reason;
    assert!(why.contains("files named bodies differ: b has 7 bytes"), "{why}");
    // The file is where it is needed.
    let out = scene.tell(replicas(&["a"], None));
    assert!(matches!(&out[..], [ManagerAction::Claim { .. }]), "{out:?}");
    // A claimed job is not requeued by a failed transfer.
    assert_eq!(scene.tell(failed(1)), []);
    assert_eq!(scene.phase(1), Some(JobPhase::Claiming));
}

#[test]
fn job_with_files_cannot_spread() {
    let mut need = JobRequirements::one(Kind::Malleable, 1, 1, 4);
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
    scene.submit(1, JobRequirements::one(Kind::Rigid, 4, 4, 4));
    let (reason, without) = ("a local user was faster".to_owned(), Default::default());
    scene.tell(ManagerEvent::ClaimFailed { job: JobId(1), reason, without });
    let view = scene.manager.job(JobId(1)).unwrap();
    assert_eq!(
        (view.phase, view.tries, scene.manager.booked_processors(&"a".into())),
        (JobPhase::Waiting, 1, 0)
    );
    let out = scene.wait();
    assert!(matches!(&out[..], [ManagerAction::Claim { .. }]), "{out:?}");
}

#[test]
fn request_is_granted_from_free_processors() {
    let mut scene = Scene::new(by(Approach::Waiting, Policy::Egs), &[("a", 6), ("b", 6)]);
    scene.runs(1, "a", (1, 4, 8));
    let want = GrowthRequest {
        count: 5,
        timeout: None,
        clusters: BTreeSet::new(),
        excluded_clusters: BTreeSet::new(),
    };
    assert_eq!(scene.tell(ManagerEvent::GrowthRequested { job: JobId(1), want }), []);
    let out = scene.poll("a", 6, 1);
    assert!(matches!(&out[..], [ManagerAction::Hold { count: 1, .. }]), "{out:?}");
    let ManagerAction::Hold { change, .. } = &out[0] else { unreachable!() };
    scene.tell(ManagerEvent::Held { job: JobId(1), change: *change, count: 1 });
    scene.tell(ManagerEvent::Grown { job: JobId(1), change: *change, count: 1 });
    assert_eq!(scene.poll("b", 6, 0), [], "the job is placed in one cluster");
    let out = scene.poll("a", 6, 0);
    assert!(matches!(&out[..], [ManagerAction::Hold { count: 1, .. }]), "{out:?}");
}

#[test]
fn other_jobs_shrink_for_an_urgent_request() {
    let mut scene = Scene::new(by(Approach::Waiting, Policy::Egs), &[("a", 10)]);
    scene.runs(1, "a", (1, 5, 8));
    scene.runs(2, "a", (2, 4, 8));
    let want = |count| GrowthRequest {
        count,
        timeout: Some(20 * SECOND),
        clusters: BTreeSet::new(),
        excluded_clusters: BTreeSet::new(),
    };
    // One idle processor, and two of the other job.
    let out = scene.tell(ManagerEvent::GrowthRequested { job: JobId(1), want: want(4) });
    let [ManagerAction::Refuse { reason, .. }] = &out[..] else { panic!("{out:?}") };
    assert!(reason.contains("only 3 could be freed"), "{reason}");
    let out = scene.tell(ManagerEvent::GrowthRequested { job: JobId(1), want: want(3) });
    assert_eq!(asked(&out), [(2, -2)]);
    scene.answer(2, change(&out, 2), 2);
    let out = scene.freed(2, "a", 2);
    assert!(matches!(&out[..], [ManagerAction::Hold { job: JobId(1), count: 3, .. }]), "{out:?}");
    // A request that is not granted in time is refused.
    let mut scene = Scene::new(by(Approach::Waiting, Policy::Egs), &[("a", 10)]);
    scene.runs(1, "a", (1, 5, 8));
    scene.runs(2, "a", (2, 4, 8));
    let out = scene.tell(ManagerEvent::GrowthRequested { job: JobId(1), want: want(3) });
    scene.answer(2, change(&out, 2), 2);
    let out = scene.wait();
    assert!(matches!(&out[..], [ManagerAction::Refuse { .. }]), "{out:?}");
}

#[test]
fn job_in_several_clusters_grows_and_shrinks_in_each() {
    let mut scene = Scene::new(by(Approach::Waiting, Policy::Egs), &[("a", 6), ("b", 6)]);
    let one = |cluster: &str| Component {
        min: 2,
        max_at_start: 3,
        clusters: [ClusterId::from(cluster)].into(),
        files: vec![],
    };
    let components = vec![one("a"), one("b")];
    let placement = PlacementPolicy::ClusterMinimisation;
    let need = JobRequirements {
        placement,
        components,
        max: vec![5, 4],
        ..JobRequirements::one(Kind::Malleable, 1, 1, 1)
    };
    scene.submit(1, need);
    scene.tell(ManagerEvent::Claimed {
        job: JobId(1),
        got: [("a".into(), 3), ("b".into(), 3)].into(),
    });
    let out = scene.poll("a", 6, 0);
    assert_eq!(asked(&out), [(1, 3)]);
    assert_eq!(scene.poll("b", 6, 0), [], "one change at a time");
    scene.answer(1, change(&out, 1), 0);
    assert_eq!(asked(&scene.poll("b", 6, 0)), [(1, 3)]);
    scene.wait();
    let out = scene.submit(2, JobRequirements::one(Kind::Rigid, 4, 4, 4));
    assert_eq!(asked(&out), [(1, -1)]);
    let number = change(&out, 1);
    let ManagerAction::Shrink { cluster, .. } = &out[0] else { unreachable!() };
    let cluster = cluster.clone();
    scene.answer(1, number, 1);
    let out = scene.freed(1, cluster.as_str(), 1);
    assert!(matches!(&out[..], [ManagerAction::Claim { job: JobId(2), .. }]), "{out:?}");
}

#[test]
fn spreading_job_grows_into_new_clusters_and_keeps_its_total_minimum() {
    let mut scene = Scene::new(by(Approach::Waiting, Policy::Egs), &[("a", 4), ("b", 4)]);
    let mut need = JobRequirements::one(Kind::Malleable, 4, 4, 6);
    need.spreads = true;
    scene.submit(1, need);
    scene.claimed(1, "a", 4);
    let out = scene.poll("b", 4, 0);
    assert_eq!(asked(&out), [(1, 4)]);
    let number = change(&out, 1);
    scene.answer(1, number, 2);
    scene.tell(ManagerEvent::Held { job: JobId(1), change: number, count: 2 });
    scene.tell(ManagerEvent::Grown { job: JobId(1), change: number, count: 2 });
    assert_eq!(scene.size(1), 6);
    // Its minimum is four in total: two of either cluster suffice.
    let mut rigid = JobRequirements::one(Kind::Rigid, 2, 2, 2);
    rigid.components[0].clusters = [ClusterId::from("a")].into();
    let out = scene.submit(2, rigid);
    assert_eq!(asked(&out), [(1, -2)]);
    scene.answer(1, change(&out, 1), 2);
    let out = scene.freed(1, "a", 2);
    assert!(matches!(&out[..], [ManagerAction::Claim { job: JobId(2), .. }]), "{out:?}");
    let mut rigid = JobRequirements::one(Kind::Rigid, 3, 3, 3);
    rigid.components[0].clusters = [ClusterId::from("b")].into();
    assert_eq!(asked(&scene.submit(3, rigid)), []);
}

#[test]
fn waiting_job_can_be_withdrawn() {
    let mut scene = Scene::new(by(Approach::Waiting, Policy::Egs), &[("a", 4)]);
    scene.runs(1, "a", (1, 4, 4));
    let out = scene.submit(2, JobRequirements::one(Kind::Rigid, 2, 2, 2));
    assert_eq!(asked(&out), [(1, -2)]);
    scene.tell(ManagerEvent::Withdraw { job: JobId(2) });
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
    let mut need = JobRequirements::one(Kind::Malleable, 2, 2, 4);
    need.spreads = true;
    assert_eq!(scene.submit(1, need).len(), 1);
    scene.claimed(1, "a", 2);
    let out = scene.poll("b", 2, 0);
    let number = change(&out, 1);
    scene.answer(1, number, 2);
    scene.tell(ManagerEvent::Held { job: JobId(1), change: number, count: 2 });
    scene.tell(ManagerEvent::Grown { job: JobId(1), change: number, count: 2 });
    assert_eq!(scene.size(1), 4);
    // It could run on two processors elsewhere, but for its root.
    scene.tell(ManagerEvent::RootMoved { job: JobId(1), cluster: Some("a".into()) });
    let mut rigid = JobRequirements::one(Kind::Rigid, 2, 2, 2);
    rigid.components[0].clusters = ["a".into()].into();
    assert_eq!(asked(&scene.submit(2, rigid)), [], "only one processor of a could be freed");
    // While the root's cluster is unknown, the job is asked for both, and keeps one.
    scene.tell(ManagerEvent::RootMoved { job: JobId(1), cluster: None });
    let out = scene.wait();
    assert_eq!(asked(&out), [(1, -2)]);
    scene.answer(1, change(&out, 1), 1);
    scene.freed(1, "a", 1);
    assert_eq!(scene.phase(1), Some(JobPhase::Shrinking), "the mandatory release is owed");
    let out =
        (0..9).map(|_| scene.wait()).find(|out| !out.is_empty()).expect("the release is overdue");
    assert!(matches!(&out[..], [.., ManagerAction::Force { count: 1, .. }]), "{out:?}");
    let kept = ManagerEvent::NotForced { job: JobId(1), cluster: "a".into(), count: 1 };
    scene.tell(ManagerEvent::RootMoved { job: JobId(1), cluster: Some("a".into()) });
    scene.tell(kept);
    assert_eq!((scene.phase(1), scene.size(1)), (Some(JobPhase::Running), 3));
}

#[test]
fn failed_request_is_retried_and_finally_refused() {
    for within in [None, Some(30 * SECOND)] {
        let mut scene = Scene::new(by(Approach::Waiting, Policy::Egs), &[("a", 4)]);
        scene.runs(1, "a", (2, 2, 4));
        let want = GrowthRequest {
            count: 2,
            timeout: within,
            clusters: BTreeSet::new(),
            excluded_clusters: BTreeSet::new(),
        };
        let mut out = scene.tell(ManagerEvent::GrowthRequested { job: JobId(1), want });
        if within.is_none() {
            out = scene.poll("a", 4, 0);
        }
        let [ManagerAction::Hold { change, count: 2, .. }] = out[..] else { panic!("{out:?}") };
        // A local user took the processors.
        let reason = "no".to_owned();
        let none = ManagerEvent::NotHeld { job: JobId(1), change, count: 2, reason };
        assert_eq!(scene.tell(none), [], "no immediate retry: another attempt would fail as well");
        assert_eq!(scene.phase(1), Some(JobPhase::Running));
        let out = scene.poll("a", 4, 0);
        assert!(matches!(out[..], [ManagerAction::Hold { count: 2, .. }]), "{out:?}");
        let [ManagerAction::Hold { change, .. }] = out[..] else { panic!() };
        let none =
            ManagerEvent::NotHeld { job: JobId(1), change, count: 2, reason: "no".to_owned() };
        scene.tell(none);
        if within.is_some() {
            let out = scene.wait();
            assert!(matches!(&out[..], [ManagerAction::Refuse { .. }]), "{out:?}");
        }
    }
}

#[test]
fn urgent_growth_respects_the_reserve() {
    let settings = ManagerSettings { reserve: 1, ..by(Approach::Waiting, Policy::Egs) };
    let mut scene = Scene::new(settings, &[("a", 4)]);
    scene.runs(1, "a", (1, 1, 4));
    scene.runs(2, "a", (1, 2, 2));
    let want = |count| GrowthRequest {
        count,
        timeout: Some(30 * SECOND),
        clusters: BTreeSet::new(),
        excluded_clusters: BTreeSet::new(),
    };
    // The idle processor is reserved for local users: the other job shrinks.
    let out = scene.tell(ManagerEvent::GrowthRequested { job: JobId(1), want: want(1) });
    assert_eq!(asked(&out), [(2, -1)]);
    scene.answer(2, change(&out, 2), 1);
    let out = scene.freed(2, "a", 1);
    assert!(matches!(out[..], [ManagerAction::Hold { count: 1, .. }]), "{out:?}");
    let mut scene = Scene::new(
        ManagerSettings { reserve: 1, ..by(Approach::Waiting, Policy::Egs) },
        &[("a", 4)],
    );
    scene.runs(1, "a", (1, 3, 4));
    let out = scene.tell(ManagerEvent::GrowthRequested { job: JobId(1), want: want(1) });
    assert!(matches!(&out[..], [ManagerAction::Refuse { .. }]), "{out:?}");
}

#[test]
fn missing_answer_is_no_refusal_and_released_processors_are_not_offered_again() {
    let mut scene = Scene::new(by(Approach::Waiting, Policy::EfficiencyAware), &[("a", 4)]);
    scene.runs(1, "a", (1, 1, 4));
    let out = scene.poll("a", 4, 0);
    let number = change(&out, 1);
    scene.tell(ManagerEvent::Answer { job: JobId(1), change: number, count: None });
    let out = scene.poll("a", 4, 0);
    assert_eq!(asked(&out), [(1, 3)]);
    let number = change(&out, 1);
    scene.answer(1, number, 2);
    scene.tell(ManagerEvent::Held { job: JobId(1), change: number, count: 2 });
    scene.tell(ManagerEvent::Grown { job: JobId(1), change: number, count: 2 });
    // It has no use for one of them.
    scene.tell(ManagerEvent::Freed {
        job: JobId(1),
        cluster: "a".into(),
        count: 1,
        voluntary: true,
    });
    scene.poll("a", 4, 1);
    let out = scene.poll("a", 4, 1);
    assert_eq!(asked(&out), [], "it has just released one");
    assert_eq!(asked(&scene.poll("a", 4, 0)), [(1, 2)], "a larger offer is possible");
}

#[test]
fn processors_freed_before_the_answer_count() {
    let mut scene = Scene::new(by(Approach::Waiting, Policy::Egs), &[("a", 4)]);
    scene.runs(1, "a", (1, 4, 4));
    let out = scene.submit(2, JobRequirements::one(Kind::Rigid, 2, 2, 2));
    assert_eq!(asked(&out), [(1, -2)]);
    let number = change(&out, 1);
    scene.freed(1, "a", 2);
    let out = scene.answer(1, number, 2);
    assert_eq!((scene.size(1), scene.phase(1)), (2, Some(JobPhase::Running)), "{out:?}");
}

#[test]
fn lost_processors_are_replaced_for_each_kind_of_job() {
    let mut scene = Scene::new(by(Approach::Waiting, Policy::Egs), &[("a", 4)]);
    scene.submit(1, JobRequirements::one(Kind::Rigid, 3, 3, 3));
    scene.claimed(1, "a", 3);
    scene.freed(1, "a", 1);
    let out = scene.poll("a", 4, 0);
    let [ManagerAction::Hold { change, count: 1, .. }] = out[..] else { panic!("{out:?}") };
    scene.tell(ManagerEvent::Held { job: JobId(1), change, count: 1 });
    scene.tell(ManagerEvent::Grown { job: JobId(1), change, count: 1 });
    assert_eq!(scene.size(1), 3);
    assert_eq!(scene.poll("a", 4, 0), []);
}

#[test]
fn jobs_may_decline_to_shrink_for_local_users() {
    let settings = |approach| ManagerSettings { reserve: 2, ..by(approach, Policy::Egs) };
    let mut scene = Scene::new(settings(Approach::Waiting), &[("a", 6)]);
    scene.runs(1, "a", (1, 2, 6));
    scene.runs(2, "a", (1, 2, 2));
    // A local user arrives: one of two reserved processors is left.
    let out = scene.poll("a", 6, 1);
    assert_eq!(asked(&out), [(2, -1)]);
    let must =
        |action: &ManagerAction| matches!(action, ManagerAction::Shrink { mandatory: true, .. });
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
    let measured =
        |efficiency| ManagerEvent::EfficiencyMeasured { job: JobId(1), efficiency, processors: 2 };
    scene.tell(measured(0.6));
    let out = scene.poll("a", 4, 0);
    scene.answer(1, change(&out, 1), 0);
    assert_eq!(asked(&scene.poll("a", 4, 0)), [], "it refused two");
    scene.tell(measured(0.62));
    assert_eq!(asked(&scene.poll("a", 4, 0)), []);
    scene.tell(measured(0.8));
    assert_eq!(asked(&scene.poll("a", 4, 0)), [(1, 2)]);
}

/// A rigid job keeps its processors until the replacements have joined.
#[test]
fn processors_that_will_be_taken_away_are_replaced_first() {
    let mut scene = Scene::new(ManagerSettings::default(), &[("a", 6)]);
    let need = JobRequirements::one(Kind::Rigid, 2, 2, 2);
    assert!(matches!(&scene.submit(1, need)[..], [ManagerAction::Claim { .. }]));
    scene.claimed(1, "a", 2);
    let planned = |count, unreplaced| {
        let (job, cluster) = (JobId(1), "a".into());
        ManagerEvent::RevocationsPlanned { job, cluster, count, unreplaced }
    };
    let (job, cluster) = (JobId(1), ClusterId::from("a"));
    let hold = ManagerAction::Hold { job, change: 1, cluster: cluster.clone(), count: 2 };
    assert_eq!(scene.tell(planned(2, 2)), [hold]);
    let why = scene.manager.job(job).unwrap().reason;
    assert_eq!(why, "2 of a to replace processors that will be taken away");
    let recruit = ManagerAction::Recruit { job, change: 1, cluster: cluster.clone(), count: 2 };
    assert_eq!(scene.tell(ManagerEvent::Held { job, change: 1, count: 2 }), [recruit]);
    assert_eq!(scene.tell(planned(2, 0)), []);
    assert_eq!(scene.tell(ManagerEvent::Grown { job, change: 1, count: 2 }), []);
    // The job has four processors for a while, and asks for no more.
    assert_eq!(scene.poll("a", 6, 0), []);
    for left in [1, 0] {
        assert_eq!(scene.tell(planned(left, 0)), []);
        assert_eq!(scene.freed(1, "a", 1), []);
    }
    assert_eq!(scene.poll("a", 6, 0), []);
    assert_eq!(scene.manager.job(job).unwrap().sizes, [(cluster, 2)].into());
}

/// Above its minimum, a malleable job gets replacements only from what growth may use.
#[test]
fn replacements_above_the_minimum_leave_the_reserve_to_local_users() {
    let settings = ManagerSettings { reserve: 2, ..ManagerSettings::default() };
    let mut scene = Scene::new(settings, &[("a", 8)]);
    scene.runs(1, "a", (2, 4, 4));
    let (job, cluster) = (JobId(1), ClusterId::from("a"));
    let planned =
        ManagerEvent::RevocationsPlanned { job, cluster: cluster.clone(), count: 3, unreplaced: 3 };
    // Four are free, two of which stay for local users; one lacks to the minimum.
    let hold = ManagerAction::Hold { job, change: 1, cluster, count: 2 };
    assert_eq!(scene.tell(planned), [hold]);
}
