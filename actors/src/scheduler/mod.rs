//! The scheduler: one a grid. It knows the nodes of every site, queues jobs, and hands them nodes.
//!
//! `core` decides; the actor here is told and asked, and carries out (`act`). It must not know how nodes are started, nor what a job computes.

mod act;
pub mod core;
mod exchange;
mod inputs;
pub mod manager;
mod messages;
mod reserve;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use actix::prelude::*;
use springtide_runtime::event::{Event as Told, Recorder};
use springtide_runtime::id::{ClusterId, Incarnation, JobId, NodeId};
use springtide_runtime::membership::{Detector, Finding, Patience};
use springtide_runtime::net::{Contact, Net};
use springtide_runtime::remote::{Hub, Origin, Remote, RemoteError};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::Instant;

use self::core::{Core, Event, Recovered};
pub use self::exchange::*;
use self::manager::Settings;
pub use self::messages::*;
pub use self::reserve::*;
use crate::admit::{About, Asking, Judges, Principal, Standing, wait};
use crate::client::Client;
use crate::job::{CLIENT, JobEnded, JobError, JobOver, JobReport};
use crate::lease::LeaseError;
use crate::links::{Link, Links};
use crate::policy::malleability::Placed;
use crate::probe::{PROBER, Ping, Prober};
use crate::store::{Store, StoreError};

/// Within this time a node that is left at work for an ended job leaves it, and a job whose
/// coordinator has gone without a word ends: an audit, a release that is not answered, and the
/// node's restart.
pub const RECONCILED_WITHIN: Duration = Duration::from_secs(100);
/// So many assignments are under way at most: each has all members of the job in it.
const ASSIGNING_MAX: usize = 64;
/// How often it is looked whether another scheduler has taken over.
const LEASE_EVERY: Duration = Duration::from_secs(1);
/// A client is told of a failure for this long before the nodes are freed.
const TELL_WITHIN: Duration = Duration::from_secs(2);

/// How long a process that waits for a job may be silent: then its job's nodes are freed.
const CLIENT_PATIENCE: Patience = Patience {
    every: Duration::from_secs(1),
    suspect: Duration::from_secs(3),
    dead: Duration::from_secs(7),
};

/// Who is to hear whether a job runs.
enum Waiter {
    /// Who submitted it and waits.
    Submitter(oneshot::Sender<Result<Granted, SubmitError>>),
    /// Nobody waits: its client is told if it does not, as of any other end.
    Client(NodeId),
}

/// What is to be told of a job before it may be forgotten: were it the other way round, a crash in between would lose its end.
#[derive(Default)]
struct Telling {
    /// So many words are under way.
    words: u32,
    /// It is to be forgotten when all have come.
    forget: bool,
}

/// The scheduler actor, published as [`SCHEDULER`](crate::job::SCHEDULER).
pub struct Scheduler {
    core: Core,
    store: Store,
    hub: Arc<Hub>,
    net: Net,
    links: Arc<Links>,
    recorder: Recorder,
    waiting: BTreeMap<JobId, Waiter>,
    /// Jobs whose client is being told of their end.
    telling: BTreeMap<JobId, Telling>,
    drains: BTreeMap<u64, oneshot::Sender<Result<Drained, DrainError>>>,
    last_drain: u64,
    assigning: Arc<Semaphore>,
    /// Assignments that are under way, and whether they are wanted still.
    assignments: BTreeMap<(JobId, NodeId), Arc<AtomicBool>>,
    /// Where sites are that have a process of their own.
    places: BTreeMap<ClusterId, Contact>,
    /// When sites start nodes again that are not there.
    retries: BTreeMap<NodeId, Instant>,
    /// Watches the processes that wait for jobs: their links tell of their end only later.
    clients: Detector,
    /// When the core wants to be asked again.
    timer: Option<(Instant, SpawnHandle)>,
    /// Another scheduler has taken over.
    superseded: bool,
    /// Jobs of a former scheduler, until this one begins.
    recovered: Vec<Recovered>,
    /// Clusters whose sites will come.
    expected: Vec<ClusterId>,
    /// Links between clusters, for brokers.
    expected_links: Vec<GridLink>,
}

