//! What the policy can be told, and which of it contradicts itself. Knows no run.

use std::fmt;

use serde::{Deserialize, Serialize};
use springtide_runtime::config::{AdaptationSection, WeightsSection};

/// Coefficients of the badness formula: `alpha / speed + beta * inter-cluster overhead + gamma * in the worst cluster`.
///
/// Source: *Self-adaptive applications on the grid*, 3.3. They are learned within bounds during a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Weights {
    /// Of 1 / relative speed.
    pub alpha: f64,
    /// Of the inter-cluster overhead (a fraction of the period).
    pub beta: f64,
    /// Of being in the worst cluster.
    pub gamma: f64,
}

impl Default for Weights {
    fn default() -> Self {
        Self { alpha: 1.0, beta: 100.0, gamma: 10.0 }
    }
}

/// Everything the policy can be told. The same for the whole run, and logged with its decisions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// Below this weighted average efficiency nodes are removed. Paper: 0.3.
    pub e_min: f64,
    /// Above it nodes are added. Paper: 0.5 (Eager et al.: beyond it more processors bring little).
    pub e_max: f64,
    /// The badness formula's first coefficients.
    pub weights: Weights,
    /// Mean inter-cluster overhead from which a cluster's link is suspected. Paper: 0.25.
    pub cluster_threshold: f64,
    /// By how much a suspected cluster's overhead must exceed the others' before its link is blamed without a
    /// measurement of it. 0: blame it at once, as the paper does.
    pub cluster_exceptional: f64,
    /// Inter-cluster overhead from which a single node is bad. Paper: "above 0.2 indicates bandwidth problems".
    pub node_threshold: f64,
    /// A node is slow if it is slower than this share of the job's mean speed, its error estimate in its favour.
    pub slow_below: f64,
    /// Length of a statistics period, in seconds.
    pub period_s: f64,
    /// Most nodes after one decision, as a multiple of those before.
    pub most_growth: f64,
    /// Fewest nodes after one decision, as a share of those before.
    pub most_shrink: f64,
    /// So many periods below `e_min` in a row before a node is removed.
    pub bad_periods: u32,
    /// Periods after an action without another.
    pub cool_down: u32,
    /// Periods after its joining in which a node is not judged.
    pub grace: u32,
    /// Periods for which a last report stands in for a missing one.
    pub stale: u32,
    /// So many seconds are enough for things to settle: of `cool_down`, `check_periods`, `grace` and `near_end` no more
    /// periods are waited for than these take.
    pub settle_s: f64,
    /// No change of size if the job is estimated to end within so many periods.
    pub near_end: u32,
    /// Workers that a cluster names as its worst.
    pub named: u32,
    /// Whether capacity lost to a removal for cause or a crash is replaced while efficiency is above `e_min`. The
    /// paper's text does not; its scenarios 2, 3 and 5 do.
    pub refill: bool,
    /// Whether the job moves to better nodes while efficiency is within the band.
    pub migrate: bool,
    /// By how much a free node must be faster than the one it replaces.
    pub migrate_factor: f64,
    /// What moving to a node costs, in seconds of that node.
    pub move_cost_s: f64,
    /// By how much the gain must exceed the cost.
    pub migrate_margin: f64,
    /// First term on the parole list, in seconds. It doubles with each return to the list.
    pub parole_s: f64,
    /// Longest term, in seconds. A clean record of this length clears the entry.
    pub parole_cap_s: f64,
    /// Measured better by this factor than at its removal, a node or link is tried again before its term is over.
    pub better_factor: f64,
    /// A coefficient stays within this factor of its first value.
    pub weight_bound: f64,
    /// By which a coefficient changes at once.
    pub weight_step: f64,
    /// Periods for which a request may stay unmet before it is withdrawn and made anew from what is then known.
    pub request_patience: u32,
    /// Settled periods over which a prediction is compared with what came.
    pub check_periods: u32,
    /// Periods after which a prediction that never settled is dropped unjudged.
    pub check_patience: u32,
    /// A speed so many times what it was, or what others' is, is nonsense.
    pub nonsense_factor: f64,
}

