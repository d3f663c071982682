//! What a process knows of other domains: the sums of all blocks, and of those that are near the cells that its own blocks may open,
//! down to bodies.
//!
//! Each tells all others where its blocks will be in the next step, and how far they look ([`Sink`]); so in each step the
//! others can tell what it needs without being asked. What is missing all the same, and all of it in the first step after
//! blocks were dealt out, is wished for. Nothing else is kept from step to step, so nobody's books can differ. Knows nothing
//! of who sends messages.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::state::{Common, Domain, Unsound};
use crate::partial::{Branch, Info, Other, Partial, Sink, assemble};
use crate::shared::Setup;
use crate::tree::Sums;

/// A block may look further than it did, by this: scales change as accelerations do, in the next step or when more is known.
const MARGIN: f32 = 1.1;

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Near {
    /// Of all blocks.
    sums: Sums,
    /// First body of each block.
    firsts: Vec<u32>,
    /// Own blocks.
    own: Range<usize>,
    branches: Vec<Branch>,
    /// Of those of others, what is known beyond their sums.
    others: BTreeMap<usize, Other>,
    /// What the forces on own blocks cost last: others are told in the next step, and until then all go by what all know.
    costs: Vec<f32>,
    /// How far each own block looked last; nothing before the first step.
    scales: Vec<f32>,
    /// Where own blocks will be.
    next: Vec<[[f32; 3]; 2]>,
    /// Where the blocks of others will be and how far they will look, by place along the curve; empty where that is not known.
    sinks: Vec<Vec<Sink>>,
}

/// What one process asks another for.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Wish {
    /// In this round somebody is asked, if not this one.
    pub somebody: bool,
    /// Blocks of which more is wanted.
    pub blocks: Vec<u32>,
    /// Where the blocks are that need it.
    pub sinks: Vec<Sink>,
}

const SINK: usize = 7 * 4;

fn write_sink(sink: &Sink, to: &mut Vec<u8>) {
    let values = sink.extent.iter().flatten().chain([&sink.scale]);
    to.extend(values.flat_map(|value| value.to_le_bytes()));
}

fn read_sink(bytes: &[u8; SINK]) -> Sink {
    let value = |i: usize| {
        f32::from_le_bytes(bytes[4 * i..4 * i + 4].try_into().expect("four bytes of these"))
    };
    let extent = [[value(0), value(1), value(2)], [value(3), value(4), value(5)]];
    Sink { extent, scale: value(6) }
}

