//! What the policy remembers between periods: small, versioned, and all that a successor of a lost coordinator needs.
//!
//! It is logged with each decision and sent to every cluster coordinator with each period's answer; a successor goes
//! on from the newest copy. Time in it is the policy's own: the sum of the periods decided, so that no clock need
//! agree.

use serde::{Deserialize, Serialize};
use springtide_runtime::id::{ClusterId, Epoch, NodeId};

use super::decision::{Cause, Prediction};
use super::settings::{Settings, Weights};
use super::snapshot::is_rate;

/// More entries than this are not kept: those with the earliest end go first.
pub const MOST_PAROLE: usize = 256;

/// A node or a whole cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Subject {
    /// One node.
    Node(NodeId),
    /// All nodes of a cluster: it is their link that was bad.
    Cluster(ClusterId),
}

impl std::fmt::Display for Subject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Subject::Node(node) => write!(f, "node {node}"),
            Subject::Cluster(cluster) => write!(f, "cluster {cluster}"),
        }
    }
}

/// Somebody removed for cause: not asked for again until the term is over or something better is measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Parole {
    /// Who.
    pub who: Subject,
    /// Why.
    pub cause: Cause,
    /// How often.
    pub times: u32,
    /// In which decision, by its tick.
    pub tick: u64,
    /// End of the term, on the policy's own clock, in seconds.
    pub until_s: f64,
    /// Speed (of a node) or bandwidth (of a cluster, bytes per second) at the removal, where known; of a cluster else what was
    /// measured first after it.
    pub measured: Option<f64>,
    /// When it was put here or the link was measured last, on the policy's own clock.
    #[serde(default)]
    pub looked_s: f64,
}

/// How much the job had when it ran well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Capacity {
    /// Nodes.
    pub nodes: u32,
    /// Sum of their speeds.
    pub speed: f64,
}

/// Capacity that was lost and is being replaced.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Refill {
    /// Up to here.
    pub to: Capacity,
    /// What took it away.
    pub cause: Cause,
    /// Whether it undoes a removal that did harm: then it goes on below the band too, for a while.
    #[serde(default)]
    pub undo: bool,
    /// Begun in the decision of this tick.
    #[serde(default)]
    pub tick: u64,
}

/// The job's state in few numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Measured {
    /// Nodes that counted.
    pub nodes: u32,
    /// Weighted average efficiency.
    pub efficiency: f64,
    /// Useful speed: work units per second.
    pub useful: f64,
}

/// What an action was to bring about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Aim {
    /// More nodes, for efficiency was above the band.
    Grow,
    /// Lost nodes replaced.
    Refill,
    /// Bad nodes gone.
    Cure,
    /// Nodes gone that were too many.
    Shrink,
    /// A cluster with a bad link gone.
    Unlink,
    /// Nodes replaced by better ones.
    Migrate,
}

/// A term of the badness formula.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Term {
    /// alpha / speed.
    Speed,
    /// beta * inter-cluster overhead.
    Link,
    /// gamma, in the worst cluster.
    Cluster,
}

/// An action whose prediction has not been compared with what came.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// What it was for.
    pub aim: Aim,
    /// In which decision, by its tick.
    pub tick: u64,
    /// How things were.
    pub before: Measured,
    /// What was expected.
    pub prediction: Prediction,
    /// Useful speed of the nodes removed, before they were.
    pub lost: f64,
    /// Nodes removed.
    pub removed: u32,
    /// The term that weighed most in choosing them.
    pub term: Option<Term>,
    /// Learned requirements before it, to go back to.
    pub requirements: Requirements,
    /// Settled periods seen since.
    pub seen: u32,
    /// Sum of their efficiencies.
    pub efficiency: f64,
    /// Sum of their useful speeds.
    pub useful: f64,
    /// It did harm at the first look: a second decides.
    #[serde(default)]
    pub doubted: bool,
}

/// What the application was found to need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Requirements {
    /// Bytes per second between a cluster and the others: more than what a cluster removed for its link had.
    pub min_bandwidth: Option<f64>,
    /// Speed of a node: more than what nodes removed for slowness had.
    pub min_speed: Option<f64>,
}

/// A size that was tried and did not help.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Limit {
    /// Nodes beyond which it did not.
    pub nodes: u32,
    /// Efficiency at which it was tried.
    pub efficiency: f64,
    /// Until when it is not tried again, on the policy's own clock.
    pub until_s: f64,
    /// How often it was tried.
    pub times: u32,
}

/// The root is on its way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootMove {
    /// From this node.
    pub from: NodeId,
    /// To this one.
    pub to: NodeId,
    /// Asked for in the decision of this tick.
    pub tick: u64,
    /// Whether the node it leaves goes after it.
    #[serde(default)]
    pub then_goes: bool,
}

