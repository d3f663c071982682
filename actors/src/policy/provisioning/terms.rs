//! What a site asks for its slots, and which reservations it does not grant: pure decisions of whoever provides.
//!
//! Source: the paper, section 2 (a multiplicative and an additive cost of each slot) and section 8, where it is future work that slots
//! cost less the earlier they are asked for, and that providers have policies of their own. Must not know what is free.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Price, Time, seconds};

const DAY_S: f64 = 24.0 * 3600.0;

/// A site's terms.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Terms {
    /// Whether it offers slots at all.
    pub advertise: bool,
    /// Price of a processor and second that is had at once, in units of the user's own.
    pub rate: f64,
    /// Price of each slot, if anything of it is had.
    pub fixed: f64,
    /// How much less the rate is for each day between now and the slot's start, as a part of it.
    pub discount_a_day: f64,
    /// Most that it is less, as a part of it.
    pub discount_most: f64,
    /// What each processor-second costs besides that was reserved and on which no job ran, as a part of the rate: who asks for more
    /// than he needs keeps others from it.
    pub loose: f64,
    /// Nothing is granted that begins later than so long from now.
    pub most_ahead: Option<Time>,
    /// Most of its processors that may be reserved at once, as a part of all.
    pub most_share: f64,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            advertise: true,
            rate: 1.0,
            fixed: 0.0,
            discount_a_day: 0.0,
            discount_most: 0.5,
            loose: 0.0,
            most_ahead: None,
            most_share: 1.0,
        }
    }
}

/// Why a provider does not grant a reservation that it could.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "because")]
pub enum Denied {
    /// The site offers nothing.
    NotAdvertised,
    /// It begins too late.
    TooFarAhead {
        /// So many seconds from now.
        ahead_s: f64,
        /// At most so many.
        most_s: f64,
    },
    /// Too much of the site would be reserved at once.
    TooMuch {
        /// Processors that would be.
        reserved: u32,
        /// At most so many.
        most: u32,
    },
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAdvertised => f.write_str("it lets nobody reserve (slots.advertise)"),
            Self::TooFarAhead { ahead_s, most_s } => write!(
                f,
                "it begins in {ahead_s:.0} s, and nothing is granted more than {most_s:.0} s ahead (slots.most_ahead)"
            ),
            Self::TooMuch { reserved, most } => write!(
                f,
                "{reserved} processors would be reserved at once, and {most} may be (slots.most_share)"
            ),
        }
    }
}

impl Terms {
    /// What a slot costs that begins so long from now.
    pub fn price(&self, ahead: Time) -> Price {
        let days = seconds(ahead) / DAY_S;
        let less = (self.discount_a_day * days).clamp(0.0, self.discount_most.clamp(0.0, 1.0));
        Price { rate: self.rate * (1.0 - less), fixed: self.fixed }
    }

    /// Whether the site grants what begins so long from now, if then at most so many of its processors are reserved at once.
    ///
    /// # Errors
    /// [`Denied`].
    pub fn grants(&self, ahead: Time, reserved: u32, processors: u32) -> Result<(), Denied> {
        if !self.advertise {
            return Err(Denied::NotAdvertised);
        }
        if let Some(most) = self.most_ahead.filter(|&most| ahead > most) {
            return Err(Denied::TooFarAhead { ahead_s: seconds(ahead), most_s: seconds(most) });
        }
        let most = self.most_reserved(processors);
        match reserved > most {
            true => Err(Denied::TooMuch { reserved, most }),
            false => Ok(()),
        }
    }

    /// How many processors of so many may be reserved at once.
    pub fn most_reserved(&self, processors: u32) -> u32 {
        (f64::from(processors) * self.most_share.clamp(0.0, 1.0)).floor() as u32
    }

    /// What is to be paid besides for processor-seconds that were reserved and not used.
    pub fn penalty(&self, unused_s: f64) -> f64 {
        unused_s.max(0.0) * self.rate * self.loose
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::provisioning::SECOND;

    #[test]
    fn who_asks_early_pays_less_and_never_less_than_the_most_discount_leaves() {
        let terms = Terms { rate: 2.0, fixed: 5.0, discount_a_day: 0.1, ..Terms::default() };
        let day = 24 * 3600 * SECOND;
        let rates = [0, day, 3 * day, 5 * day, 50 * day].map(|ahead| terms.price(ahead).rate);
        for (is, should) in rates.into_iter().zip([2.0, 1.8, 1.4, 1.0, 1.0]) {
            assert!((is - should).abs() < 1e-12, "{is} is not {should}");
        }
        assert_eq!(terms.price(day).fixed, 5.0);
        assert_eq!(Terms { loose: 0.25, ..terms }.penalty(8.0), 4.0);
    }

    #[test]
    fn a_provider_says_why_it_refuses() {
        let terms = Terms { most_ahead: Some(10 * SECOND), most_share: 0.5, ..Terms::default() };
        assert_eq!(terms.grants(10 * SECOND, 3, 7), Ok(()));
        let late = terms.grants(11 * SECOND, 1, 7).unwrap_err();
        assert_eq!(late, Denied::TooFarAhead { ahead_s: 11.0, most_s: 10.0 });
        let much = terms.grants(0, 4, 7).unwrap_err();
        assert_eq!(much, Denied::TooMuch { reserved: 4, most: 3 });
        assert!(much.to_string().contains("most_share"), "{much}");
        let closed = Terms { advertise: false, ..terms };
        assert_eq!(closed.grants(0, 1, 7), Err(Denied::NotAdvertised));
    }
}
