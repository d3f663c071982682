//! Numbers that are told again and again and change smoothly: by how far each is beside what both sides expect.
//!
//! Each number is expected where the parabola through its last three values leads (with fewer known: the line, or the last
//! value, or at first the number told before it), and how many representable numbers it is beside that goes in a Golomb-Rice
//! code. Its width follows the mean of those in the same column so far. Lossless; both sides compute alike, by rounded
//! operations of IEEE 754. Smaller siblings of what `delta.rs` does for all bodies at once: nothing but codes travels here, for a frame may be of
//! few numbers. Pure. Must not know what the numbers are.

use std::collections::VecDeque;

use crate::delta::{Reader, Writer, bits, ordered, put_code, take_code, unzigzag, zigzag};

/// Frames that a forecast is made of.
const KNOWN: usize = 3;
/// By this part a value changes its column's mean.
const SLOW: u32 = 4;
/// What values are about expected to be, by how many frames are known; in powers of two.
const FIRST: [u32; KNOWN + 1] = [20, 16, 4, 2];

/// Frames of as many numbers each, in rows of some columns, as one side tells them and the other hears them.
#[derive(Clone, Debug)]
pub(crate) struct Track {
    columns: usize,
    /// Newest first.
    frames: VecDeque<Vec<f32>>,
    /// Of what was told in each column when all frames were known, times 2^[`SLOW`].
    means: Vec<u64>,
}

/// What is told of one frame is no such thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoFrame;

impl Track {
    /// Nothing is told yet; rows have so many columns.
    pub(crate) fn new(columns: usize) -> Self {
        let columns = columns.max(1);
        Self { columns, frames: VecDeque::new(), means: vec![1 << (FIRST[KNOWN] + SLOW); columns] }
    }

    fn begin(&self) -> Means {
        let known = self.frames.len();
        let first = vec![1 << (FIRST[known] + SLOW); self.columns];
        Means(if known == KNOWN { self.means.clone() } else { first })
    }

    /// What the next frame's number at this place is expected to be, after this one in its column.
    fn expected(&self, at: usize, before: f32) -> i32 {
        let value = |frame: usize| f64::from(self.frames[frame][at]);
        let number = match self.frames.len() {
            0 => before,
            1 => self.frames[0][at],
            2 => (2.0 * value(0) - value(1)) as f32,
            _ => (3.0 * (value(0) - value(1)) + value(2)) as f32,
        };
        ordered(number.to_bits())
    }

    fn end(&mut self, next: Vec<f32>, means: Means) {
        if self.frames.len() == KNOWN {
            self.means = means.0;
            self.frames.pop_back();
        }
        self.frames.push_front(next);
    }

    /// Tells the next frame, of as many numbers as those before: writes it for [`Track::hear`].
    pub(crate) fn tell(&mut self, next: Vec<f32>, to: &mut Vec<u8>) {
        let mut means = self.begin();
        let mut writer = Writer::new(next.len() / 3);
        let mut before = vec![0.0; self.columns];
        for (at, &number) in next.iter().enumerate() {
            let column = at % self.columns;
            let beside = ordered(number.to_bits());
            let value = zigzag(beside.wrapping_sub(self.expected(at, before[column])));
            put_code(&mut writer, value, means.width(column));
            writer.flush();
            means.count(column, value);
            before[column] = number;
        }
        let codes = writer.end();
        put_number(codes.len() as u32, to);
        to.extend_from_slice(&codes);
        self.end(next, means);
    }

    /// Hears the next frame, of so many numbers.
    ///
    /// # Errors
    /// If the bytes do not begin with one.
    pub(crate) fn hear(&mut self, count: usize, bytes: &mut &[u8]) -> Result<&[f32], NoFrame> {
        let length = take_number(bytes).ok_or(NoFrame)? as usize;
        let (codes, rest) = bytes.split_at_checked(length).ok_or(NoFrame)?;
        // Each code has a bit.
        if codes.len().saturating_mul(8) < count
            || self.frames.front().is_some_and(|frame| frame.len() != count)
        {
            return Err(NoFrame);
        }
        let mut means = self.begin();
        let mut reader = Reader::new(codes);
        let mut before = vec![0.0; self.columns];
        let mut next = Vec::with_capacity(count);
        for at in 0..count {
            let column = at % self.columns;
            let value = take_code(&mut reader, means.width(column)).ok_or(NoFrame)?;
            let number = self.expected(at, before[column]).wrapping_add(unzigzag(value));
            means.count(column, value);
            before[column] = f32::from_bits(bits(number));
            next.push(before[column]);
        }
        if reader.whole_bytes() != codes.len() {
            return Err(NoFrame);
        }
        *bytes = rest;
        self.end(next, means);
        Ok(&self.frames[0])
    }
}

