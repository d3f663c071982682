//! Runs held against each other in numbers: a column for each, beside the first one's.
//!
//! Must not know how their figures are drawn.

use springtide_actors::policy::Mode;

use super::course::Course;
use super::report::escaped;

/// What is shown for what is not known.
const UNKNOWN: &str = "";

/// How a number is held against the first run's.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Beside {
    /// In hundredths of it.
    Percent,
    /// Not at all.
    Nothing,
}

/// A row: what it is called, a run's number, with how many digits, and how it is held against the first.
type Row = (&'static str, fn(&Course) -> Option<f64>, usize, Beside);

const ROWS: [Row; 14] = [
    ("runtime, s", |course| Some(course.wall_s).filter(|s| *s > 0.0), 1, Beside::Percent),
    ("iterations", |course| whole(course.iterations_s.len()), 0, Beside::Nothing),
    ("iteration, median, s", Course::median_iteration, 3, Beside::Percent),
    (
        "nodes, most at once",
        |course| course.nodes.iter().map(|(_, n)| f64::from(*n)).reduce(f64::max),
        0,
        Beside::Nothing,
    ),
    (
        "nodes, mean",
        |course| Some(course.node_seconds() / course.wall_s).filter(|n| *n > 0.0),
        1,
        Beside::Nothing,
    ),
    ("node-seconds", |course| Some(course.node_seconds()).filter(|s| *s > 0.0), 0, Beside::Percent),
    (
        "weighted average efficiency, mean",
        |course| course.mean(&course.efficiency),
        3,
        Beside::Nothing,
    ),
    (
        "share of thread time that was work, mean",
        |course| course.mean(&course.overall).map(|share| 1.0 - share),
        3,
        Beside::Nothing,
    ),
    ("processor time, s", |course| course.totals.cpu_s, 1, Beside::Percent),
    ("tasks run", |course| count(course.totals.tasks), 0, Beside::Percent),
    (
        "tasks stolen inside clusters",
        |course| count(course.totals.stolen_local),
        0,
        Beside::Nothing,
    ),
    (
        "tasks stolen between clusters",
        |course| count(course.totals.stolen_wide),
        0,
        Beside::Nothing,
    ),
    ("bytes sent between clusters", |course| count(course.totals.wide_bytes), 0, Beside::Percent),
    (
        "decisions",
        |course| {
            // A run without a mode may have had decisions that its log lacks.
            course.mode?;
            whole(course.marks.iter().filter(|mark| mark.decided).count())
        },
        0,
        Beside::Nothing,
    ),
];

fn count(n: Option<u64>) -> Option<f64> {
    n.map(|n| n as f64)
}

fn whole(n: usize) -> Option<f64> {
    Some(n as f64)
}

/// The table of these runs, or of one alone, in HTML.
pub fn table(courses: &[Course]) -> String {
    let cells = |of: &dyn Fn(&Course) -> String| -> String {
        courses.iter().map(|course| format!("<td>{}</td>", of(course))).collect()
    };
    let row =
        |name: &str, cells: String| format!("<tr><th scope=\"row\">{name}</th>{cells}</tr>\n");
    let heads: String =
        courses.iter().map(|c| format!("<th scope=\"col\">{}</th>", escaped(&c.label))).collect();
    let mut rows = format!("<tr><th></th>{heads}</tr>\n");
    rows += &row("mode", cells(&|course| mode(course).to_owned()));
    rows += &row("ended", cells(&|course| escaped(&ended(course))));
    for (name, of, digits, beside) in ROWS {
        if courses.iter().all(|course| of(course).is_none()) {
            continue;
        }
        let first =
            courses.first().and_then(of).filter(|first| *first > 0.0 && beside == Beside::Percent);
        let mut at = 0;
        let cell = |course: &Course| {
            let Some(number) = of(course) else {
                at += 1;
                return UNKNOWN.to_owned();
            };
            at += 1;
            let more = first
                .filter(|_| at > 1)
                .map(|first| format!(" <small>{:+.1} %</small>", 100.0 * (number / first - 1.0)));
            format!("{}{}", grouped(number, digits), more.unwrap_or_default())
        };
        let cells: String =
            courses.iter().map(cell).map(|text| format!("<td>{text}</td>")).collect();
        rows += &row(name, cells);
    }
    if courses.iter().any(|course| !course.warnings.is_empty()) {
        rows += &row("warnings", cells(&|course| escaped(&course.warnings.join("; "))));
    }
    let heading = match (courses, answers(courses)) {
        ([_], _) => "Run".to_owned(),
        (_, Some(true)) => about("Their answers are one."),
        (_, Some(false)) => about("<strong>Their answers differ.</strong>"),
        (_, None) => about("Not all of them have an answer."),
    };
    format!(
        "<section class=\"whole\"><h2>{heading}</h2><div class=\"scroll\"><table class=\"compared\">\n{rows}\
         </table></div></section>\n"
    )
}

fn about(answers: &str) -> String {
    format!("Runs <small>{answers} Hundredths are against the first.</small>")
}

fn mode(course: &Course) -> &'static str {
    match course.mode {
        Some(Mode::Adaptive) => "adaptive",
        Some(Mode::Monitor) => "monitored",
        Some(Mode::Static) => "static",
        None => UNKNOWN,
    }
}

