//! What a run tells: a line of progress, its result, and its files.
//!
//! Must not know how it came about.

use serde_json::{Value, json};
use springtide_runtime::work::Stop;

use super::Solve;
use super::controller::Row;
use super::course::{Course, Kind, Solved};
use crate::model::TwoStage;
use crate::sample::Sampling;

/// By how much of itself a cost is above what is its least.
pub fn gap(cost: f64, bound: f64) -> f64 {
    ((cost - bound) / (1.0 + cost.abs())).max(0.0)
}

fn kind(kind: Kind) -> String {
    match kind {
        Kind::Warm => "a smaller sample".to_owned(),
        Kind::Main => "the sample".to_owned(),
        Kind::Replication(at) => format!("replication {}", at + 1),
        Kind::Estimate => "the estimate".to_owned(),
    }
}

/// How far it is, in a line.
pub fn progress(course: &Course) -> String {
    let Some(region) = course.region() else {
        let what = course.kind().map_or("all is done".to_owned(), kind);
        return format!("{what}; iterates");
    };
    let what = course.kind().map_or(String::new(), kind);
    let bound = region.promised();
    match region.incumbent() {
        Some(incumbent) if bound.is_finite() => format!(
            "{what}: bound {:.8}, incumbent {:.8}, gap {:.2e}, radius {}; iterates",
            Short(bound),
            Short(incumbent.cost),
            gap(incumbent.cost, bound),
            Short(region.radius()),
        ),
        Some(incumbent) => format!("{what}: incumbent {}; iterates", Short(incumbent.cost)),
        None => format!("{what}; iterates"),
    }
}

/// A number in so many digits, whatever its size.
struct Short(f64);

impl std::fmt::Display for Short {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let digits = f.precision().unwrap_or(4) as i32;
        let size = self.0.abs().max(1e-300).log10().floor() as i32;
        match size {
            -4..=15 => write!(f, "{:.*}", usize::try_from(digits - 1 - size).unwrap_or(0), self.0),
            _ => write!(f, "{:.*e}", digits.max(1) as usize - 1, self.0),
        }
    }
}

/// What an iterate was, in a few words.
pub fn iterate(course: &Course, row: &Row) -> String {
    let Row { leg, iterate, .. } = row;
    let looked = course.region().and_then(|region| {
        region.looked().iter().rev().find(|looked| looked.iterate == *iterate).cloned()
    });
    let ended = || {
        let ended = course.ended().last()?;
        ended.looked.iter().rev().find(|looked| looked.iterate == *iterate).cloned()
    };
    match looked.or_else(ended) {
        Some(looked) => {
            let cost = looked.cost.map_or("infeasible".to_owned(), |cost| format!("{cost:.6}"));
            let taken = if looked.accepted { "accepted" } else { "not accepted" };
            format!(
                "leg {leg}, iterate {iterate}, cost {cost}, {taken}, radius {}",
                Short(looked.radius)
            )
        }
        None => format!("leg {leg}, estimate"),
    }
}

fn sampling(sampling: Sampling) -> &'static str {
    match sampling {
        Sampling::MonteCarlo => "monte-carlo",
        Sampling::LatinHypercube => "latin-hypercube",
        Sampling::All => "all",
    }
}

fn solved(one: &Solved) -> Value {
    let Solved { sample, tasks, objective, bound, looked, .. } = one;
    json!({
        "what": kind(one.kind),
        "sampling": sampling(sample.sampling),
        "seed": sample.seed,
        "scenarios": sample.scenarios,
        "tasks": tasks,
        "block": one.block,
        "iterations": looked.len(),
        "accepted": looked.iter().filter(|looked| looked.accepted).count(),
        "infeasible": looked.iter().filter(|looked| looked.cost.is_none()).count(),
        "objective": objective,
        "bound": bound,
        "gap": bound.map(|bound| gap(*objective, bound)),
    })
}

