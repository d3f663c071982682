//! The provider of batch jobs against a real Slurm: small clusters of this machine's own, started
//! for each test.
//!
//! If that is not possible the tests print the reason and pass.

use std::time::Duration;

use springtide_actors::provider::{Capacity, NodeRequest, Provider, StubEvent};
use springtide_tests::slurm::SlurmLab;
use tokio::time::{Instant, timeout};

use crate::batch::{
    BatchSite, LISTENS, LONG, STAYS, a_failed_program_reports_its_status, capacity_is, ended, fill,
    hold_and_release, leave_and_recruit, news, stop_and_continue,
};

/// A cluster of one machine, with the site of its nodes.
struct SlurmTest {
    lab: SlurmLab,
    site: BatchSite,
}

impl SlurmTest {
    /// Starts a cluster; none, with the reason printed, if this machine does not allow it.
    fn start(processors: u32) -> Option<Self> {
        let lab = SlurmLab::start(&[("vu", processors)]);
        let lab = lab.inspect_err(|skipped| println!("{skipped}")).ok()?;
        let section = format!(
            "provider = \"slurm\"\n[cluster.slurm]\nconf = {:?}\npoll = \"500ms\"",
            lab.conf("vu").display().to_string()
        );
        let site = BatchSite::new(section, lab.files("vu"));
        Some(Self { lab, site })
    }

    /// Processors in use, by Slurm.
    fn busy(&self) -> u32 {
        let counts = self.lab.user("vu", "sinfo", &["--noheader", "--format=%C"]);
        counts.split('/').next().and_then(|busy| busy.trim().parse().ok()).expect("a number")
    }
}

#[actix_rt::test]
async fn a_processor_is_held_and_is_free_again() {
    let Some(cluster) = SlurmTest::start(6) else { return };
    // Its machine claims to have 100,000 MiB.
    let large = cluster.site.provider("memory = \"40000MiB\"");
    assert_eq!(large.poll().await.unwrap(), Some(Capacity { size: 2, others: 0 }));
    hold_and_release(&cluster.site, 6).await;
    assert_eq!(cluster.busy(), 0);
}

#[actix_rt::test]
async fn twenty_at_once_fit_and_others_wait_and_are_cancelled() {
    let Some(cluster) = SlurmTest::start(20) else { return };
    fill(&cluster.site, 20, || cluster.busy()).await;
}

#[actix_rt::test]
async fn processors_of_local_users_are_seen_and_cancelled_stubs_end() {
    let Some(cluster) = SlurmTest::start(6) else { return };
    let (lab, site) = (&cluster.lab, &cluster.site);
    let provider = site.provider("");
    let args = ["--parsable", "-n1", "-c3", "--output=/dev/null", "--wrap=exec sleep 600"];
    let job = lab.user("vu", "sbatch", &args);
    capacity_is(&provider, 6, 3).await;
    let mut stub = site.hold(&provider, "vu-1").await;
    assert_eq!(news(&mut stub).await, StubEvent::Active);
    assert_eq!(provider.poll().await.unwrap(), Some(Capacity { size: 6, others: 3 }));
    site.says("vu-1", "hello").await;
    lab.user("vu", "scancel", &[&stub.id().unwrap().0]);
    let end = ended(&mut stub).await;
    assert!(end.status.ends_with("cancelled"), "{end:?}");
    // The node was ended once, so that it left in order.
    assert_eq!(site.count("vu-1", "leaves"), 1, "{}", site.log("vu-1"));
    drop(stub);
    // Other jobs continue.
    assert_eq!(lab.user("vu", "squeue", &["--noheader", "--format=%i %t"]), format!("{job} R"));
    a_failed_program_reports_its_status(site, &provider).await;
}

#[actix_rt::test]
async fn a_stub_that_was_left_is_found_and_gets_other_programs() {
    let Some(cluster) = SlurmTest::start(2) else { return };
    let site = &cluster.site;
    leave_and_recruit(site, || !cluster.lab.user("vu", "squeue", &["--noheader"]).is_empty()).await;
    // Slurm ends a dropped stub in order.
    assert_eq!(site.count("vu-1", "leaves"), 2, "{}", site.log("vu-1"));

    // A later site may have other paths: the job's comment has those of the submission.
    let provider = site.provider("");
    let mut stub = site.hold(&provider, "vu-2").await;
    assert_eq!(news(&mut stub).await, StubEvent::Active);
    site.says("vu-2", "hello").await;
    stub.leave();
    let listed = provider.list().await.unwrap();
    let request = site.request("vu-2", LISTENS, "second");
    let request = NodeRequest { config: site.path("elsewhere.toml"), ..request };
    let mut stub = provider.adopt(&listed[0], &request).await.unwrap();
    timeout(LONG, stub.recruit(&request, LONG)).await.unwrap().unwrap();
    site.says("vu-2", "second node run").await;
    timeout(LONG, stub.release(LONG)).await.unwrap();
}

