//! `run`: submits a job to a grid of its own or to a running grid, watches it, and prints the
//! result.
//!
//! This module knows neither the work of nodes nor jobs.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use springtide_actors::client::{Client, JobUpdate, ReceivedNews};
use springtide_actors::endpoint::Endpoint;
use springtide_actors::head::{HEAD, Head};
use springtide_actors::job::{JobParams, SCHEDULER};
use springtide_actors::links::{LinkChange, LinkChanges};
use springtide_actors::policy::Mode;
use springtide_actors::programs::ProgramImage;
use springtide_actors::scheduler::{
    CancelJob, GetJob, GetWait, JobGrant, Scheduler, Submit, SubmitError,
};
use springtide_cli::config::load;
use springtide_cli::exit::{Exit, Failed, of_refusal};
use springtide_cli::format::many;
use springtide_cli::outdir::{OutDir, manifest};
use springtide_cli::run_end::RunEnd;
use springtide_cli::run_end::conclude;
use springtide_cli::talk::Talk;
use springtide_runtime::config::{GridConfig, Loaded, Sources};
use springtide_runtime::event::Event;
use springtide_runtime::id::{ClusterId, JobId, NodeId};
use springtide_runtime::net::tls::Ca;
use springtide_runtime::net::{Contact, LinkError};
use springtide_runtime::remote::{Refusal, Remote, RemoteError, RemoteRequest};
use tokio::sync::mpsc;
use tokio::time::{Instant, interval, sleep_until, timeout};

use crate::attach::{Attachment, attach_within, grid_config};
use crate::film::{self, Video};
use crate::grid;
use crate::grid_files;
use crate::grid_files::{Authority, LaunchPlan};
use crate::life::HeadProcess;
use crate::locate::{self, FoundConfig};
use crate::netconf;
use crate::options::RunArgs;
use crate::programs::OwnProgram;
use crate::scratch::GridDir;
use crate::signals::Signals;
use crate::solo;
use crate::watch::{RunRequest, RunWatcher};

/// Timeout of a submission in the scheduler's queue.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(30 * 24 * 3600);
/// Time that a cancelled job has to end in order.
const CANCEL_GRACE: Duration = Duration::from_secs(3);
/// Time to wait for the reason of a lost link: the scheduler knows more than the link.
const LINK_GRACE: Duration = Duration::from_secs(5);
/// Time to wait for a second head of the grid.
const TAKEOVER_GRACE: Duration = Duration::from_secs(60);
/// Delay before a submission is repeated at a second head.
const RESUBMIT_DELAY: Duration = Duration::from_secs(1);
/// Interval between updates of the progress line.
const TICK: Duration = Duration::from_millis(100);
/// Interval between questions for the reason why a job waits.
const WAIT_REASON_INTERVAL: Duration = Duration::from_secs(1);
/// Timeout of requests to a running head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(8);

