//! A workload: clusters, programs and arriving jobs, as a file. It also defines the scheduling of
//! malleable jobs, which a live scheduler shares.
//!
//! It defines the format, independent of its use.
// Doc lines of keys are also the template's comments, where `[trace]` is a section's name, no link.
#![allow(rustdoc::broken_intra_doc_links)]

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use toml::Value;

use super::limits::check_share;
use super::problem::nearest;
use super::schema::{
    Fallback::{Absent, Elements, Examples, Is, Required, Section},
    Leaf, section,
};
use super::units::{BoundedInt, Name, Time, choice};
use super::{CONFIG_VERSION, Checker, Config};

choice! {
    /// The order in which jobs get free processors.
    ///
    /// Source: Buisson et al., *Scheduling malleable applications in multicluster systems*, CLUSTER
    /// 2007, section 4; also for [`Malleability`] and [`PlacementPolicy`].
    #[derive(Default)]
    Precedence {
        /// *Precedence to running applications* (PRA): no waiting job is placed in a cluster where
        /// a running one can grow, and no job shrinks.
        Running = "running",
        /// *Precedence to waiting applications* (PWA): running jobs shrink if the first of the
        /// queue can then be placed.
        #[default]
        Waiting = "waiting",
    }
}

choice! {
    /// The order in which waiting jobs start.
    #[derive(Default)]
    QueueDiscipline {
        /// A job starts as soon as there is a place for it, in the order of the queue.
        ///
        /// Source: Buisson et al., CLUSTER 2007, section 4.
        #[default]
        Koala = "koala",
        /// *EASY backfilling*: the first job without a place gets a reservation at its predicted
        /// start. A later job starts first only if it does not delay this start.
        ///
        /// Source: Lifka, *The ANL/IBM SP scheduling system*, JSSPP 1995.
        Easy = "easy",
        /// *Conservative backfilling*: each of the first waiting jobs gets such a reservation.
        ///
        /// Source: Mu'alem, Feitelson, *Utilization, predictability, workloads, and user runtime
        /// estimates in scheduling the IBM SP2 with backfilling*, TPDS 2001.
        Conservative = "conservative",
    }
}

choice! {
    /// The selection of jobs that grow or shrink.
    #[derive(Default)]
    Malleability {
        /// *Favour previously started malleable applications* (FPSMA): the oldest grows first, and
        /// the youngest shrinks first.
        Fpsma = "fpsma",
        /// *Equi-grow and shrink* (EGS): all jobs grow or shrink equally and at once.
        Egs = "egs",
        /// Processors go where they help most, by the efficiency that each job measures; all at
        /// once.
        #[default]
        EfficiencyAware = "efficiency-aware",
    }
}

choice! {
    /// The choice of clusters for a job.
    #[derive(Default)]
    PlacementPolicy {
        /// Each component goes where most processors are idle, to balance the rest.
        #[default]
        WorstFit = "worst-fit",
        /// Each component goes where its input files are, or can be soonest.
        CloseToFiles = "close-to-files",
        /// All components in as few clusters as possible.
        ClusterMinimisation = "cluster-minimisation",
        /// The whole job in as few clusters as possible, split into components as the idle
        /// processors require.
        FlexibleClusterMinimisation = "flexible-cluster-minimisation",
    }
}

choice! {
    /// Whether a job's number of processors can change.
    #[derive(Default)]
    JobKind {
        /// The number is given.
        Rigid = "rigid",
        /// The number is chosen at the start.
        Moldable = "moldable",
        /// The number changes while the job runs.
        #[default]
        Malleable = "malleable",
    }
}

choice! {
    /// The numbers of processors that a program can use.
    Usable {
        /// All numbers of processors.
        Any = "any",
        /// 1, 2, 4, 8 and so on.
        PowersOfTwo = "powers-of-two",
    }
}

/// Measured points of a program by rising processors, written `[[2, 600.0], [46, 240.0]]`: the
/// seconds that it takes on each number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Points(pub Vec<(u32, f64)>);

