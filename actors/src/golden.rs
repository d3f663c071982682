//! The bytes of this crate's messages, so that a change of the wire shows in review.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Serialize, de::DeserializeOwned};
use springtide_runtime::id::{Epoch, Incarnation, JobId};
use springtide_runtime::membership::{Member, View};
use springtide_runtime::meter::{NodeReport, Statistics};
use springtide_runtime::net::{Address, Buffers, Contact};
use springtide_runtime::remote::RemoteMessage;
use springtide_runtime::wire::{Kind, golden};
use springtide_runtime::work::Outcome;

use crate::cluster::{
    Alive, ClusterAlive, ClusterFinal, ClusterJoined, ClusterPeriod, FinishCluster, Joined, Period,
    Silent,
};
use crate::job::{
    Assign, AssignError, Cancel, JobEnded, JobNote, JobOver, JobParams, JobReport, JobSpec,
    MemberLost, NoteKind, Release, Shutdown,
};
use crate::probe::{CheckPaths, Path, Paths, Ping};
use crate::scheduler::{
    CancelJob, GetStatus, Granted, GridStatus, JobState, JobStatus, MemberSilent, NodeLost,
    NodeState, NodeStatus, Registered, SiteStatus, SiteUp, Submit, SubmitError,
};
use crate::site::{Register, RegisterError, StartAnew};
use crate::worker::{FinalReport, Finish, NewView};

const DIR: &str = env!("CARGO_MANIFEST_DIR");

fn message<M: RemoteMessage>(message: &M) {
    golden::check(DIR, Kind::CALL, M::NAME, message);
}

fn answer<T: Serialize + DeserializeOwned>(name: &str, answer: &T) {
    golden::check(DIR, Kind::REPLY, name, answer);
}

fn address() -> Address {
    Address::Socket(([127, 0, 0, 1], 47000).into())
}

fn contact(node: &str) -> Contact {
    Contact { node: node.into(), cluster: "ams".into(), address: address() }
}

#[test]
fn messages_of_scheduler_and_site() {
    message(&Submit {
        name: "fib".into(),
        body: vec![1, 2, 3].into(),
        fingerprint: 7,
        params: JobParams::default(),
        clusters: Some(BTreeMap::from([("ams".into(), 2)])),
        client: contact("client-1"),
        program: Some(PathBuf::from("/bin/own")),
    });
    message(&CancelJob { job: JobId(3), reason: "enough".into() });
    message(&GetStatus {});
    let (cluster, nodes) = ("ams".into(), vec!["ams-1".into()]);
    message(&SiteUp { cluster, nodes: nodes.clone(), starts_programs: true });
    message(&Registered {
        cluster: "ams".into(),
        node: "ams-1".into(),
        incarnation: Incarnation(5),
        address: address(),
        threads: 2,
        fingerprint: 7,
        pid: 11,
    });
    message(&NodeLost { node: "ams-1".into(), reason: "killed".into(), returns: true });
    message(&Register {
        contact: contact("ams-1"),
        incarnation: Incarnation(5),
        threads: 2,
        fingerprint: 7,
        pid: 11,
    });
    let program = Some(PathBuf::from("/bin/own"));
    message(&StartAnew { nodes, program, reason: "another program".into() });
}

#[test]
fn messages_of_the_prober() {
    message(&Ping {});
    message(&CheckPaths { contacts: vec![contact("ams-1")] });
    let reached = Path { round_trip_us: Some(70), mtu: Some(1452), error: None };
    let lost = Path { error: Some("no answer".into()), ..Path::default() };
    let buffers = Some(Buffers { asked: 4_194_304, receive: 425_984, send: 425_984 });
    let paths = BTreeMap::from([("ams-2".into(), reached), ("del-1".into(), lost)]);
    answer("check-paths", &Paths { buffers, paths });
}

