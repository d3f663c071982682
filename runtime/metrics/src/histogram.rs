//! Latency histograms with common bounds, and their sparse deltas for messages.
//!
//! Common bounds make merging exact: the count of a bucket is a plain sum. Only the bucket of a
//! value is kept, so a histogram fed by deltas equals its source.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram as Hdr;
use serde::{Deserialize, Serialize};

/// The largest distinguished latency in microseconds: one hour. Longer ones are recorded as this
/// and counted as saturated.
pub const HIGHEST_US: u64 = 3_600_000_000;

/// Two significant decimal digits: a bucket is at most 1 % wide.
const DIGITS: u8 = 2;

/// Two digits need 200 distinct values per power of two, so 2^8; the lower half repeats the
/// previous power.
const SUB_BUCKET_BITS: u32 = 8;
const HALF: u64 = 1 << (SUB_BUCKET_BITS - 1);

/// The number of buckets. Bucket indices in a [`SparseDelta`] are below it.
pub const BUCKETS: u16 = bucket_of(HIGHEST_US) + 1;

/// The bucket of a value up to [`HIGHEST_US`]. Values below 256 have a bucket each; above that each
/// power of two has 128. Source: G. Tene's HdrHistogram. A test asserts that it equals the crate's
/// layout.
const fn bucket_of(us: u64) -> u16 {
    let bits = u64::BITS - us.leading_zeros();
    let shift = bits.saturating_sub(SUB_BUCKET_BITS);
    (shift as u64 * HALF + (us >> shift)) as u16
}

/// The smallest value of a bucket, in microseconds.
const fn lowest_of(bucket: u16) -> u64 {
    let bucket = bucket as u64;
    let shift = (bucket / HALF).saturating_sub(1);
    (bucket - shift * HALF) << shift
}

/// A histogram of latencies from 1 us to 1 h at two significant digits.
///
/// An empty one takes no heap. Others take up to 13 KiB of counters, which grow with the values,
/// and 8 bytes for each bucket of the last delta.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    /// Created by the first record.
    total: Option<Box<Hdr<u32>>>,
    saturated: u64,
    /// All counts taken as deltas.
    taken: SparseDelta,
}

/// The counts recorded since the last delta: (bucket, count) pairs in ascending order of buckets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SparseDelta {
    /// Bucket indices and the number of values in each.
    pub counts: Vec<(u16, u32)>,
    /// The number of values above the highest bound, or in a full bucket.
    pub saturated: u64,
}

/// A summary of a histogram for people and logs. Summaries do not add up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LatencySummary {
    /// The number of values.
    pub count: u64,
    /// The median in microseconds.
    pub p50_us: u64,
    /// The 90th percentile in microseconds.
    pub p90_us: u64,
    /// The 99th percentile in microseconds.
    pub p99_us: u64,
    /// The upper end of the highest used bucket, in microseconds.
    pub max_us: u64,
}

/// The reason for which a delta or a histogram was not merged. Nothing of it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeltaError {
    /// A bucket index is out of range: the sender uses other bounds.
    #[error(
        "histogram delta names bucket {bucket}, but there are {BUCKETS}: the sender uses other \
         bounds"
    )]
    Bucket {
        /// The index of the bucket.
        bucket: u16,
    },
    /// Buckets do not ascend.
    #[error("histogram delta is not in order: bucket {bucket} follows bucket {after}")]
    Order {
        /// The index of the bucket.
        bucket: u16,
        /// The index of its predecessor.
        after: u16,
    },
    /// A pair has a count of zero.
    #[error("histogram delta counts nothing in bucket {bucket}")]
    Zero {
        /// The index of the bucket.
        bucket: u16,
    },
    /// A counter would overflow.
    #[error("histogram delta would take bucket {bucket} over 2^32-1 counts")]
    Overflow {
        /// The index of the bucket.
        bucket: u16,
    },
    /// The count of saturated values would overflow.
    #[error("histogram delta would take the count of saturated values over 2^64-1")]
    SaturatedOverflow,
}

impl Histogram {
    /// An empty histogram, which takes no heap.
    pub fn new() -> Self {
        Self::default()
    }

    /// Records one latency, rounded down to microseconds. Over [`HIGHEST_US`] it is recorded as
    /// that and counted as saturated.
    pub fn record(&mut self, latency: Duration) {
        let us = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        if us > HIGHEST_US {
            self.saturate(1);
        }
        let us = us.min(HIGHEST_US);
        // While the total is below the limit of a bucket, no bucket is full.
        if self.count() < u64::from(u32::MAX) || self.room(bucket_of(us)) > 0 {
            self.add(us, 1);
        } else {
            self.saturate(1);
        }
    }

