//! `job`: submits jobs to a running grid, and shows and changes them.

use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgMatches, Args, Command, FromArgMatches, Subcommand, ValueHint};
use serde_json::{Value, json};
use springtide_actors::scheduler::Resize;
use springtide_cli::exit::Failed;
use springtide_cli::format::{SCHEMA, many};
use springtide_cli::options::time;
use springtide_cli::print::print;
use springtide_cli::talk::Talk;
use springtide_runtime::config::GridConfig;
use springtide_runtime::id::JobId;
use springtide_runtime::work::OutputStream;

use crate::output::jobs::{
    list_object, list_text, missing_lines_note, plan_object, plan_text, purged_object, purged_text,
    report_csv, report_object, rows, status_object, status_text, submitted, why_object, why_text,
};
use springtide_cli::print::print_early_failure;
use springtide_operations::attach::{grid_config, wait_for_grid};
use springtide_operations::desk::{JobRecord, OutputFile, Selection, since_epoch};
use springtide_operations::jobs::{self, JobClient, JobList, JobResult, Submission};
use springtide_operations::needs::ArrayIndices;
use springtide_operations::needs::{JobRequest, NeedArgs, need, of_file, parse_job};
use springtide_operations::options::{GlobalArgs, GridArgs, job_line, with_options};
use springtide_operations::process::{on_arbiter, start_log};
use springtide_operations::program::Program;

/// The default number of ended jobs that `job list` shows.
const ENDED_SHOWN: usize = 20;