impl Default for Settings {
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
            most_growth: 2.0,
            most_shrink: 0.5,
            bad_periods: 2,
            cool_down: 2,
            grace: 2,
            stale: 3,
            settle_s: 20.0,
            near_end: 2,
            named: 16,
            refill: true,
            migrate: true,
            migrate_factor: 1.5,
            move_cost_s: 10.0,
            migrate_margin: 2.0,
            parole_s: 300.0,
            parole_cap_s: 3600.0,
            better_factor: 1.5,
            weight_bound: 4.0,
            weight_step: 1.25,
            request_patience: 6,
            check_periods: 2,
            check_patience: 10,
            nonsense_factor: 100.0,
        }
    }
}

/// What the settings of a job must fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Frame {
    /// Fewest nodes the job may have.
    pub min_nodes: u32,
    /// Most nodes it may have; absent: no limit.
    pub max_nodes: Option<u32>,
    /// Nodes the grid has, where known.
    pub existing_nodes: Option<u32>,
    /// How long one benchmark takes, in seconds, where the application has one.
    pub benchmark_s: Option<f64>,
}

/// One thing that cannot be: says what, and what to change.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Contradiction {
    /// A number out of its range.
    #[error("{name} is {value}: it must be {must}")]
    Range {
        /// The setting.
        name: &'static str,
        /// What it is.
        value: f64,
        /// What it must be.
        must: &'static str,
    },
    /// The band is empty.
    #[error("e_min ({e_min}) must be below e_max ({e_max}): lower the one or raise the other")]
    Band {
        /// Lower end.
        e_min: f64,
        /// Upper end.
        e_max: f64,
    },
    /// A benchmark does not fit into a period.
    #[error(
        "the period ({period_s} s) is not longer than a benchmark ({benchmark_s} s): lengthen it"
    )]
    Benchmark {
        /// The period.
        period_s: f64,
        /// The benchmark.
        benchmark_s: f64,
    },
    /// The job's bounds exclude each other.
    #[error("the job's minimum ({min} nodes) is above its maximum ({max})")]
    Bounds {
        /// Fewest.
        min: u32,
        /// Most.
        max: u32,
    },
    /// The grid is too small.
    #[error("the job's minimum ({min} nodes) is above what the grid has ({existing})")]
    Grid {
        /// Fewest.
        min: u32,
        /// What there is.
        existing: u32,
    },
    /// Predictions would be dropped before they can be judged.
    #[error("check_patience ({patience}) must be above check_periods ({periods})")]
    Patience {
        /// Until it is dropped.
        patience: u32,
        /// Needed to judge.
        periods: u32,
    },
    /// The longest term is shorter than the first.
    #[error("parole_cap_s ({cap_s} s) must not be below parole_s ({first_s} s)")]
    Parole {
        /// First term.
        first_s: f64,
        /// Longest.
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

impl From<&AdaptationSection> for Settings {
    /// But for the period, which stands elsewhere. Every field is named, so that none is forgotten.
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
            most_growth: section.most_growth,
            most_shrink: section.most_shrink,
            bad_periods: section.bad_periods.get(),
            cool_down: section.cool_down.get(),
            grace: section.grace.get(),
            stale: section.stale.get(),
            settle_s: section.settle_s,
            near_end: section.near_end.get(),
            named: section.named.get(),
            refill: section.refill,
            migrate: section.migrate,
            migrate_factor: section.migrate_factor,
            move_cost_s: section.move_cost_s,
            migrate_margin: section.migrate_margin,
            parole_s: section.parole_s,
            parole_cap_s: section.parole_cap_s,
            better_factor: section.better_factor,
            weight_bound: section.weight_bound,
            weight_step: section.weight_step,
            request_patience: section.request_patience.get(),
            check_periods: section.check_periods.get(),
            check_patience: section.check_patience.get(),
            nonsense_factor: section.nonsense_factor,
        }
    }
}

impl Settings {
    /// Of so many periods of waiting for an effect, as many as are needed: where a period is long, one is enough.
    pub fn settling(&self, periods: u32) -> u32 {
        // Saturates; what is no number was refused.
        periods.min((self.settle_s / self.period_s).ceil() as u32)
    }

    /// The periods of grace: where a period is long, its first moments make no difference to it, and there are none.
    pub fn grace(&self) -> u32 {
        self.grace.min((self.settle_s / self.period_s) as u32)
    }

    /// The middle of the band: what a change of size aims at.
    pub fn target(&self) -> f64 {
        f64::midpoint(self.e_min, self.e_max)
    }

