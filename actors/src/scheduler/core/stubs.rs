//! Clusters whose processors are held when jobs need them: their stubs, from the order to hold one to the word that it is gone.
//!
//! A node of such a cluster is *off* until a stub is asked for. It is reserved for whom it is asked for until that job is given it, or
//! the stub is gone; one that nobody needs is kept for a while, so that the next job has it at once, and released then. What the
//! cluster has besides, and what others use of it, is what its site polls. Must not know how stubs come about.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use springtide_runtime::id::{ClusterId, JobId, NodeId};
use tokio::time::Instant;

use super::Core;
use super::event::Action;
use super::managed::{Polled, Use};
use super::pool::State;
use crate::scheduler::manager::Event as News;
use crate::scheduler::{SiteUp, StubGone};

/// A cluster whose processors are held on demand.
#[derive(Debug)]
pub(super) struct OnDemand {
    /// A stub that nobody needs is kept for so long.
    keep: Duration,
    /// As last polled; nothing is known before.
    polled: Option<Polled>,
    /// Why the site cannot be used at the moment.
    pub(super) failing: Option<String>,
}

impl Core {
    /// A site is there. Where one was there before, only the stubs that it has taken over live on.
    pub(super) fn stubs_up(&mut self, site: &SiteUp, now: Instant, out: &mut Vec<Action>) {
        let Some(keep_ms) = site.keep_ms else { return };
        let keep = Duration::from_millis(keep_ms);
        if let Some(known) = self.sites.get_mut(&site.cluster) {
            let before = known.on_demand.take();
            let (polled, failing) =
                before.map_or((None, None), |before| (before.polled, before.failing));
            known.on_demand = Some(OnDemand { keep, polled, failing });
        }
        let mut closing = Vec::new();
        for id in &site.nodes {
            let Some(node) = self.nodes.get_mut(id) else { continue };
            if node.state == State::Closing && site.stubs.contains(id) {
                closing.push(id.clone()); // it may never have heard the order
            }
            if node.life.is_none() && node.state == State::Starting && node.reserved.is_none() {
                node.state = State::Off; // it was just made
            }
            if node.state != State::Off && !site.stubs.contains(id) {
                self.lost(id, "its stub was gone when its site came back", false, now, out);
            } else if node.state == State::Off && site.stubs.contains(id) {
                node.starts(now);
            }
        }
        self.close_again(closing, out);
    }

    /// Orders once more that stubs are released: whoever was to do it did not hear it.
    pub(super) fn close_again(&mut self, nodes: Vec<NodeId>, out: &mut Vec<Action>) {
        let closing = |id: &NodeId| self.nodes.get(id).is_some_and(|n| n.state == State::Closing);
        let nodes: Vec<NodeId> = nodes.into_iter().filter(closing).collect();
        self.close_stubs(nodes, "nobody needs it", out);
    }

    /// Whether a cluster's processors are held on demand.
    pub(super) fn is_on_demand(&self, cluster: &ClusterId) -> bool {
        self.sites.get(cluster).is_some_and(|site| site.on_demand.is_some())
    }

    /// A site has looked what there is, or cannot.
    pub(super) fn site_polled(
        &mut self,
        cluster: &ClusterId,
        found: Result<(u32, u32), String>,
        now: Instant,
        out: &mut Vec<Action>,
    ) {
        let Some(site) = self.sites.get_mut(cluster) else {
            // It will come when its provider answers.
            if let Err(reason) = found {
                self.tell(News::Unreachable { cluster: cluster.clone(), reason }, now, out);
            }
            return;
        };
        let Some(on_demand) = &mut site.on_demand else { return };
        match found {
            Ok((size, others)) => {
                let polled = Polled { size, others, whole: size };
                let first = on_demand.polled.replace(polled).is_none();
                if on_demand.failing.take().is_some() || first {
                    self.poll(now, out);
                }
            }
            Err(reason) => {
                on_demand.failing = Some(reason.clone());
                let cluster = cluster.clone();
                self.tell(News::Unreachable { cluster, reason }, now, out);
            }
        }
    }

    /// Why a cluster cannot be used at the moment.
    pub(super) fn failing(&self, cluster: &ClusterId) -> Option<String> {
        let on_demand = self.sites.get(cluster)?.on_demand.as_ref()?;
        on_demand.failing.clone().or_else(|| {
            on_demand.polled.is_none().then(|| "its site has not said yet what it has".to_owned())
        })
    }

