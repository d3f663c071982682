//! The thread of an embedded grid: its head or its connection, and the course of its jobs.
//!
//! actix needs a thread of its own. Handles on other threads send [`Order`]s to it. Independent of
//! the types of tasks.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use springtide_actors::client::{Client, JobUpdate, ReceivedNews};
use springtide_actors::endpoint::Endpoint;
use springtide_actors::head::HEAD;
use springtide_actors::job::{JobEndReport, JobParams, NoteKind, SCHEDULER};
use springtide_actors::links::{LinkChange, LinkChanges};
use springtide_actors::scheduler::manager::JobRequirements;
use springtide_actors::scheduler::{
    CancelClientJobs, CancelJob, GetStatus, GetWait, JobGrant, Scheduler, Submit, SubmitError,
};
use springtide_cli::exit::{Exit, Failed};
use springtide_runtime::config::GridConfig;
use springtide_runtime::id::{ClusterId, JobId, NodeId};
use springtide_runtime::net::LinkError;
use springtide_runtime::net::tls::Ca;
use springtide_runtime::remote::{Hub, Remote, RemoteError};
use springtide_runtime::work::OutputAssembler;
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio::task::spawn_local;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};

use super::Error;
use super::job::{HandleOrder, JobEnd, JobEvent, JobSnapshot, Progress};
use super::logs::FollowedLogs;
use springtide_operations::attach::{Attachment, attach_with, grid_config};
use springtide_operations::grid;
use springtide_operations::grid_files::{self, Authority, LaunchPlan};
use springtide_operations::programs::{OfferError, OwnProgram};
use springtide_operations::scratch::GridDir;
use springtide_operations::signals::Signals;

/// Timeout of a submission in the scheduler's queue.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(30 * 24 * 3600);
/// Timeout of requests that the head answers at once.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval of questions why a job has no nodes yet.
const WAIT_REASON_INTERVAL: Duration = Duration::from_millis(500);
/// Time that a cancelled job has to end in order.
const CANCEL_GRACE: Duration = Duration::from_secs(3);
/// Time for which the link to the head may be down, before its jobs count as lost.
const LINK_GRACE: Duration = Duration::from_secs(5);

/// What the grid consists of.
pub(super) enum ServiceSource {
    /// A head in this process, and nodes of this program.
    Own(Box<GridConfig>),
    /// The running grid of a config file, and a token for a user without a certificate.
    Running(PathBuf, Option<String>),
}

/// Options of the thread.
#[derive(Clone)]
pub(super) struct ServiceOptions {
    /// Whether signals end the grid and then the process.
    pub(super) signals: bool,
    /// Whether lines of nodes are written to standard error.
    pub(super) logs: bool,
    /// The directory of the grid; a temporary one if absent.
    pub(super) dir: Option<PathBuf>,
}

/// What handles need of a grid that has started.
pub(super) struct Ready {
    pub(super) hub: Arc<Hub>,
    /// Name of the head's node.
    pub(super) head: NodeId,
    pub(super) config: GridConfig,
}

/// An order of a handle.
pub(super) enum Order {
    /// Run a job.
    Submit(Box<JobOrder>),
    /// Tell the nodes that have registered.
    Nodes(oneshot::Sender<Result<Vec<NodeId>, Error>>),
    /// End the grid, and answer after the end.
    End(oneshot::Sender<()>),
}

/// A job to run.
pub(super) struct JobOrder {
    /// The registered name of the job.
    pub(super) job: &'static str,
    pub(super) body: Bytes,
    pub(super) params: JobParams,
    pub(super) clusters: Option<BTreeMap<ClusterId, u32>>,
    pub(super) need: Option<JobRequirements>,
    pub(super) deadline: Option<Duration>,
    pub(super) channel: JobChannel,
}

/// The service's side of a job's handle.
pub(super) struct JobChannel {
    /// The name of the job in errors.
    pub(super) name: String,
    pub(super) state: watch::Sender<JobSnapshot>,
    pub(super) events: broadcast::Sender<JobEvent>,
    pub(super) orders: watch::Receiver<HandleOrder>,
    pub(super) end: oneshot::Sender<Result<JobEnd, Error>>,
}

