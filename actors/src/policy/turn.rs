//! One decision in the making: the snapshot, what is remembered, and what the rules share. Must hold no rule of its
//! own on what to do; those are in `observe`, `judge`, `grow`, `shrink` and `migrate`.

use std::collections::{BTreeMap, BTreeSet};

use springtide_runtime::id::{ClusterId, NodeId};

use super::aggregate::{ClusterAggregate, Named, Overall, believed};
use super::decision::{Action, Flag, Prediction, Request};
use super::memory::{Aim, Measured, Memory, Parole, Subject, Term, Trial};
use super::reason::{Reason, RootWhy};
use super::settings::Settings;
use super::snapshot::{Snapshot, is_rate};

/// Iterations, by their usual length, that are waited for at most until one was seen whole.
const PATIENCE: u32 = 3;

/// A cluster's uplink is as wide as another's if the other carries no more than this many times as much: what passing
/// transfers show of it is no better known.
pub(super) const AS_WIDE: f64 = 4.0;

/// More reasons than this are not told: a decision is a page, not a book.
const MOST_REASONS: usize = 200;

/// One decision in the making.
pub(super) struct Turn<'a> {
    /// What is.
    pub snapshot: &'a Snapshot,
    /// What was set.
    pub settings: &'a Settings,
    /// What was remembered, and what will be.
    pub memory: Memory,
    /// The clusters that are believed.
    pub clusters: BTreeMap<&'a ClusterId, &'a ClusterAggregate>,
    /// Their sum.
    pub all: Overall,
    /// Nodes of believed clusters that take part and were not asked to leave.
    pub staying: u32,
    /// Nodes of all clusters that take part and were not asked to leave, and those asked for.
    pub expected: u32,
    /// What to do.
    pub actions: Vec<Action>,
    /// Why.
    pub why: Vec<Reason>,
    /// What to notice.
    pub flags: BTreeSet<Flag>,
    /// What is expected.
    pub prediction: Option<Prediction>,
}

impl<'a> Turn<'a> {
    /// Begins.
    pub fn new(snapshot: &'a Snapshot, memory: Memory, settings: &'a Settings) -> Self {
        let known = memory.max_speed.filter(|&speed| is_rate(speed));
        let factor = settings.nonsense_factor;
        let (clusters, aside) = believed(&snapshot.clusters, &snapshot.members, known, factor);
        let all = Overall::of(clusters.values().copied());
        let sum = |counts: &mut dyn Iterator<Item = u32>| counts.fold(0u32, u32::saturating_add);
        let flagged = sum(&mut snapshot.clusters.values().map(|c| c.leaving));
        // Those whose own report does not say so yet.
        let unflagged = (snapshot.leaving.len() as u32).saturating_sub(flagged);
        let staying = sum(&mut clusters.values().map(|c| c.staying()));
        // A cluster set aside takes part all the same: as the membership says, else as it does.
        let takes_part = |(id, c): (&ClusterId, &ClusterAggregate)| {
            let aside = !clusters.contains_key(id);
            snapshot.members.get(id).copied().filter(|_| aside).unwrap_or(c.staying())
        };
        let present = sum(&mut snapshot.clusters.iter().map(takes_part));
        let mut turn = Self {
            snapshot,
            settings,
            memory,
            clusters,
            all,
            staying: staying.saturating_sub(unflagged),
            expected: present.saturating_sub(unflagged).saturating_add(snapshot.requested),
            actions: Vec::new(),
            why: Vec::new(),
            flags: BTreeSet::new(),
            prediction: None,
        };
        for (cluster, why) in aside {
            turn.flags.insert(Flag::Nonsense);
            turn.say(Reason::SetAside { cluster, why: why.to_owned() });
        }
        let odd: Vec<_> =
            snapshot.clusters.values().flat_map(|c| &c.odd).take(32).cloned().collect();
        for oddity in odd {
            turn.flags.insert(Flag::Nonsense);
            turn.say(Reason::Odd { oddity });
        }
        turn
    }

    /// Adds a reason.
    pub fn say(&mut self, reason: Reason) {
        if self.why.len() < MOST_REASONS {
            self.why.push(reason);
        }
    }

    /// Whether what is measured tells of a recovery and not of the nodes.
    pub fn is_unsettled(&self) -> bool {
        self.memory.tick <= self.memory.unsettled_until
    }

    /// How things are.
    pub fn measured(&self) -> Measured {
        Measured {
            nodes: self.all.counted,
            efficiency: self.all.efficiency().unwrap_or(0.0),
            useful: self.all.useful,
        }
    }

    /// The fewest nodes the job may have, at least one.
    pub fn least(&self) -> u32 {
        self.snapshot.min_nodes.max(1)
    }

    /// The most it may have.
    pub fn most(&self) -> u32 {
        self.snapshot.max_nodes.unwrap_or(u32::MAX).max(1)
    }

    /// Whether it is the node that holds the root.
    pub fn holds_root(&self, node: &NodeId) -> bool {
        self.snapshot.root.as_ref().is_some_and(|root| root.node == *node)
    }

