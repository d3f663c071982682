//! Frames out of a stream's bytes, however they are cut.
//!
//! Must not know streams. What it hands out are copies: a slice of the received buffer would keep all of that alive for as
//! long as somebody keeps the frame. Small frames that came together share one copy, of at most [`SHARED_COPY_MAX`].

use bytes::{Bytes, BytesMut};

use crate::wire::{FRAME_MAX, Frame, HEADER_LEN, Header, HeaderError};

/// Most bytes of received frames that one copy holds, and so that a kept frame keeps alive: an allocation for each small
/// frame of a busy stream cost a tenth of the whole.
const SHARED_COPY_MAX: usize = 4 << 10;

pub(super) struct FrameReader {
    /// The link's wire version.
    version: u8,
    /// The beginning of a frame whose rest has not come.
    partial: BytesMut,
    /// Bytes of a frame of unknown kind that are still to be skipped.
    skip: usize,
}

/// What a stretch of bytes held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Read {
    pub frames: u64,
    /// Their payload bytes.
    pub bytes: u64,
    /// Frames of unknown kinds that were skipped.
    pub unknown: u64,
}

impl FrameReader {
    pub fn new(version: u8) -> Self {
        Self { version, partial: BytesMut::new(), skip: 0 }
    }

    /// Takes the next bytes of the stream and hands out every frame they complete, until `sink` returns false.
    ///
    /// # Errors
    /// A header after which the stream cannot go on; it is out of step for good.
    pub fn feed(
        &mut self,
        mut data: &[u8],
        mut sink: impl FnMut(Frame) -> bool,
    ) -> Result<Read, HeaderError> {
        let mut read = Read::default();
        // A copy of what is left of `data`, made for the first of several frames in it.
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
                // Complete the header first, then what it announces.
                if !self.grow(&mut data, HEADER_LEN) {
                    return Ok(read);
                }
                let header = self.partial.first_chunk().expect("it has grown to a header");
                let header = match Header::parse_in(self.version, header) {
                    Ok(header) => header,
                    Err(error) => {
                        self.partial.clear();
                        self.unknown(error, &mut read)?;
                        continue;
                    }
                };
                if !self.grow(&mut data, HEADER_LEN + header.len) {
                    return Ok(read);
                }
                let body = Bytes::copy_from_slice(&self.partial[HEADER_LEN..]);
                self.partial.clear();
                if !hand_out(Frame { kind: header.kind, body }, &mut read, &mut sink) {
                    return Ok(read);
                }
            }
            let Some((header, rest)) = data.split_first_chunk::<HEADER_LEN>() else {
                self.partial.extend_from_slice(data);
                return Ok(read);
            };
            match Header::parse_in(self.version, header) {
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
                    let frame = Frame { kind, body };
                    if !hand_out(frame, &mut read, &mut sink) {
                        return Ok(read);
                    }
                }
                Ok(_) => {
                    self.partial.extend_from_slice(data);
                    return Ok(read);
                }
                Err(error) => {
                    data = rest;
                    self.unknown(error, &mut read)?;
                }
            }
        }
    }

    /// Whether the stream may end here.
    pub fn is_between_frames(&self) -> bool {
        self.partial.is_empty() && self.skip == 0
    }

    /// Adds to the partial frame up to `len` bytes in all. Whether it got there.
    fn grow(&mut self, data: &mut &[u8], len: usize) -> bool {
        debug_assert!(len <= HEADER_LEN + FRAME_MAX);
        let missing = len.saturating_sub(self.partial.len()).min(data.len());
        let (more, rest) = data.split_at(missing);
        self.partial.extend_from_slice(more);
        *data = rest;
        self.partial.len() >= len
    }

    fn unknown(&mut self, error: HeaderError, read: &mut Read) -> Result<(), HeaderError> {
        let HeaderError::UnknownKind { len, .. } = error else { return Err(error) };
        self.skip = len;
        read.unknown += 1;
        Ok(())
    }
}

fn hand_out(frame: Frame, read: &mut Read, sink: &mut impl FnMut(Frame) -> bool) -> bool {
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
        // One kind in four is unknown.
        let kind = prop::sample::select(vec![Kind::TELL, Kind::CALL, Kind::TASK_RESULT, Kind(999)]);
        let len = prop_oneof![0..40usize, 0..4000usize];
        (kind, len, any::<u8>()).prop_map(|(kind, len, fill)| Frame::new(kind, vec![fill; len]))
    }

    proptest! {
        #[test]
        fn frames_survive_every_cut(
            frames in prop::collection::vec(frame(), 0..12),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
        ) {
            let bytes = stream(&frames);
            let mut cuts: Vec<usize> = cuts.iter().map(|c| c.index(bytes.len() + 1)).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let mut reader = FrameReader::new(wire::WIRE_VERSION);
            let mut got = Vec::new();
            let mut sum = Read::default();
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
        fn any_bytes_are_read_without_a_panic(parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 0..8)) {
            let mut reader = FrameReader::new(wire::WIRE_VERSION);
            for part in parts {
                if reader.feed(&part, |_| true).is_err() {
                    break;
                }
            }
        }
    }
}
