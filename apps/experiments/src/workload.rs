//! `sim workload`: many jobs over many clusters in simulated time, with the live scheduler's own
//! manager.
//!
//! This module does not know the simulation itself.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::{Args, ValueHint};
use serde::Serialize;
use springtide_cli::config::load;
use springtide_cli::exit::Failed;
use springtide_cli::format::SCHEMA;
use springtide_cli::options::keyword_parser;
use springtide_cli::outdir::Artefacts;
use springtide_runtime::config::{
    Loaded, Malleability, Name, PlacementPolicy, Precedence, QueueDiscipline, Sources,
    WorkloadConfig, allowed_share,
};
use springtide_simulator::figure::FigureError;
use springtide_simulator::shipped;
use springtide_simulator::workload::figures::{self, Figure, FigureRun};
use springtide_simulator::workload::made::{MakeError, PreparedWorkload, make, make_of};
use springtide_simulator::workload::stated::{
    PaperClusters, PolicyRun, Statement, figure_six, statements,
};
use springtide_simulator::workload::swf::{self, Trace};
use springtide_simulator::workload::{WorkloadOutcome, WorkloadSummary, simulate};

/// The name that selects all of the paper's workloads.
const PAPER: &str = "paper";

/// End of the names of workloads on all five clusters with a cap each.
const FIVE: &str = "-five";

/// Maximum number of seeds of one command.
const SEEDS_MAX: u64 = 10_000;

/// Options of `sim workload`.
#[derive(Args, Clone, Debug)]
pub struct WorkloadArgs {
    /// Workload file (TOML), trace (SWF, plain or gzip), built-in workload (wm, wmr, wm-dense,
    /// wmr-dense, wm-five, wmr-five), or `paper` for all built-in ones under all policies
    #[arg(value_name = "WORKLOAD", value_hint = ValueHint::FilePath)]
    workload: PathBuf,
    /// Malleability policies: fpsma, egs, efficiency-aware; comma-separated ones are compared
    /// [default: the file's]
    #[arg(
        long,
        value_name = "POLICY",
        value_delimiter = ',',
        value_parser = keyword_parser::<Malleability>(Malleability::WORDS),
        hide_possible_values = true,
    )]
    policy: Vec<Malleability>,
    /// Disciplines of the queue: koala, easy, conservative; comma-separated ones are compared
    /// [default: the file's]
    #[arg(
        long,
        value_name = "QUEUE",
        value_delimiter = ',',
        value_parser = keyword_parser::<QueueDiscipline>(QueueDiscipline::WORDS),
        hide_possible_values = true,
    )]
    queue: Vec<QueueDiscipline>,
    /// Precedence when processors become free: running jobs, or waiting jobs [default: the file's]
    #[arg(long, value_name = "WHO", value_parser = keyword_parser::<Precedence>(Precedence::WORDS))]
    precedence: Option<Precedence>,
    /// Placement policy: worst-fit, close-to-files, cluster-minimisation,
    /// flexible-cluster-minimisation [default: the file's]
    #[arg(
        long,
        value_name = "HOW",
        value_parser = keyword_parser::<PlacementPolicy>(PlacementPolicy::WORDS),
        hide_possible_values = true,
    )]
    placement: Option<PlacementPolicy>,
    /// Maximum number of processors to which a job grows [default: the file's]
    #[arg(long, value_name = "N")]
    cap: Option<u32>,
    /// Processors of each cluster that growth leaves to local users [default: the file's]
    #[arg(long, value_name = "N")]
    reserve: Option<u32>,
    /// Fraction of malleable jobs, 0 to 1; comma-separated ones are compared [default: the file's;
    /// for a trace, none]
    #[arg(long, value_name = "SHARE", value_delimiter = ',', value_parser = share)]
    malleable: Vec<f64>,
    /// Cluster that replaces those of the file. Repeatable
    #[arg(long, value_name = "NAME=SIZE", value_parser = cluster)]
    cluster: Vec<(Name, u32)>,
    /// Number of a trace's first jobs to skip
    #[arg(long, value_name = "N")]
    skip: Option<u32>,
    /// Number of jobs to take from a trace [default: all]
    #[arg(long, value_name = "N")]
    jobs: Option<u32>,
    /// Random seed
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Number of seeds, starting with --seed; printed results are means over them, figures show the
    /// first
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u64).range(1..=SEEDS_MAX),
    )]
    seeds: u64,
    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
    /// Directory for the six figures (SVG and CSV), the jobs (CSV) and the result (JSON)
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    out: Option<PathBuf>,
}

fn share(text: &str) -> Result<f64, String> {
    allowed_share(text.parse().map_err(|_| "must be a number from 0 to 1".to_owned())?)
}

