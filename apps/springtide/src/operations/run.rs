//! `run`: submits a job to a grid of its own or to a running grid, watches it, and prints the
//! result.
//!
//! Independent of the work of nodes and of jobs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use springtide_actors::client::{Client, Heard, News};
use springtide_actors::endpoint::Endpoint;
use springtide_actors::head::{HEAD, HEAD_CLUSTER, Head};
use springtide_actors::incarnation;
use springtide_actors::job::{JobEnded, JobError, JobParams, NoteKind, SCHEDULER};
use springtide_actors::links::{Link, Links};
use springtide_actors::probe::Prober;
use springtide_actors::scheduler::{CancelJob, CrowdedHost, GetWait, Granted, Scheduler, Submit};
use springtide_actors::store::records_dir;
use springtide_runtime::config::{GridConfig, Loaded, Sources, load};
use springtide_runtime::event::{Event, Record};
use springtide_runtime::id::{ClusterId, JobId, NodeId};
use springtide_runtime::net::tls::{Ca, NODE_VALIDITY};
use springtide_runtime::net::{Address, Contact, Why};
use springtide_runtime::remote::{Remote, RemoteRequest};
use springtide_runtime::work::{Outcome, Registry, STATE_ARTIFACT};
use tokio::sync::mpsc;
use tokio::time::{Instant, interval, sleep_until, timeout};

use crate::args::{GlobalArgs, RunArgs};
use crate::exit::{Exit, Failed, of_refusal};
use crate::film::{self, Video};
use crate::grid::{self, Authority, HeadFile, Plan};
use crate::netconf;
use crate::outdir::{OutDir, manifest, write_file};
use crate::report::{RunEnd, seconds, size};
use crate::scratch::Scratch;
use crate::signals::{Signals, word};
use crate::solo;
use crate::talk::Talk;

/// Timeout of a submission in the scheduler's queue.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(30 * 24 * 3600);
/// Time that a cancelled job has to end in order.
const CANCEL_GRACE: Duration = Duration::from_secs(3);
/// Time to wait for the reason of a lost link: the scheduler knows more than the link.
const LINK_GRACE: Duration = Duration::from_secs(5);
/// Interval between updates of the progress line.
const TICK: Duration = Duration::from_millis(100);
/// Interval between questions for the reason why a job waits.
const WAIT_REASON_INTERVAL: Duration = Duration::from_secs(1);
/// Timeout of requests to a running head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(8);

/// A job to run with its options.
pub struct RunRequest {
    /// The name of the job.
    pub job: &'static str,
    /// The job as encoded bytes.
    pub body: Bytes,
    /// The registry of this program.
    pub registry: Arc<Registry>,
    /// The version of this program.
    pub version: &'static str,
    /// The options of the run.
    pub args: RunArgs,
    /// The options of every command.
    pub global: GlobalArgs,
    /// Whether `--json` prints the job's result with the run in it.
    pub result_first: bool,
    /// The checkpoint file, if the user named one.
    pub checkpoint: Option<PathBuf>,
}

/// Runs a job and prints the result to standard output; with `--json` also a failure.
///
/// # Errors
/// The job has no outcome.
pub async fn run(order: RunRequest) -> Result<(), Failed> {
    let json = order.args.json;
    let (job, result_first) = (order.job, order.result_first);
    let ended = run_to_end(order).await;
    match ended {
        Ok((ended, exit)) => {
            let object = || if result_first { ended.result_first() } else { ended.json() };
            let text = if json { format!("{}\n", object()) } else { ended.summary() };
            print(&text)?;
            match ended.error() {
                None => Ok(()),
                Some(error) => Err(Failed::new(exit, error)),
            }
        }
        Err(failed) => print_early_failure(job, json, failed),
    }
}

/// Prints a run that failed before it began.
///
/// # Errors
/// Always the failure itself.
pub fn print_early_failure(job: &str, json: bool, failed: Failed) -> Result<(), Failed> {
    if json {
        print(&format!("{}\n", RunEnd::early(job, &failed.message).json()))?;
    }
    Err(failed)
}

