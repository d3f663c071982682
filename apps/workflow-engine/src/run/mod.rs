//! `workflow run`: a workflow on a grid that is up, on reserved slots or best effort.
//!
//! - `table` and `pilots` are the tasks and the nodes. `flow` decides which task starts
//!   where.
//! - `drive` executes that: it submits pilots (`pilot_job`), sends them tasks, brings files
//!   (`staging`) and reserves slots (`reserve`, `parts`).
//! - `directory` and `journal` keep what was done, so that a later process continues.
//! - `external_inputs` finds the files that no task writes.
//! - `spec` makes tasks of a workflow, `report` describes a run that has ended, and [`control`]
//!   has the commands for runs.
//! - [`history`] makes a page and provenance files of a run's journal.
//!
//! A task runs on a *pilot*, a job that holds a node for many tasks. Each task has a key: a digest
//! of its program and its inputs, from which the stored names of its outputs are made. So a task
//! whose key has a completed record need not run again.

pub mod control;
mod directory;
mod drive;
mod external_inputs;
mod flow;
pub mod history;
mod journal;
mod parts;
mod pilot_job;
mod pilots;
mod report;
mod reserve;
mod restore;
mod spec;
mod staging;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use clap::{Args, ValueHint};
use springtide_actors::policy::provisioning::seconds;
use springtide_cli::exit::{Exit, Failed};
use springtide_cli::options::time;
use springtide_cli::outdir::write_copy;
use springtide_cli::talk::Talk;
use springtide_runtime::config::{GridConfig, Size};
use springtide_runtime::random::SplitMix;

use self::directory::{ExistingRun, RunDirectory, RunManifest};
use self::drive::Drive;
use self::external_inputs::{ExternalInput, InputsPlace, find_external_inputs};
use self::flow::{Flow, FlowSettings};
use self::journal::{JournalEntry, WorkflowSource};
use self::report::CompletedRun;
use self::spec::{RunSpec, SpecInput, external_input_files};
use self::staging::{Staging, part_of, path_below};
use self::table::{FailureRules, TaskTable};
use super::plan::ChoiceArgs;
use super::{Read, ReadArgs, read};
use springtide_cli::print::print_early_failure;
use springtide_operations::agree::now;
use springtide_operations::attach::{Attachment, attach, grid_config};
use springtide_operations::grid_files;
use springtide_operations::locate::default_config;
use springtide_operations::options::GlobalArgs;
use springtide_operations::signals::{Signals, word};

pub use self::pilot_job::WorkflowPilot;

/// Exit codes of `workflow run`, for `--help`.
pub const EXIT_CODES: &str = "\
Exit codes: 0 all tasks are completed; 1 a task failed, or no grid is up; 2 a file or an option is \
wrong; 3 no plan can be reserved; 4 the run took longer than --timeout; 130 interrupted. After a \
failure or an interruption, the same command continues the run.";