fn cluster(text: &str) -> Result<(Name, u32), String> {
    let parts = text.split_once('=').and_then(|(name, size)| Some((name, size.parse().ok()?)));
    let (name, size) = parts.ok_or("must be a name and a number of processors such as delft=68")?;
    Ok((name.parse()?, size))
}

/// A workload with one combination of options.
#[derive(Serialize)]
struct WorkloadRow {
    workload: String,
    precedence: Precedence,
    queue: QueueDiscipline,
    policy: Malleability,
    malleable: Option<f64>,
    seed: u64,
    seeds: u64,
    /// Means over the seeds.
    result: WorkloadSummary,
    #[serde(skip)]
    label: String,
    #[serde(skip)]
    first: WorkloadOutcome,
}

impl WorkloadRow {
    /// The row as the paper's statements refer to it.
    fn of(&self) -> PolicyRun {
        // Half of the jobs of workloads named wmr are rigid.
        let named = if self.workload.starts_with("wmr") { 0.5 } else { 1.0 };
        let (approach, policy) = (self.precedence, self.policy);
        PolicyRun {
            approach,
            policy,
            malleable: self.malleable.unwrap_or(named),
            result: self.result.clone(),
        }
    }
}

/// Descriptions of irregular lines of a trace.
type Warnings = Vec<String>;

/// Simulates a workload.
///
/// # Errors
/// The workload is wrong, or a file cannot be written.
pub fn workload(args: &WorkloadArgs) -> Result<(), Failed> {
    let began = std::time::Instant::now();
    let (groups, warnings) = match args.workload.to_str() {
        Some(PAPER) => (paper(args)?, Warnings::new()),
        _ => one(args)?,
    };
    for warning in &warnings {
        eprintln!("{}: {warning}", args.workload.display());
    }
    let rows: Vec<&WorkloadRow> = groups.iter().flat_map(|(_, rows)| rows).collect();
    let paper = match args.workload.to_str() {
        Some(PAPER) => paper_statements(args, &rows)?,
        _ => Vec::new(),
    };
    let result = serde_json::json!({
        "schema": SCHEMA, "warnings": warnings, "rows": rows, "paper": paper,
    });
    let mut artefacts = Artefacts::of(args.out.as_deref());
    if artefacts.are_wanted() {
        keep(&mut artefacts, &groups, &format!("{result}\n"))?;
    }
    artefacts.print(args.json, result, || {
        let took = began.elapsed().as_secs_f64();
        let jobs: u64 = rows.iter().map(|row| row.first.jobs.len() as u64 * row.seeds).sum();
        let statements_text = statements_text(&paper);
        format!("{}{statements_text}{jobs} jobs simulated in {took:.2} s\n", table(&rows))
    })
}

/// All statements of the paper. Those about precedence to waiting jobs are compared with both sets
/// of clusters.
fn paper_statements(args: &WorkloadArgs, rows: &[&WorkloadRow]) -> Result<Vec<Statement>, Failed> {
    let is_five = |row: &&&WorkloadRow| row.workload.ends_with(FIVE);
    let of = |five: bool| -> Vec<PolicyRun> {
        rows.iter().filter(|row| is_five(row) == five).map(|row| row.of()).collect()
    };
    let config = shipped_config("wm-five", args)?;
    let made = make(&config, Path::new(""), args.seed).map_err(Failed::usage)?;
    let mut all: Vec<Statement> = figure_six(&made.workload).into_iter().collect();
    all.extend(statements(&of(false), PaperClusters::Two));
    all.extend(statements(&of(true), PaperClusters::Five));
    Ok(all)
}

/// The paper's statements, each with the measured results.
fn statements_text(paper: &[Statement]) -> String {
    let mut text = String::new();
    for Statement { clusters, paper, ours, same, why } in paper {
        let verdict = if *same { "as in the paper" } else { "not as in the paper" };
        let on = match clusters {
            PaperClusters::Two => "",
            PaperClusters::Five => " on five clusters",
        };
        text.push_str(&format!("\nthe paper: {paper}\n     ours{on}: {ours}: {verdict}\n"));
        if let Some(why) = why {
            text.push_str(&format!("      why: {why}\n"));
        }
    }
    if !text.is_empty() {
        text.push('\n');
    }
    text
}

