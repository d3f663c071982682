//! The controller of a run: the number of tasks, the groups of the original code, the nodes that
//! pay, and each iterate's forecast next to its measured time.
//!
//! Pure functions from what is known to a decision with its reason. The distribution of work is the
//! schedule's ([`springtide_runtime::mw`]).
//!
//! Source: Buaklee, Tracy, Vernon, Wright: Near-optimal adaptive control of a large grid
//! application (ICS 2002). The total time is n (t_M +
//! t_W): n iterates, t_M seconds of the master for each, t_W seconds until the last worker has
//! finished.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The goal of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Objective {
    /// The shortest time.
    Time,
    /// The least product of time to the power of 1 - W and processor-hours to the power of W.
    Balanced(f64),
}

impl FromStr for Objective {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let weight = text.strip_prefix("balanced:").and_then(|weight| weight.parse::<f64>().ok());
        match (text, weight) {
            ("time", _) => Ok(Self::Time),
            (_, Some(weight)) if (0.0..=1.0).contains(&weight) => Ok(Self::Balanced(weight)),
            _ => {
                Err("give time, or balanced:W with W from 0 (time) to 1 (processor-hours)"
                    .to_owned())
            }
        }
    }
}

// --- the number of tasks ---

/// What determines the time of a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Workload {
    /// Scenarios of the sample.
    pub scenarios: u64,
    /// Columns of the first stage.
    pub columns: usize,
    /// The mean [effort](crate::lp::Simplex::effort) of a scenario.
    pub effort: f64,
    /// Workers at the start of the sample.
    pub workers: usize,
    /// Tasks and iterates of a smaller sample that was solved before.
    pub solved: Option<(u32, u32)>,
}

/// A number of tasks, with the forecast that it was chosen by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TaskCount {
    /// The number of tasks.
    pub tasks: u32,
    /// The forecast time of the sample, in seconds.
    pub seconds: f64,
    /// The forecast number of iterates.
    pub iterates: f64,
}

impl fmt::Display for TaskCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tasks, seconds, iterates } = self;
        write!(
            f,
            "{tasks} tasks: about {iterates:.0} iterates in {seconds:.1} s, the least of all \
             numbers considered"
        )
    }
}

/// The numbers of tasks that are considered, in addition to one for each scenario of a
/// small sample.
const TASKS: [u32; 6] = [25, 50, 100, 200, 400, 800];
/// The fewest scenarios of a task, of more than [`TASKS_SMALL`] tasks: with fewer the master's time
/// grows faster than its model.
const SCENARIOS_LEAST: u64 = 5;
/// The most tasks that may have fewer scenarios.
const TASKS_SMALL: u64 = 100;
/// Seconds of a unit of effort, as measured on one machine.
const SECONDS_OF_EFFORT: f64 = 3e-9;
/// Seconds of the master for an iterate of 100 tasks and 100 columns.
const MASTER_SECONDS: f64 = 0.025;
/// The iterates of a sample with a hundred tasks, before one was solved.
const ITERATES: f64 = 45.0;

/// The number of iterates with this many tasks, relative to one task. It falls up to 400 tasks, as
/// measured by the paper and here.
fn relative_iterates(tasks: f64) -> f64 {
    let low = tasks.min(200.0).powf(-0.45);
    let high = (tasks.clamp(200.0, 400.0) / 200.0).powf(-0.3);
    low * high
}

/// The number of tasks with the least forecast time of a sample. The forecast uses sizes and counts
/// but no clock, so that it is the same on all grids of one size.
pub fn choose_tasks(workload: &Workload) -> TaskCount {
    let Workload { scenarios, columns, effort, workers, solved } = *workload;
    let (known, count) = solved
        .map_or((100.0, ITERATES), |(tasks, iterates)| (f64::from(tasks), f64::from(iterates)));
    let evaluation = scenarios as f64 * effort * SECONDS_OF_EFFORT / workers.max(1) as f64;
    let of = |tasks: u32| {
        let many = f64::from(tasks);
        let iterates = (count * relative_iterates(many) / relative_iterates(known)).max(1.0);
        // The master's rows and pivots grow with the number of tasks.
        let master = MASTER_SECONDS * (many / 100.0).sqrt() * columns as f64 / 100.0;
        TaskCount { tasks, seconds: iterates * (master + evaluation), iterates }
    };
    let most = (scenarios / SCENARIOS_LEAST).max(scenarios.min(TASKS_SMALL));
    let most = u32::try_from(most).unwrap_or(u32::MAX).max(1);
    let each = (u64::from(most) <= TASKS_SMALL).then_some(most);
    let fits = TASKS.into_iter().filter(|tasks| *tasks <= most).chain(each).map(of);
    let best = fits.min_by(|a, b| a.seconds.total_cmp(&b.seconds));
    best.unwrap_or_else(|| of(most))
}

