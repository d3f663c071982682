//! All bodies before the first step. This module does not know processes.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use springtide_runtime::work::Sequential;

use super::interval::{next_sort, summed_motion};
use super::rekey::inside;
use super::state::{Common, Domain};
use crate::bodies::Bodies;
use crate::bounds::CubeBounds;
use crate::options::BarnesHut;
use crate::partial::{blocks, bodies_of};
use crate::setup::Setup;
use crate::tree::{morton, sorted_pairs};

/// All bodies before the first step, sorted.
pub(super) struct Begin {
    pub bodies: Bodies,
    pub common: Common,
    keys: Vec<(u64, u32)>,
}

impl Begin {
    /// The bodies of a job. Each process needs them for a moment, and keeps those of its domain.
    /// The processes of a node, and of a simulation, share them.
    pub(super) fn of(job: &BarnesHut) -> Arc<Self> {
        static LAST: Mutex<Option<(BarnesHut, Weak<Begin>)>> = Mutex::new(None);
        if let Some(loaded) = &job.loaded {
            return Arc::new(Self::new(job, loaded.clone()));
        }
        let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
        let known = last.as_ref().filter(|(other, _)| other == job);
        if let Some(begin) = known.and_then(|(_, begin)| begin.upgrade()) {
            return begin;
        }
        let begin = Arc::new(Self::new(job, job.generate()));
        *last = Some((job.clone(), Arc::downgrade(&begin)));
        begin
    }

    fn new(job: &BarnesHut, bodies: Bodies) -> Self {
        let setup = Setup::new(&bodies, job.accuracy()).with_error(job.cell_error);
        let Ok(bounds) = CubeBounds::of_all(&Sequential, &bodies.position);
        let (centre, side) = bounds.cube(setup.softening);
        let key = |place| morton(inside(place, centre, side));
        let keys = sorted_pairs(&bodies.position.iter().map(key).collect::<Vec<_>>());
        let common = Common {
            centre,
            side,
            mass_unit: setup.mass_unit,
            bodies: bodies.len() as u64,
            second: bodies.second as u64,
            infos: blocks(&keys, &setup, 1.0),
            sorted_again: 0,
        };
        let velocity: Vec<_> = keys.iter().map(|(_, i)| bodies.velocity[*i as usize]).collect();
        let scales = (side, job.time_step());
        let Ok(moved) = summed_motion(&Sequential, &common.infos, &velocity, scales, &setup);
        let sorted_again = next_sort(job, 0, moved, common.bodies);
        Self { bodies, common: Common { sorted_again, ..common }, keys }
    }

    /// The bodies of these blocks.
    pub(super) fn domain(&self, blocks: Range<usize>) -> Domain {
        let Self { bodies, common, keys } = self;
        let first = bodies_of(&common.infos[..blocks.start]);
        let end = first + bodies_of(&common.infos[blocks]);
        let mut domain = Domain::default();
        for &(key, number) in &keys[first..end] {
            let i = number as usize;
            domain.keys.push((key, number));
            domain.position.push(bodies.position[i]);
            domain.velocity.push(bodies.velocity[i]);
            domain.acceleration.push([0.0; 3]);
            domain.mass.push(bodies.mass[i]);
            domain.cost.push(1.0);
        }
        domain
    }
}
