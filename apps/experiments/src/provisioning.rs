//! `sim provisioning`: simulated experiments of the provisioning paper, with the paper's results.
//!
//! This module does not know the simulation.

use std::path::PathBuf;
use std::rc::Rc;

use clap::{Args, ValueEnum, ValueHint};
use serde::Serialize;
use serde_json::{Value, json};
use springtide_actors::policy::provisioning::{
    Budget, Dag, Method, Objectives, SECOND, Search, SearchResult,
};
use springtide_cli::exit::Failed;
use springtide_cli::format::SCHEMA;
use springtide_cli::outdir::Artefacts;
use springtide_simulator::figure::FigureError;
use springtide_simulator::provisioning::Range;
use springtide_simulator::provisioning::compare::{
    Comparison, ComparisonSummary, Planning, SERVICE_UNIT, SelectionRule, compare,
};
use springtide_simulator::provisioning::figures::{self, Axes, FigureCurve};
use springtide_simulator::provisioning::load::{Copies, TraceWindow};
use springtide_simulator::provisioning::made::{self, Layered};
use springtide_simulator::provisioning::sites::{
    self, Instance, PlanValue, SearchConfig, SearchRanking,
};
use springtide_simulator::workload::swf::{self, Trace};

/// Processors of the paper's machine, for which the widths of its tasks are given.
const PAPER_PROCESSORS: u32 = 430;

/// Maximum cost of the additional plan without a trade-off, in multiples of the minimum cost.
const COST_MAX: f64 = 1.15;

/// An experiment of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Experiment {
    /// Search on 124 slots of four sites: front, schedulers, populations, crossover, mutation
    /// (figures 1 to 3)
    Sites,
    /// Makespan and cost by trade-off at one load (figure 5)
    Tradeoff,
    /// Makespan and cost by size of tasks and by load (figures 6 and 7)
    Sizes,
    /// CyberShake, 8,039 tasks, by load (figure 9)
    Cybershake,
    /// CyberShake where other users overestimate run times (section 7)
    Estimates,
    /// Makespan and cost by trade-off where early reservations cost less (the paper's future work)
    Discount,
    /// All experiments
    Paper,
}

/// Options of `sim provisioning`.
#[derive(Args, Clone, Debug)]
pub struct ProvisioningArgs {
    /// Experiment to run
    #[arg(value_enum, value_name = "EXPERIMENT", default_value = "paper")]
    experiment: Experiment,
    /// Trace with jobs of other users (SWF, plain or gzip); the load consists of two copies a week
    /// apart. Required except for `sites`
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    trace: Option<PathBuf>,
    /// Number of processors of the machine [default: the trace's]. The paper's tasks keep their
    /// share of its 430
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    processors: Option<u32>,
    /// First day of the trace to use
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        value_parser = clap::value_parser!(u32).range(..=36_500),
    )]
    from_day: u32,
    /// Number of days to use
    #[arg(
        long,
        value_name = "N",
        default_value_t = 60,
        value_parser = clap::value_parser!(u32).range(3..=3_650),
    )]
    days: u32,
    /// Loads as fractions of the machine, comma-separated: all or part of the first copy, and part
    /// of the second. Experiments at one load use the least
    #[arg(
        long,
        value_name = "SHARE",
        value_delimiter = ',',
        value_parser = share,
        default_values_t = [0.63, 0.70, 0.76, 0.82, 0.88, 0.94],
    )]
    loads: Vec<f64>,
    /// Number of times at which the workflow is submitted
    #[arg(
        long,
        value_name = "N",
        default_value_t = 50,
        value_parser = clap::value_parser!(u32).range(2..=10_000),
    )]
    submissions: u32,
    /// Number of draws of slots and workflow for `sites`
    #[arg(
        long,
        value_name = "N",
        default_value_t = 9,
        value_parser = clap::value_parser!(u32).range(1..=10_000),
    )]
    draws: u32,
    /// Search for plans
    #[arg(long, value_enum, value_name = "HOW", default_value_t = SearchMode::Pruned)]
    search: SearchMode,
    /// Sets of slots in a generation [default: 20; 10 for CyberShake; 50 for `sites`]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    population: Option<u32>,
    /// Generations after the first [default: 10; 34 for `sites`]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=100_000))]
    iterations: Option<u32>,
    /// Random seed
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print the results as one JSON object
    #[arg(long)]
    json: bool,
    /// Directory for figures (SVG), tables (CSV) and results (JSON)
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    out: Option<PathBuf>,
}

