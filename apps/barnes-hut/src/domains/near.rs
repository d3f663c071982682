//! What a process knows of other domains: the sums of all roots, and of those that are near the cells that its own blocks may open,
//! down to bodies.
//!
//! All know where blocks are and how far they look ([`Subscriber`]) when bodies were sorted, and so what they need of own roots. What is missing still, and
//! in the first step all, a process wishes for, and says where its blocks are and how far they look; from then on the holder tells it
//! in each step what these need, always of the same cells and bodies ([`View`]), until bodies are sorted or dealt out anew. Sinks are somewhat wider than blocks are, so
//! that wishes are rare after the first step. Processes of another cluster are told the same ([`Audience`]), whatever one of them needs of a
//! root, for it crosses the line to them once; of each root only those that need it take in what comes.
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

use springtide_runtime::spmd::INLINE_MESSAGE_MAX;
use springtide_runtime::work::{ParallelLoops, Stop, collect};

use super::layout::{of_slot, slot_with};
use super::past::{PreviousStep, SentRoots};
use super::state::{Common, Domain, Unsound};
use super::turns::First;
use super::wish::Wish;
use crate::loops::BODIES_PER_PIECE;
use crate::partial::{
    BlockInfo, Branch, FormerViews, RemoteBranch, Subscriber, Subscription, add, around, assemble,
    bodies_of, joined, roots,
};
use crate::shared::Setup;
use crate::smooth::{Track, put_number, take_number};
use crate::tree::{BodyTree, CellSums};

/// A root has at most this part of a domain's bodies. The threads of a node share the work on
/// roots, so there are several for each; and the last roots whose next places others receive are
/// then needed by few blocks of theirs.
const ROOTS: u64 = 32;

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
    views: BTreeMap<u32, RootSubscription>,
}

/// What an audience is told of a root.
#[derive(Debug)]
struct RootSubscription {
    view: Subscription,
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
    pub to: BTreeSet<usize>,
    /// The first says whether it is the last one.
    pub bytes: Vec<u8>,
    /// How many numbers it is.
    pub numbers: usize,
}

/// Puts a part to these messages, which stay short, for those.
fn put(messages: &mut Vec<Message>, part: &RootPart<'_>, to: &BTreeSet<usize>, numbers: usize) {
    if messages.last().is_none_or(|last| last.bytes.len() + part.bytes.len() > INLINE_MESSAGE_MAX) {
        messages.push(Message { to: BTreeSet::new(), bytes: vec![0], numbers: 0 });
    }
    if let Some(message) = messages.last_mut() {
        message.to.extend(to);
        part.write(&mut message.bytes);
        message.numbers += numbers;
    }
}

/// The last of these messages goes to all these, and says so.
fn end(messages: &mut Vec<Message>, all: BTreeSet<usize>) {
    match messages.last_mut() {
        Some(last) if last.to == all => last.bytes[0] = 1,
        _ if all.is_empty() => {}
        _ => messages.push(Message { to: all, bytes: vec![1], numbers: 0 }),
    }
}

/// Something of a root, in a message.
struct RootPart<'b> {
    root: usize,
    /// Of which view of it.
    version: u32,
    bytes: &'b [u8],
}

