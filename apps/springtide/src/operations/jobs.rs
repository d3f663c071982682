//! `job ...`: submits jobs to a running grid, and shows and changes them.
//!
//! Independent of scheduling.

mod needs;
mod shown;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand, ValueHint};
use serde_json::{Value, json};
use springtide_actors::job::JobParams;
use springtide_actors::policy::malleability::Placed;
use springtide_actors::scheduler::{
    CancelJob, GetJob, GetStatus, PlanError, PlanJob, Resize, ResizeError, ResizeJob, Scheduler,
    Submit,
};
use springtide_runtime::config::{GridConfig, Sources, load};
use springtide_runtime::id::JobId;
use springtide_runtime::remote::Remote;
use tokio::time::{Instant, sleep};

pub use self::needs::{JobRequest, NeedArgs, need, of_file};

use self::shown::{
    JobInfo, list_object, list_text, plan_object, plan_text, purged_object, purged_text, rows,
    status_object, status_text, why_object, why_text,
};
use crate::args::{GlobalArgs, time};
use crate::desk::{
    DESK, JobArchive, JobEntry, JobRecord, ListJobs, PurgeJobs, Purged, ReadJob, Selection,
    SubmitJob, since_epoch,
};
use crate::exit::{Exit, Failed};
use crate::netconf;
use crate::report::{SCHEMA, seconds};
use crate::run::{Attachment, attach, print};
use crate::signals::{Signals, word};

/// Timeout of a request that the head answers at once.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval between queries while the command waits for a job.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Time that a cancelled job has to end.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(30);
/// The default number of ended jobs that `job list` shows.
const ENDED_SHOWN: usize = 20;
/// Timeout of a purge, which may remove many jobs.
const PURGE_TIMEOUT: Duration = Duration::from_secs(120);
/// The maximum number of failures that a plan prints in full.
const FAILURES_MAX: usize = 10;
/// A number of lines above the maximum that the head keeps.
const ALL_LINES: usize = 1_000_000;

/// Options that select the grid and the form of the output.
#[derive(Args, Clone, Debug)]
pub struct GridArgs {
    /// Config of the running grid
    #[arg(
        id = "job.config",
        long = "config",
        value_name = "FILE",
        value_hint = ValueHint::FilePath,
    )]
    pub config: PathBuf,
    /// Print the result as one JSON object
    #[arg(id = "job.json", long = "json")]
    pub json: bool,
}

/// Options of `job submit` and `job plan` with a file.
#[derive(Args, Clone, Debug)]
pub struct FileArgs {
    #[command(flatten)]
    pub grid: GridArgs,
    /// File with jobs; `config init --jobs` writes an example
    #[arg(id = "job.file", long = "file", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
}

/// Subcommands of `job`, except `submit` and `plan`.
#[derive(Subcommand, Clone, Debug)]
pub enum JobCommand {
    /// List the jobs that have not ended, and the last ended ones
    List {
        #[command(flatten)]
        grid: GridArgs,
        /// Maximum number of ended jobs
        #[arg(long, value_name = "N", default_value_t = ENDED_SHOWN)]
        last: usize,
        /// List all ended jobs that the head keeps
        #[arg(long, conflicts_with = "last")]
        all: bool,
    },
    /// Remove ended jobs and their files
    Purge {
        #[command(flatten)]
        grid: GridArgs,
        /// Numbers of ended jobs, such as 7 or job-7
        #[arg(value_name = "JOB", value_parser = parse_job,
              required_unless_present_any = ["older_than", "keep"])]
        jobs: Vec<JobId>,
        /// Remove jobs that ended longer ago than this
        #[arg(long, value_name = "TIME", value_parser = time)]
        older_than: Option<Duration>,
        /// Remove all but the last N ended jobs; with --older-than, only those that exceed both
        /// limits
        #[arg(long, value_name = "N")]
        keep: Option<usize>,
    },
    /// Show the state, processors and progress of a job
    Status(OneArgs),
    /// Explain why a job waits, and list its history
    Why(OneArgs),
    /// Give a running job more processors as soon as they are free
    Grow {
        #[command(flatten)]
        one: OneArgs,
        /// Number of additional processors
        #[arg(value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
        count: u32,
        /// Shrink other jobs for it, if that frees all processors within this time
        #[arg(long, value_name = "TIME", value_parser = time)]
        within: Option<Duration>,
        /// Only in this cluster
        #[arg(long, value_name = "NAME")]
        cluster: Option<String>,
    },
    /// Take processors from a running job; its new size is its maximum from then on
    Shrink {
        #[command(flatten)]
        one: OneArgs,
        /// Number of processors to take
        #[arg(value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
        count: u32,
    },
    /// Cancel a job, waiting or running
    Cancel(OneArgs),
    /// Print a job's result
    Result {
        #[command(flatten)]
        one: OneArgs,
        /// Wait until the job has ended
        #[arg(long)]
        wait: bool,
        /// Maximum time to wait
        #[arg(long, value_name = "TIME", value_parser = time, requires = "wait")]
        timeout: Option<Duration>,
    },
    /// Print the output of a job
    Logs {
        #[command(flatten)]
        one: OneArgs,
        /// Maximum number of last lines
        #[arg(long, value_name = "N")]
        lines: Option<usize>,
    },
}

