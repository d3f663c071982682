//! The first frames of a link (hello, then welcome or refuse) and the goodbye that ends it.
//!
//! It knows names and versions, but not streams, TLS or the purpose of a link. Messages are named
//! maps, so that versions can add fields.
//!
//! The major version is part of the protocol's name in the handshake (`springtide/1`); different
//! major versions share no grid. Hello and welcome agree on the minor version: the highest that
//! both sides speak. It is also the wire version in the header of every later frame of the link. A
//! sender thus knows the encoding that the other side expects for compact messages
//! ([`LinkStats::protocol`](super::LinkStats::protocol)).

use serde::{Deserialize, Serialize};

use super::Address;
use super::tls::NodeName;
use super::transport::RefuseReason;
use crate::id::{ClusterId, Incarnation, NodeId, Peer};

/// The major version, which ALPN `springtide/1` ends with.
const MAJOR: u16 = 1;
/// Oldest minor version that this build speaks.
const PROTOCOL_MIN: u16 = 1;
/// Newest minor version that this build speaks.
const PROTOCOL_MAX: u16 = 1;

const _: () = assert!(PROTOCOL_MIN <= PROTOCOL_MAX && PROTOCOL_MAX <= u8::MAX as u16);

/// A range of minor protocol versions, from `min` to `max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protocols {
    /// Oldest version that is spoken.
    pub min: u16,
    /// Newest version that is spoken, at most 255.
    pub max: u16,
}

impl Default for Protocols {
    /// The versions that this build speaks.
    fn default() -> Self {
        Self { min: PROTOCOL_MIN, max: PROTOCOL_MAX }
    }
}

impl Protocols {
    /// The highest version that both sides speak, if there is one.
    pub fn common(self, other: Self) -> Option<u16> {
        let highest = self.max.min(other.max);
        (highest >= self.min.max(other.min)).then_some(highest)
    }
}

impl std::fmt::Display for Protocols {
    /// Formats the range with this build's major version: `1.2`, or `1.2 to 1.3`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { min, max } = self;
        write!(f, "{MAJOR}.{min}")?;
        if max != min { write!(f, " to {MAJOR}.{max}") } else { Ok(()) }
    }
}

/// The wire version of a link's frames after hello and welcome.
pub(super) fn wire_version(protocol: u16) -> u8 {
    u8::try_from(protocol).unwrap_or(u8::MAX)
}

/// The text that each side sends if they have no common major version (see
/// [`super::tls::VERSIONS_ALPN`]). It never changes, because future versions must understand it.
pub(crate) fn version_text(me: &NodeId, protocols: Protocols) -> String {
    format!("{me} speaks springtide protocol {protocols}")
}

/// Describes a version mismatch to users.
pub(crate) fn version_mismatch(theirs: &str, mine: &str) -> String {
    format!("{theirs}, {mine}: bring both to one version")
}

/// The first frame of the connecting side: its identity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub protocol_min: u16,
    pub protocol_max: u16,
    pub grid: String,
    pub node: NodeId,
    pub incarnation: Incarnation,
    pub cluster: ClusterId,
    /// Address of the sender, so that the other side can open a link as well.
    #[serde(default)]
    pub address: Option<Address>,
    /// Number of the sender's attempt to reach this peer in this incarnation. Attempts up to a
    /// settled one are stale.
    pub dial: u64,
}

/// The reply of an accepting side that accepts the link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Welcome {
    /// The version that both sides speak from here on.
    pub protocol: u16,
    pub node: NodeId,
    pub incarnation: Incarnation,
    pub cluster: ClusterId,
    /// The number of the sender's own attempts to reach the other side, which are all void.
    pub dials: u64,
}

/// The reply of an accepting side that refuses the link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Refuse {
    pub reason: RefuseReason,
    /// Description of the reason, for users.
    pub detail: String,
    /// The latest known incarnation of the caller, if the caller's is earlier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub known: Option<Incarnation>,
}