/// A search as an option of the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SearchMode {
    /// The paper's: chosen slots are paid, used or not
    Paper,
    /// This project's: unused slots are dropped
    Pruned,
}

impl From<SearchMode> for Search {
    fn from(search: SearchMode) -> Self {
        match search {
            SearchMode::Paper => Search::PAPER,
            SearchMode::Pruned => Search::Pruned,
        }
    }
}

impl SearchMode {
    /// The option of a search.
    pub fn from_search(search: Search) -> Self {
        match search {
            Search::Paper { .. } => Self::Paper,
            Search::Pruned => Self::Pruned,
        }
    }

    /// The value of the option on a command line.
    pub fn word(self) -> &'static str {
        match self {
            Self::Paper => "paper",
            Self::Pruned => "pruned",
        }
    }
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if share > 0.0 && share <= 2.0 => Ok(share),
        _ => Err("must be a fraction of the machine such as 0.76".to_owned()),
    }
}

/// The results of the experiments: text, JSON and files.
#[derive(Default)]
struct Results {
    text: String,
    json: serde_json::Map<String, Value>,
    files: Vec<(String, String)>,
}

impl Results {
    fn line(&mut self, line: impl AsRef<str>) {
        self.text.push_str(line.as_ref());
        self.text.push('\n');
    }

    fn result(&mut self, name: &str, value: &impl Serialize) -> Result<(), Failed> {
        let value = serde_json::to_value(value).map_err(Failed::failure)?;
        self.json.insert(name.to_owned(), value);
        Ok(())
    }

    fn figure(&mut self, name: &str, axes: Axes<'_>, lines: &[FigureCurve]) -> Result<(), Failed> {
        self.files.push((format!("{name}.svg"), figures::lines(axes, lines).map_err(cannot_draw)?));
        self.files.push((format!("{name}.csv"), figures::csv(axes, lines)));
        Ok(())
    }
}

fn cannot_draw(error: FigureError) -> Failed {
    Failed::failure(error)
}

/// Runs an experiment.
///
/// # Errors
/// The trace cannot be read or is too short, or a file cannot be written.
pub fn provisioning(args: &ProvisioningArgs) -> Result<(), Failed> {
    let began = std::time::Instant::now();
    let mut results = Results::default();
    let all = args.experiment == Experiment::Paper;
    let wants = |experiment| all || args.experiment == experiment;
    if wants(Experiment::Sites) {
        four_sites(args, &mut results)?;
    }
    if args.experiment != Experiment::Sites {
        let site = SiteConfig::read(args)?;
        results.line(site.describe());
        if wants(Experiment::Tradeoff) {
            trade_off(args, &site, None, &mut results)?;
        }
        if wants(Experiment::Sizes) {
            sizes(args, &site, &mut results)?;
        }
        if wants(Experiment::Cybershake) {
            cybershake(args, &site, &mut results)?;
        }
        if wants(Experiment::Estimates) {
            estimates(args, &site, &mut results)?;
        }
        if wants(Experiment::Discount) {
            trade_off(args, &site, Some((0.05, 0.5)), &mut results)?;
        }
    }
    let result = json!({ "schema": SCHEMA, "seed": args.seed, "results": results.json });
    let mut artefacts = Artefacts::of(args.out.as_deref());
    results.files.iter().for_each(|(name, text)| artefacts.keep(name, text));
    artefacts.keep("provisioning.json", format!("{result}\n"));
    let Results { text, .. } = results;
    artefacts.print(args.json, result, || format!("{text}{:.1} s\n", began.elapsed().as_secs_f64()))
}

