//! The scenarios of the paper on adaptive grids: their rows and figures.

use std::path::Path;
use std::time::Duration;

use springtide_cli::exit::Failed;
use springtide_cli::format::SCHEMA;
use springtide_cli::outdir::Artefacts;
use springtide_simulator::figure;
use springtide_simulator::paper::{self, ScenarioResults};
use springtide_simulator::shipped;

use crate::scenario::{find, parse};

/// Simulates these scenarios of the paper, or all, with the seeds from 1 to `seeds`.
///
/// Prints the rows, and draws the figures into `out`.
///
/// # Errors
/// A scenario is unknown or cannot be simulated, or files cannot be written.
pub fn paper(
    only: &[String],
    period: Option<Duration>,
    seeds: u64,
    json: bool,
    out: Option<&Path>,
) -> Result<(), Failed> {
    let chosen = if only.is_empty() {
        shipped::PAPER.iter().collect()
    } else {
        only.iter().map(|name| find(name)).collect::<Result<Vec<_>, _>>()?
    };
    let configs = chosen.iter().map(|shipped| parse(shipped.name, shipped.text));
    let configs = configs.collect::<Result<Vec<_>, _>>()?;
    let orders = configs.iter().flat_map(|config| (1..=seeds).map(move |seed| (config, seed)));
    let rows = paper::rows(orders.collect(), period, |row| eprintln!("{}", line(row)))
        .map_err(Failed::failure)?;
    let calibration = configs.first().map(paper::calibration);
    let result = serde_json::json!({
        "schema": SCHEMA,
        "calibration": calibration.map(|digest| format!("{digest:016x}")),
        "scenarios": rows,
    });
    let mut artefacts = Artefacts::of(out);
    if artefacts.are_wanted() {
        artefacts.keep("paper.json", format!("{result}\n"));
        let first: Vec<ScenarioResults> =
            rows.iter().filter(|row| row.seed == 1).cloned().collect();
        artefacts.keep("runtimes.svg", figure::runtimes(&first).map_err(Failed::failure)?);
        for row in &first {
            let text = figure::iterations(row).map_err(Failed::failure)?;
            artefacts.keep(&format!("scenario-{}.svg", row.name), text);
        }
    }
    let head = "scenario seed   static  monitor adaptive  reduction (paper)   ours reduction   \
    best nodes  ours/best undone";
    let lines: Vec<String> = rows.iter().map(line).collect();
    let digest = calibration.unwrap_or_default();
    let text = || format!("{head}\n{}\ncalibration {digest:016x}\n", lines.join("\n"));
    artefacts.print(json, result, text)
}

/// Formats a scenario's runs as one line.
fn line(row: &ScenarioResults) -> String {
    let percent = |share: f64| format!("{:.0} %", 100.0 * share);
    let paper = row.paper_reduction.map_or("-".to_owned(), percent);
    format!(
        "{:8} {:4} {:8.0} {:8.0} {:8.0}  {:>9} {:>7} {:6.0} {:>9} {:12.0} {:10.2} {:6}",
        row.name,
        row.seed,
        row.static_s,
        row.monitor_s,
        row.adaptive_s,
        percent(row.reduction),
        paper,
        row.ours.adaptive_s,
        percent(row.ours.reduction),
        row.clairvoyant_s,
        row.ours.adaptive_s / row.clairvoyant_s,
        row.undone.len() + row.ours.undone.len(),
    )
}
