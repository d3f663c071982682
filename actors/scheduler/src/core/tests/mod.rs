//! Histories of jobs that wait, run and end. Other files test requests, drains and random
//! histories.

mod choice;
mod crowded;
mod dependencies;
mod drains;
mod files;
mod histories;
mod hosts;
mod joined;
mod managed;
mod poison;
mod programs;
mod quotas;
mod races;
mod recover;
mod requests;
mod reserve;
mod sites;
mod standing;
mod starts;
mod stub_histories;
mod stubs;
mod table;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use springtide_base::id::Incarnation;
use springtide_net::net::Address;

use springtide_metrics::BenchmarkSpec;

use super::*;
use crate::hardware::Hardware;
use crate::job::{AssignError, JobParams};
use crate::scheduler::{
    Drain, HandOver, MemberSilent, NodeRegistration, NodeState, SiteRegistration,
};

const OURS: u64 = 7;

fn contact(name: &str) -> Contact {
    Contact { node: name.into(), cluster: "head".into(), address: Address::Memory }
}

fn submit(clusters: Option<&[(&str, u32)]>, fingerprint: u64, program: Option<&str>) -> Submit {
    Submit {
        name: "fib".into(),
        body: bytes::Bytes::new(),
        fingerprint,
        params: JobParams::default(),
        clusters: clusters.map(|all| all.iter().map(|&(name, n)| (name.into(), n)).collect()),
        client: contact("client-1"),
        program: program.map(PathBuf::from),
        need: None,
        principal: None,
        image: None,
    }
}

struct CoreTestGrid {
    core: SchedulerCore,
    jobs: u64,
    now: Instant,
    /// Actions that the store executes.
    noted: Vec<String>,
}

/// A node with one thread and the grid's own program. Its cluster is the part of the name before
/// the hyphen.
fn registration(node: &str, incarnation: u64) -> NodeRegistration {
    let (cluster, _) = node.split_once('-').unwrap();
    NodeRegistration {
        cluster: cluster.into(),
        node: node.into(),
        incarnation: Incarnation(incarnation),
        address: Address::Memory,
        threads: 1,
        fingerprint: OURS,
        pid: 1,
        hardware: Hardware::default(),
        work: None,
        program: None,
    }
}

impl CoreTestGrid {
    /// Creates clusters ams and del of `nodes` nodes each, all registered with program
    /// `fingerprint`.
    fn of(nodes: usize, fingerprint: u64) -> Self {
        let mut grid = Self {
            core: SchedulerCore::new(contact("head"), ManagerSettings::default(), Instant::now()),
            jobs: 0,
            now: Instant::now(),
            noted: Vec::new(),
        };
        for cluster in ["ams", "del"] {
            let names: Vec<NodeId> = (1..=nodes).map(|n| format!("{cluster}-{n}").into()).collect();
            grid.site(cluster, &names, None);
            for name in names {
                grid.register(name.as_str(), 1, fingerprint);
            }
        }
        grid
    }

    /// Registers a site. `keep_ms`: its processors are held on demand.
    fn site(&mut self, cluster: &str, nodes: &[NodeId], keep_ms: Option<u64>) -> Vec<String> {
        self.put(SchedulerEvent::SiteUp(SiteRegistration {
            threads: 1,
            hosts: Vec::new(),
            shares: Default::default(),
            joins: false,
            cluster: cluster.into(),
            nodes: nodes.to_vec(),
            starts_programs: true,
            keep_ms,
            stubs: BTreeSet::new(),
            files: false,
            at: None,
            receives_programs: false,
        }))
    }

    fn put(&mut self, event: SchedulerEvent) -> Vec<String> {
        // Actions that write to disk.
        let noted = |action: &&SchedulerAction| {
            use SchedulerAction::{Forget, Limit, Restart, StoreDrain, StoreStart};
            matches!(
                action,
                Restart { .. }
                    | StoreStart { .. }
                    | Forget { .. }
                    | Limit { .. }
                    | StoreDrain { .. }
            )
        };
        let actions = self.core.handle(event, self.now);
        self.noted.extend(actions.iter().filter(noted).map(text));
        // Audits depend on time only, and have tests of their own.
        let output = |action: &&SchedulerAction| {
            !noted(action) && !matches!(action, SchedulerAction::Audit { .. })
        };
        actions.iter().filter(output).map(text).collect()
    }

