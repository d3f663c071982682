//! The paper's figures of runs, side by side: how long iterations took, on how many nodes, how efficiently, and what each cluster's
//! threads did when they did not work. Decisions are marked with numbers, which the page's list explains.
//!
//! Must not know logs, nor the page. Text and axes take the colour of the text around them, so that both themes fit.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use springtide_runtime::id::ClusterId;
use springtide_runtime::meter::{ThreadState, Times};
use springtide_simulator::figure::{COLOURS, FigureError, draw, wrong};

use super::course::{Course, Mark, Steps};
use crate::workflow::canvas::{plain, short};

/// Points of a line at most; of more the last of each stretch.
const POINTS: usize = 1200;
/// Decisions marked in a figure at most; the list has all.
const MARKS: usize = 60;
/// Bars of runs and clusters at most.
const ROWS: usize = 40;
/// Points that a figure is wide.
const WIDTH: u32 = 960;
/// Characters of a label that there is room for.
const LABEL: usize = 24;
/// Where black is said, the page's own colour is meant.
const INK: RGBColor = BLACK;

/// A figure with what it shows.
pub struct Figure {
    /// For the heading and for who cannot see it.
    pub title: String,
    /// What it is made of, in a sentence.
    pub about: &'static str,
    /// What its colours stand for, where it is not one thing alone.
    pub legend: Vec<(String, RGBColor)>,
    /// SVG.
    pub svg: String,
}

/// What a line is drawn of.
struct Line<'a> {
    label: String,
    colour: RGBColor,
    /// Points, or steps that hold until the next.
    points: Vec<(f64, f64)>,
    marks: Vec<(usize, f64, &'a Mark)>,
    dots: bool,
}

/// The figures of these runs.
///
/// # Errors
/// One cannot be drawn.
pub fn all(courses: &[Course]) -> Result<Vec<Figure>, FigureError> {
    let mut figures = Vec::new();
    if courses.iter().any(|course| !course.iterations.is_empty()) {
        figures.push(iterations(courses)?);
    }
    if courses.iter().any(|course| !course.nodes.is_empty()) {
        figures.push(nodes(courses)?);
    }
    figures.extend(efficiency(courses)?);
    if courses.iter().any(|course| !course.times.is_empty()) {
        if let [course] = courses {
            figures.push(by_cluster(course)?);
        }
        figures.push(overheads(courses)?);
    }
    Ok(figures)
}

fn colour(at: usize) -> RGBColor {
    // The sixth is nearly black, which a dark page swallows.
    const SHOWN: [usize; 7] = [0, 1, 2, 3, 4, 6, 7];
    COLOURS[SHOWN[at % SHOWN.len()]]
}

/// Numbered decisions of a run that a figure has room for.
fn marks(course: &Course) -> impl Iterator<Item = (usize, &Mark)> {
    course.marks.iter().enumerate().map(|(at, mark)| (at + 1, mark)).take(MARKS)
}

fn iterations(courses: &[Course]) -> Result<Figure, FigureError> {
    let lines: Vec<Line<'_>> = courses
        .iter()
        .enumerate()
        .map(|(at, course)| Line {
            label: course.label.clone(),
            colour: colour(at),
            points: course
                .iterations
                .iter()
                .enumerate()
                .map(|(n, (_, s))| (n as f64 + 1.0, *s))
                .collect(),
            marks: marks(course)
                .filter_map(|(n, mark)| Some((n, course.iteration_at(mark.at_s)?, mark)))
                .collect(),
            dots: course.iterations.len() <= 60,
        })
        .collect();
    let last = courses.iter().map(|course| course.iterations.len()).max().unwrap_or(1);
    let about = "Length of each iteration. Numbers mark decisions and losses in the iteration that they fell into.";
    let frame = Frame {
        x: (0.5, last as f64 + 0.5),
        top: None,
        axes: ("iteration", "seconds"),
        band: None,
    };
    figure("Iterations", about, &lines, &frame)
}

fn end(courses: &[Course]) -> f64 {
    courses.iter().map(|course| course.wall_s).fold(1e-3, f64::max)
}

