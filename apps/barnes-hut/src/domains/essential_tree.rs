//! The locally essential tree of a process, and what it exports to those of others. Of all branch
//! roots it has the sums; of those near its own blocks it has the cells and bodies that these may
//! open.
//!
//! After a sort, all processes know the places and the reach of all blocks ([`Subscriber`]), and so
//! what others need of their own roots. A process requests what it still lacks, and in the first
//! step all that it needs. From then on the owner sends an update of the same cells and bodies in
//! each step, until bodies are sorted or distributed again. A subscriber is somewhat wider than its
//! block, so requests are rare after the first step. All processes of another cluster form one
//! group ([`Receivers`]) and get the same, because it crosses the line to them once. Each of them
//! decodes only the roots that it needs.
//!
//! The sums of blocks, and of all larger cells, are *predicted* one step ahead: they are those of
//! the places that bodies reach with the acceleration of the step before. They depend on each
//! body's own motion alone, so they are the same for any distribution. Bodies, and cells within
//! blocks, have the places of the present step.
//!
//! Roots that other clusters see are *advanced*: their next places follow from the forces on their
//! bodies, and are sent while other forces are computed. At that time no process knows whether
//! others request more. If an answer replaces an export, an update of the old one is void; each
//! part has the version of its export.
//!
//! All exports are made again when bodies are sorted. The coding of the bodies' places continues
//! from the [previous exports](super::previous). This module does not send messages.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use springtide_runtime::spmd::INLINE_MESSAGE_MAX;
use springtide_runtime::work::{ParallelLoops, Stop, collect};

use super::block_order::FirstRoot;
use super::layout::{of_slot, slot_with};
use super::previous::{PreviousViews, SentRoots};
use super::request::Request;
use super::state::{Common, Domain, Unsound};
use crate::loops::BODIES_PER_PIECE;
use crate::partial::{
    BlockInfo, Branch, FormerViews, RemoteBranch, Subscriber, Subscription, add, around, assemble,
    bodies_of, joined, roots,
};
use crate::setup::Setup;
use crate::smooth::{Track, put_number, take_number};
use crate::tree::{BodyTree, CellSums};

/// A root has at most this part of a domain's bodies. The threads of a node share the work on
/// roots, so there are several for each; and the last roots whose next places others receive are
/// then needed by few blocks of theirs.
const ROOTS: u64 = 32;

/// The part of all work that is done first, so that its results arrive in time.
const AHEAD: f64 = 0.75;

/// Processes that receive the same exports: all of another cluster, or one of the own cluster.
#[derive(Debug)]
struct Receivers {
    /// Their places along the curve.
    slots: Vec<usize>,
    /// Whether they are in another cluster.
    is_remote: bool,
    /// The exports of own roots, by number from the first.
    exports: BTreeMap<u32, Export>,
}

/// The cells and bodies of an own root that a group receives in each step.
#[derive(Debug)]
struct Export {
    view: Subscription,
    /// The processes that decode it, by place along the curve.
    by: BTreeSet<usize>,
    /// The number of exports of this root to the group so far.
    version: u32,
    /// Whether the update of the next step has been sent.
    is_ahead: bool,
}

/// A message to some processes.
pub(crate) struct Message {
    /// The receivers, by place along the curve.
    pub to: BTreeSet<usize>,
    /// The first byte is 1 in the last message of the step, and 0 in others.
    pub bytes: Vec<u8>,
    /// The count of coded numbers.
    pub numbers: usize,
}

/// Appends a part for these receivers. A new message begins where the last one would be too long.
fn put(messages: &mut Vec<Message>, part: &ExportPart<'_>, to: &BTreeSet<usize>, numbers: usize) {
    if messages.last().is_none_or(|last| last.bytes.len() + part.bytes.len() > INLINE_MESSAGE_MAX) {
        messages.push(Message { to: BTreeSet::new(), bytes: vec![0], numbers: 0 });
    }
    if let Some(message) = messages.last_mut() {
        message.to.extend(to);
        part.write(&mut message.bytes);
        message.numbers += numbers;
    }
}

