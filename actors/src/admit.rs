//! Who may send what: the roles of certificates against the messages of the runtime's own actors.
//!
//! | role   | may                                                                                  |
//! | ------ | ------------------------------------------------------------------------------------ |
//! | client | submit jobs under its own name, cancel them, ask for the grid's status, drain nodes   |
//! | node   | register and drain under its own name, report, coordinate jobs and ask for their nodes |
//! | head   | all that a client may, and give orders to nodes, sites and coordinators              |
//!
//! A message that speaks of its sender must name the node of the link's certificate. What a process sends to itself is not
//! judged, and networks without certificates (in memory) know no roles. Must not know what the messages do.

use springtide_runtime::net::tls::Role;
use springtide_runtime::remote::{Refusal, Sender};

use crate::cluster::{ClusterAlive, ClusterJoined, ClusterPeriod, Joined, Period};
use crate::scheduler::{Drain, Submit};
use crate::site::Register;

type Verdict = Result<(), Refusal>;

/// Orders to nodes and sites.
pub(crate) fn head<M>(from: &Sender<'_>, _: &M) -> Verdict {
    from.is(&[Role::Head])
}

/// Orders of whoever submitted a job.
pub fn client<M>(from: &Sender<'_>, _: &M) -> Verdict {
    from.is(&[Role::Client, Role::Head])
}

/// Words of those who work for a job, or of the scheduler in their place.
pub fn worker<M>(from: &Sender<'_>, _: &M) -> Verdict {
    from.is(&[Role::Node, Role::Head])
}

/// Whoever reads input files: other clusters' servers of them, and clients.
pub(crate) fn files<M>(from: &Sender<'_>, _: &M) -> Verdict {
    from.is(&[Role::Client, Role::Head])
}

pub(crate) fn submit(from: &Sender<'_>, message: &Submit) -> Verdict {
    client(from, message)?;
    from.holds(|peer| message.client.node == peer.node)
}

/// Taking nodes out of service: whoever runs the grid, or a node itself that is to end.
pub(crate) fn drain(from: &Sender<'_>, message: &Drain) -> Verdict {
    if from.role != Some(Role::Node) {
        return client(from, message);
    }
    from.holds(|peer| {
        let itself = std::slice::from_ref(&peer.node);
        message.nodes == itself && message.life == Some(peer.incarnation)
    })
}

pub(crate) fn register(from: &Sender<'_>, message: &Register) -> Verdict {
    from.is(&[Role::Node])?;
    let Register { contact, incarnation, .. } = message;
    from.holds(|peer| {
        contact.node == peer.node
            && contact.cluster == peer.cluster
            && *incarnation == peer.incarnation
    })
}

pub(crate) fn joined(from: &Sender<'_>, message: &Joined) -> Verdict {
    worker(from, message)?;
    from.holds(|peer| message.node == peer.node && message.incarnation == peer.incarnation)
}

pub(crate) fn period(from: &Sender<'_>, message: &Period) -> Verdict {
    worker(from, message)?;
    from.holds(|peer| message.report.node == peer.node)
}

pub(crate) fn cluster_alive(from: &Sender<'_>, message: &ClusterAlive) -> Verdict {
    worker(from, message)?;
    from.holds(|peer| message.node == peer.node && message.incarnation == peer.incarnation)
}

pub(crate) fn cluster_joined(from: &Sender<'_>, message: &ClusterJoined) -> Verdict {
    worker(from, message)?;
    from.holds(|peer| message.cluster == peer.cluster)
}

pub(crate) fn cluster_period(from: &Sender<'_>, message: &ClusterPeriod) -> Verdict {
    worker(from, message)?;
    from.holds(|peer| message.cluster == peer.cluster)
}

#[cfg(test)]
mod tests {
    use springtide_runtime::id::{Incarnation, Peer};
    use springtide_runtime::net::{Address, Contact};

    use super::*;
    use crate::hardware::Hardware;
    use crate::job::JobParams;

    fn contact(node: &str, cluster: &str) -> Contact {
        let address = Address::Socket(([127, 0, 0, 1], 47000).into());
        Contact { node: node.into(), cluster: cluster.into(), address }
    }

    fn life(incarnation: u64) -> Peer {
        Peer { node: "ams-1".into(), cluster: "ams".into(), incarnation: Incarnation(incarnation) }
    }

    const ALL: [Option<Role>; 5] =
        [Some(Role::Head), Some(Role::Node), Some(Role::Client), Some(Role::Other), None];

    /// Which of the roles above a verdict admits.
    fn admitted(verdict: impl Fn(&Sender<'_>) -> Verdict) -> [bool; 5] {
        let peer = life(5);
        ALL.map(|role| match verdict(&Sender { peer: &peer, role }) {
            Ok(()) => true,
            Err(why) => {
                assert_eq!(why, Refusal::Role);
                false
            }
        })
    }

    #[test]
    fn each_role_may_what_the_table_says() {
        assert_eq!(admitted(|from| head(from, &())), [true, false, false, false, true]);
        assert_eq!(admitted(|from| client(from, &())), [true, false, true, false, true]);
        assert_eq!(admitted(|from| worker(from, &())), [true, true, false, false, true]);
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
        assert_eq!(admitted(|from| register(from, &own)), [false, true, false, false, true]);
        let peer = life(5);
        let from = Sender { peer: &peer, role: Some(Role::Node) };
        for (node, cluster, life) in [("ams-2", "ams", 5), ("ams-1", "del", 5), ("ams-1", "ams", 6)]
        {
            let told = register(&from, &register_of(node, cluster, life));
            assert_eq!(told, Err(Refusal::Identity), "{node} {cluster} {life}");
        }
        let drain_of = |nodes: &[&str], life: Option<u64>| Drain {
            nodes: nodes.iter().map(|&node| node.into()).collect(),
            reason: "told to end".into(),
            deadline_ms: None,
            life: life.map(Incarnation),
        };
        let own = drain_of(&["ams-1"], Some(5));
        assert_eq!(admitted(|from| drain(from, &own)), [true, true, true, false, true]);
        let two = drain_of(&["ams-1", "ams-2"], Some(5));
        for other in
            [two, drain_of(&["ams-2"], Some(5)), drain_of(&["ams-1"], None), drain_of(&[], Some(5))]
        {
            assert_eq!(drain(&from, &other), Err(Refusal::Identity), "{other:?}");
        }
        let submit_of = |client| Submit {
            name: "fib".into(),
            body: vec![1].into(),
            fingerprint: 7,
            params: JobParams::default(),
            clusters: None,
            client: contact(client, "ams"),
            program: None,
            need: None,
        };
        let own = submit_of("ams-1");
        assert_eq!(admitted(|from| submit(from, &own)), [true, false, true, false, true]);
        let from = Sender { peer: &peer, role: Some(Role::Client) };
        assert_eq!(submit(&from, &submit_of("client-7")), Err(Refusal::Identity));
    }
}
