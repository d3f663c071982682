//! Figures of scenarios in SVG, as the paper's figures 2 to 7.
//!
//! Runtimes are bars. Iterations are lines, with the number of nodes below them. This module does
//! not depend on the source of the numbers.

use plotters::prelude::*;

pub use springtide_figures::{Area, COLOURS, FigureError, draw_figure, drawing_error, legend};

use crate::paper::ScenarioResults;

/// Colour of static runs.
const FIXED: RGBColor = RGBColor(213, 94, 0);
/// Colour of monitored runs.
const MONITORED: RGBColor = RGBColor(150, 150, 150);
/// Colour of adaptive runs with the paper's period.
const ADAPTIVE: RGBColor = RGBColor(0, 114, 178);
/// Colour of adaptive runs with our period.
const OURS: RGBColor = RGBColor(0, 158, 115);
/// Colour of runs on the best fixed set of nodes.
const BEST: RGBColor = RGBColor(40, 40, 40);

/// The runtimes of all scenarios side by side, as the paper's figure 2.
///
/// # Errors
/// The figure cannot be drawn.
pub fn runtimes(rows: &[ScenarioResults]) -> Result<String, FigureError> {
    let most = rows.iter().map(|row| row.static_s.max(row.adaptive_s)).fold(1.0, f64::max);
    draw_figure((960, 420), |area| {
        let mut chart = ChartBuilder::on(area)
            .caption("Runtime by scenario", ("sans-serif", 18))
            .margin(14)
            .x_label_area_size(34)
            .y_label_area_size(64)
            .build_cartesian_2d(0.0..rows.len() as f64, 0.0..most * 1.15)
            .map_err(drawing_error)?;
        let name = |x: &f64| match rows.get(*x as usize) {
            Some(row) if x.fract().abs() < 0.01 => format!("scenario {}", row.name),
            _ => String::new(),
        };
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(rows.len() + 1)
            .x_label_formatter(&name)
            .x_label_offset(40)
            .y_desc("seconds")
            .light_line_style(WHITE)
            .draw()
            .map_err(drawing_error)?;
        type Column = fn(&ScenarioResults) -> f64;
        let columns: [(&str, RGBColor, Column); 5] = [
            ("static", FIXED, |row| row.static_s),
            ("monitored", MONITORED, |row| row.monitor_s),
            ("adaptive", ADAPTIVE, |row| row.adaptive_s),
            ("adaptive, our period", OURS, |row| row.ours.adaptive_s),
            ("best fixed nodes", BEST, |row| row.clairvoyant_s),
        ];
        for (index, (label, colour, column)) in columns.into_iter().enumerate() {
            let bar = |(x, row): (usize, &ScenarioResults)| {
                let left = x as f64 + 0.1 + 0.16 * index as f64;
                Rectangle::new([(left, 0.0), (left + 0.14, column(row))], colour.filled())
            };
            chart
                .draw_series(rows.iter().enumerate().map(bar))
                .map_err(drawing_error)?
                .label(label)
                .legend(move |(x, y)| {
                    Rectangle::new([(x, y - 5), (x + 12, y + 5)], colour.filled())
                });
        }
        legend(&mut chart, SeriesLabelPosition::UpperRight)
    })
}

/// The colour of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunKind {
    /// A static run.
    Fixed,
    /// A monitored run.
    Monitored,
    /// An adaptive run.
    Adaptive,
    /// An adaptive run with our period.
    Ours,
}

impl RunKind {
    fn colour(self) -> RGBColor {
        match self {
            Self::Fixed => FIXED,
            Self::Monitored => MONITORED,
            Self::Adaptive => ADAPTIVE,
            Self::Ours => OURS,
        }
    }
}

/// A run in a figure.
#[derive(Clone, Copy, Debug)]
pub struct Series<'a> {
    /// The name of the run.
    pub label: &'a str,
    /// The colour of the run.
    pub hue: RunKind,
    /// Length of each iteration, seconds.
    pub iterations: &'a [f64],
    /// Pairs of a time in seconds and the number of nodes from then on. Empty for a run whose
    /// number does not change: it gets no line.
    pub nodes: &'a [(f64, u32)],
    /// The length of the run, seconds.
    pub end_s: f64,
}

