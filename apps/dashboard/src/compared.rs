//! The table that compares runs: a column for each run, with differences to the first.
//!
//! This module does not know the drawing of figures.

use springtide_actors::policy::Mode;

use crate::course::RunSeries;
use crate::page::escaped;

/// The text of an unknown number.
const UNKNOWN: &str = "";

/// The comparison of a number with the first run's.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Comparison {
    /// As a percentage of it.
    Percent,
    /// No comparison.
    Nothing,
}

/// A row: name, number of a run, decimal digits, and comparison with the first run.
type ComparisonRow = (&'static str, fn(&RunSeries) -> Option<f64>, usize, Comparison);

const ROWS: [ComparisonRow; 14] = [
    ("runtime, s", |run| Some(run.wall_s).filter(|s| *s > 0.0), 1, Comparison::Percent),
    ("iterations", |run| whole(run.iterations_s.len()), 0, Comparison::Nothing),
    ("iteration, median, s", RunSeries::median_iteration, 3, Comparison::Percent),
    (
        "nodes, most at once",
        |run| run.nodes.iter().map(|(_, n)| f64::from(*n)).reduce(f64::max),
        0,
        Comparison::Nothing,
    ),
    (
        "nodes, mean",
        |run| Some(run.node_seconds() / run.wall_s).filter(|n| *n > 0.0),
        1,
        Comparison::Nothing,
    ),
    ("node-seconds", |run| Some(run.node_seconds()).filter(|s| *s > 0.0), 0, Comparison::Percent),
    ("weighted average efficiency, mean", |run| run.mean(&run.efficiency), 3, Comparison::Nothing),
    (
        "fraction of thread time that was work, mean",
        |run| run.mean(&run.overall).map(|share| 1.0 - share),
        3,
        Comparison::Nothing,
    ),
    ("processor time, s", |run| run.totals.cpu_s, 1, Comparison::Percent),
    ("tasks run", |run| count(run.totals.tasks), 0, Comparison::Percent),
    ("tasks stolen inside clusters", |run| count(run.totals.stolen_local), 0, Comparison::Nothing),
    ("tasks stolen between clusters", |run| count(run.totals.stolen_wide), 0, Comparison::Nothing),
    ("bytes sent between clusters", |run| count(run.totals.wide_bytes), 0, Comparison::Percent),
    (
        "decisions",
        |run| {
            // The log of a run without a mode may lack decisions.
            run.mode?;
            whole(run.marks.iter().filter(|mark| mark.decided).count())
        },
        0,
        Comparison::Nothing,
    ),
];

fn count(n: Option<u64>) -> Option<f64> {
    n.map(|n| n as f64)
}

fn whole(n: usize) -> Option<f64> {
    Some(n as f64)
}

/// The HTML table of several runs, or of a single one.
pub fn table(runs: &[RunSeries]) -> String {
    let cells = |of: &dyn Fn(&RunSeries) -> String| -> String {
        runs.iter().map(|run| format!("<td>{}</td>", of(run))).collect()
    };
    let row =
        |name: &str, cells: String| format!("<tr><th scope=\"row\">{name}</th>{cells}</tr>\n");
    let heads: String =
        runs.iter().map(|c| format!("<th scope=\"col\">{}</th>", escaped(&c.label))).collect();
    let mut rows = format!("<tr><th></th>{heads}</tr>\n");
    rows += &row("mode", cells(&|run| mode(run).to_owned()));
    rows += &row("ended", cells(&|run| escaped(&ended(run))));
    for (name, of, digits, comparison) in ROWS {
        if runs.iter().all(|run| of(run).is_none()) {
            continue;
        }
        let first = runs
            .first()
            .and_then(of)
            .filter(|first| *first > 0.0 && comparison == Comparison::Percent);
        let mut at = 0;
        let cell = |run: &RunSeries| {
            let Some(number) = of(run) else {
                at += 1;
                return UNKNOWN.to_owned();
            };
            at += 1;
            let more = first
                .filter(|_| at > 1)
                .map(|first| format!(" <small>{:+.1} %</small>", 100.0 * (number / first - 1.0)));
            format!("{}{}", grouped(number, digits), more.unwrap_or_default())
        };
        let cells: String = runs.iter().map(cell).map(|text| format!("<td>{text}</td>")).collect();
        rows += &row(name, cells);
    }
    if runs.iter().any(|run| !run.warnings.is_empty()) {
        rows += &row("warnings", cells(&|run| escaped(&run.warnings.join("; "))));
    }
    let heading = match (runs, answers(runs)) {
        ([_], _) => "Run".to_owned(),
        (_, Some(true)) => about("Their results are equal."),
        (_, Some(false)) => about("<strong>Their results differ.</strong>"),
        (_, None) => about("Not all of them have a result."),
    };
    format!(
        "<section class=\"whole\"><h2>{heading}</h2><div class=\"scroll\"><table \
        class=\"compared\">\n{rows}\
        </table></div></section>\n"
    )
}

fn about(answers: &str) -> String {
    format!("Runs <small>{answers} Percentages are relative to the first.</small>")
}

fn mode(run: &RunSeries) -> &'static str {
    match run.mode {
        Some(Mode::Adaptive) => "adaptive",
        Some(Mode::Monitor) => "monitored",
        Some(Mode::Static) => "static",
        None => UNKNOWN,
    }
}

