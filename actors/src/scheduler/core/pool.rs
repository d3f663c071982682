//! The nodes of the grid: what each does, who holds it, and what free ones are offered.

use std::collections::{BTreeMap, BTreeSet};

use springtide_runtime::id::{ClusterId, JobId, NodeId};
use springtide_runtime::membership::Member;
use tokio::time::Instant;

use super::choose::{Candidate, is_rate};
use super::drain::Mark;
use super::event::Action;
use super::speeds::{Speeds, Unit};
use super::stubs::OnDemand;
use super::{Core, Job};
use crate::policy::Offer;
use crate::scheduler::{CrowdedHost, NodeState, NodeStatus, Registered, SiteUp};

/// A cluster's nodes.
#[derive(Debug)]
pub(super) struct Site {
    pub(super) nodes: BTreeSet<NodeId>,
    pub(super) starts_programs: bool,
    /// Its processors are held when jobs need them; else its nodes are always there.
    pub(super) on_demand: Option<OnDemand>,
    /// Its nodes join by themselves.
    pub(super) joins: bool,
    /// The process that it is in, where that is its own.
    pub(super) at: Option<NodeId>,
    /// When its nodes are looked at, for its process is not heard.
    pub(super) look_at: Option<Instant>,
}

#[derive(Debug)]
pub(super) struct Node {
    pub(super) cluster: ClusterId,
    pub(super) state: State,
    /// As it last registered.
    pub(super) life: Option<Registered>,
    /// Why it is not there.
    pub(super) reason: Option<String>,
    /// The last job whose program it was started with.
    pub(super) tried: Option<JobId>,
    /// That it is to be empty.
    pub(super) drain: Option<Mark>,
    /// It is kept for this job, which is not given it yet.
    pub(super) reserved: Option<JobId>,
    /// Since when it is idle, or is being started.
    pub(super) since: Option<Instant>,
    /// Nobody starts it: it joins by itself, and is off before and after.
    pub(super) joins: bool,
    /// When it is taken for gone: it joins by itself, and is not heard.
    pub(super) unheard_until: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Starting,
    Idle,
    /// Held by a job, from its choice to the word that it is free.
    Busy(JobId),
    /// Runs a benchmark.
    Measuring(Unit),
    Broken,
    /// There is no process, and none is asked for.
    Off,
    /// Its process is being ended.
    Closing,
}

impl Node {
    fn new(cluster: ClusterId) -> Self {
        let state = State::Starting;
        Self {
            cluster,
            state,
            life: None,
            reason: None,
            tried: None,
            drain: None,
            reserved: None,
            since: None,
            joins: false,
            unheard_until: None,
        }
    }

    /// It waits for work from now on.
    pub(super) fn idle(&mut self, now: Instant) {
        (self.state, self.since) = (State::Idle, Some(now));
    }

    /// It is being started from now on.
    pub(super) fn starts(&mut self, now: Instant) {
        (self.state, self.since) = (State::Starting, Some(now));
    }

    /// There is no process of it any more.
    pub(super) fn turn_off(&mut self, reason: Option<String>) {
        (self.state, self.reason, self.reserved, self.life) = (State::Off, reason, None, None);
        // What was said of a life of it has ended with that.
        self.drain = self.drain.take().filter(|mark| mark.life.is_none());
    }

    /// Whether it may be given to somebody.
    pub(super) fn is_free(&self) -> bool {
        self.state == State::Idle && self.drain.is_none() && self.reserved.is_none()
    }

    /// Whether a process may be asked for.
    pub(super) fn is_off(&self) -> bool {
        self.state == State::Off && self.drain.is_none()
    }

    /// Whether nothing runs on it.
    pub(super) fn is_empty(&self) -> bool {
        !matches!(self.state, State::Busy(_) | State::Measuring(_))
    }

    /// Whether jobs may count on it.
    pub(super) fn works(&self) -> bool {
        // One that has not joined may never do so.
        let away = self.joins && self.state == State::Off;
        self.state != State::Broken && !away && self.drain.is_none()
    }

    /// Its life, if that runs a program with this registry.
    pub(super) fn running(&self, fingerprint: u64) -> Option<&Registered> {
        self.life.as_ref().filter(|life| life.fingerprint == fingerprint)
    }

