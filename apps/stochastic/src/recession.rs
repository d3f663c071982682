//! The recession test: whether costs fall without end in some direction of first-stage decisions.
//!
//! A program with a feasible decision of finite cost is unbounded exactly if its recession program
//! has a negative optimum: the same program with every finite bound and right-hand side replaced by
//! zero, and the direction kept in the unit box. Where only right-hand sides are random, all
//! scenarios have the same recession program, and one of them stands for all.
//!
//! Source: Van Slyke and Wets, L-shaped linear programs with applications to optimal control and
//! stochastic programming (SIAM Journal on Applied Mathematics 1969).

use crate::extensive::{extensive_form, scenarios};
use crate::lp::simplex::Pricing;
use crate::lp::{Simplex, Status};
use crate::model::{RandomElement, Stage, TwoStage};
use crate::recourse::{Recourse, RecourseError, RootChoice};
use crate::sample::Sampler;
use crate::trust_region::{MethodEnd, MethodStep, RegionError, TrustRegion, TrustRegionSettings};

/// A slope below this is rounding.
const SLOPE_MIN: f64 = 1e-7;
/// The most scenarios whose recession program is solved as one linear program.
const WHOLE_MAX: u64 = 50;

/// Why the test cannot tell.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RecessionError {
    /// The first stage of the recession program.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// Its second stage.
    #[error(transparent)]
    Recourse(#[from] RecourseError),
}

/// Whether all scenarios have the same recession program.
pub fn is_certain(model: &TwoStage) -> bool {
    model.places().all(|place| matches!(place, RandomElement::Rhs(_)))
}

/// A direction of first-stage decisions along which the expected cost over a sampler's scenarios
/// falls without end; none if there is none. Expects a program in scaled units.
///
/// # Errors
/// The recession program cannot be solved.
pub fn falling_direction(
    model: &TwoStage,
    sampler: &Sampler,
) -> Result<Option<Vec<f64>>, RecessionError> {
    let program = recession_program(model);
    let n = program.first.cost.len();
    let certain = is_certain(model);
    let (cost, x) = if certain || sampler.count() <= WHOLE_MAX {
        let problem = if certain {
            extensive_form(&program, [(1.0, Vec::new())])
        } else {
            extensive_form(&program, scenarios(&program, sampler))
        };
        let mut simplex = Simplex::new(problem, Pricing::Steepest);
        match simplex.solve() {
            Status::Optimal => {
                let mut x = vec![0.0; simplex.columns()];
                simplex.values(&mut x);
                (simplex.objective(), x)
            }
            Status::Unbounded => (f64::NEG_INFINITY, simplex.direction().to_vec()),
            _ => return Err(RegionError::Unsolved.into()),
        }
    } else {
        by_decomposition(program, sampler)?
    };
    Ok((cost < -SLOPE_MIN).then(|| x[..n].to_vec()))
}

fn by_decomposition(
    program: TwoStage,
    sampler: &Sampler,
) -> Result<(f64, Vec<f64>), RecessionError> {
    let tasks = sampler.count().min(100);
    let settings =
        TrustRegionSettings { epsilon: 0.1 * SLOPE_MIN, ..TrustRegionSettings::default() };
    let start = vec![0.0; program.first.cost.len()];
    let first = program.first.clone();
    let mut recourse = Recourse::new(program, RootChoice::Slack)?;
    let mut region = TrustRegion::new(first, 0.0, tasks as usize, &start, settings).known_bounded();
    let mut steps = vec![region.begin()?];
    while let Some(MethodStep::Evaluate { iterate, x }) = steps.pop() {
        recourse.at(&x);
        for task in 0..tasks {
            let share = |task: u64| task * sampler.count() / tasks;
            let evaluation = recourse.evaluate(sampler, share(task)..share(task + 1))?;
            steps = region.take(iterate, task as u32, evaluation)?;
        }
        // Any negative cost decides: it can be scaled up.
        if let Some(best) = region.incumbent().filter(|best| best.cost < -SLOPE_MIN) {
            return Ok((best.cost, best.x.clone()));
        }
    }
    match (region.end(), region.incumbent()) {
        (Some(MethodEnd::Optimal), Some(best)) => Ok((best.cost, best.x.clone())),
        (Some(MethodEnd::Unbounded(_)), Some(best)) => Ok((f64::NEG_INFINITY, best.x.clone())),
        _ => Err(RegionError::Unsolved.into()),
    }
}

/// The recession program of a model, with the same scenarios.
fn recession_program(model: &TwoStage) -> TwoStage {
    let mut program = model.clone();
    program.offset = 0.0;
    for stage in [&mut program.first, &mut program.second] {
        homogenise(stage);
    }
    let first = &mut program.first;
    for bound in first.lower.iter_mut().chain(&mut first.upper) {
        *bound = bound.clamp(-1.0, 1.0);
    }
    for block in &mut program.random {
        for outcome in &mut block.outcomes {
            for (place, value) in block.places.iter().zip(&mut outcome.values) {
                if matches!(place, RandomElement::Rhs(_)) {
                    *value = 0.0;
                }
            }
        }
    }
    program
}

/// Replaces all finite bounds and right-hand sides by zero.
fn homogenise(stage: &mut Stage) {
    stage.rhs.fill(0.0);
    let bounds = stage.lower.iter_mut().chain(&mut stage.upper);
    for bound in bounds.chain(&mut stage.below).chain(&mut stage.above) {
        if bound.is_finite() {
            *bound = 0.0;
        }
    }
}
