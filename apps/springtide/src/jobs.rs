//! `job ...`: jobs that are submitted to a grid that is up, and what becomes of them.
//!
//! Must not know how they are scheduled.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use clap::{Args, Subcommand, ValueHint};
use serde_json::{Value, json};
use springtide_actors::job::{JobParams, SCHEDULER};
use springtide_actors::policy::malleability::{Component, Placed, Transfer};
use springtide_actors::scheduler::manager::{JobView, Need, Phase};
use springtide_actors::scheduler::{
    CancelJob, GetJob, GetStatus, JobDetail, JobState, JobStatus, PlanError, PlanJob, Resize,
    ResizeError, ResizeJob, Scheduler, Submit,
};
use springtide_runtime::config::{
    GridConfig, JobKind, JobsConfig, Origin, Placing, Sizes, Sources, load,
};
use springtide_runtime::id::JobId;
use springtide_runtime::remote::Remote;
use tokio::time::{Instant, sleep};

use crate::args::{GlobalArgs, time, words};
use crate::desk::{DESK, Desk, JobEntry, JobRecord, ListJobs, ReadJob, SubmitJob, since_epoch};
use crate::exit::{Exit, Failed};
use crate::netconf;
use crate::report::{SCHEMA, seconds, size};
use crate::run::{Attachment, attach, print};
use crate::signals::{Signals, word};

/// How long the head may take to answer what takes it no time.
const WITHIN: Duration = Duration::from_secs(10);
/// A job that is waited for is looked at this often.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// A job that is cancelled has this long to end.
const CANCEL_WITHIN: Duration = Duration::from_secs(30);
/// So many lines are more than are kept.
const ALL_LINES: usize = 1_000_000;

/// Which grid.
#[derive(Args, Clone, Debug)]
pub struct GridArgs {
    /// The grid's config: `up` has started it
    #[arg(id = "job.config", long = "config", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub config: PathBuf,
    /// Print the result as one JSON object
    #[arg(id = "job.json", long = "json")]
    pub json: bool,
}

/// What a job needs.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Needs")]
pub struct NeedArgs {
    #[command(flatten)]
    pub grid: GridArgs,
    /// Whether its number of processors can change: rigid, moldable or malleable
    #[arg(id = "job.kind", long = "kind", value_name = "KIND", default_value = "malleable",
          value_parser = words::<JobKind>(JobKind::WORDS), hide_possible_values = true)]
    pub kind: JobKind,
    /// Fewest processors; rigid jobs have just these
    #[arg(id = "job.min", long = "min", value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub min: u32,
    /// Most that it starts with [default: --min; of moldable jobs --max]
    #[arg(id = "job.start", long = "start", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub start: Option<u32>,
    /// Most processors [default: as many as the grid has]
    #[arg(id = "job.max", long = "max", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub max: Option<u32>,
    /// Parts that may lie in different clusters; the numbers of processors are those of each part
    #[arg(id = "job.components", long = "components", value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub components: u32,
    /// How clusters are chosen: worst-fit, close-to-files, cluster-minimisation or flexible-cluster-minimisation [default: the config's]
    #[arg(id = "job.placement", long = "placement", value_name = "HOW", value_parser = words::<Placing>(Placing::WORDS), hide_possible_values = true)]
    pub placement: Option<Placing>,
    /// It may lie in these clusters alone
    #[arg(id = "job.on", long = "on", value_name = "CLUSTER", value_delimiter = ',')]
    pub on: Vec<String>,
    /// It may grow into clusters where it has nothing yet
    #[arg(id = "job.spread", long = "spread")]
    pub spread: bool,
    /// An input file, by its name in the clusters' directories (`files list`): the job starts where it is, or after it was moved
    /// there. May be given several times
    #[arg(id = "job.input", long = "file", value_name = "NAME")]
    pub files: Vec<String>,
}

