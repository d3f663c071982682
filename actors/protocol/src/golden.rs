//! The bytes of this crate's messages, so that a change of the wire shows in review.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde::{Serialize, de::DeserializeOwned};
use springtide_base::id::{ClusterId, Epoch, Incarnation, JobId, Peer, TaskPath};
use springtide_metrics::{
    Amount, BenchmarkSpec, LinkReport, NodeReport, PeriodMeasure, Scale, SpecId, SpeedMeasurement,
    Statistics,
};
use springtide_net::membership::{Member, Members, View};
use springtide_net::net::{Address, Buffers, Contact};
use springtide_net::wire::{Kind, golden};
use springtide_remote::RemoteMessage;
use springtide_work::work::{
    FinishedTask, LeasedTask, NodeLosses, Outcome, OutputStream, ResultLocation, RootResults,
    RootStart, SavedRoot, TaskIdentity,
};

use crate::cluster::{
    ClusterFinalReport, ClusterHeartbeat, ClusterPeriod, ClusterPeriodReply, ClusterReady,
    FinishCluster, FinishWithout, GetMemory, NodeSilence, StoreMemory, WorkerJoinNotice,
    WorkerPeriod,
};
use crate::enrol::{
    GetAuthorities, GetJoinStatus, JoinStatus, ReloadEnrolment, RenewCertificate, RenewError,
};
use crate::files::{FileSource, RemoveFiles, ScanFiles};
use crate::hardware::Hardware;
use crate::heartbeat::{Heartbeat, HeartbeatReply};
use crate::job::{
    Assign, AssignError, Cancel, ClientMessage, ClientMessageError, DeadHolder, JobEndNotice,
    JobEndReport, JobError, JobNote, JobParams, JobReport, JobSpec, LostMember, NoteKind,
    ReleaseWorker, RootProgress, Shutdown, TasksHeldAtDeath,
};
use crate::node::RegisterAgain;
use crate::policy::malleability::HostShare;
use crate::policy::provisioning::{Booking, Denial, Price, Slot};
use crate::policy::{
    AdaptationSettings, ClusterAggregate, Memory, NodeOffer, OfferedNode, SchedulerRequest,
    SharedParameters, WorkerStats,
};
use crate::probe::{BandwidthSample, CheckPaths, FetchSample, PathMeasurement, Paths, Ping};
use crate::program::{
    GetProgramTerms, OfferProgram, ProgramDigest, ProgramError, ProgramImage, ProgramReport,
    ProgramState, ProgramTarget, ProgramTerms, ShippedProgram,
};
use crate::reservation::{
    Reservation, ReservationId, ReservationPhase, ReservationRefusal, ReservationRequest,
    ReservedSlot,
};
use crate::scheduler::{
    AskLeave, AuditJob, AuthorityError, BetterFree, CancelClientJobs, CancelJob, CommitSlots,
    ConfirmMembership, ConfirmSlots, Drain, DrainError, DrainResult, GetAuthority, GetOffers,
    GetSample, GetSlots, GetStatus, GetWait, GrantedNode, GridLink, GridSlots, GridStatus,
    GrowthRefused, HandOver, JobAudit, JobAuthority, JobGrant, JobState, JobStatus, MeasureSpeed,
    MemberSilent, NeedNodes, NodeFreed, NodeGrant, NodeLoss, NodeRegistration, NodeState,
    NodeStatus, Offers, OpenNodes, PrepareSlots, ReleaseReason, ReleaseSlots, RequestNodes,
    RootAdvanced, SiteOffer, SiteRegistration, SiteReport, SiteStatus, SpeedsMeasured, StubDelay,
    StubLoss, StubLossKind, Submit, SubmitError, Subscribe, TakeOver, Undrain, WithdrawNodes,
};
use crate::singleton::{
    CreateSingleton, FindSingleton, FindSingletonError, GetSingleton, SingletonPlace,
};
use crate::site::{EndStubs, Register, RegisterError, RestartNodes, StartStubs};
use crate::worker::{
    ChangeView, FinalReport, FindCheckpoint, Finish, GetCheckpoint, HandoverState, Leave, NewView,
    PrepareSuccessor, ProbeMember, RootCheckpoint, StoreCheckpoint,
};

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

