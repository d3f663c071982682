//! `workflow run`: a workflow on a grid that is up, on slots that are reserved for it or just in time.
//!
//! [`flow`] decides which task begins where, and when the rest must be planned anew; here that is carried out: slots are reserved, tasks
//! submitted as jobs ([`task`]), files brought to where they are first read. A workflow is run by the process that is told to: when that
//! ends, so do its jobs, and its reservation runs out.

mod bag;
mod book;
mod drive;
mod flow;
mod report;
mod task;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use clap::{Args, ValueHint};
use springtide_cli::exit::Failed;
use springtide_cli::options::time;
use springtide_runtime::config::GridConfig;

use self::bag::Bag;
use super::plan::ChoiceArgs;
use super::{Read, ReadArgs, read};
use crate::operations::attach::grid_config;
use crate::options::GlobalArgs;

pub use self::task::WorkflowTask;

/// Exit codes of `workflow run`, for `--help`.
pub const EXIT_CODES: &str = "\
Exit codes: 0 all tasks are done; 1 a task has failed, or no grid is up; 2 a file or an option is wrong; 3 no plan can be reserved; \
4 took longer than --timeout; 130 interrupted: what ran was ended, and what was reserved is released.";

/// Options of `workflow run`.
#[derive(Args, Clone, Debug)]
pub struct RunArgs {
    /// The workflow: WfFormat (JSON), DAX (XML), Pegasus 5 (YAML), DOT, or Springtide's own (TOML)
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
    /// The grid's config: `up` has started it
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub config: PathBuf,
    /// Reserve nothing: each task is submitted when those it waits for are done, and goes where the scheduler puts it
    #[arg(long, conflicts_with_all = ["alpha", "deadline", "budget"])]
    pub best_effort: bool,
    #[command(flatten)]
    pub choice: ChoiceArgs,
    #[command(flatten)]
    pub read: ReadArgs,
    /// Run stand-ins: tasks take their runtime times this and write files of their sizes times this
    #[arg(long, value_name = "SCALE", value_parser = scale)]
    pub pretend: Option<f64>,
    /// Commands in place of the workflow's own: a table (CSV) with the columns name,command, by a task's id, name or program. A
    /// command is one for sh; $SPRINGTIDE_INPUTS and $SPRINGTIDE_OUTPUTS name files, a line each
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "pretend")]
    pub programs: Option<PathBuf>,
    /// Directory with the files that no task writes
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub inputs: Option<PathBuf>,
    /// Directory for the files that no task reads
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub fetch: Option<PathBuf>,
    /// Leave the workflow's files in the clusters' directories
    #[arg(long)]
    pub keep: bool,
    /// Reserved time of a task as a multiple of its runtime
    #[arg(long, value_name = "FACTOR", default_value_t = 1.2, value_parser = slack)]
    pub slack: f64,
    /// Additional reserved time of a task, for its start and its files
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = time)]
    pub overhead: Duration,
    /// Maximum number of retries of a failed task
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub retries: u32,
    /// Maximum number of times that the rest is planned
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub plans: u32,
    /// Time after which the workflow is ended
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

/// Everything about the workflow that does not need a grid.
struct Prepared {
    args: RunArgs,
    config: GridConfig,
    read: Read,
    bag: Bag,
    fingerprint: u64,
}

/// Reads and checks all that can be without the grid.
///
/// # Errors
/// A file or an option is wrong, or a task has nothing to run.
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
    let bag = Bag::of(&read, args, config.files.size_max.bytes(), &commands, programs)?;
    if let Some(dir) = &args.fetch {
        check_targets(dir, &read, &bag)?;
    }
    Ok(Prepared { args: args.clone(), config, read, bag, fingerprint: programs.fingerprint })
}

/// Where a file of the workflow goes below a directory.
fn target(dir: &Path, name: &str) -> PathBuf {
    dir.join(name.trim_start_matches('/'))
}

/// Whether all results have a place of their own: when all is computed is too late to learn it.
///
/// # Errors
/// A file is there already, or two would be in each other's way.
fn check_targets(dir: &Path, read: &Read, bag: &Bag) -> Result<(), Failed> {
    let mut targets: BTreeMap<PathBuf, &str> = BTreeMap::new();
    for &file in &bag.results {
        let name = read.workflow.files[file].name.as_str();
        let out = target(dir, name);
        if out.symlink_metadata().is_ok() {
            let shown = out.display();
            return Err(Failed::usage(format!(
                "{shown} exists: remove it, or name another directory by --fetch"
            )));
        }
        targets.insert(out, name);
    }
    for out in targets.keys() {
        let mut part = out.as_os_str().to_owned();
        part.push(".part");
        if let Some(other) = targets.get(Path::new(&part)) {
            let shown = out.display();
            return Err(Failed::usage(format!(
                "{shown} is fetched under the name of {other} first: leave out --fetch, and use `files fetch` with --keep"
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
        // Quoted as tables are, or as it stands.
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
    crate::operations::process::on_arbiter(drive::drive(prepared, global.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_of_a_table_are_as_they_stand_or_quoted() {
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
