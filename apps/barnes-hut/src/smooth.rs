//! Codes numbers that are sent repeatedly and change smoothly, by their differences from a forecast
//! that both sides compute.
//!
//! The forecast of a number is a line or parabola through its last values; at first it is the
//! number of the row before, or a prediction of the sender. The difference counts representable
//! numbers, or whole ones, and is written in a Golomb-Rice code. The width of the code follows the
//! mean of its column so far. The first frames, which differ from later ones and may have few rows,
//! contain the widths by column.
//!
//! Of several forecasts the best one for a frame is chosen. An exact parabola follows a turn but
//! amplifies rounding errors fourfold; one fitted to six values suppresses them. The coding is
//! lossless: both sides compute with rounded operations of IEEE 754. `delta.rs` is the larger
//! variant for all bodies at once. Here a frame consists of codes alone, for it may have few
//! numbers. This module is pure, and does not depend on the meaning of the numbers.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::delta::{
    CodeReader, Writer, bits, code_bits, ordered, put_code, take_code, unzigzag, zigzag,
};

/// The approximate number of codes from one flush to the next.
const FLUSH: usize = 64;
/// The number of frames that are kept.
const KNOWN: usize = 6;
/// Weights of the last values, newest first: the last value; the lines through two and fitted to
/// four; the parabolas through three and fitted to five and six.
const FORECASTS: [&[f64]; 6] = [
    &[1.0],
    &[2.0, -1.0],
    &[1.0, 0.5, 0.0, -0.5],
    &[3.0, -3.0, 1.0],
    &[1.8, 0.0, -0.8, -0.6, 0.6],
    &[1.5, 0.3, -0.4, -0.6, -0.3, 0.5],
];
/// The approximate number of numbers by which forecasts are compared.
const SAMPLE: usize = 128;
/// The part of a value in its column's new mean, as a negative power of two.
const SLOW: u32 = 4;
/// With fewer known frames than this, a frame contains the widths.
const TELLING: usize = 3;
/// The largest of these widths.
const WIDEST: u8 = 24;
/// The initially expected size of later values, as a power of two.
const FIRST: u32 = 2;

/// A sequence of frames with one number of rows and columns, as the sender encodes it and the
/// receiver decodes it.
#[derive(Clone, Debug)]
pub(crate) struct Track {
    /// The coding of each column's numbers.
    columns: &'static [ColumnCoding],
    /// The last frames, newest first.
    frames: VecDeque<Vec<f32>>,
    /// The mean code of each column since [`TELLING`] frames are known, times 2^[`SLOW`].
    means: Vec<u64>,
}

/// The coding of a column's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ColumnCoding {
    /// Differences count the representable numbers of single precision.
    InOrder,
    /// The numbers are whole, and less than two to the power of 31.
    Whole,
}

/// The bytes are not a valid frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoFrame;

impl Track {
    /// An empty track; its rows have these columns.
    pub(crate) fn new(columns: &'static [ColumnCoding]) -> Self {
        Self { columns, frames: VecDeque::new(), means: Means::of(columns.len()).0 }
    }

    /// Continues rows of other tracks with these columns, each given by its track and row. The
    /// numbers of each column have changed by `moved` since.
    pub(crate) fn of_rows(
        columns: &'static [ColumnCoding],
        rows: &[(&Self, usize)],
        moved: &[f64],
    ) -> Self {
        let frames = rows.iter().map(|(track, _)| track.frames.len()).min().unwrap_or(0);
        let frame = |age: usize| -> Vec<f32> {
            let all = rows.iter().flat_map(|&(track, row)| {
                let first = row * columns.len();
                track.frames[age][first..first + columns.len()].iter().zip(moved)
            });
            all.map(|(number, moved)| (f64::from(*number) + moved) as f32).collect()
        };
        Self { frames: (0..frames).map(frame).collect(), ..Self::new(columns) }
    }

    /// Whether the next frame contains widths.
    fn tells_widths(&self) -> bool {
        self.frames.len() < TELLING
    }