/// Runs a grid until its handles are gone. `ready` receives the grid, or why it does not start.
/// `fingerprint` is that of the program's registry.
pub(super) fn run(
    source: ServiceSource,
    options: ServiceOptions,
    fingerprint: u64,
    orders: mpsc::UnboundedReceiver<Order>,
    ready: oneshot::Sender<Result<Ready, Error>>,
) {
    let system = actix::System::new();
    let ended = system.block_on(async move {
        let signals = if options.signals { Signals::take().ok() } else { None };
        let mut service = Service { fingerprint, orders, signals, end: None };
        let ended = match source {
            ServiceSource::Own(config) => service.run_own(*config, &options, ready).await,
            ServiceSource::Running(file, token) => service.run_attached(file, token, ready).await,
        };
        drop(service.end);
        ended
    });
    drop(system);
    if let Some(exit) = ended {
        // The signal's default action, which the handler has replaced.
        std::process::exit(exit.code().into());
    }
}

/// A connection to the head, for the jobs.
struct HeadLink {
    endpoint: Endpoint,
    scheduler: Remote<Scheduler>,
    fingerprint: u64,
    routes: RefCell<UpdateRoutes>,
    /// This program, which a grid of other programs needs.
    own: OwnProgram,
    /// Why the head is lost, once it is.
    lost: watch::Sender<Option<String>>,
}

impl HeadLink {
    fn new(endpoint: Endpoint, head: &NodeId, fingerprint: u64) -> Rc<Self> {
        let scheduler = endpoint.hub.remote(head, SCHEDULER);
        let (routes, (lost, _)) = (RefCell::default(), watch::channel(None));
        let own = OwnProgram::new(&endpoint, head, fingerprint);
        Rc::new(Self { endpoint, scheduler, fingerprint, routes, own, lost })
    }
}

/// Where the updates of each job go. They may arrive before the scheduler's answer has the number
/// of the job.
#[derive(Default)]
struct UpdateRoutes {
    senders: BTreeMap<JobId, mpsc::UnboundedSender<JobUpdate>>,
    /// Receivers of jobs whose number is not known yet.
    receivers: BTreeMap<JobId, mpsc::UnboundedReceiver<JobUpdate>>,
}

impl UpdateRoutes {
    fn route(&mut self, job: JobId, update: JobUpdate) {
        let sender = self.senders.entry(job).or_insert_with(|| {
            let (sender, receiver) = mpsc::unbounded_channel();
            self.receivers.insert(job, receiver);
            sender
        });
        let is_end = matches!(update, JobUpdate::Ended(_));
        // The job's handle may be gone.
        let _ = sender.send(update);
        if is_end {
            self.senders.remove(&job);
        }
    }

    /// The updates of a job, from its start.
    fn take(&mut self, job: JobId) -> mpsc::UnboundedReceiver<JobUpdate> {
        self.receivers.remove(&job).unwrap_or_else(|| {
            let (sender, receiver) = mpsc::unbounded_channel();
            self.senders.insert(job, sender);
            receiver
        })
    }
}

struct Service {
    fingerprint: u64,
    orders: mpsc::UnboundedReceiver<Order>,
    signals: Option<Signals>,
    /// Dropped when the grid has ended.
    end: Option<oneshot::Sender<()>>,
}

/// Waits for a signal, if signals are handled.
async fn signal(signals: &mut Option<Signals>) -> Exit {
    match signals {
        Some(signals) => signals.next().await,
        None => std::future::pending().await,
    }
}

