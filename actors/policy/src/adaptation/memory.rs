//! The policy's memory between periods: small, versioned, and sufficient for a successor of a lost
//! coordinator.
//!
//! It is logged with each decision and sent to every cluster coordinator with each period's reply.
//! A successor continues with the newest copy. Its clock is the sum of the decided periods, so no
//! clocks need to agree.

use serde::{Deserialize, Serialize};
use springtide_base::id::{ClusterId, Epoch, NodeId};
use springtide_base::processors::Processors;

use super::change::{Aim, Crash, Measured, Prediction, QuarantineSubject, RemovalCause, Term};
use super::links::LinkMemory;
use super::number::{is_default, is_rate};
use super::reason::Reason;
use super::settings::{AdaptationSettings, Weights};
use super::worker::SPAN_MAX;

/// Maximum entries of the quarantine list. The entries with the earliest end are dropped first.
pub const QUARANTINE_MAX: usize = 256;

/// A subject removed for cause. It is not requested until its term ends or a better measurement
/// arrives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QuarantineEntry {
    /// The node or cluster.
    pub subject: QuarantineSubject,
    /// Cause of its removal.
    pub cause: RemovalCause,
    /// Number of its removals.
    pub count: u32,
    /// Tick of the decision that removed it.
    pub tick: u64,
    /// End of the term, on the policy's own clock, in seconds.
    pub until_s: f64,
    /// Speed of the node's processors or bandwidth of the cluster (bytes/s) at the removal, where
    /// known. For a cluster without one, the first measurement after the removal.
    pub measured: Option<f64>,
    /// Time of the removal or of the last measurement of the link, on the policy's own clock.
    #[serde(default)]
    pub measured_at_s: f64,
    /// Number of periods by which the term was extended for a measurement of the link.
    #[serde(default)]
    pub extended: u32,
    /// How good the subject was at its removal; see [`Acquittal::quality`].
    #[serde(default)]
    pub quality: f64,
}

/// A subject whose removal was undone, since it did not help. It is not removed again for the same
/// cause unless it is clearly worse than then.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Acquittal {
    /// The node or cluster.
    pub subject: QuarantineSubject,
    /// Cause of its removal.
    pub cause: RemovalCause,
    /// For a slow node, the speed of its processors as a fraction of the job's mean. For a link,
    /// the fraction of time in which its processors did not wait for other clusters.
    pub quality: f64,
}

/// Capacity of a job while it ran well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Capacity {
    /// Number of its processors.
    #[serde(alias = "nodes")]
    pub processors: Processors,
    /// Sum of its processors' speeds.
    pub speed: f64,
}

/// Lost capacity that is being replaced.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Refill {
    /// Capacity to be restored.
    pub to: Capacity,
    /// Cause of the loss.
    pub cause: RemovalCause,
    /// Whether it undoes a harmful removal. Then it also continues below the band for a while.
    #[serde(default)]
    pub undo: bool,
    /// Tick of the decision that started it.
    #[serde(default)]
    pub tick: u64,
}

/// An action whose prediction is yet to be compared with the observation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// Purpose of the action.
    pub aim: Aim,
    /// Tick of the decision with the action.
    pub tick: u64,
    /// State at the decision.
    pub before: Measured,
    /// Sum of the processors' speeds at the decision; 0 if unknown.
    #[serde(default)]
    pub speed: f64,
    /// State that the decision predicted.
    pub prediction: Prediction,
    /// Useful speed of the removed nodes at their removal.
    pub lost: f64,
    /// Number of removed processors.
    pub removed: Processors,
    /// The badness term that decided the choice.
    pub term: Option<Term>,
    /// Learned requirements at the decision, to revert to.
    pub requirements: Requirements,
    /// Settled periods observed since.
    pub seen: u32,
    /// Sum of these periods' efficiencies.
    pub efficiency: f64,
    /// Sum of these periods' useful speeds.
    pub useful: f64,
    /// Whether the first judgement found harm. A second one decides.
    #[serde(default)]
    pub doubted: bool,
    /// Tick of the last change that is judged together with the action.
    #[serde(default)]
    pub changed: u64,
}

/// Learned requirements of the application.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Requirements {
    /// Minimum bytes per second between a cluster and the others: above the bandwidth of a cluster
    /// removed for its link.
    pub min_bandwidth: Option<f64>,
    /// Minimum speed of a processor: above the speed of those removed as slow.
    pub min_speed: Option<f64>,
}

