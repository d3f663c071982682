//! Gantt charts of a schedule: hosts (the tasks of each processor, and unused time that is paid)
//! and tasks (when each waits and runs).
//!
//! Up to [`TASKS_MAX`] tasks and [`ROWS_MAX`] processors are drawn as boxes. Beyond that the charts
//! show shares over time.

use std::collections::BTreeMap;

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;
use springtide_actors::policy::provisioning::{Dag, Time, seconds};
use springtide_cli::format as report;
use springtide_simulator::figure::{FigureError, draw_figure};

use super::artefacts::PlanReport;
use super::check::percent;
use super::processors::Span;
use springtide_figures::canvas::{
    BOTTOM, Canvas, KINDS, LegendEntry, LegendSymbol, PART, TOP, WASTE, WHOLE, colour, label_room,
    means, short,
};

/// Maximum number of tasks that are drawn as boxes.
const TASKS_MAX: usize = 2000;
/// Maximum number of processors with boxes.
const ROWS_MAX: u32 = 150;
/// Maximum number of boxes, so that a figure has at most about 1 MB.
const BOXES_MAX: usize = 8000;
/// Maximum number of rows of shares. With more slots, the slots of a site are one row.
const BANDS_MAX: usize = 40;
/// Maximum number of tasks with a row each. With more, a row is a kind of tasks of a level.
const TASK_ROWS_MAX: usize = 400;
/// Maximum number of tasks whose rows have room for names.
const NAMED_ROWS_MAX: usize = 80;

const WIDTH: u32 = 1160;
const LEGEND: i32 = 200;

/// Kinds of tasks, in decreasing order of their processor time. The first [`KINDS`] have a colour
/// each; the others share one.
struct Kinds {
    /// Index of the kind of each task.
    of: Vec<usize>,
    names: Vec<String>,
}

impl Kinds {
    fn new(planned: &PlanReport<'_>) -> Self {
        let kinds = &planned.read.kinds;
        let mut takes: BTreeMap<&str, u128> = BTreeMap::new();
        for (at, place) in planned.plan.schedule.tasks.iter().enumerate() {
            let processors = u128::from(planned.dag.task(at).processors);
            *takes.entry(&kinds[at]).or_default() +=
                processors * u128::from(place.end - place.start);
        }
        let mut names: Vec<&str> = takes.keys().copied().collect();
        names.sort_by_key(|name| (std::cmp::Reverse(takes[name]), *name));
        let places: BTreeMap<&str, usize> =
            names.iter().enumerate().map(|(at, name)| (*name, at)).collect();
        let of = kinds.iter().map(|kind| places.get(kind.as_str()).copied().unwrap_or(0));
        Self { of: of.collect(), names: names.into_iter().map(str::to_owned).collect() }
    }

    /// Index of the colour of a task.
    fn layer(&self, task: usize) -> usize {
        self.of[task].min(KINDS)
    }

    fn legend(&self) -> Vec<LegendEntry> {
        let entry = |(at, name): (usize, &String)| LegendEntry {
            text: name.clone(),
            colour: colour(at),
            mark: LegendSymbol::Box,
        };
        let mut entries: Vec<LegendEntry> =
            self.names.iter().take(KINDS).enumerate().map(entry).collect();
        if self.names.len() > KINDS {
            let text = match self.names.len() - KINDS {
                1 => self.names[KINDS].clone(),
                others => format!("{others} other kinds"),
            };
            entries.push(LegendEntry { text, colour: colour(KINDS), mark: LegendSymbol::Box });
        }
        entries
    }
}

/// The title of a figure.
fn title(planned: &PlanReport<'_>, what: &str) -> String {
    let makespan = report::seconds(seconds(planned.plan.objectives().makespan));
    format!("{}: {what}; makespan {makespan}", short(&planned.read.name(), 60))
}

/// Maximum length of the time axis, in makespans: next to a slot of a month, an hour is invisible.
const SPANS_MAX: u64 = 5;

/// The end of the time axis: the latest end of the workflow and of its indivisible slots. The text
/// is a note for the title if slots are longer than the axis.
fn span(planned: &PlanReport<'_>) -> (Time, &'static str) {
    let makespan = planned.plan.objectives().makespan;
    let whole = planned.plan.slots.iter().filter(|had| !had.offer.divisible);
    let all = whole.map(|had| had.end).fold(makespan, Time::max);
    let most = makespan.saturating_mul(SPANS_MAX);
    if all > most { (most, "; slots continue to the right") } else { (all, "") }
}

