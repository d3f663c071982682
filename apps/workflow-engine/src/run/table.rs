//! The tasks of a run: which are ready, which have ended, and which failures end them for good.
//!
//! A state machine without I/O and without a clock. It does not know where tasks run.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::time::Duration;

use springtide_actors::policy::provisioning::Time;

/// The most attempts of a task that the grid interrupted, after the first one.
const INTERRUPTIONS_MAX: u32 = 30;

/// Limits of a task, which double when the task exceeds them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TaskLimits {
    /// The longest running time; none if absent.
    pub time: Option<Duration>,
    /// The most memory in bytes; none if absent.
    pub memory_bytes: Option<u64>,
}

/// A task, as far as the order of tasks is concerned.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Id of the task.
    pub id: String,
    /// Processors of one node that it needs.
    pub processors: u32,
    /// The expected running time.
    pub takes: Time,
    /// The reserved time: the running time and a margin.
    pub lasts: Time,
    /// Tasks that must be completed before it starts.
    pub parents: Vec<usize>,
    /// Limits of its first attempt.
    pub limits: TaskLimits,
    /// GPUs of its node that it needs.
    pub gpus: u32,
    /// The most retries, if they differ from the run's.
    pub retries: Option<u32>,
}

/// The state of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskState {
    /// Parents are not completed.
    Waiting,
    /// It may start.
    Ready,
    /// An attempt is under way.
    Active,
    /// It has ended well.
    Completed,
    /// It failed for good.
    Failed {
        /// Reason of its last failure.
        reason: String,
    },
    /// It cannot run, since a task failed that it depends on.
    Skipped {
        /// The failed task.
        failed: usize,
    },
}

/// The kind of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// The task failed by itself.
    Task,
    /// It exceeded its time limit.
    TimeLimit,
    /// It exceeded its memory limit, or the kernel ended it because memory was short.
    MemoryLimit {
        /// The most bytes that it was seen to use.
        used: u64,
    },
    /// The grid interrupted it, which counts as no failure of the task.
    Interrupted,
}

/// Rules of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailureRules {
    /// The most retries of a failed task.
    pub retries: u32,
    /// Whether no further task starts after a task failed for good.
    pub fail_fast: bool,
}

/// Counts of tasks by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskCounts {
    /// Number of completed tasks.
    pub completed: usize,
    /// Tasks that failed for good.
    pub failed: usize,
    /// Tasks that cannot run.
    pub skipped: usize,
    /// Tasks with an attempt under way.
    pub active: usize,
}

#[derive(Clone, Debug)]
struct TaskEntry {
    state: TaskState,
    /// Parents that are not completed.
    missing: usize,
    children: Vec<usize>,
    /// The time of the longest chain of tasks that begins with this one.
    chain: Time,
    /// Tasks of a higher priority start first.
    priority: Reverse<Time>,
    limits: TaskLimits,
    attempts: u32,
    failures: u32,
    interruptions: u32,
}

/// The tasks of a run.
#[derive(Debug)]
pub struct TaskTable {
    steps: Vec<Step>,
    tasks: Vec<TaskEntry>,
    ready: BTreeSet<(Reverse<Time>, usize)>,
    rules: FailureRules,
    counts: TaskCounts,
    is_stopped: bool,
}

impl TaskTable {
    /// The tasks of a run that has not begun. `order` is an order in which parents precede their
    /// children.
    pub fn new(steps: Vec<Step>, order: &[usize], rules: FailureRules) -> Self {
        let mut tasks: Vec<TaskEntry> = steps
            .iter()
            .map(|step| TaskEntry {
                state: TaskState::Waiting,
                missing: step.parents.len(),
                children: Vec::new(),
                chain: 0,
                priority: Reverse(0),
                limits: step.limits,
                attempts: 0,
                failures: 0,
                interruptions: 0,
            })
            .collect();
        for (task, step) in steps.iter().enumerate() {
            step.parents.iter().for_each(|&parent| tasks[parent].children.push(task));
        }
        // The longest chain first.
        for &task in order.iter().rev() {
            let after = tasks[task].children.iter().map(|&child| tasks[child].chain).max();
            let chain = after.unwrap_or(0).saturating_add(steps[task].takes);
            (tasks[task].chain, tasks[task].priority) = (chain, Reverse(chain));
        }
        let counts = TaskCounts::default();
        let mut table =
            Self { steps, tasks, ready: BTreeSet::new(), rules, counts, is_stopped: false };
        for task in 0..table.tasks.len() {
            table.make_ready(task);
        }
        table
    }

