//! `report`: a page about one run, or several side by side, in one file that needs no server and no
//! network.
//!
//! This module does not know the content of runs.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use springtide_base::bytes_text::to_base64;
use springtide_cli::exit::{Failed, cannot};
use springtide_cli::outdir::write_file;
use springtide_cli::print::print;
use springtide_runtime::event::RunDir;

use crate::runlog::RunLog;

use crate::compared;
use crate::course::{RunSeries, TimelineMark};
use crate::figures::{self, Figure};
use crate::page::{HTML, SCRIPT, SHAPES, STYLE, escaped};
use crate::replay;

/// The page loads nothing from elsewhere.
const CSP: &str = "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; \
script-src 'unsafe-inline'; \
style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'\">";

/// Styles of figures, in addition to the page's own.
const FIGURES: &str = "\
figure { margin: 0 0 18px; } figure img { max-width: 100%; background: #fff; } \
figure svg { width: 100%; height: auto; display: block; } figcaption { max-width: 90ch; } \
@media (max-width: 700px) { figure { overflow-x: auto; } figure svg { min-width: 620px; } \
figcaption, .keys { position: sticky; left: 0; } \
.compared th[scope=row] { white-space: normal; min-width: 8em; } \
.compared td { overflow-wrap: anywhere; } } \
@media (prefers-color-scheme: dark) { figure svg, .keys i { \
filter: brightness(1.4) saturate(.85); } }
.keys { list-style: none; display: flex; flex-wrap: wrap; gap: 2px 14px; margin: 2px 0; \
padding: 0; }
.keys i { display: inline-block; width: 14px; height: 4px; margin-right: 5px; \
vertical-align: middle; }
.marks td:nth-child(4) { color: var(--dim); } .marks td { vertical-align: top; \
text-align: left; white-space: normal; }
.marks td:nth-child(-n+2) { text-align: right; white-space: nowrap; }
.whole { grid-column: span 12; } .whole table { width: 100%; }
.compared th:first-child { text-align: left; } .compared td { text-align: right; \
white-space: normal; } \
.compared small { color: var(--dim); }
";

/// Writes the report of a run or of a workflow's plan, next to it if no file is given; or the
/// comparison of several runs.
///
/// # Errors
/// No run exists, its log is malformed, or the file cannot be written.
pub fn report(runs: &[PathBuf], compare: bool, out: Option<PathBuf>) -> Result<(), Failed> {
    if let ([dir], false) = (runs, compare)
        && let Some(text) = plan(dir)?
    {
        return write_page(&out.unwrap_or_else(|| dir.join("report.html")), &text, &[]);
    }
    let run_logs = runs.iter().map(|run| RunLog::read(run)).collect::<Result<Vec<_>, _>>()?;
    let (out, text) = match (&run_logs[..], runs) {
        ([run_log], [run]) if !compare => {
            let series = [RunSeries::of(run_log)];
            let picture = latest_picture(run)?;
            let table = compared::table(&series);
            let figures = format!("{picture}{table}{}", figures_of(&series)?);
            (
                out.unwrap_or_else(|| run.join("report.html")),
                page(&replay::frames(run_log).to_string(), &figures),
            )
        }
        _ if run_logs.len() < 2 => {
            return Err(Failed::usage("--compare needs two or more runs"));
        }
        _ => {
            let labels = labels(runs);
            let series = |(run_log, label)| RunSeries { label, ..RunSeries::of(run_log) };
            let all_series: Vec<RunSeries> = run_logs.iter().zip(labels).map(series).collect();
            let body = format!("{}{}", compared::table(&all_series), figures_of(&all_series)?);
            (
                out.unwrap_or_else(|| PathBuf::from("compared.html")),
                page_without_script("Runs compared", &body),
            )
        }
    };
    write_page(&out, &text, &run_logs)
}

/// Writes a file, prints its path and the gaps of the logs that it is made from.
pub fn write_page(out: &Path, text: &str, run_logs: &[RunLog]) -> Result<(), Failed> {
    write_file(out, text.as_bytes())?;
    print(&format!("{}\n", out.display()))?;
    run_logs
        .iter()
        .filter_map(|run_log| run_log.gap.as_ref())
        .for_each(|gap| springtide_cli::talk::tell(gap));
    Ok(())
}

/// The figures that `workflow plan --out` writes.
const PLAN: [(&str, &str); 3] = [
    ("front.svg", "Plans that no other plan beats in both time and cost, and the chosen one"),
    ("gantt.svg", "Slots of the plan, and the tasks on them"),
    ("tasks.svg", "Tasks over time"),
];

