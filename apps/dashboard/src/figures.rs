//! The paper's figures of runs, side by side: lengths of iterations, nodes, efficiency, and the
//! states of threads outside work. Numbers mark decisions; the page's list explains them.
//!
//! This module knows neither logs nor the page. Text and axes inherit the page's text colour, so
//! that both themes fit.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use springtide_figures::{COLOURS, FigureError, draw_figure, drawing_error};
use springtide_runtime::id::ClusterId;
use springtide_runtime::meter::{ThreadState, Times};

use crate::course::{RunSeries, Steps, TimelineMark};
use springtide_figures::canvas::{plain, short};

/// Maximum number of points of a line; of more, the last one of each interval.
const POINTS: usize = 1200;
/// Maximum number of decisions marked in a figure; the list has all.
const MARKS: usize = 60;
/// Maximum number of bars of runs and clusters.
const ROWS: usize = 40;
/// Width of a figure in points.
const WIDTH: u32 = 960;
/// Maximum length of a label in characters.
const LABEL: usize = 24;
/// Black is replaced by the page's own colour.
const INK: RGBColor = BLACK;

/// A figure with its description.
pub struct Figure {
    /// The title, also for screen readers.
    pub title: String,
    /// The description in one sentence.
    pub about: &'static str,
    /// The meanings of its colours, if it has several.
    pub legend: Vec<(String, RGBColor)>,
    /// The figure as SVG.
    pub svg: String,
}

/// The data of a line.
struct LineData<'a> {
    label: String,
    colour: RGBColor,
    /// Points, or values that hold until the next.
    points: Vec<(f64, f64)>,
    marks: Vec<(usize, f64, &'a TimelineMark)>,
    dots: bool,
}

/// Draws the figures of these runs.
///
/// # Errors
/// One figure cannot be drawn.
pub fn all(runs: &[RunSeries]) -> Result<Vec<Figure>, FigureError> {
    let mut figures = Vec::new();
    if runs.iter().any(|run| !run.iterations.is_empty()) {
        figures.push(iterations(runs)?);
    }
    if runs.iter().any(|run| !run.nodes.is_empty()) {
        figures.push(nodes(runs)?);
    }
    figures.extend(efficiency(runs)?);
    if runs.iter().any(|run| !run.times.is_empty()) {
        if let [run] = runs {
            figures.push(by_cluster(run)?);
        }
        figures.push(overheads(runs)?);
    }
    Ok(figures)
}

fn colour(at: usize) -> RGBColor {
    // The sixth colour is nearly black, and invisible on a dark page.
    const SHOWN: [usize; 7] = [0, 1, 2, 3, 4, 6, 7];
    COLOURS[SHOWN[at % SHOWN.len()]]
}

/// The numbered decisions of a run, as many as a figure marks.
fn marks(run: &RunSeries) -> impl Iterator<Item = (usize, &TimelineMark)> {
    run.marks.iter().enumerate().map(|(at, mark)| (at + 1, mark)).take(MARKS)
}

fn iterations(runs: &[RunSeries]) -> Result<Figure, FigureError> {
    let lines: Vec<LineData<'_>> = runs
        .iter()
        .enumerate()
        .map(|(at, run)| LineData {
            label: run.label.clone(),
            colour: colour(at),
            points: run
                .iterations
                .iter()
                .enumerate()
                .map(|(n, (_, s))| (n as f64 + 1.0, *s))
                .collect(),
            marks: marks(run)
                .filter_map(|(n, mark)| Some((n, run.iteration_at(mark.at_s)?, mark)))
                .collect(),
            dots: run.iterations.len() <= 60,
        })
        .collect();
    let last = runs.iter().map(|run| run.iterations.len()).max().unwrap_or(1);
    let about = "Length of each iteration. Numbers mark decisions and losses in their iterations.";
    let frame = FigureAxes {
        x: (0.5, last as f64 + 0.5),
        top: None,
        axes: ("iteration", "seconds"),
        band: None,
    };
    figure("Iterations", about, &lines, &frame)
}

fn end(runs: &[RunSeries]) -> f64 {
    runs.iter().map(|run| run.wall_s).fold(1e-3, f64::max)
}

fn nodes(runs: &[RunSeries]) -> Result<Figure, FigureError> {
    let stairs = |steps: &Steps<u32>, run: &RunSeries| {
        stairs(&steps.iter().map(|(at, n)| (*at, f64::from(*n))).collect::<Vec<_>>(), run.wall_s)
    };
    let mut lines = Vec::new();
    for (at, run) in runs.iter().enumerate() {
        let marks = marks(run).map(|(n, mark)| (n, mark.at_s, mark)).collect();
        let label = if runs.len() == 1 { "all".to_owned() } else { run.label.clone() };
        let points = stairs(&run.nodes, run);
        lines.push(LineData { label, colour: colour(at), points, marks, dots: false });
    }
    // The figure of a single run also shows its clusters.
    if let [run] = runs {
        for (at, (cluster, steps)) in run.by_cluster.iter().enumerate() {
            let (label, points) = (cluster.to_string(), stairs(steps, run));
            lines.push(LineData {
                label,
                colour: colour(at + 1),
                points,
                marks: Vec::new(),
                dots: false,
            });
        }
    }
    let most = lines.iter().flat_map(|line| &line.points).map(|(_, n)| *n).fold(1.0, f64::max);
    let about = "Members of the job over time. Numbers mark decisions and losses.";
    let frame = FigureAxes {
        x: (0.0, end(runs)),
        top: Some(most * 1.25),
        axes: ("seconds", "nodes"),
        band: None,
    };
    figure("Nodes", about, &lines, &frame)
}