    /// The steps of all tasks.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// The state of a task.
    pub fn state(&self, task: usize) -> &TaskState {
        &self.tasks[task].state
    }

    /// The time of the longest chain of tasks that begins with a task.
    pub fn chain(&self, task: usize) -> Time {
        self.tasks[task].chain
    }

    /// The number of attempts of a task.
    pub fn attempts(&self, task: usize) -> u32 {
        self.tasks[task].attempts
    }

    /// Continues the number of attempts of an earlier process.
    pub fn set_attempts(&mut self, task: usize, attempts: u32) {
        self.tasks[task].attempts = attempts;
    }

    /// The limits of the next attempt of a task, or of the present one.
    pub fn limits(&self, task: usize) -> TaskLimits {
        self.tasks[task].limits
    }

    /// The counts of tasks by state.
    pub fn counts(&self) -> TaskCounts {
        self.counts
    }

    /// Whether no task starts any more.
    pub fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// Whether no attempt is under way and none follows.
    pub fn is_over(&self) -> bool {
        self.counts.active == 0 && (self.is_stopped || self.ready.is_empty())
    }

    /// Ready tasks in order of priority; none once the run is stopped.
    pub fn ready(&self) -> impl Iterator<Item = usize> {
        let none = self.is_stopped;
        self.ready.iter().map(|(_, task)| *task).filter(move |_| !none)
    }

    /// Tasks that are neither completed nor failed and have no attempt under way.
    pub fn unstarted(&self) -> impl Iterator<Item = usize> {
        let is_open =
            |entry: &TaskEntry| matches!(entry.state, TaskState::Waiting | TaskState::Ready);
        self.tasks.iter().enumerate().filter(move |(_, entry)| is_open(entry)).map(|(at, _)| at)
    }

    /// Makes tasks start in order of these times.
    pub fn set_order(&mut self, starts: impl IntoIterator<Item = (usize, Time)>) {
        for (task, start) in starts {
            let was_ready = self.ready.remove(&(self.tasks[task].priority, task));
            // An earlier start is a higher priority.
            self.tasks[task].priority = Reverse(Time::MAX - start);
            if was_ready {
                self.ready.insert((self.tasks[task].priority, task));
            }
        }
    }

    fn make_ready(&mut self, task: usize) {
        let entry = &mut self.tasks[task];
        if entry.missing == 0 && entry.state == TaskState::Waiting {
            entry.state = TaskState::Ready;
            self.ready.insert((entry.priority, task));
        }
    }

    /// Begins an attempt of a ready task. Returns its number, from 1.
    pub fn begin(&mut self, task: usize) -> u32 {
        let entry = &mut self.tasks[task];
        self.ready.remove(&(entry.priority, task));
        entry.state = TaskState::Active;
        entry.attempts += 1;
        self.counts.active += 1;
        entry.attempts
    }

    /// Ends the attempt of a task, or skips all its attempts if an earlier run completed it.
    pub fn complete(&mut self, task: usize) {
        let entry = &mut self.tasks[task];
        match entry.state {
            TaskState::Active => self.counts.active -= 1,
            TaskState::Ready => drop(self.ready.remove(&(entry.priority, task))),
            TaskState::Waiting => {}
            _ => return,
        }
        entry.state = TaskState::Completed;
        self.counts.completed += 1;
        for child in entry.children.clone() {
            self.tasks[child].missing = self.tasks[child].missing.saturating_sub(1);
            self.make_ready(child);
        }
    }