impl Scheduler {
    /// A scheduler on the node of `net`. `links` tells of clients that go; what happens goes to `recorder`.
    /// `settings`: how jobs that say what they need are managed.
    pub fn new(
        net: Net,
        hub: Arc<Hub>,
        links: Arc<Links>,
        store: Store,
        recorder: Recorder,
        settings: Settings,
    ) -> Self {
        let expected_links = settings.grid_links.clone();
        let core = Core::new(net.contact(), settings, Instant::now());
        let (waiting, drains) = (BTreeMap::new(), BTreeMap::new());
        Self {
            core,
            store,
            hub,
            net,
            links,
            recorder,
            waiting,
            telling: BTreeMap::new(),
            drains,
            last_drain: 0,
            assigning: Arc::new(Semaphore::new(ASSIGNING_MAX)),
            assignments: BTreeMap::new(),
            places: BTreeMap::new(),
            retries: BTreeMap::new(),
            clients: Detector::new(CLIENT_PATIENCE, Instant::now()),
            timer: None,
            superseded: false,
            recovered: Vec::new(),
            expected: Vec::new(),
            expected_links,
        }
    }

    /// Goes on with jobs that a former scheduler had ([`Store::recover`]). `clusters`: whose sites will come.
    pub fn recovering(self, recovered: Vec<Recovered>, clusters: Vec<ClusterId>) -> Self {
        Self { recovered, expected: clusters, ..self }
    }

    /// The store did not take something. If that is because another scheduler took over, this one does nothing any more.
    fn store_failed(&mut self, error: &StoreError) {
        tracing::error!("{error}");
        let (part, what) = ("scheduler".to_owned(), error.to_string());
        self.recorder.record(Told::Fault { part, what });
        self.superseded |= matches!(error, StoreError::Lease(LeaseError::Superseded { .. }));
    }

    /// What the store did not take a later scheduler will not know: this one goes on.
    fn noted(&mut self, noted: Result<(), StoreError>) {
        if let Err(error) = noted {
            self.store_failed(&error);
        }
    }

    /// Asks the processes that wait for jobs whether they are there. Jobs of those that do not answer end.
    fn look_after_clients(&mut self, ctx: &mut Context<Self>) {
        let clients = self.core.waiting_clients();
        let now = Instant::now();
        // Names of clients are never used again: one incarnation will do for each.
        let watched = clients.iter().map(|client| (client.clone(), Incarnation(0)));
        self.clients.watch(watched, now);
        for finding in self.clients.look(now) {
            let Finding::Dead(node, silent) = finding else { continue };
            let what = format!("client {node} is silent for {:.1} s", silent.as_secs_f64());
            tracing::warn!("{what}: its jobs end");
            self.recorder.record(Told::Fault { part: "scheduler".to_owned(), what });
            self.feed(ctx, Event::Link { node, up: false });
        }
        for client in clients {
            let prober: Remote<Prober> = self.hub.remote(&client, PROBER);
            let call = prober.send(Ping {}).deadline(CLIENT_PATIENCE.suspect).start();
            ctx.spawn(call.into_actor(self).map(move |answer, act: &mut Self, _| {
                let lives = |error: &RemoteError| {
                    matches!(error, RemoteError::NoActor { .. } | RemoteError::Refused { .. })
                };
                if answer.as_ref().err().is_none_or(lives) {
                    act.clients.heard(&client, Incarnation(0), Instant::now());
                }
            }));
        }
    }

    fn look_at_lease(&mut self) {
        if !self.superseded
            && let Err(error) = self.store.check()
        {
            self.store_failed(&error);
        }
    }

    /// Feeds a submission that nobody waits for. Why it does not run, if it does not, its client is told.
    fn feed_unwaited(&mut self, ctx: &mut Context<Self>, job: JobId, client: NodeId, event: Event) {
        self.waiting.insert(job, Waiter::Client(client));
        self.feed(ctx, event);
    }

    /// Answers whoever waits for word of whether a job runs.
    fn answer(
        &mut self,
        ctx: &mut Context<Self>,
        job: JobId,
        answer: Result<Granted, SubmitError>,
    ) {
        match (self.waiting.remove(&job), answer) {
            (Some(Waiter::Submitter(reply)), answer) => {
                // The submitter may have given up; then its link is down too, and the job is cancelled for it.
                let _ = reply.send(answer);
            }
            (Some(Waiter::Client(client)), Err(error)) => {
                let error = match error {
                    SubmitError::Cancelled { reason } => JobError::Cancelled { reason },
                    SubmitError::NotPlaced { reason } => JobError::Start { reason },
                    error => JobError::Start { reason: error.to_string() },
                };
                self.tell_end(ctx, client, job, error, VecDeque::new());
            }
            // It runs: its coordinator tells its client of its end.
            (Some(Waiter::Client(_)), Ok(_)) | (None, _) => {}
        }
    }

