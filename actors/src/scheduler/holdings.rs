//! Records which job holds which nodes: the orders that the scheduler sends, and the messages by
//! which nodes are free again.
//!
//! A judge of the log can therefore find an error of the core. This module must not decide
//! anything.

use std::collections::{BTreeMap, BTreeSet};

use springtide_runtime::event::Event as GridEvent;
use springtide_runtime::id::{Epoch, JobId, NodeId};

use super::core::{HoldingChange, SchedulerAction, SchedulerEvent};
use super::{NodeFreed, ReleaseReason, Scheduler};

impl Scheduler {
    /// Records the nodes that a message to the core reports as free.
    pub(super) fn record_freed(&self, event: &SchedulerEvent) {
        let (job, nodes, why) = match event {
            SchedulerEvent::Released { job, node, ok, .. } => {
                let why = if *ok { "it released the job" } else { "it restarts" };
                (*job, vec![node.clone()], why)
            }
            SchedulerEvent::Freed(NodeFreed {
                job, epoch, node, why: ReleaseReason::Left, ..
            }) if self.core.check(*job, *epoch).is_ok() => {
                (*job, vec![node.clone()], "it left the job")
            }
            SchedulerEvent::JobOver { job, ended, .. } => {
                let ended = ended.iter().flatten().cloned().collect();
                (*job, ended, "the job is over")
            }
            _ => return,
        };
        let why = why.to_owned();
        self.recorder.record(GridEvent::NodesFreed { job: Some(job), nodes, why });
    }

    /// Records the nodes that jobs lose and resume in the core, and those that the actions grant.
    pub(super) fn record_granted<'a>(
        &mut self,
        actions: impl Iterator<Item = &'a SchedulerAction>,
    ) {
        for change in self.core.take_holding_changes() {
            self.recorder.record(match change {
                HoldingChange::Lost { job, node, reason } => {
                    let (job, nodes) = (Some(job), vec![node]);
                    GridEvent::NodesFreed { job, nodes, why: reason }
                }
                HoldingChange::Resumed { job, epoch, nodes } => {
                    GridEvent::NodesGranted { job, epoch, nodes, resumed: true }
                }
            });
        }
        let mut granted: BTreeMap<(JobId, Epoch), BTreeSet<NodeId>> = BTreeMap::new();
        for action in actions {
            match action {
                SchedulerAction::Assign { node, assign } => {
                    let key = (assign.spec.id, assign.spec.epoch);
                    granted.entry(key).or_default().insert(node.clone());
                }
                SchedulerAction::GrantNodes { job, nodes, .. } => {
                    let nodes = nodes.iter().map(|granted| granted.node.clone());
                    granted.entry((*job, self.core.epoch_of(*job))).or_default().extend(nodes);
                }
                _ => {}
            }
        }
        for ((job, epoch), nodes) in granted {
            let nodes = nodes.into_iter().collect();
            self.recorder.record(GridEvent::NodesGranted { job, epoch, nodes, resumed: false });
        }
    }
}