    fn register(&mut self, node: &str, incarnation: u64, fingerprint: u64) -> Vec<String> {
        let registration = registration(node, incarnation);
        self.put(SchedulerEvent::Registered(NodeRegistration { fingerprint, ..registration }))
    }

    fn submit(&mut self, submit: Submit) -> Vec<String> {
        self.jobs += 1;
        let (job, epoch) = (JobId(self.jobs), Epoch(1));
        self.put(SchedulerEvent::Submit { job, epoch, submit: Box::new(submit) })
    }

    fn accept(&mut self, job: u64, nodes: &[&str]) -> Vec<String> {
        let mut out = Vec::new();
        for &node in nodes {
            out.extend(self.answer_assign(job, node, Ok(())));
        }
        out
    }

    /// A worker answers the last assignment of a job.
    fn answer_assign(
        &mut self,
        job: u64,
        node: &str,
        answer: Result<(), AssignError>,
    ) -> Vec<String> {
        let job = JobId(job);
        let epoch = self.core.jobs.get(&job).map_or(Epoch(1), |job| job.epoch);
        self.put(SchedulerEvent::Assigned { job, epoch, node: node.into(), answer })
    }

    fn over(&mut self, job: u64) -> Vec<String> {
        self.put(SchedulerEvent::JobOver {
            job: JobId(job),
            epoch: Epoch(1),
            ended: None,
            ok: true,
        })
    }

    fn released(&mut self, job: u64, node: &str, ok: bool) -> Vec<String> {
        self.put({
            let (job, node) = (JobId(job), NodeId::from(node));
            let incarnation = self.incarnation_of(&node);
            SchedulerEvent::Released { job, node, incarnation, ok }
        })
    }

    fn incarnation_of(&self, node: &NodeId) -> Incarnation {
        self.core.nodes[node].registration.as_ref().unwrap().incarnation
    }

    fn state(&self, node: &str) -> NodeState {
        let status = self.core.status();
        let mut nodes = status.sites.values().flat_map(|site| &site.nodes);
        nodes.find(|known| known.node == node.into()).unwrap().state
    }
}

