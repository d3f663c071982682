//! What a process knows of other domains: the sums of all roots, and of those that are near the cells that its own blocks may open,
//! down to bodies.
//!
//! What is missing it wishes for, and says where its blocks are and how far they look ([`Sink`]); from then on the holder tells it
//! in each step what these need, always of the same cells and bodies ([`View`]), until bodies are sorted or dealt out anew. Sinks are somewhat wider than blocks are, so
//! that wishes are rare after the first step. Processes of another cluster are told the same ([`Audience`]), whatever one of them needs of a
//! root, for it crosses the line to them once; of each root only those that wished for it take in what comes.
//!
//! The sums of blocks, and with them of all that is larger, are *foretold*: they are those of where bodies will be if they are accelerated as
//! in the step before, so that all are told of them a step ahead. (Cells within blocks and bodies are where they are: what is near is told in its step.) That
//! is a matter of a body's own motion, so it makes no difference who holds what.
//!
//! Roots that other clusters see are *advanced*: when the forces on them are known so are their next places, and these are told
//! while the forces on others are computed, before it is known whether anybody wishes for anything; what is left is told when all are. Where a wish makes
//! a new view of what was told ahead, that is void: each part says which of the views of its root it is for.
//!
//! Views begin anew when bodies are sorted, but what they show of bodies goes on where that was told [before](super::past). Knows nothing of
//! who sends messages.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::layout::{of_slot, slot_with};
use super::past::{Before, Told};
use super::state::{Common, Domain, Unsound};
use super::turns::First;
use super::wish::Wish;
use crate::partial::{
    Branch, Info, Other, Past, Sink, View, add, assemble, bodies_of, joined, roots,
};
use crate::shared::Setup;
use crate::smooth::{Track, put_number, take_number};
use crate::tree::{Sums, Tree};

/// Roots are no more than this part of a domain, in bodies: the last ones whose next places others are told of are then needed by few
/// blocks of theirs.
const ROOTS: u64 = 8;

/// The part of all work that is done first, so that others are told of it in time.
const AHEAD: f64 = 0.75;

/// Processes that are told the same: all of another cluster, or one of the own.
#[derive(Debug)]
struct Audience {
    /// Their places along the curve.
    slots: Vec<usize>,
    /// Of another cluster.
    is_afar: bool,
    /// What they are told of own roots, counted from the first.
    views: BTreeMap<u32, Seen>,
}

/// What an audience is told of a root.
#[derive(Debug)]
struct Seen {
    view: View,
    /// Who takes it in, by place along the curve.
    by: BTreeSet<usize>,
    /// Counts the views of this root that the audience had.
    version: u32,
    /// They were told of the next step.
    is_ahead: bool,
}

/// What an audience is told.
pub(crate) struct Message {
    /// The places along the curve of those that it is for.
    pub to: Vec<usize>,
    pub bytes: Vec<u8>,
    /// How many numbers it is.
    pub numbers: usize,
}

/// Something of a root, in a message.
struct Part<'b> {
    root: usize,
    /// Of which view of it.
    version: u32,
    bytes: &'b [u8],
}

impl<'b> Part<'b> {
    fn write(&self, to: &mut Vec<u8>) {
        [self.root as u32, self.version, self.bytes.len() as u32]
            .iter()
            .for_each(|number| put_number(*number, to));
        to.extend_from_slice(self.bytes);
    }

