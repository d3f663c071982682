//! The bridge of a client in another language: it submits a job of runners, and passes tasks and
//! their ends on between the client's frames and the job.
//!
//! It holds what the client has sent until the end of each task, for a root that starts again
//! knows nothing of it. It does not know what tasks compute.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use springtide_actors::client::{Client, JobUpdate, ReceivedNews};
use springtide_actors::coordinator::Coordinator;
use springtide_actors::endpoint::Endpoint;
use springtide_actors::head::{HEAD, Head};
use springtide_actors::job::{ClientMessage, NoteKind, SCHEDULER, coordinator_name};
use springtide_actors::links::{LinkChange, LinkChanges};
use springtide_actors::policy::Mode;
use springtide_actors::scheduler::manager::{JobRequirements, Kind};
use springtide_actors::scheduler::{CancelJob, Scheduler, Submit};
use springtide_cli::config::load;
use springtide_cli::exit::{Exit, Failed};
use springtide_runtime::config::{GridConfig, Level, Sources};
use springtide_runtime::id::{ClusterId, JobId, NodeId};
use springtide_runtime::net::Contact;
use springtide_runtime::net::tls::Ca;
use springtide_runtime::remote::Remote;
use springtide_runtime::runner::{
    ALIVE_INTERVAL, BridgeFrame, CallOutcome, ClientFrame, FrameBuffer, FunctionCall,
    PROTOCOL_VERSION, RunnerOrder, RunnerReport, RunnerSpec, TaskFailure, decode_reports,
    encode_frame, encode_orders,
};
use springtide_runtime::work::{Job as _, Registry, encode_job};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::attach::attach;
use super::grid_files::{self, Authority, LaunchPlan};
use super::scratch::Scratch;
use super::signals::{Signals, word};
use super::{grid, netconf};
use crate::runner_job::RunnerJob;
use crate::shape::GridShape;

/// The longest wait of a job for its nodes.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(30 * 24 * 3600);
/// The time in which a job must end when the client needs it no more.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest time without a link to the head.
const LINK_GRACE: Duration = Duration::from_secs(5);
/// The longest wait for the answer to a message.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause before a message is sent again.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);
/// The most orders in one message.
const ORDERS_MAX: usize = 1000;
/// The most bytes of orders in one message, after its first order.
const ORDER_BYTES: usize = 4 << 20;
/// Frames that wait between this process's streams and the job.
const FRAMES_MAX: usize = 256;
/// The bytes of one read of the input.
const READ_BYTES: usize = 256 << 10;

/// A request for a bridge.
pub struct BridgeRequest {
    /// The config of a running grid; absent: a grid of the bridge's own.
    pub config: Option<PathBuf>,
    /// The shape of a grid of the bridge's own.
    pub shape: GridShape,
    /// The processors of the job on a running grid: the least number, and the greatest one; absent:
    /// all.
    pub processors: (u32, Option<u32>),
    /// The parameters of the runners.
    pub spec: RunnerSpec,
    /// The tasks of this program.
    pub registry: Arc<Registry>,
    /// The level of the nodes' logs.
    pub log_level: Option<Level>,
}

/// A grid that the bridge uses.
struct GridLink {
    /// The numbers of processors between which the job may change; absent: it has the whole grid.
    need: Option<JobRequirements>,
    endpoint: Endpoint,
    head: NodeId,
    contact: Contact,
    clusters: Option<BTreeMap<ClusterId, u32>>,
    links: Arc<LinkChanges>,
    news: mpsc::Receiver<ReceivedNews>,
}

/// Serves a client on standard input and output until the input ends.
///
/// # Errors
/// The grid cannot be started or reached, or the job fails. The client gets the reason, too.
pub async fn bridge(request: BridgeRequest) -> Result<(), Failed> {
    let mut signals = Signals::take()?;
    let (frames, writer) = start_writer()?;
    let input = start_reader()?;
    // Actors of the head use it until this process ends.
    let dir = Scratch::make()?;
    let ended = match &request.config {
        Some(_) => on_running_grid(&request, input, &frames, &mut signals).await,
        None => on_own_grid(&request, dir.path(), input, &frames, &mut signals).await,
    };
    let reason = ended.as_ref().err().map(|failed| failed.message.clone());
    // A client that is gone reads no reason.
    let _ = frames.send(BridgeFrame::Closed { reason }).await;
    drop(frames);
    // The frames are written before this process ends; a client that reads none has ended itself.
    let _ = tokio::task::spawn_blocking(move || writer.join()).await;
    ended
}