fn text(action: &SchedulerAction) -> String {
    match action {
        SchedulerAction::Assign { node, assign } => format!("assign {} {node}", assign.spec.id),
        SchedulerAction::Grant(granted) => {
            format!("grant {} {}", granted.job, granted.coordinator.node)
        }
        SchedulerAction::Refuse { job, error } => format!("refuse {job}: {error}"),
        SchedulerAction::Release { node, job, .. } => format!("release {job} {node}"),
        SchedulerAction::Cancel { job, coordinator, .. } => format!("cancel {job} {coordinator}"),
        SchedulerAction::MemberLost { job, coordinator, node, .. } => {
            format!("lost {job} {coordinator} {node}")
        }
        SchedulerAction::Ended { job, error, .. } => format!("ended {job}: {error}"),
        SchedulerAction::Replace { cluster, nodes, program, image, .. } => {
            let program = program.as_ref().map_or("same", |path| path.to_str().unwrap());
            let image = image.as_ref().map(|image| format!(" {}", image.name));
            format!("replace {cluster} {nodes:?} {program}{}", image.unwrap_or_default())
        }
        SchedulerAction::RefuseGrowth { job, reason, .. } => {
            format!("{job} gets no more: {reason}")
        }
        SchedulerAction::StoreStart { job, .. } => format!("begin {job}"),
        SchedulerAction::Forget { job } => format!("forget {job}"),
        SchedulerAction::Restart { job, .. } => format!("restart {job}"),
        SchedulerAction::Limit { job, most } => format!("limit {job} {most:?}"),
        SchedulerAction::StoreDrain { node, reason } => format!("mark {node} {reason:?}"),
        SchedulerAction::HoldStubs { cluster, nodes, image, .. } => {
            let image = image.as_ref().map(|image| format!(" {}", image.name));
            format!("hold {cluster} {nodes:?}{}", image.unwrap_or_default())
        }
        SchedulerAction::CloseStubs { cluster, nodes, .. } => format!("close {cluster} {nodes:?}"),
        SchedulerAction::GrantNodes { job, grant, coordinator, nodes, open, .. } => {
            let nodes: Vec<&str> = nodes.iter().map(|granted| granted.node.as_str()).collect();
            format!(
                "grant {grant} of {job} at {coordinator}: {} and {}",
                nodes.join(" "),
                open.get()
            )
        }
        SchedulerAction::Audit { job, node, .. } => format!("audit {job} at {node}"),
        SchedulerAction::Measure { node, .. } => format!("measure {node}"),
        SchedulerAction::AskLeave { job, coordinator, nodes, deadline_ms, .. } => {
            format!("ask {job} at {coordinator} to leave {nodes:?} in {deadline_ms:?}")
        }
        SchedulerAction::OfferGrowth(asking) => {
            let ManagerQuestion { job, change, cluster, count, .. } = &**asking;
            format!("offer {change} to {job}: {count} of {cluster}")
        }
        SchedulerAction::AskShrink { asking, mandatory, .. } => {
            let ManagerQuestion { job, change, cluster, count, .. } = &**asking;
            let must = if *mandatory { "must" } else { "may" };
            format!("{job} {must} release {count} of {cluster} ({change})")
        }
        SchedulerAction::BetterFree { job, offers, .. } => {
            let free =
                offers.iter().map(|(cluster, offer)| format!("{} of {cluster}", offer.free.get()));
            format!("better for {job}: {}", free.collect::<Vec<_>>().join(", "))
        }
        SchedulerAction::Drained { drain, answer: Ok(drained) } => {
            format!("drained {drain}: {:?} empty, {:?} gone", drained.empty, drained.gone)
        }
        SchedulerAction::Drained { drain, answer: Err(error) } => format!("drain {drain}: {error}"),
        SchedulerAction::NewEpoch { job, known } => format!("epoch after {} for {job}", known.0),
        SchedulerAction::TakeOver { node, order } => {
            let from = if order.handed { format!(" from {}", order.lost) } else { String::new() };
            format!("{node} takes {} over under {}{from}", order.job, order.epoch.0)
        }
        SchedulerAction::BringFile { job, ask, file, from, to } => {
            let from: Vec<&str> = from.iter().map(ClusterId::as_str).collect();
            format!("bring {} to {to} for {job} from {} ({ask})", file.name, from.join(" "))
        }
        SchedulerAction::DropFiles { job, cluster } => format!("drop files of {job} in {cluster}"),
        SchedulerAction::Unreserved(bill) => format!("{} ends", bill.id),
        SchedulerAction::ProtocolViolation { what } => format!("odd: {what}"),
    }
}

#[test]
fn job_gets_its_nodes_and_releases_them() {
    let mut grid = CoreTestGrid::of(2, OURS);
    let output = grid.submit(submit(Some(&[("del", 2), ("ams", 1)]), OURS, None));
    assert_eq!(output, ["assign job-1 ams-1", "assign job-1 del-1", "assign job-1 del-2"]);
    assert_eq!(grid.accept(1, &["del-2", "ams-1"]), [""; 0]);
    assert_eq!(grid.accept(1, &["del-1"]), ["grant job-1 ams-1"]);
    assert_eq!(grid.state("ams-1"), NodeState::Busy);
    assert_eq!(grid.state("ams-2"), NodeState::Idle);
    assert_eq!(grid.over(1), [""; 0]);
    assert_eq!(grid.core.status().count(NodeState::Idle), 4);
    assert!(grid.core.status().jobs.is_empty());
}