    /// Reads what [`Part::write`] wrote, and goes on behind it.
    fn take(bytes: &mut &'b [u8]) -> Option<Self> {
        let root = take_number(bytes)? as usize;
        let version = take_number(bytes)?;
        let length = take_number(bytes)? as usize;
        let (part, rest) = bytes.split_at_checked(length)?;
        *bytes = rest;
        Some(Self { root, version, bytes: part })
    }
}

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Near {
    /// All roots, in order.
    roots: Vec<Info>,
    /// First body of each root.
    firsts: Vec<u32>,
    /// Where each process's roots begin, by place along the curve, and their number at the end.
    holders: Vec<u32>,
    /// This process's place along the curve.
    slot: usize,
    /// Bodies of each own block.
    blocks: Vec<Range<usize>>,
    /// Blocks of each own root.
    blocks_of: Vec<Range<usize>>,
    /// Of all roots.
    sums: Sums,
    /// What each process tells all, by place along the curve: of the own roots as told, of others' as heard.
    tracks: Vec<Track>,
    branches: Vec<Branch>,
    /// Of the roots of others, what is known beyond their sums.
    others: BTreeMap<usize, Other>,
    /// Which of the views of each this is.
    versions: BTreeMap<usize, u32>,
    audiences: Vec<Audience>,
    /// The number of each process's cluster, by place along the curve.
    clusters: Vec<usize>,
    /// Own roots, counted from the first, where they will be in the next step; and in whose place those of this step were put.
    advanced: BTreeMap<u32, Branch>,
    replaced: BTreeMap<u32, Branch>,
    /// Others' roots of which more is known than their sums, but not yet of this step.
    stale: BTreeSet<usize>,
    /// Those that came since the tree of this step was put together; nothing if it has to be put together anew.
    come: Option<BTreeSet<usize>>,
    /// Sums of own blocks that were foretold for this step, and those that are for the next.
    now: Option<Sums>,
    next: Option<Sums>,
    /// Where the blocks of others are and how far they look, by place along the curve; as last told.
    sinks: Vec<Vec<Sink>>,
    /// Whether others were told where own blocks are.
    told: bool,
    /// Where own bodies will be later, before bodies are sorted anew, if that was asked for in this step; and own roots with these, as they
    /// are asked for.
    later: Vec<[f32; 4]>,
    grown: BTreeMap<usize, Branch>,
    /// Where own blocks are, and how far their bodies get until then.
    extents: Vec<[[f32; 3]; 2]>,
    /// What the forces on own blocks cost last.
    costs: Vec<f32>,
    /// The last tree, for its memory.
    pub(super) spare: Option<Tree>,
    /// In the first step after bodies were sorted, what was told before.
    before: Before,
}

impl Near {
    /// With nothing but own blocks, whose domain has this place along the curve, and what was told before; each place has a number of its
    /// cluster.
    pub(crate) fn new(
        common: &Common,
        cuts: &[u32],
        domain: &Domain,
        (slot, clusters): (usize, Vec<usize>),
        told_before: Before,
        setup: &Setup,
    ) -> Self {
        let infos = &common.infos;
        let own_blocks = of_slot(cuts, slot);
        let (mut all, mut holders) = (Vec::new(), vec![0; cuts.len()]);
        let mut blocks_of = Vec::new();
        let processes = cuts.len() - 1;
        let most = common.bodies / (processes as u64 * ROOTS);
        for blocks in roots(infos, most as usize, |block| slot_with(cuts, block)) {
            let holder = slot_with(cuts, blocks.start);
            holders[holder + 1] += 1;
            if holder == slot {
                blocks_of.push(blocks.start - own_blocks.start..blocks.end - own_blocks.start);
            }
            all.push(joined(&infos[blocks]));
        }
        for i in 1..holders.len() {
            holders[i] += holders[i - 1];
        }
        let firsts: Vec<u32> = all
            .iter()
            .scan(0, |sum, info: &Info| {
                *sum += info.bodies;
                Some(*sum - info.bodies)
            })
            .collect();
        let mut rest = &domain.keys[..];
        let branch = |info: &Info| {
            let (keys, others) = rest.split_at(info.bodies as usize);
            rest = others;
            Branch::new(keys, setup)
        };
        let own = of_slot(&holders, slot);
        let before = bodies_of(&infos[..own_blocks.start]);
        let blocks = infos[own_blocks.clone()].iter().scan(before, |first, info| {
            *first += info.bodies as usize;
            Some(*first - info.bodies as usize..*first)
        });
        let sums = Sums::new(all.len(), setup, true);
        Self {
            firsts,
            slot,
            blocks: blocks.collect(),
            blocks_of,
            tracks: vec![Track::new(sums.columns()); processes],
            sums,
            branches: all[own].iter().map(branch).collect(),
            roots: all,
            holders,
            others: BTreeMap::new(),
            versions: BTreeMap::new(),
            audiences: audiences(slot, &clusters),
            clusters,
            advanced: BTreeMap::new(),
            replaced: BTreeMap::new(),
            stale: BTreeSet::new(),
            come: None,
            now: None,
            next: None,
            sinks: vec![Vec::new(); processes],
            told: false,
            later: Vec::new(),
            grown: BTreeMap::new(),
            extents: Vec::new(),
            costs: infos[own_blocks].iter().map(|info| info.cost).collect(),
            spare: None,
            before: Before {
                numbers: domain.keys.iter().map(|(_, number)| *number).collect(),
                ..told_before
            },
        }
    }

