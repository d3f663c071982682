//! Queries of a solver: its progress, its answer, and the intervals of cost, optimum and gap.

use super::plan::SolvePhase;
use super::{Purpose, SampleSolution, Solver, Verdict, times};
use crate::model::TwoStage;
use crate::sample::Sampling;
use crate::solve::estimate::{Interval, Moments};
use crate::trust_region::TrustRegion;

/// The estimated cost of a decision.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The interval of its expected cost; none where that is infinite, or too few scenarios tell.
    pub interval: Option<Interval>,
    /// The number of scenarios.
    pub scenarios: u64,
    /// The scenarios without recourse.
    pub infeasible: u64,
    /// The scenarios whose cost has no lower bound.
    pub unbounded: u64,
}

impl Solver {
    /// The program, in its own units.
    pub fn model(&self) -> &TwoStage {
        &self.model
    }

    /// How the run ended; none while it runs.
    pub fn verdict(&self) -> Option<&Verdict> {
        self.state.verdict.as_ref()
    }

    /// Whether the run has ended.
    pub fn is_done(&self) -> bool {
        self.state.verdict.is_some()
    }

    /// Whether the results of a request still count.
    pub fn wants(&self, phase: u32, iterate: u32) -> bool {
        let open = |region: &TrustRegion| region.open().any(|(open, _)| open == iterate);
        phase as usize == self.state.phase
            && !self.is_done()
            && self.region.as_ref().is_none_or(open)
    }

    /// Pivots of the master's linear programs since this solver was made.
    pub fn pivots(&self) -> u64 {
        self.pivots
    }

    /// The purpose of the present phase.
    pub fn purpose(&self) -> Option<Purpose> {
        self.state
            .phases
            .get(self.state.phase)
            .map(|phase| phase.purpose)
            .filter(|_| !self.is_done())
    }

    /// The trust-region method, while a sample is being solved.
    pub fn region(&self) -> Option<&TrustRegion> {
        self.region.as_ref()
    }

    /// The samples that were solved, in order.
    pub fn solutions(&self) -> &[SampleSolution] {
        &self.state.solutions
    }

    /// The solution of the main sample, of several the last.
    pub fn main(&self) -> Option<&SampleSolution> {
        self.state.solutions.iter().rev().find(|one| one.purpose == Purpose::Main)
    }

    /// One scaled unit of cost, which gaps are relative to where costs are near zero.
    pub fn unit(&self) -> f64 {
        self.scaled.cost
    }

