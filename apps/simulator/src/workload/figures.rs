//! The six figures of the paper for a set of runs, in SVG and CSV.
//!
//! Over the jobs: mean and maximum processors, execution and response times. Over time: processors
//! in use and the manager's operations.
//!
//! Source: Buisson et al., *Scheduling malleable applications in multicluster systems*, CLUSTER
//! 2007, figures 7 and 8. This module does not depend on the simulation of the outcomes.

use std::fmt::Write;
use std::time::Duration;

use plotters::prelude::*;

use super::{WorkloadOutcome, WorkloadRecord};
use crate::figure::{COLOURS, FigureError, draw_figure, drawing_error, legend};

/// The number of points of a line over time; with more, several lines cannot be distinguished.
const POINTS: u32 = 150;

/// One of the six figures of a set of runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// (a) Distribution over the jobs of their mean number of processors.
    MeanProcessors,
    /// (b) Distribution over the jobs of their maximum number of processors.
    MostProcessors,
    /// (c) Distribution over the jobs of their execution times.
    Execution,
    /// (d) Distribution over the jobs of their response times.
    Response,
    /// (e) Processors in use over time.
    Utilisation,
    /// (f) Cumulative operations of the malleability manager over time.
    Operations,
}

/// A run in a figure.
#[derive(Clone, Copy, Debug)]
pub struct FigureRun<'a> {
    /// The name of the run.
    pub label: &'a str,
    /// The outcome of the run.
    pub outcome: &'a WorkloadOutcome,
}

impl Figure {
    /// All six figures, in the paper's order.
    pub const ALL: [Self; 6] = [
        Self::MeanProcessors,
        Self::MostProcessors,
        Self::Execution,
        Self::Response,
        Self::Utilisation,
        Self::Operations,
    ];

