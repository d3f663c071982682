//! Settings of the policy, and their validation. This module is independent of any run.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use springtide_base::processors::Processors;
use springtide_config::{AdaptationSection, WeightsSection};

/// Coefficients of the badness formula.
///
/// `alpha / speed + beta * inter-cluster overhead + gamma * in the worst cluster`. Source:
/// *Self-adaptive applications on the grid*, 3.3. The policy learns them within bounds during a
/// run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Weights {
    /// Coefficient of 1 / relative speed.
    pub alpha: f64,
    /// Coefficient of the inter-cluster overhead (a fraction of the period).
    pub beta: f64,
    /// Added if the node is in the worst cluster.
    pub gamma: f64,
}

impl Default for Weights {
    fn default() -> Self {
        Self { alpha: 1.0, beta: 100.0, gamma: 10.0 }
    }
}

/// Settings of the policy. They are constant over a run and logged with each decision.
///
/// Some fields keep other names in messages and logs, which other versions read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AdaptationSettings {
    /// Weighted average efficiency below which nodes are removed. Paper: 0.3.
    pub e_min: f64,
    /// Efficiency above which nodes are added. Paper: 0.5 (Eager et al.: beyond it more processors
    /// bring little).
    pub e_max: f64,
    /// Initial coefficients of the badness formula.
    pub weights: Weights,
    /// Mean inter-cluster overhead from which a cluster's link is suspected. Paper: 0.25.
    pub cluster_threshold: f64,
    /// Factor by which a suspected cluster's overhead must exceed the others' to blame its link
    /// without a measurement. 0 blames it at once, as in the paper.
    pub cluster_exceptional: f64,
    /// Inter-cluster overhead from which a single node is bad. Paper: "above 0.2 indicates
    /// bandwidth problems".
    pub node_threshold: f64,
    /// A node is slow below this fraction of the job's mean speed, even if its measurement error
    /// counts in its favour.
    pub slow_below: f64,
    /// Length of a statistics period, in seconds.
    pub period_s: f64,
    /// Maximum processors after a decision, as a multiple of those before it.
    #[serde(alias = "most_growth")]
    pub growth_max: f64,
    /// Minimum processors after a decision, as a fraction of those before it.
    #[serde(alias = "most_shrink")]
    pub shrink_min: f64,
    /// Consecutive periods below `e_min` before a node is removed.
    pub bad_periods: u32,
    /// Periods without an action after an action.
    pub cool_down: u32,
    /// Grace: periods after a node's joining in which it is not judged.
    pub grace: u32,
    /// Periods for which a node's last report replaces a missing one.
    pub stale: u32,
    /// Seconds in which an effect settles. It caps the waits of `cool_down`, `check_periods`,
    /// `grace` and `near_end`, which are in periods.
    pub settle_s: f64,
    /// Seconds for which a decision waits at most while the efficiency may be on either side of its
    /// bound. Then it has new measurements, and decides. It never waits where a period is longer.
    pub doubt_s: f64,
    /// Greatest age of a measured speed, in seconds, where no work units give it; 0: no limit. It
    /// holds where a benchmark of five quota periods costs at most 1 % of this time.
    pub speed_age_s: f64,
    /// The size stays if the job is estimated to end within this number of periods.
    pub near_end: u32,
    /// Number of worst workers that a cluster reports by name.
    pub named: u32,
    /// Whether capacity lost to a removal for cause or a crash is replaced while efficiency is
    /// above `e_min`. Not in the paper's text, but in its scenarios 2, 3 and 5.
    pub refill: bool,
    /// Whether the job moves to better nodes while efficiency is within the band.
    pub migrate: bool,
    /// Factor by which a free node must be faster than the node that it replaces.
    pub migrate_factor: f64,
    /// Cost of moving to a node, in seconds of that node.
    pub move_cost_s: f64,
    /// Factor by which the gain of a migration must exceed its cost.
    pub migrate_margin: f64,
    /// First term of quarantine, in seconds. It doubles with each return.
    #[serde(alias = "parole_s")]
    pub quarantine_s: f64,
    /// Longest term of quarantine, in seconds. An entry is deleted this long after its term.
    #[serde(alias = "parole_cap_s")]
    pub quarantine_max_s: f64,
    /// A node or link that is measured better than at its removal by this factor leaves quarantine
    /// early.
    pub better_factor: f64,
    /// Maximum factor between a learned coefficient and its initial value, either way.
    pub weight_bound: f64,
    /// Factor of one change of a coefficient.
    pub weight_step: f64,
    /// Periods for which a request may stay unmet before it is withdrawn. The next decision makes a
    /// new one from current knowledge.
    pub request_patience: u32,
    /// Settled periods over which a prediction is compared with the observation.
    pub check_periods: u32,
    /// Periods after which an unsettled prediction is dropped without a judgement.
    pub check_patience: u32,
    /// A speed is implausible at this multiple of the node's own past speed or of the other nodes'
    /// speed.
    #[serde(alias = "nonsense_factor")]
    pub implausible_factor: f64,
}

