//! Messages to probers, which measure the paths between processes. Data only.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use springtide_base::id::NodeId;
use springtide_net::net::{Buffers, Contact};
use springtide_remote::remote_message;

/// To a prober: requests an empty reply.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Ping {}

/// To a prober: carries bytes. It replies when all have arrived.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BandwidthSample {
    /// Contents without a meaning.
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
}

/// To a prober: requests bytes, for the bandwidth of the other direction.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct FetchSample {
    /// Number of bytes. It replies with at most [`SAMPLE_MAX`].
    pub bytes: u32,
}

/// The most bytes of a reply to [`FetchSample`].
pub const SAMPLE_MAX: u32 = 2 << 20;

/// To a prober: measures the paths to these nodes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CheckPaths {
    /// Nodes with their addresses.
    pub contacts: Vec<Contact>,
}

/// Paths of one node to others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paths {
    /// Buffers of its socket.
    pub buffers: Option<Buffers>,
    /// Path to each node.
    pub paths: BTreeMap<NodeId, PathMeasurement>,
}

/// The path to a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathMeasurement {
    /// Shortest round trip of a call in microseconds; absent if unreachable.
    pub round_trip_us: Option<u64>,
    /// Largest packet that arrived, in bytes of UDP payload.
    pub mtu: Option<u16>,
    /// Whether it was reached only through another node, which a job's relays permit.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub relayed: bool,
    /// Why it is unreachable.
    pub error: Option<String>,
}

remote_message! {
    "ping" => Ping;
    "weight" => BandwidthSample;
    "fetch-sample" => FetchSample -> BandwidthSample;
    "check-paths" => CheckPaths -> Paths;
}
