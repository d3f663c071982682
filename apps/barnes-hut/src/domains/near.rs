//! What a process has of other domains: the sums of all blocks, and bodies of those that are near.
//!
//! Who needs a block's bodies asks its holder once, and is told where they are in each step from then on, until it says that
//! they are far; all hold the same books of that ([`Near::subscribers`] here, what is [`Near::here`] there). What a step's
//! messages hold follows from these books, so they need no names. Knows nothing of who sends messages.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::state::{Common, Domain, Unsound};
use crate::partial::{Branch, Here, Info, Partial, assemble};
use crate::shared::Setup;
use crate::tree::Sums;

/// Steps after which bodies that nobody looked at are let go.
const UNUSED: u8 = 2;

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Near {
    /// Of all blocks.
    sums: Sums,
    /// First body of each block.
    firsts: Vec<u32>,
    /// Own blocks.
    own: Range<usize>,
    /// Those whose bodies are here, own ones among them.
    here: Vec<Option<Here>>,
    /// Of the others that are here, for how many steps nobody looked at them.
    unused: BTreeMap<usize, u8>,
    /// Who is told where the bodies of an own block are, by place along the curve.
    subscribers: BTreeMap<usize, BTreeSet<usize>>,
    /// What the forces on own blocks cost last: others are told in the next step, and until then all go by what all know.
    costs: Vec<f32>,
    /// Blocks of others that nobody looked into for some steps.
    idle: Vec<usize>,
    /// Blocks of others of which their holders tell no more: what is here of them is of this step.
    gone: Vec<usize>,
}

/// What one process asks another for.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Wish {
    /// In this round somebody is asked, if not this one.
    pub somebody: bool,
    /// Blocks whose bodies are wanted.
    pub add: Vec<u32>,
    /// Blocks whose bodies are no longer wanted.
    pub drop: Vec<u32>,
}

impl Wish {
    pub(crate) fn write(&self) -> Vec<u8> {
        let mut out = vec![u8::from(self.somebody)];
        out.extend((self.add.len() as u32).to_le_bytes());
        out.extend(self.add.iter().chain(&self.drop).flat_map(|block| block.to_le_bytes()));
        out
    }

    pub(crate) fn read(bytes: &[u8]) -> Result<Self, Unsound> {
        let short = || Unsound { what: "wishes" };
        let (&somebody, rest) = bytes.split_first().ok_or_else(short)?;
        let (numbers, []) = rest.as_chunks::<4>() else { return Err(short()) };
        let mut numbers = numbers.iter().map(|bytes| u32::from_le_bytes(*bytes));
        let count = numbers.next().ok_or_else(short)? as usize;
        let all: Vec<u32> = numbers.collect();
        let (add, drop) = all.split_at_checked(count).ok_or_else(short)?;
        Ok(Self { somebody: somebody != 0, add: add.to_vec(), drop: drop.to_vec() })
    }
}

impl Near {
    /// With nothing but own blocks.
    pub(crate) fn new(common: &Common, domain: &Domain, own: Range<usize>, setup: &Setup) -> Self {
        let mut here: Vec<Option<Here>> = common.infos.iter().map(|_| None).collect();
        let firsts = common.infos.iter().scan(0, |sum, info| {
            *sum += info.bodies;
            Some(*sum - info.bodies)
        });
        let mut first = 0;
        for block in own.clone() {
            let keys = &domain.keys[first..first + common.infos[block].bodies as usize];
            first += keys.len();
            let points = vec![[0.0; 4]; keys.len()];
            here[block] = Some(Here { branch: Branch::new(keys, setup), points });
        }
        Self {
            sums: Sums::new(common.infos.len(), setup, true),
            costs: common.infos[own.clone()].iter().map(|info| info.cost).collect(),
            idle: Vec::new(),
            gone: Vec::new(),
            firsts: firsts.collect(),
            own,
            here,
            unused: BTreeMap::new(),
            subscribers: BTreeMap::new(),
        }
    }

