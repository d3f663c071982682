//! The texts, JSON values and figures of the parts. Each text ends with what differs from the
//! paper, and why.

use std::fmt::Write;

use plotters::prelude::*;
use serde_json::{Value, json};
use springtide_simulator::figure::{self, COLOURS, FigureError, drawing_error};

use super::experiment::SimulatedTimes;
use super::paper::{TABLE3, TABLE4, table4_tasks};
use super::profile::{GroupTimes, Profile, ProfileRun, ProfileSummary, line};

/// A JSON array of what each item becomes.
pub(super) fn array<T>(items: impl IntoIterator<Item = T>, value: impl FnMut(T) -> Value) -> Value {
    items.into_iter().map(value).collect()
}

/// A part of the result.
pub(super) struct ReportSection {
    pub text: String,
    pub value: Value,
    /// Names and SVG texts.
    pub figures: Vec<(String, String)>,
}

/// Begins a section: a title, an underlined header, and the differences from the paper at the end.
struct Text {
    text: String,
    differences: &'static [&'static str],
}

impl Text {
    fn new(title: &str, header: &str, differences: &'static [&'static str]) -> Self {
        let rule = "-".repeat(header.chars().count());
        let text = format!("{title}\n\n{header}\n{rule}\n");
        Self { text, differences }
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = writeln!(self.text, "{line}");
    }

    fn section(mut self, rows: Value, figures: Vec<(String, String)>) -> ReportSection {
        self.text.push('\n');
        for difference in self.differences {
            self.text.push_str(&format!("  * {difference}\n"));
        }
        let value = json!({ "rows": rows, "differences": self.differences });
        ReportSection { text: self.text, value, figures }
    }
}

/// A part in percent; a dash where there was nothing to compare.
fn percent(part: f64) -> String {
    if !part.is_finite() {
        return "-".to_owned();
    }
    format!("{:+.1} %", 100.0 * part)
}

// --- tables ---

/// Per row: groups as in the paper, and ours.
pub(super) fn table3(rows: &[[SimulatedTimes; 2]]) -> ReportSection {
    let mut text = Text::new(
        "Table 3: workers of one speed, minutes",
        "program  scenarios tasks groups workers |    n  measured   model   error | forecast \
         error, of an iterate |    ours | \
         paper: n measured   model   error",
        &[
            "n is smaller than the paper's: starts from two smaller samples, a radius by their \
             distance, and fewer scenarios \
             (--scale).",
            "The model is n t_M + n t_W, with t_W by the speeds known at the first iterate. The \
             paper's t_W does not change within a run, and its model is short by 1.5 to 22.5 %. \
             Here scenarios take fewer pivots near the optimum, and more from a start far away, \
             so that t_W changes and the model errs to both sides.",
            "Forecasts are made before each iterate, from measured speeds and the master's last \
             decisions. Pivots change from \
             iterate to iterate, so single iterates err more than their sum.",
            "Ours: tasks split into blocks, so that 33 workers share 50 groups' work evenly.",
            "Links: 0.5 ms in a pool, 25 ms to a flock. The paper gives none.",
        ],
    );
    for (row, [groups, ours]) in TABLE3.iter().zip(rows) {
        text.line(format_args!(
            "{:8} {:9} {:5} {:6} {:7} | {:4} {:9.2} {:7.2} {:>7} | {:>14} {:>14} | {:7.2} | {:8} \
             {:8.2} {:7.2} {:>7}",
            row.program,
            row.scenarios,
            row.tasks,
            row.groups,
            row.workers,
            groups.iterations,
            groups.minutes,
            groups.model_minutes,
            percent(groups.model_error),
            percent(groups.forecast_error),
            format!("{:.1} %", 100.0 * groups.iterate_error),
            ours.minutes,
            row.iterations,
            row.measured_minutes,
            row.model_minutes,
            percent(row.model_minutes / row.measured_minutes - 1.0),
        ));
    }
    let value = array(TABLE3.iter().zip(rows), |(row, [groups, ours])| {
        json!({
            "program": row.program, "scenarios": row.scenarios, "tasks": row.tasks,
            "groups": row.groups, "workers": row.workers, "measured": groups, "ours": ours,
            "paper": {
                "iterations": row.iterations, "measured_minutes": row.measured_minutes,
                "model_minutes": row.model_minutes,
            },
        })
    });
    text.section(value, Vec::new())
}