    /// What was told so far, as own bodies, which have these keys and numbers, are sorted anew. What stays where it is moves so far inside the
    /// box.
    pub(crate) fn into_before(mut self, keys: &[(u64, u32)], moved: [f64; 3]) -> Before {
        let own = self.own();
        let audiences = std::mem::take(&mut self.audiences);
        let told = audiences.into_iter().map(|audience| {
            let mut told = Told::default();
            for (root, Seen { view, by, .. }) in audience.views {
                told.keep(own.start as u32 + root, by, view, &keys[self.bodies_of(root)]);
            }
            told
        });
        Before { told: told.collect(), heard: self.others, moved, ..Before::default() }
    }

    fn own(&self) -> Range<usize> {
        of_slot(&self.holders, self.slot)
    }

    /// A step begins, for which these sums of own blocks were foretold, if any were. Whether all have been told of them.
    pub(crate) fn begin(&mut self, foretold: Option<Sums>) -> bool {
        self.now = foretold;
        self.next.take().is_some()
    }

    /// Own bodies are at these places now.
    pub(crate) fn move_own(&mut self, points: &[[f32; 4]], setup: &Setup) {
        let mut rest = points;
        for (root, branch) in (0..).zip(&mut self.branches) {
            let (own, others) = rest.split_at(branch.bodies());
            if let Some(advanced) = self.advanced.remove(&root) {
                debug_assert!(advanced.is_at(own));
                self.replaced.insert(root, std::mem::replace(branch, advanced));
            } else {
                let first = self.blocks_of[root as usize].start;
                branch.sum_up(own, self.now.as_ref().map(|sums| (sums, first)), setup);
            }
            rest = others;
        }
        self.stale = self.others.keys().copied().collect();
        self.come = None;
        self.later.clear();
        self.grown.clear();
        self.extents.clear();
    }

    /// Own bodies are on their way to these places. It is asked only where somebody wishes for something, and once in a step.
    pub(crate) fn look_ahead(&mut self, later: impl Iterator<Item = [f32; 3]>) {
        if !self.extents.is_empty() {
            return;
        }
        let points = || self.branches.iter().flat_map(|branch| branch.points());
        let moved = points().zip(later).map(|(&[.., mass], [x, y, z])| [x, y, z, mass]);
        self.later.extend(moved);
        let mut places = points().zip(&self.later);
        for block in &self.blocks {
            let [mut low, mut high] = [[f32::INFINITY; 3], [f32::NEG_INFINITY; 3]];
            for (now, later) in places.by_ref().take(block.len()) {
                for place in [now, later] {
                    low = [0, 1, 2].map(|axis| low[axis].min(place[axis]));
                    high = [0, 1, 2].map(|axis| high[axis].max(place[axis]));
                }
            }
            self.extents.push([low, high]);
        }
    }

    /// What all are told for the next step, in which own bodies are expected at these places: see the head of this file.
    pub(crate) fn foretell(&mut self, points: &[[f32; 4]], setup: &Setup) -> Vec<u8> {
        let sums = Sums::of_bodies(self.blocks.iter().map(Range::len), points, setup);
        let mut numbers = Vec::new();
        for (branch, blocks) in self.branches.iter().zip(&self.blocks_of) {
            branch.sums_of((&sums, blocks.start), setup, &mut numbers);
        }
        self.next = Some(sums);
        self.tell_sums(numbers)
    }