impl<'b> RootPart<'b> {
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
    roots: Vec<BlockInfo>,
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
    sums: CellSums,
    /// What each process tells all, by place along the curve: of the own roots as told, of others' as heard.
    tracks: Vec<Track>,
    branches: Vec<Branch>,
    /// Of the roots of others, what is known beyond their sums.
    others: BTreeMap<usize, RemoteBranch>,
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
    now: Option<CellSums>,
    next: Option<CellSums>,
    /// Where the blocks of others are and how far they look, by place along the curve; as last told.
    sinks: Vec<Vec<Subscriber>>,
    /// Whether this process has sent the places of its blocks to the others.
    has_sent_places: bool,
    /// Whether all know of all blocks, as bodies were just sorted, but nobody was told of roots yet.
    is_sorted: bool,
    /// What was wished for in this step.
    wished: BTreeSet<usize>,
    /// Where own bodies will be later, before bodies are sorted anew, if that was asked for in this step; and own roots with these, as they
    /// are asked for.
    later: Vec<[f32; 4]>,
    grown: BTreeMap<u32, Branch>,
    /// What own blocks cost last.
    costs: Vec<f32>,
    /// What was done in this step beside forces.
    beside: f64,
    /// The last tree, for its memory.
    pub(super) spare: Option<BodyTree>,
    /// In the first step after bodies were sorted, what was told before.
    before: PreviousStep,
}

impl Near {
    /// With nothing but own blocks, whose domain has this place along the curve, and what was told before; each place has a number of its
    /// cluster. Of all blocks where they are and how far they look, or of none.
    pub(crate) fn new<L: ParallelLoops>(
        loops: &L,
        common: &Common,
        cuts: &[u32],
        domain: &Domain,
        (slot, clusters): (usize, Vec<usize>),
        (told_before, sinks): (PreviousStep, Vec<Subscriber>),
        setup: &Setup,
    ) -> Result<Self, L::Stop> {
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
            .scan(0, |sum, info: &BlockInfo| {
                *sum += info.bodies;
                Some(*sum - info.bodies)
            })
            .collect();
        let own = of_slot(&holders, slot);
        let mut rest = &domain.keys[..];
        let keys_of = |info: &BlockInfo| {
            let (keys, others) = rest.split_at(info.bodies as usize);
            rest = others;
            keys
        };
        let keys: Vec<_> = all[own.clone()].iter().map(keys_of).collect();
        let branches = collect(loops, keys.len(), 1, |at| Branch::new(keys[at], setup))?;
        let before = bodies_of(&infos[..own_blocks.start]);
        let blocks = infos[own_blocks.clone()].iter().scan(before, |first, info| {
            *first += info.bodies as usize;
            Some(*first - info.bodies as usize..*first)
        });
        let sums = CellSums::new(all.len(), setup, true);
        let is_sorted = !sinks.is_empty();
        let sinks_of =
            |slot: usize| if is_sorted { sinks[of_slot(cuts, slot)].to_vec() } else { Vec::new() };
        Ok(Self {
            firsts,
            slot,
            blocks: blocks.collect(),
            blocks_of,
            tracks: vec![Track::new(sums.columns()); processes],
            sums,
            branches,
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
            sinks: (0..processes).map(sinks_of).collect(),
            has_sent_places: is_sorted,
            is_sorted,
            wished: BTreeSet::new(),
            later: Vec::new(),
            grown: BTreeMap::new(),
            costs: infos[own_blocks].iter().map(|info| info.cost).collect(),
            beside: 0.0,
            spare: None,
            before: PreviousStep {
                numbers: domain.keys.iter().map(|(_, number)| *number).collect(),
                ..told_before
            },
        })
    }

    /// What was told so far, as own bodies, which have these keys and numbers, are sorted anew. What stays where it is moves so far inside the
    /// box.
    pub(crate) fn into_before(mut self, keys: &[(u64, u32)], moved: [f64; 3]) -> PreviousStep {
        let own = self.own();
        let audiences = std::mem::take(&mut self.audiences);
        let told = audiences.into_iter().map(|audience| {
            let mut told = SentRoots::default();
            for (root, RootSubscription { view, by, .. }) in audience.views {
                told.keep(own.start as u32 + root, by, view, &keys[self.bodies_of(root)]);
            }
            told
        });
        PreviousStep { told: told.collect(), heard: self.others, moved, ..PreviousStep::default() }
    }

    fn own(&self) -> Range<usize> {
        of_slot(&self.holders, self.slot)
    }