fn ended(run: &RunSeries) -> String {
    match &run.ended {
        Some(Ok(Some(checksum))) => format!("well, {checksum}"),
        Some(Ok(None)) => "well".to_owned(),
        Some(Err(why)) => format!("failed: {why}"),
        None => "not in its log".to_owned(),
    }
}

/// Whether all runs have the same result; none if one has none.
fn answers(runs: &[RunSeries]) -> Option<bool> {
    let answer = |run: &RunSeries| match &run.ended {
        Some(Ok(Some(checksum))) => Some(checksum.clone()),
        _ => None,
    };
    let all = runs.iter().map(answer).collect::<Option<Vec<_>>>()?;
    Some(all.windows(2).all(|two| two[0] == two[1]))
}

/// A number with separated thousands.
fn grouped(number: f64, digits: usize) -> String {
    let text = format!("{number:.digits$}");
    let (whole, rest) =
        text.split_once('.').map_or((text.as_str(), None), |(whole, rest)| (whole, Some(rest)));
    let mut out = String::new();
    for (at, c) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at) % 3 == 0 {
            out.push('\u{202f}');
        }
        out.push(c);
    }
    rest.into_iter().for_each(|rest| out = format!("{out}.{rest}"));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::course::Totals;

    fn run(label: &str, wall_s: f64, checksum: &str) -> RunSeries {
        let ended = Some(Ok(Some(checksum.to_owned())));
        RunSeries {
            label: label.into(),
            wall_s,
            ended,
            nodes: vec![(0.0, 4), (wall_s / 2.0, 2)],
            ..RunSeries::default()
        }
    }

    #[test]
    fn runs_are_compared_with_the_first() {
        let text = table(&[run("static", 1200.0, "a"), run("adaptive", 900.0, "a")]);
        assert!(
            text.contains("<td>1\u{202f}200.0</td><td>900.0 <small>-25.0 %</small></td>"),
            "{text}"
        );
        assert!(text.contains("<td>3.0</td><td>3.0</td>"), "{text}"); // nodes, mean
        assert!(
            text.contains("<td>3\u{202f}600</td><td>2\u{202f}700 <small>-25.0 %</small></td>"),
            "{text}"
        );
        assert!(text.contains("results are equal"));
        assert!(!text.contains("weighted average"), "no run has it");
        let differ = table(&[run("a", 1.0, "a"), run("b", 1.0, "b")]);
        assert!(differ.contains("results differ"));
        // Unknown numbers are blank, even if another run has them.
        let totals = Totals { tasks: Some(5), wide_bytes: Some(0), ..Totals::default() };
        let known = RunSeries { totals, mode: Some(Mode::Monitor), ..run("a", 1.0, "a") };
        let text = table(&[known, run("b", 2.0, "b")]);
        for row in [
            "<th scope=\"row\">mode</th><td>monitored</td><td></td>",
            "<th scope=\"row\">tasks run</th><td>5</td><td></td>",
            "<th scope=\"row\">bytes sent between clusters</th><td>0</td><td></td>",
            "<th scope=\"row\">decisions</th><td>0</td><td></td>",
        ] {
            assert!(text.contains(row), "{row}: {text}");
        }
        assert!(!text.contains("stolen"), "no run has it: {text}");
        let warned =
            RunSeries { warnings: vec!["too many <threads>".into()], ..run("a", 1.0, "a") };
        let alone = table(&[warned]);
        assert!(
            alone.contains("<h2>Run</h2>") && alone.contains("too many &lt;threads&gt;"),
            "{alone}"
        );
        let none = table(&[run("a", 1.0, "a"), RunSeries::default()]);
        assert!(none.contains("Not all") && none.contains("not in its log"));
    }
}
