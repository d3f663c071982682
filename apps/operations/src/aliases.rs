//! Clusters of one batch system that would promise the same processors: what the config alone does
//! not show.
//!
//! Two paths may be one file, and only a batch system knows its default queue.

use std::collections::BTreeMap;
use std::path::Path;

use springtide_actors::provider::{BatchCluster, BatchProvider};
use springtide_cli::exit::Failed;
use springtide_runtime::config::{
    ConfigError, ConfigProblem, GridConfig, Loaded, SharedQueue, ValueOrigin, describe_alias,
};
use springtide_runtime::id::ClusterId;

/// Refuses clusters that have the same processors. A batch system that does not answer is not
/// compared, with a note.
///
/// # Errors
/// All pairs of such clusters, with their places.
pub async fn check(config: &Loaded<GridConfig>) -> Result<(), Failed> {
    let grid = &config.value;
    let resolve = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let mut defaults: BTreeMap<usize, Option<String>> = BTreeMap::new();
    let mut problems = Vec::new();
    for alias in grid.cluster_aliases(&resolve) {
        if let SharedQueue::IfDefault { unnamed, queues } = &alias.queue {
            if !defaults.contains_key(unnamed) {
                defaults.insert(*unnamed, default_queue(grid, *unnamed).await);
            }
            let default = defaults.get(unnamed).and_then(Option::as_ref);
            if default.is_none_or(|default| !queues.contains(default)) {
                continue;
            }
        }
        let name = |cluster: usize| config.origin(&format!("cluster[{cluster}].name"));
        let place = match name(alias.first) {
            Some(ValueOrigin::File { line, .. }) => format!("on line {line}"),
            Some(origin) => format!("from {origin}"),
            None => "elsewhere".to_owned(),
        };
        let (queue, _) = grid.queue_key(alias.second);
        let given = |origin: &ValueOrigin| !matches!(origin, ValueOrigin::Default);
        let at = config.origin(&queue).filter(given).or_else(|| name(alias.second));
        let reason = describe_alias(grid, &alias, &place);
        let at = at.unwrap_or(ValueOrigin::Default);
        problems.push(ConfigProblem { at, reason, meant: None });
    }
    if problems.is_empty() { Ok(()) } else { Err(ConfigError::Problems(problems).into()) }
}

/// The default queue of a cluster's batch system, as far as that answers.
async fn default_queue(config: &GridConfig, index: usize) -> Option<String> {
    let cluster = &config.cluster[index];
    let section = cluster.batch_system()?;
    let batch = BatchCluster {
        grid: config.grid.as_str(),
        authority: "",
        name: &ClusterId::from(cluster.name.as_str()),
        nodes: cluster.nodes.get(),
        threads: config.threads_of(cluster),
    };
    let provider = BatchProvider::new(&batch, &section).ok()?;
    match provider.default_queue().await {
        Ok(queue) => queue,
        Err(error) => {
            eprintln!("the default queue of cluster {} is unknown: {error}", cluster.name);
            None
        }
    }
}
