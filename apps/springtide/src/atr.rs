//! `sim atr`: the tables and figures of the paper on adaptive control of ATR, by the live solver on simulated grids of its workers' speeds.
//!
//! Scenarios are really solved, and take the paper's time in the simulation; the master takes the paper's. Must not know how grids are
//! simulated, nor how programs are solved.
//!
//! Source: Buaklee, Tracy, Vernon, Wright: Near-optimal adaptive control of a large grid application (ICS 2002), Tables 3 to 5, Figures 6
//! and 7.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueHint};
use plotters::prelude::*;
use serde::Serialize;
use serde_json::{Value, json};
use springtide_actors::job::JobParams;
use springtide_actors::policy::Mode;
use springtide_runtime::id::NodeId;
use springtide_runtime::net::memory::MemoryConfig;
use springtide_runtime::work::Registry;
use springtide_simulator::figure::{self, COLOURS, FigureError, wrong};
use springtide_simulator::machines::Machine;
use springtide_simulator::{Grid, Layout, Place, on_all_cores, simulate};
use springtide_stochastic::Solve;
use springtide_stochastic::model::TwoStage;
use springtide_stochastic::smps::{self, Files};
use springtide_stochastic::solve::worker::Pace;

use crate::exit::Failed;
use crate::outdir::Artefacts;

/// What can be played.
const PARTS: [&str; 5] = ["table3", "table4", "table5", "figure6", "figure7"];
/// The most simulated time of a run.
const ENDS_WITHIN: Duration = Duration::from_secs(30 * 24 * 3600);

/// `sim atr ...`
#[derive(Args, Clone, Debug)]
pub struct AtrArgs {
    /// The directory of the programs ssn, 20term and storm, each in one of its name
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    programs: PathBuf,
    /// Play only these: table3, table4, table5, figure6, figure7; several after commas [default: all]
    #[arg(long, value_name = "PART", value_delimiter = ',', value_parser = PARTS, hide_possible_values = true)]
    only: Vec<String>,
    /// Draw so many times the paper's scenarios, each of which takes as much longer: the work stays the same
    #[arg(long, value_name = "S", default_value_t = 0.1, value_parser = scale)]
    scale: f64,
    /// Seed of the scenarios
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
    /// Directory for the figures (SVG) and the result (JSON)
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    out: Option<PathBuf>,
}

fn scale(text: &str) -> Result<f64, String> {
    let scale = text.parse::<f64>().ok().filter(|scale| (0.01..=1.0).contains(scale));
    scale.ok_or_else(|| "give a number from 0.01 to 1".to_owned())
}

/// A run as it is to be played.
#[derive(Clone, Debug)]
struct Play {
    program: &'static str,
    scenarios: u64,
    tasks: u32,
    /// Seconds that each worker takes for its equal share of the scenarios.
    shares_s: Vec<f64>,
    /// How many workers make those shares.
    groups: u32,
    /// Seconds of the master for a decision.
    master_s: f64,
    /// It begins where nothing is known.
    blind: bool,
    how: How,
}

/// Runs, each with what the paper has of it.
type Plays = Vec<(Play, Value)>;

/// What is made of them: its name, and which.
type Part = (&'static str, fn() -> Plays);

/// By which rules.
#[derive(Clone, Copy, Debug, PartialEq)]
enum How {
    /// All that is built here.
    Ours,
    /// Tasks are not split, as in the paper.
    Whole,
    /// As many tasks for each worker.
    Equal,
    /// The rules of thumb, with as many iterates at once and groups as they allow.
    Thumb(usize, u32),
    /// As many iterates at once.
    Basket(usize),
}

/// What came of one.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Played {
    iterations: u32,
    /// Minutes of the sample that was asked for, without those solved before it.
    minutes: f64,
    /// As it was foreseen, for the iterates of which it was, in the same proportion.
    foreseen_minutes: f64,
    /// By which that is wrong.
    error: f64,
    /// What is the least, if work could be divided at will.
    least_minutes: f64,
    /// Workers that got something in most iterates.
    used: u64,
}

