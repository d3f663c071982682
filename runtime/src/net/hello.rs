//! The first frames of a link: hello, then welcome or refuse; and the goodbye that ends it.
//!
//! Knows names and versions; must not know streams, TLS or what a link is used for. Messages are named maps, so that
//! versions can add fields.

use serde::{Deserialize, Serialize};

use super::Address;
use super::tls::NodeName;
use super::transport::RefuseReason;
use crate::id::{ClusterId, Incarnation, NodeId, Peer};

/// Oldest protocol version that this build speaks. Versions are the minors of ALPN `springtide/1`.
pub const PROTOCOL_MIN: u16 = 1;
/// Newest protocol version that this build speaks.
pub const PROTOCOL_MAX: u16 = 1;

const _: () = assert!(PROTOCOL_MIN <= PROTOCOL_MAX);

/// The connecting side presents itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub protocol_min: u16,
    pub protocol_max: u16,
    pub grid: String,
    pub node: NodeId,
    pub incarnation: Incarnation,
    pub cluster: ClusterId,
    /// Where the sender is reached, so that the other side can open a link too.
    #[serde(default)]
    pub address: Option<Address>,
    /// Counts the sender's attempts to reach this peer in this life: what is at or below one that was settled is stale.
    pub dial: u64,
}

/// The accepting side takes the link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Welcome {
    /// The version both speak from here on.
    pub protocol: u16,
    pub node: NodeId,
    pub incarnation: Incarnation,
    pub cluster: ClusterId,
    /// The sender's own attempts so far to reach the other side: all of them are void.
    pub dials: u64,
}

/// The accepting side does not take the link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Refuse {
    pub reason: RefuseReason,
    /// For people.
    pub detail: String,
}

/// The sender closes on purpose: nothing follows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Goodbye {
    pub reason: String,
}

/// What this side holds a hello against.
pub(crate) struct Expected<'a> {
    pub grid: &'a str,
    pub me: &'a Peer,
    /// Whom the peer's certificate names.
    pub certificate: &'a NodeName,
}

impl Hello {
    /// The version to speak, or why the link is refused. Whether the life is a stale one is judged elsewhere.
    pub fn check(&self, expected: &Expected<'_>) -> Result<u16, Refuse> {
        let refuse = |reason, detail| Err(Refuse { reason, detail });
        if self.protocol_max < PROTOCOL_MIN || self.protocol_min > PROTOCOL_MAX {
            return refuse(
                RefuseReason::Protocol,
                format!(
                    "{} speaks protocol {} to {}, {} speaks {PROTOCOL_MIN} to {PROTOCOL_MAX}: bring both to one version",
                    self.node, self.protocol_min, self.protocol_max, expected.me.node
                ),
            );
        }
        if self.grid != expected.grid {
            return refuse(
                RefuseReason::Grid,
                format!(
                    "{} is of grid {:?}, {} of {:?}",
                    self.node, self.grid, expected.me.node, expected.grid
                ),
            );
        }
        let certificate = expected.certificate;
        if self.node != certificate.node || self.cluster != certificate.cluster {
            return refuse(
                RefuseReason::Identity,
                format!(
                    "the hello says {}/{}, the certificate {certificate}",
                    self.cluster, self.node
                ),
            );
        }
        if self.node == expected.me.node {
            return refuse(
                RefuseReason::Identity,
                format!("{} is this node's own name: two nodes of a grid must differ", self.node),
            );
        }
        Ok(self.protocol_max.min(PROTOCOL_MAX))
    }
}