async fn on_running_grid(
    request: &BridgeRequest,
    input: mpsc::Receiver<Result<ClientFrame, String>>,
    frames: &mpsc::Sender<BridgeFrame>,
    signals: &mut Signals,
) -> Result<(), Failed> {
    let Some(file) = &request.config else { return Err(Failed::usage("no config is given")) };
    let config = load::<GridConfig>(&Sources::of_process(Some(file)))?.value;
    let all = netconf::existing_processors(&config).get();
    let (min, max) = request.processors;
    let max = max.unwrap_or(all.max(min));
    // It starts with the processors that are free then.
    let mut need = JobRequirements::one(Kind::Malleable, min, max, max);
    need.spreads = true;
    need.check().map_err(Failed::usage)?;
    let attachment = attach(file, &config).await?;
    let endpoint = attachment.endpoint;
    let link = GridLink {
        contact: endpoint.net.contact(),
        endpoint: endpoint.clone(),
        head: attachment.head,
        clusters: None,
        need: Some(need),
        links: attachment.links,
        news: attachment.news,
    };
    let ended = serve(request, &config, link, input, frames, signals).await;
    endpoint.net.close("the client has ended").await;
    ended
}

async fn on_own_grid(
    request: &BridgeRequest,
    dir: &Path,
    input: mpsc::Receiver<Result<ClientFrame, String>>,
    frames: &mpsc::Sender<BridgeFrame>,
    signals: &mut Signals,
) -> Result<(), Failed> {
    let config = grid_files::ad_hoc(request.shape, |sources| sources)?.value;
    let authority = Authority::Ephemeral(Ca::ephemeral(config.grid.as_str())?);
    let program = grid_files::this_program()?;
    let plan = LaunchPlan {
        config: &config,
        dir,
        authority: &authority,
        program: &program,
        files: None,
        log_level: request.log_level,
    };
    let head: Head = grid::start(&plan).await?;
    let (links, news) = Client::publish(&head.endpoint);
    let status = head.wait_for_nodes(|_, _| {}).await;
    let ended = match grid::check_whole(&status) {
        Ok(()) => {
            let params = netconf::job_params(&config);
            let link = GridLink {
                contact: head.contact(),
                endpoint: head.endpoint.clone(),
                head: HEAD.into(),
                clusters: netconf::check_start(&config, &params, None)?,
                need: None,
                links,
                news,
            };
            serve(request, &config, link, input, frames, signals).await
        }
        Err(failed) => Err(failed),
    };
    grid::stop(head, dir, "the client has ended").await;
    ended
}

/// What the client has sent and the job has not ended.
#[derive(Default)]
struct ClientState {
    objects: BTreeMap<u32, Bytes>,
    tasks: BTreeMap<u64, FunctionCall>,
    /// Those of the tasks that the client has cancelled.
    cancelled: BTreeSet<u64>,
    /// The way to the present root, once it is ready.
    orders: Option<mpsc::UnboundedSender<RunnerOrder>>,
}

impl ClientState {
    /// Keeps and forwards a frame of the client. Returns false for the end.
    fn take(&mut self, frame: ClientFrame) -> bool {
        let order = match frame {
            ClientFrame::Put { object, data } => {
                self.objects.insert(object, data.clone());
                RunnerOrder::Put { object, data }
            }
            ClientFrame::Submit { task, call } => {
                self.tasks.insert(task, call.clone());
                RunnerOrder::Submit { task, call }
            }
            ClientFrame::Cancel { task } => {
                if self.tasks.contains_key(&task) {
                    self.cancelled.insert(task);
                }
                RunnerOrder::Cancel { task }
            }
            ClientFrame::End {} => return false,
        };
        if let Some(orders) = &self.orders {
            // A root that starts again gets all of it.
            let _ = orders.send(order);
        }
        true
    }

