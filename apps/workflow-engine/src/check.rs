//! `workflow check`: reads workflows and prints a summary of each. This module does not know
//! planning.

use std::path::PathBuf;

use clap::{Args, ValueHint};
use serde_json::{Value, json};
use springtide_cli::exit::{Exit, Failed};
use springtide_cli::format::{SCHEMA, number, seconds, size};
use springtide_cli::print::print;

use super::{Read, ReadArgs, Summary, place, read, shown};

/// Maximum number of kinds of tasks in the text.
const KINDS_SHOWN: usize = 12;

/// Options of `workflow check`.
#[derive(Args, Clone, Debug)]
pub struct CheckArgs {
    /// Workflows: WfFormat (JSON), DAX (XML), Pegasus 5 (YAML), DOT, or Springtide's own (TOML)
    #[arg(value_name = "FILE", required = true, value_hint = ValueHint::FilePath)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    reading: ReadArgs,
    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
    /// Print the workflow in workflow TOML, with the commands and resources of a run
    #[arg(long, conflicts_with = "json")]
    toml: bool,
}

/// Executes `workflow check`. An error in one file does not end the check of the others.
///
/// # Errors
/// Some files cannot be read, or are not workflows: all of them, with positions.
pub fn check(args: &CheckArgs) -> Result<(), Failed> {
    let overrides = args.reading.overrides().map_err(Failed::usage)?;
    let (mut text, mut results, mut errors) = (String::new(), Vec::new(), Vec::new());
    for file in &args.files {
        let checked = read(file, args.reading.format, &overrides)
            .map_err(|error| (error.place.at, error.to_string()));
        let checked = checked.and_then(|read| match Summary::of(&read) {
            Ok(summary) => Ok((read, summary)),
            Err(error) => Err((None, format!("{}: {error}", file.display()))),
        });
        match checked {
            Ok((read, summary)) => {
                results.push(object(&read, &summary));
                if args.toml {
                    text.push_str(&read.workflow.to_toml());
                } else {
                    text.push_str(&words(&read, &summary));
                }
            }
            Err((at, error)) => {
                let (line, column) = place(at);
                results.push(json!({
                    "file": file, "ok": false, "error": error, "line": line, "column": column,
                }));
                errors.push(error);
            }
        }
    }
    if args.json {
        let ok = errors.is_empty();
        print(&format!("{}\n", json!({ "schema": SCHEMA, "ok": ok, "files": results })))?;
        return if ok { Ok(()) } else { Err(Failed::new(Exit::Usage, "")) };
    }
    print(&text)?;
    if errors.is_empty() { Ok(()) } else { Err(Failed::usage(errors.join("\n"))) }
}

fn object(read: &Read, summary: &Summary) -> Value {
    let Read { file, format, workflow, .. } = read;
    json!({
        "file": file,
        "ok": true,
        "format": format.map(|format| format.word()),
        "name": workflow.name,
        "summary": summary,
        "without_runtime": workflow.tasks.iter().filter(|task| task.runtime_s.is_none()).count(),
        "notes": read.notes(),
    })
}

/// The summary as text.
fn words(read: &Read, summary: &Summary) -> String {
    let format = read.format.map_or_else(String::new, |format| format!(" ({format})"));
    let count = |n: usize| number(n as u64);
    let mut text = format!("{}{format}: {}\n", read.file.display(), shown(&read.name()));
    let Summary { tasks, edges, levels, width, most_processors, .. } = summary;
    let mut line = |name: &str, value: String| text.push_str(&format!("  {name:15}{value}\n"));
    let kinds = match summary.kinds.len() {
        1 => "one kind".to_owned(),
        kinds => format!("{} kinds", count(kinds)),
    };
    line("tasks", format!("{}, of {kinds}", count(*tasks)));
    line("edges", count(*edges));
    line("levels", format!("{}, at most {} tasks wide", count(*levels), count(*width)));
    let unknown = || "not known: there are tasks without a runtime".to_owned();
    let most = match most_processors {
        1 => "each on one processor".to_owned(),
        most => format!("tasks of up to {most} processors"),
    };
    // Small amounts are shown in seconds, in one unit for all lines.
    let little = summary.kinds.iter().map(|kind| kind.processor_hours).sum::<f64>() < 1.0;
    let took = |hours: f64| {
        if little {
            format!("{} processor-seconds", round(hours * 3600.0))
        } else {
            format!("{} processor-hours", round(hours))
        }
    };
    let work = summary.processor_hours.map(|hours| format!("{}, {most}", took(hours)));
    line("work", work.unwrap_or_else(unknown));
    line("critical path", summary.critical_path_s.map_or_else(unknown, seconds));
    let memory = summary.most_memory_bytes.map(|bytes| format!("memory of up to {}", size(bytes)));
    let gpus = summary.most_gpus.map(|gpus| format!("up to {gpus} GPUs"));
    let resources: Vec<String> = [memory, gpus].into_iter().flatten().collect();
    if !resources.is_empty() {
        line("resources", resources.join(", "));
    }
    line("data", format!("{} between tasks, {} files", size(summary.bytes), count(summary.files)));
    let kinds = summary.kinds.iter().take(KINDS_SHOWN);
    let width = kinds.clone().map(|kind| shown(&kind.name).chars().count()).max().unwrap_or(0);
    for (at, kind) in kinds.enumerate() {
        let name = shown(&kind.name);
        let hours = match kind.processor_hours {
            hours if hours > 0.0 => format!(", {}", took(hours)),
            _ => String::new(),
        };
        let first = if at == 0 { "kinds" } else { "" };
        line(first, format!("{name:width$} {:>6}{hours}", count(kind.tasks)));
    }
    if summary.kinds.len() > KINDS_SHOWN {
        let others = &summary.kinds[KINDS_SHOWN..];
        let tasks = others.iter().map(|kind| kind.tasks).sum();
        line("", format!("{} other kinds, {} tasks", count(others.len()), count(tasks)));
    }
    for note in read.notes() {
        text.push_str(&format!("  note: {}\n", note.line(&read.file)));
    }
    if let Some(lacks) = read.lacks_runtimes() {
        text.push_str(&format!("  note: {}\n", lacks.replace('\n', "\n  ")));
    }
    text
}

/// A share in percent. A small share does not round to 0 %, nor a large one to 100 %.
pub fn percent(share: f64) -> String {
    match share * 100.0 {
        little if little > 0.0 && little < 1.0 => "<1 %".to_owned(),
        most if most > 99.0 && most < 100.0 => ">99 %".to_owned(),
        percent => format!("{percent:.0} %"),
    }
}

/// A number with four significant digits.
pub fn round(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let places = match value.abs() {
        value if value >= 1000.0 => 0,
        value if value >= 100.0 => 1,
        value if value >= 10.0 => 2,
        value if value >= 1.0 => 3,
        _ => 4,
    };
    match places {
        0 => number(value.round() as u64),
        _ => format!("{value:.places$}"),
    }
}
