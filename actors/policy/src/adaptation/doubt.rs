//! Bounds that the efficiency may be on either side of, given its error: waits, measures, decides.
//!
//! A wrong removal costs more than a short wait. So the size stays while the interval of the
//! efficiency includes the bound. A wait that lasts ends with new measurements, and then with a
//! decision. It takes at most [`AdaptationSettings::doubt_s`](super::AdaptationSettings::doubt_s)
//! and the time of the measurements. Where a period is longer than that, a decision never waits.

use super::decision_state::DecisionState;
use super::memory::Doubt;
use super::reason::Reason;

/// Half the interval of an efficiency, in standard errors: 95 % for a normal error.
const ERRORS: f64 = 2.0;

/// Periods from the order of a measurement until a decision has its result.
const MEASURING: f64 = 3.0;

/// Whether an efficiency outside the band may be inside, and the decision waits for that.
pub(super) fn waits(turn: &mut DecisionState<'_>, efficiency: f64) -> bool {
    let (e_min, e_max) = (turn.settings.e_min, turn.settings.e_max);
    let error = ERRORS * turn.all.efficiency_error().unwrap_or(0.0);
    let includes = |bound: f64| (efficiency - bound).abs() <= error;
    if !includes(e_min) && !includes(e_max) {
        turn.memory.doubt = None;
        return false;
    }
    let bound = if efficiency < e_min { e_min } else { e_max };
    if (e_min..=e_max).contains(&efficiency) {
        return false; // no decision depends on the bound
    }
    let (now, period, limit) = (turn.memory.clock_s, turn.snapshot.period_s, turn.settings.doubt_s);
    if period > limit {
        turn.add_reason(Reason::Doubtful {
            efficiency,
            error,
            bound,
            measures: false,
            decides: true,
        });
        return false;
    }
    let mut doubt = turn.memory.doubt.unwrap_or(Doubt { since_s: now, measured_s: None });
    if doubt.measured_s.is_none() && now - doubt.since_s + MEASURING * period >= limit {
        doubt.measured_s = Some(now);
        turn.memory.measurements = turn.memory.measurements.wrapping_add(1);
    }
    turn.memory.doubt = Some(doubt);
    let settled_s = f64::from(turn.settings.settling(2).max(1)) * period;
    let has_result = doubt.measured_s.is_some_and(|at| now - at >= settled_s);
    let decides = has_result && now - doubt.since_s >= limit;
    let measures = doubt.measured_s == Some(now);
    turn.add_reason(Reason::Doubtful { efficiency, error, bound, measures, decides });
    !decides
}