/// `job submit` and `job plan` with a file.
#[derive(Args, Clone, Debug)]
pub struct FileArgs {
    #[command(flatten)]
    pub grid: GridArgs,
    /// Jobs in a file; `config init --jobs` writes an example
    #[arg(id = "job.file", long = "file", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
}

/// `job ...`, but for `submit` and `plan`.
#[derive(Subcommand, Clone, Debug)]
pub enum JobCommand {
    /// Show the jobs that were submitted, and those that run
    List(GridArgs),
    /// Show what a job has and does
    Status(OneArgs),
    /// Tell why a job waits, and what happened to it
    Why(OneArgs),
    /// Give a running job more processors as soon as there are free ones
    Grow {
        #[command(flatten)]
        one: OneArgs,
        /// How many more
        #[arg(value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
        count: u32,
        /// Other jobs shrink for it, if that gives it all of them within this time
        #[arg(long, value_name = "TIME", value_parser = time)]
        within: Option<Duration>,
        /// Only there
        #[arg(long, value_name = "NAME")]
        cluster: Option<String>,
    },
    /// Take processors from a running job; it gets no more than it has then
    Shrink {
        #[command(flatten)]
        one: OneArgs,
        /// How many
        #[arg(value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
        count: u32,
    },
    /// End a job, or take it from the queue
    Cancel(OneArgs),
    /// Print a job's result
    Result {
        #[command(flatten)]
        one: OneArgs,
        /// Wait until it has ended
        #[arg(long)]
        wait: bool,
        /// Wait no longer than this
        #[arg(long, value_name = "TIME", value_parser = time, requires = "wait")]
        timeout: Option<Duration>,
    },
    /// Print what a job has said
    Logs {
        #[command(flatten)]
        one: OneArgs,
        /// Only so many of its last lines
        #[arg(long, value_name = "N")]
        lines: Option<usize>,
    },
}

/// One job of a grid.
#[derive(Args, Clone, Debug)]
pub struct OneArgs {
    /// Its number, such as 7 or job-7
    #[arg(value_name = "JOB", value_parser = number)]
    pub job: JobId,
    #[command(flatten)]
    pub grid: GridArgs,
}

fn number(text: &str) -> Result<JobId, String> {
    let digits = text.strip_prefix("job-").unwrap_or(text);
    let number = digits.parse().ok().filter(|number| *number > 0);
    number.map(JobId).ok_or_else(|| "must be a job's number such as 7 or job-7".to_owned())
}

/// A job that is to be submitted, or planned.
pub struct Wanted {
    /// The registered name.
    pub name: &'static str,
    /// The encoded job.
    pub body: Bytes,
    /// With its options, as people write it.
    pub line: String,
    /// What it needs.
    pub need: Need,
}

/// What submissions are made with.
pub struct Order {
    /// The grid's config file.
    pub file: PathBuf,
    /// The result is one JSON object.
    pub json: bool,
    /// Nothing is submitted: where would it go?
    pub dry: bool,
    /// Fingerprint of this program's registry.
    pub fingerprint: u64,
}

/// Reads the grid's config.
///
/// # Errors
/// Its mistakes.
pub fn grid_config(file: &Path) -> Result<GridConfig, Failed> {
    Ok(load::<GridConfig>(&Sources::of_process(Some(file)))?.value)
}

/// What a job needs, by its options.
///
/// # Errors
/// They contradict each other.
pub fn need(args: &NeedArgs, config: &GridConfig) -> Result<Need, Failed> {
    let given = (args.min, args.start, args.max);
    let sizes = Sizes::of(args.kind, given, netconf::existing(config))
        .map_err(|(key, reason)| Failed::usage(format!("--{key}: {reason}")))?;
    let shape = Shape { kind: args.kind, components: args.components, sizes, spreads: args.spread };
    need_of(shape, args.placement, &args.on, &args.files, config).map_err(Failed::usage)
}

#[derive(Clone, Copy)]
struct Shape {
    kind: JobKind,
    components: u32,
    sizes: Sizes,
    spreads: bool,
}

