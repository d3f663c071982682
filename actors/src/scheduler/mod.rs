//! The scheduler of a grid: it knows the nodes of every site, queues jobs, and grants them nodes.
//!
//! `core` decides. The actor in this module receives messages, and executes the core's actions
//! (`act`). It must not depend on how nodes are started, nor on what a job computes.

mod act;
mod holdings;
mod inputs;
mod programs;
mod reserve;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use actix::prelude::*;
use springtide_runtime::event::{Event as GridEvent, Recorder};
use springtide_runtime::id::{ClusterId, Incarnation, JobId, NodeId};
use springtide_runtime::membership::{Detector, Finding, SilenceLimits};
use springtide_runtime::net::{Contact, Net};
use springtide_runtime::remote::{Hub, MessageOrigin, Remote, RemoteError};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::Instant;

use self::core::{NumberedSubmission, RecoveredJob, SchedulerCore, SchedulerEvent};
use self::manager::ManagerSettings;
use crate::admit::{
    AdmitsMessages, AuthorityQuery, MessageSubject, Principal, SenderStanding, wait,
};
use crate::audit::AuditLog;
use crate::lease::LeaseError;
use crate::links::{LinkChange, LinkChanges};
use crate::policy::malleability::PlacementPlan;
use crate::programs::ProgramAccess;
use crate::standby::MemberWatch;
use crate::store::{Store, StoreError};
use springtide_protocol::job::{JobEndNotice, JobEndReport, JobError, JobReport};
use springtide_protocol::names::{CLIENT, PROBER};
use springtide_protocol::probe::Ping;
use springtide_protocol::receivers::{Client, Prober};
pub use springtide_protocol::scheduler::*;
use springtide_scheduler::audit::abort_after_panic;
pub use springtide_scheduler::core::RECONCILED_WITHIN;
pub use springtide_scheduler::{core, manager};

/// Greatest number of simultaneous assignments. Each contains all members of the job.
const ASSIGNMENTS_MAX: usize = 64;
/// Interval of the check whether another scheduler has taken over.
const LEASE_INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which what the manager has learned is stored, if it has changed.
const MEMORY_INTERVAL: Duration = Duration::from_secs(30);
/// Time limit for notifying a client of a failure, after which the nodes are freed.
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(2);

/// Heartbeat timing of clients that wait for jobs. When a client is dead, its jobs' nodes are
/// freed.
const CLIENT_SILENCE_LIMITS: SilenceLimits = SilenceLimits {
    check_interval: Duration::from_secs(1),
    suspect: Duration::from_secs(3),
    dead: Duration::from_secs(7),
};

/// Receiver of the news that a job runs or failed to start.
enum Waiter {
    /// The submitter waits for the answer.
    Submitter(oneshot::Sender<Result<JobGrant, SubmitError>>),
    /// No caller waits. The client is notified of a failed start, as of any other end.
    Client(NodeId),
}

/// Notifications of a job's end that must arrive before the job is deleted from the store.
///
/// In the reverse order, a crash in between would lose the job's end.
#[derive(Default)]
struct PendingEnd {
    /// Number of notifications under way.
    in_flight: u32,
    /// Whether the job is to be deleted once all have arrived.
    forget: bool,
}

/// The scheduler actor, published as [`SCHEDULER`](crate::job::SCHEDULER).
pub struct Scheduler {
    core: SchedulerCore,
    store: Store,
    hub: Arc<Hub>,
    net: Net,
    links: Arc<LinkChanges>,
    recorder: Recorder,
    waiters: BTreeMap<JobId, Waiter>,
    /// Jobs whose end is being reported to their client.
    pending_ends: BTreeMap<JobId, PendingEnd>,
    drains: BTreeMap<u64, oneshot::Sender<Result<DrainResult, DrainError>>>,
    last_drain: u64,
    assigning: Arc<Semaphore>,
    /// Assignments under way, and whether they are still needed.
    assignments: BTreeMap<(JobId, NodeId), Arc<AtomicBool>>,
    /// Processes of sites that are not in this process.
    places: BTreeMap<ClusterId, Contact>,
    /// Times at which sites restart their absent nodes.
    retries: BTreeMap<NodeId, Instant>,
    /// Failure detector for clients that wait for jobs, because their links report a failure only
    /// later.
    clients: Detector,
    /// Time at which the core is due, and the timer for it.
    timer: Option<(Instant, SpawnHandle)>,
    /// Whether another scheduler has taken over.
    superseded: bool,
    /// Jobs of an earlier scheduler, until this one starts.
    recovered: Vec<RecoveredJob>,
    /// Clusters whose sites will register.
    expected: Vec<ClusterId>,
    /// Links between clusters, for brokers.
    expected_links: Vec<GridLink>,
    /// Members of a head with a second one.
    members: Option<MemberWatch>,
    /// The head's store of programs.
    programs: Option<ProgramAccess>,
    /// Jobs whose programs the store keeps.
    program_jobs: BTreeSet<JobId>,
}

