//! A partial tree gives the bits of the whole tree, and invalid bytes do no harm.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use proptest::prelude::*;
use springtide_runtime::work::Sequential;

use super::*;
use crate::bodies::{Bodies, length};
use crate::forces::{self, Lists};
use crate::generate;
use crate::kernel::Kernel;
use crate::setup::{Accuracy, CellExpansion, Setup};
use crate::shared::Positions;
use crate::tree::{BodyTree, CellSums, morton, sorted_pairs};

/// [`assemble`] on this thread.
fn assembled(
    before: Option<BodyTree>,
    roots: (&[BlockInfo], &CellSums),
    own: (usize, &[Branch]),
    others: &BTreeMap<usize, &RemoteBranch>,
    room: (&Setup, f64),
) -> BodyTree {
    let Ok(tree) = assemble(&Sequential, before, roots, own, others, room);
    tree
}

/// No former views.
const NEW: (&FormerViews<'static>, &dyn Fn(usize) -> Option<Reference>) =
    (&FormerViews::NONE, &|_| None);

fn sorted(bodies: &Bodies) -> (Positions, Vec<(u64, u32)>, Vec<[f32; 3]>) {
    let positions = Positions::new(&bodies.position, 0.01);
    let inside = positions.inside();
    let keys: Vec<u64> = inside.iter().map(|p| morton(*p)).collect();
    let keys = sorted_pairs(&keys);
    (positions, keys, inside)
}

fn bodies(n: usize, seed: u64, same: usize) -> Bodies {
    let mut bodies = generate::galaxies(n, seed);
    for i in 0..same.min(n) {
        bodies.position[i] = bodies.position[n - 1];
    }
    bodies
}

fn firsts(infos: &[BlockInfo]) -> Vec<usize> {
    let first = |sum: &mut usize, info: &BlockInfo| {
        let first = *sum;
        *sum += info.bodies as usize;
        Some(first)
    };
    infos.iter().scan(0, first).collect()
}

/// The roots that own blocks need more of, and the sinks of these blocks, whose bodies get to all
/// these places.
fn missing(
    tree: &BodyTree,
    places: &[&[[f32; 4]]],
    infos: &[BlockInfo],
) -> (BTreeSet<usize>, Vec<Subscriber>) {
    let (mut absent, mut sinks) = (Vec::new(), Vec::new());
    let mut lists = Lists::new(tree, Kernel::best(), true);
    let Range { start: mut at, end } = tree.bodies(0..tree.groups());
    while at < end {
        let bodies = tree.block(at);
        lists.absent(bodies.clone(), &mut absent);
        let all = places.iter().flat_map(|points| &points[bodies.clone()]);
        let extent = around(all.map(|&[x, y, z, _]| [x, y, z]));
        sinks.push(Subscriber::new(extent, lists.scale_of(bodies.clone())));
        at = bodies.end;
    }
    let firsts = firsts(infos);
    let root = |cell: u32| {
        let first = tree.cells.links[cell as usize].first as usize;
        firsts.partition_point(|&other| other <= first) - 1
    };
    (absent.into_iter().map(root).collect(), sinks)
}

/// Encodes a branch, with its later state, for these sinks, and decodes it.
fn encode_and_decode(
    branch: &Branch,
    later: &Branch,
    sinks: &[Subscriber],
    setup: &Setup,
) -> (Subscription, RemoteBranch) {
    let mut bytes = Vec::new();
    let mut view = branch.view(later, sinks, NEW, setup, &mut bytes).unwrap();
    branch.encode(&mut view, setup, &mut bytes);
    let mut left = &bytes[..];
    let mut other =
        RemoteBranch::read(branch.bodies() as u32, &mut left, &FormerViews::NONE, setup).unwrap();
    other.decode(&mut left, setup).unwrap();
    assert!(left.is_empty());
    (view, other)
}

/// The cells of roots with all of these keys.
fn branches(keys: &[(u64, u32)], infos: &[BlockInfo], setup: &Setup) -> Vec<Branch> {
    let mut rest = keys;
    let branch = |info: &BlockInfo| {
        let (own, others) = rest.split_at(info.bodies as usize);
        rest = others;
        Branch::new(own, setup)
    };
    infos.iter().map(branch).collect()
}

/// Sums up all roots with their bodies at these places; returns the sums of each.
fn sum_up(branches: &mut [Branch], points: &[[f32; 4]], setup: &Setup) -> CellSums {
    let mut sums = CellSums::new(branches.len(), setup, true);
    let mut rest = points;
    for (root, branch) in branches.iter_mut().enumerate() {
        let (own, others) = rest.split_at(branch.bodies());
        rest = others;
        branch.sum_up(own, None, setup);
        let mut row = Vec::new();
        branch.sums(&mut row);
        sums.set_row(root, &row);
    }
    sums
}

/// Places and masses in the order of these keys.
fn points(keys: &[(u64, u32)], inside: &[[f32; 3]], setup: &Setup) -> Vec<[f32; 4]> {
    let masses: Vec<f32> = setup.masses().collect();
    let point = |&(_, i): &(u64, u32)| {
        let [x, y, z] = inside[i as usize];
        [x, y, z, masses[i as usize]]
    };
    keys.iter().map(point).collect()
}

/// One exchange suffices: the scale of each block follows from a first look, or from the
/// accelerations of the step before.
///
/// A second round of requests costs two delays of the longest link. A single block causes it, for
/// example in the middle of a sphere, where accelerations nearly cancel out. A rounded moment that
/// exceeds the announced distance in a later step causes it too.
#[test]
fn one_exchange_determines_the_scales_of_blocks() {
    let accuracy = Accuracy {
        order: CellExpansion::Series,
        theta: 0.7,
        softening: 0.01,
        leaf: 16,
        group: 256,
    };
    for (seed, order) in
        (0..8).zip([CellExpansion::Series, CellExpansion::Mono].into_iter().cycle())
    {
        let bodies = generate::plummer(50_000, seed);
        let setup = Setup::new(&bodies, Accuracy { order, ..accuracy }).with_error(Some(3e-3));
        let (positions, keys, inside) = sorted(&bodies);
        let (side, points) = (positions.side(), points(&keys, &inside, &setup));
        let moved = |time: f64| -> Vec<[f32; 4]> {
            let after = |(&[x, y, z, m], (_, i)): (&[f32; 4], &(u64, u32))| {
                let by = bodies.velocity[*i as usize].map(|v| (v * time / side) as f32);
                [x + by[0], y + by[1], z + by[2], m]
            };
            points.iter().zip(&keys).map(after).collect()
        };
        let times = [0.25, 0.5, 0.75, 1.0].map(|part| part * 0.02);
        let last = moved(times[3]);
        // Each block is a root.
        let infos = blocks(&keys, &setup, 1.0);
        let firsts = firsts(&infos);
        let mut branches = branches(&keys, &infos, &setup);
        let mut later = branches.clone();
        sum_up(&mut later, &last, &setup);
        let sums = sum_up(&mut branches, &points, &setup);
        let on_the_way: Vec<(CellSums, Vec<Branch>)> = times
            .into_iter()
            .map(|time| {
                let mut branches = branches.clone();
                (sum_up(&mut branches, &moved(time), &setup), branches)
            })
            .collect();
        // The accelerations of the step before, in the box of that step.
        let mut felt = vec![0.0; bodies.len()];
        let mut before = bodies.clone();
        for (place, v) in before.position.iter_mut().zip(&bodies.velocity) {
            *place = [0, 1, 2].map(|axis| place[axis] - 0.005 * v[axis]);
        }
        let (then, order, _) = sorted(&before);
        let rows = forces::all(then.tree(&setup).unwrap());
        for (row, (_, i)) in rows.chunks_exact(forces::BYTES_A_BODY).zip(&order) {
            let [x, y, z, _] = forces::row(row);
            felt[*i as usize] = length([x, y, z]) * (side / then.side()).powi(2);
        }
        let predicted = |info: &BlockInfo, first: usize| {
            let some = first..first + info.bodies as usize;
            let places = points[some.clone()].iter().chain(&last[some]);
            let felt = |i: usize| felt[keys[first + i].1 as usize];
            let scale = forces::scale_by(felt, info.bodies as usize, &setup);
            Subscriber::new(around(places.map(|&[x, y, z, _]| [x, y, z])), scale)
        };
        let parts = 16;
        for part in 0..parts {
            let mine = infos.len() * part / parts..infos.len() * (part + 1) / parts;
            let look =
                |sums: &CellSums, branches: &[Branch], others: &BTreeMap<usize, RemoteBranch>| {
                    let others = others.iter().map(|(root, other)| (*root, other)).collect();
                    let own = (mine.start, &branches[mine.clone()]);
                    let tree = assembled(None, (&infos, sums), own, &others, (&setup, side));
                    let (missing, sinks) = missing(&tree, &[&points, &last], &infos);
                    (tree, missing, sinks)
                };
            let (tree, first, sinks) = look(&sums, &branches, &BTreeMap::new());
            let closed = Subscriber::closed(sinks.iter(), &tree, &setup);
            let closed = closed.map(|bodies| firsts.partition_point(|&at| at <= bodies.start) - 1);
            let wanted: BTreeSet<usize> = closed.chain(first.iter().copied()).collect();
            assert!(!first.is_empty());
            let predicted: Vec<Subscriber> =
                mine.clone().map(|block| predicted(&infos[block], firsts[block])).collect();
            let others = (0..infos.len()).filter(|root| !mine.contains(root));
            let near = |root: &usize| branches[*root].is_near_to(&later[*root], &predicted, &setup);
            let seen: BTreeSet<usize> = others.filter(near).collect();
            for (wanted, sinks) in [(wanted, sinks), (seen, predicted)] {
                let of_root = |&root: &usize| {
                    let (view, other) =
                        encode_and_decode(&branches[root], &later[root], &sinks, &setup);
                    ((root, view), (root, other))
                };
                let (mut views, mut others): (BTreeMap<_, _>, BTreeMap<_, _>) =
                    wanted.iter().map(of_root).unzip();
                let (_, second, _) = look(&sums, &branches, &others);
                assert!(second.is_empty(), "{seed} {part}: {second:?}");
                for (time, (sums, branches)) in times.iter().zip(&on_the_way) {
                    for (root, view) in &mut views {
                        let (mut bytes, other) = (Vec::new(), others.get_mut(root).unwrap());
                        branches[*root].encode(view, &setup, &mut bytes);
                        other.decode(&mut &bytes[..], &setup).unwrap();
                    }
                    let (_, missing, _) = look(sums, branches, &others);
                    assert!(missing.is_empty(), "{seed} {part} after {time}: {missing:?}");
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    /// The pieces of any ranges of keys form the blocks of the whole tree.
    #[test]
    fn pieces_make_the_blocks_of_the_whole(
        n in 1usize..4000, seed in any::<u64>(), group in 1u32..12, same in 0usize..300,
        cuts in prop::collection::vec((any::<prop::sample::Index>(), 0u32..60), 0..8),
    ) {
        let bodies = bodies(n, seed, same);
        let (positions, keys, _) = sorted(&bodies);
        let order = CellExpansion::Mono;
        let accuracy = Accuracy { order, theta: 0.7, softening: 0.01, leaf: 4, group };
        let setup = Setup::new(&bodies, accuracy);
        let tree = positions.tree(&setup).unwrap();
        let whole = blocks(&keys, &setup, 1.0);
        let firsts = firsts(&whole);
        for &first in &firsts {
            // One point may have many blocks of the tree: here those are one.
            prop_assert_eq!(tree.block(first).start, first);
        }
        prop_assert_eq!(firsts.len(), (0..n).filter(|&i| {
            tree.block(i).start == i && (i == 0 || keys[i].0 != keys[i - 1].0)
        }).count());
        // Cuts at some bodies' keys, rounded.
        let mut cuts: Vec<u64> =
            cuts.iter().map(|(i, bits)| keys[i.index(n)].0 >> bits << bits).collect();
        cuts.extend([0, 1 << 63]);
        cuts.sort_unstable();
        let mut all = Vec::new();
        for range in cuts.windows(2) {
            let [from, to] =
                [range[0], range[1]].map(|cut| keys.partition_point(|key| key.0 < cut));
            let pieces = pieces(&keys[from..to], range[0]..range[1], &setup);
            let costed = |piece: BlockInfo| BlockInfo { cost: piece.bodies as f32, ..piece };
            all.extend(pieces.into_iter().map(costed));
        }
        let merged: Vec<BlockInfo> =
            merged(&all, &setup).into_iter().map(|some| joined(&all[some])).collect();
        prop_assert_eq!(merged, whole);
    }

    /// Forces on own bodies have the bits of the whole tree's once all missing data has arrived.
    #[test]
    fn a_part_gives_the_bits_of_the_whole(
        n in 1usize..6000, seed in any::<u64>(), group in 2u32..20, leaf in 1u32..16,
        same in 0usize..100,
        order in prop::sample::select(vec![
            CellExpansion::Mono,
            CellExpansion::Quad,
            CellExpansion::Series,
        ]),
        error in prop::option::of(1e-4f64..0.1), theta in 0.3f64..1.2,
        from in any::<prop::sample::Index>(), to in any::<prop::sample::Index>(),
        most in 0usize..6000,
    ) {
        let bodies = bodies(n, seed, same);
        let setup = Setup::new(&bodies, Accuracy { order, theta, softening: 0.01, leaf, group })
            .with_error(error);
        let (positions, keys, inside) = sorted(&bodies);
        let whole = forces::all(positions.tree(&setup).unwrap());

        let infos = blocks(&keys, &setup, 1.0);
        let (a, b) = (from.index(infos.len()), to.index(infos.len()));
        let own = a.min(b)..a.max(b) + 1;
        let holder = |block: usize| usize::from(block >= own.start) + usize::from(block >= own.end);
        let roots = roots(&infos, most, holder);
        prop_assert!(roots.iter().flat_map(Clone::clone).eq(0..infos.len()));
        let mine = roots.iter().position(|root| holder(root.start) == 1).unwrap();
        let mine = mine..mine + roots.iter().filter(|root| holder(root.start) == 1).count();
        let infos: Vec<BlockInfo> = roots.into_iter().map(|root| joined(&infos[root])).collect();
        let mut branches = branches(&keys, &infos, &setup);
        let mut points = points(&keys, &inside, &setup);

        let (side, none) = (positions.side(), BTreeMap::new());
        let mut sums = CellSums::new(infos.len(), &setup, true);
        let (mut others, mut views) = (BTreeMap::new(), BTreeMap::new());
        let mut spare = None;
        for step in 0..4 {
            let mut rest = &points[..];
            for (root, branch) in branches.iter_mut().enumerate() {
                let (own, others) = rest.split_at(branch.bodies());
                // In later steps, use sums of blocks that were sent ahead and are not quite those
                // of the bodies.
                let near = |&[x, y, z, m]: &[f32; 4]| [x + 1e-4, y - 1e-5, z, m];
                let near: Vec<_> = own.iter().map(near).collect();
                let links = &branch.cells.links;
                let bodies = |top: usize| &near[links[branch.tops[top] as usize].bodies()];
                let Ok(ahead) =
                    CellSums::of_leaves(&Sequential, branch.tops.len(), bodies, &setup);
                let ahead = (step > 1).then_some((&ahead, 0));
                branch.sum_up(own, ahead, &setup);
                rest = others;
                let (mut row, mut same) = (Vec::new(), Vec::new());
                branch.sums(&mut row);
                if let Some(ahead) = ahead {
                    branch.sums_of(ahead, &setup, &mut same);
                    prop_assert_eq!(&row, &same);
                }
                prop_assert_eq!(row.len(), sums.columns().len());
                sums.set_row(root, &row);
            }
            for (&root, view) in &mut views {
                let root: usize = root;
                let (mut bytes, other): (_, &mut RemoteBranch) =
                    (Vec::new(), others.get_mut(&root).unwrap());
                prop_assert_eq!(Subscription::numbers(view, &setup), other.numbers(&setup));
                branches[root].encode(view, &setup, &mut bytes);
                let mut left = &bytes[..];
                other.decode(&mut left, &setup).unwrap();
                prop_assert!(left.is_empty());
            }
            let mut rounds = 0;
            let tree = loop {
                // Some are present at the assembly.
                let (late, here): (BTreeMap<_, _>, BTreeMap<_, _>) =
                    others
                        .iter()
                        .map(|(root, other)| (*root, other))
                        .partition(|(root, _)| (root + step) % 3 == 0);
                let own = (mine.start, &branches[mine.clone()]);
                let mut tree =
                    assembled(spare.take(), (&infos, &sums), own, &here, (&setup, side));
                for (root, other) in late {
                    let first = firsts(&infos)[root];
                    add(&mut tree, first..first + infos[root].bodies as usize, other);
                }
                let (missing, sinks) = missing(&tree, &[&points], &infos);
                if missing.is_empty() {
                    break tree;
                }
                // A cell that is far with all data may be near without, when its scale is wrong;
                // two rounds suffice.
                rounds += 1;
                prop_assert!(rounds <= 4, "something of {} roots is still missing", missing.len());
                for root in missing {
                    let branch = &branches[root];
                    let (view, other) = encode_and_decode(branch, branch, &sinks, &setup);
                    views.insert(root, view);
                    others.insert(root, other);
                }
            };
            let forces = |tree: &BodyTree| {
                let (mut lists, mut got) = (Lists::new(tree, Kernel::best(), true), Vec::new());
                for group in 0..tree.groups() {
                    lists.one_group(tree.bodies(group..group + 1), &mut got);
                    assert!(!lists.is_short());
                }
                got
            };
            let all = tree.bodies(0..tree.groups());
            let all = all.start * forces::BYTES_A_BODY..all.end * forces::BYTES_A_BODY;
            let got = forces(&tree);
            if step == 0 {
                prop_assert!(got == whole[all.clone()], "the bits differ");
            }
            let whole =
                forces(&assembled(None, (&infos, &sums), (0, &branches), &none, (&setup, side)));
            prop_assert!(got == whole[all], "the bits differ in step {}", step);
            spare = Some(tree);
            for (i, point) in points.iter_mut().enumerate() {
                for (axis, place) in point.iter_mut().take(3).enumerate() {
                    *place += 1e-3 * ((i * 7 + axis * 13) % 11) as f32 - 5e-3;
                }
            }
        }
    }

    /// Cut or damaged forms give errors or other forms, and never a panic.
    #[test]
    fn damaged_views_are_no_panic(
        n in 1usize..400, seed in any::<u64>(), quad in any::<bool>(), scale in 0.1f32..30.0,
        at in any::<prop::sample::Index>(), bits in 1u8.., cut in any::<prop::sample::Index>(),
    ) {
        let bodies = bodies(n, seed, 0);
        let order = if quad { CellExpansion::Quad } else { CellExpansion::Mono };
        let setup = Setup::new(
            &bodies, Accuracy { order, theta: 0.7, softening: 0.01, leaf: 4, group: 8 }
        );
        let (_, keys, inside) = sorted(&bodies);
        let mut branch = Branch::new(&keys, &setup);
        let points: Vec<_> = keys.iter().map(|&(_, i)| {
            let [x, y, z] = inside[i as usize];
            [x, y, z, 1.0 + (i % 2) as f32]
        }).collect();
        branch.sum_up(&points, None, &setup);
        let sink = Subscriber { extent: [[0.0; 3], [0.1; 3]], scale };
        let mut bytes = Vec::new();
        let Some(mut view) = branch.view(&branch, &[sink], NEW, &setup, &mut bytes) else {
            return Ok(())
        };
        branch.encode(&mut view, &setup, &mut bytes);
        let read = |bytes: &[u8]| {
            let mut left = bytes;
            let mut other = RemoteBranch::read(n as u32, &mut left, &FormerViews::NONE, &setup)?;
            other.decode(&mut left, &setup)
        };
        prop_assert!(read(&bytes).is_some());
        prop_assert!(read(&bytes[..cut.index(bytes.len())]).is_none());
        let at = at.index(bytes.len());
        bytes[at] ^= bits;
        let _ = read(&bytes);
    }
}
