//! What the developer of an SPMD program writes.
//!
//! Must not know how processes are found, nor how they agree.

use std::fmt::Debug;

use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};

use super::observe::{Hand, Need, Observation};
use crate::spmd::Comm;
use crate::work::{Outcome, Stop};

/// An SPMD program: all its processes take the same steps, each on its share of the state, and exchange messages within them.
/// Between two steps lies an adaptation point, where the state can be dealt out anew.
///
/// The contract: the outcome is the same whatever the number of processes was and whenever it changed. So sums of floats are taken
/// in an order that does not depend on the layout. After a loss all begin anew from the last saved state: [`start`](Program::start),
/// [`step`](Program::step) and [`finish`](Program::finish) may run again, also for steps that were done before and also in part, so
/// what they do beside the state (messages for whoever watches, files) is done again.
///
/// The whole state is collected on the root's node to be saved. One that is longer than [`SAVED_MAX`](super::SAVED_MAX) bytes
/// is not saved: it is said once, and after a loss
/// the program begins from its start.
pub trait Program: Clone + Serialize + DeserializeOwned + Send + 'static {
    /// Its processes' name in failures and logs, unique among the tasks of a program.
    const NAME: &'static str;

    /// The longest whole state that is saved, in bytes; for tests, to be less.
    #[doc(hidden)]
    const SAVED_MAX: usize = super::SAVED_MAX;

    /// What one process holds between two steps. That of a single process is the whole state, which is saved and restored.
    type State: Serialize + DeserializeOwned;

    /// Who holds what: enough for each process to know what all hold.
    type Layout: Clone + Debug + PartialEq + Serialize + DeserializeOwned;

    /// How many steps there are: the same whenever it is asked, on every node. A program that ends when it has converged takes the
    /// most that it may take, and does nothing in steps after that.
    fn steps(&self) -> u64;

    /// Whether the state is saved now and then, so that not all begins anew from the start after a loss. All processes wait while it is
    /// collected on the root's node.
    fn saves(&self) -> bool {
        true
    }

    /// The layout for these processes, in order of rank, at least one. `now` is the present one, under which they had the ranks
    /// of [`Hand::was`].
    ///
    /// Called on the root's thread alone; the others get what it returns. It must be right for as many ranks as there are hands,
    /// whatever `now` is, and for one hand of which nothing is known, without a present layout, it must always be the same:
    /// that is the layout of the whole state, by which it is saved and dealt out again. What is equal to the present layout
    /// counts as no change.
    fn layout(&self, hands: &[Hand], now: Option<&Self::Layout>) -> Self::Layout;

    /// The state of a process before the first step. Called by all at once.
    ///
    /// # Errors
    /// As of [`Comm`]'s calls, or the program's own, which fail the job.
    fn start(&self, layout: &Self::Layout, comm: &Comm<'_>) -> Result<Self::State, Stop>;

    /// Step number `step`, from 0: from one adaptation point to the next. Called by all at once.
    ///
    /// # Errors
    /// As [`Program::start`]. What the state is after an error does not matter.
    fn step(
        &self,
        state: &mut Self::State,
        step: u64,
        layout: &Self::Layout,
        comm: &Comm<'_>,
    ) -> Result<(), Stop>;

    /// What rank `to.1` of the layout `to.0` needs of the state that rank `from.1` of `from.0` has; empty if nothing. A piece for
    /// another node has [`MESSAGE_MAX`](crate::spmd::MESSAGE_MAX) bytes at most, or the job fails; one for a process of the same node,
    /// and so what a process keeps, may be longer.
    ///
    /// # Errors
    /// The program's own, which fail the job.
    fn give(
        &self,
        state: &Self::State,
        from: (&Self::Layout, u32),
        to: (&Self::Layout, u32),
    ) -> Result<Bytes, Stop>;

    /// The state of rank `to.1` of the layout `to.0`, from what all ranks of `from` [gave](Program::give) for it, in order.
    ///
    /// # Errors
    /// If the pieces do not make a state, which fails the job.
    fn take(
        &self,
        pieces: &[Bytes],
        from: &Self::Layout,
        to: (&Self::Layout, u32),
    ) -> Result<Self::State, Stop>;

    /// Called by all at once after the last step; the outcome of rank 0 is the job's.
    ///
    /// # Errors
    /// As [`Program::start`].
    fn finish(
        &self,
        state: Self::State,
        layout: &Self::Layout,
        comm: &Comm<'_>,
    ) -> Result<Outcome, Stop>;

    /// The decision procedure: a pure function of what is seen and of the present layout, if there is one. Called at adaptation
    /// points on the root's thread, when something has changed and, while processes tell of their paces, every few seconds. What it
    /// cannot have it does not get: the number of processes is held between 1 and what is available, and those on nodes that are to
    /// leave go whatever it says.
    fn decide(&self, seen: &Observation, layout: Option<&Self::Layout>) -> Strategy {
        let _ = layout;
        Strategy::Use { processes: seen.available, release: false }
    }
}

/// What a decision procedure wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// All stays as it is.
    Keep,
    /// So many processes compute.
    Use {
        /// How many.
        processes: u32,
        /// Nodes on which none of them runs are given back.
        release: bool,
    },
    /// The same processes compute, under a new layout.
    Rebalance,
    /// All stays as it is, and the program asks for more nodes. Those that come are seen as others are; what is refused is
    /// told by [`Observation::refused`]. Wanted again while it is [open](Observation::needed) nothing more is asked for;
    /// something else takes its place.
    Need(Need),
}