    /// Ends the attempt of a task without success. Returns whether another attempt follows.
    pub fn fail_or_retry(&mut self, task: usize, kind: FailureKind, reason: &str) -> bool {
        let (rules, entry) = (self.rules, &mut self.tasks[task]);
        if entry.state != TaskState::Active {
            return false;
        }
        self.counts.active -= 1;
        let (count, max) = match kind {
            FailureKind::Interrupted => (&mut entry.interruptions, INTERRUPTIONS_MAX),
            _ => (&mut entry.failures, self.steps[task].retries.unwrap_or(rules.retries)),
        };
        *count += 1;
        let again = *count <= max;
        let limits = &mut entry.limits;
        match kind {
            FailureKind::TimeLimit => limits.time = limits.time.map(|time| time.saturating_mul(2)),
            FailureKind::MemoryLimit { used } => {
                // Without a limit, the next node has twice what this one could give.
                let had = limits.memory_bytes.unwrap_or(used);
                limits.memory_bytes = Some(had.saturating_mul(2)).filter(|bytes| *bytes > 0);
            }
            FailureKind::Task | FailureKind::Interrupted => {}
        }
        if again {
            entry.state = TaskState::Waiting;
            self.make_ready(task);
        } else {
            self.give_up(task, reason.to_owned());
        }
        again
    }

    /// Fails a ready task for good, because it cannot start.
    pub fn reject(&mut self, task: usize, reason: String) {
        if self.tasks[task].state == TaskState::Ready {
            self.ready.remove(&(self.tasks[task].priority, task));
            self.give_up(task, reason);
        }
    }

    fn give_up(&mut self, task: usize, reason: String) {
        self.tasks[task].state = TaskState::Failed { reason };
        self.counts.failed += 1;
        self.is_stopped |= self.rules.fail_fast;
        let mut left = self.tasks[task].children.clone();
        while let Some(child) = left.pop() {
            let entry = &mut self.tasks[child];
            if entry.state == TaskState::Waiting {
                entry.state = TaskState::Skipped { failed: task };
                self.counts.skipped += 1;
                left.extend(entry.children.iter().copied());
            }
        }
    }

