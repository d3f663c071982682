//! What governs a run: how many tasks, how work is grouped by the old rules, which nodes are worth their time; and what each iterate
//! was expected to take, beside what it took.
//!
//! Pure functions of what is known to a decision that says why. Must not know how work is given out: that is the master's schedule.
//!
//! Source: Buaklee, Tracy, Vernon, Wright: Near-optimal adaptive control of a large grid application (ICS 2002), and its corrections in
//! the project's spec. T_total = n (t_M + t_W), where t_W is when the last worker is through.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What a run is to be good at.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Objective {
    /// Its end.
    Time,
    /// Its end and what it uses: the product of time to the power of 1 - W and processor-hours to that of W is to be least.
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

// --- how many tasks ---

/// What is known before a sample is solved.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outlook {
    /// Scenarios of the sample.
    pub scenarios: u64,
    /// First-stage columns.
    pub columns: usize,
    /// Numbers that a second stage goes through: see [`Simplex::effort`](crate::lp::Simplex::effort).
    pub effort: f64,
    /// Workers that are there.
    pub workers: usize,
    /// Tasks and iterates of a smaller sample that was solved.
    pub solved: Option<(u32, u32)>,
}

/// How many tasks a sample is divided into.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tasks {
    /// So many.
    pub tasks: u32,
    /// In how many seconds the sample is expected to be solved.
    pub seconds: f64,
    /// In how many iterates.
    pub iterates: f64,
}

impl fmt::Display for Tasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tasks, seconds, iterates } = self;
        write!(
            f,
            "{tasks} tasks: about {iterates:.0} iterates, {seconds:.1} s, and more with any other number"
        )
    }
}

/// The numbers of tasks that are considered, in addition to one for each scenario of a
/// small sample.
const TASKS: [u32; 6] = [25, 50, 100, 200, 400, 800];
/// The fewest scenarios of a task, where there are more tasks than these: beyond them the master's time
/// grows faster than the model of it.
const SCENARIOS_LEAST: u64 = 5;
const TASKS_SMALL: u64 = 100;
/// Seconds that a number of effort takes, on the machine that was measured on.
const SECONDS_OF_EFFORT: f64 = 3e-9;
/// Seconds of the master for an iterate of 100 tasks and 100 columns.
const MASTER_SECONDS: f64 = 0.025;
/// A hundred tasks need so many iterates, if nothing is known.
const ITERATES: f64 = 45.0;

/// Iterates of so many tasks, over those of one: fewer the more tasks there are, up to 400. (Measured by the paper and by the spec.)
fn iterates(tasks: f64) -> f64 {
    let low = tasks.min(200.0).powf(-0.45);
    let high = (tasks.clamp(200.0, 400.0) / 200.0).powf(-0.3);
    low * high
}

/// The number of tasks with the least forecast time of a sample. It follows from sizes and counts and
/// from no clock: on grids of one size it is the same each time, and with it all iterates.
pub fn choose_tasks(outlook: &Outlook) -> Tasks {
    let Outlook { scenarios, columns, effort, workers, solved } = *outlook;
    let (known, count) = solved
        .map_or((100.0, ITERATES), |(tasks, iterates)| (f64::from(tasks), f64::from(iterates)));
    let evaluation = scenarios as f64 * effort * SECONDS_OF_EFFORT / workers.max(1) as f64;
    let of = |tasks: u32| {
        let many = f64::from(tasks);
        let iterates = (count * iterates(many) / iterates(known)).max(1.0);
        // Rows and pivots grow with the tasks, in the root.
        let master = MASTER_SECONDS * (many / 100.0).sqrt() * columns as f64 / 100.0;
        Tasks { tasks, seconds: iterates * (master + evaluation), iterates }
    };
    let most = (scenarios / SCENARIOS_LEAST).max(scenarios.min(TASKS_SMALL));
    let most = u32::try_from(most).unwrap_or(u32::MAX).max(1);
    let each = (u64::from(most) <= TASKS_SMALL).then_some(most);
    let fits = TASKS.into_iter().filter(|tasks| *tasks <= most).chain(each).map(of);
    let best = fits.min_by(|a, b| a.seconds.total_cmp(&b.seconds));
    best.unwrap_or_else(|| of(most))
}