    /// What all are told for this step, if they were not.
    pub(crate) fn tell_all(&mut self) -> Vec<u8> {
        let mut numbers = Vec::new();
        self.branches.iter().for_each(|branch| branch.sums(&mut numbers));
        self.tell_sums(numbers)
    }

    fn tell_sums(&mut self, numbers: Vec<f32>) -> Vec<u8> {
        let mut out = Vec::new();
        self.tracks[self.slot].tell(numbers, &mut out);
        out
    }

    /// The sums of own blocks that were foretold for the next step; none if they were not.
    pub(crate) fn foretold(&self) -> Vec<f32> {
        self.next.as_ref().map(Sums::rows).unwrap_or_default()
    }

    /// What another process, at this place, told all. Returns how many numbers it is.
    pub(crate) fn hear_from_all(
        &mut self,
        from: usize,
        mut bytes: &[u8],
    ) -> Result<usize, Unsound> {
        let unsound = Unsound { what: "sums" };
        let (roots, columns) = (of_slot(&self.holders, from), self.sums.columns().len());
        let numbers = columns * roots.len();
        let heard = self.tracks[from].hear(numbers, &mut bytes).map_err(|_| unsound)?;
        for (root, row) in roots.zip(heard.chunks_exact(columns)) {
            self.sums.set_row(root, row);
        }
        if bytes.is_empty() { Ok(numbers) } else { Err(unsound) }
    }

    /// How many audiences there are.
    pub(crate) fn audiences(&self) -> usize {
        self.audiences.len()
    }

    /// What this audience is told of own roots now: of those that were just advanced or, where all are where they are in this step (`rest`), of those
    /// that were not told of it ahead. Nothing if there is nothing to tell; but it waits for the rest of what it was told something of.
    pub(crate) fn tell(&mut self, audience: usize, rest: bool, setup: &Setup) -> Option<Message> {
        let Self { audiences, branches, advanced, .. } = self;
        let views = &mut audiences[audience].views;
        // Who listens to any hears all, for the last message ends it.
        let to: BTreeSet<usize> = views.values().flat_map(|seen| &seen.by).copied().collect();
        let (mut bytes, mut numbers, mut of_root) = (vec![u8::from(rest)], 0, Vec::new());
        for (&root, seen) in views.iter_mut() {
            let now = rest.then(|| &branches[root as usize]);
            if let Some(branch) = now.or(advanced.get(&root)).filter(|_| !seen.is_ahead) {
                of_root.clear();
                branch.tell(&mut seen.view, setup, &mut of_root);
                let part = Part { root: root as usize, version: seen.version, bytes: &of_root };
                part.write(&mut bytes);
                numbers += seen.view.numbers(setup);
                seen.is_ahead = true;
            }
            seen.is_ahead &= !rest;
        }
        let some = numbers > 0 || rest && !to.is_empty();
        some.then(|| Message { to: to.into_iter().collect(), bytes, numbers })
    }

    /// The bodies of an own root, both counted from the first.
    pub(crate) fn bodies_of(&self, root: u32) -> Range<usize> {
        let Range { start, end } = self.blocks_of(root);
        let first = self.blocks[0].start;
        self.blocks[start].start - first..self.blocks[end - 1].end - first
    }

    /// Whether the process at this place tells of its roots.
    pub(crate) fn listens_to(&self, from: usize) -> bool {
        self.others.range(of_slot(&self.holders, from)).next().is_some()
    }

    /// What it told; how many numbers that were taken in, of how many cells and bodies, and whether that was the last.
    pub(crate) fn hear(
        &mut self,
        from: usize,
        bytes: &[u8],
        setup: &Setup,
    ) -> Result<([usize; 3], bool), Unsound> {
        let unsound = || Unsound { what: "cells of others" };
        let first = of_slot(&self.holders, from).start;
        let (last, mut bytes) = bytes.split_first().ok_or_else(unsound)?;
        let mut sum = [0; 3];
        while !bytes.is_empty() {
            let Part { root, version, bytes: mut part } =
                Part::take(&mut bytes).ok_or_else(unsound)?;
            // Others may have wished for what nobody here needs, or for more than was told ahead.
            if self.versions.get(&(first + root)) != Some(&version) {
                continue;
            }
            let other = self.others.get_mut(&(first + root)).ok_or_else(unsound)?;
            other.hear(&mut part, setup).filter(|()| part.is_empty()).ok_or_else(unsound)?;
            if self.stale.remove(&(first + root)) {
                self.come.iter_mut().for_each(|come| _ = come.insert(first + root));
            }
            let these = [other.numbers(setup), other.cells(), other.bodies()];
            sum = [0, 1, 2].map(|i| sum[i] + these[i]);
        }
        if *last != 0 && self.stale.range(of_slot(&self.holders, from)).next().is_some() {
            return Err(unsound());
        }
        Ok((sum, *last != 0))
    }

