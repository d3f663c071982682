//! Energies and momenta of all bodies, for the run's output.

use std::ops::Range;

use springtide_runtime::spmd::Comm;
use springtide_runtime::wire;
use springtide_runtime::work::{ParallelLoops, Stop};

use super::layout::Layout;
use super::state::{State, Summed};
use super::{Domains, REPORT_SUMS, StepContext};
use crate::bodies::{length, turning_of};
use crate::exact::ExactSum;
use crate::output::{due, line};
use crate::simulate::{InitialQuantities, StepReport};

/// The number of sums of a report: twice the energies, momentum, angular momentum and its
/// magnitudes.
const SUMMED: usize = 9;

/// Blocks of a piece of the loop over all blocks.
const BLOCKS_PER_PIECE: usize = 16;

impl Domains {
    /// Sends the sums of this step to rank 0, which reports them after the next forces, when they
    /// have arrived. Sums are taken block by block, and of blocks exactly, so they are the same for
    /// any distribution. Called by all at once.
    pub(super) fn report(
        &self,
        state: &mut State,
        potential: &[f64],
        at: &StepContext<'_, '_>,
    ) -> Result<(), Stop> {
        let StepContext { step, layout, comm, .. } = *at;
        self.conclude(state, layout, comm)?;
        let job = &self.job;
        if ![0, job.steps].contains(&step) && !due(job.report_every, step) {
            return Ok(());
        }
        let domain = &state.domain;
        let of_block = |bodies: Range<usize>| {
            let mut sum = [0.0; SUMMED];
            for i in bodies {
                let (mass, v) = (domain.mass[i], domain.velocity[i]);
                sum[0] += mass * (v[0] * v[0] + v[1] * v[1] + v[2] * v[2]);
                sum[1] += mass * potential[i];
                let turning = turning_of(mass, &domain.position[i], &v);
                for axis in 0..3 {
                    sum[2 + axis] += mass * v[axis];
                    sum[5 + axis] += turning[axis];
                }
                sum[8] += length(turning);
            }
            sum
        };
        let blocks = state.blocks(at.slot);
        let blocks = at.clock.parallel_map(0..blocks.len(), BLOCKS_PER_PIECE, |piece| {
            blocks[piece].iter().cloned().map(of_block).collect::<Vec<_>>()
        })?;
        let blocks = blocks.concat();
        let of_all = |i: usize| {
            let mut sum = ExactSum::default();
            sum.extend(blocks.iter().map(|of_block| of_block[i]));
            sum.carried()
        };
        let sums: Vec<ExactSum> = (0..SUMMED).map(of_all).collect();
        if comm.rank() != 0 {
            comm.send(0, REPORT_SUMS, wire::encode_payload(&sums)?)?;
        }
        state.summed = Some(Summed { step, sums, is_all: false });
        Ok(())
    }

    /// Ends the report that is still open. Called by all at once.
    pub(super) fn conclude(
        &self,
        state: &mut State,
        layout: &Layout,
        comm: &Comm<'_>,
    ) -> Result<(), Stop> {
        let job = &self.job;
        let summed = state.summed.take().filter(|_| comm.rank() == 0);
        let Some(Summed { step, mut sums, is_all }) = summed else { return Ok(()) };
        for &rank in layout.ranks().iter().filter(|&&rank| rank != 0 && !is_all) {
            let of_other: Vec<ExactSum> = wire::decode_payload(&comm.receive(rank, REPORT_SUMS)?)?;
            sums.iter_mut().zip(&of_other).for_each(|(sum, of_other)| sum.merge(of_other));
        }
        let mut total = [0.0; SUMMED];
        total.iter_mut().zip(&sums).for_each(|(total, sum)| *total = sum.value());
        let observer =
            state.observer.as_mut().ok_or_else(|| Stop::fail("rank 0 has no history"))?;
        let [kinetic, potential, px, py, pz, lx, ly, lz, turning] = total;
        let (kinetic, potential) = (0.5 * kinetic, 0.5 * potential);
        let (momentum, angular_momentum) = ([px, py, pz], [lx, ly, lz]);
        let energy = kinetic + potential;
        if step == 0 {
            observer.first = InitialQuantities { energy, angular_momentum, turning };
        }
        let [energy_error, angular_momentum_error] =
            observer.first.errors(energy, angular_momentum);
        // Those of the steps without a report, too.
        let steps = match step {
            0 => 1,
            _ if due(job.report_every, step) => job.report_every,
            _ => step % job.report_every,
        };
        let (forces, force_error) = (steps * state.common.bodies, None);
        let report = StepReport {
            step,
            kinetic,
            potential,
            momentum,
            energy_error,
            angular_momentum,
            angular_momentum_error,
            forces,
            force_error,
        };
        observer.history.push(report);
        comm.report_text(line(&report));
        Ok(())
    }
}