impl Leaf for Points {
    fn read(value: &Value) -> Result<Self, String> {
        let point = |value: &Value| {
            let [n, seconds] = value.as_array()?.as_slice() else { return None };
            let n = u32::try_from(n.as_integer()?).ok().filter(|n| *n > 0)?;
            Some((n, f64::read(seconds).ok().filter(|seconds| *seconds > 0.0)?))
        };
        let points = value.as_array().and_then(|all| all.iter().map(point).collect());
        let rises = |points: &Vec<(u32, f64)>| {
            !points.is_empty() && points.windows(2).all(|pair| pair[0].0 < pair[1].0)
        };
        points.filter(rises).map(Self).ok_or_else(|| {
            format!(
                "must be pairs of processors, rising, and seconds above 0, such as \
                 [[2, 600.0], [46, 240.0]], found {value}"
            )
        })
    }
}

section! {
    /// Clusters, programs and the arriving jobs.
    WorkloadConfig {
        /// Version of the file format.
        config_version: BoundedInt<1, CONFIG_VERSION> = Is("1");
        /// Name of the workload.
        name: Name = Required("\"two-programs\"");
        /// Purpose of the workload, in a sentence.
        about: String = Is("\"\"");
        /// Scheduling of the jobs.
        scheduling: SchedulingSection = Section;
        /// Costs of changes of jobs.
        costs: CostsSection = Section;
        /// A cluster. One table each; default with a [trace]: one of the trace's size.
        cluster: Vec<ProcessorsSection> = Elements(&[
            &[("name", "\"delft\""), ("processors", "68")],
            &[("name", "\"vu\""), ("processors", "85"), ("users", "20.0")],
        ]);
        /// A program. One table each.
        program: Vec<ProgramSection> = Elements(&[
            &[
                ("name", "\"nbody\""),
                ("serial", "223.6"),
                ("parallel", "752.7"),
                ("min", "2"),
                ("max", "46"),
            ],
            &[
                ("name", "\"fft\""),
                ("points", "[[2, 120.0], [32, 60.0]]"),
                ("sizes", "\"powers-of-two\""),
                ("min", "2"),
                ("max", "32"),
            ],
        ]);
        /// A job, or several equal ones. One table each.
        job: Vec<ArrivalSection> = Elements(&[
            &[("count", "300"), ("interval", "\"30s\""), ("malleable", "0.5")],
        ]);
        /// Jobs of a trace, instead of programs and jobs.
        trace: TraceSection = Section;
    }

    /// The scheduling of jobs on the processors of a grid.
    SchedulingSection {
        /// Which jobs get free processors first: "running" jobs that can grow, without shrinking
        /// others; or "waiting" jobs, for which others shrink.
        precedence: Precedence = Is("\"waiting\"");
        /// Which waiting jobs may overtake others: "koala" lets each job start that has a place;
        /// "easy" keeps a start in the future for the first job without a place, and "conservative"
        /// for each of the first 100. Both predict the ends of jobs by their options --expect or
        /// --time, or by earlier runs of the same program.
        queue: QueueDiscipline = Is("\"koala\"");
        /// Time in which the past use of a user or project loses half of its weight. With it, jobs
        /// of those who used less, relative to their shares, start first; default: the order of
        /// submission.
        fair_share_half_life: Option<Time> = Absent("\"168h\"");
        /// Shares, priorities and limits of users. Others have a share of 1 and no limits.
        user: Vec<ShareSection> = Examples(&[&[]]);
        /// Shares, priorities and limits of projects (option --project of a job).
        project: Vec<ShareSection> = Examples(&[&[]]);
        /// Which jobs grow and shrink: "fpsma" favours those that started first, "egs" treats all
        /// equally, "efficiency-aware" gives processors where they help most.
        policy: Malleability = Is("\"efficiency-aware\"");
        /// Default choice of clusters: "worst-fit", "close-to-files", "cluster-minimisation" or
        /// "flexible-cluster-minimisation".
        placement: PlacementPolicy = Is("\"worst-fit\"");
        /// Interval at which each cluster is asked for its local users' processors.
        poll: Time = Is("\"15s\"");
        /// Interval of scans of the queue without an event.
        scan_interval: Time = Is("\"15s\""), alias "scan_every";
        /// Number of failed scans after which, with one more, a submission fails; default: never.
        tries: Option<BoundedInt<1, 1_000_000_000>> = Absent("1000");
        /// Processors of each cluster that growth leaves to local users.
        reserve: BoundedInt<0, 1_000_000_000> = Is("0");
        /// Processors in use in all clusters above which no job grows; default: no limit.
        cap: Option<BoundedInt<1, 1_000_000_000>> = Absent("110");
        /// Efficiency-aware: minimum gain of an additional processor, as a share of a single one's.
        gain_min: f64 = Is("0.03"), alias "least_gain";
        /// Efficiency-aware: maximum processors of a growing job, as a multiple of an equal share.
        shares_max: f64 = Is("2.0"), alias "most_shares";
        /// Time limit for a job's answer to an offer; later it gets nothing.
        answer_timeout: Time = Is("\"10s\""), alias "answer_within";
        /// Time for which a job that wants all nodes waits for those that are starting or
        /// unreachable. Then it starts with those present, and grows when the others come.
        start_wait: Time = Is("\"5s\"");
        /// Time limit for obtaining processors. Later ones are given up, and the job grows by the
        /// others.
        hold_timeout: Time = Is("\"60s\""), alias "hold_within";
        /// Time limit for a job to compute on new processors, after which it loses them.
        recruit_timeout: Time = Is("\"2m\""), alias "recruit_within";
        /// Time limit for a shrinking job, after which processors are taken from it.
        release_timeout: Time = Is("\"60s\""), alias "release_within";
        /// Time before the expected end of a job's transfers at which its processors are claimed.
        claim_ahead: Time = Is("\"5s\"");
    }

    /// The share of a user or project, with its limits.
    ShareSection {
        /// Name of the user or project.
        name: Name = Required("\"alice\"");
        /// Share of the grid, relative to those of others.
        share: f64 = Is("1.0");
        /// Jobs with a higher priority start first, regardless of past use.
        priority: BoundedInt<0, 1_000_000> = Is("0");
        /// Maximum number of processors of all running jobs at their starts.
        processors_max: Option<BoundedInt<1, 1_000_000_000>> = Absent("64");
        /// Maximum number of running jobs.
        jobs_max: Option<BoundedInt<1, 1_000_000_000>> = Absent("20");
    }

    /// The costs of changes of jobs in a simulation.
    CostsSection {
        /// Time from the request for a processor to a stub that holds it.
        hold: Time = Is("\"8s\"");
        /// Time from the order to release a processor until it is free.
        release: Time = Is("\"100ms\"");
        /// Maximum time until a job reaches a point of change.
        point: Time = Is("\"1s\"");
        /// Time for which a job does not compute during a change.
        pause: Time = Is("\"4s\"");
    }

    /// A cluster of a workload.
    ProcessorsSection {
        /// Name of the cluster.
        name: Name = Required("\"delft\"");
        /// Number of processors.
        processors: BoundedInt<1, 10_000_000> = Required("68");
        /// Processors that growth leaves to local users; default: those of [scheduling].
        reserve: Option<BoundedInt<0, 10_000_000>> = Absent("4");
        /// Processors in use above which no job grows there.
        cap: Option<BoundedInt<1, 10_000_000>> = Absent("60");
        /// Mean number of processors used by local users, outside of this scheduler.
        users: f64 = Is("0.0");
        /// Maximum number of processors of one of their requests; at most those of the cluster.
        users_max: BoundedInt<1, 10_000_000> = Is("8"), alias "users_most";
        /// Mean time of their requests.
        users_hold: Time = Is("\"5m\"");
    }

    /// A program and its running time.
    ///
    /// The time on `n` processors is `serial + parallel / n`, or interpolates `points`, or is
    /// Downey's model of `alone`, `parallelism` and `sigma`.
    ProgramSection {
        /// Name of the program.
        name: Name = Required("\"nbody\"");
        /// Seconds of the serial part.
        serial: Option<f64> = Absent("223.6");
        /// Seconds of the parallel part on one processor.
        parallel: Option<f64> = Absent("752.7");
        /// Measured pairs of processors and seconds.
        points: Option<Points> = Absent("[[2, 600.0], [46, 240.0]]");
        /// Seconds on one processor.
        alone: Option<f64> = Absent("1000.0");
        /// Average parallelism.
        parallelism: Option<f64> = Absent("24.0");
        /// Coefficient of variance of the parallelism: 0 is a perfect speed-up.
        sigma: Option<f64> = Absent("0.5");
        /// Valid numbers of processors: "any", or "powers-of-two".
        sizes: Usable = Is("\"any\"");
        /// Minimum number of processors.
        min: BoundedInt<1, 10_000_000> = Is("1");
        /// Maximum number of processors.
        max: BoundedInt<1, 10_000_000> = Required("46");
    }

    /// Jobs that arrive together or in turn.
    ArrivalSection {
        /// Program; default: a random one for each job.
        program: Option<Name> = Absent("\"nbody\"");
        /// Number of jobs.
        count: BoundedInt<1, 10_000_000> = Is("1");
        /// Arrival time of the first job.
        at: Time = Is("\"0s\"");
        /// Time between two arrivals.
        interval: Time = Is("\"2m\""), alias "every";
        /// Whether that time is the mean of exponentially distributed ones.
        random: bool = Is("false");
        /// Whether their number of processors can change: "rigid", "moldable" or "malleable".
        kind: JobKind = Is("\"malleable\"");
        /// Share of the jobs, chosen at random, that are of this kind; the others are rigid.
        malleable: f64 = Is("1.0");
        /// Minimum number of processors, and the number of a rigid job; default: the program's.
        min: Option<BoundedInt<1, 10_000_000>> = Absent("2");
        /// Maximum number of processors at the start; default: the minimum, and for moldable jobs
        /// the maximum.
        start: Option<BoundedInt<1, 10_000_000>> = Absent("2");
        /// Maximum number of processors; default: the program's.
        max: Option<BoundedInt<1, 10_000_000>> = Absent("46");
        /// Factor of the program's running time.
        scale: f64 = Is("1.0");
    }

    /// Jobs of a trace in the Standard Workload Format.
    ///
    /// Malleable ones follow Downey's model of speed-up. Its parameters are drawn such that on the
    /// trace's processors they take the trace's time.
    TraceSection {
        /// Trace file, plain or compressed with gzip; relative to this file.
        file: Option<PathBuf> = Absent("\"KTH-SP2-1996-2.1-cln.swf.gz\"");
        /// Number of initial jobs to skip.
        skip: BoundedInt<0, 100_000_000> = Is("0");
        /// Maximum number of jobs.
        jobs: Option<BoundedInt<1, 100_000_000>> = Absent("1000");
        /// Share of the jobs, chosen at random, that are malleable; the others are rigid.
        malleable: f64 = Is("0.0");
        /// Factor of the times between arrivals; below 1 the load is higher.
        stretch: f64 = Is("1.0");
    }
}

