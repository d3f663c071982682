//! Figures over time, row by row: axes, legends, boxes, and shares of a capacity as stacked areas.
//!
//! This module must not know what rows and boxes stand for. Drawn with the simulator's figures'
//! means.

use crate::{Area, COLOURS, FigureError, drawing_error};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use springtide_actors::policy::provisioning::{Time, seconds};

/// Colour of processors that are paid for and idle.
pub const WASTE: RGBColor = RGBColor(238, 220, 196);
/// Outline colour of slots that are reserved as a whole.
pub const WHOLE: RGBColor = RGBColor(40, 40, 40);
/// Outline colour of slots that are reserved in part.
pub const PART: RGBColor = RGBColor(165, 165, 165);
/// Colour of all kinds that have none of their own.
const OTHERS: RGBColor = RGBColor(150, 150, 150);
/// Number of kinds with a colour of their own: one of [`COLOURS`] that differs from outlines and
/// text.
pub const KINDS: usize = 6;

/// Font size of most texts, in pixels.
const TEXT: i32 = 12;
/// Approximate width of a character of that size, in pixels.
const CHARACTER: i32 = 7;

/// Returns the colour of a kind by its index. Kinds from [`KINDS`] on share one.
pub fn colour(kind: usize) -> RGBColor {
    const OWN: [usize; KINDS] = [0, 1, 2, 6, 4, 3];
    OWN.get(kind).map_or(OTHERS, |&at| COLOURS[at])
}

/// Returns the unit of a time axis of `span_s` seconds: its name and its length in seconds.
pub fn unit(span_s: f64) -> (&'static str, f64) {
    match span_s {
        span if span > 4.0 * 86_400.0 => ("days", 86_400.0),
        span if span > 4.0 * 3600.0 => ("hours", 3600.0),
        span if span > 600.0 => ("minutes", 60.0),
        _ => ("seconds", 1.0),
    }
}

/// Returns about eight round numbers from 0 to `most`, at equal distances.
pub fn ticks(most: f64) -> Vec<f64> {
    if !(most > 0.0 && most.is_finite()) {
        return vec![0.0];
    }
    let rough = most / 8.0;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|by| by * power).find(|step| *step >= rough);
    let step = step.unwrap_or(power * 10.0);
    (0..=(most / step * (1.0 + 1e-9)) as usize).map(|n| n as f64 * step).collect()
}

/// Formats a number with at most six decimals, without trailing zeros.
pub fn plain(value: f64) -> String {
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Shortens a name to at most `most` characters: its beginning and its end, where many names
/// differ.
pub fn short(name: &str, most: usize) -> String {
    let count = name.chars().count();
    if count <= most {
        return name.to_owned();
    }
    let room = most.saturating_sub(2);
    let end = room / 2;
    let start = name.chars().take(room - end);
    start.chain("..".chars()).chain(name.chars().skip(count - end)).collect()
}

/// Returns the width that labels of rows need, in pixels, by their names and additional texts.
/// Longer names are shortened in the middle.
pub fn label_room<'a>(labels: impl IntoIterator<Item = (&'a str, &'a str)>) -> i32 {
    let of = |(name, more): (&str, &str)| name.chars().count().min(28) + more.chars().count() + 2;
    let most = labels.into_iter().map(of).max().unwrap_or(0);
    (most as i32 * CHARACTER + 16).clamp(110, 330)
}

/// An entry of a legend.
pub struct LegendEntry {
    /// Text of the entry.
    pub text: String,
    /// Colour of the mark.
    pub colour: RGBColor,
    /// Kind of the mark.
    pub mark: LegendSymbol,
}

/// Kind of mark in a legend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LegendSymbol {
    /// A filled box.
    Box,
    /// An outlined box.
    Outline,
    /// A thin line.
    Thread,
}

/// Area of a drawing: time runs to the right, rows run down.
pub struct Canvas<'a, 'b> {
    area: &'b Area<'a>,
    left: i32,
    right: i32,
    top: i32,
    bottom: i32,
    span: Time,
}