/// Simulated rows, by the name of the scheduling approach.
type SimulatedRows = Vec<(&'static str, Vec<WorkloadRow>)>;

/// Simulates the paper's workloads under the paper's policies and ours, and with rigid jobs alone.
/// Each approach has its own figures.
fn paper(args: &WorkloadArgs) -> Result<SimulatedRows, Failed> {
    let given = &args.policy;
    let policies = if given.is_empty() { Malleability::ALL } else { given.as_slice() };
    let mut groups = Vec::new();
    for (group, names) in [
        ("pra-", ["wm", "wmr"]),
        ("pwa-", ["wm-dense", "wmr-dense"]),
        ("pwa-five-", ["wm-five", "wmr-five"]),
    ] {
        let mut rows = Vec::new();
        for (at, name) in names.into_iter().enumerate() {
            let config = shipped_config(name, args)?;
            for &policy in policies {
                rows.push(row(args, &config, policy, None, &mut |config, seed| {
                    make(config, Path::new(""), seed)
                })?);
            }
            if at == 0 {
                let policy = Malleability::Egs;
                let mut make = |config: &WorkloadConfig, seed| make(config, Path::new(""), seed);
                rows.push(row(args, &config, policy, Some(0.0), &mut make)?);
            }
        }
        groups.push((group, rows));
    }
    Ok(groups)
}

fn shipped_config(name: &str, args: &WorkloadArgs) -> Result<WorkloadConfig, Failed> {
    let text = shipped::workload(name).map_or("", |shipped| shipped.text);
    Ok(load::<WorkloadConfig>(&flags(Sources::of_text(name, text), args))?.value)
}

/// Overrides the file by the options.
fn flags(mut sources: Sources, args: &WorkloadArgs) -> Sources {
    if let Some(precedence) = args.precedence {
        sources = sources.with_flag("--precedence", "scheduling.precedence", precedence);
    }
    if let Some(placement) = args.placement {
        sources = sources.with_flag("--placement", "scheduling.placement", placement);
    }
    for (flag, key, value) in [
        ("--cap", "scheduling.cap", args.cap),
        ("--reserve", "scheduling.reserve", args.reserve),
        ("--skip", "trace.skip", args.skip),
        ("--jobs", "trace.jobs", args.jobs),
    ] {
        if let Some(value) = value {
            sources = sources.with_flag(flag, key, value);
        }
    }
    if !args.cluster.is_empty() {
        let all = args.cluster.iter();
        let all: Vec<_> = all
            .map(|(name, size)| format!("{{ name = \"{name}\", processors = {size} }}"))
            .collect();
        sources = sources.with_flag("--cluster", "cluster", format!("[{}]", all.join(", ")));
    }
    sources
}

fn one(args: &WorkloadArgs) -> Result<(SimulatedRows, Warnings), Failed> {
    let file = &args.workload;
    let name = file.to_string_lossy();
    let shipped = shipped::workload(&name).filter(|_| !file.exists());
    let is_toml = file.extension().is_some_and(|ending| ending == "toml");
    let mut warnings = Warnings::new();
    let (config, trace) = match shipped {
        Some(shipped) => (shipped_config(shipped.name, args)?, None),
        None if is_toml => {
            let loaded: Loaded<WorkloadConfig> =
                load(&flags(Sources::of_process(Some(file)), args))?;
            let base = file.parent().unwrap_or(Path::new(""));
            let trace = loaded.value.trace.file.clone().map(|trace| base.join(trace));
            (loaded.value, trace)
        }
        None => {
            let text = "name = \"trace\"\ntrace.file = \"given\"\n";
            let sources = flags(Sources::of_text("the workload of a trace", text), args);
            (load::<WorkloadConfig>(&sources)?.value, Some(file.clone()))
        }
    };
    let trace: Option<(PathBuf, Trace)> = match trace {
        None => None,
        Some(file) => Some((file.clone(), swf::read(&file).map_err(Failed::usage)?)),
    };
    let mut make = |config: &WorkloadConfig, seed| {
        let made = match &trace {
            Some((file, trace)) => make_of(config, trace, file, seed)?,
            None => make(config, Path::new(""), seed)?,
        };
        warnings = warnings_of(&made);
        warnings.extend(trace.as_ref().and_then(|(_, trace)| partition_note(trace)));
        Ok(made)
    };
    let policy = [config.scheduling.policy];
    let policies = if args.policy.is_empty() { &policy[..] } else { &args.policy };
    let shares: Vec<Option<f64>> = match args.malleable.as_slice() {
        [] => vec![None],
        shares => shares.iter().copied().map(Some).collect(),
    };
    let queue = [config.scheduling.queue];
    let queues = if args.queue.is_empty() { &queue[..] } else { &args.queue };
    let mut rows = Vec::new();
    for &queue in queues {
        let mut config = config.clone();
        config.scheduling.queue = queue;
        for &share in &shares {
            for &policy in policies {
                rows.push(row(args, &config, policy, share, &mut make)?);
            }
        }
    }
    Ok((vec![("", rows)], warnings))
}

fn warnings_of(made: &PreparedWorkload) -> Warnings {
    let line = |(what, met): &(swf::TraceWarning, swf::Occurrences)| match met.times {
        1 => format!("line {}: {what}", met.line),
        times => format!("{times} lines, the first is {}: {what}", met.line),
    };
    let mut warnings: Warnings = made.warnings.iter().map(line).collect();
    if made.too_large > 0 {
        let jobs = made.too_large;
        warnings.push(format!("jobs that need more than any cluster has, and fail: {jobs}"));
    }
    warnings
}

/// The partitions of a trace, which is simulated without them.
fn partition_note(trace: &Trace) -> Option<String> {
    let all: BTreeSet<i64> = trace.jobs.iter().filter_map(|job| job.partition).collect();
    (all.len() > 1).then(|| {
        format!("jobs of {} partitions (field 16) may use all clusters of the workload", all.len())
    })
}

type MakeWorkload<'a> =
    &'a mut dyn FnMut(&WorkloadConfig, u64) -> Result<PreparedWorkload, MakeError>;

/// Simulates a workload with one combination of options, over all seeds.
fn row(
    args: &WorkloadArgs,
    config: &WorkloadConfig,
    policy: Malleability,
    malleable: Option<f64>,
    make: MakeWorkload<'_>,
) -> Result<WorkloadRow, Failed> {
    let mut config = config.clone();
    config.scheduling.policy = policy;
    if let Some(share) = malleable {
        config.trace.malleable = share;
        config.job.iter_mut().for_each(|job| job.malleable = share);
    }
    let mut first = None;
    let mut results = Vec::new();
    for seed in args.seed..args.seed.saturating_add(args.seeds) {
        let made = make(&config, seed).map_err(Failed::usage)?;
        let outcome = simulate(&made.workload);
        if let Some(what) = outcome.violations.first() {
            return Err(Failed::failure(format!(
                "the scheduler reports: {what}: this is a bug, please report it with the workload \
                and --seed {seed}"
            )));
        }
        results.push(WorkloadSummary::of(&outcome));
        first.get_or_insert(outcome);
    }
    let mut label = match malleable {
        Some(0.0) => format!("{} rigid", config.name),
        Some(share) => format!("{} {policy} {share}", config.name),
        None => format!("{} {policy}", config.name),
    };
    if config.scheduling.queue != QueueDiscipline::default() {
        label = format!("{label} {}", config.scheduling.queue);
    }
    Ok(WorkloadRow {
        workload: config.name.to_string(),
        precedence: config.scheduling.precedence,
        queue: config.scheduling.queue,
        policy,
        malleable,
        seed: args.seed,
        seeds: args.seeds,
        result: WorkloadSummary::mean(&results),
        label,
        first: first.unwrap_or_default(),
    })
}

fn table(rows: &[&WorkloadRow]) -> String {
    let width = rows.iter().map(|row| row.label.len()).max().unwrap_or(0).max(8);
    let mut text = format!(
        "{:width$}  first     ended failed execution response  p90 resp   wait      wide  \
        procs   used stuck operations shrinks   wasted\n",
        "workload"
    );
    for row in rows {
        let WorkloadSummary {
            ended, failed, execution_s, response_s, response_p90_s, wait_s, ..
        } = row.result;
        let wide = row.result.wait_wide_s.map_or("-".to_owned(), |wait| format!("{wait:.0} s"));
        let WorkloadSummary { processors, used, stuck, operations, shrinks, wasted_h, .. } =
            row.result;
        text.push_str(&format!(
            "{:width$}  {:8} {ended:6} {failed:6} {execution_s:7.0} s {response_s:6.0} s \
            {response_p90_s:7.0} s {wait_s:4.0} s {wide:>9} \
            {processors:6.1} {used:6.1} {stuck:5} {operations:10} {shrinks:7} {wasted_h:6.1} h\n",
            row.label,
            row.precedence.to_string(),
        ));
    }
    text
}

fn keep(
    artefacts: &mut Artefacts,
    groups: &[(&str, Vec<WorkloadRow>)],
    result: &str,
) -> Result<(), Failed> {
    artefacts.keep("workload.json", result);
    let cannot_draw = |error: FigureError| Failed::failure(error);
    for (group, rows) in groups {
        let runs: Vec<FigureRun<'_>> =
            rows.iter().map(|row| FigureRun { label: &row.label, outcome: &row.first }).collect();
        artefacts.keep(&format!("{group}jobs.csv"), figures::jobs(&runs));
        let title = match *group {
            "pra-" => "precedence to running jobs",
            "pwa-" => "precedence to waiting jobs",
            "pwa-five-" => "precedence to waiting jobs, five clusters",
            _ => "",
        };
        for figure in Figure::ALL {
            let name = figure.name();
            let drawn = figure.svg(title, &runs).map_err(cannot_draw)?;
            artefacts.keep(&format!("{group}{name}.svg"), drawn);
            artefacts.keep(&format!("{group}{name}.csv"), figure.csv(&runs));
        }
    }
    Ok(())
}