    /// Whether they make sense together and for this job.
    ///
    /// # Errors
    /// All contradictions at once.
    pub fn validate(&self, job: &Frame) -> Result<(), Contradictions> {
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
        range("most_growth", self.most_growth, self.most_growth > 1.0, "above 1");
        let shrink = self.most_shrink;
        range("most_shrink", shrink, shrink > 0.0 && shrink < 1.0, "between 0 and 1");
        range("bad_periods", self.bad_periods.into(), self.bad_periods >= 1, "at least 1");
        range("named", self.named.into(), (1..=1024).contains(&self.named), "from 1 to 1024");
        range("migrate_factor", self.migrate_factor, self.migrate_factor >= 1.0, "at least 1");
        range("move_cost_s", self.move_cost_s, self.move_cost_s >= 0.0, "0 or more");
        range("migrate_margin", self.migrate_margin, self.migrate_margin >= 1.0, "at least 1");
        range("parole_s", self.parole_s, self.parole_s >= 0.0, "0 or more");
        range("parole_cap_s", self.parole_cap_s, self.parole_cap_s >= 0.0, "0 or more");
        range("better_factor", self.better_factor, self.better_factor >= 1.0, "at least 1");
        range("weight_bound", self.weight_bound, self.weight_bound >= 1.0, "at least 1");
        range("settle_s", self.settle_s, self.settle_s >= 0.0, "0 or more");
        range("weight_step", self.weight_step, self.weight_step >= 1.0, "at least 1");
        let patience = self.request_patience;
        range("request_patience", patience.into(), patience >= 1, "at least 1");
        range("check_periods", self.check_periods.into(), self.check_periods >= 1, "at least 1");
        range("nonsense_factor", self.nonsense_factor, self.nonsense_factor > 1.0, "above 1");
        if self.e_min >= self.e_max {
            found.push(Contradiction::Band { e_min: self.e_min, e_max: self.e_max });
        }
        if self.check_patience <= self.check_periods {
            found.push(Contradiction::Patience {
                patience: self.check_patience,
                periods: self.check_periods,
            });
        }
        if self.parole_cap_s < self.parole_s {
            let (first_s, cap_s) = (self.parole_s, self.parole_cap_s);
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
        if let Some(max) = job.max_nodes.filter(|&max| max < job.min_nodes.max(1)) {
            found.push(Contradiction::Bounds { min: job.min_nodes, max });
        }
        if let Some(existing) = job.existing_nodes.filter(|&existing| existing < job.min_nodes) {
            found.push(Contradiction::Grid { min: job.min_nodes, existing });
        }
        if found.is_empty() { Ok(()) } else { Err(Contradictions(found)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_the_papers_and_fit() {
        let settings = Settings::default();
        assert_eq!(settings.validate(&Frame::default()), Ok(()));
        assert_eq!((settings.e_min, settings.e_max, settings.cluster_threshold), (0.3, 0.5, 0.25));
        let Weights { alpha, beta, gamma } = settings.weights;
        assert_eq!((alpha, beta, gamma), (1.0, 100.0, 10.0));
        assert_eq!(settings.target(), 0.4);
    }

    #[test]
    fn all_contradictions_are_told_at_once() {
        let settings = Settings {
            e_min: 0.6,
            e_max: 0.5,
            period_s: 2.0,
            most_shrink: 1.5,
            slow_below: f64::NAN,
            check_patience: 1,
            parole_cap_s: 1.0,
            ..Settings::default()
        };
        let job = Frame {
            min_nodes: 8,
            max_nodes: Some(4),
            existing_nodes: Some(6),
            benchmark_s: Some(3.0),
        };
        let told = settings.validate(&job).unwrap_err();
        let text = told.to_string();
        for part in [
            "slow_below is NaN",
            "most_shrink is 1.5: it must be between 0 and 1",
            "e_min (0.6) must be below e_max (0.5)",
            "the period (2 s) is not longer than a benchmark (3 s)",
            "minimum (8 nodes) is above its maximum (4)",
            "minimum (8 nodes) is above what the grid has (6)",
            "check_patience (1) must be above check_periods (2)",
            "parole_cap_s (1 s) must not be below parole_s (300 s)",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        assert_eq!(told.0.len(), 8);
    }

    #[test]
    fn a_maximum_of_nothing_is_refused() {
        let job = Frame { max_nodes: Some(0), ..Frame::default() };
        assert!(Settings::default().validate(&job).is_err());
    }
}
