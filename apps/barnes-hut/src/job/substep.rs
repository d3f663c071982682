//! The task of a substep of block time steps: accelerations of the groups with a body whose step
//! ends.
//!
//! This module does not depend on the choice of groups.

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;
use springtide_runtime::share::{ObjectNeed, Version};
use springtide_runtime::work::{Context, Stop, Task};

use super::Pieces;
use crate::setup::Setup;
use crate::shared::Positions;
use crate::simulate;

/// Computes the accelerations of the bodies of some groups; splits in halves down to the grain.
#[derive(Debug, Serialize, Deserialize)]
pub struct Substep {
    /// Indices of the groups, in ascending order.
    pub groups: Vec<u32>,
    /// The number of bodies in these groups.
    pub bodies: u32,
    /// The maximum number of bodies of a task that does not split.
    pub grain: u32,
    /// The setup of the run.
    pub setup: Version,
    /// The positions of the bodies.
    pub positions: Version,
}

impl Task for Substep {
    type Output = Pieces;
    const NAME: &'static str = "barnes-hut.substep";

    fn run(self, cx: &Context) -> Result<Pieces, Stop> {
        let setup = cx.get::<Setup>(0, self.setup)?;
        let positions = cx.get::<Positions>(0, self.positions)?;
        let tree = positions.tree_in(cx, &setup)?;
        let ascending = self.groups.is_sorted_by(|a, b| a < b);
        if !ascending || self.groups.last().is_some_and(|last| *last as usize >= tree.groups()) {
            return Err(Stop::fail(format_args!(
                "{} groups of a substep do not lie within the {} of the tree",
                self.groups.len(),
                tree.groups()
            )));
        }
        if self.is_leaf() {
            return Ok(Pieces(vec![ByteBuf::from(simulate::accelerations(tree, &self.groups))]));
        }
        let bodies = |groups: &[u32]| {
            let each = |group: &u32| tree.bodies(*group as usize..*group as usize + 1).len() as u32;
            groups.iter().map(each).sum::<u32>()
        };
        let mut left = self.groups;
        let right = left.split_off(left.len() / 2);
        let half = |groups: Vec<u32>| Substep { bodies: bodies(&groups), groups, ..self };
        Pieces::of_both(cx, half(left), half(right))
    }

    fn needs(&self) -> Vec<ObjectNeed> {
        super::needs(self.setup, self.positions)
    }

    /// The number of bodies of a task that does not split.
    fn cost(&self) -> Option<f64> {
        self.is_leaf().then(|| self.bodies.into())
    }
}

impl Substep {
    fn is_leaf(&self) -> bool {
        self.groups.len() < 2 || self.bodies <= self.grain
    }
}
