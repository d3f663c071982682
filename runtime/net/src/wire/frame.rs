//! A frame: a header of eight bytes and a payload.
//!
//! Header, little endian: payload length `u32`, kind `u16`, wire version `u8`, flags `u8`. This
//! module knows neither the meaning nor the encoding of payloads.

use bytes::Bytes;

use super::kind::{INLINE_MAX, Kind};

/// The first wire version.
///
/// Frames carry it before two sides agree on a version: hello, welcome, refusal and the frames of
/// the join protocol. This never changes. Frames of a link carry the version that hello and welcome
/// agreed on.
pub const WIRE_VERSION: u8 = 1;

/// Bytes of a frame's header.
pub const HEADER_LEN: usize = 8;

/// Largest payload of one frame on a stream, in bytes. It bounds the memory that a receiver needs
/// for one unfinished frame.
///
/// The cap of a kind may be larger: a longer payload then travels as a bulk transfer. It may be
/// smaller: the smaller cap then applies.
pub const FRAME_MAX: usize = 64 << 10;

const _: () = assert!(INLINE_MAX <= FRAME_MAX, "an inline payload must fit one frame");

/// A message in transit: its kind and its encoded payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Kind of the message.
    pub kind: Kind,
    /// The encoded payload, without header.
    pub body: Bytes,
    /// The whole payload of a bulk transfer, of which this chunk is a part. It does not travel:
    /// only a receiver in the same process sees it, and need not put the chunks together.
    pub(crate) whole: Option<Bytes>,
}

impl Frame {
    /// A frame with this kind and payload.
    pub fn new(kind: Kind, body: impl Into<Bytes>) -> Self {
        Self { kind, body: body.into(), whole: None }
    }

    /// The header of the frame, before the sides have agreed on a version.
    pub fn header(&self) -> [u8; HEADER_LEN] {
        self.header_version(WIRE_VERSION)
    }

    /// The header of the frame on a link with this wire version.
    pub fn header_version(&self, version: u8) -> [u8; HEADER_LEN] {
        Header { len: self.body.len(), kind: self.kind }.encode_version(version)
    }

    /// Bytes on the stream, with the header.
    pub fn wire_len(&self) -> usize {
        HEADER_LEN + self.body.len()
    }
}

/// The checked header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The payload's length in bytes.
    pub len: usize,
    /// Kind of the payload.
    pub kind: Kind,
}

/// The reason why a header is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// This build does not know the kind. The stream stays in step: skip `len` bytes, count the
    /// frame and continue.
    #[error("unknown message kind {} of {len} bytes", .kind.0)]
    UnknownKind {
        /// Number of the kind.
        kind: Kind,
        /// The payload's length, at most [`FRAME_MAX`].
        len: usize,
    },
    /// The announced length is over the cap of the kind, or of any frame. The connection must be
    /// closed.
    #[error("a {kind:?} frame of {len} bytes is over the cap of {cap} bytes")]
    TooLong {
        /// Kind of the frame.
        kind: Kind,
        /// The announced length.
        len: usize,
        /// The cap in bytes.
        cap: usize,
    },
    /// The wire version is not the one that the hello agreed on. The connection must be closed.
    #[error("wire version {found} where {agreed} was agreed on")]
    Version {
        /// The version in the header.
        found: u8,
        /// The agreed version.
        agreed: u8,
    },
    /// A flag is set, although this version defines none. The connection must be closed.
    #[error("undefined flags {found:#04x}")]
    Flags {
        /// The flags in the header.
        found: u8,
    },
}

impl Header {
    /// Parses and checks a header, before the sides have agreed on a version.
    ///
    /// # Errors
    /// [`HeaderError`]. After `UnknownKind` the stream can continue, after the others it cannot.
    pub fn parse(bytes: &[u8; HEADER_LEN]) -> Result<Self, HeaderError> {
        Self::parse_version(WIRE_VERSION, bytes)
    }

    /// Parses and checks a header on a link with this wire version.
    ///
    /// # Errors
    /// As [`Header::parse`].
    pub fn parse_version(agreed: u8, bytes: &[u8; HEADER_LEN]) -> Result<Self, HeaderError> {
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

    /// The bytes of the header, before the sides have agreed on a version.
    pub fn encode(self) -> [u8; HEADER_LEN] {
        self.encode_version(WIRE_VERSION)
    }

    /// The bytes of the header on a link with this wire version.
    pub fn encode_version(self, version: u8) -> [u8; HEADER_LEN] {
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
        assert!(Header::parse_version(2, &[0, 0, 0, 0, 1, 0, 2, 0]).is_ok());
        assert_eq!(
            Header::parse_version(2, &[0, 0, 0, 0, 1, 0, 1, 0]),
            Err(HeaderError::Version { found: 1, agreed: 2 })
        );
        assert_eq!(Header::parse(&[0, 0, 0, 0, 1, 0, 1, 8]), Err(HeaderError::Flags { found: 8 }));
    }

    proptest! {
        #[test]
        fn parsed_headers_encode_to_the_same_bytes(bytes: [u8; HEADER_LEN]) {
            if let Ok(header) = Header::parse(&bytes) {
                prop_assert_eq!(header.encode(), bytes);
                prop_assert!(header.len <= FRAME_MAX);
            }
        }
    }
}
