//! What processes tell each other in each step: sums of roots to all, cells and bodies to those who need them. What that is
//! [`Near`] knows; here it goes out and comes in.

use std::collections::BTreeSet;

use springtide_runtime::spmd::Comm;
use springtide_runtime::work::Stop;

use super::layout::Layout;
use super::near::{Message, Near};
use super::state::{Common, Domain};
use super::{ALL, Domains, GRANT, TELL, Units, ahead, drifted, next_place};
use crate::partial::most_bodies;
use crate::shared::Setup;

/// Messages of the process at this place along the curve, under this tag, until one is the last.
pub(super) type Due = (usize, u32);

impl Domains {
    /// Tells others where own bodies are now, as far as they need it, and hears the sums of theirs, if they were not told before
    /// (`is_told`), and from those of the own cluster the rest. Returns what is still to be heard.
    pub(super) fn meet(
        &self,
        near: &mut Near,
        state: (&Common, &Domain),
        is_told: bool,
        step: u64,
        layout: &Layout,
        comm: &Comm<'_>,
    ) -> Result<BTreeSet<Due>, Stop> {
        let (common, domain) = state;
        let (setup, units) = (self.setup(common), Units::of(common));
        let points = units.points(domain);
        near.move_own(&points, &setup);
        self.model(comm, |costs| costs.body * points.len() as f64)?;
        if !is_told {
            comm.share(ALL, near.tell_all())?;
        }
        self.tell(near, true, &setup, layout, comm)?;
        let is_sorted = near.is_sorted();
        if is_sorted {
            self.look_ahead(near, state, step);
            // To sum them up where they will be.
            self.model(comm, |costs| costs.body * points.len() as f64)?;
            for message in near.show_sorted(&setup)? {
                self.multicast(near, GRANT, message, layout, comm)?;
            }
        }
        let told = comm.take_shared(ALL)?;
        let others = || (0..layout.len()).filter(|other| layout.ranks()[*other] != comm.rank());
        let mut numbers = 0;
        for other in others() {
            numbers += near.hear_from_all(other, &told[layout.ranks()[other] as usize])?;
        }
        self.spend(near, [numbers, 0, 0], comm)?;
        if self.foretells(common, step) {
            let expected = |i: usize| {
                // As if the next forces were the last ones.
                let dt = self.job.time_step();
                units.point(&next_place(domain, i, &domain.acceleration[i], dt), domain.mass[i])
            };
            let points: Vec<_> = (0..domain.len()).map(expected).collect();
            comm.share(ALL, near.foretell(&points, &setup))?;
        }
        let tells = others().filter(|other| near.listens_to(*other)).map(|other| (other, TELL));
        let shows = others().filter(|_| is_sorted).map(|other| (other, GRANT));
        let due = tells.chain(shows).collect();
        self.hear_near(near, due, &setup, layout, comm)
    }

    /// Hears what those of the own cluster tell, and what is here of others; returns what is not.
    pub(super) fn hear_near(
        &self,
        near: &mut Near,
        due: BTreeSet<Due>,
        setup: &Setup,
        layout: &Layout,
        comm: &Comm<'_>,
    ) -> Result<BTreeSet<Due>, Stop> {
        let is_here = |(other, _): &Due| comm.is_in_same_cluster(layout.ranks()[*other]);
        let (mut here, mut late): (BTreeSet<_>, BTreeSet<_>) = due.into_iter().partition(is_here);
        self.hear(near, &mut here, true, setup, layout, comm)?;
        self.hear(near, &mut late, false, setup, layout, comm)?;
        Ok(late)
    }

    /// Says where own bodies will be before they are sorted anew, if that was not said in this step.
    pub(super) fn look_ahead(&self, near: &mut Near, state: (&Common, &Domain), step: u64) {
        let (common, domain) = state;
        let (units, ahead) = (Units::of(common), ahead(&self.job, common, step));
        let moving = domain.position.iter().zip(&domain.velocity);
        near.look_ahead(moving.map(|(x, v)| units.inside(&drifted(x, v, ahead))));
    }

    /// Whether in this step sums are foretold of the next.
    pub(super) fn foretells(&self, common: &Common, step: u64) -> bool {
        // A leaf could be larger than a block.
        let is_leaf_small = self.job.leaf as usize <= most_bodies(self.job.group);
        is_leaf_small && self.keeps_cells(common, step)
    }

    /// Hears what is due of this step, all of it (`waits`) or what is here, and strikes out those that have nothing more
    /// to tell. Whether that is all of them.
    pub(super) fn hear(
        &self,
        near: &mut Near,
        due: &mut BTreeSet<Due>,
        waits: bool,
        setup: &Setup,
        layout: &Layout,
        comm: &Comm<'_>,
    ) -> Result<bool, Stop> {
        for (other, tag) in due.clone() {
            let rank = layout.ranks()[other];
            while due.contains(&(other, tag)) && (waits || comm.has_arrived(rank, tag)?) {
                let told = comm.receive(rank, tag)?;
                let (counts, is_last) = match tag {
                    GRANT => near.see(other, &told, setup)?,
                    _ => near.hear(other, &told, setup)?,
                };
                self.spend(near, counts, comm)?;
                if is_last {
                    due.remove(&(other, tag));
                }
            }
        }
        Ok(due.is_empty())
    }

    /// Tells others what they need of own roots: of those that were just advanced or (`rest`) of the rest.
    pub(super) fn tell(
        &self,
        near: &mut Near,
        rest: bool,
        setup: &Setup,
        layout: &Layout,
        comm: &Comm<'_>,
    ) -> Result<(), Stop> {
        for audience in 0..near.audiences() {
            for message in near.tell(audience, rest, setup) {
                self.multicast(near, TELL, message, layout, comm)?;
            }
        }
        Ok(())
    }

    pub(super) fn multicast(
        &self,
        near: &mut Near,
        tag: u32,
        Message { to, bytes, numbers }: Message,
        layout: &Layout,
        comm: &Comm<'_>,
    ) -> Result<(), Stop> {
        self.spend(near, [numbers, 0, 0], comm)?;
        let ranks: Vec<u32> = to.into_iter().map(|slot| layout.ranks()[slot]).collect();
        comm.multicast(&ranks, tag, bytes)
    }
}
