//! What a decision procedure sees.
//!
//! Data only; must not know how it was observed, nor what is made of it.

use std::time::Duration;

use crate::id::{ClusterId, NodeId};
use crate::spmd::Pace;

/// How a program stands at a point of its progress.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observation {
    /// Steps done.
    pub point: u64,
    /// Steps in all.
    pub steps: u64,
    /// Processes that compute; 0 before the start, and when nodes were lost.
    pub processes: u32,
    /// Processes that could: those, without the ones whose nodes are to leave, and those that wait to be recruited. At least 1.
    pub available: u32,
    /// Processes that compute on nodes that are to leave.
    pub leaving: u32,
    /// How fast each goes, by rank; absent before it has told.
    pub paces: Vec<Option<Pace>>,
    /// All processes that are there, and where: those that compute in order of rank, then those that wait to be recruited.
    pub places: Vec<Place>,
    /// What the program asked for last, as long as it has neither come nor been refused.
    pub needed: Option<Need>,
    /// What the program asked for last, if it does not get it, until it asks again.
    pub refused: Option<Refusal>,
}

impl Observation {
    /// How many times as long as all on average the slowest process takes for a step; absent before all that compute have told.
    pub fn unevenness(&self) -> Option<f64> {
        let times: Vec<f64> =
            self.paces.iter().map(|pace| Some(pace.as_ref()?.step_s)).collect::<Option<_>>()?;
        let mean = times.iter().sum::<f64>() / times.len() as f64;
        let slowest = times.iter().copied().fold(0.0, f64::max);
        (mean > 0.0).then(|| slowest / mean)
    }
}

/// A process that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its rank, if it computes.
    pub rank: Option<u32>,
    /// The cluster of its node.
    pub cluster: ClusterId,
    /// Its node.
    pub node: NodeId,
    /// Its node is to leave.
    pub leaving: bool,
}

/// More nodes that a program asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// How many more.
    pub more: u32,
    /// None: it would be faster with them, and gets them when they are free. Else it cannot go on without them: others are made
    /// smaller for it, or it is refused, within this time. See
    /// [`Context::need_nodes`](crate::work::Context::need_nodes).
    pub within: Option<Duration>,
}

/// What a program asked for and does not get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What it was.
    pub need: Need,
    /// Why not.
    pub why: String,
}

/// A process that is to take part, as a layout is made for it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Hand {
    /// Its rank until now, if it computes already.
    pub was: Option<u32>,
    /// How fast it went.
    pub pace: Option<Pace>,
    /// Its cluster and node; none for the one process under which a state is whole, which is saved.
    pub at: Option<(ClusterId, NodeId)>,
}