    /// Tells a client the end of a job, which is not forgotten before it has taken that in. When it has, or soon, `later` is carried
    /// out.
    fn tell_end(
        &mut self,
        ctx: &mut Context<Self>,
        client: NodeId,
        job: JobId,
        error: JobError,
        later: VecDeque<core::Action>,
    ) {
        self.telling.entry(job).or_default().words += 1;
        let remote: Remote<Client> = self.hub.remote(&client, CLIENT);
        let (outcome, report) = (Err(error.clone()), JobReport::default());
        let ended = JobEnded { job, epoch: None, outcome, report };
        let call = remote.send(ended).deadline(TELL_WITHIN).start();
        let then = move |told: Result<(), RemoteError>, act: &mut Self, ctx: &mut _| {
            act.carry_out(ctx, later);
            match &told {
                // One in this process is there: it has much to write, or waits for the disk.
                Err(RemoteError::Timeout { .. }) if client == act.net.me().node => {
                    act.tell_end(ctx, client, job, error, VecDeque::new());
                }
                Err(why) => tracing::warn!("nobody heard that {job} ended ({error}): {why}"),
                Ok(()) => {}
            }
            act.told(job);
        };
        ctx.spawn(call.into_actor(self).map(then));
    }

    /// A word of a job's end is not under way any more.
    fn told(&mut self, job: JobId) {
        let Some(telling) = self.telling.get_mut(&job) else { return };
        telling.words -= 1;
        if telling.words == 0 && self.telling.remove(&job).is_some_and(|telling| telling.forget) {
            self.forget(job);
        }
    }

    /// Nothing of a job need be kept when its client has heard of its end.
    fn forget(&mut self, job: JobId) {
        match self.telling.get_mut(&job) {
            Some(telling) => telling.forget = true,
            None if self.superseded => {} // it is another's now
            None => {
                let noted = self.store.over(job);
                self.noted(noted);
            }
        }
    }

    /// A submission of this process is the head's own.
    fn sign_local(&self, submit: &mut Submit) {
        let me = self.net.me();
        let own = || Principal::of_head(me.node.clone(), me.cluster.clone());
        submit.principal.get_or_insert_with(own);
    }

    fn feed(&mut self, ctx: &mut Context<Self>, event: Event) {
        if self.superseded {
            return; // it has no say any more
        }
        let actions = self.core.handle(event, Instant::now());
        self.set_timer(ctx);
        self.carry_out(ctx, actions.into());
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
                act.feed(ctx, Event::Tick);
            });
            (at, handle)
        });
    }
}

impl Judges for Scheduler {
    fn standing(&mut self, from: &Origin, about: &About, _: Option<&JobAuthority>) -> Standing {
        self.core.standing(from, about.job)
    }

    /// The nodes of a job that is coming back will say who coordinates it.
    fn ask(&self, _: &Origin, _: &About) -> Option<Asking> {
        Some(wait())
    }
}

crate::judged!(Scheduler);

impl Actor for Scheduler {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        let clusters = std::mem::take(&mut self.expected);
        let nodes = self.store.drained_nodes().clone();
        self.feed(ctx, Event::Marked { nodes });
        self.feed(ctx, Event::Expect { clusters });
        let reservations = self.store.reservations().values().cloned().collect();
        let last = self.store.last_reservation();
        self.feed(ctx, Event::Reserved(reservations, last));
        for found in std::mem::take(&mut self.recovered) {
            let (job, client) = (found.job, found.submit.client.node.clone());
            tracing::info!("{job} ({}) is of a former scheduler", found.submit.name);
            self.feed_unwaited(ctx, job, client, Event::Recovered(Box::new(found)));
        }
        ctx.run_interval(LEASE_EVERY, |act, _| act.look_at_lease());
        ctx.run_interval(CLIENT_PATIENCE.every, |act, ctx| act.look_after_clients(ctx));
        let (links, me) = (Arc::clone(&self.links), ctx.address().downgrade());
        ctx.spawn(
            async move {
                loop {
                    let news = links.next().await;
                    for (node, link) in news {
                        let Some(me) = me.upgrade() else { return };
                        let down = match link {
                            Link::Up => None,
                            Link::Down(why) => Some(why.text),
                        };
                        let _ = me.send(LinkChanged { node, down }).await;
                    }
                }
            }
            .into_actor(self),
        );
    }
}