fn need_of(
    shape: Shape,
    placement: Option<Placing>,
    clusters: &[String],
    files: &[String],
    config: &GridConfig,
) -> Result<Need, String> {
    let known: Vec<&str> = config.cluster.iter().map(|cluster| cluster.name.as_str()).collect();
    if let Some(unknown) = clusters.iter().find(|name| !known.contains(&name.as_str())) {
        return Err(format!("the grid has no cluster {unknown}: it has {}", known.join(", ")));
    }
    let clusters = clusters.iter().map(|name| name.as_str().into()).collect();
    let Sizes { min, start, most } = shape.sizes;
    let one = Component { min, start, clusters, files: files.to_vec() };
    let count = shape.components as usize;
    let need = Need {
        kind: shape.kind,
        placement: placement.unwrap_or(config.scheduling.placement),
        components: vec![one; count],
        most: vec![most; count],
        spreads: shape.spreads,
    };
    need.check().map(|()| need)
}

/// The jobs of a file. `encode` makes a job of its name and options.
///
/// # Errors
/// Mistakes in the file, with their places.
pub fn of_file(
    file: &Path,
    config: &GridConfig,
    encode: impl Fn(&str, &[String]) -> Result<(&'static str, Bytes), Failed>,
) -> Result<Vec<Wanted>, Failed> {
    // The environment speaks of the grid's config.
    let sources = Sources { file: Some(file.to_owned()), ..Sources::default() };
    let jobs = load::<JobsConfig>(&sources)?;
    let mut all = Vec::new();
    for (i, job) in jobs.value.job.iter().enumerate() {
        let at = |key: &str, reason: &str| {
            let places = [format!("job[{i}].{key}"), format!("job[{i}].program")];
            let place = places.iter().find_map(|path| match jobs.origin(path) {
                Some(Origin::File { file, line, column }) => {
                    Some(format!("{file}:{line}:{column}"))
                }
                _ => None,
            });
            let place = place.unwrap_or_else(|| file.display().to_string());
            Failed::usage(format!("{place}: {reason}"))
        };
        let program = job.program.as_str();
        let (name, body) = encode(program, &job.args.0).map_err(|failed| {
            let key = if failed.exit == Exit::NotPlaced { "program" } else { "args" };
            at(key, &failed.message)
        })?;
        let sizes =
            job.sizes(netconf::existing(config)).map_err(|(key, reason)| at(key, &reason))?;
        let (kind, components, spreads) = (job.kind, job.components.get(), job.spreads);
        let shape = Shape { kind, components, sizes, spreads };
        let need = need_of(shape, job.placement, &job.clusters.0, &job.files.0, config)
            .map_err(|reason| at("clusters", &reason))?;
        let line = line(name, &job.args.0);
        for _ in 0..job.count.get() {
            let (body, line, need) = (body.clone(), line.clone(), need.clone());
            all.push(Wanted { name, body, line, need });
        }
    }
    Ok(all)
}

/// A job with its options on one line.
pub fn line(name: &str, options: &[String]) -> String {
    let words = std::iter::once(name).chain(options.iter().map(String::as_str));
    words.collect::<Vec<_>>().join(" ")
}

/// Submits jobs and does not wait for them; or tells where they would go.
///
/// # Errors
/// No grid is up, or the head does not take them. A plan has a failure where a job would have no place now.
pub async fn submit(
    order: Order,
    config: &GridConfig,
    jobs: Vec<Wanted>,
    global: &GlobalArgs,
) -> Result<(), Failed> {
    let Attachment { endpoint, head, .. } = attach(&order.file, config).await?;
    let desk: Remote<Desk> = endpoint.hub.remote(&head, DESK);
    let scheduler: Remote<Scheduler> = endpoint.hub.remote(&head, SCHEDULER);
    let mut shown = Vec::new();
    let mut ended = Ok(());
    for Wanted { name, body, line, need } in jobs {
        if order.dry {
            let plan = scheduler.send(PlanJob { need }).deadline(WITHIN).await?;
            if let Err(error) = &plan {
                ended = Err(Failed::new(Exit::NotPlaced, error));
            }
            shown.push(if order.json {
                plan_object(&line, &plan).to_string()
            } else {
                plan_text(&line, &plan)
            });
            continue;
        }
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
        };
        let call = desk.send(SubmitJob { submit, line: line.clone() });
        let job = call.deadline(WITHIN).await??;
        shown.push(match order.json {
            true => json!(job.0).to_string(),
            false => format!("{job}"),
        });
        if !global.quiet && !order.json {
            eprintln!("{job} is submitted: {line}");
        }
    }
    endpoint.net.close("submitted").await;
    match order.json {
        true => {
            let key = if order.dry { "plans" } else { "jobs" };
            print(&format!("{{\"schema\":{SCHEMA},\"{key}\":[{}]}}\n", shown.join(",")))?;
        }
        false => print(&format!("{}\n", shown.join("\n")))?,
    }
    ended
}

