//! The decisions of a run: which task starts where, which pilots it needs, and when the rest is
//! planned again.
//!
//! A state machine without I/O and without a clock: [`FlowEvent`]s and the time in,
//! [`FlowAction`]s out. This module does not know what tasks compute, how jobs are submitted, or
//! how a plan is made.

use std::collections::{BTreeMap, BTreeSet};

use springtide_actors::policy::provisioning::{
    AvailabilityProfile, NEVER, SECOND, Time, from_seconds, seconds,
};
use springtide_actors::reservation::{ReservationId, ReservedSlot};
use springtide_runtime::id::ClusterId;
use springtide_runtime::pilot::{TaskEnd, TaskUsage};

use super::pilots::{
    IDLE_TIME, PilotId, PilotNode, PilotTable, PlacedTask, SHORT_IDLE_TIME, WantedNode,
};
use super::table::{FailureKind, Step, TaskLimits, TaskState, TaskTable};

/// The pause after a refused pilot or job.
const PAUSE: Time = 2 * SECOND;
/// The most refusals of pilots in a row.
const REFUSALS_MAX: u32 = 30;
/// The most pilots that wait for their nodes.
const SUBMITTED_MAX: usize = 16;
/// The most jobs that are tasks of their own and wait for their nodes or run.
const JOBS_MAX: usize = 256;
/// A pilot gets no more tasks after this time if other jobs wait.
const PILOT_TURN_MAX: Time = 30 * SECOND;
/// Memory of a node in bytes, besides that of its tasks.
const NODE_MEMORY: u64 = 64 << 20;
/// Ready tasks that are considered at once.
const READY_CONSIDERED_MAX: usize = 512;

/// The files of a task.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepFiles {
    /// Files that it reads: each with its bytes.
    pub inputs: Vec<(usize, u64)>,
    /// Files that it writes.
    pub outputs: Vec<usize>,
}

/// A plan of tasks that have not started, and the reservation for it.
#[derive(Clone, Debug, PartialEq)]
pub struct AgreedPlan {
    /// Number of the reservation.
    pub reservation: ReservationId,
    /// The cluster and planned start of each task.
    pub places: BTreeMap<usize, (ClusterId, Time)>,
    /// What is reserved for them.
    pub parts: Vec<ReservedSlot>,
}

/// The planned place of a task.
#[derive(Clone, Debug, PartialEq)]
struct PlannedPlace {
    cluster: ClusterId,
    reservation: ReservationId,
}

/// An event of a run.
#[derive(Clone, Debug, PartialEq)]
pub enum FlowEvent {
    /// The run begins, or time has passed.
    Tick,
    /// The rest is planned, and its slots are reserved.
    Agreed(AgreedPlan),
    /// Tasks cannot be planned.
    PlanFailed {
        /// The tasks.
        tasks: BTreeSet<usize>,
        /// The reason.
        reason: String,
    },
    /// A reservation has ended or was lost.
    ReservationLost {
        /// The reservation.
        reservation: ReservationId,
        /// The reason.
        reason: String,
    },
    /// A pilot is ready for tasks.
    PilotReady {
        /// The pilot.
        pilot: PilotId,
        /// Its node.
        node: PilotNode,
    },
    /// A pilot has ended, or could not start.
    PilotEnded {
        /// The pilot.
        pilot: PilotId,
        /// The reason.
        reason: String,
        /// Whether the grid can never run such a pilot.
        impossible: bool,
    },
    /// The program of a task has started.
    Started {
        /// The number of the attempt.
        number: u64,
    },
    /// An attempt has ended.
    Ended {
        /// The number of the attempt.
        number: u64,
        /// How it ended.
        end: TaskEnd,
        /// What it used.
        usage: TaskUsage,
        /// Its cluster, for a job; a pilot's is known.
        cluster: Option<ClusterId>,
    },
    /// The inputs of an attempt are in its cluster, or cannot be brought there.
    Staged {
        /// The number of the attempt.
        number: u64,
        /// The reason of a failure.
        result: Result<(), String>,
    },
    /// Whether jobs of others wait.
    OthersWait(bool),
}

/// An action of a run.
#[derive(Clone, Debug, PartialEq)]
pub enum FlowAction {
    /// Submit a pilot.
    SubmitPilot {
        /// The pilot.
        pilot: PilotId,
        /// The requirements of its node.
        wanted: WantedNode,
    },
    /// Let a pilot end after its tasks.
    FinishPilot {
        /// The pilot.
        pilot: PilotId,
    },
    /// Bring files to a cluster, then report [`FlowEvent::Staged`].
    Stage {
        /// The pilot of the attempt.
        pilot: PilotId,
        /// The number of the attempt.
        number: u64,
        /// Each file with the clusters that have it.
        files: Vec<(usize, Vec<ClusterId>)>,
        /// The cluster that needs them.
        cluster: ClusterId,
    },
    /// Send a task to a pilot.
    Run {
        /// The pilot.
        pilot: PilotId,
        /// The number of the attempt.
        number: u64,
        /// The task and its attempt.
        placed: PlacedTask,
        /// The limits of the attempt.
        limits: TaskLimits,
    },
    /// Submit a task that is a registered job.
    SubmitJob {
        /// The number of the attempt.
        number: u64,
        /// The task.
        task: usize,
        /// Its cluster; any if absent.
        cluster: Option<ClusterId>,
        /// Its reservation, if it has one.
        reservation: Option<ReservationId>,
    },
    /// Record that a task was completed.
    Completed {
        /// The task and its attempt.
        placed: PlacedTask,
        /// Its cluster.
        cluster: Option<ClusterId>,
        /// What it used.
        usage: TaskUsage,
    },
    /// Record that an attempt failed.
    Failed {
        /// The task and its attempt.
        placed: PlacedTask,
        /// The reason, as the predicate of a sentence about the task.
        reason: String,
        /// What it used.
        usage: TaskUsage,
        /// Whether another attempt follows.
        again: bool,
    },
    /// Plan these tasks, reserve slots for them, and report [`FlowEvent::Agreed`].
    Plan {
        /// The tasks that have not started.
        tasks: BTreeSet<usize>,
        /// The reason.
        reason: String,
    },
    /// Tell the user.
    Say(String),
    /// The run is over: nothing runs and nothing follows.
    Over {
        /// The reason why it ended before its tasks, if it did.
        reason: Option<String>,
    },
}

/// Where an attempt is under way.
#[derive(Clone, Debug, PartialEq)]
enum AttemptPlace {
    /// On a pilot.
    Pilot(PilotId),
    /// As a job of its own.
    Job,
}