    /// The orders for a root that knows nothing yet.
    fn all(&self) -> Vec<RunnerOrder> {
        let objects = self.objects.iter();
        let objects =
            objects.map(|(object, data)| RunnerOrder::Put { object: *object, data: data.clone() });
        let tasks = self.tasks.iter();
        let tasks =
            tasks.map(|(task, call)| RunnerOrder::Submit { task: *task, call: call.clone() });
        let cancelled = self.cancelled.iter().map(|task| RunnerOrder::Cancel { task: *task });
        objects.chain(tasks).chain(cancelled).collect()
    }

    /// Forgets a task that has ended. Returns whether it was known.
    fn end(&mut self, task: u64) -> bool {
        self.cancelled.remove(&task);
        self.tasks.remove(&task).is_some()
    }
}

/// Submits the job, and serves the client until it ends.
async fn serve(
    request: &BridgeRequest,
    config: &GridConfig,
    link: GridLink,
    mut input: mpsc::Receiver<Result<ClientFrame, String>>,
    frames: &mpsc::Sender<BridgeFrame>,
    signals: &mut Signals,
) -> Result<(), Failed> {
    let GridLink { endpoint, head, contact, clusters, need, links, mut news } = link;
    let scheduler: Remote<Scheduler> = endpoint.hub.remote(&head, SCHEDULER);
    let mut params = netconf::job_params(config);
    // Without tasks its processors are idle, and adaptation would release them.
    params.mode = Mode::Static;
    if let Some(need) = &need {
        params.min_processors = need.least().into();
        params.max_processors = Some(need.greatest().into());
    }
    let submit = Submit {
        name: RunnerJob::NAME.to_owned(),
        body: encode_job(RunnerJob { spec: request.spec.clone() })?,
        fingerprint: request.registry.fingerprint(),
        params,
        clusters,
        client: contact,
        program: std::env::current_exe().ok(),
        need,
        principal: None,
        image: None,
    };
    let mut answer = Box::pin(scheduler.send(submit).deadline(QUEUE_TIMEOUT));
    let mut state = ClientState::default();
    let mut job: Option<JobId> = None;
    let mut early = Vec::new();
    let mut lost: Option<(Instant, String)> = None;
    let ended = loop {
        let lost_at = lost.as_ref().map(|(at, _)| *at + LINK_GRACE);
        tokio::select! {
            biased;
            exit = signals.next() => {
                break Err(Failed::new(exit, format!("ended by {}", word(exit))));
            }
            Some((of, update, _)) = news.recv() => {
                if job.is_none() {
                    early.push((of, update));
                } else if job == Some(of)
                    && let Some(ended) = handle(update, of, &mut state, &endpoint, frames).await
                {
                    return ended;
                }
            }
            granted = &mut answer, if job.is_none() => {
                let granted = granted??;
                endpoint.net.learn(granted.coordinator.clone());
                job = Some(granted.job);
                for (of, update) in std::mem::take(&mut early) {
                    if of == granted.job
                        && let Some(ended) = handle(update, of, &mut state, &endpoint, frames).await
                    {
                        return ended;
                    }
                }
            }
            frame = input.recv() => match frame {
                Some(Ok(frame)) => if !state.take(frame) {
                    break Ok(());
                },
                Some(Err(reason)) => {
                    let text = format!("standard input has no frames of a client: {reason}");
                    break Err(Failed::usage(text));
                }
                None => break Ok(()),
            },
            changes = links.next() => {
                for (node, change) in changes {
                    match change {
                        LinkChange::Down(why) if node == head => {
                            let text = format!("the link to {node} is down: {why}");
                            lost.get_or_insert((Instant::now(), text));
                        }
                        _ if node == head => lost = None,
                        _ => {}
                    }
                }
            }
            () = sleep_until(lost_at.unwrap_or_else(Instant::now)), if lost_at.is_some() => {
                let text = lost.map(|(_, text)| text).unwrap_or_default();
                break Err(Failed::new(Exit::Failure, text));
            }
        }
    };
    if let Some(job) = job {
        let ends_in_order = ended.is_ok() && state.tasks.is_empty();
        let orders = state.orders.clone().filter(|_| ends_in_order);
        // What tasks have printed may still be on its way.
        let job_end = async || {
            while let Some((of, update, _)) = news.recv().await {
                if of == job && handle(update, of, &mut state, &endpoint, frames).await.is_some() {
                    return;
                }
            }
        };
        end_job(job, orders, &scheduler, job_end).await;
    }
    ended
}