/// Better nodes were asked for; when they are there, these go.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Migration {
    /// Whom they replace.
    pub victims: Vec<NodeId>,
    /// Nodes that stayed when it began.
    pub base: u32,
    /// Asked for in the decision of this tick.
    pub tick: u64,
    /// How things were.
    pub before: Measured,
    /// What is expected.
    pub prediction: Prediction,
}

/// How a job iterates.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Iterations {
    /// Done, when they were last seen to advance.
    pub done: u64,
    /// When that was, on the policy's own clock.
    pub at_s: f64,
    /// How long the last ones took each, in seconds; absent before one was seen whole.
    pub length_s: Option<f64>,
}

/// What is remembered. [`Memory::new`] at the job's start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Memory {
    /// Ownership generation of the coordinator that decided last.
    pub epoch: Epoch,
    /// The period it decided.
    pub period: u64,
    /// Decisions taken, over all epochs.
    pub tick: u64,
    /// The job's iterations, as far as it tells of them.
    pub iterations: Option<Iterations>,
    /// Periods that one iteration takes: so many tell of the job, fewer of a phase of it.
    pub span: u32,
    /// So many iterations must be done for what is measured to tell of the nodes since the last change, and not of the end of
    /// an iteration that went another way.
    pub whole_from: u64,
    /// From this tick on it is taken to, whatever the iterations.
    pub whole_at: u64,
    /// The job has been given nodes before its first iteration told how it fares.
    pub grew_blindly: bool,
    /// The policy's own clock: sum of the periods decided, in seconds.
    pub clock_s: f64,
    /// The badness formula's coefficients as learned.
    pub weights: Weights,
    /// The fastest worker's speed in the last period.
    pub max_speed: Option<f64>,
    /// What was learned of the application.
    pub requirements: Requirements,
    /// Who is not wanted, in order of subject.
    pub parole: Vec<Parole>,
    /// The job's capacity when it last ran well.
    pub last_good: Option<Capacity>,
    /// Capacity being replaced.
    pub refill: Option<Refill>,
    /// The last action, until it is judged.
    pub trial: Option<Trial>,
    /// Periods below the band in a row.
    pub below: u32,
    /// No change of size up to this tick.
    pub cool_until: u64,
    /// Up to this tick the periods tell of a recovery, not of the nodes: nobody goes for what they show.
    pub unsettled_until: u64,
    /// Since when some have been leaving, on the policy's own clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leaving_since_s: Option<f64>,
    /// Growth beyond this did not help.
    pub ceiling: Option<Limit>,
    /// Shrinking to this did harm.
    pub floor: Option<Limit>,
    /// The root's move.
    pub root_move: Option<RootMove>,
    /// Nodes by which growth did harm: so many of the worst go again.
    pub excess: u32,
    /// A bad node that stayed only because it held the root, which it does no more.
    pub owed: Option<NodeId>,
    /// The migration under way.
    pub migration: Option<Migration>,
    /// No migration before this, on the policy's own clock.
    pub migrate_after_s: f64,
    /// Since which tick a request has been unmet.
    pub requested_since: Option<u64>,
}

impl Default for Memory {
    fn default() -> Self {
        Self::new(&Settings::default())
    }
}

impl Parole {
    /// Whether what is measured now (a node's speed, or bytes per second of a cluster) is so much better than at the removal that its
    /// term is over. `factor` is [`Settings::better_factor`].
    pub fn is_better(&self, now: Option<f64>, factor: f64) -> bool {
        now.zip(self.measured).is_some_and(|(now, then)| is_rate(now) && now >= factor * then)
    }
}