#[derive(Clone, Debug, PartialEq)]
struct Attempt {
    placed: PlacedTask,
    place: AttemptPlace,
    cluster: Option<ClusterId>,
    since: Time,
    /// Whether its program or its job has started.
    has_started: bool,
}

/// When and where a task ran.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TaskTimes {
    /// The cluster of its last attempt.
    pub cluster: Option<ClusterId>,
    /// The start of its last attempt.
    pub start: Option<Time>,
    /// The end of its last attempt.
    pub end: Option<Time>,
}

/// The parameters of a run.
#[derive(Clone, Debug)]
pub struct FlowSettings {
    /// Whether tasks run on reserved slots.
    pub reserves: bool,
    /// Maximum number of plans.
    pub plans_max: u32,
    /// Clusters with a directory of files.
    pub file_clusters: BTreeSet<ClusterId>,
    /// Maximum number of pilots at a time.
    pub pilots_max: usize,
}

/// The decisions of a run: which task starts where, and when pilots begin and end.
#[derive(Debug)]
pub struct Flow {
    table: TaskTable,
    files: Vec<StepFiles>,
    /// Tasks that are jobs of their own.
    jobs: BTreeSet<usize>,
    pilots: PilotTable,
    /// The clusters that have each file.
    locations: Vec<BTreeSet<ClusterId>>,
    attempts: BTreeMap<u64, Attempt>,
    next_number: u64,
    times: Vec<TaskTimes>,
    settings: FlowSettings,
    /// Refusals of pilots since the last ready one, and the last reason.
    refusals: u32,
    pause_until: Time,
    /// Requirements that no node of the grid meets, with the reasons.
    impossible: Vec<(WantedNode, String)>,
    others_wait: bool,
    /// The planned places of tasks.
    places: BTreeMap<usize, PlannedPlace>,
    /// Tasks that run without a reservation, since plans for them failed.
    unreserved: BTreeSet<usize>,
    /// What each reservation has.
    reservations: BTreeMap<ReservationId, Vec<ReservedSlot>>,
    /// What all reservations have of each cluster.
    reserved: BTreeMap<ClusterId, AvailabilityProfile>,
    /// The most processors at a time of the largest plan.
    planned_processors: u32,
    is_planning: bool,
    plans: u32,
    is_over: bool,
    abort: Option<String>,
}

impl Flow {
    /// A run that has not begun. `jobs`: tasks that are jobs of their own. `files`: the number of
    /// files of the workflow.
    pub fn new(
        table: TaskTable,
        files: Vec<StepFiles>,
        jobs: BTreeSet<usize>,
        file_count: usize,
        settings: FlowSettings,
    ) -> Self {
        let count = table.steps().len();
        Self {
            table,
            files,
            jobs,
            pilots: PilotTable::default(),
            locations: vec![BTreeSet::new(); file_count],
            attempts: BTreeMap::new(),
            next_number: 0,
            times: vec![TaskTimes::default(); count],
            settings,
            refusals: 0,
            pause_until: 0,
            impossible: Vec::new(),
            others_wait: false,
            places: BTreeMap::new(),
            unreserved: BTreeSet::new(),
            reservations: BTreeMap::new(),
            reserved: BTreeMap::new(),
            planned_processors: 0,
            is_planning: false,
            plans: 0,
            is_over: false,
            abort: None,
        }
    }

    /// The table of tasks.
    pub fn table(&self) -> &TaskTable {
        &self.table
    }

    /// When and where tasks ran.
    pub fn times(&self) -> &[TaskTimes] {
        &self.times
    }

    /// The number of plans.
    pub fn plans(&self) -> u32 {
        self.plans
    }

    /// The table of pilots.
    pub fn pilots(&self) -> &PilotTable {
        &self.pilots
    }

    /// The task of an attempt that is under way.
    pub fn attempt(&self, number: u64) -> Option<PlacedTask> {
        self.attempts.get(&number).map(|attempt| attempt.placed)
    }

    /// The clusters that have a file.
    pub fn locations(&self, file: usize) -> &BTreeSet<ClusterId> {
        &self.locations[file]
    }

    /// Records that a cluster has a file, before the run begins.
    pub fn add_location(&mut self, file: usize, cluster: ClusterId) {
        self.locations[file].insert(cluster);
    }

    /// Records that an earlier run completed a task, before this one begins.
    pub fn restore(&mut self, task: usize, times: TaskTimes) {
        self.table.complete(task);
        self.times[task] = times;
    }

    /// Continues the number of attempts of an earlier process.
    pub fn set_attempts(&mut self, task: usize, attempts: u32) {
        self.table.set_attempts(task, attempts);
    }

    /// Processes an event, and returns the actions that follow.
    pub fn handle(&mut self, event: FlowEvent, now: Time) -> Vec<FlowAction> {
        let mut out = Vec::new();
        if self.is_over {
            return out;
        }
        match event {
            FlowEvent::Tick => {}
            FlowEvent::Agreed(agreed) => self.take_plan(agreed),
            FlowEvent::PlanFailed { tasks, reason } => {
                self.is_planning = false;
                self.run_unreserved(tasks, &reason, &mut out);
            }
            FlowEvent::ReservationLost { reservation, reason } => {
                self.lose_reservation(reservation, reason, now, &mut out);
            }
            FlowEvent::PilotReady { pilot, node } => {
                self.refusals = 0;
                self.pilots.set_ready(pilot, node, now);
            }
            FlowEvent::PilotEnded { pilot, reason, impossible } => {
                self.pilot_ended(pilot, &reason, impossible, now, &mut out);
            }
            FlowEvent::Started { number } => {
                if let Some(attempt) = self.attempts.get_mut(&number) {
                    (attempt.since, attempt.has_started) = (now, true);
                    let times = &mut self.times[attempt.placed.task];
                    (times.start, times.cluster) = (Some(now), attempt.cluster.clone());
                }
            }
            FlowEvent::Ended { number, end, usage, cluster } => {
                self.attempt_ended(number, end, usage, cluster, now, &mut out);
            }
            FlowEvent::Staged { number, result } => self.staged(number, result, now, &mut out),
            FlowEvent::OthersWait(wait) => self.others_wait = wait,
        }
        self.advance(now, &mut out);
        out
    }

    /// Ends the run: no further task starts.
    pub fn stop(&mut self, reason: String) {
        self.abort.get_or_insert(reason);
        self.table.stop();
    }

