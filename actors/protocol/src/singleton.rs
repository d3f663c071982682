//! Messages about singletons: users' actors that exist once in a grid. Data only.
//!
//! The head decides on which node a singleton is, and each new instance gets a higher generation.
//! Its published name contains the generation, so that no message reaches another instance than the
//! one that its sender knows.

use serde::{Deserialize, Serialize};
use springtide_base::id::NodeId;
use springtide_net::net::Contact;
use springtide_remote::remote_message;

/// To the head's directory of singletons: queries where the current instance is. If there is none,
/// the directory creates one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FindSingleton {
    /// Name of the singleton.
    pub name: String,
    /// Fingerprint of the program that has it.
    pub fingerprint: u64,
    /// Generation of an instance that does not answer the sender any longer. The directory checks
    /// whether it has ended.
    pub silent: Option<u64>,
}

/// An instance of a singleton.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SingletonPlace {
    /// Name and address of its node.
    pub contact: Contact,
    /// Generation of the instance. A later instance has a higher one, and a new state.
    pub generation: u64,
}

/// Why a singleton is not found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum FindSingletonError {
    /// No registered node runs a program with this singleton.
    #[error(
        "no registered node runs a program with the singleton `{name}`: add it to the call of \
         springtide::node, and wait until a node has started"
    )]
    NoNode {
        /// Name of the singleton.
        name: String,
    },
    /// Its node does not answer. It is either slow, or will be declared lost.
    #[error("the singleton `{name}` may exist on {node}, which does not answer: {reason}")]
    Silent {
        /// Name of the singleton.
        name: String,
        /// Its node.
        node: NodeId,
        /// Error of the call.
        reason: String,
    },
    /// Its instances keep ending, for example by panics.
    #[error(
        "the singleton `{name}` ends too often and is not created again: see the logs of nodes"
    )]
    EndsTooOften {
        /// Name of the singleton.
        name: String,
    },
    /// The head knows too many singletons.
    #[error("the head knows {0} singletons, which is the limit")]
    TooMany(usize),
}

/// To a node's host of singletons, by the head: create an instance. It replaces an earlier one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateSingleton {
    /// Name of the singleton.
    pub name: String,
    /// Fingerprint of the program that has it.
    pub fingerprint: u64,
    /// Generation of the instance.
    pub generation: u64,
}

/// To a node's host of singletons, by the head: queries the generation of the instance there, if it
/// has not ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GetSingleton {
    /// Name of the singleton.
    pub name: String,
    /// Fingerprint of the program that has it.
    pub fingerprint: u64,
}

remote_message! {
    "find-singleton" => FindSingleton -> Result<SingletonPlace, FindSingletonError>;
    "create-singleton" => CreateSingleton -> bool;
    "get-singleton" => GetSingleton -> Option<u64>;
}
