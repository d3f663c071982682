//! Working state of one decision, shared by the rules: snapshot, memory and results. The rules are
//! in `observe`, `judge`, `grow`, `shrink` and `migrate`.

use std::collections::{BTreeMap, BTreeSet};

use springtide_base::id::{ClusterId, NodeId};
use springtide_base::processors::Processors;

use super::aggregate::{ClusterAggregate, JobAggregate, RatedWorker, believed};
use super::change::{Aim, Measured, Prediction, QuarantineSubject, Term};
use super::decision::{AdaptationAction, Flag, SchedulerRequest};
use super::links::LinkRanking;
use super::memory::{Iterations, Memory, QuarantineEntry, Trial};
use super::number::is_rate;
use super::reason::{Reason, RootMoveReason};
use super::settings::AdaptationSettings;
use super::snapshot::Snapshot;

/// Maximum wait for a whole iteration, in iterations of the usual length.
const PATIENCE: u32 = 3;

/// Part of an iteration that its end takes at most.
const END_PART: f64 = 1.0 / 3.0;

/// Multiple of the usual length from which an iteration is overdue.
const OVERDUE: f64 = 2.0;

/// An uplink counts as equally wide if the other carries at most this multiple. Passive
/// measurements are no more precise.
pub(super) const AS_WIDE: f64 = 4.0;

/// Maximum reasons of a decision; more are dropped.
const REASONS_MAX: usize = 200;

/// Working state of one decision.
pub(super) struct DecisionState<'a> {
    /// Observed state of the job.
    pub snapshot: &'a Snapshot,
    /// Settings of the policy.
    pub settings: &'a AdaptationSettings,
    /// Memory, updated by the rules.
    pub memory: Memory,
    /// Aggregates of valid clusters.
    pub clusters: BTreeMap<&'a ClusterId, &'a ClusterAggregate>,
    /// Sum of these aggregates.
    pub all: JobAggregate,
    /// Processors of valid clusters' members that were not asked to leave.
    pub staying: Processors,
    /// Processors of all clusters' members that were not asked to leave, plus requested ones.
    pub expected: Processors,
    /// Actions decided so far.
    pub actions: Vec<AdaptationAction>,
    /// Reasons given so far.
    pub reasons: Vec<Reason>,
    /// Notable properties found so far.
    pub flags: BTreeSet<Flag>,
    /// Predicted effect of the actions.
    pub prediction: Option<Prediction>,
}

impl<'a> DecisionState<'a> {
    /// Starts a decision on a snapshot.
    pub fn new(snapshot: &'a Snapshot, memory: Memory, settings: &'a AdaptationSettings) -> Self {
        let known = memory.max_speed.filter(|&speed| is_rate(speed));
        let factor = settings.implausible_factor;
        let (clusters, aside) = believed(&snapshot.clusters, &snapshot.members, known, factor);
        let all = JobAggregate::of(clusters.values().copied());
        let flagged: Processors = snapshot.clusters.values().map(|c| c.leaving).sum();
        // Leaving nodes whose own report does not show it yet.
        let unflagged = snapshot.leaving.values().copied().sum::<Processors>();
        let unflagged = unflagged.saturating_sub(flagged);
        let staying: Processors = clusters.values().map(|c| c.staying()).sum();
        // Members of an excluded cluster count too: by the membership, else by its own report.
        let takes_part = |(id, c): (&ClusterId, &ClusterAggregate)| {
            let aside = !clusters.contains_key(id);
            snapshot.members.get(id).copied().filter(|_| aside).unwrap_or(c.staying())
        };
        let present: Processors = snapshot.clusters.iter().map(takes_part).sum();
        let mut turn = Self {
            snapshot,
            settings,
            memory,
            clusters,
            all,
            staying: staying.saturating_sub(unflagged),
            expected: present.saturating_sub(unflagged).saturating_add(snapshot.requested),
            actions: Vec::new(),
            reasons: Vec::new(),
            flags: BTreeSet::new(),
            prediction: None,
        };
        for (cluster, why) in aside {
            turn.flags.insert(Flag::Nonsense);
            turn.add_reason(Reason::SetAside { cluster, why: why.to_owned() });
        }
        let odd: Vec<_> =
            snapshot.clusters.values().flat_map(|c| &c.odd).take(32).cloned().collect();
        for oddity in odd {
            turn.flags.insert(Flag::Nonsense);
            turn.add_reason(Reason::Implausible { oddity });
        }
        turn
    }