fn nodes(courses: &[Course]) -> Result<Figure, FigureError> {
    let stairs = |steps: &Steps<u32>, course: &Course| {
        stairs(&steps.iter().map(|(at, n)| (*at, f64::from(*n))).collect::<Vec<_>>(), course.wall_s)
    };
    let mut lines = Vec::new();
    for (at, course) in courses.iter().enumerate() {
        let marks = marks(course).map(|(n, mark)| (n, mark.at_s, mark)).collect();
        let label = if courses.len() == 1 { "all".to_owned() } else { course.label.clone() };
        let points = stairs(&course.nodes, course);
        lines.push(Line { label, colour: colour(at), points, marks, dots: false });
    }
    // Of a run alone its clusters are told apart.
    if let [course] = courses {
        for (at, (cluster, steps)) in course.by_cluster.iter().enumerate() {
            let (label, points) = (cluster.to_string(), stairs(steps, course));
            lines.push(Line {
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
    let frame = Frame {
        x: (0.0, end(courses)),
        top: Some(most * 1.25),
        axes: ("seconds", "nodes"),
        band: None,
    };
    figure("Nodes", about, &lines, &frame)
}

fn efficiency(courses: &[Course]) -> Result<Option<Figure>, FigureError> {
    // Runs are held against each other by the same measure alone.
    let weighted = courses.iter().all(|course| !course.efficiency.is_empty());
    let of = |course: &Course| match weighted {
        true => course.efficiency.clone(),
        false => course.overall.iter().map(|(at, share)| (*at, 1.0 - share)).collect(),
    };
    let lines: Vec<Line<'_>> = courses
        .iter()
        .enumerate()
        .map(|(at, course)| Line {
            label: course.label.clone(),
            colour: colour(at),
            points: stairs(&of(course), course.wall_s),
            marks: marks(course).map(|(n, mark)| (n, mark.at_s, mark)).collect(),
            dots: false,
        })
        .collect();
    if lines.iter().all(|line| line.points.is_empty()) {
        return Ok(None);
    }
    let bands: Vec<_> = courses.iter().filter_map(|course| course.band).collect();
    let band = bands.first().copied().filter(|first| bands.iter().all(|band| band == first));
    let y = if weighted { "weighted average" } else { "share of work" };
    let about = match weighted {
        true => {
            "Weighted average efficiency, by which each decision was taken; the band is Emin to Emax."
        }
        false => {
            "Share of thread time that was work, iteration by iteration: not every run has decisions, by which alone the weighted average \
             is known. The band is Emin to Emax."
        }
    };
    let frame = Frame { x: (0.0, end(courses)), top: Some(1.05), axes: ("seconds", y), band };
    figure("Efficiency", about, &lines, &frame).map(Some)
}

/// What the threads of each cluster of a run did when they did not work, over time.
fn by_cluster(course: &Course) -> Result<Figure, FigureError> {
    let line = |(at, (cluster, steps)): (usize, (&ClusterId, &Steps<f64>))| Line {
        label: cluster.to_string(),
        colour: colour(at + 1),
        points: stairs(steps, course.known_until.get(cluster).copied().unwrap_or(course.wall_s)),
        marks: Vec::new(),
        dots: false,
    };
    let lines: Vec<Line<'_>> = course.overhead.iter().enumerate().map(line).collect();
    let about = "Share of each cluster's thread time that was no work, iteration by iteration.";
    let frame = Frame {
        x: (0.0, course.wall_s),
        top: Some(1.05),
        axes: ("seconds", "overhead"),
        band: None,
    };
    figure("Overhead by cluster", about, &lines, &frame)
}

/// What is done with thread time, in the order of a bar's parts.
const PARTS: [(ThreadState, &str, RGBColor); 5] = [
    (ThreadState::Working, "work", COLOURS[0]),
    (ThreadState::Bench, "benchmark", COLOURS[3]),
    (ThreadState::WaitLocal, "wait inside the cluster", COLOURS[6]),
    (ThreadState::WaitWide, "wait between clusters", COLOURS[1]),
    (ThreadState::Idle, "idle", COLOURS[7]),
];

/// A bar for each run and cluster: shares of its thread time.
fn overheads(courses: &[Course]) -> Result<Figure, FigureError> {
    let rows: Vec<(String, &Times)> = courses
        .iter()
        .flat_map(|course| {
            course.times.iter().map(move |(cluster, times)| {
                let label = if courses.len() == 1 {
                    cluster.to_string()
                } else {
                    format!("{} {cluster}", course.label)
                };
                (label, times)
            })
        })
        .take(ROWS)
        .collect();
    let height = 50 + 24 * u32::try_from(rows.len()).unwrap_or(0);
    let svg = draw((WIDTH, height), |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(10)
            .margin_right(24)
            .x_label_area_size(30)
            .y_label_area_size(190)
            .build_cartesian_2d(0.0..100.0, 0.0..rows.len() as f64)
            .map_err(wrong)?;
        let mut mesh = chart.configure_mesh();
        mesh.disable_y_mesh().disable_y_axis().y_labels(0).axis_style(INK.mix(0.5));
        mesh.bold_line_style(INK.mix(0.12))
            .light_line_style(TRANSPARENT)
            .label_style(("sans-serif", 13));
        mesh.x_label_formatter(&|x| format!("{x:.0} %")).draw().map_err(wrong)?;
        for (at, (label, times)) in rows.iter().enumerate() {
            let from_top = (rows.len() - at) as f64;
            let mut left = 0.0;
            for (state, _, colour) in PARTS {
                let share = times.get(state) as f64 * 100.0 / times.total_ns().max(1) as f64;
                let bar = Rectangle::new(
                    [(left, from_top - 0.85), (left + share, from_top - 0.15)],
                    colour.filled(),
                );
                chart.draw_series(std::iter::once(bar)).map_err(wrong)?;
                left += share;
            }
            let (_, y) = chart.backend_coord(&(0.0, from_top - 0.5));
            let style =
                ("sans-serif", 13).into_font().color(&INK).pos(Pos::new(HPos::Right, VPos::Center));
            area.draw(&Text::new(short(label, LABEL), (195, y), style)).map_err(wrong)?;
        }
        Ok(())
    })?;
    Ok(Figure {
        title: "Where thread time went".to_owned(),
        about: "Shares of each cluster's thread time over the whole run.",
        legend: PARTS.map(|(_, name, colour)| (name.to_owned(), colour)).to_vec(),
        svg: themed(&svg),
    })
}

/// A figure's axes.
struct Frame<'a> {
    x: (f64, f64),
    top: Option<f64>,
    axes: (&'a str, &'a str),
    band: Option<(f64, f64)>,
}

fn figure(
    title: &str,
    about: &'static str,
    lines: &[Line<'_>],
    frame: &Frame<'_>,
) -> Result<Figure, FigureError> {
    let legend = lines
        .iter()
        .map(|line| (line.label.clone(), line.colour))
        .filter(|_| lines.len() > 1)
        .collect();
    Ok(Figure { title: title.to_owned(), about, legend, svg: chart(lines, frame)? })
}

/// Each value until the next, at most so many points.
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

fn chart(lines: &[Line<'_>], frame: &Frame<'_>) -> Result<String, FigureError> {
    let (from, to) = frame.x;
    let most = lines.iter().flat_map(|line| &line.points).map(|(_, y)| *y).fold(1e-3, f64::max);
    let top = frame.top.unwrap_or(most * 1.25);
    let svg = draw((WIDTH, 330), |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(10)
            .x_label_area_size(36)
            .y_label_area_size(60)
            .build_cartesian_2d(from..to.max(from + 1e-3), 0.0..top)
            .map_err(wrong)?;
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
            .map_err(wrong)?;
        if let Some((low, high)) = frame.band {
            let band =
                Rectangle::new([(from, low), (to, high.min(top))], COLOURS[0].mix(0.12).filled());
            chart.draw_series(std::iter::once(band)).map_err(wrong)?;
        }
        for line in lines {
            let series = LineSeries::new(line.points.iter().copied(), line.colour.stroke_width(2));
            chart.draw_series(series.point_size(if line.dots { 3 } else { 0 })).map_err(wrong)?;
        }
        for line in lines {
            for (n, at, mark) in &line.marks {
                let style = line.colour.mix(if mark.decided { 0.45 } else { 0.25 });
                let tick = PathElement::new([(*at, 0.0), (*at, top)], style.stroke_width(1));
                chart.draw_series(std::iter::once(tick)).map_err(wrong)?;
                let sign = match mark.sign {
                    1 => "▲",
                    -1 => "▼",
                    _ => "",
                };
                // One above the other where they are close.
                let y = top * (1.0 - 0.055 * (n % 3) as f64);
                let font = ("sans-serif", 12).into_font().color(&line.colour);
                let label = Text::new(format!(" {sign}{n}"), (*at, y), font);
                chart.draw_series(std::iter::once(label)).map_err(wrong)?;
            }
        }
        Ok(())
    })?;
    Ok(themed(&svg))
}

/// With the colours of the page that it is put into: no ground of its own, and its ink for black.
fn themed(svg: &str) -> String {
    svg.replace("\"#FFFFFF\"", "\"none\"").replace("\"#000000\"", "\"currentColor\"")
}