fn play(play: &Play, model: &TwoStage, args: &AtrArgs) -> Result<Played, Failed> {
    let scenarios = ((play.scenarios as f64 * args.scale) as u64).max(u64::from(play.tasks));
    let share = scenarios as f64 / f64::from(play.groups);
    let fastest = play.shares_s.iter().copied().fold(f64::INFINITY, f64::min);
    let scenario_us = (fastest / share * 1e6) as u64;
    let speeds: Vec<f64> = play.shares_s.iter().map(|seconds| fastest / seconds).collect();
    let bench = ((25.0 * args.scale) as u32).max(1);
    let base = Solve::of(model.clone());
    let block = match play.how {
        How::Ours => ((10.0 * args.scale) as u64).max(1),
        _ => scenarios,
    };
    let job = Solve {
        scenarios: Some(scenarios),
        tasks: Some(play.tasks),
        seed: args.seed,
        estimate: Some(0),
        isolate: true,
        explain: true,
        block: Some(block),
        equal_split: play.how == How::Equal,
        rules_of_thumb: matches!(play.how, How::Thumb(..)),
        basket: if let How::Basket(basket) | How::Thumb(basket, _) = play.how { basket } else { 1 },
        groups: if let How::Thumb(_, groups) = play.how { Some(groups) } else { None },
        no_warm_start: play.blind,
        decision: play.blind.then(|| vec![0.0; model.first.columns.len()]),
        pace: Some(Pace { scenario_us, master_us: (play.master_s * 1e6) as u64, bench }),
        ..base
    };
    let machine = |speed| Machine { threads: 1, speed };
    let place = |name: &str, nodes| Place { name: name.into(), nodes, machine: machine(1.0) };
    let workers = u32::try_from(speeds.len()).unwrap_or(u32::MAX);
    let layout = Layout {
        clusters: vec![place("a", 1), place("b", workers)],
        network: MemoryConfig::default(),
        seed: 1,
        leave_within: Duration::from_secs(30),
        stoppable: false,
    };
    let ended = simulate(|| async {
        let mut registry = Registry::new();
        registry.job::<Solve>();
        let grid = Grid::start(&layout, registry).await;
        for (at, speed) in (1..).zip(&speeds) {
            grid.machines().set_speed(&NodeId::from(format!("b-{at}")), *speed);
        }
        let params = JobParams { mode: Mode::Static, ..JobParams::default() };
        let run = grid.submit(job, params, None).await.map_err(Failed::failure)?;
        run.ended(ENDS_WITHIN).await.map_err(Failed::failure)
    })?;
    let outcome = ended.ended.outcome.map_err(Failed::failure)?;
    played(&outcome.result)
        .ok_or_else(|| Failed::failure(format!("the run told no iterates: {}", outcome.result)))
}

fn played(result: &Value) -> Option<Played> {
    let legs = result["warm_start"].as_array()?.len() as u64;
    let all = result["controller"]["iterates"].as_array()?;
    let rows: Vec<&Value> = all.iter().filter(|row| row["phase"] == legs).collect();
    let sum = |key: &str, of: &dyn Fn(&&&Value) -> bool| -> f64 {
        rows.iter().filter(of).filter_map(|row| row[key].as_f64()).sum()
    };
    let known = |row: &&&Value| row["predicted_s"].is_f64();
    let measured = sum("measured_s", &known);
    // From the end of the samples before it: iterates may overlap.
    let ends = |of: &dyn Fn(u64) -> bool| {
        let ends = all.iter().filter(|row| row["phase"].as_u64().is_some_and(of));
        ends.filter_map(|row| row["ended_s"].as_f64()).fold(0.0, f64::max)
    };
    let seconds = ends(&|leg| leg == legs) - ends(&|leg| leg < legs);
    let ratio = if measured > 0.0 { sum("predicted_s", &known) / measured } else { f64::NAN };
    let least = sum("fluid_s", &known) + sum("master_s", &known);
    let mut used: Vec<u64> = rows.iter().filter_map(|row| row["used"].as_u64()).collect();
    used.sort_unstable();
    Some(Played {
        iterations: result["iterations"].as_u64()? as u32,
        minutes: seconds / 60.0,
        foreseen_minutes: ratio * seconds / 60.0,
        error: ratio - 1.0,
        least_minutes: least / measured * seconds / 60.0,
        used: used.get(used.len() / 2).copied().unwrap_or(0),
    })
}

// --- Table 3 ---

