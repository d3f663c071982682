//! The charts of a run's page: attempts by node over time, and numbers of tasks over time.
//!
//! They are SVG elements for a page of HTML, which has their style sheet.

use std::collections::{BTreeMap, BTreeSet};

use springtide_actors::policy::provisioning::{Time, from_seconds};
use springtide_cli::format::seconds;
use springtide_figures::canvas::{KINDS, colour, means, plain, short, ticks, unit};

use super::analysis::{KindUsage, PathStep, ready_s, waiting};
use super::attempts::{AttemptEnd, RunHistory, TaskAttempt};
use super::markup::Markup;

/// The most bars of a chart; shares over time replace more of them.
const BARS_MAX: usize = 2000;
/// The most rows of bars.
const ROWS_MAX: usize = 160;
/// The most nodes with a row of their own among shares over time.
const NODE_ROWS_MAX: usize = 32;
/// The most marks of failed attempts among shares over time.
const MARKS_MAX: usize = 1000;
/// The longest apparent overlap of attempts that ran one after the other, in seconds.
const OVERLAP_MAX_S: f64 = 0.3;
/// Intervals of shares over time.
const BINS: usize = 320;

const WIDTH: f64 = 1120.0;
const TOP: f64 = 8.0;
const AXIS: f64 = 40.0;
const RIGHT: f64 = 14.0;
/// Approximate width of a character.
const CHARACTER: f64 = 6.6;
/// The longest label of a row, in characters.
const LABEL_MAX: usize = 26;

/// Room for the most tasks of a row.
const MOST_ROOM: f64 = 58.0;

/// Style classes of kinds of tasks. The last one is of all kinds without a colour of their own.
const CLASSES: [&str; KINDS + 1] = ["k0", "k1", "k2", "k3", "k4", "k5", "k6"];

/// The colours of kinds of tasks.
pub struct KindColours {
    index: BTreeMap<String, usize>,
    names: Vec<String>,
}

impl KindColours {
    /// The first kinds get colours of their own.
    pub fn new(usage: &[KindUsage]) -> Self {
        let names: Vec<String> = usage.iter().map(|kind| kind.kind.clone()).collect();
        let index = names.iter().cloned().enumerate().map(|(at, name)| (name, at.min(KINDS)));
        Self { index: index.collect(), names }
    }

    fn of(&self, kind: &str) -> usize {
        self.index.get(kind).copied().unwrap_or(KINDS)
    }

    /// The style class of a kind.
    pub fn class(&self, kind: &str) -> &'static str {
        CLASSES[self.of(kind)]
    }

    /// The rules of the style sheet.
    pub fn style(&self) -> String {
        let rule = |(at, class): (usize, &&str)| {
            let colour = colour(at);
            let (r, g, b) = (colour.0, colour.1, colour.2);
            format!(".{class}{{fill:#{r:02x}{g:02x}{b:02x};background:#{r:02x}{g:02x}{b:02x}}}")
        };
        CLASSES.iter().enumerate().map(rule).collect()
    }

    /// The classes and texts of the legend.
    pub fn legend(&self) -> Vec<(&'static str, String)> {
        let own = self.names.iter().take(KINDS).enumerate();
        let mut legend: Vec<(&'static str, String)> =
            own.map(|(at, name)| (CLASSES[at], short(name, 40))).collect();
        match self.names.len().saturating_sub(KINDS) {
            0 => {}
            1 => legend.push((CLASSES[KINDS], short(&self.names[KINDS], 40))),
            others => legend.push((CLASSES[KINDS], format!("{others} other kinds"))),
        }
        legend
    }
}

/// The time axis of a run. Times in which no process ran the run have no length.
struct TimeAxis {
    processes: Vec<(f64, f64)>,
    span_s: f64,
    left: f64,
}

impl TimeAxis {
    fn new(history: &RunHistory, left: f64) -> Self {
        let span_s = history.active_s().max(1e-6);
        Self { processes: history.processes.clone(), span_s, left }
    }

    /// Seconds of the run at a time.
    fn elapsed_s(&self, at_s: f64) -> f64 {
        self.processes
            .iter()
            .fold(0.0, |sum, &(first, last)| sum + (at_s.clamp(first, last) - first))
    }

    fn x(&self, at_s: f64) -> f64 {
        self.left + (WIDTH - RIGHT - self.left) * self.elapsed_s(at_s) / self.span_s
    }