fn hardware() -> Hardware {
    Hardware { model: "Fast CPU".into(), threads: 8, mhz: 2300, ..Hardware::default() }
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
        need: None,
        principal: None,
        image: None,
    });
    message(&CancelJob { job: JobId(3), reason: "enough".into() });
    message(&GetAuthority { job: JobId(3), node: "ams-1".into() });
    message(&CancelClientJobs { client: "client-1".into(), reason: "enough".into() });
    message(&GetStatus {});
    message(&GetWait { client: "client-1".into() });
    message(&GetSlots {});
    let booking =
        Booking { processors: 3, start: 1_800_000_000_000_000, end: 1_800_000_060_000_000 };
    let parts = vec![ReservedSlot { cluster: "ams".into(), bookings: vec![booking] }];
    let (token, name) = (0xfedc, "montage".to_owned());
    let lease_ms = Some(60_000);
    let ask = ReservationRequest {
        token,
        name: name.clone(),
        parts: parts.clone(),
        max_cost: 181.0,
        lease_ms,
        owner: None,
    };
    message(&PrepareSlots { ask });
    let id = ReservationId(5);
    message(&CommitSlots { id, token });
    message(&ConfirmSlots { id, token });
    message(&ReleaseSlots { id, token: Some(token), by: None });
    message(&ScanFiles {});
    message(&RemoveFiles { names: vec!["wf-1-2-0-a".to_owned()] });
    let phase = ReservationPhase::Confirmed { until: Some(1_800_000_060_000_000) };
    let reservation =
        Reservation { id, token, name, parts, cost: 180.0, phase, lease_ms, owner: None };
    answer::<Result<Reservation, ReservationRefusal>>("confirm-slots", &Ok(reservation.clone()));
    let why = Denial::TooMuch { reserved: 5, most: 2 };
    let denied = ReservationRefusal::Denied { cluster: "ams".into(), why };
    answer::<Result<Reservation, ReservationRefusal>>("commit-slots", &Err(denied));
    let slot = Slot {
        site: 0,
        processors: 3,
        start: booking.start,
        end: booking.end,
        price: Price { rate: 1.5, fixed: 2.0 },
        divisible: true,
        extensible: false,
    };
    let (cluster, epoch, none) = ("ams".into(), 17, None);
    let site = SiteOffer { cluster, processors: 4, epoch, slots: vec![slot], none };
    let (a, b) = ("ams".into(), "del".into());
    let link = GridLink { a, b, latency_s: 0.05, bytes_per_s: 1.25e7 };
    let now = booking.start;
    let (sites, reservations, links) = (vec![site], vec![reservation], vec![link]);
    answer("get-slots", &GridSlots { now, sites, reservations, links });
    let (cluster, nodes) = ("ams".into(), vec!["ams-1".into()]);
    message(&SiteRegistration {
        threads: 1,
        hosts: Vec::new(),
        shares: Default::default(),
        joins: false,
        cluster,
        nodes: nodes.clone(),
        starts_programs: true,
        keep_ms: None,
        stubs: BTreeSet::new(),
        files: false,
        at: None,
        receives_programs: false,
    });
    message(&NeedNodes {
        job: JobId(3),
        epoch: Epoch(2),
        count: 4,
        timeout_ms: Some(5000),
        number: 6,
    });
    message(&GrowthRefused { job: JobId(3), reason: "no job can shrink".into(), number: 6 });
    message(&SiteReport { cluster: "ams".into(), found: Ok((85, 12)) });
    let (node, reason) = ("ams-1".into(), "it was cancelled".to_owned());
    message(&StubLoss { node, reason, kind: StubLossKind::Ended });
    message(&StubDelay { node: "ams-1".into(), reason: "Priority".into() });
    let (program, reason) = (Some(PathBuf::from("/bin/own")), "job-3 needs them".to_owned());
    let share = HostShare {
        host: "n1".into(),
        processors: [0, 1].into(),
        memory: 1 << 30,
        devices: [("gpu".to_owned(), [1].into())].into(),
    };
    let shares = [(nodes[0].clone(), share)].into();
    message(&StartStubs {
        nodes: nodes.clone(),
        shares,
        program,
        reason: reason.clone(),
        shipped: None,
    });
    message(&EndStubs { nodes: nodes.clone(), reason });
    message(&NodeRegistration {
        cluster: "ams".into(),
        node: "ams-1".into(),
        incarnation: Incarnation(5),
        address: address(),
        threads: 2,
        fingerprint: 7,
        pid: 11,
        hardware: hardware(),
        work: None,
        program: None,
    });
    let lost =
        NodeLoss { node: "ams-1".into(), reason: "killed".into(), returns: true, retry_ms: None };
    message(&lost);
    let lost = NodeLoss { returns: false, retry_ms: Some(20_000), ..lost };
    golden::check(DIR, Kind::CALL, "node-lost-retried", &lost);
    message(&Register {
        contact: contact("ams-1"),
        incarnation: Incarnation(5),
        threads: 2,
        fingerprint: 7,
        pid: 11,
        hardware: hardware(),
        work: None,
    });
    message(&RegisterAgain {});
    let program = Some(PathBuf::from("/bin/own"));
    message(&RestartNodes { nodes, program, reason: "another program".into(), shipped: None });
}

