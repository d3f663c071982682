//! A program as a job: what the two have in common is written here once.
//!
//! Must not know how a program is run, nor who offers nodes or takes them.

use super::program::Program;
use super::register;
use super::root::{resume, run};
use crate::work::{Checkpoint, Context, InputError, Job, Outcome, Registry, Sizes, Stop};

/// An SPMD program that is a job of its own: every one is a [`Job`], registered by
/// [`Registry::job`](crate::work::Registry::job).
///
/// A job that only contains a program, among other things that it does, implements [`Job`] itself, by
/// [`register`], [`run`] and [`resume`].
pub trait Malleable: Program {
    /// The job's name on the command line: [`Job::NAME`]. ([`Program::NAME`] is that of its processes.)
    const JOB: &'static str;
    /// One line for the list of jobs: [`Job::ABOUT`].
    const ABOUT: &'static str;
    /// Whether it has something to say of its number of nodes: [`Job::NEGOTIATES`]. To be set where one of the three methods
    /// that follow is written.
    const NEGOTIATES: bool = false;

    /// How many processes it could make use of, of so many: no more than those, and no fewer for more of them. A decision procedure
    /// that answers the same makes no use of more, so by this what is offered and asked for is judged.
    fn usable(&self, processes: u32) -> u32 {
        processes
    }

    /// How many of the nodes that are offered it takes: [`Job::accept_growth`]. By default the fewest with which there are as many
    /// [usable](Malleable::usable) processes as with all.
    fn accept_growth(&self, current: Sizes, offered: Sizes) -> u32 {
        let all = self.usable(current.threads.saturating_add(offered.threads));
        if all <= self.usable(current.threads) {
            return 0;
        }
        offered.nodes_for(all.saturating_sub(current.threads))
    }

    /// How many nodes it gives up when so many are asked for: [`Job::accept_shrink`]. By default all but the fewest with which there
    /// are as many [usable](Malleable::usable) processes as without what is asked for, and no fewer than are asked for; one stays in
    /// any case.
    fn accept_shrink(&self, current: Sizes, asked: Sizes) -> u32 {
        let kept = self.usable(current.threads.saturating_sub(asked.threads));
        let spare = current.nodes.saturating_sub(current.nodes_for(kept.max(1)));
        // With nodes of several sizes that is for nodes as large as they are on average, and may be fewer than are asked for.
        spare.max(asked.nodes).min(current.nodes.saturating_sub(1))
    }

    /// Checks options on the submitting side: [`Job::prepare`].
    ///
    /// # Errors
    /// As there.
    fn prepare(&mut self) -> Result<(), InputError> {
        Ok(())
    }

    /// A small problem of the same kind: [`Job::benchmark`].
    fn benchmark(&self) -> Option<Self> {
        None
    }
}

impl<M: Malleable> Job for M {
    const NAME: &'static str = M::JOB;
    const ABOUT: &'static str = M::ABOUT;
    const NEGOTIATES: bool = M::NEGOTIATES;

    fn register(registry: &mut Registry) {
        register::<M>(registry);
    }

    fn prepare(&mut self) -> Result<(), InputError> {
        Malleable::prepare(self)
    }

    fn accept_growth(&self, current: Sizes, offered: Sizes) -> u32 {
        Malleable::accept_growth(self, current, offered)
    }

    fn accept_shrink(&self, current: Sizes, asked: Sizes) -> u32 {
        Malleable::accept_shrink(self, current, asked)
    }

    fn benchmark(&self) -> Option<Self> {
        Malleable::benchmark(self)
    }

    fn run(self, cx: &Context) -> Result<Outcome, Stop> {
        run(self, cx)
    }

    fn resume(self, state: Checkpoint, cx: &Context) -> Result<Outcome, Stop> {
        resume(self, state, cx)
    }
}