/// To the scheduler of this process: its head has a second one, whose state is shown with its own.
#[derive(Message)]
#[rtype(result = "()")]
pub struct ShowMembers(pub MemberWatch);

impl Scheduler {
    /// Creates a scheduler on the node of `net`.
    ///
    /// `links` reports disconnected clients, and `recorder` records events. `settings` are those of
    /// the malleability manager.
    pub fn new(
        net: Net,
        hub: Arc<Hub>,
        links: Arc<LinkChanges>,
        store: Store,
        recorder: Recorder,
        settings: ManagerSettings,
    ) -> Self {
        let expected_links = settings.grid_links.clone();
        let core = SchedulerCore::new(net.contact(), settings, Instant::now());
        let (waiters, drains) = (BTreeMap::new(), BTreeMap::new());
        Self {
            core,
            store,
            hub,
            net,
            links,
            recorder,
            waiters,
            pending_ends: BTreeMap::new(),
            drains,
            last_drain: 0,
            assigning: Arc::new(Semaphore::new(ASSIGNMENTS_MAX)),
            assignments: BTreeMap::new(),
            places: BTreeMap::new(),
            members: None,
            retries: BTreeMap::new(),
            clients: Detector::new(CLIENT_SILENCE_LIMITS, Instant::now()),
            timer: None,
            superseded: false,
            recovered: Vec::new(),
            expected: Vec::new(),
            expected_links,
            programs: None,
            program_jobs: BTreeSet::new(),
        }
    }

    /// Continues jobs of an earlier scheduler ([`Store::recover`]). `clusters` are those whose
    /// sites will register.
    pub fn recovering(self, recovered: Vec<RecoveredJob>, clusters: Vec<ClusterId>) -> Self {
        Self { recovered, expected: clusters, ..self }
    }

    /// Keeps the programs of jobs in this store until the jobs have ended.
    pub fn keeping_programs(self, programs: Option<ProgramAccess>) -> Self {
        Self { programs, ..self }
    }

    /// Handles a failed write to the store. If another scheduler took over, this one stops all
    /// work.
    fn store_failed(&mut self, error: &StoreError) {
        tracing::error!("{error}");
        let (part, what) = ("scheduler".to_owned(), error.to_string());
        self.recorder.record(GridEvent::Fault { part, what });
        self.superseded |= matches!(error, StoreError::Lease(LeaseError::Superseded { .. }));
    }

    /// Handles the result of a write that may fail. Later schedulers then lack the entry.
    fn check_write(&mut self, written: Result<(), StoreError>) {
        if let Err(error) = written {
            self.store_failed(&error);
        }
    }

    /// Sends pings to clients that wait for jobs. Jobs of clients that do not answer end.
    fn check_clients(&mut self, ctx: &mut Context<Self>) {
        let clients = self.core.waiting_clients();
        let now = Instant::now();
        // Names of clients are unique, so that one incarnation suffices for each.
        let watched = clients.iter().map(|client| (client.clone(), Incarnation(0)));
        self.clients.watch(watched, now);
        for finding in self.clients.check(now) {
            let Finding::Dead(node, silence) = finding else { continue };
            let what = format!("client {node} has been silent for {:.1} s", silence.as_secs_f64());
            tracing::warn!("{what}: its jobs end");
            self.recorder.record(GridEvent::Fault { part: "scheduler".to_owned(), what });
            self.feed(ctx, SchedulerEvent::Link { node, up: false });
        }
        for client in clients {
            let prober: Remote<Prober> = self.hub.remote(&client, PROBER);
            let call = prober.send(Ping {}).deadline(CLIENT_SILENCE_LIMITS.suspect).start();
            ctx.spawn(call.into_actor(self).map(move |answer, act: &mut Self, _| {
                let is_alive = |error: &RemoteError| {
                    matches!(error, RemoteError::NoActor { .. } | RemoteError::Refused { .. })
                };
                if answer.as_ref().err().is_none_or(is_alive) {
                    act.clients.record_message(&client, Incarnation(0), Instant::now());
                }
            }));
        }
    }

