//! The thief's side: whom to ask, when, and what the node waits for meanwhile.
//!
//! Bounded by construction: at most one request outstanding inside the cluster and one between clusters, each matched to its
//! answer by id. A scope whose victims all had nothing rests with backoff and jitter; a hint ends the rest.

mod victims;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::id::{ClusterId, NodeId, TaskPath};
use crate::membership::{Members, View};
use crate::meter::ThreadState;

use self::victims::Victims;

/// First rest after all victims of a scope had nothing; doubles up to the scope's longest.
const REST_FIRST: Duration = Duration::from_millis(2);
/// Longest rest inside the cluster. Hints wake a resting thief; this bounds the harm of a lost one, and the idle cost: a
/// round of requests a second. (Five a second took 0.25 % of a core of each idle node of a job: `BENCHMARKS.md`.)
const REST_LOCAL_MAX: Duration = Duration::from_millis(1000);
/// Longest rest between clusters.
const REST_WIDE_MAX: Duration = Duration::from_millis(4000);
/// While a thread awaits a leased task its holder is asked again after rests that are shorter by this, for it gives no hint to those
/// who asked only for work below that task. The others are not.
const REST_AWAITING_SHARE: u32 = 5;
/// Victims that are asked in a row before a rest, at most: in a large grid without work nobody asks everybody. Each of them
/// hints when it has some, so that the thieves' and victims' graph stays connected with far fewer (Saraswat et al., PPoPP 2011).
const ROUND: usize = 16;
/// And after a rest, until work was found: those asked before hint when they have some, so that this is for lost hints alone.
const ROUND_AGAIN: usize = 2;
/// A request unanswered for so long is given up; its answer is still taken when it comes.
const TIMEOUT_LOCAL: Duration = Duration::from_secs(5);
/// The same between clusters, for links of which nothing is expected.
const TIMEOUT_WIDE: Duration = Duration::from_secs(20);

/// Whether thief and victim share a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// They do.
    Local,
    /// They do not.
    Wide,
}

/// How victims are chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StealPolicy {
    /// Synchronous random steals inside the cluster and, at the same time, one asynchronous steal to a random node of
    /// another cluster.
    #[default]
    ClusterAware,
    /// One synchronous steal at a time, from a random node anywhere: the baseline.
    Random,
}

/// What the thief wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ThiefAction {
    /// Ask this node.
    Request {
        /// Whom.
        to: NodeId,
        /// The request's id.
        id: u32,
        /// Whether it is in this cluster.
        scope: Scope,
        /// Ask only for work at or below this path.
        awaited: Option<TaskPath>,
    },
    /// What idle threads of this node wait for from now on.
    Waiting(ThreadState),
    /// Call [`Thief::pump`] at this time.
    Wake(Instant),
}

/// What an answered request was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answered {
    /// Whether the victim is in this cluster.
    pub scope: Scope,
    /// From request to answer.
    pub latency: Duration,
}

#[derive(Debug)]
struct Pending {
    lane: usize,
    victim: NodeId,
    scope: Scope,
    since: Instant,
    /// When it is given up.
    until: Instant,
    leapfrog: bool,
}

/// One outstanding request at a time, to victims drawn at random and without repetition until all had nothing.
#[derive(Debug, Default)]
struct Lane {
    victims: Victims,
    /// Whether its victims are in this cluster; absent where it asks everywhere.
    scope: Option<Scope>,
    outstanding: Option<u32>,
    /// Who had nothing, and since when.
    tried: BTreeMap<NodeId, Instant>,
    /// How many were asked since the last rest or find.
    asked: usize,
    /// Holders of awaited tasks that were asked for what is below these meanwhile.
    leapfrogged: BTreeSet<NodeId>,
    /// Whether what is in `tried` outlasts rests and work found.
    remembers: bool,
    /// It has rested since it was worth asking all victims again.
    rested: bool,
    hinted: Vec<NodeId>,
    resting_until: Option<Instant>,
    rest: Duration,
    rest_max: Duration,
    /// When it asks the holders of awaited tasks amid a rest.
    leap_at: Option<Instant>,
    /// Those it has asked then.
    leapt: BTreeSet<NodeId>,
}

