//! What becomes of a workflow that runs: which task may begin where, which is tried again, and when the rest must be planned anew.
//!
//! A state machine without I/O and without a clock: [`News`] and the time in, [`Order`]s out. Must not know what tasks compute, how jobs
//! are submitted, nor how a plan is made.

use std::collections::{BTreeMap, BTreeSet};

use springtide_actors::policy::provisioning::{AvailabilityProfile, NEVER, SECOND, Time, seconds};
use springtide_actors::reservation::ReservedSlot;
use springtide_runtime::id::ClusterId;

/// Without reservations: what the grid refused is submitted again after this time, and so often at most.
const PAUSE: Time = 2 * SECOND;
const REFUSALS_MAX: u32 = 30;
/// So many tasks may wait for their nodes at once: the head answers no more calls of one process at a time than about a thousand.
const WAITING_MAX: usize = 256;

/// A task, as far as its running is concerned.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Name of the task in messages.
    pub id: String,
    /// Processors that it needs at the same time.
    pub processors: u32,
    /// How long it is expected to run.
    pub takes: Time,
    /// How long it is given: as long, and some more.
    pub lasts: Time,
    /// Tasks that it waits for.
    pub parents: Vec<usize>,
}

impl Step {
    /// Until when it has its processors, if it runs since then: one that should have ended is about to.
    fn holds_until(&self, since: Time, now: Time) -> Time {
        since.saturating_add(self.lasts).max(now + SECOND)
    }
}

/// Where tasks that have not begun are to run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Agreed {
    /// By task: where, and when by the plan. Those that have begun or ended need none.
    pub places: BTreeMap<usize, (ClusterId, Time)>,
    /// What is reserved for them.
    pub parts: Vec<ReservedSlot>,
}

/// An event of the run.
#[derive(Clone, Debug, PartialEq)]
pub enum News {
    /// Begin; or nothing, but time has passed.
    Tick,
    /// The rest is planned: begin, or go on, by this.
    Agreed(Agreed),
    /// A task runs.
    Began {
        /// Which.
        task: usize,
        /// In which try.
        attempt: u32,
        /// Where.
        cluster: Option<ClusterId>,
    },
    /// A task has ended well.
    Done(usize),
    /// A task has failed: by itself.
    Failed {
        /// Which.
        task: usize,
        /// Why.
        why: String,
    },
    /// A task could not begin, or was ended, for reasons of the grid: it has lost no try.
    Refused {
        /// Which.
        task: usize,
        /// In which try.
        attempt: u32,
        /// Why.
        why: String,
    },
    /// What was reserved is gone.
    Gone(String),
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Order {
    /// Submit a task; answered by [`News::Began`] if it begins, and by its end.
    Submit {
        /// Which.
        task: usize,
        /// Where; absent: where the scheduler puts it.
        cluster: Option<ClusterId>,
        /// Which try it is, from 1.
        attempt: u32,
    },
    /// Plan these anew; what was reserved is not needed any more. Answered by [`News::Agreed`].
    Plan {
        /// Those that have not begun.
        tasks: BTreeSet<usize>,
        /// Why.
        why: String,
    },
    /// All is done.
    Finished,
    /// A task has failed too often: those that run are to be ended.
    GiveUp {
        /// Which.
        task: usize,
        /// Why.
        why: String,
    },
}

/// What a task does.
#[derive(Clone, Debug, PartialEq)]
enum State {
    /// It waits for others, or for its place.
    Waits,
    /// It was submitted, then and there, by that plan, and runs if it has begun.
    Submitted {
        cluster: Option<ClusterId>,
        since: Time,
        began: bool,
        plan: u32,
    },
    Done,
}

/// When and where a task ran.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ran {
    /// Cluster of its last try.
    pub cluster: Option<ClusterId>,
    /// Since when, in its last try.
    pub start: Option<Time>,
    /// End of its last try.
    pub end: Option<Time>,
    /// How often it was tried.
    pub attempts: u32,
}

