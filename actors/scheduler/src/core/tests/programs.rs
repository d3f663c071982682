//! Jobs that bring their programs.

use super::managed::needs;
use super::*;
use crate::manager::Kind;
use crate::program::{
    ProgramDigest, ProgramError, ProgramImage, ProgramReport, ProgramState, ProgramTarget,
};
use crate::scheduler::{StubLoss, StubLossKind};

/// Fingerprint of the program that jobs bring.
const BROUGHT: u64 = 8;

fn image(n: u8) -> ProgramImage {
    let target = ProgramTarget { machine: 62, bits: 64, little_endian: true };
    let digest = ProgramDigest([n; 32]);
    ProgramImage { name: format!("p{n}"), digest, bytes: 40_000_000, target, interpreter: None }
}

/// A submission of all nodes of ams that brings this program.
fn brings(n: u8) -> Submit {
    Submit { image: Some(image(n)), ..submit(Some(&[("ams", 2)]), BROUGHT, Some("/home/me/p")) }
}

fn moldable(n: u8) -> Submit {
    Submit { image: Some(image(n)), fingerprint: BROUGHT, ..needs(Kind::Rigid, 2, 2) }
}

fn site(cluster: &str, keep_ms: Option<u64>) -> SiteRegistration {
    SiteRegistration {
        threads: 1,
        hosts: Vec::new(),
        shares: Default::default(),
        joins: false,
        cluster: cluster.into(),
        nodes: (1..=2).map(|n| format!("{cluster}-{n}").into()).collect(),
        starts_programs: false,
        receives_programs: true,
        keep_ms,
        stubs: BTreeSet::new(),
        files: false,
        at: None,
    }
}

impl CoreTestGrid {
    /// A cluster whose site receives programs, as those of ssh do.
    fn receiving() -> Self {
        let mut grid = Self::of(2, OURS);
        grid.put(SchedulerEvent::SiteUp(site("ams", None)));
        grid
    }

    fn report_program(&mut self, n: u8, state: ProgramState) -> Vec<String> {
        self.report_of("ams", n, state)
    }

    fn report_of(&mut self, cluster: &str, n: u8, state: ProgramState) -> Vec<String> {
        let (cluster, digest) = (cluster.into(), ProgramDigest([n; 32]));
        self.put(SchedulerEvent::ProgramReported(ProgramReport { cluster, digest, state }))
    }

    /// A node registers with a program that a job brought.
    fn runs(&mut self, node: &str, incarnation: u64, n: u8) -> Vec<String> {
        self.put(SchedulerEvent::Registered(NodeRegistration {
            fingerprint: BROUGHT,
            program: Some(ProgramDigest([n; 32])),
            ..registration(node, incarnation)
        }))
    }

    fn waits_for(&self, job: u64) -> String {
        let status = self.core.status();
        let job = status.jobs.iter().find(|known| known.job == JobId(job)).unwrap();
        job.waits_for.clone().unwrap_or_default()
    }
}

const SENDING: ProgramState = ProgramState::Sending { received: 12_000_000, bytes: 40_000_000 };
const READY: ProgramState = ProgramState::Ready { bytes: 40_000_000, millis: 2000 };

fn cannot_run() -> ProgramState {
    cannot_run_in("ams")
}

fn cannot_run_in(cluster: &str) -> ProgramState {
    let (name, node) = ("p1".to_owned(), format!("{cluster}-1").into());
    let reason = "its process ended (exit status: 127)".to_owned();
    let cluster = cluster.into();
    ProgramState::Failed { error: ProgramError::CannotRun { name, cluster, node, reason } }
}