    /// Whether something of others' roots in this step is still to come.
    pub(crate) fn waits(&self) -> bool {
        !self.stale.is_empty()
    }

    /// Own roots, counted from the first, that are worth to be computed first, as other clusters are told of them: those of which most
    /// is told for what they cost, for up to three quarters of all work. Not those that were advanced.
    pub(crate) fn seen_afar(&self, setup: &Setup) -> Vec<First> {
        let mut numbers = vec![0; self.branches.len()];
        for Audience { views, .. } in self.audiences.iter().filter(|audience| audience.is_afar) {
            for (&root, seen) in views.iter().filter(|(root, _)| !self.advanced.contains_key(root))
            {
                numbers[root as usize] += seen.view.numbers(setup);
            }
        }
        let cost = |root: usize| self.part_of_work(root as u32);
        let mut some: Vec<(usize, f64)> = (0..numbers.len())
            .filter(|&root| numbers[root] > 0)
            .map(|root| (root, cost(root)))
            .collect();
        let worth =
            |&(root, cost): &(usize, f64)| numbers[root] as f64 / cost.max(f64::MIN_POSITIVE);
        some.sort_by(|a, b| worth(b).total_cmp(&worth(a)));
        let sums = some.iter().scan(0.0, |sum, (_, cost)| {
            *sum += cost;
            Some(*sum)
        });
        let count = sums.take_while(|sum| *sum <= AHEAD).count();
        let first = |&(root, part): &(usize, f64)| {
            let root = root as u32;
            First { root, blocks: self.blocks_of(root), part }
        };
        some[..count].iter().map(first).collect()
    }

    /// Blocks of an own root, counted from the first.
    pub(crate) fn blocks_of(&self, root: u32) -> Range<usize> {
        self.blocks_of[root as usize].clone()
    }

    /// The bodies of this own root will be at these places in the next step. In the tree of this one they stay where they are.
    pub(crate) fn advance(&mut self, root: u32, points: &[[f32; 4]], setup: &Setup) {
        let first = self.blocks_of(root).start;
        let next = self.next.as_ref().map(|sums| (sums, first));
        let replaced = self.replaced.remove(&root);
        // All but what is summed up is the same.
        let mut branch = replaced.unwrap_or_else(|| self.branches[root as usize].clone());
        branch.sum_up(points, next, setup);
        self.advanced.insert(root, branch);
    }

    /// The tree of all that is here of this step: the `last` one with what came since, or a new one with its memory. Also how many of its
    /// cells are new.
    pub(crate) fn tree(&mut self, last: Option<Tree>, setup: &Setup, side: f64) -> (Tree, usize) {
        let come = self.come.replace(BTreeSet::new());
        let last = match (last, come) {
            (Some(tree), Some(come)) => return self.hung_in(tree, come),
            (last, _) => last,
        };
        let own = (self.own().start, &self.branches[..]);
        let others = self.others.iter().filter(|(root, _)| !self.stale.contains(root));
        let others = others.map(|(root, other)| (*root, other)).collect();
        let tree = assemble(last, &self.roots, &self.sums, own, &others, setup, side);
        let new = tree.cells.links.len();
        (tree, new)
    }

    /// A tree of this step with these roots of others, which came since it was put together; and how many cells they have.
    fn hung_in(&self, mut tree: Tree, come: BTreeSet<usize>) -> (Tree, usize) {
        let before = tree.cells.links.len();
        for root in come {
            let first = self.firsts[root] as usize;
            let bodies = first..first + self.roots[root].bodies as usize;
            add(&mut tree, bodies, &self.others[&root]);
        }
        let new = tree.cells.links.len() - before;
        (tree, new)
    }