/// Runs a job to its end.
///
/// # Errors
/// The run failed before the job began, or was stopped without an outcome.
pub async fn run(mut order: RunRequest) -> Result<(RunEnd, Exit), Failed> {
    let mut signals = Signals::take()?;
    let was_named = order.args.config.is_some();
    order.args.config = running_grid(&order.args)?;
    let over = |sources| order.args.apply_to(sources);
    let config = match &order.args.config {
        Some(file) => load::<GridConfig>(&over(Sources::of_process(Some(file))))?,
        None => grid_files::ad_hoc(order.args.clusters.unwrap_or_default(), over)?,
    };
    let limit = order.args.timeout.or(config.value.run.timeout.map(|time| time.get()));
    let deadline = limit.map(|limit| Instant::now() + limit);
    let mut params = params(&config.value, &order.args);
    if order.is_fixed {
        params.mode = Mode::Static;
    }
    let start = if order.args.sequential {
        None
    } else {
        netconf::check_start(&config.value, &params, order.args.start)?
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
    let mut watch = RunWatcher {
        talk: &mut talk,
        out: &mut out,
        signals: &mut signals,
        limit,
        deadline,
        verbose: order.global.verbose > 0,
        warnings: Vec::new(),
        checkpoint: order.checkpoint.clone(),
        preliminary: None,
        json: order.args.json,
    };
    if let Some(file) = order.args.config.as_ref().filter(|_| !was_named) {
        watch.talk.say(&format!("on the grid of {}", file.display()));
    }
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

/// The config of the grid to run on; none for a grid of the run's own.
///
/// # Errors
/// A grid is to be waited for, and no config names one; or the nearest one that has run is wrong.
fn running_grid(args: &RunArgs) -> Result<Option<PathBuf>, Failed> {
    let is_own =
        args.clusters.is_some() || args.start.is_some() || args.sequential || args.files.is_some();
    if args.config.is_some() || is_own {
        return Ok(args.config.clone());
    }
    Ok(match locate::find() {
        Some(FoundConfig::Named(file)) => Some(file),
        Some(FoundConfig::Nearest(file)) if args.wait.is_some() => Some(file),
        // A file of this name may be that of another program.
        Some(FoundConfig::Nearest(file)) if locate::has_state(&file) => {
            let dir = grid_files::dir_of(&file, &grid_config(&file)?);
            matches!(HeadProcess::of(&dir)?, HeadProcess::Here(_)).then_some(file)
        }
        Some(FoundConfig::Nearest(_)) => None,
        None if args.wait.is_some() => {
            let message = "--wait: no config names a grid: give one with --config FILE";
            return Err(Failed::usage(message));
        }
        None => None,
    })
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

/// A submission and its recipient.
struct Session {
    endpoint: Endpoint,
    head: NodeId,
    submit: Submit,
    links: Arc<LinkChanges>,
    news: mpsc::Receiver<ReceivedNews>,
    /// Whether a second head may take over.
    has_second_head: bool,
    /// Until this time, nodes of a grid that is coming up may still register.
    nodes_by: Option<Instant>,
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
        program: std::env::current_exe().ok(),
        need: None,
        principal: None,
        image: None,
    }
}

async fn own_grid(
    order: &RunRequest,
    config: &Loaded<GridConfig>,
    params: JobParams,
    start: Option<BTreeMap<ClusterId, u32>>,
    run: &str,
    watch: &mut RunWatcher<'_>,
) -> Result<(RunEnd, Exit), Failed> {
    let dir = GridDir::make(watch.out.path())?;
    let program = grid_files::this_program()?;
    let authority = Authority::Ephemeral(Ca::ephemeral(config.value.grid.as_str())?);
    let files = order.args.input_dir();
    let plan = LaunchPlan {
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
    let session = Session {
        endpoint: endpoint.clone(),
        head: HEAD.into(),
        submit,
        links,
        news,
        has_second_head: false,
        nodes_by: None,
    };
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
async fn started(head: &Head, dir: &Path, watch: &mut RunWatcher<'_>) -> Result<(), Failed> {
    watch.talk.wait_for("starting nodes");
    let mut settled = pin!(head.wait_for_nodes(|_, _| {}));
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
    watch: &mut RunWatcher<'_>,
) -> Result<(RunEnd, Exit), Failed> {
    let nodes_by = order.args.wait.map(|wait| Instant::now() + wait);
    // Signals and the time limit also end the wait for a grid.
    let attachment = tokio::select! {
        biased;
        failed = watch.stopped() => return Err(failed),
        attached = attach_within(file, &config.value, order.args.wait) => attached?,
    };
    let Attachment { endpoint, links, news, head, crowded_hosts: crowded, has_second_head, .. } =
        attachment;
    watch.warn_crowded(&crowded);
    endpoint.recorder.record(Event::RunStarted {
        run: run.to_owned(),
        version: order.version.to_owned(),
        seed: Some(params.seed),
        clusters: BTreeMap::new(),
    });
    let began = Instant::now();
    let fingerprint = order.registry.fingerprint();
    let own = OwnProgram::new(&endpoint, &head, fingerprint);
    let image = match offered(&own, watch).await {
        Ok(image) => image,
        Err(failed) => {
            endpoint.net.close("the program is not sent").await;
            return Err(failed);
        }
    };
    let submit = Submit { image, ..submission(order, params, None, endpoint.net.contact()) };
    let session = Session {
        endpoint: endpoint.clone(),
        head,
        submit,
        links,
        news,
        has_second_head,
        nodes_by,
    };
    let ended = drive(order.job, session, watch).await;
    record_end(&endpoint, &ended, began.elapsed());
    watch.records(&endpoint.recorder.drain());
    // The closed link tells the scheduler that no client waits for the submission.
    endpoint.net.close("the run is over").await;
    ended
}

/// Offers this program to the head of the grid, and shows the transfer.
async fn offered(
    own: &OwnProgram,
    watch: &mut RunWatcher<'_>,
) -> Result<Option<ProgramImage>, Failed> {
    let sending = RefCell::new(None);
    let mut offer = pin!(own.offer(|line| {
        sending.replace(Some(line.to_owned()));
    }));
    let mut ticks = interval(TICK);
    loop {
        tokio::select! {
            biased;
            failed = watch.stopped() => return Err(failed),
            image = &mut offer => return Ok(image?),
            _ = ticks.tick() => {
                if let Some(line) = sending.take() {
                    watch.talk.wait_for(&line);
                }
                watch.talk.tick();
            }
        }
    }
}

/// Submits a job and follows it to its end.
async fn drive(
    name: &str,
    session: Session,
    watch: &mut RunWatcher<'_>,
) -> Result<(RunEnd, Exit), Failed> {
    let Session { endpoint, head, submit, links, mut news, has_second_head, nodes_by } = session;
    let scheduler: Remote<Scheduler> = endpoint.hub.remote(&head, SCHEDULER);
    let request = || Box::pin(scheduler.send(submit.clone()).deadline(QUEUE_TIMEOUT));
    let mut answer = request();
    let (mut resubmit_at, mut lost_at_first) = (None::<Instant>, None::<Instant>);
    // Whether the head that answers knows the job.
    let mut confirmation: Option<RemoteRequest<GetJob>> = None;
    let grace = if has_second_head { TAKEOVER_GRACE } else { LINK_GRACE };
    let mut granted: Option<JobGrant> = None;
    let mut lost: Option<(Instant, LinkError)> = None;
    let mut ticks = interval(TICK);
    let me = endpoint.net.me().node.clone();
    let mut asks = interval(WAIT_REASON_INTERVAL);
    let mut wait_request: Option<RemoteRequest<GetWait>> = None;
    watch.talk.wait_for("waiting for nodes");
    loop {
        let lost_at = lost.as_ref().map(|(at, _)| *at);
        let abort = async {
            match lost_at {
                Some(at) => sleep_until(at + grace).await,
                None => std::future::pending().await,
            }
        };
        let resubmission_due = resubmit_at;
        let resubmission = async {
            match resubmission_due {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let awaits_head = granted.is_none() || (has_second_head && lost.is_some());
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
                JobUpdate::Note(note) => watch.note(*note),
                JobUpdate::Ended(ended) => return Ok(conclude(name, *ended)),
            },
            () = resubmission => {
                resubmit_at = None;
                answer = request();
            }
            reply = &mut answer, if granted.is_none() && resubmit_at.is_none() => {
                if let Err(error) = &reply
                    && has_second_head
                    && is_of_lost_head(error)
                {
                    let text = error.to_string();
                    lost.get_or_insert_with(|| (Instant::now(), LinkError { text, refused: None }));
                    lost_at_first.get_or_insert_with(Instant::now);
                    resubmit_at = Some(Instant::now() + RESUBMIT_DELAY);
                    continue;
                }
                // The nodes register a little later: at the second head, or in a new grid.
                let is_early = lost_at_first.is_some_and(|at| at.elapsed() < TAKEOVER_GRACE)
                    || nodes_by.is_some_and(|at| Instant::now() < at);
                if is_early && matches!(reply, Ok(Err(SubmitError::NotPlaced { .. }))) {
                    resubmit_at = Some(Instant::now() + RESUBMIT_DELAY);
                    continue;
                }
                let reply = reply??;
                lost = None;
                if watch.verbose {
                    let (job, count) = (reply.job, reply.view.members.len());
                    watch.talk.say(&format!("{job} has {}", many(count as u64, "node")));
                }
                granted = Some(reply);
            }
            _ = asks.tick(), if awaits_head && wait_request.is_none() => {
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
                if has_second_head && answer.is_ok() && lost.take().is_some() {
                    let ask = |granted: &JobGrant| GetJob { job: granted.job };
                    let ask = granted.as_ref().map(ask);
                    confirmation =
                        ask.map(|ask| scheduler.send(ask).deadline(HEAD_TIMEOUT).start());
                }
                // A head that does not know the request leaves the line unchanged.
                if let (None, Ok(Some(what))) = (&granted, answer) {
                    let is_transfer = what.starts_with("sending ");
                    let line = if is_transfer { what } else { format!("waiting for {what}") };
                    watch.talk.wait_for(&line);
                }
            }
            Some(known) = async {
                match &mut confirmation {
                    Some(confirmation) => Some(confirmation.await),
                    None => None,
                }
            }, if confirmation.is_some() => {
                confirmation = None;
                match known {
                    Ok(Some(_)) => {}
                    Err(error) if error.refusal() != Some(Refusal::NoJob) => {
                        // The link is lost again, or the question.
                        let text = error.to_string();
                        lost = Some((Instant::now(), LinkError { text, refused: None }));
                    }
                    // The second head does not know jobs whose clients wait.
                    Ok(None) | Err(_) => {
                        if let Some(granted) = granted.take() {
                            watch.talk.say(&submitted_again(granted.job));
                        }
                        lost_at_first = Some(Instant::now());
                        answer = request();
                    }
                }
            }
            changes = links.next() => {
                for (node, link) in changes {
                    // The head decides about a job whose coordinator's node is lost.
                    if let LinkChange::Down(why) = link && node == head {
                        let text = format!("the link to {node} is down: {why}");
                        let at = lost.as_ref().map_or_else(Instant::now, |(at, _)| *at);
                        lost_at_first.get_or_insert(at);
                        lost = Some((at, LinkError { text, ..why }));
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

/// What becomes of a job that the second head does not know.
fn submitted_again(job: JobId) -> String {
    format!(
        "another head has taken over, and does not know {job}: the job is submitted again, and \
         begins again"
    )
}

/// Whether a message may not have reached the head, or its answer not this process.
pub fn is_of_lost_head(error: &RemoteError) -> bool {
    matches!(
        error,
        RemoteError::Gone { .. } | RemoteError::Timeout { .. } | RemoteError::NoActor { .. }
    )
}

/// Cancels a job within a short time, and still handles its last notes.
async fn cancel(
    scheduler: &Remote<Scheduler>,
    job: JobId,
    reason: &str,
    news: &mut mpsc::Receiver<ReceivedNews>,
    watch: &mut RunWatcher<'_>,
) {
    let cancelled = scheduler.send(CancelJob { job, reason: reason.to_owned() }).start();
    let ended = async {
        if cancelled.await.is_err() {
            return;
        }
        while let Some((_, item, _)) = news.recv().await {
            match item {
                JobUpdate::Note(note) => watch.note(*note),
                JobUpdate::Ended(_) => return,
            }
        }
    };
    let _ = timeout(CANCEL_GRACE, ended).await;
}
