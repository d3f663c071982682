//! The root of a malleable program: it manages processes, observes, decides and executes plans.
//!
//! Its own thread is rank 0. It sees the members of the job and names those that it does not need.
//! It does not know the negotiation of nodes.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::observe::{MemberProcess, Need, Observation, ProcessInfo, RequestRefusal};
use super::part::{ComputeProcess, PointResult, SAVED_MAX, StepResult, Whole, whole};
use super::plan::{NextConfiguration, PresentProcess, first_of_nodes, plan};
use super::process::MalleableProcess;
use super::program::{Placement, Program, Strategy};
use crate::id::{NodeId, Peer};
use crate::spmd::group::{ConfigurationEnd, OutgoingMessage, ProcessGroup, ProcessState};
use crate::spmd::message::{CollectiveAction, Configuration, Invitation, StateSource};
use crate::spmd::process_pool::{DisbandOnDrop, ProcessPool, group_ended};
use crate::spmd::{ProcessHandle, StepRate};
use crate::wire;
use crate::work::{Checkpoint, Context, Outcome, Stop};

/// The longest wait for spawned processes before the program starts.
const START_WAIT: Duration = Duration::from_secs(5);
/// The longest wait of the root until the others have the state of leaving processes.
const HANDOVER_WAIT: Duration = Duration::from_secs(2);
/// The longest wait for spawned processes while the program computes, before it uses those present.
const GROWTH_WAIT: Duration = Duration::from_secs(10);
/// The interval of decisions without a change of processes.
const DECISION_INTERVAL: Duration = Duration::from_secs(2);

/// The number of successive link failures without progress that fails the job.
const BREAKS_MAX: u32 = 10;

/// The pause after successive link failures without progress.
///
/// None after the first ones, for most links are soon restored; a minute at most.
fn pause_after(breaks: u32) -> Duration {
    match breaks {
        0..=2 => Duration::ZERO,
        _ => Duration::from_secs((5 << (breaks - 3).min(8)).min(60)),
    }
}

/// The whole state at a point, as it is saved.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct SavedState {
    pub(super) point: u64,
    state: Bytes,
    /// The number of reported steps, which may exceed `point`. Repeated steps are not reported
    /// again.
    #[serde(default)]
    pub(super) told: u64,
}

/// Runs a program to its end, in a malleable job's [`run`](crate::work::Job::run).
///
/// # Errors
/// The program's own failure, including a process's; or a halt.
pub fn run<P: Program>(program: P, cx: &Context) -> Result<Outcome, Stop> {
    start(&program, None, cx)
}

/// Runs a program to its end from the state of an earlier root, in a job's
/// [`resume`](crate::work::Job::resume).
///
/// # Errors
/// As for [`run`], or the state belongs to another program.
pub fn resume<P: Program>(program: P, state: Checkpoint, cx: &Context) -> Result<Outcome, Stop> {
    start(&program, Some(state.get()?), cx)
}

fn start<P: Program>(
    program: &P,
    saved: Option<SavedState>,
    cx: &Context,
) -> Result<Outcome, Stop> {
    let Some(post) = cx.post() else {
        return Err(Stop::fail("this pool runs no processes: run the job on a grid, or alone"));
    };
    let group = post.create_group(cx.waker());
    let _disband = DisbandOnDrop(post.clone(), group.clone());
    let now = Instant::now();
    let reported = saved.as_ref().map_or(0, |saved| saved.told.max(saved.point));
    let mut root = Root {
        program,
        at: ProcessHandle { cx, post, group, process: 0 },
        pool: ProcessPool::with_spares(),
        decided: None,
        decided_at: now,
        release: Vec::new(),
        saved,
        saves: true,
        reported,
        needed: None,
        refused: None,
        link_failures: 0,
        failed_at: (0, 0),
    };
    // So that adaptation knows that the first step is under way.
    cx.report_synchronous();
    cx.progress(reported, program.steps(), "steps");
    let outcome = root.run();
    if outcome.is_ok() {
        root.pool.collect_all(&root.at);
    }
    root.at.relay_reports();
    outcome
}

/// The present processes, and whether their nodes are leaving. A change causes a decision.
type ProcessSet = Vec<(u32, Peer, bool)>;

