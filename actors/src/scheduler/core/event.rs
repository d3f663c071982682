//! What goes into the scheduler's core and what comes out. Data only.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use springtide_runtime::id::{ClusterId, Epoch, Incarnation, JobId, NodeId};
use springtide_runtime::meter::{BenchmarkSpec, Measurement};
use springtide_runtime::net::Contact;

use super::choose::Case;
use crate::files::{Brought, FileEntry, FilesHere};
use crate::job::{Assign, AssignError, JobError};
use crate::policy::Offer;
use crate::policy::malleability::Placed;
use crate::policy::provisioning::Time;
use crate::reservation::{Reservation, ReservationId};
use crate::scheduler::manager::Bill;
use crate::scheduler::{
    Drain, DrainError, Drained, Granted, GrantedNode, HandOver, JobAudit, JobEfficiency,
    MemberSilent, NodeFreed, Registered, RequestNodes, ResizeJob, RootAdvanced, SitePolled, SiteUp,
    SpeedsMeasured, StubGone, StubWaits, Submit, SubmitError, Subscribe, TakeOver, WithdrawNodes,
};

/// Why a worker does not coordinate the job that it was asked to take over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TakeOverError {
    /// It refuses.
    #[error("{0}")]
    Refused(String),
    /// The question or its answer was lost, so the worker may be asked again.
    #[error("{0}")]
    Unanswered(String),
}

/// A job that was being started, or ran.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Begun {
    /// Where it was placed.
    pub placed: Placed,
    /// When, in microseconds of the Unix epoch.
    #[serde(default)]
    pub at: Option<Time>,
}

/// A job that a former scheduler had when it ended.
#[derive(Clone, Debug)]
pub struct Recovered {
    /// Which.
    pub job: JobId,
    /// The last epoch that was issued for it.
    pub epoch: Epoch,
    /// What was submitted.
    pub submit: Box<Submit>,
    /// That it was started, if it was.
    pub begun: Option<Begun>,
    /// Most processors that its owner lets it have.
    pub limit: Option<u32>,
}

