//! Exact numbers: sums that are independent of the order of terms, and floats that a log restores
//! bit by bit.

use serde::{Deserialize, Serialize};

/// Serde for an `f64` that a log must restore exactly. JSON lacks NaN and infinities: there they
/// are strings.
pub mod float {
    use serde::de::{self, Deserializer, Visitor};
    use serde::ser::Serializer;

    /// Writes a number, or a string for NaN and infinities.
    pub fn serialize<S: Serializer>(value: &f64, to: S) -> Result<S::Ok, S::Error> {
        if value.is_finite() || !to.is_human_readable() {
            return to.serialize_f64(*value);
        }
        to.serialize_str(match () {
            _ if value.is_nan() => "NaN",
            _ if *value > 0.0 => "inf",
            _ => "-inf",
        })
    }

    /// Reads a number, or a string for NaN and infinities.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
        struct NumberVisitor;
        impl Visitor<'_> for NumberVisitor {
            type Value = f64;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a number, \"NaN\", \"inf\" or \"-inf\"")
            }
            fn visit_f64<E: de::Error>(self, value: f64) -> Result<f64, E> {
                Ok(value)
            }
            fn visit_i64<E: de::Error>(self, value: i64) -> Result<f64, E> {
                Ok(value as f64)
            }
            fn visit_u64<E: de::Error>(self, value: u64) -> Result<f64, E> {
                Ok(value as f64)
            }
            fn visit_str<E: de::Error>(self, value: &str) -> Result<f64, E> {
                match value {
                    "NaN" => Ok(f64::NAN),
                    "inf" => Ok(f64::INFINITY),
                    "-inf" => Ok(f64::NEG_INFINITY),
                    other => Err(E::custom(format!("`{other}` is no number"))),
                }
            }
        }
        from.deserialize_any(NumberVisitor)
    }
}

/// A number that is written and read by [`float`], for use inside of other types.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Float(#[serde(with = "float")] pub f64);

/// Serde like [`float`], for an optional number.
pub mod maybe_float {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::Float;

    /// Writes a number, a string for NaN and infinities, or nothing.
    pub fn serialize<S: Serializer>(value: &Option<f64>, to: S) -> Result<S::Ok, S::Error> {
        value.map(Float).serialize(to)
    }

    /// Reads a number, a string for NaN and infinities, or nothing.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
        Ok(Option::<Float>::deserialize(from)?.map(|number| number.0))
    }
}

/// An exact sum of floats, rounded only when it is read.
///
/// It is the same for any order and grouping of its terms. So a sum over clusters' sums *is* the
/// sum over all workers (spec B6, "hierarchy that stays exact").
///
/// Stored as floats that do not overlap (Shewchuk, *Adaptive precision floating-point arithmetic*,
/// 1997): one to three for terms of similar size, at most 39. NaN and infinite terms are ignored,
/// so that one of them cannot spoil the sum of a cluster. Callers should filter them first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ExactSum(Vec<f64>);

impl ExactSum {
    /// Above the number of parts of any valid sum.
    const PARTS_MAX: usize = 64;

    /// Adds a term. NaN and infinities are ignored.
    pub fn add(&mut self, term: f64) {
        if !term.is_finite() {
            return;
        }
        let mut carry = term;
        let mut kept = 0;
        for i in 0..self.0.len() {
            let mut part = self.0[i];
            if carry.abs() < part.abs() {
                std::mem::swap(&mut carry, &mut part);
            }
            let high = carry + part;
            let low = part - (high - carry);
            if low != 0.0 {
                self.0[kept] = low;
                kept += 1;
            }
            carry = high;
        }
        self.0.truncate(kept);
        if carry != 0.0 {
            self.0.push(carry);
        }
    }

    /// Adds a term this many times, exactly.
    pub fn add_times(&mut self, term: f64, times: u32) {
        let factor = f64::from(times);
        let product = term * factor;
        self.add(product);
        // What the product lost to rounding; 0 for one time.
        self.add(term.mul_add(factor, -product));
    }

    /// The sum of all terms times a factor, rounded.
    pub fn scaled(&self, factor: f64) -> Self {
        let mut sum = Self::default();
        sum.add(self.value() * factor);
        sum
    }

    /// Adds all terms of another sum.
    pub fn merge(&mut self, other: &ExactSum) {
        other.0.iter().for_each(|&part| self.add(part));
    }

