//! Enrolment: which processes may join the grid, under which name, and until when.
//!
//! `state` is the persistent state (tokens, issued and revoked names) and its decisions, without
//! I/O. `store` keeps it in a file that the command line writes too, so that tokens can be created
//! without a running head. `service` judges requests and signs certificates. The actor here handles
//! renewals and revocations. This module knows neither jobs nor nodes' operation.

mod renewal;
mod service;
mod state;
mod store;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use springtide_runtime::event::Event;
use springtide_runtime::id::{ClusterId, NodeId};
use springtide_runtime::net::Net;
use springtide_runtime::net::join::JoinCounts;
use springtide_runtime::remote::Hub;

pub use self::renewal::{Renewal, is_due, refresh_files, renew_at, renew_files, retry_in};
pub use self::service::{Clusters, EnrolmentService, IsOwn, JoinTerms, NodeConfigWriter};
pub use self::state::{
    EnrolmentState, IssuedName, Revocation, RevokeError, Token, TokenRole, TokenSpec, TokenState,
};
pub use self::store::{EnrolmentStore, EnrolmentStoreError};
use crate::admit;
pub use springtide_protocol::enrol::*;
pub use springtide_protocol::names::ENROLMENT;
use springtide_protocol::site::ExcludeNode;

/// Interval of reading the store. The command line may have changed it without notice.
const READ_INTERVAL: Duration = Duration::from_secs(2);

/// Returns the counts of requests to join.
pub type RequestCounter = Box<dyn Fn() -> JoinCounts>;

/// The head's enrolment actor.
pub struct EnrolmentActor {
    service: Arc<EnrolmentService>,
    net: Net,
    sites: BTreeMap<ClusterId, Recipient<ExcludeNode>>,
    counts: RequestCounter,
    /// Revocations known to the network; none before the first reading.
    revoked: Option<BTreeMap<NodeId, String>>,
}

impl EnrolmentActor {
    /// Publishes the actor. `sites` are those of clusters that nodes join.
    pub fn publish(
        service: Arc<EnrolmentService>,
        hub: &Arc<Hub>,
        net: &Net,
        sites: BTreeMap<ClusterId, Recipient<ExcludeNode>>,
        counts: RequestCounter,
    ) -> Addr<Self> {
        let (net, revoked) = (net.clone(), None);
        let enrolment = Self { service, net, sites, counts, revoked }.start();
        hub.publish(ENROLMENT, enrolment.clone())
            .accepts_from::<RenewCertificate>(admit::by_rule)
            .accepts_from::<ReloadEnrolment>(admit::by_rule)
            .accepts_from::<GetJoinStatus>(admit::by_rule)
            .accepts_from::<GetAuthorities>(admit::by_rule);
        enrolment
    }

    /// Applies changes of the store: revoked names are excluded.
    fn apply_book(&mut self) {
        let state = match self.service.store().read() {
            Ok(state) => state,
            // Continuing with the known revocations is safer than without any.
            Err(error) => return tracing::error!("{error}"),
        };
        let revoked = state.revoked((self.service.calendar())());
        if self.revoked.as_ref() == Some(&revoked) {
            return;
        }
        self.net.revoke(&revoked);
        // The first reading repeats revocations that a former head has reported.
        let before = self.revoked.replace(revoked.clone());
        for (node, why) in revoked.iter().filter(|_| before.is_some()) {
            if before.as_ref().and_then(|before| before.get(node)) == Some(why) {
                continue;
            }
            tracing::warn!("{node} is revoked: {why}");
            self.service.recorder().record(Event::Decision {
                decision: format!("revoke {node}"),
                why: why.clone(),
                inputs: serde_json::Value::Null,
            });
            let site = state.given(node).and_then(|given| self.sites.get(&given.cluster));
            if let Some(site) = site {
                let reason = format!("its certificate is revoked: {why}");
                // The site lives as long as the head.
                site.do_send(ExcludeNode { node: node.clone(), reason });
            }
        }
    }
}

impl Actor for EnrolmentActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        self.apply_book();
        ctx.run_interval(READ_INTERVAL, |enrolment, _| enrolment.apply_book());
    }
}

impl Handler<RenewCertificate> for EnrolmentActor {
    type Result = ResponseFuture<Result<String, RenewError>>;

    fn handle(&mut self, ask: RenewCertificate, _: &mut Self::Context) -> Self::Result {
        let (service, node) = (Arc::clone(&self.service), ask.node.clone());
        // It waits for a disk, and for other processes that have locked the store.
        let renewed = tokio::task::spawn_blocking(move || service.renew(&ask));
        Box::pin(async move {
            let failed = |error| RenewError::Failed { node, reason: format!("{error}") };
            renewed.await.unwrap_or_else(|error| Err(failed(error)))
        })
    }
}

impl Handler<GetAuthorities> for EnrolmentActor {
    type Result = ResponseFuture<Result<String, RenewError>>;

    fn handle(&mut self, _: GetAuthorities, _: &mut Self::Context) -> Self::Result {
        let (service, node) = (Arc::clone(&self.service), self.net.me().node.clone());
        let found = tokio::task::spawn_blocking(move || service.authorities());
        Box::pin(async move {
            let failed = |reason: String| RenewError::Failed { node, reason };
            match found.await {
                Ok(found) => found.map_err(|error| failed(error.to_string())),
                Err(error) => Err(failed(error.to_string())),
            }
        })
    }
}

impl Handler<ReloadEnrolment> for EnrolmentActor {
    type Result = ();

    fn handle(&mut self, _: ReloadEnrolment, _: &mut Self::Context) {
        self.apply_book();
    }
}

impl Handler<GetJoinStatus> for EnrolmentActor {
    type Result = MessageResult<GetJoinStatus>;

    fn handle(&mut self, _: GetJoinStatus, _: &mut Self::Context) -> Self::Result {
        let JoinCounts { granted, refused } = (self.counts)();
        let refused = refused.into_iter().map(|(why, n)| (why.to_string(), n)).collect();
        let name = |reason| {
            let name = serde_json::to_value(reason).ok();
            name.and_then(|name| name.as_str().map(str::to_owned)).unwrap_or_default()
        };
        let links = self.net.refused();
        let links_refused = links.into_iter().map(|(why, n)| (name(why), n)).collect();
        MessageResult(JoinStatus { granted, refused, links_refused })
    }
}