    /// Applies a function to each number of a frame, its companion and its coding.
    fn by_number<A: Copy, B: Copy, T>(
        &self,
        numbers: &[A],
        with: &[B],
        of: impl Fn(A, B, ColumnCoding) -> T,
    ) -> Vec<T> {
        let both = numbers.iter().zip(with);
        // With one coding for all columns this loop is vectorised.
        if self.columns.iter().all(|counts| *counts == ColumnCoding::InOrder) {
            return both.map(|(number, with)| of(*number, *with, ColumnCoding::InOrder)).collect();
        }
        let counts = self.columns.iter().cycle();
        both.zip(counts).map(|((number, with), counts)| of(*number, *with, *counts)).collect()
    }

    /// The forecast of the next frame; none if no frame is known.
    fn expected(&self, forecast: &[f64]) -> Option<Vec<f32>> {
        self.frames.front()?;
        Some(match *forecast {
            [a] => self.sums([a]),
            [a, b] => self.sums([a, b]),
            [a, b, c] => self.sums([a, b, c]),
            [a, b, c, d] => self.sums([a, b, c, d]),
            [a, b, c, d, e] => self.sums([a, b, c, d, e]),
            [a, b, c, d, e, f] => self.sums([a, b, c, d, e, f]),
            _ => return None,
        })
    }

    /// Sums of the last frames, newest first, times these weights; loops have a fixed length, for
    /// they take most of the time.
    fn sums<const N: usize>(&self, weights: [f64; N]) -> Vec<f32> {
        let count = self.frames[0].len();
        let frames: [&[f32]; N] = std::array::from_fn(|age| &self.frames[age][..count]);
        let mut all = vec![0.0; count];
        for (at, to) in all.iter_mut().enumerate() {
            let mut sum = 0.0;
            for age in 0..N {
                sum += weights[age] * f64::from(frames[age][at]);
            }
            *to = rounded(sum, frames[0][at]);
        }
        all
    }

    /// The forecast that needs the fewest bits for this frame, approximately.
    fn best(&self, next: &[f32]) -> u8 {
        let mut bits = [0; FORECASTS.len()];
        let columns = self.columns.len();
        let rows = (0..next.len() / columns).step_by(next.len() / SAMPLE + 1);
        for at in rows.flat_map(|row| row * columns..(row + 1) * columns) {
            let Some(last) = self.frames.front() else { break };
            let mut values = [0.0; KNOWN];
            values
                .iter_mut()
                .zip(&self.frames)
                .for_each(|(value, frame)| *value = frame[at].into());
            for (bits, forecast) in bits.iter_mut().zip(FORECASTS) {
                let sum: f64 = forecast.iter().zip(values).map(|(weight, v)| weight * v).sum();
                let value =
                    difference(next[at], rounded(sum, last[at]), self.columns[at % columns]);
                *bits += u32::BITS - value.leading_zeros();
            }
        }
        let some = FORECASTS.iter().zip(bits).enumerate();
        let some = some.filter(|(_, (forecast, _))| forecast.len() <= self.frames.len());
        some.min_by_key(|(_, (_, bits))| *bits).map_or(0, |(best, _)| best as u8)
    }

    fn end(&mut self, next: Vec<f32>, means: Means) {
        self.means = means.0;
        self.frames.truncate(KNOWN - 1);
        self.frames.push_front(next);
    }

    /// Predicts the first numbers of a new track: the number of the row before.
    fn of_row_before(columns: usize) -> impl Fn(&[f32]) -> f32 {
        move |known| known.len().checked_sub(columns).map_or(0.0, |at| known[at])
    }

    /// Encodes the next frame, with as many numbers as those before, for [`Track::decode`].
    pub(crate) fn encode(&mut self, next: Vec<f32>, to: &mut Vec<u8>) {
        self.encode_from(Self::of_row_before(self.columns.len()), next, to);
    }

