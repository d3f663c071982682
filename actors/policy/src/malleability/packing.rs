//! Packing of items into the fewest bins of unequal capacity, where a bin may be closed to an item.
//!
//! This module knows neither jobs nor clusters. For whole items the problem is NP-hard, so the
//! search has a limit of steps: within it the result is exact, and beyond it the best of a few
//! heuristics. Items that may be divided are a transport problem: a division is found if one
//! exists.

use std::cmp::Reverse;
use std::collections::VecDeque;

/// Items and bins.
#[derive(Clone, Debug)]
pub(super) struct PackingProblem {
    /// The size and the class of each item.
    pub(super) items: Vec<(u32, usize)>,
    /// The capacities of the bins.
    pub(super) bins: Vec<u32>,
    /// By class, the bins that are open to its items, in increasing order.
    pub(super) open: Vec<Vec<usize>>,
}

/// The bins of the items.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Packing {
    /// The bin of each item.
    pub(super) bins: Vec<usize>,
    /// Whether it is proven that no packing uses fewer bins.
    pub(super) is_minimal: bool,
}

/// Result of [`PackingProblem::solve`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PackingResult {
    /// A packing.
    Packed(Packing),
    /// No packing exists.
    Impossible,
    /// The search ended at its limit, and no heuristic found a packing.
    Unknown,
}

/// Rules by which a heuristic chooses among the bins in use with room for an item.
#[derive(Clone, Copy, Debug)]
enum Fit {
    /// The first bin.
    First,
    /// The bin with least room.
    Best,
}

impl PackingProblem {
    /// Packs all items into as few bins as possible.
    ///
    /// `steps` limits the number of bins that the search examines. Equal problems have equal
    /// results.
    pub(super) fn solve(&self, steps: u64) -> PackingResult {
        let mut search = PackingSearch::new(self, steps);
        let fewest = search.fewest_bins();
        for most in fewest..=self.bins.len().min(self.items.len()) {
            match search.run(most) {
                Some(true) => {
                    return PackingResult::Packed(Packing {
                        bins: search.bins_of_items(),
                        is_minimal: true,
                    });
                }
                Some(false) => {}
                None => return self.packed_by_heuristics(&search.order),
            }
        }
        PackingResult::Impossible
    }

    fn packed_by_heuristics(&self, order: &[usize]) -> PackingResult {
        let mut restricted_first = order.to_vec();
        restricted_first.sort_by_key(|&item| self.open[self.items[item].1].len());
        let attempts = [(Fit::First, order), (Fit::Best, order), (Fit::Best, &restricted_first)];
        let packings = attempts.into_iter().filter_map(|(fit, order)| self.heuristic(fit, order));
        let used = |bins: &Vec<usize>| {
            let mut bins = bins.clone();
            bins.sort_unstable();
            bins.dedup();
            bins.len()
        };
        match packings.min_by_key(used) {
            Some(bins) => PackingResult::Packed(Packing { bins, is_minimal: false }),
            None => PackingResult::Unknown,
        }
    }

    /// Divides the items among bins. Returns the amount of each class in each bin.
    ///
    /// It prefers bins in use, then large ones; so items of one class use as few bins as possible.
    /// `steps` limits the examined pairs of a class and a bin. None if no division exists, or none
    /// was found within the limit.
    pub(super) fn divide(&self, mut steps: u64) -> Option<Vec<Vec<u32>>> {
        let mut missing = vec![0u64; self.open.len()];
        self.items.iter().for_each(|&(size, class)| missing[class] += u64::from(size));
        let mut flow = Flow {
            problem: self,
            room: self.bins.clone(),
            amounts: vec![vec![0; self.bins.len()]; self.open.len()],
        };
        let mut order: Vec<usize> = (0..self.open.len()).collect();
        order.sort_by_key(|&class| (self.open[class].len(), Reverse(missing[class]), class));
        for class in order {
            while missing[class] > 0 {
                let bin = flow.best_bin(class);
                let moved = match bin {
                    Some(bin) => flow.take(class, bin, missing[class]),
                    None => flow.displace(class, missing[class], &mut steps)?,
                };
                missing[class] -= u64::from(moved);
            }
        }
        Some(flow.amounts)
    }