#[test]
fn a_job_starts_once_its_program_has_come() {
    let mut grid = CoreTestGrid::receiving();
    let out = grid.submit(brings(1));
    assert_eq!(out, ["replace ams [ams-1, ams-2] /home/me/p p1"]);
    grid.report_program(1, SENDING);
    let waits = grid.waits_for(1);
    assert!(waits.contains("sending program (12 of 40 MB) to cluster ams"), "{waits}");
    let line = grid.core.wait_of(&"client-1".into());
    assert_eq!(line.as_deref(), Some("sending program (12 of 40 MB) to cluster ams"));
    grid.report_program(1, READY);
    assert!(!grid.waits_for(1).contains("sending"));
    assert_eq!(grid.core.clusters_with(ProgramDigest([1; 32])), ["ams".into()]);
    assert_eq!(grid.runs("ams-1", 2, 1), [""; 0]);
    assert_eq!(grid.runs("ams-2", 2, 1), ["assign job-1 ams-1", "assign job-1 ams-2"]);
    // Another version of the program has the same registry, and is another program.
    grid.accept(1, &["ams-1", "ams-2"]);
    grid.over(1);
    grid.released(1, "ams-1", true);
    grid.released(1, "ams-2", true);
    assert_eq!(grid.submit(brings(2)), ["replace ams [ams-1, ams-2] /home/me/p p2"]);
}

#[test]
fn a_site_that_receives_no_programs_refuses_the_job() {
    let mut grid = CoreTestGrid::of(2, OURS);
    let registration = SiteRegistration { receives_programs: false, ..site("ams", None) };
    grid.put(SchedulerEvent::SiteUp(registration));
    let out = grid.submit(brings(1));
    assert!(
        out[0].starts_with("refuse job-1: the job cannot be placed: node ams-1 runs"),
        "{out:?}"
    );
}

#[test]
fn a_program_that_cannot_run_ends_its_jobs_with_the_reason() {
    let mut grid = CoreTestGrid::receiving();
    grid.submit(brings(1));
    grid.report_program(1, SENDING);
    // A transfer that no order needs any longer is not a reason.
    let error = ProgramError::Cancelled { name: "p1".to_owned() };
    assert_eq!(grid.report_program(1, ProgramState::Failed { error }), [""; 0]);
    assert!(!grid.waits_for(1).contains("sending"));
    let out = grid.report_program(1, cannot_run());
    let text = "refuse job-1: the job cannot be placed: p1 cannot run as a node of cluster ams: \
                node ams-1: its process ended (exit status: 127)";
    assert_eq!(out, [text]);
    assert!(grid.core.status().jobs.is_empty());
    // The nodes return with the program of their site, and serve others.
    grid.register("ams-1", 2, OURS);
    grid.register("ams-2", 2, OURS);
    let out = grid.submit(submit(Some(&[("ams", 2)]), OURS, None));
    assert_eq!(out, ["assign job-2 ams-1", "assign job-2 ams-2"]);
}

#[test]
fn a_site_that_restarts_gets_its_order_again() {
    let mut grid = CoreTestGrid::receiving();
    grid.submit(brings(1));
    grid.report_program(1, SENDING);
    grid.put(SchedulerEvent::SiteUp(site("ams", None)));
    assert!(!grid.waits_for(1).contains("sending program"), "{}", grid.waits_for(1));
    // Its nodes start with its own program first.
    let out = ["ams-1", "ams-2"].map(|node| grid.register(node, 2, OURS).concat());
    assert_eq!(out, ["ams-1", "ams-2"].map(|node| format!("replace ams [{node}] /home/me/p p1")));
}

#[test]
fn a_managed_job_waits_for_its_program_and_is_refused_with_it() {
    let mut grid = CoreTestGrid::of(0, OURS);
    grid.put(SchedulerEvent::SiteUp(site("ams", Some(1000))));
    let found = crate::scheduler::SiteReport { cluster: "ams".into(), found: Ok((2, 0)) };
    grid.put(SchedulerEvent::SitePolled(found));
    assert_eq!(grid.submit(moldable(1)), ["hold ams [ams-1, ams-2] p1"]);
    grid.report_program(1, SENDING);
    assert_eq!(grid.waits_for(1), "sending program (12 of 40 MB) to cluster ams");
    // As long as bytes arrive, its nodes are not late.
    let late = grid.core.managing.hold_timeout;
    for _ in 0..3 {
        grid.now += late * 2 / 3;
        grid.report_program(1, SENDING);
        assert_eq!(grid.put(SchedulerEvent::Tick), [""; 0]);
    }
    let detail = grid.core.detail(JobId(1), grid.now).unwrap();
    let lines: Vec<&str> = detail.history.iter().map(|(_, line)| line.as_str()).collect();
    assert!(lines.iter().any(|line| line.starts_with("sending program")), "{lines:?}");
    let out = grid.report_program(1, cannot_run());
    assert!(out.iter().any(|line| line.starts_with("refuse job-1: ")), "{out:?}");
    for node in ["ams-1", "ams-2"] {
        let (node, reason, kind) = (node.into(), "no program".to_owned(), StubLossKind::NoProgram);
        grid.put(SchedulerEvent::StubGone(StubLoss { node, reason, kind }));
    }
    assert_eq!((grid.state("ams-1"), grid.state("ams-2")), (NodeState::Off, NodeState::Off));
    // What a program lacks says nothing about the capacity of its cluster.
    assert_eq!(grid.submit(moldable(2)), ["hold ams [ams-1, ams-2] p2"]);
}