    /// A step begins, for which these sums of own blocks were foretold, if any were. Whether all have been told of them.
    pub(crate) fn begin(&mut self, foretold: Option<CellSums>) -> bool {
        self.now = foretold;
        self.next.take().is_some()
    }

    /// Moves own bodies to these places.
    pub(crate) fn move_own<L: ParallelLoops>(
        &mut self,
        loops: &L,
        points: &[[f32; 4]],
        setup: &Setup,
    ) -> Result<(), L::Stop> {
        let Self { branches, advanced, blocks_of, now, .. } = self;
        let mut rest = points;
        let mut moves = Vec::with_capacity(branches.len());
        for ((root, branch), blocks) in (0u32..).zip(branches).zip(blocks_of) {
            let (own, others) = rest.split_at(branch.bodies());
            rest = others;
            moves.push((root, branch, blocks.start, own, advanced.remove(&root)));
        }
        loops.parallel_chunks(&mut moves, 1, |_, moves| {
            for (_, branch, first, own, advanced) in moves {
                if let Some(advanced) = advanced {
                    debug_assert!(advanced.is_at(own));
                    std::mem::swap(&mut **branch, advanced);
                } else {
                    branch.sum_up(own, now.as_ref().map(|sums| (sums, *first)), setup);
                }
            }
        })?;
        let replaced = moves.into_iter().filter_map(|(root, .., replaced)| Some((root, replaced?)));
        self.replaced.extend(replaced);
        self.stale = self.others.keys().copied().collect();
        self.come = None;
        self.wished.clear();
        self.later.clear();
        self.grown.clear();
        Ok(())
    }

    /// Predicts the `later` places of own bodies, by index, once in a step.
    pub(crate) fn look_ahead<L: ParallelLoops>(
        &mut self,
        loops: &L,
        later: impl Fn(usize) -> [f32; 3] + Sync,
    ) -> Result<(), L::Stop> {
        if self.later.is_empty() {
            let masses: Vec<f32> = self.branches.iter().flat_map(Branch::masses).collect();
            self.later = collect(loops, masses.len(), BODIES_PER_PIECE, |i| {
                let [x, y, z] = later(i);
                [x, y, z, masses[i]]
            })?;
        }
        Ok(())
    }

    /// Where an own block is, and where its bodies will be later.
    fn extent(&self, block: usize) -> [[f32; 3]; 2] {
        let root = self.blocks_of.partition_point(|blocks| blocks.end <= block);
        let of_root = self.bodies_of(root as u32);
        let first = self.blocks[0].start;
        let bodies = self.blocks[block].start - first..self.blocks[block].end - first;
        let now = bodies.start - of_root.start..bodies.end - of_root.start;
        let both = self.branches[root].points()[now].iter().chain(&self.later[bodies]);
        around(both.map(|&[x, y, z, _]| [x, y, z]))
    }

    /// Predicts the sums of own blocks for the next step, in which own bodies are expected at these
    /// places: see the head of this file.
    pub(crate) fn foretell<L: ParallelLoops>(
        &mut self,
        loops: &L,
        points: &[[f32; 4]],
        setup: &Setup,
    ) -> Result<(), L::Stop> {
        let first = self.blocks.first().map_or(0, |bodies| bodies.start);
        let bodies = |block: usize| {
            let bodies = &self.blocks[block];
            &points[bodies.start - first..bodies.end - first]
        };
        self.next = Some(CellSums::of_leaves(loops, self.blocks.len(), bodies, setup)?);
        Ok(())
    }