/// Options of `workflow run`.
#[derive(Args, Clone, Debug)]
pub struct RunArgs {
    /// The workflow: WfFormat (JSON), DAX (XML), Pegasus 5 (YAML), DOT, or Springtide's own (TOML)
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
    /// The config of a grid that is up [default: the nearest grid.toml]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath,
          default_value_os_t = default_config(), hide_default_value = true)]
    pub config: PathBuf,
    /// Reserve nothing, and use free processors
    #[arg(long, conflicts_with_all = ["alpha", "deadline", "budget"])]
    pub best_effort: bool,
    /// Criteria of the choice of a plan.
    #[command(flatten)]
    pub choice: ChoiceArgs,
    /// Options for reading the file.
    #[command(flatten)]
    pub read: ReadArgs,
    /// Run placeholders, which take their tasks' runtimes times this and write files of their
    /// sizes times this
    #[arg(long, value_name = "SCALE", value_parser = scale)]
    pub pretend: Option<f64>,
    /// Commands in place of the workflow's own: a table (CSV) with the columns name,command, by a
    /// task's id, name or program. sh runs a command
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "pretend")]
    pub programs: Option<PathBuf>,
    /// Words before the command of a task with a container, such as "apptainer exec {image}". An
    /// empty text runs commands without their containers
    #[arg(long, value_name = "WORDS")]
    pub containers: Option<String>,
    /// Directory with the files that no task writes, or the URL below which they are
    #[arg(long, value_name = "DIR|URL", value_hint = ValueHint::DirPath)]
    pub inputs: Option<InputsPlace>,
    /// Directory for the files that no task reads
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub fetch: Option<PathBuf>,
    /// Leave the workflow's files in the clusters' directories
    #[arg(long)]
    pub keep: bool,
    /// Directory of the run: its journal and the logs of its tasks
    /// [default: .springtide/GRID/workflows/NAME next to the grid's config]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub dir: Option<PathBuf>,
    /// Continue the run in the directory, also a completed one
    #[arg(long, conflicts_with = "fresh")]
    pub resume: bool,
    /// Begin a new run, and move one in the directory aside
    #[arg(long)]
    pub fresh: bool,
    /// Directory by which several runs share completed tasks, whose files stay in the clusters
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub cache: Option<PathBuf>,
    /// Start no further task after a task failed for good
    #[arg(long)]
    pub fail_fast: bool,
    /// Maximum number of retries of a failed task
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub retries: u32,
    /// Maximum running time of a task without a limit of its own. A retry after that has twice
    /// the time
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub time_limit: Option<Duration>,
    /// Maximum memory of a task without a limit of its own, such as 2GiB. A retry after that has
    /// twice the memory
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<Size>,
    /// Maximum number of nodes at a time
    #[arg(long, value_name = "N", default_value_t = 1000,
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub nodes: u32,
    /// Reserved time of a task as a multiple of its runtime
    #[arg(long, value_name = "FACTOR", default_value_t = 1.2, value_parser = slack)]
    pub slack: f64,
    /// Additional reserved time of a task, for its start and its files
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = time)]
    pub overhead: Duration,
    /// Maximum number of plans
    #[arg(long, value_name = "N", default_value_t = 10,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub plans: u32,
    /// Time after which the run ends
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub timeout: Option<Duration>,
    /// Print the result as one JSON object
    #[arg(long)]
    pub json: bool,
    /// Directory for the result (JSON) and its tasks (CSV)
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub out: Option<PathBuf>,
}

fn scale(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(scale) if scale > 0.0 && scale <= 1000.0 => Ok(scale),
        _ => Err("give a factor above 0 such as 0.01".to_owned()),
    }
}

fn slack(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(slack) if (1.0..=100.0).contains(&slack) => Ok(slack),
        _ => Err("give a factor of at least 1 such as 1.2".to_owned()),
    }
}

/// Makes a registered job of a name and options.
pub type Encode<'a> = dyn Fn(&str, &[String]) -> Result<(&'static str, Bytes), Failed> + 'a;

/// What this program can run.
pub struct Programs<'a> {
    /// Fingerprint of the program's registry.
    pub fingerprint: u64,
    /// A registered job of a name and options.
    pub encode: &'a Encode<'a>,
}

/// A workflow that is read, and the options of its run.
struct Prepared {
    args: RunArgs,
    config: GridConfig,
    read: Read,
    commands: BTreeMap<String, String>,
    fingerprint: u64,
    /// Files that tasks read and none writes.
    external_inputs: BTreeMap<usize, ExternalInput>,
    /// Results that an earlier process copied to their places.
    fetched: BTreeSet<String>,
}

/// Reads and checks what needs no grid.
///
/// # Errors
/// A file or an option is wrong.
fn prepare(args: &RunArgs, programs: &Programs<'_>) -> Result<Prepared, Failed> {
    let config = grid_config(&args.config)?;
    let overrides = args.read.overrides().map_err(Failed::usage)?;
    let read = read(&args.file, args.read.format, &overrides).map_err(Failed::usage)?;
    if !args.best_effort || args.pretend.is_some() {
        read.has_runtimes()?;
    }
    let commands = match &args.programs {
        Some(file) => table(file)?,
        None => BTreeMap::new(),
    };
    Ok(Prepared {
        args: args.clone(),
        config,
        read,
        commands,
        fingerprint: programs.fingerprint,
        external_inputs: BTreeMap::new(),
        fetched: BTreeSet::new(),
    })
}

