//! Where the bodies of a view are, from step to step, and on from one view to the next. Knows neither cells nor messages.
//!
//! When bodies are sorted all views begin anew, but most bodies in them are those of the views before. Of such a body the form of the new view
//! says which it was, and its places go on from those: two whole frames (of a place, and of how it changes) take ten times what one does later.

use std::collections::BTreeMap;

use crate::delta::{unzigzag, zigzag};
use crate::smooth::{Counts, Track, put_codes, put_number, take_codes, take_number};

const PLACE: &[Counts] = &[Counts::InOrder; 3];

/// Where the bodies of a view are, as it was told in each step.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    /// Of each body, whether it was told of before, and which of those that were, or were not, it is.
    rows: Vec<(bool, usize)>,
    /// Of those that were not and those that were.
    tracks: [Track; 2],
}

/// A body of a view before: of which root, by its number then, and which of those that the view showed.
pub(crate) type Reference = (u32, u32);

/// Views before bodies were sorted, as those who tell and those who hear know them.
pub(crate) struct Past<'p> {
    /// The places that the view of a root with this number showed.
    pub places: &'p dyn Fn(u32) -> Option<&'p Places>,
    /// How far what stays where it is has moved inside the box since.
    pub moved: [f64; 3],
}

impl Past<'_> {
    /// No views before.
    pub(crate) const NONE: Past<'static> = Past { places: &|_| None, moved: [0.0; 3] };

    /// Writes which bodies those of a view were, for [`Past::read`].
    pub(super) fn write(&self, known: &[Option<Reference>], to: &mut Vec<u8>) {
        let mut firsts: BTreeMap<u32, u32> =
            known.iter().flatten().map(|&(root, _)| (root, 0)).collect();
        put_number(firsts.len() as u32, to);
        let mut count = 0;
        for (&root, first) in &mut firsts {
            put_number(root, to);
            *first = count;
            count += (self.places)(root).map_or(0, Places::len) as u32;
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

    /// Reads which bodies the so many of a view were, and goes on behind it. Nothing if these are no bodies of views before.
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

    /// Where the bodies of a view are that were these. Nothing if there were none such.
    pub(super) fn go_on(&self, known: &[Option<Reference>]) -> Option<Places> {
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
        Some(Places { rows, tracks: [Track::new(PLACE), before] })
    }
}

impl Places {
    /// Of how many bodies.
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Writes where they are now, for [`Places::hear`].
    pub(super) fn tell(&mut self, places: impl Iterator<Item = [f32; 3]>, to: &mut Vec<u8>) {
        let mut numbers = [(); 2].map(|()| Vec::with_capacity(3 * self.rows.len()));
        for (&(is_known, _), place) in self.rows.iter().zip(places) {
            numbers[usize::from(is_known)].extend_from_slice(&place);
        }
        for (track, numbers) in self.tracks.iter_mut().zip(numbers) {
            if !numbers.is_empty() {
                track.tell(numbers, to);
            }
        }
    }

    /// Hears where they are now, and goes on behind it. Nothing if it is not that.
    pub(super) fn hear(&mut self, points: &mut [[f32; 4]], bytes: &mut &[u8]) -> Option<()> {
        let known = self.rows.iter().filter(|(is_known, _)| *is_known).count();
        let counts = [self.rows.len() - known, known];
        let mut heard: [&[f32]; 2] = [&[]; 2];
        for ((track, count), heard) in self.tracks.iter_mut().zip(counts).zip(&mut heard) {
            if count > 0 {
                *heard = track.hear(3 * count, bytes).ok()?;
            }
        }
        for (point, &(is_known, row)) in points.iter_mut().zip(&self.rows) {
            point[..3].copy_from_slice(&heard[usize::from(is_known)][3 * row..3 * row + 3]);
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Where this body is in a step: it has its own way, and turns.
    fn place(body: usize, step: u32) -> [f32; 3] {
        [0, 1, 2].map(|axis| {
            let own = ((body * 37 + axis * 11) % 101) as f32 / 101.0 - 0.5;
            own + 1e-4 * own * step as f32 + 1e-7 * (step * step) as f32
        })
    }

    fn points(bodies: &[usize]) -> Vec<[f32; 4]> {
        vec![[0.0, 0.0, 0.0, 1.0]; bodies.len()]
    }

    /// Tells and hears these bodies in these steps; returns the bytes of the last.
    fn follow(
        (teller, hearer): (&mut Places, &mut Places),
        bodies: &[usize],
        steps: std::ops::Range<u32>,
    ) -> Vec<u8> {
        let mut bytes = Vec::new();
        for step in steps {
            bytes.clear();
            teller.tell(bodies.iter().map(|&body| place(body, step)), &mut bytes);
            let (mut points, mut left) = (points(bodies), &bytes[..]);
            hearer.hear(&mut points, &mut left).unwrap();
            assert!(left.is_empty());
            for (&body, [x, y, z, _]) in bodies.iter().zip(points) {
                assert_eq!(place(body, step), [x, y, z]);
            }
        }
        bytes
    }

    proptest! {
        /// Whatever its bodies were before, a view is heard as it is told; and those that were told of before take less.
        #[test]
        fn views_go_on_with_those_before(
            views in prop::collection::vec((0u32..1000, 0usize..40), 0..4), new in 0usize..20, before in 1u32..9,
            seed in any::<u64>(), at in any::<prop::sample::Index>(), bits in 1u8.., cut in any::<prop::sample::Index>(),
        ) {
            let mut told = BTreeMap::new();
            for (root, count) in views {
                let bodies: Vec<usize> = (0..count).map(|i| root as usize * 64 + i).collect();
                let known = vec![None; count];
                let [mut teller, mut hearer] = [(); 2].map(|()| Past::NONE.go_on(&known).unwrap());
                follow((&mut teller, &mut hearer), &bodies, 0..before);
                told.insert(root, (bodies, teller, hearer));
            }
            // All of them and some others, in another order.
            let of_view = |(&root, (bodies, ..)): (&u32, &(Vec<usize>, _, _))| -> Vec<_> {
                (0..bodies.len()).map(|at| (bodies[at], Some((root, at as u32)))).collect()
            };
            let mut all: Vec<(usize, Option<Reference>)> = told.iter().flat_map(of_view).collect();
            all.extend((0..new).map(|i| (100_000 + i, None)));
            let count = all.len() as u64;
            all.sort_by_key(|(body, _)| (*body as u64).wrapping_mul(seed | 1) % (count + 7));
            let (bodies, known): (Vec<usize>, Vec<_>) = all.into_iter().unzip();
            let [told, heard] = [0, 1].map(|hears| {
                let of = |(root, (_, teller, hearer)): (&u32, &(_, Places, Places))| {
                    (*root, if hears == 1 { hearer.clone() } else { teller.clone() })
                };
                told.iter().map(of).collect::<BTreeMap<u32, Places>>()
            });
            let tells = |root: u32| told.get(&root);
            let hears = |root: u32| heard.get(&root);
            let tells = Past { places: &tells, moved: [0.0; 3] };
            let hears = Past { places: &hears, moved: [0.0; 3] };
            let mut form = Vec::new();
            tells.write(&known, &mut form);
            let read = |form: &[u8]| {
                let mut left = form;
                hears.read(known.len(), &mut left).filter(|_| left.is_empty())
            };
            prop_assert!(read(&form).is_some_and(|read| read == known));
            let (mut teller, mut hearer) = (tells.go_on(&known).unwrap(), hears.go_on(&known).unwrap());
            let bytes = follow((&mut teller, &mut hearer), &bodies, before..before + 1);
            let none = vec![None; known.len()];
            let [mut anew, mut heard_anew] = [(); 2].map(|()| Past::NONE.go_on(&none).unwrap());
            let all_anew = follow((&mut anew, &mut heard_anew), &bodies, before..before + 1);
            if before >= 3 && known.len() >= 40 + 2 * new {
                prop_assert!(2 * bytes.len() < all_anew.len(), "{} of {}", bytes.len(), all_anew.len());
            }
            follow((&mut teller, &mut hearer), &bodies, before + 1..before + 4);
            // What is cut or damaged is told apart, or is something else, and never a panic.
            prop_assert!(read(&form[..cut.index(form.len())]).is_none());
            let at = at.index(form.len());
            form[at] ^= bits;
            if let Some(other) = read(&form) {
                let _ = hears.go_on(&other).map(|mut places| places.hear(&mut points(&bodies), &mut &bytes[..]));
            }
        }
    }

    /// What stays where it is while the box moves is expected where it then is.
    #[test]
    fn places_move_with_the_box() {
        let bodies: Vec<usize> = (0..100).collect();
        let mut places = Past::NONE.go_on(&[None; 100]).unwrap();
        let mut bytes = Vec::new();
        (0..6).for_each(|_| places.tell(bodies.iter().map(|&body| place(body, 0)), &mut bytes));
        let known: Vec<_> = (0..100).map(|at| Some((3, at))).collect();
        let later = |body: usize| place(body, 0).map(|x| (f64::from(x) + 0.25) as f32);
        let bytes = [[0.25; 3], [0.0; 3]].map(|moved| {
            let past = Past { places: &|_| Some(&places), moved };
            let (mut next, mut bytes) = (past.go_on(&known).unwrap(), Vec::new());
            next.tell(bodies.iter().map(|&body| later(body)), &mut bytes);
            bytes.len()
        });
        assert!(4 * bytes[0] < bytes[1], "{bytes:?}");
    }
}
