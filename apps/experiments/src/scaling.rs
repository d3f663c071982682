//! `sim barnes-hut`: the speed-up of a Barnes-Hut run on growing numbers of simulated workers, with
//! distributed and with replicated bodies.
//!
//! With distributed bodies the job itself runs in virtual time, with real bodies and messages; its
//! work takes the times measured on this host. Replicated bodies are simulated by a model with the
//! same work and messages of the same length. This module does not know the simulation itself.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum, ValueHint};
use plotters::prelude::*;
use serde::Serialize;
use serde_json::json;
use springtide_actors::job::JobParams;
use springtide_actors::policy::Mode;
use springtide_barnes_hut::domains::{Costs, measure};
use springtide_barnes_hut::options::{Distribution, Model as Bodies};
use springtide_barnes_hut::{BarnesHut, generate};
use springtide_cli::exit::Failed;
use springtide_cli::outdir::Artefacts;
use springtide_cli::print::print;
use springtide_runtime::config::{ByteRate, Time};
use springtide_runtime::net::LinkProfile;
use springtide_runtime::net::memory::MemoryConfig;
use springtide_runtime::work::{Job, Registry};
use springtide_simulator::apps::ModelledJob;
use springtide_simulator::figure::{self, COLOURS, FigureError, drawing_error};
use springtide_simulator::machines::Machine;
use springtide_simulator::{Layout, SimulatedCluster, SimulatedGrid, simulate};

/// The maximum simulated time of a run.
const SIMULATED_TIME_MAX: Duration = Duration::from_secs(30 * 24 * 3600);
/// The number of bodies for measuring costs and choosing the accuracy.
const SAMPLE: usize = 200_000;
/// Bytes per body of a version of the positions as changes, for a Plummer sphere; see
/// BENCHMARKS.md.
const CHANGE_BYTES: f64 = 3.2;

/// Options of `sim barnes-hut`.
#[derive(Args, Clone, Debug)]
pub struct ScalingArgs {
    /// Number of bodies of the Plummer sphere
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    bodies: usize,
    /// Numbers of workers with one thread, one run each; a run with one worker is always included
    #[arg(long, value_name = "N,N,...", value_delimiter = ',', default_value = "8,32,128")]
    workers: Vec<u32>,
    /// Number of clusters over which workers are distributed
    #[arg(
        long,
        value_name = "N",
        default_value_t = 4,
        value_parser = clap::value_parser!(u32).range(1..=64),
    )]
    clusters: u32,
    /// Steps of a run
    #[arg(
        long,
        value_name = "N",
        default_value_t = 8,
        value_parser = clap::value_parser!(u64).range(1..),
    )]
    steps: u64,
    /// Length of a step, in the sphere's time unit
    #[arg(long, value_name = "TIME", default_value_t = 1.0 / 1024.0)]
    dt: f64,
    /// Number of steps between sorts of bodies into cells
    #[arg(long, value_name = "K", default_value_t = 8)]
    rekey_every: u64,
    /// Maximum relative error of forces, as root mean square
    #[arg(long, value_name = "ERROR", default_value_t = 1e-3)]
    force_error: f64,
    /// Bandwidth of a cluster's network, for all nodes together
    #[arg(long, value_name = "RATE", default_value = "32Gbit/s")]
    lan: ByteRate,
    /// Bandwidth of a link between two clusters, in each direction
    #[arg(long, value_name = "RATE", default_value = "100Mbit/s")]
    wan: ByteRate,
    /// Round-trip time between two clusters
    #[arg(long, value_name = "TIME", default_value = "20ms")]
    rtt: Time,
    /// Simulate only this distribution
    #[arg(long, value_name = "WHICH", value_enum)]
    only: Option<Replication>,
    /// Costs instead of measured ones, in nanoseconds: a pair of body and point, a pair of body and
    /// cell with second moments, a list entry, moving a body, a cell; encoding or decoding a
    /// number, sorting a body
    #[arg(long, value_name = "POINT,QUAD,ENTRY,BODY,CELL,NUMBER,KEY", value_parser = costs)]
    costs: Option<Costs>,
    /// Random seed of the bodies
    #[arg(long, value_name = "N", default_value_t = 42)]
    seed: u64,
    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
    /// Directory for the figure (SVG) and the result (JSON)
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    out: Option<PathBuf>,
}

fn costs(text: &str) -> Result<Costs, String> {
    let costs: Result<Vec<f64>, _> = text.split(',').map(str::parse).collect();
    let costs = costs.map_err(|error| error.to_string())?;
    match costs[..] {
        [point, quad, entry, body, cell, number, key]
            if costs.iter().all(|cost| (0.0..1e9).contains(cost)) =>
        {
            Ok(Costs { point, quad, entry, body, cell, number, key })
        }
        _ => Err("must be seven numbers of nanoseconds, comma-separated".to_owned()),
    }
}