// --- the rules that were before ---

/// How the original code grouped its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thumb {
    /// Tasks.
    pub tasks: u32,
    /// Iterates at once.
    pub basket: usize,
    /// Groups of tasks that are given out.
    pub groups: u32,
}

/// The original code's rules of thumb, for so many workers.
pub fn rules_of_thumb(workers: usize) -> Thumb {
    let many = workers > 50;
    Thumb { tasks: 100, basket: if many { 6 } else { 3 }, groups: if many { 50 } else { 25 } }
}

/// Iterates that a basket of this size needs, over those of a basket of one: nearly twice as many when it is doubled.
pub fn basket_factor(basket: usize) -> f64 {
    (basket as f64).powf(0.93)
}

// --- which nodes are worth their time ---

/// A node that workers are on.
#[derive(Clone, Debug, PartialEq)]
pub struct Hosting<N> {
    /// Which.
    pub node: N,
    /// Scenarios a second of all its workers.
    pub speed: f64,
    /// How many they are.
    pub workers: usize,
}

/// Which nodes are let go.
#[derive(Clone, Debug, PartialEq)]
pub struct Release<N> {
    /// These.
    pub nodes: Vec<N>,
    /// Why.
    pub why: String,
}

/// A set of nodes has to be better by so much before any are let go.
const WORTH: f64 = 0.05;

/// Which nodes a run has no use for that is to balance time and processor-hours: of the fastest as many stay as make the product least.
/// `scenarios` is those of an iterate, `master_s` what the master takes for one.
pub fn release<N: Clone + Ord + fmt::Display>(
    weight: f64,
    scenarios: u64,
    master_s: f64,
    nodes: &[Hosting<N>],
) -> Option<Release<N>> {
    let mut order: Vec<&Hosting<N>> = nodes.iter().filter(|node| node.speed > 0.0).collect();
    if order.len() < 2 || order.len() < nodes.len() {
        return None;
    }
    let pace = |node: &Hosting<N>| node.speed / node.workers.max(1) as f64;
    order.sort_by(|a, b| pace(b).total_cmp(&pace(a)).then_with(|| a.node.cmp(&b.node)));
    let (mut speed, mut workers) = (0.0, 0);
    let values: Vec<(f64, f64, usize)> = order
        .iter()
        .map(|node| {
            speed += node.speed;
            workers += node.workers;
            let seconds = master_s + scenarios as f64 / speed;
            // Of the product only its order matters.
            (seconds.ln() + weight * (workers as f64).ln(), seconds, workers)
        })
        .collect();
    let (all, best) =
        (values.len() - 1, (0..values.len()).min_by(|a, b| values[*a].0.total_cmp(&values[*b].0))?);
    if best == all || values[best].0 > values[all].0 - WORTH {
        return None;
    }
    let nodes: Vec<N> = order[best + 1..].iter().map(|node| node.node.clone()).collect();
    let names: Vec<String> = nodes.iter().take(5).map(|node| node.to_string()).collect();
    let more =
        if nodes.len() > 5 { format!(" and {} more", nodes.len() - 5) } else { String::new() };
    let ((_, before, many), (_, after, few)) = (values[all], values[best]);
    let why = format!(
        "{}{more} are let go: an iterate of {before:.3} s by {many} workers is one of {after:.3} s by {few}, {:.3} in place of \
         {:.3} processor-seconds (weight {weight})",
        names.join(", "),
        after * few as f64,
        before * many as f64,
    );
    Some(Release { nodes, why })
}

// --- what was expected ---