#[test]
fn messages_about_singletons() {
    let name = "counter".to_owned();
    message(&FindSingleton { name: name.clone(), fingerprint: 7, silent: Some(3) });
    message(&CreateSingleton { name: name.clone(), fingerprint: 7, generation: 4 });
    message(&GetSingleton { name: name.clone(), fingerprint: 7 });
    let place = SingletonPlace { contact: contact("ams-1"), generation: 4 };
    let found: Result<SingletonPlace, FindSingletonError> = Ok(place);
    answer("find-singleton", &found);
    let none: Result<SingletonPlace, _> = Err(FindSingletonError::NoNode { name });
    answer("find-singleton-none", &none);
}

#[test]
fn messages_of_the_prober() {
    message(&Ping {});
    message(&BandwidthSample { bytes: vec![0; 3] });
    message(&FetchSample { bytes: 3 });
    message(&CheckPaths { contacts: vec![contact("ams-1")] });
    let reached =
        PathMeasurement { round_trip_us: Some(70), mtu: Some(1452), ..PathMeasurement::default() };
    let lost = PathMeasurement { error: Some("no answer".into()), ..PathMeasurement::default() };
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
        members: Members::from_iter([("ams-1".into(), member)]),
        coordinator: Some("ams-1".into()),
        cluster_coordinators: BTreeMap::from([("ams".into(), "ams-1".into())]).into(),
        partial: false,
    };
    let coordinator = contact("ams-1");
    let granted = JobGrant { job: JobId(3), epoch: Epoch(1), coordinator, view };
    answer::<Result<JobGrant, SubmitError>>("submit-ok", &Ok(granted));
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
        answer::<Result<JobGrant, SubmitError>>(&format!("submit-{name}"), &Err(error));
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
        next_try_ms: None,
    };
    let job = JobStatus {
        job: JobId(3),
        name: "fib".into(),
        state: JobState::Running,
        sizes: [("ams".into(), 1)].into(),
        waits_for: None,
        coordinator: None,
        principal: None,
    };
    answer(
        "get-authority",
        &Some(JobAuthority {
            epoch: Epoch(2),
            coordinator: Some("ams-1".into()),
            client: Some("client-1".into()),
            member: true,
        }),
    );
    let sites =
        BTreeMap::from([("ams".into(), SiteStatus { nodes: vec![node], ..SiteStatus::default() })]);
    answer("get-status", &GridStatus { sites, jobs: vec![job], ..GridStatus::default() });
    for (name, known) in [("register-stale", None), ("register-stale-known", Some(Incarnation(7)))]
    {
        let stale = RegisterError::Stale { node: "ams-1".into(), known };
        answer::<Result<(), RegisterError>>(name, &Err(stale));
    }
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
        members: Members::from_iter([("ams-1".into(), member)]),
        coordinator: Some("ams-1".into()),
        cluster_coordinators: BTreeMap::from([("ams".into(), "ams-1".into())]).into(),
        partial: false,
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
fn messages_of_enrolment() {
    let (node, cluster, role) = ("ams-1".into(), "ams".into(), "node".to_owned());
    message(&RenewCertificate { node, cluster, role, request: vec![1, 2].into() });
    let reason = "stolen".to_owned();
    answer::<Result<String, RenewError>>("renew-ok", &Ok("-----BEGIN".to_owned()));
    let revoked = RenewError::Revoked { node: "ams-1".into(), reason };
    answer::<Result<String, RenewError>>("renew-revoked", &Err(revoked));
    message(&ReloadEnrolment {});
    message(&GetJoinStatus {});
    let refused = BTreeMap::from([("used-up-token".to_owned(), 2)]);
    let links_refused = BTreeMap::from([("revoked".to_owned(), 1)]);
    answer("get-door", &JoinStatus { granted: 1, refused, links_refused });
    message(&GetAuthorities {});
}

