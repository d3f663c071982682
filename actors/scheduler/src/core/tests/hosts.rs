//! Clusters of hosts: nodes as large as jobs need.

use std::time::Duration;

use super::managed::needs;
use super::*;
use crate::manager::Kind;
use crate::policy::malleability::{HostCapacity, HostShare, NodeNeeds};
use crate::scheduler::{StubLoss, StubLossKind};

const MIB: u64 = 1 << 20;

impl CoreTestGrid {
    /// A cluster vu of hosts with these processors, and 1 GiB of memory for each of them.
    fn on_hosts(processors: &[u32]) -> Self {
        let mut grid = Self {
            core: SchedulerCore::new(contact("head"), ManagerSettings::default(), Instant::now()),
            jobs: 0,
            now: Instant::now(),
            noted: Vec::new(),
        };
        let host = |(index, &processors): (usize, &u32)| HostCapacity {
            host: format!("n{}", index + 1),
            processors,
            memory: u64::from(processors) * 1024 * MIB,
            ..HostCapacity::default()
        };
        let all: u32 = processors.iter().sum();
        grid.put(SchedulerEvent::SiteUp(SiteRegistration {
            threads: 0,
            hosts: processors.iter().enumerate().map(host).collect(),
            shares: BTreeMap::new(),
            joins: false,
            cluster: "vu".into(),
            nodes: (1..=all).map(|n| format!("vu-{n:02}").into()).collect(),
            starts_programs: true,
            keep_ms: Some(5000),
            stubs: BTreeSet::new(),
            files: false,
            at: None,
            receives_programs: false,
        }));
        grid
    }

    fn share(&self, node: &str) -> HostShare {
        self.core.nodes[&NodeId::from(node)].share.clone().expect("it has a share")
    }

    /// A node registers with the threads of its share.
    fn comes(&mut self, node: &str, incarnation: u64) -> Vec<String> {
        let threads = self.share(node).processors.len() as u32;
        self.put(SchedulerEvent::Registered(NodeRegistration {
            cluster: "vu".into(),
            node: node.into(),
            incarnation: Incarnation(incarnation),
            address: Address::Memory,
            threads,
            fingerprint: OURS,
            pid: 1,
            hardware: Hardware::default(),
            work: None,
            program: None,
        }))
    }

    fn ends(&mut self, node: &str, kind: StubLossKind) -> Vec<String> {
        let reason = "exit status: 7".to_owned();
        self.put(SchedulerEvent::StubGone(StubLoss { node: node.into(), reason, kind }))
    }

    fn booked(&self) -> u32 {
        self.core.managing.booked(&"vu".into())
    }
}

fn with_node(processors: u32, memory: u64, submit: Submit) -> Submit {
    let mut submit = submit;
    let node = NodeNeeds { processors, memory, ..NodeNeeds::default() };
    submit.need.as_mut().expect("it is managed").node = node;
    submit
}

#[test]
fn a_job_gets_one_large_node_and_an_idle_node_makes_room() {
    let mut grid = CoreTestGrid::on_hosts(&[8, 4]);
    assert_eq!(grid.submit(needs(Kind::Rigid, 3, 3)), ["hold vu [vu-01]"]);
    let share = grid.share("vu-01");
    assert_eq!((share.host.as_str(), share.processors.len()), ("n2", 3), "the smallest host");
    assert_eq!(grid.comes("vu-01", 1), ["assign job-1 vu-01"]);
    grid.accept(1, &["vu-01"]);
    assert_eq!(grid.booked(), 3);
    // Nine processors are left, on two hosts.
    assert_eq!(grid.submit(needs(Kind::Rigid, 9, 9)), ["hold vu [vu-02, vu-03]"]);
    assert_eq!(grid.booked(), 12);
    grid.comes("vu-02", 1);
    grid.comes("vu-03", 1);
    grid.accept(2, &["vu-02", "vu-03"]);
    // A node that fits is used again; otherwise it ends in favour of another.
    grid.over(1);
    grid.released(1, "vu-01", true);
    assert_eq!(grid.submit(needs(Kind::Rigid, 3, 3)), ["assign job-3 vu-01"]);
    grid.accept(3, &["vu-01"]);
    grid.over(3);
    grid.released(3, "vu-01", true);
    assert_eq!(grid.submit(needs(Kind::Rigid, 2, 2)), ["close vu [vu-01]", "hold vu [vu-04]"]);
    assert_eq!(grid.share("vu-04").processors.len(), 2);
}

