//! Judgement of a message about a job: the sender's role and places in the job against the
//! message's rule.
//!
//! Pure functions, independent of messages and of the receiver's sources.

use std::fmt;

use serde::{Deserialize, Serialize};
use springtide_base::id::{ClusterId, Epoch, NodeId};
use springtide_net::membership::View;
use springtide_net::net::tls::Role;
use springtide_remote::{MessageOrigin, Refusal};

use crate::names::HEAD_CLUSTER;
use crate::scheduler::JobAuthority;

/// A set of places that a sender may have in a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Places(u8);

impl Places {
    /// No place: another job's node, or another user.
    pub const NONE: Places = Places(0);
    /// The head of the grid.
    pub const HEAD: Places = Places(1);
    /// The node to which the job's current epoch was issued.
    pub const COORDINATOR: Places = Places(2);
    /// A node that coordinates a cluster of the job.
    pub const HOST: Places = Places(4);
    /// A member of the job.
    pub const MEMBER: Places = Places(8);
    /// The principal that submitted the job.
    pub const OWNER: Places = Places(16);
    /// A client of the grid's operator.
    pub const OPERATOR: Places = Places(32);
    /// A client that may read all jobs and change none.
    pub const VIEWER: Places = Places(64);

    /// Each place with its name, in order of this list.
    pub const ALL: [(Places, &'static str); 8] = [
        (Places::NONE, "other"),
        (Places::MEMBER, "member"),
        (Places::HOST, "host"),
        (Places::COORDINATOR, "coordinator"),
        (Places::OWNER, "owner"),
        (Places::VIEWER, "viewer"),
        (Places::OPERATOR, "operator"),
        (Places::HEAD, "head"),
    ];

    /// The union of two sets.
    #[must_use]
    pub const fn or(self, other: Places) -> Places {
        Places(self.0 | other.0)
    }

    /// This set, if `holds`.
    #[must_use]
    pub fn when(self, holds: bool) -> Places {
        if holds { self } else { Places::NONE }
    }

    /// Whether the two sets have a place in common.
    pub const fn meets(self, other: Places) -> bool {
        self.0 & other.0 != 0
    }
}

/// What a message's sender must be.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Roles of certificates that may send it. Networks without certificates know no roles.
    pub roles: &'static [Role],
    /// For a message about a job: the places in the job that may send it.
    pub places: Option<Places>,
    /// The receiver asks the scheduler where it does not know the sender's place itself.
    pub confirmed: bool,
}

/// What a receiver knows of a sender and the job that a message is about.
#[derive(Clone, Copy, Debug, Default)]
pub struct SenderStanding {
    /// The receiver has the job.
    pub known: bool,
    /// The sender's places in the job. Those of head, operator and viewer hold without a job.
    pub places: Places,
    /// The current epoch of the job, if the receiver knows one.
    pub epoch: Option<Epoch>,
    /// The receiver can still learn more from the scheduler.
    pub is_uncertain: bool,
}

impl SenderStanding {
    /// The standing of a sender by a view of the job. The scheduler may know more.
    pub fn in_view(view: &View, from: &MessageOrigin) -> Self {
        let node = &from.peer.node;
        let member = view.members.get(node);
        let member = member.is_some_and(|it| it.incarnation == from.peer.incarnation);
        let hosts = view.cluster_coordinators.get(&from.peer.cluster) == Some(node);
        let coordinates = view.coordinator.as_ref() == Some(node);
        let places = Places::MEMBER
            .or(Places::HOST.when(hosts))
            .or(Places::COORDINATOR.when(coordinates))
            .when(member);
        Self { known: true, places, epoch: Some(view.epoch), is_uncertain: true }
    }

    /// Adds places to the sender's.
    #[must_use]
    pub fn with(self, places: Places) -> Self {
        Self { places: self.places.or(places), ..self }
    }

    /// Merges the scheduler's answer. Its epoch replaces an older one, and a sender that it does
    /// not name is not a coordinator.
    #[must_use]
    pub fn confirmed(mut self, authority: &JobAuthority, from: &MessageOrigin) -> Self {
        let Some(coordinator) = &authority.coordinator else { return self };
        self.is_uncertain = false;
        if self.epoch.is_some_and(|known| known > authority.epoch) {
            return self;
        }
        (self.known, self.epoch) = (true, Some(authority.epoch));
        let others = Places(self.places.0 & !Places::COORDINATOR.0);
        let coordinates = *coordinator == from.peer.node;
        self.places = others
            .or(Places::COORDINATOR.when(coordinates))
            .or(Places::MEMBER.when(authority.member));
        self
    }
}

/// Result of a judgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// The handler gets the message.
    Admit,
    /// The sender gets the reason.
    Refuse(Refusal),
    /// The scheduler must be asked first.
    Ask,
}

