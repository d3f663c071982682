//! Numbers of processors for intervals that have only counts.
//!
//! Counts that fit at each moment can be numbered. In order of their starts, each interval finds as
//! many free numbers as it needs: an interval graph can be coloured with as many colours as the
//! largest number of overlapping intervals. This module knows neither tasks nor slots.

use std::fmt;

/// A number of processors during an interval of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Number of processors in use.
    pub processors: u32,
    /// Start of the interval, in microseconds.
    pub start: u64,
    /// End of the interval, in microseconds. An interval that does not end after its start takes no
    /// time, and is numbered as if it were alone.
    pub end: u64,
}

/// A set of processor numbers, as ascending runs of (first number, length) that do not touch.
///
/// Its text has the form of evalys and Batsim: `0-3 7`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    runs: Vec<(u32, u32)>,
}

impl Numbers {
    /// The numbers from 0 to `count` - 1.
    pub fn first(count: u32) -> Self {
        Self { runs: if count > 0 { vec![(0, count)] } else { Vec::new() } }
    }

    /// The runs as (first number, length), ascending.
    pub fn runs(&self) -> &[(u32, u32)] {
        &self.runs
    }

    /// The number of processors.
    pub fn count(&self) -> u32 {
        self.runs.iter().map(|(_, count)| count).sum()
    }

    /// Iterates over the numbers in ascending order.
    #[cfg(test)]
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.runs.iter().flat_map(|&(first, count)| first..first + count)
    }

    /// The largest number plus one, or 0 for an empty set.
    pub fn end(&self) -> u32 {
        self.runs.last().map_or(0, |(first, count)| first + count)
    }

    /// Maps each number `n` to the `n`th number of `names`.
    pub fn through(&self, names: &Self) -> Self {
        let mut through = Self::default();
        let (mut run, mut passed) = (0, 0);
        for &(first, count) in &self.runs {
            let (mut at, end) = (first, first + count);
            while at < end {
                let Some(&(name, length)) = names.runs.get(run) else { break };
                if at >= passed + length {
                    passed += length;
                    run += 1;
                    continue;
                }
                let take = (passed + length).min(end) - at;
                through.add((name + at - passed, take));
                at += take;
            }
        }
        through
    }

    /// The union with a disjoint set.
    pub fn with(&self, other: &Self) -> Self {
        let mut both = self.clone();
        other.runs.iter().for_each(|&run| both.add(run));
        both
    }

    /// The set with each number increased by `by`.
    pub fn shifted(&self, by: u32) -> Self {
        Self { runs: self.runs.iter().map(|&(first, count)| (first + by, count)).collect() }
    }

    /// Adds a run that is disjoint from the set.
    fn add(&mut self, (first, count): (u32, u32)) {
        let at = self.runs.partition_point(|&(other, _)| other < first);
        self.runs.insert(at, (first, count));
        // It may touch the next run, and the previous run may touch it.
        for left in [at, at.wrapping_sub(1)] {
            if let (Some(&(a, length)), Some(&(b, more))) =
                (self.runs.get(left), self.runs.get(left.wrapping_add(1)))
                && a + length == b
            {
                self.runs[left] = (a, length + more);
                self.runs.remove(left + 1);
            }
        }
    }

    /// Removes `wanted` numbers: from one run if a run is long enough, else the smallest numbers.
    /// `None` if the set has too few.
    fn take(&mut self, wanted: u32) -> Option<Self> {
        if let Some(at) = self.runs.iter().position(|&(_, count)| count >= wanted) {
            let (first, count) = self.runs[at];
            if count == wanted {
                self.runs.remove(at);
            } else {
                self.runs[at] = (first + wanted, count - wanted);
            }
            return Some(Self { runs: vec![(first, wanted)] });
        }
        if self.count() < wanted {
            return None;
        }
        let (mut taken, mut left) = (Self::default(), wanted);
        while left > 0 {
            let (first, count) = self.runs[0];
            let some = count.min(left);
            taken.runs.push((first, some));
            left -= some;
            if some == count {
                self.runs.remove(0);
            } else {
                self.runs[0] = (first + some, count - some);
            }
        }
        Some(taken)
    }
}

impl fmt::Display for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, &(first, count)) in self.runs.iter().enumerate() {
            let space = if at > 0 { " " } else { "" };
            match count {
                1 => write!(f, "{space}{first}")?,
                _ => write!(f, "{space}{first}-{}", first + count - 1)?,
            }
        }
        Ok(())
    }
}