async fn run_to_end(order: RunRequest) -> Result<(RunEnd, Exit), Failed> {
    let mut signals = Signals::take()?;
    let over = |sources| order.args.over(sources);
    let config = match &order.args.config {
        Some(file) => load::<GridConfig>(&over(Sources::of_process(Some(file))))?,
        None => grid::ad_hoc(order.args.clusters.unwrap_or_default(), over)?,
    };
    let limit = order.args.timeout.or(config.value.run.timeout.map(|time| time.get()));
    let deadline = limit.map(|limit| Instant::now() + limit);
    let params = params(&config.value, &order.args);
    let start = match order.args.sequential {
        true => None,
        false => netconf::check_start(&config.value, &params, order.args.start)?,
    };
    let mut manifest = manifest(order.job, order.version, Some(params.seed));
    manifest.mode = (!order.args.sequential).then(|| params.mode.word().to_owned());
    let out_dir = order.args.out.clone().or_else(|| config.value.run.out.clone());
    let mut out = match &out_dir {
        Some(dir) => {
            let log_max = config.value.run.log_size.bytes();
            OutDir::create(dir, &manifest, &config.show(true), log_max)?
        }
        None => OutDir::none(&manifest),
    };
    let mut talk = Talk::new(order.global.quiet);
    let mut watch = Watch {
        talk: &mut talk,
        out: &mut out,
        signals: &mut signals,
        limit,
        deadline,
        verbose: order.global.verbose > 0,
        warnings: Vec::new(),
        checkpoint: order.checkpoint.clone(),
        preliminary: None,
    };
    let ended = if order.args.sequential {
        solo::run(&order, &params, &mut watch).await
    } else if let Some(file) = &order.args.config {
        attached(&order, file, &config, params, &manifest.run, &mut watch).await
    } else {
        own_grid(&order, &config, params, start, &manifest.run, &mut watch).await
    };
    let warnings = std::mem::take(&mut watch.warnings);
    // A job that was stopped or lost has its last preliminary outcome.
    let mut ended = match (ended, watch.preliminary.take()) {
        (Err(failed), Some(outcome)) => {
            Ok((RunEnd::stopped(order.job, outcome, &failed.message), failed.exit))
        }
        (ended, preliminary) => {
            ended.map(|(ended, exit)| (ended.or_preliminary(preliminary), exit))
        }
    };
    talk.done();
    if let Ok((ended, _)) = &mut ended {
        ended.warnings = warnings;
    }
    let unwritten = |ended: &mut Result<(RunEnd, Exit), Failed>, out: &OutDir| {
        if let (Ok((ended, exit)), Some(error)) = (ended, out.unwritten()) {
            ended.unwritten = Some(error);
            // A failure of the job takes precedence.
            *exit = if *exit == Exit::Ok { Exit::Failure } else { *exit };
        }
    };
    unwritten(&mut ended, &out);
    let result = match &ended {
        Ok((ended, _)) => ended.json(),
        Err(failed) => RunEnd::early(order.job, &failed.message).json(),
    };
    // A failure is recorded, and the result is printed all the same.
    let _ = out.finish(&result);
    let known = out.unwritten();
    let frames = film::frames(out.files());
    // One line stands for all frames, which may be hundreds.
    let alone = |file: &&PathBuf| frames.is_none() || !film::is_frame(file);
    for file in out.files().iter().filter(alone) {
        talk.say(&format!("wrote {}", file.display()));
    }
    if let Some(frames) = frames {
        talk.say(&frames.line());
        talk.wait_for("making a video");
        tokio::select! {
            biased;
            _ = signals.next() => talk.say("no video: ended by a signal"),
            video = frames.video("ffmpeg".as_ref()) => match video {
                Video::Made(video) => talk.say(&format!("wrote {}", video.display())),
                Video::NotMade(why) => talk.say(&why),
                Video::Failed(why) => out.add(Failed::failure(why)),
            },
        }
        talk.done();
    }
    if let Some(dir) = out.path() {
        talk.say(&format!("the run is in {}", dir.display()));
    }
    unwritten(&mut ended, &out);
    if let (Ok((ended, _)), true) = (&ended, out.unwritten() != known) {
        // The video is made after the result, which is written again to contain its failure.
        let _ = out.finish(&ended.json());
    }
    ended
}

fn params(config: &GridConfig, args: &RunArgs) -> JobParams {
    let mut params = netconf::job_params(config);
    if let Some(steal) = args.steal {
        params.steal = steal.into();
    }
    if let Some(seed) = args.seed {
        params.seed = seed;
    }
    if let Some(period) = args.period {
        params.set_period(period);
    }
    params
}

