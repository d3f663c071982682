//! Admission of messages: roles of certificates against the messages of the runtime's actors.
//!
//! - A client may submit jobs under its own name, cancel them, and query the grid's status. A
//!   client of the operator may do this with all jobs, and drain nodes.
//! - A viewer may read the states of all jobs and of the grid.
//! - A node may register and drain under its own name, report, coordinate jobs, request their
//!   nodes, and renew its certificate.
//! - A site may report its own cluster's nodes and files, drain its nodes, read other clusters'
//!   files, and renew its nodes' certificates.
//! - The head has all rights of a client, and orders nodes, sites and coordinators.
//!
//! A message about a job is also judged by the sender's place in that job, and by the epoch that it
//! names. [`judge`] judges, and [`RULES`] lists each message with its rule. Actors apply the
//! judgement before their handlers. Only the last epoch issued by the scheduler is valid. A
//! receiver that does not know an epoch or a sender asks the scheduler
//! ([`GetAuthority`](crate::scheduler::GetAuthority)).
//!
//! A message about its sender must name the node of the link's certificate. Messages of a process
//! to itself are not judged. Networks without certificates (in memory) have no roles, but places
//! and epochs are judged there too.

mod audit;
mod place;
mod table;

pub use self::audit::AuditOutcome;
pub use self::place::{
    Judgement, Places, Principal, Rule, SenderStanding, is_head, is_operator, judge, outside,
    reads_all_jobs,
};
pub use self::table::{HasRule, MessageSubject, RULES, by_rule};

use springtide_base::id::{ClusterId, NodeId, Peer};
use springtide_net::net::tls::{NodeName, Role};
use springtide_remote::{MessageOrigin, Refusal, Sender};

use crate::cluster::{
    ClusterHeartbeat, ClusterPeriod, ClusterReady, WorkerJoinNotice, WorkerPeriod,
};
use crate::enrol::RenewCertificate;
use crate::files::{FilesReport, RUN_FILES, RemoveFiles};
use crate::node::RegisterAgain;
use crate::program::{OfferProgram, ProgramReport};
use crate::scheduler::{
    CancelClientJobs, ConfirmMembership, Drain, GetWait, NodeLoss, NodeRegistration,
    SiteRegistration, SiteReport, StubDelay, StubLoss, Submit,
};
use crate::site::Register;

type AdmissionVerdict = Result<(), Refusal>;

/// Checks a report of the head, or of a site about its own cluster.
fn site(from: &Sender<'_>, claim: impl FnOnce(&Peer) -> bool) -> AdmissionVerdict {
    match from.role {
        Some(Role::Site) => from.holds(claim),
        _ => Ok(()),
    }
}

/// Whether a node's name has the form of the cluster's node names.
fn is_of(node: &NodeId, cluster: &ClusterId) -> bool {
    let number =
        node.as_str().strip_prefix(cluster.as_str()).and_then(|rest| rest.strip_prefix('-'));
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}

pub(crate) fn site_up(from: &Sender<'_>, message: &SiteRegistration) -> AdmissionVerdict {
    site(from, |peer| {
        let at = message.at.as_ref();
        message.cluster == peer.cluster
            && at.is_some_and(|at| at.node == peer.node)
            && message.nodes.iter().all(|node| is_of(node, &peer.cluster))
    })
}

pub(crate) fn registered(from: &Sender<'_>, message: &NodeRegistration) -> AdmissionVerdict {
    site(from, |peer| message.cluster == peer.cluster && is_of(&message.node, &peer.cluster))
}

pub(crate) fn node_lost(from: &Sender<'_>, message: &NodeLoss) -> AdmissionVerdict {
    site(from, |peer| is_of(&message.node, &peer.cluster))
}

pub(crate) fn site_polled(from: &Sender<'_>, message: &SiteReport) -> AdmissionVerdict {
    site(from, |peer| message.cluster == peer.cluster)
}

pub(crate) fn stub_gone(from: &Sender<'_>, message: &StubLoss) -> AdmissionVerdict {
    site(from, |peer| is_of(&message.node, &peer.cluster))
}

pub(crate) fn stub_waits(from: &Sender<'_>, message: &StubDelay) -> AdmissionVerdict {
    site(from, |peer| is_of(&message.node, &peer.cluster))
}

pub(crate) fn files_here(from: &Sender<'_>, message: &FilesReport) -> AdmissionVerdict {
    site(from, |peer| message.cluster == peer.cluster)
}

pub(crate) fn program_report(from: &Sender<'_>, message: &ProgramReport) -> AdmissionVerdict {
    site(from, |peer| message.cluster == peer.cluster)
}

/// A client offers its own program only.
pub(crate) fn offer_program(from: &Sender<'_>, message: &OfferProgram) -> AdmissionVerdict {
    from.holds(|peer| message.client.node == peer.node)
}

