//! The jobs of a submission and their requirements, from options of the command line or from a
//! file.
//!
//! This module does not know what happens to the jobs later.

use std::collections::BTreeSet;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::path::Path;
use std::time::Duration;

use clap::Args;
use springtide_actors::policy::malleability::{Component, NodeNeeds};
use springtide_actors::reservation::ReservationId;
use springtide_actors::scheduler::JobDependency;
use springtide_actors::scheduler::manager::JobRequirements;
use springtide_cli::config::load;
use springtide_cli::exit::{Exit, Failed};
use springtide_cli::options::{keyword_parser, time};
use springtide_runtime::config::{
    GridConfig, JobKind, JobSection, JobSizes, JobsConfig, PlacementPolicy, Size, Sources,
    ValueOrigin,
};
use springtide_runtime::id::JobId;
use springtide_runtime::work::ArrayTask;

use crate::netconf;
use crate::options::GridArgs;
use crate::program::{EncodedJob, JobDefinition, Program};

/// Options for the requirements of a job.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Needs")]
pub struct NeedArgs {
    /// Options of commands that use a grid.
    #[command(flatten)]
    pub grid: GridArgs,
    /// Kind of the job: rigid, moldable or malleable [default: malleable; of a command rigid]
    #[arg(id = "job.kind", long = "kind", value_name = "KIND",
          value_parser = keyword_parser::<JobKind>(JobKind::WORDS), hide_possible_values = true)]
    pub kind: Option<JobKind>,
    /// Exact number of processors: the same as --kind rigid --min N
    #[arg(
        id = "job.processors",
        long = "processors",
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=10_000_000),
        conflicts_with_all = ["job.kind", "job.min", "job.start", "job.max"],
    )]
    pub processors: Option<u32>,
    /// Minimum number of processors; rigid jobs have exactly these
    #[arg(
        id = "job.min",
        long = "min",
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=10_000_000),
    )]
    pub min: u32,
    /// Maximum number of processors at its start [default: --min; of moldable jobs --max]
    #[arg(
        id = "job.start",
        long = "start",
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=10_000_000),
    )]
    pub start: Option<u32>,
    /// Maximum number of processors [default: all of the grid]
    #[arg(
        id = "job.max",
        long = "max",
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=10_000_000),
    )]
    pub max: Option<u32>,
    /// Number of components, which may lie in different clusters; numbers of processors are per
    /// component
    #[arg(
        id = "job.components",
        long = "components",
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=10_000),
    )]
    pub components: u32,
    /// Placement policy: worst-fit, close-to-files, cluster-minimisation or
    /// flexible-cluster-minimisation [default: the config's]
    #[arg(
        id = "job.placement",
        long = "placement",
        value_name = "HOW",
        value_parser = keyword_parser::<PlacementPolicy>(PlacementPolicy::WORDS),
        hide_possible_values = true,
    )]
    pub placement: Option<PlacementPolicy>,
    /// Use only these clusters
    #[arg(id = "job.on", long = "on", value_name = "CLUSTER", value_delimiter = ',')]
    pub on: Vec<String>,
    /// Let the job grow into clusters where it has no processors yet
    #[arg(id = "job.spread", long = "spread")]
    pub spread: bool,
    /// Input file, by its name in the clusters' directories (`files list`). The job starts in a
    /// cluster that has the file, or after a transfer. Repeatable
    #[arg(id = "job.input", long = "file", value_name = "NAME")]
    pub files: Vec<String>,
    /// Maximum run time, for example 30m; the job is ended after it. With it, a job may use
    /// processors until a reservation begins
    #[arg(id = "job.time", long = "time", value_name = "TIME", value_parser = time)]
    pub time: Option<Duration>,
    /// Expected run time, for example 20m, by which a queue with backfilling plans; the job may
    /// run longer [default: --time, or what earlier runs of the program took]
    #[arg(id = "job.expect", long = "expect", value_name = "TIME", value_parser = time)]
    pub expect: Option<Duration>,
    /// Least number of processors of each node, which share memory. Equal to --processors: one node
    #[arg(
        id = "job.node_processors",
        long = "node-processors",
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=4096),
    )]
    pub node_processors: u32,
    /// Memory for each processor, for example 2GiB. A node that exceeds its memory ends [default:
    /// the processor's part of its host's]
    #[arg(id = "job.memory", long = "memory-per-processor", value_name = "SIZE")]
    pub memory: Option<Size>,
    /// Devices of each node, such as gpu=1. Repeatable
    #[arg(id = "job.device", long = "device", value_name = "KIND=N", value_parser = parse_device)]
    pub devices: Vec<(String, u32)>,
    /// Project whose share of the grid the job uses
    #[arg(id = "job.project", long = "project", value_name = "NAME")]
    pub project: Option<String>,
    /// Submit a job array: one job for each index, such as 0-9, 1,4,7 or 0-90:10. After %, the
    /// maximum number of them that run at the same time, such as 0-999%50
    #[arg(id = "job.array", long = "array", value_name = "INDICES", value_parser = parse_array)]
    pub array: Option<ArrayIndices>,
    /// Start after these jobs have succeeded, such as 7 or 7,9. If one fails, so does this job
    #[arg(id = "job.after", long = "after", value_name = "JOB", value_delimiter = ',',
          value_parser = parse_job)]
    pub after: Vec<JobId>,
    /// Start after these jobs have ended, whether or not they have succeeded
    #[arg(id = "job.after_any", long = "after-any", value_name = "JOB", value_delimiter = ',',
          value_parser = parse_job)]
    pub after_any: Vec<JobId>,
    /// Print the job's output until it has ended, then its result, and end with its exit code
    #[arg(id = "job.wait", long = "wait")]
    pub wait: bool,
    /// Run only on the processors of this reservation (`reserve`, `slots list`)
    #[arg(id = "job.reservation", long = "reservation", value_name = "N")]
    pub reservation: Option<u64>,
}

