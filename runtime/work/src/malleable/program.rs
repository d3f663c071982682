//! The interface of a malleable SPMD program.
//!
//! This module knows neither how processes are found nor how they agree.

use std::fmt::Debug;

use bytes::Bytes;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::observe::{Need, Observation, ProcessInfo};
use crate::spmd::Comm;
use crate::work::{Outcome, Stop};

/// An SPMD program: all processes take the same steps, each on its part of the state.
///
/// They exchange messages within a step. Between two steps lies an adaptation point, where the
/// runtime may redistribute the state.
///
/// The contract: the outcome depends neither on the number of processes nor on its changes. So sums
/// of floats are taken in an order that is independent of the layout. After a loss all processes
/// restart from the last saved state. [`start`](Program::start), [`step`](Program::step) and
/// [`finish`](Program::finish) may then run again, in full or in part. Side effects, such as lines
/// of output and files, are then repeated.
///
/// The whole state is collected on the root's node to be saved. A state longer than
/// [`SAVED_MAX`](super::SAVED_MAX) bytes is not saved: a line of output says so once, and after a
/// loss the program restarts from its beginning.
pub trait Program: Clone + Serialize + DeserializeOwned + Send + 'static {
    /// The name of the processes in failures and logs, unique among the tasks of a program.
    const NAME: &'static str;

    /// The longest whole state that is saved, in bytes. Tests set a smaller one.
    #[doc(hidden)]
    const SAVED_MAX: usize = super::SAVED_MAX;

    /// The state of one process between two steps. That of a single process is the whole state,
    /// which is saved and restored.
    type State: Serialize + DeserializeOwned;

    /// The distribution of the state: each process receives it, and so knows what all hold.
    type Layout: Clone + Debug + PartialEq + Serialize + DeserializeOwned;

    /// The number of steps, the same at each call and on each node.
    ///
    /// A program that ends on convergence returns its maximum, and does nothing in further steps.
    fn steps(&self) -> u64;

    /// Where the processes of the program run.
    fn placement(&self) -> Placement {
        Placement::EachThread
    }

    /// Whether the state is saved periodically, so that a loss does not restart the program from
    /// its beginning. All processes wait while the root's node collects it.
    fn is_checkpointed(&self) -> bool {
        true
    }

    /// The layout for these processes, in order of rank.
    ///
    /// `now` is the present layout, under which they had the ranks of
    /// [`ProcessInfo::previous_rank`]. Called only on the root's thread, and sent to the others. It
    /// must be valid for the number of hands, at least one, and for any `now`. For one unknown hand
    /// without a present layout it must always be the same: the layout of the whole state, used to
    /// save and redistribute it. A layout equal to `now` is not a change.
    fn layout(&self, hands: &[ProcessInfo], now: Option<&Self::Layout>) -> Self::Layout;

    /// The state of a process before the first step. All processes call it.
    ///
    /// # Errors
    /// Those of [`Comm`], or the program's own, which fail the job.
    fn start(&self, layout: &Self::Layout, comm: &Comm<'_>) -> Result<Self::State, Stop>;

    /// Executes step `step`, counted from 0, up to the next adaptation point. All processes call
    /// it.
    ///
    /// # Errors
    /// As for [`Program::start`]. The state after an error does not matter.
    fn step(
        &self,
        state: &mut Self::State,
        step: u64,
        layout: &Self::Layout,
        comm: &Comm<'_>,
    ) -> Result<(), Stop>;

    /// The piece of the state of rank `from.1` in layout `from.0` that rank `to.1` of layout `to.0`
    /// needs.
    ///
    /// Empty if it needs nothing. A piece for another node has at most
    /// [`MESSAGE_MAX`](crate::spmd::MESSAGE_MAX) bytes, or the job fails. Pieces within a node may
    /// be longer.
    ///
    /// # Errors
    /// The program's own, which fail the job.
    fn split_state(
        &self,
        state: &Self::State,
        from: (&Self::Layout, u32),
        to: (&Self::Layout, u32),
    ) -> Result<Bytes, Stop>;

    /// The state of rank `to.1` in layout `to.0`, from the [pieces](Program::split_state) of all
    /// ranks of `from`, in order.
    ///
    /// # Errors
    /// The pieces do not form a state, which fails the job.
    fn join_state(
        &self,
        pieces: &[Bytes],
        from: &Self::Layout,
        to: (&Self::Layout, u32),
    ) -> Result<Self::State, Stop>;

    /// Ends the program after the last step. All processes call it, and rank 0 returns the job's
    /// outcome.
    ///
    /// # Errors
    /// As for [`Program::start`].
    fn finish(
        &self,
        state: Self::State,
        layout: &Self::Layout,
        comm: &Comm<'_>,
    ) -> Result<Outcome, Stop>;

    /// The decision procedure: a pure function of an observation and the present layout, if any.
    ///
    /// Called at adaptation points on the root's thread, after changes, and every few seconds while
    /// the processes report their speeds. The runtime bounds the number of processes by 1 and what
    /// is available, and always removes those on leaving nodes.
    fn decide(&self, observation: &Observation, layout: Option<&Self::Layout>) -> Strategy {
        let _ = layout;
        Strategy::Use { processes: observation.available, release: false }
    }
}

/// Where the processes of a program run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Placement {
    /// One process on each compute thread.
    EachThread,
    /// One process on each node. It shares its work among the node's threads by the
    /// [loops](springtide_forkjoin::ParallelLoops) of [`Comm`].
    EachNode,
}

/// The result of a decision procedure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// Keep processes and layout.
    Keep,
    /// Compute with this number of processes.
    Use {
        /// The number of processes.
        processes: u32,
        /// Whether nodes without any of them are released.
        release: bool,
    },
    /// Keep the processes, and make a new layout.
    Rebalance,
    /// Keep processes and layout, and request more nodes.
    ///
    /// The next observations show nodes that come, and a refusal is in [`Observation::refused`].
    /// Repeating a request that is [open](Observation::needed) has no effect; another request
    /// replaces it.
    Need(Need),
}