/// What the scheduler hears.
#[derive(Clone, Debug)]
pub enum Event {
    /// These clusters' sites will come.
    Expect {
        /// Which.
        clusters: Vec<ClusterId>,
    },
    /// A site is there.
    SiteUp(SiteUp),
    /// A site has looked what there is, or could not.
    SitePolled(SitePolled),
    /// A stub has no processor yet.
    StubWaits(StubWaits),
    /// A stub is gone.
    StubGone(StubGone),
    /// The store still has a job of a former scheduler.
    Recovered(Box<Recovered>),
    /// The store still has these reservations; the last number that it has seen.
    Reserved(Vec<Reservation>, ReservationId),
    /// A node has registered.
    Registered(Registered),
    /// A link went down, for this reason: of a node that joined by itself nobody else tells.
    Unheard {
        /// Whose.
        node: NodeId,
        /// Why.
        why: String,
    },
    /// A node is gone, as its site says.
    NodeLost {
        /// Which.
        node: NodeId,
        /// Why.
        reason: String,
        /// Whether its site starts it again.
        returns: bool,
    },
    /// A job's coordinator goes on without a member that was silent too long.
    MemberSilent(MemberSilent),
    /// A job is submitted under a number and epoch that are on disk.
    Submit {
        /// Its number.
        job: JobId,
        /// Its first epoch.
        epoch: Epoch,
        /// The rest.
        submit: Box<Submit>,
    },
    /// A worker answered [`Action::Assign`].
    Assigned {
        /// Which job.
        job: JobId,
        /// Under which epoch it was assigned.
        epoch: Epoch,
        /// Which node.
        node: NodeId,
        /// Its answer; no answer is an [`AssignError::Failed`].
        answer: Result<(), AssignError>,
    },
    /// A worker answered [`Action::Release`], or did not.
    Released {
        /// Which job.
        job: JobId,
        /// Which node.
        node: NodeId,
        /// The life that was told.
        incarnation: Incarnation,
        /// Whether it answered.
        ok: bool,
    },
    /// A job's coordinator says that it is over and its workers are free.
    JobOver {
        /// Which.
        job: JobId,
        /// The coordinator's epoch.
        epoch: Epoch,
        /// Workers that said that they have ended; absent: all have.
        ended: Option<BTreeSet<NodeId>>,
    },
    /// Somebody wants a job ended.
    Cancel {
        /// Which.
        job: JobId,
        /// Why.
        reason: String,
    },
    /// A client wants all its jobs ended.
    CancelOf {
        /// Which.
        client: NodeId,
        /// Why.
        reason: String,
    },
    /// A job's coordinator did not take [`Action::Cancel`].
    CancelFailed {
        /// Which.
        job: JobId,
        /// What became of it.
        reason: String,
    },
    /// The link to a node, or to a submitting process, is up or down.
    Link {
        /// To whom.
        node: NodeId,
        /// Whether it is up.
        up: bool,
    },
    /// A job's coordinator wants more nodes.
    Request(Box<RequestNodes>),
    /// It wants fewer.
    Withdraw(WithdrawNodes),
    /// A job's coordinator answered [`Action::GrantNodes`], or did not.
    GrantTold {
        /// Which job.
        job: JobId,
        /// Which grant.
        grant: u64,
        /// Whether it was delivered.
        ok: bool,
    },
    /// A node of a job is the job's no more.
    Freed(NodeFreed),
    /// A job's coordinator wants another node to take its place.
    HandOver(HandOver),
    /// A job's coordinator wants to hear of better nodes.
    Subscribe(Subscribe),
    /// Speeds of nodes at work.
    Speeds(SpeedsMeasured),
    /// A worker answered [`Action::Measure`].
    Measured {
        /// Which node.
        node: NodeId,
        /// The life that was asked.
        incarnation: Incarnation,
        /// Its answer; no answer is an error too.
        answer: Result<Measurement, String>,
    },
    /// Nodes are to be empty; answered by [`Action::Drained`].
    Drain {
        /// Names the answer.
        drain: u64,
        /// What is asked.
        order: Drain,
    },
    /// A former scheduler had taken these nodes out of service.
    Marked {
        /// Which, and why.
        nodes: BTreeMap<NodeId, String>,
    },
    /// Nodes may get jobs again. To be [checked](super::Core::check_nodes) before.
    Undrain {
        /// Which.
        nodes: Vec<NodeId>,
    },
    /// A job's coordinator did not take [`Action::AskLeave`].
    AskLeaveFailed {
        /// Which job.
        job: JobId,
        /// Who was to leave.
        nodes: Vec<NodeId>,
    },
    /// An answer to [`Action::NewEpoch`].
    EpochIssued {
        /// Which job.
        job: JobId,
        /// The epoch, on disk.
        epoch: Epoch,
    },
    /// A worker answered [`Action::TakeOver`], or did not.
    TookOver {
        /// Which job.
        job: JobId,
        /// Who was asked.
        node: NodeId,
        /// Whether it coordinates the job now.
        answer: Result<(), TakeOverError>,
    },
    /// A job's root got further than before.
    RootAdvanced(RootAdvanced),
    /// A job's coordinator answered [`Action::OfferGrowth`] or [`Action::AskShrink`], or did not.
    Answered {
        /// Which job.
        job: JobId,
        /// Names the question.
        change: u64,
        /// How many processors it takes, or will release; absent: it did not answer.
        count: Option<u32>,
    },
    /// A site did not get the order to release these stubs ([`Action::CloseStubs`]), some time ago.
    CloseFailed {
        /// Whose.
        nodes: Vec<NodeId>,
    },
    /// A job's coordinator has measured its efficiency.
    Efficiency(JobEfficiency),
    /// Whoever owns a job wants it larger or smaller, and may ([`Core::check_resize`](super::Core::check_resize)).
    Resize(ResizeJob),
    /// A job itself does, by a request of this number.
    Need {
        /// As an owner would say it.
        order: ResizeJob,
        /// Of the request.
        number: u64,
    },
    /// A cluster's file server tells what it has.
    FilesHere(FilesHere),
    /// A file server answered [`Action::BringFile`], or did not.
    Brought {
        /// For which job.
        job: JobId,
        /// Names the question.
        ask: u64,
        /// The file, and how it came; or why it did not.
        answer: Result<(FileEntry, Brought), String>,
    },
    /// The node of a job's coordinator answered [`Action::Audit`], or did not.
    Audited {
        /// The job.
        job: JobId,
        /// The node that was asked.
        node: NodeId,
        /// The incarnation that was asked.
        incarnation: Incarnation,
        /// The answer; absent: none came.
        found: Option<JobAudit>,
    },
    /// What is free is to be known by now.
    Poll,
    /// [`Core::due`](super::Core::due) has come.
    Tick,
}