pub(crate) fn submit(from: &Sender<'_>, message: &Submit) -> AdmissionVerdict {
    from.holds(|peer| message.client.node == peer.node)
}

pub(crate) fn cancel_of(from: &Sender<'_>, message: &CancelClientJobs) -> AdmissionVerdict {
    from.holds(|peer| message.client == peer.node)
}

/// A client may query its own jobs only.
pub(crate) fn get_wait(from: &Sender<'_>, message: &GetWait) -> AdmissionVerdict {
    from.holds(|peer| message.client == peer.node)
}

/// Only the operator's clients, and the head, may change the grid itself.
pub(crate) fn by_operator<M>(from: &Sender<'_>, _: &M) -> AdmissionVerdict {
    if is_operator(&MessageOrigin::of(from)) { Ok(()) } else { Err(Refusal::Role) }
}

/// Files have no owner, so only operators remove them. Clients remove those of workflow runs.
pub(crate) fn remove_files(from: &Sender<'_>, message: &RemoveFiles) -> AdmissionVerdict {
    if message.names.iter().all(|name| name.starts_with(RUN_FILES)) {
        return Ok(());
    }
    by_operator(from, message)
}

/// Nodes may be drained by the grid's operators, and by a node that is to end itself.
pub(crate) fn drain(from: &Sender<'_>, message: &Drain) -> AdmissionVerdict {
    if from.role == Some(Role::Site) {
        return site(from, |peer| message.nodes.iter().all(|node| is_of(node, &peer.cluster)));
    }
    if from.role != Some(Role::Node) {
        return by_operator(from, message);
    }
    from.holds(|peer| {
        let itself = std::slice::from_ref(&peer.node);
        message.nodes == itself && message.incarnation == Some(peer.incarnation)
    })
}

pub(crate) fn register(from: &Sender<'_>, message: &Register) -> AdmissionVerdict {
    let Register { contact, incarnation, .. } = message;
    from.holds(|peer| {
        contact.node == peer.node
            && contact.cluster == peer.cluster
            && *incarnation == peer.incarnation
    })
}

/// A certificate renews itself only, with the same name, cluster and role; a site also renews its
/// nodes.
pub(crate) fn renew(from: &Sender<'_>, message: &RenewCertificate) -> AdmissionVerdict {
    let (node, cluster) = (message.node.clone(), message.cluster.clone());
    let name = NodeName { node, cluster, role: message.role.clone() };
    if from.role == Some(Role::Site) && name.role_kind() == Role::Node {
        return site(from, |peer| name.cluster == peer.cluster && is_of(&name.node, &peer.cluster));
    }
    from.is(&[name.role_kind()])?;
    from.holds(|peer| name.node == peer.node && name.cluster == peer.cluster)
}

pub(crate) fn confirm_membership(
    from: &Sender<'_>,
    message: &ConfirmMembership,
) -> AdmissionVerdict {
    from.holds(|peer| message.node == peer.node && message.incarnation == peer.incarnation)
}

pub(crate) fn joined(from: &Sender<'_>, message: &WorkerJoinNotice) -> AdmissionVerdict {
    from.holds(|peer| message.node == peer.node && message.incarnation == peer.incarnation)
}

pub(crate) fn period(from: &Sender<'_>, message: &WorkerPeriod) -> AdmissionVerdict {
    from.holds(|peer| message.report.node == peer.node)
}

pub(crate) fn cluster_alive(from: &Sender<'_>, message: &ClusterHeartbeat) -> AdmissionVerdict {
    from.holds(|peer| message.node == peer.node && message.incarnation == peer.incarnation)
}

pub(crate) fn cluster_joined(from: &Sender<'_>, message: &ClusterReady) -> AdmissionVerdict {
    from.holds(|peer| message.cluster == peer.cluster)
}

pub(crate) fn cluster_period(from: &Sender<'_>, message: &ClusterPeriod) -> AdmissionVerdict {
    from.holds(|peer| message.cluster == peer.cluster)
}

#[cfg(test)]
mod tests {
    use springtide_base::id::{Incarnation, Peer};
    use springtide_net::net::{Address, Contact};

    use super::*;
    use crate::enrol::GetJoinStatus;
    use crate::hardware::Hardware;
    use crate::job::JobParams;
    use crate::names::HEAD_CLUSTER;
    use crate::site::RestartNodes;

    fn contact(node: &str, cluster: &str) -> Contact {
        let address = Address::Socket(([127, 0, 0, 1], 47000).into());
        Contact { node: node.into(), cluster: cluster.into(), address }
    }

    fn peer(incarnation: u64) -> Peer {
        Peer { node: "ams-1".into(), cluster: "ams".into(), incarnation: Incarnation(incarnation) }
    }