/// Checks that all results have a place of their own, before tasks run.
///
/// # Errors
/// A file exists, or two would have the same path for a while.
fn check_targets(dir: &Path, prepared: &Prepared, results: &[usize]) -> Result<(), Failed> {
    let mut targets: BTreeMap<PathBuf, &str> = BTreeMap::new();
    for &file in results {
        let name = prepared.read.workflow.files[file].name.as_str();
        let path = path_below(dir, name);
        if path.symlink_metadata().is_ok() && !prepared.fetched.contains(name) {
            let shown = path.display();
            return Err(Failed::usage(format!(
                "{shown} exists: remove it, or name another directory with --fetch"
            )));
        }
        targets.insert(path, name);
    }
    for path in targets.keys() {
        if let Some(other) = targets.get(&part_of(path)) {
            let shown = path.display();
            return Err(Failed::usage(format!(
                "{shown} is copied under the name of {other} first: leave out --fetch, and use \
                 `files fetch` with --keep"
            )));
        }
    }
    Ok(())
}

/// Commands by name.
fn table(file: &Path) -> Result<BTreeMap<String, String>, Failed> {
    let shown = file.display();
    let text = std::fs::read_to_string(file)
        .map_err(|error| Failed::usage(format!("{shown}: cannot be read: {error}")))?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let mut all = BTreeMap::new();
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') || line == "name,command" {
            continue;
        }
        let Some((name, command)) = line.split_once(',').filter(|(_, c)| !c.trim().is_empty())
        else {
            let at = at + 1;
            return Err(Failed::usage(format!(
                "{shown}:{at}: a line is a name, a comma and a command, found {line:?}"
            )));
        };
        // A command may be quoted like a cell of a table.
        let command = command.trim();
        let command = match command.strip_prefix('"').and_then(|c| c.strip_suffix('"')) {
            Some(quoted) => quoted.replace("\"\"", "\""),
            None => command.to_owned(),
        };
        all.insert(name.trim().to_owned(), command);
    }
    Ok(all)
}

/// Runs a workflow.
///
/// # Errors
/// As [`EXIT_CODES`] says.
pub fn run(args: &RunArgs, programs: &Programs<'_>, global: &GlobalArgs) -> Result<(), Failed> {
    let prepared = prepare(args, programs)?;
    springtide_operations::process::on_arbiter(run_on_grid(prepared, programs, global))
}

/// The default directory of a run.
fn default_dir(args: &RunArgs, prepared: &Prepared) -> PathBuf {
    let name = args.file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    grid_files::dir_of(&args.config, &prepared.config).join("workflows").join(name)
}

async fn run_on_grid(
    mut prepared: Prepared,
    programs: &Programs<'_>,
    global: &GlobalArgs,
) -> Result<(), Failed> {
    let json = prepared.args.json;
    let mut signals = Signals::take()?;
    let begun = now();
    let attached = attach(&prepared.args.config, &prepared.config).await;
    let mut attachment = match attached {
        Ok(attachment) => attachment,
        Err(failed) => return print_early_failure(json, None, failed),
    };
    let talk = Talk::new(global.quiet || json);
    let ran = run_attached(&mut prepared, programs, (&mut attachment, &mut signals), talk, begun);
    let ran = ran.await;
    attachment.endpoint.net.close("done").await;
    match ran {
        Err(EarlyFailure(failed)) => print_early_failure(json, None, failed),
        Ok(result) => result,
    }
}

/// A failure before the run has begun.
struct EarlyFailure(Failed);

impl From<Failed> for EarlyFailure {
    fn from(failed: Failed) -> Self {
        Self(failed)
    }
}