#[actix_rt::test]
async fn a_job_that_loses_its_processor_is_warned_and_then_killed() {
    let Some(cluster) = SlurmTest::start(2) else { return };
    let provider = cluster.site.provider("time = \"60s\"\nleave_ahead = \"56s\"");
    let request = cluster.site.request("vu-1", STAYS, "hello");
    let mut stub = provider.hold(&request).await.unwrap();
    assert_eq!(news(&mut stub).await, StubEvent::Active);
    match news(&mut stub).await {
        StubEvent::Warned { within, reason } => {
            assert!(within <= Duration::from_secs(56) && reason.contains("time"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    let end = timeout(LONG, stub.release(Duration::ZERO)).await.unwrap();
    assert!(!end.status.contains("time limit"), "{end:?}");
    assert_eq!(cluster.busy(), 0);
}

#[actix_rt::test]
async fn a_hanging_controller_ends_no_node_and_leaves_no_job() {
    let Some(cluster) = SlurmTest::start(3) else { return };
    stop_and_continue(&cluster.site, |signal| cluster.lab.signal_controller("vu", signal)).await;
    assert_eq!(cluster.busy(), 0);
}

/// Options reach Slurm: a node gets its processors and its memory, and a prologue runs before it.
#[actix_rt::test]
async fn options_of_a_site_reach_slurm() {
    let Some(mut cluster) = SlurmTest::start(6) else { return };
    cluster.site.threads = 3;
    let site = &cluster.site;
    let provider = site.provider(
        "mem_per_cpu = \"100MiB\"\nextra = [\"--nice=7\"]\n\
         prologue = [\"GREETED=yes; export GREETED\"]",
    );
    let program = "#!/bin/sh\necho \"greeted $GREETED\"\nexec sleep 600\n";
    let mut stub = provider.hold(&site.request("vu-1", program, "")).await.unwrap();
    assert_eq!(news(&mut stub).await, StubEvent::Active);
    site.says("vu-1", "greeted yes").await;
    let id = stub.id().unwrap().0;
    let job = cluster.lab.user("vu", "scontrol", &["--oneliner", "show", "job", &id]);
    for part in ["NumCPUs=3 ", "CPUs/Task=3", "MinMemoryCPU=100M", "Nice=7"] {
        assert!(job.contains(part), "{part}: {job}");
    }
    assert_eq!(provider.poll().await.unwrap(), Some(Capacity { size: 2, others: 0 }));
    timeout(LONG, stub.release(Duration::ZERO)).await.unwrap();
    // A resource that the cluster does not have is refused with Slurm's reason.
    let provider = site.provider("gres = \"gpu:1\"");
    let Err(error) = provider.hold(&site.request("vu-2", LISTENS, "")).await else {
        panic!("it was submitted");
    };
    assert!(error.to_string().contains("gres"), "{error}");
}

/// The time to hold a processor, and to run another program in one that is held: `cargo test -p
/// springtide-tests --test all slurm::measured -- --ignored --nocapture`.
#[actix_rt::test]
#[ignore = "a measurement; its command is in its comment"]
async fn measured() {
    const TIMES: usize = 10;
    let Some(cluster) = SlurmTest::start(4) else { return };
    let site = &cluster.site;
    let provider = site.provider("");
    let median = |what: &str, times: &mut Vec<Duration>| {
        times.sort();
        let median = (times[TIMES / 2 - 1] + times[TIMES / 2]) / 2;
        let all: Vec<u128> = times.iter().map(Duration::as_millis).collect();
        println!("{what} median {} ms of {all:?}", median.as_millis());
        median
    };
    let (mut active, mut runs, mut freed) = (Vec::new(), Vec::new(), Vec::new());
    for i in 0..TIMES {
        let word = format!("held {i}, ");
        let request = site.request("vu-1", LISTENS, &word);
        let begun = Instant::now();
        let mut stub = provider.hold(&request).await.unwrap();
        let (is_active, ()) = tokio::join!(
            async {
                assert_eq!(news(&mut stub).await, StubEvent::Active);
                begun.elapsed()
            },
            async {
                site.says("vu-1", &word).await;
                runs.push(begun.elapsed());
            }
        );
        active.push(is_active);
        let begun = Instant::now();
        stub.release(LONG).await;
        freed.push(begun.elapsed());
    }
    median("hold, until it is known to be active:", &mut active);
    let fresh = median("hold, until its program runs:        ", &mut runs);
    median("release, until the processor is free:", &mut freed);

    let mut stub = provider.hold(&site.request("vu-1", LISTENS, "first")).await.unwrap();
    assert_eq!(news(&mut stub).await, StubEvent::Active);
    site.says("vu-1", "first").await;
    let mut recruited = Vec::new();
    for i in 0..TIMES {
        let word = format!("recruited {i}, ");
        let begun = Instant::now();
        stub.recruit(&site.request("vu-1", LISTENS, &word), LONG).await.unwrap();
        site.says("vu-1", &word).await;
        recruited.push(begun.elapsed());
    }
    let recruited = median("recruit, until the program runs:     ", &mut recruited);
    stub.release(LONG).await;
    // The purpose of recruiting. On a busy machine one such time is not significant, and ten are.
    assert!(recruited < fresh, "{recruited:?} to recruit, {fresh:?} to hold again");
}