    /// Draws the axis below the rows, and a line where a process ended and another began.
    fn draw(&self, out: &mut Markup, bottom: f64) {
        let (name, length) = unit(self.span_s);
        let most = self.span_s / length;
        let room = WIDTH - RIGHT - self.left;
        for tick in ticks(most) {
            let x = self.left + room * tick / most;
            line(out, "grid", (x, TOP), (x, bottom));
            text(out, "tick", (x, bottom + 15.0), &plain(tick));
        }
        line(out, "axis", (self.left, bottom), (WIDTH - RIGHT, bottom));
        let label = format!("{name} of the run");
        text(out, "tick", (self.left + room / 2.0, bottom + 32.0), &label);
        for pair in self.processes.windows(2) {
            let x = self.x(pair[0].1);
            out.raw("<line class=\"stop\"").number("x1", x).number("y1", TOP);
            out.number("x2", x).number("y2", bottom).raw("><title>");
            out.text(&format!("no process ran it for {}", seconds(pair[1].0 - pair[0].1)));
            out.raw("</title></line>\n");
        }
    }
}

fn line(out: &mut Markup, class: &'static str, from: (f64, f64), to: (f64, f64)) {
    out.raw("<line").attribute("class", class).number("x1", from.0).number("y1", from.1);
    out.number("x2", to.0).number("y2", to.1).raw("/>\n");
}

fn text(out: &mut Markup, class: &'static str, (x, y): (f64, f64), text: &str) {
    out.raw("<text").attribute("class", class).number("x", x).number("y", y);
    out.raw(">").text(text).raw("</text>\n");
}

fn open_svg(out: &mut Markup, height: f64, label: &'static str) {
    out.raw("<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\"");
    out.attribute("aria-label", label);
    out.attribute("viewBox", &format!("0 0 {WIDTH} {height:.0}")).raw(">\n");
}

/// A chart of attempts by node.
pub struct Gantt {
    /// The chart as an SVG element.
    pub svg: Markup,
    /// Whether it has shares over time in the place of bars.
    pub is_aggregated: bool,
    /// The left end of the time axis.
    left: f64,
}

/// Draws the attempts by node over time; none if no task has started.
pub fn gantt(history: &RunHistory, path: &[PathStep], colours: &KindColours) -> Option<Gantt> {
    let mut rows = bar_rows(history);
    rows.retain(|row| !row.lanes.is_empty());
    if rows.is_empty() {
        return None;
    }
    let bars = history.attempts.iter().filter(|attempt| attempt.start_s.is_some()).count();
    let lanes: usize = rows.iter().map(|row| row.lanes.len()).sum();
    let is_aggregated = bars > BARS_MAX || lanes > ROWS_MAX;
    let (svg, left) = if is_aggregated {
        shares(history, &rows, colours)
    } else {
        bars_of(history, &rows, path, colours)
    };
    Some(Gantt { svg, is_aggregated, left })
}

/// A node, or a cluster, with its attempts.
struct NodeRow {
    cluster: String,
    name: String,
    /// Attempts that do not overlap, as indices, in each lane.
    lanes: Vec<Vec<usize>>,
}

fn place(attempt: &TaskAttempt) -> (String, String) {
    let unknown = || "unknown".to_owned();
    let cluster = attempt.cluster.clone().unwrap_or_else(unknown);
    (cluster, attempt.node.clone().unwrap_or_else(unknown))
}

/// The order of nodes: by cluster, name and number.
type NodeKey = (String, (String, u64));

/// Nodes with their attempts in lanes: each attempt in the first lane that is free.
fn bar_rows(history: &RunHistory) -> Vec<NodeRow> {
    let mut by_node: BTreeMap<NodeKey, (NodeRow, Vec<usize>)> = BTreeMap::new();
    for (at, attempt) in history.attempts.iter().enumerate() {
        if attempt.start_s.is_none() {
            continue;
        }
        let (cluster, name) = place(attempt);
        // Numbered nodes are in the order of their numbers.
        let bare = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let number = name[bare.len()..].parse().unwrap_or(0);
        let key = (cluster.clone(), (bare.to_owned(), number));
        let row = || (NodeRow { cluster, name, lanes: Vec::new() }, Vec::new());
        by_node.entry(key).or_insert_with(row).1.push(at);
    }
    // Times in the journal are those of reports, so that attempts may seem to overlap a little.
    let least_s = history.active_s() * 0.003;
    let tolerance_s =
        |at: usize| (history.attempts[at].duration_s() / 2.0).min(OVERLAP_MAX_S).max(least_s);
    let filled = by_node.into_values().map(|(mut row, mut attempts)| {
        let start = |at: usize| history.attempts[at].start_s.unwrap_or_default();
        attempts.sort_by(|&a, &b| start(a).total_cmp(&start(b)));
        let mut ends: Vec<f64> = Vec::new();
        for at in attempts {
            let free = ends.iter().position(|end| *end <= start(at) + tolerance_s(at));
            let lane = free.unwrap_or_else(|| {
                ends.push(0.0);
                row.lanes.push(Vec::new());
                ends.len() - 1
            });
            ends[lane] = history.attempts[at].end_s;
            row.lanes[lane].push(at);
        }
        row
    });
    filled.collect()
}