async fn run_attached(
    prepared: &mut Prepared,
    programs: &Programs<'_>,
    (attachment, signals): (&mut Attachment, &mut Signals),
    mut talk: Talk,
    begun: u64,
) -> Result<Result<(), Failed>, EarlyFailure> {
    let args = prepared.args.clone();
    let staging = Staging::new(attachment).await?;
    let dir = args.dir.clone().unwrap_or_else(|| default_dir(&args, prepared));
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let id = SplitMix::with_text(begun, &format!("{}", std::process::id())).next();
    let (file, config) = (absolute(&args.file), absolute(&args.config));
    let manifest = RunManifest::new(prepared.read.name(), file, config, id);
    let existing = match (args.resume, args.fresh) {
        (true, _) => ExistingRun::Continue,
        (_, true) => ExistingRun::MoveAside,
        _ => ExistingRun::ContinueUnfinished,
    };
    let (mut directory, entries) = RunDirectory::open(&dir, manifest, existing)?;
    let mut completed = Vec::new();
    let mut prefix = directory.manifest.prefix();
    if let Some(cache) = &args.cache {
        let shared = restore::open_cache(cache, id)?;
        prefix = shared.prefix;
        completed = shared.entries;
        directory.cache = Some(shared.journal);
    }
    completed.extend(entries.iter().cloned());
    prepared.fetched = entries
        .iter()
        .filter_map(|entry| match entry {
            JournalEntry::Fetched { file, path, .. } if path.exists() => Some(file.clone()),
            _ => None,
        })
        .collect();
    talk.wait_for("reading the workflow's inputs");
    if args.pretend.is_none() {
        let (workflow, files) = (&prepared.read.workflow, external_input_files(&prepared.read));
        let inputs = args.inputs.as_ref();
        prepared.external_inputs =
            find_external_inputs(workflow, &files, inputs, &dir, &mut talk).await?;
    }
    let digests =
        prepared.external_inputs.iter().map(|(file, input)| (*file, input.entry.sum.clone()));
    let spec = RunSpec::new(&SpecInput {
        read: &prepared.read,
        args: &args,
        commands: &prepared.commands,
        programs,
        file_bytes_max: prepared.config.files.size_max.bytes(),
        prefix: &prefix,
        submit_dir: absolute(Path::new(".")).to_string_lossy().into_owned(),
        digests: &digests.collect(),
    })?;
    if spec.has_files && staging.clusters().is_empty() {
        return Err(EarlyFailure(Failed::usage(
            "tasks pass files, and no cluster of the grid keeps any: set `files` of its \
             [[cluster]] tables to a directory that their nodes share",
        )));
    }
    let rules = FailureRules { retries: args.retries, fail_fast: args.fail_fast };
    let table = TaskTable::new(spec.steps.clone(), prepared.read.workflow.order(), rules);
    let jobs = spec.tasks.iter().enumerate().filter(|(_, task)| task.job.is_some());
    let settings = FlowSettings {
        reserves: !args.best_effort,
        plans_max: args.plans,
        file_clusters: staging.clusters(),
        pilots_max: args.nodes as usize,
    };
    let files = prepared.read.workflow.files.len();
    let jobs = jobs.map(|(task, _)| task).collect();
    let mut flow = Flow::new(table, spec.step_files.clone(), jobs, files, settings);
    let order = prepared.read.workflow.order();
    let restored =
        restore::restore(&mut flow, &spec, order, &completed, &staging, &prefix, prepared);
    let restored = restored.await?;
    if let Some(dir) = &args.fetch {
        // A process may have been killed after it copied a result, and before it recorded that.
        let copied = restore::copied_results(dir, directory.path(), &spec, prepared, &staging);
        for name in copied.await? {
            prepared.fetched.insert(name);
        }
        check_targets(dir, prepared, &spec.results)?;
    }
    restore::restore_attempts(&mut flow, &spec, &entries);
    let entry = JournalEntry::Begun {
        at_s: seconds(begun),
        tasks: spec.steps.len(),
        restored: restored.count,
        best_effort: args.best_effort,
        source: source(&args),
    };
    directory.journal.add(&entry)?;
    for (task, cluster) in &restored.by_records {
        let at_s = seconds(begun);
        let entry = JournalEntry::Completed {
            at_s,
            task: spec.steps[*task].id.clone(),
            key: spec.tasks[*task].key.clone(),
            attempt: flow.table().attempts(*task).max(1),
            start_s: at_s,
            cluster: cluster.clone(),
            node: None,
            wall_s: 0.0,
            cpu_s: 0.0,
            memory_bytes: 0,
        };
        directory.journal.add(&entry)?;
    }
    let restored = restored.count;
    if restored > 0 {
        let all = spec.steps.len();
        talk.say(&format!("{restored} of {all} tasks are completed already"));
    }
    talk.say(&format!("the run's directory is {}", dir.display()));
    let mut drive = Drive::new(prepared, &spec, attachment, &mut directory, staging, flow, talk);
    let limit = async {
        match args.timeout {
            Some(time) => tokio::time::sleep(time).await,
            None => std::future::pending().await,
        }
    };
    let ran = tokio::select! {
        biased;
        exit = signals.next() => Err(Failed::new(exit, format!("ended by {}", word(exit)))),
        () = limit => Err(Failed::new(Exit::Timeout, "the run took longer than --timeout")),
        ran = async {
            drive.run().await?;
            drive.fetch_results().await?;
            drive.failure().map_or(Ok(()), Err)
        } => ran,
    };
    tokio::select! {
        biased;
        // The rest ends with this process's link and with the reservation's lease.
        _ = signals.next() => {}
        () = async {
            drive.leave(ran.as_ref().err()).await;
            if ran.is_ok() && !args.keep && args.cache.is_none() {
                drive.remove_files().await;
            }
        } => {}
    }
    drive.end_display();
    let log = drive.failure_log();
    let ran = ran.map_err(|failed| {
        let log = log.filter(|_| failed.exit == Exit::Failure).unwrap_or_default();
        let message = format!("{}; the same command continues the run{log}", failed.message);
        Failed { message, ..failed }
    });
    let ended = CompletedRun {
        name: prepared.read.name(),
        begun,
        ended: now(),
        table: drive.flow().table(),
        times: drive.flow().times(),
        restored,
        reserved: drive.reserver().all(),
        best_effort: args.best_effort,
        failed: ran.as_ref().err(),
    };
    let (object, csv) = (format!("{}\n", ended.object()), ended.csv());
    let printed = report::print(&ended, args.json, args.out.as_deref());
    for (name, text) in [("result.json", object), ("tasks.csv", csv)] {
        let path = dir.join(name);
        write_copy(&path, text.as_bytes())?;
    }
    let error = ran.as_ref().err().map(|failed| failed.message.clone());
    let exit = ran.as_ref().err().map(|failed| failed.exit);
    let interrupted = matches!(exit, Some(Exit::Interrupted | Exit::Terminated));
    drop(drive);
    directory.journal.add(&JournalEntry::Ended { at_s: seconds(now()), error, interrupted })?;
    Ok(ran.and(printed))
}