/// Per row: equal shares and whole tasks with the paper's runs' tasks, whole tasks with 400 and
/// 800, and ours with 400.
pub(super) fn table4(rows: &[[SimulatedTimes; 5]]) -> ReportSection {
    let mut text = Text::new(
        "Table 4: ssn, 10,000 scenarios, workers of unequal speeds, minutes (the paper's in \
         brackets)",
        "workers  mean s | tasks equal shares           model error | whole tasks         used | \
         400 tasks used | 800 tasks used | \
         ours, 400 used  least forecast error, of an iterate | gain",
        &[
            "Equal shares and whole tasks have a task for each worker, which explains the paper's \
             times. The 400 and 800 that \
             its text recommends make both n and the last task of an iterate smaller.",
            "The paper's adaptive column is a model in the first nine rows, measured in the last \
             three; its equal shares are \
             measured in the first nine.",
            "Speeds have the paper's mean, least and greatest; the rest of their distribution is \
             not in the paper.",
            "The master's time with 800 tasks is the extrapolated one of Table 3, 3.25 s for a \
             decision.",
            "The model of equal shares errs as in Table 3: t_W falls within a run.",
            "Gain: equal shares over ours, and the paper's equal shares over its adaptive code.",
        ],
    );
    for (row, [equal, whole, some, many, ours]) in TABLE4.iter().zip(rows) {
        text.line(format_args!(
            "{:7} {:7.2} | {:5} {:6.2} ({:5.2})      {:>17} | {:6.2} ({:5.2}) {:5} ({:3}) | \
             {:9.2} {:4} | {:9.2} {:4} | {:9.2} {:4} \
             {:6.2} {:>14} {:>14} | {:.1} ({:.1})",
            row.workers,
            row.share_s.0,
            table4_tasks(row.workers),
            equal.minutes,
            row.equal(),
            percent(equal.model_error),
            whole.minutes,
            row.adaptive(),
            whole.used,
            row.used,
            some.minutes,
            some.used,
            many.minutes,
            many.used,
            ours.minutes,
            ours.used,
            ours.least_minutes,
            percent(ours.forecast_error),
            format!("{:.1} %", 100.0 * ours.iterate_error),
            equal.minutes / ours.minutes,
            row.equal() / row.adaptive(),
        ));
    }
    let value = array(TABLE4.iter().zip(rows), |(row, [equal, whole, some, many, ours])| {
        json!({
            "workers": row.workers, "share_s": row.share_s, "tasks": table4_tasks(row.workers),
            "equal_shares": equal, "whole_tasks": whole, "whole_400": some, "whole_800": many,
            "ours_400": ours,
            "paper": {
                "equal_minutes": row.equal(), "adaptive_minutes": row.adaptive(), "used": row.used,
            },
        })
    });
    text.section(value, Vec::new())
}

/// By speeds (one, unequal): ours, and the ends of the rules of thumb.
pub(super) fn table5(both: &[&[SimulatedTimes]], rules: &[(usize, u32)]) -> ReportSection {
    let mut text = Text::new(
        "Table 5: ssn, 40,000 scenarios, 50 workers",
        "speeds    code                            |    n  minutes | over ours (the paper)",
        &[
            "The rules of thumb are ranges; their four ends are run. A group goes to the next \
             idle worker: the paper says no \
             more of it.",
            "The paper's 61 to 149 minutes include the debug output of the original code, on the \
             master's time; these do not.",
        ],
    );
    let mut value = Vec::new();
    let speeds = [("one", "4 to 8"), ("unequal", "3 to 4")];
    for (measured, (speeds, paper)) in both.iter().zip(speeds) {
        let Some((ours, thumbs)) = measured.split_first() else { continue };
        let mut line = |code: &str, one: &SimulatedTimes| {
            let ratio = one.minutes / ours.minutes;
            text.line(format_args!(
                "{speeds:9} {code:31} | {:4} {:8.2} | {ratio:.1} ({paper})",
                one.iterations, one.minutes
            ));
            value.push(
                json!({ "speeds": speeds, "code": code, "measured": one, "over_ours": ratio }),
            );
        };
        line("ours, 400 tasks", ours);
        for (one, (basket, groups)) in thumbs.iter().zip(rules) {
            line(&format!("{basket} iterates at once, {groups} groups"), one);
        }
    }
    text.section(value.into(), Vec::new())
}