#[test]
fn answers_of_scheduler_and_site() {
    let member = Member {
        incarnation: Incarnation(5),
        cluster: "ams".into(),
        address: address(),
        threads: 2,
        leaving: false,
    };
    let view = View {
        epoch: Epoch(1),
        version: 1,
        members: BTreeMap::from([("ams-1".into(), member)]),
        coordinator: Some("ams-1".into()),
        cluster_coordinators: BTreeMap::from([("ams".into(), "ams-1".into())]),
    };
    let coordinator = contact("ams-1");
    let granted = Granted { job: JobId(3), epoch: Epoch(1), coordinator, view };
    answer::<Result<Granted, SubmitError>>("submit-ok", &Ok(granted));
    let errors = [
        ("not-placed", SubmitError::NotPlaced { reason: "no".into() }),
        ("program", SubmitError::Program { reason: "no".into() }),
        ("cancelled", SubmitError::Cancelled { reason: "no".into() }),
        ("store", SubmitError::Store { reason: "no".into() }),
        (
            "refused",
            SubmitError::Refused(AssignError::Busy { node: "ams-1".into(), job: JobId(2) }),
        ),
    ];
    for (name, error) in errors {
        answer::<Result<Granted, SubmitError>>(&format!("submit-{name}"), &Err(error));
    }
    let node = NodeStatus {
        node: "ams-1".into(),
        state: NodeState::Busy,
        job: Some(JobId(3)),
        threads: Some(2),
        pid: Some(11),
        incarnation: Some(Incarnation(5)),
        address: Some(address()),
        reason: None,
    };
    let job = JobStatus {
        job: JobId(3),
        name: "fib".into(),
        state: JobState::Running,
        nodes: 1,
        waits_for: None,
    };
    let sites = BTreeMap::from([("ams".into(), SiteStatus { nodes: vec![node] })]);
    answer("get-status", &GridStatus { sites, jobs: vec![job] });
    let stale = RegisterError::Stale { node: "ams-1".into() };
    answer::<Result<(), RegisterError>>("register-stale", &Err(stale));
}

fn spec() -> JobSpec {
    JobSpec {
        id: JobId(3),
        epoch: Epoch(1),
        name: "fib".into(),
        body: vec![1, 2, 3].into(),
        fingerprint: 7,
        params: JobParams::default(),
    }
}

fn job_view() -> View {
    let member = Member {
        incarnation: Incarnation(5),
        cluster: "ams".into(),
        address: address(),
        threads: 1,
        leaving: false,
    };
    View {
        epoch: Epoch(1),
        version: 2,
        members: BTreeMap::from([("ams-1".into(), member)]),
        coordinator: Some("ams-1".into()),
        cluster_coordinators: BTreeMap::from([("ams".into(), "ams-1".into())]),
    }
}

fn report() -> NodeReport {
    NodeReport {
        node: "ams-1".into(),
        incarnation: Incarnation(5),
        cluster: "ams".into(),
        seq: 2,
        statistics: Statistics { threads: 1, ..Statistics::default() },
    }
}

#[test]
fn messages_of_a_job() {
    let job = JobId(3);
    let (client, scheduler) = (contact("client-1"), contact("head"));
    message(&Assign { spec: spec(), view: job_view(), client, scheduler });
    answer::<Result<(), AssignError>>("assign-ok", &Ok(()));
    let busy = AssignError::Busy { node: "ams-1".into(), job };
    answer::<Result<(), AssignError>>("assign-busy", &Err(busy));
    message(&Release { job });
    message(&Shutdown { reason: "told to".into() });
    message(&Cancel { job, reason: "enough".into() });
    message(&JobOver { job, epoch: Epoch(1), ok: true });
    message(&JobNote { job, seq: 4, what: NoteKind::Iteration { index: 1, seconds: 0.5 } });
    let outcome = Outcome { checksum: 9, result: serde_json::json!({ "n": 1 }) };
    let report = JobReport { wall_s: 1.5, ..JobReport::default() };
    message(&JobEnded { job, outcome: Ok(outcome), report });
}

#[test]
fn messages_of_the_coordinator_tree() {
    let job = JobId(3);
    message(&NewView { job, view: job_view() });
    message(&Finish { job });
    answer("finish", &Some(FinalReport { report: report(), records: Vec::new() }));
    let (node, incarnation) = ("ams-1".into(), Incarnation(5));
    message(&Joined { job, node, incarnation, threads: 1 });
    let view = (Epoch(1), 3);
    message(&Period { job, view, report: report() });
    message(&ClusterJoined { job, cluster: "ams".into(), workers: 2 });
    let statistics = Statistics { threads: 2, ..Statistics::default() };
    let cluster = "ams".into();
    let statistics_now = statistics.clone();
    message(&ClusterPeriod { job, cluster, view, seq: 1, workers: 2, statistics: statistics_now });
    let (node, incarnation): (springtide_runtime::id::NodeId, _) = ("ams-2".into(), Incarnation(5));
    message(&Alive { job, node: node.clone(), incarnation, view });
    message(&Silent { job, node: node.clone(), silent_ms: 2900 });
    message(&ClusterAlive { job, node: node.clone(), incarnation });
    let reason = "silent for 2.9 s".into();
    message(&MemberSilent { job, epoch: Epoch(1), node, incarnation, reason });
    message(&MemberLost { job, node: "ams-2".into(), reason: "killed".into() });
    message(&FinishCluster { job });
    answer(
        "finish-cluster",
        &ClusterFinal {
            cluster: "ams".into(),
            workers: 2,
            statistics,
            records: Vec::new(),
            silent: BTreeMap::from([("ams-2".into(), "gone".into())]),
        },
    );
}
