//! `sim atr`: the tables and figures of the paper on adaptive control of ATR, the asynchronous
//! trust-region method.
//!
//! - `experiment`: simulated runs on workers of the paper's speeds: Tables 3 to 5, Figure 7, and
//!   the forecasts' errors by the noise of speeds.
//! - `profile`: measured times of runs with one worker on this machine: Table 2, Figures 3 and 6.
//! - `round_trip`: messages over simulated links: Figure 8.
//! - `paper`: the paper's own numbers.
//! - `report`: texts and figures.
//!
//! Source: Buaklee, Tracy, Vernon, Wright: Near-optimal adaptive control of a large grid
//! application (ICS 2002).

mod experiment;
mod paper;
mod profile;
mod report;
mod round_trip;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum, ValueHint};
use serde_json::json;
use springtide_cli::exit::Failed;
use springtide_cli::outdir::Artefacts;
use springtide_runtime::net::LinkProfile;
use springtide_simulator::on_all_cores;
use springtide_stochastic::model::TwoStage;
use springtide_stochastic::smps::{self, Files};

use self::experiment::{
    Distribution, Experiment, Laboratory, SimulatedTimes, WorkerLocation, spread,
};
use self::paper::{TABLE3, TABLE4, decision_s, table4_tasks};
use self::profile::{Profile, ProfileRun, group_times};
use self::report::ReportSection;

/// The arguments of `sim atr`.
#[derive(Args, Clone, Debug)]
pub struct AtrArgs {
    /// The directory with the programs ssn, 20term and storm, each in a directory of its name
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    programs: PathBuf,
    /// Run these parts alone, separated by commas [default: all]
    #[arg(long, value_name = "PART", value_delimiter = ',', value_enum)]
    only: Vec<Exhibit>,
    /// Fraction of the paper's scenarios to draw; each one's simulated time is divided by it
    #[arg(long, value_name = "S", default_value_t = 0.1, value_parser = scale)]
    scale: f64,
    /// Coefficient of variation of a worker's speed, which is drawn again every 10 s of simulated
    /// time
    #[arg(long, value_name = "CV", default_value_t = 0.05, value_parser = noise)]
    noise: f64,
    /// Random seed of the scenarios and speeds
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
    /// Directory for the figures (SVG) and the result (JSON)
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    out: Option<PathBuf>,
}

/// A table or figure of the paper, or `noise`: the forecasts' errors by the noise of speeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Exhibit {
    Table2,
    Table3,
    Table4,
    Table5,
    Figure3,
    Figure6,
    Figure7,
    Figure8,
    Noise,
}

impl Exhibit {
    fn name(self) -> String {
        self.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned())
    }
}

fn scale(text: &str) -> Result<f64, String> {
    let scale = text.parse::<f64>().ok().filter(|scale| (0.01..=1.0).contains(scale));
    scale.ok_or_else(|| "give a number from 0.01 to 1".to_owned())
}

fn noise(text: &str) -> Result<f64, String> {
    let noise = text.parse::<f64>().ok().filter(|noise| (0.0..=1.0).contains(noise));
    noise.ok_or_else(|| "give a number from 0 to 1".to_owned())
}

