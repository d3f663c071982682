//! Reasons of decisions and of omissions: typed, with their numbers. Their sentences are in
//! `sentence`. Data only.

use serde::{Deserialize, Serialize};
use springtide_base::id::{ClusterId, Epoch, NodeId};
use springtide_base::processors::Processors;

use super::change::{Aim, Measured, QuarantineSubject, RemovalCause, Term};
use super::worker::ImplausibleValue;

/// Why a considered node stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StayReason {
    /// It holds the job's root.
    HoldsRoot,
    /// Its speed may equal the others', given the error of its measurement.
    InDoubt,
    /// Enough other nodes leave.
    Enough,
    /// It works for most of its time.
    Busy,
    /// It is among the fastest, as many as the job's work occupies.
    Fast,
}

/// Evidence for a bad link against too little work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Evidence {
    /// Its overhead is exceptional among the clusters.
    Exceptional,
    /// Its link is measured to be full.
    Saturated,
    /// Its link carries less than the application needs.
    BelowNeed,
    /// A cluster with a far wider link waits for tasks behind this one's link.
    Thin,
}

/// Why an entry left quarantine, or no longer counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QuarantineEndReason {
    /// Its term is over: it may be requested again.
    Served,
    /// A better measurement arrived.
    Better,
    /// It had no incident for a long time.
    Clean,
    /// Its removal did not help: it was not the cause.
    Acquitted,
}

