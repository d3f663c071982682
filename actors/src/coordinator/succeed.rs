//! A coordinator that takes the place of one that was lost: it gathers what that one had learned and saved, and starts the
//! job's root again.
//!
//! Must not know who decides that it does.

use std::time::Duration;

use actix::prelude::*;
use springtide_runtime::event::Event;
use springtide_runtime::id::ClusterId;
use springtide_runtime::remote::RemoteError;
use tokio::time::Instant;

use super::{Coordinator, Succession};
use crate::cluster::{ClusterCoordinator, GetMemory};
use crate::job::{NoteKind, SCHEDULER, cluster_coordinator_name};
use crate::policy::Memory;
use crate::scheduler::{Freed, NodeFreed, Scheduler};

/// What the clusters do not tell within this time is lost.
const HERITAGE_WITHIN: Duration = Duration::from_secs(4);
/// A cluster whose coordinator is only starting is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(100);

impl Coordinator {
    /// Tells the members of the new epoch, gathers what is left, and starts the root.
    pub(super) fn inherit(&mut self, ctx: &mut Context<Self>) {
        let Some(Succession { lost, reason, strangers }) = self.succeeds.clone() else { return };
        let me = self.view.coordinator.clone().unwrap_or_else(|| "".into());
        self.recorder.record(Event::ViewChanged {
            job: self.spec.id,
            epoch: self.view.epoch,
            version: self.view.version,
            members: u32::try_from(self.view.members.len()).unwrap_or(u32::MAX),
            coordinator: self.view.coordinator.clone(),
        });
        let text = format!("node {lost} was lost ({reason}): {me} takes its place");
        self.tell(NoteKind::Say { text });
        for (node, incarnation) in strangers {
            let freed = NodeFreed {
                job: self.spec.id,
                epoch: self.spec.epoch,
                node,
                incarnation,
                why: Freed::Refused { reason: format!("node {lost} was lost before it joined") },
            };
            let remote = self.hub.remote::<Scheduler>(&self.scheduler.node, SCHEDULER);
            let call = remote.send(freed).start();
            ctx.spawn(async move { drop(call.await) }.into_actor(self));
        }
        let clusters: Vec<ClusterId> = self.view.cluster_coordinators.keys().cloned().collect();
        clusters.iter().for_each(|cluster| self.send_view(cluster, ctx));
        let job = self.spec.id;
        let until = Instant::now() + HERITAGE_WITHIN;
        let asked: Vec<_> = self
            .view
            .cluster_coordinators
            .values()
            .map(|node| {
                let name = cluster_coordinator_name(job);
                let remote = self.hub.remote::<ClusterCoordinator>(node, &name);
                actix::spawn(async move {
                    loop {
                        let left = until.saturating_duration_since(Instant::now());
                        match remote.send(GetMemory { job }).deadline(left).await {
                            Ok(memory) => return memory,
                            Err(RemoteError::NoActor { .. } | RemoteError::Gone { .. })
                                if left > ASK_AGAIN =>
                            {
                                tokio::time::sleep(ASK_AGAIN).await;
                            }
                            Err(error) => {
                                tracing::info!(%error, "a cluster does not tell what was learned");
                                return None;
                            }
                        }
                    }
                })
            })
            .collect();
        let gathered = async move {
            let mut newest: Option<Memory> = None;
            for one in asked {
                let Ok(Some(memory)) = one.await else { continue };
                newest = Some(match newest {
                    Some(known) => Memory::newest(known, memory),
                    None => memory,
                });
            }
            newest
        };
        ctx.spawn(gathered.into_actor(self).map(|memory, coordinator, ctx| {
            if let Some(memory) = memory {
                coordinator.adaptation.inherit(memory);
            }
            coordinator.succeeds = None;
            coordinator.joined = super::workers_by_cluster(&coordinator.view);
            coordinator.start_root(ctx);
            coordinator.resume_leaves(ctx);
        }));
    }
}