/// The maximum number of processors that spans use at one moment.
pub fn most(spans: &[Span]) -> u64 {
    let mut changes: Vec<(u64, bool, u32)> = Vec::with_capacity(2 * spans.len());
    for span in spans.iter().filter(|span| span.start < span.end) {
        changes.push((span.start, true, span.processors));
        changes.push((span.end, false, span.processors));
    }
    // At one moment, ends come before starts.
    changes.sort_unstable();
    let (mut now, mut most) = (0u64, 0);
    for (_, begins, processors) in changes {
        let processors = u64::from(processors);
        now = if begins { now + processors } else { now - processors };
        most = most.max(now);
    }
    most
}

/// Assigns numbers below `limit` to each span, so that no two spans share one at the same time.
/// `None` if the spans need more at some moment.
pub fn number(spans: &[Span], limit: u32) -> Option<Vec<Numbers>> {
    let mut order: Vec<usize> = (0..spans.len()).collect();
    order.sort_by_key(|&at| (spans[at].start, spans[at].end, at));
    let mut numbers = vec![Numbers::default(); spans.len()];
    let mut free = Numbers::first(limit);
    let mut ends = std::collections::BTreeSet::new();
    for at in order {
        let Span { processors, start, end } = spans[at];
        while let Some(&(over, ended)) = ends.first()
            && over <= start
        {
            ends.pop_first();
            let runs: &Numbers = &numbers[ended];
            for run in runs.runs.clone() {
                free.add(run);
            }
        }
        if processors == 0 {
            continue;
        }
        if start >= end {
            numbers[at] = Numbers::first(limit).take(processors)?;
            continue;
        }
        numbers[at] = free.take(processors)?;
        ends.insert((end, at));
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(runs: &[(u32, u32)]) -> Numbers {
        let mut numbers = Numbers::default();
        runs.iter().for_each(|&run| numbers.add(run));
        numbers
    }

    #[test]
    fn numbers_are_runs_and_are_written_as_the_field_does() {
        let some = numbers(&[(5, 1), (0, 2), (2, 2), (6, 2)]);
        assert_eq!(some.runs(), [(0, 4), (5, 3)]);
        assert_eq!((some.to_string(), some.count(), some.end()), ("0-3 5-7".into(), 7, 8));
        assert_eq!(numbers(&[(9, 1), (3, 1)]).to_string(), "3 9");
        assert_eq!(Numbers::default().to_string(), "");
        let names = numbers(&[(10, 2), (20, 3)]);
        assert_eq!(numbers(&[(1, 3)]).through(&names).to_string(), "11 20-21");
        assert_eq!(Numbers::first(9).through(&names), names);
        assert_eq!(names.shifted(1).with(&numbers(&[(0, 11)])).to_string(), "0-12 21-23");
    }

    #[test]
    fn spans_beyond_the_limit_are_not_numbered() {
        let span = |processors, start, end| Span { processors, start, end };
        let spans = [span(2, 0, 10), span(2, 5, 8), span(3, 10, 11)];
        assert_eq!((most(&spans), number(&spans, 3)), (4, None));
        let all = number(&spans, 4).unwrap();
        assert_eq!([all[0].to_string(), all[1].to_string()], ["0-1", "2-3"]);
        assert_eq!(all[2].to_string(), "0-2");
    }

    /// For random spans that fit: no two share a number at one time, and each has as many as it
    /// needs.
    #[test]
    fn all_spans_that_fit_are_numbered_without_sharing() {
        let mut random = springtide_runtime::random::SplitMix(3);
        for round in 0..200u64 {
            let count = 1 + random.below(60);
            let spans: Vec<Span> = (0..count)
                .map(|_| {
                    let start = random.below(50) as u64;
                    let end = start + random.below(20) as u64;
                    Span { processors: 1 + random.below(9) as u32, start, end }
                })
                .collect();
            let limit = most(&spans).max(9) as u32;
            let all = number(&spans, limit).unwrap_or_else(|| panic!("round {round}"));
            for (a, has) in all.iter().enumerate() {
                assert_eq!(has.count(), spans[a].processors);
                assert!(has.end() <= limit);
                for (b, other) in all.iter().enumerate().skip(a + 1) {
                    let meet = spans[a].start.max(spans[b].start) < spans[a].end.min(spans[b].end);
                    let shared = meet && has.iter().any(|one| other.iter().any(|two| one == two));
                    assert!(!shared, "round {round}: {:?} and {:?}", spans[a], spans[b]);
                }
            }
        }
    }
}
