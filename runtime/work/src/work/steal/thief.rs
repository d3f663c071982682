//! The thief's decisions, without I/O: which victim to ask, when, and what the node waits for
//! meanwhile.
//!
//! At most one request is outstanding inside the cluster and one between clusters, each matched to
//! its answer by number. A scope whose victims had no work rests with backoff and jitter; a hint
//! ends the rest.

mod victims;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::event::StealScope;
use crate::id::{ClusterId, NodeId, TaskPath};
use crate::membership::{Members, View};
use crate::meter::ThreadState;

use self::victims::Victims;

/// The first rest after all victims of a scope had no work; it doubles up to the scope's maximum.
const REST_FIRST: Duration = Duration::from_millis(2);
/// The longest rest inside the cluster. Hints wake a resting thief; this bounds the harm of a lost
/// one, and the cost of idling: one round of requests a second. (Five rounds a second cost 0.25 %
/// of a core of each idle node: `BENCHMARKS.md`.)
const REST_LOCAL_MAX: Duration = Duration::from_millis(1000);
/// The longest rest between clusters.
const REST_WIDE_MAX: Duration = Duration::from_millis(4000);
/// The divisor of the longest rest before the holder of an awaited task is asked again. It sends no
/// hints to thieves that asked only for descendants of that task.
const REST_AWAITING_DIVISOR: u32 = 5;
/// The most victims that are asked before a rest, so that in a large grid without work the number
/// of requests is bounded. Each victim sends a hint when it has work. So the graph of thieves and
/// victims stays connected with far fewer (Saraswat et al., PPoPP 2011).
const ROUND_MAX: usize = 16;
/// The same after a rest, until work is found. Victims asked earlier send hints, so this only
/// covers lost hints.
const ROUND_AFTER_REST_MAX: usize = 2;
/// The timeout of a request inside the cluster; a later answer is still accepted.
const TIMEOUT_LOCAL: Duration = Duration::from_secs(5);
/// The timeout between clusters, for links without an expected latency.
const TIMEOUT_WIDE: Duration = Duration::from_secs(20);

/// The rule by which victims are chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StealPolicy {
    /// Synchronous random steals inside the cluster and, at the same time, one asynchronous steal
    /// to a random node of another cluster.
    #[default]
    ClusterAware,
    /// One synchronous steal at a time, from a random node anywhere: the baseline.
    Random,
}

/// An action that the thief requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ThiefAction {
    /// Send a request to this node.
    Request {
        /// The victim to ask.
        to: NodeId,
        /// The number of the request.
        id: u32,
        /// Whether the victim is in this cluster.
        scope: StealScope,
        /// If set: ask only for work at or below this path.
        awaited: Option<TaskPath>,
    },
    /// From now on idle threads of this node wait for this.
    Waiting(ThreadState),
    /// Call [`Thief::pump`] at this time.
    Wake(Instant),
}

/// The data of an answered request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answered {
    /// Whether the victim is in this cluster.
    pub scope: StealScope,
    /// The time from request to answer.
    pub latency: Duration,
}

#[derive(Debug)]
struct Pending {
    lane: usize,
    victim: NodeId,
    scope: StealScope,
    since: Instant,
    /// The time of the timeout.
    until: Instant,
    leapfrog: bool,
}

/// A sequence of requests, one at a time, to random victims, without repetition until all had no
/// work.
#[derive(Debug, Default)]
struct Lane {
    victims: Victims,
    /// The scope of its victims; `None` where it asks everywhere.
    scope: Option<StealScope>,
    outstanding: Option<u32>,
    /// The victims without work, with the times of their answers.
    tried: BTreeMap<NodeId, Instant>,
    /// The number of requests since the last rest or success.
    asked: usize,
    /// Holders of awaited tasks that were asked for descendants of these in this round.
    leapfrogged: BTreeSet<NodeId>,
    /// Whether `tried` survives rests and successes.
    remembers: bool,
    /// Whether it has rested since its last success.
    rested: bool,
    hinted: Vec<NodeId>,
    resting_until: Option<Instant>,
    rest: Duration,
    rest_max: Duration,
    /// The time to ask the holders of awaited tasks during a rest.
    leapfrog_at: Option<Instant>,
    /// The holders that were asked in that way.
    leapfrog_asked: BTreeSet<NodeId>,
}