    /// Orders a measurement of the bandwidth to a cluster's free nodes.
    pub fn measure(&mut self, cluster: &ClusterId) {
        self.add_reason(Reason::Measures { cluster: cluster.clone() });
        self.actions.push(AdaptationAction::Measure { cluster: cluster.clone() });
    }

    /// Adds a reason to the decision.
    pub fn add_reason(&mut self, reason: Reason) {
        if self.reasons.len() < REASONS_MAX {
            self.reasons.push(reason);
        }
    }

    /// Whether measurements reflect a recovery rather than the nodes.
    pub fn is_unsettled(&self) -> bool {
        self.memory.tick <= self.memory.unsettled_until
    }

    /// Returns the current state.
    pub fn measured(&self) -> Measured {
        Measured {
            processors: self.all.counted,
            efficiency: self.all.efficiency().unwrap_or(0.0),
            useful: self.all.useful,
        }
    }

    /// The job's minimum of processors, at least one.
    pub fn min_processors(&self) -> Processors {
        self.snapshot.min_processors.max(Processors::ONE)
    }

    /// The job's maximum of processors.
    pub fn max_processors(&self) -> Processors {
        self.snapshot.max_processors.unwrap_or(Processors::MAX).max(Processors::ONE)
    }

    /// Whether this node holds the root.
    pub fn holds_root(&self, node: &NodeId) -> bool {
        self.snapshot.root.as_ref().is_some_and(|root| root.node == *node)
    }

    /// Whether the root is in this cluster.
    pub fn has_root(&self, cluster: &ClusterId) -> bool {
        self.snapshot.root.as_ref().is_some_and(|root| root.cluster == *cluster)
    }

    /// Starts a trial of an action, to be judged later.
    ///
    /// Two removals for cause are judged together.
    pub fn start_trial(&mut self, mut trial: Trial) {
        self.prediction = Some(trial.prediction);
        let is_removal = |trial: &Trial| matches!(trial.aim, Aim::Cure | Aim::Unlink);
        match self.memory.trial.take() {
            Some(old) if is_removal(&old) && is_removal(&trial) => {
                (trial.changed, trial.tick) = (trial.tick, old.tick);
                (trial.before, trial.requirements) = (old.before, old.requirements);
                trial.lost += old.lost;
                trial.removed = trial.removed.saturating_add(old.removed);
                trial.term = trial.term.filter(|term| old.term == Some(*term));
            }
            Some(old) => self.add_reason(Reason::Unjudged { aim: old.aim, overtaken: true }),
            None => {}
        }
        self.memory.trial = Some(trial);
        self.memory.size_before_guess = None;
        self.cool_down();
    }

    /// Whether a further change must wait for the verdict on the last one. Gives the reason.
    ///
    /// The wait is bounded: [`DecisionState::patience`] ends a trial.
    pub fn awaits_verdict(&mut self) -> bool {
        let Some(aim) = self.memory.trial.as_ref().map(|trial| trial.aim) else { return false };
        self.add_reason(Reason::AwaitsVerdict { aim });
        true
    }

    /// Includes the replacement of removed nodes in the trial of their removal, if there is one:
    /// the job with the replacements must do what it did before. Returns whether there is one.
    pub fn extend_trial(&mut self, prediction: Prediction) -> bool {
        let tick = self.memory.tick;
        let Some(trial) = self.memory.trial.as_mut() else { return false };
        if !matches!(trial.aim, Aim::Cure | Aim::Unlink) {
            return false;
        }
        (trial.prediction, trial.changed) = (prediction, tick);
        (trial.seen, trial.efficiency, trial.useful) = (0, 0.0, 0.0);
        self.prediction = Some(prediction);
        self.cool_down();
        true
    }