impl WorkloadConfig {
    /// A commented example with every key. It loads without error.
    pub fn template() -> String {
        super::template::<Self>(
            "# A workload of many jobs. Every key is here with its default; what is commented out \
             is not set by default.\n\
             # Durations are \"150ms\". Play it with: springtide sim workload FILE\n\n",
        )
    }

    fn check_clusters(&self, checker: &mut Checker<'_>) {
        let mut names = BTreeMap::new();
        for (i, cluster) in self.cluster.iter().enumerate() {
            let path = |key: &str| format!("cluster[{i}].{key}");
            if let Some(first) = names.insert(cluster.name.as_str(), i) {
                let first = format!("cluster[{first}].name");
                checker.tell_taken(&path("name"), &first, cluster.name.as_str());
            }
            let size = cluster.processors.get();
            if cluster.reserve.is_some_and(|reserve| reserve.get() > size) {
                let reason = format!("cluster \"{}\" has {size} processors", cluster.name);
                checker.report(&path("reserve"), reason);
            }
            if !(0.0..=f64::from(size)).contains(&cluster.users) {
                let reason =
                    format!("must lie within 0 and its {size} processors, found {}", cluster.users);
                checker.report(&path("users"), reason);
            }
            if cluster.users > 0.0 && cluster.users_hold.get().is_zero() {
                checker.report(&path("users_hold"), "who uses processors has them for some time");
            }
        }
    }

