//! Parses frames from a stream of bytes in chunks of any size.
//!
//! This module does not know streams. It returns copies, because a slice would keep the whole
//! receive buffer alive. Small frames that arrive together share one copy of at most
//! [`SHARED_COPY_MAX`].

use bytes::{Bytes, BytesMut};

use crate::wire::{FRAME_MAX, Frame, HEADER_LEN, Header, HeaderError};

/// Maximum number of bytes in one shared copy, and thus the memory that a kept frame retains. One
/// allocation per small frame would cost a tenth of a busy stream's time.
const SHARED_COPY_MAX: usize = 4 << 10;

/// A parser of the frames of one stream.
pub(super) struct FrameReader {
    /// Wire version of the link.
    version: u8,
    /// An incomplete frame.
    partial: BytesMut,
    /// Remaining bytes of a frame of unknown kind, to be skipped.
    skip: usize,
}

/// Counts of the frames in a chunk of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FrameCounts {
    /// Frames of known kinds.
    pub frames: u64,
    /// Payload bytes of these frames.
    pub bytes: u64,
    /// Skipped frames of unknown kinds.
    pub unknown: u64,
}

impl FrameReader {
    pub fn new(version: u8) -> Self {
        Self { version, partial: BytesMut::new(), skip: 0 }
    }

    /// Consumes the next bytes of the stream and passes every completed frame to `sink`, until that
    /// returns false.
    ///
    /// # Errors
    /// An invalid header, after which the stream cannot continue.
    pub fn feed(
        &mut self,
        mut data: &[u8],
        mut sink: impl FnMut(Frame) -> bool,
    ) -> Result<FrameCounts, HeaderError> {
        let mut read = FrameCounts::default();
        // A copy of the rest of `data`, shared by several frames in it.
        let mut shared = Bytes::new();
        loop {
            if self.skip > 0 {
                let skipped = self.skip.min(data.len());
                data = &data[skipped..];
                self.skip -= skipped;
                if self.skip > 0 {
                    return Ok(read);
                }
            }
            if !self.partial.is_empty() {
                // First complete the header, then the announced payload.
                if !self.grow(&mut data, HEADER_LEN) {
                    return Ok(read);
                }
                let header = self.partial.first_chunk().expect("it has grown to a header");
                let header = match Header::parse_version(self.version, header) {
                    Ok(header) => header,
                    Err(error) => {
                        self.partial.clear();
                        self.skip_unknown(error, &mut read)?;
                        continue;
                    }
                };
                if !self.grow(&mut data, HEADER_LEN + header.len) {
                    return Ok(read);
                }
                let body = Bytes::copy_from_slice(&self.partial[HEADER_LEN..]);
                self.partial.clear();
                if !deliver(Frame::new(header.kind, body), &mut read, &mut sink) {
                    return Ok(read);
                }
            }
            let Some((header, rest)) = data.split_first_chunk::<HEADER_LEN>() else {
                self.partial.extend_from_slice(data);
                return Ok(read);
            };
            match Header::parse_version(self.version, header) {
                Ok(Header { len, kind }) if rest.len() >= len => {
                    let (body, rest) = rest.split_at(len);
                    if shared.is_empty() && !rest.is_empty() && data.len() <= SHARED_COPY_MAX {
                        shared = Bytes::copy_from_slice(data);
                    }
                    data = rest;
                    let body = if shared.is_empty() || len == 0 {
                        Bytes::copy_from_slice(body)
                    } else {
                        let end = shared.len() - rest.len();
                        shared.slice(end - len..end)
                    };
                    let frame = Frame::new(kind, body);
                    if !deliver(frame, &mut read, &mut sink) {
                        return Ok(read);
                    }
                }
                Ok(_) => {
                    self.partial.extend_from_slice(data);
                    return Ok(read);
                }
                Err(error) => {
                    data = rest;
                    self.skip_unknown(error, &mut read)?;
                }
            }
        }
    }

    /// Whether the stream may end at this position.
    pub fn is_between_frames(&self) -> bool {
        self.partial.is_empty() && self.skip == 0
    }

    /// Extends the partial frame to at most `len` bytes. Returns whether it has that length.
    fn grow(&mut self, data: &mut &[u8], len: usize) -> bool {
        debug_assert!(len <= HEADER_LEN + FRAME_MAX);
        let missing = len.saturating_sub(self.partial.len()).min(data.len());
        let (more, rest) = data.split_at(missing);
        self.partial.extend_from_slice(more);
        *data = rest;
        self.partial.len() >= len
    }

    fn skip_unknown(
        &mut self,
        error: HeaderError,
        read: &mut FrameCounts,
    ) -> Result<(), HeaderError> {
        let HeaderError::UnknownKind { len, .. } = error else { return Err(error) };
        self.skip = len;
        read.unknown += 1;
        Ok(())
    }
}

fn deliver(frame: Frame, read: &mut FrameCounts, sink: &mut impl FnMut(Frame) -> bool) -> bool {
    read.frames += 1;
    read.bytes += frame.body.len() as u64;
    sink(frame)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::{self, Kind};

    fn stream(frames: &[Frame]) -> Vec<u8> {
        frames.iter().flat_map(|f| [&f.header()[..], &f.body[..]].concat()).collect()
    }

    fn frame() -> impl Strategy<Value = Frame> {
        // One of four kinds is unknown.
        let kind = prop::sample::select(vec![Kind::TELL, Kind::CALL, Kind::TASK_RESULT, Kind(999)]);
        let len = prop_oneof![0..40usize, 0..4000usize];
        (kind, len, any::<u8>()).prop_map(|(kind, len, fill)| Frame::new(kind, vec![fill; len]))
    }

    proptest! {
        #[test]
        fn frames_are_parsed_from_chunks_of_any_size(
            frames in prop::collection::vec(frame(), 0..12),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
        ) {
            let bytes = stream(&frames);
            let mut cuts: Vec<usize> = cuts.iter().map(|c| c.index(bytes.len() + 1)).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let mut reader = FrameReader::new(wire::WIRE_VERSION);
            let mut got = Vec::new();
            let mut sum = FrameCounts::default();
            for pair in cuts.windows(2) {
                let read = reader.feed(&bytes[pair[0]..pair[1]], |frame| {
                    got.push(frame);
                    true
                });
                let read = read.unwrap();
                sum.frames += read.frames;
                sum.bytes += read.bytes;
                sum.unknown += read.unknown;
            }
            let (unknown, known): (Vec<_>, Vec<_>) =
                frames.into_iter().partition(|f| f.kind.info().is_none());
            prop_assert_eq!(sum.frames, known.len() as u64);
            prop_assert_eq!(sum.bytes, known.iter().map(|f| f.body.len() as u64).sum::<u64>());
            prop_assert_eq!(sum.unknown, unknown.len() as u64);
            prop_assert_eq!(got, known);
            prop_assert!(reader.is_between_frames());
        }

        #[test]
        fn arbitrary_bytes_never_panic(
            parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 0..8)
        ) {
            let mut reader = FrameReader::new(wire::WIRE_VERSION);
            for part in parts {
                if reader.feed(&part, |_| true).is_err() {
                    break;
                }
            }
        }
    }
}
