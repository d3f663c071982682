//! Types that stand for the actors of a grid where a sender addresses them:
//! `Remote<receivers::Worker>`.
//!
//! Each lists the messages that its actor receives. A message that is not listed cannot be sent.

use springtide_remote::receiver;

use crate::cluster::*;
use crate::enrol::*;
use crate::files::*;
use crate::job::*;
use crate::look::*;
use crate::node::*;
use crate::probe::*;
use crate::program::*;
use crate::scheduler::*;
use crate::singleton::*;
use crate::site::*;
use crate::worker::*;

receiver! {
    /// The scheduler of the head, published as [`SCHEDULER`](crate::names::SCHEDULER).
    Scheduler:
    Submit, CancelJob, CancelClientJobs, GetStatus, GetWait, GetJob, GetAuthority, PlanJob,
    ResizeJob, GetSlots, PrepareSlots, CommitSlots, ConfirmSlots, ReleaseSlots, GetFiles,
    FilesReport, SiteRegistration, NodeRegistration, NodeLoss, SiteReport, StubLoss, StubDelay,
    MemberSilent, RequestNodes, WithdrawNodes, NeedNodes, NodeFreed, HandOver, RootAdvanced,
    ConfirmMembership, GetOffers,
    GetSample, Subscribe, JobEfficiency, SpeedsMeasured, Drain, Undrain, JobEndNotice,
    ProgramReport,
}

receiver! {
    /// A node's worker, published as [`WORKER`](crate::names::WORKER).
    Worker:
    Assign, QueryWorker, Leave, FindCheckpoint, ProbeMember, GetCheckpoint, PrepareSuccessor,
    TakeOver, MeasureSpeed, AuditJob, NewView, ChangeView, Finish, ReleaseWorker, Shutdown,
}

receiver! {
    /// A node's worker for checkpoints, published as [`CHECKPOINTS`](crate::names::CHECKPOINTS).
    CheckpointKeeper: StoreCheckpoint,
}

receiver! {
    /// A cluster's coordinator for a job, published as
    /// [`cluster_coordinator_name`](crate::names::cluster_coordinator_name).
    ClusterCoordinator:
    WorkerJoinNotice, WorkerPeriod, GetMemory, StoreMemory, InspectCluster, FinishCluster,
    FinishWithout,
}

receiver! {
    /// A job's coordinator, published as [`coordinator_name`](crate::names::coordinator_name).
    Coordinator:
    ClusterReady, ClusterPeriod, InspectJob, LostMember, TasksHeldAtDeath, NodeGrant, AskLeave,
    OfferGrowth, AskShrink, BetterFree, GrowthRefused, ClusterHeartbeat, NodeSilence, Cancel,
    ClientMessage,
}

receiver! {
    /// A client, published as [`CLIENT`](crate::names::CLIENT).
    Client: JobNote, JobEndReport,
}

receiver! {
    /// A cluster's site, published as [`site_name`](crate::names::site_name).
    Site: Register, RestartNodes, StartStubs, EndStubs,
}

receiver! {
    /// A node's registrar, published as [`REGISTRAR`](crate::names::REGISTRAR).
    Registrar: RegisterAgain,
}

receiver! {
    /// A cluster's file server, published as [`files_name`](crate::names::files_name).
    FileServer: FetchFile, CancelFetches, ReadChunk, PutChunk, ScanFiles, RemoveFiles,
}

receiver! {
    /// The store of programs of a head or a site, published as
    /// [`PROGRAMS`](crate::names::PROGRAMS).
    ProgramStore: GetProgramTerms, OfferProgram,
}

receiver! {
    /// The head's enrolment, published as [`ENROLMENT`](crate::names::ENROLMENT).
    Enrolment: RenewCertificate, ReloadEnrolment, GetJoinStatus,
}

receiver! {
    /// A process's prober, published as [`PROBER`](crate::names::PROBER).
    Prober: Ping, BandwidthSample, FetchSample, CheckPaths,
}

receiver! {
    /// The head's directory of singletons, published as [`SINGLETONS`](crate::names::SINGLETONS).
    SingletonDirectory: FindSingleton,
}

receiver! {
    /// A node's host of singletons, published as
    /// [`SINGLETON_HOST`](crate::names::SINGLETON_HOST).
    SingletonHost: CreateSingleton, GetSingleton,
}