    fn check_lease(&mut self) {
        if !self.superseded
            && let Err(error) = self.store.check()
        {
            self.store_failed(&error);
        }
    }

    /// Feeds a submission without a waiting caller. Its client is notified if the job does not
    /// start.
    fn feed_without_waiter(
        &mut self,
        ctx: &mut Context<Self>,
        job: JobId,
        client: NodeId,
        event: SchedulerEvent,
    ) {
        self.waiters.insert(job, Waiter::Client(client));
        self.feed(ctx, event);
    }

    /// Answers the receiver that waits for a job's start.
    fn answer(
        &mut self,
        ctx: &mut Context<Self>,
        job: JobId,
        answer: Result<JobGrant, SubmitError>,
    ) {
        match (self.waiters.remove(&job), answer) {
            (Some(Waiter::Submitter(reply)), answer) => {
                // If the submitter has gone, its link is down too, and the job is cancelled for
                // that reason.
                let _ = reply.send(answer);
            }
            (Some(Waiter::Client(client)), Err(error)) => {
                let error = match error {
                    SubmitError::Cancelled { reason } => JobError::Cancelled { reason },
                    SubmitError::NotPlaced { reason } => JobError::Start { reason },
                    error => JobError::Start { reason: error.to_string() },
                };
                self.notify_end(ctx, client, job, error, VecDeque::new());
            }
            // The job runs: its coordinator reports its end to the client.
            (Some(Waiter::Client(_)), Ok(_)) | (None, _) => {}
        }
    }

    /// Notifies a client of a job's end. Executes `later` after the answer or the time limit.
    ///
    /// The job is not deleted from the store before the client has answered.
    fn notify_end(
        &mut self,
        ctx: &mut Context<Self>,
        client: NodeId,
        job: JobId,
        error: JobError,
        later: VecDeque<core::SchedulerAction>,
    ) {
        self.pending_ends.entry(job).or_default().in_flight += 1;
        let remote: Remote<Client> = self.hub.remote(&client, CLIENT);
        let (outcome, report) = (Err(error.clone()), JobReport::default());
        let ended = JobEndReport { job, epoch: None, outcome, report };
        let call = remote.send(ended).deadline(NOTIFY_TIMEOUT).start();
        let then = move |notified: Result<(), RemoteError>, act: &mut Self, ctx: &mut _| {
            act.execute(ctx, later);
            match &notified {
                // A client in this process still exists: it is busy, or waits for the disk.
                Err(RemoteError::Timeout { .. }) if client == act.net.me().node => {
                    act.notify_end(ctx, client, job, error, VecDeque::new());
                }
                Err(why) => {
                    tracing::warn!("the client was not notified that {job} ended ({error}): {why}")
                }
                Ok(()) => {}
            }
            act.notification_done(job);
        };
        ctx.spawn(call.into_actor(self).map(then));
    }

    /// A notification of a job's end is complete.
    fn notification_done(&mut self, job: JobId) {
        let Some(pending_ends) = self.pending_ends.get_mut(&job) else { return };
        pending_ends.in_flight -= 1;
        if pending_ends.in_flight == 0
            && self.pending_ends.remove(&job).is_some_and(|pending_ends| pending_ends.forget)
        {
            self.forget(job);
        }
    }

    /// Deletes a job from the store once its client knows of its end.
    fn forget(&mut self, job: JobId) {
        match self.pending_ends.get_mut(&job) {
            Some(pending_ends) => pending_ends.forget = true,
            None if self.superseded => {} // the job belongs to another scheduler
            None => {
                let written = self.store.record_end(job);
                self.check_write(written);
            }
        }
    }

    /// A submission from this process belongs to the head itself.
    fn sign_local(&self, submit: &mut Submit) {
        let me = self.net.me();
        let own = || Principal::of_head(me.node.clone(), me.cluster.clone());
        submit.principal.get_or_insert_with(own);
    }

    fn feed(&mut self, ctx: &mut Context<Self>, event: SchedulerEvent) {
        if self.superseded {
            return; // this scheduler has no authority any longer
        }
        self.record_freed(&event);
        let now = Instant::now();
        // A panic leaves the core in an undefined state, and the end of this actor alone would
        // leave its grid without a scheduler.
        let handled = catch_unwind(AssertUnwindSafe(|| self.core.handle(event, now)));
        let actions = handled.unwrap_or_else(|panic| abort_after_panic(&*panic));
        self.store.add_history(&self.core.take_history());
        self.set_timer(ctx);
        self.execute(ctx, actions.into());
    }