    /// The message to all about the predicted sums.
    pub(crate) fn tell_foretold(&mut self, setup: &Setup) -> Vec<u8> {
        let mut numbers = Vec::new();
        if let Some(sums) = &self.next {
            for (branch, blocks) in self.branches.iter().zip(&self.blocks_of) {
                branch.sums_of((sums, blocks.start), setup, &mut numbers);
            }
        }
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
        self.next.as_ref().map(CellSums::rows).unwrap_or_default()
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

    /// The messages to this audience about own roots: those that were just advanced or, once all are
    /// at their places in this step (`rest`), those that were not sent ahead. None if nothing is to
    /// be sent; but the audience waits for the rest of what was begun.
    pub(crate) fn tell<L: ParallelLoops>(
        &mut self,
        loops: &L,
        audience: usize,
        rest: bool,
        setup: &Setup,
    ) -> Result<Vec<Message>, L::Stop> {
        let Self { audiences, branches, advanced, .. } = self;
        let views = &mut audiences[audience].views;
        // All receive the last message, if they receive any.
        let to: BTreeSet<usize> = views.values().flat_map(|seen| &seen.by).copied().collect();
        let mut parts = Vec::new();
        for (&root, seen) in views.iter_mut() {
            let now = rest.then(|| &branches[root as usize]);
            let branch = now.or(advanced.get(&root)).filter(|_| !seen.is_ahead);
            parts.extend(branch.map(|branch| (root, branch, &mut *seen, Vec::new())));
        }
        loops.parallel_chunks(&mut parts, 1, |_, parts| {
            for (_, branch, seen, bytes) in parts {
                branch.tell(&mut seen.view, setup, bytes);
            }
        })?;
        let mut messages = Vec::new();
        for (root, _, seen, bytes) in parts {
            let part = RootPart { root: root as usize, version: seen.version, bytes: &bytes };
            put(&mut messages, &part, &to, seen.view.numbers(setup));
            seen.is_ahead = true;
        }
        if rest {
            views.values_mut().for_each(|seen| seen.is_ahead = false);
            end(&mut messages, to);
        }
        Ok(messages)
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

    /// Stores the data of a message from the process at this place. Returns the counts of numbers,
    /// cells and bodies, and whether it was the last message.
    pub(crate) fn hear<L: ParallelLoops<Stop = Stop>>(
        &mut self,
        loops: &L,
        from: usize,
        bytes: &[u8],
        setup: &Setup,
    ) -> Result<([usize; 3], bool), Stop> {
        let unsound = || Unsound { what: "cells of others" };
        let roots = of_slot(&self.holders, from);
        let (last, mut bytes) = bytes.split_first().ok_or_else(unsound)?;
        let mut parts = BTreeMap::new();
        while !bytes.is_empty() {
            let RootPart { root, version, bytes: part } =
                RootPart::take(&mut bytes).ok_or_else(unsound)?;
            // Others may have wished for what no process here needs, or for more than was sent
            // ahead.
            if self.versions.get(&(roots.start + root)) == Some(&version)
                && parts.insert(roots.start + root, part).is_some()
            {
                return Err(unsound().into());
            }
        }
        let others = self.others.range_mut(roots.clone());
        let mut heard: Vec<_> =
            others.filter_map(|(root, other)| Some((parts.remove(root)?, *root, other))).collect();
        if !parts.is_empty() {
            return Err(unsound().into());
        }
        let mut is_sound = vec![false; heard.len()];
        let mut pairs: Vec<_> = heard.iter_mut().zip(&mut is_sound).collect();
        loops.parallel_chunks(&mut pairs, 1, |_, pairs| {
            for ((part, _, other), is_sound) in pairs {
                **is_sound = other.hear(part, setup).is_some() && part.is_empty();
            }
        })?;
        let mut sum = [0; 3];
        for (_, root, other) in &heard {
            sum = added(sum, other, setup);
            if self.stale.remove(root) {
                self.come.iter_mut().for_each(|come| _ = come.insert(*root));
            }
        }
        let is_short = *last != 0 && self.stale.range(roots).next().is_some();
        if is_short || is_sound.contains(&false) {
            return Err(unsound().into());
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

    /// The tree of all present data of this step: the `last` one with what has arrived since, or a
    /// new one in its memory. Also returns the number of its new cells.
    pub(crate) fn tree<L: ParallelLoops>(
        &mut self,
        loops: &L,
        last: Option<BodyTree>,
        setup: &Setup,
        side: f64,
    ) -> Result<(BodyTree, usize), L::Stop> {
        let come = self.come.replace(BTreeSet::new());
        let last = match (last, come) {
            (Some(tree), Some(come)) => return Ok(self.hung_in(tree, come)),
            (last, _) => last,
        };
        let own = (self.own().start, &self.branches[..]);
        let others = self.others.iter().filter(|(root, _)| !self.stale.contains(root));
        let others = others.map(|(root, other)| (*root, other)).collect();
        let tree = assemble(loops, last, (&self.roots, &self.sums), own, &others, (setup, side))?;
        let new = tree.cells.links.len();
        Ok((tree, new))
    }

    /// A tree of this step with these roots of others, which came since it was put together; and how many cells they have.
    fn hung_in(&self, mut tree: BodyTree, come: BTreeSet<usize>) -> (BodyTree, usize) {
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
        tree: &BodyTree,
        mut wanted: BTreeSet<u32>,
        missed: &[usize],
        scales: &[f32],
        setup: &Setup,
    ) -> Wish {
        if wanted.is_empty() {
            return Wish::default();
        }
        let sink =
            |block: usize| (block as u32, Subscriber::new(self.extent(block), scales[block]));
        let sinks: Vec<(u32, Subscriber)> = if self.has_sent_places {
            missed.iter().copied().map(sink).collect()
        } else {
            (0..self.blocks.len()).map(sink).collect()
        };
        self.has_sent_places = true;
        for bodies in Subscriber::closed(sinks.iter().map(|(_, sink)| sink), tree, setup) {
            let root = self.root_of(bodies.start as u32);
            if self.roots[root].bodies as usize == bodies.len() {
                wanted.insert(root as u32);
            }
        }
        self.wished = wanted.iter().map(|root| *root as usize).collect();
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
    pub(crate) fn grant<L: ParallelLoops<Stop = Stop>>(
        &mut self,
        loops: &L,
        wishes: &[Wish],
        setup: &Setup,
    ) -> Result<Vec<Message>, Stop> {
        for (from, wish) in wishes.iter().enumerate() {
            self.note(from, wish)?;
        }
        let own = self.own();
        let mut messages = Vec::new();
        for audience in 0..self.audiences.len() {
            let mut wished: BTreeMap<u32, BTreeSet<usize>> = BTreeMap::new();
            for &slot in &self.audiences[audience].slots {
                let roots = wishes[slot].roots.iter().map(|root| *root as usize);
                for root in roots.filter(|root| own.contains(root)) {
                    wished.entry((root - own.start) as u32).or_default().insert(slot);
                }
            }
            if !wished.is_empty() {
                messages.extend(self.show(loops, audience, wished, setup)?);
            }
        }
        Ok(messages)
    }

    /// Whether all know of all blocks, as bodies were just sorted, but nobody was told of roots yet.
    pub(crate) fn is_sorted(&self) -> bool {
        self.is_sorted
    }

    /// The messages after bodies were sorted: about own roots that are not far from others' blocks.
    pub(crate) fn show_sorted<L: ParallelLoops<Stop = Stop>>(
        &mut self,
        loops: &L,
        setup: &Setup,
    ) -> Result<Vec<Message>, Stop> {
        self.is_sorted = false;
        if self.audiences.is_empty() {
            return Ok(Vec::new());
        }
        self.grow(loops, 0..self.branches.len() as u32, setup)?;
        let mut messages = Vec::new();
        for audience in 0..self.audiences.len() {
            let slots = &self.audiences[audience].slots;
            let seen_by = collect(loops, self.branches.len(), 1, |root| {
                let (branch, grown) = (&self.branches[root], &self.grown[&(root as u32)]);
                let sees = |slot: &usize| branch.is_near_to(grown, &self.sinks[*slot], setup);
                slots.iter().copied().filter(sees).collect::<BTreeSet<usize>>()
            })?;
            let seen = (0u32..).zip(seen_by).filter(|(_, by)| !by.is_empty()).collect();
            messages.extend(self.show(loops, audience, seen, setup)?);
        }
        Ok(messages)
    }

    /// Makes own roots, counted from the first, with bodies at their later places.
    fn grow<L: ParallelLoops>(
        &mut self,
        loops: &L,
        roots: impl IntoIterator<Item = u32>,
        setup: &Setup,
    ) -> Result<(), L::Stop> {
        let roots: Vec<u32> =
            roots.into_iter().filter(|root| !self.grown.contains_key(root)).collect();
        let grown = collect(loops, roots.len(), 1, |at| {
            let root = roots[at];
            let mut grown = self.branches[root as usize].clone();
            grown.sum_up(&self.later[self.bodies_of(root)], None, setup);
            grown
        })?;
        self.grown.extend(roots.into_iter().zip(grown));
        Ok(())
    }

    /// Shows own roots, counted from the first, to some of an audience. Those that had a view of
    /// them before get the new one.
    fn show<L: ParallelLoops<Stop = Stop>>(
        &mut self,
        loops: &L,
        audience: usize,
        roots: BTreeMap<u32, BTreeSet<usize>>,
        setup: &Setup,
    ) -> Result<Vec<Message>, Stop> {
        self.grow(loops, roots.keys().copied(), setup)?;
        let Audience { slots, is_afar, views } = &self.audiences[audience];
        let roots: Vec<(u32, BTreeSet<usize>)> = roots.into_iter().collect();
        let shown = collect(loops, roots.len(), 1, |at| {
            let (root, by) = &roots[at];
            let before = views.get(root);
            let mut by = by.clone();
            by.extend(before.iter().flat_map(|seen| &seen.by));
            let version = before.map_or(0, |seen| seen.version) + 1;
            let branch = &self.branches[*root as usize];
            let sinks: Vec<Subscriber> =
                by.iter().flat_map(|slot| &self.sinks[*slot]).copied().collect();
            let mut bytes = Vec::new();
            if *is_afar {
                write_takers(slots, &by, &mut bytes);
            }
            let view = self.before.of_told(audience, &by, self.bodies_of(*root), |known| {
                branch.view(&self.grown[root], &sinks, known, setup, &mut bytes)
            });
            let mut view = view?;
            branch.tell(&mut view, setup, &mut bytes);
            Some((RootSubscription { view, by, version, is_ahead: false }, bytes))
        })?;
        let Audience { slots, views, .. } = &mut self.audiences[audience];
        let mut messages = Vec::new();
        for ((root, _), shown) in roots.into_iter().zip(shown) {
            let (seen, bytes) = shown.ok_or(Unsound { what: "wishes for what is far" })?;
            let part = RootPart { root: root as usize, version: seen.version, bytes: &bytes };
            put(&mut messages, &part, &seen.by, seen.view.numbers(setup));
            views.insert(root, seen);
        }
        end(&mut messages, slots.iter().copied().collect());
        Ok(messages)
    }

    /// Whether the process at this place shows something to this one, or to it together with others, as it was wished for.
    pub(crate) fn is_granted(&self, from: usize, wishes: &[Wish]) -> bool {
        let roots = of_slot(&self.holders, from);
        let mut wished = self.told_with(from).flat_map(|slot| &wishes[slot].roots);
        wished.any(|root| roots.contains(&(*root as usize)))
    }

    /// The places along the curve of those whom the process at this one tells the same as this one.
    fn told_with(&self, from: usize) -> impl Iterator<Item = usize> {
        let here = self.clusters[self.slot];
        let is_afar = self.clusters[from] != here;
        (0..self.clusters.len())
            .filter(move |&slot| slot == self.slot || is_afar && self.clusters[slot] == here)
    }

    /// Takes in what the process at this place shows. Returns what [`Near::hear`] does.
    pub(crate) fn see(
        &mut self,
        from: usize,
        bytes: &[u8],
        setup: &Setup,
    ) -> Result<([usize; 3], bool), Unsound> {
        let unsound = || Unsound { what: "cells of a root" };
        let roots = of_slot(&self.holders, from);
        let is_afar = self.clusters[from] != self.clusters[self.slot];
        let together = self.told_with(from).count();
        let place = self.told_with(from).take_while(|&slot| slot != self.slot).count();
        let (last, mut bytes) = bytes.split_first().ok_or_else(unsound)?;
        let mut sum = [0; 3];
        while !bytes.is_empty() {
            let RootPart { root: at, version, bytes: mut part } =
                RootPart::take(&mut bytes).ok_or_else(unsound)?;
            let root = roots.start + at;
            if !roots.contains(&root) {
                return Err(unsound());
            }
            if is_afar && !takes(place, together, &mut part).ok_or_else(unsound)? {
                continue;
            }
            let bodies = self.roots[root].bodies;
            let read = |past: &FormerViews<'_>| RemoteBranch::read(bodies, &mut part, past, setup);
            let other = self.before.of_heard(read);
            let heard = other.and_then(|mut other| {
                other.hear(&mut part, setup)?;
                part.is_empty().then_some(other)
            });
            let heard = heard.ok_or_else(unsound)?;
            sum = added(sum, &heard, setup);
            if self.others.insert(root, heard).is_some() {
                self.come = None;
            }
            self.come.iter_mut().for_each(|come| _ = come.insert(root));
            self.versions.insert(root, version);
        }
        let is_last = *last != 0;
        if is_last && !self.wished.range(roots).all(|root| self.others.contains_key(root)) {
            return Err(unsound());
        }
        Ok((sum, is_last))
    }

    /// Something was done beside forces that cost so much.
    pub(crate) fn spend(&mut self, cost: f64) {
        self.beside += cost;
    }

    /// After the forces of a step: what those on own blocks cost. What was done beside them counts as theirs: it is more where others are
    /// near.
    pub(crate) fn finish(&mut self, costs: Vec<f32>) {
        let forces: f64 = costs.iter().map(|cost| f64::from(*cost)).sum();
        let times = 1.0 + std::mem::take(&mut self.beside) / forces.max(f64::MIN_POSITIVE);
        let all = |cost| (f64::from(cost) * times) as f32;
        self.costs = if times.is_finite() { costs.into_iter().map(all).collect() } else { costs };
        self.before = PreviousStep::default();
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

    /// What own blocks cost last.
    pub(crate) fn costs(&self) -> &[f32] {
        &self.costs
    }
}

/// With the numbers, cells and bodies that were heard of a root.
fn added(sum: [usize; 3], other: &RemoteBranch, setup: &Setup) -> [usize; 3] {
    let these = [other.numbers(setup), other.cells(), other.bodies()];
    [0, 1, 2].map(|i| sum[i] + these[i])
}

/// Writes which of those who are told take it in, for [`takes`].
fn write_takers(told: &[usize], by: &BTreeSet<usize>, to: &mut Vec<u8>) {
    let bit = |(i, slot): (usize, &usize)| u8::from(by.contains(slot)) << i;
    to.extend(told.chunks(8).map(|some| some.iter().enumerate().map(bit).sum::<u8>()));
}

/// Whether the one at this place among so many takes it in; goes on behind that. Nothing if it is not said.
fn takes(place: usize, among: usize, bytes: &mut &[u8]) -> Option<bool> {
    let (takers, rest) = bytes.split_at_checked(among.div_ceil(8))?;
    *bytes = rest;
    Some(takers.get(place / 8)? >> (place % 8) & 1 != 0)
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