    /// Places items in this order, each in a bin in use if one has room, else in the largest unused
    /// one.
    fn heuristic(&self, fit: Fit, order: &[usize]) -> Option<Vec<usize>> {
        let mut room = self.bins.clone();
        let mut bins = vec![usize::MAX; self.items.len()];
        for &item in order {
            let (size, class) = self.items[item];
            let fits = self.open[class].iter().copied().filter(|&bin| room[bin] >= size);
            let rank = |&bin: &usize| match fit {
                _ if room[bin] == self.bins[bin] => (true, u32::MAX - room[bin], bin),
                Fit::First => (false, 0, bin),
                Fit::Best => (false, room[bin], bin),
            };
            let bin = fits.min_by_key(rank)?;
            room[bin] -= size;
            bins[item] = bin;
        }
        Some(bins)
    }
}

/// Amounts of classes in bins.
struct Flow<'a> {
    problem: &'a PackingProblem,
    room: Vec<u32>,
    /// By class and bin.
    amounts: Vec<Vec<u32>>,
}

impl Flow<'_> {
    /// The open bin with room: one in use with most room, else the largest.
    fn best_bin(&self, class: usize) -> Option<usize> {
        let open = self.problem.open[class].iter().copied().filter(|&bin| self.room[bin] > 0);
        let is_used = |bin: usize| self.room[bin] < self.problem.bins[bin];
        open.max_by_key(|&bin| (is_used(bin), self.room[bin], Reverse(bin)))
    }

    fn take(&mut self, class: usize, bin: usize, most: u64) -> u32 {
        let taken = u32::try_from(most).unwrap_or(u32::MAX).min(self.room[bin]);
        self.amounts[class][bin] += taken;
        self.room[bin] -= taken;
        taken
    }

    /// Makes room in a bin that is open to `class`: moves amounts of other classes along a shortest
    /// chain of bins to one with room. Returns the amount that the class gets; none if there is no
    /// such chain.
    fn displace(&mut self, class: usize, most: u64, steps: &mut u64) -> Option<u32> {
        // By bin, the class that would leave it for a later bin of the chain, and that bin.
        let mut previous: Vec<Option<(usize, usize)>> = vec![None; self.room.len()];
        let mut seen = vec![false; self.room.len()];
        let mut queue = VecDeque::new();
        for &bin in &self.problem.open[class] {
            seen[bin] = true;
            queue.push_back(bin);
        }
        let end = 'search: loop {
            let from = queue.pop_front()?;
            for (other, amounts) in self.amounts.iter().enumerate() {
                *steps = steps.checked_sub(1)?;
                if amounts[from] == 0 {
                    continue;
                }
                for &to in &self.problem.open[other] {
                    *steps = steps.checked_sub(1)?;
                    if seen[to] {
                        continue;
                    }
                    seen[to] = true;
                    previous[to] = Some((other, from));
                    if self.room[to] > 0 {
                        break 'search to;
                    }
                    queue.push_back(to);
                }
            }
        };
        let mut moved = u32::try_from(most).unwrap_or(u32::MAX).min(self.room[end]);
        let mut at = end;
        while let Some((other, from)) = previous[at] {
            moved = moved.min(self.amounts[other][from]);
            at = from;
        }
        self.amounts[class][at] += moved;
        self.room[end] -= moved;
        let mut at = end;
        while let Some((other, from)) = previous[at] {
            self.amounts[other][from] -= moved;
            self.amounts[other][at] += moved;
            at = from;
        }
        Some(moved)
    }
}

