//! Why something was decided, or was not: typed, with its numbers, and as a sentence. Must not decide anything.

use std::fmt;

use serde::{Deserialize, Serialize};
use springtide_runtime::id::{ClusterId, Epoch, NodeId};

use super::decision::Cause;
use super::memory::{Aim, Measured, Subject, Term};
use super::stats::Oddity;

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

/// Bytes per second for people.
struct Rate(Option<f64>);

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("none"),
            Some(b) if b >= 1e6 => write!(f, "{:.1} MB/s", b / 1e6),
            Some(b) => write!(f, "{:.1} KB/s", b / 1e3),
        }
    }
}

struct Maybe(Option<f64>);

impl fmt::Display for Maybe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("none"),
            Some(x) => write!(f, "{x:.3}"),
        }
    }
}

fn nodes(n: u32) -> String {
    format!("{n} node{}", if n == 1 { "" } else { "s" })
}

impl fmt::Display for Aim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Aim::Grow => "adding nodes",
            Aim::Refill => "replacing lost nodes",
            Aim::Cure => "removing bad nodes",
            Aim::Shrink => "removing surplus nodes",
            Aim::Unlink => "removing a badly connected cluster",
            Aim::Migrate => "moving to better nodes",
        })
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use Reason::*;
        match self {
            StaleEpoch { asked, known } => write!(
                f,
                "nothing was decided: the coordinator of epoch {} asked, and epoch {} has begun",
                asked.0, known.0
            ),
            Repeated { period } => {
                write!(f, "nothing was decided: period {period} had been decided before")
            }
            Static => f.write_str("nothing was decided: the run's resources are static"),
            NothingMeasured { joining, silent } => write!(
                f,
                "nothing was decided: nobody is measured yet ({joining} in their grace period, {silent} silent)"
            ),
            Efficiency { efficiency, nodes: n, stale, joining, leaving, silent } => {
                write!(f, "weighted average efficiency is {efficiency:.3} over {}", nodes(*n))?;
                for (count, what) in [
                    (stale, "with an older report"),
                    (joining, "joining, not counted"),
                    (leaving, "leaving, not counted"),
                    (silent, "silent, not counted"),
                ] {
                    if *count > 0 {
                        write!(f, ", {count} {what}")?;
                    }
                }
                Ok(())
            }
            Odd { oddity } => oddity.fmt(f),
            SetAside { cluster, why } => {
                write!(f, "cluster {cluster} does not count in this period: {why}")
            }
            InBand { e_min, e_max } => {
                write!(f, "the number of nodes is right: efficiency is from {e_min} to {e_max}")
            }
            Above { e_max, wanted, expected } => write!(
                f,
                "efficiency is above {e_max}: the job can use {}, and {expected} are there or under way",
                nodes(*wanted)
            ),
            Below { e_min, wanted, periods } => write!(
                f,
                "efficiency is below {e_min} for {periods} period{}: {} would do",
                if *periods == 1 { "" } else { "s" },
                nodes(*wanted)
            ),
            Patience { seen, needed } => write!(
                f,
                "no node was removed: this is bad period {seen} of the {needed} in a row it takes"
            ),
            CoolDown { periods } => write!(
                f,
                "nothing was changed: the last action's effect is awaited for {periods} more period{}",
                if *periods == 1 { "" } else { "s" }
            ),
            NearEnd { remaining_s } => {
                write!(f, "nothing was changed: the job ends in about {remaining_s:.0} s")
            }
            AtMaximum { max } => write!(f, "no node was added: the job may have {max} at most"),
            AtMinimum { min, wanted } => write!(
                f,
                "{} should have gone and stayed: the job must have {min} at least",
                nodes(*wanted)
            ),
            BelowMinimum { expected, min } => write!(
                f,
                "{expected} nodes are there or under way, fewer than the job's minimum of {min}"
            ),
            AboveMaximum { nodes: n, max } => {
                write!(f, "{} are there, more than the job's maximum of {max}", nodes(*n))
            }
            BestSize { nodes: n } => write!(
                f,
                "{} stay: with one more or less efficiency would leave the band on its other side",
                nodes(*n)
            ),
            Asked { count, aim, fitting } => {
                write!(f, "{} asked for ({aim})", nodes(*count))?;
                match fitting {
                    Some(free) => write!(f, "; {free} free ones are known to fit"),
                    None => Ok(()),
                }
            }
            Withdrawn { count, unmet } => write!(
                f,
                "the request for {} was withdrawn: {}",
                nodes(*count),
                if *unmet {
                    "it stayed unmet too long, what is needed is asked anew"
                } else {
                    "they are not needed any more"
                }
            ),
            LinkBad { cluster, inter, threshold, others, evidence } => write!(
                f,
                "cluster {cluster} goes: its inter-cluster overhead is {inter:.3} (limit {threshold}, \
                 the others {others:.3}) and {}",
                match evidence {
                    Evidence::Exceptional => "stands out among the clusters",
                    Evidence::Saturated => "its link is full",
                    Evidence::BelowNeed => "its link is slower than the application needs",
                }
            ),
            LinkNotBlamed { cluster, inter, others } => write!(
                f,
                "cluster {cluster} was not removed for its link: its inter-cluster overhead of {inter:.3} is like the \
                 others' ({others:.3}), which speaks for too little work"
            ),
            LastCluster { cluster } => {
                write!(f, "cluster {cluster} was not removed: it is the last one")
            }
            Goes { node, cluster, cause, speed_term, link_term, cluster_term } => write!(
                f,
                "node {node} of cluster {cluster} goes: {cause} (badness {:.2}: speed {speed_term:.2}, link \
                 {link_term:.2}, cluster {cluster_term:.2})",
                speed_term + link_term + cluster_term
            ),
            Stays { node, badness, why } => write!(
                f,
                "node {node} was not removed: {} (badness {badness:.2})",
                match why {
                    Kept::HoldsRoot => "it holds the job's root",
                    Kept::InDoubt => "its speed may be as good as others', given its error",
                    Kept::Enough => "enough others go",
                }
            ),
            GoesLater { node, cause } => write!(
                f,
                "node {node} was not removed yet: it holds the job's root, which moves first ({cause})"
            ),
            NotNamed { wanted, known } => write!(
                f,
                "{wanted} nodes should go and {known} are known by name: the others are looked at later"
            ),
            HealthySpared { bad, wanted } => write!(
                f,
                "only the {bad} bad of {} to go do: healthy ones are spared until the effect is seen",
                nodes(*wanted)
            ),
            RootMoves { from, to, cluster, why } => write!(
                f,
                "the job's root moves from node {from} to node {to} of cluster {cluster}: {}",
                match why {
                    RootWhy::Leaving => "its node was asked to leave",
                    RootWhy::BadNode => "its node is bad",
                    RootWhy::BadCluster => "its cluster goes",
                }
            ),
            RootStays { node } => {
                write!(f, "the job's root stays on node {node}: no other node is fit to hold it")
            }
            RootUnderWay { from, to } => {
                write!(f, "the job's root is on its way from node {from} to node {to}")
            }
            Crashed { node, cluster } => write!(f, "node {node} of cluster {cluster} crashed"),
            Refilling { expected, to, cause } => write!(
                f,
                "lost capacity is replaced ({cause}): {expected} nodes are there or under way, {to} ran well"
            ),
            RefillOver { expected, given_up } => {
                if *given_up {
                    write!(f, "lost capacity is not replaced any further: it did not help")
                } else {
                    write!(
                        f,
                        "lost capacity is replaced: {} are there or under way",
                        nodes(*expected)
                    )
                }
            }
            Judged { aim, before, predicted, observed, helped } => write!(
                f,
                "{aim} {}: {} at efficiency {:.3} and useful speed {:.3} became {} at {:.3} and {:.3} \
                 (predicted: {:.3} and {:.3})",
                if *helped { "helped" } else { "did not help" },
                nodes(before.nodes),
                before.efficiency,
                before.useful,
                observed.nodes,
                observed.efficiency,
                observed.useful,
                predicted.efficiency,
                predicted.useful
            ),
            Unjudged { aim, overtaken } => write!(
                f,
                "whether {aim} helped cannot be said: {}",
                if *overtaken { "something else came between" } else { "it never settled" }
            ),
            Undone { nodes: n } => write!(f, "the removal is undone: {} wanted back", nodes(*n)),
            NotRepeated { growth, nodes, for_s } => write!(
                f,
                "no {} {nodes} nodes for {for_s:.0} s: it was tried and did not help",
                if *growth { "growth beyond" } else { "shrinking below" }
            ),
            Weight { term, from, to } => write!(
                f,
                "the badness formula's {} went from {from:.3} to {to:.3}: the choice by it {}",
                match term {
                    Term::Speed => "alpha (speed)",
                    Term::Link => "beta (inter-cluster overhead)",
                    Term::Cluster => "gamma (worst cluster)",
                },
                if to > from { "helped" } else { "did not help" }
            ),
            Bandwidth { cluster, from, to } => {
                write!(
                    f,
                    "the application's least bandwidth went from {} to {}",
                    Rate(*from),
                    Rate(*to)
                )?;
                match cluster {
                    Some(cluster) => write!(f, ", by cluster {cluster}"),
                    None => f.write_str(": the removal it came from did not help"),
                }
            }
            Speed { from, to } => {
                write!(f, "the least speed of a node went from {} to {}", Maybe(*from), Maybe(*to))
            }
            Paroled { who, cause, for_s, times } => {
                write!(f, "{who} is on the parole list for {for_s:.0} s ({cause}, time {times})")
            }
            Released { who, why } => write!(
                f,
                "{who} may be asked for again: {}",
                match why {
                    Release::Served => "its term is over",
                    Release::Better => "it was measured better",
                    Release::Clean => "nothing was held against it for long",
                    Release::Acquitted => "its removal did not help",
                }
            ),
            Migrates { count, gain_s, cost_s, remaining_s, known } => write!(
                f,
                "{} are to be replaced by better free ones: over the remaining {remaining_s:.0} s ({}) that saves \
                 {gain_s:.1} s and costs {cost_s:.1} s",
                nodes(*count),
                if *known { "by the job's progress" } else { "taken to be as long as the past" }
            ),
            NotWorth { count, gain_s, cost_s } => write!(
                f,
                "{} could be replaced by better free ones and were not: it saves {gain_s:.1} s and costs {cost_s:.1} s",
                nodes(*count)
            ),
            MoveUnderWay { victims } => write!(
                f,
                "{} are being replaced by better ones: the size stays until those are there and known",
                nodes(*victims)
            ),
            NoneCame => f.write_str("no better node came: the move is given up for a while"),
            Monitored { actions } => write!(
                f,
                "nothing was done: the run is only monitored ({actions} action{} withheld)",
                if *actions == 1 { "" } else { "s" }
            ),
        }
    }
}