/// Most jobs of an array.
const ARRAY_MAX: usize = 10_000;

/// The indices of a job array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrayIndices {
    /// The indices, ascending and different.
    pub indices: Vec<u32>,
    /// The maximum number of jobs that run at the same time.
    pub limit: Option<u32>,
}

impl ArrayIndices {
    /// The places of the array's jobs.
    pub fn places(&self) -> Vec<ArrayTask> {
        // The standard library's maps are seeded by the system.
        let id = RandomState::new().build_hasher().finish();
        let first = self.indices.first().copied().unwrap_or_default();
        let last = self.indices.last().copied().unwrap_or_default();
        let count = u32::try_from(self.indices.len()).unwrap_or(u32::MAX);
        let place = |&index| ArrayTask { id, index, first, last, count, limit: self.limit };
        self.indices.iter().map(place).collect()
    }
}

/// Parses the indices of an array, such as `0-9,20-90:10%4`.
fn parse_array(text: &str) -> Result<ArrayIndices, String> {
    let (ranges, limit) = match text.split_once('%') {
        Some((ranges, limit)) => {
            let limit = limit.parse().ok().filter(|limit| *limit > 0);
            (ranges, Some(limit.ok_or("after % must be a number of at least 1")?))
        }
        None => (text, None),
    };
    let number = |word: &str| {
        word.parse::<u32>().map_err(|_| format!("{word:?} is no index: give numbers such as 0-9"))
    };
    let mut indices = BTreeSet::new();
    for range in ranges.split(',') {
        let (range, step) = match range.split_once(':') {
            Some((range, step)) => (range, number(step)?),
            None => (range, 1),
        };
        let (first, last) = match range.split_once('-') {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(range)?, number(range)?),
        };
        if step == 0 || last < first {
            return Err(format!("{range} has no index: the last must not precede the first"));
        }
        let more = (first..=last).step_by(step as usize).take(ARRAY_MAX + 1);
        indices.extend(more);
        if indices.len() > ARRAY_MAX {
            return Err(format!("an array has at most {ARRAY_MAX} jobs"));
        }
    }
    Ok(ArrayIndices { indices: indices.into_iter().collect(), limit })
}