    /// Own bodies are at these places now. What own blocks cost is now known to all.
    pub(crate) fn move_own(&mut self, points: &[[f32; 4]], infos: &mut [Info], setup: &Setup) {
        for (block, cost) in self.own.clone().zip(&self.costs) {
            infos[block].cost = *cost;
        }
        let mut rest = points;
        for block in self.own.clone() {
            let Some(here) = &mut self.here[block] else { continue };
            let (own, others) = rest.split_at(here.points.len());
            here.points.copy_from_slice(own);
            here.branch.sum_up(own, setup);
            rest = others;
        }
    }

    /// What a process is told in each step: sums and costs of all own blocks, and places of the bodies of those that it
    /// asked for.
    pub(crate) fn tell(&self, to: usize) -> Vec<u8> {
        let mut out = Vec::new();
        for (block, cost) in self.own.clone().zip(&self.costs) {
            if let Some(here) = &self.here[block] {
                here.branch.write(&mut out);
            }
            out.extend(cost.to_le_bytes());
        }
        let told =
            |(block, to_whom): (&usize, &BTreeSet<usize>)| to_whom.contains(&to).then_some(*block);
        for block in self.subscribers.iter().filter_map(told) {
            let points = self.here[block].iter().flat_map(|here| &here.points);
            out.extend(points.flat_map(|p| [p[0], p[1], p[2]]).flat_map(f32::to_le_bytes));
        }
        out
    }

    /// What the holder of these blocks told.
    pub(crate) fn hear(
        &mut self,
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
        for block in blocks {
            let Some(here) = &mut self.here[block] else { continue };
            let of = bytes.split_at_checked(here.points.len() * 12).ok_or_else(short)?;
            for (point, place) in here.points.iter_mut().zip(of.0.chunks_exact(12)) {
                for axis in 0..3 {
                    let value = place[4 * axis..4 * axis + 4].try_into().expect("chunks of twelve");
                    point[axis] = f32::from_le_bytes(value);
                }
            }
            here.branch.sum_up(&here.points, setup);
            bytes = of.1;
        }
        if bytes.is_empty() { Ok(()) } else { Err(short()) }
    }

    /// The tree of all that is here.
    pub(crate) fn tree(&self, infos: &[Info], setup: &Setup, side: f64) -> Partial {
        assemble(infos, &self.sums, &self.here, self.own.clone(), setup, side)
    }

    /// Takes in what a process asks for; returns the answer, if it asks for bodies.
    pub(crate) fn grant(
        &mut self,
        to: usize,
        wish: &Wish,
        domain: &Domain,
    ) -> Result<Option<Vec<u8>>, Unsound> {
        for block in &wish.drop {
            if let Some(whom) = self.subscribers.get_mut(&(*block as usize)) {
                whom.remove(&to);
            }
        }
        if wish.add.is_empty() {
            return Ok(None);
        }
        let mut out = Vec::new();
        for &block in &wish.add {
            let block = block as usize;
            if !self.own.contains(&block) {
                return Err(Unsound { what: "wishes for another's bodies" });
            }
            let of = |block: usize| self.here[block].as_ref().map_or(0, |here| here.points.len());
            let first: usize = (self.own.start..block).map(of).sum();
            let Some(here) = &self.here[block] else { continue };
            for (point, (key, _)) in here.points.iter().zip(&domain.keys[first..]) {
                out.extend(key.to_le_bytes());
                out.extend(point.iter().flat_map(|value| value.to_le_bytes()));
            }
            self.subscribers.entry(block).or_default().insert(to);
        }
        Ok(Some(out))
    }