/// The result object of a run.
///
/// # Errors
/// The job has no model.
pub fn result(
    job: &Solve,
    course: &Course,
    rows: &[Row],
    basket: usize,
    groups: Option<u32>,
    seconds: f64,
) -> Result<Value, Stop> {
    let model = job.model()?;
    let main = course.ended().iter().find(|one| one.kind == Kind::Main);
    let mut object = main.map_or_else(|| json!({}), solved);
    let mut put = |key: &str, value: Value| object[key] = value;
    put("program", json!(model.name));
    put("columns", json!(model.first.columns));
    put("x", json!(course.x()));
    if main.is_some() {
        put("basket", json!(basket));
        put("groups", json!(groups));
        put("epsilon", json!(job.epsilon));
        put(
            "warm_start",
            json!(
                course
                    .ended()
                    .iter()
                    .filter(|one| one.kind == Kind::Warm)
                    .map(solved)
                    .collect::<Vec<_>>()
            ),
        );
    }
    let estimate = course.estimate();
    if let Some((interval, without)) = estimate {
        put(
            "estimate",
            json!({
                "mean": interval.mean, "low": interval.low, "high": interval.high, "confidence": interval.confidence,
                "scenarios": interval.count, "without_second_stage": without,
            }),
        );
    }
    let replications: Vec<Value> = course
        .ended()
        .iter()
        .filter(|one| matches!(one.kind, Kind::Replication(_)))
        .map(solved)
        .collect();
    if !replications.is_empty() {
        let lower = course.lower_bound();
        let upper = estimate.map(|(interval, _)| interval);
        let both = lower.zip(upper);
        put(
            "replications",
            json!({
                "samples": replications,
                "lower": lower.map(|one| json!({ "mean": one.mean, "low": one.low, "high": one.high, "confidence": one.confidence })),
                "upper": upper.map(|one| json!({ "mean": one.mean, "low": one.low, "high": one.high, "confidence": one.confidence })),
                "gap": both.map(|(lower, upper)| (upper.high - lower.low).max(0.0)),
                "relative_gap": both.map(|(lower, upper)| gap(upper.high, lower.low)),
            }),
        );
    }
    let foreseen: Vec<&Row> = rows.iter().filter(|row| row.predicted_s.is_some()).collect();
    let sum = |of: &dyn Fn(&&Row) -> f64| foreseen.iter().map(of).sum::<f64>();
    let measured = sum(&|row| row.measured_s);
    let predicted = sum(&|row| row.predicted_s.unwrap_or(0.0));
    put(
        "controller",
        json!({
            "seconds": seconds,
        "iterates": job.explain.then_some(rows),
            "master_s": rows.iter().map(|row| row.master_s).sum::<f64>(),
            "foreseen_iterates": foreseen.len(),
            "predicted_s": predicted,
            "measured_s": measured,
            "error": (measured > 0.0).then(|| predicted / measured - 1.0),
            "fluid_s": sum(&|row| row.fluid_s.unwrap_or(0.0) + row.master_s),
            "equal_split_s": sum(&|row| row.equal_s.unwrap_or(0.0)),
            "rules_of_thumb_s": sum(&|row| row.thumb_s.unwrap_or(0.0)),
        }),
    );
    Ok(object)
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

/// A decision of such a table, for a model; or what is wrong with it, and in which line.
///
/// # Errors
/// A line is no column and number, names what is no column or names one twice, or one is missing.
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
        return Err((lines, format!("no value for the column {}", columns[column])));
    }
    Ok(x.into_iter().flatten().collect())
}

/// What the controller expected of each iterate and what it was, as a table.
pub fn iterates(rows: &[Row]) -> String {
    let mut out = String::from(
        "leg,iterate,scenarios,workers,used,predicted_s,measured_s,ended_s,master_s,fluid_s,equal_split_s,rules_of_thumb_s,pivots\n",
    );
    let shown = |seconds: Option<f64>| seconds.map_or(String::new(), |seconds| seconds.to_string());
    for row in rows {
        let Row { leg, iterate, scenarios, workers, used, measured_s, ended_s, master_s, .. } = row;
        let pivots = row.pivots;
        out.push_str(&format!(
            "{leg},{iterate},{scenarios},{workers},{used},{},{measured_s},{ended_s},{master_s},{},{},{},{pivots}\n",
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
            (format!("{},1\nnobody,2\n", names[0]), 2, "no column of"),
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
            (0.0, "0.000e0"),
            (-253_632.5, "-253632"),
            (1e20, "1.000e20"),
        ] {
            assert_eq!(Short(number).to_string(), shown);
        }
        assert_eq!(format!("{:.8}", Short(9.418_862_11)), "9.4188621");
    }
}