impl<'a, 'b> Canvas<'a, 'b> {
    /// Room between the margins `left` and `right` (points), of a time from 0 to `span`. It has a
    /// title above, a time axis below, and a legend to the right.
    ///
    /// # Errors
    /// It cannot be drawn.
    pub fn new(
        area: &'b Area<'a>,
        title: &str,
        left: i32,
        right: i32,
        span: Time,
        legend: &[LegendEntry],
    ) -> Result<Self, FigureError> {
        let (width, height) = area.dim_in_pixel();
        let (width, height) = (width as i32, height as i32);
        let canvas = Self {
            area,
            left,
            right: width - right,
            top: TOP,
            bottom: height - BOTTOM,
            span: span.max(1),
        };
        canvas.text(title, (left, 20), 16, HPos::Left, BLACK)?;
        canvas.axis()?;
        for (at, entry) in legend.iter().enumerate() {
            let (x, y) = (canvas.right + 16, TOP + 8 + 18 * at as i32);
            let points = [(x, y - 6), (x + 14, y + 6)];
            let (filled, thin) = (entry.colour.filled(), entry.colour.stroke_width(1));
            match entry.mark {
                LegendSymbol::Box => {
                    canvas.area.draw(&Rectangle::new(points, filled)).map_err(drawing_error)?
                }
                LegendSymbol::Outline => {
                    canvas.area.draw(&Rectangle::new(points, thin)).map_err(drawing_error)?
                }
                LegendSymbol::Thread => {
                    canvas.line([(x, y), (x + 14, y)], entry.colour.mix(1.0))?
                }
            }
            let most = ((right - 44) / CHARACTER).max(4) as usize;
            canvas.text(&short(&entry.text, most), (x + 20, y), TEXT, HPos::Left, BLACK)?;
        }
        Ok(canvas)
    }

    fn axis(&self) -> Result<(), FigureError> {
        let (name, length) = unit(seconds(self.span));
        let most = seconds(self.span) / length;
        for tick in ticks(most) {
            let x = self.left + (f64::from(self.right - self.left) * tick / most) as i32;
            self.line([(x, self.top), (x, self.bottom)], BLACK.mix(0.12))?;
            self.text(&plain(tick), (x, self.bottom + 12), TEXT, HPos::Center, BLACK)?;
        }
        self.line([(self.left, self.bottom), (self.right, self.bottom)], BLACK.mix(0.6))?;
        let middle = (self.left + self.right) / 2;
        let what = format!("{name} after the submission");
        self.text(&what, (middle, self.bottom + 28), TEXT, HPos::Center, BLACK)
    }

    /// Where a moment is.
    pub fn x(&self, at: Time) -> i32 {
        let part = at.min(self.span) as f64 / self.span as f64;
        self.left + (f64::from(self.right - self.left) * part).round() as i32
    }

    /// Text, with its middle at this height.
    ///
    /// # Errors
    /// It cannot be drawn.
    pub fn text(
        &self,
        text: &str,
        at: (i32, i32),
        size: i32,
        side: HPos,
        colour: RGBColor,
    ) -> Result<(), FigureError> {
        let style = ("sans-serif", size).into_font().color(&colour);
        let style = style.pos(Pos::new(side, VPos::Center));
        // SVG has no control characters.
        let text: String = text.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        self.area.draw(&Text::new(text, at, style)).map_err(drawing_error)
    }

    /// Text to the left of the rows, in two parts: a name, and what is said of it.
    ///
    /// # Errors
    /// It cannot be drawn.
    pub fn label(&self, name: &str, more: &str, y: i32) -> Result<(), FigureError> {
        let room = ((self.left - 16) / CHARACTER).max(4) as usize;
        let name = short(name, room.saturating_sub(more.chars().count() + 1).max(4));
        self.text(&name, (8, y), TEXT, HPos::Left, BLACK)?;
        self.text(more, (self.left - 6, y), TEXT, HPos::Right, RGBColor(90, 90, 90))
    }

    fn line(&self, ends: [(i32, i32); 2], colour: RGBAColor) -> Result<(), FigureError> {
        self.area.draw(&PathElement::new(ends, colour.stroke_width(1))).map_err(drawing_error)
    }

    /// A thin line in a row from a moment to another.
    ///
    /// # Errors
    /// It cannot be drawn.
    pub fn thread(&self, from: Time, to: Time, y: i32) -> Result<(), FigureError> {
        self.line([(self.x(from), y), (self.x(to), y)], BLACK.mix(0.35))
    }

    /// A filled box between two moments and two heights; of more than a few points it leaves a gap
    /// to the next.
    ///
    /// # Errors
    /// It cannot be drawn.
    pub fn fill(
        &self,
        (from, to): (Time, Time),
        (top, bottom): (i32, i32),
        colour: RGBColor,
        gap: bool,
    ) -> Result<(), FigureError> {
        let (left, mut right) = (self.x(from), self.x(to));
        let mut bottom = bottom;
        if gap && right - left > 3 {
            right -= 1;
        }
        if gap && bottom - top > 4 {
            bottom -= 1;
        }
        // What takes hardly any time is still seen.
        let right = right.max(left + 1);
        let points = [(left, top), (right, bottom.max(top + 1))];
        self.area.draw(&Rectangle::new(points, colour.filled())).map_err(drawing_error)
    }