fn ended(course: &Course) -> String {
    match &course.ended {
        Some(Ok(Some(checksum))) => format!("well, {checksum}"),
        Some(Ok(None)) => "well".to_owned(),
        Some(Err(why)) => format!("failed: {why}"),
        None => "not in its log".to_owned(),
    }
}

/// Whether all have the same answer; none where one has none.
fn answers(courses: &[Course]) -> Option<bool> {
    let answer = |course: &Course| match &course.ended {
        Some(Ok(Some(checksum))) => Some(checksum.clone()),
        _ => None,
    };
    let all = courses.iter().map(answer).collect::<Option<Vec<_>>>()?;
    Some(all.windows(2).all(|two| two[0] == two[1]))
}

/// A number with its thousands apart.
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
    use crate::dashboard::course::Totals;

    fn run(label: &str, wall_s: f64, checksum: &str) -> Course {
        let ended = Some(Ok(Some(checksum.to_owned())));
        Course {
            label: label.into(),
            wall_s,
            ended,
            nodes: vec![(0.0, 4), (wall_s / 2.0, 2)],
            ..Course::default()
        }
    }

    #[test]
    fn runs_stand_beside_the_first() {
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
        assert!(text.contains("answers are one"));
        assert!(!text.contains("weighted average"), "nobody knows it");
        let differ = table(&[run("a", 1.0, "a"), run("b", 1.0, "b")]);
        assert!(differ.contains("answers differ"));
        // What is not known is blank, whoever knows it of another run.
        let totals = Totals { tasks: Some(5), wide_bytes: Some(0), ..Totals::default() };
        let known = Course { totals, mode: Some(Mode::Monitor), ..run("a", 1.0, "a") };
        let text = table(&[known, run("b", 2.0, "b")]);
        for row in [
            "<th scope=\"row\">mode</th><td>monitored</td><td></td>",
            "<th scope=\"row\">tasks run</th><td>5</td><td></td>",
            "<th scope=\"row\">bytes sent between clusters</th><td>0</td><td></td>",
            "<th scope=\"row\">decisions</th><td>0</td><td></td>",
        ] {
            assert!(text.contains(row), "{row}: {text}");
        }
        assert!(!text.contains("stolen"), "nobody knows it: {text}");
        let warned = Course { warnings: vec!["too many <threads>".into()], ..run("a", 1.0, "a") };
        let alone = table(&[warned]);
        assert!(
            alone.contains("<h2>Run</h2>") && alone.contains("too many &lt;threads&gt;"),
            "{alone}"
        );
        let none = table(&[run("a", 1.0, "a"), Course::default()]);
        assert!(none.contains("Not all") && none.contains("not in its log"));
    }
}
