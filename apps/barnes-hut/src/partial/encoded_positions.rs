//! The places of a view's bodies from step to step, and from one view to the next.
//!
//! When bodies are sorted all views are replaced, but most bodies of a new view were in former
//! ones. For such a body the view's header (its form) names the body's index in the former view,
//! and its places continue from there. A new body needs two whole frames, one of its place and one
//! of its change. These take ten times the bytes of a later frame. This module depends on neither
//! cells nor messages.

use std::collections::BTreeMap;

use crate::delta::{unzigzag, zigzag};
use crate::smooth::{ColumnCoding, Track, put_codes, put_number, take_codes, take_number};

const PLACE: &[ColumnCoding] = &[ColumnCoding::InOrder; 3];

/// The places of a view's bodies, as they were sent in each step.
#[derive(Clone, Debug)]
pub(crate) struct EncodedPositions {
    /// For each body, whether a former view had it, and its index among the bodies that former
    /// views had, or had not.
    rows: Vec<(bool, usize)>,
    /// The tracks of the bodies without and with a former view.
    tracks: [Track; 2],
}

/// A body of a former view: the number of its root then, and its index in that view.
pub(crate) type Reference = (u32, u32);

/// The views before the last sorting, as both the sender and the receiver know them.
pub(crate) struct FormerViews<'p> {
    /// The places that the view of a root with this number showed.
    pub places: &'p dyn Fn(u32) -> Option<&'p EncodedPositions>,
    /// The movement of a fixed point inside the box since then.
    pub moved: [f64; 3],
}

impl FormerViews<'_> {
    /// No former views.
    pub(crate) const NONE: FormerViews<'static> =
        FormerViews { places: &|_| None, moved: [0.0; 3] };

    /// Writes the references of a view's bodies, for [`FormerViews::read`].
    pub(super) fn write(&self, known: &[Option<Reference>], to: &mut Vec<u8>) {
        let mut firsts: BTreeMap<u32, u32> =
            known.iter().flatten().map(|&(root, _)| (root, 0)).collect();
        put_number(firsts.len() as u32, to);
        let mut count = 0;
        for (&root, first) in &mut firsts {
            put_number(root, to);
            *first = count;
            count += (self.places)(root).map_or(0, EncodedPositions::len) as u32;
        }
        if firsts.is_empty() {
            return;
        }
        let mut expected = 0u32;
        let code = |known: &Option<Reference>| {
            let Some((root, at)) = known else { return 0 };
            let at = firsts[root] + at;
            let code = 1 + zigzag(at.wrapping_sub(expected) as i32);
            expected = at + 1;
            code
        };
        put_codes(&known.iter().map(code).collect::<Vec<_>>(), to);
    }

    /// Reads the references of a view's bodies and advances `form`; none if they refer to no former
    /// view.
    pub(super) fn read(&self, count: usize, form: &mut &[u8]) -> Option<Vec<Option<Reference>>> {
        let roots = take_number(form)?;
        let (mut firsts, mut all) = (Vec::new(), 0u32);
        for _ in 0..roots {
            let root = take_number(form)?;
            firsts.push((all, root));
            all = all.checked_add((self.places)(root)?.len() as u32)?;
        }
        if firsts.is_empty() {
            return Some(vec![None; count]);
        }
        let (mut known, mut expected) = (Vec::new(), 0u32);
        for code in take_codes(count, form)? {
            let Some(code) = code.checked_sub(1) else {
                known.push(None);
                continue;
            };
            let at = expected.wrapping_add(unzigzag(code) as u32);
            if at >= all {
                return None;
            }
            let (first, root) = firsts[firsts.partition_point(|&(first, _)| first <= at) - 1];
            known.push(Some((root, at - first)));
            expected = at + 1;
        }
        Some(known)
    }

    /// The places of a view's bodies, continued from these references; none if a reference is not
    /// valid.
    pub(super) fn continue_from(&self, known: &[Option<Reference>]) -> Option<EncodedPositions> {
        let (mut rows, mut before, mut new) = (Vec::with_capacity(known.len()), Vec::new(), 0);
        for known in known {
            if let &Some((root, at)) = known {
                let places = (self.places)(root)?;
                let &(is_known, row) = places.rows.get(at as usize)?;
                rows.push((true, before.len()));
                before.push((&places.tracks[usize::from(is_known)], row));
            } else {
                rows.push((false, new));
                new += 1;
            }
        }
        let before = Track::of_rows(PLACE, &before, &self.moved);
        Some(EncodedPositions { rows, tracks: [Track::new(PLACE), before] })
    }
}

