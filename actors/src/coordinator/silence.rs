//! Silent clusters and nodes: the watch over the coordinators of clusters, and what members report.

use super::*;

impl Coordinator {
    /// Watches the clusters' coordinators, except the one on this node.
    pub(super) fn watch_clusters(&mut self) {
        let view = &self.view;
        let hosts = view.cluster_coordinators.values().filter_map(|node| {
            let member = view.members.get(node)?;
            (view.coordinator.as_ref() != Some(node)).then(|| (node.clone(), member.incarnation))
        });
        self.detector.watch(hosts.collect::<Vec<_>>(), Instant::now());
        let is_host = |node: &NodeId| view.cluster_coordinators.values().any(|host| host == node);
        self.indirect_since.retain(|node, _| is_host(node));
    }

    /// Declares clusters dead whose coordinator and workers are silent for too long.
    pub(super) fn check_clusters(&mut self, ctx: &mut Context<Self>) {
        if self.phase == CoordinatorPhase::Ending {
            return; // clusters stop reporting once they have finished
        }
        for finding in self.detector.check(Instant::now()) {
            let Finding::Dead(node, silence) = finding else { continue };
            let Some(cluster) = self.view.cluster_of(&node).cloned() else { continue };
            let members: Vec<NodeId> = self.view.in_cluster(&cluster).cloned().collect();
            let reason = format!("cluster {cluster} silent for {:.1} s", silence.as_secs_f64());
            self.declare_dead(&members, &reason, silence, ctx);
        }
        self.probe_silent_clusters(ctx);
    }

    /// Probes suspected coordinators of clusters through other members. A cluster that others reach
    /// counts as alive for [`INDIRECT_MAX`]. It may report to a former coordinator of the job, so
    /// each successful probe sends it the view.
    pub(super) fn probe_silent_clusters(&mut self, ctx: &mut Context<Self>) {
        let now = Instant::now();
        self.probes = self.probes.wrapping_add(1);
        for (cluster, node) in self.view.cluster_coordinators.iter() {
            let silence = self.detector.silence(node, now);
            let Some(member) = self.view.members.get(node) else { continue };
            if silence.is_none_or(|silence| silence < SilenceLimits::WIDE.suspect) {
                continue;
            }
            let (cluster, node) = (cluster.clone(), node.clone());
            let incarnation = member.incarnation;
            let target = (&node, incarnation);
            let probe = probe_indirectly(&self.hub, self.spec.id, &self.view, target, self.probes);
            ctx.spawn(probe.into_actor(self).map(move |reached, coordinator, ctx| {
                if !reached || coordinator.view.cluster_coordinators.get(&cluster) != Some(&node) {
                    return;
                }
                let now = Instant::now();
                let since = *coordinator.indirect_since.entry(node.clone()).or_insert(now);
                if now < since + INDIRECT_MAX
                    && coordinator.detector.record_message(&node, incarnation, now).is_some()
                {
                    tracing::info!(%node, "silent here, but other members reach it");
                }
                coordinator.send_view(&cluster, None, ctx);
            }));
        }
    }

    /// Sends the change of the view to the other members of a cluster whose former coordinator is
    /// no member. Usually the new coordinator does that. If it is lost as well, no member would
    /// watch it otherwise. Whole views are too long to be sent to all at once.
    pub(super) fn introduce_host(
        &self,
        cluster: &ClusterId,
        host: &NodeId,
        change: Option<&ViewChange>,
        ctx: &mut Context<Self>,
    ) {
        let Some(change) = change else { return };
        for node in self.view.in_cluster(cluster).filter(|node| *node != host) {
            let sending = send_view(&self.hub, node, self.spec.id, &self.view, Some(change));
            // A lost member does not answer; a late one learns the view from its coordinator.
            ctx.spawn(async move { drop(sending.await) }.into_actor(self));
        }
    }

    /// Whether a sender may declare another node silent: the host of the node's cluster, or a
    /// member of the cluster that the node hosts. Any member may name a node that is no member.
    pub(super) fn watches(&self, from: &MessageOrigin, subject: &NodeId) -> bool {
        let Peer { node, cluster, .. } = &from.peer;
        let host = self.view.cluster_coordinators.get(cluster);
        // Several members report one loss. Once it is handled, the other reports have no effect.
        let Some(place) = self.view.cluster_of(subject) else { return true };
        place == cluster && node != subject && (host == Some(node) || host == Some(subject))
    }
}

impl Handler<ClusterHeartbeat> for Coordinator {
    type Result = ();

    fn handle(&mut self, message: ClusterHeartbeat, _ctx: &mut Self::Context) {
        self.indirect_since.remove(&message.node);
        self.detector.record_message(&message.node, message.incarnation, Instant::now());
    }
}

impl Handler<NodeSilence> for Coordinator {
    type Result = ();

    /// A cluster's coordinator is believed about its workers. Workers are believed about their
    /// coordinator if it is silent here for as long.
    fn handle(&mut self, message: NodeSilence, ctx: &mut Self::Context) {
        if self.phase == CoordinatorPhase::Ending {
            return; // ended members are silent; the scheduler releases the others
        }
        let NodeSilence { node, silent_ms, .. } = message;
        let silence = Duration::from_millis(silent_ms);
        let now = Instant::now();
        let here = self.detector.silence(&node, now);
        if here.is_some_and(|here| here + SilenceLimits::WIDE.check_interval < silence) {
            tracing::info!(%node, ?here, "silent to its workers, but not here");
            return;
        }
        let reason = format!("silent for {:.1} s", silence.as_secs_f64());
        self.declare_dead(&[node], &reason, silence, ctx);
    }
}
