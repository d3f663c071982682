//! Availability profile: the number of free processors over time as a step function, and its
//! earliest sufficient gap.
//!
//! Processors are interchangeable. Adjacent steps of equal height are merged, so that the number of
//! tasks does not matter; this keeps long searches fast.

use super::{NEVER, Time};

/// Free processors as a step function of time; zero before its start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AvailabilityProfile {
    /// Start of each step; the last one has no end.
    starts: Vec<Time>,
    /// Number of free processors in each step.
    free: Vec<u32>,
}

/// An empty profile, to which [`give`](AvailabilityProfile::give) adds processors.
impl Default for AvailabilityProfile {
    fn default() -> Self {
        Self::new(0, 0, NEVER)
    }
}

impl AvailabilityProfile {
    /// A profile with processors from `start` to `end`, and none afterwards.
    pub fn new(processors: u32, start: Time, end: Time) -> Self {
        let mut skyline = Self { starts: Vec::new(), free: Vec::new() };
        skyline.reset(processors, start, end);
        skyline
    }

    /// Resets the profile, like [`AvailabilityProfile::new`].
    pub fn reset(&mut self, processors: u32, start: Time, end: Time) {
        self.starts.clear();
        self.free.clear();
        self.starts.push(start);
        self.free.push(processors);
        if end < NEVER {
            self.starts.push(end);
            self.free.push(0);
        }
    }

    /// The step that contains a time; `None` before the first.
    fn step(&self, time: Time) -> Option<usize> {
        self.starts.partition_point(|&at| at <= time).checked_sub(1)
    }

    /// Number of free processors at a time.
    pub fn free_at(&self, time: Time) -> u32 {
        self.step(time).map_or(0, |step| self.free[step])
    }

    /// Minimum of free processors over `[from, to)`; for an empty interval, the number at `from`.
    pub fn min_free(&self, from: Time, to: Time) -> u32 {
        let Some(first) = self.step(from) else { return 0 };
        let mut least = self.free[first];
        for step in first + 1..self.starts.len() {
            if self.starts[step] >= to || least == 0 {
                break;
            }
            least = least.min(self.free[step]);
        }
        least
    }

    /// Maximum of free processors over `[from, to)`; for an empty interval, the number at `from`.
    pub fn max_free(&self, from: Time, to: Time) -> u32 {
        let steps = self.steps().skip_while(|&(at, _)| at <= from);
        let later = steps.take_while(|&(at, _)| at < to).map(|(_, free)| free);
        later.fold(self.free_at(from), u32::max)
    }

    /// The earliest start in `[from, before)` with enough free processors for the whole duration.
    pub fn earliest(
        &self,
        processors: u32,
        duration: Time,
        from: Time,
        before: Time,
    ) -> Option<Time> {
        let first = self.step(from);
        let mut start = if first.is_none() { *self.starts.first()? } else { from };
        let mut step = first.unwrap_or(0);
        while step < self.starts.len() && start < before {
            if self.free[step] < processors {
                step += 1;
                start = *self.starts.get(step)?;
                continue;
            }
            // Extends the gap until it is long enough or has too few processors.
            let end = start.saturating_add(duration);
            let mut next = step + 1;
            while next < self.starts.len()
                && self.starts[next] < end
                && self.free[next] >= processors
            {
                next += 1;
            }
            if next == self.starts.len() || self.starts[next] >= end {
                return Some(start);
            }
            step = next;
            start = self.starts[step];
        }
        None
    }

    /// Takes processors over `[from, to)`.
    ///
    /// # Panics
    /// Panics if fewer are free.
    pub fn take(&mut self, processors: u32, from: Time, to: Time) {
        self.change(from, to, |free| free.checked_sub(processors).expect("taken ones are free"));
    }

    /// Returns processors over `[from, to)`.
    pub fn give(&mut self, processors: u32, from: Time, to: Time) {
        self.change(from, to, |free| free.saturating_add(processors));
    }