/// The state of a run that is watched.
pub struct Watch<'a> {
    /// The printer of notes and progress.
    pub talk: &'a mut Talk,
    /// The receiver of files and records.
    pub out: &'a mut OutDir,
    /// The signals that may end the run.
    pub signals: &'a mut Signals,
    /// The maximum time of the run.
    pub limit: Option<Duration>,
    /// The time at which the run is ended.
    pub deadline: Option<Instant>,
    /// Whether to print additional notes.
    pub verbose: bool,
    /// Warnings to print with the result.
    pub warnings: Vec<String>,
    /// The checkpoint file, if the user named one.
    pub checkpoint: Option<PathBuf>,
    /// The last preliminary outcome of the job.
    pub preliminary: Option<Outcome>,
}

impl Watch<'_> {
    /// Waits until the run is ended from outside: by a signal or the time limit.
    pub async fn stopped(&mut self) -> Failed {
        let deadline = self.deadline;
        let over = async {
            match deadline {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            exit = self.signals.next() => Failed::new(exit, format!("ended by {}", word(exit))),
            () = over => {
                let limit = seconds(self.limit.unwrap_or_default().as_secs_f64());
                Failed::new(Exit::Timeout, format!("ended after {limit}: see --timeout"))
            }
        }
    }

    /// Warns of hosts with more compute threads than processors, together with the result.
    fn warn_crowded(&mut self, crowded: &[CrowdedHost]) {
        self.warnings.extend(crowded.iter().map(ToString::to_string));
    }

    /// Writes a file of the job. Returns its path the first time.
    fn write(&mut self, name: &str, bytes: &[u8]) -> Result<Option<PathBuf>, Failed> {
        let before = self.out.files().len();
        let path = self.out.file(name, bytes)?;
        Ok((self.out.files().len() > before).then_some(path))
    }

    fn is_checkpoint(&self, name: &str) -> bool {
        self.checkpoint.is_some() && name == STATE_ARTIFACT
    }

    /// Replaces the checkpoint file.
    fn keep_checkpoint(&mut self, bytes: &[u8]) {
        let Some(path) = &self.checkpoint else { return };
        if let Err(failed) = write_file(path, bytes) {
            self.unwritten(&failed);
            self.out.add(failed);
        }
    }

    /// Reports a failed write at once; the run fails because of it at its end.
    fn unwritten(&mut self, failed: &Failed) {
        if self.out.unwritten().as_ref() == Some(&failed.message) {
            self.talk.say(&failed.message);
        }
    }

    /// Adds records to the run's log.
    fn records(&mut self, records: &[Record]) {
        if let Err(failed) = self.out.records(records) {
            self.unwritten(&failed);
        }
    }

    /// Handles a note of the job.
    pub fn note(&mut self, note: NoteKind) {
        match note {
            NoteKind::Started { root, workers } => {
                let count: u32 = workers.values().sum();
                if self.verbose {
                    self.talk.say(&format!("{count} workers joined; the root runs on {root}"));
                }
                self.talk.wait_for("running");
            }
            NoteKind::Progress { done, total, what } => self.talk.progress(done, total, &what),
            NoteKind::Iteration { index, seconds: s } => {
                if self.verbose {
                    self.talk.say(&format!("iteration {} took {}", index + 1, seconds(s)));
                }
            }
            NoteKind::Say { text } => self.talk.say(&text),
            NoteKind::Preliminary { outcome } => self.preliminary = Some(*outcome),
            NoteKind::Artifact { name, bytes } if self.is_checkpoint(&name) => {
                self.keep_checkpoint(&bytes);
            }
            NoteKind::Artifact { name, bytes } => match self.write(&name, &bytes) {
                Ok(Some(path)) if self.verbose => {
                    let line = format!("{} ({})", path.display(), size(bytes.len() as u64));
                    self.talk.say(&line);
                }
                Ok(_) => {}
                Err(failed) => self.unwritten(&failed),
            },
            NoteKind::Events { records } => self.records(&records),
            NoteKind::Outcome { .. } | NoteKind::Period { .. } => {}
        }
    }
}

/// A submission and its recipient.
struct Session {
    endpoint: Endpoint,
    head: NodeId,
    submit: Submit,
    links: Arc<Links>,
    news: mpsc::Receiver<Heard>,
}

fn submission(
    order: &RunRequest,
    params: JobParams,
    clusters: Option<BTreeMap<ClusterId, u32>>,
    client: Contact,
) -> Submit {
    Submit {
        name: order.job.to_owned(),
        body: order.body.clone(),
        fingerprint: order.registry.fingerprint(),
        params,
        clusters,
        client,
        // Sites on other hosts may lack it at this path; they report that.
        program: std::env::current_exe().ok(),
        need: None,
        principal: None,
    }
}