/// The distribution of bodies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Replication {
    /// Each node has a domain of bodies
    Domains,
    /// Each node has all bodies
    Replicated,
}

/// The result of one run.
#[derive(Clone, Debug, Serialize)]
struct ScalingRun {
    which: Replication,
    workers: u32,
    /// Seconds of a step: the mean of all but the first.
    step_s: f64,
    /// Seconds of each step, including the first.
    steps_s: Vec<f64>,
    /// Time of one worker, divided by this time and the number of workers.
    efficiency: f64,
    /// Bytes between clusters in each step, over all links.
    wide_bytes: f64,
    /// Reports about processes.
    said: Vec<String>,
}

/// Runs the experiment.
///
/// # Errors
/// An option is wrong, a run does not end, or a file cannot be written.
pub fn scaling(args: &ScalingArgs) -> Result<(), Failed> {
    let sample = generate::plummer(args.bodies.clamp(1, SAMPLE), args.seed);
    let mut job = BarnesHut {
        model: Bodies::Plummer,
        bodies: args.bodies,
        seed: args.seed,
        steps: args.steps,
        force_error: Some(args.force_error),
        dt: Some(args.dt),
        checkpoint_every: 0,
        loaded: Some(sample.clone()),
        ..BarnesHut::default()
    };
    // The accuracy is chosen on the sample.
    job.prepare().map_err(|error| Failed::usage(error.message))?;
    job.loaded = None;
    let costs = args.costs.unwrap_or_else(|| measure(&job, &sample));
    let work = costs.of_forces(&job, &sample);
    let scale = args.bodies as f64 / sample.len() as f64;

    let mut workers = vec![1];
    workers.extend(args.workers.iter().copied().filter(|&workers| workers > 1));
    let mut rows: Vec<ScalingRun> = Vec::new();
    for which in [Replication::Domains, Replication::Replicated] {
        if args.only.is_some_and(|only| only != which) {
            continue;
        }
        let mut alone = f64::NAN;
        for &workers in &workers {
            let (steps_s, wide_bytes, said) = match which {
                Replication::Domains => {
                    let distribution = Distribution::Domains;
                    let job = BarnesHut {
                        distribution,
                        rekey_every: Some(args.rekey_every),
                        report_every: args.rekey_every.max(1),
                        costs: Some(costs),
                        ..job.clone()
                    };
                    play(args, workers, job)?
                }
                Replication::Replicated => {
                    play(args, workers, replicated(args, &job, &costs, work * scale))?
                }
            };
            // The first step contains the initial transfers.
            let later = &steps_s[1.min(steps_s.len().saturating_sub(1))..];
            let step_s = later.iter().sum::<f64>() / later.len().max(1) as f64;
            if workers == 1 {
                alone = step_s;
            }
            let efficiency = alone / step_s / f64::from(workers);
            rows.push(ScalingRun { which, workers, step_s, steps_s, efficiency, wide_bytes, said });
            if !args.json {
                print(&line(&rows))?;
            }
        }
    }
    let order = job.order.to_possible_value();
    let order = order.as_ref().map(|value| value.get_name());
    let all = json!({
        "bodies": args.bodies, "clusters": args.clusters, "steps": args.steps, "dt": args.dt,
        "rekey_every": args.rekey_every, "force_error": args.force_error,
        "order": order, "cell_error": job.cell_error, "costs_ns": costs, "runs": rows,
    });
    let mut artefacts = Artefacts::of(args.out.as_deref());
    if artefacts.are_wanted() {
        artefacts.keep("result.json", format!("{all:#}\n"));
        artefacts.keep("scaling.svg", draw(args, &rows).map_err(Failed::failure)?);
    }
    // Each line was printed when its run ended.
    artefacts.print(args.json, all, String::new)
}

/// A model of the same run with replicated bodies: each node builds the tree, and one moves the
/// bodies.
fn replicated(args: &ScalingArgs, job: &BarnesHut, costs: &Costs, work_s: f64) -> ModelledJob {
    let bodies = args.bodies as f64;
    let bytes = |each: f64| (each * bodies).min(f64::from(u32::MAX)) as u32;
    let micros = |seconds: f64| (seconds * 1e6) as u64;
    // Encoding and decoding of positions take about 40 and 25 ns per body.
    let tree = (0.5 * costs.key + costs.body + 25.0) * 1e-9 * bodies;
    ModelledJob {
        rounds: args.steps as u32,
        leaves: (args.bodies / job.grain.max(4096) as usize).max(1) as u32,
        work_us: micros(work_s),
        spread: 300,
        serial_us: micros(60e-9 * bodies),
        each_us: micros(tree),
        state_bytes: bytes(CHANGE_BYTES),
        result_bytes: bytes(16.0),
        ..ModelledJob::default()
    }
}

