//! Messages to the head's enrolment actor, which renews certificates. Data only.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use springtide_base::id::{ClusterId, NodeId};
use springtide_remote::remote_message;

/// To the enrolment, by a node or a site, or by a site for a node of its cluster: requests another
/// certificate for the same name.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RenewCertificate {
    /// Node of the certificate.
    pub node: NodeId,
    /// Cluster of the node.
    pub cluster: ClusterId,
    /// Role in its certificate.
    pub role: String,
    /// Certificate request, PKCS #10 in DER.
    pub request: bytes::Bytes,
}

/// To the enrolment, by any holder of a certificate: queries the certificates of the authorities
/// that are trusted now, as one PEM text. The first one issues.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct GetAuthorities {}

/// Why a certificate is not renewed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum RenewError {
    /// The name was not issued to a joining process, and the head issues no certificates for it.
    #[error(
        "{node} has not joined this grid as {cluster}/{role} with a token, and the head does not \
         start it: on the head's host, issue another certificate with `springtide ca issue {node} \
         --cluster {cluster} --role {role}`"
    )]
    NotJoined {
        /// Node of the request.
        node: NodeId,
        /// Cluster of the request.
        cluster: ClusterId,
        /// Role of the request.
        role: String,
    },
    /// The certificate is revoked.
    #[error("the certificate of {node} is revoked: {reason}")]
    Revoked {
        /// Node of the request.
        node: NodeId,
        /// Reason of the revocation.
        reason: String,
    },
    /// The head failed to renew it.
    #[error("the certificate of {node} could not be renewed: {reason}")]
    Failed {
        /// Node of the request.
        node: NodeId,
        /// Reason of the failure.
        reason: String,
    },
}

/// To the enrolment: the book has changed. It replies when the consequences are executed.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ReloadEnrolment {}

/// To the enrolment: queries the counts of joins and refusals.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct GetJoinStatus {}

/// Counts of requests to join and of links, since the head's start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinStatus {
    /// Number of processes that joined.
    pub granted: u64,
    /// Numbers of refused joins, by reason.
    pub refused: BTreeMap<String, u64>,
    /// Numbers of links that the head refused, by reason.
    pub links_refused: BTreeMap<String, u64>,
}

remote_message! {
    "renew-certificate" => RenewCertificate -> Result<String, RenewError>;
    "look-at-book" => ReloadEnrolment;
    "get-door" => GetJoinStatus -> JoinStatus;
    "get-authorities" => GetAuthorities -> Result<String, RenewError>;
}
