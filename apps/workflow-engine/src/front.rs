//! The Pareto front of a plan as a figure and a table, with the point that each trade-off selects.

use std::fmt::Write as _;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use springtide_actors::policy::provisioning::seconds;
use springtide_simulator::figure::{COLOURS, FigureError, draw_figure, drawing_error, legend};
use springtide_simulator::provisioning::figures::{Axes, chart};
use springtide_simulator::workload::figures::quoted;

use super::artefacts::PlanReport;
use super::planning::{Plan, TRADE_OFFS, trade_off};
use springtide_figures::canvas::{plain, unit};
use springtide_operations::offers::Offers;

/// The trade-offs that select a point, such as `0-0.3 0.5`; empty if none does.
pub fn taken_by(plan: &Plan, at: usize) -> String {
    let takes = |number: usize| number < TRADE_OFFS && plan.chosen_by_trade_off[number] == at;
    let mut parts = Vec::new();
    let mut number = 0;
    while number < TRADE_OFFS {
        let from = number;
        while takes(number) {
            number += 1;
        }
        match number - from {
            0 => number += 1,
            1 => parts.push(plain(trade_off(from))),
            _ => parts.push(format!("{}-{}", plain(trade_off(from)), plain(trade_off(number - 1)))),
        }
    }
    parts.join(" ")
}

/// The unit of costs: for a figure, for the head of a table's column, and in units of the offers.
pub fn unit_of_cost(plan: &Plan, offers: &Offers) -> (&'static str, &'static str, f64) {
    let dearest = plan.front.points().last().map_or(0.0, |point| point.objectives.cost);
    match offers.is_plainly_priced() {
        true if dearest > 36_000.0 => ("cost, processor-hours", "cost, proc-h", 3600.0),
        true => ("cost, processor-seconds", "cost, proc-s", 1.0),
        false => ("cost, in the offers' units", "cost", 1.0),
    }
}

/// All points as a table, the cheapest first: cost, makespan in seconds, number of slots, the
/// trade-offs that select it, and whether it is the plan.
pub fn csv(plan: &Plan) -> String {
    let mut text = "cost,makespan_s,slots,trade_offs,taken\n".to_owned();
    for (at, point) in plan.front.points().iter().enumerate() {
        // Writing to a `String` does not fail.
        let _ = writeln!(
            text,
            "{},{},{},{},{}",
            point.objectives.cost,
            seconds(point.objectives.makespan),
            point.slots.ones(),
            quoted(&taken_by(plan, at)),
            at == plan.index_on_front
        );
    }
    text
}