/// A workflow that runs.
#[derive(Debug)]
pub struct Flow {
    steps: Vec<Step>,
    states: Vec<State>,
    ran: Vec<Ran>,
    /// Failures of each.
    failures: Vec<u32>,
    /// A task may fail so often and one more.
    retries: u32,
    /// How often the grid refused each, and until when those are not submitted again that it did last.
    refusals: Vec<u32>,
    pauses: BTreeMap<usize, Time>,
    /// Plans are made; else each task goes where the scheduler puts it.
    reserves: bool,
    agreed: Option<Agreed>,
    /// What is reserved of each cluster over time, from about now on.
    reserved: BTreeMap<ClusterId, AvailabilityProfile>,
    /// A plan is being made.
    planning: bool,
    plans: u32,
    /// Plans at most: where more are needed, what is planned has little to do with what happens.
    plans_max: u32,
    over: bool,
}

impl Flow {
    /// One that has not begun. With `reserves` it asks for plans.
    pub fn new(steps: Vec<Step>, reserves: bool, retries: u32, plans_max: u32) -> Self {
        let count = steps.len();
        Self {
            steps,
            states: vec![State::Waits; count],
            ran: vec![Ran::default(); count],
            failures: vec![0; count],
            retries,
            refusals: vec![0; count],
            pauses: BTreeMap::new(),
            reserves,
            agreed: None,
            reserved: BTreeMap::new(),
            planning: false,
            plans: 0,
            plans_max,
            over: false,
        }
    }

    /// When and where each task ran.
    pub fn ran(&self) -> &[Ran] {
        &self.ran
    }

    /// How many tasks have ended well.
    pub fn done(&self) -> usize {
        self.states.iter().filter(|state| **state == State::Done).count()
    }

    /// How many are submitted.
    pub fn submitted(&self) -> usize {
        self.states.iter().filter(|state| matches!(state, State::Submitted { .. })).count()
    }

    /// How many plans were made.
    pub fn plans(&self) -> u32 {
        self.plans
    }

    /// Processes an event, and returns the orders that follow.
    pub fn handle(&mut self, news: News, now: Time) -> Vec<Order> {
        let mut out = Vec::new();
        if self.over {
            return out;
        }
        match news {
            News::Tick => {}
            News::Agreed(agreed) => {
                self.planning = false;
                self.reserved.clear();
                for part in &agreed.parts {
                    let line = self.reserved.entry(part.cluster.clone()).or_default();
                    part.bookings.iter().for_each(|b| line.give(b.processors, b.start, b.end));
                }
                self.agreed = Some(agreed);
            }
            News::Began { task, attempt, cluster } if self.is_current(task, attempt) => {
                if let State::Submitted { since, began, .. } = &mut self.states[task] {
                    (*since, *began) = (now, true);
                    self.ran[task].start = Some(now);
                    self.ran[task].cluster = cluster;
                }
            }
            News::Done(task) => {
                self.states[task] = State::Done;
                self.ran[task].end = Some(now);
            }
            News::Failed { task, why } => {
                self.states[task] = State::Waits;
                self.failures[task] += 1;
                if self.failures[task] > self.retries {
                    self.over = true;
                    out.push(Order::GiveUp { task, why });
                    return out;
                }
            }
            // Of a try that was given up already.
            News::Began { .. } => {}
            News::Refused { task, attempt, .. } if !self.is_current(task, attempt) => {}
            News::Refused { task, why, .. } if !self.reserves => {
                self.states[task] = State::Waits;
                self.refusals[task] += 1;
                if self.refusals[task] > REFUSALS_MAX {
                    self.over = true;
                    out.push(Order::GiveUp { task, why });
                    return out;
                }
                self.pauses.insert(task, now.saturating_add(PAUSE));
            }
            News::Refused { task, why, .. } => {
                self.states[task] = State::Waits;
                // Where it was to run it does not.
                self.plan_anew(format!("{}: {why}", self.steps[task].id), &mut out);
            }
            News::Gone(why) => self.plan_anew(why, &mut out),
        }
        self.go_on(now, &mut out);
        out
    }

    /// When [`News::Tick`] is due: more of what is reserved begins then.
    pub fn due(&self, now: Time) -> Option<Time> {
        let lines = self.reserved.values();
        let steps = lines.filter_map(|line| line.steps().map(|(at, _)| at).find(|&at| at > now));
        let pauses = self.pauses.values().copied().filter(|&at| at > now);
        // What runs longer than it was to is looked at again, for it keeps others from their places.
        let late = self.states.iter().zip(&self.steps).filter_map(|(state, step)| match state {
            State::Submitted { since, plan, .. } if *plan == self.plans && self.reserves => {
                Some(step.holds_until(*since, now))
            }
            _ => None,
        });
        steps.chain(pauses).chain(late).min()
    }

