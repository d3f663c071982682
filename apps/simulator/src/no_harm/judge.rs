//! Compares the times of draws with the criteria. This module does not run anything.

use super::DrawTimes;

/// From this ratio of the static run to the best fixed set on, adaptation must gain something.
pub(super) const FASTER: f64 = 1.5;
/// An adaptive run may take this multiple of the static one, in this part of the draws.
const USUALLY: (f64, f64) = (1.05, 0.99);
/// An adaptive run may take at most this multiple of the static one in any draw.
const ALWAYS: f64 = 1.25;
/// The part of the possible gain that adaptation reaches in the median.
const MEDIAN_GAIN: f64 = 0.6;
/// The part of the possible gain that adaptation reaches in this part of the draws.
const MOSTLY: (f64, f64) = (0.3, 0.9);

/// A criterion, its measured value and whether it holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Criterion {
    /// The criterion in words.
    pub about: String,
    /// The measured value; none if no draw applies.
    pub value: Option<f64>,
    /// Whether the value keeps to the criterion.
    pub holds: bool,
}

/// The judgement of many draws.
#[derive(Clone, Debug, PartialEq)]
pub struct NoHarmVerdict {
    /// The number of draws.
    pub draws: usize,
    /// The number of draws in which the best fixed set is 1.5 times faster than the static run.
    pub improvable: usize,
    /// All criteria with their values.
    pub criteria: Vec<Criterion>,
    /// Percentiles of the adaptive run's time as a multiple of the static run's.
    pub to_static: Vec<(u32, f64)>,
    /// Percentiles of the adaptive run's time as a multiple of that on the best fixed set.
    pub to_best: Vec<(u32, f64)>,
    /// Percentiles of the gain, where one is possible.
    pub gains: Vec<(u32, f64)>,
}

impl NoHarmVerdict {
    /// Whether all criteria hold.
    pub fn holds(&self) -> bool {
        self.criteria.iter().all(|criterion| criterion.holds)
    }
}

/// The percentiles that are reported.
const PERCENTS: [u32; 9] = [0, 1, 10, 25, 50, 75, 90, 99, 100];

/// The value below which this part of the sorted values lies; none without values.
fn quantile(sorted: &[f64], part: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    sorted.get((part * last as f64).round() as usize).copied()
}

fn percentiles(sorted: &[f64]) -> Vec<(u32, f64)> {
    let all = PERCENTS
        .iter()
        .map(|percent| Some((*percent, quantile(sorted, f64::from(*percent) / 100.0)?)));
    all.flatten().collect()
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

/// The part of the values that fit; none without values.
fn part(values: &[f64], fits: impl Fn(f64) -> bool) -> Option<f64> {
    let count = values.iter().filter(|value| fits(**value)).count();
    (!values.is_empty()).then(|| count as f64 / values.len() as f64)
}

/// Judges the times of draws.
pub fn judge(all: &[DrawTimes]) -> NoHarmVerdict {
    let ratios = sorted(all.iter().map(DrawTimes::ratio));
    let gains = sorted(all.iter().filter_map(DrawTimes::gain));
    let wrong = all.iter().filter(|times| times.fixed.wrong || times.adaptive.wrong).count();
    let at_least = |about: String, value: Option<f64>, bound: f64| Criterion {
        about,
        value,
        holds: value.is_none_or(|value| value >= bound),
    };
    let (usual, usual_part) = USUALLY;
    let (gain, gain_part) = MOSTLY;
    let worst = ratios.last().copied();
    let criteria = vec![
        at_least(
            format!("part of draws with adaptive at most {usual} x static, at least {usual_part}"),
            part(&ratios, |ratio| ratio <= usual),
            usual_part,
        ),
        Criterion {
            about: format!("adaptive as a multiple of static in the worst draw, at most {ALWAYS}"),
            value: worst,
            holds: worst.is_none_or(|worst| worst <= ALWAYS),
        },
        at_least(
            format!("median part of the possible gain, at least {MEDIAN_GAIN}"),
            quantile(&gains, 0.5),
            MEDIAN_GAIN,
        ),
        at_least(
            format!("part of draws with {gain} of the possible gain, at least {gain_part}"),
            part(&gains, |value| value >= gain),
            gain_part,
        ),
        Criterion {
            about: "wrong answers, none".to_owned(),
            value: Some(wrong as f64),
            holds: wrong == 0,
        },
    ];
    NoHarmVerdict {
        draws: all.len(),
        improvable: gains.len(),
        criteria,
        to_best: percentiles(&sorted(all.iter().map(DrawTimes::ratio_to_best))),
        to_static: percentiles(&ratios),
        gains: percentiles(&gains),
    }
}
