//! What a process told others of bodies, and heard of theirs, before they were sorted: the first views thereafter go on with it. Knows
//! no messages.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use crate::partial::{FormerViews, Places, Reference, RemoteBranch, Subscription};

/// What a view goes on with, and which of its bodies were in that.
pub(super) type Known<'p> = (&'p FormerViews<'p>, &'p dyn Fn(usize) -> Option<Reference>);

/// What an audience was told of own roots.
#[derive(Debug, Default)]
pub(super) struct SentRoots {
    /// Of each root, by number then: who took it in, by place along the curve, and where its bodies are.
    roots: BTreeMap<u32, (BTreeSet<usize>, Places)>,
    /// Of each body, by number among all bodies.
    bodies: HashMap<u32, Reference>,
}

impl SentRoots {
    /// Keeps the view of a root with this number that these took in, whose bodies have these keys and numbers.
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

/// See the head of this file. Of nothing in all other steps.
#[derive(Debug, Default)]
pub(crate) struct PreviousViews {
    /// By audience.
    pub(super) told: Vec<SentRoots>,
    /// The numbers of own bodies among all, as they are sorted now.
    pub numbers: Vec<u32>,
    /// Of others' roots, by number then.
    pub heard: BTreeMap<usize, RemoteBranch>,
    /// See [`FormerViews::moved`].
    pub moved: [f64; 3],
}

impl PreviousViews {
    /// Lets a view be made that goes on with what `by` were all told of these own bodies.
    pub(super) fn with_sent<T>(
        &self,
        group: usize,
        by: &BTreeSet<usize>,
        bodies: Range<usize>,
        make: impl FnOnce(Known<'_>) -> T,
    ) -> T {
        let Some(SentRoots { roots, bodies: of }) = self.told.get(group) else {
            return make((&FormerViews::NONE, &|_| None));
        };
        let all =
            |(_, (receivers, _)): &(&u32, &(BTreeSet<usize>, Places))| by.is_subset(receivers);
        let known: BTreeSet<u32> = roots.iter().filter(all).map(|(root, _)| *root).collect();
        let numbers = &self.numbers[bodies];
        let reference =
            |body: usize| of.get(&numbers[body]).copied().filter(|(root, _)| known.contains(root));
        let places = |root: u32| roots.get(&root).map(|(_, places)| places);
        make((&FormerViews { places: &places, moved: self.moved }, &reference))
    }

    /// Lets something be read that goes on with what was heard.
    pub(super) fn with_received<T>(&self, read: impl FnOnce(&FormerViews<'_>) -> T) -> T {
        let places = |root: u32| self.heard.get(&(root as usize)).map(RemoteBranch::places);
        read(&FormerViews { places: &places, moved: self.moved })
    }
}
