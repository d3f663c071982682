//! `workflow plan`: the slots to reserve for a workflow, as text and JSON. Planning and figures are
//! separate modules.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum, ValueHint};
use serde_json::{Value, json};
use springtide_actors::policy::provisioning::{
    Budget, Constraint, Dag, Method, Objectives, SECOND, Time, from_seconds, seconds,
};
use springtide_cli::dates::{date, parse};
use springtide_cli::exit::{Exit, Failed};
use springtide_cli::format as report;
use springtide_cli::format::{SCHEMA, many, number};
use springtide_cli::outdir::Artefacts;
use springtide_cli::print::print;
use springtide_simulator::workload::figures::quoted;

use super::artefacts::{PlanReport, method_word};
use super::check::{percent, round};
use super::planning::{self, BlockedTask, NearestPlan, NoPlan, Plan, PlanRequest, forever};
use super::{Read, ReadArgs, Summary, front, read, shown};
use springtide_experiments::provisioning::SearchMode;
use springtide_operations::offers::Offers;
use springtide_operations::process::on_arbiter;
use springtide_operations::slots::offers_now;

/// Exit codes of `workflow plan`, for `--help`.
pub const EXIT_CODES: &str = "\
Exit codes: 0 there is a plan; 2 a file or an option is wrong, or a runtime is not known; 3 no \
plan: a task has no place on the offered slots, or none meets the deadline and the budget. The \
nearest one is reported.";

/// For workflows with more tasks, fewer sets of slots are tried, because each takes longer.
const LARGE: usize = 1000;
/// Default sets in a generation, and generations after the first. The second pair is for large
/// workflows, as in the paper.
const TRIES: [(usize, usize); 2] = [(50, 40), (10, 10)];
/// From this number of tries of a task on a slot on, planning takes seconds, and a note says so.
const LONG: usize = 200_000_000;
/// Maximum number of points of a front in the text. The table has all.
const POINTS_SHOWN: usize = 14;
/// Maximum number of slots in the text.
const SLOTS_SHOWN: usize = 24;
/// Maximum number of proposed lines of overrides.
const ROWS_SHOWN: usize = 8;

/// Options of `workflow plan`.
#[derive(Args, Clone, Debug)]
pub struct PlanArgs {
    /// The workflow: WfFormat (JSON), DAX (XML), Pegasus 5 (YAML), DOT, or Springtide's own (TOML)
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    file: PathBuf,
    #[command(flatten)]
    offers: OffersArgs,
    #[command(flatten)]
    choice: ChoiceArgs,
    #[command(flatten)]
    reading: ReadArgs,
    /// Print the plan as one JSON object
    #[arg(long)]
    json: bool,
    /// Directory for the plan and its schedule (JSON, CSV), the front (CSV, SVG), and charts of
    /// hosts and tasks over time (SVG)
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    out: Option<PathBuf>,
}

/// Origin of the offers.
#[derive(Args, Clone, Debug)]
#[group(required = true, multiple = false)]
pub struct OffersArgs {
    /// Offers of the sites, as `slots list --json` prints them; `-` is standard input
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    slots: Option<PathBuf>,
    /// Config of a running grid, whose present offers are used
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    config: Option<PathBuf>,
}

impl OffersArgs {
    /// Reads the offers. Returns them with their origin, for messages.
    ///
    /// # Errors
    /// They cannot be read or parsed, or no grid is up.
    fn read(&self) -> Result<(Offers, String), Failed> {
        if let Some(config) = &self.config {
            let offers = on_arbiter(offers_now(config))?;
            return Ok((offers, format!("the grid of {}", config.display())));
        }
        // The group of options requires one of the two.
        let file = self.slots.as_deref().unwrap_or(Path::new("-"));
        Ok((Offers::read(file)?, file.display().to_string()))
    }
}