#[test]
fn needs_of_nodes_decide_where_a_job_fits() {
    let mut grid = CoreTestGrid::on_hosts(&[4, 4]);
    // It could run on two hosts, and needs one.
    let never = grid.submit(with_node(6, 0, needs(Kind::Rigid, 6, 6)));
    let expected = "has 0 processors for nodes with at least 6 processors each, 6 are needed";
    assert!(never.iter().any(|line| line.contains(expected)), "{never:?}");
    // Three processors with 2 GiB each leave no memory for the fourth of the host.
    assert_eq!(
        grid.submit(with_node(0, 2048 * MIB, needs(Kind::Rigid, 2, 2))),
        ["hold vu [vu-01]"]
    );
    assert_eq!(grid.share("vu-01").memory, 4096 * MIB);
    assert_eq!(grid.submit(with_node(4, 0, needs(Kind::Rigid, 4, 4))), ["hold vu [vu-02]"]);
    assert_ne!(grid.share("vu-01").host, grid.share("vu-02").host);
    assert_eq!(grid.submit(with_node(0, 1024 * MIB, needs(Kind::Rigid, 1, 1))), [""; 0]);
}

#[test]
fn a_malleable_jobs_first_node_is_as_small_as_the_job_may_be() {
    let mut grid = CoreTestGrid::on_hosts(&[8]);
    let mut submit = needs(Kind::Malleable, 2, 8);
    submit.need.as_mut().expect("it is managed").components[0].max_at_start = 6;
    assert_eq!(grid.submit(submit), ["hold vu [vu-01, vu-02]"]);
    let sizes = ["vu-01", "vu-02"].map(|node| grid.share(node).processors.len());
    assert_eq!(sizes, [2, 4]);
}

#[test]
fn a_node_that_exceeds_its_memory_is_followed_by_a_larger_one() {
    let mut grid = CoreTestGrid::on_hosts(&[4]);
    assert_eq!(grid.submit(needs(Kind::Rigid, 1, 1)), ["hold vu [vu-01]"]);
    for (life, memory) in [(1, 1024), (2, 2048), (3, 4096)] {
        assert_eq!(grid.share("vu-01").memory, memory * MIB, "life {life}");
        grid.comes("vu-01", life);
        grid.accept(1, &["vu-01"]);
        let out = grid.ends("vu-01", StubLossKind::OutOfMemory);
        assert!(out.iter().any(|line| line.contains("epoch after")), "life {life}: {out:?}");
        let epoch = Epoch(life as u32 + 1);
        let out = grid.put(SchedulerEvent::EpochIssued { job: JobId(1), epoch });
        let out = [out, grid.after(ManagerSettings::default().scan_interval)].concat();
        assert!(out.contains(&"hold vu [vu-01]".to_owned()), "life {life}: {out:?}");
    }
    let history = grid.core.managing.history(JobId(1), grid.now);
    let lines: Vec<&str> = history.iter().map(|(_, line)| line.as_str()).collect();
    let raised = "a node exceeded its memory: the next ones get 4096 MiB for each processor";
    assert!(lines.contains(&raised), "{lines:#?}");
}

#[test]
fn a_host_on_which_no_node_starts_is_left_out_for_a_time() {
    let mut grid = CoreTestGrid::on_hosts(&[2, 2]);
    assert_eq!(grid.submit(needs(Kind::Rigid, 2, 2)), ["hold vu [vu-01]"]);
    let first = grid.share("vu-01").host;
    let mut out = grid.ends("vu-01", StubLossKind::Ended);
    out.extend(grid.after(ManagerSettings::default().scan_interval));
    assert_eq!(out, ["hold vu [vu-01]"]);
    assert_ne!(grid.share("vu-01").host, first, "the other host");
    // Both are needed now.
    assert_eq!(grid.submit(needs(Kind::Rigid, 2, 2)), ["hold vu [vu-02]"]);
    assert_eq!(grid.share("vu-02").host, first, "it is tried again after two seconds");
    grid.ends("vu-02", StubLossKind::Ended);
    grid.after(Duration::from_millis(10));
    let why = grid.reason_to_wait(2);
    assert!(why.contains(&format!("host {first} of vu is left out")), "{why}");
}

#[test]
fn a_job_with_needs_starts_soon_after_a_node_of_a_fixed_size_is_free() {
    let mut grid = CoreTestGrid::of(1, OURS);
    for (job, node) in [(1, "ams-1"), (2, "del-1")] {
        assert_eq!(grid.submit(needs(Kind::Rigid, 1, 1)), [format!("assign job-{job} {node}")]);
        grid.accept(job, &[node]);
    }
    assert_eq!(grid.submit(with_node(0, MIB, needs(Kind::Rigid, 1, 1))), [""; 0]);
    grid.over(1);
    grid.released(1, "ams-1", true);
    let soon = Duration::from_secs(1);
    assert!(soon < ManagerSettings::default().poll_interval);
    assert_eq!(grid.after(soon), ["assign job-3 ams-1"]);
}