fn plan_object(line: &str, plan: &Result<Placed, PlanError>) -> Value {
    match plan {
        Ok(placed) => json!({ "job": line, "ok": true, "placed": placed }),
        Err(PlanError::NoPlace(no)) => {
            json!({ "job": line, "ok": false, "why": no.to_string(), "excluded": no.excluded, "never": no.never })
        }
        Err(error) => json!({ "job": line, "ok": false, "why": error.to_string() }),
    }
}

fn plan_text(line: &str, plan: &Result<Placed, PlanError>) -> String {
    match plan {
        Ok(placed) => {
            let mut text = format!("{line}: would start now ({})", placed.why);
            for part in &placed.parts {
                let _ = write!(
                    text,
                    "\n  component {}: {} of {}",
                    part.component + 1,
                    part.count,
                    part.cluster
                );
            }
            for transfer in &placed.transfers {
                let Transfer { file, from, to, bytes, seconds: takes } = transfer;
                let _ =
                    write!(text, "\n  {file} ({}) is brought from {from} to {to}", size(*bytes));
                if takes.is_finite() {
                    let _ = write!(text, " in about {}", seconds(*takes));
                }
            }
            text
        }
        Err(PlanError::NoPlace(no)) => {
            let mut text =
                format!("{line}: would wait, for component {} has no place", no.component + 1);
            for (cluster, why) in &no.excluded {
                let _ = write!(text, "\n  {cluster}: {why}");
            }
            text
        }
        Err(error) => format!("{line}: {error}"),
    }
}

/// A grid that is asked about its jobs.
struct Grid {
    attachment: Attachment,
    desk: Remote<Desk>,
    scheduler: Remote<Scheduler>,
}

impl Grid {
    async fn attach(file: &Path) -> Result<Self, Failed> {
        let config = grid_config(file)?;
        let attachment = attach(file, &config).await?;
        let desk = attachment.endpoint.hub.remote(&attachment.head, DESK);
        let scheduler = attachment.endpoint.hub.remote(&attachment.head, SCHEDULER);
        Ok(Self { attachment, desk, scheduler })
    }

    /// What is known of a job.
    async fn known(&self, job: JobId, lines: usize) -> Result<Known, Failed> {
        let record = self.desk.send(ReadJob { job, lines }).deadline(WITHIN).await?;
        let detail = self.scheduler.send(GetJob { job }).deadline(WITHIN).await?;
        if record.is_none() && detail.is_none() {
            return Err(Failed::usage(format!("the grid has no {job}: `job list` shows its jobs")));
        }
        Ok(Known { job, record, detail })
    }
}

/// A job, by the desk and by the scheduler.
struct Known {
    job: JobId,
    record: Option<JobRecord>,
    detail: Option<JobDetail>,
}

impl Known {
    fn has_ended(&self) -> bool {
        let record = self.record.as_ref();
        record.map_or(self.state() == "over", |record| record.entry.ended.is_some())
    }