/// Runs the parts, and prints their tables.
///
/// # Errors
/// A program is missing or wrong, a run does not end, or a file cannot be written.
pub fn atr(args: &AtrArgs) -> Result<(), Failed> {
    let wanted = |part: &Exhibit| args.only.is_empty() || args.only.contains(part);
    let parts: Vec<Exhibit> = Exhibit::value_variants().iter().copied().filter(wanted).collect();
    let needs_all = parts.iter().any(|part| part.needs_all_programs());
    let names: &[&'static str] = if needs_all { &["ssn", "20term", "storm"] } else { &["ssn"] };
    let mut programs = HashMap::new();
    for name in names {
        programs.insert(*name, Arc::new(program(&args.programs, name)?));
    }
    let laboratory = Laboratory::new(programs, args.scale);
    let mut result = json!({ "scale": args.scale, "seed": args.seed, "noise": args.noise });
    let mut text = String::new();
    let mut artefacts = Artefacts::of(args.out.as_deref());
    for part in parts {
        let section = part.run(args, &laboratory)?;
        text.push_str(&section.text);
        text.push('\n');
        result[part.name()] = section.value;
        for (name, svg) in section.figures {
            artefacts.keep(&format!("{name}.svg"), svg);
        }
    }
    artefacts.keep("result.json", format!("{result:#}\n"));
    artefacts.print(args.json, result, || text)
}

fn program(dir: &Path, name: &str) -> Result<TwoStage, Failed> {
    let files = Files::find(&dir.join(name)).map_err(Failed::usage)?;
    Ok(smps::read(&files).map_err(Failed::usage)?.0)
}

impl Exhibit {
    fn needs_all_programs(self) -> bool {
        matches!(self, Self::Table2 | Self::Table3 | Self::Figure8)
    }

    fn run(self, args: &AtrArgs, laboratory: &Laboratory) -> Result<ReportSection, Failed> {
        match self {
            Self::Table2 => table2(args, laboratory),
            Self::Table3 => table3(args, laboratory),
            Self::Table4 => table4(args, laboratory),
            Self::Table5 => table5(args, laboratory),
            Self::Figure3 => figure3(args, laboratory),
            Self::Figure6 => figure6(args, laboratory),
            Self::Figure7 => figure7(args, laboratory),
            Self::Figure8 => figure8(args, laboratory),
            Self::Noise => noise_of_speeds(args, laboratory),
        }
    }
}

// --- simulated runs ---

fn measure_all(
    laboratory: &Laboratory,
    experiments: &[Experiment],
) -> Result<Vec<SimulatedTimes>, Failed> {
    on_all_cores(experiments, |experiment| laboratory.measure(experiment)).into_iter().collect()
}

/// Seconds of a worker for a fiftieth of 10,000 scenarios of ssn, in Table 3.
const SHARE_S: f64 = 6.44;

/// ssn with 10,000 scenarios on 50 workers of one speed, as in Table 3.
fn ssn(args: &AtrArgs, tasks: u32, distribution: Distribution) -> Experiment {
    Experiment {
        program: "ssn",
        scenarios: 10_000,
        tasks,
        shares_s: vec![SHARE_S; 50],
        shares: 50,
        decision_s: decision_s(tasks),
        cold_start: false,
        distribution,
        site: WorkerLocation::Pool,
        varies: true,
        noise: args.noise,
        seed: args.seed,
    }
}

fn table3(args: &AtrArgs, laboratory: &Laboratory) -> Result<ReportSection, Failed> {
    let experiments = TABLE3.iter().flat_map(|row| {
        let experiment = |distribution| Experiment {
            program: row.program,
            scenarios: row.scenarios,
            shares_s: vec![row.group_s; row.workers as usize],
            shares: row.groups,
            decision_s: row.decision_s(),
            // The counts of the other rows fit a start near the optimum.
            cold_start: row.program == "20term" || row.scenarios == 5000,
            site: row.site,
            ..ssn(args, row.tasks, distribution)
        };
        [Distribution::Groups(row.groups), Distribution::Blocks].map(experiment)
    });
    let measured = measure_all(laboratory, &experiments.collect::<Vec<_>>())?;
    let pairs = measured.chunks_exact(2).map(|pair| [pair[0], pair[1]]);
    Ok(report::table3(&pairs.collect::<Vec<_>>()))
}

/// The tasks of Table 4 that the paper recommends for workers of unequal speeds.
const RECOMMENDED_TASKS: [u32; 2] = [400, 800];

fn table4(args: &AtrArgs, laboratory: &Laboratory) -> Result<ReportSection, Failed> {
    let experiments = TABLE4.iter().flat_map(|row| {
        let tasks = table4_tasks(row.workers);
        let [some, many] = RECOMMENDED_TASKS;
        let runs = [
            (tasks, Distribution::Equal),
            (tasks, Distribution::Whole),
            (some, Distribution::Whole),
            (many, Distribution::Whole),
            (some, Distribution::Blocks),
        ];
        runs.map(|(tasks, distribution)| Experiment {
            shares_s: spread(row.share_s, row.workers),
            shares: row.workers,
            ..ssn(args, tasks, distribution)
        })
    });
    let measured = measure_all(laboratory, &experiments.collect::<Vec<_>>())?;
    let rows = measured.chunks_exact(5).filter_map(|row| <[SimulatedTimes; 5]>::try_from(row).ok());
    Ok(report::table4(&rows.collect::<Vec<_>>()))
}

/// The ends of the ranges that the rules of thumb give for 50 workers: iterates at once, and
/// groups.
const RULES_OF_THUMB: [(usize, u32); 4] = [(3, 25), (3, 50), (6, 25), (6, 50)];

fn table5(args: &AtrArgs, laboratory: &Laboratory) -> Result<ReportSection, Failed> {
    // Four times the scenarios of Table 4 take four times as long.
    let (mean, least, greatest) = TABLE4[0].share_s;
    let unequal = spread((4.0 * mean, 4.0 * least, 4.0 * greatest), 50);
    let row = |scenarios, tasks| {
        let mut rows = TABLE3.iter();
        rows.find(|row| row.scenarios == scenarios && row.tasks == tasks).unwrap_or(&TABLE3[0])
    };
    let (ours, thumb) = (row(20_000, 400), row(40_000, 100));
    let experiments = [vec![thumb.group_s; 50], unequal].into_iter().flat_map(|shares_s| {
        let rules =
            RULES_OF_THUMB.map(|(basket, groups)| Distribution::RulesOfThumb { basket, groups });
        let all = [&[Distribution::Blocks][..], &rules].concat();
        all.into_iter().map(move |distribution| {
            // The master's seconds are those of Table 3 with as many tasks.
            let row = if distribution == Distribution::Blocks { ours } else { thumb };
            Experiment {
                scenarios: 40_000,
                shares_s: shares_s.clone(),
                decision_s: row.decision_s(),
                ..ssn(args, row.tasks, distribution)
            }
        })
    });
    let measured = measure_all(laboratory, &experiments.collect::<Vec<_>>())?;
    let both: Vec<&[SimulatedTimes]> = measured.chunks_exact(1 + RULES_OF_THUMB.len()).collect();
    Ok(report::table5(&both, &RULES_OF_THUMB))
}

/// The numbers of iterates at once in Figure 7.
const BASKETS: [usize; 4] = [1, 2, 4, 8];
/// Samples that each figure's curve is the mean of.
const SAMPLES: u64 = 3;

fn figure7(args: &AtrArgs, laboratory: &Laboratory) -> Result<ReportSection, Failed> {
    let experiments = BASKETS.iter().flat_map(|basket| {
        (0..SAMPLES).map(|sample| Experiment {
            seed: args.seed + sample,
            ..ssn(args, 200, Distribution::Basket(*basket))
        })
    });
    let measured = measure_all(laboratory, &experiments.collect::<Vec<_>>())?;
    let rows: Vec<(usize, &[SimulatedTimes])> =
        BASKETS.into_iter().zip(measured.chunks_exact(SAMPLES as usize)).collect();
    report::figure7(&rows).map_err(Failed::failure)
}

/// Coefficients of variation of a worker's speed.
const NOISES: [f64; 5] = [0.0, 0.05, 0.1, 0.2, 0.4];

fn noise_of_speeds(args: &AtrArgs, laboratory: &Laboratory) -> Result<ReportSection, Failed> {
    let unequal = &TABLE4[0];
    let grids = [
        ssn(args, 200, Distribution::Groups(50)),
        ssn(args, 200, Distribution::Blocks),
        Experiment {
            shares_s: spread(unequal.share_s, unequal.workers),
            ..ssn(args, 400, Distribution::Whole)
        },
        Experiment {
            shares_s: spread(unequal.share_s, unequal.workers),
            ..ssn(args, 400, Distribution::Blocks)
        },
    ];
    let experiments = grids.iter().flat_map(|grid| {
        let constant = Experiment { varies: false, noise: 0.0, ..grid.clone() };
        let noisy = NOISES.map(|noise| Experiment { noise, ..grid.clone() });
        [vec![constant], noisy.to_vec()].concat()
    });
    let measured = measure_all(laboratory, &experiments.collect::<Vec<_>>())?;
    let rows: Vec<&[SimulatedTimes]> = measured.chunks_exact(1 + NOISES.len()).collect();
    Ok(report::noise(&rows, &NOISES))
}

// --- measured runs ---

/// A run of Table 2: program, scenarios, tasks and groups.
const TABLE2: [(&str, u64, u32, u32); 5] = [
    ("ssn", 10_000, 50, 50),
    ("ssn", 10_000, 100, 50),
    ("ssn", 10_000, 200, 50),
    ("20term", 5000, 200, 50),
    ("storm", 10_000, 200, 50),
];

fn table2(args: &AtrArgs, laboratory: &Laboratory) -> Result<ReportSection, Failed> {
    let mut rows = Vec::new();
    for (name, scenarios, tasks, groups) in TABLE2 {
        let (scenarios, cold_start) = (laboratory.scenarios(scenarios, tasks), name == "20term");
        let run = ProfileRun { scenarios, tasks, groups, seed: args.seed, cold_start };
        rows.push((name, run, run.profile(laboratory.program(name)?)?));
    }
    Ok(report::table2(&rows))
}

/// Scenarios of a group in Figure 3.
const GROUP_SIZES: [u64; 6] = [25, 50, 75, 100, 200, 400];
/// Decisions at which the groups of Figure 3 are evaluated.
const DECISIONS: usize = 4;

fn figure3(args: &AtrArgs, laboratory: &Laboratory) -> Result<ReportSection, Failed> {
    let model = laboratory.program("ssn")?;
    let scenarios = laboratory.scenarios(10_000, 100);
    let run = ProfileRun { scenarios, tasks: 100, groups: 1, seed: args.seed, cold_start: false };
    let requests = run.profile(model)?.requests;
    let few = &requests[..requests.len().min(DECISIONS)];
    let sizes: Vec<u64> = GROUP_SIZES.into_iter().filter(|size| *size <= scenarios).collect();
    report::figure3(&group_times(model, few, &sizes)?).map_err(Failed::failure)
}

/// The numbers of tasks in Figure 6.
const TASKS: [u32; 6] = [25, 50, 100, 200, 400, 800];

fn figure6(args: &AtrArgs, laboratory: &Laboratory) -> Result<ReportSection, Failed> {
    let model = laboratory.program("ssn")?;
    let mut rows: Vec<(u32, Vec<Profile>)> = Vec::new();
    for tasks in TASKS {
        let scenarios = laboratory.scenarios(10_000, tasks);
        let profile = |sample| {
            let seed = args.seed + sample;
            ProfileRun { scenarios, tasks, groups: 1, seed, cold_start: false }.profile(model)
        };
        rows.push((tasks, (0..SAMPLES).map(profile).collect::<Result<_, _>>()?));
    }
    report::figure6(&rows).map_err(Failed::failure)
}

/// Sizes of the messages of Figure 8, bytes.
const SIZES: [usize; 8] = [250, 1024, 4096, 8192, 12_288, 16_384, 22_528, 28_672];

fn figure8(args: &AtrArgs, laboratory: &Laboratory) -> Result<ReportSection, Failed> {
    // 100 Mbit/s Ethernet, and a line over the Atlantic of 1 Mbit/s.
    let local = LinkProfile::default().delay(Duration::from_micros(500)).rate(12_500_000);
    let far = LinkProfile::default().delay(Duration::from_millis(140)).rate(125_000);
    let times = [round_trip::round_trips(&local, &SIZES)?, round_trip::round_trips(&far, &SIZES)?];
    let mut messages: Vec<(&str, u32, (usize, usize))> = Vec::new();
    for (name, tasks) in [("ssn", 50), ("ssn", 400), ("20term", 200), ("storm", 200)] {
        let scenarios = u64::from(tasks);
        let run = ProfileRun { scenarios, tasks, groups: 50, seed: args.seed, cold_start: false };
        messages.push((name, tasks, run.profile(laboratory.program(name)?)?.message_bytes));
    }
    report::figure8(&SIZES, &times, &messages).map_err(Failed::failure)
}
