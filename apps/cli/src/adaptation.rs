//! Checks of the adaptation parameters of jobs.

use springtide_actors::job::JobParams;
use springtide_actors::policy::JobBounds;

use crate::exit::Failed;

/// Checks that a job's adaptation parameters are consistent, on clusters with these numbers of
/// nodes.
///
/// # Errors
/// All contradictions together.
pub fn check_settings(
    params: &JobParams,
    clusters: impl Iterator<Item = u32>,
) -> Result<(), Failed> {
    refuse(&contradictions(params, clusters.fold(0, u32::saturating_add)))
}

/// The contradictions among a job's adaptation parameters, on this number of nodes.
pub fn contradictions(params: &JobParams, existing: u32) -> Vec<String> {
    let frame = JobBounds {
        min_nodes: params.min_nodes,
        max_nodes: params.max_nodes,
        existing_nodes: Some(existing),
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