/// A reason of a decision or of an omission.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum Reason {
    /// The coordinator has an older epoch.
    StaleEpoch {
        /// Epoch of the coordinator.
        asked: Epoch,
        /// Epoch of the memory.
        known: Epoch,
    },
    /// The period is decided already.
    Repeated {
        /// Number of the period.
        period: u64,
    },
    /// The run is not to be changed.
    Static,
    /// No processor is measured yet.
    NothingMeasured {
        /// Processors in their grace period.
        joining: Processors,
        /// Processors without a valid report.
        silent: Processors,
    },
    /// The measured efficiency and its basis.
    Efficiency {
        /// Weighted average efficiency, 0 to 1.
        efficiency: f64,
        /// Number of counted processors.
        #[serde(alias = "nodes")]
        processors: Processors,
        /// Counted processors with an older report.
        stale: Processors,
        /// Processors in their grace period.
        joining: Processors,
        /// Processors that are leaving.
        leaving: Processors,
        /// Processors without a valid report.
        silent: Processors,
        /// Counted processors with a presumed speed: unmeasured ones, and those of the master.
        #[serde(default)]
        presumed: Processors,
        /// Standard error of the efficiency.
        #[serde(default)]
        error: f64,
    },
    /// The efficiency may be on either side of a bound.
    Doubtful {
        /// Weighted average efficiency, 0 to 1.
        efficiency: f64,
        /// Half the interval of the efficiency: two standard errors.
        error: f64,
        /// The bound that the interval includes.
        bound: f64,
        /// Whether all speeds are measured again.
        measures: bool,
        /// Whether the wait is over.
        decides: bool,
    },
    /// The link of a quarantined cluster is measured again.
    Measures {
        /// Cluster behind the link.
        cluster: ClusterId,
    },
    /// The term is over, but the link is measured to be no better.
    StillSlow {
        /// Cluster behind the link.
        cluster: ClusterId,
        /// Bytes per second of the link.
        bandwidth: f64,
        /// Length of the new term, in seconds.
        for_s: f64,
    },
    /// No iteration has completed since the last change or since the start. The next phases may
    /// differ.
    Partial {
        /// Whether it is the first iteration.
        first: bool,
    },
    /// The effect of the last action is not known yet.
    AwaitsVerdict {
        /// Purpose of the last action.
        aim: Aim,
    },
    /// A removal for this cause was undone, and the subject is not clearly worse since.
    StaysAcquitted {
        /// The node or cluster.
        who: QuarantineSubject,
        /// Cause of the removal.
        cause: RemovalCause,
    },
    /// No speed is measured, but the processors are busy.
    Busy {
        /// Mean fraction of time in which the processors worked.
        working: f64,
        /// Number of these processors.
        processors: Processors,
    },
    /// A report is not believed.
    Implausible {
        /// Implausible number of the report.
        #[serde(flatten)]
        oddity: ImplausibleValue,
    },
    /// A cluster's aggregate is not believed.
    SetAside {
        /// The cluster of the aggregate.
        cluster: ClusterId,
        /// Reason of the exclusion.
        why: String,
    },
    /// Efficiency is within the band: the size is right.
    InBand {
        /// Lower end of the band.
        e_min: f64,
        /// Upper end of the band.
        e_max: f64,
    },
    /// Efficiency is above the band.
    Above {
        /// Upper end of the band.
        e_max: f64,
        /// Processors that bring efficiency to the middle at constant useful capacity, bounded.
        wanted: Processors,
        /// Processors present or under way.
        expected: Processors,
    },
    /// Efficiency is below the band.
    Below {
        /// Lower end of the band.
        e_min: f64,
        /// Processors that bring efficiency to the middle at constant useful capacity, bounded.
        wanted: Processors,
        /// Consecutive periods below the band.
        periods: u32,
    },
    /// One bad period does not suffice for a removal.
    Patience {
        /// Bad periods so far.
        seen: u32,
        /// Bad periods that a removal needs.
        needed: u32,
    },
    /// The job needed its processors again after the last removal of healthy nodes.
    AwaitsPhase {
        /// Seconds for which efficiency has been below the band.
        seen_s: f64,
        /// Seconds that a removal of healthy nodes needs.
        needed_s: f64,
    },
    /// An action was taken shortly before.
    CoolDown {
        /// Periods still to wait.
        periods: u64,
    },
    /// Removed nodes have not left yet, and the others wait for the tasks that they hand back.
    StillLeaving {
        /// Number of leaving nodes.
        nodes: u32,
    },
    /// A loss occurred shortly before, or members are silent.
    Unsettled {
        /// Periods still to wait, unless another event occurs.
        periods: u64,
    },
    /// The job is about to end.
    NearEnd {
        /// Estimated remaining time, in seconds.
        remaining_s: f64,
    },
    /// The job has its maximum of processors.
    AtMaximum {
        /// Maximum processors of the job.
        max: Processors,
    },
    /// The job has its minimum of processors.
    AtMinimum {
        /// Minimum processors of the job.
        min: Processors,
        /// Processors that the rules would remove.
        wanted: Processors,
    },
    /// There are fewer processors than the job's minimum.
    BelowMinimum {
        /// Processors present or under way.
        expected: Processors,
        /// Minimum processors of the job.
        min: Processors,
    },
    /// There are more processors than the job's maximum.
    AboveMaximum {
        /// Number of present processors.
        #[serde(alias = "nodes")]
        processors: Processors,
        /// Maximum processors of the job.
        max: Processors,
    },
    /// One node more or less would leave the band on its other side.
    BestSize {
        /// Current number of processors.
        #[serde(alias = "nodes")]
        processors: Processors,
    },
    /// Processors are requested.
    Requested {
        /// Number of requested processors.
        count: Processors,
        /// Purpose of the request.
        aim: Aim,
        /// Free processors that are known to fit, where offers are known.
        fitting: Option<Processors>,
    },
    /// Outstanding requests are withdrawn.
    Withdrawn {
        /// Number of withdrawn processors.
        count: Processors,
        /// Whether the request stayed unmet for too long and is to be repeated.
        unmet: bool,
    },
    /// A cluster's link is to blame.
    LinkBad {
        /// The cluster to be removed.
        cluster: ClusterId,
        /// Mean inter-cluster overhead of the cluster.
        inter: f64,
        /// Overhead from which a link is suspected.
        threshold: f64,
        /// Mean inter-cluster overhead of the others.
        others: f64,
        /// Further evidence for a bad link.
        evidence: Evidence,
    },
    /// A cluster waits much for the others, but not because of its link.
    LinkNotBlamed {
        /// The cluster that waits.
        cluster: ClusterId,
        /// Mean inter-cluster overhead of the cluster.
        inter: f64,
        /// Mean inter-cluster overhead of the others.
        others: f64,
    },
    /// A cluster waits much for the others, but it has most of the job's speed.
    LinkOfMost {
        /// The cluster that waits.
        cluster: ClusterId,
        /// Its share of the speed of all processors.
        share: f64,
    },
    /// A cluster waits much for the others, but perhaps for one of their nodes.
    LinkInDoubt {
        /// The cluster that waits.
        cluster: ClusterId,
        /// Mean inter-cluster overhead of the cluster.
        inter: f64,
        /// A node of another cluster that is far slower than the rest.
        node: NodeId,
        /// Its speed, as a fraction of the mean.
        share: f64,
    },
    /// The last cluster is never removed.
    LastCluster {
        /// The job's last cluster.
        cluster: ClusterId,
    },
    /// A node is removed.
    NodeRemoved {
        /// The removed node.
        node: NodeId,
        /// Cluster of the node.
        cluster: ClusterId,
        /// Processors of the node; 0 in logs that lack them.
        #[serde(default)]
        processors: Processors,
        /// Cause of the removal.
        cause: RemovalCause,
        /// The term alpha / speed.
        speed_term: f64,
        /// The term beta * inter-cluster overhead.
        link_term: f64,
        /// The term gamma, if in the worst cluster.
        cluster_term: f64,
    },
    /// A node was considered and stays.
    Stays {
        /// The node that stays.
        node: NodeId,
        /// Badness of the node.
        badness: f64,
        /// Why the node stays.
        why: StayReason,
    },
    /// A node is removed later, since it holds the root.
    NodeRemovedLater {
        /// The node to be removed.
        node: NodeId,
        /// Cause of the removal.
        cause: RemovalCause,
    },
    /// More processors should be removed than those of the nodes known by name.
    NotNamed {
        /// Processors to be removed.
        wanted: Processors,
        /// Processors of the nodes known by name.
        known: Processors,
    },
    /// Bad nodes are removed; healthy ones stay until the effect is visible.
    HealthySpared {
        /// Processors of the bad nodes.
        bad: Processors,
        /// Processors to be removed by the formula.
        wanted: Processors,
    },
    /// The root moves to another node.
    RootMoves {
        /// Node that the root leaves.
        from: NodeId,
        /// Node that the root moves to.
        to: NodeId,
        /// Cluster of the new node.
        cluster: ClusterId,
        /// Why the root moves.
        why: RootMoveReason,
    },
    /// The root should move, but no node is suitable.
    RootStays {
        /// Node of the root.
        node: NodeId,
    },
    /// The root's move is under way.
    RootUnderWay {
        /// Node that the root leaves.
        from: NodeId,
        /// Node that the root moves to.
        to: NodeId,
    },
    /// A node has crashed.
    Crashed {
        /// The crashed node.
        node: NodeId,
        /// Cluster of the node.
        cluster: ClusterId,
    },
    /// Lost capacity is being replaced.
    Refilling {
        /// Processors present or under way.
        expected: Processors,
        /// Number of processors to restore.
        to: Processors,
        /// Cause of the loss.
        cause: RemovalCause,
    },
    /// The replacement of lost capacity has ended.
    RefillOver {
        /// Processors present or under way.
        expected: Processors,
        /// Whether it was abandoned, since it did not help.
        given_up: bool,
    },
    /// An action was judged.
    Judged {
        /// Purpose of the action.
        aim: Aim,
        /// State at the decision.
        before: Measured,
        /// State that the decision predicted.
        predicted: Measured,
        /// State observed afterwards.
        observed: Measured,
        /// Whether the action helped.
        helped: bool,
    },
    /// Useful speed fell with an action; a second judgement decides.
    Doubted {
        /// Purpose of the action.
        aim: Aim,
        /// State at the decision.
        before: Measured,
        /// State observed afterwards.
        observed: Measured,
    },
    /// An action cannot be judged.
    Unjudged {
        /// Purpose of the action.
        aim: Aim,
        /// Whether another event interfered; else conditions never settled.
        overtaken: bool,
    },
    /// A removal is undone.
    Undone {
        /// Processors to request again.
        #[serde(alias = "nodes")]
        processors: Processors,
    },
    /// Harmful growth is undone.
    GrowthUndone {
        /// Processors added by the growth.
        #[serde(alias = "nodes")]
        processors: Processors,
    },
    /// A change that did not help is not repeated for a while.
    NotRepeated {
        /// Whether the change is growth; else shrinking.
        growth: bool,
        /// Size at the limit.
        #[serde(alias = "nodes")]
        processors: Processors,
        /// Length of the ban, in seconds.
        for_s: f64,
        /// Whether the change did harm and was undone. Then the ban lasts until the efficiency
        /// changes.
        #[serde(default)]
        undone: bool,
    },
    /// A coefficient of the badness formula changes.
    Weight {
        /// Term with the coefficient.
        term: Term,
        /// Value before the change.
        from: f64,
        /// Value after the change.
        to: f64,
    },
    /// The minimum bandwidth changes.
    Bandwidth {
        /// Cluster whose link caused the change.
        cluster: Option<ClusterId>,
        /// Value before the change, in bytes per second.
        from: Option<f64>,
        /// Value after the change, in bytes per second.
        to: Option<f64>,
    },
    /// The minimum speed changes.
    Speed {
        /// Value before the change.
        from: Option<f64>,
        /// Value after the change.
        to: Option<f64>,
    },
    /// A subject enters quarantine.
    Quarantined {
        /// The node or cluster.
        who: QuarantineSubject,
        /// Cause of the removal.
        cause: RemovalCause,
        /// Length of the term, in seconds.
        for_s: f64,
        /// Number of its removals.
        times: u32,
    },
    /// A subject may be requested again.
    QuarantineEnded {
        /// The node or cluster.
        who: QuarantineSubject,
        /// Why the term ends.
        why: QuarantineEndReason,
    },
    /// A migration to better nodes is worthwhile.
    Migrates {
        /// Number of processors to replace.
        count: Processors,
        /// Time saved over the remaining run, in seconds.
        gain_s: f64,
        /// Cost of moving, in seconds.
        cost_s: f64,
        /// The remaining run, in seconds.
        remaining_s: f64,
        /// Whether the job reports its rest; else it is assumed to equal the elapsed time.
        known: bool,
    },
    /// A migration is not worthwhile.
    NotWorth {
        /// Number of processors considered.
        count: Processors,
        /// Time saved over the remaining run, in seconds.
        gain_s: f64,
        /// Cost of moving, in seconds.
        cost_s: f64,
    },
    /// Better nodes are under way or in their grace period.
    MoveUnderWay {
        /// Nodes to be replaced.
        victims: u32,
    },
    /// Requested better nodes did not arrive.
    NoneArrived,
    /// Actions are withheld, since the run is only monitored.
    Monitored {
        /// Number of withheld actions.
        actions: u32,
    },
}

/// Why the root moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RootMoveReason {
    /// Its node was asked to leave.
    Leaving,
    /// Its node is bad.
    BadNode,
    /// Its node is slow, and stays.
    SlowNode,
    /// Its cluster is removed.
    BadCluster,
}