/// The source of the workflow for the journal; none if its file cannot be read again.
fn source(args: &RunArgs) -> Option<WorkflowSource> {
    let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
    if !args.file.is_file() {
        return None;
    }
    let text = std::fs::read(&args.file).ok()?;
    Some(WorkflowSource {
        digest: WorkflowSource::digest_of(&text),
        format: args.read.format.map(|format| format.word().to_owned()),
        overrides: args.read.overrides.as_ref().map(absolute),
        programs: args.programs.as_ref().map(absolute),
        pretend: args.pretend,
        time_limit_s: args.time_limit.map(|limit| limit.as_secs_f64()),
        memory_bytes: args.memory.map(|size| size.bytes()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_of_a_table_are_plain_or_quoted() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("programs.csv");
        std::fs::write(
            &file,
            "name,command\n# sorts\nsort, sort -n <a >b\nmv,\"say \"\"a, b\"\"\"\n",
        )
        .unwrap();
        let all = table(&file).unwrap();
        assert_eq!(all["sort"], "sort -n <a >b");
        assert_eq!(all["mv"], "say \"a, b\"");
        std::fs::write(&file, "name,command\nsort\n").unwrap();
        let wrong = table(&file).unwrap_err();
        assert!(wrong.message.contains("programs.csv:2:"), "{}", wrong.message);
        std::fs::write(&file, "\u{feff}# mine\r\n\r\nname,command\r\na,b\r\nsort\r\n").unwrap();
        let wrong = table(&file).unwrap_err();
        assert!(wrong.message.contains("programs.csv:5:"), "{}", wrong.message);
    }
}