#[test]
fn messages_of_a_job() {
    let job = JobId(3);
    let (client, scheduler) = (contact("client-1"), contact("head"));
    let benchmark = None;
    message(&Assign { spec: spec(), view: job_view(), client, scheduler, benchmark });
    answer::<Result<(), AssignError>>("assign-ok", &Ok(()));
    let busy = AssignError::Busy { node: "ams-1".into(), job };
    answer::<Result<(), AssignError>>("assign-busy", &Err(busy));
    message(&ReleaseWorker { job, over: false, epoch: Epoch(1) });
    message(&Shutdown { reason: "an order".into() });
    message(&Cancel { job, reason: "enough".into() });
    message(&ClientMessage { job, number: 2, body: vec![1, 2].into() });
    answer::<Result<(), ClientMessageError>>("client-message", &Err(ClientMessageError::Full));
    message(&JobEndNotice { job, epoch: Epoch(1), ok: true, ended: None });
    let what = NoteKind::Iteration { index: 1, seconds: 0.5 };
    message(&JobNote { job, epoch: Epoch(2), seq: 4, kind: what });
    let (stream, bytes) = (OutputStream::Stderr, vec![b'a', b'\n'].into());
    let output = NoteKind::Output { rank: 1, attempt: 2, processes: 3, stream, bytes };
    answer("note-output", &output);
    let outcome = Outcome { checksum: 9, result: serde_json::json!({ "n": 1 }) };
    let report = JobReport { wall_s: 1.5, ..JobReport::default() };
    let epoch = Some(Epoch(2));
    message(&JobEndReport { job, epoch, outcome: Ok(outcome), report });
    let reason = "its process ended (signal 6)".to_owned();
    let holders = vec![DeadHolder { node: "ams-2".into(), incarnation: Incarnation(5), reason }];
    let (task, path) = ("fib".to_owned(), TaskPath(vec![0, 1]));
    answer("job-error-poison", &JobError::Poison { task, path, holders });
    message(&GetMemory { job });
    let memory = Memory { period: 3, tick: 3, clock_s: 30.0, ..Memory::default() };
    message(&StoreMemory { job, epoch: Epoch(2), memory });
    let saved = SavedRoot { next_child: 7, seq: 2, state: vec![1, 2].into() };
    let kept = RootCheckpoint { epoch: Epoch(1), saved, iterations: 3 };
    message(&StoreCheckpoint { job, kept: kept.clone() });
    message(&FindCheckpoint { job });
    let (member, incarnation) = ("del-1".into(), Incarnation(3));
    message(&ProbeMember { job, node: member, incarnation });
    message(&GetCheckpoint { job });
    let members = BTreeMap::from([("ams-2".into(), Incarnation(3))]);
    let (lost, reason) = ("ams-1".into(), "killed".to_owned());
    let (handed, elapsed_ms) = (true, 1500);
    let reason_given = reason.clone();
    message(&TakeOver { job, epoch: Epoch(2), members, lost, reason, handed, elapsed_ms });
    let (epoch, reason) = (Epoch(1), reason_given);
    let node: springtide_base::id::NodeId = "ams-1".into();
    message(&ConfirmMembership { job, node: node.clone(), incarnation: Incarnation(5) });
    answer::<Result<(), AuthorityError>>(
        "confirm-membership",
        &Err(AuthorityError::NoMember { job, node: node.clone() }),
    );
    message(&AuditJob { job });
    answer("audit-job", &JobAudit { coordinates: true, members: Some([node].into()) });
    message(&HandOver { job, epoch, to: "ams-2".into(), reason });
    let task = TaskIdentity {
        path: TaskPath(vec![7]),
        name: "t".into(),
        hash: 5,
        needs: Vec::new(),
        start: RootStart::default(),
    };
    let (node, cluster) = ("ams-3".into(), "ams".into());
    let holder = Peer { node, incarnation: Incarnation(2), cluster };
    let left = RootResults {
        finished: vec![FinishedTask { task: task.clone(), output: vec![9].into() }],
        running: vec![ResultLocation { identity: task, holder }],
    };
    let (memory, root) = (Memory::default(), Some(kept));
    message(&PrepareSuccessor { job, bequest: HandoverState { epoch, memory, root, left } });
}