    /// Notes of decisions since the last call.
    pub fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.state.notes)
    }

    /// The answer as it stands, with the sample that its figures belong to. None where a proof or
    /// an estimate is the answer.
    ///
    /// After the main sample it is the solution of that sample. Before, it is the incumbent of the
    /// present sample or the solution of a smaller one, by the rule of `SampleSolution::replaces`.
    pub fn answer(&self) -> Option<SampleSolution> {
        let samples = self.state.solutions.iter();
        let mut samples =
            samples.filter(|one| matches!(one.purpose, Purpose::Warm | Purpose::Main));
        match self.state.verdict {
            Some(Verdict::Infeasible(_) | Verdict::Unbounded(_) | Verdict::Evaluated) => None,
            Some(Verdict::Optimal | Verdict::IterationLimit) => samples.next_back().cloned(),
            Some(Verdict::Unfinished) | None => {
                let present = self.present();
                let present = present.filter(|one| !matches!(one.purpose, Purpose::Replication(_)));
                samples
                    .cloned()
                    .chain(present)
                    .reduce(|answer, next| if next.replaces(&answer) { next } else { answer })
            }
        }
    }

    /// The solver's last decision.
    pub fn x(&self) -> Vec<f64> {
        times(&self.state.x, &self.scaled.first)
    }

    /// The cost of the present sample's incumbent, and the least cost that the model promises
    /// around it.
    pub fn progress(&self) -> Option<(f64, f64)> {
        let region = self.region.as_ref()?;
        let unit = self.scaled.cost;
        Some((region.incumbent()?.cost * unit, region.promised() * unit))
    }

    /// The estimated cost of the decision, over scenarios that it was not optimised for or over all
    /// that exist. Its counts of scenarios without recourse or without lower bound make the cost
    /// infinite.
    pub fn estimate(&self) -> Option<Estimate> {
        let costs = self.state.costs?;
        let phase = self.state.phases.iter().find(|phase| phase.purpose == Purpose::Estimate)?;
        let interval = match phase.sample.sampling {
            Sampling::All => costs.expectation(),
            Sampling::MonteCarlo | Sampling::LatinHypercube => costs.interval(self.plan.confidence),
        };
        let scaled = &self.scaled;
        let first = scaled.model.first.cost.iter().zip(&self.state.x).map(|(cost, x)| cost * x);
        let constant = scaled.model.offset + first.sum::<f64>();
        let own = |one: Interval| one.plus(constant).times(scaled.cost);
        let finite = costs.without == 0 && costs.unbounded == 0;
        Some(Estimate {
            interval: interval.filter(|_| finite).map(own),
            scenarios: phase.sample.scenarios,
            infeasible: costs.without,
            unbounded: costs.unbounded,
        })
    }

    /// The interval of the optimum's lower bound, from the optima of replications: their
    /// expectation is below the optimum. None where a replication has no lower bound.
    ///
    /// Source: Mak, Morton, Wood: Monte Carlo bounding techniques for determining solution quality
    /// in stochastic programs (Operations Research Letters 24, 1999).
    pub fn lower_bound(&self) -> Option<Interval> {
        if self.state.unbounded_replications > 0 {
            return None;
        }
        let mut moments = Moments::default();
        let bounds = self.replications_of_main().filter_map(SampleSolution::bound);
        bounds.for_each(|bound| moments.add(bound, 1.0));
        moments.interval(self.plan.confidence)
    }

    /// The one-sided interval, from 0, of the answer's gap to the optimum by common random numbers:
    /// in each replication the cost of the answer, less the lower bound of the same scenarios
    /// (multiple replications procedure). It is infinite if the answer has no recourse in a
    /// replication or in the estimate, or a replication has no lower bound.
    ///
    /// Source: as [`Solver::lower_bound`].
    pub fn gap(&self) -> Option<Interval> {
        let qualifies = |phase: &SolvePhase| matches!(phase.purpose, Purpose::Replication(_));
        if !self.state.phases.iter().any(qualifies) {
            return None;
        }
        let mut moments = Moments::default();
        let mut infinite =
            self.state.infeasible_replications > 0 || self.state.unbounded_replications > 0;
        infinite |= self.state.costs.is_some_and(|costs| costs.without + costs.unbounded > 0);
        for one in self.replications_of_main() {
            let gap = one.start_cost.zip(one.bound()).map(|(cost, bound)| cost - bound);
            match gap.filter(|gap| gap.is_finite()) {
                Some(gap) => moments.add(gap.max(0.0), 1.0),
                None => infinite = true,
            }
        }
        if infinite {
            let (mean, high) = (f64::INFINITY, f64::INFINITY);
            let (count, confidence) = (moments.count, self.plan.confidence);
            return Some(Interval { mean, low: 0.0, high, count, confidence });
        }
        moments.upper_limit(self.plan.confidence)
    }

    /// The wanted gap, relative to the cost of the answer.
    pub fn wanted_gap(&self) -> Option<f64> {
        self.plan.gap
    }

    pub(super) fn replications(&self) -> impl Iterator<Item = &SampleSolution> {
        let all = self.state.solutions.iter();
        all.filter(|one| matches!(one.purpose, Purpose::Replication(_)))
    }

    /// The replications of the last main sample: they have its size and follow it.
    fn replications_of_main(&self) -> impl Iterator<Item = &SampleSolution> {
        let main = self.state.solutions.iter().rposition(|one| one.purpose == Purpose::Main);
        let after = self.state.solutions[main.map_or(0, |main| main + 1)..].iter();
        after.filter(|one| matches!(one.purpose, Purpose::Replication(_)))
    }
}