/// Figures 1 to 3, and the effects of population, crossover and mutation.
fn four_sites(args: &ProvisioningArgs, results: &mut Results) -> Result<(), Failed> {
    let instance = Instance::drawn(args.seed);
    // About as many sets as the paper's search evaluated plans.
    let budget = budget(args, 50, 34);
    let find =
        |search| -> SearchResult { instance.search(Method::Heft, search, budget, args.seed, true) };
    let (paper, ours) = (find(Search::PAPER), find(Search::Pruned));
    let place = |is: Objectives| {
        let PlanValue { cost_su, makespan_s } = is.into();
        (cost_su, makespan_s / 3600.0)
    };
    let points = |found: &SearchResult| {
        found.front.points().iter().map(|point| place(point.objectives)).collect::<Vec<_>>()
    };
    let met: Vec<(f64, f64)> = paper.all.iter().copied().map(place).collect();
    let axes = Axes {
        title: "Plans on 124 slots of four sites",
        x: "cost, service units",
        y: "makespan, hours",
    };
    let fronts =
        [("as in the paper".to_owned(), points(&paper)), ("ours".to_owned(), points(&ours))];
    results
        .files
        .push(("front.svg".into(), figures::cloud(axes, &met, &fronts).map_err(cannot_draw)?));
    results.line(format!(
        "Four sites, 124 slots, 100 tasks (seed {}): {} plans evaluated, {} of them not dominated \
        (paper: 1742 and 40, for an unspecified workflow)",
        args.seed,
        paper.feasible,
        paper.front.points().len(),
    ));
    let alphas: Vec<f64> = (0..=10).map(|tenth| f64::from(tenth) / 10.0).collect();
    let sweeps = [("as in the paper", &paper), ("ours", &ours)]
        .map(|(name, found)| (name, sites::sweep(&found.front, &alphas)));
    for (name, of) in [("makespan", 0), ("cost", 1)] {
        let lines: Vec<FigureCurve> = sweeps
            .iter()
            .map(|(label, sweep)| {
                let value = |plan: &PlanValue| {
                    if of == 0 { plan.makespan_s / 3600.0 } else { plan.cost_su }
                };
                let points = sweep.iter().map(|(alpha, plan)| (*alpha, value(plan), 0.0));
                FigureCurve { label: (*label).to_owned(), points: points.collect() }
            })
            .collect();
        let y = if of == 0 { "makespan, hours" } else { "cost, service units" };
        let axes = Axes {
            title: "Makespan and cost by trade-off",
            x: "trade-off (0 fastest, 1 cheapest)",
            y,
        };
        results.figure(&format!("tradeoff-sites-{name}"), axes, &lines)?;
    }
    for (name, sweep) in &sweeps {
        let take = |(alpha, plan): &(f64, PlanValue)| {
            format!("{alpha:.1}: {:.1} SU {:.0} s", plan.cost_su, plan.makespan_s)
        };
        let some: Vec<String> =
            sweep.iter().filter(|(alpha, _)| [0.0, 0.5, 1.0].contains(alpha)).map(take).collect();
        results.line(format!("  trade-offs, {name}: {}", some.join(", ")));
    }
    results.result("sweep", &sweeps)?;
    let seeds: Vec<u64> =
        (0..u64::from(args.draws)).map(|draw| args.seed.wrapping_add(draw)).collect();
    results.line(format!(
        "  {} draws of slots and workflow, seeds {} on: medians, with minimum and maximum in \
        brackets",
        args.draws, args.seed
    ));
    let way = |name: String, method, search| SearchConfig { name, method, search, budget };
    let (sets, generations) = (budget.population, budget.iterations + 1);
    let shape = |(population, generations): (usize, usize)| {
        let (population, generations) = (population.max(1), generations.max(1));
        SearchConfig {
            name: format!("{population} x {generations}"),
            method: Method::Heft,
            search: Search::PAPER,
            budget: Budget { population, iterations: generations - 1 },
        }
    };
    let schedulers =
        |search| Method::ALL.map(|method| way(method.to_string(), method, search)).to_vec();
    let cuts = |crossover| {
        let search = Search::Paper { crossover, mutation: 1.0 };
        way(format!("{crossover} cuts"), Method::Heft, search)
    };
    let turned = |mutation| {
        let search = Search::Paper { crossover: 2, mutation };
        way(format!("{mutation}/n"), Method::Heft, search)
    };
    let (half, few) = (sets / 2, generations / 2);
    // Statements of the paper, and the variants that they compare.
    let questions = [
        (
            "schedulers",
            "schedulers (paper: 39 left, most of them HEFT's)",
            schedulers(Search::PAPER),
        ),
        ("schedulers-ours", "schedulers under our search", schedulers(Search::Pruned)),
        (
            "growth",
            "four times the population, or four times the generations (paper: population has more \
            effect)",
            [(half, few), (4 * half, few), (half, 4 * few)].map(shape).to_vec(),
        ),
        (
            "population",
            "population x generations, about equal numbers of sets",
            [
                (sets / 5, 5 * generations),
                (half, 2 * generations),
                (sets, generations),
                (2 * sets, few),
                (5 * sets, generations / 5),
                (sets * generations / 2, 2),
            ]
            .map(shape)
            .to_vec(),
        ),
        (
            "crossover",
            "crossover (paper: two points are better than one or three)",
            [1, 2, 3].map(cuts).to_vec(),
        ),
        ("mutation", "mutation (paper: 1/n helps)", [0.0, 0.25, 1.0, 4.0].map(turned).to_vec()),
        (
            "searches",
            "searches",
            vec![
                way("as in the paper".to_owned(), Method::Heft, Search::PAPER),
                way("ours".to_owned(), Method::Heft, Search::Pruned),
            ],
        ),
    ];
    for (name, title, ways) in questions {
        let draws = sites::compare_searches(&ways, &seeds);
        let standings = sites::standings(&draws);
        results.line(format!("  {title}:"));
        for standing in &standings {
            results.line(standing_line(standing));
        }
        results.result(name, &json!({ "over_draws": standings, "draws": draws }))?;
    }
    Ok(())
}