impl Lane {
    fn new(rest_max: Duration, remembers: bool) -> Self {
        Self { rest: REST_FIRST, rest_max, remembers, ..Self::default() }
    }

    /// Makes all victims eligible again.
    fn refresh(&mut self) {
        self.tried.clear();
        self.found();
    }

    /// Resets the round after a success. Victims without work have this thief on their list and
    /// send a hint later. They are asked earlier only if the hint may be lost.
    fn found(&mut self) {
        if !self.remembers {
            self.tried.clear();
        }
        self.asked = 0;
        self.leapfrogged.clear();
        self.rested = false;
        self.resting_until = None;
        self.rest = REST_FIRST;
        self.leapfrog_at = None;
        self.leapfrog_asked.clear();
    }

    /// Ends a rest.
    fn wake(&mut self, now: Instant) {
        self.resting_until = None;
        self.leapfrog_at = None;
        self.asked = 0;
        self.leapfrogged.clear();
        let (max, remembers) = (self.rest_max, self.remembers);
        self.tried.retain(|_, at| remembers && now.saturating_duration_since(*at) < max);
    }
}

/// The thief of a node. Lane 0 asks inside the cluster (under random stealing: everywhere), lane 1
/// between clusters.
#[derive(Debug)]
pub struct Thief {
    me: NodeId,
    cluster: ClusterId,
    policy: StealPolicy,
    members: Members,
    /// The expected maximum latencies of answers from other clusters, where known.
    expected_timeouts: BTreeMap<ClusterId, Duration>,
    lanes: [Lane; 2],
    pending: BTreeMap<u32, Pending>,
    next_id: u32,
    random: u64,
    idle: bool,
    waiting: Option<ThreadState>,
    timeouts: [u64; 2],
    suspected: BTreeSet<NodeId>,
}

impl Thief {
    /// Creates a thief without victims. `seed` determines its choice of victims.
    pub fn new(me: NodeId, cluster: ClusterId, policy: StealPolicy, seed: u64) -> Self {
        Self {
            me,
            cluster,
            policy,
            members: Members::default(),
            expected_timeouts: BTreeMap::new(),
            lanes: [REST_LOCAL_MAX, REST_WIDE_MAX]
                .map(|max| Lane::new(max, policy == StealPolicy::ClusterAware)),
            pending: BTreeMap::new(),
            next_id: 0,
            random: seed | 1,
            idle: false,
            waiting: None,
            timeouts: [0; 2],
            suspected: BTreeSet::new(),
        }
    }

    /// Sets the members of the job, and so the possible victims.
    pub fn view(&mut self, view: &View) {
        self.members = view.members.clone();
        let asked = self.pending.values().map(|pending| &pending.victim);
        let gone: BTreeSet<NodeId> =
            asked.filter(|victim| !self.members.contains_key(victim)).cloned().collect();
        for victim in &gone {
            self.unreachable(victim);
        }
        self.suspected.retain(|node| view.members.contains_key(node));
        let (all, mine) = (self.members.staying(), self.members.staying_in(&self.cluster));
        let me = all[mine.clone()].binary_search(&self.me).map(|at| mine.start + at);
        let me = me.map_or(mine.end..mine.end, |at| at..at + 1);
        let (everywhere, none) = (0..all.len(), Victims::default());
        let lanes = match self.policy {
            StealPolicy::ClusterAware => [
                (Some(StealScope::Local), Victims::except(mine.clone(), me)),
                (
                    Some(StealScope::Wide),
                    Victims::except(everywhere, mine).select(&self.me, &self.members),
                ),
            ],
            StealPolicy::Random => [(None, Victims::except(everywhere, me)), (None, none)],
        };
        for (lane, (scope, victims)) in self.lanes.iter_mut().zip(lanes) {
            (lane.scope, lane.victims) = (scope, victims);
            lane.refresh();
        }
    }

