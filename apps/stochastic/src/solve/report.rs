//! The report of a run: its line of progress, its result object and its tables.

use serde_json::{Value, json};
use springtide_runtime::work::Stop;

use super::Solve;
use super::controller::IterateRow;
use super::estimate::Interval;
use super::solver::{FallingDirection, Purpose, SampleSolution, Solver, Verdict};
use crate::model::TwoStage;
use crate::sample::Sampling;

/// The gap between a cost and a lower bound, relative to the cost and the unit of costs.
pub fn relative_gap(cost: f64, bound: f64, unit: f64) -> f64 {
    ((cost - bound) / (unit + cost.abs())).max(0.0)
}

/// The line of progress.
pub fn progress(solver: &Solver) -> String {
    let phase = solver.purpose().map_or("done".to_owned(), Purpose::name);
    let Some(region) = solver.region() else { return format!("{phase}; iterates") };
    let sense = Sense::of(solver.model());
    match solver.progress() {
        Some((cost, promised)) if promised.is_finite() => format!(
            "{phase}: incumbent {:.8}, promised {:.8} within radius {}; iterates",
            Short(sense.cost(cost)),
            Short(sense.cost(promised)),
            Short(region.radius()),
        ),
        Some((cost, _)) => {
            format!("{phase}: incumbent {}; iterates", Short(sense.cost(cost)))
        }
        None => format!("{phase}; iterates"),
    }
}

/// A number with a given number of significant digits.
struct Short(f64);

impl std::fmt::Display for Short {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0 == 0.0 {
            return f.write_str("0");
        }
        let digits = f.precision().unwrap_or(4) as i32;
        let size = self.0.abs().max(1e-300).log10().floor() as i32;
        match size {
            -4..=15 => write!(f, "{:.*}", usize::try_from(digits - 1 - size).unwrap_or(0), self.0),
            _ => write!(f, "{:.*e}", digits.max(1) as usize - 1, self.0),
        }
    }
}

/// A part as percent, with three significant digits at most.
struct Percent(f64);

impl std::fmt::Display for Percent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = format!("{:.3}", Short(100.0 * self.0));
        let short = match text.contains(['e', '.']) {
            true if !text.contains('e') => text.trim_end_matches('0').trim_end_matches('.'),
            _ => &text,
        };
        write!(f, "{short} %")
    }
}

/// The outcome of an iterate in a few words.
pub fn iterate(solver: &Solver, row: &IterateRow) -> String {
    let IterateRow { phase, iterate, .. } = row;
    let records = match (solver.region(), solver.solutions().last()) {
        (Some(region), _) => region.records(),
        (None, Some(last)) => &last.iterates,
        (None, None) => &[],
    };
    match records.iter().rev().find(|record| record.iterate == *iterate) {
        Some(record) => {
            let cost = record.cost.map_or("infeasible".to_owned(), |cost| format!("{cost:.6}"));
            let accepted = if record.accepted { "accepted" } else { "not accepted" };
            let radius = Short(record.radius);
            format!("phase {phase}, iterate {iterate}, cost {cost}, {accepted}, radius {radius}")
        }
        None => format!("phase {phase}, estimate"),
    }
}

fn sampling(sampling: Sampling) -> &'static str {
    match sampling {
        Sampling::MonteCarlo => "monte-carlo",
        Sampling::LatinHypercube => "latin-hypercube",
        Sampling::All => "all",
    }
}

/// Costs in the sense of the program's file: the solver minimises minus the objective of a program
/// that is maximised.
#[derive(Clone, Copy)]
struct Sense(f64);

impl Sense {
    fn of(model: &TwoStage) -> Self {
        Self(if model.maximise { -1.0 } else { 1.0 })
    }

    fn cost(self, cost: f64) -> f64 {
        // No minus zero.
        self.0 * cost + 0.0
    }

    fn costs(self, costs: &[f64]) -> Vec<f64> {
        costs.iter().map(|cost| self.cost(*cost)).collect()
    }

    fn interval(self, one: Interval) -> Value {
        let (low, high) = (self.cost(one.low), self.cost(one.high));
        json!({
            "mean": self.cost(one.mean), "low": low.min(high), "high": low.max(high),
            "confidence": one.confidence,
        })
    }
}