fn in_url(byte: u8) -> String {
    match byte {
        b'a'..=b'z'
        | b'A'..=b'Z'
        | b'0'..=b'9'
        | b'-'
        | b'.'
        | b'_'
        | b'/'
        | b'='
        | b':'
        | b','
        | b';' => char::from(byte).to_string(),
        _ => format!("%{byte:02x}"),
    }
}

/// The page of a workflow's plan, if the directory contains a plan and no run.
fn plan(dir: &Path) -> Result<Option<String>, Failed> {
    if RunDir::open(dir).is_ok() || !dir.join("plan.json").exists() {
        return Ok(None);
    }
    let mut body = String::new();
    for (name, title) in PLAN {
        let file = dir.join(name);
        let svg = fs::read(&file).map_err(|error| cannot("read", &file, &error))?;
        // As an image, so that nothing in the file is executed.
        let data: String = svg.iter().map(|byte| in_url(*byte)).collect();
        let _ = writeln!(
            body,
            "<section class=\"whole\"><h2>{title}</h2><figure><img alt=\"{title}\" \
            src=\"data:image/svg+xml,{data}\"></figure></section>"
        );
    }
    Ok(Some(page_without_script("A workflow's plan", &body)))
}

/// The largest picture that a report contains, in bytes.
const PICTURE_MAX: u64 = 8 << 20;

/// The last picture (PNG) that the job wrote into the run's directory, as a part of the page; empty
/// if there is none.
fn latest_picture(run: &Path) -> Result<String, Failed> {
    let entries = fs::read_dir(run).map_err(|error| cannot("read", run, &error))?;
    let pictures = entries.flatten().filter(|entry| {
        let is_small = entry.metadata().is_ok_and(|file| file.len() <= PICTURE_MAX);
        is_small && entry.path().extension().is_some_and(|ext| ext == "png")
    });
    // Names end with the step, which orders pictures of one time.
    let written = |entry: &fs::DirEntry| entry.metadata().and_then(|file| file.modified()).ok();
    let latest = pictures.max_by_key(|entry| (written(entry), entry.file_name()));
    let Some(latest) = latest else { return Ok(String::new()) };
    let path = latest.path();
    let bytes = fs::read(&path).map_err(|error| cannot("read", &path, &error))?;
    let name = escaped(&latest.file_name().to_string_lossy());
    Ok(format!(
        "<section class=\"whole\"><h2>Latest picture <small>{name}</small></h2><figure><img \
        alt=\"{name}\" src=\"data:image/png;base64,{}\"></figure></section>\n",
        to_base64(&bytes)
    ))
}

/// The names of runs: the last parts of their paths, as many as distinguish them.
fn labels(runs: &[PathBuf]) -> Vec<String> {
    let last = |run: &Path, parts: usize| {
        let parts: Vec<_> = run.components().rev().take(parts).collect();
        parts.iter().rev().collect::<PathBuf>().display().to_string()
    };
    let longest = runs.iter().map(|run| run.components().count()).max().unwrap_or(1);
    let last_parts = |parts: usize| runs.iter().map(|run| last(run, parts)).collect::<Vec<_>>();
    let differ = |names: &[String]| {
        names.iter().collect::<std::collections::BTreeSet<_>>().len() == names.len()
    };
    let found = (1..=longest).map(last_parts).find(|names| differ(names));
    found.unwrap_or_else(|| {
        (1..).zip(last_parts(1)).map(|(n, name)| format!("{name} ({n})")).collect()
    })
}

/// The figures of runs with the lists of their marks.
fn figures_of(all_series: &[RunSeries]) -> Result<String, Failed> {
    let mut text = String::new();
    for Figure { title, about, legend, svg } in figures::all(all_series).map_err(Failed::failure)? {
        let keys: String = legend
            .iter()
            .map(|(label, colour)| {
                let (r, g, b) = (colour.0, colour.1, colour.2);
                format!("<li><i style=\"background:rgb({r},{g},{b})\"></i>{}</li>", escaped(label))
            })
            .collect();
        let _ = writeln!(
            text,
            "<section class=\"whole\"><h2>{0}</h2><figure role=\"group\" \
            aria-label=\"{0}\">{svg}<ul class=\"keys\">{keys}</ul>\
            <figcaption class=\"dim\">{about}</figcaption></figure></section>",
            escaped(&title)
        );
    }
    all_series.iter().for_each(|series| text += &marks(series));
    Ok(text)
}

fn marks(series: &RunSeries) -> String {
    if series.marks.is_empty() {
        return String::new();
    }
    let row = |(at, TimelineMark { at_s, what, why, .. }): (usize, &TimelineMark)| {
        format!(
            "<tr><td>{}</td><td>{at_s:.1} s</td><td>{}</td><td>{}</td></tr>\n",
            at + 1,
            escaped(what),
            escaped(why)
        )
    };
    let rows: String = series.marks.iter().enumerate().map(row).collect();
    format!(
        "<section class=\"whole\"><h2>Decisions and losses <small>{}</small></h2><div \
        class=\"scroll\"><table class=\"marks\">\n\
        {rows}</table></div></section>\n",
        escaped(&series.label)
    )
}