    /// Processors of a cluster on demand, as the manager is to see them: what was polled, less stubs that are neither
    /// any job's of the manager's nor to be had at once.
    pub(super) fn processors_on_demand(&self, cluster: &ClusterId) -> Polled {
        let Some(site) = self.sites.get(cluster) else { return Polled::default() };
        let Some(Polled { size, others, .. }) = site.on_demand.as_ref().and_then(|d| d.polled)
        else {
            return Polled::default();
        };
        let (mut busy, mut usable) = (0, 0);
        for id in &site.nodes {
            let Some(node) = self.nodes.get(id) else { continue };
            let managed = self.managing.ledger.contains_key(id);
            let to_be_had = node.is_free() || node.is_off();
            busy += u32::from(!managed && !to_be_had && node.state != State::Off);
            usable += u32::from(managed || to_be_had);
        }
        let others = others.saturating_add(busy);
        let whole = u32::try_from(site.nodes.len()).unwrap_or(u32::MAX);
        // There may be more processors than nodes to use them.
        Polled { size: size.min(others.saturating_add(usable)), others: others.min(size), whole }
    }

    /// Reserves so many processors of a cluster for a job: stubs that are kept first, then others that are asked for, with the job's
    /// program. Returns the nodes, fewer than wanted where there are no more.
    pub(super) fn reserve(
        &mut self,
        id: JobId,
        cluster: &ClusterId,
        count: u32,
        used: Use,
        now: Instant,
        out: &mut Vec<Action>,
    ) -> BTreeSet<NodeId> {
        let Some(managed) = self.managing.jobs.get(&id) else { return BTreeSet::new() };
        let (fingerprint, program) = (managed.submit.fingerprint, managed.submit.program.clone());
        let here = |node: &&NodeId| self.nodes[*node].cluster == *cluster;
        let count = count as usize;
        let warm: Vec<NodeId> = match (self.jobs.get(&id), used) {
            // What grows knows what it needs.
            (Some(job), Use::Ordered(_)) => self.pick(job, cluster, count as u32, now),
            _ => {
                let free = self.free_running(fingerprint).map(|(node, _)| node).filter(here);
                free.take(count).cloned().collect()
            }
        };
        let mut missing = count - warm.len();
        let on_demand = self.is_on_demand(cluster);
        let all = || self.nodes.iter().filter(|(_, node)| node.cluster == *cluster && on_demand);
        let off = all().filter(|(_, node)| node.is_off()).map(|(id, _)| id.clone());
        let off: Vec<NodeId> = off.take(missing).collect();
        missing -= off.len();
        // Of another program, but held: quicker to start this one there than to hold another.
        let starts = self.sites.get(cluster).is_some_and(|site| site.starts_programs);
        // In a standing cluster only for a job that is to start: what grows there is chosen by speed.
        let here = self.nodes.iter().filter(|(_, node)| node.cluster == *cluster);
        let wanted = on_demand || used == Use::Claimed;
        let tried = |node: &super::Node| !on_demand && node.tried == Some(id);
        let other = here.filter(|(_, node)| {
            wanted && node.is_free() && node.running(fingerprint).is_none() && !tried(node)
        });
        let other = other.map(|(id, _)| id.clone());
        let missing = if starts && program.is_some() { missing } else { 0 };
        let other: Vec<NodeId> = other.take(missing).collect();
        for node in off.iter().chain(&other) {
            if let Some(node) = self.nodes.get_mut(node) {
                (node.state, node.tried, node.since) = (State::Starting, Some(id), None);
            }
        }
        let nodes: BTreeSet<NodeId> =
            warm.into_iter().chain(off.clone()).chain(other.clone()).collect();
        for node in &nodes {
            if let Some(node) = self.nodes.get_mut(node) {
                node.reserved = Some(id);
            }
            self.managing.ledger.insert(node.clone(), (id, used));
        }
        let reason = format!("{id} needs them");
        if !off.is_empty() {
            let (cluster, program) = (cluster.clone(), program.clone());
            out.push(Action::HoldStubs { cluster, nodes: off, program, reason: reason.clone() });
        }
        if !other.is_empty() {
            let cluster = cluster.clone();
            out.push(Action::Replace { cluster, nodes: other, program, reason });
        }
        nodes
    }

    /// Holds processors for a job that is to grow by them.
    pub(super) fn hold(
        &mut self,
        id: JobId,
        change: u64,
        cluster: &ClusterId,
        count: u32,
        now: Instant,
        out: &mut Vec<Action>,
    ) -> Option<News> {
        let used = Use::Ordered(change);
        let reserved = self.reserve(id, cluster, count, used, now, out).len() as u32;
        let reason = || format!("{cluster} may have no more nodes at once");
        let count = count - reserved;
        (count > 0).then(|| News::NotHeld { job: id, change, count, reason: reason() })
    }