async fn own_grid(
    order: &RunRequest,
    config: &Loaded<GridConfig>,
    params: JobParams,
    start: Option<BTreeMap<ClusterId, u32>>,
    run: &str,
    watch: &mut Watch<'_>,
) -> Result<(RunEnd, Exit), Failed> {
    let dir = GridDir::make(watch.out.path())?;
    let program = grid::this_program()?;
    let authority = Authority::Ephemeral(Ca::ephemeral(config.value.grid.as_str())?);
    let files = order.args.input_dir();
    let plan = Plan {
        config: &config.value,
        dir: dir.path(),
        authority: &authority,
        program: &program,
        files: files.as_deref(),
        log_level: order.global.log_level,
    };
    let clusters: BTreeMap<ClusterId, u32> = config
        .value
        .cluster
        .iter()
        .map(|cluster| (cluster.name.as_str().into(), cluster.nodes.get()))
        .collect();
    let head = grid::start(&plan).await?;
    let endpoint = head.endpoint.clone();
    let (links, news) = Client::publish(&endpoint);
    endpoint.recorder.record(Event::RunStarted {
        run: run.to_owned(),
        version: order.version.to_owned(),
        seed: Some(params.seed),
        clusters,
    });
    let began = Instant::now();
    let submit = submission(order, params, start, head.contact());
    let session = Session { endpoint: endpoint.clone(), head: HEAD.into(), submit, links, news };
    let ended = match started(&head, dir.path(), watch).await {
        Ok(()) => drive(order.job, session, watch).await,
        Err(failed) => Err(failed),
    };
    record_end(&endpoint, &ended, began.elapsed());
    watch.records(&endpoint.recorder.drain());
    watch.talk.wait_for("ending the nodes");
    // A second signal ends the wait; dropped processes are killed.
    tokio::select! {
        biased;
        _ = watch.signals.next() => {}
        () = grid::stop(head, dir.path(), "the run is over") => {}
    }
    ended
}

fn record_end(endpoint: &Endpoint, ended: &Result<(RunEnd, Exit), Failed>, wall: Duration) {
    let error = match ended {
        Ok((ended, _)) => ended.outcome.as_ref().err().cloned(),
        Err(failed) => Some(failed.message.clone()),
    };
    let wall_us = u64::try_from(wall.as_micros()).unwrap_or(u64::MAX);
    endpoint.recorder.record(Event::RunEnded { ok: error.is_none(), wall_us, error });
}

/// Waits until the grid's nodes have registered.
async fn started(head: &Head, dir: &Path, watch: &mut Watch<'_>) -> Result<(), Failed> {
    watch.talk.wait_for("starting nodes");
    let mut settled = pin!(head.settled(|_, _| {}));
    let mut missing = grid::MissingNodes::of(dir);
    let status = loop {
        tokio::select! {
            biased;
            failed = watch.stopped() => return Err(failed),
            status = &mut settled => break status,
            () = missing.wait() => {
                let lines = missing.lines(&head.status().await);
                lines.iter().for_each(|line| watch.talk.say(line));
            }
        }
    };
    grid::check_whole(&status)?;
    watch.warn_crowded(&status.crowded);
    Ok(())
}

async fn attached(
    order: &RunRequest,
    file: &Path,
    config: &Loaded<GridConfig>,
    params: JobParams,
    run: &str,
    watch: &mut Watch<'_>,
) -> Result<(RunEnd, Exit), Failed> {
    let attachment = attach(file, &config.value).await?;
    let Attachment { endpoint, links, news, head, crowded, .. } = attachment;
    watch.warn_crowded(&crowded);
    endpoint.recorder.record(Event::RunStarted {
        run: run.to_owned(),
        version: order.version.to_owned(),
        seed: Some(params.seed),
        clusters: BTreeMap::new(),
    });
    let began = Instant::now();
    let submit = submission(order, params, None, endpoint.net.contact());
    let session = Session { endpoint: endpoint.clone(), head, submit, links, news };
    let ended = drive(order.job, session, watch).await;
    record_end(&endpoint, &ended, began.elapsed());
    watch.records(&endpoint.recorder.drain());
    // The closed link tells the scheduler that no client waits for the submission.
    endpoint.net.close("the run is over").await;
    ended
}