#[test]
fn messages_of_the_coordinator_tree() {
    let job = JobId(3);
    message(&NewView { job, view: job_view() });
    let change = job_view().without([&"ams-1".into()]).change_since(&job_view());
    message(&ChangeView { job, change });
    message(&Finish { job, epoch: Epoch(2) });
    answer("finish", &Some(FinalReport { report: report(), records: Vec::new() }));
    let (node, incarnation) = ("ams-1".into(), Incarnation(5));
    message(&WorkerJoinNotice { job, node, incarnation, threads: 1, partial: true });
    let view = (Epoch(1), 3);
    let measure = PeriodMeasure { threads: 2, ..PeriodMeasure::default() };
    let (candidate, benchmark) = (None, Some(SpecId(9)));
    message(&WorkerPeriod {
        job,
        view,
        report: report(),
        measure: Some(measure),
        candidate,
        benchmark,
    });
    message(&Leave { job, epoch: Epoch(2), deadline_ms: Some(5000) });
    message(&ClusterReady { job, cluster: "ams".into(), workers: 2 });
    let statistics = Statistics { threads: 2, ..Statistics::default() };
    let cluster = "ams".into();
    let statistics_now = statistics.clone();
    message(&ClusterPeriod {
        job,
        cluster,
        view,
        seq: 1,
        workers: 2,
        statistics: statistics_now,
        aggregate: Some(ClusterAggregate::default()),
        scale: Scale::default(),
        links: LinkReport::default(),
        rows: Vec::new(),
        candidate: None,
        benchmark: Some(SpecId(9)),
    });
    let (node, incarnation): (springtide_base::id::NodeId, _) = ("ams-2".into(), Incarnation(5));
    message(&NodeSilence { job, node: node.clone(), silent_ms: 2900 });
    message(&ClusterHeartbeat { job, node: node.clone(), incarnation });
    let reason = "silent for 2.9 s".into();
    message(&MemberSilent {
        job,
        epoch: Epoch(1),
        node,
        incarnation,
        reason,
        reporting_cluster: None,
        reporter: None,
    });
    message(&LostMember { job, node: "ams-2".into(), reason: "killed".into(), excused: false });
    let tasks = vec![LeasedTask { path: TaskPath(vec![0, 1]), name: "fib".into() }];
    let (node, incarnation) = ("ams-2".into(), Incarnation(5));
    message(&TasksHeldAtDeath { job, losses: vec![NodeLosses { node, incarnation, tasks }] });
    message(&FinishCluster { job, epoch: Epoch(2) });
    message(&FinishWithout { job, epoch: Epoch(2), node: "ams-2".into() });
    answer(
        "finish-cluster",
        &ClusterFinalReport {
            cluster: "ams".into(),
            workers: 2,
            statistics,
            records: Vec::new(),
            without_answer: BTreeMap::from([("ams-2".into(), "gone".into())]),
        },
    );
}