/// Criteria of the choice, and settings of the search.
#[derive(Args, Clone, Debug)]
pub struct ChoiceArgs {
    /// Weight of cost against time, 0 to 1: 0 takes the fastest plan, 1 the cheapest
    #[arg(long, value_name = "A", default_value_t = 0.5, value_parser = alpha)]
    alpha: f64,
    /// Latest end of the workflow: a time after its submission such as 90m, or a moment such as
    /// 2026-11-25T18:00Z
    #[arg(long, value_name = "TIME", value_parser = deadline)]
    deadline: Option<Deadline>,
    /// Maximum cost of the plan; a processor-second costs 1 where the offer sets no price
    #[arg(long, value_name = "COST", value_parser = budget)]
    budget: Option<f64>,
    /// Method that places tasks on a set of slots
    #[arg(long, value_enum, value_name = "HOW", default_value_t = PlacementMethod::Heft)]
    method: PlacementMethod,
    /// Search among sets of slots
    #[arg(long, value_enum, value_name = "HOW", default_value_t = SearchMode::Pruned)]
    search: SearchMode,
    /// Sets of slots in a generation [default: 50; 10 for more than 1000 tasks]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    population: Option<u32>,
    /// Generations after the first one [default: 40; 10 for more than 1000 tasks]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=100_000))]
    iterations: Option<u32>,
    /// Random seed of the search
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

/// A list scheduler, for the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PlacementMethod {
    /// First the task with the longest chain of successors
    Heft,
    /// Parents before children, as the workflow lists them
    Greedy,
    /// Level by level, first the task that can end first
    MinMin,
    /// Level by level, first the task that ends last at its best place
    MaxMin,
}

impl From<PlacementMethod> for Method {
    fn from(method: PlacementMethod) -> Self {
        match method {
            PlacementMethod::Heft => Self::Heft,
            PlacementMethod::Greedy => Self::Greedy,
            PlacementMethod::MinMin => Self::MinMin,
            PlacementMethod::MaxMin => Self::MaxMin,
        }
    }
}

/// The latest end of a workflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deadline {
    /// A time after its submission.
    After(Duration),
    /// A moment, in seconds since the Unix epoch.
    At(u64),
}

fn alpha(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(alpha) if (0.0..=1.0).contains(&alpha) => Ok(alpha),
        _ => Err("give a number from 0 (fastest) to 1 (cheapest)".to_owned()),
    }
}

fn budget(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(budget) if budget >= 0.0 && budget.is_finite() => Ok(budget),
        _ => Err("give a cost, a number of at least 0".to_owned()),
    }
}

fn deadline(text: &str) -> Result<Deadline, String> {
    if let Some(at) = parse(text) {
        return Ok(Deadline::At(at));
    }
    let after = springtide_cli::options::time(text).map_err(|_| {
        "give a time after the submission such as 90m or 36h, or a moment in UTC such as \
         2026-11-25T18:00Z"
    })?;
    Ok(Deadline::After(after))
}

impl ChoiceArgs {
    /// The request for a workflow with this number of tasks, submitted at the origin of the offers.
    ///
    /// # Errors
    /// The deadline is in the past.
    pub fn request(&self, tasks: usize, offers: &Offers) -> Result<PlanRequest, Failed> {
        let deadline = match self.deadline {
            None => None,
            Some(Deadline::After(time)) => Some(from_seconds(time.as_secs_f64())),
            Some(Deadline::At(at)) => {
                let left = at as f64 - offers.origin_unix_s;
                if left <= 0.0 {
                    return Err(Failed::usage(format!(
                        "--deadline {}: this is in the past: the offers are of {}",
                        date(at),
                        date(offers.origin_unix_s as u64)
                    )));
                }
                Some(from_seconds(left))
            }
        };
        let (population, iterations) = TRIES[usize::from(tasks > LARGE)];
        let or = |given: Option<u32>, usual| given.map_or(usual, |given| given as usize);
        Ok(PlanRequest {
            alpha: self.alpha,
            constraint: Constraint { deadline, budget: self.budget },
            method: self.method.into(),
            search: self.search.into(),
            budget: Budget {
                population: or(self.population, population),
                iterations: or(self.iterations, iterations),
            },
            seed: self.seed,
        })
    }
}