// --- the rules of thumb ---

/// Parameters by the original code's rules of thumb.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RulesOfThumb {
    /// The number of tasks.
    pub tasks: u32,
    /// Iterates under evaluation at once.
    pub basket: usize,
    /// Groups of tasks, the units of distribution.
    pub groups: u32,
}

/// The original code's rules of thumb for a number of workers.
pub fn rules_of_thumb(workers: usize) -> RulesOfThumb {
    let many = workers > 50;
    RulesOfThumb {
        tasks: 100,
        basket: if many { 6 } else { 3 },
        groups: if many { 50 } else { 25 },
    }
}

/// The number of iterates with a basket of this size, relative to a basket of one. Twice the basket
/// needs nearly twice the iterates.
pub fn basket_factor(basket: usize) -> f64 {
    (basket as f64).powf(0.93)
}

// --- nodes that pay ---

/// The workers of a node together.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeSpeed<N> {
    /// The name of the node.
    pub node: N,
    /// Scenarios a second, of all its workers.
    pub speed: f64,
    /// The number of its workers.
    pub workers: usize,
}

/// A decision to release nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct ReleaseDecision<N> {
    /// The nodes to release.
    pub nodes: Vec<N>,
    /// The reason, for the user.
    pub reason: String,
}

/// The least decrease of the logarithm of the goal for which nodes are released.
const IMPROVEMENT_LEAST: f64 = 0.05;

/// The nodes that do not pay where time and processor-hours are balanced. The fastest stay, as many
/// as make the product of [`Objective::Balanced`] least. `scenarios` are those of an iterate,
/// `master_s` the master's seconds for one.
pub fn release<N: Clone + Ord + fmt::Display>(
    weight: f64,
    scenarios: u64,
    master_s: f64,
    nodes: &[NodeSpeed<N>],
) -> Option<ReleaseDecision<N>> {
    let mut order: Vec<&NodeSpeed<N>> = nodes.iter().filter(|node| node.speed > 0.0).collect();
    if order.len() < 2 || order.len() < nodes.len() {
        return None;
    }
    let rate = |node: &NodeSpeed<N>| node.speed / node.workers.max(1) as f64;
    order.sort_by(|a, b| rate(b).total_cmp(&rate(a)).then_with(|| a.node.cmp(&b.node)));
    let (mut speed, mut workers) = (0.0, 0);
    let values: Vec<(f64, f64, usize)> = order
        .iter()
        .map(|node| {
            speed += node.speed;
            workers += node.workers;
            let seconds = master_s + scenarios as f64 / speed;
            // The logarithm keeps the order of the products.
            (seconds.ln() + weight * (workers as f64).ln(), seconds, workers)
        })
        .collect();
    let (all, best) =
        (values.len() - 1, (0..values.len()).min_by(|a, b| values[*a].0.total_cmp(&values[*b].0))?);
    if best == all || values[best].0 > values[all].0 - IMPROVEMENT_LEAST {
        return None;
    }
    let nodes: Vec<N> = order[best + 1..].iter().map(|node| node.node.clone()).collect();
    let names: Vec<String> = nodes.iter().take(5).map(|node| node.to_string()).collect();
    let more =
        if nodes.len() > 5 { format!(" and {} more", nodes.len() - 5) } else { String::new() };
    let ((_, before, many), (_, after, few)) = (values[all], values[best]);
    let reason = format!(
        "releases {}{more}: an iterate of {before:.3} s by {many} workers becomes one of \
         {after:.3} s \
         by {few}, {:.3} processor-seconds become {:.3} (weight {weight})",
        names.join(", "),
        before * many as f64,
        after * few as f64,
    );
    Some(ReleaseDecision { nodes, reason })
}

// --- forecast and measurement ---

/// An iterate, or an estimate, with its forecast and its measured time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct IterateRow {
    /// The phase of the run that it belongs to.
    pub phase: u32,
    /// Its number in that phase.
    pub iterate: u32,
    /// Scenarios that were solved.
    pub scenarios: u64,
    /// Workers when it was distributed.
    pub workers: usize,
    /// Workers that got a part of it.
    pub used: usize,
    /// Forecast seconds, the master's included; none before speeds were measured.
    pub predicted_s: Option<f64>,
    /// Planned seconds of the workers alone, by their mean speeds.
    pub workers_s: Option<f64>,
    /// Measured seconds, the master's included.
    pub measured_s: f64,
    /// Seconds of the run at its end. With a basket of more than one, iterates overlap.
    pub ended_s: f64,
    /// Seconds of the master for the next decision.
    pub master_s: f64,
    /// Pivots of the master's linear program in that decision.
    pub master_pivots: u64,
    /// Forecast seconds of the workers if work were divisible at will: a lower bound.
    pub fluid_s: Option<f64>,
    /// Forecast seconds with the same number of tasks for each worker.
    pub equal_s: Option<f64>,
    /// Forecast seconds for the same progress by the rules of thumb.
    pub thumb_s: Option<f64>,
    /// The mean number of pivots of a scenario.
    pub pivots: f64,
}