fn offers() -> BTreeMap<springtide_base::id::ClusterId, NodeOffer> {
    let offer = NodeOffer {
        free: 3.into(),
        smallest: 1.into(),
        speed: Some(1.5),
        nodes: BTreeMap::from([(
            "ams-2".into(),
            OfferedNode { processors: 2.into(), speed: 1.25 },
        )]),
        bandwidth: Some(1e6),
        rtt_s: Some(0.02),
        measured_s: None,
    };
    BTreeMap::from([("ams".into(), offer)])
}

#[test]
fn heartbeats() {
    let (job, epoch, version) = (JobId(3), Epoch(1), 2);
    let beat = Heartbeat { job, epoch, version, partial: false, asks: true };
    golden::check(DIR, Kind::HEARTBEAT, "heartbeat", &beat);
    golden::check(DIR, Kind::HEARTBEAT_REPLY, "reply", &HeartbeatReply { job, member: true });
}

#[test]
fn messages_of_the_exchange_of_nodes() {
    let (job, epoch) = (JobId(3), Epoch(2));
    let (node, incarnation): (springtide_base::id::NodeId, _) = ("ams-2".into(), Incarnation(5));
    let request = SchedulerRequest {
        count: 2.into(),
        most: 4.into(),
        min_speed: Some(0.5),
        min_bandwidth: Some(1e5),
        prefer: vec!["ams".into()],
        avoid_nodes: ["del-1".into()].into(),
        avoid_clusters: ["bud".into()].into(),
        waive: ["del".into()].into(),
    };
    let spec = BenchmarkSpec::of_job("fib", vec![1, 2].into());
    message(&RequestNodes {
        job,
        epoch,
        request,
        benchmark: Some(spec.clone()),
        rtt_s: BTreeMap::from([("ams".into(), 0.02)]),
        bandwidth: BTreeMap::from([("ams".into(), 1e6)]),
    });
    answer::<Result<OpenNodes, AuthorityError>>(
        "request-nodes-ok",
        &Ok(OpenNodes { open: 2.into() }),
    );
    let stale = AuthorityError::Epoch { job, asked: Epoch(1), known: epoch };
    answer::<Result<OpenNodes, AuthorityError>>("request-nodes-stale", &Err(stale));
    answer::<Result<OpenNodes, AuthorityError>>(
        "request-nodes-over",
        &Err(AuthorityError::Over { job }),
    );
    message(&WithdrawNodes { job, epoch, count: 1.into() });
    let why = ReleaseReason::Refused { reason: "no threads".into(), busy: None };
    message(&NodeFreed { job, epoch, node: node.clone(), incarnation, why });
    let reached = RootProgress { checkpoint: 2, iterations: 7, done: 40 };
    message(&RootAdvanced { job, epoch, reached });
    message(&GetOffers { job, epoch });
    message(&GetSample { job, epoch, cluster: "ams".into() });
    let contact = Contact { node: node.clone(), cluster: "ams".into(), address: address() };
    answer::<Result<Option<Contact>, AuthorityError>>("get-sample", &Ok(Some(contact)));
    let known = Offers { offers: offers(), open: 2.into(), existing: 7.into() };
    answer::<Result<Offers, AuthorityError>>("get-offers", &Ok(known));
    message(&Subscribe { job, epoch, faster_than: Some(1.5) });
    let speeds = BTreeMap::from([(node.clone(), 1.25)]);
    message(&SpeedsMeasured { job, epoch, spec: SpecId(9), speeds });
    let (cluster, address, leaving) = ("ams".into(), address(), false);
    let member = Member { incarnation, cluster, address, threads: 2, leaving };
    let granted = GrantedNode { node: node.clone(), member, speed: Some(1.25) };
    message(&NodeGrant { job, nodes: vec![granted], open: 1.into() });
    let (nodes, reason) = (vec![node.clone()], "maintenance".to_owned());
    let deadline_ms = Some(30_000);
    message(&AskLeave { job, nodes: nodes.clone(), reason: reason.clone(), deadline_ms });
    message(&BetterFree { job, offers: offers() });
    message(&MeasureSpeed { spec });
    let measured = SpeedMeasurement { speed: 1.25, relative_error: Some(0.01) };
    answer::<Result<SpeedMeasurement, String>>("measure-speed-ok", &Ok(measured));
    answer::<Result<SpeedMeasurement, String>>(
        "measure-speed-no",
        &Err("it works for job-3".into()),
    );
    message(&Drain { nodes: nodes.clone(), reason, deadline_ms, incarnation: Some(incarnation) });
    message(&Undrain { nodes: nodes.clone() });
    let drained = DrainResult { empty: nodes, gone: vec!["del-1".into()] };
    answer::<Result<DrainResult, DrainError>>("drain-ok", &Ok(drained));
    let errors = [
        ("no-nodes", DrainError::NoNodes),
        ("unknown", DrainError::UnknownNode { node: node.clone() }),
        ("below", DrainError::BelowMinimum { job, min: 2.into(), left: 1.into() }),
        ("undrained", DrainError::Undrained { node }),
        ("ended", DrainError::Ended),
    ];
    for (name, error) in errors {
        answer::<Result<DrainResult, DrainError>>(&format!("drain-{name}"), &Err(error));
    }
}