    /// Whether a node is a victim of this lane.
    fn may_ask(&self, lane: usize, node: &NodeId) -> bool {
        let Lane { victims, scope, .. } = &self.lanes[lane];
        let stays = self.members.get(node).is_some_and(|member| !member.leaving);
        let fits = scope.is_none_or(|scope| scope == self.scope_of(node));
        victims.count > 0 && stays && fits && *node != self.me
    }

    /// Sets the timeouts of requests to these clusters; others have the default.
    pub fn set_timeouts(&mut self, timeouts: BTreeMap<ClusterId, Duration>) {
        self.expected_timeouts = timeouts;
    }

    fn timeout(&self, victim: &NodeId) -> Duration {
        match self.scope_of(victim) {
            StealScope::Local => TIMEOUT_LOCAL,
            StealScope::Wide => {
                let cluster = self.members.get(victim).map(|member| &member.cluster);
                let expected = cluster.and_then(|cluster| self.expected_timeouts.get(cluster));
                expected.copied().unwrap_or(TIMEOUT_WIDE)
            }
        }
    }

    /// The scope of a node; unknown nodes count as remote.
    pub fn scope_of(&self, node: &NodeId) -> StealScope {
        let cluster = self.members.get(node).map(|member| &member.cluster);
        if cluster == Some(&self.cluster) { StealScope::Local } else { StealScope::Wide }
    }

    /// Sets whether this node looks for work.
    pub fn set_idle(&mut self, idle: bool) {
        if self.idle && !idle {
            self.lanes.iter_mut().for_each(Lane::found);
            self.waiting = None;
        }
        self.idle = idle;
    }

    /// Handles an answer; `hit` if it contains a task. `None` for a number that is not outstanding
    /// (timed out, or of an earlier incarnation): its task is accepted nevertheless.
    pub fn answered(&mut self, id: u32, hit: bool, now: Instant) -> Option<Answered> {
        let pending = self.pending.remove(&id)?;
        let lane = &mut self.lanes[pending.lane];
        if lane.outstanding == Some(id) {
            lane.outstanding = None;
        }
        if hit {
            lane.found();
        } else if !pending.leapfrog {
            lane.tried.insert(pending.victim, now);
        }
        Some(Answered { scope: pending.scope, latency: now - pending.since })
    }

    /// Handles a hint of a victim that has work again.
    pub fn hinted(&mut self, from: &NodeId) {
        for index in 0..self.lanes.len() {
            if self.may_ask(index, from) {
                let lane = &mut self.lanes[index];
                lane.tried.remove(from);
                lane.resting_until = None;
                if !lane.hinted.contains(from) {
                    lane.hinted.push(from.clone());
                }
            }
        }
    }

    /// Handles a request that could not be sent, or the loss of the link to its victim, as an
    /// answer without a task.
    pub fn unreachable(&mut self, victim: &NodeId) {
        let lost: Vec<u32> =
            self.pending.iter().filter(|(_, p)| p.victim == *victim).map(|(id, _)| *id).collect();
        for id in lost {
            if let Some(pending) = self.pending.remove(&id) {
                let lane = &mut self.lanes[pending.lane];
                if lane.outstanding == Some(id) {
                    lane.outstanding = None;
                }
                lane.tried.insert(pending.victim, pending.since);
            }
        }
    }

    /// Excludes a node while it is suspected, and drops requests to it.
    pub fn suspect(&mut self, node: &NodeId, suspected: bool) {
        if suspected {
            self.suspected.insert(node.clone());
            self.unreachable(node);
        } else if self.suspected.remove(node) {
            for lane in &mut self.lanes {
                lane.tried.remove(node);
            }
        }
    }

    /// What idle threads of this node wait for, while the node looks for work.
    pub fn waiting(&self) -> Option<ThreadState> {
        self.waiting.filter(|_| self.idle)
    }