impl EncodedPositions {
    /// The number of bodies.
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Encodes the present places, for [`EncodedPositions::decode`].
    pub(super) fn encode(&mut self, places: impl Iterator<Item = [f32; 3]>, to: &mut Vec<u8>) {
        let mut numbers = [(); 2].map(|()| Vec::with_capacity(3 * self.rows.len()));
        for (&(is_known, _), place) in self.rows.iter().zip(places) {
            numbers[usize::from(is_known)].extend_from_slice(&place);
        }
        for (track, numbers) in self.tracks.iter_mut().zip(numbers) {
            if !numbers.is_empty() {
                track.encode(numbers, to);
            }
        }
    }

    /// Decodes the present places and advances `bytes`; none if they are not valid.
    pub(super) fn decode(&mut self, points: &mut [[f32; 4]], bytes: &mut &[u8]) -> Option<()> {
        let known = self.rows.iter().filter(|(is_known, _)| *is_known).count();
        let counts = [self.rows.len() - known, known];
        let mut decoded: [&[f32]; 2] = [&[]; 2];
        for ((track, count), decoded) in self.tracks.iter_mut().zip(counts).zip(&mut decoded) {
            if count > 0 {
                *decoded = track.decode(3 * count, bytes).ok()?;
            }
        }
        for (point, &(is_known, row)) in points.iter_mut().zip(&self.rows) {
            point[..3].copy_from_slice(&decoded[usize::from(is_known)][3 * row..3 * row + 3]);
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The place of a body in a step: each has its own path, with a turn.
    fn place(body: usize, step: u32) -> [f32; 3] {
        [0, 1, 2].map(|axis| {
            let own = ((body * 37 + axis * 11) % 101) as f32 / 101.0 - 0.5;
            own + 1e-4 * own * step as f32 + 1e-7 * (step * step) as f32
        })
    }

    fn points(bodies: &[usize]) -> Vec<[f32; 4]> {
        vec![[0.0, 0.0, 0.0, 1.0]; bodies.len()]
    }

    /// Encodes and decodes these bodies in these steps; returns the bytes of the last.
    fn follow(
        (sender, receiver): (&mut EncodedPositions, &mut EncodedPositions),
        bodies: &[usize],
        steps: std::ops::Range<u32>,
    ) -> Vec<u8> {
        let mut bytes = Vec::new();
        for step in steps {
            bytes.clear();
            sender.encode(bodies.iter().map(|&body| place(body, step)), &mut bytes);
            let (mut points, mut left) = (points(bodies), &bytes[..]);
            receiver.decode(&mut points, &mut left).unwrap();
            assert!(left.is_empty());
            for (&body, [x, y, z, _]) in bodies.iter().zip(points) {
                assert_eq!(place(body, step), [x, y, z]);
            }
        }
        bytes
    }

    proptest! {
        /// Decoding an encoded view is the identity for all former views; known bodies need fewer
        /// bytes.
        #[test]
        fn views_continue_former_ones(
            views in prop::collection::vec((0u32..1000, 0usize..40), 0..4),
            new in 0usize..20, before in 1u32..9,
            seed in any::<u64>(), at in any::<prop::sample::Index>(), bits in 1u8..,
            cut in any::<prop::sample::Index>(),
        ) {
            let mut sent = BTreeMap::new();
            for (root, count) in views {
                let bodies: Vec<usize> = (0..count).map(|i| root as usize * 64 + i).collect();
                let known = vec![None; count];
                let empty = || FormerViews::NONE.continue_from(&known).unwrap();
                let [mut sender, mut receiver] = [empty(), empty()];
                follow((&mut sender, &mut receiver), &bodies, 0..before);
                sent.insert(root, (bodies, sender, receiver));
            }
            // All of them and some others, in another order.
            let of_view = |(&root, (bodies, ..)): (&u32, &(Vec<usize>, _, _))| -> Vec<_> {
                (0..bodies.len()).map(|at| (bodies[at], Some((root, at as u32)))).collect()
            };
            let mut all: Vec<(usize, Option<Reference>)> = sent.iter().flat_map(of_view).collect();
            all.extend((0..new).map(|i| (100_000 + i, None)));
            let count = all.len() as u64;
            all.sort_by_key(|(body, _)| (*body as u64).wrapping_mul(seed | 1) % (count + 7));
            let (bodies, known): (Vec<usize>, Vec<_>) = all.into_iter().unzip();
            let [sent, received] = [0, 1].map(|receiver_past| {
                let former = sent.iter().map(|(root, (_, sender, receiver))| {
                    (*root, if receiver_past == 1 { receiver.clone() } else { sender.clone() })
                });
                former.collect::<BTreeMap<u32, EncodedPositions>>()
            });
            let sender_past = |root: u32| sent.get(&root);
            let receiver_past = |root: u32| received.get(&root);
            let sender_past = FormerViews { places: &sender_past, moved: [0.0; 3] };
            let receiver_past = FormerViews { places: &receiver_past, moved: [0.0; 3] };
            let mut form = Vec::new();
            sender_past.write(&known, &mut form);
            let read = |form: &[u8]| {
                let mut left = form;
                receiver_past.read(known.len(), &mut left).filter(|_| left.is_empty())
            };
            prop_assert!(read(&form).is_some_and(|read| read == known));
            let pasts = [&sender_past, &receiver_past];
            let [mut sender, mut receiver] = pasts.map(|past| past.continue_from(&known).unwrap());
            let bytes = follow((&mut sender, &mut receiver), &bodies, before..before + 1);
            let none = vec![None; known.len()];
            let empty = || FormerViews::NONE.continue_from(&none).unwrap();
            let [mut sender_new, mut receiver_new] = [empty(), empty()];
            let both = (&mut sender_new, &mut receiver_new);
            let without_past = follow(both, &bodies, before..before + 1);
            if before >= 3 && known.len() >= 40 + 2 * new {
                prop_assert!(
                    2 * bytes.len() < without_past.len(),
                    "{} of {}",
                    bytes.len(),
                    without_past.len()
                );
            }
            follow((&mut sender, &mut receiver), &bodies, before + 1..before + 4);
            // A cut or damaged form gives an error or another form, and never a panic.
            prop_assert!(read(&form[..cut.index(form.len())]).is_none());
            let at = at.index(form.len());
            form[at] ^= bits;
            if let Some(other) = read(&form) {
                let _ = receiver_past
                    .continue_from(&other)
                    .map(|mut places| places.decode(&mut points(&bodies), &mut &bytes[..]));
            }
        }
    }

    /// A fixed body is expected at its new place while the box moves.
    #[test]
    fn places_move_with_the_box() {
        let bodies: Vec<usize> = (0..100).collect();
        let mut places = FormerViews::NONE.continue_from(&[None; 100]).unwrap();
        let mut bytes = Vec::new();
        (0..6).for_each(|_| places.encode(bodies.iter().map(|&body| place(body, 0)), &mut bytes));
        let known: Vec<_> = (0..100).map(|at| Some((3, at))).collect();
        let later = |body: usize| place(body, 0).map(|x| (f64::from(x) + 0.25) as f32);
        let bytes = [[0.25; 3], [0.0; 3]].map(|moved| {
            let past = FormerViews { places: &|_| Some(&places), moved };
            let (mut next, mut bytes) = (past.continue_from(&known).unwrap(), Vec::new());
            next.encode(bodies.iter().map(|&body| later(body)), &mut bytes);
            bytes.len()
        });
        assert!(4 * bytes[0] < bytes[1], "{bytes:?}");
    }
}