    /// The bodies of own blocks.
    pub(crate) fn blocks(&self) -> &[Range<usize>] {
        &self.blocks
    }

    /// What is wished for, if anything is `wanted`: those roots, and others of the tree that own blocks may have to open before long. Blocks
    /// that `missed` something tell how far they look now, at first all.
    pub(crate) fn wish(
        &mut self,
        tree: &Tree,
        mut wanted: BTreeSet<u32>,
        missed: &[usize],
        scales: &[f32],
        setup: &Setup,
    ) -> Wish {
        if wanted.is_empty() {
            return Wish::default();
        }
        let sink = |block: usize| (block as u32, Sink::new(self.extents[block], scales[block]));
        let sinks: Vec<(u32, Sink)> = match self.told {
            true => missed.iter().copied().map(sink).collect(),
            false => (0..self.blocks.len()).map(sink).collect(),
        };
        self.told = true;
        for bodies in Sink::closed(sinks.iter().map(|(_, sink)| sink), tree, setup) {
            let root = self.root_of(bodies.start as u32);
            if self.roots[root].bodies as usize == bodies.len() {
                wanted.insert(root as u32);
            }
        }
        Wish { roots: wanted.into_iter().collect(), sinks }
    }

    /// Takes in where the blocks of the process at this place are.
    fn note(&mut self, from: usize, wish: &Wish) -> Result<(), Unsound> {
        let sinks = &mut self.sinks[from];
        for &(block, sink) in &wish.sinks {
            let block = block as usize;
            if block < sinks.len() {
                sinks[block] = sink;
            } else if block == sinks.len() {
                sinks.push(sink);
            } else {
                return Err(Unsound { what: "places of blocks" });
            }
        }
        Ok(())
    }

    /// Takes in what each process wishes for, by place along the curve; what others are told, if that is something of own roots. From now
    /// on they are told of these roots in each step.
    pub(crate) fn grant(
        &mut self,
        wishes: &[Wish],
        setup: &Setup,
    ) -> Result<Vec<Message>, Unsound> {
        for (from, wish) in wishes.iter().enumerate() {
            self.note(from, wish)?;
        }
        let own = self.own();
        let Self { audiences, branches, firsts, grown, later, sinks, before: before_sort, .. } =
            self;
        let mut messages = Vec::new();
        for (audience, Audience { slots, views, .. }) in audiences.iter_mut().enumerate() {
            let mut wished: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
            for &slot in slots.iter() {
                let roots = wishes[slot].roots.iter().map(|root| *root as usize);
                for root in roots.filter(|root| own.contains(root)) {
                    wished.entry(root).or_default().insert(slot);
                }
            }
            if wished.is_empty() {
                continue;
            }
            let (mut to, mut bytes, mut numbers) = (BTreeSet::new(), Vec::new(), 0);
            for (root, mut by) in wished {
                let at = root - own.start;
                let before = views.get(&(at as u32));
                by.extend(before.iter().flat_map(|seen| &seen.by));
                let version = before.map_or(0, |seen| seen.version) + 1;
                let branch = &branches[at];
                let first = (firsts[root] - firsts[own.start]) as usize;
                let grown = grown.entry(at).or_insert_with(|| {
                    let mut grown = branch.clone();
                    grown.sum_up(&later[first..first + grown.bodies()], None, setup);
                    grown
                });
                let sinks: Vec<Sink> = by.iter().flat_map(|slot| &sinks[*slot]).copied().collect();
                let mut of_root = Vec::new();
                let bodies = first..first + branch.bodies();
                let view = before_sort.of_told(audience, &by, bodies, |known| {
                    branch.view(grown, &sinks, known, setup, &mut of_root)
                });
                let mut view = view.ok_or(Unsound { what: "wishes for what is far" })?;
                branch.tell(&mut view, setup, &mut of_root);
                Part { root: at, version, bytes: &of_root }.write(&mut bytes);
                numbers += view.numbers(setup);
                to.extend(&by);
                views.insert(at as u32, Seen { view, by, version, is_ahead: false });
            }
            messages.push(Message { to: to.into_iter().collect(), bytes, numbers });
        }
        Ok(messages)
    }