/// A client's connection to a running grid.
pub struct Attachment {
    /// The endpoint of the client.
    pub endpoint: Endpoint,
    /// The name of the head's node.
    pub head: NodeId,
    /// The address of the head.
    pub address: std::net::SocketAddr,
    /// Hosts of the grid with more compute threads than processors.
    crowded: Vec<CrowdedHost>,
    links: Arc<Links>,
    news: mpsc::Receiver<Heard>,
}

impl Attachment {
    /// The scheduler of the grid.
    pub fn scheduler(&self) -> Remote<Scheduler> {
        self.endpoint.hub.remote(&self.head, SCHEDULER)
    }

    /// The next news of this client's jobs. Cancel safe.
    pub async fn news(&mut self) -> Option<Heard> {
        self.news.recv().await
    }
}

/// Finds the head of a running grid and connects to it.
///
/// # Errors
/// No grid is up, or the head refuses this client.
pub async fn attach(file: &Path, config: &GridConfig) -> Result<Attachment, Failed> {
    let dir = grid::dir_of(file, config);
    let nothing = |why: &str| {
        Failed::failure(format!(
            "no grid runs for {0}{why}: start it with `{1} up {0}`",
            file.display(),
            grid::program_name()
        ))
    };
    let advertised = match &config.head.advertise {
        Some(at) => Some(netconf::resolve(at).await?),
        None => Some(config.head.bind).filter(|bind| bind.port() != 0),
    };
    let (address, host) = match HeadFile::read(&dir)? {
        Some(head) => (head.address, head.elsewhere().map(str::to_owned)),
        None => (advertised.ok_or_else(|| nothing(""))?, None),
    };
    let ca = grid::ca_dir(config, &dir);
    grid::check_authority(config, &dir)?;
    if config.tls.ca.is_none() && !ca.exists() {
        return Err(nothing("")); // `up` makes it
    }
    let authority = Authority::Kept(Ca::load(&ca)?, NODE_VALIDITY);
    let me = NodeId::from(format!("client-{}-{:x}", std::process::id(), incarnation::unique()));
    let identity = authority.issue(&me, HEAD_CLUSTER, "client")?;
    let bind = std::net::SocketAddr::new(config.head.bind.ip(), 0);
    let endpoint = Endpoint::quic(netconf::head_net(config, bind), &identity, incarnation::only())?;
    let (links, news) = Client::publish(&endpoint);
    // The scheduler asks the prober whether this process is alive.
    Prober::publish(&endpoint.hub);
    endpoint.start();
    let head = NodeId::from(HEAD);
    endpoint.net.learn(Contact {
        node: head.clone(),
        cluster: HEAD_CLUSTER.into(),
        address: Address::Socket(address),
    });
    let scheduler: Remote<Scheduler> = endpoint.hub.remote(&head, SCHEDULER);
    let status = scheduler.send(springtide_actors::scheduler::GetStatus {}).deadline(HEAD_TIMEOUT);
    let status = status.await;
    if let Err(error) = &status {
        let refused = Failed::from(error.clone());
        endpoint.net.close("no head").await;
        return Err(match refused.exit {
            // The head may run there, where this host cannot reach it.
            Exit::Failure if host.is_some() && address.ip().is_loopback() => {
                let host = host.unwrap_or_default();
                Failed::failure(format!(
                    "the head of {} runs on {host}, and listens only there ({address}): set \
                    `head.bind` to an address that this host can reach, or run the command \
                    there",
                    file.display()
                ))
            }
            Exit::Failure => {
                let on = host.map_or_else(String::new, |host| format!(" on {host}"));
                nothing(&format!(" at {address}{on} ({error})"))
            }
            _ => refused,
        });
    }
    let crowded = status.map(|status| status.crowded).unwrap_or_default();
    Ok(Attachment { endpoint, head, address, crowded, links, news })
}

