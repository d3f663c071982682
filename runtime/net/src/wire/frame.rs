//! A frame: eight bytes of header and a payload.
//!
//! Header, little endian: payload length `u32`, kind `u16`, wire version `u8`, flags `u8`. Must not know what payloads
//! mean or how they are encoded.

use bytes::Bytes;

use super::kind::{INLINE_MAX, Kind};

/// The wire version of frames before two sides have agreed on one (hello, welcome, refusal, those at the door), for ever; and the first
/// that there was. The frames of a link carry the version that its hello and welcome agreed on.
pub const WIRE_VERSION: u8 = 1;

/// Bytes of a frame's header.
pub const HEADER_LEN: usize = 8;

/// Largest payload of one frame on a stream, in bytes. A kind's own cap may be larger (then a longer payload travels as
/// a bulk transfer) or smaller (then that holds). Bounds what a receiver must hold for one unfinished frame.
pub const FRAME_MAX: usize = 64 << 10;

const _: () = assert!(INLINE_MAX <= FRAME_MAX, "an inline payload must fit one frame");

/// A message on its way: what it is, and its encoded payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// What the payload is.
    pub kind: Kind,
    /// The encoded payload.
    pub body: Bytes,
}

impl Frame {
    /// A frame of this kind and payload.
    pub fn new(kind: Kind, body: impl Into<Bytes>) -> Self {
        Self { kind, body: body.into() }
    }

    /// The header that goes before the payload where no version was agreed on.
    pub fn header(&self) -> [u8; HEADER_LEN] {
        self.header_in(WIRE_VERSION)
    }

    /// The header that goes before the payload on a link of this wire version.
    pub fn header_in(&self, version: u8) -> [u8; HEADER_LEN] {
        Header { len: self.body.len(), kind: self.kind }.encode_in(version)
    }

    /// Bytes on the stream: header and payload.
    pub fn wire_len(&self) -> usize {
        HEADER_LEN + self.body.len()
    }
}

/// A frame's header, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The payload's length in bytes.
    pub len: usize,
    /// What the payload is.
    pub kind: Kind,
}

/// Why a header was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// A kind this build does not know. The stream is still in step: skip `len` bytes, count, go on.
    #[error("unknown message kind {} of {len} bytes", .kind.0)]
    UnknownKind {
        /// Its number.
        kind: Kind,
        /// The payload's length, at most [`FRAME_MAX`].
        len: usize,
    },
    /// The payload is announced longer than its kind, or any frame, may be. The connection must be closed.
    #[error("a {kind:?} frame of {len} bytes is over the cap of {cap} bytes")]
    TooLong {
        /// Which kind.
        kind: Kind,
        /// The announced length.
        len: usize,
        /// What was allowed.
        cap: usize,
    },
    /// Another wire version than the one agreed on in the hello. The connection must be closed.
    #[error("wire version {found} where {agreed} was agreed on")]
    Version {
        /// What the header says.
        found: u8,
        /// What it should say.
        agreed: u8,
    },
    /// A flag is set, and none is defined in this version. The connection must be closed.
    #[error("undefined flags {found:#04x}")]
    Flags {
        /// What the header says.
        found: u8,
    },
}

impl Header {
    /// Reads and checks a header where no version was agreed on.
    ///
    /// # Errors
    /// [`HeaderError`]; after `UnknownKind` the stream can go on, after the others it cannot.
    pub fn parse(bytes: &[u8; HEADER_LEN]) -> Result<Self, HeaderError> {
        Self::parse_in(WIRE_VERSION, bytes)
    }

    /// The same on a link of this wire version.
    ///
    /// # Errors
    /// As [`Header::parse`].
    pub fn parse_in(agreed: u8, bytes: &[u8; HEADER_LEN]) -> Result<Self, HeaderError> {
        let [l0, l1, l2, l3, k0, k1, version, flags] = *bytes;
        let len = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        let kind = Kind(u16::from_le_bytes([k0, k1]));
        if version != agreed {
            return Err(HeaderError::Version { found: version, agreed });
        }
        if flags != 0 {
            return Err(HeaderError::Flags { found: flags });
        }
        let info = kind.info();
        let cap = info.map_or(FRAME_MAX, |info| info.cap.min(FRAME_MAX));
        if len > cap {
            return Err(HeaderError::TooLong { kind, len, cap });
        }
        match info {
            Some(_) => Ok(Self { len, kind }),
            None => Err(HeaderError::UnknownKind { kind, len }),
        }
    }

    /// The header's bytes where no version was agreed on.
    pub fn encode(self) -> [u8; HEADER_LEN] {
        self.encode_in(WIRE_VERSION)
    }

    /// The same on a link of this wire version.
    pub fn encode_in(self, version: u8) -> [u8; HEADER_LEN] {
        debug_assert!(self.len <= u32::MAX as usize);
        let [l0, l1, l2, l3] = (self.len as u32).to_le_bytes();
        let [k0, k1] = self.kind.0.to_le_bytes();
        [l0, l1, l2, l3, k0, k1, version, 0]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_layout_is_fixed() {
        let header = Header { len: 0x0102, kind: Kind::STEAL_REQUEST };
        assert_eq!(header.encode(), [2, 1, 0, 0, 32, 0, 1, 0]);
        assert_eq!(Header::parse(&[2, 1, 0, 0, 32, 0, 1, 0]), Ok(header));
    }

    #[test]
    fn each_refusal_has_its_own_error() {
        let unknown = Kind(999);
        assert_eq!(
            Header::parse(&[5, 0, 0, 0, 0xe7, 3, 1, 0]),
            Err(HeaderError::UnknownKind { kind: unknown, len: 5 })
        );
        assert_eq!(
            Header::parse(&[1, 0, 1, 0, 0xe7, 3, 1, 0]),
            Err(HeaderError::TooLong { kind: unknown, len: FRAME_MAX + 1, cap: FRAME_MAX })
        );
        let cap = Kind::HELLO.info().unwrap().cap;
        let header = |len: usize| Header { len, kind: Kind::HELLO }.encode();
        assert!(Header::parse(&header(cap)).is_ok());
        assert_eq!(
            Header::parse(&header(cap + 1)),
            Err(HeaderError::TooLong { kind: Kind::HELLO, len: cap + 1, cap })
        );
        assert_eq!(
            Header::parse(&[0, 0, 0, 0, 1, 0, 2, 0]),
            Err(HeaderError::Version { found: 2, agreed: 1 })
        );
        assert!(Header::parse_in(2, &[0, 0, 0, 0, 1, 0, 2, 0]).is_ok());
        assert_eq!(
            Header::parse_in(2, &[0, 0, 0, 0, 1, 0, 1, 0]),
            Err(HeaderError::Version { found: 1, agreed: 2 })
        );
        assert_eq!(Header::parse(&[0, 0, 0, 0, 1, 0, 1, 8]), Err(HeaderError::Flags { found: 8 }));
    }

    proptest! {
        #[test]
        fn whatever_parses_encodes_to_the_same_bytes(bytes: [u8; HEADER_LEN]) {
            if let Ok(header) = Header::parse(&bytes) {
                prop_assert_eq!(header.encode(), bytes);
                prop_assert!(header.len <= FRAME_MAX);
            }
        }
    }
}