impl Refuse {
    pub fn new(reason: RefuseReason, detail: impl Into<String>) -> Self {
        Self { reason, detail: detail.into(), known: None }
    }
}

/// The last frame of a side that closes the link on purpose.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Goodbye {
    pub reason: String,
}

/// The expectations against which a hello is checked.
pub(crate) struct Expected<'a> {
    pub grid: &'a str,
    pub me: &'a Peer,
    /// The name in the peer's certificate.
    pub certificate: &'a NodeName,
    /// The versions that this side speaks.
    pub protocols: Protocols,
}

impl Hello {
    /// Returns the version to speak, or the refusal. Another check decides whether the incarnation
    /// is stale.
    pub fn check(&self, expected: &Expected<'_>) -> Result<u16, Refuse> {
        let refuse = |reason, detail: String| Err(Refuse::new(reason, detail));
        let theirs = Protocols { min: self.protocol_min, max: self.protocol_max };
        let Some(protocol) = expected.protocols.common(theirs) else {
            let mine = version_text(&expected.me.node, expected.protocols);
            let detail = version_mismatch(&version_text(&self.node, theirs), &mine);
            return refuse(RefuseReason::Protocol, detail);
        };
        if self.grid != expected.grid {
            return refuse(
                RefuseReason::Grid,
                format!(
                    "{} belongs to grid {:?}, {} to {:?}",
                    self.node, self.grid, expected.me.node, expected.grid
                ),
            );
        }
        let certificate = expected.certificate;
        if self.node != certificate.node || self.cluster != certificate.cluster {
            return refuse(
                RefuseReason::Identity,
                format!(
                    "the hello names {}/{}, the certificate {certificate}",
                    self.cluster, self.node
                ),
            );
        }
        if self.node == expected.me.node {
            return refuse(
                RefuseReason::Identity,
                format!(
                    "{} is this node's own name: the nodes of a grid need different names",
                    self.node
                ),
            );
        }
        Ok(protocol)
    }
}