fn standing_line(of: &SearchRanking) -> String {
    let range = |range: Range, decimals: usize| {
        let Range { median, least, most } = range;
        format!("{median:.decimals$} [{least:.decimals$}, {most:.decimals$}]")
    };
    format!(
        "    {:16} {:4.0} tried, front {}, left of all {} ({} together, first in {}), area {}",
        of.name,
        of.evaluations.median,
        range(of.front, 0),
        range(of.survivors, 0),
        of.all_survivors,
        of.first_in,
        range(of.hypervolume, 4),
    )
}

/// The machine and the load of other users.
struct SiteConfig {
    file: PathBuf,
    trace: Rc<Trace>,
    copies: Copies,
    processors: u32,
    window: TraceWindow,
}

impl SiteConfig {
    fn read(args: &ProvisioningArgs) -> Result<Self, Failed> {
        let Some(file) = &args.trace else {
            return Err(Failed::usage(
                "this experiment needs jobs of other users: give a trace in the Standard Workload \
                Format with --trace FILE (the Parallel Workloads Archive has many; the paper's is \
                CTC-SP2-1996-3.1-cln, with --processors 430)",
            ));
        };
        let trace = swf::read(file).map_err(Failed::usage)?;
        let processors = args.processors.unwrap_or_else(|| trace.processors());
        let window =
            TraceWindow { from_day: args.from_day, days: args.days, ..TraceWindow::default() };
        let copies = Copies::of(&trace, processors, window);
        if copies.least() <= 0.0 {
            return Err(Failed::usage(format!(
                "{}: no jobs in the {} days from day {} on",
                file.display(),
                args.days,
                args.from_day
            )));
        }
        Ok(Self { file: file.clone(), trace: Rc::new(trace), copies, processors, window })
    }

    /// The same site where other users overestimate run times by this factor.
    fn estimated(&self, estimate: f64) -> Self {
        let Self { file, trace, processors, window, .. } = self;
        let window = TraceWindow { estimate, ..*window };
        let copies = Copies::of(trace, *processors, window);
        Self {
            file: file.clone(),
            trace: Rc::clone(trace),
            copies,
            processors: *processors,
            window,
        }
    }

