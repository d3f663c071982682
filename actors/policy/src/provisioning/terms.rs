//! A site's terms: prices of its slots, and limits of reservations. Pure decisions of a provider.
//!
//! Source: the paper, section 2 (a multiplicative and an additive cost of each slot) and section 8.
//! There, discounts for early requests and providers' own policies are future work. This module
//! does not know the free processors.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Price, Time, seconds};

const DAY_S: f64 = 24.0 * 3600.0;

/// Terms of a site for its slots.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Terms {
    /// Whether the site offers slots at all.
    pub advertise: bool,
    /// Price of an immediate processor-second, in the user's unit.
    pub rate: f64,
    /// Price of each slot, if any of it is used.
    pub fixed: f64,
    /// Reduction of the rate for each day between now and the slot's start, as a fraction.
    pub discount_a_day: f64,
    /// Maximum reduction of the rate, as a fraction.
    pub discount_max: f64,
    /// Surcharge for each reserved processor-second without a job, as a fraction of the rate. It
    /// discourages excessive reservations.
    pub unused_surcharge: f64,
    /// Maximum time from now to the start of a granted slot.
    pub ahead_max: Option<Time>,
    /// Maximum fraction of the processors that may be reserved simultaneously.
    pub share_max: f64,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            advertise: true,
            rate: 1.0,
            fixed: 0.0,
            discount_a_day: 0.0,
            discount_max: 0.5,
            unused_surcharge: 0.0,
            ahead_max: None,
            share_max: 1.0,
        }
    }
}

/// Why a provider denies a reservation that it could grant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "because")]
pub enum Denial {
    /// The site offers no slots.
    NotAdvertised,
    /// It starts too late.
    TooFarAhead {
        /// Seconds from now to its start.
        ahead_s: f64,
        /// Maximum seconds from now.
        most_s: f64,
    },
    /// Too many processors would be reserved simultaneously.
    TooMuch {
        /// Processors reserved with it.
        reserved: u32,
        /// Maximum of reserved processors.
        most: u32,
    },
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAdvertised => f.write_str("the site offers no slots (slots.advertise)"),
            Self::TooFarAhead { ahead_s, most_s } => write!(
                f,
                "it starts in {ahead_s:.0} s, and the maximum is {most_s:.0} s ahead \
                 (slots.ahead_max)"
            ),
            Self::TooMuch { reserved, most } => write!(
                f,
                "{reserved} processors would be reserved at once, and the maximum is {most} \
                 (slots.share_max)"
            ),
        }
    }
}

impl Terms {
    /// Price of a slot that starts after this time from now.
    pub fn price(&self, ahead: Time) -> Price {
        let days = seconds(ahead) / DAY_S;
        let less = (self.discount_a_day * days).clamp(0.0, self.discount_max.clamp(0.0, 1.0));
        Price { rate: self.rate * (1.0 - less), fixed: self.fixed }
    }

    /// Checks whether the site grants a slot that starts after this time from now. `reserved` is
    /// the maximum of simultaneously reserved processors with it.
    ///
    /// # Errors
    /// [`Denial`] with the violated limit.
    pub fn grants(&self, ahead: Time, reserved: u32, processors: u32) -> Result<(), Denial> {
        if !self.advertise {
            return Err(Denial::NotAdvertised);
        }
        if let Some(most) = self.ahead_max.filter(|&most| ahead > most) {
            return Err(Denial::TooFarAhead { ahead_s: seconds(ahead), most_s: seconds(most) });
        }
        let most = self.most_reserved(processors);
        if reserved > most { Err(Denial::TooMuch { reserved, most }) } else { Ok(()) }
    }

    /// Maximum of reserved processors, out of `processors`.
    pub fn most_reserved(&self, processors: u32) -> u32 {
        (f64::from(processors) * self.share_max.clamp(0.0, 1.0)).floor() as u32
    }

    /// Surcharge for reserved but unused processor-seconds.
    pub fn penalty(&self, unused_s: f64) -> f64 {
        unused_s.max(0.0) * self.rate * self.unused_surcharge
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provisioning::SECOND;

    #[test]
    fn early_requests_get_a_bounded_discount() {
        let terms = Terms { rate: 2.0, fixed: 5.0, discount_a_day: 0.1, ..Terms::default() };
        let day = 24 * 3600 * SECOND;
        let rates = [0, day, 3 * day, 5 * day, 50 * day].map(|ahead| terms.price(ahead).rate);
        for (is, should) in rates.into_iter().zip([2.0, 1.8, 1.4, 1.0, 1.0]) {
            assert!((is - should).abs() < 1e-12, "{is} is not {should}");
        }
        assert_eq!(terms.price(day).fixed, 5.0);
        assert_eq!(Terms { unused_surcharge: 0.25, ..terms }.penalty(8.0), 4.0);
    }

    #[test]
    fn a_provider_says_why_it_refuses() {
        let terms = Terms { ahead_max: Some(10 * SECOND), share_max: 0.5, ..Terms::default() };
        assert_eq!(terms.grants(10 * SECOND, 3, 7), Ok(()));
        let late = terms.grants(11 * SECOND, 1, 7).unwrap_err();
        assert_eq!(late, Denial::TooFarAhead { ahead_s: 11.0, most_s: 10.0 });
        let much = terms.grants(0, 4, 7).unwrap_err();
        assert_eq!(much, Denial::TooMuch { reserved: 4, most: 3 });
        assert!(much.to_string().contains("share_max"), "{much}");
        let closed = Terms { advertise: false, ..terms };
        assert_eq!(closed.grants(0, 1, 7), Err(Denial::NotAdvertised));
    }
}