    /// The name of the figure's file.
    pub fn name(self) -> &'static str {
        match self {
            Self::MeanProcessors => "mean-processors",
            Self::MostProcessors => "most-processors",
            Self::Execution => "execution-time",
            Self::Response => "response-time",
            Self::Utilisation => "utilisation",
            Self::Operations => "operations",
        }
    }

    /// The title, and the labels of the two axes.
    fn words(self) -> [&'static str; 3] {
        let jobs = "jobs with no more, %";
        match self {
            Self::MeanProcessors => ["Mean processors of a job", "processors", jobs],
            Self::MostProcessors => ["Most processors of a job", "processors", jobs],
            Self::Execution => ["Execution time of a job", "seconds", jobs],
            Self::Response => ["Response time of a job", "seconds", jobs],
            Self::Utilisation => ["Processors in use by jobs", "seconds", "processors"],
            Self::Operations => {
                ["Operations of the malleability manager", "seconds", "operations so far"]
            }
        }
    }

    /// The points of a run's line, by rising x.
    pub fn points(self, outcome: &WorkloadOutcome) -> Vec<(f64, f64)> {
        match self {
            Self::MeanProcessors => distribution(outcome, |job| job.ended.map(|_| job.mean)),
            Self::MostProcessors => {
                distribution(outcome, |job| job.ended.map(|_| f64::from(job.most)))
            }
            Self::Execution => distribution(outcome, WorkloadRecord::execution),
            Self::Response => distribution(outcome, WorkloadRecord::response),
            Self::Utilisation => used(outcome),
            Self::Operations => {
                let so_far = |(at, change): (usize, &(Duration, _))| {
                    (change.0.as_secs_f64(), at as f64 + 1.0)
                };
                let mut points = vec![(0.0, 0.0)];
                points.extend(outcome.changes.iter().enumerate().map(so_far));
                points.push((outcome.end.as_secs_f64(), outcome.changes.len() as f64));
                points
            }
        }
    }

    /// Draws the figure as SVG.
    ///
    /// # Errors
    /// The figure cannot be drawn.
    pub fn svg(self, title: &str, runs: &[FigureRun<'_>]) -> Result<String, FigureError> {
        let lines: Vec<_> = runs.iter().map(|run| (run.label, self.points(run.outcome))).collect();
        let all = || lines.iter().flat_map(|(_, points)| points.iter());
        let right = all().map(|(x, _)| *x).fold(1e-3, f64::max) * 1.02;
        let most = all().map(|(_, y)| *y).fold(1.0, f64::max);
        let top = match self {
            // The legend stands above the lines.
            Self::Utilisation => most * (1.2 + 0.06 * lines.len() as f64),
            Self::Operations => most * 1.1,
            _ => 100.0,
        };
        let [what, x, y] = self.words();
        let caption = if title.is_empty() { what.to_owned() } else { format!("{what}: {title}") };
        draw_figure((760, 440), |area| {
            let mut chart = ChartBuilder::on(area)
                .caption(caption, ("sans-serif", 16))
                .margin(12)
                .x_label_area_size(38)
                .y_label_area_size(56)
                .build_cartesian_2d(0.0..right, 0.0..top)
                .map_err(drawing_error)?;
            chart
                .configure_mesh()
                .x_desc(x)
                .y_desc(y)
                .x_label_formatter(&|x| format!("{x:.0}"))
                .y_label_formatter(&|y| format!("{y:.0}"))
                .light_line_style(WHITE)
                .bold_line_style(BLACK.mix(0.1))
                .draw()
                .map_err(drawing_error)?;
            for (at, (label, points)) in lines.iter().enumerate() {
                let colour = COLOURS[at % COLOURS.len()];
                let steps = self.steps(points);
                let line = LineSeries::new(steps, colour.stroke_width(2));
                chart.draw_series(line).map_err(drawing_error)?.label(*label).legend(
                    move |(x, y)| PathElement::new([(x, y), (x + 14, y)], colour.stroke_width(2)),
                );
            }
            legend(&mut chart, self.legend())
        })
    }

    fn legend(self) -> SeriesLabelPosition {
        match self {
            Self::Operations => SeriesLabelPosition::UpperLeft,
            Self::Utilisation => SeriesLabelPosition::UpperRight,
            _ => SeriesLabelPosition::LowerRight,
        }
    }

    /// The corners of a step line, which rises at each point.
    fn steps(self, points: &[(f64, f64)]) -> Vec<(f64, f64)> {
        if self == Self::Utilisation {
            return points.to_vec();
        }
        let mut steps = Vec::with_capacity(2 * points.len());
        let mut before = None;
        for &(x, y) in points {
            steps.push((x, before.unwrap_or(0.0)));
            steps.push((x, y));
            before = Some(y);
        }
        steps
    }

    /// The figure as CSV: a header, then a line for each run and point.
    pub fn csv(self, runs: &[FigureRun<'_>]) -> String {
        let [_, x, y] = self.words();
        let mut text = format!("run,{},{}\n", column(x), column(y));
        for run in runs {
            for (x, y) in self.points(run.outcome) {
                // Writing to a String cannot fail.
                let _ = writeln!(text, "{},{x},{y}", quoted(run.label));
            }
        }
        text
    }
}

/// All jobs of the runs as CSV, a line each. Times are in seconds; a field is empty if the event
/// did not occur.
pub fn jobs(runs: &[FigureRun<'_>]) -> String {
    let head = "run,job,program,kind,came_s,began_s,ended_s,mean_processors,most_processors,\
                changes,processor_seconds,sequential_s,paused_s,failed\n";
    let mut text = head.to_owned();
    let at = |time: Option<Duration>| time.map_or(String::new(), |t| t.as_secs_f64().to_string());
    for run in runs {
        for (number, job) in run.outcome.jobs.iter().enumerate() {
            let _ = writeln!(
                text,
                "{},{number},{},{},{},{},{},{},{},{},{},{},{},{}",
                quoted(run.label),
                quoted(&job.program),
                job.kind,
                at(Some(job.came)),
                at(job.began),
                at(job.ended),
                job.mean,
                job.most,
                job.changes,
                job.taken,
                job.work,
                job.paused,
                quoted(job.failed.as_deref().unwrap_or_default()),
            );
        }
    }
    text
}

fn column(words: &str) -> String {
    words.replace(", %", "_percent").replace(' ', "_")
}

/// Quotes a CSV field where it must be quoted.
pub fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

/// The percentage of the jobs whose value is at most x.
fn distribution(
    outcome: &WorkloadOutcome,
    of: impl Fn(&WorkloadRecord) -> Option<f64>,
) -> Vec<(f64, f64)> {
    let mut values: Vec<f64> = outcome.jobs.iter().filter_map(of).collect();
    values.sort_by(f64::total_cmp);
    let all = values.len() as f64;
    let mut points: Vec<(f64, f64)> = Vec::new();
    for (at, value) in values.into_iter().enumerate() {
        let part = 100.0 * (at as f64 + 1.0) / all;
        match points.last_mut() {
            Some((last, y)) if *last == value => *y = part,
            _ => points.push((value, part)),
        }
    }
    points
}

/// The processors in use by jobs; each point is a mean over its interval.
fn used(outcome: &WorkloadOutcome) -> Vec<(f64, f64)> {
    let end = outcome.end.as_secs_f64();
    let step = end / f64::from(POINTS);
    if step <= 0.0 {
        return Vec::new();
    }
    let mut sums = vec![0.0; POINTS as usize];
    let end_of = |at: usize| outcome.used.get(at + 1).map_or(end, |next| next.at.as_secs_f64());
    for (at, moment) in outcome.used.iter().enumerate() {
        let (from, to) = (moment.at.as_secs_f64(), end_of(at).min(end));
        let (first, last) = ((from / step) as usize, (to / step) as usize);
        for (slot, sum) in sums.iter_mut().enumerate().take(last + 1).skip(first) {
            let (begins, ends) = (slot as f64 * step, (slot as f64 + 1.0) * step);
            *sum += f64::from(moment.jobs) * (to.min(ends) - from.max(begins)).max(0.0);
        }
    }
    let point = |(at, sum): (usize, f64)| ((at as f64 + 0.5) * step, sum / step);
    sums.into_iter().enumerate().map(point).collect()
}

#[cfg(test)]
mod tests {
    use springtide_actors::policy::malleability::Direction;
    use springtide_actors::scheduler::manager::Kind;

    use super::super::UsageSample;
    use super::*;

    fn job(came: u64, began: u64, ended: u64, most: u32) -> WorkloadRecord {
        let at = Duration::from_secs;
        WorkloadRecord {
            program: "a, \"b\"".to_owned(),
            kind: Kind::Malleable,
            min: 2,
            came: at(came),
            began: Some(at(began)),
            ended: Some(at(ended)),
            failed: None,
            mean: f64::from(most) / 2.0,
            most,
            changes: 1,
            taken: 8.0,
            work: 4.0,
            paused: 1.0,
        }
    }

    fn outcome() -> WorkloadOutcome {
        let at = Duration::from_secs;
        let failed = WorkloadRecord {
            ended: None,
            began: None,
            failed: Some("no".into()),
            ..job(0, 0, 0, 0)
        };
        WorkloadOutcome {
            jobs: vec![job(0, 1, 11, 4), job(0, 5, 11, 4), job(5, 6, 100, 8), failed],
            used: [(0, 0), (10, 4), (60, 10), (100, 0)]
                .map(|(s, jobs)| UsageSample { at: at(s), jobs, users: 1 })
                .to_vec(),
            changes: vec![(at(20), Direction::Grow), (at(30), Direction::Shrink)],
            end: at(100),
            ..WorkloadOutcome::default()
        }
    }

    #[test]
    fn points_match_the_outcome() {
        let outcome = outcome();
        let points = |figure: Figure| figure.points(&outcome);
        let rounded = |figure| -> Vec<_> {
            points(figure).iter().map(|(x, y)| (*x, (y * 1000.0).round() / 1000.0)).collect()
        };
        assert_eq!(rounded(Figure::MostProcessors), [(4.0, 66.667), (8.0, 100.0)]);
        assert_eq!(rounded(Figure::Execution), [(6.0, 33.333), (10.0, 66.667), (94.0, 100.0)]);
        assert_eq!(rounded(Figure::Response), [(11.0, 66.667), (95.0, 100.0)]);
        assert_eq!(
            points(Figure::Operations),
            [(0.0, 0.0), (20.0, 1.0), (30.0, 2.0), (100.0, 2.0)]
        );
        let used = points(Figure::Utilisation);
        let sum: f64 = used.iter().map(|(_, y)| y * 100.0 / f64::from(POINTS)).sum();
        assert!((sum - (4.0 * 50.0 + 10.0 * 40.0)).abs() < 1e-6, "{sum}");
        assert!((used[40].1 - 4.0).abs() < 1e-9 && (used[149].1 - 10.0).abs() < 1e-9);
    }

    #[test]
    fn tables_have_a_line_for_each_point_and_drawings_name_each_run() {
        let outcome = outcome();
        let runs = [("egs", &outcome), ("fpsma, twice", &outcome)]
            .map(|(label, outcome)| FigureRun { label, outcome });
        for figure in Figure::ALL {
            let csv = figure.csv(&runs);
            assert_eq!(csv.lines().count(), 1 + 2 * figure.points(&outcome).len(), "{csv}");
            let svg = figure.svg("W'm", &runs).unwrap();
            assert!(svg.contains("fpsma, twice") && svg.ends_with("</svg>\n"), "{svg}");
        }
        let first = Figure::Execution.csv(&runs[1..]);
        assert!(
            first.starts_with("run,seconds,jobs_with_no_more_percent\n\"fpsma, twice\",6,33.3"),
            "{first}"
        );
        let jobs = jobs(&runs);
        assert_eq!(jobs.lines().count(), 9);
        let second = "egs,0,\"a, \"\"b\"\"\",malleable,0,1,11,2,4,1,8,4,1,";
        assert_eq!(jobs.lines().nth(1), Some(second));
        assert_eq!(jobs.lines().nth(4).map(|line| line.ends_with(",no")), Some(true));
    }

    #[test]
    fn empty_outcomes_can_be_drawn() {
        let outcome = WorkloadOutcome::default();
        for figure in Figure::ALL {
            figure.svg("", &[FigureRun { label: "none", outcome: &outcome }]).unwrap();
        }
    }
}
