//! Why something was decided, or was not: typed, with its numbers. The sentences are in `sentence`. Data only.

use serde::{Deserialize, Serialize};
use springtide_runtime::id::{ClusterId, Epoch, NodeId};

use super::decision::Cause;
use super::memory::{Aim, Measured, Subject, Term};
use super::worker::Oddity;

/// Why a node stays although it was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kept {
    /// It holds the job's root.
    HoldsRoot,
    /// Its speed may be as good as others', given the error of its measurement.
    InDoubt,
    /// Enough others go.
    Enough,
}

/// What speaks for a bad link rather than for too little work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Evidence {
    /// Its overhead stands out among the clusters.
    Exceptional,
    /// Its link is measured to be full.
    Saturated,
    /// Its link is below what the application was found to need.
    BelowNeed,
    /// Another cluster waits, whose link is wider by far: for what is behind this one's.
    Thin,
}

/// Why an entry left the parole list, or no longer counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Release {
    /// Its term is over: it may be asked for again.
    Served,
    /// It was measured better.
    Better,
    /// Nothing was held against it for long.
    Clean,
    /// Its removal did not help: it was not the cause.
    Acquitted,
}

/// One reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum Reason {
    /// A coordinator of an older epoch asked.
    StaleEpoch {
        /// Whose.
        asked: Epoch,
        /// What the memory is of.
        known: Epoch,
    },
    /// The period was decided before.
    Repeated {
        /// Which.
        period: u64,
    },
    /// The run is not to be changed.
    Static,
    /// Nobody is measured yet.
    NothingMeasured {
        /// Nodes in their grace period.
        joining: u32,
        /// Nodes without a report that counts.
        silent: u32,
    },
    /// The numbers.
    Efficiency {
        /// Weighted average efficiency.
        efficiency: f64,
        /// Nodes behind it.
        nodes: u32,
        /// Of which with an older report.
        stale: u32,
        /// Nodes that do not count yet.
        joining: u32,
        /// Nodes that do not count any more.
        leaving: u32,
        /// Nodes without a report that counts.
        silent: u32,
        /// Of those that count: they have not worked yet.
        #[serde(default)]
        presumed: u32,
    },
    /// A cluster on parole for its link: the link is measured anew.
    Measures {
        /// Which.
        cluster: ClusterId,
    },
    /// Its term is over, and its link was measured to be no better.
    StillSlow {
        /// Which.
        cluster: ClusterId,
        /// Bytes per second.
        bandwidth: f64,
        /// Seconds of the new term.
        for_s: f64,
    },
    /// The job has not come round since the last change, or since its beginning: its next phases may be others.
    Partial {
        /// Since its beginning.
        first: bool,
    },
    /// A report was not believed.
    Odd {
        /// What of it.
        #[serde(flatten)]
        oddity: Oddity,
    },
    /// A cluster's aggregate was not believed.
    SetAside {
        /// Which.
        cluster: ClusterId,
        /// Why.
        why: String,
    },
    /// Efficiency is within the band: the size is right.
    InBand {
        /// Its lower end.
        e_min: f64,
        /// Its upper end.
        e_max: f64,
    },
    /// Efficiency is above the band.
    Above {
        /// Its upper end.
        e_max: f64,
        /// Nodes that bring it to the middle if the useful capacity stayed as it is, bounded.
        wanted: u32,
        /// Nodes there or under way.
        expected: u32,
    },
    /// Efficiency is below the band.
    Below {
        /// Its lower end.
        e_min: f64,
        /// Nodes that bring it to the middle if the useful capacity stayed as it is, bounded.
        wanted: u32,
        /// Periods in a row.
        periods: u32,
    },
    /// One bad period removes nobody.
    Patience {
        /// Bad periods so far.
        seen: u32,
        /// Of how many.
        needed: u32,
    },
    /// An action was taken shortly before.
    CoolDown {
        /// Periods still to wait.
        periods: u64,
    },
    /// Nodes that were told to go are still there, and the others wait for what they hand back.
    StillLeaving {
        /// So many.
        nodes: u32,
    },
    /// Something was lost shortly before, or members are silent.
    Unsettled {
        /// Periods still to wait, if nothing more happens.
        periods: u64,
    },
    /// The job is about to end.
    NearEnd {
        /// Estimated rest, in seconds.
        remaining_s: f64,
    },
    /// The job has all it may have.
    AtMaximum {
        /// So many.
        max: u32,
    },
    /// The job may not have fewer.
    AtMinimum {
        /// So many.
        min: u32,
        /// Those that were to go.
        wanted: u32,
    },
    /// There are fewer nodes than the job's minimum.
    BelowMinimum {
        /// There or under way.
        expected: u32,
        /// The minimum.
        min: u32,
    },
    /// There are more nodes than the job's maximum.
    AboveMaximum {
        /// There.
        nodes: u32,
        /// The maximum.
        max: u32,
    },
    /// One node more would leave the band on its other side.
    BestSize {
        /// This size.
        nodes: u32,
    },
    /// Nodes are asked for.
    Asked {
        /// So many.
        count: u32,
        /// What for.
        aim: Aim,
        /// Free nodes that are known to fit, where offers are known.
        fitting: Option<u32>,
    },
    /// What was asked for is taken back.
    Withdrawn {
        /// So many.
        count: u32,
        /// Whether it is asked anew, for it stayed unmet too long.
        unmet: bool,
    },
    /// A cluster's link is to blame.
    LinkBad {
        /// Which.
        cluster: ClusterId,
        /// Its mean inter-cluster overhead.
        inter: f64,
        /// From which one is suspected.
        threshold: f64,
        /// What the others have.
        others: f64,
        /// What else speaks for it.
        evidence: Evidence,
    },
    /// A cluster waits much for the others, but not for its link.
    LinkNotBlamed {
        /// Which.
        cluster: ClusterId,
        /// Its mean inter-cluster overhead.
        inter: f64,
        /// What the others have.
        others: f64,
    },
    /// A cluster waits much for the others, but perhaps for one of their nodes.
    LinkInDoubt {
        /// Which.
        cluster: ClusterId,
        /// Its mean inter-cluster overhead.
        inter: f64,
        /// A node of another cluster that is far slower than the rest.
        node: NodeId,
        /// Its speed, as a share of the mean.
        share: f64,
    },
    /// The last cluster is never removed.
    LastCluster {
        /// Which.
        cluster: ClusterId,
    },
    /// A node goes.
    Goes {
        /// Which.
        node: NodeId,
        /// Its cluster.
        cluster: ClusterId,
        /// Why.
        cause: Cause,
        /// alpha / speed.
        speed_term: f64,
        /// beta * inter-cluster overhead.
        link_term: f64,
        /// gamma, if in the worst cluster.
        cluster_term: f64,
    },
    /// A node was looked at and stays.
    Stays {
        /// Which.
        node: NodeId,
        /// Its badness.
        badness: f64,
        /// Why.
        why: Kept,
    },
    /// A node goes later, for it holds the root now.
    GoesLater {
        /// Which.
        node: NodeId,
        /// Why it goes.
        cause: Cause,
    },
    /// More nodes should go than are known by name.
    NotNamed {
        /// Should go.
        wanted: u32,
        /// Known.
        known: u32,
    },
    /// Nodes go for what is wrong with them; healthy ones are not looked at before the effect is seen.
    HealthySpared {
        /// Bad ones.
        bad: u32,
        /// That were to go by the number.
        wanted: u32,
    },
    /// The root moves.
    RootMoves {
        /// From.
        from: NodeId,
        /// To.
        to: NodeId,
        /// In this cluster.
        cluster: ClusterId,
        /// Why.
        why: RootWhy,
    },
    /// The root should move and cannot.
    RootStays {
        /// Where it is.
        node: NodeId,
    },
    /// The root is on its way.
    RootUnderWay {
        /// From.
        from: NodeId,
        /// To.
        to: NodeId,
    },
    /// Nodes crashed.
    Crashed {
        /// Which.
        node: NodeId,
        /// Its cluster.
        cluster: ClusterId,
    },
    /// Capacity lost is being replaced.
    Refilling {
        /// Nodes there or under way.
        expected: u32,
        /// Up to so many.
        to: u32,
        /// What took it away.
        cause: Cause,
    },
    /// It is replaced, or is given up.
    RefillOver {
        /// Nodes there or under way.
        expected: u32,
        /// Whether because it did not help.
        given_up: bool,
    },
    /// An action was judged.
    Judged {
        /// What it was for.
        aim: Aim,
        /// How things were.
        before: Measured,
        /// What was expected of it.
        predicted: Measured,
        /// What came.
        observed: Measured,
        /// Whether it helped.
        helped: bool,
    },
    /// With an action less is done, so far: it is looked at once more.
    Doubted {
        /// What it was for.
        aim: Aim,
        /// How things were.
        before: Measured,
        /// What came.
        observed: Measured,
    },
    /// An action cannot be judged.
    Unjudged {
        /// What it was for.
        aim: Aim,
        /// Whether because something else came between; else it never settled.
        overtaken: bool,
    },
    /// A removal is undone.
    Undone {
        /// Nodes to bring back.
        nodes: u32,
    },
    /// Growth that did harm is undone.
    GrowthUndone {
        /// Nodes by which it grew.
        nodes: u32,
    },
    /// What did not help is not repeated for a while.
    NotRepeated {
        /// Whether it is growth; else shrinking.
        growth: bool,
        /// Beyond this size.
        nodes: u32,
        /// For so many seconds.
        for_s: f64,
    },
    /// A coefficient of the badness formula was learned.
    Weight {
        /// Which.
        term: Term,
        /// Before.
        from: f64,
        /// After.
        to: f64,
    },
    /// The least bandwidth was learned.
    Bandwidth {
        /// From this cluster.
        cluster: Option<ClusterId>,
        /// Before, bytes per second.
        from: Option<f64>,
        /// After.
        to: Option<f64>,
    },
    /// The least speed was learned.
    Speed {
        /// Before.
        from: Option<f64>,
        /// After.
        to: Option<f64>,
    },
    /// Somebody is on the parole list.
    Paroled {
        /// Who.
        who: Subject,
        /// Why.
        cause: Cause,
        /// For so many seconds.
        for_s: f64,
        /// For the how-many-th time.
        times: u32,
    },
    /// Somebody may be asked for again.
    Released {
        /// Who.
        who: Subject,
        /// Why.
        why: Release,
    },
    /// Better nodes are worth moving to.
    Migrates {
        /// So many.
        count: u32,
        /// Saved over the remaining run, in seconds.
        gain_s: f64,
        /// Cost, in seconds.
        cost_s: f64,
        /// The remaining run, in seconds.
        remaining_s: f64,
        /// Whether the job says so; else it is taken to be as long as the past.
        known: bool,
    },
    /// They are not.
    NotWorth {
        /// So many.
        count: u32,
        /// Saved over the remaining run, in seconds.
        gain_s: f64,
        /// Cost, in seconds.
        cost_s: f64,
    },
    /// Better nodes are on their way, or in their grace period.
    MoveUnderWay {
        /// Nodes to be replaced.
        victims: u32,
    },
    /// Better nodes were asked for and have not come.
    NoneCame,
    /// Nothing was done, for the run is only monitored.
    Monitored {
        /// Actions withheld.
        actions: u32,
    },
}

/// Why the root moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RootWhy {
    /// Its node was asked to leave.
    Leaving,
    /// Its node is bad.
    BadNode,
    /// Its cluster goes.
    BadCluster,
}
