//! Enrolment: who may join the grid, under which name, and until when.
//!
//! `book` is what must not be forgotten (tokens, names given, names revoked), decided without I/O; `store` keeps it in a file that the
//! command line writes too, so that tokens can be made while no head runs; `office` judges requests and signs; the actor here hears
//! renewals and revocations. Must not know jobs, nor how a node runs.

mod book;
mod office;
mod renewal;
mod store;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use serde::{Deserialize, Serialize};
use springtide_runtime::event::Event;
use springtide_runtime::id::{ClusterId, NodeId};
use springtide_runtime::net::Net;
use springtide_runtime::net::join::JoinCounts;
use springtide_runtime::remote::Hub;
use springtide_runtime::remote_message;

pub use self::book::{Book, Given, RevokeError, Revoked, Token, TokenOrder, TokenRole, TokenState};
pub use self::office::{Clusters, IsOwn, JoinTerms, NodeText, Office};
pub use self::renewal::{Renewal, is_due, renew_at, renew_files, retry_in};
pub use self::store::{BookError, BookFile};
use crate::admit;
use crate::site::{Expelled, Site};

/// The published name of the head's enrolment.
pub const ENROLMENT: &str = "enrolment";

/// The book is looked at this often: the command line may have written it without a word to this process.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// To the enrolment, by a node or a site, or by a site for a node of its cluster: another certificate for
/// the same name, please.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RenewCertificate {
    /// Who asks, for itself.
    pub node: NodeId,
    /// Its cluster.
    pub cluster: ClusterId,
    /// Its role, as its certificate has it.
    pub role: String,
    /// The request for a certificate, PKCS #10 in DER.
    pub request: bytes::Bytes,
}

/// Why a certificate is not renewed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum RenewError {
    /// The name was not given to anybody who joined, and is none that the head issues certificates for.
    #[error(
        "{node} has not joined this grid as {cluster}/{role}, and the head does not start it: its certificate is not renewed \
         here; join anew with a token"
    )]
    NotJoined {
        /// Who asked.
        node: NodeId,
        /// As it says.
        cluster: ClusterId,
        /// As it says.
        role: String,
    },
    /// It was revoked.
    #[error("the certificate of {node} is revoked: {reason}")]
    Revoked {
        /// Who asked.
        node: NodeId,
        /// Why.
        reason: String,
    },
    /// The grid could not do it.
    #[error("the certificate of {node} could not be renewed: {reason}")]
    Failed {
        /// Who asked.
        node: NodeId,
        /// Why.
        reason: String,
    },
}

/// To the enrolment: the book has changed. Answered when what follows from it is done.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct LookAtBook {}

/// To the enrolment: how many came to what?
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct GetDoor {}

/// What came of those who wanted to join, and of those who wanted a link, since the head was started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DoorStatus {
    /// Joined.
    pub granted: u64,
    /// Did not, by reason.
    pub refused: BTreeMap<String, u64>,
    /// Links that the head refused, by reason.
    pub links_refused: BTreeMap<String, u64>,
}

remote_message! {
    "renew-certificate" => RenewCertificate -> Result<String, RenewError>;
    "look-at-book" => LookAtBook;
    "get-door" => GetDoor -> DoorStatus;
}

/// Tells how many came to what.
pub type Counts = Box<dyn Fn() -> JoinCounts>;

/// The head's enrolment.
pub struct Enrolment {
    office: Arc<Office>,
    net: Net,
    sites: BTreeMap<ClusterId, Addr<Site>>,
    counts: Counts,
    /// What the network was told; none before the first look.
    revoked: Option<BTreeMap<NodeId, String>>,
}

impl Enrolment {
    /// Publishes it. `sites`: of the clusters that nodes join.
    pub fn publish(
        office: Arc<Office>,
        hub: &Arc<Hub>,
        net: &Net,
        sites: BTreeMap<ClusterId, Addr<Site>>,
        counts: Counts,
    ) -> Addr<Self> {
        let (net, revoked) = (net.clone(), None);
        let enrolment = Self { office, net, sites, counts, revoked }.start();
        hub.publish(ENROLMENT, enrolment.clone())
            .accepts_from::<RenewCertificate>(admit::by_rule)
            .accepts_from::<LookAtBook>(admit::by_rule)
            .accepts_from::<GetDoor>(admit::by_rule);
        enrolment
    }

    /// Does what follows from the book: whoever was revoked since is cut off.
    fn look(&mut self) {
        let book = match self.office.book().read() {
            Ok(book) => book,
            // Better to go on with what is known than to let everybody in.
            Err(error) => return tracing::error!("{error}"),
        };
        let revoked = book.revoked((self.office.calendar())());
        if self.revoked.as_ref() == Some(&revoked) {
            return;
        }
        self.net.revoke(&revoked);
        // What the book says at first was told by a former head.
        let before = self.revoked.replace(revoked.clone());
        for (node, why) in revoked.iter().filter(|_| before.is_some()) {
            if before.as_ref().and_then(|before| before.get(node)) == Some(why) {
                continue;
            }
            tracing::warn!("{node} is revoked: {why}");
            self.office.recorder().record(Event::Decision {
                decision: format!("revoke {node}"),
                why: why.clone(),
                inputs: serde_json::Value::Null,
            });
            let site = book.given(node).and_then(|given| self.sites.get(&given.cluster));
            if let Some(site) = site {
                let reason = format!("its certificate is revoked: {why}");
                // It lives as long as the head does.
                site.do_send(Expelled { node: node.clone(), reason });
            }
        }
    }
}

impl Actor for Enrolment {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        self.look();
        ctx.run_interval(LOOK_EVERY, |enrolment, _| enrolment.look());
    }
}

impl Handler<RenewCertificate> for Enrolment {
    type Result = ResponseFuture<Result<String, RenewError>>;

    fn handle(&mut self, ask: RenewCertificate, _: &mut Self::Context) -> Self::Result {
        let (office, node) = (Arc::clone(&self.office), ask.node.clone());
        // It waits for a disk, and for whoever else has the book open.
        let renewed = tokio::task::spawn_blocking(move || office.renew(&ask));
        Box::pin(async move {
            let failed = |error| RenewError::Failed { node, reason: format!("{error}") };
            renewed.await.unwrap_or_else(|error| Err(failed(error)))
        })
    }
}

impl Handler<LookAtBook> for Enrolment {
    type Result = ();

    fn handle(&mut self, _: LookAtBook, _: &mut Self::Context) {
        self.look();
    }
}

impl Handler<GetDoor> for Enrolment {
    type Result = MessageResult<GetDoor>;

    fn handle(&mut self, _: GetDoor, _: &mut Self::Context) -> Self::Result {
        let JoinCounts { granted, refused } = (self.counts)();
        let refused = refused.into_iter().map(|(why, n)| (why.to_string(), n)).collect();
        let name = |reason| {
            let name = serde_json::to_value(reason).ok();
            name.and_then(|name| name.as_str().map(str::to_owned)).unwrap_or_default()
        };
        let links = self.net.refused();
        let links_refused = links.into_iter().map(|(why, n)| (name(why), n)).collect();
        MessageResult(DoorStatus { granted, refused, links_refused })
    }
}