    /// Encodes the next frame with a prediction of each number of the first frame, given those
    /// before it.
    pub(crate) fn encode_from(
        &mut self,
        first: impl Fn(&[f32]) -> f32,
        next: Vec<f32>,
        to: &mut Vec<u8>,
    ) {
        let columns = self.columns.len();
        let best = self.best(&next);
        let expected = self.expected(FORECASTS[usize::from(best)]);
        let from_first = || (0..next.len()).map(|at| first(&next[..at])).collect();
        let expected = expected.unwrap_or_else(from_first);
        let values: Vec<u32> = self.by_number(&next, &expected, difference);
        let widths = if self.tells_widths() { shortest(&values, columns) } else { Vec::new() };
        let mut means = Means(self.means.clone());
        let codes = means.write(&widths, &values);
        put_number(codes.len() as u32, to);
        to.push(best);
        to.extend_from_slice(&widths);
        to.extend_from_slice(&codes);
        self.end(next, means);
    }

    /// Decodes the next frame, with this number of numbers.
    ///
    /// # Errors
    /// The bytes do not start with a frame.
    pub(crate) fn decode(&mut self, count: usize, bytes: &mut &[u8]) -> Result<&[f32], NoFrame> {
        self.decode_from(Self::of_row_before(self.columns.len()), count, bytes)
    }

    /// Decodes a frame of [`Track::tell_from`].
    ///
    /// # Errors
    /// The bytes do not start with a frame.
    pub(crate) fn decode_from(
        &mut self,
        first: impl Fn(&[f32]) -> f32,
        count: usize,
        bytes: &mut &[u8],
    ) -> Result<&[f32], NoFrame> {
        let length = take_number(bytes).ok_or(NoFrame)? as usize;
        let (&best, rest) = bytes.split_first().ok_or(NoFrame)?;
        let columns = self.columns.len();
        let widths = if self.tells_widths() { columns } else { 0 };
        let (widths, rest) = rest.split_at_checked(widths).ok_or(NoFrame)?;
        let (codes, rest) = rest.split_at_checked(length).ok_or(NoFrame)?;
        let forecast = *FORECASTS.get(usize::from(best)).ok_or(NoFrame)?;
        if self.frames.front().is_some_and(|frame| frame.len() != count)
            || forecast.len() > self.frames.len().max(1)
            || widths.iter().any(|width| *width > WIDEST)
        {
            return Err(NoFrame);
        }
        let mut means = Means(self.means.clone());
        let values = means.read(widths, count, codes).ok_or(NoFrame)?;
        *bytes = rest;
        let next = match self.expected(forecast) {
            Some(expected) => self.by_number(&expected, &values, apply_difference),
            None => {
                let mut next = Vec::with_capacity(count);
                for (value, counts) in values.iter().zip(self.columns.iter().cycle()) {
                    next.push(apply_difference(first(&next), *value, *counts));
                }
                next
            }
        };
        self.end(next, means);
        Ok(&self.frames[0])
    }
}

/// Means of the values so far, by column.
struct Means(Vec<u64>);

impl Means {
    /// The initial means of these columns.
    fn of(columns: usize) -> Self {
        Self(vec![1 << (FIRST + SLOW); columns])
    }

    /// The width of the next code in a column: the sent width or, without one, the best for the
    /// mean value.
    fn next(&self, widths: &[u8], column: usize) -> u32 {
        // The mean times the logarithm of two, approximately.
        let by_mean = || (((self.0[column] * 11) >> (4 + SLOW)) | 1).ilog2();
        widths.get(column).map_or_else(by_mean, |width| u32::from(*width))
    }

    /// Adds a value to its column's mean, if widths are not sent.
    fn count(&mut self, widths: &[u8], column: usize, value: u32) {
        if widths.is_empty() {
            let mean = &mut self.0[column];
            *mean = *mean - (*mean >> SLOW) + u64::from(value);
        }
    }

    /// Encodes rows of values.
    fn write(&mut self, widths: &[u8], values: &[u32]) -> Bytes {
        let columns = self.0.len();
        let mut writer = Writer::new(values.len() / 3);
        for rows in values.chunks((FLUSH / columns).max(1) * columns) {
            for row in rows.chunks(columns) {
                for (column, value) in row.iter().enumerate() {
                    put_code(&mut writer, *value, self.next(widths, column));
                    self.count(widths, column, *value);
                }
            }
            writer.flush();
        }
        writer.end()
    }