    fn status(&self, id: &NodeId) -> NodeStatus {
        let life = self.life.as_ref();
        let (state, job) = match (self.state, &self.drain) {
            (State::Starting, _) => (NodeState::Starting, self.reserved),
            (State::Broken, _) => (NodeState::Broken, None),
            (State::Off, _) => (NodeState::Off, None),
            (State::Closing, _) => (NodeState::Closing, None),
            (State::Idle, None) => match self.reserved {
                Some(job) => (NodeState::Held, Some(job)),
                None => (NodeState::Idle, None),
            },
            (State::Idle, Some(_)) => (NodeState::Drained, None),
            (State::Busy(job), None) => (NodeState::Busy, Some(job)),
            (State::Busy(job), Some(_)) => (NodeState::Draining, Some(job)),
            (State::Measuring(_), None) => (NodeState::Measuring, None),
            (State::Measuring(_), Some(_)) => (NodeState::Draining, None),
        };
        let drained = || self.drain.as_ref().map(|mark| mark.reason.clone());
        NodeStatus {
            node: id.clone(),
            state,
            job,
            threads: life.map(|life| life.threads),
            pid: life.map(|life| life.pid),
            incarnation: life.map(|life| life.incarnation),
            address: life.map(|life| life.address.clone()),
            reason: self.reason.clone().or_else(drained),
            next_try_ms: None,
        }
    }
}

/// Hosts whose running nodes have more compute threads than there are processors for them.
pub(super) fn crowded<'a>(nodes: impl Iterator<Item = &'a Node>) -> Vec<CrowdedHost> {
    let mut hosts: BTreeMap<u64, CrowdedHost> = BTreeMap::new();
    let runs = |node: &&Node| !matches!(node.state, State::Starting | State::Broken | State::Off);
    for life in nodes.filter(runs).filter_map(|node| node.life.as_ref()) {
        let usable = &life.hardware.usable;
        if usable.is_unknown() {
            continue;
        }
        let (host, processors) = (usable.host.clone(), usable.processors);
        let new = || CrowdedHost { host, nodes: 0, threads: 0, processors };
        let crowded = hosts.entry(usable.key).or_insert_with(new);
        crowded.nodes += 1;
        crowded.threads = crowded.threads.saturating_add(life.threads);
    }
    hosts.into_values().filter(|host| host.threads > host.processors).collect()
}

/// A node as a member of a view.
pub(super) fn member(life: &Registered) -> Member {
    Member {
        incarnation: life.incarnation,
        cluster: life.cluster.clone(),
        address: life.address.clone(),
        threads: life.threads,
        leaving: false,
    }
}

impl Core {
    pub(super) fn node_statuses(&self) -> impl Iterator<Item = (&ClusterId, NodeStatus)> {
        self.nodes.iter().map(|(id, node)| (&node.cluster, node.status(id)))
    }

    pub(super) fn site_up(&mut self, site: &SiteUp, now: Instant, out: &mut Vec<Action>) {
        let SiteUp { cluster, nodes, starts_programs, .. } = site;
        for id in nodes {
            let node = self.nodes.entry(id.clone()).or_insert_with(|| Node::new(cluster.clone()));
            node.joins = site.joins;
            if node.joins && node.life.is_none() && node.state == State::Starting {
                node.state = State::Off; // it was just made
            }
            if let Some(reason) = self.marks.remove(id) {
                node.drain = Some(Mark::lasting(reason));
                self.marked.insert(id.clone());
            }
        }
        let before = self.sites.remove(cluster);
        let on_demand = before.and_then(|site| site.on_demand);
        let nodes = nodes.iter().cloned().collect();
        let (starts_programs, look_at) = (*starts_programs, None);
        let at = site.at.as_ref().map(|at| at.node.clone());
        let joins = site.joins;
        let known = Site { nodes, starts_programs, on_demand, joins, at, look_at };
        self.sites.insert(cluster.clone(), known);
        self.keeps_files(cluster, site.files);
        self.stubs_up(site, now, out);
        self.site_back(site, now, out);
    }

    pub(super) fn registered(&mut self, life: Registered, now: Instant, out: &mut Vec<Action>) {
        let Some(node) = self.nodes.get(&life.node) else {
            return; // of no site: nobody would start or stop it
        };
        if let Some(known) = &node.life {
            if known.incarnation > life.incarnation {
                return; // a late word of an earlier life
            }
            if known.incarnation < life.incarnation && !node.is_empty() {
                let reason = "it was started anew".to_owned();
                self.lost(&life.node.clone(), &reason, true, now, out);
            }
        }
        let Some(node) = self.nodes.get_mut(&life.node) else { return };
        if node.is_empty() && node.state != State::Closing {
            node.idle(now);
        }
        if node.drain.as_ref().is_some_and(|mark| mark.life.is_some_and(|l| l != life.incarnation))
        {
            node.drain = None; // it drained itself to end, and has
        }
        (node.reason, node.unheard_until) = (None, None);
        // What a life does that is known already is known here better than from a word that may be late; but not whether it
        // outlived another scheduler.
        let is_new = node.life.as_ref().is_none_or(|known| known.incarnation != life.incarnation);
        let (id, work) = (life.node.clone(), life.work.clone());
        if is_new {
            // A link that is down was that of a life before.
            self.unheard.remove(&id);
        }
        node.life = Some(Registered { work: None, ..life });
        self.awaited.remove(&id);
        let work = work.filter(|work| is_new || self.returning.contains_key(&work.job));
        if let Some(work) = work {
            self.works_for(&id, &work, out);
        }
    }