fn number(bytes: &mut &[u8]) -> Option<u32> {
    let (four, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(u32::from_le_bytes(*four))
}

impl Wish {
    pub(crate) fn write(&self) -> Vec<u8> {
        let mut out = vec![u8::from(self.somebody)];
        out.extend((self.blocks.len() as u32).to_le_bytes());
        out.extend(self.blocks.iter().flat_map(|block| block.to_le_bytes()));
        self.sinks.iter().for_each(|sink| write_sink(sink, &mut out));
        out
    }

    pub(crate) fn read(bytes: &[u8]) -> Result<Self, Unsound> {
        let short = || Unsound { what: "wishes" };
        let (&somebody, mut rest) = bytes.split_first().ok_or_else(short)?;
        let count = number(&mut rest).ok_or_else(short)? as usize;
        if rest.len() / 4 < count {
            return Err(short());
        }
        let blocks = (0..count).filter_map(|_| number(&mut rest)).collect();
        let (sinks, []) = rest.as_chunks() else { return Err(short()) };
        Ok(Self { somebody: somebody != 0, blocks, sinks: sinks.iter().map(read_sink).collect() })
    }
}

impl Near {
    /// With nothing but own blocks, among so many processes.
    pub(crate) fn new(
        common: &Common,
        domain: &Domain,
        own: Range<usize>,
        processes: usize,
        setup: &Setup,
    ) -> Self {
        let firsts = common.infos.iter().scan(0, |sum, info| {
            *sum += info.bodies;
            Some(*sum - info.bodies)
        });
        let mut rest = &domain.keys[..];
        let branch = |info: &Info| {
            let (keys, others) = rest.split_at(info.bodies as usize);
            rest = others;
            Branch::new(keys, setup)
        };
        Self {
            sums: Sums::new(common.infos.len(), setup, true),
            firsts: firsts.collect(),
            branches: common.infos[own.clone()].iter().map(branch).collect(),
            others: BTreeMap::new(),
            costs: common.infos[own.clone()].iter().map(|info| info.cost).collect(),
            scales: Vec::new(),
            next: Vec::new(),
            sinks: vec![Vec::new(); processes],
            own,
        }
    }

    /// Own bodies are at these places now, and next about at those. What own blocks cost is now known to all.
    pub(crate) fn move_own(
        &mut self,
        points: &[[f32; 4]],
        next: impl Iterator<Item = [f32; 3]>,
        infos: &mut [Info],
        setup: &Setup,
    ) {
        for (block, cost) in self.own.clone().zip(&self.costs) {
            infos[block].cost = *cost;
        }
        let (mut rest, mut next) = (points, next);
        self.next.clear();
        for branch in &mut self.branches {
            let (own, others) = rest.split_at(branch.bodies());
            branch.sum_up(own, setup);
            rest = others;
            let [mut low, mut high] = [[f32::INFINITY; 3], [f32::NEG_INFINITY; 3]];
            for place in next.by_ref().take(own.len()) {
                low = [0, 1, 2].map(|axis| low[axis].min(place[axis]));
                high = [0, 1, 2].map(|axis| high[axis].max(place[axis]));
            }
            self.next.push([low, high]);
        }
        self.others.clear();
    }

    /// What a process is told in each step: sums and costs of all own blocks, where they will be, and what it needs of their cells.
    /// How many cells these are, too.
    pub(crate) fn tell(&self, to: usize) -> (Vec<u8>, usize) {
        let mut out = Vec::new();
        for (branch, cost) in self.branches.iter().zip(&self.costs) {
            branch.write(&mut out);
            out.extend(cost.to_le_bytes());
        }
        out.push(u8::from(!self.scales.is_empty()));
        for (&extent, scale) in self.next.iter().zip(&self.scales) {
            write_sink(&Sink { extent, scale: scale * MARGIN }, &mut out);
        }
        let mut cells = 0;
        for (block, branch) in (0u32..).zip(&self.branches) {
            let at = out.len();
            out.extend(block.to_le_bytes());
            match branch.tell(&self.sinks[to], &mut out) {
                0 => out.truncate(at),
                some => cells += some,
            }
        }
        (out, cells)
    }

    /// What the holder of these blocks told, who has this place along the curve.
    pub(crate) fn hear(
        &mut self,
        from: usize,
        blocks: Range<usize>,
        mut bytes: &[u8],
        infos: &mut [Info],
        setup: &Setup,
    ) -> Result<(), Unsound> {
        let short = || Unsound { what: "sums and places" };
        for block in blocks.clone() {
            bytes = self.sums.read(block, bytes).ok_or_else(short)?;
            let (cost, rest) = bytes.split_first_chunk().ok_or_else(short)?;
            (infos[block].cost, bytes) = (f32::from_le_bytes(*cost), rest);
        }
        let (&known, rest) = bytes.split_first().ok_or_else(short)?;
        bytes = rest;
        self.sinks[from].clear();
        if known != 0 {
            let sinks = bytes.split_at_checked(blocks.len() * SINK).ok_or_else(short)?;
            self.sinks[from].extend(sinks.0.as_chunks().0.iter().map(read_sink));
            bytes = sinks.1;
        }
        while !bytes.is_empty() {
            let block = number(&mut bytes).ok_or_else(short)? as usize + blocks.start;
            if !blocks.contains(&block) {
                return Err(short());
            }
            let other = Other::read(infos[block].bodies, bytes, setup).ok_or_else(short)?;
            self.others.insert(block, other.0);
            bytes = other.1;
        }
        Ok(())
    }

    /// The tree of all that is here.
    pub(crate) fn tree(&self, infos: &[Info], setup: &Setup, side: f64) -> Partial {
        let own = (self.own.start, &self.branches[..]);
        assemble(infos, &self.sums, own, &self.others, setup, side)
    }

    /// What each holder is asked for, by place along the curve: more of these blocks, for own ones that look so far.
    pub(crate) fn wishes(
        &self,
        wanted: &BTreeSet<u32>,
        scales: &[f32],
        holder: impl Fn(usize) -> usize,
    ) -> Vec<Wish> {
        let somebody = !wanted.is_empty();
        let mut wishes = vec![Wish { somebody, ..Wish::default() }; self.sinks.len()];
        let sinks: Vec<Sink> = self
            .branches
            .iter()
            .zip(scales)
            .map(|(branch, scale)| Sink { extent: branch.extent(), scale: scale * MARGIN })
            .collect();
        for &block in wanted {
            let wish = &mut wishes[holder(block as usize)];
            wish.blocks.push(block);
            if wish.sinks.is_empty() {
                wish.sinks = sinks.clone();
            }
        }
        wishes
    }

    /// What is told to one who wishes for something.
    pub(crate) fn grant(&self, wish: &Wish) -> Result<Vec<u8>, Unsound> {
        let mut out = Vec::new();
        for &block in &wish.blocks {
            let own = (block as usize).checked_sub(self.own.start);
            let branch = own.and_then(|own| self.branches.get(own));
            let branch = branch.ok_or(Unsound { what: "wishes for another's blocks" })?;
            if branch.tell(&wish.sinks, &mut out) == 0 {
                return Err(Unsound { what: "wishes for blocks that are far" });
            }
        }
        Ok(out)
    }

    /// Takes in what was wished for.
    pub(crate) fn receive(
        &mut self,
        wish: &Wish,
        mut bytes: &[u8],
        infos: &[Info],
        setup: &Setup,
    ) -> Result<(), Unsound> {
        let short = || Unsound { what: "cells of a block" };
        for &block in &wish.blocks {
            let block = block as usize;
            let other = Other::read(infos[block].bodies, bytes, setup).ok_or_else(short)?;
            self.others.insert(block, other.0);
            bytes = other.1;
        }
        if bytes.is_empty() { Ok(()) } else { Err(short()) }
    }

    /// After the forces of a step: what own blocks cost, and how far they looked.
    pub(crate) fn finish(&mut self, costs: Vec<f32>, scales: Vec<f32>) {
        (self.costs, self.scales) = (costs, scales);
    }

    /// The block of this body of all.
    pub(crate) fn block_of(&self, body: u32) -> usize {
        self.firsts.partition_point(|&first| first <= body) - 1
    }

    /// What the forces on own blocks cost last.
    pub(crate) fn costs(&self) -> &[f32] {
        &self.costs
    }

    /// How many cells of others are here, without sums of whole blocks.
    pub(crate) fn cells_of_others(&self) -> usize {
        self.others.values().map(Other::cells).sum()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sink() -> impl Strategy<Value = Sink> {
        let extent = prop::array::uniform2(prop::array::uniform3(-1f32..1.0));
        (extent, 0f32..9.0).prop_map(|(extent, scale)| Sink { extent, scale })
    }

    proptest! {
        #[test]
        fn wishes_are_read_as_they_were_written(
            somebody in any::<bool>(),
            blocks in prop::collection::vec(any::<u32>(), 0..9),
            sinks in prop::collection::vec(sink(), 0..9),
            cut in any::<prop::sample::Index>(),
        ) {
            let wish = Wish { somebody, blocks, sinks };
            let bytes = wish.write();
            prop_assert_eq!(&Wish::read(&bytes).unwrap(), &wish);
            // What is cut off is another wish or none, and never a panic.
            let _ = Wish::read(&bytes[..cut.index(bytes.len())]);
        }
    }
}