    /// Decodes this number of values; none if the codes are not exactly these.
    fn read(&mut self, widths: &[u8], count: usize, codes: &[u8]) -> Option<Vec<u32>> {
        // Each code has at least one bit.
        if codes.len().saturating_mul(8) < count {
            return None;
        }
        let mut reader = CodeReader::new(codes);
        let mut values = vec![0; count];
        for row in values.chunks_mut(self.0.len()) {
            for (column, value) in row.iter_mut().enumerate() {
                *value = take_code(&mut reader, self.next(widths, column))?;
                self.count(widths, column, *value);
            }
        }
        (reader.whole_bytes() == codes.len()).then_some(values)
    }
}

/// A forecast as a number; IEEE 754 does not specify which NaN results from infinities.
fn rounded(sum: f64, last: f32) -> f32 {
    if sum.is_nan() { last } else { sum as f32 }
}

/// The difference of a number from its forecast.
fn difference(number: f32, expected: f32, counts: ColumnCoding) -> u32 {
    debug_assert!(counts == ColumnCoding::InOrder || f64::from(number) == f64::from(number as i32));
    zigzag(place(number, counts).wrapping_sub(place(expected, counts)))
}

/// The number with this difference from its forecast: see [`difference`].
fn apply_difference(expected: f32, value: u32, counts: ColumnCoding) -> f32 {
    let place = place(expected, counts).wrapping_add(unzigzag(value));
    match counts {
        ColumnCoding::InOrder => f32::from_bits(bits(place)),
        ColumnCoding::Whole => place as f32,
    }
}

/// The position of a number among all numbers of its coding; one that is not whole is rounded.
fn place(number: f32, counts: ColumnCoding) -> i32 {
    match counts {
        ColumnCoding::InOrder => ordered(number.to_bits()),
        ColumnCoding::Whole => nearest_whole(number.into()) as i32,
    }
}

/// The nearest whole number of one with less than 52 bits; not every machine has an instruction for
/// it.
pub(crate) fn nearest_whole(number: f64) -> f64 {
    // The sum has no bits below one.
    const ROUND: f64 = 1.5 * (1u64 << 52) as f64;
    number + ROUND - ROUND
}

/// The best width of each column's codes, or nearly: the mean length of its values.
fn shortest(values: &[u32], columns: usize) -> Vec<u8> {
    let best = |column: usize| {
        let of_column = || values.iter().skip(column).step_by(columns);
        let length = |value: &u32| u64::from(u32::BITS - value.leading_zeros());
        let mean = of_column().map(length).sum::<u64>() / of_column().count().max(1) as u64;
        let bits = |width: &u8| -> u64 {
            of_column().map(|value| u64::from(code_bits(*value, u32::from(*width)))).sum()
        };
        let mean = mean as u8;
        let some = mean.saturating_sub(3).min(WIDEST)..=(mean + 2).min(WIDEST);
        some.min_by_key(bits).unwrap_or(0)
    };
    (0..columns).map(best).collect()
}

/// Encodes numbers that are mostly small, for [`take_codes`]; the width follows their mean so far.
pub(crate) fn put_codes(values: &[u32], to: &mut Vec<u8>) {
    let codes = Means::of(1).write(&[], values);
    put_number(codes.len() as u32, to);
    to.extend_from_slice(&codes);
}

/// Decodes this number of numbers of [`put_codes`], and advances `bytes`; none if there are too
/// few.
pub(crate) fn take_codes(count: usize, bytes: &mut &[u8]) -> Option<Vec<u32>> {
    let length = take_number(bytes)? as usize;
    let (codes, rest) = bytes.split_at_checked(length)?;
    let values = Means::of(1).read(&[], count, codes)?;
    *bytes = rest;
    Some(values)
}

/// Encodes a number in as many bytes as it needs.
pub(crate) fn put_number(mut number: u32, to: &mut Vec<u8>) {
    while number >= 0x80 {
        to.push(number as u8 | 0x80);
        number >>= 7;
    }
    to.push(number as u8);
}