/// An iterate, or an estimate, as it was expected and as it was.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Of what it is part: a number of the legs of the run.
    pub phase: u32,
    /// Its number in that.
    pub iterate: u32,
    /// Scenarios that were solved.
    pub scenarios: u64,
    /// Workers that there were when it was given out, and how many of them got something.
    pub workers: usize,
    /// How many got something.
    pub used: usize,
    /// Seconds that it was expected to take, the master's share among them; absent before speeds were measured.
    pub predicted_s: Option<f64>,
    /// Seconds that it took.
    pub measured_s: f64,
    /// When it was over, in seconds of the run. With a basket of more than one iterates overlap.
    pub ended_s: f64,
    /// Seconds of the master for the next decision.
    pub master_s: f64,
    /// Seconds that workers would take at least, if work could be divided at will.
    pub fluid_s: Option<f64>,
    /// Seconds that it would be expected to take with as many tasks for each worker.
    pub equal_s: Option<f64>,
    /// Seconds for the same progress by the rules of thumb.
    pub thumb_s: Option<f64>,
    /// Pivots of each second stage, on average.
    pub pivots: f64,
}

impl Row {
    /// By how much it was expected to take too long (or, negative, not long enough), over what it took.
    pub fn error(&self) -> Option<f64> {
        self.predicted_s.map(|predicted| predicted / self.measured_s.max(1e-9) - 1.0)
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |seconds: Option<f64>| {
            seconds.map_or("-".to_owned(), |seconds| format!("{seconds:.3} s"))
        };
        write!(
            f,
            "predicted {}, measured {:.3} s (master {:.3} s, {:.1} pivots), {} of {} workers, no less than {}; equal split {}, rules \
             of thumb {}",
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
        let outlook =
            Outlook { scenarios: 10_000, columns: 89, effort: 40_000.0, workers: 8, solved: None };
        let tasks = |outlook: Outlook| choose_tasks(&outlook).tasks;
        assert_eq!(tasks(outlook), 400);
        let many = Outlook { workers: 2000, ..outlook };
        assert!(tasks(many) < tasks(outlook), "{}", choose_tasks(&many));
        // Above a hundred tasks each has five scenarios at least.
        assert_eq!(tasks(Outlook { scenarios: 1000, ..outlook }), 200);
        assert_eq!(tasks(Outlook { scenarios: 300, ..outlook }), 100);
        assert_eq!(tasks(Outlook { scenarios: 40, ..outlook }), 25);
        assert_eq!(tasks(Outlook { scenarios: 2, ..outlook }), 2);
        let told = choose_tasks(&Outlook { solved: Some((100, 20)), ..outlook });
        assert!(
            told.iterates < 20.0 && told.to_string().starts_with("400 tasks: about "),
            "{told}"
        );
        // The paper's Table 3: 66, 50, 38 and 26 iterates of 50, 100, 200 and 400 tasks.
        for (tasks, count) in [(50.0, 66.0), (200.0, 38.0), (400.0, 26.0)] {
            let expected = 50.0 * iterates(tasks) / iterates(100.0);
            assert!((expected / count - 1.0).abs() < 0.2, "{tasks}: {expected}");
        }
    }

    #[test]
    fn nodes_are_let_go_that_cost_more_than_they_give() {
        let node = |at: u32, speed: f64| Hosting { node: format!("n{at}"), speed, workers: 1 };
        let mut nodes: Vec<_> = (0..6).map(|at| node(at, 1000.0)).collect();
        nodes.extend((6..8).map(|at| node(at, 100.0)));
        assert_eq!(release(0.0, 10_000, 0.1, &nodes), None);
        let let_go = release(0.5, 10_000, 0.0, &nodes).expect("two are slow");
        assert_eq!(let_go.nodes, ["n6", "n7"]);
        let_go
            .why
            .find("n6, n7 are let go: an iterate of 1.613 s by 8 workers")
            .expect(&let_go.why);
        // With a master that takes as long as they do, few are enough.
        let few = release(0.9, 1000, 1.0, &nodes).expect("the master takes most of the time");
        assert!(few.nodes.len() > 5, "{}", few.why);
        // Whose speed is not known is not judged, nor are the others beside it.
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
        assert_eq!(rules_of_thumb(50), Thumb { tasks: 100, basket: 3, groups: 25 });
        assert_eq!(rules_of_thumb(100).basket, 6);
    }
}