/// The bar is 2 KB/s between a cluster and the job's coordinator, both ways together. It holds for
/// 12 workers in three clusters and a period of 1 s. It excludes histograms, which are sent in
/// every tenth period.
#[test]
fn a_second_of_statistics_fits_a_thin_link() {
    let settings = AdaptationSettings::default();
    let mut memory = Memory::new(&settings);
    (memory.tick, memory.period, memory.max_speed) = (1000, 1000, Some(123_456.7));
    let worker = |n: u32| WorkerStats {
        node: format!("cluster-{n}").as_str().into(),
        incarnation: Incarnation(3),
        threads: 16,
        speed: Some(123_456.789 + f64::from(n) * 17.3),
        speed_error: 0.0123,
        overhead: 0.3123 + f64::from(n) * 0.0137,
        overhead_intra: 0.0511 + f64::from(n) * 0.003,
        overhead_inter: 0.1234 + f64::from(n) * 0.01,
        joined: 30,
        ..WorkerStats::default()
    };
    let workers: Vec<WorkerStats> = (0..4).map(worker).collect();
    let mut aggregate = ClusterAggregate::of(&workers, &SharedParameters::of(&memory, &settings));
    aggregate.uplink.used = Some(1_234_567.8);
    let big = 1_u64 << 40;
    let mut statistics = Statistics { threads: 64, ..Statistics::default() };
    let tasks = &mut statistics.counters.tasks;
    (tasks.spawned, tasks.executed, tasks.stolen_local, tasks.stolen_wide) = (big, big, big, big);
    let steals = &mut statistics.counters.steals;
    for scope in [&mut steals.local, &mut steals.wide] {
        (scope.requests, scope.hits, scope.empty) = (big, big, big);
    }
    let work = &mut statistics.counters.work;
    (work.tasks, work.root_us) = (big, big);
    (work.units, work.squares) = (Amount::new(1.2e12), Amount::new(3.4e18));
    let (bytes, times) = (&mut statistics.counters.bytes, &mut statistics.times);
    (bytes.local, bytes.wide, times.working_ns, times.idle_ns) = (big, big, big, big);
    (times.wait_local_ns, times.wait_wide_ns) = (big, big);
    let (job, cluster, view) = (JobId(3), "cluster".into(), (Epoch(2), 77));
    let period = ClusterPeriod {
        job,
        cluster,
        view,
        seq: 1000,
        workers: 4,
        statistics,
        aggregate: Some(aggregate),
        scale: Scale::default(),
        links: LinkReport::default(),
        // At most every fourth period, as latencies.
        rows: Vec::new(),
        candidate: None,
        benchmark: Some(SpecId(1 << 60)),
    };
    let cluster_reply = ClusterPeriodReply {
        memory: Some(memory),
        proposed: true,
        ..ClusterPeriodReply::default()
    };
    let (node, incarnation) = ("cluster-1".into(), Incarnation(3));
    let alive = ClusterHeartbeat { job, node, incarnation };
    // With both calls and their replies: header, names, numbers.
    let around = 4 * 80;
    let size = |bytes: Result<Vec<u8>, _>| -> usize {
        let bytes: Result<_, rmp_serde::encode::Error> = bytes;
        bytes.expect("it serialises").len()
    };
    let named = [
        size(rmp_serde::to_vec_named(&period)),
        size(rmp_serde::to_vec_named(&cluster_reply)),
        size(rmp_serde::to_vec_named(&alive)),
    ];
    let all = named.iter().sum::<usize>() + around;
    assert!(all <= 2048, "{all} bytes: {named:?}");
}

