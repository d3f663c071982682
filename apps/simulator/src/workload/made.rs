//! Draws workloads from their files ([`WorkloadConfig`]) and a seed.
//!
//! This module does not depend on the simulation.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use springtide_actors::scheduler::manager::{Kind, ManagerSettings};
use springtide_runtime::config::{
    ArrivalSection, JobKind, ProgramCurve, ProgramSection, TraceSection, Usable, WorkloadConfig,
};
use springtide_runtime::id::ClusterId;

use super::dice::RandomSource;
use super::program::{Curve, WorkloadProgram, WorkloadSizes};
use super::swf::{self, Occurrences, SwfError, SwfJob, Trace, TraceWarning};
use super::{Arrival, Costs, Users, Workload, WorkloadCluster};

/// The name of a trace's cluster if the file names none.
const DEFAULT_CLUSTER: &str = "trace";
/// The largest ratio of a malleable job's average parallelism to its size in the trace. Its minimum
/// is its size divided by this ratio.
const BREADTH: f64 = 4.0;
/// The largest coefficient of variance of a malleable job's parallelism.
const SIGMA_MAX: f64 = 2.0;
/// The shortest duration of a job, in seconds: traces have jobs of 0 s.
const LEAST_SECONDS: f64 = 1e-3;

/// Failure to make a workload.
#[derive(Debug, thiserror::Error)]
pub enum MakeError {
    /// The trace cannot be read.
    #[error(transparent)]
    Trace(#[from] SwfError),
    /// No job of the trace is left.
    #[error("{}: it has {jobs} jobs, and `skip` leaves {skip} of them out", file.display())]
    Skipped {
        /// The path of the trace.
        file: PathBuf,
        /// The number of its jobs.
        jobs: usize,
        /// The number of skipped jobs.
        skip: u32,
    },
    /// A mistake of the file that its check should have found.
    #[error("{0}")]
    Unchecked(String),
}

/// A workload, with the warnings about its trace.
#[derive(Clone, Debug)]
pub struct PreparedWorkload {
    /// The workload to simulate.
    pub workload: Workload,
    /// The warnings about the trace's lines.
    pub warnings: Vec<(TraceWarning, Occurrences)>,
    /// The number of jobs that fail, for they are larger than any cluster.
    pub too_large: usize,
}

/// Makes a workload; a relative path of the trace starts at `base`.
///
/// # Errors
/// The trace cannot be read, or no job of it is left.
pub fn make(
    config: &WorkloadConfig,
    base: &Path,
    seed: u64,
) -> Result<PreparedWorkload, MakeError> {
    match &config.trace.file {
        Some(file) => {
            let file = base.join(file);
            make_of(config, &swf::read(&file)?, &file, seed)
        }
        None => {
            let sites = config.cluster.iter().map(site).collect();
            let jobs = jobs(config, seed)?;
            Ok(made(config, sites, jobs, Vec::new(), seed))
        }
    }
}

/// Makes a workload from a trace that the caller has read from `file`.
///
/// # Errors
/// No job of the trace is left.
pub fn make_of(
    config: &WorkloadConfig,
    trace: &Trace,
    file: &Path,
    seed: u64,
) -> Result<PreparedWorkload, MakeError> {
    let mut sites: Vec<WorkloadCluster> = config.cluster.iter().map(site).collect();
    if sites.is_empty() {
        sites.push(WorkloadCluster::new(DEFAULT_CLUSTER, trace.processors()));
    }
    let largest = sites.iter().map(|site| site.size).max().unwrap_or(0);
    let section = &config.trace;
    let skip = section.skip.get();
    let most = section.jobs.map_or(usize::MAX, |jobs| jobs.get() as usize);
    let kept = trace.jobs.get(skip as usize..).unwrap_or_default();
    let kept = &kept[..kept.len().min(most)];
    let Some(first) = kept.first() else {
        let (file, jobs) = (file.to_owned(), trace.jobs.len());
        return Err(MakeError::Skipped { file, jobs, skip });
    };
    let mut dice = RandomSource::new(seed, 0);
    let mut programs = Programs::default();
    let mut arrival = |job: &SwfJob| {
        let drawn = [dice.unit(), dice.unit(), dice.unit()];
        let at = (job.submit - first.submit).mul_f64(section.stretch);
        traced(job, at, largest, section, drawn, &mut programs)
    };
    let jobs = kept.iter().map(&mut arrival).collect();
    let odd = trace.warnings.iter().map(|(what, met)| (*what, *met)).collect();
    Ok(made(config, sites, jobs, odd, seed))
}

fn made(
    config: &WorkloadConfig,
    sites: Vec<WorkloadCluster>,
    jobs: Vec<Arrival>,
    odd: Vec<(TraceWarning, Occurrences)>,
    seed: u64,
) -> PreparedWorkload {
    let largest = sites.iter().map(|site| site.size).max().unwrap_or(0);
    let too_large = jobs.iter().filter(|job| job.min > largest).count();
    let mut settings = ManagerSettings::from(&config.scheduling);
    for cluster in &config.cluster {
        let name = ClusterId::from(cluster.name.as_str());
        if let Some(reserve) = cluster.reserve {
            settings.reserves.insert(name.clone(), reserve.get());
        }
        if let Some(cap) = cluster.cap {
            settings.caps.insert(name, cap.get());
        }
    }
    let costs = Costs {
        hold: config.costs.hold.get(),
        release: config.costs.release.get(),
        point: config.costs.point.get(),
        pause: config.costs.pause.get(),
    };
    let placement = config.scheduling.placement;
    let workload = Workload { sites, jobs, placement, settings, costs, seed };
    PreparedWorkload { workload, warnings: odd, too_large }
}

fn site(section: &springtide_runtime::config::ProcessorsSection) -> WorkloadCluster {
    let users = Users {
        mean: section.users,
        most: section.users_max.get().min(section.processors.get()),
        hold: section.users_hold.get(),
    };
    WorkloadCluster {
        users,
        ..WorkloadCluster::new(section.name.as_str(), section.processors.get())
    }
}

fn program(section: &ProgramSection) -> Result<WorkloadProgram, MakeError> {
    let curve = section.curve().map_err(|(_, reason)| MakeError::Unchecked(reason))?;
    let curve = match curve {
        ProgramCurve::Fit(serial, parallel) => Curve::Fit { serial, parallel },
        ProgramCurve::Points(points) => Curve::Points(points.0),
        ProgramCurve::Downey(alone, parallelism, sigma) => {
            Curve::Downey { alone, parallelism, sigma }
        }
    };
    let sizes = match section.sizes {
        Usable::Any => WorkloadSizes::Any,
        Usable::PowersOfTwo => WorkloadSizes::PowersOfTwo,
    };
    let (name, min, max) = (section.name.to_string(), section.min.get(), section.max.get());
    Ok(WorkloadProgram { name, curve, sizes, min, max })
}

/// The jobs of all sections, in order of their arrival.
///
/// A seed draws the same programs for every share of malleable jobs, so that such workloads differ
/// in nothing else.
fn jobs(config: &WorkloadConfig, seed: u64) -> Result<Vec<Arrival>, MakeError> {
    let programs = config.program.iter().map(|section| Ok((section, Arc::new(program(section)?))));
    let programs = programs.collect::<Result<Vec<_>, MakeError>>()?;
    let mut dice = RandomSource::new(seed, 0);
    let mut jobs = Vec::new();
    for section in &config.job {
        let of = |name| programs.iter().filter(move |(program, _)| program.name == name);
        let choice: Vec<_> = match &section.program {
            Some(name) => of(name.clone()).collect(),
            None => programs.iter().collect(),
        };
        let mut at = section.at.get();
        for _ in 0..section.count.get() {
            let drawn = (dice.unit() * choice.len() as f64) as usize;
            let Some((program, shared)) = choice.get(drawn) else {
                return Err(MakeError::Unchecked("a job has no program".to_owned()));
            };
            let is_malleable = dice.unit() < section.malleable;
            jobs.push(arrival(section, program, shared, at, is_malleable)?);
            let interval = section.interval.get();
            at += if section.random { interval.mul_f64(dice.exponential(1.0)) } else { interval };
        }
    }
    jobs.sort_by_key(|job| job.at);
    Ok(jobs)
}

fn arrival(
    section: &ArrivalSection,
    program: &ProgramSection,
    shared: &Arc<WorkloadProgram>,
    at: Duration,
    is_malleable: bool,
) -> Result<Arrival, MakeError> {
    let sizes = section.sizes(program).map_err(|(_, reason)| MakeError::Unchecked(reason))?;
    let kind = match section.kind {
        JobKind::Moldable if is_malleable => Kind::Moldable,
        JobKind::Malleable if is_malleable => Kind::Malleable,
        _ => Kind::Rigid,
    };
    let [min, start, max] = sizes;
    let (start, max) = if kind == Kind::Rigid { (min, min) } else { (start, max) };
    let program = shared.clone();
    let scale = section.scale;
    Ok(Arrival { at, kind, min, start, max, program, scale, expected: None, user: None })
}

/// Programs of a trace's rigid jobs, which differ in the duration alone.
#[derive(Default)]
struct Programs(std::collections::BTreeMap<u32, Arc<WorkloadProgram>>);

impl Programs {
    /// A program that takes a second on exactly this number of processors.
    fn rigid(&mut self, size: u32) -> Arc<WorkloadProgram> {
        let made = || {
            let curve = Curve::Points(vec![(size, 1.0)]);
            let name = "trace".to_owned();
            Arc::new(WorkloadProgram {
                name,
                curve,
                sizes: WorkloadSizes::Any,
                min: size,
                max: size,
            })
        };
        self.0.entry(size).or_insert_with(made).clone()
    }
}

/// A job of a trace.
///
/// A malleable one is drawn after Downey (1997): an average parallelism, uniform in its logarithm,
/// and a coefficient of variance. Its work takes the trace's time on the trace's processors.
fn traced(
    job: &SwfJob,
    at: Duration,
    largest: u32,
    section: &TraceSection,
    drawn: [f64; 3],
    programs: &mut Programs,
) -> Arrival {
    let [kind, breadth, sigma] = drawn;
    let (size, seconds) = (job.size, job.run.as_secs_f64().max(LEAST_SECONDS));
    // Traces without requested times, for example of a model, have users who know the run times.
    let expected = Some(job.requested.unwrap_or(job.run));
    let user = job.user.map(|user| format!("user-{user}"));
    if kind >= section.malleable {
        let program = programs.rigid(size);
        let (kind, scale) = (Kind::Rigid, seconds);
        let (min, start, max) = (size, size, size);
        return Arrival { at, kind, min, start, max, program, scale, expected, user };
    }
    let parallelism = f64::from(size) * BREADTH.powf(breadth);
    let curve = |alone| Curve::Downey { alone, parallelism, sigma: sigma * SIGMA_MAX };
    let alone = seconds * curve(1.0).speedup(size);
    let min = (f64::from(size) / BREADTH).ceil() as u32;
    let max = (parallelism.ceil() as u32).min(largest).max(size);
    let program = WorkloadProgram {
        name: "trace".to_owned(),
        curve: curve(alone),
        sizes: WorkloadSizes::Any,
        min,
        max,
    };
    let program = Arc::new(program);
    let (kind, start, scale) = (Kind::Malleable, size, 1.0);
    Arrival { at, kind, min, start, max, program, scale, expected, user }
}