    /// Starts no further task.
    pub fn stop(&mut self) {
        self.is_stopped = true;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn step(id: &str, takes: Time, parents: &[usize]) -> Step {
        let limits = TaskLimits { time: Some(Duration::from_secs(10)), memory_bytes: Some(1000) };
        let (id, parents) = (id.to_owned(), parents.to_vec());
        let (gpus, retries) = (0, None);
        Step { id, processors: 1, takes, lasts: takes, parents, limits, gpus, retries }
    }

    fn diamond(retries: u32, fail_fast: bool) -> TaskTable {
        let steps =
            vec![step("a", 1, &[]), step("b", 1, &[0]), step("c", 5, &[0]), step("d", 1, &[1, 2])];
        TaskTable::new(steps, &[0, 1, 2, 3], FailureRules { retries, fail_fast })
    }

    fn ready(table: &TaskTable) -> Vec<usize> {
        table.ready().collect()
    }

    #[test]
    fn the_longest_chain_starts_first_and_a_plan_can_change_that() {
        let mut table = diamond(0, false);
        assert_eq!(ready(&table), [0]);
        assert_eq!(table.begin(0), 1);
        table.complete(0);
        assert_eq!(ready(&table), [2, 1]);
        table.set_order([(1, 100), (2, 200)]);
        assert_eq!(ready(&table), [1, 2]);
    }

    #[test]
    fn an_independent_task_runs_after_a_failure_and_dependants_are_skipped() {
        let mut table = diamond(1, false);
        table.begin(0);
        table.complete(0);
        table.begin(1);
        assert!(table.fail_or_retry(1, FailureKind::Task, "no"), "one retry");
        assert_eq!(table.begin(1), 2);
        assert!(!table.fail_or_retry(1, FailureKind::Task, "no again"));
        assert_eq!(table.state(1), &TaskState::Failed { reason: "no again".to_owned() });
        assert_eq!(table.state(3), &TaskState::Skipped { failed: 1 });
        assert_eq!((ready(&table), table.is_over()), (vec![2], false));
        table.begin(2);
        table.complete(2);
        assert!(table.is_over());
        let counts = TaskCounts { completed: 2, failed: 1, skipped: 1, active: 0 };
        assert_eq!(table.counts(), counts);
    }

    #[test]
    fn fail_fast_starts_nothing_more() {
        let mut table = diamond(0, true);
        table.begin(0);
        table.complete(0);
        table.begin(1);
        table.begin(2);
        assert!(!table.fail_or_retry(1, FailureKind::Task, "no"));
        assert!(!table.is_over(), "the other one runs");
        table.complete(2);
        assert!(table.is_over());
    }

    #[test]
    fn a_limit_doubles_and_interruptions_count_as_no_failures() {
        let mut table = diamond(1, false);
        for _ in 0..INTERRUPTIONS_MAX {
            table.begin(0);
            assert!(table.fail_or_retry(0, FailureKind::Interrupted, "its node left"));
        }
        table.begin(0);
        assert!(table.fail_or_retry(0, FailureKind::MemoryLimit { used: 1 }, "too large"));
        assert_eq!(table.limits(0).memory_bytes, Some(2000));
        table.begin(0);
        assert!(!table.fail_or_retry(0, FailureKind::TimeLimit, "too long"));
        assert_eq!(table.limits(0).time, Some(Duration::from_secs(20)));
        assert_eq!(table.counts().skipped, 3);
    }

    #[test]
    fn a_task_without_a_limit_gets_twice_the_memory_that_it_was_killed_with() {
        let rules = FailureRules { retries: 1, fail_fast: false };
        let step = Step { limits: TaskLimits::default(), ..step("a", 1, &[]) };
        let mut table = TaskTable::new(vec![step], &[0], rules);
        table.begin(0);
        assert!(table.fail_or_retry(
            0,
            FailureKind::MemoryLimit { used: 100 },
            "was ended by the kernel"
        ));
        assert_eq!(table.limits(0).memory_bytes, Some(200));
    }

    proptest! {
        #[test]
        fn each_task_ends_once_and_after_its_parents(
            parents in prop::collection::vec(
                prop::collection::vec(any::<prop::sample::Index>(), 0..4),
                1..40,
            ),
            fates in prop::collection::vec(0_u8..10, 200),
            retries in 0_u32..3,
        ) {
            let steps: Vec<Step> = parents
                .iter()
                .enumerate()
                .map(|(at, of)| {
                    let of: BTreeSet<usize> =
                        of.iter().filter(|_| at > 0).map(|index| index.index(at.max(1))).collect();
                    step(&at.to_string(), at as Time, &of.into_iter().collect::<Vec<_>>())
                })
                .collect();
            let count = steps.len();
            let order: Vec<usize> = (0..count).collect();
            let rules = FailureRules { retries, fail_fast: false };
            let mut table = TaskTable::new(steps, &order, rules);
            let mut fates = fates.into_iter().cycle();
            let mut begun = 0;
            loop {
                let Some(task) = table.ready().next() else { break };
                for &parent in &table.steps()[task].parents.clone() {
                    prop_assert_eq!(table.state(parent), &TaskState::Completed);
                }
                table.begin(task);
                begun += 1;
                match fates.next() {
                    Some(0..=1) => drop(table.fail_or_retry(task, FailureKind::Task, "no")),
                    Some(2) => drop(table.fail_or_retry(task, FailureKind::Interrupted, "gone")),
                    _ => table.complete(task),
                }
                prop_assert!(begun < 40 * (INTERRUPTIONS_MAX + 4));
            }
            prop_assert!(table.is_over());
            let counts = table.counts();
            prop_assert_eq!(counts.completed + counts.failed + counts.skipped, count);
            for task in 0..count {
                let open = matches!(
                    table.state(task),
                    TaskState::Waiting | TaskState::Ready | TaskState::Active
                );
                prop_assert!(!open);
            }
        }
    }
}