    /// Takes in the bodies of blocks that were asked for.
    pub(crate) fn receive(
        &mut self,
        blocks: &[u32],
        mut bytes: &[u8],
        infos: &[Info],
        setup: &Setup,
    ) -> Result<(), Unsound> {
        const ROW: usize = 8 + 16;
        for &block in blocks {
            let block = block as usize;
            let count = infos[block].bodies as usize;
            let (rows, rest) = bytes
                .split_at_checked(count * ROW)
                .ok_or_else(|| Unsound { what: "bodies of a block" })?;
            bytes = rest;
            let (mut keys, mut points) = (Vec::with_capacity(count), Vec::with_capacity(count));
            for row in rows.chunks_exact(ROW) {
                keys.push((u64::from_le_bytes(row[..8].try_into().expect("rows were cut")), 0));
                points.push([8, 12, 16, 20].map(|at| {
                    f32::from_le_bytes(row[at..at + 4].try_into().expect("rows were cut"))
                }));
            }
            if keys.first().map(|key| key.0) != Some(infos[block].first) || !keys.is_sorted() {
                return Err(Unsound { what: "bodies of a block" });
            }
            let mut branch = Branch::new(&keys, setup);
            branch.sum_up(&points, setup);
            self.here[block] = Some(Here { branch, points });
            self.unused.insert(block, 0);
        }
        if bytes.is_empty() { Ok(()) } else { Err(Unsound { what: "bodies of a block" }) }
    }

    /// What each holder is asked for: `add`, and to tell no more of what is to be let go and is not `used` after all. By place
    /// along the curve.
    pub(crate) fn wishes(
        &mut self,
        add: &BTreeSet<u32>,
        processes: usize,
        holder: impl Fn(usize) -> usize,
        used: impl Fn(usize) -> bool,
    ) -> Vec<Wish> {
        let somebody = !add.is_empty();
        let mut wishes = vec![Wish { somebody, ..Wish::default() }; processes];
        for &block in add {
            wishes[holder(block as usize)].add.push(block);
        }
        for block in std::mem::take(&mut self.idle) {
            if !used(block) {
                wishes[holder(block)].drop.push(block as u32);
                self.gone.push(block);
            }
        }
        wishes
    }

    /// After the forces of a step, in whose lists these blocks were looked into: what they cost, and lets those go of which
    /// their holders tell no more.
    pub(crate) fn finish(&mut self, costs: Vec<f32>, used: &BTreeSet<usize>) {
        self.costs = costs;
        for block in self.gone.drain(..) {
            self.unused.remove(&block);
            self.here[block] = None;
        }
        for (&block, steps) in &mut self.unused {
            *steps = if used.contains(&block) { 0 } else { steps.saturating_add(1) };
            if *steps >= UNUSED {
                self.idle.push(block);
            }
        }
    }

    /// The block of this body of all.
    pub(crate) fn block_of(&self, body: u32) -> usize {
        self.firsts.partition_point(|&first| first <= body) - 1
    }

    /// What the forces on own blocks cost last.
    pub(crate) fn costs(&self) -> &[f32] {
        &self.costs
    }

    /// Those of others that are here.
    pub(crate) fn others(&self) -> impl Iterator<Item = usize> {
        self.unused.keys().copied()
    }

    /// How many bodies of others are here.
    pub(crate) fn bodies_of_others(&self) -> usize {
        let of = |block: &usize| self.here[*block].as_ref().map_or(0, |here| here.points.len());
        self.unused.keys().map(of).sum()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn wishes_are_read_as_they_were_written(
            somebody in any::<bool>(),
            add in prop::collection::vec(any::<u32>(), 0..9),
            drop in prop::collection::vec(any::<u32>(), 0..9),
            cut in any::<prop::sample::Index>(),
        ) {
            let wish = Wish { somebody, add, drop };
            let bytes = wish.write();
            prop_assert_eq!(&Wish::read(&bytes).unwrap(), &wish);
            // What is cut off is another wish or none, and never a panic.
            let _ = Wish::read(&bytes[..cut.index(bytes.len())]);
        }
    }
}