impl Lane {
    fn new(rest_max: Duration, remembers: bool) -> Self {
        Self { rest: REST_FIRST, rest_max, remembers, ..Self::default() }
    }

    /// All victims are worth asking.
    fn refresh(&mut self) {
        self.tried.clear();
        self.found();
    }

    /// Work was found. Those who had nothing still have this thief on their list, and will hint when they have some: they are asked
    /// before that only when the hint may be lost.
    fn found(&mut self) {
        if !self.remembers {
            self.tried.clear();
        }
        self.asked = 0;
        self.leapfrogged.clear();
        self.rested = false;
        self.resting_until = None;
        self.rest = REST_FIRST;
        self.leap_at = None;
        self.leapt.clear();
    }

    /// A rest is over.
    fn wake(&mut self, now: Instant) {
        self.resting_until = None;
        self.leap_at = None;
        self.asked = 0;
        self.leapfrogged.clear();
        let (most, remembers) = (self.rest_max, self.remembers);
        self.tried.retain(|_, at| remembers && now.saturating_duration_since(*at) < most);
    }
}

/// Lane 0 asks inside the cluster (or, under random stealing, everywhere), lane 1 between clusters.
#[derive(Debug)]
pub struct Thief {
    me: NodeId,
    cluster: ClusterId,
    policy: StealPolicy,
    members: Members,
    /// How long an answer from another cluster may take, where something is expected of the links to it.
    timeouts_expected: BTreeMap<ClusterId, Duration>,
    lanes: [Lane; 2],
    pending: BTreeMap<u32, Pending>,
    next_id: u32,
    seed: u64,
    random: u64,
    hungry: bool,
    waiting: Option<ThreadState>,
    timeouts: [u64; 2],
    suspected: BTreeSet<NodeId>,
}

impl Thief {
    /// A thief that knows nobody yet. `seed` decides whom it asks.
    pub fn new(me: NodeId, cluster: ClusterId, policy: StealPolicy, seed: u64) -> Self {
        Self {
            me,
            cluster,
            policy,
            members: Members::default(),
            timeouts_expected: BTreeMap::new(),
            lanes: [REST_LOCAL_MAX, REST_WIDE_MAX]
                .map(|most| Lane::new(most, policy == StealPolicy::ClusterAware)),
            pending: BTreeMap::new(),
            next_id: 0,
            seed,
            random: seed | 1,
            hungry: false,
            waiting: None,
            timeouts: [0; 2],
            suspected: BTreeSet::new(),
        }
    }