    /// The time of the next [`FlowEvent::Tick`].
    pub fn due(&self, now: Time) -> Option<Time> {
        let lines = self.reserved.values();
        let steps = lines.filter_map(|line| line.steps().map(|(at, _)| at).find(|&at| at > now));
        let pause = Some(self.pause_until).filter(|&at| at > now);
        let idle = self.pilots.idle_at(self.idle_time()).map(|at| at.max(now + 1));
        // A task that takes longer than planned keeps others from their places.
        let late = self.attempts.values().filter(|_| self.settings.reserves);
        let late = late.map(|attempt| self.holds_until(attempt, now));
        steps.chain(pause).chain(idle).chain(late).min()
    }

    fn holds_until(&self, attempt: &Attempt, now: Time) -> Time {
        let lasts = self.table.steps()[attempt.placed.task].lasts;
        attempt.since.saturating_add(lasts).max(now + SECOND)
    }

    // --- ends of attempts and pilots ---

    fn pilot_ended(
        &mut self,
        pilot: PilotId,
        reason: &str,
        impossible: bool,
        now: Time,
        out: &mut Vec<FlowAction>,
    ) {
        let Some(ended) = self.pilots.remove(pilot) else { return };
        let reservation = ended.wanted.reservation;
        for number in ended.tasks.keys().copied() {
            self.end_attempt(number, FailureKind::Interrupted, reason, TaskUsage::default(), out);
        }
        if ended.node.is_some() || ended.finishes {
            self.plan_unserved();
            return;
        }
        if let Some(reservation) = reservation.filter(|id| impossible && self.is_past(*id, now)) {
            return self.lose_reservation(reservation, reason.to_owned(), now, out);
        }
        if impossible {
            self.impossible.push((ended.wanted, reason.to_owned()));
            return;
        }
        self.refusals += 1;
        self.pause_until = now.saturating_add(PAUSE);
        if self.refusals > REFUSALS_MAX {
            self.stop(reason.to_owned());
        }
    }

    fn attempt_ended(
        &mut self,
        number: u64,
        end: TaskEnd,
        usage: TaskUsage,
        cluster: Option<ClusterId>,
        now: Time,
        out: &mut Vec<FlowAction>,
    ) {
        let Some(attempt) = self.attempts.get(&number) else { return };
        if let AttemptPlace::Pilot(pilot) = attempt.place {
            self.pilots.take(pilot, number, Some(usage.wall_s), now);
        }
        let (placed, cluster) = (attempt.placed, cluster.or_else(|| attempt.cluster.clone()));
        let (kind, reason) = match end {
            TaskEnd::Completed => {
                self.attempts.remove(&number);
                self.times[placed.task].end = Some(now);
                self.times[placed.task].cluster.clone_from(&cluster);
                if let Some(cluster) = &cluster {
                    for &file in &self.files[placed.task].outputs {
                        self.locations[file] = [cluster.clone()].into();
                    }
                }
                self.table.complete(placed.task);
                out.push(FlowAction::Completed { placed, cluster, usage });
                return;
            }
            TaskEnd::Failed { reason, .. } => (FailureKind::Task, reason),
            TaskEnd::TimeLimit => {
                let limit = self.table.limits(placed.task).time.unwrap_or_default();
                (FailureKind::TimeLimit, format!("exceeded its time limit of {limit:?}"))
            }
            TaskEnd::MemoryLimit { used } => {
                let (seen, kind) = (used >> 20, FailureKind::MemoryLimit { used });
                let limit = self.table.limits(placed.task).memory_bytes;
                let reason = match limit.filter(|limit| used > *limit) {
                    Some(limit) => format!("used {seen} MiB of memory, of {} MiB", limit >> 20),
                    None => format!(
                        "was ended by the kernel, because memory was short, and used at least \
                         {seen} MiB"
                    ),
                };
                (kind, reason)
            }
            TaskEnd::Cancelled => (FailureKind::Interrupted, "was cancelled".to_owned()),
            TaskEnd::Interrupted => {
                (FailureKind::Interrupted, "was interrupted: its node leaves".to_owned())
            }
        };
        self.end_attempt(number, kind, &reason, usage, out);
    }

    fn end_attempt(
        &mut self,
        number: u64,
        kind: FailureKind,
        reason: &str,
        usage: TaskUsage,
        out: &mut Vec<FlowAction>,
    ) {
        let Some(Attempt { placed, .. }) = self.attempts.remove(&number) else { return };
        let again = self.table.fail_or_retry(placed.task, kind, reason);
        out.push(FlowAction::Failed { placed, reason: reason.to_owned(), usage, again });
    }

    fn staged(
        &mut self,
        number: u64,
        result: Result<(), String>,
        now: Time,
        out: &mut Vec<FlowAction>,
    ) {
        let Some(attempt) = self.attempts.get(&number) else { return };
        let AttemptPlace::Pilot(pilot) = attempt.place else { return };
        let placed = attempt.placed;
        match result {
            Ok(()) => {
                if let Some(cluster) = attempt.cluster.clone() {
                    for &(file, _) in &self.files[placed.task].inputs {
                        self.locations[file].insert(cluster.clone());
                    }
                }
                let limits = self.table.limits(placed.task);
                out.push(FlowAction::Run { pilot, number, placed, limits });
            }
            Err(reason) => {
                self.pilots.take(pilot, number, None, now);
                let kind = FailureKind::Interrupted;
                self.end_attempt(number, kind, &reason, TaskUsage::default(), out);
            }
        }
    }

    // --- starts ---

    fn advance(&mut self, now: Time, out: &mut Vec<FlowAction>) {
        if self.settings.reserves && !self.is_planning && !self.table.is_stopped() {
            self.check_plan(now, out);
        }
        self.reject_impossible(out);
        self.start_tasks(now, out);
        self.submit_pilots(now, out);
        self.finish_pilots(now, out);
        if self.table.is_over() && !self.is_planning {
            self.is_over = true;
            for (pilot, _) in self.pilots.iter() {
                out.push(FlowAction::FinishPilot { pilot });
            }
            out.push(FlowAction::Over { reason: self.abort.clone() });
        }
    }

    /// Fails ready tasks that no node of the grid can run.
    fn reject_impossible(&mut self, out: &mut Vec<FlowAction>) {
        if self.impossible.is_empty() {
            return;
        }
        let has_node = |task: usize| {
            let wanted = self.wanted(task);
            self.pilots.coming(&wanted) > 0 || self.pilots.choose(&wanted, |_| Some(0)).is_some()
        };
        let rejected: Vec<(usize, String)> = self
            .table
            .ready()
            .filter_map(|task| Some((task, self.impossibility(task)?.to_owned())))
            .filter(|(task, _)| !has_node(*task))
            .collect();
        for (task, reason) in rejected {
            let reason = format!("cannot run: {reason}");
            self.table.reject(task, reason.clone());
            let (placed, usage) = (self.placed(task, 0), TaskUsage::default());
            out.push(FlowAction::Failed { placed, reason, usage, again: false });
        }
    }