struct Root<'c, P: Program> {
    program: &'c P,
    at: ProcessHandle<'c>,
    pool: ProcessPool<'c, MalleableProcess<P>>,
    /// The processes at the last decision.
    decided: Option<ProcessSet>,
    decided_at: Instant,
    /// Nodes to release once the new configuration computes.
    release: Vec<NodeId>,
    /// The state from which the processes restart after a loss.
    saved: Option<SavedState>,
    /// Whether the state is short enough to be saved.
    saves: bool,
    /// The number of reported steps.
    reported: u64,
    /// The open request for nodes, and the number of nodes without them.
    needed: Option<(Need, u32)>,
    refused: Option<RequestRefusal>,
    /// Successive link failures without progress, and that progress: the saved point and reported
    /// steps.
    link_failures: u32,
    failed_at: (u64, u64),
}

impl<'c, P: Program> Root<'c, P> {
    fn run(&mut self) -> Result<Outcome, Stop> {
        loop {
            self.wait_for_processes()?;
            match self.form()? {
                FormResult::Whole(part) => {
                    if let Some(outcome) = self.compute(*part)? {
                        return Ok(outcome);
                    }
                }
                FormResult::Retry => continue,
                // Handled like any other end, so that repeated failures during entry are counted
                // and reported.
                FormResult::Ended => {}
            }
            self.restart()?;
        }
    }

    /// Reports the end of the configuration and the point of the restart.
    ///
    /// After repeated link failures without progress it pauses, and finally fails the job.
    fn restart(&mut self) -> Result<(), Stop> {
        self.pool.spawned_at = Instant::now();
        let from = self.saved.as_ref().map_or(0, |saved| saved.point);
        let cause = self.group(|group| (group.take_cause(), Vec::new()))?;
        let because = cause.as_ref().map(|cause| format!(": {cause}")).unwrap_or_default();
        self.at.cx.report_text(format!("the processes restart from step {from}{because}"));
        // A lost node is not a member of the next configuration.
        let Some(ConfigurationEnd::Link(one, other)) = cause else { return Ok(()) };
        let reached = (from, self.reported);
        if std::mem::replace(&mut self.failed_at, reached) != reached {
            self.link_failures = 0;
        }
        self.link_failures += 1;
        if self.link_failures >= BREAKS_MAX {
            return Err(Stop::fail(format_args!(
                "the processes restarted from step {from} {BREAKS_MAX} times without progress, \
                 because links broke, the last time between {one} and {other}: check that these \
                 two reach each other (`springtide net check --all-pairs`), or run the job \
                 without one of them"
            )));
        }
        let pause = pause_after(self.link_failures);
        if !pause.is_zero() {
            self.at.cx.report_text(format!(
                "links broke {} times without progress: waiting {} s",
                self.link_failures,
                pause.as_secs()
            ));
            self.at.cx.wait_for(false, Some(Instant::now() + pause), &|| false)?;
        }
        Ok(())
    }

    fn group<R>(
        &self,
        action: impl FnOnce(&mut ProcessGroup) -> (R, Vec<OutgoingMessage>),
    ) -> Result<R, Stop> {
        self.at.post.group(&self.at.group, action).ok_or_else(group_ended)
    }

    /// Proposes an action to all members. Returns whether the group accepted the proposal.
    fn propose(&self, action: CollectiveAction) -> Result<bool, Stop> {
        self.group(|group| match group.propose(action) {
            Some(messages) => (true, messages),
            None => (false, Vec::new()),
        })
    }

    /// Proposes a configuration. If the group refuses it, the root decides again at its next point.
    fn propose_change(&mut self, next: Configuration) -> Result<(), Stop> {
        if !self.propose(CollectiveAction::Change(next))? {
            self.decided = None;
        }
        Ok(())
    }

    fn read_group<R>(&self, action: impl FnOnce(&ProcessGroup) -> R) -> Result<R, Stop> {
        self.at.post.read_group(&self.at.group, action).ok_or_else(group_ended)
    }

    // --- processes ---

    /// Waits until all spawned processes have reported, or for the longest wait.
    fn wait_for_processes(&mut self) -> Result<(), Stop> {
        let until = Instant::now() + START_WAIT;
        loop {
            self.reconcile()?;
            let settled = || {
                let waits = |group: &ProcessGroup| {
                    let count = |fits: &dyn Fn(ProcessState) -> bool| {
                        group
                            .process_states()
                            .filter(|(at, _, state)| *at != 0 && fits(*state))
                            .count()
                    };
                    let arrived = count(&|state| {
                        matches!(state, ProcessState::Waiting | ProcessState::Member)
                    });
                    // Surplus processes belong to nodes that left.
                    arrived < self.pool.capacity
                        && count(&|state| {
                            matches!(state, ProcessState::Spawned | ProcessState::Leaving)
                        }) > 0
                };
                !self.at.post.read_group(&self.at.group, waits).unwrap_or(false)
            };
            // Computed in each iteration, for the members may have changed.
            if settled() || Instant::now() >= until {
                return Ok(());
            }
            self.wait_some(until, &settled)?;
        }
    }