/// A failure to plan: its exit code and message, and further keys of its JSON.
struct PlanFailure {
    failed: Failed,
    more: Vec<(&'static str, Value)>,
}

impl From<Failed> for PlanFailure {
    fn from(failed: Failed) -> Self {
        Self { failed, more: Vec::new() }
    }
}

/// Executes `workflow plan`.
///
/// # Errors
/// A file or an option is wrong, there is no plan, or a file cannot be written.
pub fn plan(args: &PlanArgs, quiet: bool) -> Result<(), Failed> {
    let PlanFailure { failed, more } = match plan_and_print(args, quiet) {
        Ok(printed) => return printed,
        Err(failure) => failure,
    };
    if !args.json {
        return Err(failed);
    }
    let mut object = json!({ "schema": SCHEMA, "ok": false, "error": failed.message });
    more.into_iter().for_each(|(key, value)| object[key] = value);
    print(&format!("{object}\n"))?;
    Err(Failed::new(failed.exit, ""))
}

/// Plans and prints the plan. An inner error is a failure to print or write it.
fn plan_and_print(args: &PlanArgs, quiet: bool) -> Result<Result<(), Failed>, PlanFailure> {
    let wrong = |error: Failed| PlanFailure::from(error);
    let began = std::time::Instant::now();
    let overrides = args.reading.overrides().map_err(Failed::usage)?;
    let read = read(&args.file, args.reading.format, &overrides).map_err(Failed::usage)?;
    read.has_runtimes()?;
    let (offers, source) = args.offers.read()?;
    let speeds: Vec<f64> = offers.sites.iter().map(|site| site.speed).collect();
    let cannot = |error| Failed::usage(format!("{}: {error}", read.file.display()));
    let summary = Summary::of(&read).map_err(cannot)?;
    let dag = read.dag(&speeds).map_err(cannot)?;
    let request = args.choice.request(dag.len(), &offers).map_err(wrong)?;
    let slots: usize = offers.sites.iter().map(|site| site.slots.len()).sum();
    let tries = request.budget.evaluations();
    if tries.saturating_mul(slots).saturating_mul(dag.len()) > LONG && !args.json && !quiet {
        eprintln!(
            "note: up to {} of {} slots are tried, which takes a while; --population and \
             --iterations set their number",
            many(tries as u64, "set"),
            number(slots as u64)
        );
    }
    let with = |plan| PlanReport {
        read: &read,
        summary: &summary,
        dag: &dag,
        offers: &offers,
        source: &source,
        request: &request,
        plan,
    };
    let plan = match planning::plan(&dag, &offers, &request) {
        Ok(plan) => plan,
        Err(NoPlan::NoSlots) => return Err(no_slots(&source)),
        Err(NoPlan::NoPlace(blocked)) => return Err(unplaced(&blocked, &read, &dag, &offers)),
        Err(NoPlan::Constraint(missed)) => {
            let object = with(&missed.nearest).object();
            return Err(unmet(&missed, &object, &offers));
        }
    };
    let planned = with(&plan);
    if !args.json && !quiet {
        for note in read.notes() {
            eprintln!("note: {}", note.line(&read.file));
        }
    }
    let mut artefacts = Artefacts::of(args.out.as_deref());
    if artefacts.are_wanted() {
        for (name, text) in planned.files().map_err(Failed::failure)? {
            artefacts.keep(name, text);
        }
    }
    let text = || {
        let mut text = words(&planned);
        if let Some(dir) = &args.out {
            let _ = writeln!(text, "written     {}", dir.display());
        }
        let _ = writeln!(text, "{:.1} s", began.elapsed().as_secs_f64());
        text
    };
    Ok(artefacts.print(args.json, planned.object(), text))
}

/// A time as text.
fn time(time: Time) -> String {
    if time == 0 { "0 s".to_owned() } else { report::seconds(seconds(time)) }
}

/// A cost as text: in processor time, where a processor-second costs 1.
fn cost(value: f64, offers: &Offers) -> String {
    match offers.is_plainly_priced() {
        true if value >= 3600.0 => format!("{} processor-hours", round(value / 3600.0)),
        true => format!("{} processor-seconds", round(value)),
        false => round(value),
    }
}

/// The plan as text.
fn words(planned: &PlanReport<'_>) -> String {
    let PlanReport { read, summary, offers, source, request, plan, .. } = *planned;
    let count = |n: usize| number(n as u64);
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        // Writing to a `String` does not fail.
        let _ = writeln!(text, "{name:12}{value}");
    };
    let format = read.format.map_or_else(String::new, |format| format!(" ({format})"));
    let (tasks, edges) = (many(summary.tasks as u64, "task"), many(summary.edges as u64, "edge"));
    let levels = many(summary.levels as u64, "level");
    // Many files have the same name of a workflow, or none.
    let name = match read.workflow.name.as_str() {
        "" => String::new(),
        name => format!("{}, ", shown(name)),
    };
    line("workflow", format!("{}{format}: {name}{tasks}, {edges}, {levels}", read.file.display()));
    let slots: usize = offers.sites.iter().map(|site| site.slots.len()).sum();
    let sites = offers.sites.iter().filter(|site| !site.slots.is_empty()).count();
    let origin = date(offers.origin_unix_s as u64);
    line(
        "offers",
        format!(
            "{source}: {} of {}, of {origin}",
            many(slots as u64, "slot"),
            many(sites as u64, "site")
        ),
    );
    let points = plan.front.points();
    let search = match SearchMode::from_search(request.search) {
        SearchMode::Paper => "the paper's search",
        SearchMode::Pruned => "the pruned search",
    };
    line(
        "searched",
        format!(
            "{} of slots by {search} and {}, seed {}: {}, {} on the front",
            many(plan.tried as u64, "set"),
            request.method,
            request.seed,
            many(plan.feasible as u64, "plan"),
            count(points.len())
        ),
    );
    table(&mut text, plan, offers);
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "{name:12}{value}");
    };
    line("taken", why(plan, request, offers));
    let objectives = plan.objectives();
    let ends = date(offers.origin_unix_s as u64 + objectives.makespan.div_ceil(SECOND));
    let least = time(plan.chain);
    line(
        "makespan",
        format!(
            "{}, until {ends}; no plan on these sites takes less than {least}",
            time(objectives.makespan)
        ),
    );
    line("cost", cost(objectives.cost, offers));
    let waste = match plan.waste() {
        0.0 => "none: it costs what its tasks alone cost".to_owned(),
        waste if plan.floor > 0.0 => format!(
            "{}: {} above what its tasks alone cost, {}",
            cost(waste, offers),
            percent(waste / plan.floor),
            cost(plan.floor, offers)
        ),
        waste => format!("{}: its tasks alone cost nothing", cost(waste, offers)),
    };
    line("waste", waste);
    for (at, had) in plan.slots.iter().take(SLOTS_SHOWN).enumerate() {
        let site = &offers.sites[had.offer.site];
        let paid = had.paid();
        let used = percent(if paid > 0 { had.used as f64 / paid as f64 } else { 0.0 });
        let what = match (had.offer.divisible, had.end > had.offer.end) {
            (true, false) => "used in part".to_owned(),
            (true, true) => format!("used in part, {} longer", time(had.end - had.offer.end)),
            (false, false) => format!("{used} used"),
            (false, true) => format!("{} longer, {used} used", time(had.end - had.offer.end)),
        };
        let (from, to) = if had.offer.divisible { had.busy } else { (had.offer.start, had.end) };
        line(
            if at == 0 { "slots" } else { "" },
            format!(
                "{} slot {} (epoch {}): {}, {} to {}, {}, {what}, cost {}",
                shown(&site.name),
                had.of_site + 1,
                site.epoch,
                many(had.offer.processors.into(), "processor"),
                time(from),
                time(to),
                many(had.tasks as u64, "task"),
                cost(had.cost, offers)
            ),
        );
    }
    if plan.slots.len() > SLOTS_SHOWN {
        line("", format!("and {} other slots", count(plan.slots.len() - SLOTS_SHOWN)));
    }
    for site in plan.overbooked(offers) {
        let site = &offers.sites[site];
        line(
            "note",
            format!(
                "these slots of {} are more than its {} processors at once: it offers some twice, \
                 and may refuse",
                shown(&site.name),
                site.processors
            ),
        );
    }
    text
}