#[test]
fn a_job_for_all_nodes_does_without_a_cluster_that_refuses_its_program() {
    let mut grid = CoreTestGrid::of(2, OURS);
    for cluster in ["ams", "del"] {
        grid.put(SchedulerEvent::SiteUp(site(cluster, None)));
    }
    let out = grid.submit(Submit { clusters: None, ..brings(1) });
    let replaced =
        |cluster: &str| format!("replace {cluster} [{cluster}-1, {cluster}-2] /home/me/p p1");
    assert_eq!(out, ["ams", "del"].map(replaced));
    assert_eq!(grid.report_program(1, cannot_run()), [""; 0]);
    // Its nodes return with the program of the grid.
    for node in ["ams-1", "ams-2"] {
        grid.register(node, 2, OURS);
    }
    assert_eq!(grid.runs("del-1", 2, 1), [""; 0]);
    assert_eq!(grid.runs("del-2", 2, 1), ["assign job-1 del-1", "assign job-1 del-2"]);
    // If all refuse it, the job ends with the reason.
    let out = grid.submit(Submit { clusters: None, ..brings(2) });
    assert_eq!(out, [replaced("ams").replace("p1", "p2")]);
    grid.report_program(2, cannot_run());
    grid.accept(1, &["del-1", "del-2"]);
    grid.over(1);
    grid.released(1, "del-1", true);
    grid.released(1, "del-2", true);
    let out = grid.report_of("del", 2, cannot_run_in("del"));
    assert!(out.iter().any(|line| line.starts_with("refuse job-2: ")), "{out:?}");
}

#[test]
fn a_managed_job_starts_in_another_cluster_than_one_that_refuses_its_program() {
    let mut grid = CoreTestGrid::of(0, OURS);
    for cluster in ["ams", "del"] {
        grid.put(SchedulerEvent::SiteUp(site(cluster, Some(1000))));
        let found = crate::scheduler::SiteReport { cluster: cluster.into(), found: Ok((2, 0)) };
        grid.put(SchedulerEvent::SitePolled(found));
    }
    assert_eq!(grid.submit(moldable(1)), ["hold ams [ams-1, ams-2] p1"]);
    let out = grid.report_program(1, cannot_run());
    assert!(!out.iter().any(|line| line.starts_with("refuse")), "{out:?}");
    let mut out = Vec::new();
    for node in ["ams-1", "ams-2"] {
        let (node, reason, kind) = (node.into(), "no program".to_owned(), StubLossKind::NoProgram);
        out.extend(grid.put(SchedulerEvent::StubGone(StubLoss { node, reason, kind })));
    }
    grid.now += Duration::from_secs(60);
    out.extend(grid.put(SchedulerEvent::Tick));
    assert!(out.contains(&"hold del [del-1, del-2] p1".to_owned()), "{out:?}");
    let lines = |grid: &CoreTestGrid| -> Vec<String> {
        let detail = grid.core.detail(JobId(1), grid.now).unwrap();
        detail.history.into_iter().map(|(_, line)| line).collect()
    };
    let why = "could not be started: p1 cannot run as a node of cluster ams: node ams-1: its \
               process ended (exit status: 127)";
    assert!(lines(&grid).iter().any(|line| line == why), "{:?}", lines(&grid));
    // The last cluster that refuses it ends the job.
    let out = grid.report_of("del", 1, cannot_run_in("del"));
    assert!(out.iter().any(|line| line.starts_with("refuse job-1: ")), "{out:?}");
}