    /// The number of recorded values.
    pub fn count(&self) -> u64 {
        self.total.as_ref().map_or(0, |hdr| hdr.len())
    }

    /// Whether no values were recorded.
    pub fn is_empty(&self) -> bool {
        self.count() == 0
    }

    /// The number of values above the highest bound, or in a full bucket.
    pub fn saturated(&self) -> u64 {
        self.saturated
    }

    /// The upper end of the bucket that holds the quantile (0 to 1), in microseconds.
    ///
    /// It is at most 1 % above the exact value. None if no values were recorded.
    pub fn quantile_us(&self, quantile: f64) -> Option<u64> {
        let hdr = self.total.as_ref().filter(|hdr| !hdr.is_empty())?;
        Some(hdr.highest_equivalent(hdr.value_at_quantile(quantile)).min(HIGHEST_US))
    }

    /// The median in microseconds.
    pub fn p50_us(&self) -> Option<u64> {
        self.quantile_us(0.5)
    }

    /// The 90th percentile in microseconds.
    pub fn p90_us(&self) -> Option<u64> {
        self.quantile_us(0.9)
    }

    /// The 99th percentile in microseconds.
    pub fn p99_us(&self) -> Option<u64> {
        self.quantile_us(0.99)
    }

    /// The 99.9th percentile in microseconds.
    pub fn p999_us(&self) -> Option<u64> {
        self.quantile_us(0.999)
    }

    /// The upper end of the highest used bucket, in microseconds.
    pub fn max_us(&self) -> Option<u64> {
        self.quantile_us(1.0)
    }

    /// The mean of the buckets' midpoints, in microseconds.
    pub fn mean_us(&self) -> Option<f64> {
        self.total.as_ref().filter(|hdr| !hdr.is_empty()).map(|hdr| hdr.mean())
    }

    /// The summary of the histogram; none if it is empty.
    pub fn summary(&self) -> Option<LatencySummary> {
        Some(LatencySummary {
            count: self.count(),
            p50_us: self.p50_us()?,
            p90_us: self.p90_us()?,
            p99_us: self.p99_us()?,
            max_us: self.max_us()?,
        })
    }

    /// Adds all counts of `other`. They become part of this histogram's next delta.
    ///
    /// # Errors
    /// [`DeltaError::Overflow`], with nothing merged.
    pub fn merge(&mut self, other: &Histogram) -> Result<(), DeltaError> {
        self.apply_delta(&other.to_delta())
    }

    /// The whole histogram as a delta, for a receiver that has no part of it.
    pub fn to_delta(&self) -> SparseDelta {
        let counts = self.total.iter().flat_map(|hdr| hdr.iter_recorded());
        let counts =
            counts.map(|step| (bucket_of(step.value_iterated_to()), step.count_at_value()));
        SparseDelta { counts: counts.collect(), saturated: self.saturated }
    }

    /// Takes the counts recorded since the last call.
    pub fn take_delta(&mut self) -> SparseDelta {
        let now = self.to_delta();
        let mut taken = self.taken.counts.iter().copied().peekable();
        let fresh = now.counts.iter().filter_map(|&(bucket, count)| {
            // Counts only grow, so each bucket taken earlier is still in use.
            let before = taken.next_if(|&(at, _)| at == bucket).map_or(0, |(_, count)| count);
            (count > before).then(|| (bucket, count - before))
        });
        let saturated = now.saturated - self.taken.saturated;
        let fresh = SparseDelta { counts: fresh.collect(), saturated };
        self.taken = now;
        fresh
    }

    /// Adds a delta of another histogram. It becomes part of this histogram's next delta, so a
    /// cluster can forward the deltas of its nodes.
    ///
    /// # Errors
    /// The delta is malformed, or would overflow a counter. Nothing of it is added.
    pub fn apply_delta(&mut self, delta: &SparseDelta) -> Result<(), DeltaError> {
        delta.check()?;
        for &(bucket, count) in &delta.counts {
            if self.room(bucket) < count {
                return Err(DeltaError::Overflow { bucket });
            }
        }
        if self.saturated.checked_add(delta.saturated).is_none() {
            return Err(DeltaError::SaturatedOverflow);
        }
        for &(bucket, count) in &delta.counts {
            self.add(lowest_of(bucket), count);
        }
        self.saturate(delta.saturated);
        Ok(())
    }

    /// The free counts of a bucket's counter.
    fn room(&self, bucket: u16) -> u32 {
        u32::MAX - self.total.as_ref().map_or(0, |hdr| hdr.count_at(lowest_of(bucket)))
    }