/// Of what was told so far, by column.
struct Means(Vec<u64>);

impl Means {
    /// The width that makes codes of such values short.
    fn width(&self, column: usize) -> u32 {
        // The mean times the logarithm of two, about.
        (((self.0[column] * 11) >> (4 + SLOW)) | 1).ilog2()
    }

    fn count(&mut self, column: usize, value: u32) {
        let mean = &mut self.0[column];
        *mean = *mean - (*mean >> SLOW) + u64::from(value);
    }
}

/// Writes a number in as many bytes as it needs.
pub(crate) fn put_number(mut number: u32, to: &mut Vec<u8>) {
    while number >= 0x80 {
        to.push(number as u8 | 0x80);
        number >>= 7;
    }
    to.push(number as u8);
}

/// Reads what [`put_number`] wrote, and goes on behind it.
pub(crate) fn take_number(bytes: &mut &[u8]) -> Option<u32> {
    let mut number = 0;
    for shift in (0..32).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return u32::try_from(number).ok();
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn numbers_are_read_as_they_were_written(number in any::<u32>(), rest in any::<Vec<u8>>()) {
            let mut bytes = Vec::new();
            put_number(number, &mut bytes);
            bytes.extend(&rest);
            let mut left = &bytes[..];
            prop_assert_eq!(take_number(&mut left), Some(number));
            prop_assert_eq!(left, &rest[..]);
        }

        /// Whatever the numbers are, the same bits come out, and what is cut or damaged is no panic.
        #[test]
        fn frames_are_heard_as_they_were_told(
            columns in 1usize..5,
            frames in (0usize..40).prop_flat_map(|n| prop::collection::vec(prop::collection::vec(any::<u32>(), n), 1..7)),
            cut in any::<prop::sample::Index>(),
            flip in any::<prop::sample::Index>(),
        ) {
            let (mut told, mut heard) = (Track::new(columns), Track::new(columns));
            for frame in &frames {
                let frame: Vec<f32> = frame.iter().map(|bits| f32::from_bits(*bits)).collect();
                let mut bytes = Vec::new();
                told.tell(frame.clone(), &mut bytes);
                let mut damaged = bytes.clone();
                damaged[flip.index(bytes.len())] ^= 0x14;
                let _ = heard.clone().hear(frame.len(), &mut &damaged[..]);
                let cut = &bytes[..cut.index(bytes.len())];
                prop_assert!(heard.clone().hear(frame.len(), &mut &cut[..]).is_err());
                bytes.push(7);
                let mut left = &bytes[..];
                let got = heard.hear(frame.len(), &mut left).unwrap();
                let same = got.iter().map(|x| x.to_bits()).eq(frame.iter().map(|x| x.to_bits()));
                prop_assert!(same);
                prop_assert_eq!(left, &[7][..]);
            }
        }
    }

    /// Bodies on their way round: once it is known how they move, three coordinates take little more than one byte.
    #[test]
    fn smooth_ways_are_short() {
        let mut track = Track::new(3);
        let lengths: Vec<usize> = (0..8)
            .map(|step| {
                let place = |i: usize| {
                    let turn = 0.37 * i as f64 + 1e-3 * f64::from(step);
                    [turn.cos() * 0.1, turn.sin() * 0.1, 0.02 * (3.0 * turn).cos()]
                };
                let frame = (0..500).flat_map(place).map(|x| x as f32).collect();
                let mut bytes = Vec::new();
                track.tell(frame, &mut bytes);
                bytes.len()
            })
            .collect();
        assert!(lengths[0] < 500 * 12 && lengths[1] < 500 * 8, "{lengths:?}");
        assert!(lengths[3..].iter().all(|length| *length < 500 * 3 / 2), "{lengths:?}");
    }
}