/// A size that was tried and did not help.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Limit {
    /// Number of processors at the limit.
    #[serde(alias = "nodes")]
    pub processors: Processors,
    /// Efficiency at the attempt.
    pub efficiency: f64,
    /// Time until which it is not tried again, on the policy's own clock.
    pub until_s: f64,
    /// Number of attempts so far.
    pub times: u32,
    /// Whether the attempt was undone. Then time alone does not end the limit.
    #[serde(default)]
    pub undone: bool,
}

impl Limit {
    /// The reason that this limit gives at this time on the policy's own clock.
    pub(super) fn reason(&self, growth: bool, clock_s: f64) -> Reason {
        let Self { processors, until_s, undone, .. } = *self;
        Reason::NotRepeated { growth, processors, for_s: until_s - clock_s, undone }
    }
}

/// The root's stay on slow nodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SlowRoot {
    /// The root's node, if it was slow in the last period.
    pub node: Option<NodeId>,
    /// Number of periods in a row in which it was.
    pub periods: u32,
    /// Number of moves off slow nodes so far.
    pub moves: u32,
    /// Time of the job's clock before which there is no other such move, in seconds.
    pub rest_until_s: f64,
}

impl SlowRoot {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// A move of the root that is under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootMove {
    /// Node that the root leaves.
    pub from: NodeId,
    /// Node that the root moves to.
    pub to: NodeId,
    /// Tick of the decision that requested it.
    pub tick: u64,
    /// Whether the node that it leaves is removed afterwards.
    #[serde(default)]
    pub then_goes: bool,
}

/// A migration under way: when the requested better nodes have joined, the victims leave.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Migration {
    /// Nodes to be replaced.
    pub victims: Vec<NodeId>,
    /// Number of staying processors at its start.
    pub base: Processors,
    /// Tick of the decision that requested it.
    pub tick: u64,
    /// State at the decision.
    pub before: Measured,
    /// State that the decision predicted.
    pub prediction: Prediction,
}

/// Progress and length of a job's iterations.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Iterations {
    /// Iterations completed when the count last increased.
    pub done: u64,
    /// Time of this increase, on the policy's own clock.
    pub at_s: f64,
    /// Smoothed length of an iteration, in seconds; absent until one was observed as a whole.
    pub length_s: Option<f64>,
}

/// What a coordinator observes between two decisions. It is in the memory, so that a succession
/// before the next decision does not lose it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RecentObservations {
    /// Number of observations since the last decision. Orders copies of a memory.
    pub count: u64,
    /// Members that were declared dead, and were not ordered to leave.
    pub crashes: Vec<Crash>,
    /// Whether the scheduler has given or reclaimed nodes on its own.
    pub ordered: bool,
    /// Nodes that the job has accepted from the scheduler, and that have not arrived.
    pub accepted: u32,
}

impl RecentObservations {
    /// Records the death of a member that was not ordered to leave.
    pub fn crashed(&mut self, node: &NodeId, cluster: &ClusterId) {
        self.count += 1;
        self.crashes.push(Crash { node: node.clone(), cluster: cluster.clone() });
    }

    /// Records an order of the scheduler: `accepted` nodes to come, or nodes to release.
    pub fn ordered(&mut self, accepted: u32) {
        self.count += 1;
        self.ordered = true;
        self.accepted = accepted;
    }

    /// Records arrived nodes: accepted ones, if any are to come.
    pub fn arrived(&mut self, nodes: usize) {
        if self.accepted > 0 {
            let nodes = u32::try_from(nodes).unwrap_or(u32::MAX);
            self.ordered(self.accepted.saturating_sub(nodes));
        }
    }

    /// Moves the observations into a snapshot. Accepted nodes are still to come.
    pub fn take(&mut self) -> (Vec<Crash>, bool) {
        self.count = 0;
        (std::mem::take(&mut self.crashes), std::mem::take(&mut self.ordered))
    }
}

/// Phases in which the job had too many processors, learned from removals of healthy nodes.
///
/// A job that grows again after such a removal had a phase with little work, and may have more such
/// phases. So the next removal waits until efficiency was low for longer than in that phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SurplusPhases {
    /// Start of the phase of the last removal, until the job grows again, on the policy's own
    /// clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since_s: Option<f64>,
    /// Seconds for which efficiency must be below the band before healthy nodes are removed.
    pub wait_s: f64,
}