    /// Stores what the manager has learned, so that the next scheduler continues with it.
    fn store_memory(&mut self) {
        if !self.superseded {
            let written = self.store.record_memory(self.core.memory());
            self.check_write(written);
        }
    }

    fn set_timer(&mut self, ctx: &mut Context<Self>) {
        let due = self.core.due();
        if self.timer.map(|(at, _)| at) == due {
            return;
        }
        if let Some((_, handle)) = self.timer.take() {
            ctx.cancel_future(handle);
        }
        self.timer = due.map(|at| {
            let handle = ctx.run_later(at.saturating_duration_since(Instant::now()), |act, ctx| {
                act.timer = None;
                act.feed(ctx, SchedulerEvent::Tick);
            });
            (at, handle)
        });
    }
}

impl AdmitsMessages for Scheduler {
    fn standing(
        &mut self,
        from: &MessageOrigin,
        about: &MessageSubject,
        _: Option<&JobAuthority>,
    ) -> SenderStanding {
        self.core.standing(from, about.job)
    }

    /// The nodes of a job under recovery report its coordinator.
    fn ask(&self, _: &MessageOrigin, _: &MessageSubject) -> Option<AuthorityQuery> {
        Some(wait())
    }

    fn audit_log(&self) -> Option<&Arc<AuditLog>> {
        self.store.audit_log()
    }
}

crate::judged!(Scheduler);

impl Actor for Scheduler {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        let clusters = std::mem::take(&mut self.expected);
        let nodes = self.store.drained_nodes().clone();
        self.feed(ctx, SchedulerEvent::Marked { nodes });
        self.feed(ctx, SchedulerEvent::Expect { clusters });
        let reservations = self.store.reservations().values().cloned().collect();
        let last = self.store.last_reservation();
        self.feed(ctx, SchedulerEvent::Reserved(reservations, last));
        if let Some(memory) = self.store.memory().cloned() {
            self.feed(ctx, SchedulerEvent::Learned(Box::new(memory)));
        }
        let former_history = self.store.history();
        for found in std::mem::take(&mut self.recovered) {
            let (job, client) = (found.job, found.submit.client.node.clone());
            tracing::info!("{job} ({}) belongs to an earlier scheduler", found.submit.name);
            self.keep_program(job, &found.submit);
            self.feed_without_waiter(ctx, job, client, SchedulerEvent::Recovered(Box::new(found)));
        }
        self.feed(ctx, SchedulerEvent::FormerHistory(former_history));
        ctx.run_interval(LEASE_INTERVAL, |act, _| {
            act.check_lease();
            act.release_programs();
        });
        ctx.run_interval(MEMORY_INTERVAL, |act, _| act.store_memory());
        ctx.run_interval(CLIENT_SILENCE_LIMITS.check_interval, |act, ctx| act.check_clients(ctx));
        let (links, me) = (Arc::clone(&self.links), ctx.address().downgrade());
        ctx.spawn(
            async move {
                loop {
                    let news = links.next().await;
                    for (node, link) in news {
                        let Some(me) = me.upgrade() else { return };
                        let down = match link {
                            LinkChange::Up => None,
                            LinkChange::Down(why) => Some(why.text),
                        };
                        let _ = me.send(LinkChanged { node, down }).await;
                    }
                }
            }
            .into_actor(self),
        );
    }
}

/// A link went up or down. For nodes, sites report more; for clients, this is the only report.
#[derive(Message)]
#[rtype(result = "()")]
struct LinkChanged {
    node: NodeId,
    /// Reason of the failure, if the link is down.
    down: Option<String>,
}

impl Handler<LinkChanged> for Scheduler {
    type Result = ();

    fn handle(&mut self, LinkChanged { node, down }: LinkChanged, ctx: &mut Self::Context) {
        self.feed(ctx, SchedulerEvent::Link { node: node.clone(), up: down.is_none() });
        if down.is_none() {
            self.keep_programs_of(&node);
        }
        if let Some(why) = down {
            self.feed(ctx, SchedulerEvent::LinkDown { node, why });
        }
    }
}

impl Handler<Submit> for Scheduler {
    type Result = ResponseFuture<Result<JobGrant, SubmitError>>;