    fn state(&self) -> &'static str {
        let ended = self.record.as_ref().and_then(|record| record.entry.ended.as_ref());
        if let Some(end) = ended {
            return end.word();
        }
        let detail = self.detail.as_ref();
        let view = detail.and_then(|detail| detail.view.as_ref());
        match (view, detail.and_then(|detail| detail.status.as_ref())) {
            (Some(view), _) => phase(view.phase),
            (None, Some(status)) => state(status.state),
            (None, None) => "over",
        }
    }
}

fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::Waiting => "waiting",
        Phase::Placed => "placed",
        Phase::Claiming => "starting",
        Phase::Running => "running",
        Phase::Growing => "growing",
        Phase::Shrinking => "shrinking",
        Phase::Ending => "ending",
    }
}

fn state(state: JobState) -> &'static str {
    match state {
        JobState::Queued => "waiting",
        JobState::Assigning => "starting",
        JobState::Running => "running",
        JobState::Ending => "ending",
    }
}

/// `job list` and all that is about one job.
///
/// # Errors
/// No grid is up, it has no such job, or the job cannot do what is asked.
pub async fn job(command: JobCommand, global: &GlobalArgs) -> Result<(), Failed> {
    let file = match &command {
        JobCommand::List(args) => args.config.clone(),
        JobCommand::Status(one) | JobCommand::Why(one) | JobCommand::Cancel(one) => {
            one.grid.config.clone()
        }
        JobCommand::Grow { one, .. }
        | JobCommand::Shrink { one, .. }
        | JobCommand::Result { one, .. }
        | JobCommand::Logs { one, .. } => one.grid.config.clone(),
    };
    let grid = Grid::attach(&file).await?;
    let done = told(&grid, command, global).await;
    grid.attachment.endpoint.net.close("told").await;
    done
}

async fn told(grid: &Grid, command: JobCommand, global: &GlobalArgs) -> Result<(), Failed> {
    match command {
        JobCommand::List(args) => {
            let jobs = grid.desk.send(ListJobs {}).deadline(WITHIN).await?;
            let status = grid.scheduler.send(GetStatus {}).deadline(WITHIN).await?;
            let rows = rows(jobs, status.jobs, since_epoch());
            print(&if args.json { list_object(&rows) } else { list_text(&rows) })
        }
        JobCommand::Status(one) => {
            let known = grid.known(one.job, 0).await?;
            print(&if one.grid.json { status_object(&known) } else { status_text(&known) })
        }
        JobCommand::Why(one) => {
            let known = grid.known(one.job, 0).await?;
            print(&if one.grid.json { why_object(&known) } else { why_text(&known) })
        }
        JobCommand::Grow { one, count, within, cluster } => {
            let within_ms = within.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
            let cluster = cluster.map(|name| name.as_str().into());
            resize(grid, &one, Resize::Grow { count, within_ms, cluster }).await
        }
        JobCommand::Shrink { one, count } => resize(grid, &one, Resize::Shrink { count }).await,
        JobCommand::Cancel(one) => {
            let known = grid.known(one.job, 0).await?;
            if known.has_ended() {
                return Err(Failed::failure(format!("{} has ended already", one.job)));
            }
            let reason = "cancelled by `job cancel`".to_owned();
            grid.scheduler.send(CancelJob { job: one.job, reason }).deadline(WITHIN).await?;
            ended(grid, one.job, Some(CANCEL_WITHIN)).await?;
            let text = match one.grid.json {
                true => format!("{}\n", json!({ "schema": SCHEMA, "job": one.job.0, "ok": true })),
                false => String::new(),
            };
            if !global.quiet && !one.grid.json {
                eprintln!("{} is cancelled", one.job);
            }
            print(&text)
        }
        JobCommand::Result { one, wait, timeout } => {
            let record = if wait {
                ended(grid, one.job, timeout).await?
            } else {
                grid.known(one.job, 0).await?.record
            };
            result(&one, record)
        }
        JobCommand::Logs { one, lines } => {
            let known = grid.known(one.job, lines.unwrap_or(ALL_LINES)).await?;
            let lines = known.record.map(|record| record.lines).unwrap_or_default();
            match one.grid.json {
                true => print(&format!(
                    "{}\n",
                    json!({ "schema": SCHEMA, "job": one.job.0, "lines": lines })
                )),
                false => print(&lines.iter().map(|line| format!("{line}\n")).collect::<String>()),
            }
        }
    }
}