#[test]
fn the_view_names_the_first_node_of_each_cluster() {
    let mut grid = CoreTestGrid::of(2, OURS);
    grid.jobs = 1;
    let (job, epoch) = (JobId(9), Epoch(4));
    let event = SchedulerEvent::Submit { job, epoch, submit: Box::new(submit(None, OURS, None)) };
    let actions = grid.core.handle(event, grid.now);
    assert_eq!(actions.len(), 4);
    for action in actions {
        let SchedulerAction::Assign { assign, node } = action else { panic!("{action:?}") };
        let view = &assign.view;
        // A node without a role gets its own cluster and the nodes with roles; others get all
        // members.
        let known = if node.as_str().ends_with('1') { 4 } else { 3 };
        assert_eq!((view.epoch, view.members.len(), view.partial), (Epoch(4), known, known == 3));
        assert_eq!(view.coordinator, Some("ams-1".into()));
        let leaders: Vec<_> = view.cluster_coordinators.values().map(NodeId::as_str).collect();
        assert_eq!(leaders, ["ams-1", "del-1"]);
    }
}

#[test]
fn queue_is_served_strictly_in_order() {
    let mut grid = CoreTestGrid::of(1, OURS);
    grid.submit(submit(Some(&[("ams", 1)]), OURS, None));
    grid.accept(1, &["ams-1"]);
    assert_eq!(grid.submit(submit(None, OURS, None)), [""; 0]);
    assert_eq!(grid.submit(submit(Some(&[("del", 1)]), OURS, None)), [""; 0]);
    let status = grid.core.status();
    let waits: Vec<_> = status.jobs.iter().filter_map(|job| job.waits_for.as_deref()).collect();
    assert_eq!(waits, ["nodes: 1 more of cluster ams", ""]);
    assert_eq!(grid.over(1), ["assign job-2 ams-1", "assign job-2 del-1"]);
    grid.accept(2, &["ams-1", "del-1"]);
    assert_eq!(grid.over(2), ["assign job-3 del-1"]);
}

#[test]
fn impossible_submission_is_refused_at_once() {
    let mut grid = CoreTestGrid::of(2, OURS);
    let cases: [(&[(&str, u32)], &str); 4] = [
        (&[("ams", 3)], "it asks for 3 nodes of cluster ams, which has 2 that work"),
        (&[("bud", 1)], "the grid has no cluster bud; it has ams, del"),
        (&[("ams", 0)], "it asks for no node of cluster ams"),
        (&[], "it asks for no cluster"),
    ];
    for (n, (clusters, why)) in cases.iter().enumerate() {
        let output = grid.submit(submit(Some(clusters), OURS, None));
        assert_eq!(output, [format!("refuse job-{}: the job cannot be placed: {why}", n + 1)]);
    }
}

#[test]
fn refusal_releases_the_others_and_names_the_node() {
    let mut grid = CoreTestGrid::of(2, OURS);
    grid.submit(submit(Some(&[("ams", 2)]), OURS, None));
    grid.accept(1, &["ams-1"]);
    let answer = Err(AssignError::UnknownJob { node: "ams-2".into(), name: "fib".into() });
    let output = grid.answer_assign(1, "ams-2", answer);
    let why = "refuse job-1: a worker did not take the job: node ams-2 knows no job fib";
    assert_eq!(output, [why, "release job-1 ams-1", "release job-1 ams-2"]);
    assert_eq!(grid.state("ams-1"), NodeState::Busy);
    grid.released(1, "ams-1", true);
    assert_eq!(grid.state("ams-1"), NodeState::Idle);
    // A node that does not answer is restarted.
    assert_eq!(grid.released(1, "ams-2", false), ["replace ams [ams-2] same"]);
    assert_eq!(grid.state("ams-2"), NodeState::Starting);
    assert!(grid.core.status().jobs.is_empty());
}

