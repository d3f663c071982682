//! `workflow report`: a page about a run, and files of its provenance, from its journal.
//!
//! - `attempts` has the tasks and attempts of a run, `analysis` its critical path, waits and
//!   resources.
//! - `page`, with `chart` and `markup`, makes the page.
//! - `wfformat` and `ro_crate` make the files of provenance.

mod analysis;
mod attempts;
mod chart;
mod markup;
mod page;
mod ro_crate;
#[cfg(test)]
mod tests;
mod wfformat;

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum, ValueHint};
use springtide_cli::dates::date;
use springtide_cli::exit::{Failed, cannot};
use springtide_cli::outdir::{make_dir, write_copy};
use springtide_cli::print::print;

use self::attempts::RunHistory;
use super::control::find;

/// Options of `workflow report`.
#[derive(Args, Clone, Debug)]
pub struct ReportArgs {
    /// The run: its directory, or its name [default: the run that changed last]
    #[arg(value_name = "RUN", value_hint = ValueHint::DirPath)]
    pub run: Option<PathBuf>,
    /// Format of the report
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = ReportFormat::Html)]
    pub format: ReportFormat,
    /// File for the report [default: report.html, wfformat.json or ro-crate-metadata.json in the
    /// run's directory]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub out: Option<PathBuf>,
}

/// The format of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReportFormat {
    /// A page: tasks by node over time, critical path, waits, transfers, failures and resources
    Html,
    /// What ran, as a WfFormat 1.5 instance (JSON), which `workflow check` reads
    Wfformat,
    /// What ran, as an RO-Crate 1.1 of the Workflow Run profiles, in the run's directory
    RoCrate,
}

/// Writes the report of a run, and prints its path.
///
/// # Errors
/// There is no such run, its workflow has changed, or the file cannot be written.
pub fn report(args: &ReportArgs) -> Result<(), Failed> {
    let dir = find(args.run.as_deref())?;
    let history = RunHistory::read(&dir)?;
    let name = match args.format {
        ReportFormat::Html => "report.html",
        ReportFormat::Wfformat => "wfformat.json",
        ReportFormat::RoCrate => "ro-crate-metadata.json",
    };
    let path = args.out.clone().unwrap_or_else(|| dir.join(name));
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    let text = match args.format {
        ReportFormat::Html => page::page(&history, parent),
        ReportFormat::Wfformat => format!("{:#}\n", wfformat::instance(&history)?),
        ReportFormat::RoCrate if args.out.is_some() => {
            return Err(Failed::usage(
                "an RO-Crate describes the directory that it is in: leave out --out",
            ));
        }
        ReportFormat::RoCrate => {
            let copy = dir.join(ro_crate::workflow_name(&history));
            let file = &history.manifest.file;
            let crate_text = format!("{:#}\n", ro_crate::metadata(&history)?);
            let bytes = std::fs::read(file).map_err(|error| cannot("read", file, &error))?;
            write_copy(&copy, &bytes)?;
            crate_text
        }
    };
    make_dir(parent)?;
    write_copy(&path, text.as_bytes())?;
    print(&format!("{}\n", path.display()))
}

/// A time as text of RFC 3339, with milliseconds and the offset of UTC in numbers.
fn timestamp(at_s: f64) -> String {
    let millis = (at_s.max(0.0) * 1000.0).round() as u64;
    let text = date(millis / 1000);
    format!("{}.{:03}+00:00", text.trim_end_matches('Z'), millis % 1000)
}
