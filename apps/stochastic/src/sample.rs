//! Sampling of scenarios. Program, method, seed and index determine a scenario to the bit, so any
//! node can compute it without the scenarios before it. This module does not know the solver.

use serde::{Deserialize, Serialize};
use springtide_runtime::random::SplitMix;

use crate::model::{RandomElement, TwoStage};

/// Largest number of scenarios: 2^40.
pub const SCENARIOS_MAX: u64 = 1 << 40;

/// Increment of the state of [`SplitMix`] per number.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The method that draws scenarios.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Sampling {
    /// Independent draws of each block's outcome.
    MonteCarlo,
    /// Latin hypercube: each of N scenarios has another of N equal strata of every block, in an
    /// order of the block's own. McKay, Beckman, Conover: A comparison of three methods for
    /// selecting values of input variables (Technometrics 21, 1979).
    LatinHypercube,
    /// Every scenario once. Outcomes of the last block change fastest.
    All,
}

/// Scenarios cannot be sampled.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SampleError {
    /// The number of scenarios is 0.
    #[error("0 scenarios are too few: there must be at least one")]
    None,
    /// The number of scenarios exceeds [`SCENARIOS_MAX`].
    #[error("{count} scenarios are too many: at most {SCENARIOS_MAX} (2^40) can be sampled")]
    TooMany {
        /// The number.
        count: u64,
    },
    /// The program has more scenarios than can be enumerated.
    #[error(
        "the program has {} scenarios, and at most {SCENARIOS_MAX} (2^40) can be enumerated: \
         sample them",
        Count(*.count)
    )]
    TooManyInAll {
        /// Their number; none if it exceeds 2^64.
        count: Option<u64>,
    },
    /// The outcomes of a block are not a distribution.
    #[error("block {block} is no distribution: its outcomes must have positive probabilities")]
    Block {
        /// Its index.
        block: usize,
    },
}

struct Count(Option<u64>);

impl std::fmt::Display for Count {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(count) => count.fmt(f),
            None => f.write_str("more than 2^64"),
        }
    }
}

/// Computes scenarios of a program by index.
///
/// A seed has one SplitMix sequence. Scenario i of a program with B blocks uses its numbers i B to
/// i B + B - 1. No two blocks or scenarios share a number, as i B is below the period, 2^64. So a
/// scenario depends neither on the order of calls nor, for Monte Carlo, on the number of scenarios.
/// Sequences of two seeds begin at hashed states.
#[derive(Clone, Debug)]
pub struct Sampler {
    sampling: Sampling,
    count: u64,
    start: u64,
    blocks: Vec<Sampled>,
    /// Cumulative probabilities of each block's outcomes; the last of a block is 1.
    cumulated: Vec<f64>,
}

#[derive(Clone, Debug)]
struct Sampled {
    /// Index of its first outcome in `cumulated`.
    from: usize,
    /// Number of outcomes.
    outcomes: usize,
    /// The order of its strata.
    order: Permutation,
    /// The program's values to the bit, for enumeration.
    probabilities: Vec<f64>,
}

