//! Messages to a site: from nodes, from the scheduler, and from its host process.
//!
//! Data only.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use actix::Message;
use serde::{Deserialize, Serialize};
use springtide_base::id::{ClusterId, Incarnation, NodeId};
use springtide_net::net::Contact;
use springtide_remote::remote_message;

use crate::hardware::Hardware;
use crate::policy::malleability::HostShare;
use crate::program::ShippedProgram;
use crate::scheduler::NodeWork;

/// Exit code of a node that ended because it exceeded its memory. A site learns the reason from it.
pub const MEMORY_EXIT_CODE: u8 = 7;

/// To a site (published as [`site_name`](crate::job::site_name)), by a node: registers the node.
/// Repeated after the link to the site was down.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Register {
    /// Name and address of the node.
    pub contact: Contact,
    /// Incarnation of the node.
    pub incarnation: Incarnation,
    /// Number of compute threads.
    pub threads: u32,
    /// Fingerprint of its program's registry.
    pub fingerprint: u64,
    /// Number of its process.
    pub pid: u32,
    /// Hardware of its machine.
    #[serde(default)]
    pub hardware: Hardware,
    /// Its current job, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work: Option<NodeWork>,
}

/// Why a site refuses a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum RegisterError {
    /// The site has no such node.
    #[error("site {cluster} has no node {node}: its nodes are {known}")]
    UnknownNode {
        /// Cluster of the site.
        cluster: ClusterId,
        /// The refused node.
        node: NodeId,
        /// Nodes of the site.
        known: String,
    },
    /// A later incarnation of the node has registered.
    #[error("a later incarnation of node {node} has registered")]
    Stale {
        /// The refused node.
        node: NodeId,
        /// Latest incarnation known to the site.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        known: Option<Incarnation>,
    },
}

/// To a site, by the scheduler: end these nodes and restart them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RestartNodes {
    /// Nodes to be restarted.
    pub nodes: Vec<NodeId>,
    /// Program to start; absent: the previous one of each node.
    pub program: Option<PathBuf>,
    /// The program to start instead, if the site is to receive it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shipped: Option<ShippedProgram>,
    /// Reason for the logs.
    pub reason: String,
}

/// To a site with processors on demand, by the scheduler: hold a processor for each of these nodes,
/// which are off, and start them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StartStubs {
    /// Nodes to be started.
    pub nodes: Vec<NodeId>,
    /// Their shares of hosts, where the cluster has hosts.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub shares: BTreeMap<NodeId, HostShare>,
    /// Program to start; absent: the site's own.
    pub program: Option<PathBuf>,
    /// The program to start instead, if the site is to receive it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shipped: Option<ShippedProgram>,
    /// Reason for the logs.
    pub reason: String,
}

/// To a site with processors on demand, by the scheduler: end these nodes, and return their
/// processors.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EndStubs {
    /// Nodes to be ended.
    pub nodes: Vec<NodeId>,
    /// Reason for the logs.
    pub reason: String,
}

remote_message! {
    "register" => Register -> Result<(), RegisterError>;
    "restart-nodes" => RestartNodes;
    "hold-stubs" => StartStubs;
    "close-stubs" => EndStubs;
}

/// To a site of this process: the scheduler was lost; report everything again.
#[derive(Message)]
#[rtype(result = "()")]
pub struct ReportEverything;

/// To a site of this process: release the nodes without ending them, where their provider permits.
#[derive(Message)]
#[rtype(result = "()")]
pub struct LeaveNodes;

/// To a site of this process: one of its nodes, which joined by itself, is excluded.
#[derive(Message)]
#[rtype(result = "()")]
pub struct ExcludeNode {
    /// The node to exclude.
    pub node: NodeId,
    /// Reason for the logs.
    pub reason: String,
}

/// To a site of this process: end all nodes. It replies when no process is left.
#[derive(Message)]
#[rtype(result = "()")]
pub struct EndNodes {
    /// Time for each node to end in order.
    pub grace: Duration,
}

/// To a site of this process: its nodes are to leave their jobs before they are ended. It replies
/// when each has left or failed to.
#[derive(Message)]
#[rtype(result = "()")]
pub struct LeaveJobs {
    /// Time for each node to leave.
    pub timeout: Duration,
    /// Reason for the logs.
    pub reason: String,
}

/// To a site of this process: lists the nodes that exist or are under way.
#[derive(Message)]
#[rtype(result = "Vec<NodeId>")]
pub struct ListNodes;
