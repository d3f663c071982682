//! Judges who wants to join or to renew, and signs: the book's decision first, on disk, then the certificate.
//!
//! Runs on threads that may wait for a disk. Must not know connections or actors.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use springtide_runtime::event::{Event, Recorder};
use springtide_runtime::id::{ClusterId, NodeId};
use springtide_runtime::net::join::{
    JoinGrant, JoinJudge, JoinReason, JoinRefusal, JoinRequest, Judging,
};
use springtide_runtime::net::tls::{Ca, Calendar, NodeName, check_request};

use super::store::BookFile;
use super::{RenewCertificate, RenewError};

/// What nodes of a cluster that is joined are told.
pub struct JoinTerms {
    /// So many there may be.
    pub most: u32,
    /// The config of one of this name, as far as the grid says it.
    pub config: NodeText,
}

/// Writes a config for a node of this name.
pub type NodeText = Box<dyn Fn(&NodeId) -> Result<String, String> + Send + Sync>;

/// Whether the head issues certificates under a name by itself.
pub type IsOwn = Box<dyn Fn(&NodeName) -> bool + Send + Sync>;

/// The clusters that nodes join.
pub type Clusters = BTreeMap<ClusterId, JoinTerms>;

/// Who judges and signs.
#[derive(Clone)]
pub struct Office(Arc<Inner>);

struct Inner {
    ca: Ca,
    book: BookFile,
    calendar: Calendar,
    clusters: Clusters,
    validity: Duration,
    recorder: Recorder,
    own: Option<(IsOwn, Duration)>,
}

impl Office {
    /// `validity`: of certificates. What it decides goes to `recorder`.
    pub fn new(
        ca: Ca,
        book: BookFile,
        calendar: Calendar,
        (clusters, validity): (Clusters, Duration),
        recorder: Recorder,
    ) -> Self {
        let own = None;
        Self(Arc::new(Inner { ca, book, calendar, clusters, validity, recorder, own }))
    }

    /// Renews also certificates that did not come from a token: those for which `is_own` holds, for this
    /// long. To be called before the office is shared.
    pub fn with_own(mut self, is_own: IsOwn, validity: Duration) -> Self {
        if let Some(inner) = Arc::get_mut(&mut self.0) {
            inner.own = Some((is_own, validity));
        }
        self
    }

    pub(super) fn book(&self) -> &BookFile {
        &self.0.book
    }

    pub(super) fn calendar(&self) -> &Calendar {
        &self.0.calendar
    }

    pub(super) fn recorder(&self) -> &Recorder {
        &self.0.recorder
    }

    /// The date, and when a certificate made now ends.
    fn dates(&self) -> (i64, i64) {
        let now = (self.0.calendar)();
        let validity = i64::try_from(self.0.validity.as_secs()).unwrap_or(i64::MAX);
        (now, now.saturating_add(validity))
    }

    /// Another certificate for who joined.
    ///
    /// # Errors
    /// [`RenewError`].
    pub fn renew(&self, ask: &RenewCertificate) -> Result<String, RenewError> {
        let RenewCertificate { node, cluster, role, request } = ask;
        let failed = |why: &dyn std::fmt::Display| RenewError::Failed {
            node: node.clone(),
            reason: why.to_string(),
        };
        let name = NodeName { node: node.clone(), cluster: cluster.clone(), role: role.clone() };
        let (now, until) = self.dates();
        if let Some((_, validity)) = self.0.own.as_ref().filter(|(is_own, _)| is_own(&name)) {
            let signed = self.0.ca.sign(request, &name, *validity, now);
            tracing::info!("the certificate of {node} is renewed for {validity:?}");
            return signed.map_err(|error| failed(&error));
        }
        let noted = self.0.book.change(|book| book.renew(&name, until));
        noted.map_err(|error| failed(&error))?.map_err(|why| match why {
            None => {
                let (node, cluster, role) = (node.clone(), cluster.clone(), role.clone());
                RenewError::NotJoined { node, cluster, role }
            }
            Some(reason) => RenewError::Revoked { node: node.clone(), reason },
        })?;
        let signed = self.0.ca.sign(request, &name, self.0.validity, now);
        let signed = signed.map_err(|error| failed(&error))?;
        tracing::info!("the certificate of {node} is renewed for {:?}", self.0.validity);
        Ok(signed)
    }

    fn admit(&self, request: &JoinRequest, from: SocketAddr) -> Result<JoinGrant, JoinRefusal> {
        let (now, until) = self.dates();
        let failed = |why: String| JoinRefusal::open(JoinReason::Failed, why);
        let most = |cluster: &ClusterId| self.0.clusters.get(cluster).map(|terms| terms.most);
        let who = (request.token.as_str(), request.secret.as_str());
        let admitted = self.0.book.change(|book| {
            let mut after = book.clone();
            let name = after.admit(who, request.node.as_ref(), most, (now, until))?;
            // Of those with a good token alone; and it must not be spent on what cannot be signed.
            check_request(&request.request)
                .map_err(|error| JoinRefusal::open(JoinReason::BadKey, error.to_string()))?;
            *book = after;
            Ok(name)
        });
        // Whoever asks learns nothing of this machine's files.
        let name = admitted.map_err(|error| JoinRefusal {
            told: Some(
                "the grid cannot read or write its book of tokens: its log says why".to_owned(),
            ),
            ..failed(error.to_string())
        })??;
        let certificate = self.0.ca.sign(&request.request, &name, self.0.validity, now);
        let certificate = certificate.map_err(|error| failed(error.to_string()))?;
        let terms = self.0.clusters.get(&name.cluster).filter(|_| name.role == "node");
        let config = terms.map_or_else(|| Ok(String::new()), |terms| (terms.config)(&name.node));
        let config = config.map_err(failed)?;
        tracing::info!("{name} joins from {from} by token {}", request.token);
        self.0.recorder.record(Event::Decision {
            decision: format!("{} joins", name.node),
            why: format!("token {} is good, shown from {from}", request.token),
            inputs: serde_json::json!({ "name": name.to_string(), "until": until }),
        });
        Ok(JoinGrant { certificate, authority: self.0.ca.cert_pem().to_owned(), config })
    }
}

impl JoinJudge for Office {
    fn judge(&self, request: JoinRequest, from: SocketAddr) -> Judging {
        let office = self.clone();
        Box::pin(async move {
            let judged = tokio::task::spawn_blocking(move || office.admit(&request, from)).await;
            judged.unwrap_or_else(|error| {
                Err(JoinRefusal::closed(JoinReason::Failed, error.to_string()))
            })
        })
    }

    fn refused(&self, from: SocketAddr, refusal: &JoinRefusal) {
        let JoinRefusal { reason, detail, .. } = refusal;
        let what = format!("{from} was not let in ({reason}): {detail}");
        self.0.recorder.record(Event::Fault { part: "door".to_owned(), what });
    }
}