/// The front as a table. A long front is reduced to its ends and the selected points.
fn table(text: &mut String, plan: &Plan, offers: &Offers) {
    let points = plan.front.points();
    let all = points.len() <= POINTS_SHOWN;
    let last = points.len().saturating_sub(1);
    let matters = |at: usize| {
        all || at == 0
            || at == last
            || at == plan.index_on_front
            || plan.chosen_by_trade_off.contains(&at)
    };
    let (_, head, by) = front::unit_of_cost(plan, offers);
    let _ = writeln!(text, "front       {:>14} {head:>14} {:>6}  trade-offs", "makespan", "slots");
    for (at, point) in points.iter().enumerate().filter(|(at, _)| matters(*at)) {
        let _ = writeln!(
            text,
            "{:>11} {:>14} {:>14} {:>6}  {}",
            if at == plan.index_on_front { ">" } else { "" },
            time(point.objectives.makespan),
            round(point.objectives.cost / by),
            point.slots.ones(),
            front::taken_by(plan, at)
        );
    }
    let others = (0..points.len()).filter(|at| !matters(*at)).count();
    if others > 0 {
        let _ = writeln!(text, "            and {others} others between: --out has them all");
    }
    while text.ends_with(" \n") {
        text.truncate(text.len() - 2);
        text.push('\n');
    }
}