impl Service {
    /// Runs a grid with a head in this process. Returns the exit code of the process, if a signal
    /// ended the grid.
    async fn run_own(
        &mut self,
        config: GridConfig,
        options: &ServiceOptions,
        ready: oneshot::Sender<Result<Ready, Error>>,
    ) -> Option<Exit> {
        // Removed last, when no node is left.
        let dir = match GridDir::make(options.dir.as_deref()) {
            Ok(dir) => dir,
            Err(failed) => {
                let _ = ready.send(Err(failed.into()));
                return None;
            }
        };
        let head = match start_head(&config, &dir).await {
            Ok(head) => head,
            Err(failed) => {
                let _ = ready.send(Err(failed.into()));
                return None;
            }
        };
        let (links, news) = Client::publish(&head.endpoint);
        let logs = options.logs.then(|| FollowedLogs::start(&dir.path().join("nodes")));
        let started = {
            let mut started = pin!(head.wait_for_nodes(|_, _| {}));
            tokio::select! {
                biased;
                exit = signal(&mut self.signals) => Err(Some(exit)),
                // The program no longer waits for the start: no order precedes it.
                _ = self.orders.recv() => Err(None),
                status = &mut started => Ok(grid::check_whole(&status)),
            }
        };
        let exit = match started {
            Ok(Ok(())) => {
                let link = HeadLink::new(head.endpoint.clone(), &HEAD.into(), self.fingerprint);
                let hub = head.endpoint.hub.clone();
                // Without a receiver, no handle exists, and the service ends at once.
                let _ = ready.send(Ok(Ready { hub, head: HEAD.into(), config }));
                self.serve(&link, &links, news).await
            }
            Ok(Err(failed)) => {
                let _ = ready.send(Err(failed.into()));
                None
            }
            Err(exit) => exit,
        };
        tokio::select! {
            biased;
            // A second signal ends the wait; dropped processes are killed.
            _ = signal(&mut self.signals) => {}
            () = grid::stop(head, dir.path(), "the program ends its grid") => {}
        }
        if let Some(logs) = logs {
            logs.finish();
        }
        exit
    }

    /// Uses a running grid. Returns as [`Service::run_own`].
    async fn run_attached(
        &mut self,
        file: PathBuf,
        token: Option<String>,
        ready: oneshot::Sender<Result<Ready, Error>>,
    ) -> Option<Exit> {
        let attached = async {
            let config = grid_config(&file)?;
            Ok((attach_with(&file, &config, token.as_deref()).await?, config))
        };
        let (attachment, config) = match attached.await {
            Ok(attached) => attached,
            Err(failed) => {
                let _ = ready.send(Err(Error::of_connection(failed)));
                return None;
            }
        };
        let Attachment { endpoint, head, links, news, .. } = attachment;
        let link = HeadLink::new(endpoint.clone(), &head, self.fingerprint);
        // Without a receiver, no handle exists, and the service ends at once.
        let _ = ready.send(Ok(Ready { hub: endpoint.hub.clone(), head, config }));
        let exit = self.serve(&link, &links, news).await;
        let client = endpoint.net.me().node.clone();
        let order = CancelClientJobs { client, reason: "its program has ended".to_owned() };
        if link.lost.borrow().is_none() {
            // The head cancels the jobs of a client that is gone, but only later.
            let _ = link.scheduler.send(order).deadline(CANCEL_GRACE).await;
        }
        endpoint.net.close("the program ends its connection").await;
        exit
    }