    /// Whether a cool-down lasts.
    pub fn in_cool_down(&self) -> bool {
        self.memory.tick <= self.memory.cool_until
    }

    /// Starts a cool-down: no further change until the effect of this one is visible.
    pub fn cool_down(&mut self) {
        self.mark_mixed();
        self.memory.cool_until = self.memory.tick + self.settling(self.settings.cool_down);
    }

    /// Marks the current iteration as mixed: it covers times both before and after a change.
    pub fn mark_mixed(&mut self) {
        let memory = &mut self.memory;
        let done = memory.iterations.map_or(0, |known| known.done);
        memory.iteration_from = done.saturating_add(2);
        memory.iteration_tick = memory.tick + u64::from(memory.span.saturating_mul(PATIENCE));
    }

    /// Whether measurements cover a whole iteration since the last change. Always true where a
    /// period is no shorter than an iteration.
    pub fn covers_iteration(&self) -> bool {
        let Memory {
            span,
            iterations,
            iteration_from: whole_from,
            iteration_tick: whole_at,
            tick,
            ..
        } = &self.memory;
        let come_round = iterations.is_none_or(|known| known.done >= *whole_from);
        let whole = *span <= 1 || come_round || tick >= whole_at;
        whole && !self.is_before_first_iteration() && !self.is_iteration_overdue()
    }

    /// Whether the current iteration lasts far longer than the last ones. Then measurements cover a
    /// part of it only, in which all may wait for something.
    fn is_iteration_overdue(&self) -> bool {
        let Some(Iterations { at_s, length_s: Some(length_s), .. }) = self.memory.iterations else {
            return false;
        };
        self.memory.clock_s - at_s > OVERDUE * length_s.max(self.snapshot.period_s)
    }

    /// Limits a wait to the periods that settling takes, but at least to one iteration.
    pub fn settling(&self, periods: u32) -> u64 {
        let span = if self.memory.span > 1 { self.memory.span } else { 0 };
        u64::from(self.settings.settling(periods).max(span))
    }

    /// Periods after which an unsettled prediction is dropped.
    pub fn patience(&self) -> u64 {
        u64::from(self.settings.check_patience.max(self.memory.span.saturating_mul(PATIENCE)))
    }

    /// Whether an iterating job has not completed its first iteration: measurements cover its first
    /// phases only.
    pub fn is_before_first_iteration(&self) -> bool {
        let iterates = self.snapshot.progress.is_some_and(|p| p.done == 0 && p.total.is_some());
        iterates && self.memory.iterations.is_none_or(|known| known.length_s.is_none())
    }

    /// Whether this may be the end of the job's first iteration, in which processors wait for the
    /// last tasks. That takes a small part of an iteration.
    pub fn may_end_first_iteration(&self) -> bool {
        let passed = self
            .memory
            .iterations
            .map_or(self.memory.clock_s, |known| self.memory.clock_s - known.at_s);
        self.is_before_first_iteration() && self.below_s() < END_PART * passed
    }

    /// Seconds for which efficiency has been below the band.
    pub fn below_s(&self) -> f64 {
        f64::from(self.memory.below) * self.snapshot.period_s
    }

    /// The time to the end of the job in seconds, if it is too short for a change to pay.
    pub fn near_end(&self) -> Option<f64> {
        let near = f64::from(self.settings.near_end) * self.snapshot.period_s;
        let near = near.min(self.settings.settle_s);
        self.snapshot.remaining_s().filter(|&left| left < near)
    }