/// Parses the number of a job.
pub fn parse_job(text: &str) -> Result<JobId, String> {
    let digits = text.strip_prefix("job-").unwrap_or(text);
    let number = digits.parse().ok().filter(|number| *number > 0);
    number.map(JobId).ok_or_else(|| "must be a job's number such as 7 or job-7".to_owned())
}

/// The jobs that must end before this one starts.
fn dependencies(args: &NeedArgs) -> Vec<JobDependency> {
    let after = args.after.iter().map(|&job| JobDependency { job, any: false });
    let any = args.after_any.iter().map(|&job| JobDependency { job, any: true });
    after.chain(any).collect()
}

/// A job to be submitted or planned.
#[derive(Clone, PartialEq)]
pub struct JobRequest {
    /// The registered name of the program.
    pub name: &'static str,
    /// The job as encoded bytes, and its files.
    pub encoded: EncodedJob,
    /// Whether its number of nodes cannot change while it runs.
    pub is_fixed: bool,
    /// The program and its options as a command line.
    pub line: String,
    /// The requirements of the job.
    pub need: JobRequirements,
    /// The places of the jobs of an array; empty for a single job.
    pub array: Vec<ArrayTask>,
    /// Its name in a file of jobs.
    pub label: Option<String>,
    /// Names of the jobs above it in the file that must end first, and whether they may fail.
    pub after: Vec<(String, bool)>,
}

