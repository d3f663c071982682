//! Whom a thief may ask at all: all of its cluster, and in a large grid a few of the others, so chosen that each is asked by some.
//!
//! Must not know when they are asked, nor what they answered.

use std::ops::Range;

use crate::id::NodeId;
use crate::random::SplitMix;

/// Nodes of other clusters that one node asks of itself, at most: each would have a link to every other in the end, and a new link costs 7 kB,
/// which a slow uplink carries in the time of a task. The others of a cluster have others, and any node that hints may be asked as well.
pub(super) const WIDE_VICTIMS: usize = 2 * RINGS;
/// Orders of all nodes by chance, in which each asks its neighbours: two make a graph of few hops (as random regular graphs are).
const RINGS: usize = 2;
/// Of more nodes than this they are not chosen by a look at each..
const WIDE_CHOSEN_FROM: usize = 1024;
/// ..and are as many.
const WIDE_VICTIMS_OF_MANY: usize = 64;
/// Some of the members that stay, by their places: those of a range, but for a hole in it, or every so many of these.
#[derive(Clone, Debug, Default)]
pub(super) struct Victims {
    first: usize,
    all: usize,
    hole: Range<usize>,
    pub(super) count: usize,
    /// Where they begin, if they are not all.
    start: usize,
    /// Their places, where each was chosen.
    chosen: Vec<usize>,
}

impl Victims {
    /// Those of a range, but for those of a hole inside it.
    pub(super) fn but(range: Range<usize>, hole: Range<usize>) -> Self {
        let all = range.len() - hole.len();
        Self { first: range.start, all, hole, count: all, start: 0, chosen: Vec::new() }
    }

    /// A few of them: the next and the one before on each ring. Most choose who chooses them, and have one link; nobody changes when others
    /// come and go elsewhere; and of each cluster somebody is asked, for the one before it on a ring does.
    pub(super) fn contacts(self, me: &NodeId, nodes: &[NodeId], start: u64) -> Self {
        if self.all <= WIDE_VICTIMS || self.all > WIDE_CHOSEN_FROM {
            return self.at_most(WIDE_VICTIMS_OF_MANY, start);
        }
        let mut chosen = Vec::new();
        for ring in 0..RINGS as u64 {
            let number = |node: &NodeId| SplitMix::of(ring, node.as_str()).next();
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

    /// At most so many of them, spread evenly.
    pub(super) fn at_most(self, most: usize, start: u64) -> Self {
        if self.all <= most {
            return self;
        }
        Self { count: most, start: (start % self.all as u64) as usize, ..self }
    }

    /// The place of one of them.
    pub(super) fn place(&self, i: usize) -> usize {
        if let Some(place) = self.chosen.get(i) {
            return *place;
        }
        let i = (self.start + i * self.all / self.count) % self.all;
        let at = self.first + i;
        if at < self.hole.start { at } else { at + self.hole.len() }
    }
}