/// The chart of hosts: processors of each site as rows, slots as outlines, tasks in the colours of
/// their kinds, and unused time that is paid shaded.
///
/// # Errors
/// The figure cannot be drawn.
pub fn hosts(planned: &PlanReport<'_>) -> Result<String, FigureError> {
    let plan = planned.plan;
    let rows: u32 = plan.rows(planned.offers).iter().sum();
    let boxes: usize = plan.places.iter().map(|numbers| numbers.runs().len()).sum::<usize>()
        + plan.slots.iter().map(|had| had.processors.runs().len()).sum::<usize>();
    let few = planned.dag.len() <= TASKS_MAX && rows <= ROWS_MAX && boxes <= BOXES_MAX;
    if few { processors(planned) } else { shares(planned) }
}

fn slots_legend(planned: &PlanReport<'_>, mut entries: Vec<LegendEntry>) -> Vec<LegendEntry> {
    let slots = &planned.plan.slots;
    let is_wasted = slots.iter().any(|had| had.paid() > had.used);
    let mut add = |is: bool, text: &str, colour: RGBColor, mark: LegendSymbol| {
        if is {
            entries.push(LegendEntry { text: text.to_owned(), colour, mark });
        }
    };
    add(is_wasted, "paid, not used", WASTE, LegendSymbol::Box);
    add(
        slots.iter().any(|had| !had.offer.divisible),
        "slot, paid whole",
        WHOLE,
        LegendSymbol::Outline,
    );
    add(
        slots.iter().any(|had| had.offer.divisible),
        "slot, paid in part",
        PART,
        LegendSymbol::Outline,
    );
    entries
}

fn processors(planned: &PlanReport<'_>) -> Result<String, FigureError> {
    const GAP: i32 = 22;
    let (plan, offers) = (planned.plan, planned.offers);
    let kinds = Kinds::new(planned);
    let rows = plan.rows(offers);
    let all: u32 = rows.iter().sum();
    let sites: Vec<usize> = (0..rows.len()).filter(|site| rows[*site] > 0).collect();
    let row = (640 / all.max(1) as i32).clamp(4, 16);
    let legend = slots_legend(planned, kinds.legend());
    let height = TOP + BOTTOM + all as i32 * row + sites.len() as i32 * GAP;
    let height = height.max(TOP + BOTTOM + 18 * legend.len() as i32);
    let mut top = vec![0; rows.len()];
    let mut next = TOP;
    for &site in &sites {
        top[site] = next + GAP;
        next += GAP + rows[site] as i32 * row;
    }
    let has = |site: usize| format!("{} of {}", rows[site], procs(offers.sites[site].processors));
    let labels: Vec<(&str, String)> =
        sites.iter().map(|&site| (offers.sites[site].name.as_str(), has(site))).collect();
    let left = label_room(labels.iter().map(|(name, has)| (*name, has.as_str())));
    let (span, cut) = span(planned);
    draw_figure((WIDTH, height as u32), |area| {
        let what = title(planned, "tasks of each processor") + cut;
        let canvas = Canvas::new(area, &what, left, LEGEND, span, &legend)?;
        for (&site, (name, has)) in sites.iter().zip(&labels) {
            canvas.label(name, has, top[site] - GAP / 2 + 2)?;
            let every = [1, 2, 5, 10, 20, 50].into_iter().find(|n| n * row >= 13).unwrap_or(50);
            for number in (0..rows[site] as i32).step_by(every as usize) {
                let y = top[site] + number * row + row / 2;
                let grey = RGBColor(90, 90, 90);
                canvas.text(&number.to_string(), (left - 6, y), 11, HPos::Right, grey)?;
            }
        }
        let heights = |site: usize, (first, count): (u32, u32)| {
            let from = top[site] + first as i32 * row;
            (from, from + count as i32 * row)
        };
        for had in plan.slots.iter().filter(|had| had.paid() > had.used) {
            for &run in had.processors.runs() {
                let at = heights(had.offer.site, run);
                canvas.fill((had.offer.start, had.end), at, WASTE, false)?;
            }
        }
        for (task, place) in plan.schedule.tasks.iter().enumerate() {
            for &run in plan.places[task].runs() {
                let at = heights(place.site, run);
                canvas.fill((place.start, place.end), at, colour(kinds.of[task]), true)?;
            }
        }
        for had in &plan.slots {
            let colour = if had.offer.divisible { PART } else { WHOLE };
            for &run in had.processors.runs() {
                let at = heights(had.offer.site, run);
                canvas.outline((had.offer.start, had.end), at, colour)?;
            }
        }
        Ok(())
    })
}

