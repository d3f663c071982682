//! The loops of the numerics, on the calling thread or on all threads of a node.

use std::ops::Range;

use springtide_runtime::work::{ParallelLoops, Sequential};

use crate::error::SimulationError;

/// The number of bodies of a loop's piece: some 10 us of the cheapest work on them.
pub(crate) const BODIES_PER_PIECE: usize = 4096;

/// Loops that a simulation may stop with its own errors.
pub trait Loops: ParallelLoops<Stop: From<SimulationError>> {}

impl<L> Loops for L
where
    L: ParallelLoops,
    L::Stop: From<SimulationError>,
{
}

/// Runs all loops on the calling thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct OneThread;

impl ParallelLoops for OneThread {
    type Stop = SimulationError;

    fn parallel_for(
        &self,
        range: Range<usize>,
        grain: usize,
        body: impl Fn(Range<usize>) + Sync,
    ) -> Result<(), SimulationError> {
        let Ok(()) = Sequential.parallel_for(range, grain, body);
        Ok(())
    }
}