/// The solution of a sample.
fn solution(one: &SampleSolution, solver: &Solver, sense: Sense) -> Value {
    let SampleSolution { sample, tasks, objective, iterates, .. } = one;
    let bound = one.bound();
    json!({
        "what": one.purpose.name(),
        "objective": sense.cost(*objective),
        "bound": bound.map(|bound| sense.cost(bound)),
        "gap": bound.map(|bound| relative_gap(*objective, bound, solver.unit())),
        "iterations": iterates.len(),
        "accepted": iterates.iter().filter(|record| record.accepted).count(),
        "infeasible": iterates.iter().filter(|record| record.cost.is_none()).count(),
        "sampling": sampling(sample.sampling),
        "seed": sample.seed,
        "scenarios": sample.scenarios,
        "tasks": tasks,
        "block": one.block,
    })
}

/// The verdict as a word, and what proves it.
fn verdict(solver: &Solver, model: &TwoStage) -> (&'static str, Option<Value>) {
    let names = |rows: &[u32], of: &[String]| -> Vec<String> {
        rows.iter().map(|row| of[*row as usize].clone()).collect()
    };
    let direction = |columns: &[String], by: &[f64]| -> Value {
        let moved = columns.iter().zip(by).filter(|(_, by)| **by != 0.0);
        moved
            .map(|(column, by)| (column.clone(), json!(by)))
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    match solver.verdict() {
        Some(Verdict::Optimal) => ("optimal", None),
        Some(Verdict::Evaluated) => ("evaluated", None),
        Some(Verdict::IterationLimit) => ("iteration_limit", None),
        Some(Verdict::Unfinished) | None => ("unfinished", None),
        Some(Verdict::Infeasible(conflict)) => {
            let scenarios: Vec<Value> = conflict
                .scenarios
                .iter()
                .map(|(scenario, rows)| {
                    json!({ "scenario": scenario + 1, "rows": names(rows, &model.second.rows) })
                })
                .collect();
            let first = names(&conflict.first, &model.first.rows);
            let proof = json!({ "first_stage_rows": first, "scenarios": scenarios });
            ("infeasible", Some(proof))
        }
        Some(Verdict::Unbounded(FallingDirection::FirstStage(by))) => {
            ("unbounded", Some(json!({ "direction": direction(&model.first.columns, by) })))
        }
        Some(Verdict::Unbounded(FallingDirection::SecondStage(ray))) => {
            let by = direction(&model.second.columns, &ray.direction);
            ("unbounded", Some(json!({ "scenario": ray.scenario + 1, "direction": by })))
        }
    }
}

/// The result object of a run; `answer` is [`Solver::answer`].
///
/// # Errors
/// The job has no model.
pub fn result(
    job: &Solve,
    solver: &Solver,
    answer: Option<&SampleSolution>,
    rows: &[IterateRow],
    basket: usize,
    groups: Option<u32>,
    seconds: f64,
) -> Result<Value, Stop> {
    let model = job.model()?;
    let sense = Sense::of(model);
    let (status, proof) = verdict(solver, model);
    let mut object = json!({ "status": status });
    if let Some(proof) = proof {
        object["proof"] = proof;
    }
    if let Some(Value::Object(figures)) = answer.map(|answer| solution(answer, solver, sense)) {
        figures.into_iter().for_each(|(key, value)| object[key] = value);
    }
    let mut put = |key: &str, value: Value| object[key] = value;
    put("program", json!(model.name));
    put("sense", json!(if model.maximise { "maximise" } else { "minimise" }));
    put("notes", json!(job.notes));
    if let Some(answer) = answer {
        put("columns", json!(model.first.columns));
        put("x", json!(answer.x));
        if let Some(relaxation) = &answer.relaxation {
            put("rows", json!(model.first.rows));
            put("duals", json!(sense.costs(&relaxation.duals)));
            put("reduced_costs", json!(sense.costs(&relaxation.reduced_costs)));
        }
        put("basket", json!(basket));
        put("groups", json!(groups));
        put("epsilon", json!(job.epsilon));
        let warm = solver.solutions().iter().filter(|one| one.purpose == Purpose::Warm);
        let warm: Vec<Value> = warm.map(|one| solution(one, solver, sense)).collect();
        put("warm_start", json!(warm));
    } else if status == "evaluated" {
        put("columns", json!(model.first.columns));
        put("x", json!(solver.x()));
    }
    let estimate = solver.estimate();
    if let Some(estimate) = estimate {
        let infinite = estimate.infeasible > 0 || estimate.unbounded > 0;
        let mut value = match estimate.interval {
            Some(one) => sense.interval(one),
            None => json!({ "mean": null, "low": null, "high": null, "confidence": null }),
        };
        value["scenarios"] = json!(estimate.scenarios);
        value["infinite"] = json!(infinite);
        value["infeasible_scenarios"] = json!(estimate.infeasible);
        value["unbounded_scenarios"] = json!(estimate.unbounded);
        put("estimate", value);
    }
    let all = solver.solutions().iter();
    let replications: Vec<Value> = all
        .filter(|one| matches!(one.purpose, Purpose::Replication(_)))
        .map(|one| solution(one, solver, sense))
        .collect();
    if !replications.is_empty() || solver.gap().is_some() {
        let lower = solver.lower_bound();
        let upper = estimate.and_then(|estimate| estimate.interval);
        let both = lower.zip(upper);
        let unit = solver.unit();
        let gap = solver.gap();
        put(
            "replications",
            json!({
                "samples": replications,
                "optimum": lower.map(|one| sense.interval(one)),
                "decision": upper.map(|one| sense.interval(one)),
                "gap": both.map(|(lower, upper)| (upper.high - lower.low).max(0.0)),
                "relative_gap": both
                    .map(|(lower, upper)| relative_gap(upper.high, lower.low, unit)),
                "common_random_numbers": gap.map(|gap| json!({
                    "mean": gap.mean, "upper": gap.high, "confidence": gap.confidence,
                    "replications": gap.count, "infinite": gap.high.is_infinite(),
                    "relative_upper": answer.map(|answer| gap.high / answer.objective.abs()),
                    "wanted": solver.wanted_gap(),
                })),
            }),
        );
    }
    let predicted_rows: Vec<&IterateRow> =
        rows.iter().filter(|row| row.predicted_s.is_some()).collect();
    let sum = |of: &dyn Fn(&&IterateRow) -> f64| predicted_rows.iter().map(of).sum::<f64>();
    let measured = sum(&|row| row.measured_s);
    let predicted = sum(&|row| row.predicted_s.unwrap_or(0.0));
    put(
        "controller",
        json!({
            "seconds": seconds,
            "iterates": job.explain.then_some(rows),
            "master_s": rows.iter().map(|row| row.master_s).sum::<f64>(),
            "predicted_iterates": predicted_rows.len(),
            "predicted_s": predicted,
            "measured_s": measured,
            "error": (measured > 0.0).then(|| predicted / measured - 1.0),
            "fluid_s": sum(&|row| row.fluid_s.unwrap_or(0.0) + row.master_s),
            "equal_split_s": sum(&|row| row.equal_s.unwrap_or(0.0)),
            "rules_of_thumb_s": sum(&|row| row.thumb_s.unwrap_or(0.0)),
        }),
    );
    object["summary"] = json!(summary(&object, job.explain));
    Ok(object)
}

/// The lines of the result for people: what matters first, the controller's figures on request.
fn summary(result: &Value, explain: bool) -> Vec<String> {
    let number = |value: &Value| value.as_f64().map(|number| format!("{:.10}", Short(number)));
    let short = |value: &Value| value.as_f64().map(|number| format!("{:.3}", Short(number)));
    let names = |value: &Value| -> String {
        let all = value.as_array().into_iter().flatten().filter_map(Value::as_str);
        all.collect::<Vec<_>>().join(", ")
    };
    let mut lines = Vec::new();
    let mut line = |name: &str, text: String| lines.push(format!("{name:<18}{text}"));
    let maximise = result["sense"] == "maximise";
    line("status", result["status"].as_str().unwrap_or_default().replace('_', " "));
    if let Some(objective) = number(&result["objective"]) {
        line("objective", format!("{objective}{}", if maximise { " (maximised)" } else { "" }));
        let name = if maximise { "upper bound" } else { "lower bound" };
        line(name, number(&result["bound"]).unwrap_or_else(|| "none".to_owned()));
        let gap = result["gap"].as_f64().map(|gap| match gap {
            0.0 => "0".to_owned(),
            gap => format!("{gap:.1e}"),
        });
        line("gap in sample", gap.unwrap_or_else(|| "unknown".to_owned()));
        line("iterations", result["iterations"].to_string());
        let sampling = result["sampling"].as_str().unwrap_or_default();
        let warm = result["what"].as_str().filter(|what| *what == Purpose::Warm.name());
        let what = warm.map_or(String::new(), |what| format!(" ({what})"));
        line("scenarios", format!("{}, {sampling}{what}", result["scenarios"]));
    }
    let proof = &result["proof"];
    let first = names(&proof["first_stage_rows"]);
    if !first.is_empty() {
        line("rows in conflict", first);
    }
    for one in proof["scenarios"].as_array().into_iter().flatten().take(5) {
        line("", format!("scenario {}: rows {}", one["scenario"], names(&one["rows"])));
    }
    if let Some(direction) = proof["direction"].as_object() {
        let moved: Vec<String> = direction
            .iter()
            .take(8)
            .map(|(column, by)| format!("{column} {}", short(by).unwrap_or_default()))
            .collect();
        let scenario = proof["scenario"].as_u64();
        let scenario = scenario.map_or(String::new(), |one| format!("scenario {one}: "));
        line("direction", format!("{scenario}{}", moved.join(", ")));
    }
    let percent = |part: &Value| part.as_f64().map(|part| Percent(part).to_string());
    let interval = |one: &Value| -> Option<String> {
        let (mean, low, high) =
            (number(&one["mean"])?, number(&one["low"])?, number(&one["high"])?);
        Some(if one["confidence"] == 1.0 {
            format!("{mean}, exactly")
        } else {
            format!("{mean}, {} interval [{low}, {high}]", percent(&one["confidence"])?)
        })
    };
    let estimate = &result["estimate"];
    if estimate["infinite"] == true {
        let mut reasons = Vec::new();
        for (key, reason) in [
            ("infeasible_scenarios", "without recourse"),
            ("unbounded_scenarios", "without a lower bound"),
        ] {
            if let Some(count) = estimate[key].as_u64().filter(|count| *count > 0) {
                reasons.push(format!("{count} {reason}"));
            }
        }
        let all = &estimate["scenarios"];
        line("estimated cost", format!("infinite: of {all} scenarios {}", reasons.join(", ")));
    } else if let Some(text) = interval(estimate) {
        line("estimated cost", format!("{text}, {} scenarios", estimate["scenarios"]));
    }
    let replications = &result["replications"];
    if let Some(text) = interval(&replications["optimum"]) {
        line("optimum", text);
    }
    let common = &replications["common_random_numbers"];
    if common["infinite"] == true {
        line(
            "optimality gap",
            "infinite: the decision has no recourse in some scenarios".to_owned(),
        );
    } else if let (Some(upper), Some(confidence)) =
        (short(&common["upper"]), percent(&common["confidence"]))
    {
        let count = &common["replications"];
        let relative = percent(&common["relative_upper"]);
        let mut of_cost = relative.map_or(String::new(), |part| format!(" ({part} of the cost"));
        if !of_cost.is_empty() {
            if let Some(wanted) = percent(&common["wanted"]) {
                of_cost += &format!(", {wanted} wanted");
            }
            of_cost += ")";
        }
        line(
            "optimality gap",
            format!("at most {upper}{of_cost}, confidence {confidence}, {count} replications"),
        );
    }
    let controller = &result["controller"];
    if let Some(seconds) = short(&controller["seconds"]) {
        line("time", format!("{seconds} s"));
    }
    if explain {
        for key in [
            "master_s",
            "predicted_s",
            "measured_s",
            "error",
            "fluid_s",
            "equal_split_s",
            "rules_of_thumb_s",
        ] {
            if let Some(text) = short(&controller[key]) {
                line(key, text);
            }
        }
        line("tasks", result["tasks"].to_string());
    }
    lines
}

/// A decision as a table: column and value.
pub fn decision(model: &TwoStage, x: &[f64]) -> String {
    let mut out = String::from("column,value\n");
    for (name, x) in model.first.columns.iter().zip(x) {
        let quoted =
            name.contains([',', '"']).then(|| format!("\"{}\"", name.replace('"', "\"\"")));
        out.push_str(&format!("{},{x}\n", quoted.as_deref().unwrap_or(name)));
    }
    out
}

/// Reads a decision from such a table.
///
/// # Errors
/// The line and what is wrong with it: no column and number, an unknown column, a column given
/// twice, or a column without a value.
pub fn read_decision(model: &TwoStage, text: &str) -> Result<Vec<f64>, (usize, String)> {
    let columns = &model.first.columns;
    let mut x: Vec<Option<f64>> = vec![None; columns.len()];
    let mut lines = 0;
    let mut header = Some("column,value");
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    for (at, line) in (1..).zip(text.lines()) {
        lines = at;
        let line = line.trim();
        if line.is_empty() || header.take() == Some(line) {
            continue;
        }
        let Some((name, value)) = line.rsplit_once(',') else {
            return Err((at, format!("{line:?} is no column and value: write for example x1,2.5")));
        };
        let name = name.trim();
        let name = match name.strip_prefix('"').and_then(|name| name.strip_suffix('"')) {
            Some(inner) => inner.replace("\"\"", "\""),
            None => name.to_owned(),
        };
        let Some(column) = columns.iter().position(|column| *column == name) else {
            return Err((at, format!("{name:?} is no column of the first stage")));
        };
        let value = value.trim().parse::<f64>().ok().filter(|value| value.is_finite());
        let Some(value) = value else {
            return Err((at, format!("the value of {name} is no number")));
        };
        if x[column].replace(value).is_some() {
            return Err((at, format!("{name} has a value already")));
        }
    }
    if let Some(column) = x.iter().position(Option::is_none) {
        return Err((lines.max(1), format!("no value for the column {}", columns[column])));
    }
    Ok(x.into_iter().flatten().collect())
}

/// The controller's forecast and the measured time of each iterate, as a table.
pub fn iterates(rows: &[IterateRow]) -> String {
    let mut out = String::from(
        "phase,iterate,scenarios,workers,used,predicted_s,measured_s,ended_s,\
         master_s,master_pivots,fluid_s,equal_split_s,rules_of_thumb_s,pivots\n",
    );
    let shown = |seconds: Option<f64>| seconds.map_or(String::new(), |seconds| seconds.to_string());
    for row in rows {
        let IterateRow {
            phase,
            iterate,
            scenarios,
            workers,
            used,
            measured_s,
            ended_s,
            master_s,
            ..
        } = row;
        let (pivots, master_pivots) = (row.pivots, row.master_pivots);
        out.push_str(&format!(
            "{phase},{iterate},{scenarios},{workers},{used},{},{measured_s},{ended_s},\
             {master_s},{master_pivots},{},{},{},{pivots}\n",
            shown(row.predicted_s),
            shown(row.fluid_s),
            shown(row.equal_s),
            shown(row.thumb_s),
        ));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    #[test]
    fn a_decision_is_written_and_read_back() {
        let mut model = fixtures::plants();
        model.first.columns[1] = "a \"b\", c".to_owned();
        let x = [1.5, 0.1 + 0.2, -3e-9];
        assert_eq!(read_decision(&model, &decision(&model, &x)).unwrap(), x);
        let names: Vec<String> = model.first.columns.clone();
        for (text, line, word) in [
            (format!("column,value\n{} 1", names[0]), 2, "no column and value"),
            (format!("{},1\n{},2\n", names[0], names[0]), 2, "already"),
            (format!("{},1\nother,2\n", names[0]), 2, "no column of"),
            (format!("{},inf\n", names[0]), 1, "no number"),
            (format!("{},1\n\n", names[0]), 2, "no value for the column"),
        ] {
            let (at, why) = read_decision(&model, &text).unwrap_err();
            assert!(at == line && why.contains(word), "{text}: {at} {why}");
            // A byte order mark, blank lines and carriage returns neither disturb nor hide a line.
            let text = format!("\u{feff}\n\n{text}").replace('\n', "\r\n");
            let (at, why) = read_decision(&model, &text).unwrap_err();
            assert!(at == line + 2 && why.contains(word), "{text}: {at} {why}");
        }
        let text = format!("\u{feff}{}", decision(&model, &x)).replace('\n', "\r\n");
        assert_eq!(read_decision(&model, &text).unwrap(), x);
    }

    #[test]
    fn numbers_have_as_many_digits_as_were_asked_for() {
        for (number, shown) in [
            (9.418862, "9.419"),
            (15_488_630.98, "15488631"),
            (0.012_347, "0.01235"),
            (0.0, "0"),
            (-0.0, "0"),
            (-253_632.5, "-253632"),
            (1e20, "1.000e20"),
        ] {
            assert_eq!(Short(number).to_string(), shown);
        }
        assert_eq!(format!("{:.8}", Short(9.418_862_11)), "9.4188621");
    }
}