async fn resize(grid: &Grid, one: &OneArgs, by: Resize) -> Result<(), Failed> {
    let call = grid.scheduler.send(ResizeJob { job: one.job, by });
    let done = call.deadline(WITHIN).await?.map_err(|error| {
        let exit = match &error {
            ResizeError::Bounds { .. } => Exit::NotPlaced,
            ResizeError::NotRunning { .. } => Exit::Failure,
            _ => Exit::Usage,
        };
        Failed::new(exit, error)
    })?;
    let (job, from, to) = (one.job, done.from, done.to);
    print(&match one.grid.json {
        true => format!("{}\n", json!({ "schema": SCHEMA, "job": job.0, "from": from, "to": to })),
        false => format!("{job} has {from} processors and is to have {to}\n"),
    })
}

/// Waits for a job's end.
async fn ended(
    grid: &Grid,
    job: JobId,
    limit: Option<Duration>,
) -> Result<Option<JobRecord>, Failed> {
    let mut signals = Signals::take()?;
    let began = Instant::now();
    loop {
        let known = grid.known(job, 0).await?;
        if known.has_ended() {
            return Ok(known.record);
        }
        if let Some(limit) = limit.filter(|limit| began.elapsed() >= *limit) {
            let limit = seconds(limit.as_secs_f64());
            return Err(Failed::new(Exit::Timeout, format!("{job} has not ended after {limit}")));
        }
        tokio::select! {
            biased;
            exit = signals.next() => {
                let text = format!("{}: {job} goes on; `job cancel` ends it", word(exit));
                return Err(Failed::new(exit, text));
            }
            () = sleep(LOOK_EVERY) => {}
        }
    }
}

fn result(one: &OneArgs, record: Option<JobRecord>) -> Result<(), Failed> {
    let job = one.job;
    let Some(record) = record else {
        let text =
            format!("{job} was not submitted by `job submit`: whoever ran it has its result");
        return Err(Failed::usage(text));
    };
    let Some((object, summary)) = record.result else {
        return Err(Failed::failure(format!("{job} has not ended: wait for it with --wait")));
    };
    print(&if one.grid.json { format!("{object}\n") } else { summary })?;
    match record.entry.ended.and_then(|end| end.error) {
        Some(error) => Err(Failed::failure(error)),
        None => Ok(()),
    }
}

/// A line of `job list`.
struct Row {
    job: JobId,
    state: &'static str,
    nodes: u32,
    age_s: Option<u64>,
    line: String,
    about: String,
}

/// Jobs of the desk and those of clients that wait for theirs, by number.
fn rows(entries: Vec<JobEntry>, live: Vec<JobStatus>, now: u64) -> Vec<Row> {
    let mut rows: BTreeMap<JobId, Row> = BTreeMap::new();
    for status in live {
        let JobStatus { job, name, state: at, nodes, waits_for } = status;
        let about = waits_for.unwrap_or_default();
        rows.insert(job, Row { job, state: state(at), nodes, age_s: None, line: name, about });
    }
    for entry in entries {
        let age_s = Some(now.saturating_sub(entry.submitted_unix_s));
        let row = match (rows.remove(&entry.job), entry.ended) {
            (_, Some(end)) => {
                let state = end.word();
                let first = end.error.as_deref().and_then(|error| error.lines().next());
                let about = first.unwrap_or_default().to_owned();
                Row { job: entry.job, state, nodes: 0, age_s, line: entry.line, about }
            }
            (Some(live), None) => Row { age_s, line: entry.line, ..live },
            (None, None) => {
                let about = String::new();
                Row { job: entry.job, state: "ending", nodes: 0, age_s, line: entry.line, about }
            }
        };
        rows.insert(row.job, row);
    }
    rows.into_values().collect()
}

