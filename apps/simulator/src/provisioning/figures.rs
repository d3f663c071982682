//! Figures of the experiments, in SVG and CSV: lines with deviations over a parameter, and scatter
//! plots of plans with their fronts.
//!
//! This module does not depend on the source of the numbers.

use std::fmt::Write;

use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

use crate::figure::{Area, COLOURS, FigureError, draw_figure, drawing_error, legend};
use crate::workload::figures::quoted;

/// The maximum number of points of a scatter plot; more are thinned, as they only enlarge the file.
const CLOUD_MAX: usize = 4000;

/// Values over a parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct FigureCurve {
    /// The name of the line.
    pub label: String,
    /// Parameter, value and standard deviation of the value (0: not drawn).
    pub points: Vec<(f64, f64, f64)>,
}

/// The labels of a figure.
#[derive(Clone, Copy, Debug)]
pub struct Axes<'a> {
    /// The title above the figure.
    pub title: &'a str,
    /// The label of the parameter's axis.
    pub x: &'a str,
    /// The label of the values' axis.
    pub y: &'a str,
}

/// A chart of two values.
pub type Chart<'a> = ChartContext<'a, SVGBackend<'a>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// Creates an empty chart with its axes.
///
/// # Errors
/// The chart cannot be drawn.
pub fn chart<'a>(
    area: &Area<'a>,
    axes: Axes<'_>,
    x: std::ops::Range<f64>,
    y: std::ops::Range<f64>,
) -> Result<Chart<'a>, FigureError> {
    let mut chart = ChartBuilder::on(area)
        .caption(axes.title, ("sans-serif", 16))
        .margin(12)
        .x_label_area_size(38)
        .y_label_area_size(62)
        .build_cartesian_2d(x, y)
        .map_err(drawing_error)?;
    chart
        .configure_mesh()
        .x_desc(axes.x)
        .y_desc(axes.y)
        .x_label_formatter(&tick)
        .y_label_formatter(&tick)
        .light_line_style(WHITE)
        .bold_line_style(BLACK.mix(0.1))
        .draw()
        .map_err(drawing_error)?;
    Ok(chart)
}

/// Formats a number at an axis, without trailing zeros.
fn tick(value: &f64) -> String {
    let text = format!("{value:.6}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

/// Draws lines over a parameter, with bars of one standard deviation up and down.
///
/// # Errors
/// The figure cannot be drawn.
pub fn lines(axes: Axes<'_>, lines: &[FigureCurve]) -> Result<String, FigureError> {
    let all = || lines.iter().flat_map(|line| line.points.iter());
    let least = all().map(|(x, ..)| *x).fold(f64::INFINITY, f64::min).min(1e300);
    let most = all().map(|(x, ..)| *x).fold(f64::NEG_INFINITY, f64::max).max(least + 1e-6);
    let room = (most - least) * 0.04;
    let top = all().map(|(_, y, deviation)| y + deviation).fold(1e-6, f64::max);
    let top = top * (1.12 + 0.07 * lines.len() as f64);
    draw_figure((760, 440), |area| {
        let mut chart = chart(area, axes, least - room..most + room, 0.0..top)?;
        for (at, line) in lines.iter().enumerate() {
            let colour = COLOURS[at % COLOURS.len()];
            // Bars of several lines at one parameter stand side by side.
            let aside = room * 0.12 * (at as f64 - (lines.len() as f64 - 1.0) / 2.0);
            let bars = line.points.iter().filter(|(_, _, deviation)| *deviation > 0.0);
            let bars = bars.map(|&(x, y, deviation)| {
                let ends = [(x + aside, (y - deviation).max(0.0)), (x + aside, y + deviation)];
                PathElement::new(ends, colour.mix(0.5).stroke_width(1))
            });
            chart.draw_series(bars).map_err(drawing_error)?;
            let points = line.points.iter().map(|&(x, y, _)| (x, y));
            chart
                .draw_series(LineSeries::new(points, colour.stroke_width(2)).point_size(3))
                .map_err(drawing_error)?
                .label(line.label.as_str())
                .legend(move |(x, y)| {
                    PathElement::new([(x, y), (x + 14, y)], colour.stroke_width(2))
                });
        }
        legend(&mut chart, SeriesLabelPosition::UpperRight)
    })
}

/// Draws all plans of a search as small points, and fronts as steps.
///
/// # Errors
/// The figure cannot be drawn.
pub fn cloud(
    axes: Axes<'_>,
    met: &[(f64, f64)],
    fronts: &[(String, Vec<(f64, f64)>)],
) -> Result<String, FigureError> {
    let every = met.len().div_ceil(CLOUD_MAX).max(1);
    let shown: Vec<(f64, f64)> = met.iter().copied().step_by(every).collect();
    let all = || shown.iter().chain(fronts.iter().flat_map(|(_, points)| points));
    let right = all().map(|(x, _)| *x).fold(1e-6, f64::max) * 1.04;
    let top = all().map(|(_, y)| *y).fold(1e-6, f64::max) * 1.1;
    draw_figure((760, 440), |area| {
        let mut chart = chart(area, axes, 0.0..right, 0.0..top)?;
        let grey = RGBColor(170, 170, 170);
        let label = match every {
            1 => format!("all {} plans met", met.len()),
            _ => format!("of {} plans met every {every}th", met.len()),
        };
        let points = shown.iter().map(|&point| Circle::new(point, 2, grey.filled()));
        if !shown.is_empty() {
            let drawn = chart.draw_series(points).map_err(drawing_error)?.label(label);
            drawn.legend(move |(x, y)| Circle::new((x + 7, y), 3, grey.filled()));
        }
        for (at, (label, points)) in fronts.iter().enumerate() {
            let colour = COLOURS[at % COLOURS.len()];
            let mut steps = Vec::new();
            for (index, &(x, y)) in points.iter().enumerate() {
                if index > 0 {
                    steps.push((x, points[index - 1].1));
                }
                steps.push((x, y));
            }
            chart
                .draw_series(LineSeries::new(steps, colour.stroke_width(2)))
                .map_err(drawing_error)?
                .label(label.as_str())
                .legend(move |(x, y)| {
                    PathElement::new([(x, y), (x + 14, y)], colour.stroke_width(2))
                });
            let marks = points.iter().map(|&point| Circle::new(point, 4, colour.filled()));
            chart.draw_series(marks).map_err(drawing_error)?;
        }
        legend(&mut chart, SeriesLabelPosition::UpperRight)
    })
}

/// The lines as CSV: a header, then a row for each point.
pub fn csv(axes: Axes<'_>, lines: &[FigureCurve]) -> String {
    let mut text = format!("line,{},{},standard deviation\n", quoted(axes.x), quoted(axes.y));
    for line in lines {
        for (x, y, deviation) in &line.points {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{},{x},{y},{deviation}", quoted(&line.label));
        }
    }
    text
}