    /// Waits until `settled`, but at most 100 ms and not beyond `until`, for the members may
    /// change.
    fn wait_some(&self, until: Instant, settled: &dyn Fn() -> bool) -> Result<(), Stop> {
        let look = (Instant::now() + Duration::from_millis(100)).min(until);
        self.at.cx.wait_for(false, Some(look), settled).map(drop)
    }

    /// Dismisses leaving processes as soon as the others have their state.
    ///
    /// At the root's next point it could be a long step later, while another job waits for their
    /// nodes.
    fn dismiss_leavers(&mut self) -> Result<(), Stop> {
        if !self.present()?.0.iter().any(|one| one.leaving) {
            return Ok(());
        }
        let until = Instant::now() + HANDOVER_WAIT;
        let settled = || {
            let settled =
                |group: &ProcessGroup| group.is_settled() || group.configuration().is_none();
            self.at.post.read_group(&self.at.group, settled).unwrap_or(true)
        };
        while !settled() && Instant::now() < until {
            self.wait_some(until, &settled)?;
        }
        self.reconcile()
    }

    /// Brings the pool in line with the members.
    fn reconcile(&mut self) -> Result<(), Stop> {
        let call =
            |group, number| MalleableProcess { group, number, program: self.program.clone() };
        self.pool.reconcile(&self.at, call)
    }

    /// The present processes, and the number of those expected.
    fn present(&self) -> Result<(Vec<PresentProcess>, usize), Stop> {
        let members = self.at.post.members();
        let leaving = |peer: &Peer| {
            !members.iter().any(|member| member.peer == *peer && self.pool.stays(member))
        };
        self.read_group(|group| {
            let mut coming = 0;
            let mut present = Vec::new();
            for (process, peer, state) in group.process_states() {
                let Some(peer) =
                    peer.filter(|_| matches!(state, ProcessState::Waiting | ProcessState::Member))
                else {
                    coming +=
                        usize::from(matches!(state, ProcessState::Spawned | ProcessState::Leaving));
                    continue;
                };
                let rank =
                    group.configuration().and_then(|configuration| configuration.rank_of(process));
                let leaving = process != 0 && leaving(peer);
                present.push(PresentProcess { process, peer: peer.clone(), rank, leaving });
            }
            // Surplus processes belong to nodes that left.
            let staying = present.iter().filter(|one| one.process != 0 && !one.leaving).count();
            let present = match self.program.placement() {
                Placement::EachThread => present,
                Placement::EachNode => first_of_nodes(present),
            };
            (present, coming.min(self.pool.capacity.saturating_sub(staying)))
        })
    }

    // --- observe, decide, plan ---

    fn observe(
        &self,
        present: &[PresentProcess],
        point: u64,
        paces: &[Option<StepRate>],
    ) -> Observation {
        let count = |fits: &dyn Fn(&PresentProcess) -> bool| {
            u32::try_from(present.iter().filter(|one| fits(one)).count()).unwrap_or(u32::MAX)
        };
        Observation {
            point,
            steps: self.program.steps(),
            processes: count(&|one| one.rank.is_some()),
            available: count(&|one| !one.leaving),
            leaving: count(&|one| one.leaving && one.rank.is_some()),
            paces: paces.to_vec(),
            places: places_of(present),
            needed: self.needed.map(|(need, _)| need),
            refused: self.refused.clone(),
        }
    }

    /// Requests nodes for the program.
    fn request_nodes(&mut self, need: Need) {
        if self.needed.is_some_and(|(open, _)| open == need) {
            return;
        }
        let Need { more, within } = need;
        self.at.cx.report_text(match within {
            None => format!("the program would use {more} more node{}", plural(more)),
            Some(time) => {
                format!("the program needs {more} more node{} within {time:?}", plural(more))
            }
        });
        self.at.cx.need_nodes(more, within);
        (self.needed, self.refused) = (Some((need, self.pool.nodes)), None);
    }