impl IterateRow {
    /// The error of the forecast, relative to the measured time; positive where the forecast was
    /// too long.
    pub fn error(&self) -> Option<f64> {
        self.predicted_s.map(|predicted| predicted / self.measured_s.max(1e-9) - 1.0)
    }
}

impl fmt::Display for IterateRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |seconds: Option<f64>| {
            seconds.map_or("-".to_owned(), |seconds| format!("{seconds:.3} s"))
        };
        write!(
            f,
            "predicted {}, measured {:.3} s (master {:.3} s, {:.1} pivots a scenario), {} of {} \
             workers, at \
             least {}; equal split {}, rules of thumb {}",
            shown(self.predicted_s),
            self.measured_s,
            self.master_s,
            self.pivots,
            self.used,
            self.workers,
            shown(self.fluid_s),
            shown(self.equal_s),
            shown(self.thumb_s),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_tasks_for_longer_evaluations_and_fewer_for_many_workers() {
        let workload =
            Workload { scenarios: 10_000, columns: 89, effort: 40_000.0, workers: 8, solved: None };
        let tasks = |workload: Workload| choose_tasks(&workload).tasks;
        assert_eq!(tasks(workload), 400);
        let many = Workload { workers: 2000, ..workload };
        assert!(tasks(many) < tasks(workload), "{}", choose_tasks(&many));
        // Above a hundred tasks each has five scenarios at least.
        assert_eq!(tasks(Workload { scenarios: 1000, ..workload }), 200);
        assert_eq!(tasks(Workload { scenarios: 300, ..workload }), 100);
        assert_eq!(tasks(Workload { scenarios: 40, ..workload }), 25);
        assert_eq!(tasks(Workload { scenarios: 2, ..workload }), 2);
        let known = choose_tasks(&Workload { solved: Some((100, 20)), ..workload });
        assert!(known.iterates < 20.0, "{known}");
        assert!(known.to_string().starts_with("400 tasks: about "), "{known}");
        // The paper's Table 3: 66, 50, 38 and 26 iterates of 50, 100, 200 and 400 tasks.
        for (tasks, count) in [(50.0, 66.0), (200.0, 38.0), (400.0, 26.0)] {
            let expected = 50.0 * relative_iterates(tasks) / relative_iterates(100.0);
            assert!((expected / count - 1.0).abs() < 0.2, "{tasks}: {expected}");
        }
    }

    #[test]
    fn nodes_that_cost_more_than_they_give_are_released() {
        let node = |at: u32, speed: f64| NodeSpeed { node: format!("n{at}"), speed, workers: 1 };
        let mut nodes: Vec<_> = (0..6).map(|at| node(at, 1000.0)).collect();
        nodes.extend((6..8).map(|at| node(at, 100.0)));
        assert_eq!(release(0.0, 10_000, 0.1, &nodes), None);
        let released = release(0.5, 10_000, 0.0, &nodes).expect("two are slow");
        assert_eq!(released.nodes, ["n6", "n7"]);
        assert!(
            released.reason.starts_with("releases n6, n7: an iterate of 1.613 s by 8 workers"),
            "{}",
            released.reason
        );
        // With a master that takes as long as they do, few are enough.
        let few = release(0.9, 1000, 1.0, &nodes).expect("the master takes most of the time");
        assert!(few.nodes.len() > 5, "{}", few.reason);
        // Nothing is decided before all speeds are known.
        nodes[0].speed = 0.0;
        assert_eq!(release(0.5, 10_000, 0.0, &nodes), None);
        assert_eq!(release(1.0, 10_000, 0.0, &nodes[1..2]), None);
    }

    #[test]
    fn objectives_are_read() {
        assert_eq!("time".parse(), Ok(Objective::Time));
        assert_eq!("balanced:0.5".parse(), Ok(Objective::Balanced(0.5)));
        for wrong in ["", "balanced", "balanced:", "balanced:2", "balanced:-0.1", "balanced:nan"] {
            assert!(wrong.parse::<Objective>().is_err(), "{wrong}");
        }
        assert_eq!(rules_of_thumb(50), RulesOfThumb { tasks: 100, basket: 3, groups: 25 });
        assert_eq!(rules_of_thumb(100).basket, 6);
    }
}
