//! What jobs that are to be submitted are and need: by options of the command line, or by a file of jobs.
//!
//! Must not know what becomes of them.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use springtide_actors::policy::malleability::Component;
use springtide_actors::reservation::ReservationId;
use springtide_actors::scheduler::manager::Need;
use springtide_runtime::config::{
    GridConfig, JobKind, JobSection, JobsConfig, Origin, Placing, Sizes, Sources, load, nearest,
};
use springtide_runtime::id::ClusterId;

use super::GridArgs;
use crate::args::{time, words};
use crate::exit::{Exit, Failed};
use crate::netconf;

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
    /// It takes no longer, for example 30m, and is ended when it does: it may run where processors are reserved for later, and
    /// leaves something to reserve
    #[arg(id = "job.time", long = "time", value_name = "TIME", value_parser = time)]
    pub time: Option<Duration>,
    /// It runs on what this reservation has (`reserve`, `slots list`), and on nothing else
    #[arg(id = "job.reservation", long = "reservation", value_name = "N")]
    pub reservation: Option<u64>,
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

/// What a job needs, by its options.
///
/// # Errors
/// They contradict each other.
pub fn need(args: &NeedArgs, config: &GridConfig) -> Result<Need, Failed> {
    let given = (args.min, args.start, args.max);
    let sizes = Sizes::of(args.kind, given, netconf::existing(config))
        .map_err(|(key, reason)| Failed::usage(format!("--{key}: {reason}")))?;
    let clusters =
        clusters_of(&args.on, config).map_err(|reason| Failed::usage(format!("--on: {reason}")))?;
    let Sizes { min, start, most } = sizes;
    let one = Component { min, start, clusters, files: args.files.clone() };
    let count = args.components as usize;
    let need = Need {
        kind: args.kind,
        placement: args.placement.unwrap_or(config.scheduling.placement),
        components: vec![one; count],
        most: vec![most; count],
        spreads: args.spread,
        under: args.reservation.map(ReservationId),
        time_ms: args.time.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
    };
    need.check().map_err(Failed::usage)?;
    Ok(need)
}

/// The clusters of these names.
fn clusters_of(names: &[String], config: &GridConfig) -> Result<BTreeSet<ClusterId>, String> {
    let known = || config.cluster.iter().map(|cluster| cluster.name.as_str());
    match names.iter().find(|name| known().all(|known| known != name.as_str())) {
        None => Ok(names.iter().map(|name| name.as_str().into()).collect()),
        Some(unknown) => {
            let meant = nearest(unknown, known());
            let meant = meant.map_or_else(String::new, |meant| format!("did you mean {meant}? "));
            let all = known().collect::<Vec<_>>().join(", ");
            Err(format!("the grid has no cluster {unknown}: {meant}it has {all}"))
        }
    }
}

/// What a job of a file needs; else the path below the job of the key that is wrong.
fn need_of(job: &JobSection, config: &GridConfig) -> Result<Need, (String, String)> {
    let (mut components, mut most) = (Vec::new(), Vec::new());
    for part in job.parts(netconf::existing(config))? {
        let clusters = clusters_of(part.clusters, config).map_err(|reason| {
            let key = part.at.map(|at| format!("component[{at}].clusters"));
            (key.unwrap_or_else(|| "clusters".to_owned()), reason)
        })?;
        let Sizes { min, start, most: greatest } = part.sizes;
        components.push(Component { min, start, clusters, files: part.files.to_vec() });
        most.push(greatest);
    }
    let placement = job.placement.unwrap_or(config.scheduling.placement);
    let (kind, spreads, under) = (job.kind, job.spreads, None);
    let time_ms = job.time.map(|time| u64::try_from(time.get().as_millis()).unwrap_or(u64::MAX));
    let need = Need { kind, placement, components, most, spreads, under, time_ms };
    need.check().map_err(|reason| ("program".to_owned(), reason))?;
    Ok(need)
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
            // What is wrong of a part may be said by the job, or by nobody.
            let own = key.rsplit('.').next().unwrap_or(key);
            let part = key.split('.').next().unwrap_or(key);
            let place = [key, own, part, "program"].iter().find_map(|key| {
                match jobs.origin(&format!("job[{i}].{key}")) {
                    Some(Origin::File { file, line, column }) => {
                        Some(format!("{file}:{line}:{column}"))
                    }
                    _ => None,
                }
            });
            let place = place.unwrap_or_else(|| file.display().to_string());
            Failed::usage(format!("{place}: {reason}"))
        };
        let program = job.program.as_str();
        let (name, body) = encode(program, &job.args.0).map_err(|failed| {
            let key = if failed.exit == Exit::NotPlaced { "program" } else { "args" };
            at(key, &failed.message)
        })?;
        let need = need_of(job, config).map_err(|(key, reason)| at(&key, &reason))?;
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
