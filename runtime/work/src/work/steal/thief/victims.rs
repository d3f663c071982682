//! The possible victims of a thief: all nodes of its cluster, and in a large grid a few of the
//! others.
//!
//! The few are chosen so that some thieves ask each node. This module knows neither the times of
//! requests nor the answers.

use std::ops::Range;

use crate::id::NodeId;
use crate::random::SplitMix;

/// The most nodes of other clusters that one node asks by itself. With all of them, each node would
/// eventually have a link to every other. A new link costs 7 kB, which a slow uplink transfers in
/// the time of a task. Other nodes of the cluster have other victims, and any node that sends a
/// hint may be asked.
pub(super) const WIDE_VICTIMS: usize = 2 * RINGS;
/// The number of random orders of all nodes, in which each node asks its neighbours. Two give a
/// graph of small diameter, as random regular graphs have.
const RINGS: usize = 2;
/// Above this number of nodes, victims are not chosen by a search of all nodes.
const WIDE_CHOSEN_FROM: usize = 1024;
/// The number of victims in that case.
const WIDE_VICTIMS_OF_MANY: usize = 64;
/// Victims among the staying members, by their indices: a range without a hole in it, or a
/// selection of these.
#[derive(Clone, Debug, Default)]
pub(super) struct Victims {
    first: usize,
    all: usize,
    hole: Range<usize>,
    pub(super) count: usize,
    /// The index of the first one, if they are a part.
    start: usize,
    /// The indices of individually chosen victims.
    chosen: Vec<usize>,
}

impl Victims {
    /// All of a range, without a hole inside it.
    pub(super) fn except(range: Range<usize>, hole: Range<usize>) -> Self {
        let all = range.len() - hole.len();
        Self { first: range.start, all, hole, count: all, start: 0, chosen: Vec::new() }
    }

    /// The next and the previous node on each ring. Most thieves are the victims of their victims,
    /// with one link for both. A selection does not change when unrelated nodes join or leave. Each
    /// cluster has a victim, chosen by the previous node on a ring.
    pub(super) fn select(self, me: &NodeId, nodes: &[NodeId], start: u64) -> Self {
        if self.all <= WIDE_VICTIMS || self.all > WIDE_CHOSEN_FROM {
            return self.at_most(WIDE_VICTIMS_OF_MANY, start);
        }
        let mut chosen = Vec::new();
        for ring in 0..RINGS as u64 {
            let number = |node: &NodeId| SplitMix::with_text(ring, node.as_str()).next();
            let mine = number(me);
            let far = |place: usize| number(&nodes[place]).wrapping_sub(mine);
            let places = || (0..self.all).map(|i| (far(self.place(i)), self.place(i)));
            let both = [places().min(), places().max()];
            chosen.extend(both.into_iter().flatten().map(|(_, place)| place));
        }
        chosen.sort_unstable();
        chosen.dedup();
        Self { count: chosen.len(), chosen, ..self }
    }

    /// At most `max` of them, spread evenly.
    pub(super) fn at_most(self, max: usize, start: u64) -> Self {
        if self.all <= max {
            return self;
        }
        Self { count: max, start: (start % self.all as u64) as usize, ..self }
    }

    /// The index of the victim with number `i`.
    pub(super) fn place(&self, i: usize) -> usize {
        if let Some(place) = self.chosen.get(i) {
            return *place;
        }
        let i = (self.start + i * self.all / self.count) % self.all;
        let at = self.first + i;
        if at < self.hole.start { at } else { at + self.hole.len() }
    }
}