/// The reason why this point of the front was selected.
fn why(plan: &Plan, request: &PlanRequest, offers: &Offers) -> String {
    let points = plan.front.points();
    let Constraint { deadline, budget } = request.constraint;
    let held = points.iter().filter(|point| request.constraint.allows(&point.objectives)).count();
    let of = match (deadline, budget) {
        (None, None) => String::new(),
        (deadline, budget) => {
            let parts = [
                deadline.map(|most| format!("end within {}", time(most))),
                budget.map(|most| format!("cost at most {}", cost(most, offers))),
            ];
            let parts: Vec<String> = parts.into_iter().flatten().collect();
            format!(", among those ({held}) that {}", parts.join(" and "))
        }
    };
    let what = match request.alpha {
        0.0 => ", the fastest".to_owned(),
        1.0 => ", the cheapest".to_owned(),
        alpha => format!(
            ": cost weighs {alpha}, time {}",
            springtide_figures::canvas::plain(1.0 - alpha)
        ),
    };
    match points.len() {
        1 => "the only one: nothing that was found is cheaper or faster".to_owned(),
        _ => format!("number {} by trade-off {}{what}{of}", plan.index_on_front + 1, request.alpha),
    }
}

fn no_slots(source: &str) -> PlanFailure {
    let message = format!("{source}: no site offers a slot: ask again later");
    let failed = Failed::new(Exit::NotPlaced, message);
    PlanFailure { failed, more: vec![("reason", "no-slots".into())] }
}

fn objectives(is: &Objectives) -> Value {
    json!({ "makespan_s": seconds(is.makespan), "cost": is.cost })
}