/// Ends the job: in order with the way to its root, and else by a cancellation. `job_end` waits for
/// the end.
async fn end_job(
    job: JobId,
    orders: Option<mpsc::UnboundedSender<RunnerOrder>>,
    scheduler: &Remote<Scheduler>,
    mut job_end: impl AsyncFnMut(),
) {
    if let Some(orders) = orders
        && orders.send(RunnerOrder::Finish).is_ok()
        && timeout(END_TIMEOUT, job_end()).await.is_ok()
    {
        return;
    }
    let reason = "the client has ended".to_owned();
    let cancelled = scheduler.send(CancelJob { job, reason }).deadline(END_TIMEOUT).await;
    if cancelled.is_ok() {
        // The scheduler ends the job also if its end is not seen here.
        let _ = timeout(END_TIMEOUT, job_end()).await;
    }
}

/// Handles an update of the job. Returns the end of the bridge, if the job has ended.
async fn handle(
    update: JobUpdate,
    job: JobId,
    state: &mut ClientState,
    endpoint: &Endpoint,
    frames: &mpsc::Sender<BridgeFrame>,
) -> Option<Result<(), Failed>> {
    let note = match update {
        JobUpdate::Note(note) => note,
        JobUpdate::Ended(ended) => {
            let reason = match ended.outcome {
                Ok(_) => "the job has ended".to_owned(),
                Err(error) => error.to_string(),
            };
            return Some(Err(Failed::failure(reason)));
        }
    };
    let NoteKind::Message { body } = *note else { return None };
    let reports = match decode_reports(&body) {
        Ok(reports) => reports,
        Err(error) => {
            return Some(Err(Failed::failure(format!("a report of the job is damaged: {error}"))));
        }
    };
    for report in reports {
        let frame = match report {
            RunnerReport::Ready { node, processors, .. } => {
                let coordinator = endpoint.hub.remote(&node, &coordinator_name(job));
                let (orders, receiver) = mpsc::unbounded_channel();
                for order in state.all() {
                    // The receiver is here.
                    let _ = orders.send(order);
                }
                state.orders = Some(orders);
                // It ends when the sender is dropped, or with this process.
                tokio::task::spawn_local(send_orders(coordinator, job, receiver));
                BridgeFrame::Ready { version: PROTOCOL_VERSION, node: node.to_string(), processors }
            }
            // A repeated end has no effect.
            RunnerReport::Done { task, .. } if !state.end(task) => continue,
            RunnerReport::Done { task, outcome } => BridgeFrame::Done { task, outcome },
            RunnerReport::Output { node, text } => {
                BridgeFrame::Output { node: node.to_string(), text }
            }
            RunnerReport::Log { node, level, text } => {
                BridgeFrame::Log { node: node.to_string(), level, text }
            }
            RunnerReport::Progress { node, task, done, total, what } => {
                BridgeFrame::Progress { node: node.to_string(), task, done, total, what }
            }
            RunnerReport::Processors { processors } => BridgeFrame::Processors { processors },
        };
        if frames.send(frame).await.is_err() {
            return Some(Err(Failed::failure("the client does not read its results")));
        }
    }
    None
}