/// Problem, scenarios, tasks, workers, iterations, seconds of the master in all and of a worker for its share, model, measured.
type Row3 = (&'static str, u64, u32, u32, u32, f64, f64, f64, f64);

const TABLE3: [Row3; 13] = [
    ("20term", 5000, 200, 50, 597, 2762.94, 2.35, 69.47, 70.54),
    ("ssn", 40_000, 100, 50, 84, 297.36, 30.97, 48.83, 52.21),
    ("ssn", 20_000, 50, 50, 108, 180.90, 20.91, 40.84, 44.70),
    ("ssn", 20_000, 100, 50, 84, 244.00, 20.89, 33.51, 36.38),
    ("ssn", 20_000, 200, 50, 61, 295.30, 20.88, 26.40, 29.32),
    ("ssn", 5000, 200, 50, 131, 1076.82, 3.23, 25.05, 26.80),
    ("ssn", 20_000, 400, 50, 44, 441.80, 20.96, 22.98, 24.98),
    ("storm", 10_000, 200, 50, 11, 2.53, 82.44, 16.53, 18.48),
    ("ssn", 10_000, 50, 50, 66, 56.70, 6.44, 8.14, 9.23),
    ("ssn", 10_000, 100, 50, 50, 71.79, 6.48, 6.70, 8.23),
    ("ssn", 10_000, 200, 50, 38, 79.46, 6.44, 5.51, 6.62),
    ("ssn", 10_000, 400, 50, 26, 70.45, 6.43, 4.07, 4.92),
    ("ssn", 10_000, 100, 100, 44, 70.32, 3.31, 3.65, 4.71),
];

fn table3() -> Plays {
    let row = |row: &Row3| {
        let (program, scenarios, tasks, workers, iterations, master, share, model, measured) = *row;
        let play = Play {
            program,
            scenarios,
            tasks,
            shares_s: vec![share; workers as usize],
            groups: workers,
            master_s: master / f64::from(iterations),
            blind: program == "20term" || scenarios == 5000,
            how: How::Ours,
        };
        (
            play,
            json!({ "iterations": iterations, "model_minutes": model, "measured_minutes": measured }),
        )
    };
    TABLE3.iter().map(row).collect()
}

// --- Table 4 ---

/// Seconds of a worker for its share (mean, least, most), workers; minutes of the non-adaptive run (measured, or its model), of the
/// adaptive one (measured, or its model), and how many workers that used.
type Row4 = (f64, f64, f64, u32, f64, f64, u32);

const TABLE4: [Row4; 12] = [
    (7.04, 4.21, 28.62, 50, 34.65, 10.66, 48),
    (7.03, 4.19, 28.62, 50, 35.07, 11.22, 48),
    (6.62, 4.18, 13.82, 50, 14.35, 8.81, 48),
    (4.44, 2.14, 21.52, 100, 17.73, 3.97, 72),
    (4.36, 2.14, 15.33, 100, 14.60, 4.49, 68),
    (2.86, 1.36, 13.88, 150, 13.75, 3.95, 75),
    (2.76, 1.38, 9.42, 150, 9.07, 3.61, 75),
    (2.86, 1.37, 9.78, 150, 9.63, 3.30, 75),
    (2.11, 1.68, 10.21, 200, 9.67, 2.82, 100),
    (7.76, 2.58, 19.46, 50, 22.32, 11.43, 26),
    (2.25, 1.20, 9.59, 100, 8.67, 4.78, 86),
    (2.84, 0.83, 9.60, 100, 9.52, 6.78, 67),
];

/// So many numbers with this mean, least and most: the least and a power of evenly spread ones above it, as skewed as the mean asks.
fn spread(mean: f64, least: f64, most: f64, count: u32) -> Vec<f64> {
    let of = |power: f64| -> Vec<f64> {
        let even = |at: u32| f64::from(at) / f64::from(count.max(2) - 1);
        (0..count).map(|at| least + (most - least) * even(at).powf(power)).collect()
    };
    let (mut low, mut high) = (0.01, 100.0);
    for _ in 0..60 {
        let power: f64 = (low + high) / 2.0;
        let all = of(power);
        if all.iter().sum::<f64>() / f64::from(count) > mean { low = power } else { high = power }
    }
    of(low)
}

/// The paper does not say how many tasks; its numbers of iterations are those of 50 with 50 workers, and of 100 with more.
fn table4() -> Plays {
    let mut plays = Vec::new();
    for (mean, least, most, workers, non_adaptive, adaptive, used) in TABLE4 {
        let (tasks, master_s) = if workers > 50 { (100, 71.79 / 50.0) } else { (50, 56.70 / 66.0) };
        let play = |how| Play {
            program: "ssn",
            scenarios: 10_000,
            tasks,
            shares_s: spread(mean, least, most, workers),
            groups: workers,
            master_s,
            blind: false,
            how,
        };
        let paper = json!({ "non_adaptive_minutes": non_adaptive, "adaptive_minutes": adaptive, "used": used });
        for how in [How::Equal, How::Whole, How::Ours] {
            plays.push((play(how), paper.clone()));
        }
    }
    plays
}

// --- Table 5, figures ---

/// The ends of what the rules of thumb allow for 50 workers: iterates at once, and groups.
const THUMBS: [(usize, u32); 4] = [(3, 25), (3, 50), (6, 25), (6, 50)];

/// ssn with 40,000 scenarios and 50 workers, of one speed, or of those of the first row of Table 4: by the rules of thumb, and ours.
fn table5() -> Plays {
    let mut plays = Vec::new();
    for shares_s in [vec![30.97; 50], spread(4.0 * 7.04, 4.0 * 4.21, 4.0 * 28.62, 50)] {
        let thumbs = THUMBS.map(|(basket, groups)| How::Thumb(basket, groups));
        for how in [&[How::Ours][..], &thumbs].concat() {
            // The master's seconds are those of Table 3 with as many tasks.
            let (tasks, master_s) = match how {
                How::Thumb(..) => (100, 297.36 / 84.0),
                _ => (400, 441.80 / 44.0),
            };
            let play = Play {
                program: "ssn",
                scenarios: 40_000,
                tasks,
                shares_s: shares_s.clone(),
                groups: 50,
                master_s,
                blind: false,
                how,
            };
            plays.push((play, Value::Null));
        }
    }
    plays
}

fn of_tasks() -> Plays {
    [25, 50, 100, 200, 400, 800].map(|tasks| (figure_play(tasks, How::Ours), Value::Null)).to_vec()
}

fn of_baskets() -> Plays {
    let both = |tasks: u32| {
        [1, 2, 4, 8].map(|basket| (figure_play(tasks, How::Basket(basket)), Value::Null))
    };
    [both(50), both(100), both(200)].concat()
}

fn figure_play(tasks: u32, how: How) -> Play {
    let (program, scenarios, shares_s) = ("ssn", 10_000, vec![6.44; 50]);
    Play { program, scenarios, tasks, shares_s, groups: 50, master_s: 1.4, blind: false, how }
}

/// Does it.
///
/// # Errors
/// A program is not there or wrong, a run does not end, or a file cannot be written.
pub fn atr(args: &AtrArgs) -> Result<(), Failed> {
    let wanted = |part: &str| args.only.is_empty() || args.only.iter().any(|one| one == part);
    let parts: [Part; 5] = [
        (PARTS[0], table3),
        (PARTS[1], table4),
        (PARTS[2], table5),
        (PARTS[3], of_tasks),
        (PARTS[4], of_baskets),
    ];
    let mut programs: Vec<(&str, TwoStage)> = Vec::new();
    let mut all = json!({ "scale": args.scale, "seed": args.seed });
    let mut text = String::new();
    let mut artefacts = Artefacts::of(args.out.as_deref());
    for (name, plays) in parts.into_iter().filter(|(name, _)| wanted(name)) {
        let plays = plays();
        for (play, _) in &plays {
            if programs.iter().all(|(known, _)| *known != play.program) {
                programs.push((play.program, program(&args.programs, play.program)?));
            }
        }
        let model = |play: &Play| {
            programs.iter().find(|(name, _)| *name == play.program).map(|(_, model)| model)
        };
        let played = on_all_cores(&plays, |(one, _)| match model(one) {
            Some(model) => play(one, model, args),
            None => Err(Failed::failure("a program was not read")),
        });
        let played: Vec<Played> = played.into_iter().collect::<Result<_, Failed>>()?;
        let rows: Vec<(&Play, &Value, Played)> =
            plays.iter().zip(played).map(|((play, paper), played)| (play, paper, played)).collect();
        text.push_str(&shown(name, &rows));
        all[name] = rows.iter().map(|(play, paper, played)| told(play, paper, played)).collect();
        if let Some(drawn) = drawn(name, &rows).map_err(Failed::failure)? {
            artefacts.keep(&format!("{name}.svg"), drawn);
        }
    }
    artefacts.keep("result.json", format!("{all:#}\n"));
    artefacts.print(args.json, all, || text)
}

fn program(dir: &Path, name: &str) -> Result<TwoStage, Failed> {
    let files = Files::find(&dir.join(name)).map_err(Failed::usage)?;
    Ok(smps::read(&files).map_err(Failed::usage)?.0)
}

fn told(play: &Play, paper: &Value, played: &Played) -> Value {
    let mean = play.shares_s.iter().sum::<f64>() / play.shares_s.len() as f64;
    json!({
        "program": play.program, "scenarios": play.scenarios, "tasks": play.tasks, "workers": play.shares_s.len(),
        "share_s": mean, "how": format!("{:?}", play.how).to_lowercase(), "paper": paper, "ours": played,
    })
}

fn shown(name: &str, rows: &[(&Play, &Value, Played)]) -> String {
    let number = |value: &Value| value.as_f64().unwrap_or(f64::NAN);
    let mut out = match name {
        "table3" => "Table 3: workers of one speed (minutes; at n: ours for as many iterations as the paper's)\n\
                     program  scenarios tasks workers |    n  measured foreseen  error |  paper: n  model measured | ours at n\n"
            .to_owned(),
        "table4" => "Table 4: ssn, 10,000 scenarios, workers of unequal speeds (minutes; paper's in brackets)\n\
                     workers  share_s mean | equal split      | whole tasks      used    | ours    used  least error | gain\n"
            .to_owned(),
        "table5" => "Table 5: ssn, 40,000 scenarios, 50 workers (minutes; the paper: 4 to 8 times faster, and 3 to 4)\n".to_owned(),
        "figure6" => "Figure 6(b): iterations by tasks, ssn, 10,000 scenarios\n".to_owned(),
        _ => "Figure 7: iterations by baskets, ssn, 10,000 scenarios\n".to_owned(),
    };
    match name {
        "table3" => {
            for (play, paper, ours) in rows {
                let n = number(&paper["iterations"]);
                out += &format!(
                    "{:8} {:9} {:5} {:7} | {:4} {:9.2} {:8.2} {:5.1} % | {:9} {:6.2} {:8.2} | {:9.2}\n",
                    play.program,
                    play.scenarios,
                    play.tasks,
                    play.shares_s.len(),
                    ours.iterations,
                    ours.minutes,
                    ours.foreseen_minutes,
                    ours.error * 100.0,
                    n,
                    number(&paper["model_minutes"]),
                    number(&paper["measured_minutes"]),
                    ours.minutes / f64::from(ours.iterations) * n,
                );
            }
        }
        "table4" => {
            for three in rows.chunks(3) {
                let [(play, paper, equal), (_, _, whole), (_, _, ours)] = three else { continue };
                let mean = play.shares_s.iter().sum::<f64>() / play.shares_s.len() as f64;
                out += &format!(
                    "{:7} {:13.2} | {:6.2} ({:6.2})  | {:6.2} ({:6.2}) {:4} ({:3}) | {:6.2} {:5} {:6.2} {:4.1} % | {:4.1}x ({:3.1}x)\n",
                    play.shares_s.len(),
                    mean,
                    equal.minutes,
                    number(&paper["non_adaptive_minutes"]),
                    whole.minutes,
                    number(&paper["adaptive_minutes"]),
                    whole.used,
                    number(&paper["used"]),
                    ours.minutes,
                    ours.used,
                    ours.least_minutes,
                    ours.error * 100.0,
                    equal.minutes / ours.minutes,
                    number(&paper["non_adaptive_minutes"]) / number(&paper["adaptive_minutes"]),
                );
            }
        }
        "table5" => {
            let speeds = ["one speed", "unequal speeds"];
            for (five, speeds) in rows.chunks(1 + THUMBS.len()).zip(speeds) {
                let Some(((_, _, ours), thumbs)) = five.split_first() else { continue };
                out += &format!(
                    "{speeds:15} ours                        {:7.2} ({} iterations)\n",
                    ours.minutes, ours.iterations
                );
                for (play, _, thumb) in thumbs {
                    let How::Thumb(basket, groups) = play.how else { continue };
                    out += &format!(
                        "                {basket} iterates at once, {groups} groups {:7.2} ({} iterations): {:.1}x\n",
                        thumb.minutes,
                        thumb.iterations,
                        thumb.minutes / ours.minutes,
                    );
                }
            }
        }
        _ => {
            for (play, _, ours) in rows {
                let basket = if let How::Basket(basket) = play.how { basket } else { 1 };
                out += &format!(
                    "{:4} tasks, basket {basket}: {:4} iterations, {:7.2} min\n",
                    play.tasks, ours.iterations, ours.minutes
                );
            }
        }
    }
    out + "\n"
}

/// Figures 6(b) and 7; the tables have none.
fn drawn(name: &str, rows: &[(&Play, &Value, Played)]) -> Result<Option<String>, FigureError> {
    let basket = |play: &Play| if let How::Basket(basket) = play.how { basket } else { 1 };
    let most = rows.iter().map(|(_, _, ours)| f64::from(ours.iterations)).fold(1.0, f64::max);
    // Each step to the right is twice as many.
    let (of_tasks, label, from, steps): (_, _, f64, u32) = match name {
        "figure6" => (true, "tasks", 25.0, 5),
        "figure7" => (false, "iterates at once", 1.0, 3),
        _ => return Ok(None),
    };
    let mut series: Vec<(u32, Vec<(f64, f64)>)> = Vec::new();
    for (play, _, ours) in rows {
        let key = if of_tasks { 0 } else { play.tasks };
        let x = if of_tasks { f64::from(play.tasks) } else { basket(play) as f64 };
        let x = (x / from).log2();
        if series.last().is_none_or(|(last, _)| *last != key) {
            series.push((key, Vec::new()));
        }
        if let Some((_, points)) = series.last_mut() {
            points.push((x, f64::from(ours.iterations)));
        }
    }
    let svg = figure::draw((720, 420), |area| {
        let mut chart = ChartBuilder::on(area)
            .caption("Iterations of ssn, 10,000 scenarios", ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(50)
            .build_cartesian_2d(0.0..f64::from(steps), 0.0..most * 1.1)
            .map_err(wrong)?;
        chart
            .configure_mesh()
            .x_desc(label)
            .x_labels(steps as usize + 1)
            .x_label_formatter(&|x| format!("{:.0}", from * x.exp2()))
            .y_desc("iterations")
            .y_label_formatter(&|y| format!("{y:.0}"))
            .light_line_style(WHITE)
            .draw()
            .map_err(wrong)?;
        for ((key, points), colour) in series.iter().zip(COLOURS) {
            let line = chart
                .draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)))
                .map_err(wrong)?;
            if !of_tasks {
                let line = line.label(format!("{key} tasks"));
                line.legend(move |(x, y)| {
                    PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2))
                });
            }
            chart
                .draw_series(points.iter().map(|point| Circle::new(*point, 4, colour.filled())))
                .map_err(wrong)?;
        }
        if !of_tasks {
            figure::legend(&mut chart, SeriesLabelPosition::UpperLeft)?;
        }
        Ok(())
    });
    svg.map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_have_the_papers_mean_and_ends() {
        for (mean, least, most, count, ..) in TABLE4 {
            let all = spread(mean, least, most, count);
            let got = all.iter().sum::<f64>() / f64::from(count);
            assert!((got / mean - 1.0).abs() < 1e-6, "{got} {mean}");
            assert!((all[0] - least).abs() < 1e-9 && (all[all.len() - 1] - most).abs() < 1e-9);
        }
    }

    /// n t_M + n t_W is the model's column; storm's has one evaluation more.
    #[test]
    fn the_papers_model_gives_its_own_table() {
        for (_, _, _, _, iterations, master, share, model, _) in TABLE3 {
            let minutes = |more: u32| (master + f64::from(iterations + more) * share) / 60.0;
            assert!((0..2).any(|more| (minutes(more) / model - 1.0).abs() < 0.02), "{model}");
        }
    }
}