/// A depth-first search for a packing into at most a given number of bins.
struct PackingSearch<'a> {
    problem: &'a PackingProblem,
    /// The items, largest first; of equal ones, those with fewer open bins.
    order: Vec<usize>,
    /// By class, the open bins in order of trial: largest first.
    trials: Vec<Vec<usize>>,
    /// The bins, largest first.
    by_capacity: Vec<usize>,
    /// By bin, a number that is equal for bins of equal capacity that are open to the same classes.
    kinds: Vec<usize>,
    room: Vec<u32>,
    /// By bin, the number of its items.
    counts: Vec<u32>,
    /// The number of bins in use, and their room.
    used: usize,
    used_room: u64,
    /// For each placed item, the index of its bin in the order of trial.
    path: Vec<usize>,
    steps_left: u64,
}

impl<'a> PackingSearch<'a> {
    fn new(problem: &'a PackingProblem, steps: u64) -> Self {
        let PackingProblem { items, bins, open } = problem;
        let mut order: Vec<usize> = (0..items.len()).collect();
        order.sort_by_key(|&item| {
            let (size, class) = items[item];
            (Reverse(size), open[class].len(), class, item)
        });
        let largest_first = |bins_of: &mut Vec<usize>| {
            bins_of.sort_by_key(|&bin| (Reverse(bins[bin]), bin));
        };
        let mut by_capacity: Vec<usize> = (0..bins.len()).collect();
        largest_first(&mut by_capacity);
        let mut trials = open.clone();
        trials.iter_mut().for_each(largest_first);
        let mut classes = vec![Vec::new(); bins.len()];
        for (class, open) in open.iter().enumerate() {
            open.iter().for_each(|&bin| classes[bin].push(class));
        }
        let kind = |bin: usize| (bins[bin], &classes[bin]);
        let mut sorted = by_capacity.clone();
        sorted.sort_by_key(|&bin| kind(bin));
        let mut kinds = vec![0; bins.len()];
        for pair in sorted.windows(2) {
            kinds[pair[1]] = kinds[pair[0]] + usize::from(kind(pair[0]) != kind(pair[1]));
        }
        Self {
            problem,
            order,
            trials,
            by_capacity,
            kinds,
            room: bins.clone(),
            counts: vec![0; bins.len()],
            used: 0,
            used_room: 0,
            path: Vec::new(),
            steps_left: steps,
        }
    }

    /// The smallest number of bins whose capacities are together sufficient. Above the number of
    /// bins if none is.
    fn fewest_bins(&self) -> usize {
        let mut missing: u64 = self.problem.items.iter().map(|&(size, _)| u64::from(size)).sum();
        let mut count = 0;
        for &bin in &self.by_capacity {
            if missing == 0 {
                return count;
            }
            missing = missing.saturating_sub(self.problem.bins[bin].into());
            count += 1;
        }
        if missing == 0 { count } else { usize::MAX }
    }

    fn bins_of_items(&self) -> Vec<usize> {
        let mut bins = vec![0; self.order.len()];
        for (&item, &at) in self.order.iter().zip(&self.path) {
            bins[item] = self.bin_of(item, at);
        }
        bins
    }

    fn bin_of(&self, item: usize, at: usize) -> usize {
        self.trials[self.problem.items[item].1][at]
    }

    fn put(&mut self, bin: usize, size: u32) {
        if self.counts[bin] == 0 {
            self.used += 1;
            self.used_room += u64::from(self.room[bin]);
        }
        self.counts[bin] += 1;
        self.room[bin] -= size;
        self.used_room -= u64::from(size);
    }

    fn remove(&mut self, bin: usize, size: u32) {
        self.counts[bin] -= 1;
        self.room[bin] += size;
        self.used_room += u64::from(size);
        if self.counts[bin] == 0 {
            self.used -= 1;
            self.used_room -= u64::from(self.room[bin]);
        }
    }

