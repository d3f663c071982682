//! Losses and returns of sites with their own processes, and of nodes that join by themselves.
//!
//! Nodes outlive their site if their provider permits it, and no site reports the loss of others.
//! Links report the loss of nodes that join by themselves. This module must not depend on how links
//! are watched.

use std::time::Duration;

use springtide_base::id::NodeId;
use tokio::time::Instant;

use super::SchedulerCore;
use super::event::SchedulerAction;
use super::node::PoolNodeState;
use crate::manager::ManagerEvent;
use crate::scheduler::SiteRegistration;

/// Interval after which the nodes of a silent site are checked, once and again.
const SITE_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Time limit for a node that joined by itself to connect again after its link went down.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(5);

impl SchedulerCore {
    /// Processes a change of the link to a node that joins by itself.
    pub(super) fn joined_link(&mut self, node: &NodeId, down: Option<String>, now: Instant) {
        let Some(node) = self.nodes.get_mut(node).filter(|node| node.joins) else { return };
        match down {
            None if node.lost_at.take().is_some() => node.reason = None,
            None => {}
            Some(_) if node.state == PoolNodeState::Off => {}
            Some(why) => {
                node.lost_at = Some(now + RECONNECT_TIMEOUT);
                node.reason = Some(format!("its link is down: {why}"));
            }
        }
    }

    pub(super) fn joined_due(&self) -> Option<Instant> {
        self.nodes.values().filter_map(|node| node.lost_at).min()
    }

    /// Removes nodes that joined by themselves and have not connected again in time.
    pub(super) fn check_joined(&mut self, now: Instant, out: &mut Vec<SchedulerAction>) {
        let late = |node: &super::PoolNode| node.lost_at.is_some_and(|until| until <= now);
        let gone = self.nodes.iter().filter(|(_, node)| late(node));
        let gone: Vec<(NodeId, String)> =
            gone.map(|(id, node)| (id.clone(), node.reason.clone().unwrap_or_default())).collect();
        for (id, reason) in gone {
            self.node_lost(&id, &reason, false, now, out);
        }
    }

    /// Processes a change of a link, which may be that of a site's process.
    pub(super) fn site_link(&mut self, node: &NodeId, up: bool, now: Instant) {
        for site in self.sites.values_mut().filter(|site| site.at.as_ref() == Some(node)) {
            site.look_at = (!up).then(|| now + SITE_CHECK_INTERVAL);
        }
    }

    pub(super) fn site_check_due(&self) -> Option<Instant> {
        self.sites.values().filter_map(|site| site.look_at).min()
    }

    /// Checks the nodes of silent sites. Free nodes are not granted any longer. Nodes at work count
    /// as lost if they are silent as well.
    pub(super) fn check_sites(&mut self, now: Instant, out: &mut Vec<SchedulerAction>) {
        let (mut lost, mut silent) = (Vec::new(), Vec::new());
        for (cluster, site) in &mut self.sites {
            if site.look_at.is_none_or(|at| at > now) {
                continue;
            }
            site.look_at = Some(now + SITE_CHECK_INTERVAL);
            if let Some(on_demand) = &mut site.on_demand {
                // Its last poll is outdated, and no site would hold processors.
                let reason =
                    on_demand.failing.get_or_insert_with(|| "its site is silent".to_owned());
                silent.push((cluster.clone(), reason.clone()));
            }
            for id in &site.nodes {
                let gone = self.nodes.get(id).is_some_and(|node| match node.state {
                    PoolNodeState::Idle | PoolNodeState::Measuring(_) => true,
                    PoolNodeState::Busy(_) => self.unreachable.contains(id),
                    _ => false,
                });
                if gone {
                    lost.push((id.clone(), format!("the site of {cluster} is silent")));
                }
            }
        }
        for (id, reason) in lost {
            self.node_lost(&id, &reason, true, now, out);
        }
        for (cluster, reason) in silent {
            self.report(ManagerEvent::Unreachable { cluster, reason }, now, out);
        }
    }

    /// Processes the return of a site. For nodes that always exist, it lists those that run: all
    /// others ended with the site's earlier process.
    pub(super) fn site_back(
        &mut self,
        site: &SiteRegistration,
        now: Instant,
        out: &mut Vec<SchedulerAction>,
    ) {
        if site.at.is_none() || site.keep_ms.is_some() {
            return;
        }
        for id in site.nodes.iter().filter(|id| !site.stubs.contains(*id)) {
            let works = |state| {
                matches!(
                    state,
                    PoolNodeState::Idle | PoolNodeState::Measuring(_) | PoolNodeState::Busy(_)
                )
            };
            if self.nodes.get(id).is_some_and(|node| works(node.state)) {
                self.node_lost(id, "its site was restarted", true, now, out);
            }
        }
    }
}