impl Sampler {
    /// Prepares `count` scenarios of a program. [`Sampling::All`] ignores seed and count.
    ///
    /// # Errors
    /// The number of scenarios is 0 or exceeds [`SCENARIOS_MAX`], or a probability is not positive.
    pub fn new(
        model: &TwoStage,
        sampling: Sampling,
        seed: u64,
        count: u64,
    ) -> Result<Self, SampleError> {
        let count = match sampling {
            Sampling::All => match model.scenarios() {
                Some(count) if count <= SCENARIOS_MAX => count,
                count => return Err(SampleError::TooManyInAll { count }),
            },
            _ if count == 0 => return Err(SampleError::None),
            // Every block of every scenario needs a number of its own.
            _ if count > SCENARIOS_MAX
                || count.checked_mul(model.random.len() as u64).is_none() =>
            {
                return Err(SampleError::TooMany { count });
            }
            _ => count,
        };
        let mut orders = SplitMix::with_text(seed, "strata");
        let mut cumulated = Vec::new();
        let mut blocks = Vec::with_capacity(model.random.len());
        for (block, random) in model.random.iter().enumerate() {
            let probabilities: Vec<f64> =
                random.outcomes.iter().map(|outcome| outcome.probability).collect();
            let fit = probabilities.iter().all(|p| *p > 0.0 && p.is_finite());
            if !fit || probabilities.is_empty() || u32::try_from(probabilities.len()).is_err() {
                return Err(SampleError::Block { block });
            }
            let total: f64 = probabilities.iter().sum();
            let (from, mut sum) = (cumulated.len(), 0.0);
            cumulated.extend(probabilities.iter().map(|p| {
                sum += p;
                sum / total
            }));
            let order = Permutation::new(orders.next(), count);
            blocks.push(Sampled { from, outcomes: probabilities.len(), order, probabilities });
        }
        let start = SplitMix::with_text(seed, "scenarios").next();
        Ok(Self { sampling, count, start, blocks, cumulated })
    }

    /// Number of sampled scenarios.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Computes a scenario and reuses the memory of `out`.
    ///
    /// # Panics
    /// If the index is not below [`Sampler::count`].
    pub fn scenario(&self, index: u64, out: &mut Scenario) {
        assert!(index < self.count, "scenario {index} of {}", self.count);
        out.picks.clear();
        if self.sampling == Sampling::All {
            self.enumerated(index, out);
            return;
        }
        out.probability = 1.0 / self.count as f64;
        let skipped = index * self.blocks.len() as u64;
        let mut numbers = SplitMix(self.start.wrapping_add(skipped.wrapping_mul(STEP)));
        out.picks.extend(self.blocks.iter().map(|block| {
            let unit = match self.sampling {
                Sampling::LatinHypercube => self.in_stratum(block.order.of(index), numbers.next()),
                _ => numbers.unit(),
            };
            self.pick(block, unit)
        }));
    }

    fn enumerated(&self, index: u64, out: &mut Scenario) {
        let mut rest = index;
        // Backwards, as outcomes of the last block change fastest.
        out.picks.extend(self.blocks.iter().rev().map(|block| {
            let pick = rest % block.outcomes as u64;
            rest /= block.outcomes as u64;
            pick as u32
        }));
        out.picks.reverse();
        let picked = self.blocks.iter().zip(&out.picks);
        out.probability = picked.map(|(block, pick)| block.probabilities[*pick as usize]).product();
    }

    /// A number of a stratum, from 0 to below 1. It uses as many random bits as leave the sum
    /// exact, so that rounding cannot move it to the next stratum.
    fn in_stratum(&self, stratum: u64, random: u64) -> f64 {
        let bits = 51 - (u64::BITS - self.count.leading_zeros());
        let jitter = (random >> (u64::BITS - bits)) as f64 / (1_u64 << bits) as f64;
        (stratum as f64 + jitter) / self.count as f64
    }

    /// The outcome of a number, by inversion of the distribution function. Strata need a monotone
    /// map, which an alias table is not.
    fn pick(&self, block: &Sampled, unit: f64) -> u32 {
        let cumulated = &self.cumulated[block.from..block.from + block.outcomes];
        let pick = cumulated.partition_point(|sum| *sum <= unit);
        pick.min(block.outcomes - 1) as u32
    }
}

/// A permutation of 0 to N - 1 with random access. It is a Feistel network over the smallest even
/// number of bits that holds N. It is repeated until the result is below N, at most 4 times on
/// average. Black, Rogaway: Ciphers with arbitrary finite domains (CT-RSA 2002).
#[derive(Clone, Debug)]
struct Permutation {
    key: u64,
    count: u64,
    /// Number of bits of a half.
    half: u32,
}

/// Number of rounds. Four suffice for large N; small N need more to reach most permutations.
const ROUNDS: u64 = 8;

impl Permutation {
    fn new(key: u64, count: u64) -> Self {
        let bits = u64::BITS - (count - 1).leading_zeros();
        Self { key, count, half: bits.div_ceil(2).max(2) }
    }