    /// Searches for a packing into at most `most` bins. Returns whether there is one; none if the
    /// steps are used up.
    fn run(&mut self, most: usize) -> Option<bool> {
        while self.undo().is_some() {}
        let mut missing: u64 = self.problem.items.iter().map(|&(size, _)| u64::from(size)).sum();
        loop {
            let depth = self.path.len();
            let Some(&(mut item)) = self.order.get(depth) else { return Some(true) };
            let mut found = None;
            if self.has_room_for(missing, most)? {
                found = self.next_bin(item, self.first_trial(depth), most)?;
            }
            let at = loop {
                if let Some(at) = found {
                    break at;
                }
                // Steps back to the last item with another bin.
                let Some((last, before)) = self.undo() else { return Some(false) };
                item = last;
                missing += u64::from(self.problem.items[item].0);
                found = self.next_bin(item, before + 1, most)?;
            };
            let size = self.problem.items[item].0;
            self.put(self.bin_of(item, at), size);
            missing -= u64::from(size);
            self.path.push(at);
        }
    }

    /// Takes the last placed item out of its bin. Returns the item and the index of that bin.
    fn undo(&mut self) -> Option<(usize, usize)> {
        let at = self.path.pop()?;
        let item = self.order[self.path.len()];
        self.remove(self.bin_of(item, at), self.problem.items[item].0);
        Some((item, at))
    }

    /// Of equal items, none goes to an earlier bin than the one before it.
    fn first_trial(&self, depth: usize) -> usize {
        let Some(before) = depth.checked_sub(1) else { return 0 };
        let item = |at: usize| self.problem.items[self.order[at]];
        if item(before) == item(depth) { self.path[before] } else { 0 }
    }

    /// Whether the bins in use and the largest others could hold the missing sizes. None if the
    /// steps are used up.
    fn has_room_for(&mut self, missing: u64, most: usize) -> Option<bool> {
        let mut room = self.used_room;
        let mut unused = most - self.used;
        for &bin in &self.by_capacity {
            if room >= missing || unused == 0 {
                break;
            }
            self.steps_left = self.steps_left.checked_sub(1)?;
            if self.counts[bin] == 0 {
                room += u64::from(self.room[bin]);
                unused -= 1;
            }
        }
        Some(room >= missing)
    }

    /// The next bin for an item, by index in the order of trial: `Some(None)` if there is none, and
    /// none if the steps are used up.
    fn next_bin(&mut self, item: usize, from: usize, most: usize) -> Option<Option<usize>> {
        let (size, class) = self.problem.items[item];
        for at in from..self.trials[class].len() {
            self.steps_left = self.steps_left.checked_sub(1)?;
            let bin = self.trials[class][at];
            if self.room[bin] < size {
                continue;
            }
            if self.counts[bin] == 0 && (self.used == most || self.repeats_equal(class, at)?) {
                continue;
            }
            return Some(Some(at));
        }
        Some(None)
    }

