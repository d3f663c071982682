//! Simulated histories of random faults.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use springtide_cli::exit::Failed;
use springtide_cli::format::SCHEMA;
use springtide_cli::print::print;
use springtide_simulator::faults::{self, FaultHistory};

/// Simulates the histories of random faults of these seeds, and prints a tally.
///
/// # Errors
/// A history ends wrongly, or the text cannot be written.
pub fn faults(seeds: Range<u64>, json: bool) -> Result<(), Failed> {
    let began = std::time::Instant::now();
    let tally = faults::run_all(seeds, |history, result| {
        if let Err(error) = result {
            eprintln!("{history}  {error}\n  again: springtide sim replay {}", history.seed);
        }
    });
    let took = began.elapsed().as_secs_f64();
    let faults::HistoryTally { paths: met, violations: wrong, digests, histories, slowest } =
        &tally;
    if json {
        let result = serde_json::json!({
            "schema": SCHEMA, "histories": histories, "wrong": wrong,
            "met": met.iter().map(|(what, (times, _))| (what, times)).collect::<BTreeMap<_, _>>(),
            "met_in": met
                .iter()
                .map(|(what, (_, histories))| (what, histories))
                .collect::<BTreeMap<_, _>>(),
            "slowest_s": slowest.0.as_secs_f64(),
            "digests": digests
                .iter()
                .map(|(seed, digest)| (seed, format!("{digest:016x}")))
                .collect::<BTreeMap<_, _>>(),
        });
        print(&format!("{result}\n"))?;
    } else {
        let (after, seed) = (slowest.0.as_secs_f64(), slowest.1);
        print(&format!(
            "{}{histories} histories in {took:.0} s, {} wrong; the last job ended {after:.0} s \
            after its last fault (seed {seed})\n",
            tally.lines(),
            wrong.len()
        ))?;
    }
    if wrong.is_empty() { Ok(()) } else { Err(Failed::failure(format!("wrong: seeds {wrong:?}"))) }
}

/// Simulates the histories of one seed again, and prints their events.
///
/// # Errors
/// A history ends wrongly, or the text cannot be written.
pub fn replay(seed: u64) -> Result<(), Failed> {
    replay_one(&FaultHistory::of(seed))?;
    replay_one(&FaultHistory::of_brief(seed))
}

fn replay_one(history: &FaultHistory) -> Result<(), Failed> {
    let run = faults::run(history);
    let said = match &run {
        Ok(run) => &run.said,
        Err(failed) => &failed.said,
    };
    let line = |(at, what): &(Duration, String)| format!("{:9.3} s  {what}\n", at.as_secs_f64());
    let lines: String = said.iter().map(line).collect();
    print(&format!("{history}{lines}"))?;
    let run = run.map_err(Failed::failure)?;
    print(&format!(
        "the right answer after {:.3} s; digest {:016x}\n",
        run.wall.as_secs_f64(),
        run.digest
    ))
}