    fn describe(&self) -> String {
        format!(
            "{}: {} processors, {} days from day {} on; the first copy alone keeps {:.0} % busy; \
            task widths of the paper's {PAPER_PROCESSORS} processors are scaled to {}",
            self.file.display(),
            self.processors,
            self.window.days,
            self.window.from_day,
            self.copies.least() * 100.0,
            self.processors
        )
    }

    /// Scales a width from the paper's machine to this one.
    fn scaled(&self, processors: u32) -> u32 {
        let wide = f64::from(processors) * f64::from(self.processors) / f64::from(PAPER_PROCESSORS);
        (wide.round() as u32).clamp(1, self.processors)
    }

    /// Compares submissions of a workflow. None lies in the first eighth, while the machine fills,
    /// or in the last quarter, so that other jobs arrive while the workflow runs.
    fn compare(
        &self,
        args: &ProvisioningArgs,
        dag: &Dag,
        target: f64,
        choices: &[SelectionRule],
        planning: &Planning,
    ) -> Comparison {
        let load = self.copies.under(target, args.seed);
        let days = u64::from(self.window.days) * 24 * 3600 * SECOND;
        let (from, to) = (days / 8, days * 3 / 4);
        let count = u64::from(args.submissions);
        // Times that differ in their time of day.
        let moments: Vec<u64> =
            (0..count).map(|at| from + (to - from) * at / (count - 1)).collect();
        compare(dag, &load, &moments, choices, planning)
    }

    /// The requested loads without duplicates, and a note about loads that two copies do not reach.
    fn loads(&self, args: &ProvisioningArgs) -> (Vec<f64>, Option<String>) {
        let mut loads = args.loads.clone();
        loads.sort_by(f64::total_cmp);
        loads.dedup();
        let offered = |load: &f64| self.copies.under(*load, args.seed).offered;
        let most = loads.last().map_or(0.0, offered);
        let all = loads.len();
        // Two loads that both request all jobs are equal.
        loads.dedup_by(|load, before| offered(load) == offered(before));
        let left = all - loads.len();
        let note = (left > 0).then(|| {
            format!(
                "  two copies of this trace give a load of {:.0} %: {left} larger loads are \
                omitted",
                most * 100.0
            )
        });
        (loads, note)
    }

    /// The least of the loads.
    fn load(args: &ProvisioningArgs) -> f64 {
        args.loads.iter().copied().fold(f64::INFINITY, f64::min)
    }
}

/// The requested budget, or this default.
fn budget(args: &ProvisioningArgs, population: usize, iterations: usize) -> Budget {
    Budget {
        population: args.population.map_or(population, |population| population as usize),
        iterations: args.iterations.map_or(iterations, |iterations| iterations as usize),
    }
}

fn planning(args: &ProvisioningArgs, population: usize) -> Planning {
    Planning {
        search: args.search.into(),
        budget: budget(args, population, 10),
        method: Method::Heft,
        discount: None,
        seed: args.seed,
    }
}

/// The synthetic workflow of section 5 with this mean number of processors per task, on the paper's
/// machine.
fn synthetic(site: &SiteConfig, processors: u32, seed: u64) -> Dag {
    let of = Layered {
        tasks: 100,
        levels: 10,
        runtime_s: 1000.0,
        transfer_s: 0.0,
        processors: site.scaled(processors),
        most: site.processors,
    };
    made::layered(&of, seed)
}

fn row(summary: &ComparisonSummary, floor: f64) -> String {
    let ComparisonSummary { makespan_s, cost, best_effort_s, difference_s, without, .. } = summary;
    let hours = |seconds: f64| seconds / 3600.0;
    let missing = if *without > 0 { format!(", no plan in {without}") } else { String::new() };
    format!(
        "provisioned {:7.2} h (sd {:6.2}), best effort {:7.2} h (sd {:6.2}): {:+6.1} %, cost \
        {:5.1} % of the floor (sd {:.1}); difference {:+.2} h, interval {:+.2} to {:+.2}{missing}",
        hours(makespan_s.mean),
        hours(makespan_s.deviation),
        hours(best_effort_s.mean),
        hours(best_effort_s.deviation),
        (makespan_s.mean / best_effort_s.mean - 1.0) * 100.0,
        cost.mean / floor * 100.0,
        cost.deviation / floor * 100.0,
        hours(difference_s.mean),
        hours(difference_s.mean - difference_s.half_interval),
        hours(difference_s.mean + difference_s.half_interval),
    )
}