    /// Why no node of the grid can run a task, if so.
    fn impossibility(&self, task: usize) -> Option<&str> {
        if self.jobs.contains(&task) {
            return None;
        }
        let wanted = self.wanted(task);
        let covers = |(refused, _): &&(WantedNode, String)| wanted.is_at_least(refused);
        self.impossible.iter().find(covers).map(|(_, reason)| reason.as_str())
    }

    /// The requirements of a task's node.
    fn wanted(&self, task: usize) -> WantedNode {
        let step = &self.table.steps()[task];
        let processors = step.processors.max(1);
        let memory = self.table.limits(task).memory_bytes.unwrap_or(0);
        let (cluster, reservation) = self.planned_place(task);
        // The node needs memory too, and ends all tasks when it exceeds its own.
        let node = if memory > 0 { memory / 4 + NODE_MEMORY } else { 0 };
        let memory_bytes = (memory + node).div_ceil(u64::from(processors));
        WantedNode { processors, memory_bytes, gpus: step.gpus, cluster, reservation }
    }

    fn placed(&self, task: usize, attempt: u32) -> PlacedTask {
        let Step { processors, gpus, .. } = self.table.steps()[task];
        PlacedTask { task, attempt, processors, gpus }
    }

    /// Whether a task may start.
    fn is_planned(&self, task: usize) -> bool {
        !self.settings.reserves
            || self.places.contains_key(&task)
            || self.unreserved.contains(&task)
    }

    /// Bytes that a cluster lacks of a task's inputs; `None` if the task cannot run there.
    fn missing_bytes(&self, task: usize, cluster: &ClusterId) -> Option<u64> {
        let files = &self.files[task];
        let has_files = !files.inputs.is_empty() || !files.outputs.is_empty();
        if has_files && !self.settings.file_clusters.contains(cluster) {
            return None;
        }
        let lacks =
            files.inputs.iter().filter(|(file, _)| !self.locations[*file].contains(cluster));
        Some(lacks.map(|(_, bytes)| bytes + 1).sum())
    }

    fn start_tasks(&mut self, now: Time, out: &mut Vec<FlowAction>) {
        // A whole chunk may start, and then others may follow.
        while self.start_chunk(now, out) {}
    }

    /// Starts ready tasks for which there is room. Returns whether further ones may start.
    fn start_chunk(&mut self, now: Time, out: &mut Vec<FlowAction>) -> bool {
        // Requirements for which no pilot has room.
        let mut full: Option<WantedNode> = None;
        let mut jobs = self.attempts.values().filter(|it| it.place == AttemptPlace::Job).count();
        let ready: Vec<usize> = self.table.ready().take(READY_CONSIDERED_MAX).collect();
        let mut started = 0;
        for &task in &ready {
            if !self.is_planned(task) {
                continue;
            }
            if self.jobs.contains(&task) {
                if jobs < JOBS_MAX && now >= self.pause_until {
                    jobs += 1;
                    started += 1;
                    self.start_job(task, now, out);
                }
                continue;
            }
            let wanted = self.wanted(task);
            if full.as_ref().is_some_and(|full| wanted.is_at_least(full)) {
                continue;
            }
            let cost = |cluster: &ClusterId| self.missing_bytes(task, cluster);
            match self.pilots.choose(&wanted, cost) {
                Some(pilot) => {
                    started += 1;
                    self.start_on(task, pilot, now, out);
                }
                // Without room in any cluster, no such task fits.
                None if self.pilots.choose(&wanted, |_| Some(0)).is_none() => {
                    let is_least = wanted.processors == 1 && wanted.memory_bytes == 0;
                    full = Some(wanted);
                    if is_least && self.jobs.is_empty() {
                        return false;
                    }
                }
                None => {}
            }
        }
        started == ready.len() && started > 0
    }

    fn start_on(&mut self, task: usize, pilot: PilotId, now: Time, out: &mut Vec<FlowAction>) {
        let Some(node) = self.pilots.get(pilot).and_then(|it| it.node.clone()) else { return };
        let cluster = node.cluster;
        let place = AttemptPlace::Pilot(pilot);
        let (number, placed) = self.begin(task, place, Some(cluster.clone()), now);
        self.pilots.place(pilot, number, placed);
        let lacks: Vec<(usize, Vec<ClusterId>)> = self.files[task]
            .inputs
            .iter()
            .filter(|(file, _)| !self.locations[*file].contains(&cluster))
            .map(|(file, _)| (*file, self.locations[*file].iter().cloned().collect()))
            .collect();
        if lacks.is_empty() {
            let limits = self.table.limits(task);
            out.push(FlowAction::Run { pilot, number, placed, limits });
        } else {
            out.push(FlowAction::Stage { pilot, number, files: lacks, cluster });
        }
    }

    fn start_job(&mut self, task: usize, now: Time, out: &mut Vec<FlowAction>) {
        let (cluster, reservation) = self.planned_place(task);
        let (number, _) = self.begin(task, AttemptPlace::Job, cluster.clone(), now);
        out.push(FlowAction::SubmitJob { number, task, cluster, reservation });
    }

    /// Begins an attempt. Returns its number.
    fn begin(
        &mut self,
        task: usize,
        place: AttemptPlace,
        cluster: Option<ClusterId>,
        since: Time,
    ) -> (u64, PlacedTask) {
        let attempt = self.table.begin(task);
        let placed = self.placed(task, attempt);
        self.next_number += 1;
        let attempt = Attempt { placed, place, cluster, since, has_started: false };
        self.attempts.insert(self.next_number, attempt);
        (self.next_number, placed)
    }

    /// Submits pilots for ready tasks that no pilot has room for.
    fn submit_pilots(&mut self, now: Time, out: &mut Vec<FlowAction>) {
        if now < self.pause_until || self.table.is_stopped() {
            return;
        }
        let mut submitted = self.pilots.submitted();
        let mut count = self.pilots.iter().count();
        if submitted >= SUBMITTED_MAX || count >= self.settings.pilots_max {
            return;
        }
        // What comes is used by the first tasks that fit.
        let mut coming: BTreeMap<WantedNode, i64> = BTreeMap::new();
        let ready: Vec<usize> = self.table.ready().take(READY_CONSIDERED_MAX).collect();
        for task in ready {
            if submitted >= SUBMITTED_MAX || count >= self.settings.pilots_max {
                return;
            }
            let is_own = !self.jobs.contains(&task) && self.is_planned(task);
            if !is_own || self.impossibility(task).is_some() {
                continue;
            }
            let wanted = self.wanted(task);
            // A reservation does not matter for what comes.
            let key = WantedNode { reservation: None, ..wanted.clone() };
            let processors = i64::from(wanted.processors);
            let left = coming.entry(key).or_insert_with(|| self.pilots.coming(&wanted));
            if *left >= processors {
                *left -= processors;
                continue;
            }
            let pilot = self.pilots.add(wanted.clone(), now);
            submitted += 1;
            count += 1;
            out.push(FlowAction::SubmitPilot { pilot, wanted });
        }
    }