    /// Updates the open request for nodes.
    fn update_request(&mut self) {
        let Some((need, had)) = &mut self.needed else { return };
        if let Some(why) = self.at.cx.refused() {
            self.refused = Some(RequestRefusal { need: *need, why });
            self.needed = None;
            // The program must decide how to continue without the nodes.
            self.decided = None;
            return;
        }
        // Nodes that leave meanwhile do not count as arrivals.
        *had = self.pool.nodes.min(*had);
        if self.pool.nodes >= had.saturating_add(need.more) {
            self.needed = None;
        }
    }

    /// Asks the decision procedure, and plans for the present processes.
    fn decide(
        &mut self,
        present: &[PresentProcess],
        point: u64,
        layout: Option<&P::Layout>,
    ) -> Result<(NextConfiguration, P::Layout), Stop> {
        let paces = self.read_group(|group| group.step_rates())?;
        let observation = self.observe(present, point, &paces);
        let mut strategy = self.program.decide(&observation, layout);
        if let Strategy::Need(need) = strategy {
            self.request_nodes(need);
            strategy = Strategy::Keep;
        }
        if let (Strategy::Keep | Strategy::Rebalance, 1..) = (strategy, observation.leaving) {
            let processes = observation.available.min(observation.processes);
            strategy = Strategy::Use { processes, release: false };
        }
        let plan = plan(strategy, present);
        tracing::debug!(?observation, ?strategy, ?plan, "the program decides");
        self.decided = Some(process_set(present));
        self.decided_at = Instant::now();
        let members = self.at.post.members();
        let threads = |peer: &Peer| match self.program.placement() {
            Placement::EachThread => 1,
            Placement::EachNode => {
                members.iter().find(|member| member.peer == *peer).map_or(1, |one| one.threads)
            }
        };
        let hands = plan.members.iter().map(|process| {
            let one = present.iter().find(|one| one.process == *process);
            let was = one.and_then(|one| one.rank);
            let pace = was.and_then(|was| paces.get(was as usize).copied().flatten());
            let at = one.map(|one| (one.peer.cluster.clone(), one.peer.node.clone()));
            let threads = one.map_or(0, |one| threads(&one.peer));
            ProcessInfo { previous_rank: was, pace, threads, location: at }
        });
        let hands: Vec<ProcessInfo> = hands.collect();
        Ok((plan, self.program.layout(&hands, layout)))
    }

    fn configuration_of(
        &self,
        plan: &NextConfiguration,
        layout: &P::Layout,
    ) -> Result<Option<Configuration>, Stop> {
        let layout = wire::encode_payload(layout)?;
        self.group(|group| (group.make_configuration(&plan.members, layout), Vec::new()))
    }

    /// Whether the root still waits for the expected processes.
    fn waits_for(&self, coming: usize) -> bool {
        coming > 0 && Instant::now() < self.pool.spawned_at + GROWTH_WAIT
    }

    /// Sets the nodes to release. While processes are expected, the decision is postponed instead,
    /// for these nodes may be of use with them.
    fn plan_release(&mut self, nodes: Vec<NodeId>, waits: bool) {
        if waits && !nodes.is_empty() {
            self.decided = None;
            self.release.clear();
        } else {
            self.release = nodes;
        }
    }

    /// Releases nodes: their processes end, and none are spawned for their threads.
    fn release_nodes(&mut self) -> Result<(), Stop> {
        let nodes = std::mem::take(&mut self.release);
        if nodes.is_empty() {
            return Ok(());
        }
        self.pool.release(&self.at, nodes);
        self.reconcile()
    }

    fn say_size(&self, configuration: &Configuration, point: u64) {
        let nodes: BTreeSet<&Peer> =
            configuration.members.iter().map(|member| &member.peer).collect();
        self.at.cx.report_text(size_text(point, configuration.size(), nodes.len()));
    }

    // --- execute ---