    fn change(&mut self, from: Time, to: Time, to_free: impl Fn(u32) -> u32) {
        if from >= to {
            return;
        }
        let first = self.split(from);
        let last = self.split(to);
        for free in &mut self.free[first..last] {
            *free = to_free(*free);
        }
        // Only the two ends can become equal to their neighbours.
        self.merge(last);
        self.merge(first);
    }

    /// The step that starts at a time; created if absent.
    fn split(&mut self, time: Time) -> usize {
        let step = self.starts.partition_point(|&at| at < time);
        if self.starts.get(step) != Some(&time) {
            // No processor is free before the first step.
            let free = step.checked_sub(1).map_or(0, |before| self.free[before]);
            self.starts.insert(step, time);
            self.free.insert(step, free);
        }
        step
    }

    fn merge(&mut self, step: usize) {
        if step > 0 && step < self.starts.len() && self.free[step] == self.free[step - 1] {
            self.starts.remove(step);
            self.free.remove(step);
        }
    }

    /// The steps: start and number of free processors.
    pub fn steps(&self) -> impl Iterator<Item = (Time, u32)> {
        self.starts.iter().copied().zip(self.free.iter().copied())
    }

    /// Deletes the steps before a time.
    pub fn forget(&mut self, before: Time) {
        let Some(step) = self.step(before).filter(|&step| step > 0) else { return };
        self.starts.drain(..step);
        self.free.drain(..step);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn steps_that_are_equal_are_one() {
        let mut line = AvailabilityProfile::new(4, 0, 100);
        line.take(4, 10, 20);
        line.take(4, 20, 30);
        assert_eq!(line.steps().collect::<Vec<_>>(), [(0, 4), (10, 0), (30, 4), (100, 0)]);
        line.give(4, 10, 30);
        assert_eq!(line, AvailabilityProfile::new(4, 0, 100));
        assert_eq!(line.free_at(99), 4);
        assert_eq!((line.free_at(100), line.min_free(0, 100), line.min_free(0, 101)), (0, 4, 0));
        line.take(1, 0, 5);
        line.forget(7);
        assert_eq!(line.steps().next(), Some((5, 4)));
    }

    proptest! {
        #[test]
        fn queries_equal_a_plain_array(
            takes in proptest::collection::vec((1u32..4, 0u64..40, 1u64..10), 0..20),
            (processors, duration, from) in (1u32..6, 1u64..12, 0u64..50),
            end in prop_oneof![Just(NEVER), 20u64..60],
        ) {
            let mut line = AvailabilityProfile::new(5, 3, end);
            let mut free = [0u32; 80];
            for (at, free) in free.iter_mut().enumerate() {
                *free = if at >= 3 && (at as u64) < end { 5 } else { 0 };
            }
            for (count, at, length) in takes {
                if line.min_free(at, at + length) >= count {
                    line.take(count, at, at + length);
                    for free in &mut free[at as usize..(at + length) as usize] {
                        *free -= count;
                    }
                }
            }
            for at in 0..80 {
                prop_assert_eq!(line.free_at(at), free[at as usize]);
            }
            let during = || (from..from + duration).map(|at| line.free_at(at));
            prop_assert_eq!(Some(line.max_free(from, from + duration)), during().max());
            prop_assert_eq!(Some(line.min_free(from, from + duration)), during().min());
            let free_at = |t: u64| free.get(t as usize).copied().unwrap_or(5);
            let fits = |at: u64| (at..at + duration).all(|t| free_at(t) >= processors);
            let expected = (from..68).find(|&at| fits(at));
            let before = 68;
            prop_assert_eq!(line.earliest(processors, duration, from, before), expected);
            let steps: Vec<(Time, u32)> = line.steps().collect();
            let ordered = steps.windows(2).all(|w| w[0].0 < w[1].0 && w[0].1 != w[1].1);
            prop_assert!(ordered, "{:?}", steps);
        }
    }
}