impl Default for AdaptationSettings {
    fn default() -> Self {
        Self {
            e_min: 0.3,
            e_max: 0.5,
            weights: Weights::default(),
            cluster_threshold: 0.25,
            cluster_exceptional: 1.5,
            node_threshold: 0.2,
            slow_below: 0.5,
            period_s: 10.0,
            growth_max: 2.0,
            shrink_min: 0.5,
            bad_periods: 2,
            cool_down: 2,
            grace: 2,
            stale: 3,
            settle_s: 20.0,
            doubt_s: 20.0,
            speed_age_s: 60.0,
            near_end: 2,
            named: 16,
            refill: true,
            migrate: true,
            migrate_factor: 1.5,
            move_cost_s: 10.0,
            migrate_margin: 2.0,
            quarantine_s: 300.0,
            quarantine_max_s: 3600.0,
            better_factor: 1.5,
            weight_bound: 4.0,
            weight_step: 1.25,
            request_patience: 6,
            check_periods: 2,
            check_patience: 10,
            implausible_factor: 100.0,
        }
    }
}

/// Facts of a job and its grid that settings are validated against.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobBounds {
    /// Minimum processors of the job.
    pub min_processors: Processors,
    /// Maximum processors of the job; absent: no limit.
    pub max_processors: Option<Processors>,
    /// Processors of the grid, where known.
    pub existing_processors: Option<Processors>,
    /// Duration of one benchmark, in seconds, where the application has one.
    pub benchmark_s: Option<f64>,
}

/// A contradiction in the settings, with the correction to make.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Contradiction {
    /// A number is out of its range.
    #[error("{name} is {value}: it must be {must}")]
    Range {
        /// Name of the setting.
        name: &'static str,
        /// Value of the setting.
        value: f64,
        /// Requirement on the value.
        must: &'static str,
    },
    /// The band is empty.
    #[error("e_min ({e_min}) must be below e_max ({e_max}): lower the one or raise the other")]
    Band {
        /// Lower end of the band.
        e_min: f64,
        /// Upper end of the band.
        e_max: f64,
    },
    /// A benchmark does not fit into a period.
    #[error(
        "the period ({period_s} s) is not longer than a benchmark ({benchmark_s} s): lengthen it"
    )]
    Benchmark {
        /// Length of the period, in seconds.
        period_s: f64,
        /// Duration of the benchmark, in seconds.
        benchmark_s: f64,
    },
    /// The job's bounds exclude each other.
    #[error("the job's minimum ({min}) is above its maximum ({max})")]
    Bounds {
        /// Minimum processors of the job.
        min: Processors,
        /// Maximum processors of the job.
        max: Processors,
    },
    /// The grid has fewer processors than the job's minimum.
    #[error("the job's minimum ({min}) is above what the grid has ({existing})")]
    Grid {
        /// Minimum processors of the job.
        min: Processors,
        /// Processors of the grid.
        existing: Processors,
    },
    /// A prediction would be dropped before it can be judged.
    #[error("check_patience ({patience}) must be above check_periods ({periods})")]
    Patience {
        /// Periods until a prediction is dropped.
        patience: u32,
        /// Periods that a judgement needs.
        periods: u32,
    },
    /// The longest term of quarantine is shorter than the first.
    #[error("quarantine_max_s ({cap_s} s) must not be below quarantine_s ({first_s} s)")]
    Parole {
        /// First term, in seconds.
        first_s: f64,
        /// Longest term, in seconds.
        cap_s: f64,
    },
}

/// All contradictions of some settings.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub struct Contradictions(pub Vec<Contradiction>);

impl fmt::Display for Contradictions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, one) in self.0.iter().enumerate() {
            write!(f, "{}{one}", if i > 0 { "\n" } else { "" })?;
        }
        Ok(())
    }
}