/// Options that select one job of a grid.
#[derive(Args, Clone, Debug)]
pub struct OneArgs {
    /// Number of the job, such as 7 or job-7
    #[arg(value_name = "JOB", value_parser = parse_job)]
    pub job: JobId,
    #[command(flatten)]
    pub grid: GridArgs,
}

fn parse_job(text: &str) -> Result<JobId, String> {
    let digits = text.strip_prefix("job-").unwrap_or(text);
    let number = digits.parse().ok().filter(|number| *number > 0);
    number.map(JobId).ok_or_else(|| "must be a job's number such as 7 or job-7".to_owned())
}

/// Settings of a submission.
pub struct SubmitOrder {
    /// The grid's config file.
    pub file: PathBuf,
    /// Whether the result is printed as one JSON object.
    pub json: bool,
    /// Whether to plan the jobs instead of submitting them.
    pub dry: bool,
    /// Fingerprint of this program's registry.
    pub fingerprint: u64,
}

/// Reads the grid's config.
///
/// # Errors
/// The config cannot be read or is wrong.
pub fn grid_config(file: &Path) -> Result<GridConfig, Failed> {
    Ok(load::<GridConfig>(&Sources::of_process(Some(file)))?.value)
}

/// Finds the head of the grid of a config and connects to it.
///
/// # Errors
/// As [`grid_config`] and [`attach`].
pub async fn attach_by(file: &Path) -> Result<Attachment, Failed> {
    attach(file, &grid_config(file)?).await
}

/// Submits jobs without waiting for their ends, or plans where they would start.
///
/// # Errors
/// No grid is up, or the head refuses a job; the jobs before it are submitted and printed. A plan
/// fails if a job could not start now.
pub async fn submit(
    order: SubmitOrder,
    config: &GridConfig,
    jobs: Vec<JobRequest>,
    global: &GlobalArgs,
) -> Result<(), Failed> {
    let attachment = match attach(&order.file, config).await {
        Ok(attachment) => attachment,
        Err(failed) => return told_early(order.json, None, failed),
    };
    let done = match order.dry {
        true => plan_all(&attachment, &order, jobs, global).await,
        false => submit_all(&attachment, &order, config, jobs, global).await,
    };
    attachment.endpoint.net.close("submitted").await;
    done
}

async fn submit_all(
    attachment: &Attachment,
    order: &SubmitOrder,
    config: &GridConfig,
    jobs: Vec<JobRequest>,
    global: &GlobalArgs,
) -> Result<(), Failed> {
    let Attachment { endpoint, head, .. } = attachment;
    let archive: Remote<JobArchive> = endpoint.hub.remote(head, DESK);
    let all = jobs.len();
    let (mut numbers, mut ended) = (Vec::new(), Ok(()));
    for JobRequest { name, body, line, need } in jobs {
        let mut params: JobParams = netconf::job_params(config);
        params.min_nodes = need.least();
        params.max_nodes = Some(need.greatest());
        let submit = Submit {
            name: name.to_owned(),
            body,
            fingerprint: order.fingerprint,
            params,
            clusters: None,
            client: endpoint.net.contact(),
            program: std::env::current_exe().ok(),
            need: Some(need),
            principal: None,
        };
        let job = match archive
            .send(SubmitJob { submit, line: line.clone() })
            .deadline(REQUEST_TIMEOUT)
            .await
        {
            Ok(Ok(job)) => job,
            refused => {
                let failed = match refused {
                    Ok(refused) => refused.map(drop).map_err(Failed::from).err(),
                    // The head may have received the job, while its answer was lost.
                    Err(error) => Some(Failed::from(error)).map(|failed| {
                        let message = format!(
                            "{}; `job list` shows whether it was submitted",
                            failed.message
                        );
                        Failed { message, ..failed }
                    }),
                };
                ended = failed.map_or(Ok(()), |failed| {
                    Err(after_some_submitted(failed, &line, numbers.len(), all))
                });
                break;
            }
        };
        numbers.push(job);
        if !global.quiet && !order.json {
            eprintln!("{job} is submitted: {line}");
        }
    }
    print(&submitted(order.json, &numbers, ended.as_ref().err()))?;
    ended
}