#[test]
fn job_survives_the_loss_of_nodes_and_of_its_root() {
    let mut grid = CoreTestGrid::of(2, OURS);
    grid.submit(submit(None, OURS, None));
    grid.accept(1, &["ams-1", "ams-2", "del-1", "del-2"]);
    let lost = |node: &str| SchedulerEvent::NodeLost {
        node: node.into(),
        reason: "killed by signal 9".into(),
        returns: true,
    };
    assert_eq!(grid.put(lost("del-2")), ["lost job-1 ams-1 del-2"]);
    // Its next incarnation is free, and no member.
    assert_eq!(grid.register("del-2", 2, OURS), [""; 0]);
    assert_eq!(grid.state("del-2"), NodeState::Idle);
    // The successor is of another cluster if possible. Each attempt has its own epoch.
    assert_eq!(grid.put(lost("ams-1")), ["epoch after 1 for job-1"]);
    let issued = |epoch| SchedulerEvent::EpochIssued { job: JobId(1), epoch: Epoch(epoch) };
    assert_eq!(grid.put(issued(2)), ["del-1 takes job-1 over under 2"]);
    let answer = |node: &str, answer| SchedulerEvent::TakeOverAnswered {
        job: JobId(1),
        node: node.into(),
        answer,
    };
    let actions = grid.put(answer("del-1", refused("it leaves")));
    assert_eq!(
        actions,
        ["odd: node del-1 does not take job-1 over: it leaves", "epoch after 2 for job-1"]
    );
    assert_eq!(grid.put(issued(3)), ["ams-2 takes job-1 over under 3"]);
    // A member that is lost meanwhile is reported.
    assert_eq!(grid.put(lost("del-1")), [""; 0]);
    assert_eq!(grid.put(answer("ams-2", Ok(()))), ["lost job-1 ams-2 del-1"]);
    // The report of a former coordinator does not end the job.
    let over = |epoch| {
        let (job, epoch) = (JobId(1), Epoch(epoch));
        SchedulerEvent::JobOver { job, epoch, ended: None, ok: true }
    };
    assert_eq!(grid.put(over(2)), [""; 0]);
    assert_eq!(grid.state("ams-2"), NodeState::Busy);
    // The job ends with the loss of its last node.
    let output = grid.put(lost("ams-2"));
    assert_eq!(output.len(), 1);
    assert!(
        output[0].starts_with("ended job-1: node ams-2 was lost: killed by signal 9; no other")
    );
    assert_eq!(grid.submit(submit(None, OURS, None)), [""; 0]);
}

/// A node that was cut off at its job's end still works for it, and would refuse the next job.
#[test]
fn worker_that_did_not_end_in_order_is_released_first() {
    let mut grid = CoreTestGrid::of(2, OURS);
    grid.submit(submit(None, OURS, None));
    grid.accept(1, &["ams-1", "ams-2", "del-1", "del-2"]);
    let ended = BTreeSet::from(["ams-1", "ams-2", "del-2"].map(NodeId::from));
    let over =
        SchedulerEvent::JobOver { job: JobId(1), epoch: Epoch(1), ended: Some(ended), ok: true };
    assert_eq!(grid.put(over), ["release job-1 del-1"]);
    let states = ["ams-1", "ams-2", "del-1", "del-2"].map(|node| grid.state(node));
    assert_eq!(states, [NodeState::Idle, NodeState::Idle, NodeState::Busy, NodeState::Idle]);
    assert_eq!(grid.released(1, "del-1", true), [""; 0]);
    assert_eq!(grid.state("del-1"), NodeState::Idle);
}