/// A row of shares over time.
struct Band {
    name: String,
    more: String,
    /// Colour and mean shares of the row's height over time, for each layer.
    layers: Vec<(RGBColor, Vec<f64>)>,
    /// Start, end and colour of the outline.
    outline: Option<(Time, Time, RGBColor)>,
}

/// Number of bins of the time axis in each row; fewer for many rows, to keep the figure small.
fn bins(bands: usize) -> usize {
    if bands > 12 { 160 } else { 320 }
}

/// Draws rows of shares.
fn bands(
    what: &str,
    bands: &[Band],
    span: Time,
    legend: &[LegendEntry],
) -> Result<String, FigureError> {
    let row = (640 / bands.len().max(1) as i32).clamp(20, 90);
    // High rows have room for two lines of text.
    let is_high = row >= 38;
    let left = if is_high {
        bands.iter().flat_map(|band| [(&*band.name, ""), ("", &*band.more)]).collect()
    } else {
        bands.iter().map(|band| (&*band.name, &*band.more)).collect::<Vec<_>>()
    };
    let left = label_room(left);
    let height = TOP + BOTTOM + row * bands.len() as i32;
    let height = height.max(TOP + BOTTOM + 18 * legend.len() as i32 + 18);
    draw_figure((WIDTH, height as u32), |area| {
        let canvas = Canvas::new(area, what, left, LEGEND, span, legend)?;
        for (at, band) in bands.iter().enumerate() {
            let top = TOP + row * at as i32 + 3;
            let bottom = top + row - 6;
            let middle = (top + bottom) / 2;
            if is_high {
                canvas.label(&band.name, "", middle - 8)?;
                canvas.label("", &band.more, middle + 8)?;
            } else {
                canvas.label(&band.name, &band.more, middle)?;
            }
            canvas.stack((top, bottom), &band.layers)?;
            if let Some((from, to, colour)) = band.outline {
                canvas.outline((from, to), (top, bottom), colour)?;
            }
        }
        Ok(())
    })
}

