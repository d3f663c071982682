//! The messages of each step: sums of roots to all, cells and bodies to those that need them.
//! [`LocallyEssentialTree`] encodes and decodes them; this module sends and receives them.

use std::collections::BTreeSet;

use springtide_runtime::work::{Stop, collect};

use super::essential_tree::{LocallyEssentialTree, Message};
use super::state::{Common, Domain};
use super::{Domains, EXPORT, ROOT_SUMS, StepContext, UPDATE, Units, ahead, drifted, next_place};
use crate::loops::BODIES_PER_PIECE;
use crate::partial::most_bodies;
use crate::setup::Setup;

/// The messages under this tag of the process at this place along the curve, up to the one that is
/// marked as the last.
pub(super) type Due = (usize, u32);

impl Domains {
    /// Sends the present places of own bodies to others, as far as they need them. Receives the
    /// sums of others, if they were not sent ahead (`are_sums_known`), and the data of processes in
    /// the own cluster. Returns what is still to come.
    pub(super) fn exchange_sums(
        &self,
        essential: &mut LocallyEssentialTree,
        state: (&Common, &Domain),
        are_sums_known: bool,
        at: &StepContext<'_, '_>,
    ) -> Result<BTreeSet<Due>, Stop> {
        let (common, domain) = state;
        let (setup, units) = (self.setup(common), Units::of(common));
        let is_alone = at.layout.len() == 1;
        let points = units.points(&at.clock, domain)?;
        essential.move_own(&at.clock, &points, &setup)?;
        self.model(at.comm, |costs| costs.body * points.len() as f64)?;
        at.clock.lap("moments");
        if !are_sums_known && !is_alone {
            at.comm.share(ROOT_SUMS, essential.encode_sums())?;
        }
        self.send_updates(essential, true, &setup, at)?;
        let is_sorted = essential.is_sorted();
        if is_sorted {
            self.look_ahead(essential, state, at)?;
            if essential.looks_ahead() {
                // To sum them up at their later places.
                self.model(at.comm, |costs| costs.body * points.len() as f64)?;
            }
            for message in essential.export_sorted(&at.clock, &setup)? {
                self.multicast(essential, EXPORT, message, at)?;
            }
        }
        if !is_alone {
            let received = at.comm.take_shared(ROOT_SUMS)?;
            let mut numbers = 0;
            for other in at.others() {
                numbers += essential.decode_sums(other, &received[at.rank_at(other) as usize])?;
            }
            self.spend(essential, [numbers, 0, 0], at.comm)?;
        }
        if self.predicts(common, at.step) {
            let dt = self.job.time_step();
            // As if the next forces were the last ones.
            let expected = |i: usize| {
                units.point(&next_place(domain, i, &domain.acceleration[i], dt), domain.mass[i])
            };
            let points = collect(&at.clock, domain.len(), BODIES_PER_PIECE, expected)?;
            essential.predict(&at.clock, &points, &setup)?;
            at.clock.lap("moments");
            if !is_alone {
                at.comm.share(ROOT_SUMS, essential.encode_predicted_sums(&setup))?;
            }
        }
        let updates = at
            .others()
            .filter(|other| essential.expects_updates(*other))
            .map(|other| (other, UPDATE));
        let exports = at.others().filter(|_| is_sorted).map(|other| (other, EXPORT));
        let due = updates.chain(exports).collect();
        self.receive_near(essential, due, &setup, at)
    }

    /// Receives what processes of the own cluster send, and what has arrived from others; returns
    /// what has not.
    pub(super) fn receive_near(
        &self,
        essential: &mut LocallyEssentialTree,
        due: BTreeSet<Due>,
        setup: &Setup,
        at: &StepContext<'_, '_>,
    ) -> Result<BTreeSet<Due>, Stop> {
        let is_here = |(other, _): &Due| at.comm.is_in_same_cluster(at.rank_at(*other));
        let (mut here, mut late): (BTreeSet<_>, BTreeSet<_>) = due.into_iter().partition(is_here);
        self.receive(essential, &mut here, true, setup, at)?;
        self.receive(essential, &mut late, false, setup, at)?;
        Ok(late)
    }

    /// Predicts the last places of own bodies before they are sorted again, once in a step.
    pub(super) fn look_ahead(
        &self,
        essential: &mut LocallyEssentialTree,
        (common, domain): (&Common, &Domain),
        at: &StepContext<'_, '_>,
    ) -> Result<(), Stop> {
        let (units, ahead) = (Units::of(common), ahead(&self.job, common, at.step));
        if ahead == 0.0 {
            return Ok(());
        }
        essential.look_ahead(&at.clock, |i| {
            units.inside(&drifted(&domain.position[i], &domain.velocity[i], ahead))
        })
    }

    /// Whether the sums of the next step are predicted in this one.
    pub(super) fn predicts(&self, common: &Common, step: u64) -> bool {
        // A leaf could be larger than a block.
        let is_leaf_small = self.job.leaf as usize <= most_bodies(self.job.group);
        is_leaf_small && self.keeps_cells(common, step)
    }

    /// Receives the data of this step that is due: all of it (`waits`) or what has arrived. Removes
    /// those that have sent their last message. Returns whether none is left.
    pub(super) fn receive(
        &self,
        essential: &mut LocallyEssentialTree,
        due: &mut BTreeSet<Due>,
        waits: bool,
        setup: &Setup,
        at: &StepContext<'_, '_>,
    ) -> Result<bool, Stop> {
        for (other, tag) in due.clone() {
            let rank = at.rank_at(other);
            while due.contains(&(other, tag)) && (waits || at.comm.has_arrived(rank, tag)?) {
                let received = at.comm.receive(rank, tag)?;
                let (counts, is_last) = match tag {
                    EXPORT => essential.decode_exports(other, &received, setup)?,
                    _ => essential.decode_updates(&at.clock, other, &received, setup)?,
                };
                self.spend(essential, counts, at.comm)?;
                if is_last {
                    due.remove(&(other, tag));
                }
            }
        }
        Ok(due.is_empty())
    }

    /// Sends what others need of own roots: of those that were just advanced or (`rest`) of the
    /// rest.
    pub(super) fn send_updates(
        &self,
        essential: &mut LocallyEssentialTree,
        rest: bool,
        setup: &Setup,
        at: &StepContext<'_, '_>,
    ) -> Result<(), Stop> {
        for group in 0..essential.groups() {
            for message in essential.encode_updates(&at.clock, group, rest, setup)? {
                self.multicast(essential, UPDATE, message, at)?;
            }
        }
        Ok(())
    }

    pub(super) fn multicast(
        &self,
        essential: &mut LocallyEssentialTree,
        tag: u32,
        Message { to, bytes, numbers }: Message,
        at: &StepContext<'_, '_>,
    ) -> Result<(), Stop> {
        self.spend(essential, [numbers, 0, 0], at.comm)?;
        let ranks: Vec<u32> = to.into_iter().map(|slot| at.rank_at(slot)).collect();
        at.comm.multicast(&ranks, tag, bytes)
    }
}