#[test]
fn coordinator_hands_its_job_over() {
    let mut grid = CoreTestGrid::of(2, OURS);
    grid.submit(submit(None, OURS, None));
    grid.accept(1, &["ams-1", "ams-2", "del-1", "del-2"]);
    let order = |epoch, to: &str| {
        let (job, epoch, reason) = (JobId(1), Epoch(epoch), "it is drained".to_owned());
        SchedulerEvent::HandOver(HandOver { job, epoch, to: to.into(), reason })
    };
    let issued = |epoch| SchedulerEvent::EpochIssued { job: JobId(1), epoch: Epoch(epoch) };
    let answer = |node: &str, answer| SchedulerEvent::TakeOverAnswered {
        job: JobId(1),
        node: node.into(),
        answer,
    };
    let lost = |node: &str| SchedulerEvent::NodeLost {
        node: node.into(),
        reason: "killed by signal 9".into(),
        returns: true,
    };
    let asked =
        |of: &str| format!("ask job-1 at {of} to leave [{:?}] in None", NodeId::from("ams-1"));
    let nodes = vec!["ams-1".into()];
    let order_drain = Drain { nodes, reason: "test".into(), deadline_ms: None, incarnation: None };
    let drain = SchedulerEvent::Drain { drain: 1, order: order_drain };
    assert_eq!(grid.put(drain), [asked("ams-1")]);
    // The proposed successor comes first, in any cluster. The former coordinator remains a member.
    assert_eq!(grid.put(order(1, "ams-2")), ["epoch after 1 for job-1"]);
    assert_eq!(grid.put(order(1, "del-1")), [""; 0], "a repetition has no effect");
    assert_eq!(grid.put(issued(2)), ["ams-2 takes job-1 over under 2 from ams-1"]);
    let output = grid.put(answer("ams-2", Ok(())));
    // The new coordinator gets the order that the old one could not execute.
    assert_eq!(output, [asked("ams-2")]);
    assert_eq!(grid.put(order(1, "del-1")), [""; 0], "a former coordinator has no authority");
    // If the successor is lost or refuses, another is selected, and the former coordinator last.
    assert_eq!(grid.put(order(2, "del-1")), ["epoch after 2 for job-1"]);
    assert_eq!(grid.put(issued(3)), ["del-1 takes job-1 over under 3 from ams-2"]);
    assert_eq!(grid.put(lost("del-1")), [""; 0]);
    assert_eq!(grid.put(answer("del-1", refused("gone")))[1], "epoch after 3 for job-1");
    assert_eq!(grid.put(lost("del-2")), [""; 0]);
    assert_eq!(grid.put(issued(4)), ["ams-1 takes job-1 over under 4 from ams-2"]);
    assert_eq!(grid.put(answer("ams-1", refused("it leaves")))[1], "epoch after 4 for job-1");
    assert_eq!(grid.put(issued(5)), ["ams-2 takes job-1 over under 5 from ams-2"]);
    // A coordinator that is lost during the handover is not a member any longer.
    assert_eq!(grid.put(answer("ams-2", Ok(()))), [asked("ams-2")]);
    assert_eq!(grid.put(order(5, "ams-1")), ["epoch after 5 for job-1"]);
    assert_eq!(grid.put(lost("ams-2")), [""; 0]);
    assert_eq!(grid.put(issued(6)), ["ams-1 takes job-1 over under 6"]);
}

/// A worker refuses to take a job over.
fn refused(reason: &str) -> Result<(), TakeOverError> {
    Err(TakeOverError::Refused(reason.to_owned()))
}

/// A partition loses the order to the only member that can take a job over. The scheduler repeats
/// the order under a new epoch each time, until the member answers or a minute has passed.
#[test]
fn unanswered_takeover_orders_are_repeated() {
    for answers in [true, false] {
        let mut grid = CoreTestGrid::of(1, OURS);
        grid.submit(submit(None, OURS, None));
        grid.accept(1, &["ams-1", "del-1"]);
        let (node, reason) = ("ams-1".into(), "killed by signal 9".into());
        let lost = SchedulerEvent::NodeLost { node, reason, returns: true };
        assert_eq!(grid.put(lost), ["epoch after 1 for job-1"]);
        let answer = |answer| SchedulerEvent::TakeOverAnswered {
            job: JobId(1),
            node: "del-1".into(),
            answer,
        };
        let unanswered = || answer(Err(TakeOverError::Unanswered("no answer".to_owned())));
        let odd = "odd: node del-1 does not take job-1 over: no answer";
        let mut epoch = 1;
        let mut took = Duration::ZERO;
        let ended = loop {
            epoch += 1;
            let issued = SchedulerEvent::EpochIssued { job: JobId(1), epoch: Epoch(epoch) };
            let asked = format!("del-1 takes job-1 over under {epoch}");
            assert_eq!(grid.put(issued), [asked]);
            grid.now += Duration::from_secs(10);
            took += Duration::from_secs(10);
            let actions = grid.put(unanswered());
            if actions.len() > 1 {
                break actions;
            }
            assert_eq!(actions, [odd]);
            let due = grid.core.due().expect("a retry is due");
            assert!(due <= grid.now + Duration::from_secs(1), "in bounded time");
            (took, grid.now) = (took + (due - grid.now), due);
            assert_eq!(grid.put(SchedulerEvent::Tick), [format!("epoch after {epoch} for job-1")]);
            if answers {
                let issued = SchedulerEvent::EpochIssued { job: JobId(1), epoch: Epoch(epoch + 1) };
                grid.put(issued);
                assert_eq!(grid.put(answer(Ok(()))), [""; 0]);
                break Vec::new();
            }
        };
        let state = grid.state("del-1");
        assert_eq!(state, NodeState::Busy);
        assert_eq!(ended.is_empty(), answers, "{ended:?}");
        if !answers {
            assert!(took >= Duration::from_secs(60), "{took:?}");
            assert!(took < Duration::from_secs(80), "{took:?}");
            assert!(ended[1].starts_with("ended job-1: node ams-1 was lost"), "{ended:?}");
        }
    }
}