    /// Whether this is the try of a task that is under way: what comes of others is nobody's any more.
    pub fn is_current(&self, task: usize, attempt: u32) -> bool {
        let submitted = matches!(self.states[task], State::Submitted { .. });
        submitted && self.ran[task].attempts == attempt
    }

    fn waits(&self, task: usize) -> bool {
        self.states[task] == State::Waits
    }

    fn is_ready(&self, task: usize) -> bool {
        let done = |parent: &usize| self.states[*parent] == State::Done;
        self.waits(task) && self.steps[task].parents.iter().all(done)
    }

    fn plan_anew(&mut self, why: String, out: &mut Vec<Order>) {
        if !self.reserves || self.planning {
            return;
        }
        // What waits for its nodes would wait in vain: what is reserved is released.
        for state in &mut self.states {
            if matches!(state, State::Submitted { began: false, .. }) {
                *state = State::Waits;
            }
        }
        let tasks: BTreeSet<usize> =
            (0..self.steps.len()).filter(|&task| self.waits(task)).collect();
        let Some(&first) = tasks.first() else { return };
        if self.plans >= self.plans_max {
            self.over = true;
            let why = format!(
                "the rest of the workflow was planned {} times, and would have to be once more: {why}; give tasks more time (--slack), or run \
                 it with --best-effort",
                self.plans
            );
            return out.push(Order::GiveUp { task: first, why });
        }
        self.plans += 1;
        (self.planning, self.agreed) = (true, None);
        out.push(Order::Plan { tasks, why });
    }

    fn go_on(&mut self, now: Time, out: &mut Vec<Order>) {
        if self.over {
            return;
        }
        if self.done() == self.steps.len() {
            self.over = true;
            return out.push(Order::Finished);
        }
        if !self.reserves {
            self.pauses.retain(|_, until| *until > now);
            let waits = |state: &&State| matches!(state, State::Submitted { began: false, .. });
            let mut room = WAITING_MAX.saturating_sub(self.states.iter().filter(waits).count());
            for task in 0..self.steps.len() {
                if room > 0 && self.is_ready(task) && !self.pauses.contains_key(&task) {
                    self.submit(task, None, now, out);
                    room -= 1;
                }
            }
            return;
        }
        if self.planning {
            return;
        }
        // What is over is looked at no more.
        self.reserved.values_mut().for_each(|line| line.forget(now));
        let Some(agreed) = &self.agreed else {
            return self.plan_anew("it begins".to_owned(), out);
        };
        // Ready ones in the order of the plan.
        let place = |task: usize| {
            agreed.places.get(&task).map(|(cluster, start)| (*start, task, cluster.clone()))
        };
        let all = || (0..self.steps.len()).filter(|&task| self.is_ready(task));
        let mut ready: Vec<(Time, usize, ClusterId)> = all().filter_map(place).collect();
        ready.sort();
        // What came back while the plan was made has no place in it.
        let without = all().find(|task| !agreed.places.contains_key(task));
        let mut late = without.map(|task| format!("{} has no place", self.steps[task].id));
        let mut begins = Vec::new();
        let mut lines: BTreeMap<ClusterId, AvailabilityProfile> = BTreeMap::new();
        for (_, task, cluster) in ready {
            let line = lines.entry(cluster.clone()).or_insert_with(|| self.line(&cluster, now));
            let Step { processors, takes, lasts, id, .. } = &self.steps[task];
            // It is here a moment later than was planned, at the best.
            match line.earliest(*processors, *takes, now, NEVER) {
                Some(start) => {
                    occupy(line, *processors, start, start.saturating_add(*lasts));
                    if start <= now {
                        begins.push((task, cluster));
                    }
                }
                // Its time has passed: others took longer than was planned.
                None if late.is_none() => {
                    late = Some(format!(
                        "{id} finds no {processors} processors of {cluster} for {:.1} s any more in what is reserved",
                        seconds(*takes)
                    ));
                }
                None => {}
            }
        }
        for (task, cluster) in begins {
            self.submit(task, Some(cluster), now, out);
        }
        if let Some(why) = late {
            self.plan_anew(why, out);
        }
    }