    /// Clusters of which jobs in the queue wait for nodes: their free nodes are not given to anybody else.
    pub(super) fn wanted(&self) -> BTreeSet<&ClusterId> {
        let mut wanted = BTreeSet::new();
        for waiting in self.queue.iter().filter(|waiting| !waiting.blocked) {
            match &waiting.submit.clusters {
                Some(clusters) => wanted.extend(clusters.keys()),
                None => wanted.extend(self.sites.keys()),
            }
        }
        wanted
    }

    /// Nodes that a running job could be given now.
    pub(super) fn free_for<'a>(
        &'a self,
        job: &Job,
    ) -> impl Iterator<Item = (&'a NodeId, &'a Registered)> {
        let (fingerprint, wanted) = (job.fingerprint, self.wanted());
        self.nodes.iter().filter_map(move |(id, node)| {
            let life = node.running(fingerprint)?;
            let free = node.is_free() && self.is_heard(id);
            (free && !wanted.contains(&node.cluster)).then_some((id, life))
        })
    }

    /// Free nodes that run this program, whoever waits for them.
    pub(super) fn free_running(
        &self,
        fingerprint: u64,
    ) -> impl Iterator<Item = (&NodeId, &Registered)> {
        let free = self.nodes.iter().filter(|(_, node)| node.is_free());
        free.filter_map(move |(id, node)| Some((id, node.running(fingerprint)?)))
    }

    /// What free nodes are like, for a choice among them.
    pub(super) fn candidates_for(
        &self,
        unit: Option<Unit>,
        fingerprint: u64,
        now: Instant,
    ) -> BTreeMap<NodeId, Candidate> {
        self.free_running(fingerprint)
            .map(|(id, life)| (id.clone(), self.candidate_of(unit, life, now)))
            .collect()
    }

    pub(super) fn candidate_of(
        &self,
        unit: Option<Unit>,
        life: &Registered,
        now: Instant,
    ) -> Candidate {
        Candidate {
            cluster: life.cluster.clone(),
            speed: self.speeds.best(unit, life, now),
            threads: life.threads,
            hardware: life.hardware.clone(),
        }
    }

    /// The same as the choice wants them.
    pub(super) fn candidates(&self, job: &Job, now: Instant) -> BTreeMap<NodeId, Candidate> {
        let of = |life| self.candidate_of(job.unit, life, now);
        self.free_for(job).map(|(id, life)| (id.clone(), of(life))).collect()
    }

    /// The same as the policy wants them.
    pub(super) fn offers_for(&self, job: &Job, now: Instant) -> BTreeMap<ClusterId, Offer> {
        let mut offers: BTreeMap<ClusterId, Offer> = BTreeMap::new();
        for (id, life) in self.free_for(job) {
            let offer = offers.entry(life.cluster.clone()).or_insert_with(|| Offer {
                bandwidth: job.open.bandwidth.get(&life.cluster).copied().filter(|&b| is_rate(b)),
                rtt_s: job
                    .open
                    .rtt_s
                    .get(&life.cluster)
                    .copied()
                    .filter(|&s| s >= 0.0 && s.is_finite()),
                ..Offer::default()
            });
            offer.free += 1;
            offer_speed(offer, &self.speeds, job.unit, (id, life), now);
        }
        offers
    }
}

/// A node's own speed goes under its name. For the cluster stands the slowest kind: nobody is promised more than comes.
fn offer_speed(
    offer: &mut Offer,
    speeds: &Speeds,
    unit: Option<Unit>,
    (id, life): (&NodeId, &Registered),
    now: Instant,
) {
    if let Some(own) = speeds.own(unit, id, now) {
        offer.nodes.insert(id.clone(), own);
    } else if let Some(kind) = speeds.best(unit, life, now) {
        offer.speed = Some(offer.speed.map_or(kind, |slowest| slowest.min(kind)));
    }
}
