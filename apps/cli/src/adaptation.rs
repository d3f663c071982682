//! Checks of the adaptation parameters of jobs.

use springtide_actors::job::JobParams;
use springtide_actors::policy::JobBounds;
use springtide_runtime::processors::Processors;

use crate::exit::Failed;

/// Checks that a job's adaptation parameters are consistent, on clusters with these numbers of
/// processors.
///
/// # Errors
/// All contradictions together.
pub fn check_settings(
    params: &JobParams,
    clusters: impl Iterator<Item = Processors>,
) -> Result<(), Failed> {
    refuse(&contradictions(params, clusters.sum()))
}

/// The contradictions among a job's adaptation parameters, on this number of processors.
pub fn contradictions(params: &JobParams, existing: Processors) -> Vec<String> {
    let frame = JobBounds {
        min_processors: params.min_processors,
        max_processors: params.max_processors,
        existing_processors: Some(existing),
        // Only the job knows it; its coordinator checks it.
        benchmark_s: None,
    };
    match params.settings.validate(&frame) {
        Ok(()) => Vec::new(),
        Err(found) => found.0.iter().map(ToString::to_string).collect(),
    }
}

/// Fails if there are contradictions.
///
/// # Errors
/// All contradictions together.
pub fn refuse(wrong: &[String]) -> Result<(), Failed> {
    if wrong.is_empty() {
        return Ok(());
    }
    let wrong = wrong.join("\n  ");
    Err(Failed::usage(format!(
        "the parameters of adaptation are wrong (`config show --origin` shows those of the \
        config):\n  {wrong}"
    )))
}