    /// The cluster and the reservation of a task's plan.
    fn planned_place(&self, task: usize) -> (Option<ClusterId>, Option<ReservationId>) {
        self.places.get(&task).map(|place| (place.cluster.clone(), place.reservation)).unzip()
    }

    /// The time after which an idle pilot ends. Where ready tasks or jobs wait for other nodes,
    /// idle ones may be in their way.
    fn idle_time(&self) -> Time {
        let waits = |attempt: &Attempt| attempt.place == AttemptPlace::Job && !attempt.has_started;
        let is_short = self.table.ready().next().is_some() || self.attempts.values().any(waits);
        if is_short { SHORT_IDLE_TIME } else { IDLE_TIME }
    }

    fn finish_pilots(&mut self, now: Time, out: &mut Vec<FlowAction>) {
        let mut finish = self.pilots.idle(self.idle_time(), now);
        if self.others_wait {
            let is_reserved = |pilot: &super::pilots::Pilot| {
                pilot.wanted.reservation.is_some_and(|id| self.reservations.contains_key(&id))
            };
            let had_turn = |pilot: &super::pilots::Pilot| {
                let is_late = now >= pilot.since.saturating_add(PILOT_TURN_MAX);
                pilot.node.is_some() && !pilot.finishes && is_late && !is_reserved(pilot)
            };
            finish.extend(self.pilots.iter().filter(|(_, it)| had_turn(it)).map(|(id, _)| id));
        }
        self.finish_all(BTreeSet::from_iter(finish), out);
    }

    fn finish_all(&mut self, pilots: impl IntoIterator<Item = PilotId>, out: &mut Vec<FlowAction>) {
        for pilot in pilots {
            self.pilots.finish(pilot);
            out.push(FlowAction::FinishPilot { pilot });
        }
    }

    // --- plans ---

    fn take_plan(&mut self, agreed: AgreedPlan) {
        self.is_planning = false;
        let AgreedPlan { reservation, places, parts } = agreed;
        let mut all = AvailabilityProfile::default();
        for booking in parts.iter().flat_map(|part| &part.bookings) {
            all.give(booking.processors, booking.start, booking.end);
        }
        self.planned_processors = self.planned_processors.max(all.max_free(0, NEVER));
        self.table.set_order(places.iter().map(|(task, (_, start))| (*task, *start)));
        for (task, (cluster, _)) in places {
            self.places.insert(task, PlannedPlace { cluster, reservation });
        }
        self.reservations.insert(reservation, parts);
        self.sum_reservations();
    }

    fn sum_reservations(&mut self) {
        self.reserved.clear();
        for part in self.reservations.values().flatten() {
            let line = self.reserved.entry(part.cluster.clone()).or_default();
            part.bookings.iter().for_each(|b| line.give(b.processors, b.start, b.end));
        }
    }

    /// Whether a reservation has no more slots.
    fn is_past(&self, reservation: ReservationId, now: Time) -> bool {
        let parts = self.reservations.get(&reservation);
        let mut bookings = parts.into_iter().flatten().flat_map(|part| &part.bookings);
        bookings.all(|booking| booking.end <= now)
    }

    /// Tasks of a lost reservation are planned again, and its pilots end after their tasks. If
    /// only the time of the reservation is over, its pilots serve the tasks that are late. They
    /// keep their nodes as long as no other reservation needs them.
    fn lose_reservation(
        &mut self,
        reservation: ReservationId,
        reason: String,
        now: Time,
        out: &mut Vec<FlowAction>,
    ) {
        let is_past = self.is_past(reservation, now);
        if self.reservations.remove(&reservation).is_none() {
            return;
        }
        self.sum_reservations();
        if is_past {
            let theirs = self.table.unstarted().filter(|task| {
                self.places.get(task).is_some_and(|place| place.reservation == reservation)
            });
            let served = self.served(theirs.collect());
            self.places.retain(|_, place| place.reservation != reservation);
            if !served.is_empty() {
                self.run_unreserved(served, &format!("the time of {reservation} is over"), out);
            }
            return;
        }
        self.places.retain(|_, place| place.reservation != reservation);
        let theirs =
            self.pilots.iter().filter(|(_, it)| it.wanted.reservation == Some(reservation));
        let theirs: Vec<PilotId> =
            theirs.filter(|(_, it)| !it.finishes).map(|(id, _)| id).collect();
        self.finish_all(theirs, out);
        out.push(FlowAction::Say(reason));
    }

    /// The tasks that pilots with nodes can run, now or later. None if a plan may bring more
    /// processors than these pilots have.
    fn served(&self, mut tasks: BTreeSet<usize>) -> BTreeSet<usize> {
        tasks.retain(|&task| {
            let wanted = WantedNode { cluster: None, ..self.wanted(task) };
            self.pilots.serves(&wanted, |cluster| self.missing_bytes(task, cluster).is_some())
        });
        let needed = tasks.iter().map(|task| self.table.steps()[*task].processors);
        let needed = needed.fold(0, u32::saturating_add).min(self.planned_processors);
        if self.pilots.processors() < needed { BTreeSet::new() } else { tasks }
    }

    /// Lets tasks be planned again that wait for pilots which are lost.
    fn plan_unserved(&mut self) {
        if !self.settings.reserves || self.plans >= self.settings.plans_max {
            return;
        }
        let waiting: BTreeSet<usize> =
            self.table.unstarted().filter(|task| self.unreserved.contains(task)).collect();
        let served = self.served(waiting.clone());
        self.unreserved.retain(|task| !waiting.contains(task) || served.contains(task));
    }

    /// Runs tasks without a reservation.
    fn run_unreserved(&mut self, tasks: BTreeSet<usize>, reason: &str, out: &mut Vec<FlowAction>) {
        let count = tasks.len();
        tasks.iter().for_each(|task| drop(self.places.remove(task)));
        self.unreserved.extend(tasks);
        let s = if count == 1 { " runs" } else { "s run" };
        out.push(FlowAction::Say(format!("{count} task{s} without a reservation: {reason}")));
    }

