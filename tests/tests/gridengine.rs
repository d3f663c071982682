//! The provider of batch jobs against a real Grid Engine: a small cell in namespaces of its own,
//! started for each test.
//!
//! If that is not possible the tests print the reason and pass.

use std::time::Duration;

use springtide_actors::provider::{Capacity, Provider, StubEvent};
use springtide_tests::gridengine::GridEngineLab;
use tokio::time::timeout;

use crate::batch::{
    BatchSite, LISTENS, LONG, STAYS, a_failed_program_reports_its_status, capacity_is, ended, fill,
    hold_and_release, leave_and_recruit, news, stop_and_continue,
};

/// A cell of one machine, with the site of its nodes.
struct GridEngineTest {
    lab: GridEngineLab,
    site: BatchSite,
}

impl GridEngineTest {
    /// Starts a cell; none, with the reason printed, if this machine does not allow it.
    fn start(slots: u32) -> Option<Self> {
        let lab = GridEngineLab::start(slots);
        let lab = lab.inspect_err(|skipped| println!("{skipped}")).ok()?;
        let section = format!(
            "provider = \"batch\"\n[cluster.batch]\npreset = \"gridengine\"\ncommands = {:?}\n\
             poll = \"500ms\"",
            lab.commands().display().to_string()
        );
        let site = BatchSite::new(section, lab.files());
        Some(Self { lab, site })
    }

    /// Slots in use, by Grid Engine.
    fn busy(&self) -> u32 {
        let queues = self.lab.user("qstat", &["-f"]);
        let queue = queues.lines().find(|line| line.starts_with("all.q@")).expect("a queue");
        queue.split('/').nth(1).and_then(|busy| busy.parse().ok()).expect("a number")
    }
}

#[actix_rt::test]
async fn a_processor_is_held_and_is_free_again() {
    let Some(cell) = GridEngineTest::start(4) else { return };
    hold_and_release(&cell.site, 4).await;
    assert_eq!(cell.busy(), 0);
}

#[actix_rt::test]
async fn ten_at_once_fit_and_others_wait_and_are_cancelled() {
    let Some(cell) = GridEngineTest::start(10) else { return };
    fill(&cell.site, 10, || cell.busy()).await;
}

#[actix_rt::test]
async fn slots_of_local_users_are_seen_and_deleted_stubs_end() {
    let Some(cell) = GridEngineTest::start(6) else { return };
    let (lab, site) = (&cell.lab, &cell.site);
    let provider = site.provider("missing_timeout = \"3s\"");
    let args = ["-b", "y", "-o", "/dev/null", "-j", "y", "-pe", "smp", "3", "sleep", "600"];
    lab.user("qsub", &args);
    capacity_is(&provider, 6, 3).await;
    let mut stub = site.hold(&provider, "vu-1").await;
    assert_eq!(news(&mut stub).await, StubEvent::Active);
    site.says("vu-1", "hello").await;
    lab.user("qdel", &[&stub.id().unwrap().0]);
    // Grid Engine kills a deleted job, and forgets it.
    let end = ended(&mut stub).await;
    assert!(end.status.ends_with("gone from the queue"), "{end:?}");
    drop(stub);
    capacity_is(&provider, 6, 3).await;
    a_failed_program_reports_its_status(site, &provider).await;
}

#[actix_rt::test]
async fn a_stub_that_was_left_is_found_and_gets_other_programs() {
    let Some(cell) = GridEngineTest::start(2) else { return };
    leave_and_recruit(&cell.site, || !cell.lab.user("qstat", &[]).is_empty()).await;
    assert_eq!(cell.busy(), 0);
}

#[actix_rt::test]
async fn a_hanging_master_ends_no_node_and_leaves_no_job() {
    let Some(cell) = GridEngineTest::start(3) else { return };
    stop_and_continue(&cell.site, |signal| cell.lab.signal_master(signal)).await;
    assert_eq!(cell.busy(), 0);
}

/// Options reach Grid Engine: a node of two threads gets two slots of one host, a time limit warns
/// it, and a prologue runs before it.
#[actix_rt::test]
async fn options_of_a_site_reach_grid_engine() {
    let Some(mut cell) = GridEngineTest::start(4) else { return };
    cell.site.threads = 2;
    let site = &cell.site;
    let provider = site.provider(
        "queue = \"all.q\"\ntime = \"60s\"\nleave_ahead = \"57s\"\nextra = [\"-p\", \"-7\"]\n\
         values = { parallel_environment = \"smp\" }\n\
         prologue = [\"GREETED=yes; export GREETED\"]",
    );
    assert_eq!(provider.poll().await.unwrap(), Some(Capacity { size: 2, others: 0 }));
    let program = "#!/bin/sh\necho \"greeted $GREETED\"\nexec sleep 600\n";
    let mut stub = provider.hold(&site.request("vu-1", program, "")).await.unwrap();
    assert_eq!(news(&mut stub).await, StubEvent::Active);
    site.says("vu-1", "greeted yes").await;
    let job = cell.lab.user("qstat", &["-j", &stub.id().unwrap().0]);
    for part in ["smp range: 2", "h_rt=60", "priority:                   -7"] {
        assert!(job.contains(part), "{part}: {job}");
    }
    assert_eq!(cell.busy(), 2);
    capacity_is(&provider, 2, 0).await;
    match news(&mut stub).await {
        StubEvent::Warned { reason, .. } => assert!(reason.contains("time limit"), "{reason}"),
        other => panic!("{other:?}"),
    }
    timeout(LONG, stub.release(Duration::ZERO)).await.unwrap();
    assert_eq!(cell.busy(), 0);
    // A queue that does not exist is refused with Grid Engine's reason.
    let provider = site.provider("queue = \"nosuch\"\nvalues = { parallel_environment = \"smp\" }");
    let Err(error) = provider.hold(&site.request("vu-2", LISTENS, "")).await else {
        panic!("it was submitted");
    };
    assert!(error.to_string().contains("unknown queue"), "{error}");
    // A node that does not end in order is killed.
    let provider = site.provider("values = { parallel_environment = \"smp\" }");
    let mut stub = provider.hold(&site.request("vu-3", STAYS, "hello")).await.unwrap();
    assert_eq!(news(&mut stub).await, StubEvent::Active);
    site.says("vu-3", "hello").await;
    timeout(LONG, stub.release(Duration::from_secs(2))).await.unwrap();
    assert_eq!((site.count("vu-3", "stays"), cell.busy()), (1, 0));
}