#[test]
fn messages_of_programs() {
    let target = ProgramTarget { machine: 62, bits: 64, little_endian: true };
    let image = ProgramImage {
        name: "own".into(),
        digest: ProgramDigest([0xab; 32]),
        bytes: 40_000_000,
        target,
        interpreter: Some("/lib64/ld-linux-x86-64.so.2".into()),
    };
    let (digest, path) = (image.digest, Some(PathBuf::from("/home/me/own")));
    message(&GetProgramTerms { fingerprint: 7 });
    answer("get-program-terms", &ProgramTerms { needed: true });
    message(&OfferProgram {
        image: image.clone(),
        path: path.clone(),
        client: contact("client-1"),
    });
    let sources = vec![FileSource { cluster: "head".into(), address: contact("head") }];
    let shipped = Some(ShippedProgram { image: image.clone(), path: path.clone(), sources });
    let (nodes, reason) = (vec!["ams-1".into()], "another program".to_owned());
    let restart = RestartNodes { nodes, program: path.clone(), shipped: shipped.clone(), reason };
    golden::check(DIR, Kind::CALL, "restart-nodes-shipped", &restart);
    let RestartNodes { nodes, program, reason, .. } = restart;
    let start = StartStubs { nodes, shares: BTreeMap::new(), program, shipped, reason };
    golden::check(DIR, Kind::CALL, "hold-stubs-shipped", &start);
    let submit = Submit {
        name: "fib".into(),
        body: vec![1].into(),
        fingerprint: 7,
        params: JobParams::default(),
        clusters: None,
        client: contact("client-1"),
        program: path,
        image: Some(image),
        need: None,
        principal: None,
    };
    golden::check(DIR, Kind::CALL, "submit-shipped", &submit);
    let cluster = || ClusterId::from("ams");
    let state = ProgramState::Sending { received: 12, bytes: 40 };
    message(&ProgramReport { cluster: cluster(), digest, state });
    let name = || "own".to_owned();
    let errors = [
        ("forbidden", ProgramError::Forbidden),
        (
            "no-elf",
            ProgramError::NotExecutable { name: name(), reason: "it has no ELF header".into() },
        ),
        (
            "machine",
            ProgramError::Machine {
                name: name(),
                needs: "aarch64".into(),
                cluster: cluster(),
                has: "x86_64".into(),
            },
        ),
        (
            "interpreter",
            ProgramError::Interpreter {
                name: name(),
                interpreter: "/lib/ld".into(),
                cluster: cluster(),
            },
        ),
        ("too-large", ProgramError::TooLarge { name: name(), bytes: 2, max: 1 }),
        ("full", ProgramError::CacheFull { name: name(), bytes: 2, used: 9, max: 10 }),
        ("unavailable", ProgramError::Unavailable { name: name(), reason: "lost".into() }),
        (
            "provider",
            ProgramError::Provider { name: name(), cluster: cluster(), reason: "no".into() },
        ),
        (
            "cannot-run",
            ProgramError::CannotRun {
                name: name(),
                cluster: cluster(),
                node: "ams-1".into(),
                reason: "exit status: 127".into(),
            },
        ),
        ("cancelled", ProgramError::Cancelled { name: name() }),
    ];
    for (case, error) in errors {
        answer::<Result<(), ProgramError>>(&format!("offer-program-{case}"), &Err(error));
    }
    let ready = ProgramReport {
        cluster: cluster(),
        digest,
        state: ProgramState::Ready { bytes: 40, millis: 9 },
    };
    golden::check(DIR, Kind::CALL, "program-report-ready", &ready);
    let state = ProgramState::Failed { error: ProgramError::Forbidden };
    golden::check(DIR, Kind::CALL, "program-report-failed", &ProgramReport { state, ..ready });
}