/// Reports about a former coordinator do not count against the next one.
#[test]
fn reports_about_a_former_coordinator_are_dropped() {
    let mut grid = CoreTestGrid::of(2, OURS);
    grid.submit(submit(None, OURS, None));
    grid.accept(1, &["ams-1", "ams-2", "del-1", "del-2"]);
    let unreachable = |node: &str, epoch, by: &str| {
        SchedulerEvent::MemberSilent(MemberSilent {
            job: JobId(1),
            epoch: Epoch(epoch),
            node: node.into(),
            incarnation: Incarnation(1),
            reason: "silent".into(),
            reporting_cluster: Some(by.into()),
            reporter: None,
        })
    };
    let issued = SchedulerEvent::EpochIssued { job: JobId(1), epoch: Epoch(2) };
    // One of three others is not more than half of them.
    assert_eq!(grid.put(unreachable("ams-1", 1, "ams")), [""; 0]);
    let (node, returns) = ("ams-1".into(), true);
    let lost = SchedulerEvent::NodeLost { node, reason: "killed".into(), returns };
    assert_eq!(grid.put(lost), ["epoch after 1 for job-1"]);
    assert_eq!(grid.put(issued), ["del-1 takes job-1 over under 2"]);
    let (job, node) = (JobId(1), "del-1".into());
    assert_eq!(grid.put(SchedulerEvent::TakeOverAnswered { job, node, answer: Ok(()) }), [""; 0]);
    // With the earlier report of ams, all would have reported.
    assert_eq!(grid.put(unreachable("del-1", 2, "del")), [""; 0]);
}

/// Most of a job is lost at once, including its coordinator's node, and no site reports it. The
/// remaining members decide, and one of them is asked.
#[test]
fn remaining_members_continue_when_most_are_silent() {
    let mut grid = CoreTestGrid::of(2, OURS);
    grid.submit(submit(None, OURS, None));
    grid.accept(1, &["ams-1", "ams-2", "del-1", "del-2"]);
    let unreachable = || {
        SchedulerEvent::MemberSilent(MemberSilent {
            job: JobId(1),
            epoch: Epoch(1),
            node: "ams-1".into(),
            incarnation: Incarnation(1),
            reason: "silent".into(),
            reporting_cluster: Some("del".into()),
            reporter: None,
        })
    };
    let link = |node: &str, up| SchedulerEvent::Link { node: node.into(), up };
    for node in ["ams-1", "ams-2", "del-2"] {
        assert_eq!(grid.put(link(node, false)), [""; 0]);
    }
    assert_eq!(grid.put(link("ams-2", true)), [""; 0]);
    assert_eq!(grid.put(unreachable()), [""; 0], "ams-2 is reachable and reports nothing");
    assert_eq!(grid.put(link("ams-2", false)), [""; 0]);
    let output = grid.put(unreachable());
    assert_eq!(output.last().map(String::as_str), Some("epoch after 1 for job-1"), "{output:?}");
    let issued = SchedulerEvent::EpochIssued { job: JobId(1), epoch: Epoch(2) };
    assert_eq!(grid.put(issued), ["del-1 takes job-1 over under 2"]);
}

#[test]
fn takeover_skips_the_lost_node() {
    let mut grid = CoreTestGrid::of(1, OURS);
    grid.submit(submit(None, OURS, None));
    grid.accept(1, &["ams-1", "del-1"]);
    // A new incarnation registers before the loss of the old one is reported.
    let output = grid.register("ams-1", 2, OURS);
    assert_eq!(output, ["epoch after 1 for job-1"]);
    assert_eq!(grid.state("ams-1"), NodeState::Idle);
    let issued = SchedulerEvent::EpochIssued { job: JobId(1), epoch: Epoch(2) };
    assert_eq!(grid.put(issued), ["del-1 takes job-1 over under 2"]);
}

