//! The input of a decision procedure.
//!
//! Data only, independent of how it was observed and of the decision.

use std::time::Duration;

use crate::id::{ClusterId, NodeId};
use crate::spmd::StepRate;

/// The state of a program at a point of its progress.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observation {
    /// The number of completed steps.
    pub point: u64,
    /// The total number of steps.
    pub steps: u64,
    /// The number of computing processes; 0 before the start and after a loss of nodes.
    pub processes: u32,
    /// The number of processes that may compute, at least 1: those that do, except on leaving
    /// nodes, and those that wait to be recruited.
    pub available: u32,
    /// The number of computing processes on leaving nodes.
    pub leaving: u32,
    /// The speed of each process, by rank; none before its first report.
    pub paces: Vec<Option<StepRate>>,
    /// All present processes and their nodes: computing ones by rank, then those that wait to be
    /// recruited.
    pub places: Vec<MemberProcess>,
    /// The open request for nodes: neither fulfilled nor refused.
    pub needed: Option<Need>,
    /// The refusal of the last request, until the next request.
    pub refused: Option<RequestRefusal>,
}

impl Observation {
    /// The step time of the slowest process divided by the mean; none before all have reported.
    pub fn unevenness(&self) -> Option<f64> {
        let times: Vec<f64> =
            self.paces.iter().map(|pace| Some(pace.as_ref()?.step_s)).collect::<Option<_>>()?;
        let mean = times.iter().sum::<f64>() / times.len() as f64;
        let slowest = times.iter().copied().fold(0.0, f64::max);
        (mean > 0.0).then(|| slowest / mean)
    }
}

/// A process that is present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberProcess {
    /// The rank, if the process computes.
    pub rank: Option<u32>,
    /// The cluster of the process's node.
    pub cluster: ClusterId,
    /// The node of the process.
    pub node: NodeId,
    /// Whether the node is leaving.
    pub leaving: bool,
}

/// A request for more nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// The number of additional nodes.
    pub more: u32,
    /// The time limit of a request without which the program cannot continue.
    ///
    /// Other jobs shrink for it, or it is refused, within this time. None: the program would be
    /// faster, and gets the nodes once they are free. See
    /// [`Context::need_nodes`](crate::work::Context::need_nodes).
    pub within: Option<Duration>,
}

/// A refused request for nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestRefusal {
    /// The request that was refused.
    pub need: Need,
    /// The reason of the refusal.
    pub why: String,
}

/// A process that a layout is made for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProcessInfo {
    /// The present rank, if the process computes.
    pub previous_rank: Option<u32>,
    /// The measured speed of the process.
    pub pace: Option<StepRate>,
    /// The number of compute threads that the process uses; 0 if it is unknown.
    pub threads: u32,
    /// The cluster and node of the process. None for the single process of the layout in which a
    /// state is saved.
    pub location: Option<(ClusterId, NodeId)>,
}