    /// Starts the first configuration, or the first after one that has ended.
    fn form(&mut self) -> Result<FormResult<'c, P>, Stop> {
        // The root's process leaves the previous configuration before it enters this one. Otherwise
        // it would send pieces of state without waiting for room.
        self.at.with_process(|local| local.leave());
        self.group(|group| (group.begin_decision(), Vec::new()))?;
        let (present, coming) = self.present()?;
        let point = self.saved.as_ref().map_or(0, |saved| saved.point);
        let (plan, layout) = self.decide(&present, point, None)?;
        let Some(configuration) = self.configuration_of(&plan, &layout)? else {
            return Ok(FormResult::Retry);
        };
        let single = whole(self.program);
        let origin = match &self.saved {
            None => StateSource::Start,
            Some(_) => StateSource::From { givers: 1, layout: wire::encode_payload(&single)? },
        };
        let formed = self.group(|group| {
            let out = group.form(configuration.clone(), origin.clone(), point);
            (out.is_some(), out.unwrap_or_default())
        })?;
        if !formed {
            // A node was lost meanwhile, so the root checks its processes again.
            return Ok(FormResult::Retry);
        }
        if let Some(saved) = &self.saved {
            let state: P::State = wire::decode_payload(&saved.state)?;
            for to in 0..configuration.size() {
                let piece = self.program.split_state(&state, (&single, 0), (&layout, to))?;
                self.at.give(&configuration, 0, to, piece)?;
            }
        }
        self.plan_release(plan.release, self.waits_for(coming));
        let recruit = Invitation { configuration, origin, point };
        match ComputeProcess::enter(self.program, self.at.clone(), recruit)? {
            StepResult::Done(part) => {
                self.say_size(&part.configuration, point);
                Ok(FormResult::Whole(Box::new(part)))
            }
            StepResult::Ended => Ok(FormResult::Ended),
        }
    }

    /// Computes until the program ends. None: the configuration has ended.
    fn compute(&mut self, mut part: ComputeProcess<'c, P>) -> Result<Option<Outcome>, Stop> {
        loop {
            match part.arrive()? {
                StepResult::Done(PointResult::Go) => {}
                StepResult::Done(PointResult::Saved(state)) => {
                    self.group(|group| (group.done(), Vec::new()))?;
                    if let Some(whole) = state {
                        self.save(part.point, whole)?;
                    }
                    continue;
                }
                StepResult::Done(PointResult::Changed) => {
                    self.say_size(&part.configuration, part.point);
                    self.dismiss_leavers()?;
                    continue;
                }
                StepResult::Done(PointResult::Decide) => {
                    self.group(|group| (group.done(), Vec::new()))?;
                    if self.manage(&part)? == NextAction::Stopped {
                        return Ok(None);
                    }
                    // Refused if an action has been proposed. The others wait for either.
                    self.propose(CollectiveAction::Continue)?;
                    continue;
                }
                // The root is in every configuration.
                StepResult::Done(PointResult::Free) | StepResult::Ended => return Ok(None),
            }
            if part.is_over() {
                return match part.finish()? {
                    StepResult::Done(outcome) => {
                        self.wait_for_all()?;
                        Ok(Some(outcome))
                    }
                    StepResult::Ended => Ok(None),
                };
            }
            if self.manage(&part)? == NextAction::Stopped {
                return Ok(None);
            }
            // The root computes as all processes do, so this time is not the root's own.
            if let StepResult::Ended = self.at.cx.as_work(|| part.step())? {
                return Ok(None);
            }
            if part.point > self.reported {
                self.reported = part.point;
                self.at.cx.iteration_done();
                self.at.cx.progress(part.point, self.program.steps(), "steps");
            }
        }
    }

    /// Waits until all processes have finished the work after the last step, so that its output and
    /// failures count. The outcome is known: after a loss of a node nothing is repeated.
    fn wait_for_all(&mut self) -> Result<(), Stop> {
        let over = |group: &ProcessGroup| group.all_done() || group.configuration().is_none();
        let settled = || self.at.post.read_group(&self.at.group, over).unwrap_or(true);
        self.at.wait(false, &settled)?;
        // The failure of a failed process is known now.
        self.reconcile()?;
        let cause = self.group(|group| (group.take_cause(), Vec::new()))?;
        if let Some(cause) = cause {
            self.at.cx.report_text(format!(
                "{cause} after the last step: later output of processes may be lost"
            ));
        }
        Ok(())
    }

    fn save(&mut self, point: u64, whole: Whole) -> Result<(), Stop> {
        let state = match whole {
            Whole::State(state) => state,
            Whole::TooLong(len) => {
                self.saves = false;
                self.at.cx.report_text(format!(
                    "the program's state has {len} bytes, and no more than {} are saved: after the \
                     loss of a node the program restarts from {}",
                    P::SAVED_MAX.min(SAVED_MAX),
                    match &self.saved {
                        Some(saved) => format!("step {}, the last that was", saved.point),
                        None => "its start".to_owned(),
                    }
                ));
                return Ok(());
            }
        };
        let saved = SavedState { point, state, told: self.reported };
        self.at.cx.checkpoint_beside_processes(&saved)?;
        self.saved = Some(saved);
        Ok(())
    }

    /// Called at the root's points: handles changes of processes, and proposes an action for a
    /// later point.
    fn manage(&mut self, part: &ComputeProcess<'c, P>) -> Result<NextAction, Stop> {
        self.reconcile()?;
        // A decision while an action is proposed could not be proposed itself, and would be lost.
        if !self.read_group(|group| group.is_settled() && !group.has_proposal())? {
            return Ok(NextAction::Continue);
        }
        self.release_nodes()?;
        self.update_request();
        // A state too long to be saved cannot move, so the root is moved without it.
        if self.at.cx.checkpoint_wanted() && self.saves {
            return self.prepare_move(part);
        }
        self.group(|group| (group.begin_decision(), Vec::new()))?;
        let (present, coming) = self.present()?;
        let urgent = present.iter().any(|one| one.leaving && one.rank.is_some());
        let waits = self.waits_for(coming);
        let changed = self.decided.as_ref() != Some(&process_set(&present));
        let all_reported =
            self.read_group(|group| group.step_rates().iter().all(Option::is_some))?;
        let due_again = all_reported && Instant::now() >= self.decided_at + DECISION_INTERVAL;
        if urgent || (changed || due_again) && !waits {
            let (plan, layout) = self.decide(&present, part.point, Some(&part.layout))?;
            let members = part.configuration.members.iter().map(|member| member.process);
            let others = !members.eq(plan.members.iter().copied());
            self.plan_release(plan.release.clone(), waits);
            if others || plan.new_layout && layout != part.layout {
                if let Some(configuration) = self.configuration_of(&plan, &layout)? {
                    self.propose_change(configuration)?;
                }
                return Ok(NextAction::Continue);
            }
            self.release_nodes()?;
        }
        let saved = self.saved.as_ref().map_or(0, |saved| saved.point);
        let due = self.saves && self.program.is_checkpointed() && part.point > saved;
        if due && self.at.cx.checkpoint_due() {
            // Refused, the checkpoint is still due at the next point.
            self.propose(CollectiveAction::Save)?;
        }
        Ok(NextAction::Continue)
    }

    /// Prepares the move of the root: collects all state here and ends the other processes.
    fn prepare_move(&mut self, part: &ComputeProcess<'c, P>) -> Result<NextAction, Stop> {
        if part.configuration.size() > 1 {
            let plan =
                NextConfiguration { members: vec![0], new_layout: false, release: Vec::new() };
            if let Some(configuration) = self.configuration_of(&plan, &whole(self.program))? {
                self.propose_change(configuration)?;
            }
            return Ok(NextAction::Continue);
        }
        let whole = part.whole_state()?;
        if let Whole::TooLong(_) = whole {
            self.save(part.point, whole)?;
            return Ok(NextAction::Continue);
        }
        self.pool.collect_all(&self.at);
        self.save(part.point, whole)?;
        // If the root need not move any more, it continues as after a loss.
        Ok(NextAction::Stopped)
    }
}