/// Runs a job. Returns the seconds of each step, the mean bytes between clusters, and its reports
/// except progress.
fn play<J: Job>(
    args: &ScalingArgs,
    workers: u32,
    job: J,
) -> Result<(Vec<f64>, f64, Vec<String>), Failed> {
    let clusters = args.clusters.min(workers);
    let place = |at: u32| SimulatedCluster {
        name: format!("c{at}").into(),
        nodes: workers / clusters + u32::from(at < workers % clusters),
        machine: Machine { threads: 1, speed: 1.0 },
        unequal_threads: None,
    };
    let rate = |rate: ByteRate| rate.bytes_per_second() as u64;
    // A queue without losses, so that the results do not depend on congestion.
    let queue = 1 << 30;
    let (lan, wan) = (rate(args.lan), rate(args.wan));
    let network = MemoryConfig {
        inside: LinkProfile { rate: Some(lan), queue, ..LinkProfile::lan() },
        between: LinkProfile { rate: Some(wan), queue, ..LinkProfile::default() }
            .delay(args.rtt.get() / 2),
        queue_bytes: 1 << 30,
        ..MemoryConfig::default()
    };
    let layout = Layout {
        clusters: (0..clusters).map(place).collect(),
        network,
        seed: 1,
        leave_within: Duration::from_secs(30),
        stoppable: false,
    };
    let (ended, bytes) = simulate(|| async {
        let mut registry = Registry::new();
        registry.job::<J>();
        let grid = SimulatedGrid::start(&layout, registry).await;
        let params = JobParams { mode: Mode::Static, ..JobParams::default() };
        let run = grid.submit(job, params, None).await.map_err(Failed::failure)?;
        let ended = run.ended(SIMULATED_TIME_MAX).await.map_err(Failed::failure)?;
        let wide = grid.network().traffic();
        let wide = wide.iter().filter(|((from, to), _)| from != to);
        Ok::<_, Failed>((ended, wide.map(|(_, traffic)| traffic.bytes as f64).sum::<f64>()))
    })?;
    ended.ended.outcome.map_err(Failed::failure)?;
    let said = ended.said.into_iter().filter(|(_, text)| !text.starts_with("step "));
    let said = said.map(|(at, text)| format!("{at:.3?} {text}")).collect();
    Ok((ended.iterations, bytes / args.steps as f64, said))
}

/// The line of the last run, after a header if it is the first.
fn line(rows: &[ScalingRun]) -> String {
    let Some(last) = rows.last() else { return String::new() };
    let which = match last.which {
        Replication::Domains => "domains",
        Replication::Replicated => "replicated",
    };
    let head =
        if rows.len() == 1 { "bodies      workers     step s  speed-up  efficiency\n" } else { "" };
    format!(
        "{head}{which:10} {:8} {:10.4} {:9.1} {:11.2}\n",
        last.workers,
        last.step_s,
        last.efficiency * f64::from(last.workers),
        last.efficiency,
    )
}

fn draw(args: &ScalingArgs, rows: &[ScalingRun]) -> Result<String, FigureError> {
    let most = rows.iter().map(|row| row.workers).max().unwrap_or(1);
    let top = f64::from(most.max(2));
    let speed_up = |row: &ScalingRun| row.efficiency * f64::from(row.workers);
    let least = rows.iter().map(speed_up).fold(0.5, f64::min);
    figure::draw_figure((720, 480), |area| {
        let title =
            format!("{} bodies, {} clusters, {:e}", args.bodies, args.clusters, args.force_error);
        let mut chart = ChartBuilder::on(area)
            .caption(title, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(48)
            .build_cartesian_2d(
                (1f64..top).log_scale().base(2.0),
                (least..top).log_scale().base(2.0),
            )
            .map_err(drawing_error)?;
        chart
            .configure_mesh()
            .x_desc("workers")
            .y_desc("speed-up")
            .light_line_style(TRANSPARENT)
            .x_label_formatter(&|x| format!("{x}"))
            .y_label_formatter(&|y| format!("{y}"))
            .draw()
            .map_err(drawing_error)?;
        let ideal = LineSeries::new([(1.0, 1.0), (top, top)], BLACK.mix(0.3));
        chart.draw_series(ideal).map_err(drawing_error)?;
        for (which, name, colour) in [
            (Replication::Domains, "domains", COLOURS[0]),
            (Replication::Replicated, "replicated", COLOURS[1]),
        ] {
            let points: Vec<(f64, f64)> = rows
                .iter()
                .filter(|row| row.which == which)
                .map(|row| (f64::from(row.workers), speed_up(row)))
                .collect();
            if points.is_empty() {
                continue;
            }
            chart
                .draw_series(LineSeries::new(points.clone(), colour.stroke_width(2)).point_size(3))
                .map_err(drawing_error)?
                .label(name)
                .legend(move |(x, y)| {
                    PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2))
                });
        }
        figure::legend(&mut chart, SeriesLabelPosition::UpperLeft)
    })
}