fn describe_cost_max() -> String {
    format!("the shortest within {:.0} % of the floor", (COST_MAX - 1.0) * 100.0)
}

fn hours(label: &str, points: impl Iterator<Item = (f64, f64, f64)>) -> FigureCurve {
    let points = points.map(|(x, mean, deviation)| (x, mean / 3600.0, deviation / 3600.0));
    FigureCurve { label: label.to_owned(), points: points.collect() }
}

/// Figure 5; with a discount, the paper's future work.
fn trade_off(
    args: &ProvisioningArgs,
    site: &SiteConfig,
    discount: Option<(f64, f64)>,
    results: &mut Results,
) -> Result<(), Failed> {
    let mut choices: Vec<SelectionRule> =
        (0..=10).map(|tenth| SelectionRule::of(f64::from(tenth) / 10.0)).collect();
    choices.push(SelectionRule::within(COST_MAX));
    let dag = synthetic(site, 22, args.seed);
    let planning = Planning { discount, ..planning(args, 20) };
    let found = site.compare(args, &dag, SiteConfig::load(args), &choices, &planning);
    let (name, titles, what) = match discount {
        None => (
            "tradeoff",
            ["Makespan by trade-off", "Cost by trade-off"],
            "paper: shorter for every trade-off, cost towards the floor, best effort varies more",
        ),
        Some(_) => (
            "discount",
            ["Makespan by trade-off, with a discount", "Cost by trade-off, with a discount"],
            "slots cost 5 % less for each day ahead, at most half; not in the paper",
        ),
    };
    results.line(format!(
        "Trade-off at a load of {:.0} %, {} submissions ({what}):",
        found.load * 100.0,
        args.submissions
    ));
    let (slots, free) = (found.slots(), found.half_free_s());
    results.line(format!(
        "  {:.0} slots advertised (median, {:.0} to {:.0}); half of the machine stays free after \
        {:.1} h (median, {:.1} to {:.1})",
        slots.median,
        slots.least,
        slots.most,
        free.median / 3600.0,
        free.least / 3600.0,
        free.most / 3600.0
    ));
    let mut summaries = found.summaries();
    let within = summaries.pop();
    let trade_offs: Vec<(f64, &ComparisonSummary)> =
        summaries.iter().map(|s| (s.choice.alpha, s)).collect();
    for (alpha, summary) in trade_offs.iter().filter(|(alpha, _)| [0.0, 0.5, 1.0].contains(alpha)) {
        results.line(format!("  {alpha:.1}: {}", row(summary, found.floor)));
    }
    if let Some(summary) = &within {
        results.line(format!("  {}: {}", describe_cost_max(), row(summary, found.floor)));
    }
    let lines = [
        hours(
            "provisioned",
            trade_offs.iter().map(|(alpha, s)| (*alpha, s.makespan_s.mean, s.makespan_s.deviation)),
        ),
        hours(
            "best effort",
            trade_offs
                .iter()
                .map(|(alpha, s)| (*alpha, s.best_effort_s.mean, s.best_effort_s.deviation)),
        ),
    ];
    let x = "trade-off (0 fastest, 1 cheapest)";
    results.figure(
        &format!("{name}-makespan"),
        Axes { title: titles[0], x, y: "hours" },
        &lines,
    )?;
    let lines = [
        hours(
            "provisioned",
            trade_offs.iter().map(|(alpha, s)| (*alpha, s.cost.mean, s.cost.deviation)),
        ),
        hours(
            "best effort, the floor",
            trade_offs.iter().map(|(alpha, _)| (*alpha, found.floor, 0.0)),
        ),
    ];
    results.figure(
        &format!("{name}-cost"),
        Axes { title: titles[1], x, y: "service units" },
        &lines,
    )?;
    results.result(
        name,
        &json!({
            "load": found.load, "floor_su": found.floor / SERVICE_UNIT, "slots": slots,
            "half_free_s": free, "trade_offs": summaries, "within": within,
        }),
    )
}