    /// The sum, rounded once to the nearest float.
    pub fn value(&self) -> f64 {
        let mut parts = self.0.iter().rev().copied();
        let Some(mut high) = parts.next() else { return 0.0 };
        let mut low = 0.0;
        for part in parts.by_ref() {
            let sum = high + part;
            low = part - (sum - high);
            high = sum;
            if low != 0.0 {
                break;
            }
        }
        // The lower parts decide ties.
        if let Some(next) = parts.next().filter(|next| low != 0.0 && (*next > 0.0) == (low > 0.0)) {
            debug_assert!(next != 0.0);
            let doubled = low * 2.0;
            let up = high + doubled;
            if up - high == doubled {
                return up;
            }
        }
        high
    }

    /// Whether a sum from the network is possible for finite terms.
    pub fn is_sound(&self) -> bool {
        self.0.len() <= Self::PARTS_MAX && self.0.iter().all(|part| part.is_finite())
    }
}

impl FromIterator<f64> for ExactSum {
    fn from_iter<I: IntoIterator<Item = f64>>(terms: I) -> Self {
        let mut sum = Self::default();
        terms.into_iter().for_each(|term| sum.add(term));
        sum
    }
}

/// Whether a value need not be sent, since the receiver assumes it.
pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Whether a number is positive and finite.
pub(super) fn is_rate(x: f64) -> bool {
    x > 0.0 && x.is_finite()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Holder {
        #[serde(with = "float")]
        sure: f64,
        #[serde(with = "maybe_float", default)]
        maybe: Option<f64>,
    }

    fn bits(holder: &Holder) -> (u64, Option<u64>) {
        (holder.sure.to_bits(), holder.maybe.map(f64::to_bits))
    }

    #[test]
    fn sums_that_lose_digits_elsewhere() {
        let sum: ExactSum = [1e16, 1.0, -1e16].into_iter().collect();
        assert_eq!(sum.value(), 1.0);
        let tenths: ExactSum = std::iter::repeat_n(0.1, 10).collect();
        assert_eq!(tenths.value(), 1.0);
        assert_eq!(ExactSum::default().value(), 0.0);
        let spoiled: ExactSum = [1.0, f64::NAN, f64::INFINITY, 2.0].into_iter().collect();
        assert_eq!(spoiled.value(), 3.0);
    }

    #[test]
    fn lower_parts_decide_ties() {
        // 1 + 2^-53 is a tie, rounded to even; any positive amount above it rounds up.
        let tie = 2f64.powi(-53);
        let sum: ExactSum = [1.0, tie].into_iter().collect();
        assert_eq!(sum.value(), 1.0);
        let sum: ExactSum = [1e-300, 1.0, tie].into_iter().collect();
        assert_eq!(sum.value(), 1.0 + f64::EPSILON);
        let sum: ExactSum = [-1e-300, 1.0, tie].into_iter().collect();
        assert_eq!(sum.value(), 1.0);
    }

    proptest! {
        #[test]
        fn order_and_grouping_do_not_matter(
            terms in prop::collection::vec((-1e9f64..1e9, -30i32..30), 0..40),
            split in 0usize..40,
        ) {
            let terms: Vec<f64> = terms.iter().map(|&(x, e)| x * 2f64.powi(e)).collect();
            let forward: ExactSum = terms.iter().copied().collect();
            let backward: ExactSum = terms.iter().rev().copied().collect();
            let (left, right) = terms.split_at(split.min(terms.len()));
            let mut grouped: ExactSum = right.iter().copied().collect();
            grouped.merge(&left.iter().copied().collect());
            prop_assert_eq!(forward.value().to_bits(), backward.value().to_bits());
            prop_assert_eq!(forward.value().to_bits(), grouped.value().to_bits());
            prop_assert!(forward.is_sound());
        }

        #[test]
        fn floats_round_trip_bit_for_bit(value in any::<f64>(), maybe in any::<Option<f64>>()) {
            let holder = Holder { sure: value, maybe };
            let text = serde_json::to_string(&holder).unwrap();
            let back: Holder = serde_json::from_str(&text).unwrap();
            if !value.is_nan() && !maybe.is_some_and(f64::is_nan) {
                prop_assert_eq!(bits(&back), bits(&holder));
            }
            let tree: Holder =
                serde_json::from_value(serde_json::to_value(&holder).unwrap()).unwrap();
            prop_assert_eq!(tree.sure.is_nan(), value.is_nan());
            let bytes = rmp_serde::to_vec_named(&holder).unwrap();
            prop_assert_eq!(bits(&rmp_serde::from_slice(&bytes).unwrap()), bits(&holder));
        }
    }
}
