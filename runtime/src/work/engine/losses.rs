//! What nodes had of this one when they were lost: kept until whoever counts it asks.
//!
//! Must not know what it is counted for, nor how a node was lost.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::id::{Incarnation, NodeId, Peer, TaskPath};
use crate::work::recover::Identity;

/// At most so many tasks are kept, and told in one message; what is beyond is not told.
pub const LOSSES_MAX: usize = 1000;

/// A task that a lost node had.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HeldTask {
    /// Where in the tree.
    pub path: TaskPath,
    /// Its name as registered.
    pub name: String,
}

/// What one life of a node had of this node when it was lost: whether a task had begun there only that life knew.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    /// Who.
    pub node: NodeId,
    /// Which life of it.
    pub incarnation: Incarnation,
    /// The outermost of its tasks, in order of their paths.
    pub tasks: Vec<HeldTask>,
}

/// Losses that nobody has asked for yet.
#[derive(Debug, Default)]
pub(super) struct Losses {
    untold: Vec<Loss>,
}

impl Losses {
    /// Takes in what was taken back, and from whom.
    pub(super) fn note(&mut self, reclaimed: Vec<(Peer, Identity)>) {
        let mut lives: BTreeMap<(NodeId, Incarnation), Vec<HeldTask>> = BTreeMap::new();
        for (Peer { node, incarnation, .. }, Identity { path, name, .. }) in reclaimed {
            lives.entry((node, incarnation)).or_default().push(HeldTask { path, name });
        }
        for ((node, incarnation), mut tasks) in lives {
            // A path is less than all below it, so the outermost comes first.
            tasks.sort();
            let mut outer: Vec<HeldTask> = Vec::new();
            for task in tasks {
                if outer.last().is_none_or(|last| !task.path.is_at_or_below(&last.path)) {
                    outer.push(task);
                }
            }
            let known: usize = self.untold.iter().map(|loss| loss.tasks.len()).sum();
            outer.truncate(LOSSES_MAX.saturating_sub(known));
            if !outer.is_empty() {
                self.untold.push(Loss { node, incarnation, tasks: outer });
            }
        }
    }

    pub(super) fn take(&mut self) -> Vec<Loss> {
        std::mem::take(&mut self.untold)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::recover::Start;

    fn reclaimed(node: &str, paths: &[&[u32]]) -> Vec<(Peer, Identity)> {
        let of = |path: &&[u32]| {
            let peer =
                Peer { node: node.into(), incarnation: Incarnation(1), cluster: "ams".into() };
            (peer, Identity::trusted(TaskPath(path.to_vec()), "task".into(), Start::default()))
        };
        paths.iter().map(of).collect()
    }

    #[test]
    fn of_the_tasks_on_one_path_only_the_outermost_is_told_and_once() {
        let mut losses = Losses::default();
        let mut both = reclaimed("ams-2", &[&[1, 0, 2], &[0, 1], &[1, 0], &[1, 0, 2, 3], &[10]]);
        both.extend(reclaimed("ams-1", &[&[1]]));
        losses.note(both);
        let told: Vec<_> = losses
            .take()
            .into_iter()
            .map(|loss| {
                let paths = loss.tasks.iter().map(|task| task.path.to_string());
                (loss.node.to_string(), paths.collect::<Vec<_>>().join(" "))
            })
            .collect();
        let expected = [("ams-1", "/1"), ("ams-2", "/0.1 /1.0 /10")];
        assert_eq!(told, expected.map(|(node, paths)| (node.to_owned(), paths.to_owned())));
        assert_eq!(losses.take(), []);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut losses = Losses::default();
        for node in ["ams-1", "ams-2", "ams-3"] {
            let paths: Vec<[u32; 1]> = (0..700).map(|n| [n]).collect();
            let paths: Vec<&[u32]> = paths.iter().map(|path| &path[..]).collect();
            losses.note(reclaimed(node, &paths));
        }
        let told: Vec<usize> = losses.take().iter().map(|loss| loss.tasks.len()).collect();
        assert_eq!(told, [700, 300]);
    }
}
