//! The possible victims of a thief: all nodes of its cluster, and in a large grid a few of the
//! others.
//!
//! The few are chosen so that some thieves ask each node. This module knows neither the times of
//! requests nor the answers.

use std::ops::Range;

use crate::id::NodeId;
use crate::membership::{Members, RINGS};

/// The most nodes of other clusters that one node asks by itself. With all of them, each node would
/// eventually have a link to every other. A new link costs 7 kB, which a slow uplink transfers in
/// the time of a task. Other nodes of the cluster have other victims, and any node that sends a
/// hint may be asked. Two neighbours in each of two random orders give a graph of small diameter,
/// as random regular graphs have.
pub(super) const WIDE_VICTIMS: usize = 2 * RINGS;
/// Victims among the staying members, by their indices: a range without a hole in it, or a
/// selection of these.
#[derive(Clone, Debug, Default)]
pub(super) struct Victims {
    first: usize,
    hole: Range<usize>,
    pub(super) count: usize,
    /// The indices of individually chosen victims.
    chosen: Vec<usize>,
}

impl Victims {
    /// All of a range, without a hole inside it.
    pub(super) fn except(range: Range<usize>, hole: Range<usize>) -> Self {
        let count = range.len() - hole.len();
        Self { first: range.start, hole, count, chosen: Vec::new() }
    }

    /// The next and the previous node in each random order of the members. Most thieves are the
    /// victims of their victims, with one link for both. A selection does not change when unrelated
    /// nodes join or leave. Each cluster has a victim, chosen by the previous node of an order.
    pub(super) fn select(self, me: &NodeId, members: &Members) -> Self {
        if self.count <= WIDE_VICTIMS {
            return self;
        }
        let mut chosen = Vec::new();
        for number in 0..RINGS {
            let ring = members.ring(number);
            let mine = Members::ring_number(number, me);
            let start = ring.partition_point(|(number, _)| *number < mine);
            let (before, after) = ring.split_at(start);
            let places = || after.iter().chain(before).map(|(_, place)| *place as usize);
            let is_victim = |place: &usize| !self.hole.contains(place);
            chosen.extend(places().find(is_victim));
            chosen.extend(places().rfind(is_victim));
        }
        chosen.sort_unstable();
        chosen.dedup();
        Self { count: chosen.len(), chosen, ..self }
    }

    /// The index of the victim with number `i`.
    pub(super) fn place(&self, i: usize) -> usize {
        if let Some(place) = self.chosen.get(i) {
            return *place;
        }
        let at = self.first + i;
        if at < self.hole.start { at } else { at + self.hole.len() }
    }
}
