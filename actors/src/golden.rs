//! The bytes of this crate's messages, so that a change of the wire shows in review.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Serialize, de::DeserializeOwned};
use springtide_runtime::id::{Epoch, Incarnation, JobId};
use springtide_runtime::membership::{Member, View};
use springtide_runtime::net::{Address, Contact};
use springtide_runtime::remote::RemoteMessage;
use springtide_runtime::wire::{Kind, golden};

use crate::job::{AssignError, JobParams};
use crate::scheduler::{
    CancelJob, GetStatus, Granted, GridStatus, JobState, JobStatus, NodeLost, NodeState,
    NodeStatus, Registered, SiteStatus, SiteUp, Submit, SubmitError,
};
use crate::site::{Register, RegisterError, StartAnew};

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
fn answers_of_scheduler_and_site() {
    let member = Member {
        incarnation: Incarnation(5),
        cluster: "ams".into(),
        address: address(),
        threads: 2,
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
