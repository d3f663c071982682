//! The way of what runners print, log and report to the client of their job.
//!
//! The root creates a group without processes, and nodes send reports to it as lines of output.
//! They have no acknowledgement: a lost report is in the log of its node. This module does not know
//! what tasks compute.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::message::RunnerReport;
use super::root::RunnerSpec;
use crate::id::NodeId;
use crate::spmd::group::ProcessReport;
use crate::spmd::message::{GroupId, ProcessMessage};
use crate::spmd::post::Dispatcher;
use crate::work::Context;

/// The sender of reports that belong to no process of the group.
const NO_PROCESS: u32 = u32::MAX;

/// What nodes must know to run tasks of a job of runners.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct RunnerSetup {
    pub(super) spec: RunnerSpec,
    /// The group that receives the reports of tasks.
    pub(super) group: GroupId,
}

/// Sends reports of this node's runners to the root.
#[derive(Clone)]
pub(super) struct ReportSink {
    post: Arc<Dispatcher>,
    group: GroupId,
}

impl ReportSink {
    pub(super) fn new(post: Arc<Dispatcher>, group: GroupId) -> Self {
        Self { post, group }
    }

    /// The node of the reports.
    pub(super) fn node(&self) -> NodeId {
        self.post.me().node.clone()
    }

    /// Sends a report, from any thread. Drops it while too much waits for the network.
    pub(super) fn send(&self, report: &RunnerReport) {
        if !self.post.has_room() {
            return;
        }
        // A report of text and numbers encodes.
        let Ok(text) = serde_json::to_string(report) else { return };
        let say = ProcessMessage::Say { text, process: NO_PROCESS, number: 0 };
        self.post.send(&self.group.root, &self.group, 0, say);
    }
}

/// The reports that have reached the root.
pub(super) struct ReportInbox {
    post: Arc<Dispatcher>,
    pub(super) group: GroupId,
}

impl ReportInbox {
    /// Creates the inbox of the root on this thread, which a report wakes.
    pub(super) fn new(post: Arc<Dispatcher>, cx: &Context) -> Self {
        let group = post.create_group(cx.waker());
        Self { post, group }
    }

    /// Whether there is a report.
    pub(super) fn has_reports(&self) -> bool {
        self.post.read_group(&self.group, |group| group.has_reports()).unwrap_or_default()
    }

    /// Takes the reports since the last call.
    pub(super) fn take(&self) -> Vec<RunnerReport> {
        let taken = self.post.group(&self.group, |group| (group.take_reports(), Vec::new()));
        let node = || self.post.me().node.clone();
        let report = |report| match report {
            ProcessReport::Say(text) => serde_json::from_str(&text)
                // The group itself says when it drops lines.
                .unwrap_or_else(|_| RunnerReport::Output { node: node(), text }),
            ProcessReport::Artifact(text, _) => RunnerReport::Output { node: node(), text },
        };
        taken.unwrap_or_default().into_iter().map(report).collect()
    }
}

impl Drop for ReportInbox {
    fn drop(&mut self) {
        self.post.unregister(&self.group, 0);
    }
}