/// The chart of hosts with a row for each slot, or for each site if there are many: the used share
/// over time, by kind of task.
fn shares(planned: &PlanReport<'_>) -> Result<String, FigureError> {
    let (plan, (span, cut)) = (planned.plan, span(planned));
    let kinds = Kinds::new(planned);
    // The slots of each row.
    let by_site = plan.slots.len() > BANDS_MAX;
    let mut groups: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (at, had) in plan.slots.iter().enumerate() {
        groups.entry(if by_site { had.offer.site } else { at }).or_default().push(at);
    }
    let bins = bins(groups.len());
    let mut row_of = vec![0; plan.slots.len()];
    for (row, slots) in groups.values().enumerate() {
        slots.iter().for_each(|&slot| row_of[slot] = row);
    }
    let index: BTreeMap<usize, usize> =
        plan.slots.iter().enumerate().map(|(at, had)| (had.slot, at)).collect();
    // The tasks in each row, by layer.
    let mut runs: Vec<Vec<Vec<(Time, Time, f64)>>> =
        vec![vec![Vec::new(); KINDS + 1]; groups.len()];
    for (task, place) in plan.schedule.tasks.iter().enumerate() {
        for piece in &place.pieces {
            if let Some(&slot) = index.get(&piece.slot) {
                let run = (place.start, place.end, f64::from(piece.processors));
                runs[row_of[slot]][kinds.layer(task)].push(run);
            }
        }
    }
    let mut rows = Vec::new();
    for (slots, runs) in groups.values().zip(runs) {
        let had = || slots.iter().map(|&at| &plan.slots[at]);
        let offered = means(
            had().map(|had| (had.offer.start, had.end, f64::from(had.offer.processors))),
            span,
            bins,
        );
        // The height is the maximum that is reserved at once.
        let most = offered.iter().copied().fold(1.0, f64::max);
        let part = |values: Vec<f64>| values.into_iter().map(|value| value / most).collect();
        let mut layers: Vec<(RGBColor, Vec<f64>)> = runs
            .into_iter()
            .enumerate()
            .map(|(layer, runs)| (colour(layer), part(means(runs, span, bins))))
            .collect();
        // Paid time without use lies above the used time.
        let whole = had().filter(|had| !had.offer.divisible);
        let paid = means(
            whole.map(|had| (had.offer.start, had.end, f64::from(had.offer.processors))),
            span,
            bins,
        );
        // At a site with both kinds of slots, the indivisible ones count as filled first.
        let waste: Vec<f64> = (0..bins)
            .map(|bin| {
                let used: f64 = layers.iter().map(|(_, values)| values[bin]).sum();
                (paid[bin] / most - used).max(0.0)
            })
            .collect();
        layers.push((WASTE, waste));
        let used: u128 = had().map(|had| had.used).sum();
        let paid: u128 = had().map(super::planning::PlannedSlot::paid).sum();
        let used = percent(if paid > 0 { used as f64 / paid as f64 } else { 0.0 });
        let Some(first) = had().next() else { continue };
        let site = &planned.offers.sites[first.offer.site];
        let (name, outline, what) = match slots.len() {
            1 if !by_site => {
                let colour = if first.offer.divisible { PART } else { WHOLE };
                let outline = Some((first.offer.start, first.end, colour));
                (format!("{}, slot {}", site.name, first.of_site + 1), outline, "")
            }
            count => (format!("{}, {count} slots", site.name), None, "up to "),
        };
        let more = if first.offer.divisible && slots.len() == 1 {
            format!("{}, in part", procs(most.round() as u32))
        } else {
            format!("{what}{}, {used} used", procs(most.round() as u32))
        };
        rows.push(Band { name, more, layers, outline });
    }
    let mut legend = slots_legend(planned, kinds.legend());
    if by_site {
        legend.retain(|entry| entry.mark == LegendSymbol::Box);
    }
    let what = title(planned, "how much of each slot is used");
    let what = if by_site { title(planned, "how much of each site's slots is used") } else { what };
    bands(&(what + cut), &rows, span, &legend)
}

/// The chart of tasks: tasks as rows in order of their starts, with the times in which each waits
/// and runs. With many tasks, a row for each kind and level.
///
/// # Errors
/// The figure cannot be drawn.
pub fn tasks(planned: &PlanReport<'_>) -> Result<String, FigureError> {
    let plan = planned.plan;
    let count = planned.dag.len();
    if count > TASK_ROWS_MAX {
        return levels(planned);
    }
    let kinds = Kinds::new(planned);
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by_key(|&task| (plan.schedule.tasks[task].start, plan.schedule.tasks[task].end));
    let row = if count <= NAMED_ROWS_MAX { 15 } else { (900 / count as i32).clamp(3, 10) };
    let mut legend = kinds.legend();
    if (0..count).any(|task| planned.ready(task) < plan.schedule.tasks[task].start) {
        let text = "waits for its place".to_owned();
        legend.push(LegendEntry {
            text,
            colour: RGBColor(165, 165, 165),
            mark: LegendSymbol::Thread,
        });
    }
    let height = TOP + BOTTOM + row * count as i32;
    let height = height.max(TOP + BOTTOM + 18 * legend.len() as i32 + 18);
    let needs = |task: usize| format!("{} p", planned.dag.task(task).processors);
    let by_start = format!("{} tasks, by start", report::number(count as u64));
    let left = if count <= NAMED_ROWS_MAX {
        (0..count)
            .map(|task| label_room([(&*planned.dag.task(task).name, &*needs(task))]))
            .fold(0, i32::max)
    } else {
        label_room([(&*by_start, "")])
    };
    draw_figure((WIDTH, height as u32), |area| {
        let what = title(planned, "when tasks wait and run");
        let canvas = Canvas::new(area, &what, left, LEGEND, plan.objectives().makespan, &legend)?;
        for (at, &task) in order.iter().enumerate() {
            let (top, place) = (TOP + row * at as i32, &plan.schedule.tasks[task]);
            let middle = top + row / 2;
            if count <= NAMED_ROWS_MAX {
                let of = planned.dag.task(task);
                canvas.label(&of.name, &needs(task), middle)?;
            }
            let ready = planned.ready(task);
            if ready < place.start {
                canvas.thread(ready, place.start, middle)?;
            }
            let room = i32::from(row > 6);
            let at = (top + room, top + row - room);
            canvas.fill((place.start, place.end), at, colour(kinds.of[task]), false)?;
        }
        if count > NAMED_ROWS_MAX {
            let y = TOP + 10;
            canvas.text(&by_start, (8, y), 12, HPos::Left, BLACK)?;
        }
        Ok(())
    })
}