/// Adds to a failed submission how many jobs were submitted before it.
fn after_some_submitted(failed: Failed, line: &str, before: usize, all: usize) -> Failed {
    if all == 1 {
        return failed;
    }
    let message = format!("{before} of {all} jobs were submitted; then {line}: {}", failed.message);
    Failed { message, ..failed }
}

/// The printed numbers of submitted jobs, with the failure of the others.
fn submitted(json: bool, numbers: &[JobId], failed: Option<&Failed>) -> String {
    if !json {
        return numbers.iter().map(|job| format!("{job}\n")).collect();
    }
    let numbers: Vec<u64> = numbers.iter().map(|job| job.0).collect();
    let mut object = json!({ "schema": SCHEMA, "ok": failed.is_none(), "jobs": numbers });
    if let (Some(failed), Some(object)) = (failed, object.as_object_mut()) {
        object.insert("error".to_owned(), json!(failed.message));
    }
    format!("{object}\n")
}

async fn plan_all(
    attachment: &Attachment,
    order: &SubmitOrder,
    jobs: Vec<JobRequest>,
    global: &GlobalArgs,
) -> Result<(), Failed> {
    let scheduler = attachment.scheduler();
    let mut plans = Vec::new();
    for JobRequest { line, need, .. } in jobs {
        match scheduler.send(PlanJob { need }).deadline(REQUEST_TIMEOUT).await {
            Ok(plan) => plans.push((line, plan)),
            Err(error) => return told_early(order.json, None, error.into()),
        }
    }
    print(&match order.json {
        true => {
            let all: Vec<Value> =
                plans.iter().map(|(line, plan)| plan_object(line, plan)).collect();
            format!("{}\n", json!({ "schema": SCHEMA, "plans": all, "each_alone": true }))
        }
        false => plans.iter().map(|(line, plan)| plan_text(line, plan) + "\n").collect(),
    })?;
    if plans.len() > 1 && !global.quiet && !order.json {
        eprintln!("each job is planned alone on the processors free now; together, some may wait");
    }
    check_plans(&plans)
}

/// Fails if any of these plans found no place.
fn check_plans(plans: &[(String, Result<Placed, PlanError>)]) -> Result<(), Failed> {
    let failures = || plans.iter().filter_map(|(line, plan)| Some((line, plan.as_ref().err()?)));
    let Some((_, first)) = failures().next() else { return Ok(()) };
    if plans.len() == 1 {
        return Err(Failed::new(Exit::NotPlaced, first));
    }
    let count = failures().count();
    let mut text = format!("{count} of {} jobs cannot start now:", plans.len());
    for (line, error) in failures().take(FAILURES_MAX) {
        let _ = write!(text, "\n  {line}: {error}");
    }
    if count > FAILURES_MAX {
        let _ = write!(text, "\n  and {} more", count - FAILURES_MAX);
    }
    Err(Failed::new(Exit::NotPlaced, text))
}

/// Prints a failure as a JSON object, if JSON is requested and nothing else is printed.
///
/// # Errors
/// Always the failure itself.
pub fn told_early(json: bool, job: Option<JobId>, failed: Failed) -> Result<(), Failed> {
    if json {
        let mut object = json!({ "schema": SCHEMA, "ok": false, "error": failed.message });
        if let (Some(job), Some(object)) = (job, object.as_object_mut()) {
            object.insert("job".to_owned(), json!(job.0));
        }
        print(&format!("{object}\n"))?;
    }
    Err(failed)
}

/// A connection to a grid for questions about its jobs.
struct Grid {
    attachment: Attachment,
    archive: Remote<JobArchive>,
    scheduler: Remote<Scheduler>,
}

impl Grid {
    async fn attach(file: &Path) -> Result<Self, Failed> {
        let attachment = attach_by(file).await?;
        let archive = attachment.endpoint.hub.remote(&attachment.head, DESK);
        let scheduler = attachment.scheduler();
        Ok(Self { attachment, archive, scheduler })
    }

    /// Returns the state of a job, or fails if the grid does not know it.
    async fn job_info(&self, job: JobId, lines: usize) -> Result<JobInfo, Failed> {
        let job_info = self.find(job, lines, false).await?;
        if job_info.record.is_none() && job_info.detail.is_none() {
            return Err(Failed::usage(format!("the grid has no {job}: `job list` shows its jobs")));
        }
        Ok(job_info)
    }

    /// Returns the state of a job. A former job without a record and without scheduler state has
    /// ended.
    async fn find(&self, job: JobId, lines: usize, result: bool) -> Result<JobInfo, Failed> {
        let ask = ReadJob { job, lines, result };
        let record = self.archive.send(ask).deadline(REQUEST_TIMEOUT).await?;
        let detail = self.scheduler.send(GetJob { job }).deadline(REQUEST_TIMEOUT).await?;
        Ok(JobInfo { job, record, detail })
    }
}