impl Memory {
    /// Whether the job takes no nodes of a cluster for what it has learned: it was removed and its term is not over, or its link was
    /// measured to carry less than the job needs. `bandwidth`: bytes per second between it and the others, where known.
    pub fn keeps_out(
        &self,
        cluster: &ClusterId,
        bandwidth: Option<f64>,
        settings: &Settings,
    ) -> bool {
        let of = |entry: &&Parole| matches!(&entry.who, Subject::Cluster(who) if who == cluster);
        match self.parole.iter().find(of) {
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

    /// Of a job that begins.
    pub fn new(settings: &Settings) -> Self {
        Self {
            epoch: Epoch::default(),
            period: 0,
            tick: 0,
            iterations: None,
            span: 1,
            whole_from: 0,
            whole_at: 0,
            grew_blindly: false,
            clock_s: 0.0,
            weights: settings.weights,
            max_speed: None,
            requirements: Requirements::default(),
            parole: Vec::new(),
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
            excess: 0,
            owed: None,
            migration: None,
            migrate_after_s: 0.0,
            requested_since: None,
        }
    }

    /// The newer of two copies, by epoch, then period.
    pub fn newest(a: Memory, b: Memory) -> Memory {
        if (b.epoch, b.period, b.tick) > (a.epoch, a.period, a.tick) { b } else { a }
    }

    /// Puts somebody on the parole list, for longer each time.
    pub(super) fn sentence(
        &mut self,
        who: Subject,
        cause: Cause,
        measured: Option<f64>,
        settings: &Settings,
    ) -> Parole {
        let at = self.parole.binary_search_by(|entry| entry.who.cmp(&who));
        let times = at.map_or(1, |i| self.parole[i].times.saturating_add(1));
        // One crash is forgiven: machines restart. The second one counts as the first offence.
        let offences = if cause == Cause::Crashed { times - 1 } else { times };
        let until_s = self.clock_s + if offences == 0 { 0.0 } else { term(offences, settings) };
        let (tick, looked_s) = (self.tick, self.clock_s);
        let entry = Parole { who, cause, times, tick, until_s, measured, looked_s };
        match at {
            Ok(i) => self.parole[i] = entry.clone(),
            Err(i) => self.parole.insert(i, entry.clone()),
        }
        if self.parole.len() > MOST_PAROLE {
            let ends = |(_, entry): &(usize, &Parole)| entry.until_s;
            let least = self.parole.iter().enumerate().min_by(|a, b| ends(a).total_cmp(&ends(b)));
            if let Some(i) = least.map(|(i, _)| i) {
                self.parole.remove(i);
            }
        }
        entry
    }

    /// A size that did not help, for as long as it is not to be tried again.
    pub(super) fn limit(limit: &Option<Limit>, clock_s: f64) -> Option<&Limit> {
        limit.as_ref().filter(|limit| clock_s < limit.until_s)
    }
}

/// The length of the `times`-th term, in seconds: doubling, capped.
pub(super) fn term(times: u32, settings: &Settings) -> f64 {
    let doublings = times.saturating_sub(1).min(64) as i32;
    (settings.parole_s * 2f64.powi(doublings)).min(settings.parole_cap_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_copy_is_of_the_highest_epoch_then_period() {
        let at = |epoch, period| Memory { epoch: Epoch(epoch), period, ..Memory::default() };
        for (a, b) in [((1, 9), (2, 1)), ((2, 1), (2, 2)), ((0, 0), (0, 1))] {
            let (old, new) = (at(a.0, a.1), at(b.0, b.1));
            assert_eq!(Memory::newest(old.clone(), new.clone()), new);
            assert_eq!(Memory::newest(new.clone(), old), new);
        }
    }

    #[test]
    fn a_removed_cluster_and_a_thin_link_are_kept_out_until_they_are_better() {
        let settings = Settings::default();
        let (bad, other) = (ClusterId::from("bad"), ClusterId::from("other"));
        let mut memory = Memory::default();
        memory.requirements.min_bandwidth = Some(100.0);
        memory.sentence(Subject::Cluster(bad.clone()), Cause::Link, Some(60.0), &settings);
        let out = |memory: &Memory, cluster, has| memory.keeps_out(cluster, has, &settings);
        assert!(out(&memory, &bad, None) && out(&memory, &bad, Some(80.0)));
        assert!(!out(&memory, &bad, Some(90.0)), "it is half as good again");
        assert!(!out(&memory, &other, None) && !out(&memory, &other, Some(100.0)));
        assert!(out(&memory, &other, Some(99.0)) && !out(&memory, &other, Some(f64::NAN)));
        memory.clock_s = memory.parole[0].until_s;
        assert!(!out(&memory, &bad, Some(60.0)), "it may be tried again");
    }

    #[test]
    fn terms_double_up_to_a_cap_and_one_crash_is_forgiven() {
        let settings = Settings::default();
        let mut memory = Memory { clock_s: 1000.0, ..Memory::default() };
        let mut terms = Vec::new();
        for _ in 0..6 {
            let node = Subject::Node("a".into());
            terms.push(memory.sentence(node, Cause::Slow, None, &settings).until_s - 1000.0);
        }
        assert_eq!(terms, [300.0, 600.0, 1200.0, 2400.0, 3600.0, 3600.0]);
        let mut crash = || {
            let node = Subject::Node("b".into());
            memory.sentence(node, Cause::Crashed, None, &settings).until_s - 1000.0
        };
        assert_eq!([crash(), crash(), crash()], [0.0, 300.0, 600.0]);
        assert_eq!(memory.parole.len(), 2);
    }

    #[test]
    fn the_list_is_bounded_and_in_order() {
        let settings = Settings::default();
        let mut memory = Memory::default();
        for i in 0..1000u32 {
            memory.clock_s = f64::from(i);
            let node = Subject::Node(format!("n{:03}", (i * 7) % 1000).as_str().into());
            memory.sentence(node, Cause::Slow, Some(1.0), &settings);
        }
        assert_eq!(memory.parole.len(), MOST_PAROLE);
        assert!(memory.parole.is_sorted_by(|a, b| a.who < b.who));
        let earliest = memory.parole.iter().map(|entry| entry.until_s).fold(f64::MAX, f64::min);
        assert_eq!(earliest, 300.0 + 744.0, "the earliest to end were dropped");
        assert!(rmp_serde::to_vec_named(&memory).unwrap().len() < 64 * 1024);
    }
}