/// Marks the last message, which goes to all of these receivers.
fn end(messages: &mut Vec<Message>, all: BTreeSet<usize>) {
    match messages.last_mut() {
        Some(last) if last.to == all => last.bytes[0] = 1,
        _ if all.is_empty() => {}
        _ => messages.push(Message { to: all, bytes: vec![1], numbers: 0 }),
    }
}

/// The part of a message about one root.
struct ExportPart<'b> {
    root: usize,
    /// The version of its export.
    version: u32,
    bytes: &'b [u8],
}

impl<'b> ExportPart<'b> {
    fn write(&self, to: &mut Vec<u8>) {
        [self.root as u32, self.version, self.bytes.len() as u32]
            .iter()
            .for_each(|number| put_number(*number, to));
        to.extend_from_slice(self.bytes);
    }

    /// Decodes a part and advances `bytes`; none if it is not valid.
    fn take(bytes: &mut &'b [u8]) -> Option<Self> {
        let root = take_number(bytes)? as usize;
        let version = take_number(bytes)?;
        let length = take_number(bytes)? as usize;
        let (part, rest) = bytes.split_at_checked(length)?;
        *bytes = rest;
        Some(Self { root, version, bytes: part })
    }
}

/// The tree and the exports of a process: see the head of this file.
#[derive(Debug)]
pub(crate) struct LocallyEssentialTree {
    /// All roots, in order.
    roots: Vec<BlockInfo>,
    /// The first body of each root.
    firsts: Vec<u32>,
    /// The first root of each process, by place along the curve, and the number of roots at the
    /// end.
    holders: Vec<u32>,
    /// This process's place along the curve.
    slot: usize,
    /// The bodies of each own block.
    blocks: Vec<Range<usize>>,
    /// The blocks of each own root.
    blocks_of: Vec<Range<usize>>,
    /// The sums of all roots.
    sums: CellSums,
    /// The coding of the sums of each process, by place along the curve: as sent for the own roots,
    /// as received for others.
    tracks: Vec<Track>,
    branches: Vec<Branch>,
    /// The imported parts of others' roots.
    others: BTreeMap<usize, RemoteBranch>,
    /// The version of each imported part.
    versions: BTreeMap<usize, u32>,
    groups: Vec<Receivers>,
    /// The number of each process's cluster, by place along the curve.
    clusters: Vec<usize>,
    /// Own roots at their places in the next step, by number from the first.
    advanced: BTreeMap<u32, Branch>,
    /// Own roots of the step before that advanced ones have replaced; their memory is used again.
    replaced: BTreeMap<u32, Branch>,
    /// Imported parts whose update of this step has not arrived.
    outdated: BTreeSet<usize>,
    /// Parts that arrived after the assembly of this step's tree; none if it has to be assembled
    /// again.
    arrived: Option<BTreeSet<usize>>,
    /// The predicted sums of own blocks for this step, and for the next.
    now: Option<CellSums>,
    next: Option<CellSums>,
    /// The blocks of each process as last received, by place along the curve.
    subscribers: Vec<Vec<Subscriber>>,
    /// Whether this process has sent the places of its blocks to the others.
    has_sent_places: bool,
    /// Whether bodies were just sorted, so that all know all blocks, and nothing is exported yet.
    is_sorted: bool,
    /// The roots that this process requested in this step.
    requested: BTreeSet<usize>,
    /// The last places of own bodies before the next sort, if they were predicted in this step, and
    /// own roots with these.
    later: Vec<[f32; 4]>,
    later_branches: BTreeMap<u32, Branch>,
    /// The last costs of own blocks.
    costs: Vec<f32>,
    /// The cost of work other than forces in this step.
    other_cost: f64,
    /// The last tree, whose memory the next one uses.
    pub(super) spare: Option<BodyTree>,
    /// The exports before the sort, in the first step after it.
    before: PreviousViews,
}