    fn handle(&mut self, mut submit: Submit, ctx: &mut Self::Context) -> Self::Result {
        self.sign_local(&mut submit);
        if let Err(error) = self.check_submission(&submit) {
            return Box::pin(async move { Err(error) });
        }
        let (job, epoch) = match self.store.new_job() {
            Ok(issued) => issued,
            Err(error) => {
                let reason = error.to_string();
                return Box::pin(async move { Err(SubmitError::Store { reason }) });
            }
        };
        let principal = submit.principal.as_ref().map(ToString::to_string).unwrap_or_default();
        tracing::info!("{job} ({}) was submitted by {principal}", submit.name);
        self.net.learn_if_down(submit.client.clone());
        self.keep_program(job, &submit);
        let (reply, answer) = oneshot::channel();
        self.waiters.insert(job, Waiter::Submitter(reply));
        self.feed(ctx, SchedulerEvent::Submit { job, epoch, submit: Box::new(submit) });
        Box::pin(async move {
            let lost = || SubmitError::Cancelled { reason: "the scheduler ended".to_owned() };
            answer.await.unwrap_or_else(|_| Err(lost()))
        })
    }
}

impl Handler<Enqueue> for Scheduler {
    type Result = Result<JobId, SubmitError>;

    fn handle(&mut self, Enqueue(mut submit): Enqueue, ctx: &mut Self::Context) -> Self::Result {
        self.sign_local(&mut submit);
        self.check_submission(&submit)?;
        let issued = self.store.new_job().and_then(|(job, epoch)| {
            self.store.store_submission(job, epoch, &submit)?;
            Ok((job, epoch))
        });
        let (job, epoch) = issued.map_err(|error| {
            self.store_failed(&error);
            SubmitError::Store { reason: error.to_string() }
        })?;
        let principal = submit.principal.as_ref().map(ToString::to_string).unwrap_or_default();
        tracing::info!("{job} ({}) was submitted by {principal}, which does not wait", submit.name);
        let client = submit.client.node.clone();
        self.keep_program(job, &submit);
        let event = SchedulerEvent::Submit { job, epoch, submit: Box::new(submit) };
        self.feed_without_waiter(ctx, job, client, event);
        Ok(job)
    }
}

impl Handler<SubmissionBatch> for Scheduler {
    type Result = Result<SubmittedJobs, SubmitError>;

    fn handle(
        &mut self,
        SubmissionBatch(mut submits): SubmissionBatch,
        ctx: &mut Self::Context,
    ) -> Self::Result {
        submits.iter_mut().for_each(|submit| self.sign_local(submit));
        let checked = submits.iter().map(|submit| self.check_submission(submit));
        let wrong = checked.enumerate().find_map(|(at, checked)| Some((at, checked.err()?)));
        let (count, refused) = match wrong {
            Some((at, error)) => (at, Some(error)),
            None => (submits.len(), None),
        };
        submits.truncate(count);
        let issued = self.store.new_jobs(&submits).map_err(|error| {
            self.store_failed(&error);
            SubmitError::Store { reason: error.to_string() }
        })?;
        let jobs: Vec<JobId> = issued.iter().map(|(job, _)| *job).collect();
        if let (Some(first), Some(last), Some(one)) = (jobs.first(), jobs.last(), submits.first()) {
            let principal = one.principal.as_ref().map(ToString::to_string).unwrap_or_default();
            tracing::info!("{first} to {last} were submitted by {principal}, which does not wait");
        }
        let mut all = Vec::with_capacity(submits.len());
        for ((job, epoch), submit) in issued.into_iter().zip(submits) {
            self.waiters.insert(job, Waiter::Client(submit.client.node.clone()));
            self.keep_program(job, &submit);
            all.push(NumberedSubmission { job, epoch, submit: Box::new(submit) });
        }
        self.feed(ctx, SchedulerEvent::SubmitAll(all));
        Ok(SubmittedJobs { jobs, refused })
    }
}

impl Handler<ResizeJob> for Scheduler {
    type Result = Result<ResizeAck, ResizeError>;

    fn handle(&mut self, order: ResizeJob, ctx: &mut Self::Context) -> Self::Result {
        let resized = self.core.check_resize(&order)?;
        self.recorder.record(GridEvent::Decision {
            decision: format!(
                "resize {} to {} processors, from {}",
                order.job, resized.to, resized.from
            ),
            why: "by order".to_owned(),
            inputs: serde_json::to_value(&order).unwrap_or_default(),
        });
        self.feed(ctx, SchedulerEvent::Resize(order));
        Ok(resized)
    }
}