impl From<&AdaptationSection> for AdaptationSettings {
    /// Leaves the period at its default: it has its own section. Names every field, so that the
    /// compiler reports a missing one.
    fn from(section: &AdaptationSection) -> Self {
        let WeightsSection { alpha, beta, gamma } = section.weights;
        Self {
            e_min: section.e_min,
            e_max: section.e_max,
            weights: Weights { alpha, beta, gamma },
            cluster_threshold: section.cluster_threshold,
            cluster_exceptional: section.cluster_exceptional,
            node_threshold: section.node_threshold,
            slow_below: section.slow_below,
            period_s: Self::default().period_s,
            growth_max: section.growth_max,
            shrink_min: section.shrink_min,
            bad_periods: section.bad_periods.get(),
            cool_down: section.cool_down.get(),
            grace: section.grace.get(),
            stale: section.stale.get(),
            settle_s: section.settle_s,
            doubt_s: section.doubt_s,
            speed_age_s: section.speed_age_s,
            near_end: section.near_end.get(),
            named: section.named.get(),
            refill: section.refill,
            migrate: section.migrate,
            migrate_factor: section.migrate_factor,
            move_cost_s: section.move_cost_s,
            migrate_margin: section.migrate_margin,
            quarantine_s: section.quarantine_s,
            quarantine_max_s: section.quarantine_max_s,
            better_factor: section.better_factor,
            weight_bound: section.weight_bound,
            weight_step: section.weight_step,
            request_patience: section.request_patience.get(),
            check_periods: section.check_periods.get(),
            check_patience: section.check_patience.get(),
            implausible_factor: section.implausible_factor,
        }
    }
}

impl AdaptationSettings {
    /// Limits a wait of `periods` to the number of periods that `settle_s` takes.
    pub fn settling(&self, periods: u32) -> u32 {
        // The cast saturates; `validate` refuses NaN.
        periods.min((self.settle_s / self.period_s).ceil() as u32)
    }

    /// Returns the grace in periods. Where a period is longer than `settle_s`, it is 0: a node's
    /// first moments do not affect the period.
    pub fn grace(&self) -> u32 {
        self.grace.min((self.settle_s / self.period_s) as u32)
    }

    /// The greatest age of a measured speed; zero: no limit.
    pub fn speed_max_age(&self) -> Duration {
        // The settings of a job come over the network.
        Duration::try_from_secs_f64(self.speed_age_s).unwrap_or(Duration::ZERO)
    }

    /// The middle of the band, at which a change of size aims.
    pub fn target(&self) -> f64 {
        f64::midpoint(self.e_min, self.e_max)
    }