/// A link went up or down. Of a node its site tells more; of a client nobody else would tell.
#[derive(Message)]
#[rtype(result = "()")]
struct LinkChanged {
    node: NodeId,
    /// Why, if it is down.
    down: Option<String>,
}

impl Handler<LinkChanged> for Scheduler {
    type Result = ();

    fn handle(&mut self, LinkChanged { node, down }: LinkChanged, ctx: &mut Self::Context) {
        self.feed(ctx, Event::Link { node: node.clone(), up: down.is_none() });
        if let Some(why) = down {
            self.feed(ctx, Event::Unheard { node, why });
        }
    }
}

impl Handler<Submit> for Scheduler {
    type Result = ResponseFuture<Result<Granted, SubmitError>>;

    fn handle(&mut self, mut submit: Submit, ctx: &mut Self::Context) -> Self::Result {
        self.sign_local(&mut submit);
        if let Err(error) = self.check_files(&submit) {
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
        tracing::info!("{job} ({}) is submitted by {principal}", submit.name);
        self.net.introduce(submit.client.clone());
        let (reply, answer) = oneshot::channel();
        self.waiting.insert(job, Waiter::Submitter(reply));
        self.feed(ctx, Event::Submit { job, epoch, submit: Box::new(submit) });
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
        self.check_files(&submit)?;
        let issued = self.store.new_job().and_then(|(job, epoch)| {
            self.store.keep(job, epoch, &submit)?;
            Ok((job, epoch))
        });
        let (job, epoch) = issued.map_err(|error| {
            self.store_failed(&error);
            SubmitError::Store { reason: error.to_string() }
        })?;
        let principal = submit.principal.as_ref().map(ToString::to_string).unwrap_or_default();
        tracing::info!("{job} ({}) is submitted by {principal} and not waited for", submit.name);
        let client = submit.client.node.clone();
        let event = Event::Submit { job, epoch, submit: Box::new(submit) };
        self.feed_unwaited(ctx, job, client, event);
        Ok(job)
    }
}

impl Handler<ResizeJob> for Scheduler {
    type Result = Result<Resized, ResizeError>;

    fn handle(&mut self, order: ResizeJob, ctx: &mut Self::Context) -> Self::Result {
        let resized = self.core.check_resize(&order)?;
        self.recorder.record(Told::Decision {
            decision: format!(
                "make {} {} instead of {} processors large",
                order.job, resized.to, resized.from
            ),
            why: "told to".to_owned(),
            inputs: serde_json::to_value(&order).unwrap_or_default(),
        });
        self.feed(ctx, Event::Resize(order));
        Ok(resized)
    }
}

impl Handler<NeedNodes> for Scheduler {
    type Result = Result<Resized, ResizeError>;

    fn handle(&mut self, need: NeedNodes, ctx: &mut Self::Context) -> Self::Result {
        let NeedNodes { job, epoch, count, within_ms, number } = need;
        if self.core.check(job, epoch).is_err() {
            return Err(ResizeError::NotRunning { job });
        }
        let order = ResizeJob { job, by: Resize::Grow { count, within_ms, cluster: None } };
        let resized = self.core.check_resize(&order)?;
        self.feed(ctx, Event::Need { order, number });
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
    type Result = Result<Placed, PlanError>;

    fn handle(&mut self, PlanJob { need }: PlanJob, ctx: &mut Self::Context) -> Self::Result {
        need.check().and_then(|()| self.core.check_files(&need)).map_err(PlanError::Need)?;
        self.feed(ctx, Event::Poll);
        self.core.plan(&need).map_err(PlanError::NoPlace)
    }
}

impl Handler<RequestNodes> for Scheduler {
    type Result = Result<Requested, Stale>;

    fn handle(&mut self, request: RequestNodes, ctx: &mut Self::Context) -> Self::Result {
        let job = request.job;
        self.core.check(job, request.epoch)?;
        self.feed(ctx, Event::Request(Box::new(request)));
        Ok(Requested { open: self.core.asked(job) })
    }
}

impl Handler<WithdrawNodes> for Scheduler {
    type Result = Result<Requested, Stale>;

    fn handle(&mut self, withdraw: WithdrawNodes, ctx: &mut Self::Context) -> Self::Result {
        self.core.check(withdraw.job, withdraw.epoch)?;
        self.feed(ctx, Event::Withdraw(withdraw));
        Ok(Requested { open: self.core.asked(withdraw.job) })
    }
}

impl Handler<GetOffers> for Scheduler {
    type Result = Result<Offers, Stale>;