/// The failure that no plan meets the deadline and the budget.
fn unmet(missed: &NearestPlan, nearest: &Value, offers: &Offers) -> PlanFailure {
    let Constraint { deadline, budget } = missed.constraint;
    let NearestPlan { fastest, cheapest, nearest: plan, .. } = missed;
    let whole = |is: &Objectives| is.makespan.div_ceil(SECOND);
    let up = |cost: f64| springtide_figures::canvas::plain((cost * 100.0).ceil() / 100.0);
    let is_late = deadline.is_some_and(|most| fastest.makespan > most);
    let is_dear = budget.is_some_and(|most| cheapest.cost > most);
    // Below the lower bounds no plan exists. Above them the search only found none.
    let too_short = deadline.is_some_and(|most| plan.chain > most);
    let too_little = budget.is_some_and(|most| plan.floor > most);
    let none = |sure: bool| if sure { "no plan" } else { "no plan that was found" };
    let mut text = String::new();
    let reason = match (is_late, is_dear) {
        (true, false) => "deadline",
        (false, true) => "budget",
        _ => "deadline-and-budget",
    };
    if let Some(most) = deadline.filter(|_| is_late) {
        let _ = write!(
            text,
            "{} ends within {}: the fastest takes {} and costs {} (--deadline {}s)",
            none(too_short),
            time(most),
            time(fastest.makespan),
            cost(fastest.cost, offers),
            whole(fastest)
        );
        if too_short {
            let _ = write!(
                text,
                "; its longest chain of tasks alone takes {} on these sites",
                time(plan.chain)
            );
        }
    }
    if let Some(most) = budget.filter(|_| is_dear) {
        let and = if text.is_empty() { "" } else { "\n" };
        let _ = write!(
            text,
            "{and}{} costs at most {}: the cheapest costs {} and takes {} (--budget {})",
            none(too_little),
            cost(most, offers),
            cost(cheapest.cost, offers),
            time(cheapest.makespan),
            up(cheapest.cost)
        );
        if too_little {
            let _ = write!(text, "; its tasks alone cost {}", cost(plan.floor, offers));
        }
    }
    if let (Some(latest), Some(most), true) = (deadline, budget, text.is_empty()) {
        let points = plan.front.points();
        let in_time = points.iter().find(|point| point.objectives.makespan <= latest);
        let cheap = points.iter().rev().find(|point| point.objectives.cost <= most);
        let _ = write!(
            text,
            "{} ends within {} and costs at most {}",
            none(false),
            time(latest),
            cost(most, offers)
        );
        if let Some(point) = in_time {
            let _ = write!(
                text,
                ": the cheapest in time costs {} (--budget {})",
                cost(point.objectives.cost, offers),
                up(point.objectives.cost)
            );
        }
        if let Some(point) = cheap {
            let _ = write!(
                text,
                ", the fastest for that takes {} (--deadline {}s)",
                time(point.objectives.makespan),
                whole(&point.objectives)
            );
        }
    }
    if !too_short && !too_little {
        text.push_str("\n  a longer search may find one: --population, --iterations");
    }
    let part = ["makespan_s", "critical_path_s", "cost", "floor", "waste", "slots"];
    let part: serde_json::Map<String, Value> =
        part.into_iter().map(|key| (key.to_owned(), nearest[key].clone())).collect();
    let more = vec![
        ("reason", reason.into()),
        ("nearest", part.into()),
        ("fastest", objectives(fastest)),
        ("cheapest", objectives(cheapest)),
    ];
    PlanFailure { failed: Failed::new(Exit::NotPlaced, text), more }
}