    /// The numbers of timeouts: inside the cluster, and between clusters.
    pub fn timeouts(&self) -> [u64; 2] {
        self.timeouts
    }

    /// The actions at this time. `awaited` are the leased tasks that threads of this node wait for,
    /// with their holders.
    pub fn pump(&mut self, awaited: &[(TaskPath, NodeId)], now: Instant) -> Vec<ThiefAction> {
        let mut actions = Vec::new();
        self.expire_requests(now);
        let mut wake: Option<Instant> = None;
        if self.idle || !awaited.is_empty() {
            for lane in 0..2 {
                if self.lanes[lane].outstanding.is_none() {
                    match self.choose(lane, awaited, now) {
                        VictimChoice::Ask(victim, awaited) => {
                            actions.push(self.request(lane, victim, awaited, now));
                        }
                        VictimChoice::Rest(until) => {
                            wake = Some(wake.map_or(until, |wake| wake.min(until)));
                        }
                        VictimChoice::NoVictim => {}
                    }
                }
                if let Some(id) = self.lanes[lane].outstanding
                    && let Some(pending) = self.pending.get(&id)
                {
                    let until = pending.until;
                    wake = Some(wake.map_or(until, |wake| wake.min(until)));
                }
            }
        }
        if self.idle {
            let waiting = self.waits_for();
            if self.waiting != Some(waiting) {
                self.waiting = Some(waiting);
                actions.push(ThiefAction::Waiting(waiting));
            }
        }
        actions.extend(wake.map(ThiefAction::Wake));
        actions
    }

    /// The state of idle threads: waiting inside the cluster while a request there is outstanding,
    /// waiting between clusters with only a remote one.
    fn waits_for(&self) -> ThreadState {
        let outstanding = self.lanes.iter().filter_map(|lane| lane.outstanding);
        let scopes: Vec<StealScope> =
            outstanding.filter_map(|id| self.pending.get(&id)).map(|p| p.scope).collect();
        if scopes.contains(&StealScope::Local) {
            ThreadState::WaitLocal
        } else if scopes.contains(&StealScope::Wide) {
            ThreadState::WaitWide
        } else {
            ThreadState::Idle
        }
    }

    fn expire_requests(&mut self, now: Instant) {
        let old: Vec<u32> =
            self.pending.iter().filter(|(_, p)| now >= p.until).map(|(id, _)| *id).collect();
        for id in old {
            if let Some(pending) = self.pending.remove(&id) {
                self.timeouts[pending.scope as usize] += 1;
                let lane = &mut self.lanes[pending.lane];
                lane.tried.insert(pending.victim, now);
                if lane.outstanding == Some(id) {
                    lane.outstanding = None;
                }
            }
        }
    }

    fn request(
        &mut self,
        lane: usize,
        to: NodeId,
        awaited: Option<TaskPath>,
        now: Instant,
    ) -> ThiefAction {
        self.next_id = self.next_id.wrapping_add(1);
        let id = self.next_id;
        let scope = self.scope_of(&to);
        let leapfrog = awaited.is_some();
        let (victim, until) = (to.clone(), now + self.timeout(&to));
        self.pending.insert(id, Pending { lane, victim, scope, since: now, until, leapfrog });
        self.lanes[lane].outstanding = Some(id);
        ThiefAction::Request { to, id, scope, awaited }
    }