impl SurplusPhases {
    /// Multiple of a phase's length that the next removal waits for.
    const CAUTION: f64 = 2.0;

    /// Records a removal of healthy nodes in a phase that began at this time.
    pub(super) fn begin(&mut self, since_s: f64) {
        self.since_s.get_or_insert(since_s);
    }

    /// Records growth at this time, which ends the phase of the last removal. The wait is at most
    /// `most_s`.
    pub(super) fn end(&mut self, now_s: f64, most_s: f64) {
        if let Some(since_s) = self.since_s.take() {
            let wait_s = (Self::CAUTION * (now_s - since_s)).min(most_s);
            self.wait_s = self.wait_s.max(wait_s);
        }
    }
}

/// An efficiency that may be on either side of a bound.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Doubt {
    /// Time since which decisions wait, on the policy's own clock.
    pub since_s: f64,
    /// Time at which new measurements were ordered, on the policy's own clock.
    #[serde(default)]
    pub measured_s: Option<f64>,
}

/// Memory of the policy. A job starts with [`Memory::new`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Memory {
    /// Epoch of the coordinator that decided last.
    pub epoch: Epoch,
    /// Period of the last decision.
    pub period: u64,
    /// Number of decisions, over all epochs.
    pub tick: u64,
    /// The root's stay on slow nodes.
    #[serde(skip_serializing_if = "SlowRoot::is_default")]
    pub slow_root: SlowRoot,
    /// Phases in which the job had too many processors.
    #[serde(skip_serializing_if = "is_default")]
    pub surplus: SurplusPhases,
    /// The job's iterations, where it reports any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iterations: Option<Iterations>,
    /// Periods in an iteration. Statistics over this number represent the job; over fewer, a phase
    /// of it.
    pub span: u32,
    /// Whether all processors take the job's steps together; see [`Snapshot::synchronous`].
    ///
    /// [`Snapshot::synchronous`]: super::Snapshot::synchronous
    #[serde(skip_serializing_if = "is_default")]
    pub synchronous: bool,
    /// Number of completed iterations from which measurements cover a whole iteration since the
    /// last change.
    pub iteration_from: u64,
    /// Tick from which measurements count as covering a whole iteration in any case.
    pub iteration_tick: u64,
    /// Whether the job got nodes before its first iteration was complete.
    pub grew_before_first_iteration: bool,
    /// Size before the job grew without a measurement, until another change of its size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size_before_guess: Option<Processors>,
    /// The policy's own clock: sum of the decided periods, in seconds.
    pub clock_s: f64,
    /// The learned coefficients of badness.
    pub weights: Weights,
    /// Speed of the fastest processor in the last period.
    pub max_speed: Option<f64>,
    /// Learned requirements of the application.
    pub requirements: Requirements,
    /// Quarantine list, in order of subject.
    pub quarantine: Vec<QuarantineEntry>,
    /// Removals that were undone, the oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub acquittals: Vec<Acquittal>,
    /// Knowledge of links between clusters.
    #[serde(skip_serializing_if = "LinkMemory::is_empty")]
    pub links: LinkMemory,
    /// Observations since the last decision.
    #[serde(skip_serializing_if = "is_default")]
    pub recent: RecentObservations,
    /// Last measured state of the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured: Option<Measured>,
    /// Capacity when the job last ran well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_good: Option<Capacity>,
    /// Lost capacity that is being replaced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refill: Option<Refill>,
    /// The last action, until it is judged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trial: Option<Trial>,
    /// Consecutive periods below the band.
    pub below: u32,
    /// Tick up to which the size stays.
    pub cool_until: u64,
    /// Tick up to which periods reflect a recovery rather than the nodes. Until then no node is
    /// removed for them.
    pub unsettled_until: u64,
    /// Time since which nodes have been leaving, on the policy's own clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leaving_since_s: Option<f64>,
    /// Size beyond which growth did not help.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ceiling: Option<Limit>,
    /// Size to which shrinking did harm.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub floor: Option<Limit>,
    /// Move of the root under way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub root_move: Option<RootMove>,
    /// Processors added by harmful growth: the same number of the worst is to be removed.
    pub excess: Processors,
    /// A bad node that stayed only because it held the root, and holds it no more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pending_removal: Option<NodeId>,
    /// Migration that is under way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub migration: Option<Migration>,
    /// Time before which no migration starts, on the policy's own clock.
    pub migrate_after_s: f64,
    /// Tick since which a request has been unmet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requested_since: Option<u64>,
    /// An efficiency that may be on either side of a bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub doubt: Option<Doubt>,
    /// Number of orders to measure all speeds again.
    #[serde(skip_serializing_if = "is_default")]
    pub measurements: u32,
}