    /// Whether an equal unused bin precedes an unused one in the order of trial. None if the steps
    /// are used up.
    fn repeats_equal(&mut self, class: usize, at: usize) -> Option<bool> {
        let kind = self.kinds[self.trials[class][at]];
        let capacity = self.problem.bins[self.trials[class][at]];
        for &before in self.trials[class][..at].iter().rev() {
            // Bins of equal capacity are neighbours.
            if self.problem.bins[before] != capacity {
                break;
            }
            self.steps_left = self.steps_left.checked_sub(1)?;
            if self.counts[before] == 0 && self.kinds[before] == kind {
                return Some(true);
            }
        }
        Some(false)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The fewest bins of any packing, by trial of all of them.
    fn fewest_by_trial(problem: &PackingProblem, room: &[u32], item: usize) -> Option<usize> {
        let Some(&(size, class)) = problem.items.get(item) else {
            let used = room.iter().zip(&problem.bins).filter(|(left, whole)| left < whole);
            return Some(used.count());
        };
        let fits = problem.open[class].iter().filter(|&&bin| room[bin] >= size);
        let rest = fits.filter_map(|&bin| {
            let mut room = room.to_vec();
            room[bin] -= size;
            fewest_by_trial(problem, &room, item + 1)
        });
        rest.min()
    }

    fn used_bins(problem: &PackingProblem, bins: &[usize]) -> usize {
        let mut room = problem.bins.clone();
        for (&bin, &(size, class)) in bins.iter().zip(&problem.items) {
            assert!(problem.open[class].contains(&bin), "a closed bin is used");
            room[bin] = room[bin].checked_sub(size).expect("the bin is not overfull");
        }
        room.iter().zip(&problem.bins).filter(|(left, whole)| left < whole).count()
    }

    #[test]
    fn many_equal_items_are_packed_within_the_limit() {
        let bins = vec![64; 100];
        let open = vec![(0..100).collect::<Vec<_>>()];
        for size in [1, 3, 7] {
            let items = vec![(size, 0); 6000 / size as usize];
            let problem = PackingProblem { items, bins: bins.clone(), open: open.clone() };
            let PackingResult::Packed(packing) = problem.solve(100_000) else {
                panic!("size {size} was not packed");
            };
            let most = problem.items.len().div_ceil(64 / size as usize);
            assert_eq!(used_bins(&problem, &packing.bins), most, "size {size}");
        }
    }

    /// Whether a division exists, by Hall's condition: each set of classes fits into the bins that
    /// are open to any of them.
    fn is_divisible(problem: &PackingProblem) -> bool {
        (0..1u32 << problem.open.len()).all(|set| {
            let is_in = |class: &usize| set >> class & 1 == 1;
            let sizes = problem.items.iter().filter(|(_, class)| is_in(class));
            let needed: u32 = sizes.map(|(size, _)| size).sum();
            let bins = problem.bins.iter().enumerate().filter(|(bin, _)| {
                let mut open = problem.open.iter().enumerate();
                open.any(|(class, open)| is_in(&class) && open.contains(bin))
            });
            needed <= bins.map(|(_, room)| room).sum()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

        /// Within its limit the search is exact; without steps, what is found is a packing.
        #[test]
        fn packings_use_as_few_bins_as_trial_of_all(
            items in prop::collection::vec((1u32..9, 0usize..3), 0..7),
            bins in prop::collection::vec(0u32..14, 1..5),
            open in prop::collection::vec(1u8..16, 3),
            restricted in any::<bool>(),
        ) {
            let open = open.iter().map(|mask| {
                let is_open = |&bin: &usize| !restricted || mask >> bin & 1 == 1;
                (0..bins.len()).filter(is_open).collect()
            });
            let problem = PackingProblem { items, open: open.collect(), bins };
            let fewest = fewest_by_trial(&problem, &problem.bins, 0);
            match problem.solve(1_000_000) {
                PackingResult::Packed(packing) => {
                    prop_assert!(packing.is_minimal);
                    prop_assert_eq!(Some(used_bins(&problem, &packing.bins)), fewest);
                }
                PackingResult::Impossible => prop_assert_eq!(fewest, None),
                PackingResult::Unknown => prop_assert!(false, "the limit was reached"),
            }
            match problem.divide(1_000_000) {
                Some(amounts) => {
                    prop_assert!(is_divisible(&problem));
                    for (bin, room) in problem.bins.iter().enumerate() {
                        prop_assert!(amounts.iter().map(|of| of[bin]).sum::<u32>() <= *room);
                    }
                    for (class, of) in amounts.iter().enumerate() {
                        let items = problem.items.iter().filter(|item| item.1 == class);
                        let size: u32 = items.map(|item| item.0).sum();
                        prop_assert_eq!(of.iter().sum::<u32>(), size);
                        let is_closed = |bin: &usize| !problem.open[class].contains(bin);
                        prop_assert!((0..of.len()).filter(is_closed).all(|bin| of[bin] == 0));
                    }
                }
                None => prop_assert!(!is_divisible(&problem)),
            }
            match problem.solve(0) {
                PackingResult::Packed(packing) => {
                    let used = used_bins(&problem, &packing.bins);
                    prop_assert!(fewest.is_some_and(|fewest| fewest <= used));
                }
                PackingResult::Impossible => prop_assert_eq!(fewest, None),
                PackingResult::Unknown => {}
            }
        }
    }
}