/// All points as a figure, with the trade-offs that select them and the plan's constraints.
///
/// # Errors
/// The figure cannot be drawn.
pub fn svg(planned: &PlanReport<'_>) -> Result<String, FigureError> {
    let PlanReport { plan, offers, request, .. } = *planned;
    let points = plan.front.points();
    let longest = points.iter().map(|point| seconds(point.objectives.makespan)).fold(0.0, f64::max);
    let (name, length) = unit(longest);
    let (x_name, _, by) = unit_of_cost(plan, offers);
    let place = |at: usize| {
        let is = points[at].objectives;
        (is.cost / by, seconds(is.makespan) / length)
    };
    let all: Vec<(f64, f64)> = (0..points.len()).map(place).collect();
    let x = range(all.iter().map(|(x, _)| *x));
    let y = range(all.iter().map(|(_, y)| *y));
    let title = match points.len() {
        1 => "One plan: none that was found is cheaper or faster".to_owned(),
        count => format!("{count} plans, none of them better than another in both time and cost"),
    };
    let makespan = format!("makespan, {name}");
    let axes = Axes { title: &title, x: x_name, y: &makespan };
    draw_figure((860, 520), |area| {
        let mut chart = chart(area, axes, x.clone(), y.clone())?;
        let blue = COLOURS[0];
        let mut steps = Vec::new();
        for (at, &(cost, length)) in all.iter().enumerate() {
            if at > 0 {
                steps.push((cost, all[at - 1].1));
            }
            steps.push((cost, length));
        }
        chart
            .draw_series(LineSeries::new(steps, blue.mix(0.5).stroke_width(1)))
            .map_err(drawing_error)?;
        chart
            .draw_series(all.iter().map(|&point| Circle::new(point, 3, blue.filled())))
            .map_err(drawing_error)?
            .label("plans")
            .legend(move |(x, y)| Circle::new((x + 7, y), 3, blue.filled()));
        let lines = [
            (request.constraint.deadline.map(|most| seconds(most) / length), true, "deadline"),
            (request.constraint.budget.map(|most| most / by), false, "budget"),
        ];
        for (most, across, label) in lines {
            let Some(most) = most else { continue };
            let (range, ends) = if across {
                (&y, [(x.start, most), (x.end, most)])
            } else {
                (&x, [(most, y.start), (most, y.end)])
            };
            if !range.contains(&most) {
                continue;
            }
            let grey = COLOURS[5];
            chart
                .draw_series([PathElement::new(ends, grey.mix(0.6).stroke_width(1))])
                .map_err(drawing_error)?
                .label(label)
                .legend(move |(x, y)| {
                    let ends = if across {
                        [(x, y), (x + 14, y)]
                    } else {
                        [(x + 7, y - 6), (x + 7, y + 6)]
                    };
                    PathElement::new(ends, grey.stroke_width(1))
                });
        }
        let red = COLOURS[1];
        let marked = (0..all.len())
            .filter(|at| *at != plan.index_on_front && plan.chosen_by_trade_off.contains(at));
        let marked: Vec<_> =
            marked.map(|at| Circle::new(all[at], 6, blue.stroke_width(2))).collect();
        if !marked.is_empty() {
            chart
                .draw_series(marked)
                .map_err(drawing_error)?
                .label("taken by these trade-offs")
                .legend(move |(x, y)| Circle::new((x + 7, y), 5, blue.stroke_width(2)));
        }
        chart
            .draw_series([Circle::new(all[plan.index_on_front], 7, red.stroke_width(3))])
            .map_err(drawing_error)?
            .label("the plan")
            .legend(move |(x, y)| Circle::new((x + 7, y), 5, red.stroke_width(3)));
        legend(&mut chart, SeriesLabelPosition::UpperRight)?;
        // Each label is next to its point and overlaps no other.
        let pixels: Vec<(i32, i32)> = all.iter().map(|point| chart.backend_coord(point)).collect();
        // The legend and the lines of the constraints also take space.
        let mut taken: Vec<[i32; 4]> = vec![[620, 30, 860, 140]];
        for (most, across, _) in lines {
            let Some(most) = most else { continue };
            let (x, y) =
                chart.backend_coord(&if across { (x.start, most) } else { (most, y.start) });
            taken.push(if across { [0, y - 1, 860, y + 1] } else { [x - 1, 0, x + 1, 520] });
        }
        taken.extend(pixels.iter().map(|(x, y)| [x - 4, y - 4, x + 4, y + 4]));
        for at in (0..all.len()).filter(|at| plan.chosen_by_trade_off.contains(at)) {
            let text = taken_by(plan, at);
            let width = 6 * text.chars().count() as i32 + 4;
            let (x, y) = pixels[at];
            let places = [
                (x + 10, y - 10),
                (x + 10, y + 10),
                (x - 10 - width, y + 10),
                (x - 10 - width, y - 10),
                (x + 14, y - 26),
                (x + 14, y + 26),
                (x + 18, y - 42),
                (x + 18, y - 58),
                (x - 18 - width, y + 42),
            ];
            let bounds = |(x, y): (i32, i32)| [x, y - 7, x + width, y + 7];
            let free = |place: &&(i32, i32)| {
                let [a, b, c, d] = bounds(**place);
                let inside = a > 66 && c < 856 && b > 30 && d < 478;
                let meets =
                    |other: &[i32; 4]| a < other[2] && other[0] < c && b < other[3] && other[1] < d;
                inside && !taken.iter().any(meets)
            };
            let found = *places.iter().find(free).unwrap_or(&places[0]);
            taken.push(bounds(found));
            let colour = if at == plan.index_on_front { red } else { blue };
            let style = ("sans-serif", 12).into_font().color(&colour);
            let style = style.pos(Pos::new(HPos::Left, VPos::Center));
            area.draw(&Text::new(text, found, style)).map_err(drawing_error)?;
        }
        Ok(())
    })
}

/// The range of an axis: all values with a margin, from 0 where the values are close to it.
fn range(values: impl Iterator<Item = f64> + Clone) -> std::ops::Range<f64> {
    let least = values.clone().fold(f64::INFINITY, f64::min).min(1e300);
    let most = values.fold(0.0, f64::max);
    let room = if most > least { most - least } else { most * 0.3 };
    let room = room.max(1e-9);
    let from = if least < room { 0.0 } else { least - room * 0.12 };
    from..most + room * 0.25
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_hold_their_values_and_some_room() {
        let all = range([100.0, 900.0].into_iter());
        assert!(all.start == 0.0 && all.end > 900.0);
        let one = range([500.0].into_iter());
        assert!(one.start < 500.0 && one.start > 400.0 && one.end > 500.0);
        let none = range([0.0].into_iter());
        assert!(none.start <= 0.0 && none.end > 0.0);
    }
}