    fn handle(&mut self, ask: GetOffers, _: &mut Self::Context) -> Self::Result {
        self.core.offers(ask.job, ask.epoch, Instant::now())
    }
}

impl Handler<GetSample> for Scheduler {
    type Result = Result<Option<Contact>, Stale>;

    fn handle(&mut self, ask: GetSample, _: &mut Self::Context) -> Self::Result {
        self.core.sample(ask.job, ask.epoch, &ask.cluster)
    }
}

impl Handler<NodeFreed> for Scheduler {
    type Result = ();

    fn handle(&mut self, freed: NodeFreed, ctx: &mut Self::Context) {
        tracing::info!("{} frees node {}: {:?}", freed.job, freed.node, freed.why);
        self.feed(ctx, Event::Freed(freed));
    }
}

impl Handler<HandOver> for Scheduler {
    type Result = Result<(), Stale>;

    fn handle(&mut self, order: HandOver, ctx: &mut Self::Context) -> Self::Result {
        self.core.check(order.job, order.epoch)?;
        tracing::info!("{} is handed over to {}: {}", order.job, order.to, order.reason);
        self.feed(ctx, Event::HandOver(order));
        Ok(())
    }
}

impl Handler<ConfirmMembership> for Scheduler {
    type Result = Result<(), Stale>;

    fn handle(&mut self, ask: ConfirmMembership, _: &mut Self::Context) -> Self::Result {
        if self.superseded {
            return Ok(()); // another one knows
        }
        let ConfirmMembership { job, node, incarnation } = ask;
        let confirmed = self.core.confirm_member(job, &node, incarnation);
        if let Err(stale) = &confirmed {
            let (part, what) = (node.to_string(), stale.to_string());
            tracing::warn!("{what}");
            self.recorder.record(Told::Fault { part, what });
        }
        confirmed
    }
}

impl Handler<RootAdvanced> for Scheduler {
    type Result = ();

    fn handle(&mut self, advanced: RootAdvanced, ctx: &mut Self::Context) {
        self.feed(ctx, Event::RootAdvanced(advanced));
    }
}

impl Handler<JobEfficiency> for Scheduler {
    type Result = ();

    fn handle(&mut self, told: JobEfficiency, ctx: &mut Self::Context) {
        self.feed(ctx, Event::Efficiency(told));
    }
}

impl Handler<Subscribe> for Scheduler {
    type Result = ();

    fn handle(&mut self, subscribe: Subscribe, ctx: &mut Self::Context) {
        self.feed(ctx, Event::Subscribe(subscribe));
    }
}

impl Handler<SpeedsMeasured> for Scheduler {
    type Result = ();

    fn handle(&mut self, speeds: SpeedsMeasured, ctx: &mut Self::Context) {
        self.feed(ctx, Event::Speeds(speeds));
    }
}

impl Handler<Drain> for Scheduler {
    type Result = ResponseFuture<Result<Drained, DrainError>>;

    fn handle(&mut self, order: Drain, ctx: &mut Self::Context) -> Self::Result {
        self.recorder.record(Told::Decision {
            decision: format!("drain {} nodes", order.nodes.len()),
            why: order.reason.clone(),
            inputs: serde_json::to_value(&order).unwrap_or_default(),
        });
        self.last_drain += 1;
        let (drain, (reply, answer)) = (self.last_drain, oneshot::channel());
        self.drains.insert(drain, reply);
        self.feed(ctx, Event::Drain { drain, order });
        Box::pin(async move { answer.await.unwrap_or(Err(DrainError::Ended)) })
    }
}

impl Handler<Undrain> for Scheduler {
    type Result = Result<(), DrainError>;

    fn handle(&mut self, Undrain { nodes }: Undrain, ctx: &mut Self::Context) -> Self::Result {
        self.core.check_nodes(&nodes)?;
        self.recorder.record(Told::Decision {
            decision: format!("put {} nodes back into service", nodes.len()),
            why: "told to".to_owned(),
            inputs: serde_json::json!({ "nodes": nodes }),
        });
        self.retries.retain(|node, _| !nodes.contains(node));
        self.feed(ctx, Event::Undrain { nodes });
        Ok(())
    }
}

impl Handler<CancelJob> for Scheduler {
    type Result = ();