impl Welcome {
    /// Whether the answer is from the node that was called, in a version that this side speaks.
    pub fn check(&self, called: &NodeId, certificate: &NodeName) -> Result<(), Refuse> {
        let refuse = |reason, detail| Err(Refuse { reason, detail });
        if !(PROTOCOL_MIN..=PROTOCOL_MAX).contains(&self.protocol) {
            return refuse(
                RefuseReason::Protocol,
                format!(
                    "{} answers in protocol {}, which was not offered",
                    self.node, self.protocol
                ),
            );
        }
        if self.node != *called
            || certificate.node != *called
            || self.cluster != certificate.cluster
        {
            return refuse(
                RefuseReason::Identity,
                format!(
                    "{called} was called, {}/{} answers under the certificate {certificate}",
                    self.cluster, self.node
                ),
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Kind, decode, fuzz, golden};

    fn hello() -> Hello {
        Hello {
            protocol_min: 1,
            protocol_max: 1,
            grid: "g".into(),
            node: "ams-1".into(),
            incarnation: Incarnation(1_700_000_000_000_000),
            cluster: "ams".into(),
            address: Some(Address::Socket("10.1.2.3:7400".parse().unwrap())),
            dial: 3,
        }
    }

    fn me() -> Peer {
        Peer { node: "lyon-2".into(), incarnation: Incarnation(9), cluster: "lyon".into() }
    }

    fn certificate() -> NodeName {
        NodeName { node: "ams-1".into(), cluster: "ams".into(), role: "node".into() }
    }

    fn judge(hello: &Hello) -> Result<u16, RefuseReason> {
        let expected = Expected { grid: "g", me: &me(), certificate: &certificate() };
        hello.check(&expected).map_err(|refuse| refuse.reason)
    }

    #[test]
    fn golden_bytes() {
        let dir = env!("CARGO_MANIFEST_DIR");
        golden::check(dir, Kind::HELLO, "socket", &hello());
        let via = Some(Address::Via("gate-1".into()));
        golden::check(dir, Kind::HELLO, "via", &Hello { address: via, ..hello() });
        let welcome = Welcome {
            protocol: 1,
            node: "lyon-2".into(),
            incarnation: Incarnation(9),
            cluster: "lyon".into(),
            dials: 2,
        };
        golden::check(dir, Kind::WELCOME, "plain", &welcome);
        let refuse =
            Refuse { reason: RefuseReason::StaleIncarnation, detail: "a later life".into() };
        golden::check(dir, Kind::REFUSE, "stale", &refuse);
        golden::check(dir, Kind::GOODBYE, "plain", &Goodbye { reason: "shutting down".into() });
    }

    #[test]
    fn mutated_frames_are_values_or_typed_errors() {
        let decoders: [fuzz::Decoder; 4] = [
            (Kind::HELLO, |bytes| decode::<Hello>(Kind::HELLO, bytes).is_ok()),
            (Kind::WELCOME, |bytes| decode::<Welcome>(Kind::WELCOME, bytes).is_ok()),
            (Kind::REFUSE, |bytes| decode::<Refuse>(Kind::REFUSE, bytes).is_ok()),
            (Kind::GOODBYE, |bytes| decode::<Goodbye>(Kind::GOODBYE, bytes).is_ok()),
        ];
        let tally = fuzz::run(&golden::corpus(env!("CARGO_MANIFEST_DIR")), &decoders, 1);
        println!("{tally:?}");
        assert!(tally.accepted > 0 && tally.refused > 0 && tally.bad_header > 0, "{tally:?}");
        assert_eq!(tally.accepted + tally.refused + tally.bad_header, tally.frames);
    }

    #[test]
    fn each_mismatch_has_its_reason() {
        assert_eq!(judge(&hello()), Ok(1));
        let newer = Hello { protocol_min: 1, protocol_max: 7, ..hello() };
        assert_eq!(judge(&newer), Ok(1), "both speak 1");
        let later =
            Hello { protocol_min: PROTOCOL_MAX + 1, protocol_max: PROTOCOL_MAX + 2, ..hello() };
        assert_eq!(judge(&later), Err(RefuseReason::Protocol));
        let older = Hello { protocol_min: 0, protocol_max: 0, ..hello() };
        assert_eq!(judge(&older), Err(RefuseReason::Protocol));
        assert_eq!(judge(&Hello { grid: "h".into(), ..hello() }), Err(RefuseReason::Grid));
        assert_eq!(judge(&Hello { node: "ams-2".into(), ..hello() }), Err(RefuseReason::Identity));
        assert_eq!(
            judge(&Hello { cluster: "lyon".into(), ..hello() }),
            Err(RefuseReason::Identity)
        );
    }

    #[test]
    fn a_second_node_of_ones_own_name_is_refused() {
        let twin = NodeName { node: "lyon-2".into(), cluster: "lyon".into(), role: "node".into() };
        let hello = Hello { node: "lyon-2".into(), cluster: "lyon".into(), ..hello() };
        let expected = Expected { grid: "g", me: &me(), certificate: &twin };
        assert_eq!(hello.check(&expected).unwrap_err().reason, RefuseReason::Identity);
    }

    #[test]
    fn a_reason_from_a_newer_version_is_still_a_reason() {
        #[derive(Serialize)]
        struct Later<'a> {
            reason: &'a str,
            detail: &'a str,
            new: u8,
        }
        let later = Later { reason: "moon-phase", detail: "full", new: 1 };
        let bytes = crate::wire::encode(Kind::REFUSE, &later).unwrap();
        let refuse: Refuse = crate::wire::decode(Kind::REFUSE, &bytes).unwrap();
        assert_eq!(refuse, Refuse { reason: RefuseReason::Other, detail: "full".into() });
    }
}