fn efficiency(runs: &[RunSeries]) -> Result<Option<Figure>, FigureError> {
    // Runs are compared by the same measure only.
    let weighted = runs.iter().all(|run| !run.efficiency.is_empty());
    let of = |run: &RunSeries| {
        if weighted {
            run.efficiency.clone()
        } else {
            run.overall.iter().map(|(at, share)| (*at, 1.0 - share)).collect()
        }
    };
    let lines: Vec<LineData<'_>> = runs
        .iter()
        .enumerate()
        .map(|(at, run)| LineData {
            label: run.label.clone(),
            colour: colour(at),
            points: stairs(&of(run), run.wall_s),
            marks: marks(run).map(|(n, mark)| (n, mark.at_s, mark)).collect(),
            dots: false,
        })
        .collect();
    if lines.iter().all(|line| line.points.is_empty()) {
        return Ok(None);
    }
    let bands: Vec<_> = runs.iter().filter_map(|run| run.band).collect();
    let band = bands.first().copied().filter(|first| bands.iter().all(|band| band == first));
    let y = if weighted { "weighted average" } else { "fraction of work" };
    let about = if weighted {
        "Weighted average efficiency, the basis of each decision; the band is Emin to Emax."
    } else {
        "Fraction of thread time that was work, by iteration, because not every run has \
            decisions with a weighted average. The band is Emin to Emax."
    };
    let frame = FigureAxes { x: (0.0, end(runs)), top: Some(1.05), axes: ("seconds", y), band };
    figure("Efficiency", about, &lines, &frame).map(Some)
}

/// The time of a cluster's threads outside work, over time.
fn by_cluster(run: &RunSeries) -> Result<Figure, FigureError> {
    let line = |(at, (cluster, steps)): (usize, (&ClusterId, &Steps<f64>))| LineData {
        label: cluster.to_string(),
        colour: colour(at + 1),
        points: stairs(steps, run.known_until.get(cluster).copied().unwrap_or(run.wall_s)),
        marks: Vec::new(),
        dots: false,
    };
    let lines: Vec<LineData<'_>> = run.overhead.iter().enumerate().map(line).collect();
    let about = "Fraction of each cluster's thread time that was not work, by iteration.";
    let frame = FigureAxes {
        x: (0.0, run.wall_s),
        top: Some(1.05),
        axes: ("seconds", "overhead"),
        band: None,
    };
    figure("Overhead by cluster", about, &lines, &frame)
}

/// The states of threads, in the order of a bar's parts.
const PARTS: [(ThreadState, &str, RGBColor); 5] = [
    (ThreadState::Working, "work", COLOURS[0]),
    (ThreadState::Bench, "benchmark", COLOURS[3]),
    (ThreadState::WaitLocal, "wait inside the cluster", COLOURS[6]),
    (ThreadState::WaitWide, "wait between clusters", COLOURS[1]),
    (ThreadState::Idle, "idle", COLOURS[7]),
];

/// A bar for each run and cluster, with the fractions of its thread time.
fn overheads(runs: &[RunSeries]) -> Result<Figure, FigureError> {
    let rows: Vec<(String, &Times)> = runs
        .iter()
        .flat_map(|run| {
            run.times.iter().map(move |(cluster, times)| {
                let label = if runs.len() == 1 {
                    cluster.to_string()
                } else {
                    format!("{} {cluster}", run.label)
                };
                (label, times)
            })
        })
        .take(ROWS)
        .collect();
    let height = 50 + 24 * u32::try_from(rows.len()).unwrap_or(0);
    let svg = draw_figure((WIDTH, height), |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(10)
            .margin_right(24)
            .x_label_area_size(30)
            .y_label_area_size(190)
            .build_cartesian_2d(0.0..100.0, 0.0..rows.len() as f64)
            .map_err(drawing_error)?;
        let mut mesh = chart.configure_mesh();
        mesh.disable_y_mesh().disable_y_axis().y_labels(0).axis_style(INK.mix(0.5));
        mesh.bold_line_style(INK.mix(0.12))
            .light_line_style(TRANSPARENT)
            .label_style(("sans-serif", 13));
        mesh.x_label_formatter(&|x| format!("{x:.0} %")).draw().map_err(drawing_error)?;
        for (at, (label, times)) in rows.iter().enumerate() {
            let from_top = (rows.len() - at) as f64;
            let mut left = 0.0;
            for (state, _, colour) in PARTS {
                let share = times.get(state) as f64 * 100.0 / times.total_ns().max(1) as f64;
                let bar = Rectangle::new(
                    [(left, from_top - 0.85), (left + share, from_top - 0.15)],
                    colour.filled(),
                );
                chart.draw_series(std::iter::once(bar)).map_err(drawing_error)?;
                left += share;
            }
            let (_, y) = chart.backend_coord(&(0.0, from_top - 0.5));
            let style =
                ("sans-serif", 13).into_font().color(&INK).pos(Pos::new(HPos::Right, VPos::Center));
            area.draw(&Text::new(short(label, LABEL), (195, y), style)).map_err(drawing_error)?;
        }
        Ok(())
    })?;
    Ok(Figure {
        title: "Thread time by state".to_owned(),
        about: "Fractions of each cluster's thread time over the whole run.",
        legend: PARTS.map(|(_, name, colour)| (name.to_owned(), colour)).to_vec(),
        svg: themed(&svg),
    })
}

