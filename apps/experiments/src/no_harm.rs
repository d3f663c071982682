//! Drawn grids and jobs on which adaptation must do no harm.

use std::fmt::Write;
use std::ops::Range;
use std::path::Path;

use springtide_cli::exit::Failed;
use springtide_cli::format::SCHEMA;
use springtide_cli::outdir::Artefacts;
use springtide_simulator::no_harm::{self, DrawTimes, NoHarmVerdict};

/// The number of draws that are printed as the worst.
const WORST: usize = 10;

/// Runs the draws of these seeds, prints a table, and writes a file of each into `out`.
///
/// # Errors
/// A criterion does not hold, or files cannot be written.
pub fn no_harm(seeds: Range<u64>, json: bool, out: Option<&Path>) -> Result<(), Failed> {
    let began = std::time::Instant::now();
    let mut all = no_harm::run_all(seeds, |times| eprintln!("{}", line(times)));
    let verdict = no_harm::judge(&all);
    // The draws in which adaptation loses most, then those in which it gains least.
    all.sort_by(|a, b| b.ratio().total_cmp(&a.ratio()));
    let harmed: Vec<&DrawTimes> = all.iter().take(WORST).collect();
    let mut idle: Vec<&DrawTimes> = all.iter().filter(|times| times.gain().is_some()).collect();
    idle.sort_by(|a, b| a.gain().unwrap_or(1.0).total_cmp(&b.gain().unwrap_or(1.0)));
    idle.truncate(WORST);
    let mut artefacts = Artefacts::of(out);
    if artefacts.are_wanted() {
        for times in &all {
            artefacts.keep(&file_name(times), file(times));
        }
    }
    let result = serde_json::json!({
        "schema": SCHEMA,
        "draws": verdict.draws,
        "improvable": verdict.improvable,
        "holds": verdict.holds(),
        "criteria": verdict.criteria.iter().map(|criterion| serde_json::json!({
            "about": criterion.about, "value": criterion.value, "holds": criterion.holds,
        })).collect::<Vec<_>>(),
        "adaptive_to_static": verdict.to_static,
        "adaptive_to_best": verdict.to_best,
        "gains": verdict.gains,
        "worst": harmed.iter().map(|times| entry(times)).collect::<Vec<_>>(),
        "least_gain": idle.iter().map(|times| entry(times)).collect::<Vec<_>>(),
        "all": all.iter().map(entry).collect::<Vec<_>>(),
    });
    let took = began.elapsed().as_secs_f64();
    artefacts.print(json, result, || table(&verdict, &harmed, &idle, took))?;
    let broken: Vec<&str> = verdict
        .criteria
        .iter()
        .filter(|criterion| !criterion.holds)
        .map(|criterion| criterion.about.as_str())
        .collect();
    if broken.is_empty() {
        Ok(())
    } else {
        Err(Failed::failure(format!("not reached: {}", broken.join("; "))))
    }
}

fn file_name(times: &DrawTimes) -> String {
    format!("no-harm-{}.toml", times.draw.seed)
}

/// The scenario file of a draw, with its times and the adaptive run's actions as comments.
fn file(times: &DrawTimes) -> String {
    let seed = times.draw.seed;
    let mut text = format!(
        "# {}\n# springtide sim run {} --seed {seed} --mode adaptive\n",
        line(times),
        file_name(times)
    );
    for (at, action) in &times.adaptive.actions {
        let _ = writeln!(text, "# {at:9.1} s  {action}");
    }
    text + &times.draw.text
}

fn entry(times: &DrawTimes) -> serde_json::Value {
    let DrawTimes { draw, fixed, adaptive, best } = times;
    serde_json::json!({
        "seed": draw.seed,
        "static_s": fixed.seconds,
        "adaptive_s": adaptive.seconds,
        "best_s": best.seconds,
        "best_nodes": best.nodes,
        "ratio": times.ratio(),
        "gain": times.gain(),
        "static_failure": fixed.failure,
        "adaptive_failure": adaptive.failure,
        "actions": adaptive.actions,
    })
}

/// Formats a draw as one line.
fn line(times: &DrawTimes) -> String {
    let DrawTimes { draw, fixed, adaptive, best } = times;
    let gain = times.gain().map_or("-".to_owned(), |gain| format!("{:.0} %", 100.0 * gain));
    let failure = [("static", fixed), ("adaptive", adaptive)].map(|(name, run)| {
        let first = run.failure.as_ref().and_then(|failure| failure.lines().next());
        first.map_or(String::new(), |failure| format!("  {name}: {failure}"))
    });
    format!(
        "seed {:9}  static {:8.1} s  adaptive {:8.1} s  best {:8.1} s  ratio {:5.2}  \
         gain {gain:>6}{}",
        draw.seed,
        fixed.seconds,
        adaptive.seconds,
        best.seconds,
        times.ratio(),
        failure.concat()
    )
}

fn table(verdict: &NoHarmVerdict, harmed: &[&DrawTimes], idle: &[&DrawTimes], took: f64) -> String {
    let mut text = String::new();
    let percentiles = |text: &mut String, name: &str, values: &[(u32, f64)]| {
        let values = values.iter().map(|(percent, value)| format!("{percent} %: {value:.2}"));
        let _ = writeln!(text, "{name}  {}", values.collect::<Vec<_>>().join("  "));
    };
    percentiles(&mut text, "adaptive / static", &verdict.to_static);
    percentiles(&mut text, "adaptive / best  ", &verdict.to_best);
    percentiles(&mut text, "possible gain    ", &verdict.gains);
    for (title, draws) in [("Most harm:", harmed), ("Least gain:", idle)] {
        let _ = writeln!(text, "{title}");
        for times in draws {
            let seed = times.draw.seed;
            let _ = write!(
                text,
                "{}\n  again: springtide sim no-harm --seeds {seed}..{} --out DIR\n",
                line(times),
                seed + 1
            );
        }
    }
    for criterion in &verdict.criteria {
        let value = criterion.value.map_or("-".to_owned(), |value| format!("{value:.3}"));
        let word = if criterion.holds { "held" } else { "NOT REACHED" };
        let _ = writeln!(text, "{value:>8}  {word:11}  {}", criterion.about);
    }
    let _ = writeln!(
        text,
        "{} draws in {took:.0} s, {} with a possible gain",
        verdict.draws, verdict.improvable
    );
    text
}
