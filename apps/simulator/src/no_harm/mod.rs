//! The property that adaptation does no harm, on grids and jobs as users have them, drawn from a
//! seed.
//!
//! Each draw runs on its initial nodes (static), adaptively, and on the best fixed set of nodes.
//! All runs of a draw have the same faults. `draw` draws scenarios, `best` searches the best set,
//! `judge` compares the times with the [criteria](NoHarmVerdict).

mod best;
mod draw;
mod judge;
#[cfg(test)]
mod tests;

use std::time::Duration;

use springtide_actors::policy::Mode;
use springtide_runtime::config::{ScenarioConfig, Sources, Time, load};

pub use self::best::{BestSet, NodeSet};
pub use self::draw::NoHarmDraw;
pub use self::judge::{Criterion, NoHarmVerdict, judge};
use crate::scenario::{SimulationParams, seconds, simulate};

/// The end of a run of a draw.
#[derive(Clone, Debug, PartialEq)]
pub struct RunTime {
    /// The runtime in seconds; the time limit, if the job did not end well.
    pub seconds: f64,
    /// Whether the job ended with the right answer.
    pub ended: bool,
    /// The reason of another end.
    pub failure: Option<String>,
    /// Whether the job ended with a wrong answer, which no draw excuses.
    pub wrong: bool,
    /// The actions of the policy, by seconds of the job.
    pub actions: Vec<(f64, String)>,
}

/// The times of a draw.
#[derive(Clone, Debug)]
pub struct DrawTimes {
    /// The scenario of all runs.
    pub draw: NoHarmDraw,
    /// The run on the initial nodes.
    pub fixed: RunTime,
    /// The run with adaptation of the nodes.
    pub adaptive: RunTime,
    /// The best fixed set of nodes.
    pub best: BestSet,
}

impl DrawTimes {
    /// The time of the adaptive run, as a multiple of that of the static run.
    pub fn ratio(&self) -> f64 {
        self.adaptive.seconds / self.fixed.seconds
    }

    /// The time of the adaptive run, as a multiple of that on the best fixed set.
    pub fn ratio_to_best(&self) -> f64 {
        self.adaptive.seconds / self.best.seconds
    }

    /// The part of the difference between the static run and the best set that adaptation gains.
    ///
    /// None where the best set is less than 1.5 times faster.
    pub fn gain(&self) -> Option<f64> {
        let Self { fixed, adaptive, best, .. } = self;
        let applies = fixed.seconds >= judge::FASTER * best.seconds;
        applies.then(|| (fixed.seconds - adaptive.seconds) / (fixed.seconds - best.seconds))
    }
}

/// Loads a scenario from its text.
///
/// # Errors
/// The mistakes of the text.
pub fn parse(name: &str, text: &str) -> Result<ScenarioConfig, String> {
    let loaded = load::<ScenarioConfig>(&Sources::of_text(name, text));
    loaded.map(|loaded| loaded.value).map_err(|error| error.to_string())
}

fn run_mode(config: &ScenarioConfig, seed: u64, mode: Mode) -> RunTime {
    let limit = config.job.limit.get().as_secs_f64();
    let unended = |failure| RunTime {
        seconds: limit,
        ended: false,
        failure: Some(failure),
        wrong: false,
        actions: Vec::new(),
    };
    match simulate(config, &SimulationParams { mode, period: None, seed }) {
        Err(error) => unended(error.to_string()),
        Ok(run) => {
            let actions = seconds(&run.actions());
            match &run.ended.outcome {
                Err(error) => RunTime { actions, ..unended(error.to_string()) },
                Ok(outcome) if outcome.checksum != run.answer => RunTime {
                    wrong: true,
                    actions,
                    ..unended(format!("the answer is {:016x}", outcome.checksum))
                },
                Ok(_) => RunTime {
                    seconds: run.wall.as_secs_f64(),
                    ended: true,
                    failure: None,
                    wrong: false,
                    actions,
                },
            }
        }
    }
}

/// Runs a scenario on its initial nodes, at most for its time limit and for `limit` seconds.
fn run_static(config: &ScenarioConfig, seed: u64, limit: Option<f64>) -> RunTime {
    let Some(limit) = limit else { return run_mode(config, seed, Mode::Static) };
    let mut limited = config.clone();
    let limit = Duration::from_secs_f64(limit).min(config.job.limit.get());
    limited.job.limit = Time::from(limit);
    run_mode(&limited, seed, Mode::Static)
}

/// Runs a draw: static, adaptive, and on the best fixed set.
///
/// # Panics
/// The text of the draw is not a scenario.
pub fn run(draw: NoHarmDraw) -> DrawTimes {
    let config = parse(&format!("seed {}", draw.seed), &draw.text);
    let config = config.unwrap_or_else(|error| panic!("{error}\n{}", draw.text));
    let fixed = run_static(&config, draw.seed, None);
    let adaptive = run_mode(&config, draw.seed, Mode::Adaptive);
    let best = best::search(&config, draw.seed, fixed.seconds);
    DrawTimes { draw, fixed, adaptive, best }
}

/// Runs the draws of each seed, several at a time; `tell` gets each as it is complete.
pub fn run_all(
    seeds: impl IntoIterator<Item = u64>,
    tell: impl Fn(&DrawTimes) + Sync,
) -> Vec<DrawTimes> {
    let seeds: Vec<u64> = seeds.into_iter().collect();
    crate::on_all_cores(&seeds, |seed| {
        let times = run(NoHarmDraw::of(*seed));
        tell(&times);
        times
    })
}