#[test]
fn nodes_of_another_program_are_replaced_once() {
    let mut grid = CoreTestGrid::of(1, 99);
    let output = grid.submit(submit(None, OURS, Some("/bin/ours")));
    assert_eq!(output, ["replace ams [ams-1] /bin/ours", "replace del [del-1] /bin/ours"]);
    assert_eq!(grid.register("ams-1", 2, OURS), [""; 0]);
    assert_eq!(grid.register("del-1", 2, OURS), ["assign job-1 ams-1", "assign job-1 del-1"]);
    grid.accept(1, &["ams-1", "del-1"]);
    grid.over(1);
    // A program with another registry than stated is not started repeatedly.
    assert_eq!(grid.submit(submit(Some(&[("ams", 1)]), 5, Some("/bin/x"))).len(), 1);
    let output = grid.register("ams-1", 3, OURS);
    assert_eq!(output.len(), 1);
    assert!(
        output[0].starts_with("refuse job-2: the job cannot be placed: node ams-1 runs another")
    );
    // Without a program, no attempt is possible.
    let output = grid.submit(submit(None, 5, None));
    assert!(output[0].starts_with("refuse job-3"), "{output:?}");
}

#[test]
fn broken_nodes_are_reported_with_their_reason() {
    let mut grid = CoreTestGrid::of(1, OURS);
    for node in ["ams-1", "del-1"] {
        let reason = "it died 3 times in 60 s".to_owned();
        grid.put(SchedulerEvent::NodeLost { node: node.into(), reason, returns: false });
    }
    let output = grid.submit(submit(None, OURS, None));
    let why = "no node of the grid works: it died 3 times in 60 s";
    assert_eq!(output, [format!("refuse job-1: the job cannot be placed: {why}")]);
}

#[test]
fn jobs_of_a_lost_client_end() {
    let mut grid = CoreTestGrid::of(1, OURS);
    grid.submit(submit(None, OURS, None));
    grid.submit(submit(None, OURS, None));
    grid.accept(1, &["ams-1", "del-1"]);
    assert_eq!(grid.core.waiting_clients(), BTreeSet::from(["client-1".into()]));
    let output = grid.put(SchedulerEvent::Link { node: "client-1".into(), up: false });
    // The nodes get direct orders: the coordinator may still try to notify its client.
    let now = ["cancel job-1 ams-1", "release job-1 ams-1", "release job-1 del-1"];
    assert_eq!(output[..3], now);
    assert!(output[3].starts_with("refuse job-2: the job was cancelled"), "{output:?}");
    assert_eq!(output.len(), 4);
    assert!(grid.core.waiting_clients().is_empty());
    let (job, reason) = (JobId(1), "no answer".to_owned());
    assert_eq!(grid.put(SchedulerEvent::CancelFailed { job, reason }), [""; 0]);
    // Each node is free after its own answer, and the report of the end has no effect.
    assert_eq!(grid.released(1, "ams-1", true), [""; 0]);
    assert_eq!(grid.state("ams-1"), NodeState::Idle);
    assert_eq!(grid.over(1), [""; 0]);
    assert_eq!(grid.state("del-1"), NodeState::Busy);
    assert_eq!(grid.released(1, "del-1", true), [""; 0]);
    assert!(grid.core.status().jobs.is_empty());
}

/// A job without a waiting client has the scheduler's own process as its client.
#[test]
fn job_without_a_waiting_client_survives_link_failures() {
    let mut grid = CoreTestGrid::of(1, OURS);
    let kept = Submit { client: contact("head"), ..submit(None, OURS, None) };
    grid.submit(kept);
    grid.accept(1, &["ams-1", "del-1"]);
    assert!(grid.core.waiting_clients().is_empty());
    assert_eq!(grid.put(SchedulerEvent::Link { node: "client-1".into(), up: false }), [""; 0]);
    assert_eq!(grid.core.status().jobs[0].state, JobState::Running);
}