    /// Whether the root is in this cluster.
    pub fn has_root(&self, cluster: &ClusterId) -> bool {
        self.snapshot.root.as_ref().is_some_and(|root| root.cluster == *cluster)
    }

    /// Begins to wait for an action's effect, which will be judged.
    pub fn act(&mut self, trial: Trial) {
        self.prediction = Some(trial.prediction);
        if let Some(old) = self.memory.trial.replace(trial) {
            self.say(Reason::Unjudged { aim: old.aim, overtaken: true });
        }
        self.cool_down();
    }

    /// No further change before the effect of this one can be seen.
    pub fn cool_down(&mut self) {
        self.stir();
        self.memory.cool_until = self.memory.tick + self.settling(self.settings.cool_down);
    }

    /// Something changes: the iteration that goes on now tells neither of before nor of after.
    pub fn stir(&mut self) {
        let memory = &mut self.memory;
        let done = memory.iterations.map_or(0, |known| known.done);
        memory.whole_from = done.saturating_add(2);
        memory.whole_at = memory.tick + u64::from(memory.span.saturating_mul(PATIENCE));
    }

    /// Whether what is measured tells of the job as a whole: of one iteration from its beginning to its end, since the last
    /// change. Always so where a period is no shorter than an iteration.
    pub fn is_whole(&self) -> bool {
        let Memory { span, iterations, whole_from, whole_at, tick, .. } = &self.memory;
        let come_round = iterations.is_none_or(|known| known.done >= *whole_from);
        !self.is_blind() && (*span <= 1 || come_round || tick >= whole_at)
    }

    /// Of so many periods of waiting for things to settle, as many as are needed; but until what is measured tells of the time
    /// since.
    pub fn settling(&self, periods: u32) -> u64 {
        let span = if self.memory.span > 1 { self.memory.span } else { 0 };
        u64::from(self.settings.settling(periods).max(span))
    }

    /// Periods after which a prediction that never settled is dropped.
    pub fn patience(&self) -> u64 {
        u64::from(self.settings.check_patience.max(self.memory.span.saturating_mul(PATIENCE)))
    }

    /// Whether the job iterates and has not come round yet: what is measured tells of the first phases alone.
    pub fn is_blind(&self) -> bool {
        let told = self.snapshot.progress.is_some_and(|p| p.done == 0 && p.total.is_some());
        told && self.memory.iterations.is_none_or(|known| known.length_s.is_none())
    }

    /// A trial that begins now.
    pub fn trial(&self, aim: Aim, prediction: Prediction) -> Trial {
        Trial {
            aim,
            tick: self.memory.tick,
            before: self.measured(),
            prediction,
            lost: 0.0,
            removed: 0,
            term: None::<Term>,
            requirements: self.memory.requirements,
            seen: 0,
            efficiency: 0.0,
            useful: 0.0,
            doubted: false,
        }
    }

    /// Moves the root away from where it is, unless it is on its way. `avoid` are nodes that go; `gone` a cluster that
    /// goes. Returns whether it moves or is on its way.
    pub fn move_root(
        &mut self,
        why: RootWhy,
        avoid: &BTreeSet<NodeId>,
        gone: Option<&ClusterId>,
    ) -> bool {
        let Some(root) = self.snapshot.root.clone() else { return true };
        if self.memory.root_move.is_some() {
            return true; // told by `observe`
        }
        let fit = |named: &&Named| {
            let node = &named.node;
            *node != root.node && !avoid.contains(node) && !self.snapshot.leaving.contains(node)
        };
        // Another cluster first: what is wrong with a node is often wrong with its cluster. The most capable one has
        // the most to do with the root: the fastest, not the one that did most just now, which in a phase without work for all
        // is chance. But whatever the root hands out passes its cluster's uplink.
        let candidates = self.clusters.iter().filter(|(id, _)| Some(**id) != gone);
        let candidates: Vec<_> =
            candidates.filter_map(|(id, c)| Some((*id, c, c.best.iter().find(fit)?))).collect();
        let uplinks = candidates.iter().filter_map(|(id, ..)| self.snapshot.uplink(id));
        let widest = uplinks.fold(0.0, f64::max);
        let carried = |id: &ClusterId| match self.snapshot.uplink(id) {
            Some(uplink) => (AS_WIDE * uplink / widest).min(1.0),
            None => 1.0,
        };
        let best = candidates
            .into_iter()
            .map(|(id, c, to)| (id, c.speed.value() * carried(id), to))
            .max_by(|a, b| {
                let other = |id: &ClusterId| *id != root.cluster;
                let rank = other(a.0).cmp(&other(b.0)).then(a.1.total_cmp(&b.1));
                rank.then_with(|| b.0.cmp(a.0))
            });
        let Some((cluster, _, to)) = best else {
            self.say(Reason::RootStays { node: root.node });
            return false;
        };
        let (cluster, to) = (cluster.clone(), to.node.clone());
        self.memory.root_move = Some(super::memory::RootMove {
            from: root.node.clone(),
            to: to.clone(),
            tick: self.memory.tick,
            then_goes: why == RootWhy::BadNode,
        });
        self.say(Reason::RootMoves {
            from: root.node.clone(),
            to: to.clone(),
            cluster: cluster.clone(),
            why,
        });
        self.actions.push(Action::MoveRoot { from: root.node, to, cluster });
        true
    }

