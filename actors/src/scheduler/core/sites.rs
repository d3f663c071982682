//! Sites in processes of their own: what it means that one is not heard, or is there again.
//!
//! Nodes live on without their site where their provider lets them, and nobody tells of those that do not. Must not know how
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

impl Core {
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