/// Decodes a number of [`put_number`], and advances `bytes`.
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

    use super::ColumnCoding::{InOrder, Whole};
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

        #[test]
        fn codes_are_read_as_they_were_written(
            numbers in prop::collection::vec(prop_oneof![0u32..9, any::<u32>()], 0..300),
            rest in any::<Vec<u8>>(),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut bytes = Vec::new();
            put_codes(&numbers, &mut bytes);
            let mut few = &bytes[..cut.index(bytes.len())];
            prop_assert!(take_codes(numbers.len(), &mut few).is_none());
            bytes.extend(&rest);
            let mut left = &bytes[..];
            prop_assert_eq!(take_codes(numbers.len(), &mut left), Some(numbers));
            prop_assert_eq!(left, &rest[..]);
        }

        /// All numbers are decoded to the same bits, and cut or damaged bytes cause no panic.
        #[test]
        fn decoding_an_encoded_frame_is_the_identity(
            columns in prop_oneof![
                Just(&[InOrder][..]),
                Just(&[InOrder; 3][..]),
                Just(&[Whole, InOrder, Whole, Whole][..]),
            ],
            frames in (0usize..40).prop_flat_map(|n| {
                prop::collection::vec(prop::collection::vec(any::<u32>(), n), 1..10)
            }),
            cut in any::<prop::sample::Index>(),
            flip in any::<prop::sample::Index>(),
        ) {
            let (mut sender, mut receiver) = (Track::new(columns), Track::new(columns));
            for frame in &frames {
                let number = |(at, bits): (usize, &u32)| {
                    match columns[at % columns.len()] {
                        InOrder => f32::from_bits(*bits),
                        Whole => (*bits as i32 >> (1 + bits % 30)) as f32,
                    }
                };
                let frame: Vec<f32> = frame.iter().enumerate().map(number).collect();
                let mut bytes = Vec::new();
                sender.encode(frame.clone(), &mut bytes);
                let mut damaged = bytes.clone();
                damaged[flip.index(bytes.len())] ^= 0x14;
                let _ = receiver.clone().decode(frame.len(), &mut &damaged[..]);
                let cut = &bytes[..cut.index(bytes.len())];
                prop_assert!(receiver.clone().decode(frame.len(), &mut &cut[..]).is_err());
                bytes.push(7);
                let mut left = &bytes[..];
                let got = receiver.decode(frame.len(), &mut left).unwrap();
                let same = got.iter().map(|x| x.to_bits()).eq(frame.iter().map(|x| x.to_bits()));
                prop_assert!(same);
                prop_assert_eq!(left, &[7][..]);
            }
        }
    }

    /// Bodies on orbits: after the first frames, three coordinates need little more than one byte.
    #[test]
    fn smooth_paths_have_short_codes() {
        let mut track = Track::new(&[InOrder; 3]);
        let lengths: Vec<usize> = (0..12)
            .map(|step| {
                let place = |i: usize| {
                    let turn = 0.37 * i as f64 + 1e-3 * f64::from(step);
                    [turn.cos() * 0.1, turn.sin() * 0.1, 0.02 * (3.0 * turn).cos()]
                };
                let frame = (0..500).flat_map(place).map(|x| x as f32).collect();
                let mut bytes = Vec::new();
                track.encode(frame, &mut bytes);
                bytes.len()
            })
            .collect();
        assert!(lengths[0] < 500 * 12 && lengths[1] < 500 * 8, "{lengths:?}");
        assert!(lengths[3..].iter().all(|length| *length < 500 * 3 / 2), "{lengths:?}");
    }

    /// A few rows with a constant column: from the second frame on each of its numbers needs a bit.
    #[test]
    fn few_rows_have_short_codes_from_the_start() {
        let mut track = Track::new(&[InOrder; 2]);
        let lengths: Vec<usize> = (0..3)
            .map(|step| {
                let row = |i: usize| [0.1 + 0.01 * i as f32 + 1e-4 * step as f32, 1.0 + i as f32];
                let mut bytes = Vec::new();
                track.encode((0..20).flat_map(row).collect(), &mut bytes);
                bytes.len()
            })
            .collect();
        // 15 bits and two for the change of each other number, one for each constant, and the
        // header.
        assert!(lengths[1] < 20 * (15 + 2 + 1) / 8 + 5, "{lengths:?}");
    }
}