    /// Executes orders and forwards updates of jobs, until all handles are gone or a signal
    /// arrives.
    async fn serve(
        &mut self,
        link: &Rc<HeadLink>,
        links: &Arc<LinkChanges>,
        mut news: mpsc::Receiver<ReceivedNews>,
    ) -> Option<Exit> {
        let mut down: Option<(Instant, String)> = None;
        loop {
            let lost_at = down.as_ref().map(|(at, _)| *at + LINK_GRACE);
            let lost = async {
                match lost_at {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                exit = signal(&mut self.signals) => return Some(exit),
                order = self.orders.recv() => match order {
                    None => return None,
                    Some(Order::End(reply)) => {
                        self.end = Some(reply);
                        return None;
                    }
                    Some(Order::Submit(order)) => drop(spawn_local(drive(link.clone(), *order))),
                    Some(Order::Nodes(reply)) => {
                        let scheduler = link.scheduler.clone();
                        drop(spawn_local(async move {
                            // The asking handle may be gone.
                            let _ = reply.send(nodes(&scheduler).await);
                        }));
                    }
                },
                Some((job, update, _)) = news.recv() => {
                    link.routes.borrow_mut().route(job, update);
                }
                changes = links.next() => {
                    for (node, change) in changes {
                        if &node != link.scheduler.node() {
                            continue;
                        }
                        down = match change {
                            LinkChange::Up => None,
                            LinkChange::Down(LinkError { text, .. }) => {
                                Some((Instant::now(), text))
                            }
                        };
                    }
                }
                () = lost => {
                    let why = down.take().map(|(_, why)| why).unwrap_or_default();
                    link.lost.send_replace(Some(format!("the link to its head is down: {why}")));
                }
            }
        }
    }
}

/// Starts the head and the sites of a grid whose files are in this directory.
async fn start_head(
    config: &GridConfig,
    dir: &GridDir,
) -> Result<springtide_actors::head::Head, Failed> {
    let authority = Authority::Ephemeral(Ca::ephemeral(config.grid.as_str())?);
    let program = grid_files::this_program()?;
    let plan = LaunchPlan {
        config,
        dir: dir.path(),
        authority: &authority,
        program: &program,
        files: None,
        log_level: None,
    };
    grid::start(&plan).await
}

/// The nodes that have registered.
async fn nodes(scheduler: &Remote<Scheduler>) -> Result<Vec<NodeId>, Error> {
    let status = scheduler.send(GetStatus {}).deadline(REQUEST_TIMEOUT).await;
    let status = status.map_err(|error| Error::of_call(&error))?;
    let nodes = status.sites.into_values().flat_map(|site| site.nodes);
    Ok(nodes.filter(|node| node.incarnation.is_some()).map(|node| node.node).collect())
}

/// Completes when the handle orders the end of its job, or is dropped.
async fn cancelled(orders: &mut watch::Receiver<HandleOrder>) {
    loop {
        let order = *orders.borrow_and_update();
        if order == HandleOrder::Cancel {
            return;
        }
        if orders.changed().await.is_err() {
            // The handle is gone.
            match order {
                HandleOrder::Detach => std::future::pending().await,
                HandleOrder::Run | HandleOrder::Cancel => return,
            }
        }
    }
}

/// Runs a job to its end, and reports that to its handle.
async fn drive(link: Rc<HeadLink>, order: JobOrder) {
    let JobOrder { job, body, params, clusters, need, deadline, channel } = order;
    let JobChannel { name, state, events, mut orders, end } = channel;
    let submit = Submit {
        name: job.to_owned(),
        body,
        fingerprint: link.fingerprint,
        params,
        clusters,
        client: link.endpoint.net.contact(),
        program: std::env::current_exe().ok(),
        need,
        principal: None,
        image: None,
    };
    let started = Instant::now();
    let mut course = JobCourse { link, state, events, job: None };
    let ended = {
        let mut lost = course.link.lost.subscribe();
        let mut stopped = pin!(async {
            let deadline = async {
                match deadline {
                    Some(limit) => {
                        sleep_until(started + limit).await;
                        limit
                    }
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = cancelled(&mut orders) => None,
                why = lost.wait_for(Option::is_some) => {
                    let reason = why.ok().and_then(|why| why.clone()).unwrap_or_default();
                    Some(Error::Unreachable { reason })
                }
                limit = deadline => Some(Error::Deadline { job: name, limit }),
            }
        });
        course.run(submit, &mut stopped).await
    };
    // The handle may be gone.
    let _ = end.send(ended);
}

/// The course of one job.
struct JobCourse {
    link: Rc<HeadLink>,
    state: watch::Sender<JobSnapshot>,
    events: broadcast::Sender<JobEvent>,
    /// Its number, once it has nodes.
    job: Option<JobId>,
}

impl JobCourse {
    /// Runs the job until it ends or is stopped: by a reason, or by its handle.
    async fn run(
        &mut self,
        submit: Submit,
        mut stopped: impl Future<Output = Option<Error>> + Unpin,
    ) -> Result<JobEnd, Error> {
        let early =
            || Error::Cancelled { reason: "it was cancelled while it waited for nodes".to_owned() };
        let link = self.link.clone();
        let image = tokio::select! {
            biased;
            why = &mut stopped => return Err(why.unwrap_or_else(early)),
            offered = link.own.offer(|sending| self.waits(sending)) => offered?,
        };
        let submit = Submit { image, ..submit };
        let request = self.link.scheduler.send(submit).deadline(QUEUE_TIMEOUT);
        let mut answer = Box::pin(request);
        let mut asks = interval(WAIT_REASON_INTERVAL);
        asks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let client = self.link.endpoint.net.me().node.clone();
        let granted = loop {
            let ask = async {
                asks.tick().await;
                let ask = GetWait { client: client.clone() };
                // A head that does not answer shows by the end of its link.
                self.link.scheduler.send(ask).deadline(REQUEST_TIMEOUT).await.ok().flatten()
            };
            tokio::select! {
                biased;
                why = &mut stopped => {
                    // Its number is not known before it gets nodes.
                    drop(spawn_local(cancel_when_granted(self.link.scheduler.clone(), answer)));
                    return Err(why.unwrap_or_else(early));
                }
                answer = &mut answer => break answer.map_err(|error| Error::of_call(&error))?,
                reason = ask => {
                    if let Some(reason) = reason {
                        self.waits(&reason);
                    }
                }
            }
        };
        let JobGrant { job, .. } = granted.map_err(Error::of_submission)?;
        self.job = Some(job);
        self.state.send_modify(|state| (state.job, state.waits_for) = (Some(job), None));
        let mut updates = self.link.routes.borrow_mut().take(job);
        let mut output = OutputAssembler::default();
        loop {
            tokio::select! {
                biased;
                why = &mut stopped => {
                    self.cancel(job, &mut updates).await;
                    return Err(why.unwrap_or_else(|| Error::cancelled(job)));
                }
                update = updates.recv() => match update {
                    Some(JobUpdate::Note(note)) => self.note(*note, &mut output)?,
                    Some(JobUpdate::Ended(ended)) => {
                        let JobEndReport { outcome, .. } = *ended;
                        let outcome = outcome.map_err(Error::of_job)?;
                        return Ok(JobEnd { outcome, output });
                    }
                    None => return Err(Error::Ended),
                },
            }
        }
    }

    /// Notes why the job has no nodes yet.
    fn waits(&self, reason: &str) {
        let is_new = self.state.send_if_modified(|state| {
            let is_new = state.waits_for.as_deref() != Some(reason);
            state.waits_for = Some(reason.to_owned());
            is_new
        });
        if is_new {
            // There may be no listener.
            let _ = self.events.send(JobEvent::Waiting(reason.to_owned()));
        }
    }

    /// Cancels the job, and waits a short time until its nodes are free.
    async fn cancel(&self, job: JobId, updates: &mut mpsc::UnboundedReceiver<JobUpdate>) {
        if self.link.lost.borrow().is_some() {
            return;
        }
        let ended = async {
            let order = CancelJob { job, reason: "its program cancelled it".to_owned() };
            let _ = self.link.scheduler.send(order).deadline(REQUEST_TIMEOUT).await;
            while !matches!(updates.recv().await, None | Some(JobUpdate::Ended(_))) {}
        };
        let _ = timeout(CANCEL_GRACE, ended).await;
    }

    /// Handles a note of the job.
    fn note(&self, note: NoteKind, output: &mut OutputAssembler) -> Result<(), Error> {
        let event = match note {
            NoteKind::Started { root, workers } => {
                self.state.send_modify(|state| state.is_running = true);
                JobEvent::Started { root, nodes: workers.values().sum() }
            }
            NoteKind::Progress { done, total, what: unit } => {
                let progress = Progress { done, total, unit };
                self.state.send_modify(|state| state.progress = Some(progress.clone()));
                JobEvent::Progress(progress)
            }
            NoteKind::Iteration { index, seconds } => {
                let duration = Duration::try_from_secs_f64(seconds).unwrap_or_default();
                JobEvent::Iteration { index, duration }
            }
            NoteKind::Text { text } => JobEvent::Text(text),
            NoteKind::Artifact { name, bytes } => JobEvent::Artifact { name, bytes },
            NoteKind::Preliminary { outcome } => JobEvent::Preliminary(*outcome),
            NoteKind::Message { body } => return Ok(output.add(&body)?),
            NoteKind::Output { .. }
            | NoteKind::Events { .. }
            | NoteKind::Outcome { .. }
            | NoteKind::Period { .. } => return Ok(()),
        };
        // There may be no listener.
        let _ = self.events.send(event);
        Ok(())
    }
}

/// Cancels a job as soon as the scheduler has given it nodes.
async fn cancel_when_granted(
    scheduler: Remote<Scheduler>,
    answer: impl Future<Output = Result<Result<JobGrant, SubmitError>, RemoteError>>,
) {
    if let Ok(Ok(JobGrant { job, .. })) = answer.await {
        let order = CancelJob { job, reason: "its program has cancelled it".to_owned() };
        let _ = scheduler.send(order).deadline(REQUEST_TIMEOUT).await;
    }
}

impl From<OfferError> for Error {
    fn from(error: OfferError) -> Self {
        match error {
            OfferError::Program(error) => Self::ProgramRefused { reason: error.to_string() },
            OfferError::Head(error) => Self::of_call(&error),
        }
    }
}