    fn check_programs(&self, checker: &mut Checker<'_>) {
        let mut names = BTreeMap::new();
        for (i, program) in self.program.iter().enumerate() {
            let path = |key: &str| format!("program[{i}].{key}");
            if let Some(first) = names.insert(program.name.as_str(), i) {
                let first = checker.describe_place(&format!("program[{first}].name"));
                let reason = format!(
                    "there are two programs named \"{}\"; the other is {first}",
                    program.name
                );
                checker.report(&path("name"), reason);
            }
            if let Err((key, reason)) = program.curve() {
                checker.report(&path(key), reason);
            }
            if program.min > program.max {
                let (min, max) = (program.min.get(), program.max.get());
                checker.report(&path("min"), format!("min {min} is more than max {max}"));
            }
        }
    }

    fn check_jobs(&self, checker: &mut Checker<'_>) {
        for (i, job) in self.job.iter().enumerate() {
            let path = |key: &str| format!("job[{i}].{key}");
            check_share(Some(job.malleable), &path("malleable"), checker);
            above_zero(job.scale, &path("scale"), checker);
            let of = |name: &Name| self.program.iter().find(|program| program.name == *name);
            let programs: Vec<&ProgramSection> = match &job.program {
                None => self.program.iter().collect(),
                Some(name) => of(name).into_iter().collect(),
            };
            if let (Some(name), []) = (&job.program, programs.as_slice()) {
                let all = self.program.iter().map(|program| program.name.as_str());
                let reason = format!("there is no program named \"{name}\"");
                checker.report_with_suggestion(
                    &path("program"),
                    reason,
                    nearest(name.as_str(), all),
                );
            }
            for program in programs {
                if let Err((key, reason)) = job.sizes(program) {
                    checker.report(&path(key), reason);
                    break;
                }
            }
        }
        if !self.job.is_empty() && self.program.is_empty() {
            checker.report("job", "there is no program that it could run: add a [[program]]");
        }
    }
}

