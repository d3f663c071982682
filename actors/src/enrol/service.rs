//! Judges requests to join or renew, and signs: first the decision is stored, then the
//! certificate is issued.
//!
//! Runs on threads that may wait for a disk. This module knows neither connections nor actors.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use springtide_runtime::event::{Event, Recorder};
use springtide_runtime::id::{ClusterId, NodeId};
use springtide_runtime::net::join::{
    JoinAuthorizer, JoinDecision, JoinGrant, JoinReason, JoinRefusal, JoinRequest,
};
use springtide_runtime::net::tls::{
    AuthorityReader, Ca, Calendar, NodeName, TlsError, check_request,
};

use super::state::JoinAttempt;
use super::store::EnrolmentStore;
use super::{RenewCertificate, RenewError};

/// Terms for nodes that join a cluster.
pub struct JoinTerms {
    /// Maximum number of nodes.
    pub node_limit: u32,
    /// Returns the grid's part of a node's config.
    pub config: NodeConfigWriter,
}

/// Writes a config for a node of this name.
pub type NodeConfigWriter = Box<dyn Fn(&NodeId) -> Result<String, String> + Send + Sync>;

/// Whether the head itself issues certificates for a name.
pub type IsOwn = Box<dyn Fn(&NodeName) -> bool + Send + Sync>;

/// Clusters that nodes join, with their terms.
pub type Clusters = BTreeMap<ClusterId, JoinTerms>;

/// Judges requests and signs certificates.
#[derive(Clone)]
pub struct EnrolmentService(Arc<ServiceState>);

struct ServiceState {
    ca: Ca,
    /// The authority on disk, if it may be replaced meanwhile.
    reader: Option<AuthorityReader>,
    store: EnrolmentStore,
    calendar: Calendar,
    clusters: Clusters,
    validity: Duration,
    recorder: Recorder,
    own: Option<(IsOwn, Duration)>,
}

impl EnrolmentService {
    /// Creates the service. `validity` is that of certificates. Decisions are recorded by
    /// `recorder`.
    pub fn new(
        ca: Ca,
        store: EnrolmentStore,
        calendar: Calendar,
        clusters: Clusters,
        validity: Duration,
        recorder: Recorder,
    ) -> Self {
        let (own, reader) = (None, None);
        Self(Arc::new(ServiceState {
            ca,
            reader,
            store,
            calendar,
            clusters,
            validity,
            recorder,
            own,
        }))
    }

    /// Uses the authority that is in this directory at each request, since it may be replaced. Must
    /// be called before the service is shared.
    pub fn reading_authority(mut self, dir: PathBuf) -> Self {
        if let Some(inner) = Arc::get_mut(&mut self.0) {
            inner.reader = Some(AuthorityReader::new(dir));
        }
        self
    }

    /// Calls `work` with the authority that issues now.
    fn with_authority<T>(
        &self,
        work: impl FnOnce(&Ca) -> Result<T, TlsError>,
    ) -> Result<T, TlsError> {
        match &self.0.reader {
            Some(reader) => work(&*reader.read()?),
            None => work(&self.0.ca),
        }
    }

    /// The certificates of the trusted authorities in PEM, the issuing one first.
    ///
    /// # Errors
    /// The authority cannot be read.
    pub fn authorities(&self) -> Result<String, TlsError> {
        self.with_authority(|ca| Ok(ca.cert_pem().to_owned()))
    }

    /// Also renews certificates issued without a token, if `is_own` holds for their name, with this
    /// validity. Must be called before the service is shared.
    pub fn with_own(mut self, is_own: IsOwn, validity: Duration) -> Self {
        if let Some(inner) = Arc::get_mut(&mut self.0) {
            inner.own = Some((is_own, validity));
        }
        self
    }

    pub(super) fn store(&self) -> &EnrolmentStore {
        &self.0.store
    }

    pub(super) fn calendar(&self) -> &Calendar {
        &self.0.calendar
    }

    pub(super) fn recorder(&self) -> &Recorder {
        &self.0.recorder
    }