impl Welcome {
    /// Checks that the reply is from the called node and in an offered version.
    pub fn check(
        &self,
        called: &NodeId,
        certificate: &NodeName,
        offered: Protocols,
    ) -> Result<(), Refuse> {
        let refuse = |reason, detail: String| Err(Refuse::new(reason, detail));
        if !(offered.min..=offered.max).contains(&self.protocol) {
            return refuse(
                RefuseReason::Protocol,
                format!(
                    "{} answers in protocol {MAJOR}.{}, and was offered {offered}: bring both to \
                     one version",
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
                    "{called} was called, but {}/{} replied under the certificate {certificate}",
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

    fn check(hello: &Hello) -> Result<u16, RefuseReason> {
        let protocols = Protocols::default();
        let expected = Expected { grid: "g", me: &me(), certificate: &certificate(), protocols };
        hello.check(&expected).map_err(|refuse| refuse.reason)
    }

    #[test]
    fn golden_bytes() {
        let dir = env!("CARGO_MANIFEST_DIR");
        golden::check(dir, Kind::HELLO, "socket", &hello());
        let via = Some(Address::Relayed("gate-1".into()));
        golden::check(dir, Kind::HELLO, "via", &Hello { address: via, ..hello() });
        let welcome = Welcome {
            protocol: 1,
            node: "lyon-2".into(),
            incarnation: Incarnation(9),
            cluster: "lyon".into(),
            dials: 2,
        };
        golden::check(dir, Kind::WELCOME, "plain", &welcome);
        let refuse = Refuse::new(RefuseReason::StaleIncarnation, "a later incarnation");
        golden::check(dir, Kind::REFUSE, "stale", &refuse);
        let known = Some(Incarnation(8));
        golden::check(dir, Kind::REFUSE, "stale-known", &Refuse { known, ..refuse });
        golden::check(dir, Kind::GOODBYE, "plain", &Goodbye { reason: "shutting down".into() });
    }

    #[test]
    fn mutated_frames_decode_or_give_typed_errors() {
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
        assert_eq!(check(&hello()), Ok(1));
        let newer = Hello { protocol_min: 1, protocol_max: 7, ..hello() };
        assert_eq!(check(&newer), Ok(1), "both speak 1");
        let later =
            Hello { protocol_min: PROTOCOL_MAX + 1, protocol_max: PROTOCOL_MAX + 2, ..hello() };
        assert_eq!(check(&later), Err(RefuseReason::Protocol));
        let older = Hello { protocol_min: 0, protocol_max: 0, ..hello() };
        assert_eq!(check(&older), Err(RefuseReason::Protocol));
        assert_eq!(check(&Hello { grid: "h".into(), ..hello() }), Err(RefuseReason::Grid));
        assert_eq!(check(&Hello { node: "ams-2".into(), ..hello() }), Err(RefuseReason::Identity));
        assert_eq!(
            check(&Hello { cluster: "lyon".into(), ..hello() }),
            Err(RefuseReason::Identity)
        );
    }

    #[test]
    fn the_highest_common_minor_version_is_used_and_a_mismatch_names_both() {
        let of = |min, max| Protocols { min, max };
        for ((a, b), common) in [
            ((of(1, 1), of(1, 2)), Some(1)),
            ((of(2, 3), of(1, 2)), Some(2)),
            ((of(2, 3), of(2, 4)), Some(3)),
            ((of(1, 1), of(2, 3)), None),
            ((of(1, 2), of(4, 5)), None),
        ] {
            assert_eq!((a.common(b), b.common(a)), (common, common), "{a} {b}");
        }
        let expected = Expected {
            grid: "g",
            me: &me(),
            certificate: &certificate(),
            protocols: Protocols { min: 3, max: 4 },
        };
        let refuse = hello().check(&expected).unwrap_err();
        assert_eq!(refuse.reason, RefuseReason::Protocol);
        assert!(
            refuse.detail.contains("ams-1 speaks springtide protocol 1.1"),
            "{}",
            refuse.detail
        );
        let mine = "lyon-2 speaks springtide protocol 1.3 to 1.4";
        assert!(refuse.detail.contains(mine), "{}", refuse.detail);
        assert_eq!(crate::net::tls::ALPN, format!("springtide/{MAJOR}").as_bytes());
    }

    #[test]
    fn a_reply_in_a_version_that_was_not_offered_is_refused() {
        let answer = |protocol| Welcome {
            protocol,
            node: "ams-1".into(),
            incarnation: Incarnation(1),
            cluster: "ams".into(),
            dials: 0,
        };
        let offered = Protocols { min: 2, max: 3 };
        let check = |protocol| answer(protocol).check(&"ams-1".into(), &certificate(), offered);
        assert_eq!((check(2), check(3)), (Ok(()), Ok(())));
        for other in [1, 4] {
            assert_eq!(check(other).unwrap_err().reason, RefuseReason::Protocol);
        }
    }

    #[test]
    fn another_node_with_the_same_name_is_refused() {
        let twin = NodeName { node: "lyon-2".into(), cluster: "lyon".into(), role: "node".into() };
        let hello = Hello { node: "lyon-2".into(), cluster: "lyon".into(), ..hello() };
        let protocols = Protocols::default();
        let expected = Expected { grid: "g", me: &me(), certificate: &twin, protocols };
        assert_eq!(hello.check(&expected).unwrap_err().reason, RefuseReason::Identity);
    }

    #[test]
    fn an_unknown_reason_of_a_newer_version_is_decoded() {
        #[derive(Serialize)]
        struct FutureRefusal<'a> {
            reason: &'a str,
            detail: &'a str,
            new: u8,
        }
        let later = FutureRefusal { reason: "moon-phase", detail: "full", new: 1 };
        let bytes = crate::wire::encode(Kind::REFUSE, &later).unwrap();
        let refuse: Refuse = crate::wire::decode(Kind::REFUSE, &bytes).unwrap();
        assert_eq!(refuse, Refuse::new(RefuseReason::Other, "full"));
    }
}