    /// An outline between two moments and two heights.
    ///
    /// # Errors
    /// It cannot be drawn.
    pub fn outline(
        &self,
        (from, to): (Time, Time),
        (top, bottom): (i32, i32),
        colour: RGBColor,
    ) -> Result<(), FigureError> {
        let points = [(self.x(from), top), (self.x(to), bottom)];
        self.area.draw(&Rectangle::new(points, colour.stroke_width(1))).map_err(drawing_error)
    }

    /// Stacked shares of a row over time, the first at the bottom.
    ///
    /// # Errors
    /// It cannot be drawn.
    pub fn stack(
        &self,
        (top, bottom): (i32, i32),
        layers: &[(RGBColor, Vec<f64>)],
    ) -> Result<(), FigureError> {
        let bins = layers.first().map_or(0, |(_, values)| values.len());
        let height = f64::from(bottom - top);
        // From the outermost to the innermost: each covers what is below it.
        for count in (1..=layers.len()).rev() {
            let (colour, own) = &layers[count - 1];
            if own.iter().all(|value| *value <= 0.0) {
                continue;
            }
            let sum = |bin: usize| layers[..count].iter().map(|(_, v)| v[bin]).sum::<f64>();
            let mut points = vec![(self.left, bottom)];
            let mut last = bottom;
            for bin in 0..bins {
                let y = bottom - (height * sum(bin).min(1.0)).round() as i32;
                if y != last {
                    let x = self.bin(bin, bins);
                    points.extend([(x, last), (x, y)]);
                    last = y;
                }
            }
            points.extend([(self.right, last), (self.right, bottom)]);
            self.area.draw(&Polygon::new(points, colour.filled())).map_err(drawing_error)?;
        }
        Ok(())
    }

    fn bin(&self, bin: usize, bins: usize) -> i32 {
        self.left + (f64::from(self.right - self.left) * bin as f64 / bins as f64).round() as i32
    }
}

/// Above the first row.
pub const TOP: i32 = 40;
/// Below the last one.
pub const BOTTOM: i32 = 44;

/// Means over equal parts of a time from 0 to `span` of what is there from a moment to another.
pub fn means(
    parts: impl IntoIterator<Item = (Time, Time, f64)>,
    span: Time,
    bins: usize,
) -> Vec<f64> {
    let mut means = vec![0.0; bins];
    let width = span.max(1) as f64 / bins as f64;
    for (from, to, weight) in parts {
        let (from, to) = (from.min(span) as f64 / width, to.min(span) as f64 / width);
        let mut bin = from as usize;
        while bin < bins && (bin as f64) < to {
            let inside = to.min(bin as f64 + 1.0) - from.max(bin as f64);
            means[bin] += weight * inside.max(0.0);
            bin += 1;
        }
    }
    means
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_have_round_numbers() {
        assert_eq!(ticks(734.0), [0.0, 100.0, 200.0, 300.0, 400.0, 500.0, 600.0, 700.0]);
        assert_eq!(ticks(1.0).len(), 6);
        assert_eq!((ticks(0.0), ticks(f64::NAN)), (vec![0.0], vec![0.0]));
        assert_eq!((plain(0.30000000000000004), plain(20.0)), ("0.3".into(), "20".into()));
        assert_eq!((unit(599.0).0, unit(100_000.0).0, unit(1e6).0), ("seconds", "hours", "days"));
        assert_eq!((short("abcdef", 6), short("abcdefg", 6)), ("abcdef".into(), "ab..fg".into()));
    }

    #[test]
    fn labels_have_the_room_that_the_longest_needs() {
        assert_eq!(label_room([("vu", "1 p"), ("a-long-name", "16 p")]), 17 * CHARACTER + 16);
        let long = "n".repeat(500);
        assert_eq!((label_room([]), label_room([(&*long, &*long)])), (110, 330));
    }

    #[test]
    fn means_keep_what_there_is() {
        let means = means([(0, 10, 2.0), (5, 25, 1.0), (90, 200, 4.0)], 100, 10);
        assert_eq!(means[..4], [2.5, 1.0, 0.5, 0.0]);
        assert_eq!(means[9], 4.0);
    }
}
