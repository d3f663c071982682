//! What a site is told: by nodes, by the scheduler, and by whoever hosts it.
//!
//! Data only; must not know what the site does about it.

use std::path::PathBuf;
use std::time::Duration;

use actix::Message;
use serde::{Deserialize, Serialize};
use springtide_runtime::id::{ClusterId, Incarnation, NodeId};
use springtide_runtime::net::Contact;
use springtide_runtime::remote_message;

use crate::hardware::Hardware;
use crate::scheduler::Work;

/// To a site (published as [`site_name`](crate::job::site_name)), by a node: I am here. Said again after the link to the
/// site was down.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Register {
    /// Who, and where it is reached.
    pub contact: Contact,
    /// Which life of it.
    pub incarnation: Incarnation,
    /// Its compute threads.
    pub threads: u32,
    /// Fingerprint of its program's registry.
    pub fingerprint: u64,
    /// Its process.
    pub pid: u32,
    /// Its machine.
    #[serde(default)]
    pub hardware: Hardware,
    /// What it works for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work: Option<Work>,
}

/// Why a site does not take a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum RegisterError {
    /// It is none of the site's nodes.
    #[error("site {cluster} has no node {node}: its nodes are {known}")]
    UnknownNode {
        /// The site's cluster.
        cluster: ClusterId,
        /// Who asked.
        node: NodeId,
        /// The nodes it has.
        known: String,
    },
    /// A later life of the node has registered.
    #[error("a later incarnation of node {node} has registered")]
    Stale {
        /// Who asked.
        node: NodeId,
        /// The latest incarnation that the site knows.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        known: Option<Incarnation>,
    },
}

/// To a site, by the scheduler: end these nodes and start them anew.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StartAnew {
    /// Which.
    pub nodes: Vec<NodeId>,
    /// With which program; absent: the one each had.
    pub program: Option<PathBuf>,
    /// Why, for logs.
    pub reason: String,
}

/// To a site that holds processors on demand, by the scheduler: hold one for each of these nodes, which are off, and start them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HoldStubs {
    /// Which.
    pub nodes: Vec<NodeId>,
    /// With which program; absent: the site's own.
    pub program: Option<PathBuf>,
    /// Why, for logs.
    pub reason: String,
}

/// To a site that holds processors on demand, by the scheduler: end these nodes, and give their processors back.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CloseStubs {
    /// Which.
    pub nodes: Vec<NodeId>,
    /// Why, for logs.
    pub reason: String,
}

remote_message! {
    "register" => Register -> Result<(), RegisterError>;
    "start-anew" => StartAnew;
    "hold-stubs" => HoldStubs;
    "close-stubs" => CloseStubs;
}

/// To a site of this process: the scheduler's was lost, and is to be told of everything again.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Announce;

/// To a site of this process: have nothing more to do with the nodes; what outlives a site goes on.
#[derive(Message)]
#[rtype(result = "()")]
pub struct LeaveNodes;

/// To a site of this process: one of its nodes, which joined by itself, is let in no more.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Expelled {
    /// Which.
    pub node: NodeId,
    /// Why.
    pub reason: String,
}

/// To a site of this process: end all nodes. Answered when no process is left.
#[derive(Message)]
#[rtype(result = "()")]
pub struct EndNodes {
    /// How long each gets to end in order.
    pub grace: Duration,
}

/// To a site of this process: its nodes are to leave their jobs, for they will be ended. Answered when each has left, or does not.
#[derive(Message)]
#[rtype(result = "()")]
pub struct LeaveJobs {
    /// How long each gets.
    pub within: Duration,
    /// Why.
    pub reason: String,
}

/// To a site of this process: which nodes are there, or coming?
#[derive(Message)]
#[rtype(result = "Vec<NodeId>")]
pub struct GetHeld;