    /// Nodes reserved for a job that have come, or that have come with another program.
    pub(super) fn settle_stubs(&mut self, now: Instant, out: &mut Vec<Action>) {
        let mut held: BTreeMap<(JobId, u64), u32> = BTreeMap::new();
        let (mut wrong, mut drained) = (Vec::new(), Vec::new());
        for (id, (job, used)) in &mut self.managing.ledger {
            let (Use::Ordered(change) | Use::Held(change)) = *used else { continue };
            let Some(node) = self.nodes.get(id) else { continue };
            if node.drain.is_some() {
                drained.push((id.clone(), *job, change));
                continue;
            }
            if node.state != State::Idle || *used == Use::Held(change) {
                continue;
            }
            let Some(managed) = self.managing.jobs.get(job) else { continue };
            if node.running(managed.submit.fingerprint).is_some() {
                *used = Use::Held(change);
                *held.entry((*job, change)).or_default() += 1;
            } else {
                wrong.push((id.clone(), *job, change));
            }
        }
        for (id, job, change) in drained {
            if self.unreserve(&id, now, out) {
                let reason = format!("{id} is drained");
                self.tell(News::NotHeld { job, change, count: 1, reason }, now, out);
            }
        }
        for ((job, change), count) in held {
            self.tell(News::Held { job, change, count }, now, out);
        }
        for (id, job, change) in wrong {
            if self.unreserve(&id, now, out) {
                let reason = format!("{id} runs another program than the job's");
                self.tell(News::NotHeld { job, change, count: 1, reason }, now, out);
            }
        }
    }

    /// A node is not kept for anybody any more. Returns whether it is free now, and in nobody's account: one that has not come
    /// counts as the job's until it is gone.
    pub(super) fn unreserve(&mut self, id: &NodeId, now: Instant, out: &mut Vec<Action>) -> bool {
        let Some(cluster) = self.nodes.get(id).map(|node| node.cluster.clone()) else {
            return false;
        };
        let on_demand = self.is_on_demand(&cluster);
        let Some(node) = self.nodes.get_mut(id) else { return false };
        match node.state {
            State::Starting if on_demand => {
                self.close_stubs([id.clone()], "it is not needed any more", out);
                false
            }
            State::Closing => false,
            _ => {
                (node.reserved, node.since) = (None, Some(now));
                self.managing.ledger.remove(id);
                true
            }
        }
    }

    fn close_stubs(
        &mut self,
        nodes: impl IntoIterator<Item = NodeId>,
        reason: &str,
        out: &mut Vec<Action>,
    ) {
        let mut by_cluster: BTreeMap<ClusterId, Vec<NodeId>> = BTreeMap::new();
        for id in nodes {
            let Some(node) = self.nodes.get_mut(&id) else { continue };
            node.state = State::Closing;
            // Nor does anybody wait for that life of it: it would be started anew on its way out.
            self.awaited.remove(&id);
            by_cluster.entry(node.cluster.clone()).or_default().push(id);
        }
        for (cluster, nodes) in by_cluster {
            let reason = reason.to_owned();
            out.push(Action::CloseStubs { cluster, nodes, reason });
        }
    }

    /// A stub has no processor yet, for this reason.
    pub(super) fn stub_waits(&mut self, id: &NodeId, reason: String) {
        let waits = |node: &&mut super::Node| node.state == State::Starting && node.life.is_none();
        if let Some(node) = self.nodes.get_mut(id).filter(waits) {
            node.reason = Some(format!("it waits for its processor: {reason}"));
        }
    }

    /// A stub is gone, and its processor is free: by order, or it ended by itself.
    pub(super) fn stub_gone(&mut self, gone: &StubGone, now: Instant, out: &mut Vec<Action>) {
        let Some(node) = self.nodes.get_mut(&gone.node) else { return };
        if node.state == State::Closing {
            node.turn_off(None);
            return;
        }
        // Of a stub that had no node yet nobody else knows.
        let reason = format!("its stub is gone: {}", gone.reason);
        self.lost(&gone.node, &reason, false, now, out);
    }

    /// Releases stubs that nobody needed for long enough.
    pub(super) fn close_idle(&mut self, now: Instant, out: &mut Vec<Action>) {
        let due = |(_, at): &(NodeId, Instant)| *at <= now;
        let idle: Vec<NodeId> = self.kept().filter(due).map(|(id, _)| id).collect();
        self.close_stubs(idle, "nobody needs it", out);
    }

    /// Stubs that nobody needs, and when they are released.
    fn kept(&self) -> impl Iterator<Item = (NodeId, Instant)> {
        self.nodes.iter().filter_map(|(id, node)| {
            let keep = self.sites.get(&node.cluster)?.on_demand.as_ref()?.keep;
            let since = node.since.filter(|_| node.reserved.is_none())?;
            let at = match node.state {
                // One that is to be empty is, and is of no use to anybody.
                State::Idle if node.drain.is_some() => since,
                State::Idle => since + keep,
                // Asked for by a former scheduler, or being started anew: it may be waiting for a processor for ever.
                State::Starting => since + self.managing.hold_within,
                _ => return None,
            };
            Some((id.clone(), at))
        })
    }

    /// When the next of them is due.
    pub(super) fn close_due(&self) -> Option<Instant> {
        self.kept().map(|(_, at)| at).min()
    }
}
