//! The implementation of [`Job`] for malleable programs.
//!
//! This module knows neither how a program is run nor the negotiation of nodes.

use super::program::Program;
use super::register;
use super::root::{resume, run};
use crate::processors::Processors;
use crate::work::{Checkpoint, Context, InputError, Job, Outcome, Registry, Stop};

/// An SPMD program that is a job of its own. Register it by
/// [`Registry::job`](crate::work::Registry::job).
///
/// A job that contains a program among other things implements [`Job`] itself, by [`register`],
/// [`run`] and [`resume`].
pub trait Malleable: Program {
    /// The job's name on the command line, as [`Job::NAME`]. ([`Program::NAME`] is that of its
    /// processes.)
    const JOB: &'static str;
    /// One line for the list of jobs, as [`Job::ABOUT`].
    const ABOUT: &'static str;
    /// Whether the job negotiates its number of nodes, as [`Job::NEGOTIATES`]. Set it when
    /// implementing one of the next three methods.
    const NEGOTIATES: bool = false;

    /// The number of processes that it could use, out of this many. Offers and requests are judged
    /// by it.
    ///
    /// It must not exceed `processes` nor decrease with it. The decision procedure should agree
    /// with it.
    fn usable(&self, processes: u32) -> u32 {
        processes
    }

    /// The number of offered processors that it accepts, as [`Job::accept_growth`].
    ///
    /// By default the fewest that give as many [usable](Malleable::usable) processes as all.
    fn accept_growth(&self, current: Processors, offered: Processors) -> Processors {
        let all = self.usable(current.saturating_add(offered).get());
        if all <= self.usable(current.get()) {
            return Processors::ZERO;
        }
        Processors(all).saturating_sub(current).min(offered)
    }

    /// The number of processors that it gives up when asked for some, as [`Job::accept_shrink`].
    ///
    /// By default at least those asked for, and further ones that are not
    /// [usable](Malleable::usable) then. One always remains.
    fn accept_shrink(&self, current: Processors, asked: Processors) -> Processors {
        let kept = self.usable(current.saturating_sub(asked).get());
        let spare = current.saturating_sub(Processors(kept.max(1)));
        spare.max(asked).min(current.saturating_sub(Processors::ONE))
    }

    /// Checks options on the submitting side, as [`Job::prepare`].
    ///
    /// # Errors
    /// As for [`Job::prepare`].
    fn prepare(&mut self) -> Result<(), InputError> {
        Ok(())
    }

    /// A small problem of the same kind, as [`Job::benchmark`].
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

    fn accept_growth(&self, current: Processors, offered: Processors) -> Processors {
        Malleable::accept_growth(self, current, offered)
    }

    fn accept_shrink(&self, current: Processors, asked: Processors) -> Processors {
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