/// Sends orders to a root, several in one message, until `orders` is closed. A root that does not
/// answer has moved or is lost; the job's end or its next root follows.
async fn send_orders(
    coordinator: Remote<Coordinator>,
    job: JobId,
    mut orders: mpsc::UnboundedReceiver<RunnerOrder>,
) {
    let mut number = 0;
    loop {
        let first = match timeout(ALIVE_INTERVAL, orders.recv()).await {
            Ok(Some(order)) => order,
            Ok(None) => return,
            Err(_) => RunnerOrder::Alive,
        };
        let mut bytes = bytes_of(&first);
        let mut batch = vec![first];
        while batch.len() < ORDERS_MAX
            && bytes < ORDER_BYTES
            && let Ok(order) = orders.try_recv()
        {
            bytes += bytes_of(&order);
            batch.push(order);
        }
        number += 1;
        let body = match encode_orders(&batch) {
            Ok(body) => body,
            Err(error) => {
                tracing::error!(%error, "orders are too long for the job");
                return;
            }
        };
        loop {
            let message = ClientMessage { job, number, body: body.clone() };
            match coordinator.send(message).deadline(MESSAGE_TIMEOUT).await {
                Ok(Ok(())) => break,
                answer => tracing::debug!(?answer, "a message is sent again"),
            }
            if orders.is_closed() {
                return;
            }
            sleep(RETRY_INTERVAL).await;
        }
    }
}

fn bytes_of(order: &RunnerOrder) -> usize {
    match order {
        RunnerOrder::Put { data, .. } => data.len(),
        RunnerOrder::Submit { call, .. } => {
            call.arguments.len() + call.buffers.iter().map(Bytes::len).sum::<usize>()
        }
        RunnerOrder::Cancel { .. } | RunnerOrder::Alive | RunnerOrder::Finish => 0,
    }
}

/// Starts the thread that reads frames of the client from standard input.
fn start_reader() -> Result<mpsc::Receiver<Result<ClientFrame, String>>, Failed> {
    let (sender, receiver) = mpsc::channel(FRAMES_MAX);
    let read = move || {
        let mut buffer = FrameBuffer::default();
        let mut piece = vec![0; READ_BYTES];
        let mut stdin = std::io::stdin().lock();
        loop {
            match buffer.next_frame::<ClientFrame>() {
                Ok(Some(frame)) => {
                    if sender.blocking_send(Ok(frame)).is_err() {
                        return;
                    }
                    continue;
                }
                Ok(None) => {}
                Err(fault) => {
                    // The bridge may have ended.
                    let _ = sender.blocking_send(Err(fault.to_string()));
                    return;
                }
            }
            match stdin.read(&mut piece) {
                Ok(0) => return,
                Ok(count) => buffer.extend(&piece[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    };
    start_thread("input", read)?;
    Ok(receiver)
}

/// Starts the thread that writes frames to standard output, until the sender is dropped.
fn start_writer() -> Result<(mpsc::Sender<BridgeFrame>, thread::JoinHandle<()>), Failed> {
    let (sender, mut receiver) = mpsc::channel::<BridgeFrame>(FRAMES_MAX);
    let write = move || {
        let mut stdout = std::io::stdout().lock();
        while let Some(frame) = receiver.blocking_recv() {
            let encoded = encode_frame(&frame).or_else(|fault| match frame {
                BridgeFrame::Done { task, .. } => {
                    let kind = "springtide.TooLarge".to_owned();
                    let message = fault.to_string();
                    let failure = TaskFailure { kind, message, ..TaskFailure::default() };
                    let outcome = CallOutcome::Failure(failure);
                    encode_frame(&BridgeFrame::Done { task, outcome })
                }
                _ => Err(fault),
            });
            let Ok(bytes) = encoded else {
                tracing::error!("a frame for the client is too long");
                return;
            };
            if stdout.write_all(&bytes).and_then(|()| stdout.flush()).is_err() {
                return;
            }
        }
    };
    Ok((sender, start_thread("output", write)?))
}

fn start_thread(
    name: &str,
    body: impl FnOnce() + Send + 'static,
) -> Result<thread::JoinHandle<()>, Failed> {
    let started = thread::Builder::new().name(name.to_owned()).spawn(body);
    started.map_err(|error| Failed::failure(format!("cannot create a thread: {error}")))
}