    fn of(&self, index: u64) -> u64 {
        let mask = (1 << self.half) - 1;
        let mut at = index;
        loop {
            let (mut left, mut right) = (at >> self.half, at & mask);
            for round in 0..ROUNDS {
                // A half has at most 20 bits.
                let hash = SplitMix(self.key ^ ((round << 32) | right)).next();
                (left, right) = (right, left ^ (hash & mask));
            }
            at = (left << self.half) | right;
            if at < self.count {
                return at;
            }
        }
    }
}

/// A scenario: an outcome of every block.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scenario {
    /// Its probability, or its weight in a sample.
    pub probability: f64,
    /// Index of each block's outcome.
    pub picks: Vec<u32>,
}

impl Scenario {
    /// The random elements and their values.
    ///
    /// # Panics
    /// If the scenario belongs to another program.
    pub fn values<'a>(
        &'a self,
        model: &'a TwoStage,
    ) -> impl Iterator<Item = (RandomElement, f64)> + 'a {
        assert_eq!(self.picks.len(), model.random.len(), "the scenario is of another program");
        model.random.iter().zip(&self.picks).flat_map(|(block, pick)| {
            let values = &block.outcomes[*pick as usize].values;
            block.places.iter().copied().zip(values.iter().copied())
        })
    }

    /// Writes the second stage's right-hand sides.
    ///
    /// # Panics
    /// If the scenario is of another program, or `out` has another length than the right-hand
    /// sides.
    pub fn rhs(&self, model: &TwoStage, out: &mut [f64]) {
        out.copy_from_slice(&model.second.rhs);
        for (place, value) in self.values(model) {
            if let RandomElement::Rhs(row) = place {
                out[row] = value;
            }
        }
    }

    /// Writes the costs of the second stage's columns.
    ///
    /// # Panics
    /// If the scenario is of another program, or `out` has another length than the costs.
    pub fn cost(&self, model: &TwoStage, out: &mut [f64]) {
        out.copy_from_slice(&model.second.cost);
        for (place, value) in self.values(model) {
            if let RandomElement::Cost(column) = place {
                out[column] = value;
            }
        }
    }

    /// Random entries of the technology matrix: row, column and value. All other entries are those
    /// of [`TwoStage::technology`].
    ///
    /// # Panics
    /// If the scenario is of another program.
    pub fn technology_changes<'a>(
        &'a self,
        model: &'a TwoStage,
    ) -> impl Iterator<Item = (usize, usize, f64)> + 'a {
        self.values(model).filter_map(|(place, value)| match place {
            RandomElement::Technology(row, column) => Some((row, column, value)),
            _ => None,
        })
    }

    /// Random entries of the recourse matrix: row, column and value. All other entries are those of
    /// the second stage's own matrix.
    ///
    /// # Panics
    /// If the scenario is of another program.
    pub fn recourse_changes<'a>(
        &'a self,
        model: &'a TwoStage,
    ) -> impl Iterator<Item = (usize, usize, f64)> + 'a {
        self.values(model).filter_map(|(place, value)| match place {
            RandomElement::Recourse(row, column) => Some((row, column, value)),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{MatrixBlock, Realisation, Stage};

    /// A program whose blocks have these probabilities, each for one right-hand side with the
    /// values 0, 1, 2...
    fn program(blocks: &[&[f64]]) -> TwoStage {
        let random = blocks.iter().enumerate().map(|(row, probabilities)| MatrixBlock {
            places: vec![RandomElement::Rhs(row)],
            outcomes: probabilities
                .iter()
                .enumerate()
                .map(|(at, p)| Realisation { probability: *p, values: vec![at as f64] })
                .collect(),
        });
        let second = Stage { rhs: vec![-1.0; blocks.len() + 1], ..Stage::default() };
        TwoStage { second, random: random.collect(), ..TwoStage::default() }
    }

    fn of(sampler: &Sampler, index: u64) -> Scenario {
        let mut scenario = Scenario::default();
        sampler.scenario(index, &mut scenario);
        scenario
    }

    fn sampler(model: &TwoStage, sampling: Sampling, seed: u64, count: u64) -> Sampler {
        Sampler::new(model, sampling, seed, count).unwrap()
    }

    /// How often each outcome of each block is taken.
    fn counts(sampler: &Sampler, blocks: &[&[f64]]) -> Vec<Vec<u64>> {
        let mut counts: Vec<Vec<u64>> = blocks.iter().map(|block| vec![0; block.len()]).collect();
        let mut scenario = Scenario::default();
        for index in 0..sampler.count() {
            sampler.scenario(index, &mut scenario);
            for (counts, pick) in counts.iter_mut().zip(&scenario.picks) {
                counts[*pick as usize] += 1;
            }
        }
        counts
    }

    const BLOCKS: [&[f64]; 4] =
        [&[0.5, 0.5], &[0.475, 0.19, 0.19, 0.095, 0.05], &[1.0], &[0.1, 0.2, 0.7]];

    #[test]
    fn numbers_are_those_of_one_sequence() {
        let mut sequence = SplitMix(7);
        for skipped in 0..100_u64 {
            let mut jumped = SplitMix(7_u64.wrapping_add(skipped.wrapping_mul(STEP)));
            assert_eq!(jumped.next(), sequence.next());
        }
    }

    #[test]
    fn all_scenarios_come_once_in_order_and_weigh_1() {
        let model = program(&BLOCKS);
        let all = sampler(&model, Sampling::All, 1, 0);
        assert_eq!(all.count(), 30);
        let made: Vec<Scenario> = (0..30).map(|index| of(&all, index)).collect();
        assert!(made.windows(2).all(|two| two[0].picks < two[1].picks));
        assert_eq!(made[0].picks, [0, 0, 0, 0]);
        assert_eq!(made[1].picks, [0, 0, 0, 1]);
        assert_eq!(made[29].picks, [1, 4, 0, 2]);
        assert_eq!(made[1].probability, 0.5 * 0.475 * 1.0 * 0.2);
        let total: f64 = made.iter().map(|scenario| scenario.probability).sum();
        assert!((total - 1.0).abs() < 1e-14, "{total}");
        let none = sampler(&program(&[]), Sampling::All, 1, 0);
        assert_eq!((none.count(), of(&none, 0)), (1, Scenario { probability: 1.0, picks: vec![] }));
    }

    #[test]
    fn what_cannot_be_sampled() {
        let large = program(&[BLOCKS[0]; 41]);
        let fails = |model: &TwoStage, sampling, count| {
            Sampler::new(model, sampling, 1, count).unwrap_err().to_string()
        };
        assert_eq!(
            fails(&large, Sampling::All, 0),
            "the program has 2199023255552 scenarios, and at most 1099511627776 (2^40) can be \
             enumerated: sample them"
        );
        let larger = program(&[BLOCKS[0]; 64]);
        assert!(fails(&larger, Sampling::All, 0).contains("has more than 2^64 scenarios"));
        assert!(fails(&large, Sampling::MonteCarlo, 0).contains("at least one"));
        let too_many = fails(&large, Sampling::LatinHypercube, SCENARIOS_MAX + 1);
        assert!(too_many.starts_with("1099511627777 scenarios are too many"), "{too_many}");
        for bad in [&[][..], &[1.0, 0.0], &[f64::NAN], &[-1.0, 2.0], &[f64::INFINITY]] {
            let error = Sampler::new(&program(&[&[1.0], bad]), Sampling::MonteCarlo, 1, 5);
            assert_eq!(error.unwrap_err(), SampleError::Block { block: 1 });
        }
    }

    #[test]
    #[should_panic(expected = "scenario 5 of 5")]
    fn there_is_no_scenario_behind_the_last() {
        of(&sampler(&program(&BLOCKS), Sampling::MonteCarlo, 1, 5), 5);
    }

    #[test]
    fn scenarios_are_the_same_in_any_order_and_for_another_count() {
        let model = program(&BLOCKS);
        for sampling in [Sampling::MonteCarlo, Sampling::LatinHypercube] {
            let (one, other) =
                (sampler(&model, sampling, 9, 100), sampler(&model, sampling, 9, 100));
            let forth: Vec<Scenario> = (0..100).map(|index| of(&one, index)).collect();
            let mut back: Vec<Scenario> = (0..100).rev().map(|index| of(&other, index)).collect();
            back.reverse();
            assert_eq!(forth, back);
        }
        let more = sampler(&model, Sampling::MonteCarlo, 9, 1000);
        let fewer = sampler(&model, Sampling::MonteCarlo, 9, 100);
        assert!((0..100).all(|index| of(&more, index).picks == of(&fewer, index).picks));
        assert_eq!(of(&more, 3).probability, 0.001);
    }

    /// Other builds must make these same scenarios: change nothing here.
    #[test]
    fn scenarios_stay_what_they_are() {
        let model = program(&BLOCKS);
        let picks = |sampling| {
            let sampler = sampler(&model, sampling, 2026, 1000);
            [0, 1, 999].map(|index| of(&sampler, index).picks)
        };
        assert_eq!(picks(Sampling::MonteCarlo), [[0, 2, 0, 2], [0, 4, 0, 2], [1, 0, 0, 2]]);
        assert_eq!(picks(Sampling::LatinHypercube), [[1, 0, 0, 2], [0, 2, 0, 0], [0, 0, 0, 2]]);
    }

    #[test]
    fn two_seeds_and_two_blocks_differ() {
        let model = program(&[BLOCKS[1], BLOCKS[1]]);
        for sampling in [Sampling::MonteCarlo, Sampling::LatinHypercube] {
            let (one, two) =
                (sampler(&model, sampling, 1, 1000), sampler(&model, sampling, 2, 1000));
            let (mut seeds, mut blocks) = (0, 0);
            for index in 0..1000 {
                let (one, two) = (of(&one, index).picks, of(&two, index).picks);
                seeds += u32::from(one[0] == two[0]);
                blocks += u32::from(one[0] == one[1]);
            }
            // Two agree with the sum of squared probabilities, 0.3095; 1000 have the deviation 15.
            for same in [seeds, blocks] {
                assert!((235..385).contains(&same), "{same} of 1000 are the same");
            }
        }
    }

    #[test]
    fn monte_carlo_takes_outcomes_by_their_probabilities() {
        let model = program(&BLOCKS);
        for seed in 0..10 {
            let counts = counts(&sampler(&model, Sampling::MonteCarlo, seed, 20_000), &BLOCKS);
            for (counts, block) in counts.iter().zip(BLOCKS) {
                let chi2: f64 = counts
                    .iter()
                    .zip(block)
                    .map(|(count, p)| (*count as f64 - 20_000.0 * p).powi(2) / (20_000.0 * p))
                    .sum();
                // Of 4 degrees of freedom one in 2 million exceeds 35.
                assert!(chi2 < 35.0, "seed {seed}: {counts:?}");
            }
        }
    }

    #[test]
    fn a_latin_hypercube_has_every_stratum_of_every_block_once() {
        // All probabilities are whole numbers of strata, so counts are exact.
        let blocks: [&[f64]; 4] =
            [&[0.5, 0.5], &[0.475, 0.19, 0.19, 0.095, 0.05], &[1.0], &[0.1, 0.2, 0.7]];
        let model = program(&blocks);
        for count in [200, 1000, 100_000] {
            for seed in 0..3 {
                let sampler = sampler(&model, Sampling::LatinHypercube, seed, count);
                for (counts, block) in counts(&sampler, &blocks).iter().zip(blocks) {
                    let exact: Vec<u64> =
                        block.iter().map(|p| (p * count as f64).round() as u64).collect();
                    assert_eq!(*counts, exact, "{count} with seed {seed}");
                }
            }
        }
    }

    #[test]
    fn numbers_stay_in_their_strata() {
        for count in [1, 2, 3, 1000, (1 << 20) + 1, SCENARIOS_MAX] {
            let sampler = sampler(&program(&[]), Sampling::LatinHypercube, 1, count);
            for stratum in [0, count / 3, count / 2, count - 1] {
                for random in [0, u64::MAX / 2, u64::MAX] {
                    let unit = sampler.in_stratum(stratum, random);
                    let (from, to) =
                        (stratum as f64 / count as f64, (stratum + 1) as f64 / count as f64);
                    assert!(from <= unit && unit < to, "{unit} of [{from}, {to})");
                }
            }
        }
    }

    #[test]
    fn an_order_is_a_permutation() {
        for count in [1, 2, 3, 4, 5, 16, 17, 1000, 65_536, 65_537] {
            let order = Permutation::new(count ^ 0xdead_beef, count);
            let mut seen = vec![false; count as usize];
            for index in 0..count {
                let at = order.of(index) as usize;
                assert!(!seen[at], "{at} of {count} comes twice");
                seen[at] = true;
            }
        }
        let large = Permutation::new(3, SCENARIOS_MAX);
        assert!((0..100).all(|index| large.of(index) < SCENARIOS_MAX));
        assert_ne!(large.of(0), large.of(1));
    }

    /// Over many keys a small order is any of its permutations alike.
    #[test]
    fn orders_are_spread_over_all_permutations() {
        let mut keys = SplitMix(11);
        let mut counts = std::collections::BTreeMap::new();
        for _ in 0..12_000 {
            let order = Permutation::new(keys.next(), 5);
            let permutation: Vec<u64> = (0..5).map(|index| order.of(index)).collect();
            *counts.entry(permutation).or_insert(0_u32) += 1;
        }
        assert_eq!(counts.len(), 120);
        let chi2: f64 =
            counts.values().map(|count| (f64::from(*count) - 100.0).powi(2) / 100.0).sum();
        // 119 degrees of freedom: a deviation of 15.4.
        assert!(chi2 < 119.0 + 6.0 * 15.4, "{chi2}");
    }

    #[test]
    fn the_mean_of_a_latin_hypercube_varies_less() {
        let block: Vec<f64> = vec![0.01; 100];
        let blocks = [&block[..]; 3];
        let model = program(&blocks);
        let variance = |sampling| {
            let mean = |seed| {
                let sampler = sampler(&model, sampling, seed, 50);
                let of = |index| of(&sampler, index).picks.iter().sum::<u32>();
                (0..50).map(|index| f64::from(of(index))).sum::<f64>() / 50.0
            };
            (0..40).map(|seed| (mean(seed) - 148.5).powi(2)).sum::<f64>() / 40.0
        };
        assert!(20.0 * variance(Sampling::LatinHypercube) < variance(Sampling::MonteCarlo));
    }

    #[test]
    fn a_scenario_is_put_into_the_program() {
        let mut model = program(&BLOCKS);
        model.second.cost = vec![7.0; 3];
        let places = [
            RandomElement::Technology(2, 1),
            RandomElement::Cost(1),
            RandomElement::Recourse(0, 2),
        ];
        model.random[3].places.extend(places);
        for outcome in &mut model.random[3].outcomes {
            let value = outcome.values[0];
            outcome.values.extend([value * 10.0, value * 100.0, value * 1000.0]);
        }
        let scenario = Scenario { probability: 0.1, picks: vec![1, 4, 0, 2] };
        let mut rhs = vec![0.0; 5];
        scenario.rhs(&model, &mut rhs);
        assert_eq!(rhs, [1.0, 4.0, 0.0, 2.0, -1.0]);
        assert_eq!(scenario.technology_changes(&model).collect::<Vec<_>>(), [(2, 1, 20.0)]);
        let mut cost = vec![0.0; 3];
        scenario.cost(&model, &mut cost);
        assert_eq!(cost, [7.0, 200.0, 7.0]);
        assert_eq!(scenario.recourse_changes(&model).collect::<Vec<_>>(), [(0, 2, 2000.0)]);
    }
}