fn list_object(rows: &[Row]) -> String {
    let jobs: Vec<Value> = rows
        .iter()
        .map(|row| {
            json!({
                "job": row.job.0, "state": row.state, "processors": row.nodes, "line": row.line,
                "submitted_ago_s": row.age_s, "about": row.about,
            })
        })
        .collect();
    format!("{}\n", json!({ "schema": SCHEMA, "jobs": jobs }))
}

/// How long ago, in a word or two.
fn age(s: u64) -> String {
    match s {
        0..120 => format!("{s} s"),
        120..7200 => format!("{} min", s / 60),
        _ => format!("{} h", s / 3600),
    }
}

fn list_text(rows: &[Row]) -> String {
    if rows.is_empty() {
        return "no jobs\n".to_owned();
    }
    let cells: Vec<[String; 6]> = rows
        .iter()
        .map(|row| {
            let nodes = if row.nodes == 0 { String::new() } else { row.nodes.to_string() };
            let age = row.age_s.map_or_else(String::new, age);
            [
                row.job.to_string(),
                row.state.to_owned(),
                nodes,
                age,
                row.line.clone(),
                row.about.clone(),
            ]
        })
        .collect();
    let heads = ["JOB", "STATE", "NODES", "AGE", "PROGRAM", ""].map(str::to_owned);
    let all = || std::iter::once(&heads).chain(&cells);
    let widths: Vec<usize> =
        (0..6).map(|i| all().map(|row| row[i].chars().count()).max().unwrap_or(0)).collect();
    let mut out = String::new();
    for row in all() {
        let mut line = String::new();
        for (i, cell) in row.iter().enumerate() {
            let width = widths[i];
            // Numbers to the right, words to the left.
            let _ = match i {
                2 | 3 => write!(line, "{cell:>width$}  "),
                _ => write!(line, "{cell:width$}  "),
            };
        }
        out += line.trim_end();
        out.push('\n');
    }
    out
}

fn sizes(view: &JobView) -> String {
    let all: u32 = view.sizes.values().sum();
    let parts: Vec<String> =
        view.sizes.iter().map(|(cluster, count)| format!("{count} of {cluster}")).collect();
    match view.sizes.len() {
        0 => "none".to_owned(),
        1 => parts.join(", "),
        _ => format!("{all}: {}", parts.join(", ")),
    }
}

fn status_object(known: &Known) -> String {
    let view = known.detail.as_ref().and_then(|detail| detail.view.as_ref());
    let record = known.record.as_ref();
    let object = json!({
        "schema": SCHEMA,
        "job": known.job.0,
        "state": known.state(),
        "line": record.map(|record| &record.entry.line),
        "kind": view.map(|view| view.kind),
        "least": view.map(|view| view.least),
        "most": view.map(|view| view.most),
        "sizes": view.map(|view| &view.sizes),
        "tries": view.map(|view| view.tries),
        "why": view.map(|view| &view.why),
        "progress": record.and_then(|record| record.progress.as_ref()),
        "dir": record.map(|record| &record.dir),
        "error": record.and_then(|record| record.entry.ended.as_ref()).and_then(|end| end.error.as_ref()),
    });
    format!("{object}\n")
}