impl Handler<NeedNodes> for Scheduler {
    type Result = Result<ResizeAck, ResizeError>;

    fn handle(&mut self, need: NeedNodes, ctx: &mut Self::Context) -> Self::Result {
        let NeedNodes { job, epoch, count, timeout_ms: within_ms, number } = need;
        if self.core.check(job, epoch).is_err() {
            return Err(ResizeError::NotRunning { job });
        }
        let order =
            ResizeJob { job, by: Resize::Grow { count, timeout_ms: within_ms, cluster: None } };
        let resized = self.core.check_resize(&order)?;
        self.feed(ctx, SchedulerEvent::Need { order, number });
        Ok(resized)
    }
}

impl Handler<GetJob> for Scheduler {
    type Result = MessageResult<GetJob>;

    fn handle(&mut self, GetJob { job }: GetJob, _: &mut Self::Context) -> Self::Result {
        MessageResult(self.core.detail(job, Instant::now()))
    }
}

impl Handler<GetAuthority> for Scheduler {
    type Result = MessageResult<GetAuthority>;

    fn handle(&mut self, ask: GetAuthority, _: &mut Self::Context) -> Self::Result {
        MessageResult(self.core.authority(ask.job, &ask.node).filter(|_| !self.superseded))
    }
}

impl Handler<PlanJob> for Scheduler {
    type Result = Result<PlacementPlan, PlanError>;

    fn handle(&mut self, PlanJob { need }: PlanJob, ctx: &mut Self::Context) -> Self::Result {
        need.check().and_then(|()| self.core.check_files(&need)).map_err(PlanError::Need)?;
        self.feed(ctx, SchedulerEvent::Poll);
        self.core.plan(&need).map_err(PlanError::NoPlace)
    }
}

impl Handler<RequestNodes> for Scheduler {
    type Result = Result<OpenNodes, AuthorityError>;

    fn handle(&mut self, request: RequestNodes, ctx: &mut Self::Context) -> Self::Result {
        let job = request.job;
        self.core.check(job, request.epoch)?;
        self.feed(ctx, SchedulerEvent::Request(Box::new(request)));
        Ok(OpenNodes { open: self.core.asked(job) })
    }
}

impl Handler<WithdrawNodes> for Scheduler {
    type Result = Result<OpenNodes, AuthorityError>;

    fn handle(&mut self, withdraw: WithdrawNodes, ctx: &mut Self::Context) -> Self::Result {
        self.core.check(withdraw.job, withdraw.epoch)?;
        self.feed(ctx, SchedulerEvent::Withdraw(withdraw));
        Ok(OpenNodes { open: self.core.asked(withdraw.job) })
    }
}

impl Handler<GetOffers> for Scheduler {
    type Result = Result<Offers, AuthorityError>;

    fn handle(&mut self, ask: GetOffers, _: &mut Self::Context) -> Self::Result {
        self.core.offers(ask.job, ask.epoch, Instant::now())
    }
}

impl Handler<GetSample> for Scheduler {
    type Result = Result<Option<Contact>, AuthorityError>;

    fn handle(&mut self, ask: GetSample, _: &mut Self::Context) -> Self::Result {
        self.core.sample(ask.job, ask.epoch, &ask.cluster)
    }
}

impl Handler<NodeFreed> for Scheduler {
    type Result = ();

    fn handle(&mut self, freed: NodeFreed, ctx: &mut Self::Context) {
        tracing::info!("{} frees node {}: {:?}", freed.job, freed.node, freed.why);
        self.feed(ctx, SchedulerEvent::Freed(freed));
    }
}

impl Handler<HandOver> for Scheduler {
    type Result = Result<(), AuthorityError>;

    fn handle(&mut self, order: HandOver, ctx: &mut Self::Context) -> Self::Result {
        self.core.check(order.job, order.epoch)?;
        tracing::info!("{} is handed over to {}: {}", order.job, order.to, order.reason);
        self.feed(ctx, SchedulerEvent::HandOver(order));
        Ok(())
    }
}

impl Handler<ConfirmMembership> for Scheduler {
    type Result = Result<(), AuthorityError>;

