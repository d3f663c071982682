//! `audit`: who gave which command to a grid.

use std::path::PathBuf;

use clap::{Args, ValueHint};
use serde_json::json;
use springtide_actors::audit::{AuditContents, AuditEntry, AuditLog, AuditResult};
use springtide_cli::dates::date;
use springtide_cli::exit::{Exit, Failed, cannot};
use springtide_cli::format::{SCHEMA, many};
use springtide_cli::print::print;

use crate::output::table::columns;
use springtide_operations::attach::grid_config;
use springtide_operations::grid_files::dir_of;
use springtide_operations::locate::default_config;
use springtide_operations::options::GlobalArgs;
use springtide_operations::process::start_log;

/// The maximum number of jobs that a row names.
const JOBS_MAX: usize = 3;

/// The options of the command `audit`.
#[derive(Args, Clone, Debug)]
pub struct AuditArgs {
    /// Config of the grid [default: the nearest grid.toml]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath,
          default_value_os_t = default_config(), hide_default_value = true)]
    config: PathBuf,
    /// Maximum number of commands, the latest ones
    #[arg(long, value_name = "N")]
    last: Option<usize>,
    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
}

/// Executes `audit`.
///
/// # Errors
/// The config is wrong, the log cannot be read, or lines of it are damaged.
pub fn execute(args: &AuditArgs, global: &GlobalArgs) -> Result<(), Failed> {
    start_log(global);
    let config = grid_config(&args.config)?;
    let dir = dir_of(&args.config, &config);
    let path = AuditLog::path(&dir);
    let AuditContents { entries, damaged } =
        AuditContents::read(&dir).map_err(|error| cannot("read", &path, &error))?;
    let hidden = entries.len().saturating_sub(args.last.unwrap_or(usize::MAX));
    let shown = &entries[hidden..];
    if args.json {
        print(&format!("{}\n", json!({ "schema": SCHEMA, "commands": shown })))?;
    } else {
        print(&table(shown))?;
        if entries.is_empty() {
            eprintln!("no command was given to the grid of {}", args.config.display());
        }
    }
    let Some((line, reason)) = damaged.first() else { return Ok(()) };
    let count = many(damaged.len() as u64, "line");
    Err(Failed::new(
        Exit::Failure,
        format!(
            "{count} of {} cannot be read, and are not shown; the first is {}:{line}: {reason}",
            path.display(),
            path.display()
        ),
    ))
}

/// The entries as a table.
fn table(entries: &[AuditEntry]) -> String {
    if entries.is_empty() {
        return String::new();
    }
    let mut rows = vec![["TIME", "WHO", "COMMAND", "JOBS", "RESULT"].map(str::to_owned)];
    rows.extend(entries.iter().map(row));
    columns(&rows)
}

fn row(entry: &AuditEntry) -> [String; 5] {
    let named: Vec<String> = entry.jobs.iter().take(JOBS_MAX).map(ToString::to_string).collect();
    let mut jobs = named.join(", ");
    if entry.jobs.len() > JOBS_MAX {
        jobs += &format!(" and {} more", entry.jobs.len() - JOBS_MAX);
    }
    let result = match (entry.result, &entry.detail) {
        (AuditResult::Done, None) => "done".to_owned(),
        (AuditResult::Done, Some(detail)) => format!("done: {detail}"),
        (AuditResult::Failed, detail) => with_reason("failed", detail.as_deref()),
        (AuditResult::Refused, detail) => with_reason("refused", detail.as_deref()),
    };
    let time = date(u64::try_from(entry.time_unix_s).unwrap_or(0));
    [time, entry.who.to_string(), word(&entry.command).to_owned(), jobs, result]
}

fn with_reason(word: &str, reason: Option<&str>) -> String {
    reason.map_or_else(|| word.to_owned(), |reason| format!("{word}: {reason}"))
}

/// The subcommand that sends a message; the message itself if none does alone.
fn word(message: &str) -> &str {
    match message {
        "submit" => "run",
        "desk-submit" | "desk-submit-all" => "job submit",
        "cancel-job" => "job cancel",
        "cancel-jobs-of" => "run, interrupted",
        "resize-job" => "job grow or shrink",
        "desk-purge" => "job purge",
        "desk-read" | "get-job" => "job status",
        "desk-output" => "job output",
        "drain" => "node drain",
        "undrain" => "node undrain",
        "commit-slots" => "reserve",
        "release-slots" => "release",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use springtide_actors::admit::Principal;
    use springtide_runtime::id::JobId;

    use super::*;

    #[test]
    fn a_row_names_the_sender_the_command_and_the_reason() {
        let entry = AuditEntry {
            time_unix_s: 1_700_000_000,
            who: Principal {
                name: "alice".into(),
                cluster: "users".into(),
                role: Some("viewer".to_owned()),
            },
            command: "desk-submit-all".to_owned(),
            jobs: (1..=5).map(JobId).collect(),
            result: AuditResult::Refused,
            detail: Some("no right".to_owned()),
        };
        let found = row(&entry);
        let jobs = "job-1, job-2, job-3 and 2 more";
        assert_eq!(found[1..], ["viewer alice", "job submit", jobs, "refused: no right"]);
        assert!(found[0].starts_with("2023-11-14"), "{found:?}");
        assert_eq!(table(&[]), "");
    }
}