/// The failure that a task has no place.
fn unplaced(blocked: &BlockedTask, read: &Read, dag: &Dag, offers: &Offers) -> PlanFailure {
    let BlockedTask { why, ready, widest, longest, largest, narrower, other, .. } = blocked;
    let name = |site: usize| shown(&offers.sites[site].name);
    let procs = |count: u32| many(count.into(), "processor");
    let are = |count: u32| format!("{} {}", procs(count), if count == 1 { "is" } else { "are" });
    let free = match why.most {
        0 => "no site has any free for so long".to_owned(),
        most => format!("at most {most} of one site are free for so long at once"),
    };
    let mut text = format!(
        "no plan: task {} needs {} for {} and has no place in {}: {free}{}",
        shown(&why.task),
        procs(why.processors),
        time(why.runtime),
        many(why.slots as u64, "slot"),
        why.late
    );
    let mut line = |what: String| {
        text.push_str("\n  ");
        text.push_str(&what);
    };
    if *ready > 0 {
        line(format!(
            "it cannot start before {}, when what it waits for has ended at best",
            time(*ready)
        ));
    }
    if let Some((site, most, from)) = widest {
        line(format!(
            "the most that is offered of one site at once: {} of {}, from {} on",
            many(*most, "processor"),
            name(*site),
            time(*from)
        ));
    }
    match longest {
        Some((site, from, to)) if *to < forever() => line(format!(
            "the longest time for which {} offered: {}, at {} from {} to {}",
            are(why.processors),
            time(to - from),
            name(*site),
            time(*from),
            time(*to)
        )),
        Some((site, from, _)) => line(format!(
            "{} offered for as long as needed at {}, from {} on, where other tasks have them",
            are(why.processors),
            name(*site),
            time(*from)
        )),
        None => line(format!("{} not offered of one site at any time", are(why.processors))),
    }
    let (site, most) = *largest;
    if most < why.processors {
        line(format!("no site is that large: the largest, {}, has {}", name(site), procs(most)));
    } else {
        let ends = offers.slots().iter().map(|slot| slot.end).max().unwrap_or(0);
        line(format!(
            "{} has {}: plan again with later offers (these end at {}, {})",
            name(site),
            procs(most),
            time(ends),
            date(offers.origin_unix_s as u64 + ends / SECOND)
        ));
    }
    let plan = |is: &Objectives| {
        format!("takes {} and costs {}", time(is.makespan), cost(is.cost, offers))
    };
    if let Some((method, is)) = other {
        line(format!("--method {} finds a plan, which {}", method_word(*method), plan(is)));
    }
    let mut more = vec![
        ("reason", "task".into()),
        (
            "task",
            json!({
                "name": why.task, "processors": why.processors,
                "runtime_s": seconds(why.runtime), "most": why.most,
            }),
        ),
    ];
    if let Some((changed, is)) = narrower {
        let rows = rows(changed, read);
        line(format!(
            "with fewer processors for the same time there is a plan, which {}: --overrides FILE, \
             a table\n    name,runtime_s,processors",
            plan(is)
        ));
        for (name, processors) in rows.iter().take(ROWS_SHOWN) {
            line(format!("  {},,{processors}", quoted(name)));
        }
        if rows.len() > ROWS_SHOWN {
            line(format!("  and {} others", rows.len() - ROWS_SHOWN));
        }
        let rows: Vec<Value> = rows
            .iter()
            .map(|(name, processors)| json!({ "name": name, "processors": processors }))
            .collect();
        more.push((
            "nearest",
            json!({
                "makespan_s": seconds(is.makespan), "cost": is.cost, "overrides": rows,
            }),
        ));
    } else if dag.task(blocked.task).processors > 1 {
        line("give it fewer processors, or a shorter runtime, with --overrides".to_owned());
    } else {
        line("if it takes less, give its runtime with --overrides".to_owned());
    }
    PlanFailure { failed: Failed::new(Exit::NotPlaced, text), more }
}

/// The proposed overrides: by program where all its tasks change alike, else by task.
fn rows(changed: &[(usize, u32)], read: &Read) -> Vec<(String, u32)> {
    let tasks = &read.workflow.tasks;
    let mut rows: Vec<(String, u32)> = Vec::new();
    let mut by_kind: std::collections::BTreeMap<&str, Vec<(usize, u32)>> =
        std::collections::BTreeMap::new();
    for &(task, processors) in changed {
        by_kind.entry(&tasks[task].name).or_default().push((task, processors));
    }
    for (kind, changed) in by_kind {
        let of_kind = tasks.iter().filter(|task| task.name == kind).count();
        let alike = changed.iter().all(|(_, processors)| *processors == changed[0].1);
        if alike && of_kind == changed.len() {
            rows.push((kind.to_owned(), changed[0].1));
        } else {
            rows.extend(changed.iter().map(|&(task, p)| (tasks[task].id.clone(), p)));
        }
    }
    rows
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
