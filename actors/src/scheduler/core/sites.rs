//! Sites in processes of their own: what it means that one is not heard, or is there again. And nodes that nobody starts.
//!
//! Nodes live on without their site where their provider lets them, and nobody tells of those that do not. Of those that join by
//! themselves their links tell. Must not know how
//! links are watched.

use std::time::Duration;

use springtide_runtime::id::NodeId;
use tokio::time::Instant;

use super::Core;
use super::event::Action;
use super::pool::State;
use crate::scheduler::SiteUp;
use crate::scheduler::manager::Event as News;

/// A site's process that is not heard for so long may be gone; its nodes are looked at then, and again after each such time.
const UNHEARD: Duration = Duration::from_secs(5);

/// A node that joined by itself is gone if it has not called again by then.
const CALLS_WITHIN: Duration = Duration::from_secs(5);

impl Core {
    /// The link to a node that joins by itself is up, or down for this reason.
    pub(super) fn joined_link(&mut self, node: &NodeId, down: Option<String>, now: Instant) {
        let Some(node) = self.nodes.get_mut(node).filter(|node| node.joins) else { return };
        match down {
            None if node.unheard_until.take().is_some() => node.reason = None,
            None => {}
            Some(_) if node.state == State::Off => {}
            Some(why) => {
                node.unheard_until = Some(now + CALLS_WITHIN);
                node.reason = Some(format!("its link is down: {why}"));
            }
        }
    }

    pub(super) fn joined_due(&self) -> Option<Instant> {
        self.nodes.values().filter_map(|node| node.unheard_until).min()
    }

    /// Nodes that joined by themselves and have not called again in time are gone.
    pub(super) fn look_at_joined(&mut self, now: Instant, out: &mut Vec<Action>) {
        let late = |node: &super::Node| node.unheard_until.is_some_and(|until| until <= now);
        let gone = self.nodes.iter().filter(|(_, node)| late(node));
        let gone: Vec<(NodeId, String)> =
            gone.map(|(id, node)| (id.clone(), node.reason.clone().unwrap_or_default())).collect();
        for (id, reason) in gone {
            self.lost(&id, &reason, false, now, out);
        }
    }

    /// The link to a process is up or down: it may be a site's.
    pub(super) fn site_link(&mut self, node: &NodeId, up: bool, now: Instant) {
        for site in self.sites.values_mut().filter(|site| site.at.as_ref() == Some(node)) {
            site.look_at = (!up).then(|| now + UNHEARD);
        }
    }

    pub(super) fn look_due(&self) -> Option<Instant> {
        self.sites.values().filter_map(|site| site.look_at).min()
    }

    /// Nodes of sites that are not heard: free ones are not given away any more, and those at work are lost when they are not heard either.
    pub(super) fn look_at_sites(&mut self, now: Instant, out: &mut Vec<Action>) {
        let (mut lost, mut silent) = (Vec::new(), Vec::new());
        for (cluster, site) in &mut self.sites {
            if site.look_at.is_none_or(|at| at > now) {
                continue;
            }
            site.look_at = Some(now + UNHEARD);
            if let Some(on_demand) = &mut site.on_demand {
                // What it has polled is of the past, and nobody would hold anything there.
                let reason =
                    on_demand.failing.get_or_insert_with(|| "its site is not heard".to_owned());
                silent.push((cluster.clone(), reason.clone()));
            }
            for id in &site.nodes {
                let gone = self.nodes.get(id).is_some_and(|node| match node.state {
                    State::Idle | State::Measuring(_) => true,
                    State::Busy(_) => self.unheard.contains(id),
                    _ => false,
                });
                if gone {
                    lost.push((id.clone(), format!("the site of {cluster} is not heard")));
                }
            }
        }
        for (id, reason) in lost {
            self.lost(&id, &reason, true, now, out);
        }
        for (cluster, reason) in silent {
            self.tell(News::Unreachable { cluster, reason }, now, out);
        }
    }

    /// A site says that it is there. Of a cluster whose nodes always are, it names those that run: all others have ended with its
    /// former life.
    pub(super) fn site_back(&mut self, site: &SiteUp, now: Instant, out: &mut Vec<Action>) {
        if site.at.is_none() || site.keep_ms.is_some() {
            return;
        }
        for id in site.nodes.iter().filter(|id| !site.stubs.contains(*id)) {
            let works = |state| matches!(state, State::Idle | State::Measuring(_) | State::Busy(_));
            if self.nodes.get(id).is_some_and(|node| works(node.state)) {
                self.lost(id, "its site was started anew", true, now, out);
            }
        }
    }
}