    fn handle(&mut self, CancelJob { job, reason }: CancelJob, ctx: &mut Self::Context) {
        self.feed(ctx, Event::Cancel { job, reason });
    }
}

impl Handler<CancelJobsOf> for Scheduler {
    type Result = ();

    fn handle(&mut self, word: CancelJobsOf, ctx: &mut Self::Context) {
        self.feed(ctx, Event::CancelOf { client: word.client, reason: word.reason });
    }
}

impl Handler<JobOver> for Scheduler {
    type Result = ();

    fn handle(&mut self, JobOver { job, epoch, ok, ended }: JobOver, ctx: &mut Self::Context) {
        tracing::info!(ok, "{job} is over");
        self.feed(ctx, Event::JobOver { job, epoch, ended });
    }
}

impl Handler<GetStatus> for Scheduler {
    type Result = MessageResult<GetStatus>;

    fn handle(&mut self, _: GetStatus, _: &mut Self::Context) -> Self::Result {
        let mut status = GridStatus { superseded: self.superseded, ..self.core.status() };
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

impl Handler<GetKnown> for Scheduler {
    type Result = MessageResult<GetKnown>;

    fn handle(&mut self, _: GetKnown, _: &mut Self::Context) -> Self::Result {
        MessageResult((!self.superseded).then(|| self.core.known()))
    }
}

impl Handler<SiteUp> for Scheduler {
    type Result = ();

    fn handle(&mut self, message: SiteUp, ctx: &mut Self::Context) {
        match message.at.clone() {
            Some(at) => {
                self.net.introduce(at.clone());
                self.places.insert(message.cluster.clone(), at);
            }
            None => drop(self.places.remove(&message.cluster)),
        }
        self.feed(ctx, Event::SiteUp(message));
    }
}

impl Handler<SitePolled> for Scheduler {
    type Result = ();

    fn handle(&mut self, message: SitePolled, ctx: &mut Self::Context) {
        if let Err(reason) = &message.found {
            let part = format!("site {}", message.cluster);
            self.recorder.record(Told::Fault { part, what: reason.clone() });
        }
        self.feed(ctx, Event::SitePolled(message));
    }
}

impl Handler<StubWaits> for Scheduler {
    type Result = ();

    fn handle(&mut self, message: StubWaits, ctx: &mut Self::Context) {
        self.feed(ctx, Event::StubWaits(message));
    }
}

impl Handler<StubGone> for Scheduler {
    type Result = ();

    fn handle(&mut self, message: StubGone, ctx: &mut Self::Context) {
        tracing::info!("the stub of {} is gone: {}", message.node, message.reason);
        self.feed(ctx, Event::StubGone(message));
    }
}

impl Handler<Registered> for Scheduler {
    type Result = ();

    fn handle(&mut self, life: Registered, ctx: &mut Self::Context) {
        tracing::info!("node {} has registered", life.node);
        self.retries.remove(&life.node);
        if self.places.contains_key(&life.cluster) {
            // It has called its site, not this process.
            let (node, cluster) = (life.node.clone(), life.cluster.clone());
            let contact = Contact { node, cluster, address: life.address.clone() };
            self.net.learn_life(contact, life.incarnation);
        }
        self.recorder.record(Told::NodeRegistered {
            node: life.node.clone(),
            cluster: life.cluster.clone(),
            incarnation: life.incarnation,
            threads: life.threads,
        });
        self.feed(ctx, Event::Registered(life));
    }
}

impl Handler<MemberSilent> for Scheduler {
    type Result = ();

    fn handle(&mut self, message: MemberSilent, ctx: &mut Self::Context) {
        let part = message.node.to_string();
        self.recorder.record(Told::Fault { part, what: message.reason.clone() });
        self.feed(ctx, Event::MemberSilent(message));
    }
}

impl Handler<NodeLost> for Scheduler {
    type Result = ();

    fn handle(&mut self, message: NodeLost, ctx: &mut Self::Context) {
        let NodeLost { node, reason, returns, retry_ms } = message;
        let wait = retry_ms.map(Duration::from_millis);
        match wait.and_then(|wait| Instant::now().checked_add(wait)) {
            Some(at) => drop(self.retries.insert(node.clone(), at)),
            None => drop(self.retries.remove(&node)),
        }
        let part = "scheduler".to_owned();
        self.recorder.record(Told::Fault { part, what: format!("node {node} is lost: {reason}") });
        self.feed(ctx, Event::NodeLost { node, reason, returns });
    }
}

#[cfg(test)]
mod tests;