    /// Checks the settings for contradictions, in themselves and with the job.
    ///
    /// # Errors
    /// All contradictions at once.
    pub fn validate(&self, job: &JobBounds) -> Result<(), Contradictions> {
        let mut found = Vec::new();
        let mut range = |name, value: f64, ok: bool, must| {
            if !(value.is_finite() && ok) {
                found.push(Contradiction::Range { name, value, must });
            }
        };
        let share = |x: f64| (0.0..=1.0).contains(&x);
        range("e_min", self.e_min, self.e_min > 0.0 && self.e_min <= 1.0, "above 0 and at most 1");
        range("e_max", self.e_max, self.e_max > 0.0 && self.e_max <= 1.0, "above 0 and at most 1");
        let Weights { alpha, beta, gamma } = self.weights;
        range("weights.alpha", alpha, alpha >= 0.0, "0 or more");
        range("weights.beta", beta, beta >= 0.0, "0 or more");
        range("weights.gamma", gamma, gamma >= 0.0, "0 or more");
        let threshold = self.cluster_threshold;
        range("cluster_threshold", threshold, share(threshold), "from 0 to 1");
        let exceptional = self.cluster_exceptional;
        range("cluster_exceptional", exceptional, exceptional >= 0.0, "0 or more");
        range("node_threshold", self.node_threshold, share(self.node_threshold), "from 0 to 1");
        range("slow_below", self.slow_below, share(self.slow_below), "from 0 to 1");
        range("period_s", self.period_s, self.period_s > 0.0, "above 0");
        range("growth_max", self.growth_max, self.growth_max > 1.0, "above 1");
        let shrink = self.shrink_min;
        range("shrink_min", shrink, shrink > 0.0 && shrink < 1.0, "between 0 and 1");
        range("bad_periods", self.bad_periods.into(), self.bad_periods >= 1, "at least 1");
        range("named", self.named.into(), (1..=1024).contains(&self.named), "from 1 to 1024");
        range("migrate_factor", self.migrate_factor, self.migrate_factor >= 1.0, "at least 1");
        range("move_cost_s", self.move_cost_s, self.move_cost_s >= 0.0, "0 or more");
        range("migrate_margin", self.migrate_margin, self.migrate_margin >= 1.0, "at least 1");
        range("quarantine_s", self.quarantine_s, self.quarantine_s >= 0.0, "0 or more");
        range("quarantine_max_s", self.quarantine_max_s, self.quarantine_max_s >= 0.0, "0 or more");
        range("better_factor", self.better_factor, self.better_factor >= 1.0, "at least 1");
        range("weight_bound", self.weight_bound, self.weight_bound >= 1.0, "at least 1");
        range("settle_s", self.settle_s, self.settle_s >= 0.0, "0 or more");
        range("doubt_s", self.doubt_s, self.doubt_s >= 0.0, "0 or more");
        let age = self.speed_age_s;
        range("speed_age_s", age, (0.0..=1e6).contains(&age), "from 0 to 1000000");
        range("weight_step", self.weight_step, self.weight_step >= 1.0, "at least 1");
        let patience = self.request_patience;
        range("request_patience", patience.into(), patience >= 1, "at least 1");
        range("check_periods", self.check_periods.into(), self.check_periods >= 1, "at least 1");
        range(
            "implausible_factor",
            self.implausible_factor,
            self.implausible_factor > 1.0,
            "above 1",
        );
        if self.e_min >= self.e_max {
            found.push(Contradiction::Band { e_min: self.e_min, e_max: self.e_max });
        }
        if self.check_patience <= self.check_periods {
            found.push(Contradiction::Patience {
                patience: self.check_patience,
                periods: self.check_periods,
            });
        }
        if self.quarantine_max_s < self.quarantine_s {
            let (first_s, cap_s) = (self.quarantine_s, self.quarantine_max_s);
            found.push(Contradiction::Parole { first_s, cap_s });
        }
        match job.benchmark_s {
            Some(s) if !(s.is_finite() && s >= 0.0) => found.push(Contradiction::Range {
                name: "benchmark_s",
                value: s,
                must: "0 or more",
            }),
            Some(benchmark_s) if benchmark_s >= self.period_s => {
                found.push(Contradiction::Benchmark { period_s: self.period_s, benchmark_s });
            }
            _ => {}
        }
        let min = job.min_processors;
        if let Some(max) = job.max_processors.filter(|&max| max < min.max(Processors::ONE)) {
            found.push(Contradiction::Bounds { min, max });
        }
        if let Some(existing) = job.existing_processors.filter(|&existing| existing < min) {
            found.push(Contradiction::Grid { min, existing });
        }
        if found.is_empty() { Ok(()) } else { Err(Contradictions(found)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_the_papers_and_fit() {
        let settings = AdaptationSettings::default();
        assert_eq!(settings.validate(&JobBounds::default()), Ok(()));
        assert_eq!((settings.e_min, settings.e_max, settings.cluster_threshold), (0.3, 0.5, 0.25));
        let Weights { alpha, beta, gamma } = settings.weights;
        assert_eq!((alpha, beta, gamma), (1.0, 100.0, 10.0));
        assert_eq!(settings.target(), 0.4);
    }

    #[test]
    fn all_contradictions_are_reported_at_once() {
        let settings = AdaptationSettings {
            e_min: 0.6,
            e_max: 0.5,
            period_s: 2.0,
            shrink_min: 1.5,
            slow_below: f64::NAN,
            check_patience: 1,
            quarantine_max_s: 1.0,
            ..AdaptationSettings::default()
        };
        let job = JobBounds {
            min_processors: 8.into(),
            max_processors: Some(4.into()),
            existing_processors: Some(6.into()),
            benchmark_s: Some(3.0),
        };
        let contradictions = settings.validate(&job).unwrap_err();
        let text = contradictions.to_string();
        for part in [
            "slow_below is NaN",
            "shrink_min is 1.5: it must be between 0 and 1",
            "e_min (0.6) must be below e_max (0.5)",
            "the period (2 s) is not longer than a benchmark (3 s)",
            "minimum (8 processors) is above its maximum (4 processors)",
            "minimum (8 processors) is above what the grid has (6 processors)",
            "check_patience (1) must be above check_periods (2)",
            "quarantine_max_s (1 s) must not be below quarantine_s (300 s)",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        assert_eq!(contradictions.0.len(), 8);
    }

    #[test]
    fn a_maximum_of_zero_is_refused() {
        let job = JobBounds { max_processors: Some(Processors::ZERO), ..JobBounds::default() };
        assert!(AdaptationSettings::default().validate(&job).is_err());
    }
}