    fn handle(&mut self, ask: ConfirmMembership, _: &mut Self::Context) -> Self::Result {
        if self.superseded {
            return Ok(()); // another scheduler knows
        }
        let ConfirmMembership { job, node, incarnation } = ask;
        let confirmed = self.core.confirm_member(job, &node, incarnation);
        if let Err(stale) = &confirmed {
            let (part, what) = (node.to_string(), stale.to_string());
            tracing::warn!("{what}");
            self.recorder.record(GridEvent::Fault { part, what });
        }
        confirmed
    }
}

impl Handler<RootAdvanced> for Scheduler {
    type Result = ();

    fn handle(&mut self, advanced: RootAdvanced, ctx: &mut Self::Context) {
        self.feed(ctx, SchedulerEvent::RootAdvanced(advanced));
    }
}

impl Handler<JobEfficiency> for Scheduler {
    type Result = ();

    fn handle(&mut self, report: JobEfficiency, ctx: &mut Self::Context) {
        self.feed(ctx, SchedulerEvent::EfficiencyMeasured(report));
    }
}

impl Handler<Subscribe> for Scheduler {
    type Result = ();

    fn handle(&mut self, subscribe: Subscribe, ctx: &mut Self::Context) {
        self.feed(ctx, SchedulerEvent::Subscribe(subscribe));
    }
}

impl Handler<SpeedsMeasured> for Scheduler {
    type Result = ();

    fn handle(&mut self, speeds: SpeedsMeasured, ctx: &mut Self::Context) {
        self.feed(ctx, SchedulerEvent::SpeedsMeasured(speeds));
    }
}

impl Handler<Drain> for Scheduler {
    type Result = ResponseFuture<Result<DrainResult, DrainError>>;

    fn handle(&mut self, order: Drain, ctx: &mut Self::Context) -> Self::Result {
        self.recorder.record(GridEvent::Decision {
            decision: format!("drain {} nodes", order.nodes.len()),
            why: order.reason.clone(),
            inputs: serde_json::to_value(&order).unwrap_or_default(),
        });
        self.last_drain += 1;
        let (drain, (reply, answer)) = (self.last_drain, oneshot::channel());
        self.drains.insert(drain, reply);
        self.feed(ctx, SchedulerEvent::Drain { drain, order });
        Box::pin(async move { answer.await.unwrap_or(Err(DrainError::Ended)) })
    }
}

impl Handler<Undrain> for Scheduler {
    type Result = Result<(), DrainError>;

    fn handle(&mut self, Undrain { nodes }: Undrain, ctx: &mut Self::Context) -> Self::Result {
        self.core.check_nodes(&nodes)?;
        self.recorder.record(GridEvent::Decision {
            decision: format!("put {} nodes back into service", nodes.len()),
            why: "by order".to_owned(),
            inputs: serde_json::json!({ "nodes": nodes }),
        });
        self.retries.retain(|node, _| !nodes.contains(node));
        self.feed(ctx, SchedulerEvent::Undrain { nodes });
        Ok(())
    }
}

impl Handler<CancelJob> for Scheduler {
    type Result = ();

    fn handle(&mut self, CancelJob { job, reason }: CancelJob, ctx: &mut Self::Context) {
        self.feed(ctx, SchedulerEvent::Cancel { job, reason });
    }
}

impl Handler<CancelClientJobs> for Scheduler {
    type Result = ();

    fn handle(&mut self, message: CancelClientJobs, ctx: &mut Self::Context) {
        self.feed(ctx, SchedulerEvent::CancelOf { client: message.client, reason: message.reason });
    }
}

impl Handler<JobEndNotice> for Scheduler {
    type Result = ();

    fn handle(
        &mut self,
        JobEndNotice { job, epoch, ok, ended }: JobEndNotice,
        ctx: &mut Self::Context,
    ) {
        tracing::info!(ok, "{job} is over");
        self.feed(ctx, SchedulerEvent::JobOver { job, epoch, ended, ok });
    }
}

impl Handler<GetStatus> for Scheduler {
    type Result = MessageResult<GetStatus>;

    fn handle(&mut self, _: GetStatus, _: &mut Self::Context) -> Self::Result {
        let members = self.members.as_ref().map(MemberWatch::members).unwrap_or_default();
        let superseded = self.superseded;
        let mut status = GridStatus { superseded, members, ..self.core.status() };
        let now = Instant::now();
        for node in status.sites.values_mut().flat_map(|site| &mut site.nodes) {
            if matches!(node.state, NodeState::Starting | NodeState::Broken)
                && let Some(at) = self.retries.get(&node.node)
            {
                let left = at.saturating_duration_since(now).as_millis();
                node.next_try_ms = Some(u64::try_from(left).unwrap_or(u64::MAX));
            }
        }
        MessageResult(status)
    }
}