    /// Creates a trial that starts now.
    pub fn trial(&self, aim: Aim, prediction: Prediction) -> Trial {
        Trial {
            aim,
            tick: self.memory.tick,
            before: self.measured(),
            speed: self.all.speed,
            prediction,
            lost: 0.0,
            removed: Processors::ZERO,
            term: None::<Term>,
            requirements: self.memory.requirements,
            seen: 0,
            efficiency: 0.0,
            useful: 0.0,
            doubted: false,
            changed: self.memory.tick,
        }
    }

    /// Moves the root to another node, unless a move is under way.
    ///
    /// Excludes the nodes `avoid` and the cluster `gone`, which are to be removed. Returns whether
    /// a move starts or is under way.
    pub fn move_root(
        &mut self,
        why: RootMoveReason,
        avoid: &BTreeSet<NodeId>,
        gone: Option<&ClusterId>,
    ) -> bool {
        let Some(root) = self.snapshot.root.clone() else { return true };
        if self.memory.root_move.is_some() {
            return true; // `observe` reports it
        }
        let fit = |named: &&RatedWorker| {
            let node = &named.node;
            *node != root.node && !avoid.contains(node) && !self.snapshot.leaving.contains_key(node)
        };
        // Prefers another cluster, since a node's problem is often its cluster's, but not if the
        // node is known to be slow alone. Prefers the fastest cluster, since it exchanges most with
        // the root. Useful speed of the last period would be chance in a phase without work. All
        // that the root hands out passes the uplink of its cluster.
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
                let other = |id: &ClusterId| why != RootMoveReason::SlowNode && *id != root.cluster;
                let rank = other(a.0).cmp(&other(b.0)).then(a.1.total_cmp(&b.1));
                rank.then_with(|| b.0.cmp(a.0))
            });
        let Some((cluster, _, to)) = best else {
            self.add_reason(Reason::RootStays { node: root.node });
            return false;
        };
        let (cluster, to) = (cluster.clone(), to.node.clone());
        self.memory.root_move = Some(super::memory::RootMove {
            from: root.node.clone(),
            to: to.clone(),
            tick: self.memory.tick,
            then_goes: why == RootMoveReason::BadNode,
        });
        self.add_reason(Reason::RootMoves {
            from: root.node.clone(),
            to: to.clone(),
            cluster: cluster.clone(),
            why,
        });
        self.actions.push(AdaptationAction::MoveRoot { from: root.node, to, cluster });
        true
    }

    /// Whether an entry excludes its subject from requests.
    pub fn is_barred(&self, entry: &QuarantineEntry) -> bool {
        self.memory.clock_s < entry.until_s && !self.is_better(entry)
    }

    /// Whether the subject's current measurement is better than at its removal.
    pub fn is_better(&self, entry: &QuarantineEntry) -> bool {
        let offers = &self.snapshot.offers;
        let now = match &entry.subject {
            QuarantineSubject::Node(node) => {
                offers.values().find_map(|offer| offer.nodes.get(node)).map(|node| node.speed)
            }
            QuarantineSubject::Cluster(cluster) => {
                // Only a measurement since the removal counts. Other estimates may be of another
                // link of the cluster.
                let passed = self.memory.tick.saturating_sub(entry.tick) as f64;
                let passed_s = passed * self.snapshot.period_s;
                let offer = offers.get(cluster);
                let offer = offer.filter(|offer| offer.measured_s.is_some_and(|s| s <= passed_s));
                offer.and_then(|offer| offer.bandwidth)
            }
        };
        entry.is_better(now, self.settings.better_factor)
    }

    /// Creates a request with all known requirements, without a number of processors.
    pub fn requirements(&self) -> SchedulerRequest {
        let mut request = SchedulerRequest {
            min_speed: self.memory.requirements.min_speed,
            min_bandwidth: self.memory.requirements.min_bandwidth,
            avoid_nodes: self.snapshot.leaving.keys().cloned().collect(),
            ..SchedulerRequest::default()
        };
        for entry in &self.memory.quarantine {
            match (&entry.subject, self.is_barred(entry)) {
                (QuarantineSubject::Node(node), true) => {
                    request.avoid_nodes.insert(node.clone());
                }
                (QuarantineSubject::Cluster(cluster), true) => {
                    request.avoid_clusters.insert(cluster.clone());
                }
                (QuarantineSubject::Cluster(cluster), false) => {
                    request.waive.insert(cluster.clone());
                }
                (QuarantineSubject::Node(_), false) => {}
            }
        }
        let in_use = self.clusters.iter().filter(|(_, c)| !c.counted.is_zero()).map(|(id, _)| *id);
        let mut prefer: Vec<&ClusterId> =
            in_use.filter(|id| !request.avoid_clusters.contains(*id)).collect();
        let root = self.snapshot.root.as_ref().map(|root| &root.cluster);
        let rtt = |id: &ClusterId| root.and_then(|root| self.snapshot.rtt(root, id));
        let rtts: Vec<f64> = prefer.iter().filter_map(|id| rtt(id)).collect();
        let rates: Vec<f64> = prefer.iter().filter_map(|id| self.snapshot.uplink(id)).collect();
        let order = LinkRanking::new(rtts.iter(), rates.iter(), request.min_bandwidth);
        prefer.sort_by_cached_key(|id| {
            (order.rank(rtt(id), self.snapshot.uplink(id)), (*id).clone())
        });
        request.prefer = prefer.into_iter().cloned().collect();
        request
    }

    /// Expected inter-cluster overhead of a new node of this cluster: that of its fellows. For a
    /// cluster without members, that of the clusters without the root.
    pub fn inter_of(&self, cluster: &ClusterId) -> f64 {
        let root = self.snapshot.root.as_ref().map(|root| &root.cluster);
        let own = self.clusters.get(cluster).and_then(|own| own.mean_inter());
        own.unwrap_or_else(|| self.inter_without(root)).clamp(0.0, 1.0)
    }

    /// Mean inter-cluster overhead of the processors outside this cluster; 0 without any.
    pub fn inter_without(&self, cluster: Option<&ClusterId>) -> f64 {
        let others = self.clusters.iter().filter(|(id, _)| Some(**id) != cluster);
        let (sum, n) = others.fold((0.0, Processors::ZERO), |(sum, n), (_, c)| {
            (sum + c.inter.value(), n.saturating_add(c.counted))
        });
        if n.is_zero() { 0.0 } else { sum / f64::from(n) }
    }

    /// Free processors that are known to fit a request, each with its speed where known. A request
    /// without numbers of processors fits nodes of all sizes.
    pub fn fitting(&self, request: &SchedulerRequest) -> Vec<(&'a ClusterId, Option<f64>)> {
        let mut found = Vec::new();
        for (id, offer) in &self.snapshot.offers {
            let needs = request.min_bandwidth.filter(|_| !request.waive.contains(id));
            let too_thin = needs.zip(offer.bandwidth).is_some_and(|(need, has)| has < need);
            let too_great = !request.most.is_zero() && offer.smallest > request.most;
            if too_thin || too_great || request.avoid_clusters.contains(id) {
                continue;
            }
            let fast = |speed: f64| is_rate(speed) && request.min_speed.is_none_or(|s| speed >= s);
            let own = offer.nodes.iter().filter(|(node, _)| !request.avoid_nodes.contains(*node));
            // Bounds the memory in case a faulty scheduler offers more than a grid has.
            let most = offer.free.get().min(1 << 16) as usize;
            let processors = own.filter(|(_, own)| fast(own.speed)).flat_map(|(_, own)| {
                std::iter::repeat_n((id, Some(own.speed)), own.processors.get() as usize)
            });
            found.extend(processors.take(most));
            let named: Processors = offer.nodes.values().map(|own| own.processors).sum();
            let others = most.saturating_sub(named.get() as usize);
            if offer.speed.is_none_or(fast) {
                found.extend(std::iter::repeat_n((id, offer.speed), others));
            }
        }
        found
    }
}