fn left_of(labels: impl Iterator<Item = usize>) -> f64 {
    labels.max().unwrap_or(0).clamp(6, LABEL_MAX) as f64 * CHARACTER + 14.0
}

fn label(row: &NodeRow) -> String {
    if row.name.starts_with(&row.cluster) || row.name.is_empty() {
        let name = if row.name.is_empty() { &row.cluster } else { &row.name };
        return short(name, LABEL_MAX);
    }
    short(&format!("{} {}", row.cluster, row.name), LABEL_MAX)
}

fn bars_of(
    history: &RunHistory,
    rows: &[NodeRow],
    path: &[PathStep],
    colours: &KindColours,
) -> (Markup, f64) {
    const GAP: f64 = 6.0;
    let lanes: usize = rows.iter().map(|row| row.lanes.len()).sum();
    let height = (520.0 / lanes as f64).clamp(5.0, 18.0);
    let labels: Vec<String> = rows.iter().map(label).collect();
    let axis = TimeAxis::new(history, left_of(labels.iter().map(|label| label.chars().count())));
    let bottom = TOP + lanes as f64 * height + rows.len() as f64 * GAP;
    let critical: BTreeSet<usize> = path.iter().map(|step| step.attempt).collect();
    let mut out = Markup::default();
    open_svg(&mut out, bottom + AXIS, "Attempts of tasks by node over time");
    out.raw(
        "<defs><pattern id=\"hatch\" width=\"5\" height=\"5\" patternUnits=\"userSpaceOnUse\" \
         patternTransform=\"rotate(45)\"><rect width=\"2\" height=\"5\" fill=\"#fff\"/></pattern>\
         </defs>\n",
    );
    axis.draw(&mut out, bottom);
    let mut y = TOP;
    for (row, label) in rows.iter().zip(&labels) {
        let end = y + GAP + row.lanes.len() as f64 * height;
        text(&mut out, "row", (axis.left - 8.0, f64::midpoint(y + GAP, end) + 4.0), label);
        line(&mut out, "grid", (axis.left, y + GAP / 2.0), (WIDTH - RIGHT, y + GAP / 2.0));
        y += GAP;
        let mut ends: Vec<f64> =
            row.lanes.iter().flatten().map(|&at| history.attempts[at].end_s).collect();
        ends.sort_by(f64::total_cmp);
        for lane in &row.lanes {
            for &at in lane {
                wait(&mut out, &axis, (&ends, at), history, y + height / 2.0);
            }
            for &at in lane {
                bar(&mut out, &axis, (history, at), (y, height - 1.0), colours, &critical);
            }
            y += height;
        }
    }
    out.raw("</svg>\n");
    (out, axis.left)
}

/// Draws the time in which an attempt was ready, since the last end on its node.
fn wait(
    out: &mut Markup,
    axis: &TimeAxis,
    (ends, at): (&[f64], usize),
    history: &RunHistory,
    y: f64,
) {
    let Some(start_s) = history.attempts[at].start_s else { return };
    let before = ends.partition_point(|end| *end <= start_s);
    let free_s = before.checked_sub(1).map_or(0.0, |last| ends[last]);
    let from = axis.x(ready_s(history, at).max(free_s));
    let to = axis.x(start_s);
    if history.workflow.is_ok() && to - from >= 0.5 {
        line(out, "wait", (from, y), (to, y));
    }
}