fn above_zero(value: f64, path: &str, checker: &mut Checker<'_>) {
    if value <= 0.0 {
        checker.report(path, format!("must be above 0, found {value}"));
    }
}

/// The running time of a program by processors.
#[derive(Clone, Debug, PartialEq)]
pub enum ProgramCurve {
    /// `serial + parallel / n` seconds.
    Fit(f64, f64),
    /// The measured points.
    Points(Points),
    /// Seconds on one processor, average parallelism, and its coefficient of variance.
    Downey(f64, f64, f64),
}

impl ProgramSection {
    /// The running time in one of the three forms.
    ///
    /// # Errors
    /// None or several of them are given: the key and a description.
    pub fn curve(&self) -> Result<ProgramCurve, (&'static str, String)> {
        let Self { serial, parallel, points, alone, parallelism, sigma, .. } = self;
        let forms = [
            ("serial", serial.is_some() || parallel.is_some()),
            ("points", points.is_some()),
            ("alone", alone.is_some() || parallelism.is_some() || sigma.is_some()),
        ];
        let given: Vec<_> = forms.iter().filter(|(_, given)| *given).map(|(key, _)| *key).collect();
        let curve = match given[..] {
            [] => {
                let reason = "say how long it takes: `serial` and `parallel`, or `points`, or \
                              `alone`, `parallelism` and `sigma`";
                return Err(("name", reason.to_owned()));
            }
            [_, second, ..] => {
                let reason =
                    format!("how long it takes is said twice: keep `{}` or `{second}`", given[0]);
                return Err((second, reason));
            }
            ["points"] => points.clone().map(ProgramCurve::Points),
            ["serial"] => {
                let (serial, parallel) = (serial.unwrap_or(0.0), parallel.unwrap_or(0.0));
                if serial < 0.0 || parallel < 0.0 || serial + parallel <= 0.0 {
                    let key = if self.serial.is_some() { "serial" } else { "parallel" };
                    return Err((key, format!("{serial} s + {parallel} s / n is no time")));
                }
                Some(ProgramCurve::Fit(serial, parallel))
            }
            [_] => {
                let (parallelism, sigma) = (parallelism.unwrap_or(1.0), sigma.unwrap_or(0.0));
                if parallelism < 1.0 {
                    return Err((
                        "parallelism",
                        format!("must be at least 1, found {parallelism}"),
                    ));
                }
                if sigma < 0.0 {
                    return Err(("sigma", format!("must be at least 0, found {sigma}")));
                }
                alone.map(|alone| ProgramCurve::Downey(alone, parallelism, sigma))
            }
        };
        match curve {
            None => Err((
                "name",
                "Downey's model needs `alone`, the seconds on one processor".to_owned(),
            )),
            Some(ProgramCurve::Downey(alone, ..)) if alone <= 0.0 => {
                Err(("alone", format!("must be above 0, found {alone}")))
            }
            Some(curve) => Ok(curve),
        }
    }
}