/// Measured times of this machine.
pub(super) fn table2(rows: &[(&str, ProfileRun, Profile)]) -> ReportSection {
    let mut text = Text::new(
        "Table 2: measured on this machine, one worker on one thread",
        "program  scenarios tasks groups | update of m(x), us: mean     min     max   CV |    n | \
         decision, ms: mean     min     max   \
         CV | pivots | group, ms: mean   CV",
        &[
            "The numbers of the paper's table are missing in our copy of the paper. Its isolated \
             master took 150 to 500 us for an \
             update, and 0.9 to 2.7 s for a decision on ssn.",
            "An update only stores its cuts, and the decision adds them to the linear program at \
             once; so updates are shorter \
             and steadier than the paper's.",
            "Scenarios are the drawn ones (--scale). A group's time varies with the iterate here: \
             near the optimum scenarios \
             take fewer pivots.",
        ],
    );
    let value = array(rows, |(name, run, profile)| {
        let (updates, decisions) =
            (ProfileSummary::of(&profile.updates_s), ProfileSummary::of(&profile.decisions_s));
        let groups = ProfileSummary::of(&profile.evaluations_s);
        let pivots =
            profile.decision_pivots.iter().sum::<u64>() / u64::from(profile.iterations.max(1));
        text.line(format_args!(
            "{name:8} {:9} {:5} {:6} | {:24.1} {:7.1} {:7.1} {:4.2} | {:4} | {:18.2} {:7.2} \
             {:7.2} {:4.2} | {pivots:6} | {:15.2} {:4.2}",
            run.scenarios,
            run.tasks,
            run.groups,
            1e6 * updates.mean,
            1e6 * updates.min,
            1e6 * updates.max,
            updates.variation,
            profile.iterations,
            1e3 * decisions.mean,
            1e3 * decisions.min,
            1e3 * decisions.max,
            decisions.variation,
            1e3 * groups.mean,
            groups.variation,
        ));
        json!({
            "program": name, "scenarios": run.scenarios, "tasks": run.tasks, "groups": run.groups,
            "iterations": profile.iterations, "update_s": updates, "decision_s": decisions,
            "decision_pivots": pivots, "group_s": groups,
        })
    });
    text.section(value, Vec::new())
}

/// By grid (one speed in groups, in blocks; unequal speeds in whole tasks, in blocks): constant
/// times, and times by the work with each noise.
pub(super) fn noise(grids: &[&[SimulatedTimes]], noises: &[f64]) -> ReportSection {
    let mut text = Text::new(
        "Forecasts by the noise of speeds: ssn, 10,000 scenarios, 50 workers",
        "speeds   distribution | times     noise | measured |  model  error | forecast error, of \
         an iterate",
        &[
            "Not in the paper. Constant times are its assumption, and their forecasts are right \
             by construction; they only \
             check the arithmetic.",
            "By work: each scenario takes a time by its pivots, each decision one by its own.",
            "Noise hardly adds to the errors of forecasts: most of an iterate's error is the \
             change of pivots from the one \
             before. It adds to the time of whole groups, where the slowest worker ends an \
             iterate; blocks that are not begun \
             move to faster workers.",
        ],
    );
    let names =
        [("one", "50 groups"), ("one", "blocks"), ("unequal", "whole"), ("unequal", "blocks")];
    let mut value = Vec::new();
    for (measured, (speeds, distribution)) in grids.iter().zip(names) {
        let kinds = std::iter::once(("constant", 0.0));
        let kinds = kinds.chain(noises.iter().map(|noise| ("by work", *noise)));
        for (one, (times, noise)) in measured.iter().zip(kinds) {
            text.line(format_args!(
                "{speeds:8} {distribution:12} | {times:8} {noise:6.2} | {:8.2} | {:6.2} {:>6} | \
                 {:>14} {:>14}",
                one.minutes,
                one.model_minutes,
                percent(one.model_error),
                percent(one.forecast_error),
                format!("{:.1} %", 100.0 * one.iterate_error),
            ));
            value.push(json!({
                "speeds": speeds, "distribution": distribution, "times": times, "noise": noise,
                "measured": one,
            }));
        }
    }
    text.section(value.into(), Vec::new())
}

// --- figures ---

/// A curve with its name.
type Curve = (String, Vec<(f64, f64)>);

/// The axes of a chart. `doubles_from` makes each step of the horizontal axis twice the last one;
/// the legend of curves that fall is on the right.
struct Axes<'a> {
    title: &'a str,
    x: &'a str,
    y: &'a str,
    doubles_from: Option<f64>,
    falls: bool,
}