    /// What is left of a cluster's reserved processors from now on: those that run keep theirs for as long as they were to take.
    fn line(&self, cluster: &ClusterId, now: Time) -> AvailabilityProfile {
        let Some(reserved) = self.reserved.get(cluster) else {
            return AvailabilityProfile::default();
        };
        let mut line = reserved.clone();
        for (step, state) in self.steps.iter().zip(&self.states) {
            let State::Submitted { cluster: Some(at), since, plan, .. } = state else { continue };
            // What runs since an earlier plan is on nothing of this one's.
            if at == cluster && *plan == self.plans {
                occupy(&mut line, step.processors, now, step.holds_until(*since, now));
            }
        }
        line
    }

    fn submit(&mut self, task: usize, cluster: Option<ClusterId>, now: Time, out: &mut Vec<Order>) {
        self.states[task] = State::Submitted {
            cluster: cluster.clone(),
            since: now,
            began: false,
            plan: self.plans,
        };
        self.ran[task].attempts += 1;
        let attempt = self.ran[task].attempts;
        out.push(Order::Submit { task, cluster, attempt });
    }
}

/// Takes processors as far as they are there: what takes longer than it was to may be on more than is reserved.
fn occupy(line: &mut AvailabilityProfile, processors: u32, from: Time, to: Time) {
    let begins = |&(start, _): &(Time, u32)| start < to;
    let steps: Vec<(Time, u32)> = line.steps().take_while(begins).collect();
    for (at, &(start, free)) in steps.iter().enumerate() {
        let end = steps.get(at + 1).map_or(to, |next| next.0.min(to));
        let start = start.max(from);
        if start < end && free > 0 {
            line.take(processors.min(free), start, end);
        }
    }
}

#[cfg(test)]
mod tests {
    use springtide_actors::policy::provisioning::Booking;

    use super::*;

    fn step(id: &str, processors: u32, lasts: u64, parents: &[usize]) -> Step {
        let parents = parents.to_vec();
        let (id, lasts) = (id.to_owned(), lasts * SECOND);
        Step { id, processors, takes: lasts, lasts, parents }
    }

    fn part(cluster: &str, processors: u32, start: u64, end: u64) -> ReservedSlot {
        let booking = Booking { processors, start: start * SECOND, end: end * SECOND };
        ReservedSlot { cluster: cluster.into(), bookings: vec![booking] }
    }

    fn places(all: &[(usize, &str, u64)]) -> BTreeMap<usize, (ClusterId, Time)> {
        all.iter().map(|&(task, at, start)| (task, (at.into(), start * SECOND))).collect()
    }

    /// Which tasks are submitted, and what else is ordered, shortly.
    fn told(orders: Vec<Order>) -> Vec<String> {
        let one = |order: Order| match order {
            Order::Submit { task, cluster, attempt } => {
                let at = cluster.map_or("anywhere".to_owned(), |cluster| cluster.to_string());
                format!("{task} at {at}, {attempt}")
            }
            Order::Plan { tasks, .. } => format!("plan {tasks:?}"),
            Order::Finished => "finished".to_owned(),
            Order::GiveUp { task, .. } => format!("give {task} up"),
        };
        orders.into_iter().map(one).collect()
    }

    fn diamond() -> Vec<Step> {
        vec![
            step("a", 1, 10, &[]),
            step("b", 2, 10, &[0]),
            step("c", 2, 10, &[0]),
            step("d", 1, 10, &[1, 2]),
        ]
    }

    #[test]
    fn best_effort_submits_what_is_ready() {
        let mut flow = Flow::new(diamond(), false, 0, 1);
        assert_eq!(told(flow.handle(News::Tick, 0)), ["0 at anywhere, 1"]);
        assert_eq!(told(flow.handle(News::Tick, 0)), [""; 0]);
        assert_eq!(told(flow.handle(News::Done(0), 5)), ["1 at anywhere, 1", "2 at anywhere, 1"]);
        assert_eq!(told(flow.handle(News::Done(2), 6)), [""; 0]);
        assert_eq!(told(flow.handle(News::Done(1), 7)), ["3 at anywhere, 1"]);
        assert_eq!(told(flow.handle(News::Done(3), 8)), ["finished"]);
        assert_eq!((flow.done(), flow.submitted()), (4, 0));
    }