/// The axes of a figure.
struct FigureAxes<'a> {
    x: (f64, f64),
    top: Option<f64>,
    axes: (&'a str, &'a str),
    band: Option<(f64, f64)>,
}

fn figure(
    title: &str,
    about: &'static str,
    lines: &[LineData<'_>],
    frame: &FigureAxes<'_>,
) -> Result<Figure, FigureError> {
    let legend = lines
        .iter()
        .map(|line| (line.label.clone(), line.colour))
        .filter(|_| lines.len() > 1)
        .collect();
    Ok(Figure { title: title.to_owned(), about, legend, svg: chart(lines, frame)? })
}

/// Expands values that hold until the next to points, at most the maximum number.
fn stairs(steps: &[(f64, f64)], end_s: f64) -> Vec<(f64, f64)> {
    let every = steps.len().div_ceil(POINTS / 2).max(1);
    let mut points: Vec<(f64, f64)> = Vec::new();
    for (at, value) in steps
        .iter()
        .enumerate()
        .filter(|(n, _)| (n + 1) % every == 0 || *n == 0)
        .map(|(_, step)| *step)
    {
        if let Some((_, before)) = points.last().copied() {
            points.push((at, before));
        }
        points.push((at, value));
    }
    if let Some((at, last)) = points.last().copied()
        && at < end_s
    {
        points.push((end_s, last));
    }
    points
}

fn chart(lines: &[LineData<'_>], frame: &FigureAxes<'_>) -> Result<String, FigureError> {
    let (from, to) = frame.x;
    let most = lines.iter().flat_map(|line| &line.points).map(|(_, y)| *y).fold(1e-3, f64::max);
    let top = frame.top.unwrap_or(most * 1.25);
    let svg = draw_figure((WIDTH, 330), |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(10)
            .x_label_area_size(36)
            .y_label_area_size(60)
            .build_cartesian_2d(from..to.max(from + 1e-3), 0.0..top)
            .map_err(drawing_error)?;
        chart
            .configure_mesh()
            .x_desc(frame.axes.0)
            .y_desc(frame.axes.1)
            .x_label_formatter(&|x| plain(*x))
            .y_label_formatter(&|y| plain(*y))
            .axis_style(INK.mix(0.5))
            .bold_line_style(INK.mix(0.12))
            .light_line_style(TRANSPARENT)
            .label_style(("sans-serif", 13))
            .draw()
            .map_err(drawing_error)?;
        if let Some((low, high)) = frame.band {
            let band =
                Rectangle::new([(from, low), (to, high.min(top))], COLOURS[0].mix(0.12).filled());
            chart.draw_series(std::iter::once(band)).map_err(drawing_error)?;
        }
        for line in lines {
            let series = LineSeries::new(line.points.iter().copied(), line.colour.stroke_width(2));
            chart
                .draw_series(series.point_size(if line.dots { 3 } else { 0 }))
                .map_err(drawing_error)?;
        }
        for line in lines {
            for (n, at, mark) in &line.marks {
                let style = line.colour.mix(if mark.decided { 0.45 } else { 0.25 });
                let tick = PathElement::new([(*at, 0.0), (*at, top)], style.stroke_width(1));
                chart.draw_series(std::iter::once(tick)).map_err(drawing_error)?;
                let sign = match mark.sign {
                    1 => "▲",
                    -1 => "▼",
                    _ => "",
                };
                // Labels that are close are drawn one above the other.
                let y = top * (1.0 - 0.055 * (n % 3) as f64);
                let font = ("sans-serif", 12).into_font().color(&line.colour);
                let label = Text::new(format!(" {sign}{n}"), (*at, y), font);
                chart.draw_series(std::iter::once(label)).map_err(drawing_error)?;
            }
        }
        Ok(())
    })?;
    Ok(themed(&svg))
}

/// Replaces the background and black by the colours of the page.
fn themed(svg: &str) -> String {
    svg.replace("\"#FFFFFF\"", "\"none\"").replace("\"#000000\"", "\"currentColor\"")
}