/// A page without a script.
fn page_without_script(title: &str, body: &str) -> String {
    let csp = CSP.replace("script-src 'unsafe-inline'; ", "");
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
        <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
        <title>{title}</title>\n\
        <link rel=\"icon\" href=\"data:,\">\n{csp}\n<style>\n{STYLE}{FIGURES}</style>\n</head>\n\
        <body>\n\
        <header><h1>{title}</h1></header>\n<main>\n{body}</main>\n</body>\n</html>\n"
    )
}

/// The page with all its parts included.
fn page(run: &str, figures: &str) -> String {
    let shapes = SHAPES.replace("\nexport ", "\n");
    let lines = SCRIPT.split_inclusive('\n').filter(|line| !line.starts_with("import "));
    let script: String = lines.collect();
    // `</` in a script would end it, even inside a string.
    let data = run.replace('<', "\\u003c");
    let link = "<link rel=\"stylesheet\" href=\"style.css\">";
    let module = "<script type=\"module\" src=\"app.js\"></script>";
    debug_assert!(HTML.contains(link) && HTML.contains(module) && HTML.contains("</main>"));
    let styled = HTML.replace(link, &format!("{CSP}\n<style>\n{STYLE}{FIGURES}</style>"));
    styled.replace("</main>", &format!("{figures}</main>")).replace(
        module,
        &format!(
            "<script type=\"application/json\" id=\"run\">{data}</script>\n\
            <script type=\"module\">\n{shapes}\n{script}</script>"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_shows_the_last_picture() {
        for (bytes, text) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(to_base64(bytes.as_bytes()), text);
        }
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(latest_picture(dir.path()).unwrap(), "");
        for name in ["frame-000000.png", "frame-000001.png", "notes.txt"] {
            fs::write(dir.path().join(name), name).unwrap();
        }
        let text = latest_picture(dir.path()).unwrap();
        assert!(text.contains("frame-000001.png") && text.contains("base64,ZnJhbWUt"), "{text}");
        assert!(latest_picture(&dir.path().join("none")).is_err());
    }

    #[test]
    fn the_page_is_complete_and_no_run_data_ends_its_script() {
        let text = page(r#"{"run":"</script><img src=x>"}"#, "");
        assert!(
            !text.contains("src=\"/") && !text.contains("href=\"/"),
            "it would fetch something"
        );
        assert!(!text.contains("</script><img"));
        assert!(!text.contains("\nimport ") && !text.contains("\nexport "));
        assert_eq!(text.matches("</script>").count(), 2);
    }

    #[test]
    fn runs_are_named_by_distinguishing_parts_of_their_paths() {
        let of = |paths: &[&str]| labels(&paths.iter().map(PathBuf::from).collect::<Vec<_>>());
        assert_eq!(of(&["runs/static", "runs/adaptive"]), ["static", "adaptive"]);
        assert_eq!(of(&["a/run", "b/run"]), ["a/run", "b/run"]);
        assert_eq!(of(&["run", "run"]), ["run (1)", "run (2)"]);
    }

    #[test]
    fn run_data_is_escaped() {
        let hostile = "<img src=x onerror=alert(1)>\"'&";
        let mark = TimelineMark {
            at_s: 1.0,
            what: hostile.into(),
            why: hostile.into(),
            sign: -1,
            decided: true,
        };
        let series = |label: &str| RunSeries {
            label: label.into(),
            wall_s: 3.0,
            iterations: vec![(1.0, 1.0), (2.5, 1.5)],
            nodes: vec![(0.0, 2), (1.0, 3)],
            by_cluster: [(hostile.into(), vec![(0.0, 2)])].into(),
            overall: vec![(1.0, 0.5)],
            overhead: [(hostile.into(), vec![(1.0, 0.5)])].into(),
            times: [(hostile.into(), Default::default())].into(),
            ended: Some(Err(hostile.into())),
            marks: vec![mark.clone()],
            ..RunSeries::default()
        };
        let one = figures_of(&[series("a")]).unwrap();
        let two = [series("a"), series(hostile)];
        let two = format!("{}{}", compared::table(&two), figures_of(&two).unwrap());
        for text in [one, two] {
            assert!(!text.contains("<img") && text.contains("&lt;img"), "{text}");
            assert!(text.contains("<svg") && !text.contains("#FFFFFF"));
        }
    }
}