fn bar(
    out: &mut Markup,
    axis: &TimeAxis,
    (history, at): (&RunHistory, usize),
    (y, height): (f64, f64),
    colours: &KindColours,
    critical: &BTreeSet<usize>,
) {
    let attempt = &history.attempts[at];
    let Some(start_s) = attempt.start_s else { return };
    let task = &history.tasks[attempt.task];
    let (x, end) = (axis.x(start_s), axis.x(attempt.end_s));
    let width = (end - x).max(0.8);
    let (mark, state) = match &attempt.end {
        AttemptEnd::Completed { .. } if critical.contains(&at) => ("critical", "critical path"),
        AttemptEnd::Completed { .. } => ("", ""),
        AttemptEnd::Failed { reason, .. } => ("failed", reason.as_str()),
        AttemptEnd::Lost => ("lost", "its process ended"),
        AttemptEnd::Running => ("running", "still running"),
    };
    let class = format!("{} {mark}", colours.class(&task.kind));
    let rect = |out: &mut Markup, class: &str| {
        out.raw("<rect").attribute("class", class.trim_end()).number("x", x).number("y", y);
        out.number("width", width).number("height", height);
    };
    rect(out, &class);
    out.raw("><title>").text(&short(&task.id, 80));
    if attempt.number > 1 {
        out.text(&format!(", attempt {}", attempt.number));
    }
    let (from, lasted) = (axis.elapsed_s(start_s), attempt.duration_s());
    out.text(&format!(": {} from {}", seconds(lasted), seconds(from)));
    if !state.is_empty() {
        out.text("; ").text(&short(state, 120));
    }
    out.raw("</title></rect>\n");
    if matches!(attempt.end, AttemptEnd::Failed { .. } | AttemptEnd::Lost) && width > 3.0 {
        rect(out, "hatch");
        out.raw("/>\n");
    }
}

/// The interval of an attempt on an axis, in microseconds of the run.
fn interval(axis: &TimeAxis, from_s: f64, to_s: f64) -> (Time, Time) {
    (from_seconds(axis.elapsed_s(from_s)), from_seconds(axis.elapsed_s(to_s)))
}

/// Draws the number of tasks that ran on each node or in each cluster, by kind.
fn shares(history: &RunHistory, rows: &[NodeRow], colours: &KindColours) -> (Markup, f64) {
    let by_cluster = rows.len() > NODE_ROWS_MAX;
    let mut groups: BTreeMap<(String, usize), (String, Vec<usize>)> = BTreeMap::new();
    for (at, row) in rows.iter().enumerate() {
        let key = (row.cluster.clone(), if by_cluster { 0 } else { at });
        let name = if by_cluster { row.cluster.clone() } else { label(row) };
        let attempts = row.lanes.iter().flatten();
        groups.entry(key).or_insert_with(|| (name, Vec::new())).1.extend(attempts);
    }
    let height = (560.0 / groups.len() as f64).clamp(18.0, 90.0);
    let labels = groups.values().map(|(name, _)| name.chars().count());
    let axis = TimeAxis::new(history, left_of(labels) + MOST_ROOM);
    let bottom = TOP + groups.len() as f64 * height;
    let span = from_seconds(axis.span_s);
    let mut out = Markup::default();
    open_svg(&mut out, bottom + AXIS, "Running tasks by node over time");
    axis.draw(&mut out, bottom);
    let mut y = TOP;
    for (name, attempts) in groups.values() {
        let mut layers: Vec<Vec<(Time, Time, f64)>> = vec![Vec::new(); KINDS + 1];
        for &at in attempts {
            let attempt = &history.attempts[at];
            let Some(start_s) = attempt.start_s else { continue };
            let (from, to) = interval(&axis, start_s, attempt.end_s);
            layers[colours.of(&history.tasks[attempt.task].kind)].push((from, to, 1.0));
        }
        let layers: Vec<Vec<f64>> =
            layers.into_iter().map(|layer| means(layer, span, BINS)).collect();
        let sums = (0..BINS).map(|bin| layers.iter().map(|layer| layer[bin]).sum::<f64>());
        let most = sums.fold(1e-9, f64::max);
        let base = y + height - 2.0;
        let scale = (height - 6.0) / most;
        let mut below = vec![0.0; BINS];
        for (class, layer) in CLASSES.into_iter().zip(&layers) {
            if layer.iter().all(|value| *value <= 0.0) {
                continue;
            }
            let above: Vec<f64> = below.iter().zip(layer).map(|(a, b)| a + b).collect();
            area(&mut out, class, &axis, (&below, &above), (base, scale));
            below = above;
        }
        line(&mut out, "grid", (axis.left, y + height), (WIDTH - RIGHT, y + height));
        let most = if most >= 9.95 { format!("{most:.0}") } else { format!("{most:.1}") };
        let text_y = y + height / 2.0 + 4.0;
        text(&mut out, "row", (axis.left - MOST_ROOM, text_y), name);
        text(&mut out, "most", (axis.left - 6.0, text_y), &format!("max {most}"));
        let failed = attempts.iter().map(|&at| &history.attempts[at]);
        let failed = failed.filter(|attempt| matches!(attempt.end, AttemptEnd::Failed { .. }));
        for attempt in failed.take(MARKS_MAX) {
            let x = axis.x(attempt.end_s);
            line(&mut out, "mark", (x, base - 5.0), (x, base + 2.0));
        }
        y += height;
    }
    out.raw("</svg>\n");
    (out, axis.left)
}