/// A count as a suffix of a name.
fn times(count: usize) -> String {
    if count == 1 { String::new() } else { format!(" x {}", report::number(count as u64)) }
}

/// A number of processors, abbreviated.
fn procs(count: impl Into<u64>) -> String {
    report::many(count.into(), "proc")
}

/// The row of each task, and the names of the rows. A row is a kind of a level; if these are too
/// many, a level; else a kind.
fn grouped(dag: &Dag, kinds: &Kinds) -> (Vec<usize>, Vec<String>) {
    let levels = dag.levels();
    let name = |kind: usize| kinds.names[kind].as_str();
    for form in 0..3 {
        let key = |task: usize| match form {
            0 => (levels[task], kinds.of[task]),
            1 => (levels[task], 0),
            _ => (0, kinds.of[task].min(BANDS_MAX - 1)),
        };
        let mut rows: BTreeMap<(usize, usize), usize> = BTreeMap::new();
        (0..dag.len()).for_each(|task| *rows.entry(key(task)).or_default() += 1);
        if rows.len() > BANDS_MAX {
            continue;
        }
        let text = |(&(level, kind), count): (&(usize, usize), &usize)| match form {
            0 => format!("level {}: {}{}", level + 1, name(kind), times(*count)),
            1 => format!("level {}: {}", level + 1, report::many(*count as u64, "task")),
            _ if kind + 1 == BANDS_MAX && kinds.names.len() > BANDS_MAX => {
                format!("other kinds{}", times(*count))
            }
            _ => format!("{}{}", name(kind), times(*count)),
        };
        let names = rows.iter().map(text).collect();
        let places: BTreeMap<(usize, usize), usize> =
            rows.keys().enumerate().map(|(at, key)| (*key, at)).collect();
        return ((0..dag.len()).map(|task| places[&key(task)]).collect(), names);
    }
    (vec![0; dag.len()], vec!["all tasks".to_owned()])
}

fn levels(planned: &PlanReport<'_>) -> Result<String, FigureError> {
    let (plan, span) = (planned.plan, planned.plan.objectives().makespan);
    let kinds = Kinds::new(planned);
    let (row_of, names) = grouped(planned.dag, &kinds);
    let bins = bins(names.len());
    let mut runs: Vec<Vec<Vec<(Time, Time, f64)>>> = vec![vec![Vec::new(); KINDS + 1]; names.len()];
    let mut ends: Vec<(Time, Time)> = vec![(Time::MAX, 0); names.len()];
    for (task, place) in plan.schedule.tasks.iter().enumerate() {
        let row = row_of[task];
        let processors = f64::from(planned.dag.task(task).processors);
        runs[row][kinds.layer(task)].push((place.start, place.end, processors));
        ends[row] = (ends[row].0.min(place.start), ends[row].1.max(place.end));
    }
    let mut spans: Vec<Vec<Span>> = vec![Vec::new(); names.len()];
    for (task, place) in plan.schedule.tasks.iter().enumerate() {
        let processors = planned.dag.task(task).processors;
        spans[row_of[task]].push(Span { processors, start: place.start, end: place.end });
    }
    let mut rows = Vec::new();
    for (row, ((name, runs), (from, to))) in names.into_iter().zip(runs).zip(ends).enumerate() {
        let layers: Vec<Vec<f64>> = runs.into_iter().map(|runs| means(runs, span, bins)).collect();
        let sum = |bin: usize| layers.iter().map(|values| values[bin]).sum::<f64>();
        let most = (0..bins).map(sum).fold(0.0, f64::max).max(1e-9);
        let part = |values: Vec<f64>| values.into_iter().map(|value| value / most).collect();
        let layers = layers
            .into_iter()
            .enumerate()
            .map(|(layer, values)| (colour(layer), part(values)))
            .collect();
        let more = format!("up to {}", procs(super::processors::most(&spans[row])));
        rows.push(Band { name, more, layers, outline: Some((from, to, PART)) });
    }
    let what = title(planned, "how many processors tasks run on");
    bands(&what, &rows, span, &kinds.legend())
}