impl Default for Memory {
    fn default() -> Self {
        Self::new(&AdaptationSettings::default())
    }
}

impl QuarantineEntry {
    /// Whether the current measurement ends the term. `now` is a processor's speed, or a cluster's
    /// bandwidth in bytes per second. `factor` is [`AdaptationSettings::better_factor`].
    pub fn is_better(&self, now: Option<f64>, factor: f64) -> bool {
        now.zip(self.measured).is_some_and(|(now, then)| is_rate(now) && now >= factor * then)
    }
}

impl Memory {
    /// Whether the memory excludes a cluster from requests.
    ///
    /// It is excluded while it is in quarantine, or if its link carries less than the job needs.
    /// `bandwidth` is in bytes per second between it and the others, where known.
    pub fn keeps_out(
        &self,
        cluster: &ClusterId,
        bandwidth: Option<f64>,
        settings: &AdaptationSettings,
    ) -> bool {
        let subject = QuarantineSubject::Cluster(cluster.clone());
        let of = |entry: &&QuarantineEntry| entry.subject == subject;
        match self.quarantine.iter().find(of) {
            Some(entry) => {
                let better = entry.is_better(bandwidth, settings.better_factor);
                self.clock_s < entry.until_s && !better
            }
            None => {
                let least = self.requirements.min_bandwidth;
                least.zip(bandwidth).is_some_and(|(least, has)| is_rate(has) && has < least)
            }
        }
    }

    /// Creates the memory of a new job.
    pub fn new(settings: &AdaptationSettings) -> Self {
        Self {
            epoch: Epoch::default(),
            period: 0,
            tick: 0,
            slow_root: SlowRoot::default(),
            surplus: SurplusPhases::default(),
            iterations: None,
            span: 1,
            synchronous: false,
            iteration_from: 0,
            iteration_tick: 0,
            grew_before_first_iteration: false,
            size_before_guess: None,
            clock_s: 0.0,
            weights: settings.weights,
            max_speed: None,
            requirements: Requirements::default(),
            quarantine: Vec::new(),
            acquittals: Vec::new(),
            links: LinkMemory::default(),
            recent: RecentObservations::default(),
            measured: None,
            last_good: None,
            refill: None,
            trial: None,
            below: 0,
            cool_until: 0,
            unsettled_until: 0,
            leaving_since_s: None,
            ceiling: None,
            floor: None,
            root_move: None,
            excess: Processors::ZERO,
            pending_removal: None,
            migration: None,
            migrate_after_s: 0.0,
            requested_since: None,
            doubt: None,
            measurements: 0,
        }
    }

    /// Periods over which overheads are averaged: an iteration, or the part of a synchronous job's
    /// first step that is over.
    pub(super) fn averaged_periods(&self, settings: &AdaptationSettings) -> u32 {
        let first = self.iterations.filter(|known| known.done == 0 && known.length_s.is_none());
        let first = first.filter(|_| self.synchronous);
        let passed = first.map_or(0.0, |_| self.clock_s / settings.period_s);
        // The cast saturates.
        self.span.max((passed as u32).min(SPAN_MAX))
    }

    /// Periods for which a process of a synchronous job may have had no chance to work: two steps.
    /// It starts in one step, and takes part from the one after the next on. Zero for other jobs.
    pub(super) fn idle_grace(&self, settings: &AdaptationSettings) -> u32 {
        let Some(Iterations { at_s, length_s, .. }) = self.iterations.filter(|_| self.synchronous)
        else {
            return 0;
        };
        let since_s = (self.clock_s - at_s).max(0.0);
        let steps_s = length_s.map_or(since_s, |length_s| 2.0 * length_s + since_s.min(length_s));
        // The cast saturates. The report of this period is still to come.
        ((steps_s / settings.period_s).ceil() as u32).saturating_add(1)
    }

    /// Returns the newer of two copies, by epoch, then period, then observations.
    pub fn newest(a: Memory, b: Memory) -> Memory {
        let age = |memory: &Memory| (memory.epoch, memory.period, memory.tick, memory.recent.count);
        if age(&b) > age(&a) { b } else { a }
    }