fn chart(axes: &Axes<'_>, curves: &[Curve]) -> Result<String, FigureError> {
    let x = |x: f64| axes.doubles_from.map_or(x, |from| (x / from).log2());
    let points = || curves.iter().flat_map(|(_, points)| points);
    let right = points().map(|point| x(point.0)).fold(0.0, f64::max).max(1e-9);
    let top = points().map(|point| point.1).fold(0.0, f64::max).max(1e-9);
    figure::draw_figure((720, 420), |area| {
        let mut chart = ChartBuilder::on(area)
            .caption(axes.title, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(60)
            .build_cartesian_2d(0.0..right * 1.02, 0.0..top * 1.1)
            .map_err(drawing_error)?;
        let label = |x: &f64| match axes.doubles_from {
            Some(from) => format!("{:.0}", from * x.exp2()),
            None => format!("{x:.0}"),
        };
        let steps = axes.doubles_from.map_or(10, |_| right.round() as usize + 1);
        chart
            .configure_mesh()
            .x_desc(axes.x)
            .x_labels(steps)
            .x_label_formatter(&label)
            .y_desc(axes.y)
            .y_label_formatter(&|y| if top > 10.0 { format!("{y:.0}") } else { format!("{y:.1}") })
            .light_line_style(WHITE)
            .draw()
            .map_err(drawing_error)?;
        for ((name, points), colour) in curves.iter().zip(COLOURS) {
            let points = || points.iter().map(|point| (x(point.0), point.1));
            chart
                .draw_series(LineSeries::new(points(), colour.stroke_width(2)))
                .map_err(drawing_error)?
                .label(name.as_str())
                .legend(move |(x, y)| {
                    PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2))
                });
            if points().count() <= 20 {
                let marks = points().map(|point| Circle::new(point, 3, colour.filled()));
                chart.draw_series(marks).map_err(drawing_error)?;
            }
        }
        if curves.len() > 1 {
            let right = SeriesLabelPosition::UpperRight;
            let side = if axes.falls { right } else { SeriesLabelPosition::UpperLeft };
            figure::legend(&mut chart, side)?;
        }
        Ok(())
    })
}

/// Mean, least and greatest as three curves.
fn extremes(points: impl Iterator<Item = (f64, ProfileSummary)> + Clone) -> Vec<Curve> {
    let curve = |name: &str, of: fn(ProfileSummary) -> f64| {
        (name.to_owned(), points.clone().map(|(x, summary)| (x, of(summary))).collect())
    };
    vec![
        curve("greatest", |summary| summary.max),
        curve("mean", |summary| summary.mean),
        curve("least", |summary| summary.min),
    ]
}

pub(super) fn figure3(times: &[GroupTimes]) -> Result<ReportSection, FigureError> {
    let points: Vec<(f64, f64)> =
        times.iter().map(|one| (one.scenarios as f64, one.seconds.mean)).collect();
    let (slope, intercept, error) = line(&points);
    let mut text = Text::new(
        "Figure 3: time of a worker for a group, ssn, measured on this machine, ms",
        "scenarios | groups    mean     min     max   CV | line, ms | pivots: mean   CV",
        &[
            "The paper has three machines, of 780 to 1,700 MIPS, and a line for each. This is one \
             machine; the simulator's \
             other speeds are factors of it, which would show nothing.",
            "Least and greatest are of all groups at four decisions of a run: they differ in \
             pivots.",
        ],
    );
    for GroupTimes { scenarios, seconds, pivots } in times {
        text.line(format_args!(
            "{scenarios:9} | {:6} {:7.2} {:7.2} {:7.2} {:4.2} | {:8.2} | {:12.0} {:4.2}",
            seconds.count,
            1e3 * seconds.mean,
            1e3 * seconds.min,
            1e3 * seconds.max,
            seconds.variation,
            1e3 * (intercept + slope * *scenarios as f64),
            pivots.mean,
            pivots.variation,
        ));
    }
    text.line(format_args!(
        "\nlinear in the scenarios from 25 on: {:.4} ms + {:.4} ms each, within {:.1} %",
        1e3 * intercept,
        1e3 * slope,
        100.0 * error
    ));
    let axes = Axes {
        title: "Figure 3: time of a worker for a group (ssn)",
        x: "scenarios",
        y: "ms",
        doubles_from: None,
        falls: false,
    };
    let milliseconds = |one: &GroupTimes| {
        let ProfileSummary { mean, min, max, .. } = one.seconds;
        let scaled =
            ProfileSummary { mean: 1e3 * mean, min: 1e3 * min, max: 1e3 * max, ..one.seconds };
        (one.scenarios as f64, scaled)
    };
    let svg = chart(&axes, &extremes(times.iter().map(milliseconds)))?;
    let mut section = text.section(json!(times), vec![("figure3".to_owned(), svg)]);
    section.value["line"] =
        json!({ "intercept_s": intercept, "slope_s": slope, "relative_error": error });
    Ok(section)
}

