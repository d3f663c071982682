//! Sentences for reasons, for logs and `springtide why`. Each contains all numbers of its reason.

use std::fmt;

use springtide_base::processors::Processors;

use super::change::{Aim, Term};
use super::reason::{Evidence, QuarantineEndReason, Reason, RootMoveReason, StayReason};

/// Formats bytes per second for people.
struct FormattedRate(Option<f64>);

impl fmt::Display for FormattedRate {
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

/// "is" for one processor, else "are".
fn are(n: Processors) -> &'static str {
    if n == Processors::ONE { "is" } else { "are" }
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
                "nothing was decided: no processor is measured yet ({} in their grace period, {} \
                 silent)",
                joining.get(),
                silent.get()
            ),
            Doubtful { efficiency, error, bound, measures, decides } => write!(
                f,
                "efficiency is {efficiency:.2} +- {error:.2}, which does not exclude the bound of \
                 {bound:.2}: {}",
                match (decides, measures) {
                    (true, _) => "the wait for new measurements is over, and the estimate decides",
                    (false, true) => "the size stays, and all speeds are measured again",
                    (false, false) => "the size stays for now",
                }
            ),
            Efficiency {
                efficiency,
                processors,
                stale,
                joining,
                leaving,
                silent,
                presumed,
                ..
            } => {
                write!(f, "weighted average efficiency is {efficiency:.3} over {processors}")?;
                for (count, what) in [
                    (stale, "with an older report"),
                    (presumed, "with a presumed speed"),
                    (joining, "joining, not counted"),
                    (leaving, "leaving, not counted"),
                    (silent, "silent, not counted"),
                ] {
                    if !count.is_zero() {
                        write!(f, ", {} {what}", count.get())?;
                    }
                }
                Ok(())
            }
            Measures { cluster } => {
                write!(
                    f,
                    "the link of cluster {cluster}, which is in quarantine, is measured again"
                )
            }
            StillSlow { cluster, bandwidth, for_s } => write!(
                f,
                "cluster {cluster} stays in quarantine for {for_s:.0} s: its link was \
                 measured again and carries {}",
                FormattedRate(Some(*bandwidth))
            ),
            Partial { first: true } => f.write_str(
                "the size stays until the job's first iteration has shown how it fares as a whole",
            ),
            Partial { first: false } => f.write_str(
                "the size stays until a whole iteration has shown how the job fares since the last \
                 change",
            ),
            AwaitsVerdict { aim } => {
                write!(f, "the size stays until it is known whether {aim} helped")
            }
            StaysAcquitted { who, cause } => write!(
                f,
                "{who} stays, although {cause}: its removal for that reason did not help before"
            ),
            Busy { working, processors } => write!(
                f,
                "no speed is measured yet, but {processors} worked {:.0} % of {} time",
                100.0 * working,
                if *processors == Processors::ONE { "its" } else { "their" }
            ),
            Implausible { oddity } => oddity.fmt(f),
            SetAside { cluster, why } => {
                write!(f, "cluster {cluster} does not count in this period: {why}")
            }
            InBand { e_min, e_max } => {
                write!(
                    f,
                    "the number of processors is right: efficiency is from {e_min} to {e_max}"
                )
            }
            Above { e_max, wanted, expected } => write!(
                f,
                "efficiency is above {e_max}: the job can use {wanted}, and {} {} present or under \
                 way",
                expected.get(),
                are(*expected)
            ),
            Below { e_min, wanted, periods } => write!(
                f,
                "efficiency is below {e_min} for {periods} period{}: {wanted} would do",
                if *periods == 1 { "" } else { "s" }
            ),
            Patience { seen, needed } => write!(
                f,
                "no node was removed: this is bad period {seen} of the {needed} in a row it takes"
            ),
            AwaitsPhase { seen_s, needed_s } => write!(
                f,
                "no healthy node was removed: efficiency must be low for {needed_s:.0} s (so far \
                 {seen_s:.0} s), since the job needed its processors again after the last removal"
            ),
            CoolDown { periods } => write!(
                f,
                "nothing was changed: the effect of the last action needs {periods} more period{}",
                if *periods == 1 { "" } else { "s" }
            ),
            Unsettled { periods } => write!(
                f,
                "no node was removed: nodes were lost or are silent, which affects what the others \
                 measure for {periods} more period{}",
                if *periods == 1 { "" } else { "s" }
            ),
            StillLeaving { nodes } => write!(
                f,
                "no node was removed: {nodes} node{} still leaving, and the others wait for the \
                 tasks that they hand back",
                if *nodes == 1 { " is" } else { "s are" }
            ),
            NearEnd { remaining_s } => {
                write!(f, "nothing was changed: the job ends in about {remaining_s:.0} s")
            }
            AtMaximum { max } => write!(f, "no more was added: the job may have {max} at most"),
            AtMinimum { min, wanted } => {
                write!(f, "{wanted} should have gone and stayed: the job must have {min} at least")
            }
            BelowMinimum { expected, min } => write!(
                f,
                "{expected} {} present or under way, fewer than the job's minimum of {}",
                are(*expected),
                min.get()
            ),
            AboveMaximum { processors, max } => {
                let (are, max) = (are(*processors), max.get());
                write!(f, "{processors} {are} present, more than the job's maximum of {max}")
            }
            BestSize { processors } => write!(
                f,
                "the job keeps {processors}: with one node more or less efficiency would leave the \
                 band on its other side"
            ),
            Requested { count, aim, fitting } => {
                write!(f, "{count} asked for ({aim})")?;
                match fitting {
                    Some(free) if *free == Processors::ONE => {
                        f.write_str("; 1 free one is known to fit")
                    }
                    Some(free) => write!(f, "; {} free ones are known to fit", free.get()),
                    None => Ok(()),
                }
            }
            Withdrawn { count, unmet } => write!(
                f,
                "the request for {count} was withdrawn: {}",
                if *unmet {
                    "it stayed unmet too long, and a new one follows"
                } else {
                    "they are no longer needed"
                }
            ),
            LinkBad { cluster, inter, threshold, others, evidence } => {
                let (whose, what) = match evidence {
                    Evidence::Exceptional => ("its", "stands out among the clusters"),
                    Evidence::Saturated => ("its", "its link is full"),
                    Evidence::BelowNeed => ("its", "its link is slower than the application needs"),
                    Evidence::Thin => ("another's", "this one's link is the narrower by far"),
                };
                write!(
                    f,
                    "cluster {cluster} is removed: {whose} inter-cluster overhead is {inter:.3} \
                     (limit {threshold}, the others {others:.3}) and {what}"
                )
            }
            LinkOfMost { cluster, share } => write!(
                f,
                "cluster {cluster} was not removed for its link: it has {:.0} % of the job's speed",
                100.0 * share
            ),
            LinkNotBlamed { cluster, inter, others } => write!(
                f,
                "cluster {cluster} was not removed for its link: its inter-cluster overhead of \
                 {inter:.3} is like the others' ({others:.3}), which suggests too little work"
            ),
            LinkInDoubt { cluster, inter, node, share } => write!(
                f,
                "cluster {cluster} was not removed for its link yet: its inter-cluster overhead of \
                 {inter:.3} may come from waiting for node {node}, which has {:.0} % of the mean \
                 speed",
                share * 100.0
            ),
            LastCluster { cluster } => {
                write!(f, "cluster {cluster} was not removed: it is the last one")
            }
            NodeRemoved {
                node,
                cluster,
                processors,
                cause,
                speed_term,
                link_term,
                cluster_term,
            } => {
                write!(f, "node {node} of cluster {cluster}")?;
                if !processors.is_zero() {
                    write!(f, " with {processors}")?;
                }
                write!(
                    f,
                    " is removed: {cause} (badness {:.2}: speed {speed_term:.2}, link \
                     {link_term:.2}, cluster {cluster_term:.2})",
                    speed_term + link_term + cluster_term
                )
            }
            Stays { node, badness, why } => write!(
                f,
                "node {node} was not removed: {} (badness {badness:.2})",
                match why {
                    StayReason::HoldsRoot => "it holds the job's root",
                    StayReason::InDoubt => "its speed may be as good as others', given its error",
                    StayReason::Enough => "enough other nodes are removed",
                    StayReason::Busy => "it works for most of the time",
                    StayReason::Fast => "it is one of the fastest, and there is enough work for it",
                }
            ),
            NodeRemovedLater { node, cause } => write!(
                f,
                "node {node} was not removed yet: it holds the job's root, which moves first \
                 ({cause})"
            ),
            NotNamed { wanted, known } => write!(
                f,
                "{wanted} should be removed and the nodes known by name have {}: the others are \
                 considered later",
                known.get()
            ),
            HealthySpared { bad, wanted } => write!(
                f,
                "only bad nodes with {bad} are removed, not {wanted}: healthy ones stay until the \
                 effect is visible"
            ),
            RootMoves { from, to, cluster, why } => write!(
                f,
                "the job's root moves from node {from} to node {to} of cluster {cluster}: {}",
                match why {
                    RootMoveReason::Leaving => "its node was asked to leave",
                    RootMoveReason::BadNode => "its node is bad",
                    RootMoveReason::SlowNode =>
                        "its node is slow, and all others wait for the serial part",
                    RootMoveReason::BadCluster => "its cluster is removed",
                }
            ),
            RootStays { node } => {
                write!(f, "the job's root stays on node {node}: no other node is suitable")
            }
            RootUnderWay { from, to } => {
                write!(f, "the job's root is moving from node {from} to node {to}")
            }
            Crashed { node, cluster } => write!(f, "node {node} of cluster {cluster} crashed"),
            Refilling { expected, to, cause } => write!(
                f,
                "lost capacity is being replaced ({cause}): {expected} {} present or under way, {} \
                 ran well",
                are(*expected),
                to.get()
            ),
            RefillOver { expected, given_up } => {
                if *given_up {
                    write!(f, "lost capacity is not replaced any further: it did not help")
                } else {
                    write!(
                        f,
                        "lost capacity is replaced: {expected} {} present or under way",
                        are(*expected)
                    )
                }
            }
            Judged { aim, before, predicted, observed, helped } => write!(
                f,
                "{aim} {}: {} at efficiency {:.3} and useful speed {:.3} became {} at {:.3} and \
                 {:.3} (predicted: {:.3} and {:.3})",
                if *helped { "helped" } else { "did not help" },
                before.processors,
                before.efficiency,
                before.useful,
                observed.processors.get(),
                observed.efficiency,
                observed.useful,
                predicted.efficiency,
                predicted.useful
            ),
            Doubted { aim, before, observed } => write!(
                f,
                "with {aim} the useful speed fell: {:.3} with {} instead of {:.3} with {}; a \
                 second check decides",
                observed.useful, observed.processors, before.useful, before.processors
            ),
            Unjudged { aim, overtaken } => write!(
                f,
                "whether {aim} helped is unknown: {}",
                if *overtaken { "another event interfered" } else { "it never settled" }
            ),
            Undone { processors } => {
                write!(f, "the removal is undone: {processors} {} wanted back", are(*processors))
            }
            GrowthUndone { processors } => {
                write!(
                    f,
                    "with {processors} more the job did less: the same number of the worst is \
                     removed"
                )
            }
            NotRepeated { growth, processors, for_s, undone } => {
                let change = if *growth { "growth beyond" } else { "shrinking below" };
                if *undone {
                    write!(
                        f,
                        "no {change} {processors} until the efficiency changes: it was tried and \
                         did harm"
                    )
                } else {
                    write!(
                        f,
                        "no {change} {processors} for {for_s:.0} s: it was tried and did not help"
                    )
                }
            }
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
                    FormattedRate(*from),
                    FormattedRate(*to)
                )?;
                match cluster {
                    Some(cluster) => write!(f, ", by cluster {cluster}"),
                    None => f.write_str(": the removal it came from did not help"),
                }
            }
            Speed { from, to } => {
                write!(
                    f,
                    "the least speed of a processor went from {} to {}",
                    Maybe(*from),
                    Maybe(*to)
                )
            }
            Quarantined { who, cause, for_s, times } => {
                write!(f, "{who} is in quarantine for {for_s:.0} s ({cause}, time {times})")
            }
            QuarantineEnded { who, why } => write!(
                f,
                "{who} may be asked for again: {}",
                match why {
                    QuarantineEndReason::Served => "its term is over",
                    QuarantineEndReason::Better => "it was measured better",
                    QuarantineEndReason::Clean => "it had no incident for a long time",
                    QuarantineEndReason::Acquitted => "its removal did not help",
                }
            ),
            Migrates { count, gain_s, cost_s, remaining_s, known } => write!(
                f,
                "{count} to be replaced by better free ones: over the remaining {remaining_s:.0} s \
                 ({}) that saves {gain_s:.1} s and costs {cost_s:.1} s",
                if *known { "by the job's progress" } else { "taken to be as long as the past" }
            ),
            NotWorth { count, gain_s, cost_s } => write!(
                f,
                "{count} could be replaced by better free ones and stay: it saves {gain_s:.1} s \
                 and costs {cost_s:.1} s"
            ),
            MoveUnderWay { victims } => write!(
                f,
                "{} {} being replaced by better ones: the size stays until those have joined and \
                 are measured",
                nodes(*victims),
                if *victims == 1 { "is" } else { "are" }
            ),
            NoneArrived => f.write_str("no better node arrived: the move is abandoned for a while"),
            Monitored { actions } => write!(
                f,
                "nothing was done: the run is only monitored ({actions} action{} withheld)",
                if *actions == 1 { "" } else { "s" }
            ),
        }
    }
}