impl ArrivalSection {
    /// The minimum processors of a job of this program, the maximum at the start, and the maximum.
    ///
    /// # Errors
    /// They are inconsistent: the key and a description.
    pub fn sizes(&self, program: &ProgramSection) -> Result<[u32; 3], (&'static str, String)> {
        let given = |size: Option<BoundedInt<1, 10_000_000>>| size.map(BoundedInt::get);
        let min = given(self.min).unwrap_or(program.min.get());
        let max = given(self.max).unwrap_or(program.max.get());
        let name = &program.name;
        if min < program.min.get() {
            let least = program.min.get();
            return Err((
                "min",
                format!("{min} is less than the {least} that program \"{name}\" needs"),
            ));
        }
        if max > program.max.get() {
            let most = program.max.get();
            return Err((
                "max",
                format!("{max} is more than the {most} that program \"{name}\" can use"),
            ));
        }
        if min > max {
            let key = if self.min.is_some() { "min" } else { "max" };
            return Err((
                key,
                format!("the fewest processors, {min}, are more than the most, {max}"),
            ));
        }
        if let Some(start) = given(self.start).filter(|start| !(min..=max).contains(start)) {
            return Err(("start", format!("must lie within {min} and {max}, found {start}")));
        }
        let start = match self.kind {
            JobKind::Moldable => max,
            JobKind::Rigid | JobKind::Malleable => min,
        };
        Ok([min, given(self.start).unwrap_or(start), max])
    }
}

impl SchedulingSection {
    /// The checks of this section in any config; `path` is that of the section.
    pub(super) fn check(&self, path: &str, checker: &mut Checker<'_>) {
        check_share(Some(self.gain_min), &format!("{path}.gain_min"), checker);
        if self.shares_max < 1.0 {
            let reason = format!("must be at least 1, found {}", self.shares_max);
            checker.report(&format!("{path}.shares_max"), reason);
        }
        if self.fair_share_half_life.is_some_and(|time| time.get().is_zero()) {
            checker.report(&format!("{path}.fair_share_half_life"), "must be longer than 0s");
        }
        for (list, sections) in [("user", &self.user), ("project", &self.project)] {
            let mut names = std::collections::BTreeMap::new();
            for (i, section) in sections.iter().enumerate() {
                let at = format!("{path}.{list}[{i}]");
                let name = format!("{at}.name");
                if let Some(first) = names.insert(section.name.as_str(), name.clone()) {
                    checker.tell_taken(&name, &first, section.name.as_str());
                }
                above_zero(section.share, &format!("{at}.share"), checker);
            }
        }
        for (key, time) in [("poll", self.poll), ("scan_interval", self.scan_interval)] {
            if time.get().is_zero() {
                checker.report(&format!("{path}.{key}"), "must be longer than 0s");
            }
        }
    }
}

impl Config for WorkloadConfig {
    const WHAT: &'static str = "workload";

    fn check(&self, checker: &mut Checker<'_>) {
        self.scheduling.check("scheduling", checker);
        self.check_clusters(checker);
        self.check_programs(checker);
        self.check_jobs(checker);
        check_share(Some(self.trace.malleable), "trace.malleable", checker);
        above_zero(self.trace.stretch, "trace.stretch", checker);
        match (&self.trace.file, self.job.is_empty()) {
            (Some(_), false) => {
                checker.report("trace.file", "the jobs are the trace's: leave [[job]] out, or this")
            }
            (None, true) => {
                checker.report("job", "there are no jobs: add a [[job]], or a `file` to [trace]")
            }
            _ => {}
        }
        if self.trace.file.is_none() && self.cluster.is_empty() {
            checker.report("cluster", "there is nothing to run jobs on: add a [[cluster]]");
        }
    }
}