    /// The current date, and the end of a certificate issued now.
    fn dates(&self) -> (i64, i64) {
        let now = (self.0.calendar)();
        let validity = i64::try_from(self.0.validity.as_secs()).unwrap_or(i64::MAX);
        (now, now.saturating_add(validity))
    }

    /// Renews the certificate of a joined process.
    ///
    /// # Errors
    /// [`RenewError`] with the reason.
    pub fn renew(&self, ask: &RenewCertificate) -> Result<String, RenewError> {
        let RenewCertificate { node, cluster, role, request } = ask;
        let failed = |why: &dyn std::fmt::Display| RenewError::Failed {
            node: node.clone(),
            reason: why.to_string(),
        };
        let name = NodeName { node: node.clone(), cluster: cluster.clone(), role: role.clone() };
        let (now, until) = self.dates();
        if let Some((_, validity)) = self.0.own.as_ref().filter(|(is_own, _)| is_own(&name)) {
            let signed = self.with_authority(|ca| ca.sign(request, &name, *validity, now));
            tracing::info!("the certificate of {node} is renewed for {validity:?}");
            return signed.map_err(|error| failed(&error));
        }
        let noted = self.0.store.change(|state| state.renew(&name, until));
        noted.map_err(|error| failed(&error))?.map_err(|why| match why {
            None => {
                let (node, cluster, role) = (node.clone(), cluster.clone(), role.clone());
                RenewError::NotJoined { node, cluster, role }
            }
            Some(reason) => RenewError::Revoked { node: node.clone(), reason },
        })?;
        let signed = self.with_authority(|ca| ca.sign(request, &name, self.0.validity, now));
        let signed = signed.map_err(|error| failed(&error))?;
        tracing::info!("the certificate of {node} is renewed for {:?}", self.0.validity);
        Ok(signed)
    }

    fn admit(&self, request: &JoinRequest, from: SocketAddr) -> Result<JoinGrant, JoinRefusal> {
        let (now, until) = self.dates();
        let failed = |why: String| JoinRefusal::open(JoinReason::Failed, why);
        let most = |cluster: &ClusterId| self.0.clusters.get(cluster).map(|terms| terms.node_limit);
        let (token, secret) = (request.token.as_str(), request.secret.as_str());
        let attempt = JoinAttempt { token, secret, node: request.node.as_ref(), now, until };
        let admitted = self.0.store.change(|state| {
            let mut after = state.clone();
            let name = after.admit(&attempt, most)?;
            // Checked only with a valid token, which must not be used up by an invalid request.
            check_request(&request.request)
                .map_err(|error| JoinRefusal::open(JoinReason::BadKey, error.to_string()))?;
            *state = after;
            Ok(name)
        });
        // The caller must not learn about this machine's files.
        let name = admitted.map_err(|error| JoinRefusal {
            text_for_caller: Some(
                "the grid cannot read or write its tokens: see the log of its head".to_owned(),
            ),
            ..failed(error.to_string())
        })??;
        let signed = self.with_authority(|ca| {
            let certificate = ca.sign(&request.request, &name, self.0.validity, now)?;
            Ok((certificate, ca.cert_pem().to_owned()))
        });
        let (certificate, authority) = signed.map_err(|error| failed(error.to_string()))?;
        let terms = self.0.clusters.get(&name.cluster).filter(|_| name.role == "node");
        let config = terms.map_or_else(|| Ok(String::new()), |terms| (terms.config)(&name.node));
        let config = config.map_err(failed)?;
        tracing::info!("{name} joins from {from} by token {}", request.token);
        self.0.recorder.record(Event::Decision {
            decision: format!("{} joins", name.node),
            why: format!("token {} is good, shown from {from}", request.token),
            inputs: serde_json::json!({ "name": name.to_string(), "until": until }),
        });
        Ok(JoinGrant { certificate, authority, config })
    }
}

impl JoinAuthorizer for EnrolmentService {
    fn authorize(&self, request: JoinRequest, from: SocketAddr) -> JoinDecision {
        let service = self.clone();
        Box::pin(async move {
            let judged = tokio::task::spawn_blocking(move || service.admit(&request, from)).await;
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