/// The iterations of a scenario with and without adaptation, and the nodes over time.
///
/// As the paper's figures 3 to 7.
///
/// # Errors
/// The figure cannot be drawn.
pub fn iterations(row: &ScenarioResults) -> Result<String, FigureError> {
    let series = [
        Series {
            label: "static",
            hue: RunKind::Fixed,
            iterations: &row.iterations.fixed,
            nodes: &[],
            end_s: row.static_s,
        },
        Series {
            label: "adaptive",
            hue: RunKind::Adaptive,
            iterations: &row.iterations.adaptive,
            nodes: &row.nodes_over_time,
            end_s: row.adaptive_s,
        },
        Series {
            label: "adaptive, our period",
            hue: RunKind::Ours,
            iterations: &row.ours.iterations,
            nodes: &row.ours.nodes_over_time,
            end_s: row.ours.adaptive_s,
        },
    ];
    let events: Vec<f64> = row.events.iter().map(|(at, _)| *at).collect();
    runs(&format!("Scenario {}: {}", row.name, row.about), &series, &events)
}

/// The iterations of several runs of one scenario, and the nodes over time.
///
/// `events` are the times of changes of the grid, in seconds.
///
/// # Errors
/// The figure cannot be drawn.
pub fn runs(title: &str, series: &[Series<'_>], events: &[f64]) -> Result<String, FigureError> {
    draw_figure((960, 560), |area| {
        let (above, below) = area.split_vertically(340);
        let all = || series.iter().flat_map(|run| run.iterations.iter().copied());
        let most = all().fold(1e-3, f64::max);
        let count = series.iter().map(|run| run.iterations.len()).max().unwrap_or(1);
        let mut chart = ChartBuilder::on(&above)
            .caption(title, ("sans-serif", 16))
            .margin(12)
            .x_label_area_size(36)
            .y_label_area_size(60)
            .build_cartesian_2d(0.5..count as f64 + 0.5, 0.0..most * 1.45)
            .map_err(drawing_error)?;
        chart
            .configure_mesh()
            .x_desc("iteration")
            .y_desc("seconds")
            .x_labels(count + 1)
            .x_label_formatter(&|x| format!("{x:.0}"))
            .light_line_style(WHITE)
            .draw()
            .map_err(drawing_error)?;
        for run in series {
            let colour = run.hue.colour();
            let points = run.iterations.iter().enumerate().map(|(at, s)| (at as f64 + 1.0, *s));
            chart
                .draw_series(LineSeries::new(points, colour.stroke_width(2)).point_size(3))
                .map_err(drawing_error)?
                .label(run.label)
                .legend(move |(x, y)| {
                    PathElement::new([(x, y), (x + 14, y)], colour.stroke_width(2))
                });
        }
        legend(&mut chart, SeriesLabelPosition::UpperRight)?;
        nodes(&below, series, events)
    })
}

fn nodes(area: &Area<'_>, series: &[Series<'_>], events: &[f64]) -> Result<(), FigureError> {
    let drawn = || series.iter().filter(|run| !run.nodes.is_empty());
    let most = drawn().flat_map(|run| run.nodes.iter().map(|(_, n)| *n)).max().unwrap_or(1);
    let top = f64::from(most) * 1.2;
    let last = drawn().map(|run| run.end_s).fold(1.0, f64::max);
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..last, 0.0..top)
        .map_err(drawing_error)?;
    chart
        .configure_mesh()
        .x_desc("seconds")
        .y_desc("nodes")
        .light_line_style(WHITE)
        .draw()
        .map_err(drawing_error)?;
    // Changes of the grid.
    for at in events {
        let line = PathElement::new([(*at, 0.0), (*at, top)], BEST.mix(0.4).stroke_width(1));
        chart.draw_series(std::iter::once(line)).map_err(drawing_error)?;
    }
    for run in drawn() {
        let mut points = Vec::new();
        for (at, count) in run.nodes {
            if let Some((_, before)) = points.last().copied() {
                points.push((*at, before));
            }
            points.push((*at, f64::from(*count)));
        }
        if let Some((_, before)) = points.last().copied() {
            points.push((run.end_s, before));
        }
        let line = LineSeries::new(points, run.hue.colour().stroke_width(2));
        chart.draw_series(line).map_err(drawing_error)?;
    }
    Ok(())
}