/// Draws the area between two step functions.
fn area(
    out: &mut Markup,
    class: &'static str,
    axis: &TimeAxis,
    (below, above): (&[f64], &[f64]),
    (base, scale): (f64, f64),
) {
    let bins = above.len();
    let x = |bin: usize| axis.left + (WIDTH - RIGHT - axis.left) * bin as f64 / bins as f64;
    let mut d = String::new();
    let mut point = |x: f64, value: f64| {
        let command = if d.is_empty() { 'M' } else { 'L' };
        d.push_str(&format!("{command}{x:.1} {:.1}", base - value * scale));
    };
    let steps = |values: &[f64]| {
        let mut points: Vec<(f64, f64)> = Vec::new();
        for (bin, &value) in values.iter().enumerate() {
            let is_same = points.last().is_some_and(|last| (last.1 - value).abs() * scale < 0.05);
            match points.last_mut().filter(|_| is_same && bin > 0) {
                Some(last) => last.0 = x(bin + 1),
                None => points.extend([(x(bin), value), (x(bin + 1), value)]),
            }
        }
        points
    };
    steps(above).into_iter().for_each(|(x, value)| point(x, value));
    steps(below).into_iter().rev().for_each(|(x, value)| point(x, value));
    d.push('Z');
    out.raw("<path").attribute("class", class).attribute("d", &d).raw("/>\n");
}

/// Draws the numbers of running and of waiting tasks over time, below a chart by node.
/// Waiting tasks need a known workflow.
pub fn load(history: &RunHistory, gantt: &Gantt) -> Markup {
    const HEIGHT: f64 = 64.0;
    const GAP: f64 = 14.0;
    let axis = TimeAxis::new(history, gantt.left);
    let span = from_seconds(axis.span_s);
    let running = history.attempts.iter();
    let running = running.filter_map(|attempt| Some((attempt.start_s?, attempt.end_s))).collect();
    let mut rows = vec![("active", running)];
    if history.workflow.is_ok() {
        rows.push(("ready", waiting(history)));
    }
    let bottom = TOP + rows.len() as f64 * (HEIGHT + GAP) - GAP;
    let mut out = Markup::default();
    open_svg(&mut out, bottom + AXIS, "Running and waiting tasks over time");
    axis.draw(&mut out, bottom);
    let mut base = TOP + HEIGHT;
    for (class, intervals) in rows {
        let intervals = intervals.into_iter().map(|(from_s, to_s): (f64, f64)| {
            let (from, to) = interval(&axis, from_s, to_s);
            (from, to, 1.0)
        });
        let counts = means(intervals, span, BINS);
        let most = counts.iter().copied().fold(1.0, f64::max);
        let scale = HEIGHT / most;
        // Tasks are whole, and there is at least one.
        let all = if most < 2.0 { vec![0.0, 1.0] } else { ticks(most) };
        let step = all.len().div_ceil(4);
        for tick in all.into_iter().step_by(step).skip(1) {
            let y = base - tick * scale;
            line(&mut out, "grid", (axis.left, y), (WIDTH - RIGHT, y));
            text(&mut out, "most", (axis.left - 6.0, y + 3.0), &plain(tick));
        }
        area(&mut out, class, &axis, (&vec![0.0; BINS], &counts), (base, scale));
        line(&mut out, "axis", (axis.left, base), (WIDTH - RIGHT, base));
        base += HEIGHT + GAP;
    }
    out.raw("</svg>\n");
    out
}
