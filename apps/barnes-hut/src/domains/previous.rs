//! The exports and imports before bodies were sorted, from which the coding of the next ones
//! continues. This module does not send messages.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use rustc_hash::FxHashMap;

use crate::partial::{EncodedPositions, FormerViews, Reference, RemoteBranch, Subscription};

/// The views that a new one continues from, and the reference of each body to them.
pub(super) type Known<'p> = (&'p FormerViews<'p>, &'p dyn Fn(usize) -> Option<Reference>);

/// The former exports to a group.
#[derive(Debug, Default)]
pub(super) struct SentRoots {
    /// The receivers, by place along the curve, and the places of the bodies of each root, by its
    /// former number.
    roots: BTreeMap<u32, (BTreeSet<usize>, EncodedPositions)>,
    /// The reference of each body, by its number among all bodies.
    bodies: FxHashMap<u32, Reference>,
}

impl SentRoots {
    /// Keeps the export of a root with this number, these receivers, and the keys and numbers of
    /// its bodies.
    pub(super) fn keep(
        &mut self,
        root: u32,
        by: BTreeSet<usize>,
        view: Subscription,
        keys: &[(u64, u32)],
    ) {
        let (bodies, places) = view.into_places();
        let numbers = bodies.into_iter().flat_map(|some| &keys[some]).map(|(_, number)| *number);
        self.bodies.extend(numbers.zip((0..).map(|at| (root, at))));
        self.roots.insert(root, (by, places));
    }
}

/// The former exports and imports; empty except in the first step after a sort.
#[derive(Debug, Default)]
pub(crate) struct PreviousViews {
    /// The exports to each group.
    pub(super) sent: Vec<SentRoots>,
    /// The numbers of own bodies among all, in the present order.
    pub numbers: Vec<u32>,
    /// The imported parts, by former number of the root.
    pub received: BTreeMap<usize, RemoteBranch>,
    /// The movement of a fixed point: see [`FormerViews::moved`].
    pub moved: [f64; 3],
}

impl PreviousViews {
    /// Makes a view of these own bodies, which continues from what all of `by` received.
    pub(super) fn with_sent<T>(
        &self,
        group: usize,
        by: &BTreeSet<usize>,
        bodies: Range<usize>,
        make: impl FnOnce(Known<'_>) -> T,
    ) -> T {
        let Some(SentRoots { roots, bodies: of }) = self.sent.get(group) else {
            return make((&FormerViews::NONE, &|_| None));
        };
        let all = |(_, (receivers, _)): &(&u32, &(BTreeSet<usize>, EncodedPositions))| {
            by.is_subset(receivers)
        };
        let known: BTreeSet<u32> = roots.iter().filter(all).map(|(root, _)| *root).collect();
        let numbers = &self.numbers[bodies];
        let reference =
            |body: usize| of.get(&numbers[body]).copied().filter(|(root, _)| known.contains(root));
        let places = |root: u32| roots.get(&root).map(|(_, places)| places);
        make((&FormerViews { places: &places, moved: self.moved }, &reference))
    }

    /// Decodes data that continues from what this process received.
    pub(super) fn with_received<T>(&self, read: impl FnOnce(&FormerViews<'_>) -> T) -> T {
        let places = |root: u32| self.received.get(&(root as usize)).map(RemoteBranch::places);
        read(&FormerViews { places: &places, moved: self.moved })
    }
}