    fn choose(
        &mut self,
        lane: usize,
        awaited: &[(TaskPath, NodeId)],
        now: Instant,
    ) -> VictimChoice {
        let resting = &mut self.lanes[lane];
        if resting.resting_until.is_some_and(|until| now >= until) {
            resting.wake(now);
        }
        if let Some(until) = resting.resting_until {
            return self.rest_until(lane, until, awaited, now);
        }
        // Leapfrog first: ask the holders of the tasks that threads of this node wait for.
        for (path, holder) in awaited {
            let asked =
                self.lanes[lane].leapfrogged.contains(holder) || self.suspected.contains(holder);
            if !asked && self.may_ask(lane, holder) {
                self.lanes[lane].leapfrogged.insert(holder.clone());
                return VictimChoice::Ask(holder.clone(), Some(path.clone()));
            }
        }
        if !self.idle {
            return self.rest(lane, awaited, now);
        }
        let Self { lanes, suspected, .. } = self;
        lanes[lane].hinted.retain(|victim| !suspected.contains(victim));
        if let Some(victim) = self.lanes[lane].hinted.pop() {
            return VictimChoice::Ask(victim, None);
        }
        match self.draw_untried(lane) {
            Some(victim) => {
                self.lanes[lane].asked += 1;
                VictimChoice::Ask(victim, None)
            }
            None => self.rest(lane, awaited, now),
        }
    }

    /// A random victim among those not asked in this round, while the round lasts.
    fn draw_untried(&mut self, lane: usize) -> Option<NodeId> {
        let drawn = self.draw();
        let lane = &self.lanes[lane];
        let count = lane.victims.count;
        let max = if lane.rested { ROUND_AFTER_REST_MAX } else { ROUND_MAX };
        if count == 0 || lane.asked >= max {
            return None;
        }
        // A search from a random place: few victims are excluded, so the choice is almost uniform.
        let first = (drawn % count as u64) as usize;
        let places = (first..count).chain(0..first).map(|i| lane.victims.place(i));
        let out =
            |victim: &NodeId| lane.tried.contains_key(victim) || self.suspected.contains(victim);
        places.map(|place| &self.members.staying()[place]).find(|victim| !out(victim)).cloned()
    }

    fn rest(&mut self, lane: usize, awaited: &[(TaskPath, NodeId)], now: Instant) -> VictimChoice {
        if self.lanes[lane].victims.count == 0 {
            return VictimChoice::NoVictim;
        }
        let jitter = self.draw() % 1000;
        let resting = &mut self.lanes[lane];
        resting.rested |= self.idle;
        let rest = resting.rest + resting.rest * u32::try_from(jitter).unwrap_or(0) / 4000;
        resting.rest = (resting.rest * 2).min(resting.rest_max);
        self.rest_until(lane, now + rest, awaited, now)
    }

    /// During a rest, asks only the holders of awaited tasks, each once per pause.
    fn rest_until(
        &mut self,
        lane: usize,
        until: Instant,
        awaited: &[(TaskPath, NodeId)],
        now: Instant,
    ) -> VictimChoice {
        let resting = &mut self.lanes[lane];
        resting.resting_until = Some(until);
        if awaited.is_empty() {
            return VictimChoice::Rest(until);
        }
        let pause = resting.rest_max / REST_AWAITING_DIVISOR;
        let at = *resting.leapfrog_at.get_or_insert(now + pause);
        if now < at {
            return VictimChoice::Rest(until.min(at));
        }
        let holds = |(_, holder): &&(TaskPath, NodeId)| {
            !self.suspected.contains(holder) && self.may_ask(lane, holder)
        };
        let holders: Vec<_> = awaited.iter().filter(holds).collect();
        let lane = &mut self.lanes[lane];
        if holders.is_empty() {
            lane.leapfrog_at = Some(until);
            return VictimChoice::Rest(until);
        }
        let next = holders.iter().find(|(_, holder)| !lane.leapfrog_asked.contains(holder));
        let Some((path, holder)) = next else {
            lane.leapfrog_asked.clear();
            lane.leapfrog_at = Some(now + pause);
            return VictimChoice::Rest(until.min(now + pause));
        };
        lane.leapfrog_asked.insert(holder.clone());
        VictimChoice::Ask(holder.clone(), Some(path.clone()))
    }

    fn draw(&mut self) -> u64 {
        let mut x = self.random;
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.random = x;
        x.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16
    }
}

enum VictimChoice {
    Ask(NodeId, Option<TaskPath>),
    Rest(Instant),
    NoVictim,
}

#[cfg(test)]
mod tests;