/// The requirements of a job, from its options.
///
/// # Errors
/// The options contradict each other.
pub fn need(
    args: &NeedArgs,
    config: &GridConfig,
    job: &JobDefinition,
) -> Result<JobRequirements, Failed> {
    let all = netconf::existing_processors(config).get();
    let given = if args.processors.is_some() { Some(JobKind::Rigid) } else { args.kind };
    let kind = kind_of(given, job).map_err(|reason| Failed::usage(format!("--kind: {reason}")))?;
    let min = args.processors.unwrap_or(args.min);
    let sizes = JobSizes::of(kind, min, args.start, args.max, all)
        .map_err(|(key, reason)| Failed::usage(format!("--{key}: {reason}")))?;
    let clusters = netconf::clusters_of(&args.on, config)
        .map_err(|reason| Failed::usage(format!("--on: {reason}")))?;
    let JobSizes { min, start, max: most } = sizes;
    let one = Component { min, max_at_start: start, clusters, files: args.files.clone() };
    let count = args.components as usize;
    let need = JobRequirements {
        kind,
        placement: args.placement.unwrap_or(config.scheduling.placement),
        components: vec![one; count],
        max: vec![most; count],
        spreads: args.spread,
        reservation: args.reservation.map(ReservationId),
        starts_early: false,
        time_ms: args.time.map(milliseconds),
        expected_ms: args.expect.map(milliseconds),
        program: None,
        user: None,
        project: args.project.clone(),
        after: dependencies(args),
        array: None,
        node: NodeNeeds {
            processors: args.node_processors,
            memory: args.memory.map_or(0, Size::bytes),
            devices: args.devices.iter().cloned().collect(),
        },
    };
    need.check().map_err(Failed::usage)?;
    Ok(need)
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The kind of a job: the given one, or the default of the program.
fn kind_of(given: Option<JobKind>, job: &JobDefinition) -> Result<JobKind, String> {
    match given {
        Some(JobKind::Malleable) if job.is_fixed => Err(format!(
            "a {} cannot change its number of processors while it runs: it is rigid or moldable",
            job.name
        )),
        Some(kind) => Ok(kind),
        None if job.is_fixed => Ok(JobKind::Rigid),
        None => Ok(JobKind::Malleable),
    }
}

/// The requirements of a job of a file. An error has the path of the wrong key below the job.
fn need_of(
    job: &JobSection,
    kind: JobKind,
    config: &GridConfig,
) -> Result<JobRequirements, (String, String)> {
    let job = &JobSection { kind, ..job.clone() };
    let (mut components, mut most) = (Vec::new(), Vec::new());
    for part in job.parts(netconf::existing_processors(config).get())? {
        let clusters = netconf::clusters_of(part.clusters, config).map_err(|reason| {
            let key = part.at.map(|at| format!("component[{at}].clusters"));
            (key.unwrap_or_else(|| "clusters".to_owned()), reason)
        })?;
        let JobSizes { min, start, max: greatest } = part.sizes;
        components.push(Component {
            min,
            max_at_start: start,
            clusters,
            files: part.files.to_vec(),
        });
        most.push(greatest);
    }
    let placement = job.placement.unwrap_or(config.scheduling.placement);
    let (kind, spreads, under) = (job.kind, job.spreads, None);
    let need = JobRequirements {
        kind,
        placement,
        components,
        max: most,
        spreads,
        reservation: under,
        starts_early: false,
        time_ms: job.time.map(|time| milliseconds(time.get())),
        expected_ms: job.expect.map(|time| milliseconds(time.get())),
        program: None,
        user: None,
        project: job.project.as_ref().map(ToString::to_string),
        after: Vec::new(),
        array: None,
        node: node_needs(job)?,
    };
    need.check().map_err(|reason| ("program".to_owned(), reason))?;
    Ok(need)
}

/// The requirements of each node of a job of a file.
fn node_needs(job: &JobSection) -> Result<NodeNeeds, (String, String)> {
    let device = |(name, count): (&String, &String)| {
        let wrong = || {
            let reason = format!("`job.devices.{name}` must be a whole number, found \"{count}\"");
            (format!("devices.{name}"), reason)
        };
        let count = count.parse::<u32>().map_err(|_| wrong())?;
        Ok::<_, (String, String)>((name.clone(), count))
    };
    Ok(NodeNeeds {
        processors: job.node_processors.get(),
        memory: job.memory_per_processor.map_or(0, Size::bytes),
        devices: job.devices.iter().map(device).collect::<Result<_, _>>()?,
    })
}

/// Parses a number of devices.
fn parse_device(text: &str) -> Result<(String, u32), String> {
    let (kind, count) = text.split_once('=').unwrap_or((text, "1"));
    match count.parse() {
        Ok(count) if !kind.is_empty() => Ok((kind.to_owned(), count)),
        _ => Err(format!("write KIND=N, such as gpu=1, not {text}")),
    }
}

/// Reads the jobs of a file, which are some of this program.
///
/// # Errors
/// The file is wrong; the message names the position.
pub fn of_file(
    file: &Path,
    config: &GridConfig,
    program: &Program,
) -> Result<Vec<JobRequest>, Failed> {
    // Environment variables apply to the grid's config only.
    let sources = Sources { file: Some(file.to_owned()), ..Sources::default() };
    let jobs = load::<JobsConfig>(&sources)?;
    let mut all = Vec::new();
    let mut labels = BTreeSet::new();
    for (i, job) in jobs.value.job.iter().enumerate() {
        let at = |key: &str, reason: &str| {
            // A value of a component may come from the component or from the job, or be a default.
            let own = key.rsplit('.').next().unwrap_or(key);
            let part = key.split('.').next().unwrap_or(key);
            let place = [key, own, part, "program"].iter().find_map(|key| {
                match jobs.origin(&format!("job[{i}].{key}")) {
                    Some(ValueOrigin::File { file, line, column }) => {
                        Some(format!("{file}:{line}:{column}"))
                    }
                    _ => None,
                }
            });
            let place = place.unwrap_or_else(|| file.display().to_string());
            Failed::usage(format!("{place}: {reason}"))
        };
        let name = job.program.as_str();
        let (definition, encoded) = program.encode(name, &job.args.0).map_err(|failed| {
            let key = if failed.exit == Exit::NotPlaced { "program" } else { "args" };
            at(key, &failed.message)
        })?;
        let is_set =
            matches!(jobs.origin(&format!("job[{i}].kind")), Some(ValueOrigin::File { .. }));
        let kind = kind_of(is_set.then_some(job.kind), definition)
            .map_err(|reason| at("kind", &reason))?;
        let mut need = need_of(job, kind, config).map_err(|(key, reason)| at(&key, &reason))?;
        let mut after = Vec::new();
        for (key, words, any) in [("after", &job.after, false), ("after_any", &job.after_any, true)]
        {
            for word in &words.0 {
                match parse_job(word) {
                    Ok(job) => need.after.push(JobDependency { job, any }),
                    Err(_) if labels.contains(word) => after.push((word.clone(), any)),
                    Err(_) => {
                        let reason = "neither the name of a job above this one nor a job's number";
                        return Err(at(key, &format!("\"{word}\" is {reason}")));
                    }
                }
            }
        }
        let array = job.array.as_deref().map(parse_array).transpose();
        let array = array.map_err(|reason| at("array", &reason))?;
        let array = array.as_ref().map(ArrayIndices::places).unwrap_or_default();
        let label = job.name.as_ref().map(ToString::to_string);
        if let Some(label) = label.as_ref().filter(|label| !labels.insert((*label).clone())) {
            return Err(at("name", &format!("another job above has the name {label}")));
        }
        let line = line(definition.name, &job.args.0);
        let (name, is_fixed) = (definition.name, definition.is_fixed);
        let request = JobRequest { name, encoded, is_fixed, line, need, array, label, after };
        all.extend((0..job.count.get()).map(|_| request.clone()));
    }
    Ok(all)
}

/// The job and its options on one line.
pub fn line(name: &str, options: &[String]) -> String {
    let words = std::iter::once(name).chain(options.iter().map(String::as_str));
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use springtide_runtime::work::Registry;

    use super::*;

    #[test]
    fn arrays_parse() {
        let indices = |text: &str| parse_array(text).map(|array| (array.indices, array.limit));
        assert_eq!(indices("0-3%2"), Ok((vec![0, 1, 2, 3], Some(2))));
        assert_eq!(indices("7,1,20-40:10,1"), Ok((vec![1, 7, 20, 30, 40], None)));
        for wrong in ["", "a", "3-1", "0-9:0", "0-9%0", "0-9%", "-3", "0-10000", "1,,2"] {
            assert!(indices(wrong).is_err(), "{wrong}");
        }
        let places = parse_array("3-5").unwrap().places();
        assert_eq!(places.iter().map(|place| place.index).collect::<Vec<_>>(), [3, 4, 5]);
        assert!(places.iter().all(|place| (place.first, place.last, place.count) == (3, 5, 3)));
    }

    #[test]
    fn job_numbers_parse() {
        assert_eq!(parse_job("7"), Ok(JobId(7)));
        assert_eq!(parse_job("job-12"), Ok(JobId(12)));
        for wrong in ["", "job-", "0", "-1", "job-x", "7.5"] {
            assert!(parse_job(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn jobs_of_a_file_have_components_and_errors_have_positions() {
        let temp = tempfile::tempdir().unwrap();
        let file = temp.path().join("jobs.toml");
        let text =
            "[[cluster]]\nname = \"ams\"\nnodes = 4\n[[cluster]]\nname = \"del\"\nnodes = 2\n";
        let config = load::<GridConfig>(&Sources::of_text("grid.toml", text)).unwrap().value;
        let program = Program {
            name: "test",
            version: "1",
            registry: Registry::new(),
            jobs: vec![JobDefinition {
                name: "fib",
                about: "",
                augment: |command| command,
                encode: |_| Ok(Bytes::new().into()),
                is_fixed: false,
                is_command: false,
            }],
            actors: None,
        };
        let read = |text: &str| {
            std::fs::write(&file, text).unwrap();
            of_file(&file, &config, &program)
        };
        let text = "[[job]]\nprogram = \"fib\"\nmin = 2\nclusters = [\"ams\"]\n\
        [[job.component]]\n[[job.component]]\nmin = 1\nmax = 2\nclusters = [\"del\"]\n";
        let all = read(text).unwrap();
        let need = &all[0].need;
        let shown: Vec<_> = need
            .components
            .iter()
            .map(|one| {
                (one.min, one.max_at_start, one.clusters.iter().map(ToString::to_string).collect())
            })
            .collect();
        let one = |name: &str| vec![name.to_owned()];
        assert_eq!(shown, [(2, 2, one("ams")), (1, 1, one("del"))]);
        assert_eq!((&need.max, need.least(), need.greatest()), (&vec![6, 2], 3, 8));
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