impl Handler<GetWait> for Scheduler {
    type Result = Option<String>;

    fn handle(&mut self, GetWait { client }: GetWait, _: &mut Self::Context) -> Self::Result {
        self.core.wait_of(&client)
    }
}

impl Handler<ShowMembers> for Scheduler {
    type Result = ();

    fn handle(&mut self, ShowMembers(members): ShowMembers, _: &mut Self::Context) {
        self.members = Some(members);
    }
}

impl Handler<GetKnownJobs> for Scheduler {
    type Result = MessageResult<GetKnownJobs>;

    fn handle(&mut self, _: GetKnownJobs, _: &mut Self::Context) -> Self::Result {
        MessageResult((!self.superseded).then(|| self.core.known()))
    }
}

impl Handler<SiteRegistration> for Scheduler {
    type Result = ();

    fn handle(&mut self, message: SiteRegistration, ctx: &mut Self::Context) {
        match message.at.clone() {
            Some(at) => {
                self.net.learn_if_down(at.clone());
                self.places.insert(message.cluster.clone(), at);
            }
            None => drop(self.places.remove(&message.cluster)),
        }
        self.feed(ctx, SchedulerEvent::SiteUp(message));
    }
}

impl Handler<SiteReport> for Scheduler {
    type Result = ();

    fn handle(&mut self, message: SiteReport, ctx: &mut Self::Context) {
        if let Err(reason) = &message.found {
            let part = format!("site {}", message.cluster);
            self.recorder.record(GridEvent::Fault { part, what: reason.clone() });
        }
        self.feed(ctx, SchedulerEvent::SitePolled(message));
    }
}

impl Handler<StubDelay> for Scheduler {
    type Result = ();

    fn handle(&mut self, message: StubDelay, ctx: &mut Self::Context) {
        self.feed(ctx, SchedulerEvent::StubWaits(message));
    }
}

impl Handler<StubLoss> for Scheduler {
    type Result = ();

    fn handle(&mut self, message: StubLoss, ctx: &mut Self::Context) {
        tracing::info!("the stub of {} has ended: {}", message.node, message.reason);
        self.feed(ctx, SchedulerEvent::StubGone(message));
    }
}

impl Handler<NodeRegistration> for Scheduler {
    type Result = ();

    fn handle(&mut self, registration: NodeRegistration, ctx: &mut Self::Context) {
        tracing::info!("node {} has registered", registration.node);
        self.retries.remove(&registration.node);
        if self.places.contains_key(&registration.cluster) {
            // The node has connected to its site, not to this process.
            let (node, cluster) = (registration.node.clone(), registration.cluster.clone());
            let contact = Contact { node, cluster, address: registration.address.clone() };
            self.net.learn_incarnation(contact, registration.incarnation);
        }
        self.recorder.record(GridEvent::NodeRegistered {
            node: registration.node.clone(),
            cluster: registration.cluster.clone(),
            incarnation: registration.incarnation,
            threads: registration.threads,
            job: registration.work.as_ref().map(|work| work.job),
        });
        self.feed(ctx, SchedulerEvent::Registered(registration));
    }
}

impl Handler<MemberSilent> for Scheduler {
    type Result = ();

    fn handle(&mut self, message: MemberSilent, ctx: &mut Self::Context) {
        let part = message.node.to_string();
        self.recorder.record(GridEvent::Fault { part, what: message.reason.clone() });
        self.feed(ctx, SchedulerEvent::MemberSilent(message));
    }
}

impl Handler<NodeLoss> for Scheduler {
    type Result = ();

    fn handle(&mut self, message: NodeLoss, ctx: &mut Self::Context) {
        let NodeLoss { node, reason, returns, retry_ms } = message;
        let wait = retry_ms.map(Duration::from_millis);
        match wait.and_then(|wait| Instant::now().checked_add(wait)) {
            Some(at) => drop(self.retries.insert(node.clone(), at)),
            None => drop(self.retries.remove(&node)),
        }
        let part = "scheduler".to_owned();
        self.recorder
            .record(GridEvent::Fault { part, what: format!("node {node} is lost: {reason}") });
        self.feed(ctx, SchedulerEvent::NodeLost { node, reason, returns });
    }
}

#[cfg(test)]
mod tests;