impl JobCommand {
    /// The options of the grid, and the job that the command names.
    fn of(&self) -> (&GridArgs, Option<JobId>) {
        match self {
            Self::List { grid, .. } | Self::Purge { grid, .. } => (grid, None),
            Self::Status(one) | Self::Why(one) | Self::Cancel(one) => (&one.grid, Some(one.job)),
            Self::Grow { one, .. }
            | Self::Shrink { one, .. }
            | Self::Result { one, .. }
            | Self::Logs { one, .. } => (&one.grid, Some(one.job)),
        }
    }
}

/// Executes a subcommand of `job` other than `submit` and `plan`.
///
/// # Errors
/// No grid is up, it has no such job, or the job cannot do the request.
pub async fn job(command: JobCommand, global: &GlobalArgs) -> Result<(), Failed> {
    let (GridArgs { config, json }, one) = command.of();
    let (file, json) = (config.clone(), *json);
    let done = async {
        let grid = Grid::attach(&file).await?;
        let done = execute(&grid, command, global).await;
        grid.attachment.endpoint.net.close("answered").await;
        done
    };
    match done.await {
        Ok(exit) => exit.map_or(Ok(()), Err),
        Err(failed) => told_early(json, one, failed),
    }
}

/// Executes a subcommand. Returns the failure to exit with after all output is printed.
async fn execute(
    grid: &Grid,
    command: JobCommand,
    global: &GlobalArgs,
) -> Result<Option<Failed>, Failed> {
    match command {
        JobCommand::List { grid: args, last, all } => {
            // One more than is shown, to detect that there are more.
            let ended = (!all).then_some(last.saturating_add(1));
            let ask = ListJobs { ended, ..ListJobs::default() };
            let jobs = grid.archive.send(ask).deadline(REQUEST_TIMEOUT).await?;
            let (jobs, more) = if all { (jobs, false) } else { last_ended(jobs, last) };
            let status = grid.scheduler.send(GetStatus {}).deadline(REQUEST_TIMEOUT).await?;
            let rows = rows(jobs, status.jobs, since_epoch());
            print(&if args.json { list_object(&rows, more) } else { list_text(&rows) })?;
            if more && !args.json && !global.quiet {
                eprintln!("jobs that ended earlier are hidden: show more with --last N or --all");
            }
        }
        JobCommand::Purge { grid: args, jobs, older_than, keep } => {
            let older_than_s = older_than.map(|age| age.as_secs());
            let selection = Selection { jobs: jobs.into_iter().collect(), older_than_s, keep };
            let call = grid.archive.send(PurgeJobs { selection, of: None });
            let purged = call.deadline(PURGE_TIMEOUT).await?;
            print(&if args.json { purged_object(&purged) } else { purged_text(&purged) })?;
            return Ok(not_purged(&purged));
        }
        JobCommand::Status(one) => {
            let job_info = grid.job_info(one.job, 0).await?;
            print(&if one.grid.json { status_object(&job_info) } else { status_text(&job_info) })?;
        }
        JobCommand::Why(one) => {
            let job_info = grid.job_info(one.job, 0).await?;
            print(&if one.grid.json { why_object(&job_info) } else { why_text(&job_info) })?;
        }
        JobCommand::Grow { one, count, within, cluster } => {
            let within_ms = within.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
            let cluster = cluster.map(|name| name.as_str().into());
            resize(grid, &one, Resize::Grow { count, within_ms, cluster }).await?;
        }
        JobCommand::Shrink { one, count } => resize(grid, &one, Resize::Shrink { count }).await?,
        JobCommand::Cancel(one) => cancel(grid, &one, global).await?,
        JobCommand::Result { one, wait, timeout } => {
            let job_info = grid.job_info(one.job, 0).await?;
            let job_info = match wait {
                true => ended(grid, job_info, timeout, "continues; `job cancel` ends it").await?,
                false => job_info,
            };
            let job_info = match job_info.has_ended() {
                true => grid.find(one.job, 0, true).await?,
                false => job_info,
            };
            return result(&one, job_info);
        }
        JobCommand::Logs { one, lines } => {
            let job_info = grid.job_info(one.job, lines.unwrap_or(ALL_LINES)).await?;
            logs(&one, job_info.record, lines, global)?;
        }
    }
    Ok(None)
}