    /// Whether this process has or wishes for more of this root than its sum.
    fn listens(&self, root: usize, wishes: &[Wish]) -> bool {
        self.others.contains_key(&root) || wishes[self.slot].roots.contains(&(root as u32))
    }

    /// Whether what was wished for of the process at this place, by this one or together with it, comes here.
    pub(crate) fn is_granted(&self, from: usize, wishes: &[Wish]) -> bool {
        let roots = of_slot(&self.holders, from);
        let here = self.clusters[self.slot];
        let together = |slot: usize| {
            slot == self.slot || self.clusters[from] != here && self.clusters[slot] == here
        };
        let wished =
            (0..wishes.len()).filter(|&slot| together(slot)).flat_map(|slot| &wishes[slot].roots);
        wished
            .map(|root| *root as usize)
            .any(|root| roots.contains(&root) && self.listens(root, wishes))
    }

    /// Takes in what was wished for of the process at this place.
    pub(crate) fn receive(
        &mut self,
        from: usize,
        wishes: &[Wish],
        mut bytes: &[u8],
        setup: &Setup,
    ) -> Result<(), Unsound> {
        let unsound = || Unsound { what: "cells of a root" };
        let roots = of_slot(&self.holders, from);
        while !bytes.is_empty() {
            let Part { root: at, version, bytes: mut part } =
                Part::take(&mut bytes).ok_or_else(unsound)?;
            let root = roots.start + at;
            if !roots.contains(&root) {
                return Err(unsound());
            }
            if !self.listens(root, wishes) {
                continue;
            }
            let bodies = self.roots[root].bodies;
            let read = |past: &Past<'_>| Other::read(bodies, &mut part, past, setup);
            let other = self.before.of_heard(read);
            let heard = other.and_then(|mut other| {
                other.hear(&mut part, setup)?;
                part.is_empty().then_some(other)
            });
            if self.others.insert(root, heard.ok_or_else(unsound)?).is_some() {
                self.come = None;
            }
            self.come.iter_mut().for_each(|come| _ = come.insert(root));
            self.versions.insert(root, version);
        }
        let mut wished = wishes[self.slot].roots.iter().map(|root| *root as usize);
        let is_here = |root: usize| !roots.contains(&root) || self.others.contains_key(&root);
        if wished.all(is_here) { Ok(()) } else { Err(unsound()) }
    }

    /// After the forces of a step: what own blocks cost.
    pub(crate) fn finish(&mut self, costs: Vec<f32>) {
        self.costs = costs;
        self.before = Before::default();
    }

    /// The root of this body of all.
    pub(crate) fn root_of(&self, body: u32) -> usize {
        self.firsts.partition_point(|&first| first <= body) - 1
    }

    /// The part of all work that an own root is, counted from the first, by what it cost last.
    fn part_of_work(&self, root: u32) -> f64 {
        let sum = |costs: &[f32]| costs.iter().map(|cost| f64::from(*cost)).sum::<f64>();
        sum(&self.costs[self.blocks_of(root)]) / sum(&self.costs).max(f64::MIN_POSITIVE)
    }

    /// What the forces on own blocks cost last.
    pub(crate) fn costs(&self) -> &[f32] {
        &self.costs
    }
}

/// Who is told the same by the process at this place: see [`Audience`].
fn audiences(slot: usize, clusters: &[usize]) -> Vec<Audience> {
    let mut slots: BTreeMap<(usize, usize), Vec<usize>> = BTreeMap::new();
    for (other, &cluster) in clusters.iter().enumerate().filter(|(other, _)| *other != slot) {
        let alone = if cluster == clusters[slot] { other } else { 0 };
        slots.entry((cluster, alone)).or_default().push(other);
    }
    let audience = |((cluster, _), slots)| {
        let is_afar = cluster != clusters[slot];
        Audience { slots, is_afar, views: BTreeMap::new() }
    };
    slots.into_iter().map(audience).collect()
}