    /// Converts all remembered speeds to another unit: `factor` is the value of the old unit in the
    /// new one. Without a factor, speeds are forgotten, and so is what depends on them.
    pub fn change_unit(&mut self, factor: Option<f64>) {
        let factor = factor.filter(|&factor| is_rate(factor));
        let convert = |speed: &mut f64| *speed *= factor.unwrap_or(1.0);
        let measured = |state: &mut Measured| convert(&mut state.useful);
        if factor.is_none() {
            (self.max_speed, self.requirements.min_speed) = (None, None);
            (self.measured, self.last_good, self.refill) = (None, None, None);
            (self.trial, self.migration) = (None, None);
        }
        self.max_speed.iter_mut().for_each(convert);
        self.requirements.min_speed.iter_mut().for_each(convert);
        self.measured.iter_mut().for_each(measured);
        self.last_good.iter_mut().for_each(|good| convert(&mut good.speed));
        self.refill.iter_mut().for_each(|refill| convert(&mut refill.to.speed));
        if let Some(Trial { before, speed, prediction, lost, useful, requirements, .. }) =
            &mut self.trial
        {
            [before, prediction].into_iter().for_each(measured);
            [speed, lost, useful].into_iter().for_each(convert);
            requirements.min_speed.iter_mut().for_each(convert);
        }
        if let Some(Migration { before, prediction, .. }) = &mut self.migration {
            [before, prediction].into_iter().for_each(measured);
        }
        for entry in &mut self.quarantine {
            if matches!(entry.subject, QuarantineSubject::Node(_)) {
                entry.measured = entry.measured.and_then(|speed| Some(speed * factor?));
            }
        }
    }

    /// Records the measured bandwidth to a free node of a cluster, in bytes per second. `since_s`
    /// are the seconds since the last decision.
    pub fn record_probe(&mut self, cluster: &ClusterId, bandwidth: f64, since_s: f64) {
        self.recent.count += 1;
        self.links.record_probe(cluster, bandwidth, self.clock_s + since_s);
    }

    /// Puts a subject into quarantine, with a longer term each time.
    pub(super) fn quarantine(
        &mut self,
        who: QuarantineSubject,
        cause: RemovalCause,
        measured: Option<f64>,
        quality: f64,
        settings: &AdaptationSettings,
    ) -> QuarantineEntry {
        let at = self.quarantine.binary_search_by(|entry| entry.subject.cmp(&who));
        let times = at.map_or(1, |i| self.quarantine[i].count.saturating_add(1));
        // The first crash has no term: machines restart. The second counts as the first offence.
        let offences = if cause == RemovalCause::Crashed { times - 1 } else { times };
        let until_s = self.clock_s + if offences == 0 { 0.0 } else { term(offences, settings) };
        let (tick, looked_s) = (self.tick, self.clock_s);
        let entry = QuarantineEntry {
            subject: who,
            cause,
            count: times,
            tick,
            until_s,
            measured,
            measured_at_s: looked_s,
            extended: 0,
            quality,
        };
        match at {
            Ok(i) => self.quarantine[i] = entry.clone(),
            Err(i) => self.quarantine.insert(i, entry.clone()),
        }
        if self.quarantine.len() > QUARANTINE_MAX {
            let ends = |(_, entry): &(usize, &QuarantineEntry)| entry.until_s;
            let least =
                self.quarantine.iter().enumerate().min_by(|a, b| ends(a).total_cmp(&ends(b)));
            if let Some(i) = least.map(|(i, _)| i) {
                self.quarantine.remove(i);
            }
        }
        entry
    }

    /// Returns a limit whose time is not over yet.
    pub(super) fn limit(limit: &Option<Limit>, clock_s: f64) -> Option<&Limit> {
        limit.as_ref().filter(|limit| limit.undone || clock_s < limit.until_s)
    }

    /// Records that the removal of a subject was undone.
    pub(super) fn acquit(&mut self, acquittal: Acquittal) {
        let Acquittal { subject, cause, .. } = &acquittal;
        self.acquittals.retain(|old| (&old.subject, old.cause) != (subject, *cause));
        if self.acquittals.len() == QUARANTINE_MAX {
            self.acquittals.remove(0);
        }
        self.acquittals.push(acquittal);
    }