    /// Plans tasks without a place, and ready tasks that do not fit into what is reserved.
    fn check_plan(&mut self, now: Time, out: &mut Vec<FlowAction>) {
        self.reserved.values_mut().for_each(|line| line.forget(now));
        let mut tasks: BTreeSet<usize> =
            self.table.unstarted().filter(|task| !self.is_planned(*task)).collect();
        let mut reason = if self.plans == 0 {
            "the run begins".to_owned()
        } else {
            "they have no place".to_owned()
        };
        let mut late: BTreeMap<usize, String> = self.late_tasks(now).into_iter().collect();
        if !late.is_empty() {
            let served = self.served(late.keys().copied().collect());
            late.retain(|task, _| !served.contains(task));
        }
        for (task, text) in late {
            tasks.insert(task);
            reason = text;
        }
        if tasks.is_empty() {
            return;
        }
        if self.plans >= self.settings.plans_max {
            return self.run_unreserved(tasks, &reason, out);
        }
        self.plans += 1;
        self.is_planning = true;
        out.push(FlowAction::Plan { tasks, reason });
    }

    /// The ready tasks that do not fit into what is reserved, with the reason.
    fn late_tasks(&self, now: Time) -> Vec<(usize, String)> {
        let mut lines: BTreeMap<&ClusterId, AvailabilityProfile> =
            self.reserved.keys().map(|cluster| (cluster, self.free_line(cluster, now))).collect();
        let mut late = Vec::new();
        for task in self.table.ready() {
            let Step { id, processors, takes, lasts, .. } = &self.table.steps()[task];
            let Some(place) = self.places.get(&task) else { continue };
            // The planned cluster first. Tasks may have taken processors of other clusters' tasks.
            let planned = lines.keys().filter(|cluster| ***cluster == place.cluster);
            let others = lines.keys().filter(|cluster| ***cluster != place.cluster);
            let found = planned.chain(others).find_map(|cluster| {
                self.missing_bytes(task, cluster)?;
                let start = lines[*cluster].earliest(*processors, *takes, now, NEVER)?;
                Some((*cluster, start))
            });
            match found {
                Some((cluster, start)) => {
                    if let Some(line) = lines.get_mut(cluster) {
                        occupy(line, *processors, start, start.saturating_add(*lasts));
                    }
                }
                None => late.push((
                    task,
                    format!(
                        "task {id} finds no {processors} processors for {:.1} s in what is \
                         reserved",
                        seconds(*takes)
                    ),
                )),
            }
        }
        late
    }

    /// What is left of a cluster's reserved processors: running tasks keep theirs.
    fn free_line(&self, cluster: &ClusterId, now: Time) -> AvailabilityProfile {
        let Some(reserved) = self.reserved.get(cluster) else {
            return AvailabilityProfile::default();
        };
        let mut line = reserved.clone();
        for attempt in self.attempts.values() {
            if attempt.cluster.as_ref() == Some(cluster) {
                let until = self.holds_until(attempt, now);
                occupy(&mut line, attempt.placed.processors, now, until);
            }
        }
        line
    }

    /// Tasks whose programs run, each with its cluster.
    pub fn running(&self) -> impl Iterator<Item = (usize, Option<&ClusterId>)> {
        let attempts = self.attempts.values().filter(|attempt| attempt.has_started);
        attempts.map(|attempt| (attempt.placed.task, attempt.cluster.as_ref()))
    }

    /// The estimated time until the run is complete. It follows from the runtimes of tasks, the
    /// ratio of measured to stated runtimes, and the run's processors. `None` if the run has no
    /// processors, or knows no runtime.
    pub fn remaining(&self, now: Time) -> Option<Time> {
        let processors = self.pilots.processors();
        let (mut measured, mut stated, mut are_stated) = (0.0, 0.0, true);
        for (task, step) in self.table.steps().iter().enumerate() {
            if let (TaskState::Completed, TaskTimes { start: Some(start), end: Some(end), .. }) =
                (self.table.state(task), &self.times[task])
            {
                measured += seconds(end.saturating_sub(*start));
                stated += seconds(step.takes);
            }
            are_stated &= step.takes > 1;
        }
        if processors == 0 || stated == 0.0 && !are_stated {
            return None;
        }
        let ratio = if stated > 0.0 { measured / stated } else { 1.0 };
        let since: BTreeMap<usize, Time> =
            self.attempts.values().map(|attempt| (attempt.placed.task, attempt.since)).collect();
        let (mut work, mut chain) = (0.0, 0.0_f64);
        for (task, step) in self.table.steps().iter().enumerate() {
            let is_open = matches!(
                self.table.state(task),
                TaskState::Waiting | TaskState::Ready | TaskState::Active
            );
            if is_open {
                let takes = seconds(step.takes) * ratio;
                let ran = since.get(&task).map_or(0.0, |since| seconds(now.saturating_sub(*since)));
                let ran = ran.min(takes);
                work += (takes - ran) * f64::from(step.processors);
                chain = chain.max(seconds(self.table.chain(task)) * ratio - ran);
            }
        }
        Some(from_seconds(chain.max(work / f64::from(processors))))
    }

    /// Tasks that failed for good with their reasons, and the tasks that did not run since they
    /// depend on these.
    pub fn failures(&self) -> (Vec<(usize, String)>, Vec<usize>) {
        let (mut failed, mut skipped) = (Vec::new(), Vec::new());
        for task in 0..self.table.steps().len() {
            match self.table.state(task) {
                TaskState::Failed { reason } => failed.push((task, reason.clone())),
                TaskState::Skipped { .. } => skipped.push(task),
                _ => {}
            }
        }
        (failed, skipped)
    }
}