/// The jobs without those that ended before the last `count`, and whether there are any such jobs.
fn last_ended(jobs: Vec<JobEntry>, count: usize) -> (Vec<JobEntry>, bool) {
    let mut ended: Vec<(u64, JobId)> = jobs
        .iter()
        .filter(|entry| entry.ended.is_some())
        .map(|entry| (entry.ended_unix_s.unwrap_or(entry.submitted_unix_s), entry.job))
        .collect();
    ended.sort_unstable();
    let hidden: BTreeSet<JobId> = ended.iter().rev().skip(count).map(|(_, job)| *job).collect();
    let shown = jobs.into_iter().filter(|entry| !hidden.contains(&entry.job)).collect();
    (shown, !hidden.is_empty())
}

/// The failure of a purge that did not remove all named jobs.
fn not_purged(purged: &Purged) -> Option<Failed> {
    let Purged { running, unknown, failed, .. } = purged;
    if let Some(job) = unknown.first() {
        let text = format!("the grid has no {job}: `job list --all` shows its jobs");
        return Some(Failed::usage(text));
    }
    if let Some(job) = running.first() {
        let text = format!("{job} has not ended: end it first with `job cancel`");
        return Some(Failed::failure(text));
    }
    let (job, why) = failed.first_key_value()?;
    Some(Failed::failure(format!("{job} cannot be removed: {why}")))
}

fn logs(
    one: &OneArgs,
    record: Option<JobRecord>,
    wanted: Option<usize>,
    global: &GlobalArgs,
) -> Result<(), Failed> {
    let Some(JobRecord { lines, said: line_count, dir, .. }) = record else {
        return Err(not_submitted(one.job));
    };
    let file = dir.join("log.txt");
    if one.grid.json {
        let object = json!({
            "schema": SCHEMA, "job": one.job.0, "lines": lines, "said": line_count, "file": file,
        });
        return print(&format!("{object}\n"));
    }
    print(&lines.iter().map(|line| format!("{line}\n")).collect::<String>())?;
    if let Some(note) =
        missing_lines_note(lines.len(), line_count, wanted).filter(|_| !global.quiet)
    {
        eprintln!("{note}: all are in {} on the head's machine", file.display());
    }
    Ok(())
}

/// The note that some requested lines are missing, if so.
fn missing_lines_note(lines: usize, line_count: u64, wanted: Option<usize>) -> Option<String> {
    let fewer = (lines as u64) < line_count && wanted.is_none_or(|wanted| lines < wanted);
    fewer.then(|| format!("only the last {lines} of {line_count} lines are shown"))
}

async fn cancel(grid: &Grid, one: &OneArgs, global: &GlobalArgs) -> Result<(), Failed> {
    let job = one.job;
    let job_info = grid.job_info(job, 0).await?;
    if job_info.has_ended() {
        return Err(Failed::failure(format!(
            "{job} has ended already: it is {}",
            job_info.state()
        )));
    }
    let reason = "cancelled by `job cancel`".to_owned();
    grid.scheduler.send(CancelJob { job, reason }).deadline(REQUEST_TIMEOUT).await?;
    let job_info =
        ended(grid, job_info, Some(CANCEL_TIMEOUT), "ends without further action").await?;
    let state = job_info.state();
    if !matches!(state, "cancelled" | "over") {
        let text = format!("{job} ended before it could be cancelled: it is {state}");
        return Err(Failed::failure(text));
    }
    if one.grid.json {
        let object = json!({ "schema": SCHEMA, "job": job.0, "ok": true, "state": state });
        return print(&format!("{object}\n"));
    }
    if !global.quiet {
        eprintln!("{job} is {state}");
    }
    Ok(())
}

async fn resize(grid: &Grid, one: &OneArgs, by: Resize) -> Result<(), Failed> {
    let job = one.job;
    let call = grid.scheduler.send(ResizeJob { job, by });
    let done = match call.deadline(REQUEST_TIMEOUT).await? {
        Ok(done) => done,
        Err(error) => {
            let exit = match &error {
                ResizeError::Bounds { .. } => Exit::NotPlaced,
                ResizeError::NotRunning { .. } => {
                    return Err(not_resizable(&grid.job_info(job, 0).await?));
                }
                _ => Exit::Usage,
            };
            return Err(Failed::new(exit, error));
        }
    };
    let (from, to) = (done.from, done.to);
    print(&match one.grid.json {
        true => format!("{}\n", json!({ "schema": SCHEMA, "job": job.0, "from": from, "to": to })),
        false => format!("{job} has {from} processors and will have {to}\n"),
    })
}

/// The failure to resize a job that does not run.
fn not_resizable(job_info: &JobInfo) -> Failed {
    let (job, state) = (job_info.job, job_info.state());
    Failed::failure(match job_info.has_ended() {
        true => format!("{job} has ended: it is {state}"),
        false => {
            let why = job_info.why().map_or_else(String::new, |why| format!(" ({why})"));
            format!("{job} is {state}{why}: its size can be changed when it runs")
        }
    })
}