    const ALL: [Option<Role>; 6] = [
        Some(Role::Head),
        Some(Role::Node),
        Some(Role::Client),
        Some(Role::Other),
        None,
        Some(Role::Site),
    ];

    /// The roles above that a verdict admits.
    fn admitted(verdict: impl Fn(&Sender<'_>) -> AdmissionVerdict) -> [bool; 6] {
        let peer = peer(5);
        ALL.map(|role| match verdict(&Sender { peer: &peer, role }) {
            Ok(()) => true,
            Err(why) => {
                assert_eq!(why, Refusal::Role);
                false
            }
        })
    }

    #[test]
    fn each_role_has_the_rights_of_the_table() {
        let start =
            RestartNodes { nodes: Vec::new(), program: None, reason: String::new(), shipped: None };
        let head = |from: &Sender<'_>| by_rule(from, &start);
        assert_eq!(admitted(head), [true, false, false, false, true, false]);
        let client = |from: &Sender<'_>| by_rule(from, &GetJoinStatus {});
        assert_eq!(admitted(client), [true, false, true, false, true, false]);
        let register_of = |node, cluster, life| Register {
            contact: contact(node, cluster),
            incarnation: Incarnation(life),
            threads: 1,
            fingerprint: 7,
            pid: 1,
            hardware: Hardware::default(),
            work: None,
        };
        let own = register_of("ams-1", "ams", 5);
        assert_eq!(admitted(|from| by_rule(from, &own)), [false, true, false, false, true, false]);
        let peer = peer(5);
        let from = Sender { peer: &peer, role: Some(Role::Node) };
        for (node, cluster, life) in [("ams-2", "ams", 5), ("ams-1", "del", 5), ("ams-1", "ams", 6)]
        {
            let judged = register(&from, &register_of(node, cluster, life));
            assert_eq!(judged, Err(Refusal::Identity), "{node} {cluster} {life}");
        }
        let drain_of = |nodes: &[&str], life: Option<u64>| Drain {
            nodes: nodes.iter().map(|&node| node.into()).collect(),
            reason: "ordered to end".into(),
            deadline_ms: None,
            incarnation: life.map(Incarnation),
        };
        let own = drain_of(&["ams-1"], Some(5));
        assert_eq!(admitted(|from| by_rule(from, &own)), [true, true, false, false, true, true]);
        let head = Peer { cluster: HEAD_CLUSTER.into(), ..peer.clone() };
        let operator = Sender { peer: &head, role: Some(Role::Client) };
        assert_eq!(by_rule(&operator, &own), Ok(()));
        let two = drain_of(&["ams-1", "ams-2"], Some(5));
        for other in
            [two, drain_of(&["ams-2"], Some(5)), drain_of(&["ams-1"], None), drain_of(&[], Some(5))]
        {
            assert_eq!(drain(&from, &other), Err(Refusal::Identity), "{other:?}");
        }
        let own = GetWait { client: "ams-1".into() };
        assert_eq!(admitted(|from| by_rule(from, &own)), [true, false, true, false, true, false]);
        let other = GetWait { client: "client-7".into() };
        let from = Sender { peer: &peer, role: Some(Role::Client) };
        assert_eq!(by_rule(&from, &other), Err(Refusal::Identity));
        let submit_of = |client| Submit {
            name: "fib".into(),
            body: vec![1].into(),
            fingerprint: 7,
            params: JobParams::default(),
            clusters: None,
            client: contact(client, "ams"),
            program: None,
            need: None,
            principal: None,
            image: None,
        };
        let own = submit_of("ams-1");
        assert_eq!(admitted(|from| by_rule(from, &own)), [true, false, true, false, true, false]);
        let from = Sender { peer: &peer, role: Some(Role::Client) };
        assert_eq!(submit(&from, &submit_of("client-7")), Err(Refusal::Identity));
    }

    #[test]
    fn a_viewer_reads_all_jobs_and_changes_none() {
        let viewer = |rule: &Rule| {
            let peer = Peer { cluster: "users".into(), ..peer(5) };
            let origin = MessageOrigin { peer, role: Some(Role::Viewer) };
            let standing = SenderStanding {
                known: true,
                places: outside(&origin, None),
                ..SenderStanding::default()
            };
            judge(rule, &origin, &standing, None)
        };
        let (mut read, mut about_jobs) = (Vec::new(), 0);
        for (name, rule) in RULES {
            about_jobs += u32::from(rule.places.is_some());
            if rule.places.is_some() && viewer(rule) == Judgement::Admit {
                read.push(*name);
            }
        }
        assert!(about_jobs > 40, "{about_jobs}");
        assert_eq!(read, ["get-job", "look-at-job"]);
        for changes in ["submit", "cancel-jobs-of", "prepare-slots", "drain", "undrain"] {
            let (_, rule) = RULES.iter().find(|(name, _)| *name == changes).unwrap();
            assert_eq!(viewer(rule), Judgement::Refuse(Refusal::Role), "{changes}");
        }
    }

    #[test]
    fn a_certificate_renews_itself_only() {
        let renew_of = |node: &str, cluster: &str, role: &str| RenewCertificate {
            node: node.into(),
            cluster: cluster.into(),
            role: role.into(),
            request: vec![1].into(),
        };
        let own = renew_of("ams-1", "ams", "node");
        assert_eq!(admitted(|from| by_rule(from, &own)), [false, true, false, false, true, true]);
        let peer = peer(5);
        let from = Sender { peer: &peer, role: Some(Role::Node) };
        for (node, cluster, role, why) in [
            ("ams-2", "ams", "node", Refusal::Identity),
            ("ams-1", "del", "node", Refusal::Identity),
            ("ams-1", "ams", "client", Refusal::Role),
            ("ams-1", "ams", "head", Refusal::Role),
            ("ams-1", "ams", "king", Refusal::Role),
        ] {
            assert_eq!(renew(&from, &renew_of(node, cluster, role)), Err(why), "{node} {role}");
        }
        let site = Peer { node: "ams-site".into(), ..peer.clone() };
        let site = Sender { peer: &site, role: Some(Role::Site) };
        assert_eq!(renew(&site, &renew_of("ams-site", "ams", "site")), Ok(()));
        assert_eq!(renew(&site, &renew_of("ams-7", "ams", "node")), Ok(()));
        for (node, cluster, role, why) in [
            ("del-7", "del", "node", Refusal::Identity),
            ("del-7", "ams", "node", Refusal::Identity),
            ("ams-7", "ams", "client", Refusal::Role),
            ("ams-7", "ams", "head", Refusal::Role),
            ("del-site", "del", "site", Refusal::Identity),
        ] {
            assert_eq!(renew(&site, &renew_of(node, cluster, role)), Err(why), "{node} {role}");
        }
        let head = Sender { peer: &peer, role: Some(Role::Head) };
        let own = renew_of("ams-1", "ams", "head");
        assert_eq!(by_rule(&head, &own), Err(Refusal::Role));
    }

    #[test]
    fn a_site_reports_its_own_cluster_only() {
        let peer =
            Peer { node: "ams-site".into(), cluster: "ams".into(), incarnation: Incarnation(3) };
        let site = Sender { peer: &peer, role: Some(Role::Site) };
        let node = Sender { peer: &peer, role: Some(Role::Node) };
        let up = |cluster: &str, at: Option<&str>, nodes: &[&str]| SiteRegistration {
            threads: 1,
            hosts: Vec::new(),
            shares: Default::default(),
            joins: false,
            cluster: cluster.into(),
            nodes: nodes.iter().map(|&node| node.into()).collect(),
            starts_programs: true,
            keep_ms: None,
            stubs: Default::default(),
            files: true,
            at: at.map(|node| contact(node, cluster)),
            receives_programs: false,
        };
        assert_eq!(site_up(&site, &up("ams", Some("ams-site"), &["ams-1", "ams-20"])), Ok(()));
        for other in [
            up("del", Some("ams-site"), &[]),
            up("ams", Some("head"), &[]),
            up("ams", None, &[]),
            up("ams", Some("ams-site"), &["ams-1", "del-1"]),
            up("ams", Some("ams-site"), &["ams-"]),
            up("ams", Some("ams-site"), &["ams-1x"]),
        ] {
            assert_eq!(site_up(&site, &other), Err(Refusal::Identity), "{other:?}");
        }
        let lost = |node: &str| NodeLoss {
            node: node.into(),
            reason: String::new(),
            returns: true,
            retry_ms: None,
        };
        assert_eq!(node_lost(&site, &lost("ams-7")), Ok(()));
        assert_eq!(node_lost(&site, &lost("del-7")), Err(Refusal::Identity));
        assert_eq!(by_rule(&node, &lost("ams-7")), Err(Refusal::Role));
        let here = |cluster: &str| FilesReport { cluster: cluster.into(), files: Ok(Vec::new()) };
        assert_eq!(files_here(&site, &here("ams")), Ok(()));
        assert_eq!(files_here(&site, &here("del")), Err(Refusal::Identity));
        let drain_of = |node: &str| Drain {
            nodes: vec![node.into()],
            reason: "its processor will be taken away".into(),
            deadline_ms: None,
            incarnation: None,
        };
        assert_eq!(drain(&site, &drain_of("ams-1")), Ok(()));
        assert_eq!(drain(&site, &drain_of("del-1")), Err(Refusal::Identity));
        let start =
            RestartNodes { nodes: Vec::new(), program: None, reason: String::new(), shipped: None };
        assert_eq!(by_rule(&site, &start), Err(Refusal::Role));
        assert_eq!(by_rule(&site, &GetJoinStatus {}), Err(Refusal::Role));
    }
}