pub(super) fn figure6(rows: &[(u32, Vec<Profile>)]) -> Result<ReportSection, FigureError> {
    let mut text = Text::new(
        "Figure 6: the master by the number of tasks, ssn, 10,000 scenarios, measured on this \
         machine",
        "tasks | (b) n: mean  min | (c) ms a decision | (d) ms of all decisions | pivots a \
         decision",
        &[
            "Times are those of this machine and of this linear program: tens of times shorter \
             than the paper's. (a) is figure6a.svg.",
            "As in the paper n falls with the tasks, the time of a decision rises by less than \
             the tasks, and that of all decisions rises \
             slowly. Within a run it rises, drops sharply and stays small; the paper's rises once \
             more at the end.",
            "With --scale below 1 a task has fewer scenarios than the paper's, so n falls further.",
        ],
    );
    let mean = |profiles: &[Profile], of: &dyn Fn(&Profile) -> f64| {
        profiles.iter().map(of).sum::<f64>() / profiles.len().max(1) as f64
    };
    let total = |profile: &Profile| 1e3 * profile.decisions_s.iter().sum::<f64>();
    let (mut counts, mut averages, mut totals) = (Vec::new(), Vec::new(), Vec::new());
    let mut least = Vec::new();
    let value = array(rows, |(tasks, profiles)| {
        let iterations: Vec<f64> =
            profiles.iter().map(|profile| f64::from(profile.iterations)).collect();
        let iterations = ProfileSummary::of(&iterations);
        let all = mean(profiles, &total);
        let each = mean(profiles, &|one| total(one) / f64::from(one.iterations.max(1)));
        let pivots = mean(profiles, &|one| {
            one.decision_pivots.iter().sum::<u64>() as f64 / f64::from(one.iterations.max(1))
        });
        text.line(format_args!(
            "{tasks:5} | {:11.1} {:4.0} | {each:17.2} | {all:23.1} | {pivots:17.0}",
            iterations.mean, iterations.min
        ));
        let tasks = f64::from(*tasks);
        counts.push((tasks, iterations.mean));
        least.push((tasks, iterations.min));
        averages.push((tasks, each));
        totals.push((tasks, all));
        let profile: Vec<&Vec<f64>> = profiles.iter().map(|one| &one.decisions_s).collect();
        json!({
            "tasks": tasks, "iterations": iterations, "decision_ms": each, "master_ms": all,
            "decision_pivots": pivots, "decisions_s": profile,
        })
    });
    let each_iterate = rows.iter().filter_map(|(tasks, profiles)| {
        let seconds = &profiles.first()?.decisions_s;
        let points = (1..).zip(seconds).map(|(at, one)| (f64::from(at), 1e3 * one)).collect();
        Some((format!("{tasks} tasks"), points))
    });
    let by_tasks = |title, y, falls| Axes { title, x: "tasks", y, doubles_from: Some(25.0), falls };
    let figures = vec![
        (
            "figure6a".to_owned(),
            chart(
                &Axes {
                    title: "Figure 6(a): time of each decision",
                    x: "iterate",
                    y: "ms",
                    doubles_from: None,
                    falls: true,
                },
                &each_iterate.collect::<Vec<_>>(),
            )?,
        ),
        (
            "figure6b".to_owned(),
            chart(
                &by_tasks("Figure 6(b): iterates", "iterates", true),
                &[("mean".to_owned(), counts), ("least".to_owned(), least)],
            )?,
        ),
        (
            "figure6c".to_owned(),
            chart(
                &by_tasks("Figure 6(c): mean time of a decision", "ms", false),
                &[("mean".to_owned(), averages)],
            )?,
        ),
        (
            "figure6d".to_owned(),
            chart(
                &by_tasks("Figure 6(d): time of all decisions", "ms", false),
                &[("sum".to_owned(), totals)],
            )?,
        ),
    ];
    Ok(text.section(value, figures))
}