/// Submits a job and follows it to its end.
async fn drive(
    name: &str,
    session: Session,
    watch: &mut Watch<'_>,
) -> Result<(RunEnd, Exit), Failed> {
    let Session { endpoint, head, submit, links, mut news } = session;
    let scheduler: Remote<Scheduler> = endpoint.hub.remote(&head, SCHEDULER);
    let mut answer = Box::pin(scheduler.send(submit).deadline(QUEUE_TIMEOUT));
    let mut granted: Option<Granted> = None;
    let mut lost: Option<(Instant, Why)> = None;
    let mut ticks = interval(TICK);
    let me = endpoint.net.me().node.clone();
    let mut asks = interval(WAIT_REASON_INTERVAL);
    let mut wait_request: Option<RemoteRequest<GetWait>> = None;
    watch.talk.wait_for("waiting for nodes");
    loop {
        let lost_at = lost.as_ref().map(|(at, _)| *at);
        let abort = async {
            match lost_at {
                Some(at) => sleep_until(at + LINK_GRACE).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            failed = watch.stopped() => {
                if let Some(granted) = &granted {
                    watch.talk.wait_for("ending the job");
                    cancel(&scheduler, granted.job, &failed.message, &mut news, watch).await;
                }
                return Err(failed);
            }
            Some((_, item, _)) = news.recv() => match item {
                News::Note(note) => watch.note(*note),
                News::Ended(ended) => return Ok(conclude(name, *ended)),
            },
            reply = &mut answer, if granted.is_none() => {
                let reply = reply??;
                if watch.verbose {
                    let (job, count) = (reply.job, reply.view.members.len());
                    watch.talk.say(&format!("{job} has {count} nodes"));
                }
                granted = Some(reply);
            }
            _ = asks.tick(), if granted.is_none() && wait_request.is_none() => {
                let ask = GetWait { client: me.clone() };
                wait_request = Some(scheduler.send(ask).deadline(HEAD_TIMEOUT).start());
            }
            Some(answer) = async {
                match &mut wait_request {
                    Some(wait_request) => Some(wait_request.await),
                    None => None,
                }
            }, if wait_request.is_some() => {
                wait_request = None;
                // A head that does not know the request leaves the line unchanged.
                if let (None, Ok(Some(what))) = (&granted, answer) {
                    watch.talk.wait_for(&format!("waiting for {what}"));
                }
            }
            changes = links.next() => {
                for (node, link) in changes {
                    // The head decides about a job whose coordinator's node is lost.
                    if let Link::Down(why) = link && node == head {
                        let text = format!("the link to {node} is down: {why}");
                        lost = Some((Instant::now(), Why { text, ..why }));
                    }
                }
            }
            () = abort => {
                let refused = lost.as_ref().and_then(|(_, why)| why.refused);
                let text = lost.map(|(_, why)| why.text).unwrap_or_default();
                return Err(Failed::new(of_refusal(refused), text));
            }
            _ = ticks.tick() => watch.talk.tick(),
        }
    }
}

/// The end of a job for its report, with the exit code.
pub fn conclude(name: &str, ended: JobEnded) -> (RunEnd, Exit) {
    let exit = match &ended.outcome {
        Ok(_) => Exit::Ok,
        Err(JobError::Start { .. }) => Exit::NotPlaced,
        Err(_) => Exit::Failure,
    };
    (RunEnd::of(name, &ended), exit)
}

/// Cancels a job within a short time, and still handles its last notes.
async fn cancel(
    scheduler: &Remote<Scheduler>,
    job: JobId,
    reason: &str,
    news: &mut mpsc::Receiver<Heard>,
    watch: &mut Watch<'_>,
) {
    let cancelled = scheduler.send(CancelJob { job, reason: reason.to_owned() }).start();
    let ended = async {
        if cancelled.await.is_err() {
            return;
        }
        while let Some((_, item, _)) = news.recv().await {
            match item {
                News::Note(note) => watch.note(*note),
                News::Ended(_) => return,
            }
        }
    };
    let _ = timeout(CANCEL_GRACE, ended).await;
}

/// The directory of an ad-hoc grid: that of the run, or a temporary one. Files of the grid are
/// removed at the end, above all its keys; logs stay in a run's directory.
enum GridDir {
    OfRun(PathBuf),
    Temporary(Scratch),
}

impl GridDir {
    fn make(out: Option<&Path>) -> Result<Self, Failed> {
        match out {
            Some(out) => Ok(Self::OfRun(out.to_owned())),
            None => Scratch::make().map(Self::Temporary),
        }
    }

    fn path(&self) -> &Path {
        match self {
            Self::OfRun(path) => path,
            Self::Temporary(scratch) => scratch.path(),
        }
    }
}

impl Drop for GridDir {
    fn drop(&mut self) {
        if let Self::OfRun(path) = self {
            clear(path);
        }
    }
}

/// Removes the files of an ended grid from its run's directory, except the nodes' logs.
pub fn clear(dir: &Path) {
    let _ = std::fs::remove_dir_all(dir.join("node"));
    let _ = std::fs::remove_dir_all(records_dir(dir));
    // The lock ended with the head; the file alone has no meaning.
    let _ = std::fs::remove_file(dir.join("scheduler.lease"));
    let _ = std::fs::remove_file(HeadFile::path(dir));
}