/// Figures 6 and 7.
fn sizes(args: &ProvisioningArgs, site: &SiteConfig, results: &mut Results) -> Result<(), Failed> {
    const SIZES: [u32; 4] = [3, 10, 20, 30];
    let planning = planning(args, 20);
    let (loads, note) = site.loads(args);
    let mut rows = Vec::new();
    results.line(format!(
        "By size of tasks and load, {} submissions (paper: the gain grows with task size and load; \
        100 % is best effort):",
        args.submissions
    ));
    note.into_iter().for_each(|note| results.line(note));
    for size in SIZES {
        let dag = synthetic(site, size, args.seed);
        for &load in &loads {
            let found =
                site.compare(args, &dag, load, &[0.0, 0.5, 1.0].map(SelectionRule::of), &planning);
            let summaries = found.summaries();
            results.line(format!(
                "  {size:2} processors ({} here), load {:2.0} %, 0.5: {}",
                site.scaled(size),
                found.load * 100.0,
                row(&summaries[1], found.floor)
            ));
            rows.push((size, found.load, found.floor, summaries));
        }
    }
    let part = |of: &dyn Fn(&ComparisonSummary, f64) -> f64,
                at: usize,
                size: u32|
     -> Vec<(f64, f64, f64)> {
        let of_size = rows.iter().filter(|row| row.0 == size);
        of_size
            .map(|(_, load, floor, all)| (load * 100.0, of(&all[at], *floor) * 100.0, 0.0))
            .collect()
    };
    let makespan =
        |summary: &ComparisonSummary, _: f64| summary.makespan_s.mean / summary.best_effort_s.mean;
    let cost = |summary: &ComparisonSummary, floor: f64| summary.cost.mean / floor;
    type Measure<'a> = &'a dyn Fn(&ComparisonSummary, f64) -> f64;
    for (name, of) in [("makespan", &makespan as Measure<'_>), ("cost", &cost)] {
        let mut lines: Vec<FigureCurve> = SIZES
            .iter()
            .map(|&size| FigureCurve {
                label: format!("{size} processors a task"),
                points: part(of, 1, size),
            })
            .collect();
        // The line separates gains from losses.
        let best_effort = |of: &FigureCurve| FigureCurve {
            label: "best effort".to_owned(),
            points: of.points.iter().map(|&(x, ..)| (x, 100.0, 0.0)).collect(),
        };
        lines.push(best_effort(&lines[0]));
        let title = format!("Provisioned {name} by load, trade-off 0.5");
        let axes = Axes { title: &title, x: "load, %", y: "% of best effort" };
        results.figure(&format!("load-{name}"), axes, &lines)?;
        let least = rows.first().map_or(0.0, |row| row.1);
        let by_size = |at: usize| {
            rows.iter().filter(|row| row.1 == least).map(move |(size, _, floor, all)| {
                (f64::from(*size), of(&all[at], *floor) * 100.0, 0.0)
            })
        };
        let mut lines = vec![
            FigureCurve { label: "trade-off 0".to_owned(), points: by_size(0).collect() },
            FigureCurve { label: "trade-off 1".to_owned(), points: by_size(2).collect() },
        ];
        lines.push(best_effort(&lines[0]));
        let title = format!("Provisioned {name} by size of tasks, load {:.0} %", least * 100.0);
        let axes = Axes { title: &title, x: "processors a task, on the paper's machine", ..axes };
        results.figure(&format!("size-{name}"), axes, &lines)?;
    }
    let json: Vec<Value> = rows
        .iter()
        .map(|(size, load, floor, all)| {
            let floor_su = floor / SERVICE_UNIT;
            json!({ "size": size, "load": load, "floor_su": floor_su, "trade_offs": all })
        })
        .collect();
    results.result("sizes", &json)
}

/// The paper's results of provisioned against best effort, from figure 9 and its text.
fn paper_result(load: f64) -> &'static str {
    match (load * 100.0).round() as u32 {
        60..=66 => " (paper: -23 %)",
        92..=96 => " (paper: -56 %)",
        _ => "",
    }
}