    #[test]
    fn tasks_begin_within_what_is_reserved_and_early_ones_do_not_wait() {
        let mut flow = Flow::new(diamond(), true, 0, 3);
        assert_eq!(told(flow.handle(News::Tick, 0)), ["plan {0, 1, 2, 3}"]);
        let agreed = Agreed {
            places: places(&[(0, "x", 5), (1, "x", 15), (2, "x", 25), (3, "y", 35)]),
            parts: vec![part("x", 2, 5, 35), part("y", 1, 35, 50)],
        };
        assert_eq!(told(flow.handle(News::Agreed(agreed), SECOND)), [""; 0]);
        assert_eq!(flow.due(SECOND), Some(5 * SECOND));
        assert_eq!(told(flow.handle(News::Tick, 5 * SECOND)), ["0 at x, 1"]);
        // It ends early: the next one of the plan does not wait for its time, and the other has no processors.
        assert_eq!(told(flow.handle(News::Done(0), 9 * SECOND)), ["1 at x, 1"]);
        assert_eq!(told(flow.handle(News::Done(1), 21 * SECOND)), ["2 at x, 1"]);
        assert_eq!(told(flow.handle(News::Done(2), 30 * SECOND)), [""; 0]);
        assert_eq!(flow.due(30 * SECOND), Some(35 * SECOND));
        assert_eq!(told(flow.handle(News::Tick, 35 * SECOND)), ["3 at y, 1"]);
        assert_eq!(told(flow.handle(News::Done(3), 40 * SECOND)), ["finished"]);
        assert_eq!(flow.plans(), 1);
    }

    #[test]
    fn a_task_that_fails_is_tried_again_in_what_is_reserved_and_the_rest_is_planned_anew_when_it_is_late()
     {
        let mut flow = Flow::new(diamond(), true, 2, 3);
        flow.handle(News::Tick, 0);
        let agreed = Agreed {
            places: places(&[(0, "x", 0), (1, "x", 10), (2, "x", 20), (3, "x", 30)]),
            parts: vec![part("x", 2, 0, 42)],
        };
        assert_eq!(told(flow.handle(News::Agreed(agreed), 0)), ["0 at x, 1"]);
        let failed = |task| News::Failed { task, why: "it says no".to_owned() };
        assert_eq!(told(flow.handle(failed(0), 4 * SECOND)), ["0 at x, 2"]);
        assert_eq!(told(flow.handle(News::Done(0), 14 * SECOND)), ["1 at x, 1"]);
        assert_eq!(told(flow.handle(failed(1), 20 * SECOND)), ["1 at x, 2"]);
        assert_eq!(told(flow.handle(News::Done(1), 28 * SECOND)), ["2 at x, 1"]);
        // Its last try begins when there is no time left for it in what is reserved.
        assert_eq!(told(flow.handle(failed(2), 33 * SECOND)), ["plan {2, 3}"]);
        let agreed = Agreed {
            places: places(&[(2, "y", 40), (3, "y", 50)]),
            parts: vec![part("y", 2, 40, 60)],
        };
        assert_eq!(told(flow.handle(News::Agreed(agreed), 34 * SECOND)), [""; 0]);
        assert_eq!(told(flow.handle(News::Tick, 40 * SECOND)), ["2 at y, 2"]);
        assert_eq!(told(flow.handle(failed(2), 41 * SECOND)), ["2 at y, 3"]);
        assert_eq!(flow.plans(), 2);
        assert_eq!(told(flow.handle(failed(2), 42 * SECOND)), ["give 2 up"]);
        assert_eq!(told(flow.handle(News::Tick, 60 * SECOND)), [""; 0]);
    }

    #[test]
    fn what_comes_back_while_a_plan_is_made_is_planned_with_the_next() {
        let mut flow = Flow::new(vec![step("a", 1, 10, &[]), step("b", 1, 10, &[])], true, 0, 9);
        flow.handle(News::Tick, 0);
        let agreed = |tasks: &[(usize, &str, u64)]| {
            let parts = vec![part("x", 2, 0, 100)];
            News::Agreed(Agreed { places: places(tasks), parts })
        };
        let both = flow.handle(agreed(&[(0, "x", 0), (1, "x", 0)]), 0);
        assert_eq!(told(both), ["0 at x, 1", "1 at x, 1"]);
        for task in [0, 1] {
            let cluster = Some("x".into());
            flow.handle(News::Began { task, attempt: 1, cluster }, 0);
        }
        let why = || "gone".to_owned();
        let refused = |task| News::Refused { task, attempt: 1, why: why() };
        assert_eq!(told(flow.handle(refused(0), 1)), ["plan {0}"]);
        assert_eq!(told(flow.handle(refused(1), 2)), [""; 0]);
        let next = flow.handle(agreed(&[(0, "x", 0)]), 3);
        assert_eq!(told(next), ["0 at x, 2", "plan {0, 1}"]);
        // The try that was given up is nobody's, whatever becomes of it.
        assert!(!flow.is_current(0, 2));
        let late = News::Refused { task: 0, attempt: 2, why: why() };
        assert_eq!(told(flow.handle(late, 4)), [""; 0]);
        let next = flow.handle(agreed(&[(0, "x", 0), (1, "x", 0)]), 5);
        assert_eq!(told(next), ["0 at x, 3", "1 at x, 2"]);
    }