/// Options of `job submit` and `job plan` with a file.
#[derive(Args, Clone, Debug)]
pub struct FileArgs {
    #[command(flatten)]
    pub grid: GridArgs,
    /// File with jobs; `config init --jobs` writes an example
    #[arg(id = "job.file", long = "file", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
    /// Print the jobs' outputs until they have ended, then their results, and end with the exit
    /// code of the first one that failed
    #[arg(id = "job.wait", long = "wait")]
    pub wait: bool,
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
    /// Print the sizes, times and exit codes of ended jobs as CSV
    Report {
        #[command(flatten)]
        grid: GridArgs,
        /// Maximum number of ended jobs, the last ones [default: all that the head keeps]
        #[arg(long, value_name = "N")]
        last: Option<usize>,
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
        /// Continue until the job has ended
        #[arg(long, short = 'f', conflicts_with = "job.json")]
        follow: bool,
        /// Print the standard output of this rank of a command, byte by byte
        #[arg(long, value_name = "N", conflicts_with = "job.json")]
        rank: Option<u32>,
        /// With --rank: print the standard error instead
        #[arg(long, requires = "rank")]
        stderr: bool,
        /// With --rank: of this try of the command [default: the last]
        #[arg(long = "try", value_name = "N", requires = "rank")]
        attempt: Option<u32>,
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

/// The command `job`; `needs` are the subcommands of `job submit` and `job plan`.
pub fn command(program: &'static str, needs: Vec<Command>) -> Command {
    let submit = |name: &'static str, about: &'static str| {
        FileArgs::augment_args(Command::new(name))
            .about(about)
            .arg_required_else_help(true)
            .args_conflicts_with_subcommands(true)
            .subcommand_negates_reqs(true)
            .subcommand_value_name("JOB")
            .subcommand_help_heading("Jobs")
            .disable_help_subcommand(true)
            .override_usage(format!(
                "{program} job {name} JOB --config FILE [OPTIONS]\n       \
                {program} job {name} --file JOBS --config FILE"
            ))
            .after_help(format!(
                "`{program} job {name} JOB --help` lists the options of a job and its \
                requirements: number of processors, clusters and files."
            ))
            .subcommands(needs.clone())
    };
    let job = Command::new("job")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(submit(
            "submit",
            "Submit jobs to a running grid and print their numbers, or with --wait their outputs",
        ))
        .subcommand(submit(
            "plan",
            "Plan where jobs would start now, or why they could not; nothing is submitted",
        ));
    JobCommand::augment_subcommands(job)
        .about("Jobs of a running grid: submit, inspect, grow, shrink and cancel them")
}

/// The subcommand of a job with its requirements. If both have an option of the same name, the
/// requirement's is called `--job-NAME`.
pub fn requirement_command(
    name: &'static str,
    about: &'static str,
    augment: fn(Command) -> Command,
) -> Command {
    with_options(name, about, augment, "job", NeedArgs::augment_args(Command::new("need")))
}

impl JobCommand {
    /// The options of the grid, and the job that the command names.
    fn of(&self) -> (&GridArgs, Option<JobId>) {
        match self {
            Self::List { grid, .. } | Self::Purge { grid, .. } | Self::Report { grid, .. } => {
                (grid, None)
            }
            Self::Status(one) | Self::Why(one) | Self::Cancel(one) => (&one.grid, Some(one.job)),
            Self::Grow { one, .. }
            | Self::Shrink { one, .. }
            | Self::Result { one, .. }
            | Self::Logs { one, .. } => (&one.grid, Some(one.job)),
        }
    }
}

/// Executes a subcommand of `job`.
///
/// # Errors
/// No grid is up, it has no such job, the job cannot do the request, or a submitted job is refused.
pub fn execute(program: &Program, matches: &ArgMatches, global: &GlobalArgs) -> Result<(), Failed> {
    start_log(global);
    let wrong = |error: clap::Error| Failed::usage(error.to_string().trim_end());
    let (dry, matches) = match matches.subcommand() {
        Some(("submit", matches)) => (false, matches),
        Some(("plan", matches)) => (true, matches),
        _ => {
            let command = JobCommand::from_arg_matches(matches).map_err(wrong)?;
            return on_arbiter(on_one_grid(command, global));
        }
    };
    let (grid, wait, requests) = match matches.subcommand() {
        Some((name, matches)) => {
            let args = NeedArgs::from_arg_matches(matches).map_err(wrong)?;
            (args.grid.clone(), args.wait, of_options(program, name, matches, &args))
        }
        None => {
            let args = FileArgs::from_arg_matches(matches).map_err(wrong)?;
            let requests = grid_config(&args.grid.config).and_then(|config| {
                let requests = of_file(&args.file, &config, program)?;
                Ok((config, requests))
            });
            (args.grid, args.wait, requests)
        }
    };
    let (config, requests) = match requests {
        Ok(requests) => requests,
        Err(failed) => return print_early_failure(grid.json, None, failed),
    };
    if dry && wait {
        return Err(Failed::usage("--wait: a plan submits nothing that could end"));
    }
    if dry {
        return on_arbiter(plan(&grid, &config, requests, global));
    }
    on_arbiter(submit(&grid, &config, program.registry.fingerprint(), requests, wait, global))
}

/// One job of the command line, and the config of its grid.
fn of_options(
    program: &Program,
    name: &str,
    matches: &ArgMatches,
    args: &NeedArgs,
) -> Result<(GridConfig, Vec<JobRequest>), Failed> {
    let config = grid_config(&args.grid.config)?;
    let job = program.job(name)?;
    let need = need(args, &config, job)?;
    let (encoded, line) = ((job.encode)(matches)?, job_line(job.augment, name, matches));
    let array = args.array.as_ref().map(ArrayIndices::places).unwrap_or_default();
    let (name, is_fixed) = (job.name, job.is_fixed);
    let (label, after) = Default::default();
    let request = JobRequest { name, encoded, is_fixed, line, need, array, label, after };
    Ok((config, vec![request]))
}

async fn submit(
    grid: &GridArgs,
    config: &GridConfig,
    fingerprint: u64,
    requests: Vec<JobRequest>,
    wait: bool,
    global: &GlobalArgs,
) -> Result<(), Failed> {
    let progress = |job: JobId, line: &str| {
        if !global.quiet && !grid.json {
            eprintln!("{job} is submitted: {line}");
        }
    };
    if let Err(failed) = wait_for_grid(&grid.config, grid.wait_grid).await {
        return print_early_failure(grid.json, None, failed);
    }
    let mut talk = Talk::new(global.quiet || grid.json);
    let sending = |line: &str| {
        talk.wait_for(line);
        talk.tick();
    };
    match jobs::submit(&grid.config, config, fingerprint, requests, progress, sending).await {
        Ok(Submission { numbers, failed }) => {
            // With --wait, standard output is that of the jobs.
            if !wait {
                print(&submitted(grid.json, &numbers, failed.as_ref()))?;
            }
            let waited = if wait { wait_for(grid, numbers).await } else { Ok(()) };
            failed.map_or(waited, Err)
        }
        Err(failed) => print_early_failure(grid.json, None, failed),
    }
}

/// Prints the output of submitted jobs, one after another, and their results.
///
/// # Errors
/// The failure of the first job that failed, after all have ended.
async fn wait_for(grid: &GridArgs, jobs: Vec<JobId>) -> Result<(), Failed> {
    let client = JobClient::attach(&grid.config).await?;
    let mut first_failure = None;
    for job in jobs {
        let waited = async {
            if !grid.json {
                client.read_output(job, OutputFile::Log, None, true, print_bytes).await?;
            }
            let result = client.with_result(job, true, None).await?.into_result()?;
            print(&if grid.json { format!("{}\n", result.object) } else { result.summary })?;
            Ok(result.failed)
        };
        match waited.await {
            Ok(failed) => first_failure = first_failure.or(failed),
            Err(failed) => {
                client.close().await;
                return Err(failed);
            }
        }
    }
    client.close().await;
    first_failure.map_or(Ok(()), Err)
}

async fn plan(
    grid: &GridArgs,
    config: &GridConfig,
    requests: Vec<JobRequest>,
    global: &GlobalArgs,
) -> Result<(), Failed> {
    if let Err(failed) = wait_for_grid(&grid.config, grid.wait_grid).await {
        return print_early_failure(grid.json, None, failed);
    }
    let plans = match jobs::plan(&grid.config, config, requests).await {
        Ok(plans) => plans,
        Err(failed) => return print_early_failure(grid.json, None, failed),
    };
    if grid.json {
        let all: Vec<Value> = plans.iter().map(|(line, plan)| plan_object(line, plan)).collect();
        let object = json!({ "schema": SCHEMA, "plans": all, "each_alone": true });
        print(&format!("{object}\n"))?;
    } else {
        let texts = plans.iter().map(|(line, plan)| plan_text(line, plan) + "\n");
        print(&texts.collect::<String>())?;
        if plans.len() > 1 && !global.quiet {
            eprintln!(
                "each job is planned alone on the processors free now; together, some may wait"
            );
        }
    }
    jobs::check_plans(&plans)
}

async fn on_one_grid(command: JobCommand, global: &GlobalArgs) -> Result<(), Failed> {
    let (GridArgs { config, json, wait_grid }, one) = command.of();
    let (file, json, wait) = (config.clone(), *json, *wait_grid);
    let done = async {
        wait_for_grid(&file, wait).await?;
        let client = JobClient::attach(&file).await?;
        let done = on_client(&client, command, global).await;
        client.close().await;
        done
    };
    match done.await {
        Ok(failed) => failed.map_or(Ok(()), Err),
        Err(failed) => print_early_failure(json, one, failed),
    }
}

/// Executes a subcommand. Returns the failure to exit with after all output is printed.
async fn on_client(
    client: &JobClient,
    command: JobCommand,
    global: &GlobalArgs,
) -> Result<Option<Failed>, Failed> {
    match command {
        JobCommand::List { grid, last, all } => {
            let JobList { entries, live, has_more } = client.list((!all).then_some(last)).await?;
            let rows = rows(entries, live, since_epoch());
            print(&if grid.json { list_object(&rows, has_more) } else { list_text(&rows) })?;
            if has_more && !grid.json && !global.quiet {
                eprintln!("jobs that ended earlier are hidden: show more with --last N or --all");
            }
        }
        JobCommand::Purge { grid, jobs, older_than, keep } => {
            let older_than_s = older_than.map(|age| age.as_secs());
            let selection = Selection { jobs: jobs.into_iter().collect(), older_than_s, keep };
            let purged = client.purge(selection).await?;
            print(&if grid.json { purged_object(&purged) } else { purged_text(&purged) })?;
            return Ok(jobs::not_purged(&purged));
        }
        JobCommand::Report { grid, last } => {
            let mut entries = client.list(last).await?.entries;
            entries.retain(|entry| entry.ended.is_some());
            print(&if grid.json { report_object(&entries) } else { report_csv(&entries) })?;
        }
        JobCommand::Status(one) => {
            let job_info = client.job_info(one.job, 0).await?;
            print(&if one.grid.json { status_object(&job_info) } else { status_text(&job_info) })?;
        }
        JobCommand::Why(one) => {
            let job_info = client.job_info(one.job, 0).await?;
            print(&if one.grid.json { why_object(&job_info) } else { why_text(&job_info) })?;
        }
        JobCommand::Grow { one, count, within, cluster } => {
            let within_ms = within.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
            let cluster = cluster.map(|name| name.as_str().into());
            resize(client, &one, Resize::Grow { count, timeout_ms: within_ms, cluster }).await?;
        }
        JobCommand::Shrink { one, count } => {
            resize(client, &one, Resize::Shrink { count }).await?;
        }
        JobCommand::Cancel(one) => {
            let (job, state) = (one.job, client.cancel(one.job).await?);
            if one.grid.json {
                let object = json!({ "schema": SCHEMA, "job": job.0, "ok": true, "state": state });
                print(&format!("{object}\n"))?;
            } else if !global.quiet {
                eprintln!("{job} is {state}");
            }
        }
        JobCommand::Result { one, wait, timeout } => {
            let job = one.job;
            let job_info = client.with_result(job, wait, timeout).await?;
            let JobResult { object, summary, unwritten, failed } = job_info.into_result()?;
            print(&if one.grid.json { format!("{object}\n") } else { summary })?;
            if let Some(why) = unwritten {
                eprintln!(
                    "{job}'s result could not be written ({why}): it is lost when the head ends"
                );
            }
            return Ok(failed);
        }
        JobCommand::Logs { one, lines, follow, rank, stderr, attempt }
            if follow || rank.is_some() =>
        {
            let stream = if stderr { OutputStream::Stderr } else { OutputStream::Stdout };
            let stream = rank.map(|rank| OutputFile::Stream { rank, attempt, stream });
            let file = stream.unwrap_or(OutputFile::Log);
            client.read_output(one.job, file, lines, follow, print_bytes).await?;
        }
        JobCommand::Logs { one, lines, .. } => {
            let record = client.logs(one.job, lines).await?;
            print_logs(&one, record, lines, global)?;
        }
    }
    Ok(None)
}

/// Prints bytes to standard output at once. A closed pipe ends the command.
fn print_bytes(bytes: &[u8]) -> Result<(), Failed> {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(bytes).and_then(|()| out.flush());
    written.map_err(|error| Failed::failure(format!("standard output: {error}")))
}

async fn resize(client: &JobClient, one: &OneArgs, by: Resize) -> Result<(), Failed> {
    let job = one.job;
    let done = client.resize(job, by).await?;
    let (from, to) = (done.from, done.to);
    print(&if one.grid.json {
        format!("{}\n", json!({ "schema": SCHEMA, "job": job.0, "from": from, "to": to }))
    } else {
        format!("{job} has {} and will have {to}\n", many(from.into(), "processor"))
    })
}

fn print_logs(
    one: &OneArgs,
    record: JobRecord,
    wanted: Option<usize>,
    global: &GlobalArgs,
) -> Result<(), Failed> {
    let JobRecord { lines, said: line_count, dir, .. } = record;
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