/// Waits for a job's end. `if_aborted` describes the job's state if the wait ends early.
async fn ended(
    grid: &Grid,
    mut job_info: JobInfo,
    limit: Option<Duration>,
    if_aborted: &str,
) -> Result<JobInfo, Failed> {
    let mut signals = Signals::take()?;
    let (began, job) = (Instant::now(), job_info.job);
    while !job_info.has_ended() {
        if let Some(limit) = limit.filter(|limit| began.elapsed() >= *limit) {
            let limit = seconds(limit.as_secs_f64());
            let text = format!("{job} has not ended after {limit}: it {if_aborted}");
            return Err(Failed::new(Exit::Timeout, text));
        }
        tokio::select! {
            biased;
            exit = signals.next() => {
                return Err(Failed::new(exit, format!("{}: {job} {if_aborted}", word(exit))));
            }
            () = sleep(POLL_INTERVAL) => {}
        }
        job_info = grid.find(job, 0, false).await?;
    }
    Ok(job_info)
}

fn not_submitted(job: JobId) -> Failed {
    let text = format!(
        "{job} was not submitted by `job submit`: only the client that ran it has \
    its result"
    );
    Failed::usage(text)
}

/// Prints a job's result. Returns the failure of the job, if it failed.
fn result(one: &OneArgs, job_info: JobInfo) -> Result<Option<Failed>, Failed> {
    let job = one.job;
    let Some(record) = job_info.record else { return Err(not_submitted(job)) };
    let Some(end) = record.entry.ended else {
        return Err(Failed::failure(format!("{job} has not ended: wait for it with --wait")));
    };
    if let Some(why) = &record.unreadable {
        let text =
            format!("{job} has ended ({}), and its result cannot be read: {why}", end.word());
        return Err(Failed::failure(text));
    }
    let Some((object, summary)) = record.result else {
        let (word, dir) = (end.word(), record.dir.display());
        let error = end.error.map_or_else(String::new, |error| format!(": {error}"));
        return Err(Failed::failure(format!(
            "{job} has ended ({word}{error}), and its result could not be written to {dir}: see \
            the log of its head"
        )));
    };
    print(&if one.grid.json { format!("{object}\n") } else { summary })?;
    if let Some(why) = record.unwritten {
        eprintln!("{job}'s result could not be written ({why}): it is lost when the head ends");
    }
    let exit = end.exit();
    Ok(end.error.map(|error| Failed::new(exit, error)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use bytes::Bytes;

    use springtide_actors::scheduler::{JobDetail, JobState, JobStatus};

    use super::*;
    use crate::desk::JobEnd;

    #[test]
    fn job_numbers_parse() {
        assert_eq!(parse_job("7"), Ok(JobId(7)));
        assert_eq!(parse_job("job-12"), Ok(JobId(12)));
        for wrong in ["", "job-", "0", "-1", "job-x", "7.5"] {
            assert!(parse_job(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_failure_reports_the_jobs_submitted_before_it() {
        let numbers = [JobId(1), JobId(2)];
        let failed = after_some_submitted(Failed::new(Exit::NotPlaced, "nowhere"), "fib", 2, 5);
        let text = "2 of 5 jobs were submitted; then fib: nowhere";
        assert_eq!((failed.exit, failed.message.as_str()), (Exit::NotPlaced, text));
        assert_eq!(after_some_submitted(Failed::failure("no"), "fib", 0, 1).message, "no");
        assert_eq!(submitted(false, &numbers, Some(&failed)), "job-1\njob-2\n");
        let object = |failed| serde_json::from_str::<Value>(&submitted(true, &numbers, failed));
        let expected = json!({ "schema": 1, "ok": false, "jobs": [1, 2], "error": text });
        assert_eq!(object(Some(&failed)).unwrap(), expected);
        assert_eq!(object(None).unwrap(), json!({ "schema": 1, "ok": true, "jobs": [1, 2] }));
    }

    #[test]
    fn a_plan_reports_jobs_that_never_start_and_each_failure() {
        let no = |never| {
            let why = springtide_actors::policy::malleability::NoPlace {
                component: 0,
                excluded: BTreeMap::new(),
                never,
            };
            Err(PlanError::NoPlace(why))
        };
        assert_eq!(plan_text("fib", &no(false)), "fib: would wait, for component 1 has no place");
        let text = plan_text("fib", &no(true));
        assert_eq!(text, "fib: can never start, for component 1 can have no place");
        let plans = |count: usize| -> Vec<(String, Result<Placed, PlanError>)> {
            (0..count).map(|i| (format!("fib --n {i}"), no(i % 2 == 0))).collect()
        };
        assert_eq!(check_plans(&plans(0)), Ok(()));
        assert_eq!(
            check_plans(&plans(1)).unwrap_err().message,
            "no cluster can ever take component 1"
        );
        let many = check_plans(&plans(12)).unwrap_err();
        assert_eq!(many.exit, Exit::NotPlaced);
        let expected = "12 of 12 jobs cannot start now:\n  fib --n 0: no cluster can ever take";
        assert!(many.message.starts_with(expected), "{}", many.message);
        assert!(many.message.ends_with("fib --n 9: no cluster can take component 1\n  and 2 more"));
    }

    #[test]
    fn missing_lines_are_reported() {
        assert_eq!(missing_lines_note(5, 5, None), None);
        assert_eq!(missing_lines_note(3, 5, Some(3)), None);
        let expected = Some("only the last 1000 of 1200 lines are shown".to_owned());
        assert_eq!(missing_lines_note(1000, 1200, None), expected);
        assert_eq!(missing_lines_note(1000, 1200, Some(1100)), expected);
    }

    fn job_info(end: Option<JobEnd>, waits: Option<&str>) -> JobInfo {
        let (name, line) = ("fib".to_owned(), "fib --n 5".to_owned());
        let ended_unix_s = end.as_ref().map(|_| 5);
        let entry = JobEntry {
            job: JobId(7),
            name,
            line,
            submitted_unix_s: 0,
            ended: end,
            ended_unix_s,
            principal: None,
        };
        let record = JobRecord {
            entry,
            progress: None,
            lines: Vec::new(),
            said: 0,
            result: None,
            unwritten: None,
            unreadable: None,
            dir: "jobs/job-7".into(),
        };
        let status = waits.map(|waits| JobStatus {
            job: JobId(7),
            name: "fib".to_owned(),
            state: JobState::Queued,
            sizes: std::collections::BTreeMap::new(),
            waits_for: Some(waits.to_owned()),
            coordinator: None,
            principal: None,
        });
        let detail = status.map(|status| JobDetail {
            status: Some(status),
            view: None,
            history: Vec::new(),
        });
        JobInfo { job: JobId(7), record: Some(record), detail }
    }

    #[test]
    fn why_and_status_report_errors_and_reasons_to_wait() {
        let end = JobEnd { error: Some("it broke".to_owned()), cancelled: false, exit: Some(3) };
        let failed = job_info(Some(end), None);
        let object: Value = serde_json::from_str(&why_object(&failed)).unwrap();
        assert_eq!((&object["state"], &object["why"]), (&json!("failed"), &json!("it broke")));
        let waits = job_info(None, Some("nodes that may have outlived the former scheduler"));
        let text = status_text(&waits);
        assert!(text.contains("  waits for   nodes that may have outlived"), "{text}");
        let object: Value = serde_json::from_str(&status_object(&waits)).unwrap();
        let expected = object["waits_for"].as_str().unwrap();
        assert!(expected.starts_with("nodes that may"), "{object}");
        let refused = not_resizable(&waits);
        assert_eq!(refused.exit, Exit::Failure);
        let expected = "job-7 is waiting (nodes that may have outlived the former scheduler): its \
        size";
        assert!(refused.message.starts_with(expected), "{refused}");
        assert_eq!(not_resizable(&failed).message, "job-7 has ended: it is failed");
    }

    /// The archive is asked before the scheduler, which may have forgotten the job meanwhile.
    #[test]
    fn a_job_known_to_the_archive_alone_has_one_state_everywhere() {
        let job_info = job_info(None, None);
        assert!(!job_info.has_ended(), "a client that waits for it continues to wait");
        let entry = job_info.record.as_ref().unwrap().entry.clone();
        let rows = rows(vec![entry], Vec::new(), 60);
        let read = |object: String| serde_json::from_str::<Value>(&object).unwrap();
        let listed = read(list_object(&rows, false))["jobs"][0]["state"].clone();
        let (status, why) = (read(status_object(&job_info)), read(why_object(&job_info)));
        for state in [&listed, &status["state"], &why["state"]] {
            assert_eq!(state, "ending");
        }
        assert!(list_text(&rows).contains("job-7  ending "), "{}", list_text(&rows));
        assert!(
            status_text(&job_info).contains("  state       ending\n"),
            "{}",
            status_text(&job_info)
        );
        assert_eq!(why_text(&job_info), "job-7 is ending\n");
        let refused = not_resizable(&job_info).message;
        assert_eq!(refused, "job-7 is ending: its size can be changed when it runs");
        // The scheduler remembers a job of another client, and its end is not stored here.
        let other = JobInfo { record: None, ..job_info };
        assert!(other.has_ended() && other.state() == "over");
    }

    #[test]
    fn a_result_has_the_exit_of_its_job_or_reports_its_loss() {
        let one = || OneArgs {
            job: JobId(7),
            grid: GridArgs { config: "grid.toml".into(), json: false },
        };
        let end = JobEnd { error: Some("nowhere".to_owned()), cancelled: false, exit: Some(3) };
        let mut failed = job_info(Some(end.clone()), None);
        let lost = result(&one(), failed).unwrap_err();
        assert_eq!(lost.exit, Exit::Failure);
        assert!(lost.message.contains("has ended (failed: nowhere), and its result could not"));
        failed = job_info(Some(end), None);
        if let Some(record) = &mut failed.record {
            record.result = Some((json!({}), String::new()));
        }
        let expected = result(&one(), failed).unwrap().unwrap();
        assert_eq!((expected.exit, expected.message.as_str()), (Exit::NotPlaced, "nowhere"));
        let waits = result(&one(), job_info(None, Some("a place"))).unwrap_err();
        assert!(waits.message.contains("has not ended"), "{waits}");
    }

    #[test]
    fn a_list_shows_the_last_ended_jobs_and_an_incomplete_purge_fails() {
        let end = || Some(JobEnd { error: None, cancelled: false, exit: None });
        let entry = |job: u64, ended_unix_s: Option<u64>| JobEntry {
            job: JobId(job),
            name: "fib".to_owned(),
            line: "fib".to_owned(),
            submitted_unix_s: 0,
            ended: ended_unix_s.and_then(|_| end()),
            ended_unix_s,
            principal: None,
        };
        let all = || vec![entry(1, Some(9)), entry(2, None), entry(3, Some(5)), entry(4, Some(7))];
        let shown = |count| {
            let (shown, more) = last_ended(all(), count);
            (shown.iter().map(|entry| entry.job.0).collect::<Vec<_>>(), more)
        };
        assert_eq!(shown(0), (vec![2], true));
        assert_eq!(shown(2), (vec![1, 2, 4], true));
        assert_eq!(shown(3), (vec![1, 2, 3, 4], false));
        let mut purged = Purged { removed: vec![JobId(1)], ..Purged::default() };
        assert_eq!(not_purged(&purged), None);
        purged.failed.insert(JobId(3), "busy".to_owned());
        assert_eq!(not_purged(&purged).unwrap().message, "job-3 cannot be removed: busy");
        purged.running.push(JobId(2));
        assert_eq!(not_purged(&purged).unwrap().exit, Exit::Failure);
        purged.unknown.push(JobId(7));
        assert_eq!(not_purged(&purged).unwrap().exit, Exit::Usage);
        assert_eq!(purged_text(&purged), "job-1 is removed\n");
        let object: Value = serde_json::from_str(&purged_object(&purged)).unwrap();
        assert_eq!((&object["removed"], &object["ok"]), (&json!([1]), &json!(false)));
    }

    #[test]
    fn jobs_of_a_file_have_components_and_errors_have_positions() {
        let temp = tempfile::tempdir().unwrap();
        let file = temp.path().join("jobs.toml");
        let text =
            "[[cluster]]\nname = \"ams\"\nnodes = 4\n[[cluster]]\nname = \"del\"\nnodes = 2\n";
        let config = load::<GridConfig>(&Sources::of_text("grid.toml", text)).unwrap().value;
        let read = |text: &str| {
            std::fs::write(&file, text).unwrap();
            of_file(&file, &config, |_, _| Ok(("fib", Bytes::new())))
        };
        let text = "[[job]]\nprogram = \"fib\"\nmin = 2\nclusters = [\"ams\"]\n\
        [[job.component]]\n[[job.component]]\nmin = 1\nmax = 2\nclusters = [\"del\"]\n";
        let all = read(text).unwrap();
        let need = &all[0].need;
        let shown: Vec<_> = need
            .components
            .iter()
            .map(|one| (one.min, one.start, one.clusters.iter().map(ToString::to_string).collect()))
            .collect();
        let one = |name: &str| vec![name.to_owned()];
        assert_eq!(shown, [(2, 2, one("ams")), (1, 1, one("del"))]);
        assert_eq!((&need.most, need.least(), need.greatest()), (&vec![6, 2], 3, 8));
        for (from, to, expected) in [
            ("\"del\"", "\"dle\"", "jobs.toml:9:1: the grid has no cluster dle: did you mean del?"),
            ("\"ams\"", "\"asm\"", "jobs.toml:4:1: the grid has no cluster asm: did you mean ams?"),
            ("min = 1", "min = 3", "jobs.toml:8:1: min 3 is more than max 2"),
            ("min = 2", "start = 9", "jobs.toml:3:1: must lie within 1 and 2, found 9"),
        ] {
            let Err(failed) = read(&text.replace(from, to)) else { panic!("{to} is taken") };
            assert_eq!(failed.exit, Exit::Usage);
            assert!(failed.message.contains(expected), "{expected}: {failed}");
        }
    }
}