    /// Who can be asked from now on.
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
        let (everywhere, nobody) = (0..all.len(), Victims::default());
        let lanes = match self.policy {
            StealPolicy::ClusterAware => [
                (Some(Scope::Local), Victims::but(mine.clone(), me)),
                (
                    Some(Scope::Wide),
                    Victims::but(everywhere, mine).contacts(&self.me, all, self.seed),
                ),
            ],
            StealPolicy::Random => [(None, Victims::but(everywhere, me)), (None, nobody)],
        };
        for (lane, (scope, victims)) in self.lanes.iter_mut().zip(lanes) {
            (lane.scope, lane.victims) = (scope, victims);
            lane.refresh();
        }
    }

    /// Whether a node is one of a lane's victims.
    fn may_ask(&self, lane: usize, node: &NodeId) -> bool {
        let Lane { victims, scope, .. } = &self.lanes[lane];
        let stays = self.members.get(node).is_some_and(|member| !member.leaving);
        let fits = scope.is_none_or(|scope| scope == self.scope_of(node));
        victims.count > 0 && stays && fits && *node != self.me
    }

    /// How long the answers of nodes of these clusters may take, in place of the usual time.
    pub fn expect(&mut self, timeouts: BTreeMap<ClusterId, Duration>) {
        self.timeouts_expected = timeouts;
    }

    fn timeout(&self, victim: &NodeId) -> Duration {
        match self.scope_of(victim) {
            Scope::Local => TIMEOUT_LOCAL,
            Scope::Wide => {
                let cluster = self.members.get(victim).map(|member| &member.cluster);
                let expected = cluster.and_then(|cluster| self.timeouts_expected.get(cluster));
                expected.copied().unwrap_or(TIMEOUT_WIDE)
            }
        }
    }

    /// Whether a node is in this cluster; nodes not in the view count as elsewhere.
    pub fn scope_of(&self, node: &NodeId) -> Scope {
        let cluster = self.members.get(node).map(|member| &member.cluster);
        if cluster == Some(&self.cluster) { Scope::Local } else { Scope::Wide }
    }

    /// Whether this node wants work from now on.
    pub fn set_hungry(&mut self, hungry: bool) {
        if self.hungry && !hungry {
            self.lanes.iter_mut().for_each(Lane::found);
            self.waiting = None;
        }
        self.hungry = hungry;
    }

    /// An answer has come; `hit` if with a task. `None` for an id that is not outstanding (given up, or of an earlier
    /// life): a task in it is taken nevertheless.
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

    /// A victim that had nothing has work now.
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

    /// A request could not be sent, or the link to its victim went down: as an answer without a task.
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

    /// Asks a node for no work while it is suspected; what was asked of it is given up.
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

    /// What idle threads of this node wait for, while it wants work.
    pub fn waiting(&self) -> Option<ThreadState> {
        self.waiting.filter(|_| self.hungry)
    }

    /// Requests given up waiting for: inside the cluster, and between clusters.
    pub fn timeouts(&self) -> [u64; 2] {
        self.timeouts
    }

    /// What to do now. `awaited` are the leased tasks that threads of this node wait for, with their holders.
    pub fn pump(&mut self, awaited: &[(TaskPath, NodeId)], now: Instant) -> Vec<ThiefAction> {
        let mut actions = Vec::new();
        self.give_up_old(now);
        let mut wake: Option<Instant> = None;
        if self.hungry || !awaited.is_empty() {
            for lane in 0..2 {
                if self.lanes[lane].outstanding.is_none() {
                    match self.choose(lane, awaited, now) {
                        Choice::Ask(victim, awaited) => {
                            actions.push(self.request(lane, victim, awaited, now));
                        }
                        Choice::Rest(until) => {
                            wake = Some(wake.map_or(until, |wake| wake.min(until)));
                        }
                        Choice::Nobody => {}
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
        if self.hungry {
            let waiting = self.waits_for();
            if self.waiting != Some(waiting) {
                self.waiting = Some(waiting);
                actions.push(ThiefAction::Waiting(waiting));
            }
        }
        actions.extend(wake.map(ThiefAction::Wake));
        actions
    }

    /// Idle time with a request inside the cluster outstanding is waiting inside it; with only one to another cluster,
    /// waiting between clusters.
    fn waits_for(&self) -> ThreadState {
        let outstanding = self.lanes.iter().filter_map(|lane| lane.outstanding);
        let scopes: Vec<Scope> =
            outstanding.filter_map(|id| self.pending.get(&id)).map(|p| p.scope).collect();
        if scopes.contains(&Scope::Local) {
            ThreadState::WaitLocal
        } else if scopes.contains(&Scope::Wide) {
            ThreadState::WaitWide
        } else {
            ThreadState::Idle
        }
    }

    fn give_up_old(&mut self, now: Instant) {
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

    fn choose(&mut self, lane: usize, awaited: &[(TaskPath, NodeId)], now: Instant) -> Choice {
        let resting = &mut self.lanes[lane];
        if resting.resting_until.is_some_and(|until| now >= until) {
            resting.wake(now);
        }
        if let Some(until) = resting.resting_until {
            return self.rest_until(lane, until, awaited, now);
        }
        // Leapfrog first: the nodes that hold what threads of this node wait for.
        for (path, holder) in awaited {
            let asked =
                self.lanes[lane].leapfrogged.contains(holder) || self.suspected.contains(holder);
            if !asked && self.may_ask(lane, holder) {
                self.lanes[lane].leapfrogged.insert(holder.clone());
                return Choice::Ask(holder.clone(), Some(path.clone()));
            }
        }
        if !self.hungry {
            return self.rest(lane, awaited, now);
        }
        let Self { lanes, suspected, .. } = self;
        lanes[lane].hinted.retain(|victim| !suspected.contains(victim));
        if let Some(victim) = self.lanes[lane].hinted.pop() {
            return Choice::Ask(victim, None);
        }
        match self.any_untried(lane) {
            Some(victim) => {
                self.lanes[lane].asked += 1;
                Choice::Ask(victim, None)
            }
            None => self.rest(lane, awaited, now),
        }
    }

    /// A victim drawn from those not asked in this round, while it lasts.
    fn any_untried(&mut self, lane: usize) -> Option<NodeId> {
        let drawn = self.draw();
        let lane = &self.lanes[lane];
        let count = lane.victims.count;
        let most = if lane.rested { ROUND_AGAIN } else { ROUND };
        if count == 0 || lane.asked >= most {
            return None;
        }
        // From a place drawn at random on: few are out of question, so that the next is as good as any.
        let first = (drawn % count as u64) as usize;
        let places = (first..count).chain(0..first).map(|i| lane.victims.place(i));
        let out =
            |victim: &NodeId| lane.tried.contains_key(victim) || self.suspected.contains(victim);
        places.map(|place| &self.members.staying()[place]).find(|victim| !out(victim)).cloned()
    }

    fn rest(&mut self, lane: usize, awaited: &[(TaskPath, NodeId)], now: Instant) -> Choice {
        if self.lanes[lane].victims.count == 0 {
            return Choice::Nobody;
        }
        let jitter = self.draw() % 1000;
        let resting = &mut self.lanes[lane];
        resting.rested |= self.hungry;
        let rest = resting.rest + resting.rest * u32::try_from(jitter).unwrap_or(0) / 4000;
        resting.rest = (resting.rest * 2).min(resting.rest_max);
        self.rest_until(lane, now + rest, awaited, now)
    }

    /// Amid a rest only those are asked who hold what is awaited, each once and after a while again.
    fn rest_until(
        &mut self,
        lane: usize,
        until: Instant,
        awaited: &[(TaskPath, NodeId)],
        now: Instant,
    ) -> Choice {
        let resting = &mut self.lanes[lane];
        resting.resting_until = Some(until);
        if awaited.is_empty() {
            return Choice::Rest(until);
        }
        let pause = resting.rest_max / REST_AWAITING_SHARE;
        let at = *resting.leap_at.get_or_insert(now + pause);
        if now < at {
            return Choice::Rest(until.min(at));
        }
        let holds = |(_, holder): &&(TaskPath, NodeId)| {
            !self.suspected.contains(holder) && self.may_ask(lane, holder)
        };
        let holders: Vec<_> = awaited.iter().filter(holds).collect();
        let lane = &mut self.lanes[lane];
        if holders.is_empty() {
            lane.leap_at = Some(until);
            return Choice::Rest(until);
        }
        let next = holders.iter().find(|(_, holder)| !lane.leapt.contains(holder));
        let Some((path, holder)) = next else {
            lane.leapt.clear();
            lane.leap_at = Some(now + pause);
            return Choice::Rest(until.min(now + pause));
        };
        lane.leapt.insert(holder.clone());
        Choice::Ask(holder.clone(), Some(path.clone()))
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

enum Choice {
    Ask(NodeId, Option<TaskPath>),
    Rest(Instant),
    Nobody,
}

#[cfg(test)]
mod tests;
