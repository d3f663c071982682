//! Figures in SVG: colours, areas and legends; and a canvas for what happens over time, row by row.
//!
//! This crate does not know what is drawn.

pub mod canvas;

use plotters::coord::Shift;
use plotters::coord::ranged1d::Ranged;
use plotters::prelude::*;

/// Colours that colour-blind people can distinguish (after Okabe and Ito).
pub const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(40, 40, 40),
    RGBColor(230, 159, 0),
    RGBColor(150, 150, 150),
];

/// A figure cannot be drawn.
#[derive(Debug, thiserror::Error)]
#[error("the figure cannot be drawn: {0}")]
pub struct FigureError(String);

/// The area that a figure is drawn on.
pub type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Converts an error of the drawing library.
pub fn drawing_error(error: impl std::fmt::Display) -> FigureError {
    FigureError(error.to_string())
}

/// Draws a figure of the given width and height, in points, on white, as SVG.
///
/// # Errors
/// The figure cannot be drawn.
pub fn draw_figure(
    size: (u32, u32),
    on: impl FnOnce(&Area<'_>) -> Result<(), FigureError>,
) -> Result<String, FigureError> {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
        area.fill(&WHITE).map_err(drawing_error)?;
        on(&area)?;
        area.present().map_err(drawing_error)?;
    }
    Ok(text)
}

/// Adds a legend of all series that have a label.
///
/// # Errors
/// The figure cannot be drawn.
pub fn legend<'a, X, Y>(
    chart: &mut ChartContext<'a, SVGBackend<'a>, Cartesian2d<X, Y>>,
    at: SeriesLabelPosition,
) -> Result<(), FigureError>
where
    X: Ranged<ValueType = f64>,
    Y: Ranged<ValueType = f64>,
{
    chart
        .configure_series_labels()
        .position(at)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.2))
        .draw()
        .map_err(drawing_error)
}
