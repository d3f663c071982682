//! Exact sums of numbers in double precision: the bits do not depend on the order or grouping of
//! the additions.
//!
//! Nothing is rounded before a sum is read: it is a whole number in digits of 32 bits, of which
//! only the non-zero ones are stored. Source: R. M. Neal, *Fast exact summation using small and
//! large superaccumulators*, 2015. This module is pure.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The number of bits of a digit.
const DIGIT: u32 = 32;
/// The lowest digit's unit is two to the power of minus this, the smallest positive number.
const LEAST: i32 = 1074;
/// The maximum number of digits.
const PLACES: usize = 66;

/// An exact sum.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ExactSum {
    /// Digits by place, from the lowest; some may be negative, and some larger than a digit.
    digits: BTreeMap<u8, i64>,
    /// The sum of infinities and NaNs.
    rest: f64,
}

impl ExactSum {
    /// Adds another sum.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.add_digits(other.digits.iter().map(|(place, digit)| (*place, *digit)));
        self.rest += other.rest;
    }

    fn add_digits(&mut self, digits: impl Iterator<Item = (u8, i64)>) {
        for (place, digit) in digits {
            let sum = self.digits.entry(place).or_default();
            *sum = sum.wrapping_add(digit);
        }
    }

    /// The same sum in the shortest form: normal digits without zeros, and a negative one at the
    /// top of a negative sum.
    pub(crate) fn carried(&self) -> Self {
        let mut digits = BTreeMap::new();
        let mut carry = 0i64;
        let end = self.digits.keys().next_back().map_or(0, |last| last.saturating_add(1));
        for place in 0..=end {
            let digit = self.digits.get(&place).copied().unwrap_or_default().wrapping_add(carry);
            carry = if place < end { digit >> DIGIT } else { 0 };
            let digit = if place < end { digit & i64::from(u32::MAX) } else { digit };
            if digit != 0 {
                digits.insert(place, digit);
            }
        }
        Self { digits, rest: self.rest }
    }

    /// The nearest number in double precision.
    pub(crate) fn value(&self) -> f64 {
        let mut sum = self.carried();
        let is_negative = sum.digits.values().next_back().is_some_and(|top| *top < 0);
        if is_negative {
            sum.digits.values_mut().for_each(|digit| *digit = digit.wrapping_neg());
            sum = sum.carried();
        }
        let Some((&top, _)) = sum.digits.last_key_value() else { return self.rest };
        // Four digits have at least 97 bits; of the lower ones it matters only whether one is not
        // zero.
        let low = top.saturating_sub(3);
        let whole = (low..=top).rev().fold(0u128, |whole, place| {
            whole << DIGIT | sum.digits.get(&place).map_or(0, |digit| *digit as u128)
        });
        let below = sum.digits.range(..low).next().is_some();
        let value = (whole | u128::from(below)) as f64;
        // In two steps, each by a power of two that can be represented.
        let exponent = i32::from(low) * DIGIT as i32 - LEAST;
        let value = value * 2f64.powi(exponent / 2) * 2f64.powi(exponent - exponent / 2);
        self.rest + if is_negative { -value } else { value }
    }
}

/// Adds up to 2^30 numbers.
impl Extend<f64> for ExactSum {
    fn extend<I: IntoIterator<Item = f64>>(&mut self, values: I) {
        let mut digits = [0i64; PLACES];
        for value in values {
            if !value.is_finite() {
                self.rest += value;
                continue;
            }
            let bits = value.to_bits();
            let exponent = (bits >> 52 & 0x7ff) as u32;
            let fraction = bits & ((1 << 52) - 1);
            // Subnormal numbers have the smallest exponent, and no implicit leading bit.
            let (whole, shift) = match exponent {
                0 => (fraction, 0),
                _ => (fraction | 1 << 52, exponent - 1),
            };
            let whole = u128::from(whole) << (shift % DIGIT);
            let sign = if value < 0.0 { -1 } else { 1 };
            // The shift is less than a digit, so at most three digits change.
            let place = (shift / DIGIT) as usize;
            for (i, sum) in digits[place..place + 3].iter_mut().enumerate() {
                *sum += sign * i64::from((whole >> (DIGIT * i as u32)) as u32);
            }
        }
        self.add_digits((0..).zip(digits).filter(|(_, digit)| *digit != 0));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sum(values: &[f64]) -> ExactSum {
        let mut sum = ExactSum::default();
        sum.extend(values.iter().copied());
        sum
    }

    #[test]
    fn large_terms_cancel_and_small_ones_stay() {
        for (values, due) in [
            (&[][..], 0.0),
            (&[1e300, 1.0, -1e300], 1.0),
            (&[1e16, 1.0, 1.0], 1e16 + 2.0),
            (&[-1e16, -1.0, -1.0], -1e16 - 2.0),
            (&[5e-324, 5e-324], 1e-323),
            (&[-5e-324], -5e-324),
            (&[1.0, 1e-40, -1e-40], 1.0),
            // Half way, and slightly more.
            (&[1.0, f64::EPSILON / 2.0], 1.0),
            (&[1.0, f64::EPSILON / 2.0, 1e-300], 1.0 + f64::EPSILON),
            (&[f64::MAX, f64::MAX, -f64::MAX], f64::MAX),
            (&[f64::INFINITY, 1.0], f64::INFINITY),
        ] {
            let got = sum(values).value();
            assert_eq!(got.to_bits(), due.to_bits(), "{values:?}: {got:e}");
        }
        assert!(sum(&[f64::INFINITY, f64::NEG_INFINITY]).value().is_nan());
    }

    proptest! {
        /// The bits depend on neither the order nor the grouping; they are those of whole numbers,
        /// where these can represent the sum.
        #[test]
        fn sums_depend_on_neither_order_nor_grouping(
            (values, shuffled) in prop::collection::vec((-1i64 << 52..1 << 52, -60..60i32), 0..40)
                .prop_flat_map(|all| (Just(all.clone()), Just(all).prop_shuffle())),
            cut in any::<prop::sample::Index>(),
        ) {
            let number = |&(whole, exponent): &(i64, i32)| whole as f64 * 2f64.powi(exponent);
            let (some, others) = shuffled.split_at(cut.index(shuffled.len() + 1));
            let all: Vec<f64> = values.iter().map(number).collect();
            let mut parts = sum(&some.iter().map(number).collect::<Vec<_>>()).carried();
            parts.merge(&sum(&others.iter().map(number).collect::<Vec<_>>()).carried());
            let due = sum(&all);
            prop_assert_eq!(parts.value().to_bits(), due.value().to_bits());
            prop_assert!(due.carried().digits.values().all(|digit| *digit >> DIGIT <= 0));
            // The sum is less than 2^113 in units of 2^-60, and never rounded twice.
            let small: Vec<_> = values.iter().filter(|(_, exponent)| *exponent < 0).collect();
            let shifted =
                |(whole, exponent): &&(i64, i32)| i128::from(*whole) << (*exponent + 60);
            let whole: i128 = small.iter().map(shifted).sum();
            let got = sum(&small.iter().map(|some| number(some)).collect::<Vec<_>>()).value();
            prop_assert_eq!(got, whole as f64 * 2f64.powi(-60));
        }
    }
}