/// What is to be done.
#[derive(Clone, Debug)]
pub enum Action {
    /// Send this to the node's worker; feed back [`Event::Assigned`].
    Assign {
        /// Whom.
        node: NodeId,
        /// What.
        assign: Box<Assign>,
    },
    /// Answer the submission: all workers have the job.
    Grant(Granted),
    /// Answer the submission: the job does not run.
    Refuse {
        /// Which.
        job: JobId,
        /// Why.
        error: SubmitError,
    },
    /// Tell the node's worker that the job is over; feed back [`Event::Released`].
    Release {
        /// Whom.
        node: NodeId,
        /// The life that is told.
        incarnation: Incarnation,
        /// Which job.
        job: JobId,
        /// Whether the job is over for all.
        over: bool,
        /// The job's epoch: assignments of earlier ones are void.
        epoch: Epoch,
    },
    /// Tell the job's coordinator to end it; feed back [`Event::CancelFailed`] if it cannot be told.
    Cancel {
        /// Which job.
        job: JobId,
        /// The coordinator's node.
        coordinator: NodeId,
        /// Why.
        reason: String,
    },
    /// Tell the job's coordinator that a member is dead.
    MemberLost {
        /// Which job.
        job: JobId,
        /// The coordinator's node.
        coordinator: NodeId,
        /// Who is dead.
        node: NodeId,
        /// How it ended.
        reason: String,
    },
    /// Tell the client that the job ended without an outcome, before anything else is told to anyone.
    Ended {
        /// Which job.
        job: JobId,
        /// Whom.
        client: Contact,
        /// Why.
        error: JobError,
    },
    /// Ask the site to start these nodes anew with this program.
    Replace {
        /// Where.
        cluster: ClusterId,
        /// Which.
        nodes: Vec<NodeId>,
        /// With what; absent: the one it had.
        program: Option<std::path::PathBuf>,
        /// Why, for logs.
        reason: String,
    },
    /// Put on disk that a job is being started, before anybody is told of it.
    Begin {
        /// Which.
        job: JobId,
        /// Where.
        begun: Begun,
    },
    /// Nothing of a job need be kept any more.
    Forget {
        /// Which.
        job: JobId,
    },
    /// Ask the site to hold processors for these nodes, which are off; [`Event::Registered`] or [`Event::StubGone`] follows of each.
    HoldStubs {
        /// Where.
        cluster: ClusterId,
        /// Which.
        nodes: Vec<NodeId>,
        /// With what program; absent: the site's own.
        program: Option<std::path::PathBuf>,
        /// Why, for logs.
        reason: String,
    },
    /// Ask the site to end these nodes and to give their processors back; [`Event::StubGone`] follows of each.
    CloseStubs {
        /// Where.
        cluster: ClusterId,
        /// Which.
        nodes: Vec<NodeId>,
        /// Why, for logs.
        reason: String,
    },
    /// Tell the job's coordinator that it has more nodes; feed back [`Event::GrantTold`].
    GrantNodes {
        /// Which job.
        job: JobId,
        /// Names the grant.
        grant: u64,
        /// The coordinator's node.
        coordinator: NodeId,
        /// The nodes, best first.
        nodes: Vec<GrantedNode>,
        /// How many more are asked for.
        open: u32,
        /// Why these, in a sentence.
        why: String,
        /// What they were chosen from.
        case: Box<Case>,
    },
    /// Ask the node's worker for its speed; feed back [`Event::Measured`].
    Measure {
        /// Whom.
        node: NodeId,
        /// Which life of it.
        incarnation: Incarnation,
        /// With what.
        spec: Box<BenchmarkSpec>,
    },
    /// Ask the job's coordinator that nodes leave; feed back [`Event::AskLeaveFailed`] if it cannot be told.
    AskLeave {
        /// Which job.
        job: JobId,
        /// The coordinator's node.
        coordinator: NodeId,
        /// Who is to leave.
        nodes: Vec<NodeId>,
        /// Why.
        reason: String,
        /// When they go in any case, in milliseconds from now.
        deadline_ms: Option<u64>,
    },
    /// Tell the job's coordinator what better nodes are free.
    BetterFree {
        /// Which job.
        job: JobId,
        /// The coordinator's node.
        coordinator: NodeId,
        /// All that is free.
        offers: BTreeMap<ClusterId, Offer>,
    },
    /// Answer a drain.
    Drained {
        /// Which.
        drain: u64,
        /// The answer.
        answer: Result<Drained, DrainError>,
    },
    /// A job that ran waits again: if it does not run after all, tell its client.
    Anew {
        /// Which job.
        job: JobId,
        /// Its client.
        client: Contact,
    },
    /// Put on disk how many processors a job's owner lets it have.
    Limit {
        /// Which job.
        job: JobId,
        /// How many; absent: as many as it can use.
        most: Option<u32>,
    },
    /// Put on disk that a node is out of service, or in it again.
    Mark {
        /// Which.
        node: NodeId,
        /// Why; absent: it is in service.
        reason: Option<String>,
    },
    /// Put the next epoch of a job on disk; feed back [`Event::EpochIssued`].
    NewEpoch {
        /// Which job.
        job: JobId,
        /// The last one.
        known: Epoch,
    },
    /// Tell the node's worker that it coordinates the job; feed back [`Event::TookOver`].
    TakeOver {
        /// Whom.
        node: NodeId,
        /// What it needs to know.
        order: Box<TakeOver>,
    },
    /// Ask the job's coordinator how many of so many processors it takes; feed back [`Event::Answered`].
    OfferGrowth(Box<Asking>),
    /// Ask the job's coordinator to let go of nodes, which it chooses itself; feed back [`Event::Answered`].
    AskShrink {
        /// Whom, and for what.
        asking: Box<Asking>,
        /// It must.
        mandatory: bool,
        /// How long it has, in milliseconds.
        within_ms: u64,
    },
    /// Tell the job's coordinator that it does not get what it cannot go on without.
    RefuseGrowth {
        /// Of the request; 0: it had none.
        number: u64,
        /// Which job.
        job: JobId,
        /// The coordinator's node.
        coordinator: NodeId,
        /// Why.
        reason: String,
    },
    /// Ask the cluster's file server to bring a file; feed back [`Event::Brought`].
    BringFile {
        /// For which job.
        job: JobId,
        /// Names the question.
        ask: u64,
        /// Which file.
        file: FileEntry,
        /// Who has it; the first is asked first.
        from: Vec<ClusterId>,
        /// Where it is to be.
        to: ClusterId,
    },
    /// Tell the cluster's file server that nothing is brought for a job any more.
    DropFiles {
        /// For which.
        job: JobId,
        /// Where.
        cluster: ClusterId,
    },
    /// A reservation is no more: forget it on disk, and note its bill.
    Unreserved(Box<Bill>),
    /// Ask the node of a job's coordinator what it does for the job; feed back [`Event::Audited`].
    Audit {
        /// The job.
        job: JobId,
        /// The coordinator's node.
        node: NodeId,
        /// The incarnation that is asked.
        incarnation: Incarnation,
    },
    /// Note in the log that somebody says what cannot be.
    Odd {
        /// Who said what, and what was done with it.
        what: String,
    },
}

/// A question of the malleability manager to a job's coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asking {
    /// Which job.
    pub job: JobId,
    /// The coordinator's node.
    pub coordinator: NodeId,
    /// Names the question.
    pub change: u64,
    /// Where the processors are.
    pub cluster: ClusterId,
    /// How many at most.
    pub count: u32,
    /// How long the answer is waited for.
    pub within: Duration,
    /// How it came about, or for what.
    pub why: String,
}