/// Takes processors as far as they are free: a late task may use more than is reserved.
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
    use proptest::prelude::*;
    use springtide_actors::policy::provisioning::Booking;

    use super::super::table::FailureRules;
    use super::*;

    fn step(id: usize, processors: u32, parents: Vec<usize>) -> Step {
        let limits = TaskLimits::default();
        let (takes, lasts) = (SECOND, 3 * SECOND);
        let (id, gpus, retries) = (format!("t{id}"), 0, None);
        Step { id, processors, takes, lasts, parents, limits, gpus, retries }
    }

    fn flow(steps: Vec<Step>, reserves: bool) -> Flow {
        let order: Vec<usize> = (0..steps.len()).collect();
        let files = vec![StepFiles::default(); steps.len()];
        let table = TaskTable::new(steps, &order, FailureRules { retries: 1, fail_fast: false });
        let settings = FlowSettings {
            reserves,
            plans_max: 2,
            file_clusters: BTreeSet::new(),
            pilots_max: 100,
        };
        Flow::new(table, files, BTreeSet::new(), 0, settings)
    }

    fn node(name: &str, processors: u32) -> PilotNode {
        let (node, cluster, host) = (name.into(), "x".into(), "h".to_owned());
        PilotNode { node, cluster, host, processors }
    }

    fn ended(number: u64, end: TaskEnd) -> FlowEvent {
        let usage = TaskUsage { wall_s: 1.0, ..TaskUsage::default() };
        FlowEvent::Ended { number, end, usage, cluster: None }
    }

    fn pilots(actions: &[FlowAction]) -> Vec<(PilotId, Option<ReservationId>)> {
        let pilot = |action: &FlowAction| match action {
            FlowAction::SubmitPilot { pilot, wanted } => Some((*pilot, wanted.reservation)),
            _ => None,
        };
        actions.iter().filter_map(pilot).collect()
    }

    fn runs(actions: &[FlowAction]) -> Vec<(u64, usize)> {
        let run = |action: &FlowAction| match action {
            FlowAction::Run { number, placed, .. } => Some((*number, placed.task)),
            _ => None,
        };
        actions.iter().filter_map(run).collect()
    }

    #[test]
    fn a_task_on_a_lost_pilot_runs_on_the_next_one() {
        let mut flow = flow(vec![step(0, 1, vec![])], false);
        let first = pilots(&flow.handle(FlowEvent::Tick, 0))[0].0;
        let ready = FlowEvent::PilotReady { pilot: first, node: node("n", 1) };
        assert_eq!(runs(&flow.handle(ready, 1)), [(1, 0)]);
        let (reason, impossible) = ("its node was lost".to_owned(), false);
        let lost = FlowEvent::PilotEnded { pilot: first, reason, impossible };
        let second = pilots(&flow.handle(lost, 2))[0].0;
        // A late report of the first attempt has no effect.
        assert_eq!(flow.handle(ended(1, TaskEnd::Completed), 3), []);
        let ready = FlowEvent::PilotReady { pilot: second, node: node("m", 1) };
        assert_eq!(runs(&flow.handle(ready, 4)), [(2, 0)]);
        let out = flow.handle(ended(2, TaskEnd::Completed), 5);
        assert!(matches!(out.last(), Some(FlowAction::Over { reason: None })), "{out:?}");
    }

    #[test]
    fn a_task_that_no_node_can_run_fails_and_others_run() {
        let mut flow =
            flow(vec![step(0, 4, vec![]), step(1, 1, vec![]), step(2, 1, vec![0])], false);
        let submitted = pilots(&flow.handle(FlowEvent::Tick, 0));
        assert_eq!(submitted.len(), 1, "the wide pilot has room for the narrow task");
        let (reason, impossible) = ("no node has 4 processors".to_owned(), true);
        let pilot = submitted[0].0;
        let out = flow.handle(FlowEvent::PilotEnded { pilot, reason, impossible }, 1);
        let failed = |action: &FlowAction| {
            let FlowAction::Failed { again: false, placed, .. } = action else { return false };
            placed.task == 0
        };
        assert!(out.iter().any(failed), "{out:?}");
        let pilot = pilots(&out)[0].0;
        let ready = FlowEvent::PilotReady { pilot, node: node("n", 1) };
        let number = runs(&flow.handle(ready, 2))[0].0;
        let out = flow.handle(ended(number, TaskEnd::Completed), 3);
        assert!(matches!(out.last(), Some(FlowAction::Over { .. })), "{out:?}");
        let reason = "cannot run: no node has 4 processors".to_owned();
        assert_eq!(flow.failures(), (vec![(0, reason)], vec![2]));
    }

    /// A plan of tasks on one processor of a cluster until a second.
    fn agreed(id: u64, tasks: &[usize], end: u64) -> FlowEvent {
        let places = tasks.iter().map(|task| (*task, ("x".into(), 0))).collect();
        let booking = Booking { processors: 1, start: 0, end: end * SECOND };
        let parts = vec![ReservedSlot { cluster: "x".into(), bookings: vec![booking] }];
        FlowEvent::Agreed(AgreedPlan { reservation: ReservationId(id), places, parts })
    }

    fn planned(out: &[FlowAction]) -> Option<BTreeSet<usize>> {
        let plan = |action: &FlowAction| match action {
            FlowAction::Plan { tasks, .. } => Some(tasks.clone()),
            _ => None,
        };
        out.iter().find_map(plan)
    }

    /// Two tasks on one reserved processor until second 6, of which one runs, and its pilot.
    fn reserved_pair() -> (Flow, PilotId) {
        let mut flow = flow(vec![step(0, 1, vec![]), step(1, 1, vec![])], true);
        assert_eq!(planned(&flow.handle(FlowEvent::Tick, 0)), Some([0, 1].into()));
        let (pilot, reservation) = pilots(&flow.handle(agreed(1, &[0, 1], 6), 0))[0];
        assert_eq!(reservation, Some(ReservationId(1)));
        let ready = FlowEvent::PilotReady { pilot, node: node("n", 1) };
        assert_eq!(runs(&flow.handle(ready, 0)), [(1, 0)]);
        (flow, pilot)
    }

    #[test]
    fn the_remaining_time_follows_measured_runtimes() {
        let steps = vec![step(0, 1, vec![]), step(1, 1, vec![0]), step(2, 1, vec![0])];
        let mut flow = flow(steps, false);
        let pilot = pilots(&flow.handle(FlowEvent::Tick, 0))[0].0;
        assert_eq!(flow.remaining(0), None, "no processors");
        flow.handle(FlowEvent::PilotReady { pilot, node: node("n", 1) }, 0);
        assert_eq!(flow.remaining(0), Some(3 * SECOND), "three tasks of a second");
        flow.handle(FlowEvent::Started { number: 1 }, 0);
        assert_eq!(flow.remaining(SECOND / 2), Some(5 * SECOND / 2));
        assert_eq!(flow.running().map(|(task, _)| task).collect::<Vec<_>>(), [0]);
        flow.handle(ended(1, TaskEnd::Completed), 4 * SECOND);
        assert_eq!(flow.remaining(4 * SECOND), Some(8 * SECOND), "tasks take four times as long");
    }

    #[test]
    fn idle_nodes_end_soon_while_a_job_waits_for_its_own() {
        let (steps, order) = (vec![step(0, 1, vec![]), step(1, 2, vec![0])], [0, 1]);
        let table = TaskTable::new(steps, &order, FailureRules { retries: 1, fail_fast: false });
        let settings = flow(Vec::new(), false).settings;
        let files = vec![StepFiles::default(); 2];
        let mut flow = Flow::new(table, files, BTreeSet::from([1]), 0, settings);
        let pilot = pilots(&flow.handle(FlowEvent::Tick, 0))[0].0;
        flow.handle(FlowEvent::PilotReady { pilot, node: node("n", 1) }, 0);
        let out = flow.handle(ended(1, TaskEnd::Completed), SECOND);
        let submitted = |action: &FlowAction| matches!(action, FlowAction::SubmitJob { .. });
        assert!(out.iter().any(submitted), "{out:?}");
        assert_eq!(flow.due(SECOND), Some(SECOND + SHORT_IDLE_TIME));
        let out = flow.handle(FlowEvent::Tick, SECOND + SHORT_IDLE_TIME);
        assert_eq!(out, [FlowAction::FinishPilot { pilot }]);
    }

    #[test]
    fn late_tasks_without_nodes_are_planned_in_addition_and_at_last_run_unreserved() {
        let (mut flow, pilot) = reserved_pair();
        // The first task takes longer than its share, and the other one waits for its node.
        assert_eq!(planned(&flow.handle(FlowEvent::Tick, 5 * SECOND)), None);
        let (reason, impossible) = ("its node was lost".to_owned(), false);
        let lost = FlowEvent::PilotEnded { pilot, reason, impossible };
        assert_eq!(
            planned(&flow.handle(lost, 5 * SECOND)),
            Some([1].into()),
            "the lost task has a second left"
        );
        flow.handle(agreed(2, &[1], 8), 5 * SECOND);
        let out = flow.handle(FlowEvent::Tick, 20 * SECOND);
        assert_eq!(planned(&out), None, "only two plans");
        assert!(
            out.iter().any(|it| matches!(it, FlowAction::Say(text) if text.contains("without")))
        );
    }

    #[test]
    fn late_tasks_run_on_the_nodes_of_a_reservation_whose_time_is_over() {
        let (mut flow, pilot) = reserved_pair();
        let (reservation, reason) = (ReservationId(1), "it has ended".to_owned());
        let out = flow.handle(FlowEvent::ReservationLost { reservation, reason }, 7 * SECOND);
        let finishes = FlowAction::FinishPilot { pilot };
        assert!(!out.contains(&finishes) && planned(&out).is_none(), "{out:?}");
        let out = flow.handle(ended(1, TaskEnd::Completed), 9 * SECOND);
        assert_eq!(runs(&out), [(2, 1)]);
        // Another reservation needs the node.
        let (reason, impossible) = ("the job was cancelled".to_owned(), false);
        let lost = FlowEvent::PilotEnded { pilot, reason, impossible };
        assert_eq!(planned(&flow.handle(lost, 10 * SECOND)), Some([1].into()));
    }

    #[test]
    fn a_reservation_that_is_lost_early_is_replaced() {
        let (mut flow, pilot) = reserved_pair();
        let (reservation, reason) = (ReservationId(1), "it was released".to_owned());
        let out = flow.handle(FlowEvent::ReservationLost { reservation, reason }, 2 * SECOND);
        assert!(out.contains(&FlowAction::FinishPilot { pilot }), "{out:?}");
        assert_eq!(planned(&out), Some([1].into()));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn every_task_ends_once_under_random_losses(
            parents in prop::collection::vec(
                prop::collection::vec(any::<prop::sample::Index>(), 0..3),
                1..30,
            ),
            widths in prop::collection::vec(1_u32..4, 30),
            fates in prop::collection::vec(0_u8..20, 400),
        ) {
            let steps: Vec<Step> = parents
                .iter()
                .enumerate()
                .map(|(at, of)| {
                    let of: BTreeSet<usize> =
                        of.iter().filter(|_| at > 0).map(|index| index.index(at.max(1))).collect();
                    step(at, widths[at], of.into_iter().collect())
                })
                .collect();
            let count = steps.len();
            let mut flow = flow(steps, false);
            let mut fates = fates.into_iter().cycle();
            let mut now = 0;
            let mut running: BTreeMap<u64, (PilotId, PlacedTask)> = BTreeMap::new();
            let mut live: BTreeMap<PilotId, Option<u32>> = BTreeMap::new();
            let mut completed: BTreeMap<usize, u32> = BTreeMap::new();
            let mut actions = flow.handle(FlowEvent::Tick, now);
            let mut turns = 0;
            'run: loop {
                for action in std::mem::take(&mut actions) {
                    match action {
                        FlowAction::SubmitPilot { pilot, wanted } => {
                            live.insert(pilot, None);
                            prop_assert!(wanted.processors <= 3);
                        }
                        FlowAction::Run { pilot, number, placed, .. } => {
                            let has = live.get(&pilot).copied().flatten().unwrap_or(0);
                            prop_assert!(has >= placed.processors, "{placed:?} on {has}");
                            let twice =
                                running.values().any(|(_, other)| other.task == placed.task);
                            prop_assert!(!twice);
                            running.insert(number, (pilot, placed));
                        }
                        FlowAction::Completed { placed, .. } => {
                            *completed.entry(placed.task).or_default() += 1;
                        }
                        FlowAction::Over { reason } => {
                            prop_assert_eq!(reason, None);
                            break 'run;
                        }
                        _ => {}
                    }
                }
                turns += 1;
                now += SECOND;
                prop_assert!(turns < 20_000, "it does not end");
                let fate = fates.next().unwrap_or(0);
                let waiting = live.iter().find(|(_, width)| width.is_none()).map(|(id, _)| *id);
                let event = match (fate, waiting, running.first_key_value()) {
                    (0..=1, _, _) if !live.is_empty() => {
                        let (&pilot, _) = live.first_key_value().expect("one lives");
                        live.remove(&pilot);
                        running.retain(|_, (of, _)| *of != pilot);
                        let reason = "lost".to_owned();
                        FlowEvent::PilotEnded { pilot, reason, impossible: false }
                    }
                    (2..=9, Some(pilot), _) => {
                        live.insert(pilot, Some(3));
                        FlowEvent::PilotReady { pilot, node: node("n", 3) }
                    }
                    (_, _, Some((&number, _))) => {
                        running.remove(&number);
                        let reason = "exited with code 1".to_owned();
                        ended(number, if fate == 10 {
                            TaskEnd::Failed { exit: Some(1), reason }
                        } else {
                            TaskEnd::Completed
                        })
                    }
                    _ => FlowEvent::Tick,
                };
                actions = flow.handle(event, now);
            }
            prop_assert!(completed.values().all(|times| *times == 1));
            let counts = flow.table().counts();
            prop_assert_eq!(counts.completed, completed.len());
            prop_assert_eq!(counts.completed + counts.failed + counts.skipped, count);
        }
    }
}