    /// Whether a removal of the subject for this cause was undone, and the subject is not clearly
    /// worse now: its quality has not fallen by `factor`.
    pub(super) fn is_acquitted(
        &self,
        subject: &QuarantineSubject,
        cause: RemovalCause,
        quality: f64,
        factor: f64,
    ) -> bool {
        let of = |old: &&Acquittal| old.subject == *subject && old.cause == cause;
        self.acquittals.iter().find(of).is_some_and(|old| quality * factor > old.quality)
    }
}

/// The length of the `times`-th term, in seconds: doubling, capped.
pub(super) fn term(times: u32, settings: &AdaptationSettings) -> f64 {
    let doublings = times.saturating_sub(1).min(64) as i32;
    (settings.quarantine_s * 2f64.powi(doublings)).min(settings.quarantine_max_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_copy_has_the_highest_epoch_then_period() {
        let at = |epoch, period| Memory { epoch: Epoch(epoch), period, ..Memory::default() };
        for (a, b) in [((1, 9), (2, 1)), ((2, 1), (2, 2)), ((0, 0), (0, 1))] {
            let (old, new) = (at(a.0, a.1), at(b.0, b.1));
            assert_eq!(Memory::newest(old.clone(), new.clone()), new);
            assert_eq!(Memory::newest(new.clone(), old), new);
        }
    }

    #[test]
    fn a_removed_cluster_and_a_thin_link_are_kept_out_until_they_are_better() {
        let settings = AdaptationSettings::default();
        let (bad, other) = (ClusterId::from("bad"), ClusterId::from("other"));
        let mut memory = Memory::default();
        memory.requirements.min_bandwidth = Some(100.0);
        memory.quarantine(
            QuarantineSubject::Cluster(bad.clone()),
            RemovalCause::Link,
            Some(60.0),
            0.5,
            &settings,
        );
        let out = |memory: &Memory, cluster, has| memory.keeps_out(cluster, has, &settings);
        assert!(out(&memory, &bad, None) && out(&memory, &bad, Some(80.0)));
        assert!(!out(&memory, &bad, Some(90.0)), "it is half as good again");
        assert!(!out(&memory, &other, None) && !out(&memory, &other, Some(100.0)));
        assert!(out(&memory, &other, Some(99.0)) && !out(&memory, &other, Some(f64::NAN)));
        memory.clock_s = memory.quarantine[0].until_s;
        assert!(!out(&memory, &bad, Some(60.0)), "it may be tried again");
    }

    #[test]
    fn terms_double_up_to_a_cap_and_one_crash_is_forgiven() {
        let settings = AdaptationSettings::default();
        let mut memory = Memory { clock_s: 1000.0, ..Memory::default() };
        let mut terms = Vec::new();
        for _ in 0..6 {
            let node = QuarantineSubject::Node("a".into());
            terms.push(
                memory.quarantine(node, RemovalCause::Slow, None, 0.5, &settings).until_s - 1000.0,
            );
        }
        assert_eq!(terms, [300.0, 600.0, 1200.0, 2400.0, 3600.0, 3600.0]);
        let mut crash = || {
            let node = QuarantineSubject::Node("b".into());
            memory.quarantine(node, RemovalCause::Crashed, None, 0.0, &settings).until_s - 1000.0
        };
        assert_eq!([crash(), crash(), crash()], [0.0, 300.0, 600.0]);
        assert_eq!(memory.quarantine.len(), 2);
    }

    #[test]
    fn the_list_is_bounded_and_in_order() {
        let settings = AdaptationSettings::default();
        let mut memory = Memory::default();
        for i in 0..1000u32 {
            memory.clock_s = f64::from(i);
            let node = QuarantineSubject::Node(format!("n{:03}", (i * 7) % 1000).as_str().into());
            memory.quarantine(node, RemovalCause::Slow, Some(1.0), 0.5, &settings);
        }
        assert_eq!(memory.quarantine.len(), QUARANTINE_MAX);
        assert!(memory.quarantine.is_sorted_by(|a, b| a.subject < b.subject));
        let earliest = memory.quarantine.iter().map(|entry| entry.until_s).fold(f64::MAX, f64::min);
        assert_eq!(earliest, 300.0 + 744.0, "the earliest to end were dropped");
        assert!(rmp_serde::to_vec_named(&memory).unwrap().len() < 64 * 1024);
    }
}