    #[test]
    fn what_runs_since_an_earlier_plan_is_on_nothing_of_the_next() {
        let steps = vec![step("a", 1, 50, &[]), step("b", 1, 10, &[])];
        let mut flow = Flow::new(steps, true, 0, 9);
        flow.handle(News::Tick, 0);
        let agreed = |tasks: &[(usize, &str, u64)], count| {
            let parts = vec![part("x", count, 0, 100)];
            News::Agreed(Agreed { places: places(tasks), parts })
        };
        flow.handle(agreed(&[(0, "x", 0), (1, "x", 0)], 2), 0);
        for task in [0, 1] {
            flow.handle(News::Began { task, attempt: 1, cluster: Some("x".into()) }, 0);
        }
        let lost = News::Refused { task: 1, attempt: 1, why: "its node died".to_owned() };
        assert_eq!(told(flow.handle(lost, SECOND)), ["plan {1}"]);
        assert_eq!(told(flow.handle(agreed(&[(1, "x", 0)], 1), SECOND)), ["1 at x, 2"]);
        // The one that runs longer than it was to is looked at in time.
        assert_eq!(flow.due(2 * SECOND), Some(11 * SECOND));
    }

    #[test]
    fn what_the_grid_refuses_just_in_time_is_tried_later_and_loses_no_try() {
        let mut flow = Flow::new(vec![step("a", 1, 10, &[])], false, 0, 1);
        flow.handle(News::Tick, 0);
        for refusal in 0..REFUSALS_MAX {
            let now = u64::from(refusal) * PAUSE;
            let refused = News::Refused { task: 0, attempt: refusal + 1, why: "busy".to_owned() };
            assert_eq!(told(flow.handle(refused, now)), [""; 0]);
            assert_eq!(flow.due(now), Some(now + PAUSE));
            let again = format!("0 at anywhere, {}", refusal + 2);
            assert_eq!(told(flow.handle(News::Tick, now + PAUSE)), [again]);
        }
        let attempt = REFUSALS_MAX + 1;
        let refused = News::Refused { task: 0, attempt, why: "busy".to_owned() };
        assert_eq!(told(flow.handle(refused, 0)), ["give 0 up"]);
        // More than can be submitted at once wait for their turn.
        let many = (0..WAITING_MAX + 3).map(|at| step(&format!("t{at}"), 1, 1, &[]));
        let mut flow = Flow::new(many.collect(), false, 0, 1);
        assert_eq!(flow.handle(News::Tick, 0).len(), WAITING_MAX);
        let began = News::Began { task: 0, attempt: 1, cluster: None };
        assert_eq!(flow.handle(began, 0).len(), 1);
    }

    #[test]
    fn what_the_grid_takes_away_is_planned_anew_but_not_for_ever() {
        let mut flow = Flow::new(diamond(), true, 0, 2);
        flow.handle(News::Tick, 0);
        let agreed = || Agreed {
            places: places(&[(0, "x", 0), (1, "x", 10), (2, "x", 20), (3, "x", 30)]),
            parts: vec![part("x", 2, 0, 100)],
        };
        flow.handle(News::Agreed(agreed()), 0);
        let gone = |attempt| News::Refused { task: 0, attempt, why: "it is gone".to_owned() };
        assert_eq!(told(flow.handle(gone(1), SECOND)), ["plan {0, 1, 2, 3}"]);
        assert_eq!(told(flow.handle(News::Gone("it ran out".to_owned()), SECOND)), [""; 0]);
        flow.handle(News::Agreed(agreed()), SECOND);
        assert_eq!(told(flow.handle(gone(2), SECOND)), ["give 0 up"]);
    }
}