/// Judges a message by its rule, the sender's standing in the job, and the epoch that the message
/// names.
///
/// Only the current epoch counts. An older one is stale; one that the receiver does not know was
/// not issued.
pub fn judge(
    rule: &Rule,
    from: &MessageOrigin,
    standing: &SenderStanding,
    epoch: Option<Epoch>,
) -> Judgement {
    if let Err(why) = from.sender().is(rule.roles) {
        return Judgement::Refuse(why);
    }
    let Some(places) = rule.places else { return Judgement::Admit };
    match judge_place(places, standing, epoch) {
        Ok(()) => Judgement::Admit,
        Err(why) if why != Refusal::Stale && standing.is_uncertain && rule.confirmed => {
            Judgement::Ask
        }
        Err(why) => Judgement::Refuse(why),
    }
}

fn judge_place(
    allowed: Places,
    standing: &SenderStanding,
    epoch: Option<Epoch>,
) -> Result<(), Refusal> {
    // A place outside the job requires neither job nor epoch.
    let outside = Places::HEAD.or(Places::OPERATOR).or(Places::VIEWER);
    if Places(standing.places.0 & outside.0).meets(allowed) {
        return Ok(());
    }
    if !standing.known {
        return Err(Refusal::NoJob);
    }
    if let (Some(named), Some(current)) = (epoch, standing.epoch) {
        if named < current {
            return Err(Refusal::Stale);
        }
        if named > current && standing.places != Places::NONE {
            return Err(Refusal::Epoch);
        }
    }
    if standing.places.meets(allowed) {
        Ok(())
    } else if allowed.meets(Places::OWNER) {
        Err(Refusal::Owner)
    } else {
        Err(Refusal::JobRole)
    }
}

/// Who submitted a job: the name in the certificate of the link over which the submission came.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Principal {
    /// Name in the certificate.
    pub name: NodeId,
    /// Cluster in the certificate.
    pub cluster: ClusterId,
    /// Its role: `client` or `head`; absent on networks without certificates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
}

impl Principal {
    /// The principal behind a link.
    pub fn of(from: &MessageOrigin) -> Self {
        let (name, cluster) = (from.peer.node.clone(), from.peer.cluster.clone());
        Self { name, cluster, role: from.role.map(|role| role_name(role).to_owned()) }
    }

    /// A process of the head that submits for itself.
    pub fn of_head(name: NodeId, cluster: ClusterId) -> Self {
        Self { name, cluster, role: Some(role_name(Role::Head).to_owned()) }
    }

    /// Whether the principal is an operator of the grid: as [`is_operator`].
    pub fn is_operator(&self) -> bool {
        has_operators_rights(self.role.as_deref(), &self.cluster)
    }

    /// Whether a sender speaks for this principal: with the same name, cluster and role.
    pub fn is(&self, from: &MessageOrigin) -> bool {
        *self == Self::of(from)
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.role {
            Some(role) => write!(f, "{role} {}", self.name),
            None => write!(f, "{}", self.name),
        }
    }
}

/// A role's name, as certificates write it.
fn role_name(role: Role) -> &'static str {
    match role {
        Role::Head => "head",
        Role::Site => "site",
        Role::Node => "node",
        Role::Client => "client",
        Role::Viewer => "viewer",
        Role::Other => "other",
    }
}

/// Whether a sender is the head. On a network without certificates its name decides.
pub fn is_head(from: &MessageOrigin, scheduler: Option<&NodeId>) -> bool {
    match from.role {
        Some(role) => role == Role::Head,
        None => scheduler.is_none_or(|scheduler| *scheduler == from.peer.node),
    }
}

/// Whether a sender acts for the grid's operator: a client certificate of the head's own cluster.
/// Commands issue these to users who can read the authority's key. On a network without
/// certificates, every sender does.
pub fn is_operator(from: &MessageOrigin) -> bool {
    has_operators_rights(from.role.map(role_name), &from.peer.cluster)
}

/// Whether the owner of a certificate with this role and cluster is an operator.
fn has_operators_rights(role: Option<&str>, cluster: &ClusterId) -> bool {
    match role {
        Some("client") => cluster.as_str() == HEAD_CLUSTER,
        Some(role) => role == "head",
        None => true,
    }
}

/// Whether a sender may read the jobs of all principals.
pub fn reads_all_jobs(from: &MessageOrigin) -> bool {
    is_operator(from) || from.role == Some(Role::Viewer)
}

/// The places that a sender has without a job.
pub fn outside(from: &MessageOrigin, scheduler: Option<&NodeId>) -> Places {
    let head = Places::HEAD.when(is_head(from, scheduler));
    let viewer = Places::VIEWER.when(from.role == Some(Role::Viewer));
    head.or(Places::OPERATOR.when(is_operator(from))).or(viewer)
}