/// Runs the experiment of figure 9.
fn cybershake(
    args: &ProvisioningArgs,
    site: &SiteConfig,
    results: &mut Results,
) -> Result<(), Failed> {
    let dag = made::cybershake(site.scaled(288));
    let planning = planning(args, 10);
    results.line(format!(
        "CyberShake, {} tasks, the widest of {} processors, trade-off 0.5, {} submissions:",
        dag.len(),
        site.scaled(288),
        args.submissions
    ));
    let mut rows = Vec::new();
    let (loads, note) = site.loads(args);
    note.into_iter().for_each(|note| results.line(note));
    for load in loads {
        let choices = [SelectionRule::of(0.5), SelectionRule::within(COST_MAX)];
        let found = site.compare(args, &dag, load, &choices, &planning);
        let [summary, within] = found.summaries()[..] else { continue };
        results.line(format!(
            "  load {:2.0} %: {}{}",
            found.load * 100.0,
            row(&summary, found.floor),
            paper_result(found.load)
        ));
        results.line(format!(
            "             {}: {}",
            describe_cost_max(),
            row(&within, found.floor)
        ));
        rows.push((found.load, found.floor, summary, within));
    }
    let x = "load, %";
    // Provisioned first, so that colours have the same meaning as in the other figures.
    let lines = [
        hours(
            "provisioned",
            rows.iter()
                .map(|(load, _, s, _)| (load * 100.0, s.makespan_s.mean, s.makespan_s.deviation)),
        ),
        hours(
            "best effort",
            rows.iter().map(|(load, _, s, _)| {
                (load * 100.0, s.best_effort_s.mean, s.best_effort_s.deviation)
            }),
        ),
    ];
    results.figure(
        "cybershake-makespan",
        Axes { title: "CyberShake: makespan", x, y: "hours" },
        &lines,
    )?;
    let lines = [
        hours(
            "provisioned",
            rows.iter().map(|(load, _, s, _)| (load * 100.0, s.cost.mean, s.cost.deviation)),
        ),
        hours(
            "best effort, the floor",
            rows.iter().map(|(load, floor, ..)| (load * 100.0, *floor, 0.0)),
        ),
    ];
    results.figure(
        "cybershake-cost",
        Axes { title: "CyberShake: cost", x, y: "service units" },
        &lines,
    )?;
    let json: Vec<Value> = rows
        .iter()
        .map(|(load, floor, summary, within)| {
            let floor_su = floor / SERVICE_UNIT;
            json!({ "load": load, "floor_su": floor_su, "result": summary, "within": within })
        })
        .collect();
    results.result("cybershake", &json)
}

/// Section 7: other users overestimate the run times of their jobs, and reservations last as long
/// as estimated.
fn estimates(
    args: &ProvisioningArgs,
    site: &SiteConfig,
    results: &mut Results,
) -> Result<(), Failed> {
    results.line(
        "CyberShake with overestimated run times of other users (paper: +3 % and +7.7 % \
        at 10 and 20 %; best effort with exact ones 30 % above):",
    );
    let mut rows = Vec::new();
    let mut exact = None;
    for estimate in [1.0, 1.1, 1.2] {
        let site = site.estimated(estimate);
        let dag = made::cybershake(site.scaled(288));
        let found = site.compare(
            args,
            &dag,
            SiteConfig::load(args),
            &[SelectionRule::of(0.5)],
            &planning(args, 10),
        );
        let summary = found.summaries()[0];
        let base = *exact.get_or_insert(summary.makespan_s.mean);
        results.line(format!(
            "  {:+3.0} %: {:+.1} % of the exact makespan; {}",
            (estimate - 1.0) * 100.0,
            (summary.makespan_s.mean / base - 1.0) * 100.0,
            row(&summary, found.floor)
        ));
        rows.push(json!({ "estimate": estimate, "load": found.load, "result": summary }));
    }
    results.result("estimates", &rows)
}