    /// Whether an entry keeps its subject from being asked for now.
    pub fn is_barred(&self, entry: &Parole) -> bool {
        self.memory.clock_s < entry.until_s && !self.is_better(entry)
    }

    /// Whether its subject is now measured better than at its removal.
    pub fn is_better(&self, entry: &Parole) -> bool {
        let offers = &self.snapshot.offers;
        let now = match &entry.who {
            Subject::Node(node) => offers.values().find_map(|offer| offer.nodes.get(node)).copied(),
            Subject::Cluster(cluster) => offers.get(cluster).and_then(|offer| offer.bandwidth),
        };
        entry.is_better(now, self.settings.better_factor)
    }

    /// What a request must say besides its number, from all that is known.
    pub fn requirements(&self) -> Request {
        let mut request = Request {
            min_speed: self.memory.requirements.min_speed,
            min_bandwidth: self.memory.requirements.min_bandwidth,
            avoid_nodes: self.snapshot.leaving.clone(),
            ..Request::default()
        };
        for entry in &self.memory.parole {
            match (&entry.who, self.is_barred(entry)) {
                (Subject::Node(node), true) => {
                    request.avoid_nodes.insert(node.clone());
                }
                (Subject::Cluster(cluster), true) => {
                    request.avoid_clusters.insert(cluster.clone());
                }
                (Subject::Cluster(cluster), false) => {
                    request.waive.insert(cluster.clone());
                }
                (Subject::Node(_), false) => {}
            }
        }
        let in_use = self.clusters.iter().filter(|(_, c)| c.counted > 0).map(|(id, _)| *id);
        let mut prefer: Vec<&ClusterId> =
            in_use.filter(|id| !request.avoid_clusters.contains(*id)).collect();
        let root = self.snapshot.root.as_ref().map(|root| &root.cluster);
        let rtt = |id: &ClusterId| {
            root.and_then(|root| self.snapshot.rtt(root, id)).unwrap_or(f64::INFINITY)
        };
        let bandwidth = |id: &ClusterId| self.snapshot.uplink(id).unwrap_or(0.0);
        prefer.sort_by(|a, b| {
            let by_rtt = rtt(a).total_cmp(&rtt(b));
            by_rtt.then(bandwidth(b).total_cmp(&bandwidth(a))).then_with(|| a.cmp(b))
        });
        request.prefer = prefer.into_iter().cloned().collect();
        request
    }

    /// The inter-cluster overhead that a new node of this cluster is to be expected to have: that of its fellows; of a cluster that
    /// does not take part, that of the clusters without the root.
    pub fn inter_of(&self, cluster: &ClusterId) -> f64 {
        let root = self.snapshot.root.as_ref().map(|root| &root.cluster);
        let own = self.clusters.get(cluster).and_then(|own| own.mean_inter());
        own.unwrap_or_else(|| self.inter_without(root)).clamp(0.0, 1.0)
    }

    /// Mean inter-cluster overhead of the workers of all clusters but this one; 0 if there are none.
    pub fn inter_without(&self, cluster: Option<&ClusterId>) -> f64 {
        let others = self.clusters.iter().filter(|(id, _)| Some(**id) != cluster);
        let (sum, n) = others.fold((0.0, 0u32), |(sum, n), (_, c)| {
            (sum + c.inter.value(), n.saturating_add(c.counted))
        });
        if n == 0 { 0.0 } else { sum / f64::from(n) }
    }

    /// Free nodes that are known to fit a request: their speed, where known.
    pub fn fitting(&self, request: &Request) -> Vec<(&'a ClusterId, Option<f64>)> {
        let mut found = Vec::new();
        for (id, offer) in &self.snapshot.offers {
            let needs = request.min_bandwidth.filter(|_| !request.waive.contains(id));
            let too_thin = needs.zip(offer.bandwidth).is_some_and(|(need, has)| has < need);
            if too_thin || request.avoid_clusters.contains(id) {
                continue;
            }
            let fast = |speed: f64| is_rate(speed) && request.min_speed.is_none_or(|s| speed >= s);
            let own = offer.nodes.iter().filter(|(node, _)| !request.avoid_nodes.contains(*node));
            // More than a grid has, said by a scheduler gone mad, must not fill the memory here.
            let most = offer.free.min(1 << 16) as usize;
            found.extend(
                own.filter(|(_, speed)| fast(**speed)).take(most).map(|(_, &s)| (id, Some(s))),
            );
            let others = most.saturating_sub(offer.nodes.len());
            if offer.speed.is_none_or(fast) {
                found.extend(std::iter::repeat_n((id, offer.speed), others));
            }
        }
        found
    }
}