/// The result of starting a configuration.
enum FormResult<'c, P: Program> {
    /// All are recruited, and the root has its state.
    Whole(Box<ComputeProcess<'c, P>>),
    /// No process was recruited, for one is no longer present: the root checks again.
    Retry,
    /// The configuration ended before the root had its state.
    Ended,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum NextAction {
    /// Continue with the next step.
    Continue,
    /// No process computes any more.
    Stopped,
}

fn process_set(present: &[PresentProcess]) -> ProcessSet {
    present.iter().map(|one| (one.process, one.peer.clone(), one.leaving)).collect()
}

/// Computing processes in order of rank, then the others by node.
fn places_of(present: &[PresentProcess]) -> Vec<MemberProcess> {
    let mut places: Vec<MemberProcess> = present
        .iter()
        .map(|one| MemberProcess {
            rank: one.rank,
            cluster: one.peer.cluster.clone(),
            node: one.peer.node.clone(),
            leaving: one.leaving,
        })
        .collect();
    places.sort_by(|a, b| {
        let key = |place: &MemberProcess| (place.rank.is_none(), place.rank);
        key(a).cmp(&key(b)).then_with(|| a.node.cmp(&b.node))
    });
    places
}

fn plural(count: u32) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// Describes the numbers of processes and nodes from a step on.
fn size_text(point: u64, processes: u32, nodes: usize) -> String {
    let processes = match processes {
        1 => "1 process computes".to_owned(),
        n => format!("{n} processes compute"),
    };
    let nodes = u32::try_from(nodes).unwrap_or(u32::MAX);
    format!("from step {point} on {processes} on {nodes} node{}", plural(nodes))
}