fn status_text(known: &Known) -> String {
    let mut rows: Vec<(&str, String)> = vec![("state", known.state().to_owned())];
    if let Some(record) = &known.record {
        rows.insert(0, ("program", record.entry.line.clone()));
    }
    if let Some(view) = known.detail.as_ref().and_then(|detail| detail.view.as_ref()) {
        rows.push(("processors", sizes(view)));
        rows.push(("may have", format!("{} to {} ({})", view.least, view.most, view.kind)));
        if view.tries > 0 {
            rows.push(("tries", view.tries.to_string()));
        }
        if !view.why.is_empty() {
            rows.push(("last", view.why.clone()));
        }
    } else if let Some(status) = known.detail.as_ref().and_then(|detail| detail.status.as_ref()) {
        rows.push(("processors", status.nodes.to_string()));
    }
    if let Some(record) = &known.record {
        rows.extend(record.progress.clone().map(|progress| ("progress", progress)));
        let error = record.entry.ended.as_ref().and_then(|end| end.error.clone());
        rows.extend(error.map(|error| ("error", error)));
        rows.push(("files", record.dir.display().to_string()));
    }
    let mut out = format!("{}\n", known.job);
    for (name, value) in rows {
        let _ = writeln!(out, "  {name:<10}  {}", value.replace('\n', "\n              "));
    }
    out
}

fn why_object(known: &Known) -> String {
    let view = known.detail.as_ref().and_then(|detail| detail.view.as_ref());
    let history: Vec<Value> = known
        .detail
        .iter()
        .flat_map(|detail| &detail.history)
        .map(|(ago, what)| json!({ "ago_s": ago, "what": what }))
        .collect();
    let object = json!({
        "schema": SCHEMA,
        "job": known.job.0,
        "state": known.state(),
        "why": view.map(|view| &view.why),
        "history": history,
    });
    format!("{object}\n")
}

fn why_text(known: &Known) -> String {
    let detail = known.detail.as_ref();
    let view = detail.and_then(|detail| detail.view.as_ref());
    let status = detail.and_then(|detail| detail.status.as_ref());
    let why = view.map(|view| view.why.clone()).or_else(|| status?.waits_for.clone());
    let error = known.record.as_ref().and_then(|record| record.entry.ended.as_ref()?.error.clone());
    let mut out = format!("{} is {}", known.job, known.state());
    if let Some(why) = error.or(why).filter(|why| !why.is_empty()) {
        let _ = write!(out, ": {why}");
    }
    out.push('\n');
    for (ago, what) in detail.iter().flat_map(|detail| &detail.history) {
        let _ = writeln!(out, "  {:>9} ago  {what}", seconds(*ago));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::desk::JobEnd;

    #[test]
    fn jobs_have_numbers() {
        assert_eq!(number("7"), Ok(JobId(7)));
        assert_eq!(number("job-12"), Ok(JobId(12)));
        for wrong in ["", "job-", "0", "-1", "job-x", "7.5"] {
            assert!(number(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_list_has_a_row_of_each_job() {
        let entry = |job: u64, ended: Option<JobEnd>| JobEntry {
            job: JobId(job),
            name: "queens".to_owned(),
            line: "queens --size 12".to_owned(),
            submitted_unix_s: 100,
            ended,
        };
        let live = |job: u64, state, nodes, waits: Option<&str>| JobStatus {
            job: JobId(job),
            name: "fib".to_owned(),
            state,
            nodes,
            waits_for: waits.map(str::to_owned),
        };
        let failed = JobEnd { error: Some("it broke\nbadly".to_owned()), cancelled: false };
        let entries = vec![
            entry(1, Some(JobEnd { error: None, cancelled: false })),
            entry(2, Some(failed)),
            entry(3, None),
            entry(4, None),
        ];
        let live = vec![
            live(3, JobState::Running, 12, None),
            live(
                4,
                JobState::Queued,
                0,
                Some("no cluster can take component 1: ams 0 idle, 2 needed"),
            ),
            live(5, JobState::Running, 2, None),
        ];
        let expected = "\
JOB    STATE    NODES   AGE  PROGRAM
job-1  done            60 s  queens --size 12
job-2  failed          60 s  queens --size 12  it broke
job-3  running     12  60 s  queens --size 12
job-4  waiting         60 s  queens --size 12  no cluster can take component 1: ams 0 idle, 2 needed
job-5  running      2        fib
";
        let text = list_text(&rows(entries, live, 160));
        assert_eq!(text, expected, "{text}");
        assert_eq!(list_text(&[]), "no jobs\n");
    }
}
