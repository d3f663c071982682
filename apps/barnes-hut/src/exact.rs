//! Sums of numbers in double precision that have the same bits in whatever order, and in whatever parts, they are added up.
//!
//! Nothing is rounded before a sum is read: it is kept as a whole number in digits of 32 bits, of which only those are there that
//! have been touched. Source: R. M. Neal, *Fast exact summation using small and large superaccumulators*, 2015. Pure.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Bits of a digit.
const DIGIT: u32 = 32;
/// The value of the lowest digit's one is two to the power of minus this: the least number there is.
const LEAST: i32 = 1074;
/// Digits that a number can have.
const PLACES: usize = 66;

/// A sum.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Exact {
    /// By place, from the lowest; some may be negative, and some more than a digit has room for.
    digits: BTreeMap<u8, i64>,
    /// Of what is infinite or no number.
    rest: f64,
}

impl Exact {
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

    /// The same sum in digits that are digits, less those that are zero, but for one at the top that says whether it is below zero: as short as can be.
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

    /// The number nearest to it.
    pub(crate) fn value(&self) -> f64 {
        let mut sum = self.carried();
        let is_negative = sum.digits.values().next_back().is_some_and(|top| *top < 0);
        if is_negative {
            sum.digits.values_mut().for_each(|digit| *digit = digit.wrapping_neg());
            sum = sum.carried();
        }
        let Some((&top, _)) = sum.digits.last_key_value() else { return self.rest };
        // Four digits have 97 bits at least; of what is below it matters only whether it is there.
        let low = top.saturating_sub(3);
        let whole = (low..=top).rev().fold(0u128, |whole, place| {
            whole << DIGIT | sum.digits.get(&place).map_or(0, |digit| *digit as u128)
        });
        let below = sum.digits.range(..low).next().is_some();
        let value = (whole | u128::from(below)) as f64;
        // In two steps, each a power of two that there is.
        let exponent = i32::from(low) * DIGIT as i32 - LEAST;
        let value = value * 2f64.powi(exponent / 2) * 2f64.powi(exponent - exponent / 2);
        self.rest + if is_negative { -value } else { value }
    }
}

/// Adds numbers; up to 2^30 of them.
impl Extend<f64> for Exact {
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
            // What is subnormal has the least exponent, and no leading one.
            let (whole, shift) = match exponent {
                0 => (fraction, 0),
                _ => (fraction | 1 << 52, exponent - 1),
            };
            let whole = u128::from(whole) << (shift % DIGIT);
            let sign = if value < 0.0 { -1 } else { 1 };
            // A bit shift of less than a digit: no more than three of them.
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

    fn sum(values: &[f64]) -> Exact {
        let mut sum = Exact::default();
        sum.extend(values.iter().copied());
        sum
    }

    #[test]
    fn what_cancels_is_gone_and_what_is_small_stays() {
        for (values, due) in [
            (&[][..], 0.0),
            (&[1e300, 1.0, -1e300], 1.0),
            (&[1e16, 1.0, 1.0], 1e16 + 2.0),
            (&[-1e16, -1.0, -1.0], -1e16 - 2.0),
            (&[5e-324, 5e-324], 1e-323),
            (&[-5e-324], -5e-324),
            (&[1.0, 1e-40, -1e-40], 1.0),
            // Half way, and a bit beyond.
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
        /// The bits do not depend on the order, nor on who adds up what; they are those of whole numbers where these can be told.
        #[test]
        fn sums_do_not_depend_on_who_adds_up_what(
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
            // Less than 2^113 in units of 2^-60, and never rounded twice.
            let small: Vec<_> = values.iter().filter(|(_, exponent)| *exponent < 0).collect();
            let whole: i128 = small.iter().map(|(whole, exponent)| i128::from(*whole) << (exponent + 60)).sum();
            let got = sum(&small.iter().map(|some| number(some)).collect::<Vec<_>>()).value();
            prop_assert_eq!(got, whole as f64 * 2f64.powi(-60));
        }
    }
}