    fn add(&mut self, us: u64, count: u32) {
        let hdr = self.total.get_or_insert_with(|| {
            // Small at first, for most latencies are far below the highest bound; the crate grows
            // it.
            let mut hdr = Hdr::new_with_bounds(1, 2, DIGITS).expect("1..2 at 2 digits is valid");
            hdr.auto(true);
            Box::new(hdr)
        });
        hdr.record_n(us, count).expect("a resizing histogram takes any value");
    }

    fn saturate(&mut self, count: u64) {
        self.saturated = self.saturated.saturating_add(count);
    }
}

/// Equal if the same values were recorded. Deltas taken do not matter.
impl PartialEq for Histogram {
    fn eq(&self, other: &Self) -> bool {
        self.to_delta() == other.to_delta()
    }
}

impl SparseDelta {
    /// Whether it has no counts.
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty() && self.saturated == 0
    }

    /// The number of values in the delta.
    pub fn count(&self) -> u64 {
        self.counts.iter().map(|&(_, count)| u64::from(count)).sum()
    }

    /// Checks that buckets are in range and ascending, and that counts are positive.
    ///
    /// # Errors
    /// The first error found.
    pub fn check(&self) -> Result<(), DeltaError> {
        let mut before = None;
        for &(bucket, count) in &self.counts {
            if bucket >= BUCKETS {
                return Err(DeltaError::Bucket { bucket });
            }
            if let Some(after) = before.filter(|&after| after >= bucket) {
                return Err(DeltaError::Order { bucket, after });
            }
            if count == 0 {
                return Err(DeltaError::Zero { bucket });
            }
            before = Some(bucket);
        }
        Ok(())
    }

    /// Adds another delta to this one.
    ///
    /// # Errors
    /// As for [`Histogram::apply_delta`]; nothing of it is added.
    pub fn merge(&mut self, other: &SparseDelta) -> Result<(), DeltaError> {
        other.check()?;
        let mut sum: BTreeMap<u16, u32> = self.counts.iter().copied().collect();
        for &(bucket, count) in &other.counts {
            let slot = sum.entry(bucket).or_insert(0);
            *slot = slot.checked_add(count).ok_or(DeltaError::Overflow { bucket })?;
        }
        let saturated = self.saturated.checked_add(other.saturated);
        self.saturated = saturated.ok_or(DeltaError::SaturatedOverflow)?;
        self.counts = sum.into_iter().collect();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    fn of(values: &[u64]) -> Histogram {
        let mut histogram = Histogram::new();
        values.iter().for_each(|&value| histogram.record(us(value)));
        histogram
    }

    /// Latencies of all magnitudes, some above the bound.
    fn latency() -> impl Strategy<Value = u64> {
        (0u32..34, any::<u64>()).prop_map(|(bits, noise)| noise & ((1 << bits) - 1))
    }

    fn latencies() -> impl Strategy<Value = Vec<u64>> {
        prop::collection::vec(latency(), 0..80)
    }

    fn any_delta() -> impl Strategy<Value = SparseDelta> {
        (prop::collection::vec((any::<u16>(), any::<u32>()), 0..6), any::<u64>())
            .prop_map(|(counts, saturated)| SparseDelta { counts, saturated })
    }

    #[test]
    fn buckets_are_those_of_the_crate() {
        let hdr = Hdr::<u32>::new_with_bounds(1, HIGHEST_US, DIGITS).unwrap();
        for bucket in 0..BUCKETS {
            let lowest = lowest_of(bucket);
            assert_eq!(bucket_of(lowest), bucket);
            assert_eq!(hdr.lowest_equivalent(lowest), lowest, "bucket {bucket}");
            let highest = hdr.highest_equivalent(lowest);
            assert_eq!(bucket_of(highest), bucket);
            assert_eq!(lowest_of(bucket + 1), highest + 1);
        }
    }

    #[test]
    fn a_full_histogram_stays_small() {
        let mut histogram = Histogram::new();
        histogram.record(us(HIGHEST_US));
        let hdr = histogram.total.unwrap();
        assert!(hdr.distinct_values() * size_of::<u32>() <= 20 << 10, "{}", hdr.distinct_values());
    }

    #[test]
    fn what_is_too_long_is_counted_and_kept_at_the_bound() {
        let mut histogram = of(&[HIGHEST_US]);
        assert_eq!(histogram.saturated(), 0);
        histogram.record(Duration::MAX);
        assert_eq!((histogram.count(), histogram.saturated()), (2, 1));
        assert_eq!(histogram.max_us(), Some(HIGHEST_US));
    }

    #[test]
    fn malformed_deltas_are_refused_whole() {
        let cases = [
            (vec![(3, 1), (BUCKETS, 1)], DeltaError::Bucket { bucket: BUCKETS }),
            (vec![(7, 1), (7, 1)], DeltaError::Order { bucket: 7, after: 7 }),
            (vec![(7, 1), (2, 1)], DeltaError::Order { bucket: 2, after: 7 }),
            (vec![(7, 0)], DeltaError::Zero { bucket: 7 }),
            (vec![(5, 1), (9, u32::MAX)], DeltaError::Overflow { bucket: 9 }),
        ];
        for (counts, expected) in cases {
            let mut histogram = of(&[5, 9]);
            let delta = SparseDelta { counts, saturated: 1 };
            assert_eq!(histogram.apply_delta(&delta), Err(expected));
            assert_eq!(histogram, of(&[5, 9]));
            let mut sum = of(&[5, 9]).take_delta();
            assert_eq!(sum.merge(&delta), Err(expected));
            assert_eq!(sum, of(&[5, 9]).take_delta());
        }
        let mut histogram = Histogram { saturated: u64::MAX, ..Histogram::new() };
        let delta = SparseDelta { counts: vec![], saturated: 1 };
        assert_eq!(histogram.apply_delta(&delta), Err(DeltaError::SaturatedOverflow));
    }

    #[test]
    fn a_full_bucket_saturates_without_a_panic() {
        let mut histogram = Histogram::new();
        histogram.apply_delta(&SparseDelta { counts: vec![(5, u32::MAX)], saturated: 0 }).unwrap();
        histogram.record(us(5));
        assert_eq!((histogram.count(), histogram.saturated()), (u64::from(u32::MAX), 1));
    }

    proptest! {
        #[test]
        fn deltas_in_any_order_equal_the_merged_histograms(
            nodes in prop::collection::vec(prop::collection::vec(latencies(), 1..4), 1..4),
            order in any::<prop::sample::Index>(),
        ) {
            let mut deltas = Vec::new();
            let mut merged = Histogram::new();
            for periods in &nodes {
                let mut histogram = Histogram::new();
                for values in periods {
                    values.iter().for_each(|&value| histogram.record(us(value)));
                    deltas.push(histogram.take_delta());
                }
                prop_assert!(histogram.take_delta().is_empty());
                merged.merge(&histogram).unwrap();
            }
            let at = order.index(deltas.len());
            deltas.rotate_left(at);
            deltas.reverse();
            let (mut applied, mut sum) = (Histogram::new(), SparseDelta::default());
            for delta in &deltas {
                applied.apply_delta(delta).unwrap();
                sum.merge(delta).unwrap();
            }
            prop_assert_eq!(&applied, &merged);
            prop_assert_eq!(&sum, &merged.to_delta());
            prop_assert_eq!(applied.take_delta(), merged.take_delta());
            let all: Vec<u64> = nodes.concat().concat();
            prop_assert_eq!(merged, of(&all));
        }

        #[test]
        fn quantiles_are_within_one_percent_above_the_exact_ones(
            mut values in prop::collection::vec(0..HIGHEST_US, 1..200), quantile in 0.0f64..1.0,
        ) {
            let histogram = of(&values);
            values.sort_unstable();
            let rank = ((quantile * values.len() as f64).ceil() as usize).max(1);
            let (exact, got) = (values[rank - 1], histogram.quantile_us(quantile).unwrap());
            prop_assert!(got >= exact && got as f64 <= exact as f64 * 1.01, "{got} for {exact}");
        }

        #[test]
        fn no_delta_panics(deltas in prop::collection::vec(any_delta(), 0..5)) {
            let (mut histogram, mut sum) = (Histogram::new(), SparseDelta::default());
            for delta in &deltas {
                let before = histogram.clone();
                if histogram.apply_delta(delta).is_err() {
                    prop_assert_eq!(&histogram, &before);
                }
                let _ = sum.merge(delta);
            }
            histogram.record(us(1));
            let _ = (histogram.mean_us(), histogram.max_us());
        }

        #[test]
        fn deltas_survive_the_wire_in_both_encodings(values in latencies()) {
            let delta = of(&values).take_delta();
            let named = rmp_serde::to_vec_named(&delta).unwrap();
            prop_assert_eq!(&rmp_serde::from_slice::<SparseDelta>(&named).unwrap(), &delta);
            let compact = rmp_serde::to_vec(&delta).unwrap();
            prop_assert_eq!(&rmp_serde::from_slice::<SparseDelta>(&compact).unwrap(), &delta);
        }
    }
}
