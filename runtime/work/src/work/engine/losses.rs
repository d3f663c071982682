//! Tasks that lost nodes had from this one, kept until the coordinator asks for them.
//!
//! This module knows neither the purpose of the count nor how a node was lost.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::id::{Incarnation, NodeId, Peer, TaskPath};
use crate::work::recover::TaskIdentity;

/// The maximum number of tasks that are kept and reported in one message; others are dropped.
pub const LOSSES_MAX: usize = 1000;

/// A task that a lost node had leased.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LeasedTask {
    /// The path of the task.
    pub path: TaskPath,
    /// The task's registered name.
    pub name: String,
}

/// The tasks that one incarnation of a node had from this node when it was lost. Only that
/// incarnation knew whether they had started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeLosses {
    /// The name of the lost node.
    pub node: NodeId,
    /// The lost incarnation of the node.
    pub incarnation: Incarnation,
    /// The outermost of its tasks, in order of their paths.
    pub tasks: Vec<LeasedTask>,
}

/// Losses that are not reported yet.
#[derive(Debug, Default)]
pub(super) struct Losses {
    unreported: Vec<NodeLosses>,
}

impl Losses {
    /// Adds reclaimed tasks with their lost holders.
    pub(super) fn record(&mut self, reclaimed: Vec<(Peer, TaskIdentity)>) {
        let mut by_incarnation: BTreeMap<(NodeId, Incarnation), Vec<LeasedTask>> = BTreeMap::new();
        for (Peer { node, incarnation, .. }, TaskIdentity { path, name, .. }) in reclaimed {
            by_incarnation.entry((node, incarnation)).or_default().push(LeasedTask { path, name });
        }
        for ((node, incarnation), mut tasks) in by_incarnation {
            // A path is less than those of its descendants, so the outermost comes first.
            tasks.sort();
            let mut outer: Vec<LeasedTask> = Vec::new();
            for task in tasks {
                if outer.last().is_none_or(|last| !task.path.is_at_or_below(&last.path)) {
                    outer.push(task);
                }
            }
            let known: usize = self.unreported.iter().map(|loss| loss.tasks.len()).sum();
            outer.truncate(LOSSES_MAX.saturating_sub(known));
            if !outer.is_empty() {
                self.unreported.push(NodeLosses { node, incarnation, tasks: outer });
            }
        }
    }

    pub(super) fn take(&mut self) -> Vec<NodeLosses> {
        std::mem::take(&mut self.unreported)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::recover::RootStart;

    fn reclaimed(node: &str, paths: &[&[u32]]) -> Vec<(Peer, TaskIdentity)> {
        let of = |path: &&[u32]| {
            let peer =
                Peer { node: node.into(), incarnation: Incarnation(1), cluster: "ams".into() };
            (
                peer,
                TaskIdentity::trusted(TaskPath(path.to_vec()), "task".into(), RootStart::default()),
            )
        };
        paths.iter().map(of).collect()
    }

    #[test]
    fn only_the_outermost_task_of_a_path_is_reported_once() {
        let mut losses = Losses::default();
        let mut both = reclaimed("ams-2", &[&[1, 0, 2], &[0, 1], &[1, 0], &[1, 0, 2, 3], &[10]]);
        both.extend(reclaimed("ams-1", &[&[1]]));
        losses.record(both);
        let reported: Vec<_> = losses
            .take()
            .into_iter()
            .map(|loss| {
                let paths = loss.tasks.iter().map(|task| task.path.to_string());
                (loss.node.to_string(), paths.collect::<Vec<_>>().join(" "))
            })
            .collect();
        let expected = [("ams-1", "/1"), ("ams-2", "/0.1 /1.0 /10")];
        assert_eq!(reported, expected.map(|(node, paths)| (node.to_owned(), paths.to_owned())));
        assert_eq!(losses.take(), []);
    }

    #[test]
    fn the_number_of_kept_tasks_is_bounded() {
        let mut losses = Losses::default();
        for node in ["ams-1", "ams-2", "ams-3"] {
            let paths: Vec<[u32; 1]> = (0..700).map(|n| [n]).collect();
            let paths: Vec<&[u32]> = paths.iter().map(|path| &path[..]).collect();
            losses.record(reclaimed(node, &paths));
        }
        let reported: Vec<usize> = losses.take().iter().map(|loss| loss.tasks.len()).collect();
        assert_eq!(reported, [700, 300]);
    }
}