impl LocallyEssentialTree {
    /// A tree of own blocks alone. The domain has this place along the curve, and each place has
    /// the number of its cluster. `subscribers` are all blocks, or none if they are not known.
    pub(crate) fn new<L: ParallelLoops>(
        loops: &L,
        common: &Common,
        cuts: &[u32],
        domain: &Domain,
        (slot, clusters): (usize, Vec<usize>),
        (previous, subscribers): (PreviousViews, Vec<Subscriber>),
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
        let first = bodies_of(&infos[..own_blocks.start]);
        let blocks = infos[own_blocks.clone()].iter().scan(first, |first, info| {
            *first += info.bodies as usize;
            Some(*first - info.bodies as usize..*first)
        });
        let sums = CellSums::new(all.len(), setup, true);
        let is_sorted = !subscribers.is_empty();
        let subscribers_of = |slot: usize| {
            if is_sorted { subscribers[of_slot(cuts, slot)].to_vec() } else { Vec::new() }
        };
        let groups = groups(slot, &clusters);
        // Only exports refer to former ones by the bodies' numbers.
        let numbers = domain.keys.iter().filter(|_| !groups.is_empty()).map(|(_, number)| *number);
        let before = PreviousViews { numbers: numbers.collect(), ..previous };
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
            groups,
            clusters,
            advanced: BTreeMap::new(),
            replaced: BTreeMap::new(),
            outdated: BTreeSet::new(),
            arrived: None,
            now: None,
            next: None,
            subscribers: (0..processes).map(subscribers_of).collect(),
            has_sent_places: is_sorted,
            is_sorted,
            requested: BTreeSet::new(),
            later: Vec::new(),
            later_branches: BTreeMap::new(),
            costs: infos[own_blocks].iter().map(|info| info.cost).collect(),
            other_cost: 0.0,
            spare: None,
            before,
        })
    }

    /// The exports so far, when own bodies, with these keys and numbers, are sorted again. A fixed
    /// point moves by `moved` inside the box.
    pub(crate) fn into_previous(mut self, keys: &[(u64, u32)], moved: [f64; 3]) -> PreviousViews {
        let own = self.own();
        let groups = std::mem::take(&mut self.groups);
        let sent = groups.into_iter().map(|group| {
            let mut sent = SentRoots::default();
            for (root, Export { view, by, .. }) in group.exports {
                sent.keep(own.start as u32 + root, by, view, &keys[self.bodies_of(root)]);
            }
            sent
        });
        PreviousViews {
            sent: sent.collect(),
            received: self.others,
            moved,
            ..PreviousViews::default()
        }
    }

    fn own(&self) -> Range<usize> {
        of_slot(&self.holders, self.slot)
    }

    /// Begins a step with the predicted sums of own blocks, if there are any. Returns whether they
    /// were sent to all.
    pub(crate) fn begin(&mut self, predicted: Option<CellSums>) -> bool {
        self.now = predicted;
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
        self.outdated = self.others.keys().copied().collect();
        self.arrived = None;
        self.requested.clear();
        self.later.clear();
        self.later_branches.clear();
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

    /// Whether the `later` places of own bodies are predicted.
    pub(crate) fn looks_ahead(&self) -> bool {
        !self.later.is_empty()
    }

    /// An own root with its bodies at their later places, or at the present ones if there are none.
    fn later_branch(&self, root: u32) -> &Branch {
        self.later_branches.get(&root).unwrap_or(&self.branches[root as usize])
    }

    /// The extent of an own block, now and at the later places of its bodies.
    fn extent(&self, block: usize) -> [[f32; 3]; 2] {
        let root = self.blocks_of.partition_point(|blocks| blocks.end <= block);
        let of_root = self.bodies_of(root as u32);
        let first = self.blocks[0].start;
        let bodies = self.blocks[block].start - first..self.blocks[block].end - first;
        let now = bodies.start - of_root.start..bodies.end - of_root.start;
        let later = self.later.get(bodies).unwrap_or_default();
        let both = self.branches[root].points()[now].iter().chain(later);
        around(both.map(|&[x, y, z, _]| [x, y, z]))
    }

    /// Predicts the sums of own blocks for the next step, in which own bodies are expected at these
    /// places: see the head of this file.
    pub(crate) fn predict<L: ParallelLoops>(
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
    pub(crate) fn encode_predicted_sums(&mut self, setup: &Setup) -> Vec<u8> {
        let mut numbers = Vec::new();
        if let Some(sums) = &self.next {
            for (branch, blocks) in self.branches.iter().zip(&self.blocks_of) {
                branch.sums_of((sums, blocks.start), setup, &mut numbers);
            }
        }
        self.encode_root_sums(numbers)
    }

    /// The message to all about the sums of this step.
    pub(crate) fn encode_sums(&mut self) -> Vec<u8> {
        let mut numbers = Vec::new();
        self.branches.iter().for_each(|branch| branch.sums(&mut numbers));
        self.encode_root_sums(numbers)
    }

    fn encode_root_sums(&mut self, numbers: Vec<f32>) -> Vec<u8> {
        let mut out = Vec::new();
        self.tracks[self.slot].encode(numbers, &mut out);
        out
    }

    /// The predicted sums of own blocks for the next step; none if there are none.
    pub(crate) fn predicted(&self) -> Vec<f32> {
        self.next.as_ref().map(CellSums::rows).unwrap_or_default()
    }

    /// Decodes the sums of the process at this place. Returns the count of numbers.
    pub(crate) fn decode_sums(&mut self, from: usize, mut bytes: &[u8]) -> Result<usize, Unsound> {
        let unsound = Unsound { what: "sums" };
        let (roots, columns) = (of_slot(&self.holders, from), self.sums.columns().len());
        let numbers = columns * roots.len();
        let received = self.tracks[from].decode(numbers, &mut bytes).map_err(|_| unsound)?;
        for (root, row) in roots.zip(received.chunks_exact(columns)) {
            self.sums.set_row(root, row);
        }
        if bytes.is_empty() { Ok(numbers) } else { Err(unsound) }
    }

    /// The number of groups.
    pub(crate) fn groups(&self) -> usize {
        self.groups.len()
    }

    /// The messages to this group with updates of own roots: of those that were just advanced or,
    /// once all are at their places in this step (`rest`), of those that were not sent ahead. There
    /// is none if the group has no exports.
    pub(crate) fn encode_updates<L: ParallelLoops>(
        &mut self,
        loops: &L,
        group: usize,
        rest: bool,
        setup: &Setup,
    ) -> Result<Vec<Message>, L::Stop> {
        let Self { groups, branches, advanced, .. } = self;
        let exports = &mut groups[group].exports;
        // All receive the last message, if they receive any.
        let to: BTreeSet<usize> = exports.values().flat_map(|seen| &seen.by).copied().collect();
        let mut parts = Vec::new();
        for (&root, seen) in exports.iter_mut() {
            let now = rest.then(|| &branches[root as usize]);
            let branch = now.or(advanced.get(&root)).filter(|_| !seen.is_ahead);
            parts.extend(branch.map(|branch| (root, branch, &mut *seen, Vec::new())));
        }
        loops.parallel_chunks(&mut parts, 1, |_, parts| {
            for (_, branch, seen, bytes) in parts {
                branch.encode(&mut seen.view, setup, bytes);
            }
        })?;
        let mut messages = Vec::new();
        for (root, _, seen, bytes) in parts {
            let part = ExportPart { root: root as usize, version: seen.version, bytes: &bytes };
            put(&mut messages, &part, &to, seen.view.numbers(setup));
            seen.is_ahead = true;
        }
        if rest {
            exports.values_mut().for_each(|seen| seen.is_ahead = false);
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

    /// Whether the process at this place sends updates.
    pub(crate) fn expects_updates(&self, from: usize) -> bool {
        self.others.range(of_slot(&self.holders, from)).next().is_some()
    }

    /// Decodes a message with updates from the process at this place. Returns the counts of
    /// numbers, cells and bodies, and whether it was the last message.
    pub(crate) fn decode_updates<L: ParallelLoops<Stop = Stop>>(
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
            let ExportPart { root, version, bytes: part } =
                ExportPart::take(&mut bytes).ok_or_else(unsound)?;
            // It is void, or for others of the group.
            if self.versions.get(&(roots.start + root)) == Some(&version)
                && parts.insert(roots.start + root, part).is_some()
            {
                return Err(unsound().into());
            }
        }
        let others = self.others.range_mut(roots.clone());
        let mut received: Vec<_> = others
            .filter_map(|(root, other)| Some((*root, other, parts.remove(root)?, false)))
            .collect();
        if !parts.is_empty() {
            return Err(unsound().into());
        }
        loops.parallel_chunks(&mut received, 1, |_, received| {
            for (_, other, part, is_sound) in received {
                *is_sound = other.decode(part, setup).is_some() && part.is_empty();
            }
        })?;
        if received.iter().any(|(.., is_sound)| !is_sound) {
            return Err(unsound().into());
        }
        let mut sum = [0; 3];
        for (root, other, ..) in &received {
            sum = added(sum, other, setup);
            if self.outdated.remove(root) {
                self.arrived.iter_mut().for_each(|arrived| _ = arrived.insert(*root));
            }
        }
        if *last != 0 && self.outdated.range(roots).next().is_some() {
            return Err(unsound().into());
        }
        Ok((sum, *last != 0))
    }

    /// Whether updates of this step are still to come.
    pub(crate) fn waits(&self) -> bool {
        !self.outdated.is_empty()
    }

    /// The own roots to be computed first, since other clusters receive them: those with the most
    /// exported numbers for their cost, for up to three quarters of all work. Advanced ones are not
    /// among them.
    pub(crate) fn roots_for_other_clusters(&self, setup: &Setup) -> Vec<FirstRoot> {
        let mut numbers = vec![0; self.branches.len()];
        for Receivers { exports, .. } in self.groups.iter().filter(|group| group.is_remote) {
            for (&root, seen) in
                exports.iter().filter(|(root, _)| !self.advanced.contains_key(root))
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
            FirstRoot { root, blocks: self.blocks_of(root), part }
        };
        some[..count].iter().map(first).collect()
    }

    /// The blocks of an own root, by number from the first.
    pub(crate) fn blocks_of(&self, root: u32) -> Range<usize> {
        self.blocks_of[root as usize].clone()
    }

    /// Advances an own root: its bodies are at these places in the next step. The tree of this step
    /// keeps their present places.
    pub(crate) fn advance(&mut self, root: u32, points: &[[f32; 4]], setup: &Setup) {
        let first = self.blocks_of(root).start;
        let next = self.next.as_ref().map(|sums| (sums, first));
        let replaced = self.replaced.remove(&root);
        // All but the sums is the same.
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
        let arrived = self.arrived.replace(BTreeSet::new());
        let last = match (last, arrived) {
            (Some(tree), Some(arrived)) => return Ok(self.extended(tree, arrived)),
            (last, _) => last,
        };
        let own = (self.own().start, &self.branches[..]);
        let others = self.others.iter().filter(|(root, _)| !self.outdated.contains(root));
        let others = others.map(|(root, other)| (*root, other)).collect();
        let tree = assemble(loops, last, (&self.roots, &self.sums), own, &others, (setup, side))?;
        let new = tree.cells.links.len();
        Ok((tree, new))
    }

    /// A tree of this step with these imported parts, which arrived after its assembly; and the
    /// number of their cells.
    fn extended(&self, mut tree: BodyTree, arrived: BTreeSet<usize>) -> (BodyTree, usize) {
        let before = tree.cells.links.len();
        for root in arrived {
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

    /// The request, if any roots are `wanted`: those, and others of the tree that own blocks may
    /// have to open before long. It has the present extent and reach of the blocks that `missed`
    /// data; the first has those of all.
    pub(crate) fn request(
        &mut self,
        tree: &BodyTree,
        mut wanted: BTreeSet<u32>,
        missed: &[usize],
        scales: &[f32],
        setup: &Setup,
    ) -> Request {
        if wanted.is_empty() {
            return Request::default();
        }
        let subscriber =
            |block: usize| (block as u32, Subscriber::new(self.extent(block), scales[block]));
        let subscribers: Vec<(u32, Subscriber)> = if self.has_sent_places {
            missed.iter().copied().map(subscriber).collect()
        } else {
            (0..self.blocks.len()).map(subscriber).collect()
        };
        self.has_sent_places = true;
        for bodies in
            Subscriber::closed(subscribers.iter().map(|(_, subscriber)| subscriber), tree, setup)
        {
            let root = self.root_of(bodies.start as u32);
            if self.roots[root].bodies as usize == bodies.len() {
                wanted.insert(root as u32);
            }
        }
        self.requested = wanted.iter().map(|root| *root as usize).collect();
        Request { roots: wanted.into_iter().collect(), subscribers }
    }

    /// Stores the blocks of the process at this place.
    fn store_subscribers(&mut self, from: usize, request: &Request) -> Result<(), Unsound> {
        let subscribers = &mut self.subscribers[from];
        for &(block, subscriber) in &request.subscribers {
            let block = block as usize;
            if block < subscribers.len() {
                subscribers[block] = subscriber;
            } else if block == subscribers.len() {
                subscribers.push(subscriber);
            } else {
                return Err(Unsound { what: "places of blocks" });
            }
        }
        Ok(())
    }

    /// Answers the requests of all processes, by place along the curve, for own roots. From now on
    /// these are exported in each step.
    pub(crate) fn answer<L: ParallelLoops<Stop = Stop>>(
        &mut self,
        loops: &L,
        requests: &[Request],
        setup: &Setup,
    ) -> Result<Vec<Message>, Stop> {
        for (from, request) in requests.iter().enumerate() {
            self.store_subscribers(from, request)?;
        }
        let own = self.own();
        let mut messages = Vec::new();
        for group in 0..self.groups.len() {
            let mut requested: BTreeMap<u32, BTreeSet<usize>> = BTreeMap::new();
            for &slot in &self.groups[group].slots {
                let roots = requests[slot].roots.iter().map(|root| *root as usize);
                for root in roots.filter(|root| own.contains(root)) {
                    requested.entry((root - own.start) as u32).or_default().insert(slot);
                }
            }
            if !requested.is_empty() {
                messages.extend(self.export(loops, group, requested, setup)?);
            }
        }
        Ok(messages)
    }

    /// Whether bodies were just sorted, and nothing is exported yet.
    pub(crate) fn is_sorted(&self) -> bool {
        self.is_sorted
    }

    /// The messages after bodies were sorted: about own roots that are not far from others' blocks.
    pub(crate) fn export_sorted<L: ParallelLoops<Stop = Stop>>(
        &mut self,
        loops: &L,
        setup: &Setup,
    ) -> Result<Vec<Message>, Stop> {
        self.is_sorted = false;
        if self.groups.is_empty() {
            return Ok(Vec::new());
        }
        self.make_later(loops, 0..self.branches.len() as u32, setup)?;
        let mut messages = Vec::new();
        for group in 0..self.groups.len() {
            let slots = &self.groups[group].slots;
            let receivers_of = collect(loops, self.branches.len(), 1, |root| {
                let (branch, later) = (&self.branches[root], self.later_branch(root as u32));
                let sees = |slot: &usize| branch.is_near_to(later, &self.subscribers[*slot], setup);
                slots.iter().copied().filter(sees).collect::<BTreeSet<usize>>()
            })?;
            let seen = (0u32..).zip(receivers_of).filter(|(_, by)| !by.is_empty()).collect();
            messages.extend(self.export(loops, group, seen, setup)?);
        }
        Ok(messages)
    }

    /// Makes own roots, counted from the first, with bodies at their later places.
    fn make_later<L: ParallelLoops>(
        &mut self,
        loops: &L,
        roots: impl IntoIterator<Item = u32>,
        setup: &Setup,
    ) -> Result<(), L::Stop> {
        let roots: Vec<u32> =
            roots.into_iter().filter(|root| !self.later_branches.contains_key(root)).collect();
        if !self.looks_ahead() {
            return Ok(());
        }
        let later_branches = collect(loops, roots.len(), 1, |at| {
            let root = roots[at];
            let mut later_branches = self.branches[root as usize].clone();
            later_branches.sum_up(&self.later[self.bodies_of(root)], None, setup);
            later_branches
        })?;
        self.later_branches.extend(roots.into_iter().zip(later_branches));
        Ok(())
    }

    /// Exports own roots, by number from the first, to some of a group. Those that had an export of
    /// a root before get the new one.
    fn export<L: ParallelLoops<Stop = Stop>>(
        &mut self,
        loops: &L,
        group: usize,
        roots: BTreeMap<u32, BTreeSet<usize>>,
        setup: &Setup,
    ) -> Result<Vec<Message>, Stop> {
        self.make_later(loops, roots.keys().copied(), setup)?;
        let Receivers { slots, is_remote, exports } = &self.groups[group];
        let roots: Vec<(u32, BTreeSet<usize>)> = roots.into_iter().collect();
        let shown = collect(loops, roots.len(), 1, |at| {
            let (root, by) = &roots[at];
            let before = exports.get(root);
            let mut by = by.clone();
            by.extend(before.iter().flat_map(|seen| &seen.by));
            let version = before.map_or(0, |seen| seen.version) + 1;
            let branch = &self.branches[*root as usize];
            let subscribers: Vec<Subscriber> =
                by.iter().flat_map(|slot| &self.subscribers[*slot]).copied().collect();
            let mut bytes = Vec::new();
            if *is_remote {
                write_takers(slots, &by, &mut bytes);
            }
            let view = self.before.with_sent(group, &by, self.bodies_of(*root), |known| {
                branch.view(self.later_branch(*root), &subscribers, known, setup, &mut bytes)
            });
            let mut view = view?;
            branch.encode(&mut view, setup, &mut bytes);
            Some((Export { view, by, version, is_ahead: false }, bytes))
        })?;
        let Receivers { slots, exports, .. } = &mut self.groups[group];
        let mut messages = Vec::new();
        for ((root, _), shown) in roots.into_iter().zip(shown) {
            let (seen, bytes) = shown.ok_or(Unsound { what: "requests for far roots" })?;
            let part = ExportPart { root: root as usize, version: seen.version, bytes: &bytes };
            put(&mut messages, &part, &seen.by, seen.view.numbers(setup));
            exports.insert(root, seen);
        }
        end(&mut messages, slots.iter().copied().collect());
        Ok(messages)
    }

    /// Whether the process at this place answers a request of this process or its group.
    pub(crate) fn is_answered(&self, from: usize, requests: &[Request]) -> bool {
        let roots = of_slot(&self.holders, from);
        let mut requested = self.receivers_with(from).flat_map(|slot| &requests[slot].roots);
        requested.any(|root| roots.contains(&(*root as usize)))
    }

    /// The group of this process for the process at this place: places along the curve.
    fn receivers_with(&self, from: usize) -> impl Iterator<Item = usize> {
        let here = self.clusters[self.slot];
        let is_remote = self.clusters[from] != here;
        (0..self.clusters.len())
            .filter(move |&slot| slot == self.slot || is_remote && self.clusters[slot] == here)
    }

    /// Decodes a message with new exports of the process at this place. Returns the same as
    /// [`decode_updates`](Self::decode_updates).
    pub(crate) fn decode_exports(
        &mut self,
        from: usize,
        bytes: &[u8],
        setup: &Setup,
    ) -> Result<([usize; 3], bool), Unsound> {
        let unsound = || Unsound { what: "cells of a root" };
        let roots = of_slot(&self.holders, from);
        let is_remote = self.clusters[from] != self.clusters[self.slot];
        let together = self.receivers_with(from).count();
        let place = self.receivers_with(from).take_while(|&slot| slot != self.slot).count();
        let (last, mut bytes) = bytes.split_first().ok_or_else(unsound)?;
        let mut sum = [0; 3];
        while !bytes.is_empty() {
            let ExportPart { root: at, version, bytes: mut part } =
                ExportPart::take(&mut bytes).ok_or_else(unsound)?;
            let root = roots.start + at;
            if !roots.contains(&root) {
                return Err(unsound());
            }
            if is_remote && !is_taker(place, together, &mut part).ok_or_else(unsound)? {
                continue;
            }
            let bodies = self.roots[root].bodies;
            let read = |past: &FormerViews<'_>| RemoteBranch::read(bodies, &mut part, past, setup);
            let other = self.before.with_received(read);
            let received = other.and_then(|mut other| {
                other.decode(&mut part, setup)?;
                part.is_empty().then_some(other)
            });
            let received = received.ok_or_else(unsound)?;
            sum = added(sum, &received, setup);
            if self.others.insert(root, received).is_some() {
                self.arrived = None;
            }
            self.arrived.iter_mut().for_each(|arrived| _ = arrived.insert(root));
            self.versions.insert(root, version);
        }
        let is_last = *last != 0;
        if is_last && !self.requested.range(roots).all(|root| self.others.contains_key(root)) {
            return Err(unsound());
        }
        Ok((sum, is_last))
    }

    /// Adds the cost of work other than forces.
    pub(crate) fn spend(&mut self, cost: f64) {
        self.other_cost += cost;
    }

    /// Ends a step, with the costs of the forces on own blocks. The cost of other work is added in
    /// proportion: there is more of it where others are near.
    pub(crate) fn finish(&mut self, costs: Vec<f32>) {
        let forces: f64 = costs.iter().map(|cost| f64::from(*cost)).sum();
        let times = 1.0 + std::mem::take(&mut self.other_cost) / forces.max(f64::MIN_POSITIVE);
        let all = |cost| (f64::from(cost) * times) as f32;
        self.costs = if times.is_finite() { costs.into_iter().map(all).collect() } else { costs };
        self.before = PreviousViews::default();
    }

    /// The root of a body, by its index among all.
    pub(crate) fn root_of(&self, body: u32) -> usize {
        self.firsts.partition_point(|&first| first <= body) - 1
    }

    /// The part of all work that an own root has, by the last costs.
    fn part_of_work(&self, root: u32) -> f64 {
        let sum = |costs: &[f32]| costs.iter().map(|cost| f64::from(*cost)).sum::<f64>();
        sum(&self.costs[self.blocks_of(root)]) / sum(&self.costs).max(f64::MIN_POSITIVE)
    }

    /// The last costs of own blocks.
    pub(crate) fn costs(&self) -> &[f32] {
        &self.costs
    }
}

/// Adds the counts of numbers, cells and bodies of an imported part.
fn added(sum: [usize; 3], other: &RemoteBranch, setup: &Setup) -> [usize; 3] {
    let these = [other.numbers(setup), other.cells(), other.bodies()];
    [0, 1, 2].map(|i| sum[i] + these[i])
}

/// Encodes which of a group decode an export, for [`is_taker`].
fn write_takers(sent: &[usize], by: &BTreeSet<usize>, to: &mut Vec<u8>) {
    let bit = |(i, slot): (usize, &usize)| u8::from(by.contains(slot)) << i;
    to.extend(sent.chunks(8).map(|some| some.iter().enumerate().map(bit).sum::<u8>()));
}

/// Whether the process with this number in its group decodes the export; advances `bytes`. None
/// if they are not valid.
fn is_taker(place: usize, among: usize, bytes: &mut &[u8]) -> Option<bool> {
    let (takers, rest) = bytes.split_at_checked(among.div_ceil(8))?;
    *bytes = rest;
    Some(takers.get(place / 8)? >> (place % 8) & 1 != 0)
}

/// The groups that the process at this place exports to.
fn groups(slot: usize, clusters: &[usize]) -> Vec<Receivers> {
    let mut slots: BTreeMap<(usize, usize), Vec<usize>> = BTreeMap::new();
    for (other, &cluster) in clusters.iter().enumerate().filter(|(other, _)| *other != slot) {
        let alone = if cluster == clusters[slot] { other } else { 0 };
        slots.entry((cluster, alone)).or_default().push(other);
    }
    let group = |((cluster, _), slots)| {
        let is_remote = cluster != clusters[slot];
        Receivers { slots, is_remote, exports: BTreeMap::new() }
    };
    slots.into_iter().map(group).collect()
}