pub(super) fn figure7(rows: &[(usize, &[SimulatedTimes])]) -> Result<ReportSection, FigureError> {
    let mut text = Text::new(
        "Figure 7: iterates by the number at once, ssn, 10,000 scenarios, 200 tasks, 50 workers",
        "at once |   n: mean  min  max   over one | minutes   over one",
        &["In the paper twice the iterates at once need nearly twice the iterates, and the run \
             is no shorter. So here."],
    );
    let summary = |measured: &[SimulatedTimes], of: fn(&SimulatedTimes) -> f64| {
        ProfileSummary::of(&measured.iter().map(of).collect::<Vec<_>>())
    };
    let count = |measured: &[SimulatedTimes]| summary(measured, |one| f64::from(one.iterations));
    let minutes = |measured: &[SimulatedTimes]| summary(measured, |one| one.minutes).mean;
    let one = rows.first().map_or((1.0, 1.0), |(_, all)| (count(all).mean, minutes(all)));
    let value = array(rows, |(basket, measured)| {
        let (n, minutes) = (count(measured), minutes(measured));
        text.line(format_args!(
            "{basket:7} | {:9.1} {:4.0} {:4.0} {:10.2} | {minutes:7.2} {:10.2}",
            n.mean,
            n.min,
            n.max,
            n.mean / one.0,
            minutes / one.1
        ));
        json!({ "basket": basket, "iterations": n, "minutes": minutes, "runs": measured })
    });
    let axes = Axes {
        title: "Figure 7: iterates by the number at once (ssn, 200 tasks)",
        x: "iterates at once",
        y: "iterates",
        doubles_from: Some(1.0),
        falls: false,
    };
    let points = rows.iter().map(|(basket, measured)| (*basket as f64, count(measured)));
    let svg = chart(&axes, &extremes(points))?;
    Ok(text.section(value, vec![("figure7".to_owned(), svg)]))
}

pub(super) fn figure8(
    sizes: &[usize],
    [local, far]: &[Vec<f64>; 2],
    messages: &[(&str, u32, (usize, usize))],
) -> Result<ReportSection, FigureError> {
    let mut text = Text::new(
        "Figure 8: round trip of a message, ms",
        "bytes | local network  Wisconsin to Bologna",
        &[
            "QUIC in place of TCP, over simulated links: 1 ms there and back at 100 Mbit/s, and \
             280 ms at 1 Mbit/s. The \
             paper's curves span 1 to 9 ms and 280 to 1,400 ms; it gives neither link.",
            "The paper's messages have 250 bytes to 12 KB. Requests here carry a decision and a \
             basis, not the scenarios; a \
             group's results have a cut for each of its tasks.",
        ],
    );
    for ((size, local), far) in sizes.iter().zip(local).zip(far) {
        text.line(format_args!("{size:5} | {:13.2} {:21.1}", 1e3 * local, 1e3 * far));
    }
    text.line(format_args!("\nprogram  tasks | request, bytes  results of a group"));
    for (name, tasks, (request, results)) in messages {
        text.line(format_args!("{name:8} {tasks:5} | {request:14} {results:19}"));
    }
    let curve = |name: &str, times: &[f64]| {
        let points = sizes.iter().zip(times);
        (name.to_owned(), points.map(|(size, s)| (*size as f64 / 1024.0, 1e3 * s)).collect())
    };
    let axes = |title| Axes { title, x: "KB", y: "ms", doubles_from: None, falls: false };
    let figures = vec![
        (
            "figure8a".to_owned(),
            chart(&axes("Figure 8(a): round trip in the local network"), &[curve("local", local)])?,
        ),
        (
            "figure8b".to_owned(),
            chart(
                &axes("Figure 8(b): round trip from Wisconsin to Bologna"),
                &[curve("far", far)],
            )?,
        ),
    ];
    let value = array(
        sizes.iter().zip(local).zip(far),
        |((size, local), far)| json!({ "bytes": size, "local_s": local, "far_s": far }),
    );
    let mut section = text.section(value, figures);
    section.value["messages"] = array(messages, |(name, tasks, (request, results))| {
        json!({
            "program": name, "tasks": tasks, "request_bytes": request,
            "result_bytes": results,
        })
    });
    Ok(section)
}
