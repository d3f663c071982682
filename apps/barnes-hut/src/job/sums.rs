//! The task that checks forces: sums over all bodies in double precision, for a sample of them.
//!
//! This module does not depend on the forces that the sums are compared with.

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;
use springtide_runtime::share::{ObjectNeed, Version};
use springtide_runtime::work::{Context, Stop, Task};

use super::Pieces;
use crate::check;
use crate::setup::Setup;
use crate::shared::Positions;

/// Computes the exact accelerations of a sample of bodies; splits in halves down to the grain.
#[derive(Debug, Serialize, Deserialize)]
pub struct AccelerationSums {
    /// Indices of the bodies.
    pub sample: Vec<u32>,
    /// The number of all bodies.
    pub bodies: u32,
    /// The grain of the tasks for forces, in bodies.
    pub grain: u32,
    /// The setup of the run.
    pub setup: Version,
    /// The positions of the bodies.
    pub positions: Version,
}

impl Task for AccelerationSums {
    type Output = Pieces;
    const NAME: &'static str = "barnes-hut.sums";

    fn run(self, cx: &Context) -> Result<Pieces, Stop> {
        if self.is_leaf() {
            let setup = cx.get::<Setup>(0, self.setup)?;
            let positions = cx.get::<Positions>(0, self.positions)?;
            let sums = check::exact(&positions, &setup, &self.sample)
                .ok_or_else(|| Stop::fail("the sample has bodies that are not there"))?;
            return Ok(Pieces(vec![ByteBuf::from(sums)]));
        }
        let mut left = self.sample;
        let right = left.split_off(left.len() / 2);
        let half = |sample| AccelerationSums { sample, ..self };
        Pieces::of_both(cx, half(left), half(right))
    }

    fn needs(&self) -> Vec<ObjectNeed> {
        super::needs(self.setup, self.positions)
    }

    /// The equivalent number of bodies' forces by the tree, for a task that does not split.
    fn cost(&self) -> Option<f64> {
        self.is_leaf().then(|| self.worth())
    }
}

impl AccelerationSums {
    fn worth(&self) -> f64 {
        self.sample.len() as f64 * f64::from(self.bodies) / check::PAIRS_A_BODY
    }

    /// Eight bodies are summed side by side, so smaller tasks would be inefficient.
    fn is_leaf(&self) -> bool {
        self.sample.len() <= 8 || self.worth() <= self.grain.into()
    }
}
